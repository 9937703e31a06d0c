/**
 * Kernels of the CUDA backend, as C sees them: every function enqueues on a stream and returns the
 * launch's error. Shapes were checked by the caller. Device pointers throughout.
 */
#ifndef H3_CUDA_KERNELS_H
#define H3_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A matrix of rows: outer axes (merged where they lie evenly) and contiguous columns. */
typedef struct h3_rows {
    void *p; ///< NULL: absent
    int64_t rows, cols;
    int64_t ne[4], st[4]; ///< the n outer axes, outermost first, strides in elements
    int32_t n;
    uint8_t dtype; ///< h3_dtype
} h3_rows;

/** Device side of a weight part; see weight.h for the fields' meaning. */
typedef struct h3_part {
    const void *data;
    int64_t rows, cols, row_bytes, row0, full_rows, first; ///< first: row of the part in the weight
    int64_t n_scale;
    const void *scale, *scale2, *aux;
    const float *corr, *in_scale;
    float global;
    int32_t group, block, n_lora;
    uint8_t encoding, ggml_type, nibble_high, swizzled;
    const struct h3_dev_lora *lora; ///< [n_lora] on the device
} h3_part;

/** One adapter of a weight, on the device: a [rank, cols] and b [n, rank] as f32. */
typedef struct h3_dev_lora {
    const float *a, *b;
    int64_t row0, b_rows, weight_rows, rank;
    int32_t head;
    uint8_t map, slot;
    float scale;
} h3_dev_lora;

/** Loads a kernel of this build for the current device. */
cudaError_t h3_k_probe(void);

/* decode.cu */

/** Rows of a part to f32, bf16 or f16, [n, cols] dense. Row i is ids[i] when ids is given (rows of
 *  the part outside [0, rows) are skipped), else row + i. Input scales and adapters included. */
cudaError_t h3_k_decode(cudaStream_t s, h3_rows y, const h3_part *p, int64_t row,
                        const int32_t *ids);
/** dtype to dtype, dense: f32, bf16, f16. */
cudaError_t h3_k_convert(cudaStream_t s, void *y, uint8_t ty, const void *x, uint8_t tx, int64_t n);
/** Rows to e4m3 with scale amax / 448 each (1 for a row of zeros): y [rows, cols] dense. */
cudaError_t h3_k_quantise(cudaStream_t s, void *y, float *scale, h3_rows x);
/** Sets *flag to 1 unless all n values of x survive rounding to dtype t. */
cudaError_t h3_k_survives(cudaStream_t s, int *flag, const float *x, int64_t n, uint8_t t);

/** h3_dev.scan; `kind` is an h3_scan. */
cudaError_t h3_k_scan(cudaStream_t s, const void *p, int kind, size_t stride, size_t n, int *bad);

/* rows.cu, norms.cu, heads.cu: the entries of ops.h with the same names */

cudaError_t h3_k_rms_norm(cudaStream_t s, h3_rows y, h3_rows x, const float *g, float eps,
                          bool round_first);
cudaError_t h3_k_layer_norm(cudaStream_t s, h3_rows y, h3_rows x, const float *g, const float *b,
                            float eps);
/** mod: element 0 of [R, P, C] with strides st_r, st_p. */
typedef struct h3_mod {
    const void *p;
    const int32_t *row;
    int64_t st_r;
    int64_t shift, scale; ///< offsets of the two vectors inside a row (gate: shift)
    uint8_t dtype;
} h3_mod;
/** q: where the rows go in e4m3 instead of y, at a distance of ldq, with a scale each in qs; NULL:
 *  to y. Only where h3_k_norm_fits_e4m3 (h, gate: absent for the first). */
cudaError_t h3_k_rms_norm_mod(cudaStream_t s, h3_rows y, h3_rows x, const float *g, float eps,
                              h3_mod mod, void *q, float *qs, int64_t ldq);
cudaError_t h3_k_gate_add_norm(cudaStream_t s, h3_rows y, h3_rows x, h3_rows h, h3_mod gate,
                               const float *g, float eps, h3_mod mod, void *q, float *qs,
                               int64_t ldq);
