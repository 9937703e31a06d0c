/**
 * From a stored tensor and its companions to an h3_weight_part: which encoding it is, whether the
 * companions fit, and all the facts that decode.c relies on without checking.
 */
#ifndef H3_WEIGHTS_ENCODING_H
#define H3_WEIGHTS_ENCODING_H

#include <jansson.h>

#include "manifest.h"
#include "names.h"
#include "weight.h"

/** Memory that lives as long as a checkpoint. */
typedef struct h3_keep {
    void **block;
    size_t n, cap;
    size_t bytes; ///< sum of all blocks
} h3_keep;

/** malloc'd block owned by `k`, or NULL. */
void *h3_keep_alloc(h3_keep *k, size_t bytes);
void h3_keep_free(h3_keep *k);

/** One stored tensor with what belongs to it. */
typedef struct h3_source {
    const h3_entry *e; ///< NULL: only companions were found
    const h3_entry *companion[H3_COMP_COUNT];
    bool is_reciprocal; ///< the global scale divides (compressed-tensors)
} h3_source;

/** What a file says, or its origin implies, about its quantized matrices. */
typedef struct h3_quant_rules {
    const h3_manifest *m;
    json_t *layers;       ///< "layers" of _quantization_metadata, or NULL
    const char *prefix;   ///< in front of module names
    bool is_nvfp4_linear; ///< block scales in row order
    bool is_nvfp4_low;    ///< even column in the low nibble
    bool skips_values;    ///< block scales are not looked at: gigabytes that inspect need not read
} h3_quant_rules;

/** Extents of the matrix that `s` decodes to (a packed 4-bit matrix is twice as wide as stored). */
H3_NODISCARD h3_status h3_source_shape(const h3_quant_rules *r, const h3_source *s, int *rank,
                                       int64_t ne[8]);

/** Builds the part [ne[0], product of the rest]. Everything decode.c needs is checked here. */
H3_NODISCARD h3_status h3_source_part(const h3_quant_rules *r, const h3_source *s, h3_keep *keep,
                                      h3_weight_part *p);

/** Rows [from, from + n) of a part. */
h3_weight_part h3_part_slice(const h3_weight_part *p, int64_t from, int64_t n);

/** "BF16", "NVFP4", "Q4_K", ... */
const char *h3_part_encoding_name(const h3_weight_part *p);

/** Bytes of a part's data and companions. */
size_t h3_source_bytes(const h3_source *s);

/** The text of a published .comfy_quant tensor of that length, which the tables of names leave
 * out; "" for a length that no form has. `is_mx`: of an mxfp8 file (NVFP4's tag is as long). */
const char *h3_quant_tag(size_t bytes, bool is_mx);

#endif
