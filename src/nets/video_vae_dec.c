/**
 * The video decoder.
 *
 * Latents become tokens when a clip comes to need them (denormalise, 1x1x1 convolution), one row of
 * 24 per voxel, in a ring of about a clip: nothing here grows with the length of the video. The
 * work is a list of (clip, tile) jobs in the order clip by clip, row by row; a few consecutive ones
 * go through the transformer together, as segments of one attention. A decoded tile is finished at
 * its seams (video_vae_tiles.h), faded in time against the tail of the previous clip and written
 * into the frames of its clip; after a clip's last tile those frames leave.
 *
 * Everything after the transformer works on ImageNet-normalised RGB: seams and fades come before
 * clamping, as in the reference.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "size.h"
#include "vae_config.h"
#include "video_vae_net.h"
#include "video_vae_tiles.h"

/* ---------------------------------------------------------------- binding */

enum { DIM, DIM3, FF, FF2, N_DIMS };

#define MATRIX(field, tensor, rows, cols)                                                   \
    {                                                                                       \
        "decoder.transformer_blocks.%d." tensor, H3_SPEC_MATRIX, true, false, {rows, cols}, \
            offsetof(vit_block, field)                                                      \
    }
#define VECTOR(field, tensor)                                                            \
    {                                                                                    \
        "decoder.transformer_blocks.%d." tensor, H3_SPEC_VECTOR, false, false, {DIM, 0}, \
            offsetof(vit_block, field)                                                   \
    }
static const h3_spec block_spec[] = {
    VECTOR(norm1, "norm1.weight"),        MATRIX(qkv, "attn.to_qkv", DIM3, DIM),
    MATRIX(out, "attn.to_out", DIM, DIM), VECTOR(scale1, "scale1"),
    VECTOR(norm2, "norm2.weight"),        MATRIX(w1, "ff.w1", FF2, DIM),
    MATRIX(w2, "ff.w2", DIM, FF),         VECTOR(scale2, "scale2"),
};
#undef MATRIX
#undef VECTOR
enum { N_BLOCK_SPEC = sizeof block_spec / sizeof *block_spec };

/* Register tokens and the zero token behind them: the reference appends it, no file holds it. */
static h3_status bind_extra_tokens(h3_video_vae *v)
{
    const int64_t n = v->geo.n_registers, dim = v->geo.dim, ne[2] = {n + 1, dim};
    float *rows = calloc((size_t)((n + 1) * dim), sizeof *rows);
    h3_status st;

    if (!rows) return h3_fail(H3_E_NOMEM, "no memory for %lld register tokens", (long long)n);
    if ((st = h3_ckpt_floats(v->ck, rows, "decoder.register_tokens", n * dim)) == H3_OK &&
        (st = h3_dev_alloc(v->dev, &v->dec.extra, H3_F32, 2, ne)) == H3_OK)
        st = h3_dev_upload(v->dev, v->dec.extra, rows);
    free(rows);
    return st;
}

h3_status h3_video_vae_bind_decoder(h3_video_vae *v)
{
    const h3_video_vae_geometry *g = &v->geo;
    const int64_t dims[N_DIMS] = {
        [DIM] = g->dim, [DIM3] = 3 * g->dim, [FF] = g->ff, [FF2] = 2 * g->ff};
    vit_decoder *m = &v->dec;

    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->post_quant, "post_quant_conv", g->latents, g->latents,
                          true));
    H3_TRY(
        h3_ckpt_matrix(v->ck, v->dev, &m->embed, "decoder.x_embedder", g->dim, g->latents, true));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->proj, "decoder.proj_out",
                          3 * g->ratio_t * g->ratio * g->ratio, g->dim, true));
    H3_TRY(h3_ckpt_vector(v->ck, v->dev, &m->norm_g, "decoder.norm_out.weight", g->dim));
    H3_TRY(h3_ckpt_vector(v->ck, v->dev, &m->norm_b, "decoder.norm_out.bias", g->dim));
    H3_TRY(bind_extra_tokens(v));

    m->block = calloc((size_t)g->n_layers, sizeof *m->block);
    if (!m->block) return h3_fail(H3_E_NOMEM, "no memory for %lld blocks", (long long)g->n_layers);
    H3_TRY(h3_store_create(&m->store, v->dev));
    H3_TRY(h3_store_add(m->store, 0, &m->post_quant));
    H3_TRY(h3_store_add(m->store, 0, &m->embed));
    for (int i = 0; i < (int)g->n_layers; i++) {
        H3_TRY(h3_bind(v->ck, v->dev, block_spec, N_BLOCK_SPEC, dims, &m->block[i], i));
        H3_TRY(h3_store_add_spec(m->store, i + 1, block_spec, N_BLOCK_SPEC, &m->block[i]));
    }
    return h3_store_add(m->store, (int)g->n_layers + 1, &m->proj);
}

void h3_video_vae_free_decoder(h3_video_vae *v)
{
    vit_decoder *m = &v->dec;

    h3_store_free(&m->store);
    h3_dev_weight_free(v->dev, &m->post_quant);
    h3_dev_weight_free(v->dev, &m->embed);
    h3_dev_weight_free(v->dev, &m->proj);
    for (int64_t i = 0; m->block && i < v->geo.n_layers; i++) {
        h3_dev_weight_free(v->dev, &m->block[i].qkv);
        h3_dev_weight_free(v->dev, &m->block[i].out);
        h3_dev_weight_free(v->dev, &m->block[i].w1);
        h3_dev_weight_free(v->dev, &m->block[i].w2);
    }
    free(m->block);
    h3_dev_free(v->dev, &m->extra);
    memset(m, 0, sizeof *m);
}

