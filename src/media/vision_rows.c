/**
 * Patch rows, VAE pixels and smart-resize rules; see vision_rows.h.
 *
 * The rules follow transformers' smart_resize of Qwen2-VL (pictures) and Qwen3-VL (clips): sides to
 * the nearest multiple of patch * merge with ties to even, and the square root of the budget ratio
 * when the product leaves the budget. The clip rule tests with the frame count rounded to pairs
 * (ties to even) but scales with the plain count, so 25 frames of 768x1344 pass untouched and 26
 * are shrunk.
 */
#include "vision_rows.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

enum { MAX_EXTENT = 1 << 20, MAX_CONFIG_BYTES = 1 << 20 };

static const float vae_mean[3] = {0.485f, 0.456f, 0.406f}, vae_std[3] = {0.229f, 0.224f, 0.225f};

static h3_processor defaults(int64_t least, int64_t most)
{
    return (h3_processor){.patch = 16,
                          .temporal_patch = 2,
                          .merge = 2,
                          .min_pixels = least,
                          .max_pixels = most,
                          .mean = {0.5f, 0.5f, 0.5f},
                          .std = {0.5f, 0.5f, 0.5f}};
}

h3_processor h3_processor_image_default(void)
{
    return defaults(65536, 16777216);
}

h3_processor h3_processor_video_default(void)
{
    return defaults(4096, 25165824);
}

static h3_status read_int(int64_t *v, const json_t *o, const char *key, int64_t lo, int64_t hi,
                          const char *path)
{
    const json_t *j = json_object_get(o, key);

    if (!j || json_is_null(j)) return H3_OK;
    if (!json_is_integer(j) || json_integer_value(j) < lo || json_integer_value(j) > hi)
        return h3_fail(H3_E_FORMAT, "%s: \"%s\" must be a whole number in %lld..%lld", path, key,
                       (long long)lo, (long long)hi);
    *v = json_integer_value(j);
    return H3_OK;
}

static h3_status read_small(int *v, const json_t *o, const char *key, const char *path)
{
    int64_t x = *v;

    H3_TRY(read_int(&x, o, key, 1, 128, path));
    *v = (int)x;
    return H3_OK;
}

static h3_status read_three(float v[3], const json_t *o, const char *key, double lo,
                            const char *path)
{
    const json_t *j = json_object_get(o, key);

    if (!j || json_is_null(j)) return H3_OK;
    for (size_t i = 0; i < 3; i++) {
        const json_t *x = json_array_get(j, i);
        if (json_array_size(j) != 3 || !json_is_number(x) || !(json_number_value(x) >= lo) ||
            json_number_value(x) > 1e6)
            return h3_fail(H3_E_FORMAT, "%s: \"%s\" must be three numbers of at least %g", path,
                           key, lo);
        v[i] = (float)json_number_value(x);
    }
    return H3_OK;
}

static h3_status read_processor(h3_processor *p, const json_t *root, const char *path)
{
    const int64_t most = (int64_t)1 << 40;
    const json_t *size = json_object_get(root, "size");

    H3_TRY(read_small(&p->patch, root, "patch_size", path));
    H3_TRY(read_small(&p->temporal_patch, root, "temporal_patch_size", path));
    H3_TRY(read_small(&p->merge, root, "merge_size", path));
    H3_TRY(read_three(p->mean, root, "image_mean", -1e6, path));
    H3_TRY(read_three(p->std, root, "image_std", 1e-6, path));
    H3_TRY(read_int(&p->min_pixels, root, "min_pixels", 1, most, path));
    H3_TRY(read_int(&p->max_pixels, root, "max_pixels", 1, most, path));
    H3_TRY(read_int(&p->min_pixels, size, "shortest_edge", 1, most, path));
    H3_TRY(read_int(&p->max_pixels, size, "longest_edge", 1, most, path));
    if (p->min_pixels > p->max_pixels)
        return h3_fail(H3_E_FORMAT, "%s: the pixel budget %lld..%lld is empty", path,
                       (long long)p->min_pixels, (long long)p->max_pixels);
    return H3_OK;
}

