/**
 * Frames and sound by callback: the bits of the files of the same run and of a run with callbacks
 * alone, in order, on rank 0 only, and what says no ends the run.
 */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <h3av/h3av.h>

enum { WIDTH = 64, HEIGHT = 32, FRAMES = 22, PICTURE = WIDTH * HEIGHT * 3, SAMPLES = 29600 };

static char work[64];

static char *at(const char *name)
{
    static char text[4][128];
    static int n;

    n = (n + 1) % 4;
    snprintf(text[n], sizeof text[n], "%s/%s", work, name);
    return text[n];
}

/* What came by callback. */
typedef struct taken {
    uint8_t rgb[FRAMES][PICTURE];
    float sound[2][SAMPLES];
    int64_t n_frames, n_samples, stop_at; // stop_at: the frame that says no; -1 the sound, -2 none
    const char *first;                    // what came first
    h3_engine *cancels;
} taken;

static bool take_frame(void *user, const h3_frame *f)
{
    taken *t = user;

    if (!t->first) t->first = "picture";
    assert_int_equal(f->index, t->n_frames);
    assert_int_equal(f->count, FRAMES);
    assert_true(f->width == WIDTH && f->height == HEIGHT && f->stride >= (size_t)WIDTH * 3);
    for (int y = 0; y < HEIGHT; y++)
        memcpy(t->rgb[f->index] + (size_t)y * WIDTH * 3, f->rgb + (size_t)y * f->stride,
               (size_t)WIDTH * 3);
    t->n_frames++;
    if (t->cancels) h3_cancel(t->cancels);
    return f->index != t->stop_at;
}

static bool take_sound(void *user, const h3_sound_part *p)
{
    taken *t = user;

    if (!t->first) t->first = "sound";
    assert_int_equal(p->first, t->n_samples);
    assert_int_equal(p->count, SAMPLES);
    assert_true(p->n > 0 && p->first + p->n <= p->count);
    memcpy(t->sound[0] + p->first, p->left, (size_t)p->n * sizeof(float));
    memcpy(t->sound[1] + p->first, p->right, (size_t)p->n * sizeof(float));
    t->n_samples += p->n;
    return t->stop_at != -1;
}

static taken *new_taken(void)
{
    taken *t = calloc(1, sizeof *t);

    assert_non_null(t);
    t->stop_at = -2;
    return t;
}

static h3_request request(taken *t)
{
    h3_request rq = h3_request_default();

    rq.prompt = "a red circle";
    rq.width = WIDTH;
    rq.height = HEIGHT;
    rq.frames = FRAMES;
    rq.steps = 3;
    rq.on_frame = take_frame;
    rq.on_sound = take_sound;
    rq.user = t;
    return rq;
}

static h3_engine *engine(h3_ranks *ranks)
{
    h3_engine_opts eo = h3_engine_default();
    h3_engine *e = NULL;

    eo.n_threads = 1;
    eo.ranks = ranks;
    if (h3_engine_open(&e, &eo) != H3_OK) fail_msg("%s", h3_error());
    return e;
}

static void *whole_file(const char *path, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    char *data = malloc(bytes + 1);

    if (!f) fail_msg("%s is not there", path);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, bytes + 1, f), bytes);
    fclose(f);
    return data;
}

/* The pictures of a folder of PPM and the samples of a WAV against what came. */
static void same_as_files(const taken *t, const char *folder, const char *wav)
{
    const size_t head = strlen("P6\n64 32\n255\n");
    unsigned char *sound = whole_file(wav, 44 + (size_t)SAMPLES * 4);

    assert_int_equal(t->n_frames, FRAMES);
    assert_int_equal(t->n_samples, SAMPLES);
    assert_string_equal(t->first, "sound");
    for (int i = 0; i < FRAMES; i++) {
        char path[200];
        snprintf(path, sizeof path, "%s/frame_%05d.ppm", folder, i);
        char *ppm = whole_file(path, head + PICTURE);
        assert_memory_equal(ppm + head, t->rgb[i], PICTURE);
        free(ppm);
    }
    for (int i = 0; i < SAMPLES; i++)
        for (int c = 0; c < 2; c++) {
            const float v = t->sound[c][i];
            int16_t got;
            memcpy(&got, sound + 44 + (size_t)i * 4 + (size_t)c * 2, 2);
            assert_int_equal(got, (int16_t)((v < -1 ? -1 : v > 1 ? 1 : v) * 32767.0f));
        }
    free(sound);
}