bool h3_k_norm_fits_e4m3(h3_rows y, h3_rows x, h3_rows h, const float *g, h3_mod gate, h3_mod mod);
cudaError_t h3_k_group_norm(cudaStream_t s, float *y, const int64_t y_st[3], const float *x,
                            const int64_t x_st[3], const int64_t ne[4], const float *g,
                            const float *b, int groups, float eps, bool silu);
cudaError_t h3_k_head_norm_rope(cudaStream_t s, void *x, uint8_t dtype, const int64_t ne[3],
                                const int64_t st[2], const float *g, float eps, bool round_first,
                                h3_rows cos, h3_rows sin);
/** head_norm_rope of q and k at once, where h3_k_fits_pair. q8, k8: dense e4m3 goes there instead,
 *  by a factor that the norm promises to be enough, and what undoes it; NULL: in place. */
typedef struct h3_head_pair {
    void *q, *k;
    int64_t ne[3], q_st[2], k_st[2];
    const float *gq, *gk;
    float eps;
    uint8_t dtype;
    bool round_first, is_even; ///< is_even: k has as many heads
    h3_rows cos, sin;
    void *q8, *k8;
    float *q_descale, *k_descale;
} h3_head_pair;
bool h3_k_fits_pair(const h3_head_pair *p);
cudaError_t h3_k_head_pair(cudaStream_t s, const h3_head_pair *p);
cudaError_t h3_k_gate_add(cudaStream_t s, h3_rows x, h3_rows h, h3_mod mod);
cudaError_t h3_k_scale_add(cudaStream_t s, h3_rows x, h3_rows h, const float *g);
/* vit.cu; only where the functions called fit say so. */
/** q: where y goes in e4m3 instead, as in h3_k_rms_norm_mod. */
cudaError_t h3_k_scale_add_norm(cudaStream_t stream, h3_rows y, h3_rows x, h3_rows h,
                                const float *s, const float *g, float eps, void *q, float *qs,
                                int64_t ldq);
bool h3_k_scale_add_norm_fits(h3_rows y, h3_rows x, h3_rows h, const float *s, const float *g);
/** Heads of q or k in place: p [S, n, D] with strides in elements. */
typedef struct h3_heads {
    void *p;
    int64_t n, st_s, st_h;
} h3_heads;
/** qk_norm_rope without gains under f32 tables. */
cudaError_t h3_k_heads(cudaStream_t stream, const h3_heads *q, const h3_heads *k, int64_t S,
                       int64_t D, uint8_t dtype, float eps, h3_rows cos, h3_rows sin);
bool h3_k_heads_fit(const h3_heads *q, const h3_heads *k, int64_t D, uint8_t dtype, float eps,
                    h3_rows cos, h3_rows sin);
cudaError_t h3_k_add(cudaStream_t s, h3_rows y, h3_rows a, h3_rows b);
cudaError_t h3_k_silu_mul(cudaStream_t s, h3_rows y, h3_rows gate, h3_rows up);
/** The same with rows in e4m3 only, as above; where h3_k_silu_fits_e4m3. */
cudaError_t h3_k_silu_e4m3(cudaStream_t s, h3_rows gate, h3_rows up, void *q, float *qs,
                           int64_t ldq);
bool h3_k_silu_fits_e4m3(h3_rows gate, h3_rows up);
cudaError_t h3_k_act(cudaStream_t s, h3_rows y, h3_rows x, int act, const float *bias,
                     bool rounds_first);
cudaError_t h3_k_copy(cudaStream_t s, h3_rows y, h3_rows x);
cudaError_t h3_k_gather(cudaStream_t s, h3_rows y, h3_rows x, const int32_t *idx);
cudaError_t h3_k_scatter(cudaStream_t s, h3_rows y, h3_rows x, const int32_t *idx, bool adds);
cudaError_t h3_k_axpby(cudaStream_t s, h3_rows y, float a, h3_rows x, float b);
/** per: rows of the view that share an entry of a and b; 0: one entry a column. */
cudaError_t h3_k_affine(cudaStream_t s, h3_rows y, h3_rows x, const float *a, const float *b,
                        int64_t per);
