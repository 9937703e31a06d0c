/**
 * Convolutions along one line (sound), two outputs at a time.
 *
 * Outputs y[t] and y[t + d], d the dilation, share all but two of their inputs. Of x0..x3 = x[t +
 * s d], x[t + (s + 1) d], ... three taps g0, g1, g2 at s need four products instead of six
 * (Winograd, F(2,3)):
 *
 *   M1 += (x0 - x2) g0   M2 += (x1 + x2) (g0 + g1 + g2) / 2
 *   M4 += (x1 - x3) g2   M3 += (x2 - x1) (g0 - g1 + g2) / 2
 *   y[t] = M1 + M2 + M3, y[t + d] = M2 - M3 - M4
 *
 * two taps three instead of four, M1 += (x0 - x1) g0, M2 += x1 (g0 + g1), M4 += (x1 - x2) g1; one
 * tap two: M1 += x0 g0, M4 -= x1 g0. All go into the same four sums, so a kernel of 11 taps is
 * 3 + 3 + 3 + 2: 15 products for 22. Coefficients of 1 and 1/2 keep f32's accuracy.
 *
 * The line is cut into stretches of d, taken in turn into E and O: lane j of both is the pair of
 * outputs t = 2 d (j / d) + j % d and t + d. Then x[t + s d] is E or O at lane j + d (s / 2), and
 * all differences above are shifts of six sequences (DE = E[j] - E[j + d], ...): the products read
 * them in place, whatever the taps. They are made block by block and in chunks of channels that
 * stay in level 2; sums over chunks are kept in C.
 *
 * Which outputs form a pair follows from their place on the line alone, so results depend neither
 * on threads nor on blocks.
 */
#include "line.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>

#include "decode.h"
#include "product.h"
#include "size.h"

enum { E, O, DE, DO, P, Q, R, S, N_SEQS };

enum {
    GROUP = (MR + VL - 1) / VL * VL, ///< stride of a column of A: rows of one tile, whole vectors
    SUMS = 4,
    MAX_TAPS = 16,
    MAX_ROWS = 4 * MAX_TAPS, ///< products of a channel
    MAX_DILATION = 32,
    FAR = 1 << 16,    ///< tells the second output of a pair
    CACHE = 640 << 10 ///< bytes of A, sequences and C of a block: well within level 2
};

/* One product of a channel: sum[.] += weight * seq[j + shift d]. */
typedef struct line_row {
    uint8_t seq, shift;
} line_row;

/* From one vector to the next: how far on in what is read, and the phase there. */
typedef struct line_step {
    int32_t by, phase;
} line_step;

typedef struct line_ctx {
    h3_tensor x, y, add;
    const h3_weight *w;
    int64_t taps, d, pad, ci, co, n; // n: outputs of a line
    int64_t lanes;                   // pairs of one line
    int64_t lines;                   // one after the other: they share A
    int n_groups;                    // of taps
    uint8_t tap[MAX_TAPS], n_taps[MAX_TAPS];
    line_row row[SUMS][MAX_TAPS];
    int n_rows[SUMS], all_rows, max_shift;
    int slot[N_SEQS], n_seqs; // place of a sequence among those that are used, or -1
    /* Lanes of E from `phase` on lie at in_at[phase][.] of x, lanes of an output vector at
     * out_at[phase][.] of {VL of the first outputs, VL of the second}, or else FAR tells them. */
    bool is_in_fast, is_out_fast;
    int32_t in_at[MAX_DILATION][VL], out_at[2 * MAX_DILATION][VL];
    line_step in_step[MAX_DILATION], out_step[2 * MAX_DILATION]; // to the next vector
    /* How it is cut. */
    int64_t n_tiles, per_tiles, blocks_n; // tiles of MR rows; most of a block; blocks
    int64_t per_lanes, blocks_m;          // lanes of a block, a multiple of d
    int64_t chunk, n_chunks;              // channels at a time
    int64_t vectors, stride;              // of a block's lanes; floats of a sequence
    bool is_shared;                       // A is made once, before the blocks
    const int32_t *at[SUMS];              // [chunk * n_rows] where the rows of B lie
} line_ctx;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---------------------------------------------------------------- taps to products */

