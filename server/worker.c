/** See worker.h. */
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"

enum {
    KILL_AFTER = 10,    ///< seconds that a cancelled run may take to stop by itself
    MAX_ATTEMPTS = 100, ///< restarts of the server in the middle of one job
    CHECK_SECONDS = 60  ///< for opening the uploads of one request
};

/* ----------------------------------------------------------------------------------- what is live
 */

static void set_child(srv_worker *w, srv_child *c)
{
    pthread_mutex_lock(&w->s->hub.lock);
    w->child = c;
    pthread_mutex_unlock(&w->s->hub.lock);
}

/* Once a job shows as live, asking to cancel reaches it; what was asked just before is in the
 * store. */
static void live_begin(srv_worker *w, const srv_job *j)
{
    srv_hub *h = &w->s->hub;
    srv_job again;

    pthread_mutex_lock(&h->lock);
    srv_live *l = &h->live[w->index];
    memset(l, 0, sizeof *l);
    snprintf(l->id, sizeof l->id, "%s", j->id);
    snprintf(l->phase, sizeof l->phase, "load");
    l->eta = -1;
    l->since = srv_now();
    pthread_mutex_unlock(&h->lock);
    if (srv_store_get(w->s->store, j->id, &again) == SRV_OK) {
        if (again.is_cancel_asked) srv_workers_cancel(w->s, j->id);
        srv_job_free(&again);
    }
    srv_hub_ring(h);
}

static void live_end(srv_worker *w)
{
    srv_hub *h = &w->s->hub;

    pthread_mutex_lock(&h->lock);
    memset(&h->live[w->index], 0, sizeof h->live[w->index]);
    free(h->preview[w->index]);
    h->preview[w->index] = NULL;
    pthread_mutex_unlock(&h->lock);
    srv_hub_ring(h);
}

static void live_update(srv_worker *w, const json_t *o)
{
    srv_hub *h = &w->s->hub;
    const char *phase = srv_json_str(o, "phase"), *preview = srv_json_str(o, "png");
    const bool is_step = json_object_get(o, "step") != NULL;

    pthread_mutex_lock(&h->lock);
    srv_live *l = &h->live[w->index];
    if (phase && strcmp(phase, l->phase) != 0) {
        snprintf(l->phase, sizeof l->phase, "%s", phase);
        l->phase_since = srv_now();
        l->phase_from = srv_json_num(o, "progress");
    }
    if (preview) {
        free(h->preview[w->index]);
        h->preview[w->index] = srv_copy(preview);
        l->preview_no++;
    } else {
        l->step = srv_json_int(o, "step");
        l->steps = srv_json_int(o, "steps");
        l->eta = is_step ? srv_json_num(o, "eta") : -1;
        l->step_seconds = srv_json_num(o, "seconds");
        if (srv_json_num(o, "progress") > l->progress) l->progress = srv_json_num(o, "progress");
    }
    pthread_mutex_unlock(&h->lock);
    srv_hub_ring(h);
}

static bool is_cancelling(srv_worker *w)
{
    bool v;

    pthread_mutex_lock(&w->s->hub.lock);
    v = w->s->hub.live[w->index].is_cancelling;
    pthread_mutex_unlock(&w->s->hub.lock);
    return v;
}

bool srv_workers_cancel(srv *s, const char *id)
{
    bool is_found = false;

    pthread_mutex_lock(&s->hub.lock);
    for (int i = 0; i < s->n_workers; i++) {
        srv_live *l = &s->hub.live[i];
        if (strcmp(l->id, id) != 0) continue;
        is_found = true;
        l->is_cancelling = true;
        if (s->worker[i].child)
            srv_lines_send(s->worker[i].child->in.fd,
                           json_pack("{s:s, s:s}", "op", "cancel", "id", id));
    }
    pthread_mutex_unlock(&s->hub.lock);
    return is_found;
}

bool srv_workers_any_ready(srv *s)
{
    bool v = false;

    for (int i = 0; i < s->n_workers; i++)
        v = v || atomic_load(&s->worker[i].is_ready);
    return v;
}

/* ---------------------------------------------------------------------------------- the process */

