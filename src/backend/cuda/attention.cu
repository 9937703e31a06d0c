/**
 * Attention without a library: two online-softmax kernels.
 *
 *   f32   scores and sums in f32 on ordinary units, any head size up to 512
 *   mma   bf16 and f16 on tensor cores (m16n8k16, sm_80 and later), after FlashAttention-2 (Dao,
 * 2023): a warp owns 16 queries, keys and values pass through shared memory in tiles, probabilities
 *         never leave registers
 *
 * Both take segments, causal masks and grouped key heads, and read q, k, v where they lie.
 */
#include "rows.cuh"
#include "mma.cuh"

/* Rows [from, to) of the segment of this block; false when the block has no queries. */
static __device__ __forceinline__ bool segment_of(const h3_attn &a, int index, int64_t *from,
                                                  int64_t *to)
{
    if (a.cu) {
        *from = a.cu[index];
        *to = a.cu[index + 1];
    } else {
        *from = (int64_t)index * a.longest;
        *to = *from + a.longest;
    }
    return *from < *to;
}

/* ---------------------------------------------------------------- f32 */

enum { F_ROWS = 32, F_KEYS = 32, F_THREADS = 256 };

/* Warp w holds queries w, w + 8, w + 16, w + 24; a lane is a key, then columns lane + 32 j. */
template <int NC> static __global__ void f32_kernel(const __grid_constant__ h3_attn a)
{
    H3_SHARED(float, f32_buf);
    const int D = a.dim, Dp = (D + 3) / 4 * 4, Kp = Dp + 4;
    float *qs = f32_buf, *kv = qs + F_ROWS * Dp, *ps = kv + F_KEYS * Kp;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int h = blockIdx.y, hk = h / (a.heads / a.kv_heads);
    int64_t from, to;

    if (!segment_of(a, blockIdx.z, &from, &to)) return;
    const int64_t q0 = from + (int64_t)blockIdx.x * F_ROWS;
    if (q0 >= to) return;
    for (int i = threadIdx.x; i < F_ROWS * Dp; i += F_THREADS) {
        const int64_t r = q0 + i / Dp;
        float u[1] = {0};
        if (r < to && i % Dp < D) load<1>(a.q, a.dtype, r * a.q_s + h * a.q_h + i % Dp, u);
        qs[i] = u[0];
    }
    float acc[4][NC] = {}, top[4], sum[4] = {};
    for (int i = 0; i < 4; i++)
        top[i] = -INFINITY;
    const int64_t end = a.causal && q0 + F_ROWS < to ? q0 + F_ROWS : to;

    for (int64_t k0 = from; k0 < end; k0 += F_KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < F_KEYS * Dp; i += F_THREADS) {
            const int64_t r = k0 + i / Dp;
            float u[1] = {0};
            if (r < to && i % Dp < D) load<1>(a.k, a.dtype, r * a.k_s + hk * a.k_h + i % Dp, u);
            kv[i / Dp * Kp + i % Dp] = u[0];
        }
        __syncthreads();
        float s[4] = {};
        for (int c = 0; c < Dp; c += 4) {
            const float4 k = *(const float4 *)(kv + lane * Kp + c);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 q = *(const float4 *)(qs + (warp + 8 * i) * Dp + c);
                s[i] += q.x * k.x;
                s[i] += q.y * k.y;
                s[i] += q.z * k.z;
                s[i] += q.w * k.w;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t row = q0 + warp + 8 * i, key = k0 + lane;
            s[i] = key < to && (!a.causal || key <= row) ? s[i] * a.scale : -INFINITY;
            const float now = fmaxf(top[i], warp_max(s[i]));
            const float old = now == -INFINITY ? 1.0f : expf(top[i] - now);
            const float p = now == -INFINITY ? 0.0f : expf(s[i] - now);
            sum[i] = sum[i] * old + warp_sum(p);
            top[i] = now;
#pragma unroll
            for (int j = 0; j < NC; j++)
                acc[i][j] *= old;
            ps[(warp + 8 * i) * F_KEYS + lane] = p;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < F_KEYS * Dp; i += F_THREADS) {
            const int64_t r = k0 + i / Dp;
            float u[1] = {0};
            if (r < to && i % Dp < D) load<1>(a.v, a.dtype, r * a.v_s + hk * a.v_h + i % Dp, u);
            kv[i / Dp * Kp + i % Dp] = u[0];
        }
        __syncthreads();
        for (int k = 0; k < F_KEYS; k++) {
            float v[NC];
#pragma unroll
            for (int j = 0; j < NC; j++)
                v[j] = lane + 32 * j < Dp ? kv[k * Kp + lane + 32 * j] : 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float p = ps[(warp + 8 * i) * F_KEYS + k];
#pragma unroll
                for (int j = 0; j < NC; j++)
                    acc[i][j] += p * v[j];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t row = q0 + warp + 8 * i;
        if (row >= to) continue;
#pragma unroll
        for (int j = 0; j < NC; j++) {
            const int c = lane + 32 * j;
            const float u[1] = {acc[i][j] / sum[i]};
            if (c < D) store<1>(a.o, a.dtype, row * a.o_s + h * a.o_h + c, u);
        }
    }
}

