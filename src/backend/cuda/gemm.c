/**
 * Products: the entries gemm and embed.
 *
 * The type of the multiplication follows the activations. f32 rows: weights are widened exactly and
 * the product is f32. 16-bit rows: tensor cores of that type, weights rounded to it when they are
 * not of it (f32 math keeps even these exact). The sum is f32 in every case and rounds once; where
 * cuBLASLt's epilogue cannot keep that promise (a bias that 16 bits cannot hold, mixed types), the
 * product goes to f32 first.
 */
#include "cuda.h"
#include "size.h"

/* Decoded weights and f32 products before their epilogue are cut into pieces of this size. */
enum { PIECE = 1 << 30 };

/* Rows of a 2-D tensor must lie evenly: then one stride tells all. */
static h3_status row_stride(h3_tensor t, const char *what, int64_t *out)
{
    const h3_rows v = h3_cuda_view(t);

    *out = v.n ? v.st[0] : v.cols;
    if (v.n > 1)
        return h3_fail(H3_E_INTERNAL, "%s %s: rows of a product must lie evenly", what,
                       h3_tensor_desc(t));
    return H3_OK;
}

/* Rows [at, at + n) of t as a 2-D tensor with the given row stride. */
static h3_tensor rows_of(h3_tensor t, int64_t stride, int64_t at, int64_t n)
{
    const int64_t cols = t.ne[t.rank - 1];
    h3_tensor r =
        h3_tensor_2d((char *)t.data + (size_t)(at * stride) * h3_dtype_bytes((h3_dtype)t.dtype),
                     (h3_dtype)t.dtype, n, cols);

    r.st[0] = stride;
    r.mem = t.mem;
    return r;
}

/* ---------------------------------------------------------------- e4m3 */

bool h3_cuda_takes_e4m3(const h3_dev *d, int64_t S, const h3_weight *w, bool is_tolerant)
{
    if (d->backend->math != H3_CUDA_FP8 || S < d->backend->fp8_rows) return false;
    if (!h3_is_null(w->bias) && !is_tolerant) return false;
    if (w->cols % 16 || w->cols > 16384) return false;
    for (int i = 0; i < w->n_parts; i++)
        if (w->part[i].rows % 16) return false;
    return true;
}

static bool is_fp8(const h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w)
{
    const int64_t S = d->whole_rows ? d->whole_rows : h3_n_rows(x);

    return h3_cuda_takes_e4m3(d, S, w, d->is_tolerant) && x.dtype == H3_BF16 &&
           y.dtype == H3_BF16 && (uintptr_t)x.data % 16 == 0 && (uintptr_t)y.data % 16 == 0;
}

h3_status h3_cuda_offer_rows8(h3_dev *d, h3_tensor y, bool is_dense, h3_rows8 **out)
{
    h3_backend *b = d->backend;
    const h3_weight *w = d->reader;
    const int64_t S = h3_n_rows(y), C = y.ne[y.rank - 1];
    const unsigned char *from = y.data, *to = from + S * C * 2;
    h3_rows8 *free_one = NULL;

    *out = NULL;
    if (y.dtype != H3_BF16) return H3_OK;
    for (int i = 0; i < 3; i++) {
        h3_rows8 *r = &b->rows8[i];
        if (r->left && from < r->data + r->rows * r->cols * 2 && r->data < to) r->left = 0;
        /* Its own one again, else one that was never used, so that each tensor keeps to its slot.
         */
        if (!r->left && (!free_one || r->data == from || (!r->data && free_one->data != from)))
            free_one = r;
    }
    if (!w || w == &h3_reader_attention || w->cols != C || !free_one || S == 0 ||
        !h3_cuda_takes_e4m3(d, d->whole_rows ? d->whole_rows : S, w, d->is_tolerant) ||
        !h3_is_dense(y) || (uintptr_t)y.data % 16)
        return H3_OK;
    H3_TRY(h3_cuda_grow(d, &free_one->scales, (size_t)S * sizeof(float)));
    free_one->data = y.data;
    free_one->rows = free_one->left = S;
    free_one->cols = C;
    free_one->ld = is_dense ? C : 2 * C;
    free_one->reader = w;
    *out = free_one;
    return H3_OK;
}

/* Rows of a product in e4m3. */
typedef struct rows_e4m3 {
    const void *p;
    const float *scales;
    int64_t ld;
} rows_e4m3;