static void add_row(line_ctx *g, int sum, int seq, int shift)
{
    g->row[sum][g->n_rows[sum]++] = (line_row){(uint8_t)seq, (uint8_t)shift};
    g->all_rows++;
    if (shift > g->max_shift) g->max_shift = shift;
    if (g->slot[seq] < 0) g->slot[seq] = g->n_seqs++;
}

/* n taps from s on; the order of rows is that of fill_tile. */
static void add_group(line_ctx *g, int s, int n)
{
    const int h = s / 2, odd = s % 2;

    g->tap[g->n_groups] = (uint8_t)s;
    g->n_taps[g->n_groups++] = (uint8_t)n;
    if (n == 3) {
        add_row(g, 0, odd ? DO : DE, h);
        add_row(g, 1, odd ? R : P, h + odd);
        add_row(g, 2, odd ? S : Q, h + odd);
        add_row(g, 3, odd ? DE : DO, h + odd);
    } else if (n == 2) { // S and Q are the differences' negatives
        add_row(g, 0, odd ? Q : S, h);
        add_row(g, 1, odd ? E : O, h + odd);
        add_row(g, 3, odd ? S : Q, h + odd);
    } else {
        add_row(g, 0, odd ? O : E, h);
        add_row(g, 3, odd ? E : O, h + odd);
    }
}

/* Threes, and what is left: a single tap after the first three, so that 7 = 3 + 1 + 3 needs even
 * places and six sequences only. */
static void plan_taps(line_ctx *g)
{
    const int left = (int)(g->taps % 3);

    for (int i = 0; i < N_SEQS; i++)
        g->slot[i] = -1;
    for (int s = 0; s < g->taps;) {
        const int n = left == 1 && s == 3 ? 1 : (int)least(3, g->taps - s);
        add_group(g, s, n);
        s += n;
    }
}

static void plan_places(line_ctx *g)
{
    const int d = (int)g->d;

    g->is_in_fast = g->is_out_fast = VL > 4;
    for (int p = 0; p < d; p++) {
        const int next = p + VL;
        g->in_step[p] = (line_step){next / d * 2 * d + next % d - p, next % d};
        for (int i = 0; i < VL; i++) {
            g->in_at[p][i] = (p + i) / d * 2 * d + (p + i) % d - p;
            if (g->in_at[p][i] >= 2 * VL) g->is_in_fast = false;
        }
    }
    for (int p = 0; p < 2 * d; p++) {
        g->out_step[p] = (line_step){(p + VL) / (2 * d) * d, (p + VL) % (2 * d)};
        for (int i = 0; i < VL; i++) {
            const int in = (p + i) % (2 * d), lane = (p + i) / (2 * d) * d + in % d;
            g->out_at[p][i] = in < d ? lane : lane + FAR;
            if (lane >= VL) g->is_out_fast = false;
        }
    }
    for (int p = 0; p < 2 * d && g->is_out_fast; p++)
        for (int i = 0; i < VL; i++)
            if (g->out_at[p][i] >= FAR) g->out_at[p][i] += VL - FAR;
}

/* ---------------------------------------------------------------- how it is cut */

static size_t tile_floats(const line_ctx *g)
{
    return (size_t)(g->chunk * g->all_rows * GROUP);
}

/* Floats of one line of a sequence. */
static int64_t seq_stride(const line_ctx *g, int64_t vectors)
{
    const int64_t n = h3_ceil_div(vectors * VL + g->max_shift * g->d, VL) * VL;
    return n % 64 == 16 ? n : n + 16; // off powers of two
}

/* Lanes of C: whole tiles. */
static int64_t sum_lanes(int64_t vectors)
{
    return (vectors + 1) / 2 * NR;
}

static size_t block_floats(const line_ctx *g, int64_t tiles, int64_t vectors)
{
    return (size_t)tiles * tile_floats(g) +
           (size_t)(g->chunk * g->n_seqs * seq_stride(g, vectors)) +
           (size_t)(SUMS * tiles * MR * sum_lanes(vectors));
}

