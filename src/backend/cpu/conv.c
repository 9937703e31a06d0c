/**
 * Convolutions as tiled products without a stored im2col: lanes are output pixels, k runs over
 * (channel, tap), and each panel piece is gathered from the input right before it is used. Padding
 * is a table per axis and tap: output index -> input index, -1 where zeros are read; so reflection,
 * repetition and causal padding cost nothing inside the loops.
 *
 * A transposed convolution is `stride` ordinary ones: outputs n = r (mod stride) see taps r', r' +
 * stride, ..., so that every output is one sum, rounded once.
 */
#include <assert.h>
#include <stdlib.h>

#include "decode.h"
#include "line.h"
#include "product.h"
#include "size.h"

typedef struct conv_ctx {
    h3_tensor x, y, add;
    const h3_weight *w;
    const h3_conv *c;
    int64_t taps, kw, khw; // taps per channel; per line; per frame
    const int32_t *map[3]; // [kernel][outputs] input index or -1, per axis
} conv_ctx;

static void fill(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                 void *rows)
{
    ISA(h3_cpu_fill_weight)(((const conv_ctx *)ctx)->w, n0, n, k0, kc, dst, rows, true);
}

/* `len` pixels of one output line for one tap: from[index[i]], or 0 where the index is -1. */
INLINE void gather(const float *from, const int32_t *index, int64_t len, bool is_strided,
                   float *dst)
{
    /* An unstrided table never steps up by more than one, so ends that far apart mean a run. */
    if (!is_strided && index[0] >= 0 && index[len - 1] == index[0] + len - 1) {
        from += index[0];
        if (len == NR) {
            v_store(dst, v_load(from));
            v_store(dst + VL, v_load(from + VL));
            return;
        }
        for (int64_t i = 0; i < len; i++)
            dst[i] = from[i];
        return;
    }
    for (int64_t i = 0; i < len; i++)
        dst[i] = index[i] < 0 ? 0.0f : from[index[i]];
}

static void pack(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const conv_ctx *g = ctx;
    const int64_t H = g->y.ne[2], W = g->y.ne[3];

    for (int64_t j = 0; j < m;) { // runs of pixels on one output line
        const int64_t line = (m0 + j) / W, w0 = (m0 + j) % W, t = line / H, h = line % H;
        const int64_t len = W - w0 < m - j ? W - w0 : m - j;
        int64_t ci = k0 / g->taps, tap = k0 % g->taps;
        for (int64_t k = 0; k < kc; k++) {
            const int32_t ti = g->map[0][tap / g->khw * g->y.ne[1] + t];
            const int32_t hi = g->map[1][tap % g->khw / g->kw * H + h];
            float *to = dst + k * NR + j;
            if (ti < 0 || hi < 0)
                memset(to, 0, (size_t)len * sizeof *to);
            else
                gather((const float *)g->x.data + ci * g->x.st[0] + ti * g->x.st[1] +
                           hi * g->x.st[2],
                       g->map[2] + tap % g->kw * W + w0, len, g->c->stride[2] != 1, to);
            if (++tap == g->taps) {
                tap = 0;
                ci++;
            }
        }
        j += len;
    }
}

static void store(const void *ctx, int64_t n0, int64_t n, int64_t m0, int64_t m, const float *c)
{
    const conv_ctx *g = ctx;
    const int64_t H = g->y.ne[2], W = g->y.ne[3];
    const float *bias = g->w->bias.data;

    for (int64_t j = 0; j < m;) {
        const int64_t line = (m0 + j) / W, w0 = (m0 + j) % W, t = line / H, h = line % H;
        const int64_t len = W - w0 < m - j ? W - w0 : m - j;
        for (int64_t i = 0; i < n; i++) {
            const int64_t co = n0 + i;
            const float b = bias ? bias[co] : 0.0f, *from = c + i * NR + j;
            float *to = (float *)g->y.data + co * g->y.st[0] + t * g->y.st[1] + h * g->y.st[2] + w0;
            if (g->add.data) {
                const float *plus = (const float *)g->add.data + co * g->add.st[0] +
                                    t * g->add.st[1] + h * g->add.st[2] + w0;
                for (int64_t l = 0; l < len; l++)
                    to[l] = (from[l] + b) + plus[l];
            } else {
                for (int64_t l = 0; l < len; l++)
                    to[l] = from[l] + b;
            }
        }
        j += len;
    }
}

/* True when no tap of output index o reaches outside the n_in cells of its axis. */
static bool is_inside(const h3_conv *c, int axis, int64_t o, int64_t n_in)
{
    const int64_t first = o * c->stride[axis] - c->pad_lo[axis];
    return first >= 0 && first + (int64_t)(c->kernel[axis] - 1) * c->dilation[axis] < n_in;
}

