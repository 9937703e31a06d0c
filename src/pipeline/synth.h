/**
 * Synthetic checkpoints: random weights under the released names and shapes, with as many layers as
 * asked. For benchmarks and for trying loaders at full size without the release. Values are small
 * and reproducible; nothing meaningful comes out of them.
 */
#ifndef H3_PIPELINE_SYNTH_H
#define H3_PIPELINE_SYNTH_H

#include "checkpoint.h"

typedef struct h3_synth_opts {
    int layers;   ///< of the DiT, the encoder or the VAE's decoder; 0: as released
    bool is_tiny; ///< widths of a few dozen, same structure
    uint64_t seed;
    int heads; ///< of the DiT's attention; 0: 56, tiny 4
} h3_synth_opts;

/** Writes one safetensors file of `role` (DiT bf16 with its f32 islands, text tower bf16, video and
 *  audio VAE decoders f32). */
H3_NODISCARD h3_status h3_synth_write(const char *path, h3_role role, const h3_synth_opts *o);

#endif
