/** The bound network, shared by the files of the video autoencoder; see video_vae.h. */
#ifndef H3_NETS_VIDEO_VAE_NET_H
#define H3_NETS_VIDEO_VAE_NET_H

#include "video_vae.h"

/** One block of the decoder's transformer. */
typedef struct vit_block {
    h3_tensor norm1, norm2, scale1, scale2; // [dim]
    h3_weight qkv;                          // [3 dim, dim]; row order: weight.h
    h3_weight out;                          // [dim, dim]
    h3_weight w1;                           // [2 ff, dim] gate rows, then up rows
    h3_weight w2;                           // [dim, ff]
} vit_block;

typedef struct vit_decoder {
    h3_weight post_quant; // [24, 24] a 1x1x1 convolution: a product per voxel
    h3_weight embed;      // [dim, 24]
    h3_weight proj;       // [3 * 4 * 16 * 16, dim]
    h3_tensor norm_g, norm_b;
    h3_tensor extra;  // [n_registers + 1, dim] register tokens, then one zero token
    vit_block *block; // [n_layers]
    h3_store *store;  // group 0: before the blocks, 1..n: blocks, n + 1: proj
} vit_decoder;

/** A 3D convolution and, once a still picture was encoded, the slice of it that a still needs. */
typedef struct enc_conv {
    h3_weight w;     // [co, ci * kt * k * k]
    h3_weight still; // [co, ci * k * k]: the last temporal tap; the others see zeros only
    float *still_data;
    int64_t co, ci;
    int k;  // 3 or 1, the same in time and space
    int id; // counts the convolutions: each keeps two past frames when a clip goes frame by frame
    char name[64];
} enc_conv;

typedef struct enc_block {
    h3_tensor norm1_g, norm1_b, norm2_g, norm2_b;
    enc_conv conv1, conv2, shortcut;
    bool has_shortcut;
} enc_block;

typedef struct enc_level {
    enc_block block[4];
    enc_conv down;
    bool has_down;
} enc_level;

typedef struct cnn_encoder {
    int n_convs;
    enc_conv conv_in, conv_out, quant;
    enc_level level[H3_VIDEO_VAE_LEVELS];
    h3_tensor norm_g, norm_b;
    h3_store *store;       // one group: 180 M weights in the release
    h3_store *still_store; // the slices for stills
    bool has_still;
} cnn_encoder;

struct h3_video_vae {
    h3_video_vae_geometry geo;
    h3_dev *dev;
    h3_checkpoint *ck;
    unsigned halves;
    h3_tensor mean, std; // [24] f32 on dev
    vit_decoder dec;
    cnn_encoder enc;
};

/**
 * Rotation tables of a tile of t x h x w voxels followed by the extra tokens: cos, sin [N, R], R =
 * head_dim * rope_ratio / 2, axes t, h, w one after another; position [N, 3] or NULL. The extra
 * tokens lie at 0, which is no rotation.
 */
void h3_video_vae_rope(const h3_video_vae_geometry *g, int64_t t, int64_t h, int64_t w,
                       float *position, float *cos_out, float *sin_out);

/** video_vae_dec.c, video_vae_enc.c: binding and freeing of one half. */
h3_status h3_video_vae_bind_decoder(h3_video_vae *v);
void h3_video_vae_free_decoder(h3_video_vae *v);
h3_status h3_video_vae_bind_encoder(h3_video_vae *v);
void h3_video_vae_free_encoder(h3_video_vae *v);

#endif
