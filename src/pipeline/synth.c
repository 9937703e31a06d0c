/** The numbers of synthetic checkpoints; see synth.h. */
#include "synth.h"

#include <string.h>

#include "half.h"

enum { BY_ONE = 1 << 14 }; // numbers that are no work for several threads
static const uint64_t gap = 0x9e3779b97f4a7c15u;

/* Number i of the sequence (splitmix64); one that can be had out of turn, by any thread. */
static uint64_t at(uint64_t state, int64_t i)
{
    uint64_t z = state + ((uint64_t)i + 1) * gap;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void h3_synth_fill(void *out, h3_dtype t, int64_t n, float mean, float spread, uint64_t *state)
{
    const uint64_t from = *state;

#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (n > BY_ONE)
#endif
    for (int64_t i = 0; i < n; i++) {
        const float u = (float)(at(from, i) >> 40) * 0x1p-23f - 1.0f, v = mean + u * spread;
        if (t == H3_F32)
            ((float *)out)[i] = v;
        else
            ((uint16_t *)out)[i] = t == H3_BF16 ? h3_f32_to_bf16(v) : h3_f32_to_f16(v);
    }
    *state += (uint64_t)n * gap;
}

void h3_synth_bytes(unsigned char *out, size_t n, uint64_t *state)
{
    const uint64_t from = *state;
    const int64_t words = (int64_t)(n / 8);

#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (words > BY_ONE)
#endif
    for (int64_t i = 0; i < words; i++) {
        const uint64_t v = at(from, i);
        memcpy(out + 8 * i, &v, 8);
    }
    const uint64_t last = at(from, words);
    memcpy(out + 8 * words, &last, n % 8);
    *state += (uint64_t)(words + 1) * gap;
}
