/**
 * Goldens of the audio autoencoder: filters, activation, residual blocks and weight norm, decoder
 * stages and waves; encoder stages, lengths, the narrowing block alone, reference rows.
 *
 * Limits: tolerance.tsv beside the files where it names a tensor; elsewhere what that table gives
 * tensors of the same kind (waves 1e-5, latents 3e-5: eight times what float32 itself was off).
 */
#include <stdio.h>

#include "audio_vae_net.h"
#include "decode.h"
#include "golden_vae.h"

#define WAVE    1e-5
#define LATENTS 3e-5

typedef struct env {
    h3_dev *d;
    h3_checkpoint *ck;
    h3_audio_vae *v;
    vae_taps taps;
} env;

static void env_close(env *e)
{
    vae_forget(&e->taps);
    h3_audio_vae_close(&e->v);
    h3_ckpt_close(&e->ck);
    h3_dev_close(&e->d);
}

static h3_status env_open(env *e, golden *g, unsigned halves)
{
    char *path = golden_model(g, "model", "audio_vae/model");
    h3_status st;

    memset(e, 0, sizeof *e);
    if (!path) return h3_fail(H3_E_MISSING, "%s: no audio model beside it", g->path);
    if ((st = h3_dev_open(&e->d, g->device, NULL)) == H3_OK &&
        (st = h3_ckpt_open(&e->ck, path, H3_ROLE_AUDIO_VAE, NULL)) == H3_OK &&
        (st = h3_audio_vae_open(&e->v, e->d, e->ck, halves)) == H3_OK)
        st = h3_ckpt_finish(e->ck);
    free(path);
    if (st != H3_OK) {
        env_close(e);
        return st;
    }
    e->d->tap = vae_keep;
    e->d->tap_user = &e->taps;
    return H3_OK;
}

/* Host tensors as dense f32 device tensors of the same shape, without leading batch axes. */
static h3_status to_device(h3_dev *d, h3_tensor *out, h3_tensor t, int rank)
{
    const int64_t *ne = t.ne + t.rank - rank;

    H3_TRY(h3_dev_alloc(d, out, H3_F32, rank, ne));
    return h3_dev_upload(d, *out, t.data);
}

/* Batch item 0, 1, .. of a golden [B, ...] against the tap of that channel. */
static void check_channels(golden *g, const vae_taps *taps, const char *tap, const char *name,
                           double other)
{
    const h3_tensor *want = golden_find(g, name);

    if (!want) return;
    for (int64_t b = 0; b < want->ne[0]; b++) {
        const h3_tensor *got = vae_seen(g, taps, tap, (int)b);
        if (got) golden_near_to(g, name, h3_at(*want, b), *got, 0, vae_limit(g, name, other));
    }
}

/* ---------------------------------------------------------------- filters and activation */

static h3_status run_filters(golden *g)
{
    json_t *all = json_object_get(g->meta, "filters"), *one;
    const char *name;

    json_object_foreach(all, name, one)
    {
        double f[64], w[64];
        float narrow[64];
        char key[64];
        const int taps = (int)json_integer_value(json_object_get(one, "taps"));
        if (taps < 1 || taps > 64) continue;
        h3_audio_vae_kaiser_sinc(f, w, taps, json_number_value(json_object_get(one, "cutoff")),
                                 json_number_value(json_object_get(one, "half_width")));
        snprintf(key, sizeof key, "%s.f64", name);
        golden_near(g, key, h3_tensor_1d(f, H3_F64, taps), 0, 1e-15);
        snprintf(key, sizeof key, "%s.window_f64", name);
        golden_near(g, key, h3_tensor_1d(w, H3_F64, taps), 0, 1e-15);
        for (int i = 0; i < taps; i++)
            narrow[i] = (float)f[i];
        snprintf(key, sizeof key, "%s.f32", name);
        golden_near(g, key, h3_tensor_1d(narrow, H3_F32, taps), 0,
                    json_number_value(json_object_get(one, "f32_error")) + 3e-8);
    }
    return H3_OK;
}

/* One case on the device: y = op(x) with parameters a and b. */
typedef struct snake_case {
    h3_tensor a, b, filter; // on the device
} snake_case;

