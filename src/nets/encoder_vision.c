/**
 * The vision tower of the conditioner; see encoder_vision.h. Follows Qwen3VLVisionModel of
 * transformers.
 *
 * Things that sizes do not tell and that are wrong silently:
 *   - qkv rows are all q, then all k, then all v (the video VAE interleaves per head)
 *   - attention is full inside one frame pair and sees nothing outside it
 *   - patches are stored in 2x2 blocks: positions and rotation follow that order
 *   - blocks use the tanh GELU, mergers the erf one
 *   - the final merger normalises W numbers before the 2x2 shuffle, the DeepStack mergers M W after
 *   - rotation is half-split over the whole head, [row freqs, column freqs] twice, float32 also in
 *     bf16 runs; interpolated positions are summed in float32 and rounded once
 */
#include "encoder_vision.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder_config.h"
#include "encoder_tables.h"
#include "size.h"

static const float LAYER_NORM_EPS = 1e-6f;
static const float ROPE_THETA = 10000.0f;

enum { DIM_W, DIM_3W, DIM_F, DIM_PATCH, DIM_MW, DIM_OUT, N_DIMS };

#define VEC(n, dim, type, field)                                         \
    {                                                                    \
        n, H3_SPEC_VECTOR, false, false, {dim, 0}, offsetof(type, field) \
    }
#define MAT(n, rows, cols, type, f)                                     \
    {                                                                   \
        n, H3_SPEC_MATRIX, true, false, {rows, cols}, offsetof(type, f) \
    }
#define N_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const h3_spec embed_spec[] = {
    MAT("model.visual.patch_embed.proj", DIM_W, DIM_PATCH, h3_encoder_vision, patch_embed),
};

#define BLOCK "model.visual.blocks.%d."
static const h3_spec block_spec[] = {
    VEC(BLOCK "norm1.weight", DIM_W, h3_encoder_block, norm1_g),
    VEC(BLOCK "norm1.bias", DIM_W, h3_encoder_block, norm1_b),
    VEC(BLOCK "norm2.weight", DIM_W, h3_encoder_block, norm2_g),
    VEC(BLOCK "norm2.bias", DIM_W, h3_encoder_block, norm2_b),
    MAT(BLOCK "attn.qkv", DIM_3W, DIM_W, h3_encoder_block, qkv),
    MAT(BLOCK "attn.proj", DIM_W, DIM_W, h3_encoder_block, proj),
    MAT(BLOCK "mlp.linear_fc1", DIM_F, DIM_W, h3_encoder_block, fc1),
    MAT(BLOCK "mlp.linear_fc2", DIM_W, DIM_F, h3_encoder_block, fc2),
};

static const h3_spec merger_spec[] = {
    VEC("model.visual.merger.norm.weight", DIM_W, h3_encoder_merger, norm_g),
    VEC("model.visual.merger.norm.bias", DIM_W, h3_encoder_merger, norm_b),
    MAT("model.visual.merger.linear_fc1", DIM_MW, DIM_MW, h3_encoder_merger, fc1),
    MAT("model.visual.merger.linear_fc2", DIM_OUT, DIM_MW, h3_encoder_merger, fc2),
};

#define DEEP "model.visual.deepstack_merger_list.%d."
static const h3_spec deep_spec[] = {
    VEC(DEEP "norm.weight", DIM_MW, h3_encoder_merger, norm_g),
    VEC(DEEP "norm.bias", DIM_MW, h3_encoder_merger, norm_b),
    MAT(DEEP "linear_fc1", DIM_MW, DIM_MW, h3_encoder_merger, fc1),
    MAT(DEEP "linear_fc2", DIM_OUT, DIM_MW, h3_encoder_merger, fc2),
};

/* ---- binding ---- */

static int32_t whole_root(int64_t n)
{
    const int64_t r = llround(sqrt((double)n));
    return r * r == n ? (int32_t)r : 0;
}

/* Blocks after which a DeepStack merger reads: from the configuration, or the released 8, 16, 24.
 */
