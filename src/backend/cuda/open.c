/**
 * Opening an NVIDIA GPU: what is there, whether it will do, and the memory side of the device.
 *
 * Copies to the device are complete for the caller on return (the source may be reused): small ones
 * are staged by the driver, large ones go slice by slice through pinned buffers that several host
 * threads fill. From pageable memory the driver alone reaches 8 GB/s of the 55 that the bus has.
 */
#include <cudnn.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "file.h"
#include "size.h"

_Static_assert(H3_F32 == 0 && H3_BF16 == 1 && H3_F16 == 2 && H3_I32 == 3 && H3_U8 == 4,
               "device.cuh names these numbers");
_Static_assert(H3_SCAN_F32 == 0 && H3_SCAN_BF16 == 1 && H3_SCAN_F16 == 2 && H3_SCAN_E4M3 == 3,
               "decode.cu");
_Static_assert(H3_ACT_SILU == 1 && H3_ACT_GELU_TANH == 2 && H3_ACT_GELU_ERF == 3, "rows.cu");

enum { SLICE = 2 << 20, STAGED = 64 << 10, FP8_ROWS = 1536 };

h3_status h3_cuda_failed(cudaError_t e, const char *what)
{
    (void)cudaGetLastError(); // an error of a call is not to be found again by the next one
    return h3_fail(e == cudaErrorMemoryAllocation ? H3_E_NOMEM : H3_E_DEVICE, "CUDA: %s: %s", what,
                   cudaGetErrorString(e));
}

/* ---------------------------------------------------------------- memory */

/* Sizes of what alloc handed out, sorted by address: dealloc gets only a pointer. */
typedef struct block {
    void *p;
    size_t bytes;
} block;

static int find_block(const h3_cuda_blocks *t, const void *p)
{
    int lo = 0, hi = t->n;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if ((uintptr_t)t->at[mid].p < (uintptr_t)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool note_block(h3_cuda_blocks *t, void *p, size_t bytes)
{
    if (t->n == t->cap) {
        const int cap = t->cap ? 2 * t->cap : 256;
        block *grown = realloc(t->at, (size_t)cap * sizeof *grown);
        if (!grown) return false;
        t->at = grown;
        t->cap = cap;
    }
    const int i = find_block(t, p);
    memmove(t->at + i + 1, t->at + i, (size_t)(t->n - i) * sizeof *t->at);
    t->at[i] = (block){p, bytes};
    t->n++;
    return true;
}

h3_status h3_cuda_alloc(h3_dev *d, void **out, size_t bytes)
{
    h3_backend *b = d->backend;
    size_t free_bytes = 0, total = 0;
    cudaError_t e;

    *out = NULL;
    if (bytes == 0) bytes = 1;
    e = cudaMalloc(out, bytes);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) (void)cudaGetLastError();
        return h3_fail(
            H3_E_NOMEM,
            "%s: no device memory for %.1f MiB (%.1f of %.1f GiB are free, %.1f GiB are "
            "in use here); smaller pictures, fewer frames or quantised weights need less",
            d->name, (double)bytes / 1048576, (double)free_bytes / 1073741824,
            (double)total / 1073741824, (double)b->allocated / 1073741824);
    }
    H3_CUDA_TRY(e);
    if (!note_block(&b->blocks, *out, bytes)) {
        cudaFree(*out);
        *out = NULL;
        return h3_fail(H3_E_NOMEM, "no memory for the list of device blocks");
    }
    b->allocated += bytes;
    if (b->allocated > b->peak) b->peak = b->allocated;
    if (b->allocated > d->peak) d->peak = b->allocated;
    return H3_OK;
}

h3_status h3_cuda_wait(h3_dev *d)
{
    if (d->sync) return d->sync(d);
    H3_CUDA_TRY(cudaStreamSynchronize(d->backend->stream));
    return H3_OK;
}

/* cudaFree waits for all that the device was given, other ranks' part in it included. Whatever is
 * heard of them here, the caller's sentence stays. */
static void wait_before_free(h3_dev *d)
{
    char said[1024];

    if (!d->comm) return;
    snprintf(said, sizeof said, "%s", h3_error());
    if (h3_cuda_wait(d) != H3_OK) h3_fail_note("%s", said);
}

void h3_cuda_dealloc(h3_dev *d, void *p)
{
    h3_cuda_blocks *t = &d->backend->blocks;
    const int i = find_block(t, p);

    if (!p) return;
    wait_before_free(d);
    if (i < t->n && t->at[i].p == p) {
        d->backend->allocated -= t->at[i].bytes;
        t->n--;
        memmove(t->at + i, t->at + i + 1, (size_t)(t->n - i) * sizeof *t->at);
    }
    if (p) d->backend->generation++;
    cudaFree(p); // waits for work that may still use it
}

