/**
 * One number in, one number out: loads and stores of the activation dtypes, and row offsets of
 * strided tensors. Shared by the reference operations and the CPU backend's scalar edges.
 */
#ifndef H3_TENSOR_NUM_H
#define H3_TENSOR_NUM_H

#include "half.h"
#include "tensor.h"

/** Element i (in elements from p) of a float dtype, widened. */
static inline float h3_num_load(const void *p, uint8_t dtype, int64_t i)
{
    if (dtype == H3_F32) return ((const float *)p)[i];
    if (dtype == H3_BF16) return h3_bf16_to_f32(((const uint16_t *)p)[i]);
    return h3_f16_to_f32(((const uint16_t *)p)[i]);
}

static inline void h3_num_store(void *p, uint8_t dtype, int64_t i, float v)
{
    if (dtype == H3_F32)
        ((float *)p)[i] = v;
    else if (dtype == H3_BF16)
        ((uint16_t *)p)[i] = h3_f32_to_bf16(v);
    else
        ((uint16_t *)p)[i] = h3_f32_to_f16(v);
}

/** The value v takes when it is kept as `dtype`. */
static inline float h3_num_round(uint8_t dtype, float v)
{
    return dtype == H3_BF16 ? h3_round_bf16(v) : v;
}

/** Offset in elements of row r, counting the rows of all axes but the last, outermost first. */
static inline int64_t h3_row_offset(const h3_tensor *t, int64_t r)
{
    int64_t off = 0;
    for (int a = t->rank - 2; a >= 0; a--) {
        off += r % t->ne[a] * t->st[a];
        r /= t->ne[a];
    }
    return off;
}

/** Address of element `off`. */
static inline void *h3_num_at(h3_tensor t, int64_t off)
{
    return (unsigned char *)t.data + (size_t)off * h3_dtype_bytes((h3_dtype)t.dtype);
}

#endif
