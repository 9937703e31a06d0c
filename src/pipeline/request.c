/** Checking a request and planning it; see request.h. */
#include "request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"
#include "tags.h"
#include "unicode.h"

enum { MAX_PROMPT_BYTES = 1 << 20 };

static bool has_input(const h3_input *in)
{
    return in && (in->path || in->data);
}

h3_status h3_request_task(h3_task *out, const h3_request *rq)
{
    static const h3_task tasks[] = {H3_T2VA, H3_FL2VA, H3_REF2VA};
    const bool has_key = has_input(rq->first) || has_input(rq->last), has_ref = rq->n_refs > 0;
    const char *word = rq->task;

    if (rq->n_refs < 0 || (rq->n_refs && !rq->refs))
        return h3_fail(H3_E_ARG, "%d references, but no list of them", rq->n_refs);
    if (has_key && has_ref)
        return h3_fail(H3_E_ARG,
                       "keyframes and references cannot be combined: fl2va takes --first and "
                       "--last, ref2va takes --ref");
    *out = has_ref ? H3_REF2VA : has_key ? H3_FL2VA : H3_T2VA;
    if (!word || strcmp(word, "auto") == 0) return H3_OK;
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        if (strcmp(word, h3_task_name(tasks[i])) != 0) continue;
        if (tasks[i] == *out) return H3_OK;
        return h3_fail(H3_E_ARG, "task %s: %s", word,
                       tasks[i] == H3_T2VA    ? "takes no keyframes or references; leave them out"
                       : tasks[i] == H3_FL2VA ? "needs a first or a last keyframe and no references"
                                              : "needs at least one reference and no keyframes");
    }
    return h3_fail(H3_E_ARG, "task %s: expected auto, t2va, fl2va or ref2va", word);
}

h3_status h3_parse_fit(h3_fit_mode *out, const char *word)
{
    static const char *const words[] = {"reference", "stretch", "cover", "pad"};

    *out = H3_FIT_REFERENCE;
    if (!word) return H3_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (h3_fit_mode)i;
            return H3_OK;
        }
    return h3_fail(H3_E_ARG, "fit %s: expected reference, stretch, cover or pad", word);
}

static h3_status parse_noise_order(h3_noise_order *out, const char *word)
{
    *out = H3_NOISE_ONE_STREAM;
    if (!word || strcmp(word, "diffusers") == 0) return H3_OK;
    *out = H3_NOISE_RESTART;
    if (strcmp(word, "omni") == 0) return H3_OK;
    return h3_fail(H3_E_ARG, "noise order %s: expected diffusers or omni", word);
}

/* "16:9" -> 16, 9 */
static h3_status parse_aspect(double *w, double *h, const char *text)
{
    char *end = NULL;

    *w = *h = 0;
    if (!text) return H3_OK;
    *w = h3_number_read(text, &end);
    if (end != text && (*end == ':' || *end == 'x' || *end == '/')) {
        const char *rest = end + 1;
        *h = h3_number_read(rest, &end);
        if (end != rest && !*end && isfinite(*w) && isfinite(*h) && *w > 0 && *h > 0) return H3_OK;
    }
    return h3_fail(H3_E_ARG, "aspect %s: expected two numbers such as 16:9", text);
}

/* Blanks are tokens as others are, and the reference takes them; nothing at all it takes beside a
 * picture or a reference only. */
static h3_status check_prompt(const h3_request *rq, h3_task task)
{
    const char *prompt = rq->prompt;
    size_t n, bad;

    if (!prompt || !*prompt) {
        if (task != H3_T2VA) return H3_OK;
        if (rq->resume_path)
            return h3_fail(H3_E_ARG,
                           "the prompt is empty; %s goes on with the request that saved it, which "
                           "has to be given again (h3av inspect shows it)",
                           rq->resume_path);
        return h3_fail(H3_E_ARG,
                       "the prompt is empty; say what to show, e.g. -p \"a red fox in snow\"");
    }
    n = strlen(prompt);
    if (n > MAX_PROMPT_BYTES)
        return h3_fail(H3_E_ARG, "the prompt has %zu bytes, at most %d are accepted", n,
                       MAX_PROMPT_BYTES);
    if (!h3_utf8_is_valid(prompt, n, &bad))
        return h3_fail(H3_E_ARG, "the prompt is not valid UTF-8 at byte %zu", bad);
    return H3_OK;
}

static h3_status check_seconds(double s)
{
    if (s == 0) return H3_OK;
    if (!isfinite(s) || s < 0 || s > 3600)
        return h3_fail(H3_E_ARG, "seconds %g: expected a length above 0, at most 3600", s);
    return H3_OK;
}

