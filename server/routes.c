/** The table of routes and what creates, lists and ends jobs; see http.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "content.h"
#include "events.h"
#include "http.h"
#include "metrics.h"
#include "object.h"
#include "page.h"
#include "worker.h"

enum { CANCEL_WAIT = 5, DELETE_WAIT = 20, KEY_MAX = 255 };

/* ---------------------------------------------------------------------------------- making jobs */

static enum MHD_Result answer_job(srv_req *r, unsigned status, const srv_job *j)
{
    json_t *o = srv_video_json(r->s, j);
    char *text = json_dumps(o, SRV_JSON), ms[16];
    struct MHD_Response *a;

    json_decref(o);
    if (!text) return MHD_NO;
    a = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!a) {
        free(text);
        return MHD_NO;
    }
    srv_add_header(a, "Content-Type", "application/json");
    if (!srv_is_final(j->status)) {
        snprintf(ms, sizeof ms, "%d", srv_poll_after_ms(r->s, j));
        srv_add_header(a, "openai-poll-after-ms", ms);
    }
    return srv_answer(r, status, a);
}

/* What makes two requests the same: fields, prompt, bytes of the files. A seed that was drawn for
 * the request is not part of it. */
static uint64_t hash_request(const srv_params *p, const srv_body *b, const char *from)
{
    json_t *copy = json_copy(p->params);
    uint64_t h = SRV_FNV;
    char *text;

    if (json_is_true(json_object_get(copy, "seed_is_random"))) json_object_del(copy, "seed");
    text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(copy);
    if (text) h = srv_fnv(h, text, strlen(text));
    h = srv_fnv(h, p->prompt, strlen(p->prompt) + 1);
    for (int i = 0; i < b->n_uploads; i++)
        h = srv_fnv(h, &b->upload[i].hash, sizeof b->upload[i].hash);
    if (from) h = srv_fnv(h, from, strlen(from));
    free(text);
    return h;
}

/* Moves the uploads to the job's folder, durably, before the job exists. */
static bool settle_files(srv_req *r, srv_job *j)
{
    srv_body *b = &r->body;
    char *dir;
    bool is_ok;

    if (!b->is_dir_made) return true;
    if (!srv_body_sync(b)) return false;
    dir = srv_job_dir(r->s, j->id);
    is_ok = rename(b->dir, dir) == 0 && srv_sync_dir(r->s->jobs_dir);
    if (is_ok) {
        b->is_dir_made = false; // not the body's to remove any more
        j->bytes = srv_tree_bytes(dir);
    } else {
        srv_error("%s: %s", dir, strerror(errno));
        b->fault.is_final = true;
        srv_fault_set(&b->fault, 507, "storage_full", NULL, "the server could not keep the upload");
    }
    free(dir);
    return is_ok;
}

static bool queue_fault(srv_req *r, srv_result st)
{
    srv_fault *f = &r->body.fault;
    double mean;

    switch (st) {
    case SRV_FULL:
        pthread_mutex_lock(&r->s->metrics.lock);
        mean = r->s->mean_job_seconds;
        pthread_mutex_unlock(&r->s->metrics.lock);
        f->retry_after = mean < 1 ? 1 : mean > 60 ? 60 : (int)mean;
        atomic_fetch_add(&r->s->metrics.rejected_full, 1);
        return srv_fault_set(f, 429, "queue_full", NULL,
                             "%d videos are waiting already; try again later",
                             r->s->opts.max_queue);
    case SRV_KEY_REUSED:
        return srv_fault_set(f, 422, "idempotency_key_reused", NULL,
                             "this Idempotency-Key was used for another request");
    case SRV_NO_SPACE:
        f->is_final = true;
        return srv_fault_set(f, 507, "storage_full", NULL, "the server's disk is full");
    default:
        f->is_final = true;
        return srv_fault_set(f, 500, "internal_error", NULL,
                             "the job database failed; see the server's log");
    }
}

/* Printable ASCII, so that it can stand in the database and in a log. */
static bool is_key(const char *key)
{
    const size_t n = strlen(key);

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] < 0x20 || (unsigned char)key[i] > 0x7e) return false;
    return n > 0 && n <= KEY_MAX;
}

