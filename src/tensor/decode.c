/**
 * Decoders; see decode.h.
 *
 * Every decoder is one plain loop over a block, written so that a compiler vectorises it, and is
 * compiled three times on x86 (baseline, AVX2, AVX-512); the widest one the machine has is taken at
 * run time. All variants give the same bits: products and sums are the same, contraction is off.
 *
 * The formats: ggml's block types follow ggml-quants.c (dequantize_row_*), e4m3/e2m1/e8m0 the OCP
 * MX specification 1.0, NVFP4 the "Multiply by the global scale" convention, ConvRot the regular
 * Hadamard basis H4 (x) ... (x) H4 / sqrt(group), which is symmetric and its own inverse.
 */
#include "decode.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "decode_iq.h"
#include "half.h"

#define INLINE static inline __attribute__((always_inline))

/* s eeee mmm, bias 7, no infinity; 0x7f is NaN. */
#define E4M3_SUB(m)    ((m)*0x1p-9f)
#define E4M3_ROW(e, p) 8 * (p), 9 * (p), 10 * (p), 11 * (p), 12 * (p), 13 * (p), 14 * (p), 15 * (p)
#define E4M3_HALF(S, LAST)                                                                    \
    S E4M3_SUB(0), S E4M3_SUB(1), S E4M3_SUB(2), S E4M3_SUB(3), S E4M3_SUB(4), S E4M3_SUB(5), \
        S E4M3_SUB(6), S E4M3_SUB(7), E4M3_ROW(1, S 0x1p-9f), E4M3_ROW(2, S 0x1p-8f),         \
        E4M3_ROW(3, S 0x1p-7f), E4M3_ROW(4, S 0x1p-6f), E4M3_ROW(5, S 0x1p-5f),               \
        E4M3_ROW(6, S 0x1p-4f), E4M3_ROW(7, S 0x1p-3f), E4M3_ROW(8, S 0x1p-2f),               \
        E4M3_ROW(9, S 0x1p-1f), E4M3_ROW(10, S 0x1p0f), E4M3_ROW(11, S 0x1p1f),               \
        E4M3_ROW(12, S 0x1p2f), E4M3_ROW(13, S 0x1p3f), E4M3_ROW(14, S 0x1p4f), S 256.0f,     \
        S 288.0f, S 320.0f, S 352.0f, S 384.0f, S 416.0f, S 448.0f, LAST
const float h3_e4m3[256] = {E4M3_HALF(+, NAN), E4M3_HALF(-, NAN)};

static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Quantiles of ggml's non-linear 4-bit types (kvalues_iq4nl). */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

float h3_e8m0(uint8_t b)
{
    if (b == 0) return 0.0f;
    return b == 255 ? NAN : ldexpf(1.0f, (int)b - 127);
}

/* Unaligned little-endian loads. */
INLINE uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

INLINE float load_f32(const void *p, int64_t i)
{
    float v;
    memcpy(&v, (const uint8_t *)p + 4 * i, 4);
    return v;
}

/* Branch-free, so that loops of it vectorise; same values as h3_f16_to_f32. */
INLINE float half_value(uint16_t h)
{
    uint32_t o = (uint32_t)(h & 0x7fff) << 13;
    const uint32_t e = o & 0x0f800000u;
    const uint32_t is_sub = 0u - (uint32_t)(e == 0), is_inf = 0u - (uint32_t)(e == 0x0f800000u);
    o += (112u << 23) + (is_inf & 112u << 23);
    const uint32_t sub = h3_f32_bits(h3_f32_from_bits(o + (1u << 23)) - 0x1p-14f);
    return h3_f32_from_bits((sub & is_sub) | (o & ~is_sub) | (uint32_t)(h & 0x8000) << 16);
}

/* e4m3 without a table, for loops: normal numbers are shifted into place, the rest is m * 2^-9. */
INLINE float e4m3_value(uint8_t b)
{
    const uint32_t m = b & 0x7f;
    const uint32_t is_sub = 0u - (uint32_t)(m < 8), is_nan = 0u - (uint32_t)(m == 0x7f);
    const uint32_t sub = h3_f32_bits((float)(int32_t)m * 0x1p-9f),
                   normal = (m << 20) + (120u << 23);
    return h3_f32_from_bits((sub & is_sub) | (normal & ~is_sub) | (is_nan & 0x7fc00000u) |
                            (uint32_t)(b & 0x80) << 24);
}