/* ---------------------------------------------------------------- one batch of tiles */

/* A dry run must not fetch gigabytes. */
static h3_status acquire(const h3_dev *d, h3_store *s, int group)
{
    return d->is_plan ? H3_OK : h3_store_acquire(s, group);
}

static void release(const h3_dev *d, h3_store *s, int group)
{
    if (!d->is_plan) h3_store_release(s, group);
}

enum { MAX_BATCH = 64 }; ///< tiles in flight

/* What a decode needs all the time; the arena holds the tensors. */
typedef struct decode_run {
    h3_dev *d;
    h3_video_vae *v;
    h3_video_decode_opts o;
    h3_frames_fn sink;
    void *user;
    h3_decode_clips clips;
    h3_tile_axis y, x;
    int64_t th, tw;     // latent cells of a tile
    int64_t n_voxels;   // window * th * tw
    int64_t n_tokens;   // plus registers and the zero token
    int64_t batch;      // tiles in flight
    h3_tensor z;        // [24, T, h, w] of the caller
    h3_tensor voxels;   // [room, h, w, 24] after post_quant_conv; latent t lies at t % room
    int64_t n_made;     // latents that were made into voxels so far
    h3_tensor cos, sin; // [batch * n_tokens, R]
    h3_tensor tail;     // [3, fade, H, W] of the previous clip
    h3_tensor frames;   // of the current clip: u8 [own, H, W, 3] or f32 [3, own, H, W]
    video_seams seams;
    int32_t *cu; // [batch + 1] on the host
    int *bad;    // [batch] what check_finite says of the tiles of the batch that is being finished
    void *host;  // frames on their way to the sink, when the device's memory is not ours
    int mark;    // behind that batch and the copy of its frames; below 0: there is no such thing
    int64_t bad_job, n_bad;        // the tiles that `bad` is about
    int64_t out_first, out_frames; // frames in `host` that the sink has not seen
    int64_t total;                 // jobs
} decode_run;

/* View number `which` (0 q, 1 k, 2 v) of a fused product [S, 3 * dim], as [S, heads, head_dim]. */
static h3_tensor head_view(h3_tensor qkv, const h3_video_vae_geometry *g, bool interleaved,
                           int which)
{
    const int64_t ne[3] = {qkv.ne[0], g->heads, g->head_dim};
    const int64_t from = which * (interleaved ? g->head_dim : g->dim);
    h3_tensor t = h3_slice(qkv, 1, from, 3 * g->dim - from);

    t.rank = 3;
    for (int i = 0; i < 3; i++)
        t.ne[i] = ne[i];
    t.st[1] = interleaved ? 3 * g->head_dim : g->head_dim;
    t.st[2] = 1;
    return t;
}

/* What is written next is for `reader` alone (see h3_dev.reader), unless somebody looks on. */
static void only_for(h3_dev *d, const h3_weight *reader)
{
    d->reader = d->tap ? NULL : reader;
}

static h3_status for_all(h3_dev *d, h3_status st)
{
    d->reader = NULL;
    return st;
}

/* x += scale1 * to_out(attention(h)), then x += scale2 * w2(silu(gate) * up) of its norm. h is
 * norm1(x), and afterwards the same for the next block. */
static h3_status block_forward(decode_run *r, int i, h3_tensor x, h3_tensor h, int n_tiles)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_video_vae_geometry *g = &r->v->geo;
    const vit_block *b = &r->v->dec.block[i];
    const h3_dtype act = r->o.act;
    const int64_t S = x.ne[0], dim = g->dim, ff = g->ff;
    const h3_tensor none = {.data = NULL};
    const h3_tensor cos = h3_slice(r->cos, 0, 0, S), sin = h3_slice(r->sin, 0, 0, S);
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor qkv = h3_scratch_2d(d, act, S, 3 * dim);
    h3_tensor o = h3_scratch_2d(d, act, S, dim);

    H3_TRY(h3_scratch_check(d, "video VAE attention"));
    const h3_tensor q = head_view(qkv, g, b->qkv.interleaved, 0),
                    k = head_view(qkv, g, b->qkv.interleaved, 1),
                    v = head_view(qkv, g, b->qkv.interleaved, 2);
    h3_tap(d, h, "block%d.norm1", i);
    H3_TRY(op->gemm(d, qkv, h, &b->qkv, H3_ACT_NONE));
    h3_tap(d, q, "block%d.q", i);
    h3_tap(d, k, "block%d.k", i);
    h3_tap(d, v, "block%d.v", i);
    H3_TRY(op->qk_norm_rope(d, q, k, none, none, g->eps, false, cos, sin)); // norms without gains
    h3_tap(d, q, "block%d.q_rotated", i);
    h3_tap(d, k, "block%d.k_rotated", i);
    H3_TRY(op->attention(d, h3_view_3d(o, S, g->heads, g->head_dim), q, k, v,
                         1.0f / sqrtf((float)g->head_dim), r->cu, n_tiles, false));
    h3_tap(d, o, "block%d.attention", i);
    H3_TRY(op->gemm(d, h, o, &b->out, H3_ACT_NONE));
    h3_tap(d, h, "block%d.attention_projected", i);
    only_for(d, &b->w1);
    H3_TRY(for_all(d, op->scale_add_norm(d, h, x, h, b->scale1, b->norm2, g->eps)));
    h3_tap(d, x, "block%d.after_attention", i);
    h3_arena_release(&d->scratch, mark);

    h3_tensor w1 = h3_scratch_2d(d, act, S, 2 * ff); // [gate | up]
    h3_tensor hidden = h3_scratch_2d(d, act, S, ff);
    H3_TRY(h3_scratch_check(d, "video VAE feed-forward"));
    const h3_tensor gate = h3_slice(w1, 1, 0, ff), up = h3_slice(w1, 1, ff, ff);
    h3_tap(d, h, "block%d.norm2", i);
    H3_TRY(op->gemm(d, w1, h, &b->w1, H3_ACT_NONE));
    h3_tap(d, gate, "block%d.ff_gate", i);
    h3_tap(d, up, "block%d.ff_up", i);
    only_for(d, &b->w2);
    H3_TRY(for_all(d, op->silu_mul(d, hidden, gate, up)));
    h3_tap(d, hidden, "block%d.ff_hidden", i);
    H3_TRY(op->gemm(d, h, hidden, &b->w2, H3_ACT_NONE));
    h3_tap(d, h, "block%d.ff_out", i);
    if (i + 1 < (int)g->n_layers) {
        only_for(d, &b[1].qkv);
        H3_TRY(for_all(d, op->scale_add_norm(d, h, x, h, b->scale2, b[1].norm1, g->eps)));
    } else {
        H3_TRY(op->scale_add(d, x, h, b->scale2));
    }
    h3_tap(d, x, "block%d.out", i);
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* Rows of x [n_tokens, dim] for one tile: its voxels in the order t, h, w, then the extra tokens.
 */
