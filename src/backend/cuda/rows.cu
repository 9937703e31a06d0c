/**
 * Row-wise entries of the table, number by number: `each` gives every thread V neighbouring elements
 * of a row. Compiled without contraction of products and sums: ops.h states the roundings, and these
 * kernels wait for memory anyway.
 */
#include "rows.cuh"

/* ---------------------------------------------------------------- elementwise */

template <int V, typename I, typename Op> static __global__ void each(I rows, I per, Op op)
{
    const I i = (I)blockIdx.x * (I)blockDim.x + (I)threadIdx.x;
    if (i >= rows * per) return;
    const I r = i / per, c = (i - r * per) * V;
    op.template at<V>((int64_t)r, (int64_t)c);
}

/* Runs op over rows x cols; `wide` promises that all its views allow 8 elements at a time. */
template <typename Op>
static cudaError_t run_each(cudaStream_t s, int64_t rows, int64_t cols, bool wide, const Op &op)
{
    const int64_t per = wide ? cols / 8 : cols, total = rows * per, blocks = div_up(total, 256);
    if (total == 0) return cudaSuccess;
    if (total < (int64_t)1 << 30) {
        if (wide)
            return H3_RUN((each<8, unsigned, Op>), (unsigned)blocks, 256, 0, s, (unsigned)rows,
                          (unsigned)per, op);
        return H3_RUN((each<1, unsigned, Op>), (unsigned)blocks, 256, 0, s, (unsigned)rows,
                      (unsigned)per, op);
    }
    if (wide) return H3_RUN((each<8, int64_t, Op>), (unsigned)blocks, 256, 0, s, rows, per, op);
    return H3_RUN((each<1, int64_t, Op>), (unsigned)blocks, 256, 0, s, rows, per, op);
}

/* Views without gaps are one long row. */
static bool is_dense(const h3_rows &v)
{
    return v.n == 0 || (v.n == 1 && v.st[0] == v.cols);
}

static void flatten(h3_rows *v)
{
    v->cols *= v->rows;
    v->rows = 1;
    v->n = 0;
    v->st[0] = 0;
}

static __device__ __forceinline__ float act_of(int act, float v)
{
    if (act == 1) return silu(v);
    /* 0.5 (1 + tanh u) = 1 / (1 + exp(-2 u)), which keeps its relative precision for negative u */
    if (act == 2) return v / (1.0f + expf(-1.5957691216057308f * (v + 0.044715f * v * v * v)));
    if (act == 3) return 0.5f * v * erfcf(-0.70710678118654752f * v);
    return v;
}

template <typename Op> static __global__ void each_8(unsigned rows, unsigned per, Op op)
{
    start_early();
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * per) return;
    const unsigned r = i / per;
    op.at(r, (i - r * per) * 8);
}

template <typename Op> static cudaError_t run_each_8(cudaStream_t s, const h3_rows &v, const Op &op)
{
    const int64_t per = v.cols / 8, total = v.rows * per;
    if (total == 0) return cudaSuccess;
    return H3_RUN_EARLY((each_8<Op>), (unsigned)div_up(total, 256), 256, 0, s, (unsigned)v.rows,
                        (unsigned)per, op);
}

struct add_op {
    h3_rows y, a, b;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V], w[V];
        load<V>(a.p, a.dtype, row_at(a, r) + c, u);
        load<V>(b.p, b.dtype, row_at(b, r) + c, w);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] += w[k];
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

extern "C" cudaError_t h3_k_add(cudaStream_t s, h3_rows y, h3_rows a, h3_rows b)
{
    if (is_dense(y) && is_dense(a) && is_dense(b)) flatten(&y), flatten(&a), flatten(&b);
    const add_op op = {y, a, b};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(a) && is_wide(b), op);
}

struct silu_mul_op {
    h3_rows y, gate, up;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V], w[V];
        load<V>(gate.p, gate.dtype, row_at(gate, r) + c, u);
        load<V>(up.p, up.dtype, row_at(up, r) + c, w);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] = rounded(y.dtype, silu_for(y.dtype, u[k])) * w[k];
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

struct silu_mul_8_op {
    h3_rows y, gate, up;
    __device__ void at(unsigned r, unsigned c) const
    {
        bf16x8 a = load_8(gate.p, row_at(gate, r) + c);
        const bf16x8 b = load_8(up.p, row_at(up, r) + c);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            a.v[k] =
                mul_pairs(pair_of(silu_16(low_of(a.v[k])), silu_16(high_of(a.v[k]))), b.v[k]);
        }
        store_8(y.p, row_at(y, r) + c, a);
    }
};

