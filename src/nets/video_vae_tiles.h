/**
 * The seams between tiles of a picture, as the reference makes them. The plan room says where tiles
 * lie; this is the arithmetic on what the network made of them.
 *
 * A tile (i, j) is finished like this, and the order matters: its first lines are faded against the
 * *raw* tile above, then its first columns against the *raw* tile to the left, then it is cut at
 * the bottom and right by the *next* overlaps. So a finished tile needs only the raw last lines of
 * the row above and the raw last columns of its left neighbour; nothing else is kept.
 */
#ifndef H3_NETS_VIDEO_VAE_TILES_H
#define H3_NETS_VIDEO_VAE_TILES_H

#include "dev.h"
#include "tiles.h"

/** State of one pass over the tiles [C, F, tile h, tile w] of a picture, row by row. Sizes are
 * those of the plan (pixels) divided by `unit`: 1 for pixels, 16 for latents. */
typedef struct video_seams {
    h3_tile_axis y, x;
    int64_t unit;
    h3_tensor above;   ///< [C, F, max overlap, columns * tile w] raw last lines of the row above
    h3_tensor below;   ///< [C, F, max overlap, tile w] those of the tile at hand, until it is faded
    h3_tensor left[2]; ///< [C, F, tile h, max overlap] raw last columns: the left neighbour's, own
    int turn;          ///< which of `left` is the neighbour's
} video_seams;

/** Takes the buffers from d's scratch (check it afterwards). */
void h3_video_seams_init(video_seams *s, h3_dev *d, const h3_tile_axis *y, const h3_tile_axis *x,
                         int64_t unit, int64_t channels, int64_t frames);

/** Finishes tile (i, j) in place; *part becomes the view of it that belongs into the picture at the
 *  tile's start. Tiles come row by row, from (0, 0). */
H3_NODISCARD h3_status h3_video_seams_finish(video_seams *s, h3_dev *d, h3_tensor tile, int64_t i,
                                             int64_t j, h3_tensor *part);

#endif
