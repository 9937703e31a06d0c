/** What kernels of rows share: SiLU, vectors of eight bf16 numbers, which rows allow them. */
#ifndef H3_CUDA_ROWS_CUH
#define H3_CUDA_ROWS_CUH

#include "device.cuh"

static __device__ __forceinline__ float silu(float v)
{
    return v / (1.0f + expf(-v));
}

/* For results that are rounded to 16 bits: the fast exponential and division are good to 2^-20. The
 * sum is 1 or more and a flushed exponential adds nothing to it, so that what those two do for the
 * smallest numbers is left out. */
static __device__ __forceinline__ float silu_16(float v)
{
#if defined(__CUDA_ARCH__) && !defined(H3_CUDA_EMULATE)
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v * -1.4426950216293334961f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e + 1.0f));
    return r * v;
#else
    return __fdividef(v, 1.0f + __expf(-v));
#endif
}

static __device__ __forceinline__ float silu_for(int t, float v)
{
    return t == K_F32 ? silu(v) : silu_16(v);
}

/* V entries of a parameter vector, or `none` where there is no vector. Wide loads: 8 single ones at
 * a distance of 32 bytes would keep the load units busier than the rows do. */
template <int V>
static __device__ __forceinline__ void load_vector(const float *p, int64_t c, float none,
                                                   float (&out)[V])
{
    if (p) {
        load<V>(p, K_F32, c, out);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        out[k] = none;
}

/* Eight bf16 numbers in pairs, the first in the low half, and their arithmetic: a product or a sum of
 * pairs rounds each number to bf16 once, which is what ops.h asks of a bf16 stream, and takes one
 * instruction where the way through f32 takes six. Words throughout: pairs of the type that CUDA has
 * for them are taken apart and put together again around every load. */
struct bf16x8 {
    unsigned v[4];
};

#if defined(__CUDA_ARCH__) && !defined(H3_CUDA_EMULATE)
static __device__ __forceinline__ unsigned pair_of(float low, float high)
{
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(low), "f"(high));
    return r;
}

static __device__ __forceinline__ unsigned mul_pairs(unsigned a, unsigned b)
{
    unsigned r;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u)); // - 0
#endif
    return r;
}

static __device__ __forceinline__ unsigned add_pairs(unsigned a, unsigned b)
{
    unsigned r;
#if __CUDA_ARCH__ >= 900
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %3, %2;" : "=r"(r) : "r"(a), "r"(b), "r"(0x3f803f80u)); // times 1
#endif
    return r;
}

/* The larger of `top` and |a|, each half; top if a is no number. */
static __device__ __forceinline__ unsigned top_of_pairs(unsigned top, unsigned a)
{
    unsigned r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(top), "r"(a & 0x7fff7fffu));
    return r;
}

/* v is not among the smallest numbers. */
static __device__ __forceinline__ float rsqrt_16(float v)
{
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* Of numbers that are 0 or more: their bits are in their order. */
static __device__ __forceinline__ float warp_top(float v)
{
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
}
#else
static __device__ __forceinline__ unsigned pair_of(float low, float high)
{
    return to_bf16(low) | (unsigned)to_bf16(high) << 16;
}

static __device__ __forceinline__ unsigned mul_pairs(unsigned a, unsigned b)
{
    return pair_of(__uint_as_float(a << 16) * __uint_as_float(b << 16),
                   __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u));
}

static __device__ __forceinline__ unsigned add_pairs(unsigned a, unsigned b)
{
    return pair_of(__uint_as_float(a << 16) + __uint_as_float(b << 16),
                   __uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u));
}

static __device__ __forceinline__ unsigned top_of_pairs(unsigned top, unsigned a)
{
    return pair_of(fmaxf(__uint_as_float(top << 16), fabsf(__uint_as_float(a << 16))),
                   fmaxf(__uint_as_float(top & 0xffff0000u), fabsf(__uint_as_float(a & 0xffff0000u))));
}