static json_t *engine_message(const srv_worker *w)
{
    const h3_engine_opts *e = &w->s->opts.engine;
    json_t *loras = json_array();

    for (int i = 0; i < e->n_loras; i++)
        json_array_append_new(loras, json_pack("{s:s, s:f}", "path", e->loras[i].path, "strength",
                                               (double)e->loras[i].strength));
    return json_pack("{s:s, s:s*, s:s*, s:s*, s:s*, s:s*, s:s*, s:s, s:s*, s:s*, s:s*, s:s*, s:s*,"
                     " s:i, s:I, s:I, s:b, s:o}",
                     "op", "open", "model", e->model, "dit", e->dit, "text_encoder",
                     e->text_encoder, "vae", e->vae, "audio_vae", e->audio_vae, "tokenizer",
                     e->tokenizer, "device", w->device, "dtype", e->dtype, "math", e->math, "qkv",
                     e->qkv, "quant", e->quant, "offload", e->offload, "n_threads", e->n_threads,
                     "ram_limit", (json_int_t)e->ram_limit, "vram_limit", (json_int_t)e->vram_limit,
                     "is_strict_lora", e->is_strict_lora, "loras", loras);
}

static void take_defaults(srv *s, const json_t *plan)
{
    pthread_mutex_lock(&s->ready_lock);
    s->def_width = (int)srv_json_int(plan, "width");
    s->def_height = (int)srv_json_int(plan, "height");
    s->def_frames = (int)srv_json_int(plan, "frames");
    s->def_steps = (int)srv_json_int(plan, "steps");
    s->is_ready = true;
    pthread_mutex_unlock(&s->ready_lock);
}

/* Words of h3_status_name to what the program exits with. */
static int exit_of(const char *code)
{
    static const struct {
        const char *code;
        int status;
    } rows[] = {{"argument", 2}, {"io", 3},     {"format", 4},      {"shape", 4},
                {"missing", 5},  {"memory", 6}, {"unsupported", 7}, {"device", 8}};

    for (size_t i = 0; code && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(code, rows[i].code) == 0) return rows[i].status;
    return 70;
}

/* Waits for the answer to "open". */
static bool wait_ready(srv_worker *w, srv_child *c)
{
    json_t *o = NULL;
    srv_read got;
    bool is_ok = false;

    while ((got = srv_lines_next(&c->in, 500, &o)) == SRV_READ_TIMEOUT)
        if (srv_hub_is_stopping(&w->s->hub)) return false;
    if (got != SRV_READ_LINE) {
        srv_error("%s: the worker process ended while it opened the model", w->device);
        return false;
    }
    if (strcmp(srv_json_str(o, "e"), "ready") == 0) {
        take_defaults(w->s, json_object_get(o, "plan"));
        is_ok = true;
    } else {
        srv_error("%s: %s", w->device, srv_json_str(o, "text"));
        atomic_store(&w->s->open_failure, exit_of(srv_json_str(o, "code")));
    }
    json_decref(o);
    return is_ok;
}

static bool start_child(srv_worker *w)
{
    srv_child *c = srv_child_start();

    if (!c) {
        srv_error("%s: cannot start a worker process: %s", w->device, strerror(errno));
        return false;
    }
    if (srv_lines_send(c->in.fd, engine_message(w)) && wait_ready(w, c)) {
        set_child(w, c);
        atomic_store(&w->is_ready, true);
        return true;
    }
    srv_child_end(&c);
    return false;
}

/* Ends the process; says how it had ended by itself, if it had. */
static void drop_child(srv_worker *w, char *fate, size_t cap)
{
    srv_child *c = w->child;
    int status;

    set_child(w, NULL);
    atomic_store(&w->is_ready, false);
    status = srv_child_end(&c);
    if (fate) srv_child_fate(status, fate, cap);
}

/* ------------------------------------------------------------------------------------- one job */

typedef struct outcome {
    srv_status status;
    const char *code;
    char text[640];
    char *result, *warnings; // JSON
    json_t *stages;
    bool is_requeued; // the server stops: the job goes on at the next start
} outcome;

static void fail_with(outcome *r, const char *code, const char *text)
{
    r->status = SRV_FAILED;
    r->code = code;
    snprintf(r->text, sizeof r->text, "%s", text);
}

