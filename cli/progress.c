/** Progress on stderr (people) or stdout (JSON); see progress.h. */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_init(progress *p, bool is_json, bool is_verbose, bool is_quiet)
{
    memset(p, 0, sizeof *p);
    p->is_json = is_json;
    p->is_verbose = is_verbose;
    p->is_quiet = is_quiet;
    p->is_terminal = isatty(STDERR_FILENO) == 1;
    p->last_draw = p->is_terminal ? 0 : now();
}

void progress_clear(progress *p)
{
    if (p->line_width) fprintf(stderr, "\r%*s\r", p->line_width, "");
    p->line_width = 0;
}

/* Bytes of the character at `s`, or 0: no UTF-8 begins there (names of files may hold anything). */
static size_t character(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    const size_t n = u[0] < 0x80 ? 1 : u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;

    if (u[0] > 0xf4) return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f)) return 0;
    if ((u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] > 0x8f)) return 0;
    return n;
}

void json_text(const char *s)
{
    putchar('"');
    while (*s) {
        const size_t n = character(s);
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            printf("\\u%04x", (unsigned)*s);
        else if (n == 0)
            printf("\\ufffd");
        else
            fwrite(s, 1, n, stdout);
        s += n ? n : 1;
    }
    putchar('"');
}

/* 75 -> "1m15s" */
static void clock_text(char *out, size_t cap, double s)
{
    if (s < 0)
        snprintf(out, cap, "?");
    else if (s < 60)
        snprintf(out, cap, "%.1fs", s);
    else if (s < 3600)
        snprintf(out, cap, "%dm%02ds", (int)s / 60, (int)s % 60);
    else
        snprintf(out, cap, "%dh%02dm", (int)s / 3600, (int)s / 60 % 60);
}

static void json_event(const progress *p, const h3_event *ev)
{
    static const char *const names[] = {"plan",    "phase", "phase_end", "step",
                                        "warning", "info",  "done"};

    printf("{\"event\":\"%s\"", names[ev->kind]);
    if (p->line) printf(",\"line\":%ld", p->line);
    if (p->videos) printf(",\"video\":%ld,\"videos\":%ld", p->video, p->videos);
    if (ev->phase) {
        printf(",\"phase\":");
        json_text(ev->phase);
    }
    if (ev->kind == H3_EVENT_STEP)
        printf(
            ",\"step\":%lld,\"steps\":%lld,\"seconds\":%.6f,\"eta_seconds\":%.3f,\"progress\":%.4f",
            (long long)ev->step, (long long)ev->steps, ev->seconds, ev->eta_seconds, ev->progress);
    if (ev->kind == H3_EVENT_STEP && p->videos)
        printf(",\"progress_of_all\":%.4f",
               ((double)p->video - 1 + ev->progress) / (double)p->videos);
    if (ev->kind == H3_EVENT_PHASE_END) printf(",\"seconds\":%.6f", ev->seconds);
    if (ev->text) {
        const bool is_object = ev->kind == H3_EVENT_PLAN || ev->kind == H3_EVENT_DONE;
        printf(",\"%s\":", is_object ? "data" : "text");
        if (is_object)
            printf("%s", ev->text);
        else
            json_text(ev->text);
    }
    printf("}\n");
    fflush(stdout);
}

static void draw_step(progress *p, const h3_event *ev)
{
    char line[160], step[24], left[24], which[48] = "";
    const double t = now();
    const bool is_last = ev->step == ev->steps;

    // a log gets a line now and then, a terminal one line that changes
    if (!is_last && t - p->last_draw < (p->is_terminal ? 0.1 : 15)) return;
    if (is_last && !p->is_terminal) return; // the end of the phase says it
    p->last_draw = t;
    clock_text(step, sizeof step, ev->seconds);
    clock_text(left, sizeof left, ev->eta_seconds);
    if (p->videos) snprintf(which, sizeof which, " of video %ld of %ld", p->video, p->videos);
    const int n =
        snprintf(line, sizeof line, "%-7s %lld/%lld  %s a step, %s left  [%3.0f%%%s]", ev->phase,
                 (long long)ev->step, (long long)ev->steps, step, left, ev->progress * 100, which);
    if (!p->is_terminal) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    fprintf(stderr, "\r%s%*s", line, p->line_width > n ? p->line_width - n : 0, "");
    p->line_width = n;
    fflush(stderr);
}

void progress_event(void *user, const h3_event *ev)
{
    progress *p = user;

    if (p->is_json) {
        json_event(p, ev);
        return;
    }
    if (p->is_quiet) return;
    switch (ev->kind) {
    case H3_EVENT_STEP:
        draw_step(p, ev);
        return;
    case H3_EVENT_WARNING:
        progress_clear(p);
        fprintf(stderr, "warning: %s\n", ev->text);
        return;
    case H3_EVENT_INFO:
        if (p->video > 1 && !p->is_verbose) return; // as of the first
        progress_clear(p);
        fprintf(stderr, "%s\n", ev->text);
        return;
    case H3_EVENT_PHASE_END:
        progress_clear(p);
        if (p->is_verbose || !p->is_terminal)
            fprintf(stderr, "%-7s done in %.2f s\n", ev->phase, ev->seconds);
        return;
    case H3_EVENT_PLAN:
        if (p->is_verbose) fprintf(stderr, "%s\n", ev->text);
        return;
    case H3_EVENT_PHASE:
    case H3_EVENT_DONE:
        return;
    }
}

void progress_result(progress *p, const h3_result *rs, const char *file)
{
    progress_clear(p);
    if (p->is_json || p->is_quiet) return;
    fprintf(stderr, "stages:");
    for (int i = 0; i < rs->n_phases; i++)
        fprintf(stderr, " %s %.2f s%s", rs->phase[i].name, rs->phase[i].seconds,
                i + 1 < rs->n_phases ? "," : "");
    fprintf(stderr, "; total %.2f s\n", rs->seconds_total);
    fprintf(stderr, "peak memory %.1f MB", (double)rs->peak_rss / 1048576.0);
    if (rs->peak_device) fprintf(stderr, ", device %.1f MB", (double)rs->peak_device / 1048576.0);
    fprintf(stderr, ", scratch %.1f MB; latents %016llx\n", (double)rs->scratch_bytes / 1048576.0,
            (unsigned long long)rs->latent_hash);
    if (file)
        fprintf(
            stderr,
            "%s: %dx%d, %d frames at 24/s (%.3f s), %lld samples of sound at 32 kHz, seed %llu\n",
            file, rs->width, rs->height, rs->frames, rs->frames / 24.0, (long long)rs->samples,
            (unsigned long long)rs->seed);
}
