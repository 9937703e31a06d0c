/**
 * THE contract between networks and machines: every operation a network may ask for.
 *
 * A backend fills this table. ops_ref.c holds the definition of each entry in plain C with float32
 * (or wider) accumulation; ops_plan.c computes nothing and counts; backend/cpu and backend/cuda are
 * the fast ones. A forward is written once, as straight-line calls of these entries.
 *
 * Common rules
 *   - y is the output. Operations enqueue on the device's stream: buffers must live until h3_dev_sync.
 *   - Activations are f32 or bf16 ("act"). bf16 is loaded, widened to f32, computed, rounded once at
 *     the end, unless the entry says otherwise. Small parameter vectors (norm gains, biases, scales)
 *     are dense f32, already widened. Index arrays are dense i32 tensors on the same memory as y.
 *   - The innermost stride is 1; outer strides are free unless "dense" is said.
 *   - "may alias" lists what may be the same memory; nothing else may overlap.
 *   - A tensor with data NULL means "absent" where the entry allows it.
 *   - Shapes are the caller's promise (asserted in debug builds); status is for devices and memory.
 */
#ifndef H3_TENSOR_OPS_H
#define H3_TENSOR_OPS_H

#include "tensor.h"
#include "weight.h"

typedef struct h3_dev h3_dev;

typedef enum h3_act {
    H3_ACT_NONE = 0,
    H3_ACT_SILU,
    H3_ACT_GELU_TANH, ///< 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    H3_ACT_GELU_ERF   ///< 0.5 x (1 + erf(x / sqrt(2)))
} h3_act;

typedef enum h3_pad { H3_PAD_ZERO = 0, H3_PAD_REFLECT = 1, H3_PAD_EDGE = 2 } h3_pad;

/** Geometry of a convolution over [C, T, H, W] (conv1d: T = H = 1). */
typedef struct h3_conv {
    int32_t kernel[3], stride[3], dilation[3]; ///< t, h, w
    int32_t pad_lo[3], pad_hi[3];              ///< how many cells are added before and after
    uint8_t pad_mode[3];                       ///< h3_pad per axis
} h3_conv;

/** Every entry once, for tables of names, counters and wrappers. */
#define H3_OPS(X)                                                                                  \
    /* Products */                                                                                 \
    X(gemm) X(embed)                                                                               \
    /* Norms */                                                                                    \
    X(rms_norm) X(layer_norm) X(rms_norm_mod) X(group_norm)                                        \
    /* Attention */                                                                                \
    X(head_norm_rope) X(qk_norm_rope) X(attention)                                                                 \
    /* Elementwise and rows */                                                                     \
    X(gate_add) X(gate_add_norm) X(scale_add) X(scale_add_norm) X(add) X(silu_mul) X(act) X(copy) X(gather_rows) X(scatter_rows)      \
    X(scatter_add_rows) X(axpby) X(affine_rows) X(clamp)                                           \
    /* Convolutions and audio */                                                                   \
    X(conv) X(conv_transpose1d) X(snake) X(snake_aa) X(transpose) X(mean_groups)                   \
    /* Video tiles */                                                                              \
    X(unpatchify) X(fade) X(to_u8)                                                                 \
    /* Sampler */                                                                                  \
    X(flow_step) X(check_finite)

typedef enum h3_op_id {
#define X(name) H3_OP_##name,
    H3_OPS(X)
#undef X
        H3_OP_COUNT
} h3_op_id;