static void take_done(outcome *r, const json_t *o)
{
    const json_t *result = json_object_get(o, "result");

    r->status = SRV_COMPLETED;
    r->result = json_dumps(result, JSON_COMPACT);
    r->warnings = json_dumps(json_object_get(o, "warnings"), JSON_COMPACT);
    r->stages = json_incref(json_object_get(result, "stages"));
}

/* Codes that clients see, by the word of the engine's. */
static void take_failure(outcome *r, const srv *s, const json_t *o)
{
    static const struct {
        const char *is, *code;
    } rows[] = {
        {"argument", "invalid_request"}, {"io", "storage_error"},     {"format", "invalid_file"},
        {"missing", "model_incomplete"}, {"shape", "model_mismatch"}, {"memory", "out_of_memory"},
        {"unsupported", "unsupported"},  {"device", "device_error"},  {"numeric", "not_a_number"}};
    const char *code = srv_json_str(o, "code"), *text = srv_json_str(o, "text");

    if (code && strcmp(code, "cancelled") == 0) {
        r->status = SRV_CANCELLED;
        return;
    }
    fail_with(r, "internal_error", text ? text : "no reason given");
    for (size_t i = 0; code && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(code, rows[i].is) == 0) r->code = rows[i].code;
    srv_hide_paths(s, r->text);
}

static void take_plan(srv_worker *w, const srv_job *j, const json_t *plan)
{
    srv_store_planned(w->s->store, j->id, (int)srv_json_int(plan, "width"),
                      (int)srv_json_int(plan, "height"), (int)srv_json_int(plan, "frames"),
                      (int)srv_json_int(plan, "steps"));
    srv_hub_ring(&w->s->hub);
}

/* One message of the running process; true when it was the last. */
static bool take_message(srv_worker *w, const srv_job *j, const json_t *o, outcome *r)
{
    const char *e = srv_json_str(o, "e");

    if (!e) return false;
    if (strcmp(e, "plan") == 0) {
        take_plan(w, j, json_object_get(o, "plan"));
    } else if (strcmp(e, "done") == 0) {
        take_done(r, o);
        return true;
    } else if (strcmp(e, "fail") == 0) {
        take_failure(r, w->s, o);
        return true;
    } else {
        live_update(w, o);
    }
    return false;
}

static bool send_run(srv_worker *w, const srv_job *j, const char *dir)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:i}", "op", "run", "id", j->id, "dir", dir,
                  "prompt", j->prompt, "params", json_loads(j->params, 0, NULL), "inputs",
                  json_loads(j->inputs, 0, NULL), "checkpoint_every", w->s->opts.checkpoint_every);

    if (!o) return false;
    pthread_mutex_lock(&w->s->hub.lock); // a cancel must not come between its halves
    const bool is_sent = srv_lines_send(w->child->in.fd, o);
    pthread_mutex_unlock(&w->s->hub.lock);
    return is_sent;
}

static void crashed(srv_worker *w, outcome *r)
{
    char fate[80], text[240];

    drop_child(w, fate, sizeof fate);
    atomic_fetch_add(&w->s->metrics.workers_crashed, 1);
    srv_error("%s: the worker process died (%s)", w->device, fate);
    snprintf(text, sizeof text,
             "the process that generated this video died (%s); nothing else was harmed", fate);
    fail_with(r, "worker_crashed", text);
}

/* Follows the process until the job ends one way or another. */
static void follow(srv_worker *w, const srv_job *j, outcome *r)
{
    double asked = 0;
    json_t *o = NULL;

    for (;;) {
        const srv_read got = srv_lines_next(&w->child->in, 250, &o);
        if (got == SRV_READ_LINE) {
            const bool is_last = take_message(w, j, o, r);
            json_decref(o);
            if (is_last) return;
        } else if (got == SRV_READ_END) {
            crashed(w, r);
            if (is_cancelling(w)) r->status = SRV_CANCELLED;
            return;
        }
        if (srv_hub_is_stopping(&w->s->hub)) {
            r->is_requeued = true;
            return;
        }
        if (!is_cancelling(w)) continue;
        if (asked == 0) asked = srv_now();
        if (srv_now() - asked > KILL_AFTER) {
            drop_child(w, NULL, 0); // frees the device at once
            r->status = SRV_CANCELLED;
            return;
        }
    }
}