static h3_status embed_tile(decode_run *r, h3_tensor x, int64_t clip, int64_t i, int64_t j)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const vit_decoder *m = &r->v->dec;
    const int64_t ratio = r->v->geo.ratio, c = r->v->geo.latents, area = r->th * r->tw;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor tile = h3_scratch_4d(d, H3_F32, r->clips.window, r->th, r->tw, c);

    H3_TRY(h3_scratch_check(d, "video VAE tile"));
    for (int64_t k = 0; k < r->clips.window; k++) {
        h3_tensor z = h3_at(r->voxels, h3_decode_latent(&r->clips, clip, k) % r->voxels.ne[0]);
        z = h3_slice(z, 0, h3_tile_start(&r->y, i) / ratio, r->th);
        z = h3_slice(z, 1, h3_tile_start(&r->x, j) / ratio, r->tw);
        H3_TRY(op->copy(d, h3_at(tile, k), z));
    }
    H3_TRY(op->gemm(d, h3_slice(x, 0, 0, r->n_voxels), h3_view_2d(tile, r->clips.window * area, c),
                    &m->embed, H3_ACT_NONE));
    H3_TRY(op->copy(d, h3_slice(x, 0, r->n_voxels, m->extra.ne[0]), m->extra));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* Latents [from, from + n) of z to `wide` [24, n h w], on the device. */
static h3_status take_latents(decode_run *r, h3_tensor wide, int64_t from, int64_t n)
{
    h3_dev *d = r->d;
    const h3_tensor some = h3_slice(r->z, 1, from, n);
    const int64_t c = r->z.ne[0], area = r->z.ne[2] * r->z.ne[3], row = n * area;
    h3_status st;

    if (r->z.mem == d->mem) return d->ops->copy(d, h3_view(wide, 4, some.ne), some);
    if (d->is_plan) return H3_OK;
    float *dense = malloc((size_t)(c * row) * sizeof *dense);
    if (!dense) return h3_fail(H3_E_NOMEM, "no memory for the latents of a clip");
    for (int64_t i = 0; i < c; i++)
        memcpy(dense + i * row, (const float *)some.data + i * some.st[0],
               (size_t)row * sizeof *dense);
    st = h3_dev_upload(d, wide, dense);
    free(dense);
    return st;
}

/* Voxels of latents [from, from + n): x * std + mean, then post_quant_conv, a product per voxel. */
static h3_status make_voxels(decode_run *r, int64_t from, int64_t n)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const int64_t c = r->z.ne[0], area = r->z.ne[2] * r->z.ne[3], room = r->voxels.ne[0];
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor wide = h3_scratch_2d(d, H3_F32, c, n * area);
    h3_tensor rows = h3_scratch_2d(d, H3_F32, n * area, c);

    H3_TRY(h3_scratch_check(d, "video VAE latents"));
    H3_TRY(take_latents(r, wide, from, n));
    if (!r->o.is_denormalised) H3_TRY(op->affine_rows(d, wide, wide, r->v->std, r->v->mean));
    if (from == 0) h3_tap(d, wide, "z");
    H3_TRY(op->transpose(d, rows, wide));
    for (int64_t t = 0; t < n; t++) // one by one: the sums must not depend on how many come at once
        H3_TRY(op->gemm(d, h3_view_2d(h3_at(r->voxels, (from + t) % room), area, c),
                        h3_slice(rows, 0, t * area, area), &r->v->dec.post_quant, H3_ACT_NONE));
    if (from == 0) h3_tap(d, h3_slice(r->voxels, 0, 0, n), "post_quant_conv");
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* The latents that jobs [job, job + n) look at; what an earlier batch made is still there. */
static h3_status need_voxels(decode_run *r, int64_t job, int n)
{
    const h3_decode_clips *c = &r->clips;
    const int64_t per_clip = r->y.n * r->x.n, first = job / per_clip * c->stride;
    int64_t end = (job + n - 1) / per_clip * c->stride + c->window;

    if (end > r->z.ne[1]) end = r->z.ne[1];
    if (r->n_made < first) r->n_made = first; // batches between went to other ranks
    if (r->n_made >= end) return H3_OK;
    H3_TRY(make_voxels(r, r->n_made, end - r->n_made));
    r->n_made = end;
    return H3_OK;
}