INLINE void f16_run(const uint8_t *s, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = half_value(load16(s + 2 * i));
}

INLINE void bf16_run(const uint8_t *s, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = h3_bf16_to_f32(load16(s + 2 * i));
}

/* ---- ggml blocks: one function per type, `b` the block, `y` its values ---- */

INLINE void q4_0(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b));
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b[2 + j] & 15) - 8);
        y[j + 16] = d * (float)((b[2 + j] >> 4) - 8);
    }
}

INLINE void q4_1(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b)), m = half_value(load16(b + 2));
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(b[4 + j] & 15) + m;
        y[j + 16] = d * (float)(b[4 + j] >> 4) + m;
    }
}

INLINE void q5_low_high(const uint8_t *qh, const uint8_t *qs, int32_t *restrict q)
{
    uint32_t h;
    memcpy(&h, qh, 4);
    for (int j = 0; j < 16; j++) {
        q[j] = (qs[j] & 15) | (int32_t)(h >> j << 4 & 16);
        q[j + 16] = qs[j] >> 4 | (int32_t)(h >> (j + 16) << 4 & 16);
    }
}

INLINE void q5_0(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b));
    int32_t q[32];
    q5_low_high(b + 2, b + 6, q);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(q[j] - 16);
}

INLINE void q5_1(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b)), m = half_value(load16(b + 2));
    int32_t q[32];
    q5_low_high(b + 4, b + 8, q);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)q[j] + m;
}

INLINE void q8_0(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b));
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)b[2 + j];
}

/* 256 = 2 halves x 4 shifts x 2 groups of 16. */
INLINE void q2_k(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b + 80)), m = half_value(load16(b + 82));
    for (int h = 0; h < 2; h++)
        for (int s = 0; s < 4; s++)
            for (int g = 0; g < 2; g++) {
                const uint8_t *q = b + 16 + 32 * h + 16 * g, sc = b[8 * h + 2 * s + g];
                const float dl = d * (float)(sc & 15), ml = m * (float)(sc >> 4);
                for (int l = 0; l < 16; l++)
                    y[l] = dl * (float)(q[l] >> (2 * s) & 3) - ml;
                y += 16;
            }
}

/* 16 scales of 6 bits: low 4 bits in bytes 0-7 (two per byte), high 2 bits in bytes 8-11. */
INLINE void q3_k(const uint8_t *b, float *restrict y)
{
    const uint8_t *hm = b, *qs = b + 32, *sc = b + 96;
    const float d = half_value(load16(b + 108));
    for (int h = 0; h < 2; h++)
        for (int s = 0; s < 4; s++)
            for (int g = 0; g < 2; g++) {
                const int i = 8 * h + 2 * s + g;
                const int low = i < 8 ? sc[i] & 15 : sc[i - 8] >> 4;
                const float dl =
                    d * (float)((low | (sc[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32);
                const uint8_t *q = qs + 32 * h + 16 * g, *m = hm + 16 * g;
                const int bit = 4 * h + s;
                for (int l = 0; l < 16; l++)
                    y[l] = dl * (float)((q[l] >> (2 * s) & 3) - (m[l] >> bit & 1 ? 0 : 4));
                y += 16;
            }
}

/* 8 pairs of 6-bit (scale, min) in 12 bytes. */
INLINE void k4_scale(const uint8_t *q, int j, int *sc, int *m)
{
    if (j < 4) {
        *sc = q[j] & 63;
        *m = q[j + 4] & 63;
    } else {
        *sc = (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        *m = q[j + 4] >> 4 | (q[j] >> 6) << 4;
    }
}

INLINE void q4_k(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b)), dmin = half_value(load16(b + 2));
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = b + 16 + 32 * (j / 2);
        const int shift = 4 * (j & 1);
        int sc, m;
        k4_scale(b + 4, j, &sc, &m);
        const float dl = d * (float)sc, ml = dmin * (float)m;
        for (int l = 0; l < 32; l++)
            y[32 * j + l] = dl * (float)(q[l] >> shift & 15) - ml;
    }
}

INLINE void q5_k(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b)), dmin = half_value(load16(b + 2));
    const uint8_t *qh = b + 16;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = b + 48 + 32 * (j / 2);
        const int shift = 4 * (j & 1);
        int sc, m;
        k4_scale(b + 4, j, &sc, &m);
        const float dl = d * (float)sc, ml = dmin * (float)m;
        for (int l = 0; l < 32; l++)
            y[32 * j + l] = dl * (float)((q[l] >> shift & 15) + ((qh[l] >> j & 1) << 4)) - ml;
    }
}

