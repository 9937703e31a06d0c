/**
 * The audio encoder: samples of one channel to posterior means [n, 32].
 *
 * Strided convolutions with residual units and plain snakes bring the rate down by 800 and the
 * channels up to 2048; then a block narrows 2048 to 32. In that block heads are *averaged*, not
 * joined, and so are groups of channels; attention is causal; keys have no bias. The block's result
 * is proj(norm3 x) + attention(norm1 x), plus an MLP of it. Means are used, never samples.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "audio_vae_net.h"

/* ---------------------------------------------------------------- binding */

static h3_status bind_vector(h3_audio_vae *v, h3_tensor *t, const char *name, const char *what,
                             int64_t n)
{
    char full[96];

    snprintf(full, sizeof full, "%s%s", name, what);
    return h3_ckpt_vector(v->ck, v->dev, t, full, n);
}

static h3_status bind_norm(h3_audio_vae *v, h3_tensor *g, h3_tensor *b, const char *name, int64_t n)
{
    H3_TRY(bind_vector(v, g, name, ".weight", n));
    return bind_vector(v, b, name, ".bias", n);
}

/* alpha [1, C, 1] stands for both parameters of the snake, and is not a logarithm here. */
static h3_status bind_snake(h3_audio_vae *v, audio_snake *s, const char *name, int64_t n)
{
    H3_TRY(bind_vector(v, &s->a, name, ".alpha", n));
    s->b = s->a;
    return H3_OK;
}

static h3_status bind_conv(h3_audio_vae *v, audio_conv *c, const char *name, int64_t co, int64_t ci,
                           int64_t k)
{
    return h3_audio_vae_conv(v, v->enc.store, 0, c, name, co, ci, k, true);
}

static h3_status bind_down(h3_audio_vae *v, int i)
{
    const h3_audio_vae_geometry *g = &v->geo;
    audio_down *b = &v->enc.down[i];
    const int64_t c = g->enc_channels[i];
    char name[64];

#define NAME(fmt, ...) \
    (snprintf(name, sizeof name, "encoder.block.%d.block." fmt, i + 1, __VA_ARGS__), name)
    for (int u = 0; u < AUDIO_UNITS; u++) {
        H3_TRY(bind_snake(v, &b->unit[u].act1, NAME("%d.block.0", u), c));
        H3_TRY(bind_conv(v, &b->unit[u].conv1, NAME("%d.block.1", u), c, c, 7));
        H3_TRY(bind_snake(v, &b->unit[u].act2, NAME("%d.block.2", u), c));
        H3_TRY(bind_conv(v, &b->unit[u].conv2, NAME("%d.block.3", u), c, c, 1));
    }
    H3_TRY(bind_snake(v, &b->act, NAME("%d", AUDIO_UNITS), c));
    H3_TRY(bind_conv(v, &b->conv, NAME("%d", AUDIO_UNITS + 1), g->enc_channels[i + 1], c,
                     2 * g->enc_rate[i]));
#undef NAME
    return H3_OK;
}

/* {q_bias, 0, v_bias}: the file has no bias for the keys (or one of zeros). */
static h3_status bind_qkv(h3_audio_vae *v)
{
    audio_narrow *m = &v->enc.narrow;
    const int64_t w = m->width, n = 3 * w;
    float *bias = calloc((size_t)n, sizeof *bias);
    h3_status st;

    if (!bias) return h3_fail(H3_E_NOMEM, "no memory for pre_block.attn.qkv");
    if ((st = h3_ckpt_matrix(v->ck, v->dev, &m->qkv, "pre_block.attn.qkv", n, w, false)) == H3_OK &&
        (st = h3_ckpt_floats(v->ck, bias, "pre_block.attn.q_bias", w)) == H3_OK &&
        (st = h3_ckpt_floats(v->ck, bias + 2 * w, "pre_block.attn.v_bias", w)) == H3_OK &&
        (st = h3_dev_alloc(v->dev, &m->qkv_bias, H3_F32, 1, &n)) == H3_OK)
        st = h3_dev_upload(v->dev, m->qkv_bias, bias);
    m->qkv.bias = m->qkv_bias;
    free(bias);
    return st;
}

