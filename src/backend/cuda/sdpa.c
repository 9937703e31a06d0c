/**
 * The entry attention. Four ways, by type and shape:
 *
 *   Hopper  our own kernels (sdpa90.cu): one long document in bf16 or e4m3, heads of 128
 *   cuDNN   bf16 and f16 without a mask: one unified operation that reads q, k and v where they lie
 *           in a packed product; under math fp8 its e4m3 graph (9.0 and later). What e4m3 attention
 *           writes, here and on Hopper, the next product takes as it is
 *   mma     our own tensor core kernel: masks, head sizes and GPUs that cuDNN does not take
 *   f32     everything in f32
 *
 * A cuDNN plan holds for one length. Documents of equal length run as a batch of one plan; others
 * one after another. Plans are kept; building one takes from milliseconds to a second.
 */
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "size.h"

typedef cudnnBackendDescriptor_t descriptor;

enum { MAX_DESCRIPTORS = 96, N_IO = 16, CHOICES = 4 };
/* Products of q and k worth timing the choices for: some tens of microseconds. */
static const double worth_timing = 1e9;

typedef struct shape {
    int64_t batch, heads, kv_heads, rows, dim;
    int64_t q_s, q_h, k_s, k_h, v_s, v_h, o_s, o_h;
    int64_t dtype, is_fp8;
} shape;

typedef struct plan {
    struct plan *next;
    shape at;
    descriptor exec[CHOICES]; ///< what cuDNN offers; the first one once they were timed
    int64_t work[CHOICES];
    int n_exec;
    int n_io; ///< tensors with memory, by unique id 1 .. n_io
    bool is_usable;
} plan;

struct h3_sdpa_cache {
    plan *first;
    int32_t *cu; ///< device copy of segment bounds
    int cu_cap;
    float *scalars;     ///< device: scales of the e4m3 graph
    bool is_amax_clear; ///< the three maxima there are 0
};

/* Unique ids. BUILT is the first of tensors that exist inside a graph only. */
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_O,
    ID_SCALE,
    ID_DESCALE_Q,
    ID_DESCALE_K,
    ID_DESCALE_V,
    ID_DESCALE_S,
    ID_SCALE_S,
    ID_SCALE_O,
    ID_AMAX_S,
    ID_AMAX_O,
    ID_BUILT
};

/* Places in h3_sdpa_cache.scalars, as far apart as cuDNN wants its tensors aligned. */
enum {
    APART = 16,
    AMAX_Q = 0, // then k, v
    DESCALE_Q = 3 * APART,
    DESCALE_K = 4 * APART,
    DESCALE_V = 5 * APART,
    ONE = 6 * APART,
    SCALE_O = 7 * APART,
    UNUSED_S = 8 * APART,
    UNUSED_O = 9 * APART,
    N_SCALARS = 10 * APART
};

/* ---------------------------------------------------------------- descriptors */

/* A graph under construction: everything made is destroyed with it, the first failure sticks. */
typedef struct graph {
    descriptor made[MAX_DESCRIPTORS], op[32];
    int n_made, n_ops;
    int64_t next_id;
    cudnnStatus_t failed;
} graph;

static descriptor make(graph *g, cudnnBackendDescriptorType_t t)
{
    descriptor x = NULL;

    if (g->failed != CUDNN_STATUS_SUCCESS) return NULL;
    if (g->n_made == MAX_DESCRIPTORS) {
        g->failed = CUDNN_STATUS_INTERNAL_ERROR;
        return NULL;
    }
    g->failed = cudnnBackendCreateDescriptor(t, &x);
    if (g->failed == CUDNN_STATUS_SUCCESS) g->made[g->n_made++] = x;
    return x;
}

static void set(graph *g, descriptor x, cudnnBackendAttributeName_t a,
                cudnnBackendAttributeType_t t, int64_t n, const void *v)
{
    if (g->failed == CUDNN_STATUS_SUCCESS) g->failed = cudnnBackendSetAttribute(x, a, t, n, v);
}

static void finish(graph *g, descriptor x)
{
    if (g->failed == CUDNN_STATUS_SUCCESS) g->failed = cudnnBackendFinalize(x);
}

static void drop(graph *g)
{
    while (g->n_made > 0)
        cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
}

typedef enum place { REAL, VIRTUAL, BY_VALUE } place;

