/**
 * See geometry.h. One table per role: a row names a tensor, how often it occurs, and its extents as
 * indices into the list of sizes. The sizes themselves come from a few tensors that lead.
 */
#include "geometry.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"

typedef struct want {
    const char *name;
    uint8_t times; ///< index of the size that counts it, 0: once
    uint8_t rank, dim[2];
    bool is_optional, is_small; ///< small: values are read and must be finite
} want;

/* ---- the DiT ---- */

enum {
    D_ONE = 0,
    D_C,
    D_LAYERS,
    D_REFINER,
    D_HEADS,
    D_HEAD,
    D_INNER,
    D_F,
    D_TEXT,
    D_VIDEO,
    D_AUDIO,
    D_T,
    D_T_HIDDEN,
    D_T_FREQ,
    D_CURVE,
    D_ROPE,
    D_QKV,   // 3 inner
    D_F2,    // 2 F
    D_ADALN, // 18 C
    D_FINAL, // 2 C
    D_DIT_COUNT
};
static const char *const dit_dims[] = {
    NULL,          "hidden",           "layers",        "refiner layers",
    "heads",       "head size",        "inner",         "feed-forward",
    "text width",  "video columns",    "audio columns", "time width",
    "time hidden", "time frequencies", "curve rows",    "rope frequencies"};

#define BLOCK(p, count)                                                     \
    {p "norm1.weight", count, 1, {D_C}, false, true},                       \
        {p "norm2.weight", count, 1, {D_C}, false, true},                   \
        {p "attn.q_norm.weight", count, 1, {D_HEAD}, false, true},          \
        {p "attn.k_norm.weight", count, 1, {D_HEAD}, false, true},          \
        {p "attn.qkv_proj.weight", count, 2, {D_QKV, D_C}, false, false},   \
        {p "attn.out_proj.weight", count, 2, {D_C, D_INNER}, false, false}, \
        {p "mlp.fc1.weight", count, 2, {D_F2, D_C}, false, false},          \
    {                                                                       \
        p "mlp.fc2.weight", count, 2, {D_C, D_F}, false, false              \
    }

static const want dit_wants[] = {
    {"video_patch_proj.weight", 0, 2, {D_C, D_VIDEO}, false, false},
    {"video_patch_proj.bias", 0, 1, {D_C}, false, true},
    {"audio_patch_proj.weight", 0, 2, {D_C, D_AUDIO}, false, false},
    {"audio_patch_proj.bias", 0, 1, {D_C}, false, true},
    {"condition_proj.weight", 0, 2, {D_C, D_TEXT}, false, false},
    {"condition_proj.bias", 0, 1, {D_C}, false, true},
    {"adaln_t_table", 0, 2, {D_CURVE, D_T}, true, true},
    {"time_embedder.proj_in.weight", 0, 2, {D_T_HIDDEN, D_T_FREQ}, true, false},
    {"time_embedder.proj_in.bias", 0, 1, {D_T_HIDDEN}, true, true},
    {"time_embedder.proj_out.weight", 0, 2, {D_T, D_T_HIDDEN}, true, false},
    {"time_embedder.proj_out.bias", 0, 1, {D_T}, true, true},
    BLOCK("token_refiner.blocks.%d.", D_REFINER),
    {"token_refiner.final_norm.weight", 0, 1, {D_C}, false, true},
    BLOCK("blocks.%d.", D_LAYERS),
    {"blocks.%d.adaln_proj.linear.weight", D_LAYERS, 2, {D_ADALN, D_T}, false, false},
    {"blocks.%d.adaln_proj.linear.bias", D_LAYERS, 1, {D_ADALN}, false, true},
    {"final_layer.norm.weight", 0, 1, {D_C}, false, true},
    {"final_layer.adaln_proj.linear.weight", 0, 2, {D_FINAL, D_T}, false, false},
    {"final_layer.adaln_proj.linear.bias", 0, 1, {D_FINAL}, false, true},
    {"final_layer.video_out.weight", 0, 2, {D_VIDEO, D_C}, false, false},
    {"final_layer.video_out.bias", 0, 1, {D_VIDEO}, false, true},
    {"final_layer.audio_out.weight", 0, 2, {D_AUDIO, D_C}, false, false},
    {"final_layer.audio_out.bias", 0, 1, {D_AUDIO}, false, true},
    {"rope.inv_freq", 0, 1, {D_ROPE}, true, true},
};

