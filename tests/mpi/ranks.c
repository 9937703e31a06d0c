/**
 * Ranks against one rank: whatever several processes compute together must be, bit for bit, what
 * one computes alone; and when one of them fails, all end with its words.
 *
 *   ranks SCENARIO [N [DEVICE [SEED]]]      N processes started here, or those of mpirun
 *
 * DEVICE is for "cancel", "nan", "killed", "anytime", and for "near" and "spread": on GPUs products
 * pick their way by the number of rows, so the result of several ranks is near that of one. Each
 * may be off by the tolerance of the DiT's goldens, the two from each other by twice that.
 * "anytime" ends ranks at a moment that SEED picks, one or all, by a stop or by a kill.
 *
 * Every rank also runs the request alone and compares. Exit status 0, or 1 with a line for each
 * difference. A rank that does not get from one stage to the next says where it stands, with the
 * stack of each thread, and ends with status 3: H3_RANKS_PATIENCE seconds, 600 without.
 * H3_RANKS_TRACE=1 shows all stages; H3_RANKS_LAYERS makes the model deeper.
 */
#include <dirent.h>
#include <execinfo.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "attention.h"
#include "sampler.h"
#include "synth.h"

static int n_failed;
static h3_comm *comm; // NULL: one rank

static void check(bool is_ok, const char *fmt, ...) H3_PRINTF(2, 3);
static void check(bool is_ok, const char *fmt, ...)
{
    va_list ap;

    if (is_ok) return;
    n_failed++;
    fprintf(stderr, "rank %d of %d: ", h3_comm_rank(comm), h3_comm_size(comm));
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
}

/* -------------------------------------------------------------------------------- where we are */

static volatile const char *stage = "start";
static volatile int stage_step = -1;
static unsigned patience = 600;
static bool does_trace;
static double begun;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* In a handler, so nothing but write. */
static void write_text(const char *text)
{
    if (write(2, text, strlen(text)) < 0) return;
}

static void write_stack(const char *who)
{
    void *at[64];
    char line[96];

    snprintf(line, sizeof line, "rank %d: %s %ld\n", h3_comm_rank(comm), who, syscall(SYS_gettid));
    write_text(line);
    backtrace_symbols_fd(at, backtrace(at, 64), 2);
}

static void show_thread(int number)
{
    (void)number;
    write_stack("thread");
}

/* Each thread shows its own stack; those that take no signals stay unseen. */
static void show_threads(void)
{
    const struct timespec pause = {0, 100000000};
    DIR *dir = opendir("/proc/self/task");
    const struct dirent *e;

    while (dir && (e = readdir(dir)) != NULL) {
        const long id = atol(e->d_name);
        if (id <= 0 || id == syscall(SYS_gettid)) continue;
        syscall(SYS_tgkill, getpid(), id, SIGUSR2);
        nanosleep(&pause, NULL);
    }
}

/* Not for the thread that hangs to do: it may take no signals either. */
static void *guard(void *unused)
{
    const struct timespec nap = {0, 200000000};
    const volatile char *seen = NULL;
    int seen_step = -1;
    double since = now();

    (void)unused;
    for (;;) {
        nanosleep(&nap, NULL);
        if (seen != stage || seen_step != stage_step) {
            seen = stage;
            seen_step = stage_step;
            since = now();
        }
        if (now() - since < patience) continue;
        fprintf(stderr, "rank %d of %d: no progress for %u s at: %s", h3_comm_rank(comm),
                h3_comm_size(comm), patience, (const char *)stage);
        if (stage_step >= 0) fprintf(stderr, ", step %d is done", stage_step);
        fprintf(stderr, "\n");
        show_threads();
        _exit(3);
    }
}

static void at_step(const char *name, int step)
{
    stage_step = step;
    stage = name;
    if (!does_trace) return;
    if (step >= 0)
        fprintf(stderr, "rank %d %.3f s: %s %d\n", h3_comm_rank(comm), now() - begun, name, step);
    else
        fprintf(stderr, "rank %d %.3f s: %s\n", h3_comm_rank(comm), now() - begun, name);
}

