/**
 * The video encoder: a 3D convolutional network, causal in time.
 *
 * Convolutions see two zero frames in front of a clip and none behind; borders are mirrored in
 * space; group norm is per frame. So a clip can go through whole, or a few frames at a time while
 * every convolution remembers the two frames before: the same numbers in less memory. A single
 * frame (keyframe, reference picture) sees zeros through two of three temporal taps: it is
 * convolved with the third alone, which is exact and a third of the work.
 *
 * Three buffers serve the whole chain: x, y and t below. Each has room for two frames in front,
 * where the remembered ones go, so that a convolution always reads one contiguous tensor.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "half.h"
#include "size.h"
#include "video_vae_net.h"
#include "video_vae_tiles.h"

enum { GROUP_1X1, GROUP_3X3 }; // a still uses the first and slices of the second
enum { PAST = 2, MAX_CONVS = H3_VIDEO_VAE_LEVELS * 13 + 3 };

/* ---------------------------------------------------------------- binding */

static h3_status bind_conv(h3_video_vae *v, enc_conv *c, const char *name, int64_t co, int64_t ci,
                           int k)
{
    snprintf(c->name, sizeof c->name, "%s", name);
    c->co = co;
    c->ci = ci;
    c->k = k;
    c->id = v->enc.n_convs++;
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &c->w, c->name, co, ci * k * k * k, true));
    return h3_store_add(v->enc.store, k == 1 ? GROUP_1X1 : GROUP_3X3, &c->w);
}

static h3_status bind_norm(h3_video_vae *v, h3_tensor *g, h3_tensor *b, const char *name, int64_t n)
{
    char full[96];

    snprintf(full, sizeof full, "%s.weight", name);
    H3_TRY(h3_ckpt_vector(v->ck, v->dev, g, full, n));
    snprintf(full, sizeof full, "%s.bias", name);
    return h3_ckpt_vector(v->ck, v->dev, b, full, n);
}

static h3_status bind_block(h3_video_vae *v, enc_block *b, int level, int i, int64_t ci, int64_t co)
{
    char name[64];

#define NAME(what) (snprintf(name, sizeof name, "encoder.down.%d.block.%d." what, level, i), name)
    H3_TRY(bind_norm(v, &b->norm1_g, &b->norm1_b, NAME("norm1"), ci));
    H3_TRY(bind_conv(v, &b->conv1, NAME("conv1"), co, ci, 3));
    H3_TRY(bind_norm(v, &b->norm2_g, &b->norm2_b, NAME("norm2"), co));
    H3_TRY(bind_conv(v, &b->conv2, NAME("conv2"), co, co, 3));
    b->has_shortcut = ci != co;
    if (b->has_shortcut) H3_TRY(bind_conv(v, &b->shortcut, NAME("nin_shortcut"), co, ci, 1));
#undef NAME
    return H3_OK;
}

h3_status h3_video_vae_bind_encoder(h3_video_vae *v)
{
    const h3_video_vae_geometry *g = &v->geo;
    cnn_encoder *m = &v->enc;
    const int64_t z = 2 * g->latents;
    int64_t c = g->channels[0];

    H3_TRY(h3_store_create(&m->store, v->dev));
    H3_TRY(bind_conv(v, &m->conv_in, "encoder.conv_in", c, 3, 3));
    for (int l = 0; l < (int)g->n_levels; l++) {
        enc_level *level = &m->level[l];
        for (int i = 0; i < (int)g->n_blocks; i++) {
            H3_TRY(bind_block(v, &level->block[i], l, i, c, g->channels[l]));
            c = g->channels[l];
        }
        level->has_down = g->down[l] * g->down_t[l] > 1;
        if (level->has_down) {
            char name[64];
            snprintf(name, sizeof name, "encoder.down.%d.downsample.conv", l);
            H3_TRY(bind_conv(v, &level->down, name, c, c, 3));
        }
    }
    H3_TRY(bind_norm(v, &m->norm_g, &m->norm_b, "encoder.norm_out", c));
    H3_TRY(bind_conv(v, &m->conv_out, "encoder.conv_out", z, c, 3));
    return bind_conv(v, &m->quant, "quant_conv", z, z, 1);
}

