/** Hopper's tensor cores as PTX has them (sm_90a): products of a group of four warps that read shared
 *  memory themselves, tiles that the memory engine brings, barriers that count bytes. For sdpa90.cu. */
#ifndef H3_CUDA_HOPPER_CUH
#define H3_CUDA_HOPPER_CUH

#include <cuda.h>

#include "device.cuh"

static __device__ __forceinline__ unsigned shared_at(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */

static __device__ __forceinline__ void barrier_init(uint64_t *b, int n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(n_arrivals));
}

/* All threads: after the inits, and after what they wrote for products to read. */
static __device__ __forceinline__ void barriers_are_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
    __syncthreads();
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}

/* Arrives and lets the barrier wait for so many bytes as well. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
                 "r"(bytes)
                 : "memory");
}

/* Until the phase of that parity is over. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, unsigned parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n"
                 "}" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
}

/* ---- tiles: rows of 128 bytes, swizzled as wide, whole kilobytes ---- */

/* The box of `map` at (x, y, z), innermost first, to shared memory; its bytes count for `b`. */
static __device__ __forceinline__ void bring_tile(void *to, const CUtensorMap *map, uint64_t *b,
                                                  int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_at(to)),
                 "l"(map), "r"(shared_at(b)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* A tile as products name it, or one that starts `bytes` later; groups of eight rows lie 1024 bytes
 * apart. `next`: bytes to the tile with what follows each row, where rows lie along the side that is
 * not summed over. */
static __device__ __forceinline__ uint64_t tile_of(const void *p, int next = 16)
{
    const uint64_t swizzle_128 = (uint64_t)1 << 62, group = (uint64_t)(1024 >> 4) << 32;
    return (shared_at(p) & 0x3ffff) >> 4 | (uint64_t)(next >> 4) << 16 | group | swizzle_128;
}

static __device__ __forceinline__ uint64_t tile_at(uint64_t tile, int bytes)
{
    return tile + (uint64_t)(bytes >> 4);
}

/* ---- products ---- */

template <int N> static __device__ __forceinline__ void registers_of_group()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_given_back()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* The compiler may neither move uses of c across nor keep copies of it: products run beside. */
template <int N> static __device__ __forceinline__ void settle_sums(float (&c)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

template <int N> static __device__ __forceinline__ void products_begin(float (&c)[N])
{
    settle_sums(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void products_end(float (&c)[N])
{
    asm volatile("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
    settle_sums(c);
}

#define SUMS_4(c, i)  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_32(c)    SUMS_16(c, 0), SUMS_16(c, 16)
#define SUMS_48(c)    SUMS_32(c), SUMS_16(c, 32)
#define SUMS_64(c)    SUMS_48(c), SUMS_16(c, 48)
#define NAMES_32                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_48                                                                            \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46," \
             "%47"
#define NAMES_64                                                                            \
    NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62," \
             "%63"

/* Scores: c [64, n] (= or +=) a [64, 32 bytes] b [n, 32 bytes]', both in shared memory. A thread holds
 * rows lane / 4 and + 8 of its warp's 16: c[4 j + i] is row i / 2 of them, column 8 j + lane % 4 * 2 +
 * i % 2. */
static __device__ __forceinline__ void product_e4m3(float (&c)[64], uint64_t a, uint64_t b, int adds)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" NAMES_64
                 "}, %64, %65, p, 1, 1;\n"
                 "}"
                 : SUMS_64(c)
                 : "l"(a), "l"(b), "r"(adds));
}

static __device__ __forceinline__ void product_bf16(float (&c)[48], uint64_t a, uint64_t b, int adds)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NAMES_48
                 "}, %48, %49, p, 1, 1, 0, 0;\n"
                 "}"
                 : SUMS_48(c)
                 : "l"(a), "l"(b), "r"(adds));
}

/* Weighted values, a in registers: 4-byte groups lane % 4 of row lane / 4, of row + 8, and both 16
 * bytes further. e4m3: c [64, n] (= or +=) a [64, 32] b [n, 32]'; bf16: c [64, 128] += a [64, 16] b
 * [16, 128], b as it lies in memory. */
static __device__ __forceinline__ void product_e4m3(float (&c)[32], const unsigned *a, uint64_t b,
                                                    int adds)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n"
                 "}"
                 : SUMS_32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}

static __device__ __forceinline__ void product_e4m3(float (&c)[36], const unsigned *a, uint64_t b,
                                                    int adds)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %41, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {" NAMES_36
                 "}, {%36, %37, %38, %39}, %40, p, 1, 1;\n"
                 "}"
                 : SUMS_32(c), SUMS_4(c, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}

static __device__ __forceinline__ void product_bf16(float (&c)[64], const unsigned *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SUMS_64(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* ---- numbers ---- */

/* Less than 2^-22 off, and 0 far below. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ unsigned pair_bf16(float lo, float hi)
{
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(lo), "f"(hi));
    return r;
}

static __device__ __forceinline__ unsigned short pair_e4m3(float lo, float hi)
{
    unsigned short r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(r) : "f"(lo), "f"(hi));
    return r;
}

static __device__ __forceinline__ unsigned four_e4m3(float a, float b, float c, float d)
{
    return (unsigned)pair_e4m3(c, d) << 16 | pair_e4m3(a, b);
}

#endif