INLINE void q6_k(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b + 208));
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 4; k++) { // which 32 of the half: nibble k / 2, byte half k % 2
            const uint8_t *ql = b + 64 * h + 32 * (k & 1), *qh = b + 128 + 32 * h;
            const int8_t *sc = (const int8_t *)b + 192 + 8 * h + 2 * k;
            const float d0 = d * (float)sc[0], d1 = d * (float)sc[1];
            float *z = y + 128 * h + 32 * k;
            for (int l = 0; l < 32; l++) {
                const int q = (ql[l] >> (k & 2 ? 4 : 0) & 15) | (qh[l] >> (2 * k) & 3) << 4;
                z[l] = (l < 16 ? d0 : d1) * (float)(q - 32);
            }
        }
}

INLINE void iq4_nl(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b));
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)iq4_values[b[2 + j] & 15];
        y[j + 16] = d * (float)iq4_values[b[2 + j] >> 4];
    }
}

INLINE void iq4_xs(const uint8_t *b, float *restrict y)
{
    const float d = half_value(load16(b));
    const unsigned high = load16(b + 2);
    for (int j = 0; j < 8; j++) {
        const int ls = (b[4 + j / 2] >> (4 * (j & 1)) & 15) | (int)(high >> (2 * j) & 3) << 4;
        const float dl = d * (float)(ls - 32);
        const uint8_t *q = b + 8 + 16 * j;
        for (int l = 0; l < 16; l++) {
            y[32 * j + l] = dl * (float)iq4_values[q[l] & 15];
            y[32 * j + l + 16] = dl * (float)iq4_values[q[l] >> 4];
        }
    }
}

INLINE void mxfp4(const uint8_t *b, float *restrict y)
{
    const float d = ldexpf(1.0f, (int)b[0] - 127);
    for (int j = 0; j < 16; j++) {
        y[j] = d * e2m1[b[1 + j] & 15];
        y[j + 16] = d * e2m1[b[1 + j] >> 4];
    }
}

enum {
    GG_F32 = 0,
    GG_F16 = 1,
    GG_Q4_0 = 2,
    GG_Q4_1 = 3,
    GG_Q5_0 = 6,
    GG_Q5_1 = 7,
    GG_Q8_0 = 8,
    GG_Q2_K = 10,
    GG_Q3_K = 11,
    GG_Q4_K = 12,
    GG_Q5_K = 13,
    GG_Q6_K = 14,
    GG_IQ2_XXS = 16,
    GG_IQ2_XS = 17,
    GG_IQ3_XXS = 18,
    GG_IQ1_S = 19,
    GG_IQ4_NL = 20,
    GG_IQ3_S = 21,
    GG_IQ2_S = 22,
    GG_IQ4_XS = 23,
    GG_I8 = 24,
    GG_IQ1_M = 29,
    GG_BF16 = 30,
    GG_TQ1_0 = 34,
    GG_TQ2_0 = 35,
    GG_MXFP4 = 39
};

static const h3_ggml_info ggml_types[] = {
    [0] = {"F32", 1, 4, true},         [1] = {"F16", 1, 2, true},
    [2] = {"Q4_0", 32, 18, true},      [3] = {"Q4_1", 32, 20, true},
    [6] = {"Q5_0", 32, 22, true},      [7] = {"Q5_1", 32, 24, true},
    [8] = {"Q8_0", 32, 34, true},      [9] = {"Q8_1", 32, 36, false},
    [10] = {"Q2_K", 256, 84, true},    [11] = {"Q3_K", 256, 110, true},
    [12] = {"Q4_K", 256, 144, true},   [13] = {"Q5_K", 256, 176, true},
    [14] = {"Q6_K", 256, 210, true},   [15] = {"Q8_K", 256, 292, false},
    [16] = {"IQ2_XXS", 256, 66, true}, [17] = {"IQ2_XS", 256, 74, true},
    [18] = {"IQ3_XXS", 256, 98, true}, [19] = {"IQ1_S", 256, 50, true},
    [20] = {"IQ4_NL", 32, 18, true},   [21] = {"IQ3_S", 256, 110, true},
    [22] = {"IQ2_S", 256, 82, true},   [23] = {"IQ4_XS", 256, 136, true},
    [24] = {"I8", 1, 1, true},         [25] = {"I16", 1, 2, true},
    [26] = {"I32", 1, 4, true},        [27] = {"I64", 1, 8, true},
    [28] = {"F64", 1, 8, true},        [29] = {"IQ1_M", 256, 56, true},
    [30] = {"BF16", 1, 2, true},       [34] = {"TQ1_0", 256, 54, true},
    [35] = {"TQ2_0", 256, 66, true},   [39] = {"MXFP4", 32, 17, true},
    [40] = {"NVFP4", 64, 36, false},   [41] = {"Q1_0", 128, 18, false},
};

