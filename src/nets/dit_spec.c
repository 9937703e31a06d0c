/**
 * Which tensors make a DiT: the spec tables, the geometry (always read from shapes, since single
 * files and GGUFs carry no config), and what becomes of both when a checkpoint is opened.
 *
 * The released model has 535 tensors: 4 patch projection, 2 condition, 4 time embedder, 1 rope,
 * 2 x 8 + 1 refiner, 50 x (8 + 2) blocks, 7 final layer. The curve ("pruned") form replaces the
 * time embedder by adaln_t_table [1025, 8], to whose width the AdaLN matrices are cut.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dit.h"
#include "size.h"

/* Extents of the model, as the spec tables index them. */
enum {
    D_C,
    D_QKV,
    D_INNER,
    D_HEAD,
    D_F,
    D_2F,
    D_TEXT,
    D_VIDEO,
    D_AUDIO,
    D_T_FREQ,
    D_T_HIDDEN,
    D_T,
    D_ADALN,
    D_FINAL_ADALN,
    N_DIMS
};

#define MATRIX(name, bias, rows, cols, type, field)                            \
    {                                                                          \
        name, H3_SPEC_MATRIX, bias, false, {rows, cols}, offsetof(type, field) \
    }
#define VECTOR(name, n, type, field)                                      \
    {                                                                     \
        name, H3_SPEC_VECTOR, false, false, {n, 0}, offsetof(type, field) \
    }
#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

/* The two stacks differ only in their names (and in the modulation, which has its own table). */
#define BLOCK_SPEC(p)                                                           \
    {                                                                           \
        VECTOR(p ".norm1.weight", D_C, h3_dit_block, norm1),                    \
            VECTOR(p ".norm2.weight", D_C, h3_dit_block, norm2),                \
            VECTOR(p ".attn.q_norm.weight", D_HEAD, h3_dit_block, q_norm),      \
            VECTOR(p ".attn.k_norm.weight", D_HEAD, h3_dit_block, k_norm),      \
            MATRIX(p ".attn.qkv_proj", false, D_QKV, D_C, h3_dit_block, qkv),   \
            MATRIX(p ".attn.out_proj", false, D_C, D_INNER, h3_dit_block, out), \
            MATRIX(p ".mlp.fc1", false, D_2F, D_C, h3_dit_block, fc1),          \
            MATRIX(p ".mlp.fc2", false, D_C, D_F, h3_dit_block, fc2),           \
    }
static const h3_spec block_spec[] = BLOCK_SPEC("blocks.%d");
static const h3_spec refiner_spec[] = BLOCK_SPEC("token_refiner.blocks.%d");

static const h3_spec adaln_spec[] = {
    MATRIX("blocks.%d.adaln_proj.linear", true, D_ADALN, D_T, h3_dit_adaln, proj),
};

static const h3_spec edge_spec[] = {
    MATRIX("video_patch_proj", true, D_C, D_VIDEO, h3_dit_edge, video_proj),
    MATRIX("audio_patch_proj", true, D_C, D_AUDIO, h3_dit_edge, audio_proj),
    MATRIX("condition_proj", true, D_C, D_TEXT, h3_dit_edge, condition_proj),
    MATRIX("final_layer.adaln_proj.linear", true, D_FINAL_ADALN, D_T, h3_dit_edge, final_adaln),
    MATRIX("final_layer.video_out", true, D_VIDEO, D_C, h3_dit_edge, video_out),
    MATRIX("final_layer.audio_out", true, D_AUDIO, D_C, h3_dit_edge, audio_out),
    VECTOR("token_refiner.final_norm.weight", D_C, h3_dit_edge, refiner_norm),
    VECTOR("final_layer.norm.weight", D_C, h3_dit_edge, final_norm),
};

static const h3_spec time_spec[] = {
    MATRIX("time_embedder.proj_in", true, D_T_HIDDEN, D_T_FREQ, h3_dit_edge, time_in),
    MATRIX("time_embedder.proj_out", true, D_T, D_T_HIDDEN, h3_dit_edge, time_out),
};

/* ---- geometry ---- */

enum { MAX_BLOCKS = 1024 }; ///< how far a gap is looked for

