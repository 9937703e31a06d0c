/**
 * Tiles, and the driver that cuts a product into tiles; see product.h.
 *
 * Blocking. A thread owns NB rows of A at a time. For each KC columns it widens them once into a
 * tile of its own (level-2 cache), then walks the panels of B (a panel's KC x NR piece sits in
 * level 1 while all row groups pass over it). Sums of unfinished tiles stay in a per-thread block
 * of C. The order of additions over k depends on nothing but KC, so results do not depend on
 * threads.
 */
#include "product.h"

#include <assert.h>
#include <omp.h>

#include "decode.h"
#include "size.h"

/* n is a constant at every call, so that acc lives in registers. */
INLINE void tile(const int n, const int v, int64_t kc, const float *a, int64_t rs, int64_t cs,
                 const float *b, float *c, bool add)
{
    vf acc[MR][2];

#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int j = 0; j < v; j++)
            acc[i][j] = v_set(0);
    for (int64_t k = 0; k < kc; k++) {
        vf x[2];
#pragma GCC unroll 2
        for (int j = 0; j < v; j++)
            x[j] = v_load(b + k * NR + j * VL);
#pragma GCC unroll 14
        for (int i = 0; i < n; i++) {
            const vf w = v_set(a[i * rs + k * cs]);
#pragma GCC unroll 2
            for (int j = 0; j < v; j++)
                acc[i][j] = v_fma(w, x[j], acc[i][j]);
        }
    }
    store_sums(n, v, acc, c, NR, add);
}

/* Unaligned loads straight from the operand; both vectors always. */
INLINE void tile_in_place(const int n, int64_t kc, const float *a, const float *b,
                          const int64_t *at, float *c, bool add)
{
    vf acc[MR][2];

#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
        acc[i][0] = acc[i][1] = v_set(0);
    for (int64_t k = 0; k < kc; k++) {
        const vf x0 = v_load(b + at[k]), x1 = v_load(b + at[k] + VL);
#pragma GCC unroll 14
        for (int i = 0; i < n; i++) {
            const vf w = v_set(a[i * LDA + k]);
            acc[i][0] = v_fma(w, x0, acc[i][0]);
            acc[i][1] = v_fma(w, x1, acc[i][1]);
        }
    }
    store_sums(n, 2, acc, c, NR, add);
}

#define ROWS(n, v)                                                                             \
    static void rows_##n##_##v(int64_t kc, const float *a, const float *b, float *c, bool add) \
    {                                                                                          \
        tile(n, v, kc, a, LDA, 1, b, c, add);                                                  \
    }
#define COLS(n, v)                                                                                \
    static void cols_##n##_##v(int64_t kc, const float *a, int64_t lda, const float *b, float *c, \
                               bool add)                                                          \
    {                                                                                             \
        tile(n, v, kc, a, 1, lda, b, c, add);                                                     \
    }
#define DIRECT(n)                                                                         \
    static void direct_##n(int64_t kc, const float *a, const float *b, const int64_t *at, \
                           float *c, bool add)                                            \
    {                                                                                     \
        tile_in_place(n, kc, a, b, at, c, add);                                           \
    }
#define BOTH(n) ROWS(n, 1) ROWS(n, 2) COLS(n, 1) COLS(n, 2) DIRECT(n)
TILE_SIZES(BOTH)

void ISA(h3_cpu_tile_rows)(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                           bool half)
{
    static void (*const table[MR + 1][2])(int64_t, const float *, const float *, float *, bool) = {
#define ROW(n) [n] = {rows_##n##_2, rows_##n##_1},
        TILE_SIZES(ROW)};
    assert(n >= 1 && n <= MR);
    table[n][half](kc, a, b, c, add);
}

void ISA(h3_cpu_tile_cols)(int n, int64_t kc, const float *a, int64_t lda, const float *b, float *c,
                           bool add, bool half)
{
    static void (*const table[MR + 1][2])(int64_t, const float *, int64_t, const float *, float *,
                                          bool) = {
#define COL(n) [n] = {cols_##n##_2, cols_##n##_1},
        TILE_SIZES(COL)};
    assert(n >= 1 && n <= MR);
    table[n][half](kc, a, lda, b, c, add);
}