h3_ggml_info h3_ggml_type(uint32_t type)
{
    if (type < sizeof ggml_types / sizeof *ggml_types) return ggml_types[type];
    return (h3_ggml_info){0};
}

INLINE void ggml_block(int type, const uint8_t *b, float *restrict y)
{
    switch (type) {
    case GG_Q4_0:
        q4_0(b, y);
        break;
    case GG_Q4_1:
        q4_1(b, y);
        break;
    case GG_Q5_0:
        q5_0(b, y);
        break;
    case GG_Q5_1:
        q5_1(b, y);
        break;
    case GG_Q8_0:
        q8_0(b, y);
        break;
    case GG_Q2_K:
        q2_k(b, y);
        break;
    case GG_Q3_K:
        q3_k(b, y);
        break;
    case GG_Q4_K:
        q4_k(b, y);
        break;
    case GG_Q5_K:
        q5_k(b, y);
        break;
    case GG_Q6_K:
        q6_k(b, y);
        break;
    case GG_IQ4_NL:
        iq4_nl(b, y);
        break;
    case GG_IQ4_XS:
        iq4_xs(b, y);
        break;
    case GG_IQ2_XXS:
        iq2_xxs(half_value(load16(b)), b, y);
        break;
    case GG_IQ2_XS:
        iq2_xs(half_value(load16(b)), b, y);
        break;
    case GG_IQ2_S:
        iq2_s(half_value(load16(b)), b, y);
        break;
    case GG_IQ3_XXS:
        iq3_xxs(half_value(load16(b)), b, y);
        break;
    case GG_IQ3_S:
        iq3_s(half_value(load16(b)), b, y);
        break;
    case GG_IQ1_S:
        iq1_s(half_value(load16(b)), b, y);
        break;
    case GG_TQ1_0:
        tq1_0(half_value(load16(b + 52)), b, y);
        break;
    case GG_TQ2_0:
        tq2_0(half_value(load16(b + 64)), b, y);
        break;
    case GG_IQ1_M:
        iq1_m(half_value(iq1_m_half(b)), b, y);
        break;
    case GG_MXFP4:
        mxfp4(b, y);
        break;
    default:
        assert(!"decodable ggml type");
        break;
    }
}

/* Whole blocks go straight to `out`; the cut ones at both ends through a small buffer. */
INLINE void ggml_run(int type, const uint8_t *blocks, int64_t from, int64_t n, float *restrict out)
{
    const int64_t len = ggml_types[type].block, bytes = ggml_types[type].bytes;
    const uint8_t *b = blocks + from / len * bytes;
    int64_t skip = from % len;
    float part[256];

    if (type == GG_F32) {
        memcpy(out, b, (size_t)n * 4);
        return;
    }
    if (type == GG_F16) {
        f16_run(b, n, out);
        return;
    }
    if (type == GG_BF16) {
        bf16_run(b, n, out);
        return;
    }
    for (; n > 0; b += bytes) {
        if (skip == 0 && n >= len) {
            ggml_block(type, b, out);
            out += len;
            n -= len;
            continue;
        }
        const int64_t take = len - skip < n ? len - skip : n;
        ggml_block(type, b, part);
        memcpy(out, part + skip, (size_t)take * sizeof *out);
        out += take;
        n -= take;
        skip = 0;
    }
}

/* ---- companions ---- */

typedef float f32x4 __attribute__((vector_size(16)));

