/**
 * Products below f32: the same driver, with tiles that read 32-bit groups.
 *
 *   bf16   a group is a pair of bf16 numbers of one row. Weights are broadcast as stored, x is
 * packed by transposing pairs. VDPBF16PS multiplies exactly and adds in f32, so this is the f32
 *          product in another order of additions; it pays where the instruction is fast (twice f32
 * on Zen 4, half of f32 on Xeons without AMX), which ops_cpu.c measures. int8   a group is four
 * int8 of one row; x is quantised by rows (largest magnitude = 127) and moved to unsigned by +128,
 * which a correction of -128 times the sum of the weights takes back. ConvRot weights meet a
 * rotated x, instead of being rotated back. q8_0   the same on ggml blocks of 32: integer sums of a
 * block are scaled by its half.
 */
#include "gemm.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>
#include <time.h>

#include "decode.h"
#include "size.h"

float ISA(h3_cpu_row_scale)(const h3_weight *w, int64_t n)
{
    int i = 0;
    float s;
    for (; n >= w->part[i].rows; i++)
        n -= w->part[i].rows;
    const h3_weight_part *p = &w->part[i];
    if (p->n_scale <= 1) return p->global;
    memcpy(&s, (const uint8_t *)p->scale + (size_t)(p->row0 + n) * sizeof s, sizeof s);
    return s;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds per row of A. */
static double time_tile(h3_tile_fn tile, int rows)
{
    static const _Alignas(64) float zeros[MR * LDA + KC * NR];
    _Alignas(64) float c[MR * NR];
    double best = 1;
    for (int i = 0; i < 20; i++) {
        const double t0 = now();
        for (int k = 0; k < 4; k++)
            tile(rows, KC, zeros, zeros + MR * LDA, c, false, false);
        const double t = now() - t0;
        if (t < best) best = t;
    }
    return best / rows;
}

double ISA(h3_cpu_time_f32)(void)
{
    return time_tile(ISA(h3_cpu_tile_rows), MR);
}

#if VL != 16
h3_status ISA(h3_cpu_low)(h3_dev *d UNUSED, h3_gemm *g UNUSED, h3_product *p UNUSED)
{
    return H3_OK;
}

double ISA(h3_cpu_time_bf16)(void)
{
    return 1;
}

double ISA(h3_cpu_time_amx)(int n_a UNUSED, int n_b UNUSED)
{
    return 1;
}

void ISA(h3_cpu_bf16_rows)(int n UNUSED, int64_t kc UNUSED, const float *a UNUSED,
                           const float *b UNUSED, float *c UNUSED, bool add UNUSED,
                           bool half UNUSED)
{
    assert(!"bf16 tiles need AVX-512");
}

void ISA(h3_cpu_bf16_cols)(int n UNUSED, int64_t kc UNUSED, const float *a UNUSED,
                           int64_t lda UNUSED, const float *b UNUSED, float *c UNUSED,
                           bool add UNUSED, bool half UNUSED)
{
    assert(!"bf16 tiles need AVX-512");
}
#else

/* ---------------------------------------------------------------- tiles */

#define VNNI __attribute__((target("avx512vnni")))
#define BF16 __attribute__((target("avx512bf16")))

INLINE BF16 vf dot_bf16(vf acc, vi a, vi b)
{
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
}

/* a unsigned, b signed bytes. */
INLINE VNNI vi dot_int8(vi acc, vi a, vi b)
{
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
}

INLINE BF16 void bf16_block(const int n, const int v, int64_t kc, const float *a, int64_t rs,
                            int64_t cs, const float *b, float *c, bool add)
{
    vf acc[MR][2];

#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
        acc[i][0] = acc[i][1] = v_set(0);
    for (int64_t k = 0; k < kc; k++) {
        const vi x0 = load_int(b + k * NR), x1 = v > 1 ? load_int(b + k * NR + VL) : x0;
#pragma GCC unroll 14
        for (int i = 0; i < n; i++) {
            const vi w = set_int(a + i * rs + k * cs);
            acc[i][0] = dot_bf16(acc[i][0], w, x0);
            if (v > 1) acc[i][1] = dot_bf16(acc[i][1], w, x1);
        }
    }
    store_sums(n, v, acc, c, NR, add);
}

INLINE BF16 void bf16_tile(const int n, const int v, int64_t kc, const float *a, const float *b,
                           float *c, bool add)
{
    bf16_block(n, v, kc, a, LDA, 1, b, c, add);
}

/* a[i * LDA + KC] holds the correction of this pass, as int32. */
INLINE VNNI void int8_tile(const int n, const int v, int64_t kc, const float *a, const float *b,
                           float *c, bool add)
{
    vi acc[MR][2];

#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
        acc[i][0] = acc[i][1] = set_int(a + i * LDA + KC);
    for (int64_t k = 0; k < kc; k++) {
        const vi x0 = load_int(b + k * NR), x1 = v > 1 ? load_int(b + k * NR + VL) : x0;
#pragma GCC unroll 14
        for (int i = 0; i < n; i++) {
            const vi w = set_int(a + i * LDA + k);
            acc[i][0] = dot_int8(acc[i][0], x0, w);
            if (v > 1) acc[i][1] = dot_int8(acc[i][1], x1, w);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int j = 0; j < v; j++) {
            float *p = c + i * NR + j * VL;
            v_store(p, (vf)(add ? acc[i][j] + load_int(p) : acc[i][j]));
        }
}

enum {
    Q8_WORDS = 10,              ///< a block of a row of A: 8 groups, its scale, its correction
    Q8_BLOCKS = LDA / Q8_WORDS, ///< blocks per pass
    Q8_KC = 8 * Q8_BLOCKS
};

INLINE VNNI void q8_tile(const int n, const int v, int64_t kc, const float *a, const float *b,
                         float *c, bool add)
{
    vf acc[MR / 2][2];

#pragma GCC unroll 7
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int j = 0; j < v; j++)
            acc[i][j] = add ? v_load(c + i * NR + j * VL) : v_set(0);
    for (int64_t k = 0; k < kc; k += 8, a += Q8_WORDS, b += 8 * NR) {
        vi sum[MR / 2][2];
#pragma GCC unroll 7
        for (int i = 0; i < n; i++)
            sum[i][0] = sum[i][1] = set_int(a + i * LDA + 9);
#pragma GCC unroll 8
        for (int q = 0; q < 8; q++) {
            const vi x0 = load_int(b + q * NR), x1 = v > 1 ? load_int(b + q * NR + VL) : x0;
#pragma GCC unroll 7
            for (int i = 0; i < n; i++) {
                const vi w = set_int(a + i * LDA + q);
                sum[i][0] = dot_int8(sum[i][0], x0, w);
                if (v > 1) sum[i][1] = dot_int8(sum[i][1], x1, w);
            }
        }
#pragma GCC unroll 7
        for (int i = 0; i < n; i++) {
            const vf s = v_set(a[i * LDA + 8]);
#pragma GCC unroll 2
            for (int j = 0; j < v; j++)
                acc[i][j] = v_fma(__builtin_convertvector(sum[i][j], vf), s, acc[i][j]);
        }
    }
#pragma GCC unroll 7
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int j = 0; j < v; j++)
            v_store(c + i * NR + j * VL, acc[i][j]);
}