static h3_status bind_narrow(h3_audio_vae *v)
{
    audio_narrow *m = &v->enc.narrow;
    const int64_t w = v->geo.width, z = v->geo.latents;
    h3_weight *const all[] = {&m->qkv, &m->attn_proj, &m->proj, &m->w0, &m->w1, &m->w2};

    m->width = w;
    m->out = z;
    m->heads = v->geo.heads;
    H3_TRY(bind_norm(v, &m->norm1_g, &m->norm1_b, "pre_block.norm1", w));
    H3_TRY(bind_norm(v, &m->norm3_g, &m->norm3_b, "pre_block.norm3", w));
    H3_TRY(bind_norm(v, &m->norm2_g, &m->norm2_b, "pre_block.norm2", z));
    H3_TRY(bind_norm(v, &m->mlp_g, &m->mlp_b, "pre_block.mlp.norm", z));
    H3_TRY(bind_qkv(v));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->attn_proj, "pre_block.attn.proj", z, z, true));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->proj, "pre_block.proj", z, w, true));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->w0, "pre_block.mlp.w0", 2 * z, z, true));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->w1, "pre_block.mlp.w1", 2 * z, z, true));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->w2, "pre_block.mlp.w2", z, 2 * z, true));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        H3_TRY(h3_store_add(v->enc.store, 0, all[i]));
    return H3_OK;
}

h3_status h3_audio_vae_bind_encoder(h3_audio_vae *v)
{
    const h3_audio_vae_geometry *g = &v->geo;
    audio_encoder *m = &v->enc;
    const int n = (int)g->n_enc;
    const int64_t last = g->enc_channels[n];
    char name[64];

    H3_TRY(h3_store_create(&m->store, v->dev));
    H3_TRY(bind_conv(v, &m->conv_in, "encoder.block.0", g->enc_channels[0], 1, 7));
    for (int i = 0; i < n; i++)
        H3_TRY(bind_down(v, i));
    snprintf(name, sizeof name, "encoder.block.%d", n + 1);
    H3_TRY(bind_snake(v, &m->act, name, last));
    snprintf(name, sizeof name, "encoder.block.%d", n + 2);
    H3_TRY(bind_conv(v, &m->conv_out, name, g->width, last, 3));
    H3_TRY(bind_narrow(v));
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &m->mean, "mean_proj", g->latents, g->latents, true));
    return h3_store_add(m->store, 0, &m->mean);
}

void h3_audio_vae_free_encoder(h3_audio_vae *v)
{
    audio_encoder *m = &v->enc;
    audio_narrow *b = &m->narrow;
    h3_weight *const rest[] = {&m->conv_in.w, &m->conv_out.w, &m->mean, &b->qkv, &b->attn_proj,
                               &b->proj,      &b->w0,         &b->w1,   &b->w2};

    h3_store_free(&m->store);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        h3_dev_weight_free(v->dev, rest[i]);
    for (int i = 0; i < H3_AUDIO_VAE_STAGES; i++) {
        for (int u = 0; u < AUDIO_UNITS; u++) {
            h3_dev_weight_free(v->dev, &m->down[i].unit[u].conv1.w);
            h3_dev_weight_free(v->dev, &m->down[i].unit[u].conv2.w);
        }
        h3_dev_weight_free(v->dev, &m->down[i].conv.w);
    }
    h3_dev_free(v->dev, &b->qkv_bias);
    memset(m, 0, sizeof *m);
}

/* ---------------------------------------------------------------- the narrowing block */

/* y = a * b, element by element. The table has no such entry; as rows of one element it is
 * affine_rows with a zero to add. Small here: [n, 64]. */
static h3_status multiply(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b, h3_tensor zeros)
{
    const int64_t n = h3_numel(y);

    return d->ops->affine_rows(d, h3_view_2d(y, n, 1), h3_view_2d(a, n, 1), h3_view(b, 1, &n),
                               zeros);
}

