/**
 * A weight matrix as stored: one or more row blocks that together form [out, in].
 *
 * Files disagree about fusion (one qkv matrix, or three; [gate; value] or [value; gate]) and mix
 * encodings inside one group. A weight is therefore a list of parts, each a slice of a mapped file
 * in its own encoding; the network sees one matrix. Nothing is copied or converted to build one.
 */
#ifndef H3_TENSOR_WEIGHT_H
#define H3_TENSOR_WEIGHT_H

#include "tensor.h"

/** How the bytes of a part stand for numbers. Plain ones are dtypes; others need companions. */
typedef enum h3_encoding {
    H3_ENC_F32 = 0,
    H3_ENC_BF16,
    H3_ENC_F16,
    H3_ENC_FP8_SCALED, ///< e4m3 * scale (one, or one per row)
    H3_ENC_MXFP8,      ///< e4m3 * 2^(e8m0 - 127) per 32 columns
    H3_ENC_INT8,       ///< int8 * scale (one, or one per row); may be ConvRot-rotated
    H3_ENC_W4A8,       ///< 4-bit codebook, e4m3 group scale, f32 row scale, rotated
    H3_ENC_NVFP4,      ///< e2m1 pairs * e4m3 per 16 columns * global
    H3_ENC_GGML        ///< ggml block type `ggml_type`
} h3_encoding;

enum { H3_MAX_PARTS = 4 };

typedef struct h3_weight_part {
    /** Host bytes (usually mapped, any alignment); row r starts at data + r * row_bytes. row_bytes
     * 0 (ggml blocks that cross rows): row r starts at element (row0 + r) * cols of the blocks. */
    const void *data;
    void *dev; ///< where the backend's store put it; equals data on the CPU
    int64_t rows, cols;
    size_t row_bytes, bytes;
    uint8_t encoding;      ///< h3_encoding
    uint8_t ggml_type;     ///< for H3_ENC_GGML
    uint8_t nibble_high;   ///< NVFP4: the even column is the high nibble
    uint8_t swizzled;      ///< NVFP4/MXFP8: block scales in 128x4 tiles
    int32_t group;         ///< ConvRot group size, 0 when not rotated
    int64_t row0;          ///< first row inside the companion tensors (a part may be a row slice)
    const void *scale;     ///< block or row scales, meaning by encoding
    const void *scale2;    ///< second-level scales (W4A8 row scales) or NULL
    const void *aux;       ///< W4A8 codebook (16 f32) or NULL: code - 8
    const float *corr;     ///< W4A8 correction [cols / block, rows of the file's tensor] or NULL
    int64_t n_scale;       ///< entries of `scale`
    int64_t full_rows;     ///< rows of the file's tensor (>= row0 + rows); strides of companions
    int32_t block;         ///< columns per block scale (NVFP4 16, MXFP8 32, W4A8 as described)
    float global;          ///< NVFP4 global scale / per-tensor scale; 1 otherwise
    const float *in_scale; ///< AWQ: factor on the module's input [cols], or NULL
} h3_weight_part;

/** Which row of `b` a row of the weight takes; C = 3 q/k/v parts of H heads of `head` channels. */
typedef enum h3_lora_rows {
    H3_LORA_RANGE = 0, ///< weight rows [row0, row0 + b.rows) <- 0, 1, ...
    H3_LORA_ONE_OF_3,  ///< interleaved weight, b holds part `slot` alone
    H3_LORA_STACKED,   ///< interleaved weight, b rows [q; k; v]
    H3_LORA_MIXED      ///< weight rows [q; k; v], b interleaved
} h3_lora_rows;

/**
 * A low-rank addition to a weight: scale * B A. a [rank, cols] and b [n, rank] are plain (F32,
 * BF16, F16), usually mapped; row r of the weight takes row h3_lora_row(l, r) of b. h3_weight_rows
 * merges it while it decodes; a device may instead add scale * (x A^T) B^T to the product.
 */
typedef struct h3_lora {
    h3_weight_part a, b;
    int64_t row0;
    int64_t weight_rows; ///< rows of the whole weight
    int32_t head;        ///< channels per head, for the q/k/v maps
    uint8_t map, slot;   ///< h3_lora_rows
    float scale;         ///< strength * alpha / rank
} h3_lora;

/** Row of l->b that row r of the weight takes, or -1. */
static inline int64_t h3_lora_row(const h3_lora *l, int64_t r)
{
    const int64_t D = l->head, inner = l->weight_rows / 3;
    switch (l->map) {
    case H3_LORA_ONE_OF_3:
        return r / D % 3 == l->slot ? r / (3 * D) * D + r % D : -1;
    case H3_LORA_STACKED:
        return r / D % 3 * inner + r / (3 * D) * D + r % D;
    case H3_LORA_MIXED:
        return (r % inner / D * 3 + r / inner) * D + r % D;
    default:
        return r >= l->row0 && r < l->row0 + l->b.rows ? r - l->row0 : -1;
    }
}

typedef struct h3_weight {
    const char *name; ///< canonical name, for messages and taps
    int64_t rows, cols;
    int32_t n_parts;
    bool interleaved; ///< a fused qkv whose rows are (head, {q, k, v}, channel); else [q; k; v]
    /** Its bytes are on the device only while they are needed: a backend keeps nothing of their
     * size that it made from them. */
    bool is_passing;
    bool is_made; ///< computed or decoded when it was bound: the bytes are not those of a file
    /** h3_dtype in which alone a device holds it while it stays there, see h3_dev.form; F32: as it
     * is stored. */
    uint8_t form;
    h3_weight_part part[H3_MAX_PARTS];
    h3_tensor bias; ///< [rows] f32, data NULL when absent
    void *packed;   ///< owned by the backend that made it
    /** Additions of all adapters in use. A backend that reads part[] itself must honour them (and
     *  part[].in_scale, part[].group); h3_weight_rows of decode.h does. */
    const h3_lora *lora;
    int32_t n_lora;
} h3_weight;

#endif
