/**
 * Benchmarks: operations and stages at the real widths, on random weights, through the production
 * forwards. Every stage is timed with the device's operation table filled in, so the report says
 * where the time went and how far each product is from the rate of one large product in the same
 * run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audio_vae.h"
#include "convert.h"
#include "half.h"
#include "job.h"
#include "synth.h"
#include "tools.h"
#include "video_vae.h"

typedef struct bench {
    h3_engine *e;
    const h3_bench_opts *o;
    char dir[64]; // temporary checkpoints
    double limit; // GFLOP/s of the largest f32 product
    json_t *list;
} bench;

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* Operations of the run since the last reset, slowest first is left to the reader. */
static json_t *operations(const bench *b)
{
    json_t *o = json_object();

    for (int i = 0; i < H3_OP_COUNT; i++) {
        const h3_op_stat *s = &b->e->dev->stat[i];
        if (!s->calls) continue;
        json_object_set_new(o, h3_op_name((h3_op_id)i),
                            json_pack("{s:I, s:I, s:f, s:f, s:f}", "calls", (json_int_t)s->calls,
                                      "reference_calls", (json_int_t)s->ref_calls, "seconds",
                                      s->seconds, "gflop", s->flops * 1e-9, "gflops",
                                      s->seconds > 0 ? s->flops * 1e-9 / s->seconds : 0.0));
    }
    return o;
}

static double total_gflop(const bench *b)
{
    double f = 0;

    for (int i = 0; i < H3_OP_COUNT; i++)
        f += b->e->dev->stat[i].flops;
    return f * 1e-9;
}

static void report(bench *b, const char *name, int64_t rows, int layers, double seconds,
                   double gflop)
{
    json_t *o =
        json_pack("{s:s, s:I, s:f, s:f, s:f}", "name", name, "rows", (json_int_t)rows, "seconds",
                  seconds, "gflop", gflop, "gflops", seconds > 0 ? gflop / seconds : 0.0);

    if (layers) json_object_set_new(o, "layers", json_integer(layers));
    if (b->limit > 0 && seconds > 0)
        json_object_set_new(o, "share_of_product_rate", json_real(gflop / seconds / b->limit));
    json_object_set_new(o, "operations", operations(b));
    json_array_append_new(b->list, o);
}

/* --------------------------------------------------------------------------------- operations */

/* What a matrix is stored as. */
typedef struct form {
    const char *name;
    uint8_t encoding, ggml_type;
    int32_t block, block_bytes; // numbers and bytes of a block
    int32_t half_at[2];         // bytes of a block that hold f16 scales, -1: none
} form;

static const form forms[] = {
    {"f32", H3_ENC_F32, 0, 1, 4, {-1, -1}},        {"bf16", H3_ENC_BF16, 0, 1, 2, {-1, -1}},
    {"int8", H3_ENC_INT8, 0, 1, 1, {-1, -1}},      {"q8_0", H3_ENC_GGML, 8, 32, 34, {0, -1}},
    {"q4_K", H3_ENC_GGML, 12, 256, 144, {0, 2}},   {"q5_K", H3_ENC_GGML, 13, 256, 176, {0, 2}},
    {"q6_K", H3_ENC_GGML, 14, 256, 210, {208, -1}}};

static const form *form_of(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0) return &forms[i];
    return NULL;
}

static const float small_scale = 0x1p-10f; // of int8 and of blocks: sums stay of order 1

