/**
 * The DiT beside its goldens: config.json in both spellings and broken, memory at the released
 * sizes, rotation far out, and the curve form of the modulation against the full one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "dit.h"
#include "file.h"
#include "json.h"
#include "manifest.h"

#define TINY    H3_SOURCE_DIR "/tests/data/tiny-h3/original/FL2VA/transformer"
#define HOSTILE H3_SOURCE_DIR "/tests/data/formats/hostile/"

/* ---- config ---- */

static const char original[] =
    "{'_class_name': 'MiniMaxH3DiTModel', 'hidden_size': 5376, 'num_layers': 50, "
    "'token_refiner_num_layers': 2, 'num_attention_heads': 56, 'attention_head_dim': 128, "
    "'ffn_hidden_size': 14336, 'latents_dim': 24, 'audio_latents_dim': 32, 'patch_size': [1, 2, "
    "2], "
    "'text_dim': 5120, 'timestep_input_dim': 256, 'time_embed_hidden_size': 5376, "
    "'time_embed_dim': 2688, 'adaln_out_features': 96768, 'final_adaln_out_features': 10752, "
    "'rope_inv_freq_len': 16, 'norm_eps': 1e-05, 'qk_norm_eps': 1e-05, 'final_norm_eps': 1e-05}";

static const char diffusers[] =
    "{'_class_name': 'MiniMaxH3Transformer3DModel', 'hidden_size': 5376, 'num_layers': 50, "
    "'num_refiner_layers': 2, 'num_attention_heads': 56, 'attention_head_dim': 128, "
    "'ffn_dim': 14336, 'in_channels': 24, 'audio_in_channels': 32, 'patch_size': [1, 2, 2], "
    "'text_dim': 5120, 'freq_dim': 256, 'time_embed_hidden_dim': 5376, 'time_embed_dim': 2688, "
    "'rope_freq_dim': 16, 'rope_theta': 10000.0, 'norm_eps': 1e-05, 'qk_norm_eps': 1e-05, "
    "'final_norm_eps': 1e-05}";

/* Parses `text` (single quotes for double ones) with its first `from` replaced by `to`. */
static h3_status parse(h3_dit_config *c, const char *text, const char *from, const char *to)
{
    const char *at = from ? strstr(text, from) : NULL;
    char *s = at ? h3_strdupf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from))
                 : h3_strdupf("%s", text);
    json_t *root;
    h3_status st;

    assert_true(!from || at);
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    root = json_loads(s, 0, NULL);
    assert_non_null(root);
    st = h3_dit_config_parse(c, root, "config.json");
    json_decref(root);
    free(s);
    return st;
}

static void both_spellings_say_the_same(void **state)
{
    h3_dit_config a, b;

    (void)state;
    assert_int_equal(parse(&a, original, NULL, NULL), H3_OK);
    assert_int_equal(parse(&b, diffusers, NULL, NULL), H3_OK);
    b.adaln_rows = a.adaln_rows; // only the original form states these two,
    b.final_adaln_rows = a.final_adaln_rows;
    a.rope_theta = b.rope_theta; // only the other one this
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.ffn, 14336);
    assert_int_equal(parse(&a, original, "'norm_eps'", "'new_thing': {'a': [1]}, 'norm_eps'"),
                     H3_OK);
    assert_int_equal(
        parse(&a, original, "'token_refiner_num_layers': 2", "'token_refiner_num_layers': 0"),
        H3_OK);
    assert_int_equal(a.n_refiner, 0);
}

