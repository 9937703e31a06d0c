/**
 * How fast a CUDA device runs the released shapes, on random numbers and without files: single
 * operations with their share of the hardware, whole denoising steps, tiles and a clip of the video
 * decoder, sound, the conditioner. One JSON object a line, to standard output.
 *
 *   h3av-gpu-bench [--math auto|fp8|tf32|f32] [--what ops,dit,vae,clip,audio,encoder,load,real]
 *                  [--rows N,N,...] [--layers L] [--tiles N,N,...] [--repeat R] [--ranks N]
 *                  [--file DIT]
 *                  [--pieces B,C:B,C:...]
 *
 * --model DIR, under fp8: how far one forward of that model's DiT is from the same in bf16, at the
 * given rows (H3_CUDA_FP8_ROWS=1 for less than 1,536).
 * With dit: --what fast, no second way for comparison; errors, under fp8, of each product.
 * --what ab, with dit: also with what is fused taken apart. --what repeats, with dit: whether
 * products and attention give the same bits again.
 * --ranks: one process a GPU; "steps" (dit without the library) and the clip's tiles are shared,
 * the rest every rank does alone.
 * --pieces: how the exchanges of steps are cut (H3_OVERLAP), one after another.
 *
 * All layers of a stack share one set of weights, which is far larger than the cache: the time of
 * fifty layers needs the memory of one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attention.h"
#include "audio_vae.h"
#include "comm.h"
#include "cuda.h"
#include "dit.h"
#include "encoder_text.h"
#include "gpu_bench.h"
#include "half.h"
#include "synth.h"
#include "video_vae_net.h"

#ifdef H3_BENCH_TINY // to see that the program runs, on the emulated device
enum { C = 96, HEADS = 4, HEAD = 32, FFN = 80, N_TEXT = 16, N_AUDIO = 24, IS_TINY = 1 };
enum { ENC_W = 64, ENC_Q = 4, ENC_K = 2, ENC_D = 16, ENC_F = 96, ENC_VOCAB = 64 };
#else
enum { C = 5376, HEADS = 56, HEAD = 128, FFN = 14336, N_TEXT = 128, N_AUDIO = 240, IS_TINY = 0 };
enum { ENC_W = 5120, ENC_Q = 64, ENC_K = 8, ENC_D = 128, ENC_F = 25600, ENC_VOCAB = 1024 };
#endif
enum { INNER = HEADS * HEAD };

typedef struct options {
    const char *math, *what, *model, *pieces, *file;
    int64_t rows[8], tiles[8];
    int n_rows, n_tiles, layers, repeat, ranks;
} options;

static h3_dev *d;
static options o = {.math = "auto",
                    .what = "ops,dit,vae,audio,encoder",
                    .rows = {3342, 14972, 39614},
                    .tiles = {1, 4, 12},
                    .n_rows = 3,
                    .n_tiles = 3,
                    .layers = 50,
                    .repeat = 3};

/* True when `word` is in --what. */
static bool has(const char *word)
{
    const char *p = o.what;
    const size_t n = strlen(word);
    for (; (p = strstr(p, word)); p += n)
        if ((p == o.what || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

/* ---------------------------------------------------------------- random tensors */

/* Uniform in [-scale, scale], from one pool of numbers repeated. */
static h3_tensor random_tensor(h3_dtype t, float scale, int rank, const int64_t *ne)
{
    enum { POOL = 1 << 22 };
    static float *pool;
    h3_tensor x;
    const size_t size = h3_dtype_bytes(t);

    MUST(h3_dev_alloc(d, &x, t, rank, ne));
    if (!pool) {
        uint32_t s = 1;
        pool = malloc(POOL * sizeof *pool);
        for (int i = 0; i < POOL; i++) {
            s = s * 1664525u + 1013904223u;
            pool[i] = (float)(int32_t)s * 0x1p-31f;
        }
    }
    unsigned char *part = malloc(POOL * size);
    for (int i = 0; i < POOL; i++) {
        if (t == H3_F32)
            ((float *)(void *)part)[i] = pool[i] * scale;
        else
            ((uint16_t *)(void *)part)[i] = h3_f32_to_bf16(pool[i] * scale);
    }
    const int64_t n = h3_numel(x);
    for (int64_t i = 0; i < n; i += POOL - 64) // not a power of two: no two rows alike
        MUST(d->upload(d, (char *)x.data + (size_t)i * size, part,
                       (size_t)(n - i < POOL - 64 ? n - i : POOL - 64) * size));
    free(part);
    return x;
}

static h3_weight random_weight(h3_dtype t, int64_t rows, int64_t cols)
{
    const h3_tensor x = random_tensor(t, 0.02f, NE(rows, cols));
    h3_weight w = {.name = "bench", .rows = rows, .cols = cols, .n_parts = 1};

    w.part[0] = (h3_weight_part){.dev = x.data,
                                 .rows = rows,
                                 .cols = cols,
                                 .full_rows = rows,
                                 .row_bytes = (size_t)cols * h3_dtype_bytes(t),
                                 .bytes = (size_t)(rows * cols) * h3_dtype_bytes(t),
                                 .encoding = t == H3_F32 ? H3_ENC_F32 : H3_ENC_BF16,
                                 .global = 1};
    return w;
}

static void free_weight(h3_weight *w)
{
    h3_dev_weight_free(d, w);
    d->dealloc(d, w->part[0].dev);
}

/* Rows of a request: text, sound, then video, each under one modulation of its own. */
static h3_tensor modulation_rows(int64_t first, int64_t n, int64_t n_audio, int per)
{
    int32_t *p = malloc((size_t)n * sizeof *p);
    h3_tensor t;

    for (int64_t i = 0; i < n; i++)
        p[i] = (first + i < N_TEXT ? 0 : first + i < N_TEXT + n_audio ? 4 : 8) / per;
    MUST(h3_dev_alloc(d, &t, H3_I32, 1, &n));
    MUST(h3_dev_upload(d, t, p));
    free(p);
    return h3_view_2d(t, 1, n);
}

static h3_tensor indices(int64_t n, int64_t first, int64_t below)
{
    int32_t *p = malloc((size_t)n * sizeof *p);
    h3_tensor t;

    for (int64_t i = 0; i < n; i++)
        p[i] = (int32_t)(below ? i % below : first + i);
    MUST(h3_dev_alloc(d, &t, H3_I32, 1, &n));
    MUST(h3_dev_upload(d, t, p));
    free(p);
    return t;
}

/* ---------------------------------------------------------------- operations */

/* Least seconds of `call` over repetitions that fill some milliseconds. */
#define TIME(best, call)                              \
    do {                                              \
        best = 1e30;                                  \
        MUST(call);                                   \
        MUST(h3_dev_sync(d));                         \
        for (int rep_ = 0; rep_ < o.repeat; rep_++) { \
            const double t0_ = now();                 \
            for (int k_ = 0; k_ < 5; k_++)            \
                MUST(call);                           \
            MUST(h3_dev_sync(d));                     \
            const double t_ = (now() - t0_) / 5;      \
            best = t_ < best ? t_ : best;             \
        }                                             \
    } while (0)

static void report_op(const char *name, int64_t rows, double s, double flop, double bytes)
{
    printf("{\"what\": \"op\", \"name\": \"%s\", \"math\": \"%s\", \"rows\": %lld, \"ms\": %.4f, "
           "\"tflops\": %.1f, \"gbs\": %.0f}\n",
           name, o.math, (long long)rows, 1e3 * s, flop / s * 1e-12, bytes / s * 1e-9);
    fflush(stdout);
}

static void time_product(const char *name, int64_t S, int64_t n, int64_t k)
{
    h3_weight w = random_weight(H3_BF16, n, k);
    h3_tensor x = random_tensor(H3_BF16, 1, NE(S, k)), y;
    const int64_t ne[2] = {S, n};
    double best;

    MUST(h3_dev_alloc(d, &y, H3_BF16, 2, ne));
    TIME(best, d->ops->gemm(d, y, x, &w, H3_ACT_NONE));
    report_op(name, S, best, 2.0 * (double)S * (double)n * (double)k,
              2.0 * (double)(S * (n + k) + n * k));
    free_weight(&w);
    h3_dev_free(d, &x);
    h3_dev_free(d, &y);
}

static void bench_ops(int64_t S)
{
    const double s = (double)S;
    double best;
    const int32_t cu[2] = {0, (int32_t)S};
    const h3_ops *op = d->ops;

    time_product("qkv", S, 3 * INNER, C);
    time_product("out", S, C, INNER);
    time_product("fc1", S, 2 * FFN, C);
    time_product("fc2", S, C, FFN);

    h3_tensor qkv = random_tensor(H3_BF16, 1, NE(S, 3 * INNER));
    h3_tensor a = random_tensor(H3_BF16, 1, NE(S, INNER));
    const h3_qkv p = h3_attention_split(qkv, HEADS, HEAD, true);
    TIME(best,
         op->attention(d, h3_view_3d(a, S, HEADS, HEAD), p.q, p.k, p.v, 0.08838835f, cu, 1, false));
    report_op("attention", S, best, 4.0 * s * s * INNER, 2.0 * s * 4 * INNER);

    const bool is_fp8 = strcmp(o.math, "fp8") == 0;
    const double to = is_fp8 ? 1 : 2; // bytes a number that a product or attention reads
    h3_tensor g = random_tensor(H3_F32, 1, NE(HEAD)),
              cos = random_tensor(H3_BF16, 1, NE(S, 3 * (HEAD / 8)));
    d->reader = &h3_reader_attention;
    TIME(best, op->qk_norm_rope(d, p.q, p.k, g, g, 1e-5f, false, cos, cos));
    d->reader = NULL;
    report_op("qk_norm_rope", S, best, 0, 2 * (2 + to) * s * INNER);
    h3_dev_free(d, &qkv);
    h3_dev_free(d, &a);

    h3_tensor x = random_tensor(H3_BF16, 1, NE(S, C)), h = random_tensor(H3_BF16, 1, NE(S, C));
    h3_tensor mod = random_tensor(H3_BF16, 0.1f, NE(12, 6, C)),
              row = h3_at(modulation_rows(0, S, 240, 1), 0);
    h3_tensor gain = random_tensor(H3_F32, 1, NE(C));
    h3_weight by_c = random_weight(H3_BF16, 64, C), by_f = random_weight(H3_BF16, 64, FFN);
    d->reader = &by_c; // rows that only a product reads, as in a block
    TIME(best, op->rms_norm_mod(d, h, x, gain, 1e-5f, mod, 0, 1, row));
    report_op("rms_norm_mod", S, best, 0, (2 + to) * s * C);
    TIME(best, op->gate_add_norm(d, h, x, h, mod, 2, gain, 1e-5f, mod, 3, 4, row));
    report_op("gate_add_norm", S, best, 0, (6 + to) * s * C);
    d->reader = NULL;
    TIME(best, op->gate_add(d, x, h, mod, 2, row));
    report_op("gate_add", S, best, 0, 6.0 * s * C);
    h3_dev_free(d, &x);
    h3_dev_free(d, &h);
    h3_tensor both = random_tensor(H3_BF16, 1, NE(S, 2 * FFN));
    h3_tensor f = random_tensor(H3_BF16, 1, NE(S, FFN));
    d->reader = &by_f;
    TIME(best, op->silu_mul(d, f, h3_slice(both, 1, 0, FFN), h3_slice(both, 1, FFN, FFN)));
    d->reader = NULL;
    report_op("silu_mul", S, best, 0, (4 + to) * s * FFN);
    free_weight(&by_c);
    free_weight(&by_f);
    h3_dev_free(d, &both);
    h3_dev_free(d, &f);
    h3_dev_free(d, &mod);
    h3_dev_free(d, &row);
    h3_dev_free(d, &gain);
    h3_dev_free(d, &g);
    h3_dev_free(d, &cos);
}

/* ---------------------------------------------------------------- a denoising step */

static h3_dit *make_dit(void)
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

/* What a backend hangs on a weight in use is shared too: every layer must see it. */
static void share_packed(h3_dit *m)
{
    for (int i = 1; i < o.layers; i++) {
        m->block[i].qkv.packed = m->block[0].qkv.packed;
        m->block[i].out.packed = m->block[0].out.packed;
        m->block[i].fc1.packed = m->block[0].fc1.packed;
        m->block[i].fc2.packed = m->block[0].fc2.packed;
    }
}

/* Under fp8: lets x wait in e4m3 for a product with w, once more. */
static void wait_again(h3_tensor x, const h3_weight *w)
{
    for (int i = 0; i < 3; i++) {
        h3_rows8 *r = &d->backend->rows8[i];
        if (r->data != x.data) continue;
        r->left = r->rows;
        r->reader = w;
    }
}

/* What the products and the attention of a block read and write in library_step. What is read was
 * made as in a block, since the numbers decide the power and so the clocks; writes go elsewhere. */
typedef struct block_io {
    h3_tensor x, qkv, a, f; ///< read
    h3_tensor packed, o, h, both;
    h3_qkv p;
} block_io;

static block_io make_io(const h3_dit *m, const h3_dit_state *state)
{
    const int64_t S = state->n_rows;
    const h3_dit_block *b = &m->block[0];
    const int32_t cu[2] = {0, (int32_t)S};
    const h3_ops *op = d->ops;
    block_io z = {.x = random_tensor(H3_BF16, 1, NE(S, C)),
                  .qkv = random_tensor(H3_BF16, 1, NE(S, 3 * INNER)),
                  .a = random_tensor(H3_BF16, 1, NE(S, INNER)),
                  .f = random_tensor(H3_BF16, 1, NE(S, FFN)),
                  .packed = random_tensor(H3_BF16, 1, NE(S, 3 * INNER)),
                  .o = random_tensor(H3_BF16, 1, NE(S, INNER)),
                  .h = random_tensor(H3_BF16, 1, NE(S, C)),
                  .both = random_tensor(H3_BF16, 1, NE(S, 2 * FFN))};

    z.p = h3_attention_split(z.qkv, HEADS, HEAD, true);
    d->reader = &b->qkv;
    MUST(op->rms_norm_mod(d, z.x, z.x, b->norm1, 1e-5f, h3_at(state->mod, 0), 0, 1, state->row));
    d->reader = NULL;
    MUST(op->gemm(d, z.qkv, z.x, &b->qkv, H3_ACT_NONE));
    wait_again(z.x, &b->fc1);
    MUST(op->gemm(d, z.both, z.x, &b->fc1, H3_ACT_NONE));
    d->reader = &b->fc2;
    MUST(op->silu_mul(d, z.f, h3_slice(z.both, 1, 0, FFN), h3_slice(z.both, 1, FFN, FFN)));
    d->reader = &h3_reader_attention;
    MUST(op->qk_norm_rope(d, z.p.q, z.p.k, b->q_norm, b->k_norm, 1e-5f, false, state->cos,
                          state->sin));
    d->reader = &b->out;
    MUST(op->attention(d, h3_view_3d(z.a, S, HEADS, HEAD), z.p.q, z.p.k, z.p.v, 0.08838835f, cu, 1,
                       false));
    d->reader = NULL;
    return z;
}

static void free_io(block_io *z)
{
    h3_tensor *const all[] = {&z->x, &z->qkv, &z->a, &z->f, &z->packed, &z->o, &z->h, &z->both};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h3_dev_free(d, all[i]);
}

/* What the libraries take for the products and the attention of a step when nothing else runs
 * between them: as long a run as the step itself, so that both have the same clocks. Under fp8 the
 * products' rows are there in e4m3, q and k too. */
static double library_step(const h3_dit *m, const h3_dit_state *state)
{
    const int64_t S = state->n_rows;
    const h3_dit_block *b = &m->block[0];
    const int32_t cu[2] = {0, (int32_t)S};
    const h3_ops *op = d->ops;
    block_io z = make_io(m, state);
    double best = 1e30;

    for (int i = 0; i < o.repeat; i++) {
        MUST(h3_dev_sync(d));
        const double t0 = now();
        for (int k = 0; k < o.layers; k++) {
            wait_again(z.x, &b->qkv);
            MUST(op->gemm(d, z.packed, z.x, &b->qkv, H3_ACT_NONE));
            if (d->backend->heads8.op) d->backend->heads8.op = d->backend->op;
            d->reader = &b->out;
            MUST(op->attention(d, h3_view_3d(z.a, S, HEADS, HEAD), z.p.q, z.p.k, z.p.v, 0.08838835f,
                               cu, 1, false));
            d->reader = NULL;
            MUST(op->gemm(d, z.h, z.a, &b->out, H3_ACT_NONE));
            wait_again(z.x, &b->fc1);
            MUST(op->gemm(d, z.both, z.x, &b->fc1, H3_ACT_NONE));
            wait_again(z.f, &b->fc2);
            MUST(op->gemm(d, z.h, z.f, &b->fc2, H3_ACT_NONE));
        }
        MUST(h3_dev_sync(d));
        const double t = now() - t0;
        best = t < best ? t : best;
    }
    free_io(&z);
    return best;
}

/* Whether operations give the same bits again: a line for each that does not. */
static uint64_t hash_of(const void *p, size_t n)
{
    uint64_t h = 1469598103934665603ull, w;

    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&w, (const unsigned char *)p + i, 8);
        h = (h ^ w) * 1099511628211ull;
    }
    return h;
}

static uint64_t bits_of(h3_tensor t)
{
    const size_t n = (size_t)h3_numel(t) * h3_dtype_bytes((h3_dtype)t.dtype);
    unsigned char *p = malloc(n);

    MUST(h3_dev_download(d, p, t));
    const uint64_t h = hash_of(p, n);
    free(p);
    return h;
}

static void report_repeats(const h3_dit *m, const h3_dit_state *state)
{
    const int64_t S = state->n_rows;
    const h3_dit_block *b = &m->block[0];
    const int32_t cu[2] = {0, (int32_t)S};
    const h3_ops *op = d->ops;
    block_io z = make_io(m, state);
    uint64_t first[5] = {0};
    int differs[5] = {0};

    for (int i = 0; i < 6; i++) {
        uint64_t now_[5];
        wait_again(z.x, &b->qkv);
        MUST(op->gemm(d, z.packed, z.x, &b->qkv, H3_ACT_NONE));
        now_[0] = bits_of(z.packed);
        if (d->backend->heads8.op) d->backend->heads8.op = d->backend->op;
        d->reader = &b->out;
        MUST(op->attention(d, h3_view_3d(z.a, S, HEADS, HEAD), z.p.q, z.p.k, z.p.v, 0.08838835f, cu,
                           1, false));
        d->reader = NULL;
        now_[1] = bits_of(h3_slice(z.a, 0, 0, S / 2));
        MUST(op->gemm(d, z.h, z.a, &b->out, H3_ACT_NONE));
        now_[2] = bits_of(z.h);
        wait_again(z.x, &b->fc1);
        MUST(op->gemm(d, z.both, z.x, &b->fc1, H3_ACT_NONE));
        now_[3] = bits_of(z.both);
        wait_again(z.f, &b->fc2);
        MUST(op->gemm(d, z.h, z.f, &b->fc2, H3_ACT_NONE));
        now_[4] = bits_of(z.h);
        for (int k = 0; k < 5; k++) {
            if (i == 0) first[k] = now_[k];
            differs[k] += now_[k] != first[k];
        }
    }
    printf("{\"what\": \"repeats\", \"math\": \"%s\", \"rows\": %lld, \"differ\": {\"qkv\": %d, "
           "\"attention\": %d, \"out\": %d, \"fc1\": %d, \"fc2\": %d}, \"of\": 5}\n",
           o.math, (long long)S, differs[0], differs[1], differs[2], differs[3], differs[4]);
    fflush(stdout);
    free_io(&z);
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

static size_t dit_scratch(int64_t S)
{
    const int64_t band = S < 16384 ? S : 16384;
    return (size_t)(2 * S * (2 * C + 4 * INNER) + 2 * band * 3 * FFN + 4 * S * C) + (64u << 20);
}

/* The same step with what is fused taken apart, to see what fusing gives on the same clocks. */
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

typedef enum variant { RECORDED, DIRECT, APART, N_VARIANTS } variant;

typedef struct step {
    h3_dit *m;
    h3_dit_state *s;
    h3_tensor v, v2, a, a2;
} step;

static step make_step(h3_dit *m, int64_t S)
{
    h3_dit_state *s = make_state(m, S);

    return (step){.m = m,
                  .s = s,
                  .v = random_tensor(H3_F32, 1, NE(s->n_video, 96)),
                  .v2 = random_tensor(H3_F32, 1, NE(s->n_video, 96)),
                  .a = random_tensor(H3_F32, 1, NE(s->n_audio, 32)),
                  .a2 = random_tensor(H3_F32, 1, NE(s->n_audio, 32))};
}

static void free_step(const step *k)
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

static double run_step(const step *k, variant how)
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

static void report_calls(const step *k, double first)
{
    const uint64_t before = d->backend->counts[H3_CUDA_N_LAUNCHES];
    uint64_t calls = 0;
    double flop = 0, t0;

    h3_dev_counters_reset(d);
    t0 = now();
    MUST(h3_dit_forward(d, k->m, k->s, 0, k->v2, k->a2, k->v, k->a));
    const double enqueued = now() - t0;
    MUST(h3_dev_sync(d));
    for (int i = 0; i < H3_OP_COUNT; i++) {
        calls += d->stat[i].calls;
        flop += d->stat[i].flops;
    }
    printf("{\"what\": \"dit_calls\", \"rows\": %lld, \"operations\": %llu, \"own_kernels\": %llu, "
           "\"launches\": %llu, \"not_recorded\": \"%s\", \"tflop\": %.2f, \"enqueue_s\": %.4f, "
           "\"first_layer_s\": %.2f}\n",
           (long long)k->s->n_rows, (unsigned long long)calls,
           (unsigned long long)(d->backend->counts[H3_CUDA_N_LAUNCHES] - before),
           (unsigned long long)d->backend->counts[H3_CUDA_N_NODES],
           d->unrecorded ? d->unrecorded : "", flop * 1e-12, enqueued, first);
}

/* Velocities of the way the last step went, as the host sees them. */
static float *velocities(const step *k)
{
    float *p = malloc((size_t)h3_numel(k->v2) * sizeof *p);

    MUST(h3_dev_download(d, p, k->v2));
    return p;
}

/* Root of the mean square of the difference, relative to that of `want`. */
static double distance(const float *want, const float *got, int64_t n)
{
    double e = 0, w = 0;

    for (int64_t i = 0; i < n; i++) {
        e += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        w += (double)want[i] * (double)want[i];
    }
    return sqrt(e / w);
}

/* The velocities of a step under another math. */
static float *velocities_under(const step *k, h3_cuda_math math)
{
    const h3_cuda_math before = d->backend->math;

    d->backend->math = math;
    (void)run_step(k, DIRECT);
    d->backend->math = before;
    return velocities(k);
}

/* A device tensor as floats. */
static float *floats_of(h3_tensor t)
{
    const int64_t n = h3_numel(t);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    float *p = malloc((size_t)n * sizeof *p);

    MUST(h3_dev_download(d, half, t));
    for (int64_t i = 0; i < n; i++)
        p[i] = h3_bf16_to_f32(half[i]);
    free(half);
    return p;
}

/* Under fp8: how far each product of a block, and its attention, are from bf16 on the same input.
 */
static void report_op_errors(const h3_dit *m, const h3_dit_state *state)
{
    const int64_t S = state->n_rows < 4096 ? state->n_rows : 4096; // rows that are compared
    const int32_t cu[2] = {0, (int32_t)state->n_rows};
    const h3_dit_block *b = &m->block[0];
    const h3_cuda_math math = d->backend->math;
    static const char *const names[] = {"qkv", "attention", "out", "fc1", "fc2"};

    d->backend->math = H3_CUDA_AUTO;
    block_io z = make_io(m, state);
    printf("{\"what\": \"op_errors\", \"rows\": %lld", (long long)state->n_rows);
    for (int i = 0; i < 5; i++) {
        const h3_weight *const w[] = {&b->qkv, NULL, &b->out, &b->fc1, &b->fc2};
        const h3_tensor in[] = {z.x, z.x, z.a, z.x, z.f}, out[] = {z.packed, z.o, z.h, z.both, z.h};
        float *seen[2];
        for (int k = 0; k < 2; k++) {
            d->backend->math = k ? math : H3_CUDA_AUTO;
            if (w[i])
                MUST(d->ops->gemm(d, out[i], in[i], w[i], H3_ACT_NONE));
            else
                MUST(d->ops->attention(d, h3_view_3d(z.o, state->n_rows, HEADS, HEAD), z.p.q, z.p.k,
                                       z.p.v, 0.08838835f, cu, 1, false));
            seen[k] = floats_of(h3_slice(out[i], 0, state->n_rows - S, S));
        }
        printf(", \"%s\": %.5f", names[i], distance(seen[0], seen[1], S * out[i].ne[1]));
        free(seen[0]);
        free(seen[1]);
    }
    printf("}\n");
    fflush(stdout);
    d->backend->math = math;
    free_io(&z);
}

/* Under fp8: against the same step in bf16 on the same inputs; `far` (bf16 from f32) tells how much
 * the model makes of an error. */
static void report_error(const step *k, const float *got, double far)
{
    float *want = velocities_under(k, H3_CUDA_AUTO);

    printf("{\"what\": \"dit_error\", \"math\": \"%s\", \"rows\": %lld, \"layers\": %lld, "
           "\"rms_relative_to_bf16\": %.5f, \"bf16_to_f32\": %.5f}\n",
           o.math, (long long)k->s->n_rows, (long long)k->m->dims.n_layers,
           distance(want, got, h3_numel(k->v2)), far);
    free(want);
}

static void bench_dit(h3_dit *m, int64_t S)
{
    const step k = make_step(m, S);
    static const char *const names[] = {"recorded", "call by call", "not fused"};
    const int layers = (int)m->dims.n_layers;
    double t[N_VARIANTS] = {1e30, 1e30, 1e30};
    float *seen[N_VARIANTS] = {NULL};
    int n_other[N_VARIANTS] = {0};

    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, dit_scratch(S)));
    /* One layer first: algorithms, plans and quantised weights are found once. */
    m->dims.n_layers = 1;
    const double first = run_step(&k, DIRECT);
    m->dims.n_layers = layers;
    share_packed(m);
    for (int i = 0; i < o.repeat; i++)
        for (int how = RECORDED; how < (has("ab")     ? N_VARIANTS
                                        : has("fast") ? DIRECT
                                                      : DIRECT + 1);
             how++) {
            const double once = run_step(&k, (variant)how);
            t[how] = once < t[how] ? once : t[how];
            float *const again = velocities(&k);
            if (!seen[how]) {
                seen[how] = again;
                continue;
            }
            n_other[how] += memcmp(seen[how], again, (size_t)h3_numel(k.v2) * 4) != 0;
            free(again);
        }
    if (!has("fast")) report_calls(&k, first);
    if (has("repeats")) report_repeats(m, k.s);
    if (d->backend->math == H3_CUDA_FP8 && has("errors")) report_op_errors(m, k.s);
    for (int how = RECORDED; how < N_VARIANTS; how++)
        if (seen[how])
            printf(
                "{\"what\": \"dit_variant\", \"name\": \"%s\", \"math\": \"%s\", \"rows\": %lld, "
                "\"s\": %.4f, \"bits\": \"%016llx\", \"same_bits\": %s, "
                "\"differs_from_itself\": %d}\n",
                names[how], o.math, (long long)S, t[how],
                (unsigned long long)hash_of(seen[how], (size_t)h3_numel(k.v2) * 4),
                seen[DIRECT] && memcmp(seen[how], seen[DIRECT], (size_t)h3_numel(k.v2) * 4)
                    ? "false"
                    : "true",
                n_other[how]);
    if (d->backend->math == H3_CUDA_FP8 && seen[DIRECT]) report_error(&k, seen[DIRECT], 0);
    const double best = t[RECORDED];
    const double limit = library_step(m, k.s);
    printf("{\"what\": \"dit_step\", \"math\": \"%s\", \"rows\": %lld, \"layers\": %d, "
           "\"s\": %.4f, \"s_50_layers\": %.4f, \"library_s_50_layers\": %.4f, "
           "\"share_of_library\": %.3f, \"peak_gib\": %.2f}\n",
           o.math, (long long)S, layers, best, best * 50 / layers, limit * 50 / layers,
           limit / best, (double)d->backend->peak / 1073741824);
    fflush(stdout);
    for (int i = 0; i < N_VARIANTS; i++)
        free(seen[i]);
    free_step(&k);
}

