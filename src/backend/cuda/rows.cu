/**
 * Row-wise entries of the table. Compiled without contraction of products and sums: ops.h states
 * the roundings, and these kernels wait for memory anyway.
 *
 * Two shapes of kernel: `each` gives every thread V neighbouring elements of a row; the norms give
 * a block one row, held in registers between the reduction and the result.
 */
#include "device.cuh"

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

static __device__ __forceinline__ float silu(float v)
{
    return v / (1.0f + expf(-v));
}

/* For results that are rounded to 16 bits: the fast exponential and division are good to 2^-20. */
static __device__ __forceinline__ float silu_16(float v)
{
    return __fdividef(v, 1.0f + __expf(-v));
}

static __device__ __forceinline__ float silu_for(int t, float v)
{
    return t == K_F32 ? silu(v) : silu_16(v);
}

static __device__ __forceinline__ float act_of(int act, float v)
{
    if (act == 1) return silu(v);
    /* 0.5 (1 + tanh u) = 1 / (1 + exp(-2 u)), which keeps its relative precision for negative u */
    if (act == 2) return v / (1.0f + expf(-1.5957691216057308f * (v + 0.044715f * v * v * v)));
    if (act == 3) return 0.5f * v * erfcf(-0.70710678118654752f * v);
    return v;
}

/* V entries of a parameter vector, or `none` where there is no vector. Wide loads: 8 single ones at
 * a distance of 32 bytes would keep the load units busier than the rows do. */
template <int V>
static __device__ __forceinline__ void load_vector(const float *p, int64_t c, float none,
                                                   float (&out)[V])
{
    if (p) {
        load<V>(p, K_F32, c, out);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        out[k] = none;
}

/* Eight bf16 numbers and their arithmetic in pairs: a product or a sum of pairs rounds each number
 * to bf16 once, which is what ops.h asks of a bf16 stream, and takes one instruction where the way
 * through f32 takes six. */
struct bf16x8 {
    __nv_bfloat162 v[4];
};

/* By parts: a copy of bytes makes the compiler load single ones. */
static __device__ __forceinline__ __nv_bfloat162 pair_of(unsigned w)
{
    __nv_bfloat162_raw r;
    r.x = (unsigned short)w;
    r.y = (unsigned short)(w >> 16);
    return r;
}

static __device__ __forceinline__ unsigned word_of(const __nv_bfloat162 &p)
{
    const __nv_bfloat162_raw r = p;
    return r.x | (unsigned)r.y << 16;
}

static __device__ __forceinline__ bf16x8 load_8(const void *p, int64_t i)
{
    const uint4 u = *(const uint4 *)((const unsigned short *)p + i);
    return {{pair_of(u.x), pair_of(u.y), pair_of(u.z), pair_of(u.w)}};
}

/* As one instruction, which the compiler would otherwise be free to take apart. */
static __device__ __forceinline__ void store_8(void *p, int64_t i, const bf16x8 &x)
{
    __stcg((uint4 *)((unsigned short *)p + i),
           make_uint4(word_of(x.v[0]), word_of(x.v[1]), word_of(x.v[2]), word_of(x.v[3])));
}

/* Of rows that nothing reads again soon: they leave the caches first. */
static __device__ __forceinline__ bf16x8 load_8_once(const void *p, int64_t i)
{
    const uint4 u = __ldcs((const uint4 *)((const unsigned short *)p + i));
    return {{pair_of(u.x), pair_of(u.y), pair_of(u.z), pair_of(u.w)}};
}

/* x * factor in e4m3 at byte i. */
static __device__ __forceinline__ void store_8_e4m3(void *p, int64_t i, const bf16x8 &x,
                                                    float factor)
{
    float v[8];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float2 z = __bfloat1622float2(x.v[k]);
        v[2 * k] = z.x * factor;
        v[2 * k + 1] = z.y * factor;
    }
    store_e4m3<8>(p, i, v);
}

template <typename Op> static __global__ void each_8(unsigned rows, unsigned per, Op op)
{
    start_early();
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * per) return;
    const unsigned r = i / per;
    op.at(r, (i - r * per) * 8);
}