/* Calls f for every convolution, in order of use. */
static h3_status each_conv(h3_video_vae *v, h3_status (*f)(h3_video_vae *, enc_conv *))
{
    cnn_encoder *m = &v->enc;

    H3_TRY(f(v, &m->conv_in));
    for (int64_t l = 0; l < v->geo.n_levels; l++) {
        for (int64_t i = 0; i < v->geo.n_blocks; i++) {
            H3_TRY(f(v, &m->level[l].block[i].conv1));
            H3_TRY(f(v, &m->level[l].block[i].conv2));
            H3_TRY(f(v, &m->level[l].block[i].shortcut));
        }
        H3_TRY(f(v, &m->level[l].down));
    }
    H3_TRY(f(v, &m->conv_out));
    return f(v, &m->quant);
}

/* The last temporal tap of a 3 x 3 x 3 convolution as a matrix [co, ci * 9] of its own. */
static h3_status make_still_conv(h3_video_vae *v, enc_conv *c)
{
    const int64_t cols = c->ci * 27;
    float *row;

    if (c->k != 3 || c->still_data) return H3_OK;
    row = malloc((size_t)cols * sizeof *row);
    c->still_data = malloc((size_t)(c->co * c->ci * 9) * sizeof *c->still_data);
    if (!row || !c->still_data) {
        free(row);
        return h3_fail(H3_E_NOMEM, "no memory for %s", c->name);
    }
    for (int64_t o = 0; o < c->co; o++) {
        h3_weight_rows(&c->w, o, 1, row);
        for (int64_t i = 0; i < c->ci; i++)
            memcpy(c->still_data + (o * c->ci + i) * 9, row + i * 27 + 18, 9 * sizeof *row);
    }
    free(row);
    const size_t row_bytes = (size_t)(c->ci * 9) * sizeof *c->still_data;
    c->still = (h3_weight){.name = c->name,
                           .rows = c->co,
                           .cols = c->ci * 9,
                           .n_parts = 1,
                           .bias = c->w.bias,
                           .part[0] = {.data = c->still_data,
                                       .dev = c->still_data,
                                       .rows = c->co,
                                       .cols = c->ci * 9,
                                       .row_bytes = row_bytes,
                                       .bytes = row_bytes * (size_t)c->co,
                                       .encoding = H3_ENC_F32,
                                       .full_rows = c->co,
                                       .global = 1}};
    return h3_store_add(v->enc.still_store, 0, &c->still);
}

static h3_status make_stills(h3_video_vae *v)
{
    cnn_encoder *m = &v->enc;

    if (m->has_still) return H3_OK;
    if (!m->still_store) H3_TRY(h3_store_create(&m->still_store, v->dev));
    H3_TRY(each_conv(v, make_still_conv));
    m->has_still = true;
    return H3_OK;
}

static h3_status free_conv(h3_video_vae *v, enc_conv *c)
{
    h3_dev_weight_free(v->dev, &c->w);
    h3_dev_weight_free(v->dev, &c->still);
    free(c->still_data);
    return H3_OK;
}

void h3_video_vae_free_encoder(h3_video_vae *v)
{
    h3_store_free(&v->enc.store);
    h3_store_free(&v->enc.still_store);
    (void)each_conv(v, free_conv); // never fails
    memset(&v->enc, 0, sizeof v->enc);
}

/* ---------------------------------------------------------------- one tile */