h3_status h3_request_check(const h3_request *rq, h3_task task)
{
    h3_noise_order order;
    h3_fit_mode fit;
    double aw, ah;

    H3_TRY(check_prompt(rq, task));
    H3_TRY(check_seconds(rq->seconds));
    H3_TRY(parse_noise_order(&order, rq->noise_order));
    H3_TRY(parse_aspect(&aw, &ah, rq->aspect));
    H3_TRY(h3_parse_fit(&fit, rq->fit));
    if (fit != H3_FIT_REFERENCE && task != H3_FL2VA)
        return h3_fail(H3_E_ARG, "fit %s: only keyframes are fitted, and this is %s", rq->fit,
                       h3_task_name(task));
    if (rq->frames && rq->seconds > 0)
        return h3_fail(H3_E_ARG, "the length is given twice: %d frames and %g seconds", rq->frames,
                       rq->seconds);
    if (rq->frames < 0) return h3_fail(H3_E_ARG, "frames %d: expected a count above 0", rq->frames);
    if ((rq->width > 0) != (rq->height > 0))
        return h3_fail(H3_E_ARG, "width %d, height %d: give both or neither", rq->width,
                       rq->height);
    if (rq->width < 0 || rq->height < 0)
        return h3_fail(H3_E_ARG, "size %dx%d: expected positive numbers", rq->width, rq->height);
    if (rq->n_refs > H3_MAX_CONDITIONS)
        return h3_fail(H3_E_ARG, "%d references: at most 12 are accepted", rq->n_refs);
    if (rq->checkpoint_every < 0)
        return h3_fail(H3_E_ARG, "checkpoint-every %d: expected 0 or more", rq->checkpoint_every);
    if (rq->checkpoint_path && !rq->checkpoint_every && !rq->resume_path)
        return h3_fail(H3_E_ARG, "checkpoint %s: --checkpoint-every says how often it is written",
                       rq->checkpoint_path);
    if (!rq->save_latents && (rq->keep_latents || rq->latents_path))
        return h3_fail(H3_E_ARG, "latents are to be kept and not to be saved at all; leave "
                                 "--no-save-latents out, or --save-latents and --latents");
    if (rq->steps < 0) return h3_fail(H3_E_ARG, "steps %d: expected 0 or more", rq->steps);
    if (!(rq->shift_video >= 0) || !(rq->shift_audio >= 0))
        return h3_fail(H3_E_ARG, "shifts %g and %g: expected 0 or more", rq->shift_video,
                       rq->shift_audio);
    if (rq->n_sigmas < 0 || (rq->n_sigmas && !rq->sigmas))
        return h3_fail(H3_E_ARG, "%d sigmas, but no list of them", rq->n_sigmas);
    if (rq->n_sigmas && rq->steps)
        return h3_fail(H3_E_ARG, "steps and sigmas exclude each other: %d sigmas are %d forwards",
                       rq->n_sigmas, rq->n_sigmas - 1);
    if (!rq->lift_limits &&
        (rq->canvas_short_edge || rq->canvas_max_pixels || rq->reference_short_edge))
        return h3_fail(H3_E_ARG, "canvas and reference edges are the model's own; "
                                 "--lift-limits allows others");
    if (rq->crf < 0 || rq->crf > 51) return h3_fail(H3_E_ARG, "crf %d: expected 0..51", rq->crf);
    return H3_OK;
}

static h3_plan_knobs knobs_of(const h3_request *rq, const h3_engine *e)
{
    h3_plan_knobs k = h3_plan_request_default().knobs;

    if (e && e->model.canvas_short_edge) k.canvas_short_edge = e->model.canvas_short_edge;
    if (e && e->model.canvas_max_pixels) k.canvas_max_pixels = e->model.canvas_max_pixels;
    if (e && e->model.reference_short_edge) k.reference_short_edge = e->model.reference_short_edge;
    if (e && e->model.trained_min_frames) k.trained_min_frames = e->model.trained_min_frames;
    if (e && e->model.trained_max_frames) k.trained_max_frames = e->model.trained_max_frames;
    if (rq->canvas_short_edge > 0) k.canvas_short_edge = rq->canvas_short_edge;
    if (rq->canvas_max_pixels > 0) k.canvas_max_pixels = rq->canvas_max_pixels;
    if (rq->reference_short_edge > 0) k.reference_short_edge = rq->reference_short_edge;
    return k;
}

/* Frames as asked: a count, a length (rounded up), or the default. */
static int64_t frames_asked(const h3_request *rq, const h3_engine *e)
{
    if (rq->frames > 0) return rq->frames;
    if (rq->seconds > 0) return (int64_t)fmax(1, ceil(rq->seconds * H3_FPS - 1e-9));
    return h3_engine_defaults(e).frames;
}

static int64_t frames_aligned(const h3_request *rq, const h3_engine *e)
{
    const int64_t n = h3_frames_align(frames_asked(rq, e));
    return n < H3_MIN_FRAMES ? H3_MIN_FRAMES : n;
}

