/**
 * Sources on their way to the networks: pictures onto their canvas, sound to 32 kHz, and what the
 * conditioner's vision tower reads of them.
 */
#ifndef H3_PIPELINE_PREPARE_H
#define H3_PIPELINE_PREPARE_H

#include "encoder.h"
#include "prompt.h"
#include "request.h"
#include "vision_rows.h"

/** A condition as the VAEs take it. */
typedef struct h3_prepared {
    uint8_t *rgb; ///< [n, h, w, 3] on the canvas, malloc'd; NULL for sound
    int64_t n, h, w;
    float *pcm; ///< [2, n_samples] at 32 kHz, malloc'd; NULL without sound
    int64_t n_samples;
} h3_prepared;

/** Fits source `s` as condition `c` says; `mode` other than H3_FIT_REFERENCE replaces its fit.
 * Takes the pixels and samples out of *s where they can be used as they are. */
H3_NODISCARD h3_status h3_prepare_source(h3_prepared *out, h3_source *s, const h3_condition *c,
                                         h3_fit_mode mode);
void h3_prepared_free(h3_prepared *p);

/** What the conditioner sees of the conditions. */
typedef struct h3_vision {
    h3_processor image, video;             ///< settings of the model
    h3_prompt_ref refs[H3_MAX_CONDITIONS]; ///< in packed order
    int n_refs;
    double *times[H3_MAX_CONDITIONS];
    float *image_patches, *video_patches; ///< malloc'd
    int64_t n_image_rows, n_video_rows;   ///< patch rows
} h3_vision;

/** `processor` is the model's folder of processor settings, or NULL for the released ones. */
H3_NODISCARD h3_status h3_vision_create(h3_vision *out, const char *processor, const h3_plan *plan,
                                        const h3_prepared *prepared);
void h3_vision_free(h3_vision *v);

#endif
