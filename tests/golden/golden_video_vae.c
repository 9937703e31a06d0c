/**
 * Goldens of the video autoencoder: decoder stages, clips in time, tiles, precision, bytes,
 * rotation tables, seams; encoder stages, clips, tiles, condition latents.
 *
 * Limits: tolerance.tsv beside the files where it names a tensor; elsewhere what that table gives
 * tensors of the same kind (pixels 2e-5, moments 4e-5: eight times what float32 itself was off).
 * Low precision is held to the double-precision pixels with 1.5 times the error that the
 * reference's own low precision had there (the file says how much).
 */
#include <stdio.h>

#include "golden_vae.h"
#include "half.h"
#include "rng.h"
#include "test_models.h"
#include "video_vae_net.h"
#include "video_vae_tiles.h"

#define PIXELS  2e-5
#define MOMENTS 4e-5

typedef struct env {
    h3_dev *d;
    h3_checkpoint *ck;
    h3_video_vae *v;
    vae_taps taps;
} env;

static void env_close(env *e)
{
    vae_forget(&e->taps);
    h3_video_vae_close(&e->v);
    h3_ckpt_close(&e->ck);
    h3_dev_close(&e->d);
}

/* `layout` is "original" or "diffusers"; *e stays zeroed when a set of goldens has no such copy. */
static h3_status env_open(env *e, golden *g, const char *layout, unsigned halves)
{
    char *path = h3_strdupf("%s/model/%s", g->folder, layout);
    h3_status st = H3_OK;

    memset(e, 0, sizeof *e);
    if (!h3_path_exists(path)) {
        const bool is_optional = strcmp(layout, "diffusers") == 0;
        free(path);
        if (is_optional) return H3_OK;
        path = golden_model(g, "model/original", "video_vae/model/original");
        if (!path) return H3_OK;
    } else {
        char *whole = h3_strdupf("%s", test_model(path));
        free(path);
        path = whole;
    }
    if ((st = h3_dev_open(&e->d, g->device, NULL)) == H3_OK &&
        (st = h3_ckpt_open(&e->ck, path, H3_ROLE_VIDEO_VAE, NULL)) == H3_OK &&
        (st = h3_video_vae_open(&e->v, e->d, e->ck, halves)) == H3_OK)
        st = h3_ckpt_finish(e->ck);
    free(path);
    if (st != H3_OK) env_close(e);
    return st;
}

/* ---------------------------------------------------------------- decoding */

typedef struct video {
    float *rgb;     // [3, frames, H, W]
    uint8_t *bytes; // [frames, H, W, 3]
    int64_t frames, h, w, n_seen;
    bool in_order;
} video;

static h3_status collect(void *user, int64_t first, h3_tensor f)
{
    video *v = user;
    const bool is_float = f.dtype == H3_F32;
    const int64_t n = f.ne[is_float ? 1 : 0], area = v->h * v->w;

    v->in_order = v->in_order && first == v->n_seen && first + n <= v->frames;
    if (!v->in_order) return h3_fail(H3_E_INTERNAL, "frames out of order");
    v->n_seen += n;
    for (int c = 0; is_float && c < 3; c++)
        memcpy(v->rgb + (c * v->frames + first) * area, (const float *)f.data + c * f.st[0],
               (size_t)(n * area) * sizeof *v->rgb);
    if (!is_float) memcpy(v->bytes + first * area * 3, f.data, (size_t)(n * area) * 3);
    return H3_OK;
}

/* z [1, 24, T, h, w] of the file. The caller frees out->rgb and out->bytes. */
static h3_status decode(env *e, h3_tensor z, h3_video_decode_opts o, video *out)
{
    const h3_video_vae_geometry *g = h3_video_vae_sizes(e->v);
    const int64_t t = z.ne[2];
    h3_status st;

    *out = (video){.frames = o.is_one_clip ? t * g->ratio_t : h3_video_vae_frames(e->v, t),
                   .h = z.ne[3] * g->ratio,
                   .w = z.ne[4] * g->ratio,
                   .in_order = true};
    if (e->d->mem == H3_DEVICE) o.tiles_in_flight = 3; // as in a request
    const size_t n = (size_t)(3 * out->frames * out->h * out->w);
    out->rgb = o.is_float ? malloc((n + 1) * sizeof *out->rgb) : NULL;
    out->bytes = o.is_float ? NULL : malloc(n + 1);
    st = h3_video_vae_decode(e->d, e->v, h3_view(z, 4, z.ne + 1), &o, collect, out);
    if (st == H3_OK && out->n_seen != out->frames)
        st = h3_fail(H3_E_INTERNAL, "%lld frames came out, expected %lld", (long long)out->n_seen,
                     (long long)out->frames);
    return st;
}

static void video_free(video *v)
{
    free(v->rgb);
    free(v->bytes);
    *v = (video){.rgb = NULL};
}

static h3_tensor rgb_of(const video *v)
{
    const int64_t ne[4] = {3, v->frames, v->h, v->w};
    return h3_host_tensor(v->rgb, H3_F32, 4, ne);
}

static h3_tensor bytes_of(const video *v)
{
    const int64_t ne[4] = {v->frames, v->h, v->w, 3};
    return h3_host_tensor(v->bytes, H3_U8, 4, ne);
}

