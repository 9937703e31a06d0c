/** The scheduler of emu.h, and fakes of the library calls that the backend makes. */
#include "emu.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cudnn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

/* ---------------------------------------------------------------- device memory */

/* One region that host code cannot touch: a kernel's or a copy's access opens it. */
static unsigned char *region;
static const size_t region_bytes = (size_t)16 << 30;
static size_t region_top;
static int region_fd = -1; // what other processes map it by
static std::map<unsigned char *, size_t> used, unused;
static const size_t poison = 1 << 20; // how much of a new block is filled with NaN
static int depth;

/* H3_EMU_OPEN=1 leaves it open: faster, and blind to host code that touches it. */
static bool stays_open()
{
    static const bool is_open = std::getenv("H3_EMU_OPEN") != nullptr;
    return is_open;
}

/* Threads that upload open and close beside kernels. */
static std::mutex door;

void emu::open_memory()
{
    if (stays_open()) return;
    const std::lock_guard<std::mutex> lock(door);
    if (depth++ == 0 && region_top) mprotect(region, region_top, PROT_READ | PROT_WRITE);
}

void emu::close_memory()
{
    if (stays_open()) return;
    const std::lock_guard<std::mutex> lock(door);
    if (--depth == 0 && region_top) mprotect(region, region_top, PROT_NONE);
}

using access_guard = emu::memory_access;