static void at(const char *name)
{
    at_step(name, -1);
}

/* In every rank: threads do not survive a fork. */
static void start_guard(void)
{
    const char *wish = getenv("H3_RANKS_PATIENCE");
    struct sigaction a = {.sa_handler = show_thread, .sa_flags = SA_RESTART};
    pthread_t thread;
    void *some[1];

    if (wish) patience = (unsigned)atoi(wish);
    does_trace = getenv("H3_RANKS_TRACE") != NULL;
    begun = now();
    backtrace(some, 1); // loads what it needs now
    sigaction(SIGUSR2, &a, NULL);
    if (pthread_create(&thread, NULL, guard, NULL) == 0) pthread_detach(thread);
}

static void must(h3_status st, const char *what)
{
    if (st == H3_OK) return;
    fprintf(stderr, "rank %d: %s: %s\n", h3_comm_rank(comm), what, h3_error());
    exit(1);
}

static uint32_t mix(uint32_t a, uint32_t b, uint32_t i)
{
    uint32_t x = a * 2654435761u ^ b * 40503u ^ i * 2246822519u;
    x ^= x >> 15;
    return x * 3266489917u;
}

/* ------------------------------------------------------------------------------- exchanges */

/* Bytes that rank a sends to rank b in round k: none, few, or more than a socket holds. */
static size_t size_of(int k, int a, int b)
{
    static const size_t sizes[] = {0, 1, 63, 4096, 70001, 300007, 1 << 20, 9000001};
    return sizes[mix((uint32_t)(k + 1), (uint32_t)(a * 31 + b), 7) % 8];
}

static void all_to_all_round(int k)
{
    const int P = comm->size, me = comm->rank;
    h3_message send[H3_COMM_MAX] = {{0}}, recv[H3_COMM_MAX] = {{0}};

    for (int r = 0; r < P; r++) {
        send[r] = (h3_message){r, malloc(size_of(k, me, r) + 1), size_of(k, me, r)};
        recv[r] = (h3_message){r, calloc(1, size_of(k, r, me) + 1), size_of(k, r, me)};
        for (size_t i = 0; i < send[r].bytes; i++)
            ((unsigned char *)send[r].data)[i] =
                (unsigned char)mix((uint32_t)(me * 64 + r), (uint32_t)k, (uint32_t)i);
    }
    must(h3_comm_all_to_all(comm, NULL, recv, send), "all to all");
    for (int r = 0; r < P; r++) {
        size_t bad = 0;
        for (size_t i = 0; r != me && i < recv[r].bytes; i++)
            bad += ((unsigned char *)recv[r].data)[i] !=
                   (unsigned char)mix((uint32_t)(r * 64 + me), (uint32_t)k, (uint32_t)i);
        check(bad == 0, "round %d: %zu of %zu bytes from rank %d are wrong", k, bad, recv[r].bytes,
              r);
        free(send[r].data);
        free(recv[r].data);
    }
}

static void gather_and_broadcast(void)
{
    const int P = comm->size, me = comm->rank;
    size_t bytes[H3_COMM_MAX] = {0}, sum = 0, at = 0;
    unsigned char *all, value[3] = {0};

    for (int r = 0; r < P; r++) {
        bytes[r] = (size_t)(r % 3) * 1000 + (r == 1 ? 5000001 : 0); // rank 0 has nothing
        sum += bytes[r];
    }
    all = calloc(1, sum + 1);
    for (int r = 0; r < P; at += bytes[r++])
        if (r == me) memset(all + at, 17 + r, bytes[r]);
    must(h3_comm_all_gather(comm, NULL, all, bytes), "all gather");
    at = 0;
    for (int r = 0; r < P; r++)
        for (size_t i = 0; i < bytes[r]; i++, at++)
            if (all[at] != 17 + r) {
                check(false, "all gather: byte %zu of rank %d", i, r);
                r = P;
                break;
            }
    free(all);
    for (int root = 0; root < P; root++) {
        if (me == root) memcpy(value, "abc", 3), value[0] = (unsigned char)root;
        must(h3_comm_broadcast(comm, NULL, value, sizeof value, root), "broadcast");
        check(value[0] == root && value[2] == 'c', "broadcast from %d", root);
        memset(value, 0, sizeof value);
    }
    must(h3_comm_barrier(comm), "barrier");
}

