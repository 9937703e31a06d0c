/**
 * The audio decoder: latents [32, n] of one channel to 800 n samples.
 *
 * dec_in_proj, conv_pre, then stages: a transposed convolution that multiplies the rate, and three
 * residual blocks with kernels 3, 7, 11 on the same input whose results are *averaged*. Activations
 * are snakes at twice the rate between two low-pass filters, fused into one operation.
 *
 * Long sounds are decoded in pieces. A piece is given as many more latents on both sides as its
 * samples can depend on (geometry.halo), and the ends of the sound stay the ends of the first and
 * last piece, so every sample sees the same inputs as without pieces.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "audio_vae_net.h"

/* ---------------------------------------------------------------- filters */

/* Modified Bessel function of order 0: its series converges quickly for the arguments here. */
static double bessel_i0(double x)
{
    double sum = 1, term = 1;

    for (int k = 1; k < 200 && term > 1e-18 * sum; k++) {
        term *= x * x / (4.0 * k * k);
        sum += term;
    }
    return sum;
}

void h3_audio_vae_kaiser_sinc(double *filter, double *window, int taps, double cutoff,
                              double half_width)
{
    const double pi = 3.14159265358979323846;
    const int half = taps / 2;
    const double a = 2.285 * (half - 1) * pi * 4 * half_width + 7.95; // attenuation in dB
    const double beta = a > 50    ? 0.1102 * (a - 8.7)
                        : a >= 21 ? 0.5842 * pow(a - 21, 0.4) + 0.07886 * (a - 21)
                                  : 0.0;
    double sum = 0;

    for (int i = 0; i < taps; i++) {
        const double r = taps > 1 ? 2.0 * i / (taps - 1) - 1 : 0.0;
        const double w = bessel_i0(beta * sqrt(fmax(0.0, 1 - r * r))) / bessel_i0(beta);
        const double t = taps % 2 ? i - half : i - half + 0.5;
        const double x = 2 * cutoff * t * pi;
        if (window) window[i] = w;
        filter[i] = 2 * cutoff * w * (x == 0 ? 1.0 : sin(x) / x);
        sum += filter[i];
    }
    for (int i = 0; i < taps; i++)
        filter[i] /= sum;
}

/* ---------------------------------------------------------------- binding */

/* Files store the filters with every activation. They are always the same; one that is not would be
 * another network. */
static h3_status check_filter(h3_audio_vae *v, const char *name, const float *ours)
{
    float stored[H3_AUDIO_VAE_TAPS];

    if (!h3_ckpt_has(v->ck, name)) return H3_OK;
    H3_TRY(h3_ckpt_floats(v->ck, stored, name, H3_AUDIO_VAE_TAPS));
    for (int i = 0; i < H3_AUDIO_VAE_TAPS; i++)
        if (!(fabsf(stored[i] - ours[i]) < 1e-4f)) // 16-bit copies of a filter pass
            return h3_fail(H3_E_FORMAT,
                           "%s: tap %d of %s is %g, expected %g of the anti-aliasing filter",
                           h3_ckpt_path(v->ck), i, name, (double)stored[i], (double)ours[i]);
    return H3_OK;
}

/* Snake parameters are stored as logarithms; they are exponentiated here, once. */
static h3_status bind_exp(h3_audio_vae *v, h3_tensor *out, const char *name, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    h3_status st;

    if (!x) return h3_fail(H3_E_NOMEM, "no memory for %s", name);
    st = h3_ckpt_floats(v->ck, x, name, n);
    for (int64_t i = 0; st == H3_OK && i < n; i++)
        x[i] = (float)exp((double)x[i]);
    if (st == H3_OK) st = h3_dev_alloc(v->dev, out, H3_F32, 1, &n);
    if (st == H3_OK) st = h3_dev_upload(v->dev, *out, x);
    free(x);
    return st;
}

static h3_status bind_act(h3_audio_vae *v, audio_snake *s, const char *name, int64_t n,
                          const float *filter)
{
    char full[112];

    snprintf(full, sizeof full, "%s.act.alpha", name);
    H3_TRY(bind_exp(v, &s->a, full, n));
    snprintf(full, sizeof full, "%s.act.beta", name);
    H3_TRY(bind_exp(v, &s->b, full, n));
    snprintf(full, sizeof full, "%s.upsample.filter", name);
    H3_TRY(check_filter(v, full, filter));
    snprintf(full, sizeof full, "%s.downsample.lowpass.filter", name);
    return check_filter(v, full, filter);
}