INLINE f32x4 load4(const float *p)
{
    f32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store4(float *p, f32x4 v)
{
    memcpy(p, &v, sizeof v);
}

/* (a, b, c, d) = H4 (a, b, c, d). Macros: arrays of vectors stay in memory with some compilers. */
#define BUTTERFLY(a, b, c, d)                                       \
    do {                                                            \
        const f32x4 p_ = a + b, q_ = a - b, r_ = c + d, s_ = c - d; \
        a = p_ + s_;                                                \
        b = p_ - s_;                                                \
        c = q_ + r_;                                                \
        d = r_ - q_;                                                \
    } while (0)

#define TRANSPOSE(a, b, c, d)                                       \
    do {                                                            \
        const f32x4 p_ = __builtin_shufflevector(a, b, 0, 4, 1, 5); \
        const f32x4 q_ = __builtin_shufflevector(a, b, 2, 6, 3, 7); \
        const f32x4 r_ = __builtin_shufflevector(c, d, 0, 4, 1, 5); \
        const f32x4 s_ = __builtin_shufflevector(c, d, 2, 6, 3, 7); \
        a = __builtin_shufflevector(p_, r_, 0, 1, 4, 5);            \
        b = __builtin_shufflevector(p_, r_, 2, 3, 6, 7);            \
        c = __builtin_shufflevector(q_, s_, 0, 1, 4, 5);            \
        d = __builtin_shufflevector(q_, s_, 2, 3, 6, 7);            \
    } while (0)

/* The two lowest base-4 digits: rows and columns of a 4 x 4 tile. `scale` is a power of two. */
INLINE void rotate_tile(float *v, float scale)
{
    f32x4 a = load4(v), b = load4(v + 4), c = load4(v + 8), d = load4(v + 12);
    BUTTERFLY(a, b, c, d);
    TRANSPOSE(a, b, c, d);
    BUTTERFLY(a, b, c, d);
    TRANSPOSE(a, b, c, d);
    store4(v, a * scale);
    store4(v + 4, b * scale);
    store4(v + 8, c * scale);
    store4(v + 12, d * scale);
}

/* One higher digit: four runs of `step` values. */
INLINE void rotate_runs(float *v, int32_t step)
{
    for (int32_t j = 0; j < step; j += 4) {
        f32x4 a = load4(v + j), b = load4(v + j + step), c = load4(v + j + 2 * step),
              d = load4(v + j + 3 * step);
        BUTTERFLY(a, b, c, d);
        store4(v + j, a);
        store4(v + j + step, b);
        store4(v + j + 2 * step, c);
        store4(v + j + 3 * step, d);
    }
}

/* y = y H_g / sqrt(g) on every run of g values: radix-4 butterflies over the base-4 digits. */
INLINE void rotate_run(float *restrict y, int64_t n, int32_t g)
{
    float scale = 1.0f;

    for (int32_t k = g; k > 1; k /= 4)
        scale *= 0.5f;
    for (float *v = y; v < y + n; v += g) {
        if (g == 4) {
            const float a = v[0], b = v[1], c = v[2], d = v[3];
            v[0] = ((a + b) + (c - d)) * scale;
            v[1] = ((a + b) - (c - d)) * scale;
            v[2] = ((a - b) + (c + d)) * scale;
            v[3] = ((c + d) - (a - b)) * scale;
            continue;
        }
        for (int32_t i = 0; i < g; i += 16)
            rotate_tile(v + i, scale);
        for (int32_t step = 16; step < g; step *= 4)
            for (int32_t i = 0; i < g; i += 4 * step)
                rotate_runs(v + i, step);
    }
}

/* Byte of the block scale (row, col); `cols` scale columns per row. */
INLINE uint8_t scale_byte(const h3_weight_part *p, int64_t row, int64_t col, int64_t cols)
{
    const uint8_t *s = p->scale;
    return p->swizzled ? s[h3_swizzled(row, col, cols)] : s[row * cols + col];
}

INLINE float row_scale(const h3_weight_part *p, int64_t row)
{
    return p->n_scale > 1 ? load_f32(p->scale, row) : p->global;
}

INLINE void fp8_row(const h3_weight_part *p, const uint8_t *s, int64_t row, float *restrict out)
{
    const float scale = row_scale(p, row);
    for (int64_t c = 0; c < p->cols; c++)
        out[c] = e4m3_value(s[c]) * scale;
}

INLINE void mxfp8_row(const h3_weight_part *p, const uint8_t *s, int64_t row, float *restrict out)
{
    const int64_t cols = p->cols / 32;
    for (int64_t k = 0; k < cols; k++) {
        const float scale = h3_e8m0(scale_byte(p, row, k, cols));
        for (int l = 0; l < 32; l++)
            out[32 * k + l] = e4m3_value(s[32 * k + l]) * scale;
    }
}

INLINE void int8_row(const h3_weight_part *p, const uint8_t *s, int64_t row, float *restrict out)
{
    const float scale = row_scale(p, row);
    for (int64_t c = 0; c < p->cols; c++)
        out[c] = (float)(int8_t)s[c] * scale;
}

/* q = clamp(round(codebook[code] * s_rel), +-127); value = q * s_channel + corr. Low nibble first.
 */
INLINE void w4a8_row(const h3_weight_part *p, const uint8_t *s, int64_t row, float *restrict out)
{
    const int64_t b = p->block, groups = p->cols / b;
    const float ch = load_f32(p->scale2, row);
    float book[16];

    for (int i = 0; i < 16; i++)
        book[i] = p->aux ? load_f32(p->aux, i) : (float)(i - 8);
    for (int64_t k = 0; k < groups; k++) {
        const float rel = h3_e4m3[((const uint8_t *)p->scale)[row * groups + k]];
        const float add = p->corr ? load_f32(p->corr, k * p->full_rows + row) : 0.0f;
        float lut[16];
        for (int i = 0; i < 16; i++) {
            float q = book[i] * rel;
            q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
            q = (q + 0x1.8p23f) - 0x1.8p23f; // to nearest, ties to even
            lut[i] = q * ch + add;
        }
        for (int64_t c = k * b; c < (k + 1) * b; c += 2) {
            out[c] = lut[s[c / 2] & 15];
            out[c + 1] = lut[s[c / 2] >> 4];
        }
    }
}

typedef uint8_t u8x8 __attribute__((vector_size(8)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));

/* One block of 16: e2m1 codes are shifted into place as floats; 0 and 0.5 are the subnormal ones.
 */
INLINE void nvfp4_block(const uint8_t *s, int even, float scale, float global, float *out)
{
    u8x8 raw;
    u32x8 c[2], m, is_sub;
    f32x8 v[2];

    memcpy(&raw, s, sizeof raw);
    c[0] = __builtin_convertvector(raw, u32x8) >> even;
    c[1] = __builtin_convertvector(raw, u32x8) >> (4 - even);
    for (int k = 0; k < 2; k++) {
        m = c[k] & 7;
        is_sub = (u32x8)(m < 2);
        v[k] = (f32x8)((m * 0x3f000000u & is_sub) | (((m << 22) + (126u << 23)) & ~is_sub) |
                       (c[k] & 8) << 28);
        v[k] = v[k] * scale * global; // the first product is exact
    }
    const f32x8 lo = __builtin_shufflevector(v[0], v[1], 0, 8, 1, 9, 2, 10, 3, 11);
    const f32x8 hi = __builtin_shufflevector(v[0], v[1], 4, 12, 5, 13, 6, 14, 7, 15);
    memcpy(out, &lo, sizeof lo);
    memcpy(out + 8, &hi, sizeof hi);
}

INLINE void nvfp4_row(const h3_weight_part *p, const uint8_t *s, int64_t row, float *restrict out)
{
    const int64_t cols = p->cols / 16;

    for (int64_t k = 0; k < cols; k++)
        nvfp4_block(s + 8 * k, p->nibble_high ? 4 : 0, h3_e4m3[scale_byte(p, row, k, cols)],
                    p->global, out + 16 * k);
}

INLINE void rows_body(const h3_weight_part *p, int64_t row, int64_t n, float *restrict out)
{
    for (int64_t r = row; r < row + n; r++, out += p->cols) {
        const uint8_t *s = (const uint8_t *)p->data + (size_t)r * p->row_bytes;
        const int64_t full = p->row0 + r; // row of the file's tensor: indexes the companions
        switch (p->encoding) {
        case H3_ENC_F32:
            memcpy(out, s, (size_t)p->cols * 4);
            break;
        case H3_ENC_BF16:
            bf16_run(s, p->cols, out);
            break;
        case H3_ENC_F16:
            f16_run(s, p->cols, out);
            break;
        case H3_ENC_FP8_SCALED:
            fp8_row(p, s, full, out);
            break;
        case H3_ENC_MXFP8:
            mxfp8_row(p, s, full, out);
            break;
        case H3_ENC_INT8:
            int8_row(p, s, full, out);
            break;
        case H3_ENC_W4A8:
            w4a8_row(p, s, full, out);
            break;
        case H3_ENC_NVFP4:
            nvfp4_row(p, s, full, out);
            break;
        case H3_ENC_GGML:
            ggml_run(p->ggml_type, s, p->row_bytes ? 0 : full * p->cols, p->cols, out);
            break;
        default:
            assert(!"known encoding");
            break;
        }
        if (p->group) rotate_run(out, p->cols, p->group);
    }
}

/* out[r, c0 + c] += sum_j (scale * b[map(r), j]) * a[j, c0 + c], a stripe of columns at a time so
 * that the stripe of `out` stays in cache. */
enum { STRIPE = 512 };

INLINE void plain_run(uint8_t enc, const uint8_t *s, int64_t n, float *restrict out)
{
    if (enc == H3_ENC_F32)
        memcpy(out, s, (size_t)n * 4);
    else if (enc == H3_ENC_BF16)
        bf16_run(s, n, out);
    else
        f16_run(s, n, out);
}

INLINE void lora_body(const h3_lora *l, int64_t row, int64_t n, int64_t cols, float *restrict out)
{
    const h3_weight_part *a = &l->a, *b = &l->b;
    const size_t width = a->encoding == H3_ENC_F32 ? 4 : 2;
    const size_t b_width = b->encoding == H3_ENC_F32 ? 4 : 2;
    float stripe[STRIPE];

    for (int64_t c0 = 0; c0 < cols; c0 += STRIPE) {
        const int64_t nc = cols - c0 < STRIPE ? cols - c0 : STRIPE;
        for (int64_t j = 0; j < a->rows; j++) {
            plain_run(a->encoding,
                      (const uint8_t *)a->data + (size_t)j * a->row_bytes + (size_t)c0 * width, nc,
                      stripe);
            for (int64_t r = 0; r < n; r++) {
                const int64_t at = h3_lora_row(l, row + r);
                float f, *y = out + r * cols + c0;
                if (at < 0) continue;
                plain_run(b->encoding,
                          (const uint8_t *)b->data + (size_t)at * b->row_bytes +
                              (size_t)j * b_width,
                          1, &f);
                f *= l->scale;
                for (int64_t c = 0; c < nc; c++)
                    y[c] += f * stripe[c];
            }
        }
    }
}

INLINE void scale_cols_body(const float *in_scale, int64_t n, int64_t cols, float *restrict out)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < cols; c++)
            out[r * cols + c] *= load_f32(in_scale, c);
}

