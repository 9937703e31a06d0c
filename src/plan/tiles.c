/*
 * Tile and clip plans of the video VAE, after AutoencoderKLMiniMaxH3's _split_tiles, _stitch_tiles,
 * _encode and _decode. The reference builds lists; here everything is a closed form, so nothing is
 * allocated and no count is limited.
 */
#include "tiles.h"

#include <assert.h>

#include "frames.h"
#include "size.h"

/* ---------------------------------------------------------------- space */

h3_status h3_tile_axis_init(h3_tile_axis *a, int64_t length, int64_t tile, int64_t min_overlap,
                            int64_t unit)
{
    *a = (h3_tile_axis){0};
    if (length < 1 || tile < 1 || unit < 1 || min_overlap < 1 || min_overlap >= tile ||
        length > H3_MAX_COUNT || tile > H3_MAX_COUNT || unit > H3_MAX_COUNT)
        return h3_fail(H3_E_ARG,
                       "tiles of %lld over %lld with overlap %lld in units of %lld: all must be "
                       "positive and the overlap smaller than the tile",
                       (long long)tile, (long long)length, (long long)min_overlap, (long long)unit);
    if (tile >= length) {
        *a = (h3_tile_axis){.length = length, .tile = length, .n = 1, .unit = unit};
        return H3_OK;
    }
    // n tiles cover n * tile - (n - 1) * min_overlap.
    const int64_t n = h3_ceil_div(length - min_overlap, tile - min_overlap);
    const int64_t slack = n * tile - (n - 1) * min_overlap - length, units = slack / unit;
    *a = (h3_tile_axis){.length = length,
                        .tile = tile,
                        .n = n,
                        .overlap = min_overlap + units / (n - 1) * unit,
                        .n_wide = units % (n - 1),
                        .unit = unit};
    return H3_OK;
}

int64_t h3_tile_start(const h3_tile_axis *a, int64_t i)
{
    assert(i >= 0 && i < a->n);
    const int64_t wide = i < a->n_wide ? i : a->n_wide;
    return i * (a->tile - a->overlap) - wide * a->unit;
}

int64_t h3_tile_overlap(const h3_tile_axis *a, int64_t i)
{
    assert(i >= 0 && i + 1 < a->n);
    return a->overlap + (i < a->n_wide ? a->unit : 0);
}

int64_t h3_tile_kept(const h3_tile_axis *a, int64_t i)
{
    return i + 1 < a->n ? a->tile - h3_tile_overlap(a, i) : a->tile;
}

h3_ramp h3_ramp_at(int64_t p, int64_t n)
{
    const float share = (float)p / (float)n;
    return (h3_ramp){.previous = 1.0f - share, .current = share};
}

h3_seam h3_tile_seam(const h3_tile_axis *a, int64_t x)
{
    assert(x >= 0 && x < a->length);
    int64_t i = a->n - 1;
    if (a->n >
        1) { // strides are at most tile - overlap: a lower bound, then at most n_wide further
        i = x / (a->tile - a->overlap);
        if (i > a->n - 1) i = a->n - 1;
        while (i + 1 < a->n && h3_tile_start(a, i + 1) <= x)
            i++;
    }
    const int64_t p = x - h3_tile_start(a, i);
    if (i == 0 || p >= h3_tile_overlap(a, i - 1)) return (h3_seam){i, {0.0f, 1.0f}};
    return (h3_seam){i, h3_ramp_at(p, h3_tile_overlap(a, i - 1))};
}

/* ---------------------------------------------------------------- time */

static int64_t round_up(int64_t n, int64_t to)
{
    return h3_ceil_div(n, to) * to;
}

static h3_status check_rule(h3_clip_rule r, int64_t n, const char *what)
{
    if (r.clip_length < 1 || r.temporal_ratio < 1 || r.token_drop < 0 || n < 1 ||
        r.clip_length > 1 << 20 || r.temporal_ratio > 1 << 20 || n > H3_MAX_COUNT)
        return h3_fail(H3_E_ARG, "%lld %s in clips of %lld at ratio %lld: all must be positive",
                       (long long)n, what, (long long)r.clip_length, (long long)r.temporal_ratio);
    if (r.token_drop >= h3_ceil_div(r.clip_length, r.temporal_ratio))
        return h3_fail(H3_E_ARG, "token drop %lld leaves nothing of a clip of %lld frames",
                       (long long)r.token_drop, (long long)r.clip_length);
    return H3_OK;
}