/* Jobs [job, job + n_tiles) through the transformer: pixels[k] [3, 4 * window, 16 th, 16 tw]. */
static h3_status tiles_forward(decode_run *r, const h3_tensor *pixels, int64_t job, int n_tiles)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_video_vae_geometry *g = &r->v->geo;
    vit_decoder *m = &r->v->dec;
    const int64_t N = r->n_tokens, S = n_tiles * N, n_tiles_clip = r->y.n * r->x.n;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor x = h3_scratch_2d(d, H3_F32, S, g->dim); // the residual stream stays f32
    h3_tensor h = h3_scratch_2d(d, r->o.act, S, g->dim);

    H3_TRY(h3_scratch_check(d, "video VAE tokens"));
    H3_TRY(acquire(d, m->store, 0));
    H3_TRY(need_voxels(r, job, n_tiles));
    for (int k = 0; k < n_tiles; k++) {
        const int64_t at = job + k, tile = at % n_tiles_clip;
        H3_TRY(embed_tile(r, h3_slice(x, 0, k * N, N), at / n_tiles_clip, tile / r->x.n,
                          tile % r->x.n));
    }
    release(d, m->store, 0);
    h3_tap(d, h3_slice(x, 0, 0, r->n_voxels), "embedded");
    h3_tap(d, x, "tokens");
    H3_TRY(op->rms_norm(d, h, x, m->block[0].norm1, g->eps, false));
    for (int i = 0; i < (int)g->n_layers; i++) {
        H3_TRY(h3_dev_check(d));
        H3_TRY(acquire(d, m->store, i + 1));
        d->is_tolerant = true;
        const h3_status st = block_forward(r, i, x, h, n_tiles);
        d->is_tolerant = false;
        H3_TRY(st);
        release(d, m->store, i + 1);
    }

    h3_tensor rows = h3_scratch_2d(d, H3_F32, r->n_voxels, m->proj.rows);
    H3_TRY(h3_scratch_check(d, "video VAE pixels"));
    H3_TRY(op->layer_norm(d, h, x, m->norm_g, m->norm_b, g->eps));
    h3_tap(d, h, "norm_out");
    H3_TRY(acquire(d, m->store, (int)g->n_layers + 1));
    for (int k = 0; k < n_tiles; k++) {
        H3_TRY(op->gemm(d, rows, h3_slice(h, 0, k * N, r->n_voxels), &m->proj, H3_ACT_NONE));
        h3_tap(d, rows, "proj_out");
        H3_TRY(op->unpatchify(d, pixels[k], rows, r->clips.window, r->th, r->tw, (int)g->ratio_t,
                              (int)g->ratio));
    }
    release(d, m->store, (int)g->n_layers + 1);
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* ---------------------------------------------------------------- from tiles to frames */

/* Frames [0, n) of `x` [3, n.., h, w] into the frames of the clip, at pixel (top, left). */
static h3_status place(decode_run *r, h3_tensor x, int64_t n, int64_t top, int64_t left)
{
    const int64_t h = x.ne[2], w = x.ne[3];
    const int space = r->o.is_float ? 2 : 1; // axis of the rows
    h3_tensor y = h3_slice(h3_slice(r->frames, space, top, h), space + 1, left, w);

    y = h3_slice(y, space - 1, 0, n);
    x = h3_slice(x, 1, 0, n);
    if (r->o.is_float) return r->d->ops->copy(r->d, y, x);
    return r->d->ops->to_u8(r->d, y, x, h3_video_vae_pixel_mean, h3_video_vae_pixel_std);
}

/* A decoded tile of clip `clip`: seams, the fade in time, then its frames and its part of the tail.
 */
static h3_status finish_tile(decode_run *r, h3_tensor pixels, int64_t clip, int64_t i, int64_t j)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_decode_clips *c = &r->clips;
    const int64_t top = h3_tile_start(&r->y, i), left = h3_tile_start(&r->x, j);
    h3_tensor part, tail = {.data = NULL};

    H3_TRY(h3_video_seams_finish(&r->seams, d, pixels, i, j, &part));
    const h3_tensor own = h3_slice(part, 1, c->lead, c->own);
    if (c->fade > 0) {
        tail = h3_slice(h3_slice(r->tail, 2, top, part.ne[2]), 3, left, part.ne[3]);
        if (clip > 0) H3_TRY(op->fade(d, own, tail, 1, c->fade));
        H3_TRY(op->copy(d, tail, h3_slice(part, 1, c->tail_from, c->fade)));
    }
    return place(r, own, c->own, top, left);
}

/* Tiles [from, to) of the batch that is being finished hold numbers. Their work was waited for. */
static h3_status check_numbers(const decode_run *r, int64_t from, int64_t to)
{
    const int64_t per_clip = r->y.n * r->x.n;

    for (int64_t k = from; k < to; k++) {
        const int64_t job = r->bad_job + k;
        if (!((volatile const int *)r->bad)[k]) continue;
        return h3_fail(
            H3_E_NUMERIC,
            "video VAE: NaN or infinity in tile %lld of clip %lld; the latents or the weights "
            "are not numbers, or %s overflows",
            (long long)(job % per_clip), (long long)(job / per_clip), h3_dtype_name(r->o.act));
    }
    return H3_OK;
}