static h3_status shape_of(const h3_checkpoint *ck, const char *name, int want_rank, int64_t ne[8])
{
    int rank;

    if (!h3_ckpt_shape(ck, name, &rank, ne))
        return h3_fail(H3_E_MISSING, "%s: tensor %s is missing", h3_ckpt_path(ck), name);
    if (rank != want_rank)
        return h3_fail(H3_E_SHAPE, "%s: tensor %s has rank %d, expected %d", h3_ckpt_path(ck), name,
                       rank, want_rank);
    for (int i = 0; i < rank; i++)
        if (ne[i] < 1 || ne[i] > INT32_MAX)
            return h3_fail(H3_E_SHAPE, "%s: tensor %s: extent %d is %" PRId64, h3_ckpt_path(ck),
                           name, i, ne[i]);
    return H3_OK;
}

/* How many blocks a stack has; none where that `may` be. A block that is missing between others is
 * named, rather than the ones behind it, which would otherwise look superfluous. */
static h3_status count_blocks(int64_t *n, const h3_checkpoint *ck, const char *stack,
                              bool may_be_none)
{
    char pattern[64], name[96];

    snprintf(pattern, sizeof pattern, "%s.%%d.norm1.weight", stack);
    *n = h3_ckpt_count(ck, pattern);
    for (int64_t i = *n + 1; i < MAX_BLOCKS; i++) {
        snprintf(name, sizeof name, "%s.%d.norm1.weight", stack, (int)i);
        if (h3_ckpt_has(ck, name))
            return h3_fail(H3_E_MISSING,
                           "%s: tensor %s.%d.norm1.weight is missing, while %s is there",
                           h3_ckpt_path(ck), stack, (int)*n, name);
    }
    if (*n == 0 && !may_be_none)
        return h3_fail(H3_E_MISSING, "%s: tensor %s.0.norm1.weight is missing", h3_ckpt_path(ck),
                       stack);
    return H3_OK;
}

/* Text goes unrefined only where the configuration says so: tensors alone may be incomplete. */
static bool has_no_refiner(const h3_checkpoint *ck)
{
    const json_t *root = h3_ckpt_config(ck, "config.json"),
                 *n = json_object_get(root, "token_refiner_num_layers");

    if (!n) n = json_object_get(root, "num_refiner_layers");
    return json_is_integer(n) && json_integer_value(n) == 0;
}

/* Time enters through the embedder or through a curve, never through both. */
static h3_status read_time_dims(h3_dit *m, h3_checkpoint *ck)
{
    const bool has_curve = h3_ckpt_has(ck, "adaln_t_table");
    const bool has_embedder = h3_ckpt_has(ck, "time_embedder.proj_in.weight") ||
                              h3_ckpt_has(ck, "time_embedder.proj_out.weight");
    h3_dit_dims *g = &m->dims;
    int64_t ne[8];

    if (has_curve == has_embedder)
        return h3_fail(H3_E_FORMAT,
                       "%s: %s of adaln_t_table and time_embedder.proj_in.weight: "
                       "expected exactly one",
                       h3_ckpt_path(ck), has_curve ? "both" : "neither");
    if (has_curve) {
        H3_TRY(shape_of(ck, "adaln_t_table", 2, ne));
        if (ne[0] < 2)
            return h3_fail(H3_E_SHAPE, "%s: adaln_t_table has one row, expected at least two",
                           h3_ckpt_path(ck));
        m->n_curve = ne[0];
        g->t_dim = ne[1];
        return H3_OK;
    }
    H3_TRY(shape_of(ck, "time_embedder.proj_in.weight", 2, ne));
    g->t_hidden = ne[0];
    g->t_freq = ne[1];
    H3_TRY(shape_of(ck, "time_embedder.proj_out.weight", 2, ne));
    g->t_dim = ne[0];
    return H3_OK;
}

