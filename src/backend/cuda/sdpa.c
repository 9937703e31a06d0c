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
 * one after another.
 */
#include <stdlib.h>
#include <string.h>

#include "dnn.h"
#include "size.h"

struct h3_sdpa_cache {
    int32_t *cu; ///< device copy of segment bounds
    int cu_cap;
    float *scalars;     ///< device: scales of e4m3
    bool is_amax_clear; ///< the three maxima there are 0
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

static h3_dnn_shape shape_of(const job *j, int64_t batch, int64_t rows)
{
    h3_dnn_shape s;

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
        const h3_dnn_shape s = shape_of(j, j->is_even ? j->n : 1, n);
        h3_dnn_plan *p;
        if (n == 0) continue;
        H3_TRY(h3_dnn_plan_for(d, &s, &p));
        if (!p && !*done) return H3_OK;
        if (!p)
            return h3_fail(H3_E_UNSUPPORTED, "cuDNN has no attention plan for %lld rows",
                           (long long)n);
        void *io[] = {row(j->q, j->cu[i]), row(j->k, j->cu[i]), row(j->v, j->cu[i]),
                      row(j->o, j->cu[i]), &scale};
        H3_TRY(h3_dnn_run(d, p, io));
        *done = true;
        d->backend->counts[H3_CUDA_N_SDPA]++;
    }
    return H3_OK;
}

/* What e4m3 and our kernels for Hopper take. */
static bool is_one_document(const job *j)
{
    return j->n == 1 && !j->causal && is_packable(j) && j->q.dtype == H3_BF16;
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

    *done = is_one_document(j) && fits_90(b, S, H, Hk, j->q.ne[2]);
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
static h3_dnn_shape shape_fp8(int64_t S, int64_t H, int64_t Hk, int64_t D)
{
    h3_dnn_shape s;

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
    h3_dnn_plan *plan; ///< where it is cuDNN's
} way8;

static h3_status find_way8(h3_dev *d, int64_t S, int64_t H, int64_t Hk, int64_t D, way8 *out)
{
    const h3_backend *b = d->backend;
    const h3_dnn_shape s = shape_fp8(S, H, Hk, D);

    *out = (way8){0};
    if (b->math != H3_CUDA_FP8 || S < b->fp8_rows) return H3_OK;
    if (fits_90(b, S, H, Hk, D)) {
        out->is_there = out->is_own = true;
        return H3_OK;
    }
    if (!b->cudnn || b->capability < 90 || D % 16 != 0) return H3_OK;
    H3_TRY(h3_dnn_plan_for(d, &s, &out->plan));
    out->is_there = out->plan != NULL;
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
    return h3_dnn_run(d, way->plan, io);
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
    if (is_one_document(j) && h3_is_dense(j->o)) H3_TRY(find_way8(d, S, H, Hk, D, &way));
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

h3_status h3_sdpa_open(h3_dev *d)
{
    h3_backend *b = d->backend;
    const char *own = getenv("H3_ATTENTION90");
    const float one = 1.0f;

    b->sdpa_cache = calloc(1, sizeof *b->sdpa_cache);
    if (!b->sdpa_cache) return h3_fail(H3_E_NOMEM, "no memory for the CUDA backend");
    H3_TRY(h3_cuda_alloc(d, (void **)&b->sdpa_cache->scalars, N_SCALARS * sizeof(float)));
    H3_TRY(h3_cuda_upload(d, b->sdpa_cache->scalars + ONE, &one, sizeof one));
    b->has_attention90 = !(own && strcmp(own, "off") == 0) && h3_k_has_attention90(b->capability);
    return h3_dnn_open(d);
}

void h3_sdpa_close(h3_dev *d)
{
    h3_sdpa_cache *c = d->backend->sdpa_cache;

    h3_dnn_close(d);
    if (!c) return;
    h3_cuda_dealloc(d, c->cu);
    h3_cuda_dealloc(d, c->scalars);
    free(c);
}