/* Checks, keeps the files, stores the job: after this it is accepted. False: r->body.fault. */
static bool make_job(srv_req *r, srv_params *p, const char *from, srv_job *j)
{
    srv *s = r->s;
    const char *key = srv_header(r, "Idempotency-Key");
    const uint64_t hash = hash_request(p, &r->body, from);
    srv_result st;
    char *dir;

    memset(j, 0, sizeof *j);
    if (key && !is_key(key))
        return srv_fault_set(&r->body.fault, 400, "invalid_headers", "Idempotency-Key",
                             "Idempotency-Key: expected 1 to %d characters of ASCII", KEY_MAX);
    if (!srv_check_job(s, p, r->body.dir, j, &r->body.fault)) return false;
    json_object_del(p->params, "seed_is_random");
    memcpy(j->id, r->new_id, sizeof j->id);
    j->created = srv_unix();
    j->model = srv_copy(s->model_name);
    j->prompt = srv_copy(p->prompt);
    j->params = json_dumps(p->params, JSON_COMPACT);
    j->inputs = json_dumps(p->inputs, JSON_COMPACT);
    j->remixed_from = srv_copy(from);
    if (!j->params || !j->inputs || !settle_files(r, j)) return false;
    st = srv_store_create(s->store, j, s->opts.max_queue, key, hash);
    if (st == SRV_OK) {
        srv_hub_ring(&s->hub);
        return true;
    }
    dir = srv_job_dir(s, r->new_id);
    srv_remove_tree(dir);
    free(dir);
    return st == SRV_REPLAYED ? true : queue_fault(r, st);
}

static bool read_job(srv_req *r, srv_job *j)
{
    const srv_limits lim = {r->s->model_name, r->s->opts.max_seconds, r->s->opts.max_pixels,
                            r->s->opts.max_steps};
    srv_params p;
    bool is_ok;

    memset(j, 0, sizeof *j);
    pthread_mutex_lock(&r->s->ready_lock);
    is_ok = r->s->is_ready;
    pthread_mutex_unlock(&r->s->ready_lock);
    if (!is_ok) {
        r->body.fault.retry_after = 5;
        return srv_fault_set(&r->body.fault, 503, "model_loading", NULL,
                             "the model is being loaded; try again in a moment");
    }
    is_ok = srv_params_read(&p, &r->body, &lim) && make_job(r, &p, NULL, j);
    srv_params_free(&p);
    return is_ok;
}

static enum MHD_Result create(srv_req *r)
{
    srv_job j;
    enum MHD_Result ok;

    ok = read_job(r, &j) ? answer_job(r, 200, &j) : srv_answer_fault(r, &r->body.fault);
    srv_job_free(&j);
    return ok;
}

/* --------------------------------------------------------------------------------------- ending */

/* Asks for the end of a job and waits, at most `seconds`, until no device works on it. *j becomes
 * its newest state. */
static srv_result end_job(srv *s, const char *id, double seconds, srv_job *j)
{
    const double until = srv_now() + seconds;
    srv_result st = srv_store_cancel_queued(s->store, id, srv_expiry(s));
    srv_live live;

    if (st == SRV_NO_JOB) { // not queued
        st = srv_store_ask_cancel(s->store, id);
        if (st == SRV_OK) {
            srv_workers_cancel(s, id);
            while (srv_now() < until && !srv_hub_is_stopping(&s->hub)) {
                const uint64_t seen = srv_hub_version(&s->hub);
                srv_result now = srv_store_get(s->store, id, j);
                const bool is_over = now != SRV_OK || srv_is_final(j->status);
                if (now == SRV_OK) srv_job_free(j);
                if (is_over && !srv_hub_get(&s->hub, id, &live)) break;
                srv_hub_wait(&s->hub, seen, 0.5);
            }
        }
    }
    srv_hub_ring(&s->hub);
    if (st == SRV_NO_SPACE || st == SRV_BROKEN) return st;
    return srv_store_get(s->store, id, j);
}

static enum MHD_Result cancel(srv_req *r)
{
    enum MHD_Result ok;
    srv_job j;
    srv_result st = srv_store_get(r->s->store, r->id, &j);

    if (st != SRV_OK) return srv_answer_store(r, st);
    if (j.status == SRV_COMPLETED || j.status == SRV_FAILED) {
        ok = srv_answer_error(r, 409, "video_finished", NULL, "the video is %s already",
                              srv_status_name(j.status));
        srv_job_free(&j);
        return ok;
    }
    srv_job_free(&j);
    st = end_job(r->s, r->id, CANCEL_WAIT, &j);
    if (st != SRV_OK) return srv_answer_store(r, st);
    ok = answer_job(r, 200, &j);
    srv_job_free(&j);
    return ok;
}

static enum MHD_Result delete_job(srv_req *r)
{
    srv *s = r->s;
    srv_job j;
    srv_result st = srv_store_get(s->store, r->id, &j);
    char *dir;