static descriptor tensor(graph *g, int64_t id, cudnnDataType_t type, const int64_t dim[4],
                         const int64_t st[4], place where)
{
    const int64_t align = 16;
    const bool yes = true;
    descriptor x = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);

    set(g, x, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, x, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(g, x, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, st);
    set(g, x, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, x, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (where == VIRTUAL) set(g, x, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (where == BY_VALUE) set(g, x, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finish(g, x);
    return x;
}

static descriptor scalar(graph *g, int64_t id, place where)
{
    const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, id, CUDNN_DATA_FLOAT, one, one, where);
}

static descriptor inner(graph *g, cudnnDataType_t type, const int64_t dim[4])
{
    const int64_t st[4] = {dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1};
    return tensor(g, g->next_id++, type, dim, st, VIRTUAL);
}

static void add_op(graph *g, descriptor op)
{
    finish(g, op);
    if (g->failed == CUDNN_STATUS_SUCCESS) g->op[g->n_ops++] = op;
}

static void link(graph *g, descriptor op, cudnnBackendAttributeName_t a, descriptor x)
{
    set(g, op, a, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
}

/* y = x (mode) b, or mode(x) when b is NULL. */
static descriptor pointwise(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                            descriptor y)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor p = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), op;

    set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    finish(g, p);
    op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    link(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    link(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) link(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    link(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op);
    return y;
}

static descriptor reduce(graph *g, cudnnReduceTensorOp_t mode, descriptor x, descriptor y)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor p = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), op;

    set(g, p, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(g, p, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    finish(g, p);
    op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    link(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, p);
    link(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    link(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op);
    return y;
}

static descriptor product(graph *g, descriptor a, descriptor b, descriptor c)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor p = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR), op;

    set(g, p, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    finish(g, p);
    op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    link(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, p);
    link(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    link(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    link(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(g, op);
    return c;
}

/* ---------------------------------------------------------------- the two graphs */

static void unified(graph *g, const shape *s)
{
    const int64_t n = s->rows, dq[4] = {s->batch, s->heads, n, s->dim};
    const int64_t dk[4] = {s->batch, s->kv_heads, n, s->dim};
    const int64_t sq[4] = {n * s->q_s, s->q_h, s->q_s, 1}, sk[4] = {n * s->k_s, s->k_h, s->k_s, 1};
    const int64_t sv[4] = {n * s->v_s, s->v_h, s->v_s, 1}, so[4] = {n * s->o_s, s->o_h, s->o_s, 1};
    const cudnnDataType_t t = s->dtype == H3_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    descriptor q = tensor(g, ID_Q, t, dq, sq, REAL), k = tensor(g, ID_K, t, dk, sk, REAL);
    descriptor v = tensor(g, ID_V, t, dk, sv, REAL), o = tensor(g, ID_O, t, dq, so, REAL);
    descriptor scale = scalar(g, ID_SCALE, BY_VALUE);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);

    link(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q);
    link(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k);
    link(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v);
    link(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o);
    link(g, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale);
    add_op(g, op);
}

/*
 * The pattern that cuDNN recognises as e4m3 attention, operation by operation:
 * softmax(q k^T scale dq dk) -> e4m3 by scale_s, times v, times ds dv scale_o. The maxima it
 * insists on reporting are not used.
 */
static void e4m3_graph(graph *g, const shape *s)
{
    const cudnnDataType_t f8 = CUDNN_DATA_FP8_E4M3, f32 = CUDNN_DATA_FLOAT;
    const int64_t n = s->rows, dq[4] = {s->batch, s->heads, n, s->dim};
    const int64_t dv[4] = {s->batch, s->kv_heads, n, s->dim},
                  dk[4] = {s->batch, s->kv_heads, s->dim, n};
    const int64_t sq[4] = {n * s->q_s, s->q_h, s->q_s, 1}, sk[4] = {n * s->k_s, s->k_h, 1, s->k_s};
    const int64_t sv[4] = {n * s->v_s, s->v_h, s->v_s, 1}, so[4] = {n * s->o_s, s->o_h, s->o_s, 1};
    const int64_t dp[4] = {s->batch, s->heads, n, n}, dr[4] = {s->batch, s->heads, n, 1};
    descriptor q = tensor(g, ID_Q, f8, dq, sq, REAL), k = tensor(g, ID_K, f8, dk, sk, REAL);
    descriptor v = tensor(g, ID_V, f8, dv, sv, REAL), o = tensor(g, ID_O, f8, dq, so, REAL);
    descriptor top, e, sum, p, x;

    x = product(g, q, k, inner(g, f32, dp));
    x = pointwise(g, CUDNN_POINTWISE_MUL, x, scalar(g, ID_SCALE, BY_VALUE), inner(g, f32, dp));
    x = pointwise(g, CUDNN_POINTWISE_MUL, x, scalar(g, ID_DESCALE_Q, REAL), inner(g, f32, dp));
    x = pointwise(g, CUDNN_POINTWISE_MUL, x, scalar(g, ID_DESCALE_K, REAL), inner(g, f32, dp));
    top = reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, inner(g, f32, dr));
    x = pointwise(g, CUDNN_POINTWISE_SUB, x, top, inner(g, f32, dp));
    e = pointwise(g, CUDNN_POINTWISE_EXP, x, NULL, inner(g, f32, dp));
    sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, inner(g, f32, dr));
    x = pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, inner(g, f32, dr));
    pointwise(g, CUDNN_POINTWISE_ADD, top, x, inner(g, f32, dr));
    p = pointwise(g, CUDNN_POINTWISE_DIV, e, sum, inner(g, f32, dp));
    reduce(g, CUDNN_REDUCE_TENSOR_AMAX, p, scalar(g, ID_AMAX_S, REAL));
    p = pointwise(g, CUDNN_POINTWISE_MUL, p, scalar(g, ID_SCALE_S, REAL), inner(g, f8, dp));
    x = product(g, p, v, inner(g, f32, dq));
    x = pointwise(g, CUDNN_POINTWISE_MUL, x, scalar(g, ID_DESCALE_S, REAL), inner(g, f32, dq));
    x = pointwise(g, CUDNN_POINTWISE_MUL, x, scalar(g, ID_DESCALE_V, REAL), inner(g, f32, dq));
    pointwise(g, CUDNN_POINTWISE_MUL, x, scalar(g, ID_SCALE_O, REAL), o);
    reduce(g, CUDNN_REDUCE_TENSOR_AMAX, x, scalar(g, ID_AMAX_O, REAL));
}

/* ---------------------------------------------------------------- plans */

/* The first engine configuration of the heuristic that builds. */
static void build(h3_backend *b, graph *g, plan *p)
{
    cudnnHandle_t handle = b->cudnn;
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor graph_d = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), heur, config[8];
    int64_t n = 0, got = 0;

    set(g, graph_d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(g, graph_d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op);
    finish(g, graph_d);
    heur = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    link(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_d);
    set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, heur);
    for (int i = 0; i < 8; i++)
        config[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->failed == CUDNN_STATUS_SUCCESS)
        g->failed = cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, &n, config);
    for (int64_t i = 0; g->failed == CUDNN_STATUS_SUCCESS && i < n && p->n_exec < CHOICES; i++) {
        descriptor x = NULL;
        bool is_usable;
        if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &x) !=
            CUDNN_STATUS_SUCCESS)
            continue;
        is_usable =
            cudnnBackendSetAttribute(x, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                     &handle) == CUDNN_STATUS_SUCCESS &&
            cudnnBackendSetAttribute(x, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                     &config[i]) == CUDNN_STATUS_SUCCESS &&
            cudnnBackendFinalize(x) == CUDNN_STATUS_SUCCESS &&
            cudnnBackendGetAttribute(x, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                     1, &got, &p->work[p->n_exec]) == CUDNN_STATUS_SUCCESS;
        if (is_usable)
            p->exec[p->n_exec++] = x;
        else
            cudnnBackendDestroyDescriptor(x);
    }
    p->is_usable = p->n_exec > 0;
}

