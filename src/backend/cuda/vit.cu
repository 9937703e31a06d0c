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
        if (T == K_BF16) {
            out[2 * j] = __uint_as_float(w[j] << 16);
            out[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
        } else {
            out[2 * j] = from_f16((unsigned short)w[j]);
            out[2 * j + 1] = from_f16((unsigned short)(w[j] >> 16));
        }
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

/* Rows of at most 256 N numbers, IS_FULL: of as many, at one distance. T is the type of h and y. The
 * factors are fetched one vector ahead: stores hold loads that follow them back. */
template <int T, int N, bool IS_FULL>
static __global__ void __launch_bounds__(256, IS_FULL ? 2 : 1)
    residual_kernel(const __grid_constant__ residual_args a)
{
    start_early();
    const int lane = threadIdx.x % 32, C = IS_FULL ? 256 * N : (int)a.x.cols, c0 = lane * 8;
    const int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (r >= a.x.rows) return;
    float *const x = (float *)a.x.p + (IS_FULL ? r * a.x.st[0] : row_at(a.x, r)) + c0;
    const unsigned short *const h =
        (const unsigned short *)a.h.p + (IS_FULL ? r * a.h.st[0] : row_at(a.h, r)) + c0;
    float u[N][8], f[8], ss = 0;
    uint4 in[N];

#pragma unroll
    for (int i = 0; i < N; i++)
        if (IS_FULL || c0 + i * 256 < C) {
            load<8>(x, K_F32, i * 256, u[i]);
            in[i] = load_16(h, i * 256);
        }
    if (IS_FULL || c0 < C) load<8>(a.s, K_F32, c0, f);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (IS_FULL || c0 + i * 256 < C) {
            float w[8];
            widen<T>(in[i], w);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                u[i][k] += w[k] * f[k];
                ss += u[i][k] * u[i][k];
            }
            if (i + 1 < N && (IS_FULL || c0 + (i + 1) * 256 < C))
                load<8>(a.s, K_F32, c0 + (i + 1) * 256, f);
            store<8>(x, K_F32, i * 256, u[i]);
        }
    if (IS_FULL || c0 < C) load<8>(a.g, K_F32, c0, f);
    const float inv = 1.0f / sqrtf(warp_sum(ss) / (float)C + a.eps);
    unsigned short *const y =
        (unsigned short *)a.y.p + (IS_FULL ? r * a.y.st[0] : row_at(a.y, r)) + c0;
    float top = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (IS_FULL || c0 + i * 256 < C) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                u[i][k] = u[i][k] * inv * f[k];
            if (i + 1 < N && (IS_FULL || c0 + (i + 1) * 256 < C))
                load<8>(a.g, K_F32, c0 + (i + 1) * 256, f);
            const uint4 w = narrow<T>(u[i]);
            if (!a.q) {
                __stcg((uint4 *)(y + i * 256), w);
                continue;
            }
            widen<T>(w, u[i]);
#pragma unroll
            for (int k = 0; k < 8; k++)
                top = fmaxf(top, fabsf(u[i][k]));
        }
    if (!a.q) return;
    top = warp_max(top); // and h was read by all, which may be where the row goes
    const float scale = top > 0 ? top / 448.0f : 1.0f, over = 1.0f / scale;
    unsigned char *const q = (unsigned char *)a.q + r * a.ldq + c0;
    if (lane == 0) a.qs[r] = scale;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (IS_FULL || c0 + i * 256 < C) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                u[i][k] *= over;
            store_e4m3<8>(q, i * 256, u[i]);
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
    if (h.dtype == K_BF16 && x.cols == 2048 && x.n <= 1 && y.n <= 1 && h.n <= 1) // as released
        return H3_RUN_EARLY((residual_kernel<K_BF16, 8, true>), blocks, 256, 0, stream, a);
    if (h.dtype == K_BF16)
        return H3_RUN_EARLY((residual_kernel<K_BF16, 8, false>), blocks, 256, 0, stream, a);
    return H3_RUN_EARLY((residual_kernel<K_F16, 8, false>), blocks, 256, 0, stream, a);
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

/* L lanes a head, a warp all heads of a row: its angles are loaded once. Eight heads of a lane are
 * under way together, and lanes share the work on their sums: of each exchange a lane keeps half of
 * the heads, until one is left whose root it takes for all. D = 8 L. */