/* A random weight [rows, cols] in host memory; blocks are random bytes with small scales. */
static h3_status random_weight(h3_weight *w, int64_t rows, int64_t cols, const form *f)
{
    const size_t row_bytes = (size_t)(cols / f->block * f->block_bytes);
    const size_t bytes = (size_t)rows * row_bytes;
    const uint16_t half = h3_f32_to_f16(small_scale);
    uint8_t *p = malloc(bytes);
    uint32_t s = 12345;

    if (!p) return h3_fail(H3_E_NOMEM, "no memory for a matrix of %zu bytes", bytes);
    for (size_t i = 0; i < bytes; i += (size_t)f->block_bytes) {
        for (int32_t k = 0; k < (f->block > 1 ? f->block_bytes : 1); k++) {
            s = s * 1664525u + 1013904223u;
            p[i + (size_t)k] = (uint8_t)(s >> 24);
        }
        for (int k = 0; k < 2; k++)
            if (f->half_at[k] >= 0) memcpy(p + i + f->half_at[k], &half, sizeof half);
        const float v = (float)(int32_t)s * 0x1p-36f;
        if (f->encoding == H3_ENC_F32) memcpy(p + i, &v, sizeof v);
        const uint16_t b = h3_f32_to_bf16(v);
        if (f->encoding == H3_ENC_BF16) memcpy(p + i, &b, sizeof b);
    }
    *w = (h3_weight){.name = "bench", .rows = rows, .cols = cols, .n_parts = 1};
    w->part[0] = (h3_weight_part){.data = p,
                                  .rows = rows,
                                  .cols = cols,
                                  .row_bytes = row_bytes,
                                  .bytes = bytes,
                                  .encoding = f->encoding,
                                  .ggml_type = f->ggml_type,
                                  .full_rows = rows,
                                  .global = f->encoding == H3_ENC_INT8 ? small_scale : 1};
    return H3_OK;
}

static h3_status random_tensor(bench *b, h3_tensor *t, h3_dtype dtype, int rank, const int64_t *ne)
{
    void *host;
    h3_status st;

    H3_TRY(h3_dev_alloc(b->e->dev, t, dtype, rank, ne));
    const int64_t n = h3_numel(*t);
    host = malloc((size_t)n * h3_dtype_bytes(dtype));
    if (!host) return h3_fail(H3_E_NOMEM, "no memory for a benchmark");
    for (int64_t i = 0; i < n; i++) {
        const float v = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-15f - 1.0f;
        if (dtype == H3_BF16)
            ((uint16_t *)host)[i] = h3_f32_to_bf16(v);
        else
            ((float *)host)[i] = v;
    }
    st = h3_dev_upload(b->e->dev, *t, host);
    free(host);
    return st;
}

/* Adds to the last result how far y is from the product in f32: rms of the difference over rms, on
 * the first rows. CPU only: the tensors are read in place. */
static h3_status report_error(bench *b, const h3_weight *w, h3_tensor x, h3_tensor y)
{
    const h3_dev_opts exact = {.n_threads = b->e->dev->n_threads, .math = "f32"};
    const int64_t rows = x.ne[0] < 32 ? x.ne[0] : 32, ne[2] = {rows, w->rows};
    h3_tensor right = {0};
    h3_dev *d = NULL;
    double sum = 0, off = 0;
    h3_status st = h3_dev_open(&d, "cpu", &exact);

    if (st == H3_OK) st = h3_dev_alloc(d, &right, H3_F32, 2, ne);
    if (st == H3_OK) d->whole_rows = x.ne[0]; // the same way through the product
    if (st == H3_OK) st = d->ops->gemm(d, right, h3_slice(x, 0, 0, rows), w, H3_ACT_NONE);
    for (int64_t i = 0; st == H3_OK && i < rows * w->rows; i++) {
        const double v = (double)((const float *)right.data)[i];
        const double got = y.dtype == H3_F32
                               ? (double)((const float *)y.data)[i]
                               : (double)h3_bf16_to_f32(((const uint16_t *)y.data)[i]);
        sum += v * v;
        off += (got - v) * (got - v);
    }
    if (st == H3_OK)
        json_object_set_new(json_array_get(b->list, json_array_size(b->list) - 1), "rms_error",
                            json_real(sum > 0 ? sqrt(off / sum) : 0.0));
    if (d) h3_dev_free(d, &right);
    h3_dev_close(&d);
    return st;
}