/* Both halves of a rotation table that the file keeps twice as wide. */
static void check_table(golden *g, const vae_taps *taps, const char *name)
{
    const h3_tensor *want = golden_need(g, name), *got = vae_seen(g, taps, name, 0);

    if (!want || !got) return;
    const int64_t n = got->ne[0], r = got->ne[1];
    h3_tensor wide = vae_copy(h3_tensor_2d(want->data, H3_F32, n, h3_numel(*want) / n));
    for (int64_t i = 0; i < n * 2 * r && wide.ne[1] == 2 * r; i++)
        ((float *)wide.data)[i] = ((const float *)got->data)[i / (2 * r) * r + i % r];
    vae_near(g, name, wide, 3e-7);
    free(wide.data);
}

static void check_positions(golden *g, const env *e, const h3_tensor *z)
{
    const h3_video_vae_geometry *geo = h3_video_vae_sizes(e->v);
    const int64_t n = z->ne[2] * z->ne[3] * z->ne[4] + geo->n_registers + 1;
    float *p = calloc((size_t)(n * (3 + 2 * geo->head_dim)), sizeof *p);

    h3_video_vae_rope(geo, z->ne[2], z->ne[3], z->ne[4], p, p + 3 * n, p + (3 + geo->head_dim) * n);
    golden_exact(g, "position_ids", h3_tensor_2d(p, H3_F32, n, 3));
    free(p);
}

/* q and k after their norm and before rotation: the production operation on the tapped product. */
static h3_status check_normed(golden *g, env *e, const char *tap, const char *name)
{
    const h3_tensor *q = vae_seen(g, &e->taps, tap, 0), none = {.data = NULL};
    h3_tensor x = {.data = NULL}, host;
    h3_status st;

    if (!q) return H3_OK;
    host = vae_copy(*q);
    st = h3_dev_alloc(e->d, &x, H3_F32, 3, q->ne);
    if (st == H3_OK) st = h3_dev_upload(e->d, x, q->data);
    if (st == H3_OK)
        st = e->d->ops->head_norm_rope(e->d, x, none, h3_video_vae_sizes(e->v)->eps, false, none,
                                       none);
    if (st == H3_OK) st = h3_dev_download(e->d, host.data, x);
    if (st == H3_OK) vae_near(g, name, host, 7e-6);
    h3_dev_free(e->d, &x);
    free(host.data);
    return st;
}

static void check_rows(golden *g, const vae_taps *taps)
{
    const h3_tensor *rows = golden_need(g, "proj_out_rows"),
                    *all = vae_seen(g, taps, "proj_out", 0);

    if (!rows || !all) return;
    /* The reference projects the extra tokens too and throws them away; we do not. */
    const h3_tensor *want = golden_need(g, "proj_out");
    for (int64_t i = 0; want && i < h3_numel(*rows); i++) {
        const int64_t row = (int64_t)golden_value(*rows, i), n = all->ne[1];
        if (row >= all->ne[0] || h3_numel(*want) != h3_numel(*rows) * n) continue;
        golden_near_to(g, "proj_out", h3_tensor_1d((float *)want->data + i * n, H3_F32, n),
                       h3_tensor_1d((float *)all->data + row * n, H3_F32, n), 0,
                       vae_limit(g, "proj_out", 3e-5));
    }
}

static void check_stages(golden *g, env *e)
{
    static const char *const same[] = {"embedded",
                                       "tokens",
                                       "norm_out",
                                       "pixels",
                                       "block0.norm1",
                                       "block0.q",
                                       "block0.k",
                                       "block0.v",
                                       "block0.q_rotated",
                                       "block0.k_rotated",
                                       "block0.attention",
                                       "block0.attention_projected",
                                       "block0.after_attention",
                                       "block0.norm2",
                                       "block0.ff_gate",
                                       "block0.ff_up",
                                       "block0.ff_hidden",
                                       "block0.ff_out",
                                       "block0.out",
                                       "block1.out"};
    const h3_tensor *t = vae_seen(g, &e->taps, "post_quant_conv", 0);
    char last[32];

    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (golden_find(g, same[i])) vae_tap_near(g, &e->taps, same[i], same[i], PIXELS);
    snprintf(last, sizeof last, "block%d.out", (int)h3_video_vae_sizes(e->v)->n_layers - 1);
    vae_tap_near(g, &e->taps, last, "last_block.out", 3e-5);
    if (t) {
        h3_tensor y = vae_transposed(h3_view_2d(*t, h3_numel(*t) / t->ne[3], t->ne[3]));
        vae_near(g, "post_quant_conv", y, PIXELS);
        free(y.data);
    }
    if ((t = vae_seen(g, &e->taps, "z", 0)) != NULL) golden_exact(g, "z", *t);
    check_rows(g, &e->taps);
    check_table(g, &e->taps, "rope_cos");
    check_table(g, &e->taps, "rope_sin");
}

static h3_status run_single(golden *g)
{
    const h3_tensor *z = golden_need(g, "z_norm");
    const h3_video_decode_opts o = {.is_float = true, .is_one_clip = true};
    static const char *const layouts[] = {"original", "diffusers"};
    h3_status st = H3_OK;

    for (int k = 0; z && k < 2 && st == H3_OK; k++) {
        env e;
        video v = {.rgb = NULL};
        if ((st = env_open(&e, g, layouts[k], H3_VIDEO_VAE_DECODER)) != H3_OK || !e.v) continue;
        e.d->tap = vae_keep;
        e.d->tap_user = &e.taps;
        if ((st = decode(&e, *z, o, &v)) == H3_OK) {
            check_stages(g, &e);
            check_positions(g, &e, z);
            st = check_normed(g, &e, "block0.q", "block0.q_normed");
            if (st == H3_OK) st = check_normed(g, &e, "block0.k", "block0.k_normed");
            vae_near(g, "pixels", rgb_of(&v), PIXELS); // what left through the sink
        }
        video_free(&v);
        env_close(&e);
    }
    return st;
}

