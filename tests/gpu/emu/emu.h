/**
 * CUDA kernels on the processor, for tests without a GPU: a block's threads are fibers that take
 * turns at barriers and warp exchanges. Slow and exact enough to find wrong indices, missing
 * barriers of the obvious kind and wrong fragments; it knows nothing of memory models or speed.
 *
 * device.cuh includes this when H3_CUDA_EMULATE is set; the kernels are then compiled as C++.
 * emu.cc holds the scheduler and what the backend uses of the CUDA runtime, cuBLASLt and cuDNN; streams.cc and nccl.cc
 * what ranks on several GPUs use of it.
 */
#ifndef H3_TESTS_GPU_EMU_H
#define H3_TESTS_GPU_EMU_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#include <cuda_runtime.h>

#include "streams.h"

#undef __shared__
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __shared__ static

namespace emu
{
struct lane_id {
    unsigned x, y, z;
};
extern lane_id tid, bid, bdim, gdim;
extern unsigned char shared[];

void barrier();      ///< of the block
void warp_barrier(); ///< of the warp
/** 32 slots of 64 bytes that the warp's lanes see. */
unsigned char *slot(unsigned lane);
unsigned lane();
cudaError_t launch(dim3 grid, dim3 block, size_t smem, const std::function<void()> &body);

/* Arguments are what they are now, as of a real launch. */
template <typename... P, typename... A>
cudaError_t run(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t s, A... args)
{
    const std::tuple<std::decay_t<P>...> kept((P)args...);
    const auto body = [=] { std::apply(kernel, kept); };
    if (!s) return launch(grid, block, smem, body);
    enqueue(s, [=] {
        launch(grid, block, smem, body);
        return true;
    });
    return cudaSuccess;
}

template <typename T> T exchange(T v, unsigned from)
{
    std::memcpy(slot(lane()), &v, sizeof v);
    warp_barrier();
    T r;
    std::memcpy(&r, slot(from), sizeof r);
    warp_barrier();
    return r;
}
} // namespace emu

#define threadIdx emu::tid
#define blockIdx  emu::bid
#define blockDim  emu::bdim
#define gridDim   emu::gdim

#define H3_RUN(kernel, grid, block, smem, stream, ...) \
    emu::run((kernel), (grid), (block), (smem), (stream), __VA_ARGS__)
#define H3_SHARED(type, name) type *const name = (type *)emu::shared

static inline void __syncthreads()
{
    emu::barrier();
}
static inline void __syncwarp()
{
    emu::warp_barrier();
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T v, int o)
{
    return emu::exchange(v, emu::lane() ^ (unsigned)o);
}
template <typename T> static inline T __shfl_sync(unsigned, T v, int from)
{
    return emu::exchange(v, (unsigned)from % 32);
}
#define __expf(v) std::exp(v) // the C library has a name like it
template <typename T> static inline void __stcg(T *p, T v) { *p = v; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
static inline float __uint_as_float(unsigned u)
{
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    std::memcpy(&u, &f, 4);
    return u;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline unsigned atomicMax(unsigned *p, unsigned v)
{
    const unsigned old = *p;
    if (v > old) *p = v;
    return old;
}
using std::isfinite;

/* ---- what attention.cu takes from PTX ---- */

static inline void load_matrices(unsigned (&r)[4], const void *row)
{
    std::memcpy(emu::slot(emu::lane()), &row, sizeof row);
    emu::warp_barrier();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned char *p;
        std::memcpy(&p, emu::slot(i * 8 + emu::lane() / 4), sizeof p);
        std::memcpy(&r[i], p + 4 * (emu::lane() % 4), 4);
    }
    emu::warp_barrier();
}

static inline void load_matrices_t(unsigned (&r)[4], const void *row)
{
    std::memcpy(emu::slot(emu::lane()), &row, sizeof row);
    emu::warp_barrier();
    for (unsigned i = 0; i < 4; i++) {
        uint16_t part[2];
        for (unsigned e = 0; e < 2; e++) {
            const unsigned char *p;
            std::memcpy(&p, emu::slot(i * 8 + 2 * (emu::lane() % 4) + e), sizeof p);
            std::memcpy(&part[e], p + 2 * (emu::lane() / 4), 2);
        }
        r[i] = part[0] | (unsigned)part[1] << 16;
    }
    emu::warp_barrier();
}

float emu_widen(bool is_bf16, unsigned short h);

template <bool IS_BF16>
static inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    float wide[12];
    for (unsigned i = 0; i < 12; i++)
        wide[i] = emu_widen(IS_BF16, (unsigned short)(mine[i / 2] >> (16 * (i % 2))));
    std::memcpy(emu::slot(emu::lane()), wide, sizeof wide);
    emu::warp_barrier();
    const unsigned char *const base = emu::slot(0);
    auto at = [base](unsigned lane, unsigned reg, unsigned half) {
        float v;
        std::memcpy(&v, base + 64 * lane + 8 * reg + 4 * half, 4);
        return v;
    };
    for (unsigned e = 0; e < 4; e++) {
        const unsigned row = emu::lane() / 4 + e / 2 * 8, n = emu::lane() % 4 * 2 + e % 2;
        float s = c[e];
        for (unsigned k = 0; k < 16; k++)
            s += at(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
                 at(n * 4 + k % 8 / 2, 4 + k / 8, k % 2);
        c[e] = s;
    }
    emu::warp_barrier();
}

static inline void copy_async(void *to, const void *from, int bytes)
{
    std::memset(to, 0, 16);
    std::memcpy(to, from, (size_t)bytes);
}
static inline void copies_done() {}
template <int N> static inline void wait_copies() {}

#endif