/* A full panel within one line, away from every border, is read where it lies. */
static const float *direct(const void *ctx, int64_t m0, int64_t m)
{
    const conv_ctx *g = ctx;
    const h3_conv *c = g->c;
    const int64_t H = g->y.ne[2], W = g->y.ne[3], line = m0 / W, w = m0 % W;
    const int64_t t = line / H, h = line % H;

    if (m < NR || w + NR > W || !is_inside(c, 0, t, g->x.ne[1]) ||
        !is_inside(c, 1, h, g->x.ne[2]) || !is_inside(c, 2, w, g->x.ne[3]) ||
        !is_inside(c, 2, w + NR - 1, g->x.ne[3]))
        return NULL;
    return (const float *)g->x.data + (t * c->stride[0] - c->pad_lo[0]) * g->x.st[1] +
           (h * c->stride[1] - c->pad_lo[1]) * g->x.st[2] + w - c->pad_lo[2];
}

/* Where the input of (channel, tap) lies relative to what direct() returns. */
static void fill_offsets(int64_t *at, const conv_ctx *g)
{
    for (int64_t k = 0; k < g->w->cols; k++) {
        const int64_t tap = k % g->taps;
        at[k] = k / g->taps * g->x.st[0] + tap / g->khw * g->c->dilation[0] * g->x.st[1] +
                tap % g->khw / g->kw * g->c->dilation[1] * g->x.st[2] +
                tap % g->kw * g->c->dilation[2];
    }
}

/* Table of one axis: [kernel][n_out]. */
static void fill_map(int32_t *map, int64_t n_in, int64_t n_out, const h3_conv *c, int axis)
{
    for (int64_t k = 0; k < c->kernel[axis]; k++)
        for (int64_t o = 0; o < n_out; o++) {
            int64_t i = o * c->stride[axis] + k * c->dilation[axis] - c->pad_lo[axis];
            if (i < 0 || i >= n_in) {
                if (c->pad_mode[axis] == H3_PAD_EDGE)
                    i = i < 0 ? 0 : n_in - 1;
                else if (c->pad_mode[axis] == H3_PAD_REFLECT)
                    i = i < 0 ? -i : 2 * (n_in - 1) - i;
                else
                    i = -1;
            }
            map[k * n_out + o] = (int32_t)i;
        }
}

static h3_status conv(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w, const h3_conv *c,
                      h3_tensor add)
{
    conv_ctx g = {.x = x, .y = y, .add = add, .w = w, .c = c};
    int64_t *offsets = NULL;
    int32_t *maps = NULL;
    size_t n = 0;
    h3_status st;

    g.kw = c->kernel[2];
    g.khw = g.kw * c->kernel[1];
    g.taps = g.khw * c->kernel[0];
    assert(x.rank == 4 && y.rank == 4 && x.dtype == H3_F32 && y.dtype == H3_F32);
    assert(w->cols == x.ne[0] * g.taps && w->rows == y.ne[0]);
    if (ISA(h3_cpu_is_line)(x, w, c)) return ISA(h3_cpu_line)(d, y, x, w, c, add);
    for (int a = 0; a < 3; a++)
        n += (size_t)c->kernel[a] * (size_t)y.ne[a + 1];
    maps = malloc((n + 1) * sizeof *maps);
    offsets = malloc((size_t)(w->cols + 1) * sizeof *offsets);
    if (!maps || !offsets) {
        free(maps);
        free(offsets);
        return h3_fail(H3_E_NOMEM, "no memory for %zu padding indices", n);
    }
    fill_offsets(offsets, &g);
    int32_t *at = maps;
    for (int a = 0; a < 3; a++) {
        fill_map(at, x.ne[a + 1], y.ne[a + 1], c, a);
        g.map[a] = at;
        at += c->kernel[a] * y.ne[a + 1];
    }
    h3_product p = {.n = w->rows,
                    .m = y.ne[1] * y.ne[2] * y.ne[3],
                    .k = w->cols,
                    .ctx = &g,
                    .row_scratch = ISA(h3_cpu_fill_scratch)(w),
                    .fill = fill,
                    .pack = pack,
                    .store = store,
                    .direct = c->stride[2] == 1 ? direct : NULL,
                    .at = offsets};
    st = ISA(h3_cpu_product)(d, &p);
    free(offsets);
    free(maps);
    return st;
}

/* ---------------------------------------------------------------- transposed */

/* Outputs n with (n + pad) % stride == phase; tap j of this phase is tap phase + j * stride of the
 * file and reads input q - j, where q = (n + pad) / stride. */
typedef struct phase_ctx {
    h3_tensor x, y;
    const h3_weight *w;
    const float *wide; // the weight as f32 [Ci][Co * kernel]: in place when stored so
    int64_t kernel, stride, pad, phase, taps;
    int64_t q0, n0; // the first output of this phase and its q
} phase_ctx;

