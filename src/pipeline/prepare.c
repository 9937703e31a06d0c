/** Preparing conditions; see prepare.h. */
#include "prepare.h"

#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "resample.h"
#include "resize.h"
#include "size.h"

void h3_prepared_free(h3_prepared *p)
{
    free(p->rgb);
    free(p->pcm);
    memset(p, 0, sizeof *p);
}

/* ---------------------------------------------------------------------------------- pictures */

/* The largest size of the source's shape inside the canvas: what "pad" puts on black. */
static h3_size inside(h3_size source, h3_size canvas)
{
    const double sx = (double)canvas.width / (double)source.width;
    const double sy = (double)canvas.height / (double)source.height, s = sx < sy ? sx : sy;
    h3_size out = {h3_round_even((double)source.width * s),
                   h3_round_even((double)source.height * s)};

    if (out.width < 1) out.width = 1;
    if (out.height < 1) out.height = 1;
    if (out.width > canvas.width) out.width = canvas.width;
    if (out.height > canvas.height) out.height = canvas.height;
    return out;
}

static h3_status fit_pad(uint8_t *out, h3_size canvas, const uint8_t *in, h3_size source)
{
    const h3_size mid = inside(source, canvas);
    const int64_t left = (canvas.width - mid.width) / 2, top = (canvas.height - mid.height) / 2;
    uint8_t *tmp = h3_malloc_4(1, mid.width, mid.height, 3, 1);
    h3_status st;

    if (!tmp) return h3_fail(H3_E_NOMEM, "no memory to resize a picture");
    st = h3_resize(tmp, (int)mid.height, (int)mid.width, in, (int)source.height, (int)source.width,
                   H3_LANCZOS);
    memset(out, 0, (size_t)(canvas.width * canvas.height * 3));
    for (int64_t y = 0; st == H3_OK && y < mid.height; y++)
        memcpy(out + ((top + y) * canvas.width + left) * 3, tmp + y * mid.width * 3,
               (size_t)(mid.width * 3));
    free(tmp);
    return st;
}

static h3_status fit_frame(uint8_t *out, const uint8_t *in, const h3_fit *f, bool is_pad)
{
    const h3_size s = f->source, c = f->canvas;

    if (is_pad) return fit_pad(out, c, in, s);
    return h3_resize_crop(out, (int)c.height, (int)c.width, (int)f->resize.height,
                          (int)f->resize.width, (int)f->top, (int)f->left, in, (int)s.height,
                          (int)s.width);
}

static h3_status prepare_pixels(h3_prepared *out, h3_source *s, const h3_condition *c,
                                h3_fit_mode mode)
{
    h3_fit fit = c->fit;
    size_t frame_in, bytes;

    if (mode == H3_FIT_STRETCH || mode == H3_FIT_PAD) fit = h3_fit_stretch(fit.source, fit.canvas);
    if (mode == H3_FIT_COVER) fit = h3_fit_cover(fit.source, fit.canvas);
    out->n = s->n;
    out->h = fit.canvas.height;
    out->w = fit.canvas.width;
    if (s->size.width == out->w &&
        s->size.height == out->h) { // a clip was resized while it was read
        out->rgb = s->rgb;
        s->rgb = NULL;
        return H3_OK;
    }
    frame_in = (size_t)(s->size.width * s->size.height * 3);
    const size_t frame = (size_t)(out->h * out->w * 3);
    if (!h3_mul_size(frame, (size_t)out->n, &bytes) || !(out->rgb = malloc(bytes)))
        return h3_fail(H3_E_NOMEM, "%s: no memory for %lld frames of %lldx%lld", s->name,
                       (long long)out->n, (long long)out->w, (long long)out->h);
    for (int64_t i = 0; i < out->n; i++)
        H3_TRY(fit_frame(out->rgb + (size_t)i * frame, s->rgb + (size_t)i * frame_in, &fit,
                         mode == H3_FIT_PAD));
    return H3_OK;
}

/* ------------------------------------------------------------------------------------- sound */

static h3_status prepare_sound(h3_prepared *out, h3_source *s, const h3_condition *c)
{
    const int64_t keep = c->n_keep < s->n_samples ? c->n_keep : s->n_samples;
    const int64_t n = h3_resample_length(keep, s->rate, H3_AUDIO_RATE);

    if (n < 0)
        return h3_fail(H3_E_ARG, "%s: %lld samples at %d Hz are too many", s->name, (long long)keep,
                       s->rate);
    out->n_samples = n;
    out->pcm = h3_malloc_2(sizeof(float), n + 1, 2);
    if (!out->pcm) return h3_fail(H3_E_NOMEM, "%s: no memory for its sound", s->name);
    for (int ch = 0; ch < 2; ch++)
        H3_TRY(h3_resample(out->pcm + ch * n, s->pcm + ch * s->n_samples, keep, s->rate,
                           H3_AUDIO_RATE));
    return H3_OK;
}

h3_status h3_prepare_source(h3_prepared *out, h3_source *s, const h3_condition *c, h3_fit_mode mode)
{
    h3_status st = H3_OK;

    memset(out, 0, sizeof *out);
    if (s->rgb) st = prepare_pixels(out, s, c, mode);
    if (st == H3_OK && c->shape.n_audio > 0) st = prepare_sound(out, s, c);
    if (st != H3_OK) h3_prepared_free(out);
    return st;
}