static h3_status read_dims(h3_dit *m, h3_checkpoint *ck)
{
    const char *path = h3_ckpt_path(ck);
    h3_dit_dims *g = &m->dims;
    int64_t ne[8];

    H3_TRY(shape_of(ck, "video_patch_proj.weight", 2, ne));
    g->hidden = ne[0];
    g->video_cols = ne[1];
    H3_TRY(shape_of(ck, "audio_patch_proj.weight", 2, ne));
    g->audio_cols = ne[1];
    H3_TRY(shape_of(ck, "condition_proj.weight", 2, ne));
    g->text_dim = ne[1];
    H3_TRY(count_blocks(&g->n_layers, ck, "blocks", false));
    H3_TRY(count_blocks(&g->n_refiner, ck, "token_refiner.blocks", has_no_refiner(ck)));
    H3_TRY(shape_of(ck, "blocks.0.attn.q_norm.weight", 1, ne));
    g->head_dim = ne[0];
    H3_TRY(shape_of(ck, "blocks.0.attn.qkv_proj.weight", 2, ne));
    if (ne[0] % (3 * g->head_dim))
        return h3_fail(H3_E_SHAPE,
                       "%s: blocks.0.attn.qkv_proj has %" PRId64 " rows, expected 3 x "
                       "heads x %" PRId64,
                       path, ne[0], g->head_dim);
    g->inner = ne[0] / 3;
    g->n_heads = g->inner / g->head_dim;
    H3_TRY(shape_of(ck, "blocks.0.mlp.fc1.weight", 2, ne));
    if (ne[0] % 2)
        return h3_fail(H3_E_SHAPE, "%s: blocks.0.mlp.fc1 has %" PRId64 " rows, expected two halves",
                       path, ne[0]);
    g->ffn = ne[0] / 2;
    return read_time_dims(m, ck);
}

/* ---- config ---- */

typedef struct claim {
    const char *name;
    int64_t said, is;
} claim;

/* A config beside the weights must describe them; its eps and theta are the only news in it. */
static h3_status apply_config(h3_dit *m, h3_checkpoint *ck, h3_dit_config *c)
{
    const json_t *root = h3_ckpt_config(ck, "config.json");
    const h3_dit_dims *g = &m->dims;

    memset(c, 0, sizeof *c);
    if (!root) return H3_OK;
    H3_TRY(h3_dit_config_parse(c, root, "config.json"));
    const bool has_curve = m->n_curve > 0; // its file keeps the full model's numbers for time
    const claim claims[] = {
        {"hidden_size", c->hidden, g->hidden},
        {"num_attention_heads", c->n_heads, g->n_heads},
        {"attention_head_dim", c->head_dim, g->head_dim},
        {"num_layers", c->n_layers, g->n_layers},
        {"number of refiner layers", c->n_refiner, g->n_refiner},
        {"feed-forward size", c->ffn, g->ffn},
        {"latent channels x patch size", c->channels * c->patch[0] * c->patch[1] * c->patch[2],
         g->video_cols},
        {"audio channels", c->audio_channels, g->audio_cols},
        {"text_dim", c->text_dim, g->text_dim},
        {"timestep frequencies", has_curve ? 0 : c->t_freq, g->t_freq},
        {"hidden size of the time embedder", has_curve ? 0 : c->t_hidden, g->t_hidden},
        {"time_embed_dim", has_curve ? g->t_dim : c->t_dim, g->t_dim},
    };
    for (int i = 0; i < COUNT(claims); i++)
        if (claims[i].said != claims[i].is)
            return h3_fail(H3_E_SHAPE,
                           "%s: config.json says %s = %" PRId64 ", the tensors have %" PRId64,
                           h3_ckpt_path(ck), claims[i].name, claims[i].said, claims[i].is);
    m->norm_eps = (float)c->norm_eps;
    m->qk_norm_eps = (float)c->qk_norm_eps;
    m->final_norm_eps = (float)c->final_norm_eps;
    return H3_OK;
}

/* ---- rotation and curve ---- */

static h3_status check_floats(const float *p, int64_t n, const char *name, const char *path)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return h3_fail(H3_E_NUMERIC, "%s: %s holds NaN or infinity", path, name);
    return H3_OK;
}

/*
 * One frequency vector serves all three axes. diffusers' files do not store it; then it is
 * 1 / theta^(i / n), the power and the division each rounded to f32 as torch rounds them. Without a
 * config, n is an eighth of the head: three axes turn 3/4 of the channels.
 */
