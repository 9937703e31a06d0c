/** Seams between tiles; see video_vae_tiles.h. */
#include "video_vae_tiles.h"

#include <string.h>

static int64_t widest(const h3_tile_axis *a, int64_t unit)
{
    return (a->overlap + (a->n_wide > 0 ? a->unit : 0)) / unit;
}

/* Overlap with the next tile; 0 for the last one. */
static int64_t overlap(const h3_tile_axis *a, int64_t i, int64_t unit)
{
    return i + 1 < a->n ? h3_tile_overlap(a, i) / unit : 0;
}

void h3_video_seams_init(video_seams *s, h3_dev *d, const h3_tile_axis *y, const h3_tile_axis *x,
                         int64_t unit, int64_t channels, int64_t frames)
{
    const int64_t th = y->tile / unit, tw = x->tile / unit;

    memset(s, 0, sizeof *s);
    s->y = *y;
    s->x = *x;
    s->unit = unit;
    if (y->n > 1) {
        s->above = h3_scratch_4d(d, H3_F32, channels, frames, widest(y, unit), x->n * tw);
        s->below = h3_scratch_4d(d, H3_F32, channels, frames, widest(y, unit), tw);
    }
    for (int k = 0; k < 2 && x->n > 1; k++)
        s->left[k] = h3_scratch_4d(d, H3_F32, channels, frames, th, widest(x, unit));
}

h3_status h3_video_seams_finish(video_seams *s, h3_dev *d, h3_tensor tile, int64_t i, int64_t j,
                                h3_tensor *part)
{
    const h3_ops *op = d->ops;
    const int64_t th = tile.ne[2], tw = tile.ne[3];
    const int64_t oy = overlap(&s->y, i, s->unit), ox = overlap(&s->x, j, s->unit);
    const h3_tensor neighbour = s->left[s->turn], own = s->left[1 - s->turn];
    const h3_tensor above =
        s->y.n > 1 ? h3_slice(s->above, 3, j * tw, tw) : (h3_tensor){.data = NULL};

    /* The raw edges that the next tiles will ask for, before fading changes them. */
    if (oy) H3_TRY(op->copy(d, h3_slice(s->below, 2, 0, oy), h3_slice(tile, 2, th - oy, oy)));
    if (ox) H3_TRY(op->copy(d, h3_slice(own, 3, 0, ox), h3_slice(tile, 3, tw - ox, ox)));

    if (i > 0) H3_TRY(op->fade(d, tile, above, 2, overlap(&s->y, i - 1, s->unit)));
    if (j > 0) H3_TRY(op->fade(d, tile, neighbour, 3, overlap(&s->x, j - 1, s->unit)));

    if (oy) H3_TRY(op->copy(d, h3_slice(above, 2, 0, oy), h3_slice(s->below, 2, 0, oy)));
    s->turn = 1 - s->turn;
    *part = h3_slice(h3_slice(tile, 2, 0, th - oy), 3, 0, tw - ox);
    return H3_OK;
}
