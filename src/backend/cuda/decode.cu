/**
 * Stored weights to activation types on the device: decode.c of the tensor room, element by
 * element. The same products in the same order (no contraction), so that f32 results agree bit for
 * bit.
 *
 * A thread finds its element's block, scale and bits by itself; neighbours share them through L1.
 * That costs some twenty instructions a number, which is little beside the product that follows.
 * Rotated parts (ConvRot) need whole groups: there a block of threads decodes a piece of a row into
 * shared memory and turns it.
 */
#include "decode_iq.cuh"
#include "device.cuh"

/* h3_encoding */
enum { E_F32, E_BF16, E_F16, E_FP8, E_MXFP8, E_INT8, E_W4A8, E_NVFP4, E_GGML };

static __device__ __forceinline__ float e4m3(uint8_t b)
{
    const __half_raw h = __nv_cvt_fp8_to_halfraw(b, __NV_E4M3);
    return from_f16(h.x);
}

static __device__ __forceinline__ float e2m1(int code)
{
    const int m = code & 7;
    const float v = m < 2 ? 0.5f * (float)m : __uint_as_float((unsigned)(m + 252) << 22);
    return code & 8 ? -v : v;
}

static __device__ __forceinline__ float e8m0(uint8_t b)
{
    return b == 255 ? __uint_as_float(0x7fc00000u) : __uint_as_float((unsigned)b << 23);
}

/* 2^(b - 127) for any b, 0 included. */
static __device__ __forceinline__ float power_of_two(uint8_t b)
{
    return b ? __uint_as_float((unsigned)b << 23) : __uint_as_float(0x00400000u);
}

static __device__ __forceinline__ unsigned load16(const uint8_t *p)
{
    return p[0] | (unsigned)p[1] << 8;
}

static __device__ __forceinline__ float half_at(const uint8_t *p)
{
    return from_f16((unsigned short)load16(p));
}

