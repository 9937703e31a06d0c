/** Position tables of the conditioner; see encoder_tables.h. Follows the Qwen3-VL model code of
 *  transformers (rotary embeddings, get_vision_interpolation_indices_and_weights). */
#include "encoder_tables.h"

#include <math.h>

void h3_encoder_inv_freq(float *f, int64_t n, float theta)
{
    for (int64_t i = 0; i < n; i++)
        f[i] = 1.0f / powf(theta, (float)(2 * i) / (float)(2 * n));
}

bool h3_encoder_mrope_axes(int32_t *axis, int64_t n, const int32_t section[3])
{
    int64_t total = 0;

    for (int a = 0; a < 3; a++) {
        if (section[a] < 0 || section[a] > n) return false;
        total += section[a];
    }
    if (total != n) return false;
    for (int64_t j = 0; j < n; j++)
        axis[j] = 0;
    for (int32_t a = 1; a < 3; a++) {
        if (section[a] && a + 3 * (int64_t)(section[a] - 1) >= n) return false;
        for (int64_t i = 0; i < section[a]; i++)
            axis[a + 3 * i] = a;
    }
    return true;
}

void h3_encoder_mrope(float *cos, float *sin, const float *f, const int32_t *axis, int64_t n,
                      const int32_t *pos, int64_t S)
{
    for (int64_t s = 0; s < S; s++)
        for (int64_t j = 0; j < n; j++) {
            const float angle = (float)pos[axis[j] * S + s] * f[j];
            cos[s * n + j] = cosf(angle);
            sin[s * n + j] = sinf(angle);
        }
}

void h3_encoder_grid_order(int32_t *rc, int32_t h, int32_t w, int32_t merge)
{
    for (int32_t r = 0; r < h; r += merge)
        for (int32_t c = 0; c < w; c += merge)
            for (int32_t i = 0; i < merge * merge; i++) {
                *rc++ = r + i / merge;
                *rc++ = c + i % merge;
            }
}

void h3_encoder_grid_rope(float *cos, float *sin, const float *f, int64_t n_freq, const int32_t *rc,
                          int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < 2 * n_freq; j++) {
            const float angle = (float)rc[2 * i + j / n_freq] * f[j % n_freq];
            cos[i * 2 * n_freq + j] = cosf(angle);
            sin[i * 2 * n_freq + j] = sinf(angle);
        }
}

/* Where cell i of n falls on a table axis: i * (side - 1) / (n - 1), in this order of operations
 * (the indices of the reference depend on it where the quotient is a whole number). */
static void tap_axis(int32_t lo_hi[2], float weight[2], int32_t i, int32_t n, int32_t side)
{
    const float at = (float)i * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1);
    const int32_t lo = (int32_t)at;

    lo_hi[0] = lo;
    lo_hi[1] = lo + 1 < side ? lo + 1 : side - 1;
    weight[1] = at - (float)lo;
    weight[0] = 1.0f - weight[1];
}

void h3_encoder_grid_taps(int32_t *index, float *weight, const int32_t *rc, int64_t n, int32_t h,
                          int32_t w, int32_t side)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t row[2], col[2];
        float wr[2], wc[2];

        tap_axis(row, wr, rc[2 * i], h, side);
        tap_axis(col, wc, rc[2 * i + 1], w, side);
        for (int k = 0; k < 4; k++) {
            index[4 * i + k] = row[k / 2] * side + col[k % 2];
            weight[4 * i + k] = wr[k / 2] * wc[k % 2];
        }
    }
}