/* True when x waits as e4m3 for this product. */
static bool take_rows8(h3_backend *b, h3_tensor x, const h3_weight *w, rows_e4m3 *out)
{
    const int64_t S = h3_n_rows(x);

    for (int i = 0; i < 3; i++) {
        h3_rows8 *r = &b->rows8[i];
        const int64_t bytes = (unsigned char *)x.data - r->data,
                      at = bytes / (2 * r->cols + !r->cols);
        if (!r->left || r->reader != w || bytes < 0 || at + S > r->rows ||
            at * 2 * r->cols != bytes)
            continue;
        *out = (rows_e4m3){r->data + at * r->ld, (const float *)r->scales.p + at, r->ld};
        r->left = r->left > S ? r->left - S : 0;
        return true;
    }
    return false;
}

/* Rows of x in e4m3: as they were left, or made here. */
static h3_status rows_in_e4m3(h3_dev *d, h3_tensor x, const h3_weight *w, rows_e4m3 *out)
{
    h3_backend *b = d->backend;
    const int64_t S = h3_n_rows(x), K = w->cols;

    if (take_rows8(b, x, w, out)) return H3_OK;
    H3_TRY(h3_cuda_grow(d, &b->quant[0], (size_t)(S * K)));
    H3_TRY(h3_cuda_grow(d, &b->quant[1], (size_t)S * sizeof(float)));
    H3_LAUNCH(d, h3_k_quantise(b->stream, b->quant[0].p, b->quant[1].p, h3_cuda_view(x)));
    *out = (rows_e4m3){b->quant[0].p, b->quant[1].p, K};
    return H3_OK;
}

static h3_status gemm_fp8(h3_dev *d, h3_tensor y, int64_t ldy, h3_tensor x, const h3_weight *w)
{
    const void *bias;
    rows_e4m3 r;
    int64_t col = 0;
    bool is_biased = true; // the library adds the bias; not with every choice of scales

    H3_TRY(rows_in_e4m3(d, x, w, &r));
    H3_TRY(h3_cuda_bias(d, w, H3_BF16, true, &bias));
    for (int i = 0; i < w->n_parts; i++) {
        const void *m;
        const float *scales;
        bool done;
        H3_TRY(h3_cuda_matrix_fp8(d, w, i, &m, &scales));
        h3_mm mm = {.m = h3_n_rows(x),
                    .n = w->part[i].rows,
                    .k = w->cols,
                    .n_whole = w->rows,
                    .x = r.p,
                    .w = m,
                    .y = (char *)y.data + col * 2,
                    .ldx = r.ld,
                    .ldw = w->cols,
                    .ldy = ldy,
                    .tx = H3_F8_E4M3,
                    .tw = H3_F8_E4M3,
                    .ty = y.dtype,
                    .sx = r.scales,
                    .sw = scales,
                    .bias = bias ? (const char *)bias + col * 2 : NULL};
        H3_TRY(h3_cuda_lt(d, &mm, &done));
        if (!done && bias) {
            is_biased = false;
            mm.bias = NULL;
            H3_TRY(h3_cuda_lt(d, &mm, &done));
        }
        if (!done)
            return h3_fail(
                H3_E_UNSUPPORTED,
                "cuda math fp8: cuBLASLt has no e4m3 product [%lld, %lld] x [%lld, %lld]",
                (long long)mm.m, (long long)mm.k, (long long)mm.n, (long long)mm.k);
        col += w->part[i].rows;
    }
    if (!bias || is_biased) return H3_OK;
    H3_LAUNCH(d, h3_k_act(d->backend->stream, h3_cuda_view(y), h3_cuda_view(y), H3_ACT_NONE,
                          w->bias.data, false));
    return H3_OK;
}

/* ---------------------------------------------------------------- products */

/* y = x w^T (+ bias of y's type), type by type, part by part. */
static h3_status multiply(h3_dev *d, h3_tensor y, int64_t ldy, h3_tensor x, int64_t ldx,
                          const h3_weight *w, const void *bias)
{
    const h3_dtype want = (h3_dtype)x.dtype;
    const size_t size = h3_dtype_bytes(want), ysize = h3_dtype_bytes((h3_dtype)y.dtype);
    int64_t col = 0;

    for (int i = 0; i < w->n_parts; i++) {
        const int64_t N = w->part[i].rows, most = PIECE / (int64_t)size / w->cols;
        const int64_t step = h3_cuda_is_plain(w, i, want) || most >= N ? N : most < 64 ? 64 : most;
        for (int64_t r = 0; r < N; r += step, col += step) {
            const int64_t n = N - r < step ? N - r : step;
            const void *m;
            H3_TRY(h3_cuda_matrix(d, w, i, want, r, n, &m));
            const h3_mm mm = {.m = h3_n_rows(x),
                              .n = n,
                              .k = w->cols,
                              .n_whole = w->rows,
                              .x = x.data,
                              .w = m,
                              .y = (char *)y.data + (size_t)col * ysize,
                              .ldx = ldx,
                              .ldw = w->cols,
                              .ldy = ldy,
                              .tx = x.dtype,
                              .tw = (uint8_t)want,
                              .ty = y.dtype,
                              .bias = bias ? (const char *)bias + (size_t)col * ysize : NULL};
            H3_TRY(h3_cuda_mm(d, &mm));
        }
        col = col - (N + step - 1) / step * step + N;
    }
    return H3_OK;
}

