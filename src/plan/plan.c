/*
 * From a request to its plan: check, resolve, lay out, warn. The numbers come from the other files
 * of this room; here is only the order of decisions and what is refused.
 *
 * What is refused is what the model cannot do (a frame count that cannot be decoded, a ratio no
 * canvas has, a clip too short to be read) or what is surely a mistake (references given to t2va).
 * What the model can do but was not trained on is planned, with a warning that says so.
 */
#include "plan.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

enum { MAX_SIDE = 1 << 15, MAX_SOURCE_SIDE = 1 << 20, MIN_RATE = 1000, MAX_RATE = 768000 };

const char *h3_task_name(h3_task t)
{
    static const char *const names[] = {"t2va", "fl2va", "ref2va"};
    return (unsigned)t < 3 ? names[t] : "?";
}

h3_plan_request h3_plan_request_default(void)
{
    return (h3_plan_request){
        .task = H3_T2VA,
        .n_frames = 124,
        .n_steps = 50,
        .video_shift = H3_VIDEO_SHIFT,
        .audio_shift = H3_AUDIO_SHIFT,
        .seed = 42,
        .noise_order = H3_NOISE_ONE_STREAM,
        .knobs = {.canvas_short_edge = 768,
                  .canvas_max_pixels = 768 * 1344,
                  .canvas_multiple = 32,
                  .reference_short_edge = 2048,
                  .min_frames = H3_MIN_FRAMES,
                  .max_frames = 1000 * H3_FRAMES_PER_CHUNK + H3_LATENTS_PER_CHUNK,
                  .trained_min_frames = 5 * H3_FPS,
                  .trained_max_frames = 15 * H3_FPS,
                  .max_images = 9,
                  .max_videos = 3,
                  .max_audios = 3,
                  .max_references = 12,
                  .spatial_ratio = 16,
                  .tile = 256,
                  .tile_overlap = 64,
                  .clip = {17, 3, 4},
                  .sample_fps = 2.0,
                  .sample_patch = 2}};
}

void h3_plan_warn(h3_plan *p, h3_plan_note note, const char *fmt, ...)
{
    if (p->n_warnings == H3_MAX_WARNINGS) return; // 6 of the request and 2 a reference fit
    h3_plan_warning *w = &p->warnings[p->n_warnings++];
    w->note = note;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->text, sizeof w->text, fmt, ap);
    va_end(ap);
}

/* ---------------------------------------------------------------- checks */

static bool is_given(h3_size s)
{
    return s.width != 0 || s.height != 0;
}

static h3_status check_size(const char *what, h3_size s)
{
    if (s.width >= 1 && s.height >= 1 && s.width <= MAX_SOURCE_SIDE && s.height <= MAX_SOURCE_SIDE)
        return H3_OK;
    return h3_fail(H3_E_ARG, "%s is %lld x %lld pixels: expected sides of 1 .. %d", what,
                   (long long)s.width, (long long)s.height, MAX_SOURCE_SIDE);
}

static h3_status check_knobs(const h3_plan_knobs *k)
{
    const struct {
        const char *name;
        int64_t value, most;
    } rows[] = {{"canvas_short_edge", k->canvas_short_edge, MAX_SIDE},
                {"canvas_max_pixels", k->canvas_max_pixels, (int64_t)MAX_SIDE * MAX_SIDE},
                {"canvas_multiple", k->canvas_multiple, MAX_SIDE},
                {"reference_image_short_edge", k->reference_short_edge, MAX_SIDE},
                {"min_frames", k->min_frames, 1 << 24},
                {"max_frames", k->max_frames, 1 << 24},
                {"trained_min_frames", k->trained_min_frames, 1 << 24},
                {"trained_max_frames", k->trained_max_frames, 1 << 24},
                {"spatial_ratio", k->spatial_ratio, 1 << 10},
                {"tile", k->tile, MAX_SIDE},
                {"tile_overlap", k->tile_overlap, k->tile - 1},
                {"sample_patch", k->sample_patch, 1 << 10}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value < 1 || rows[i].value > rows[i].most)
            return h3_fail(H3_E_ARG, "%s is %lld: expected 1 .. %lld", rows[i].name,
                           (long long)rows[i].value, (long long)rows[i].most);
    if (k->canvas_multiple % (k->spatial_ratio * H3_PATCH))
        return h3_fail(H3_E_ARG, "canvas_multiple %lld is no multiple of %lld, one patch of pixels",
                       (long long)k->canvas_multiple, (long long)(k->spatial_ratio * H3_PATCH));
    return H3_OK;
}

