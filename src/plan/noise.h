/**
 * All noise of a request from its seed.
 *
 * "The same seed" means one of two things among the programs that run this model; both are here.
 * One stream (diffusers): a single generator draws every visual condition in packed order, then the
 * video latent, then the audio rows. Restart (vLLM-Omni): each draw starts a generator of its own
 * with the same seed, and a condition draws max(T + number of conditions, its own frames) frames
 * and keeps the leading ones.
 */
#ifndef H3_PLAN_NOISE_H
#define H3_PLAN_NOISE_H

#include <stdint.h>

#include "status.h"

typedef enum h3_noise_order { H3_NOISE_ONE_STREAM = 0, H3_NOISE_RESTART = 1 } h3_noise_order;

enum { H3_VIDEO_CHANNELS = 24, H3_AUDIO_LATENT_CHANNELS = 32 };

typedef struct h3_latent_shape {
    int64_t t, h, w;
} h3_latent_shape;

typedef struct h3_noise_spec {
    uint64_t seed;
    h3_noise_order order;
    int n_conditions;                  ///< visual ones only, in packed order
    const h3_latent_shape *conditions; ///< [n_conditions]
    h3_latent_shape video;
    int64_t n_audio; ///< latents per channel
} h3_noise_spec;

/**
 * Fills conditions[i] [24, t, h, w], video [24, T, h, w] and audio_rows [2 n_audio, 32]. `video` or
 * `audio_rows` may be NULL (the caller injects its own noise): that draw is then skipped and, in
 * one stream, the ones after it move up, as in the reference.
 */
void h3_noise_fill(const h3_noise_spec *spec, float *const *conditions, float *video,
                   float *audio_rows);

#endif
