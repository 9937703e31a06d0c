/**
 * torchaudio's windowed-sinc resampler; see resample.h.
 *
 * With the reduced rates o (from) and b (to), output sample s * b + j is the dot product of kernel
 * j with the input around s * o. The kernel is, at t = (float32(-j / b) + (i - width) / o) * base,
 *
 *     cos^2(pi t / 12) * sin(pi t) / (pi t) * base / o,  t clipped to +-6,  base = 0.99 min(o, b)
 *
 * rounded to float32. The phase -j / b is rounded to float32 *before* the rest is done in double:
 * exact phases are 1e-5 off at 44.1 kHz. Where |t| is clipped the window is 4e-33, so only the taps
 * inside are kept; the reference multiplies through a table of o + 2 width taps a phase (44119 of
 * them at 44101 Hz), here it is about 12 max(1, o / b).
 */
#include "resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

enum { WIDTH = 6, MAX_RATE = 1000000 };
static const double rolloff = 0.99;

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        const int64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

static double base_of(int64_t o, int64_t b)
{
    return (double)(o < b ? o : b) * rolloff;
}

static int64_t half_width(int64_t o, int64_t b)
{
    return (int64_t)ceil((double)WIDTH * (double)o / base_of(o, b));
}

int64_t h3_resample_taps(int64_t o, int64_t b)
{
    return 2 * half_width(o, b) + o;
}

float h3_resample_tap(int64_t o, int64_t b, int64_t j, int64_t i)
{
    const double base = base_of(o, b);
    const float phase = -(float)j / (float)b;
    double t = ((double)phase + (double)(i - half_width(o, b)) / (double)o) * base, window;

    t = t < -WIDTH ? -WIDTH : t > WIDTH ? WIDTH : t;
    window = cos(t * M_PI / WIDTH / 2.0);
    window *= window;
    t *= M_PI;
    return (float)((t == 0.0 ? 1.0 : sin(t) / t) * (window * (base / (double)o)));
}

int64_t h3_resample_length(int64_t n, int from, int to)
{
    int64_t g, product;

    if (n < 0 || from <= 0 || to <= 0) return -1;
    if (from == to) return n;
    g = gcd(from, to);
    if (!h3_mul_i64(n, to / g, &product)) return -1;
    // torchaudio takes the ceiling of a float32, so a fraction below half a float32 step is lost;
    // there are never more samples than whole input blocks give.
    const int64_t most = (n / (from / g) + 1) * (to / g);
    const int64_t length = (int64_t)ceilf((float)((double)product / (double)(from / g)));
    return length < most ? length : most;
}

/** Kernels of the first n_phases phases: taps [lo[j], lo[j] + span) of each, zero beyond. */
typedef struct kernels {
    int64_t o, b, span, n_phases;
    int64_t *lo;
    float *tap; // (n_phases, span)
} kernels;

static h3_status kernels_init(kernels *k, int64_t o, int64_t b, int64_t n_phases)
{
    const int64_t all = h3_resample_taps(o, b);
    const double reach = (double)WIDTH * (double)o / base_of(o, b);
    size_t total;

    *k = (kernels){.o = o, .b = b, .span = 2 * (int64_t)ceil(reach) + 4, .n_phases = n_phases};
    if (k->span > all) k->span = all;
    k->lo = malloc((size_t)n_phases * sizeof *k->lo);
    if (h3_mul_size((size_t)n_phases, (size_t)k->span, &total) && total <= SIZE_MAX / 4)
        k->tap = malloc(total * sizeof *k->tap);
    if (!k->lo || !k->tap)
        return h3_fail(H3_E_NOMEM, "no memory for the resampler's %lld x %lld weights",
                       (long long)n_phases, (long long)k->span);
    for (int64_t j = 0; j < n_phases; j++) {
        const double centre = (double)half_width(o, b) + (double)j / (double)b * (double)o;
        int64_t lo = (int64_t)floor(centre - reach) - 1;
        if (lo > all - k->span) lo = all - k->span;
        if (lo < 0) lo = 0;
        k->lo[j] = lo;
        for (int64_t i = 0; i < k->span; i++)
            k->tap[j * k->span + i] = h3_resample_tap(o, b, j, lo + i);
    }
    return H3_OK;
}

static void kernels_free(kernels *k)
{
    free(k->lo);
    free(k->tap);
}

/** Sum over the taps that meet the input; zeros stand before and behind it. */
static float dot(const float *tap, const float *in, int64_t at, int64_t span, int64_t n)
{
    const int64_t a = at < 0 ? -at : 0, e = at + span > n ? n - at : span;
    double sum = 0.0;

    for (int64_t i = a; i < e; i++)
        sum += (double)tap[i] * (double)in[at + i];
    return (float)sum;
}

h3_status h3_resample(float *out, const float *in, int64_t n, int from, int to)
{
    const int64_t n_out = h3_resample_length(n, from, to);
    h3_status st;
    kernels k;
    int64_t g, half;

    if (from < 1 || to < 1 || from > MAX_RATE || to > MAX_RATE || n_out < 0)
        return h3_fail(H3_E_ARG, "%lld samples from %d Hz to %d Hz: rates must be 1..%d",
                       (long long)n, from, to, MAX_RATE);
    if (from == to) {
        if (n) memcpy(out, in, (size_t)n * sizeof *out);
        return H3_OK;
    }
    g = gcd(from, to);
    half = half_width(from / g, to / g);
    st = kernels_init(&k, from / g, to / g, n_out < to / g ? n_out : to / g);
    for (int64_t m = 0; st == H3_OK && m < n_out; m++) {
        const int64_t j = m % k.b, at = m / k.b * k.o + k.lo[j] - half;
        out[m] = dot(k.tap + j * k.span, in, at, k.span, n);
    }
    kernels_free(&k);
    return st;
}