static void *map_region()
{
    const int open = stays_open() ? PROT_READ | PROT_WRITE : PROT_NONE, may = MAP_NORESERVE;
    if (!emu::is_async()) return mmap(nullptr, region_bytes, open, may | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    region_fd = memfd_create("h3av-emu", MFD_CLOEXEC);
    if (ftruncate(region_fd, (off_t)region_bytes) != 0) std::abort();
    return mmap(nullptr, region_bytes, open, may | MAP_SHARED, region_fd, 0);
}

bool emu::find_block(const void *p, int *fd, size_t *at, size_t *bytes)
{
    const auto it = used.find((unsigned char *)const_cast<void *>(p));
    if (it == used.end() || region_fd < 0) return false;
    *fd = region_fd;
    *at = (size_t)(it->first - region);
    *bytes = it->second;
    return true;
}

extern "C" cudaError_t cudaMalloc(void **p, size_t n)
{
    const size_t size =
        (n + 4095) / 4096 * 4096 + 4096; // a page that stays closed behind each block
    if (!region)
        region = (unsigned char *)map_region();
    for (auto it = unused.begin(); it != unused.end(); ++it)
        if (it->second == size) {
            *p = it->first;
            used[it->first] = size;
            unused.erase(it);
            access_guard g;
            std::memset(*p, 0xfb, size < poison ? size : poison); // NaN in every float type
            return cudaSuccess;
        }
    if (region_top + size > region_bytes) return cudaErrorMemoryAllocation;
    *p = region + region_top;
    used[region + region_top] = size;
    access_guard g; // after the next line nobody may find it closed
    {
        const std::lock_guard<std::mutex> lock(door);
        region_top += size;
        if (!stays_open()) mprotect(region, region_top, PROT_READ | PROT_WRITE);
    }
    std::memset(*p, 0xfb, size < poison ? size : poison);
    return cudaSuccess;
}

extern "C" cudaError_t cudaFree(void *p)
{
    if (!p) return cudaSuccess;
    emu::drain();
    auto it = used.find((unsigned char *)p);
    if (it == used.end()) {
        std::fprintf(stderr, "emu: cudaFree of a pointer that was not allocated\n");
        std::abort();
    }
    unused[it->first] = it->second;
    used.erase(it);
    return cudaSuccess;
}

/* ---------------------------------------------------------------- fibers */

#if !defined(__x86_64__)
#error "the emulator's fibers are written for x86-64"
#endif

extern "C" void emu_switch(void **save, void *load);
asm(R"(
.text
.globl emu_switch
emu_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

namespace emu
{
lane_id tid, bid, bdim, gdim;
alignas(128) unsigned char shared[256 << 10];

enum { STACK = 256 << 10, MAX_THREADS = 1024 };
struct fiber {
    void *sp;
    unsigned char *stack;
    lane_id id;
    bool is_done;
};
struct gate {
    int arrived, alive;
    unsigned generation;
};
static fiber fibers[MAX_THREADS];
static gate block_gate, warp_gate[MAX_THREADS / 32];
static unsigned char slots[MAX_THREADS][64];
static void *main_sp;
static int current, n_threads;
static const std::function<void()> *body_now;

static void yield()
{
    emu_switch(&fibers[current].sp, main_sp);
    tid = fibers[current].id;
}

static void pass(gate &g)
{
    const unsigned mine = g.generation;
    if (++g.arrived >= g.alive) {
        g.arrived = 0;
        g.generation++;
        return;
    }
    while (g.generation == mine)
        yield();
}

static void leave(gate &g)
{
    g.alive--;
    if (g.alive > 0 && g.arrived >= g.alive) {
        g.arrived = 0;
        g.generation++;
    }
}

void barrier()
{
    pass(block_gate);
}
void warp_barrier()
{
    pass(warp_gate[current / 32]);
}
unsigned lane()
{
    return (unsigned)current % 32;
}
unsigned char *slot(unsigned l)
{
    return slots[current / 32 * 32 + (int)l];
}

static void entry()
{
    tid = fibers[current].id;
    (*body_now)();
    fibers[current].is_done = true;
    leave(warp_gate[current / 32]);
    leave(block_gate);
    yield();
    std::abort();
}

static void prepare(int i)
{
    fiber &f = fibers[i];
    if (!f.stack)
        f.stack = (unsigned char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void **sp = (void **)(f.stack + STACK - 64);
    *--sp = nullptr; // alignment of a called function
    *--sp = (void *)entry;
    for (int k = 0; k < 6; k++)
        *--sp = nullptr;
    f.sp = sp;
    f.is_done = false;
}

static void run_block()
{
    n_threads = (int)(bdim.x * bdim.y * bdim.z);
    block_gate = {0, n_threads, 0};
    for (int w = 0; w < n_threads; w += 32)
        warp_gate[w / 32] = {0, n_threads - w < 32 ? n_threads - w : 32, 0};
    for (int i = 0; i < n_threads; i++) {
        prepare(i);
        fibers[i].id = {(unsigned)i % bdim.x, (unsigned)i / bdim.x % bdim.y,
                        (unsigned)i / (bdim.x * bdim.y)};
    }
    for (int left = n_threads; left > 0;) {
        left = 0;
        for (current = 0; current < n_threads; current++) {
            if (fibers[current].is_done) continue;
            emu_switch(&main_sp, fibers[current].sp);
            left += !fibers[current].is_done;
        }
    }
}

cudaError_t launch(dim3 grid, dim3 block, size_t smem, const std::function<void()> &body)
{
    static std::mutex one; // the fibers' state is one kernel's
    const std::lock_guard<std::mutex> hold(one);
    access_guard g;
    if (smem > sizeof shared || block.x * block.y * block.z > MAX_THREADS || grid.y > 65535 ||
        grid.z > 65535) {
        std::fprintf(stderr, "emu: a launch that no GPU takes\n");
        std::abort();
    }
    body_now = &body;
    bdim = {block.x, block.y, block.z};
    gdim = {grid.x, grid.y, grid.z};
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                bid = {x, y, z};
                std::memset(shared, 0xfb, smem);
                run_block();
            }
    return cudaSuccess;
}
} // namespace emu

float emu_widen(bool is_bf16, unsigned short h)
{
    if (is_bf16) return __uint_as_float((unsigned)h << 16);
    __half x;
    std::memcpy(&x, &h, 2);
    return __half2float(x);
}

/* ---------------------------------------------------------------- the runtime */

extern "C" {
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess ? "no error" : "emulated error";
}
/* H3_EMU_GPUS=2: as many, for ranks. */
cudaError_t cudaGetDeviceCount(int *n)
{
    const char *wish = std::getenv("H3_EMU_GPUS");
    *n = wish ? std::atoi(wish) : 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
/* The one attribute asked for: how much slower f64 is. H3_EMU_F64=64 is a card for games. */
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr, int)
{
    const char *wish = std::getenv("H3_EMU_F64");
    *v = wish ? std::atoi(wish) : 2;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    std::memset(p, 0, sizeof *p);
    std::snprintf(p->name, sizeof p->name, "emulated GPU");
    p->major = 9;
    p->multiProcessorCount = 1;
    p->totalGlobalMem = region_bytes;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = region_bytes - region_top;
    *total = region_bytes;
    return cudaSuccess;
}
/* Nothing is recorded here: steps go call by call. */
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaErrorNotSupported; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *) { return cudaErrorNotSupported; }
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *, size_t *) { return cudaErrorNotSupported; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType *) { return cudaErrorNotSupported; }
cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t, cudaMemcpy3DParms *)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *, const void *)
{
    return cudaSuccess;
}

