/**
 * Attention in one pass (online softmax; Milakov & Gimelshein 2018, Dao et al. 2022): a task is a
 * block of queries of one head; keys and values come in blocks that are widened into cache once and
 * serve every query of the task.
 *
 * Lanes are queries: scores come out as P [keys][queries], so the maximum, the exponential and the
 * sum of a query run down one lane, and P is at once the packed right side of the second product
 * O [D][queries] += V^T P. Nothing is ever reduced across lanes or transposed but q and the result.
 *
 * Where bf16 tiles are the faster ones (low.c) and q, k, v are bf16, both products read pairs: q
 * and k as they lie, values and probabilities (rounded to bf16) paired over neighbouring keys. On
 * AMX f32 operands go the same way in three pieces each, which leaves nothing out (amx.c).
 */
#include <assert.h>
#include <omp.h>

#include "product.h"
#include "size.h"

enum {
    BQ = 4,       ///< panels of NR queries per task at least
    BQ_MOST = 8,  ///< at most: they and a block of keys and values share level 2
    BQ_AMX = 16,  ///< at most on AMX: keys and values are cut into tiles for all of them
    BK = 12 * 14, ///< keys per block: a multiple of MR on AVX-512
    BK_AMX = 192, ///< the same in whole steps of AMX, two keys a group
    PIECE = KC    ///< head channels per tile
};

typedef struct job {
    h3_tensor o, q, k, v;
    float scale;
    float after; // what scores are still multiplied by: scale when q stays bf16, else 1
    bool causal;
    bool is_pairs;  // bf16 tiles
    bool is_amx;    // on AMX: every operand in its tiles, values as rows of channels
    int n_pieces;   // there: 1, or 3 of f32
    int64_t D, ldv; // ldv: row stride of the value block
    int64_t bq, bk; // panels of queries per task, keys per block
    int64_t depth;  // of the first product, in floats or pairs
    int64_t rows_o; // rows of a result: D, on AMX in whole tiles
} job;

/* Per-thread memory, in floats. */
typedef struct room {
    float *q;         // [bq][D][NR] scaled queries
    float *o;         // [bq][rows_o][NR] unnormalised result
    float *top, *sum; // [bq][NR]
    float *p;         // [bk][NR] scores, then probabilities of one panel
    float *e;         // on AMX: probabilities in tiles
    float *k;         // [pieces][bk][LDA]
    float *v;         // [bk][ldv]
} room;

static int64_t pieces(const job *j)
{
    return h3_ceil_div(j->depth, PIECE);
}

typedef struct sizes {
    int64_t q, o, p, e, k, v; // floats of each
} sizes;

static sizes sizes_of(const job *j)
{
    const int64_t n = j->n_pieces;

    if (j->is_amx)
        return (sizes){.q = n * j->depth * NR,
                       .o = j->rows_o * NR,
                       .p = j->bk * NR,
                       .e = n * j->bk / 2 * NR,
                       .k = n * j->bk * j->depth,
                       .v = n * j->rows_o * (j->bk / 2)};
    return (sizes){.q = j->D * NR,
                   .o = j->D * NR,
                   .p = j->bk * NR,
                   .k = pieces(j) * j->bk * LDA,
                   .v = j->bk * j->ldv};
}

static size_t room_floats(const job *j)
{
    const sizes n = sizes_of(j);
    return (size_t)(j->bq * (n.q + n.o + 2 * NR) + n.p + n.e + n.k + n.v);
}

static room room_at(const job *j, float *at)
{
    const sizes n = sizes_of(j);
    room m = {.q = at};
    m.o = m.q + j->bq * n.q;
    m.top = m.o + j->bq * n.o;
    m.sum = m.top + j->bq * NR;
    m.p = m.sum + j->bq * NR;
    m.e = m.p + n.p;
    m.k = m.e + n.e;
    m.v = m.k + n.k;
    return m;
}

/* n numbers of row `at`, widened. */
static void widen(h3_tensor t, int64_t at, int64_t n, float *dst)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(dst + i, v_get(t.data, t.dtype, at + i));
    for (; i < n; i++)
        dst[i] = h3_num_load(t.data, t.dtype, at + i);
}