/* Cycles of one channel, roughly: products of a tile, an odd vector's being dearer, and making the
 * sequences of a block. */
static double tile_cycles(const line_ctx *g, int64_t vectors)
{
    return (double)(MR * g->all_rows) * ((double)vectors + 0.2 * (double)(vectors % 2)) *
           (VL == 16 ? 1.0 : 0.5);
}
static double made_cycles(const line_ctx *g, int64_t vectors)
{
    return (double)(vectors + 2) * (8 + 3 * g->n_seqs);
}

/* Cycles of one channel until the last thread ends. */
static double all_cycles(const line_ctx *g, int64_t bn, int64_t lanes, int64_t bm, int n_threads)
{
    const int64_t vectors = h3_ceil_div(lanes, VL);
    const double fill = (double)g->n_tiles * (double)(6 * g->taps + 4 * g->all_rows) / n_threads;
    const double made = made_cycles(g, vectors), one = tile_cycles(g, vectors);

    if (n_threads > 1) // the largest blocks
        return fill + (double)h3_ceil_div(bn * bm * g->lines, n_threads) *
                          ((double)h3_ceil_div(g->n_tiles, bn) * one + made);
    const double last = tile_cycles(g, h3_ceil_div(g->lanes - (bm - 1) * lanes, VL));
    return fill + (double)g->lines * ((double)g->n_tiles * ((double)(bm - 1) * one + last) +
                                      (double)(bn * bm) * made);
}

/* Blocks as large as level 2 lets them be, in such numbers that threads end together. */
static void cut_line(line_ctx *g, int n_threads)
{
    const int64_t all = h3_ceil_div(g->lanes, VL);
    double best = 0;

    g->n_tiles = h3_ceil_div(g->co, MR);
    for (int64_t bn = 1; bn <= g->n_tiles; bn++)
        for (int64_t bm = 1; bm <= all; bm = bm < 8 ? bm + 1 : bm + bm / 4) {
            const int64_t lanes = h3_ceil_div(h3_ceil_div(g->lanes, bm), g->d) * g->d;
            const int64_t vectors = h3_ceil_div(lanes, VL), blocks_m = h3_ceil_div(g->lanes, lanes);
            const int64_t tiles = h3_ceil_div(g->n_tiles, bn);
            const bool fits = block_floats(g, tiles, vectors) * sizeof(float) <= CACHE;
            const bool is_last = bn == g->n_tiles && bm + bm / 4 > all; // must take something
            if (!fits && !(is_last && best == 0)) continue;
            const double cycles = all_cycles(g, bn, lanes, blocks_m, n_threads);
            if (best > 0 && cycles >= best) continue;
            best = cycles;
            g->per_tiles = tiles;
            g->blocks_n = bn;
            g->per_lanes = lanes;
            g->blocks_m = blocks_m;
            g->vectors = vectors;
        }
    g->is_shared = g->lines * g->blocks_m > 1;
    g->stride = seq_stride(g, g->vectors);
}

/* ---------------------------------------------------------------- A: weights */

