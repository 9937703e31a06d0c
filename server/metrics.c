/** See metrics.h. */
#include "metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "worker.h"

enum MHD_Result srv_health(srv_req *r)
{
    return srv_answer_json(r, 200,
                           json_pack("{s:s, s:s, s:I}", "status", "ok", "version", h3_version(),
                                     "uptime_seconds", (json_int_t)(srv_now() - r->s->started)));
}

static const char *why_not_ready(srv *s)
{
    struct statvfs v;

    if (!srv_workers_any_ready(s)) return "the model is being loaded";
    if (srv_store_ping(s->store) != SRV_OK) return "the job database cannot be written";
    if (access(s->jobs_dir, W_OK | X_OK) != 0) return "the data folder cannot be written";
    if (statvfs(s->data_dir, &v) == 0 && v.f_bavail * v.f_frsize < (1 << 20))
        return "the disk is full";
    return NULL;
}

enum MHD_Result srv_ready(srv_req *r)
{
    const char *why = why_not_ready(r->s);
    srv_fault f = {.retry_after = 5};

    if (!why) return srv_answer_json(r, 200, json_pack("{s:s}", "status", "ready"));
    srv_fault_set(&f, 503, "not_ready", NULL, "%s", why);
    return srv_answer_fault(r, &f);
}

static json_t *model_json(srv *s)
{
    json_t *model;
    char size[32];

    pthread_mutex_lock(&s->ready_lock);
    snprintf(size, sizeof size, "%dx%d", s->def_width, s->def_height);
    model = json_pack("{s:s, s:s, s:I, s:s, s:{s:s, s:f, s:i}, s:{s:f, s:i, s:i, s:I, s:i}}", "id",
                      s->model_name, "object", "model", "created",
                      (json_int_t)(srv_unix() - (int64_t)(srv_now() - s->started)), "owned_by",
                      "h3av", "defaults", "size", size, "seconds", s->def_frames / 24.0, "steps",
                      s->def_steps, "limits", "seconds", s->opts.max_seconds, "pixels",
                      s->opts.max_pixels, "steps", s->opts.max_steps, "body_bytes",
                      (json_int_t)s->opts.max_body, "queue", s->opts.max_queue);
    pthread_mutex_unlock(&s->ready_lock);
    return model;
}

enum MHD_Result srv_models(srv_req *r)
{
    return srv_answer_json(r, 200,
                           json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(r->s)));
}

enum MHD_Result srv_model(srv_req *r)
{
    return srv_answer_json(r, 200, model_json(r->s));
}

/* ------------------------------------------------------------------------------------- /metrics */

static void head(FILE *f, const char *name, const char *kind, const char *help)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void one(FILE *f, const char *name, const char *kind, const char *help, double v)
{
    head(f, name, kind, help);
    fprintf(f, "%s %.17g\n", name, v);
}

/* VmRSS of this process, which is not the workers'. */
static double resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long long pages = 0, all;

    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &all, &pages) != 2) pages = 0;
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void put_jobs(FILE *f, srv *s)
{
    srv_counts c;

    if (srv_store_counts(s->store, &c) != SRV_OK) return;
    head(f, "h3av_jobs", "gauge", "Jobs in the store by status.");
    for (int i = 0; i < SRV_N_STATUS; i++)
        fprintf(f, "h3av_jobs{status=\"%s\"} %lld\n", srv_status_name((srv_status)i),
                (long long)c.by_status[i]);
    one(f, "h3av_stored_bytes", "gauge", "Bytes of all job folders.", (double)c.bytes);
    one(f, "h3av_queue_limit", "gauge", "Jobs that may wait.", s->opts.max_queue);
}

static void put_runs(FILE *f, srv *s)
{
    static const char *const phases[] = {"load",  "text",   "encode", "sample",
                                         "sound", "decode", "mux"};
    srv_metrics *m = &s->metrics;

    pthread_mutex_lock(&m->lock);
    head(f, "h3av_jobs_ended_total", "counter", "Jobs that ended since the start, by how.");
    fprintf(f, "h3av_jobs_ended_total{status=\"completed\"} %llu\n",
            (unsigned long long)m->jobs_done);
    fprintf(f, "h3av_jobs_ended_total{status=\"failed\"} %llu\n",
            (unsigned long long)m->jobs_failed);
    fprintf(f, "h3av_jobs_ended_total{status=\"cancelled\"} %llu\n",
            (unsigned long long)m->jobs_cancelled);
    head(f, "h3av_generation_seconds", "summary", "Seconds of completed jobs.");
    fprintf(f, "h3av_generation_seconds_sum %.6f\nh3av_generation_seconds_count %llu\n",
            m->job_seconds, (unsigned long long)m->jobs_done);
    head(f, "h3av_phase_seconds_total", "counter", "Seconds of completed jobs by phase.");
    for (int i = 0; i < 7; i++)
        fprintf(f, "h3av_phase_seconds_total{phase=\"%s\"} %.6f\n", phases[i], m->phase_seconds[i]);
    pthread_mutex_unlock(&m->lock);
}

enum MHD_Result srv_metrics_text(srv_req *r)
{
    srv *s = r->s;
    srv_metrics *m = &s->metrics;
    struct MHD_Response *a;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    int n_ready = 0;

    if (!f) return srv_answer_error(r, 503, "out_of_memory", NULL, "no memory");
    for (int i = 0; i < s->n_workers; i++)
        n_ready += atomic_load(&s->worker[i].is_ready);
    head(f, "h3av_info", "gauge", "Version and model.");
    fprintf(f, "h3av_info{version=\"%s\"} 1\n", h3_version());
    one(f, "h3av_uptime_seconds", "gauge", "Since the start.", srv_now() - s->started);
    one(f, "h3av_workers", "gauge", "Devices.", s->n_workers);
    one(f, "h3av_workers_ready", "gauge", "Devices with a model loaded.", n_ready);
    one(f, "h3av_worker_crashes_total", "counter", "Worker processes that died.",
        (double)atomic_load(&m->workers_crashed));
    put_jobs(f, s);
    put_runs(f, s);
    one(f, "h3av_http_requests_total", "counter", "Requests.", (double)atomic_load(&m->requests));
    head(f, "h3av_http_responses_total", "counter", "Answers by class of status.");
    for (int i = 1; i < 6; i++)
        fprintf(f, "h3av_http_responses_total{class=\"%dxx\"} %llu\n", i,
                (unsigned long long)atomic_load(&m->by_class[i]));
    one(f, "h3av_queue_full_total", "counter", "Requests refused with a full queue.",
        (double)atomic_load(&m->rejected_full));
    one(f, "h3av_http_connections", "gauge", "Open connections.", atomic_load(&s->n_connections));
    one(f, "h3av_event_streams", "gauge", "Open event streams.", atomic_load(&s->n_streams));
    one(f, "h3av_upload_bytes_in_flight", "gauge", "Bytes of bodies being received.",
        (double)atomic_load(&s->inflight.bytes));
    one(f, "process_resident_memory_bytes", "gauge", "Of the server without its workers.",
        resident_bytes());
    fclose(f);
    a = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (!a) {
        free(text);
        return MHD_NO;
    }
    srv_add_header(a, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    return srv_answer(r, 200, a);
}
