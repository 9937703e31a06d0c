/**
 * The packed sequence: text | conditions | target audio | target video, one row per token, with the
 * (t, h, w) coordinate of every row in float64, bit for bit as the reference builds it.
 *
 * S rows in all: Nt text, Nv video (conditions first), Na audio (reference sound first). Audio rows
 * are channel-major: all of the left channel, then all of the right. Video rows go frame by frame,
 * then row by row, one for each 2 x 2 patch of the latent.
 */
#ifndef H3_PLAN_LAYOUT_H
#define H3_PLAN_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { H3_TAG_VIDEO = 0, H3_TAG_TEXT = 1, H3_TAG_AUDIO = 2, H3_TAG_PAD = -1 };
enum { H3_PATCH = 2, H3_MAX_CONDITIONS = 64 };

typedef enum h3_condition_kind {
    H3_COND_FIRST, ///< keyframe at the start
    H3_COND_LAST,  ///< keyframe at the end
    H3_COND_IMAGE, ///< reference image
    H3_COND_VIDEO, ///< reference video, with or without sound
    H3_COND_AUDIO  ///< reference sound
} h3_condition_kind;

/** Extents in latent cells; t = h = w = 0 for sound alone, n_audio = 0 without sound. */
typedef struct h3_condition_shape {
    h3_condition_kind kind;
    int64_t t, h, w;
    int64_t n_audio; ///< latents per channel
} h3_condition_shape;

typedef struct h3_layout_in {
    const int32_t *text_tags; ///< [n_text] 1 text, 0 rows of a vision block (its two markers too)
    int64_t n_text;
    const h3_condition_shape *conditions; ///< in packed order: order is meaning
    int n_conditions;
    int64_t t, h, w; ///< target latent; h and w even
    int64_t n_audio; ///< target latents per channel
} h3_layout_in;

/** A run of rows of one kind, for printing and for checks. */
typedef struct h3_segment {
    const char *name; ///< static: "text", "first keyframe", "reference sound", ...
    int condition;    ///< index of the condition, -1 for text and targets
    int32_t tag;      ///< of the rows; text segments may hold vision rows
    int64_t start, n;
} h3_segment;

typedef struct h3_layout {
    int64_t n_rows; ///< S
    int64_t n_text, n_video, n_audio;
    int64_t n_condition_video, n_condition_audio; ///< leading rows of video_rows, audio_rows
    double *positions;                            ///< [S, 3] (t, h, w)
    int32_t *tags;                                ///< [S]
    int32_t *text_rows;                           ///< [Nt] row of each text token: 0, 1, ...
    int32_t *video_rows;                          ///< [Nv]
    int32_t *audio_rows;                          ///< [Na]
    int32_t cu_seqlens[2];                        ///< {0, S}: one attention document
    int32_t refiner_cu_seqlens[2];                ///< {0, Nt}
    h3_segment segments[2 * H3_MAX_CONDITIONS + 3];
    int n_segments;
} h3_layout;

/** One allocation; free with h3_layout_free. H3_E_ARG names the extent that is wrong, H3_E_NOMEM.
 */
H3_NODISCARD h3_status h3_layout_create(h3_layout **out, const h3_layout_in *in);
void h3_layout_free(h3_layout **l);

/**
 * Distinct timesteps of one step, ascending, and which one each kind of row uses. 1 to 4 values: at
 * step 0 video and audio share t = 0, so the count changes between steps.
 */
typedef struct h3_step_times {
    int n;
    float t[4];
    int video;                            ///< generated video rows and text rows
    int audio;                            ///< generated audio rows
    int condition_video, condition_audio; ///< -1 when there are no such rows
} h3_step_times;

/** Visual conditions are held at max(video_t, 0.999), reference sound at 1. */
h3_step_times h3_layout_times(const h3_layout *l, float video_t, float audio_t);

/** time_row [S]: index into times->t. mod_row [S]: row of the AdaLN table, 3 * time_row + tag.
 * Either may be NULL. */
void h3_layout_time_rows(const h3_layout *l, const h3_step_times *times, int32_t *time_row,
                         int32_t *mod_row);

/** Row ids of the padded form. */
enum {
    H3_ROW_TEXT = -5,
    H3_ROW_CONDITION = -11,
    H3_ROW_AUDIO_REFERENCE = -17,
    H3_ROW_AUDIO_FIRST = -15,
    H3_ROW_AUDIO = -14,
    H3_ROW_VIDEO_FIRST = -3,
    H3_ROW_VIDEO = -2,
    H3_ROW_VIDEO_LAST = -4,
    H3_ROW_PAD = -1
};

/** The same sequence for kernels that want a multiple of `align` rows: pad rows form a second
 *  document, with tag -1 (clamp before indexing) and position 0. */
typedef struct h3_padded {
    int64_t n_rows;                  ///< S rounded up
    int32_t *ids, *tags, *documents; ///< [n_rows]
    double *positions;               ///< [n_rows, 3]
    uint8_t *is_video, *is_audio;    ///< [n_rows]
    uint8_t *is_video_target;        ///< [Nv] which video rows are updated
    uint8_t *is_audio_target;        ///< [Na]
    int32_t cu_seqlens[3], refiner_cu_seqlens[3];
} h3_padded;

H3_NODISCARD h3_status h3_padded_create(h3_padded **out, const h3_layout *l, int64_t align);
void h3_padded_free(h3_padded **p);

/** Time spans of n latent frames, 5/3 * (1, 4, 4, 4, 4, 1, ...), summed in numpy's pairwise order
 * (the last keyframe's place) and from left to right (the reference clock). They differ in the last
 * bit from 16 terms on, and positions are compared bit for bit. */
double h3_span_pairwise(int64_t n);
double h3_span_sequential(int64_t n);

/* Latents <-> rows. A video row holds one 2 x 2 patch: column = channel * 4 + dy * 2 + dx. */

/** rows [t * h/2 * w/2, 4 c] from z [c, t, h, w]. */
void h3_patchify(float *rows, const float *z, int64_t c, int64_t t, int64_t h, int64_t w);
void h3_unpatchify(float *z, const float *rows, int64_t c, int64_t t, int64_t h, int64_t w);

/** rows [channels * n, c] from z [channels, c, n]. */
void h3_audio_to_rows(float *rows, const float *z, int64_t channels, int64_t c, int64_t n);
void h3_audio_from_rows(float *z, const float *rows, int64_t channels, int64_t c, int64_t n);

#endif