/* Columns [k0, k0 + n) of rows [n0, n1) as columns of GROUP rows: to[k][GROUP]. */
static void turn_weight(const line_ctx *g, int64_t n0, int64_t n1, int64_t k0, int64_t n, float *to,
                        float *room, void *rows)
{
    const h3_weight_part *p = &g->w->part[0];
    const bool in_place =
        g->w->n_parts == 1 && !g->w->n_lora && h3_part_is_plain(p) && p->encoding == H3_ENC_F32;
    const float *row[GROUP];

    if (!in_place) ISA(h3_cpu_fill_weight)(g->w, n0, n1 - n0, k0, n, room, rows);
    for (int64_t i = 0; i < GROUP; i++) { // rows past the end repeat the last one
        const int64_t r = least(n0 + i, n1 - 1);
        row[i] = in_place
                     ? (const float *)((const uint8_t *)p->data + (size_t)r * p->row_bytes) + k0
                     : room + (r - n0) * LDA;
    }
    if (k0 + n < g->w->cols) ISA(h3_cpu_call_weight)(g->w, n0, n1 - n0, k0 + n, n);
    for (int i0 = 0; i0 < GROUP; i0 += VL)
        for (int64_t from = 0; from < n; from += VL) {
            const int64_t k = n - from >= VL || n < VL ? from : n - VL; // the last vector overlaps
            vf v[VL];
            if (n >= VL) {
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++)
                    v[i] = v_load(row[i0 + i] + k);
            } else {
                for (int i = 0; i < VL; i++)
                    v[i] = v_get_n(row[i0 + i], H3_F32, k, (int)n);
            }
            v_transpose(v);
#pragma GCC unroll 16
            for (int i = 0; i < VL; i++)
                v_store(to + (k + i) * GROUP + i0, v[i]);
        }
}

/* Tile `tile` of channels [c0, c0 + n): A of each sum, [sum][channel, row][GROUP]. `room`: GROUP
 * rows of LDA and their transpose. */
static void fill_tile(const line_ctx *g, int64_t tile, int64_t c0, int64_t n, float *to,
                      float *room, void *rows)
{
    const int64_t n0 = tile * g->co / g->n_tiles, n1 = (tile + 1) * g->co / g->n_tiles;
    float *turned = room + GROUP * LDA, *sum[SUMS];
    const vf half = v_set(0.5f);

    turn_weight(g, n0, n1, c0 * g->taps, n * g->taps, turned, room, rows);
    sum[0] = to;
    for (int j = 1; j < SUMS; j++)
        sum[j] = sum[j - 1] + g->chunk * g->n_rows[j - 1] * GROUP;
    for (int64_t c = 0; c < n; c++)
        for (int q = 0; q < g->n_groups; q++) {
            const float *w = turned + (c * g->taps + g->tap[q]) * GROUP;
            const int k = g->n_taps[q];
            for (int i = 0; i < GROUP; i += VL) {
                const vf g0 = v_load(w + i);
                if (k == 3) {
                    const vf g1 = v_load(w + GROUP + i), g2 = v_load(w + 2 * GROUP + i);
                    const vf ends = g0 + g2;
                    v_store(sum[0] + i, g0);
                    v_store(sum[1] + i, (ends + g1) * half);
                    v_store(sum[2] + i, (ends - g1) * half);
                    v_store(sum[3] + i, g2);
                } else if (k == 2) {
                    const vf g1 = v_load(w + GROUP + i);
                    v_store(sum[0] + i, -g0);
                    v_store(sum[1] + i, g0 + g1);
                    v_store(sum[3] + i, -g1);
                } else {
                    v_store(sum[0] + i, g0);
                    v_store(sum[3] + i, -g0);
                }
            }
            sum[0] += GROUP;
            sum[3] += GROUP;
            if (k > 1) sum[1] += GROUP;
            if (k > 2) sum[2] += GROUP;
        }
}

/* ---------------------------------------------------------------- B: sequences */

/* VL lanes of E or O: line[in_at[i]]. */
INLINE vf spread(const line_ctx *g, const float *line, const int32_t *in_at)
{
    float t[VL];

    if (g->is_in_fast) return v_permute2(v_load(line), v_load(line + VL), in_at);
    for (int i = 0; i < VL; i++)
        t[i] = line[in_at[i]];
    return v_load(t);
}

/* n numbers of the line from `at` on, zeros outside it. */
static const float *take_line(const line_ctx *g, int64_t channel, int64_t l, int64_t at, int64_t n,
                              float *room)
{
    const float *line = (const float *)g->x.data + channel * g->x.st[0] + l * g->x.st[2];
    const int64_t N = g->x.ne[3];

    if (at >= 0 && at + n <= N) {
        if (channel + 1 < g->ci) // the next one's is far away
            for (int64_t i = 0; i < n; i += 16)
                __builtin_prefetch(line + g->x.st[0] + at + i);
        return line + at;
    }
    const int64_t lo = least(at < 0 ? -at : 0, n), hi = least(n, N > at ? N - at : 0);
    memset(room, 0, (size_t)lo * sizeof *room);
    if (hi > lo) memcpy(room + lo, line + at + lo, (size_t)(hi - lo) * sizeof *room);
    if (hi < n) {
        const int64_t from = hi > lo ? hi : lo;
        memset(room + from, 0, (size_t)(n - from) * sizeof *room);
    }
    return room;
}

