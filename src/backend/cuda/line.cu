/**
 * Convolutions of lines (conv1d of stride 1, zeros outside) on tensor cores, without unfolding.
 *
 * f32 in and out. Every number is taken apart into two halves of 11 bits, a = a1 + a2, and a product
 * is a1 b1 + a1 b2 + a2 b1, three 16-bit products whose error is 2^-22. What keeps halves in their
 * range is a power of two: one a row of the weights, one for each 32 channels of a block's input,
 * found as they arrive. Tensor cores cut off what they cannot keep, so their sums are short (one tap,
 * 16 channels) and are added up in f32 registers.
 *
 * Where there are too few outputs to fill the GPU, input channels are divided among `splits` blocks,
 * whose sums a second kernel adds up in their order.
 *
 * A block makes BM channels x BN samples. Its input lies in shared memory with the channels side by
 * side, [sample][channel], where a tap is an offset in whole rows; weights come from the cache in the
 * order in which the lanes hold them.
 */
#include "mma.cuh"

enum { CHUNK = 32, PITCH = CHUNK + 8, LINE_THREADS = 256, WARP_M = 32, WARP_N = 32 };

/* What a number has to be multiplied with to lie in [2^13, 2^14) if it is `top`, and the inverse. */
static __device__ __forceinline__ void powers_for(float top, float *up, float *down)
{
    unsigned e = __float_as_uint(top) >> 23 & 255;
    e = e < 14 ? 14 : e > 253 ? 253 : e;
    *up = __uint_as_float((267 - e) << 23);
    *down = __uint_as_float((e - 13) << 23);
}

/* v as two halves: first 11 bits in the low word, what is left in the high one. */
static __device__ __forceinline__ unsigned halves(float v)
{
    const unsigned short hi = to_f16(v), lo = to_f16(v - from_f16(hi));
    return hi | (unsigned)lo << 16;
}

/* ---------------------------------------------------------------- weights */

static __global__ void row_scale_kernel(float *scale, const float *w, int64_t K)
{
    __shared__ float part[32];
    const float *row = w + (int64_t)blockIdx.x * K;
    float top = 0, up, down;

    for (int64_t k = threadIdx.x; k < K; k += blockDim.x)
        top = fmaxf(top, fabsf(row[k]));
    top = block_max(top, part);
    powers_for(top, &up, &down);
    if (threadIdx.x == 0) scale[blockIdx.x] = down;
}

/* One lane's eight numbers of a 16 x 16 piece: rows g and g + 8, columns 2 t, 2 t + 1 and the same
 * + 8, as mma wants them; first all high parts of the piece, then all low ones. */
static __global__ void pack_kernel(uint4 *out, const float *w, const float *scale, int64_t n,
                                   int co, int ci, int taps, int pieces_m, int pieces_k)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int lane = (int)(i % 32), g = lane / 4, t = lane % 4;
    const int64_t piece = i / 32;
    const int m = (int)(piece % pieces_m), k = (int)(piece / pieces_m % pieces_k);
    const int tap = (int)(piece / pieces_m / pieces_k);
    unsigned hi[4], lo[4];

