/**
 * Runs that end early, and the ones that go on from them: killed at random moments, stopped, out of
 * disk, with broken files. Every run has a process of its own; the parent kills it and compares
 * files.
 *
 *   h3av-resume [KILLS]   50 unless given
 */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <h3av/h3av.h>
#include <libavcodec/avcodec.h>

#include "file.h"
#include "manifest.h"

#define MODEL H3_SOURCE_DIR "/tests/data/tiny-h3/original"

static char dir[64];
static int n_kills = 50;

/* A path in the test's folder; the last 256 stay valid. */
static char *at(const char *name)
{
    static char path[256][400];
    static int turn;
    char *p = path[turn++ % 256];

    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

/* ---------------------------------------------------------------------------------- processes */

/* What a child is asked to do. */
typedef struct task {
    const char *model;                 // NULL: built in
    const char *dit, *vae, *audio_vae; // instead of the model's, or NULL
    h3_request rq;
    const char *decode;    // latents to decode instead of generating
    int stop_after_step;   // ask to stop when this step is done, -1: never
    rlim_t largest_file;   // 0: no limit
    int poison_after_step; // NaN gets into `poisoned` of `dit` when this step is done, 0: never
    const char *poisoned;
    int frames_until_failure; // of the video encoder; 0: it works
    bool is_quiet_on_errors;  // h3_error comes back, nothing else
} task;

typedef struct outcome {
    int status; // h3_status; -1: killed
    int n_warnings;
    char error[600], warning[600];
    double sample_seconds;
    h3_result rs;
} outcome;

/* A video encoder that gives up (the linker routes calls here, cmake/fit.cmake). */
static int frames_left; // 0: it works
int __real_avcodec_send_frame(AVCodecContext *c, const AVFrame *f);
int __wrap_avcodec_send_frame(AVCodecContext *c, const AVFrame *f);
int __wrap_avcodec_send_frame(AVCodecContext *c, const AVFrame *f)
{
    if (c->codec_type == AVMEDIA_TYPE_VIDEO && frames_left > 0 && --frames_left == 0) {
        frames_left = 1;
        return -ENOMEM;
    }
    return __real_avcodec_send_frame(c, f);
}

static void write_into(const char *folder, const char *tensor, bool is_middle, const void *what,
                       size_t n);
static const uint32_t nans[4] = {0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000};

/* Events of a child on their way to its parent. */
enum { SAY_SAMPLING = 'S', SAY_STEP = 's', SAY_END = 'E' };

typedef struct child {
    const task *t;
    int fd;
    h3_engine *e;
    outcome o;
    struct timespec t0;
} child;

static double since(struct timespec t0)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)(t.tv_sec - t0.tv_sec) + 1e-9 * (double)(t.tv_nsec - t0.tv_nsec);
}

static void say(const child *c, char what)
{
    if (write(c->fd, &what, 1) != 1) _exit(3);
}

static void on_event(void *user, const h3_event *ev)
{
    child *c = user;

    if (ev->kind == H3_EVENT_PHASE && strcmp(ev->phase, "sample") == 0) {
        clock_gettime(CLOCK_MONOTONIC, &c->t0);
        say(c, SAY_SAMPLING);
    }
    if (ev->kind == H3_EVENT_PHASE_END && strcmp(ev->phase, "sample") == 0)
        c->o.sample_seconds = since(c->t0);
    if (ev->kind == H3_EVENT_STEP && strcmp(ev->phase, "sample") == 0) {
        say(c, SAY_STEP);
        if (ev->step == c->t->stop_after_step) h3_cancel(c->e);
        if (c->t->poisoned && ev->step == c->t->poison_after_step)
            write_into(c->t->dit, c->t->poisoned, true, nans, sizeof nans);
    }
    if (ev->kind == H3_EVENT_WARNING && !strstr(ev->text, "canvas") &&
        !strstr(ev->text, "trained")) {
        c->o.n_warnings++;
        snprintf(c->o.warning, sizeof c->o.warning, "%s", ev->text);
    }
}

