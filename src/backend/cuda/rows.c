/** Row-wise entries: tensors turned into what the kernels of rows.cu, norms.cu, heads.cu and
 * conv.cu take. */
#include <string.h>

#include "cuda.h"

#define VIEW(t) h3_cuda_view(t)

static const float *floats(h3_tensor t)
{
    return h3_is_null(t) ? NULL : t.data;
}

static h3_status begin(h3_dev *d)
{
    d->backend->op++;
    return H3_OK;
}

static h3_status cuda_rms_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                               bool round_first)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_rms_norm(d->backend->stream, VIEW(y), VIEW(x), floats(g), eps, round_first));
    return H3_OK;
}

static h3_status cuda_layer_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                                 float eps)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_layer_norm(d->backend->stream, VIEW(y), VIEW(x), floats(g), floats(b), eps));
    return H3_OK;
}

static h3_mod mod_of(h3_tensor mod, h3_tensor row, int i_shift, int i_scale)
{
    return (h3_mod){.p = mod.data,
                    .row = row.data,
                    .st_r = mod.st[0],
                    .shift = i_shift * mod.st[1],
                    .scale = i_scale * mod.st[1],
                    .dtype = mod.dtype};
}

/* Where y goes in e4m3 instead, when the kernel and the reader of y are for it. */
static h3_status offer(h3_dev *d, h3_tensor y, bool fits, h3_rows8 *out)
{
    h3_rows8 *slot;

    *out = (h3_rows8){.data = NULL};
    H3_TRY(h3_cuda_offer_rows8(d, y, false, &slot));
    if (slot && fits) *out = *slot;
    if (slot && !fits) slot->left = 0;
    return H3_OK;
}

static h3_status cuda_rms_norm_mod(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                                   h3_tensor mod, int i_shift, int i_scale, h3_tensor row)
{
    const h3_mod m = mod_of(mod, row, i_shift, i_scale);
    h3_rows8 r;

    H3_TRY(begin(d));
    H3_TRY(offer(d, y, h3_k_norm_fits_e4m3(VIEW(y), VIEW(x), (h3_rows){.p = NULL}, floats(g), m, m),
                 &r));
    H3_LAUNCH(d, h3_k_rms_norm_mod(d->backend->stream, VIEW(y), VIEW(x), floats(g), eps, m, r.data,
                                   r.scales.p, r.ld));
    return H3_OK;
}

static h3_status cuda_gate_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor mod,
                                    int i_gate, h3_tensor g, float eps, h3_tensor next, int i_shift,
                                    int i_scale, h3_tensor row)
{
    const h3_mod gate = mod_of(mod, row, i_gate, i_gate), m = mod_of(next, row, i_shift, i_scale);
    h3_rows8 r;

    H3_TRY(begin(d));
    H3_TRY(offer(d, y, h3_k_norm_fits_e4m3(VIEW(y), VIEW(x), VIEW(h), floats(g), gate, m), &r));
    H3_LAUNCH(d, h3_k_gate_add_norm(d->backend->stream, VIEW(y), VIEW(x), VIEW(h), gate, floats(g),
                                    eps, m, r.data, r.scales.p, r.ld));
    return H3_OK;
}

static void channel_strides(int64_t st[3], h3_tensor t)
{
    memcpy(st, t.st, 3 * sizeof *st);
}

static h3_status cuda_group_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                                 int groups, float eps, bool silu)
{
    int64_t ys[3], xs[3];

    H3_TRY(begin(d));
    channel_strides(ys, y);
    channel_strides(xs, x);
    H3_LAUNCH(d, h3_k_group_norm(d->backend->stream, y.data, ys, x.data, xs, x.ne, floats(g),
                                 floats(b), groups, eps, silu));
    return H3_OK;
}

/* Rows of a rotation table. */
static h3_rows table_of(h3_tensor t)
{
    h3_rows v = {.p = t.data, .dtype = t.dtype};

    if (h3_is_null(t)) return v;
    v.cols = t.ne[t.rank - 1];
    v.st[0] = t.st[0];
    return v;
}

static h3_status cuda_head_norm_rope(h3_dev *d, h3_tensor x, h3_tensor g, float eps,
                                     bool round_first, h3_tensor cos, h3_tensor sin)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_head_norm_rope(d->backend->stream, x.data, x.dtype, x.ne, x.st, floats(g),
                                     eps, round_first, table_of(cos), table_of(sin)));
    return H3_OK;
}