void ISA(h3_cpu_tile_direct)(int n, int64_t kc, const float *a, const float *b, const int64_t *at,
                             float *c, bool add)
{
    static void (*const table[MR + 1])(int64_t, const float *, const float *, const int64_t *,
                                       float *, bool) = {
#define IN_PLACE(n) [n] = direct_##n,
        TILE_SIZES(IN_PLACE)};
    assert(n >= 1 && n <= MR);
    table[n](kc, a, b, at, c, add);
}

/* ---------------------------------------------------------------- filling from weights */

static size_t plain_bytes(const h3_weight_part *p)
{
    return p->encoding == H3_ENC_F32 ? 4 : 2;
}

/* Columns can be decoded alone when nothing mixes or scales whole rows. */
static bool by_columns(const h3_weight *w)
{
    if (w->n_lora) return false;
    for (int i = 0; i < w->n_parts; i++) {
        const h3_weight_part *p = &w->part[i];
        if (p->in_scale || p->group) return false;
        if (p->encoding > H3_ENC_F16 && p->encoding != H3_ENC_GGML) return false;
    }
    return true;
}

/* A pass reads short runs of many rows, which no hardware sees coming. */
static void call_columns(const h3_weight_part *p, int64_t r, int64_t k0, int64_t kc)
{
    const uint8_t *at = (const uint8_t *)p->data + (size_t)r * p->row_bytes +
                        (size_t)k0 * p->row_bytes / (size_t)p->cols;
    const size_t run = (size_t)kc * p->row_bytes / (size_t)p->cols;

    for (size_t i = 0; i < run; i += 64)
        __builtin_prefetch(at + i, 0, 2);
}

static void part_columns(const h3_weight_part *p, int64_t r, int64_t k0, int64_t kc, float *dst)
{
    static const h3_dtype dtype[] = {H3_F32, H3_BF16, H3_F16};
    const uint8_t *row = (const uint8_t *)p->data + (size_t)r * p->row_bytes;

    if (p->encoding <= H3_ENC_F16)
        h3_decode_dtype(dtype[p->encoding], row + (size_t)k0 * plain_bytes(p), kc, dst);
    else
        h3_decode_ggml(p->ggml_type, row, (p->row_bytes ? 0 : (p->row0 + r) * p->cols) + k0, kc,
                       dst);
}

size_t ISA(h3_cpu_fill_scratch)(const h3_weight *w)
{
    return by_columns(w) ? 0 : (size_t)NB * (size_t)w->cols * sizeof(float);
}

void ISA(h3_cpu_fill_weight)(const h3_weight *w, int64_t n0, int64_t n, int64_t k0, int64_t kc,
                             float *dst, void *row_scratch)
{
    if (row_scratch) { // whole rows once, at the first columns
        float *rows = row_scratch;
        if (k0 == 0) h3_weight_rows(w, n0, n, rows);
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + i * LDA, rows + i * w->cols + k0, (size_t)kc * sizeof *dst);
        return;
    }
    int64_t first = 0;
    for (int i = 0; i < w->n_parts; first += w->part[i++].rows) {
        const int64_t lo = n0 > first ? n0 : first, end = first + w->part[i].rows;
        const int64_t hi = n0 + n < end ? n0 + n : end;
        for (int64_t r = lo; r < hi; r++)
            part_columns(&w->part[i], r - first, k0, kc, dst + (r - n0) * LDA);
    }
}

void ISA(h3_cpu_call_weight)(const h3_weight *w, int64_t n0, int64_t n, int64_t k0, int64_t kc)
{
    int64_t first = 0;

    if (!by_columns(w)) return;
    for (int i = 0; i < w->n_parts; first += w->part[i++].rows)
        for (int64_t r = n0; r < n0 + n; r++)
            if (r >= first && r < first + w->part[i].rows)
                call_columns(&w->part[i], r - first, k0, kc);
}

