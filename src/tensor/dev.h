/**
 * A device: an operation table, its memory, its scratch arena, its counters and taps.
 *
 * Devices are opened by name: "ref" (plain C), "cpu", "cuda" (with an index: "cuda:1"), "plan"
 * (counts only). dev.c is the only file that knows which backends exist.
 */
#ifndef H3_TENSOR_DEV_H
#define H3_TENSOR_DEV_H

#include <stdio.h>

#include "arena.h"
#include "cancel.h"
#include "ops.h"

/** Per operation, since h3_dev_counters_reset. */
typedef struct h3_op_stat {
    uint64_t calls;
    double flops, bytes; ///< as defined by the shapes, not by the implementation
    double seconds;      ///< filled only when h3_dev.is_timing
    uint64_t ref_calls;  ///< how many of the calls ran the reference definition on a fast device
} h3_op_stat;

typedef struct h3_backend h3_backend;     ///< what a backend keeps for itself
typedef struct h3_recording h3_recording; ///< operations that a device runs again as one
struct h3_comm;                           ///< ranks (comm.h)

/** Queues of a device with memory of its own. Within one, work runs in the order of the calls. */
typedef enum h3_queue {
    H3_QUEUE_COMPUTE = 0, ///< operations, upload and download
    H3_QUEUE_COPY,        ///< copy_in
    H3_QUEUE_HOST         ///< the caller; only waits
} h3_queue;

enum { H3_DEV_MARKS = 64 };

/** Numbers in the bytes of a weight, and what makes one of them impossible. */
typedef enum h3_scan {
    H3_SCAN_F32 = 0, ///< above 1e15, infinity, NaN
    H3_SCAN_BF16,    ///< the same
    H3_SCAN_F16,     ///< infinity, NaN
    H3_SCAN_E4M3     ///< NaN
} h3_scan;

/** What weights were brought where the device computes, since it was opened. */
typedef struct h3_load_stat {
    uint64_t files;     ///< that hold bound matrices, opened again or not
    uint64_t tensors;   ///< matrices, counted when their group comes the first time
    uint64_t direct;    ///< of these: all bytes as they lie in the file
    uint64_t converted; ///< the others: multiplied out or decoded on the host before
    uint64_t bytes;     ///< brought, again and again where they stream
    double seconds;     ///< in which the caller waited for that
} h3_load_stat;

/** Sees intermediate tensors by name; the tensor is host memory, valid during the call. */
typedef void (*h3_tap_fn)(void *user, const char *name, h3_tensor t);

