/**
 * Writing synthetic checkpoints; see synth.h. One pass declares every tensor, a second one streams
 * its numbers in the same order, a few hundred kilobytes at a time.
 */
#include "synth.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "writer.h"

enum { BLOCK = 1 << 20, MAX_RANK = 5 };

typedef struct sheet {
    h3_writer *w;
    bool is_filling; // false: declare
    uint64_t state;
    uint16_t *buf; // BLOCK numbers of 4 bytes
    h3_status st;
} sheet;

enum { BY_ONE = 1 << 14 }; // numbers that are no work for several threads
static const uint64_t gap = 0x9e3779b97f4a7c15u;

/* Number i of the sequence (splitmix64); one that can be had out of turn, by any thread. */
static uint64_t at(uint64_t state, int64_t i)
{
    uint64_t z = state + ((uint64_t)i + 1) * gap;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void h3_synth_fill(void *out, h3_dtype t, int64_t n, float mean, float spread, uint64_t *state)
{
    const uint64_t from = *state;

#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (n > BY_ONE)
#endif
    for (int64_t i = 0; i < n; i++) {
        const float u = (float)(at(from, i) >> 40) * 0x1p-23f - 1.0f, v = mean + u * spread;
        if (t == H3_F32)
            ((float *)out)[i] = v;
        else
            ((uint16_t *)out)[i] = t == H3_BF16 ? h3_f32_to_bf16(v) : h3_f32_to_f16(v);
    }
    *state += (uint64_t)n * gap;
}

void h3_synth_bytes(unsigned char *out, size_t n, uint64_t *state)
{
    const uint64_t from = *state;
    const int64_t words = (int64_t)(n / 8);

#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (words > BY_ONE)
#endif
    for (int64_t i = 0; i < words; i++) {
        const uint64_t v = at(from, i);
        memcpy(out + 8 * i, &v, 8);
    }
    const uint64_t last = at(from, words);
    memcpy(out + 8 * words, &last, n % 8);
    *state += (uint64_t)(words + 1) * gap;
}

/* n numbers mean + uniform(-1, 1) * spread. */
static void fill(sheet *s, h3_dtype t, int64_t n, float mean, float spread)
{
    while (n > 0 && s->st == H3_OK) {
        const int64_t m = n < BLOCK ? n : BLOCK;
        h3_synth_fill(s->buf, t, m, mean, spread, &s->state);
        s->st = h3_writer_put(s->w, s->buf, (size_t)m * h3_dtype_bytes(t));
        n -= m;
    }
}

/* One tensor: declared in the first pass, written in the second. */
static void put(sheet *s, const char *name, h3_dtype t, float mean, float spread, int rank,
                const int64_t *ne)
{
    int64_t n = 1;

    if (s->st != H3_OK) return;
    if (!s->is_filling) {
        s->st = h3_writer_declare(s->w, name, t, rank, ne);
        return;
    }
    for (int i = 0; i < rank; i++)
        n *= ne[i];
    fill(s, t, n, mean, spread);
}

static void matrix(sheet *s, h3_dtype t, int64_t rows, int64_t cols, const char *fmt, ...)
{
    char name[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    put(s, name, t, 0, 1.0f / sqrtf((float)cols), 2, (const int64_t[]){rows, cols});
}

static void vector(sheet *s, h3_dtype t, int64_t n, float mean, float spread, const char *fmt, ...)
{
    char name[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    put(s, name, t, mean, spread, 1, &n);
}

/* ---------------------------------------------------------------------------------------- DiT */

typedef struct dit_sizes {
    int64_t c, heads, d, f, text, t_freq, t_hidden, t_dim, rope;
    int layers;
} dit_sizes;

static void dit_block(sheet *s, const dit_sizes *z, const char *prefix, int i, bool has_adaln)
{
    const int64_t inner = z->heads * z->d;

    vector(s, H3_BF16, z->c, 1, 0.1f, "%s.%d.norm1.weight", prefix, i);
    vector(s, H3_BF16, z->c, 1, 0.1f, "%s.%d.norm2.weight", prefix, i);
    vector(s, H3_BF16, z->d, 1, 0.1f, "%s.%d.attn.q_norm.weight", prefix, i);
    vector(s, H3_BF16, z->d, 1, 0.1f, "%s.%d.attn.k_norm.weight", prefix, i);
    matrix(s, H3_BF16, 3 * inner, z->c, "%s.%d.attn.qkv_proj.weight", prefix, i);
    matrix(s, H3_BF16, z->c, inner, "%s.%d.attn.out_proj.weight", prefix, i);
    matrix(s, H3_BF16, 2 * z->f, z->c, "%s.%d.mlp.fc1.weight", prefix, i);
    matrix(s, H3_BF16, z->c, z->f, "%s.%d.mlp.fc2.weight", prefix, i);
    if (!has_adaln) return;
    matrix(s, H3_BF16, 18 * z->c, z->t_dim, "%s.%d.adaln_proj.linear.weight", prefix, i);
    vector(s, H3_BF16, 18 * z->c, 0, 0.1f, "%s.%d.adaln_proj.linear.bias", prefix, i);
}

static void linear_f32(sheet *s, int64_t rows, int64_t cols, const char *name)
{
    matrix(s, H3_F32, rows, cols, "%s.weight", name);
    vector(s, H3_F32, rows, 0, 0.02f, "%s.bias", name);
}

static void write_dit(sheet *s, const h3_synth_opts *o)
{
    dit_sizes z = o->is_tiny
                      ? (dit_sizes){96, 4, 32, 72, 24, 32, 40, 12, 4, o->layers ? o->layers : 3}
                      : (dit_sizes){5376, 56,   128,  14336, 5120,
                                    256,  5376, 2688, 16,    o->layers ? o->layers : 50};

    if (o->heads) z.heads = o->heads;
    linear_f32(s, z.c, 96, "video_patch_proj");
    linear_f32(s, z.c, 32, "audio_patch_proj");
    matrix(s, H3_BF16, z.c, z.text, "condition_proj.weight");
    vector(s, H3_BF16, z.c, 0, 0.02f, "condition_proj.bias");
    linear_f32(s, z.t_hidden, z.t_freq, "time_embedder.proj_in");
    linear_f32(s, z.t_dim, z.t_hidden, "time_embedder.proj_out");
    for (int i = 0; i < 2; i++)
        dit_block(s, &z, "token_refiner.blocks", i, false);
    vector(s, H3_BF16, z.c, 1, 0.1f, "token_refiner.final_norm.weight");
    for (int i = 0; i < z.layers; i++)
        dit_block(s, &z, "blocks", i, true);
    vector(s, H3_BF16, z.c, 1, 0.1f, "final_layer.norm.weight");
    matrix(s, H3_BF16, 2 * z.c, z.t_dim, "final_layer.adaln_proj.linear.weight");
    vector(s, H3_BF16, 2 * z.c, 0, 0.1f, "final_layer.adaln_proj.linear.bias");
    linear_f32(s, 96, z.c, "final_layer.video_out");
    linear_f32(s, 32, z.c, "final_layer.audio_out");
    vector(s, H3_F32, z.rope, 0.5f, 0.4f, "rope.inv_freq");
}

/* --------------------------------------------------------------------------------- text tower */

static void write_encoder(sheet *s, const h3_synth_opts *o)
{
    const int64_t c = 5120, q = 8192, kv = 1024, f = 25600, d = 128, vocab = 4096;
    const int layers = o->layers ? o->layers : 50;

    matrix(s, H3_BF16, vocab, c, "model.language_model.embed_tokens.weight");
    for (int i = 0; i < layers; i++) {
#define LAYER "model.language_model.layers.%d."
        vector(s, H3_BF16, c, 1, 0.1f, LAYER "input_layernorm.weight", i);
        vector(s, H3_BF16, c, 1, 0.1f, LAYER "post_attention_layernorm.weight", i);
        vector(s, H3_BF16, d, 1, 0.1f, LAYER "self_attn.q_norm.weight", i);
        vector(s, H3_BF16, d, 1, 0.1f, LAYER "self_attn.k_norm.weight", i);
        matrix(s, H3_BF16, q, c, LAYER "self_attn.q_proj.weight", i);
        matrix(s, H3_BF16, kv, c, LAYER "self_attn.k_proj.weight", i);
        matrix(s, H3_BF16, kv, c, LAYER "self_attn.v_proj.weight", i);
        matrix(s, H3_BF16, c, q, LAYER "self_attn.o_proj.weight", i);
        matrix(s, H3_BF16, f, c, LAYER "mlp.gate_proj.weight", i);
        matrix(s, H3_BF16, f, c, LAYER "mlp.up_proj.weight", i);
        matrix(s, H3_BF16, c, f, LAYER "mlp.down_proj.weight", i);
#undef LAYER
    }
}

/* ----------------------------------------------------------------------------------- decoders */

static void write_video_decoder(sheet *s, const h3_synth_opts *o)
{
    const int64_t c = 2048, f = 8192, z = 24;
    const int layers = o->layers ? o->layers : 36;

    put(s, "post_quant_conv.weight", H3_F32, 0, 0.2f, 5, (const int64_t[]){z, z, 1, 1, 1});
    vector(s, H3_F32, z, 0, 0.02f, "post_quant_conv.bias");
    linear_f32(s, c, z, "decoder.x_embedder");
    put(s, "decoder.register_tokens", H3_F32, 0, 0.5f, 3, (const int64_t[]){1, 4, c});
    for (int i = 0; i < layers; i++) {
#define LAYER "decoder.transformer_blocks.%d."
        vector(s, H3_F32, c, 1, 0.1f, LAYER "norm1.weight", i);
        vector(s, H3_F32, c, 1, 0.1f, LAYER "norm2.weight", i);
        vector(s, H3_F32, c, 0.1f, 0.05f, LAYER "scale1", i);
        vector(s, H3_F32, c, 0.1f, 0.05f, LAYER "scale2", i);
        matrix(s, H3_F32, 3 * c, c, LAYER "attn.to_qkv.weight", i);
        vector(s, H3_F32, 3 * c, 0, 0.02f, LAYER "attn.to_qkv.bias", i);
        matrix(s, H3_F32, c, c, LAYER "attn.to_out.weight", i);
        vector(s, H3_F32, c, 0, 0.02f, LAYER "attn.to_out.bias", i);
        matrix(s, H3_F32, 2 * f, c, LAYER "ff.w1.weight", i);
        vector(s, H3_F32, 2 * f, 0, 0.02f, LAYER "ff.w1.bias", i);
        matrix(s, H3_F32, c, f, LAYER "ff.w2.weight", i);
        vector(s, H3_F32, c, 0, 0.02f, LAYER "ff.w2.bias", i);
#undef LAYER
    }
    vector(s, H3_F32, c, 1, 0.1f, "decoder.norm_out.weight");
    vector(s, H3_F32, c, 0, 0.02f, "decoder.norm_out.bias");
    linear_f32(s, 3072, c, "decoder.proj_out");
}

static void conv1d(sheet *s, int64_t a, int64_t b, int64_t k, int64_t n_bias, const char *name)
{
    char text[160];

    snprintf(text, sizeof text, "%s.weight", name);
    put(s, text, H3_F32, 0, 0.7f / sqrtf((float)(b * k)), 3, (const int64_t[]){a, b, k});
    if (n_bias) vector(s, H3_F32, n_bias, 0, 0.02f, "%s.bias", name);
}

static void write_audio_decoder(sheet *s)
{
    static const int kernels[] = {9, 9, 4, 4, 4, 4, 4}, amp[] = {3, 7, 11};
    int64_t c = 1024;
    char name[128];

    conv1d(s, 2048, 32, 1, 2048, "dec_in_proj");
    conv1d(s, c, 2048, 7, c, "decoder.conv_pre");
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "decoder.ups.%d.0", i);
        conv1d(s, c, c / 2, kernels[i], c / 2, name);
        c /= 2;
        for (int j = 0; j < 3; j++)
            for (int q = 0; q < 6; q++) {
                const int at = 3 * i + j;
                vector(s, H3_F32, c, 0, 0.3f, "decoder.resblocks.%d.activations.%d.act.alpha", at,
                       q);
                vector(s, H3_F32, c, 0, 0.3f, "decoder.resblocks.%d.activations.%d.act.beta", at,
                       q);
                snprintf(name, sizeof name, "decoder.resblocks.%d.convs%d.%d", at, q / 3 + 1,
                         q % 3);
                conv1d(s, c, c, amp[j], c, name);
            }
    }
    vector(s, H3_F32, c, 0, 0.3f, "decoder.activation_post.act.alpha");
    vector(s, H3_F32, c, 0, 0.3f, "decoder.activation_post.act.beta");
    conv1d(s, 1, c, 7, 0, "decoder.conv_post");
}

static h3_status write_role(sheet *s, h3_role role, const h3_synth_opts *o)
{
    s->state = o->seed * 0x9e3779b97f4a7c15u + (uint64_t)role;
    switch (role) {
    case H3_ROLE_DIT:
        write_dit(s, o);
        break;
    case H3_ROLE_TEXT_ENCODER:
        write_encoder(s, o);
        break;
    case H3_ROLE_VIDEO_VAE:
        write_video_decoder(s, o);
        break;
    case H3_ROLE_AUDIO_VAE:
        write_audio_decoder(s);
        break;
    default:
        return h3_fail(H3_E_ARG, "a synthetic checkpoint of this kind is not known");
    }
    return s->st;
}

h3_status h3_synth_write(const char *path, h3_role role, const h3_synth_opts *o)
{
    sheet s = {.st = H3_OK};
    h3_status st;

    if (o->layers < 0 || o->layers > 1000)
        return h3_fail(H3_E_ARG, "layers %d: expected 1..1000", o->layers);
    if (o->heads < 0 || o->heads > 1024)
        return h3_fail(H3_E_ARG, "heads %d: expected 1..1024", o->heads);
    s.buf = malloc((size_t)BLOCK * sizeof(float));
    if (!s.buf) return h3_fail(H3_E_NOMEM, "no memory to write %s", path);
    st = h3_writer_open(&s.w, path);
    if (st == H3_OK) st = write_role(&s, role, o);
    if (st == H3_OK) st = h3_writer_begin(s.w);
    s.is_filling = true;
    if (st == H3_OK) st = write_role(&s, role, o);
    if (st == H3_OK)
        st = h3_writer_commit(&s.w);
    else
        h3_writer_abort(&s.w);
    free(s.buf);
    return st;
}
