/**
 * An engine that keeps: run A, change one thing (of the request, or of a file of the model), run B
 * equals a fresh B. And that it does keep: a second run maps, checks and binds nothing, computes no
 * modulation of the same schedule, and calls no encoder for the same prompt and pictures.
 *
 * The linker routes a few functions through counters here (--wrap, cmake/fit.cmake).
 */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "dit.h"
#include "file.h"
#include "half.h"
#include "job.h"
#include "writer.h"

static char key_a[64], key_b[64], wav[64], sound_a[64], sound_b[64];
static h3_input first_a, first_b, last_a;
static h3_input refs_a[2], refs_b[2], refs_c[2], refs_swapped[2]; // a picture and a sound

/* A picture of one gradient; `shade` makes another one. */
static void write_picture(const char *path, int shade)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    fprintf(f, "P6\n64 64\n255\n");
    for (int i = 0; i < 64 * 64; i++) {
        putc(i % 64 * 4, f);
        putc(i / 64 * 4, f);
        putc(shade, f);
    }
    fclose(f);
}

/* Half a second of a tone, 16 bit mono at 32 kHz. */
static void write_tone(const char *path, int period)
{
    const uint32_t n = 16000, bytes = 2 * n, size = 36 + bytes, sixteen = 16, rate = 32000,
                   per_second = 64000;
    const uint16_t pcm = 1, one = 1, two = 2, bits = 16;
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    fwrite("RIFF", 1, 4, f), fwrite(&size, 4, 1, f), fwrite("WAVEfmt ", 1, 8, f);
    fwrite(&sixteen, 4, 1, f), fwrite(&pcm, 2, 1, f), fwrite(&one, 2, 1, f);
    fwrite(&rate, 4, 1, f), fwrite(&per_second, 4, 1, f), fwrite(&two, 2, 1, f);
    fwrite(&bits, 2, 1, f), fwrite("data", 1, 4, f), fwrite(&bytes, 4, 1, f);
    for (uint32_t i = 0; i < n; i++) {
        const int16_t v = (int16_t)((int)(i % (uint32_t)period) * 16000 / period - 8000);
        fwrite(&v, 2, 1, f);
    }
    fclose(f);
}

static h3_engine *open_engine(bool keeps)
{
    h3_engine_opts eo = h3_engine_default();
    h3_engine *e = NULL;

    eo.n_threads = 1;
    eo.keep_loaded = keeps;
    if (h3_engine_open(&e, &eo) != H3_OK) fail_msg("%s", h3_error());
    return e;
}

static uint64_t run(h3_engine *e, const h3_request *rq)
{
    h3_result rs;

    if (h3_generate(e, rq, &rs) != H3_OK) fail_msg("%s", h3_error());
    return rs.latent_hash;
}

static uint64_t fresh(const h3_request *rq)
{
    h3_engine *e = open_engine(false);
    const uint64_t h = run(e, rq);

    h3_engine_close(&e);
    return h;
}

static h3_request small(void)
{
    h3_request rq = h3_request_default();

    rq.prompt = "a red circle";
    rq.width = rq.height = 64;
    rq.lift_limits = true;
    rq.reference_short_edge = 64;
    rq.frames = 22;
    rq.steps = 4;
    rq.seed = 7;
    rq.wav_path = wav;
    return rq;
}

/* ------------------------------------------------------------------------------------- changes */

static void nothing(h3_request *rq)
{
    (void)rq;
}

static void steps(h3_request *rq)
{
    rq->steps = 5;
}

static void shift(h3_request *rq)
{
    rq->shift_video = 5;
}

static void next_shift(h3_request *rq) // as many distinct timesteps, but others
{
    rq->shift_video = 6;
}

static void audio_shift(h3_request *rq)
{
    rq->shift_audio = 7;
}

static void size(h3_request *rq)
{
    rq->width = 96;
}

static void frames(h3_request *rq)
{
    rq->frames = 39;
}

static void seed(h3_request *rq)
{
    rq->seed = 8;
}

static void prompt(h3_request *rq)
{
    rq->prompt = "a red square";
}

static void prompt_space(h3_request *rq)
{
    rq->prompt = "a red  circle";
}

static void to_keyframe(h3_request *rq)
{
    rq->first = &first_a;
}

