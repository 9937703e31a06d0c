/**
 * What streaming costs on a CUDA device: denoising steps of the released shape with all weights on
 * the device, and again under a cap of device memory, where the store keeps what fits and the rest
 * passes through its ring. Random weights, no files; every block has its own place on the device
 * (and its own pinned copy), but all are filled from one, so that the host needs the memory of one.
 *
 *   h3av-gpu-stream [--rows N] [--layers L] [--repeat R] [--case FORMAT:VRAM:SOURCE,...]
 *
 *   FORMAT  bf16, fp8 or q4_k
 *   VRAM    GiB that the whole process may take on the device
 *   SOURCE  pinned, map (no pinned copies: chunks through two pinned buffers), or some GiB of
 * pinned memory
 *
 * One JSON object a line: `ratio` is the time of a step over that of the resident run before it,
 * and `same_bits` says whether the velocities are bit for bit those.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"
#include "dit.h"
#include "gpu_common.h"
#include "half.h"

#ifdef H3_BENCH_TINY // to see that the program runs, on the emulated device
enum { C = 256, HEADS = 8, HEAD = 32, FFN = 256, N_TEXT = 16, N_AUDIO = 40 };
#else
enum { C = 5376, HEADS = 56, HEAD = 128, FFN = 14336, N_TEXT = 128, N_AUDIO = 240 };
#endif
enum { INNER = HEADS * HEAD, MATRICES = 4 };

typedef enum format { BF16, FP8, Q4_K } format;
static const char *const format_names[] = {"bf16", "fp8", "q4_k"};

static h3_dev *d;
static int64_t n_rows = 14972;
static int layers = 50, repeat = 3;

/* Device memory that is not free: this process's, when it is alone. */
static double device_gib(void)
{
    size_t n_free = 0, n_total = 0;

    MUST(d->memory(d, &n_free, &n_total));
    return (double)(n_total - n_free) / 1073741824;
}

static uint32_t next(void)
{
    static uint32_t s = 1;
    s ^= s << 13;
    s ^= s >> 17;
    s ^= s << 5;
    return s;
}

/* Uniform in [-scale, scale], from a pool of numbers repeated. */
static h3_tensor random_tensor(h3_dtype t, float scale, int rank, const int64_t *ne)
{
    enum { POOL = 1 << 16 };
    const size_t size = h3_dtype_bytes(t);
    h3_tensor x;

    MUST(h3_dev_alloc(d, &x, t, rank, ne));
    const int64_t n = h3_numel(x);
    unsigned char *host = malloc((size_t)(n + POOL) * size);
    for (int64_t i = 0; i < POOL; i++) {
        const float v = (float)(int32_t)next() * 0x1p-31f * scale;
        if (t == H3_F32)
            ((float *)(void *)host)[i] = v;
        else
            ((uint16_t *)(void *)host)[i] = h3_f32_to_bf16(v);
    }
    for (int64_t i = POOL; i < n; i += POOL - 64) // not a power of two: no two rows alike
        memcpy(host + (size_t)i * size, host, (size_t)(POOL - 64) * size);
    MUST(h3_dev_upload(d, x, host));
    MUST(h3_dev_sync(d));
    free(host);
    return x;
}

/* ---------------------------------------------------------------- weights in host memory */

static size_t row_bytes(format f, int64_t cols)
{
    return f == BF16 ? (size_t)cols * 2 : f == FP8 ? (size_t)cols : (size_t)cols / 256 * 144;
}

static void fill_row(unsigned char *row, format f, int64_t cols)
{
    const size_t n = row_bytes(f, cols);

    for (size_t i = 0; i + 4 <= n; i += 4) {
        const uint32_t v = next();
        memcpy(row + i, &v, 4);
    }
    for (int64_t i = 0; f == BF16 && i < cols; i++)
        ((uint16_t *)(void *)row)[i] = h3_f32_to_bf16((float)(int32_t)next() * 0x1p-31f * 0.02f);
    for (size_t i = 0; f == FP8 && i < n; i++)
        if ((row[i] & 0x7f) == 0x7f) row[i] = 0; // no NaN
    for (size_t b = 0; f == Q4_K && b < n; b += 144) {
        const uint16_t tame[2] = {h3_f32_to_f16(6e-5f), h3_f32_to_f16(4e-4f)};
        memcpy(row + b, tame, sizeof tame);
    }
}

