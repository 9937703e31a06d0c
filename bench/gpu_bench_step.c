/** A denoising step of the released shape on random numbers, and ways to run it.
 *
 * All layers share one set of weights, which is far larger than the cache: the time of fifty layers
 * needs the memory of one. */
#include <stdlib.h>

#include "gpu_bench.h"

h3_dit *make_dit(void)
{
    h3_dit *m = calloc(1, sizeof *m);
    h3_dit_block b = {.norm1 = random_tensor(H3_F32, 1, NE(C)),
                      .norm2 = random_tensor(H3_F32, 1, NE(C)),
                      .q_norm = random_tensor(H3_F32, 1, NE(HEAD)),
                      .k_norm = random_tensor(H3_F32, 1, NE(HEAD)),
                      .qkv = random_weight(H3_BF16, 3 * INNER, C),
                      .out = random_weight(H3_BF16, C, INNER),
                      .fc1 = random_weight(H3_BF16, 2 * FFN, C),
                      .fc2 = random_weight(H3_BF16, C, FFN)};

    m->dev = d;
    m->dims = (h3_dit_dims){.hidden = C,
                            .n_heads = HEADS,
                            .head_dim = HEAD,
                            .inner = INNER,
                            .ffn = FFN,
                            .n_layers = o.layers,
                            .video_cols = 96,
                            .audio_cols = 32,
                            .rope_freqs = HEAD / 8};
    m->norm_eps = m->qk_norm_eps = m->final_norm_eps = 1e-5f;
    m->mlp_band = 16384;
    b.qkv.interleaved = true;
    m->edge.video_proj = random_weight(H3_F32, C, 96);
    m->edge.audio_proj = random_weight(H3_F32, C, 32);
    m->edge.video_out = random_weight(H3_F32, 96, C);
    m->edge.audio_out = random_weight(H3_F32, 32, C);
    m->edge.final_norm = random_tensor(H3_F32, 1, NE(C));
    m->block = calloc((size_t)o.layers, sizeof *m->block);
    for (int i = 0; i < o.layers; i++)
        m->block[i] = b;
    return m;
}

void share_packed(h3_dit *m)
{
    for (int i = 1; i < o.layers; i++) {
        m->block[i].qkv.packed = m->block[0].qkv.packed;
        m->block[i].out.packed = m->block[0].out.packed;
        m->block[i].fc1.packed = m->block[0].fc1.packed;
        m->block[i].fc2.packed = m->block[0].fc2.packed;
    }
}

/* Rows [first, first + n) of the sequence are one medium: those of them that are ours. */
static h3_dit_share share_of(const h3_dit_state *s, int64_t first, int64_t n, h3_tensor *idx)
{
    const int64_t from = first > s->own.first ? first : s->own.first;
    const int64_t last = s->own.first + s->own.n, end = first + n < last ? first + n : last;
    const h3_dit_share own = {.first = from < end ? from - first : 0,
                              .n = from < end ? end - from : 0};

    *idx = indices(own.n, from - s->own.first, 0);
    return own;
}

static h3_dit_state *make_state(const h3_dit *m, int64_t S)
{
    h3_dit_state *s = calloc(1, sizeof *s);
    const int64_t n_audio = S > 1024 ? 240 : 40, n_video = S - N_TEXT - n_audio,
                  L = m->dims.n_layers;
    const int me = h3_comm_rank(d->comm);
    const int64_t first = h3_comm_first(d->comm, S, me);
    const int64_t n = h3_comm_first(d->comm, S, me + 1) - first;

    s->dev = d;
    s->act = H3_BF16;
    s->n_rows = S;
    s->n_video = n_video;
    s->n_audio = n_audio;
    s->n_text = N_TEXT;
    s->n_steps = 1;
    s->n_timesteps = 4;
    s->own = (h3_dit_share){.first = first, .n = n};
    s->text = random_tensor(H3_BF16, 1, NE(N_TEXT, C));
    s->cos = random_tensor(H3_BF16, 1, NE(n, 3 * (HEAD / 8)));
    s->sin = random_tensor(H3_BF16, 1, NE(n, 3 * (HEAD / 8)));
    s->mod = random_tensor(H3_BF16, 0.1f, NE(L, 12, 6, C));
    s->final_mod = random_tensor(H3_BF16, 0.1f, NE(4, 2, C));
    s->own_text = share_of(s, 0, N_TEXT, &s->text_idx);
    s->own_audio = share_of(s, N_TEXT, n_audio, &s->audio_idx);
    s->own_video = share_of(s, N_TEXT + n_audio, n_video, &s->video_idx);
    s->mod_row = modulation_rows(first, n, n_audio, 1);
    s->time_row = modulation_rows(first, n, n_audio, 3);
    s->row = indices(n, 0, 1);
    s->time = indices(n, 0, 1);
    s->cu = calloc(2, sizeof *s->cu);
    s->cu[1] = (int32_t)S;
    s->n_documents = 1;
    return s;
}

