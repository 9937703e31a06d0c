/**
 * Vectors of float as wide as this compilation's machine. Every file that includes this is compiled
 * once per instruction set (see cpu.cmake); the vector extensions of gcc and clang carry most of
 * the arithmetic, intrinsics only what they lack. Products and sums are never contracted unless
 * v_fma is written, so entries with stated roundings stay exact.
 */
#ifndef H3_CPU_LANES_H
#define H3_CPU_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "num.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX2__)
#define VL 8
#else
#define VL 4
#endif

#define INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));

INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vf v_set(float x)
{
#if VL == 16
    return (vf)_mm512_set1_ps(x);
#elif VL == 8
    return (vf)_mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}

/** a b + c: one rounding where the machine has it, two on the portable path. */
INLINE vf v_fma(vf a, vf b, vf c)
{
#if VL == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/** Lanes of a where the mask is all ones, of b where it is zero. */
INLINE vf v_pick(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

INLINE vf v_max(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return v_pick(a > b, a, b);
#endif
}

INLINE vf v_min(vf a, vf b)
{
#if VL == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VL == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return v_pick(a < b, a, b);
#endif
}

/** Lane i is number at[i] of the 2 VL numbers {a, b}. */
INLINE vf v_permute2(vf a, vf b, const int32_t *at)
{
#if VL == 16
    return (vf)_mm512_permutex2var_ps((__m512)a, _mm512_loadu_si512(at), (__m512)b);
#elif VL == 8
    const __m256i i = _mm256_loadu_si256((const __m256i *)at);
    const __m256 from_b = _mm256_castsi256_ps(_mm256_cmpgt_epi32(i, _mm256_set1_epi32(VL - 1)));
    return (vf)_mm256_blendv_ps(_mm256_permutevar8x32_ps((__m256)a, i),
                                _mm256_permutevar8x32_ps((__m256)b, i), from_b);
#else
    vf v;
    for (int i = 0; i < VL; i++)
        v[i] = at[i] < VL ? a[at[i]] : b[at[i] - VL];
    return v;
#endif
}

/** Sum of the lanes, always in the same order. */
INLINE float v_sum(vf v)
{
    float t[VL];
    v_store(t, v);
    for (int n = VL / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            t[i] += t[i + n];
    return t[0];
}

INLINE vf v_from_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/** Lanes rounded to bf16, as f32 bits: nearest, ties to even; NaN stays NaN. */
INLINE vu v_bf16_bits(vf v)
{
    const vu u = (vu)v;
    const vu r = u + 0x7fff + (u >> 16 & 1);
    const vu is_nan = (vu)(v != v);
    return (r & ~is_nan) | ((u | 0x400000) & is_nan);
}

INLINE vf v_round_bf16(vf v)
{
    return (vf)(v_bf16_bits(v) & 0xffff0000u);
}

INLINE void v_to_bf16(uint16_t *p, vf v)
{
    const vh h = __builtin_convertvector(v_bf16_bits(v) >> 16, vh);
    memcpy(p, &h, sizeof h);
}

/** VL (or n < VL) elements of an activation dtype from element i on; missing lanes are zero. */
INLINE vf v_get(const void *p, uint8_t dtype, int64_t i)
{
    return dtype == H3_F32 ? v_load((const float *)p + i) : v_from_bf16((const uint16_t *)p + i);
}

INLINE vf v_get_n(const void *p, uint8_t dtype, int64_t i, int n)
{
#if VL == 16
    const __mmask16 lanes = (__mmask16)((1u << n) - 1);
    if (dtype == H3_F32) return (vf)_mm512_maskz_loadu_ps(lanes, (const float *)p + i);
    const __m256i h = _mm256_maskz_loadu_epi16(lanes, (const uint16_t *)p + i);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#else
    if (dtype == H3_F32) {
        float t[VL] = {0};
        memcpy(t, (const float *)p + i, (size_t)n * 4);
        return v_load(t);
    }
    uint16_t t[VL] = {0};
    memcpy(t, (const uint16_t *)p + i, (size_t)n * 2);
    return v_from_bf16(t);
#endif
}

INLINE void v_put(void *p, uint8_t dtype, int64_t i, vf v)
{
    if (dtype == H3_F32)
        v_store((float *)p + i, v);
    else
        v_to_bf16((uint16_t *)p + i, v);
}

INLINE void v_put_n(void *p, uint8_t dtype, int64_t i, vf v, int n)
{
#if VL == 16
    const __mmask16 lanes = (__mmask16)((1u << n) - 1);
    if (dtype == H3_F32) {
        _mm512_mask_storeu_ps((float *)p + i, lanes, (__m512)v);
        return;
    }
    const __m256i h = _mm512_cvtepi32_epi16((__m512i)(v_bf16_bits(v) >> 16));
    _mm256_mask_storeu_epi16((uint16_t *)p + i, lanes, h);
#else
    if (dtype == H3_F32) {
        float t[VL];
        v_store(t, v);
        memcpy((float *)p + i, t, (size_t)n * 4);
    } else {
        uint16_t t[VL];
        v_to_bf16(t, v);
        memcpy((uint16_t *)p + i, t, (size_t)n * 2);
    }
#endif
}

/** v rounded as `dtype` keeps it. */
INLINE vf v_round(uint8_t dtype, vf v)
{
    return dtype == H3_BF16 ? v_round_bf16(v) : v;
}

/**
 * e^x, error about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a degree-6 polynomial in r (Cephes), and
 * the exponent put back by two factors so that nothing overflows early. 0 below -103, infinity
 * above 88.73, NaN for NaN.
 */
INLINE vf v_exp(vf x)
{
    const vf t = v_min(v_set(88.8f), v_max(v_set(-105.0f), x)); // x second: NaN stays
    const vf magic = v_set(0x1.8p23f);
    const vf n = v_fma(t, v_set(1.44269504088896341f), magic) - magic;
    vf r = v_fma(n, v_set(-0.693359375f), t);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, r * r, r) + 1.0f;
#if VL == 16 // one rounding, gradual underflow; the bounds above let NaN through
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    const vi e = __builtin_convertvector(n, vi), half = e >> 1;
    const vf a = (vf)((half + 127) << 23), b = (vf)((e - half + 127) << 23);
    return v_pick(x == x, p * a * b, x);
#endif
}

/** x / (1 + e^-x). */
INLINE vf v_silu(vf x)
{
    return x / (1.0f + v_exp(-x));
}

/** 0.5 x (1 + tanh(u)) written as x / (1 + e^-2u), which does not cancel for negative x. */
INLINE vf v_gelu_tanh(vf x)
{
    const vf u = x * v_fma(x * x, v_set(0.044715f * 0.7978845608f), v_set(0.7978845608f));
    return x / (1.0f + v_exp(u * -2.0f));
}

/** 0.5 x (1 + erf(x / sqrt 2)); libm's erf, lane by lane: only small towers use it. */
INLINE vf v_gelu_erf(vf x)
{
    for (int i = 0; i < VL; i++)
        x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752440f));
    return x;
}

