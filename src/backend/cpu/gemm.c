/**
 * gemm and embed. Three ways:
 *   - a few rows of x (modulation, time embeddings): each weight row is read once, straight from
 * its file, against all rows of x in cache: bound by memory, nothing is packed;
 *   - otherwise the tiled product of product.c, with x transposed into panels once and weights
 * widened tile by tile;
 *   - the same with bf16 or int8 tiles, where low.c may.
 */
#include <assert.h>
#include <omp.h>
#include <stdlib.h>

#include "decode.h"
#include "gemm.h"
#include "size.h"

static void fill(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                 void *rows)
{
    const h3_gemm *g = ctx;
    ISA(h3_cpu_fill_weight)(g->w, n0, n, k0, kc, dst, rows);
}

static void ahead(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    ISA(h3_cpu_call_weight)(((const h3_gemm *)ctx)->w, n0, n, k0, kc);
}

/* Lines of y come while tiles work: a store of 32 rows writes to as many pages. */
static void results(const void *ctx, int64_t n0, int64_t n, int64_t m0, int64_t m)
{
    const h3_tensor y = ((const h3_gemm *)ctx)->y;
    const size_t bytes = (size_t)n * h3_dtype_bytes((h3_dtype)y.dtype);

    for (int64_t j = m0; j < m0 + m; j++) {
        const char *row = h3_num_at(y, h3_row_offset(&y, j) + n0);
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(row + i, 1, 2);
    }
}

/* Rows of x become lanes: VL x VL blocks transposed in registers, the rest one by one. */
static void pack(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const h3_tensor x = ((const h3_gemm *)ctx)->x;
    const int64_t whole = kc / VL * VL;

    for (int64_t j0 = 0; j0 < NR; j0 += VL) {
        int64_t at[VL];
        for (int64_t j = 0; j < VL; j++) // lanes past the end repeat the last row
            at[j] = h3_row_offset(&x, m0 + (j0 + j < m ? j0 + j : m - 1)) + k0;
        if (j0 >= m) break;
        for (int64_t k = 0; k < whole; k += VL) {
            vf r[VL];
#pragma GCC unroll 16
            for (int j = 0; j < VL; j++)
                r[j] = v_get(x.data, x.dtype, at[j] + k);
            v_transpose(r);
#pragma GCC unroll 16
            for (int j = 0; j < VL; j++)
                v_store(dst + (k + j) * NR + j0, r[j]);
        }
        for (int64_t k = whole; k < kc; k++)
            for (int64_t j = 0; j < VL; j++)
                dst[k * NR + j0 + j] = h3_num_load(x.data, x.dtype, at[j] + k);
    }
}

INLINE vf v_act(vf v, h3_act act)
{
    switch (act) {
    case H3_ACT_SILU:
        return v_silu(v);
    case H3_ACT_GELU_TANH:
        return v_gelu_tanh(v);
    case H3_ACT_GELU_ERF:
        return v_gelu_erf(v);
    case H3_ACT_NONE:
        break;
    }
    return v;
}

/* Bias, rounding, activation and rounding of VL columns (or n < VL) of one row of y. */
INLINE void finish(const h3_gemm *g, int64_t row_at, int64_t n0, vf v, int n)
{
    if (!h3_is_null(g->w->bias)) {
        const float *b = (const float *)g->w->bias.data + n0;
        v += n == VL ? v_load(b) : v_get_n(b, H3_F32, 0, n);
    }
    if (g->act != H3_ACT_NONE) v = v_act(v_round(g->y.dtype, v), g->act);
    if (n == VL)
        v_put(g->y.data, g->y.dtype, row_at + n0, v);
    else
        v_put_n(g->y.data, g->y.dtype, row_at + n0, v, n);
}

static void store(const void *ctx, int64_t n0, int64_t n, int64_t m0, int64_t m, const float *c)
{
    const h3_gemm *g = ctx;

    for (int64_t j0 = 0; j0 < m; j0 += VL) {
        const int rows = (int)(m - j0 < VL ? m - j0 : VL);
        int64_t at[VL];
        for (int j = 0; j < rows; j++)
            at[j] = h3_row_offset(&g->y, m0 + j0 + j);
        for (int64_t i = 0; i < n; i += VL) {
            const int take = (int)(n - i < VL ? n - i : VL);
            vf r[VL];
#pragma GCC unroll 16
            for (int k = 0; k < VL; k++)
                r[k] = k < take ? v_load(c + (i + k) * NR + j0) : v_set(0);
            if (g->has_int_sums)
                for (int k = 0; k < take; k++)
                    r[k] = __builtin_convertvector((vi)r[k], vf) *
                           ISA(h3_cpu_row_scale)(g->w, n0 + i + k);
            v_transpose(r);
            for (int j = 0; j < rows; j++)
                if (!g->only || g->only[m0 + j0 + j])
                    finish(g, at[j], n0 + i, g->row_scale ? r[j] * g->row_scale[m0 + j0 + j] : r[j],
                           take);
        }
    }
}

