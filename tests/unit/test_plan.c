/*
 * The planner's checks, and what no table of the reference shows. Its tables and tensors are
 * compared by the golden runner (tests/golden/golden_plan.c and golden_tables.c).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan.h"
#include "rng.h"
#include "sha256.h"

static void assert_error(h3_status st, h3_status want, const char *part)
{
    assert_int_equal(st, want);
    if (!strstr(h3_error(), part)) fail_msg("\"%s\" does not say \"%s\"", h3_error(), part);
}

/* ---------------------------------------------------------------- SHA-256, for fingerprints */

static void test_sha256(void **state)
{
    (void)state;
    char hex[65];
    sha256_hex(hex, "abc", 3);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* ---------------------------------------------------------------- noise */

/* Where the first uniform of a pair is 0 the radius is -0: torch adds the mean, so no value is -0.
 */
static void test_no_negative_zero(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof *x);
    h3_rng r;
    int n_zero = 0;
    h3_rng_seed(&r, 7);
    for (int k = 0; k < 64 && n_zero == 0; k++) {
        h3_rng_normal(&r, x, N);
        for (int i = 0; i < N; i++)
            if (x[i] == 0.0f) {
                n_zero++;
                assert_false(signbit(x[i]));
            }
    }
    assert_true(n_zero > 0);
    free(x);
}

static void test_stream_is_kept_across_large_draws(void **state)
{
    (void)state;
    h3_rng a, b;
    float x[32], y[3];
    h3_rng_seed(&a, 5);
    h3_rng_seed(&b, 5);
    h3_rng_normal(&a, x, 1); // its partner waits
    h3_rng_normal(&b, y, 2);
    h3_rng_normal(&a, x, 32);
    h3_rng_normal(&a, x, 1);
    assert_memory_equal(x, y + 1, sizeof *x);
    h3_rng_normal(&a, x, 0);
    h3_rng_seed(&a, 5);                       // seeding forgets it
    h3_rng_seed(&b, (UINT64_C(1) << 32) + 5); // 32 bits count
    h3_rng_normal(&a, x, 1);
    h3_rng_normal(&b, x + 1, 1);
    assert_memory_equal(x, x + 1, sizeof *x);
}

/* Restarted conditions are the front of one longer draw; here it needs several pieces, the second
 * time 4096 values and 8, which must not become a draw of their own. */
static void test_restarted_condition(void **state)
{
    (void)state;
    const h3_latent_shape shapes[] = {{1, 13, 5}, {9, 19, 1}}, video = {7, 2, 2};
    const h3_noise_spec spec = {.seed = 9,
                                .order = H3_NOISE_RESTART,
                                .n_conditions = 2,
                                .conditions = shapes,
                                .video = video,
                                .n_audio = 3};
    for (int k = 0; k < 2; k++) {
        const int64_t hw = shapes[k].h * shapes[k].w, keep = shapes[k].t * hw, depth = 9 * hw;
        float *all = malloc((size_t)(24 * depth) * sizeof *all);
        float *got[2] = {malloc(24 * 65 * sizeof(float)), malloc(24 * 171 * sizeof(float))};
        h3_rng r;
        h3_rng_seed(&r, 9);
        h3_rng_normal(&r, all, 24 * depth);
        h3_noise_fill(&spec, got, NULL, NULL);
        for (int c = 0; c < 24; c++)
            assert_memory_equal(got[k] + c * keep, all + c * depth, (size_t)keep * sizeof *all);
        free(all);
        free(got[0]);
        free(got[1]);
    }
}

/* ---------------------------------------------------------------- counts */

static void test_audio_lengths(void **state)
{
    (void)state;
    // 228131 * 320 / 441 = 165536.9...; 227851 * 320 / 441 = 165334.06: float32 keeps 1/64 there
    assert_int_equal(h3_audio_resampled(227851, 44100), 165335);
    // 4 / 441 above a whole number is lost in float32, and with it the sample
    for (int64_t n = 227000; n < 227441; n++)
        if (n * 320 % 441 == 2) assert_int_equal(h3_audio_resampled(n, 44100), n * 320 / 441);
}