extern "C" cudaError_t h3_k_silu_mul(cudaStream_t s, h3_rows y, h3_rows gate, h3_rows up)
{
    if (fits_8(y) && fits_8(gate) && fits_8(up)) {
        const silu_mul_8_op op = {y, gate, up};
        return run_each_8(s, y, op);
    }
    const silu_mul_op op = {y, gate, up};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(gate) && is_wide(up), op);
}

struct act_op {
    h3_rows y, x;
    const float *bias;
    int act;
    bool rounds_first; // a 16-bit y rounds before the activation too
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
        float add[V];
        load_vector<V>(bias, c, 0.0f, add);
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (bias) u[k] += add[k];
            if (rounds_first) u[k] = kept(y.dtype, u[k]);
            u[k] = act_of(act, u[k]);
        }
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

extern "C" cudaError_t h3_k_act(cudaStream_t s, h3_rows y, h3_rows x, int act, const float *bias,
                                bool rounds_first)
{
    if (!bias && is_dense(y) && is_dense(x)) flatten(&y), flatten(&x);
    const act_op op = {y, x, bias, act, rounds_first};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x) && (uintptr_t)bias % 16 == 0, op);
}

struct copy_op {
    h3_rows y, x;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

/* Same type: bits are moved, whatever they mean. */
template <typename T> struct move_op {
    h3_rows y, x;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        const T *from = (const T *)x.p + row_at(x, r) + c;
        T *to = (T *)y.p + row_at(y, r) + c;
        if constexpr (V * sizeof(T) >= 16) {
#pragma unroll
            for (int k = 0; k < (int)(V * sizeof(T) / 16); k++)
                ((uint4 *)to)[k] = ((const uint4 *)from)[k];
        } else {
#pragma unroll
            for (int k = 0; k < V; k++)
                to[k] = from[k];
        }
    }
};

extern "C" cudaError_t h3_k_copy(cudaStream_t s, h3_rows y, h3_rows x)
{
    if (is_dense(y) && is_dense(x)) flatten(&y), flatten(&x);
    if (y.dtype != x.dtype) {
        const copy_op op = {y, x};
        return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
    }
    if (y.dtype == K_U8) {
        const move_op<unsigned char> op = {y, x};
        return run_each(s, y.rows, y.cols, false, op);
    }
    if (y.dtype == K_BF16 || y.dtype == K_F16) {
        const move_op<unsigned short> op = {y, x};
        return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
    }
    const move_op<unsigned> op = {y, x};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
}

struct gather_op {
    h3_rows y, x;
    const int32_t *idx;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, idx[r]) + c, u);
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

extern "C" cudaError_t h3_k_gather(cudaStream_t s, h3_rows y, h3_rows x, const int32_t *idx)
{
    const gather_op op = {y, x, idx};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
}

struct scatter_op {
    h3_rows y, x;
    const int32_t *idx;
    bool adds;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        const int64_t to = row_at(y, idx[r]) + c;
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
        if (adds) {
            float w[V];
            load<V>(y.p, y.dtype, to, w);
#pragma unroll
            for (int k = 0; k < V; k++)
                u[k] = w[k] + u[k];
        }
        store<V>(y.p, y.dtype, to, u);
    }
};

extern "C" cudaError_t h3_k_scatter(cudaStream_t s, h3_rows y, h3_rows x, const int32_t *idx,
                                    bool adds)
{
    const scatter_op op = {y, x, idx, adds};
    return run_each(s, x.rows, x.cols, is_wide(y) && is_wide(x), op);
}

struct scale_add_op {
    h3_rows x, h;
    const float *g;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V], w[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
        load<V>(h.p, h.dtype, row_at(h, r) + c, w);
        float f[V];
        load_vector<V>(g, c, 1.0f, f);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] += rounded(x.dtype, w[k] * f[k]);
        store<V>(x.p, x.dtype, row_at(x, r) + c, u);
    }
};

struct scale_add_8_op {
    h3_rows x, h;
    const float *g;
    __device__ void at(unsigned r, unsigned c) const
    {
        const int64_t at = row_at(x, r) + c;
        bf16x8 u = load_8(x.p, at);
        const bf16x8 w = load_8(h.p, row_at(h, r) + c);
        float f[8];
        load_vector<8>(g, c, 1.0f, f);
#pragma unroll
        for (int k = 0; k < 4; k++)
            u.v[k] = add_pairs(u.v[k], pair_of(low_of(w.v[k]) * f[2 * k],
                                               high_of(w.v[k]) * f[2 * k + 1]));
        store_8(x.p, at, u);
    }
};