/* One product that can be timed again and again. */
typedef struct product {
    const char *name;
    const form *f;
    int64_t rows, n, k;
    h3_tensor x, y;
    h3_store *store;
    h3_weight w;
    double best;
} product;

static h3_status product_open(bench *b, product *p)
{
    h3_dev *d = b->e->dev;
    const h3_dtype act = (h3_dtype)b->e->act;

    p->best = 1e30;
    H3_TRY(random_weight(&p->w, p->n, p->k, p->f));
    H3_TRY(random_tensor(b, &p->x, act, 2, (const int64_t[]){p->rows, p->k}));
    H3_TRY(h3_dev_alloc(d, &p->y, act, 2, (const int64_t[]){p->rows, p->n}));
    H3_TRY(h3_store_create(&p->store, d));
    H3_TRY(h3_store_add(p->store, 0, &p->w));
    return h3_store_acquire(p->store, 0);
}

static h3_status product_time(bench *b, product *p)
{
    h3_dev *d = b->e->dev;
    const double t0 = h3_now();

    H3_TRY(d->ops->gemm(d, p->y, p->x, &p->w, H3_ACT_NONE));
    H3_TRY(h3_dev_sync(d));
    p->best = least(p->best, h3_now() - t0);
    return H3_OK;
}

static h3_status product_report(bench *b, product *p)
{
    const double gflop = 2.0 * (double)p->rows * (double)p->n * (double)p->k * 1e-9;

    if (gflop / p->best > b->limit) b->limit = gflop / p->best;
    report(b, p->name, p->rows, 0, p->best, gflop);
    if (b->e->dev->mem != H3_HOST || p->f->encoding <= H3_ENC_F16) return H3_OK;
    return report_error(b, &p->w, p->x, p->y);
}

static void product_close(bench *b, product *p)
{
    h3_dev *d = b->e->dev;

    h3_store_free(&p->store);
    h3_dev_weight_free(d, &p->w);
    h3_dev_free(d, &p->x);
    h3_dev_free(d, &p->y);
    free((void *)(uintptr_t)p->w.part[0].data);
}

static h3_status bench_gemm(bench *b, const char *name, int64_t rows, int64_t n, int64_t k,
                            const form *f)
{
    product p = {.name = name, .f = f, .rows = rows, .n = n, .k = k};
    h3_status st = product_open(b, &p);

    for (int i = 0; st == H3_OK && i < b->o->repeat + 1; i++) { // the first one packs
        h3_dev_counters_reset(b->e->dev);
        if (i == 1) p.best = 1e30;
        st = product_time(b, &p);
    }
    if (st == H3_OK) st = product_report(b, &p);
    product_close(b, &p);
    return st;
}

static h3_status bench_attention(bench *b, int64_t rows, int64_t heads, int64_t head_dim)
{
    h3_dev *d = b->e->dev;
    const h3_dtype act = (h3_dtype)b->e->act;
    const int32_t cu[2] = {0, (int32_t)rows};
    h3_tensor q = {0}, o = {0};
    double best = 1e30;
    h3_status st = random_tensor(b, &q, act, 3, (const int64_t[]){rows, 3 * heads, head_dim});

    if (st == H3_OK) st = h3_dev_alloc(d, &o, act, 3, (const int64_t[]){rows, heads, head_dim});
    for (int i = 0; st == H3_OK && i < b->o->repeat + 1; i++) { // the first one touches memory
        h3_dev_counters_reset(d);
        const double t0 = h3_now();
        st = d->ops->attention(d, o, h3_slice(q, 1, 0, heads), h3_slice(q, 1, heads, heads),
                               h3_slice(q, 1, 2 * heads, heads), 0.0883883f, cu, 1, false);
        if (st == H3_OK) st = h3_dev_sync(d);
        if (i > 0) best = least(best, h3_now() - t0);
    }
    if (st == H3_OK)
        report(b, "attention", rows, 0, best,
               4.0 * (double)rows * (double)rows * (double)(heads * head_dim) * 1e-9);
    h3_dev_free(d, &q);
    h3_dev_free(d, &o);
    return st;
}

