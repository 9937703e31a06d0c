/**
 * Table against table: every operation of the reference device and of the CPU device on the same
 * numbers, on odd sizes and strides, for every instruction set this machine has and for one and
 * three threads. Outputs lie in padded memory whose gaps must stay untouched. The last tests prove
 * that the comparison can fail.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decode.h"
#include "dev.h"
#include "num.h"

/* ---------------------------------------------------------------- numbers and tensors */

static uint64_t state = 1;

static uint32_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) ^ (uint32_t)(state >> 20);
}

/* Roughly normal, deviation 1. */
static float random_normal(void)
{
    float s = 0;
    for (int i = 0; i < 4; i++)
        s += (float)(random_bits() & 0xffff) / 65536.0f - 0.5f;
    return s * 1.7320508f;
}

enum { GAP = 5, MAX_HELD = 256 };
static void *held[MAX_HELD];
static int n_held;

static void *hold(size_t bytes)
{
    void *p = calloc(1, bytes + 64);
    assert_non_null(p);
    assert_true(n_held < MAX_HELD);
    return held[n_held++] = p;
}

static void drop_all(void)
{
    while (n_held > 0)
        free(held[--n_held]);
}

/* A tensor whose rows are `gap` elements apart from each other; the gaps hold 77. */
static h3_tensor make(h3_dtype t, int gap, int rank, const int64_t *ne)
{
    h3_tensor x = h3_host_tensor(NULL, t, rank, ne);
    int64_t n = 1;
    for (int i = rank - 1; i >= 0; i--) {
        x.st[i] = n;
        n *= ne[i];
        if (i == rank - 1) n += gap;
    }
    x.data = hold((size_t)n * h3_dtype_bytes(t) + 8);
    if (t == H3_F32 || t == H3_BF16)
        for (int64_t i = 0; i < n; i++)
            h3_num_store(x.data, (uint8_t)t, i, 77.0f);
    return x;
}

#define EXTENTS(...)                                                       \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                      \
        __VA_ARGS__                                                        \
    }

static void fill(h3_tensor x, float scale, float shift)
{
    for (int64_t r = 0; r < h3_n_rows(x); r++)
        for (int64_t c = 0, at = h3_row_offset(&x, r); c < x.ne[x.rank - 1]; c++)
            h3_num_store(x.data, x.dtype, at + c, random_normal() * scale + shift);
}

static h3_tensor normal(h3_dtype t, int gap, int rank, const int64_t *ne)
{
    h3_tensor x = make(t, gap, rank, ne);
    fill(x, 1, 0);
    return x;
}

static size_t bytes_of(h3_tensor x)
{
    int64_t n = 1;
    for (int i = 0; i < x.rank; i++)
        n += (x.ne[i] - 1) * x.st[i];
    return (size_t)(n + (x.rank > 1 ? x.st[x.rank - 2] - x.ne[x.rank - 1] : 0)) *
           h3_dtype_bytes((h3_dtype)x.dtype);
}

static h3_tensor clone(h3_tensor x)
{
    const size_t n = bytes_of(x);
    h3_tensor y = x;
    y.data = hold(n);
    memcpy(y.data, x.data, n);
    return y;
}

static h3_tensor none(void)
{
    return (h3_tensor){0};
}

static h3_tensor indices(int64_t n, int64_t below, bool distinct)
{
    h3_tensor t = make(H3_I32, 0, EXTENTS(n));
    int32_t *p = t.data;
    for (int64_t i = 0; i < n; i++)
        p[i] = distinct ? (int32_t)(below - 1 - i) : (int32_t)(random_bits() % (uint32_t)below);
    return t;
}

/* ---------------------------------------------------------------- comparison */

/* Largest |got - want| in units of the allowed |want| * rel + rms(want) * abs; gaps must agree. */
static double deviation(h3_tensor want, h3_tensor got, double rel, double abs)
{
    const int64_t rows = h3_n_rows(want), C = want.ne[want.rank - 1];
    double ss = 0, worst = 0;

    if (want.dtype == H3_U8 || want.dtype == H3_I32)
        return memcmp(want.data, got.data, bytes_of(want)) ? HUGE_VAL : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < C; c++) {
            const double w =
                (double)h3_num_load(want.data, want.dtype, h3_row_offset(&want, r) + c);
            ss += w * w;
        }
    const double rms = sqrt(ss / (double)(rows * C > 0 ? rows * C : 1));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < C; c++) {
            const int64_t at = h3_row_offset(&want, r) + c;
            const double w = (double)h3_num_load(want.data, want.dtype, at);
            const double g = (double)h3_num_load(got.data, got.dtype, at);
            const double d = fabs(w - g) / (fabs(w) * rel + rms * abs + 1e-30);
            if (d != 0 && !(d <= worst)) worst = d;
        }
    if (want.rank > 1)
        for (int64_t r = 0; r + 1 < rows; r++) { // between the rows
            const int64_t at = h3_row_offset(&want, r) + C;
            if (want.st[want.rank - 2] > C &&
                h3_num_load(want.data, want.dtype, at) != h3_num_load(got.data, got.dtype, at))
                return HUGE_VAL;
        }
    return worst;
}

/* One rounding to bf16 may fall on either side when the f32 values differ in their last bit. */
static double rel_of(h3_tensor t, double f32)
{
    return t.dtype == H3_BF16 ? 1.0 / 120 : f32;
}

/* ---------------------------------------------------------------- devices under test */

typedef struct bench {
    h3_dev *ref, *fast;
} bench;

static const struct {
    const char *isa;
    int threads;
} setups[] = {{NULL, 1}, {NULL, 3}, {"avx2", 2}, {"c", 2}};
#ifndef N_SETUPS // another device has one
#define N_SETUPS (sizeof setups / sizeof *setups)
#endif

static bench open_bench(size_t i)
{
    bench b = {0};
    const h3_dev_opts opts = {.n_threads = setups[i].threads, .math = "f32"};
    if (setups[i].isa)
        setenv("H3_CPU_ISA", setups[i].isa, 1);
    else
        unsetenv("H3_CPU_ISA");
    assert_int_equal(h3_dev_open(&b.ref, "ref", NULL), H3_OK);
    assert_int_equal(h3_dev_open(&b.fast, "cpu", &opts), H3_OK);
    unsetenv("H3_CPU_ISA");
    return b;
}