/* ---------------------------------------------------------------- steps over ranks */

/* The largest value over the ranks. */
static double widest(double x)
{
    double all[H3_COMM_LOCAL] = {0};
    size_t bytes[H3_COMM_LOCAL];
    const int P = h3_comm_size(d->comm);

    for (int r = 0; r < P; r++)
        bytes[r] = sizeof *all;
    all[h3_comm_rank(d->comm)] = x;
    MUST(h3_comm_all_gather(d->comm, NULL, all, bytes));
    for (int r = 0; r < P; r++)
        x = all[r] > x ? all[r] : x;
    return x;
}

/* A step with clocks around everything: prints what each operation took, and returns the seconds of
 * the exchanges when nothing else runs beside them. */
static double exchange_alone(const step *k)
{
    const double before = d->comm ? d->comm->seconds : 0;

    d->is_timing = true;
    h3_dev_counters_reset(d);
    (void)run_step(k, DIRECT);
    d->is_timing = false;
    for (int i = 0; i < H3_OP_COUNT; i++)
        if (d->stat[i].calls)
            printf("{\"what\": \"step_op\", \"rows\": %lld, \"ranks\": %d, \"name\": \"%s\", "
                   "\"calls\": %llu, \"ms\": %.3f}\n",
                   (long long)k->s->n_rows, h3_comm_size(d->comm), h3_op_name((h3_op_id)i),
                   (unsigned long long)d->stat[i].calls, 1e3 * d->stat[i].seconds);
    return d->comm ? d->comm->seconds - before : 0;
}

