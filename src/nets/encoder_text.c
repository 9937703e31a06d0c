/**
 * The text tower of the conditioner; see encoder_text.h. Follows Qwen3VLTextModel of transformers.
 *
 * Things that sizes do not tell and that are wrong silently:
 *   - no final norm: the output is the plain residual stream after the last layer that runs
 *   - q and k are RMS-normed per head BEFORE the rotation; rotation is half-split
 *   - query head i reads key head i / (H / K)
 *   - the mask is causal everywhere, vision rows included
 *   - DeepStack rows are added after layers 0, 1, 2, ...; the selected state is taken before that
 *     addition, so a tower cut that short gets none after its last layer
 *   - bf16 runs: RMSNorm rounds before its gain, cos and sin are rounded and the rotation happens
 * in bf16 (the vision tower rotates in float32)
 */
#include "encoder_text.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder_config.h"
#include "encoder_tables.h"

enum { DIM_C, DIM_Q, DIM_KV, DIM_D, DIM_F, DIM_VOCAB, N_DIMS };

/** Rows of the feed-forward that are computed together: three [rows, F] buffers are the largest
 *  scratch of the tower (25600 columns), and a few thousand rows already fill any machine. */
enum { MLP_ROWS = 4096 };

#define PREFIX "model.language_model."
#define LAYER  PREFIX "layers.%d."
#define VEC(n, dim, type, field)                                         \
    {                                                                    \
        n, H3_SPEC_VECTOR, false, false, {dim, 0}, offsetof(type, field) \
    }
#define MAT(n, rows, cols, type, f)                                      \
    {                                                                    \
        n, H3_SPEC_MATRIX, false, false, {rows, cols}, offsetof(type, f) \
    }
#define N_OF(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const h3_spec embed_spec[] = {
    MAT(PREFIX "embed_tokens", DIM_VOCAB, DIM_C, h3_encoder_text, embed),
};

static const h3_spec layer_spec[] = {
    VEC(LAYER "input_layernorm.weight", DIM_C, h3_encoder_layer, norm1),
    VEC(LAYER "post_attention_layernorm.weight", DIM_C, h3_encoder_layer, norm2),
    VEC(LAYER "self_attn.q_norm.weight", DIM_D, h3_encoder_layer, q_norm),
    VEC(LAYER "self_attn.k_norm.weight", DIM_D, h3_encoder_layer, k_norm),
    MAT(LAYER "self_attn.q_proj", DIM_Q, DIM_C, h3_encoder_layer, q),
    MAT(LAYER "self_attn.k_proj", DIM_KV, DIM_C, h3_encoder_layer, k),
    MAT(LAYER "self_attn.v_proj", DIM_KV, DIM_C, h3_encoder_layer, v),
    MAT(LAYER "self_attn.o_proj", DIM_C, DIM_Q, h3_encoder_layer, o),
    MAT(LAYER "mlp.gate_proj", DIM_F, DIM_C, h3_encoder_layer, gate),
    MAT(LAYER "mlp.up_proj", DIM_F, DIM_C, h3_encoder_layer, up),
    MAT(LAYER "mlp.down_proj", DIM_C, DIM_F, h3_encoder_layer, down),
};

/* ---- binding ---- */

/* theta, eps and the sections of M-RoPE. Older files keep theta beside "rope_scaling", newer ones
 * put both into "rope_parameters". Without a configuration only the released head size will do. */
