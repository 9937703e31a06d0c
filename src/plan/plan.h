/**
 * The plan of a request: everything that follows from sizes, counts and options alone. No tensors,
 * no files, no device; a plan is also the complete dry run (h3 --plan).
 *
 *     h3_plan_request r = h3_plan_request_default();
 *     r.task = H3_FL2VA;
 *     r.first = (h3_size){1920, 1080};
 *     h3_plan *p;
 *     H3_TRY(h3_plan_create(&p, &r));         // canvas, frames, latents, schedules, conditions
 *     ... media prepares what p->conditions says, text tokenizes ...
 *     H3_TRY(h3_plan_layout(&layout, p, tags, n_text));
 *     h3_plan_noise(p, condition_noise, video_noise, audio_noise_rows);
 *     h3_plan_free(&p);
 */
#ifndef H3_PLAN_PLAN_H
#define H3_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "canvas.h"
#include "frames.h"
#include "layout.h"
#include "noise.h"
#include "sigmas.h"
#include "status.h"
#include "tiles.h"

typedef enum h3_task { H3_T2VA = 0, H3_FL2VA, H3_REF2VA } h3_task;

/** "t2va", "fl2va", "ref2va". */
const char *h3_task_name(h3_task t);

typedef enum h3_ref_kind { H3_REF_IMAGE = 0, H3_REF_VIDEO, H3_REF_AUDIO } h3_ref_kind;

/** A reference as the media room probed it. */
typedef struct h3_ref_info {
    h3_ref_kind kind;
    h3_size size;      ///< image, video
    int64_t n_frames;  ///< video
    double fps;        ///< video
    bool has_audio;    ///< video; an audio reference always has
    int64_t n_samples; ///< per channel
    int64_t rate;      ///< Hz
} h3_ref_info;

/** Limits and geometry that a fine-tune, or a reduced test, may change. */
typedef struct h3_plan_knobs {
    int64_t canvas_short_edge;    ///< 768
    int64_t canvas_max_pixels;    ///< 768 * 1344
    int64_t canvas_multiple;      ///< 32 = spatial ratio * patch
    int64_t reference_short_edge; ///< 2048
    int64_t min_frames;           ///< 22; smaller counts are raised to it
    int64_t max_frames;           ///< 17 * 1000 + 5: beyond it a request is refused
    int64_t trained_min_frames;   ///< 120, 5 s
    int64_t trained_max_frames;   ///< 360, 15 s; outside of both a request is warned about
    bool is_duration_strict;      ///< refuse, instead of warn about, what lies outside 5 .. 15 s
    int max_images, max_videos, max_audios, max_references; ///< 9, 3, 3, 12
    int64_t spatial_ratio;                                  ///< 16 pixels to a latent cell
    int64_t tile, tile_overlap;                             ///< 256, 64 pixels
    h3_clip_rule clip;                                      ///< 17, 3, 4
    double sample_fps; ///< 2.0: rate at which the text encoder reads a clip
    int sample_patch;  ///< 2 frames to a vision block
} h3_plan_knobs;

typedef struct h3_plan_request {
    h3_task task;
    h3_size canvas;                ///< 0 x 0: from the aspect, else the first keyframe, else 16:9
    double aspect_w, aspect_h;     ///< 0, 0: not given; with `canvas` they must agree
    int64_t n_frames;              ///< as asked
    h3_size first, last;           ///< keyframes, 0 x 0 when absent (fl2va)
    const h3_ref_info *references; ///< ref2va, in the order they are to be read
    int n_references;
    int n_steps; ///< grid points: n_steps - 1 forwards. Ignored with base_sigmas
    double video_shift, audio_shift;
    const float *base_sigmas; ///< NULL, or positions to shift for both schedules
    int n_base_sigmas;
    uint64_t seed;
    h3_noise_order noise_order;
    h3_plan_knobs knobs;
} h3_plan_request;