static void broken_configs_are_named(void **state)
{
    static const struct {
        const char *from, *to, *named;
    } bad[] = {
        {"MiniMaxH3DiTModel", "WanTransformer3DModel", "_class_name"},
        {"'num_layers': 50", "'num_layers': 0", "num_layers"},
        {"'num_layers': 50", "'num_layers': -1", "num_layers"},
        {"'num_layers': 50", "'num_layers': 1000000000", "num_layers"},
        {"'num_layers': 50", "'num_layers': '50'", "num_layers"},
        {"'num_layers': 50", "'num_layers': 2.5", "num_layers"},
        {"'num_layers': 50", "'num_layers': 4294967298", "num_layers"},
        {"'hidden_size': 5376, ", "", "hidden_size"},
        {"'hidden_size': 5376", "'hidden_size': 2147483648", "hidden_size"},
        {"'num_attention_heads': 56", "'num_attention_heads': 0", "num_attention_heads"},
        {"'attention_head_dim': 128", "'attention_head_dim': 129", "attention_head_dim"},
        {"[1, 2, 2]", "[2, 2]", "patch_size"},
        {"[1, 2, 2]", "[1, 0, 2]", "patch_size"},
        {"'norm_eps': 1e-05", "'norm_eps': -1e-05", "norm_eps"},
        {"'norm_eps': 1e-05", "'norm_eps': 'x'", "norm_eps"},
        {"96768", "96767", "adaln_out_features"},
        {"10752", "10751", "final_adaln_out_features"},
        {"'rope_inv_freq_len': 16", "'rope_inv_freq_len': 22", "rope_inv_freq_len"},
    };
    h3_dit_config c;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&c, original, bad[i].from, bad[i].to), H3_E_FORMAT);
        if (!strstr(h3_error(), bad[i].named)) fail_msg("%s: %s", bad[i].named, h3_error());
    }
}

/* ---- released sizes ---- */

/* A 14 s request at 1344 x 768: everything the forward needs must be countable without a model, and
 * the largest tensor must not be one that bands or strides were meant to avoid. */
static void released_sizes_are_counted(void **state)
{
    const h3_dit_dims dims = {5376, 56, 128, 7168, 14336, 50, 2, 5120, 96, 32, 256, 5376, 2688, 16};
    h3_dit m = {.dims = dims, .mlp_band = 8192};
    h3_dit_request r = {.act = H3_BF16,
                        .n_rows = 62496,
                        .n_video = 60000,
                        .n_audio = 1150,
                        .n_text = 1346,
                        .n_steps = 49,
                        .n_timesteps = 99,
                        .text = {.dtype = H3_BF16}};
    const double S = 62496, GB = 1e9;
    size_t scratch, kept;

    (void)state;
    m.block = calloc(50, sizeof *m.block);
    m.adaln = calloc(50, sizeof *m.adaln);
    m.refiner = calloc(2, sizeof *m.refiner);
    assert_true(m.block && m.adaln && m.refiner);
    assert_int_equal(h3_dit_scratch_bytes(&m, &r, &scratch, &kept), H3_OK);
    // stream and one branch [S, C], packed qkv [S, 3 H D], attention's result [S, H D]
    assert_true((double)scratch >= 2 * S * (2 * 5376 + 4 * 7168));
    assert_true((double)scratch < 2 * S * (2 * 5376 + 4 * 7168) + 0.01 * GB);
    // modulation: 50 x 3 x 99 x 6 x 5376, nearly all of what is kept
    assert_true((double)kept > 0.95 * GB && (double)kept < 1.05 * GB);
    r.n_rows = INT64_MAX / 2;
    assert_int_equal(h3_dit_scratch_bytes(&m, &r, &scratch, &kept), H3_E_ARG);
    free(m.block);
    free(m.adaln);
    free(m.refiner);
}

/* ---- a small request on the tiny model ---- */

typedef struct run {
    float video[2 * 96], audio[2 * 32]; ///< velocities
    float time_in[4 * 64];              ///< silu of the "time_embedder" tap, what adaln sees
    float cosines[5 * 12];
    bool has_time;
} run;

static void catch_taps(void *user, const char *name, h3_tensor t)
{
    run *r = user;
    const int64_t n = h3_numel(t);

    if (strcmp(name, "time_embedder") == 0) {
        assert_true(n <= 4 * 64);
        r->has_time = true;
        for (int64_t i = 0; i < n; i++) {
            const double x = (double)((const float *)t.data)[i];
            r->time_in[i] = (float)(x / (1.0 + exp(-x)));
        }
    }
    if (strcmp(name, "rope.cos") == 0) memcpy(r->cosines, t.data, sizeof r->cosines);
    if (strcmp(name, "out.video") == 0) memcpy(r->video, t.data, sizeof r->video);
    if (strcmp(name, "out.audio") == 0) memcpy(r->audio, t.data, sizeof r->audio);
}

static const double positions[5 * 3] = {0,    0,       0,     4711.25, -31.9, 17.0, 4712.7, 3.5,
                                        -2.1, 9001.07, 13.37, 5.0,     1.0,   2.0,  3.0};