typedef struct h3_ops {
    /**
     * y[s, n] = act(sum_k x[s, k] * w[n, k] + bias[n]).  x [S, K], y [S, N] act dtypes (may differ);
     * w as stored, any encoding; decoded exactly to f32 before the product. Parts of w fill
     * consecutive column ranges of y. The whole sum is f32 or wider; one rounding when y is bf16
     * (before `act` too when y is bf16: product and activation each round, as torch does).
     */
    h3_status (*gemm)(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w, h3_act act);

    /** y[i, :] = w[ids[i], :]. ids [n] i32, each in [0, rows). Only these rows are read. */
    h3_status (*embed)(h3_dev *d, h3_tensor y, const h3_weight *w, h3_tensor ids);

    /**
     * y = x / sqrt(mean(x^2) + eps) * g over the last axis; g [C] may be absent. May alias x.
     * `round_first`: with a bf16 y the normalised value is rounded before the gain and again after
     * it (the text tower's order); otherwise once at the end.
     */
    h3_status (*rms_norm)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                          bool round_first);

    /** y = (x - mean) / sqrt(var + eps) * g + b over the last axis (biased variance). May alias. */
    h3_status (*layer_norm)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                            float eps);

    /**
     * y[s] = rms_norm(x[s]) * g * (1 + mod[row[s], i_scale]) + mod[row[s], i_shift].
     * mod [R, P, C] act dtype; row [S] i32 in [0, R). bf16: the norm (with gain), 1 + scale, the
     * product and the sum each round. x, y [S, C]; may alias.
     */
    h3_status (*rms_norm_mod)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                              h3_tensor mod, int i_shift, int i_scale, h3_tensor row);

    /**
     * Group norm of x [C, T, H, W] f32, statistics over each group of C/groups channels of ONE frame
     * t, then * g[c] + b[c], then SiLU if `silu`. May alias.
     */
    h3_status (*group_norm)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                            int groups, float eps, bool silu);

    /**
     * In place on x [S, H, D] (any strides): if eps > 0 an RMS norm over D with gain g [D] (may be
     * absent), rounded to x's dtype; then, if cos is present, rotary embedding. cos, sin [S, R],
     * 2 R <= D: y[j] = x[j] c - x[j+R] s,  y[j+R] = x[j+R] c + x[j] s for j < R; channels from 2 R on
     * pass. cos/sin f32: computed in f32, rounded once. cos/sin bf16: each product and the sum round
     * to bf16. `round_first` as in rms_norm (before the gain).
     */
    h3_status (*head_norm_rope)(h3_dev *d, h3_tensor x, h3_tensor g, float eps, bool round_first,
                                h3_tensor cos, h3_tensor sin);

    /** head_norm_rope of q [S, H, D] and of k [S, Hk, D], each with its own gain, under one rotation:
     *  the same numbers in one pass. */
    h3_status (*qk_norm_rope)(h3_dev *d, h3_tensor q, h3_tensor k, h3_tensor gq, h3_tensor gk,
                              float eps, bool round_first, h3_tensor cos, h3_tensor sin);

    /**
     * o[i, h] = sum_j softmax_j(scale * q[i, h] . k[j, h / (H / Hk)]) v[j, ...] with j over the
     * segment of i (j <= i when causal). q, o [S, H, D]; k, v [S, Hk, D]; any strides. cu [n + 1] i32
     * ON THE HOST: segment boundaries, cu[0] = 0, cu[n] = S, empty segments allowed. Memory is linear
     * in S (online softmax). Scores, softmax and sums f32; with bf16 v the probabilities may be rounded
     * to bf16 before the second product.
     */
    h3_status (*attention)(h3_dev *d, h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v,
                           float scale, const int32_t *cu, int n_segments, bool causal);

    /** x[s] += mod[row[s], i_gate] * h[s]. bf16: product and sum each round. x, h [S, C]. */
    h3_status (*gate_add)(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor mod, int i_gate,
                          h3_tensor row);

    /**
     * gate_add of h to x with mod, then y = rms_norm_mod of the new x with next: the same numbers in
     * one pass over the rows. mod and next [R, P, C] may be one tensor. y may alias h, not x.
     */
    h3_status (*gate_add_norm)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor mod,
                               int i_gate, h3_tensor g, float eps, h3_tensor next, int i_shift,
                               int i_scale, h3_tensor row);

    /** x[s, c] += h[s, c] * g[c]; x f32 (or act), h act. g [C]. */
    h3_status (*scale_add)(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor g);

    /** scale_add(x, h, s), then y = rms_norm(x, g, eps): the same numbers in one pass over the rows.
     *  y may be h. */
    h3_status (*scale_add_norm)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor s,
                                h3_tensor g, float eps);

    /** y = a + b, same shape. May alias either. */
    h3_status (*add)(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b);

    /** y = silu(gate) * up. [S, F] each, any row strides. bf16: silu rounds, then the product. */
    h3_status (*silu_mul)(h3_dev *d, h3_tensor y, h3_tensor gate, h3_tensor up);

    /** y = act(x), same shape; dtypes may differ. May alias when dtypes agree. */
    h3_status (*act)(h3_dev *d, h3_tensor y, h3_tensor x, h3_act act);

    /** y = x with conversion (f32, bf16, f16 among each other; i32 to i32). Same shape, any strides.
     *  Not for crossing host and device: see h3_dev_upload/h3_dev_download. */
    h3_status (*copy)(h3_dev *d, h3_tensor y, h3_tensor x);

    /** y[i] = x[idx[i]];  y [n, C]. */
    h3_status (*gather_rows)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx);
    /** y[idx[i]] = x[i], converting. idx has no repeats. */
    h3_status (*scatter_rows)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx);
    /** y[idx[i]] += x[i]. idx has no repeats. */
    h3_status (*scatter_add_rows)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx);

    /** y = a * x + b * y, each product and the sum rounded on its own (no contraction). f32. */
    h3_status (*axpby)(h3_dev *d, h3_tensor y, float a, h3_tensor x, float b);

    /** y[c, ...] = x[c, ...] * a[c] + b[c] over axis 0 (latent denormalisation); product and sum
     *  rounded on their own. f32. May alias. */
    h3_status (*affine_rows)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b);

    /** y = min(max(x, lo), hi). f32. May alias. */
    h3_status (*clamp)(h3_dev *d, h3_tensor y, h3_tensor x, float lo, float hi);

    /**
     * Convolution: x [Ci, T, H, W] f32, w [Co, Ci * kt * kh * kw] (file order [Co, Ci, kt, kh, kw]),
     * y [Co, T', H', W'] with the geometry of c. Padding modes per axis; reflect does not repeat the
     * border. conv1d: x [Ci, 1, 1, N]. If `add` is present (same shape as y) it is added.
     */
    h3_status (*conv)(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w, const h3_conv *c,
                      h3_tensor add);

    /** Transposed conv1d: x [Ci, N], w [Ci, Co * k] (file order [Ci, Co, k]), bias [Co],
     *  y [Co, (N - 1) * stride + k - 2 * pad]. f32. */
    h3_status (*conv_transpose1d)(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                                  int kernel, int stride, int pad);

    /** y[c, n] = x + sin(a[c] x)^2 / (b[c] + 1e-9), a and b already exponentiated. f32, may alias. */
    h3_status (*snake)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b);

    /**
     * Anti-aliased snake: upsample by 2 with the 12-tap filter `up` (edge padding 5, transposed
     * stride 2, times 2, cut 15), snake, low-pass with `down` and drop every second sample (edge
     * padding 5 left, 6 right). x, y [C, N] f32; up, down [12] f32. Fused: the doubled signal is never
     * stored whole. Must not alias.
     */
    h3_status (*snake_aa)(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b,
                          h3_tensor up, h3_tensor down);

    /** y[j, i] = x[i, j]. 2-D, act dtypes (may differ). */
    h3_status (*transpose)(h3_dev *d, h3_tensor y, h3_tensor x);

    /** y[s, j] = mean over h and over the channels of group j of x[s, h, c]; first the mean over h,
     *  then the mean over the group, which is c from floor(j C/J) to ceil((j + 1) C/J): C/J channels
     *  each, or neighbours that share one (torch's adaptive average pooling). x [S, H, C], y [S, J]. f32. */
    h3_status (*mean_groups)(h3_dev *d, h3_tensor y, h3_tensor x);

    /**
     * Rows of the ViT head to pixels: x [T*H*W, 3*pt*p*p] (row order t, h, w; column
     * ((colour*pt + frame)*p + y)*p + x) -> y [3, T*pt, H*p, W*p] f32 (any outer strides).
     */
    h3_status (*unpatchify)(h3_dev *d, h3_tensor y, h3_tensor x, int64_t t, int64_t h, int64_t w,
                            int pt, int p);

    /**
     * Linear fade along `axis`: for i < n: y[i] = a[i] * (1 - i/n) + y[i] * (i/n); a and y have
     * extent >= n there (index 0 of each is the first faded line) and agree elsewhere. Ramp values
     * are (float)i / (float)n. Rank 4, f32, in place on y.
     */
    h3_status (*fade)(h3_dev *d, h3_tensor y, h3_tensor a, int axis, int64_t n);

    /** Normalised RGB x [3, F, H, W] f32 -> y [F, H, W, 3] u8: clamp(x*std + mean, 0, 1) * 255, each
     *  step rounded to f32, half to even. mean, std: 3 host floats each. */
    h3_status (*to_u8)(h3_dev *d, h3_tensor y, h3_tensor x, const float *mean, const float *std);

    /** One flow-matching step in place: x0 = x + sigma * v; x = ratio * x + (1 - ratio) * x0; every
     *  product, sum and 1 - ratio rounded to f32 on its own. x, v [N, C] f32. */
    h3_status (*flow_step)(h3_dev *d, h3_tensor x, h3_tensor v, float sigma, float ratio);

    /** Sets *bad (a host int, valid after h3_dev_sync) to 1 when x holds NaN or infinity; leaves it
     *  otherwise. A GPU waits for the answer, unless `bad` lies in memory of h3_dev.pin. */
    h3_status (*check_finite)(h3_dev *d, h3_tensor x, int *bad);
} h3_ops;

/** "gemm", "attention", ... */
const char *h3_op_name(h3_op_id id);

/** Fills every entry with the plain C definition. */
void h3_ops_ref_init(h3_ops *op);
/** Fills every entry with the counting version: computes nothing, touches no data. */
void h3_ops_plan_init(h3_ops *op);

#endif