static void test_hostile_clips(void **state)
{
    (void)state;
    int64_t n, source[32];
    h3_clip_samples s;
    assert_error(h3_frames_to_24fps(10, 0.0, 10, NULL, &n), H3_E_ARG, "frame rate 0");
    assert_error(h3_frames_to_24fps(10, (double)NAN, 10, NULL, &n), H3_E_ARG, "frame rate");
    assert_error(h3_frames_to_24fps(10, (double)INFINITY, 10, NULL, &n), H3_E_ARG, "frame rate");
    assert_int_equal(h3_frames_to_24fps(10, 1e-300, 32, source, &n), H3_OK);
    assert_int_equal(n, 32);
    assert_int_equal(source[31], 0);
    assert_int_equal(h3_frames_to_24fps(H3_MAX_COUNT, 1e12, 32, source, &n), H3_OK);
    assert_int_equal(n, 26);
    assert_int_equal(h3_frames_to_24fps(0, 30.0, 32, source, &n), H3_OK);
    assert_int_equal(n, 0);
    assert_error(h3_clip_samples_init(&s, 12, 24.0, 2.0, 2), H3_E_ARG, "at least 13 frames");
    assert_error(h3_clip_samples_init(&s, 0, 24.0, 2.0, 2), H3_E_ARG, "too short");
    assert_error(h3_clip_samples_init(&s, 100, 24.0, 1e9, 2), H3_E_ARG, "cannot sample");
    h3_clip_samples_free(&s);
}

/* ---------------------------------------------------------------- tiles and clips */

static void test_tile_limits(void **state)
{
    (void)state;
    h3_tile_axis a;
    assert_error(h3_tile_axis_init(&a, 0, 256, 64, 16), H3_E_ARG, "tiles of 256 over 0");
    assert_error(h3_tile_axis_init(&a, 512, 64, 64, 16), H3_E_ARG, "overlap");
    assert_error(h3_tile_axis_init(&a, 512, 256, 64, 0), H3_E_ARG, "units of 0");
    // every pixel: shares sum to 1 and belong to the tiles that hold the pixel
    for (int64_t length = 16; length < 1500; length += 48) {
        assert_int_equal(h3_tile_axis_init(&a, length, 48, 16, 16), H3_OK);
        for (int64_t x = 0; x < length; x++) {
            const h3_seam s = h3_tile_seam(&a, x);
            const int64_t at = x - h3_tile_start(&a, s.tile);
            assert_true(at >= 0 && at < h3_tile_kept(&a, s.tile));
            assert_true(fabsf(s.w.current + s.w.previous - 1.0f) < 1e-6f);
            if (s.w.previous > 0.0f) assert_true(x - h3_tile_start(&a, s.tile - 1) < a.tile);
        }
    }
}

static void test_decode_clips(void **state)
{
    (void)state;
    h3_decode_clips p;
    assert_error(h3_decode_clips_init(&p, 0, H3_CLIP_RULE), H3_E_ARG, "0 latent frames");
    assert_error(h3_decode_clips_init(&p, 7, (h3_clip_rule){17, 5, 4}), H3_E_ARG, "token drop 5");
    assert_error(h3_decode_clips_init(&p, 2, H3_CLIP_RULE), H3_E_ARG, "too few");
}

/* ---------------------------------------------------------------- layouts */

static void test_segments(void **state)
{
    (void)state;
    const int32_t tags[] = {1, 0, 0, 1};
    const h3_condition_shape c[] = {{H3_COND_VIDEO, 7, 2, 4, 5}, {H3_COND_IMAGE, 1, 4, 4, 0}};
    const h3_layout_in in = {tags, 4, c, 2, 7, 2, 2, 37};
    static const char *const names[] = {
        "text", "reference sound", "reference video", "reference image", "audio", "video"};
    h3_layout *l;
    int64_t row = 0;
    assert_int_equal(h3_layout_create(&l, &in), H3_OK);
    assert_int_equal(l->n_segments, 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(l->segments[i].name, names[i]);
        assert_int_equal(l->segments[i].start, row);
        row += l->segments[i].n;
    }
    assert_int_equal(row, l->n_rows);
    assert_int_equal(l->cu_seqlens[1], l->n_rows);
    assert_int_equal(l->refiner_cu_seqlens[1], 4);
    h3_layout_free(&l);
    assert_null(l);
    h3_layout_free(&l);
}

