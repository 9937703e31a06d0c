/**
 * Scalar conversions between the small float formats and float32. Rounding is to nearest, ties to
 * even, as torch does; NaN stays NaN.
 */
#ifndef H3_BASE_HALF_H
#define H3_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t h3_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float h3_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float h3_bf16_to_f32(uint16_t h)
{
    return h3_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t h3_f32_to_bf16(float f)
{
    const uint32_t u = h3_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/** f32 value of `f` rounded to bf16. */
static inline float h3_round_bf16(float f)
{
    return h3_bf16_to_f32(h3_f32_to_bf16(f));
}

static inline float h3_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t e = h >> 10 & 31, m = h & 1023u;
    if (e == 31) return h3_f32_from_bits(sign | 0x7f800000u | m << 13);
    if (e) return h3_f32_from_bits(sign | (e + 112) << 23 | m << 13);
    const float f = (float)m * 0x1p-24f;
    return h3_f32_from_bits(h3_f32_bits(f) | sign);
}

static inline uint16_t h3_f32_to_f16(float f)
{
    const uint32_t u = h3_f32_bits(f), a = u & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (a > 0x7f800000u) return sign | 0x7e00u;
    if (a >= 0x477ff000u) return sign | 0x7c00u; // rounds to infinity
    if (a < 0x38800000u) {                       // subnormal half: let the FPU round
        const float r = h3_f32_from_bits(a) + 0.5f;
        return sign | (uint16_t)(h3_f32_bits(r) - 0x3f000000u);
    }
    return sign | (uint16_t)((a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13);
}

#endif