/* ---- the text encoder ---- */

enum {
    E_ONE = 0,
    E_HID,
    E_LAYERS,
    E_VOCAB,
    E_HEADS,
    E_KV_HEADS,
    E_HEAD,
    E_F,
    E_V,
    E_V_DEPTH,
    E_V_F,
    E_V_POS,
    E_DEEP,
    E_MERGED,
    E_Q,
    E_KV,
    E_3V,
    E_ENC_COUNT
};
static const char *const te_dims[] = {NULL,
                                      "hidden",
                                      "layers",
                                      "vocabulary",
                                      "heads",
                                      "kv heads",
                                      "head size",
                                      "feed-forward",
                                      "vision hidden",
                                      "vision layers",
                                      "vision feed-forward",
                                      "vision positions",
                                      "deepstack",
                                      "merged"};

#define TEXT "model.language_model.layers.%d."
#define VIS  "model.visual."
#define AFFINE(n, count, d)                    \
    {n ".weight", count, 1, {d}, false, true}, \
    {                                          \
        n ".bias", count, 1, {d}, false, true  \
    }
#define LINEAR(n, count, o, i)                     \
    {n ".weight", count, 2, {o, i}, false, false}, \
    {                                              \
        n ".bias", count, 1, {o}, false, true      \
    }

static const want te_wants[] = {
    {"model.language_model.embed_tokens.weight", 0, 2, {E_VOCAB, E_HID}, false, false},
    {TEXT "input_layernorm.weight", E_LAYERS, 1, {E_HID}, false, true},
    {TEXT "post_attention_layernorm.weight", E_LAYERS, 1, {E_HID}, false, true},
    {TEXT "self_attn.q_proj.weight", E_LAYERS, 2, {E_Q, E_HID}, false, false},
    {TEXT "self_attn.k_proj.weight", E_LAYERS, 2, {E_KV, E_HID}, false, false},
    {TEXT "self_attn.v_proj.weight", E_LAYERS, 2, {E_KV, E_HID}, false, false},
    {TEXT "self_attn.o_proj.weight", E_LAYERS, 2, {E_HID, E_Q}, false, false},
    {TEXT "self_attn.q_norm.weight", E_LAYERS, 1, {E_HEAD}, false, true},
    {TEXT "self_attn.k_norm.weight", E_LAYERS, 1, {E_HEAD}, false, true},
    {TEXT "mlp.gate_proj.weight", E_LAYERS, 2, {E_F, E_HID}, false, false},
    {TEXT "mlp.up_proj.weight", E_LAYERS, 2, {E_F, E_HID}, false, false},
    {TEXT "mlp.down_proj.weight", E_LAYERS, 2, {E_HID, E_F}, false, false},
    {VIS "pos_embed.weight", 0, 2, {E_V_POS, E_V}, false, false},
    {VIS "patch_embed.proj.bias", 0, 1, {E_V}, false, true},
    LINEAR(VIS "blocks.%d.attn.qkv", E_V_DEPTH, E_3V, E_V),
    LINEAR(VIS "blocks.%d.attn.proj", E_V_DEPTH, E_V, E_V),
    LINEAR(VIS "blocks.%d.mlp.linear_fc1", E_V_DEPTH, E_V_F, E_V),
    LINEAR(VIS "blocks.%d.mlp.linear_fc2", E_V_DEPTH, E_V, E_V_F),
    AFFINE(VIS "blocks.%d.norm1", E_V_DEPTH, E_V),
    AFFINE(VIS "blocks.%d.norm2", E_V_DEPTH, E_V),
    AFFINE(VIS "merger.norm", 0, E_V),
    LINEAR(VIS "merger.linear_fc1", 0, E_MERGED, E_MERGED),
    LINEAR(VIS "merger.linear_fc2", 0, E_HID, E_MERGED),
    AFFINE(VIS "deepstack_merger_list.%d.norm", E_DEEP, E_MERGED),
    LINEAR(VIS "deepstack_merger_list.%d.linear_fc1", E_DEEP, E_MERGED, E_MERGED),
    LINEAR(VIS "deepstack_merger_list.%d.linear_fc2", E_DEEP, E_HID, E_MERGED),
};

