/**
 * What an operation costs, from shapes alone: the same numbers on every device, so that rates of
 * different backends compare. flops counts a multiply-add as two; bytes counts each operand once.
 */
#ifndef H3_TENSOR_OPS_COST_H
#define H3_TENSOR_OPS_COST_H

#include "ops.h"

typedef struct h3_op_cost {
    double flops, bytes;
} h3_op_cost;

/** y [S, N] from x [S, K]; the weight's stored bytes count once. */
h3_op_cost h3_cost_gemm(h3_tensor y, h3_tensor x, const h3_weight *w);
/** Only the rows asked for. */
h3_op_cost h3_cost_embed(h3_tensor y, const h3_weight *w);
/** Two products over the pairs (i, j) that share a segment; half of them when causal. */
h3_op_cost h3_cost_attention(h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v, const int32_t *cu,
                             int n_segments, bool causal);
h3_op_cost h3_cost_conv(h3_tensor y, h3_tensor x, const h3_weight *w, h3_tensor add);
h3_op_cost h3_cost_conv_transpose1d(h3_tensor y, h3_tensor x, const h3_weight *w, int kernel);
/** Everything else: flops per element of `y` by a table, bytes of y and of the n_in inputs (absent
 *  ones count nothing; an operation that updates y in place lists it as an input too). */
h3_op_cost h3_cost_rest(h3_op_id id, h3_tensor y, int n_in, const h3_tensor *in);

#endif
