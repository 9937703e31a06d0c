/**
 * Checkpoints written in plain form, from whatever form they have: every tensor decoded, one tile
 * of rows in memory at a time. Config files beside the source travel inside the file
 * ("h3av.config"), so that one file is enough.
 *
 *   own        released names (the encoder's as ComfyUI spells them: model.layers, visual), fused
 *              q/k/v as [q; k; v], weight norm multiplied out
 *   original   as released: fused q/k/v head by head, weight norm as pairs
 *   diffusers  its names: q, k and v apart, halves of gated layers swapped, weight norm as pairs
 */
#ifndef H3_WEIGHTS_CONVERT_H
#define H3_WEIGHTS_CONVERT_H

#include "checkpoint.h"

typedef enum h3_convert_form {
    H3_CONVERT_F32 = 0, ///< everything f32, safetensors: what was decoded, exactly
    H3_CONVERT_BF16,    ///< matrices bf16, what the release keeps in f32 stays f32, safetensors
    H3_CONVERT_F16,     ///< the same with f16; of the autoencoders too, as repacks have them
    H3_CONVERT_Q8_0     ///< matrices of 32-aligned rows Q8_0, the rest as BF16's, GGUF
} h3_convert_form;

typedef enum h3_convert_layout {
    H3_CONVERT_OWN = 0,
    H3_CONVERT_ORIGINAL,
    H3_CONVERT_DIFFUSERS
} h3_convert_layout;

typedef struct h3_convert_opts {
    h3_convert_form form;
    h3_convert_layout layout; ///< Q8_0: OWN only
    int64_t text_layers; ///< text encoder: keep this many layers and no norm or head; 0: everything
    int64_t head_dim;    ///< video VAE: attention head size when no config tells; 0: 64
    bool is_delta;       ///< only what adapters add to the matrices that they touch
} h3_convert_opts;

/** Writes `path` (atomic), with the adapters of `ck` merged into the matrices. `opts` may be NULL.
 * A value that f16 cannot hold is an error that names its tensor. */
H3_NODISCARD h3_status h3_convert(h3_checkpoint *ck, const char *path, const h3_convert_opts *opts);

#endif