cudaError_t h3_k_clamp(cudaStream_t s, h3_rows y, h3_rows x, float lo, float hi);
cudaError_t h3_k_flow_step(cudaStream_t s, h3_rows x, h3_rows v, float sigma, float ratio);
cudaError_t h3_k_finite(cudaStream_t s, h3_rows x, int *flag);
cudaError_t h3_k_transpose(cudaStream_t s, h3_rows y, h3_rows x);
cudaError_t h3_k_mean_groups(cudaStream_t s, float *y, int64_t y_st, const float *x,
                             const int64_t ne[3], const int64_t st[2], int64_t groups);
cudaError_t h3_k_unpatchify(cudaStream_t s, float *y, const int64_t y_st[3], h3_rows x, int64_t t,
                            int64_t h, int64_t w, int pt, int p);
cudaError_t h3_k_fade(cudaStream_t s, float *y, const int64_t y_st[3], const float *a,
                      const int64_t a_st[3], const int64_t ne[4], int axis, int64_t n);
cudaError_t h3_k_to_u8(cudaStream_t s, uint8_t *y, const int64_t y_st[3], const float *x,
                       const int64_t x_st[3], const int64_t ne[3], const float *mean,
                       const float *std);

/* conv.cu */

/** What the unfolding needs of a convolution over [C, T, H, W]. */
typedef struct h3_unfold {
    const float *x;
    int64_t x_st[3], x_ne[3]; ///< strides of c, t, h; extents t, h, w
    int64_t y_ne[3];          ///< output extents t, h, w
    int32_t kernel[3], stride[3], dilation[3], pad[3];
    uint8_t mode[3];
} h3_unfold;
/** cols [Ci * taps, n]: column i is output position first + i. */
cudaError_t h3_k_unfold(cudaStream_t s, float *cols, const h3_unfold *u, int64_t channels,
                        int64_t first, int64_t n);
cudaError_t h3_k_unfold_f64(cudaStream_t s, double *cols, const h3_unfold *u, int64_t channels,
                            int64_t first, int64_t n);
cudaError_t h3_k_widen(cudaStream_t s, double *y, const float *x, int64_t n);
/** y [rows, n] as f32 with distance ld = x [rows, n] + bias[row], rounded once. */
cudaError_t h3_k_narrow(cudaStream_t s, float *y, int64_t ld, const double *x, const float *bias,
                        int64_t rows, int64_t n);
/** y[c, p] += bias[c] + add[c, p]; views of [Co, T, H, W]. Either may be absent. */
cudaError_t h3_k_conv_finish(cudaStream_t s, h3_rows y, h3_rows add, const float *bias,
                             int64_t rows_per_channel);
/** y [co, n] = bias + what reaches n: cols [co * kernel, m]. */
cudaError_t h3_k_fold1d(cudaStream_t s, h3_rows y, const float *cols, int64_t m, const float *bias,
                        int kernel, int stride, int pad);
cudaError_t h3_k_snake(cudaStream_t s, h3_rows y, h3_rows x, const float *a, const float *b);
cudaError_t h3_k_snake_aa(cudaStream_t s, h3_rows y, h3_rows x, const float *a, const float *b,
                          const float *up, const float *down);

/* line.cu: convolutions of lines on tensor cores, f32 by halves */

typedef struct h3_line {
    const float *x, *add; ///< [ci, n], [co, n_out] or NULL
    float *y;             ///< [co, n_out]
    float *part;          ///< [splits, co, n_out], where splits > 1
    const void *w;        ///< packed by h3_k_line_pack
    const float *scale, *bias;
    int64_t x_st, y_st, add_st, n, n_out;
    int32_t co, ci, taps, dilation, pad, splits;
} h3_line;
/** Into how many shares of its channels a convolution is best divided on a GPU of `sms`. */
int h3_k_line_splits(int64_t co, int64_t ci, int64_t n_out, int sms);
bool h3_k_line_fits(int64_t co, int64_t ci, int64_t taps, int64_t dilation, int64_t n);
size_t h3_k_line_bytes(int64_t co, int64_t ci, int taps);
/** w [co, ci * taps] f32 to `out`, one factor a row to scale [co]. */
cudaError_t h3_k_line_pack(cudaStream_t s, void *out, float *scale, const float *w, int64_t co,
                           int64_t ci, int taps);
