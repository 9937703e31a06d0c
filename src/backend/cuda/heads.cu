/**
 * Attention heads: their norm and rotation, q and k of a row together where they allow it, into
 * e4m3 too. Compiled without contraction, see rows.cu.
 */
#include "rows.cuh"

#include <math.h>


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
    float root; // 1.01 sqrt(D)
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
 * hold u: normed by g and turned by co, si (si with its sign: what is added); `to` is the partner's
 * lane. */
struct turn {
    bf16x8 co, si;
    bool is_turned;
    int to;
};

template <int L>
static __device__ __forceinline__ turn turn_of(const rope_args &a, unsigned s, int lane)
{
    const int c = lane * 8, R = (int)a.R;
    const bool is_low = c < R;
    turn t = {};
    t.is_turned = c < 2 * R;
    t.to = ((int)(threadIdx.x % 32) + (is_low ? R / 8 : -R / 8)) & 31;
    if (t.is_turned) {
        const int j = is_low ? c : c - R;
        const unsigned sign = is_low ? 0x80008000u : 0;
        t.co = load_8(a.cos, (int64_t)s * a.cos_s + j);
        t.si = load_8(a.sin, (int64_t)s * a.sin_s + j);
#pragma unroll
        for (int k = 0; k < 4; k++)
            t.si.v[k] ^= sign;
    }
    return t;
}

template <int L>
static __device__ __forceinline__ void norm_head(const rope_args &a, bool round_first,
                                                 const float (&g)[8], bf16x8 &u)
{
    float x[4], y[4], ss = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x[k] = low_of(u.v[k]), y[k] = high_of(u.v[k]);
        ss = fmaf(x[k], x[k], fmaf(y[k], y[k], ss));
    }
#pragma unroll
    for (int o = L / 2; o > 0; o /= 2)
        ss += __shfl_xor_sync(0xffffffffu, ss, o);
    const float inv = rsqrt_16(ss * a.per_D + a.eps); // good to 2^-22, for numbers of 8 bits
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float v = x[k] * inv, w = y[k] * inv;
        if (round_first) {
            const unsigned z = pair_of(v, w);
            v = low_of(z), w = high_of(z);
        }
        u.v[k] = pair_of(v * g[2 * k], w * g[2 * k + 1]);
    }
}

static __device__ __forceinline__ void turn_head(const turn &t, bf16x8 &u)
{
    bf16x8 other;
#pragma unroll
    for (int k = 0; k < 4; k++)
        other.v[k] = __shfl_sync(0xffffffffu, u.v[k], t.to);
    if (!t.is_turned) return;
#pragma unroll
    for (int k = 0; k < 4; k++)
        u.v[k] = add_pairs(mul_pairs(u.v[k], t.co.v[k]), mul_pairs(other.v[k], t.si.v[k]));
}

/* No number of a normed head, turned or not, exceeds sqrt(D) max |g| = root * max |g| / 1.01. */
template <int L>
static __device__ __forceinline__ float head_factor(const float (&g)[8], float root)
{
    float top = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        top = fmaxf(top, fabsf(g[k]));
#pragma unroll
    for (int o = L / 2; o > 0; o /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    top *= root;
    return top > 0 ? 448.0f / top : 1.0f;
}

static __device__ __forceinline__ bf16x8 no_numbers()
{
    return {{0, 0, 0, 0}};
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
        norm_head<L>(a, a.round_first, g, u);
    }
    turn_head(t, u);
    if (is_there && has_channels) store_8(a.x, at, u);
}

/* The heads of one row, q and k: L lanes take every n-th head of one of them, B of their heads at a
 * time on the way, so that gain and turn are fetched once. Neighbouring groups take q and k of one
 * head, which lie side by side in an interleaved product. */
enum { PAIR_AT_ONCE = 4, PAIR_THREADS = 224 }; // 56 heads are two rounds of 7 groups