#define TILE(kind, ATTR, n, v)                                                              \
    ATTR static void kind##_##n##_##v(int64_t kc, const float *a, const float *b, float *c, \
                                      bool add)                                             \
    {                                                                                       \
        kind##_tile(n, v, kc, a, b, c, add);                                                \
    }
#define SIZES_7(X)     X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define SIZES_14(X)    SIZES_7(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define ENTRY(kind, n) [n] = {kind##_##n##_2, kind##_##n##_1},
typedef void (*const sized_tile)(int64_t, const float *, const float *, float *, bool);

#define BF16_TILES(n) TILE(bf16, BF16, n, 1) TILE(bf16, BF16, n, 2)
#define INT8_TILES(n) TILE(int8, VNNI, n, 1) TILE(int8, VNNI, n, 2)
#define Q8_TILES(n)   TILE(q8, VNNI, n, 1) TILE(q8, VNNI, n, 2)
SIZES_14(BF16_TILES)
SIZES_14(INT8_TILES)
SIZES_7(Q8_TILES)

#define BF16_COLS(n)                                                                       \
    BF16 static void cols_##n##_1(int64_t kc, const float *a, int64_t lda, const float *b, \
                                  float *c, bool add)                                      \
    {                                                                                      \
        bf16_block(n, 1, kc, a, 1, lda, b, c, add);                                        \
    }                                                                                      \
    BF16 static void cols_##n##_2(int64_t kc, const float *a, int64_t lda, const float *b, \
                                  float *c, bool add)                                      \
    {                                                                                      \
        bf16_block(n, 2, kc, a, 1, lda, b, c, add);                                        \
    }