h3_status h3_sources_load(h3_sources *out, const h3_request *rq, h3_task task, const h3_engine *e)
{
    const h3_plan_knobs k = knobs_of(rq, e);
    const h3_source_rule rule = {
        .n_frames = frames_aligned(rq, e),
        .canvas = {k.canvas_multiple, k.canvas_short_edge, k.canvas_max_pixels},
        .stop = e ? &e->cancel : NULL,
    };
    h3_status st = H3_OK;

    memset(out, 0, sizeof *out);
    if (task == H3_FL2VA) {
        if (has_input(rq->first)) {
            if ((st = h3_source_picture(&out->list[out->n], rq->first, "first keyframe")) != H3_OK)
                goto fail;
            out->has_first = true;
            out->n++;
        }
        if (has_input(rq->last)) {
            if ((st = h3_source_picture(&out->list[out->n], rq->last, "last keyframe")) != H3_OK)
                goto fail;
            out->has_last = true;
            out->n++;
        }
    }
    for (int i = 0; task == H3_REF2VA && i < rq->n_refs; i++) {
        if ((st = h3_source_reference(&out->list[out->n], &rq->refs[i], i + 1, &rule)) != H3_OK)
            goto fail;
        out->n++;
    }
    return H3_OK;

fail:
    h3_sources_free(out);
    return st;
}

void h3_sources_free(h3_sources *s)
{
    for (int i = 0; i < s->n; i++)
        h3_source_free(&s->list[i]);
    s->n = 0;
}

static h3_ref_info info_of(const h3_source *s)
{
    static const h3_ref_kind kinds[] = {H3_REF_IMAGE, H3_REF_VIDEO, H3_REF_AUDIO};
    return (h3_ref_info){.kind = kinds[s->kind],
                         .size = s->file,
                         .n_frames = s->n,
                         .fps = H3_FPS,
                         .has_audio = s->has_audio,
                         .n_samples = s->n_samples,
                         .rate = s->rate};
}

/* A few-step schedule: asked for by name, else the one that came with an adapter. Numbers the
 * caller gives himself win; explicit sigmas cannot be mixed with another schedule. */
static h3_status apply_preset(h3_plan_request *r, h3_preset *p, const h3_request *rq,
                              const h3_engine *e)
{
    if (rq->schedule)
        H3_TRY(h3_preset_load(p, rq->schedule));
    else if (e && e->has_lora_preset)
        *p = e->lora_preset;
    else
        return H3_OK;
    if (rq->schedule && (rq->n_sigmas || rq->steps))
        return h3_fail(H3_E_ARG, "preset %s brings its own steps; leave --steps and --sigmas out",
                       rq->schedule);
    if (!rq->steps && !rq->n_sigmas) {
        if (p->n_steps) r->n_steps = p->n_steps;
        if (p->n_sigmas) {
            r->base_sigmas = p->sigmas;
            r->n_base_sigmas = p->n_sigmas;
        }
    }
    if (!(rq->shift_video > 0) && p->shift_video > 0) r->video_shift = p->shift_video;
    if (!(rq->shift_audio > 0) && p->shift_audio > 0) r->audio_shift = p->shift_audio;
    return H3_OK;
}

h3_status h3_request_plan(h3_plan **out, const h3_request *rq, h3_task task, const h3_sources *s,
                          const h3_engine *e)
{
    const h3_defaults def = h3_engine_defaults(e);
    h3_ref_info refs[H3_MAX_CONDITIONS];
    h3_plan_request r = h3_plan_request_default();
    h3_preset preset; // r may point into it

    r.task = task;
    r.knobs = knobs_of(rq, e);
    r.canvas = (h3_size){rq->width, rq->height};
    H3_TRY(parse_aspect(&r.aspect_w, &r.aspect_h, rq->aspect));
    if (!rq->width && !rq->aspect && task != H3_FL2VA && def.width)
        r.canvas = (h3_size){def.width, def.height};
    r.n_frames = frames_asked(rq, e);
    if (s->has_first) r.first = s->list[0].file;
    if (s->has_last) r.last = s->list[s->has_first ? 1 : 0].file;
    for (int i = 0; task == H3_REF2VA && i < s->n; i++)
        refs[i] = info_of(&s->list[i]);
    r.references = refs;
    r.n_references = task == H3_REF2VA ? s->n : 0;
    r.n_steps = rq->steps > 0 ? rq->steps : def.steps;
    if (rq->shift_video > 0) r.video_shift = rq->shift_video;
    if (rq->shift_audio > 0) r.audio_shift = rq->shift_audio;
    r.base_sigmas = rq->sigmas;
    r.n_base_sigmas = rq->n_sigmas;
    H3_TRY(apply_preset(&r, &preset, rq, e));
    r.seed = rq->seed;
    H3_TRY(parse_noise_order(&r.noise_order, rq->noise_order));
    H3_TRY(h3_plan_create(out, &r));
    h3_tags_warn(*out, rq->prompt);
    return H3_OK;
}
