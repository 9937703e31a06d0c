/**
 * Products of f32 with 8-bit weights in integers, without losing what f32 keeps.
 *
 * A block of 32 numbers of a row of x is a power of two times whole numbers of 24 bits, which are
 * offset by 2^23 so that they are three unsigned bytes: what is cut off is at most 2^-23 of the
 * block's largest number, as much as a sum in f32 loses beside it. Dots of bytes (VNNI) with the
 * weights as stored are exact. The three sums of a block become one of 32 bits (of the lowest
 * byte's 5 bits are rounded off, 2^-19 of the largest product), then f32, times the scales of both
 * sides. Three dots of four columns take the place of four fused multiply-adds, and weights need
 * not be widened.
 *
 * A, per row and block: 8 words of 4 weights, scale, correction, min. B, per block: the scales of
 * NR lanes, [4 columns][digit] of them, and where weights have a min (q4_K, q5_K) the sums of x.
 * Rows of x that digits cannot hold (not finite, huge, or tiny all over) are multiplied again in
 * f32.
 */
#include "gemm.h"

#include <assert.h>
#include <stdlib.h>

#include "size.h"

#if VL != 16
bool ISA(h3_cpu_digits)(const h3_dev *d UNUSED, h3_gemm *g UNUSED, h3_product *p UNUSED)
{
    return false;
}

bool ISA(h3_cpu_digits_failed)(h3_gemm *g UNUSED, int64_t m UNUSED)
{
    return false;
}
#else

#define VNNI __attribute__((target("avx512vnni")))

enum {
    SPAN = 32,        ///< columns of a block
    WORDS = SPAN / 4, ///< of a block of a row of A
    SCALE = WORDS,    ///< and what follows them
    CORRECTION,
    MIN,                   ///< what every weight of the block has on top, or unused
    BLOCK_A,               ///< words of a block of A
    SUM_AT = 1 + 3 * WORDS ///< vectors of NR lanes of a block of B; then sums of x against MIN
};

/* ---------------------------------------------------------------- tiles */

INLINE VNNI vi dot(vi sum, vi x, vi w)
{
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
}

/* Sums of a vector of lanes, one for each digit. */
typedef struct sums {
    vi high, mid, low;
} sums;

INLINE vf sums_value(sums s)
{
    return __builtin_convertvector((((s.high << 8) + s.mid) << 3) + (s.low >> 5), vf);
}

/* A vector of a digit of x serves two rows. */
INLINE VNNI void two_dots(const int n, const float *x, vi w0, vi w1, vi *s0, vi *s1)
{
    const vi v = load_int(x);
    *s0 = dot(*s0, v, w0);
    if (n > 1) *s1 = dot(*s1, v, w1);
}

INLINE VNNI void three_digits(const int n, const float *x, vi w0, vi w1, sums *s0, sums *s1)
{
    two_dots(n, x, w0, w1, &s0->high, &s1->high);
    two_dots(n, x + NR, w0, w1, &s0->mid, &s1->mid);
    two_dots(n, x + 2 * NR, w0, w1, &s0->low, &s1->low);
}

/* Two rows and two vectors at a time: twelve sums in registers, and so few that conversions of one
 * block are in flight with dots of the next. */
INLINE VNNI void tile(const int n, const int v, const bool has_min, int64_t kc, const float *a,
                      const float *b, float *c, bool add)
{
    const int64_t step = SUM_AT + has_min;
    vf acc[2][2];

    acc[0][0] = acc[0][1] = acc[1][0] = acc[1][1] = v_set(0);
    for (int64_t k = 0; k < kc; k += step, a += BLOCK_A, b += step * NR) {
        sums s00, s01, s10, s11;
        s00.mid = (vi)_mm512_setzero_si512();
        s00.low = (vi)_mm512_set1_epi32(16); // half of what is rounded off
        s01 = s10 = s11 = s00;
        s00.high = s01.high = set_int(a + CORRECTION);
        s10.high = s11.high = n > 1 ? set_int(a + LDA + CORRECTION) : s00.high;
#pragma GCC unroll 8
        for (int q = 0; q < WORDS; q++) {
            const float *x = b + (1 + 3 * q) * NR;
            const vi w0 = set_int(a + q), w1 = n > 1 ? set_int(a + LDA + q) : w0;
            three_digits(n, x, w0, w1, &s00, &s10);
            if (v > 1) three_digits(n, x + VL, w0, w1, &s01, &s11);
        }
        const vf x0 = v_load(b), x1 = v_load(b + VL);
        const vf w0 = v_set(a[SCALE]), w1 = n > 1 ? v_set(a[LDA + SCALE]) : w0;
        acc[0][0] = v_fma(sums_value(s00) * x0, w0, acc[0][0]);
        if (n > 1) acc[1][0] = v_fma(sums_value(s10) * x0, w1, acc[1][0]);
        if (v > 1) acc[0][1] = v_fma(sums_value(s01) * x1, w0, acc[0][1]);
        if (n > 1 && v > 1) acc[1][1] = v_fma(sums_value(s11) * x1, w1, acc[1][1]);
        if (!has_min) continue;
        const vf y0 = v_load(b + SUM_AT * NR), y1 = v_load(b + SUM_AT * NR + VL);
        const vf m0 = v_set(a[MIN]), m1 = n > 1 ? v_set(a[LDA + MIN]) : m0;
        acc[0][0] = v_fma(y0, m0, acc[0][0]);
        if (n > 1) acc[1][0] = v_fma(y0, m1, acc[1][0]);
        if (v > 1) acc[0][1] = v_fma(y1, m0, acc[0][1]);
        if (n > 1 && v > 1) acc[1][1] = v_fma(y1, m1, acc[1][1]);
    }
    store_sums(n, v, acc, c, NR, add);
}