extern "C" cudaError_t h3_k_scale_add(cudaStream_t s, h3_rows x, h3_rows h, const float *g)
{
    if (fits_8(x) && fits_8(h) && (uintptr_t)g % 16 == 0) {
        const scale_add_8_op op = {x, h, g};
        return run_each_8(s, x, op);
    }
    const scale_add_op op = {x, h, g};
    return run_each(s, x.rows, x.cols, is_wide(x) && is_wide(h) && (uintptr_t)g % 16 == 0, op);
}

struct gate_add_op {
    h3_rows x, h;
    h3_mod m;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V], w[V], g[V];
        load<V>(m.p, m.dtype, m.row[r] * m.st_r + m.shift + c, g);
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
        load<V>(h.p, h.dtype, row_at(h, r) + c, w);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] += rounded(x.dtype, g[k] * w[k]);
        store<V>(x.p, x.dtype, row_at(x, r) + c, u);
    }
};

struct gate_add_8_op {
    h3_rows x, h;
    h3_mod m;
    __device__ void at(unsigned r, unsigned c) const
    {
        const int64_t at = row_at(x, r) + c;
        const bf16x8 g = load_8(m.p, m.row[r] * m.st_r + m.shift + c);
        const bf16x8 w = load_8(h.p, row_at(h, r) + c);
        bf16x8 u = load_8(x.p, at);
#pragma unroll
        for (int k = 0; k < 4; k++)
            u.v[k] = add_pairs(u.v[k], mul_pairs(g.v[k], w.v[k]));
        store_8(x.p, at, u);
    }
};

extern "C" cudaError_t h3_k_gate_add(cudaStream_t s, h3_rows x, h3_rows h, h3_mod mod)
{
    if (fits_8(x) && fits_8(h) && mod.dtype == K_BF16 && is_wide_mod(mod)) {
        const gate_add_8_op op = {x, h, mod};
        return run_each_8(s, x, op);
    }
    const gate_add_op op = {x, h, mod};
    return run_each(s, x.rows, x.cols, is_wide(x) && is_wide(h) && is_wide_mod(mod), op);
}

struct axpby_op {
    h3_rows y, x;
    float a, b;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V], w[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
        load<V>(y.p, y.dtype, row_at(y, r) + c, w);
#pragma unroll
        for (int k = 0; k < V; k++)
            w[k] = a * u[k] + b * w[k];
        store<V>(y.p, y.dtype, row_at(y, r) + c, w);
    }
};

extern "C" cudaError_t h3_k_axpby(cudaStream_t s, h3_rows y, float a, h3_rows x, float b)
{
    if (is_dense(y) && is_dense(x)) flatten(&y), flatten(&x);
    const axpby_op op = {y, x, a, b};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
}

struct affine_op {
    h3_rows y, x;
    const float *a, *b;
    int64_t per;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const int64_t i = per ? r / per : c + k;
            u[k] = u[k] * a[i] + b[i];
        }
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

extern "C" cudaError_t h3_k_affine(cudaStream_t s, h3_rows y, h3_rows x, const float *a,
                                   const float *b, int64_t per)
{
    const affine_op op = {y, x, a, b, per};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
}

struct clamp_op {
    h3_rows y, x;
    float lo, hi;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
#pragma unroll
        for (int k = 0; k < V; k++)
            u[k] = u[k] < lo ? lo : u[k] > hi ? hi : u[k]; // NaN stays NaN
        store<V>(y.p, y.dtype, row_at(y, r) + c, u);
    }
};

extern "C" cudaError_t h3_k_clamp(cudaStream_t s, h3_rows y, h3_rows x, float lo, float hi)
{
    if (is_dense(y) && is_dense(x)) flatten(&y), flatten(&x);
    const clamp_op op = {y, x, lo, hi};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(x), op);
}

struct flow_op {
    h3_rows x, v;
    float sigma, ratio, rest;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float now[V], u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, now);
        load<V>(v.p, v.dtype, row_at(v, r) + c, u);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const float x0 = now[k] + sigma * u[k];
            u[k] = ratio * now[k] + rest * x0;
        }
        store<V>(x.p, x.dtype, row_at(x, r) + c, u);
    }
};

