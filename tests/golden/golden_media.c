/**
 * Goldens of the media room: the two picture resizers, the vision processors, what the video VAE is
 * given, the sound resampler, and the conversions to bytes and PCM.
 *
 * Pictures must agree to the level: the resizers are exact in integers. Sound: 1e-6 absolute.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clip.h"
#include "file.h"
#include "frame_files.h"
#include "golden.h"
#include "half.h"
#include "resample.h"
#include "resize.h"
#include "vision_rows.h"

static const double sound_limit = 1e-6;

static const char *joined(const char *key, const char *tail)
{
    static char ring[4][160];
    static unsigned next;
    char *s = ring[next++ % 4];

    snprintf(s, 160, "%s/%s", key, tail);
    return s;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t int_at(const json_t *array, size_t i)
{
    return json_integer_value(json_array_get(array, i));
}

static void *take(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static bool is_picture(const h3_tensor *t, int rank)
{
    return t && t->dtype == H3_U8 && t->rank == rank && t->ne[rank - 1] == 3;
}

/** Compares n frames of [h, w, 3] with tensor `name`, frees them. */
static void compare_frames(golden *g, const char *name, uint8_t *rgb, int64_t n, int64_t h,
                           int64_t w)
{
    const int64_t four[4] = {n, h, w, 3}, three[3] = {h, w, 3};
    const h3_tensor *want = golden_need(g, name);

    if (want)
        golden_exact(g, name,
                     want->rank == 4 ? h3_host_tensor(rgb, H3_U8, 4, four)
                                     : h3_host_tensor(rgb, H3_U8, 3, three));
    free(rgb);
}

/** Each frame of src [n, h, w, 3] to [out_h, out_w]. */
static uint8_t *resized(golden *g, const char *name, const h3_tensor *src, int64_t out_h,
                        int64_t out_w, h3_filter filter)
{
    const int64_t n = src->rank == 4 ? src->ne[0] : 1;
    const int64_t h = src->ne[src->rank - 3], w = src->ne[src->rank - 2];
    uint8_t *out = take((size_t)(n * out_h * out_w * 3));

    for (int64_t i = 0; i < n; i++) {
        const h3_status st =
            h3_resize(out + i * out_h * out_w * 3, (int)out_h, (int)out_w,
                      (const uint8_t *)src->data + i * h * w * 3, (int)h, (int)w, filter);
        if (st != H3_OK) golden_check(g, name, false, "%s", h3_error());
    }
    return out;
}

/* ---- media/resample ---- */

static bool match_resize(const golden *g)
{
    const json_t *first = json_array_get(json_object_get(g->meta, "cases"), 0);
    return json_object_get(first, "filter") && json_object_get(first, "from");
}

static h3_status run_resize(golden *g)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(g->meta, "cases"), i, c)
    {
        const char *key = text_of(c, "key");
        const json_t *to = json_object_get(c, "to");
        const bool is_lanczos = strcmp(text_of(c, "filter"), "lanczos") == 0;
        const h3_tensor *in = golden_need(g, joined(key, "in"));
        const int64_t h = int_at(to, 0), w = int_at(to, 1);
        if (!is_picture(in, 3)) continue;
        compare_frames(g, joined(key, "out"),
                       resized(g, key, in, h, w, is_lanczos ? H3_LANCZOS : H3_BICUBIC), 1, h, w);
    }
    return H3_OK;
}

/* ---- media/vision_images and vision_videos ---- */

static bool is_budget(const json_t *o)
{
    return json_is_integer(json_object_get(o, "longest_edge"));
}

static bool match_video_rows(const golden *g)
{
    return is_budget(json_object_get(g->meta, "settings")) && json_object_get(g->meta, "cases");
}

static bool match_image_rows(const golden *g)
{
    const json_t *s = json_object_get(g->meta, "settings"), *v;
    const char *k;
    bool any = false;

    json_object_foreach((json_t *)(uintptr_t)s, k, v) any = any || is_budget(v);
    return any && json_object_get(g->meta, "cases");
}

static void set_budget(h3_processor *p, const json_t *o)
{
    p->min_pixels = json_integer_value(json_object_get(o, "shortest_edge"));
    p->max_pixels = json_integer_value(json_object_get(o, "longest_edge"));
}

