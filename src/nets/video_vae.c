/**
 * Opening the video autoencoder: sizes from tensor shapes and configuration, then the halves asked
 * for. What a file does not say is the release's; what it says wrongly is refused by name.
 */
#include "video_vae_net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tiles.h"
#include "vae_config.h"

const float h3_video_vae_pixel_mean[3] = {0.485f, 0.456f, 0.406f};
const float h3_video_vae_pixel_std[3] = {0.229f, 0.224f, 0.225f};

/* Statistics of the released latents, for files that bring none. */
enum { RELEASE_LATENTS = 24 };
static const float release_mean[RELEASE_LATENTS] = {
    0.858090341091156f,    -0.9606591463088989f, 1.0661640167236328f,   -0.5090325474739075f,
    -0.2727581858634949f,  -1.3675414323806763f, -0.2553254961967468f,  -0.26907554268836975f,
    -0.5376840829849243f,  -0.0464097298681736f, 0.6657370328903198f,   0.19690127670764923f,
    -0.5460608005523682f,  -0.4035342037677765f, -0.23683024942874908f, 0.25928452610969543f,
    -0.30133944749832153f, 0.211341992020607f,   -1.1206848621368408f,  0.3581933379173279f,
    -0.04225143790245056f, 0.2604829967021942f,  0.22864092886447906f,  0.7056031823158264f};
static const float release_std[RELEASE_LATENTS] = {
    1.2223774194717407f, 1.2767263650894165f,  1.6831774711608887f, 1.7549455165863037f,
    1.5636216402053833f, 2.194143533706665f,   0.9653137922286987f, 1.0569885969161987f,
    0.841948926448822f,  0.7729952931404114f,  1.8955937623977661f, 0.946841835975647f,
    0.7996809482574463f, 0.44988900423049927f, 0.7197399735450745f, 0.6936293244361877f,
    2.961095094680786f,  2.7694199085235596f,  3.0496184825897217f, 2.1088054180145264f,
    3.276226282119751f,  3.1627357006073f,     2.2816812992095947f, 2.6127843856811523f};

static h3_status need_shape(h3_checkpoint *ck, const char *name, int want_rank, int64_t ne[8])
{
    int rank;

    if (!h3_ckpt_shape(ck, name, &rank, ne))
        return h3_fail(H3_E_MISSING, "%s: tensor %s is missing", h3_ckpt_path(ck), name);
    if (rank != want_rank)
        return h3_fail(H3_E_SHAPE, "%s: tensor %s has rank %d, expected %d", h3_ckpt_path(ck), name,
                       rank, want_rank);
    for (int i = 0; i < rank; i++)
        if (ne[i] < 1 || ne[i] > (1 << 24))
            return h3_fail(H3_E_SHAPE, "%s: tensor %s: extent %lld of axis %d is out of range",
                           h3_ckpt_path(ck), name, (long long)ne[i], i);
    return H3_OK;
}

/* Strides of the levels: they fix the ratio between pixels and latents for both halves. */
static h3_status read_strides(h3_video_vae_geometry *g, const vae_config *c)
{
    static const int64_t space[] = {2, 2, 2, 2, 1, 1}, time[] = {1, 2, 2, 1, 1, 1};
    int64_t n_space = 6, n_time = 6;

    memcpy(g->down, space, sizeof space);
    memcpy(g->down_t, time, sizeof time);
    H3_TRY(vae_config_ints(c, "spatial_downsample_factors", "space_down", 1, 2, g->down,
                           H3_VIDEO_VAE_LEVELS, &n_space));
    H3_TRY(vae_config_ints(c, "temporal_downsample_factors", "time_down", 1, 2, g->down_t,
                           H3_VIDEO_VAE_LEVELS, &n_time));
    if (n_space != n_time)
        return h3_fail(H3_E_FORMAT,
                       "%s: %lld spatial but %lld temporal factors in the configuration",
                       h3_ckpt_path(c->ck), (long long)n_space, (long long)n_time);
    g->n_levels = n_space;
    g->ratio = g->ratio_t = 1;
    for (int64_t i = 0; i < n_space; i++) {
        if (g->down_t[i] > g->down[i])
            return h3_fail(H3_E_UNSUPPORTED, "%s: level %lld halves time but not space",
                           h3_ckpt_path(c->ck), (long long)i);
        g->ratio *= g->down[i];
        g->ratio_t *= g->down_t[i];
    }
    return H3_OK;
}

