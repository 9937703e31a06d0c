/**
 * See batch.h. Lines of a file are all looked at before the first one runs, so that a slip in the
 * last is told at once; standard input and pipes are served line by line, and their end is the
 * session's end. A video of --count is a line that says nothing but its seed.
 */
#include "batch.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "progress.h"
#include "prompt.h"
#include "report.h"
#include "stop.h"

/* Where the clip of a line goes, so that no other line writes there too. */
typedef struct place {
    char *path; // the folder's real path, and the name
    long line;
} place;

typedef struct batch {
    const cli *base;
    h3_engine *e;
    progress p;
    FILE *f;
    const char *name; // of the file, in messages
    char *text;       // the line at hand
    size_t cap;
    place *place;
    size_t n_places;
    bool *is_bad;  // of a file's lines, by number; NULL: not looked at
    bool has_zero; // the line at hand has a byte that no text has
    double began;
    long line, n_lines, n_requests, n_done, n_failed, first_failed;
    int status; // of the line that failed first
} batch;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One request: its options, and what they point into. */
typedef struct request {
    cli c;
    json_t *o;
    char *prompt, *output, *sigmas;
    char *named[4]; // the other names, with the video's number
} request;

static void close_request(request **rp)
{
    request *r = *rp;

    if (!r) return;
    args_free(&r->c);
    json_decref(r->o);
    free(r->prompt);
    free(r->output);
    free(r->sigmas);
    for (size_t i = 0; i < sizeof r->named / sizeof *r->named; i++)
        free(r->named[i]);
    free(r);
    *rp = NULL;
}

/* ------------------------------------------------------------------------------- from a line */

static int number_text(char out[40], const json_t *v)
{
    if (json_is_integer(v))
        return snprintf(out, 40, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    return snprintf(out, 40, "%.17g", json_real_value(v));
}

/* [1, 0.6, 0] -> "1,0.6,0" */
static int set_numbers(request *r, const char *key, const json_t *list)
{
    const size_t n = json_array_size(list);
    size_t at = 0;

    free(r->sigmas);
    r->sigmas = malloc(41 * n + 1);
    if (!r->sigmas) return report_said(6, "%s: no memory for %zu numbers", key, n);
    r->sigmas[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_number(v)) return report_said(2, "%s: expected a list of numbers", key);
        if (i) r->sigmas[at++] = ',';
        at += (size_t)number_text(r->sigmas + at, v);
    }
    return args_set(&r->c, key, r->sigmas, true);
}

static int set_files(request *r, const char *key, const json_t *list)
{
    const json_t *v;
    size_t i;
    int st = 0;

    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v)) return report_said(2, "%s: expected names of files", key);
        st = args_set(&r->c, key, json_string_value(v), true);
        if (st) break;
    }
    return st;
}

static int set_member(request *r, const char *key, const json_t *v)
{
    char number[40];
    const args_value kind = args_of_request(key);

    switch (kind) {
    case ARGS_UNKNOWN:
        return report_said(2, "%s: there is no such option of h3av generate", key);
    case ARGS_ENGINE:
        return report_said(2, "%s: is the same for all lines, so it belongs to the command line",
                           key);
    case ARGS_COUNT:
        return report_said(2, "%s: a line is one video; give each a line with a seed of its own",
                           key);
    case ARGS_FLAG:
        if (!json_is_boolean(v)) return report_said(2, "%s: expected true or false", key);
        return args_set(&r->c, key, NULL, json_is_true(v));
    default:
        break;
    }
    if (json_is_string(v)) return args_set(&r->c, key, json_string_value(v), true);
    if (kind == ARGS_NUMBER && json_is_number(v)) {
        number_text(number, v);
        return args_set(&r->c, key, number, true);
    }
    if (kind == ARGS_NUMBERS && json_is_array(v)) return set_numbers(r, key, v);
    if (kind == ARGS_FILES && json_is_array(v)) return set_files(r, key, v);
    return report_said(2, "%s: expected %s", key,
                       kind == ARGS_NUMBER    ? "a number"
                       : kind == ARGS_NUMBERS ? "a list of numbers"
                       : kind == ARGS_FILES   ? "the name of a file, or a list of names"
                                              : "a text");
}

/* clips/fox.mp4, line 3 -> clips/fox-3.mp4 */
static char *numbered(const char *path, long line)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    const size_t stem =
        dot && dot > (slash ? slash + 1 : path) ? (size_t)(dot - path) : strlen(path);
    const size_t cap = strlen(path) + 24;
    char *out = malloc(cap);

    if (out) snprintf(out, cap, "%.*s-%ld%s", (int)stem, path, line, path + stem);
    return out;
}

