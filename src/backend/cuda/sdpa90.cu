/**
 * Attention for Hopper (sm_90a), heads of 128, one document without a mask: in bf16 1.1 to 1.2 times
 * as fast as cuDNN's, in e4m3 about as fast and much closer (docs/cuda.md). Online softmax as in
 * FlashAttention; what is particular:
 *
 *   - Three groups of four warps have 64 queries each, a fourth brings tiles of keys and values
 *     through a ring in shared memory. A group does one thing after the other: scores, powers,
 *     weighted values; that two others do theirs meanwhile keeps tensor cores busy. Two groups that
 *     overlap their own steps (as FlashAttention-3 does) were 6 to 15 % slower here.
 *   - Scores leave a product in the places where the next one wants its left side. In e4m3 the order
 *     of keys differs: of 32, a thread holds 2 q, 2 q + 1, 8 + 2 q, ... and should hold 4 q .. 4 q + 3.
 *     Any order will do that values have too, so theirs is changed when they become e4m3
 *     (h3_k_turn_e4m3), which also turns them: e4m3 products want both sides along k.
 *   - Weights are up to 2^8 in e4m3, so that what is 2^-17 of the largest is kept. Products in e4m3
 *     add in some 14 bits: sums of 15,000 positive weights were a quarter too small. So each tile's
 *     are added up in f32. The sum of the weights, as they were rounded, is a column of the product,
 *     by a row of ones below the values.
 *   - Keys come last first, so that only the first tile needs a mask.
 */
#include "device.cuh"

#ifdef H3_CUDA_EMULATE
extern "C" bool h3_k_has_attention90(int)
{
    return false;
}
extern "C" cudaError_t h3_k_turn_e4m3(cudaStream_t, const h3_heads8_one *, int64_t)
{
    return cudaErrorNotSupported;
}
extern "C" cudaError_t h3_k_attention90(cudaStream_t, const h3_attn90 *)
{
    return cudaErrorNotSupported;
}
#else
#include <cudaTypedefs.h>

#include "hopper.cuh"
#include "rows.cuh"

enum {
    HEAD = H3_ATTN90_HEAD,
    GROUPS = 3,
    GROUP_ROWS = 64,
    ROWS = GROUPS * GROUP_ROWS, // queries of a block
    GROUP_THREADS = 128,
    THREADS = (GROUPS + 1) * GROUP_THREADS,
    WIDE = 128, // bytes of a row of a tile
    N_SUMS = HEAD / 2
};

/* What the two types differ in: bytes of a number, keys of a tile, tiles under way, rows of a tile of
 * values. In e4m3 values are turned: their rows are channels, and there are eight more below. */
struct e4m3 {
    enum { BYTES = 1, KEYS = H3_ATTN90_TURNED, STAGES = 4, V_ROWS = HEAD + 8 };
};
struct bf16 {
    enum { BYTES = 2, KEYS = 96, STAGES = 3, V_ROWS = KEYS };
};

/* A row of a head fills so many tiles. */
template <typename T> struct ring {
    enum { TILES = HEAD * T::BYTES / WIDE };
    uint8_t q[TILES][ROWS * WIDE];
    uint8_t k[T::STAGES][TILES][T::KEYS * WIDE], v[T::STAGES][TILES][T::V_ROWS * WIDE];
    uint64_t full_q, full_k[T::STAGES], full_v[T::STAGES], free_k[T::STAGES], free_v[T::STAGES];
};
static_assert((int)e4m3::KEYS == WIDE && (int)HEAD == WIDE, "a tile of turned values is one of keys");

/* Parity of the turn in which tile i is in its stage. */
template <typename T> static __device__ __forceinline__ unsigned turn_of(int i)
{
    return i / T::STAGES & 1;
}