/* Queries [i0, i0 + n) of head h as lanes of bf16 pairs, unscaled: dst [D / 2][NR]. */
static void pack_query_pairs(const job *j, int64_t h, int64_t i0, int64_t n, float *dst)
{
    const uint16_t *q = j->q.data;

    for (int64_t c0 = 0; c0 < NR; c0 += VL)
        for (int64_t c = 0; c < j->depth; c += VL) {
            vf r[VL] = {{0}};
            const int64_t lanes = j->depth - c < VL ? j->depth - c : VL;
            for (int i = 0; i < VL; i++) {
                const int64_t row = i0 + (c0 + i < n ? c0 + i : n - 1);
                memcpy(&r[i], q + row * j->q.st[0] + h * j->q.st[1] + 2 * c, (size_t)lanes * 4);
            }
            v_transpose(r);
            for (int i = 0; i < lanes; i++)
                v_store(dst + (c + i) * NR + c0, r[i]);
        }
}

/* The same in f32, scaled: dst [D][NR]. */
static void pack_queries(const job *j, int64_t h, int64_t i0, int64_t n, float *dst)
{
    for (int64_t c0 = 0; c0 < NR; c0 += VL)
        for (int64_t c = 0; c < j->D; c += VL) {
            vf r[VL];
            const int lanes = (int)(j->D - c < VL ? j->D - c : VL);
            for (int i = 0; i < VL; i++) { // queries past the end repeat the last one
                const int64_t row = i0 + (c0 + i < n ? c0 + i : n - 1);
                const int64_t at = row * j->q.st[0] + h * j->q.st[1] + c;
                r[i] = (lanes == VL ? v_get(j->q.data, j->q.dtype, at)
                                    : v_get_n(j->q.data, j->q.dtype, at, lanes)) *
                       j->scale;
            }
            v_transpose(r);
            for (int i = 0; i < lanes; i++)
                v_store(dst + (c + i) * NR + c0, r[i]);
        }
}

static void store_queries(const job *j, int64_t h, int64_t i0, int64_t n, const float *o,
                          const float *sum)
{
    for (int64_t c0 = 0; c0 < n; c0 += VL) {
        const vf inv = 1.0f / v_load(sum + c0);
        for (int64_t c = 0; c < j->D; c += VL) {
            vf r[VL];
            const int lanes = (int)(j->D - c < VL ? j->D - c : VL);
            for (int i = 0; i < VL; i++)
                r[i] = i < lanes ? v_load(o + (c + i) * NR + c0) * inv : v_set(0);
            v_transpose(r);
            for (int i = 0; i < VL && c0 + i < n; i++) {
                const int64_t at = (i0 + c0 + i) * j->o.st[0] + h * j->o.st[1] + c;
                if (lanes == VL)
                    v_put(j->o.data, j->o.dtype, at, r[i]);
                else
                    v_put_n(j->o.data, j->o.dtype, at, r[i], lanes);
            }
        }
    }
}

/* p [nk][NR] = K Q over all pieces of D. */
static void scores(const job *j, const room *m, const float *q, int64_t nk, bool half)
{
    const h3_tile_fn rows = j->is_pairs ? ISA(h3_cpu_bf16_rows) : ISA(h3_cpu_tile_rows);

    for (int64_t c = 0; c < j->depth; c += PIECE) {
        const int64_t kc = j->depth - c < PIECE ? j->depth - c : PIECE;
        const float *k = m->k + c / PIECE * j->bk * LDA;
        const int64_t n_groups = h3_ceil_div(nk, MR);
        for (int64_t g = 0, i = 0; g < n_groups; g++) {
            const int64_t n = (nk - i + n_groups - g - 1) / (n_groups - g);
            rows((int)n, kc, k + i * LDA, q + c * NR, m->p + i * NR, c > 0, half);
            i += n;
        }
    }
}

/* Keys after the query do not count: lane l is query i0 + l, row r is key k0 + r. */
static void mask(float *p, int64_t nk, int64_t k0, int64_t i0)
{
    for (int64_t r = 0; r < nk; r++)
        for (int64_t l = 0; l < NR && i0 + l < k0 + r; l++)
            p[r * NR + l] = -INFINITY;
}

/* Rows r and r + 1 of e as pairs of bf16: row r in the low half. Probabilities: a NaN is a quiet
 * one that rounding up cannot carry over. */
