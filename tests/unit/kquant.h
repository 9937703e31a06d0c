/**
 * Plain quantizers to ggml's K types and a writer of small GGUF files, for tests: weights whose
 * unquantized values are known. Layouts as ggml-common.h has them; the search for good scales that
 * other tools make is left out, which costs some precision and no correctness.
 */
#ifndef H3_TESTS_KQUANT_H
#define H3_TESTS_KQUANT_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"

enum { KQ_F32 = 0, KQ_Q2_K = 10, KQ_Q3_K, KQ_Q4_K, KQ_Q5_K, KQ_Q6_K, KQ_BLOCK = 256 };

static inline size_t kq_block_bytes(int type)
{
    static const size_t bytes[] = {84, 110, 144, 176, 210};
    return bytes[type - KQ_Q2_K];
}

static inline void kq_half(uint8_t *at, float v)
{
    const uint16_t h = h3_f32_to_f16(v);
    memcpy(at, &h, 2);
}

static inline int kq_clamp(float v, int lo, int hi)
{
    const long q = lrintf(v);
    return q < lo ? lo : q > hi ? hi : (int)q;
}

/* Sub-blocks of n values as scale * q - minimum, q in 0..top: scales and minima in 0..s_top of d
 * and dmin, which are halves. */
static inline void kq_with_minima(const float *x, int n, int top, int s_top, float dm[2],
                                  uint8_t *scale, uint8_t *minimum, uint8_t *q)
{
    float s[16], m[16];

    dm[0] = dm[1] = 0;
    for (int b = 0; b < KQ_BLOCK / n; b++) {
        float lo = 0, hi = 0;
        for (int i = 0; i < n; i++) {
            lo = fminf(lo, x[b * n + i]);
            hi = fmaxf(hi, x[b * n + i]);
        }
        s[b] = (hi - lo) / (float)top;
        m[b] = -lo;
        dm[0] = fmaxf(dm[0], s[b] / (float)s_top);
        dm[1] = fmaxf(dm[1], m[b] / (float)s_top);
    }
    for (int k = 0; k < 2; k++)
        dm[k] = h3_f16_to_f32(h3_f32_to_f16(dm[k]));
    for (int b = 0; b < KQ_BLOCK / n; b++) {
        scale[b] = (uint8_t)(dm[0] > 0 ? kq_clamp(s[b] / dm[0], 0, s_top) : 0);
        minimum[b] = (uint8_t)(dm[1] > 0 ? kq_clamp(m[b] / dm[1], 0, s_top) : 0);
        const float step = dm[0] * (float)scale[b];
        for (int i = 0; i < n; i++) {
            const float v = x[b * n + i] + dm[1] * (float)minimum[b];
            q[b * n + i] = (uint8_t)(step > 0 ? kq_clamp(v / step, 0, top) : 0);
        }
    }
}

/* Sub-blocks of 16 as scale * q, q in -half..half-1, scales in -s_half..s_half-1 of d. */
static inline void kq_symmetric(const float *x, int half, int s_half, float *d, int *scale, int *q)
{
    float s[16];

    *d = 0;
    for (int b = 0; b < 16; b++) {
        float top = 0;
        for (int i = 0; i < 16; i++)
            top = fmaxf(top, fabsf(x[16 * b + i]));
        s[b] = top / (float)half;
        *d = fmaxf(*d, s[b] / (float)(s_half - 1));
    }
    *d = h3_f16_to_f32(h3_f32_to_f16(*d));
    for (int b = 0; b < 16; b++) {
        scale[b] = *d > 0 ? kq_clamp(s[b] / *d, 0, s_half - 1) : 0;
        for (int i = 0; i < 16; i++) {
            const float step = *d * (float)scale[b];
            q[16 * b + i] = step > 0 ? kq_clamp(x[16 * b + i] / step, -half, half - 1) : 0;
        }
    }
}