static void compare_grid(golden *g, const char *key, int64_t n, int64_t h, int64_t w,
                         const h3_processor *p)
{
    int32_t grid[3] = {(int32_t)((n + p->temporal_patch - 1) / p->temporal_patch),
                       (int32_t)(h / p->patch), (int32_t)(w / p->patch)};
    golden_exact(g, joined(key, "grid_thw"), h3_tensor_1d(grid, H3_I32, 3));
}

static void compare_rows(golden *g, const char *key, const uint8_t *frames, int64_t n, int64_t h,
                         int64_t w, const h3_processor *p)
{
    const int64_t rows = h3_patch_rows_count(n, h, w, p), size = h3_patch_row_size(p);
    const h3_tensor *want = golden_find(g, joined(key, "pixel_values"));

    if (golden_find(g, joined(key, "patches_u8"))) {
        uint8_t *u = take((size_t)(rows * size));
        h3_patch_rows_u8(u, frames, n, h, w, p);
        golden_exact(g, joined(key, "patches_u8"), h3_tensor_2d(u, H3_U8, rows, size));
        free(u);
    }
    if (want) { // the first rows only
        float *f = take((size_t)(rows * size) * sizeof *f);
        h3_patch_rows(f, frames, n, h, w, p);
        golden_exact(g, joined(key, "pixel_values"), h3_tensor_2d(f, H3_F32, want->ne[0], size));
        free(f);
    }
}

static void run_vision_case(golden *g, const json_t *c, const h3_processor *p, bool is_video)
{
    const char *key = text_of(c, "key");
    const json_t *from = json_object_get(c, "from");
    const int64_t n = is_video ? int_at(from, 0) : 1, h = int_at(from, is_video ? 1 : 0),
                  w = int_at(from, is_video ? 2 : 1);
    int64_t H = 0, W = 0;
    const h3_status st =
        is_video ? h3_smart_size_video(&H, &W, n, h, w, p) : h3_smart_size_image(&H, &W, h, w, p);

    if (json_is_true(json_object_get(c, "refused"))) {
        golden_check(g, joined(key, "refused"), st == H3_E_ARG, "%lldx%lld", (long long)w,
                     (long long)h);
        return;
    }
    if (st != H3_OK) {
        golden_check(g, key, false, "%s", h3_error());
        return;
    }
    const h3_tensor *in = golden_need(g, joined(key, "in"));
    if (!is_picture(in, is_video ? 4 : 3)) return;
    uint8_t *frames = resized(g, key, in, H, W, H3_BICUBIC);
    compare_grid(g, key, n, H, W, p);
    compare_rows(g, key, frames, n, H, W, p);
    compare_frames(g, joined(key, "resized"), frames, n, H, W);
}

static h3_status run_video_rows(golden *g)
{
    h3_processor p = h3_processor_video_default();
    const json_t *c;
    size_t i;

    set_budget(&p, json_object_get(g->meta, "settings"));
    json_array_foreach(json_object_get(g->meta, "cases"), i, c) run_vision_case(g, c, &p, true);
    return H3_OK;
}

/** Several pictures in one call of the processor: their rows one after the other. */
static void run_batch(golden *g, const h3_processor *p)
{
    const h3_tensor *want = golden_find(g, "batch/patches_u8"), *in;
    const int64_t size = h3_patch_row_size(p);
    int32_t grid[64 * 3];
    int64_t rows = 0, n = 0;
    uint8_t *u;

    if (!want) return;
    u = take((size_t)h3_numel(*want));
    for (char name[32]; n < 64; n++) {
        int64_t H, W;
        snprintf(name, sizeof name, "batch/in%d", (int)n);
        in = golden_find(g, name);
        if (!is_picture(in, 3) || h3_smart_size_image(&H, &W, in->ne[0], in->ne[1], p) != H3_OK)
            break;
        const int64_t more = h3_patch_rows_count(1, H, W, p);
        if (rows + more > want->ne[0]) break;
        uint8_t *frame = resized(g, name, in, H, W, H3_BICUBIC);
        h3_patch_rows_u8(u + rows * size, frame, 1, H, W, p);
        free(frame);
        rows += more;
        grid[3 * n] = 1;
        grid[3 * n + 1] = (int32_t)(H / p->patch);
        grid[3 * n + 2] = (int32_t)(W / p->patch);
    }
    golden_exact(g, "batch/patches_u8", h3_tensor_2d(u, H3_U8, rows, size));
    golden_exact(g, "batch/grid_thw", h3_tensor_2d(grid, H3_I32, n, 3));
    free(u);
}