static h3_status read_deep_taps(h3_encoder_vision *v, const h3_checkpoint *ck, int64_t n)
{
    static const int32_t released[] = {8, 16, 24};
    const json_t *list =
        json_object_get(h3_encoder_config(ck, "vision_config"), "deepstack_visual_indexes");
    const bool is_released = n == 3 && v->depth == 27;

    if (n > H3_ENCODER_MAX_DEEP)
        return h3_fail(H3_E_UNSUPPORTED, "%s: %lld DeepStack mergers, at most %d are supported",
                       h3_ckpt_path(ck), (long long)n, H3_ENCODER_MAX_DEEP);
    if (!list && n && !is_released) return h3_encoder_no_config(ck, "where DeepStack reads");
    if (list && (int64_t)json_array_size(list) != n)
        return h3_fail(H3_E_SHAPE,
                       "%s: config.json lists %zu DeepStack blocks, the file has %lld mergers",
                       h3_ckpt_path(ck), json_array_size(list), (long long)n);
    v->n_deep = (int32_t)n;
    for (int32_t i = 0; i < v->n_deep; i++) {
        const json_t *at = json_array_get(list, (size_t)i);
        const json_int_t b = list ? json_integer_value(at) : released[i];

        bool is_good = (!list || json_is_integer(at)) && b >= 0 && b < v->depth;
        for (int32_t j = 0; j < i; j++)
            is_good = is_good && v->deep_at[j] != b;
        if (!is_good)
            return h3_fail(H3_E_FORMAT,
                           "%s: config.json: deepstack_visual_indexes must be different block "
                           "numbers below %d",
                           h3_ckpt_path(ck), v->depth);
        v->deep_at[i] = (int32_t)b;
    }
    return H3_OK;
}

static h3_status read_heads(h3_encoder_vision *v, const h3_checkpoint *ck)
{
    const json_t *n = json_object_get(h3_encoder_config(ck, "vision_config"), "num_heads");

    if (!n && v->width != 1152) return h3_encoder_no_config(ck, "the vision tower's head count");
    v->heads = n ? json_integer_value(n) : 16;
    if (v->heads <= 0 || v->width % v->heads != 0 || v->width / v->heads % 4 != 0)
        return h3_fail(H3_E_SHAPE,
                       "%s: %lld vision heads do not divide width %lld into multiples of 4",
                       h3_ckpt_path(ck), (long long)v->heads, (long long)v->width);
    v->head_dim = v->width / v->heads;
    return H3_OK;
}

/* Everything a size can tell; the spec tables then check every other tensor against it. */
static h3_status read_geometry(h3_encoder_vision *v, const h3_checkpoint *ck, int64_t out)
{
    int64_t ne[8], depth, table;
    int rank;

    H3_TRY(h3_encoder_shape(ck, "model.visual.patch_embed.proj.weight", 2, &rank, ne));
    v->width = ne[0];
    v->patch = 1;
    for (int i = 1; i < rank; i++)
        if (!h3_mul_i64(v->patch, ne[i], &v->patch) || v->patch > INT32_MAX)
            return h3_fail(H3_E_SHAPE, "%s: model.visual.patch_embed.proj.weight is too large",
                           h3_ckpt_path(ck));
    H3_TRY(h3_encoder_shape(ck, "model.visual.blocks.0.mlp.linear_fc1.weight", 2, &rank, ne));
    v->hidden = ne[0];
    H3_TRY(h3_encoder_shape(ck, "model.visual.pos_embed.weight", 2, &rank, ne));
    table = ne[0];
    v->side = whole_root(table);
    H3_TRY(h3_encoder_shape(ck, "model.visual.merger.linear_fc1.weight", 2, &rank, ne));
    v->merge_rows = ne[0] % v->width == 0 ? ne[0] / v->width : 0;
    v->merge = whole_root(v->merge_rows);
    v->out = out;
    depth = h3_ckpt_count(ck, "model.visual.blocks.%d.norm1.weight");
    if (v->side < 1 || v->merge < 1 || depth < 1 || depth > INT16_MAX)
        return h3_fail(H3_E_SHAPE,
                       "%s: vision tower with %lld positions, %lld patches per merged row and %lld "
                       "blocks; expected two squares and at least one block",
                       h3_ckpt_path(ck), (long long)table, (long long)v->merge_rows,
                       (long long)depth);
    v->depth = (int32_t)depth;
    H3_TRY(h3_encoder_config_expect(ck, "vision_config", "hidden_size", v->width));
    H3_TRY(h3_encoder_config_expect(ck, "vision_config", "spatial_merge_size", v->merge));
    H3_TRY(h3_encoder_config_expect(ck, "vision_config", "depth", v->depth));
    H3_TRY(h3_encoder_config_only(ck, "vision_config", "hidden_act", "gelu_pytorch_tanh"));
    H3_TRY(read_heads(v, ck));
    return read_deep_taps(v, ck, h3_ckpt_count(ck, DEEP "norm.weight"));
}