/* A transposed convolution is stored [ci, co, k] and has a bias of co. */
static h3_status bind_up(h3_audio_vae *v, int i)
{
    const h3_audio_vae_geometry *g = &v->geo;
    audio_conv *c = &v->dec.stage[i].up;
    char name[64];

    c->ci = g->dec_channels[i];
    c->co = g->dec_channels[i + 1];
    c->k = g->dec_kernel[i];
    snprintf(name, sizeof name, "decoder.ups.%d.0", i);
    H3_TRY(h3_ckpt_matrix(v->ck, v->dev, &c->w, name, c->ci, c->co * c->k, false));
    snprintf(name, sizeof name, "decoder.ups.%d.0.bias", i);
    H3_TRY(h3_ckpt_vector(v->ck, v->dev, &c->w.bias, name, c->co));
    return h3_store_add(v->dec.store, i + 1, &c->w);
}

static h3_status bind_amp(h3_audio_vae *v, int i, int j, const float *filter)
{
    const h3_audio_vae_geometry *g = &v->geo;
    amp_block *b = &v->dec.stage[i].amp[j];
    const int64_t c = g->dec_channels[i + 1], k = g->amp_kernel[j];
    const int at = i * (int)g->n_kernels + j;
    char name[64];

    for (int q = 0; q < (int)g->n_dilations; q++) {
        snprintf(name, sizeof name, "decoder.resblocks.%d.convs1.%d", at, q);
        H3_TRY(h3_audio_vae_conv(v, v->dec.store, i + 1, &b->conv1[q], name, c, c, k, true));
        snprintf(name, sizeof name, "decoder.resblocks.%d.convs2.%d", at, q);
        H3_TRY(h3_audio_vae_conv(v, v->dec.store, i + 1, &b->conv2[q], name, c, c, k, true));
    }
    for (int q = 0; q < 2 * (int)g->n_dilations; q++) {
        snprintf(name, sizeof name, "decoder.resblocks.%d.activations.%d", at, q);
        H3_TRY(bind_act(v, &b->act[q], name, c, filter));
    }
    return H3_OK;
}

h3_status h3_audio_vae_bind_decoder(h3_audio_vae *v)
{
    const h3_audio_vae_geometry *g = &v->geo;
    audio_decoder *m = &v->dec;
    const int64_t taps = H3_AUDIO_VAE_TAPS, last = g->dec_channels[g->n_stages];
    double wide[H3_AUDIO_VAE_TAPS];
    float filter[H3_AUDIO_VAE_TAPS];

    h3_audio_vae_kaiser_sinc(wide, NULL, H3_AUDIO_VAE_TAPS, 0.25, 0.3);
    for (int i = 0; i < H3_AUDIO_VAE_TAPS; i++)
        filter[i] = (float)wide[i];
    H3_TRY(h3_dev_alloc(v->dev, &m->filter, H3_F32, 1, &taps));
    H3_TRY(h3_dev_upload(v->dev, m->filter, filter));
    H3_TRY(h3_store_create(&m->store, v->dev));
    H3_TRY(h3_audio_vae_conv(v, m->store, 0, &m->in_proj, "dec_in_proj", g->width, g->latents, 1,
                             true));
    H3_TRY(h3_audio_vae_conv(v, m->store, 0, &m->conv_pre, "decoder.conv_pre", g->dec_channels[0],
                             g->width, 7, true));
    for (int i = 0; i < (int)g->n_stages; i++) {
        H3_TRY(bind_up(v, i));
        for (int j = 0; j < (int)g->n_kernels; j++)
            H3_TRY(bind_amp(v, i, j, filter));
    }
    H3_TRY(bind_act(v, &m->act_post, "decoder.activation_post", last, filter));
    return h3_audio_vae_conv(v, m->store, (int)g->n_stages + 1, &m->conv_post, "decoder.conv_post",
                             1, last, 7, false); // the release has no bias here
}

static void free_act(h3_audio_vae *v, audio_snake *s)
{
    h3_dev_free(v->dev, &s->a);
    h3_dev_free(v->dev, &s->b);
}

