/**
 * The conditioner's text tower: decoder layers 0 .. n_layers - 1 of Qwen3-VL, as a plain residual
 * stream. The output is the state after the last of them, WITHOUT the final norm.
 *
 * Names of sizes: S rows, C width, H query heads, K key/value heads, D head size, F feed-forward.
 */
#ifndef H3_NETS_ENCODER_TEXT_H
#define H3_NETS_ENCODER_TEXT_H

#include "encoder_vision.h"

/** `done` of `total` layers have been run (on a GPU: handed to it). */
typedef void (*h3_layers_fn)(void *user, int64_t done, int64_t total);

typedef struct h3_encoder_layer {
    h3_tensor norm1, norm2, q_norm, k_norm; ///< [C], [C], [D], [D]
    h3_weight q, k, v, o;                   ///< [H D, C], [K D, C], [K D, C], [C, H D]
    h3_weight gate, up, down;               ///< [F, C], [F, C], [C, F]
} h3_encoder_layer;

typedef struct h3_encoder_text {
    int64_t width, heads, kv_heads, head_dim, hidden, vocab;
    int32_t n_layers;
    float eps;
    float *inv_freq; ///< [D / 2]
    int32_t *axis;   ///< [D / 2] which position axis drives the pair
    h3_weight embed; ///< [vocab, C]
    h3_encoder_layer *layer;
    h3_layers_fn progress; ///< may be NULL
    void *progress_user;
} h3_encoder_text;

/** One kind of vision rows and where they go: index [n] i32 on the device, ascending. */
typedef struct h3_encoder_insert {
    h3_tensor index;
    const h3_encoder_seen *seen;
} h3_encoder_insert;

/** Binds the first min(layers of the file, `select`) layers and declares the rest unused.
 *  h3_encoder_text_free afterwards in any case. */
H3_NODISCARD h3_status h3_encoder_text_bind(h3_encoder_text *t, h3_checkpoint *ck, h3_dev *d,
                                            int32_t select);
void h3_encoder_text_free(h3_encoder_text *t, h3_dev *d);

/** Embedding in group `first`, layer i in group first + 1 + i. */
H3_NODISCARD h3_status h3_encoder_text_store(h3_encoder_text *t, h3_store *s, int first);

/**
 * x [S, C] (f32 or bf16, dense): out, the state after the last layer.
 *   ids      [S] i32
 *   cos, sin [S, D / 2] of x's dtype
 *   cu       host {0, S}; must live until the device has been synchronised
 *   insert   n_insert kinds of vision rows; n_deep DeepStack features each
 */
H3_NODISCARD h3_status h3_encoder_text_forward(const h3_encoder_text *t, h3_dev *d, h3_store *store,
                                               int first, h3_tensor x, h3_tensor ids, h3_tensor cos,
                                               h3_tensor sin, const int32_t cu[2],
                                               const h3_encoder_insert *insert, int n_insert,
                                               int n_deep);

#endif
