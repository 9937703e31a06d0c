/**
 * Private to the CUDA backend: what it keeps for a device, and the doors between its files.
 *
 *   open.c       the device: memory, copies, streams, the table
 *   queue.c      copies beside computing
 *   record.c     a whole step as one call
 *   weight.c     weights as the products need them: companions uploaded, other encodings decoded
 *   blas.c       one matrix product through cuBLASLt, algorithms chosen by measurement
 *   gemm.c       the entries gemm and embed
 *   sdpa.c       the entry attention: our own kernels or cuDNN
 *   dnn.c        attention by cuDNN: plans of its graphs
 *   conv.c       convolutions as products
 *   rows.c       every other entry: views of tensors handed to kernels
 *   *.cu         kernels behind a C interface (kernels.h)
 *
 * Everything but the copies of queue.c runs on one stream in the order of the calls. Memory comes
 * from plain cudaMalloc: a run's tensors live in the arena, so the loop allocates nothing.
 */
#ifndef H3_CUDA_CUDA_H
#define H3_CUDA_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "dev.h"
#include "kernels.h"

typedef enum h3_cuda_math {
    H3_CUDA_AUTO = 0, ///< 16-bit activations: tensor cores of that type; f32 activations: f32
    H3_CUDA_F32,      ///< every product in f32, weights widened exactly
    H3_CUDA_TF32,     ///< as auto, but f32 products in TF32
    H3_CUDA_FP8       ///< as auto, but bf16 products of large blocks in e4m3, attention too
} h3_cuda_math;

/** How often each way was taken; h3_cuda_report prints them. */
typedef enum h3_cuda_count {
    H3_CUDA_N_LT,         ///< products by cuBLASLt
    H3_CUDA_N_LT_FP8,     ///< of these in e4m3
    H3_CUDA_N_LINE,       ///< convolutions of lines by our tensor core kernel
    H3_CUDA_N_PLAIN,      ///< products by our own kernel (shapes that cuBLASLt refuses)
    H3_CUDA_N_DECODED,    ///< weights decoded or converted for one product
    H3_CUDA_N_SDPA,       ///< attention by cuDNN
    H3_CUDA_N_SDPA_FP8,   ///< of these in e4m3
    H3_CUDA_N_SDPA90,     ///< attention by our kernels for Hopper
    H3_CUDA_N_SDPA90_FP8, ///< of these in e4m3
    H3_CUDA_N_FLASH,      ///< attention by our tensor core kernel
    H3_CUDA_N_SIMT,       ///< attention by our f32 kernel
    H3_CUDA_N_LAUNCHES,   ///< kernels of our own
    H3_CUDA_N_REPLAYS,    ///< recordings run as one call
    H3_CUDA_N_NODES,      ///< kernels, copies and fills in the last recording
    H3_CUDA_N_COUNTS
} h3_cuda_count;

enum { H3_CUDA_LANES = 16 }; ///< threads that bring what is uploaded, at most

typedef struct h3_lt_cache h3_lt_cache;     ///< blas.c
typedef struct h3_sdpa_cache h3_sdpa_cache; ///< sdpa.c
typedef struct h3_dnn_plan h3_dnn_plan;     ///< dnn.c

/** What alloc handed out (open.c). */
typedef struct h3_cuda_blocks {
    struct block *at;
    int n, cap;
} h3_cuda_blocks;

/** A buffer that grows to the largest call and stays. */
typedef struct h3_cuda_buffer {
    void *p;
    size_t bytes;
} h3_cuda_buffer;

/** Rows of a bf16 tensor that wait as e4m3, in the memory of the tensor itself, for the one product
 *  that reads them (h3_dev.reader): row r at byte r * ld, its scale in scales[r]. */
typedef struct h3_rows8 {
    unsigned char *data;
    int64_t rows, cols, ld;
    int64_t left; ///< rows that were not read yet; 0: the slot is free
    const h3_weight *reader;
    h3_cuda_buffer scales;
} h3_rows8;

