/**
 * The video autoencoder around its numbers: causality, streaming in every combination, memory as
 * planned, interruption, bad input. What the numbers are is for the goldens.
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

#include "test_models.h"
#include "vae_files.h"
#include "video_vae_net.h"

#define MODEL         H3_SOURCE_DIR "/tests/data/video_vae/model/original"
#define FILE_OF_MODEL MODEL "/source/model.safetensors"

typedef struct env {
    h3_cancel_flag cancel;
    h3_dev *d;
    h3_checkpoint *ck;
    h3_video_vae *v;
} env;

static void open_env(env *e, const char *path, unsigned halves)
{
    memset(e, 0, sizeof *e);
    const h3_dev_opts o = {.cancel = &e->cancel, .n_threads = 1};
    assert_int_equal(h3_dev_open(&e->d, "cpu", &o), H3_OK);
    assert_int_equal(h3_ckpt_open(&e->ck, path, H3_ROLE_VIDEO_VAE, NULL), H3_OK);
    assert_int_equal(h3_video_vae_open(&e->v, e->d, e->ck, halves), H3_OK);
    assert_int_equal(h3_ckpt_finish(e->ck), H3_OK);
}

static void close_env(env *e)
{
    h3_video_vae_close(&e->v);
    h3_ckpt_close(&e->ck);
    h3_dev_close(&e->d);
}

/* Numbers in [-1, 1) and bytes that repeat on every machine. */
static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static float *numbers(int64_t n, uint32_t seed)
{
    float *p = malloc((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)next(&seed) * 0x1p-23f - 1.0f;
    return p;
}

static uint8_t *pictures(int64_t n, uint32_t seed)
{
    uint8_t *p = malloc((size_t)n);
    for (int64_t i = 0; i < n; i++)
        p[i] = (uint8_t)next(&seed);
    return p;
}

/* ---------------------------------------------------------------- encoder */

enum { H = 32, W = 48, CELLS = (H / 16) * (W / 16), Z = 24 };

static void encode(env *e, uint8_t *rgb, int64_t n, int at_once, float *mean, float *logvar)
{
    const int64_t ne[4] = {n, H, W, 3};
    const h3_video_encode_opts o = {.frames_at_once = at_once};
    assert_int_equal(
        h3_video_vae_encode(e->d, e->v, h3_host_tensor(rgb, H3_U8, 4, ne), &o, mean, logvar),
        H3_OK);
}

/* True when latent frame k of two encodings [24, t, cells] is the same bit for bit. */
static bool is_same(const float *a, const float *b, int64_t t, int64_t k)
{
    for (int c = 0; c < Z; c++)
        if (memcmp(a + (c * t + k) * CELLS, b + (c * t + k) * CELLS, CELLS * sizeof *a) != 0)
            return false;
    return true;
}

/* Latent 0 sees frame 0, latent 1 frames 0..4, and so on; the next clip of 17 starts afresh. */
static void a_later_frame_never_changes_an_earlier_latent(void **state)
{
    enum { N = 39, T = 12, FRAME = H * W * 3 };
    static const int changed[] = {0, 1, 4, 5, 16, 17, 21};
    float a[Z * T * CELLS], la[Z * T * CELLS], b[Z * T * CELLS], lb[Z * T * CELLS];
    uint8_t *rgb = pictures(N * FRAME, 7);
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_ENCODER);
    assert_int_equal(h3_video_vae_latent_frames(e.v, N), T);
    encode(&e, rgb, N, 0, a, la);
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        const int f = changed[i], clip = f / 17, first = clip * 5 + (f % 17 + 3) / 4;
        rgb[f * FRAME + 100] ^= 0x80;
        encode(&e, rgb, N, 0, b, lb);
        rgb[f * FRAME + 100] ^= 0x80;
        for (int k = 0; k < T; k++) {
            const bool may_differ = k >= first && k / 5 == clip;
            if (!may_differ) assert_true(is_same(a, b, T, k) && is_same(la, lb, T, k));
            if (k == first) assert_false(is_same(a, b, T, k));
        }
    }
    free(rgb);
    close_env(&e);
}