static void shares_cover(void)
{
    for (int64_t n = 0; n < 300; n += 7)
        for (int r = 0; r < comm->size; r++) {
            const int64_t a = h3_comm_first(comm, n, r), b = h3_comm_first(comm, n, r + 1);
            check(b - a >= n / comm->size && b - a <= n / comm->size + 1, "share of %lld",
                  (long long)n);
        }
    check(h3_comm_first(comm, 12345, 0) == 0 && h3_comm_first(comm, 12345, comm->size) == 12345,
          "shares do not cover");
}

static int exchanges(void)
{
    for (int k = 0; k < 6; k++)
        all_to_all_round(k);
    gather_and_broadcast();
    shares_cover();
    must(h3_comm_same(comm, 42, "the answer"), "same");
    must(h3_comm_agree(comm, H3_OK), "agree");
    /* A second stretch, which ends with a disagreement that all see. */
    const h3_status st = h3_comm_same(comm, comm->rank == comm->size - 1, "the last rank");
    check(st == H3_E_ARG && strstr(h3_error(), "the last rank is not the same"), "same: %s",
          h3_error());
    check(h3_comm_agree(comm, st) == H3_E_ARG, "agree on a failure");
    check(h3_comm_barrier(comm) == H3_E_INTERNAL, "an exchange after a failure");
    check(h3_comm_agree(comm, H3_OK) == H3_E_INTERNAL, "agree after a failure");
    return 0;
}

/* --------------------------------------------------------------------------------- requests */

enum { VIDEO = 96, AUDIO = 32, TEXT = 24, STEPS = 3 };

typedef struct request {
    const char *name;
    int64_t n_text, t, h, w, n_audio;
    int n_conditions;
    h3_condition_shape condition[2];
} request;

/* Rows: fewer than ranks in some medium, prime, one rank with text only, conditions of both
 * media. */
static const request requests[] = {
    {"few rows", 1, 1, 2, 2, 1, 0, {{0}}},
    {"17 rows", 4, 2, 4, 2, 4, 0, {{0}}},
    {"long text", 101, 2, 4, 4, 8, 0, {{0}}},
    {"keyframe", 5, 3, 6, 4, 11, 1, {{.kind = H3_COND_FIRST, .t = 1, .h = 6, .w = 4}}},
    {"references",
     7,
     7,
     4,
     6,
     19,
     2,
     {{.kind = H3_COND_IMAGE, .t = 1, .h = 2, .w = 4},
      {.kind = H3_COND_VIDEO, .t = 2, .h = 4, .w = 4, .n_audio = 5}}},
};

typedef struct trace { // rows and velocities of every step
    float *at;
    size_t n, cap;
    int stop_at; // this rank asks to stop after that step
    int die_at;
    h3_cancel_flag *flag;
} trace;

static void keep(trace *t, h3_dev *d, h3_tensor x)
{
    const size_t n = (size_t)h3_numel(x);

    if (t->n + n > t->cap) {
        t->cap = 2 * (t->n + n);
        t->at = realloc(t->at, t->cap * sizeof *t->at);
        if (!t->at) exit(1);
    }
    must(h3_dev_download(d, t->at + t->n, x), "download");
    t->n += n;
}

static h3_status after_step(void *user, const h3_sampler_step *s)
{
    trace *t = user;

    keep(t, s->dev, s->video);
    keep(t, s->dev, s->audio);
    keep(t, s->dev, s->v_video);
    keep(t, s->dev, s->v_audio);
    at_step("after step", s->step);
    if (s->step == t->stop_at) atomic_store(&t->flag->stop, true);
    if (s->step == t->die_at) kill(getpid(), SIGKILL);
    return H3_OK;
}