static bool fits_8(const h3_rows &v)
{
    return v.dtype == K_BF16 && is_wide(v) && v.rows * v.cols / 8 < (int64_t)1 << 30;
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
            const float2 f = __bfloat1622float2(a.v[k]);
            a.v[k] = __hmul2_rn(__floats2bfloat162_rn(silu_16(f.x), silu_16(f.y)), b.v[k]);
        }
        store_8(y.p, row_at(y, r) + c, a);
    }
};

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
        for (int k = 0; k < 4; k++) {
            const float2 v = __bfloat1622float2(w.v[k]);
            u.v[k] = __hadd2_rn(u.v[k], __floats2bfloat162_rn(v.x * f[2 * k], v.y * f[2 * k + 1]));
        }
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

static bool is_wide_mod(const h3_mod &m)
{
    const int size = m.dtype == K_F32 ? 4 : 2;
    return (uintptr_t)m.p % 16 == 0 && m.st_r * size % 16 == 0 && m.shift * size % 16 == 0 &&
           m.scale * size % 16 == 0;
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
            u.v[k] = __hadd2_rn(u.v[k], __hmul2_rn(g.v[k], w.v[k]));
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

static bool is_wide_vector(const float *p)
{
    return (uintptr_t)p % 16 == 0;
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

extern "C" cudaError_t h3_k_silu_mul(cudaStream_t s, h3_rows y, h3_rows gate, h3_rows up)
{
    if (fits_8(y) && fits_8(gate) && fits_8(up)) {
        const silu_mul_8_op op = {y, gate, up};
        return run_each_8(s, y, op);
    }
    const silu_mul_op op = {y, gate, up};
    return run_each(s, y.rows, y.cols, is_wide(y) && is_wide(gate) && is_wide(up), op);
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

/* ---------------------------------------------------------------- heads */

struct rope_args {
    void *x;
    const float *g;
    const void *cos, *sin;
    int64_t n, H, D, st_s, st_h, R, cos_s, sin_s;
    float eps, per_D; // 1 / D
    int dtype, table;
    bool round_first;
    void *q8; // dense e4m3 by a factor that the norm promises to be enough, and nothing else; or NULL
    float *descale;
};

/* q and k of one attention: what rope_args says of q, and where k differs. Equally many heads. */
struct pair_args {
    rope_args q;
    void *k;
    const float *gk;
    int64_t st_s, st_h;
    void *k8;
    float *k_descale;
};

/* L lanes a head; its normed values meet in shared memory for the rotation. */
template <int V, int L> static __global__ void head_kernel(rope_args a)
{
    H3_SHARED(float, heads_buf);
    const int lane = threadIdx.x % L;
    const int64_t i = (int64_t)blockIdx.x * (blockDim.x / L) + threadIdx.x / L;
    const bool is_there = i < a.n;
    const int64_t s = is_there ? i / a.H : 0, h = is_there ? i % a.H : 0;
    const int64_t at = s * a.st_s + h * a.st_h;
    float *buf = heads_buf + threadIdx.x / L * a.D;
    float ss = 0, u[V];

    for (int64_t c = (int64_t)lane * V; c < a.D; c += L * V) {
        load<V>(a.x, a.dtype, at + c, u);
#pragma unroll
        for (int k = 0; k < V; k++) {
            buf[c + k] = u[k];
            ss += u[k] * u[k];
        }
    }
    if (a.eps > 0) {
#pragma unroll
        for (int o = L / 2; o > 0; o /= 2)
            ss += __shfl_xor_sync(0xffffffffu, ss, o);
        const float inv = 1.0f / sqrtf(ss / (float)a.D + a.eps);
        for (int64_t c = (int64_t)lane * V; c < a.D; c += L * V)
#pragma unroll
            for (int k = 0; k < V; k++) {
                float v = buf[c + k] * inv;
                if (a.round_first) v = rounded(a.dtype, v);
                buf[c + k] = kept(a.dtype, v * (a.g ? a.g[c + k] : 1.0f));
            }
    }
    __syncwarp();
    if (!is_there) return;
    for (int64_t c = (int64_t)lane * V; c < a.D; c += L * V) {
#pragma unroll
        for (int k = 0; k < V; k++) {
            const int64_t at_k = c + k, j = at_k < a.R ? at_k : at_k - a.R;
            u[k] = buf[at_k];
            if (!a.cos || at_k >= 2 * a.R) continue;
            float co[1], si[1];
            load<1>(a.cos, a.table, s * a.cos_s + j, co);
            load<1>(a.sin, a.table, s * a.sin_s + j, si);
            if (at_k < a.R)
                u[k] = rounded(a.table, u[k] * co[0]) - rounded(a.table, buf[at_k + a.R] * si[0]);
            else
                u[k] = rounded(a.table, u[k] * co[0]) + rounded(a.table, buf[j] * si[0]);
        }
        store<V>(a.x, a.dtype, at + c, u);
    }
}

/* Heads of at most 8 L channels with the rotation in whole vectors of 8: a lane keeps its vector in
 * registers and gets its partner's by an exchange. */
template <int L, int X, int T>
static __global__ void head_vector_kernel(const __grid_constant__ rope_args a)
{
    const int dtype = X < 0 ? a.dtype : X, table = T < 0 ? a.table : T; // known ones save branches
    const unsigned i = blockIdx.x * (blockDim.x / L) + threadIdx.x / L, lane = threadIdx.x % L;
    const bool is_there = i < a.n;
    const unsigned H = (unsigned)a.H, s = is_there ? i / H : 0, h = is_there ? i - s * H : 0;
    const int c = (int)lane * 8, R = (int)a.R, turn = R / 8; // lanes to the partner
    const int64_t at = (int64_t)s * a.st_s + (int64_t)h * a.st_h + c;
    const bool has_channels = c < (int)a.D, is_low = c < R, is_turned = c < 2 * R;
    float u[8] = {}, ss = 0;

    if (has_channels) load<8>(a.x, dtype, at, u);
    if (a.eps > 0) {
        float g[8];
        load_vector<8>(has_channels ? a.g : NULL, c, 1.0f, g);
#pragma unroll
        for (int k = 0; k < 8; k++)
            ss += u[k] * u[k];
#pragma unroll
        for (int o = L / 2; o > 0; o /= 2)
            ss += __shfl_xor_sync(0xffffffffu, ss, o);
        const float inv = 1.0f / sqrtf(ss / (float)a.D + a.eps);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float v = u[k] * inv;
            u[k] = kept(dtype, (a.round_first ? rounded(dtype, v) : v) * g[k]);
        }
    }
    if (a.cos) {
        const int to = (int)(threadIdx.x % 32) + (is_low ? turn : -turn);
        float other[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            other[k] = __shfl_sync(0xffffffffu, u[k], to & 31);
        if (is_turned) {
            const int j = is_low ? c : c - R;
            float co[8], si[8];
            load<8>(a.cos, table, (int64_t)s * a.cos_s + j, co);
            load<8>(a.sin, table, (int64_t)s * a.sin_s + j, si);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float own = rounded(table, u[k] * co[k]);
                const float his = rounded(table, other[k] * si[k]);
                u[k] = is_low ? own - his : own + his;
            }
        }
    }
    if (is_there && has_channels) store<8>(a.x, dtype, at, u);
}

/* The same for bf16 heads under bf16 tables: everything after the norm in pairs. A head's L lanes
 * hold u: normed by g and turned by co, si; `to` is the partner's lane. */
struct turn {
    bf16x8 co, si;
    bool is_turned, is_low;
    int to;
};

template <int L>
static __device__ __forceinline__ turn turn_of(const rope_args &a, unsigned s, int lane)
{
    const int c = lane * 8, R = (int)a.R;
    turn t = {};
    t.is_low = c < R;
    t.is_turned = c < 2 * R;
    t.to = ((int)(threadIdx.x % 32) + (t.is_low ? R / 8 : -R / 8)) & 31;
    if (t.is_turned) {
        const int j = t.is_low ? c : c - R;
        t.co = load_8(a.cos, (int64_t)s * a.cos_s + j);
        t.si = load_8(a.sin, (int64_t)s * a.sin_s + j);
    }
    return t;
}

template <int L>
static __device__ __forceinline__ void norm_head(const rope_args &a, const float (&g)[8], bf16x8 &u)
{
    float2 f[4];
    float ss = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        f[k] = __bfloat1622float2(u.v[k]);
        ss = fmaf(f[k].x, f[k].x, fmaf(f[k].y, f[k].y, ss));
    }
#pragma unroll
    for (int o = L / 2; o > 0; o /= 2)
        ss += __shfl_xor_sync(0xffffffffu, ss, o);
    const float inv = rsqrtf(ss * a.per_D + a.eps); // good to 2^-22, for numbers of 8 bits
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float x = f[k].x * inv, y = f[k].y * inv;
        if (a.round_first) x = rounded(K_BF16, x), y = rounded(K_BF16, y);
        u.v[k] = __floats2bfloat162_rn(x * g[2 * k], y * g[2 * k + 1]);
    }
}

