/**
 * Convolutions as tiled products without a stored im2col: lanes are output pixels, k runs over
 * (channel, tap), and each panel piece is gathered from the input right before it is used. Padding
 * is a table per axis and tap: output index -> input index, -1 where zeros are read; so reflection,
 * repetition and causal padding cost nothing inside the loops.
 *
 * A transposed convolution multiplies with the weight as it is stored, channels and taps being
 * rows, and adds the rows of its taps up, `stride` samples apart.
 */
#include <assert.h>
#include <omp.h>
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
    ISA(h3_cpu_fill_weight)(((const conv_ctx *)ctx)->w, n0, n, k0, kc, dst, rows);
}

static void ahead(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    ISA(h3_cpu_call_weight)(((const conv_ctx *)ctx)->w, n0, n, k0, kc);
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
                    .ahead = ahead,
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

enum {
    UP_ROWS = NB,        ///< (channel, tap) pairs of a block, at most, where a kernel allows it
    UP_PANELS = 256 / NR ///< of a block
};

/* Z [co * kernel, N] = W^T x, with W [ci, co * kernel] as it is stored, and output n = q stride + r
 * - pad of a channel is the sum over j of Z[r + j stride][q - j]. */
typedef struct up_ctx {
    h3_tensor x, y;
    const h3_weight *w;
    const float *wide;                 // the weight as f32: in place when stored so
    int64_t kernel, stride, pad, taps; // taps of an output, at most
    int64_t per_co, panels;            // of a block; lanes overlap by taps - 1
    int64_t blocks_m;
} up_ctx;

/* lanes [from, from + NR) of x, channels [k0, k0 + kc) -> to[k][NR], zeros outside. */
static void up_pack(const up_ctx *g, int64_t from, int64_t k0, int64_t kc, float *to)
{
    const int64_t N = g->x.ne[1];
    const float *x = (const float *)g->x.data + k0 * g->x.st[0] + from;

    if (from >= 0 && from + NR <= N) {
        for (int64_t k = 0; k < kc; k++, x += g->x.st[0], to += NR) {
            v_store(to, v_load(x));
            v_store(to + VL, v_load(x + VL));
        }
        return;
    }
    for (int64_t k = 0; k < kc; k++, x += g->x.st[0], to += NR)
        for (int64_t j = 0; j < NR; j++)
            to[j] = from + j >= 0 && from + j < N ? x[j] : 0.0f;
}

/* One channel: its kernel rows of Z at c (panels `gap` apart), lane 0 being q = from + taps - 1 of
 * the first tap. `line`: [stride][lanes + taps]. */
static void up_store(const up_ctx *g, int64_t co, int64_t from, const float *c, int64_t gap,
                     float *line)
{
    const int64_t lanes = g->panels * NR, room = lanes + g->taps, N = g->y.ne[1];
    const float bias = g->w->bias.data ? ((const float *)g->w->bias.data)[co] : 0.0f;
    float *y = (float *)g->y.data + co * g->y.st[0];

    memset(line, 0, (size_t)(g->stride * room) * sizeof *line);
    for (int64_t t = 0; t < g->kernel; t++)
        for (int64_t p = 0; p < g->panels; p++) {
            float *to = line + t % g->stride * room + p * NR + t / g->stride;
            const float *z = c + p * gap + t * NR;
            v_store(to, v_load(to) + v_load(z));
            v_store(to + VL, v_load(to + VL) + v_load(z + VL));
        }
    for (int64_t l = g->taps - 1; l < lanes; l++) {
        const int64_t n0 = (from + l) * g->stride - g->pad;
        if (n0 >= N) return;
        for (int64_t r = n0 < 0 ? -n0 : 0; r < g->stride && n0 + r < N; r++)
            y[n0 + r] = line[r * room + l] + bias;
    }
}

static void up_block(const up_ctx *g, int64_t block, float *room)
{
    const int64_t co0 = block / g->blocks_m * g->per_co, ci = g->x.ne[0], cols = g->w->cols;
    const int64_t n_co = g->y.ne[0] - co0 < g->per_co ? g->y.ne[0] - co0 : g->per_co;
    const int64_t lanes = g->panels * NR, rows = n_co * g->kernel, most = g->per_co * g->kernel;
    const int64_t from = block % g->blocks_m * (lanes - g->taps + 1) - (g->taps - 1);
    const int64_t left = h3_ceil_div(g->x.ne[1] - from, NR); // panels that hold anything
    const int64_t panels = left < g->panels ? left : g->panels;
    float *a = room, *b = a + KC * most, *c = b + KC * NR, *line = c + lanes * most;

    if (panels < g->panels)
        memset(c + panels * most * NR, 0, (size_t)((g->panels - panels) * most * NR) * sizeof *c);
    for (int64_t k0 = 0; k0 < ci; k0 += KC) {
        const int64_t kc = ci - k0 < KC ? ci - k0 : KC;
        for (int64_t k = 0; k < kc; k++)
            memcpy(a + k * most, g->wide + (k0 + k) * cols + co0 * g->kernel,
                   (size_t)rows * sizeof *a);
        for (int64_t p = 0; p < panels; p++) {
            const bool half = from + p * NR + VL >= g->x.ne[1];
            up_pack(g, from + p * NR, k0, kc, b);
            for (int64_t i = 0; i < rows; i += MR)
                ISA(h3_cpu_tile_cols)
            ((int)(rows - i < MR ? rows - i : MR), kc, a + i, most, b, c + (p * most + i) * NR,
             k0 > 0, half);
            for (int64_t i = 0; i < rows && half; i++) // what the half tile left
                v_store(c + (p * most + i) * NR + VL, v_set(0));
        }
    }
    for (int64_t i = 0; i < n_co; i++)
        up_store(g, co0 + i, from, c + i * g->kernel * NR, most * NR, line);
}

static h3_status conv_transpose1d(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                                  int kernel, int stride, int pad)
{
    const bool in_place =
        w->n_parts == 1 && !w->n_lora && w->part[0].encoding == H3_ENC_F32 && !w->part[0].in_scale;
    up_ctx g = {.x = x,
                .y = y,
                .w = w,
                .wide = w->part[0].data,
                .kernel = kernel,
                .stride = stride,
                .pad = pad,
                .taps = h3_ceil_div(kernel, stride)};
    float *wide = NULL;
    void *work = NULL;

    assert(w->rows == x.ne[0] && w->cols == y.ne[0] * kernel);
    assert(y.ne[1] == (x.ne[1] - 1) * stride + kernel - 2 * pad);
    const int64_t all = h3_ceil_div(y.ne[1] + pad, stride); // q's
    g.per_co = kernel < UP_ROWS ? UP_ROWS / kernel : 1;
    if (g.per_co > y.ne[0]) g.per_co = y.ne[0];
    g.panels = h3_ceil_div(all + g.taps - 1, NR);
    if (g.panels > UP_PANELS) g.panels = UP_PANELS;
    if (g.panels < h3_ceil_div(g.taps, NR) + 1) g.panels = h3_ceil_div(g.taps, NR) + 1;
    const int64_t lanes = g.panels * NR, most = g.per_co * kernel;
    const size_t floats =
        (size_t)(KC * (most + NR) + lanes * most + stride * (lanes + g.taps) + NR + 16);
    const size_t mine = h3_align_up(floats * sizeof(float), 64);
    g.blocks_m = h3_ceil_div(all, lanes - g.taps + 1);
    H3_TRY(h3_cpu_work(d, mine * (size_t)d->n_threads, &work));
    if (!in_place) { // only small stored types; the copy lives for this call
        size_t bytes;
        if (!h3_mul_size((size_t)w->rows * sizeof *wide, (size_t)w->cols, &bytes) ||
            !(wide = malloc(bytes ? bytes : 1)))
            return h3_fail(H3_E_NOMEM, "no memory to widen %s", w->name);
        h3_weight_rows(w, 0, w->rows, wide);
        g.wide = wide;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(d->n_threads)
    for (int64_t block = 0; block < h3_ceil_div(y.ne[0], g.per_co) * g.blocks_m; block++)
        up_block(&g, block, (float *)((unsigned char *)work + mine * (size_t)omp_get_thread_num()));
    free(wide);
    return H3_OK;
}

void ISA(h3_cpu_fill_convolutions)(h3_ops *op)
{
    op->conv = conv;
    op->conv_transpose1d = conv_transpose1d;
}
