/** What kernels of rows share: SiLU, vectors of eight bf16 numbers, which rows allow them. */
#ifndef H3_CUDA_ROWS_CUH
#define H3_CUDA_ROWS_CUH

#include "device.cuh"

static __device__ __forceinline__ float silu(float v)
{
    return v / (1.0f + expf(-v));
}

/* For results that are rounded to 16 bits: the fast exponential and division are good to 2^-20. */
static __device__ __forceinline__ float silu_16(float v)
{
    return __fdividef(v, 1.0f + __expf(-v));
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

/* Eight bf16 numbers and their arithmetic in pairs: a product or a sum of pairs rounds each number
 * to bf16 once, which is what ops.h asks of a bf16 stream, and takes one instruction where the way
 * through f32 takes six. */
struct bf16x8 {
    __nv_bfloat162 v[4];
};

/* By parts: a copy of bytes makes the compiler load single ones. */
static __device__ __forceinline__ __nv_bfloat162 pair_of(unsigned w)
{
    __nv_bfloat162_raw r;
    r.x = (unsigned short)w;
    r.y = (unsigned short)(w >> 16);
    return r;
}

static __device__ __forceinline__ unsigned word_of(const __nv_bfloat162 &p)
{
    const __nv_bfloat162_raw r = p;
    return r.x | (unsigned)r.y << 16;
}

static __device__ __forceinline__ bf16x8 load_8(const void *p, int64_t i)
{
    const uint4 u = *(const uint4 *)((const unsigned short *)p + i);
    return {{pair_of(u.x), pair_of(u.y), pair_of(u.z), pair_of(u.w)}};
}

/* As one instruction, which the compiler would otherwise be free to take apart. */
static __device__ __forceinline__ void store_8(void *p, int64_t i, const bf16x8 &x)
{
    __stcg((uint4 *)((unsigned short *)p + i),
           make_uint4(word_of(x.v[0]), word_of(x.v[1]), word_of(x.v[2]), word_of(x.v[3])));
}

/* Of rows that nothing reads again soon: they leave the caches first. */
static __device__ __forceinline__ bf16x8 load_8_once(const void *p, int64_t i)
{
    const uint4 u = __ldcs((const uint4 *)((const unsigned short *)p + i));
    return {{pair_of(u.x), pair_of(u.y), pair_of(u.z), pair_of(u.w)}};
}

/* x * factor in e4m3 at byte i. */
static __device__ __forceinline__ void store_8_e4m3(void *p, int64_t i, const bf16x8 &x,
                                                    float factor)
{
    float v[8];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float2 z = __bfloat1622float2(x.v[k]);
        v[2 * k] = z.x * factor;
        v[2 * k + 1] = z.y * factor;
    }
    store_e4m3<8>(p, i, v);
}

static bool fits_8(const h3_rows &v)
{
    return v.dtype == K_BF16 && is_wide(v) && v.rows * v.cols / 8 < (int64_t)1 << 30;
}

static bool is_wide_mod(const h3_mod &m)
{
    const int size = m.dtype == K_F32 ? 4 : 2;
    return (uintptr_t)m.p % 16 == 0 && m.st_r * size % 16 == 0 && m.shift * size % 16 == 0 &&
           m.scale * size % 16 == 0;
}

static bool is_wide_vector(const float *p)
{
    return (uintptr_t)p % 16 == 0;
}

#endif
