/**
 * Snake activations of the sound networks. The anti-aliased one is a chain of two 12-tap filters
 * around the snake at doubled rate; it is computed in chunks that stay in level-1 cache, with even
 * and odd samples of the doubled signal kept apart, so that every filter is a plain sliding sum:
 *
 *   u[2 i]     = 2 sum_{k odd}  up[k] x[i + (5 - k) / 2]      reads x[i - 3 .. i + 2]
 *   u[2 i + 1] = 2 sum_{k even} up[k] x[i + (6 - k) / 2]      reads x[i - 2 .. i + 3]
 *   y[n]       = sum_{k odd} down[k] e[n + (k - 5) / 2] + sum_{k even} down[k] o[n + (k - 6) / 2]
 *
 * with e, o the even and odd samples after the snake, both ends repeated.
 */
#include <assert.h>

#include "cpu.h"
#include "lanes.h"

enum {
    CHUNK = 512, ///< outputs per step
    PAD = 16     ///< cells kept before index 0 of each buffer (at least 3, whole vectors)
};

/* over: 1 / b, as the networks themselves compute it. */
INLINE vf v_snake(vf x, vf a, vf over)
{
    return v_fma(v_sin_squared(a * x), over, x);
}

static h3_status snake(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b)
{
    const int64_t N = x.ne[1];

#pragma omp parallel for schedule(static) num_threads(h3_numel(x) < 16384 ? 1 : d->n_threads)
    for (int64_t c = 0; c < x.ne[0]; c++) {
        const vf ac = v_set(((const float *)a.data)[c]);
        const vf bc = v_set(1.0f / (((const float *)b.data)[c] + 1e-9f));
        const float *from = (const float *)x.data + c * x.st[0];
        float *to = (float *)y.data + c * y.st[0];
        int64_t i = 0;
        for (; i + VL <= N; i += VL)
            v_store(to + i, v_snake(v_load(from + i), ac, bc));
        if (i < N)
            v_put_n(to, H3_F32, i, v_snake(v_get_n(from, H3_F32, i, (int)(N - i)), ac, bc),
                    (int)(N - i));
    }
    return H3_OK;
}

static int64_t clamp_to(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i < n ? i : n - 1;
}

typedef struct filters {
    vf up_even[6], up_odd[6];     // 2 up[11 - 2 j], 2 up[10 - 2 j]: in the order the inputs lie
    vf down_even[6], down_odd[6]; // down[2 j + 1] on e, down[2 j] on o
} filters;

/* Outputs [n0, n0 + n) of one channel of N samples. */
static void chunk(const float *x, float *y, int64_t N, int64_t n0, int64_t n, vf a, vf b,
                  const filters *f)
{
    enum { ROOM = PAD + CHUNK + 2 * PAD + VL };
    float ends[ROOM], e[ROOM], o[ROOM];
    /* Index t of the buffers stands for sample n0 - 3 + t. */
    const int64_t first = n0 - 3, cells = n + 6; // samples of e and o that outputs read
    const float *in = x + first;

    if (first < 3 || first + cells + VL + 3 > N) { // inside, whole vectors are read in place
        for (int64_t t = -3; t < cells + 3; t++)
            ends[PAD + t] = x[clamp_to(first + t, N)];
        for (int64_t t = cells + 3; t < cells + 3 + VL; t++)
            ends[PAD + t] = 0;
        in = ends + PAD;
    }
    for (int64_t t = 0; t < cells; t += VL) {
        vf even = v_set(0), odd = v_set(0);
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) {
            even = v_fma(f->up_even[j], v_load(in + t - 3 + j), even);
            odd = v_fma(f->up_odd[j], v_load(in + t - 2 + j), odd);
        }
        v_store(e + t, v_snake(even, a, b));
        v_store(o + t, v_snake(odd, a, b));
    }
    /* Beyond the ends the doubled signal repeats its first and its last sample. */
    if (first < 0)
        for (int64_t t = 0; t < -first && t < cells; t++)
            e[t] = o[t] = e[-first];
    for (int64_t t = N - first; t < cells; t++)
        e[t] = o[t] = o[N - first - 1];
    for (int64_t t = 0; t < n; t += VL) { // output t reads e[t + 1 .. t + 6], o[t .. t + 5]
        vf s = v_set(0);
#pragma GCC unroll 6
        for (int j = 0; j < 6; j++) {
            s = v_fma(f->down_odd[j], v_load(o + t + j), s);
            s = v_fma(f->down_even[j], v_load(e + t + 1 + j), s);
        }
        if (n - t >= VL)
            v_store(y + n0 + t, s);
        else
            v_put_n(y, H3_F32, n0 + t, s, (int)(n - t));
    }
}

static h3_status snake_aa(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b,
                          h3_tensor up, h3_tensor down)
{
    const int64_t N = x.ne[1], per = N > 0 ? (N + CHUNK - 1) / CHUNK : 0;
    const float *u = up.data, *w = down.data;
    filters f;

    for (int j = 0; j < 6; j++) {
        f.up_even[j] = v_set(2.0f * u[11 - 2 * j]);
        f.up_odd[j] = v_set(2.0f * u[10 - 2 * j]);
        f.down_even[j] = v_set(w[2 * j + 1]);
        f.down_odd[j] = v_set(w[2 * j]);
    }
#pragma omp parallel for schedule(static) num_threads(h3_numel(x) < 4096 ? 1 : d->n_threads)
    for (int64_t q = 0; q < x.ne[0] * per; q++) {
        const int64_t c = q / per, n0 = q % per * CHUNK;
        chunk((const float *)x.data + c * x.st[0], (float *)y.data + c * y.st[0], N, n0,
              N - n0 < CHUNK ? N - n0 : CHUNK, v_set(((const float *)a.data)[c]),
              v_set(1.0f / (((const float *)b.data)[c] + 1e-9f)), &f);
    }
    return H3_OK;
}

void ISA(h3_cpu_fill_audio)(h3_ops *op)
{
    op->snake = snake;
    op->snake_aa = snake_aa;
}
