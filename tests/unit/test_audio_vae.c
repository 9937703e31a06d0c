/**
 * The audio autoencoder around its numbers: pieces with their halo, channels, padding, filters,
 * interruption, bad input. What the numbers are is for the goldens.
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

#include "audio_vae_net.h"
#include "test_models.h"
#include "vae_files.h"

#define MODEL H3_SOURCE_DIR "/tests/data/audio_vae/model"

enum { Z = 32, HOP = 800 };

typedef struct env {
    h3_cancel_flag cancel;
    h3_dev *d;
    h3_checkpoint *ck;
    h3_audio_vae *v;
} env;

static void open_env(env *e, unsigned halves)
{
    memset(e, 0, sizeof *e);
    const h3_dev_opts o = {.cancel = &e->cancel, .n_threads = 1};
    assert_int_equal(h3_dev_open(&e->d, "cpu", &o), H3_OK);
    assert_int_equal(h3_ckpt_open(&e->ck, test_model(MODEL), H3_ROLE_AUDIO_VAE, NULL), H3_OK);
    assert_int_equal(h3_audio_vae_open(&e->v, e->d, e->ck, halves), H3_OK);
    assert_int_equal(h3_ckpt_finish(e->ck), H3_OK);
}

static void close_env(env *e)
{
    h3_audio_vae_close(&e->v);
    h3_ckpt_close(&e->ck);
    h3_dev_close(&e->d);
}

static float *numbers(int64_t n, uint32_t seed)
{
    float *p = malloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return p;
}

static h3_status decode(env *e, float *z, int64_t channels, int64_t n, int64_t chunk, float *out)
{
    const h3_audio_decode_opts o = {.chunk = chunk};
    return h3_audio_vae_decode(e->d, e->v, h3_tensor_3d(z, H3_F32, channels, Z, n), &o, out);
}

static void pieces_are_bit_equal_to_the_whole(void **state)
{
    enum { N = 96 };
    static const int64_t chunks[] = {49, 90};
    float *z = numbers(Z * N, 1), *whole = numbers(N * HOP, 2), *parts = numbers(N * HOP, 3);
    env e;

    (void)state;
    open_env(&e, H3_AUDIO_VAE_DECODER);
    const int64_t halo = h3_audio_vae_sizes(e.v)->halo;
    assert_true(halo > 8 && halo + 49 < N); // so that pieces do not see everything
    assert_int_equal(decode(&e, z, 1, N, 0, whole), H3_OK);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        memset(parts, 0, (size_t)(N * HOP) * sizeof *parts);
        assert_int_equal(decode(&e, z, 1, N, chunks[i], parts), H3_OK);
        assert_memory_equal(whole, parts, (size_t)(N * HOP) * sizeof *whole);
    }
    free(z);
    free(whole);
    free(parts);
    close_env(&e);
}

static void memory_of_a_long_sound_is_bounded(void **state)
{
    const h3_audio_decode_opts o = {.chunk = 512};
    size_t minute, hour;
    env e;

    (void)state;
    open_env(&e, H3_AUDIO_VAE_DECODER);
    assert_int_equal(h3_audio_vae_decode_bytes(e.d, e.v, 2, 60 * 40, &o, &minute), H3_OK);
    assert_int_equal(h3_audio_vae_decode_bytes(e.d, e.v, 2, 3600 * 40, &o, &hour), H3_OK);
    assert_int_equal(minute, hour);
    close_env(&e);
}

static void channels_are_independent(void **state)
{
    enum { N = 3 };
    float *z = numbers(2 * Z * N, 1), a[2 * N * HOP], b[2 * N * HOP], swapped[2 * Z * N];
    env e;

    (void)state;
    open_env(&e, H3_AUDIO_VAE_DECODER);
    memcpy(swapped, z + Z * N, Z * N * sizeof *z);
    memcpy(swapped + Z * N, z, Z * N * sizeof *z);
    assert_int_equal(decode(&e, z, 2, N, 0, a), H3_OK);
    assert_int_equal(decode(&e, swapped, 2, N, 0, b), H3_OK);
    assert_memory_equal(a, b + N * HOP, N * HOP * sizeof *a);
    assert_memory_equal(a + N * HOP, b, N * HOP * sizeof *a);
    free(z);
    close_env(&e);
}

static void sound_is_padded_with_zeros(void **state)
{
    float *wave = numbers(2 * HOP, 5), a[2 * Z], b[2 * Z];
    env e;

    (void)state;
    open_env(&e, H3_AUDIO_VAE_ENCODER);
    assert_int_equal(h3_audio_vae_latents(e.v, 1), 1);
    assert_int_equal(h3_audio_vae_latents(e.v, HOP), 1);
    assert_int_equal(h3_audio_vae_latents(e.v, HOP + 1), 2);
    assert_int_equal(h3_audio_vae_encode(e.d, e.v, h3_tensor_2d(wave, H3_F32, 1, HOP + 7), true, a),
                     H3_OK);
    memset(wave + HOP + 7, 0, (HOP - 7) * sizeof *wave);
    assert_int_equal(h3_audio_vae_encode(e.d, e.v, h3_tensor_2d(wave, H3_F32, 1, 2 * HOP), true, b),
                     H3_OK);
    assert_memory_equal(a, b, sizeof a);
    /* Rows are the means, normalised per latent channel. */
    const h3_audio_vae_geometry *g = h3_audio_vae_sizes(e.v);
    assert_int_equal(
        h3_audio_vae_encode(e.d, e.v, h3_tensor_2d(wave, H3_F32, 1, 2 * HOP), false, b), H3_OK);
    for (int i = 0; i < 2 * Z; i++)
        assert_true(b[i] == (a[i] - g->mean[i % Z]) / g->std[i % Z]);
    free(wave);
    close_env(&e);
}

