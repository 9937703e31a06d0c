/**
 * The presentation: what the conditioner reads for one request, as token rows with everything that
 * hangs on a row.
 *
 *   t2va     prompt
 *   fl2va    for each keyframe:  "<Picture i>: " start pads end           then the prompt
 *   ref2va   for each reference, in request order:
 *              image             "<Picture i>: " start pads end
 *              audio             "<Audio j>: "
 *              video             ["<Audio j>: " if it has sound] "<Video k>: ",
 *                                per frame pair "<T seconds>" start pads end  then the prompt
 *
 * Counters run per kind. Each quoted piece and the prompt is tokenised by itself. S is the number
 * of rows; all of them go on to the diffusion transformer.
 */
#ifndef H3_TEXT_PROMPT_H
#define H3_TEXT_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"
#include "tokenizer.h"

typedef enum h3_prompt_task { H3_PROMPT_T2VA, H3_PROMPT_FL2VA, H3_PROMPT_REF2VA } h3_prompt_task;

/** The first two values are also the type of their pad rows (mm_types). */
typedef enum h3_prompt_kind {
    H3_PROMPT_IMAGE = 1,
    H3_PROMPT_VIDEO = 2,
    H3_PROMPT_AUDIO = 3
} h3_prompt_kind;

/** A keyframe (always an image) or a reference. */
typedef struct h3_prompt_ref {
    h3_prompt_kind kind;
    bool has_sound;      ///< videos only: announced by an audio label of its own
    int32_t grid[3];     ///< image, video: t, h, w in patches; t is 1 for an image
    const double *times; ///< video: seconds of each sampled frame (index / 2), not padded to pairs
    int n_times;         ///< video: grid[0] must be n_times / temporal_patch, rounded up
} h3_prompt_ref;

typedef struct h3_prompt_in {
    h3_prompt_task task;
    const char *text; ///< the prompt, UTF-8; need not be NUL-terminated
    size_t n_bytes;
    const h3_prompt_ref *refs; ///< fl2va: one or two keyframes, first before last
    int n_refs;
    int merge_size;     ///< of the image processor (2): merge^2 patches make one row
    int temporal_patch; ///< of the video processor (2): sampled frames per vision block
} h3_prompt_in;

/** A run of pad rows: these rows are replaced by vision rows and get the DeepStack additions. */
typedef struct h3_prompt_run {
    int64_t row, n_rows; ///< rows [row, row + n_rows) of the presentation
    int64_t
        vision_row; ///< first row among the merged vision rows of its kind (images, videos apart)
    h3_prompt_kind kind;
    int32_t ref;  ///< index into refs
    int32_t h, w; ///< merged grid, n_rows = h * w, raster order
} h3_prompt_run;

/** Ids of the vision markers; -1 where the tokenizer lacks one. */
typedef struct h3_prompt_markers {
    int32_t vision_start, vision_end, image_pad, video_pad;
} h3_prompt_markers;

typedef struct h3_prompt {
    int64_t n_rows;        ///< S
    int32_t *ids;          ///< [S] token ids
    uint8_t *tags;         ///< [S] 0 a whole vision block with its markers, 1 everything else
    uint8_t *mm_types;     ///< [S] 1 image pad, 2 video pad, 0 everything else
    int32_t *position_ids; ///< [3, S] M-RoPE t, h, w
    h3_prompt_run *runs;   ///< [n_runs] in row order
    int32_t n_runs;
    int32_t n_images, n_videos; ///< references of the kind
    int64_t n_image_rows;       ///< merged vision rows of all images
    int64_t n_video_rows;       ///< and of all videos
    int32_t (*image_grids)[3];  ///< [n_images] t, h, w in patches
    int32_t (*video_grids)[3];  ///< [n_videos]
    h3_prompt_markers markers;
} h3_prompt;

/** The markers of a tokenizer, found by their strings. Never fails: see h3_prompt_markers. */
void h3_prompt_find_markers(const h3_tok *t, h3_prompt_markers *out);

/**
 * Builds the presentation; *out is overwritten, free it with h3_prompt_free (also after a failure,
 * when it is empty).
 *
 * H3_E_ARG: nothing to read (an empty t2va prompt), pads typed into the prompt beside vision input,
 * invalid UTF-8, a grid or time that cannot be. H3_E_MISSING: the tokenizer lacks a marker that is
 * needed. H3_E_NOMEM.
 */
H3_NODISCARD h3_status h3_prompt_build(h3_prompt *out, const h3_tok *t, const h3_prompt_in *in);
void h3_prompt_free(h3_prompt *p);

#endif