static h3_status bench_ops(bench *b, const int64_t *rows, int n_rows)
{
    const int64_t c = b->o->is_tiny ? 96 : 5376, heads = b->o->is_tiny ? 4 : 56,
                  d = b->o->is_tiny ? 32 : 128;
    const int64_t f = b->o->is_tiny ? 72 : 14336;

    for (int i = 0; i < n_rows; i++) {
        H3_TRY(bench_gemm(b, "gemm f32 weights", rows[i], heads * d, c, form_of("f32")));
        H3_TRY(bench_gemm(b, "gemm qkv bf16 weights", rows[i], 3 * heads * d, c, form_of("bf16")));
        H3_TRY(bench_gemm(b, "gemm fc2 bf16 weights", rows[i], c, f, form_of("bf16")));
        H3_TRY(bench_attention(b, rows[i], heads, d));
    }
    return bench_gemm(b, "gemm adaln 4 rows", 4, 18 * c, b->o->is_tiny ? 12 : 2688,
                      form_of("bf16"));
}

/* One product of the block with weights of every form, in turn, so that a busy machine disturbs all
 * of them alike; a GPU holds one at a time. */
static h3_status bench_forms(bench *b, const int64_t *rows, int n_rows)
{
    enum { N = sizeof forms / sizeof *forms };
    const int64_t c = b->o->is_tiny ? 256 : 5376, n = b->o->is_tiny ? 96 : 7168;
    char names[N][32];
    product p[N];
    h3_status st = H3_OK;

    for (int k = 0; k < N; k++)
        snprintf(names[k], sizeof names[k], "gemm %s", forms[k].name);
    for (int i = 0; i < n_rows && st == H3_OK; i++) {
        if (b->e->dev->mem != H3_HOST) {
            for (int k = 0; k < N && st == H3_OK; k++)
                st = bench_gemm(b, names[k], rows[i], n, c, &forms[k]);
            continue;
        }
        memset(p, 0, sizeof p);
        for (int k = 0; k < N && st == H3_OK; k++) {
            p[k] = (product){.name = names[k], .f = &forms[k], .rows = rows[i], .n = n, .k = c};
            st = product_open(b, &p[k]);
        }
        for (int t = 0; t < b->o->repeat + 1; t++)
            for (int k = 0; k < N && st == H3_OK; k++) {
                if (t == 1) p[k].best = 1e30;
                h3_dev_counters_reset(b->e->dev);
                st = product_time(b, &p[k]);
            }
        h3_dev_counters_reset(b->e->dev); // they would be the last form's
        for (int k = 0; k < N; k++) {
            if (st == H3_OK) st = product_report(b, &p[k]);
            product_close(b, &p[k]);
        }
    }
    return st;
}

/* ------------------------------------------------------------------------------------- stages */

/* The checkpoint again, with its matrices in Q8_0. */
static h3_status reform(bench *b, h3_checkpoint **ck, h3_role role)
{
    const h3_convert_opts o = {.form = H3_CONVERT_Q8_0};
    char path[96];
    h3_status st;

    snprintf(path, sizeof path, "%s/%d.gguf", b->dir, (int)role);
    st = h3_convert(*ck, path, &o);
    h3_ckpt_close(ck);
    if (st == H3_OK) st = h3_ckpt_open(ck, path, role, &b->e->ckpt);
    unlink(path);
    return st;
}

/* A temporary checkpoint, opened; its file is removed at once (the map keeps the bytes). Rank 0
 * writes it for all, so that they map the same pages: b->dir is on a disk they share. */