static void run_child(const task *t, int fd)
{
    h3_engine_opts eo = h3_engine_default();
    h3_request rq = t->rq;
    child c = {.t = t, .fd = fd};
    h3_status st;

    if (t->largest_file) {
        const struct rlimit lim = {t->largest_file, t->largest_file};
        signal(SIGXFSZ, SIG_IGN); // a write past it fails as on a full disk
        if (setrlimit(RLIMIT_FSIZE, &lim) != 0) _exit(4);
    }
    frames_left = t->frames_until_failure;
    eo.model = t->model;
    eo.dit = t->dit;
    eo.vae = t->vae;
    eo.audio_vae = t->audio_vae;
    eo.n_threads = 1;
    rq.on_event = on_event;
    rq.user = &c;
    st = h3_engine_open(&c.e, &eo);
    if (st == H3_OK)
        st = t->decode ? h3_decode(c.e, t->decode, &rq, &c.o.rs) : h3_generate(c.e, &rq, &c.o.rs);
    c.o.status = st;
    if (st != H3_OK) snprintf(c.o.error, sizeof c.o.error, "%s", h3_error());
    h3_engine_close(&c.e);
    say(&c, SAY_END);
    _exit(write(fd, &c.o, sizeof c.o) == (ssize_t)sizeof c.o ? 0 : 3);
}

/* Runs a task; kills it `wait` seconds after it has said that so many steps are done (0: that
 * sampling begins, < 0: never). */
static outcome run_and_kill(const task *t, int kill_at, double wait)
{
    outcome o = {.status = -1};
    int fd[2];
    pid_t pid;
    char what;

    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fd[0]);
        run_child(t, fd[1]);
    }
    close(fd[1]);
    while (read(fd[0], &what, 1) == 1) {
        if ((what == SAY_SAMPLING || what == SAY_STEP) && kill_at-- == 0) {
            usleep((useconds_t)(wait * 1e6));
            kill(pid, SIGKILL);
            break;
        }
        if (what == SAY_END && read(fd[0], &o, sizeof o) != (ssize_t)sizeof o) o.status = -1;
    }
    close(fd[0]);
    waitpid(pid, NULL, 0);
    return o;
}

static outcome run(const task *t)
{
    return run_and_kill(t, -1, 0);
}

static outcome must_run(const task *t)
{
    const outcome o = run(t);
    if (o.status != H3_OK) fail_msg("status %d: %s", o.status, o.error);
    return o;
}

static void must_fail(const task *t, h3_status want, const char *word)
{
    const outcome o = run(t);
    if (o.status != (int)want || !strstr(o.error, word))
        fail_msg("status %d \"%s\", expected %d and \"%s\"", o.status, o.error, want, word);
}

/* A small request that samples for a few dozen milliseconds. */
static task small_task(const char *out)
{
    task t = {.rq = h3_request_default(), .stop_after_step = -1};

    t.rq.prompt = "a red circle";
    t.rq.width = t.rq.height = 96;
    t.rq.frames = 22;
    t.rq.steps = 9;
    t.rq.seed = 7;
    t.rq.preset = "ultrafast";
    t.rq.crf = 1; // the video is larger than the latents, however empty the picture
    t.rq.lift_limits = true;
    t.rq.out_path = out;
    return t;
}

/* ------------------------------------------------------------------------------------- files */

static char *slurp(const char *path, size_t *n)
{
    char *p = NULL;
    if (h3_file_read(&p, n, path, 1u << 28) != H3_OK) fail_msg("%s", h3_error());
    return p;
}

static bool same_files(const char *a, const char *b)
{
    size_t na, nb;
    char *pa = slurp(a, &na), *pb = slurp(b, &nb);
    const bool same = na == nb && memcmp(pa, pb, na) == 0;

    free(pa);
    free(pb);
    return same;
}

