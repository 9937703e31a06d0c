/**
 * The two uint8 resizers; see resize.h.
 *
 * Both libraries work axis by axis with a uint8 picture in between (the overshoot of the first pass
 * is clipped: skipping that step is off by up to 45 levels on hard edges), share the rule for which
 * samples a filter reaches, and differ in the fixed point: Pillow has 22 fraction bits, torch
 * 16-bit weights with as many fraction bits as the largest weight of the axis allows. An axis whose
 * size does not change is left alone. The width goes first; Pillow 13 does the height first when it
 * loses more than twice as many rows as columns.
 *
 * One inner loop serves both axes: out[l] = sum_k weight[k] * in[k][l] over vectors of bytes. For
 * the height a vector is a picture row; for the width 16 rows are first turned on their side, so
 * that one vector is one column of 16 pixels.
 */
#include "resize.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

enum { MAX_SIDE = 1000000, MAX_MID = 1 << 30, ROWS = 16, VEC = 64 };

/** Weights of one axis for the output samples [first, first + n). */
typedef struct axis {
    int64_t n_in, n_out; // whole axis
    int64_t first, n;    // part that is wanted
    int64_t reach;       // weights kept per output sample
    int bits;            // fraction bits
    int32_t *weight;     // (n, reach)
    int32_t *lo, *count; // (n) first input sample, number of weights
} axis;