static void bench_step(h3_dit *m, int64_t S, const char *pieces)
{
    const step k = make_step(m, S);
    const int layers = (int)m->dims.n_layers;
    double best = 1e30, sum = 0;

    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, dit_scratch(S)));
    m->dims.n_layers = 1;
    (void)run_step(&k, DIRECT);
    m->dims.n_layers = layers;
    share_packed(m);
    (void)run_step(&k, DIRECT);
    const uint64_t sent = d->comm ? d->comm->sent_bytes : 0;
    for (int i = 0; i < o.repeat; i++) {
        MUST(h3_comm_barrier(d->comm));
        const double t = widest(run_step(&k, RECORDED));
        best = t < best ? t : best;
        sum += t;
    }
    const double bytes = d->comm ? (double)(d->comm->sent_bytes - sent) / o.repeat : 0;
    const double peak = widest((double)d->backend->peak), alone = widest(exchange_alone(&k));
    printf(
        "{\"what\": \"step\", \"math\": \"%s\", \"rows\": %lld, \"layers\": %d, \"ranks\": %d, "
        "\"by\": \"%s\", \"pieces\": \"%s\", \"s\": %.5f, \"mean_s\": %.5f, \"s_50_layers\": %.4f, "
        "\"exchange_alone_s\": %.5f, \"sent_bytes\": %.0f, \"peak_gib\": %.2f}\n",
        o.math, (long long)S, layers, h3_comm_size(d->comm), d->comm ? d->comm->name : "", pieces,
        best, sum / o.repeat, best * 50 / layers, alone, bytes, peak / 1073741824);
    fflush(stdout);
    free_step(&k);
}