static void other_keyframe(h3_request *rq)
{
    rq->first = &first_b;
    rq->last = NULL;
}

static void last_instead(h3_request *rq)
{
    rq->first = NULL;
    rq->last = &last_a;
}

static void two_keyframes(h3_request *rq)
{
    rq->first = &first_a;
    rq->last = &first_b;
}

static void to_references(h3_request *rq)
{
    rq->first = rq->last = NULL;
    rq->refs = refs_a;
    rq->n_refs = 2;
}

static void other_sound(h3_request *rq)
{
    rq->refs = refs_b;
}

static void other_reference(h3_request *rq)
{
    rq->refs = refs_c;
}

static void other_order(h3_request *rq)
{
    rq->refs = refs_swapped;
}

typedef struct change {
    const char *name;
    void (*base)(h3_request *), (*apply)(h3_request *);
    bool is_same; // the change changes nothing
} change;

static const change changes[] = {
    {"nothing", nothing, nothing, true},
    {"steps", nothing, steps, false},
    {"shift", nothing, shift, false},
    {"another shift", shift, next_shift, false},
    {"audio shift", nothing, audio_shift, false},
    {"size", nothing, size, false},
    {"frames", nothing, frames, false},
    {"seed", nothing, seed, false},
    {"prompt", nothing, prompt, false},
    {"a space in the prompt", nothing, prompt_space, false},
    {"t2va to fl2va", nothing, to_keyframe, false},
    {"t2va to ref2va", nothing, to_references, false},
    {"fl2va, nothing", to_keyframe, nothing, true},
    {"fl2va, another picture", to_keyframe, other_keyframe, false},
    {"fl2va, the last instead of the first", to_keyframe, last_instead, false},
    {"fl2va, a second keyframe", to_keyframe, two_keyframes, false},
    {"fl2va, size", to_keyframe, size, false},
    {"fl2va to ref2va", to_keyframe, to_references, false},
    {"ref2va, nothing", to_references, nothing, true},
    {"ref2va, another sound", to_references, other_sound, false},
    {"ref2va, another picture", to_references, other_reference, false},
    {"ref2va, another order", to_references, other_order, false},
};

static void test_one_change(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const change *c = &changes[i];
        h3_engine *e = open_engine(true);
        h3_request a = small(), b;
        uint64_t ha, hb;

        c->base(&a);
        b = a;
        c->apply(&b);
        ha = run(e, &a);
        hb = run(e, &b);
        if (hb != fresh(&b)) fail_msg("%s: a remembered run is not a fresh one", c->name);
        if (run(e, &a) != ha) fail_msg("%s: and back again differs", c->name);
        if ((ha == hb) != c->is_same)
            fail_msg("%s: the change %s", c->name, c->is_same ? "matters" : "does not matter");
        h3_engine_close(&e);
    }
}

/* ------------------------------------------------------------------------------ files change */

static char copy_dir[80], adapter[96];
enum { T_DIM = 12 }; // of the tiny model

/* An adapter of rank one on what `target` names; `seed` makes another one. */
static void write_adapter(const char *target, int64_t rows, int64_t cols, int seed)
{
    char *tmp = h3_strdupf("%s.new", adapter), name[128];
    const int64_t a[2] = {1, cols}, b[2] = {rows, 1};
    h3_writer *w = NULL;

    assert_int_equal(h3_writer_open(&w, tmp), H3_OK);
    snprintf(name, sizeof name, "%s.lora_A.weight", target);
    assert_int_equal(h3_writer_declare(w, name, H3_F32, 2, a), H3_OK);
    snprintf(name, sizeof name, "%s.lora_B.weight", target);
    assert_int_equal(h3_writer_declare(w, name, H3_F32, 2, b), H3_OK);
    assert_int_equal(h3_writer_begin(w), H3_OK);
    for (int64_t i = 0; i < rows + cols; i++) {
        const float v = (float)((i * 7 + seed * 13) % 11 - 5) * 0.05f;
        assert_int_equal(h3_writer_put(w, &v, sizeof v), H3_OK);
    }
    assert_int_equal(h3_writer_commit(&w), H3_OK);
    assert_int_equal(rename(tmp, adapter), 0);
    free(tmp);
}