/* Lanes of the sequences that a block's vectors read, and the same of E and O. */
static int64_t seq_lanes(const line_ctx *g, int64_t vectors)
{
    return vectors * VL + g->max_shift * g->d;
}
static int64_t eo_lanes(const line_ctx *g)
{
    return h3_ceil_div(seq_lanes(g, g->vectors), VL) * VL + h3_ceil_div(g->d, VL) * VL;
}

/* All sequences of one channel of line l for lanes from j0 on, into to[slot][stride].
 * `room`: E, O and a stretch of the line. */
static void make_sequences(const line_ctx *g, int64_t channel, int64_t l, int64_t j0,
                           int64_t vectors, float *to, float *room)
{
    const int64_t d = g->d, n = seq_lanes(g, vectors), most = eo_lanes(g);
    float *e = room, *o = room + most, *seq[N_SEQS];
    const int64_t wanted = 2 * (n + d) + 4 * (VL + d); // lanes end within 2 d of twice their index
    const float *line = take_line(g, channel, l, 2 * j0 - g->pad, wanted, o + most);
    int64_t phase = 0;

    for (int i = 0; i < N_SEQS; i++)
        seq[i] = g->slot[i] < 0 ? NULL : to + g->slot[i] * g->stride;
    for (int64_t j = 0; j < n + d; j += VL) {
        v_store(e + j, spread(g, line, g->in_at[phase]));
        v_store(o + j, spread(g, line + d, g->in_at[phase]));
        line += g->in_step[phase].by;
        phase = g->in_step[phase].phase;
    }
    for (int64_t j = 0; j < n; j += VL) {
        const vf even = v_load(e + j), odd = v_load(o + j);
        const vf even_d = v_load(e + j + d), odd_d = v_load(o + j + d);
        if (seq[E]) v_store(seq[E] + j, even);
        if (seq[O]) v_store(seq[O] + j, odd);
        if (seq[DE]) v_store(seq[DE] + j, even - even_d);
        if (seq[DO]) v_store(seq[DO] + j, odd - odd_d);
        if (seq[P]) v_store(seq[P] + j, odd + even_d);
        if (seq[Q]) v_store(seq[Q] + j, even_d - odd);
        if (seq[R]) v_store(seq[R] + j, even + odd);
        if (seq[S]) v_store(seq[S] + j, odd - even);
    }
}

/* ---------------------------------------------------------------- products */

/* c [n][ldc] (= or +=) sum_k a[k * GROUP + i] * b[at[k] ..], v vectors. */
INLINE void tile_line(const int n, const int v, int64_t kc, const float *a, const float *b,
                      const int32_t *at, float *c, int64_t ldc, bool add)
{
    vf acc[MR][2];

#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int j = 0; j < v; j++)
            acc[i][j] = v_set(0);
    for (int64_t k = 0; k < kc; k++) {
        const float *from = b + at[k];
        vf x[2];
#pragma GCC unroll 2
        for (int j = 0; j < v; j++)
            x[j] = v_load(from + j * VL);
#pragma GCC unroll 14
        for (int i = 0; i < n; i++) {
            const vf w = v_set(a[k * GROUP + i]);
#pragma GCC unroll 2
            for (int j = 0; j < v; j++)
                acc[i][j] = v_fma(w, x[j], acc[i][j]);
        }
    }
    store_sums(n, v, acc, c, ldc, add);
}

#define LINE(n, v)                                                                            \
    static void line_##n##_##v(int64_t kc, const float *a, const float *b, const int32_t *at, \
                               float *c, int64_t ldc, bool add)                               \
    {                                                                                         \
        tile_line(n, v, kc, a, b, at, c, ldc, add);                                           \
    }
