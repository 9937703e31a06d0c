/**
 * The denoising loop around the tiny model: interruption, resumption, bad numbers, memory bounds,
 * and the pieces around it (packing, the schedule's table). What the numbers are is for the
 * goldens.
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

#include "attention.h"
#include "pack.h"
#include "sampler.h"
#include "schedule_rows.h"

#define MODEL H3_SOURCE_DIR "/tests/data/tiny-h3/original/FL2VA/transformer"

enum { VIDEO_COLS = 96, AUDIO_COLS = 32, TEXT_DIM = 24, N_TEXT = 5 };

/* A keyframe and a few frames on 4 x 4 cells, five sigma points: four steps. */
typedef struct fixture {
    h3_cancel_flag cancel;
    h3_dev *d;
    h3_checkpoint *ck;
    h3_dit *m;
    h3_layout *l;
    h3_schedule video, audio;
    float *embeds, *video_rows, *audio_rows;
    h3_sampler_in in;
    int n_calls;
    int cancel_at; ///< step after which the run is asked to stop; -1: never
    int save_at;   ///< step whose rows are kept in saved_*; -1: none
    float *saved_video, *saved_audio, *out_video, *out_audio;
} fixture;

static float *noise_like(int64_t n, uint32_t seed)
{
    float *p = malloc((size_t)n * sizeof *p);

    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return p;
}

static h3_status after_step(void *user, const h3_sampler_step *s)
{
    fixture *f = user;

    f->n_calls++;
    assert_true(s->seconds >= 0);
    assert_int_equal(s->n_steps, f->video.n_steps);
    assert_int_equal(s->video.ne[0], f->l->n_video - f->l->n_condition_video);
    if (s->step == f->cancel_at) atomic_store(&f->cancel.stop, true);
    if (s->step == f->save_at) {
        assert_int_equal(h3_dev_download(s->dev, f->saved_video, s->video), H3_OK);
        assert_int_equal(h3_dev_download(s->dev, f->saved_audio, s->audio), H3_OK);
    }
    return H3_OK;
}

static int setup(void **state)
{
    static const int32_t tags[N_TEXT] = {1, 1, 0, 1, 1};
    static const h3_condition_shape first = {.kind = H3_COND_FIRST, .t = 1, .h = 4, .w = 4};
    const h3_layout_in li = {.text_tags = tags,
                             .n_text = N_TEXT,
                             .conditions = &first,
                             .n_conditions = 1,
                             .t = 2,
                             .h = 4,
                             .w = 4,
                             .n_audio = 8};
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    f->cancel_at = f->save_at = -1;
    assert_int_equal(h3_dev_open(&f->d, "ref", &(h3_dev_opts){.cancel = &f->cancel}), H3_OK);
    assert_int_equal(h3_ckpt_open(&f->ck, MODEL, H3_ROLE_DIT, NULL), H3_OK);
    if (h3_dit_open(&f->m, f->ck, f->d) != H3_OK) fail_msg("%s", h3_error());
    assert_int_equal(h3_layout_create(&f->l, &li), H3_OK);
    assert_int_equal(h3_schedule_init(&f->video, 5, H3_VIDEO_SHIFT), H3_OK);
    assert_int_equal(h3_schedule_init(&f->audio, 5, H3_AUDIO_SHIFT), H3_OK);
    f->embeds = noise_like(N_TEXT * TEXT_DIM, 1);
    f->video_rows = noise_like(f->l->n_video * VIDEO_COLS, 2);
    f->audio_rows = noise_like(f->l->n_audio * AUDIO_COLS, 3);
    f->saved_video = noise_like(f->l->n_video * VIDEO_COLS, 4);
    f->saved_audio = noise_like(f->l->n_audio * AUDIO_COLS, 5);
    f->out_video = noise_like(f->l->n_video * VIDEO_COLS, 6);
    f->out_audio = noise_like(f->l->n_audio * AUDIO_COLS, 7);
    f->in = (h3_sampler_in){.layout = f->l,
                            .video = &f->video,
                            .audio = &f->audio,
                            .prompt_embeds = h3_tensor_2d(f->embeds, H3_F32, N_TEXT, TEXT_DIM),
                            .act = H3_F32,
                            .video_rows = f->video_rows,
                            .audio_rows = f->audio_rows,
                            .after_step = after_step,
                            .user = f};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    h3_dit_close(&f->m);
    h3_ckpt_close(&f->ck);
    h3_dev_close(&f->d);
    h3_layout_free(&f->l);
    h3_schedule_free(&f->video);
    h3_schedule_free(&f->audio);
    free(f->embeds);
    free(f->video_rows);
    free(f->audio_rows);
    free(f->saved_video);
    free(f->saved_audio);
    free(f->out_video);
    free(f->out_audio);
    free(f);
    return 0;
}