enum { HEADS_AT_ONCE = 8 };

/* What the heads v are multiplied by. */
template <int T, int L>
static __device__ __forceinline__ void inverse_norms(const uint4 (&v)[HEADS_AT_ONCE], float eps,
                                                     float (&inv)[HEADS_AT_ONCE])
{
    const int lane = threadIdx.x % L, base = (int)(threadIdx.x % 32) - lane;
    int n = HEADS_AT_ONCE;
    float ss[HEADS_AT_ONCE];
#pragma unroll
    for (int i = 0; i < HEADS_AT_ONCE; i++) {
        float u[8];
        widen<T>(v[i], u);
        ss[i] = 0;
#pragma unroll
        for (int k = 0; k < 8; k++)
            ss[i] += u[k] * u[k];
    }
#pragma unroll
    for (int o = L / 2; o > 0; o /= 2) {
        if (n == 1) {
            ss[0] += __shfl_xor_sync(0xffffffffu, ss[0], o);
            continue;
        }
        n /= 2;
#pragma unroll
        for (int i = 0; i < HEADS_AT_ONCE / 2; i++)
            if (i < n) {
                const float kept = lane & o ? ss[i + n] : ss[i];
                const float sent = lane & o ? ss[i] : ss[i + n];
                ss[i] = kept + __shfl_xor_sync(0xffffffffu, sent, o);
            }
    }
    const float own = 1.0f / sqrtf(ss[0] * (1.0f / (8 * L)) + eps);
#pragma unroll
    for (int i = 0; i < HEADS_AT_ONCE; i++)
        inv[i] = __shfl_sync(0xffffffffu, own, base + i * (L / HEADS_AT_ONCE));
}

/* A head's vector of 8: normed, rounded, turned by co and si, whose sign is that of what is added;
 * `to` is the partner's lane. */
template <int T>
static __device__ __forceinline__ uint4 turn(const uint4 &raw, float inv, bool is_turned, int to,
                                             const float (&co)[8], const float (&si)[8])
{
    float u[8], o[8];
    widen<T>(raw, u);
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
        u[k] = p + q;
    }
    return narrow<T>(u);
}

template <int T, int L>
static __global__ void __launch_bounds__(256)
    heads_kernel(const __grid_constant__ heads_args a)
{
    enum { PER = 32 / L };
    start_early();
    const int lane = threadIdx.x % L, first = threadIdx.x % 32 / L, c = lane * 8;
    const int64_t s = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (s >= a.S) return;
    const bool is_low = c < a.R, is_turned = c < 2 * a.R;
    const int to = ((int)(threadIdx.x % 32) + (is_low ? a.R / 8 : -(a.R / 8))) & 31;
    float co[8] = {}, si[8] = {};
    if (is_turned) {
        const int j = is_low ? c : c - a.R;
        load<8>(a.cos, K_F32, s * a.cos_s + j, co);
        load<8>(a.sin, K_F32, s * a.sin_s + j, si);
#pragma unroll
        for (int k = 0; k < 8; k++)
            si[k] = is_low ? -si[k] : si[k];
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
        unsigned char *x = (unsigned char *)a.x[t] + 2 * (s * a.st_s[t] + c);
        int st = 2 * (int)a.st_h[t];
        settle(x), settle(st);
        for (int h0 = 0; h0 < a.H[t]; h0 += HEADS_AT_ONCE * PER) {
            uint4 v[HEADS_AT_ONCE];
            float inv[HEADS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < HEADS_AT_ONCE; i++) {
                const int h = h0 + first + i * PER;
                v[i] = make_uint4(0, 0, 0, 0);
                if (h < a.H[t]) v[i] = *(const uint4 *)(x + (int64_t)h * st);
            }
            inverse_norms<T, L>(v, a.eps, inv);
#pragma unroll
            for (int i = 0; i < HEADS_AT_ONCE; i++) {
                const int h = h0 + first + i * PER;
                const uint4 w = turn<T>(v[i], inv[i], is_turned, to, co, si);
                if (h < a.H[t]) __stcg((uint4 *)(x + (int64_t)h * st), w);
            }
        }
    }
}

static bool is_wide_heads(const h3_heads *x)
{
    return (uintptr_t)x->p % 16 == 0 && x->st_s % 8 == 0 && x->st_h % 8 == 0 &&
           x->st_h < (int64_t)1 << 24;
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
