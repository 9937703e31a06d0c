/**
 * The forward of the DiT, as straight-line calls; see dit.h for the picture.
 *
 * The order of roundings is the reference's and is kept by the operations, not here; what has to be
 * kept here is the order of the calls and the type of each intermediate. Easy to get wrong:
 *   - a block's modulation rows are (timestep, modality), the final layer's only (timestep);
 *   - the refiner sees text rows alone, without rotation and without modulation;
 *   - patch projections and output heads stay f32 when the stream is bf16.
 *
 * The MLP runs over bands of rows: its [S, 2 F] product would otherwise be the largest tensor of
 * the whole forward, and rows do not see each other in it.
 *
 * Over ranks every line here sees the rows of one rank; they meet in h3_relay_attend only. The
 * refiner is the exception: its few rows are computed by every rank.
 */
#include "dit.h"

#include <assert.h>
#include <string.h>

#include "attention.h"

/* Parameters of a modulation row [6, C] of a block, and of a row [2, C] of the final layer. */
enum { SHIFT_ATTN, SCALE_ATTN, GATE_ATTN, SHIFT_MLP, SCALE_MLP, GATE_MLP };
enum { SHIFT_FINAL, SCALE_FINAL };

/* What a block needs to know of its surroundings. */
typedef struct stack {
    h3_dev *d;
    const h3_dit *m;
    const char *name; ///< "blocks" or "token_refiner.blocks", for taps
    int index;
    h3_tensor cos, sin; ///< data NULL: no rotation
    const int32_t *cu;
    int n_documents;
    h3_comm *ranks;  ///< that share the rows; NULL: all rows are here
    int64_t whole;   ///< rows over all ranks
    h3_store *store; ///< of the blocks; NULL: nothing is fetched ahead
} stack;

/* A product whose rows are some of `whole`; see h3_dev.whole_rows. */
static h3_status product(h3_dev *d, int64_t whole, h3_tensor y, h3_tensor x, const h3_weight *w)
{
    h3_status st;

    d->whole_rows = whole;
    st = d->ops->gemm(d, y, x, w, H3_ACT_NONE);
    d->whole_rows = 0;
    return st;
}

/* What is written next is for `reader` alone (see h3_dev.reader), unless somebody looks on. */
static void only_for(const stack *k, const h3_weight *reader)
{
    k->d->reader = k->d->tap ? NULL : reader;
    k->d->whole_rows = k->whole;
}

static h3_status for_all(const stack *k, h3_status st)
{
    k->d->reader = NULL;
    k->d->whole_rows = 0;
    return st;
}

/* Attention sees just the rows at hand, and nothing is sent. */
static bool is_alone(const stack *k)
{
    return h3_comm_size(k->ranks) == 1 && k->n_documents == 1;
}

/* Rows of cos or sin; both may be absent. */
static h3_tensor angles(h3_tensor table, int64_t first, int64_t n)
{
    return h3_is_null(table) ? table : h3_slice(table, 0, first, n);
}

/* packed [S, 3 H D] = q, k and v of h, band by band, each on its way to its rank when it is made.
 */
static h3_status make_heads(const stack *k, const h3_dit_block *b, h3_relay *z, h3_tensor h)
{
    const h3_dit_dims *g = &k->m->dims;
    const float eps = k->m->qk_norm_eps;
    h3_dev *d = k->d;
    int64_t at = 0, n = h.ne[0];

    for (int i = 0; i < z->n_bands; i++) {
        if (z->n_bands > 1) h3_relay_band(z, i, &at, &n);
        const h3_tensor rows = h3_slice(z->packed, 0, at, n);
        const h3_qkv p = h3_attention_split(rows, g->n_heads, g->head_dim, b->qkv.interleaved);
        const h3_tensor cos = angles(k->cos, at, n), sin = angles(k->sin, at, n);
        H3_TRY(product(d, k->whole, rows, h3_slice(h, 0, at, n), &b->qkv));
        only_for(k, is_alone(k) ? &h3_reader_attention : NULL);
        H3_TRY(for_all(
            k, d->ops->qk_norm_rope(d, p.q, p.k, b->q_norm, b->k_norm, eps, false, cos, sin)));
        H3_TRY(h3_relay_send(z, i));
    }
    return H3_OK;
}