static __device__ __forceinline__ void turn_head(const turn &t, bf16x8 &u)
{
    bf16x8 other;
#pragma unroll
    for (int k = 0; k < 4; k++)
        other.v[k] = pair_of(__shfl_sync(0xffffffffu, word_of(u.v[k]), t.to));
    if (!t.is_turned) return;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const __nv_bfloat162 own = __hmul2_rn(u.v[k], t.co.v[k]);
        const __nv_bfloat162 his = __hmul2_rn(other.v[k], t.si.v[k]);
        u.v[k] = t.is_low ? __hsub2_rn(own, his) : __hadd2_rn(own, his);
    }
}

/* No number of a normed head, turned or not, exceeds sqrt(D) max |g|. */
template <int L>
static __device__ __forceinline__ float head_factor(const float (&g)[8], float D)
{
    float top = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        top = fmaxf(top, fabsf(g[k]));
#pragma unroll
    for (int o = L / 2; o > 0; o /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    top *= sqrtf(D) * 1.01f;
    return top > 0 ? 448.0f / top : 1.0f;
}

static __device__ __forceinline__ bf16x8 no_numbers()
{
    return {{pair_of(0), pair_of(0), pair_of(0), pair_of(0)}};
}

template <int L> static __global__ void head_bf16_kernel(const __grid_constant__ rope_args a)
{
    const unsigned i = blockIdx.x * (blockDim.x / L) + threadIdx.x / L, lane = threadIdx.x % L;
    const bool is_there = i < a.n;
    const unsigned H = (unsigned)a.H, s = is_there ? i / H : 0, h = is_there ? i - s * H : 0;
    const int c = (int)lane * 8;
    const int64_t at = (int64_t)s * a.st_s + (int64_t)h * a.st_h + c;
    const bool has_channels = c < (int)a.D;
    bf16x8 u = has_channels ? load_8(a.x, at) : no_numbers();
    const turn t = turn_of<L>(a, s, (int)lane);

    if (a.eps > 0) {
        float g[8];
        load_vector<8>(has_channels ? a.g : NULL, c, 1.0f, g);
        norm_head<L>(a, g, u);
    }
    turn_head(t, u);
    if (is_there && has_channels) store_8(a.x, at, u);
}

/* The heads of one row, q and k: L lanes take every n-th head of one of them, B of their heads at a
 * time on the way, so that gain and turn are fetched once. Neighbouring groups take q and k of one
 * head, which lie side by side in an interleaved product. */
template <int L>
static __global__ void __launch_bounds__(256, 4)
    head_pair_kernel(const __grid_constant__ pair_args p)
{
    enum { B = 4 }; // all 7 of 56 heads at once were slower
    start_early();
    const rope_args &a = p.q;
    const unsigned s = blockIdx.x;
    const int group = (int)threadIdx.x / L, lane = (int)threadIdx.x % L;
    const int H = (int)a.H, c = lane * 8, step = (int)blockDim.x / L / 2;
    const bool is_k = group & 1, has_channels = c < (int)a.D;
    unsigned short *const x = (unsigned short *)(is_k ? p.k : a.x) + c +
                              (int64_t)s * (is_k ? p.st_s : a.st_s);
    const int64_t st_h = is_k ? p.st_h : a.st_h;
    unsigned char *const q8 = (unsigned char *)(is_k ? p.k8 : a.q8);
    const turn t = turn_of<L>(a, s, lane);
    float g[8], factor = 0;

    load_vector<8>(has_channels ? (is_k ? p.gk : a.g) : NULL, c, 1.0f, g);
    for (int first = group / 2; first - group / 2 < H; first += B * step) { // all lanes alike
        bf16x8 u[B];
#pragma unroll
        for (int i = 0; i < B; i++) {
            const int h = first + i * step;
            u[i] = has_channels && h < H ? load_8_once(x, h * st_h) : no_numbers();
        }
        if (q8 && factor == 0) { // once, while the first heads are on their way
            factor = a.eps > 0 ? head_factor<L>(g, (float)a.D) : 1.0f;
            if (s == 0 && lane == 0 && group < 2)
                *(is_k ? p.k_descale : a.descale) = 1.0f / factor;
        }
#pragma unroll
        for (int i = 0; i < B; i++) {
            const int h = first + i * step;
            if (a.eps > 0) norm_head<L>(a, g, u[i]);
            turn_head(t, u[i]);
            if (!has_channels || h >= H) continue;
            if (q8)
                store_8_e4m3(q8, ((int64_t)s * H + h) * a.D + c, u[i], factor);
            else
                store_8(x, h * st_h, u[i]);
        }
    }
}

/* True when every row of a rotation table allows 8 at a time. */
static bool is_wide_table(const void *p, int64_t st, int table)
{
    return (uintptr_t)p % 16 == 0 && st * (table == K_F32 ? 4 : 2) % 16 == 0;
}

static bool fits_vectors(const rope_args &a)
{
    return a.D <= 256 && a.R % 8 == 0 && a.n < (int64_t)1 << 31 && (uintptr_t)a.g % 16 == 0 &&
           is_wide_table(a.cos, a.cos_s, a.table) && is_wide_table(a.sin, a.sin_s, a.table);
}

static cudaError_t run_head_vectors(cudaStream_t s, const rope_args &a)
{
    const int L = a.D > 128 ? 32 : a.D > 64 ? 16 : 8;
    const unsigned blocks = (unsigned)div_up(a.n, 256 / L);
    if (a.n == 0) return cudaSuccess;
    if (a.dtype == K_BF16 && a.cos && a.table == K_BF16) {
        if (L == 32) return H3_RUN((head_bf16_kernel<32>), blocks, 256, 0, s, a);
        if (L == 16) return H3_RUN((head_bf16_kernel<16>), blocks, 256, 0, s, a);
        return H3_RUN((head_bf16_kernel<8>), blocks, 256, 0, s, a);
    }
    if (a.dtype == K_BF16 && (!a.cos || a.table == K_F32)) {
        if (L == 32) return H3_RUN((head_vector_kernel<32, K_BF16, K_F32>), blocks, 256, 0, s, a);
        if (L == 16) return H3_RUN((head_vector_kernel<16, K_BF16, K_F32>), blocks, 256, 0, s, a);
        return H3_RUN((head_vector_kernel<8, K_BF16, K_F32>), blocks, 256, 0, s, a);
    }
    if (L == 32) return H3_RUN((head_vector_kernel<32, -1, -1>), blocks, 256, 0, s, a);
    if (L == 16) return H3_RUN((head_vector_kernel<16, -1, -1>), blocks, 256, 0, s, a);
    return H3_RUN((head_vector_kernel<8, -1, -1>), blocks, 256, 0, s, a);
}

template <int V> static cudaError_t run_heads(cudaStream_t s, const rope_args &a)
{
    const int64_t per = div_up(a.D, V);
    const int L = per > 16 ? 32 : per > 8 ? 16 : 8;
    const unsigned blocks = (unsigned)div_up(a.n, 256 / L);
    const size_t smem = (size_t)(256 / L) * (size_t)a.D * sizeof(float);
    if (a.n == 0) return cudaSuccess;
    if (L == 32) return H3_RUN((head_kernel<V, 32>), blocks, 256, smem, s, a);
    if (L == 16) return H3_RUN((head_kernel<V, 16>), blocks, 256, smem, s, a);
    return H3_RUN((head_kernel<V, 8>), blocks, 256, smem, s, a);
}

static bool is_wide_head(const void *x, uint8_t dtype, const int64_t ne[3], const int64_t st[2])
{
    const int size = dtype == K_F32 ? 4 : 2;
    return ne[2] % 8 == 0 && (uintptr_t)x % 16 == 0 && st[0] * size % 16 == 0 &&
           st[1] * size % 16 == 0;
}

static rope_args rope_of(void *x, uint8_t dtype, const int64_t ne[3], const int64_t st[2],
                         const float *g, float eps, h3_rows cos, h3_rows sin)
{
    return {x,         g,         cos.p, sin.p,
            ne[0] * ne[1],        ne[1], ne[2], st[0],
            st[1],     cos.cols,  cos.st[0],    sin.st[0],
            eps,       1.0f / (float)ne[2],     dtype, cos.dtype,
            false,     NULL,      NULL};
}

extern "C" cudaError_t h3_k_head_norm_rope(cudaStream_t s, void *x, uint8_t dtype,
                                           const int64_t ne[3], const int64_t st[2], const float *g,
                                           float eps, bool round_first, h3_rows cos, h3_rows sin)
{
    rope_args a = rope_of(x, dtype, ne, st, g, eps, cos, sin);
    const bool wide = is_wide_head(x, dtype, ne, st);
    a.round_first = round_first;
    if (wide && fits_vectors(a)) return run_head_vectors(s, a);
    return wide ? run_heads<8>(s, a) : run_heads<1>(s, a);
}

extern "C" bool h3_k_fits_pair(const h3_head_pair *p)
{
    const rope_args a =
        rope_of(p->q, p->dtype, p->ne, p->q_st, p->gq, p->eps, p->cos, p->sin);
    return p->dtype == K_BF16 && p->is_even && a.cos && a.table == K_BF16 && fits_vectors(a) &&
           (uintptr_t)p->gk % 16 == 0 && is_wide_head(p->q, p->dtype, p->ne, p->q_st) &&
           is_wide_head(p->k, p->dtype, p->ne, p->k_st);
}

extern "C" cudaError_t h3_k_head_pair(cudaStream_t s, const h3_head_pair *p)
{
    pair_args a = {rope_of(p->q, p->dtype, p->ne, p->q_st, p->gq, p->eps, p->cos, p->sin),
                   p->k, p->gk, p->k_st[0], p->k_st[1], p->k8, p->k_descale};
    const int L = a.q.D > 128 ? 32 : a.q.D > 64 ? 16 : 8;
    const unsigned blocks = (unsigned)p->ne[0];
    a.q.round_first = p->round_first;
    a.q.q8 = p->q8;
    a.q.descale = p->q_descale;
    if (a.q.n == 0) return cudaSuccess;
    if (L == 32) return H3_RUN_EARLY((head_pair_kernel<32>), blocks, 256, 0, s, a);
    if (L == 16) return H3_RUN_EARLY((head_pair_kernel<16>), blocks, 256, 0, s, a);
    return H3_RUN_EARLY((head_pair_kernel<8>), blocks, 256, 0, s, a);
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
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, per = C / J;
    if (i >= S * J) return;
    const int64_t s = i / J, j = i % J;
    double sum = 0;
    for (int64_t c = j * per; c < (j + 1) * per; c++) {
        double over = 0;
        for (int64_t h = 0; h < H; h++)
            over += (double)x[s * st_s + h * st_h + c];
        sum += over / (double)H;
    }
    y[s * y_st + j] = (float)(sum / (double)per);
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
