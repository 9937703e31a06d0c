/**
 * The video decoder's blocks: an f32 stream of residuals under 16-bit products, heads without gains
 * under f32 rotation tables. Both kernels give a warp a row, so that nothing is shared and every
 * load of a row is under way before the first is needed.
 */
#include "device.cuh"

static __device__ __forceinline__ uint4 load_16(const void *p, int64_t i)
{
    return *(const uint4 *)((const unsigned short *)p + i);
}

template <int T> static __device__ __forceinline__ void widen(const uint4 &u, float (&out)[8])
{
    const unsigned w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const unsigned short lo = (unsigned short)w[j], hi = (unsigned short)(w[j] >> 16);
        out[2 * j] = T == K_BF16 ? from_bf16(lo) : from_f16(lo);
        out[2 * j + 1] = T == K_BF16 ? from_bf16(hi) : from_f16(hi);
    }
}

template <int T> static __device__ __forceinline__ uint4 narrow(const float (&v)[8])
{
    unsigned w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (T == K_BF16)
            w[j] = bits_as<unsigned>(__floats2bfloat162_rn(v[2 * j], v[2 * j + 1]));
        else
            w[j] = to_f16(v[2 * j]) | (unsigned)to_f16(v[2 * j + 1]) << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* ---------------------------------------------------------------- residual and norm */

struct residual_args {
    h3_rows y, x, h;
    const float *s, *g;
    float eps;
    void *q; // where y goes in e4m3 instead, or NULL
    float *qs;
    int64_t ldq;
};

/* Rows of at most 256 N numbers. T is the type of h and y. */
template <int T, int N>
static __global__ void residual_kernel(const __grid_constant__ residual_args a)
{
    start_early();
    const int lane = threadIdx.x % 32, C = (int)a.x.cols;
    const int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (r >= a.x.rows) return;
    const int64_t xo = row_at(a.x, r), ho = row_at(a.h, r), yo = row_at(a.y, r);
    float u[N][8], ss = 0;
    uint4 in[N];

#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * 32 + lane) * 8;
        if (c < C) {
            load<8>(a.x.p, K_F32, xo + c, u[i]);
            in[i] = load_16(a.h.p, ho + c);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * 32 + lane) * 8;
        if (c < C) {
            float w[8], f[8];
            widen<T>(in[i], w);
            load<8>(a.s, K_F32, c, f);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                u[i][k] += w[k] * f[k];
                ss += u[i][k] * u[i][k];
            }
            store<8>(a.x.p, K_F32, xo + c, u[i]);
        }
    }
    const float inv = 1.0f / sqrtf(warp_sum(ss) / (float)C + a.eps);
    float top = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * 32 + lane) * 8;
        if (c < C) {
            float g[8];
            load<8>(a.g, K_F32, c, g);
#pragma unroll
            for (int k = 0; k < 8; k++)
                u[i][k] = u[i][k] * inv * g[k];
            const uint4 w = narrow<T>(u[i]);
            if (!a.q) {
                __stcg((uint4 *)((unsigned short *)a.y.p + yo + c), w);
                continue;
            }
            widen<T>(w, u[i]);
#pragma unroll
            for (int k = 0; k < 8; k++)
                top = fmaxf(top, fabsf(u[i][k]));
        }
    }
    if (!a.q) return;
    top = warp_max(top); // and h was read by all, which may be where the row goes
    const float scale = top > 0 ? top / 448.0f : 1.0f, over = 1.0f / scale;
    if (lane == 0) a.qs[r] = scale;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int c = (i * 32 + lane) * 8;
        if (c < C) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                u[i][k] *= over;
            store_e4m3<8>(a.q, r * a.ldq + c, u[i]);
        }
    }
}

extern "C" bool h3_k_scale_add_norm_fits(h3_rows y, h3_rows x, h3_rows h, const float *s,
                                         const float *g)
{
    return x.dtype == K_F32 && (h.dtype == K_BF16 || h.dtype == K_F16) && y.dtype == h.dtype && s &&
           g && x.cols <= 2048 && x.rows < (int64_t)1 << 31 && is_wide(x) && is_wide(y) &&
           is_wide(h) && (uintptr_t)s % 16 == 0 && (uintptr_t)g % 16 == 0;
}

extern "C" cudaError_t h3_k_scale_add_norm(cudaStream_t stream, h3_rows y, h3_rows x, h3_rows h,
                                           const float *s, const float *g, float eps, void *q,
                                           float *qs, int64_t ldq)
{
    const residual_args a = {y, x, h, s, g, eps, q, qs, ldq};
    const unsigned blocks = (unsigned)div_up(x.rows, 8);
    if (x.rows == 0) return cudaSuccess;
    if (h.dtype == K_BF16)
        return H3_RUN_EARLY((residual_kernel<K_BF16, 8>), blocks, 256, 0, stream, a);
    return H3_RUN_EARLY((residual_kernel<K_F16, 8>), blocks, 256, 0, stream, a);
}

/* ---------------------------------------------------------------- heads */

struct heads_args {
    void *x[2];
    int64_t st_s[2], st_h[2];
    int H[2];
    const float *cos, *sin;
    int64_t S, cos_s, sin_s;
    int D, R;
    float eps;
};