/* Which media go with which task. */
static h3_status check_task(const h3_plan_request *r)
{
    const bool has_keyframe = is_given(r->first) || is_given(r->last);
    const char *task = h3_task_name(r->task);
    if ((unsigned)r->task > H3_REF2VA)
        return h3_fail(H3_E_ARG, "unknown task %d: expected t2va, fl2va or ref2va", (int)r->task);
    if (r->n_references < 0 || (r->n_references && !r->references))
        return h3_fail(H3_E_ARG, "%d references", r->n_references);
    if (r->task == H3_FL2VA && !has_keyframe)
        return h3_fail(H3_E_ARG, "fl2va needs a first or a last keyframe");
    if (r->task != H3_FL2VA && has_keyframe)
        return h3_fail(H3_E_ARG, "%s takes no keyframes; fl2va does", task);
    if (r->task == H3_REF2VA && r->n_references == 0)
        return h3_fail(H3_E_ARG, "ref2va needs at least one reference");
    if (r->task != H3_REF2VA && r->n_references)
        return h3_fail(H3_E_ARG, "%s takes no references; ref2va does", task);
    if ((unsigned)r->noise_order > H3_NOISE_RESTART)
        return h3_fail(H3_E_ARG, "unknown noise order %d", (int)r->noise_order);
    if (is_given(r->first)) H3_TRY(check_size("first keyframe", r->first));
    if (is_given(r->last)) H3_TRY(check_size("last keyframe", r->last));
    return H3_OK;
}

static h3_status check_references(const h3_plan_request *r)
{
    static const char *const kinds[] = {"image", "video", "audio"};
    const int most[] = {r->knobs.max_images, r->knobs.max_videos, r->knobs.max_audios};
    int n[3] = {0};
    if (r->n_references > r->knobs.max_references || r->n_references > H3_MAX_CONDITIONS)
        return h3_fail(H3_E_ARG, "%d references: at most %d are accepted", r->n_references,
                       r->knobs.max_references < H3_MAX_CONDITIONS ? r->knobs.max_references
                                                                   : H3_MAX_CONDITIONS);
    for (int i = 0; i < r->n_references; i++) {
        const h3_ref_kind k = r->references[i].kind;
        if ((unsigned)k > H3_REF_AUDIO)
            return h3_fail(H3_E_ARG, "reference %d is of unknown kind %d", i + 1, (int)k);
        if (++n[k] > most[k])
            return h3_fail(H3_E_ARG, "more than %d %s references", most[k], kinds[k]);
    }
    if (r->n_references && n[H3_REF_AUDIO] == r->n_references)
        return h3_fail(H3_E_ARG, "audio references need an image or video reference beside them");
    return H3_OK;
}

/* ---------------------------------------------------------------- canvas and counts */

static h3_canvas_rule rule_of(const h3_plan_knobs *k)
{
    return (h3_canvas_rule){k->canvas_multiple, k->canvas_short_edge, k->canvas_max_pixels};
}

static int64_t nearest_side(int64_t n, int64_t multiple)
{
    const int64_t top = MAX_SIDE / multiple * multiple;

    if (n > top) return top;
    n = (n + (multiple - 1) / 2) / multiple * multiple; // of two as near the smaller
    return n < multiple ? multiple : n;
}

/* Has a size the ratio that stands beside it, but for the rounding of a side? 1344x768 is 16:9 to
 * all who send both. */
