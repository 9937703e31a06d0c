/**
 * Convolutions as matrix products: y [Co, P] = w [Co, Ci taps] cols [Ci taps, P], the input
 * unfolded in pieces of output positions; bias and addend follow in one pass. A convolution of one
 * tap and stride 1 needs no unfolding: there cols is x itself.
 *
 * Everything is f32 (TF32 under math tf32), as ops.h asks. An unfolded piece is written and read
 * once, which costs less than a tenth of the product it feeds at the released sizes.
 */
#include "cuda.h"
#include "size.h"

enum { COLUMNS = 512 << 20 }; // bytes of one unfolded piece

/* True when t [C, T, H, W] has its positions one after another. */
static bool is_line(h3_tensor t)
{
    int64_t step = t.ne[3];

    for (int a = 2; a > 0; a--) {
        if (t.ne[a] != 1 && t.st[a] != step) return false;
        step *= t.ne[a];
    }
    return true;
}

static bool is_pointwise(const h3_conv *c)
{
    for (int a = 0; a < 3; a++)
        if (c->kernel[a] != 1 || c->stride[a] != 1 || c->pad_lo[a] || c->pad_hi[a]) return false;
    return true;
}

static h3_unfold unfold_of(h3_tensor y, h3_tensor x, const h3_conv *c)
{
    h3_unfold u = {.x = x.data};

    for (int a = 0; a < 3; a++) {
        u.x_st[a] = x.st[a];
        u.x_ne[a] = x.ne[a + 1];
        u.y_ne[a] = y.ne[a + 1];
        u.kernel[a] = c->kernel[a];
        u.stride[a] = c->stride[a];
        u.dilation[a] = c->dilation[a];
        u.pad[a] = c->pad_lo[a];
        u.mode[a] = c->pad_mode[a];
    }
    return u;
}

/* Terms of a picture's convolution that are summed in one go: a single running sum of all of them
 * loses half a digit that the encoder's posterior needs. Eight pieces, of 64 to 1024 terms. */
static int64_t depth_of(int64_t K)
{
    const int64_t part = (K / 8 + 3) / 4 * 4;
    return part < 64 ? 64 : part > 1024 ? 1024 : part;
}

/* y must be a line. */
static h3_status conv_line(h3_dev *d, h3_tensor y, h3_tensor x, const void *w, int64_t K,
                           const h3_conv *c)
{
    h3_backend *b = d->backend;
    const int64_t P = y.ne[1] * y.ne[2] * y.ne[3], Ci = x.ne[0];
    const bool is_direct = is_pointwise(c) && is_line(x);
    const h3_unfold u = unfold_of(y, x, c);
    const int64_t depth = y.ne[1] * y.ne[2] > 1 ? depth_of(K) : K;
    int64_t most = COLUMNS / 4 / K / 128 * 128;

    if (is_direct || most > P) most = P;
    if (most < 128) most = 128;
    if (!is_direct)
        H3_TRY(h3_cuda_grow(d, &b->columns, (size_t)(K * (most < P ? most : P)) * sizeof(float)));
    for (int64_t p = 0; p < P; p += most) {
        const int64_t n = P - p < most ? P - p : most;
        if (!is_direct) H3_LAUNCH(d, h3_k_unfold(b->stream, b->columns.p, &u, Ci, p, n));
        for (int64_t k = 0; k < K; k += depth) {
            const float *cols = is_direct ? x.data : b->columns.p;
            const int64_t ld = is_direct ? x.st[0] : n;
            const h3_mm mm = {.m = y.ne[0],
                              .n = n,
                              .k = K - k < depth ? K - k : depth,
                              .x = (const float *)w + k,
                              .w = cols + k * ld + (is_direct ? p : 0),
                              .y = (float *)y.data + p,
                              .ldx = K,
                              .ldw = ld,
                              .ldy = y.st[0],
                              .tx = H3_F32,
                              .tw = H3_F32,
                              .ty = H3_F32,
                              .w_is_t = true,
                              .adds = k > 0};
            H3_TRY(h3_cuda_mm(d, &mm));
        }
    }
    return H3_OK;
}

