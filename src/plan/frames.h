/**
 * Counts: frames, latents, samples, and which frames of a reference clip are used.
 *
 * The video VAE codes 17 frames as 5 latent frames and needs 5 frames more: a clip has 17 n + 5
 * frames and 5 n + 2 latent frames. The audio VAE has 40 latents a second of 800 samples each.
 * Counts are int64_t; the largest one accepted anywhere is H3_MAX_COUNT, so no sum here overflows.
 */
#ifndef H3_PLAN_FRAMES_H
#define H3_PLAN_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum {
    H3_FPS = 24,
    H3_FRAMES_PER_CHUNK = 17,
    H3_LATENTS_PER_CHUNK = 5,
    H3_MIN_FRAMES = 22, ///< 5 frames have 2 latent frames, which the decoder cannot decode
    H3_AUDIO_RATE = 32000,
    H3_AUDIO_HOP = 800,
    H3_AUDIO_LATENTS_PER_SECOND = 40,
    H3_AUDIO_CHANNELS = 2
};
#define H3_MAX_COUNT ((int64_t)1 << 40)

/** Python's round(): to the nearest integer, ties to even. */
int64_t h3_round_even(double x);

/** `n` >= 1 up to the next 17 k + 5. */
int64_t h3_frames_align(int64_t n);

/** 5 k + 2 of an aligned count. */
int64_t h3_frames_to_latents(int64_t aligned);

/** Audio latents per channel that go with `aligned` frames: round(aligned / 24 * 40). */
int64_t h3_frames_to_audio(int64_t aligned);

/** True when the aligned count lies within the 5 .. 15 seconds the model was trained on. */
bool h3_frames_is_trained(int64_t aligned);

/** Frames of an n-frame reference clip that the video VAE is given: the largest 17 k + 5 that is at
 *  least 22, or all n when there are fewer than 22. */
int64_t h3_reference_frames(int64_t n);

/** Latent frames of an encoded clip: 1 for a single frame, else 5 ceil(n / 17) - 3. */
int64_t h3_encoded_latents(int64_t n);

/**
 * Constant frame rate to 24 fps, the way ffmpeg's fps filter does it: whole frames are dropped or
 * repeated, frame i starts in slot floor(i * 24 / fps + 0.5). Cut to `limit` frames.
 *
 * `source` (or NULL to count only) receives, for each frame kept, the index of the source frame; it
 * must have room for `limit`. H3_E_ARG when the rate is not a positive number.
 */
H3_NODISCARD h3_status h3_frames_to_24fps(int64_t n_frames, double fps, int64_t limit,
                                          int64_t *source, int64_t *n_out);

/** Which frames the text encoder's vision tower reads, and what their blocks are called. */
typedef struct h3_clip_samples {
    int64_t n;        ///< sampled frames
    int64_t n_blocks; ///< ceil(n / temporal patch); the last frame is repeated to fill a block
    int64_t *index;   ///< [n] frames of the 24 fps clip
    double *
        block_time; ///< [n_blocks] mean time of the block in seconds; its label is "<%.1f seconds>"
} h3_clip_samples;

/**
 * Every (fps / sample_fps)-th frame, rounded half to even. The released settings are 24, 2.0 and 2,
 * i.e. every 12th frame. H3_E_ARG for a clip too short to fill one block (fewer than 13 frames).
 * One allocation; free with h3_clip_samples_free (accepts a zeroed struct).
 */
H3_NODISCARD h3_status h3_clip_samples_init(h3_clip_samples *s, int64_t n_frames, double fps,
                                            double sample_fps, int temporal_patch);
void h3_clip_samples_free(h3_clip_samples *s);

/** Samples of a soundtrack kept for a video of `frames` frames: int(frames / 24 * rate), at its own
 *  rate, before resampling. */
int64_t h3_audio_keep(int64_t n_samples, int64_t rate, int64_t frames);

/** Samples after resampling to 32 kHz. */
int64_t h3_audio_resampled(int64_t n_samples, int64_t rate);

/** Latents per channel: the encoder pads to whole hops of 800. */
int64_t h3_audio_latents(int64_t n_samples);

#endif