static void test_layout_errors(void **state)
{
    (void)state;
    const int32_t tags[] = {1, 0}, bad_tags[] = {1, 2};
    const h3_condition_shape key = {H3_COND_FIRST, 1, 2, 2, 0}, odd = {H3_COND_IMAGE, 1, 3, 2, 0};
    const h3_condition_shape mixed[] = {{H3_COND_FIRST, 1, 2, 2, 0}, {H3_COND_IMAGE, 1, 2, 2, 0}};
    const h3_condition_shape mute = {H3_COND_AUDIO, 0, 0, 0, 0};
    const h3_condition_shape huge = {H3_COND_VIDEO, 1 << 20, 1 << 20, 1 << 20, 0};
    const h3_condition_shape film = {H3_COND_IMAGE, 2, 2, 2, 0};
    const h3_layout_in good = {tags, 2, NULL, 0, 7, 2, 2, 37};
    const struct {
        const char *says;
        h3_layout_in in;
    } cases[] = {{"text row 1 has tag 2", {bad_tags, 2, NULL, 0, 7, 2, 2, 37}},
                 {"text rows", {NULL, 2, NULL, 0, 7, 2, 2, 37}},
                 {"target of 7 x 3 x 2", {tags, 2, NULL, 0, 7, 3, 2, 37}},
                 {"target", {tags, 2, NULL, 0, 0, 2, 2, 37}},
                 {"0 audio latents", {tags, 2, NULL, 0, 7, 2, 2, 0}},
                 {"keyframe 0 is 2 x 2", {tags, 2, &key, 1, 7, 4, 2, 37}},
                 {"condition 0 is 1 x 3 x 2", {tags, 2, &odd, 1, 7, 2, 2, 37}},
                 {"condition 1 mixes", {tags, 2, mixed, 2, 7, 2, 2, 37}},
                 {"0 audio latents", {tags, 2, &mute, 1, 7, 2, 2, 37}},
                 {"one picture", {tags, 2, &film, 1, 7, 2, 2, 37}},
                 {"rows", {tags, 2, &huge, 1, 7, 2, 2, 37}},
                 {"65 conditions", {tags, 2, &key, 65, 7, 2, 2, 37}}};
    h3_layout *l;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_error(h3_layout_create(&l, &cases[i].in), H3_E_ARG, cases[i].says);
        assert_null(l);
    }
    assert_int_equal(h3_layout_create(&l, &good), H3_OK);
    h3_padded *p;
    assert_error(h3_padded_create(&p, l, 0), H3_E_ARG, "alignment 0");
    h3_layout_free(&l);
}

/* ---------------------------------------------------------------- schedules */

static void test_schedule_errors(void **state)
{
    (void)state;
    const float rising[] = {1.0f, 0.5f, 0.6f, 0.0f}, open[] = {1.0f, 0.5f}, high[] = {1.5f, 0.0f};
    const float nan[] = {NAN, 0.0f};
    h3_schedule s;
    assert_error(h3_schedule_init(&s, 1, 12.0), H3_E_ARG, "1 steps");
    assert_error(h3_schedule_init(&s, H3_MAX_SIGMAS + 1, 12.0), H3_E_ARG, "steps");
    assert_error(h3_schedule_init(&s, 50, 0.0), H3_E_ARG, "shift 0");
    assert_error(h3_schedule_init(&s, 50, (double)NAN), H3_E_ARG, "shift");
    assert_error(h3_schedule_init(&s, 50, 1e-300), H3_E_ARG, "shift 1e-300");
    assert_error(h3_schedule_from(&s, rising, 4, 12.0), H3_E_ARG, "sigma 2");
    assert_error(h3_schedule_from(&s, open, 2, 12.0), H3_E_ARG, "must be 0");
    assert_error(h3_schedule_from(&s, high, 2, 12.0), H3_E_ARG, "sigma 0 is 1.5");
    assert_error(h3_schedule_from(&s, nan, 2, 12.0), H3_E_ARG, "sigma 0");
    assert_error(h3_schedule_from(&s, open, 1, 12.0), H3_E_ARG, "1 sigmas");
    h3_schedule_free(&s);
}

