/**
 * How the video VAE cuts space into tiles and time into clips, and how the pieces share a pixel.
 * Plain index arithmetic: no tensors, no allocation.
 *
 * Space: along each axis the smallest number of tiles that covers it with at least the minimum
 * overlap; what is left over widens the overlaps by whole latent cells, round robin from the first
 * one on. Time (decoder): clip c takes latents 5 c .. 5 c + 6 and yields 28 frames of which frames
 * 3 .. 19 are its own 17 and 23 .. 27 fade into the next clip's first five.
 */
#ifndef H3_PLAN_TILES_H
#define H3_PLAN_TILES_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/* ---------------------------------------------------------------- space */

typedef struct h3_tile_axis {
    int64_t length, tile; ///< pixels; tile = length when one tile covers the axis
    int64_t n;            ///< tiles
    int64_t overlap;      ///< of every seam ...
    int64_t n_wide, unit; ///< ... and `unit` pixels more at the first n_wide seams
} h3_tile_axis;

/** Released: tile 256, min_overlap 64, unit 16 (the spatial ratio). H3_E_ARG when a number is not
 *  positive or min_overlap >= tile. */
H3_NODISCARD h3_status h3_tile_axis_init(h3_tile_axis *a, int64_t length, int64_t tile,
                                         int64_t min_overlap, int64_t unit);

/** First pixel of tile i. */
int64_t h3_tile_start(const h3_tile_axis *a, int64_t i);

/** Pixels that tiles i and i + 1 share, 0 <= i < n - 1. */
int64_t h3_tile_overlap(const h3_tile_axis *a, int64_t i);

/** Pixels of the output that tile i owns, from h3_tile_start(i): up to the next tile's start. */
int64_t h3_tile_kept(const h3_tile_axis *a, int64_t i);

/**
 * Cross-fade weights at position p of n: the piece that ends fades with 1 - p/n, the one that
 * begins with p/n; it never reaches 1 within the seam. float32.
 */
typedef struct h3_ramp {
    float previous, current;
} h3_ramp;
h3_ramp h3_ramp_at(int64_t p, int64_t n);

/** Who makes pixel x of the axis: `tile` owns it with weight w.current; w.previous is the share of
 *  tile - 1 (0 outside a seam). Never more than two, even where seams are wider than half a tile.
 */
typedef struct h3_seam {
    int64_t tile;
    h3_ramp w;
} h3_seam;
h3_seam h3_tile_seam(const h3_tile_axis *a, int64_t x);

/*
 * In two dimensions tile (i, j) is first faded against the raw tile above, the result against the
 * raw tile to the left: with seams sy, sx of a pixel the shares are
 *   (i, j): sy.current * sx.current    (i - 1, j): sy.previous * sx.current    (i, j - 1):
 * sx.previous and the diagonal tile has none.
 */

/* ---------------------------------------------------------------- time */

/** Released: 17, 3, 4. */
typedef struct h3_clip_rule {
    int64_t clip_length, token_drop, temporal_ratio;
} h3_clip_rule;
#define H3_CLIP_RULE ((h3_clip_rule){17, 3, 4})

/** Decoder: which latents make a clip, which frames of it are used. */
typedef struct h3_decode_clips {
    int64_t n_latents; ///< as given
    int64_t n_clips;
    int64_t stride;      ///< latents from one clip to the next (5)
    int64_t window;      ///< latents a clip takes (7)
    int64_t clip_frames; ///< frames a clip yields (28)
    int64_t lead;        ///< frames of each half thrown away at its front (3)
    int64_t own;         ///< frames a clip contributes (17)
    int64_t fade;        ///< frames of its tail that fade into the next clip (5)
    int64_t tail_from;   ///< first frame of the tail within the clip (23)
    int64_t n_frames;    ///< frames of the whole video
} h3_decode_clips;

/** H3_E_ARG when there is no whole clip (1 or 2 latent frames with the released rule). */
H3_NODISCARD h3_status h3_decode_clips_init(h3_decode_clips *p, int64_t n_latents,
                                            h3_clip_rule rule);

/** Latent that clip c reads at place k of its window; the last one repeats past the end. */
int64_t h3_decode_latent(const h3_decode_clips *p, int64_t c, int64_t k);

/** Frame f of the video = w.current * frame `at` of clip `clip`, plus w.previous * frame
 *  `previous_at` of clip - 1 within a fade. */
typedef struct h3_frame_source {
    int64_t clip, at, previous_at;
    h3_ramp w;
} h3_frame_source;
h3_frame_source h3_decode_frame(const h3_decode_clips *p, int64_t f);

/** Encoder: clips of 17 frames, each on its own; the last token_drop latents are dropped once. A
 *  single frame goes through alone. */
typedef struct h3_encode_clips {
    int64_t n_frames; ///< as given
    int64_t n_padded; ///< frames after repeating the last one to whole clips
    int64_t n_clips, clip_frames, latents_per_clip;
    int64_t n_latents; ///< kept
} h3_encode_clips;
H3_NODISCARD h3_status h3_encode_clips_init(h3_encode_clips *p, int64_t n_frames,
                                            h3_clip_rule rule);

/** Source frame that clip c reads at place k. */
int64_t h3_encode_frame(const h3_encode_clips *p, int64_t c, int64_t k);

#endif