static h3_status go(fixture *f)
{
    return h3_sampler_run(f->out_video, f->out_audio, f->m, &f->in);
}

/* Generated rows of a full run, and of one continued from the rows after step 1. */
static void resumed_run_gives_the_same_bits(void **state)
{
    fixture *f = *state;
    const int64_t nv = (f->l->n_video - f->l->n_condition_video) * VIDEO_COLS;
    const int64_t na = (f->l->n_audio - f->l->n_condition_audio) * AUDIO_COLS;
    const size_t bv = (size_t)nv * sizeof(float), ba = (size_t)na * sizeof(float);
    float *full_video = noise_like(nv, 8), *full_audio = noise_like(na, 9);

    f->save_at = 1;
    assert_int_equal(go(f), H3_OK);
    assert_int_equal(f->n_calls, 4);
    memcpy(full_video, f->out_video, bv);
    memcpy(full_audio, f->out_audio, ba);
    memcpy(f->video_rows + f->l->n_condition_video * VIDEO_COLS, f->saved_video, bv);
    memcpy(f->audio_rows + f->l->n_condition_audio * AUDIO_COLS, f->saved_audio, ba);
    f->in.first_step = 2;
    f->save_at = -1;
    assert_int_equal(go(f), H3_OK);
    assert_int_equal(f->n_calls, 4 + 2);
    assert_memory_equal(full_video, f->out_video, bv);
    assert_memory_equal(full_audio, f->out_audio, ba);
    free(full_video);
    free(full_audio);
}

static void stop_is_honoured_between_steps(void **state)
{
    fixture *f = *state;

    f->cancel_at = 1;
    assert_int_equal(go(f), H3_E_CANCELLED);
    assert_int_equal(f->n_calls, 2);
    assert_int_equal(f->d->scratch.used, 0);
}

static h3_status refuse(void *user, const h3_sampler_step *s)
{
    (void)user;
    return h3_fail(H3_E_IO, "step %d could not be saved", s->step);
}

static void callback_may_end_the_run_or_be_absent(void **state)
{
    fixture *f = *state;

    f->in.after_step = refuse;
    assert_int_equal(go(f), H3_E_IO);
    f->in.after_step = NULL;
    assert_int_equal(go(f), H3_OK);
}

static void bad_numbers_are_named(void **state)
{
    fixture *f = *state;

    f->embeds[7] = NAN;
    assert_int_equal(go(f), H3_E_NUMERIC);
    assert_non_null(strstr(h3_error(), "step 0"));
    assert_int_equal(f->n_calls, 0);
}

static void wrong_arguments_are_refused(void **state)
{
    fixture *f = *state;
    h3_schedule short_one;

    f->in.first_step = 4;
    assert_int_equal(go(f), H3_E_ARG);
    f->in.first_step = -1;
    assert_int_equal(go(f), H3_E_ARG);
    f->in.first_step = 0;
    assert_int_equal(h3_schedule_init(&short_one, 4, H3_AUDIO_SHIFT), H3_OK);
    f->in.audio = &short_one;
    assert_int_equal(go(f), H3_E_ARG);
    f->in.audio = &f->audio;
    f->in.prompt_embeds.ne[0]--;
    assert_int_equal(go(f), H3_E_SHAPE);
    h3_schedule_free(&short_one);
}

/* The dry run promises exactly what the run takes: neither too small nor wasteful. */
static void planned_memory_is_what_is_used(void **state)
{
    fixture *f = *state;
    size_t scratch, kept;

    for (int act = H3_F32; act <= H3_BF16; act++) {
        f->in.act = (uint8_t)act;
        f->d->scratch.peak = 0;
        assert_int_equal(h3_sampler_bytes(f->m, &f->in, &scratch, &kept), H3_OK);
        assert_int_equal(go(f), H3_OK);
        assert_true(f->d->scratch.peak <= scratch + 1024 && kept > 0); // red zones under ASan
        assert_true(f->d->scratch.peak + 4096 > scratch);
    }
}

/* Every step runs every block, nothing skipped, nothing twice. */
static void operations_are_counted(void **state)
{
    fixture *f = *state;
    const uint64_t L = (uint64_t)f->m->dims.n_layers, R = (uint64_t)f->m->dims.n_refiner;
    const uint64_t steps = (uint64_t)f->video.n_steps;

    h3_dev_counters_reset(f->d);
    assert_int_equal(go(f), H3_OK);
    assert_int_equal(f->d->stat[H3_OP_attention].calls, steps * L + R);
    assert_int_equal(f->d->stat[H3_OP_rms_norm_mod].calls, 2 * steps); // first and final
    assert_int_equal(f->d->stat[H3_OP_gate_add_norm].calls, steps * (2 * L - 1));
    assert_int_equal(f->d->stat[H3_OP_gate_add].calls, steps);
    assert_int_equal(f->d->stat[H3_OP_qk_norm_rope].calls, steps * L + R);
    // 4 a block; 2 patch projections and 2 heads a step; once: time 2, adaln L + 1, condition 1
    assert_int_equal(f->d->stat[H3_OP_gemm].calls, steps * (4 * L + 4) + 4 * R + L + 4);
    assert_int_equal(f->d->stat[H3_OP_flow_step].calls, 2 * steps);
}