/** t2va, 124 frames, 50 steps, shifts 12 and 3, seed 42, one stream, released knobs. */
h3_plan_request h3_plan_request_default(void);

/** One condition in packed order: keyframes first then last, or the references as given. */
typedef struct h3_condition {
    h3_condition_shape shape; ///< kind and latent extents, as the layout wants them
    int source;               ///< index into request.references; 0 first, 1 last keyframe
    h3_fit fit;               ///< pictures and clips: onto their canvas
    /* clips */
    int64_t n_source_frames;
    double fps;
    int64_t n_frames;        ///< at 24 fps, cut to the request's length
    int64_t n_encoded;       ///< leading frames the video VAE is given
    h3_clip_samples samples; ///< what the text encoder sees
    /* sound */
    int64_t rate;
    int64_t n_keep;      ///< samples kept at `rate`
    int64_t n_resampled; ///< at 32 kHz
    int64_t n_padded;    ///< multiple of 800
} h3_condition;

typedef enum h3_plan_note {
    H3_NOTE_FRAMES_SNAPPED = 1, ///< the count asked for is not 17 n + 5
    H3_NOTE_DURATION,           ///< outside 5 .. 15 s
    H3_NOTE_CANVAS,             ///< not a canvas the model was trained on
    H3_NOTE_REFERENCE_CUT,      ///< a reference is longer than the video and is cut
    H3_NOTE_REFERENCE_SHORT,    ///< a reference clip has fewer than 22 frames and is padded
    H3_NOTE_REFERENCE_SILENT,   ///< a soundtrack without samples is taken as no soundtrack
    H3_NOTE_LABEL,              ///< the prompt names a reference that is not there
    H3_NOTE_TAG                 ///< the prompt has a tag of no meaning, or half of a pair
} h3_plan_note;

typedef struct h3_plan_warning {
    h3_plan_note note;
    char text[208]; ///< one sentence with the numbers in it
} h3_plan_warning;

enum { H3_MAX_WARNINGS = 32 };

typedef struct h3_plan {
    h3_task task;
    h3_size canvas;
    int64_t n_frames;       ///< aligned
    double seconds;         ///< n_frames / 24
    h3_latent_shape latent; ///< T, canvas / 16
    int64_t n_audio;        ///< latents per channel
    int64_t n_samples;      ///< 800 n_audio: what is decoded, up to 8.3 ms off the picture

    h3_condition conditions[H3_MAX_CONDITIONS];
    int n_conditions;
    int64_t n_condition_video, n_condition_audio; ///< rows they take
    int64_t n_media_rows;                         ///< all rows but text: S = n_media_rows + n_text

    h3_schedule video, audio; ///< equally long
    int n_forwards;

    uint64_t seed;
    h3_noise_order noise_order;

    h3_tile_axis tiles_y, tiles_x; ///< of the decoder
    h3_decode_clips clips;

    h3_plan_warning warnings[H3_MAX_WARNINGS];
    int n_warnings;
    h3_plan_knobs knobs;
} h3_plan;

/**
 * Checks the request and plans it. H3_E_ARG with a sentence naming the field, its value and what is
 * accepted. Nothing of `r` is referenced afterwards. Free with h3_plan_free.
 */
H3_NODISCARD h3_status h3_plan_create(h3_plan **out, const h3_plan_request *r);
void h3_plan_free(h3_plan **p);

/** Adds a warning, while there is room. */
void h3_plan_warn(h3_plan *p, h3_plan_note note, const char *fmt, ...) H3_PRINTF(3, 4);

/** The packed sequence once the text is known. `tags` [n_text] as in h3_layout_in. */
H3_NODISCARD h3_status h3_plan_layout(h3_layout **out, const h3_plan *p, const int32_t *tags,
                                      int64_t n_text);

/** All noise of the request: conditions[i] belongs to the i-th *visual* condition in packed order.
 *  See h3_noise_fill. */
void h3_plan_noise(const h3_plan *p, float *const *conditions, float *video, float *audio_rows);

#endif
