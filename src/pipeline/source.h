/**
 * Inputs of a request as pixels and samples: what the caller's files become before anything is
 * planned. Clips are already at 24 fps and cut to the request's length; sound is cut but keeps its
 * rate. Everything after this works on sources, whether they came from files or from memory.
 */
#ifndef H3_PIPELINE_SOURCE_H
#define H3_PIPELINE_SOURCE_H

#include <h3av/h3av.h>

#include "cancel.h"
#include "canvas.h"

typedef enum h3_source_kind {
    H3_SOURCE_IMAGE = 0,
    H3_SOURCE_VIDEO,
    H3_SOURCE_AUDIO
} h3_source_kind;

typedef struct h3_source {
    h3_source_kind kind;
    char *name;   ///< for messages; malloc'd
    h3_size file; ///< upright size in the file
    h3_size size; ///< of rgb: the file's, or already its canvas (clips)
    int64_t n;    ///< frames in rgb, 1 for a picture
    uint8_t *rgb; ///< [n, height, width, 3], malloc'd; NULL for sound
    bool has_audio;
    float *pcm; ///< [2, n_samples] planar, malloc'd
    int64_t n_samples;
    int rate; ///< Hz
} h3_source;

/** How clips are read: at most `n_frames` frames, resized to the canvas of their own ratio. */
typedef struct h3_source_rule {
    int64_t n_frames; ///< aligned length of the request
    h3_canvas_rule canvas;
    const h3_cancel_flag *stop;
} h3_source_rule;

/** A keyframe: must be a picture. `role` ("first keyframe") begins the error sentence. */
H3_NODISCARD h3_status h3_source_picture(h3_source *out, const h3_input *in, const char *role);

/** A reference of any kind; in->sound and in->kind are obeyed or refused by name. */
H3_NODISCARD h3_status h3_source_reference(h3_source *out, const h3_input *in, int number,
                                           const h3_source_rule *rule);

void h3_source_free(h3_source *s);

#endif
