/**
 * Opening the audio autoencoder: sizes from tensor shapes and configuration, then the halves asked
 * for. What a file does not say is the release's; what it says wrongly is refused by name.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "audio_vae_net.h"
#include "vae_config.h"

/* Statistics of the released latents, for files that bring none. */
enum { RELEASE_LATENTS = 32 };
static const float release_mean[RELEASE_LATENTS] = {
    -0.020211687488382354f, 0.3876466479950502f,   -0.04398279799186767f, -0.28591514936373f,
    0.08179686214561671f,   -0.35782641352446604f, 0.040623809960919084f, -0.01552534501956604f,
    -0.223362481667332f,    0.1821006842509091f,   0.2941778783780663f,   -0.07901167601970885f,
    -0.056815072777201f,    -0.3699028221860095f,  -0.31616315591624855f, 0.5905951377425391f,
    -0.052139568068853864f, 0.013673160263486295f, -0.03691647864630577f, 0.09732660653298163f,
    -0.3394662328788498f,   -0.30685677538541667f, -0.24504598907458763f, -0.034698524462007344f,
    0.02868032184767538f,   -0.21217779266454084f, -0.1678263169941987f,  0.3221287889040614f,
    -0.1223055851554907f,   0.4356604928128464f,   -0.0502599202236253f,  0.3979258376211797f};
static const float release_std[RELEASE_LATENTS] = {
    1.6895524230479284f, 2.76263727217653f,   1.7945344281264435f, 1.6801681847309828f,
    1.6390226546605453f, 2.7788298348882177f, 1.7659090095747236f, 1.6199757612137327f,
    2.6336525640336896f, 1.8539356672817833f, 2.5056497896915633f, 1.811019237886178f,
    1.9579657790720237f, 1.6685498243529284f, 1.4922469314453364f, 3.298670198067373f,
    1.9491804496832168f, 1.8720003270431442f, 1.8334080103291832f, 1.6488070416529093f,
    1.6176957696319716f, 1.9131449234774398f, 1.5695245398428617f, 1.6943659940415912f,
    1.8318420762504692f, 1.5540637421583379f, 1.9344930328968526f, 1.599198216109855f,
    1.718045989838149f,  1.6307219190837705f, 1.8661226051202384f, 1.5613768203168363f};

/* ---------------------------------------------------------------- sizes */

/* Extents of a convolution's weight [a, b, k] (a linear layer has k = 1). */
static h3_status conv_shape(h3_checkpoint *ck, const char *name, int64_t ne[8])
{
    char full[96];
    int rank;

    snprintf(full, sizeof full, "%s.weight", name);
    if (!h3_ckpt_shape(ck, full, &rank, ne))
        return h3_fail(H3_E_MISSING, "%s: tensor %s is missing", h3_ckpt_path(ck), full);
    if (rank == 2) ne[2] = 1;
    if (rank < 2 || rank > 3)
        return h3_fail(H3_E_SHAPE, "%s: tensor %s has rank %d, expected 3", h3_ckpt_path(ck), full,
                       rank);
    for (int i = 0; i < 3; i++)
        if (ne[i] < 1 || ne[i] > 1 << 20)
            return h3_fail(H3_E_SHAPE, "%s: tensor %s: extent %lld of axis %d is out of range",
                           h3_ckpt_path(ck), full, (long long)ne[i], i);
    return H3_OK;
}

static int64_t count(const h3_checkpoint *ck, const char *pattern, int64_t max)
{
    const int64_t n = h3_ckpt_count(ck, pattern);
    return n > max ? max + 1 : n;
}