#define LINES(n) LINE(n, 1) LINE(n, 2)
TILE_SIZES(LINES)

static void multiply(int n, int64_t kc, const float *a, const float *b, const int32_t *at, float *c,
                     int64_t ldc, bool add, bool half)
{
    static void (*const table[MR + 1][2])(int64_t, const float *, const float *, const int32_t *,
                                          float *, int64_t, bool) = {
#define ENTRY(n) [n] = {line_##n##_2, line_##n##_1},
        TILE_SIZES(ENTRY)};
    assert(n >= 1 && n <= MR);
    table[n][half](kc, a, b, at, c, ldc, add);
}

/* ---------------------------------------------------------------- outputs */

/* VL outputs that begin at lane 0 of y0 and y1, at places at[]. */
INLINE vf gather_pairs(const line_ctx *g, const float *y0, const float *y1, const int32_t *at)
{
    float t[VL];

    if (g->is_out_fast) return v_permute2(v_load(y0), v_load(y1), at);
    for (int i = 0; i < VL; i++)
        t[i] = at[i] < FAR ? y0[at[i]] : y1[at[i] - FAR];
    return v_load(t);
}

/* Row `co` of line l of the block from lane j0 on: its four sums [SUMS][.] at `c`, `gap` apart. */
static void store_row(const line_ctx *g, int64_t co, int64_t l, int64_t j0, int64_t vectors,
                      const float *c, int64_t gap, float *room)
{
    const int64_t t0 = 2 * j0, n = least(g->n - t0, 2 * g->per_lanes);
    const float bias = g->w->bias.data ? ((const float *)g->w->bias.data)[co] : 0.0f;
    float *to = (float *)g->y.data + co * g->y.st[0] + l * g->y.st[2] + t0;
    const float *plus =
        g->add.data ? (const float *)g->add.data + co * g->add.st[0] + l * g->add.st[2] + t0 : NULL;
    float *y0 = room, *y1 = room + (g->vectors + 2) * VL;
    int64_t phase = 0;

    for (int64_t j = 0; j < vectors * VL; j += VL) {
        const vf m1 = v_load(c + j), m2 = v_load(c + gap + j);
        const vf m3 = v_load(c + 2 * gap + j), m4 = v_load(c + 3 * gap + j);
        v_store(y0 + j, m1 + (m2 + m3) + bias);
        v_store(y1 + j, (m2 - m3) - m4 + bias);
    }
    for (int64_t t = 0; t < n; t += VL) {
        const vf v = gather_pairs(g, y0, y1, g->out_at[phase]);
        __builtin_prefetch(to + t + g->y.st[0], 1);
        if (plus) __builtin_prefetch(plus + t + g->add.st[0]);
        if (n - t >= VL) {
            v_store(to + t, plus ? v + v_load(plus + t) : v);
        } else {
            const int left = (int)(n - t);
            v_put_n(to, H3_F32, t, plus ? v + v_get_n(plus, H3_F32, t, left) : v, left);
        }
        y0 += g->out_step[phase].by;
        y1 += g->out_step[phase].by;
        phase = g->out_step[phase].phase;
    }
}

/* ---------------------------------------------------------------- the driver */

typedef struct line_room {
    float *a, *b, *c, *other; // a block's tiles, sequences, sums; short-lived lines
    void *rows;
} line_room;

/* First tile of row block bn. */
static int64_t first_tile(const line_ctx *g, int64_t bn)
{
    return bn * g->n_tiles / g->blocks_n;
}

