/**
 * Noise schedules, the Euler step and the anchor mix, all in float32 with every operation rounded
 * on its own: files that include this are compiled without contraction.
 *
 * sigma goes from 1 (noise) to 0 (clean), t = 1 - sigma is what the network sees. N grid points,
 * the final 0 included, make N - 1 forwards.
 */
#ifndef H3_PLAN_SIGMAS_H
#define H3_PLAN_SIGMAS_H

#include <stdint.h>

#include "status.h"

enum { H3_MAX_SIGMAS = 4096 };
#define H3_VIDEO_SHIFT 12.0
#define H3_AUDIO_SHIFT 3.0
/** Visual conditions are held at this t; 1 - t must be formed in float32. */
#define H3_ANCHOR_T 0.999f

typedef struct h3_schedule {
    int n_sigmas, n_steps; ///< n_steps = n_sigmas - 1
    float *sigmas;         ///< [n_sigmas] falling, no two neighbours equal, ends in 0
    float *timesteps;      ///< [n_steps] 1 - sigma
    double shift;          ///< that was applied
} h3_schedule;

/** torch.linspace(1, 0, n) in float32, n >= 2. */
void h3_sigma_linspace(float *out, int n);

/** out[i] = shift * base[i] / (1 + (shift - 1) * base[i]). In place is fine. */
void h3_sigma_shift(float *out, const float *base, int n, double shift);

/** The released schedule: linspace, shifted, equal neighbours merged. H3_E_ARG for n outside
 *  2 .. H3_MAX_SIGMAS or a shift that is not a positive number. Free with h3_schedule_free. */
H3_NODISCARD h3_status h3_schedule_init(h3_schedule *s, int n, double shift);

/** A schedule from given positions (a distilled model's), shifted; shift 1 takes them as they are.
 *  They must fall strictly from at most 1 and end in 0, also after the shift: H3_E_ARG by index. */
H3_NODISCARD h3_status h3_schedule_from(h3_schedule *s, const float *base, int n, double shift);

void h3_schedule_free(h3_schedule *s);

/** The three factors of one Euler step, for whoever applies it (host or device):
 *  x0 = x + back * v, then x = ratio * x + rest * x0, each product and sum rounded to float32. */
typedef struct h3_euler {
    float back;  ///< 1 - t, t as the network saw it: not bit-equal to sigma below 0.5
    float ratio; ///< sigma[i + 1] / sigma[i]
    float rest;  ///< 1 - ratio
} h3_euler;

h3_euler h3_sigma_euler(const h3_schedule *s, int step);

/** x[i], v[i] for i < n: one step in place. */
void h3_sigma_step(float *x, const float *v, int64_t n, h3_euler e);

/** The reference's step on bfloat16 samples: x0 is formed in bfloat16, the blend in float32. `t` is
 *  the timestep of the step. */
void h3_sigma_step_bf16(uint16_t *x, const uint16_t *v, int64_t n, float t, h3_euler e);

/** z = t * z + (1 - t) * noise, in place. Visual conditions, once, at t = H3_ANCHOR_T. */
void h3_sigma_anchor(float *z, const float *noise, int64_t n, float t);

#endif
