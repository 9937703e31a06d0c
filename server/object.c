/** See object.h. */
#include "object.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_time(json_t *o, const char *key, int64_t t)
{
    json_object_set_new(o, key, t ? json_integer(t) : json_null());
}

static void set_text(json_t *o, const char *key, const char *text)
{
    json_t *v = text ? json_string(text) : json_null();
    json_object_set_new(o, key, v ? v : json_null());
}

int srv_progress(const srv_job *j, const srv_live *l)
{
    if (j->status == SRV_COMPLETED) return 100;
    if (!l) return 0;
    return l->progress >= 0.99 ? 99 : (int)(l->progress * 100);
}

/* "5.167": the true length, as text like OpenAI's. */
static void set_size(json_t *o, const srv_job *j)
{
    char text[32] = "";

    if (j->width) snprintf(text, sizeof text, "%dx%d", j->width, j->height);
    set_text(o, "size", *text ? text : NULL);
    snprintf(text, sizeof text, "%.3f", j->frames / 24.0);
    for (size_t n = strlen(text); n && (text[n - 1] == '0' || text[n - 1] == '.'); n--) {
        const bool is_point = text[n - 1] == '.';
        text[n - 1] = '\0';
        if (is_point) break;
    }
    set_text(o, "seconds", j->frames ? text : NULL);
}

/* Seconds to the end of the whole job, at the pace of the phase that runs; < 0: not known yet. */
static double time_left(const srv_live *l)
{
    const double done = l->progress - l->phase_from, spent = srv_now() - l->phase_since;

    return done > 0 && l->phase_since > 0 ? spent / done * (1 - l->progress) : -1;
}

static void set_live(json_t *o, const srv_live *l)
{
    const double left = time_left(l);

    json_object_set_new(o, "phase", json_string(l->phase));
    json_object_set_new(o, "step", json_integer(l->step));
    json_object_set_new(o, "steps_in_phase", json_integer(l->steps));
    json_object_set_new(o, "step_seconds",
                        l->step_seconds > 0 ? json_real(l->step_seconds) : json_null());
    json_object_set_new(o, "eta_seconds",
                        left >= 0 ? json_real(round(left * 10) / 10) : json_null());
    json_object_set_new(o, "cancel_requested", json_boolean(l->is_cancelling));
}

static void set_result(json_t *o, const srv_job *j)
{
    json_t *r = json_loads(j->result, 0, NULL), *warnings;

    json_object_set_new(o, "media_type", json_string("video/mp4"));
    json_object_set_new(o, "file_name", json_pack("s+", j->id, ".mp4"));
    json_object_set_new(o, "inference_time_s", json_real(srv_json_num(r, "seconds")));
    json_object_set(o, "stage_durations", json_object_get(r, "stages"));
    json_object_set_new(
        o, "peak_memory_mb",
        json_real((double)(srv_json_int(r, "peak_device") > 0 ? srv_json_int(r, "peak_device")
                                                              : srv_json_int(r, "peak_rss")) /
                  1048576.0));
    json_object_set(o, "latents", json_object_get(r, "latents"));
    json_decref(r);
    warnings = j->warnings ? json_loads(j->warnings, 0, NULL) : NULL;
    json_object_set_new(o, "warnings", warnings ? warnings : json_array());
}

json_t *srv_video_json(srv *s, const srv_job *j)
{
    json_t *o = json_object(), *params = j->params ? json_loads(j->params, 0, NULL) : NULL;
    json_t *inputs = j->inputs ? json_loads(j->inputs, 0, NULL) : NULL;
    srv_live live;
    const bool is_live = j->status == SRV_RUNNING && srv_hub_get(&s->hub, j->id, &live);

    set_text(o, "id", j->id);
    set_text(o, "object", "video");
    set_text(o, "model", j->model);
    set_text(o, "status", srv_status_name(j->status));
    json_object_set_new(o, "progress", json_integer(srv_progress(j, is_live ? &live : NULL)));
    set_time(o, "created_at", j->created);
    set_time(o, "started_at", j->started);
    set_time(o, "completed_at", j->completed);
    set_time(o, "expires_at", j->expires);
    set_text(o, "prompt", j->prompt);
    set_size(o, j);
    set_text(o, "remixed_from_video_id", j->remixed_from);
    json_object_set_new(o, "error",
                        j->error_code ? json_pack("{s:s, s:s}", "code", j->error_code, "message",
                                                  j->error_message ? j->error_message : "")
                                      : json_null());
    set_text(o, "task", srv_json_str(params, "task"));
    json_object_set(o, "seed", json_object_get(params, "seed"));
    json_object_set_new(o, "width", j->width ? json_integer(j->width) : json_null());
    json_object_set_new(o, "height", j->height ? json_integer(j->height) : json_null());
    json_object_set_new(o, "frames", j->frames ? json_integer(j->frames) : json_null());
    json_object_set_new(o, "fps", json_integer(24));
    json_object_set_new(o, "steps", j->steps ? json_integer(j->steps) : json_null());
    json_object_set_new(o, "inputs", json_integer((json_int_t)json_array_size(inputs)));
    if (j->status == SRV_QUEUED)
        json_object_set_new(o, "queue_position",
                            json_integer(srv_store_ahead(s->store, j->seq) + 1));
    if (is_live) set_live(o, &live);
    if (j->status == SRV_COMPLETED && j->result) set_result(o, j);
    json_decref(params);
    json_decref(inputs);
    return o;
}

int srv_poll_after_ms(srv *s, const srv_job *j)
{
    double left = 1;
    srv_live live;

    if (j->status == SRV_RUNNING && srv_hub_get(&s->hub, j->id, &live)) {
        left = time_left(&live);
        if (left < 0) left = srv_now() - live.since; // at least as long again
    } else if (j->status == SRV_QUEUED) {
        pthread_mutex_lock(&s->metrics.lock);
        left = s->mean_job_seconds;
        pthread_mutex_unlock(&s->metrics.lock);
        left *= srv_store_ahead(s->store, j->seq) + 1;
    }
    left *= 100; // a tenth, in milliseconds
    return left < 250 ? 250 : left > 10000 ? 10000 : (int)left;
}