/* [rows, cols] of one random band of rows, repeated. */
static h3_weight host_weight(format f, int64_t rows, int64_t cols)
{
    enum { BAND = 64 };
    const size_t each = row_bytes(f, cols), bytes = each * (size_t)rows;
    unsigned char *p = malloc(bytes);
    h3_weight w = {.name = "bench", .rows = rows, .cols = cols, .n_parts = 1};

    for (int64_t r = 0; r < rows; r++) {
        if (r < BAND)
            fill_row(p + each * (size_t)r, f, cols);
        else
            memcpy(p + each * (size_t)r, p + each * (size_t)(r % (BAND - 1)), each);
    }
    w.part[0] = (h3_weight_part){.data = p,
                                 .rows = rows,
                                 .cols = cols,
                                 .full_rows = rows,
                                 .row_bytes = each,
                                 .bytes = bytes,
                                 .encoding = f == BF16  ? H3_ENC_BF16
                                             : f == FP8 ? H3_ENC_FP8_SCALED
                                                        : H3_ENC_GGML,
                                 .ggml_type = 12,
                                 .n_scale = f == FP8 ? 1 : 0,
                                 .global = f == FP8 ? 1e-4f : 1};
    return w;
}

static h3_weight edge_weight(int64_t rows, int64_t cols)
{
    const h3_tensor x = random_tensor(H3_F32, 0.02f, NE(rows, cols));
    h3_weight w = {.name = "edge", .rows = rows, .cols = cols, .n_parts = 1};

    w.part[0] = (h3_weight_part){.dev = x.data,
                                 .rows = rows,
                                 .cols = cols,
                                 .full_rows = rows,
                                 .row_bytes = (size_t)cols * 4,
                                 .bytes = (size_t)(rows * cols) * 4,
                                 .encoding = H3_ENC_F32,
                                 .global = 1};
    return w;
}

static h3_dit *make_dit(void)
{
    h3_dit *m = calloc(1, sizeof *m);
    const h3_dit_block b = {.norm1 = random_tensor(H3_F32, 1, NE(C)),
                            .norm2 = random_tensor(H3_F32, 1, NE(C)),
                            .q_norm = random_tensor(H3_F32, 1, NE(HEAD)),
                            .k_norm = random_tensor(H3_F32, 1, NE(HEAD))};

    m->dev = d;
    m->dims = (h3_dit_dims){.hidden = C,
                            .n_heads = HEADS,
                            .head_dim = HEAD,
                            .inner = INNER,
                            .ffn = FFN,
                            .n_layers = layers,
                            .video_cols = 96,
                            .audio_cols = 32,
                            .rope_freqs = HEAD / 8};
    m->norm_eps = m->qk_norm_eps = m->final_norm_eps = 1e-5f;
    m->mlp_band = 16384;
    m->edge.video_proj = edge_weight(C, 96);
    m->edge.audio_proj = edge_weight(C, 32);
    m->edge.video_out = edge_weight(96, C);
    m->edge.audio_out = edge_weight(32, C);
    m->edge.final_norm = random_tensor(H3_F32, 1, NE(C));
    m->block = calloc((size_t)layers, sizeof *m->block);
    for (int i = 0; i < layers; i++)
        m->block[i] = b;
    return m;
}

/* ---------------------------------------------------------------- a request */

static h3_tensor indices(int64_t n, int64_t first, int64_t below)
{
    int32_t *p = malloc((size_t)n * sizeof *p);
    h3_tensor t;

    for (int64_t i = 0; i < n; i++)
        p[i] = (int32_t)(below ? i % below : first + i);
    MUST(h3_dev_alloc(d, &t, H3_I32, 1, &n));
    MUST(h3_dev_upload(d, t, p));
    MUST(h3_dev_sync(d));
    free(p);
    return t;
}