static void put_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

/* Names in the test's folder that begin with `prefix` (or with a dot and it). */
static int count_files(const char *prefix)
{
    DIR *d = opendir(dir);
    int n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strncmp(e->d_name + (e->d_name[0] == '.'), prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

static void clear_folder(void)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlink(at(e->d_name));
    if (d) closedir(d);
}

static int set_up(void **state)
{
    task t;

    (void)state;
    snprintf(dir, sizeof dir, "/tmp/h3av-resume-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    t = small_task(at("full.mp4"));
    t.rq.keep_latents = true;
    must_run(&t);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    clear_folder();
    return rmdir(dir);
}

/* ------------------------------------------------------------------------------------- killed */

/* One run killed up to four times on its way; counts the kills that left a checkpoint to go on
 * from. */
static void kill_and_resume(double step, int *n_left)
{
    task t = small_task(at("killed.mp4"));
    int here = 1 + rand() % 4;

    t.rq.checkpoint_every = 1;
    for (;;) {
        const bool has_checkpoint = access(at("killed.mp4.checkpoint"), F_OK) == 0;
        const bool kills = here > 0 && *n_left > 0;
        const double wait = step * (double)(rand() % 1000) / 1000;
        t.rq.resume_path = has_checkpoint ? at("killed.mp4.checkpoint") : NULL;
        const outcome o = run_and_kill(&t, kills ? rand() % 9 : -1, wait);
        if (o.status == H3_OK) break;
        if (o.status != -1) fail_msg("a run that goes on failed: %s", o.error);
        if (access(at("killed.mp4.checkpoint"), F_OK) == 0) {
            --*n_left;
            here--;
        }
    }
}

static void test_killed_at_any_moment(void **state)
{
    task t = small_task(at("timed.mp4"));
    int n_left = n_kills, n_files = 0;
    double longest;
    (void)state;

    t.rq.checkpoint_every = 1;
    longest = must_run(&t).sample_seconds;                    // with its checkpoints
    assert_true(same_files(at("full.mp4"), at("timed.mp4"))); // they change nothing
    srand(20260101);
    while (n_left > 0) {
        kill_and_resume(longest / 8, &n_left);
        assert_true(same_files(at("full.mp4"), at("killed.mp4")));
        n_files++;
        unlink(at("killed.mp4"));
        assert_int_equal(count_files("killed.mp4"), 0); // no checkpoint, no latents, no temporary
    }
    printf("  %d kills in %.0f ms of sampling, %d files, all equal\n", n_kills, longest * 1e3,
           n_files);
}

/* ------------------------------------------------------------------------------------ stopped */

static void test_stopped(void **state)
{
    task t = small_task(at("stopped.mp4"));
    outcome o;
    (void)state;

    t.rq.checkpoint_every = 100; // none falls due: the stop itself keeps the steps
    t.stop_after_step = 3;
    o = run(&t);
    assert_int_equal(o.status, H3_E_CANCELLED);
    if (!strstr(o.error, "3 of 8") || !strstr(o.error, "--resume")) fail_msg("%s", o.error);
    assert_int_equal(count_files("stopped.mp4"), 1);
    t.stop_after_step = -1;
    t.rq.resume_path = at("stopped.mp4.checkpoint");
    o = must_run(&t);
    assert_int_equal(o.rs.n_forwards, 5);
    assert_true(same_files(at("full.mp4"), at("stopped.mp4")));

    t = small_task(at("stopped.mp4")); // not asked for, and only a moment is lost: nothing is left
    t.stop_after_step = 3;
    unlink(at("stopped.mp4"));
    assert_int_equal(run(&t).status, H3_E_CANCELLED);
    assert_int_equal(count_files("stopped.mp4"), 0);
}

/* ----------------------------------------------------------------------------------- full disk */

static void test_disk_full(void **state)
{
    task t = small_task(at("disk.mp4")), d;
    struct stat latents, mp4;
    outcome o;
    (void)state;

    assert_int_equal(stat(at("full.mp4.latents"), &latents), 0);
    assert_int_equal(stat(at("full.mp4"), &mp4), 0);
    assert_true(latents.st_size < mp4.st_size);
    t.largest_file = (rlim_t)(latents.st_size + 4096); // latents go through, the MP4 does not
    t.rq.checkpoint_every = 3;
    o = run(&t);
    assert_int_equal(o.status, H3_E_IO);
    if (!strstr(o.error, "h3av decode") || !strstr(o.error, "disk.mp4.latents"))
        fail_msg("%s", o.error);
    assert_int_equal(count_files("disk.mp4"), 1); // the latents and nothing else
    assert_true(same_files(at("full.mp4.latents"), at("disk.mp4.latents")));

    d = small_task(at("disk.mp4"));
    d.decode = at("disk.mp4.latents");
    must_run(&d);
    assert_true(same_files(at("full.mp4"), at("disk.mp4")));

    t.largest_file = 4096; // not even the latents: the last checkpoint would stay, had it fitted
    t.rq.out_path = at("disk2.mp4");
    t.rq.checkpoint_every = 0;
    o = run(&t);
    assert_int_equal(o.status, H3_E_IO);
    assert_int_equal(o.n_warnings, 1);
    if (!strstr(o.warning, "latents are not saved")) fail_msg("%s", o.warning);
    assert_int_equal(count_files("disk2.mp4"), 0);
}

static void test_unwritable_savings(void **state)
{
    task t = small_task(at("savings.mp4"));
    outcome o;
    (void)state;

    t.rq.checkpoint_path = at("nowhere/x.checkpoint");
    t.rq.checkpoint_every = 4;
    o = must_run(&t); // 8 steps: one falls due
    assert_int_equal(o.n_warnings, 1);
    if (!strstr(o.warning, "no checkpoint after step 4")) fail_msg("%s", o.warning);
    t = small_task(at("savings.mp4"));
    t.rq.latents_path = at("nowhere/x.latents");
    o = must_run(&t);
    assert_int_equal(o.n_warnings, 1);
    assert_true(same_files(at("full.mp4"), at("savings.mp4")));
}

static void test_encoder_fails(void **state)
{
    task t = small_task(at("encoder.mp4"));
    (void)state;

    t.rq.preset = "no-such-preset";
    must_fail(&t, H3_E_ARG, "no-such-preset"); // before anything is computed
    assert_int_equal(count_files("encoder.mp4"), 0);

    /* In the middle of the video, and when the file is finished: 22 frames, and one call to end. */
    for (int k = 0; k < 2; k++) {
        task d;
        outcome o;
        t = small_task(at("encoder.mp4"));
        t.frames_until_failure = k ? 23 : 9;
        o = run(&t);
        assert_true(o.status == H3_E_INTERNAL || o.status == H3_E_IO || o.status == H3_E_NOMEM ||
                    o.status == H3_E_UNSUPPORTED);
        if (!strstr(o.error, "h3av decode") || !strstr(o.error, "encoder.mp4.latents"))
            fail_msg("status %d: %s", o.status, o.error);
        printf("  %s\n", o.error);
        assert_int_equal(count_files("encoder.mp4"), 1); // the latents
        d = small_task(at("encoder.mp4"));
        d.decode = at("encoder.mp4.latents");
        must_run(&d);
        assert_true(same_files(at("full.mp4"), at("encoder.mp4")));
        unlink(at("encoder.mp4"));
        unlink(at("encoder.mp4.latents"));
    }
}

/* ----------------------------------------------------------------------------- foreign and broken
 */

/* Leaves a checkpoint of the small task after step 4. */
static void make_checkpoint(const char *out)
{
    task t = small_task(out);

    t.rq.checkpoint_every = 4;
    t.stop_after_step = 4;
    assert_int_equal(run(&t).status, H3_E_CANCELLED);
}

static void test_foreign_checkpoints(void **state)
{
    task t = small_task(at("foreign.mp4"));
    (void)state;

    make_checkpoint(at("foreign.mp4"));
    t.rq.resume_path = at("foreign.mp4.checkpoint");
    const h3_request same = t.rq;
    t.rq.seed = 8;
    must_fail(&t, H3_E_ARG, "another request: its seed is 7, here 8");
    t.rq = same;
    t.rq.prompt = "a blue circle";
    must_fail(&t, H3_E_ARG, "another request: its prompt is not this one");
    t.rq = same;
    t.rq.prompt = NULL;
    must_fail(&t, H3_E_ARG, "goes on with the request that saved it");
    t.rq = same;
    t.rq.steps = 10;
    must_fail(&t, H3_E_ARG, "another request: its steps is");
    t.rq = same;
    t.rq.shift_video = 5;
    must_fail(&t, H3_E_ARG, "another request");
    t.rq = same;
    t.rq.width = 64;
    must_fail(&t, H3_E_ARG, "another request");
    t.rq = same;
    t.rq.resume_path = at("full.mp4.latents");
    must_fail(&t, H3_E_FORMAT, "kind latents");
    t.rq.resume_path = at("none.checkpoint");
    must_fail(&t, H3_E_MISSING, "none.checkpoint");
    t.rq = same;
    must_run(&t); // and the right one still works
    assert_true(same_files(at("full.mp4"), at("foreign.mp4")));
}

/* Cut anywhere, or with bytes changed: refused by name, or (a changed number) taken for what it
 * says. */
static void test_broken_checkpoints(void **state)
{
    task t = small_task(at("broken.mp4"));
    size_t n;
    char *good, *bad;
    (void)state;

    make_checkpoint(at("broken.mp4"));
    good = slurp(at("broken.mp4.checkpoint"), &n);
    bad = malloc(n);
    t.rq.resume_path = at("bad.checkpoint");
    for (int i = 0; i < 8; i++) { // cut
        put_file(at("bad.checkpoint"), good, n * (size_t)i / 8);
        const outcome o = run(&t);
        if (o.status == H3_OK || o.status == -1 || !strstr(o.error, "bad.checkpoint"))
            fail_msg("cut to %zu bytes: %d %s", n * (size_t)i / 8, o.status, o.error);
    }
    for (int i = 0; i < 12; i++) { // a byte of the header
        memcpy(bad, good, n);
        bad[i < 8 ? i : 8 + rand() % 300] ^= (char)(1 << rand() % 7);
        put_file(at("bad.checkpoint"), bad, n);
        const outcome o = run(&t);
        if (o.status == -1) fail_msg("byte %d changed: the process died", i);
    }
    memcpy(bad, good, n); // NaN among the rows
    memset(bad + n - 400, 0xff, 4);
    put_file(at("bad.checkpoint"), bad, n);
    must_fail(&t, H3_E_NUMERIC, "bad.checkpoint");
    free(good);
    free(bad);
}

/* ------------------------------------------------------------------------------- poisoned weights
 */

/* The tiny transformer, with NaN in the middle of one matrix. */
static void copy_folder(const char *from, const char *to)
{
    DIR *d = opendir(from);

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *a = h3_path_join(from, e->d_name), *b = h3_path_join(to, e->d_name);
        size_t n;
        char *p = slurp(a, &n);
        put_file(b, p, n);
        free(p);
        free(a);
        free(b);
    }
    closedir(d);
}

/* Into the file of a tensor, at its middle or its beginning. */
static void write_into(const char *folder, const char *tensor, bool is_middle, const void *what,
                       size_t n)
{
    h3_manifest *m = NULL;

    if (h3_manifest_open(&m, folder) != H3_OK) fail_msg("%s", h3_error());
    const h3_entry *e = h3_manifest_find(m, tensor);
    if (!e || e->bytes < n) fail_msg("%s: no %s of %zu bytes", folder, tensor, n);
    FILE *f = fopen(h3_manifest_file(m, e->file)->path, "r+b");
    assert_non_null(f);
    fseeko(f, (off_t)(e->offset + (is_middle ? e->bytes / 2 & ~(size_t)3 : 0)), SEEK_SET);
    assert_int_equal(fwrite(what, 1, n, f), n);
    fclose(f);
    h3_manifest_close(&m);
}

static void poison(const char *folder, const char *tensor)
{
    copy_folder(MODEL "/FL2VA/transformer", folder);
    write_into(folder, tensor, true, nans, sizeof nans);
}

static void remove_folder(const char *folder)
{
    DIR *d = opendir(folder);

    for (struct dirent *e; d && (e = readdir(d));) {
        char *p = h3_path_join(folder, e->d_name);
        if (e->d_name[0] != '.') unlink(p);
        free(p);
    }
    if (d) closedir(d);
    rmdir(folder);
}

static void test_poisoned_block_is_named(void **state)
{
    task t = small_task(at("poison.mp4"));
    static const char *const where[][2] = {
        {"blocks.1.mlp.fc2.weight", "blocks.1.mlp.fc2.weight"},
        {"blocks.0.attn.out_proj.weight", "blocks.0.attn.out_proj.weight"},
        {"token_refiner.blocks.0.mlp.fc1.weight", "token_refiner"},
        {"blocks.1.adaln_proj.linear.weight", "blocks.1.adaln"},
    };
    (void)state;

    assert_int_equal(mkdir(at("poison"), 0777), 0);
    for (int i = 0; i < 4; i++) {
        poison(at("poison"), where[i][0]);
        h3_engine_opts eo = h3_engine_default();
        h3_engine *e = NULL;
        h3_result rs;
        eo.model = MODEL;
        eo.dit = at("poison");
        eo.n_threads = 1;
        if (h3_engine_open(&e, &eo) != H3_OK) fail_msg("%s", h3_error());
        assert_int_equal(h3_generate(e, &t.rq, &rs), H3_E_NUMERIC);
        if (!strstr(h3_error(), "step 0") || !strstr(h3_error(), where[i][1]))
            fail_msg("%s: %s", where[i][0], h3_error());
        printf("  %s\n", h3_error());
        h3_engine_close(&e);
        assert_int_equal(count_files("poison.mp4"), 0);
    }
    remove_folder(at("poison"));
}

/* A weight goes bad while the run samples: the step after that, and the block, are named; what was
 * computed is kept, and with good weights the run goes on from there to the same video. */
static void test_poisoned_in_the_middle(void **state)
{
    static const char *const where[][2] = {
        {"blocks.1.mlp.fc2.weight", "blocks.1."},
        {"blocks.0.attn.out_proj.weight", "blocks.0."},
        {"final_layer.video_out.weight", "out.video"},
    };
    (void)state;

    for (int i = 0; i < 3; i++) {
        task t = small_task(at("middle.mp4"));
        char step[16];
        outcome o;
        assert_int_equal(mkdir(at("poison"), 0777), 0);
        copy_folder(MODEL "/FL2VA/transformer", at("poison"));
        t.model = MODEL;
        t.dit = at("poison");
        t.poisoned = where[i][0];
        t.poison_after_step = 3 + i;
        t.rq.checkpoint_every = 1;
        o = run(&t);
        snprintf(step, sizeof step, "step %d:", 3 + i); // counted from 0
        if (o.status != H3_E_NUMERIC || !strstr(o.error, step) || !strstr(o.error, where[i][1]) ||
            !strstr(o.error, "--resume"))
            fail_msg("status %d: %s", o.status, o.error);
        printf("  %s\n", o.error);
        assert_int_equal(count_files("middle.mp4"), 1); // the checkpoint
        remove_folder(at("poison"));

        t = small_task(at("middle.mp4"));
        t.model = MODEL;
        t.rq.resume_path = at("middle.mp4.checkpoint");
        o = must_run(&t);
        assert_int_equal(o.rs.n_forwards, 8 - (3 + i));
        t = small_task(at("whole.mp4"));
        t.model = MODEL;
        must_run(&t);
        assert_true(same_files(at("whole.mp4"), at("middle.mp4")));
        unlink(at("middle.mp4"));
    }
}

/* ------------------------------------------------------------------------ black, flat and silent
 */

enum { PATCH = 3072, WIDTH = 32 }; // of the small model's last matrix

/* The decoder's last matrix times `factor`, and `bias` for every number of a picture. */
static void spoil_decoder(const char *folder, float factor, float bias)
{
    float *p = malloc(PATCH * WIDTH * sizeof *p);
    h3_manifest *m = NULL;

    copy_folder(MODEL "/FL2VA/video_vae/source", folder);
    if (h3_manifest_open(&m, folder) != H3_OK) fail_msg("%s", h3_error());
    const h3_entry *e = h3_manifest_find(m, "decoder.proj_out.weight");
    assert_true(e && e->bytes == PATCH * WIDTH * sizeof *p);
    memcpy(p, e->data, e->bytes);
    h3_manifest_close(&m);
    for (int i = 0; i < PATCH * WIDTH; i++)
        p[i] *= factor;
    write_into(folder, "decoder.proj_out.weight", false, p, PATCH * WIDTH * sizeof *p);
    for (int i = 0; i < PATCH; i++)
        p[i] = bias;
    write_into(folder, "decoder.proj_out.bias", false, p, PATCH * sizeof *p);
    free(p);
}

static void test_empty_output_is_told(void **state)
{
    static const struct {
        float factor, bias;
        const char *says;
    } pictures[] = {{1, 0, NULL},
                    {0, 0.3f, "one flat colour"},
                    {1, -40, "one flat colour"},
                    {0.05f, -2.1f, "is black"}};
    task t;
    outcome o;
    (void)state;

    for (int i = 0; i < 4; i++) {
        assert_int_equal(mkdir(at("spoilt"), 0777), 0);
        spoil_decoder(at("spoilt"), pictures[i].factor, pictures[i].bias);
        t = small_task(at("empty.mp4"));
        t.model = MODEL;
        t.vae = at("spoilt");
        o = must_run(&t);
        if (o.n_warnings != (pictures[i].says != NULL) ||
            (pictures[i].says && !strstr(o.warning, pictures[i].says)))
            fail_msg("picture %d: %d warnings, \"%s\"", i, o.n_warnings, o.warning);
        remove_folder(at("spoilt"));
    }
    const float zero = 0;
    assert_int_equal(mkdir(at("spoilt"), 0777), 0);
    copy_folder(MODEL "/FL2VA/audio_vae", at("spoilt"));
    write_into(at("spoilt"), "decoder.conv_post.weight_g", false, &zero, sizeof zero);
    t = small_task(at("empty.mp4"));
    t.model = MODEL;
    t.audio_vae = at("spoilt");
    o = must_run(&t);
    if (o.n_warnings != 1 || !strstr(o.warning, "silent"))
        fail_msg("%d warnings, \"%s\"", o.n_warnings, o.warning);
    remove_folder(at("spoilt"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_unwritable_savings),
        cmocka_unit_test(test_encoder_fails),
        cmocka_unit_test(test_foreign_checkpoints),
        cmocka_unit_test(test_broken_checkpoints),
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_poisoned_in_the_middle),
        cmocka_unit_test(test_empty_output_is_told),
        cmocka_unit_test(test_poisoned_block_is_named), // last: it uses threads in this process
    };

    if (argc > 1) n_kills = atoi(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