static h3_status check_snake(golden *g, h3_dev *d, const snake_case *s, const char *in,
                             const char *out, bool is_filtered)
{
    const h3_tensor *x = golden_need(g, in), *want = golden_need(g, out);
    h3_tensor dx = {.data = NULL}, dy = {.data = NULL}, got;
    h3_status st;

    if (!x || !want) return H3_OK;
    got = vae_copy(*want);
    if ((st = to_device(d, &dx, *x, 2)) == H3_OK &&
        (st = h3_dev_alloc(d, &dy, H3_F32, 2, want->ne + 1)) == H3_OK)
        st = is_filtered ? d->ops->snake_aa(d, dy, dx, s->a, s->b, s->filter, s->filter)
                         : d->ops->snake(d, dy, dx, s->a, s->b);
    if (st == H3_OK) st = h3_dev_download(d, got.data, dy);
    if (st == H3_OK) vae_near(g, out, got, 3e-6);
    h3_dev_free(d, &dx);
    h3_dev_free(d, &dy);
    free(got.data);
    return st;
}

static h3_status upload_exp(h3_dev *d, h3_tensor *out, const h3_tensor *t, bool is_log)
{
    h3_tensor x = vae_copy(*t);
    h3_status st;

    for (int64_t i = 0; i < h3_numel(x) && is_log; i++)
        ((float *)x.data)[i] = (float)exp(golden_value(*t, i));
    x = h3_view(x, 1, (const int64_t[]){h3_numel(x)});
    st = to_device(d, out, x, 1);
    free(x.data);
    return st;
}

static h3_status run_activation(golden *g)
{
    const h3_tensor *alpha = golden_need(g, "alpha"), *beta = golden_need(g, "beta");
    const h3_tensor *plain = golden_need(g, "encoder_snake.alpha");
    const json_t *lengths = json_object_get(g->meta, "lengths");
    double wide[H3_AUDIO_VAE_TAPS];
    float filter[H3_AUDIO_VAE_TAPS];
    snake_case s = {.a = {.data = NULL}}, enc = {.a = {.data = NULL}};
    h3_dev *d = NULL;
    h3_status st;

    if (!alpha || !beta || !plain) return H3_OK;
    h3_audio_vae_kaiser_sinc(wide, NULL, H3_AUDIO_VAE_TAPS, 0.25, 0.3);
    for (int i = 0; i < H3_AUDIO_VAE_TAPS; i++)
        filter[i] = (float)wide[i];
    golden_near(g, "filter", h3_tensor_1d(filter, H3_F32, H3_AUDIO_VAE_TAPS), 0, 1e-7);
    if ((st = h3_dev_open(&d, g->device, NULL)) != H3_OK) return st;
    if ((st = to_device(d, &s.filter, h3_tensor_1d(filter, H3_F32, H3_AUDIO_VAE_TAPS), 1)) ==
            H3_OK &&
        (st = upload_exp(d, &s.a, alpha, true)) == H3_OK &&
        (st = upload_exp(d, &s.b, beta, true)) == H3_OK)
        st = upload_exp(d, &enc.a, plain, false);
    enc.b = enc.a;
    for (size_t i = 0; i < json_array_size(lengths) && st == H3_OK; i++) {
        const int n = (int)json_integer_value(json_array_get(lengths, i));
        char in[32], up[32], snake[32], out[32];
        snprintf(in, sizeof in, "n%d.x", n);
        snprintf(up, sizeof up, "n%d.up", n);
        snprintf(snake, sizeof snake, "n%d.snake", n);
        snprintf(out, sizeof out, "n%d.out", n);
        st = check_snake(g, d, &s, in, out, true);
        if (st == H3_OK) st = check_snake(g, d, &s, up, snake, false);
    }
    if (st == H3_OK) st = check_snake(g, d, &enc, "encoder_snake.x", "encoder_snake.out", false);
    h3_dev_free(d, &s.a);
    h3_dev_free(d, &s.b);
    h3_dev_free(d, &s.filter);
    h3_dev_free(d, &enc.a);
    h3_dev_close(&d);
    return st;
}

/* ---------------------------------------------------------------- decoder */

/* Products of the weight-norm pairs as binding makes them. */
static h3_status check_weight_norm(golden *g, env *e)
{
    for (int i = 0; i < g->n_tensors; i++) {
        const char *full = g->tensors[i].name;
        const h3_tensor t = g->tensors[i].t;
        const size_t n = strlen(full);
        char name[96];
        h3_weight w;
        if (strncmp(full, "wn.", 3) != 0 || n < 11 || strcmp(full + n - 7, ".weight") != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - 10), full + 3);
        H3_TRY(h3_ckpt_matrix(e->ck, e->d, &w, name, t.ne[0], t.ne[1] * t.ne[2], false));
        float *rows = malloc((size_t)h3_numel(t) * sizeof *rows);
        h3_weight_rows(&w, 0, w.rows, rows);
        golden_near(g, full, h3_tensor_1d(rows, H3_F32, h3_numel(t)), 0, 1e-6);
        free(rows);
        h3_dev_weight_free(e->d, &w);
    }
    return H3_OK;
}