template <int NC> static cudaError_t run_f32(cudaStream_t s, const h3_attn &a)
{
    const size_t Dp = (size_t)(a.dim + 3) / 4 * 4;
    const size_t smem = (F_ROWS * Dp + F_KEYS * (Dp + 4) + F_ROWS * F_KEYS) * sizeof(float);
    const dim3 grid((unsigned)div_up(a.longest, F_ROWS), (unsigned)a.heads, (unsigned)a.n_segments);
    const cudaError_t e = cudaFuncSetAttribute(
        (const void *)f32_kernel<NC>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess) return e;
    return H3_RUN((f32_kernel<NC>), grid, F_THREADS, smem, s, a);
}

extern "C" cudaError_t h3_k_attention_f32(cudaStream_t s, const h3_attn *a)
{
    if (a->longest == 0 || a->n_segments == 0) return cudaSuccess;
    if (a->dim <= 32) return run_f32<1>(s, *a);
    if (a->dim <= 64) return run_f32<2>(s, *a);
    if (a->dim <= 128) return run_f32<4>(s, *a);
    if (a->dim <= 256) return run_f32<8>(s, *a);
    if (a->dim <= 512) return run_f32<16>(s, *a);
    return cudaErrorInvalidValue;
}

/* ---------------------------------------------------------------- tensor cores */

template <bool IS_BF16> static __device__ __forceinline__ unsigned pack2(float lo, float hi)
{
    const unsigned l = IS_BF16 ? to_bf16(lo) : to_f16(lo), h = IS_BF16 ? to_bf16(hi) : to_f16(hi);
    return l | h << 16;
}

enum { M_ROWS = 64, M_THREADS = 128 };

/* Rows [r0, r0 + N) of a head into shared memory [N][D + 8], zeros outside the segment and head. */
template <int N, int D>
static __device__ __forceinline__ void fetch_rows(unsigned short *to, const unsigned short *from,
                                                  int64_t stride, int64_t r0, int64_t end, int dim)
{
    for (int i = threadIdx.x; i < N * (D / 8); i += M_THREADS) {
        const int r = i / (D / 8), c = i % (D / 8) * 8;
        const bool in = r0 + r < end && c < dim;
        copy_async(to + r * (D + 8) + c, in ? from + (r0 + r) * stride + c : from, in ? 16 : 0);
    }
}

