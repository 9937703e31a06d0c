/**
 * torch's CPU normal generator, bit for bit: what `torch.randn(n, generator=g)` returns on an
 * x86-64 machine with AVX2 or better. A seed therefore means the same noise here as in the
 * reference.
 *
 * One generator is one stream: every call goes on where the last one stopped. Draws do not split:
 * two calls of 8 values give other numbers than one call of 16 (rng.c says why).
 */
#ifndef H3_BASE_RNG_H
#define H3_BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

enum { H3_RNG_WORDS = 624 };

typedef struct h3_rng {
    uint32_t state[H3_RNG_WORDS]; ///< MT19937
    int next;                     ///< words of `state` already handed out
    bool has_kept;                ///< the second value of a double-precision pair waits in `kept`
    double kept;
} h3_rng;

/** Starts over. Like torch, only the low 32 bits of the seed reach the engine. */
void h3_rng_seed(h3_rng *r, uint64_t seed);

/** The next 32-bit word of the engine. */
uint32_t h3_rng_u32(h3_rng *r);

/** out[0 .. n) = standard normal values, as one draw of n values. n = 0 draws nothing. */
void h3_rng_normal(h3_rng *r, float *out, int64_t n);

#endif