/* z->o [S, H D] = attention of h [S, C]. */
static h3_status attend(const stack *k, const h3_dit_block *b, h3_relay *z, h3_tensor h)
{
    const h3_dit_dims *g = &k->m->dims;
    const h3_relay_shape shape = {(h3_dtype)h.dtype, b->qkv.interleaved, k->whole, g->n_heads,
                                  g->head_dim};
    h3_dev *d = k->d;

    H3_TRY(h3_relay_open(z, d, k->ranks, &shape));
    h3_tap(d, h, "%s.%d.attn_in", k->name, k->index);
    H3_TRY(make_heads(k, b, z, h));
    const h3_qkv p = h3_attention_split(z->packed, g->n_heads, g->head_dim, shape.is_interleaved);
    h3_tap(d, p.q, "%s.%d.q", k->name, k->index);
    h3_tap(d, p.k, "%s.%d.k", k->name, k->index);
    h3_tap(d, p.v, "%s.%d.v", k->name, k->index);
    only_for(k, is_alone(k) ? &b->out : NULL);
    H3_TRY(for_all(k, h3_relay_attend(z, k->cu, k->n_documents)));
    h3_tap(d, h3_view_3d(z->o, h.ne[0], g->n_heads, g->head_dim), "%s.%d.attn", k->name, k->index);
    h3_relay_close(z);
    return H3_OK;
}

