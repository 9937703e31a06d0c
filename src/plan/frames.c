/*
 * Counts of frames, latents and samples. Follows diffusers' minimax_h3 blocks (align_num_frames,
 * video_latent_num_frames, audio_latent_num_frames, the reference normalisation and the sampling of
 * the text encoder) in double arithmetic and in their order of operations.
 */
#include "frames.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "size.h"

int64_t h3_round_even(double x)
{
    return (int64_t)rint(x); // the rounding mode is the default one, nearest even
}

int64_t h3_frames_align(int64_t n)
{
    assert(n >= 1 && n <= H3_MAX_COUNT);
    const int64_t over = n - H3_LATENTS_PER_CHUNK;
    if (over <= 0) return H3_LATENTS_PER_CHUNK;
    return h3_ceil_div(over, H3_FRAMES_PER_CHUNK) * H3_FRAMES_PER_CHUNK + H3_LATENTS_PER_CHUNK;
}

int64_t h3_frames_to_latents(int64_t aligned)
{
    assert(aligned % H3_FRAMES_PER_CHUNK == H3_LATENTS_PER_CHUNK);
    return (aligned - H3_LATENTS_PER_CHUNK) / H3_FRAMES_PER_CHUNK * H3_LATENTS_PER_CHUNK + 2;
}

int64_t h3_frames_to_audio(int64_t aligned)
{
    return h3_round_even((double)aligned / H3_FPS * H3_AUDIO_LATENTS_PER_SECOND);
}

bool h3_frames_is_trained(int64_t aligned)
{
    return aligned >= 5 * H3_FPS && aligned <= 15 * H3_FPS;
}

int64_t h3_reference_frames(int64_t n)
{
    if (n < H3_MIN_FRAMES) return n;
    return (n - H3_LATENTS_PER_CHUNK) / H3_FRAMES_PER_CHUNK * H3_FRAMES_PER_CHUNK +
           H3_LATENTS_PER_CHUNK;
}

int64_t h3_encoded_latents(int64_t n)
{
    if (n == 1) return 1;
    return h3_ceil_div(n, H3_FRAMES_PER_CHUNK) * H3_LATENTS_PER_CHUNK - 3;
}

/* The slot at which frame i begins, as a double: a caller may ask for a frame rate of 1e-9. */
static double slot_of(int64_t i, double scale)
{
    return floor((double)i * scale + 0.5);
}

h3_status h3_frames_to_24fps(int64_t n_frames, double fps, int64_t limit, int64_t *source,
                             int64_t *n_out)
{
    *n_out = 0;
    if (!(fps > 0.0) || !isfinite(fps))
        return h3_fail(H3_E_ARG, "frame rate %g: expected a positive number", fps);
    assert(n_frames >= 0 && limit >= 0);

    const bool is_24 = fps == (double)H3_FPS;
    const double scale = (double)H3_FPS / fps;
    const double total = is_24 ? (double)n_frames : slot_of(n_frames, scale);
    const int64_t n = total < (double)limit ? (int64_t)total : limit;
    *n_out = n;
    if (!source) return H3_OK;

    // A frame is held until the slot of the next one, so slot s shows the last frame that begins at
    // or before it. Frames whose slot is taken over at once are dropped.
    for (int64_t s = 0; s < n; s++) {
        if (is_24) {
            source[s] = s;
            continue;
        }
        int64_t lo = s ? source[s - 1] : 0, hi = n_frames; // slot_of(lo) <= s < slot_of(hi)
        while (hi - lo > 1) {
            const int64_t mid = lo + (hi - lo) / 2;
            if (slot_of(mid, scale) <= (double)s)
                lo = mid;
            else
                hi = mid;
        }
        source[s] = lo;
    }
    return H3_OK;
}

/* Counts the sampled frames, and writes them when `index` is given. */
static int64_t sample_indices(int64_t *index, int64_t n_frames, double stride)
{
    int64_t n = 0, last = -1;
    double cursor = 0.0; // accumulated, not multiplied, as the reference does
    for (int64_t at; (at = h3_round_even(cursor)) < n_frames; cursor += stride) {
        if (at <= last) continue;
        if (index) index[n] = at;
        last = at;
        n++;
    }
    return n;
}

h3_status h3_clip_samples_init(h3_clip_samples *s, int64_t n_frames, double fps, double sample_fps,
                               int temporal_patch)
{
    *s = (h3_clip_samples){0};
    const double stride = fps / sample_fps;
    if (!(stride >= 1.0 / 64) || !isfinite(stride) || temporal_patch < 1)
        return h3_fail(H3_E_ARG, "cannot sample a clip of %g frames a second at %g", fps,
                       sample_fps);
    assert(n_frames >= 0 && n_frames <= H3_MAX_COUNT);

    const int64_t n = sample_indices(NULL, n_frames, stride);
    if (n < temporal_patch) {
        const int64_t least = h3_round_even((temporal_patch - 1) * stride) + 1;
        return h3_fail(H3_E_ARG,
                       "clip of %lld frames at %g fps is too short: it is read at %g fps in groups "
                       "of %d, which takes at least %lld frames",
                       (long long)n_frames, fps, sample_fps, temporal_patch, (long long)least);
    }
    const int64_t n_blocks = h3_ceil_div(n, temporal_patch);
    s->block_time = malloc((size_t)n_blocks * sizeof *s->block_time + (size_t)n * sizeof *s->index);
    if (!s->block_time) return h3_fail(H3_E_NOMEM, "no memory for %lld samples", (long long)n);
    s->index = (int64_t *)(s->block_time + n_blocks);
    s->n = n;
    s->n_blocks = n_blocks;
    sample_indices(s->index, n_frames, stride);
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t first = b * temporal_patch, full = first + temporal_patch - 1;
        const int64_t last = full < n ? full : n - 1;
        s->block_time[b] = ((double)first / sample_fps + (double)last / sample_fps) / 2.0;
    }
    return H3_OK;
}

void h3_clip_samples_free(h3_clip_samples *s)
{
    free(s->block_time); // index lies in the same block
    *s = (h3_clip_samples){0};
}

int64_t h3_audio_keep(int64_t n_samples, int64_t rate, int64_t frames)
{
    const int64_t most = (int64_t)((double)frames / H3_FPS * (double)rate);
    return n_samples < most ? n_samples : most;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

int64_t h3_audio_resampled(int64_t n_samples, int64_t rate)
{
    assert(rate > 0 && n_samples >= 0 && n_samples <= H3_MAX_COUNT);
    if (rate == H3_AUDIO_RATE) return n_samples;
    const int64_t g = gcd(rate, H3_AUDIO_RATE), to = H3_AUDIO_RATE / g, from = rate / g;
    // torchaudio takes the ceiling of a float32: a length with a fraction below half a float32 step
    // loses its last sample there, and here. It never has more than whole input blocks give.
    const int64_t most = (n_samples / from + 1) * to;
    const int64_t n = (int64_t)ceilf((float)((double)(to * n_samples) / (double)from));
    return n < most ? n : most;
}

int64_t h3_audio_latents(int64_t n_samples)
{
    return h3_ceil_div(n_samples, H3_AUDIO_HOP);
}