/* The same in f64, bias included, where the GPU is as quick in it: one rounding in all, so that the
 * encoder's posterior keeps what the float16 step after it needs. */
static h3_status conv_line_f64(h3_dev *d, h3_tensor y, h3_tensor x, const float *w, int64_t K,
                               const h3_conv *c, const float *bias)
{
    h3_backend *b = d->backend;
    const int64_t P = y.ne[1] * y.ne[2] * y.ne[3], Ci = x.ne[0], Co = y.ne[0];
    const h3_unfold u = unfold_of(y, x, c);
    int64_t most = COLUMNS / 8 / (K > Co ? K : Co) / 128 * 128;

    if (most > P) most = P;
    if (most < 128) most = 128;
    H3_TRY(h3_cuda_grow(d, &b->columns, (size_t)(K * most) * sizeof(double)));
    H3_TRY(h3_cuda_grow(d, &b->wide, (size_t)(Co * (K + most)) * sizeof(double)));
    double *weights = b->wide.p, *out = weights + Co * K;
    H3_LAUNCH(d, h3_k_widen(b->stream, weights, w, Co * K));
    for (int64_t p = 0; p < P; p += most) {
        const int64_t n = P - p < most ? P - p : most;
        const h3_mm mm = {.m = Co,
                          .n = n,
                          .k = K,
                          .x = weights,
                          .w = b->columns.p,
                          .y = out,
                          .ldx = K,
                          .ldw = n,
                          .ldy = n,
                          .tx = H3_F64,
                          .tw = H3_F64,
                          .ty = H3_F64,
                          .w_is_t = true};
        bool done;
        H3_LAUNCH(d, h3_k_unfold_f64(b->stream, b->columns.p, &u, Ci, p, n));
        H3_TRY(h3_cuda_lt(d, &mm, &done));
        if (!done)
            return h3_fail(H3_E_UNSUPPORTED,
                           "cuBLASLt has no f64 product [%lld, %lld] x [%lld, %lld]", (long long)Co,
                           (long long)K, (long long)K, (long long)n);
        H3_LAUNCH(d, h3_k_narrow(b->stream, (float *)y.data + p, y.st[0], out, bias, Co, n));
    }
    return H3_OK;
}

static h3_status move_out(h3_dev *d, h3_tensor y, h3_tensor line)
{
    H3_LAUNCH(d, h3_k_copy(d->backend->stream, h3_cuda_view(y), h3_cuda_view(line)));
    return H3_OK;
}

/* Stride 1 and zeros around a line, long enough for a tile: the tensor core kernel. */
static bool is_for_line_kernel(const h3_dev *d, h3_tensor y, h3_tensor x, const h3_conv *c)
{
    return d->backend->math != H3_CUDA_F32 && is_line(x) && is_line(y) && y.ne[1] * y.ne[2] == 1 &&
           x.ne[1] * x.ne[2] == 1 && c->kernel[0] * c->kernel[1] == 1 && c->stride[2] == 1 &&
           c->pad_mode[2] == H3_PAD_ZERO && y.ne[3] >= 64 &&
           h3_k_line_fits(y.ne[0], x.ne[0], c->kernel[2], c->dilation[2], y.ne[3]);
}