typedef struct encode_run {
    h3_dev *d;
    h3_video_vae *v;
    h3_video_encode_opts o;
    h3_encode_clips clips;
    h3_tile_axis y, x;
    int64_t step;      // frames a clip advances by
    bool is_streaming; // step < frames of a clip: convolutions remember
    bool is_still;     // one frame: the last temporal tap alone
    size_t buffer;     // floats of each of the three buffers
    h3_tensor buf[3];
    h3_tensor past[MAX_CONVS]; // [ci, 2, h, w] of each 3-tap convolution
    int64_t seen[MAX_CONVS];   // frames it has been given
    float *zeros;              // host, as many as the largest past
    h3_tensor moments;         // [48, t, th/16, tw/16] of the tile
    int64_t n_moments;         // latent frames written so far
    video_seams seams;
    h3_tensor picture; // [48, t, H/16, W/16] of the clip
    float *host;       // pixels of a tile [3, clip, th, tw]; moments of a clip
} encode_run;

/* Feature maps between layers: `n` frames at the front of buffer `at`, behind the room for the
 * past. */
typedef struct feature {
    int at;
    int64_t c, n, h, w;
} feature;

static h3_tensor with_past(const encode_run *r, feature f, int64_t past)
{
    const int64_t ne[4] = {f.c, past + f.n, f.h, f.w};
    h3_tensor t = h3_host_tensor(r->buf[f.at].data, H3_F32, 4, ne);

    t.mem = r->d->mem;
    return t;
}

/* Where a layer writes `f` so that `c` (or nothing, when NULL) can read it with its past in front.
 */
static h3_tensor out_view(const encode_run *r, feature f, const enc_conv *next)
{
    const int64_t past = r->is_streaming && next && next->k == 3 ? PAST : 0;

    return h3_slice(with_past(r, f, past), 1, past, f.n);
}

/* Brings the remembered frames in front of x and remembers x's last two for the next time. */
static h3_status exchange_past(encode_run *r, const enc_conv *c, h3_tensor x)
{
    const h3_ops *op = r->d->ops;

    H3_TRY(op->copy(r->d, h3_slice(x, 1, 0, PAST), r->past[c->id]));
    return op->copy(r->d, r->past[c->id], h3_slice(x, 1, x.ne[1] - PAST, PAST));
}

/**
 * x -> out through convolution c with strides (t, s, s); `add` (or nothing) is added. Both kernels
 * of size 3 are padded by two frames in front; in space by one mirrored line on each side, or when
 * s > 1 by one at the bottom and right only. out->n may become 0: a stride in time had no frame
 * due.
 */
static h3_status conv_forward(encode_run *r, const enc_conv *c, feature x, feature *out,
                              const enc_conv *next, int64_t t, int64_t s, const feature *add)
{
    const bool is_wide = c->k == 3, is_still = r->is_still && is_wide;
    const bool is_down = s > 1 || t > 1;
    const int64_t past = is_wide && r->is_streaming ? PAST : 0;
    const int lo = is_wide && !is_down, hi = is_wide && (!is_down || s > 1);
    h3_conv g = {.kernel = {is_still ? 1 : c->k, c->k, c->k},
                 .stride = {is_still ? 1 : (int32_t)t, (int32_t)s, (int32_t)s},
                 .dilation = {1, 1, 1},
                 .pad_lo = {is_wide && !past && !is_still ? PAST : 0, lo, lo},
                 .pad_hi = {0, hi, hi},
                 .pad_mode = {H3_PAD_ZERO, H3_PAD_REFLECT, H3_PAD_REFLECT}};
    h3_tensor in = with_past(r, x, past), sum = {.data = NULL};
    int64_t n = x.n + (is_wide ? PAST : 0); // frames the kernel slides over

    if (past) {
        H3_TRY(exchange_past(r, c, in));
        /* Strides in time count from the clip's first frame, not from this piece's. */
        const int64_t late = (t - r->seen[c->id] % t) % t;
        r->seen[c->id] += x.n;
        n -= late;
        in = h3_slice(in, 1, late, n);
    }
    *out = (feature){.at = out->at,
                     .c = c->co,
                     .n = n < c->k ? 0 : (n - c->k) / t + 1,
                     .h = (x.h + lo + hi - c->k) / s + 1,
                     .w = (x.w + lo + hi - c->k) / s + 1};
    if (out->n == 0) return H3_OK;
    if (add) sum = out_view(r, *add, NULL);
    return r->d->ops->conv(r->d, out_view(r, *out, next), in, is_still ? &c->still : &c->w, &g,
                           sum);
}