/* ---------------------------------------------------------------- few rows */

enum {
    FEW = 16,    ///< rows of x handled without packing
    FEW_LOW = 8, ///< the same where low-precision tiles may be faster
    AT_ONCE = 4  ///< a square of sums in registers
};

/* sums[r][s] = w[r] . x[s]: AT_ONCE rows of w (F32 or BF16 as stored) against `rows` of x, so that
 * a number of x that comes from level-2 cache serves four weights. */
INLINE void dots(const int rows, uint8_t dtype, const void *const *w, const float *x, int64_t K,
                 float sums[AT_ONCE][AT_ONCE])
{
    vf acc[AT_ONCE][AT_ONCE];

#pragma GCC unroll 4
    for (int r = 0; r < AT_ONCE; r++)
#pragma GCC unroll 4
        for (int s = 0; s < rows; s++)
            acc[r][s] = v_set(0);
    for (int64_t k = 0; k + VL <= K; k += VL) {
        vf v[AT_ONCE];
#pragma GCC unroll 4
        for (int s = 0; s < rows; s++)
            v[s] = v_load(x + s * K + k);
#pragma GCC unroll 4
        for (int r = 0; r < AT_ONCE; r++) {
            const vf a = v_get(w[r], dtype, k);
#pragma GCC unroll 4
            for (int s = 0; s < rows; s++)
                acc[r][s] = v_fma(a, v[s], acc[r][s]);
        }
    }
    const int64_t k = K / VL * VL;
    const int n = (int)(K - k);
    for (int r = 0; r < AT_ONCE; r++)
        for (int s = 0; s < rows; s++) {
            vf t = acc[r][s];
            if (n) t = v_fma(v_get_n(w[r], dtype, k, n), v_get_n(x + s * K, H3_F32, k, n), t);
            sums[r][s] = v_sum(t);
        }
}

static void dots_of(int rows, uint8_t dtype, const void *const *w, const float *x, int64_t K,
                    float sums[AT_ONCE][AT_ONCE])
{
    const bool f32 = dtype == H3_F32;
    switch (rows) {
    case 1:
        f32 ? dots(1, H3_F32, w, x, K, sums) : dots(1, H3_BF16, w, x, K, sums);
        break;
    case 2:
        f32 ? dots(2, H3_F32, w, x, K, sums) : dots(2, H3_BF16, w, x, K, sums);
        break;
    case 3:
        f32 ? dots(3, H3_F32, w, x, K, sums) : dots(3, H3_BF16, w, x, K, sums);
        break;
    default:
        f32 ? dots(4, H3_F32, w, x, K, sums) : dots(4, H3_BF16, w, x, K, sums);
        break;
    }
}

/* Where row n of w can be multiplied in place; NULL when it must be decoded first. */
static const void *row_in_place(const h3_weight *w, int64_t n, uint8_t *dtype)
{
    int i = 0;
    if (w->n_lora) return NULL;
    for (; n >= w->part[i].rows; i++)
        n -= w->part[i].rows;
    const h3_weight_part *p = &w->part[i];
    if (!h3_part_is_plain(p) || p->encoding == H3_ENC_F16) return NULL;
    *dtype = p->encoding == H3_ENC_F32 ? H3_F32 : H3_BF16;
    return (const uint8_t *)p->data + (size_t)n * p->row_bytes;
}

/* Rows [n, n + AT_ONCE) of w (the last repeated past the end) where they can be multiplied: in
 * place, or all four decoded into `room` [AT_ONCE][K]. */
static uint8_t four_rows(const h3_weight *w, int64_t n, float *room, const void **at)
{
    uint8_t dtype[AT_ONCE] = {0};
    bool in_place = true;

    for (int r = 0; r < AT_ONCE; r++) {
        at[r] = row_in_place(w, n + r < w->rows ? n + r : w->rows - 1, &dtype[r]);
        in_place = in_place && at[r] && dtype[r] == dtype[0];
    }
    if (in_place) return dtype[0];
    const int64_t take = w->rows - n < AT_ONCE ? w->rows - n : AT_ONCE;
    h3_weight_rows(w, n, take, room);
    for (int r = 0; r < AT_ONCE; r++)
        at[r] = room + (r < take ? r : take - 1) * w->cols;
    return H3_F32;
}