INLINE vf v_pair(vf even, vf odd)
{
    const vu e = (vu)even, o = (vu)odd;
    return (vf)((e + 0x7fff + (e >> 16 & 1)) >> 16 | ((o + 0x7fff + (o >> 16 & 1)) & 0xffff0000u));
}

/* Rows r and r + 1 of lanes c.. where the second product reads them. */
INLINE void put_pair(const job *j, float *p, float *e, int64_t r, int64_t c, vf even, vf odd)
{
#if VL == 16
    if (j->n_pieces == 3) {
        vf piece[3];
        v_pieces(even, odd, 3, piece);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++)
            v_store(e + h3_amx_b(r / 2, c, 3, i), piece[i]);
        return;
    }
    if (j->is_amx) {
        v_store(e + h3_amx_b(r / 2, c, 1, 0), v_pair(even, odd));
        return;
    }
#endif
    (void)j, (void)e;
    v_store(p + r / 2 * NR + c, v_pair(even, odd));
}

/* Scores to probabilities against the running maximum; rescales sum and o when it moved. Pairs of
 * rows shrink to one row of bf16 pairs, in place from the front, or go to the tiles at e. */
static void soften(const job *j, float *p, float *e, int64_t nk, float *top, float *sum, float *o,
                   bool first, bool half)
{
    const vf after = v_set(j->after);

    for (int64_t c = 0; c < (half ? VL : NR); c += VL) {
        const vf old = v_load(top + c);
        vf now = v_load(p + c), s = v_set(0);
        for (int64_t r = 1; r < nk; r++)
            now = v_max(v_load(p + r * NR + c), now);
        now = v_max(now * after, old);
        for (int64_t r = 0; r < nk; r++) {
            const vf even = v_exp(v_fma(v_load(p + r * NR + c), after, -now));
            s += even;
            if (!j->is_pairs) {
                v_store(p + r * NR + c, even);
                continue;
            }
            vf odd = v_set(0);
            if (++r < nk) odd = v_exp(v_fma(v_load(p + r * NR + c), after, -now));
            s += odd;
            put_pair(j, p, e, r / 2 * 2, c, even, odd);
        }
        v_store(top + c, now);
        if (first) {
            v_store(sum + c, s);
            continue;
        }
        const vf keep = v_exp(old - now);
        v_store(sum + c, v_fma(v_load(sum + c), keep, s));
        for (int64_t i = 0; i < j->D; i++)
            v_store(o + i * NR + c, v_load(o + i * NR + c) * keep);
    }
}

/* o [D][NR] (+)= V^T P. */
static void weigh(const job *j, const room *m, float *o, int64_t nk, bool first, bool half)
{
    const int64_t n_groups = h3_ceil_div(j->D, MR);

    for (int64_t g = 0, i = 0; g < n_groups; g++) {
        const int64_t n = (j->D - i + n_groups - g - 1) / (n_groups - g);
        if (j->is_pairs) ISA(h3_cpu_bf16_cols)
        ((int)n, (nk + 1) / 2, m->v + i, j->ldv, m->p, o + i * NR, !first, half);
        else ISA(h3_cpu_tile_cols)((int)n, nk, m->v + i, j->ldv, m->p, o + i * NR, !first, half);
        i += n;
    }
}

/* Keys and values [k0, k0 + nk) of head hk into the thread's room, as floats or as pairs. */
static void load_keys(const job *j, const room *m, int64_t hk, int64_t k0, int64_t nk)
{
    for (int64_t r = 0; r < nk; r++) {
        const int64_t ko = (k0 + r) * j->k.st[0] + hk * j->k.st[1];
        const int64_t vo = (k0 + r) * j->v.st[0] + hk * j->v.st[1];
        for (int64_t c = 0; c < j->depth; c += PIECE) {
            const int64_t n = j->depth - c < PIECE ? j->depth - c : PIECE;
            float *to = m->k + (c / PIECE * j->bk + r) * LDA;
            if (j->is_pairs)
                memcpy(to, (const uint16_t *)j->k.data + ko + 2 * c, (size_t)n * 4);
            else
                widen(j->k, ko + c, n, to);
        }
        if (!j->is_pairs) {
            widen(j->v, vo, j->D, m->v + r * j->ldv);
        } else if (r % 2 == 0) {
            const uint16_t *even = (const uint16_t *)j->v.data + vo;
            const uint16_t *odd = r + 1 < nk ? even + j->v.st[0] : NULL;
            uint32_t *to = (uint32_t *)(void *)(m->v + r / 2 * j->ldv);
            for (int64_t c = 0; c < j->D; c++)
                to[c] = even[c] | (odd ? (uint32_t)odd[c] << 16 : 0);
        }
    }
}