/* The plan for a shape, built on first use; one that cannot be built is remembered as such. */
static h3_status plan_for(h3_dev *d, const shape *s, plan **out)
{
    h3_sdpa_cache *c = d->backend->sdpa_cache;
    graph *g;
    plan *p;

    for (p = c->first; p; p = p->next)
        if (memcmp(&p->at, s, sizeof *s) == 0) {
            *out = p;
            return H3_OK;
        }
    p = calloc(1, sizeof *p);
    g = calloc(1, sizeof *g);
    if (!p || !g) {
        free(p);
        free(g);
        return h3_fail(H3_E_NOMEM, "no memory for an attention plan");
    }
    p->at = *s;
    p->next = c->first;
    c->first = p;
    g->next_id = ID_BUILT;
    if (s->is_fp8)
        e4m3_graph(g, s);
    else
        unified(g, s);
    p->n_io = s->is_fp8 ? ID_AMAX_O : ID_SCALE;
    build(d->backend, g, p);
    drop(g);
    free(g);
    *out = p;
    return H3_OK;
}

static h3_status run_choice(h3_dev *d, const plan *p, int i, void *const *io)
{
    static const int64_t ids[] = {
        ID_Q,         ID_K,         ID_V,       ID_O,       ID_SCALE,  ID_DESCALE_Q, ID_DESCALE_K,
        ID_DESCALE_V, ID_DESCALE_S, ID_SCALE_S, ID_SCALE_O, ID_AMAX_S, ID_AMAX_O};
    h3_backend *b = d->backend;
    descriptor pack = NULL;
    cudnnStatus_t s;

    H3_TRY(h3_cuda_grow(d, &b->sdpa_work, (size_t)(p->work[i] ? p->work[i] : 1)));
    s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (s == CUDNN_STATUS_SUCCESS)
        s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                     CUDNN_TYPE_VOID_PTR, p->n_io, io);
    if (s == CUDNN_STATUS_SUCCESS)
        s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                     p->n_io, ids);
    if (s == CUDNN_STATUS_SUCCESS)
        s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                                     1, &b->sdpa_work.p);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnBackendFinalize(pack);
    if (s == CUDNN_STATUS_SUCCESS) s = cudnnBackendExecute(b->cudnn, p->exec[i], pack);
    if (pack) cudnnBackendDestroyDescriptor(pack);
    if (s == CUDNN_STATUS_SUCCESS) return H3_OK;
    return h3_fail(H3_E_DEVICE, "cuDNN attention: %s", cudnnGetErrorString(s));
}

