/**
 * Checkpoints written in plain form: every tensor decoded, under plain names, fused q/k/v as
 * [q; k; v], one tile of rows in memory at a time.
 */
#ifndef H3_WEIGHTS_CONVERT_H
#define H3_WEIGHTS_CONVERT_H

#include "checkpoint.h"

typedef enum h3_convert_form {
    H3_CONVERT_F32 = 0, ///< everything f32, safetensors: what was decoded, exactly
    H3_CONVERT_BF16,    ///< matrices bf16, what the release keeps in f32 stays f32, safetensors
    H3_CONVERT_Q8_0     ///< matrices of 32-aligned rows Q8_0, the rest as BF16's, GGUF
} h3_convert_form;

typedef struct h3_convert_opts {
    h3_convert_form form;
    int64_t text_layers; ///< text encoder: keep this many layers and no norm or head; 0: everything
    int64_t head_dim;    ///< video VAE: attention head size when no config tells; 0: 64
} h3_convert_opts;

/** Writes `path` (atomic). Names are those of the release; the encoder's as ComfyUI spells them
 *  (model.layers, visual). `opts` may be NULL. */
H3_NODISCARD h3_status h3_convert(h3_checkpoint *ck, const char *path, const h3_convert_opts *opts);

#endif