INLINE void dtype_body(h3_dtype t, const uint8_t *s, int64_t n, float *restrict out)
{
    switch (t) {
    case H3_F32:
        memcpy(out, s, (size_t)n * 4);
        return;
    case H3_BF16:
        bf16_run(s, n, out);
        return;
    case H3_F16:
        f16_run(s, n, out);
        return;
    case H3_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] = e4m3_value(s[i]);
        return;
    default:
        break;
    }
    for (int64_t i = 0; i < n; i++, s += h3_dtype_bytes(t)) {
        int64_t i64 = 0;
        int32_t i32 = 0;
        double f64 = 0;
        switch (t) {
        case H3_U8:
        case H3_BOOL:
            out[i] = (float)s[0];
            break;
        case H3_I8:
            out[i] = (float)(int8_t)s[0];
            break;
        case H3_I16:
            out[i] = (float)(int16_t)load16(s);
            break;
        case H3_I32:
            memcpy(&i32, s, 4);
            out[i] = (float)i32;
            break;
        case H3_I64:
            memcpy(&i64, s, 8);
            out[i] = (float)i64;
            break;
        case H3_F64:
            memcpy(&f64, s, 8);
            out[i] = (float)f64;
            break;
        case H3_F8_E5M2:
            out[i] = half_value((uint16_t)(s[0] << 8));
            break; // same exponent width
        case H3_F8_E8M0:
            out[i] = h3_e8m0(s[0]);
            break;
        default:
            assert(!"dtype");
            out[i] = NAN;
            break;
        }
    }
}