static h3_status read_common(h3_video_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    h3_decode_clips clips;
    double eps = 1e-6, dec_eps = 1e-5;
    int64_t ne[8], groups = 32;

    if (h3_ckpt_has(ck, "post_quant_conv.weight"))
        H3_TRY(need_shape(ck, "post_quant_conv.weight", 5, ne));
    else
        H3_TRY(need_shape(ck, "quant_conv.weight", 5, ne));
    g->latents = h3_ckpt_has(ck, "post_quant_conv.weight") ? ne[0] : ne[0] / 2;
    if (g->latents < 1 || g->latents > H3_VIDEO_VAE_LATENTS)
        return h3_fail(H3_E_SHAPE, "%s: %lld latent channels, expected 1 to %d", h3_ckpt_path(ck),
                       (long long)g->latents, H3_VIDEO_VAE_LATENTS);
    H3_TRY(read_strides(g, c));
    g->clip = 17;
    g->drop = 3;
    g->tile = 256;
    g->overlap = 64;
    H3_TRY(vae_config_int(c, "clip_length", "vae_clip_length", 1, 4096, &g->clip));
    H3_TRY(vae_config_int(c, "token_drop", "vae_token_drop", 0, 4096, &g->drop));
    H3_TRY(vae_config_int(c, "tile_sample_min_height", "vae_tile_size", 1, 1 << 16, &g->tile));
    H3_TRY(vae_config_int(c, "tile_sample_min_overlap_height", "vae_tile_overlap_min", 0, 1 << 16,
                          &g->overlap));
    if (g->tile % g->ratio || g->overlap % g->ratio || g->overlap >= g->tile)
        return h3_fail(H3_E_FORMAT,
                       "%s: tiles of %lld pixels with an overlap of %lld do not go with a ratio of "
                       "%lld",
                       h3_ckpt_path(ck), (long long)g->tile, (long long)g->overlap,
                       (long long)g->ratio);
    /* A rule that cannot even plan one long video is refused here rather than in the first request.
     */
    H3_TRY(h3_decode_clips_init(&clips, 4096, (h3_clip_rule){g->clip, g->drop, g->ratio_t}));
    H3_TRY(vae_config_int(c, "norm_num_groups", NULL, 1, 4096, &groups));
    H3_TRY(vae_config_number(c, "norm_eps", NULL, 1e-12, 1.0, &eps));
    H3_TRY(vae_config_number(c, "decoder_norm_eps", NULL, 1e-12, 1.0, &dec_eps));
    g->groups = (int)groups;
    g->enc_eps = (float)eps;
    g->eps = (float)dec_eps;
    const bool is_release = g->latents == RELEASE_LATENTS;
    H3_TRY(vae_config_stats(ck, c, "latents_mean", g->latents, is_release ? release_mean : NULL,
                            false, g->mean));
    return vae_config_stats(ck, c, "latents_std", g->latents, is_release ? release_std : NULL, true,
                            g->std);
}

static h3_status read_decoder(h3_video_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    int64_t ne[8];

    H3_TRY(need_shape(ck, "decoder.x_embedder.weight", 2, ne));
    g->dim = ne[0];
    if (ne[1] != g->latents)
        return h3_fail(H3_E_SHAPE,
                       "%s: decoder.x_embedder.weight takes %lld channels, expected %lld",
                       h3_ckpt_path(ck), (long long)ne[1], (long long)g->latents);
    H3_TRY(need_shape(ck, "decoder.register_tokens", 3, ne));
    g->n_registers = ne[1];
    g->n_layers = h3_ckpt_count(ck, "decoder.transformer_blocks.%d.norm1.weight");
    if (g->n_layers < 1)
        return h3_fail(H3_E_MISSING,
                       "%s: tensor decoder.transformer_blocks.0.norm1.weight is missing",
                       h3_ckpt_path(ck));
    H3_TRY(need_shape(ck, "decoder.transformer_blocks.0.ff.w2.weight", 2, ne));
    g->ff = ne[1];

    /* Nothing in the file tells how the width divides into heads. */
    g->head_dim = 64;
    H3_TRY(vae_config_int(c, "decoder_attention_head_dim", "dim_head", 1, 4096, &g->head_dim));
    g->heads = g->dim / g->head_dim;
    H3_TRY(vae_config_int(c, "decoder_num_attention_heads", "heads", 1, 4096, &g->heads));
    if (g->heads * g->head_dim != g->dim)
        return h3_fail(H3_E_SHAPE, "%s: %lld heads of %lld channels do not make the width %lld",
                       h3_ckpt_path(ck), (long long)g->heads, (long long)g->head_dim,
                       (long long)g->dim);
    g->rope_theta = 100.0;
    g->rope_ratio = 0.75;
    H3_TRY(vae_config_number(c, "decoder_rope_theta", "rope_theta", 1.0, 1e9, &g->rope_theta));
    H3_TRY(
        vae_config_number(c, "decoder_rope_dim_ratio", "rope_dim_ratio", 0.0, 1.0, &g->rope_ratio));
    const int64_t turned = (int64_t)((double)g->head_dim * g->rope_ratio);
    if (turned < 6 || turned % 6)
        return h3_fail(
            H3_E_FORMAT,
            "%s: %lld of %lld channels of a head are rotated; three axes in pairs need a "
            "multiple of 6",
            h3_ckpt_path(ck), (long long)turned, (long long)g->head_dim);
    return H3_OK;
}