    if (st != SRV_OK) return srv_answer_store(r, st);
    if (!srv_is_final(j.status)) {
        srv_job_free(&j);
        st = end_job(s, r->id, DELETE_WAIT, &j);
        if (st != SRV_OK) return srv_answer_store(r, st);
    }
    if (!srv_is_final(j.status)) {
        srv_job_free(&j);
        return srv_answer_error(r, 409, "cancellation_in_progress", NULL,
                                "the video is being stopped; delete it again in a moment");
    }
    srv_job_free(&j);
    st = srv_store_delete(s->store, r->id);
    if (st != SRV_OK) return srv_answer_store(r, st);
    dir = srv_job_dir(s, r->id);
    srv_remove_tree(dir);
    free(dir);
    srv_hub_ring(&s->hub);
    return srv_answer_json(
        r, 200, json_pack("{s:s, s:s, s:b}", "id", r->id, "object", "video.deleted", "deleted", 1));
}

/* ----------------------------------------------------------------------------------------- sync */

/* The job runs like any other; this request waits for it. A client that goes away takes its job
 * with it: nobody else knows of it. */
static enum MHD_Result create_sync(srv_req *r)
{
    srv *s = r->s;
    enum MHD_Result ok = MHD_NO;
    const double until = srv_now() + s->opts.sync_seconds;
    bool is_over = false, is_mine;
    srv_job j;
    srv_result st = SRV_OK;

    if (!read_job(r, &j)) {
        srv_job_free(&j);
        return srv_answer_fault(r, &r->body.fault);
    }
    is_mine = strcmp(j.id, r->new_id) == 0; // not one that an idempotency key found
    memcpy(r->id, j.id, sizeof r->id);
    while (!is_over && srv_now() < until && !srv_hub_is_stopping(&s->hub)) {
        const uint64_t seen = srv_hub_version(&s->hub);
        srv_job_free(&j);
        st = srv_store_get(s->store, r->id, &j);
        is_over = st != SRV_OK || srv_is_final(j.status);
        if (!is_over && srv_is_gone(r)) {
            srv_job_free(&j);
            if (is_mine && end_job(s, r->id, 0, &j) == SRV_OK) srv_job_free(&j);
            return MHD_NO;
        }
        if (!is_over) srv_hub_wait(&s->hub, seen, 1.0);
    }
    if (st != SRV_OK)
        return srv_answer_store(r, st);
    else if (j.status == SRV_COMPLETED)
        ok = srv_content_of(r, &j);
    else if (j.status == SRV_FAILED)
        ok = srv_answer_error(r, 422, j.error_code ? j.error_code : "video_failed", NULL, "%s",
                              j.error_message ? j.error_message : "the video failed");
    else if (j.status == SRV_CANCELLED)
        ok = srv_answer_error(r, 409, "video_cancelled", NULL, "the video was cancelled");
    else
        ok = answer_job(r, 202, &j); // too long for one request: the client can go on by polling
    srv_job_free(&j);
    return ok;
}

/* ---------------------------------------------------------------------------------------- remix */

/* Old settings, with what the request says in their place. */
static json_t *merge_params(const json_t *old, const json_t *given)
{
    static const char *const pairs[][2] = {
        {"frames", "seconds"}, {"seconds", "frames"}, {"aspect", "width"}, {"aspect", "height"},
        {"width", "aspect"},   {"height", "aspect"},  {"steps", "sigmas"}, {"sigmas", "steps"}};
    json_t *out = json_copy((json_t *)(uintptr_t)old), *v;
    const bool is_drawn = json_is_true(json_object_get(given, "seed_is_random"));
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)given, key, v)
    {
        if (strcmp(key, "task") == 0 || strcmp(key, "seed_is_random") == 0) continue;
        if (is_drawn && strcmp(key, "seed") == 0) continue;
        json_object_set(out, key, v);
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (strcmp(key, pairs[i][0]) == 0) json_object_del(out, pairs[i][1]);
    }
    return out;
}

/* The inputs of the source become inputs of the new job: links, not copies, where that works. */
static bool link_inputs(srv_req *r, const srv_job *source, const json_t *inputs)
{
    char *dir = srv_job_dir(r->s, source->id);
    bool is_ok = true;
    json_t *o;
    size_t i;

    if (json_array_size(inputs) && mkdir(r->body.dir, 0700) == 0) r->body.is_dir_made = true;
    json_array_foreach((json_t *)(uintptr_t)inputs, i, o)
    {
        const char *file = srv_json_str(o, "file");
        char *from = srv_text("%s/%s", dir, file), *to = srv_text("%s/%s", r->body.dir, file);
        is_ok = is_ok && srv_copy_file(from, to);
        free(from);
        free(to);
    }
    free(dir);
    if (is_ok) return true;
    r->body.fault.is_final = true;
    return srv_fault_set(&r->body.fault, 507, "storage_full", NULL,
                         "the inputs of the video could not be taken over");
}

