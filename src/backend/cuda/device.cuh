/**
 * What the kernels share: loads and stores of the activation types, rows of views, reductions.
 *
 * Types are decided at run time by branches that all threads of a launch take alike; the kernels
 * here wait for memory, not for instructions, and one kernel a purpose is easier to trust than
 * nine. V elements (8, or 1 where rows are not aligned) go through a thread at a time.
 */
#ifndef H3_CUDA_DEVICE_CUH
#define H3_CUDA_DEVICE_CUH

#ifdef H3_CUDA_EMULATE
#include "emu.h"
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* The numbers of h3_dtype that reach a kernel; open.c asserts that they agree. */
enum { K_F32 = 0, K_BF16 = 1, K_F16 = 2, K_I32 = 3, K_U8 = 4 };

#ifndef H3_CUDA_EMULATE
/* The formatter takes <<< for three comparisons. */
// clang-format off
#define H3_RUN(kernel, grid, block, smem, stream, ...) \
    ((kernel)<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__), cudaGetLastError())
// clang-format on
#define H3_SHARED(type, name) extern __shared__ type name[]

/* H3_CUDA_EARLY=off: kernels wait for each other as ever. */
static inline bool can_start_early()
{
    static const int can = [] {
        const char *wish = getenv("H3_CUDA_EARLY");
        int device = 0, major = 0;
        if (wish && strcmp(wish, "off") == 0) return 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
            return 0;
        return major >= 9 ? 1 : 0;
    }();
    return can != 0;
}

/* A kernel that begins with start_early: from 9.0 on its blocks may come to the device while the
 * last ones of the kernel before are still at work, and wait there instead of here. */
#define H3_RUN_EARLY(kernel, grid, block, smem, stream, ...) \
    run_early((kernel), (grid), (block), (smem), (stream), __VA_ARGS__)
template <typename... P, typename... A>
static cudaError_t run_early(void (*kernel)(P...), unsigned grid, unsigned block, size_t smem,
                             cudaStream_t stream, A... args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t how = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    how.gridDim = dim3(grid);
    how.blockDim = dim3(block);
    how.dynamicSmemBytes = smem;
    how.stream = stream;
    how.attrs = &early;
    how.numAttrs = can_start_early() ? 1 : 0;
    return cudaLaunchKernelEx(&how, kernel, (P)args...);
}
#else
#define H3_RUN_EARLY H3_RUN
#endif

/* All that went before is done and seen from here on. */
static __device__ __forceinline__ void start_early()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

/* v is computed here, once: what is derived from it is added to it, not to what it was made of. */
#if defined(__CUDA_ARCH__) && !defined(H3_CUDA_EMULATE)
static __device__ __forceinline__ void settle(unsigned char *&v)
{
    asm("" : "+l"(v));
}
static __device__ __forceinline__ void settle(int &v)
{
    asm("" : "+r"(v));
}
#else
template <typename T> static __device__ __forceinline__ void settle(T &)
{
}
#endif

static __host__ __device__ __forceinline__ int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- numbers ---- */

/* The same bits as another type; a cast of pointers would be undefined and was miscompiled. */
template <typename T, typename U> static __device__ __forceinline__ T bits_as(const U &u)
{
    static_assert(sizeof(T) == sizeof(U), "types of one size");
    T t;
    memcpy(&t, &u, sizeof t);
    return t;
}

static __device__ __forceinline__ float from_bf16(unsigned short h)
{
    return __uint_as_float((unsigned)h << 16);
}

static __device__ __forceinline__ unsigned short to_bf16(float v)
{
    return bits_as<unsigned short>(__float2bfloat16_rn(v));
}

static __device__ __forceinline__ float from_f16(unsigned short h)
{
    return __half2float(bits_as<__half>(h));
}

static __device__ __forceinline__ unsigned short to_f16(float v)
{
    return bits_as<unsigned short>(__float2half_rn(v));
}

/* The value v takes when it is kept in type t. */
static __device__ __forceinline__ float kept(int t, float v)
{
    return t == K_F32 ? v : t == K_BF16 ? from_bf16(to_bf16(v)) : from_f16(to_f16(v));
}

/* Rounding that ops.h states between steps: bf16 only. */
static __device__ __forceinline__ float rounded(int t, float v)
{
    return t == K_BF16 ? from_bf16(to_bf16(v)) : v;
}