template <int D, int KEYS, int STAGES, bool IS_BF16>
static __global__ void __launch_bounds__(M_THREADS) mma_kernel(const __grid_constant__ h3_attn a)
{
    H3_SHARED(uint4, mma_buf);
    enum { W = D + 8, TILES = KEYS / 8 };
    unsigned short *qs = (unsigned short *)mma_buf, *ks = qs + M_ROWS * W,
                   *vs = ks + STAGES * KEYS * W;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int h = blockIdx.y, hk = h / (a.heads / a.kv_heads);
    const unsigned short *Q = (const unsigned short *)a.q + h * a.q_h;
    const unsigned short *K = (const unsigned short *)a.k + hk * a.k_h;
    const unsigned short *V = (const unsigned short *)a.v + hk * a.v_h;
    int64_t from, to;

    if (!segment_of(a, blockIdx.z, &from, &to)) return;
    const int64_t q0 = from + (int64_t)blockIdx.x * M_ROWS;
    if (q0 >= to) return;
    const int64_t end = a.causal && q0 + M_ROWS < to ? q0 + M_ROWS : to;
    const float scale2 = a.scale * 1.4426950408889634f; // exponentials are powers of two

    fetch_rows<M_ROWS, D>(qs, Q, a.q_s, q0, to, a.dim);
    fetch_rows<KEYS, D>(ks, K, a.k_s, from, to, a.dim);
    copies_done();
    fetch_rows<KEYS, D>(vs, V, a.v_s, from, to, a.dim);
    copies_done();

    float acc[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    int stage = 0;
    for (int64_t k0 = from; k0 < end; k0 += KEYS) {
        unsigned short *kt = ks + stage * KEYS * W, *vt = vs + stage * KEYS * W;
        const int next = (stage + 1) % STAGES;
        const bool has_next = k0 + KEYS < end;

        wait_copies<1>(); // keys are there, values may still travel
        __syncthreads();
        if (STAGES > 1 && has_next)
            fetch_rows<KEYS, D>(ks + next * KEYS * W, K, a.k_s, k0 + KEYS, to, a.dim);
        if (STAGES > 1) copies_done();

        float s[TILES][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            unsigned qa[4];
            load_matrices(qa, qs + (warp * 16 + lane % 16) * W + d * 16 + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < TILES; n += 2) {
                unsigned kb[4]; // keys n * 8 .. + 15, channels d * 16 .. + 15
                load_matrices(kb, kt + (n * 8 + lane % 8 + lane / 16 * 8) * W + d * 16 +
                                      lane / 8 % 2 * 8);
                mma<IS_BF16>(s[n], qa, kb[0], kb[1]);
                mma<IS_BF16>(s[n + 1], qa, kb[2], kb[3]);
            }
        }
        /* Lane l holds rows l / 4 and l / 4 + 8 of the warp's 16, columns 2 (l % 4) + {0, 1}. */
        const int64_t row = q0 + warp * 16 + lane / 4;
        const bool is_edge = k0 + KEYS > to || (a.causal && k0 + KEYS > q0 + warp * 16);
        float most[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t key = k0 + n * 8 + lane % 4 * 2 + e % 2;
                s[n][e] *= scale2;
                if (is_edge && (key >= to || (a.causal && key > row + e / 2 * 8)))
                    s[n][e] = -INFINITY;
                most[e / 2] = fmaxf(most[e / 2], s[n][e]);
            }
        float shrink[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
            if (most[i] == -INFINITY) most[i] = 0; // nothing seen yet: all weights are 0
            shrink[i] = exp2f(top[i] - most[i]);
            top[i] = most[i];
            sum[i] *= shrink[i];
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = exp2f(s[n][e] - top[e / 2]);
                sum[e / 2] += s[n][e];
            }
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[d][e] *= shrink[e / 2];

        wait_copies<STAGES - 1>(); // the values of this tile
        __syncthreads();
        if (STAGES > 1 && has_next)
            fetch_rows<KEYS, D>(vs + next * KEYS * W, V, a.v_s, k0 + KEYS, to, a.dim);
        if (STAGES > 1) copies_done();
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            const unsigned pa[4] = {pack2<IS_BF16>(s[2 * n][0], s[2 * n][1]),
                                    pack2<IS_BF16>(s[2 * n][2], s[2 * n][3]),
                                    pack2<IS_BF16>(s[2 * n + 1][0], s[2 * n + 1][1]),
                                    pack2<IS_BF16>(s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                unsigned vb[4]; // keys n * 16 .. + 15, channels d * 16 .. + 15, turned
                load_matrices_t(vb, vt + (n * 16 + lane % 16) * W + d * 16 + lane / 16 * 8);
                mma<IS_BF16>(acc[2 * d], pa, vb[0], vb[1]);
                mma<IS_BF16>(acc[2 * d + 1], pa, vb[2], vb[3]);
            }
        }
        if (STAGES == 1) {
            __syncthreads();
            if (has_next) fetch_rows<KEYS, D>(ks, K, a.k_s, k0 + KEYS, to, a.dim);
            copies_done();
            if (has_next) fetch_rows<KEYS, D>(vs, V, a.v_s, k0 + KEYS, to, a.dim);
            copies_done();
        }
        stage = next;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
        const int64_t row = q0 + warp * 16 + lane / 4 + 8 * i;
        const float over = 1.0f / sum[i];
        if (row >= to) continue;
        unsigned short *o = (unsigned short *)a.o + row * a.o_s + h * a.o_h;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            const int c = d * 8 + lane % 4 * 2;
            if (c < a.dim)
                *(unsigned *)(o + c) =
                    pack2<IS_BF16>(acc[d][2 * i] * over, acc[d][2 * i + 1] * over);
        }
    }
}