static void bench_steps(h3_dit *m, int64_t S)
{
    char one[32];
    const char *at = o.pieces;

    if (!at) bench_step(m, S, "auto");
    for (int n; at && sscanf(at, "%31[^:]%n", one, &n) == 1; at += n + (at[n] == ':')) {
        setenv("H3_OVERLAP", one, 1);
        bench_step(m, S, one);
    }
}

/* A sequence of random numbers through a model from files. */
static h3_dit_state *open_state(const h3_dit *m, int64_t S, h3_dtype act)
{
    const int64_t n_video = S - N_TEXT - N_AUDIO;
    int32_t *idx = malloc((size_t)S * sizeof *idx), *row = malloc((size_t)S * sizeof *row);
    double *at = malloc((size_t)(3 * S) * sizeof *at);
    float *text = malloc((size_t)(N_TEXT * m->dims.text_dim) * sizeof *text);
    const float timestep = 0.4f;
    h3_dit_state *s;
    uint32_t u = 7;

    for (int64_t i = 0; i < S; i++) {
        idx[i] = (int32_t)i;
        row[i] = i < N_TEXT ? 1 : i < N_TEXT + N_AUDIO ? 2 : 0;
        at[3 * i] = (double)(i < N_TEXT + N_AUDIO ? i : N_TEXT + i / 64);
        at[3 * i + 1] = (double)(i / 8 % 8);
        at[3 * i + 2] = (double)(i % 8);
    }
    for (int64_t i = 0; i < N_TEXT * m->dims.text_dim; i++) {
        u = u * 1664525u + 1013904223u;
        text[i] = 1.7f * (float)(int32_t)u * 0x1p-31f;
    }
    const h3_dit_request r = {
        .act = (uint8_t)act,
        .n_rows = S,
        .n_video = n_video,
        .n_audio = N_AUDIO,
        .n_text = N_TEXT,
        .video_indices = idx + N_TEXT + N_AUDIO,
        .audio_indices = idx + N_TEXT,
        .text_indices = idx,
        .positions = at,
        .text = h3_tensor_2d(text, H3_F32, N_TEXT, m->dims.text_dim),
        .n_steps = 1,
        .n_timesteps = 1,
        .timesteps = &timestep,
        .mod_row = row,
    };
    size_t scratch, kept;
    MUST(h3_dit_scratch_bytes(m, &r, &scratch, &kept));
    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, scratch));
    MUST(h3_dit_prepare(&s, m, &r));
    free(idx);
    free(row);
    free(at);
    free(text);
    return s;
}