static void frame_by_frame_is_the_whole_clip(void **state)
{
    enum { N = 22, T = 7 };
    static const int at_once[] = {1, 2, 3, 5, 16, 100};
    float a[Z * T * CELLS], la[Z * T * CELLS], b[Z * T * CELLS], lb[Z * T * CELLS];
    uint8_t *rgb = pictures(N * H * W * 3, 8);
    h3_video_encode_opts o = {.frames_at_once = 0};
    size_t whole, least;
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_ENCODER);
    encode(&e, rgb, N, 0, a, la);
    for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++) {
        encode(&e, rgb, N, at_once[i], b, lb);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(la, lb, sizeof la);
    }
    assert_int_equal(h3_video_vae_encode_bytes(e.d, e.v, N, 256, 256, &o, &whole), H3_OK);
    o.frames_at_once = 1;
    assert_int_equal(h3_video_vae_encode_bytes(e.d, e.v, N, 256, 256, &o, &least), H3_OK);
    assert_true(least < whole * 6 / 10);
    free(rgb);
    close_env(&e);
}

static void pictures_that_cannot_be_encoded(void **state)
{
    static const int64_t sizes[][4] = {
        {1, 40, 32, 3}, {1, 16, 32, 3}, {1, 32, 16, 3}, {1, 32, 32, 4}, {0, 32, 32, 3}};
    uint8_t *rgb = pictures(64 * 64 * 4, 9);
    float *out = numbers(Z * 64, 1);
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_ENCODER);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(
            h3_video_vae_encode(e.d, e.v, h3_host_tensor(rgb, H3_U8, 4, sizes[i]), NULL, out, out),
            H3_E_SHAPE);
    /* And the half that was not opened cannot be used. */
    const int64_t ne[4] = {Z, 3, 2, 2};
    assert_int_equal(
        h3_video_vae_decode(e.d, e.v, h3_host_tensor(out, H3_F32, 4, ne), NULL, NULL, NULL),
        H3_E_INTERNAL);
    free(out);
    free(rgb);
    close_env(&e);
}

/* ---------------------------------------------------------------- decoder */

typedef struct video {
    uint8_t *bytes;
    float *rgb; // [3, total, H, W]
    int64_t total, h, w, seen;
    int n_calls, fail_at;
} video;

static h3_status take(void *user, int64_t first, h3_tensor f)
{
    video *v = user;
    const int64_t area = v->h * v->w;

    if (v->n_calls++ == v->fail_at) return h3_fail(H3_E_IO, "the disk is full");
    assert_int_equal(first, v->seen);
    if (f.dtype == H3_U8) {
        assert_true(h3_is_dense(f) && f.ne[1] == v->h && f.ne[2] == v->w && f.ne[3] == 3);
        memcpy(v->bytes + first * area * 3, f.data, (size_t)(f.ne[0] * area * 3));
        v->seen += f.ne[0];
    } else {
        for (int c = 0; c < 3; c++)
            memcpy(v->rgb + (c * v->total + first) * area, (const float *)f.data + c * f.st[0],
                   (size_t)(f.ne[1] * area) * sizeof(float));
        v->seen += f.ne[1];
    }
    return H3_OK;
}

enum { DT = 8, DH = 2, DW = 4 }; // two clips; 32-pixel tiles with an overlap of 16: three columns

static h3_status decode(env *e, float *z, h3_video_decode_opts o, video *v)
{
    const int64_t ne[4] = {Z, DT, DH, DW};
    v->total = h3_video_vae_frames(e->v, DT);
    v->h = 16 * DH;
    v->w = 16 * DW;
    v->seen = 0;
    v->n_calls = 0;
    const size_t n = (size_t)(v->total * v->h * v->w * 3);
    if (!v->bytes) v->bytes = calloc(n, 1);
    if (!v->rgb) v->rgb = calloc(n, sizeof *v->rgb);
    o.tile = 32;
    o.overlap = 16;
    return h3_video_vae_decode(e->d, e->v, h3_host_tensor(z, H3_F32, 4, ne), &o, take, v);
}

