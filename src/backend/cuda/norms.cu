/**
 * Entries that need a whole row before they can write it: norms, and rows that leave in e4m3 with a
 * scale of their own. A block, or a warp, has one row, held in registers between the reduction and
 * the result. Compiled without contraction, see rows.cu.
 */
#include "rows.cuh"

/* ---------------------------------------------------------------- norms: a block, a row */

/* What is done with a row once its statistics are known. */
enum norm_kind { RMS, LAYER, RMS_MOD };

struct norm_args {
    h3_rows y, x;
    const float *g, *b;
    h3_mod m;
    float eps;
    bool round_first;
    void *q;   // e4m3 rows instead of y, at a distance of ldq, or NULL
    float *qs; // their scales
    int64_t ldq;
    h3_rows h; // first x += gate * h; p NULL: not
    h3_mod gate;
};

/* N vectors of V a thread stay in registers. N 0: rows too long for that are read again. */
template <int KIND, int V, int N> struct norm_row {
    static __device__ __forceinline__ void out(const norm_args &a, int64_t r, int64_t c, float mean,
                                               float inv, float (&u)[V])
    {
        const int t = a.y.dtype;
        float g[V];
        load_vector<V>(a.g, c, 1.0f, g);
        if constexpr (KIND == RMS_MOD) {
            const int64_t at = a.m.row[r] * a.m.st_r + c;
            float sc[V], sh[V];
            load<V>(a.m.p, a.m.dtype, at + a.m.scale, sc);
            load<V>(a.m.p, a.m.dtype, at + a.m.shift, sh);
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float v = rounded(t, u[k] * inv * g[k]);
                u[k] = rounded(t, v * rounded(t, 1.0f + sc[k])) + sh[k];
            }
        } else if constexpr (KIND == RMS) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float v = u[k] * inv;
                u[k] = (a.round_first ? rounded(t, v) : v) * g[k];
            }
        } else {
            float b[V];
            load_vector<V>(a.b, c, 0.0f, b);
#pragma unroll
            for (int k = 0; k < V; k++)
                u[k] = (u[k] - mean) * inv * g[k] + b[k];
        }
    }
};

template <int KIND, int V, int N> static __global__ void norm_kernel(norm_args a)
{
    __shared__ float part[2][32];
    const int64_t r = blockIdx.x, C = a.x.cols;
    const int64_t xo = row_at(a.x, r), yo = row_at(a.y, r);
    float u[N ? N : 1][V];
    float mean = 0, ss = 0;

    if constexpr (N > 0) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = ((int64_t)i * blockDim.x + threadIdx.x) * V;
#pragma unroll
            for (int k = 0; k < V; k++)
                u[i][k] = 0;
            if (c < C) load<V>(a.x.p, a.x.dtype, xo + c, u[i]);
        }
    }
    if (KIND == LAYER) {
        if constexpr (N > 0) {
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int k = 0; k < V; k++)
                    mean += u[i][k];
        } else {
            for (int64_t c = (int64_t)threadIdx.x * V; c < C; c += (int64_t)blockDim.x * V) {
                load<V>(a.x.p, a.x.dtype, xo + c, u[0]);
#pragma unroll
                for (int k = 0; k < V; k++)
                    mean += u[0][k];
            }
        }
        mean = block_sum(mean, part[0]) / (float)C;
    }
    if constexpr (N > 0) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if ((((int64_t)i * blockDim.x + threadIdx.x) * V) < C) {
#pragma unroll
                for (int k = 0; k < V; k++)
                    ss += (u[i][k] - mean) * (u[i][k] - mean);
            }
        }
    } else {
        for (int64_t c = (int64_t)threadIdx.x * V; c < C; c += (int64_t)blockDim.x * V) {
            load<V>(a.x.p, a.x.dtype, xo + c, u[0]);
#pragma unroll
            for (int k = 0; k < V; k++)
                ss += (u[0][k] - mean) * (u[0][k] - mean);
        }
    }
    ss = block_sum(ss, part[1]);
    const float inv = 1.0f / sqrtf(ss / (float)C + a.eps);

    if constexpr (N == 0) {
        __syncthreads(); // y may be x
        for (int64_t c = (int64_t)threadIdx.x * V; c < C; c += (int64_t)blockDim.x * V) {
            load<V>(a.x.p, a.x.dtype, xo + c, u[0]);
            norm_row<KIND, V, N>::out(a, r, c, mean, inv, u[0]);
            store<V>(a.y.p, a.y.dtype, yo + c, u[0]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t c = ((int64_t)i * blockDim.x + threadIdx.x) * V;
            if (c < C) {
                norm_row<KIND, V, N>::out(a, r, c, mean, inv, u[i]);
                store<V>(a.y.p, a.y.dtype, yo + c, u[i]);
            }
        }
    }
}