/* ---------------------------------------------------------------- cuBLASLt */

struct emu_layout {
    cudaDataType_t type;
    int64_t ld;
};
struct emu_op {
    cublasOperation_t ta, tb;
    const void *bias, *sa, *sb;
    bool has_bias;
};
size_t cublasLtGetVersion(void)
{
    return 130000;
}
const char *cublasLtGetStatusString(cublasStatus_t)
{
    return "emulated status";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
}

/* The opaque descriptors live in the header's own structs: keep ours in a table by address. */
static std::map<const void *, emu_layout> layouts;
static std::map<const void *, emu_op> ops;
static std::map<const void *, std::pair<uint64_t, uint64_t>> extents;

extern "C" {
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = (cublasLtMatmulPreference_t)std::calloc(1, 256);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    std::free(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t,
                                        cudaDataType_t)
{
    *d = (cublasLtMatmulDesc_t)std::calloc(1, 256);
    ops[*d] = {};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    ops.erase(d);
    std::free(d);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t a, const void *v,
                                              size_t)
{
    emu_op &o = ops[d];
    switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        o.ta = *(const cublasOperation_t *)v;
        break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        o.tb = *(const cublasOperation_t *)v;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        o.has_bias = *(const cublasLtEpilogue_t *)v == CUBLASLT_EPILOGUE_BIAS;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        o.bias = *(const void *const *)v;
        break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        o.sa = *(const void *const *)v;
        break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        o.sb = *(const void *const *)v;
        break;
    default:
        break;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = (cublasLtMatrixLayout_t)std::calloc(1, 256);
    layouts[*l] = {type, ld};
    extents[*l] = {rows, cols};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    layouts.erase(l);
    extents.erase(l);
    std::free(l);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t x,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *r, int *n)
{
    *n = 0;
    /* As the library: 16-bit rows at odd distances are refused. */
    if (layouts[w].type != CUDA_R_32F && layouts[w].type != CUDA_R_64F && (layouts[w].ld % 2 || layouts[x].ld % 2))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    std::memset(r, 0, 2 * sizeof *r);
    r[0].state = r[1].state = CUBLAS_STATUS_SUCCESS;
    *n = 2;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t *,
                                       cublasLtMatmulHeuristicResult_t *r)
{
    r->workspaceSize = 0;
    return CUBLAS_STATUS_SUCCESS;
}

static float get(cudaDataType_t t, const void *p, int64_t i)
{
    if (t == CUDA_R_32F) return ((const float *)p)[i];
    if (t == CUDA_R_8F_E4M3) {
        const __half_raw h = __nv_cvt_fp8_to_halfraw(((const unsigned char *)p)[i], __NV_E4M3);
        return emu_widen(false, h.x);
    }
    return emu_widen(t == CUDA_R_16BF, ((const unsigned short *)p)[i]);
}

/* y^T = w x^T in f64, as it is asked for by convolutions. */
static void multiply_f64(const emu_op &o, int64_t m, int64_t n, int64_t k, const double *A,
                         int64_t lda, const double *B, int64_t ldb, double *D, int64_t ldd)
{
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            double s = 0;
            for (int64_t t = 0; t < k; t++)
                s += A[o.ta == CUBLAS_OP_T ? t + i * lda : i + t * lda] *
                     B[o.tb == CUBLAS_OP_T ? j + t * ldb : t + j * ldb];
            D[i + j * ldd] = s;
        }
}