/* What only a run needs. Latents stay with a failure: the operator may still decode them. */
static void clean_up(const char *dir, const outcome *r)
{
    static const char *const names[] = {"checkpoint", "latents", "video.mp4", "sound.wav",
                                        "thumbnail.png"};
    const int n = r->status == SRV_COMPLETED ? 2 : r->status == SRV_FAILED ? 1 : 5;

    for (int i = 0; i < n; i++) {
        char *path = srv_text("%s/%s", dir, names[i]);
        unlink(path);
        free(path);
    }
}

static void count(srv *s, const outcome *r, double seconds)
{
    static const char *const phases[SRV_PHASES_MAX] = {"load",  "text",   "encode", "sample",
                                                       "sound", "decode", "mux",    NULL};
    srv_metrics *m = &s->metrics;

    pthread_mutex_lock(&m->lock);
    if (r->status == SRV_COMPLETED) {
        m->jobs_done++;
        m->job_seconds += seconds;
        s->mean_job_seconds =
            s->mean_job_seconds > 0 ? 0.7 * s->mean_job_seconds + 0.3 * seconds : seconds;
        for (int i = 0; i < SRV_PHASES_MAX && phases[i]; i++)
            m->phase_seconds[i] += srv_json_num(r->stages, phases[i]);
    }
    m->jobs_failed += r->status == SRV_FAILED;
    m->jobs_cancelled += r->status == SRV_CANCELLED;
    pthread_mutex_unlock(&m->lock);
}

/* SRV_NO_JOB may also mean that the job is another server's by now; its folder is, too. */
static bool is_deleted(srv *s, const char *id)
{
    srv_job j;
    const srv_result r = srv_store_get(s->store, id, &j);

    if (r == SRV_OK) srv_job_free(&j);
    return r == SRV_NO_JOB;
}

/* Stores the end. While the database cannot be written (disk full) the job stays in progress and is
 * tried again: an end that is not stored would be forgotten by the next start. */
static void store_end(srv_worker *w, const srv_job *j, const char *dir, const outcome *r)
{
    srv *s = w->s;
    const int64_t bytes = srv_tree_bytes(dir);
    srv_result st = SRV_BROKEN;

    for (int i = 0; st != SRV_OK && st != SRV_NO_JOB; i++) {
        st = srv_store_finish(s->store, j->id, r->status, r->code, r->code ? r->text : NULL,
                              r->result, r->warnings, bytes, srv_expiry(s));
        if (st == SRV_OK || st == SRV_NO_JOB) break;
        if (srv_hub_is_stopping(&s->hub)) return;
        for (int k = 0; k < 20 && !srv_hub_is_stopping(&s->hub); k++)
            usleep(100000);
    }
    if (st != SRV_NO_JOB)
        clean_up(dir, r);
    else if (is_deleted(s, j->id)) // while it ran
        srv_remove_tree(dir);
    else
        srv_log("%s: another server has taken it over", j->id);
}

static void run_job(srv_worker *w, srv_job *j)
{
    srv *s = w->s;
    char *dir = srv_job_dir(s, j->id);
    outcome r = {.status = SRV_FAILED};
    const double start = srv_now();

    live_begin(w, j);
    if (j->attempts > MAX_ATTEMPTS)
        fail_with(&r, "interrupted", "the server was stopped too often while this video was made");
    else if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        fail_with(&r, "storage_error",
                  errno == ENOSPC ? "the disk is full" : "the server's data folder failed");
    else if (!w->child && !start_child(w))
        fail_with(&r, "worker_unavailable", "no process for the device could be started");
    else if (is_cancelling(w))
        r.status = SRV_CANCELLED;
    else if (!send_run(w, j, dir))
        crashed(w, &r);
    else
        follow(w, j, &r);
    if (r.is_requeued) {
        srv_store_requeue(s->store, j->id);
    } else {
        count(s, &r, srv_now() - start);
        store_end(w, j, dir, &r);
        srv_log("%s %s%s%s in %.1f s", j->id, srv_status_name(r.status), r.code ? ": " : "",
                r.code ? r.text : "", srv_now() - start);
    }
    live_end(w);
    json_decref(r.stages);
    free(r.result);
    free(r.warnings);
    free(dir);
    if (!r.is_requeued) srv_retain(s);
}

