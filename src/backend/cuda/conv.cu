/**
 * Kernels around convolutions, which run as matrix products over unfolded input (conv.c), and the
 * activations of the audio network.
 */
#include "device.cuh"

/* Where cell i (may be outside) of an axis of n cells is read from; -1 means zero. */
static __device__ __forceinline__ int64_t pad_index(int64_t i, int64_t n, int mode)
{
    if (i >= 0 && i < n) return i;
    if (mode == 2) return i < 0 ? 0 : n - 1;
    if (mode == 1) return i < 0 ? -i : 2 * (n - 1) - i;
    return -1;
}

enum { ROWS_A_THREAD = 16 };

/* A thread walks down ROWS_A_THREAD rows of its column: its output position is worked out once. */
template <typename T>
static __global__ void unfold_kernel(T *cols, const __grid_constant__ h3_unfold u, int64_t K,
                                     int64_t first, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t p = first + i;
    const int64_t w = p % u.y_ne[2], h = p / u.y_ne[2] % u.y_ne[1], t = p / (u.y_ne[2] * u.y_ne[1]);
    const int64_t t0 = t * u.stride[0] - u.pad[0], h0 = h * u.stride[1] - u.pad[1],
                  w0 = w * u.stride[2] - u.pad[2];
    const int kh_n = u.kernel[1], kw_n = u.kernel[2], area = kh_n * kw_n;
    const int taps = u.kernel[0] * area;

    for (int64_t k0 = (int64_t)blockIdx.y * ROWS_A_THREAD; k0 < K;
         k0 += (int64_t)gridDim.y * ROWS_A_THREAD) {
        int64_t c = k0 / taps;
        int tap = (int)(k0 % taps);
        for (int j = 0; j < ROWS_A_THREAD && k0 + j < K; j++) {
            const int64_t tt = pad_index(t0 + tap / area * u.dilation[0], u.x_ne[0], u.mode[0]);
            const int64_t hh =
                pad_index(h0 + tap % area / kw_n * u.dilation[1], u.x_ne[1], u.mode[1]);
            const int64_t ww = pad_index(w0 + tap % kw_n * u.dilation[2], u.x_ne[2], u.mode[2]);
            float v = 0;
            if (tt >= 0 && hh >= 0 && ww >= 0)
                v = u.x[c * u.x_st[0] + tt * u.x_st[1] + hh * u.x_st[2] + ww];
            cols[(k0 + j) * n + i] = (T)v;
            if (++tap == taps) {
                tap = 0;
                c++;
            }
        }
    }
}

template <typename T>
static cudaError_t unfold(cudaStream_t s, T *cols, const h3_unfold *u, int64_t channels,
                          int64_t first, int64_t n)
{
    const int64_t K = channels * u->kernel[0] * u->kernel[1] * u->kernel[2];
    const int64_t bands = div_up(K, ROWS_A_THREAD);
    const dim3 grid((unsigned)div_up(n, 256), (unsigned)(bands < 65535 ? bands : 65535));
    if (n == 0 || K == 0) return cudaSuccess;
    return H3_RUN((unfold_kernel<T>), grid, 256, 0, s, cols, *u, K, first, n);
}

extern "C" cudaError_t h3_k_unfold(cudaStream_t s, float *cols, const h3_unfold *u,
                                   int64_t channels, int64_t first, int64_t n)
{
    return unfold(s, cols, u, channels, first, n);
}

extern "C" cudaError_t h3_k_unfold_f64(cudaStream_t s, double *cols, const h3_unfold *u,
                                       int64_t channels, int64_t first, int64_t n)
{
    return unfold(s, cols, u, channels, first, n);
}

static __global__ void widen_kernel(double *y, const float *x, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (double)x[i];
}

extern "C" cudaError_t h3_k_widen(cudaStream_t s, double *y, const float *x, int64_t n)
{
    if (n == 0) return cudaSuccess;
    return H3_RUN(widen_kernel, (unsigned)div_up(n, 256), 256, 0, s, y, x, n);
}

static __global__ void narrow_kernel(float *y, int64_t ld, const double *x, const float *bias,
                                     int64_t rows, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * n) return;
    const int64_t r = i / n;
    y[r * ld + i - r * n] = (float)(x[i] + (bias ? (double)bias[r] : 0.0));
}

extern "C" cudaError_t h3_k_narrow(cudaStream_t s, float *y, int64_t ld, const double *x,
                                   const float *bias, int64_t rows, int64_t n)
{
    if (rows * n == 0) return cudaSuccess;
    return H3_RUN(narrow_kernel, (unsigned)div_up(rows * n, 256), 256, 0, s, y, ld, x, bias, rows,
                  n);
}

struct finish_args {
    h3_rows y, add;
    const float *bias;
    int64_t per;
};

static __global__ void finish_kernel(const __grid_constant__ finish_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.y.rows * a.y.cols) return;
    const int64_t r = i / a.y.cols, c = i % a.y.cols;
    float *y = (float *)a.y.p + row_at(a.y, r) + c, v = *y;
    if (a.bias) v += a.bias[r / a.per];
    if (a.add.p) v += ((const float *)a.add.p)[row_at(a.add, r) + c];
    *y = v;
}