void h3_audio_vae_free_decoder(h3_audio_vae *v)
{
    audio_decoder *m = &v->dec;

    h3_store_free(&m->store);
    h3_dev_weight_free(v->dev, &m->in_proj.w);
    h3_dev_weight_free(v->dev, &m->conv_pre.w);
    h3_dev_weight_free(v->dev, &m->conv_post.w);
    for (int i = 0; i < H3_AUDIO_VAE_STAGES; i++) {
        h3_dev_weight_free(v->dev, &m->stage[i].up.w);
        for (int j = 0; j < H3_AUDIO_VAE_KERNELS; j++) {
            amp_block *b = &m->stage[i].amp[j];
            for (int q = 0; q < H3_AUDIO_VAE_DILATIONS; q++) {
                h3_dev_weight_free(v->dev, &b->conv1[q].w);
                h3_dev_weight_free(v->dev, &b->conv2[q].w);
                free_act(v, &b->act[2 * q]);
                free_act(v, &b->act[2 * q + 1]);
            }
        }
    }
    free_act(v, &m->act_post);
    h3_dev_free(v->dev, &m->filter);
    memset(m, 0, sizeof *m);
}

/* ---------------------------------------------------------------- one piece */

h3_status h3_audio_vae_amp(h3_dev *d, const h3_audio_vae *v, int i, int j, h3_tensor out,
                           h3_tensor x, h3_tensor a, h3_tensor b, h3_tensor other)
{
    const h3_audio_vae_geometry *g = &v->geo;
    const audio_decoder *m = &v->dec;
    const amp_block *w = &m->stage[i].amp[j];
    const h3_tensor none = {.data = NULL};
    const int64_t k = g->amp_kernel[j];

    for (int q = 0; q < (int)g->n_dilations; q++) {
        const int64_t dil = g->dilation[j][q];
        const audio_snake *s1 = &w->act[2 * q], *s2 = &w->act[2 * q + 1];
        /* The last sum goes to `out`; before it, out and other take turns. */
        const h3_tensor y = (g->n_dilations - q) % 2 ? out : other;
        H3_TRY(d->ops->snake_aa(d, a, x, s1->a, s1->b, m->filter, m->filter));
        h3_tap(d, a, "amp%d.pair%d.act1", j, q);
        H3_TRY(h3_audio_vae_apply(d, b, a, &w->conv1[q], 1, dil, (k - 1) / 2 * dil, none));
        h3_tap(d, b, "amp%d.pair%d.conv1", j, q);
        H3_TRY(d->ops->snake_aa(d, a, b, s2->a, s2->b, m->filter, m->filter));
        h3_tap(d, a, "amp%d.pair%d.act2", j, q);
        H3_TRY(h3_audio_vae_apply(d, y, a, &w->conv2[q], 1, 1, (k - 1) / 2, x)); // + x
        h3_tap(d, y, "amp%d.pair%d.sum", j, q);
        x = y;
    }
    h3_tap(d, out, "amp%d.out", j);
    return H3_OK;
}

/* Buffers of the size of the widest stage; a view [C, N] of one is cut where it is needed. */
enum { IN, UP, OUT, A, B, OTHER, N_BUFFERS };

typedef struct decode_run {
    h3_dev *d;
    h3_audio_vae *v;
    h3_tensor buf[N_BUFFERS];
    int in; // which of IN and OUT holds the input of the next stage
} decode_run;

static h3_tensor cut(const decode_run *r, int which, int64_t c, int64_t n)
{
    return h3_view_2d(h3_slice(r->buf[which], 0, 0, c * n), c, n);
}

static int64_t widest(const h3_audio_vae_geometry *g, int64_t n)
{
    int64_t most = g->width > g->dec_channels[0] ? g->width : g->dec_channels[0], rate = 1;

    for (int64_t i = 0; i < g->n_stages; i++) {
        rate *= g->dec_rate[i];
        if (g->dec_channels[i + 1] * rate > most) most = g->dec_channels[i + 1] * rate;
    }
    return most * n;
}

