/**
 * From latents and noise to the rows that the first step sees, and from rows back to latents.
 * Everything here is host memory and float32, each operation rounded on its own.
 */
#ifndef H3_SAMPLER_PACK_H
#define H3_SAMPLER_PACK_H

#include <stdint.h>

#include "noise.h"
#include "status.h"

/** A visual condition: normalised latents and its own noise, both [channels, t, h, w]. */
typedef struct h3_pack_visual {
    h3_latent_shape shape;
    const float *clean, *noise;
} h3_pack_visual;

/**
 * rows [sum of conditions + t h/2 w/2, 4 channels]: each condition mixed with its noise at t =
 * 0.999 (once, here: the loop never writes these rows), then the target's noise [channels, T, H,
 * W]. H3_E_NOMEM.
 */
H3_NODISCARD h3_status h3_pack_video(float *rows, const h3_pack_visual *conditions,
                                     int n_conditions, const float *noise, h3_latent_shape target,
                                     int64_t channels);

/** Rows of reference sound, clean: [n_rows, cols] each, channel-major. */
typedef struct h3_pack_sound {
    const float *rows;
    int64_t n_rows;
} h3_pack_sound;

/** rows [sum of references + n_noise_rows, cols]. */
void h3_pack_audio(float *rows, const h3_pack_sound *references, int n_references,
                   const float *noise_rows, int64_t n_noise_rows, int64_t cols);

#endif