/* ---- three builds of everything ---- */

typedef struct decoders {
    void (*rows)(const h3_weight_part *p, int64_t row, int64_t n, float *out);
    void (*ggml)(int type, const uint8_t *b, int64_t from, int64_t n, float *out);
    void (*lora)(const h3_lora *l, int64_t row, int64_t n, int64_t cols, float *out);
    void (*scale_cols)(const float *in_scale, int64_t n, int64_t cols, float *out);
    void (*dtype)(h3_dtype t, const uint8_t *s, int64_t n, float *out);
} decoders;

#define BUILD(name, ATTR)                                                                      \
    ATTR static void rows_##name(const h3_weight_part *p, int64_t row, int64_t n, float *out)  \
    {                                                                                          \
        rows_body(p, row, n, out);                                                             \
    }                                                                                          \
    ATTR static void ggml_##name(int t, const uint8_t *b, int64_t from, int64_t n, float *out) \
    {                                                                                          \
        ggml_run(t, b, from, n, out);                                                          \
    }                                                                                          \
    ATTR static void lora_##name(const h3_lora *l, int64_t row, int64_t n, int64_t cols,       \
                                 float *out)                                                   \
    {                                                                                          \
        lora_body(l, row, n, cols, out);                                                       \
    }                                                                                          \
    ATTR static void scale_##name(const float *s, int64_t n, int64_t cols, float *out)         \
    {                                                                                          \
        scale_cols_body(s, n, cols, out);                                                      \
    }                                                                                          \
    ATTR static void dtype_##name(h3_dtype t, const uint8_t *s, int64_t n, float *out)         \
    {                                                                                          \
        dtype_body(t, s, n, out);                                                              \
    }                                                                                          \
    static const decoders build_##name = {rows_##name, ggml_##name, lora_##name, scale_##name, \
                                          dtype_##name};