/* x [ci, n] -> [co, rate * n]: up, then the mean of the residual blocks. */
static h3_status stage_forward(decode_run *r, int i, h3_tensor x, h3_tensor *out)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_audio_vae_geometry *g = &r->v->geo;
    const audio_conv *c = &r->v->dec.stage[i].up;
    const int64_t rate = g->dec_rate[i], n = x.ne[1] * rate;
    const int from = r->in, to = from == IN ? OUT : IN, blocks = (int)g->n_kernels;
    const float share = 1.0f / (float)blocks;
    h3_tensor up = cut(r, UP, c->co, n), sum = cut(r, to, c->co, n);

    H3_TRY(op->conv_transpose1d(d, up, x, &c->w, (int)c->k, (int)rate, (int)(c->k - rate) / 2));
    h3_tap(d, up, "up%d", i);
    /* The stage's input is not needed any more: its buffer takes the blocks' results. */
    for (int j = 0; j < blocks; j++) {
        h3_tensor y = j == 0 ? sum : cut(r, from, c->co, n);
        H3_TRY(h3_audio_vae_amp(d, r->v, i, j, y, up, cut(r, A, c->co, n), cut(r, B, c->co, n),
                                cut(r, OTHER, c->co, n)));
        if (j > 0) {
            const float f = j + 1 == blocks ? share : 1.0f;
            H3_TRY(op->axpby(d, sum, f, y, f));
        }
    }
    h3_tap(d, sum, "stage%d", i);
    r->in = to;
    *out = sum;
    return H3_OK;
}

/* z [32, n] of one channel, denormalised, to wave [1, hop * n]. */
static h3_status piece_forward(decode_run *r, h3_tensor z, h3_tensor *wave)
{
    h3_dev *d = r->d;
    const h3_ops *op = d->ops;
    const h3_audio_vae_geometry *g = &r->v->geo;
    audio_decoder *m = &r->v->dec;
    const h3_tensor none = {.data = NULL};
    const int64_t n = z.ne[1];
    h3_tensor x, y;

    H3_TRY(h3_audio_vae_acquire(d, m->store, 0));
    y = cut(r, A, g->width, n);
    H3_TRY(h3_audio_vae_apply(d, y, z, &m->in_proj, 1, 1, 0, none));
    h3_tap(d, y, "dec_in_proj");
    r->in = IN;
    x = cut(r, IN, g->dec_channels[0], n);
    H3_TRY(h3_audio_vae_apply(d, x, y, &m->conv_pre, 1, 1, 3, none));
    h3_tap(d, x, "conv_pre");
    h3_audio_vae_release(d, m->store, 0);
    for (int i = 0; i < (int)g->n_stages; i++) {
        H3_TRY(h3_dev_check(d));
        H3_TRY(h3_audio_vae_acquire(d, m->store, i + 1));
        H3_TRY(stage_forward(r, i, x, &x));
        h3_audio_vae_release(d, m->store, i + 1);
    }
    H3_TRY(h3_audio_vae_acquire(d, m->store, (int)g->n_stages + 1));
    y = cut(r, A, x.ne[0], x.ne[1]);
    H3_TRY(op->snake_aa(d, y, x, m->act_post.a, m->act_post.b, m->filter, m->filter));
    h3_tap(d, y, "activation_post");
    *wave = cut(r, B, 1, x.ne[1]);
    H3_TRY(h3_audio_vae_apply(d, *wave, y, &m->conv_post, 1, 1, 3, none));
    h3_tap(d, *wave, "before_clamp");
    h3_audio_vae_release(d, m->store, (int)g->n_stages + 1);
    return H3_OK;
}

/* ---------------------------------------------------------------- a whole sound */

/* Latents [from, from + n) of channel c of z [channels, 32, N] into x [32, n] on the device. */
static h3_status take_latents(decode_run *r, h3_tensor x, h3_tensor z, int64_t c, int64_t from,
                              bool is_denormalised)
{
    h3_dev *d = r->d;
    const int64_t rows = x.ne[0], n = x.ne[1];
    h3_tensor part = h3_slice(h3_at(z, c), 1, from, n);
    float *dense;
    h3_status st;

    if (z.mem == d->mem) {
        H3_TRY(d->ops->copy(d, x, part));
    } else {
        dense = malloc((size_t)(rows * n) * sizeof *dense);
        if (!dense) return h3_fail(H3_E_NOMEM, "no memory for audio latents");
        for (int64_t i = 0; i < rows && !d->is_plan; i++)
            memcpy(dense + i * n, (const float *)part.data + i * part.st[0],
                   (size_t)n * sizeof *dense);
        st = h3_dev_upload(d, x, dense);
        free(dense);
        H3_TRY(st);
    }
    if (!is_denormalised) H3_TRY(d->ops->affine_rows(d, x, x, r->v->std, r->v->mean));
    h3_tap(d, x, "z");
    return H3_OK;
}

