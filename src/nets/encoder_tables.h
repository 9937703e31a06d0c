/**
 * The conditioner's position tables: rotary frequencies, interleaved M-RoPE, the order in which the
 * patches of a grid are stored, and the bilinear taps into the learned position table. Host floats
 * only; no weights, no device, so that they can be held against the released sizes alone.
 *
 * Every angle is a float32 product of a float32 position and a float32 frequency: that product is
 * what the model was trained with, and forming it in double drifts by 1e-3 at position 20000.
 */
#ifndef H3_NETS_ENCODER_TABLES_H
#define H3_NETS_ENCODER_TABLES_H

#include <stdbool.h>
#include <stdint.h>

/** f[i] = 1 / theta^(2 i / (2 n)) for i < n, all in float32. */
void h3_encoder_inv_freq(float *f, int64_t n, float theta);

/**
 * Which axis (0 t, 1 h, 2 w) drives each of n angle pairs: h at 1, 4, 7, ... and w at 2, 5, 8, ...
 * while their sections last, t everywhere else. False when the sections do not fill n pairs.
 */
bool h3_encoder_mrope_axes(int32_t *axis, int64_t n, const int32_t section[3]);

/** cos, sin [S, n]: row s, pair j holds pos[axis[j]][s] * f[j]. pos is [3, S]. */
void h3_encoder_mrope(float *cos, float *sin, const float *f, const int32_t *axis, int64_t n,
                      const int32_t *pos, int64_t S);

/** rc [h * w, 2]: row and column of each patch of one frame as they are stored, in blocks of
 *  merge x merge patches, blocks in raster order, row-major inside. merge divides h and w. */
void h3_encoder_grid_order(int32_t *rc, int32_t h, int32_t w, int32_t merge);

/** cos, sin [n, 2 * n_freq] from rc [n, 2]: row * f, then column * f. */
void h3_encoder_grid_rope(float *cos, float *sin, const float *f, int64_t n_freq, const int32_t *rc,
                          int64_t n);

/**
 * Bilinear taps of an h x w grid into a side x side table, corners on corners:
 * index, weight [n, 4] in the order (row lo, col lo), (lo, hi), (hi, lo), (hi, hi), for the patches
 * rc.
 */
void h3_encoder_grid_taps(int32_t *index, float *weight, const int32_t *rc, int64_t n, int32_t h,
                          int32_t w, int32_t side);

#endif