static h3_status hand_out(decode_run *r, int64_t first, int64_t n)
{
    h3_tensor t = h3_slice(r->frames, r->o.is_float ? 1 : 0, 0, n);

    if (r->d->mem == H3_DEVICE) {
        t.data = r->host;
        t.mem = H3_HOST;
    }
    return r->sink(r->user, first, t);
}

/* The batch before is through: its numbers are looked at, and frames that it ended leave. Called
 * when the next one was enqueued, so that a GPU computes that while the sink is at work. */
static h3_status settle(decode_run *r)
{
    const int64_t n = r->out_frames, done = r->bad_job + r->n_bad;

    if (r->n_bad == 0) return H3_OK;
    if (r->mark >= 0)
        H3_TRY(r->d->await(r->d, H3_QUEUE_HOST, r->mark));
    else
        H3_TRY(h3_dev_sync(r->d));
    H3_TRY(check_numbers(r, 0, r->n_bad));
    r->n_bad = r->out_frames = 0;
    if (n > 0) H3_TRY(hand_out(r, r->out_first, n));
    if (r->o.progress) r->o.progress(r->o.progress_user, done, r->total);
    return H3_OK;
}

/* The first n of the clip's frames leave as frames [first, first + n) of the video: now, or from a
 * GPU with the batch. `k` tiles of the batch were finished. */
static h3_status emit(decode_run *r, int64_t first, int64_t n, int64_t k)
{
    h3_dev *d = r->d;

    if (n <= 0 || d->is_plan) return H3_OK;
    if (r->out_frames > 0) { // the batch ends more than one clip
        const int64_t before = r->out_frames;
        H3_TRY(h3_dev_sync(d));
        H3_TRY(check_numbers(r, 0, k));
        r->out_frames = 0;
        H3_TRY(hand_out(r, r->out_first, before));
    }
    r->out_first = first;
    r->out_frames = n;
    if (r->mark >= 0)
        return d->copy_out(d, r->host, r->frames.data,
                           (size_t)h3_numel(r->frames) * h3_dtype_bytes(r->frames.dtype));
    H3_TRY(h3_dev_sync(d));
    H3_TRY(check_numbers(r, 0, k));
    if (d->mem == H3_DEVICE) H3_TRY(h3_dev_download(d, r->host, r->frames));
    r->out_frames = 0;
    return hand_out(r, first, n);
}

static h3_status emit_clip(decode_run *r, int64_t clip, int64_t k)
{
    const h3_decode_clips *c = &r->clips;
    const int64_t first = clip * c->own, rest = c->n_frames - first;

    H3_TRY(emit(r, first, rest < c->own ? rest : c->own, k));
    if (clip + 1 < c->n_clips || rest <= c->own) return H3_OK;
    H3_TRY(place(r, r->tail, c->fade, 0, 0)); // the last tail has nothing to fade into
    return emit(r, first + c->own, rest - c->own, k);
}

/* Jobs [job, job + n) that went through the network: one after another into their clips. */
static h3_status finish_batch(decode_run *r, const h3_tensor *pixels, int64_t job, int n)
{
    const int64_t per_clip = r->y.n * r->x.n;

    memset(r->bad, 0, (size_t)r->batch * sizeof *r->bad);
    r->bad_job = job;
    r->n_bad = n;
    for (int k = 0; k < n; k++) {
        const int64_t clip = (job + k) / per_clip, tile = (job + k) % per_clip;
        if (job + k == 0) h3_tap(r->d, pixels[k], "pixels");
        H3_TRY(r->d->ops->check_finite(r->d, pixels[k], &r->bad[k]));
        H3_TRY(finish_tile(r, pixels[k], clip, tile / r->x.n, tile % r->x.n));
        if (tile + 1 == per_clip) H3_TRY(emit_clip(r, clip, k + 1));
    }
    return r->mark >= 0 ? r->d->mark(r->d, H3_QUEUE_COMPUTE, r->mark) : settle(r);
}

/* Batches go round the ranks; what a rank made goes to rank 0, where seams, fades and frames are.
 * The batches are those of one rank, so the numbers are too. */
static h3_status run_batch(decode_run *r, const h3_tensor *pixels, int64_t job, int n)
{
    h3_comm *c = r->d->comm;
    const int me = h3_comm_rank(c), owner = (int)(job / r->batch % h3_comm_size(c));
    h3_message tile[MAX_BATCH];

    assert(n <= MAX_BATCH);
    if (owner != me && me != 0) return H3_OK;
    if (owner == me) H3_TRY(tiles_forward(r, pixels, job, n));
    for (int k = 0; k < n; k++)
        tile[k] = (h3_message){owner == me ? 0 : owner, pixels[k].data,
                               (size_t)h3_numel(pixels[k]) * sizeof(float)};
    if (owner != 0)
        H3_TRY(me == 0 ? h3_comm_exchange(c, r->d, NULL, 0, tile, n)
                       : h3_comm_exchange(c, r->d, tile, n, NULL, 0));
    if (me != 0) return H3_OK;
    H3_TRY(settle(r));
    return finish_batch(r, pixels, job, n);
}