#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int row = m * 16 + g + r % 2 * 8, col = k * 16 + 2 * t + r / 2 * 8;
        unsigned h[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const bool in = row < co && col + e < ci;
            h[e] = in ? halves(w[((int64_t)row * ci + col + e) * taps + tap] * (1.0f / scale[row]))
                      : 0;
        }
        hi[r] = (h[0] & 0xffffu) | h[1] << 16;
        lo[r] = h[0] >> 16 | (h[1] & 0xffff0000u);
    }
    out[piece * 64 + lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    out[piece * 64 + 32 + lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

static int pieces_m(int64_t co)
{
    return (int)(div_up(co, 64) * 4);
}

static int pieces_k(int64_t ci)
{
    return (int)(div_up(ci, CHUNK) * (CHUNK / 16));
}

extern "C" size_t h3_k_line_bytes(int64_t co, int64_t ci, int taps)
{
    return (size_t)taps * (size_t)pieces_m(co) * (size_t)pieces_k(ci) * 64 * sizeof(uint4);
}

extern "C" cudaError_t h3_k_line_pack(cudaStream_t s, void *out, float *scale, const float *w,
                                      int64_t co, int64_t ci, int taps)
{
    const int64_t n = (int64_t)(h3_k_line_bytes(co, ci, taps) / 64 / sizeof(uint4)) * 32;
    const cudaError_t e = H3_RUN(row_scale_kernel, (unsigned)co, 256, 0, s, scale, w, ci * taps);
    if (e != cudaSuccess) return e;
    return H3_RUN(pack_kernel, (unsigned)div_up(n, 256), 256, 0, s, (uint4 *)out, w, scale, n,
                  (int)co, (int)ci, taps, pieces_m(co), pieces_k(ci));
}

/* ---------------------------------------------------------------- the convolution */

/* WM warps below each other, 8 / WM side by side. ITEMS: vectors of 8 channels a thread brings. */
template <int WM, int ITEMS>
static __global__ void __launch_bounds__(LINE_THREADS)
    line_kernel(const __grid_constant__ h3_line a, int n_m, int n_k)
{
    H3_SHARED(uint4, line_buf);
    __shared__ float part[32];
    enum { WN = 8 / WM, BM = WARP_M * WM, BN = WARP_N * WN };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WN, wn = warp % WN;
    const int rows = BN + (a.taps - 1) * a.dilation;
    unsigned short *xh = (unsigned short *)line_buf, *xl = xh + rows * PITCH;
    const int64_t n0 = (int64_t)blockIdx.x * BN;
    const int m0 = blockIdx.y * BM;
    const uint4 *w = (const uint4 *)a.w + ((int64_t)m0 / 16 + wm * 2) * 64 + lane;
    float acc[2][4][4] = {};
    const int share = (int)div_up(div_up(a.ci, CHUNK), a.splits) * CHUNK;
    const int from = (int)blockIdx.z * share, to = from + share < a.ci ? from + share : a.ci;

    for (int c0 = from; c0 < to; c0 += CHUNK) {
        float u[ITEMS][8], top = 0, up, down;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const int item = (int)threadIdx.x + i * LINE_THREADS, r = item % rows, g = item / rows;
            const int64_t at = n0 + r - a.pad;
            const bool in = g < CHUNK / 8 && at >= 0 && at < a.n;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const int c = c0 + g * 8 + j;
                u[i][j] = in && c < a.ci ? a.x[c * a.x_st + at] : 0.0f;
                top = fmaxf(top, fabsf(u[i][j]));
            }
        }
        top = block_max(top, part); // waits until the chunk before is used up, too
        powers_for(top, &up, &down);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            const int item = (int)threadIdx.x + i * LINE_THREADS, r = item % rows, g = item / rows;
            unsigned h[8];
            if (g >= CHUNK / 8) continue;
#pragma unroll
            for (int j = 0; j < 8; j++)
                h[j] = halves(u[i][j] * up);
            *(uint4 *)(xh + r * PITCH + g * 8) =
                make_uint4((h[0] & 0xffffu) | h[1] << 16, (h[2] & 0xffffu) | h[3] << 16,
                           (h[4] & 0xffffu) | h[5] << 16, (h[6] & 0xffffu) | h[7] << 16);
            *(uint4 *)(xl + r * PITCH + g * 8) =
                make_uint4(h[0] >> 16 | (h[1] & 0xffff0000u), h[2] >> 16 | (h[3] & 0xffff0000u),
                           h[4] >> 16 | (h[5] & 0xffff0000u), h[6] >> 16 | (h[7] & 0xffff0000u));
        }
        __syncthreads();
        for (int tap = 0; tap < a.taps; tap++) {
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++) {
                const uint4 *at = w + ((int64_t)tap * n_k + c0 / 16 + k) * n_m * 64;
                unsigned ah[2][4], al[2][4], bh[2][4], bl[2][4];
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const uint4 h = at[m * 64], l = at[m * 64 + 32];
                    ah[m][0] = h.x, ah[m][1] = h.y, ah[m][2] = h.z, ah[m][3] = h.w;
                    al[m][0] = l.x, al[m][1] = l.y, al[m][2] = l.z, al[m][3] = l.w;
                }
#pragma unroll
                for (int n = 0; n < 2; n++) { // 16 samples: two pieces of 8
                    const int r = wn * WARP_N + n * 16 + lane % 8 + lane / 16 * 8 +
                                  tap * a.dilation;
                    const int at_x = r * PITCH + k * 16 + lane / 8 % 2 * 8;
                    load_matrices(bh[n], xh + at_x);
                    load_matrices(bl[n], xl + at_x);
                }
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        const unsigned *h = bh[n / 2] + n % 2 * 2, *l = bl[n / 2] + n % 2 * 2;
                        float c[4] = {};
                        mma<false>(c, al[m], h[0], h[1]);
                        mma<false>(c, ah[m], l[0], l[1]);
                        mma<false>(c, ah[m], h[0], h[1]);
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            acc[m][n][e] += c[e] * down;
                    }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = m0 + wm * WARP_M + m * 16 + lane / 4 + e / 2 * 8;
            if (row >= a.co) continue;
            const float scale = a.scale[row];
            const float bias = a.bias && a.splits == 1 ? a.bias[row] : 0.0f;
            float *y = a.splits == 1 ? a.y + row * a.y_st
                                     : a.part + ((int64_t)blockIdx.z * a.co + row) * a.n_out;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int64_t at = n0 + wn * WARP_N + n * 8 + lane % 4 * 2 + e % 2;
                if (at >= a.n_out) continue;
                float v = acc[m][n][e] * scale + bias;
                if (a.add && a.splits == 1) v += a.add[row * a.add_st + at];
                y[at] = v;
            }
        }
}