static h3_status bind_positions(h3_encoder_vision *v, h3_checkpoint *ck)
{
    size_t n;

    if (!h3_mul_size((size_t)(v->side * v->side), (size_t)v->width, &n) ||
        n > SIZE_MAX / sizeof *v->pos_embed || !(v->pos_embed = malloc(n * sizeof *v->pos_embed)))
        return h3_fail(H3_E_NOMEM, "no memory for the vision position table");
    return h3_ckpt_floats(ck, v->pos_embed, "model.visual.pos_embed.weight", (int64_t)n);
}

h3_status h3_encoder_vision_bind(h3_encoder_vision *v, h3_checkpoint *ck, h3_dev *d, int64_t out)
{
    int64_t dims[N_DIMS];

    memset(v, 0, sizeof *v);
    H3_TRY(read_geometry(v, ck, out));
    dims[DIM_W] = v->width;
    dims[DIM_3W] = 3 * v->width;
    dims[DIM_F] = v->hidden;
    dims[DIM_PATCH] = v->patch;
    dims[DIM_MW] = v->merge_rows * v->width;
    dims[DIM_OUT] = v->out;
    v->block = calloc((size_t)v->depth, sizeof *v->block);
    if (!v->block) return h3_fail(H3_E_NOMEM, "no memory for %d vision blocks", v->depth);
    H3_TRY(bind_positions(v, ck));
    H3_TRY(h3_bind(ck, d, embed_spec, N_OF(embed_spec), dims, v, 0));
    for (int32_t i = 0; i < v->depth; i++)
        H3_TRY(h3_bind(ck, d, block_spec, N_OF(block_spec), dims, &v->block[i], i));
    H3_TRY(h3_bind(ck, d, merger_spec, N_OF(merger_spec), dims, &v->merger, 0));
    for (int32_t k = 0; k < v->n_deep; k++)
        H3_TRY(h3_bind(ck, d, deep_spec, N_OF(deep_spec), dims, &v->deep[k], k));
    return H3_OK;
}

static void free_merger(h3_encoder_merger *m, h3_dev *d)
{
    h3_dev_weight_free(d, &m->fc1);
    h3_dev_weight_free(d, &m->fc2);
}

void h3_encoder_vision_free(h3_encoder_vision *v, h3_dev *d)
{
    h3_dev_weight_free(d, &v->patch_embed);
    for (int32_t i = 0; v->block && i < v->depth; i++) {
        h3_dev_weight_free(d, &v->block[i].qkv);
        h3_dev_weight_free(d, &v->block[i].proj);
        h3_dev_weight_free(d, &v->block[i].fc1);
        h3_dev_weight_free(d, &v->block[i].fc2);
    }
    free_merger(&v->merger, d);
    for (int32_t k = 0; k < v->n_deep; k++)
        free_merger(&v->deep[k], d);
    free(v->block);
    free(v->pos_embed);
    memset(v, 0, sizeof *v);
}

/* A block's group also holds what runs just before or after it. */
h3_status h3_encoder_vision_store(h3_encoder_vision *v, h3_store *s, int first)
{
    H3_TRY(h3_store_add_spec(s, first, embed_spec, N_OF(embed_spec), v));
    for (int32_t i = 0, k = 0; i < v->depth; i++) {
        H3_TRY(h3_store_add_spec(s, first + i, block_spec, N_OF(block_spec), &v->block[i]));
        if (k < v->n_deep && v->deep_at[k] == i) {
            H3_TRY(h3_store_add_spec(s, first + i, deep_spec, N_OF(deep_spec), &v->deep[k]));
            k++;
        }
    }
    return h3_store_add_spec(s, first + v->depth - 1, merger_spec, N_OF(merger_spec), &v->merger);
}