static h3_status run_temporal(golden *g)
{
    const json_t *counts = json_object_get(g->meta, "latent_frames");
    h3_status st;
    env e;

    if ((st = env_open(&e, g, "original", H3_VIDEO_VAE_DECODER)) != H3_OK || !e.v) return st;
    for (size_t i = 0; i < json_array_size(counts) && st == H3_OK; i++) {
        const int n = (int)json_integer_value(json_array_get(counts, i));
        char name[32];
        snprintf(name, sizeof name, "t%d.z", n);
        const h3_tensor *z = golden_need(g, name);
        if (!z) continue;
        for (int batch = 1; batch <= 4 && st == H3_OK; batch += 3) { // clips may share a batch
            const h3_video_decode_opts o = {
                .is_float = true, .is_denormalised = true, .tiles_in_flight = batch};
            video v;
            st = decode(&e, *z, o, &v);
            snprintf(name, sizeof name, "t%d.pixels", n);
            if (st == H3_OK) vae_near(g, name, rgb_of(&v), PIXELS);
            video_free(&v);
        }
    }
    env_close(&e);
    return st;
}

/* The sampled points of a large picture, and the moments of whole frames. */
static void check_probe(golden *g, const video *v)
{
    const h3_tensor *p = golden_need(g, "probe"), *f = golden_need(g, "probe_frames");
    const h3_tensor *y = golden_need(g, "probe_rows"), *x = golden_need(g, "probe_cols");

    if (!p || !f || !y || !x) return;
    h3_tensor got = vae_copy(*p);
    const int64_t nf = h3_numel(*f), ny = h3_numel(*y), nx = h3_numel(*x);
    for (int64_t i = 0; i < 3 * nf * ny * nx; i++) {
        const int64_t c = i / (nf * ny * nx), k = (int64_t)golden_value(*f, i / (ny * nx) % nf);
        const int64_t row = (int64_t)golden_value(*y, i / nx % ny),
                      col = (int64_t)golden_value(*x, i % nx);
        ((float *)got.data)[i] = v->rgb[((c * v->frames + k) * v->h + row) * v->w + col];
    }
    vae_near(g, "probe", got, PIXELS);
    free(got.data);

    double *mean = calloc((size_t)(6 * v->frames), sizeof *mean), *rms = mean + 3 * v->frames;
    const int64_t area = v->h * v->w;
    for (int64_t i = 0; i < 3 * v->frames; i++) {
        for (int64_t q = 0; q < area; q++) {
            const double a = (double)v->rgb[i * area + q];
            mean[i] += a / (double)area;
            rms[i] += a * a / (double)area;
        }
        rms[i] = sqrt(rms[i]);
    }
    golden_near(g, "frame_mean", h3_tensor_2d(mean, H3_F64, 3, v->frames), 0, 1e-6);
    golden_near(g, "frame_rms", h3_tensor_2d(rms, H3_F64, 3, v->frames), 0, 1e-6);
    free(mean);
}

static void check_axis(golden *g, const char *prefix, int64_t length, int64_t tile, int64_t overlap,
                       int64_t unit)
{
    char name[64];
    h3_tile_axis a;
    bool ok = h3_tile_axis_init(&a, length, tile, overlap, unit) == H3_OK;

    snprintf(name, sizeof name, "%s_starts", prefix);
    const json_t *starts = json_object_get(g->meta, name);
    ok = ok && (int64_t)json_array_size(starts) == a.n;
    for (int64_t i = 0; ok && i < a.n; i++)
        ok = json_integer_value(json_array_get(starts, (size_t)i)) == h3_tile_start(&a, i);
    golden_check(g, name, ok, "starts of %lld tiles", (long long)a.n);
}

static h3_status run_tiled(golden *g)
{
    const h3_tensor *z = golden_need(g, "z");
    const char *call = json_string_value(json_object_get(g->meta, "call"));
    const bool is_whole = call && strcmp(call, "decode") == 0;
    h3_status st;
    env e;

    if (!z) return H3_OK;
    if ((st = env_open(&e, g, "original", H3_VIDEO_VAE_DECODER)) != H3_OK || !e.v) return st;
    const h3_video_vae_geometry *geo = h3_video_vae_sizes(e.v);
    check_axis(g, "y", z->ne[3] * geo->ratio, geo->tile, geo->overlap, geo->ratio);
    check_axis(g, "x", z->ne[4] * geo->ratio, geo->tile, geo->overlap, geo->ratio);
    for (int batch = 1; batch <= 5 && st == H3_OK; batch += 4) { // 5: rows of tiles share a batch
        const h3_video_decode_opts o = {.is_float = true,
                                        .is_denormalised = true,
                                        .is_one_clip = !is_whole,
                                        .tiles_in_flight = batch};
        video v;
        if ((st = decode(&e, *z, o, &v)) == H3_OK) check_probe(g, &v);
        video_free(&v);
    }
    env_close(&e);
    return st;
}

static double stored_error(const golden *g, const char *dtype, const char *what)
{
    const json_t *e = json_object_get(json_object_get(g->meta, "error_against_f64"), dtype);
    return json_number_value(json_object_get(e, what));
}