static h3_status run_jobs(decode_run *r)
{
    h3_dev *d = r->d;
    const int64_t total = r->total;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor *pixels = calloc((size_t)r->batch, sizeof *pixels);
    h3_status st = pixels ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for a batch of tiles");

    for (int64_t k = 0; st == H3_OK && k < r->batch; k++)
        pixels[k] = h3_scratch_4d(d, H3_F32, 3, r->clips.clip_frames, r->y.tile, r->x.tile);
    if (st == H3_OK) st = h3_scratch_check(d, "video VAE tile pixels");
    if (st == H3_OK && !d->is_plan)
        st = h3_comm_same(d->comm, (uint64_t)r->batch, "the number of tiles in flight");
    for (int64_t job = 0; st == H3_OK && job < total; job += r->batch) {
        const int n = (int)(total - job < r->batch ? total - job : r->batch);
        st = run_batch(r, pixels, job, n);
    }
    if (st == H3_OK) st = settle(r);
    free(pixels);
    h3_arena_release(&d->scratch, mark);
    return st;
}

/* ---------------------------------------------------------------- a whole video */

/* Cell i of n lies at 2 (i + 0.5) / n - 1, in float32 as the reference forms it. */
static float cell_position(int64_t i, int64_t n)
{
    return 2.0f * (((float)i + 0.5f) / (float)n) - 1.0f;
}

/* 1 / theta^(6 i / n), rounded to float32 where the reference rounds: angles reach 2 pi, and there
 * a float32 angle is off by more than the tables are. */
static float frequency(double theta, int64_t i, int64_t n)
{
    const float exponent = (float)(6 * i) / (float)n;

    return 1.0f / (float)pow(theta, (double)exponent);
}

void h3_video_vae_rope(const h3_video_vae_geometry *g, int64_t t, int64_t h, int64_t w,
                       float *position, float *cos_out, float *sin_out)
{
    const int64_t turned = (int64_t)((double)g->head_dim * g->rope_ratio), per_axis = turned / 6;
    const int64_t n = t * h * w;
    const float two_pi = 6.28318530717958647692f;

    for (int64_t s = 0; s < n + g->n_registers + 1; s++) {
        const float p[3] = {s < n ? cell_position(s / (h * w), t) : 0.0f,
                            s < n ? cell_position(s / w % h, h) : 0.0f,
                            s < n ? cell_position(s % w, w) : 0.0f};
        for (int64_t a = 0; a < 3; a++) {
            if (position) position[s * 3 + a] = p[a];
            for (int64_t i = 0; i < per_axis; i++) {
                const float angle = two_pi * p[a] * frequency(g->rope_theta, i, turned);
                cos_out[(s * 3 + a) * per_axis + i] = (float)cos((double)angle);
                sin_out[(s * 3 + a) * per_axis + i] = (float)sin((double)angle);
            }
        }
    }
}

/* Rotation tables of one tile, repeated for every tile in flight. */
static h3_status make_rope(decode_run *r)
{
    const int64_t N = r->n_tokens, R = r->cos.ne[1], n = N * R;
    float *table = calloc((size_t)n * 2, sizeof *table);
    h3_status st = H3_OK;

    if (!table) return h3_fail(H3_E_NOMEM, "no memory for rotation tables");
    h3_video_vae_rope(&r->v->geo, r->clips.window, r->th, r->tw, NULL, table, table + n);
    for (int64_t k = 0; k < r->batch && st == H3_OK; k++) {
        st = h3_dev_upload(r->d, h3_slice(r->cos, 0, k * N, N), table);
        if (st == H3_OK) st = h3_dev_upload(r->d, h3_slice(r->sin, 0, k * N, N), table + n);
    }
    h3_tap(r->d, h3_slice(r->cos, 0, 0, N), "rope_cos");
    h3_tap(r->d, h3_slice(r->sin, 0, 0, N), "rope_sin");
    free(table);
    return st;
}

/* Everything that lives for the whole video, from the arena. */
static h3_status carve(decode_run *r, h3_tensor z)
{
    h3_dev *d = r->d;
    const h3_video_vae_geometry *g = &r->v->geo;
    const int64_t H = r->y.length, W = r->x.length, own = r->clips.own;
    const int64_t R = (int64_t)((double)g->head_dim * g->rope_ratio) / 2;

    /* A batch may begin in one clip and end in a later one. */
    const int64_t per_clip = r->y.n * r->x.n;
    int64_t room = r->clips.window + r->clips.stride * ((r->batch + per_clip - 2) / per_clip);
    if (room > z.ne[1]) room = z.ne[1];
    r->z = z;
    r->voxels = h3_scratch_4d(d, H3_F32, room, z.ne[2], z.ne[3], z.ne[0]);
    r->cos = h3_scratch_2d(d, H3_F32, r->batch * r->n_tokens, R);
    r->sin = h3_scratch_2d(d, H3_F32, r->batch * r->n_tokens, R);
    if (r->clips.fade > 0) r->tail = h3_scratch_4d(d, H3_F32, 3, r->clips.fade, H, W);
    r->frames = r->o.is_float ? h3_scratch_4d(d, H3_F32, 3, own, H, W)
                              : h3_scratch_4d(d, H3_U8, own, H, W, 3);
    h3_video_seams_init(&r->seams, d, &r->y, &r->x, 1, 3, r->clips.clip_frames);
    return h3_scratch_check(d, "video VAE frames");
}