static bool is_of_shape(int64_t w, int64_t h, const h3_plan_request *r)
{
    const double m = (double)r->knobs.canvas_multiple;

    if (!(r->aspect_w > 0.0) || !(r->aspect_h > 0.0)) return false;
    return fabs((double)w - (double)h * r->aspect_w / r->aspect_h) < m ||
           fabs((double)h - (double)w * r->aspect_h / r->aspect_w) < m;
}

/* A canvas that the request names. */
static h3_status check_canvas(const h3_plan_request *r)
{
    const int64_t m = r->knobs.canvas_multiple, w = r->canvas.width, h = r->canvas.height;

    if (w < m || h < m || w > MAX_SIDE || h > MAX_SIDE || w % m || h % m)
        return h3_fail(H3_E_ARG,
                       "size %lld x %lld: width and height must be multiples of %lld between %lld "
                       "and %d; the nearest is %lld x %lld",
                       (long long)w, (long long)h, (long long)m, (long long)m, MAX_SIDE,
                       (long long)nearest_side(w, m), (long long)nearest_side(h, m));
    if ((r->aspect_w != 0.0 || r->aspect_h != 0.0) && !is_of_shape(w, h, r))
        return h3_fail(H3_E_ARG, "aspect ratio %g:%g and size %lld x %lld do not agree; give one",
                       r->aspect_w, r->aspect_h, (long long)w, (long long)h);
    return H3_OK;
}

/* Trained on: what the rule gives for this canvas' own ratio, give or take one step of rounding. */
static void warn_of_canvas(h3_plan *p, int64_t step, h3_canvas_rule rule)
{
    const long long w = p->canvas.width, h = p->canvas.height;
    h3_size own;

    if (h3_canvas_resolve(&own, (double)w, (double)h, rule) != H3_OK)
        h3_plan_warn(p, H3_NOTE_CANVAS,
                     "canvas %lld x %lld is outside the trained ratios 1:4 .. 4:1", w, h);
    else if (llabs(own.width - w) > step || llabs(own.height - h) > step)
        h3_plan_warn(
            p, H3_NOTE_CANVAS,
            "canvas %lld x %lld is not one the model was trained on; for this ratio that is %lld x "
            "%lld",
            w, h, (long long)own.width, (long long)own.height);
}

static h3_status resolve_canvas(h3_plan *p, const h3_plan_request *r)
{
    const bool has_aspect = r->aspect_w != 0.0 || r->aspect_h != 0.0;
    const h3_canvas_rule rule = rule_of(&r->knobs);
    const h3_size key = is_given(r->first) ? r->first : r->last;

    if (is_given(r->canvas)) {
        p->canvas = r->canvas;
        H3_TRY(check_canvas(r));
    } else if (has_aspect) {
        H3_TRY(h3_canvas_resolve(&p->canvas, r->aspect_w, r->aspect_h, rule));
    } else if (is_given(key)) {
        const h3_status s =
            h3_canvas_resolve(&p->canvas, (double)key.width, (double)key.height, rule);
        if (s != H3_OK) return h3_fail_in(s, "keyframe");
    } else { // references never decide the canvas
        H3_TRY(h3_canvas_resolve(&p->canvas, 16.0, 9.0, rule));
    }
    warn_of_canvas(p, r->knobs.canvas_multiple, rule);
    return H3_OK;
}

