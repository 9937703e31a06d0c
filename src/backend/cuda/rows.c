/** Row-wise entries: tensors turned into what the kernels of rows.cu and conv.cu take. */
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

/* Under math fp8 the rows that a large product reads next are quantised where they are made. */
static h3_status offer_fp8(h3_dev *d, h3_tensor y, void **q, float **qs)
{
    h3_backend *b = d->backend;
    const int64_t S = h3_n_rows(y), C = y.ne[y.rank - 1];
    const int64_t whole = d->whole_rows ? d->whole_rows : S;

    *q = NULL;
    *qs = NULL;
    if (b->math != H3_CUDA_FP8 || y.dtype != H3_BF16 || whole < 1536 || C % 16 || S == 0)
        return H3_OK;
    H3_TRY(h3_cuda_grow(d, &b->quant[0], (size_t)(S * C)));
    H3_TRY(h3_cuda_grow(d, &b->quant[1], (size_t)S * sizeof(float)));
    *q = b->quant[0].p;
    *qs = b->quant[1].p;
    return H3_OK;
}

static void note_fp8(h3_dev *d, h3_tensor y, const void *q)
{
    h3_backend *b = d->backend;

    if (!q) return;
    b->quantised.data = y.data;
    b->quantised.op = b->op;
    b->quantised.rows = h3_n_rows(y);
    b->quantised.cols = y.ne[y.rank - 1];
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

static h3_status cuda_rms_norm_mod(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                                   h3_tensor mod, int i_shift, int i_scale, h3_tensor row)
{
    void *q;
    float *qs;

    H3_TRY(begin(d));
    H3_TRY(offer_fp8(d, y, &q, &qs));
    if (y.ne[y.rank - 1] > 8192) q = NULL; // longer rows are not held in registers
    H3_LAUNCH(d, h3_k_rms_norm_mod(d->backend->stream, VIEW(y), VIEW(x), floats(g), eps,
                                   mod_of(mod, row, i_shift, i_scale), q, qs));
    note_fp8(d, y, q);
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

static h3_status cuda_head_norm_rope(h3_dev *d, h3_tensor x, h3_tensor g, float eps,
                                     bool round_first, h3_tensor cos, h3_tensor sin)
{
    const int64_t R = h3_is_null(cos) ? 0 : cos.ne[cos.rank - 1];
    h3_rows c = {.cols = R, .p = cos.data, .dtype = cos.dtype};
    h3_rows s = {.cols = R, .p = sin.data, .dtype = sin.dtype};

    H3_TRY(begin(d));
    if (R) {
        c.st[0] = cos.st[0];
        s.st[0] = sin.st[0];
    }
    void *q8 = NULL;
    float *descale = NULL;
    if (d->backend->math == H3_CUDA_FP8 &&
        h3_k_head_fits_e4m3(x.data, x.dtype, x.ne, x.st, floats(g), eps, c, s))
        H3_TRY(h3_cuda_offer_heads8(d, x, &q8, &descale));
    H3_LAUNCH(d, h3_k_head_norm_rope(d->backend->stream, x.data, x.dtype, x.ne, x.st, floats(g),
                                     eps, round_first, c, s, q8, descale));
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

static h3_status cuda_add(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b)
{
    H3_TRY(begin(d));
    H3_LAUNCH(d, h3_k_add(d->backend->stream, VIEW(y), VIEW(a), VIEW(b)));
    return H3_OK;
}

static h3_status cuda_silu_mul(h3_dev *d, h3_tensor y, h3_tensor gate, h3_tensor up)
{
    void *q;
    float *qs;

    H3_TRY(begin(d));
    H3_TRY(offer_fp8(d, y, &q, &qs));
    if (gate.dtype != H3_BF16 || y.ne[y.rank - 1] > 16384) q = NULL;
    H3_LAUNCH(d, h3_k_silu_mul(d->backend->stream, VIEW(y), VIEW(gate), VIEW(up), q, qs));
    note_fp8(d, y, q);
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

/* Waits: `bad` may be gone when the device is synchronised next. Once a step or tile this costs a
 * few microseconds. */
static h3_status cuda_check_finite(h3_dev *d, h3_tensor x, int *bad)
{
    h3_backend *b = d->backend;

    H3_TRY(begin(d));
    *b->flag = 0;
    H3_LAUNCH(d, h3_k_finite(b->stream, VIEW(x), b->flag));
    H3_CUDA_TRY(cudaStreamSynchronize(b->stream));
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
    op->gate_add = cuda_gate_add;
    op->scale_add = cuda_scale_add;
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