static void video_free(video *v)
{
    free(v->bytes);
    free(v->rgb);
}

static void batches_do_not_change_the_picture(void **state)
{
    static const int batches[] = {2, 3, 4, 6, 1000};
    float *z = numbers(Z * DT * DH * DW, 3);
    video one = {.fail_at = -1}, many = {.fail_at = -1};
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_DECODER);
    assert_int_equal(decode(&e, z, (h3_video_decode_opts){.act = H3_F32}, &one), H3_OK);
    assert_int_equal(one.seen, 26); // temporal_decode.tsv
    const size_t n = (size_t)(one.total * one.h * one.w * 3);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const h3_video_decode_opts o = {.tiles_in_flight = batches[i]};
        if (many.bytes) memset(many.bytes, 0, n);
        assert_int_equal(decode(&e, z, o, &many), H3_OK);
        assert_int_equal(many.seen, one.seen);
        assert_memory_equal(one.bytes, many.bytes, n);
    }
    /* Floats are the same picture before it became bytes. */
    assert_int_equal(decode(&e, z, (h3_video_decode_opts){.is_float = true}, &many), H3_OK);
    const int64_t pixels = one.total * one.h * one.w;
    for (int64_t i = 0; i < 3 * pixels; i++) {
        const int64_t c = i % 3;
        const float p = many.rgb[c * pixels + i / 3] * h3_video_vae_pixel_std[c];
        const float u = fminf(fmaxf(p + h3_video_vae_pixel_mean[c], 0), 1) * 255.0f;
        assert_int_equal(one.bytes[i], (int)lrintf(u));
    }
    video_free(&one);
    video_free(&many);
    free(z);
    close_env(&e);
}

static void counts_of_frames(void **state)
{
    static const int64_t want[][2] = {{1, 0},  {2, 0},  {3, 9},   {4, 13},   {5, 17},   {6, 18},
                                      {7, 22}, {8, 26}, {12, 39}, {37, 124}, {107, 362}};
    float *z = numbers(Z * 2 * DH * DW, 3);
    const int64_t ne[4] = {Z, 2, DH, DW};
    video v = {.fail_at = -1};
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_DECODER);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(h3_video_vae_frames(e.v, want[i][0]), want[i][1]);
    assert_int_equal(
        h3_video_vae_decode(e.d, e.v, h3_host_tensor(z, H3_F32, 4, ne), NULL, take, &v), H3_E_ARG);
    free(z);
    close_env(&e);
}

typedef struct stopper {
    env *e;
    int64_t at, last, total;
} stopper;

static void stop_at(void *user, int64_t done, int64_t total)
{
    stopper *s = user;
    assert_int_equal(done, s->last + 1);
    s->last = done;
    s->total = total;
    if (done == s->at) atomic_store(&s->e->cancel.stop, true);
}

static void a_decode_can_be_stopped_and_started_again(void **state)
{
    float *z = numbers(Z * DT * DH * DW, 3);
    video v = {.fail_at = -1};
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_DECODER);
    stopper s = {.e = &e, .at = 4};
    const h3_video_decode_opts o = {.progress = stop_at, .progress_user = &s};
    assert_int_equal(decode(&e, z, o, &v), H3_E_CANCELLED);
    assert_int_equal(s.last, 4);
    assert_int_equal(s.total, 6);
    assert_int_equal(v.seen, 17); // the first clip had left already
    assert_int_equal(h3_arena_mark(&e.d->scratch), 0);
    atomic_store(&e.cancel.stop, false);
    v.fail_at = 1;
    assert_int_equal(decode(&e, z, (h3_video_decode_opts){.act = H3_F32}, &v), H3_E_IO);
    assert_string_equal(h3_error(), "the disk is full");
    v.fail_at = -1;
    assert_int_equal(decode(&e, z, (h3_video_decode_opts){.act = H3_F32}, &v), H3_OK);
    video_free(&v);
    free(z);
    close_env(&e);
}