/* The file has each second convolution alone; the network adds the block's input to it. */
static void check_pairs(golden *g, const vae_taps *taps, int j)
{
    const h3_tensor *before = golden_need(g, "amp.x");
    char name[48];

    for (int q = 0; before && q < H3_AUDIO_VAE_DILATIONS; q++) {
        static const char *const what[] = {"act1", "conv1", "act2"};
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "amp%d.pair%d.%s", j, q, what[k]);
            if (golden_find(g, name)) vae_tap_near(g, taps, name, name, 1e-5);
        }
        snprintf(name, sizeof name, "amp%d.pair%d.sum", j, q);
        const h3_tensor *sum = vae_nth(taps, name, 0);
        snprintf(name, sizeof name, "amp%d.pair%d.conv2", j, q);
        if (!sum || !golden_find(g, name)) continue;
        h3_tensor conv2 = vae_copy(*sum);
        for (int64_t i = 0; i < h3_numel(conv2); i++)
            ((float *)conv2.data)[i] -= ((const float *)before->data)[i];
        vae_near(g, name, conv2, 1e-5);
        free(conv2.data);
        before = sum;
    }
}

static h3_status run_blocks(golden *g)
{
    const h3_tensor *x = golden_need(g, "amp.x");
    const int stage = (int)vae_meta(g, "stage");
    enum { X, OUT, A, B, OTHER, N };
    h3_tensor t[N] = {{.data = NULL}};
    h3_status st;
    env e;

    if (!x) return H3_OK;
    H3_TRY(env_open(&e, g, H3_AUDIO_VAE_DECODER));
    const h3_audio_vae_geometry *geo = h3_audio_vae_sizes(e.v);
    st = h3_store_acquire(e.v->dec.store, stage + 1);
    for (int k = 0; k < N && st == H3_OK; k++)
        st = h3_dev_alloc(e.d, &t[k], H3_F32, 2, x->ne + 1);
    if (st == H3_OK) st = h3_dev_upload(e.d, t[X], x->data);
    for (int j = 0; j < (int)geo->n_kernels && st == H3_OK; j++) {
        char name[32];
        st = h3_audio_vae_amp(e.d, e.v, stage, j, t[OUT], t[X], t[A], t[B], t[OTHER]);
        snprintf(name, sizeof name, "amp%d.out", j);
        if (st == H3_OK) vae_tap_near(g, &e.taps, name, name, 1e-5);
        if (st == H3_OK) check_pairs(g, &e.taps, j);
    }
    if (st == H3_OK) st = check_weight_norm(g, &e);
    for (int k = 0; k < N; k++)
        h3_dev_free(e.d, &t[k]);
    env_close(&e);
    return st;
}

static h3_status run_stages(golden *g)
{
    const h3_tensor *z = golden_need(g, "z_norm"), *wave = golden_need(g, "wave");
    static const char *const names[] = {"z", "dec_in_proj", "conv_pre", "activation_post",
                                        "before_clamp"};
    h3_status st;
    env e;

    if (!z || !wave) return H3_OK;
    H3_TRY(env_open(&e, g, H3_AUDIO_VAE_DECODER));
    h3_tensor out = vae_copy(*wave);
    if ((st = h3_audio_vae_decode(e.d, e.v, *z, NULL, out.data)) == H3_OK) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            check_channels(g, &e.taps, names[i], names[i], i == 0 ? 1e-6 : 6e-5);
        for (int i = 0; i < (int)h3_audio_vae_sizes(e.v)->n_stages; i++) {
            char name[32];
            snprintf(name, sizeof name, "up%d", i);
            check_channels(g, &e.taps, name, name, 5e-5);
            snprintf(name, sizeof name, "stage%d", i);
            check_channels(g, &e.taps, name, name, 5e-5);
        }
        vae_near(g, "wave", out, WAVE);
    }
    free(out.data);
    env_close(&e);
    return st;
}