static h3_status run_image_rows(golden *g)
{
    const json_t *settings = json_object_get(g->meta, "settings"), *c, *v;
    const char *name;
    size_t i;

    json_array_foreach(json_object_get(g->meta, "cases"), i, c)
    {
        h3_processor p = h3_processor_image_default();
        json_object_foreach((json_t *)(uintptr_t)settings, name,
                            v) // "small3" is of setting "small"
            if (strncmp(text_of(c, "key"), name, strlen(name)) == 0) set_budget(&p, v);
        run_vision_case(g, c, &p, false);
    }
    h3_processor small = h3_processor_image_default();
    if (is_budget(json_object_get(settings, "small")))
        set_budget(&small, json_object_get(settings, "small"));
    run_batch(g, &small);
    return H3_OK;
}

/* ---- media/vae_side ---- */

static bool match_vae_side(const golden *g)
{
    return json_object_get(json_object_get(g->meta, "canvas"), "reference_image_short_edge") &&
           json_object_get(g->meta, "cases");
}

static void run_stretch(golden *g, const char *key, const char *from, const char *to,
                        const json_t *size)
{
    const h3_tensor *in = golden_need(g, joined(key, from));
    const int64_t h = int_at(size, 0), w = int_at(size, 1);

    if (is_picture(in, 3))
        compare_frames(g, joined(key, to), resized(g, key, in, h, w, H3_LANCZOS), 1, h, w);
}

static void run_cover(golden *g, const char *key, const json_t *canvas, const json_t *mid)
{
    const h3_tensor *in = golden_need(g, joined(key, "last_in"));
    const int H = (int)int_at(canvas, 0), W = (int)int_at(canvas, 1);
    const int h = (int)int_at(mid, 0), w = (int)int_at(mid, 1);
    uint8_t *out = take((size_t)H * (size_t)W * 3);

    if (!is_picture(in, 3)) return;
    if (in->ne[0] == H && in->ne[1] == W)
        memcpy(out, in->data, (size_t)H * (size_t)W * 3);
    else if (h3_resize_crop(out, H, W, h, w, (h - H) / 2, (w - W) / 2, in->data, (int)in->ne[0],
                            (int)in->ne[1]) != H3_OK)
        golden_check(g, joined(key, "last"), false, "%s", h3_error());
    compare_frames(g, joined(key, "last"), out, 1, H, W);
}

static void run_keyframes(golden *g, const json_t *c)
{
    const char *key = text_of(c, "key");
    const json_t *canvas = json_object_get(c, "canvas");
    const h3_tensor *want = golden_find(g, joined(key, "first_normalised"));

    run_stretch(g, key, "first_in", "first", canvas);
    run_cover(g, key, canvas, json_object_get(c, "last_resized"));
    if (golden_find(g, joined(key, "last_alone")))
        run_stretch(g, key, "last_in", "last_alone", json_object_get(c, "canvas_last_alone"));
    if (want) { // [3, rows, w]: the first rows of the picture
        const h3_tensor *first = golden_need(g, joined(key, "first"));
        float *f = take((size_t)h3_numel(*want) * sizeof *f);
        if (is_picture(first, 3) && first->ne[1] == want->ne[2] && first->ne[0] >= want->ne[1])
            h3_vae_pixels(f, first->data, 1, want->ne[1], want->ne[2]);
        golden_exact(g, joined(key, "first_normalised"), h3_host_tensor(f, H3_F32, 3, want->ne));
        free(f);
    }
}