SIZES_14(BF16_COLS)

void ISA(h3_cpu_bf16_cols)(int n, int64_t kc, const float *a, int64_t lda, const float *b, float *c,
                           bool add, bool half)
{
#define COLS_ENTRY(n) ENTRY(cols, n)
    static void (*const table[MR + 1][2])(int64_t, const float *, int64_t, const float *, float *,
                                          bool) = {SIZES_14(COLS_ENTRY)};
    table[n][half](kc, a, lda, b, c, add);
}

void ISA(h3_cpu_bf16_rows)(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                           bool half)
{
#define BF16_ENTRY(n) ENTRY(bf16, n)
    static sized_tile table[MR + 1][2] = {SIZES_14(BF16_ENTRY)};
    table[n][half](kc, a, b, c, add);
}

static void tile_int8(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                      bool half)
{
#define INT8_ENTRY(n) ENTRY(int8, n)
    static sized_tile table[MR + 1][2] = {SIZES_14(INT8_ENTRY)};
    table[n][half](kc, a, b, c, add);
}

/* Integer and float sums together fill the registers with half the rows. */
static void tile_q8(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                    bool half)
{
#define Q8_ENTRY(n)   ENTRY(q8, n)
    static sized_tile table[MR / 2 + 1][2] = {SIZES_7(Q8_ENTRY)};
    const int first = n > 7 ? (n + 1) / 2 : n;
    table[first][half](kc, a, b, c, add);
    if (n > first) table[n - first][half](kc, a + first * LDA, b, c + first * NR, add);
}

double ISA(h3_cpu_time_bf16)(void)
{
    return time_tile(ISA(h3_cpu_bf16_rows), MR) / 2; // two products per group
}

double ISA(h3_cpu_time_digits)(void)
{
    return time_tile(ISA(h3_cpu_digits_tile), MR);
}

double ISA(h3_cpu_time_amx)(int n_a, int n_b)
{
    static const _Alignas(64) float zeros[2 * 3 * KC_SPLIT * NR]; // A and B, in three pieces
    const h3_amx_split split = {.n_a = n_a, .n_b = n_b};
    const h3_amx_rows a = h3_amx_packed(zeros, n_a);
    _Alignas(64) float c[AMX_ROWS * NR];
    double best = 1;

    ISA(h3_cpu_amx_begin)();
    for (int i = 0; i < 20; i++) {
        const double t0 = now();
        for (int k = 0; k < 4 * KC / (2 * KC_SPLIT); k++)
            ISA(h3_cpu_amx_bf16)
        (&split, AMX_ROWS, KC_SPLIT, &a, zeros + 3 * KC_SPLIT * NR, c, false, false);
        const double t = now() - t0;
        if (t < best) best = t;
    }
    ISA(h3_cpu_amx_end)();
    return best / AMX_ROWS;
}

/* ---------------------------------------------------------------- bf16 */

/* Rows [n0, n0 + n) of a weight whose parts all are plain: the row's first byte. */
static const uint8_t *row_of(const h3_weight *w, int64_t n)
{
    int i = 0;
    for (; n >= w->part[i].rows; i++)
        n -= w->part[i].rows;
    return (const uint8_t *)w->part[i].data + (size_t)n * w->part[i].row_bytes;
}

static void fill_bf16(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                      void *rows UNUSED)
{
    const h3_gemm *g = ctx;
    for (int64_t i = 0; i < n; i++)
        memcpy(dst + i * LDA, row_of(g->w, n0 + i) + k0 * 4, (size_t)kc * 4);
}