static h3_status read_rotary(h3_encoder_text *t, const h3_checkpoint *ck)
{
    const json_t *cfg = h3_encoder_config(ck, "text_config");
    const json_t *rope = json_object_get(cfg, "rope_parameters");
    const int64_t n = t->head_dim / 2;
    int32_t section[3] = {24, 20, 20};
    double theta = 5e6, eps = 1e-6;

    if (!json_is_object(rope)) rope = json_object_get(cfg, "rope_scaling");
    if (cfg) {
        const json_t *s = json_object_get(rope, "mrope_section");
        const json_t *th = json_object_get(rope, "rope_theta");

        if (!th) th = json_object_get(cfg, "rope_theta");
        theta = json_number_value(th);
        eps = json_number_value(json_object_get(cfg, "rms_norm_eps"));
        if (json_array_size(s) != 3)
            return h3_fail(H3_E_FORMAT, "%s: config.json: mrope_section must be three numbers",
                           h3_ckpt_path(ck));
        for (size_t a = 0; a < 3; a++) {
            const json_int_t v = json_integer_value(json_array_get(s, a));
            section[a] = v < 0 || v > n ? -1 : (int32_t)v;
        }
        if (!(theta > 1.0 && theta < 1e12 && eps > 0.0 && eps < 1.0))
            return h3_fail(H3_E_FORMAT,
                           "%s: config.json: rope_theta %g and rms_norm_eps %g are not plausible",
                           h3_ckpt_path(ck), theta, eps);
    } else if (t->head_dim != 128) {
        return h3_encoder_no_config(ck, "the rotary base and its sections");
    }
    t->eps = (float)eps;
    t->inv_freq = malloc((size_t)n * sizeof *t->inv_freq);
    t->axis = malloc((size_t)n * sizeof *t->axis);
    if (!t->inv_freq || !t->axis) return h3_fail(H3_E_NOMEM, "no memory for rotary tables");
    h3_encoder_inv_freq(t->inv_freq, n, (float)theta);
    if (!h3_encoder_mrope_axes(t->axis, n, section))
        return h3_fail(H3_E_FORMAT,
                       "%s: mrope_section %d, %d, %d does not fill the %lld pairs of a head",
                       h3_ckpt_path(ck), section[0], section[1], section[2], (long long)n);
    return H3_OK;
}

/* Sizes from the first layer; the spec table then holds every other tensor against them. */
static h3_status read_geometry(h3_encoder_text *t, const h3_checkpoint *ck)
{
    int64_t ne[8], q_rows, kv_rows;
    int rank;

    H3_TRY(h3_encoder_shape(ck, PREFIX "embed_tokens.weight", 2, &rank, ne));
    t->vocab = ne[0];
    t->width = ne[1];
    H3_TRY(h3_encoder_shape(ck, PREFIX "layers.0.self_attn.q_norm.weight", 1, &rank, ne));
    t->head_dim = ne[0];
    H3_TRY(h3_encoder_shape(ck, PREFIX "layers.0.self_attn.q_proj.weight", 2, &rank, ne));
    q_rows = ne[0];
    H3_TRY(h3_encoder_shape(ck, PREFIX "layers.0.self_attn.k_proj.weight", 2, &rank, ne));
    kv_rows = ne[0];
    H3_TRY(h3_encoder_shape(ck, PREFIX "layers.0.mlp.gate_proj.weight", 2, &rank, ne));
    t->hidden = ne[0];
    t->heads = q_rows / t->head_dim;
    t->kv_heads = kv_rows / t->head_dim;
    if (t->head_dim % 2 || !t->kv_heads || t->heads * t->head_dim != q_rows ||
        t->kv_heads * t->head_dim != kv_rows || t->heads % t->kv_heads)
        return h3_fail(
            H3_E_SHAPE,
            "%s: text tower with %lld query and %lld key rows in heads of %lld; expected "
            "whole heads in whole groups",
            h3_ckpt_path(ck), (long long)q_rows, (long long)kv_rows, (long long)t->head_dim);
    H3_TRY(h3_encoder_config_expect(ck, "text_config", "hidden_size", t->width));
    H3_TRY(h3_encoder_config_expect(ck, "text_config", "head_dim", t->head_dim));
    H3_TRY(h3_encoder_config_expect(ck, "text_config", "num_attention_heads", t->heads));
    H3_TRY(h3_encoder_config_expect(ck, "text_config", "num_key_value_heads", t->kv_heads));
    H3_TRY(h3_encoder_config_only(ck, "text_config", "hidden_act", "silu"));
    return read_rotary(t, ck);
}

/* How many layers run; the rest of the file is declared unused, layer by layer, so that a stray
 * tensor inside a used layer is still found. */
static h3_status choose_layers(h3_encoder_text *t, h3_checkpoint *ck, int32_t select)
{
    const int64_t n = h3_ckpt_count(ck, LAYER "input_layernorm.weight");
    char pattern[96];

    if (n < 1 || n > INT16_MAX)
        return h3_fail(H3_E_MISSING, "%s: no decoder layers in the text tower", h3_ckpt_path(ck));
    t->n_layers = n < select ? (int32_t)n : select;
    for (int32_t i = t->n_layers; i < n; i++) {
        snprintf(pattern, sizeof pattern, PREFIX "layers.%d.*", i);
        h3_ckpt_ignore(ck, pattern);
    }
    h3_ckpt_ignore(ck, PREFIX "norm.*");
    h3_ckpt_ignore(ck, "lm_head.*");
    return H3_OK;
}