static void bench_error(void)
{
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;

    MUST(h3_ckpt_open(&ck, o.model, H3_ROLE_DIT, NULL));
    MUST(h3_dit_open(&m, ck, d));
    for (int i = 0; i < o.n_rows; i++) {
        step k = {.m = m, .s = open_state(m, o.rows[i], H3_F32)};
        k.v = random_tensor(H3_F32, 1.7f, NE(k.s->n_video, m->dims.video_cols));
        k.v2 = random_tensor(H3_F32, 1, NE(k.s->n_video, m->dims.video_cols));
        k.a = random_tensor(H3_F32, 1.7f, NE(k.s->n_audio, m->dims.audio_cols));
        k.a2 = random_tensor(H3_F32, 1, NE(k.s->n_audio, m->dims.audio_cols));
        float *f32 = velocities_under(&k, H3_CUDA_F32);
        h3_dit_release(&k.s);
        k.s = open_state(m, o.rows[i], H3_BF16);
        float *bf16 = velocities_under(&k, H3_CUDA_AUTO),
              *own = velocities_under(&k, d->backend->math);
        report_error(&k, own, distance(f32, bf16, h3_numel(k.v2)));
        free(f32);
        free(bf16);
        free(own);
        h3_dit_release(&k.s);
        h3_tensor *const all[] = {&k.v, &k.v2, &k.a, &k.a2};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            h3_dev_free(d, all[j]);
    }
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
}