/* y += conv2(silu(norm2(conv1(silu(norm1(x)))))), y = x or its shortcut. Moves *x to where it lies.
 */
static h3_status block_forward(encode_run *r, const enc_block *b, feature *x, const enc_conv *next,
                               int level, int i)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_video_vae_geometry *g = &r->v->geo;
    feature y = *x, t, s, out;
    h3_tensor v;

    y.at = (x->at + 1) % 3;
    t.at = (x->at + 2) % 3;
    v = out_view(r, y, &b->conv1);
    H3_TRY(op->group_norm(d, v, out_view(r, *x, NULL), b->norm1_g, b->norm1_b, g->groups,
                          g->enc_eps, true));
    h3_tap(d, v, "level%d.block%d.norm1.silu", level, i);
    H3_TRY(conv_forward(r, &b->conv1, y, &t, &b->conv2, 1, 1, NULL));
    v = out_view(r, t, &b->conv2);
    h3_tap(d, v, "level%d.block%d.conv1", level, i);
    H3_TRY(op->group_norm(d, v, v, b->norm2_g, b->norm2_b, g->groups, g->enc_eps, true));
    h3_tap(d, v, "level%d.block%d.norm2.silu", level, i);
    /* Without a shortcut the sum goes to y and x is read; with one y holds it and x is free. */
    s = *x;
    out.at = y.at;
    if (b->has_shortcut) {
        s.at = y.at;
        out.at = x->at;
        H3_TRY(conv_forward(r, &b->shortcut, *x, &s, NULL, 1, 1, NULL));
        h3_tap(d, out_view(r, s, NULL), "level%d.block%d.shortcut", level, i);
    }
    H3_TRY(conv_forward(r, &b->conv2, t, &out, next, 1, 1, &s));
    h3_tap(d, out_view(r, out, next), "level%d.block%d", level, i);
    *x = out;
    return H3_OK;
}

/* Frames [n] of a tile, already in buffer x.at, through the network; moments are appended. */
static h3_status chunk_forward(encode_run *r, feature x)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_video_vae_geometry *g = &r->v->geo;
    const cnn_encoder *m = &r->v->enc;
    feature y;
    h3_tensor v;

    y.at = (x.at + 1) % 3;
    H3_TRY(conv_forward(r, &m->conv_in, x, &y, NULL, 1, 1, NULL));
    x = y;
    h3_tap(d, out_view(r, x, NULL), "conv_in");
    for (int l = 0; l < (int)g->n_levels; l++) {
        const enc_level *level = &m->level[l];
        for (int i = 0; i < (int)g->n_blocks; i++) {
            const bool is_before_down = i + 1 == (int)g->n_blocks && level->has_down;
            H3_TRY(h3_dev_check(d));
            H3_TRY(
                block_forward(r, &level->block[i], &x, is_before_down ? &level->down : NULL, l, i));
        }
        if (!level->has_down) continue;
        y.at = (x.at + 1) % 3;
        H3_TRY(conv_forward(r, &level->down, x, &y, NULL, g->down_t[l], g->down[l], NULL));
        x = y;
        if (x.n == 0) return H3_OK; // a stride in time: this frame only feeds the memories
        h3_tap(d, out_view(r, x, NULL), "level%d.downsample", l);
    }
    y = x;
    y.at = (x.at + 1) % 3;
    v = out_view(r, y, &m->conv_out);
    H3_TRY(op->group_norm(d, v, out_view(r, x, NULL), m->norm_g, m->norm_b, g->groups, g->enc_eps,
                          true));
    h3_tap(d, v, "norm_out.silu");
    x.at = (y.at + 1) % 3;
    H3_TRY(conv_forward(r, &m->conv_out, y, &x, NULL, 1, 1, NULL));
    h3_tap(d, out_view(r, x, NULL), "conv_out");
    y.at = (x.at + 1) % 3;
    H3_TRY(conv_forward(r, &m->quant, x, &y, NULL, 1, 1, NULL));
    H3_TRY(op->copy(d, h3_slice(r->moments, 1, r->n_moments, y.n), out_view(r, y, NULL)));
    r->n_moments += y.n;
    return H3_OK;
}

