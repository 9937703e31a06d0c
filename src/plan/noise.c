/*
 * Noise of a request. See noise.h for the two meanings of a seed.
 *
 * A restarted condition is the front of a longer draw, but a shorter draw is not a prefix of a
 * longer one (rng.c), so all of the longer one is drawn, in pieces: every piece but the last is a
 * multiple of 16 values, and the last has at least 16, which together give the bits of one draw.
 */
#include "noise.h"

#include <stdbool.h>
#include <string.h>

#include "rng.h"

enum { PIECE = 4096, GROUP = 16 };

static int64_t cells(h3_latent_shape s)
{
    return s.t * s.h * s.w;
}

/* out [channels, keep] = the leading `keep` values of every channel of a draw [channels, depth]. */
static void draw_leading(h3_rng *r, float *out, int64_t channels, int64_t keep, int64_t depth)
{
    const int64_t total = channels * depth;
    float piece[PIECE + GROUP];
    for (int64_t at = 0, n; at < total; at += n) {
        n = total - at >= PIECE + GROUP ? PIECE : total - at;
        h3_rng_normal(r, piece, n);
        for (int64_t i = 0; i < n;) { // runs within one channel
            const int64_t c = (at + i) / depth, k = (at + i) % depth;
            int64_t run = depth - k < n - i ? depth - k : n - i;
            if (k < keep) {
                if (k + run > keep) run = keep - k;
                memcpy(out + c * keep + k, piece + i, (size_t)run * sizeof *out);
            }
            i += run;
        }
    }
}

static void draw(h3_rng *r, const h3_noise_spec *spec, float *out, int64_t n)
{
    if (!out) return;
    if (spec->order == H3_NOISE_RESTART) h3_rng_seed(r, spec->seed);
    h3_rng_normal(r, out, n);
}

void h3_noise_fill(const h3_noise_spec *spec, float *const *conditions, float *video,
                   float *audio_rows)
{
    h3_rng r;
    h3_rng_seed(&r, spec->seed);
    for (int i = 0; i < spec->n_conditions; i++) {
        const h3_latent_shape s = spec->conditions[i];
        if (spec->order == H3_NOISE_ONE_STREAM) {
            draw(&r, spec, conditions[i], H3_VIDEO_CHANNELS * cells(s));
            continue;
        }
        const int64_t frames = spec->video.t + spec->n_conditions;
        const int64_t depth = frames > s.t ? frames : s.t;
        h3_rng_seed(&r, spec->seed);
        draw_leading(&r, conditions[i], H3_VIDEO_CHANNELS, cells(s), depth * s.h * s.w);
    }
    draw(&r, spec, video, H3_VIDEO_CHANNELS * cells(spec->video));
    draw(&r, spec, audio_rows, 2 * spec->n_audio * H3_AUDIO_LATENT_CHANNELS);
}