h3_status h3_decode_clips_init(h3_decode_clips *p, int64_t n_latents, h3_clip_rule rule)
{
    *p = (h3_decode_clips){0};
    H3_TRY(check_rule(rule, n_latents, "latent frames"));
    const int64_t ratio = rule.temporal_ratio, chunk = h3_ceil_div(rule.clip_length, ratio);
    const int64_t padded = round_up(n_latents + rule.token_drop, chunk);
    const bool has_tail = rule.token_drop > 0;
    const int64_t extra = has_tail ? chunk - rule.token_drop : 0; // latents of the next clip
    p->n_latents = n_latents;
    p->stride = chunk;
    p->window = chunk + extra;
    p->n_clips = padded / chunk - (has_tail ? 1 : 0);
    p->lead = chunk * ratio - rule.clip_length;
    p->own = rule.clip_length;
    p->clip_frames = p->window * ratio;
    p->tail_from = chunk * ratio + p->lead;
    p->fade = p->clip_frames > p->tail_from ? p->clip_frames - p->tail_from : 0;
    if (p->n_clips < 1)
        return h3_fail(
            H3_E_ARG,
            "%lld latent frames are too few to decode: a clip needs %lld, or at least %lld "
            "to repeat the last of",
            (long long)n_latents, (long long)p->window, (long long)(chunk - rule.token_drop + 1));

    // Repeated latents make frames nobody asked for. The first latent of a clip stands for
    // clip_length % ratio frames, every other one for `ratio`.
    const int64_t first = rule.clip_length % ratio ? rule.clip_length % ratio : ratio;
    int64_t cut = 0;
    for (int64_t k = n_latents; k < padded - rule.token_drop; k++)
        cut += k % chunk == 0 ? first : ratio;
    p->n_frames = p->n_clips * p->own + p->fade - cut;
    return H3_OK;
}

int64_t h3_decode_latent(const h3_decode_clips *p, int64_t c, int64_t k)
{
    assert(c >= 0 && c < p->n_clips && k >= 0 && k < p->window);
    const int64_t at = c * p->stride + k;
    return at < p->n_latents ? at : p->n_latents - 1;
}

h3_frame_source h3_decode_frame(const h3_decode_clips *p, int64_t f)
{
    assert(f >= 0 && f < p->n_frames);
    const int64_t c = f / p->own, k = f % p->own;
    if (c == p->n_clips) // the last tail, plain; a fade is never longer than a clip's own frames
        return (h3_frame_source){c - 1, p->tail_from + k, 0, {0.0f, 1.0f}};
    if (c == 0 || k >= p->fade) return (h3_frame_source){c, p->lead + k, 0, {0.0f, 1.0f}};
    return (h3_frame_source){c, p->lead + k, p->tail_from + k, h3_ramp_at(k, p->fade)};
}

h3_status h3_encode_clips_init(h3_encode_clips *p, int64_t n_frames, h3_clip_rule rule)
{
    *p = (h3_encode_clips){0};
    H3_TRY(check_rule(rule, n_frames, "frames"));
    p->n_frames = n_frames;
    if (n_frames == 1) { // no temporal extent: nothing repeated, nothing dropped
        p->n_padded = p->n_clips = p->clip_frames = p->latents_per_clip = p->n_latents = 1;
        return H3_OK;
    }
    p->clip_frames = rule.clip_length;
    p->n_padded = round_up(n_frames, rule.clip_length);
    p->n_clips = p->n_padded / rule.clip_length;
    p->latents_per_clip = h3_ceil_div(rule.clip_length, rule.temporal_ratio);
    p->n_latents = p->n_clips * p->latents_per_clip - rule.token_drop;
    return H3_OK;
}

int64_t h3_encode_frame(const h3_encode_clips *p, int64_t c, int64_t k)
{
    assert(c >= 0 && c < p->n_clips && k >= 0 && k < p->clip_frames);
    const int64_t at = c * p->clip_frames + k;
    return at < p->n_frames ? at : p->n_frames - 1;
}