/* Keeps the quickest choice on the operands at hand (o is overwritten by each). */
static h3_status choose(h3_dev *d, plan *p, void *const *io)
{
    cudaStream_t stream = d->backend->stream;
    cudaEvent_t from = NULL, to = NULL;
    float ms, least = 1e30f;
    int best = 0;
    h3_status st = H3_OK;

    H3_TRY(h3_cuda_not_recording(d, "the choice of an attention"));
    H3_TRY(h3_cuda_wait(d));
    H3_CUDA_TRY(cudaEventCreate(&from));
    H3_CUDA_TRY(cudaEventCreate(&to));
    for (int i = 0; i < p->n_exec; i++)
        for (int k = 0; k < 3; k++) { // the first run loads code
            if (cudaEventRecord(from, stream) != cudaSuccess) break;
            if (run_choice(d, p, i, io) != H3_OK) break;
            if (cudaEventRecord(to, stream) != cudaSuccess ||
                cudaEventSynchronize(to) != cudaSuccess ||
                cudaEventElapsedTime(&ms, from, to) != cudaSuccess) {
                st = h3_fail(H3_E_DEVICE, "cuDNN attention: a trial failed");
                break;
            }
            if (k > 0 && ms < least) {
                least = ms;
                best = i;
            }
        }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    const descriptor chosen = p->exec[best];
    for (int i = 0; i < p->n_exec; i++)
        if (i != best) cudnnBackendDestroyDescriptor(p->exec[i]);
    p->exec[0] = chosen;
    p->work[0] = p->work[best];
    p->n_exec = 1;
    return st;
}

static h3_status execute(h3_dev *d, plan *p, void *const *io)
{
    const shape *s = &p->at;

    if (p->n_exec > 1 &&
        (double)(s->batch * s->heads * s->dim) * (double)s->rows * (double)s->rows > worth_timing)
        H3_TRY(choose(d, p, io));
    return run_choice(d, p, 0, io);
}

/* ---------------------------------------------------------------- the entry */

typedef struct job {
    h3_tensor o, q, k, v;
    float scale;
    const int32_t *cu;
    int n;
    bool causal;
    bool is_even; ///< every segment has as many rows as the first
    int32_t longest;
} job;

static bool is_aligned(h3_tensor t)
{
    return (uintptr_t)t.data % 16 == 0 && t.st[0] % 8 == 0 && t.st[1] % 8 == 0;
}

/* What both tensor core ways need. */
static bool is_packable(const job *j)
{
    return j->q.dtype != H3_F32 && j->k.dtype == j->q.dtype && j->v.dtype == j->q.dtype &&
           j->o.dtype == j->q.dtype && j->q.ne[2] % 8 == 0 && j->q.ne[2] <= 256 &&
           is_aligned(j->q) && is_aligned(j->k) && is_aligned(j->v) && is_aligned(j->o);
}

static shape shape_of(const job *j, int64_t batch, int64_t rows)
{
    shape s;

    memset(&s, 0, sizeof s);
    s.batch = batch;
    s.heads = j->q.ne[1];
    s.kv_heads = j->k.ne[1];
    s.rows = rows;
    s.dim = j->q.ne[2];
    s.q_s = j->q.st[0], s.q_h = j->q.st[1];
    s.k_s = j->k.st[0], s.k_h = j->k.st[1];
    s.v_s = j->v.st[0], s.v_h = j->v.st[1];
    s.o_s = j->o.st[0], s.o_h = j->o.st[1];
    s.dtype = j->q.dtype;
    return s;
}

static void *row(h3_tensor t, int64_t r)
{
    return (char *)t.data + (size_t)(r * t.st[0]) * h3_dtype_bytes((h3_dtype)t.dtype);
}