/* Groups as stored, bf16 pairs or bytes, in tiles of AMX. */
static void fill_tiles(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                       void *rows UNUSED)
{
    const h3_gemm *g = ctx;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *from = row_of(g->w, n0 + i) + k0 * 4;
        for (int64_t k = 0; k < kc; k += AMX_STEP)
            memcpy(dst + h3_amx_a(i, k, kc, 1, 0), from + k * 4, AMX_STEP * 4);
    }
}

/* The same without a copy: see can_place. */
static void place_rows(const void *ctx, int64_t n0, int64_t k0, h3_amx_rows *out)
{
    const h3_weight *w = ((const h3_gemm *)ctx)->w;
    const size_t row = w->part[0].row_bytes;

    *out = (h3_amx_rows){
        .at = row_of(w, n0) + k0 * 4, .row = row, .tile = AMX_STEP * row, .step = 4 * AMX_STEP};
}

/* No group of AMX_ROWS may reach past a part's end. */
static bool can_place(const h3_weight *w)
{
    for (int i = 0; i < w->n_parts; i++)
        if (w->part[i].rows % AMX_ROWS || w->part[i].row_bytes != w->part[0].row_bytes)
            return false;
    return true;
}

static void call_pairs(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    ISA(h3_cpu_call_weight)(((const h3_gemm *)ctx)->w, n0, n, 2 * k0, 2 * kc);
}

/* Bytes [from, to) of rows. */
static void call_rows(const h3_gemm *g, int64_t n0, int64_t n, int64_t from, int64_t to)
{
    for (int64_t i = n0; i < n0 + n; i++)
        for (int64_t k = from; k < to; k += 64)
            __builtin_prefetch(row_of(g->w, i) + k, 0, 2);
}

static void call_bytes(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    call_rows(ctx, n0, n, 4 * k0, 4 * (k0 + kc));
}

static void call_q8(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    call_rows(ctx, n0, n, k0 / 8 * 34, (k0 + kc) / 8 * 34);
}

/* Where group k of lanes j.. of B lies. */
static int64_t group_at(const h3_gemm *g, int64_t k, int64_t j)
{
    return g->split.n_b ? h3_amx_b(k, j, 1, 0) : k * NR + j;
}

/* Pairs of NR rows of bf16 x: VL x VL blocks of 32-bit groups, transposed in registers. */
static void pack_bf16(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const h3_gemm *g = ctx;
    const h3_tensor x = g->x;

    for (int64_t j0 = 0; j0 < m; j0 += VL) {
        const uint16_t *at[VL];
        for (int64_t j = 0; j < VL; j++)
            at[j] = (const uint16_t *)x.data +
                    h3_row_offset(&x, m0 + (j0 + j < m ? j0 + j : m - 1)) + 2 * k0;
        for (int64_t k = 0; k < kc; k += VL) {
            const int64_t n = kc - k < VL ? kc - k : VL;
            vf r[VL] = {{0}};
            for (int j = 0; j < VL; j++)
                memcpy(&r[j], at[j] + 2 * k, (size_t)n * 4);
            v_transpose(r);
            for (int j = 0; j < n; j++)
                v_store(dst + group_at(g, k + j, j0), r[j]);
        }
    }
}

static bool is_bf16(const h3_weight *w)
{
    if (w->n_lora) return false;
    for (int i = 0; i < w->n_parts; i++)
        if (w->part[i].encoding != H3_ENC_BF16 || w->part[i].in_scale) return false;
    return true;
}

/* ---------------------------------------------------------------- f32 as pieces of bf16 (AMX) */

