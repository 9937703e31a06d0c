/**
 * The conditioner's vision tower: patch rows of pictures or clips -> rows of the text tower's
 * width, once from the last block ("merged") and once per DeepStack tap.
 *
 *   x = patch_embed(patches) + interpolated positions
 *   per block:  x += proj(attention(rope(qkv(norm1 x))));  x += fc2(gelu_tanh(fc1(norm2 x)))
 *   after the tapped blocks: deep[n-th of them] = its merger(x);  at the end: merged = merger(x)
 *
 * Names of sizes: N patches, W width, M = merge x merge patches per merged row, C text width.
 */
#ifndef H3_NETS_ENCODER_VISION_H
#define H3_NETS_ENCODER_VISION_H

#include "checkpoint.h"

enum { H3_ENCODER_MAX_DEEP = 8 };

/** Pictures, or clips, of one request: all in one ragged batch. */
typedef struct h3_encoder_media {
    int32_t n;            ///< how many pictures or clips; 0: none, the rest is not read
    const int32_t *grid;  ///< [n, 3] frame pairs, patch rows, patch columns (the last two even)
    const float *patches; ///< [sum of t*h*w, 1536] (u8 - 127.5) / 127.5, in storage order
} h3_encoder_media;

typedef struct h3_encoder_block {
    h3_tensor norm1_g, norm1_b, norm2_g, norm2_b; ///< [W]
    h3_weight qkv, proj, fc1, fc2;                ///< qkv rows: all q, all k, all v
} h3_encoder_block;

typedef struct h3_encoder_merger {
    h3_tensor norm_g, norm_b; ///< [W] before the 2x2 shuffle, or [M * W] after it
    h3_weight fc1, fc2;
} h3_encoder_merger;

typedef struct h3_encoder_vision {
    int64_t width, heads, head_dim, hidden, patch, out, merge_rows, side;
    int32_t merge, depth, n_deep, deep_at[H3_ENCODER_MAX_DEEP];
    h3_weight patch_embed;
    float *pos_embed; ///< [side * side, W], host: interpolated there, read 4 rows a patch
    h3_encoder_block *block;
    h3_encoder_merger merger, deep[H3_ENCODER_MAX_DEEP];
} h3_encoder_vision;

/** What one kind of media becomes: dense [N / M, C] scratch tensors. */
typedef struct h3_encoder_seen {
    h3_tensor merged, deep[H3_ENCODER_MAX_DEEP];
    int64_t n_rows;
} h3_encoder_seen;

/** Tables of one batch, on the host; they must live until the device has been synchronised. */
typedef struct h3_encoder_vision_tables {
    int64_t n_patches;
    int32_t n_segments;
    int32_t *cu;               ///< [n_segments + 1], one segment per frame pair
    int32_t *rc, *index;       ///< [N, 2], [N, 4]
    float *weight, *cos, *sin; ///< [N, 4], [N, head_dim / 2]
    float *pos;                ///< [N, W]
} h3_encoder_vision_tables;

/** Binds the tower. `out` is the text tower's width. h3_encoder_vision_free afterwards in any case.
 */
H3_NODISCARD h3_status h3_encoder_vision_bind(h3_encoder_vision *v, h3_checkpoint *ck, h3_dev *d,
                                              int64_t out);
void h3_encoder_vision_free(h3_encoder_vision *v, h3_dev *d);

/** Adds the matrices to groups first .. first + depth - 1, a block each. */
H3_NODISCARD h3_status h3_encoder_vision_store(h3_encoder_vision *v, h3_store *s, int first);

/** Checks the grids and fills the tables; with `is_plan` only the segments. Errors: H3_E_ARG. */
H3_NODISCARD h3_status h3_encoder_vision_prepare(const h3_encoder_vision *v,
                                                 const h3_encoder_media *in, bool is_plan,
                                                 h3_encoder_vision_tables *t);
void h3_encoder_vision_tables_free(h3_encoder_vision_tables *t);

/** Carves `seen` from the scratch arena (it outlives the forward). */
void h3_encoder_vision_carve(const h3_encoder_vision *v, h3_dev *d, h3_dtype act,
                             const h3_encoder_vision_tables *t, h3_encoder_seen *seen);

/** Runs the tower; `kind` ("image", "video") names the taps. `store` may be NULL (plan device). */
H3_NODISCARD h3_status h3_encoder_vision_forward(const h3_encoder_vision *v, h3_dev *d,
                                                 h3_store *store, int first, h3_dtype act,
                                                 const char *kind, const float *patches,
                                                 const h3_encoder_vision_tables *t,
                                                 h3_encoder_seen *seen);

#endif