/* `shared`: A of the tiles from shared0 on, or NULL. */
static void one_block(const line_ctx *g, int64_t block, const float *shared, int64_t shared0,
                      int64_t shared_tiles, const line_room *r)
{
    const int64_t per_n = g->lines * g->blocks_m, bn = block / per_n;
    const int64_t l = block % per_n / g->blocks_m, j0 = block % g->blocks_m * g->per_lanes;
    const int64_t tile0 = first_tile(g, bn), tiles = first_tile(g, bn + 1) - tile0;
    const int64_t vectors = h3_ceil_div(least(g->per_lanes, g->lanes - j0), VL);
    const int64_t ldc = sum_lanes(g->vectors), gap = g->per_tiles * MR * ldc;

    for (int64_t q = 0; q < g->n_chunks; q++) {
        const int64_t c0 = q * g->chunk, n = least(g->chunk, g->ci - c0);
        for (int64_t i = 0; i < n; i++)
            make_sequences(g, c0 + i, l, j0, vectors, r->b + i * g->n_seqs * g->stride, r->other);
        const float *a = r->a;
        if (shared)
            a = shared + (size_t)(q * shared_tiles + tile0 - shared0) * tile_floats(g);
        else
            for (int64_t i = 0; i < tiles; i++)
                fill_tile(g, tile0 + i, c0, n, r->a + (size_t)i * tile_floats(g), r->other,
                          r->rows ? (float *)r->rows + i * MR * g->w->cols : NULL);
        for (int64_t v = 0; v < vectors; v += 2) {
            int64_t skip = 0;
            for (int j = 0; j < SUMS; skip += g->chunk * g->n_rows[j++] * GROUP)
                for (int64_t i = 0; i < tiles; i++) {
                    const int64_t lo = (tile0 + i) * g->co / g->n_tiles;
                    const int64_t hi = (tile0 + i + 1) * g->co / g->n_tiles;
                    multiply((int)(hi - lo), n * g->n_rows[j],
                             a + (size_t)i * tile_floats(g) + skip, r->b + v * VL, g->at[j],
                             r->c + j * gap + i * MR * ldc + v * VL, ldc, q > 0, v + 1 == vectors);
                }
        }
    }
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t lo = (tile0 + i) * g->co / g->n_tiles;
        const int64_t hi = (tile0 + i + 1) * g->co / g->n_tiles;
        for (int64_t co = lo; co < hi; co++)
            store_row(g, co, l, j0, vectors, r->c + (i * MR + co - lo) * ldc, gap, r->other);
    }
}

/* Floats of line_room.other: what fill_tile, make_sequences and store_row want, one at a time. */
static size_t other_floats(const line_ctx *g)
{
    const size_t fill = GROUP * LDA + (size_t)GROUP * (KC + VL);
    const size_t lines = (size_t)(4 * eo_lanes(g) + 4 * (VL + g->d) + 2 * VL);
    return fill > lines ? fill : lines;
}

static size_t align_floats(size_t n)
{
    return h3_align_up(n * sizeof(float), 64) / sizeof(float);
}

/* Row blocks whose A is made at a time, when it is shared. */
static int64_t per_slab(const line_ctx *g)
{
    const size_t one = (size_t)(g->per_tiles * g->n_chunks) * tile_floats(g) * sizeof(float);
    const int64_t n = (int64_t)(H3_CPU_LINE_SHARED / one);
    return least(n > 0 ? n : 1, g->blocks_n);
}

/* In a team of threads: all outputs. */
static void run_blocks(const line_ctx *g, float *shared, const line_room *r)
{
    const int64_t step = g->is_shared ? per_slab(g) : g->blocks_n;
    const int64_t per_n = g->lines * g->blocks_m;

    for (int64_t bn = 0; bn < g->blocks_n; bn += step) {
        const int64_t end = least(bn + step, g->blocks_n);
        const int64_t tile0 = first_tile(g, bn), tiles = first_tile(g, end) - tile0;
        if (g->is_shared) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < tiles; i++)
                for (int64_t q = 0; q < g->n_chunks; q++) // whole rows are decoded at q == 0
                    fill_tile(g, tile0 + i, q * g->chunk, least(g->chunk, g->ci - q * g->chunk),
                              shared + (size_t)(q * tiles + i) * tile_floats(g), r->other, r->rows);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t block = bn * per_n; block < end * per_n; block++)
            one_block(g, block, g->is_shared ? shared : NULL, tile0, tiles, r);
    }
}