/* Upsampling: rates are the configuration's; a kernel of 2 r or 2 r - 1 tells the same. */
static h3_status read_stages(h3_audio_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    int64_t ne[8], n_rates = 0;

    g->n_stages = count(ck, "decoder.ups.%d.0.weight", H3_AUDIO_VAE_STAGES);
    if (g->n_stages < 1 || g->n_stages > H3_AUDIO_VAE_STAGES)
        return h3_fail(H3_E_SHAPE, "%s: %lld decoder stages (decoder.ups.*), expected 1 to %d",
                       h3_ckpt_path(ck), (long long)g->n_stages, H3_AUDIO_VAE_STAGES);
    H3_TRY(conv_shape(ck, "decoder.conv_pre", ne));
    g->dec_channels[0] = ne[0];
    for (int64_t i = 0; i < g->n_stages; i++) {
        char name[64];
        snprintf(name, sizeof name, "decoder.ups.%d.0", (int)i);
        H3_TRY(conv_shape(ck, name, ne));
        g->dec_channels[i + 1] = ne[1];
        g->dec_kernel[i] = ne[2];
        g->dec_rate[i] = (ne[2] + 1) / 2;
    }
    H3_TRY(vae_config_ints(c, "decoder_rates", NULL, 1, 64, g->dec_rate, H3_AUDIO_VAE_STAGES,
                           &n_rates));
    if (n_rates && n_rates != g->n_stages)
        return h3_fail(H3_E_FORMAT, "%s: decoder_rates has %lld entries for %lld stages",
                       h3_ckpt_path(ck), (long long)n_rates, (long long)g->n_stages);
    g->hop = 1;
    for (int64_t i = 0; i < g->n_stages; i++) {
        const int64_t spare = g->dec_kernel[i] - g->dec_rate[i];
        g->hop *= g->dec_rate[i];
        if (spare < 0 || spare % 2 || g->hop > 1 << 20)
            return h3_fail(H3_E_SHAPE,
                           "%s: decoder stage %lld: kernel %lld does not go with rate %lld",
                           h3_ckpt_path(ck), (long long)i, (long long)g->dec_kernel[i],
                           (long long)g->dec_rate[i]);
    }
    return H3_OK;
}

static h3_status read_dilations(h3_audio_vae_geometry *g, const vae_config *c)
{
    const json_t *all = vae_config_find(c, "resblock_dilation_sizes", NULL);

    for (int64_t j = 0; j < g->n_kernels; j++)
        for (int64_t i = 0; i < g->n_dilations; i++) {
            const json_t *e = json_array_get(json_array_get(all, (size_t)j), (size_t)i);
            const int64_t d = all ? (int64_t)json_integer_value(e) : 2 * i + 1; // 1, 3, 5
            if (d < 1 || d > 1024)
                return h3_fail(
                    H3_E_FORMAT,
                    "%s: resblock_dilation_sizes must give %lld numbers for each of %lld "
                    "blocks",
                    h3_ckpt_path(c->ck), (long long)g->n_dilations, (long long)g->n_kernels);
            g->dilation[j][i] = d;
        }
    return H3_OK;
}

static h3_status read_amp(h3_audio_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    const int64_t n = count(ck, "decoder.resblocks.%d.convs1.0.weight",
                            H3_AUDIO_VAE_STAGES * H3_AUDIO_VAE_KERNELS);

    g->n_kernels = n / g->n_stages;
    g->n_dilations = count(ck, "decoder.resblocks.0.convs1.%d.weight", H3_AUDIO_VAE_DILATIONS);
    if (n % g->n_stages || g->n_kernels < 1 || g->n_kernels > H3_AUDIO_VAE_KERNELS ||
        g->n_dilations < 1 || g->n_dilations > H3_AUDIO_VAE_DILATIONS)
        return h3_fail(
            H3_E_SHAPE, "%s: %lld residual blocks of %lld pairs do not go with %lld stages",
            h3_ckpt_path(ck), (long long)n, (long long)g->n_dilations, (long long)g->n_stages);
    for (int64_t j = 0; j < g->n_kernels; j++) {
        int64_t ne[8];
        char name[64];
        snprintf(name, sizeof name, "decoder.resblocks.%d.convs1.0", (int)j);
        H3_TRY(conv_shape(ck, name, ne));
        g->amp_kernel[j] = ne[2];
        if (ne[2] % 2 == 0)
            return h3_fail(H3_E_SHAPE, "%s: %s has an even kernel of %lld", h3_ckpt_path(ck), name,
                           (long long)ne[2]);
    }
    return read_dilations(g, c);
}

/* How far back, in latents, a sample reaches: walk from the output to the input. */
static int64_t halo_of(const h3_audio_vae_geometry *g)
{
    enum { ACT = 5, POST = 3, PRE = 3 }; // samples a snake_aa, conv_post and conv_pre reach
    int64_t h = POST + ACT;

    for (int64_t i = g->n_stages - 1; i >= 0; i--) {
        int64_t widest = 0;
        for (int64_t j = 0; j < g->n_kernels; j++) {
            int64_t reach = 0;
            for (int64_t q = 0; q < g->n_dilations; q++)
                reach += 2 * ACT + (g->amp_kernel[j] - 1) / 2 * (g->dilation[j][q] + 1);
            if (reach > widest) widest = reach;
        }
        h = (h + widest + g->dec_kernel[i]) / g->dec_rate[i] + 1;
    }
    return h + PRE;
}

