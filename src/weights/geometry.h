/**
 * The sizes of a model as its tensors show them, and whether all tensors of such a model are there
 * with the right shapes and readable encodings. What `inspect` prints and what a damaged file is
 * told by; networks check again what they bind.
 */
#ifndef H3_WEIGHTS_GEOMETRY_H
#define H3_WEIGHTS_GEOMETRY_H

#include "checkpoint.h"

enum { H3_MAX_DIMS = 20 };

typedef struct h3_geometry {
    int n;
    struct {
        const char *name; ///< "hidden", "layers", ...
        int64_t value;
    } dim[H3_MAX_DIMS];
} h3_geometry;

/**
 * Reads the sizes of `ck` and checks every tensor against them: presence, shape, encoding and
 * companions, finite small values, no layer beyond a gap. With `problems` (a JSON array) every
 * problem is appended as a sentence and the result is H3_OK; without, the first one fails.
 */
H3_NODISCARD h3_status h3_geometry_read(h3_geometry *out, h3_checkpoint *ck, json_t *problems);

/** A size by name, or -1. */
int64_t h3_geometry_dim(const h3_geometry *g, const char *name);

#endif
