/** The plan as JSON: what `h3av plan` prints and the first event of every run. */
#include <stdio.h>
#include <stdlib.h>

#include "job.h"

static json_t *numbers(const float *x, int n)
{
    json_t *a = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(a, json_real((double)x[i]));
    return a;
}

static json_t *axis(const h3_tile_axis *a)
{
    json_t *o = json_pack("{s:I, s:I}", "tiles", (json_int_t)a->n, "tile", (json_int_t)a->tile);
    json_t *starts = json_array(), *overlaps = json_array();

    for (int64_t i = 0; i < a->n; i++) {
        json_array_append_new(starts, json_integer(h3_tile_start(a, i)));
        if (i + 1 < a->n) json_array_append_new(overlaps, json_integer(h3_tile_overlap(a, i)));
    }
    json_object_set_new(o, "starts", starts);
    json_object_set_new(o, "overlaps", overlaps);
    return o;
}

static const char *kind_name(h3_condition_kind k)
{
    static const char *const names[] = {"first keyframe", "last keyframe", "picture", "clip",
                                        "sound"};
    return names[k];
}

/* The labels the prompt may use: counters run per kind, a clip with sound has two. */
static json_t *labels(const h3_condition *c, int *n_picture, int *n_video, int *n_audio)
{
    json_t *a = json_array();
    char text[40];

    if (c->shape.n_audio > 0) {
        snprintf(text, sizeof text, "<Audio %d>", ++*n_audio);
        json_array_append_new(a, json_string(text));
    }
    if (c->shape.kind == H3_COND_VIDEO)
        snprintf(text, sizeof text, "<Video %d>", ++*n_video);
    else if (c->shape.kind != H3_COND_AUDIO)
        snprintf(text, sizeof text, "<Picture %d>", ++*n_picture);
    if (c->shape.kind != H3_COND_AUDIO) json_array_append_new(a, json_string(text));
    return a;
}

static json_t *conditions(const h3_plan *p, const h3_sources *s)
{
    int n_picture = 0, n_video = 0, n_audio = 0;
    json_t *list = json_array();

    for (int i = 0; i < p->n_conditions; i++) {
        const h3_condition *c = &p->conditions[i];
        const int at = p->task == H3_REF2VA ? c->source : i;
        json_t *o = json_object();
        if (at < s->n && s->list[at].name)
            json_object_set_new(o, "file", json_string(s->list[at].name));
        json_object_set_new(o, "kind", json_string(kind_name(c->shape.kind)));
        json_object_set_new(o, "labels", labels(c, &n_picture, &n_video, &n_audio));
        if (c->shape.kind != H3_COND_AUDIO) {
            json_object_set_new(o, "source",
                                json_pack("[I,I]", (json_int_t)c->fit.source.width,
                                          (json_int_t)c->fit.source.height));
            json_object_set_new(o, "resize",
                                json_pack("[I,I]", (json_int_t)c->fit.resize.width,
                                          (json_int_t)c->fit.resize.height));
            json_object_set_new(o, "canvas",
                                json_pack("[I,I]", (json_int_t)c->fit.canvas.width,
                                          (json_int_t)c->fit.canvas.height));
            json_object_set_new(o, "latent",
                                json_pack("[I,I,I]", (json_int_t)c->shape.t, (json_int_t)c->shape.h,
                                          (json_int_t)c->shape.w));
        }
        if (c->shape.kind == H3_COND_VIDEO) {
            json_object_set_new(o, "frames", json_integer(c->n_frames));
            json_object_set_new(o, "frames_encoded", json_integer(c->n_encoded));
            json_object_set_new(o, "frames_seen", json_integer(c->samples.n));
        }
        if (c->shape.n_audio > 0) {
            json_object_set_new(o, "samples", json_integer(c->n_resampled));
            json_object_set_new(o, "audio_latents", json_integer(c->shape.n_audio));
        }
        json_array_append_new(list, o);
    }
    return list;
}

json_t *h3_json_seed(uint64_t seed)
{
    char text[24];

    if (seed <= INT64_MAX) return json_integer((json_int_t)seed);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    return json_string(text);
}

json_t *h3_plan_describe(const h3_plan *p, const h3_sources *s, const h3_request *rq)
{
    json_t *o = json_object(), *notes = json_array();

    json_object_set_new(o, "task", json_string(h3_task_name(p->task)));
    json_object_set_new(o, "width", json_integer(p->canvas.width));
    json_object_set_new(o, "height", json_integer(p->canvas.height));
    json_object_set_new(o, "frames", json_integer(p->n_frames));
    json_object_set_new(o, "seconds", json_real(p->seconds));
    json_object_set_new(o, "fps", json_integer(H3_FPS));
    json_object_set_new(o, "samples", json_integer(p->n_samples));
    json_object_set_new(o, "sample_rate", json_integer(H3_AUDIO_RATE));
    json_object_set_new(o, "latent",
                        json_pack("[I,I,I,I]", (json_int_t)H3_VIDEO_CHANNELS,
                                  (json_int_t)p->latent.t, (json_int_t)p->latent.h,
                                  (json_int_t)p->latent.w));
    json_object_set_new(o, "audio_latents", json_integer(p->n_audio));
    json_object_set_new(o, "media_rows", json_integer(p->n_media_rows));
    json_object_set_new(o, "seed", h3_json_seed(p->seed));
    json_object_set_new(o, "noise_order",
                        json_string(p->noise_order == H3_NOISE_RESTART ? "omni" : "diffusers"));
    json_object_set_new(o, "steps", json_integer(p->video.n_sigmas));
    json_object_set_new(o, "forwards", json_integer(p->n_forwards));
    json_object_set_new(o, "sigmas", numbers(p->video.sigmas, p->video.n_sigmas));
    json_object_set_new(o, "audio_sigmas", numbers(p->audio.sigmas, p->audio.n_sigmas));
    json_object_set_new(o, "decode",
                        json_pack("{s:o, s:o, s:I, s:I}", "x", axis(&p->tiles_x), "y",
                                  axis(&p->tiles_y), "clips", (json_int_t)p->clips.n_clips,
                                  "tile_passes",
                                  (json_int_t)(p->tiles_x.n * p->tiles_y.n * p->clips.n_clips)));
    json_object_set_new(o, "conditions", conditions(p, s));
    for (int i = 0; i < p->n_warnings; i++)
        json_array_append_new(notes, json_string(p->warnings[i].text));
    json_object_set_new(o, "warnings", notes);
    if (rq->prompt) json_object_set_new(o, "prompt", json_string(rq->prompt));
    return o;
}