h3_status h3_processor_load(h3_processor *p, const char *path)
{
    h3_processor got = *p;
    json_error_t err;
    json_t *root;
    size_t size;
    h3_status st;
    char *text;

    H3_TRY(h3_file_read(&text, &size, path, MAX_CONFIG_BYTES));
    const bool is_empty = strspn(text, " \t\r\n") == size;
    root = json_loadb(text, size, 0, &err);
    free(text);
    if (is_empty) return h3_fail(H3_E_FORMAT, "%s is empty; JSON was expected", path);
    if (!root)
        return h3_fail(H3_E_FORMAT, "%s: not a JSON object: %s (line %d, column %d)", path,
                       err.text, err.line, err.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return h3_fail(H3_E_FORMAT, "%s: a JSON list where an object was expected", path);
    }
    st = read_processor(&got, root, path);
    json_decref(root);
    if (st == H3_OK) *p = got;
    return st;
}

static h3_status check_extent(int64_t n, int64_t h, int64_t w)
{
    if (n < 1 || h < 1 || w < 1 || n > MAX_EXTENT || h > MAX_EXTENT || w > MAX_EXTENT)
        return h3_fail(H3_E_ARG, "%lld frames of %lldx%lld: every extent must be 1..%d",
                       (long long)n, (long long)w, (long long)h, MAX_EXTENT);
    return H3_OK;
}

static h3_status check_ratio(int64_t h, int64_t w)
{
    const double hi = (double)(h > w ? h : w), lo = (double)(h > w ? w : h);

    if (hi / lo > 200.0)
        return h3_fail(H3_E_ARG, "a picture of %lldx%lld is too long: at most 200:1", (long long)w,
                       (long long)h);
    return H3_OK;
}

/** To the nearest multiple of f, ties to even as Python rounds. */
static int64_t nearest(int64_t x, int64_t f)
{
    return (int64_t)rint((double)x / (double)f) * f;
}

static int64_t shrink(int64_t x, double beta, int64_t f)
{
    const int64_t v = (int64_t)floor((double)x / beta / (double)f) * f;
    return v > f ? v : f;
}

static int64_t grow(int64_t x, double beta, int64_t f)
{
    return (int64_t)ceil((double)x * beta / (double)f) * f;
}

/** n_test frames decide whether the budget is left, n_scale frames by how much. */
static void into_budget(int64_t *out_h, int64_t *out_w, int64_t n_test, int64_t n_scale, int64_t h,
                        int64_t w, const h3_processor *p)
{
    const int64_t f = (int64_t)p->patch * p->merge;
    const double pixels = (double)(n_scale * h * w);
    const int64_t rounded = n_test * nearest(h, f) * nearest(w, f);

    *out_h = nearest(h, f);
    *out_w = nearest(w, f);
    if (rounded > p->max_pixels) {
        const double beta = sqrt(pixels / (double)p->max_pixels);
        *out_h = shrink(h, beta, f);
        *out_w = shrink(w, beta, f);
    } else if (rounded < p->min_pixels) {
        const double beta = sqrt((double)p->min_pixels / pixels);
        *out_h = grow(h, beta, f);
        *out_w = grow(w, beta, f);
    }
}

h3_status h3_smart_size_image(int64_t *out_h, int64_t *out_w, int64_t h, int64_t w,
                              const h3_processor *p)
{
    H3_TRY(check_extent(1, h, w));
    H3_TRY(check_ratio(h, w));
    into_budget(out_h, out_w, 1, 1, h, w, p);
    return H3_OK;
}