BUILD(base, )
#if defined(__x86_64__)
BUILD(avx2, __attribute__((target("avx2"))))
BUILD(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))
#endif

static int forced_level = -1;

int h3_decode_best_level(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 2;
    if (__builtin_cpu_supports("avx2")) return 1;
#endif
    return 0;
}

void h3_decode_use_level(int level)
{
    forced_level = level;
}

static const decoders *best(void)
{
#if defined(__x86_64__)
    static const decoders *const builds[] = {&build_base, &build_avx2, &build_avx512};
    return builds[forced_level >= 0 ? forced_level : h3_decode_best_level()];
#else
    return &build_base;
#endif
}

void h3_weight_decode_rows(const h3_weight_part *p, int64_t row, int64_t n, float *out)
{
    assert(row >= 0 && n >= 0 && row + n <= p->rows);
    best()->rows(p, row, n, out);
}

void h3_weight_rows(const h3_weight *w, int64_t row, int64_t n, float *out)
{
    const decoders *use = best();
    int64_t first = 0;

    assert(row >= 0 && n >= 0 && row + n <= w->rows);
    for (int i = 0; i < w->n_parts; i++) {
        const h3_weight_part *p = &w->part[i];
        const int64_t lo = row > first ? row : first;
        const int64_t hi = row + n < first + p->rows ? row + n : first + p->rows;
        if (lo < hi) {
            float *y = out + (lo - row) * w->cols;
            use->rows(p, lo - first, hi - lo, y);
            if (p->in_scale) use->scale_cols(p->in_scale, hi - lo, w->cols, y);
        }
        first += p->rows;
    }
    for (int i = 0; i < w->n_lora; i++)
        use->lora(&w->lora[i], row, n, w->cols, out);
}

void h3_decode_ggml(uint8_t type, const void *blocks, int64_t from, int64_t n, float *out)
{
    assert(h3_ggml_type(type).can_decode);
    if (type >= GG_I8 && type <= 28) { // plain integers and doubles
        static const uint8_t dtypes[] = {H3_I8, H3_I16, H3_I32, H3_I64, H3_F64};
        const h3_dtype t = (h3_dtype)dtypes[type - GG_I8];
        best()->dtype(t, (const uint8_t *)blocks + (size_t)from * h3_dtype_bytes(t), n, out);
        return;
    }
    best()->ggml(type, blocks, from, n, out);
}

void h3_decode_dtype(h3_dtype t, const void *src, int64_t n, float *out)
{
    best()->dtype(t, src, n, out);
}