/* ---------------------------------------------------------------- the driver */

/* How a product is cut. Panels are counted in NR lanes. */
typedef struct cut {
    int64_t panels;    // of the whole of B
    int64_t per_block; // panels per block of C
    int64_t per_n;     // rows of A per block
    int64_t blocks_n, blocks_m;
    size_t b_bytes;      // shared panels of B, or one panel's piece per thread
    size_t thread_bytes; // per thread: tile, C, own piece of B, row scratch
} cut;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum { MAX_PANELS = 1024 / NR }; ///< C of a block: at most 1024 lanes x NB rows, 0.9 MB

/* On AMX sums come back so soon that C must stay in level 2, beside a tile and what a pass reads of
 * B. */
static int64_t max_panels(const h3_product *p)
{
    return p->is_amx ? MAX_PANELS / 2 : MAX_PANELS;
}

/* Floats of a panel of B and of a tile of A, all pieces. Panels are kept off multiples of a power
 * of two: at widths like 2048, or 5376 in three pieces, all of them would meet in the same few sets
 * of level 2. */
static int64_t panel_floats(const h3_product *p)
{
    const int64_t n = p->k * NR * (p->is_amx ? p->split.n_b : 1) + PANEL_GAP;
    return n % (4 * PANEL_GAP) ? n : n + PANEL_GAP / 2;
}

static int64_t tile_floats(const h3_product *p)
{
    return p->is_amx ? p->split.n_a * NB * p->kc : (int64_t)NB * LDA;
}

/* Cycles of a block for each group of k, roughly: its products, bringing its rows of A into tiles,
 * and its panels of B from far caches or from where they must be packed. */
static double block_cycles(const h3_product *p, int64_t n_rows, int64_t panels)
{
    const double rows = (double)n_rows, lanes = (double)(panels * NR);
    const double own = p->share ? 0.4 : p->direct ? 0.15 : 0.5;

    if (!p->is_amx) return rows * lanes / (p->tile ? 64 : 28) + rows + lanes * own;
    const int products = p->split.n_a * p->split.n_b;
    return rows * lanes * (products > 3 ? 6 : products) / 150 + rows * (p->split.n_a > 1 ? 2 : 1) +
           lanes * own * p->split.n_b;
}

/* Big blocks bring each operand into cache seldom, small ones feed every thread until the end. */
static cut cut_product(const h3_product *p, int n_threads, int64_t panels)
{
    cut c = {.panels = panels}, best = c;
    const int64_t group = p->is_amx ? AMX_ROWS : MR;
    double least_cycles = 0;

    c.blocks_n = h3_ceil_div(p->n, NB);
    c.per_n = h3_ceil_div(h3_ceil_div(p->n, c.blocks_n), group) * group; // even, in whole groups
    for (bool is_last_n = false; !is_last_n;
         c.per_n = h3_ceil_div(h3_ceil_div(c.per_n, 2), group) * group) {
        is_last_n = n_threads == 1 || c.per_n <= group;
        c.blocks_n = h3_ceil_div(p->n, c.per_n);
        c.per_block = least(c.panels, max_panels(p));
        for (bool is_last = false; !is_last; c.per_block = (c.per_block + 1) / 2) {
            is_last = n_threads == 1 || c.per_block <= 1;
            c.blocks_m = h3_ceil_div(c.panels, c.per_block);
            const double one = block_cycles(p, least(c.per_n, p->n), c.per_block);
            const int64_t blocks = c.blocks_n * c.blocks_m;
            const double rounds = (double)h3_ceil_div(blocks, n_threads) * one;
            const double even = (double)blocks / n_threads * one + 0.5 * one;
            const double cycles = rounds > even ? rounds : even;
            if (least_cycles > 0 && cycles >= least_cycles) continue;
            least_cycles = cycles;
            best = c;
        }
    }
    c = best;
    c.b_bytes = p->share ? (size_t)c.panels * (size_t)panel_floats(p) * sizeof(float) : 0;
    c.thread_bytes = (size_t)tile_floats(p) * sizeof(float) +
                     (size_t)(c.per_block * c.per_n) * NR * sizeof(float) +
                     (size_t)KC * NR * sizeof(float);
    c.thread_bytes = h3_align_up(c.thread_bytes, 64) + h3_align_up(p->row_scratch, 64);
    return c;
}