static double rms_of(h3_tensor t)
{
    double sum = 0;
    for (int64_t i = 0; i < h3_numel(t); i++)
        sum += golden_value(t, i) * golden_value(t, i);
    return sqrt(sum / (double)h3_numel(t));
}

static h3_status run_precision(golden *g)
{
    const h3_tensor *z = golden_need(g, "z"), *truth = golden_need(g, "f64.pixels");
    h3_video_decode_opts o = {.is_float = true,
                              .is_denormalised = true,
                              .is_one_clip = true,
                              .tile = vae_meta(g, "tile"),
                              .overlap = vae_meta(g, "overlap")};
    h3_status st;
    video v;
    env e;

    if (!z || !truth) return H3_OK;
    if ((st = env_open(&e, g, "original", H3_VIDEO_VAE_DECODER)) != H3_OK || !e.v) return st;
    if ((st = decode(&e, *z, o, &v)) == H3_OK)
        golden_near(g, "f64.pixels", rgb_of(&v), 8 * stored_error(g, "f32", "rms") / rms_of(*truth),
                    8 * stored_error(g, "f32", "max"));
    video_free(&v);
    o.act = H3_BF16;
    if (st == H3_OK && (st = decode(&e, *z, o, &v)) == H3_OK) {
        golden_near(g, "f64.pixels", rgb_of(&v),
                    1.5 * stored_error(g, "bf16", "rms") / rms_of(*truth),
                    2 * stored_error(g, "bf16", "max"));
        video_free(&v);
    }
    env_close(&e);
    return st;
}

static h3_status run_pipeline(golden *g)
{
    const h3_tensor *z = golden_need(g, "z_norm"), *want = golden_need(g, "f32.float");
    h3_video_decode_opts o = {.act = H3_F32};
    h3_status st;
    video v;
    env e;

    if (!z || !want) return H3_OK;
    if ((st = env_open(&e, g, "original", H3_VIDEO_VAE_DECODER)) != H3_OK || !e.v) return st;
    if ((st = decode(&e, *z, o, &v)) == H3_OK)
        golden_near_u8(g, "f32.uint8", bytes_of(&v), 1e-4, 1);
    video_free(&v);
    o.is_float = true;
    if (st == H3_OK && (st = decode(&e, *z, o, &v)) == H3_OK) {
        h3_tensor unit = vae_copy(*want); // [F, H, W, 3] in [0, 1]
        const int64_t pixels = v.frames * v.h * v.w;
        for (int64_t i = 0; i < 3 * pixels; i++) {
            const int64_t c = i % 3;
            const float x =
                v.rgb[c * pixels + i / 3] * h3_video_vae_pixel_std[c] + h3_video_vae_pixel_mean[c];
            ((float *)unit.data)[i] = fminf(fmaxf(x, 0), 1);
        }
        vae_near(g, "f32.float", unit, 0.229 * PIXELS);
        free(unit.data);
        video_free(&v);
    }
    /* bf16 errors of at most 0.06 in pixel units are 3.5 byte steps, most of them less than one. */
    o = (h3_video_decode_opts){.act = H3_BF16};
    if (st == H3_OK && (st = decode(&e, *z, o, &v)) == H3_OK) {
        golden_near_u8(g, "f32.uint8", bytes_of(&v), 0.5, 4);
        video_free(&v);
    }
    env_close(&e);
    return st;
}