static float *numbers(int64_t n, uint32_t seed)
{
    float *p = malloc((size_t)n * sizeof *p + 1);

    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(mix(seed, 5, (uint32_t)i) >> 8) * 0x1p-23f - 1.0f;
    return p;
}

static h3_status run_request(h3_dit *m, const request *q, h3_dtype act, trace *t, bool has_nan)
{
    int32_t tags[128];
    const h3_layout_in li = {.text_tags = tags,
                             .n_text = q->n_text,
                             .conditions = q->condition,
                             .n_conditions = q->n_conditions,
                             .t = q->t,
                             .h = q->h,
                             .w = q->w,
                             .n_audio = q->n_audio};
    h3_schedule sv = {0}, sa = {0};
    h3_layout *l = NULL;
    h3_status st;

    for (int i = 0; i < 128; i++)
        tags[i] = H3_TAG_TEXT;
    must(h3_layout_create(&l, &li), q->name);
    must(h3_schedule_init(&sv, STEPS + 1, H3_VIDEO_SHIFT), "schedule");
    must(h3_schedule_init(&sa, STEPS + 1, H3_AUDIO_SHIFT), "schedule");
    float *v = numbers(l->n_video * VIDEO, 1), *a = numbers(l->n_audio * AUDIO, 2),
          *text = numbers(l->n_text * TEXT, 3);
    float *v_out = numbers(l->n_video * VIDEO, 4), *a_out = numbers(l->n_audio * AUDIO, 5);
    if (has_nan) v[l->n_video * VIDEO - 1] = NAN;
    const h3_sampler_in in = {.layout = l,
                              .video = &sv,
                              .audio = &sa,
                              .prompt_embeds = h3_tensor_2d(text, H3_F32, l->n_text, TEXT),
                              .act = (uint8_t)act,
                              .video_rows = v,
                              .audio_rows = a,
                              .after_step = after_step,
                              .user = t};
    at(q->name);
    st = h3_sampler_run(v_out, a_out, m, &in);
    at(st == H3_OK ? "run is through" : "run has failed");
    if (st == H3_OK) {
        h3_tensor out = h3_tensor_1d(v_out, H3_F32, (l->n_video - l->n_condition_video) * VIDEO);
        keep(t, m->dev, out);
        out = h3_tensor_1d(a_out, H3_F32, (l->n_audio - l->n_condition_audio) * AUDIO);
        keep(t, m->dev, out);
    }
    free(v);
    free(a);
    free(text);
    free(v_out);
    free(a_out);
    h3_layout_free(&l);
    h3_schedule_free(&sv);
    h3_schedule_free(&sa);
    return st;
}

/* ------------------------------------------------------------------------------------ models */

typedef struct model {
    h3_dev *d;
    h3_checkpoint *ck;
    h3_dit *m;
    h3_cancel_flag cancel;
} model;

static void open_model(model *z, const char *device, int heads)
{
    const char *wish = getenv("H3_RANKS_LAYERS");
    const h3_synth_opts o = {
        .is_tiny = true, .layers = wish ? atoi(wish) : 3, .seed = 3, .heads = heads};
    char dir[] = "/tmp/h3av-ranks-XXXXXX", path[64];

    at("opening the model");
    memset(z, 0, sizeof *z);
    if (!mkdtemp(dir)) exit(1);
    snprintf(path, sizeof path, "%s/dit.safetensors", dir);
    must(h3_dev_open(&z->d, device, &(h3_dev_opts){.n_threads = 1, .cancel = &z->cancel}), device);
    must(h3_synth_write(path, H3_ROLE_DIT, &o), path);
    must(h3_ckpt_open(&z->ck, path, H3_ROLE_DIT, NULL), path);
    must(h3_dit_open(&z->m, z->ck, z->d), path);
    z->m->mlp_band = 40; // so that a request has several bands, and ranks others than one rank
    unlink(path);
    rmdir(dir);
}

static void close_model(model *z)
{
    at("leaving the ranks");
    h3_comm_detach(comm, z->d);
    at("closing the model");
    h3_dit_close(&z->m);
    h3_ckpt_close(&z->ck);
    h3_dev_close(&z->d);
    at("the model is closed");
}

