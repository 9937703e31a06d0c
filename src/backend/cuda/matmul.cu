/**
 * The plain product: any strides, any of the activation types, f32 sums. For shapes that cuBLASLt
 * refuses (odd alignments), small as those are in practice; 64 x 64 outputs a block, 4 x 4 a
 * thread.
 */
#include "device.cuh"

enum { TILE = 64, DEPTH = 16 };

static __global__ void matmul_kernel(const __grid_constant__ h3_plain_mm p)
{
    __shared__ float xs[DEPTH][TILE + 1], ws[DEPTH][TILE + 1];
    const int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
    const int64_t n0 = (int64_t)blockIdx.x * TILE, m0 = (int64_t)blockIdx.y * TILE;
    float acc[4][4] = {}, u[1];

    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
        for (int i = tid; i < TILE * DEPTH; i += 256) {
            const int kk = i % DEPTH, r = i / DEPTH;
            const bool in_k = k0 + kk < p.k;
            u[0] = 0;
            if (in_k && m0 + r < p.m) load<1>(p.x, p.tx, (m0 + r) * p.x_r + (k0 + kk) * p.x_c, u);
            xs[kk][r] = u[0];
            u[0] = 0;
            if (in_k && n0 + r < p.n) load<1>(p.w, p.tw, (n0 + r) * p.w_r + (k0 + kk) * p.w_c, u);
            ws[kk][r] = u[0];
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < DEPTH; kk++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[i][j] += xs[kk][ty + 16 * i] * ws[kk][tx + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int64_t m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
            if (m >= p.m || n >= p.n) continue;
            float v[1] = {acc[i][j]};
            if (p.bias) {
                load<1>(p.bias, p.ty, n, u);
                v[0] += u[0];
            }
            if (p.adds) {
                load<1>(p.y, p.ty, m * p.y_r + n, u);
                v[0] += u[0];
            }
            store<1>(p.y, p.ty, m * p.y_r + n, v);
        }
}

extern "C" cudaError_t h3_k_matmul(cudaStream_t s, const h3_plain_mm *mm)
{
    if (mm->m == 0 || mm->n == 0) return cudaSuccess;
    /* Tall x goes through in bands of what the grid's second axis can hold. */
    for (int64_t at = 0; at < mm->m; at += 65535LL * TILE) {
        h3_plain_mm band = *mm;
        const int xs = mm->tx == K_F32 ? 4 : 2, ys = mm->ty == K_F32 ? 4 : 2;
        band.x = (const char *)mm->x + at * mm->x_r * xs;
        band.y = (char *)mm->y + at * mm->y_r * ys;
        band.m = mm->m - at < 65535LL * TILE ? mm->m - at : 65535LL * TILE;
        const dim3 grid((unsigned)div_up(mm->n, TILE), (unsigned)div_up(band.m, TILE));
        const cudaError_t e = H3_RUN(matmul_kernel, grid, 256, 0, s, band);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

extern "C" cudaError_t h3_k_probe(void)
{
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, (const void *)matmul_kernel);
}
