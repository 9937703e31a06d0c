/*
 * Schedules after diffusers' MiniMaxH3Scheduler, on float32 tensors of torch's CPU: each operation
 * rounds once, and torch.linspace rounds once per value because it multiplies and adds in one
 * instruction. The build turns contraction off, so a plain a * b + c rounds twice here.
 */
#include "sigmas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"

void h3_sigma_linspace(float *out, int n)
{
    // From both ends towards the middle, so that the last value is exactly 0.
    const float step = -1.0f / (float)(n - 1);
    for (int i = 0; i < n; i++)
        out[i] = i < n / 2 ? fmaf(step, (float)i, 1.0f) : fmaf(-step, (float)(n - 1 - i), 0.0f);
}

void h3_sigma_shift(float *out, const float *base, int n, double shift)
{
    const float s = (float)shift, s1 = (float)(shift - 1.0); // both from the double, as torch does
    for (int i = 0; i < n; i++)
        out[i] = s * base[i] / (1.0f + s1 * base[i]);
}

/* Takes sigmas [n] over as a schedule, timesteps included. */
static h3_status finish(h3_schedule *s, const float *sigmas, int n, double shift)
{
    float *block = malloc((size_t)(2 * n - 1) * sizeof *block);
    if (!block) return h3_fail(H3_E_NOMEM, "no memory for a schedule of %d values", n);
    memcpy(block, sigmas, (size_t)n * sizeof *block);
    *s = (h3_schedule){
        .n_sigmas = n, .n_steps = n - 1, .sigmas = block, .timesteps = block + n, .shift = shift};
    for (int i = 0; i < n - 1; i++)
        s->timesteps[i] = 1.0f - block[i];
    return H3_OK;
}

static h3_status check_shift(double shift)
{
    if (shift >= 1e-6 && shift <= 1e6) return H3_OK; // less is lost in shift - 1, and 0/0 follows
    return h3_fail(H3_E_ARG, "shift %g: expected 1e-6 .. 1e6", shift);
}

h3_status h3_schedule_init(h3_schedule *s, int n, double shift)
{
    *s = (h3_schedule){0};
    if (n < 2 || n > H3_MAX_SIGMAS)
        return h3_fail(H3_E_ARG, "%d steps: expected 2 .. %d (the final, clean point counts)", n,
                       H3_MAX_SIGMAS);
    H3_TRY(check_shift(shift));
    float sigmas[H3_MAX_SIGMAS];
    h3_sigma_linspace(sigmas, n);
    h3_sigma_shift(sigmas, sigmas, n, shift);
    int kept = 1; // a steep shift can make neighbours near 1 equal: one of them goes
    for (int i = 1; i < n; i++)
        if (sigmas[i] != sigmas[kept - 1]) sigmas[kept++] = sigmas[i];
    return finish(s, sigmas, kept, shift);
}

h3_status h3_schedule_from(h3_schedule *s, const float *base, int n, double shift)
{
    *s = (h3_schedule){0};
    if (n < 2 || n > H3_MAX_SIGMAS)
        return h3_fail(H3_E_ARG, "%d sigmas: expected 2 .. %d, the last one 0", n, H3_MAX_SIGMAS);
    H3_TRY(check_shift(shift));
    for (int i = 0; i < n; i++)
        if (!(base[i] >= 0.0f && base[i] <= 1.0f))
            return h3_fail(H3_E_ARG, "sigma %d is %g: expected 0 .. 1", i, (double)base[i]);
    if (base[n - 1] != 0.0f)
        return h3_fail(H3_E_ARG, "the last of %d sigmas is %g: it must be 0", n,
                       (double)base[n - 1]);
    float sigmas[H3_MAX_SIGMAS];
    h3_sigma_shift(sigmas, base, n, shift);
    for (int i = 1; i < n; i++)
        if (!(sigmas[i] < sigmas[i - 1]))
            return h3_fail(H3_E_ARG,
                           "sigma %d (%g after the shift) does not fall below the one "
                           "before it (%g)",
                           i, (double)sigmas[i], (double)sigmas[i - 1]);
    return finish(s, sigmas, n, shift);
}

void h3_schedule_free(h3_schedule *s)
{
    free(s->sigmas); // timesteps lie in the same block
    *s = (h3_schedule){0};
}

h3_euler h3_sigma_euler(const h3_schedule *s, int step)
{
    const float ratio = s->sigmas[step + 1] / s->sigmas[step];
    return (h3_euler){.back = 1.0f - s->timesteps[step], .ratio = ratio, .rest = 1.0f - ratio};
}

void h3_sigma_step(float *x, const float *v, int64_t n, h3_euler e)
{
    for (int64_t i = 0; i < n; i++) {
        const float clean = x[i] + e.back * v[i]; // the velocity points towards the data
        x[i] = e.ratio * x[i] + e.rest * clean;
    }
}

void h3_sigma_step_bf16(uint16_t *x, const uint16_t *v, int64_t n, float t, h3_euler e)
{
    const float back = h3_round_bf16(1.0f - h3_round_bf16(t));
    for (int64_t i = 0; i < n; i++) {
        const float xi = h3_bf16_to_f32(x[i]);
        const float move = h3_round_bf16(back * h3_bf16_to_f32(v[i]));
        const float clean = h3_round_bf16(xi + move);
        x[i] = h3_f32_to_bf16(e.ratio * xi + e.rest * clean);
    }
}

void h3_sigma_anchor(float *z, const float *noise, int64_t n, float t)
{
    const float rest = 1.0f - t;
    for (int64_t i = 0; i < n; i++)
        z[i] = t * z[i] + rest * noise[i];
}