/* h [S, C] = out_proj(attention(h)). */
static h3_status attend_and_project(const stack *k, const h3_dit_block *b, h3_tensor h)
{
    h3_dev *d = k->d;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_relay z;
    const h3_status st = attend(k, b, &z, h);

    if (st != H3_OK) {
        h3_comm_abandon(k->ranks);
        return st;
    }
    H3_TRY(product(d, k->whole, h, z.o, &b->out));
    h3_tap(d, h, "%s.%d.attn_out", k->name, k->index);
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* h [S, C] = fc2(silu(gate) * value), [gate | value] = fc1(h). */
static h3_status mlp(const stack *k, const h3_dit_block *b, h3_tensor h)
{
    h3_dev *d = k->d;
    const h3_ops *op = d->ops;
    const int64_t S = h.ne[0], F = k->m->dims.ffn;
    const int64_t most = S < k->m->mlp_band ? S : k->m->mlp_band;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor both = h3_scratch_2d(d, (h3_dtype)h.dtype, most, 2 * F);
    h3_tensor act = h3_scratch_2d(d, (h3_dtype)h.dtype, most, F);

    H3_TRY(h3_scratch_check(d, "DiT MLP"));
    h3_tap(d, h, "%s.%d.mlp_in", k->name, k->index);
    for (int64_t s = 0; s < S; s += most) {
        const int64_t n = S - s < most ? S - s : most;
        const h3_tensor band = h3_slice(h, 0, s, n), uv = h3_slice(both, 0, 0, n);
        const h3_tensor a = h3_slice(act, 0, 0, n);
        H3_TRY(product(d, k->whole, uv, band, &b->fc1));
        only_for(k, &b->fc2);
        H3_TRY(for_all(k, op->silu_mul(d, a, h3_slice(uv, 1, 0, F), h3_slice(uv, 1, F, F))));
        H3_TRY(product(d, k->whole, band, a, &b->fc2));
    }
    h3_tap(d, h, "%s.%d.mlp_out", k->name, k->index);
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* h = modulate(norm(x)) for the attention of block `b`, with mod [3 U, 6, C]; row [S] picks the
 * modulation of each row. */
static h3_status enter(const stack *k, const h3_dit_block *b, h3_tensor h, h3_tensor x,
                       h3_tensor mod, h3_tensor row)
{
    only_for(k, &b->qkv);
    return for_all(k, k->d->ops->rms_norm_mod(k->d, h, x, b->norm1, k->m->norm_eps, mod, SHIFT_ATTN,
                                              SCALE_ATTN, row));
}

/* x += gate * attn(h), h = modulate(norm(x)), x += gate * mlp(h), and h as the next block wants it
 * (`next` with its own modulation; NULL: there is none). */
static h3_status block_forward(const stack *k, const h3_dit_block *b, h3_tensor x, h3_tensor h,
                               h3_tensor mod, h3_tensor row, const h3_dit_block *next,
                               h3_tensor next_mod)
{
    h3_dev *d = k->d;
    const h3_ops *op = d->ops;
    const float eps = k->m->norm_eps;

    H3_TRY(attend_and_project(k, b, h));
    if (k->store) H3_TRY(h3_store_ahead(k->store, 1 + k->index)); // while the MLP computes
    only_for(k, &b->fc1);
    H3_TRY(for_all(k, op->gate_add_norm(d, h, x, h, mod, GATE_ATTN, b->norm2, eps, mod, SHIFT_MLP,
                                        SCALE_MLP, row)));
    h3_tap(d, x, "%s.%d.mid", k->name, k->index);
    H3_TRY(mlp(k, b, h));
    if (next) {
        only_for(k, &next->qkv);
        H3_TRY(for_all(k, op->gate_add_norm(d, h, x, h, mod, GATE_MLP, next->norm1, eps, next_mod,
                                            SHIFT_ATTN, SCALE_ATTN, row)));
    } else {
        H3_TRY(op->gate_add(d, x, h, mod, GATE_MLP, row));
    }
    h3_tap(d, x, "%s.%d.out", k->name, k->index);
    return H3_OK;
}

/* The same without modulation: x += attn(norm(x)), then x += mlp(norm(x)). */
static h3_status refiner_block_forward(const stack *k, const h3_dit_block *b, h3_tensor x)
{
    h3_dev *d = k->d;
    const h3_ops *op = d->ops;
    const float eps = k->m->norm_eps;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, (h3_dtype)x.dtype, x.ne[0], x.ne[1]);

    H3_TRY(h3_scratch_check(d, "token refiner"));
    H3_TRY(op->rms_norm(d, h, x, b->norm1, eps, false));
    H3_TRY(attend_and_project(k, b, h));
    H3_TRY(op->add(d, x, x, h));
    h3_tap(d, x, "%s.%d.mid", k->name, k->index);
    H3_TRY(op->rms_norm(d, h, x, b->norm2, eps, false));
    H3_TRY(mlp(k, b, h));
    H3_TRY(op->add(d, x, x, h));
    h3_tap(d, x, "%s.%d.out", k->name, k->index);
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

h3_status h3_dit_refine(h3_dev *d, const h3_dit *m, h3_tensor y, h3_tensor text, const int32_t *cu,
                        int n_documents)
{
    stack k = {.d = d,
               .m = m,
               .name = "token_refiner.blocks",
               .cu = cu,
               .n_documents = n_documents,
               .whole = text.ne[0]};

    H3_TRY(d->ops->gemm(d, y, text, &m->edge.condition_proj, H3_ACT_NONE));
    h3_tap(d, y, "condition_proj");
    for (; k.index < (int)m->dims.n_refiner; k.index++) {
        H3_TRY(h3_dev_check(d));
        H3_TRY(refiner_block_forward(&k, &m->refiner[k.index], y));
    }
    H3_TRY(d->ops->rms_norm(d, y, y, m->edge.refiner_norm, m->final_norm_eps, false));
    h3_tap(d, y, "token_refiner.final_norm");
    return H3_OK;
}

/* Rows of one medium into the sequence: projected in f32, rounded when scattered. `rows` are all of
 * the medium, `own` those that this rank has. */
static h3_status place_rows(h3_dev *d, h3_tensor x, h3_tensor rows, const h3_dit_share *own,
                            const h3_weight *proj, h3_tensor idx, const char *name)
{
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor y = h3_scratch_2d(d, H3_F32, own->n, x.ne[1]);

    H3_TRY(h3_scratch_check(d, name));
    H3_TRY(product(d, rows.ne[0], y, h3_slice(rows, 0, own->first, own->n), proj));
    h3_tap(d, y, "%s", name);
    H3_TRY(d->ops->scatter_rows(d, x, y, idx));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

static h3_status pack(h3_dev *d, const h3_dit *m, const h3_dit_state *s, h3_tensor x,
                      h3_tensor video, h3_tensor audio)
{
    H3_TRY(d->ops->scatter_rows(d, x, h3_slice(s->text, 0, s->own_text.first, s->own_text.n),
                                s->text_idx));
    H3_TRY(place_rows(d, x, video, &s->own_video, &m->edge.video_proj, s->video_idx,
                      "video_patch_proj"));
    H3_TRY(place_rows(d, x, audio, &s->own_audio, &m->edge.audio_proj, s->audio_idx,
                      "audio_patch_proj"));
    h3_tap(d, x, "packed");
    return H3_OK;
}

/* Velocities of one medium: its rows of the modulated stream through an f32 head. */
static h3_status head(h3_dev *d, h3_tensor v, h3_tensor h, const h3_dit_share *own,
                      const h3_weight *out, h3_tensor idx, const char *name)
{
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor rows = h3_scratch_2d(d, (h3_dtype)h.dtype, own->n, h.ne[1]);
    const h3_tensor mine = h3_slice(v, 0, own->first, own->n);

    H3_TRY(h3_scratch_check(d, name));
    H3_TRY(d->ops->gather_rows(d, rows, h, idx));
    H3_TRY(product(d, v.ne[0], mine, rows, out));
    h3_tap(d, mine, "%s", name);
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

static h3_status final_layer(h3_dev *d, const h3_dit *m, const h3_dit_state *s, h3_tensor v_video,
                             h3_tensor v_audio, h3_tensor x)
{
    H3_TRY(d->ops->rms_norm_mod(d, x, x, m->edge.final_norm, m->final_norm_eps, s->final_mod,
                                SHIFT_FINAL, SCALE_FINAL, s->time));
    h3_tap(d, x, "final_layer.modulated");
    H3_TRY(head(d, v_video, x, &s->own_video, &m->edge.video_out, s->video_idx, "out.video"));
    return head(d, v_audio, x, &s->own_audio, &m->edge.audio_out, s->audio_idx, "out.audio");
}

static h3_status acquire(const h3_dit_state *s, int group)
{
    return s->store ? h3_store_acquire(s->store, group) : H3_OK;
}

static void release(const h3_dit_state *s, int group)
{
    if (s->store) h3_store_release(s->store, group);
}

static h3_status run(h3_dev *d, const h3_dit *m, const h3_dit_state *s, h3_tensor v_video,
                     h3_tensor v_audio, h3_tensor video, h3_tensor audio)
{
    stack k = {.d = d,
               .m = m,
               .name = "blocks",
               .cos = s->cos,
               .sin = s->sin,
               .cu = s->cu,
               .n_documents = s->n_documents,
               .ranks = d->comm,
               .store = s->store,
               .whole = s->n_rows};
    const h3_tensor row = s->row;
    const int L = (int)m->dims.n_layers, heads = L + 1;
    h3_tensor x = h3_scratch_2d(d, (h3_dtype)s->act, s->own.n, m->dims.hidden);
    h3_tensor h = h3_scratch_2d(d, (h3_dtype)s->act, s->own.n, m->dims.hidden);
    h3_status st;

    H3_TRY(h3_scratch_check(d, "packed sequence"));
    H3_TRY(acquire(s, 0));
    st = pack(d, m, s, x, video, audio);
    release(s, 0);
    if (st == H3_OK && L > 0) st = enter(&k, &m->block[0], h, x, h3_at(s->mod, 0), row);
    for (; st == H3_OK && k.index < L; k.index++) {
        const int n = k.index + 1 < L ? k.index + 1 : k.index;
        H3_TRY(h3_dev_check(d));
        H3_TRY(acquire(s, 1 + k.index));
        st = block_forward(&k, &m->block[k.index], x, h, h3_at(s->mod, k.index), row,
                           n > k.index ? &m->block[n] : NULL, h3_at(s->mod, n));
        release(s, 1 + k.index);
    }
    if (st != H3_OK) return st;
    H3_TRY(acquire(s, heads));
    st = final_layer(d, m, s, v_video, v_audio, x);
    release(s, heads);
    return st;
}

/* ---- a step as one call ---- */

/* Why this forward goes call by call; NULL: it may be recorded. */
static const char *why_direct(const h3_dev *d, const h3_dit_state *s)
{
    if (!d->record) return "the device does not record";
    if (d->tap || d->is_timing) return "somebody looks on";
    if (h3_comm_size(d->comm) > 1) return "rows are shared among ranks";
    if (s->n_documents > 1) return "more than one document";
    if (s->store && !h3_store_is_resident(s->store)) return "weights are streamed or on their way";
    if (s->replay.n_direct == 0) return "the first with these buffers";
    if (s->replay.n_lost > 3) return "its memory does not stay, or the device cannot keep it";
    return NULL;
}

/* A recording holds addresses: it is of use for the same buffers only. */
static void keep_place(h3_dev *d, h3_dit_state *s, const void *const buffers[5])
{
    if (memcmp(s->replay.buffers, buffers, sizeof s->replay.buffers) == 0) return;
    memcpy(s->replay.buffers, buffers, sizeof s->replay.buffers);
    if (s->replay.it) d->forget(d, s->replay.it);
    s->replay.it = NULL;
    s->replay.n_direct = s->replay.n_lost = 0;
}

static h3_status replay(h3_dev *d, h3_dit_state *s, bool *done)
{
    H3_TRY(d->replay(d, s->replay.it, done));
    if (*done) return H3_OK;
    d->forget(d, s->replay.it);
    s->replay.it = NULL;
    s->replay.n_lost++;
    return H3_OK;
}

h3_status h3_dit_forward(h3_dev *d, const h3_dit *m, h3_dit_state *s, int64_t step,
                         h3_tensor v_video, h3_tensor v_audio, h3_tensor video, h3_tensor audio)
{
    const size_t mark = h3_arena_mark(&d->scratch);
    const void *const buffers[5] = {v_video.data, v_audio.data, video.data, audio.data,
                                    d->scratch.base ? d->scratch.base + mark : NULL};
    bool done = false;
    h3_status st;

    assert(step >= 0 && step < s->n_steps);
    assert(video.ne[0] == s->n_video && video.ne[1] == m->dims.video_cols);
    assert(audio.ne[0] == s->n_audio && audio.ne[1] == m->dims.audio_cols);
    H3_TRY(d->ops->copy(d, s->row, h3_at(s->mod_row, step)));
    H3_TRY(d->ops->copy(d, s->time, h3_at(s->time_row, step)));
    keep_place(d, s, buffers);
    d->unrecorded = why_direct(d, s);
    H3_TRY(h3_dev_check(d));
    if (!d->unrecorded && s->replay.it) H3_TRY(replay(d, s, &done));
    if (!d->unrecorded && !done) {
        st = d->record(d);
        if (st == H3_OK) {
            st = run(d, m, s, v_video, v_audio, video, audio);
            h3_arena_release(&d->scratch, mark);
            d->recorded(d, &s->replay.it);
        }
        if (st == H3_OK && s->replay.it) H3_TRY(replay(d, s, &done));
        if (!done) s->replay.n_lost = 4; // not again
        if (!done) d->unrecorded = why_direct(d, s);
    }
    if (done) return H3_OK;
    st = run(d, m, s, v_video, v_audio, video, audio);
    h3_arena_release(&d->scratch, mark);
    if (st == H3_OK) s->replay.n_direct++;
    return st;
}