/* ---------------------------------------------------------------- decoders */

/* Every operation that ran since the counters were reset, with timing on: a run that waits after
 * each, so that the sum exceeds the whole by what the waits cost. */
static void report_ops(const char *what)
{
    for (int i = 0; i < H3_OP_COUNT; i++)
        if (d->stat[i].calls)
            printf("{\"what\": \"%s\", \"name\": \"%s\", \"calls\": %llu, \"ms\": %.3f, "
                   "\"gflop\": %.1f}\n",
                   what, h3_op_name((h3_op_id)i), (unsigned long long)d->stat[i].calls,
                   1e3 * d->stat[i].seconds, d->stat[i].flops * 1e-9);
    fflush(stdout);
}

static h3_checkpoint *synthetic(h3_role role, int layers)
{
    const char *tmp = getenv("TMPDIR");
    const h3_synth_opts so = {.layers = layers, .seed = 1, .is_tiny = IS_TINY};
    h3_checkpoint *ck = NULL;
    char path[256];

    snprintf(path, sizeof path, "%s/h3av-gpu-bench-%d-%d.safetensors", tmp ? tmp : "/tmp",
             (int)role, (int)getpid());
    MUST(h3_synth_write(path, role, &so));
    MUST(h3_ckpt_open(&ck, path, role, NULL));
    unlink(path); // the map keeps the bytes
    return ck;
}

static h3_status drop_frames(void *user, int64_t first, h3_tensor frames)
{
    (void)user, (void)first, (void)frames;
    return H3_OK;
}

static void decode(h3_video_vae *v, const char *name, int64_t t, int64_t h, int64_t w, int tiles,
                   h3_dtype act, int repeat)
{
    const int64_t ne[4] = {24, t, h, w};
    const h3_video_decode_opts opts = {.act = act, .tiles_in_flight = tiles};
    float *z = calloc((size_t)(24 * t * h * w), sizeof *z);
    double best = 1e30, first = 0;
    size_t bytes;

    for (int64_t i = 0; i < 24 * t * h * w; i++)
        z[i] = (float)(i % 11 - 5) * 0.2f;
    h3_dev_scratch_drop(d);
    MUST(h3_video_vae_decode_bytes(d, v, t, h, w, &opts, &bytes));
    MUST(h3_dev_scratch(d, bytes));
    for (int i = 0; i < repeat + 1; i++) {
        const double t0 = now();
        MUST(h3_video_vae_decode(d, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, drop_frames, NULL));
        const double s = now() - t0;
        if (i == 0) first = s;
        if (i > 0 && s < best) best = s;
    }
    printf("{\"what\": \"%s\", \"math\": \"%s\", \"act\": \"%s\", \"tiles_in_flight\": %d, \"s\": "
           "%.5f, "
           "\"first_s\": %.3f, \"scratch_gib\": %.2f}\n",
           name, o.math, h3_dtype_name(act), tiles, best, first, (double)bytes / 1073741824);
    fflush(stdout);
    if (act == H3_BF16 && repeat == o.repeat && h3_comm_size(d->comm) == 1) {
        d->is_timing = true;
        h3_dev_counters_reset(d);
        MUST(h3_video_vae_decode(d, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, drop_frames, NULL));
        d->is_timing = false;
        report_ops("vae_op");
    }
    free(z);
}

typedef struct kept_frames {
    float *p;
    int64_t n;
} kept_frames;

static h3_status keep_frames(void *user, int64_t first, h3_tensor f)
{
    kept_frames *k = user;
    const int64_t each = f.ne[1] * f.ne[2] * f.ne[3];

    (void)first;
    k->p = realloc(k->p, (size_t)(k->n + 3 * each) * sizeof *k->p);
    for (int c = 0; c < 3; c++, k->n += each)
        memcpy(k->p + k->n, (const float *)f.data + c * f.st[0], (size_t)each * sizeof *k->p);
    return H3_OK;
}

/* How far a tile under this math is from f32, in pixels of 0 to 1 (deviations of the picture's own
 * normalisation are taken as 0.225). */
static void vae_error(h3_video_vae *v, int64_t side)
{
    const int64_t ne[4] = {24, 7, side, side}, n = 24 * 7 * side * side;
    float *z = malloc((size_t)n * sizeof *z);
    kept_frames kept[2] = {{0}};
    double e = 0, sum = 0, worst = 0;

    for (int64_t i = 0; i < n; i++)
        z[i] = (float)(i % 11 - 5) * 0.2f;
    h3_dev_scratch_drop(d);
    for (int k = 0; k < 2; k++) {
        const h3_video_decode_opts opts = {.act = k ? H3_BF16 : H3_F32, .is_float = true};
        MUST(h3_video_vae_decode(d, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, keep_frames,
                                 &kept[k]));
    }
    for (int64_t i = 0; i < kept[0].n; i++) {
        const double a = (double)kept[0].p[i], x = (double)kept[1].p[i] - a;
        e += x * x;
        sum += a * a;
        if (fabs(x) > worst) worst = fabs(x);
    }
    e = sqrt(e / (double)kept[0].n);
    sum = sqrt(sum / (double)kept[0].n);
    printf("{\"what\": \"vae_error\", \"math\": \"%s\", \"rms\": %.5f, \"of_rms\": %.5f, ", o.math,
           e, e / sum);
    printf("\"worst\": %.4f, \"psnr_db\": %.2f}\n", worst, -20 * log10(0.225 * e + 1e-12));
    fflush(stdout);
    free(kept[0].p);
    free(kept[1].p);
    free(z);
}