/* One clip that takes all latents: nothing before, nothing after. */
static h3_decode_clips one_clip(int64_t latents, int64_t ratio_t)
{
    const int64_t frames = latents * ratio_t;

    return (h3_decode_clips){.n_latents = latents,
                             .n_clips = 1,
                             .stride = latents,
                             .window = latents,
                             .clip_frames = frames,
                             .own = frames,
                             .tail_from = frames,
                             .n_frames = frames};
}

static h3_status plan_run(decode_run *r, h3_tensor z)
{
    const h3_video_vae_geometry *g = &r->v->geo;
    const int64_t tile = r->o.tile ? r->o.tile : g->tile;
    const int64_t overlap = r->o.overlap ? r->o.overlap : g->overlap;
    const h3_clip_rule rule = {g->clip, g->drop, g->ratio_t};

    if (!(r->v->halves & H3_VIDEO_VAE_DECODER))
        return h3_fail(H3_E_INTERNAL, "the video VAE was opened without its decoder");
    if (z.rank != 4 || z.dtype != H3_F32 || z.ne[0] != g->latents || h3_numel(z) < 1)
        return h3_fail(H3_E_SHAPE, "video latents %s, expected [%lld, T, h, w] F32",
                       h3_tensor_desc(z), (long long)g->latents);
    for (int i = 1; i < 4; i++)
        if (z.ne[i] > 1 << 16)
            return h3_fail(H3_E_SHAPE, "video latents %s are too large", h3_tensor_desc(z));
    if (tile % g->ratio || overlap % g->ratio)
        return h3_fail(H3_E_ARG, "tile %lld and overlap %lld must be multiples of %lld pixels",
                       (long long)tile, (long long)overlap, (long long)g->ratio);
    if (r->o.act != H3_F32 && r->o.act != H3_BF16)
        return h3_fail(H3_E_ARG, "video VAE activations are F32 or BF16, not %s",
                       h3_dtype_name(r->o.act));
    H3_TRY(h3_tile_axis_init(&r->y, z.ne[2] * g->ratio, tile, overlap, g->ratio));
    H3_TRY(h3_tile_axis_init(&r->x, z.ne[3] * g->ratio, tile, overlap, g->ratio));
    if (r->o.is_one_clip)
        r->clips = one_clip(z.ne[1], g->ratio_t);
    else
        H3_TRY(h3_decode_clips_init(&r->clips, z.ne[1], rule));
    r->th = r->y.tile / g->ratio;
    r->tw = r->x.tile / g->ratio;
    r->n_voxels = r->clips.window * r->th * r->tw;
    r->n_tokens = r->n_voxels + g->n_registers + 1;
    r->total = r->clips.n_clips * r->y.n * r->x.n;
    r->batch = r->o.tiles_in_flight > 0 ? r->o.tiles_in_flight : 1;
    if (r->batch > r->total) r->batch = r->total;
    if (r->batch > MAX_BATCH) r->batch = MAX_BATCH;
    if (r->batch > INT32_MAX / r->n_tokens)
        return h3_fail(H3_E_ARG, "%lld tiles in flight are too many", (long long)r->batch);
    return H3_OK;
}

/* Frames of a GPU leave beside its work where it has pinned memory and marks. Over ranks they leave
 * at once: waiting for a mark could be waiting for a rank that is gone. */
static int take_mark(h3_dev *d)
{
    if (!d->pin || !d->copy_out || d->is_plan || d->mem != H3_DEVICE || h3_comm_size(d->comm) > 1)
        return -1;
    for (int i = 0; i < H3_DEV_MARKS; i++)
        if (!(d->marks_taken >> i & 1)) {
            d->marks_taken |= (uint64_t)1 << i;
            return i;
        }
    return -1;
}

static h3_status take_host(decode_run *r)
{
    const size_t bad = (size_t)r->batch * sizeof *r->bad;
    const size_t frames = (size_t)h3_numel(r->frames) * h3_dtype_bytes(r->frames.dtype);

    r->cu = calloc((size_t)r->batch + 1, sizeof *r->cu);
    if (!r->cu) return h3_fail(H3_E_NOMEM, "no memory for a batch of tiles");
    for (int64_t k = 0; k <= r->batch; k++)
        r->cu[k] = (int32_t)(k * r->n_tokens);
    if (r->mark >= 0) {
        H3_TRY(r->d->pin(r->d, (void **)&r->bad, bad));
        return r->d->pin(r->d, &r->host, frames);
    }
    r->bad = malloc(bad);
    if (!r->bad) return h3_fail(H3_E_NOMEM, "no memory for a batch of tiles");
    if (r->d->mem != H3_DEVICE || r->d->is_plan) return H3_OK;
    r->host = malloc(frames);
    return r->host ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for the frames of a clip");
}

static void give_host(decode_run *r)
{
    if (r->mark >= 0) {
        const h3_status st = h3_dev_sync(r->d); // after a failure copies may be under way
        (void)st;
        r->d->unpin(r->d, r->bad);
        r->d->unpin(r->d, r->host);
        r->d->marks_taken &= ~((uint64_t)1 << r->mark);
    } else {
        free(r->bad);
        free(r->host);
    }
    free(r->cu);
}

/* What the matrices will see; a dry run for a device that computes must not move its weights. */
static void tell_store(const decode_run *r)
{
    const int n = (int)r->v->geo.n_layers;
    const int64_t last = r->total % r->batch ? r->total % r->batch : r->batch;

    if (r->d->is_plan && !r->v->dev->is_plan) return;
    for (int i = 1; i <= n + 1; i++) // the last one has no bearing on coarse products
        h3_store_meets(r->v->dec.store, i, r->o.act, last * r->n_tokens, i <= n);
}