h3_status h3_encoder_text_bind(h3_encoder_text *t, h3_checkpoint *ck, h3_dev *d, int32_t select)
{
    int64_t dims[N_DIMS];

    memset(t, 0, sizeof *t);
    H3_TRY(choose_layers(t, ck, select));
    H3_TRY(read_geometry(t, ck));
    dims[DIM_C] = t->width;
    dims[DIM_Q] = t->heads * t->head_dim;
    dims[DIM_KV] = t->kv_heads * t->head_dim;
    dims[DIM_D] = t->head_dim;
    dims[DIM_F] = t->hidden;
    dims[DIM_VOCAB] = t->vocab;
    t->layer = calloc((size_t)t->n_layers, sizeof *t->layer);
    if (!t->layer) return h3_fail(H3_E_NOMEM, "no memory for %d decoder layers", t->n_layers);
    H3_TRY(h3_bind(ck, d, embed_spec, N_OF(embed_spec), dims, t, 0));
    for (int32_t i = 0; i < t->n_layers; i++)
        H3_TRY(h3_bind(ck, d, layer_spec, N_OF(layer_spec), dims, &t->layer[i], i));
    return H3_OK;
}

void h3_encoder_text_free(h3_encoder_text *t, h3_dev *d)
{
    h3_dev_weight_free(d, &t->embed);
    for (int32_t i = 0; t->layer && i < t->n_layers; i++) {
        h3_encoder_layer *l = &t->layer[i];
        h3_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};

        for (int j = 0; j < N_OF(all); j++)
            h3_dev_weight_free(d, all[j]);
    }
    free(t->layer);
    free(t->inv_freq);
    free(t->axis);
    memset(t, 0, sizeof *t);
}

h3_status h3_encoder_text_store(h3_encoder_text *t, h3_store *s, int first)
{
    H3_TRY(h3_store_add_spec(s, first, embed_spec, N_OF(embed_spec), t));
    for (int32_t i = 0; i < t->n_layers; i++)
        H3_TRY(h3_store_add_spec(s, first + 1 + i, layer_spec, N_OF(layer_spec), &t->layer[i]));
    return H3_OK;
}

/* ---- forward ---- */

/* x += o_proj(attention(rope(norm(q)), rope(norm(k)), v)) with q, k, v of norm1 x. */
static h3_status attend(const h3_encoder_text *t, h3_dev *d, const h3_encoder_layer *l,
                        bool is_tapped, h3_tensor x, h3_tensor cos, h3_tensor sin,
                        const int32_t cu[2])
{
    const h3_ops *op = d->ops;
    const int64_t S = x.ne[0], H = t->heads, K = t->kv_heads, D = t->head_dim;
    const h3_dtype act = (h3_dtype)x.dtype;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, act, S, t->width);
    h3_tensor q = h3_scratch_3d(d, act, S, H, D);
    h3_tensor k = h3_scratch_3d(d, act, S, K, D);
    h3_tensor v = h3_scratch_3d(d, act, S, K, D);
    h3_tensor o = h3_scratch_3d(d, act, S, H, D);

    H3_TRY(h3_scratch_check(d, "text attention"));
    H3_TRY(op->rms_norm(d, h, x, l->norm1, t->eps, true));
    if (is_tapped) h3_tap(d, h, "text/layer0.ln1");
    H3_TRY(op->gemm(d, h3_view_2d(q, S, H * D), h, &l->q, H3_ACT_NONE));
    H3_TRY(op->gemm(d, h3_view_2d(k, S, K * D), h, &l->k, H3_ACT_NONE));
    H3_TRY(op->gemm(d, h3_view_2d(v, S, K * D), h, &l->v, H3_ACT_NONE));
    H3_TRY(op->head_norm_rope(d, q, l->q_norm, t->eps, true, cos, sin));
    H3_TRY(op->head_norm_rope(d, k, l->k_norm, t->eps, true, cos, sin));
    if (is_tapped) h3_tap(d, q, "text/layer0.q");
    if (is_tapped) h3_tap(d, k, "text/layer0.k");
    if (is_tapped) h3_tap(d, v, "text/layer0.v");
    H3_TRY(op->attention(d, o, q, k, v, 1.0f / sqrtf((float)D), cu, 1, true));
    o = h3_view_2d(o, S, H * D);
    if (is_tapped) h3_tap(d, o, "text/layer0.attn");
    H3_TRY(op->gemm(d, h, o, &l->o, H3_ACT_NONE));
    if (is_tapped) h3_tap(d, h, "text/layer0.o");
    H3_TRY(op->add(d, x, x, h));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* x += down(silu(gate h) * (up h)) with h = norm2 x, for a range of rows. */