static h3_status run_waves(golden *g)
{
    const json_t *counts = json_object_get(g->meta, "latents");
    h3_status st = H3_OK;
    env e;

    H3_TRY(env_open(&e, g, H3_AUDIO_VAE_DECODER));
    e.d->tap = NULL;
    for (size_t i = 0; i < json_array_size(counts) && st == H3_OK; i++) {
        const int n = (int)json_integer_value(json_array_get(counts, i));
        char name[32];
        snprintf(name, sizeof name, "t%d.z_norm", n);
        const h3_tensor *z = golden_need(g, name);
        snprintf(name, sizeof name, "t%d.audio", n);
        const h3_tensor *want = golden_need(g, name);
        if (!z || !want) continue;
        for (int chunk = 0; chunk <= 4 && st == H3_OK; chunk += 4) {
            const h3_audio_decode_opts o = {.chunk = chunk};
            h3_tensor out = vae_copy(*want);
            if ((st = h3_audio_vae_decode(e.d, e.v, *z, &o, out.data)) == H3_OK)
                vae_near(g, name, out, WAVE);
            free(out.data);
        }
    }
    env_close(&e);
    return st;
}

/* ---------------------------------------------------------------- encoder */

/* Rows [channels * n, 32] against a golden [channels, 32, n]. */
static void check_means(golden *g, const char *name, const float *rows)
{
    const h3_tensor *want = golden_need(g, name);

    if (!want) return;
    h3_tensor got = vae_copy(*want);
    const int64_t c = want->ne[1], n = want->ne[2];
    for (int64_t i = 0; i < h3_numel(got); i++)
        ((float *)got.data)[i] = rows[(i / (c * n) * n + i % n) * c + i / n % c];
    vae_near(g, name, got, LATENTS);
    free(got.data);
}

/* wave of the file as [channels, samples]. */
static h3_tensor sound_of(const h3_tensor *wave)
{
    return h3_view_2d(*wave, wave->ne[0], wave->ne[wave->rank - 1]);
}

static h3_status encode(env *e, const h3_tensor *wave, bool is_raw, float **rows)
{
    const h3_tensor x = sound_of(wave);
    const int64_t n = x.ne[0] * h3_audio_vae_latents(e->v, x.ne[1]);

    *rows = malloc((size_t)(n * h3_audio_vae_sizes(e->v)->latents) * sizeof **rows);
    return h3_audio_vae_encode(e->d, e->v, x, is_raw, *rows);
}

static void check_narrow(golden *g, const vae_taps *taps)
{
    static const char *const names[] = {"x",     "norm1",  "q",         "k",     "v",
                                        "heads", "pooled", "attention", "norm3", "shortcut",
                                        "sum",   "mlp",    "out"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[48];
        snprintf(name, sizeof name, "pre_block.%s", names[i]);
        check_channels(g, taps, name, name, 2e-5);
    }
}

static h3_status run_encoder_stages(golden *g)
{
    const h3_tensor *wave = golden_need(g, "wave");
    float *rows = NULL;
    h3_status st;
    env e;

    if (!wave) return H3_OK;
    H3_TRY(env_open(&e, g, H3_AUDIO_VAE_ENCODER));
    if ((st = encode(&e, wave, true, &rows)) == H3_OK) {
        char name[48];
        check_channels(g, &e.taps, "conv_in", "conv_in", 3e-6);
        check_channels(g, &e.taps, "conv_out", "conv_out", 3e-6);
        for (int i = 1; i <= (int)h3_audio_vae_sizes(e.v)->n_enc; i++) {
            snprintf(name, sizeof name, "block%d", i);
            check_channels(g, &e.taps, name, name, 7e-6);
            for (int u = 0; u < AUDIO_UNITS; u++) {
                snprintf(name, sizeof name, "block%d.unit%d", i, u);
                check_channels(g, &e.taps, name, name, 7e-6);
            }
        }
        check_narrow(g, &e.taps);
        check_means(g, "mean", rows);
    }
    free(rows);
    env_close(&e);
    return st;
}

static h3_status run_lengths(golden *g)
{
    const json_t *counts = json_object_get(g->meta, "samples");
    h3_status st = H3_OK;
    env e;

    H3_TRY(env_open(&e, g, H3_AUDIO_VAE_ENCODER));
    e.d->tap = NULL;
    for (size_t i = 0; i < json_array_size(counts) && st == H3_OK; i++) {
        const int n = (int)json_integer_value(json_array_get(counts, i));
        float *rows = NULL;
        char name[32];
        snprintf(name, sizeof name, "n%d.wave", n);
        const h3_tensor *wave = golden_need(g, name);
        snprintf(name, sizeof name, "n%d.mean", n);
        if (wave && (st = encode(&e, wave, true, &rows)) == H3_OK) check_means(g, name, rows);
        free(rows);
    }
    env_close(&e);
    return st;
}