static h3_dit_state *make_state(const h3_dit *m, int64_t S)
{
    h3_dit_state *s = calloc(1, sizeof *s);
    const int64_t n_video = S - N_TEXT - N_AUDIO, L = m->dims.n_layers;

    *s = (h3_dit_state){.dev = d,
                        .act = H3_BF16,
                        .n_rows = S,
                        .n_video = n_video,
                        .n_audio = N_AUDIO,
                        .n_text = N_TEXT,
                        .n_steps = 1,
                        .n_timesteps = 4,
                        .text = random_tensor(H3_BF16, 1, NE(N_TEXT, C)),
                        .cos = random_tensor(H3_BF16, 1, NE(S, 3 * (HEAD / 8))),
                        .sin = random_tensor(H3_BF16, 1, NE(S, 3 * (HEAD / 8))),
                        .mod = random_tensor(H3_BF16, 0.1f, NE(L, 12, 6, C)),
                        .final_mod = random_tensor(H3_BF16, 0.1f, NE(4, 2, C)),
                        .text_idx = indices(N_TEXT, 0, 0),
                        .audio_idx = indices(N_AUDIO, N_TEXT, 0),
                        .video_idx = indices(n_video, N_TEXT + N_AUDIO, 0),
                        .mod_row = h3_view_2d(indices(S, 0, 12), 1, S),
                        .time_row = h3_view_2d(indices(S, 0, 4), 1, S),
                        .row = indices(S, 0, 1),
                        .time = indices(S, 0, 1),
                        .own = {.n = S},
                        .own_text = {.n = N_TEXT},
                        .own_audio = {.n = N_AUDIO},
                        .own_video = {.n = n_video},
                        .n_documents = 1};
    s->cu = calloc(2, sizeof *s->cu);
    s->cu[1] = (int32_t)S;
    return s;
}

static size_t dit_scratch(int64_t S)
{
    const int64_t band = S < 16384 ? S : 16384;
    return (size_t)(2 * S * (2 * C + 4 * INNER) + 2 * band * 3 * FFN + 4 * S * C) + (64u << 20);
}

/* ---------------------------------------------------------------- runs */

typedef struct run {
    h3_dit *m;
    h3_dit_state *s;
    h3_tensor video, audio, v_video, v_audio;
    float *result, *resident; // velocities of the video rows
    double resident_s;
} run;

static void open_store(run *r, const h3_weight w[MATRICES])
{
    h3_dit *m = r->m;

    MUST(h3_store_create(&m->store, d));
    r->s->store = m->store;
    for (int i = 0; i < layers; i++) {
        h3_dit_block *b = &m->block[i];
        h3_weight *const to[MATRICES] = {&b->qkv, &b->out, &b->fc1, &b->fc2};
        for (int k = 0; k < MATRICES; k++) {
            *to[k] = w[k];
            MUST(h3_store_add(m->store, 1 + i, to[k]));
        }
        b->qkv.interleaved = true;
    }
}