extern "C" cudaError_t h3_k_conv_finish(cudaStream_t s, h3_rows y, h3_rows add, const float *bias,
                                        int64_t rows_per_channel)
{
    const finish_args a = {y, add, bias, rows_per_channel};
    const int64_t n = y.rows * y.cols;
    if (n == 0) return cudaSuccess;
    return H3_RUN(finish_kernel, (unsigned)div_up(n, 256), 256, 0, s, a);
}

static __global__ void fold1d_kernel(const __grid_constant__ h3_rows y, const float *cols,
                                     int64_t m, const float *bias, int kernel, int stride, int pad)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= y.rows * y.cols) return;
    const int64_t co = i / y.cols, n = i % y.cols;
    float v = bias ? bias[co] : 0.0f;
    for (int k = (int)((n + pad) % stride); k < kernel; k += stride) {
        const int64_t from = (n + pad - k) / stride;
        if (n + pad >= k && from < m) v += cols[(co * kernel + k) * m + from];
    }
    ((float *)y.p)[row_at(y, co) + n] = v;
}

extern "C" cudaError_t h3_k_fold1d(cudaStream_t s, h3_rows y, const float *cols, int64_t m,
                                   const float *bias, int kernel, int stride, int pad)
{
    const int64_t n = y.rows * y.cols;
    if (n == 0) return cudaSuccess;
    return H3_RUN(fold1d_kernel, (unsigned)div_up(n, 256), 256, 0, s, y, cols, m, bias, kernel,
                  stride, pad);
}

/* ---------------------------------------------------------------- snakes */

/* a x is rounded to f32 before the sine, as the reference does. */
static __device__ __forceinline__ float snake_of(float x, float a, float over_b)
{
    const float s = sinf(__fmul_rn(a, x));
    return x + __fmul_rn(__fmul_rn(s, s), over_b);
}

static __global__ void snake_kernel(const __grid_constant__ h3_rows y,
                                    const __grid_constant__ h3_rows x, const float *a,
                                    const float *b)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= y.rows * y.cols) return;
    const int64_t c = i / y.cols, n = i % y.cols;
    const float v = ((const float *)x.p)[row_at(x, c) + n];
    ((float *)y.p)[row_at(y, c) + n] = snake_of(v, a[c], 1.0f / (b[c] + 1e-9f));
}

extern "C" cudaError_t h3_k_snake(cudaStream_t s, h3_rows y, h3_rows x, const float *a,
                                  const float *b)
{
    const int64_t n = y.rows * y.cols;
    if (n == 0) return cudaSuccess;
    return H3_RUN(snake_kernel, (unsigned)div_up(n, 256), 256, 0, s, y, x, a, b);
}

enum { AA_TILE = 512, AA_THREADS = 256, AA_HALO = 8 };

static __device__ __forceinline__ int64_t clamp_index(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i < n ? i : n - 1;
}

/*
 * AA_TILE samples of one channel: the input with its halo, then the doubled signal after the snake,
 * both in shared memory. Output n needs doubled samples 2 n - 5 .. 2 n + 6; doubled sample m needs
 * input (m + 15 - k) / 2 - 5 for the taps k of m's parity.
 */
static __global__ void snake_aa_kernel(const __grid_constant__ h3_rows y,
                                       const __grid_constant__ h3_rows x, const float *a,
                                       const float *b, const float *up, const float *down)
{
    __shared__ float in[AA_TILE + 2 * AA_HALO], wide[2 * AA_TILE + 10], taps[24];
    const int64_t N = x.cols, n0 = (int64_t)blockIdx.x * AA_TILE, c = blockIdx.y;
    const float *line = (const float *)x.p + row_at(x, c);
    const float ca = a[c], over = 1.0f / (b[c] + 1e-9f);

    if (threadIdx.x < 12) taps[threadIdx.x] = 2.0f * up[threadIdx.x];
    if (threadIdx.x >= 12 && threadIdx.x < 24) taps[threadIdx.x] = down[threadIdx.x - 12];
    for (int i = threadIdx.x; i < AA_TILE + 2 * AA_HALO; i += AA_THREADS)
        in[i] = line[clamp_index(n0 + i - AA_HALO, N)];
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * AA_TILE + 10; i += AA_THREADS) {
        const int64_t m = clamp_index(2 * n0 + i - 5, 2 * N);
        const int odd = (int)((m + 15) & 1);
        const int at =
            (int)((m + 15 - odd) / 2 - 5 - n0) + AA_HALO; // tap k reads at - (k - odd) / 2
        float s = 0;
        if (at - 5 >= 0 && at < AA_TILE + 2 * AA_HALO) { // else beyond the last output's reach
#pragma unroll
            for (int k = 0; k < 6; k++)
                s += in[at - k] * taps[2 * k + odd];
            s = snake_of(s, ca, over);
        }
        wide[i] = s;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < AA_TILE; i += AA_THREADS) {
        if (n0 + i >= N) break;
        float s = 0;
#pragma unroll
        for (int k = 0; k < 12; k++)
            s += wide[2 * i + k] * taps[12 + k];
        ((float *)y.p)[row_at(y, c) + n0 + i] = s;
    }
}

extern "C" cudaError_t h3_k_snake_aa(cudaStream_t s, h3_rows y, h3_rows x, const float *a,
                                     const float *b, const float *up, const float *down)
{
    const dim3 grid((unsigned)div_up(x.cols, AA_TILE), (unsigned)x.rows);
    if (x.rows * x.cols == 0) return cudaSuccess;
    return H3_RUN(snake_aa_kernel, grid, AA_THREADS, 0, s, y, x, a, b, up, down);
}
