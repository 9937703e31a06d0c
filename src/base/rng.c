/*
 * torch's CPU normal draws (aten: CPUGeneratorImpl, DistributionTemplates.h, avx_mathfun.h).
 *
 * Two unrelated ways, chosen by the size of the draw:
 *
 * - fewer than 16 values: Box-Muller in double precision, one value at a time. Each pair needs two
 *   53-bit uniforms; its second value waits in the generator for the next small draw, across any
 *   number of large ones.
 * - 16 or more: one word a value, 24-bit uniforms, groups of 16. Values i and i + 8 of a group
 * share a radius and an angle. When the count is no multiple of 16, the last 16 values of the draw
 * are thrown away and made again from 16 new words, so a draw is not a prefix of a longer one.
 *
 * log, sin and cos are the Cephes single-precision polynomials with fused multiply-adds exactly
 * where the reference's vector code has them: libm's functions, or plain products and sums, agree
 * to two units in the last place only. Multiplication by the standard deviation 1 and addition of
 * the mean 0 is kept because it turns -0 into +0.
 *
 * The groups are written as plain loops and compiled twice on x86-64: where the
 * machine has fused multiply-adds each loop becomes a few vector instructions (a real request draws
 * ten million values), elsewhere fmaf() gives the same bits slowly.
 */
#include "rng.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "half.h"

enum { GROUP = 16, HALF = GROUP / 2, CHUNK = 256 * GROUP };

/* ---------------------------------------------------------------- engine: MT19937 */

void h3_rng_seed(h3_rng *r, uint64_t seed)
{
    r->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < H3_RNG_WORDS; i++) {
        const uint32_t p = r->state[i - 1];
        r->state[i] = 1812433253u * (p ^ p >> 30) + i;
    }
    r->next = H3_RNG_WORDS;
    r->has_kept = false;
    r->kept = 0.0;
}

static inline uint32_t twist(uint32_t hi, uint32_t lo, uint32_t far)
{
    const uint32_t y = (hi & 0x80000000u) | (lo & 0x7fffffffu);
    return far ^ y >> 1 ^ ((0u - (lo & 1u)) & 0x9908b0dfu);
}

static void refill(h3_rng *r)
{
    enum { N = H3_RNG_WORDS, M = 397 };
    uint32_t *s = r->state;
    int i = 0;
    for (; i < N - M; i++)
        s[i] = twist(s[i], s[i + 1], s[i + M]);
    for (; i < N - 1; i++)
        s[i] = twist(s[i], s[i + 1], s[i + M - N]);
    s[N - 1] = twist(s[N - 1], s[0], s[M - 1]);
    r->next = 0;
}

