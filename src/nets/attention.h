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

#include "comm.h"

typedef struct h3_qkv {
    h3_tensor q, k, v; ///< [S, H, D] each, views of the packed product
} h3_qkv;

/** Splits packed [S, 3 * n_heads * head_dim] (dense). */
h3_qkv h3_attention_split(h3_tensor packed, int64_t n_heads, int64_t head_dim, bool interleaved);

/**
 * o = softmax(q k^T / sqrt(D)) v inside each document. o [S, H * D] (dense), `qkv` as split above,
 * already normed and rotated; cu [n_documents + 1] on the host, cu[0] = 0, cu[n_documents] = S.
 *
 * With `ranks` (NULL: none) the rows of q, k, v and o are this rank's share of S (h3_comm_first),
 * while cu stays that of all. Sequence parallelism as in DeepSpeed Ulysses (Jacobs et al. 2023): an
 * exchange turns "some rows of all heads" into "all rows of some heads", attention runs as it would
 * on one rank, a second exchange turns its result back. Heads must divide among ranks
 * (h3_attention_check).
 */
H3_NODISCARD h3_status h3_attention_self(h3_dev *d, h3_comm *ranks, h3_tensor o, const h3_qkv *qkv,
                                         const int32_t *cu, int n_documents);

/** H3_E_UNSUPPORTED when n_heads do not divide among the ranks; says which counts do. */
H3_NODISCARD h3_status h3_attention_check(const h3_comm *ranks, int64_t n_heads);

#endif