static const float times[3] = {0.25f, 0.5f, 1.0f};

static const int32_t text_at[] = {0}, video_at[] = {3, 4}, audio_at[] = {1, 2};
static const int32_t mod_row[] = {3 * 0 + 1, 3 * 2 + 2, 3 * 1 + 2, 3 * 2 + 0, 3 * 0 + 0};

/* One text row, two video and two audio rows, three timesteps that lie on a grid of quarters. */
static h3_dit_request small_request(float *embed)
{
    for (int i = 0; i < 24; i++)
        embed[i] = sinf((float)i);
    return (h3_dit_request){.act = H3_F32,
                            .n_rows = 5,
                            .n_video = 2,
                            .n_audio = 2,
                            .n_text = 1,
                            .video_indices = video_at,
                            .audio_indices = audio_at,
                            .text_indices = text_at,
                            .positions = positions,
                            .text = h3_tensor_2d(embed, H3_F32, 1, 24),
                            .n_steps = 1,
                            .n_timesteps = 3,
                            .timesteps = times,
                            .mod_row = mod_row};
}

static void forward(h3_dev *d, const h3_dit *m)
{
    float embed[24], rows[2 * 96];
    h3_tensor v = {0}, a = {0}, x = {0}, y = {0};
    const h3_dit_request r = small_request(embed);
    h3_dit_state *s = NULL;
    size_t scratch, kept;

    for (int i = 0; i < 2 * 96; i++)
        rows[i] = cosf(0.7f * (float)i);
    assert_int_equal(h3_dit_scratch_bytes(m, &r, &scratch, &kept), H3_OK);
    assert_int_equal(h3_dev_scratch(d, scratch), H3_OK);
    if (h3_dit_prepare(&s, m, &r) != H3_OK) fail_msg("%s", h3_error());
    assert_int_equal(h3_dev_alloc(d, &x, H3_F32, 2, (int64_t[]){2, 96}), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &v, H3_F32, 2, (int64_t[]){2, 96}), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &y, H3_F32, 2, (int64_t[]){2, 32}), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &a, H3_F32, 2, (int64_t[]){2, 32}), H3_OK);
    assert_int_equal(h3_dev_upload(d, x, rows), H3_OK);
    assert_int_equal(h3_dev_upload(d, y, rows), H3_OK);
    assert_int_equal(h3_dit_forward(d, m, s, 0, v, a, x, y), H3_OK);
    h3_dev_free(d, &x);
    h3_dev_free(d, &y);
    h3_dev_free(d, &v);
    h3_dev_free(d, &a);
    h3_dit_release(&s);
}

static void run_model(run *r, const char *path)
{
    h3_dev *d;
    h3_checkpoint *ck;
    h3_dit *m;

    memset(r, 0, sizeof *r);
    assert_int_equal(h3_dev_open(&d, "ref", NULL), H3_OK);
    if (h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL) != H3_OK) fail_msg("%s", h3_error());
    if (h3_dit_open(&m, ck, d) != H3_OK) fail_msg("%s", h3_error());
    d->tap = catch_taps;
    d->tap_user = r;
    forward(d, m);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
}

/* ---- a step as one call: who records when, with doors that only count ---- */

static struct {
    int records, replays, forgets;
    bool fails, is_lost;
} doors;

static h3_status fake_record(h3_dev *d)
{
    (void)d;
    doors.records++;
    return H3_OK;
}

static void fake_recorded(h3_dev *d, h3_recording **out)
{
    *out = doors.fails ? NULL : (h3_recording *)(void *)d;
}

static h3_status fake_replay(h3_dev *d, h3_recording *r, bool *done)
{
    assert_ptr_equal(r, d);
    *done = !doors.is_lost;
    doors.replays += *done;
    doors.is_lost = false;
    return H3_OK;
}

static void fake_forget(h3_dev *d, h3_recording *r)
{
    assert_ptr_equal(r, d);
    doors.forgets++;
}

/* Forwards so far: all but those that were replays ran attention (a recording runs here). */
static void expect_doors(const h3_dev *d, const h3_dit *m, int runs, int records, int replays,
                         int forgets)
{
    assert_int_equal(d->stat[H3_OP_attention].calls, (uint64_t)runs * (uint64_t)m->dims.n_layers);
    assert_int_equal(doors.records, records);
    assert_int_equal(doors.replays, replays);
    assert_int_equal(doors.forgets, forgets);
}