/* Axis tables at the release's head width. They do not depend on any weights. */
static h3_status run_rope(golden *g)
{
    const h3_video_vae_geometry geo = {
        .head_dim = 64, .rope_ratio = 0.75, .rope_theta = 100.0, .n_registers = 0};
    enum { PER_AXIS = 8, N = 64 };
    float p[(N + 1) * 3], c[(N + 1) * 3 * PER_AXIS], s[(N + 1) * 3 * PER_AXIS];

    const h3_tensor *freq = golden_find(g, "real.inv_freq");
    if (freq &&
        h3_numel(*freq) == PER_AXIS) { // a position of 1 / (2 pi) would show them; so do these
        h3_video_vae_rope(&geo, 1, 1, 2, p, c, s);
        for (int i = 0; i < PER_AXIS; i++) {
            const float angle = 6.28318530717958647692f * 0.5f * ((const float *)freq->data)[i];
            c[i] = c[5 * PER_AXIS + i] - (float)cos((double)angle);
            s[i] = s[5 * PER_AXIS + i] - (float)sin((double)angle);
            golden_check(g, "real.inv_freq", c[i] == 0 && s[i] == 0, "frequency %d", i);
        }
    }
    for (int n = 1; n <= N; n++) {
        float axis[3][N * PER_AXIS]; // position, cos, sin of axis t
        char name[32];
        snprintf(name, sizeof name, "real.cos.%d", n);
        if (!golden_find(g, name)) continue;
        h3_video_vae_rope(&geo, n, 1, 1, p, c, s);
        for (int i = 0; i < n; i++) {
            axis[0][i] = p[3 * i];
            memcpy(axis[1] + i * PER_AXIS, c + 3 * i * PER_AXIS, PER_AXIS * sizeof *c);
            memcpy(axis[2] + i * PER_AXIS, s + 3 * i * PER_AXIS, PER_AXIS * sizeof *s);
        }
        golden_near(g, name, h3_tensor_2d(axis[1], H3_F32, n, PER_AXIS), 0, 1.2e-7);
        snprintf(name, sizeof name, "real.sin.%d", n);
        golden_near(g, name, h3_tensor_2d(axis[2], H3_F32, n, PER_AXIS), 0, 1.2e-7);
        snprintf(name, sizeof name, "real.position.%d", n);
        golden_exact(g, name, h3_tensor_1d(axis[0], H3_F32, n));
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- seams */

/* Shares of all tiles of a picture H x W, [tiles, H, W], by stitching tiles that are 1 in a channel
 * of their own. The caller frees them. */
static h3_status stitch_shares(h3_dev *d, int64_t H, int64_t W, h3_tensor *out)
{
    h3_tile_axis y, x;
    video_seams seams;
    h3_tensor tile, part, all;
    h3_status st = H3_OK;

    out->data = NULL;
    H3_TRY(h3_tile_axis_init(&y, H, 256, 64, 16));
    H3_TRY(h3_tile_axis_init(&x, W, 256, 64, 16));
    const int64_t n = y.n * x.n, ne[4] = {n, 1, H, W}, per = y.tile * x.tile;
    H3_TRY(h3_dev_scratch(d, (size_t)(8 * n * (H + 256) * (W + 256)) * sizeof(float)));
    all = h3_scratch(d, H3_F32, 4, ne);
    tile = h3_scratch_4d(d, H3_F32, n, 1, y.tile, x.tile);
    h3_video_seams_init(&seams, d, &y, &x, 1, n, 1);
    H3_TRY(h3_scratch_check(d, "seams"));
    float *one = calloc((size_t)(n * per), sizeof *one);
    for (int64_t k = 0; k < n && st == H3_OK; k++) {
        for (int64_t i = 0; i < n * per; i++)
            one[i] = i / per == k ? 1.0f : 0.0f;
        st = h3_dev_upload(d, tile, one);
        if (st == H3_OK) st = h3_video_seams_finish(&seams, d, tile, k / x.n, k % x.n, &part);
        if (st == H3_OK) {
            h3_tensor to = h3_slice(all, 2, h3_tile_start(&y, k / x.n), part.ne[2]);
            to = h3_slice(to, 3, h3_tile_start(&x, k % x.n), part.ne[3]);
            st = d->ops->copy(d, to, part);
        }
    }
    free(one);
    *out = h3_host_tensor(malloc((size_t)h3_numel(all) * sizeof(float)), H3_F32, 4, ne);
    if (st == H3_OK) st = h3_dev_download(d, out->data, all);
    h3_arena_release(&d->scratch, 0);
    return st;
}

/* The ramp of n steps as the fade operation applies it: zeros fading into ones, and back. */
static h3_status check_ramp(golden *g, h3_dev *d, const char *name, int64_t n, bool is_current)
{
    const int64_t ne[4] = {1, 1, 1, n};
    float *host = calloc((size_t)n, sizeof *host);
    h3_tensor a, y;
    h3_status st;

    H3_TRY(h3_dev_scratch(d, 1 << 20));
    a = h3_scratch(d, H3_F32, 4, ne);
    y = h3_scratch(d, H3_F32, 4, ne);
    if ((st = h3_scratch_check(d, "ramp")) == H3_OK)
        st = h3_dev_upload(d, is_current ? a : y, host);
    for (int64_t i = 0; i < n; i++)
        host[i] = 1;
    if (st == H3_OK) st = h3_dev_upload(d, is_current ? y : a, host);
    if (st == H3_OK) st = d->ops->fade(d, y, a, 3, n);
    if (st == H3_OK) st = h3_dev_download(d, host, y);
    if (st == H3_OK) golden_exact(g, name, h3_tensor_1d(host, H3_F32, n));
    h3_arena_release(&d->scratch, 0);
    free(host);
    return st;
}

static h3_status run_seams(golden *g)
{
    h3_dev *d = NULL;
    h3_status st = h3_dev_open(&d, g->device, NULL);

    for (int i = 0; i < g->n_tensors && st == H3_OK; i++) {
        const char *name = g->tensors[i].name;
        char which[16];
        int h, w;
        h3_tensor s = {.data = NULL};
        if (sscanf(name, "axis.%d", &w) == 1) {
            if ((st = stitch_shares(d, 16, w, &s)) != H3_OK) break;
            h3_tensor line = vae_copy(h3_view_2d(h3_slice(s, 0, 0, 1), 16, w));
            free(line.data);
            float *shares = malloc((size_t)(s.ne[0] * w) * sizeof *shares);
            for (int64_t k = 0; k < s.ne[0]; k++)
                memcpy(shares + k * w, (const float *)s.data + k * s.st[0],
                       (size_t)w * sizeof *shares);
            golden_near(g, name, h3_tensor_2d(shares, H3_F32, s.ne[0], w), 0, 2e-7);
            free(shares);
        } else if (sscanf(name, "plane16.%dx%d", &h, &w) == 2) {
            if ((st = stitch_shares(d, h, w, &s)) != H3_OK) break;
            const int64_t gh = h / 16, gw = w / 16, n = s.ne[0] * gh * gw;
            float *grid = malloc((size_t)n * sizeof *grid);
            for (int64_t q = 0; q < n; q++)
                grid[q] =
                    ((const float *)s.data)[q / (gh * gw) * s.st[0] +
                                            (8 + 16 * (q / gw % gh)) * s.st[2] + 8 + 16 * (q % gw)];
            golden_near(g, name, h3_tensor_3d(grid, H3_F32, s.ne[0], gh, gw), 0, 2e-7);
            free(grid);
        } else if (sscanf(name, "ramp.f32.%d.%15s", &w, which) == 2) {
            st = check_ramp(g, d, name, w, strcmp(which, "current") == 0);
        }
        free(s.data);
    }
    h3_dev_close(&d);
    return st;
}

/* Decoded floats to bytes: the operation alone, from f32 and from what low precision rounds to. */
static h3_status run_post(golden *g)
{
    static const char *const in[] = {"decoded", "decoded_f16", "decoded_bf16"};
    static const char *const out[] = {"bytes", "bytes_f16", "bytes_bf16"};
    h3_dev *d = NULL;
    h3_status st = h3_dev_open(&d, g->device, NULL);

    for (int k = 0; k < 3 && st == H3_OK; k++) {
        const h3_tensor *x = golden_need(g, in[k]);
        if (!x) continue;
        const int64_t n = h3_numel(*x), f = x->ne[2], h = x->ne[3], w = x->ne[4];
        const int64_t ne[4] = {f, h, w, 3};
        float *wide = malloc((size_t)n * sizeof *wide);
        uint8_t *bytes = malloc((size_t)n);
        h3_tensor dx = {.data = NULL}, dy = {.data = NULL};
        for (int64_t i = 0; i < n; i++)
            wide[i] = (float)golden_value(*x, i);
        if ((st = h3_dev_alloc(d, &dx, H3_F32, 4, x->ne + 1)) == H3_OK &&
            (st = h3_dev_alloc(d, &dy, H3_U8, 4, ne)) == H3_OK &&
            (st = h3_dev_upload(d, dx, wide)) == H3_OK &&
            (st = d->ops->to_u8(d, dy, dx, h3_video_vae_pixel_mean, h3_video_vae_pixel_std)) ==
                H3_OK &&
            (st = h3_dev_download(d, bytes, dy)) == H3_OK)
            golden_exact(g, out[k], h3_host_tensor(bytes, H3_U8, 4, ne));
        h3_dev_free(d, &dx);
        h3_dev_free(d, &dy);
        free(wide);
        free(bytes);
    }
    h3_dev_close(&d);
    return st;
}

/* ---------------------------------------------------------------- encoding */

static h3_tensor silu_of(h3_tensor t)
{
    h3_tensor y = vae_copy(t);

    for (int64_t i = 0; i < h3_numel(t); i++) {
        const double x = golden_value(t, i);
        ((float *)y.data)[i] = (float)(x / (1 + exp(-x)));
    }
    return y;
}

/* The network fuses norm and SiLU; the file has the norm alone. SiLU's slope is at most 1.1. */
static void check_silu(golden *g, const vae_taps *taps, const char *tap, const char *name)
{
    const h3_tensor *want = golden_find(g, name), *got = want ? vae_seen(g, taps, tap, 0) : NULL;

    if (!got) return;
    h3_tensor y = silu_of(*want);
    golden_near_to(g, name, y, *got, 0, 1.1 * vae_limit(g, name, 3e-5));
    free(y.data);
}

/* A stage against the frames of it that the file holds. */
static void check_stage(golden *g, const vae_taps *taps, const char *name)
{
    char key[80];
    const h3_tensor *want = golden_find(g, name), *got = want ? vae_seen(g, taps, name, 0) : NULL;

    snprintf(key, sizeof key, "%s.frames", name);
    const h3_tensor *frames = golden_find(g, key);
    if (!got) return;
    if (!frames) {
        vae_near(g, name, *got, 1e-4);
        return;
    }
    h3_tensor some = vae_copy(*want);
    const int64_t n = h3_numel(*frames), area = got->ne[2] * got->ne[3];
    for (int64_t q = 0; q < got->ne[0] * n; q++)
        memcpy((float *)some.data + q * area,
               (const float *)got->data +
                   (q / n * got->ne[1] + (int64_t)golden_value(*frames, q % n)) * area,
               (size_t)area * sizeof(float));
    vae_near(g, name, some, 1e-4);
    free(some.data);
}

/* The insides of level 1, block 0; its second convolution leaves with the shortcut added. */
static void check_detail(golden *g, const vae_taps *taps)
{
    const h3_tensor *out, *shortcut;

    if (!golden_find(g, "detail.conv1")) return;
    check_silu(g, taps, "level1.block0.norm1.silu", "detail.norm1");
    check_silu(g, taps, "level1.block0.norm2.silu", "detail.norm2");
    vae_tap_near(g, taps, "level1.block0.conv1", "detail.conv1", 1e-5);
    vae_tap_near(g, taps, "level1.block0.shortcut", "detail.conv_shortcut", 1e-5);
    out = vae_seen(g, taps, "level1.block0", 0);
    shortcut = vae_seen(g, taps, "level1.block0.shortcut", 0);
    if (!out || !shortcut) return;
    h3_tensor conv2 = vae_copy(*out);
    for (int64_t i = 0; i < h3_numel(conv2); i++)
        ((float *)conv2.data)[i] -= ((const float *)shortcut->data)[i];
    vae_near(g, "detail.conv2", conv2, 1e-5);
    free(conv2.data);
}

static void check_encoder_stages(golden *g, const vae_taps *taps)
{
    static const char *const names[] = {"conv_in", "conv_out", "moments"};
    char name[64];

    if (golden_find(g, "pixels")) {
        const h3_tensor *t = vae_seen(g, taps, "pixels", 0);
        if (t) golden_exact(g, "pixels", *t);
    }
    for (size_t i = 0; i < 3; i++)
        check_stage(g, taps, names[i]);
    check_silu(g, taps, "norm_out.silu", "norm_out");
    for (int l = 0; l < H3_VIDEO_VAE_LEVELS; l++) {
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "level%d.block%d", l, i);
            check_stage(g, taps, name);
        }
        snprintf(name, sizeof name, "level%d.downsample", l);
        check_stage(g, taps, name);
    }
    check_detail(g, taps);
}