static int n_entries(const char *prefix)
{
    char command[200];
    int n = -1;

    snprintf(command, sizeof command, "ls -A %s | grep -c '%s'", work, prefix);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void test_beside_files(void **state)
{
    taken *t = new_taken();
    h3_engine *e = engine(NULL);
    h3_request rq = request(t);

    (void)state;
    rq.out_path = at("v.mp4");
    rq.frames_dir = at("f");
    rq.frames_format = "ppm";
    rq.wav_path = at("s.wav");
    if (h3_generate(e, &rq, NULL) != H3_OK) fail_msg("%s", h3_error());
    same_as_files(t, at("f"), at("s.wav"));
    assert_int_equal(n_entries("v.mp4"), 1);
    h3_engine_close(&e);
    free(t);
}

/* After test_beside_files, with its files. Nothing is written, not even latents. */
static void test_alone(void **state)
{
    h3_engine *e = engine(NULL);
    char folder[256];

    (void)state;
    assert_non_null(getcwd(folder, sizeof folder));
    assert_int_equal(mkdir(at("in"), 0755), 0);
    assert_int_equal(chdir(at("in")), 0);
    taken *t = new_taken();
    h3_request rq = request(t);
    h3_result rs;
    if (h3_generate(e, &rq, &rs) != H3_OK) fail_msg("%s", h3_error());
    same_as_files(t, at("f"), at("s.wav"));
    assert_true(rs.width == WIDTH && rs.height == HEIGHT && rs.frames == FRAMES &&
                rs.samples == SAMPLES);
    memset(t, 0, sizeof *t);
    t->stop_at = -2;
    rq.on_frame = NULL; // sound alone: no picture is decoded
    assert_int_equal(h3_generate(e, &rq, NULL), H3_OK);
    assert_true(t->n_samples == SAMPLES && t->n_frames == 0);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(rmdir(at("in")), 0); // empty
    h3_engine_close(&e);
    free(t);
}

static void test_from_latents(void **state)
{
    taken *t = new_taken();
    h3_engine *e = engine(NULL);
    h3_request rq = request(t);

    (void)state;
    rq.latents_path = at("l");
    rq.keep_latents = true;
    if (h3_generate(e, &rq, NULL) != H3_OK) fail_msg("%s", h3_error());
    memset(t, 0, sizeof *t);
    t->stop_at = -2;
    rq.latents_path = NULL;
    rq.keep_latents = false;
    if (h3_decode(e, at("l"), &rq, NULL) != H3_OK) fail_msg("%s", h3_error());
    same_as_files(t, at("f"), at("s.wav"));
    h3_engine_close(&e);
    free(t);
}

static void test_no(void **state)
{
    static const struct {
        int stop_at;
        int64_t n_frames;
        const char *says;
    } cases[] = {{-1, 0, "given the sound"}, {0, 1, "frame 0 of 22"}, {9, 10, "frame 9 of 22"}};
    h3_engine *e = engine(NULL);

    (void)state;
    for (int i = 0; i < 4; i++) {
        taken *t = new_taken();
        h3_request rq = request(t);
        rq.out_path = at("no.mp4");
        rq.frames_dir = at("no");
        rq.save_latents = false;
        if (i < 3)
            t->stop_at = cases[i].stop_at;
        else
            t->cancels = e;
        assert_int_equal(h3_generate(e, &rq, NULL), H3_E_CANCELLED);
        if (i < 3 && !strstr(h3_error(), cases[i].says)) fail_msg("%s", h3_error());
        if (i < 3) assert_int_equal(t->n_frames, cases[i].n_frames);
        if (i == 3) assert_true(t->n_frames < FRAMES);
        assert_int_equal(n_entries("no"), 0);
        free(t);
    }
    h3_engine_close(&e);
}

static void test_names(void **state)
{
    taken *t = new_taken();
    h3_engine *e = engine(NULL);
    h3_request rq = request(t);

    (void)state;
    rq.keep_latents = true;
    assert_int_equal(h3_generate(e, &rq, NULL), H3_E_ARG);
    assert_non_null(strstr(h3_error(), "latents_path"));
    rq.keep_latents = false;
    rq.checkpoint_every = 1;
    assert_int_equal(h3_generate(e, &rq, NULL), H3_E_ARG);
    assert_non_null(strstr(h3_error(), "checkpoint_path"));
    rq.checkpoint_every = 0;
    rq.on_frame = NULL;
    rq.on_sound = NULL;
    assert_int_equal(h3_generate(e, &rq, NULL), H3_E_ARG);
    assert_non_null(strstr(h3_error(), "a callback"));
    h3_engine_close(&e);
    free(t);
}

/* In a process of its own, since the library starts others from it. Files lie beside what came. */
static void test_over_ranks(void **state)
{
    const bool says_no = *state != NULL;
    taken *t = new_taken();
    h3_ranks *r = NULL;
    h3_request rq = request(t);

    if (h3_ranks_open(&r, 3) != H3_OK) fail_msg("%s", h3_error()); // of its 6 heads
    const bool is_first = h3_ranks_rank(r) == 0;
    h3_engine *e = engine(r);
    if (says_no) t->stop_at = 0;
    rq.frames_dir = at(says_no ? "no" : "rf");
    rq.frames_format = "ppm";
    rq.wav_path = at(says_no ? "no.wav" : "r.wav");
    const h3_status st = h3_generate(e, &rq, NULL);
    if (st != (says_no ? H3_E_CANCELLED : H3_OK)) fail_msg("%d: %s", st, h3_error());
    if (!is_first) assert_null(t->first);
    if (is_first && !says_no) same_as_files(t, rq.frames_dir, rq.wav_path);
    if (is_first && says_no) assert_int_equal(t->n_frames, 1);
    h3_engine_close(&e);
    const h3_status closed = h3_ranks_close(&r, false);
    if (!says_no) assert_int_equal(closed, H3_OK);
    free(t);
}

/* What a program forgets is told, not crashed on. */
static void test_nothing(void **state)
{
    h3_engine *e = engine(NULL);
    h3_request rq = h3_request_default();
    h3_engine *none = NULL;
    h3_result rs;
    char *text = NULL;

    (void)state;
    assert_int_equal(h3_engine_open(&none, NULL), H3_E_ARG);
    assert_int_equal(h3_generate(e, NULL, &rs), H3_E_ARG);
    assert_int_equal(h3_generate(NULL, &rq, &rs), H3_E_ARG);
    assert_int_equal(h3_decode(e, "x", NULL, &rs), H3_E_ARG);
    assert_int_equal(h3_decode(e, NULL, &rq, &rs), H3_E_ARG);
    assert_int_equal(h3_plan_json(NULL, NULL, &text), H3_E_ARG);
    assert_int_equal(h3_inspect(NULL, true, false, &text), H3_E_ARG);
    assert_int_equal(h3_tokenize(NULL, NULL, &text), H3_E_ARG);
    assert_int_equal(h3_probe(NULL, &text), H3_E_ARG);
    assert_int_equal(h3_thumbnail(NULL, NULL, 0), H3_E_ARG);
    assert_int_equal(h3_convert_file(NULL, NULL, NULL), H3_E_ARG);
    assert_int_equal(h3_dump("x", NULL, NULL, NULL), H3_E_ARG);
    assert_int_equal(h3_mux_files(NULL, NULL, 0, &rq), H3_E_ARG);
    assert_int_equal(h3_mux_files("x", NULL, 0, NULL), H3_E_ARG);
    assert_null(text);
    // nor is an answer without a place for it
    const h3_engine_opts eo = h3_engine_default();
    const h3_input clip = {.path = "x"};
    assert_int_equal(h3_engine_open(NULL, &eo), H3_E_ARG);
    assert_int_equal(h3_plan_json(NULL, &rq, NULL), H3_E_ARG);
    assert_int_equal(h3_counters_json(e, NULL), H3_E_ARG);
    assert_int_equal(h3_bench(e, NULL, NULL), H3_E_ARG);
    assert_int_equal(h3_inspect("x", true, false, NULL), H3_E_ARG);
    assert_int_equal(h3_tokenize(NULL, "x", NULL), H3_E_ARG);
    assert_int_equal(h3_probe(&clip, NULL), H3_E_ARG);
    assert_int_equal(h3_synth_list(0, NULL), H3_E_ARG);
    assert_int_equal(h3_ranks_open(NULL, 1), H3_E_ARG);
    assert_int_equal(h3_ranks_plan(NULL, 1), H3_E_ARG);
    h3_engine_close(&e);
    h3_engine_close(&e);
    h3_engine_close(NULL);
    h3_string_free(NULL);
}

/* A locale whose decimal mark is a comma, made for the test where the system has none. */
static bool set_comma(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE"};
    char command[256];

    for (int made = 0; made < 2; made++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (setlocale(LC_ALL, names[i]) && *localeconv()->decimal_point == ',') return true;
        snprintf(command, sizeof command,
                 "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", work);
        if (system(command) == -1 || setenv("LOCPATH", work, 1) != 0) break;
    }
    return false;
}

/* An application's locale is its own affair: numbers in texts keep their point. */
static void test_locale(void **state)
{
    h3_engine *e = engine(NULL);
    h3_request rq = h3_request_default();
    char head[4096] = "", *text = NULL;

    (void)state;
    rq.prompt = "a red circle";
    rq.aspect = "1.5:1";
    rq.lift_limits = true;
    rq.canvas_short_edge = 64;
    rq.frames = FRAMES;
    rq.steps = 3;
    rq.shift_video = 11.5;
    rq.out_path = at("comma.mp4");
    rq.latents_path = at("comma.latents");
    rq.keep_latents = true;
    const bool is_set = set_comma();
    const h3_status planned = h3_plan_json(e, &rq, &text), made = h3_generate(e, &rq, NULL);
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH"); // not for the programs that later tests run
    h3_engine_close(&e);
    assert_int_equal(planned, H3_OK);
    assert_int_equal(made, H3_OK);
    assert_non_null(strstr(text, "\"width\": 96"));
    h3_string_free(text);
    FILE *f = fopen(rq.latents_path, "rb");
    assert_non_null(f);
    const size_t n = fread(head, 1, sizeof head - 1, f);
    fclose(f);
    assert_non_null(memmem(head, n, "11.5", 4));
    if (!is_set) skip();
}

static const char *self;

static void test_ranks(void **state)
{
    static const char *const how[] = {"go", "no"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char command[300];
        snprintf(command, sizeof command, "'%s' %s %s", self, how[i], work);
        assert_int_equal(system(command), 0);
    }
    assert_int_equal(n_entries("^no"), 1); // latents alone
    remove(at("no.latents"));
}

/* The example of the documentation, which knows the header only. */
static void test_example(void **state)
{
    const char *program = getenv("H3_EXAMPLE_FRAMES");
    char command[512];

    (void)state;
    if (!program) skip();
    snprintf(command, sizeof command, "%s 'a red circle' 64 32 22 3 %s >%s 2>/dev/null", program,
             at("e.f32"), at("e.rgb"));
    assert_int_equal(system(command), 0);
    taken *t = new_taken();
    char *rgb = whole_file(at("e.rgb"), (size_t)FRAMES * PICTURE);
    float *sound = whole_file(at("e.f32"), (size_t)SAMPLES * 8);
    memcpy(t->rgb, rgb, sizeof t->rgb);
    for (int i = 0; i < SAMPLES; i++)
        for (int c = 0; c < 2; c++)
            t->sound[c][i] = sound[2 * i + c];
    t->n_frames = FRAMES;
    t->n_samples = SAMPLES;
    t->first = "sound";
    same_as_files(t, at("f"), at("s.wav"));
    free(rgb);
    free(sound);
    free(t);
    snprintf(command, sizeof command,
             "bash -c '%s x 64 32 22 3 2>%s | head -c 7000 >/dev/null; "
             "exit ${PIPESTATUS[0]}'",
             program, at("err"));
    assert_int_equal(WEXITSTATUS(system(command)), 141); // as of any program whose reader went
}

/* h3av-frames go|no FOLDER: the part of test_ranks. */
static int run_over_ranks(bool says_no, const char *folder)
{
    const struct CMUnitTest one[] = {
        cmocka_unit_test_prestate(test_over_ranks, says_no ? (void *)(uintptr_t)folder : NULL)};

    snprintf(work, sizeof work, "%s", folder);
    return cmocka_run_group_tests(one, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_files), cmocka_unit_test(test_alone),
        cmocka_unit_test(test_from_latents), cmocka_unit_test(test_no),
        cmocka_unit_test(test_names),        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_locale),       cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_example),
    };
    const char *tmp = getenv("TMPDIR");
    char command[80];

    self = argv[0];
    if (argc == 3) return run_over_ranks(strcmp(argv[1], "no") == 0, argv[2]);

    snprintf(work, sizeof work, "%.40s/h3av-frames-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(work)) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", work);
    return system(command) != 0 || failed;
}