static void latents_that_are_not_numbers(void **state)
{
    float *z = numbers(Z * DT * DH * DW, 3);
    video v = {.fail_at = -1};
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_DECODER);
    z[5] = NAN;
    assert_int_equal(decode(&e, z, (h3_video_decode_opts){.act = H3_F32}, &v), H3_E_NUMERIC);
    assert_non_null(strstr(h3_error(), "clip 0"));
    assert_int_equal(v.seen, 0); // nothing of it left
    video_free(&v);
    free(z);
    close_env(&e);
}

static void memory_is_as_planned(void **state)
{
    float *z = numbers(Z * DT * DH * DW, 3);
    const h3_video_decode_opts o = {.tile = 32, .overlap = 16, .tiles_in_flight = 2};
    video v = {.fail_at = -1};
    size_t bytes = 0, one, seven;
    env e;

    (void)state;
    open_env(&e, test_model(MODEL), H3_VIDEO_VAE_DECODER);
    assert_int_equal(h3_video_vae_decode_bytes(e.d, e.v, DT, DH, DW, &o, &bytes), H3_OK);
    assert_int_equal(decode(&e, z, o, &v), H3_OK);
    /* Red zones of a sanitizer build make the real arena a little fuller. */
    assert_true(e.d->scratch.peak >= bytes && e.d->scratch.peak < bytes + bytes / 4);
    assert_int_equal(h3_video_vae_tiles_that_fit(e.d, e.v, DT, DH, DW, &o, bytes), 2);
    assert_int_equal(h3_video_vae_tiles_that_fit(e.d, e.v, DT, DH, DW, &o, 0), 1);
    assert_int_equal(h3_video_vae_tiles_that_fit(e.d, e.v, DT, DH, DW, &o, (size_t)1 << 40), 8);
    /* A longer video needs no more memory than a short one, but for its latents. */
    assert_int_equal(h3_video_vae_decode_bytes(e.d, e.v, 12, 48, 84, NULL, &one), H3_OK);
    assert_int_equal(h3_video_vae_decode_bytes(e.d, e.v, 107, 48, 84, NULL, &seven), H3_OK);
    assert_true(seven - one <= (size_t)(4 * 95 * 48 * 84 * Z) * sizeof(float));
    video_free(&v);
    free(z);
    close_env(&e);
}

/* ---------------------------------------------------------------- opening */

static h3_status try_open(const char *folder, unsigned halves)
{
    h3_dev *d = NULL;
    h3_checkpoint *ck = NULL;
    h3_video_vae *v = NULL;
    h3_status st;

    assert_int_equal(h3_dev_open(&d, "cpu", NULL), H3_OK);
    st = h3_ckpt_open(&ck, folder, H3_ROLE_VIDEO_VAE, NULL);
    if (st == H3_OK) st = h3_video_vae_open(&v, d, ck, halves);
    if (st == H3_OK) st = h3_ckpt_finish(ck);
    h3_video_vae_close(&v);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
    return st;
}

static const char small_heads[] = "{\"decoder_num_attention_heads\": 3, "
                                  "\"decoder_attention_head_dim\": 16, \"norm_num_groups\": 4}";

static void half_a_file_is_enough_for_that_half(void **state)
{
    char *folder = vae_folder();

    (void)state;
    vae_write(folder, "config.json", small_heads, strlen(small_heads));
    vae_copy_file(test_model(FILE_OF_MODEL), folder, "encoder.", NULL);
    assert_int_equal(try_open(folder, H3_VIDEO_VAE_DECODER), H3_OK);
    assert_int_not_equal(try_open(folder, H3_VIDEO_VAE_ENCODER), H3_OK);
    vae_folder_remove(folder);
}

