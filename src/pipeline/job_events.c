/** How a run reports: phases, steps with time left, sentences; see job.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "job.h"

double h3_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t h3_peak_rss(void)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u) != 0) return 0;
    return (uint64_t)u.ru_maxrss * 1024;
}

uint64_t h3_fnv(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static void emit(h3_job *j, const h3_event *ev)
{
    if (j->rq->on_event) j->rq->on_event(j->rq->user, ev);
}

void h3_job_phase(h3_job *j, const char *name, double from, double to)
{
    j->phase = name;
    j->phase_from = from;
    j->phase_to = to;
    j->phase_start = h3_now();
    emit(j,
         &(h3_event){.kind = H3_EVENT_PHASE, .phase = name, .eta_seconds = -1, .progress = from});
}

void h3_job_phase_end(h3_job *j)
{
    const double s = h3_now() - j->phase_start;
    h3_result *rs = j->rs;

    if (rs->n_phases < H3_MAX_PHASES)
        rs->phase[rs->n_phases++] = (h3_phase_time){j->phase, s, h3_peak_rss()};
    emit(j,
         &(h3_event){
             .kind = H3_EVENT_PHASE_END, .phase = j->phase, .seconds = s, .progress = j->phase_to});
}

/* Time left from the mean of what is done: steps of one phase cost the same. */
void h3_job_step(h3_job *j, int64_t step, int64_t steps, double seconds)
{
    const double spent = h3_now() - j->phase_start,
                 share = steps > 0 ? (double)step / (double)steps : 1;

    emit(j,
         &(h3_event){.kind = H3_EVENT_STEP,
                     .phase = j->phase,
                     .step = step,
                     .steps = steps,
                     .seconds = seconds,
                     .eta_seconds = step > 0 ? spent / (double)step * (double)(steps - step) : -1,
                     .progress = j->phase_from + (j->phase_to - j->phase_from) * share,
                     .preview = j->preview,
                     .preview_width = j->preview ? (int)j->plan->latent.w : 0,
                     .preview_height = j->preview ? (int)j->plan->latent.h : 0});
    free(j->preview); // shown once
    j->preview = NULL;
}

void h3_job_say(h3_job *j, h3_event_kind kind, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    emit(j, &(h3_event){.kind = kind, .phase = j->phase, .text = text, .eta_seconds = -1});
}