/* ---------------------------------------------------------------- a tile, a clip, a video */

/* Bytes to normalised RGB: (byte / 255 - mean) / std, each step rounded to float32. */
static void pixels_of(float *out, h3_tensor frames, const encode_run *r, int64_t clip,
                      int64_t first, int64_t n, int64_t top, int64_t left)
{
    const int64_t h = r->y.tile, w = r->x.tile;
    float table[3][256];

    for (int c = 0; c < 3; c++)
        for (int b = 0; b < 256; b++)
            table[c][b] =
                ((float)b / 255.0f - h3_video_vae_pixel_mean[c]) / h3_video_vae_pixel_std[c];
    for (int64_t q = 0; q < n * h; q++) {
        const int64_t k = q / h, line = q % h;
        const int64_t f = h3_encode_frame(&r->clips, clip, first + k);
        const uint8_t *src = (const uint8_t *)frames.data + f * frames.st[0] +
                             (top + line) * frames.st[1] + left * frames.st[2];
        for (int c = 0; c < 3; c++)
            for (int64_t x = 0; x < w; x++)
                out[((c * n + k) * h + line) * w + x] = table[c][src[x * frames.st[2] + c]];
    }
}

/* The two frames every convolution sees before a clip are zero. */
static h3_status forget(encode_run *r)
{
    r->n_moments = 0;
    for (int i = 0; r->is_streaming && i < r->v->enc.n_convs; i++) {
        r->seen[i] = 0;
        if (!h3_is_null(r->past[i])) H3_TRY(h3_dev_upload(r->d, r->past[i], r->zeros));
    }
    return H3_OK;
}

static h3_status encode_tile(encode_run *r, h3_tensor frames, int64_t clip, int64_t i, int64_t j)
{
    const int64_t total = r->clips.clip_frames;

    H3_TRY(forget(r));
    for (int64_t first = 0; first < total; first += r->step) {
        const int64_t n = total - first < r->step ? total - first : r->step;
        feature x = {.at = 0, .c = 3, .n = n, .h = r->y.tile, .w = r->x.tile};
        feature raw = x;
        raw.at = 1;
        if (!r->d->is_plan)
            pixels_of(r->host, frames, r, clip, first, n, h3_tile_start(&r->y, i),
                      h3_tile_start(&r->x, j));
        H3_TRY(h3_dev_upload(r->d, with_past(r, raw, 0), r->host));
        H3_TRY(r->d->ops->copy(r->d, out_view(r, x, &r->v->enc.conv_in), with_past(r, raw, 0)));
        h3_tap(r->d, with_past(r, raw, 0), "pixels");
        H3_TRY(chunk_forward(r, x));
    }
    h3_tap(r->d, r->moments, "moments");
    return H3_OK;
}