/* y += w2(gelu(w0 h) * w1 h), h = mlp.norm(norm2(y)). */
static h3_status narrow_mlp(h3_dev *d, const audio_narrow *m, h3_tensor y)
{
    const h3_ops *op = d->ops;
    const int64_t n = y.ne[0], width = m->w0.rows;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, H3_F32, n, m->out), out = h3_scratch_2d(d, H3_F32, n, m->out);
    h3_tensor gate = h3_scratch_2d(d, H3_F32, n, width), up = h3_scratch_2d(d, H3_F32, n, width);
    h3_tensor zeros = h3_scratch_1d(d, H3_F32, n * width);
    float *host;
    h3_status st;

    H3_TRY(h3_scratch_check(d, "audio VAE narrowing MLP"));
    host = calloc((size_t)(n * width), sizeof *host);
    if (!host) return h3_fail(H3_E_NOMEM, "no memory for the audio VAE");
    st = h3_dev_upload(d, zeros, host);
    free(host);
    H3_TRY(st);
    H3_TRY(op->layer_norm(d, h, y, m->norm2_g, m->norm2_b, 1e-5f));
    H3_TRY(op->layer_norm(d, h, h, m->mlp_g, m->mlp_b, 1e-5f));
    H3_TRY(op->gemm(d, gate, h, &m->w0, H3_ACT_GELU_TANH));
    H3_TRY(op->gemm(d, up, h, &m->w1, H3_ACT_NONE));
    H3_TRY(multiply(d, gate, gate, up, zeros));
    H3_TRY(op->gemm(d, out, gate, &m->w2, H3_ACT_NONE));
    h3_tap(d, out, "pre_block.mlp");
    H3_TRY(op->add(d, y, y, out));
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

h3_status h3_audio_vae_narrow(h3_dev *d, const audio_narrow *m, h3_tensor out, h3_tensor x)
{
    const h3_ops *op = d->ops;
    const int64_t n = x.ne[0], w = m->width, heads = m->heads, size = w / heads;
    const int32_t cu[2] = {0, (int32_t)n};
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor h = h3_scratch_2d(d, H3_F32, n, w), qkv = h3_scratch_2d(d, H3_F32, n, 3 * w);
    h3_tensor o = h3_scratch_3d(d, H3_F32, n, heads, size);
    h3_tensor pooled = h3_scratch_2d(d, H3_F32, n, m->out), a = h3_scratch_2d(d, H3_F32, n, m->out);
    h3_tensor part[3];

    H3_TRY(h3_scratch_check(d, "audio VAE narrowing attention"));
    h3_tap(d, x, "pre_block.x");
    H3_TRY(op->layer_norm(d, h, x, m->norm1_g, m->norm1_b, 1e-5f));
    h3_tap(d, h, "pre_block.norm1");
    H3_TRY(op->gemm(d, qkv, h, &m->qkv, H3_ACT_NONE));
    for (int k = 0; k < 3; k++) { // three stacked matrices here, not head by head
        part[k] = h3_slice(qkv, 1, k * w, w);
        part[k].rank = 3;
        part[k].ne[1] = heads;
        part[k].ne[2] = size;
        part[k].st[1] = size;
        part[k].st[2] = 1;
        h3_tap(d, part[k], "pre_block.%c", "qkv"[k]);
    }
    H3_TRY(op->attention(d, o, part[0], part[1], part[2], 1.0f / sqrtf((float)size), cu, 1, true));
    h3_tap(d, o, "pre_block.heads");
    H3_TRY(op->mean_groups(d, pooled, o));
    h3_tap(d, pooled, "pre_block.pooled");
    H3_TRY(op->gemm(d, a, pooled, &m->attn_proj, H3_ACT_NONE));
    h3_tap(d, a, "pre_block.attention");
    H3_TRY(op->layer_norm(d, h, x, m->norm3_g, m->norm3_b, 1e-5f));
    h3_tap(d, h, "pre_block.norm3");
    H3_TRY(op->gemm(d, out, h, &m->proj, H3_ACT_NONE));
    h3_tap(d, out, "pre_block.shortcut");
    H3_TRY(op->add(d, out, out, a));
    h3_tap(d, out, "pre_block.sum");
    H3_TRY(narrow_mlp(d, m, out));
    h3_tap(d, out, "pre_block.out");
    h3_arena_release(&d->scratch, mark);
    return H3_OK;
}

/* ---------------------------------------------------------------- one channel */