static void put(cudaDataType_t t, void *p, int64_t i, float v)
{
    if (t == CUDA_R_32F) {
        ((float *)p)[i] = v;
    } else if (t == CUDA_R_16BF) {
        const __nv_bfloat16 b = __float2bfloat16_rn(v);
        std::memcpy((unsigned short *)p + i, &b, 2);
    } else {
        const __half h = __float2half_rn(v);
        std::memcpy((unsigned short *)p + i, &h, 2);
    }
}

/* A product as it was asked for. */
struct product {
    emu_op o;
    emu_layout a, b, d;
    int64_t m, n, k;
    const void *A, *B;
    void *D;
    float beta;
};

static void multiply(const product &p)
{
    access_guard g;
    const emu_op &o = p.o;
    const int64_t m = p.m, n = p.n, k = p.k;
    const emu_layout wa = p.a, wb = p.b, wd = p.d;
    const void *A = p.A, *B = p.B;
    void *D = p.D;
    if (wd.type == CUDA_R_64F) {
        multiply_f64(o, m, n, k, (const double *)A, wa.ld, (const double *)B, wb.ld, (double *)D,
                     wd.ld);
        return;
    }
    std::vector<float> a((size_t)(m * k)), b((size_t)(n * k));

    for (int64_t i = 0; i < m; i++)
        for (int64_t t = 0; t < k; t++)
            a[(size_t)(i * k + t)] =
                get(wa.type, A, o.ta == CUBLAS_OP_T ? t + i * wa.ld : i + t * wa.ld);
    for (int64_t j = 0; j < n; j++)
        for (int64_t t = 0; t < k; t++)
            b[(size_t)(j * k + t)] =
                get(wb.type, B, o.tb == CUBLAS_OP_T ? j + t * wb.ld : t + j * wb.ld);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float part[8] = {};
            const float *x = &a[(size_t)(i * k)], *y = &b[(size_t)(j * k)];
            int64_t t = 0;
            for (; t + 8 <= k; t += 8)
                for (int e = 0; e < 8; e++)
                    part[e] += x[t + e] * y[t + e];
            for (; t < k; t++)
                part[0] += x[t] * y[t];
            float s = ((part[0] + part[1]) + (part[2] + part[3])) +
                      ((part[4] + part[5]) + (part[6] + part[7]));
            if (o.sa) s *= ((const float *)o.sa)[i] * ((const float *)o.sb)[j];
            if (o.has_bias) s += get(wd.type, o.bias, i);
            if (p.beta != 0) s += p.beta * get(wd.type, D, i + j * wd.ld);
            put(wd.type, D, i + j * wd.ld, s);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *, const void *A,
                              cublasLtMatrixLayout_t la, const void *B, cublasLtMatrixLayout_t lb,
                              const void *beta, const void *, cublasLtMatrixLayout_t, void *D,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *, void *,
                              size_t, cudaStream_t stream)
{
    product p = {ops[d], layouts[la], layouts[lb], layouts[ld], 0, 0, 0, A, B, D, 0};
    p.m = (int64_t)extents[ld].first;
    p.n = (int64_t)extents[ld].second;
    p.k = (int64_t)(p.o.ta == CUBLAS_OP_T ? extents[la].first : extents[la].second);
    if (p.d.type != CUDA_R_64F) p.beta = *(const float *)beta;
    emu::enqueue(stream, [p] {
        multiply(p);
        return true;
    });
    return CUBLAS_STATUS_SUCCESS;
}

/* ---------------------------------------------------------------- cuDNN: present, but no plans */

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    *h = (cudnnHandle_t)1;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t)
{
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t)
{
    return CUDNN_STATUS_SUCCESS;
}
const char *cudnnGetErrorString(cudnnStatus_t)
{
    return "emulated status";
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *)
{
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t)
{
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t)
{
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, const void *)
{
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, int64_t *, void *)
{
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t)
{
    return CUDNN_STATUS_NOT_SUPPORTED;
}
}
