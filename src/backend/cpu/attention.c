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
 * and k as they lie, values and probabilities (rounded to bf16) paired over neighbouring keys.
 */
#include <assert.h>
#include <omp.h>

#include "product.h"
#include "size.h"

enum {
    BQ = 4,       ///< panels of NR queries per task
    BK = 12 * 14, ///< keys per block: a multiple of MR on AVX-512
    BK_AMX = 192, ///< the same in whole tiles
    PIECE = KC    ///< head channels per tile
};

typedef struct job {
    h3_tensor o, q, k, v;
    float scale;
    float after; // what scores are still multiplied by: scale when q stays bf16, else 1
    bool causal;
    bool is_pairs;  // bf16 tiles
    bool is_amx;    // on AMX: values are kept as rows of channels
    int64_t D, ldv; // ldv: row stride of the value block
    int64_t bk;     // keys per block
    int64_t depth;  // of the first product, in floats or pairs
    int64_t rows_o; // rows of a result: D, on AMX in whole tiles
} job;

/* Per-thread memory, in floats; D4 = D padded to lanes. */
typedef struct room {
    float *q;         // [BQ][D][NR] scaled queries
    float *o;         // [BQ][D][NR] unnormalised result
    float *top, *sum; // [BQ][NR]
    float *p;         // [bk][NR] scores, then probabilities of one panel
    float *k;         // [pieces][bk][LDA]
    float *v;         // [bk][ldv]; on AMX [channels][LDA] pairs
} room;

static int64_t pieces(const job *j)
{
    return h3_ceil_div(j->depth, PIECE);
}

static size_t room_floats(const job *j)
{
    return (size_t)(BQ * (j->D + j->rows_o) * NR + 2 * BQ * NR + j->bk * NR +
                    pieces(j) * j->bk * LDA + (j->is_amx ? j->rows_o * LDA : j->bk * j->ldv));
}

