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

/** Writes one safetensors file with what of a released form the network of `role` computes with:
 * DiT bf16 with its f32 islands, text tower bf16 with a short token table, video and audio VAE
 * decoders f32. */
H3_NODISCARD h3_status h3_synth_write(const char *path, h3_role role, const h3_synth_opts *o);

/** n numbers mean + uniform(-1, 1) * spread of type F32, BF16 or F16, and n random bytes; `state`
 *  goes on. */
void h3_synth_fill(void *out, h3_dtype t, int64_t n, float mean, float spread, uint64_t *state);
void h3_synth_bytes(unsigned char *out, size_t n, uint64_t *state);

/**
 * Writes a file of a published form, `layers` and `seed` of `o` heeded: names, types and shapes are
 * those of the form. *bytes (may be NULL) is what the tensors take; `path` NULL: only that. Fails
 * before anything is written when the disk has no room.
 */
H3_NODISCARD h3_status h3_synth_form(const char *path, const char *form, const h3_synth_opts *o,
                                     size_t *bytes);
/** Names of the forms ("dit_original_bf16"); NULL behind the last. */
const char *h3_synth_form_name(size_t i);

#endif