/* ---- the video VAE's decoder; its encoder's widths differ by level and are checked by the net
 * ---- */

enum { V_ONE = 0, V_DIM, V_LAYERS, V_F, V_LATENT, V_OUT, V_LEVELS, V_3DIM, V_2F, V_COUNT };
static const char *const vvae_dims[] = {NULL,      "hidden",       "layers",        "feed-forward",
                                        "latents", "patch values", "encoder levels"};
#define DEC "decoder.transformer_blocks.%d."
static const want vvae_wants[] = {
    LINEAR("decoder.x_embedder", 0, V_DIM, V_LATENT),
    AFFINE("decoder.norm_out", 0, V_DIM),
    LINEAR("decoder.proj_out", 0, V_OUT, V_DIM),
    LINEAR(DEC "attn.to_qkv", V_LAYERS, V_3DIM, V_DIM),
    LINEAR(DEC "attn.to_out", V_LAYERS, V_DIM, V_DIM),
    LINEAR(DEC "ff.w1", V_LAYERS, V_2F, V_DIM),
    LINEAR(DEC "ff.w2", V_LAYERS, V_DIM, V_F),
    {DEC "norm1.weight", V_LAYERS, 1, {V_DIM}, false, true},
    {DEC "norm2.weight", V_LAYERS, 1, {V_DIM}, false, true},
    {DEC "scale1", V_LAYERS, 1, {V_DIM}, false, true},
    {DEC "scale2", V_LAYERS, 1, {V_DIM}, false, true},
};

/* ---- checking ---- */

typedef struct exam {
    h3_checkpoint *ck;
    json_t *problems; ///< NULL: stop at the first
    int64_t size[32];
} exam;

/* Records a failure, once however often it is met, or passes it on. */
static h3_status note(exam *x, h3_status st)
{
    size_t i;
    json_t *known;

    if (st == H3_OK || !x->problems) return st;
    json_array_foreach(x->problems, i,
                       known) if (strcmp(json_string_value(known), h3_error()) == 0) return H3_OK;
    json_array_append_new(x->problems, json_string(h3_error()));
    return H3_OK;
}

/* Extent `axis` of a leading tensor, 0 when the tensor is not usable (then reported). */
static h3_status lead(exam *x, const char *name, int rank, int axis, int64_t *out)
{
    int got;
    int64_t ne[8];

    *out = 0;
    if (!h3_ckpt_shape(x->ck, name, &got, ne))
        return note(x, h3_fail(H3_E_MISSING, "%s: tensor \"%s\" is missing", x->ck->path, name));
    if (got != rank || ne[axis] < 1)
        return note(x, h3_fail(H3_E_SHAPE,
                               "%s: tensor \"%s\" has rank %d, expected %d with extents "
                               "of at least 1",
                               x->ck->path, name, got, rank));
    *out = ne[axis];
    return H3_OK;
}

static h3_status check_shape(exam *x, const want *w, const char *name, const h3_item *it)
{
    char got[64] = "", expected[64] = "";
    bool same = it->rank == w->rank;

    for (int i = 0; i < w->rank && same; i++)
        same = it->ne[i] == x->size[w->dim[i]];
    if (same) return H3_OK;
    for (int i = 0; i < it->rank; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%lld", i ? ", " : "",
                 (long long)it->ne[i]);
    for (int i = 0; i < w->rank; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%lld",
                 i ? ", " : "", (long long)x->size[w->dim[i]]);
    return h3_fail(H3_E_SHAPE, "%s: tensor \"%s\" is [%s], expected [%s]", h3_item_file(x->ck, it),
                   name, got, expected);
}