/* ---------------------------------------------------------------- AMX */

#if VL == 16
/* The pairs of n numbers of x from element `at` on, VL pairs at a time from number i on, in pieces.
 * Past the end zeros. */
INLINE void pairs_at(const job *j, h3_tensor x, int64_t at, int64_t i, int64_t n, float scale,
                     vf piece[3])
{
    if (j->n_pieces == 1) {
        const int64_t take = n - i < 2 * VL ? n - i : 2 * VL;
        piece[0] = v_set(0);
        memcpy(&piece[0], (const uint16_t *)x.data + at + i, (size_t)take * 2);
        return;
    }
    const float *from = (const float *)x.data + at + i;
    vf a, b = v_set(0);
    if (n - i >= 2 * VL) {
        a = v_load(from);
        b = v_load(from + VL);
    } else {
        a = v_get_n(from, H3_F32, 0, (int)(n - i < VL ? n - i : VL));
        if (n - i > VL) b = v_get_n(from, H3_F32, VL, (int)(n - i - VL));
    }
    v_pieces_of(a * scale, b * scale, 3, piece);
}

/* Queries [i0, i0 + n) of head h as lanes: dst in tiles of B. */
static void amx_queries(const job *j, int64_t h, int64_t i0, int64_t n, float *dst)
{
    const float scale = j->n_pieces == 3 ? j->scale : 1;

    for (int64_t c0 = 0; c0 < NR; c0 += VL)
        for (int64_t c = 0; c < j->depth; c += VL) {
            vf t[VL][3], r[VL];
            for (int i = 0; i < VL; i++) { // queries past the end repeat the last one
                const int64_t row = i0 + (c0 + i < n ? c0 + i : n - 1);
                pairs_at(j, j->q, row * j->q.st[0] + h * j->q.st[1], 2 * c, j->D, scale, t[i]);
            }
            for (int q = 0; q < j->n_pieces; q++) {
                for (int i = 0; i < VL; i++)
                    r[i] = t[i][q];
                v_transpose(r);
                for (int i = 0; i < VL; i++)
                    v_store(dst + h3_amx_b(c + i, c0, j->n_pieces, q), r[i]);
            }
        }
}

INLINE vf lanes_at(h3_tensor x, int64_t at, int lanes)
{
    return lanes == VL ? v_get(x.data, x.dtype, at) : v_get_n(x.data, x.dtype, at, lanes);
}

/* Keys [k0, k0 + nk) of head hk as rows, values as rows of channels with two keys a group: tiles of
 * A. Values past the last key are zeros up to a whole step. */
static void amx_keys(const job *j, const room *m, int64_t hk, int64_t k0, int64_t nk)
{
    const int64_t deep = h3_ceil_div(nk, 2 * AMX_STEP) * AMX_STEP; // pairs of keys, in whole steps
    const int n = j->n_pieces;
    vf t[VL][3], r[VL];

    for (int64_t i = 0; i < nk; i++)
        for (int64_t c = 0; c < j->depth; c += VL) {
            pairs_at(j, j->k, (k0 + i) * j->k.st[0] + hk * j->k.st[1], 2 * c, j->D, 1, t[0]);
            for (int q = 0; q < n; q++)
                v_store(m->k + h3_amx_a(i, c, j->depth, n, q), t[0][q]);
        }
    for (int64_t p = 0; p < deep; p += VL)
        for (int64_t c = 0; c < j->D; c += VL) {
            const int lanes = (int)(j->D - c < VL ? j->D - c : VL);
            for (int i = 0; i < VL; i++) {
                const int64_t key = 2 * (p + i), at = (k0 + key) * j->v.st[0] + hk * j->v.st[1] + c;
                v_pieces(key < nk ? lanes_at(j->v, at, lanes) : v_set(0),
                         key + 1 < nk ? lanes_at(j->v, at + j->v.st[0], lanes) : v_set(0), n, t[i]);
            }
            for (int q = 0; q < n; q++) {
                for (int i = 0; i < VL; i++)
                    r[i] = t[i][q];
                v_transpose(r);
                for (int i = 0; i < lanes; i++)
                    v_store(m->v + h3_amx_a(c + i, p, deep, n, q), r[i]);
            }
        }
}