static h3_status resolve_counts(h3_plan *p, const h3_plan_request *r)
{
    const h3_plan_knobs *k = &r->knobs;
    if (r->n_frames < 1 || r->n_frames > k->max_frames)
        return h3_fail(H3_E_ARG, "%lld frames: expected 1 .. %lld", (long long)r->n_frames,
                       (long long)k->max_frames);
    p->n_frames = h3_frames_align(r->n_frames > k->min_frames ? r->n_frames : k->min_frames);
    p->seconds = (double)p->n_frames / H3_FPS;
    if (p->n_frames != r->n_frames)
        h3_plan_warn(p, H3_NOTE_FRAMES_SNAPPED,
                     "%lld frames become %lld (%.3f s): a video has 17 n + 5 frames, at least %lld",
                     (long long)r->n_frames, (long long)p->n_frames, p->seconds,
                     (long long)h3_frames_align(k->min_frames));
    if (k->is_duration_strict && !h3_frames_is_trained(p->n_frames))
        return h3_fail(H3_E_ARG,
                       "%lld frames become %lld, %.3f s at 24 fps: expected 5 .. 15 s, that is "
                       "108 .. 345 frames",
                       (long long)r->n_frames, (long long)p->n_frames, p->seconds);
    if (p->n_frames < k->trained_min_frames || p->n_frames > k->trained_max_frames)
        h3_plan_warn(p, H3_NOTE_DURATION,
                     "%.3f s (%lld frames) is outside the trained %.3g .. %.3g s", p->seconds,
                     (long long)p->n_frames, (double)k->trained_min_frames / H3_FPS,
                     (double)k->trained_max_frames / H3_FPS);
    p->latent =
        (h3_latent_shape){h3_frames_to_latents(p->n_frames), p->canvas.height / k->spatial_ratio,
                          p->canvas.width / k->spatial_ratio};
    p->n_audio = h3_frames_to_audio(p->n_frames);
    p->n_samples = p->n_audio * H3_AUDIO_HOP;
    H3_TRY(h3_tile_axis_init(&p->tiles_y, p->canvas.height, k->tile, k->tile_overlap,
                             k->spatial_ratio));
    H3_TRY(h3_tile_axis_init(&p->tiles_x, p->canvas.width, k->tile, k->tile_overlap,
                             k->spatial_ratio));
    return h3_decode_clips_init(&p->clips, p->latent.t, k->clip);
}

/* ---------------------------------------------------------------- conditions */

static void add_keyframe(h3_plan *p, h3_condition_kind kind, h3_size size)
{
    const bool is_anchor = p->n_conditions == 0; // the first one given decided the geometry
    h3_condition *c = &p->conditions[p->n_conditions++];
    c->shape = (h3_condition_shape){.kind = kind, .t = 1, .h = p->latent.h, .w = p->latent.w};
    c->source = kind == H3_COND_LAST;
    c->fit = is_anchor ? h3_fit_stretch(size, p->canvas) : h3_fit_cover(size, p->canvas);
    c->n_frames = c->n_encoded = 1;
}

static h3_status plan_sound(h3_plan *p, h3_condition *c, const h3_ref_info *m)
{
    if (m->n_samples < 0 || m->n_samples > H3_MAX_COUNT || m->rate < MIN_RATE || m->rate > MAX_RATE)
        return h3_fail(H3_E_ARG, "sound of %lld samples at %lld Hz: expected a rate of %d .. %d",
                       (long long)m->n_samples, (long long)m->rate, MIN_RATE, MAX_RATE);
    c->rate = m->rate;
    c->n_keep = h3_audio_keep(m->n_samples, m->rate, p->n_frames);
    c->n_resampled = h3_audio_resampled(c->n_keep, m->rate);
    c->shape.n_audio = h3_audio_latents(c->n_resampled);
    c->n_padded = c->shape.n_audio * H3_AUDIO_HOP;
    return H3_OK;
}

static h3_status plan_image(h3_plan *p, h3_condition *c, const h3_ref_info *m)
{
    h3_size to;
    H3_TRY(check_size("the image", m->size));
    H3_TRY(h3_canvas_reference_image(&to, m->size, p->knobs.reference_short_edge,
                                     p->knobs.canvas_multiple));
    c->fit = h3_fit_stretch(m->size, to);
    c->n_frames = c->n_encoded = 1;
    c->shape.t = 1;
    return H3_OK;
}

