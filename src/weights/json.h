/**
 * JSON from files we do not trust: bounded depth, bounded number of values, no duplicate keys, and
 * errors that name the key they happened in.
 */
#ifndef H3_WEIGHTS_JSON_H
#define H3_WEIGHTS_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "status.h"

enum {
    H3_JSON_MAX_BYTES = 100000000,  ///< what safetensors itself allows a header, metadata and all
    H3_JSON_MAX_VALUES = 400 << 10, ///< bounds the tree to about 40 MB whatever the text
    H3_JSON_MAX_DEPTH = 64
};

/**
 * Parses `n` bytes (need not end in NUL). `what` begins every message ("x.safetensors: header").
 * H3_E_FORMAT when it is not one JSON value of ours. Free *out with json_decref.
 */
H3_NODISCARD h3_status h3_json_parse(json_t **out, const char *text, size_t n, const char *what);

/** The same from a file. H3_E_MISSING when it does not exist. */
H3_NODISCARD h3_status h3_json_load(json_t **out, const char *path);

#endif