int64_t h3_video_vae_decoder_saved(const h3_video_vae *v, size_t *on_the_way)
{
    return h3_store_saved(v->dec.store, on_the_way);
}

h3_status h3_video_vae_decode(h3_dev *d, h3_video_vae *v, h3_tensor z,
                              const h3_video_decode_opts *opts, h3_frames_fn sink, void *user)
{
    decode_run r = {.d = d, .v = v, .sink = sink, .user = user, .mark = -1};
    const size_t mark = h3_arena_mark(&d->scratch);
    size_t bytes;
    h3_status st;

    if (opts) r.o = *opts;
    H3_TRY(plan_run(&r, z));
    tell_store(&r);
    if (!d->is_plan && mark == 0) {
        H3_TRY(h3_video_vae_decode_bytes(d, v, z.ne[1], z.ne[2], z.ne[3], opts, &bytes));
        H3_TRY(h3_dev_scratch(d, bytes));
    }
    r.mark = take_mark(d);
    if ((st = carve(&r, z)) == H3_OK && (st = take_host(&r)) == H3_OK &&
        (st = make_rope(&r)) == H3_OK)
        st = run_jobs(&r);
    give_host(&r);
    h3_arena_release(&d->scratch, mark);
    return st;
}

h3_status h3_video_vae_decode_bytes(const h3_dev *d, h3_video_vae *v, int64_t t, int64_t h,
                                    int64_t w, const h3_video_decode_opts *opts, size_t *bytes)
{
    const int64_t ne[4] = {v->geo.latents, t, h, w};
    h3_video_decode_opts o = opts ? *opts : (h3_video_decode_opts){.act = H3_F32};
    h3_dev *plan = NULL;
    h3_status st;

    o.progress = NULL;
    H3_TRY(h3_dev_open(&plan, "plan", NULL));
    plan->mem = d->mem; // the network's vectors live there
    h3_tensor z = h3_host_tensor(plan->scratch.base, H3_F32, 4, ne);
    z.mem = plan->mem;
    st = h3_video_vae_decode(plan, v, z, &o, NULL, NULL);
    *bytes = plan->scratch.peak;
    h3_dev_close(&plan);
    return st;
}

/* What the products of all batches of `n` tiles take on a machine that works on `units` pieces of
 * 128 x 256 results at once: the last round of a product takes as long as a full one. */
static double rounds(const h3_video_vae_geometry *g, int64_t jobs, int64_t n, int64_t tokens,
                     int units)
{
    const int64_t shape[4][2] = {
        {3 * g->dim, g->dim}, {g->dim, g->dim}, {2 * g->ff, g->dim}, {g->dim, g->ff}};
    double sum = 0;

    for (int64_t job = 0; job < jobs; job += n) {
        const int64_t rows = (jobs - job < n ? jobs - job : n) * tokens;
        for (int i = 0; i < 4; i++) {
            const int64_t pieces = (rows + 127) / 128 * ((shape[i][0] + 255) / 256);
            sum += (double)((pieces + units - 1) / units) * (double)shape[i][1];
        }
    }
    return sum;
}

/* The fewest tiles, 8 or more if there are so many, within a hundredth of the best: frames leave
 * early. */
static int fewest_good(const decode_run *r, int most, int units)
{
    double best = 1e300;
    int n = most < 8 ? most : 8;

    for (int k = 1; k <= most; k++) {
        const double t = rounds(&r->v->geo, r->total, k, r->n_tokens, units);
        best = t < best ? t : best;
    }
    while (n < most && rounds(&r->v->geo, r->total, n, r->n_tokens, units) > 1.01 * best)
        n++;
    return n;
}

int h3_video_vae_tiles_that_fit(const h3_dev *d, h3_video_vae *v, int64_t t, int64_t h, int64_t w,
                                const h3_video_decode_opts *opts, size_t budget)
{
    h3_video_decode_opts o = opts ? *opts : (h3_video_decode_opts){.act = H3_F32};
    const int64_t ne[4] = {v->geo.latents, t, h, w};
    decode_run r = {.v = v, .o = o};
    size_t bytes, before = 0;
    int best = 1, step = 64;

    for (int n = 1; n <= MAX_BATCH; n *= 2) {
        o.tiles_in_flight = n;
        if (h3_video_vae_decode_bytes(d, v, t, h, w, &o, &bytes) != H3_OK || bytes > budget) break;
        if (bytes == before) break; // there are no more tiles
        before = bytes;
        best = n;
    }
    if (d->n_units == 0 || plan_run(&r, h3_host_tensor(NULL, H3_F32, 4, ne)) != H3_OK) return best;
    for (; step > 0; step /= 2) { // the most that fit, not only powers of two
        o.tiles_in_flight = best + step;
        if (best + step > MAX_BATCH || best + step > r.total) continue;
        if (h3_video_vae_decode_bytes(d, v, t, h, w, &o, &bytes) == H3_OK && bytes <= budget)
            best += step;
    }
    return fewest_good(&r, best, d->n_units);
}

int64_t h3_video_vae_frames(const h3_video_vae *v, int64_t latent_frames)
{
    h3_decode_clips c;
    const h3_clip_rule rule = {v->geo.clip, v->geo.drop, v->geo.ratio_t};

    return h3_decode_clips_init(&c, latent_frames, rule) == H3_OK ? c.n_frames : 0;
}
