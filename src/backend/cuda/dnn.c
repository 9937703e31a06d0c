/**
 * Attention by cuDNN: graphs of operations, and the plans that it makes of them for one shape.
 * Plans are kept; building one takes from milliseconds to a second. Which of those that it offers
 * is the quickest is measured where it pays.
 */
#include "dnn.h"

#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t descriptor;
typedef h3_dnn_shape shape;
typedef h3_dnn_plan plan;

enum { MAX_DESCRIPTORS = 96, N_IO = 16, CHOICES = 4 };
/* Products of q and k worth timing the choices for: some tens of microseconds. */
static const double worth_timing = 1e9;

struct h3_dnn_plan {
    plan *next;
    shape at;
    descriptor exec[CHOICES]; ///< what cuDNN offers; the first one once they were timed
    int64_t work[CHOICES];
    int n_exec;
    int n_io; ///< tensors with memory, by unique id 1 .. n_io
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
}

/* One that cannot be built is remembered as such. */
h3_status h3_dnn_plan_for(h3_dev *d, const shape *s, plan **out)
{
    h3_backend *b = d->backend;
    graph *g;
    plan *p;

    for (p = b->dnn_plans; p; p = p->next)
        if (memcmp(&p->at, s, sizeof *s) == 0) {
            *out = p->n_exec > 0 ? p : NULL;
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
    p->next = b->dnn_plans;
    b->dnn_plans = p;
    g->next_id = ID_BUILT;
    if (s->is_fp8)
        e4m3_graph(g, s);
    else
        unified(g, s);
    p->n_io = s->is_fp8 ? ID_AMAX_O : ID_SCALE;
    build(b, g, p);
    drop(g);
    free(g);
    *out = p->n_exec > 0 ? p : NULL;
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

h3_status h3_dnn_run(h3_dev *d, plan *p, void *const *io)
{
    const shape *s = &p->at;

    if (p->n_exec > 1 &&
        (double)(s->batch * s->heads * s->dim) * (double)s->rows * (double)s->rows > worth_timing)
        H3_TRY(choose(d, p, io));
    return run_choice(d, p, 0, io);
}

/* Without a usable cuDNN our own kernels serve; h3_dev.detail tells. H3_CUDNN=off leaves it out. */
h3_status h3_dnn_open(h3_dev *d)
{
    h3_backend *b = d->backend;
    const char *wish = getenv("H3_CUDNN");
    cudnnHandle_t handle = NULL;

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

void h3_dnn_close(h3_dev *d)
{
    h3_backend *b = d->backend;

    while (b->dnn_plans) {
        plan *next = b->dnn_plans->next;
        for (int i = 0; i < b->dnn_plans->n_exec; i++)
            cudnnBackendDestroyDescriptor(b->dnn_plans->exec[i]);
        free(b->dnn_plans);
        b->dnn_plans = next;
    }
    if (b->cudnn) cudnnDestroy(b->cudnn);
    b->cudnn = NULL;
}