/* One head's vector of 8 in lane l of L: normed, rounded, turned. */
template <int T, int L>
static __device__ __forceinline__ uint4 turn(const uint4 &raw, const heads_args &a, int c,
                                             const float (&co)[8], const float (&si)[8])
{
    const bool is_low = c < a.R, is_turned = c < 2 * a.R;
    const int to = ((int)(threadIdx.x % 32) + (is_low ? a.R / 8 : -(a.R / 8))) & 31;
    float u[8], o[8], ss = 0;
    widen<T>(raw, u);
#pragma unroll
    for (int k = 0; k < 8; k++)
        ss += u[k] * u[k];
#pragma unroll
    for (int i = L / 2; i > 0; i /= 2)
        ss += __shfl_xor_sync(0xffffffffu, ss, i);
    const float inv = 1.0f / sqrtf(ss / (float)a.D + a.eps);
#pragma unroll
    for (int k = 0; k < 8; k++)
        u[k] *= inv;
    const uint4 own = narrow<T>(u);
    uint4 other;
    other.x = __shfl_sync(0xffffffffu, own.x, to);
    other.y = __shfl_sync(0xffffffffu, own.y, to);
    other.z = __shfl_sync(0xffffffffu, own.z, to);
    other.w = __shfl_sync(0xffffffffu, own.w, to);
    if (!is_turned) return own;
    widen<T>(own, u);
    widen<T>(other, o);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float p = u[k] * co[k], q = o[k] * si[k];
        u[k] = is_low ? p - q : p + q;
    }
    return narrow<T>(u);
}

/* L lanes a head, a warp all heads of a row: its angles are loaded once. Eight heads of a lane are
 * under way together. */
template <int T, int L> static __global__ void heads_kernel(const __grid_constant__ heads_args a)
{
    enum { AT_ONCE = 8, PER = 32 / L };
    start_early();
    const int lane = threadIdx.x % L, first = threadIdx.x % 32 / L, c = lane * 8;
    const int64_t s = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (s >= a.S) return;
    float co[8] = {}, si[8] = {};
    if (c < 2 * a.R) {
        const int j = c < a.R ? c : c - a.R;
        load<8>(a.cos, K_F32, s * a.cos_s + j, co);
        load<8>(a.sin, K_F32, s * a.sin_s + j, si);
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
        unsigned short *x = (unsigned short *)a.x[t] + s * a.st_s[t] + c;
        for (int h0 = first; h0 < a.H[t] + first; h0 += AT_ONCE * PER) { // all lanes go round alike
            uint4 v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int h = h0 + i * PER;
                v[i] = make_uint4(0, 0, 0, 0);
                if (h < a.H[t]) v[i] = *(const uint4 *)(x + h * a.st_h[t]);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int h = h0 + i * PER;
                const uint4 w = turn<T, L>(v[i], a, c, co, si);
                if (h < a.H[t]) __stcg((uint4 *)(x + h * a.st_h[t]), w);
            }
        }
    }
}

static bool is_wide_heads(const h3_heads *x)
{
    return (uintptr_t)x->p % 16 == 0 && x->st_s % 8 == 0 && x->st_h % 8 == 0;
}

extern "C" bool h3_k_heads_fit(const h3_heads *q, const h3_heads *k, int64_t D, uint8_t dtype,
                               float eps, h3_rows cos, h3_rows sin)
{
    return (dtype == K_BF16 || dtype == K_F16) && (D == 64 || D == 128) && eps > 0 && cos.p &&
           cos.dtype == K_F32 && sin.dtype == K_F32 && cos.cols % 8 == 0 && 2 * cos.cols <= D &&
           (uintptr_t)cos.p % 16 == 0 && (uintptr_t)sin.p % 16 == 0 && cos.st[0] % 4 == 0 &&
           sin.st[0] % 4 == 0 && is_wide_heads(q) && is_wide_heads(k);
}

extern "C" cudaError_t h3_k_heads(cudaStream_t stream, const h3_heads *q, const h3_heads *k,
                                  int64_t S, int64_t D, uint8_t dtype, float eps, h3_rows cos,
                                  h3_rows sin)
{
    const heads_args a = {{q->p, k->p},
                          {q->st_s, k->st_s},
                          {q->st_h, k->st_h},
                          {(int)q->n, (int)k->n},
                          (const float *)cos.p,
                          (const float *)sin.p,
                          S,
                          cos.st[0],
                          sin.st[0],
                          (int)D,
                          (int)cos.cols,
                          eps};
    const unsigned blocks = (unsigned)div_up(S, 8);
    if (S == 0) return cudaSuccess;
    if (dtype == K_BF16) {
        if (D == 64) return H3_RUN_EARLY((heads_kernel<K_BF16, 8>), blocks, 256, 0, stream, a);
        return H3_RUN_EARLY((heads_kernel<K_BF16, 16>), blocks, 256, 0, stream, a);
    }
    if (D == 64) return H3_RUN_EARLY((heads_kernel<K_F16, 8>), blocks, 256, 0, stream, a);
    return H3_RUN_EARLY((heads_kernel<K_F16, 16>), blocks, 256, 0, stream, a);
}