h3_status h3_cuda_grow(h3_dev *d, h3_cuda_buffer *b, size_t bytes)
{
    if (bytes <= b->bytes) return H3_OK;
    H3_TRY(h3_cuda_not_recording(d, "a buffer that has to grow"));
    const size_t want = h3_align_up(bytes, (size_t)1 << 20);
    h3_cuda_dealloc(d, b->p);
    b->p = NULL;
    b->bytes = 0;
    H3_TRY(h3_cuda_alloc(d, &b->p, want));
    b->bytes = want;
    return H3_OK;
}

static h3_status open_stages(h3_backend *b, int lanes)
{
    for (int i = 0; i < 2 * lanes; i++) {
        if (b->stage[i]) continue;
        H3_CUDA_TRY(cudaHostAlloc((void **)&b->stage[i], SLICE, cudaHostAllocDefault));
        H3_CUDA_TRY(cudaEventCreateWithFlags(&b->stage_free[i], cudaEventDisableTiming));
    }
    return H3_OK;
}

/* One slice on its way through a lane's two buffers. */
static cudaError_t send_slice(h3_backend *b, int slot, unsigned char *to, const unsigned char *from,
                              size_t n)
{
    cudaError_t e = cudaEventSynchronize(b->stage_free[slot]);

    if (e != cudaSuccess) return e;
    if (!h3_map_read(b->stage[slot], from, n)) memcpy(b->stage[slot], from, n); // not of a file
    e = cudaMemcpyAsync(to, b->stage[slot], n, cudaMemcpyHostToDevice, b->stream);
    return e == cudaSuccess ? cudaEventRecord(b->stage_free[slot], b->stream) : e;
}

/* One thread reads a file of the cache at a few GB/s, the bus takes 55: slice by slice through as
 * many lanes as there are threads, none of which waits for another. */
static h3_status upload_wide(h3_dev *d, unsigned char *to, const unsigned char *from, size_t bytes)
{
    h3_backend *b = d->backend;
    const int64_t n = (int64_t)((bytes + SLICE - 1) / SLICE);
    const int most = d->n_threads < H3_CUDA_LANES ? d->n_threads : H3_CUDA_LANES;
    const int lanes = n < most ? (int)n : most;
    atomic_llong next = 0;
    atomic_int failed = cudaSuccess;

    H3_TRY(open_stages(b, lanes));
#pragma omp parallel num_threads(lanes)
    {
        int64_t i;
        cudaError_t e = cudaSetDevice(b->index); // the current device is a thread's
        for (int turn = 0; e == cudaSuccess && (i = atomic_fetch_add(&next, 1)) < n; turn ^= 1) {
            const size_t at = (size_t)i * SLICE, some = bytes - at < SLICE ? bytes - at : SLICE;
            e = send_slice(b, 2 * omp_get_thread_num() + turn, to + at, from + at, some);
        }
        if (e != cudaSuccess) atomic_store(&failed, (int)e);
    }
    H3_CUDA_TRY((cudaError_t)atomic_load(&failed));
    return H3_OK;
}

h3_status h3_cuda_upload(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    h3_backend *b = d->backend;

    H3_TRY(h3_cuda_not_recording(d, "an upload"));
    if (bytes <= STAGED) {
        H3_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, b->stream));
        return H3_OK;
    }
    H3_TRY(upload_wide(d, dst, src, bytes));
    b->uploaded += bytes;
    return H3_OK;
}

static h3_status cuda_download(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->backend->stream));
    H3_CUDA_TRY(cudaStreamSynchronize(d->backend->stream));
    return H3_OK;
}

static h3_status cuda_sync(h3_dev *d)
{
    H3_CUDA_TRY(cudaStreamSynchronize(d->backend->stream));
    return H3_OK;
}

static h3_status cuda_scan(h3_dev *d, const void *p, h3_scan kind, size_t stride, size_t n,
                           int *bad)
{
    H3_LAUNCH(d, h3_k_scan(d->backend->stream, p, (int)kind, stride, n, bad));
    return H3_OK;
}

static h3_status cuda_memory(h3_dev *d, size_t *n_free, size_t *n_total)
{
    (void)d;
    H3_CUDA_TRY(cudaMemGetInfo(n_free, n_total));
    return H3_OK;
}

/* ---------------------------------------------------------------- views */

