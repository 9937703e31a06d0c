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
                const float x = low_of(u[i].v[k]), y = high_of(u[i].v[k]);
                ss += x * x + y * y;
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
                float v = low_of(u[i].v[k]) * inv, w = high_of(u[i].v[k]) * inv;
                if (a.round_first) {
                    const unsigned z = pair_of(v, w);
                    v = low_of(z), w = high_of(z);
                }
                u[i].v[k] = pair_of(v * g[2 * k], w * g[2 * k + 1]);
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

/* row_at; T: rows at one distance. */
template <int T> static __device__ __forceinline__ int64_t row_of(const h3_rows &v, int64_t r)
{
    return T ? r * v.st[0] : row_at(v, r);
}

/* rms_norm_mod of a bf16 stream, after gate_add where IS_GATED: N vectors of 8 a thread wait as
 * bf16. Rows pass once and by; the modulation, which rows share, is what the caches are for. These
 * kernels would wait for instructions before they wait for memory: rows of exactly 8 N T numbers at
 * one distance under T threads (T 0: any) need no bounds and no addresses but the first. */
template <int N, int T, bool IS_GATED, bool IS_8>
static __global__ void __launch_bounds__(T ? T : 256, T ? 5 : 4)
    norm_mod_8_kernel(const __grid_constant__ norm_args a)
{
    __shared__ __align__(16) float part[2][8];
    start_early();
    const int64_t r = blockIdx.x, mr = a.m.row[r];
    const int C = T ? 8 * N * T : (int)a.x.cols, step = T ? 8 * T : (int)blockDim.x * 8;
    const int c = (int)threadIdx.x * 8;
    unsigned short *const x = (unsigned short *)a.x.p + row_of<T>(a.x, r) + c;
    bf16x8 u[N];
    float ss = 0;
    unsigned top = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) u[i] = load_8_once(x, i * step);
    if constexpr (IS_GATED) {
        const unsigned short *const h = (const unsigned short *)a.h.p + row_of<T>(a.h, r) + c;
        const unsigned short *const gate = (const unsigned short *)a.gate.p +
                                           a.gate.row[r] * a.gate.st_r + a.gate.shift + c;
        bf16x8 w[N], g[N]; // all of them under way before the first store
#pragma unroll
        for (int i = 0; i < N; i++)
            if (T || c + i * step < C) {
                w[i] = load_8_once(h, i * step);
                g[i] = load_8(gate, i * step);
            }
#pragma unroll
        for (int i = 0; i < N; i++)
            if (T || c + i * step < C) {
#pragma unroll
                for (int k = 0; k < 4; k++)
                    u[i].v[k] = add_pairs(u[i].v[k], mul_pairs(g[i].v[k], w[i].v[k]));
                store_8(x, i * step, u[i]);
            }
    }
    const unsigned short *const mod = (const unsigned short *)a.m.p + mr * a.m.st_r + c;
    const unsigned short *const scale = mod + a.m.scale, *const shift = mod + a.m.shift;
    bf16x8 sc[N], sh[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) sc[i] = load_8(scale, i * step);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float v = low_of(u[i].v[k]), w = high_of(u[i].v[k]);
                ss += v * v + w * w;
            }
        }
    ss = block_sum_8(ss, part[0]); // y may be h: all of the row was read by now
    const float inv = 1.0f / sqrtf(ss / (float)C + a.eps);
    const float *const gain = a.g ? a.g + c : NULL;
    unsigned short *const y = (unsigned short *)a.y.p + row_of<T>(a.y, r) + c;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) {
            float g[8];
            load_vector<8>(gain, i * step, 1.0f, g);
            sh[i] = load_8(shift, i * step);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned v = pair_of(low_of(u[i].v[k]) * inv * g[2 * k],
                                           high_of(u[i].v[k]) * inv * g[2 * k + 1]);
                u[i].v[k] = add_pairs(mul_pairs(v, add_pairs(0x3f803f80u, sc[i].v[k])), sh[i].v[k]);
                if constexpr (IS_8) top = top_of_pairs(top, u[i].v[k]);
            }
        }
    if constexpr (!IS_8) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (T || c + i * step < C) store_8(y, i * step, u[i]);
    } else {
        const float most = block_top_8(top_of(top), part[1]);
        const float factor = most > 0 ? most / 448.0f : 1.0f, over = 1.0f / factor;
        unsigned char *const q = (unsigned char *)a.q + r * a.ldq + c;
        if (threadIdx.x == 0) a.qs[r] = factor;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (T || c + i * step < C) store_8_e4m3(q, i * step, u[i], over);
    }
}