/* All segments of equal length as one batch, or one after another. *done stays false when cuDNN has
 * no plan for the first of them; nothing was enqueued then. */
static h3_status by_cudnn(h3_dev *d, const job *j, bool *done)
{
    float scale = j->scale;

    *done = false;
    if (!d->backend->cudnn || j->causal || !is_packable(j)) return H3_OK;
    for (int i = 0; i < (j->is_even ? 1 : j->n); i++) {
        const int64_t n = j->cu[i + 1] - j->cu[i];
        const shape s = shape_of(j, j->is_even ? j->n : 1, n);
        plan *p;
        if (n == 0) continue;
        H3_TRY(plan_for(d, &s, &p));
        if (!p->is_usable && !*done) return H3_OK;
        if (!p->is_usable)
            return h3_fail(H3_E_UNSUPPORTED, "cuDNN has no attention plan for %lld rows",
                           (long long)n);
        void *io[] = {row(j->q, j->cu[i]), row(j->k, j->cu[i]), row(j->v, j->cu[i]),
                      row(j->o, j->cu[i]), &scale};
        H3_TRY(execute(d, p, io));
        *done = true;
        d->backend->counts[H3_CUDA_N_SDPA]++;
    }
    return H3_OK;
}

/* Whether our kernels for Hopper take one document of so many rows. Of fewer, blocks of 192 queries
 * leave processors idle in the last round, and cuDNN is faster. */
static bool fits_90(const h3_backend *b, int64_t S, int64_t H, int64_t Hk, int64_t D)
{
    enum { LEAST_ROWS = 3072 };
    return b->has_attention90 && S >= LEAST_ROWS && D == H3_ATTN90_HEAD && H % Hk == 0;
}

static h3_status by_own_90(h3_dev *d, const job *j, bool *done)
{
    h3_backend *b = d->backend;
    const int64_t S = j->q.ne[0], H = j->q.ne[1], Hk = j->k.ne[1];

    *done = j->n == 1 && !j->causal && is_packable(j) && j->q.dtype == H3_BF16 &&
            fits_90(b, S, H, Hk, j->q.ne[2]);
    if (!*done) return H3_OK;
    const h3_attn90 a = {.q = j->q.data,
                         .k = j->k.data,
                         .v = j->v.data,
                         .o = j->o.data,
                         .q_s = j->q.st[0],
                         .q_h = j->q.st[1],
                         .k_s = j->k.st[0],
                         .k_h = j->k.st[1],
                         .v_s = j->v.st[0],
                         .v_h = j->v.st[1],
                         .o_s = j->o.st[0],
                         .o_h = j->o.st[1],
                         .S = S,
                         .H = H,
                         .Hk = Hk,
                         .scale = j->scale};
    b->counts[H3_CUDA_N_SDPA90]++;
    H3_LAUNCH(d, h3_k_attention90(b->stream, &a));
    return H3_OK;
}

/* The e4m3 graph over dense q, k, v and o. */
static shape shape_fp8(int64_t S, int64_t H, int64_t Hk, int64_t D)
{
    shape s;

    memset(&s, 0, sizeof s);
    s.batch = 1;
    s.heads = H;
    s.kv_heads = Hk;
    s.rows = S;
    s.dim = D;
    s.q_s = s.o_s = H * D;
    s.k_s = s.v_s = Hk * D;
    s.q_h = s.k_h = s.v_h = s.o_h = D;
    s.dtype = H3_BF16;
    s.is_fp8 = 1;
    return s;
}

/* How e4m3 attention of S rows goes, if it does. */
typedef struct way8 {
    bool is_there, is_own;
    plan *plan; ///< where it is cuDNN's
} way8;

static h3_status find_way8(h3_dev *d, int64_t S, int64_t H, int64_t Hk, int64_t D, way8 *out)
{
    const h3_backend *b = d->backend;
    const shape s = shape_fp8(S, H, Hk, D);

    *out = (way8){0};
    if (b->math != H3_CUDA_FP8 || S < b->fp8_rows) return H3_OK;
    if (fits_90(b, S, H, Hk, D)) {
        out->is_there = out->is_own = true;
        return H3_OK;
    }
    if (!b->cudnn || b->capability < 90 || D % 16 != 0) return H3_OK;
    H3_TRY(plan_for(d, &s, &out->plan));
    out->is_there = out->plan->is_usable;
    return H3_OK;
}

/* q, k and v one after another; v's rows rounded up, as sdpa90.cu wants them. */
static size_t bytes_of_heads8(int64_t S, int64_t H, int64_t Hk, int64_t D)
{
    const int64_t turned = h3_ceil_div(S, H3_ATTN90_TURNED) * H3_ATTN90_TURNED;
    return (size_t)((S * (H + Hk) + turned * Hk) * D);
}