struct h3_backend {
    int index;
    struct cudaDeviceProp prop;
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *cudnn; ///< cudnnHandle_t, or NULL when the library cannot be used
    h3_lt_cache *lt_cache;
    h3_sdpa_cache *sdpa_cache;
    h3_dnn_plan *dnn_plans; ///< the newest first
    h3_cuda_math math;
    struct h3_cuda_queues *queues; ///< queue.c
    h3_cuda_blocks blocks;
    size_t allocated, peak; ///< device bytes by alloc and by the buffers below
    uint64_t uploaded;
    h3_cuda_buffer lt_work;    ///< cuBLASLt
    h3_cuda_buffer sdpa_work;  ///< cuDNN
    h3_cuda_buffer operand;    ///< a decoded weight
    h3_cuda_buffer columns;    ///< unfolded convolution input, or a product before its epilogue
    h3_cuda_buffer wide;       ///< weights and results of an f64 convolution
    h3_cuda_buffer quant[2];   ///< rows in e4m3, and their scales
    h3_cuda_buffer attn8;      ///< q, k, v in e4m3
    h3_cuda_buffer passing[2]; ///< a passing weight in e4m3, and its scales
    /* upload: two pinned buffers a lane, one is filled by the host while the other one travels */
    unsigned char *stage[2 * H3_CUDA_LANES];
    cudaEvent_t stage_free[2 * H3_CUDA_LANES];
    int *flag; ///< mapped host memory: a kernel's answer to check_finite
    uint64_t counts[H3_CUDA_N_COUNTS];
    uint64_t generation; ///< memory given back so far; recordings of an older one are worth nothing
    h3_recording *record; ///< under way (record.c), or NULL
    uint64_t op;          ///< number of the entry being run, for short-lived results (see heads8)
    h3_rows8 rows8[3];
    struct { ///< q and k whose e4m3 forms the operation before attention left in attn8
        const void *q, *k;
        uint64_t op;
        int64_t S, H, D, st_s, st_h;
    } heads8;
    int64_t
        fp8_rows;   ///< from how many on e4m3 pays; H3_CUDA_FP8_ROWS sets it, for measuring errors
    int capability; ///< 90 for sm_90
    bool has_attention90; ///< Hopper: our own kernels where they can; H3_ATTENTION90=off says no
    bool has_f64; ///< f64 at half the speed of f32 or better: sm_80, 90, 100, not their small
                  ///< siblings
};