/* One thread's block of C. */
typedef struct block {
    const h3_product *p;
    int64_t n0, n, per_n;    // rows of A, and of C's panels
    int64_t next_n0;         // rows of A of the block that this thread may do next
    int64_t p0, p1;          // panels of B
    int64_t m_base, m_end;   // lanes of the slab
    const float *b;          // its panels where they are shared
    float *a, *sums, *own_b; // a tile, C, a piece of a panel
    unsigned char *rows;     // row scratch
} block;

/* Where columns k.. of a shared panel lie, and the floats of kc of them. */
static int64_t piece_floats(const h3_product *p, int64_t kc)
{
    return kc * NR * (p->is_amx ? p->split.n_b : 1);
}

static const float *piece_at(const block *t, int64_t panel, int64_t k)
{
    return t->b + panel * panel_floats(t->p) + piece_floats(t->p, k);
}

/* What a thread will read or write soon. It is called for into level 2 while tiles work, a share
 * with each tile: left to the loads and stores, tiles would wait for it; all at once, the loads of
 * the next tile would wait behind it. Of B only where tiles are of low precision: those of f32 are
 * slow enough for the hardware to be in time. */
typedef struct coming {
    const float *b; // the piece of B after this one
    int64_t n_b;
    int64_t a0, n_a, k0, kc; // rows of A
    int64_t m0, m;           // lanes whose results are stored after these tiles
} coming;

/* Of the tiles of (panel, k0). Rows of A that were called for earlier than by the last panels would
 * have left level 2 again before they are filled. */
static coming coming_after(const block *t, int64_t panel, int64_t k0, int64_t step)
{
    enum { LAST = 8 };
    const h3_product *p = t->p;
    const int64_t k1 = least(k0 + step, p->k);
    const bool is_end = k1 == p->k, is_last = panel + 1 == t->p1;
    const int64_t next_k = is_last ? k1 : k0;
    const int64_t n_last = least(LAST, t->p1 - t->p0), i = panel - (t->p1 - n_last);
    coming c = {.k0 = is_end ? 0 : k1};

    if (p->share && p->tile && next_k < p->k) {
        c.b = piece_at(t, is_last ? t->p0 : panel + 1, next_k);
        c.n_b = piece_floats(p, least(step, p->k - next_k));
    }
    if (is_end) {
        c.m0 = t->m_base + panel * NR;
        c.m = least(NR, t->m_end - c.m0);
    }
    const int64_t first = is_end ? t->next_n0 : t->n0;
    const int64_t rows = least(t->per_n, p->n - first);
    c.kc = least(step, p->k - c.k0);
    if (i >= 0 && rows > 0) {
        c.a0 = first + rows * i / n_last;
        c.n_a = first + rows * (i + 1) / n_last - c.a0;
    }
    return c;
}

/* Share i of n of it. */
static void call_share(const block *t, const coming *next, int64_t i, int64_t n)
{
    enum { LINE = 64 / sizeof(float) };
    const h3_product *p = t->p;
    const int64_t b0 = next->n_b * i / n / LINE * LINE, b1 = next->n_b * (i + 1) / n;
    const int64_t a0 = next->n_a * i / n, a1 = next->n_a * (i + 1) / n;
    const int64_t m0 = next->m * i / n, m1 = next->m * (i + 1) / n;

    for (int64_t l = b0; l < b1; l += LINE)
        __builtin_prefetch(next->b + l, 0, 2);
    if (p->ahead && a1 > a0) p->ahead(p->ctx, next->a0 + a0, a1 - a0, next->k0, next->kc);
    if (p->results && m1 > m0) p->results(p->ctx, t->n0, t->n, next->m0 + m0, m1 - m0);
}