template <int L, bool IS_8>
static __global__ void __launch_bounds__(PAIR_THREADS, 5)
    head_pair_kernel(const __grid_constant__ pair_args p)
{
    enum { B = PAIR_AT_ONCE };
    start_early();
    const rope_args &a = p.q;
    const unsigned s = blockIdx.x;
    const int group = (int)threadIdx.x / L, lane = (int)threadIdx.x % L;
    const int H = (int)a.H, D = (int)a.D, c = lane * 8, step = (int)blockDim.x / L / 2;
    const bool is_k = group & 1, has_channels = c < D;
    unsigned char *x = (unsigned char *)(is_k ? p.k : a.x) + 2 * c +
                       2 * (int64_t)s * (is_k ? p.st_s : a.st_s);
    unsigned char *q8 = (unsigned char *)(is_k ? p.k8 : a.q8) + (int64_t)s * ((int64_t)H * D) + c;
    int st_h = 2 * (int)(is_k ? p.st_h : a.st_h);
    const turn t = turn_of<L>(a, s, lane);
    const int last = has_channels ? H : 0;
    float g[8], factor = 0;

    settle(x), settle(q8), settle(st_h);
    load_vector<8>(has_channels ? (is_k ? p.gk : a.g) : NULL, c, 1.0f, g);
    for (int first = 0; first < H; first += B * step) {
        bf16x8 u[B];
#pragma unroll
        for (int i = 0; i < B; i++) {
            const int h = first + group / 2 + i * step;
            u[i] = h < last ? load_8_once(x + (int64_t)h * st_h, 0) : no_numbers();
        }
        if (IS_8 && first == 0) factor = head_factor<L>(g, p.root); // the heads are on their way
#pragma unroll
        for (int i = 0; i < B; i++) {
            const int h = first + group / 2 + i * step;
            norm_head<L>(a, false, g, u[i]);
            turn_head(t, u[i]);
            if (h >= last) continue;
            if constexpr (IS_8)
                store_8_e4m3(q8 + (int64_t)h * D, 0, u[i], factor);
            else
                store_8(x + (int64_t)h * st_h, 0, u[i]);
        }
    }
    if (IS_8 && s == 0 && lane == 0 && group < 2)
        *(is_k ? p.k_descale : a.descale) = 1.0f / factor;
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
    return p->dtype == K_BF16 && p->is_even && p->eps > 0 && !p->round_first && a.cos && a.table == K_BF16 && fits_vectors(a) &&
           p->q_st[1] < (int64_t)1 << 24 && p->k_st[1] < (int64_t)1 << 24 &&
           (uintptr_t)p->gk % 16 == 0 && is_wide_head(p->q, p->dtype, p->ne, p->q_st) &&
           is_wide_head(p->k, p->dtype, p->ne, p->k_st);
}

/* Groups of a row's block: as many of q as of k, whole warps of them, with the least of empty places
 * in the rounds that its heads take. */
template <int L, bool IS_8> static cudaError_t run_pair(cudaStream_t s, const pair_args &a)
{
    const int even = L < 16 ? 16 / L : 1, most = PAIR_THREADS / (2 * L);
    int64_t best = 0;
    int step = most;
    for (int n = most; 2 * n > most; n -= even) {
        const int64_t places = div_up(a.q.H, (int64_t)PAIR_AT_ONCE * n) * n;
        if (n < most && places >= best) continue;
        best = places, step = n;
    }
    return H3_RUN_EARLY((head_pair_kernel<L, IS_8>), (unsigned)(a.q.n / a.q.H),
                        (unsigned)(2 * step * L), 0, s, a);
}

extern "C" cudaError_t h3_k_head_pair(cudaStream_t s, const h3_head_pair *p)
{
    pair_args a = {rope_of(p->q, p->dtype, p->ne, p->q_st, p->gq, p->eps, p->cos, p->sin),
                   p->k, p->gk, p->k_st[0], p->k_st[1], p->k8, p->k_descale};
    const int L = a.q.D > 128 ? 32 : a.q.D > 64 ? 16 : 8;
    a.q.q8 = p->q8;
    a.q.descale = p->q_descale;
    a.root = sqrtf((float)a.q.D) * 1.01f;
    if (a.q.n == 0) return cudaSuccess;
    if (p->q8) {
        if (L == 32) return run_pair<32, true>(s, a);
        if (L == 16) return run_pair<16, true>(s, a);
        return run_pair<8, true>(s, a);
    }
    if (L == 32) return run_pair<32, false>(s, a);
    if (L == 16) return run_pair<16, false>(s, a);
    return run_pair<8, false>(s, a);
}