h3_status h3_cuda_offer_heads8(h3_dev *d, h3_head_pair *p)
{
    h3_backend *b = d->backend;
    const int64_t S = p->ne[0], H = p->ne[1], D = p->ne[2];
    way8 way;

    if (d->reader != &h3_reader_attention) return H3_OK;
    H3_TRY(find_way8(d, S, H, H, D, &way));
    if (!way.is_there) return H3_OK;
    H3_TRY(h3_cuda_grow(d, &b->attn8, bytes_of_heads8(S, H, H, D)));
    b->heads8.q = p->q;
    b->heads8.k = p->k;
    b->heads8.op = b->op;
    b->heads8.S = S;
    b->heads8.H = H;
    b->heads8.D = D;
    b->heads8.st_s = p->q_st[0];
    b->heads8.st_h = p->q_st[1];
    p->q8 = b->attn8.p;
    p->k8 = (unsigned char *)b->attn8.p + (size_t)(S * H * D);
    p->q_descale = b->sdpa_cache->scalars + DESCALE_Q;
    p->k_descale = b->sdpa_cache->scalars + DESCALE_K;
    return H3_OK;
}

/* True when the operation before this one left q and k in e4m3 only. */
static bool has_heads8(const h3_backend *b, const job *j)
{
    return b->heads8.op && b->heads8.op + 1 == b->op && b->heads8.q == j->q.data &&
           b->heads8.k == j->k.data;
}

static h3_status clear_maxima(h3_dev *d)
{
    h3_sdpa_cache *c = d->backend->sdpa_cache;

    H3_CUDA_TRY(cudaMemsetAsync(c->scalars + AMAX_Q, 0, 3 * APART * sizeof *c->scalars,
                                d->backend->stream));
    c->is_amax_clear = true;
    return H3_OK;
}

/*
 * q, k, v to e4m3, each with one scale; what undoes v's to rows [n]. The sum of weighted values
 * never exceeds the largest value, so v's scale serves o too.
 *
 * Steps recorded as a graph differed from run to run while the scales were written by the kernel
 * right before cuDNN's, which probably starts before the end of that one is seen everywhere. So
 * scales are written before the values, and what comes last is no kernel but the clearing of the
 * maxima for the next time; since then all runs were equal.
 */
static h3_status quantise_heads(h3_dev *d, const job *j, bool turns_v, unsigned char *out[3],
                                float *rows, int64_t n)
{
    h3_backend *b = d->backend;
    float *sc = b->sdpa_cache->scalars;
    const h3_tensor in[3] = {j->q, j->k, j->v};
    const int64_t S = j->q.ne[0], D = j->q.ne[2];
    h3_heads8 a = {.S = S, .D = D};
    size_t at = 0;
    const int first = has_heads8(b, j) ? 2 : 0;

    /* Never moves what waits there: as large then. */
    H3_TRY(h3_cuda_grow(d, &b->attn8, bytes_of_heads8(S, j->q.ne[1], j->k.ne[1], D)));
    if (!b->sdpa_cache->is_amax_clear) H3_TRY(clear_maxima(d));
    b->sdpa_cache->is_amax_clear = false;
    for (int i = 0; i < 3; i++) {
        out[i] = (unsigned char *)b->attn8.p + at;
        at += (size_t)(S * in[i].ne[1] * D);
        if (i < first) continue;
        a.of[a.n++] = (h3_heads8_one){.x = in[i].data,
                                      .y = out[i],
                                      .amax = (unsigned *)(void *)(sc + AMAX_Q + i * APART),
                                      .descale = sc + DESCALE_Q + i * APART,
                                      .st_s = in[i].st[0],
                                      .st_h = in[i].st[1],
                                      .H = in[i].ne[1]};
    }
    H3_LAUNCH(d, h3_k_amax(b->stream, &a));
    H3_LAUNCH(d, h3_k_descale(b->stream, &a, sc + SCALE_O, rows, n));
    if (turns_v) {
        a.n--; // v is the last
        H3_LAUNCH(d, h3_k_turn_e4m3(b->stream, &a.of[a.n], S));
    }
    H3_LAUNCH(d, h3_k_heads_e4m3(b->stream, &a));
    return clear_maxima(d);
}