static bool does_spread;

static void join(model *z)
{
    at("joining the ranks");
    must(h3_comm_attach(comm, z->d), "attach");
    z->d->spreads_weights = does_spread;
    if (comm) comm->cancel = &z->cancel;
}

/* The device of the command line; GPUs are shared out. */
static const char *near_device = "cpu";
static unsigned seed; // of "anytime"

static const char *device_of_rank(void)
{
    static char device[32];

    snprintf(device, sizeof device, "%s", near_device);
    if (strcmp(near_device, "cuda") == 0)
        snprintf(device, sizeof device, "cuda:%d", comm ? comm->local_rank : 0);
    return device;
}

/* -------------------------------------------------------------------------------- scenarios */

static trace quiet(h3_cancel_flag *flag)
{
    return (trace){.stop_at = -1, .die_at = -1, .flag = flag};
}

static void same_numbers(const char *device, h3_dtype act, size_t n_requests)
{
    const int heads = 4 * h3_comm_size(comm);
    model z;

    open_model(&z, device, heads);
    for (size_t i = 0; i < n_requests; i++) {
        trace alone = quiet(&z.cancel), shared = quiet(&z.cancel);
        size_t n_bad = 0;
        must(run_request(z.m, &requests[i], act, &alone, false), requests[i].name);
        const size_t held = h3_store_held(z.m->store);
        join(&z);
        must(run_request(z.m, &requests[i], act, &shared, false), requests[i].name);
        check((h3_store_held(z.m->store) < held) == does_spread, "%s: weights of %zu and %zu bytes",
              requests[i].name, held, h3_store_held(z.m->store));
        h3_comm_detach(comm, z.d);
        check(alone.n == shared.n, "%s: %zu numbers, alone %zu", requests[i].name, shared.n,
              alone.n);
        for (size_t k = 0; k < alone.n && k < shared.n; k++)
            n_bad += memcmp(&alone.at[k], &shared.at[k], sizeof(float)) != 0;
        check(n_bad == 0, "%s, %s, %d heads, %s: %zu of %zu numbers differ from those of one rank",
              requests[i].name, device, heads, h3_dtype_name(act), n_bad, alone.n);
        free(alone.at);
        free(shared.at);
    }
    close_model(&z);
}

static int same(void)
{
    same_numbers("cpu", H3_F32, sizeof requests / sizeof *requests);
    same_numbers("cpu", H3_BF16, sizeof requests / sizeof *requests);
    same_numbers("ref", H3_F32, 2);
    must(h3_comm_agree(comm, H3_OK), "agree");
    return 0;
}

static double distance(const trace *a, const trace *b)
{
    double d = 0, sum = 0;

    for (size_t i = 0; i < a->n; i++) {
        const double x = (double)a->at[i], e = (double)b->at[i] - x;
        d += e * e;
        sum += x * x;
    }
    return sqrt(d / sum);
}

/* Ranks join once: finding each other takes GPUs a second. */
static void near_numbers(const char *device, h3_dtype act, double limit)
{
    enum { N = sizeof requests / sizeof *requests };
    trace alone[N], shared[N];
    size_t held;
    model z;

    open_model(&z, device, 4 * h3_comm_size(comm));
    for (int i = 0; i < N; i++) {
        alone[i] = quiet(&z.cancel);
        must(run_request(z.m, &requests[i], act, &alone[i], false), requests[i].name);
    }
    held = h3_store_held(z.m->store);
    join(&z);
    if (h3_comm_rank(comm) == 0) printf("%s, ranks by %s\n", device, comm ? comm->name : "none");
    for (int i = 0; i < N; i++) {
        shared[i] = quiet(&z.cancel);
        must(run_request(z.m, &requests[i], act, &shared[i], false), requests[i].name);
    }
    /* A device has its part and two blocks: of three that is another number than all of them. */
    check((h3_store_held(z.m->store) != held) == does_spread, "weights of %zu and %zu bytes", held,
          h3_store_held(z.m->store));
    for (int i = 0; i < N; i++) {
        const double far = alone[i].n == shared[i].n ? distance(&alone[i], &shared[i]) : 1;
        if (h3_comm_rank(comm) == 0)
            printf("%-10s %s: %.2e of the root mean square (limit %.0e)\n", requests[i].name,
                   h3_dtype_name(act), far, limit);
        check(far <= limit, "%s, %s: off by %.3g", requests[i].name, h3_dtype_name(act), far);
        free(alone[i].at);
        free(shared[i].at);
    }
    close_model(&z);
}

