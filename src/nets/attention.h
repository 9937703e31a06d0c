/**
 * Self-attention's view of a fused product: q, k and v as three strided tensors over one buffer.
 *
 * Files order the rows of a fused qkv matrix in two ways of equal shape (see
 * h3_weight.interleaved):
 *
 *   interleaved   (head, {q, k, v}, channel)   head stride 3 D, offsets 0, D, 2 D
 *   stacked       ({q, k, v}, head, channel)   head stride D,   offsets 0, H D, 2 H D
 *
 * Nothing is moved: operations take any outer strides.
 */
#ifndef H3_NETS_ATTENTION_H
#define H3_NETS_ATTENTION_H

#include "dev.h"

typedef struct h3_qkv {
    h3_tensor q, k, v; ///< [S, H, D] each, views of the packed product
} h3_qkv;

/** Splits packed [S, 3 * n_heads * head_dim] (dense). */
h3_qkv h3_attention_split(h3_tensor packed, int64_t n_heads, int64_t head_dim, bool interleaved);

/**
 * o = softmax(q k^T / sqrt(D)) v inside each document. o [S, H * D] (dense), `qkv` as split above,
 * already normed and rotated; cu [n_documents + 1] on the host, cu[0] = 0, cu[n_documents] = S.
 */
H3_NODISCARD h3_status h3_attention_self(h3_dev *d, h3_tensor o, const h3_qkv *qkv,
                                         const int32_t *cu, int n_documents);

#endif