/* One panel's piece against all groups of rows of the tile; groups are balanced, none exceeds MR.
 * `at` NULL: b is packed. */
static void groups(const block *t, int64_t kc, const float *b, const int64_t *at, float *c,
                   bool add, bool half, const coming *next)
{
    const int64_t n_groups = h3_ceil_div(t->n, MR);
    const h3_tile_fn rows = t->p->tile ? t->p->tile : ISA(h3_cpu_tile_rows);

    for (int64_t g = 0, i = 0; g < n_groups; g++) {
        const int64_t take = (t->n - i + n_groups - g - 1) / (n_groups - g);
        const float *a = t->a + i * LDA;
        call_share(t, next, g, n_groups);
        if (at)
            ISA(h3_cpu_tile_direct)((int)take, kc, a, b, at, c + i * NR, add);
        else
            rows((int)take, kc, a, b, c + i * NR, add, half);
        i += take;
    }
}

static void plain_block(const block *t)
{
    const h3_product *p = t->p;
    const int64_t step = p->kc ? p->kc : KC;

    for (int64_t k0 = 0; k0 < p->k; k0 += step) {
        const int64_t kc = least(step, p->k - k0);
        p->fill(p->ctx, t->n0, t->n, k0, kc, t->a, t->rows);
        for (int64_t q = t->p0; q < t->p1; q++) {
            const int64_t m0 = t->m_base + q * NR, m = least(NR, t->m_end - m0);
            const float *in_place = p->direct ? p->direct(p->ctx, m0, m) : NULL;
            const float *b = in_place ? in_place : p->share ? piece_at(t, q, k0) : t->own_b;
            float *sum = t->sums + (q - t->p0) * t->per_n * NR;
            const coming next = coming_after(t, q, k0, step);
            if (!in_place && !p->share) p->pack(p->ctx, m0, m, k0, kc, t->own_b);
            groups(t, kc, b, in_place ? p->at + k0 : NULL, sum, k0 > 0, m <= VL, &next);
            if (k0 + kc == p->k) p->store(p->ctx, t->n0, t->n, m0, m, sum);
        }
    }
}

#if VL == 16
/* Rows of A to come are called for by share i of n as well, so that memory works while tiles do. */
static void call_rows(const block *t, int64_t n0, int64_t rows, int64_t k0, int64_t kc, int64_t i,
                      int64_t n)
{
    const int64_t lo = rows * i / n, hi = rows * (i + 1) / n;
    if (t->p->ahead && hi > lo) t->p->ahead(t->p->ctx, n0 + lo, hi - lo, k0, kc);
}

static void amx_tile(const h3_product *p, int rows, int64_t kc, const h3_amx_rows *a,
                     const float *b, float *c, bool add, bool half)
{
    if (p->is_bytes)
        ISA(h3_cpu_amx_int8)(rows, kc, a, b, c, add, half);
    else
        ISA(h3_cpu_amx_bf16)(&p->split, rows, kc, a, b, c, add, half);
}

/* Rows of A at a time. Of single pieces a group stays in level 1 and panels of B in level 2; B in
 * pieces is too long for that, so each panel comes once for all rows of a block. */
static int64_t chunk_rows(const h3_product *p)
{
    return p->split.n_b > 1 ? NB : AMX_ROWS;
}

/* Groups between sums. Of two operands in pieces half a pass fits level 1. */
static int64_t sum_step(const h3_product *p)
{
    return p->split.n_a > 1 && p->split.n_b > 1 ? p->kc / 2 : p->kc;
}

/* Up to so many panels load rows of a weight in place: a copy would take as long as half of their
 * products. More panels are faster with the copy, whose rows are not pages apart. */
enum { IN_PLACE = 4 };