static void phase_fill(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                       void *rows UNUSED)
{
    const phase_ctx *g = ctx;

    /* All taps of a channel lie within a few lines of the file. */
    for (int64_t k = 0; k < kc;) {
        const int64_t ci = (k0 + k) / g->taps, tap = (k0 + k) % g->taps;
        const int64_t take = g->taps - tap < kc - k ? g->taps - tap : kc - k;
        const float *from = g->wide + ci * g->w->cols + n0 * g->kernel + g->phase + tap * g->stride;
        for (int64_t i = 0; i < n; i++, from += g->kernel)
            for (int64_t t = 0; t < take; t++)
                dst[i * LDA + k + t] = from[t * g->stride];
        k += take;
    }
}

static void phase_pack(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst)
{
    const phase_ctx *g = ctx;
    const int64_t N = g->x.ne[1];

    for (int64_t k = 0; k < kc; k++) {
        const int64_t ci = (k0 + k) / g->taps, from = g->q0 + m0 - (k0 + k) % g->taps;
        const float *x = (const float *)g->x.data + ci * g->x.st[0];
        for (int64_t j = 0; j < m; j++) {
            const int64_t i = from + j;
            dst[k * NR + j] = i >= 0 && i < N ? x[i] : 0.0f;
        }
    }
}

/* Away from both ends the panel is read where it lies; tap j looks j samples back. */
static const float *phase_direct(const void *ctx, int64_t m0, int64_t m)
{
    const phase_ctx *g = ctx;
    const int64_t from = g->q0 + m0;

    if (m < NR || from - (g->taps - 1) < 0 || from + NR > g->x.ne[1]) return NULL;
    return (const float *)g->x.data + from;
}

static void phase_store(const void *ctx, int64_t n0, int64_t n, int64_t m0, int64_t m,
                        const float *c)
{
    const phase_ctx *g = ctx;
    const float *bias = g->w->bias.data;

    for (int64_t i = 0; i < n; i++) {
        float *to = (float *)g->y.data + (n0 + i) * g->y.st[0] + g->n0 + m0 * g->stride;
        for (int64_t j = 0; j < m; j++)
            to[j * g->stride] = c[i * NR + j] + (bias ? bias[n0 + i] : 0.0f);
    }
}

static h3_status conv_transpose1d(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                                  int kernel, int stride, int pad)
{
    const bool in_place =
        w->n_parts == 1 && !w->n_lora && w->part[0].encoding == H3_ENC_F32 && !w->part[0].in_scale;
    phase_ctx g = {.x = x, .y = y, .w = w, .kernel = kernel, .stride = stride, .pad = pad};
    float *wide = NULL;
    int64_t *at = NULL; // offsets of (channel, tap), at most kernel taps a phase
    h3_status st = H3_OK;

    assert(w->rows == x.ne[0] && w->cols == y.ne[0] * kernel);
    assert(y.ne[1] == (x.ne[1] - 1) * stride + kernel - 2 * pad);
    g.wide = w->part[0].data;
    if (!in_place) { // only small stored types; the copy lives for this call
        size_t bytes;
        if (!h3_mul_size((size_t)w->rows * sizeof *wide, (size_t)w->cols, &bytes) ||
            !(wide = malloc(bytes ? bytes : 1)))
            return h3_fail(H3_E_NOMEM, "no memory to widen %s", w->name);
        h3_weight_rows(w, 0, w->rows, wide);
        g.wide = wide;
    }
    at = malloc((size_t)(w->rows * h3_ceil_div(kernel, stride) + 1) * sizeof *at);
    if (!at) st = h3_fail(H3_E_NOMEM, "no memory for the offsets of %s", w->name);
    for (g.phase = 0; g.phase < stride && st == H3_OK; g.phase++) {
        g.q0 = h3_ceil_div(pad > g.phase ? pad - g.phase : 0, stride);
        g.n0 = g.q0 * stride + g.phase - pad;
        g.taps = g.phase < kernel ? h3_ceil_div(kernel - g.phase, stride) : 0;
        const int64_t outputs = y.ne[1] > g.n0 ? h3_ceil_div(y.ne[1] - g.n0, stride) : 0;
        if (g.taps == 0) { // a stride longer than the kernel leaves outputs that only hold the bias
            for (int64_t i = 0; i < y.ne[0] * outputs; i++)
                ((float *)y.data)[i / outputs * y.st[0] + g.n0 + i % outputs * stride] =
                    w->bias.data ? ((const float *)w->bias.data)[i / outputs] : 0.0f;
            continue;
        }
        h3_product p = {.n = y.ne[0],
                        .m = outputs,
                        .k = x.ne[0] * g.taps,
                        .ctx = &g,
                        .fill = phase_fill,
                        .pack = phase_pack,
                        .store = phase_store,
                        .direct = phase_direct,
                        .at = at};
        for (int64_t k = 0; k < p.k; k++)
            at[k] = k / g.taps * x.st[0] - k % g.taps;
        st = ISA(h3_cpu_product)(d, &p);
    }
    free(at);
    free(wide);
    return st;
}

void ISA(h3_cpu_fill_convolutions)(h3_ops *op)
{
    op->conv = conv;
    op->conv_transpose1d = conv_transpose1d;
}