static h3_status synthetic(bench *b, h3_checkpoint **ck, h3_role role, int layers)
{
    const h3_synth_opts o = {.layers = layers, .is_tiny = b->o->is_tiny, .seed = 1};
    const bool is_writer = h3_comm_rank(b->e->comm) == 0;
    char path[96];
    h3_status st = H3_OK;

    snprintf(path, sizeof path, "%s/%d.safetensors", b->dir, (int)role);
    if (is_writer) st = h3_synth_write(path, role, &o);
    if (st == H3_OK) st = h3_comm_barrier(b->e->comm);
    if (st == H3_OK) st = h3_ckpt_open(ck, path, role, &b->e->ckpt);
    if (st == H3_OK && b->o->form) st = reform(b, ck, role);
    if (st == H3_OK) st = h3_comm_barrier(b->e->comm);
    if (is_writer) unlink(path);
    return st;
}

/* A text-to-video layout of `rows` packed rows: a square latent, two channels of sound, and text
 * for what is left (about 128 rows). */
static h3_status layout_of(h3_layout **out, h3_latent_shape *z, int64_t *n_audio, int64_t rows)
{
    int64_t n_text = rows > 512 ? 128 : 16, side = 4;
    int32_t *tags;
    h3_status st;

    z->t = 7;
    *n_audio = 37;
    while ((side + 2) / 2 * ((side + 2) / 2) * z->t + n_text + 2 * *n_audio <= rows)
        side += 2;
    z->h = side;
    z->w = side;
    const int64_t left = rows - side / 2 * (side / 2) * z->t - 2 * *n_audio;
    if (left > n_text) n_text = left;
    tags = malloc((size_t)n_text * sizeof *tags);
    if (!tags) return h3_fail(H3_E_NOMEM, "no memory for a layout");
    for (int64_t i = 0; i < n_text; i++)
        tags[i] = H3_TAG_TEXT;
    const h3_layout_in in = {
        .text_tags = tags, .n_text = n_text, .t = z->t, .h = z->h, .w = z->w, .n_audio = *n_audio};
    st = h3_layout_create(out, &in);
    free(tags);
    return st;
}

typedef struct step_clock {
    double best, exchange; // seconds of the fastest step, and those it spent between ranks
    uint64_t sent;         // bytes this rank sent in it
    h3_comm *comm;
    double comm_seconds; // until now
    uint64_t comm_sent;
} step_clock;

static h3_status clock_step(void *user, const h3_sampler_step *s)
{
    step_clock *c = user;
    const double seconds = c->comm ? c->comm->seconds : 0;
    const uint64_t sent = c->comm ? c->comm->sent_bytes : 0;

    if ((s->step > 0 || s->n_steps == 1) && s->seconds < c->best) { // the first one packs weights
        c->best = s->seconds;
        c->exchange = seconds - c->comm_seconds;
        c->sent = sent - c->comm_sent;
    }
    c->comm_seconds = seconds;
    c->comm_sent = sent;
    return H3_OK;
}

/* Added to the last result. */
static void report_exchange(bench *b, const step_clock *c)
{
    json_t *o = json_array_get(b->list, json_array_size(b->list) - 1);

    if (!c->comm) return;
    json_object_set_new(o, "exchange_seconds", json_real(c->exchange));
    json_object_set_new(o, "exchange_step_seconds", json_real(c->best));
    json_object_set_new(o, "exchange_bytes", json_integer((json_int_t)c->sent));
}