h3_rows h3_cuda_view(h3_tensor t)
{
    h3_rows v = {.p = t.data, .rows = 1, .cols = t.rank ? t.ne[t.rank - 1] : 0, .dtype = t.dtype};
    const int outer = t.rank - 1;

    for (int a = 0; a < outer; a++) {
        v.rows *= t.ne[a];
        if (t.ne[a] == 1) continue;
        if (v.n > 0 && v.st[v.n - 1] == t.st[a] * t.ne[a]) { // the axis before goes on evenly
            v.ne[v.n - 1] *= t.ne[a];
            v.st[v.n - 1] = t.st[a];
        } else {
            v.ne[v.n] = t.ne[a];
            v.st[v.n++] = t.st[a];
        }
    }
    return v;
}

/* ---------------------------------------------------------------- the device */

static h3_status parse_math(const char *name, h3_cuda_math *out)
{
    static const char *const names[] = {"auto", "f32", "tf32", "fp8"};

    *out = H3_CUDA_AUTO;
    for (int i = 0; name && i < 4; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (h3_cuda_math)i;
            return H3_OK;
        }
    if (!name) return H3_OK;
    return h3_fail(H3_E_ARG, "cuda math %s is not known; expected auto, f32, tf32 or fp8", name);
}

static h3_status find_device(h3_dev *d, int index)
{
    h3_backend *b = d->backend;
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);

    if (e == cudaErrorInsufficientDriver)
        return h3_fail(H3_E_DEVICE,
                       "device %s: the NVIDIA driver is missing or older than CUDA %d.%d needs",
                       d->name, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        return h3_fail(H3_E_DEVICE, "device %s: no NVIDIA GPU (%s)", d->name,
                       e == cudaSuccess ? "none found" : cudaGetErrorString(e));
    }
    if (index < 0 || index >= n)
        return h3_fail(H3_E_ARG, "device %s: this machine has %d GPU%s (cuda:0 to cuda:%d)",
                       d->name, n, n == 1 ? "" : "s", n - 1);
    b->index = index;
    H3_CUDA_TRY(cudaSetDevice(index));
    H3_CUDA_TRY(cudaGetDeviceProperties(&b->prop, index));
    b->capability = b->prop.major * 10 + b->prop.minor;
    d->n_units = b->prop.multiProcessorCount;
    int ratio = 0;
    H3_CUDA_TRY(cudaDeviceGetAttribute(&ratio, cudaDevAttrSingleToDoublePrecisionPerfRatio, index));
    b->has_f64 = ratio > 0 && ratio <= 2;
    if (b->capability < 80)
        return h3_fail(H3_E_UNSUPPORTED,
                       "device %s: %s has compute capability %d.%d; 8.0 or later is needed",
                       d->name, b->prop.name, b->prop.major, b->prop.minor);
    if (b->math == H3_CUDA_FP8 && b->capability < 89)
        return h3_fail(H3_E_UNSUPPORTED,
                       "cuda math fp8: %s has compute capability %d.%d; 8.9 or later is needed",
                       b->prop.name, b->prop.major, b->prop.minor);
    return h3_cuda_probe(d);
}

static void cuda_close(h3_dev *d)
{
    h3_backend *b = d->backend;
    h3_cuda_buffer *const buffers[] = {
        &b->lt_work,        &b->sdpa_work,  &b->operand,         &b->columns,
        &b->wide,           &b->quant[0],   &b->quant[1],        &b->attn8,
        &b->passing[0],     &b->passing[1], &b->rows8[0].scales, &b->rows8[1].scales,
        &b->rows8[2].scales};

    if (!b) return;
    if (b->stream) cudaStreamSynchronize(b->stream);
    h3_cuda_queues_close(d);
    h3_sdpa_close(d);
    h3_lt_close(d);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        h3_cuda_dealloc(d, buffers[i]->p);
    for (int i = 0; i < 2 * H3_CUDA_LANES; i++) {
        if (b->stage[i]) cudaFreeHost(b->stage[i]);
        if (b->stage_free[i]) cudaEventDestroy(b->stage_free[i]);
    }
    if (b->flag) cudaFreeHost(b->flag);
    if (b->stream) cudaStreamDestroy(b->stream);
    free(b->blocks.at);
    free(b);
    d->backend = NULL;
}