static h3_status plan_clip(h3_plan *p, h3_condition *c, const h3_ref_info *m)
{
    const h3_plan_knobs *k = &p->knobs;
    const int number = c->source + 1;
    h3_size to;
    int64_t all;
    H3_TRY(check_size("the video", m->size));
    if (m->n_frames < 1 || m->n_frames > H3_MAX_COUNT)
        return h3_fail(H3_E_ARG, "the video has %lld frames", (long long)m->n_frames);
    H3_TRY(h3_canvas_resolve(&to, (double)m->size.width, (double)m->size.height, rule_of(k)));
    c->fit = h3_fit_stretch(m->size, to);
    c->n_source_frames = m->n_frames;
    c->fps = m->fps;
    H3_TRY(h3_frames_to_24fps(m->n_frames, m->fps, H3_MAX_COUNT, NULL, &all));
    c->n_frames = all < p->n_frames ? all : p->n_frames;
    c->n_encoded = h3_reference_frames(c->n_frames);
    H3_TRY(h3_clip_samples_init(&c->samples, c->n_frames, H3_FPS, k->sample_fps, k->sample_patch));
    c->shape.t = h3_encoded_latents(c->n_encoded);
    if (all > p->n_frames)
        h3_plan_warn(p, H3_NOTE_REFERENCE_CUT,
                     "reference %d: %lld frames at 24 fps are cut to %lld", number, (long long)all,
                     (long long)p->n_frames);
    if (c->n_frames < H3_MIN_FRAMES)
        h3_plan_warn(p, H3_NOTE_REFERENCE_SHORT,
                     "reference %d: %lld frames at 24 fps; the last one is repeated to fill a clip",
                     number, (long long)c->n_frames);
    return H3_OK;
}

static h3_status plan_reference(h3_plan *p, h3_condition *c, const h3_ref_info *m)
{
    static const h3_condition_kind kinds[] = {H3_COND_IMAGE, H3_COND_VIDEO, H3_COND_AUDIO};
    c->shape.kind = kinds[m->kind];
    if (m->kind == H3_REF_IMAGE) H3_TRY(plan_image(p, c, m));
    if (m->kind == H3_REF_VIDEO) H3_TRY(plan_clip(p, c, m));
    c->shape.h = c->fit.canvas.height / p->knobs.spatial_ratio;
    c->shape.w = c->fit.canvas.width / p->knobs.spatial_ratio;
    if (m->kind == H3_REF_IMAGE || (m->kind == H3_REF_VIDEO && !m->has_audio)) return H3_OK;

    if (m->kind == H3_REF_AUDIO && m->n_samples < 1)
        return h3_fail(H3_E_ARG, "the sound has no samples");
    if (m->n_samples == 0) {
        h3_plan_warn(p, H3_NOTE_REFERENCE_SILENT,
                     "reference %d: its soundtrack has no samples and is taken as absent",
                     c->source + 1);
        return H3_OK;
    }
    H3_TRY(plan_sound(p, c, m));
    if (m->kind == H3_REF_AUDIO && c->n_keep < m->n_samples)
        h3_plan_warn(p, H3_NOTE_REFERENCE_CUT, "reference %d: %.3f s of sound are cut to %.3f s",
                     c->source + 1, (double)m->n_samples / (double)m->rate, p->seconds);
    return H3_OK;
}

static h3_status plan_conditions(h3_plan *p, const h3_plan_request *r)
{
    if (is_given(r->first)) add_keyframe(p, H3_COND_FIRST, r->first);
    if (is_given(r->last)) add_keyframe(p, H3_COND_LAST, r->last);
    for (int i = 0; i < r->n_references; i++) {
        h3_condition *c = &p->conditions[p->n_conditions++];
        c->source = i;
        const h3_status s = plan_reference(p, c, &r->references[i]);
        if (s != H3_OK) return h3_fail_in(s, "reference %d", i + 1);
    }

    p->n_media_rows = H3_AUDIO_CHANNELS * p->n_audio +
                      p->latent.t * (p->latent.h / H3_PATCH) * (p->latent.w / H3_PATCH);
    for (int i = 0; i < p->n_conditions; i++) {
        const h3_condition_shape *s = &p->conditions[i].shape;
        p->n_condition_video += s->t * (s->h / H3_PATCH) * (s->w / H3_PATCH);
        p->n_condition_audio += H3_AUDIO_CHANNELS * s->n_audio;
    }
    p->n_media_rows += p->n_condition_video + p->n_condition_audio;
    if (p->n_media_rows > INT32_MAX / 2)
        return h3_fail(H3_E_ARG,
                       "%lld x %lld, %lld frames: %lld rows are more than a sequence can "
                       "have",
                       (long long)p->canvas.width, (long long)p->canvas.height,
                       (long long)p->n_frames, (long long)p->n_media_rows);
    return H3_OK;
}