static h3_status bench_dit_rows(bench *b, const h3_dit *m, int layers, int64_t rows)
{
    h3_schedule sv = {0}, sa = {0};
    h3_layout *l = NULL;
    h3_latent_shape z;
    int64_t n_audio;
    step_clock clk = {.best = 1e30, .comm = b->e->comm};
    float *v = NULL, *a = NULL, *text = NULL;
    h3_status st = layout_of(&l, &z, &n_audio, rows);

    if (st == H3_OK) st = h3_schedule_init(&sv, b->o->repeat + 1, H3_VIDEO_SHIFT);
    if (st == H3_OK) st = h3_schedule_init(&sa, b->o->repeat + 1, H3_AUDIO_SHIFT);
    if (st != H3_OK) goto done;
    v = calloc((size_t)l->n_video * 96, sizeof *v);
    a = calloc((size_t)l->n_audio * 32, sizeof *a);
    text = calloc((size_t)(l->n_text * m->dims.text_dim), sizeof *text);
    if (!v || !a || !text) {
        st = h3_fail(H3_E_NOMEM, "no memory for a benchmark");
        goto done;
    }
    for (int64_t i = 0; i < l->n_text * m->dims.text_dim; i++)
        text[i] = (float)(i % 17 - 8) * 0.1f;
    for (int64_t i = 0; i < l->n_video * 96; i++)
        v[i] = (float)(i % 13 - 6) * 0.2f;
    const h3_sampler_in in = {.layout = l,
                              .video = &sv,
                              .audio = &sa,
                              .prompt_embeds =
                                  h3_tensor_2d(text, H3_F32, l->n_text, m->dims.text_dim),
                              .act = b->e->act,
                              .video_rows = v,
                              .audio_rows = a,
                              .after_step = clock_step,
                              .user = &clk};
    /* Clocks around every operation make a GPU wait for each: there the step is timed as a whole,
     * and a second run fills the table. */
    const bool is_twice = b->e->dev->is_timing && b->e->dev->mem == H3_DEVICE;
    b->e->dev->is_timing = b->e->dev->is_timing && !is_twice;
    h3_dev_counters_reset(b->e->dev);
    st = h3_sampler_run(v, a, m, &in);
    const double best = clk.best;
    if (st == H3_OK && is_twice) {
        b->e->dev->is_timing = true;
        h3_dev_counters_reset(b->e->dev);
        clk.best = 1e30;
        st = h3_sampler_run(v, a, m, &in);
    }
    if (st == H3_OK) {
        report(b, "dit step", l->n_rows, layers, best, total_gflop(b) / (double)sv.n_steps);
        report_exchange(b, &clk);
    }

done:
    free(v);
    free(a);
    free(text);
    h3_layout_free(&l);
    h3_schedule_free(&sv);
    h3_schedule_free(&sa);
    return st;
}

static h3_status bench_dit(bench *b, const int64_t *rows, int n_rows)
{
    const int layers = b->o->layers ? b->o->layers : 1;
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    h3_status st = synthetic(b, &ck, H3_ROLE_DIT, layers);

    if (st == H3_OK) st = h3_dit_open(&m, ck, b->e->dev);
    for (int i = 0; st == H3_OK && i < n_rows; i++)
        st = bench_dit_rows(b, m, layers, rows[i]);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    return st;
}

static h3_status bench_encoder(bench *b)
{
    static const int64_t lengths[] = {64, 256};
    const int layers = b->o->layers ? b->o->layers : 1;
    const h3_encoder_opts opts = {.act = (h3_dtype)b->e->act};
    h3_checkpoint *ck = NULL;
    h3_encoder *enc = NULL;
    h3_status st;

    if (b->o->is_tiny) return H3_OK; // the conditioner has no reduced form without a configuration
    st = synthetic(b, &ck, H3_ROLE_TEXT_ENCODER, layers);
    if (st == H3_OK) st = h3_encoder_open(&enc, ck, b->e->dev, &opts);
    for (int k = 0; st == H3_OK && k < 2; k++) {
        const int64_t n = lengths[k], ne[2] = {n, h3_encoder_width(enc)};
        int32_t ids[256], pos[3 * 256];
        h3_tensor out = {0};
        double best = 1e30;
        size_t bytes = 0;
        for (int64_t i = 0; i < n; i++)
            ids[i] = (int32_t)(i * 37 % 4096), pos[i] = pos[n + i] = pos[2 * n + i] = (int32_t)i;
        const h3_encoder_in in = {.n_rows = n, .ids = ids, .positions = pos};
        st = h3_encoder_scratch_bytes(enc, &in, &bytes);
        if (st == H3_OK) st = h3_dev_scratch(b->e->dev, bytes);
        if (st == H3_OK) st = h3_dev_alloc(b->e->dev, &out, opts.act, 2, ne);
        for (int i = 0; st == H3_OK && i < b->o->repeat + 1; i++) {
            h3_dev_counters_reset(b->e->dev);
            const double t0 = h3_now();
            st = h3_encoder_run(enc, &in, out);
            if (i > 0) best = least(best, h3_now() - t0);
        }
        if (st == H3_OK) report(b, "encoder", n, layers, best, total_gflop(b));
        h3_dev_free(b->e->dev, &out);
    }
    h3_encoder_close(&enc);
    h3_ckpt_close(&ck);
    return st;
}