static room room_at(const job *j, float *at)
{
    room m = {.q = at};
    m.o = m.q + BQ * j->D * NR;
    m.top = m.o + BQ * j->rows_o * NR;
    m.sum = m.top + BQ * NR;
    m.p = m.sum + BQ * NR;
    m.k = m.p + j->bk * NR;
    m.v = m.k + pieces(j) * j->bk * LDA;
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
#if VL == 16
        const h3_amx_split split = {.n_a = 1, .n_b = 1};
        if (j->is_amx) {
            for (int64_t i = 0; i < nk; i += AMX_ROWS)
                ISA(h3_cpu_amx_bf16)
            (&split, (int)(nk - i < AMX_ROWS ? nk - i : AMX_ROWS), kc, k + i * LDA, q + c * NR,
             m->p + i * NR, c > 0, half);
            continue;
        }
#endif
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

/* Scores to probabilities against the running maximum; rescales sum and o when it moved. Pairs of
 * rows shrink to one row of bf16 pairs, in place from the front. */
static void soften(const job *j, float *p, int64_t nk, float *top, float *sum, float *o, bool first,
                   bool half)
{
    const vf after = v_set(j->after);

    for (int64_t c = 0; c < (half ? VL : NR); c += VL) {
        const vf old = v_load(top + c);
        vf now = v_load(p + c), s = v_set(0);
        for (int64_t r = 1; r < nk; r++)
            now = v_max(v_load(p + r * NR + c), now);
        now = v_max(now * after, old);
        for (int64_t r = 0; r < nk; r++) {
            const vf e = v_exp(v_fma(v_load(p + r * NR + c), after, -now));
            s += e;
            if (!j->is_pairs) {
                v_store(p + r * NR + c, e);
                continue;
            }
            vf odd = v_set(0);
            if (++r < nk) odd = v_exp(v_fma(v_load(p + r * NR + c), after, -now));
            s += odd;
            v_store(p + r / 2 * NR + c, v_pair(e, odd));
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

#if VL == 16
    if (j->is_amx) {
        const h3_amx_split split = {.n_a = 1, .n_b = 1};
        const int64_t pairs = (nk + 1) / 2, depth = h3_ceil_div(pairs, AMX_STEP) * AMX_STEP;
        memset(m->p + pairs * NR, 0, (size_t)((depth - pairs) * NR) * sizeof *m->p);
        for (int64_t i = 0; i < j->D; i += AMX_ROWS)
            ISA(h3_cpu_amx_bf16)
        (&split, (int)(j->D - i < AMX_ROWS ? j->D - i : AMX_ROWS), depth, m->v + i * LDA, m->p,
         o + i * NR, !first, half);
        return;
    }
#endif
    for (int64_t g = 0, i = 0; g < n_groups; g++) {
        const int64_t n = (j->D - i + n_groups - g - 1) / (n_groups - g);
        if (j->is_pairs) ISA(h3_cpu_bf16_cols)
        ((int)n, (nk + 1) / 2, m->v + i, j->ldv, m->p, o + i * NR, !first, half);
        else ISA(h3_cpu_tile_cols)((int)n, nk, m->v + i, j->ldv, m->p, o + i * NR, !first, half);
        i += n;
    }
}

/* Values of `nk` keys from element `at` on, as rows of channels: to[c * LDA + r] holds channel c of
 * keys 2 r and 2 r + 1, zeros past the last key up to a whole step. */
UNUSED static void load_values_amx(const job *j, int64_t at, int64_t nk, float *to)
{
    const uint16_t *v = (const uint16_t *)j->v.data + at;
    const int64_t step = j->v.st[0];

    for (int64_t r = 0; r < nk; r += 2 * VL)
        for (int64_t c = 0; c < j->D; c += VL) {
            const int64_t n = j->D - c < VL ? j->D - c : VL;
            vf t[VL];
            for (int i = 0; i < VL; i++) {
                const int64_t key = r + 2 * i;
                vh even = {0}, odd = {0};
                if (key < nk) memcpy(&even, v + key * step + c, (size_t)n * 2);
                if (key + 1 < nk) memcpy(&odd, v + (key + 1) * step + c, (size_t)n * 2);
                t[i] = (vf)(__builtin_convertvector(even, vu) | __builtin_convertvector(odd, vu)
                                                                    << 16);
            }
            v_transpose(t);
            for (int i = 0; i < n; i++)
                v_store(to + (c + i) * LDA + r / 2, t[i]);
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
        if (j->is_amx) continue;
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
    if (j->is_amx) load_values_amx(j, k0 * j->v.st[0] + hk * j->v.st[1], nk, m->v);
}

/* Queries [i0, i0 + n) of head h against keys from `begin` up to `end` (or up to the query). */
static void task(const job *j, const room *m, int64_t h, int64_t i0, int64_t n, int64_t begin,
                 int64_t end)
{
    const int64_t hk = h / (j->q.ne[1] / j->k.ne[1]);

    for (int64_t c = 0; c < n; c += NR)
        (j->is_pairs ? pack_query_pairs : pack_queries)(j, h, i0 + c, n - c < NR ? n - c : NR,
                                                        m->q + c * j->depth);
    for (int64_t i = 0; i < BQ * NR; i++)
        m->top[i] = -INFINITY;
    if (j->causal) end = i0 + n;
    for (int64_t k0 = begin; k0 < end; k0 += j->bk) {
        const int64_t nk = end - k0 < j->bk ? end - k0 : j->bk;
        load_keys(j, m, hk, k0, nk);
        for (int64_t c = 0; c < n; c += NR) {
            const bool half = n - c <= VL;
            /* The first block of a causal task holds keys of every query, so no sum stays empty;
             * later ones may lie wholly after a panel. */
            if (j->causal && k0 > i0 + c + NR - 1) continue;
            float *o = m->o + c * j->rows_o;
            scores(j, m, m->q + c * j->depth, nk, half);
            if (j->causal && k0 + nk > i0 + c) mask(m->p, nk, k0, i0 + c);
            soften(j, m->p, nk, m->top + c, m->sum + c, o, k0 == begin, half);
            weigh(j, m, o, nk, k0 == begin, half);
        }
    }
    for (int64_t c = 0; c < n; c += NR)
        store_queries(j, h, i0 + c, n - c < NR ? n - c : NR, m->o + c * j->rows_o, m->sum + c);
}

/* Tasks of all segments counted so far, to find the segment of a task. */
static int64_t blocks_of(const int32_t *cu, int g)
{
    return h3_ceil_div(cu[g + 1] - cu[g], BQ * NR);
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
    j.is_pairs = d->backend->pairs != H3_PAIRS_NONE && j.D % 2 == 0 && q.dtype == H3_BF16 &&
                 k.dtype == H3_BF16 && v.dtype == H3_BF16 && scale > 0;
    j.is_amx = j.is_pairs && d->backend->pairs == H3_PAIRS_AMX && j.D % (2 * AMX_STEP) == 0;
    j.is_pairs = j.is_amx || (j.is_pairs && d->backend->has_dot);
    j.bk = j.is_amx ? BK_AMX : BK;
    j.rows_o = j.is_amx ? h3_ceil_div(j.D, AMX_ROWS) * AMX_ROWS : j.D;
    j.after = j.is_pairs ? scale : 1.0f;
    j.depth = j.is_pairs ? j.D / 2 : j.D;
    j.ldv = (int64_t)h3_align_up((size_t)j.D, VL) + VL;
    for (int g = 0; g < n_segments; g++)
        blocks += blocks_of(cu, g);
    const size_t per_thread = h3_align_up(room_floats(&j) * sizeof(float), 64);
    H3_TRY(h3_cpu_work(d, per_thread * (size_t)d->n_threads, &work));

#pragma omp parallel for schedule(dynamic, 1) num_threads(d->n_threads)
    for (int64_t t = 0; t < H * blocks; t++) {
        if (h3_is_cancelled(d->cancel)) continue; // a long prompt spends minutes in one call
        const room m = room_at(
            &j, (float *)((unsigned char *)work + per_thread * (size_t)omp_get_thread_num()));
        int64_t b = t % blocks;
        int g = 0;
        for (; b >= blocks_of(cu, g); g++)
            b -= blocks_of(cu, g);
        const int64_t i0 = cu[g] + b * BQ * NR, left = cu[g + 1] - i0;
#if VL == 16
        if (j.is_amx) ISA(h3_cpu_amx_begin)();
#endif
        task(&j, &m, t / blocks, i0, left < BQ * NR ? left : BQ * NR, cu[g], cu[g + 1]);
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