template <bool IS_GATED, bool IS_8>
static cudaError_t run_norm_mod_8(cudaStream_t s, const norm_args &a)
{
    const int64_t per = a.x.cols / 8, n = div_up(per, 256);
    const unsigned rows = (unsigned)a.x.rows;
    const unsigned threads = (unsigned)(div_up(div_up(per, n ? n : 1), 32) * 32);
    if (a.x.rows == 0 || per == 0) return cudaSuccess;
    if (per == 3 * 224 && a.x.n <= 1 && a.y.n <= 1 && a.h.n <= 1) // the released denoiser
        return H3_RUN_EARLY((norm_mod_8_kernel<3, 224, IS_GATED, IS_8>), rows, 224, 0, s, a);
    if (n == 1)
        return H3_RUN_EARLY((norm_mod_8_kernel<1, 0, IS_GATED, IS_8>), rows, threads, 0, s, a);
    if (n == 2)
        return H3_RUN_EARLY((norm_mod_8_kernel<2, 0, IS_GATED, IS_8>), rows, threads, 0, s, a);
    return H3_RUN_EARLY((norm_mod_8_kernel<4, 0, IS_GATED, IS_8>), rows, threads, 0, s, a);
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
    if (fits_norm_mod_8(a))
        return q ? run_norm_mod_8<false, true>(s, a) : run_norm_mod_8<false, false>(s, a);
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
    if (fits_norm_mod_8(a))
        return q ? run_norm_mod_8<true, true>(s, a) : run_norm_mod_8<true, false>(s, a);
    const cudaError_t e = h3_k_gate_add(s, x, h, gate);
    return e != cudaSuccess ? e : h3_k_rms_norm_mod(s, y, x, g, eps, mod, q, qs, ldq);
}

/* Rows in e4m3: a block a row, which waits in shared memory as bf16 for its scale. */
static __global__ void quantise_kernel(const __grid_constant__ h3_rows x, void *q, float *qs)
{
    H3_SHARED(uint4, row_buf);
    __shared__ __align__(16) float part[8];
    const int64_t r = blockIdx.x, xo = row_at(x, r);
    const int C = (int)x.cols;
    unsigned top = 0;

    for (int c = threadIdx.x * 8; c < C; c += blockDim.x * 8) {
        const bf16x8 u = load_8(x.p, xo + c);
        row_buf[c / 8] = make_uint4(u.v[0], u.v[1], u.v[2], u.v[3]);
#pragma unroll
        for (int k = 0; k < 4; k++)
            top = top_of_pairs(top, u.v[k]);
    }
    const float most = block_top_8(top_of(top), part);
    const float scale = most > 0 ? most / 448.0f : 1.0f, over = 1.0f / scale;
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

/* silu_mul whose rows leave in e4m3 only: a block a row, N vectors of 8 a thread; T as above. */
template <int N, int T>
static __global__ void __launch_bounds__(T ? T : 256, T ? 3 : 2)
    silu_e4m3_kernel(const __grid_constant__ h3_rows gate, const __grid_constant__ h3_rows up,
                     void *q, float *qs, int64_t ldq)
{
    __shared__ __align__(16) float part[8];
    start_early();
    const int64_t r = blockIdx.x;
    const int C = T ? 8 * N * T : (int)gate.cols, step = T ? 8 * T : (int)blockDim.x * 8;
    const int c = (int)threadIdx.x * 8;
    const unsigned short *const from = (const unsigned short *)gate.p + row_of<T>(gate, r) + c;
    const unsigned short *const by = (const unsigned short *)up.p + row_of<T>(up, r) + c;
    bf16x8 a[N], b[N];
    unsigned top = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) {
            a[i] = load_8_once(from, i * step);
            b[i] = load_8_once(by, i * step);
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                a[i].v[k] = mul_pairs(
                    pair_of(silu_16(low_of(a[i].v[k])), silu_16(high_of(a[i].v[k]))), b[i].v[k]);
                top = top_of_pairs(top, a[i].v[k]);
            }
        }
    const float most = block_top_8(top_of(top), part);
    const float scale = most > 0 ? most / 448.0f : 1.0f, over = 1.0f / scale;
    unsigned char *const to = (unsigned char *)q + r * ldq + c;
    if (threadIdx.x == 0) qs[r] = scale;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (T || c + i * step < C) store_8_e4m3(to, i * step, a[i], over);
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
    if (per == 7 * 256 && gate.n <= 1 && up.n <= 1) // the released denoiser
        return H3_RUN_EARLY((silu_e4m3_kernel<7, 256>), rows, 256, 0, s, gate, up, q, qs, ldq);
    if (n <= 2)
        return H3_RUN_EARLY((silu_e4m3_kernel<2, 0>), rows, 256, 0, s, gate, up, q, qs, ldq);
    if (n <= 4)
        return H3_RUN_EARLY((silu_e4m3_kernel<4, 0>), rows, 256, 0, s, gate, up, q, qs, ldq);
    return H3_RUN_EARLY((silu_e4m3_kernel<8, 0>), rows, 256, 0, s, gate, up, q, qs, ldq);
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