/* A line that names no output of its own gets the command line's, with its number. */
static int name_output(const batch *b, request *r)
{
    h3_request *q = &r->c.rq;

    if (json_object_get(r->o, "output")) return 0;
    r->c.output = q->out_path = NULL;
    if (q->frames_dir || q->wav_path) return 0;
    r->output = numbered(b->base->output ? b->base->output : "h3av.mp4", b->line);
    if (!r->output) return report_said(6, "no memory for a name");
    q->out_path = r->output;
    return 0;
}

static int fill(const batch *b, request *r)
{
    const char *key;
    json_t *v;
    int st = 0;

    json_object_foreach(r->o, key, v) args_forget(&r->c, key);
    json_object_foreach(r->o, key, v)
    {
        if (st == 0) st = set_member(r, key, v);
    }
    if (st == 0 && r->c.prompt_file && strcmp(r->c.prompt_file, "-") == 0)
        st = report_said(2, "prompt-file: a line cannot read standard input");
    if (st == 0) st = prompt_take(&r->c, &r->prompt);
    if (st == 0) st = args_settle(&r->c);
    if (st == 0) st = name_output(b, r);
    return st;
}

/* The command line's request with the next seed, every name with the video's number. */
static int count_on(const batch *b, request *r)
{
    h3_request *q = &r->c.rq;
    const char **const names[] = {&q->frames_dir, &q->wav_path, &q->latents_path,
                                  &q->checkpoint_path};

    q->seed += (uint64_t)(b->line - 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!*names[i]) continue;
        *names[i] = r->named[i] = numbered(*names[i], b->line);
        if (!r->named[i]) return report_said(6, "no memory for a name");
    }
    if (!q->out_path && (q->frames_dir || q->wav_path)) return 0;
    q->out_path = r->output = numbered(q->out_path ? q->out_path : "h3av.mp4", b->line);
    return r->output ? 0 : report_said(6, "no memory for a name");
}

/* The line at hand as a request, or an exit status after report_said. */
static int read_request(const batch *b, request **out)
{
    json_error_t error;
    request *r = calloc(1, sizeof *r);
    int st = 0;

    *out = r;
    if (!r) return report_said(6, "no memory for a request");
    r->c = *b->base;
    r->c.n_owned = 0; // the command line's strings stay its own
    r->c.batch = NULL;
    if (b->base->count) {
        st = count_on(b, r);
        if (st) close_request(out);
        return st;
    }
    r->o = json_loads(b->text, JSON_REJECT_DUPLICATES, &error);
    if (b->has_zero)
        st = report_said(2, "holds a zero byte, so it is no text in UTF-8");
    else if (!r->o)
        st = report_said(2, "is not JSON: %s (column %d)", error.text, error.column);
    else if (!json_is_object(r->o))
        st = report_said(2, "expected a JSON object such as {\"prompt\": \"a fox\", \"seed\": 7}");
    else
        st = fill(b, r);
    if (st) close_request(out);
    return st;
}

/* -------------------------------------------------------------------------- names of outputs */

static char *real_place(const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0, cap = 4096 + strlen(path) + 2;
    char *folder = malloc(n + 2), *real = NULL, *out = malloc(cap);

    if (folder) {
        memcpy(folder, slash ? path : ".", slash ? n + !n : 1);
        folder[slash ? n + !n : 1] = '\0';
        real = realpath(folder, NULL);
    }
    if (out) snprintf(out, cap, "%s/%s", real ? real : "?", slash && real ? slash + 1 : path);
    free(folder);
    free(real);
    return out;
}

/* Two lines of one output: the later one is refused, or it would replace what the first made. */
static int claim(batch *b, const char *path)
{
    char *real = path ? real_place(path) : NULL;
    place *grown;

    if (!real) return 0;
    for (size_t i = 0; i < b->n_places; i++)
        if (strcmp(b->place[i].path, real) == 0 && b->place[i].line != b->line) {
            free(real);
            return report_said(2, "%s is the output of line %ld", path, b->place[i].line);
        }
    grown = realloc(b->place, (b->n_places + 1) * sizeof *grown);
    if (!grown) {
        free(real);
        return report_said(6, "no memory for a name");
    }
    b->place = grown;
    b->place[b->n_places++] = (place){real, b->line};
    return 0;
}