/* -------------------------------------------------------------------------------- conditioner */

static h3_status load_processor(h3_processor *p, const char *folder, const char *name)
{
    char *path;
    h3_status st;

    if (!folder) return H3_OK;
    path = h3_path_join(folder, name);
    st = h3_path_exists(path) ? h3_processor_load(p, path) : H3_OK;
    free(path);
    return st;
}

/* Sampled frames of one condition, resized for the vision tower: [n, h, w, 3], malloc'd. */
static h3_status vision_frames(uint8_t **out, int64_t *h, int64_t *w, const h3_prepared *p,
                               const h3_condition *c, const h3_vision *v)
{
    const bool is_clip = c->shape.kind == H3_COND_VIDEO;
    const int64_t n = is_clip ? c->samples.n : 1;
    const size_t frame_in = (size_t)(p->h * p->w * 3);
    size_t bytes;

    if (is_clip)
        H3_TRY(h3_smart_size_video(h, w, n, p->h, p->w, &v->video));
    else
        H3_TRY(h3_smart_size_image(h, w, p->h, p->w, &v->image));
    if (!h3_mul_size((size_t)(*h * *w * 3), (size_t)n, &bytes) || !(*out = malloc(bytes)))
        return h3_fail(H3_E_NOMEM, "no memory for the pictures of the conditioner");
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = is_clip ? c->samples.index[i] : 0;
        H3_TRY(h3_resize(*out + (size_t)i * (size_t)(*h * *w * 3), (int)*h, (int)*w,
                         p->rgb + (size_t)at * frame_in, (int)p->h, (int)p->w, H3_BICUBIC));
    }
    return H3_OK;
}

/* Appends the patch rows of one condition to the batch of its kind. */
static h3_status append_patches(h3_vision *v, const uint8_t *rgb, int64_t n, int64_t h, int64_t w,
                                bool is_clip)
{
    const h3_processor *p = is_clip ? &v->video : &v->image;
    float **all = is_clip ? &v->video_patches : &v->image_patches;
    int64_t *n_all = is_clip ? &v->n_video_rows : &v->n_image_rows;
    const int64_t rows = h3_patch_rows_count(n, h, w, p), size = h3_patch_row_size(p);
    float *grown = realloc(*all, (size_t)((*n_all + rows) * size) * sizeof(float));

    if (!grown) return h3_fail(H3_E_NOMEM, "no memory for the patch rows of the conditioner");
    *all = grown;
    h3_patch_rows(grown + *n_all * size, rgb, n, h, w, p);
    *n_all += rows;
    return H3_OK;
}

static h3_status see(h3_vision *v, const h3_condition *c, const h3_prepared *p)
{
    h3_prompt_ref *ref = &v->refs[v->n_refs];
    const bool is_clip = c->shape.kind == H3_COND_VIDEO;
    uint8_t *rgb = NULL;
    int64_t h = 0, w = 0;
    h3_status st;

    memset(ref, 0, sizeof *ref);
    if (c->shape.kind == H3_COND_AUDIO) {
        ref->kind = H3_PROMPT_AUDIO;
        v->n_refs++;
        return H3_OK;
    }
    st = vision_frames(&rgb, &h, &w, p, c, v);
    const int64_t n = is_clip ? c->samples.n : 1;
    if (st == H3_OK) st = append_patches(v, rgb, n, h, w, is_clip);
    free(rgb);
    if (st != H3_OK) return st;
    const h3_processor *proc = is_clip ? &v->video : &v->image;
    ref->kind = is_clip ? H3_PROMPT_VIDEO : H3_PROMPT_IMAGE;
    ref->has_sound = is_clip && c->shape.n_audio > 0;
    ref->grid[0] = is_clip ? (int32_t)h3_ceil_div(n, proc->temporal_patch) : 1;
    ref->grid[1] = (int32_t)(h / proc->patch);
    ref->grid[2] = (int32_t)(w / proc->patch);
    if (is_clip) {
        double *times = h3_malloc_2(sizeof *times, n, 1);
        if (!times) return h3_fail(H3_E_NOMEM, "no memory for frame times");
        for (int64_t i = 0; i < n; i++)
            times[i] =
                (double)i / 2.0; // place in the 2 fps sampling, whatever the source's own time
        v->times[v->n_refs] = times;
        ref->times = times;
        ref->n_times = (int)n;
    }
    v->n_refs++;
    return H3_OK;
}

h3_status h3_vision_create(h3_vision *out, const char *processor, const h3_plan *plan,
                           const h3_prepared *prepared)
{
    h3_status st;

    memset(out, 0, sizeof *out);
    out->image = h3_processor_image_default();
    out->video = h3_processor_video_default();
    st = load_processor(&out->image, processor, "preprocessor_config.json");
    if (st == H3_OK) st = load_processor(&out->video, processor, "video_preprocessor_config.json");
    for (int i = 0; st == H3_OK && i < plan->n_conditions; i++)
        st = see(out, &plan->conditions[i], &prepared[i]);
    if (st != H3_OK) h3_vision_free(out);
    return st;
}

void h3_vision_free(h3_vision *v)
{
    for (int i = 0; i < H3_MAX_CONDITIONS; i++)
        free(v->times[i]);
    free(v->image_patches);
    free(v->video_patches);
    memset(v, 0, sizeof *v);
}