static h3_status load_rope(h3_dit *m, h3_checkpoint *ck, const h3_dit_config *c)
{
    const bool is_stored = h3_ckpt_has(ck, "rope.inv_freq");
    const double theta = c->rope_theta > 0 ? c->rope_theta : 10000.0;
    h3_dit_dims *g = &m->dims;
    int64_t ne[8];

    g->rope_freqs = c->rope_freqs ? c->rope_freqs : g->head_dim / 8;
    if (is_stored) {
        H3_TRY(shape_of(ck, "rope.inv_freq", 1, ne));
        if (c->rope_freqs && ne[0] != c->rope_freqs)
            return h3_fail(H3_E_SHAPE,
                           "%s: rope.inv_freq has %" PRId64 " entries, config.json says %" PRId64,
                           h3_ckpt_path(ck), ne[0], c->rope_freqs);
        g->rope_freqs = ne[0];
    }
    if (g->rope_freqs < 1 || 6 * g->rope_freqs > g->head_dim)
        return h3_fail(H3_E_SHAPE,
                       "%s: rope.inv_freq has %" PRId64
                       " entries: three axes of pairs do not fit in a head of %" PRId64,
                       h3_ckpt_path(ck), g->rope_freqs, g->head_dim);
    m->inv_freq = calloc((size_t)g->rope_freqs, sizeof *m->inv_freq);
    if (!m->inv_freq) return h3_fail(H3_E_NOMEM, "no memory for rotary frequencies");
    if (is_stored) {
        H3_TRY(h3_ckpt_floats(ck, m->inv_freq, "rope.inv_freq", g->rope_freqs));
        return check_floats(m->inv_freq, g->rope_freqs, "rope.inv_freq", h3_ckpt_path(ck));
    }
    for (int64_t i = 0; i < g->rope_freqs; i++)
        m->inv_freq[i] = 1.0f / (float)pow(theta, (double)((float)i / (float)g->rope_freqs));
    return H3_OK;
}

static h3_status load_curve(h3_dit *m, h3_checkpoint *ck)
{
    const int64_t n = m->n_curve * m->dims.t_dim; // both below 2^31
    size_t bytes;

    if (!h3_mul_size((size_t)n, sizeof(float), &bytes) || !(m->curve = malloc(bytes)))
        return h3_fail(H3_E_NOMEM, "no memory for adaln_t_table");
    H3_TRY(h3_ckpt_floats(ck, m->curve, "adaln_t_table", n));
    return check_floats(m->curve, n, "adaln_t_table", h3_ckpt_path(ck));
}

/* ---- binding ---- */

static void fill_dims(int64_t dims[N_DIMS], const h3_dit_dims *g)
{
    dims[D_C] = g->hidden;
    dims[D_QKV] = 3 * g->inner;
    dims[D_INNER] = g->inner;
    dims[D_HEAD] = g->head_dim;
    dims[D_F] = g->ffn;
    dims[D_2F] = 2 * g->ffn;
    dims[D_TEXT] = g->text_dim;
    dims[D_VIDEO] = g->video_cols;
    dims[D_AUDIO] = g->audio_cols;
    dims[D_T_FREQ] = g->t_freq;
    dims[D_T_HIDDEN] = g->t_hidden;
    dims[D_T] = g->t_dim;
    dims[D_ADALN] = 18 * g->hidden;
    dims[D_FINAL_ADALN] = 2 * g->hidden;
}

static h3_status bind_all(h3_dit *m, h3_checkpoint *ck)
{
    const h3_dit_dims *g = &m->dims;
    int64_t dims[N_DIMS];

    fill_dims(dims, g);
    m->block = calloc((size_t)g->n_layers, sizeof *m->block);
    m->adaln = calloc((size_t)g->n_layers, sizeof *m->adaln);
    m->refiner = calloc((size_t)g->n_refiner + 1, sizeof *m->refiner); // there may be none
    if (!m->block || !m->adaln || !m->refiner) return h3_fail(H3_E_NOMEM, "no memory for blocks");
    H3_TRY(h3_bind(ck, m->dev, edge_spec, COUNT(edge_spec), dims, &m->edge, 0));
    if (!m->n_curve) H3_TRY(h3_bind(ck, m->dev, time_spec, COUNT(time_spec), dims, &m->edge, 0));
    for (int i = 0; i < (int)g->n_refiner; i++)
        H3_TRY(h3_bind(ck, m->dev, refiner_spec, COUNT(refiner_spec), dims, &m->refiner[i], i));
    for (int i = 0; i < (int)g->n_layers; i++) {
        H3_TRY(h3_bind(ck, m->dev, block_spec, COUNT(block_spec), dims, &m->block[i], i));
        H3_TRY(h3_bind(ck, m->dev, adaln_spec, COUNT(adaln_spec), dims, &m->adaln[i], i));
    }
    return h3_ckpt_finish(ck);
}