struct h3_dev {
    const h3_ops *ops; ///< what networks call: counts, checks, then the backend's entry
    h3_ops impl;       ///< the backend's own entries
    char name[32];     ///< "cpu", "cuda:0", ...
    char detail[160];  ///< what it runs on, e.g. "AVX-512, 2 threads, oneDNN 2.6.3"
    uint8_t mem;       ///< h3_mem of its tensors
    bool is_plan, is_timing;
    int n_threads;
    int n_units; ///< pieces of 128 x 256 results of a product that are worked on at once; 0: any
    h3_arena scratch; ///< activations; empty until h3_dev_scratch
    /** Bytes of weights that may stay resident where the device computes (its own memory, or mapped
     *  pages of a host device); the store streams the rest. 0: no limit. Read when a store is made.
     */
    size_t weight_budget;
    /** Pinned host memory that stores may fill with streamed weights, and how much of it they have.
     */
    size_t pinned_budget, pinned_used;
    bool spreads_weights; ///< over the ranks of `comm`, where a store allows it
    bool is_from_disk;    ///< streamed weights leave the system's file cache behind them
    h3_op_stat stat[H3_OP_COUNT];
    bool is_ref[H3_OP_COUNT]; ///< the entry is still the reference one
    h3_tap_fn tap;
    void *tap_user;
    char tap_prefix[64];
    const h3_cancel_flag *cancel;
    h3_backend *backend;
    size_t window;        ///< plan devices: bytes that were asked of h3_comm_window
    struct h3_comm *comm; ///< the ranks this device works with; NULL: none. Not owned
    void *stream;         ///< cudaStream_t of a GPU: where exchanges are enqueued
    /** Rows of a product over all ranks and bands, 0: those of x. A backend that picks its way by
     *  the number of rows picks by this one, so that sums do not depend on how rows are split. */
    int64_t whole_rows;
    /** The caller's word that what the next operation writes is read by nothing but the product
     * with this weight (or, h3_reader_attention, by the attention that follows), row by row and
     * once: a backend that reads another form there may leave only that. NULL: anyone may read. */
    const h3_weight *reader;
    /** What is computed now bears coarse products even with a bias: a backend that was asked for
     * such (CUDA's math fp8) takes them there too. */
    bool is_tolerant;
    /* Filled by the backend; NULL entries mean host memory and immediate execution. */
    h3_status (*alloc)(h3_dev *d, void **out, size_t bytes);
    void (*dealloc)(h3_dev *d, void *p);
    h3_status (*upload)(h3_dev *d, void *dst, const void *src, size_t bytes);
    h3_status (*download)(h3_dev *d, void *dst, const void *src, size_t bytes);
    h3_status (*sync)(h3_dev *d);
    void (*weight_free)(h3_dev *d, h3_weight *w); ///< frees w->packed
    void (*close)(h3_dev *d);
    /* Copies beside computing, for the ring of the weight store; all of them or none. Callable from
     * any thread. */
    h3_status (*pin)(h3_dev *d, void **out, size_t bytes); ///< host memory that copies start from
    void (*unpin)(h3_dev *d, void *p);                     ///< nothing may still be copied from it
    /** Enqueues a copy on H3_QUEUE_COPY; `src` is pinned, and left alone until a later mark of that
     *  queue was reached. */
    h3_status (*copy_in)(h3_dev *d, void *dst, const void *src, size_t bytes);
    /** Enqueues a copy to pinned memory on H3_QUEUE_COMPUTE; it is there when a later mark is. */
    h3_status (*copy_out)(h3_dev *d, void *dst, const void *src, size_t bytes);
    /** Sets mark `i` behind all that is on `q` now. */
    h3_status (*mark)(h3_dev *d, h3_queue q, int i);
    /** `q` goes on when mark `i`, as it was last set, is reached; at once if it never was. */
    h3_status (*await)(h3_dev *d, h3_queue q, int i);
    uint64_t marks_taken; ///< by stores and decoders, a bit each
    /** Looks in bytes that are on the device for numbers that no weight can be: `n` of them,
     * `stride` bytes apart. *bad (memory of pin) is 1 behind the next sync if there is one, and
     * left alone otherwise. NULL: the host looks. */
    h3_status (*scan)(h3_dev *d, const void *p, h3_scan kind, size_t stride, size_t n, int *bad);
    /** The type in which a matrix that stays on the device is best held when `rows` rows of type
     * `act` will meet it, all of them or none: then what is stored need not be there too. F32: as
     * it is stored. NULL: always so. is_tolerant: as the field, then. */
    h3_dtype (*form)(const h3_dev *d, const h3_weight *w, h3_dtype act, int64_t rows,
                     bool is_tolerant);
    /** Makes that of a matrix that is there as stored, w->form says which; part[].dev may go. */
    h3_status (*reform)(h3_dev *d, const h3_weight *w);
    const h3_dev *plans_for; ///< plan devices: whose `form` holds; NULL: none
    h3_load_stat loaded;
    /* All stores of this device, kept by store.c, and what the caller calls those made from now on.
     */
    struct h3_store *stores;
    int store_tag;
    size_t peak; ///< most bytes of a GPU's memory that were taken at once; may be set back; 0: host
    /* Recording: operations between `record` and `recorded` are not run but kept, with their very
     * addresses; all of these or none. Anything but operations that ran once before may fail. */
    h3_status (*record)(h3_dev *d);
    /** Ends it. *out is NULL when the device could not keep what it saw; then nothing was lost. */
    void (*recorded)(h3_dev *d, h3_recording **out);
    /** Runs it, counters included. *done is false, and nothing was run, when memory that it knows
     *  was given back since. */
    h3_status (*replay)(h3_dev *d, h3_recording *r, bool *done);
    void (*forget)(h3_dev *d, h3_recording *r);
    const char
        *unrecorded; ///< why the last forward went call by call; NULL: it did not. For reports
    /* For memory plans; NULL: nothing to say. */
    h3_status (*memory)(h3_dev *d, size_t *n_free, size_t *n_total); ///< of its own memory
    /** Host memory beside the arena for products of up to `rows` x `cols`; rows 0: for convolutions
     *  of up to `cols` weights. */
    size_t (*work_bytes)(const h3_dev *d, int64_t rows, int64_t cols);
    /** Way `i` of doing things that this backend counts: its name, and how often it was taken; NULL
     * behind the last one. May be NULL itself. */
    const char *(*way)(const h3_dev *d, int i, uint64_t *n);
};