static h3_engine *open_copy(bool keeps, float strength)
{
    h3_engine_opts eo = h3_engine_default();
    h3_lora_file lora = {adapter, strength};
    h3_engine *e = NULL;

    eo.model = copy_dir;
    eo.n_threads = 1;
    eo.keep_loaded = keeps;
    eo.loras = &lora;
    eo.n_loras = strength != 0;
    if (h3_engine_open(&e, &eo) != H3_OK) fail_msg("%s", h3_error());
    return e;
}

/* A number in the first part of a tensor is changed where the file lies. */
static void scratch(const char *file, const char *tensor)
{
    char *path = h3_strdupf("%s/FL2VA/%s", copy_dir, file);
    h3_manifest *m = NULL;
    const h3_entry *e;
    int fd;

    assert_int_equal(h3_manifest_open(&m, path), H3_OK);
    e = h3_manifest_find(m, tensor);
    if (!e) fail_msg("%s has no %s", path, tensor);
    const off_t at = (off_t)e->offset;
    const int64_t n = e->dtype == H3_F32 ? 4 : 2;
    h3_manifest_close(&m);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (int i = 0; i < 64; i++) { // not in its middle, where fingerprints look
        unsigned char b[4];
        assert_int_equal(pread(fd, b, (size_t)n, at + i * n), n);
        b[n - 1] ^= 0x80; // the sign
        assert_int_equal(pwrite(fd, b, (size_t)n, at + i * n), n);
    }
    close(fd);
    free(path);
}

static void scratch_adaln(void)
{
    scratch("transformer/model-00002-of-00003.safetensors", "blocks.0.adaln_proj.linear.weight");
}

static void scratch_block(void)
{
    scratch("transformer/model-00002-of-00003.safetensors", "blocks.0.mlp.fc1.weight");
}

static void scratch_norm(void)
{
    scratch("transformer/model-00003-of-00003.safetensors", "final_layer.norm.weight");
}

static void scratch_encoder(void)
{
    scratch("text_encoder/model-00001-of-00002.safetensors",
            "model.language_model.layers.0.self_attn.q_proj.weight");
}

/* The same bytes under another inode, then one number of it changed. */
static void exchange_block(void)
{
    const char *file = "transformer/model-00002-of-00003.safetensors";
    char *cmd = h3_strdupf("cd %s/FL2VA && cp %s x && mv x %s", copy_dir, file, file);

    assert_int_equal(system(cmd), 0);
    free(cmd);
    scratch_block();
}

static void change_config(void)
{
    char *cmd = h3_strdupf("cd %s/FL2VA/text_encoder && sed -i 's/\"rms_norm_eps\": "
                           "[0-9.e-]*/\"rms_norm_eps\": 0.1/' config.json",
                           copy_dir);
    assert_int_equal(system(cmd), 0);
    free(cmd);
}

static void other_adapter(void)
{
    write_adapter("blocks.0.attn.out_proj", 96, 128, 2);
}

static void other_adaln_adapter(void)
{
    write_adapter("blocks.0.adaln_proj.linear", 1728, T_DIM, 2);
}

static void put_tick(const char *path, struct stat *st)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    putc('x', f);
    fclose(f);
    assert_int_equal(stat(path, st), 0);
}

/* Until what is written now gets another time than what was written just before: clocks of file
 * systems tick in milliseconds, or in seconds. */
static void await_tick(void)
{
    char *path = h3_strdupf("%s/tick", copy_dir);
    struct stat first, now;

    put_tick(path, &first);
    do {
        usleep(5000);
        put_tick(path, &now);
    } while (now.st_mtim.tv_sec == first.st_mtim.tv_sec &&
             now.st_mtim.tv_nsec == first.st_mtim.tv_nsec);
    unlink(path);
    free(path);
}