template <typename T> static __device__ void prepare(ring<T> &r)
{
    if (threadIdx.x == 0) {
        barrier_init(&r.full_q, 1);
        for (int i = 0; i < T::STAGES; i++) {
            barrier_init(&r.full_k[i], 1);
            barrier_init(&r.full_v[i], 1);
            barrier_init(&r.free_k[i], GROUPS);
            barrier_init(&r.free_v[i], GROUPS);
        }
    }
    if (T::BYTES == 1) // below the values a row of 1.0 and seven of 0
        for (int i = threadIdx.x; i < T::STAGES * 8 * WIDE; i += THREADS)
            r.v[i / (8 * WIDE)][0][HEAD * WIDE + i % (8 * WIDE)] = i % (8 * WIDE) < WIDE ? 0x38 : 0;
    barriers_are_ready();
}

struct attn90_args {
    CUtensorMap q, k, v;
    void *o;
    int64_t o_s, o_h;
    const float *q_descale, *k_descale;
    float scale;
    int S, per_k; // per_k: heads of q that share one of k and v
};

/* One thread: queries once, then tiles of keys and values, the last ones first. */
template <typename T> static __device__ void bring(ring<T> &r, const attn90_args &a, int n)
{
    enum { TILES = ring<T>::TILES, BYTES = TILES * T::KEYS * WIDE, STEP = WIDE / T::BYTES };
    const int h = blockIdx.y, hk = h / a.per_k;

    barrier_expect(&r.full_q, (int)sizeof r.q);
    for (int t = 0; t < TILES; t++)
        bring_tile(r.q[t], &a.q, &r.full_q, t * STEP, h, blockIdx.x * ROWS);
    for (int i = 0; i < n; i++) {
        const int s = i % T::STAGES, key = (n - 1 - i) * T::KEYS;
        if (i >= T::STAGES) barrier_wait(&r.free_k[s], turn_of<T>(i - T::STAGES));
        barrier_expect(&r.full_k[s], BYTES);
        for (int t = 0; t < TILES; t++)
            bring_tile(r.k[s][t], &a.k, &r.full_k[s], t * STEP, hk, key);
        if (i >= T::STAGES) barrier_wait(&r.free_v[s], turn_of<T>(i - T::STAGES));
        barrier_expect(&r.full_v[s], BYTES);
        if (T::BYTES == 1)
            bring_tile(r.v[s][0], &a.v, &r.full_v[s], key, 0, hk);
        else
            for (int t = 0; t < TILES; t++)
                bring_tile(r.v[s][t], &a.v, &r.full_v[s], t * STEP, hk, key);
    }
}

/* ---------------------------------------------------------------- what a group does */

/* Of a thread's two rows: the largest score so far, the sum of weights, and what sums before this
 * tile are to be multiplied by. */
struct softmax {
    float top[2], sum[2], then[2];
};

/* s = q k', 32 bytes of each row at a time. */
template <typename T>
static __device__ __forceinline__ void score(float (&s)[T::KEYS / 2], uint64_t q, uint64_t k)
{
    products_begin(s);
#pragma unroll
    for (int c = 0; c < HEAD * T::BYTES / 32; c++) {
        const int tile = c * 32 / WIDE, at = c * 32 % WIDE;
        const uint64_t qc = tile_at(q, tile * ROWS * WIDE + at);
        const uint64_t kc = tile_at(k, tile * T::KEYS * WIDE + at);
        if constexpr (T::BYTES == 1)
            product_e4m3(s, qc, kc, c > 0);
        else
            product_bf16(s, qc, kc, c > 0);
    }
    products_end(s);
}

/* Only the first n keys are there. */
template <int N> static __device__ __forceinline__ void mask(float (&s)[N], int n)
{
    const int left = n - threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i / 4 * 8 + i % 2 >= left) s[i] = -INFINITY;
}

/* s = e^(scores - the largest), in e4m3 2^8 of it; log2e makes scores powers of 2. */
template <typename T>
static __device__ __forceinline__ void weights(float (&s)[T::KEYS / 2], softmax &m, float log2e)
{
    enum { N = T::KEYS / 2 };
    const float offset = T::BYTES == 1 ? 8 : 0;
    float top[2][2], from[2];

#pragma unroll
    for (int j = 0; j < N / 4; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float two = fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]);
            top[r][j % 2] = j < 2 ? two : fmaxf(top[r][j % 2], two);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = fmaxf(top[r][0], top[r][1]);
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        x = fmaxf(x, m.top[r]);
        m.then[r] = power_of_2((m.top[r] - x) * log2e);
        m.top[r] = x;
        from[r] = offset - x * log2e;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = power_of_2(fmaf(s[i], log2e, from[i / 2 % 2]));
}