/* Moments [48, t, ..] of a clip to mean and log variance, without the latents that are dropped. */
static h3_status take_moments(encode_run *r, int64_t clip, float *mean, float *logvar)
{
    const int64_t c = r->v->geo.latents, t = r->picture.ne[1],
                  cells = h3_numel(r->picture) / (2 * c * t);
    const int64_t first = clip * t, total = r->clips.n_latents;
    const int64_t n = total - first < t ? total - first : t;

    if (r->d->is_plan) return H3_OK;
    H3_TRY(h3_dev_download(r->d, r->host, r->picture));
    for (int64_t q = 0; q < c * n; q++) {
        const int64_t channel = q / n, k = q % n;
        const float *m = r->host + (channel * t + k) * cells;
        const float *l = r->host + ((c + channel) * t + k) * cells;
        const int64_t to = (channel * total + first + k) * cells;
        for (int64_t i = 0; i < cells; i++) {
            if (!isfinite(m[i]) || isnan(l[i]))
                return h3_fail(H3_E_NUMERIC,
                               "video VAE encoder: NaN or infinity in latent frame %lld",
                               (long long)(first + k));
            mean[to + i] = m[i];
            logvar[to + i] = l[i] < -30.0f ? -30.0f : l[i] > 20.0f ? 20.0f : l[i];
        }
    }
    return H3_OK;
}

static h3_status encode_clip(encode_run *r, h3_tensor frames, int64_t clip, float *mean,
                             float *logvar)
{
    h3_dev *d = r->d;
    const int64_t per_clip = r->y.n * r->x.n, ratio = r->v->geo.ratio;

    for (int64_t tile = 0; tile < per_clip; tile++) {
        const int64_t i = tile / r->x.n, j = tile % r->x.n;
        h3_tensor part, to;
        H3_TRY(encode_tile(r, frames, clip, i, j));
        H3_TRY(h3_video_seams_finish(&r->seams, d, r->moments, i, j, &part));
        to = h3_slice(r->picture, 2, h3_tile_start(&r->y, i) / ratio, part.ne[2]);
        to = h3_slice(to, 3, h3_tile_start(&r->x, j) / ratio, part.ne[3]);
        H3_TRY(d->ops->copy(d, to, part));
        if (r->o.progress)
            r->o.progress(r->o.progress_user, clip * per_clip + tile + 1,
                          r->clips.n_clips * per_clip);
    }
    return take_moments(r, clip, mean, logvar);
}

/* One step of the walk over sizes that plan_buffers makes: the largest map, each conv's past. */
static void note_size(encode_run *r, const enc_conv *c, int64_t n, int64_t h, int64_t w)
{
    const int64_t cells = (n + (r->is_streaming ? PAST : 0)) * h * w;
    const size_t out = (size_t)(c->co * cells), in = (size_t)(c->ci * cells);

    if (out > r->buffer) r->buffer = out;
    if (in > r->buffer) r->buffer = in;
    if (r->is_streaming && c->k == 3 && c->ci > 0)
        r->past[c->id] = h3_scratch_4d(r->d, H3_F32, c->ci, PAST, h, w);
}

/* Sizes through the network at the largest number of frames each layer sees at once. */
static void plan_buffers(encode_run *r)
{
    const h3_video_vae_geometry *g = &r->v->geo;
    const cnn_encoder *m = &r->v->enc;
    int64_t n = r->step, h = r->y.tile, w = r->x.tile;

    note_size(r, &m->conv_in, n, h, w);
    for (int64_t l = 0; l < g->n_levels; l++) {
        for (int64_t i = 0; i < g->n_blocks; i++) {
            note_size(r, &m->level[l].block[i].conv1, n, h, w);
            note_size(r, &m->level[l].block[i].conv2, n, h, w);
        }
        if (!m->level[l].has_down) continue;
        note_size(r, &m->level[l].down, n, h, w);
        n = (n + g->down_t[l] - 1) / g->down_t[l];
        h /= g->down[l];
        w /= g->down[l];
    }
    note_size(r, &m->conv_out, n, h, w);
    note_size(r, &m->quant, n, h, w);
}