/* A device may compute samples in pairs a dilation apart (backend/cpu/line.c). Pieces that begin at
 * multiples of two of every dilation have the same pairs as the whole, to the last bit. */
static int64_t grid_of(const h3_audio_vae_geometry *g)
{
    enum { MOST = 1024 }; // released: 30
    int64_t grid = 2;

    for (int64_t j = 0; j < g->n_kernels; j++)
        for (int64_t q = 0; q < g->n_dilations; q++) {
            int64_t n = grid;
            while (n <= MOST && n % (2 * g->dilation[j][q]))
                n += grid;
            if (n <= MOST) grid = n;
        }
    return grid;
}

static h3_status read_decoder(h3_audio_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    int64_t ne[8];

    H3_TRY(conv_shape(ck, "dec_in_proj", ne));
    g->width = ne[0];
    g->latents = ne[1];
    H3_TRY(read_stages(g, ck, c));
    H3_TRY(read_amp(g, ck, c));
    g->halo = halo_of(g);
    g->grid = grid_of(g);
    return H3_OK;
}

static h3_status read_encoder(h3_audio_vae_geometry *g, h3_checkpoint *ck, const vae_config *c)
{
    int64_t ne[8], hop = 1;

    H3_TRY(conv_shape(ck, "encoder.block.0", ne));
    g->enc_channels[0] = ne[0];
    for (g->n_enc = 0; g->n_enc <= H3_AUDIO_VAE_STAGES; g->n_enc++) {
        char name[64];
        snprintf(name, sizeof name, "encoder.block.%d.block.4", (int)g->n_enc + 1);
        char full[80];
        snprintf(full, sizeof full, "%s.weight", name);
        if (!h3_ckpt_has(ck, full) || g->n_enc == H3_AUDIO_VAE_STAGES) break;
        H3_TRY(conv_shape(ck, name, ne));
        g->enc_channels[g->n_enc + 1] = ne[0];
        g->enc_rate[g->n_enc] = ne[2] / 2; // the kernel is twice the stride
        hop *= ne[2] / 2;
        if (ne[2] < 2 || ne[2] % 2 || hop > 1 << 20)
            return h3_fail(H3_E_SHAPE, "%s: %s: kernel %lld, expected twice a stride",
                           h3_ckpt_path(ck), name, (long long)ne[2]);
    }
    if (g->n_enc < 1)
        return h3_fail(H3_E_MISSING, "%s: tensor encoder.block.1.block.4.weight is missing",
                       h3_ckpt_path(ck));
    if (g->hop && g->hop != hop)
        return h3_fail(H3_E_SHAPE, "%s: %lld samples a latent when encoding, %lld when decoding",
                       h3_ckpt_path(ck), (long long)hop, (long long)g->hop);
    g->hop = hop;
    H3_TRY(conv_shape(ck, "mean_proj", ne));
    g->latents = ne[0];
    H3_TRY(conv_shape(ck, "pre_block.attn.qkv", ne));
    g->width = ne[1];
    g->heads = 8;
    H3_TRY(vae_config_int(c, "num_attention_heads", NULL, 1, 1024, &g->heads));
    if (g->width % g->heads)
        return h3_fail(H3_E_SHAPE, "%s: %lld channels do not divide into %lld heads",
                       h3_ckpt_path(ck), (long long)g->width, (long long)g->heads);
    return H3_OK;
}

static h3_status read_geometry(h3_audio_vae *v)
{
    h3_audio_vae_geometry *g = &v->geo;
    vae_config c = {.ck = v->ck};
    const json_t *meta = h3_ckpt_config(v->ck, "metadata.json");

    vae_config_add(&c, h3_ckpt_config(v->ck, "config.json"));
    vae_config_add(&c, json_object_get(json_object_get(meta, "metadata"), "kwargs"));
    if (v->halves & H3_AUDIO_VAE_DECODER) H3_TRY(read_decoder(g, v->ck, &c));
    if (v->halves & H3_AUDIO_VAE_ENCODER) H3_TRY(read_encoder(g, v->ck, &c));
    if (g->latents < 1 || g->latents > H3_AUDIO_VAE_LATENTS)
        return h3_fail(H3_E_SHAPE, "%s: %lld latent channels, expected 1 to %d",
                       h3_ckpt_path(v->ck), (long long)g->latents, H3_AUDIO_VAE_LATENTS);
    g->rate = 32000;
    H3_TRY(vae_config_int(&c, "sampling_rate", "sample_rate", 1, 1 << 24, &g->rate));
    const bool is_release = g->latents == RELEASE_LATENTS;
    H3_TRY(vae_config_stats(v->ck, &c, "latents_mean", g->latents, is_release ? release_mean : NULL,
                            false, g->mean));
    return vae_config_stats(v->ck, &c, "latents_std", g->latents, is_release ? release_std : NULL,
                            true, g->std);
}