/* sums = sums * then + weights v, and the same with the sums of weights. */
static __device__ __forceinline__ void weigh(e4m3, float (&sums)[N_SUMS], float (&s)[e4m3::KEYS / 2],
                                             softmax &m, const ring<e4m3> &r, int stage)
{
    enum { HALF = N_SUMS / 2 };
    unsigned p[e4m3::KEYS / 8];
    float lo[HALF], hi[HALF + 4];
    const uint64_t v = tile_of(r.v[stage]), v_hi = tile_at(v, HEAD / 2 * WIDE);

#pragma unroll
    for (int j = 0; j < e4m3::KEYS / 8; j++) { // 32 keys: row, row + 8, and both 16 keys on
        const int at = j / 4 * 16 + j % 4 / 2 * 8 + j % 2 * 2;
        p[j] = four_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
    }
    products_begin(lo);
    settle_sums(hi);
#pragma unroll
    for (int c = 0; c < e4m3::KEYS / 32; c++)
        product_e4m3(lo, p + 4 * c, tile_at(v, 32 * c), c > 0);
#pragma unroll
    for (int c = 0; c < e4m3::KEYS / 32; c++)
        product_e4m3(hi, p + 4 * c, tile_at(v_hi, 32 * c), c > 0);
    products_end(lo);
    settle_sums(hi);
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        sums[i] = fmaf(sums[i], m.then[i / 2 % 2], lo[i]);
        sums[HALF + i] = fmaf(sums[HALF + i], m.then[i / 2 % 2], hi[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        m.sum[i] = fmaf(m.sum[i], m.then[i], hi[HALF + 2 * i]);
}

static __device__ __forceinline__ void weigh(bf16, float (&sums)[N_SUMS], float (&s)[bf16::KEYS / 2],
                                             softmax &m, const ring<bf16> &r, int stage)
{
    unsigned p[bf16::KEYS / 4];
    const uint64_t v = tile_of(r.v[stage], bf16::KEYS * WIDE);

    if (__any_sync(~0u, m.then[0] != 1 || m.then[1] != 1)) {
#pragma unroll
        for (int i = 0; i < N_SUMS; i++)
            sums[i] *= m.then[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        m.sum[i] *= m.then[i];
#pragma unroll
    for (int i = 0; i < bf16::KEYS / 2; i++)
        m.sum[i / 2 % 2] += s[i];
#pragma unroll
    for (int i = 0; i < bf16::KEYS / 4; i++)
        p[i] = pair_bf16(s[2 * i], s[2 * i + 1]);
    products_begin(sums);
#pragma unroll
    for (int c = 0; c < bf16::KEYS / 16; c++)
        product_bf16(sums, p + 4 * c, tile_at(v, 16 * WIDE * c));
    products_end(sums);
}

/* o [64, 128] of a group; in e4m3 in units of v. */
template <typename T>
static __device__ void store_rows(const attn90_args &a, const float (&sums)[N_SUMS], const softmax &m,
                                  int row)
{
    const int lane = threadIdx.x % 32, c = lane % 4 * 2;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = m.sum[r];
        if (T::BYTES == 1) { // the column of ones is the first thread's
            sum = __shfl_sync(~0u, sum, lane & ~3);
        } else {
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
        }
        const float f = 1.0f / sum;
        const int64_t at = row + lane / 4 + 8 * r;
        if (at >= a.S) continue;
        uint8_t *const o = (uint8_t *)a.o + (at * a.o_s + blockIdx.y * a.o_h + c) * T::BYTES;
#pragma unroll
        for (int j = 0; j < HEAD / 8; j++) {
            const float lo = sums[4 * j + 2 * r] * f, hi = sums[4 * j + 2 * r + 1] * f;
            if (T::BYTES == 1)
                *(unsigned short *)(o + 8 * j) = pair_e4m3(lo, hi);
            else
                *(unsigned *)(o + 16 * j) = pair_bf16(lo, hi);
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    attention90_kernel(const __grid_constant__ attn90_args a)
{
    enum { KEYS = T::KEYS };
    extern __shared__ uint8_t raw[];
    ring<T> &r = *(ring<T> *)(raw + (-shared_at(raw) & 1023)); // tiles are whole kilobytes
    const int group = threadIdx.x / GROUP_THREADS, n = (a.S + KEYS - 1) / KEYS;
    const bool leads = threadIdx.x % GROUP_THREADS == 0;

    prepare(r);
    if (group == GROUPS) {
        registers_given_back<32>();
        if (leads) bring(r, a, n);
        return;
    }
    registers_of_group<160>();
    const float descale = T::BYTES == 1 ? *a.q_descale * *a.k_descale : 1;
    const float log2e = a.scale * descale * 1.4426950408889634f;
    const uint64_t q = tile_of(r.q[0] + group * GROUP_ROWS * WIDE);
    softmax m = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    float sums[N_SUMS];

#pragma unroll
    for (int i = 0; i < N_SUMS; i++)
        sums[i] = 0;
    barrier_wait(&r.full_q, 0);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        const int stage = i % T::STAGES;
        float s[KEYS / 2];

        barrier_wait(&r.full_k[stage], turn_of<T>(i));
        score<T>(s, q, tile_of(r.k[stage][0]));
        if (leads) barrier_arrive(&r.free_k[stage]);
        if (i == 0 && a.S % KEYS) mask(s, a.S % KEYS);
        weights<T>(s, m, log2e);
        barrier_wait(&r.full_v[stage], turn_of<T>(i));
        weigh(T(), sums, s, m, r, stage);
        if (leads) barrier_arrive(&r.free_v[stage]);
    }
    const int warp = threadIdx.x / 32; // 16 rows each, those of groups one after another
    store_rows<T>(a, sums, m, blockIdx.x * ROWS + warp * 16);
}

/* ---------------------------------------------------------------- values */

enum { TURN_THREADS = 256, TURN_KEYS = H3_ATTN90_TURNED, WORDS = TURN_KEYS / 4 };

/* A tile of keys of one head: rows of bf16 come in pieces of 8 channels, four keys of which, in the
 * order of the products, become one word for each channel. Words lie in shared memory where neither
 * side's threads meet in a bank. */
static __global__ void __launch_bounds__(TURN_THREADS)
    turn_kernel(const __grid_constant__ h3_heads8_one t, int S, int64_t ld)
{
    __shared__ unsigned word[HEAD][WORDS];
    const int h = blockIdx.x;
    const int key0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * TURN_KEYS; // what was read last first
    const float top = __uint_as_float(*t.amax), f = top > 0 ? 448.0f / top : 1.0f;
    const int piece = threadIdx.x % (HEAD / 8);

    for (int w = threadIdx.x / (HEAD / 8); w < WORDS; w += TURN_THREADS / (HEAD / 8)) {
        const int key = key0 + w / 4 * 16 + w % 4 * 2;
        bf16x8 x[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t at = key + i / 2 * 8 + i % 2;
            if (at < S) x[i] = load_8_once(t.x, at * t.st_s + h * t.st_h + piece * 8);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            unsigned *const to = &word[piece * 8 + 2 * c][w ^ piece * 2];
            to[0] = four_e4m3(low_of(x[0].v[c]) * f, low_of(x[1].v[c]) * f, low_of(x[2].v[c]) * f,
                              low_of(x[3].v[c]) * f);
            to[WORDS] = four_e4m3(high_of(x[0].v[c]) * f, high_of(x[1].v[c]) * f,
                                  high_of(x[2].v[c]) * f, high_of(x[3].v[c]) * f);
        }
    }
    __syncthreads();
    const int w = threadIdx.x % WORDS;
    for (int c = threadIdx.x / WORDS; c < HEAD; c += TURN_THREADS / WORDS)
        *(unsigned *)((unsigned char *)t.y + ((int64_t)h * HEAD + c) * ld + key0 + w * 4) =
            word[c][w ^ c / 8 * 2];
}

extern "C" cudaError_t h3_k_turn_e4m3(cudaStream_t s, const h3_heads8_one *v, int64_t S)
{
    const dim3 grid((unsigned)v->H, (unsigned)div_up(S, TURN_KEYS));
    if (S == 0) return cudaSuccess;
    return H3_RUN(turn_kernel, grid, TURN_THREADS, 0, s, *v, (int)S, div_up(S, TURN_KEYS) * TURN_KEYS);
}

/* ---------------------------------------------------------------- the host's side */

/* The driver's function that describes tensors to the memory engine; without linking the driver. */
static PFN_cuTensorMapEncodeTiled_v12000 describer()
{
    static const PFN_cuTensorMapEncodeTiled_v12000 found = [] {
        void *f = nullptr;
        cudaDriverEntryPointQueryResult how;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                             &how) != cudaSuccess ||
            how != cudaDriverEntryPointSuccess)
            f = nullptr;
        return (PFN_cuTensorMapEncodeTiled_v12000)f;
    }();
    return found;
}

/* p [ne 2][ne 1][ne 0] of numbers of so many bytes, steps st in numbers; boxes of box 2 by box 1 rows
 * of 128 bytes. */
static bool describe(CUtensorMap *map, const void *p, int bytes, const int64_t (&ne)[3],
                     const int64_t (&st)[2], unsigned box1, unsigned box2)
{
    const cuuint64_t extent[3] = {(cuuint64_t)ne[0], (cuuint64_t)ne[1], (cuuint64_t)ne[2]};
    const cuuint64_t step[2] = {(cuuint64_t)(st[0] * bytes), (cuuint64_t)(st[1] * bytes)};
    const cuuint32_t box[3] = {(cuuint32_t)(WIDE / bytes), box1, box2}, each[3] = {1, 1, 1};
    const CUtensorMapDataType type =
        bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return describer()(map, type, 3, (void *)p, extent, step, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T> static cudaError_t run(cudaStream_t stream, const h3_attn90 &a)
{
    enum { BYTES = T::BYTES, KEYS = T::KEYS };
    const size_t shared = sizeof(ring<T>) + 1023;
    const int64_t ld = div_up(a.S, KEYS) * KEYS;
    const int64_t q[3] = {HEAD, a.H, a.S}, k[3] = {HEAD, a.Hk, a.S}, turned[3] = {ld, HEAD, a.Hk};
    const int64_t q_st[2] = {a.q_h, a.q_s}, k_st[2] = {a.k_h, a.k_s}, v_st[2] = {a.v_h, a.v_s};
    const int64_t turned_st[2] = {ld, HEAD * ld};
    attn90_args to = {.o = a.o,
                      .o_s = a.o_s,
                      .o_h = a.o_h,
                      .q_descale = a.q_descale,
                      .k_descale = a.k_descale,
                      .scale = a.scale,
                      .S = (int)a.S,
                      .per_k = (int)(a.H / a.Hk)};

    if (a.S == 0) return cudaSuccess;
    if (!describe(&to.q, a.q, BYTES, q, q_st, 1, ROWS) ||
        !describe(&to.k, a.k, BYTES, k, k_st, 1, KEYS) ||
        !(BYTES == 1 ? describe(&to.v, a.v, BYTES, turned, turned_st, HEAD, 1)
                     : describe(&to.v, a.v, BYTES, k, v_st, 1, KEYS)))
        return cudaErrorInvalidValue;
    const cudaError_t e = cudaFuncSetAttribute(
        attention90_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (e != cudaSuccess) return e;
    return H3_RUN(attention90_kernel<T>, dim3((unsigned)div_up(a.S, ROWS), (unsigned)a.H), THREADS,
                  shared, stream, to);
}

extern "C" bool h3_k_has_attention90(int capability)
{
    return capability == 90 && describer();
}

extern "C" cudaError_t h3_k_attention90(cudaStream_t stream, const h3_attn90 *a)
{
    return a->q_descale ? run<e4m3>(stream, *a) : run<bf16>(stream, *a);
}
#endif