static void bad_input_is_refused(void **state)
{
    float *z = numbers(2 * Z * 3, 1), out[2 * 3 * HOP];
    env e;

    (void)state;
    open_env(&e, H3_AUDIO_VAE_DECODER);
    assert_int_equal(h3_audio_vae_decode(e.d, e.v, h3_tensor_3d(z, H3_F32, 2, Z - 1, 3), NULL, out),
                     H3_E_SHAPE);
    assert_int_equal(h3_audio_vae_decode(e.d, e.v, h3_tensor_3d(z, H3_F32, 2, Z, 0), NULL, out),
                     H3_E_SHAPE);
    assert_int_equal(h3_audio_vae_encode(e.d, e.v, h3_tensor_2d(z, H3_F32, 1, 3), true, out),
                     H3_E_INTERNAL);
    z[Z * 3 + 4] = INFINITY;
    assert_int_equal(decode(&e, z, 2, 3, 0, out), H3_E_NUMERIC);
    assert_non_null(strstr(h3_error(), "channel 1"));
    atomic_store(&e.cancel.stop, true);
    assert_int_equal(decode(&e, z, 1, 3, 0, out), H3_E_CANCELLED);
    assert_int_equal(h3_arena_mark(&e.d->scratch), 0);
    free(z);
    close_env(&e);
}

static h3_status try_open(const char *folder, unsigned halves)
{
    h3_dev *d = NULL;
    h3_checkpoint *ck = NULL;
    h3_audio_vae *v = NULL;
    h3_status st;

    assert_int_equal(h3_dev_open(&d, "cpu", NULL), H3_OK);
    st = h3_ckpt_open(&ck, folder, H3_ROLE_AUDIO_VAE, NULL);
    if (st == H3_OK) st = h3_audio_vae_open(&v, d, ck, halves);
    if (st == H3_OK) st = h3_ckpt_finish(ck);
    h3_audio_vae_close(&v);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
    return st;
}

static void files_are_checked(void **state)
{
    static const struct {
        const char *without, *spoil, *config, *names;
    } cases[] = {
        {"decoder.conv_pre.bias", NULL, "{}", "decoder.conv_pre.bias"},
        {"decoder.ups.3.0.bias", NULL, "{}", "decoder.ups.3.0.bias"},
        {"decoder.resblocks.20.", NULL, "{}", "residual blocks"},
        {"decoder.resblocks.7.activations.2.act.beta", NULL, "{}", "activations.2.act.beta"},
        {NULL, "decoder.resblocks.5.activations.1.upsample.filter", "{}", "upsample.filter"},
        {NULL, NULL, "{\"decoder_rates\": [5, 5, 2]}", "decoder_rates"},
        {NULL, NULL, "{\"decoder_rates\": [5, 5, 2, 2, 2, 2, 3]}", "rate 3"},
        {NULL, NULL, "{\"resblock_dilation_sizes\": [[1, 3, 5]]}", "resblock_dilation_sizes"},
        {NULL, NULL, "{\"latents_std\": [1, 0]}", "latents_std"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *folder = vae_folder();
        vae_write(folder, "config.json", cases[i].config, strlen(cases[i].config));
        vae_copy_file(test_model(MODEL "/model.safetensors"), folder, cases[i].without,
                      cases[i].spoil);
        assert_int_not_equal(try_open(folder, H3_AUDIO_VAE_DECODER), H3_OK);
        if (!strstr(h3_error(), cases[i].names)) fail_msg("%s: %s", cases[i].names, h3_error());
        vae_folder_remove(folder);
    }
}

static void half_a_file_is_enough_for_that_half(void **state)
{
    static const char heads[] = "{\"num_attention_heads\": 2}",
                      narrow[] = "{\"num_attention_heads\": 4}", // 16 channels pooled to 32
                      odd[] = "{\"num_attention_heads\": 3}";
    char *folder = vae_folder();

    (void)state;
    vae_copy_file(test_model(MODEL "/model.safetensors"), folder, "encoder.", NULL);
    assert_int_equal(try_open(folder, H3_AUDIO_VAE_DECODER), H3_OK); // without any configuration
    assert_int_not_equal(try_open(folder, H3_AUDIO_VAE_ENCODER), H3_OK);
    vae_copy_file(test_model(MODEL "/model.safetensors"), folder, "decoder.conv_pre.", NULL);
    vae_write(folder, "config.json", heads, strlen(heads));
    assert_int_equal(try_open(folder, H3_AUDIO_VAE_ENCODER), H3_OK);
    vae_write(folder, "config.json", narrow, strlen(narrow));
    assert_int_equal(try_open(folder, H3_AUDIO_VAE_ENCODER), H3_OK);
    vae_write(folder, "config.json", odd, strlen(odd));
    assert_int_not_equal(try_open(folder, H3_AUDIO_VAE_ENCODER), H3_OK);
    vae_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_bit_equal_to_the_whole),
        cmocka_unit_test(memory_of_a_long_sound_is_bounded),
        cmocka_unit_test(channels_are_independent),
        cmocka_unit_test(sound_is_padded_with_zeros),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(files_are_checked),
        cmocka_unit_test(half_a_file_is_enough_for_that_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