static void amx_product(const job *j, int64_t rows, int64_t kc, const float *a, const float *b,
                        float *c, bool add, bool half)
{
    const h3_amx_split split = {.n_a = j->n_pieces, .n_b = j->n_pieces};

    for (int64_t i = 0; i < rows; i += AMX_ROWS) {
        const int n = (int)(rows - i < AMX_ROWS ? rows - i : AMX_ROWS);
        const h3_amx_rows at = h3_amx_packed(a + h3_amx_a(i, 0, kc, split.n_a, 0), split.n_a);
        ISA(h3_cpu_amx_bf16)(&split, n, kc, &at, b, c + i * NR, add, half);
    }
}

/* Probabilities of nk keys lie in m->e; the groups past the last one weigh nothing. */
static void amx_weigh(const job *j, const room *m, float *o, int64_t nk, bool first, bool half)
{
    const int64_t deep = h3_ceil_div(nk, 2 * AMX_STEP) * AMX_STEP;

    for (int64_t r = (nk + 1) / 2; r < deep; r++)
        for (int q = 0; q < j->n_pieces; q++)
            for (int c = 0; c < NR; c += VL)
                v_store(m->e + h3_amx_b(r, c, j->n_pieces, q), v_set(0));
    amx_product(j, j->D, deep, m->v, m->e, o, !first, half);
}
#endif

/* ---------------------------------------------------------------- tasks */

static void take_queries(const job *j, int64_t h, int64_t i0, int64_t n, float *dst)
{
#if VL == 16
    if (j->is_amx) {
        amx_queries(j, h, i0, n, dst);
        return;
    }
#endif
    (j->is_pairs ? pack_query_pairs : pack_queries)(j, h, i0, n, dst);
}

static void take_keys(const job *j, const room *m, int64_t hk, int64_t k0, int64_t nk)
{
#if VL == 16
    if (j->is_amx) {
        amx_keys(j, m, hk, k0, nk);
        return;
    }
#endif
    load_keys(j, m, hk, k0, nk);
}

/* One panel of queries against the block of nk keys from k0 on. */
static void attend(const job *j, const room *m, int64_t panel, int64_t i0, int64_t k0, int64_t nk,
                   bool first, bool half)
{
    const sizes n = sizes_of(j);
    const float *q = m->q + panel * n.q;
    float *o = m->o + panel * n.o, *top = m->top + panel * NR, *sum = m->sum + panel * NR;

#if VL == 16
    if (j->is_amx)
        amx_product(j, nk, j->depth, m->k, q, m->p, false, half);
    else
#endif
        scores(j, m, q, nk, half);
    if (j->causal && k0 + nk > i0) mask(m->p, nk, k0, i0);
    soften(j, m->p, m->e, nk, top, sum, o, first, half);
#if VL == 16
    if (j->is_amx)
        amx_weigh(j, m, o, nk, first, half);
    else
#endif
        weigh(j, m, o, nk, first, half);
}

/* Queries [i0, i0 + n) of head h against keys from `begin` up to `end` (or up to the query). */
static void task(const job *j, const room *m, int64_t h, int64_t i0, int64_t n, int64_t begin,
                 int64_t end)
{
    const int64_t hk = h / (j->q.ne[1] / j->k.ne[1]);

    const sizes per = sizes_of(j);
    for (int64_t c = 0; c < n; c += NR)
        take_queries(j, h, i0 + c, n - c < NR ? n - c : NR, m->q + c / NR * per.q);
    for (int64_t i = 0; i < j->bq * NR; i++)
        m->top[i] = -INFINITY;
    if (j->causal) end = i0 + n;
    for (int64_t k0 = begin; k0 < end; k0 += j->bk) {
        const int64_t nk = end - k0 < j->bk ? end - k0 : j->bk;
        take_keys(j, m, hk, k0, nk);
        for (int64_t c = 0; c < n; c += NR) {
            /* The first block of a causal task holds keys of every query, so no sum stays empty;
             * later ones may lie wholly after a panel. */
            if (j->causal && k0 > i0 + c + NR - 1) continue;
            attend(j, m, c / NR, i0 + c, k0, nk, k0 == begin, n - c <= VL);
        }
    }
    for (int64_t c = 0; c < n; c += NR)
        store_queries(j, h, i0 + c, n - c < NR ? n - c : NR, m->o + c / NR * per.o, m->sum + c);
}