/** H3_E_DEVICE (or H3_E_NOMEM) with CUDA's own words. */
h3_status h3_cuda_failed(cudaError_t e, const char *what);
#define H3_CUDA_TRY(expr)                                        \
    do {                                                         \
        const cudaError_t e_ = (expr);                           \
        if (e_ != cudaSuccess) return h3_cuda_failed(e_, #expr); \
    } while (0)
/** A launch through kernels.h: counted, its error named. */
#define H3_LAUNCH(d, call)                          \
    do {                                            \
        (d)->backend->counts[H3_CUDA_N_LAUNCHES]++; \
        H3_CUDA_TRY(call);                          \
    } while (0)

/** At least `bytes` in `b`; contents undefined. Waits for the device when it has to grow. */
h3_status h3_cuda_grow(h3_dev *d, h3_cuda_buffer *b, size_t bytes);

h3_status h3_cuda_alloc(h3_dev *d, void **out, size_t bytes);
void h3_cuda_dealloc(h3_dev *d, void *p);
/** Until the device has done all that it was given. Where ranks work together their links take
 * part: a wait of the stream alone would not end when one of them is gone. */
h3_status h3_cuda_wait(h3_dev *d);
h3_status h3_cuda_upload(h3_dev *d, void *dst, const void *src, size_t bytes);

/** A tensor as kernels take it. Outer axes that lie evenly are merged. */
h3_rows h3_cuda_view(h3_tensor t);

/** Fails by name when the kernels of this build do not run on the device. */
h3_status h3_cuda_probe(h3_dev *d);

/* ---- queue.c ---- */
h3_status h3_cuda_queues_open(h3_dev *d);
void h3_cuda_queues_close(h3_dev *d);

/* ---- record.c ---- */
/** The doors of recordings; H3_CUDA_GRAPH=off leaves them out. */
void h3_cuda_fill_recording(h3_dev *d);
/** Fails while a recording is under way: `what` would not be run again with it. */
h3_status h3_cuda_not_recording(const h3_dev *d, const char *what);

/* ---- weight.c ---- */

/** The matrix of part `i` of `w`, dtype `want`, row-major with leading dimension cols. Points into
 *  the device's copy of the file when that has the type already, else into b->operand (valid until
 *  the next call) or a copy that is kept with the weight. Rows [row, row + n) of the part. */
h3_status h3_cuda_matrix(h3_dev *d, const h3_weight *w, int i, h3_dtype want, int64_t row,
                         int64_t n, const void **out);
/** The whole weight in one piece. */
h3_status h3_cuda_whole(h3_dev *d, const h3_weight *w, h3_dtype want, const void **out);
/** Part `i` as e4m3 with one scale a row, quantised on first use and kept; of a passing weight for
 *  one product only. */
h3_status h3_cuda_matrix_fp8(h3_dev *d, const h3_weight *w, int i, const void **out,
                             const float **scales);
/** The weight of a convolution of lines as h3_k_line takes it, packed on first use and kept. */
h3_status h3_cuda_line_weight(h3_dev *d, const h3_weight *w, int64_t ci, int taps, const void **out,
                              const float **scales);
/** A copy of the bias in type `t` in *out: when it survives the rounding, or `may_round`; else
 * NULL. */
h3_status h3_cuda_bias(h3_dev *d, const h3_weight *w, h3_dtype t, bool may_round, const void **out);
/** True when every part already lies on the device as a plain matrix of dtype `t`. */
bool h3_cuda_is_plain(const h3_weight *w, int i, h3_dtype t);
/** The doors h3_dev.form and reform. */
h3_dtype h3_cuda_form(const h3_dev *d, const h3_weight *w, h3_dtype act, int64_t rows,
                      bool is_tolerant);
h3_status h3_cuda_reform(h3_dev *d, const h3_weight *w);
/** Description of part `i` for the decoding kernel. */
h3_status h3_cuda_part(h3_dev *d, const h3_weight *w, int i, h3_part *out);
void h3_cuda_weight_free(h3_dev *d, h3_weight *w);

/* ---- blas.c ---- */

/** y[m, n] = x[m, k] w[n, k]^T in row-major terms; transposed forms by flags. */
typedef struct h3_mm {
    int64_t m, n, k;
    const void *x, *w;
    void *y;
    int64_t n_whole;       ///< columns of the whole product this is a piece of; 0: n
    int64_t ldx, ldw, ldy; ///< elements from row to row
    uint8_t tx, tw, ty;    ///< h3_dtype; F8_E4M3 for x and w together, F64 for all three
    bool x_is_t;           ///< x is stored [k, m]
    bool w_is_t;           ///< w is stored [k, n]
    bool adds;             ///< y += instead of y =
    const void *bias;      ///< [n], dtype of y, or NULL
    const float *sx, *sw;  ///< e4m3: scale of each row of x, of each row of w
} h3_mm;

/** *done is false when cuBLASLt has nothing for these shapes; then nothing was enqueued. */
h3_status h3_cuda_lt(h3_dev *d, const h3_mm *mm, bool *done);
/** cuBLASLt, or our own kernel when it refuses (not for e4m3 and f64). */
h3_status h3_cuda_mm(h3_dev *d, const h3_mm *mm);
h3_status h3_lt_open(h3_dev *d);
void h3_lt_close(h3_dev *d);

/* ---- sdpa.c ---- */
h3_status h3_sdpa_open(h3_dev *d);
/** Where q and k (about to be normed and rotated) leave their e4m3 forms for the attention that
 *  follows and alone reads them; q8 NULL when that will not want it. */
h3_status h3_cuda_offer_heads8(h3_dev *d, h3_head_pair *p);
void h3_sdpa_close(h3_dev *d);

/* ---- gemm.c ---- */

/** Under math fp8: true when a product of S rows (over all bands and ranks) with w goes in e4m3:
 *  large ones, with a bias only where the caller bears it. */
bool h3_cuda_takes_e4m3(const h3_dev *d, int64_t S, const h3_weight *w, bool is_tolerant);

/** A slot for y [S, C], which the entry being run is about to write, when y may be left in e4m3
 *  alone (is_dense: row after row, else each in its own place); NULL when not. Whatever waited in
 *  the memory of y is forgotten. */
h3_status h3_cuda_offer_rows8(h3_dev *d, h3_tensor y, bool is_dense, h3_rows8 **out);

/* Each file's entries of the table. */
void h3_cuda_fill_products(h3_ops *op);
void h3_cuda_fill_attention(h3_ops *op);
void h3_cuda_fill_convolutions(h3_ops *op);
void h3_cuda_fill_rows(h3_ops *op);

/** A few lines: which libraries, how often each way was taken, memory. For bench and tests. */
void h3_cuda_report(const h3_dev *d, FILE *to);

#endif
