/** The bound network, shared by the files of the audio autoencoder; see audio_vae.h. */
#ifndef H3_NETS_AUDIO_VAE_NET_H
#define H3_NETS_AUDIO_VAE_NET_H

#include "audio_vae.h"

/** A 1D convolution, [co, ci * k]; a transposed one is [ci, co * k] with a bias of co. */
typedef struct audio_conv {
    h3_weight w;
    int64_t ci, co, k;
} audio_conv;

/** Snake parameters: the decoder's are exponentiated when they are bound. */
typedef struct audio_snake {
    h3_tensor a, b; // [channels]; the encoder has one parameter for both
} audio_snake;

typedef struct amp_block {
    audio_conv conv1[H3_AUDIO_VAE_DILATIONS], conv2[H3_AUDIO_VAE_DILATIONS];
    audio_snake act[2 * H3_AUDIO_VAE_DILATIONS];
} amp_block;

typedef struct audio_stage {
    audio_conv up;
    amp_block amp[H3_AUDIO_VAE_KERNELS];
} audio_stage;

typedef struct audio_decoder {
    audio_conv in_proj, conv_pre, conv_post;
    audio_stage stage[H3_AUDIO_VAE_STAGES];
    audio_snake act_post;
    h3_tensor filter; // [12]: up- and down-sampling share it
    h3_store *store;  // group 0: before the stages, 1..n: stages, n + 1: conv_post
} audio_decoder;

/** Attention that narrows [n, width] to [n, out]. */
typedef struct audio_narrow {
    int64_t width, out, heads;
    h3_tensor norm1_g, norm1_b, norm2_g, norm2_b, norm3_g, norm3_b, mlp_g, mlp_b;
    h3_weight qkv; // [3 width, width]: q rows, k rows, v rows; its bias is {q_bias, 0, v_bias}
    h3_weight attn_proj, proj, w0, w1, w2;
    h3_tensor qkv_bias;
} audio_narrow;

typedef struct audio_unit {
    audio_snake act1, act2;
    audio_conv conv1, conv2;
} audio_unit;

enum { AUDIO_UNITS = 3 };

typedef struct audio_down {
    audio_unit unit[AUDIO_UNITS];
    audio_snake act;
    audio_conv conv;
} audio_down;

typedef struct audio_encoder {
    audio_conv conv_in, conv_out;
    audio_down down[H3_AUDIO_VAE_STAGES];
    audio_snake act;
    audio_narrow narrow;
    h3_weight mean;
    h3_store *store; // one group
} audio_encoder;

struct h3_audio_vae {
    h3_audio_vae_geometry geo;
    h3_dev *dev;
    h3_checkpoint *ck;
    unsigned halves;
    h3_tensor mean, std; // [32] f32 on dev
    audio_decoder dec;
    audio_encoder enc;
};

/** audio_vae.c: binding helpers. Names are without ".weight". */
h3_status h3_audio_vae_conv(h3_audio_vae *v, h3_store *s, int group, audio_conv *c,
                            const char *name, int64_t co, int64_t ci, int64_t k, bool has_bias);

h3_status h3_audio_vae_bind_decoder(h3_audio_vae *v);
void h3_audio_vae_free_decoder(h3_audio_vae *v);
h3_status h3_audio_vae_bind_encoder(h3_audio_vae *v);
void h3_audio_vae_free_encoder(h3_audio_vae *v);

/** A dry run must not fetch weights. */
static inline h3_status h3_audio_vae_acquire(const h3_dev *d, h3_store *s, int group)
{
    return d->is_plan ? H3_OK : h3_store_acquire(s, group);
}

static inline void h3_audio_vae_release(const h3_dev *d, h3_store *s, int group)
{
    if (!d->is_plan) h3_store_release(s, group);
}

/** [C, N] as the convolutions take it. */
static inline h3_tensor h3_audio_vae_line(h3_tensor t)
{
    h3_tensor v = t;

    v.rank = 4;
    v.ne[1] = v.ne[2] = 1;
    v.ne[3] = t.ne[1];
    v.st[1] = v.st[2] = v.st[0];
    v.st[3] = 1;
    return v;
}

/** y = conv(x) (+ add): stride `s`, dilation `dil`, `pad` zeros on both sides. All [C, N]. */
h3_status h3_audio_vae_apply(h3_dev *d, h3_tensor y, h3_tensor x, const audio_conv *c, int64_t s,
                             int64_t dil, int64_t pad, h3_tensor add);

/** AMP block j of stage i, [C, N] each: out = x + ...; a, b are scratch of the same size. Memory of
 *  all five differs. `out` ends up holding the result. */
h3_status h3_audio_vae_amp(h3_dev *d, const h3_audio_vae *v, int i, int j, h3_tensor out,
                           h3_tensor x, h3_tensor a, h3_tensor b, h3_tensor other);

/** out [n, m->out] of x [n, m->width]. The matrices must be acquired. */
h3_status h3_audio_vae_narrow(h3_dev *d, const audio_narrow *m, h3_tensor out, h3_tensor x);

#endif
