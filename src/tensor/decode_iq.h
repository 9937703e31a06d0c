/**
 * ggml's codebook types (IQ1 to IQ3) and ternary types (TQ1, TQ2): `b` the block of 256, `y` its
 * values. Part of decode.c, which compiles it for several instruction sets.
 *
 * An IQ type stores, for 8 or 4 elements at a time, which vector of a grid they are (ggml_grids.h),
 * their signs, and a small scale for 16 or 32 elements. Where seven sign bits are stored, the
 * eighth makes the number of signs even. Products are those of dequantize_row_* in ggml-quants.c.
 */
#ifndef H3_TENSOR_DECODE_IQ_H
#define H3_TENSOR_DECODE_IQ_H

#include <stdint.h>
#include <string.h>

#define H3_GRID(name, n) static const uint16_t name[n]
#include "ggml_grids.h"
#undef H3_GRID

#define H3_IQ static inline __attribute__((always_inline))

H3_IQ uint32_t iq_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

H3_IQ unsigned iq_u16(const uint8_t *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

H3_IQ unsigned iq_eighth_sign(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

/* 8 elements of a 2-bit grid: indices 0, 1, 2 are 8, 25, 43. */
H3_IQ void iq2_vector(float db, unsigned grid, unsigned signs, float *restrict y)
{
    for (int j = 0; j < 8; j++) {
        const int k = (int)(grid >> (2 * j) & 3), v = 8 + 17 * k + (k >> 1);
        y[j] = db * (float)(signs >> j & 1 ? -v : v);
    }
}

/* 4 elements of a 3-bit grid: indices 0 to 7 are 4, 12, ..., 52, 62. */
H3_IQ void iq3_xxs_vector(float db, unsigned grid, unsigned signs, float *restrict y)
{
    for (int j = 0; j < 4; j++) {
        const int k = (int)(grid >> (3 * j) & 7), v = 4 + 8 * k + 2 * (k == 7);
        y[j] = db * (float)(signs >> j & 1 ? -v : v);
    }
}

/* ... or 1, 3, ..., 15. */
H3_IQ void iq3_s_vector(float db, unsigned grid, unsigned signs, float *restrict y)
{
    for (int j = 0; j < 4; j++) {
        const int v = 2 * (int)(grid >> (3 * j) & 7) + 1;
        y[j] = db * (float)(signs >> j & 1 ? -v : v);
    }
}

/* 8 elements of -1, 0, 1, all moved by an eighth up or down. */
H3_IQ void iq1_vector(float dl, unsigned grid, int is_down, float *restrict y)
{
    const float delta = is_down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++)
        y[j] = dl * ((float)((int)(grid >> (2 * j) & 3) - 1) + delta);
}

/* Per 32 elements: 4 grid bytes, then 4 x 7 sign bits and a 4-bit scale. */
H3_IQ void iq2_xxs(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const uint32_t aux = iq_u32(b + 6 + 8 * (i / 4));
        const float db = d * (0.5f + (float)(aux >> 28)) * 0.25f;
        iq2_vector(db, grid_iq2_xxs[b[2 + 8 * (i / 4) + i % 4]],
                   iq_eighth_sign(aux >> (7 * (i % 4)) & 127), y + 8 * i);
    }
}

/* A 4-bit scale for each 16 elements, at `s`. */
H3_IQ float iq2_scale(float d, const uint8_t *s, int i)
{
    return d * (0.5f + (float)(s[i / 4] >> (4 * (i / 2 & 1)) & 15)) * 0.25f;
}

/* Per 8 elements: 9 grid bits and 7 sign bits. */
H3_IQ void iq2_xs(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const unsigned q = iq_u16(b + 2 + 2 * i);
        iq2_vector(iq2_scale(d, b + 66, i), grid_iq2_xs[q & 511], iq_eighth_sign(q >> 9),
                   y + 8 * i);
    }
}

