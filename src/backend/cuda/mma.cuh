/** Tensor cores as PTX has them, for kernels of our own; the emulator has its own of each. */
#ifndef H3_CUDA_MMA_CUH
#define H3_CUDA_MMA_CUH

#include "device.cuh"

#ifndef H3_CUDA_EMULATE
/* Four 8x8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_t(unsigned (&r)[4], const void *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* c [16, 8] += a [16, 16] b [16, 8] */
template <bool IS_BF16>
static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                           unsigned b1)
{
    if constexpr (IS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes to shared memory without passing registers; `bytes` 0 writes zeros. */
static __device__ __forceinline__ void copy_async(void *to, const void *from, int bytes)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void copies_done(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void wait_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

#endif