static int near_one_rank(void)
{
    const char *device = device_of_rank();

    near_numbers(device, H3_F32, 2 * 3e-6);
    near_numbers(device, H3_BF16, 2 * 1.5e-2);
    must(h3_comm_agree(comm, H3_OK), "agree");
    return 0;
}

/* Weights spread over the ranks: those of one rank that has all. */
static int spread(void)
{
    does_spread = true;
    if (strcmp(near_device, "cpu") != 0) return near_one_rank();
    same_numbers("cpu", H3_F32, sizeof requests / sizeof *requests);
    same_numbers("cpu", H3_BF16, 2);
    must(h3_comm_agree(comm, H3_OK), "agree");
    return 0;
}

/* 4 heads over 3 ranks. */
static int heads(void)
{
    model z;
    trace t;
    h3_status st;

    open_model(&z, "cpu", 4);
    t = quiet(&z.cancel);
    join(&z);
    st = run_request(z.m, &requests[1], H3_F32, &t, false);
    check(st == H3_E_UNSUPPORTED && strstr(h3_error(), "4 attention heads do not divide") &&
              strstr(h3_error(), "1, 2, 4"),
          "heads: %d %s", (int)st, h3_error());
    check(h3_comm_agree(comm, st) == H3_E_UNSUPPORTED, "agree");
    free(t.at);
    close_model(&z);
    return 0;
}

/* One rank is asked to stop after the first step: all stop. */
static int cancel(void)
{
    model z;
    trace t;
    h3_status st;

    open_model(&z, device_of_rank(), 4 * h3_comm_size(comm));
    t = quiet(&z.cancel);
    if (h3_comm_rank(comm) == h3_comm_size(comm) - 1) t.stop_at = 0;
    join(&z);
    st = h3_comm_agree(comm, run_request(z.m, &requests[4], H3_F32, &t, false));
    check(st == H3_E_CANCELLED && strcmp(h3_error(), "stopped on request") == 0, "cancel: %d %s",
          (int)st, h3_error());
    free(t.at);
    close_model(&z);
    return 0;
}

/* NaN in the last video row: whoever owns it says so. */
static int nan_row(void)
{
    model z;
    trace t;
    h3_status st;

    open_model(&z, device_of_rank(), 4 * h3_comm_size(comm));
    t = quiet(&z.cancel);
    join(&z);
    st = h3_comm_agree(comm, run_request(z.m, &requests[4], H3_F32, &t, true));
    check(st == H3_E_NUMERIC && strstr(h3_error(), "velocity holds NaN"), "NaN: %d %s", (int)st,
          h3_error());
    free(t.at);
    close_model(&z);
    return 0;
}

/* The last rank is killed after the first step. */
static int killed(void)
{
    const int last = h3_comm_size(comm) - 1;
    char words[64];
    model z;
    trace t;
    h3_status st;

    open_model(&z, device_of_rank(), 4 * h3_comm_size(comm));
    t = quiet(&z.cancel);
    if (h3_comm_rank(comm) == last) t.die_at = 0;
    join(&z);
    st = h3_comm_agree(comm, run_request(z.m, &requests[4], H3_F32, &t, false));
    snprintf(words, sizeof words, "rank %d: ended unexpectedly", last);
    check(st == H3_E_INTERNAL && strstr(h3_error(), words), "killed: %d %s", (int)st, h3_error());
    free(t.at);
    close_model(&z);
    return 0;
}