extern "C" cudaError_t h3_k_flow_step(cudaStream_t s, h3_rows x, h3_rows v, float sigma,
                                      float ratio)
{
    const flow_op op = {x, v, sigma, ratio, 1.0f - ratio};
    return run_each(s, x.rows, x.cols, is_wide(x) && is_wide(v), op);
}

struct finite_op {
    h3_rows x;
    int *flag;
    template <int V> __device__ void at(int64_t r, int64_t c) const
    {
        float u[V];
        load<V>(x.p, x.dtype, row_at(x, r) + c, u);
#pragma unroll
        for (int k = 0; k < V; k++)
            if (!isfinite(u[k])) *flag = 1;
    }
};

extern "C" cudaError_t h3_k_finite(cudaStream_t s, h3_rows x, int *flag)
{
    if (is_dense(x)) flatten(&x);
    const finite_op op = {x, flag};
    return run_each(s, x.rows, x.cols, is_wide(x), op);
}

/* ---------------------------------------------------------------- the rest */

static __global__ void transpose_kernel(const __grid_constant__ h3_rows y,
                                        const __grid_constant__ h3_rows x)
{
    __shared__ float tile[32][33];
    const int64_t i0 = (int64_t)blockIdx.y * 32, j0 = (int64_t)blockIdx.x * 32;
    float u[1];

    for (int k = threadIdx.y; k < 32; k += 8)
        if (i0 + k < x.rows && j0 + threadIdx.x < x.cols) {
            load<1>(x.p, x.dtype, row_at(x, i0 + k) + j0 + threadIdx.x, u);
            tile[k][threadIdx.x] = u[0];
        }
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += 8)
        if (j0 + k < y.rows && i0 + threadIdx.x < y.cols) {
            u[0] = tile[threadIdx.x][k];
            store<1>(y.p, y.dtype, row_at(y, j0 + k) + i0 + threadIdx.x, u);
        }
}

extern "C" cudaError_t h3_k_transpose(cudaStream_t s, h3_rows y, h3_rows x)
{
    if (x.rows * x.cols == 0) return cudaSuccess;
    /* Rows on the axis that may be long: a tall matrix goes through in bands. */
    const int64_t band = 65535LL * 32;
    for (int64_t at = 0; at < x.rows; at += band) {
        const int64_t n = x.rows - at < band ? x.rows - at : band;
        const int xs = x.dtype == K_F32 ? 4 : 2, ys = y.dtype == K_F32 ? 4 : 2;
        h3_rows xb = x, yb = y;
        xb.p = (char *)x.p + at * x.st[0] * xs;
        xb.rows = n;
        yb.p = (char *)y.p + at * ys;
        yb.cols = n;
        const dim3 grid((unsigned)div_up(x.cols, 32), (unsigned)div_up(n, 32)), block(32, 8);
        const cudaError_t e = H3_RUN(transpose_kernel, grid, block, 0, s, yb, xb);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

static __global__ void mean_groups_kernel(float *y, int64_t y_st, const float *x, int64_t S,
                                          int64_t H, int64_t C, int64_t st_s, int64_t st_h,
                                          int64_t J)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= S * J) return;
    const int64_t s = i / J, j = i % J;
    const int64_t from = j * C / J, to = ((j + 1) * C + J - 1) / J;
    double sum = 0;
    for (int64_t c = from; c < to; c++) {
        double over = 0;
        for (int64_t h = 0; h < H; h++)
            over += (double)x[s * st_s + h * st_h + c];
        sum += over / (double)H;
    }
    y[s * y_st + j] = (float)(sum / (double)(to - from));
}

extern "C" cudaError_t h3_k_mean_groups(cudaStream_t s, float *y, int64_t y_st, const float *x,
                                        const int64_t ne[3], const int64_t st[2], int64_t groups)
{
    const int64_t n = ne[0] * groups;
    if (n == 0) return cudaSuccess;
    return H3_RUN(mean_groups_kernel, (unsigned)div_up(n, 128), 128, 0, s, y, y_st, x, ne[0], ne[1],
                  ne[2], st[0], st[1], groups);
}

struct pixels_args {
    float *y;
    h3_rows x;
    int64_t ys[3], t, h, w;
    int pt, p;
};