static h3_status drop_frames(void *user, int64_t first, h3_tensor frames)
{
    (void)user;
    (void)first;
    (void)frames;
    return H3_OK;
}

static h3_status bench_vae(bench *b)
{
    const int64_t ne[4] = {24, 7, 16, 16};
    const int layers = b->o->layers ? b->o->layers : 1;
    h3_video_decode_opts opts = {.act = H3_F32};
    h3_checkpoint *ck = NULL;
    h3_video_vae *v = NULL;
    float *z = NULL;
    double best = 1e30;
    size_t bytes = 0;
    h3_status st;

    if (b->o->is_tiny) return H3_OK;
    st = synthetic(b, &ck, H3_ROLE_VIDEO_VAE, layers);
    if (st == H3_OK) st = h3_video_vae_open(&v, b->e->dev, ck, H3_VIDEO_VAE_DECODER);
    if (st == H3_OK && !(z = calloc(24 * 7 * 16 * 16, sizeof *z)))
        st = h3_fail(H3_E_NOMEM, "no memory for a benchmark");
    if (st == H3_OK) opts = h3_engine_decode_opts(b->e, b->e->dev, v, ne[1], ne[2], ne[3]);
    if (st == H3_OK)
        st = h3_video_vae_decode_bytes(b->e->dev, v, ne[1], ne[2], ne[3], &opts, &bytes);
    if (st == H3_OK) st = h3_dev_scratch(b->e->dev, bytes);
    for (int i = 0; st == H3_OK && i < b->o->repeat + 1; i++) { // the first one touches memory
        h3_dev_counters_reset(b->e->dev);
        const double t0 = h3_now();
        st = h3_video_vae_decode(b->e->dev, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, drop_frames,
                                 NULL);
        if (i > 0) best = least(best, h3_now() - t0);
    }
    if (st == H3_OK) report(b, "video vae tile", 1797, layers, best, total_gflop(b));
    free(z);
    h3_video_vae_close(&v);
    h3_ckpt_close(&ck);
    return st;
}

static h3_status bench_audio(bench *b)
{
    enum { LATENTS = 40 }; // one second
    h3_checkpoint *ck = NULL;
    h3_audio_vae *v = NULL;
    float *z = NULL, *pcm = NULL;
    double best = 1e30;
    h3_status st;

    if (b->o->is_tiny) return H3_OK;
    st = synthetic(b, &ck, H3_ROLE_AUDIO_VAE, 0);
    if (st == H3_OK) st = h3_audio_vae_open(&v, b->e->dev, ck, H3_AUDIO_VAE_DECODER);
    z = calloc(2 * 32 * LATENTS, sizeof *z);
    pcm = malloc(2 * 800 * LATENTS * sizeof *pcm);
    if (st == H3_OK && (!z || !pcm)) st = h3_fail(H3_E_NOMEM, "no memory for a benchmark");
    for (int i = 0; st == H3_OK && i < b->o->repeat + 1; i++) { // the first one touches memory
        h3_dev_counters_reset(b->e->dev);
        const double t0 = h3_now();
        st = h3_audio_vae_decode(b->e->dev, v, h3_tensor_3d(z, H3_F32, 2, 32, LATENTS), NULL, pcm);
        if (i > 0) best = least(best, h3_now() - t0);
    }
    if (st == H3_OK) report(b, "sound, 1 s stereo", LATENTS, 0, best, total_gflop(b));
    free(z);
    free(pcm);
    h3_audio_vae_close(&v);
    h3_ckpt_close(&ck);
    return st;
}

