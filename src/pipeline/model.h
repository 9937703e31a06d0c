/**
 * Where the parts of a model are: one folder in any published layout, with single parts overridden.
 * Only paths are settled here.
 */
#ifndef H3_PIPELINE_MODEL_H
#define H3_PIPELINE_MODEL_H

#include <stdint.h>

#include "file.h"

/** Paths, malloc'd; NULL where the model has no such part. */
typedef struct h3_model {
    char *root;    ///< as given, "builtin:" for the model inside the library
    char *dit;     ///< for t2va and fl2va
    char *dit_ref; ///< for ref2va
    char *text_encoder;
    char *video_vae, *audio_vae;
    char *tokenizer, *processor;
    char *mmproj; ///< vision tower of a text encoder that is split over two GGUF files
    char *notes;  ///< choices the search had to make, one line each, or NULL
    char *unread; ///< what it could not read, for h3_parts_unread; or NULL
    /* Sizes that the model's index gives as its own (a small model's); 0: those of the release. */
    int64_t canvas_short_edge, canvas_max_pixels, reference_short_edge;
    int64_t trained_min_frames, trained_max_frames; ///< lengths of the training's clips
} h3_model;

/** Which parts the caller names himself; NULL entries are looked for in `root`. */
typedef struct h3_model_paths {
    const char *root; ///< NULL: the built-in model, unless dit, text_encoder, ... are all given
    const char *dit, *text_encoder, *video_vae, *audio_vae, *tokenizer;
} h3_model_paths;

/** H3_E_MISSING names the folder, what was looked for and what would fill it. */
H3_NODISCARD h3_status h3_model_find(h3_model *out, const h3_model_paths *p);
void h3_model_free(h3_model *m);

#endif