/* A steep shift makes neighbours equal; they are merged, and the ends stay. */
static void test_schedule_merges(void **state)
{
    (void)state;
    h3_schedule s;
    assert_int_equal(h3_schedule_init(&s, 4000, 1e5), H3_OK);
    assert_true(s.n_sigmas < 4000);
    assert_true(s.sigmas[0] == 1.0f && s.sigmas[s.n_sigmas - 1] == 0.0f);
    for (int i = 0; i < s.n_steps; i++)
        assert_true(s.sigmas[i + 1] != s.sigmas[i]);
    h3_schedule_free(&s);
    assert_int_equal(h3_schedule_init(&s, 2000, 12.0), H3_OK);
    assert_int_equal(s.n_sigmas, 2000);
    h3_schedule_free(&s);
}

/* The step goes back by 1 - t, t as the network saw it: below 0.5 that is not always sigma. */
static void test_euler_factors(void **state)
{
    (void)state;
    h3_schedule s;
    int n_other = 0;
    assert_int_equal(h3_schedule_init(&s, 50, 3.0), H3_OK);
    for (int i = 0; i < s.n_steps; i++) {
        const h3_euler e = h3_sigma_euler(&s, i);
        float x = 1.0f;
        const float t = 1.0f - s.sigmas[i], v = 2.0f;
        assert_true(s.timesteps[i] == t && e.back == 1.0f - t);
        assert_true(e.ratio == s.sigmas[i + 1] / s.sigmas[i] && e.rest == 1.0f - e.ratio);
        n_other += e.back != s.sigmas[i];
        h3_sigma_step(&x, &v, 1, e);
        assert_true(x == e.ratio + e.rest * (1.0f + e.back * v));
    }
    assert_true(n_other > 0);
    h3_schedule_free(&s);
}

/* ---------------------------------------------------------------- whole plans */

static h3_plan *plan_ok(const h3_plan_request *r)
{
    h3_plan *p;
    const h3_status st = h3_plan_create(&p, r);
    if (st != H3_OK) fail_msg("%s", h3_error());
    return p;
}

static bool has_note(const h3_plan *p, h3_plan_note note)
{
    for (int i = 0; i < p->n_warnings; i++)
        if (p->warnings[i].note == note) return true;
    return false;
}

static void test_plan_default(void **state)
{
    (void)state;
    const h3_plan_request r = h3_plan_request_default();
    h3_plan *p = plan_ok(&r);
    assert_int_equal(p->canvas.width, 1344);
    assert_int_equal(p->canvas.height, 768);
    assert_int_equal(p->latent.t, 37);
    assert_int_equal(p->n_audio, 207);
    assert_int_equal(p->n_samples, 165600);
    assert_int_equal(p->n_forwards, 49);
    assert_int_equal(p->n_media_rows, 37922 - 212);
    assert_int_equal(p->tiles_y.n * p->tiles_x.n, 28);
    assert_int_equal(p->clips.n_frames, 124);
    assert_int_equal(p->n_warnings, 0);
    h3_plan_free(&p);
    assert_null(p);
    h3_plan_free(&p);
    assert_string_equal(h3_task_name(H3_REF2VA), "ref2va");
}