static bool is_in_place(const block *t)
{
    return t->p->place && t->p1 - t->p0 <= IN_PLACE;
}

/* A group of rows from n0, columns from k on. Each panel calls for its share of the same rows one
 * pass later. */
static h3_amx_rows group_in_place(const block *t, int64_t n0, int64_t k, int64_t panel)
{
    const h3_product *p = t->p;
    const int64_t n = t->p1 - t->p0, q = panel - t->p0, lo = AMX_ROWS * q / n,
                  hi = AMX_ROWS * (q + 1) / n;
    h3_amx_rows a;

    p->place(p->ctx, n0, k, &a);
    if (k + p->kc >= p->k) return a;
    a.next = a.at + (size_t)lo * a.row + (size_t)p->kc * 4;
    a.next_row = a.row;
    a.n_next = (int)(hi - lo);
    return a;
}

/* Rows [i, i + n) of the block, columns [k0, k0 + kc); `next` rows from next_i at next_k follow. */
typedef struct chunk {
    int64_t i, n, k0, kc;
    int64_t next_i, n_next, next_k;
} chunk;

/* One panel's sums over columns [k, k + kc) of the pass. */
static void amx_panel(const block *t, const chunk *h, int64_t k, int64_t kc, int64_t panel)
{
    const h3_product *p = t->p;
    const int64_t at = h->k0 + k, m0 = t->m_base + panel * NR, m = least(NR, t->m_end - m0);
    float *sum = t->sums + ((panel - t->p0) * t->per_n + h->i) * NR;

    for (int64_t r = 0; r < h->n; r += AMX_ROWS) {
        const h3_amx_rows a =
            is_in_place(t)
                ? group_in_place(t, t->n0 + h->i + r, at, panel)
                : h3_amx_packed(t->a + h3_amx_a(r, k, h->kc, p->split.n_a, 0), p->split.n_a);
        amx_tile(p, (int)least(AMX_ROWS, h->n - r), kc, &a, piece_at(t, panel, at), sum + r * NR,
                 at > 0, m <= VL);
    }
    if (at + kc == p->k) p->store(p->ctx, t->n0 + h->i, h->n, m0, m, sum);
}

static void amx_chunk(const block *t, const chunk *h)
{
    const h3_product *p = t->p;
    const int64_t step = sum_step(p), n_parts = h3_ceil_div(h->kc, step) * (t->p1 - t->p0);
    int64_t part = 0;

    if (!is_in_place(t))
        p->fill(p->ctx, t->n0 + h->i, h->n, h->k0, h->kc, t->a,
                t->rows ? t->rows + (size_t)h->i * (p->row_scratch / NB) : NULL);
    for (int64_t k = 0; k < h->kc; k += step)
        for (int64_t q = t->p0; q < t->p1; q++, part++) {
            amx_panel(t, h, k, least(step, h->kc - k), q);
            if (!is_in_place(t))
                call_rows(t, t->n0 + h->next_i, h->n_next, h->next_k,
                          least(p->kc, p->k - h->next_k), part, n_parts);
        }
}

/* On AMX, so many rows at a time that their tiles of A stay in cache while all panels pass. The
 * next piece of B is not called for: with fourteen cores at it products took 3 to 13 % longer so.
 */
static void amx_block(const block *t)
{
    const h3_product *p = t->p;
    const int64_t rows = chunk_rows(p);

    for (int64_t k0 = 0; k0 < p->k; k0 += p->kc)
        for (int64_t i = 0; i < t->n; i += rows) {
            const bool same = i + rows < t->n; // the next rows are of this pass
            chunk h = {.i = i, .n = least(rows, t->n - i), .k0 = k0, .kc = least(p->kc, p->k - k0)};
            h.next_i = same ? i + rows : 0;
            h.next_k = same ? k0 : k0 + p->kc;
            h.n_next = h.next_k < p->k ? least(rows, t->n - h.next_i) : 0;
            amx_chunk(t, &h);
        }
}
#endif