/* Rows of any weight, decoded a few at a time, in g->split.n_a pieces. */
static void fill_split(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                       void *rows)
{
    enum { AT_A_TIME = 8 };
    const h3_gemm *g = ctx;
    _Alignas(64) float wide[AT_A_TIME * LDA];

    for (int64_t i = 0; i < n; i += AT_A_TIME) {
        const int64_t take = n - i < AT_A_TIME ? n - i : AT_A_TIME;
        ISA(h3_cpu_fill_weight)
        (g->w, n0 + i, take, 2 * k0, 2 * kc, wide, rows ? (float *)rows + i * g->w->cols : NULL);
        for (int64_t r = 0; r < take; r++)
            for (int64_t k = 0; k < kc; k += VL) {
                vf piece[3];
                const float *from = wide + r * LDA + 2 * k;
                v_pieces_of(v_load(from), v_load(from + VL), g->split.n_a, piece);
                for (int p = 0; p < g->split.n_a; p++)
                    v_store(dst + h3_amx_a(i + r, k, kc, g->split.n_a, p), piece[p]);
            }
    }
}

/* NR rows of x in g->split.n_b pieces. */
static void pack_split(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const h3_gemm *g = ctx;
    const h3_tensor x = g->x;

    for (int64_t j0 = 0; j0 < m; j0 += VL) {
        int64_t at[VL];
        for (int64_t j = 0; j < VL; j++)
            at[j] = h3_row_offset(&x, m0 + (j0 + j < m ? j0 + j : m - 1)) + 2 * k0;
        for (int64_t k = 0; k < kc; k += VL) {
            vf piece[VL][3], r[VL];
            for (int j = 0; j < VL; j++)
                v_pieces_of(v_get(x.data, x.dtype, at[j] + 2 * k),
                            v_get(x.data, x.dtype, at[j] + 2 * k + VL), g->split.n_b, piece[j]);
            for (int p = 0; p < g->split.n_b; p++) {
                for (int j = 0; j < VL; j++)
                    r[j] = piece[j][p];
                v_transpose(r);
                for (int j = 0; j < VL; j++)
                    v_store(dst + h3_amx_b(k + j, j0, g->split.n_b, p), r[j]);
            }
        }
    }
}

#ifdef H3_AMX_EMULATE
enum { SIX_ROWS = 1 };
#else
enum { SIX_ROWS = 128 }; // fewer rows of x do not pay for the pieces of a weight
#endif

/* A product of bf16 pieces on AMX, where it fits the tiles and is the faster way. is_coarse: both
 * operands rounded to one piece. */
static bool use_amx(const h3_dev *d, h3_gemm *g, h3_product *p, bool is_coarse)
{
    const h3_backend *b = d->backend;
    const bool is_plain = is_bf16(g->w);
    const int n_a = is_plain || is_coarse ? 1 : 3, n_b = g->x.dtype == H3_BF16 || is_coarse ? 1 : 3;

    if (b->pairs != H3_PAIRS_AMX || g->w->cols % (2 * AMX_STEP)) return false;
    const int products = n_a * n_b < 9 ? n_a * n_b : 6;
    const int64_t rows = d->whole_rows > p->m ? d->whole_rows : p->m;
    if (products > b->amx_terms || (products == 6 && rows < SIX_ROWS)) return false;
    p->is_amx = true;
    p->k = g->w->cols / 2;
    p->kc = KC_SPLIT;
    p->ahead = call_pairs;
    p->split = (h3_amx_split){.n_a = n_a, .n_b = n_b};
    g->split = p->split;
    p->fill = is_plain ? fill_tiles : fill_split;
    if (is_plain && can_place(g->w)) p->place = place_rows;
    p->pack = g->x.dtype == H3_BF16 ? pack_bf16 : pack_split;
    if (is_plain) p->row_scratch = 0;
    return true;
}

/* ---------------------------------------------------------------- int8 */