/* A process that died while idle is replaced before the next job needs it. */
static void check_idle(srv_worker *w)
{
    json_t *o = NULL;

    if (w->child && srv_lines_next(&w->child->in, 0, &o) != SRV_READ_TIMEOUT) {
        json_decref(o);
        drop_child(w, NULL, 0);
        atomic_fetch_add(&w->s->metrics.workers_crashed, 1);
        srv_error("%s: the idle worker process ended; starting another", w->device);
    }
    if (w->child || srv_hub_is_stopping(&w->s->hub) || srv_now() < w->retry_at) return;
    w->retry_at = srv_now() + (start_child(w) ? 0 : 30);
}

static void *work(void *user)
{
    srv_worker *w = user;
    srv *s = w->s;

    if (start_child(w))
        srv_log("%s: ready (%s)", w->device, s->model_name);
    else if (!srv_hub_is_stopping(&s->hub) && atomic_load(&s->open_failure) == 0)
        atomic_store(&s->open_failure, 70);
    while (!srv_hub_is_stopping(&s->hub)) {
        const uint64_t seen = srv_hub_version(&s->hub);
        srv_job j;
        const srv_result r = w->child ? srv_store_claim(s->store, &j) : SRV_NO_JOB;
        if (r == SRV_OK) {
            run_job(w, &j);
            srv_job_free(&j);
            continue;
        }
        srv_hub_wait(&s->hub, seen, 1.0);
        check_idle(w);
    }
    if (w->child) drop_child(w, NULL, 0);
    return NULL;
}

static void stop_job(void *user, const char *id)
{
    srv_workers_cancel(user, id);
}

bool srv_workers_start(srv *s)
{
    srv_store_watch(s->store, stop_job, s);
    for (int i = 0; i < s->n_workers; i++) {
        srv_worker *w = &s->worker[i];
        w->s = s;
        w->index = i;
        if (pthread_create(&w->thread, NULL, work, w) != 0) return false;
        w->is_started = true;
    }
    return true;
}

void srv_workers_stop(srv *s)
{
    srv_hub_stop(&s->hub);
    for (int i = 0; i < s->n_workers; i++)
        if (s->worker[i].is_started) pthread_join(s->worker[i].thread, NULL);
}

/* --------------------------------------------------------------------------------------- checks */

void srv_checker_stop(srv *s)
{
    pthread_mutex_lock(&s->check_lock);
    srv_child_end(&s->checker);
    pthread_mutex_unlock(&s->check_lock);
}

/* Asks the checking process, started when there is none; takes `message` over. */
static srv_read ask_once(srv *s, json_t *message, json_t **out)
{
    srv_read got = SRV_READ_END;

    if (!s->checker) s->checker = srv_child_start();
    if (!s->checker)
        json_decref(message);
    else if (srv_lines_send(s->checker->in.fd, message))
        got = srv_lines_next(&s->checker->in, CHECK_SECONDS * 1000, out);
    if (got != SRV_READ_LINE) srv_child_end(&s->checker);
    return got;
}

/* NULL and a fault when the process refuses, dies or takes too long. One that died since the last
 * time gets a successor; two deaths are the files' fault. */
static json_t *ask_checker(srv *s, json_t *message, srv_fault *f)
{
    json_t *o = NULL;
    srv_read got;

    pthread_mutex_lock(&s->check_lock);
    const bool was_there = s->checker != NULL;
    got = ask_once(s, json_incref(message), &o);
    if (got == SRV_READ_END && was_there) got = ask_once(s, json_incref(message), &o);
    pthread_mutex_unlock(&s->check_lock);
    json_decref(message);
    if (got == SRV_READ_LINE) return o;
    srv_fault_set(f, 400, "invalid_file", NULL, "%s",
                  got == SRV_READ_TIMEOUT ? "the uploaded files took too long to open"
                                          : "the uploaded files could not be opened");
    return NULL;
}