template <int D, int KEYS, int STAGES, bool IS_BF16>
static cudaError_t run_mma(cudaStream_t s, const h3_attn &a)
{
    const size_t smem = (size_t)(M_ROWS + 2 * STAGES * KEYS) * (D + 8) * sizeof(unsigned short);
    const dim3 grid((unsigned)div_up(a.longest, M_ROWS), (unsigned)a.heads, (unsigned)a.n_segments);
    const cudaError_t e =
        cudaFuncSetAttribute((const void *)mma_kernel<D, KEYS, STAGES, IS_BF16>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess) return e;
    return H3_RUN((mma_kernel<D, KEYS, STAGES, IS_BF16>), grid, M_THREADS, smem, s, a);
}

template <bool IS_BF16> static cudaError_t pick_mma(cudaStream_t s, const h3_attn &a)
{
    if (a.dim <= 64) return run_mma<64, 64, 2, IS_BF16>(s, a);
    if (a.dim <= 80) return run_mma<80, 64, 2, IS_BF16>(s, a);
    if (a.dim <= 128) return run_mma<128, 64, 2, IS_BF16>(s, a);
    return run_mma<256, 32, 1, IS_BF16>(s, a);
}

extern "C" cudaError_t h3_k_attention_mma(cudaStream_t s, const h3_attn *a)
{
    if (a->longest == 0 || a->n_segments == 0) return cudaSuccess;
    if (a->dim > 256 || a->dim % 8) return cudaErrorInvalidValue;
    return a->dtype == K_BF16 ? pick_mma<true>(s, *a) : pick_mma<false>(s, *a);
}

/* ---------------------------------------------------------------- e4m3 for cuDNN */

/* A block walks over rows [S, H, D] of one of up to three tensors (blockIdx.y). Non-negative floats
 * compare like their bits. */
/* Vectors of 8 of one row's heads: a group of D / 8 threads has every n-th head, four at a time. */
enum { HEADS8_THREADS = 224, HEADS8_AT_ONCE = 4 };

template <typename F>
static __device__ __forceinline__ void each_head_8(const h3_heads8_one &t, int64_t s, int D,
                                                   const F &f)
{
    const int per = D / 8, group = (int)threadIdx.x / per, c = ((int)threadIdx.x - group * per) * 8;
    const int n = (int)blockDim.x / per, H = (int)t.H;
    const unsigned short *x = (const unsigned short *)t.x + s * t.st_s + c;
    for (int first = 0; first < H; first += HEADS8_AT_ONCE * n) {
        bf16x8 u[HEADS8_AT_ONCE];
#pragma unroll
        for (int i = 0; i < HEADS8_AT_ONCE; i++) {
            const int h = first + group + i * n;
            if (h < H) u[i] = f.read(x, h * t.st_h);
        }
#pragma unroll
        for (int i = 0; i < HEADS8_AT_ONCE; i++) {
            const int h = first + group + i * n;
            if (h < H) f.use(h, c, u[i]);
        }
    }
}

struct top_of_heads {
    unsigned &top;
    __device__ bf16x8 read(const void *x, int64_t i) const
    {
        return load_8(x, i);
    }
    __device__ void use(int, int, const bf16x8 &u) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++)
            top = top_of_pairs(top, u.v[k]);
    }
};