/* ---- tables ---- */

/* Patches and frame pairs of the batch, or H3_E_ARG naming the first grid that cannot be. */
static h3_status count_patches(const h3_encoder_vision *v, const h3_encoder_media *in,
                               h3_encoder_vision_tables *t)
{
    int64_t patches = 0, segments = 0;

    for (int32_t i = 0; i < in->n; i++) {
        const int32_t *g = &in->grid[3 * i];
        int64_t n = 0;

        if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[1] % v->merge || g[2] % v->merge)
            return h3_fail(H3_E_ARG, "vision grid %d is %d x %d x %d; expected multiples of %d", i,
                           g[0], g[1], g[2], v->merge);
        if (!h3_mul_i64((int64_t)g[1] * g[2], g[0], &n) || !h3_add_i64(patches, n, &patches) ||
            patches > INT32_MAX / 4)
            return h3_fail(H3_E_ARG, "vision grid %d is %d x %d x %d: too many patches", i, g[0],
                           g[1], g[2]);
        segments += g[0];
    }
    t->n_patches = patches;
    t->n_segments = (int32_t)segments;
    return H3_OK;
}

/* pos[i] = sum of four table rows, products and sums in float32 in the order of the taps. */
static void interpolate(const h3_encoder_vision *v, const int32_t *index, const float *weight,
                        int64_t n, float *pos)
{
    const int64_t W = v->width;

    for (int64_t i = 0; i < n; i++) {
        const float *w = &weight[4 * i];
        const float *a = &v->pos_embed[index[4 * i] * W], *b = &v->pos_embed[index[4 * i + 1] * W];
        const float *c = &v->pos_embed[index[4 * i + 2] * W];
        const float *e = &v->pos_embed[index[4 * i + 3] * W];

        for (int64_t j = 0; j < W; j++)
            pos[i * W + j] = a[j] * w[0] + b[j] * w[1] + c[j] * w[2] + e[j] * w[3];
    }
}

/* The tables of one grid's first frame at patch `at`, then copies for its other frames. */
static void fill_grid(const h3_encoder_vision *v, const int32_t *g, const float *f,
                      h3_encoder_vision_tables *t, int64_t at)
{
    const int64_t n = (int64_t)g[1] * g[2], half = v->head_dim / 2, W = v->width;

    h3_encoder_grid_order(&t->rc[2 * at], g[1], g[2], v->merge);
    h3_encoder_grid_rope(&t->cos[at * half], &t->sin[at * half], f, half / 2, &t->rc[2 * at], n);
    h3_encoder_grid_taps(&t->index[4 * at], &t->weight[4 * at], &t->rc[2 * at], n, g[1], g[2],
                         (int32_t)v->side);
    interpolate(v, &t->index[4 * at], &t->weight[4 * at], n, &t->pos[at * W]);
    for (int32_t frame = 1; frame < g[0]; frame++) {
        const int64_t to = at + frame * n;
#define REPEAT(p, per) memcpy(&(p)[to * (per)], &(p)[at * (per)], (size_t)(n * (per)) * sizeof *(p))
        REPEAT(t->rc, 2);
        REPEAT(t->cos, half);
        REPEAT(t->sin, half);
        REPEAT(t->index, 4);
        REPEAT(t->weight, 4);
        REPEAT(t->pos, W);
#undef REPEAT
    }
}

static bool alloc_tables(const h3_encoder_vision *v, h3_encoder_vision_tables *t)
{
    const size_t n = (size_t)t->n_patches, half = (size_t)v->head_dim / 2;

    t->rc = calloc(n * 2, sizeof *t->rc);
    t->index = calloc(n * 4, sizeof *t->index);
    t->weight = calloc(n * 4, sizeof *t->weight);
    t->cos = calloc(n * half, sizeof *t->cos);
    t->sin = calloc(n * half, sizeof *t->sin);
    t->pos = calloc(n * (size_t)v->width, sizeof *t->pos);
    return t->rc && t->index && t->weight && t->cos && t->sin && t->pos;
}