#define TILE(kind, has_min, n, v)                                                           \
    VNNI static void kind##_##n##_##v(int64_t kc, const float *a, const float *b, float *c, \
                                      bool add)                                             \
    {                                                                                       \
        tile(n, v, has_min, kc, a, b, c, add);                                              \
    }
#define TILES(kind, has_min)                                                                       \
    TILE(kind, has_min, 1, 1)                                                                      \
    TILE(kind, has_min, 1, 2)                                                                      \
    TILE(kind, has_min, 2, 1)                                                                      \
    TILE(kind, has_min, 2, 2)                                                                      \
    static void tile_##kind(int n, int64_t kc, const float *a, const float *b, float *c, bool add, \
                            bool half)                                                             \
    {                                                                                              \
        for (; n > 1; n -= 2, a += 2 * LDA, c += 2 * NR)                                           \
            (half ? kind##_2_1 : kind##_2_2)(kc, a, b, c, add);                                    \
        if (n) (half ? kind##_1_1 : kind##_1_2)(kc, a, b, c, add);                                 \
    }
TILES(plain, false)
TILES(min, true)

void ISA(h3_cpu_digits_tile)(int n, int64_t columns, const float *a, const float *b, float *c,
                             bool add, bool half)
{
    tile_plain(n, columns / SPAN * SUM_AT, a, b, c, add, half);
}

/* ---------------------------------------------------------------- weights */

/* Rows [n0, n0 + n) of a weight whose parts all are plain: the row's first byte. */
static const uint8_t *row_of(const h3_weight *w, int64_t n)
{
    int i = 0;
    for (; n >= w->part[i].rows; i++)
        n -= w->part[i].rows;
    return (const uint8_t *)w->part[i].data + (size_t)n * w->part[i].row_bytes;
}

/* -128 times the sum of the bytes takes back the offset of x, of whose digits it is the highest. */
VNNI static void put_correction(float *to)
{
    const __m256i s = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1),
                                          _mm256_loadu_si256((const __m256i *)(const void *)to));
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    const int32_t correction = -128 * _mm_cvtsi128_si32(t);
    memcpy(to + CORRECTION, &correction, sizeof correction);
}

INLINE float load_half(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

/* Block b of a row: everything but the correction. */
static void q8_0_block(const uint8_t *row, int64_t b, float *to)
{
    memcpy(to, row + 34 * b + 2, SPAN);
    to[SCALE] = load_half(row + 34 * b);
}

/* Of 256 numbers with 6-bit scales and mins: nibbles, of q5_K with a fifth bit from `high`. */
INLINE void k_block(const uint8_t *super, const uint8_t *nibbles, const uint8_t *high, int j,
                    float *to)
{
    const uint8_t *s = super + 4;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(nibbles + 32 * (j / 2)));

    q = _mm256_and_si256(j & 1 ? _mm256_srli_epi16(q, 4) : q, _mm256_set1_epi8(15));
    if (high) {
        const __m256i bit = _mm256_set1_epi8((char)(1 << j));
        const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)high);
        const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(h, bit), bit);
        q = _mm256_or_si256(q, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
    }
    _mm256_storeu_si256((__m256i *)(void *)to, q);
    to[SCALE] = load_half(super) * (float)scale;
    to[MIN] = -(load_half(super + 2) * (float)min);
}

static void q4_k_block(const uint8_t *row, int64_t b, float *to)
{
    const uint8_t *super = row + 144 * (b / 8);
    k_block(super, super + 16, NULL, (int)(b % 8), to);
}