static void describe(h3_dev *d)
{
    const h3_backend *b = d->backend;
    const size_t lt = cublasLtGetVersion();
    char dnn[32] = "no cuDNN";

    if (b->cudnn) {
        const size_t v = cudnnGetVersion();
        snprintf(dnn, sizeof dnn, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    }
    snprintf(d->detail, sizeof d->detail,
             "%.48s, %d SMs, sm_%d, %.0f GiB, CUDA %d.%d, cuBLASLt %zu.%zu, %s, math %s",
             b->prop.name, b->prop.multiProcessorCount, b->capability,
             (double)b->prop.totalGlobalMem / 1073741824, CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10, lt / 10000, lt / 100 % 100, dnn,
             (const char *[]){"auto", "f32", "tf32", "fp8"}[b->math]);
}

static const char *const ways[H3_CUDA_N_COUNTS] = {"products by cuBLASLt",
                                                   "products in e4m3 (of these)",
                                                   "convolutions of lines",
                                                   "products by the plain kernel",
                                                   "weights decoded",
                                                   "attention by cuDNN",
                                                   "attention in e4m3 (of these)",
                                                   "attention by Hopper's kernels",
                                                   "attention in e4m3 (of those)",
                                                   "attention by the mma kernel",
                                                   "attention by the f32 kernel",
                                                   "kernels of our own",
                                                   "recordings run again",
                                                   "launches in a recording"};

static const char *cuda_way(const h3_dev *d, int i, uint64_t *n)
{
    if (i >= H3_CUDA_N_COUNTS) return NULL;
    *n = d->backend->counts[i];
    return ways[i];
}

/* A build for other architectures fails here rather than at its first product. */
h3_status h3_cuda_probe(h3_dev *d)
{
    const h3_backend *b = d->backend;
    const cudaError_t e = h3_k_probe();

    if (e == cudaSuccess) return H3_OK;
    (void)cudaGetLastError();
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction ||
        e == cudaErrorUnsupportedPtxVersion)
        return h3_fail(H3_E_UNSUPPORTED,
                       "device %s: this build has no kernels for %s (compute capability %d.%d); "
                       "rebuild with -DH3_CUDA_ARCH=%d",
                       d->name, b->prop.name, b->prop.major, b->prop.minor, b->capability);
    return h3_cuda_failed(e, "loading kernels");
}

h3_status h3_cuda_open(h3_dev *d, const h3_dev_opts *opts, int index)
{
    h3_backend *b;

    d->backend = b = calloc(1, sizeof *b);
    if (!b) return h3_fail(H3_E_NOMEM, "no memory for the CUDA backend");
    d->close = cuda_close;
    H3_TRY(parse_math(opts->math, &b->math));
    const char *rows = getenv("H3_CUDA_FP8_ROWS");
    b->fp8_rows = rows ? strtoll(rows, NULL, 10) : FP8_ROWS;
    H3_TRY(find_device(d, index));
    H3_CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    H3_CUDA_TRY(cudaHostAlloc((void **)&b->flag, sizeof *b->flag, cudaHostAllocMapped));
    H3_TRY(h3_lt_open(d));
    H3_TRY(h3_sdpa_open(d));
    d->mem = H3_DEVICE;
    d->n_threads = opts->n_threads > 0 ? opts->n_threads : 8;
    d->alloc = h3_cuda_alloc;
    d->dealloc = h3_cuda_dealloc;
    d->upload = h3_cuda_upload;
    d->download = cuda_download;
    d->sync = cuda_sync;
    d->weight_free = h3_cuda_weight_free;
    d->memory = cuda_memory;
    d->way = cuda_way;
    d->scan = cuda_scan;
    d->form = h3_cuda_form;
    d->reform = h3_cuda_reform;
    d->stream = b->stream;
    H3_TRY(h3_cuda_queues_open(d));
    h3_cuda_fill_recording(d);
    h3_ops_ref_init(&d->impl);
    h3_cuda_fill_products(&d->impl);
    h3_cuda_fill_attention(&d->impl);
    h3_cuda_fill_convolutions(&d->impl);
    h3_cuda_fill_rows(&d->impl);
    describe(d);
    return H3_OK;
}

void h3_cuda_report(const h3_dev *d, FILE *to)
{
    const h3_backend *b = d->backend;

    fprintf(to, "%s: %s\n", d->name, d->detail);
    for (int i = 0; i < H3_CUDA_N_COUNTS; i++)
        if (b->counts[i]) fprintf(to, "  %-30s %llu\n", ways[i], (unsigned long long)b->counts[i]);
    if (d->unrecorded) fprintf(to, "  last step not recorded: %s\n", d->unrecorded);
    fprintf(to, "  device memory: %.1f MiB in use, %.1f MiB at most; %.1f MiB uploaded in bulk\n",
            (double)b->allocated / 1048576, (double)b->peak / 1048576,
            (double)b->uploaded / 1048576);
}