/** Through a folder of pictures, the way a clip handed over as frames travels. */
static void run_clip(golden *g, const json_t *c)
{
    const char *key = text_of(c, "key");
    const json_t *to = json_object_get(c, "to");
    const h3_tensor *in = golden_need(g, joined(key, "in"));
    char top[] = "/tmp/h3av-golden-XXXXXX", *dir;
    h3_frames *f = NULL;
    h3_clip clip = {0};
    h3_status st;

    if (!is_picture(in, 4) || !mkdtemp(top)) return;
    dir = h3_path_join(top, "frames");
    st = h3_frames_open(&f, dir, (int)in->ne[2], (int)in->ne[1], H3_FRAMES_PPM);
    for (int64_t i = 0; st == H3_OK && i < in->ne[0]; i++)
        st = h3_frames_write(f, (const uint8_t *)in->data + i * in->st[0]);
    if (st == H3_OK)
        st = h3_clip_load_folder(&clip, dir, json_number_value(json_object_get(c, "fps")),
                                 json_integer_value(json_object_get(c, "limit")),
                                 (int)int_at(to, 2), (int)int_at(to, 1), NULL);
    if (st != H3_OK)
        golden_check(g, joined(key, "out"), false, "%s", h3_error());
    else
        compare_frames(g, joined(key, "out"), clip.rgb, clip.n, clip.height, clip.width);
    h3_frames_close(&f, false);
    rmdir(top);
    free(dir);
}

static h3_status run_vae_side(golden *g)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(g->meta, "cases"), i, c)
    {
        if (json_object_get(c, "first_from"))
            run_keyframes(g, c);
        else if (json_object_get(c, "fps"))
            run_clip(g, c);
        else
            run_stretch(g, text_of(c, "key"), "in", "out", json_object_get(c, "to"));
    }
    return H3_OK;
}

/* ---- sound ---- */

static void compare_sound(golden *g, const char *name, const h3_tensor *in, int64_t kept, int from,
                          int to)
{
    const int64_t n = h3_resample_length(kept, from, to);
    const h3_tensor *want = golden_need(g, name);
    float *out = take((size_t)n * 2 * sizeof *out);
    h3_status st = H3_OK;

    for (int c = 0; st == H3_OK && c < 2; c++) // mono is doubled
        st = h3_resample(out + c * n, (const float *)in->data + (in->ne[0] > 1 ? c * in->ne[1] : 0),
                         kept, from, to);
    if (st != H3_OK)
        golden_check(g, name, false, "%s", h3_error());
    else if (want)
        golden_near(g, name, h3_tensor_2d(out, H3_F32, 2, n), 1e-6, sound_limit);
    free(out);
}

static bool match_rates(const golden *g)
{
    return strstr(text_of(g->meta, "method"), "sinc") && json_object_get(g->meta, "to");
}

static h3_status run_rates(golden *g)
{
    const int to = (int)json_integer_value(json_object_get(g->meta, "to"));

    for (int i = 0; i < g->n_tensors; i++) {
        const char *name = g->tensors[i].name, *dot = strrchr(name, '.');
        char out[80];
        if (!dot || strcmp(dot, ".in") != 0 || dot - name > 60) continue;
        snprintf(out, sizeof out, "%.*s.out", (int)(dot - name), name);
        const h3_tensor *in = &g->tensors[i].t;
        compare_sound(g, out, in, in->ne[1], atoi(name), to);
    }
    return H3_OK;
}

static bool match_tracks(const golden *g)
{
    return json_object_get(g->meta, "torchaudio") && json_object_get(g->meta, "cases");
}

/** Rows of the kernel table for some phases. */
static void compare_kernel(golden *g, const char *name, const json_t *c, int rate)
{
    const json_t *phases = json_object_get(c, "phases");
    const int64_t taps = json_integer_value(json_object_get(c, "taps")),
                  of = json_integer_value(json_object_get(c, "of"));
    const int64_t n = (int64_t)json_array_size(phases), o = (int64_t)rate * of / 32000;
    float *k = take((size_t)(n * taps) * sizeof *k);

    golden_check(g, name, h3_resample_taps(o, of) == taps, "%lld taps",
                 (long long)h3_resample_taps(o, of));
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < taps; i++)
            k[j * taps + i] = h3_resample_tap(o, of, int_at(phases, (size_t)j), i);
    golden_near(g, name, h3_tensor_2d(k, H3_F32, n, taps), 1e-6, sound_limit);
    free(k);
}