static void test_files_change(void **state)
{
    static const struct {
        const char *name;
        void (*apply)(void);
        int adapter; // 0 none, 1 on a block, 2 on the modulation
    } list[] = {
        {"modulation weights", scratch_adaln, 0},
        {"block weights", scratch_block, 0},
        {"a vector", scratch_norm, 0},
        {"text encoder weights", scratch_encoder, 0},
        {"an exchanged file", exchange_block, 0},
        {"a configuration", change_config, 0},
        {"another adapter", other_adapter, 1},
        {"modulation adapter", other_adaln_adapter, 2},
        {"weights under an adapter", scratch_adaln, 1},
    };
    (void)state;

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        h3_request rq = small();
        if (list[i].adapter == 1) write_adapter("blocks.0.attn.out_proj", 96, 128, 1);
        if (list[i].adapter == 2) write_adapter("blocks.0.adaln_proj.linear", 1728, T_DIM, 1);
        const float strength = list[i].adapter ? 1 : 0;
        h3_engine *e = open_copy(true, strength);
        const uint64_t a = run(e, &rq);
        if (run(e, &rq) != a) fail_msg("%s: the second run differs", list[i].name);
        await_tick();
        list[i].apply();
        const uint64_t b = run(e, &rq);
        h3_engine_close(&e);
        e = open_copy(false, strength);
        const uint64_t want = run(e, &rq);
        h3_engine_close(&e);
        if (want == a) fail_msg("%s: does not matter", list[i].name);
        if (b != want) fail_msg("%s: the change was not noticed", list[i].name);
    }
}

/* Adapters and their strength are the engine's: two of them side by side do not mix. */
static void test_strengths(void **state)
{
    h3_request rq = small();
    uint64_t h[3];
    (void)state;

    write_adapter("blocks.0.adaln_proj.linear", 1728, T_DIM, 1);
    h3_engine *e[3] = {open_copy(true, 1), open_copy(true, 0.5f), open_copy(true, 0)};
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            const uint64_t now = run(e[i], &rq);
            if (round) assert_true(now == h[i]);
            h[i] = now;
        }
    assert_true(h[0] != h[1] && h[1] != h[2] && h[0] != h[2]);
    for (int i = 0; i < 3; i++)
        h3_engine_close(&e[i]);
}

/* ------------------------------------------------------------------------------- is it remembered
 */

static int n_maps, n_checks, n_binds, n_modulations;

h3_status __real_h3_file_map(h3_file **out, const char *path);
h3_status __wrap_h3_file_map(h3_file **out, const char *path);
h3_status __wrap_h3_file_map(h3_file **out, const char *path)
{
    n_maps += strstr(path, ".ppm") == NULL; // the request's pictures are read anew
    return __real_h3_file_map(out, path);
}

h3_status __real_h3_poison_check(const h3_weight *w, int n_threads);
h3_status __wrap_h3_poison_check(const h3_weight *w, int n_threads);
h3_status __wrap_h3_poison_check(const h3_weight *w, int n_threads)
{
    n_checks++;
    return __real_h3_poison_check(w, n_threads);
}

h3_status __real_h3_bind(h3_checkpoint *ck, h3_dev *d, const h3_spec *spec, int n,
                         const int64_t *dims, void *base, int layer);
h3_status __wrap_h3_bind(h3_checkpoint *ck, h3_dev *d, const h3_spec *spec, int n,
                         const int64_t *dims, void *base, int layer);
h3_status __wrap_h3_bind(h3_checkpoint *ck, h3_dev *d, const h3_spec *spec, int n,
                         const int64_t *dims, void *base, int layer)
{
    n_binds++;
    return __real_h3_bind(ck, d, spec, n, dims, base, layer);
}

h3_status __real_h3_dit_modulate(h3_dev *d, const h3_dit *m, h3_dit_state *s, const float *t);
h3_status __wrap_h3_dit_modulate(h3_dev *d, const h3_dit *m, h3_dit_state *s, const float *t);
h3_status __wrap_h3_dit_modulate(h3_dev *d, const h3_dit *m, h3_dit_state *s, const float *t)
{
    n_modulations += !d->is_plan;
    return __real_h3_dit_modulate(d, m, s, t);
}