static void one_block(const h3_product *p, const cut *c, int64_t i, const float *shared_b,
                      int64_t m_base, int64_t m_end, unsigned char *mine, int n_threads)
{
    const int64_t n0 = i / c->blocks_m * c->per_n, p0 = i % c->blocks_m * c->per_block;
    block t = {.p = p,
               .n0 = n0,
               .n = least(c->per_n, p->n - n0),
               .per_n = c->per_n,
               .next_n0 = (i + n_threads) / c->blocks_m * c->per_n,
               .p0 = p0,
               .p1 = least(p0 + c->per_block, c->panels),
               .m_base = m_base,
               .m_end = m_end,
               .b = shared_b,
               .a = (float *)mine};
    t.sums = t.a + tile_floats(p);
    t.own_b = t.sums + c->per_block * c->per_n * NR;
    if (p->row_scratch) t.rows = mine + c->thread_bytes - h3_align_up(p->row_scratch, 64);
#if VL == 16
    if (p->is_amx) {
        ISA(h3_cpu_amx_begin)();
        amx_block(&t);
        ISA(h3_cpu_amx_end)();
        return;
    }
#endif
    plain_block(&t);
}

/* Lanes of B packed at a time when it is shared: at most 64 MB and 1024 rows. Widening A again for
 * each such slab costs less than a hundredth of the products it feeds. */
static int64_t slab_of(const h3_product *p)
{
    if (!p->share) return p->m;
    int64_t lanes = (int64_t)(64u << 20) / (int64_t)sizeof(float) / panel_floats(p) * NR;
    if (lanes < 4 * NR) lanes = 4 * NR;
    return least(p->m, least(lanes, (int64_t)MAX_PANELS * NR));
}

h3_status ISA(h3_cpu_product)(h3_dev *d, const h3_product *p)
{
    const int64_t slab = slab_of(p);
    void *work = NULL;

    if (p->n == 0 || p->m == 0) return H3_OK;
    assert(p->k > 0);
    const int64_t n_slabs = h3_ceil_div(p->m, slab),
                  even = h3_ceil_div(h3_ceil_div(p->m, n_slabs), NR);
    const cut most = cut_product(p, d->n_threads, even);
    H3_TRY(h3_cpu_work(d, most.b_bytes + most.thread_bytes * (size_t)d->n_threads, &work));
    unsigned char *threads = (unsigned char *)work + most.b_bytes;
    /* Few panels are packed in runs of columns, so that every thread has one. */
    const int64_t pass = p->is_amx || !p->kc ? KC : p->kc; // shorter ones divide it
    const int64_t passes = h3_ceil_div(p->k, pass), wanted = h3_ceil_div(2 * d->n_threads, even);
    const int64_t run = p->packs_whole ? p->k : h3_ceil_div(passes, least(passes, wanted)) * pass;
    const int64_t n_runs = h3_ceil_div(p->k, run);

    for (int64_t base = 0; base < p->m; base += even * NR) {
        const int64_t end = least(base + even * NR, p->m);
        cut c = most;
        c.panels = h3_ceil_div(end - base, NR);
        c.blocks_m = h3_ceil_div(c.panels, c.per_block);
        const int per_group = p->is_amx ? p->split.n_b : 1;
        float *b = work;
#pragma omp parallel num_threads(d->n_threads)
        {
            if (p->share) {
#pragma omp for schedule(static)
                for (int64_t t = 0; t < c.panels * n_runs; t++) {
                    const int64_t q = t / n_runs, k0 = t % n_runs * run;
                    p->pack(p->ctx, base + q * NR, least(NR, end - base - q * NR), k0,
                            least(run, p->k - k0), b + q * panel_floats(p) + k0 * NR * per_group);
                }
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < c.blocks_n * c.blocks_m; i++)
                one_block(p, &c, i, b, base, end,
                          threads + (size_t)omp_get_thread_num() * c.thread_bytes, d->n_threads);
        }
    }
    return H3_OK;
}