static void steps(run *r, format f, double cap, const char *source, bool is_resident)
{
    double best = 1e30, sum = 0, first = 0, most = 0;

    for (int i = 0; i < repeat + 1; i++) { // the first one brings what stays
        const double t0 = now();
        MUST(h3_dit_forward(d, r->m, r->s, 0, r->v_video, r->v_audio, r->video, r->audio));
        MUST(h3_dev_sync(d));
        const double t = now() - t0, held = device_gib();
        if (held > most) most = held;
        if (i == 0)
            first = t;
        else
            sum += t, best = t < best ? t : best;
    }
    MUST(h3_dev_download(d, is_resident ? r->resident : r->result, r->v_video));
    const size_t bytes = (size_t)h3_numel(r->v_video) * sizeof(float);
    if (is_resident) r->resident_s = sum / repeat;
    printf("{\"what\": \"stream\", \"format\": \"%s\", \"rows\": %lld, \"layers\": %d, \"mode\": "
           "\"%s\", \"cap_gib\": %.1f, \"s\": %.4f, \"best_s\": %.4f, \"first_s\": %.2f, "
           "\"ratio\": %.3f, \"device_gib\": %.2f, \"weights_gib\": %.2f, \"pinned_gib\": %.2f, "
           "\"same_bits\": %s}\n",
           format_names[f], (long long)n_rows, layers, is_resident ? "resident" : source,
           is_resident ? 0 : cap, sum / repeat, best, first, sum / repeat / r->resident_s, most,
           (double)h3_store_held(r->m->store) / 1073741824, (double)d->pinned_used / 1073741824,
           is_resident || memcmp(r->result, r->resident, bytes) == 0 ? "true" : "false");
    fflush(stdout);
}

static void bench_case(run *r, format f, double cap, const char *source)
{
    static int last = -1;
    static h3_weight w[MATRICES];
    const int64_t shape[MATRICES][2] = {{3 * INNER, C}, {C, INNER}, {2 * FFN, C}, {C, FFN}};

    if (last != (int)f) {
        for (int k = 0; k < MATRICES; k++) {
            free((void *)(uintptr_t)w[k].part[0].data);
            w[k] = host_weight(f, shape[k][0], shape[k][1]);
        }
        last = (int)f;
        d->weight_budget = 0;
        open_store(r, w);
        steps(r, f, 0, source, true);
        h3_store_free(&r->m->store);
    }
    const double left = cap - device_gib() - 0.25; // a little for what libraries take late
    d->weight_budget = left > 0 ? (size_t)(left * 1073741824) : 1;
    d->pinned_budget = strcmp(source, "pinned") == 0 ? SIZE_MAX / 2
                       : strcmp(source, "map") == 0  ? 0
                                                     : (size_t)(atof(source) * 1073741824);
    open_store(r, w);
    steps(r, f, cap, source, false);
    h3_store_free(&r->m->store);
}

int main(int argc, char **argv)
{
    const char *cases =
        "bf16:24:pinned,bf16:24:map,fp8:12:pinned,fp8:12:map,q4_k:12:pinned,q4_k:12:map";
    const h3_dev_opts opts = {0};
    run r;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rows") == 0) n_rows = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--layers") == 0) layers = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--repeat") == 0) repeat = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--case") == 0) cases = argv[i + 1];
    }
    MUST(h3_dev_open(&d, "cuda", &opts));
    printf("{\"what\": \"device\", \"detail\": \"%s\", \"gib_before\": %.2f}\n", d->detail,
           device_gib());
    fflush(stdout);
    r = (run){.m = make_dit()};
    r.s = make_state(r.m, n_rows);
    r.video = random_tensor(H3_F32, 1, NE(r.s->n_video, 96));
    r.audio = random_tensor(H3_F32, 1, NE(r.s->n_audio, 32));
    r.v_video = random_tensor(H3_F32, 1, NE(r.s->n_video, 96));
    r.v_audio = random_tensor(H3_F32, 1, NE(r.s->n_audio, 32));
    r.result = malloc((size_t)h3_numel(r.v_video) * sizeof(float));
    r.resident = malloc((size_t)h3_numel(r.v_video) * sizeof(float));
    MUST(h3_dev_scratch(d, dit_scratch(n_rows)));
    for (const char *at = cases; *at;) {
        char name[16], source[16];
        double cap;
        int n = 0;
        if (sscanf(at, "%15[^:]:%lf:%15[^,]%n", name, &cap, source, &n) != 3) break;
        for (int f = 0; f < 3; f++)
            if (strcmp(name, format_names[f]) == 0) bench_case(&r, (format)f, cap, source);
        at += n + (at[n] == ',');
    }
    h3_dev_close(&d);
    return 0;
}