static h3_status read_encoder(h3_video_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    const int64_t n = h3_ckpt_count(ck, "encoder.down.%d.block.0.conv1.weight");
    const json_t *pad = vae_config_find(c, "spatial_padding_mode", "padding_mode");

    if (pad && (!json_is_string(pad) || strcmp(json_string_value(pad), "reflect") != 0))
        return h3_fail(H3_E_UNSUPPORTED, "%s: only mirrored borders (\"reflect\") are known",
                       h3_ckpt_path(ck));

    if (n != g->n_levels)
        return h3_fail(H3_E_SHAPE, "%s: the encoder has %lld levels, its configuration %lld",
                       h3_ckpt_path(ck), (long long)n, (long long)g->n_levels);
    g->n_blocks = h3_ckpt_count(ck, "encoder.down.0.block.%d.conv1.weight");
    if (g->n_blocks < 1 || g->n_blocks > 4)
        return h3_fail(H3_E_SHAPE, "%s: %lld residual blocks a level, expected 1 to 4",
                       h3_ckpt_path(ck), (long long)g->n_blocks);
    for (int64_t i = 0; i < n; i++) {
        char name[64];
        int64_t ne[8];
        snprintf(name, sizeof name, "encoder.down.%d.block.0.conv1.weight", (int)i);
        H3_TRY(need_shape(ck, name, 5, ne));
        g->channels[i] = ne[0];
        if (ne[0] % g->groups)
            return h3_fail(H3_E_SHAPE, "%s: %s: %lld channels do not divide into %d groups",
                           h3_ckpt_path(ck), name, (long long)ne[0], g->groups);
    }
    return H3_OK;
}

static h3_status read_geometry(h3_video_vae *v)
{
    vae_config c = {.ck = v->ck};
    const json_t *source = h3_ckpt_config(v->ck, "source/config.json");

    vae_config_add(&c, h3_ckpt_config(v->ck, "config.json"));
    vae_config_add(&c, source);
    vae_config_add(&c, json_object_get(source, "vit_decoder_kwargs"));
    /* When source/ itself was opened, its config.json is the network's, and the latents' is above.
     */
    const json_t *inner =
        json_object_get(h3_ckpt_config(v->ck, "config.json"), "vit_decoder_kwargs");
    const json_t *outer = inner ? h3_ckpt_config(v->ck, "../config.json") : NULL;
    const char *class_name = json_string_value(json_object_get(outer, "_class_name"));
    vae_config_add(&c, inner);
    if (class_name && strcmp(class_name, "MiniMaxH3VideoVAE") == 0) vae_config_add(&c, outer);
    H3_TRY(read_common(&v->geo, v->ck, &c));
    if (v->halves & H3_VIDEO_VAE_DECODER) H3_TRY(read_decoder(&v->geo, v->ck, &c));
    if (v->halves & H3_VIDEO_VAE_ENCODER) H3_TRY(read_encoder(&v->geo, v->ck, &c));
    return H3_OK;
}

static h3_status bind_all(h3_video_vae *v)
{
    const int64_t n = v->geo.latents;

    H3_TRY(h3_dev_alloc(v->dev, &v->mean, H3_F32, 1, &n));
    H3_TRY(h3_dev_alloc(v->dev, &v->std, H3_F32, 1, &n));
    H3_TRY(h3_dev_upload(v->dev, v->mean, v->geo.mean));
    H3_TRY(h3_dev_upload(v->dev, v->std, v->geo.std));
    if (v->halves & H3_VIDEO_VAE_DECODER) H3_TRY(h3_video_vae_bind_decoder(v));
    if (v->halves & H3_VIDEO_VAE_ENCODER) H3_TRY(h3_video_vae_bind_encoder(v));
    return H3_OK;
}

h3_status h3_video_vae_open(h3_video_vae **out, h3_dev *d, h3_checkpoint *ck, unsigned halves)
{
    h3_video_vae *v = calloc(1, sizeof *v);
    h3_status st;

    *out = NULL;
    if (!v) return h3_fail(H3_E_NOMEM, "no memory for the video VAE");
    v->dev = d;
    v->ck = ck;
    v->halves = halves;
    st = read_geometry(v);
    if (st == H3_OK) st = bind_all(v);
    if (st != H3_OK) {
        h3_video_vae_close(&v);
        return st;
    }
    /* A training left-over, and whatever belongs to the half that stays closed. */
    h3_ckpt_ignore(ck, "decoder.mask_token");
    h3_ckpt_ignore(ck, "latents_mean");
    h3_ckpt_ignore(ck, "latents_std");
    if (!(halves & H3_VIDEO_VAE_DECODER)) {
        h3_ckpt_ignore(ck, "decoder.*");
        h3_ckpt_ignore(ck, "post_quant_conv.*");
    }
    if (!(halves & H3_VIDEO_VAE_ENCODER)) {
        h3_ckpt_ignore(ck, "encoder.*");
        h3_ckpt_ignore(ck, "quant_conv.*");
    }
    *out = v;
    return H3_OK;
}

void h3_video_vae_close(h3_video_vae **vp)
{
    h3_video_vae *v = vp ? *vp : NULL;

    if (!v) return;
    h3_video_vae_free_decoder(v);
    h3_video_vae_free_encoder(v);
    h3_dev_free(v->dev, &v->mean);
    h3_dev_free(v->dev, &v->std);
    free(v);
    *vp = NULL;
}

const h3_video_vae_geometry *h3_video_vae_sizes(const h3_video_vae *v)
{
    return &v->geo;
}