/* Three buffers of the widest stage: x, and two that layers write to in turn. */
typedef struct encode_run {
    h3_dev *d;
    h3_audio_vae *v;
    h3_tensor buf[3];
} encode_run;

static h3_tensor cut(const encode_run *r, int which, int64_t c, int64_t n)
{
    return h3_view_2d(h3_slice(r->buf[which], 0, 0, c * n), c, n);
}

static h3_status down_forward(encode_run *r, int i, int *at, int64_t *n)
{
    static const int64_t dilation[AUDIO_UNITS] = {1, 3, 9};
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const audio_down *b = &r->v->enc.down[i];
    const int64_t c = b->conv.ci, s = r->v->geo.enc_rate[i];
    const h3_tensor none = {.data = NULL};
    h3_tensor x = cut(r, *at, c, *n), y, t;

    for (int u = 0; u < AUDIO_UNITS; u++) { // x += conv2(snake(conv1(snake(x))))
        const audio_unit *w = &b->unit[u];
        y = cut(r, (*at + 1) % 3, c, *n);
        t = cut(r, (*at + 2) % 3, c, *n);
        H3_TRY(op->snake(d, y, x, w->act1.a, w->act1.b));
        H3_TRY(h3_audio_vae_apply(d, t, y, &w->conv1, 1, dilation[u], 3 * dilation[u], none));
        H3_TRY(op->snake(d, t, t, w->act2.a, w->act2.b));
        H3_TRY(h3_audio_vae_apply(d, y, t, &w->conv2, 1, 1, 0, x));
        h3_tap(d, y, "block%d.unit%d", i + 1, u);
        x = y;
        *at = (*at + 1) % 3;
    }
    H3_TRY(op->snake(d, x, x, b->act.a, b->act.b));
    *at = (*at + 1) % 3;
    *n /= s;
    y = cut(r, *at, b->conv.co, *n);
    H3_TRY(
        h3_audio_vae_apply(d, y, x, &b->conv, s, 1, (s + 1) / 2, none)); // 3, not 2, for stride 5
    h3_tap(d, y, "block%d", i + 1);
    return H3_OK;
}

static int64_t widest(const h3_audio_vae_geometry *g, int64_t n)
{
    int64_t most = n * g->enc_channels[0];

    for (int64_t i = 0; i < g->n_enc; i++) {
        n /= g->enc_rate[i];
        if (n * g->enc_channels[i + 1] > most) most = n * g->enc_channels[i + 1];
    }
    return n * g->width > most ? n * g->width : most;
}

/* Samples [n], a multiple of the hop, in buffer 0 -> means [n / hop, 32] of the posterior. */
static h3_status channel_forward(encode_run *r, int64_t n, h3_tensor mean)
{
    h3_dev *d = r->d;
    const h3_audio_vae_geometry *g = &r->v->geo;
    const audio_encoder *m = &r->v->enc;
    const h3_tensor none = {.data = NULL};
    int at = 1;
    h3_tensor x = cut(r, 1, g->enc_channels[0], n), y;

    H3_TRY(h3_audio_vae_apply(d, x, cut(r, 0, 1, n), &m->conv_in, 1, 1, 3, none));
    h3_tap(d, x, "conv_in");
    for (int i = 0; i < (int)g->n_enc; i++) {
        H3_TRY(h3_dev_check(d));
        H3_TRY(down_forward(r, i, &at, &n));
    }
    x = cut(r, at, g->enc_channels[g->n_enc], n);
    H3_TRY(d->ops->snake(d, x, x, m->act.a, m->act.b));
    y = cut(r, (at + 1) % 3, g->width, n);
    H3_TRY(h3_audio_vae_apply(d, y, x, &m->conv_out, 1, 1, 1, none));
    h3_tap(d, y, "conv_out");
    x = cut(r, at, n, g->width);
    H3_TRY(d->ops->transpose(d, x, y));
    y = cut(r, (at + 1) % 3, n, g->latents);
    H3_TRY(h3_audio_vae_narrow(d, &m->narrow, y, x));
    return d->ops->gemm(d, mean, y, &m->mean, H3_ACT_NONE);
}