static void missing_tensors_are_named(void **state)
{
    static const char *const names[] = {"decoder.norm_out.bias", "decoder.register_tokens",
                                        "decoder.transformer_blocks.1.ff.w2.weight",
                                        "encoder.down.3.block.1.norm2.weight", "quant_conv.bias"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *folder = vae_folder();
        vae_write(folder, "config.json", small_heads, strlen(small_heads));
        vae_copy_file(test_model(FILE_OF_MODEL), folder, names[i], NULL);
        assert_int_not_equal(try_open(folder, H3_VIDEO_VAE_DECODER | H3_VIDEO_VAE_ENCODER), H3_OK);
        if (!strstr(h3_error(), names[i])) fail_msg("%s: %s", names[i], h3_error());
        vae_folder_remove(folder);
    }
}

static void configurations_that_make_no_sense(void **state)
{
    static const char *const bad[] = {
        "{\"decoder_num_attention_heads\": 5, \"decoder_attention_head_dim\": 16}",
        "{\"decoder_num_attention_heads\": 0, \"decoder_attention_head_dim\": 16}",
        "{\"decoder_num_attention_heads\": 4, \"decoder_attention_head_dim\": 12}",
        "{\"decoder_num_attention_heads\": \"3\", \"decoder_attention_head_dim\": 16}",
        "{\"heads\": 3, \"dim_head\": 16, \"decoder_rope_theta\": -1}",
        "{\"heads\": 3, \"dim_head\": 16, \"decoder_rope_dim_ratio\": 0.1}",
        "{\"heads\": 3, \"dim_head\": 16, \"spatial_downsample_factors\": [2, 2]}",
        "{\"heads\": 3, \"dim_head\": 16, \"spatial_downsample_factors\": [9, 2, 2, 2, 1, 1]}",
        "{\"heads\": 3, \"dim_head\": 16, \"vae_tile_size\": 100}",
        "{\"heads\": 3, \"dim_head\": 16, \"vae_tile_overlap_min\": 256}",
        "{\"heads\": 3, \"dim_head\": 16, \"clip_length\": 0}",
        "{\"heads\": 3, \"dim_head\": 16, \"latents_std\": [1, 2]}",
        "{\"heads\": 3, \"dim_head\": 16, \"decoder_norm_eps\": 1e9}",
        "{}"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *folder = vae_folder();
        vae_write(folder, "config.json", bad[i], strlen(bad[i]));
        vae_copy_file(test_model(FILE_OF_MODEL), folder, "encoder.", NULL);
        if (try_open(folder, H3_VIDEO_VAE_DECODER) == H3_OK) fail_msg("accepted: %s", bad[i]);
        assert_true(strlen(h3_error()) > 0);
        vae_folder_remove(folder);
    }
}

/* The inner folder of the release, and the one around it, are the same model. */
static void the_source_folder_alone(void **state)
{
    env a, b;

    (void)state;
    open_env(&a, test_model(MODEL), H3_VIDEO_VAE_DECODER | H3_VIDEO_VAE_ENCODER);
    open_env(&b, test_model(MODEL "/source"), H3_VIDEO_VAE_DECODER | H3_VIDEO_VAE_ENCODER);
    assert_memory_equal(h3_video_vae_sizes(a.v), h3_video_vae_sizes(b.v),
                        sizeof(h3_video_vae_geometry));
    close_env(&a);
    close_env(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_frame_never_changes_an_earlier_latent),
        cmocka_unit_test(frame_by_frame_is_the_whole_clip),
        cmocka_unit_test(pictures_that_cannot_be_encoded),
        cmocka_unit_test(batches_do_not_change_the_picture),
        cmocka_unit_test(counts_of_frames),
        cmocka_unit_test(a_decode_can_be_stopped_and_started_again),
        cmocka_unit_test(latents_that_are_not_numbers),
        cmocka_unit_test(memory_is_as_planned),
        cmocka_unit_test(half_a_file_is_enough_for_that_half),
        cmocka_unit_test(missing_tensors_are_named),
        cmocka_unit_test(configurations_that_make_no_sense),
        cmocka_unit_test(the_source_folder_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