static h3_status feed_forward(const h3_encoder_text *t, h3_dev *d, const h3_encoder_layer *l,
                              bool is_tapped, h3_tensor x)
{
    const h3_ops *op = d->ops;
    const int64_t n = x.ne[0];
    const h3_dtype act = (h3_dtype)x.dtype;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, act, n, t->width);
    h3_tensor gate = h3_scratch_2d(d, act, n, t->hidden);
    h3_tensor up = h3_scratch_2d(d, act, n, t->hidden);
    h3_tensor g = h3_scratch_2d(d, act, n, t->hidden);

    H3_TRY(h3_scratch_check(d, "text feed-forward"));
    H3_TRY(op->rms_norm(d, h, x, l->norm2, t->eps, true));
    if (is_tapped) h3_tap(d, h, "text/layer0.ln2");
    H3_TRY(op->gemm(d, gate, h, &l->gate, H3_ACT_NONE));
    H3_TRY(op->gemm(d, up, h, &l->up, H3_ACT_NONE));
    H3_TRY(op->silu_mul(d, g, gate, up));
    if (is_tapped) h3_tap(d, g, "text/layer0.mlp_act");
    H3_TRY(op->gemm(d, h, g, &l->down, H3_ACT_NONE));
    if (is_tapped) h3_tap(d, h, "text/layer0.mlp");
    H3_TRY(op->add(d, x, x, h));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

static h3_status run_layer(const h3_encoder_text *t, h3_dev *d, int32_t i, h3_tensor x,
                           h3_tensor cos, h3_tensor sin, const int32_t cu[2])
{
    const h3_encoder_layer *l = &t->layer[i];
    const bool is_tapped = i == 0 && d->tap;
    const int64_t S = x.ne[0];

    H3_TRY(attend(t, d, l, is_tapped, x, cos, sin, cu));
    for (int64_t at = 0; at < S; at += MLP_ROWS)
        H3_TRY(feed_forward(t, d, l, is_tapped,
                            h3_slice(x, 0, at, S - at < MLP_ROWS ? S - at : MLP_ROWS)));
    h3_tap(d, x, "text/layer.%d", i);
    return H3_OK;
}

/* Embedding rows, then vision rows in place of the pads. */
static h3_status embed_rows(const h3_encoder_text *t, h3_dev *d, h3_tensor x, h3_tensor ids,
                            const h3_encoder_insert *insert, int n_insert)
{
    H3_TRY(d->ops->embed(d, x, &t->embed, ids));
    for (int k = 0; k < n_insert; k++)
        H3_TRY(d->ops->scatter_rows(d, x, insert[k].seen->merged, insert[k].index));
    h3_tap(d, x, "text/inputs_embeds");
    return H3_OK;
}

h3_status h3_encoder_text_forward(const h3_encoder_text *t, h3_dev *d, h3_store *store, int first,
                                  h3_tensor x, h3_tensor ids, h3_tensor cos, h3_tensor sin,
                                  const int32_t cu[2], const h3_encoder_insert *insert,
                                  int n_insert, int n_deep)
{
    h3_status st;

    if (store) H3_TRY(h3_store_acquire(store, first));
    st = embed_rows(t, d, x, ids, insert, n_insert);
    if (store) h3_store_release(store, first);
    H3_TRY(st);
    for (int32_t i = 0; i < t->n_layers; i++) {
        H3_TRY(h3_dev_check(d));
        if (store) H3_TRY(h3_store_acquire(store, first + 1 + i));
        st = run_layer(t, d, i, x, cos, sin, cu);
        if (store) h3_store_release(store, first + 1 + i);
        H3_TRY(st);
        if (t->progress && store) t->progress(t->progress_user, i + 1, t->n_layers);
        if (i >= n_deep || i + 1 == t->n_layers || !n_insert) continue;
        for (int k = 0; k < n_insert; k++)
            H3_TRY(d->ops->scatter_add_rows(d, x, insert[k].seen->deep[i], insert[k].index));
        h3_tap(d, x, "text/layer.%d.ds", i);
    }
    h3_tap(d, x, "text/out");
    return H3_OK;
}