static h3_status cuda_qk_norm_rope(h3_dev *d, h3_tensor q, h3_tensor k, h3_tensor gq, h3_tensor gk,
                                   float eps, bool round_first, h3_tensor cos, h3_tensor sin)
{
    h3_head_pair p = {.q = q.data,
                      .k = k.data,
                      .ne = {q.ne[0], q.ne[1], q.ne[2]},
                      .q_st = {q.st[0], q.st[1]},
                      .k_st = {k.st[0], k.st[1]},
                      .gq = floats(gq),
                      .gk = floats(gk),
                      .eps = eps,
                      .dtype = q.dtype,
                      .round_first = round_first,
                      .is_even = q.ne[1] == k.ne[1] && q.dtype == k.dtype,
                      .cos = table_of(cos),
                      .sin = table_of(sin)};

    if (!h3_k_fits_pair(&p)) {
        H3_TRY(cuda_head_norm_rope(d, q, gq, eps, round_first, cos, sin));
        return cuda_head_norm_rope(d, k, gk, eps, round_first, cos, sin);
    }
    H3_TRY(begin(d));
    if (eps > 0) H3_TRY(h3_cuda_offer_heads8(d, &p));
    H3_LAUNCH(d, h3_k_head_pair(d->backend->stream, &p));
    return H3_OK;
}

static h3_status cuda_gate_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor mod, int i_gate,
                               h3_tensor row)
{
    H3_TRY(begin(d));
    H3_LAUNCH(
        d, h3_k_gate_add(d->backend->stream, VIEW(x), VIEW(h), mod_of(mod, row, i_gate, i_gate)));
    return H3_OK;
}

static h3_status cuda_scale_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor g)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_scale_add(d->backend->stream, VIEW(x), VIEW(h), floats(g)));
    return H3_OK;
}

static h3_status cuda_scale_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor s,
                                     h3_tensor g, float eps)
{
    cudaStream_t stream = d->backend->stream;
    const h3_rows vy = VIEW(y), vx = VIEW(x), vh = VIEW(h);
    const bool fits = h3_k_scale_add_norm_fits(vy, vx, vh, floats(s), floats(g));
    h3_rows8 r;

    H3_TRY(begin(d));
    H3_TRY(offer(d, y, fits, &r));
    if (fits) {
        H3_LAUNCH(d, h3_k_scale_add_norm(stream, vy, vx, vh, floats(s), floats(g), eps, r.data,
                                         r.scales.p, r.ld));
        return H3_OK;
    }
    H3_LAUNCH(d, h3_k_scale_add(stream, vx, vh, floats(s)));
    H3_LAUNCH(d, h3_k_rms_norm(stream, vy, vx, floats(g), eps, false));
    return H3_OK;
}

static h3_status cuda_add(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_add(d->backend->stream, VIEW(y), VIEW(a), VIEW(b)));
    return H3_OK;
}

static h3_status cuda_silu_mul(h3_dev *d, h3_tensor y, h3_tensor gate, h3_tensor up)
{
    h3_rows8 r;

    H3_TRY(begin(d));
    H3_TRY(offer(d, y, h3_k_silu_fits_e4m3(VIEW(gate), VIEW(up)), &r));
    if (r.data)
        H3_LAUNCH(
            d, h3_k_silu_e4m3(d->backend->stream, VIEW(gate), VIEW(up), r.data, r.scales.p, r.ld));
    else
        H3_LAUNCH(d, h3_k_silu_mul(d->backend->stream, VIEW(y), VIEW(gate), VIEW(up)));
    return H3_OK;
}

static h3_status cuda_act(h3_dev *d, h3_tensor y, h3_tensor x, h3_act act)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_act(d->backend->stream, VIEW(y), VIEW(x), (int)act, NULL, false));
    return H3_OK;
}

static h3_status cuda_copy(h3_dev *d, h3_tensor y, h3_tensor x)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_copy(d->backend->stream, VIEW(y), VIEW(x)));
    return H3_OK;
}

static h3_status cuda_gather_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_gather(d->backend->stream, VIEW(y), VIEW(x), idx.data));
    return H3_OK;
}

static h3_status cuda_scatter_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_scatter(d->backend->stream, VIEW(y), VIEW(x), idx.data, false));
    return H3_OK;
}

static h3_status cuda_scatter_add_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_scatter(d->backend->stream, VIEW(y), VIEW(x), idx.data, true));
    return H3_OK;
}

static h3_status cuda_axpby(h3_dev *d, h3_tensor y, float a, h3_tensor x, float b)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_axpby(d->backend->stream, VIEW(y), a, VIEW(x), b));
    return H3_OK;
}

static h3_status cuda_affine_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b)
{
    const int64_t per = y.rank > 1 && y.ne[0] ? h3_n_rows(y) / y.ne[0] : 0;

    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_affine(d->backend->stream, VIEW(y), VIEW(x), a.data, b.data, per));
    return H3_OK;
}

static h3_status cuda_clamp(h3_dev *d, h3_tensor y, h3_tensor x, float lo, float hi)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_clamp(d->backend->stream, VIEW(y), VIEW(x), lo, hi));
    return H3_OK;
}

static h3_status cuda_snake(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_snake(d->backend->stream, VIEW(y), VIEW(x), a.data, b.data));
    return H3_OK;
}

static h3_status cuda_snake_aa(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b,
                               h3_tensor up, h3_tensor down)
{
    H3_TRY(begin(d));
    H3_LAUNCH(
        d, h3_k_snake_aa(d->backend->stream, VIEW(y), VIEW(x), a.data, b.data, up.data, down.data));
    return H3_OK;
}