static __device__ __forceinline__ float rsqrt_16(float v)
{
    return rsqrtf(v);
}

static __device__ __forceinline__ float warp_top(float v)
{
    return warp_max(v);
}
#endif

static __device__ __forceinline__ float low_of(unsigned w)
{
    return __uint_as_float(w << 16);
}

static __device__ __forceinline__ float high_of(unsigned w)
{
    return __uint_as_float(w & 0xffff0000u);
}

/* The larger half of a top_of_pairs. */
static __device__ __forceinline__ float top_of(unsigned w)
{
    return fmaxf(low_of(w), high_of(w));
}

static __device__ __forceinline__ bf16x8 load_8(const void *p, int64_t i)
{
    const uint4 u = *(const uint4 *)((const unsigned short *)p + i);
    return {{u.x, u.y, u.z, u.w}};
}

/* As one instruction, which the compiler would otherwise be free to take apart. */
static __device__ __forceinline__ void store_8(void *p, int64_t i, const bf16x8 &x)
{
    __stcg((uint4 *)((unsigned short *)p + i), make_uint4(x.v[0], x.v[1], x.v[2], x.v[3]));
}

/* Of rows that nothing reads again soon: they leave the caches first. */
static __device__ __forceinline__ bf16x8 load_8_once(const void *p, int64_t i)
{
    const uint4 u = __ldcs((const uint4 *)((const unsigned short *)p + i));
    return {{u.x, u.y, u.z, u.w}};
}

/* x * factor in e4m3 at byte i. */
static __device__ __forceinline__ void store_8_e4m3(void *p, int64_t i, const bf16x8 &x,
                                                    float factor)
{
    float v[8];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[2 * k] = low_of(x.v[k]) * factor;
        v[2 * k + 1] = high_of(x.v[k]) * factor;
    }
    store_e4m3<8>(p, i, v);
}

/* block_sum, in its order, and block_max of what is 0 or more, for at most 8 warps: what these leave
 * is read as a whole and added without exchanges. */
static __device__ __forceinline__ float block_sum_8(float v, float (&part)[8])
{
    const int warp = (int)threadIdx.x / 32, n = (int)blockDim.x / 32;
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[warp] = v;
    if ((int)threadIdx.x >= n && threadIdx.x < 8) part[threadIdx.x] = 0;
    __syncthreads();
    const float4 a = *(const float4 *)part, b = *(const float4 *)(part + 4);
    return ((a.x + b.x) + (a.z + b.z)) + ((a.y + b.y) + (a.w + b.w));
}

static __device__ __forceinline__ float block_top_8(float v, float (&part)[8])
{
    const int warp = (int)threadIdx.x / 32, n = (int)blockDim.x / 32;
    v = warp_top(v);
    if (threadIdx.x % 32 == 0) part[warp] = v;
    if ((int)threadIdx.x >= n && threadIdx.x < 8) part[threadIdx.x] = 0;
    __syncthreads();
    const float4 a = *(const float4 *)part, b = *(const float4 *)(part + 4);
    return fmaxf(fmaxf(fmaxf(a.x, b.x), fmaxf(a.z, b.z)), fmaxf(fmaxf(a.y, b.y), fmaxf(a.w, b.w)));
}

static inline bool fits_8(const h3_rows &v)
{
    return v.dtype == K_BF16 && is_wide(v) && v.rows * v.cols / 8 < (int64_t)1 << 30;
}

static inline bool is_wide_mod(const h3_mod &m)
{
    const int size = m.dtype == K_F32 ? 4 : 2;
    return (uintptr_t)m.p % 16 == 0 && m.st_r * size % 16 == 0 && m.shift * size % 16 == 0 &&
           m.scale * size % 16 == 0;
}

static inline bool is_wide_vector(const float *p)
{
    return (uintptr_t)p % 16 == 0;
}

#endif