/**
 * sin(x)^2, whose period is pi: x is reduced by it (Cody-Waite, three parts, fused) to |r| <= pi /
 * 2, where 1 + z P(z), z = r^2, is sin(r) / r to 6.1e-9 (relative minimax); no cosine is needed and
 * the sign does not matter. Arguments beyond 8192 go through libm.
 */
INLINE vf v_sin_squared(vf x)
{
    const vf magic = v_set(0x1.8p23f);
    const vf q = v_fma(x, v_set(0.318309886183790672f), magic) - magic;
    vf r = v_fma(q, v_set(-3.1415927410125732f), x);
    r = v_fma(q, v_set(8.7422776573475858e-8f), r);
    r = v_fma(q, v_set(3.4302490200118482e-15f), r);
    const vf z = r * r;
    vf v = v_fma(v_set(2.6056311526190257e-6f), z, v_set(-1.980953966267407e-4f));
    v = v_fma(v, z, v_set(8.333065547049046e-3f));
    v = v_fma(v, z, v_set(-1.6666659712791443e-1f));
    v = v_fma(v * z, r, r);
#if VL == 16
    const int any =
        _mm512_cmp_ps_mask((__m512)(vf)((vu)x & 0x7fffffffu), _mm512_set1_ps(8192.0f), _CMP_GT_OQ);
#elif VL == 8
    const int any = _mm256_movemask_ps(
        _mm256_cmp_ps((__m256)(vf)((vu)x & 0x7fffffffu), _mm256_set1_ps(8192.0f), _CMP_GT_OQ));
#else
    const int any = 1; // without fused products the reduction above is not exact
#endif
    if (__builtin_expect(any != 0, VL == 4))
        for (int i = 0; i < VL; i++)
            v[i] = (float)sin((double)x[i]);
    return v * v;
}