static __global__ void unpatchify_kernel(pixels_args a)
{
    const int64_t W = a.w * a.p, n = 3 * a.t * a.pt * a.h * a.p * W;
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t px = i % W, line = i / W % (a.h * a.p), f = i / (W * a.h * a.p) % (a.t * a.pt),
                  colour = i / (W * a.h * a.p * a.t * a.pt);
    const int64_t r = (f / a.pt * a.h + line / a.p) * a.w + px / a.p;
    const int64_t col = ((colour * a.pt + f % a.pt) * a.p + line % a.p) * a.p + px % a.p;
    float u[1];
    load<1>(a.x.p, a.x.dtype, row_at(a.x, r) + col, u);
    a.y[colour * a.ys[0] + f * a.ys[1] + line * a.ys[2] + px] = u[0];
}

extern "C" cudaError_t h3_k_unpatchify(cudaStream_t s, float *y, const int64_t y_st[3], h3_rows x,
                                       int64_t t, int64_t h, int64_t w, int pt, int p)
{
    const pixels_args a = {y, x, {y_st[0], y_st[1], y_st[2]}, t, h, w, pt, p};
    const int64_t n = 3 * t * pt * h * p * w * p;
    if (n == 0) return cudaSuccess;
    return H3_RUN(unpatchify_kernel, (unsigned)div_up(n, 256), 256, 0, s, a);
}

struct fade_args {
    float *y;
    const float *a;
    int64_t ys[3], as[3], ne[4], n;
    int axis;
};

static __global__ void fade_kernel(fade_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.ne[0] * a.ne[1] * a.ne[2] * a.ne[3]) return;
    const int64_t at[4] = {i / (a.ne[3] * a.ne[2] * a.ne[1]), i / (a.ne[3] * a.ne[2]) % a.ne[1],
                           i / a.ne[3] % a.ne[2], i % a.ne[3]};
    float *y = a.y + at[0] * a.ys[0] + at[1] * a.ys[1] + at[2] * a.ys[2] + at[3];
    const float old = a.a[at[0] * a.as[0] + at[1] * a.as[1] + at[2] * a.as[2] + at[3]];
    const int64_t k = a.axis == 0 ? at[0] : a.axis == 1 ? at[1] : a.axis == 2 ? at[2] : at[3];
    const float ramp = (float)k / (float)a.n;
    *y = old * (1.0f - ramp) + *y * ramp;
}

extern "C" cudaError_t h3_k_fade(cudaStream_t s, float *y, const int64_t y_st[3], const float *a,
                                 const int64_t a_st[3], const int64_t ne[4], int axis, int64_t n)
{
    fade_args f = {y,
                   a,
                   {y_st[0], y_st[1], y_st[2]},
                   {a_st[0], a_st[1], a_st[2]},
                   {ne[0], ne[1], ne[2], ne[3]},
                   n,
                   axis};
    f.ne[axis] = n;
    const int64_t total = f.ne[0] * f.ne[1] * f.ne[2] * f.ne[3];
    if (total == 0) return cudaSuccess;
    return H3_RUN(fade_kernel, (unsigned)div_up(total, 256), 256, 0, s, f);
}

struct u8_args {
    uint8_t *y;
    const float *x;
    int64_t ys[3], xs[3], F, H, W;
    float mean[3], std[3];
};

static __global__ void to_u8_kernel(u8_args a)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.F * a.H * a.W) return;
    const int64_t w = i % a.W, h = i / a.W % a.H, f = i / (a.W * a.H);
#pragma unroll
    for (int c = 0; c < 3; c++) {
        const float p = a.x[c * a.xs[0] + f * a.xs[1] + h * a.xs[2] + w] * a.std[c];
        const float v = p + a.mean[c];
        const float u = (v > 0 ? v < 1 ? v : 1.0f : 0.0f) * 255.0f; // NaN becomes 0
        a.y[f * a.ys[0] + h * a.ys[1] + w * a.ys[2] + c] = (uint8_t)(int)rintf(u);
    }
}

extern "C" cudaError_t h3_k_to_u8(cudaStream_t s, uint8_t *y, const int64_t y_st[3], const float *x,
                                  const int64_t x_st[3], const int64_t ne[3], const float *mean,
                                  const float *std)
{
    const u8_args a = {
        y,     x,     {y_st[0], y_st[1], y_st[2]}, {x_st[0], x_st[1], x_st[2]}, ne[0],
        ne[1], ne[2], {mean[0], mean[1], mean[2]}, {std[0], std[1], std[2]}};
    const int64_t n = ne[0] * ne[1] * ne[2];
    if (n == 0) return cudaSuccess;
    return H3_RUN(to_u8_kernel, (unsigned)div_up(n, 256), 256, 0, s, a);
}