static h3_status run_parts(bench *b)
{
    static const int64_t real_rows[] = {512, 2048}, tiny_rows[] = {128};
    const int64_t *rows = b->o->rows ? b->o->rows : b->o->is_tiny ? tiny_rows : real_rows;
    const int n_rows = b->o->rows ? b->o->n_rows : b->o->is_tiny ? 1 : 2;
    const char *what = b->o->what ? b->o->what : "all";
    const bool is_all = strcmp(what, "all") == 0;

    if (is_all || strcmp(what, "ops") == 0) H3_TRY(bench_ops(b, rows, n_rows));
    if (is_all || strcmp(what, "forms") == 0) H3_TRY(bench_forms(b, rows, n_rows));
    if (is_all || strcmp(what, "dit") == 0) H3_TRY(bench_dit(b, rows, n_rows));
    if (is_all || strcmp(what, "encoder") == 0) H3_TRY(bench_encoder(b));
    if (is_all || strcmp(what, "vae") == 0) H3_TRY(bench_vae(b));
    if (is_all || strcmp(what, "audio") == 0) H3_TRY(bench_audio(b));
    return H3_OK;
}

static bool is_part(const char *what)
{
    static const char *const parts[] = {"all", "ops", "forms", "dit", "encoder", "vae", "audio"};

    for (size_t i = 0; what && i < sizeof parts / sizeof *parts; i++)
        if (strcmp(what, parts[i]) == 0) return true;
    return !what;
}

h3_status h3_bench(h3_engine *e, const h3_bench_opts *opts, char **json)
{
    h3_bench_opts o = opts ? *opts : (h3_bench_opts){.what = NULL};
    bench b = {.e = e, .o = &o};
    const char *tmp = getenv("TMPDIR");
    h3_status st;
    json_t *root;

    if (!json) return h3_fail(H3_E_ARG, "bench: no place for the report given");
    *json = NULL;
    H3_TRY(h3_engine_can_run(e));
    if (o.form && (strcmp(o.form, "q8_0") != 0 || h3_comm_size(e->comm) > 1))
        return h3_fail(H3_E_ARG, "form %s: a benchmark on one rank knows q8_0", o.form);
    if (!is_part(o.what))
        return h3_fail(H3_E_ARG,
                       "bench of %s: expected all, ops, forms, dit, encoder, vae or audio", o.what);
    b.list = json_array();
    if (o.repeat < 1) o.repeat = 1;
    snprintf(b.dir, sizeof b.dir, "%.40s/h3av-bench-XXXXXX", tmp ? tmp : "/tmp");
    st = H3_OK;
    if (h3_comm_rank(e->comm) == 0 && !mkdtemp(b.dir))
        st = h3_fail(H3_E_IO, "%s: cannot make a temporary folder", b.dir);
    if (st == H3_OK) st = h3_comm_broadcast(e->comm, NULL, b.dir, sizeof b.dir, 0);
    if (st == H3_OK) st = run_parts(&b);
    st = h3_comm_agree(e->comm, st);
    if (h3_comm_rank(e->comm) == 0) rmdir(b.dir);
    root = json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:f, s:I, s:o}", "program", "h3av " H3_VERSION,
                     "device", e->dev->name, "detail", e->dev->detail, "threads", e->dev->n_threads,
                     "ranks", h3_comm_size(e->comm), "ranks_by", e->comm ? e->comm->name : "",
                     "product_gflops", b.limit, "peak_rss", (json_int_t)h3_peak_rss(), "results",
                     b.list);
    if (st == H3_OK) *json = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    if (st == H3_OK && !*json) st = h3_fail(H3_E_NOMEM, "no memory for the report");
    return st;
}