/* Channel c of wave, zeros behind it up to whole hops, into buffer 0. */
static h3_status take_samples(encode_run *r, h3_tensor wave, int64_t c, int64_t n)
{
    float *padded;
    h3_status st;

    if (r->d->is_plan) return H3_OK;
    padded = calloc((size_t)n, sizeof *padded);
    if (!padded) return h3_fail(H3_E_NOMEM, "no memory for %lld samples", (long long)n);
    memcpy(padded, (const float *)wave.data + c * wave.st[0], (size_t)wave.ne[1] * sizeof *padded);
    st = h3_dev_upload(r->d, cut(r, 0, 1, n), padded);
    free(padded);
    return st;
}

static h3_status encode_channel(encode_run *r, h3_tensor wave, int64_t c, bool is_raw, float *rows)
{
    h3_dev *d = r->d;
    const h3_audio_vae_geometry *g = &r->v->geo;
    const int64_t t = h3_audio_vae_latents(r->v, wave.ne[1]), n = t * g->hop;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor mean = h3_scratch_2d(d, H3_F32, t, g->latents);
    int bad = 0;

    for (int k = 0; k < 3; k++)
        r->buf[k] = h3_scratch_1d(d, H3_F32, widest(g, n));
    H3_TRY(h3_scratch_check(d, "audio VAE encoder"));
    H3_TRY(take_samples(r, wave, c, n));
    H3_TRY(channel_forward(r, n, mean));
    h3_tap(d, mean, "mean");
    H3_TRY(d->ops->check_finite(d, mean, &bad));
    H3_TRY(h3_dev_download(d, rows, mean));
    H3_TRY(h3_dev_sync(d));
    h3_arena_release(&d->scratch, mark);
    if (d->is_plan) return H3_OK;
    if (bad)
        return h3_fail(H3_E_NUMERIC, "audio VAE encoder: NaN or infinity in channel %lld",
                       (long long)c);
    for (int64_t i = 0; i < t * g->latents && !is_raw; i++)
        rows[i] = (rows[i] - g->mean[i % g->latents]) / g->std[i % g->latents];
    return H3_OK;
}

int64_t h3_audio_vae_latents(const h3_audio_vae *v, int64_t n_samples)
{
    return n_samples / v->geo.hop + (n_samples % v->geo.hop != 0);
}

h3_status h3_audio_vae_encode(h3_dev *d, h3_audio_vae *v, h3_tensor wave, bool is_raw, float *rows)
{
    encode_run r = {.d = d, .v = v};
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_status st = H3_OK;
    size_t bytes;

    if (!(v->halves & H3_AUDIO_VAE_ENCODER))
        return h3_fail(H3_E_INTERNAL, "the audio VAE was opened without its encoder");
    if (wave.rank != 2 || wave.dtype != H3_F32 || h3_numel(wave) < 1 || wave.ne[1] > 1 << 30)
        return h3_fail(H3_E_SHAPE, "sound %s, expected [channels, n] F32", h3_tensor_desc(wave));
    const int64_t t = h3_audio_vae_latents(v, wave.ne[1]) * v->geo.latents;
    if (!d->is_plan && mark == 0) {
        H3_TRY(h3_audio_vae_encode_bytes(d, v, wave.ne[0], wave.ne[1], &bytes));
        H3_TRY(h3_dev_scratch(d, bytes));
    }
    H3_TRY(h3_audio_vae_acquire(d, v->enc.store, 0));
    for (int64_t c = 0; c < wave.ne[0] && st == H3_OK; c++)
        st = encode_channel(&r, wave, c, is_raw, d->is_plan ? NULL : rows + c * t);
    h3_audio_vae_release(d, v->enc.store, 0);
    h3_arena_release(&d->scratch, mark);
    return st;
}

h3_status h3_audio_vae_encode_bytes(const h3_dev *d, h3_audio_vae *v, int64_t channels, int64_t n,
                                    size_t *bytes)
{
    h3_dev *plan = NULL;
    h3_status st;

    H3_TRY(h3_dev_open(&plan, "plan", NULL));
    plan->mem = d->mem; // the network's vectors live there
    st = h3_audio_vae_encode(plan, v, h3_tensor_2d(NULL, H3_F32, channels, n), false, NULL);
    *bytes = plan->scratch.peak;
    h3_dev_close(&plan);
    return st;
}
