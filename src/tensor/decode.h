/**
 * Stored weights to f32: the one definition of what every encoding means.
 *
 * Decoding is exact: it gives the f32 value that the format's definition gives, each product
 * rounded once, in the order of the reference decoders. Data may lie unaligned. Nothing is
 * allocated. The parts were validated when they were bound: no argument is checked here beyond
 * asserts.
 */
#ifndef H3_TENSOR_DECODE_H
#define H3_TENSOR_DECODE_H

#include "weight.h"

/** Rows [row, row + n) of one part -> out [n, cols] dense f32, without `in_scale`. */
void h3_weight_decode_rows(const h3_weight_part *p, int64_t row, int64_t n, float *out);

/**
 * Rows [row, row + n) of the whole matrix -> out [n, cols] dense f32: across its parts, input
 * scales multiplied into the columns, adapters added. This is what a product needs.
 */
void h3_weight_rows(const h3_weight *w, int64_t row, int64_t n, float *out);

/** True when a part's bytes are its numbers (F32, BF16, F16 without input scale), so that a backend
 * may use them in place. */
static inline bool h3_part_is_plain(const h3_weight_part *p)
{
    return p->encoding <= H3_ENC_F16 && !p->in_scale;
}

/** n numbers of a dense dtype -> f32. `src` may be unaligned. */
void h3_decode_dtype(h3_dtype t, const void *src, int64_t n, float *out);

/** Builds of the decoders: 0 baseline, 1 AVX2, 2 AVX-512; the machine's best is taken by itself
 * (-1). Tests force one; not thread-safe. */
int h3_decode_best_level(void);
void h3_decode_use_level(int level);

/* ---- ggml block types ---- */

typedef struct h3_ggml_info {
    const char *name; ///< "Q4_K"; NULL for a number without meaning
    uint16_t block;   ///< elements per block
    uint16_t bytes;   ///< bytes per block
    bool can_decode;  ///< false: known by name and size only
} h3_ggml_info;

/** Facts about a ggml type number; name NULL when there is no such type. */
h3_ggml_info h3_ggml_type(uint32_t type);

/** Elements [from, from + n) of a run of blocks -> f32. */
void h3_decode_ggml(uint8_t type, const void *blocks, int64_t from, int64_t n, float *out);

/** e4m3 to f32 (0x7f and 0xff are NaN) and e8m0 to f32 (0 is 0, 255 is NaN). */
extern const float h3_e4m3[256];
float h3_e8m0(uint8_t b);

/** Offset of the block scale (row, col) in 128 x 4 tiles of a matrix with `cols` scale columns. */
static inline size_t h3_swizzled(int64_t row, int64_t col, int64_t cols)
{
    return (size_t)((row / 128 * ((cols + 3) / 4) + col / 4) * 512 + row % 32 * 16 +
                    row % 128 / 32 * 4 + col % 4);
}

#endif