static void test_plan_counts(void **state)
{
    (void)state;
    h3_plan_request r = h3_plan_request_default();
    h3_plan *p;
    static const struct {
        int64_t asked, got;
        bool is_snapped, is_outside;
    } rows[] = {{1, 22, true, true},     {22, 22, false, true},    {107, 107, false, true},
                {108, 124, true, false}, {345, 345, false, false}, {346, 362, true, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        r.n_frames = rows[i].asked;
        p = plan_ok(&r);
        assert_int_equal(p->n_frames, rows[i].got);
        assert_int_equal(has_note(p, H3_NOTE_FRAMES_SNAPPED), rows[i].is_snapped);
        assert_int_equal(has_note(p, H3_NOTE_DURATION), rows[i].is_outside);
        h3_plan_free(&p);
    }
    r.knobs.is_duration_strict = true;
    assert_error(h3_plan_create(&p, &r), H3_E_ARG, "346 frames become 362, 15.083 s");
}

static void test_plan_canvas(void **state)
{
    (void)state;
    h3_plan_request r = h3_plan_request_default();
    h3_plan *p;
    static const struct {
        h3_size canvas;
        bool is_odd;
    } rows[] = {{{1344, 768}, false}, {{768, 768}, false}, {{832, 480}, true},
                {{2048, 512}, false}, {{4096, 512}, true}, {{32, 32}, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        r.canvas = rows[i].canvas;
        p = plan_ok(&r);
        assert_int_equal(has_note(p, H3_NOTE_CANVAS), rows[i].is_odd);
        h3_plan_free(&p);
    }
    r.canvas = (h3_size){1344, 768}; // nearly 16:9, and called so by those who send both
    r.aspect_w = 16.0, r.aspect_h = 9.0;
    p = plan_ok(&r);
    assert_int_equal(p->canvas.width, 1344);
    h3_plan_free(&p);
    r.canvas = (h3_size){0, 0};
    r.aspect_w = 9.0, r.aspect_h = 16.0;
    p = plan_ok(&r);
    assert_int_equal(p->canvas.height, 1344);
    h3_plan_free(&p);
    r.task = H3_FL2VA; // a ratio that is asked for outranks the keyframe's
    r.first = (h3_size){100, 100};
    p = plan_ok(&r);
    assert_int_equal(p->canvas.height, 1344);
    h3_plan_free(&p);
}

static void test_plan_references(void **state)
{
    (void)state;
    const h3_ref_info refs[] = {
        {.kind = H3_REF_VIDEO,
         .size = {640, 480},
         .n_frames = 600,
         .fps = 30.0,
         .has_audio = true,
         .n_samples = 882000,
         .rate = 44100},
        {.kind = H3_REF_IMAGE, .size = {80, 48}},
        {.kind = H3_REF_VIDEO, .size = {64, 64}, .n_frames = 15, .fps = 24.0},
        {.kind = H3_REF_VIDEO,
         .size = {64, 64},
         .n_frames = 30,
         .fps = 24.0,
         .has_audio = true,
         .rate = 48000},
        {.kind = H3_REF_AUDIO, .n_samples = 3200, .rate = 16000}};
    h3_plan_request r = h3_plan_request_default();
    r.task = H3_REF2VA;
    r.references = refs;
    r.n_references = 5;
    h3_plan *p = plan_ok(&r);
    const h3_condition *c = p->conditions;
    assert_int_equal(p->canvas.width, 1344); // never from a reference
    assert_int_equal(c[0].n_frames, 124);
    assert_int_equal(c[0].n_encoded, 124);
    assert_int_equal(c[0].fit.canvas.width, 1024);
    assert_int_equal(c[0].n_keep, 227850);
    assert_int_equal(c[0].shape.n_audio, 207);
    assert_int_equal(c[0].samples.n, 11);
    assert_int_equal(c[1].fit.canvas.width, 3424);
    assert_int_equal(c[1].shape.w, 214);
    assert_int_equal(c[2].n_encoded, 15);
    assert_int_equal(c[2].shape.t, 2);
    assert_int_equal(c[3].n_encoded, 22);
    assert_int_equal(c[3].shape.n_audio, 0);
    assert_int_equal(c[4].n_resampled, 6400);
    assert_int_equal(c[4].shape.n_audio, 8);
    assert_int_equal(p->n_condition_audio, 2 * (207 + 8));
    assert_true(has_note(p, H3_NOTE_REFERENCE_CUT));
    assert_true(has_note(p, H3_NOTE_REFERENCE_SHORT));
    assert_true(has_note(p, H3_NOTE_REFERENCE_SILENT));

    const int32_t tags[] = {1, 1, 1};
    h3_layout *l;
    assert_int_equal(h3_plan_layout(&l, p, tags, 3), H3_OK);
    assert_int_equal(l->n_rows, p->n_media_rows + 3);
    assert_int_equal(l->n_condition_video, p->n_condition_video);
    assert_int_equal(l->n_condition_audio, p->n_condition_audio);
    h3_layout_free(&l);
    h3_plan_free(&p);
}

/* The plan's noise is that of its shapes: the visual conditions in order, sound alone left out. */
static void test_plan_noise(void **state)
{
    (void)state;
    const h3_ref_info refs[] = {{.kind = H3_REF_AUDIO, .n_samples = 800, .rate = 32000},
                                {.kind = H3_REF_IMAGE, .size = {64, 64}}};
    h3_plan_request r = h3_plan_request_default();
    r.task = H3_REF2VA;
    r.references = refs;
    r.n_references = 2;
    r.n_frames = 22;
    r.canvas = (h3_size){32, 32};
    r.knobs.reference_short_edge = 64;
    h3_plan *p = plan_ok(&r);
    enum { N0 = 24 * 16, NV = 24 * 7 * 4, NA = 74 * 32 };
    float *all = malloc((N0 + NV + NA) * sizeof *all), *want = malloc((N0 + NV + NA) * sizeof *all);
    float *const condition[] = {all};
    h3_plan_noise(p, condition, all + N0, all + N0 + NV);
    h3_rng g;
    h3_rng_seed(&g, 42);
    h3_rng_normal(&g, want, N0);
    h3_rng_normal(&g, want + N0, NV);
    h3_rng_normal(&g, want + N0 + NV, NA);
    assert_memory_equal(all, want, (N0 + NV + NA) * sizeof *all);
    h3_plan_noise(p, condition, NULL, all + N0 + NV); // injected video: the next draw moves up
    h3_rng_seed(&g, 42);
    h3_rng_normal(&g, want, N0);
    h3_rng_normal(&g, want + N0, NA);
    assert_memory_equal(all + N0 + NV, want + N0, NA * sizeof *all);
    free(all);
    free(want);
    h3_plan_free(&p);
}

static void test_plan_sigmas(void **state)
{
    (void)state;
    const float base[] = {1.0f, 0.7f, 0.4f, 0.15f, 0.0f};
    h3_plan_request r = h3_plan_request_default();
    r.base_sigmas = base;
    r.n_base_sigmas = 5;
    h3_plan *p = plan_ok(&r);
    assert_int_equal(p->n_forwards, 4);
    assert_true(p->video.sigmas[1] > p->audio.sigmas[1]);
    h3_plan_free(&p);
    r = h3_plan_request_default();
    r.n_steps = 4000;
    r.video_shift = 1e5;
    assert_error(h3_plan_create(&p, &r), H3_E_ARG, "stepped together");
}

/* Every refusal names what is wrong. Each row changes one thing of a good request. */
static void test_plan_errors(void **state)
{
    (void)state;
    static const h3_ref_info image = {.kind = H3_REF_IMAGE, .size = {64, 64}};
    static const h3_ref_info wide = {.kind = H3_REF_IMAGE, .size = {1000, 10}};
    static const h3_ref_info empty = {.kind = H3_REF_IMAGE};
    static const h3_ref_info sound = {.kind = H3_REF_AUDIO, .n_samples = 800, .rate = 32000};
    static const h3_ref_info mute[] = {{.kind = H3_REF_IMAGE, .size = {64, 64}},
                                       {.kind = H3_REF_AUDIO, .rate = 32000}};
    static const h3_ref_info slow[] = {{.kind = H3_REF_IMAGE, .size = {64, 64}},
                                       {.kind = H3_REF_AUDIO, .n_samples = 80, .rate = 10}};
    static const h3_ref_info shorty = {
        .kind = H3_REF_VIDEO, .size = {64, 64}, .n_frames = 12, .fps = 24.0};
    static const h3_ref_info still = {.kind = H3_REF_VIDEO, .size = {64, 64}, .fps = 24.0};
    static const h3_ref_info timeless = {.kind = H3_REF_VIDEO, .size = {64, 64}, .n_frames = 99};
    static const h3_ref_info many[13] = {{.kind = H3_REF_IMAGE, .size = {64, 64}}};
    h3_plan_request t2va = h3_plan_request_default(), fl2va = t2va, ref2va = t2va;
    fl2va.task = H3_FL2VA;
    fl2va.first = (h3_size){64, 64};
    ref2va.task = H3_REF2VA;
    ref2va.references = &image;
    ref2va.n_references = 1;
    struct {
        const char *says;
        h3_plan_request r;
    } c[40];
    size_t n = 0;
#define CASE(base, sentence, ...)     \
    do {                              \
        c[n].says = sentence;         \
        c[n].r = base;                \
        h3_plan_request *q = &c[n].r; \
        __VA_ARGS__;                  \
        n++;                          \
    } while (0)
    CASE(t2va, "unknown task 7", q->task = (h3_task)7);
    CASE(t2va, "t2va takes no keyframes", q->last = (h3_size){64, 64});
    CASE(t2va, "t2va takes no references", (q->references = &image, q->n_references = 1));
    CASE(t2va, "0 frames", q->n_frames = 0);
    CASE(t2va, "1000000000 frames", q->n_frames = 1000000000);
    CASE(t2va, "size 1344 x 760", (q->canvas = (h3_size){1344, 760}));
    CASE(t2va, "size 1344 x 0", (q->canvas = (h3_size){1344, 0}));
    CASE(t2va, "size -32 x 768", (q->canvas = (h3_size){-32, 768}));
    CASE(t2va, "do not agree", (q->canvas = (h3_size){64, 64}, q->aspect_w = 2, q->aspect_h = 1));
    CASE(t2va, "the nearest is 1280 x 704", q->canvas = ((h3_size){1280, 720}));
    CASE(t2va, "the nearest is 32 x 32768", q->canvas = ((h3_size){0, 99999}));
    CASE(t2va, "5:1 is 5, outside", (q->aspect_w = 5, q->aspect_h = 1));
    CASE(t2va, "must be positive", (q->aspect_w = (double)NAN, q->aspect_h = 1));
    CASE(t2va, "video schedule: 1 steps", q->n_steps = 1);
    CASE(t2va, "audio schedule: shift -3", q->audio_shift = -3.0);
    CASE(t2va, "noise order", q->noise_order = (h3_noise_order)9);
    CASE(t2va, "canvas_short_edge is 0", q->knobs.canvas_short_edge = 0);
    CASE(t2va, "tile_overlap is 256", q->knobs.tile_overlap = 256);
    CASE(t2va, "canvas_multiple 40", q->knobs.canvas_multiple = 40);
    CASE(fl2va, "fl2va needs a first or a last keyframe", (q->first = (h3_size){0, 0}));
    CASE(fl2va, "fl2va takes no references", (q->references = &image, q->n_references = 1));
    CASE(fl2va, "first keyframe is -1 x 64", q->first.width = -1);
    CASE(fl2va, "keyframe: aspect ratio 641:64", q->first.width = 641);
    CASE(ref2va, "needs at least one reference", q->n_references = 0);
    CASE(ref2va, "reference 1: image of 1000 x 10", q->references = &wide);
    CASE(ref2va, "reference 1: the image is 0 x 0", q->references = &empty);
    CASE(ref2va, "need an image or video reference", q->references = &sound);
    CASE(ref2va, "reference 2: the sound has no samples",
         (q->references = mute, q->n_references = 2));
    CASE(ref2va, "reference 2: sound of 80 samples at 10 Hz",
         (q->references = slow, q->n_references = 2));
    CASE(ref2va, "reference 1: clip of 12 frames at 24 fps is too short", q->references = &shorty);
    CASE(ref2va, "reference 1: the video has 0 frames", q->references = &still);
    CASE(ref2va, "reference 1: frame rate 0", q->references = &timeless);
    CASE(ref2va, "13 references: at most 12", (q->references = many, q->n_references = 13));
    CASE(ref2va, "more than 9 image references", (q->references = many, q->n_references = 10));
#undef CASE
    for (size_t i = 0; i < n; i++) {
        h3_plan *p;
        assert_error(h3_plan_create(&p, &c[i].r), H3_E_ARG, c[i].says);
        assert_null(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_no_negative_zero),
        cmocka_unit_test(test_stream_is_kept_across_large_draws),
        cmocka_unit_test(test_restarted_condition),
        cmocka_unit_test(test_audio_lengths),
        cmocka_unit_test(test_hostile_clips),
        cmocka_unit_test(test_tile_limits),
        cmocka_unit_test(test_decode_clips),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_layout_errors),
        cmocka_unit_test(test_schedule_errors),
        cmocka_unit_test(test_schedule_merges),
        cmocka_unit_test(test_euler_factors),
        cmocka_unit_test(test_plan_default),
        cmocka_unit_test(test_plan_counts),
        cmocka_unit_test(test_plan_canvas),
        cmocka_unit_test(test_plan_references),
        cmocka_unit_test(test_plan_noise),
        cmocka_unit_test(test_plan_sigmas),
        cmocka_unit_test(test_plan_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