static h3_status run_references(golden *g)
{
    json_t *cases = json_object_get(g->meta, "cases"), *one;
    const char *key;
    h3_status st = H3_OK;
    env e;

    H3_TRY(env_open(&e, g, H3_AUDIO_VAE_ENCODER));
    e.d->tap = NULL;
    json_object_foreach(cases, key, one)
    {
        float *rows = NULL;
        char name[64];
        snprintf(name, sizeof name, "%s.wave", key);
        const h3_tensor *wave = golden_find(g, name);
        snprintf(name, sizeof name, "%s.rows", key);
        const h3_tensor *want = golden_find(g, name);
        if (!wave || !want || st != H3_OK) continue;
        if ((st = encode(&e, wave, false, &rows)) == H3_OK)
            vae_near(g, name, h3_tensor_1d(rows, H3_F32, h3_numel(*want)), LATENTS);
        free(rows);
    }
    env_close(&e);
    return st;
}

/* The narrowing block with weights from the golden itself: other widths, pooling by 8. */
typedef struct narrow_env {
    h3_dev *d;
    h3_store *store;
    audio_narrow m;
    h3_tensor vec[16];
    int n_vec;
} narrow_env;

static h3_status narrow_vector(narrow_env *e, golden *g, const char *name, h3_tensor *out)
{
    const h3_tensor *t = golden_need(g, name);

    if (!t) return h3_fail(H3_E_MISSING, "%s: tensor %s is missing", g->path, name);
    H3_TRY(to_device(e->d, out, *t, 1));
    e->vec[e->n_vec++] = *out;
    return H3_OK;
}

static h3_status narrow_matrix(narrow_env *e, golden *g, const char *name, h3_weight *w)
{
    char full[64];
    h3_tensor bias = {.data = NULL};

    snprintf(full, sizeof full, "%s.weight", name);
    const h3_tensor *t = golden_need(g, full);
    if (!t) return h3_fail(H3_E_MISSING, "%s: tensor %s is missing", g->path, full);
    snprintf(full, sizeof full, "%s.bias", name);
    if (golden_find(g, full)) H3_TRY(narrow_vector(e, g, full, &bias));
    const size_t row = (size_t)t->ne[1] * sizeof(float);
    *w = (h3_weight){.name = name,
                     .rows = t->ne[0],
                     .cols = t->ne[1],
                     .n_parts = 1,
                     .bias = bias,
                     .part[0] = {.data = t->data,
                                 .dev = t->data,
                                 .rows = t->ne[0],
                                 .cols = t->ne[1],
                                 .full_rows = t->ne[0],
                                 .row_bytes = row,
                                 .bytes = row * (size_t)t->ne[0],
                                 .encoding = H3_ENC_F32,
                                 .global = 1}};
    return h3_store_add(e->store, 0, w);
}

static h3_status narrow_bind(narrow_env *e, golden *g)
{
    audio_narrow *m = &e->m;
    const h3_tensor *q = golden_need(g, "w.attn.q_bias"), *v = golden_need(g, "w.attn.v_bias");

    if (!q || !v) return h3_fail(H3_E_MISSING, "%s: biases of the attention", g->path);
    m->width = vae_meta(g, "width");
    m->out = vae_meta(g, "latent_channels");
    m->heads = vae_meta(g, "heads");
    H3_TRY(h3_store_create(&e->store, e->d));
    H3_TRY(narrow_vector(e, g, "w.norm1.weight", &m->norm1_g));
    H3_TRY(narrow_vector(e, g, "w.norm1.bias", &m->norm1_b));
    H3_TRY(narrow_vector(e, g, "w.norm2.weight", &m->norm2_g));
    H3_TRY(narrow_vector(e, g, "w.norm2.bias", &m->norm2_b));
    H3_TRY(narrow_vector(e, g, "w.norm3.weight", &m->norm3_g));
    H3_TRY(narrow_vector(e, g, "w.norm3.bias", &m->norm3_b));
    H3_TRY(narrow_vector(e, g, "w.mlp.norm.weight", &m->mlp_g));
    H3_TRY(narrow_vector(e, g, "w.mlp.norm.bias", &m->mlp_b));
    H3_TRY(narrow_matrix(e, g, "w.attn.qkv", &m->qkv));
    H3_TRY(narrow_matrix(e, g, "w.attn.proj", &m->attn_proj));
    H3_TRY(narrow_matrix(e, g, "w.proj", &m->proj));
    H3_TRY(narrow_matrix(e, g, "w.mlp.w0", &m->w0));
    H3_TRY(narrow_matrix(e, g, "w.mlp.w1", &m->w1));
    H3_TRY(narrow_matrix(e, g, "w.mlp.w2", &m->w2));
    const int64_t n = 3 * m->width;
    float *bias = calloc((size_t)n, sizeof *bias);
    memcpy(bias, q->data, (size_t)m->width * sizeof *bias);
    memcpy(bias + 2 * m->width, v->data, (size_t)m->width * sizeof *bias);
    const h3_status st = to_device(e->d, &m->qkv.bias, h3_tensor_1d(bias, H3_F32, n), 1);
    e->vec[e->n_vec++] = m->qkv.bias;
    free(bias);
    return st;
}