static bool remix_job(srv_req *r, const srv_job *source, srv_job *j)
{
    const srv_limits lim = {r->s->model_name, r->s->opts.max_seconds, r->s->opts.max_pixels,
                            r->s->opts.max_steps};
    srv_params p;
    json_t *old = json_loads(source->params, 0, NULL), *merged;
    bool is_ok = srv_params_read(&p, &r->body, &lim);

    if (is_ok && json_array_size(p.inputs))
        is_ok = srv_fault_set(&r->body.fault, 400, "unsupported_field", "input_reference",
                              "a remix keeps the inputs of its source");
    if (is_ok) {
        merged = merge_params(old, p.params);
        json_decref(p.params);
        json_decref(p.inputs);
        p.params = merged;
        p.inputs = json_loads(source->inputs, 0, NULL);
        is_ok = link_inputs(r, source, p.inputs) && make_job(r, &p, source->id, j);
    }
    json_decref(old);
    srv_params_free(&p);
    return is_ok;
}

static enum MHD_Result remix(srv_req *r)
{
    srv_job source, j;
    enum MHD_Result ok;
    const srv_result st = srv_store_get(r->s->store, r->id, &source);

    if (st != SRV_OK) return srv_answer_store(r, st);
    memset(&j, 0, sizeof j);
    ok = remix_job(r, &source, &j) ? answer_job(r, 200, &j) : srv_answer_fault(r, &r->body.fault);
    srv_job_free(&j);
    srv_job_free(&source);
    return ok;
}

/* --------------------------------------------------------------------------------------- reading
 */

static enum MHD_Result get(srv_req *r)
{
    enum MHD_Result ok;
    srv_job j;
    const srv_result st = srv_store_get(r->s->store, r->id, &j);

    if (st != SRV_OK) return srv_answer_store(r, st);
    ok = answer_job(r, 200, &j);
    srv_job_free(&j);
    return ok;
}

static json_t *id_or_null(const srv_job *list, int i, int n)
{
    return n ? json_string(list[i].id) : json_null();
}

static enum MHD_Result list(srv_req *r)
{
    const char *after = srv_query(r, "after"), *order = srv_query(r, "order");
    const char *limit = srv_query(r, "limit");
    json_t *data, *o;
    srv_job *jobs = NULL;
    bool has_more = false;
    char *end = NULL;
    long most = 20;
    int n = 0;
    srv_result st;

    if (limit) most = strtol(limit, &end, 10);
    if ((limit && (!*limit || *end)) || most < 1 || most > 100)
        return srv_answer_error(r, 400, "invalid_value", "limit", "limit: expected 1 to 100");
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return srv_answer_error(r, 400, "invalid_value", "order", "order: expected asc or desc");
    if (after && !*after) after = NULL;
    if (after && !srv_is_id(after))
        return srv_answer_error(r, 400, "invalid_value", "after", "after: expected a video's id");
    st = srv_store_list(r->s->store, after, (int)most, !order || strcmp(order, "desc") == 0, &jobs,
                        &n, &has_more);
    if (st != SRV_OK) return srv_answer_store(r, st);
    data = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(data, srv_video_json(r->s, &jobs[i]));
    o = json_pack("{s:s, s:o, s:o, s:o, s:b}", "object", "list", "data", data, "first_id",
                  id_or_null(jobs, 0, n), "last_id", id_or_null(jobs, n - 1, n), "has_more",
                  has_more);
    while (n)
        srv_job_free(&jobs[--n]);
    free(jobs);
    return srv_answer_json(r, 200, o);
}

/* ---------------------------------------------------------------------------------------- table */

const srv_route srv_routes[] = {
    {"POST", "/v1/videos", create, SRV_BODY},
    {"GET", "/v1/videos", list, 0},
    {"POST", "/v1/videos/sync", create_sync, SRV_BODY},
    {"GET", "/v1/videos/{id}", get, 0},
    {"DELETE", "/v1/videos/{id}", delete_job, 0},
    {"GET", "/v1/videos/{id}/content", srv_content, 0},
    {"GET", "/v1/videos/{id}/events", srv_events, 0},
    {"POST", "/v1/videos/{id}/cancel", cancel, 0},
    {"POST", "/v1/videos/{id}/remix", remix, SRV_BODY},
    {"GET", "/v1/models", srv_models, 0},
    {"GET", "/v1/models/{model}", srv_model, 0},
    {"GET", "/health", srv_health, SRV_OPEN},
    {"GET", "/ready", srv_ready, SRV_OPEN},
    {"GET", "/metrics", srv_metrics_text, 0},
    {"GET", "/", srv_page, SRV_OPEN | SRV_STATIC},
    {"GET", "/app.css", srv_page, SRV_OPEN | SRV_STATIC},
    {"GET", "/app.js", srv_page, SRV_OPEN | SRV_STATIC},
    {"GET", "/icon.svg", srv_page, SRV_OPEN | SRV_STATIC},
    {"GET", "/openapi.json", srv_page, SRV_OPEN | SRV_STATIC},
};
const int srv_n_routes = sizeof srv_routes / sizeof *srv_routes;