template <int KIND, int V> static cudaError_t run_norm(cudaStream_t s, const norm_args &a)
{
    const int64_t per = a.x.cols / V, n = div_up(per, 256);
    const unsigned rows = (unsigned)a.x.rows;
    const unsigned threads = n > 4 ? 512 : (unsigned)(div_up(div_up(per, n ? n : 1), 32) * 32);
    if (a.x.rows == 0 || per == 0) return cudaSuccess;
    switch (n) {
    case 1:
        return H3_RUN((norm_kernel<KIND, V, 1>), rows, threads, 0, s, a);
    case 2:
        return H3_RUN((norm_kernel<KIND, V, 2>), rows, threads, 0, s, a);
    case 3:
        return H3_RUN((norm_kernel<KIND, V, 3>), rows, threads, 0, s, a);
    case 4:
        return H3_RUN((norm_kernel<KIND, V, 4>), rows, threads, 0, s, a);
    default:
        return H3_RUN((norm_kernel<KIND, V, 0>), rows, threads, 0, s, a);
    }
}

/* bf16 rows of at most 256 N numbers: a warp a row, nothing to wait for. */
template <int N> static __global__ void norm_warp_8_kernel(const __grid_constant__ norm_args a)
{
    const int lane = threadIdx.x % 32, C = (int)a.x.cols;
    const int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (r >= a.x.rows) return;
    const int64_t xo = row_at(a.x, r), yo = row_at(a.y, r);
    bf16x8 u[N];
    float ss = 0;

#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * 32 + lane) * 8;
        if (c < C) u[i] = load_8(a.x.p, xo + c);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((i * 32 + lane) * 8 < C) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = __bfloat1622float2(u[i].v[k]);
                ss += f.x * f.x + f.y * f.y;
            }
        }
    const float inv = 1.0f / sqrtf(warp_sum(ss) / (float)C + a.eps);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * 32 + lane) * 8;
        if (c < C) {
            float g[8];
            load_vector<8>(a.g, c, 1.0f, g);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = __bfloat1622float2(u[i].v[k]);
                float v = f.x * inv, w = f.y * inv;
                if (a.round_first) v = rounded(K_BF16, v), w = rounded(K_BF16, w);
                u[i].v[k] = __floats2bfloat162_rn(v * g[2 * k], w * g[2 * k + 1]);
            }
            store_8(a.y.p, yo + c, u[i]);
        }
    }
}

extern "C" cudaError_t h3_k_rms_norm(cudaStream_t s, h3_rows y, h3_rows x, const float *g,
                                     float eps, bool round_first)
{
    const norm_args a = {y, x, g, NULL, {}, eps, round_first};
    if (fits_8(x) && fits_8(y) && x.cols <= 2048 && x.rows > 0 && is_wide_vector(g))
        return H3_RUN((norm_warp_8_kernel<8>), (unsigned)div_up(x.rows, 8), 256, 0, s, a);
    if (is_wide(x) && is_wide(y) && is_wide_vector(g)) return run_norm<RMS, 8>(s, a);
    return run_norm<RMS, 1>(s, a);
}

extern "C" cudaError_t h3_k_layer_norm(cudaStream_t s, h3_rows y, h3_rows x, const float *g,
                                       const float *b, float eps)
{
    const norm_args a = {y, x, g, b, {}, eps, false};
    if (is_wide(x) && is_wide(y) && is_wide_vector(g) && is_wide_vector(b))
        return run_norm<LAYER, 8>(s, a);
    return run_norm<LAYER, 1>(s, a);
}

/* rms_norm_mod of a bf16 stream, after gate_add where IS_GATED: N vectors of 8 a thread wait as
 * bf16. Rows pass once and by; the modulation, which rows share, is what the caches are for. */