template <int V>
static __device__ __forceinline__ void load(const void *p, int t, int64_t i, float (&out)[V])
{
    if constexpr (V == 1) {
        if (t == K_F32)
            out[0] = ((const float *)p)[i];
        else
            out[0] = t == K_BF16 ? from_bf16(((const unsigned short *)p)[i])
                                 : from_f16(((const unsigned short *)p)[i]);
    } else {
        if (t == K_F32) {
#pragma unroll
            for (int k = 0; k < V / 4; k++) {
                const float4 u = *(const float4 *)((const float *)p + i + 4 * k);
                out[4 * k] = u.x;
                out[4 * k + 1] = u.y;
                out[4 * k + 2] = u.z;
                out[4 * k + 3] = u.w;
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < V / 8; k++) {
            const uint4 u = *(const uint4 *)((const unsigned short *)p + i + 8 * k);
            const unsigned w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const unsigned short lo = (unsigned short)w[j], hi = (unsigned short)(w[j] >> 16);
                out[8 * k + 2 * j] = t == K_BF16 ? from_bf16(lo) : from_f16(lo);
                out[8 * k + 2 * j + 1] = t == K_BF16 ? from_bf16(hi) : from_f16(hi);
            }
        }
    }
}

/* Wide stores are intrinsics: plain ones may be taken apart again, which costs up to eight times
 * the transactions. */
template <int V>
static __device__ __forceinline__ void store(void *p, int t, int64_t i, const float (&v)[V])
{
    if constexpr (V == 1) {
        if (t == K_F32)
            ((float *)p)[i] = v[0];
        else
            ((unsigned short *)p)[i] = t == K_BF16 ? to_bf16(v[0]) : to_f16(v[0]);
    } else {
        if (t == K_F32) {
#pragma unroll
            for (int k = 0; k < V / 4; k++)
                __stcg((float4 *)((float *)p + i + 4 * k),
                       make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]));
            return;
        }
#pragma unroll
        for (int k = 0; k < V / 8; k++) {
            unsigned w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float a = v[8 * k + 2 * j], b = v[8 * k + 2 * j + 1];
                if (t == K_BF16) {
                    w[j] = bits_as<unsigned>(__floats2bfloat162_rn(a, b));
                } else {
                    w[j] = to_f16(a) | (unsigned)to_f16(b) << 16;
                }
            }
            __stcg((uint4 *)((unsigned short *)p + i + 8 * k), make_uint4(w[0], w[1], w[2], w[3]));
        }
    }
}

/* V values to e4m3, saturating. */
template <int V>
static __device__ __forceinline__ void store_e4m3(void *p, int64_t i, const float (&v)[V])
{
    if constexpr (V == 1) {
        ((unsigned char *)p)[i] = __nv_cvt_float_to_fp8(v[0], __NV_SATFINITE, __NV_E4M3);
    } else {
        unsigned w[V / 4 ? V / 4 : 1];
#pragma unroll
        for (int k = 0; k < V / 4; k++) {
            const unsigned lo = __nv_cvt_float2_to_fp8x2(make_float2(v[4 * k], v[4 * k + 1]),
                                                         __NV_SATFINITE, __NV_E4M3);
            const unsigned hi = __nv_cvt_float2_to_fp8x2(make_float2(v[4 * k + 2], v[4 * k + 3]),
                                                         __NV_SATFINITE, __NV_E4M3);
            w[k] = lo | hi << 16;
        }
        *(uint2 *)((unsigned char *)p + i) = make_uint2(w[0], V >= 8 ? w[V / 4 - 1] : 0);
    }
}

/* ---- rows ---- */

/* Offset in elements of row r. */
static __device__ __forceinline__ int64_t row_at(const h3_rows &v, int64_t r)
{
    if (v.n <= 1) return r * v.st[0];
    int64_t off = 0;
    for (int a = v.n - 1; a > 0; a--) {
        off += r % v.ne[a] * v.st[a];
        r /= v.ne[a];
    }
    return off + r * v.st[0];
}

/* True when every row of v starts on a 16-byte boundary and 8 elements divide its length. */
static inline bool is_wide(const h3_rows &v)
{
    const int size = v.dtype == K_F32 || v.dtype == K_I32 ? 4 : 2;
    if (v.p == NULL) return true;
    if (v.cols % 8 || (uintptr_t)v.p % 16) return false;
    for (int a = 0; a < v.n; a++)
        if (v.st[a] * size % 16) return false;
    return true;
}

/* ---- reductions; every thread of the block must take part, and gets the result ---- */

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* `part` [32] in shared memory, free to use again after the next barrier. */
static __device__ __forceinline__ float block_sum(float v, float *part)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = warp_sum(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < (int)(blockDim.x / 32) ? part[lane] : 0.0f;
    return warp_sum(v);
}

static __device__ __forceinline__ float block_max(float v, float *part)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    v = warp_max(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < (int)(blockDim.x / 32) ? part[lane] : 0.0f;
    return warp_max(v);
}

#endif
