/**
 * An engine that remembers: run A, change one thing, run B equals a fresh B. And that it does
 * remember: a run with the same prompt and pictures calls the encoders no more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "job.h"

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

/* ------------------------------------------------------------------------------- is it remembered
 */

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
    return 0;
}

static int tear_down(void **state)
{
    const char *const all[] = {key_a, key_b, wav, sound_a, sound_b};
    (void)state;

    for (int i = 0; i < 5; i++)
        unlink(all[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoders_are_not_called_again),
        cmocka_unit_test(test_one_change),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