cudaError_t h3_k_line(cudaStream_t s, const h3_line *a);

/* matmul.cu: what cuBLASLt refuses. y[m, n] = x w^T (+ bias), f32 sums. */
typedef struct h3_plain_mm {
    int64_t m, n, k, x_r, x_c, w_r, w_c, y_r; ///< strides of rows and columns of x, w; rows of y
    const void *x, *w, *bias;
    void *y;
    uint8_t tx, tw, ty;
    bool adds;
} h3_plain_mm;
cudaError_t h3_k_matmul(cudaStream_t s, const h3_plain_mm *mm);

/* attention.cu */
typedef struct h3_attn {
    const void *q, *k, *v;
    void *o;
    int64_t q_s, q_h, k_s, k_h, v_s, v_h, o_s, o_h; ///< strides of rows and heads
    int32_t heads, kv_heads, dim, n_segments;
    const int32_t *cu; ///< [n_segments + 1] on the device
    int32_t longest;   ///< rows of the longest segment
    float scale;
    bool causal;
    uint8_t dtype;
} h3_attn;
/** f32, any head size up to 512. */
cudaError_t h3_k_attention_f32(cudaStream_t s, const h3_attn *a);
/** bf16 or f16 on tensor cores (sm_80 and later), head sizes up to 256 in multiples of 8, 16-byte
 *  aligned rows. */
cudaError_t h3_k_attention_mma(cudaStream_t s, const h3_attn *a);
/** Up to three tensors of bf16 heads [S, H, D] that become dense e4m3; D a multiple of 8. */
typedef struct h3_heads8_one {
    const void *x;
    void *y;
    unsigned *amax; ///< float bits
    float *descale;
    int64_t st_s, st_h, H;
} h3_heads8_one;
typedef struct h3_heads8 {
    h3_heads8_one of[3];
    int64_t S, D;
    int32_t n;
} h3_heads8;
/** *amax = max(*amax, |x|) for each. */
cudaError_t h3_k_amax(cudaStream_t s, const h3_heads8 *a);
/** *descale = amax / 448 for each; *scale = 1 / the last of them, rows[i] = it for i < n. */
cudaError_t h3_k_descale(cudaStream_t s, const h3_heads8 *a, float *scale, float *rows, int64_t n);
/** y = x * 448 / amax for each. */
cudaError_t h3_k_heads_e4m3(cudaStream_t s, const h3_heads8 *a);
/* sdpa90.cu: attention over one document, heads of 128, on Hopper. Strides in elements. */
enum { H3_ATTN90_HEAD = 128, H3_ATTN90_TURNED = 128 };
typedef struct h3_attn90 {
    const void *q, *k, *v; ///< [S, H, 128], [S, Hk, 128]; v in e4m3 as h3_k_turn_e4m3 leaves it
    void *o;               ///< [S, H, 128]; in e4m3 in units of v
    int64_t q_s, q_h, k_s, k_h, v_s, v_h, o_s, o_h;
    int64_t S, H, Hk; ///< H a multiple of Hk
    float scale;
    const float *q_descale, *k_descale; ///< e4m3; NULL: everything is bf16
} h3_attn90;
/** False for other GPUs than Hopper. */
bool h3_k_has_attention90(int capability);
cudaError_t h3_k_attention90(cudaStream_t s, const h3_attn90 *a);
/** y [H, 128, S rounded up to H3_ATTN90_TURNED] = x * 448 / *amax turned, the keys of each 32 in
 * the order that h3_k_attention90 wants, those past S 0. */
cudaError_t h3_k_turn_e4m3(cudaStream_t s, const h3_heads8_one *v, int64_t S);
/** y [rows, cols] = x * *scale for e4m3 x. cols a multiple of 8. */
cudaError_t h3_k_from_e4m3(cudaStream_t s, void *y, uint8_t dtype, const void *x, int64_t rows,
                           int64_t cols, const float *scale);

#ifdef __cplusplus
}
#endif
#endif