static h3_status check_values(exam *x, const char *name, h3_item *it)
{
    int64_t n = 1;
    float *v;
    h3_status st;
    const bool was_bound = it->is_bound;

    for (int i = 0; i < it->rank; i++)
        n *= it->ne[i];
    v = malloc((size_t)(n ? n : 1) * sizeof *v);
    if (!v) return h3_fail(H3_E_NOMEM, "%s: no memory for \"%s\"", x->ck->path, name);
    st = h3_ckpt_floats(x->ck, v, name, n);
    it->is_bound = was_bound;
    free(v);
    return st;
}

static h3_status check_one(exam *x, const want *w, const char *name)
{
    h3_item *it = (h3_item *)(uintptr_t)h3_ckpt_item(x->ck, name);
    h3_weight_part part[H3_MAX_PARTS];
    int n;

    if (!it) {
        if (w->is_optional) return H3_OK;
        return h3_fail(H3_E_MISSING, "%s: tensor \"%s\" is missing", x->ck->path, name);
    }
    H3_TRY(check_shape(x, w, name, it));
    if (w->is_small) return check_values(x, name, it);
    return h3_item_parts(x->ck, it, part, &n);
}

static h3_status check_table(exam *x, const want *w, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int64_t times = w[i].times ? x->size[w[i].times] : 1;
        for (int64_t k = 0; k < times; k++) {
            char name[160];
            snprintf(name, sizeof name, w[i].name, (int)k);
            H3_TRY(note(x, check_one(x, &w[i], name)));
        }
    }
    return H3_OK;
}

/* No tensor "<prefix>N." may have N >= count: a gap, or a number out of range. */
static h3_status check_layers(exam *x, const char *prefix, int64_t count)
{
    const size_t n = strlen(prefix);

    for (size_t i = 0; i < x->ck->n_items; i++) {
        const h3_item *it = &x->ck->items[i];
        char *end;
        if (strncmp(it->name, prefix, n) != 0 || it->name[n] < '0' || it->name[n] > '9') continue;
        const unsigned long long layer = strtoull(it->name + n, &end, 10);
        if (layer < (unsigned long long)count && *end == '.' && end - (it->name + n) < 10) continue;
        return note(x, h3_fail(H3_E_MISSING, "%s: tensor \"%s\" is there, but %s%lld is missing",
                               h3_item_file(x->ck, it), it->name, prefix, (long long)count));
    }
    return H3_OK;
}

static h3_status bad(exam *x, const char *name, const char *what)
{
    return note(x, h3_fail(H3_E_SHAPE, "%s: tensor \"%s\": %s", x->ck->path, name, what));
}

/* Highest count over a few names, so that one missing tensor is named instead of a layer lost. */
static int64_t count_layers(const h3_checkpoint *ck, const char *a, const char *b)
{
    const int64_t n = h3_ckpt_count(ck, a), k = h3_ckpt_count(ck, b);
    return n > k ? n : k;
}

