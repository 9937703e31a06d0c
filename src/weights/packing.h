/**
 * Weights packed by programs whose forms are not read here: told by their name, with what to take
 * instead, rather than by the first tensor that happens to be missing or odd.
 */
#ifndef H3_WEIGHTS_PACKING_H
#define H3_WEIGHTS_PACKING_H

#include <jansson.h>

#include "manifest.h"

/** H3_E_UNSUPPORTED when the names of a file's tensors are those of such a form. */
H3_NODISCARD h3_status h3_packing_check(const h3_manifest *m, const char *path);

/** The sentence (H3_E_UNSUPPORTED, or H3_E_FORMAT for what is no type of the format) about a tensor
 *  of safetensors whose `dtype` holds no weights here; `header` is the file's, for its neighbours.
 */
h3_status h3_packing_dtype(const char *path, const char *name, const char *dtype,
                           const json_t *header);

#endif