typedef struct posterior {
    float *mean, *logvar;
    int64_t n; // 24 * cells
    int64_t cells;
} posterior;

static h3_status encode(env *e, h3_tensor picture, int at_once, posterior *p)
{
    const h3_video_vae_geometry *geo = h3_video_vae_sizes(e->v);
    const h3_video_encode_opts o = {.frames_at_once = at_once};

    p->cells = h3_video_vae_latent_frames(e->v, picture.ne[0]) * (picture.ne[1] / geo->ratio) *
               (picture.ne[2] / geo->ratio);
    p->n = geo->latents * p->cells;
    p->mean = malloc((size_t)p->n * sizeof *p->mean);
    p->logvar = malloc((size_t)p->n * sizeof *p->logvar);
    return h3_video_vae_encode(e->d, e->v, picture, &o, p->mean, p->logvar);
}

static void posterior_free(posterior *p)
{
    free(p->mean);
    free(p->logvar);
}

/* Values that were rounded to float16 on both sides: nearly all equal, the others one step apart.
 * `slack` is what the values may be off before they are rounded, which near zero is many steps. */
static void check_condition(golden *g, const env *e, const char *name, const float *got,
                            double share, double slack)
{
    const h3_video_vae_geometry *geo = h3_video_vae_sizes(e->v);
    const h3_tensor *want = golden_need(g, name);
    int64_t differ = 0, far = 0;

    if (!want) return;
    const int64_t n = h3_numel(*want), cells = n / geo->latents;
    for (int64_t i = 0; i < n; i++) {
        const double std = (double)geo->std[i / cells], w = golden_value(*want, i);
        const double x = fabs(w * std + (double)geo->mean[i / cells]);
        const double step = exp2(floor(log2(fmax(x, 0x1p-14))) - 10) / std;
        const double d = fabs((double)got[i] - w);
        differ += d > 1e-6 * (1 + fabs(w));
        far += !(d <= 1.01 * step + slack / std + 1e-6 * (1 + fabs(w)));
    }
    golden_check(g, name, far == 0 && (double)differ <= share * (double)n,
                 "%lld of %lld values differ by a float16 step, %lld by more", (long long)differ,
                 (long long)n, (long long)far);
}

