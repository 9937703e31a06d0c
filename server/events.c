/** See events.h. */
#include "events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "object.h"

#define HEARTBEAT 8.0 // seconds; the contract says at most 10
enum { LEAST_PAUSE_US = 100000 };

typedef struct stream {
    srv *s;
    char id[SRV_ID_LEN];
    char *text; // what is to be sent
    size_t n_text, sent;
    uint64_t seen, preview_seen;
    int last_status;
    char *last_progress;
    bool is_first, is_done;
} stream;

static void put(stream *t, const char *event, json_t *data)
{
    char *json = json_dumps(data, SRV_JSON), *grown;
    const size_t n = json ? strlen(json) + strlen(event) + 24 : 0;

    json_decref(data);
    if (!json) return;
    grown = realloc(t->text, t->n_text + n);
    if (grown) {
        t->text = grown;
        t->n_text +=
            (size_t)snprintf(t->text + t->n_text, n, "event: %s\ndata: %s\n\n", event, json);
    }
    free(json);
}

/* Time runs on by itself: an event is due when something else has changed. */
static void put_progress(stream *t, const json_t *video)
{
    static const char *const keys[] = {"id",           "status",         "progress",
                                       "phase",        "step",           "steps_in_phase",
                                       "step_seconds", "queue_position", "cancel_requested"};
    json_t *o = json_object(), *eta = json_object_get(video, "eta_seconds");
    char *text;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(video, keys[i]))
            json_object_set(o, keys[i], json_object_get(video, keys[i]));
    text = json_dumps(o, JSON_COMPACT);
    if (text && (!t->last_progress || strcmp(text, t->last_progress) != 0)) {
        if (eta) json_object_set(o, "eta_seconds", eta);
        put(t, "progress", json_incref(o));
        free(t->last_progress);
        t->last_progress = text;
    } else {
        free(text);
    }
    json_decref(o);
}

/* Looks at the job and writes what is new about it. */
static void look(stream *t)
{
    srv_job j;
    json_t *video;
    char *png;
    const srv_result r = srv_store_get(t->s->store, t->id, &j);

    if (r != SRV_OK) {
        put(t, "done",
            json_pack("{s:s, s:s, s:b}", "id", t->id, "object", "video.deleted", "deleted", 1));
        t->is_done = true;
        return;
    }
    video = srv_video_json(t->s, &j);
    if ((int)j.status != t->last_status) {
        t->last_status = (int)j.status;
        if (!srv_is_final(j.status)) put(t, "status", json_incref(video));
    }
    if (srv_is_final(j.status)) {
        put(t, "done", json_incref(video));
        t->is_done = true;
    } else {
        put_progress(t, video);
        png = srv_hub_preview(&t->s->hub, t->id, t->preview_seen, &t->preview_seen);
        if (png)
            put(t, "preview",
                json_pack("{s:I, s:s}", "number", (json_int_t)t->preview_seen, "png", png));
        free(png);
    }
    json_decref(video);
    srv_job_free(&j);
}

/* Waits until there is something to say; a comment when there is not. */
static void refill(stream *t)
{
    const double start = srv_now();

    t->n_text = t->sent = 0;
    if (t->is_first)
        t->is_first = false;
    else
        usleep(LEAST_PAUSE_US); // changes that come in a burst are told once
    for (;;) {
        const uint64_t now = srv_hub_version(&t->s->hub);
        look(t);
        t->seen = now;
        if (t->n_text || t->is_done || srv_hub_is_stopping(&t->s->hub)) return;
        const double left = HEARTBEAT - (srv_now() - start);
        if (left <= 0) break;
        srv_hub_wait(&t->s->hub, t->seen, left);
    }
    free(t->text);
    t->text = srv_copy(": keep-alive\n\n");
    t->n_text = strlen(t->text);
}

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max)
{
    stream *t = user;
    size_t n;

    (void)pos;
    if (t->sent == t->n_text) {
        if (t->is_done || srv_hub_is_stopping(&t->s->hub)) return MHD_CONTENT_READER_END_OF_STREAM;
        refill(t);
        if (t->n_text == 0) return MHD_CONTENT_READER_END_OF_STREAM;
    }
    n = t->n_text - t->sent;
    if (n > max) n = max;
    memcpy(buf, t->text + t->sent, n);
    t->sent += n;
    return (ssize_t)n;
}

static void free_stream(void *user)
{
    stream *t = user;

    atomic_fetch_sub(&t->s->n_streams, 1);
    free(t->text);
    free(t->last_progress);
    free(t);
}

enum MHD_Result srv_events(srv_req *r)
{
    struct MHD_Response *a;
    srv_job j;
    const srv_result st = srv_store_get(r->s->store, r->id, &j);
    stream *t;

    if (st != SRV_OK) return srv_answer_store(r, st);
    srv_job_free(&j);
    if (atomic_fetch_add(&r->s->n_streams, 1) >= r->s->opts.max_streams) {
        srv_fault f = {.retry_after = 5};
        atomic_fetch_sub(&r->s->n_streams, 1);
        srv_fault_set(&f, 429, "too_many_streams", NULL, "the server has %d event streams open",
                      r->s->opts.max_streams);
        return srv_answer_fault(r, &f);
    }
    t = calloc(1, sizeof *t);
    a = t ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_stream, t, free_stream)
          : NULL;
    if (!a) {
        free(t);
        atomic_fetch_sub(&r->s->n_streams, 1);
        return MHD_NO;
    }
    t->s = r->s;
    memcpy(t->id, r->id, sizeof t->id);
    t->last_status = -1;
    t->is_first = true;
    atomic_fetch_add(&r->s->metrics.streams_opened, 1);
    srv_add_header(a, "Content-Type", "text/event-stream");
    srv_add_header(a, "X-Accel-Buffering", "no"); // nginx must not collect events
    return srv_answer(r, 200, a);
}