static void close_bench(bench *b)
{
    h3_dev_close(&b->ref);
    h3_dev_close(&b->fast);
}

/* Runs `call` on both devices with their own copy of `out` bound to `y`, and compares. */
#define AGREE(b, out, rel, abs, call)                                           \
    do {                                                                        \
        const h3_tensor out_ = (out);                                           \
        h3_tensor y = clone(out_);                                              \
        h3_dev *d = (b)->ref;                                                   \
        assert_int_equal(d->ops->call, H3_OK);                                  \
        const h3_tensor want_ = y;                                              \
        y = clone(out_);                                                        \
        d = (b)->fast;                                                          \
        assert_int_equal(d->ops->call, H3_OK);                                  \
        assert_int_equal(h3_dev_sync(d), H3_OK);                                \
        const double dev_ = deviation(want_, y, rel, abs);                      \
        if (!(dev_ <= 1)) fail_msg("%s: %s off by %g", d->detail, #call, dev_); \
    } while (0)

#define F32_REL 2e-6
#define F32_ABS 2e-6
#define EXACT   1e-12

/* ---------------------------------------------------------------- weights */

static h3_weight weight_of(int64_t rows, int64_t cols)
{
    return (h3_weight){.name = "w", .rows = rows, .cols = cols};
}

static void add_part(h3_weight *w, h3_weight_part p)
{
    if (!p.global) p.global = 1;
    p.dev = (void *)(uintptr_t)p.data;
    p.full_rows = p.full_rows ? p.full_rows : p.rows;
    w->part[w->n_parts++] = p;
}

static void plain_part(h3_weight *w, h3_encoding e, int64_t rows, float scale)
{
    const h3_dtype t = e == H3_ENC_F32 ? H3_F32 : e == H3_ENC_BF16 ? H3_BF16 : H3_F16;
    h3_tensor x = make(t, 0, EXTENTS(rows, w->cols));
    const size_t row = (size_t)w->cols * h3_dtype_bytes(t);
    fill(x, scale, 0);
    add_part(w, (h3_weight_part){.data = x.data,
                                 .rows = rows,
                                 .cols = w->cols,
                                 .row_bytes = row,
                                 .bytes = row * (size_t)rows,
                                 .encoding = (uint8_t)e});
}

/* Random blocks whose scales are small halves; `halves` lists their offsets. */
static void ggml_part(h3_weight *w, uint8_t type, int64_t rows, const int *halves)
{
    const h3_ggml_info g = h3_ggml_type(type);
    const size_t row = (size_t)(w->cols / g.block) * g.bytes, n = row * (size_t)rows;
    uint8_t *p = hold(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)random_bits();
    for (size_t b = 0; b < n; b += g.bytes)
        for (int k = 0; k < 2 && halves[k] >= 0; k++) {
            const uint16_t h = h3_f32_to_f16(0.002f + 0.001f * random_normal());
            memcpy(p + b + halves[k], &h, 2);
        }
    if (type == 39)
        for (size_t b = 0; b < n; b += g.bytes)
            p[b] = (uint8_t)(120 + random_bits() % 8);
    if (type == 29) // IQ1_M: the half lies in the top nibbles of four 16-bit scales
        for (size_t b = 0; b < n; b += g.bytes) {
            const uint16_t h = h3_f32_to_f16(0.002f);
            for (int k = 0; k < 4; k++)
                p[b + 49 + 2 * (size_t)k] =
                    (uint8_t)((p[b + 49 + 2 * (size_t)k] & 15) | (h >> (4 * k) & 15) << 4);
        }
    add_part(w, (h3_weight_part){.data = p,
                                 .rows = rows,
                                 .cols = w->cols,
                                 .row_bytes = row,
                                 .bytes = n,
                                 .encoding = H3_ENC_GGML,
                                 .ggml_type = type});
}

static void int8_part(h3_weight *w, int64_t rows, int32_t group)
{
    const size_t n = (size_t)(rows * w->cols);
    int8_t *p = hold(n);
    float *scale = hold((size_t)rows * 4);
    for (size_t i = 0; i < n; i++)
        p[i] = (int8_t)(random_bits() % 255 - 127);
    for (int64_t i = 0; i < rows; i++)
        scale[i] = 0.01f + 0.001f * random_normal();
    add_part(w, (h3_weight_part){.data = p,
                                 .rows = rows,
                                 .cols = w->cols,
                                 .row_bytes = (size_t)w->cols,
                                 .bytes = n,
                                 .encoding = H3_ENC_INT8,
                                 .group = group,
                                 .scale = scale,
                                 .n_scale = rows});
}

static void fp8_part(h3_weight *w, int64_t rows)
{
    const size_t n = (size_t)(rows * w->cols);
    uint8_t *p = hold(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(random_bits() & 0xbf); // no NaN
    add_part(w, (h3_weight_part){.data = p,
                                 .rows = rows,
                                 .cols = w->cols,
                                 .row_bytes = (size_t)w->cols,
                                 .bytes = n,
                                 .encoding = H3_ENC_FP8_SCALED,
                                 .global = 0.25f});
}

static void nvfp4_part(h3_weight *w, int64_t rows)
{
    const size_t n = (size_t)(rows * w->cols / 2), n_scale = (size_t)(rows * w->cols / 16);
    uint8_t *p = hold(n), *s = hold(n_scale);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)random_bits();
    for (size_t i = 0; i < n_scale; i++)
        s[i] = (uint8_t)(0x30 + random_bits() % 16);
    add_part(w, (h3_weight_part){.data = p,
                                 .rows = rows,
                                 .cols = w->cols,
                                 .row_bytes = (size_t)w->cols / 2,
                                 .bytes = n,
                                 .encoding = H3_ENC_NVFP4,
                                 .block = 16,
                                 .scale = s,
                                 .n_scale = (int64_t)n_scale,
                                 .global = 0.05f});
}

static void with_bias(h3_weight *w)
{
    w->bias = normal(H3_F32, 0, EXTENTS(w->rows));
}

/* One weight per encoding, some of two parts. */
static h3_weight encoded(int which, int64_t cols)
{
    static const struct {
        uint8_t type;
        int halves[2];
    } blocks[] = {{8, {0, -1}},   {2, {0, -1}},    {3, {0, 2}},    {6, {0, -1}},  {7, {0, 2}},
                  {10, {80, 82}}, {11, {108, -1}}, {12, {0, 2}},   {13, {0, 2}},  {14, {208, -1}},
                  {20, {0, -1}},  {23, {0, -1}},   {39, {-1, -1}}, {16, {0, -1}}, {17, {0, -1}},
                  {18, {0, -1}},  {19, {0, -1}},   {21, {0, -1}},  {22, {0, -1}}, {29, {-1, -1}},
                  {34, {52, -1}}, {35, {64, -1}}};
    enum { N_BLOCKS = sizeof blocks / sizeof *blocks };
    h3_weight w = weight_of(0, cols);

    if (which < N_BLOCKS)
        ggml_part(&w, blocks[which].type, 37, blocks[which].halves);
    else if (which == N_BLOCKS)
        int8_part(&w, 37, 0);
    else if (which == N_BLOCKS + 1)
        int8_part(&w, 37, 64);
    else if (which == N_BLOCKS + 2)
        fp8_part(&w, 37);
    else if (which == N_BLOCKS + 3)
        nvfp4_part(&w, 37);
    else if (which == N_BLOCKS + 4)
        plain_part(&w, H3_ENC_F16, 37, 0.1f);
    else {
        plain_part(&w, H3_ENC_BF16, 20, 0.1f);
        int8_part(&w, 9, 0);
        ggml_part(&w, 8, 8, blocks[0].halves);
    }
    for (int i = 0; i < w.n_parts; i++)
        w.rows += w.part[i].rows;
    with_bias(&w);
    return w;
}
enum { N_ENCODED = 28 };

/* ---------------------------------------------------------------- products */

static void check_gemm(bench *b)
{
    static const struct {
        int64_t S, K, N;
    } sizes[] = {{1, 1, 1},     {1, 96, 33},   {3, 70, 50},   {8, 257, 15},
                 {15, 110, 47}, {9, 64, 40},   {17, 300, 29}, {33, 513, 230},
                 {70, 96, 500}, {129, 31, 16}, {40, 600, 3}};
    static const h3_encoding enc[] = {H3_ENC_F32, H3_ENC_BF16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int e = 0; e < 2; e++)
            for (int a = 0; a < 4; a++) {
                const int64_t S = sizes[i].S, K = sizes[i].K, N = sizes[i].N;
                h3_weight w = weight_of(N, K);
                plain_part(&w, enc[e], N - N / 3, 1 / sqrtf((float)K));
                if (N / 3) plain_part(&w, enc[1 - e], N / 3, 1 / sqrtf((float)K));
                if (a & 1) with_bias(&w);
                const h3_dtype tx = a < 2 ? H3_F32 : H3_BF16, ty = (a ^ e) & 1 ? H3_F32 : H3_BF16;
                h3_tensor x = normal(tx, GAP, EXTENTS(S, K)), out = make(ty, GAP, EXTENTS(S, N));
                /* A product on the edge of two bf16 numbers moves the activation of a negative
                 * number by several of its own last places, of a positive one by two. */
                const bool is_twice = ty == H3_BF16 && a;
                AGREE(b, out, rel_of(out, F32_REL) * (is_twice ? 2 : 1), is_twice ? 2e-3 : 4e-6,
                      gemm(d, y, x, &w, (h3_act)a));
                drop_all();
            }
}

static void check_encodings(bench *b)
{
    for (int i = 0; i < N_ENCODED; i++)
        for (int64_t S = 2; S < 50; S += 40) {
            h3_weight w = encoded(i, 512);
            h3_tensor x = normal(H3_F32, 0, EXTENTS(S, 512)),
                      out = make(H3_F32, 0, EXTENTS(S, w.rows));
            AGREE(b, out, F32_REL, 4e-6, gemm(d, y, x, &w, H3_ACT_NONE));
            h3_tensor ids = indices(6, w.rows, false), rows = make(H3_BF16, GAP, EXTENTS(6, 512));
            AGREE(b, rows, EXACT, EXACT, embed(d, y, &w, ids));
            drop_all();
        }
}

static void check_lora(bench *b)
{
    h3_weight w = weight_of(60, 300), a = weight_of(4, 300), up = weight_of(50, 4);
    plain_part(&w, H3_ENC_BF16, 60, 0.05f);
    plain_part(&a, H3_ENC_F32, 4, 0.05f);
    plain_part(&up, H3_ENC_BF16, 50, 0.5f);
    const h3_lora l = {.a = a.part[0], .b = up.part[0], .row0 = 7, .scale = 0.5f};
    w.lora = &l;
    w.n_lora = 1;
    for (int64_t S = 3; S < 40; S += 30) {
        h3_tensor x = normal(H3_F32, 0, EXTENTS(S, 300)), out = make(H3_F32, 0, EXTENTS(S, 60));
        AGREE(b, out, F32_REL, 4e-6, gemm(d, y, x, &w, H3_ACT_NONE));
    }
    drop_all();
}

/* ---------------------------------------------------------------- norms */

static void check_norms(bench *b)
{
    for (int i = 0; i < 12; i++) {
        const int64_t S = 1 + 40 * (i % 3), C = i % 4 == 0   ? 7
                                                : i % 4 == 1 ? 64
                                                : i % 4 == 2 ? 97
                                                             : 515;
        const h3_dtype t = i < 6 ? H3_F32 : H3_BF16;
        h3_tensor x = normal(t, GAP, EXTENTS(S, C)), out = make(t, GAP, EXTENTS(S, C));
        h3_tensor g = normal(H3_F32, 0, EXTENTS(C)), bias = normal(H3_F32, 0, EXTENTS(C));
        h3_tensor mod = normal(t, 3, EXTENTS(4, 6, C)), row = indices(S, 4, false);
        AGREE(b, out, rel_of(out, F32_REL), F32_ABS, rms_norm(d, y, x, g, 1e-5f, false));
        AGREE(b, out, 2 * rel_of(out, F32_REL), F32_ABS, rms_norm(d, y, x, none(), 1e-6f, true));
        AGREE(b, x, 2 * rel_of(out, F32_REL), F32_ABS, rms_norm(d, y, y, g, 1e-6f, true));
        AGREE(b, out, rel_of(out, F32_REL), rel_of(out, F32_REL) * 0.01 + F32_ABS,
              layer_norm(d, y, x, g, bias, 1e-5f));
        AGREE(b, x, rel_of(out, F32_REL), F32_ABS, layer_norm(d, y, y, none(), none(), 1e-5f));
        AGREE(b, out, 2 * rel_of(out, F32_REL), 2 * rel_of(out, F32_REL) + F32_ABS,
              rms_norm_mod(d, y, x, g, 1e-6f, mod, 3, 4, row));
        AGREE(b, x, 2 * rel_of(out, F32_REL), 2 * rel_of(out, F32_REL) + F32_ABS,
              rms_norm_mod(d, y, y, none(), 1e-6f, mod, 0, 5, row));
        h3_tensor h = normal(t, 3, EXTENTS(S, C)), two = normal(t, GAP, EXTENTS(2 * S, C));
        h3_tensor next = normal(t, 5, EXTENTS(4, 6, C));
        AGREE(b, two, 2 * rel_of(out, F32_REL), 2 * rel_of(out, F32_REL) + F32_ABS,
              gate_add_norm(d, h3_slice(y, 0, 0, S), h3_slice(y, 0, S, S), h, mod, 2, g, 1e-6f,
                            next, 3, 4, row));
        drop_all();
    }
}

static void check_group_norm(bench *b)
{
    for (int i = 0; i < 4; i++) {
        h3_tensor x = make(H3_F32, GAP, EXTENTS(8, 1 + i, 5, 9 + 8 * i));
        fill(x, 2, 3);
        h3_tensor g = normal(H3_F32, 0, EXTENTS(8)), bias = normal(H3_F32, 0, EXTENTS(8));
        AGREE(b, x, F32_REL, 4e-6, group_norm(d, y, y, g, bias, 4, 1e-6f, i & 1));
        drop_all();
    }
}

/* ---------------------------------------------------------------- attention */

static void check_head_norm_rope(bench *b)
{
    for (int i = 0; i < 16; i++) {
        const h3_dtype t = i & 1 ? H3_BF16 : H3_F32, tc = i & 2 ? H3_BF16 : H3_F32;
        const int64_t D = i & 4 ? 128 : 18, R = i & 8 ? D / 2 : D / 2 - 2, S = 13;
        h3_tensor x = normal(t, GAP, EXTENTS(S, 3, D)), g = normal(H3_F32, 0, EXTENTS(D));
        h3_tensor c = normal(tc, 0, EXTENTS(S, R)), s = normal(tc, 0, EXTENTS(S, R));
        const double wide = t == H3_BF16 || tc == H3_BF16 ? 1.0 / 50 : 4e-6;
        AGREE(b, x, wide, wide, head_norm_rope(d, y, g, 1e-6f, false, c, s));
        AGREE(b, x, wide, wide, head_norm_rope(d, y, none(), 1e-6f, true, none(), none()));
        AGREE(b, x, wide, wide, head_norm_rope(d, y, none(), 0, false, c, s));
        h3_tensor g2 = normal(H3_F32, 0, EXTENTS(D));
        for (int64_t H = 1; H < 3; H++) // q of H heads, k of 3 - H
            AGREE(b, x, wide, wide,
                  qk_norm_rope(d, h3_slice(y, 1, 0, H), h3_slice(y, 1, H, 3 - H), g, g2, 1e-6f,
                               i & 1, c, s));
        drop_all();
    }
}

/* q, k and v as views of one packed product [S, (H + 2 Hk) D]. */
static h3_tensor head_view(h3_tensor packed, int64_t from, int64_t n, int64_t D)
{
    h3_tensor t = packed;
    t.rank = 3;
    t.ne[1] = n;
    t.ne[2] = D;
    t.st[1] = D;
    t.st[2] = 1;
    t.data = h3_num_at(packed, from * D);
    return t;
}

static void check_attention(bench *b)
{
    static const struct {
        int64_t S, H, Hk, D;
        int32_t cu[5];
        int n;
    } cases[] = {
        {1, 1, 1, 16, {0, 1}, 1},
        {40, 2, 1, 32, {0, 40}, 1},
        {150, 4, 2, 72, {0, 0, 33, 33, 150}, 4},
        {300, 2, 2, 128, {0, 7, 300}, 2},
        {130, 1, 1, 256, {0, 130}, 1},
        {70, 2, 1, 300, {0, 65, 70}, 2},
        {64, 3, 1, 6, {0, 20, 64, 64}, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int v = 0; v < 4; v++) {
            const h3_dtype t = v & 1 ? H3_BF16 : H3_F32;
            const int64_t S = cases[i].S, H = cases[i].H, Hk = cases[i].Hk, D = cases[i].D;
            h3_tensor all = make(t, GAP, EXTENTS(S, (H + 2 * Hk) * D));
            fill(all, 2, 0);
            h3_tensor q = head_view(all, 0, H, D), k = head_view(all, H, Hk, D),
                      w = head_view(all, H + Hk, Hk, D), out = make(t, GAP, EXTENTS(S, H, D));
            const float scale = 1 / sqrtf((float)D);
            /* Scores reach 20 as sums of 256 terms: their f32 error of 5e-6 is an error of the
             * weights. */
            AGREE(b, out, rel_of(out, 3e-5), rel_of(out, 3e-5),
                  attention(d, y, q, k, w, scale, cases[i].cu, cases[i].n, v & 2));
            drop_all();
        }
}

/* ---------------------------------------------------------------- elementwise and rows */

static void check_elementwise(bench *b)
{
    for (int i = 0; i < 8; i++) {
        const int64_t S = i & 2 ? 11 : 300, C = i & 4 ? 45 : 96;
        const h3_dtype t = i & 1 ? H3_BF16 : H3_F32;
        h3_tensor x = normal(t, GAP, EXTENTS(S, C)), h = normal(t, 3, EXTENTS(S, C));
        h3_tensor mod = normal(t, 0, EXTENTS(5, 6, C)), row = indices(S, 5, false);
        h3_tensor g = normal(H3_F32, 0, EXTENTS(C)), out = make(t, GAP, EXTENTS(S, C));
        h3_tensor f32 = make(H3_F32, 1, EXTENTS(S, C)), half = make(H3_F16, 2, EXTENTS(S, C));
        fill(half, 1, 0);
        AGREE(b, x, EXACT, EXACT, gate_add(d, y, h, mod, 2, row));
        AGREE(b, x, EXACT, EXACT, scale_add(d, y, h, g));
        AGREE(b, x, EXACT, EXACT, scale_add_norm(d, clone(out), y, h, g, g, 1e-5f));
        AGREE(b, out, rel_of(out, F32_REL), rel_of(out, F32_ABS),
              scale_add_norm(d, y, clone(x), h, g, g, 1e-5f));
        AGREE(b, out, EXACT, EXACT, add(d, y, x, h));
        AGREE(b, x, EXACT, EXACT, add(d, y, y, h));
        AGREE(b, out, 2 * rel_of(out, F32_REL), F32_ABS, silu_mul(d, y, x, h));
        for (int a = 0; a < 4; a++)
            AGREE(b, out, rel_of(out, F32_REL), F32_ABS, act(d, y, x, (h3_act)a));
        AGREE(b, f32, F32_REL, F32_ABS, act(d, y, x, H3_ACT_SILU));
        AGREE(b, f32, EXACT, EXACT, copy(d, y, x));
        AGREE(b, out, EXACT, EXACT, copy(d, y, half));
        AGREE(b, half, EXACT, EXACT, copy(d, y, x));
        drop_all();
    }
}

static void check_rows(bench *b)
{
    for (int i = 0; i < 4; i++) {
        const h3_dtype t = i & 1 ? H3_BF16 : H3_F32, u = i & 2 ? H3_BF16 : H3_F32;
        h3_tensor big = normal(t, GAP, EXTENTS(50, 37)), few = normal(u, 1, EXTENTS(20, 37));
        h3_tensor any = indices(20, 50, false), one = indices(20, 50, true);
        AGREE(b, few, EXACT, EXACT, gather_rows(d, y, big, any));
        AGREE(b, big, EXACT, EXACT, scatter_rows(d, y, few, one));
        AGREE(b, big, EXACT, EXACT, scatter_add_rows(d, y, few, one));
        h3_tensor turned = make(u, GAP, EXTENTS(37, 50));
        AGREE(b, turned, EXACT, EXACT, transpose(d, y, big));
        drop_all();
    }
}

static void check_exact(bench *b)
{
    for (int64_t n = 5; n < 6000; n *= 33) {
        h3_tensor x = normal(H3_F32, GAP, EXTENTS(24, n)), v = normal(H3_F32, 1, EXTENTS(24, n));
        h3_tensor a = normal(H3_F32, 0, EXTENTS(24)), c = normal(H3_F32, 0, EXTENTS(24));
        AGREE(b, x, EXACT, EXACT, axpby(d, y, 0.3f, v, 0.7f));
        AGREE(b, x, EXACT, EXACT, affine_rows(d, y, v, a, c));
        AGREE(b, x, EXACT, EXACT, affine_rows(d, y, y, a, c));
        AGREE(b, x, EXACT, EXACT, clamp(d, y, y, -0.5f, 0.25f));
        AGREE(b, x, EXACT, EXACT, flow_step(d, y, v, 0.731f, 0.962f));
        drop_all();
    }
    h3_tensor x = normal(H3_F32, GAP, EXTENTS(3, 4, 5, 19));
    h3_tensor a = normal(H3_F32, 2, EXTENTS(3, 6, 7, 20));
    for (int axis = 1; axis < 4; axis++) {
        h3_tensor p = a;
        for (int k = 0; k < 4; k++)
            if (k != axis) p = h3_slice(p, k, 0, x.ne[k]);
        AGREE(b, x, EXACT, EXACT, fade(d, y, p, axis, 3));
    }
    h3_tensor u8 = make(H3_U8, 0, EXTENTS(4, 5, 19, 3));
    const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
    AGREE(b, u8, EXACT, EXACT, to_u8(d, y, x, mean, std));
    h3_tensor rows = normal(H3_F32, 1, EXTENTS(2 * 3 * 4, 3 * 2 * 5 * 5));
    h3_tensor px = make(H3_F32, GAP, EXTENTS(3, 4, 15, 20));
    AGREE(b, px, EXACT, EXACT, unpatchify(d, y, rows, 2, 3, 4, 2, 5));
    h3_tensor heads = normal(H3_F32, 0, EXTENTS(9, 4, 24)),
              means = make(H3_F32, GAP, EXTENTS(9, 6));
    AGREE(b, means, F32_REL, F32_ABS, mean_groups(d, y, heads));
    for (int64_t groups = 1; groups < 32; groups += 5) { // shared channels, and more groups than them
        means = make(H3_F32, GAP, EXTENTS(9, groups));
        AGREE(b, means, F32_REL, F32_ABS, mean_groups(d, y, heads));
    }
    drop_all();
}

static void check_check_finite(bench *b)
{
    h3_tensor x = normal(H3_F32, GAP, EXTENTS(30, 70)), z = normal(H3_BF16, 0, EXTENTS(3, 7));
    h3_dev *both[] = {b->ref, b->fast};
    for (int i = 0; i < 2; i++) {
        int bad = 0;
        assert_int_equal(both[i]->ops->check_finite(both[i], x, &bad), H3_OK);
        assert_int_equal(both[i]->ops->check_finite(both[i], z, &bad), H3_OK);
        assert_int_equal(bad, 0);
        float *last = h3_num_at(x, 29 * x.st[0] + 69);
        const float keep = *last;
        *last = i ? NAN : -INFINITY;
        assert_int_equal(both[i]->ops->check_finite(both[i], x, &bad), H3_OK);
        assert_int_equal(bad, 1);
        *last = keep;
        bad = 0;
        ((uint16_t *)z.data)[20] = 0x7f80;
        assert_int_equal(both[i]->ops->check_finite(both[i], z, &bad), H3_OK);
        assert_int_equal(bad, 1);
        ((uint16_t *)z.data)[20] = 0;
    }
    drop_all();
}

/* ---------------------------------------------------------------- convolutions and audio */

static void one_conv(bench *b, int64_t ci, int64_t co, const int64_t *in, h3_conv c, h3_encoding e,
                     bool add)
{
    int64_t out[3];
    for (int a = 0; a < 3; a++)
        out[a] = (in[a] + c.pad_lo[a] + c.pad_hi[a] - c.dilation[a] * (c.kernel[a] - 1) - 1) /
                     c.stride[a] +
                 1;
    h3_weight w = weight_of(co, ci * c.kernel[0] * c.kernel[1] * c.kernel[2]);
    plain_part(&w, e, co, 1 / sqrtf((float)w.cols));
    if (!add) with_bias(&w);
    h3_tensor x = normal(H3_F32, GAP, EXTENTS(ci, in[0], in[1], in[2]));
    h3_tensor out_t = make(H3_F32, 3, EXTENTS(co, out[0], out[1], out[2]));
    h3_tensor plus = add ? normal(H3_F32, 1, EXTENTS(co, out[0], out[1], out[2])) : none();
    AGREE(b, out_t, F32_REL, 4e-6, conv(d, y, x, &w, &c, plus));
    drop_all();
}

static void check_conv(bench *b)
{
    /* causal 3-D as in the video encoder, its strided and asymmetric form, a 1x1x1 */
    one_conv(b, 5, 7, (int64_t[]){4, 9, 37},
             (h3_conv){{3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {2, 1, 1}, {0, 1, 1}, {H3_PAD_EDGE, 0, 0}},
             H3_ENC_F32, false);
    one_conv(b, 6, 16, (int64_t[]){5, 12, 10},
             (h3_conv){{3, 3, 3}, {2, 2, 2}, {1, 1, 1}, {2, 0, 0}, {0, 1, 1}, {0, 0, 0}},
             H3_ENC_BF16, true);
    one_conv(b, 24, 24, (int64_t[]){2, 3, 5},
             (h3_conv){{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0}, {0}, {0}}, H3_ENC_F16, false);
    /* 1-D: dilated, reflected, edge */
    for (int k = 1; k <= 11; k += 5)
        for (int dil = 1; dil <= 5; dil += 2)
            one_conv(b, 12, 20, (int64_t[]){1, 1, 333},
                     (h3_conv){{1, 1, k},
                               {1, 1, 1},
                               {1, 1, dil},
                               {0, 0, (k - 1) * dil / 2},
                               {0, 0, (k - 1) * dil / 2},
                               {0, 0, (uint8_t)(k % 3)}},
                     H3_ENC_F32, dil == 3);
    /* long lines, alone and in pairs: outputs come two at a time, the last one alone */
    for (int i = 0; i < 12; i++) {
        static const int taps[] = {3, 4, 5, 7, 11, 16};
        const int k = taps[i % 6], dil = (int[]){5, 1, 3, 2, 7}[i % 5], pad = (k - 1) * dil / 2;
        one_conv(b, i % 4 ? 40 : 8, i % 3 ? 30 : 8, (int64_t[]){1, 1 + i / 6, 1 + 97 * i},
                 (h3_conv){{1, 1, k}, {1, 1, 1}, {1, 1, dil}, {0, 0, pad}, {0, 0, pad + dil}, {0}},
                 i % 2 ? H3_ENC_F32 : H3_ENC_BF16, i % 3 == 0);
    }
    one_conv(b, 3, 250, (int64_t[]){1, 1, 64},
             (h3_conv){{1, 1, 8}, {1, 1, 4}, {1, 1, 1}, {0, 0, 2}, {0, 0, 2}, {0, 0, 1}},
             H3_ENC_F32, false);
    one_conv(b, 40, 1, (int64_t[]){1, 1, 3000},
             (h3_conv){{1, 1, 7}, {1, 1, 1}, {1, 1, 1}, {0, 0, 3}, {0, 0, 3}, {0, 0, 0}},
             H3_ENC_F32, false);
    /* strided lines that clamping makes look contiguous at both ends: 0, 1, 3, 3 and 2, 4, 4 */
    for (uint8_t mode = 0; mode < 3; mode++)
        for (int64_t n = 4; n < 9; n++)
            one_conv(b, 2, 3, (int64_t[]){1, 1, n},
                     (h3_conv){{1, 1, 3}, {1, 1, 2}, {1, 1, 1}, {0, 0, 1}, {0, 0, 3}, {0, 0, mode}},
                     H3_ENC_F32, false);
    one_conv(b, 2, 3, (int64_t[]){3, 4, 6},
             (h3_conv){{2, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 2}, {0, 1, 2}, {1, 1, 2}},
             H3_ENC_F32, false);
}

static void check_conv_transpose1d(bench *b)
{
    static const struct {
        int64_t ci, co, n;
        int k, stride, pad;
        h3_encoding e;
    } cases[] = {{5, 7, 40, 4, 2, 1, H3_ENC_F32},     {33, 20, 17, 16, 8, 4, H3_ENC_F32},
                 {8, 3, 1, 11, 5, 3, H3_ENC_BF16},    {4, 4, 9, 3, 1, 1, H3_ENC_F32},
                 {300, 230, 5, 10, 5, 2, H3_ENC_F16}, {3, 2, 6, 2, 3, 0, H3_ENC_F32}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t n = (cases[i].n - 1) * cases[i].stride + cases[i].k - 2 * cases[i].pad;
        h3_weight w = weight_of(cases[i].ci, cases[i].co * cases[i].k);
        plain_part(&w, cases[i].e, w.rows, 1 / sqrtf((float)w.rows));
        w.bias = normal(H3_F32, 0, EXTENTS(cases[i].co));
        h3_tensor x = normal(H3_F32, GAP, EXTENTS(w.rows, cases[i].n));
        h3_tensor out = make(H3_F32, 3, EXTENTS(cases[i].co, n));
        AGREE(b, out, F32_REL, 4e-6,
              conv_transpose1d(d, y, x, &w, cases[i].k, cases[i].stride, cases[i].pad));
        drop_all();
    }
}

static void check_snake(bench *b)
{
    for (int64_t n = 1; n < 3000; n = n * 3 + 1) {
        h3_tensor x = make(H3_F32, GAP, EXTENTS(5, n)), out = make(H3_F32, 1, EXTENTS(5, n));
        h3_tensor a = make(H3_F32, 0, EXTENTS(5)), c = make(H3_F32, 0, EXTENTS(5));
        h3_tensor up = normal(H3_F32, 0, EXTENTS(12)), down = normal(H3_F32, 0, EXTENTS(12));
        fill(x, 2, 0);
        for (int i = 0; i < 5; i++) {
            ((float *)a.data)[i] = expf(random_normal());
            ((float *)c.data)[i] = expf(random_normal());
        }
        AGREE(b, out, F32_REL, F32_ABS, snake(d, y, x, a, c));
        AGREE(b, out, 8e-6, 8e-6, snake_aa(d, y, x, a, c, up, down));
        ((float *)x.data)[0] = 1e5f; // far arguments take the slow sine
        AGREE(b, out, F32_REL, F32_ABS, snake(d, y, x, a, c));
        drop_all();
    }
}

/* ---------------------------------------------------------------- the tests */

#define EVERYWHERE(name)                        \
    static void test_##name(void **unused)      \
    {                                           \
        (void)unused;                           \
        for (size_t i = 0; i < N_SETUPS; i++) { \
            bench b = open_bench(i);            \
            state = 1;                          \
            check_##name(&b);                   \
            close_bench(&b);                    \
        }                                       \
    }
EVERYWHERE(gemm)
EVERYWHERE(encodings)
EVERYWHERE(lora)
EVERYWHERE(norms)
EVERYWHERE(group_norm)
EVERYWHERE(head_norm_rope)
EVERYWHERE(attention)
EVERYWHERE(elementwise)
EVERYWHERE(rows)
EVERYWHERE(exact)
EVERYWHERE(check_finite)
EVERYWHERE(conv)
EVERYWHERE(conv_transpose1d)
EVERYWHERE(snake)

/* Opens "cpu" with the given math; NULL where this processor lacks it. */
static h3_dev *open_math(const char *math, int threads)
{
    const h3_dev_opts opts = {.n_threads = threads, .math = math};
    h3_dev *d = NULL;
    const h3_status st = h3_dev_open(&d, "cpu", &opts);
    assert_true(st == H3_OK || st == H3_E_UNSUPPORTED);
    return d;
}

/* bf16 products are exact and summed in f32: the tolerance of f32 holds. */
static void test_math_bf16(void **unused)
{
    static const int64_t sizes[][3] = {
        {9, 64, 40}, {70, 514, 500}, {33, 1030, 29}, {40, 33, 17}, {75, 1088, 290}};
    bench b = {.fast = open_math("bf16", 2)};
    (void)unused;
    if (!b.fast) skip();
    assert_int_equal(h3_dev_open(&b.ref, "ref", NULL), H3_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            const int64_t S = sizes[i][0], K = sizes[i][1], N = sizes[i][2];
            h3_weight w = weight_of(N, K);
            plain_part(&w, H3_ENC_BF16, N - N / 3, 1 / sqrtf((float)K));
            plain_part(&w, H3_ENC_BF16, N / 3, 1 / sqrtf((float)K));
            with_bias(&w);
            h3_tensor x = normal(H3_BF16, 2, EXTENTS(S, K));
            h3_tensor out = make(f32 ? H3_F32 : H3_BF16, GAP, EXTENTS(S, N));
            AGREE(&b, out, rel_of(out, F32_REL), f32 ? 4e-6 : 2e-3, gemm(d, y, x, &w, H3_ACT_SILU));
            drop_all();
        }
    check_attention(&b); // pairs of bf16 there, too
    close_bench(&b);
}

/* Weights whose rows AMX can load in place: parts are whole groups of rows, blocks end inside one,
 * passes are cut short; and too many rows of x for that. */
static void check_whole_groups(bench *b)
{
    static const int64_t S[] = {9, 40, 75, 150};
    for (size_t i = 0; i < sizeof S / sizeof *S; i++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            const int64_t K = i == 3 ? 608 : 1184;
            h3_weight w = weight_of(416, K);
            plain_part(&w, H3_ENC_BF16, 288, 1 / sqrtf((float)K));
            plain_part(&w, H3_ENC_BF16, 128, 1 / sqrtf((float)K));
            with_bias(&w);
            h3_tensor x = normal(is_bf16 ? H3_BF16 : H3_F32, 2, EXTENTS(S[i], K));
            h3_tensor out = make(H3_F32, GAP, EXTENTS(S[i], 416));
            AGREE(b, out, F32_REL, 4e-6, gemm(d, y, x, &w, H3_ACT_NONE));
            drop_all();
        }
}

/* Whatever this machine takes for the fastest way stays within the tolerances of f32. */
static void test_math_auto(void **unused)
{
    bench b = {.fast = open_math("auto", 2)};
    (void)unused;
    assert_non_null(b.fast);
    assert_int_equal(h3_dev_open(&b.ref, "ref", NULL), H3_OK);
    check_gemm(&b);
    check_whole_groups(&b);
    check_encodings(&b);
    check_lora(&b);
    check_conv(&b);
    check_conv_transpose1d(&b);
    close_bench(&b);
}

static void q8_part(h3_weight *w, int64_t rows)
{
    ggml_part(w, 8, rows, (const int[]){0, -1});
}

/* Rows of whole numbers that reach 127 are quantised without error, so the integer path must give
 * the reference's numbers; random rows lose what 8 bits lose. */
static void test_math_int8(void **unused)
{
    bench b = {.fast = open_math("int8", 2)};
    (void)unused;
    if (!b.fast) skip();
    assert_int_equal(h3_dev_open(&b.ref, "ref", NULL), H3_OK);
    for (int i = 0; i < 5; i++) {
        const int64_t S = 20 + 25 * i, K = i == 1 ? 1027 : i < 3 ? 1088 : 2336;
        const int64_t first = i ? 150 : 160, second = i ? 101 : 96; // whole groups once
        h3_weight w = weight_of(0, K);
        if (i < 3) {
            int8_part(&w, first, i == 2 ? 64 : 0);
            int8_part(&w, second, i == 2 ? 64 : 0);
        } else {
            q8_part(&w, first);
            q8_part(&w, second);
        }
        w.rows = first + second;
        with_bias(&w);
        h3_tensor x = make(i & 1 ? H3_BF16 : H3_F32, GAP, EXTENTS(S, K));
        h3_tensor out = make(H3_F32, GAP, EXTENTS(S, first + second));
        fill(x, 1, 0);
        AGREE(&b, out, 1e-2, 6e-2, gemm(d, y, x, &w, H3_ACT_NONE));
        if (i != 2) { // a rotated row is no longer whole
            for (int64_t s = 0; s < S; s++)
                for (int64_t k = 0; k < K; k++)
                    h3_num_store(x.data, x.dtype, s * x.st[0] + k,
                                 k == s ? -127.0f : (float)(int)(random_bits() % 255) - 127.0f);
            /* On AMX blocks of q8_0 are rounded to bf16 instead. */
            const bool is_rounded = i >= 3 && strstr(b.fast->detail, "AMX");
            AGREE(&b, out, is_rounded ? 1e-2 : F32_REL, is_rounded ? 2e-2 : 4e-6,
                  gemm(d, y, x, &w, H3_ACT_NONE));
        }
        drop_all();
    }
    /* The path is taken: a random row does lose something. */
    h3_weight w = weight_of(64, 256);
    int8_part(&w, 64, 0);
    h3_tensor x = normal(H3_F32, 0, EXTENTS(16, 256)), exact = make(H3_F32, 0, EXTENTS(16, 64));
    h3_tensor rough = clone(exact);
    assert_int_equal(b.ref->ops->gemm(b.ref, exact, x, &w, H3_ACT_NONE), H3_OK);
    assert_int_equal(b.fast->ops->gemm(b.fast, rough, x, &w, H3_ACT_NONE), H3_OK);
    assert_true(deviation(exact, rough, 1e-4, 1e-4) > 1);
    drop_all();
    close_bench(&b);
}

static void test_math_names(void **unused)
{
    const h3_dev_opts opts = {.math = "fp3"};
    h3_dev *d = NULL;
    (void)unused;
    assert_int_equal(h3_dev_open(&d, "cpu", &opts), H3_E_ARG);
    assert_null(d);
    assert_non_null(strstr(h3_error(), "fp3"));
}

/* The same bits for any number of threads. */
static void test_threads_do_not_matter(void **unused)
{
    bench one = open_bench(0), three = open_bench(1);
    (void)unused;
    h3_weight w = weight_of(500, 700);
    plain_part(&w, H3_ENC_BF16, 500, 0.03f);
    h3_tensor x = normal(H3_F32, 0, EXTENTS(130, 700)), a = make(H3_F32, 0, EXTENTS(130, 500));
    h3_tensor b = clone(a), q = normal(H3_F32, 0, EXTENTS(150, 2, 64)), o = clone(q), p = clone(q);
    const int32_t cu[] = {0, 150};
    assert_int_equal(one.fast->ops->gemm(one.fast, a, x, &w, H3_ACT_SILU), H3_OK);
    assert_int_equal(three.fast->ops->gemm(three.fast, b, x, &w, H3_ACT_SILU), H3_OK);
    assert_memory_equal(a.data, b.data, bytes_of(a));
    assert_int_equal(one.fast->ops->attention(one.fast, o, q, q, q, 0.125f, cu, 1, true), H3_OK);
    assert_int_equal(three.fast->ops->attention(three.fast, p, q, q, q, 0.125f, cu, 1, true),
                     H3_OK);
    assert_memory_equal(o.data, p.data, bytes_of(o));
    drop_all();
    close_bench(&one);
    close_bench(&three);
}

/* Nothing on the CPU may be the plain reference. */
static void test_every_entry_is_fast(void **unused)
{
    bench b = open_bench(0);
    (void)unused;
    for (int i = 0; i < H3_OP_COUNT; i++)
        if (b.fast->is_ref[i]) fail_msg("%s has no fast entry", h3_op_name((h3_op_id)i));
    close_bench(&b);
}

/* The plan device counts and touches nothing: all data pointers are bad. */
static void test_plan_counts(void **unused)
{
    h3_dev *d = NULL;
    h3_weight w = {.name = "w", .rows = 30, .cols = 20, .n_parts = 1};
    (void)unused;
    w.part[0] = (h3_weight_part){.rows = 30, .cols = 20, .row_bytes = 40, .encoding = H3_ENC_BF16};
    assert_int_equal(h3_dev_open(&d, "plan", NULL), H3_OK);
    h3_tensor x = h3_tensor_2d((void *)16, H3_F32, 7, 20),
              y = h3_tensor_2d((void *)16, H3_F32, 7, 30);
    assert_int_equal(d->ops->gemm(d, y, x, &w, H3_ACT_NONE), H3_OK);
    assert_int_equal(d->ops->add(d, y, y, y), H3_OK);
    assert_int_equal(d->stat[H3_OP_gemm].calls, 1);
    assert_true(d->stat[H3_OP_gemm].flops == 2.0 * 7 * 20 * 30);
    h3_dev_close(&d);
}

/* A comparison that cannot fail proves nothing: one wrong element, one touched gap, one NaN. */
static void test_comparison_can_fail(void **unused)
{
    (void)unused;
    h3_tensor x = normal(H3_F32, GAP, EXTENTS(20, 30)), y = clone(x);
    float *at = h3_num_at(y, 11 * y.st[0] + 13);
    assert_true(deviation(x, y, F32_REL, F32_ABS) <= 1);
    const float keep = *at;
    *at += 1e-4f;
    assert_false(deviation(x, y, F32_REL, F32_ABS) <= 1);
    *at = NAN;
    assert_false(deviation(x, y, F32_REL, F32_ABS) <= 1);
    *at = keep;
    *(float *)h3_num_at(y, 3 * y.st[0] + 30) = 0;
    assert_false(deviation(x, y, F32_REL, F32_ABS) <= 1);
    h3_tensor u = normal(H3_BF16, 0, EXTENTS(20, 30)), v = clone(u);
    ((uint16_t *)v.data)[77] += 3;
    assert_false(deviation(u, v, 1.0 / 120, F32_ABS) <= 1);
    drop_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comparison_can_fail),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_lora),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_group_norm),
        cmocka_unit_test(test_head_norm_rope),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_check_finite),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_transpose1d),
        cmocka_unit_test(test_snake),
        cmocka_unit_test(test_math_bf16),
        cmocka_unit_test(test_math_auto),
        cmocka_unit_test(test_math_int8),
        cmocka_unit_test(test_math_names),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_every_entry_is_fast),
        cmocka_unit_test(test_plan_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