/* y H_g / sqrt(g), as the decoder rotates weights: radix-4 butterflies over runs of g. */
void ISA(h3_cpu_rotate_row)(float *y, int64_t n, int32_t g)
{
    for (int64_t at = 0; at < n; at += g)
        for (int32_t step = 1; step < g; step *= 4)
            for (int32_t i = 0; i < g; i += 4 * step)
                for (int32_t j = i; j < i + step; j++) {
                    float *v = y + at + j;
                    const float a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
                    v[0] = 0.5f * ((a + b) + (c - d));
                    v[step] = 0.5f * ((a + b) - (c - d));
                    v[2 * step] = 0.5f * ((a - b) + (c + d));
                    v[3 * step] = 0.5f * ((b - a) + (c + d));
                }
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* Row s of x: widened, rotated, quantised to -127..127 (+ g->zero) in `out` [K]. */
static void quantise_row(const h3_gemm *g, int64_t s, float *wide, uint8_t *out)
{
    const int64_t K = g->w->cols, at = h3_row_offset(&g->x, s);
    vf most = v_set(0);
    int64_t k = 0;

    for (; k + VL <= K; k += VL)
        v_store(wide + k, v_get(g->x.data, g->x.dtype, at + k));
    for (; k < K; k++)
        wide[k] = h3_num_load(g->x.data, g->x.dtype, at + k);
    if (g->w->part[0].group) ISA(h3_cpu_rotate_row)(wide, K, g->w->part[0].group);
    for (k = K; k < (int64_t)h3_align_up((size_t)K, VL); k++)
        wide[k] = 0;
    for (k = 0; k < K; k += VL) {
        const vf v = v_load(wide + k);
        most = v_max(most, v_max(v, -v));
    }
    float top = 0;
    for (int i = 0; i < VL; i++)
        top = most[i] > top ? most[i] : top;
    const float inv = top > 0 ? 127.0f / top : 0.0f;
    g->row_scale[s] = top / 127.0f;
    for (k = 0; k < K; k += VL) {
        const vf q = v_load(wide + k) * inv + 0x1.8p23f; // rounds to nearest, ties to even
        const vi i = ((vi)q & 0xff) + g->zero;
        const bytes16 b = __builtin_convertvector(i, bytes16);
        memcpy(out + k, &b, sizeof b);
    }
}

/* The whole depth of NR rows at once (the driver packs shared panels so). */
static void pack_int8(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const h3_gemm *g = ctx;
    const int64_t K = g->w->cols;
    const size_t padded = h3_align_up((size_t)K, 64);
    unsigned char *mine = g->scratch + (size_t)omp_get_thread_num() * g->scratch_bytes;
    float *wide = (float *)mine;
    uint8_t *rows = mine + padded * sizeof(float); // [VL][padded]

    assert(k0 == 0);
    (void)k0;
    for (int64_t j0 = 0; j0 < m; j0 += VL) {
        const int64_t n = m - j0 < VL ? m - j0 : VL;
        for (int64_t j = 0; j < n; j++) {
            memset(rows + (size_t)j * padded + (size_t)K, g->zero, padded - (size_t)K);
            quantise_row(g, m0 + j0 + j, wide, rows + (size_t)j * padded);
        }
        for (int64_t k = 0; k < kc; k += VL) {
            vf r[VL];
            for (int j = 0; j < VL; j++)
                memcpy(&r[j], rows + (size_t)(j < n ? j : n - 1) * padded + (size_t)k * 4,
                       sizeof r[j]);
            v_transpose(r);
            for (int j = 0; j < VL && k + j < kc; j++)
                v_store(dst + group_at(g, k + j, j0), r[j]);
        }
    }
}

/* Sums of bytes as dots with ones. */
INLINE VNNI int32_t sum_of_32(__m256i bytes)
{
    const __m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

VNNI static int32_t sum_of(const int8_t *p, int64_t n)
{
    vi s = (vi)_mm512_setzero_si512();
    int32_t sum = 0;
    int64_t i = 0;

    for (; i + 64 <= n; i += 64)
        s = dot_int8(s, (vi)_mm512_set1_epi8(1), load_int(p + i));
    for (; i < n; i++)
        sum += p[i];
    return sum + _mm512_reduce_add_epi32((__m512i)s);
}

static void fill_int8(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                      void *rows UNUSED)
{
    const h3_gemm *g = ctx;
    const int64_t bytes = g->w->cols - k0 * 4 < kc * 4 ? g->w->cols - k0 * 4 : kc * 4;

    for (int64_t i = 0; i < n; i++) {
        const int8_t *from = (const int8_t *)row_of(g->w, n0 + i) + k0 * 4;
        const int32_t correction = -128 * sum_of(from, bytes);
        float *to = dst + i * LDA;
        if (bytes < kc * 4) to[kc - 1] = 0; // a cut last group is padded with zeros
        memcpy(to, from, (size_t)bytes);
        memcpy(to + KC, &correction, sizeof correction);
    }
}

VNNI static void fill_q8(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                         void *rows UNUSED)
{
    const h3_gemm *g = ctx;

    for (int64_t i = 0; i < n; i++) {
        const uint8_t *from = row_of(g->w, n0 + i) + k0 / 8 * 34;
        float *to = dst + i * LDA;
        for (int64_t b = 0; b < kc / 8; b++, from += 34, to += Q8_WORDS) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(from + 2));
            const int32_t correction = -128 * sum_of_32(bytes);
            uint16_t half;
            memcpy(&half, from, sizeof half);
            _mm256_storeu_si256((__m256i *)(void *)to, bytes);
            to[8] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
            memcpy(to + 9, &correction, sizeof correction);
        }
    }
}