template <int N, bool IS_GATED>
static __global__ void norm_mod_8_kernel(const __grid_constant__ norm_args a)
{
    __shared__ float part[2][32];
    start_early();
    const int64_t r = blockIdx.x, xo = row_at(a.x, r);
    const int C = (int)a.x.cols, step = (int)blockDim.x * 8;
    const int64_t mo = a.m.row[r] * a.m.st_r;
    bf16x8 u[N];
    float ss = 0, top = 0;

#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (int)threadIdx.x * 8 + i * step;
        if (c < C) u[i] = load_8_once(a.x.p, xo + c);
    }
    if constexpr (IS_GATED) {
        const int64_t ho = row_at(a.h, r), go = a.gate.row[r] * a.gate.st_r + a.gate.shift;
        bf16x8 w[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int c = (int)threadIdx.x * 8 + i * step;
            if (c < C) w[i] = load_8_once(a.h.p, ho + c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int c = (int)threadIdx.x * 8 + i * step;
            if (c < C) {
                const bf16x8 g = load_8(a.gate.p, go + c);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    u[i].v[k] = __hadd2_rn(u[i].v[k], __hmul2_rn(g.v[k], w[i].v[k]));
                store_8(a.x.p, xo + c, u[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((int)threadIdx.x * 8 + i * step < C) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = __bfloat1622float2(u[i].v[k]);
                ss += f.x * f.x + f.y * f.y;
            }
        }
    ss = block_sum(ss, part[0]); // y may be h: all of the row was read by now
    const float inv = 1.0f / sqrtf(ss / (float)C + a.eps);
    const __nv_bfloat162 one = __floats2bfloat162_rn(1.0f, 1.0f);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (int)threadIdx.x * 8 + i * step;
        if (c < C) {
            float g[8];
            load_vector<8>(a.g, c, 1.0f, g);
            const bf16x8 scale = load_8(a.m.p, mo + a.m.scale + c);
            const bf16x8 shift = load_8(a.m.p, mo + a.m.shift + c);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = __bfloat1622float2(u[i].v[k]);
                const __nv_bfloat162 v =
                    __floats2bfloat162_rn(f.x * inv * g[2 * k], f.y * inv * g[2 * k + 1]);
                u[i].v[k] = __hadd2_rn(__hmul2_rn(v, __hadd2_rn(one, scale.v[k])), shift.v[k]);
                const float2 z = __bfloat1622float2(u[i].v[k]);
                top = fmaxf(top, fmaxf(fabsf(z.x), fabsf(z.y)));
            }
            if (!a.q) store_8(a.y.p, row_at(a.y, r) + c, u[i]);
        }
    }
    if (!a.q) return;
    top = block_max(top, part[1]);
    const float factor = top > 0 ? top / 448.0f : 1.0f, over = 1.0f / factor;
    if (threadIdx.x == 0) a.qs[r] = factor;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (int)threadIdx.x * 8 + i * step;
        if (c < C) store_8_e4m3(a.q, r * a.ldq + c, u[i], over);
    }
}

template <bool IS_GATED> static cudaError_t run_norm_mod_8(cudaStream_t s, const norm_args &a)
{
    const int64_t per = a.x.cols / 8, n = div_up(per, 256);
    const unsigned rows = (unsigned)a.x.rows;
    const unsigned threads = (unsigned)(div_up(div_up(per, n ? n : 1), 32) * 32);
    if (a.x.rows == 0 || per == 0) return cudaSuccess;
    if (n == 1) return H3_RUN_EARLY((norm_mod_8_kernel<1, IS_GATED>), rows, threads, 0, s, a);
    if (n == 2) return H3_RUN_EARLY((norm_mod_8_kernel<2, IS_GATED>), rows, threads, 0, s, a);
    if (n == 3) return H3_RUN_EARLY((norm_mod_8_kernel<3, IS_GATED>), rows, threads, 0, s, a);
    return H3_RUN_EARLY((norm_mod_8_kernel<4, IS_GATED>), rows, threads, 0, s, a);
}

static bool fits_norm_mod_8(const norm_args &a)
{
    return fits_8(a.x) && fits_8(a.y) && a.x.cols <= 8192 && a.m.dtype == K_BF16 &&
           is_wide_mod(a.m) && is_wide_vector(a.g) &&
           (!a.h.p || (fits_8(a.h) && a.gate.dtype == K_BF16 && is_wide_mod(a.gate)));
}

extern "C" bool h3_k_norm_fits_e4m3(h3_rows y, h3_rows x, h3_rows h, const float *g, h3_mod gate,
                                    h3_mod mod)
{
    const norm_args a = {y, x, g, NULL, mod, 0, false, NULL, NULL, 0, h, gate};
    return fits_norm_mod_8(a);
}

