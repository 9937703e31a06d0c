/**
 * Attention by cuDNN (dnn.c): a plan holds for one shape.
 */
#ifndef H3_CUDA_DNN_H
#define H3_CUDA_DNN_H

#include "cuda.h"

/** Attention of `batch` documents of as many rows. Strides in elements, documents row after row.
 *  Compared by their bytes: to be cleared first. */
typedef struct h3_dnn_shape {
    int64_t batch, heads, kv_heads, rows, dim;
    int64_t q_s, q_h, k_s, k_h, v_s, v_h, o_s, o_h;
    int64_t dtype, is_fp8; ///< of bf16 and f16 cuDNN's unified operation; is_fp8: its e4m3 graph
} h3_dnn_shape;

/** Without H3_CUDNN=off the library has to be there; H3_E_UNSUPPORTED, H3_E_DEVICE. */
h3_status h3_dnn_open(h3_dev *d);
void h3_dnn_close(h3_dev *d);

/** The plan for a shape, built on first use and kept; NULL where cuDNN has none. */
h3_status h3_dnn_plan_for(h3_dev *d, const h3_dnn_shape *s, h3_dnn_plan **out);

/** Enqueues it. io: q, k, v, o, the address of the host's scale; of e4m3 also what undoes the
 * scales of q, k, v and of weights, the scales of weights and o, and where two maxima go, all on
 * the device. The first run of a large one times what cuDNN offers: not while a recording is under
 * way. */
h3_status h3_dnn_run(h3_dev *d, h3_dnn_plan *p, void *const *io);

#endif