static void q5_k_block(const uint8_t *row, int64_t b, float *to)
{
    const uint8_t *super = row + 176 * (b / 8);
    k_block(super, super + 48, super + 16, (int)(b % 8), to);
}

/* What weights may be stored as. */
typedef struct h3_digit_form {
    uint8_t encoding, ggml_type;
    bool has_min;
    int16_t bytes;                                           ///< of 32 columns
    void (*block)(const uint8_t *row, int64_t b, float *to); ///< NULL: int8, scaled by rows
} form;

static const form forms[] = {{H3_ENC_INT8, 0, false, SPAN, NULL},
                             {H3_ENC_GGML, 8, false, 34, q8_0_block},
                             {H3_ENC_GGML, 12, true, 144 / 8, q4_k_block},
                             {H3_ENC_GGML, 13, true, 176 / 8, q5_k_block}};

/* That of all parts, nothing scaled or added on top; NULL: none. A turned weight meets a turned x,
 * if its groups are whole blocks and passes whole groups. */
static const form *form_of(const h3_weight *w)
{
    const int32_t group = w->part[0].group;
    const form *all = NULL;

    if (group && (group % SPAN || KC % group)) return NULL;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        if (forms[f].encoding == w->part[0].encoding &&
            (forms[f].encoding == H3_ENC_INT8 || forms[f].ggml_type == w->part[0].ggml_type))
            all = &forms[f];
    for (int i = 0; all && i < w->n_parts; i++) {
        const h3_weight_part *p = &w->part[i];
        if (p->encoding != all->encoding || p->in_scale || p->group != group || !p->row_bytes ||
            (p->encoding == H3_ENC_GGML && p->ggml_type != all->ggml_type))
            all = NULL;
    }
    return w->n_lora ? NULL : all;
}

static int64_t step_of(const h3_gemm *g)
{
    return SUM_AT + g->digits->has_min;
}

static void fill(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                 void *rows UNUSED)
{
    const h3_gemm *g = ctx;
    const form *f = g->digits;
    const int64_t first = k0 / step_of(g), end = (k0 + kc) / step_of(g);

    for (int64_t i = 0; i < n; i++) {
        const uint8_t *row = row_of(g->w, n0 + i);
        const float scale = f->block ? 0 : ISA(h3_cpu_row_scale)(g->w, n0 + i);
        float *to = dst + i * LDA;
        for (int64_t b = first; b < end; b++, to += BLOCK_A) {
            const int64_t left = g->w->cols - b * SPAN;
            if (f->block) {
                f->block(row, b, to);
            } else {
                if (left < SPAN) {
                    memset(to, 0, SPAN);
                    memcpy(to, row + b * SPAN, (size_t)left);
                } else {
                    memcpy(to, row + b * SPAN, SPAN); // two moves
                }
                to[SCALE] = scale;
            }
            put_correction(to);
        }
    }
}

static void ahead(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    const h3_gemm *g = ctx;
    const int64_t step = step_of(g), bytes = g->digits->bytes;

    for (int64_t i = n0; i < n0 + n; i++)
        for (int64_t k = k0 / step * bytes; k < (k0 + kc) / step * bytes; k += 64)
            __builtin_prefetch(row_of(g->w, i) + k, 0, 2);
}

/* ---------------------------------------------------------------- x */

/* What a row holds: exponents between these bounds leave room for all that is multiplied on. */
enum { HUGE_BLOCK = 1, TINY_BLOCK = 2, FAIR_BLOCK = 4, MIN_EXPONENT = -100, MAX_EXPONENT = 100 };

static bool is_odd(uint8_t held)
{
    return (held & HUGE_BLOCK) || (held & (TINY_BLOCK | FAIR_BLOCK)) == TINY_BLOCK;
}

/* 32 numbers of row s of x from column k on, 0 beyond the last. */
INLINE void get_block(const h3_gemm *g, int64_t s, int64_t k, vf out[2])
{
    const int64_t at = h3_row_offset(&g->x, s) + k, left = g->w->cols - k;

    for (int i = 0; i < 2; i++) {
        const int64_t n = left - i * VL;
        out[i] = n >= VL ? v_get(g->x.data, g->x.dtype, at + i * VL)
                 : n > 0 ? v_get_n(g->x.data, g->x.dtype, at + i * VL, (int)n)
                         : v_set(0);
    }
}