static h3_status few_rows(h3_dev *d, const h3_gemm *g)
{
    const int64_t S = h3_n_rows(g->x), K = g->w->cols, N = g->w->rows;
    const size_t x_bytes = h3_align_up((size_t)(S * K) * sizeof(float), 64);
    const size_t room_bytes = h3_align_up((size_t)(AT_ONCE * K) * sizeof(float), 64);
    void *work = NULL;

    H3_TRY(h3_cpu_work(d, x_bytes + room_bytes * (size_t)d->n_threads, &work));
    float *x = work;
    for (int64_t s = 0; s < S; s++)
        for (int64_t k = 0, at = h3_row_offset(&g->x, s); k < K; k++)
            x[s * K + k] = h3_num_load(g->x.data, g->x.dtype, at + k);
#pragma omp parallel for schedule(static) num_threads(d->n_threads)
    for (int64_t b = 0; b < h3_ceil_div(N, VL); b++) { // VL columns of y: whole vectors to finish
        float *room =
            (float *)((unsigned char *)work + x_bytes + room_bytes * (size_t)omp_get_thread_num());
        const int n = (int)(N - b * VL < VL ? N - b * VL : VL);
        float sums[FEW][VL] = {{0}};
        for (int i = 0; i < n; i += AT_ONCE) {
            const void *w[AT_ONCE];
            const uint8_t dtype = four_rows(g->w, b * VL + i, room, w);
            for (int64_t s = 0; s < S; s += AT_ONCE) {
                float t[AT_ONCE][AT_ONCE];
                const int rows = (int)(S - s < AT_ONCE ? S - s : AT_ONCE);
                dots_of(rows, dtype, w, x + s * K, K, t);
                for (int r = 0; r < AT_ONCE && i + r < n; r++)
                    for (int j = 0; j < rows; j++)
                        sums[s + j][i + r] = t[r][j];
            }
        }
        for (int64_t s = 0; s < S; s++)
            finish(g, h3_row_offset(&g->y, s), b * VL, v_load(sums[s]), n);
    }
    return H3_OK;
}

static h3_status gemm(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w, h3_act act)
{
    h3_gemm g = {.x = x, .y = y, .w = w, .act = act};
    h3_status st;

    assert(x.ne[x.rank - 1] == w->cols && y.ne[y.rank - 1] == w->rows);
    const bool is_low = d->backend->pairs != H3_PAIRS_NONE || d->backend->math == H3_CPU_INT8;
    const int64_t rows = d->whole_rows > h3_n_rows(x) ? d->whole_rows : h3_n_rows(x);
    if (rows <= (is_low ? FEW_LOW : FEW)) return few_rows(d, &g);
    h3_product p = {.n = w->rows,
                    .m = h3_n_rows(x),
                    .k = w->cols,
                    .share = true,
                    .ctx = &g,
                    .row_scratch = ISA(h3_cpu_fill_scratch)(w),
                    .fill = fill,
                    .ahead = ahead,
                    .results = results,
                    .pack = pack,
                    .store = store};
    const h3_product plain = p;
    st = ISA(h3_cpu_low)(d, &g, &p);
    if (st == H3_OK) st = ISA(h3_cpu_product)(d, &p);
    if (st == H3_OK && ISA(h3_cpu_digits_failed)(&g, p.m)) st = ISA(h3_cpu_product)(d, &plain);
    free(g.owned);
    return st;
}

static h3_status embed(h3_dev *d, h3_tensor y, const h3_weight *w, h3_tensor ids)
{
    const int64_t C = w->cols;
    const size_t row_bytes = h3_align_up((size_t)C * sizeof(float), 64);
    void *work = NULL;

    H3_TRY(h3_cpu_work(d, row_bytes * (size_t)d->n_threads, &work));
#pragma omp parallel for schedule(static) num_threads(d->n_threads)
    for (int64_t i = 0; i < h3_numel(ids); i++) {
        float *row = (float *)((unsigned char *)work + row_bytes * (size_t)omp_get_thread_num());
        const int64_t at = h3_row_offset(&y, i);
        assert(((const int32_t *)ids.data)[i] >= 0 && ((const int32_t *)ids.data)[i] < w->rows);
        h3_weight_rows(w, ((const int32_t *)ids.data)[i], 1, row);
        for (int64_t c = 0; c < C; c++)
            h3_num_store(y.data, y.dtype, at + c, row[c]);
    }
    return H3_OK;
}

void ISA(h3_cpu_fill_products)(h3_ops *op)
{
    op->gemm = gemm;
    op->embed = embed;
}