/* Posterior and condition `p` of a picture; names in the file have `prefix` in front. */
static void check_posterior(golden *g, const env *e, const char *prefix, posterior *p)
{
    char name[64];
    const h3_tensor *mean, *logvar, *noise;
    h3_tensor t = h3_tensor_1d(p->mean, H3_F32, p->n);
    const int64_t seed = vae_meta(g, "encode_seed");
    float *drawn = malloc((size_t)p->n * sizeof *drawn), *x = malloc((size_t)p->n * sizeof *x);
    h3_rng rng;

#define NAME(what) (snprintf(name, sizeof name, "%s" what, prefix), name)
    vae_near(g, NAME("mean"), t, MOMENTS);
    t.data = p->logvar;
    vae_near(g, NAME("logvar"), t, MOMENTS);
    h3_rng_seed(&rng, (uint64_t)seed);
    h3_rng_normal(&rng, drawn, p->n);
    noise = golden_find(g, NAME("noise"));
    mean = golden_find(g, NAME("mean"));
    logvar = golden_find(g, NAME("logvar"));
    if (noise) golden_near(g, NAME("noise"), h3_tensor_1d(drawn, H3_F32, p->n), 0, 1e-6);
    if (golden_find(g, NAME("condition")) && mean && logvar && h3_numel(*mean) == p->n) {
        /* From the file's posterior the rounding to float16 must agree, from ours nearly always. */
        memcpy(x, mean->data, (size_t)p->n * sizeof *x);
        h3_video_vae_condition(e->v, x, logvar->data, drawn, p->cells);
        check_condition(g, e, NAME("condition"), x, 5e-3, 0);
        h3_video_vae_condition(e->v, p->mean, p->logvar, drawn, p->cells);
        check_condition(g, e, NAME("condition"), p->mean, 5e-2, MOMENTS);
    }
#undef NAME
    free(drawn);
    free(x);
}

static h3_status run_encoder_stages(golden *g)
{
    static const char *const layouts[] = {"original", "diffusers"};
    const h3_tensor *picture = golden_need(g, "picture");
    h3_status st = H3_OK;

    for (int k = 0; picture && k < 2 && st == H3_OK; k++) {
        env e;
        posterior p = {.n = 0};
        if ((st = env_open(&e, g, layouts[k], H3_VIDEO_VAE_ENCODER)) != H3_OK || !e.v) continue;
        e.d->tap = vae_keep;
        e.d->tap_user = &e.taps;
        if ((st = encode(&e, *picture, 0, &p)) == H3_OK) {
            check_encoder_stages(g, &e.taps);
            if (golden_find(g, "mean")) check_posterior(g, &e, "", &p);
        }
        posterior_free(&p);
        env_close(&e);
    }
    return st;
}