h3_status h3_smart_size_video(int64_t *out_h, int64_t *out_w, int64_t n, int64_t h, int64_t w,
                              const h3_processor *p)
{
    const int64_t f = (int64_t)p->patch * p->merge;

    H3_TRY(check_extent(n, h, w));
    if (n < p->temporal_patch)
        return h3_fail(H3_E_ARG, "a clip of %lld frames: the vision tower needs at least %d",
                       (long long)n, p->temporal_patch);
    if (h < f || w < f) {
        const double a = (double)f / (double)h, b = (double)f / (double)w, s = a > b ? a : b;
        h = (int64_t)((double)h * s);
        w = (int64_t)((double)w * s);
        H3_TRY(check_extent(n, h, w));
    }
    H3_TRY(check_ratio(h, w));
    into_budget(out_h, out_w, nearest(n, p->temporal_patch), n, h, w, p);
    return H3_OK;
}

int64_t h3_patch_rows_count(int64_t n, int64_t h, int64_t w, const h3_processor *p)
{
    return (n + p->temporal_patch - 1) / p->temporal_patch * (h / p->patch) * (w / p->patch);
}

int64_t h3_patch_row_size(const h3_processor *p)
{
    return (int64_t)3 * p->temporal_patch * p->patch * p->patch;
}

/** Walks the rows in order and calls `put` with the frame-relative origin of each. */
typedef struct patch_walk {
    const uint8_t *frames;
    int64_t n, h, w;
    const h3_processor *p;
    float (*table)[256]; // [channel][level], NULL: bytes are copied
} patch_walk;

/** One row: channel, time, y, x. Exactly one of f, u is written. */
static void put_row(float *f, uint8_t *u, const patch_walk *k, int64_t t, int64_t y0, int64_t x0)
{
    const int size = k->p->patch;
    int64_t at = 0;

    for (int c = 0; c < 3; c++)
        for (int dt = 0; dt < k->p->temporal_patch; dt++) {
            const int64_t frame = t + dt < k->n ? t + dt : k->n - 1; // the last one fills the slot
            for (int y = 0; y < size; y++) {
                const uint8_t *s = k->frames + ((frame * k->h + y0 + y) * k->w + x0) * 3 + c;
                for (int x = 0; x < size; x++, at++) {
                    if (f)
                        f[at] = k->table[c][s[3 * x]];
                    else
                        u[at] = s[3 * x];
                }
            }
        }
}

static void put_rows(float *f, uint8_t *u, const patch_walk *k)
{
    const int64_t size = h3_patch_row_size(k->p), merge = k->p->merge, patch = k->p->patch;
    const int64_t gh = k->h / patch, gw = k->w / patch;

    for (int64_t t = 0; t < k->n; t += k->p->temporal_patch)
        for (int64_t by = 0; by < gh; by += merge)
            for (int64_t bx = 0; bx < gw; bx += merge)
                for (int64_t i = 0; i < merge * merge; i++) {
                    put_row(f, u, k, t, (by + i / merge) * patch, (bx + i % merge) * patch);
                    if (f) f += size;
                    if (u) u += size;
                }
}

void h3_patch_rows(float *out, const uint8_t *frames, int64_t n, int64_t h, int64_t w,
                   const h3_processor *p)
{
    float table[3][256];

    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++)
            table[c][v] = ((float)v - p->mean[c] * 255.0f) / (p->std[c] * 255.0f);
    put_rows(out, NULL, &(patch_walk){frames, n, h, w, p, table});
}

void h3_patch_rows_u8(uint8_t *out, const uint8_t *frames, int64_t n, int64_t h, int64_t w,
                      const h3_processor *p)
{
    put_rows(NULL, out, &(patch_walk){frames, n, h, w, p, NULL});
}

void h3_vae_pixels(float *out, const uint8_t *frames, int64_t n, int64_t h, int64_t w)
{
    const int64_t plane = n * h * w;

    for (int c = 0; c < 3; c++) {
        float table[256];
        for (int v = 0; v < 256; v++)
            table[v] = ((float)v / 255.0f - vae_mean[c]) / vae_std[c];
        for (int64_t i = 0; i < plane; i++)
            out[c * plane + i] = table[frames[3 * i + c]];
    }
}