enum { GGML_Q8_0 = 8 };

/* Every part the same kind, nothing scaled or added on top. */
static bool is_all(const h3_weight *w, h3_encoding encoding)
{
    if (w->n_lora) return false;
    for (int i = 0; i < w->n_parts; i++) {
        const h3_weight_part *p = &w->part[i];
        if (p->encoding != encoding || p->in_scale || p->group != w->part[0].group) return false;
        if (encoding == H3_ENC_GGML && (p->ggml_type != GGML_Q8_0 || !p->row_bytes)) return false;
    }
    return true;
}

static h3_status use_int8(h3_dev *d, h3_gemm *g, h3_product *p, bool is_q8)
{
    const size_t padded = h3_align_up((size_t)g->w->cols, 64);
    const size_t scales = h3_align_up((size_t)p->m * sizeof(float), 64);

    g->scratch_bytes = padded * (sizeof(float) + VL);
    if (posix_memalign(&g->owned, 64, scales + g->scratch_bytes * (size_t)d->n_threads) != 0)
        return h3_fail(H3_E_NOMEM, "no memory to quantise %lld rows", (long long)p->m);
    g->zero = 128;
    g->row_scale = g->owned;
    g->scratch = (unsigned char *)g->owned + scales;
    g->has_int_sums = !is_q8;
    p->k = h3_ceil_div(g->w->cols, 4);
    p->kc = is_q8 ? Q8_KC : KC;
    p->tile = is_q8 ? tile_q8 : tile_int8;
    p->fill = is_q8 ? fill_q8 : fill_int8;
    p->ahead = is_q8 ? call_q8 : call_bytes;
    p->pack = pack_int8;
    p->packs_whole = true;
    p->row_scratch = 0;
    if (d->backend->has_amx && !is_q8 && g->w->cols % (4 * AMX_STEP) == 0) {
        g->zero = 0;
        p->is_amx = true;
        p->kc = KC_SPLIT;
        p->split = g->split = (h3_amx_split){.n_a = 1, .n_b = 1};
        p->is_bytes = true;
        p->fill = fill_tiles;
        if (can_place(g->w)) p->place = place_rows;
    }
    return H3_OK;
}

h3_status ISA(h3_cpu_low)(h3_dev *d, h3_gemm *g, h3_product *p)
{
    const h3_backend *b = d->backend;

    if (b->math == H3_CPU_INT8 && b->has_vnni) {
        const bool is_q8 = is_all(g->w, H3_ENC_GGML);
        if (is_q8 && use_amx(d, g, p, true)) return H3_OK; // closer than 8-bit rows, and faster
        if (is_q8 || is_all(g->w, H3_ENC_INT8)) return use_int8(d, g, p, is_q8);
    }
    if (use_amx(d, g, p, false) || ISA(h3_cpu_digits)(d, g, p)) return H3_OK;
    if (b->has_dot && g->x.dtype == H3_BF16 && g->w->cols % 2 == 0 && is_bf16(g->w)) {
        p->k = g->w->cols / 2;
        p->tile = ISA(h3_cpu_bf16_rows);
        p->fill = fill_bf16;
        p->ahead = call_pairs;
        p->pack = pack_bf16;
        p->row_scratch = 0;
    }
    return H3_OK;
}
#endif