/* 8 pairs of 6-bit (scale, min) in 12 bytes. */
static __device__ __forceinline__ void k4_scale(const uint8_t *q, int j, int *sc, int *m)
{
    if (j < 4) {
        *sc = q[j] & 63;
        *m = q[j + 4] & 63;
    } else {
        *sc = (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        *m = q[j + 4] >> 4 | (q[j] >> 6) << 4;
    }
}

static __device__ __constant__ signed char iq4_values[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct ggml_size {
    short len, bytes;
};

static __device__ __forceinline__ ggml_size size_of(int type)
{
    if (is_iq(type)) return {256, (short)iq_bytes(type)};
    switch (type) {
    case 0:
        return {1, 4};
    case 1:
    case 30:
        return {1, 2};
    case 2:
    case 20:
        return {32, 18};
    case 3:
        return {32, 20};
    case 6:
        return {32, 22};
    case 7:
        return {32, 24};
    case 8:
        return {32, 34};
    case 10:
        return {256, 84};
    case 11:
        return {256, 110};
    case 12:
        return {256, 144};
    case 13:
        return {256, 176};
    case 14:
        return {256, 210};
    case 23:
        return {256, 136};
    default:
        return {32, 17}; // MXFP4
    }
}

/* Element i of block b. */
static __device__ float ggml_at(int type, const uint8_t *b, int i)
{
    const int j32 = i / 32, l32 = i % 32, half = i / 128, k = i % 128 / 32;
    int sc, m;

    if (is_iq(type)) return iq_at(type, from_f16((unsigned short)iq_half(type, b)), b, i);
    switch (type) {
    case 0:
        return __uint_as_float(load16(b) | load16(b + 2) << 16);
    case 1:
        return half_at(b);
    case 30:
        return from_bf16((unsigned short)load16(b));
    case 2:
        return half_at(b) * (float)((i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8);
    case 3:
        return half_at(b) * (float)(i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4) + half_at(b + 2);
    case 6:
    case 7: {
        const uint8_t *qh = b + (type == 6 ? 2 : 4), *qs = qh + 4;
        const int q = (i < 16 ? qs[i] & 15 : qs[i - 16] >> 4) | (qh[i / 8] >> (i % 8) & 1) << 4;
        return type == 6 ? half_at(b) * (float)(q - 16) : half_at(b) * (float)q + half_at(b + 2);
    }
    case 8:
        return half_at(b) * (float)(signed char)b[2 + i];
    case 10: {
        const int g = i % 32 / 16;
        const uint8_t q = b[16 + 32 * half + i % 32], s = b[8 * half + 2 * k + g];
        const float dl = half_at(b + 80) * (float)(s & 15), ml = half_at(b + 82) * (float)(s >> 4);
        return dl * (float)(q >> (2 * k) & 3) - ml;
    }
    case 11: {
        const int at = 8 * half + 2 * k + i % 32 / 16;
        const uint8_t *s = b + 96;
        const int low = at < 8 ? s[at] & 15 : s[at - 8] >> 4;
        const float dl =
            half_at(b + 108) * (float)((low | (s[8 + at % 4] >> (2 * (at / 4)) & 3) << 4) - 32);
        const uint8_t q = b[32 + 32 * half + i % 32];
        return dl * (float)((q >> (2 * k) & 3) - (b[i % 32] >> (4 * half + k) & 1 ? 0 : 4));
    }
    case 12:
    case 13: {
        const uint8_t *qs = b + (type == 12 ? 16 : 48);
        k4_scale(b + 4, j32, &sc, &m);
        const float dl = half_at(b) * (float)sc, ml = half_at(b + 2) * (float)m;
        int q = qs[32 * (j32 / 2) + l32] >> (4 * (j32 & 1)) & 15;
        if (type == 13) q += (b[16 + l32] >> j32 & 1) << 4;
        return dl * (float)q - ml;
    }
    case 14: {
        const uint8_t ql = b[64 * half + 32 * (k & 1) + l32], qh = b[128 + 32 * half + l32];
        const int q = (ql >> (k & 2 ? 4 : 0) & 15) | (qh >> (2 * k) & 3) << 4;
        const int s = (signed char)b[192 + 8 * half + 2 * k + (l32 < 16 ? 0 : 1)];
        return half_at(b + 208) * (float)s * (float)(q - 32);
    }
    case 20:
        return half_at(b) * (float)iq4_values[i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4];
    case 23: {
        const int ls =
            (b[4 + j32 / 2] >> (4 * (j32 & 1)) & 15) | (int)(load16(b + 2) >> (2 * j32) & 3) << 4;
        const float dl = half_at(b) * (float)(ls - 32);
        const uint8_t *q = b + 8 + 16 * j32;
        return dl * (float)iq4_values[l32 < 16 ? q[l32] & 15 : q[l32 - 16] >> 4];
    }
    default:
        return power_of_two(b[0]) * e2m1(i < 16 ? b[1 + i] & 15 : b[1 + i - 16] >> 4);
    }
}

/* Byte of the block scale (row, col); `cols` scale columns per row. */
static __device__ __forceinline__ uint8_t scale_byte(const h3_part &p, int64_t row, int64_t col,
                                                     int64_t cols)
{
    const uint8_t *s = (const uint8_t *)p.scale;
    if (!p.swizzled) return s[row * cols + col];
    return s[(row / 128 * ((cols + 3) / 4) + col / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 +
             col % 4];
}

/* Element (row, c) of a part, before rotation, input scale and adapters. */
static __device__ float stored_at(const h3_part &p, int64_t row, int64_t c)
{
    const uint8_t *s = (const uint8_t *)p.data + row * p.row_bytes;
    const int64_t full = p.row0 + row;

    switch (p.encoding) {
    case E_F32:
        return ((const float *)s)[c];
    case E_BF16:
        return from_bf16(((const unsigned short *)s)[c]);
    case E_F16:
        return from_f16(((const unsigned short *)s)[c]);
    case E_FP8:
        return e4m3(s[c]) * (p.n_scale > 1 ? ((const float *)p.scale)[full] : p.global);
    case E_MXFP8:
        return e4m3(s[c]) * e8m0(scale_byte(p, full, c / 32, p.cols / 32));
    case E_INT8:
        return (float)(signed char)s[c] *
               (p.n_scale > 1 ? ((const float *)p.scale)[full] : p.global);
    case E_W4A8: {
        const int64_t k = c / p.block, groups = p.cols / p.block;
        const float rel = e4m3(((const uint8_t *)p.scale)[full * groups + k]);
        const float add = p.corr ? p.corr[k * p.full_rows + full] : 0.0f;
        const int code = c % 2 ? s[c / 2] >> 4 : s[c / 2] & 15;
        float q = rintf((p.aux ? ((const float *)p.aux)[code] : (float)(code - 8)) * rel);
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        return q * ((const float *)p.scale2)[full] + add;
    }
    case E_NVFP4: {
        const bool is_high = (c % 2 == 0) == (p.nibble_high != 0);
        const int code = is_high ? s[c / 2] >> 4 : s[c / 2] & 15;
        return e2m1(code) * e4m3(scale_byte(p, full, c / 16, p.cols / 16)) * p.global;
    }
    default: {
        const ggml_size z = size_of(p.ggml_type);
        const int64_t e = p.row_bytes ? c : full * p.cols + c;
        return ggml_at(p.ggml_type, s + e / z.len * z.bytes, (int)(e % z.len));
    }
    }
}

/* Row of an adapter's b that row r of the weight takes, or -1: h3_lora_row of weight.h. */
static __device__ __forceinline__ int64_t lora_row(const h3_dev_lora &l, int64_t r)
{
    const int64_t D = l.head, inner = l.weight_rows / 3;
    switch (l.map) {
    case 1:
        return r / D % 3 == l.slot ? r / (3 * D) * D + r % D : -1;
    case 2:
        return r / D % 3 * inner + r / (3 * D) * D + r % D;
    case 3:
        return (r % inner / D * 3 + r / inner) * D + r % D;
    default:
        return r >= l.row0 && r < l.row0 + l.b_rows ? r - l.row0 : -1;
    }
}

/* Input scale and adapters on top of a decoded value. */
static __device__ __forceinline__ float finished(const h3_part &p, int64_t row, int64_t c, float v)
{
    if (p.in_scale) v *= p.in_scale[c];
    for (int i = 0; i < p.n_lora; i++) {
        const h3_dev_lora &l = p.lora[i];
        const int64_t at = lora_row(l, p.first + row);
        if (at < 0) continue;
        for (int64_t j = 0; j < l.rank; j++) {
            const float f = l.b[at * l.rank + j] * l.scale;
            v += f * l.a[j * p.cols + c];
        }
    }
    return v;
}

/* Row of the part that output row i shows; false when the part does not have it. */
static __device__ __forceinline__ bool pick_row(const h3_part &p, int64_t row, const int32_t *ids,
                                                int64_t i, int64_t *out)
{
    *out = ids ? ids[i] - p.first : row + i;
    return *out >= 0 && *out < p.rows;
}

template <int V>
static __global__ void decode_kernel(const __grid_constant__ h3_rows y,
                                     const __grid_constant__ h3_part p, int64_t row,
                                     const int32_t *ids)
{
    const int64_t per = p.cols / V, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t r;
    float u[V];

    if (i >= y.rows * per || !pick_row(p, row, ids, i / per, &r)) return;
    const int64_t c = i % per * V;
#pragma unroll
    for (int k = 0; k < V; k++)
        u[k] = finished(p, r, c + k, stored_at(p, r, c + k));
    store<V>(y.p, y.dtype, row_at(y, i / per) + c, u);
}

/* One base-4 digit of every index: radix-4 butterflies over values `step` apart. */
static __device__ void rotate_digit(float *buf, int n, int step)
{
    __syncthreads();
    for (int t = threadIdx.x; t < n / 4; t += blockDim.x) {
        float *v = buf + t / step * 4 * step + t % step;
        const float a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
        v[0] = (a + b) + (c - d);
        v[step] = (a + b) - (c - d);
        v[2 * step] = (a - b) + (c + d);
        v[3 * step] = (c + d) - (a - b);
    }
}

/* y = y H_g / sqrt(g) on every run of g values. The second digit goes first, as in decode.c; the
 * scale is a power of two and may come last. */
static __device__ void rotate(float *buf, int n, int g)
{
    float scale = 1.0f;
    for (int k = g; k > 1; k /= 4)
        scale *= 0.5f;
    if (g >= 16) rotate_digit(buf, n, 4);
    rotate_digit(buf, n, 1);
    for (int step = 16; step < g; step *= 4)
        rotate_digit(buf, n, step);
    __syncthreads();
    for (int t = threadIdx.x; t < n; t += blockDim.x)
        buf[t] *= scale;
    __syncthreads();
}

/* `piece` columns (a multiple of the group) of one row a block. */
static __global__ void decode_rotated_kernel(const __grid_constant__ h3_rows y,
                                             const __grid_constant__ h3_part p, int64_t row,
                                             const int32_t *ids, int piece)
{
    H3_SHARED(float, rotated_buf);
    const int64_t pieces = div_up(p.cols, piece), i = blockIdx.x / pieces;
    const int64_t c0 = blockIdx.x % pieces * piece;
    const int n = (int)(p.cols - c0 < piece ? p.cols - c0 : piece);
    int64_t r;
    float u[1];

    if (!pick_row(p, row, ids, i, &r)) return; // the whole block alike
    for (int t = threadIdx.x; t < n; t += blockDim.x)
        rotated_buf[t] = stored_at(p, r, c0 + t);
    rotate(rotated_buf, n, p.group);
    for (int t = threadIdx.x; t < n; t += blockDim.x) {
        u[0] = finished(p, r, c0 + t, rotated_buf[t]);
        store<1>(y.p, y.dtype, row_at(y, i) + c0 + t, u);
    }
}

extern "C" cudaError_t h3_k_decode(cudaStream_t s, h3_rows y, const h3_part *p, int64_t row,
                                   const int32_t *ids)
{
    if (y.rows == 0 || p->cols == 0) return cudaSuccess;
    if (p->group > 1) {
        const int piece = p->group >= 1024 ? p->group : 1024 / p->group * p->group;
        const int64_t blocks = y.rows * div_up(p->cols, piece);
        return H3_RUN(decode_rotated_kernel, (unsigned)blocks, 256, (size_t)piece * sizeof(float),
                      s, y, *p, row, ids, piece);
    }
    if (is_wide(y) && p->cols % 8 == 0)
        return H3_RUN((decode_kernel<8>), (unsigned)div_up(y.rows * (p->cols / 8), 256), 256, 0, s,
                      y, *p, row, ids);
    return H3_RUN((decode_kernel<1>), (unsigned)div_up(y.rows * p->cols, 256), 256, 0, s, y, *p,
                  row, ids);
}

static __global__ void convert_kernel(void *y, int ty, const void *x, int tx, int64_t n)
{
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i + 8 <= n) {
        float u[8];
        load<8>(x, tx, i, u);
        store<8>(y, ty, i, u);
        return;
    }
    for (int64_t k = i; k < n; k++) {
        float u[1];
        load<1>(x, tx, k, u);
        store<1>(y, ty, k, u);
    }
}

extern "C" cudaError_t h3_k_convert(cudaStream_t s, void *y, uint8_t ty, const void *x, uint8_t tx,
                                    int64_t n)
{
    if (n == 0) return cudaSuccess;
    return H3_RUN(convert_kernel, (unsigned)div_up(div_up(n, 8), 256), 256, 0, s, y, ty, x, tx, n);
}

static __global__ void survives_kernel(int *flag, const float *x, int64_t n, int t)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && kept(t, x[i]) != x[i]) *flag = 1;
}

extern "C" cudaError_t h3_k_survives(cudaStream_t s, int *flag, const float *x, int64_t n,
                                     uint8_t t)
{
    if (n == 0) return cudaSuccess;
    return H3_RUN(survives_kernel, (unsigned)div_up(n, 256), 256, 0, s, flag, x, n, t);
}

/* ---------------------------------------------------------------- numbers that no weight can be */

enum { SCAN_F32 = 0, SCAN_BF16, SCAN_F16, SCAN_E4M3 };

static __device__ __forceinline__ bool is_absurd(int kind, unsigned w)
{
    const unsigned lo = w & 0x7fffu, hi = w >> 16 & 0x7fffu;
    if (kind == SCAN_F32) return (w & 0x7fffffffu) > 0x58635fa9u; // 1e15
    if (kind == SCAN_BF16) return lo > 0x5863u || hi > 0x5863u;
    if (kind == SCAN_F16) return lo > 0x7bffu || hi > 0x7bffu;
    const unsigned all = ~w; // a byte is NaN when its low seven bits are set
    return !(all & 0x7fu) || !(all & 0x7f00u) || !(all & 0x7f0000u) || !(all & 0x7f000000u);
}

/* Dense numbers: 16 bytes a thread and step, from a 16-byte boundary on. */
static __global__ void scan_kernel(const uint4 *p, int kind, int64_t n, int *bad)
{
    bool any = false;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const uint4 u = p[i];
        any = any || is_absurd(kind, u.x) || is_absurd(kind, u.y) || is_absurd(kind, u.z) ||
              is_absurd(kind, u.w);
    }
    if (any) *bad = 1;
}