static int claim_all(batch *b, const h3_request *q)
{
    int st = claim(b, q->out_path);

    if (st == 0) st = claim(b, q->frames_dir);
    if (st == 0) st = claim(b, q->wav_path);
    if (st == 0 && q->keep_latents) st = claim(b, q->latents_path);
    return st;
}

/* --------------------------------------------------------------------------------- the lines */

/* The next line that is not blank. */
static bool next_line(batch *b)
{
    ssize_t n;

    if (b->base->count) {
        if (stop_is_asked() || b->n_failed || b->line >= b->base->count) return false;
        b->line++;
        return true;
    }
    while (!stop_is_asked() && (n = getline(&b->text, &b->cap, b->f)) >= 0) {
        b->line++;
        if (b->line == 1 && strncmp(b->text, "\xef\xbb\xbf", 3) == 0) {
            n -= 3;
            memmove(b->text, b->text + 3, (size_t)n + 1);
        }
        b->has_zero = strlen(b->text) < (size_t)n;
        if (b->has_zero || b->text[strspn(b->text, " \t\r\n")]) return true;
    }
    return false;
}

static void line_failed(batch *b, int status, const char *code, const char *text)
{
    char full[1400];

    if (b->base->count)
        snprintf(full, sizeof full, "video %ld of %d: %s", b->line, b->base->count, text);
    else
        snprintf(full, sizeof full, "%s, line %ld: %s", b->name, b->line, text);
    progress_clear(&b->p);
    if (b->base->is_json) report_event(code, b->base->count ? "video" : "line", b->line, full);
    fprintf(stderr, "h3av: %s\n", full);
    if (b->n_failed++ == 0) {
        b->status = status;
        b->first_failed = b->line;
    }
}

/* Reads the line at hand and takes its names; says what is wrong with it. */
static bool admit(batch *b, request **r)
{
    char text[1024] = "";
    int st;

    report_into(text, sizeof text);
    st = read_request(b, r);
    if (st == 0 && !b->is_bad && !b->base->count) st = claim_all(b, &(*r)->c.rq);
    report_into(NULL, 0);
    b->n_requests++;
    if (st == 0) return true;
    close_request(r);
    line_failed(b, st, st == 3 ? "io" : st == 5 ? "missing" : st == 6 ? "nomem" : "argument", text);
    return false;
}

static const char *file_of(const h3_request *q)
{
    return q->out_path ? q->out_path : q->frames_dir ? q->frames_dir : q->wav_path;
}

static void on_event(void *user, const h3_event *ev)
{
    batch *b = user;

    progress_event(&b->p, ev);
    if (stop_is_asked()) h3_cancel(b->e); // asked between two requests
}

/* What comes, for people; of several videos also when all will be done. */
static void announce(const batch *b, const h3_request *q)
{
    const double taken = now() - b->began;

    if (b->base->is_json || b->base->is_quiet) return;
    if (!b->base->count) {
        fprintf(stderr, "line %ld: %s\n", b->line, file_of(q));
        return;
    }
    fprintf(stderr, "video %ld of %d: %s, seed %llu", b->line, b->base->count, file_of(q),
            (unsigned long long)q->seed);
    if (b->n_done)
        fprintf(stderr, ", about %.0f s left for all",
                taken / (double)b->n_done * (double)(b->base->count - b->n_done));
    fprintf(stderr, "\n");
}

static void run_request(batch *b, request *r)
{
    h3_request *q = &r->c.rq;
    h3_result rs;
    h3_status st;

    announce(b, q);
    if (b->base->count) {
        b->p.video = b->line;
        b->p.videos = b->base->count;
    } else {
        b->p.line = b->line;
    }
    q->on_event = on_event;
    q->user = b;
    st = h3_generate(b->e, q, &rs);
    progress_clear(&b->p);
    if (st != H3_OK) {
        line_failed(b, report_status(st), h3_status_name(st), h3_error());
        return;
    }
    b->n_done++;
    progress_result(&b->p, &rs, file_of(q));
    if (!b->base->is_json) return;
    printf("{\"event\":\"result\",\"%s\":%ld,\"output\":", b->base->count ? "video" : "line",
           b->line);
    json_text(file_of(q));
    if (b->base->count && q->seed <= INT64_MAX)
        printf(",\"seed\":%llu", (unsigned long long)q->seed);
    else if (b->base->count) // as in every other place: a text, for readers of JSON end at 2^63
        printf(",\"seed\":\"%llu\"", (unsigned long long)q->seed);
    printf("}\n");
    fflush(stdout);
}