static void catch_nothing(void *user, const char *name, h3_tensor t)
{
    (void)user, (void)name, (void)t;
}

static void a_step_is_recorded_once(void **state)
{
    float embed[24];
    const h3_dit_request r = small_request(embed);
    h3_tensor x = {0}, y = {0}, v = {0}, a = {0}, other = {0};
    h3_checkpoint *ck;
    h3_dit_state *s;
    h3_dit *m;
    h3_dev *d;
    size_t scratch, kept;
    (void)state;
    memset(&doors, 0, sizeof doors);
    assert_int_equal(h3_dev_open(&d, "ref", NULL), H3_OK);
    assert_int_equal(h3_ckpt_open(&ck, TINY, H3_ROLE_DIT, NULL), H3_OK);
    assert_int_equal(h3_dit_open(&m, ck, d), H3_OK);
    assert_int_equal(h3_dit_scratch_bytes(m, &r, &scratch, &kept), H3_OK);
    assert_int_equal(h3_dev_scratch(d, scratch), H3_OK);
    assert_int_equal(h3_dit_prepare(&s, m, &r), H3_OK);
    h3_tensor *const wide[] = {&x, &v, &other}, *const narrow[] = {&y, &a};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(h3_dev_alloc(d, wide[i], H3_F32, 2, (int64_t[]){2, 96}), H3_OK);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(h3_dev_alloc(d, narrow[i], H3_F32, 2, (int64_t[]){2, 32}), H3_OK);
    d->record = fake_record;
    d->recorded = fake_recorded;
    d->replay = fake_replay;
    d->forget = fake_forget;
    h3_dev_counters_reset(d);
#define GO(out) assert_int_equal(h3_dit_forward(d, m, s, 0, out, a, x, y), H3_OK)
    GO(v); // finds what is to be found
    expect_doors(d, m, 1, 0, 0, 0);
    assert_non_null(d->unrecorded);
    GO(v); // is recorded, then run
    expect_doors(d, m, 2, 1, 1, 0);
    assert_null(d->unrecorded);
    GO(v);
    expect_doors(d, m, 2, 1, 2, 0);
    d->tap = catch_nothing; // whoever looks on sees every operation
    GO(v);
    expect_doors(d, m, 3, 1, 2, 0);
    d->tap = NULL;
    doors.is_lost = true; // memory it knew is gone: recorded again
    GO(v);
    expect_doors(d, m, 4, 2, 3, 1);
    GO(other); // other buffers, another recording
    expect_doors(d, m, 5, 2, 3, 2);
    doors.fails = true; // the device cannot keep it: call by call, and not tried again
    GO(other);
    expect_doors(d, m, 7, 3, 3, 2);
    GO(other);
    expect_doors(d, m, 8, 3, 3, 2);
#undef GO
    h3_dit_release(&s);
    for (size_t i = 0; i < 3; i++)
        h3_dev_free(d, wide[i]);
    for (size_t i = 0; i < 2; i++)
        h3_dev_free(d, narrow[i]);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
}

/* Angles are f32 products: far out, the double product is another rotation by 1e-5 and more. */
static void rotation_is_of_the_float_angle(void **state)
{
    double differs = 0;
    run r;

    (void)state;
    run_model(&r, TINY);
    for (int s = 0; s < 5; s++)
        for (int axis = 0; axis < 3; axis++)
            for (int i = 0; i < 4; i++) {
                const float f = 1.0f / (float)pow(10000.0, (double)((float)i / 4.0f));
                const float angle = (float)positions[3 * s + axis] * f;
                const double got = (double)r.cosines[12 * s + 4 * axis + i];
                assert_true(fabs(got - cos((double)angle)) < 1.2e-7);
                differs = fmax(differs, fabs(got - cos(positions[3 * s + axis] * (double)f)));
            }
    assert_true(differs > 1e-5);
}

/* ---- requests ---- */

static void refused(const h3_dit *m, const h3_dit_request *r, h3_status want, const char *named)
{
    h3_dit_state *s;

    assert_int_equal(h3_dit_prepare(&s, m, r), want);
    assert_null(s);
    if (!strstr(h3_error(), named)) fail_msg("%s: %s", named, h3_error());
}