/** Stands for attention in h3_dev.reader. */
extern const h3_weight h3_reader_attention;

typedef struct h3_dev_opts {
    int n_threads;                ///< 0: all cores this process may use
    const char *math;             ///< CPU: "auto", "f32", "bf16", "int8"; NULL: auto
    const h3_cancel_flag *cancel; ///< may be NULL
} h3_dev_opts;

H3_NODISCARD h3_status h3_dev_open(h3_dev **out, const char *name, const h3_dev_opts *opts);
void h3_dev_close(h3_dev **d);

/** Makes the scratch arena at least `bytes` large (it must be empty). Plan devices ignore it. */
H3_NODISCARD h3_status h3_dev_scratch(h3_dev *d, size_t bytes);

/** Gives the memory of the scratch arena back (it must be empty), e.g. between phases. */
void h3_dev_scratch_drop(h3_dev *d);

/** A dense tensor of the device's scratch arena. On failure data is NULL and the arena's sticky
 * flag is set: carve everything, then call h3_scratch_check once. */
h3_tensor h3_scratch(h3_dev *d, h3_dtype t, int rank, const int64_t *ne);
h3_tensor h3_scratch_1d(h3_dev *d, h3_dtype t, int64_t n0);
h3_tensor h3_scratch_2d(h3_dev *d, h3_dtype t, int64_t n0, int64_t n1);
h3_tensor h3_scratch_3d(h3_dev *d, h3_dtype t, int64_t n0, int64_t n1, int64_t n2);
h3_tensor h3_scratch_4d(h3_dev *d, h3_dtype t, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
/** H3_OK, or H3_E_NOMEM naming `what`. */
H3_NODISCARD h3_status h3_scratch_check(h3_dev *d, const char *what);

/** Device memory outside the arena (weights, tables that outlive a forward). */
H3_NODISCARD h3_status h3_dev_alloc(h3_dev *d, h3_tensor *out, h3_dtype t, int rank,
                                    const int64_t *ne);
void h3_dev_free(h3_dev *d, h3_tensor *t);

/** Dense copies between host and device tensors of equal dtype and element count. Upload may be
 *  asynchronous only if the source may be reused on return; download is complete on return. */
H3_NODISCARD h3_status h3_dev_upload(h3_dev *d, h3_tensor dst, const void *src);
H3_NODISCARD h3_status h3_dev_download(h3_dev *d, void *dst, h3_tensor src);
H3_NODISCARD h3_status h3_dev_sync(h3_dev *d);

/** H3_E_CANCELLED when a stop was asked for. Called between blocks. */
H3_NODISCARD h3_status h3_dev_check(h3_dev *d);

/** Frees what the backend attached to a weight. */
void h3_dev_weight_free(h3_dev *d, h3_weight *w);

/**
 * Shows `t` to the tap, if one is set (downloads and makes it dense); otherwise nothing happens.
 * `fmt` gives the golden's name of the tensor.
 */
void h3_tap(h3_dev *d, h3_tensor t, const char *fmt, ...) H3_PRINTF(3, 4);

void h3_dev_counters_reset(h3_dev *d);
/** A table of operations with calls, time and FLOP/s; for --verbose and bench. */
void h3_dev_counters_print(const h3_dev *d, FILE *to);

/* Backends; called by dev.c only. */
h3_status h3_cpu_open(h3_dev *d, const h3_dev_opts *opts);
h3_status h3_cuda_open(h3_dev *d, const h3_dev_opts *opts, int index);

#endif