static h3_status run_line(h3_dev *d, const line_ctx *g)
{
    const size_t row_bytes = ISA(h3_cpu_fill_scratch)(g->w);
    const size_t rows = align_floats(row_bytes / NB / sizeof(float) * (size_t)(g->per_tiles * MR));
    const size_t tiles = align_floats((size_t)g->per_tiles * tile_floats(g));
    const size_t seqs = align_floats((size_t)(g->chunk * g->n_seqs * g->stride) + NR);
    const size_t sums = align_floats((size_t)(SUMS * g->per_tiles * MR * sum_lanes(g->vectors)));
    const size_t mine = tiles + seqs + sums + align_floats(other_floats(g)) + rows;
    const size_t shared =
        g->is_shared ? align_floats((size_t)(per_slab(g) * g->n_chunks) * tiles) : 0;
    void *work = NULL;

    H3_TRY(h3_cpu_work(d, (shared + mine * (size_t)d->n_threads) * sizeof(float), &work));
    float *all = work;
#pragma omp parallel num_threads(d->n_threads)
    {
        line_room r = {.a = all + shared + mine * (size_t)omp_get_thread_num()};
        r.b = r.a + tiles;
        r.c = r.b + seqs;
        r.other = r.c + sums;
        r.rows = rows ? r.other + align_floats(other_floats(g)) : NULL;
        run_blocks(g, all, &r);
    }
    return H3_OK;
}

bool ISA(h3_cpu_is_line)(h3_tensor x, const h3_weight *w, const h3_conv *c)
{
    for (int a = 0; a < 2; a++)
        if (x.ne[1] != 1 || c->kernel[a] != 1 || c->stride[a] != 1 || c->pad_lo[a] || c->pad_hi[a])
            return false;
    return c->stride[2] == 1 && c->pad_mode[2] == H3_PAD_ZERO && c->pad_lo[2] >= 0 &&
           c->kernel[2] >= 3 && c->kernel[2] <= MAX_TAPS && c->dilation[2] <= MAX_DILATION &&
           (c->kernel[2] + 1) * c->dilation[2] <= 128 && w->rows >= 8 && x.ne[0] >= 8 &&
           x.ne[0] <= 1024 && w->part[0].encoding != H3_ENC_GGML; // whose blocks cross channels
}

h3_status ISA(h3_cpu_line)(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                           const h3_conv *c, h3_tensor add)
{
    line_ctx g = {.x = x,
                  .y = y,
                  .add = add,
                  .w = w,
                  .taps = c->kernel[2],
                  .d = c->dilation[2],
                  .pad = c->pad_lo[2],
                  .ci = x.ne[0],
                  .co = y.ne[0],
                  .n = y.ne[3],
                  .lines = y.ne[2]};
    int32_t *at = NULL;
    h3_status st;

    assert(w->cols == g.ci * g.taps && w->rows == g.co);
    if (g.n == 0) return H3_OK;
    g.lanes = g.n / (2 * g.d) * g.d + least(g.n % (2 * g.d), g.d);
    plan_taps(&g);
    plan_places(&g);
    g.chunk = least(g.ci, KC / g.taps);
    g.n_chunks = h3_ceil_div(g.ci, g.chunk);
    g.chunk = h3_ceil_div(g.ci, g.n_chunks);
    cut_line(&g, d->n_threads);
    at = malloc((size_t)(g.chunk * g.all_rows) * sizeof *at);
    if (!at) return h3_fail(H3_E_NOMEM, "no memory for the offsets of %s", w->name);
    int32_t *to = at;
    for (int j = 0; j < SUMS; j++) {
        g.at[j] = to;
        for (int64_t i = 0; i < g.chunk; i++)
            for (int k = 0; k < g.n_rows[j]; k++)
                *to++ = (int32_t)((i * g.n_seqs + g.slot[g.row[j][k].seq]) * g.stride +
                                  g.row[j][k].shift * g.d);
    }
    st = run_line(d, &g);
    free(at);
    return st;
}
