/**
 * A rough picture of what a run is heading for, for whoever watches it.
 *
 * After a step the rows x and their velocity v give the clean latents as the network sees them now:
 * x0 = x + sigma v. Of their middle frame the three directions of largest variance over the 24
 * channels become red, green and blue. These are false colours, one pixel for each latent cell: a
 * decoder would cost as much as steps do, and a fixed table of colours would have to be fitted to
 * each model.
 */
#include <math.h>
#include <stdlib.h>

#include "job.h"
#include "size.h"

enum { C = H3_VIDEO_CHANNELS, TURNS = 24 };
static const double PREVIEW_SECONDS = 2; // at most every so often: small models step faster

/* cov[a][b] of the cells' channels; mean[C]. z is [C, n] with rows `stride` apart. */
static void covariance(double cov[C][C], double mean[C], const float *z, int64_t n, int64_t stride)
{
    for (int a = 0; a < C; a++) {
        mean[a] = 0;
        for (int64_t i = 0; i < n; i++)
            mean[a] += (double)z[a * stride + i];
        mean[a] /= (double)n;
    }
    for (int a = 0; a < C; a++)
        for (int b = 0; b <= a; b++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                sum +=
                    ((double)z[a * stride + i] - mean[a]) * ((double)z[b * stride + i] - mean[b]);
            cov[a][b] = cov[b][a] = sum / (double)n;
        }
}

/* The direction of largest variance by repeated multiplication; takes it out of cov. Returns its
 * standard deviation. Its largest loading is positive, so that colours do not flip between steps.
 */
static double principal(double dir[C], double cov[C][C])
{
    double value = 0, largest = 0;

    for (int a = 0; a < C; a++)
        dir[a] = 1 + 0.1 * a;
    for (int t = 0; t < TURNS; t++) {
        double next[C], norm = 0;
        for (int a = 0; a < C; a++) {
            next[a] = 0;
            for (int b = 0; b < C; b++)
                next[a] += cov[a][b] * dir[b];
            norm += next[a] * next[a];
        }
        value = sqrt(norm);
        for (int a = 0; a < C; a++)
            dir[a] = value > 1e-12 ? next[a] / value : 0;
    }
    for (int a = 0; a < C; a++)
        if (fabs(dir[a]) > fabs(largest)) largest = dir[a];
    for (int a = 0; a < C; a++) {
        if (largest < 0) dir[a] = -dir[a];
    }
    for (int a = 0; a < C; a++)
        for (int b = 0; b < C; b++)
            cov[a][b] -= value * dir[a] * dir[b];
    return sqrt(value > 0 ? value : 0);
}

/* z [C, n] of one frame -> rgb [n, 3], 2.5 standard deviations to each side of the mean. */
static void paint(uint8_t *rgb, const float *z, int64_t n, int64_t stride)
{
    double cov[C][C], mean[C], dir[C];

    covariance(cov, mean, z, n, stride);
    for (int k = 0; k < 3; k++) {
        const double sd = principal(dir, cov), scale = sd > 1e-9 ? 127.5 / (2.5 * sd) : 0;
        for (int64_t i = 0; i < n; i++) {
            double x = 0;
            for (int a = 0; a < C; a++)
                x += dir[a] * ((double)z[a * stride + i] - mean[a]);
            x = 127.5 + x * scale;
            rgb[3 * i + k] = x < 0 ? 0 : x > 255 ? 255 : (uint8_t)x;
        }
    }
}

void h3_job_preview(h3_job *j, const h3_sampler_step *s)
{
    const h3_latent_shape l = j->plan->latent;
    const int64_t n = h3_numel(s->video), frame = l.h * l.w;
    const float sigma = j->plan->video.sigmas[s->step + 1];
    const double now = h3_now();
    float *x, *v, *z;

    if (!j->rq->has_previews || !j->rq->on_event || now - j->preview_at < PREVIEW_SECONDS) return;
    j->preview_at = now;
    free(j->preview);
    j->preview = NULL;
    x = h3_malloc_2(sizeof *x, n, 1);
    v = h3_malloc_2(sizeof *v, n, 1);
    z = h3_malloc_2(sizeof *z, n, 1);
    if (x && v && z && n == C * l.t * frame && h3_dev_download(s->dev, x, s->video) == H3_OK &&
        h3_dev_download(s->dev, v, s->v_video) == H3_OK)
        j->preview = h3_malloc_2(3, frame, 1);
    if (j->preview) { // without memory there is none: a preview is never worth a run
        for (int64_t i = 0; i < n; i++)
            x[i] += sigma * v[i];
        h3_unpatchify(z, x, C, l.t, l.h, l.w);
        paint(j->preview, z + l.t / 2 * frame, frame, l.t * frame);
    }
    free(x);
    free(v);
    free(z);
}