static h3_status carve(encode_run *r)
{
    h3_dev *d = r->d;
    const h3_video_vae_geometry *g = &r->v->geo;
    const int64_t c = 2 * g->latents, t = r->clips.latents_per_clip, ratio = g->ratio;
    const int64_t H = r->y.length / ratio, W = r->x.length / ratio;
    size_t floats = 3 * (size_t)(r->step * r->y.tile * r->x.tile), zeros = 1;

    plan_buffers(r);
    for (int k = 0; k < 3; k++)
        r->buf[k] = h3_scratch_1d(d, H3_F32, (int64_t)r->buffer);
    r->moments = h3_scratch_4d(d, H3_F32, c, t, r->y.tile / ratio, r->x.tile / ratio);
    r->picture = h3_scratch_4d(d, H3_F32, c, t, H, W);
    h3_video_seams_init(&r->seams, d, &r->y, &r->x, ratio, c, t);
    H3_TRY(h3_scratch_check(d, "video VAE encoder"));
    for (int i = 0; i < r->v->enc.n_convs; i++)
        if (!h3_is_null(r->past[i]) && (size_t)h3_numel(r->past[i]) > zeros)
            zeros = (size_t)h3_numel(r->past[i]);
    if ((size_t)h3_numel(r->picture) > floats) floats = (size_t)h3_numel(r->picture);
    if (d->is_plan) return H3_OK;
    r->host = malloc(floats * sizeof *r->host);
    r->zeros = calloc(zeros, sizeof *r->zeros);
    if (!r->host || !r->zeros) return h3_fail(H3_E_NOMEM, "no memory for the pixels of a tile");
    return H3_OK;
}

static h3_status plan_run(encode_run *r, h3_tensor frames)
{
    const h3_video_vae_geometry *g = &r->v->geo;
    const int64_t tile = r->o.tile ? r->o.tile : g->tile;
    const int64_t overlap = r->o.overlap ? r->o.overlap : g->overlap;

    if (!(r->v->halves & H3_VIDEO_VAE_ENCODER))
        return h3_fail(H3_E_INTERNAL, "the video VAE was opened without its encoder");
    if (frames.rank != 4 || frames.dtype != H3_U8 || frames.ne[0] < 1 || frames.ne[3] != 3 ||
        frames.st[3] != 1)
        return h3_fail(H3_E_SHAPE, "pictures %s, expected [n, H, W, 3] U8", h3_tensor_desc(frames));
    for (int i = 1; i < 3; i++)
        if (frames.ne[i] % g->ratio || frames.ne[i] < 2 * g->ratio || frames.ne[i] > 1 << 20)
            return h3_fail(H3_E_SHAPE,
                           "a picture of %lld x %lld pixels cannot be encoded: sides must be "
                           "multiples of %lld, at least %lld",
                           (long long)frames.ne[2], (long long)frames.ne[1], (long long)g->ratio,
                           (long long)(2 * g->ratio));
    if (tile % g->ratio || overlap % g->ratio || tile < 2 * g->ratio)
        return h3_fail(H3_E_ARG, "tile %lld and overlap %lld must be multiples of %lld pixels",
                       (long long)tile, (long long)overlap, (long long)g->ratio);
    H3_TRY(h3_tile_axis_init(&r->y, frames.ne[1], tile, overlap, g->ratio));
    H3_TRY(h3_tile_axis_init(&r->x, frames.ne[2], tile, overlap, g->ratio));
    H3_TRY(h3_encode_clips_init(&r->clips, frames.ne[0],
                                (h3_clip_rule){g->clip, g->drop, g->ratio_t}));
    r->is_still = r->clips.clip_frames == 1;
    r->step = r->o.frames_at_once > 0 ? r->o.frames_at_once : r->clips.clip_frames;
    if (r->step > r->clips.clip_frames) r->step = r->clips.clip_frames;
    r->is_streaming = r->step < r->clips.clip_frames;
    return H3_OK;
}