/* Numbers and mixtures of references; the run checks the rest. */
static bool check_mixture(const json_t *probes, srv_fault *f)
{
    static const char *const kinds[] = {"image", "video", "audio"};
    static const int most[] = {9, 3, 3};
    int n[3] = {0};
    json_t *p;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)probes, i, p)
    {
        const char *kind = srv_json_str(p, "kind");
        for (int k = 0; k < 3; k++)
            n[k] += kind && strcmp(kind, kinds[k]) == 0;
    }
    for (int k = 0; k < 3; k++)
        if (n[k] > most[k])
            return srv_fault_set(f, 400, "too_many_references", "input_references",
                                 "%d %s references: at most %d are accepted", n[k], kinds[k],
                                 most[k]);
    if (n[2] && !n[0] && !n[1])
        return srv_fault_set(f, 400, "invalid_value", "input_references",
                             "audio references need a picture or a clip beside them");
    return true;
}

static void take_sizes(srv_job *job, const json_t *plan)
{
    job->width = (int)srv_json_int(plan, "width");
    job->height = (int)srv_json_int(plan, "height");
    job->frames = (int)srv_json_int(plan, "frames");
    job->steps = (int)srv_json_int(plan, "steps");
}

/* Fills what the client left open, so that the job does not change with the server's defaults. */
static void fill_defaults(srv *s, json_t *p)
{
    const char *task = srv_json_str(p, "task");

    pthread_mutex_lock(&s->ready_lock);
    if (!json_object_get(p, "frames") && !json_object_get(p, "seconds"))
        json_object_set_new(p, "frames", json_integer(s->def_frames));
    if (!json_object_get(p, "steps") && !json_object_get(p, "sigmas"))
        json_object_set_new(p, "steps", json_integer(s->def_steps));
    if (strcmp(task, "fl2va") != 0 && !json_object_get(p, "width") &&
        !json_object_get(p, "aspect")) {
        json_object_set_new(p, "width", json_integer(s->def_width));
        json_object_set_new(p, "height", json_integer(s->def_height));
    }
    pthread_mutex_unlock(&s->ready_lock);
}

/* Geometry alone: the request as if it had no inputs. */
static bool plan_sizes(const srv_params *p, srv_job *job, srv_fault *f)
{
    h3_request rq = h3_request_default();
    float sigmas[SRV_SIGMAS_MAX];
    char *text = NULL;
    json_t *plan;

    srv_params_request(&rq, p->params, sigmas);
    rq.prompt = p->prompt;
    rq.task = "t2va";
    rq.fit = NULL;
    if (h3_plan_json(NULL, &rq, &text) != H3_OK)
        return srv_fault_set(f, 400, "invalid_value", NULL, "%s", h3_error());
    plan = json_loads(text, 0, NULL);
    h3_string_free(text);
    take_sizes(job, plan);
    json_decref(plan);
    return true;
}

bool srv_check_job(srv *s, srv_params *p, const char *dir, srv_job *job, srv_fault *f)
{
    const bool is_fl2va = strcmp(srv_json_str(p->params, "task"), "fl2va") == 0;
    json_t *answer, *plan;
    bool is_ok;

    fill_defaults(s, p->params);
    if (!is_fl2va && !plan_sizes(p, job, f)) return false;
    if (json_array_size(p->inputs) == 0) return true;
    answer = ask_checker(s,
                         json_pack("{s:s, s:s, s:s, s:O, s:O}", "op", "check", "dir", dir, "prompt",
                                   p->prompt, "params", p->params, "inputs", p->inputs),
                         f);
    if (!answer) return false;
    plan = json_object_get(answer, "plan");
    if (strcmp(srv_json_str(answer, "e"), "checked") == 0) {
        is_ok = check_mixture(json_object_get(answer, "probes"), f);
        if (is_ok && json_is_object(plan)) take_sizes(job, plan);
    } else {
        is_ok = srv_fault_set(f, 400, "invalid_file", NULL, "%s", srv_json_str(answer, "text"));
        srv_hide_paths(s, f->text);
    }
    if (is_ok && is_fl2va && (int64_t)job->width * job->height > s->opts.max_pixels)
        is_ok = srv_fault_set(f, 400, "too_large", "size",
                              "%dx%d is more than the %d pixels this server accepts", job->width,
                              job->height, s->opts.max_pixels);
    json_decref(answer);
    return is_ok;
}