static h3_status run_narrowing(golden *g)
{
    const h3_tensor *x = golden_need(g, "x");
    narrow_env e = {.d = NULL};
    vae_taps taps = {.n = 0};
    h3_tensor in = {.data = NULL}, out = {.data = NULL};
    h3_status st;

    if (!x) return H3_OK;
    if ((st = h3_dev_open(&e.d, g->device, NULL)) != H3_OK) return st;
    e.d->tap = vae_keep;
    e.d->tap_user = &taps;
    if ((st = narrow_bind(&e, g)) == H3_OK && (st = h3_store_acquire(e.store, 0)) == H3_OK)
        st = h3_dev_scratch(e.d, 1 << 22);
    for (int64_t b = 0; b < x->ne[0] && st == H3_OK; b++) {
        const int64_t ne[2] = {x->ne[1], e.m.out};
        if ((st = to_device(e.d, &in, h3_at(*x, b), 2)) == H3_OK &&
            (st = h3_dev_alloc(e.d, &out, H3_F32, 2, ne)) == H3_OK)
            st = h3_audio_vae_narrow(e.d, &e.m, out, in);
        h3_dev_free(e.d, &in);
        h3_dev_free(e.d, &out);
    }
    if (st == H3_OK) check_narrow(g, &taps);
    vae_forget(&taps);
    h3_store_free(&e.store);
    for (int i = 0; i < e.n_vec; i++)
        h3_dev_free(e.d, &e.vec[i]);
    h3_weight *const all[] = {&e.m.qkv, &e.m.attn_proj, &e.m.proj, &e.m.w0, &e.m.w1, &e.m.w2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h3_dev_weight_free(e.d, all[i]);
    h3_dev_close(&e.d);
    return st;
}

/* ---------------------------------------------------------------- kinds */

static bool is_filters(const golden *g)
{
    return json_is_object(json_object_get(g->meta, "filters"));
}

static bool is_activation(const golden *g)
{
    return golden_find(g, "encoder_snake.alpha") != NULL;
}

static bool is_blocks(const golden *g)
{
    return golden_find(g, "amp.x") != NULL;
}

static bool is_stages(const golden *g)
{
    return golden_find(g, "dec_in_proj") && golden_find(g, "before_clamp");
}

static bool is_waves(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "latents")) && json_object_get(g->meta, "pcm16");
}

static bool is_encoder_stages(const golden *g)
{
    return golden_find(g, "wave") && golden_find(g, "pre_block.x");
}

static bool is_lengths(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "samples"));
}

static bool is_narrowing(const golden *g)
{
    return golden_find(g, "w.attn.qkv.weight") != NULL;
}

static bool is_references(const golden *g)
{
    for (int i = 0; i < g->n_tensors; i++) {
        const size_t n = strlen(g->tensors[i].name);
        if (n > 5 && strcmp(g->tensors[i].name + n - 5, ".rows") == 0 &&
            json_is_object(json_object_get(g->meta, "cases")))
            return true;
    }
    return false;
}

const golden_kind golden_kinds_audio_vae[] = {
    {"audio VAE filters", is_filters, run_filters},
    {"audio VAE activation", is_activation, run_activation},
    {"audio VAE decoder, blocks", is_blocks, run_blocks},
    {"audio VAE decoder, stages", is_stages, run_stages},
    {"audio VAE decoder, waves", is_waves, run_waves},
    {"audio VAE encoder, stages", is_encoder_stages, run_encoder_stages},
    {"audio VAE encoder, lengths", is_lengths, run_lengths},
    {"audio VAE encoder, narrowing", is_narrowing, run_narrowing},
    {"audio VAE encoder, references", is_references, run_references},
    {NULL, NULL, NULL},
};