/* Others: one number a thread and step. */
static __global__ void scan_apart_kernel(const unsigned char *p, int kind, int64_t stride, int64_t n,
                                         int *bad)
{
    const int size = kind == SCAN_F32 ? 4 : kind == SCAN_E4M3 ? 1 : 2;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        unsigned w = 0;
        for (int k = 0; k < size; k++)
            w |= (unsigned)p[i * stride + k] << 8 * k;
        if (is_absurd(kind, w)) *bad = 1;
    }
}

extern "C" cudaError_t h3_k_scan(cudaStream_t s, const void *p, int kind, size_t stride, size_t n,
                                 int *bad)
{
    const size_t size = kind == SCAN_F32 ? 4 : kind == SCAN_E4M3 ? 1 : 2;
    const unsigned char *at = (const unsigned char *)p;
    if (stride == size && (uintptr_t)p % 16 == 0) {
        const int64_t wide = (int64_t)(n * size / 16);
        const int64_t blocks = div_up(wide, 256) < 4096 ? div_up(wide, 256) : 4096;
        if (wide > 0) {
            const cudaError_t e =
                H3_RUN(scan_kernel, (unsigned)blocks, 256, 0, s, (const uint4 *)at, kind, wide, bad);
            if (e != cudaSuccess) return e;
        }
        at += wide * 16;
        n -= (size_t)wide * 16 / size;
    }
    if (n == 0) return cudaSuccess;
    const int64_t blocks = div_up((int64_t)n, 256) < 4096 ? div_up((int64_t)n, 256) : 4096;
    return H3_RUN(scan_apart_kernel, (unsigned)blocks, 256, 0, s, at, kind, (int64_t)stride,
                  (int64_t)n, bad);
}