static h3_status run_tracks(golden *g)
{
    const json_t *cases = json_object_get(g->meta, "cases"), *c;
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)cases, key, c)
    {
        char in[80], out[80];
        int rate = key[0] == 'r' ? atoi(key + 1) : 0;
        snprintf(in, sizeof in, "%.60s.in", key);
        snprintf(out, sizeof out, "%.60s.out", key);
        if (json_object_get(c, "taps")) {
            compare_kernel(g, key, c, rate);
            continue;
        }
        const h3_tensor *t = golden_need(g, in);
        if (!t) continue;
        int64_t kept = t->ne[1];
        if (json_object_get(c, "rate")) { // cut at its own rate first
            rate = (int)json_integer_value(json_object_get(c, "rate"));
            kept = (int64_t)(json_number_value(json_object_get(c, "max_duration")) * rate);
            golden_check(g, key, kept == json_integer_value(json_object_get(c, "kept")),
                         "%lld kept", (long long)kept);
            if (kept > t->ne[1]) kept = t->ne[1];
        }
        compare_sound(g, out, t, kept, rate, 32000);
    }
    return H3_OK;
}

/* ---- bytes and PCM ---- */

static bool match_bytes(const golden *g)
{
    return golden_find(g, "unit") && golden_find(g, "bytes") && golden_find(g, "ties_unit");
}

/** decoded [1, 3, n, h, w] of any float type -> (x * std + mean) clamped, in f32. */
static float *to_unit(const h3_tensor *t)
{
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    const int64_t n = h3_numel(*t), plane = n / 3;
    float *f = take((size_t)n * sizeof *f);

    for (int64_t i = 0; i < n; i++) {
        const float v = (float)golden_value(*t, i) * std[i / plane] + mean[i / plane];
        f[i] = v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;
    }
    return f;
}

/** unit [3, n, h, w] -> bytes [n, h, w, 3]. */
static void compare_bytes(golden *g, const char *name, const float *unit, const h3_tensor *like)
{
    const int64_t n = like->ne[2], h = like->ne[3], w = like->ne[4];
    float *frame = take((size_t)(3 * h * w) * sizeof *frame);
    uint8_t *out = take((size_t)(3 * n * h * w));

    for (int64_t i = 0; i < n; i++) {
        for (int c = 0; c < 3; c++)
            memcpy(frame + c * h * w, unit + (c * n + i) * h * w, (size_t)(h * w) * sizeof *frame);
        h3_rgb8(out + i * h * w * 3, frame, h, w);
    }
    free(frame);
    compare_frames(g, name, out, n, h, w);
}

static h3_status run_bytes(golden *g)
{
    static const char *const pairs[][2] = {
        {"decoded", "bytes"}, {"decoded_f16", "bytes_f16"}, {"decoded_bf16", "bytes_bf16"}};
    const h3_tensor *ties = golden_need(g, "ties_unit"), *unit = golden_need(g, "unit");

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const h3_tensor *t = golden_find(g, pairs[i][0]);
        if (!t || t->rank != 5) continue;
        float *f = to_unit(t);
        compare_bytes(g, pairs[i][1], f, t);
        free(f);
    }
    if (unit && unit->rank == 5) compare_bytes(g, "bytes", unit->data, unit);
    if (ties && ties->rank == 2) { // [3, n] is a picture of one row; the golden keeps planes
        const int64_t n = ties->ne[1];
        uint8_t *u = take((size_t)(3 * n)), *planes = take((size_t)(3 * n));
        h3_rgb8(u, ties->data, 1, n);
        for (int64_t i = 0; i < 3 * n; i++)
            planes[i % 3 * n + i / 3] = u[i];
        golden_exact(g, "ties_bytes", h3_tensor_2d(planes, H3_U8, 3, n));
        free(u);
        free(planes);
    }
    return H3_OK;
}

static bool match_pcm(const golden *g)
{
    return golden_find(g, "samples") && golden_find(g, "pcm16");
}

static h3_status run_pcm(golden *g)
{
    const h3_tensor *s = golden_need(g, "samples");
    const int64_t n = s->ne[1];
    int16_t *out = take((size_t)n * 2 * sizeof *out);

    h3_pcm16(out, s->data, n, n);
    golden_exact(g, "pcm16", h3_tensor_2d(out, H3_I16, n, 2));
    free(out);
    return H3_OK;
}

const golden_kind golden_kinds_media[] = {
    {"media-resize", match_resize, run_resize},
    {"media-image-rows", match_image_rows, run_image_rows},
    {"media-video-rows", match_video_rows, run_video_rows},
    {"media-vae-side", match_vae_side, run_vae_side},
    {"media-rates", match_rates, run_rates},
    {"media-tracks", match_tracks, run_tracks},
    {"media-bytes", match_bytes, run_bytes},
    {"media-pcm", match_pcm, run_pcm},
    {0},
};