static h3_status conv_by_line_kernel(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                                     const h3_conv *c, h3_tensor add)
{
    h3_backend *b = d->backend;
    h3_line a = {.x = x.data,
                 .add = h3_is_null(add) ? NULL : add.data,
                 .y = y.data,
                 .bias = h3_is_null(w->bias) ? NULL : w->bias.data,
                 .x_st = x.st[0],
                 .y_st = y.st[0],
                 .add_st = h3_is_null(add) ? 0 : add.st[0],
                 .n = x.ne[3],
                 .n_out = y.ne[3],
                 .co = (int32_t)y.ne[0],
                 .ci = (int32_t)x.ne[0],
                 .taps = c->kernel[2],
                 .dilation = c->dilation[2],
                 .pad = c->pad_lo[2],
                 .splits =
                     h3_k_line_splits(y.ne[0], x.ne[0], y.ne[3], b->prop.multiProcessorCount)};

    if (a.splits > 1) {
        H3_TRY(
            h3_cuda_grow(d, &b->columns, (size_t)(a.splits * y.ne[0] * y.ne[3]) * sizeof(float)));
        a.part = b->columns.p;
    }
    H3_TRY(h3_cuda_line_weight(d, w, x.ne[0], c->kernel[2], &a.w, &a.scale));
    H3_LAUNCH(d, h3_k_line(b->stream, &a));
    b->counts[H3_CUDA_N_LINE]++;
    return H3_OK;
}

static h3_status cuda_conv(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                           const h3_conv *c, h3_tensor add)
{
    h3_backend *b = d->backend;
    h3_tensor line = y;
    const void *m;
    void *temporary = NULL;
    h3_status st;

    b->op++;
    if (h3_numel(y) == 0) return H3_OK;
    if (is_for_line_kernel(d, y, x, c)) return conv_by_line_kernel(d, y, x, w, c, add);
    H3_TRY(h3_cuda_whole(d, w, H3_F32, &m));
    if (!is_line(y)) { // a product writes whole lines only
        H3_TRY(h3_cuda_alloc(d, &temporary, (size_t)h3_numel(y) * sizeof(float)));
        line = h3_host_tensor(temporary, H3_F32, 4, y.ne);
        line.mem = d->mem;
    }
    const float *bias = h3_is_null(w->bias) ? NULL : w->bias.data;
    if (b->has_f64 && y.ne[1] * y.ne[2] > 1) {
        st = conv_line_f64(d, line, x, m, w->cols, c, bias);
        bias = NULL;
    } else {
        st = conv_line(d, line, x, m, w->cols, c);
    }
    if (st == H3_OK && temporary) st = move_out(d, y, line);
    h3_cuda_dealloc(d, temporary);
    H3_TRY(st);
    if (!bias && h3_is_null(add)) return H3_OK;
    H3_LAUNCH(d, h3_k_conv_finish(b->stream, h3_cuda_view(y), h3_cuda_view(add), bias,
                                  y.ne[1] * y.ne[2]));
    return H3_OK;
}

/* cols [Co k, N] = w^T x, then every output sample gathers the k / stride products that reach it.
 */
static h3_status cuda_conv_transpose1d(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                                       int kernel, int stride, int pad)
{
    h3_backend *b = d->backend;
    const int64_t N = x.ne[1], K = w->cols;
    const void *m;

    b->op++;
    if (h3_numel(y) == 0) return H3_OK;
    H3_TRY(h3_cuda_whole(d, w, H3_F32, &m));
    H3_TRY(h3_cuda_grow(d, &b->columns, (size_t)(K * N) * sizeof(float)));
    const h3_mm mm = {.m = K,
                      .n = N,
                      .k = w->rows,
                      .x = m,
                      .w = x.data,
                      .y = b->columns.p,
                      .ldx = K,
                      .ldw = x.st[0],
                      .ldy = N,
                      .tx = H3_F32,
                      .tw = H3_F32,
                      .ty = H3_F32,
                      .x_is_t = true,
                      .w_is_t = true};
    H3_TRY(h3_cuda_mm(d, &mm));
    H3_LAUNCH(d, h3_k_fold1d(b->stream, h3_cuda_view(y), b->columns.p, N,
                             h3_is_null(w->bias) ? NULL : w->bias.data, kernel, stride, pad));
    return H3_OK;
}

void h3_cuda_fill_convolutions(h3_ops *op)
{
    op->conv = cuda_conv;
    op->conv_transpose1d = cuda_conv_transpose1d;
}
