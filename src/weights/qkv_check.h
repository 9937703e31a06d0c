/** Does the row order of fused q/k/v that origin implies fit the numbers? */
#ifndef H3_WEIGHTS_QKV_CHECK_H
#define H3_WEIGHTS_QKV_CHECK_H

#include "checkpoint.h"

/**
 * Shares of the variance of the rows' magnitudes that each order explains, averaged over a few
 * blocks: rows of q, of k and of v are alike among themselves in a trained model. Reads about one
 * matrix. `is_doubtful`: the other order explains clearly more than the one in use.
 */
typedef struct h3_qkv_check {
    double interleaved, stacked;
    bool is_doubtful, is_done; ///< not done: stored split, or no fused matrix
} h3_qkv_check;

H3_NODISCARD h3_status h3_ckpt_check_qkv(h3_checkpoint *ck, h3_qkv_check *out);

#endif