static h3_status read_dit(exam *x)
{
    int64_t *d = x->size, qkv, fc1;
    const bool has_curve = h3_ckpt_has(x->ck, "adaln_t_table");
    const bool has_embedder = h3_ckpt_has(x->ck, "time_embedder.proj_in.weight");

    H3_TRY(lead(x, "video_patch_proj.weight", 2, 0, &d[D_C]));
    H3_TRY(lead(x, "video_patch_proj.weight", 2, 1, &d[D_VIDEO]));
    H3_TRY(lead(x, "audio_patch_proj.weight", 2, 1, &d[D_AUDIO]));
    H3_TRY(lead(x, "condition_proj.weight", 2, 1, &d[D_TEXT]));
    H3_TRY(lead(x, "blocks.0.attn.q_norm.weight", 1, 0, &d[D_HEAD]));
    H3_TRY(lead(x, "blocks.0.attn.qkv_proj.weight", 2, 0, &qkv));
    H3_TRY(lead(x, "blocks.0.mlp.fc1.weight", 2, 0, &fc1));
    if (d[D_HEAD] && qkv % (3 * d[D_HEAD]))
        H3_TRY(bad(x, "blocks.0.attn.qkv_proj.weight", "rows are no three parts of whole heads"));
    if (fc1 % 2) H3_TRY(bad(x, "blocks.0.mlp.fc1.weight", "rows are no two halves"));
    if (has_curve == has_embedder)
        H3_TRY(note(x, h3_fail(H3_E_FORMAT,
                               "%s: has %s of adaln_t_table and time_embedder, expected "
                               "one",
                               x->ck->path, has_curve ? "both" : "neither")));
    if (has_curve) {
        H3_TRY(lead(x, "adaln_t_table", 2, 0, &d[D_CURVE]));
        H3_TRY(lead(x, "adaln_t_table", 2, 1, &d[D_T]));
        if (d[D_CURVE] == 1) H3_TRY(bad(x, "adaln_t_table", "one row cannot be interpolated"));
    } else if (has_embedder) {
        H3_TRY(lead(x, "time_embedder.proj_in.weight", 2, 0, &d[D_T_HIDDEN]));
        H3_TRY(lead(x, "time_embedder.proj_in.weight", 2, 1, &d[D_T_FREQ]));
        H3_TRY(lead(x, "time_embedder.proj_out.weight", 2, 0, &d[D_T]));
    }
    if (h3_ckpt_has(x->ck, "rope.inv_freq")) H3_TRY(lead(x, "rope.inv_freq", 1, 0, &d[D_ROPE]));
    d[D_QKV] = qkv;
    d[D_INNER] = qkv / 3;
    d[D_HEADS] = d[D_HEAD] ? d[D_INNER] / d[D_HEAD] : 0;
    d[D_F2] = fc1;
    d[D_F] = fc1 / 2;
    d[D_ADALN] = 18 * d[D_C];
    d[D_FINAL] = 2 * d[D_C];
    d[D_LAYERS] = count_layers(x->ck, "blocks.%d.norm1.weight", "blocks.%d.attn.qkv_proj.weight");
    d[D_REFINER] = count_layers(x->ck, "token_refiner.blocks.%d.norm1.weight",
                                "token_refiner.blocks.%d.attn.qkv_proj.weight");
    H3_TRY(check_layers(x, "blocks.", d[D_LAYERS]));
    H3_TRY(check_layers(x, "token_refiner.blocks.", d[D_REFINER]));
    return check_table(x, dit_wants, sizeof dit_wants / sizeof *dit_wants);
}

static h3_status read_encoder(exam *x)
{
    int64_t *d = x->size;

    H3_TRY(lead(x, "model.language_model.embed_tokens.weight", 2, 0, &d[E_VOCAB]));
    H3_TRY(lead(x, "model.language_model.embed_tokens.weight", 2, 1, &d[E_HID]));
    H3_TRY(lead(x, "model.language_model.layers.0.self_attn.q_norm.weight", 1, 0, &d[E_HEAD]));
    H3_TRY(lead(x, "model.language_model.layers.0.self_attn.q_proj.weight", 2, 0, &d[E_Q]));
    H3_TRY(lead(x, "model.language_model.layers.0.self_attn.k_proj.weight", 2, 0, &d[E_KV]));
    H3_TRY(lead(x, "model.language_model.layers.0.mlp.gate_proj.weight", 2, 0, &d[E_F]));
    H3_TRY(lead(x, VIS "pos_embed.weight", 2, 0, &d[E_V_POS]));
    H3_TRY(lead(x, VIS "pos_embed.weight", 2, 1, &d[E_V]));
    H3_TRY(lead(x, VIS "blocks.0.mlp.linear_fc1.weight", 2, 0, &d[E_V_F]));
    H3_TRY(lead(x, VIS "merger.linear_fc1.weight", 2, 0, &d[E_MERGED]));
    if (d[E_HEAD] && (d[E_Q] % d[E_HEAD] || d[E_KV] % d[E_HEAD]))
        H3_TRY(bad(x, "model.language_model.layers.0.self_attn.q_proj.weight",
                   "rows are no whole heads"));
    d[E_HEADS] = d[E_HEAD] ? d[E_Q] / d[E_HEAD] : 0;
    d[E_KV_HEADS] = d[E_HEAD] ? d[E_KV] / d[E_HEAD] : 0;
    d[E_3V] = 3 * d[E_V];
    d[E_LAYERS] =
        count_layers(x->ck, TEXT "input_layernorm.weight", TEXT "self_attn.q_proj.weight");
    d[E_V_DEPTH] =
        count_layers(x->ck, VIS "blocks.%d.norm1.weight", VIS "blocks.%d.attn.qkv.weight");
    d[E_DEEP] = h3_ckpt_count(x->ck, VIS "deepstack_merger_list.%d.norm.weight");
    H3_TRY(check_layers(x, "model.language_model.layers.", d[E_LAYERS]));
    H3_TRY(check_layers(x, VIS "blocks.", d[E_V_DEPTH]));
    return check_table(x, te_wants, sizeof te_wants / sizeof *te_wants);
}