/* A 2-D tensor whose row axis is kept even when it has one row. */
static h3_rows matrix_view(h3_tensor t)
{
    h3_rows v = h3_cuda_view(t);

    v.n = 1;
    v.ne[0] = t.ne[0];
    v.st[0] = t.st[0];
    return v;
}

static h3_status cuda_transpose(h3_dev *d, h3_tensor y, h3_tensor x)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_transpose(d->backend->stream, matrix_view(y), matrix_view(x)));
    return H3_OK;
}

static h3_status cuda_mean_groups(h3_dev *d, h3_tensor y, h3_tensor x)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d,
              h3_k_mean_groups(d->backend->stream, y.data, y.st[0], x.data, x.ne, x.st, y.ne[1]));
    return H3_OK;
}

static h3_status cuda_unpatchify(h3_dev *d, h3_tensor y, h3_tensor x, int64_t t, int64_t h,
                                 int64_t w, int pt, int p)
{
    int64_t ys[3];

    H3_TRY(begin(d));
    channel_strides(ys, y);
    H3_LAUNCH(d, h3_k_unpatchify(d->backend->stream, y.data, ys, VIEW(x), t, h, w, pt, p));
    return H3_OK;
}

static h3_status cuda_fade(h3_dev *d, h3_tensor y, h3_tensor a, int axis, int64_t n)
{
    int64_t ys[3], as[3];

    H3_TRY(begin(d));
    channel_strides(ys, y);
    channel_strides(as, a);
    H3_LAUNCH(d, h3_k_fade(d->backend->stream, y.data, ys, a.data, as, y.ne, axis, n));
    return H3_OK;
}

static h3_status cuda_to_u8(h3_dev *d, h3_tensor y, h3_tensor x, const float *mean,
                            const float *std)
{
    int64_t ys[3], xs[3];

    H3_TRY(begin(d));
    channel_strides(ys, y);
    channel_strides(xs, x);
    H3_LAUNCH(d, h3_k_to_u8(d->backend->stream, y.data, ys, x.data, xs, x.ne + 1, mean, std));
    return H3_OK;
}

static h3_status cuda_flow_step(h3_dev *d, h3_tensor x, h3_tensor v, float sigma, float ratio)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_flow_step(d->backend->stream, VIEW(x), VIEW(v), sigma, ratio));
    return H3_OK;
}

/* Pinned memory the kernel writes to itself. Otherwise this waits: `bad` may be gone when the
 * device is synchronised next. Once a step this costs a few microseconds. */
static h3_status cuda_check_finite(h3_dev *d, h3_tensor x, int *bad)
{
    h3_backend *b = d->backend;
    struct cudaPointerAttributes at;

    H3_TRY(begin(d));
    if (cudaPointerGetAttributes(&at, bad) == cudaSuccess && at.type == cudaMemoryTypeHost) {
        H3_LAUNCH(d, h3_k_finite(b->stream, VIEW(x), at.devicePointer));
        return H3_OK;
    }
    (void)cudaGetLastError();
    *b->flag = 0;
    H3_LAUNCH(d, h3_k_finite(b->stream, VIEW(x), b->flag));
    H3_TRY(h3_cuda_wait(d));
    if (*(volatile int *)b->flag) *bad = 1;
    return H3_OK;
}

void h3_cuda_fill_rows(h3_ops *op)
{
    op->rms_norm = cuda_rms_norm;
    op->layer_norm = cuda_layer_norm;
    op->rms_norm_mod = cuda_rms_norm_mod;
    op->group_norm = cuda_group_norm;
    op->head_norm_rope = cuda_head_norm_rope;
    op->qk_norm_rope = cuda_qk_norm_rope;
    op->qk_norm_rope = cuda_qk_norm_rope;
    op->gate_add = cuda_gate_add;
    op->gate_add_norm = cuda_gate_add_norm;
    op->scale_add = cuda_scale_add;
    op->scale_add_norm = cuda_scale_add_norm;
    op->add = cuda_add;
    op->silu_mul = cuda_silu_mul;
    op->act = cuda_act;
    op->copy = cuda_copy;
    op->gather_rows = cuda_gather_rows;
    op->scatter_rows = cuda_scatter_rows;
    op->scatter_add_rows = cuda_scatter_add_rows;
    op->axpby = cuda_axpby;
    op->affine_rows = cuda_affine_rows;
    op->clamp = cuda_clamp;
    op->snake = cuda_snake;
    op->snake_aa = cuda_snake_aa;
    op->transpose = cuda_transpose;
    op->mean_groups = cuda_mean_groups;
    op->unpatchify = cuda_unpatchify;
    op->fade = cuda_fade;
    op->to_u8 = cuda_to_u8;
    op->flow_step = cuda_flow_step;
    op->check_finite = cuda_check_finite;
}