/* All lines of a file, before any of them runs. */
static int look_at_all(batch *b)
{
    bool *is_bad = NULL;
    int st = 0;

    while (st == 0 && next_line(b)) {
        request *r = NULL;
        bool *grown = realloc(is_bad, ((size_t)b->line + 1) * sizeof *grown);
        if (!grown) {
            st = report_said(6, "no memory for %ld lines", b->line);
            break;
        }
        is_bad = grown;
        is_bad[b->line] = !admit(b, &r);
        close_request(&r);
    }
    b->n_lines = b->line;
    b->is_bad = is_bad;
    rewind(b->f);
    b->line = b->n_requests = 0;
    return st;
}

static void run_all(batch *b)
{
    while (next_line(b) && !ferror(stdout)) {
        request *r = NULL;
        if (b->is_bad && (b->line > b->n_lines || b->is_bad[b->line])) {
            b->n_requests++;
            continue;
        }
        if (admit(b, &r)) run_request(b, r);
        close_request(&r);
    }
    if (stop_is_asked()) b->status = 130;
}

static void tell_end(const batch *b, double seconds)
{
    if (b->base->is_json) {
        printf(
            "{\"event\":\"batch\",\"requests\":%ld,\"done\":%ld,\"failed\":%ld,\"seconds\":%.3f}\n",
            b->base->count ? (long)b->base->count : b->n_requests, b->n_done, b->n_failed, seconds);
        return;
    }
    if (b->base->is_quiet) return;
    if (b->base->count)
        fprintf(stderr, "%ld of %d videos done in %.1f s", b->n_done, b->base->count, seconds);
    else
        fprintf(stderr, "%s: %ld of %ld requests done in %.1f s", b->name, b->n_done, b->n_requests,
                seconds);
    if (b->n_failed && !b->base->count)
        fprintf(stderr, ", %ld failed, the first in line %ld", b->n_failed, b->first_failed);
    fprintf(stderr, "%s\n", stop_is_asked() ? "; stopped" : "");
}

static int open_lines(batch *b)
{
    struct stat info;

    if (strcmp(b->base->batch, "-") == 0) {
        b->f = stdin;
        b->name = "standard input";
    } else {
        b->name = b->base->batch;
        b->f = fopen(b->name, "re");
    }
    if (!b->f || fstat(fileno(b->f), &info) != 0)
        return report_said(errno == ENOENT ? 5 : 3, "--batch %s: %s", b->name, strerror(errno));
    if (S_ISDIR(info.st_mode)) return report_said(2, "--batch %s: is a folder", b->name);
    return b->f != stdin && S_ISREG(info.st_mode) ? look_at_all(b) : 0;
}

static void print_counters(const batch *b)
{
    char *json = NULL;

    if (!b->base->is_verbose || b->base->is_json) return;
    if (h3_counters_json(b->e, &json) == H3_OK) fprintf(stderr, "%s\n", json);
    h3_string_free(json);
}

int batch_run(cli *c)
{
    batch b = {.base = c, .began = now()};
    char *prompt = NULL;
    int size = 1, st;

    if (h3_launched_rank(&size) >= 0 && size > 1)
        return report_said(2, "the requests of %s run in one process, not in %d",
                           c->count ? "--count" : "--batch", size);
    st = prompt_take(c, &prompt);
    c->prompt_file = NULL;
    c->n_args = 0;
    progress_init(&b.p, c->is_json, c->is_verbose, c->is_quiet);
    c->engine.keep_loaded = true;
    c->engine.has_timing = c->is_verbose;
    if (st == 0 && !c->count) st = open_lines(&b);
    if (st == 0) {
        const h3_status opened = h3_engine_open(&b.e, &c->engine);
        if (opened != H3_OK) st = report_failed(c, opened);
    }
    if (st == 0) {
        stop_cancels(b.e);
        run_all(&b);
        stop_cancels(NULL);
        if (b.n_requests == 0 && !stop_is_asked()) {
            b.status = report_said(2, "%s: holds no request", b.name);
        } else {
            tell_end(&b, now() - b.began);
            print_counters(&b);
        }
        st = b.status;
    }
    h3_engine_close(&b.e);
    if (b.f && b.f != stdin) fclose(b.f);
    for (size_t i = 0; i < b.n_places; i++)
        free(b.place[i].path);
    free(b.place);
    free(b.is_bad);
    free(b.text);
    free(prompt);
    return st;
}