static h3_status run_way8(h3_dev *d, const job *j, const way8 *way, unsigned char *const in[3],
                          void *o)
{
    h3_backend *b = d->backend;
    float *sc = b->sdpa_cache->scalars, scale = j->scale;

    if (way->is_own) {
        const int64_t D = H3_ATTN90_HEAD, H = j->q.ne[1], Hk = j->k.ne[1];
        const h3_attn90 a = {.q = in[0],
                             .k = in[1],
                             .v = in[2],
                             .o = o,
                             .q_s = H * D,
                             .q_h = D,
                             .k_s = Hk * D,
                             .k_h = D,
                             .o_s = H * D,
                             .o_h = D,
                             .S = j->q.ne[0],
                             .H = H,
                             .Hk = Hk,
                             .scale = scale,
                             .q_descale = sc + DESCALE_Q,
                             .k_descale = sc + DESCALE_K};
        b->counts[H3_CUDA_N_SDPA90]++;
        b->counts[H3_CUDA_N_SDPA90_FP8]++;
        H3_LAUNCH(d, h3_k_attention90(b->stream, &a));
        return H3_OK;
    }
    void *io[] = {in[0],          in[1],          in[2],          o,        &scale,
                  sc + DESCALE_Q, sc + DESCALE_K, sc + DESCALE_V, sc + ONE, sc + ONE,
                  sc + SCALE_O,   sc + UNUSED_S,  sc + UNUSED_O};
    b->counts[H3_CUDA_N_SDPA]++;
    b->counts[H3_CUDA_N_SDPA_FP8]++;
    return execute(d, way->plan, io);
}

/* Under math fp8, for one long document in bf16. What attention writes in e4m3 stays so for a
 * product that alone reads it; others get o in bf16. */
static h3_status by_e4m3(h3_dev *d, const job *j, bool *done)
{
    h3_backend *b = d->backend;
    const int64_t S = j->q.ne[0], H = j->q.ne[1], Hk = j->k.ne[1], D = j->q.ne[2];
    const h3_tensor rows = h3_is_dense(j->o) ? h3_view_2d(j->o, S, H * D) : j->o;
    unsigned char *in[3], *o = j->o.data;
    h3_rows8 *slot;
    way8 way = {0};

    *done = false;
    H3_TRY(h3_cuda_offer_rows8(d, rows, true, &slot));
    if (!j->causal && j->n == 1 && is_packable(j) && j->q.dtype == H3_BF16 && h3_is_dense(j->o))
        H3_TRY(find_way8(d, S, H, Hk, D, &way));
    if (!way.is_there) {
        if (slot) slot->left = 0;
        if (!has_heads8(b, j)) return H3_OK;
        return h3_fail(H3_E_INTERNAL, "attention of %lld rows: q and k are in e4m3, it is not",
                       (long long)S);
    }
    H3_TRY(quantise_heads(d, j, way.is_own, in, slot ? slot->scales.p : NULL, slot ? S : 0));
    if (!slot) {
        H3_TRY(h3_cuda_grow(d, &b->quant[0], (size_t)(S * H * D)));
        o = b->quant[0].p;
    }
    H3_TRY(run_way8(d, j, &way, in, o));
    if (!slot)
        H3_LAUNCH(d, h3_k_from_e4m3(b->stream, j->o.data, j->o.dtype, o, S, H * D,
                                    b->sdpa_cache->scalars + DESCALE_V));
    *done = true;
    return H3_OK;
}

static h3_status upload_bounds(h3_dev *d, const job *j, const int32_t **out)
{
    h3_sdpa_cache *c = d->backend->sdpa_cache;
    const size_t bytes = (size_t)(j->n + 1) * sizeof *c->cu;

    *out = NULL;
    if (j->is_even) return H3_OK;
    if (j->n + 1 > c->cu_cap) {
        h3_cuda_dealloc(d, c->cu);
        c->cu = NULL;
        c->cu_cap = 0;
        H3_TRY(h3_cuda_alloc(d, (void **)&c->cu, 2 * bytes));
        c->cu_cap = 2 * (j->n + 1);
    }
    *out = c->cu;
    return h3_cuda_upload(d, c->cu, j->cu, bytes);
}