/* The same through f32: rows of x widened when they must be, the epilogue as a kernel of its own.
 */
static h3_status multiply_wide(h3_dev *d, h3_tensor y, int64_t ldy, h3_tensor x, int64_t ldx,
                               const h3_weight *w, bool is_exact, h3_act act)
{
    h3_backend *b = d->backend;
    const int64_t S = h3_n_rows(x), K = w->cols, N = w->rows;
    const bool is_wider = is_exact && x.dtype != H3_F32;
    const int64_t each = (N + (is_wider ? K : 0)) * 4, most = PIECE / each;
    const int64_t step = most < 16 ? 16 : most < S ? most : S;
    const bool is_rounded = y.dtype != H3_F32;

    H3_TRY(h3_cuda_grow(d, &b->columns, (size_t)(step * each)));
    for (int64_t s = 0; s < S; s += step) {
        const int64_t n = S - s < step ? S - s : step;
        h3_tensor band = rows_of(x, ldx, s, n), out = rows_of(y, ldy, s, n);
        h3_tensor wide = h3_tensor_2d(b->columns.p, H3_F32, n, N);
        int64_t ld = ldx;
        wide.mem = d->mem;
        if (is_wider) {
            h3_tensor x32 = h3_tensor_2d((float *)b->columns.p + step * N, H3_F32, n, K);
            H3_LAUNCH(d, h3_k_copy(b->stream, h3_cuda_view(x32), h3_cuda_view(band)));
            band = x32;
            ld = K;
        }
        H3_TRY(multiply(d, wide, N, band, ld, w, NULL));
        H3_LAUNCH(d, h3_k_act(b->stream, h3_cuda_view(out), h3_cuda_view(wide), (int)act,
                              h3_is_null(w->bias) ? NULL : w->bias.data, is_rounded));
    }
    return H3_OK;
}

static h3_status cuda_gemm(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w, h3_act act)
{
    h3_backend *b = d->backend;
    int64_t ldx, ldy;
    const void *bias = NULL;

    b->op++;
    if (h3_n_rows(x) == 0 || w->rows == 0) return H3_OK;
    H3_TRY(row_stride(x, "input", &ldx));
    H3_TRY(row_stride(y, "output", &ldy));
    if (is_fp8(d, y, x, w)) {
        H3_TRY(gemm_fp8(d, y, ldy, x, w));
    } else {
        rows_e4m3 r;
        if (take_rows8(b, x, w, &r))
            return h3_fail(H3_E_INTERNAL, "%s: its rows wait in e4m3, but it is not one for them",
                           w->name);
        const bool is_exact = b->math == H3_CUDA_F32;
        const bool is_mixed = x.dtype == H3_F32
                                  ? y.dtype != H3_F32
                                  : is_exact || (y.dtype != H3_F32 && y.dtype != x.dtype);
        /* Where the weights are rounded to 16 bits their bias is too, as in a model loaded in that
         * type; the way through f32 would cost more than the product. */
        bool rounds = false;
        for (int i = 0; i < w->n_parts; i++)
            rounds = rounds || !h3_cuda_is_plain(w, i, (h3_dtype)x.dtype);
        if (!is_mixed) H3_TRY(h3_cuda_bias(d, w, (h3_dtype)y.dtype, rounds, &bias));
        if (is_mixed || (!bias && !h3_is_null(w->bias)))
            return multiply_wide(d, y, ldy, x, ldx, w, is_exact, act);
        H3_TRY(multiply(d, y, ldy, x, ldx, w, bias));
    }
    if (act == H3_ACT_NONE) return H3_OK;
    H3_LAUNCH(d, h3_k_act(b->stream, h3_cuda_view(y), h3_cuda_view(y), (int)act, NULL, false));
    return H3_OK;
}

static h3_status cuda_embed(h3_dev *d, h3_tensor y, const h3_weight *w, h3_tensor ids)
{
    h3_backend *b = d->backend;

    b->op++;
    for (int i = 0; i < w->n_parts; i++) {
        h3_part p;
        H3_TRY(h3_cuda_part(d, w, i, &p));
        H3_LAUNCH(d, h3_k_decode(b->stream, h3_cuda_view(y), &p, 0, ids.data));
    }
    return H3_OK;
}

void h3_cuda_fill_products(h3_ops *op)
{
    op->gemm = cuda_gemm;
    op->embed = cuda_embed;
}
