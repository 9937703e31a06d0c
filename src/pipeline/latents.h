/**
 * Saved runs: the latents of a finished sampling, or the rows of one that is under way, with all
 * that decoding or going on needs. One safetensors file, written atomically.
 *
 *   kind "latents"     video [24, T, h, w], audio [2, 32, n]          f32, normalised
 *   kind "checkpoint"  video_rows [Nv, 96], audio_rows [Na, 32]       f32, generated rows only
 *
 * __metadata__ holds the settings (prompt, seed, canvas, ...) as strings, and for a checkpoint the
 * step and a fingerprint of everything that decides the rows.
 */
#ifndef H3_PIPELINE_LATENTS_H
#define H3_PIPELINE_LATENTS_H

#include <jansson.h>
#include <stdbool.h>

#include "status.h"

typedef struct h3_latents {
    int64_t t, h, w, n_audio;
    float *video; ///< [24, t, h, w], malloc'd
    float *audio; ///< [2, 32, n_audio], malloc'd
    json_t *meta; ///< object of strings
} h3_latents;

H3_NODISCARD h3_status h3_latents_write(const char *path, const h3_latents *l);
/** Checks shapes and that every number is finite. Free with h3_latents_free (also after failure).
 */
H3_NODISCARD h3_status h3_latents_read(h3_latents *out, const char *path);
void h3_latents_free(h3_latents *l);

typedef struct h3_checkpoint_file {
    int64_t step; ///< forwards already done
    int64_t n_video, video_cols, n_audio, audio_cols;
    float *video_rows, *audio_rows; ///< malloc'd when read
    json_t *meta;
} h3_checkpoint_file;

H3_NODISCARD h3_status h3_checkpoint_write(const char *path, const h3_checkpoint_file *c);
H3_NODISCARD h3_status h3_checkpoint_read(h3_checkpoint_file *out, const char *path);
void h3_checkpoint_free(h3_checkpoint_file *c);

/** The string `key` of a metadata object, or NULL. */
const char *h3_latents_meta(const json_t *meta, const char *key);

#endif