/* 32 low grid bytes, 32 sign bytes, 2 high grid bits each, scales. */
H3_IQ void iq2_s(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const unsigned high = b[66 + i / 4] >> (2 * (i % 4)) & 3u;
        iq2_vector(iq2_scale(d, b + 74, i), grid_iq2_s[b[2 + i] | high << 8], b[34 + i], y + 8 * i);
    }
}

/* 64 grid bytes, then per 32 elements 4 x 7 sign bits and a 4-bit scale. */
H3_IQ void iq3_xxs(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const uint32_t aux = iq_u32(b + 66 + 4 * (i / 4));
        const float db = d * (0.5f + (float)(aux >> 28)) * 0.5f;
        const unsigned signs = iq_eighth_sign(aux >> (7 * (i % 4)) & 127);
        iq3_xxs_vector(db, grid_iq3_xxs[b[2 + 2 * i]], signs, y + 8 * i);
        iq3_xxs_vector(db, grid_iq3_xxs[b[3 + 2 * i]], signs >> 4, y + 8 * i + 4);
    }
}

/* 64 low grid bytes, a ninth bit each, 32 sign bytes, a 4-bit scale for each 32 elements. */
H3_IQ void iq3_s(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const unsigned scale = b[106 + i / 8] >> (4 * (i / 4 & 1)) & 15u;
        const unsigned high = b[66 + i / 4] >> (2 * (i % 4)), signs = b[74 + i];
        const float db = d * (float)(1 + 2 * scale);
        iq3_s_vector(db, grid_iq3_s[b[2 + 2 * i] | (high & 1) << 8], signs, y + 8 * i);
        iq3_s_vector(db, grid_iq3_s[b[3 + 2 * i] | (high & 2) << 7], signs >> 4, y + 8 * i + 4);
    }
}

/* 32 low grid bytes; per 32 elements 4 x 3 high bits, a 3-bit scale, the way of the shift. */
H3_IQ void iq1_s(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const unsigned h = iq_u16(b + 34 + 2 * (i / 4));
        iq1_vector(d * (float)(2 * (h >> 12 & 7) + 1),
                   grid_iq1[b[2 + i] | (h >> (3 * (i % 4)) & 7) << 8], h >> 15, y + 8 * i);
    }
}

/* The half of an IQ1_M block lies in the top nibbles of its four 16-bit scales. */
H3_IQ uint16_t iq1_m_half(const uint8_t *b)
{
    return (uint16_t)(b[49] >> 4 | (b[51] & 0xf0) | (b[53] & 0xf0) << 4 | (b[55] & 0xf0) << 8);
}

/* 32 low grid bytes; per 8 elements 3 high bits and the way of the shift; a 3-bit scale for 16. */
H3_IQ void iq1_m(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 32; i++) {
        const unsigned h = b[32 + i / 2] >> (4 * (i & 1));
        const unsigned scale = iq_u16(b + 48 + 2 * (i / 8)) >> (3 * (i / 2 % 4)) & 7;
        iq1_vector(d * (float)(2 * scale + 1), grid_iq1[b[i] | (h & 7) << 8], h >> 3 & 1,
                   y + 8 * i);
    }
}

/* Digit `digit` of five base-3 digits in a byte, which is stored as a fraction of 256. */
H3_IQ float ternary(float d, uint8_t q, int digit)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t rest = (uint8_t)(q * power[digit]);
    return d * (float)((rest * 3 >> 8) - 1);
}

/* 32 bytes of five digits, 16 of five, 4 of four; digit by digit. */
H3_IQ void tq1_0(float d, const uint8_t *b, float *restrict y)
{
    for (int k = 0; k < 5; k++)
        for (int j = 0; j < 32; j++)
            y[32 * k + j] = ternary(d, b[j], k);
    for (int k = 0; k < 5; k++)
        for (int j = 0; j < 16; j++)
            y[160 + 16 * k + j] = ternary(d, b[32 + j], k);
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 4; j++)
            y[240 + 4 * k + j] = ternary(d, b[48 + j], k);
}

H3_IQ void tq2_0(float d, const uint8_t *b, float *restrict y)
{
    for (int i = 0; i < 256; i++)
        y[i] = d * (float)((b[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3) - 1);
}

#endif
