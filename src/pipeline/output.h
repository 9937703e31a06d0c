/**
 * Where a finished clip goes: MP4, a folder of pictures, a WAV, callbacks; any mix of them. Frames
 * are taken as they are decoded. Nothing stays under the final names unless h3_output_finish
 * succeeds.
 */
#ifndef H3_PIPELINE_OUTPUT_H
#define H3_PIPELINE_OUTPUT_H

#include <h3av/h3av.h>

#include "encode.h"
#include "frame_files.h"

typedef struct h3_output {
    const h3_request *rq;
    int width, height;
    int64_t n_frames, n_done;
    h3_mux *mux;
    h3_frames *frames;
    float *pcm; ///< [2, n] borrowed until finish, for the WAV
    int64_t n_samples;
    char codec[32];
    uint64_t sum[3], sum2[3]; ///< of each colour: is the picture black, or flat?
} h3_output;

/** Refuses a name that promises another container: it would mislead every program that trusts
 * names. */
h3_status h3_output_container(const char *path);

/** Is any output asked for at all, and a name given for what is to be kept of a run? */
H3_NODISCARD h3_status h3_output_any(const h3_request *rq);
/** The output that other files are named after; NULL: callbacks only. */
const char *h3_output_base(const h3_request *rq);
/** Are frames wanted, as files or in memory? */
bool h3_output_has_picture(const h3_request *rq);
/** Are latents saved, and under which name? */
bool h3_output_saves_latents(const h3_request *rq);

/** Names usable, encoder present, folders writable: asked before hours of work. */
H3_NODISCARD h3_status h3_output_check(const h3_request *rq, int width, int height,
                                       int64_t n_frames);

/** The options of the MP4 writer that these outputs will have. */
h3_mux_opt h3_output_mux(const h3_request *rq, int width, int height, int64_t n_frames,
                         int64_t n_samples);

/** n_samples is exact: with all of the sound given before the first frame nothing waits in memory.
 */
H3_NODISCARD h3_status h3_output_open(h3_output *o, const h3_request *rq, int width, int height,
                                      int64_t n_frames, int64_t n_samples, const h3_meta *meta,
                                      int n_meta);
/** pcm [2, n] planar f32 at 32 kHz; kept by reference until finish. */
H3_NODISCARD h3_status h3_output_sound(h3_output *o, float *pcm, int64_t n);
/** rgb [n, height, width, 3]. */
H3_NODISCARD h3_status h3_output_frames(h3_output *o, const uint8_t *rgb, int64_t n);
H3_NODISCARD h3_status h3_output_finish(h3_output *o);
void h3_output_abort(h3_output *o);

/** True when every byte of the picture was the same (black, grey): something is wrong. */
bool h3_output_is_flat(const h3_output *o);
/** Mean of all bytes of the picture, 0..255. */
double h3_output_mean(const h3_output *o);

#endif