static void bench_vae(bool has_tiles, bool has_clip)
{
    enum { SIDE = IS_TINY ? 3 : 16, DEPTH = IS_TINY ? 2 : 36 }; // latent cells of a tile, layers
    h3_checkpoint *ck = synthetic(H3_ROLE_VIDEO_VAE, 1);
    h3_video_vae *v = NULL;

    MUST(h3_video_vae_open(&v, d, ck, H3_VIDEO_VAE_DECODER));
    /* All layers are the one there is, once a run of that one has brought everything: a store of
     * nothing then. */
    vit_block *const one = v->dec.block, *deep = calloc(DEPTH, sizeof *deep);
    h3_store *const store = v->dec.store, *nothing = NULL;
    MUST(h3_store_create(&nothing, d));
    for (int k = 0; k < (has_tiles ? 2 : 1); k++) {
        const h3_dtype act = k ? H3_F32 : H3_BF16;
        v->geo.n_layers = 1;
        v->dec.block = one;
        v->dec.store = store;
        h3_dev_scratch_drop(d);
        h3_store_drop(store);
        const size_t before = d->backend->allocated;
        decode(v, "vae_one_layer", 7, SIDE, SIDE, 1, act, 1);
        h3_dev_scratch_drop(d);
        printf(
            "{\"what\": \"vae_weights\", \"math\": \"%s\", \"act\": \"%s\", \"stored_mib\": %.1f, "
            "\"saved_mib\": %.1f, \"taken_mib\": %.1f}\n",
            o.math, h3_dtype_name(act), (double)h3_ckpt_usage(ck, NULL).matrices / 1048576,
            (double)h3_store_saved(store, NULL) / 1048576,
            ((double)d->backend->allocated - (double)before) / 1048576);
        v->geo.n_layers = DEPTH;
        v->dec.block = deep;
        v->dec.store = nothing;
        for (int i = 0; i < DEPTH; i++)
            deep[i] = one[0];
        for (int i = 0; has_tiles && i < o.n_tiles; i++) {
            /* As many tiles as fly together, in one row of the picture. */
            const int n = (int)o.tiles[i];
            if (act == H3_F32 && i > 0) break;
            decode(v, "vae_tiles", 7, SIDE, SIDE + 12 * (n - 1), n, act,
                   act == H3_F32 ? 1 : o.repeat);
        }
        for (int i = 0; has_clip && act == H3_BF16 && i < o.n_tiles; i++)
            decode(v, "vae_clip_832x480x124", 37, 30, 52, (int)o.tiles[i], act, 1);
    }
    if (has_tiles) vae_error(v, SIDE);
}

static void bench_audio(void)
{
    h3_checkpoint *ck = synthetic(H3_ROLE_AUDIO_VAE, 0);
    h3_audio_vae *v = NULL;
    static const int64_t lengths[] = {IS_TINY ? 3 : 200, IS_TINY ? 4 : 400};

    MUST(h3_audio_vae_open(&v, d, ck, H3_AUDIO_VAE_DECODER));
    for (int k = 0; k < 2; k++) {
        const int64_t n = lengths[k];
        float *z = calloc((size_t)(64 * n), sizeof *z),
              *pcm = malloc((size_t)(1600 * n) * sizeof *pcm);
        double best = 1e30, first = 0;
        h3_dev_scratch_drop(d);
        for (int i = 0; i < 64 * n; i++)
            z[i] = (float)(i % 7 - 3) * 0.3f;
        for (int i = 0; i < o.repeat + 1; i++) {
            h3_dev_counters_reset(d);
            d->is_timing = false;
            const double t0 = now();
            MUST(h3_audio_vae_decode(d, v, h3_tensor_3d(z, H3_F32, 2, 32, n), NULL, pcm));
            const double s = now() - t0;
            if (i == 0) first = s;
            if (i > 0 && s < best) best = s;
        }
        printf("{\"what\": \"audio_decode\", \"math\": \"%s\", \"seconds_of_sound\": %.1f, "
               "\"channels\": 2, "
               "\"s\": %.5f, \"first_s\": %.3f}\n",
               o.math, (double)n / 40, best, first);
        d->is_timing = true;
        h3_dev_counters_reset(d);
        MUST(h3_audio_vae_decode(d, v, h3_tensor_3d(z, H3_F32, 2, 32, n), NULL, pcm));
        d->is_timing = false;
        report_ops("audio_op");
        fflush(stdout);
        free(z);
        free(pcm);
    }
}

/* ---------------------------------------------------------------- the conditioner */

static void bench_encoder(void)
{
    enum { W = ENC_W, Q = ENC_Q, K = ENC_K, D = ENC_D, F = ENC_F, LAYERS = 4 };
    static const int64_t lengths[] = {64, 256, 1024};
    h3_encoder_layer l = {.norm1 = random_tensor(H3_F32, 1, NE(W)),
                          .norm2 = random_tensor(H3_F32, 1, NE(W)),
                          .q_norm = random_tensor(H3_F32, 1, NE(D)),
                          .k_norm = random_tensor(H3_F32, 1, NE(D)),
                          .q = random_weight(H3_BF16, Q * D, W),
                          .k = random_weight(H3_BF16, K * D, W),
                          .v = random_weight(H3_BF16, K * D, W),
                          .o = random_weight(H3_BF16, W, Q * D),
                          .gate = random_weight(H3_BF16, F, W),
                          .up = random_weight(H3_BF16, F, W),
                          .down = random_weight(H3_BF16, W, F)};
    h3_encoder_text t = {.width = W,
                         .heads = Q,
                         .kv_heads = K,
                         .head_dim = D,
                         .hidden = F,
                         .vocab = ENC_VOCAB,
                         .n_layers = LAYERS,
                         .eps = 1e-6f};

    t.embed = random_weight(H3_BF16, ENC_VOCAB, W);
    t.layer = calloc(LAYERS, sizeof *t.layer);
    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, 1u << 30));
    for (int k = 0; k < 3; k++) {
        const int64_t S = lengths[k], ne[2] = {S, W};
        const int32_t cu[2] = {0, (int32_t)S};
        h3_tensor x, ids = indices(S, 0, ENC_VOCAB), cos = random_tensor(H3_BF16, 1, NE(S, D / 2));
        double best = 1e30;
        MUST(h3_dev_alloc(d, &x, H3_BF16, 2, ne));
        for (int i = 0; i < LAYERS; i++)
            t.layer[i] = l;
        for (int i = 0; i < 10 * o.repeat; i++) {
            const double t0 = now();
            MUST(h3_encoder_text_forward(&t, d, NULL, 0, x, ids, cos, cos, cu, NULL, 0, 0));
            MUST(h3_dev_sync(d));
            const double s = now() - t0;
            if (i > 1 && s < best) best = s;
        }
        printf(
            "{\"what\": \"encoder_4_layers\", \"math\": \"%s\", \"tokens\": %lld, \"s\": %.5f}\n",
            o.math, (long long)S, best);
        fflush(stdout);
        h3_dev_free(d, &x);
        h3_dev_free(d, &ids);
        h3_dev_free(d, &cos);
    }
}

/* ---------------------------------------------------------------- loading */