static __global__ void __launch_bounds__(HEADS8_THREADS)
    amax_kernel(const __grid_constant__ h3_heads8 a)
{
    __shared__ __align__(16) float part[8];
    const h3_heads8_one &t = a.of[blockIdx.y];
    unsigned top = 0;
    for (int64_t s = blockIdx.x; s < a.S; s += gridDim.x)
        each_head_8(t, s, (int)a.D, top_of_heads{top});
    const float most = block_top_8(top_of(top), part);
    if (threadIdx.x == 0) atomicMax(t.amax, __float_as_uint(most));
}

/* Whole groups of threads for a head each, whole warps of them where a head has a power of two. */
static unsigned heads8_threads(int64_t D)
{
    return (unsigned)(div_up(HEADS8_THREADS / (D / 8) * (D / 8), 32) * 32);
}

extern "C" cudaError_t h3_k_amax(cudaStream_t s, const h3_heads8 *a)
{
    const dim3 grid((unsigned)(a->S < 2048 ? a->S : 2048), (unsigned)a->n);
    if (a->S == 0 || a->n == 0) return cudaSuccess;
    return H3_RUN(amax_kernel, grid, heads8_threads(a->D), 0, s, *a);
}

static __device__ __forceinline__ float factor_of(const h3_heads8_one &t)
{
    const float top = __uint_as_float(*t.amax);
    return top > 0 ? 448.0f / top : 1.0f;
}

static __global__ void descale_kernel(const __grid_constant__ h3_heads8 a, float *scale, float *rows,
                                      int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float last = 1.0f / factor_of(a.of[a.n - 1]);
    if (i < a.n) *a.of[i].descale = 1.0f / factor_of(a.of[i]);
    if (i == 0) *scale = 1.0f / last;
    if (i < n) rows[i] = last;
}

extern "C" cudaError_t h3_k_descale(cudaStream_t s, const h3_heads8 *a, float *scale, float *rows,
                                    int64_t n)
{
    if (a->n == 0) return cudaSuccess;
    return H3_RUN(descale_kernel, (unsigned)div_up(n ? n : 1, 256), 256, 0, s, *a, scale, rows, n);
}

struct heads_to_e4m3 {
    unsigned char *y;
    int D;
    float scale;
    __device__ bf16x8 read(const void *x, int64_t i) const
    {
        return load_8_once(x, i);
    }
    __device__ void use(int h, int c, const bf16x8 &u) const
    {
        store_8_e4m3(y, (int64_t)h * D + c, u, scale);
    }
};

/* Last rows first: of those the caches still know what amax_kernel read. */
static __global__ void __launch_bounds__(HEADS8_THREADS)
    heads_e4m3_kernel(const __grid_constant__ h3_heads8 a)
{
    const h3_heads8_one &t = a.of[blockIdx.y];
    const int64_t s = (int64_t)gridDim.x - 1 - blockIdx.x;
    unsigned char *const y = (unsigned char *)t.y + s * (t.H * a.D);
    each_head_8(t, s, (int)a.D, heads_to_e4m3{y, (int)a.D, factor_of(t)});
}

extern "C" cudaError_t h3_k_heads_e4m3(cudaStream_t s, const h3_heads8 *a)
{
    const dim3 grid((unsigned)a->S, (unsigned)a->n);
    if (a->S == 0 || a->n == 0) return cudaSuccess;
    return H3_RUN(heads_e4m3_kernel, grid, heads8_threads(a->D), 0, s, *a);
}

static __global__ void from_e4m3_kernel(void *y, int dtype, const unsigned char *x, int64_t n,
                                        const float *scale)
{
    const int64_t at = 8 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    const float f = *scale;
    if (at >= n) return;
    const uint2 w = *(const uint2 *)(x + at);
    float u[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const unsigned byte = (k < 4 ? w.x : w.y) >> (8 * (k % 4)) & 255;
        const __half_raw h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)byte, __NV_E4M3);
        u[k] = from_f16(h.x) * f;
    }
    store<8>(y, dtype, at, u);
}

extern "C" cudaError_t h3_k_from_e4m3(cudaStream_t s, void *y, uint8_t dtype, const void *x,
                                      int64_t rows, int64_t cols, const float *scale)
{
    if (rows == 0 || cols == 0) return cudaSuccess;
    return H3_RUN(from_e4m3_kernel, (unsigned)div_up(rows * cols / 8, 256), 256, 0, s, y, dtype,
                  (const unsigned char *)x, rows * cols, scale);
}