static h3_status read_video_vae(exam *x)
{
    int64_t *d = x->size;

    H3_TRY(lead(x, "decoder.x_embedder.weight", 2, 0, &d[V_DIM]));
    H3_TRY(lead(x, "decoder.x_embedder.weight", 2, 1, &d[V_LATENT]));
    H3_TRY(lead(x, "decoder.proj_out.weight", 2, 0, &d[V_OUT]));
    H3_TRY(lead(x, "decoder.transformer_blocks.0.ff.w2.weight", 2, 1, &d[V_F]));
    d[V_3DIM] = 3 * d[V_DIM];
    d[V_2F] = 2 * d[V_F];
    d[V_LAYERS] = count_layers(x->ck, DEC "norm1.weight", DEC "attn.to_qkv.weight");
    d[V_LEVELS] = h3_ckpt_count(x->ck, "encoder.down.%d.block.0.conv1.weight");
    H3_TRY(check_layers(x, "decoder.transformer_blocks.", d[V_LAYERS]));
    return check_table(x, vvae_wants, sizeof vvae_wants / sizeof *vvae_wants);
}

static h3_status read_audio_vae(exam *x)
{
    int64_t *d = x->size;

    H3_TRY(lead(x, "dec_in_proj.weight", 3, 0, &d[1]));
    H3_TRY(lead(x, "dec_in_proj.weight", 3, 1, &d[2]));
    H3_TRY(lead(x, "decoder.conv_pre.weight", 3, 0, &d[3]));
    d[4] = h3_ckpt_count(x->ck, "decoder.ups.%d.0.weight");
    d[5] = h3_ckpt_count(x->ck, "decoder.resblocks.%d.convs1.0.weight");
    return H3_OK;
}
static const char *const avae_dims[] = {NULL,         "inner",          "latents", "decoder width",
                                        "upsamplers", "residual blocks"};

h3_status h3_geometry_read(h3_geometry *out, h3_checkpoint *ck, json_t *problems)
{
    static const struct {
        h3_role role;
        h3_status (*read)(exam *x);
        const char *const *names;
        size_t n;
    } roles[] = {
        {H3_ROLE_DIT, read_dit, dit_dims, sizeof dit_dims / sizeof *dit_dims},
        {H3_ROLE_TEXT_ENCODER, read_encoder, te_dims, sizeof te_dims / sizeof *te_dims},
        {H3_ROLE_VIDEO_VAE, read_video_vae, vvae_dims, sizeof vvae_dims / sizeof *vvae_dims},
        {H3_ROLE_AUDIO_VAE, read_audio_vae, avae_dims, sizeof avae_dims / sizeof *avae_dims},
    };
    exam x = {.ck = ck, .problems = problems};

    static_assert((int)D_DIT_COUNT < 32 && (int)E_ENC_COUNT < 32 && (int)V_COUNT < 32, "sizes");
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (roles[i].role != ck->naming.role) continue;
        H3_TRY(roles[i].read(&x));
        for (size_t k = 1; k < roles[i].n; k++)
            if (x.size[k]) {
                out->dim[out->n].name = roles[i].names[k];
                out->dim[out->n++].value = x.size[k];
            }
    }
    return H3_OK;
}

int64_t h3_geometry_dim(const h3_geometry *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->dim[i].name, name) == 0) return g->dim[i].value;
    return -1;
}
