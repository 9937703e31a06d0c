/**
 * What a number is: dtypes, and h3_tensor, a view of numbers that live on the host or on a device.
 */
#ifndef H3_TENSOR_TENSOR_H
#define H3_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { H3_MAX_RANK = 5 };

typedef enum h3_dtype {
    H3_F32 = 0,
    H3_BF16,
    H3_F16,
    H3_I32,
    H3_U8,
    H3_I8,
    H3_F64,
    H3_I64,
    H3_I16,
    H3_BOOL,
    H3_F8_E4M3,
    H3_F8_E5M2,
    H3_F8_E8M0,
    H3_DTYPE_COUNT
} h3_dtype;

typedef enum h3_mem { H3_HOST = 0, H3_DEVICE = 1 } h3_mem;

/**
 * A view; never owns. ne[0] is the outermost extent, st[] the distance in *elements* from one index
 * to the next. The innermost stride is 1 in every tensor an operation accepts; outer strides are
 * free (so q, k and v are views of one packed product, whatever order its rows have).
 */
typedef struct h3_tensor {
    void *data;
    int64_t ne[H3_MAX_RANK]; ///< extents, outermost first; entries from `rank` on are 1
    int64_t st[H3_MAX_RANK]; ///< strides in elements
    uint8_t rank, dtype, mem;
} h3_tensor;

/** Bytes of one element. */
size_t h3_dtype_bytes(h3_dtype t);
/** "F32", "BF16", ... as safetensors spells them. */
const char *h3_dtype_name(h3_dtype t);
/** Parses a safetensors dtype name; false when unknown. */
bool h3_dtype_parse(const char *name, h3_dtype *out);

/** A dense host view of rank 1..5 over `data`. */
h3_tensor h3_host_tensor(void *data, h3_dtype t, int rank, const int64_t *ne);
h3_tensor h3_tensor_1d(void *data, h3_dtype t, int64_t n0);
h3_tensor h3_tensor_2d(void *data, h3_dtype t, int64_t n0, int64_t n1);
h3_tensor h3_tensor_3d(void *data, h3_dtype t, int64_t n0, int64_t n1, int64_t n2);

static inline bool h3_is_null(h3_tensor t)
{
    return t.data == NULL;
}

/** Number of elements. */
int64_t h3_numel(h3_tensor t);
/** True when the elements lie one after another without gaps. */
bool h3_is_dense(h3_tensor t);
/** Product of all extents but the last: how many rows an operation over the last axis sees. */
int64_t h3_n_rows(h3_tensor t);

/** Same elements in other extents (the tensor must be dense; the product must agree). */
h3_tensor h3_view(h3_tensor t, int rank, const int64_t *ne);
h3_tensor h3_view_2d(h3_tensor t, int64_t n0, int64_t n1);
h3_tensor h3_view_3d(h3_tensor t, int64_t n0, int64_t n1, int64_t n2);
/** Elements [from, from + n) of axis `axis`. */
h3_tensor h3_slice(h3_tensor t, int axis, int64_t from, int64_t n);
/** One index of axis 0, rank reduced by one. */
h3_tensor h3_at(h3_tensor t, int64_t i);

/** "[12, 96] F32", into a static per-thread ring of 4 buffers. */
const char *h3_tensor_desc(h3_tensor t);

#endif