/* ---------------------------------------------------------------- schedules */

static h3_status make_schedule(h3_schedule *s, const h3_plan_request *r, double shift,
                               const char *which)
{
    const h3_status st = r->base_sigmas
                             ? h3_schedule_from(s, r->base_sigmas, r->n_base_sigmas, shift)
                             : h3_schedule_init(s, r->n_steps, shift);
    return st == H3_OK ? st : h3_fail_in(st, "%s schedule", which);
}

static h3_status plan_schedules(h3_plan *p, const h3_plan_request *r)
{
    H3_TRY(make_schedule(&p->video, r, r->video_shift, "video"));
    H3_TRY(make_schedule(&p->audio, r, r->audio_shift, "audio"));
    if (p->video.n_steps != p->audio.n_steps)
        return h3_fail(
            H3_E_ARG,
            "shifts %g and %g make schedules of %d and %d steps: the two must be stepped "
            "together; take fewer steps or smaller shifts",
            r->video_shift, r->audio_shift, p->video.n_steps, p->audio.n_steps);
    p->n_forwards = p->video.n_steps;
    return H3_OK;
}

/* ---------------------------------------------------------------- doors */

h3_status h3_plan_create(h3_plan **out, const h3_plan_request *r)
{
    *out = NULL;
    H3_TRY(check_knobs(&r->knobs));
    H3_TRY(check_task(r));
    H3_TRY(check_references(r));

    h3_plan *p = calloc(1, sizeof *p);
    if (!p) return h3_fail(H3_E_NOMEM, "no memory for a plan");
    p->task = r->task;
    p->seed = r->seed;
    p->noise_order = r->noise_order;
    p->knobs = r->knobs;
    h3_status s = resolve_canvas(p, r);
    if (s == H3_OK) s = resolve_counts(p, r);
    if (s == H3_OK) s = plan_conditions(p, r);
    if (s == H3_OK) s = plan_schedules(p, r);
    if (s != H3_OK) {
        h3_plan_free(&p);
        return s;
    }
    *out = p;
    return H3_OK;
}

void h3_plan_free(h3_plan **pp)
{
    if (!pp || !*pp) return;
    h3_plan *p = *pp;
    for (int i = 0; i < p->n_conditions; i++)
        h3_clip_samples_free(&p->conditions[i].samples);
    h3_schedule_free(&p->video);
    h3_schedule_free(&p->audio);
    free(p);
    *pp = NULL;
}

h3_status h3_plan_layout(h3_layout **out, const h3_plan *p, const int32_t *tags, int64_t n_text)
{
    h3_condition_shape shapes[H3_MAX_CONDITIONS];
    for (int i = 0; i < p->n_conditions; i++)
        shapes[i] = p->conditions[i].shape;
    return h3_layout_create(out, &(h3_layout_in){.text_tags = tags,
                                                 .n_text = n_text,
                                                 .conditions = shapes,
                                                 .n_conditions = p->n_conditions,
                                                 .t = p->latent.t,
                                                 .h = p->latent.h,
                                                 .w = p->latent.w,
                                                 .n_audio = p->n_audio});
}

void h3_plan_noise(const h3_plan *p, float *const *conditions, float *video, float *audio_rows)
{
    h3_latent_shape shapes[H3_MAX_CONDITIONS];
    int n = 0;
    for (int i = 0; i < p->n_conditions; i++) {
        const h3_condition_shape *s = &p->conditions[i].shape;
        if (s->kind != H3_COND_AUDIO) shapes[n++] = (h3_latent_shape){s->t, s->h, s->w};
    }
    h3_noise_fill(&(h3_noise_spec){.seed = p->seed,
                                   .order = p->noise_order,
                                   .n_conditions = n,
                                   .conditions = shapes,
                                   .video = p->latent,
                                   .n_audio = p->n_audio},
                  conditions, video, audio_rows);
}