static void requests_that_contradict_themselves(void **state)
{
    static const int32_t twice[] = {3, 3}, outside[] = {3, 5}, bad_mod[] = {0, 1, 2, 9, 0};
    static const int32_t no_cover[] = {0, 4}, backwards[] = {0, 4, 3, 5};
    static const float late[] = {0.25f, 0.5f, 1.5f}, nan_time[] = {0.25f, NAN, 1.0f};
    float embed[24];
    const h3_dit_request good = small_request(embed);
    h3_dit_request r;
    h3_dev *d;
    h3_checkpoint *ck;
    h3_dit *m;

    (void)state;
    assert_int_equal(h3_dev_open(&d, "ref", NULL), H3_OK);
    assert_int_equal(h3_ckpt_open(&ck, TINY, H3_ROLE_DIT, NULL), H3_OK);
    assert_int_equal(h3_dit_open(&m, ck, d), H3_OK);
#define REFUSED(field, value, want, named) \
    (r = good, r.field = (value), refused(m, &r, want, named))
    REFUSED(act, H3_F16, H3_E_ARG, "F16");
    REFUSED(n_text, 2, H3_E_SHAPE, "text embeddings");
    REFUSED(n_rows, 6, H3_E_ARG, "do not make 6");
    REFUSED(video_indices, twice, H3_E_ARG, "twice");
    REFUSED(video_indices, outside, H3_E_ARG, "outside");
    REFUSED(mod_row, bad_mod, H3_E_ARG, "modulation row 9");
    REFUSED(timesteps, late, H3_E_ARG, "timestep 2");
    REFUSED(timesteps, nan_time, H3_E_ARG, "timestep 1");
    r = good;
    r.cu = no_cover;
    r.n_documents = 1;
    refused(m, &r, H3_E_ARG, "cover");
    r.cu = backwards;
    r.n_documents = 3;
    refused(m, &r, H3_E_ARG, "document 1");
    // an arena that nobody sized
    refused(m, &good, H3_E_NOMEM, "too small");
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
}

/* ---- hostile files ---- */

static h3_status open_model(const char *path)
{
    h3_dev *d;
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    h3_status st;

    assert_int_equal(h3_dev_open(&d, "ref", NULL), H3_OK);
    st = h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL);
    if (st == H3_OK) st = h3_dit_open(&m, ck, d);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
    return st;
}

static h3_status open_config(const char *path)
{
    json_t *root = NULL;
    h3_dit_config c;
    h3_status st = h3_json_load(&root, path);

    if (st != H3_OK) return h3_fail_in(st, "config.json"); // beside a model it has that name
    st = h3_dit_config_parse(&c, root, path);
    json_decref(root);
    return st;
}

/* Broken models and configs: cases.tsv says what becomes of each and what a refusal must name. */
static void hostile_files_end_as_expected(void **state)
{
    FILE *fp = fopen(HOSTILE "cases.tsv", "r");
    char line[1024];
    int n = 0, n_bad = 0;

    (void)state;
    assert_non_null(fp);
    while (fgets(line, sizeof line, fp)) {
        char *save, *file = strtok_r(line, "\t", &save), *kind = strtok_r(NULL, "\t", &save);
        const char *expect = strtok_r(NULL, "\t", &save), *named = strtok_r(NULL, "\t", &save);
        const bool is_model = kind && strcmp(kind, "dit") == 0;
        if (!named || (!is_model && strcmp(kind, "config") != 0)) continue;
        char *path = h3_strdupf(HOSTILE "%s", file);
        const h3_status st = is_model ? open_model(path) : open_config(path);
        const bool ok = strcmp(expect, "either") == 0   ? true
                        : strcmp(expect, "accept") == 0 ? st == H3_OK
                                                        : st != H3_OK && strstr(h3_error(), named);
        if (!ok)
            printf("%s: expected %s (%s), got %s: %s\n", file, expect, named, h3_status_name(st),
                   h3_error());
        n_bad += !ok;
        n++;
        free(path);
    }
    fclose(fp);
    assert_true(n > 60);
    assert_int_equal(n_bad, 0);
}

/* ---- curve form ---- */