static void test_parts_stay_open(void **state)
{
    h3_request a = small(), s = small(), r = small(), k = small(), f = small();
    (void)state;

    seed(&s);
    steps(&r);
    to_keyframe(&k);
    k.seed = 9;
    shift(&f);
    for (int keeps = 0; keeps < 2; keeps++) {
        h3_engine *e = open_engine(keeps);
        n_maps = n_checks = n_binds = n_modulations = 0;
        (void)run(e, &a);
        assert_true(n_maps > 0 && n_checks > 0 && n_binds > 0);
        assert_int_equal(n_modulations, 1);
        n_maps = n_checks = n_binds = n_modulations = 0;
        (void)run(e, &s); // another seed
        if (keeps) {
            assert_int_equal(n_maps, 0);
            assert_int_equal(n_checks, 0);
            assert_int_equal(n_binds, 0);
            assert_int_equal(n_modulations, 0);
            (void)run(e, &r); // other steps: another schedule
            assert_int_equal(n_modulations, 1);
            (void)run(e, &f); // another shift
            assert_int_equal(n_modulations, 2);
            assert_int_equal(n_maps + n_checks + n_binds, 0);
            (void)run(e, &k); // a keyframe: the encoders' turn, once
            n_maps = n_checks = n_binds = 0;
            k.seed = 10;
            (void)run(e, &k);
            assert_int_equal(n_maps + n_checks + n_binds, 0);
        } else {
            assert_true(n_maps > 0 && n_checks > 0 && n_binds > 0);
            assert_int_equal(n_modulations, 1);
        }
        h3_engine_close(&e);
    }
}

/* A run that is stopped leaves nothing half done behind. */
static volatile int stop_after;
static h3_engine *stopped;

static void stop_there(void *user, const h3_event *ev)
{
    (void)user;
    if (ev->kind == H3_EVENT_STEP && stop_after-- == 0) h3_cancel(stopped);
}

static void test_after_a_stop(void **state)
{
    h3_request a = small(), b = small();
    (void)state;

    seed(&b);
    const uint64_t want = fresh(&b);
    for (int at = 0; at < 12; at += 2) {
        h3_engine *e = stopped = open_engine(true);
        h3_result rs;
        stop_after = at;
        (void)run(e, &a);
        b.on_event = stop_there;
        const h3_status st = h3_generate(e, &b, &rs);
        assert_true(st == H3_OK || st == H3_E_CANCELLED);
        b.on_event = NULL;
        if (run(e, &b) != want) fail_msg("stopped at event %d", at);
        h3_engine_close(&e);
    }
}

static uint64_t calls(const h3_engine *e, h3_op_id op)
{
    return e->dev->stat[op].calls;
}

/* Calls of an operation that a request makes. */
static uint64_t calls_of(h3_engine *e, const h3_request *rq, h3_op_id op)
{
    const uint64_t before = calls(e, op);
    (void)run(e, rq);
    return calls(e, op) - before;
}

static void test_encoders_are_not_called_again(void **state)
{
    h3_engine *keeps = open_engine(true), *forgets = open_engine(false);
    h3_request a = small(), b = small(), k = small(), r = small();
    (void)state;

    seed(&b);
    to_keyframe(&k);
    to_references(&r);
    assert_int_equal(calls_of(keeps, &a, H3_OP_embed), 1); // only the conditioner embeds
    assert_int_equal(calls_of(keeps, &b, H3_OP_embed), 0);
    assert_int_equal(calls_of(forgets, &a, H3_OP_embed), 1);
    assert_int_equal(calls_of(forgets, &b, H3_OP_embed), 1);
    // only the video encoder normalises groups
    assert_true(calls_of(keeps, &k, H3_OP_group_norm) > 0);
    assert_int_equal(calls_of(keeps, &k, H3_OP_group_norm), 0);
    assert_true(calls_of(forgets, &k, H3_OP_group_norm) > 0);
    assert_true(calls_of(forgets, &k, H3_OP_group_norm) > 0);
    // convolutions: the audio decoder's each time, the encoders' only once. The picture of the
    // reference is the keyframe of before, at the same size: it is recalled across tasks.
    const uint64_t all = calls_of(forgets, &r, H3_OP_conv);
    assert_int_equal(calls_of(forgets, &r, H3_OP_conv), all);
    const uint64_t first = calls_of(keeps, &r, H3_OP_conv), again = calls_of(keeps, &r, H3_OP_conv);
    assert_true(first < all);   // without the picture
    assert_true(again < first); // and without the sound
    h3_engine_close(&keeps);
    h3_engine_close(&forgets);
}