static h3_status acquire_weights(const encode_run *r)
{
    const cnn_encoder *m = &r->v->enc;

    if (r->d->is_plan) return H3_OK; // a dry run must not fetch anything
    if (r->is_still) H3_TRY(make_stills(r->v));
    H3_TRY(h3_store_acquire(m->store, GROUP_1X1));
    return r->is_still ? h3_store_acquire(m->still_store, 0)
                       : h3_store_acquire(m->store, GROUP_3X3);
}

static void release_weights(const encode_run *r)
{
    const cnn_encoder *m = &r->v->enc;

    if (r->d->is_plan) return;
    h3_store_release(m->store, GROUP_1X1);
    if (r->is_still)
        h3_store_release(m->still_store, 0);
    else
        h3_store_release(m->store, GROUP_3X3);
}

static h3_status run_clips(encode_run *r, h3_tensor frames, float *mean, float *logvar)
{
    h3_status st = H3_OK;

    H3_TRY(acquire_weights(r));
    for (int64_t clip = 0; st == H3_OK && clip < r->clips.n_clips; clip++)
        st = encode_clip(r, frames, clip, mean, logvar);
    release_weights(r);
    return st == H3_OK ? h3_dev_sync(r->d) : st;
}

static h3_status encode_bytes(h3_dev *d, h3_video_vae *v, h3_tensor frames,
                              const h3_video_encode_opts *opts, size_t *bytes)
{
    h3_video_encode_opts o = opts ? *opts : (h3_video_encode_opts){.tile = 0};
    h3_dev *plan = NULL;
    h3_status st;

    o.progress = NULL;
    H3_TRY(h3_dev_open(&plan, "plan", NULL));
    plan->mem = d->mem; // the network's vectors live there
    st = h3_video_vae_encode(plan, v, frames, &o, NULL, NULL);
    *bytes = plan->scratch.peak;
    h3_dev_close(&plan);
    return st;
}

h3_status h3_video_vae_encode_bytes(h3_dev *d, h3_video_vae *v, int64_t n, int64_t h, int64_t w,
                                    const h3_video_encode_opts *opts, size_t *bytes)
{
    const int64_t ne[4] = {n, h, w, 3};
    return encode_bytes(d, v, h3_host_tensor(NULL, H3_U8, 4, ne), opts, bytes);
}

h3_status h3_video_vae_encode(h3_dev *d, h3_video_vae *v, h3_tensor frames,
                              const h3_video_encode_opts *opts, float *mean, float *logvar)
{
    encode_run r = {.d = d, .v = v};
    const size_t mark = h3_arena_mark(&d->scratch);
    size_t bytes;
    h3_status st;

    if (opts) r.o = *opts;
    H3_TRY(plan_run(&r, frames));
    if (!d->is_plan && mark == 0) {
        H3_TRY(encode_bytes(d, v, frames, opts, &bytes));
        H3_TRY(h3_dev_scratch(d, bytes));
    }
    if ((st = carve(&r)) == H3_OK) st = run_clips(&r, frames, mean, logvar);
    free(r.host);
    free(r.zeros);
    h3_arena_release(&d->scratch, mark);
    return st;
}

int64_t h3_video_vae_latent_frames(const h3_video_vae *v, int64_t n_frames)
{
    h3_encode_clips c;
    const h3_clip_rule rule = {v->geo.clip, v->geo.drop, v->geo.ratio_t};

    return h3_encode_clips_init(&c, n_frames, rule) == H3_OK ? c.n_latents : 0;
}

void h3_video_vae_condition(const h3_video_vae *v, float *mean, const float *logvar,
                            const float *noise, int64_t n)
{
    const h3_video_vae_geometry *g = &v->geo;

    for (int64_t i = 0; i < g->latents * n; i++) {
        const float deviation = expf(0.5f * logvar[i]);
        const float spread = deviation * noise[i], sample = mean[i] + spread;
        const float kept = h3_f16_to_f32(h3_f32_to_f16(sample));
        mean[i] = (kept - g->mean[i / n]) / g->std[i / n];
    }
}