h3_status h3_encoder_vision_prepare(const h3_encoder_vision *v, const h3_encoder_media *in,
                                    bool is_plan, h3_encoder_vision_tables *t)
{
    const int64_t n_freq = v->head_dim / 4;
    float *f = NULL;
    int64_t at = 0;
    int32_t s = 0;

    memset(t, 0, sizeof *t);
    H3_TRY(count_patches(v, in, t));
    t->cu = calloc((size_t)t->n_segments + 1, sizeof *t->cu);
    f = malloc((size_t)n_freq * sizeof *f);
    if (!t->cu || !f || (!is_plan && !alloc_tables(v, t))) {
        free(f);
        return h3_fail(H3_E_NOMEM, "no memory for the position tables of %lld patches",
                       (long long)t->n_patches);
    }
    h3_encoder_inv_freq(f, n_freq, ROPE_THETA);
    for (int32_t i = 0; i < in->n; i++) {
        const int32_t *g = &in->grid[3 * i];

        for (int32_t frame = 0; frame < g[0]; frame++, s++)
            t->cu[s + 1] = t->cu[s] + g[1] * g[2];
        if (!is_plan) fill_grid(v, g, f, t, at);
        at = t->cu[s];
    }
    free(f);
    return H3_OK;
}

void h3_encoder_vision_tables_free(h3_encoder_vision_tables *t)
{
    free(t->cu);
    free(t->rc);
    free(t->index);
    free(t->weight);
    free(t->cos);
    free(t->sin);
    free(t->pos);
    memset(t, 0, sizeof *t);
}

/* ---- forward ---- */

void h3_encoder_vision_carve(const h3_encoder_vision *v, h3_dev *d, h3_dtype act,
                             const h3_encoder_vision_tables *t, h3_encoder_seen *seen)
{
    seen->n_rows = t->n_patches / v->merge_rows;
    seen->merged = h3_scratch_2d(d, act, seen->n_rows, v->out);
    for (int32_t k = 0; k < v->n_deep; k++)
        seen->deep[k] = h3_scratch_2d(d, act, seen->n_rows, v->out);
}

static void tap_tables(const h3_encoder_vision *v, h3_dev *d, const char *kind,
                       const h3_encoder_vision_tables *t)
{
    const int64_t N = t->n_patches, half = v->head_dim / 2;

    if (!d->tap) return;
    h3_tap(d, h3_tensor_2d(t->rc, H3_I32, N, 2), "%s/rope_pos", kind);
    h3_tap(d, h3_tensor_2d(t->index, H3_I32, N, 4), "%s/interp_indices", kind);
    h3_tap(d, h3_tensor_2d(t->weight, H3_F32, N, 4), "%s/interp_weights", kind);
    h3_tap(d, h3_tensor_1d(t->cu, H3_I32, t->n_segments + 1), "%s/cu_seqlens", kind);
    h3_tap(d, h3_tensor_2d(t->cos, H3_F32, N, half), "%s/rope_cos", kind);
    h3_tap(d, h3_tensor_2d(t->sin, H3_F32, N, half), "%s/rope_sin", kind);
}