/** r[i] holds row i; afterwards r[j] holds column j of the VL x VL block. */
INLINE void v_transpose(vf r[VL])
{
#if VL == 16
    __m512 t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps((__m512)r[2 * i], (__m512)r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps((__m512)r[2 * i], (__m512)r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512d a = (__m512d)t[4 * i], b = (__m512d)t[4 * i + 2];
        const __m512d c = (__m512d)t[4 * i + 1], d = (__m512d)t[4 * i + 3];
        u[4 * i] = (__m512)_mm512_unpacklo_pd(a, b);
        u[4 * i + 1] = (__m512)_mm512_unpackhi_pd(a, b);
        u[4 * i + 2] = (__m512)_mm512_unpacklo_pd(c, d);
        u[4 * i + 3] = (__m512)_mm512_unpackhi_pd(c, d);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4;
         j++) { // 128-bit lanes: lane l of u[4 i + j] is column 4 l + j, rows 4 i..
        const __m512 a = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x44);
        const __m512 b = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xee);
        const __m512 c = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x44);
        const __m512 d = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xee);
        r[j] = (vf)_mm512_shuffle_f32x4(a, c, 0x88);
        r[4 + j] = (vf)_mm512_shuffle_f32x4(a, c, 0xdd);
        r[8 + j] = (vf)_mm512_shuffle_f32x4(b, d, 0x88);
        r[12 + j] = (vf)_mm512_shuffle_f32x4(b, d, 0xdd);
    }
#elif VL == 8
    __m256 t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps((__m256)r[2 * i], (__m256)r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps((__m256)r[2 * i], (__m256)r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        r[j] = (vf)_mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
        r[4 + j] = (vf)_mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
    }
#else
    for (int i = 0; i < VL; i++)
        for (int j = i + 1; j < VL; j++) {
            const float t = r[i][j];
            r[i][j] = r[j][i];
            r[j][i] = t;
        }
#endif
}

#if VL == 16
/** lo + hi as n pieces of pairs of bf16, lo in the low half. 3: exactly, 8 bits of mantissa each
 * (what is cut off is cut exactly; a NaN stays one in some piece). 1: rounded. */
INLINE void v_pieces(vf lo, vf hi, int n, vf *piece)
{
    if (n == 1) {
        piece[0] = (vf)((vu)v_round_bf16(lo) >> 16 | (vu)v_round_bf16(hi));
        return;
    }
#pragma GCC unroll 3
    for (int p = 0; p < 3; p++) {
        const vu l = (vu)lo & 0xffff0000u, h = (vu)hi & 0xffff0000u;
        piece[p] = (vf)(l >> 16 | h);
        lo -= (vf)l;
        hi -= (vf)h;
    }
}

/** The same of 2 VL numbers that follow each other: piece[p][j] holds numbers 2 j and 2 j + 1. */
INLINE void v_pieces_of(vf a, vf b, int n, vf *piece)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    v_pieces((vf)_mm512_permutex2var_ps((__m512)a, even, (__m512)b),
             (vf)_mm512_permutex2var_ps((__m512)a, odd, (__m512)b), n, piece);
}
#endif

#endif