static h3_status by_kernel(h3_dev *d, const job *j)
{
    enum { MOST = 65535 }; // segments a launch
    h3_backend *b = d->backend;
    const int32_t *cu;

    H3_TRY(upload_bounds(d, j, &cu));
    for (int at = 0; at < j->n; at += MOST) {
        const int n = j->n - at < MOST ? j->n - at : MOST;
        const int64_t first = cu ? 0 : (int64_t)at * j->longest;
        const h3_attn a = {.q = row(j->q, first),
                           .k = row(j->k, first),
                           .v = row(j->v, first),
                           .o = row(j->o, first),
                           .q_s = j->q.st[0],
                           .q_h = j->q.st[1],
                           .k_s = j->k.st[0],
                           .k_h = j->k.st[1],
                           .v_s = j->v.st[0],
                           .v_h = j->v.st[1],
                           .o_s = j->o.st[0],
                           .o_h = j->o.st[1],
                           .heads = (int32_t)j->q.ne[1],
                           .kv_heads = (int32_t)j->k.ne[1],
                           .dim = (int32_t)j->q.ne[2],
                           .n_segments = n,
                           .cu = cu ? cu + at : NULL,
                           .longest = j->longest,
                           .scale = j->scale,
                           .causal = j->causal,
                           .dtype = j->q.dtype};
        const bool is_mma = is_packable(j) && b->math != H3_CUDA_F32;
        if (is_mma)
            H3_LAUNCH(d, h3_k_attention_mma(b->stream, &a));
        else
            H3_LAUNCH(d, h3_k_attention_f32(b->stream, &a));
        b->counts[is_mma ? H3_CUDA_N_FLASH : H3_CUDA_N_SIMT]++;
    }
    return H3_OK;
}

static h3_status cuda_attention(h3_dev *d, h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v,
                                float scale, const int32_t *cu, int n_segments, bool causal)
{
    job j = {o, q, k, v, scale, cu, n_segments, causal, true, 0};
    bool done = false;

    d->backend->op++;
    if (n_segments == 0 || q.ne[0] == 0) return H3_OK;
    for (int i = 0; i < n_segments; i++) {
        const int32_t n = cu[i + 1] - cu[i];
        if (n > j.longest) j.longest = n;
        if (n != cu[1]) j.is_even = false;
    }
    if (q.ne[2] > 512)
        return h3_fail(H3_E_UNSUPPORTED, "attention heads of %lld channels; at most 512 are known",
                       (long long)q.ne[2]);
    if (d->backend->math != H3_CUDA_F32) {
        H3_TRY(by_e4m3(d, &j, &done));
        if (!done) H3_TRY(by_own_90(d, &j, &done));
        if (!done) H3_TRY(by_cudnn(d, &j, &done));
    }
    return done ? H3_OK : by_kernel(d, &j);
}

void h3_cuda_fill_attention(h3_ops *op)
{
    op->attention = cuda_attention;
}

/* ---------------------------------------------------------------- opening */

/* Without a usable cuDNN our own kernels serve; h3_dev.detail tells. H3_CUDNN=off leaves it out. */
h3_status h3_sdpa_open(h3_dev *d)
{
    h3_backend *b = d->backend;
    const char *wish = getenv("H3_CUDNN"), *own = getenv("H3_ATTENTION90");
    const float one = 1.0f;
    cudnnHandle_t handle = NULL;

    b->sdpa_cache = calloc(1, sizeof *b->sdpa_cache);
    if (!b->sdpa_cache) return h3_fail(H3_E_NOMEM, "no memory for the CUDA backend");
    H3_TRY(h3_cuda_alloc(d, (void **)&b->sdpa_cache->scalars, N_SCALARS * sizeof(float)));
    H3_TRY(h3_cuda_upload(d, b->sdpa_cache->scalars + ONE, &one, sizeof one));
    b->has_attention90 = !(own && strcmp(own, "off") == 0) && h3_k_has_attention90(b->capability);
    if (wish && strcmp(wish, "off") == 0) return H3_OK;
    if (cudnnGetVersion() / 10000 != CUDNN_MAJOR)
        return h3_fail(H3_E_UNSUPPORTED,
                       "cuDNN %zu.%zu was found, version %d is needed (H3_CUDNN=off does without)",
                       cudnnGetVersion() / 10000, cudnnGetVersion() / 100 % 100, CUDNN_MAJOR);
    const cudnnStatus_t s = cudnnCreate(&handle);
    if (s != CUDNN_STATUS_SUCCESS)
        return h3_fail(H3_E_DEVICE, "cuDNN: %s (H3_CUDNN=off does without)",
                       cudnnGetErrorString(s));
    b->cudnn = handle;
    if (cudnnSetStream(handle, b->stream) != CUDNN_STATUS_SUCCESS)
        return h3_fail(H3_E_DEVICE, "cuDNN: the stream was refused");
    return H3_OK;
}

void h3_sdpa_close(h3_dev *d)
{
    h3_backend *b = d->backend;
    h3_sdpa_cache *c = b->sdpa_cache;

    if (c) {
        while (c->first) {
            plan *next = c->first->next;
            for (int i = 0; i < c->first->n_exec; i++)
                cudnnBackendDestroyDescriptor(c->first->exec[i]);
            free(c->first);
            c->first = next;
        }
        h3_cuda_dealloc(d, c->cu);
        h3_cuda_dealloc(d, c->scalars);
        free(c);
    }
    if (b->cudnn) cudnnDestroy(b->cudnn);
}