static void bench_load(void)
{
    const size_t n = (size_t)2 << 30;
    unsigned char *host = malloc(n);
    h3_tensor t;
    const int64_t ne = (int64_t)n;

    memset(host, 3, n);
    MUST(h3_dev_alloc(d, &t, H3_U8, 1, &ne));
    for (int i = 0; i < 2; i++) {
        const double t0 = now();
        MUST(h3_dev_upload(d, t, host));
        MUST(h3_dev_sync(d));
        const double s = now() - t0;
        if (i)
            printf("{\"what\": \"upload\", \"gib\": 2, \"s\": %.4f, \"gbs\": %.1f}\n", s,
                   (double)n / s * 1e-9);
    }
    fflush(stdout);
    h3_dev_free(d, &t);
    free(host);
}

/* Lines of /proc/self/status, in GiB. */
static double status_gib(const char *field)
{
    FILE *f = fopen("/proc/self/status", "r");
    const size_t n = strlen(field);
    char line[256];
    double kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, n) == 0 && line[n] == ':') kib = atof(line + n + 1);
    if (f) fclose(f);
    return kib / 1048576;
}

/* The whole denoiser from a file to the device, the way a run takes: --file names one (h3av synth
 * writes any published form), else one with the released names and shapes and random numbers is
 * written to TMPDIR: 66.3 GB for 50 layers. */
static void bench_real(void)
{
    const char *tmp = getenv("TMPDIR");
    const h3_synth_opts so = {.layers = o.layers, .seed = 1, .is_tiny = IS_TINY};
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    char path[256];
    double t[3];

    if (o.file)
        snprintf(path, sizeof path, "%s", o.file);
    else
        snprintf(path, sizeof path, "%s/h3av-gpu-bench-real-%d.safetensors", tmp ? tmp : "/tmp",
                 (int)getpid());
    t[0] = now();
    if (!o.file && h3_synth_write(path, H3_ROLE_DIT, &so) != H3_OK) {
        unlink(path);
        MUST(H3_E_IO);
    }
    FILE *f = fopen(path, "rb");
    const double bytes = f && fseeko(f, 0, SEEK_END) == 0 ? (double)ftello(f) : 0;
    if (f) fclose(f);
    t[0] = now() - t[0];
    printf("{\"what\": \"real_written\", \"layers\": %d, \"gb\": %.2f, \"s\": %.2f}\n", o.layers,
           bytes * 1e-9, t[0]);
    fflush(stdout);
    const uint64_t before = d->backend->uploaded;
    t[1] = now();
    const h3_status st = h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL);
    if (!o.file) unlink(path); // the map keeps the bytes
    MUST(st);
    MUST(h3_dit_open(&m, ck, d));
    for (int i = 0; i < m->dims.n_layers; i++) // as a request of so many rows says
        h3_store_meets(m->store, 1 + i, H3_BF16, o.rows[0], false);
    t[1] = now() - t[1];
    t[2] = now();
    for (int i = 0; i <= m->dims.n_layers + 1; i++) {
        MUST(h3_store_acquire(m->store, i));
        h3_store_release(m->store, i);
    }
    MUST(h3_dev_sync(d));
    t[2] = now() - t[2];
    printf("{\"what\": \"load_real\", \"layers\": %d, \"gb\": %.2f, \"open_s\": %.2f, \"load_s\": "
           "%.2f, \"uploaded_gb\": %.2f, \"gbs\": %.1f, \"device_peak_gib\": %.2f, "
           "\"host_peak_gib\": %.2f, \"host_anonymous_gib\": %.2f, \"host_mapped_gib\": %.2f, "
           "\"files\": %llu, \"matrices\": %llu, \"direct\": %llu, \"converted\": %llu}\n",
           o.layers, bytes * 1e-9, t[1], t[2], (double)(d->backend->uploaded - before) * 1e-9,
           (double)(d->backend->uploaded - before) * 1e-9 / t[2],
           (double)d->backend->peak / 1073741824, status_gib("VmHWM"), status_gib("RssAnon"),
           status_gib("RssShmem") + status_gib("RssFile"), (unsigned long long)d->loaded.files,
           (unsigned long long)d->loaded.tensors, (unsigned long long)d->loaded.direct,
           (unsigned long long)d->loaded.converted);
    fflush(stdout);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
}

/* ---------------------------------------------------------------- arguments */

static int numbers(int64_t *out, const char *s)
{
    int n = 0;
    for (char *end; n < 8 && *s; s = *end ? end + 1 : end)
        out[n++] = strtoll(s, &end, 10);
    return n;
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--math") == 0) o.math = argv[i + 1];
        if (strcmp(argv[i], "--what") == 0) o.what = argv[i + 1];
        if (strcmp(argv[i], "--model") == 0) o.model = argv[i + 1];
        if (strcmp(argv[i], "--rows") == 0) o.n_rows = numbers(o.rows, argv[i + 1]);
        if (strcmp(argv[i], "--tiles") == 0) o.n_tiles = numbers(o.tiles, argv[i + 1]);
        if (strcmp(argv[i], "--layers") == 0) o.layers = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--repeat") == 0) o.repeat = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--pieces") == 0) o.pieces = argv[i + 1];
        if (strcmp(argv[i], "--file") == 0) o.file = argv[i + 1];
        if (strcmp(argv[i], "--ranks") == 0) o.ranks = atoi(argv[i + 1]);
    }
    const h3_dev_opts opts = {.math = o.math};
    h3_comm *comm = NULL;
    char name[16] = "cuda";
    if (o.ranks > 1) {
        MUST(h3_comm_fork(&comm, o.ranks));
        snprintf(name, sizeof name, "cuda:%d", comm->local_rank);
        if (comm->rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    }
    MUST(h3_dev_open(&d, name, &opts));
    if (comm) MUST(h3_comm_attach(comm, d));
    if (comm)
        printf("{\"what\": \"ranks\", \"n\": %d, \"by\": \"%s\", \"detail\": \"%s\"}\n", comm->size,
               comm->name, comm->detail);
    printf("{\"what\": \"device\", \"detail\": \"%s\"}\n", d->detail);
    fflush(stdout);
    if (has("load")) bench_load();
    if (has("real")) bench_real();
    if (o.model) bench_error();
    h3_dit *m = has("dit") || has("steps") ? make_dit() : NULL;
    for (int i = 0; i < o.n_rows; i++) {
        if (has("ops")) bench_ops(o.rows[i]);
        if (has("dit")) bench_dit(m, o.rows[i]);
        if (has("steps")) bench_steps(m, o.rows[i]);
    }
    if (has("encoder")) bench_encoder();
    if (has("vae") || has("clip")) bench_vae(has("vae"), has("clip"));
    if (has("audio")) bench_audio();
    h3_cuda_report(d, stderr);
    if (comm) {
        MUST(h3_comm_agree(comm, H3_OK));
        h3_comm_detach(comm, d);
    }
    h3_dev_close(&d); // keeps what was learned about products
    h3_comm_close(&comm);
    return 0;
}