/* ---------------------------------------------------------------- opening */

h3_status h3_audio_vae_conv(h3_audio_vae *v, h3_store *s, int group, audio_conv *c,
                            const char *name, int64_t co, int64_t ci, int64_t k, bool has_bias)
{
    c->co = co;
    c->ci = ci;
    c->k = k;
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &c->w, name, co, ci * k, has_bias));
    return h3_store_add(s, group, &c->w);
}

h3_status h3_audio_vae_apply(h3_dev *d, h3_tensor y, h3_tensor x, const audio_conv *c, int64_t s,
                             int64_t dil, int64_t pad, h3_tensor add)
{
    const h3_conv g = {.kernel = {1, 1, (int32_t)c->k},
                       .stride = {1, 1, (int32_t)s},
                       .dilation = {1, 1, (int32_t)dil},
                       .pad_lo = {0, 0, (int32_t)pad},
                       .pad_hi = {0, 0, (int32_t)pad}};

    return d->ops->conv(d, h3_audio_vae_line(y), h3_audio_vae_line(x), &c->w, &g,
                        h3_is_null(add) ? add : h3_audio_vae_line(add));
}

static h3_status bind_all(h3_audio_vae *v)
{
    const int64_t n = v->geo.latents;

    H3_TRY(h3_dev_alloc(v->dev, &v->mean, H3_F32, 1, &n));
    H3_TRY(h3_dev_alloc(v->dev, &v->std, H3_F32, 1, &n));
    H3_TRY(h3_dev_upload(v->dev, v->mean, v->geo.mean));
    H3_TRY(h3_dev_upload(v->dev, v->std, v->geo.std));
    if (v->halves & H3_AUDIO_VAE_DECODER) H3_TRY(h3_audio_vae_bind_decoder(v));
    if (v->halves & H3_AUDIO_VAE_ENCODER) H3_TRY(h3_audio_vae_bind_encoder(v));
    return H3_OK;
}

h3_status h3_audio_vae_open(h3_audio_vae **out, h3_dev *d, h3_checkpoint *ck, unsigned halves)
{
    /* The spread of a posterior that is never sampled; a bias that is zero by construction. */
    static const char *const unused[] = {"logs_proj.*", "pre_block.attn.zero_k_bias",
                                         "latents_mean", "latents_std"};
    static const char *const dec_names[] = {"decoder.*", "dec_in_proj.*"};
    static const char *const enc_names[] = {"encoder.*", "pre_block.*", "mean_proj.*"};
    h3_audio_vae *v = calloc(1, sizeof *v);
    h3_status st;

    *out = NULL;
    if (!v) return h3_fail(H3_E_NOMEM, "no memory for the audio VAE");
    v->dev = d;
    v->ck = ck;
    v->halves = halves;
    st = read_geometry(v);
    if (st == H3_OK) st = bind_all(v);
    if (st != H3_OK) {
        h3_audio_vae_close(&v);
        return st;
    }
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        h3_ckpt_ignore(ck, unused[i]);
    for (size_t i = 0; i < 2 && !(halves & H3_AUDIO_VAE_DECODER); i++)
        h3_ckpt_ignore(ck, dec_names[i]);
    for (size_t i = 0; i < 3 && !(halves & H3_AUDIO_VAE_ENCODER); i++)
        h3_ckpt_ignore(ck, enc_names[i]);
    *out = v;
    return H3_OK;
}

void h3_audio_vae_close(h3_audio_vae **vp)
{
    h3_audio_vae *v = vp ? *vp : NULL;

    if (!v) return;
    h3_audio_vae_free_decoder(v);
    h3_audio_vae_free_encoder(v);
    h3_dev_free(v->dev, &v->mean);
    h3_dev_free(v->dev, &v->std);
    free(v);
    *vp = NULL;
}

const h3_audio_vae_geometry *h3_audio_vae_sizes(const h3_audio_vae *v)
{
    return &v->geo;
}