extern "C" cudaError_t h3_k_rms_norm_mod(cudaStream_t s, h3_rows y, h3_rows x, const float *g,
                                         float eps, h3_mod mod, void *q, float *qs, int64_t ldq)
{
    const norm_args a = {y, x, g, NULL, mod, eps, false, q, qs, ldq};
    if (fits_norm_mod_8(a)) return run_norm_mod_8<false>(s, a);
    if (q) return cudaErrorInvalidValue;
    if (is_wide(x) && is_wide(y) && is_wide_vector(g) && is_wide_mod(mod))
        return run_norm<RMS_MOD, 8>(s, a);
    return run_norm<RMS_MOD, 1>(s, a);
}

extern "C" cudaError_t h3_k_gate_add_norm(cudaStream_t s, h3_rows y, h3_rows x, h3_rows h,
                                          h3_mod gate, const float *g, float eps, h3_mod mod,
                                          void *q, float *qs, int64_t ldq)
{
    const norm_args a = {y, x, g, NULL, mod, eps, false, q, qs, ldq, h, gate};
    if (fits_norm_mod_8(a)) return run_norm_mod_8<true>(s, a);
    const cudaError_t e = h3_k_gate_add(s, x, h, gate);
    return e != cudaSuccess ? e : h3_k_rms_norm_mod(s, y, x, g, eps, mod, q, qs, ldq);
}

/* Rows in e4m3: a block a row, which waits in shared memory as bf16 for its scale. */
static __global__ void quantise_kernel(const __grid_constant__ h3_rows x, void *q, float *qs)
{
    H3_SHARED(uint4, row_buf);
    __shared__ float part[32];
    const int64_t r = blockIdx.x, xo = row_at(x, r);
    const int C = (int)x.cols;
    float top = 0;

    for (int c = threadIdx.x * 8; c < C; c += blockDim.x * 8) {
        const bf16x8 u = load_8(x.p, xo + c);
        row_buf[c / 8] =
            make_uint4(word_of(u.v[0]), word_of(u.v[1]), word_of(u.v[2]), word_of(u.v[3]));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 f = __bfloat1622float2(u.v[k]);
            top = fmaxf(top, fmaxf(fabsf(f.x), fabsf(f.y)));
        }
    }
    top = block_max(top, part);
    const float scale = top > 0 ? top / 448.0f : 1.0f, over = 1.0f / scale;
    if (threadIdx.x == 0) qs[r] = scale;
    for (int c = threadIdx.x * 8; c < C; c += blockDim.x * 8) // each thread its own part
        store_8_e4m3(q, r * C + c, load_8(row_buf, c), over);
}

/* bf16 rows that allow 8 at a time, at most 16384 columns. */
extern "C" cudaError_t h3_k_quantise(cudaStream_t s, void *y, float *scale, h3_rows x)
{
    if (x.rows == 0 || x.cols == 0) return cudaSuccess;
    if (x.cols > 16384 || !fits_8(x)) return cudaErrorInvalidValue;
    return H3_RUN(quantise_kernel, (unsigned)x.rows, 256, (size_t)x.cols * 2, s, x, y, scale);
}

/* silu_mul whose rows leave in e4m3 only: a block a row, N vectors of 8 a thread. */
template <int N>
static __global__ void __launch_bounds__(256) silu_e4m3_kernel(const __grid_constant__ h3_rows gate,
                                        const __grid_constant__ h3_rows up, void *q, float *qs,
                                        int64_t ldq)
{
    __shared__ float part[32];
    start_early();
    const int64_t r = blockIdx.x, go = row_at(gate, r), uo = row_at(up, r);
    const int C = (int)gate.cols;
    bf16x8 a[N], b[N];
    float top = 0;

#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (int)(i * blockDim.x + threadIdx.x) * 8;
        if (c < C) {
            a[i] = load_8_once(gate.p, go + c);
            b[i] = load_8_once(up.p, uo + c);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if ((int)(i * blockDim.x + threadIdx.x) * 8 < C) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 f = __bfloat1622float2(a[i].v[k]);
                a[i].v[k] =
                    __hmul2_rn(__floats2bfloat162_rn(silu_16(f.x), silu_16(f.y)), b[i].v[k]);
                const float2 z = __bfloat1622float2(a[i].v[k]);
                top = fmaxf(top, fmaxf(fabsf(z.x), fabsf(z.y)));
            }
        }
    top = block_max(top, part);
    const float scale = top > 0 ? top / 448.0f : 1.0f, over = 1.0f / scale;
    if (threadIdx.x == 0) qs[r] = scale;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (int)(i * blockDim.x + threadIdx.x) * 8;
        if (c < C) store_8_e4m3(q, r * ldq + c, a[i], over);
    }
}