/* Tasks of all segments counted so far, to find the segment of a task. */
static int64_t blocks_of(const job *j, const int32_t *cu, int g)
{
    return h3_ceil_div(cu[g + 1] - cu[g], j->bq * NR);
}

/* A task takes as many queries as leave each thread some tasks: widening keys and values, on AMX
 * cutting them into pieces, is shared by them. */
static int64_t panels_of_task(const job *j, const int32_t *cu, int n_segments, int n_threads)
{
    const int64_t most = j->is_amx ? BQ_AMX : BQ_MOST;
    int64_t panels = 0;

    for (int g = 0; g < n_segments; g++)
        panels += h3_ceil_div(cu[g + 1] - cu[g], NR);
    const int64_t share = panels * j->q.ne[1] / (4 * n_threads);
    return share < BQ ? BQ : share > most ? most : share;
}

static h3_status attention(h3_dev *d, h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v,
                           float scale, const int32_t *cu, int n_segments, bool causal)
{
    const int64_t H = q.ne[1];
    job j = {.o = o, .q = q, .k = k, .v = v, .scale = scale, .causal = causal, .D = q.ne[2]};
    int64_t blocks = 0;
    void *work = NULL;

    assert(q.rank == 3 && k.rank == 3 && q.ne[1] % k.ne[1] == 0);
    assert(cu[0] == 0 && cu[n_segments] == q.ne[0]);
    const bool is_bf16 = q.dtype == H3_BF16 && k.dtype == H3_BF16 && v.dtype == H3_BF16;
    const bool is_f32 = q.dtype == H3_F32 && k.dtype == H3_F32 && v.dtype == H3_F32;
    const h3_backend *b = d->backend;
    if (b->pairs == H3_PAIRS_AMX && j.D % (2 * AMX_STEP) == 0 && scale > 0 &&
        (is_bf16 || (is_f32 && b->amx_terms >= 6))) {
        j.is_amx = j.is_pairs = true;
        j.n_pieces = is_bf16 ? 1 : 3;
    }
    if (!j.is_amx) j.is_pairs = b->has_dot && j.D % 2 == 0 && is_bf16 && scale > 0;
    j.bk = j.is_amx ? BK_AMX : BK;
    j.bq = panels_of_task(&j, cu, n_segments, d->n_threads);
    j.rows_o = j.is_amx ? h3_ceil_div(j.D, AMX_ROWS) * AMX_ROWS : j.D;
    j.after = j.is_pairs && is_bf16 ? scale : 1.0f;
    j.depth = j.is_pairs ? j.D / 2 : j.D;
    j.ldv = (int64_t)h3_align_up((size_t)j.D, VL) + VL;
    for (int g = 0; g < n_segments; g++)
        blocks += blocks_of(&j, cu, g);
    const size_t per_thread = h3_align_up(room_floats(&j) * sizeof(float), 64);
    H3_TRY(h3_cpu_work(d, per_thread * (size_t)d->n_threads, &work));

#pragma omp parallel for schedule(dynamic, 1) num_threads(d->n_threads)
    for (int64_t t = 0; t < H * blocks; t++) {
        if (h3_is_cancelled(d->cancel)) continue; // a long prompt spends minutes in one call
        const room m = room_at(
            &j, (float *)((unsigned char *)work + per_thread * (size_t)omp_get_thread_num()));
        int64_t at = t % blocks;
        int g = 0;
        for (; at >= blocks_of(&j, cu, g); g++)
            at -= blocks_of(&j, cu, g);
        const int64_t i0 = cu[g] + at * j.bq * NR, left = cu[g + 1] - i0;
#if VL == 16
        if (j.is_amx) ISA(h3_cpu_amx_begin)();
#endif
        task(&j, &m, t / blocks, i0, left < j.bq * NR ? left : j.bq * NR, cu[g], cu[g + 1]);
#if VL == 16
        if (j.is_amx) ISA(h3_cpu_amx_end)();
#endif
    }
    return h3_dev_check(d);
}

void ISA(h3_cpu_fill_attention)(h3_ops *op)
{
    op->attention = attention;
}