static __global__ void sum_parts_kernel(const __grid_constant__ h3_line a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, n = (int64_t)a.co * a.n_out;
    if (i >= n) return;
    const int64_t row = i / a.n_out, at = i - row * a.n_out;
    float v = a.part[i];
    for (int s = 1; s < a.splits; s++)
        v += a.part[s * n + i];
    if (a.bias) v += a.bias[row];
    if (a.add) v += a.add[row * a.add_st + at];
    a.y[row * a.y_st + at] = v;
}

template <int WM, int ITEMS> static cudaError_t run_line(cudaStream_t s, const h3_line &a)
{
    enum { BM = WARP_M * WM, BN = WARP_N * 8 / WM };
    const int rows = BN + (a.taps - 1) * a.dilation;
    const size_t smem = (size_t)rows * PITCH * 2 * sizeof(unsigned short);
    const dim3 grid((unsigned)div_up(a.n_out, BN), (unsigned)div_up(a.co, BM), (unsigned)a.splits);
    cudaError_t e =
        cudaFuncSetAttribute((const void *)line_kernel<WM, ITEMS>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
    if (e != cudaSuccess) return e;
    e = H3_RUN((line_kernel<WM, ITEMS>), grid, LINE_THREADS, smem, s, a, pieces_m(a.co),
               pieces_k(a.ci));
    if (e != cudaSuccess || a.splits == 1) return e;
    return H3_RUN(sum_parts_kernel, (unsigned)div_up(a.co * a.n_out, 256), 256, 0, s, a);
}

extern "C" bool h3_k_line_fits(int64_t co, int64_t ci, int64_t taps, int64_t dilation, int64_t n)
{
#ifdef H3_CUDA_EMULATE
    enum { LEAST = 16 }; // narrower ones are mostly padding, for which the processor has no time
#else
    enum { LEAST = 1 };
#endif
    return co >= LEAST && ci >= LEAST && co < 1 << 20 && ci < 1 << 20 && n > 0 && n < (int64_t)1 << 30 &&
           taps < 64 && dilation < 64 && (taps - 1) * dilation <= 64;
}

extern "C" int h3_k_line_splits(int64_t co, int64_t ci, int64_t n_out, int sms)
{
    const int64_t blocks = co <= 32 ? div_up(n_out, 256) : div_up(n_out, 128) * div_up(co, 64);
    const int64_t chunks = div_up(ci, CHUNK);
    int64_t splits = 2 * sms / (blocks ? blocks : 1); // two blocks live on a multiprocessor

    if (splits > 8) splits = 8;
    if (splits > chunks / 2) splits = chunks / 2;
    if (splits < 2) return 1;
    return (int)div_up(chunks, div_up(chunks, splits)); // none of them without work
}

extern "C" cudaError_t h3_k_line(cudaStream_t s, const h3_line *a)
{
    return a->co <= 32 ? run_line<1, 5>(s, *a) : run_line<2, 3>(s, *a);
}