/* Latents [a, b) of one channel to out [hop * (b - a)], seen with their halo. */
static h3_status decode_piece(decode_run *r, h3_tensor z, int64_t c, int64_t a, int64_t b,
                              const h3_audio_decode_opts *o, float *out)
{
    h3_dev *d = r->d;
    const h3_audio_vae_geometry *g = &r->v->geo;
    const int64_t N = z.ne[2], lo = a > g->halo ? (a - g->halo) / g->grid * g->grid : 0;
    const int64_t hi = N - b > g->halo ? b + g->halo : N;
    const int64_t longest = b - a + 2 * g->halo + g->grid - 1, most = longest < N ? longest : N;
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor x = h3_scratch_1d(d, H3_F32, g->latents * most), wave;
    int bad = 0;

    for (int k = 0; k < N_BUFFERS; k++)
        r->buf[k] = h3_scratch_1d(d, H3_F32, widest(g, most)); // as for any piece
    H3_TRY(h3_scratch_check(d, "audio VAE decoder"));
    x = h3_view_2d(h3_slice(x, 0, 0, g->latents * (hi - lo)), g->latents, hi - lo);
    H3_TRY(take_latents(r, x, z, c, lo, o->is_denormalised));
    H3_TRY(piece_forward(r, x, &wave));
    H3_TRY(d->ops->check_finite(d, wave, &bad));
    H3_TRY(d->ops->clamp(d, wave, wave, -1.0f, 1.0f));
    H3_TRY(h3_dev_download(d, out, h3_slice(wave, 1, (a - lo) * g->hop, (b - a) * g->hop)));
    H3_TRY(h3_dev_sync(d));
    h3_arena_release(&d->scratch, mark);
    if (bad)
        return h3_fail(H3_E_NUMERIC, "audio VAE: NaN or infinity in channel %lld", (long long)c);
    return H3_OK;
}

h3_status h3_audio_vae_decode(h3_dev *d, h3_audio_vae *v, h3_tensor z,
                              const h3_audio_decode_opts *opts, float *out)
{
    enum { WHOLE = 1024 }; // 25 s; the model makes at most 15
    const h3_audio_decode_opts o = opts ? *opts : (h3_audio_decode_opts){.chunk = 0};
    const int64_t step = o.chunk > 0 ? o.chunk : WHOLE;
    const size_t mark = h3_arena_mark(&d->scratch);
    decode_run r = {.d = d, .v = v};
    size_t bytes;

    if (!(v->halves & H3_AUDIO_VAE_DECODER))
        return h3_fail(H3_E_INTERNAL, "the audio VAE was opened without its decoder");
    if (z.rank != 3 || z.dtype != H3_F32 || z.ne[1] != v->geo.latents || h3_numel(z) < 1 ||
        z.ne[2] > 1 << 30)
        return h3_fail(H3_E_SHAPE, "audio latents %s, expected [channels, %lld, n] F32",
                       h3_tensor_desc(z), (long long)v->geo.latents);
    if (!d->is_plan && mark == 0) {
        H3_TRY(h3_audio_vae_decode_bytes(d, v, z.ne[0], z.ne[2], opts, &bytes));
        H3_TRY(h3_dev_scratch(d, bytes));
    }
    const int64_t n = z.ne[2], pieces = (n + step - 1) / step, total = pieces * z.ne[0];
    for (int64_t k = 0; k < total; k++) {
        const int64_t c = k / pieces, a = k % pieces * step, b = n - a < step ? n : a + step;
        const h3_status st =
            decode_piece(&r, z, c, a, b, &o, d->is_plan ? NULL : out + (c * n + a) * v->geo.hop);
        if (st != H3_OK) {
            h3_arena_release(&d->scratch, mark);
            return st;
        }
        if (o.progress) o.progress(o.progress_user, k + 1, total);
    }
    return H3_OK;
}

h3_status h3_audio_vae_decode_bytes(const h3_dev *d, h3_audio_vae *v, int64_t channels, int64_t n,
                                    const h3_audio_decode_opts *opts, size_t *bytes)
{
    const int64_t ne[3] = {channels, v->geo.latents, n};
    h3_audio_decode_opts o = opts ? *opts : (h3_audio_decode_opts){.chunk = 0};
    h3_dev *plan = NULL;
    h3_status st;

    o.progress = NULL;
    H3_TRY(h3_dev_open(&plan, "plan", NULL));
    plan->mem = d->mem; // the network's vectors live there
    h3_tensor z = h3_host_tensor(plan->scratch.base, H3_F32, 3, ne);
    z.mem = plan->mem;
    st = h3_audio_vae_decode(plan, v, z, &o, NULL);
    *bytes = plan->scratch.peak;
    h3_dev_close(&plan);
    return st;
}