/* Eight 6-bit scales and minima in twelve bytes. */
static inline void kq_put_scales(uint8_t *at, const uint8_t *s, const uint8_t *m)
{
    for (int j = 0; j < 4; j++) {
        at[j] = (uint8_t)(s[j] | (s[j + 4] >> 4) << 6);
        at[j + 4] = (uint8_t)(m[j] | (m[j + 4] >> 4) << 6);
        at[j + 8] = (uint8_t)((s[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

static inline void kq_block(int type, const float *x, uint8_t *out)
{
    uint8_t s[16], m[16], u[KQ_BLOCK];
    int scale[16], q[KQ_BLOCK];
    float d[2];

    memset(out, 0, kq_block_bytes(type));
    switch (type) {
    case KQ_Q2_K:
        kq_with_minima(x, 16, 3, 15, d, s, m, u);
        for (int b = 0; b < 16; b++)
            out[b] = (uint8_t)(s[b] | m[b] << 4);
        for (int i = 0; i < KQ_BLOCK; i++) // 128 values in 32 bytes, two bits for each 32 of them
            out[16 + 32 * (i / 128) + i % 32] |= (uint8_t)(u[i] << 2 * (i % 128 / 32));
        kq_half(out + 80, d[0]);
        kq_half(out + 82, d[1]);
        break;
    case KQ_Q3_K:
        kq_symmetric(x, 4, 32, d, scale, q);
        for (int i = 0; i < KQ_BLOCK; i++) {
            const int v = q[i] + 4;
            out[i % 32] |= (uint8_t)((v >> 2) << (i / 32));
            out[32 + 32 * (i / 128) + i % 32] |= (uint8_t)((v & 3) << 2 * (i % 128 / 32));
        }
        for (int b = 0; b < 16; b++) {
            const int v = scale[b] + 32;
            out[96 + b % 8] |= (uint8_t)((v & 15) << 4 * (b / 8));
            out[104 + b % 4] |= (uint8_t)((v >> 4) << 2 * (b / 4));
        }
        kq_half(out + 108, d[0]);
        break;
    case KQ_Q4_K:
    case KQ_Q5_K:
        kq_with_minima(x, 32, type == KQ_Q4_K ? 15 : 31, 63, d, s, m, u);
        kq_half(out, d[0]);
        kq_half(out + 2, d[1]);
        kq_put_scales(out + 4, s, m);
        for (int i = 0; i < KQ_BLOCK; i++) {
            uint8_t *low = out + (type == KQ_Q4_K ? 16 : 48) + 32 * (i / 64) + i % 32;
            *low |= (uint8_t)((u[i] & 15) << 4 * (i % 64 / 32));
            if (type == KQ_Q5_K) out[16 + i % 32] |= (uint8_t)((u[i] >> 4) << (i / 32));
        }
        break;
    default: // Q6_K
        kq_symmetric(x, 32, 128, d, scale, q);
        for (int i = 0; i < KQ_BLOCK; i++) {
            const int v = q[i] + 32, part = i % 128 / 32;
            out[64 * (i / 128) + 32 * (part & 1) + i % 32] |=
                (uint8_t)((v & 15) << 4 * (part >> 1));
            out[128 + 32 * (i / 128) + i % 32] |= (uint8_t)((v >> 4) << 2 * part);
        }
        for (int b = 0; b < 16; b++)
            out[192 + b] = (uint8_t)(int8_t)scale[b];
        kq_half(out + 208, d[0]);
    }
}

/* ---- GGUF ---- */

typedef struct kq_tensor {
    char *name;
    int type, rank;
    int64_t ne[5]; ///< outermost first
    float *v;      ///< malloc'd
} kq_tensor;

static inline void kq_word(FILE *f, uint64_t v, size_t bytes)
{
    if (fwrite(&v, 1, bytes, f) != bytes) abort();
}

static inline void kq_text(FILE *f, const char *s)
{
    kq_word(f, strlen(s), 8);
    if (fwrite(s, 1, strlen(s), f) != strlen(s)) abort();
}

static inline int64_t kq_count(const kq_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->ne[i];
    return n;
}

static inline size_t kq_bytes(const kq_tensor *t)
{
    const size_t n = (size_t)kq_count(t);
    return t->type == KQ_F32 ? 4 * n : n / KQ_BLOCK * kq_block_bytes(t->type);
}

/* Rows that no block divides, and five axes, are folded and told by comfy.gguf.orig_shape. */
static inline int kq_is_folded(const kq_tensor *t)
{
    return t->rank > 4 || (t->type != KQ_F32 && t->ne[t->rank - 1] % KQ_BLOCK);
}

static inline void kq_write(const char *path, const kq_tensor *t, int n)
{
    FILE *f = fopen(path, "wb");
    uint64_t n_keys = 0, at = 0;

    if (!f) abort();
    for (int i = 0; i < n; i++)
        n_keys += (uint64_t)kq_is_folded(&t[i]);
    if (fwrite("GGUF", 1, 4, f) != 4) abort();
    kq_word(f, 3, 4);
    kq_word(f, (uint64_t)n, 8);
    kq_word(f, n_keys, 8);
    for (int i = 0; i < n; i++) {
        char key[300];
        if (!kq_is_folded(&t[i])) continue;
        snprintf(key, sizeof key, "comfy.gguf.orig_shape.%s", t[i].name);
        kq_text(f, key);
        kq_word(f, 9, 4); // an array
        kq_word(f, 5, 4); // of i32
        kq_word(f, (uint64_t)t[i].rank, 8);
        for (int k = 0; k < t[i].rank; k++)
            kq_word(f, (uint64_t)t[i].ne[k], 4);
    }
    for (int i = 0; i < n; i++) {
        kq_text(f, t[i].name);
        if (kq_is_folded(&t[i])) {
            const int64_t inner = t[i].type == KQ_F32 ? t[i].ne[t[i].rank - 1] : KQ_BLOCK;
            kq_word(f, 2, 4);
            kq_word(f, (uint64_t)inner, 8);
            kq_word(f, (uint64_t)(kq_count(&t[i]) / inner), 8);
        } else {
            kq_word(f, (uint64_t)t[i].rank, 4);
            for (int k = t[i].rank; k-- > 0;)
                kq_word(f, (uint64_t)t[i].ne[k], 8);
        }
        kq_word(f, (uint64_t)t[i].type, 4);
        kq_word(f, at, 8);
        at = (at + kq_bytes(&t[i]) + 31) / 32 * 32;
    }
    while (ftell(f) % 32)
        kq_word(f, 0, 1);
    for (int i = 0; i < n; i++) {
        uint8_t block[256];
        for (int64_t k = 0; k < kq_count(&t[i]) && t[i].type != KQ_F32; k += KQ_BLOCK) {
            kq_block(t[i].type, t[i].v + k, block);
            if (fwrite(block, kq_block_bytes(t[i].type), 1, f) != 1) abort();
        }
        if (t[i].type == KQ_F32 &&
            fwrite(t[i].v, 4, (size_t)kq_count(&t[i]), f) != (size_t)kq_count(&t[i]))
            abort();
        while (ftell(f) % 32)
            kq_word(f, 0, 1);
    }
    if (fclose(f) != 0) abort();
}

#endif