/* A stop or a kill at a moment of its own. */
typedef struct fate {
    double after; // seconds
    bool is_kill;
    h3_cancel_flag *flag;
} fate;

static void *meet(void *user)
{
    const fate *f = user;
    const struct timespec nap = {(time_t)f->after, (long)(fmod(f->after, 1) * 1e9)};

    nanosleep(&nap, NULL);
    if (f->is_kill) kill(getpid(), SIGKILL);
    atomic_store(&f->flag->stop, true);
    return NULL;
}

/* Wherever ranks are in a run when one or all of them are asked to stop, or one is killed, all end,
 * and with one voice. The first run goes through; it tells how long one takes. */
static int anytime(void)
{
    const bool is_last = h3_comm_rank(comm) == h3_comm_size(comm) - 1;
    const bool is_first = h3_comm_rank(comm) == 0;
    const unsigned kind = seed % 4; // the last one stops, all do, the first one does, the last dies
    const bool is_kill = kind == 3, has_fate = kind == 1 || (kind == 2 ? is_first : is_last);
    const double part = (double)(mix(seed, 11, 3) >> 8) * 0x1p-24;
    pthread_t thread;
    model z;
    trace t;
    h3_status st;

    open_model(&z, device_of_rank(), 4 * h3_comm_size(comm));
    t = quiet(&z.cancel);
    join(&z);
    for (int i = 0; i < 2; i++) {
        const double t0 = now();
        must(h3_comm_agree(comm, run_request(z.m, &requests[4], H3_F32, &t, false)), "a whole run");
        if (i == 0 && seed % 8 < 4) continue; // else buffers of the second run are new ones
        fate f = {.after = part * (now() - t0), .is_kill = is_kill, .flag = &z.cancel};
        if (has_fate && pthread_create(&thread, NULL, meet, &f) != 0) exit(1);
        st = run_request(z.m, &requests[i ? 4 : 3], H3_F32, &t, false);
        at("agreeing");
        st = h3_comm_agree(comm, st);
        check(st == H3_OK || (is_kill ? st == H3_E_INTERNAL : st == H3_E_CANCELLED),
              "anytime %u: %d %s", seed, (int)st, h3_error());
        if (has_fate) pthread_join(thread, NULL);
        break;
    }
    free(t.at);
    close_model(&z);
    return 0;
}

/* Fails before the others get to their first exchange: all have that rank's words. */
static int early(void)
{
    const int last = h3_comm_size(comm) - 1;
    h3_status st;

    if (h3_comm_rank(comm) == last) {
        st = h3_fail(H3_E_MISSING, "file x is missing here");
    } else {
        unsigned char big[2] = {0};
        st = h3_comm_broadcast(comm, NULL, big, sizeof big, last);
        check(st == H3_E_MISSING, "early: %d", (int)st);
    }
    st = h3_comm_agree(comm, st);
    check(st == H3_E_MISSING && strstr(h3_error(), "file x is missing here"), "early: %s",
          h3_error());
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } scenarios[] = {{"exchanges", exchanges}, {"same", same},     {"spread", spread},
                     {"near", near_one_rank},  {"heads", heads},   {"cancel", cancel},
                     {"nan", nan_row},         {"killed", killed}, {"early", early},
                     {"anytime", anytime}};
    int rank, size, n_bad = 0;

    h3_comm_launched(&rank, &size);
    if (argc > 3) near_device = argv[3];
    must(size > 1 ? h3_comm_join(&comm) : h3_comm_fork(&comm, argc > 2 ? atoi(argv[2]) : 2),
         "start");
    if (argc > 4) seed = (unsigned)atoi(argv[4]);
    start_guard();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (argc > 1 && strcmp(argv[1], scenarios[i].name) == 0) {
            scenarios[i].run();
            n_bad = -1;
        }
    if (n_bad == 0) {
        fprintf(stderr, "usage: ranks SCENARIO [N [DEVICE [SEED]]]\n");
        return 2;
    }
    at("waiting for the other ranks' processes");
    h3_comm_close(&comm);
    at("the end");
    return n_failed ? 1 : 0;
}