/* The MLP runs over bands of rows; how many is not part of the result. */
static void mlp_bands_do_not_show(void **state)
{
    fixture *f = *state;
    const int64_t n = (f->l->n_video - f->l->n_condition_video) * VIDEO_COLS;
    float *whole = noise_like(n, 10);

    assert_int_equal(go(f), H3_OK);
    memcpy(whole, f->out_video, (size_t)n * sizeof *whole);
    f->m->mlp_band = 7;
    assert_int_equal(go(f), H3_OK);
    assert_memory_equal(whole, f->out_video, (size_t)n * sizeof *whole);
    free(whole);
}

static void schedule_table_covers_every_step(void **state)
{
    fixture *f = *state;
    h3_schedule_rows r;

    assert_int_equal(h3_schedule_rows_init(&r, f->l, &f->video, &f->audio, 0, true), H3_OK);
    assert_int_equal(r.n_steps, 4);
    for (int u = 1; u < r.n_timesteps; u++)
        assert_true(r.timesteps[u - 1] < r.timesteps[u]);
    for (int i = 0; i < r.n_steps; i++) {
        const h3_step_times t = h3_layout_times(f->l, f->video.timesteps[i], f->audio.timesteps[i]);
        const int32_t *row = r.mod_row + i * f->l->n_rows;
        const float want[] = {t.t[t.condition_video], t.t[t.video], t.t[t.audio], t.t[t.video]};
        const int64_t at[] = {f->l->video_rows[0], f->l->video_rows[f->l->n_video - 1],
                              f->l->audio_rows[0], f->l->text_rows[0]};
        for (int k = 0; k < 4; k++) {
            assert_int_equal(row[at[k]] % 3, f->l->tags[at[k]]);
            assert_true(r.timesteps[row[at[k]] / 3] == want[k]);
        }
    }
    h3_schedule_rows_free(&r);
}

static void rows_of_latents(void **state)
{
    const h3_latent_shape one = {1, 2, 2}, target = {1, 2, 4};
    const float clean[8] = {1, 2, 3, 4, 5, 6, 7, 8}, noise[8] = {0};
    float target_noise[16], rows[24];
    const h3_pack_visual c = {one, clean, noise};
    const h3_pack_sound s = {clean, 2};

    (void)state;
    for (int i = 0; i < 16; i++)
        target_noise[i] = (float)(100 + i);
    assert_int_equal(h3_pack_video(rows, &c, 1, target_noise, target, 2), H3_OK);
    for (int i = 0; i < 8; i++) // one patch: column = channel * 4 + dy * 2 + dx
        assert_true(rows[i] == 0.999f * clean[i]);
    assert_true(rows[8] == 100 && rows[9] == 101 && rows[10] == 104 && rows[12] == 108);
    h3_pack_audio(rows, &s, 1, target_noise, 4, 4);
    assert_true(rows[0] == 1 && rows[7] == 8 && rows[8] == 100 && rows[23] == 115);
}

static void split_views(void **state)
{
    float x[2 * 3 * 2 * 4]; // S 2, H 2, D 4
    h3_qkv p;

    (void)state;
    p = h3_attention_split(h3_tensor_2d(x, H3_F32, 2, 24), 2, 4, true);
    assert_ptr_equal(p.k.data, x + 4);
    assert_ptr_equal(h3_at(h3_at(p.v, 1), 1).data, x + 24 + 12 + 8);
    p = h3_attention_split(h3_tensor_2d(x, H3_F32, 2, 24), 2, 4, false);
    assert_ptr_equal(p.k.data, x + 8);
    assert_ptr_equal(h3_at(h3_at(p.v, 1), 1).data, x + 24 + 16 + 4);
}

int main(void)
{
#define WITH_MODEL(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_MODEL(resumed_run_gives_the_same_bits),
        WITH_MODEL(stop_is_honoured_between_steps),
        WITH_MODEL(callback_may_end_the_run_or_be_absent),
        WITH_MODEL(bad_numbers_are_named),
        WITH_MODEL(wrong_arguments_are_refused),
        WITH_MODEL(planned_memory_is_what_is_used),
        WITH_MODEL(operations_are_counted),
        WITH_MODEL(mlp_bands_do_not_show),
        WITH_MODEL(schedule_table_covers_every_step),
        cmocka_unit_test(rows_of_latents),
        cmocka_unit_test(split_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