static h3_status run_clips(golden *g)
{
    const json_t *counts = json_object_get(g->meta, "frames");
    h3_status st;
    env e;

    if ((st = env_open(&e, g, "original", H3_VIDEO_VAE_ENCODER)) != H3_OK || !e.v) return st;
    for (size_t i = 0; i < json_array_size(counts) && st == H3_OK; i++) {
        const int n = (int)json_integer_value(json_array_get(counts, i));
        char prefix[32], name[48];
        snprintf(prefix, sizeof prefix, "f%d.", n);
        snprintf(name, sizeof name, "f%d.picture", n);
        const h3_tensor *picture = golden_need(g, name);
        for (int at_once = 0; picture && at_once <= 3 && st == H3_OK; at_once++) {
            posterior p = {.n = 0}; // 0: whole clips; 1, 2, 3 frames at a time
            if ((st = encode(&e, *picture, at_once, &p)) == H3_OK)
                check_posterior(g, &e, prefix, &p);
            posterior_free(&p);
        }
    }
    env_close(&e);
    return st;
}

/* The oracle's test pictures: triangle waves in integers plus noise of six bits. */
static uint64_t splitmix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void picture_of(uint8_t *out, int64_t seed, const char *name, int frames, int h, int w)
{
    char key[128];
    uint64_t start = 0xCBF29CE484222325u;
    int64_t i = 0;

    snprintf(key, sizeof key, "%lld:%s", (long long)seed, name);
    for (const char *c = key; *c; c++)
        start = (start ^ (unsigned char)*c) * 0x100000001B3u;
    for (int f = 0; f < frames; f++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++)
                for (int c = 0; c < 3; c++, i++) {
                    const int t = ((3 + c) * x + (5 - c) * y + 7 * f + 31 * c) % 128;
                    const uint64_t r = splitmix(start + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u);
                    out[i] = (uint8_t)(3 * abs((t < 0 ? t + 128 : t) - 64) + (int)(r >> 58));
                }
}

static uint32_t crc32_of(const uint8_t *p, int64_t n)
{
    uint32_t c = 0xFFFFFFFFu;

    for (int64_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return ~c;
}

static h3_status run_encoder_tiles(golden *g)
{
    json_t *cases = json_object_get(g->meta, "cases"), *one;
    const char *size;
    h3_status st;
    env e;

    if ((st = env_open(&e, g, "original", H3_VIDEO_VAE_ENCODER)) != H3_OK || !e.v) return st;
    json_object_foreach(cases, size, one)
    {
        int f, h, w;
        char prefix[64];
        posterior p = {.n = 0};
        if (st != H3_OK || sscanf(size, "%dx%dx%d", &f, &h, &w) != 3) break;
        const int64_t ne[4] = {f, h, w, 3}, n = (int64_t)f * h * w * 3;
        uint8_t *bytes = malloc((size_t)n);
        picture_of(bytes, vae_meta(g, "seed"), json_string_value(json_object_get(one, "name")), f,
                   h, w);
        golden_check(g, size,
                     crc32_of(bytes, n) ==
                         (uint32_t)json_integer_value(json_object_get(one, "crc32")),
                     "the test picture's CRC-32");
        if ((st = encode(&e, h3_host_tensor(bytes, H3_U8, 4, ne), 0, &p)) == H3_OK) {
            snprintf(prefix, sizeof prefix, "%s.", size);
            check_posterior(g, &e, prefix, &p);
        }
        posterior_free(&p);
        free(bytes);
    }
    env_close(&e);
    return st;
}

/* ---------------------------------------------------------------- kinds */

static bool is_single(const golden *g)
{
    return golden_find(g, "post_quant_conv") && golden_find(g, "tokens");
}

static bool is_temporal(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "latent_frames"));
}

static bool is_tiled(const golden *g)
{
    return golden_find(g, "probe") && golden_find(g, "probe_rows");
}

static bool is_precision(const golden *g)
{
    return golden_find(g, "f64.pixels") != NULL;
}

static bool is_pipeline(const golden *g)
{
    return golden_find(g, "f32.uint8") && golden_find(g, "f32.float");
}

static bool is_rope(const golden *g)
{
    return golden_find(g, "real.inv_freq") != NULL;
}

static bool is_seams(const golden *g)
{
    return json_object_get(g->meta, "ramp") && json_object_get(g->meta, "plane");
}

static bool is_post(const golden *g)
{
    return golden_find(g, "decoded") && golden_find(g, "bytes");
}

static bool is_encoder_stages(const golden *g)
{
    return golden_find(g, "picture") && golden_find(g, "level0.block0");
}

static bool is_clips(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "frames")) &&
           json_object_get(g->meta, "encode_seed");
}

static bool is_encoder_tiles(const golden *g)
{
    return json_is_object(json_object_get(g->meta, "cases")) &&
           json_object_get(g->meta, "encode_seed");
}

const golden_kind golden_kinds_video_vae[] = {
    {"video VAE decoder, one clip", is_single, run_single},
    {"video VAE decoder, clips in time", is_temporal, run_temporal},
    {"video VAE decoder, tiles", is_tiled, run_tiled},
    {"video VAE decoder, precision", is_precision, run_precision},
    {"video VAE decoder, bytes", is_pipeline, run_pipeline},
    {"video VAE decoder, rotation", is_rope, run_rope},
    {"video VAE seams", is_seams, run_seams},
    {"video VAE, floats to bytes", is_post, run_post},
    {"video VAE encoder, stages", is_encoder_stages, run_encoder_stages},
    {"video VAE encoder, clips", is_clips, run_clips},
    {"video VAE encoder, tiles", is_encoder_tiles, run_encoder_tiles},
    {NULL, NULL, NULL},
};