/* The exponent of the block's largest number; anything where row s has to be multiplied in f32. */
static int exponent_of(const h3_gemm *g, int64_t s, const vf x[2])
{
    const __m512i size = _mm512_set1_epi32(0x7fffffff); // bits order magnitudes, NaN above all
    const uint32_t most = (uint32_t)_mm512_reduce_max_epu32(_mm512_max_epu32(
        _mm512_and_si512((__m512i)x[0], size), _mm512_and_si512((__m512i)x[1], size)));
    const int e = (int)(most >> 23) - 127;
    const uint8_t is = e > MAX_EXPONENT ? HUGE_BLOCK : e >= MIN_EXPONENT ? FAIR_BLOCK : TINY_BLOCK;

    if (most) __atomic_fetch_or(&g->held[s], is, __ATOMIC_RELAXED);
    return e > MAX_EXPONENT ? MAX_EXPONENT : e < MIN_EXPONENT ? MIN_EXPONENT : e;
}

static float power_of_2(int e)
{
    const uint32_t bits = (uint32_t)(e + 127) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* 16 numbers -> 4 words of each digit: [4 columns][high, mid, low, nothing]. */
INLINE vf digits_of(vf x, vf scale)
{
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1));
    const vf t = v_min(x * scale, v_set(0x7fffffp0f)); // the largest may round up to 2^23
    const __m512i u = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)t), _mm512_set1_epi32(1 << 23));
    return (vf)_mm512_shuffle_epi8(u, order);
}

/* A block of up to VL rows, which may lie in `turned` already. */
static void pack_block(const h3_gemm *g, int64_t m0, int64_t m, int64_t k,
                       const float (*turned)[KC], float *dst)
{
    vf r[2][VL];

    for (int64_t j = 0; j < VL; j++) {
        const int64_t row = j < m ? j : m - 1;
        vf x[2];
        if (turned)
            memcpy(x, turned[row] + k % KC, sizeof x);
        else
            get_block(g, m0 + row, k, x);
        const int e = exponent_of(g, m0 + row, x);
        const vf scale = v_set(power_of_2(22 - e));
        r[0][j] = digits_of(x[0], scale);
        r[1][j] = digits_of(x[1], scale);
        dst[j] = power_of_2(e - 22 + 5);
        if (g->digits->has_min) dst[SUM_AT * NR + j] = _mm512_reduce_add_ps((__m512)(x[0] + x[1]));
    }
    for (int i = 0; i < 2; i++) {
        v_transpose(r[i]);
        for (int q = 0; q < WORDS / 2; q++)
            for (int digit = 0; digit < 3; digit++)
                v_store(dst + (1 + 3 * (i * WORDS / 2 + q) + digit) * NR, r[i][4 * q + digit]);
    }
}

/* Columns [k, k + n) of up to VL rows, turned as ConvRot turns a weight: k is that of a pass. */
static void turn(const h3_gemm *g, int64_t m0, int64_t m, int64_t k, int64_t n, float (*out)[KC])
{
    for (int64_t j = 0; j < m; j++) {
        for (int64_t i = 0; i < n; i += SPAN) {
            vf x[2];
            get_block(g, m0 + j, k + i, x);
            memcpy(out[j] + i, x, sizeof x);
        }
        ISA(h3_cpu_rotate_row)(out[j], n, g->w->part[0].group);
    }
}

static void pack(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const h3_gemm *g = ctx;
    const int64_t step = step_of(g), K = g->w->cols;
    const bool is_turned = g->w->part[0].group;
    _Alignas(64) float turned[VL][KC];

    for (int64_t j = 0; j < m; j += VL) {
        const int64_t rows = m - j < VL ? m - j : VL;
        for (int64_t b = 0; b < kc / step; b++) {
            const int64_t k = (k0 / step + b) * SPAN;
            if (is_turned && k % KC == 0) turn(g, m0 + j, rows, k, K - k < KC ? K - k : KC, turned);
            pack_block(g, m0 + j, rows, k, is_turned ? turned : NULL, dst + b * step * NR + j);
        }
    }
}

bool ISA(h3_cpu_digits)(const h3_dev *d, h3_gemm *g, h3_product *p)
{
    g->digits = d->backend->has_digits ? form_of(g->w) : NULL;
    if (!g->digits) return false;
    g->held = g->owned = calloc((size_t)p->m, 1);
    if (!g->held) return false; // f32 needs no more memory
    p->k = h3_ceil_div(g->w->cols, SPAN) * step_of(g);
    p->kc = KC / SPAN * step_of(g);
    p->tile = g->digits->has_min ? tile_min : tile_plain;
    p->fill = fill;
    p->ahead = ahead;
    p->pack = pack;
    p->row_scratch = 0;
    return true;
}

bool ISA(h3_cpu_digits_failed)(h3_gemm *g, int64_t m)
{
    bool any = false;

    for (int64_t s = 0; g->held && s < m; s++)
        any |= g->held[s] = is_odd(g->held[s]);
    g->only = g->held;
    return any;
}
#endif
