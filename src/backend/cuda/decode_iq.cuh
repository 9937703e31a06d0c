/**
 * Elements of ggml's codebook and ternary types on the device: decode_iq.h of the tensor room, one
 * element at a time. `b` is a block of 256, i the element; d its scale.
 */
#ifndef H3_CUDA_DECODE_IQ_CUH
#define H3_CUDA_DECODE_IQ_CUH

#include "device.cuh"

#define H3_GRID(name, n) static __device__ const uint16_t name[n]
#include "../../tensor/ggml_grids.h"
#undef H3_GRID

static __device__ __forceinline__ unsigned iq_u16(const uint8_t *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

static __device__ __forceinline__ unsigned iq_u32(const uint8_t *p)
{
    return iq_u16(p) | iq_u16(p + 2) << 16;
}

/* Sign j of seven stored bits; the eighth makes their number even. */
static __device__ __forceinline__ bool iq_is_negative(unsigned seven, int j)
{
    unsigned odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    return (j < 7 ? seven >> j : odd ^ odd >> 1) & 1;
}

static __device__ __forceinline__ float iq_value(float db, int v, bool is_negative)
{
    return db * (float)(is_negative ? -v : v);
}

/* Values of the indices of a grid vector. */
static __device__ __forceinline__ int iq2_grid(unsigned g, int j)
{
    const int k = (int)(g >> (2 * j) & 3);
    return 8 + 17 * k + (k >> 1);
}

static __device__ __forceinline__ int iq3_xxs_grid(unsigned g, int j)
{
    const int k = (int)(g >> (3 * j) & 7);
    return 4 + 8 * k + 2 * (k == 7);
}

static __device__ __forceinline__ float iq1_value(float dl, unsigned g, int j, bool is_down)
{
    return dl * ((float)((int)(g >> (2 * j) & 3) - 1) + (is_down ? -0.125f : 0.125f));
}

static __device__ __forceinline__ float iq2_scale(float d, const uint8_t *s, int v)
{
    return d * (0.5f + (float)(s[v / 4] >> (4 * (v / 2 & 1)) & 15)) * 0.25f;
}

static __device__ __forceinline__ float ternary(float d, unsigned q, int digit)
{
    const unsigned power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    return d * (float)((int)((q * power & 255) * 3 >> 8) - 1);
}

/* The half of a block, as bits. */
static __device__ __forceinline__ unsigned iq_half(int type, const uint8_t *b)
{
    if (type == 29)
        return b[49] >> 4 | (b[51] & 0xf0u) | (b[53] & 0xf0u) << 4 | (b[55] & 0xf0u) << 8;
    return iq_u16(b + (type == 34 ? 52 : type == 35 ? 64 : 0));
}

static __device__ __forceinline__ bool is_iq(int type)
{
    return (type >= 16 && type <= 19) || type == 21 || type == 22 || type == 29 || type == 34 ||
           type == 35;
}

static __device__ __forceinline__ int iq_bytes(int type)
{
    switch (type) {
    case 16:
    case 35:
        return 66;
    case 17:
        return 74;
    case 18:
        return 98;
    case 19:
        return 50;
    case 21:
        return 110;
    case 22:
        return 82;
    case 29:
        return 56;
    default:
        return 54; // TQ1_0
    }
}

static __device__ float iq_at(int type, float d, const uint8_t *b, int i)
{
    const int v = i / 8, j = i % 8, k = i / 32; // vector of 8, element in it, group of 32

    switch (type) {
    case 16: {
        const unsigned aux = iq_u32(b + 6 + 8 * k);
        return iq_value(d * (0.5f + (float)(aux >> 28)) * 0.25f,
                        iq2_grid(grid_iq2_xxs[b[2 + 8 * k + v % 4]], j),
                        iq_is_negative(aux >> (7 * (v % 4)) & 127, j));
    }
    case 17: {
        const unsigned q = iq_u16(b + 2 + 2 * v);
        return iq_value(iq2_scale(d, b + 66, v), iq2_grid(grid_iq2_xs[q & 511], j),
                        iq_is_negative(q >> 9, j));
    }
    case 18: {
        const unsigned aux = iq_u32(b + 66 + 4 * k);
        return iq_value(d * (0.5f + (float)(aux >> 28)) * 0.5f,
                        iq3_xxs_grid(grid_iq3_xxs[b[2 + i / 4]], j % 4),
                        iq_is_negative(aux >> (7 * (v % 4)) & 127, j));
    }
    case 19: {
        const unsigned h = iq_u16(b + 34 + 2 * k);
        return iq1_value(d * (float)(2 * (h >> 12 & 7) + 1),
                         grid_iq1[b[2 + v] | (h >> (3 * (v % 4)) & 7) << 8], j, h >> 15);
    }
    case 21: {
        const unsigned scale = b[106 + k / 2] >> (4 * (k & 1)) & 15u;
        const unsigned high = b[66 + k] >> (i / 4 % 8) & 1u;
        return iq_value(d * (float)(1 + 2 * scale),
                        2 * (int)(grid_iq3_s[b[2 + i / 4] | high << 8] >> (3 * (j % 4)) & 7) + 1,
                        b[74 + v] >> j & 1);
    }
    case 22: {
        const unsigned high = b[66 + k] >> (2 * (v % 4)) & 3u;
        return iq_value(iq2_scale(d, b + 74, v), iq2_grid(grid_iq2_s[b[2 + v] | high << 8], j),
                        b[34 + v] >> j & 1);
    }
    case 29: {
        const unsigned h = b[32 + v / 2] >> (4 * (v & 1));
        const unsigned scale = iq_u16(b + 48 + 2 * (v / 8)) >> (3 * (v / 2 % 4)) & 7;
        return iq1_value(d * (float)(2 * scale + 1), grid_iq1[b[v] | (h & 7) << 8], j, h >> 3 & 1);
    }
    case 34:
        if (i < 160) return ternary(d, b[i % 32], i / 32);
        if (i < 240) return ternary(d, b[32 + (i - 160) % 16], (i - 160) / 16);
        return ternary(d, b[48 + (i - 240) % 4], (i - 240) / 4);
    default: // TQ2_0
        return d * (float)((b[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3) - 1);
    }
}

#endif