size_t dit_scratch(int64_t S)
{
    const int64_t band = S < 16384 ? S : 16384;
    return (size_t)(2 * S * (2 * C + 4 * INNER) + 2 * band * 3 * FFN + 4 * S * C) + (64u << 20);
}

/* The table of operations when nothing is taken apart. */
static h3_ops whole_ops;

static h3_status apart_gate(h3_dev *dev, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor mod,
                            int i_gate, h3_tensor g, float eps, h3_tensor next, int i_shift,
                            int i_scale, h3_tensor row)
{
    MUST(whole_ops.gate_add(dev, x, h, mod, i_gate, row));
    return whole_ops.rms_norm_mod(dev, y, x, g, eps, next, i_shift, i_scale, row);
}

static h3_status apart_qk(h3_dev *dev, h3_tensor q, h3_tensor k, h3_tensor gq, h3_tensor gk,
                          float eps, bool round_first, h3_tensor cos, h3_tensor sin)
{
    MUST(whole_ops.head_norm_rope(dev, q, gq, eps, round_first, cos, sin));
    return whole_ops.head_norm_rope(dev, k, gk, eps, round_first, cos, sin);
}

step make_step(h3_dit *m, int64_t S)
{
    h3_dit_state *s = make_state(m, S);

    return (step){.m = m,
                  .s = s,
                  .v = random_tensor(H3_F32, 1, NE(s->n_video, 96)),
                  .v2 = random_tensor(H3_F32, 1, NE(s->n_video, 96)),
                  .a = random_tensor(H3_F32, 1, NE(s->n_audio, 32)),
                  .a2 = random_tensor(H3_F32, 1, NE(s->n_audio, 32))};
}

void free_step(const step *k)
{
    h3_dit_state *s = k->s;
    step own = *k;
    h3_tensor *const all[] = {&s->text,      &s->cos,      &s->sin,       &s->mod,
                              &s->final_mod, &s->text_idx, &s->audio_idx, &s->video_idx,
                              &s->mod_row,   &s->time_row, &s->row,       &s->time,
                              &own.v,        &own.v2,      &own.a,        &own.a2};

    if (s->replay.it) d->forget(d, s->replay.it);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h3_dev_free(d, all[i]);
    free(s->cu);
    free(s);
}

double run_step(const step *k, variant how)
{
    h3_status (*const record)(h3_dev *) = d->record;

    whole_ops = d->impl;
    if (how != RECORDED) d->record = NULL;
    if (how == APART) d->impl.gate_add_norm = apart_gate;
    if (how == APART) d->impl.qk_norm_rope = apart_qk;
    const double t0 = now();
    MUST(h3_dit_forward(d, k->m, k->s, 0, k->v2, k->a2, k->v, k->a));
    const double enqueued = now() - t0;
    MUST(h3_dev_sync(d));
    const double t = now() - t0;
    d->record = record;
    d->impl = whole_ops;
    return enqueued < t ? t : enqueued;
}

float *velocities(const step *k)
{
    float *p = malloc((size_t)h3_numel(k->v2) * sizeof *p);

    MUST(h3_dev_download(d, p, k->v2));
    return p;
}