static int set_up(void **state)
{
    const long id = (long)getpid();
    char *cmd;
    (void)state;

    snprintf(key_a, sizeof key_a, "/tmp/h3av-keep-%ld-a.ppm", id);
    snprintf(key_b, sizeof key_b, "/tmp/h3av-keep-%ld-b.ppm", id);
    snprintf(wav, sizeof wav, "/tmp/h3av-keep-%ld.wav", id);
    snprintf(sound_a, sizeof sound_a, "/tmp/h3av-keep-%ld-a.wav", id);
    snprintf(sound_b, sizeof sound_b, "/tmp/h3av-keep-%ld-b.wav", id);
    write_picture(key_a, 128);
    write_picture(key_b, 140);
    write_tone(sound_a, 73);
    write_tone(sound_b, 50);
    first_a.path = last_a.path = key_a;
    first_b.path = key_b;
    refs_a[0].path = refs_b[0].path = refs_swapped[1].path = key_a;
    refs_a[1].path = refs_c[1].path = refs_swapped[0].path = sound_a;
    refs_b[1].path = sound_b;
    refs_c[0].path = key_b;
    snprintf(copy_dir, sizeof copy_dir, "/tmp/h3av-keep-%ld-model", id);
    snprintf(adapter, sizeof adapter, "/tmp/h3av-keep-%ld-adapter.safetensors", id);
    // a killed run of the same number may have left one, changed
    cmd = h3_strdupf("rm -rf %s && cp -r %s %s && chmod -R u+w %s", copy_dir,
                     H3_SOURCE_DIR "/tests/data/tiny-h3/original", copy_dir, copy_dir);
    const int rc = system(cmd);
    free(cmd);
    return rc;
}

static int tear_down(void **state)
{
    const char *const all[] = {key_a, key_b, wav, sound_a, sound_b, adapter};
    char *cmd = h3_strdupf("rm -rf %s", copy_dir);
    (void)state;

    for (int i = 0; i < 6; i++)
        unlink(all[i]);
    const int rc = system(cmd);
    free(cmd);
    return rc;
}

/* What a caller can get wrong is an error, and the engine goes on. */
static void test_requests_that_cannot_be(void **state)
{
    h3_engine_opts eo = h3_engine_default();
    h3_request rq = h3_request_default(), bad;
    h3_lora_file nameless = {.strength = 1};
    h3_input odd = {.path = "nowhere.png", .kind = (h3_input_kind)77};
    h3_engine *e = NULL;

    (void)state;
    h3_cancel(NULL);
    eo.n_loras = 1;
    assert_int_equal(h3_engine_open(&e, &eo), H3_E_ARG);
    eo.loras = &nameless;
    assert_int_equal(h3_engine_open(&e, &eo), H3_E_ARG);
    eo.n_loras = 0;
    assert_int_equal(h3_engine_open(&e, &eo), H3_OK);
    rq.prompt = "x";
    rq.width = rq.height = 32;
    rq.frames = 22;
    rq.steps = 2;
    rq.wav_path = wav;
#define REFUSED(change)                                         \
    do {                                                        \
        bad = rq;                                               \
        change;                                                 \
        assert_int_equal(h3_generate(e, &bad, NULL), H3_E_ARG); \
    } while (0)
    REFUSED(bad.wav_path = NULL); // no output at all
    REFUSED(bad.n_refs = 2);
    REFUSED(bad.n_refs = -1);
    REFUSED(bad.n_sigmas = 3);
    REFUSED(bad.steps = -3);
    REFUSED(bad.shift_video = (double)NAN);
    REFUSED(bad.shift_audio = -2);
    REFUSED((bad.refs = &odd, bad.n_refs = 1));
    h3_bench_opts bench = {.what = "nothing"};
    char *json = NULL;
    assert_int_equal(h3_bench(e, &bench, &json), H3_E_ARG);
    assert_int_equal(h3_generate(e, &rq, NULL), H3_OK); // the result is not asked for
    unlink(rq.wav_path);
    h3_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_that_cannot_be),
        cmocka_unit_test(test_parts_stay_open),
        cmocka_unit_test(test_files_change),
        cmocka_unit_test(test_strengths),
        cmocka_unit_test(test_after_a_stop),
        cmocka_unit_test(test_encoders_are_not_called_again),
        cmocka_unit_test(test_one_change),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