static inline uint32_t temper(uint32_t y)
{
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint32_t h3_rng_u32(h3_rng *r)
{
    if (r->next == H3_RNG_WORDS) refill(r);
    return temper(r->state[r->next++]);
}

/* ---------------------------------------------------------------- fewer than 16 values */

static double uniform_53(h3_rng *r)
{
    const uint64_t hi = h3_rng_u32(r), lo = h3_rng_u32(r);
    return (double)((hi << 32 | lo) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

static double normal_one(h3_rng *r)
{
    if (r->has_kept) {
        r->has_kept = false;
        return r->kept;
    }
    const double u1 = uniform_53(r), u2 = uniform_53(r); // the angle comes first
    const double radius = sqrt(-2.0 * log1p(-u2)), angle = 2.0 * 3.14159265358979323846 * u1;
    r->kept = radius * sin(angle);
    r->has_kept = true;
    return radius * cos(angle);
}

/* ---------------------------------------------------------------- groups of 16 */

static void uniforms_24(h3_rng *r, float *out, int64_t n)
{
    while (n > 0) {
        if (r->next == H3_RNG_WORDS) refill(r);
        const int64_t left = H3_RNG_WORDS - r->next, k = n < left ? n : left;
        const uint32_t *s = r->state + r->next;
        for (int64_t i = 0; i < k; i++)
            out[i] = (float)(int32_t)(temper(s[i]) & 0xffffffu) * 0x1p-24f;
        r->next += (int)k;
        out += k;
        n -= k;
    }
}

/* Choices are made on bits: a conditional around float arithmetic keeps compilers from vectorizing.
 */
static inline __attribute__((always_inline)) uint32_t all_bits_if(bool is_set)
{
    return 0u - (uint32_t)is_set;
}

/* Cephes logf for x in (0, 1]. */
static inline __attribute__((always_inline)) float log_poly(float x)
{
    const uint32_t bits = h3_f32_bits(x), m_bits = (bits & 0x807fffffu) | 0x3f000000u;
    const uint32_t is_small = all_bits_if(m_bits < 0x3f3504f3u); // mantissa below sqrt(1/2)
    const float m = h3_f32_from_bits(m_bits);                    // [0.5, 1)
    float e = (float)((int32_t)(bits >> 23) - 0x7f) + 1.0f;
    e = e - h3_f32_from_bits(is_small & 0x3f800000u);
    x = (m - 1.0f) + h3_f32_from_bits(is_small & m_bits);
    const float z = x * x;
    float y = 7.0376836292e-2f;
    y = __builtin_fmaf(y, x, -1.1514610310e-1f);
    y = __builtin_fmaf(y, x, 1.1676998740e-1f);
    y = __builtin_fmaf(y, x, -1.2420140846e-1f);
    y = __builtin_fmaf(y, x, 1.4249322787e-1f);
    y = __builtin_fmaf(y, x, -1.6668057665e-1f);
    y = __builtin_fmaf(y, x, 2.0000714765e-1f);
    y = __builtin_fmaf(y, x, -2.4999993993e-1f);
    y = __builtin_fmaf(y, x, 3.3333331174e-1f);
    y = y * x;
    y = __builtin_fmaf(y, z, e * -2.12194440e-4f);
    y = __builtin_fmaf(-z, 0.5f, y);
    return __builtin_fmaf(e, 0.693359375f, x + y);
}

/* Cephes sinf and cosf for x >= 0: reduction by multiples of pi / 4, then one polynomial each. */
static inline __attribute__((always_inline)) void sincos_poly(float x, float *sin_x, float *cos_x)
{
    const int32_t j = ((int32_t)(x * 1.27323954473516f) + 1) & ~1;
    const float y = (float)j;
    x = __builtin_fmaf(y, -0.78515625f, x);
    x = __builtin_fmaf(y, -2.4187564849853515625e-4f, x);
    x = __builtin_fmaf(y, -3.77489497744594108e-8f, x);
    const float z = x * x;
    float c = __builtin_fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = __builtin_fmaf(c, z, 4.166664568298827e-2f);
    c = c * z;
    c = __builtin_fmaf(c, z, -(z * 0.5f));
    c = c + 1.0f;
    float s = __builtin_fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = __builtin_fmaf(s, z, -1.6666654611e-1f);
    s = s * z;
    s = __builtin_fmaf(s, x, x);
    const uint32_t swap = all_bits_if((j & 2) != 0); // the polynomials trade places
    const uint32_t s_bits = h3_f32_bits(s), c_bits = h3_f32_bits(c), d = (s_bits ^ c_bits) & swap;
    *sin_x = h3_f32_from_bits(s_bits ^ d ^ (uint32_t)(j & 4) << 29);
    *cos_x = h3_f32_from_bits(c_bits ^ d ^ (uint32_t)(~(j - 2) & 4) << 29);
}

/* x [groups * 16]: uniforms in, normals out. Halves of up to BATCH groups are laid side by side
 * first: a loop of 8 would be unrolled by the compiler before it thinks of vectors. */
static inline __attribute__((always_inline)) void box_muller_body(float *x, int64_t groups)
{
    enum { BATCH = 32 };
    float a[BATCH * HALF], b[BATCH * HALF];
    for (int64_t g = 0; g < groups; g += BATCH, x += BATCH * GROUP) {
        const int n = groups - g < BATCH ? (int)(groups - g) : BATCH;
        for (int i = 0; i < n; i++) {
            memcpy(a + i * HALF, x + i * GROUP, HALF * sizeof *a);
            memcpy(b + i * HALF, x + i * GROUP + HALF, HALF * sizeof *b);
        }
        for (int i = 0; i < n * HALF; i++) {
            const float radius = sqrtf(-2.0f * log_poly(1.0f - a[i]));
            float s, c;
            sincos_poly(6.28318530717958647692f * b[i], &s, &c);
            a[i] = radius * c + 0.0f;
            b[i] = radius * s + 0.0f;
        }
        for (int i = 0; i < n; i++) {
            memcpy(x + i * GROUP, a + i * HALF, HALF * sizeof *a);
            memcpy(x + i * GROUP + HALF, b + i * HALF, HALF * sizeof *b);
        }
    }
}

static void box_muller_plain(float *x, int64_t groups)
{
    box_muller_body(x, groups);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void box_muller_fma(float *x, int64_t groups)
{
    box_muller_body(x, groups);
}

static void box_muller(float *x, int64_t groups)
{
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        box_muller_fma(x, groups);
    else
        box_muller_plain(x, groups);
}
#else
static void box_muller(float *x, int64_t groups)
{
    box_muller_plain(x, groups);
}
#endif

void h3_rng_normal(h3_rng *r, float *out, int64_t n)
{
    assert(n >= 0);
    if (n < GROUP) {
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)normal_one(r);
        return;
    }
    for (int64_t i = 0; i < n; i += CHUNK) { // a chunk stays in the first-level cache
        const int64_t k = n - i < CHUNK ? n - i : CHUNK;
        uniforms_24(r, out + i, k);
        box_muller(out + i, k / GROUP);
    }
    if (n % GROUP) {
        uniforms_24(r, out + n - GROUP, GROUP);
        box_muller(out + n - GROUP, 1);
    }
}