/* x [N, W] = patch_embed(patches) + positions. Pixels are rounded to bf16 first in bf16 runs. */
static h3_status embed_patches(const h3_encoder_vision *v, h3_dev *d, const char *kind,
                               const float *patches, const h3_encoder_vision_tables *t, h3_tensor x)
{
    const h3_ops *op = d->ops;
    const int64_t N = x.ne[0];
    const h3_dtype act = (h3_dtype)x.dtype;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor rows = h3_scratch_2d(d, H3_F32, N, v->patch), small = rows, pos, cast;

    if (act != H3_F32) small = h3_scratch_2d(d, act, N, v->patch);
    H3_TRY(h3_scratch_check(d, "vision patches"));
    H3_TRY(h3_dev_upload(d, rows, patches));
    if (act != H3_F32) H3_TRY(op->copy(d, small, rows));
    H3_TRY(op->gemm(d, x, small, &v->patch_embed, H3_ACT_NONE));
    h3_tap(d, x, "%s/patch_embed", kind);
    h3_arena_release(&d->scratch, mark);

    cast = pos = h3_scratch_2d(d, H3_F32, N, v->width);
    if (act != H3_F32) cast = h3_scratch_2d(d, act, N, v->width);
    H3_TRY(h3_scratch_check(d, "vision positions"));
    H3_TRY(h3_dev_upload(d, pos, t->pos));
    h3_tap(d, pos, "%s/pos_embed", kind);
    if (act != H3_F32) H3_TRY(op->copy(d, cast, pos));
    H3_TRY(op->add(d, x, x, cast));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* x += proj(attention(rope(qkv(norm1 x)))), one attention segment per frame pair. */
static h3_status attend(const h3_encoder_vision *v, h3_dev *d, const h3_encoder_block *b,
                        const h3_encoder_vision_tables *t, h3_tensor cos, h3_tensor sin,
                        const char *tap, h3_tensor x)
{
    const h3_ops *op = d->ops;
    const int64_t N = x.ne[0], W = v->width, H = v->heads, D = v->head_dim;
    const h3_dtype act = (h3_dtype)x.dtype;
    const h3_tensor none = {0};
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, act, N, W);
    h3_tensor qkv = h3_scratch_2d(d, act, N, 3 * W);
    h3_tensor o = h3_scratch_2d(d, act, N, W), heads, q, k, val;

    H3_TRY(h3_scratch_check(d, "vision attention"));
    heads = h3_view_3d(qkv, N, 3 * H, D);
    q = h3_slice(heads, 1, 0, H);
    k = h3_slice(heads, 1, H, H);
    val = h3_slice(heads, 1, 2 * H, H);
    H3_TRY(op->layer_norm(d, h, x, b->norm1_g, b->norm1_b, LAYER_NORM_EPS));
    if (tap) h3_tap(d, h, "%s/block0.norm1", tap);
    H3_TRY(op->gemm(d, qkv, h, &b->qkv, H3_ACT_NONE));
    if (tap) h3_tap(d, qkv, "%s/block0.qkv", tap);
    H3_TRY(op->head_norm_rope(d, q, none, 0.0f, false, cos, sin));
    H3_TRY(op->head_norm_rope(d, k, none, 0.0f, false, cos, sin));
    if (tap) h3_tap(d, q, "%s/block0.q_rope", tap);
    if (tap) h3_tap(d, k, "%s/block0.k_rope", tap);
    H3_TRY(op->attention(d, h3_view_3d(o, N, H, D), q, k, val, 1.0f / sqrtf((float)D), t->cu,
                         t->n_segments, false));
    if (tap) h3_tap(d, o, "%s/block0.attn", tap);
    H3_TRY(op->gemm(d, h, o, &b->proj, H3_ACT_NONE));
    if (tap) h3_tap(d, h, "%s/block0.proj", tap);
    H3_TRY(op->add(d, x, x, h));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* x += fc2(gelu_tanh(fc1(norm2 x))) */
static h3_status feed_forward(const h3_encoder_vision *v, h3_dev *d, const h3_encoder_block *b,
                              const char *tap, h3_tensor x)
{
    const h3_ops *op = d->ops;
    const int64_t N = x.ne[0];
    const h3_dtype act = (h3_dtype)x.dtype;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, act, N, v->width);
    h3_tensor f = h3_scratch_2d(d, act, N, v->hidden);

    H3_TRY(h3_scratch_check(d, "vision feed-forward"));
    H3_TRY(op->layer_norm(d, h, x, b->norm2_g, b->norm2_b, LAYER_NORM_EPS));
    if (tap) h3_tap(d, h, "%s/block0.norm2", tap);
    H3_TRY(op->gemm(d, f, h, &b->fc1, H3_ACT_GELU_TANH));
    if (tap) h3_tap(d, f, "%s/block0.mlp_act", tap);
    H3_TRY(op->gemm(d, h, f, &b->fc2, H3_ACT_NONE));
    if (tap) h3_tap(d, h, "%s/block0.mlp", tap);
    H3_TRY(op->add(d, x, x, h));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* y [N / M, C] = fc2(gelu_erf(fc1(shuffled norm))); the norm runs over the length of its gain. */
static h3_status merge_rows(const h3_encoder_vision *v, h3_dev *d, const h3_encoder_merger *m,
                            h3_tensor y, h3_tensor x)
{
    const h3_ops *op = d->ops;
    const int64_t wide = v->merge_rows * v->width, rows = y.ne[0];
    const h3_dtype act = (h3_dtype)x.dtype;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, act, rows, wide);
    h3_tensor f = h3_scratch_2d(d, act, rows, wide);
    // W: every patch by itself; M W: the patches of a block together
    const int64_t C = m->norm_g.ne[0];

    H3_TRY(h3_scratch_check(d, "vision merger"));
    H3_TRY(op->layer_norm(d, h3_view_2d(h, rows * wide / C, C), h3_view_2d(x, rows * wide / C, C),
                          m->norm_g, m->norm_b, LAYER_NORM_EPS));
    H3_TRY(op->gemm(d, f, h, &m->fc1, H3_ACT_GELU_ERF));
    H3_TRY(op->gemm(d, y, f, &m->fc2, H3_ACT_NONE));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* The decoder layer behind which the rows of merger k are added: mergers stand in the order of the
 * configuration, their rows are taken in the order of the blocks they read. */
static int32_t layer_of(const h3_encoder_vision *v, int32_t k)
{
    int32_t n = 0;

    for (int32_t j = 0; j < v->n_deep; j++)
        n += v->deep_at[j] < v->deep_at[k];
    return n;
}

/* Group i: block i and the mergers that read right after it. */
static h3_status run_group(const h3_encoder_vision *v, h3_dev *d, int32_t i, const char *kind,
                           const float *patches, const h3_encoder_vision_tables *t, h3_tensor x,
                           h3_tensor cos, h3_tensor sin, h3_encoder_seen *seen)
{
    const char *tap = i == 0 && d->tap ? kind : NULL;

    if (i == 0) H3_TRY(embed_patches(v, d, kind, patches, t, x));
    H3_TRY(attend(v, d, &v->block[i], t, cos, sin, tap, x));
    H3_TRY(feed_forward(v, d, &v->block[i], tap, x));
    h3_tap(d, x, "%s/block.%d", kind, i);
    for (int32_t k = 0; k < v->n_deep; k++)
        if (v->deep_at[k] == i) {
            const h3_tensor y = seen->deep[layer_of(v, k)];
            H3_TRY(merge_rows(v, d, &v->deep[k], y, x));
            h3_tap(d, y, "%s/deepstack.%d", kind, k);
        }
    if (i + 1 == v->depth) {
        H3_TRY(merge_rows(v, d, &v->merger, seen->merged, x));
        h3_tap(d, seen->merged, "%s/merged", kind);
    }
    return H3_OK;
}

h3_status h3_encoder_vision_forward(const h3_encoder_vision *v, h3_dev *d, h3_store *store,
                                    int first, h3_dtype act, const char *kind, const float *patches,
                                    const h3_encoder_vision_tables *t, h3_encoder_seen *seen)
{
    const int64_t N = t->n_patches;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor x = h3_scratch_2d(d, act, N, v->width);
    h3_tensor cos = h3_scratch_2d(d, H3_F32, N, v->head_dim / 2);
    h3_tensor sin = h3_scratch_2d(d, H3_F32, N, v->head_dim / 2);

    H3_TRY(h3_scratch_check(d, "vision tower"));
    H3_TRY(h3_dev_upload(d, cos, t->cos));
    H3_TRY(h3_dev_upload(d, sin, t->sin));
    tap_tables(v, d, kind, t);
    for (int32_t i = 0; i < v->depth; i++) {
        h3_status st;

        H3_TRY(h3_dev_check(d));
        if (store) H3_TRY(h3_store_acquire(store, first + i));
        st = run_group(v, d, i, kind, patches, t, x, cos, sin, seen);
        if (store) h3_store_release(store, first + i);
        H3_TRY(st);
    }
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}