static double sinc(double x)
{
    if (x == 0.0) return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double filter_lanczos(double x)
{
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
}

static double filter_bicubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

static const struct {
    double (*f)(double);
    double support;
} filters[] = {[H3_LANCZOS] = {filter_lanczos, 3.0}, [H3_BICUBIC] = {filter_bicubic, 2.0}};

/** Normalised weights of output sample i into w; returns how many, *lo is the first input sample.
 */
static int64_t taps(double *w, int32_t *lo, int64_t n_in, int64_t n_out, int64_t i,
                    h3_filter filter)
{
    const double scale = (double)n_in / (double)n_out;
    const double stretch = scale > 1.0 ? scale : 1.0; // widens when shrinking, never narrows
    const double reach = filters[filter].support * stretch, narrow = 1.0 / stretch;
    const double centre = ((double)i + 0.5) * scale;
    int64_t a = (int64_t)(centre - reach + 0.5), b = (int64_t)(centre + reach + 0.5);
    double sum = 0.0;

    if (a < 0) a = 0;
    if (b > n_in) b = n_in;
    for (int64_t k = a; k < b; k++) {
        w[k - a] = filters[filter].f(((double)k - centre + 0.5) * narrow);
        sum += w[k - a];
    }
    if (sum != 0.0)
        for (int64_t k = a; k < b; k++)
            w[k - a] /= sum;
    *lo = (int32_t)a;
    return b - a;
}

/** As many fraction bits as keep the largest weight of the whole axis under 2^15. */
static int torch_bits(double *w, const axis *x)
{
    double top = 0.0;
    int bits = 0;

    for (int64_t i = 0; i < x->n_out; i++) {
        int32_t lo;
        const int64_t n = taps(w, &lo, x->n_in, x->n_out, i, H3_BICUBIC);
        for (int64_t k = 0; k < n; k++)
            if (w[k] > top) top = w[k];
    }
    while (bits < 22 && (int)(0.5 + top * (double)(1 << (bits + 1))) < 1 << 15)
        bits++;
    return bits;
}

static void axis_free(axis *x)
{
    free(x->weight);
    free(x->lo);
    free(x->count);
    memset(x, 0, sizeof *x);
}

static h3_status axis_init(axis *x, int64_t n_in, int64_t n_out, int64_t first, int64_t n,
                           h3_filter filter)
{
    const double scale = (double)n_in / (double)n_out;
    const double reach = ceil(filters[filter].support * (scale > 1.0 ? scale : 1.0)) * 2.0 + 1.0;
    double *w = NULL;
    size_t total;

    *x = (axis){.n_in = n_in, .n_out = n_out, .first = first, .n = n};
    x->reach = reach < (double)n_in ? (int64_t)reach : n_in;
    w = malloc((size_t)x->reach * sizeof *w);
    x->lo = malloc((size_t)n * sizeof *x->lo);
    x->count = malloc((size_t)n * sizeof *x->count);
    if (h3_mul_size((size_t)n, (size_t)x->reach, &total) && total <= SIZE_MAX / 4)
        x->weight = malloc(total * sizeof *x->weight);
    if (!w || !x->lo || !x->count || !x->weight) {
        free(w);
        axis_free(x);
        return h3_fail(H3_E_NOMEM, "no memory to resize %lld samples to %lld", (long long)n_in,
                       (long long)n_out);
    }
    x->bits = filter == H3_LANCZOS ? 22 : torch_bits(w, x);
    for (int64_t i = 0; i < n; i++) {
        const int64_t count = taps(w, &x->lo[i], n_in, n_out, first + i, filter);
        x->count[i] = (int32_t)count;
        for (int64_t k = 0; k < count; k++) {
            const double v = w[k] * (double)(1 << x->bits);
            x->weight[i * x->reach + k] = (int32_t)(v < 0.0 ? v - 0.5 : v + 0.5);
        }
    }
    free(w);
    return H3_OK;
}

/* The sums fit in 32 bits: weights of either filter add up to less than 1.5 in absolute value, and
 * 1.5 * 2^22 * 255 < 2^31. */
static inline __attribute__((always_inline)) void weigh(uint8_t *out, const uint8_t *in,
                                                        int64_t stride, int64_t n,
                                                        const int32_t *weight, int32_t count,
                                                        int bits)
{
    for (int64_t at = 0; at < n; at += VEC) {
        const int64_t len = n - at < VEC ? n - at : VEC;
        const uint8_t *p = in + at;
        int32_t acc[VEC];
        for (int i = 0; i < VEC; i++)
            acc[i] = 1 << (bits - 1);
        if (len == VEC) {
            for (int32_t k = 0; k < count; k++, p += stride)
                for (int i = 0; i < VEC; i++)
                    acc[i] += weight[k] * p[i];
        } else {
            for (int32_t k = 0; k < count; k++, p += stride)
                for (int i = 0; i < len; i++)
                    acc[i] += weight[k] * p[i];
        }
        for (int i = 0; i < len; i++) {
            const int32_t v = acc[i] >> bits;
            out[at + i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
    }
}

static void weigh_plain(uint8_t *out, const uint8_t *in, int64_t stride, int64_t n,
                        const int32_t *weight, int32_t count, int bits)
{
    weigh(out, in, stride, n, weight, count, bits);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void weigh_avx2(uint8_t *out, const uint8_t *in,
                                                       int64_t stride, int64_t n,
                                                       const int32_t *weight, int32_t count,
                                                       int bits)
{
    weigh(out, in, stride, n, weight, count, bits);
}
#endif

typedef void weigh_fn(uint8_t *, const uint8_t *, int64_t, int64_t, const int32_t *, int32_t, int);

static weigh_fn *pick_weigh(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return weigh_avx2;
#endif
    return weigh_plain;
}

/** in [n_in, row] -> out [x->n, row]. */
static void pass_rows(uint8_t *out, const uint8_t *in, const axis *x, int64_t row, weigh_fn *f)
{
    for (int64_t i = 0; i < x->n; i++)
        f(out + i * row, in + x->lo[i] * row, row, row, x->weight + i * x->reach, x->count[i],
          x->bits);
}

/** Turns up to 16 rows of 3-byte pixels on their side: side [w][16][3]. */
static void to_side(uint8_t *side, const uint8_t *in, int64_t w, int64_t row, int n_rows)
{
    for (int r = 0; r < ROWS; r++) {
        const uint8_t *p = in + (r < n_rows ? r : 0) * row;
        for (int64_t x = 0; x < w; x++)
            memcpy(side + (x * ROWS + r) * 3, p + 3 * x, 3);
    }
}

static void from_side(uint8_t *out, const uint8_t *side, int64_t w, int n_rows)
{
    for (int r = 0; r < n_rows; r++)
        for (int64_t x = 0; x < w; x++)
            memcpy(out + (r * w + x) * 3, side + (x * ROWS + r) * 3, 3);
}

/** in [h, n_in, 3] -> out [h, x->n, 3]. */
static h3_status pass_columns(uint8_t *out, const uint8_t *in, const axis *x, int64_t h,
                              weigh_fn *f)
{
    enum { LEN = ROWS * 3 };
    uint8_t *a = malloc((size_t)x->n_in * LEN), *b = malloc((size_t)x->n * LEN);

    for (int64_t y = 0; a && b && y < h; y += ROWS) {
        const int n_rows = h - y < ROWS ? (int)(h - y) : ROWS;
        to_side(a, in + y * x->n_in * 3, x->n_in, x->n_in * 3, n_rows);
        pass_rows(b, a, x, LEN, f);
        from_side(out + y * x->n * 3, b, x->n, n_rows);
    }
    const bool ok = a && b;
    free(a);
    free(b);
    return ok ? H3_OK : h3_fail(H3_E_NOMEM, "no memory to resize rows of %lld", (long long)x->n_in);
}

/** One axis, resized or only cut. height: in [n_in, other, 3]; else in [other, n_in, 3]. */
static h3_status one_axis(uint8_t *out, const uint8_t *in, int64_t n_in, int64_t n_out,
                          int64_t first, int64_t n, int64_t other, bool is_height, h3_filter filter)
{
    h3_status st = H3_OK;
    axis x;

    if (n_in == n_out) {
        if (is_height) {
            memcpy(out, in + first * other * 3, (size_t)(n * other) * 3);
            return H3_OK;
        }
        for (int64_t y = 0; y < other; y++)
            memcpy(out + y * n * 3, in + (y * n_in + first) * 3, (size_t)n * 3);
        return H3_OK;
    }
    H3_TRY(axis_init(&x, n_in, n_out, first, n, filter));
    if (is_height)
        pass_rows(out, in, &x, other * 3, pick_weigh());
    else
        st = pass_columns(out, in, &x, other, pick_weigh());
    axis_free(&x);
    return st;
}

static h3_status check_size(const char *what, int64_t h, int64_t w, int64_t most)
{
    if (h < 1 || w < 1 || h > most || w > most)
        return h3_fail(H3_E_ARG, "%s of %lldx%lld cannot be resized: each side must be 1..%lld",
                       what, (long long)w, (long long)h, (long long)most);
    return H3_OK;
}

static h3_status resize(uint8_t *out, int64_t out_h, int64_t out_w, int64_t mid_h, int64_t mid_w,
                        int64_t top, int64_t left, const uint8_t *in, int64_t h, int64_t w,
                        h3_filter filter)
{
    const bool rows_first = filter == H3_LANCZOS && h - mid_h > 0 && h - mid_h > 2 * (w - mid_w);
    h3_status st;
    uint8_t *between;
    size_t bytes;

    if (!h3_mul_size((size_t)(rows_first ? out_h : h), (size_t)(rows_first ? w : out_w), &bytes) ||
        !h3_mul_size(bytes, 3, &bytes) || !(between = malloc(bytes)))
        return h3_fail(H3_E_NOMEM, "no memory to resize %lldx%lld to %lldx%lld", (long long)w,
                       (long long)h, (long long)mid_w, (long long)mid_h);
    if (rows_first) {
        st = one_axis(between, in, h, mid_h, top, out_h, w, true, filter);
        if (st == H3_OK) st = one_axis(out, between, w, mid_w, left, out_w, out_h, false, filter);
    } else {
        st = one_axis(between, in, w, mid_w, left, out_w, h, false, filter);
        if (st == H3_OK) st = one_axis(out, between, h, mid_h, top, out_h, out_w, true, filter);
    }
    free(between);
    return st;
}

h3_status h3_resize(uint8_t *out, int out_h, int out_w, const uint8_t *in, int h, int w,
                    h3_filter filter)
{
    H3_TRY(check_size("picture", h, w, MAX_SIDE));
    H3_TRY(check_size("result", out_h, out_w, MAX_SIDE));
    if (out_h == h && out_w == w) {
        memcpy(out, in, (size_t)h * (size_t)w * 3);
        return H3_OK;
    }
    return resize(out, out_h, out_w, out_h, out_w, 0, 0, in, h, w, filter);
}

h3_status h3_resize_crop(uint8_t *out, int out_h, int out_w, int mid_h, int mid_w, int top,
                         int left, const uint8_t *in, int h, int w)
{
    H3_TRY(check_size("picture", h, w, MAX_SIDE));
    H3_TRY(check_size("result", out_h, out_w, MAX_SIDE));
    H3_TRY(check_size("enlarged picture", mid_h, mid_w, MAX_MID));
    if (top < 0 || left < 0 || top > mid_h - out_h || left > mid_w - out_w)
        return h3_fail(H3_E_ARG, "crop of %dx%d at (%d, %d) does not lie within %dx%d", out_w,
                       out_h, left, top, mid_w, mid_h);
    return resize(out, out_h, out_w, mid_h, mid_w, top, left, in, h, w, H3_LANCZOS);
}