extern "C" bool h3_k_silu_fits_e4m3(h3_rows gate, h3_rows up)
{
    return fits_8(gate) && fits_8(up) && gate.cols <= 16384;
}

extern "C" cudaError_t h3_k_silu_e4m3(cudaStream_t s, h3_rows gate, h3_rows up, void *q, float *qs,
                                      int64_t ldq)
{
    const int64_t per = gate.cols / 8, n = div_up(per, 256);
    const unsigned rows = (unsigned)gate.rows;
    if (gate.rows == 0 || per == 0) return cudaSuccess;
    if (n <= 2) return H3_RUN_EARLY((silu_e4m3_kernel<2>), rows, 256, 0, s, gate, up, q, qs, ldq);
    if (n <= 4) return H3_RUN_EARLY((silu_e4m3_kernel<4>), rows, 256, 0, s, gate, up, q, qs, ldq);
    if (n <= 7) return H3_RUN_EARLY((silu_e4m3_kernel<7>), rows, 256, 0, s, gate, up, q, qs, ldq);
    return H3_RUN_EARLY((silu_e4m3_kernel<8>), rows, 256, 0, s, gate, up, q, qs, ldq);
}

/* One frame's group of channels a block: x is read twice, its statistics are sums in double of the
 * distance to the first element. */
struct gn_args {
    float *y;
    const float *x, *g, *b;
    int64_t ys[3], xs[3], C, T, H, W, per;
    float eps;
    bool silu;
};

static __global__ void group_norm_kernel(gn_args a)
{
    __shared__ double part[2][32];
    const int64_t t = blockIdx.x % a.T, c0 = blockIdx.x / a.T * a.per;
    const int64_t plane = a.H * a.W, n = a.per * plane;
    const float first = a.x[c0 * a.xs[0] + t * a.xs[1]];
    double s = 0, ss = 0;

    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t c = i / plane, h = i % plane / a.W, w = i % a.W;
        const float d = a.x[(c0 + c) * a.xs[0] + t * a.xs[1] + h * a.xs[2] + w] - first;
        s += (double)d;
        ss += (double)d * (double)d;
    }
    for (int o = 16; o > 0; o /= 2) {
        s += __shfl_xor_sync(0xffffffffu, s, o);
        ss += __shfl_xor_sync(0xffffffffu, ss, o);
    }
    if (threadIdx.x % 32 == 0) {
        part[0][threadIdx.x / 32] = s;
        part[1][threadIdx.x / 32] = ss;
    }
    __syncthreads();
    s = ss = 0;
    for (unsigned k = 0; k < blockDim.x / 32; k++) {
        s += part[0][k];
        ss += part[1][k];
    }
    const double from_first = s / (double)n;
    const double var = ss / (double)n - from_first * from_first;
    const double mean = (double)first + from_first;
    const float inv = (float)(1.0 / sqrt((var > 0 ? var : 0) + (double)a.eps));
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t c = c0 + i / plane, h = i % plane / a.W, w = i % a.W;
        const float u =
            (float)((double)a.x[c * a.xs[0] + t * a.xs[1] + h * a.xs[2] + w] - mean) * inv;
        const float z = u * (a.g ? a.g[c] : 1.0f) + (a.b ? a.b[c] : 0.0f);
        a.y[c * a.ys[0] + t * a.ys[1] + h * a.ys[2] + w] = a.silu ? silu(z) : z;
    }
}

extern "C" cudaError_t h3_k_group_norm(cudaStream_t s, float *y, const int64_t y_st[3],
                                       const float *x, const int64_t x_st[3], const int64_t ne[4],
                                       const float *g, const float *b, int groups, float eps,
                                       bool silu)
{
    const gn_args a = {y,
                       x,
                       g,
                       b,
                       {y_st[0], y_st[1], y_st[2]},
                       {x_st[0], x_st[1], x_st[2]},
                       ne[0],
                       ne[1],
                       ne[2],
                       ne[3],
                       ne[0] / groups,
                       eps,
                       silu};
    if (ne[0] * ne[1] * ne[2] * ne[3] == 0) return cudaSuccess;
    return H3_RUN(group_norm_kernel, (unsigned)(groups * ne[1]), 512, 0, s, a);
}