/* The tiny model again, the time embedder replaced by its own values on a grid of quarters. */
static void write_curve_model(const char *path, const h3_manifest *man, const float *table,
                              int64_t n_rows, int64_t n_cols)
{
    const int64_t n = h3_manifest_count(man);
    FILE *fp = fopen(path, "wb");
    char *head = h3_strdupf("{\"adaln_t_table\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                            "\"data_offsets\":[0,%d]}",
                            (int)n_rows, (int)n_cols, (int)(n_rows * n_cols * 4));
    size_t at = (size_t)(n_rows * n_cols * 4);

    assert_non_null(fp);
    for (int64_t i = 0; i < n; i++) {
        const h3_entry *e = h3_manifest_at(man, i);
        char *was = head;
        if (strncmp(e->name, "time_embedder.", 14) == 0) continue;
        head = e->rank == 2 ? h3_strdupf("%s,\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d],"
                                         "\"data_offsets\":[%zu,%zu]}",
                                         was, e->name, h3_dtype_name((h3_dtype)e->dtype),
                                         (int)e->ne[0], (int)e->ne[1], at, at + e->bytes)
                            : h3_strdupf("%s,\"%s\":{\"dtype\":\"%s\",\"shape\":[%d],"
                                         "\"data_offsets\":[%zu,%zu]}",
                                         was, e->name, h3_dtype_name((h3_dtype)e->dtype),
                                         (int)e->ne[0], at, at + e->bytes);
        at += e->bytes;
        free(was);
    }
    const uint64_t len = strlen(head) + 1;
    fwrite(&len, 8, 1, fp);
    fprintf(fp, "%s}", head);
    fwrite(table, 4, (size_t)(n_rows * n_cols), fp);
    for (int64_t i = 0; i < n; i++) {
        const h3_entry *e = h3_manifest_at(man, i);
        if (strncmp(e->name, "time_embedder.", 14) != 0) fwrite(e->data, 1, e->bytes, fp);
    }
    fclose(fp);
    free(head);
}

static double distance(const float *a, const float *b, int n)
{
    double d = 0, s = 0;

    for (int i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}

/*
 * At grid points the curve is the time embedding with SiLU inside: same outputs, no SiLU on top.
 * The file is a single one, so its fused rows would be taken for thirds: the order is given.
 */
static void curve_equals_embedder_on_its_grid(void **state)
{
    char path[] = "/tmp/h3av-curve-XXXXXX";
    float table[5 * 12] = {0}; // rows for t = 0, 1/4, 1/2, 3/4, 1; the request uses three of them
    h3_manifest *man;
    h3_checkpoint *ck;
    h3_dev *d;
    h3_dit *m;
    run full, curve;
    const int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    run_model(&full, TINY);
    assert_true(full.has_time);
    memcpy(table + 12, full.time_in, 12 * sizeof(float));
    memcpy(table + 24, full.time_in + 12, 12 * sizeof(float));
    memcpy(table + 48, full.time_in + 24, 12 * sizeof(float));
    assert_int_equal(h3_manifest_open(&man, TINY), H3_OK);
    write_curve_model(path, man, table, 5, 12);
    h3_manifest_close(&man);

    memset(&curve, 0, sizeof curve);
    assert_int_equal(h3_dev_open(&d, "ref", NULL), H3_OK);
    if (h3_ckpt_open(&ck, path, H3_ROLE_DIT, &(h3_ckpt_opts){.qkv = H3_QKV_INTERLEAVED}) != H3_OK)
        fail_msg("%s", h3_error());
    if (h3_dit_open(&m, ck, d) != H3_OK) fail_msg("%s", h3_error());
    d->tap = catch_taps;
    d->tap_user = &curve;
    forward(d, m);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    h3_dev_close(&d);
    unlink(path);
    assert_false(curve.has_time);
    assert_true(distance(curve.video, full.video, 2 * 96) < 1e-6);
    assert_true(distance(curve.audio, full.audio, 2 * 32) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_say_the_same),
        cmocka_unit_test(broken_configs_are_named),
        cmocka_unit_test(released_sizes_are_counted),
        cmocka_unit_test(rotation_is_of_the_float_angle),
        cmocka_unit_test(a_step_is_recorded_once),
        cmocka_unit_test(requests_that_contradict_themselves),
        cmocka_unit_test(hostile_files_end_as_expected),
        cmocka_unit_test(curve_equals_embedder_on_its_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