/* What h3_dit_prepare needs, once. Groups of the second: time embedder and final layer, blocks. */
static h3_status fill_once_stores(h3_dit *m)
{
    if (m->dev->is_plan) return H3_OK;
    H3_TRY(h3_store_create(&m->text_store, m->dev));
    H3_TRY(h3_store_add(m->text_store, 0, &m->edge.condition_proj));
    for (int64_t i = 0; i < m->dims.n_refiner; i++)
        H3_TRY(
            h3_store_add_spec(m->text_store, 0, refiner_spec, COUNT(refiner_spec), &m->refiner[i]));
    H3_TRY(h3_store_create(&m->mod_store, m->dev));
    if (!m->n_curve) {
        H3_TRY(h3_store_add(m->mod_store, 0, &m->edge.time_in));
        H3_TRY(h3_store_add(m->mod_store, 0, &m->edge.time_out));
    }
    H3_TRY(h3_store_add(m->mod_store, 0, &m->edge.final_adaln));
    for (int i = 0; i < (int)m->dims.n_layers; i++)
        H3_TRY(h3_store_add(m->mod_store, 1 + i, &m->adaln[i].proj));
    return H3_OK;
}

/* The matrices of a step, in the order of use. */
static h3_status fill_store(h3_dit *m)
{
    const int heads = (int)m->dims.n_layers + 1;

    H3_TRY(h3_store_create(&m->store, m->dev));
    h3_store_may_spread(m->store); // all ranks walk through the blocks together
    H3_TRY(h3_store_add(m->store, 0, &m->edge.video_proj));
    H3_TRY(h3_store_add(m->store, 0, &m->edge.audio_proj));
    for (int i = 0; i < (int)m->dims.n_layers; i++)
        H3_TRY(h3_store_add_spec(m->store, 1 + i, block_spec, COUNT(block_spec), &m->block[i]));
    H3_TRY(h3_store_add(m->store, heads, &m->edge.video_out));
    H3_TRY(h3_store_add(m->store, heads, &m->edge.audio_out));
    return fill_once_stores(m);
}

static h3_status open_into(h3_dit *m, h3_checkpoint *ck)
{
    h3_dit_config config;

    H3_TRY(read_dims(m, ck));
    H3_TRY(apply_config(m, ck, &config));
    H3_TRY(load_rope(m, ck, &config));
    if (m->n_curve) H3_TRY(load_curve(m, ck));
    H3_TRY(bind_all(m, ck));
    return fill_store(m);
}

h3_status h3_dit_open(h3_dit **out, h3_checkpoint *ck, h3_dev *d)
{
    h3_dit *m = calloc(1, sizeof *m);
    h3_status st;

    *out = NULL;
    if (!m) return h3_fail(H3_E_NOMEM, "no memory for the DiT");
    m->dev = d;
    /* Enough rows that reading fc1 and fc2 again does not show; a GPU reads faster than it fills.
     */
    m->mlp_band = d->mem == H3_DEVICE ? 16384 : 8192;
    m->norm_eps = m->qk_norm_eps = m->final_norm_eps = 1e-5f;
    if ((st = open_into(m, ck)) != H3_OK) {
        h3_dit_close(&m);
        return st;
    }
    *out = m;
    return H3_OK;
}

static void free_block(h3_dev *d, h3_dit_block *b)
{
    h3_dev_weight_free(d, &b->qkv);
    h3_dev_weight_free(d, &b->out);
    h3_dev_weight_free(d, &b->fc1);
    h3_dev_weight_free(d, &b->fc2);
}

void h3_dit_close(h3_dit **pm)
{
    h3_dit *m = pm ? *pm : NULL;

    if (!m) return;
    h3_store_free(&m->store);
    h3_store_free(&m->text_store);
    h3_store_free(&m->mod_store);
    h3_dit_forget_mod(m);
    for (int64_t i = 0; m->block && i < m->dims.n_layers; i++)
        free_block(m->dev, &m->block[i]);
    for (int64_t i = 0; m->refiner && i < m->dims.n_refiner; i++)
        free_block(m->dev, &m->refiner[i]);
    for (int64_t i = 0; m->adaln && i < m->dims.n_layers; i++)
        h3_dev_weight_free(m->dev, &m->adaln[i].proj);
    for (int i = 0; i < COUNT(edge_spec); i++)
        if (edge_spec[i].kind == H3_SPEC_MATRIX)
            h3_dev_weight_free(m->dev,
                               (h3_weight *)(void *)((char *)&m->edge + edge_spec[i].offset));
    h3_dev_weight_free(m->dev, &m->edge.time_in);
    h3_dev_weight_free(m->dev, &m->edge.time_out);
    free(m->block);
    free(m->refiner);
    free(m->adaln);
    free(m->inv_freq);
    free(m->curve);
    free(m);
    *pm = NULL;
}
