/**
 * The operations of a CUDA device against the reference: the table tests of tests/ops in f32 math,
 * and what only this backend has: 16-bit tensor cores, attention kernels, e4m3, kept copies of
 * weights. Without a GPU the program says so and passes.
 */
#include "staged.h"

int table_tests(void); // what the file below calls main

#define h3_dev_open open_staged
#define main        table_tests
#define N_SETUPS    1
#include "../ops/test_ops.c"
#undef main
#undef h3_dev_open

static h3_dev *open_cuda(const char *math)
{
    const h3_dev_opts opts = {.math = math};
    h3_dev *d = NULL;
    if (open_staged(&d, "cpu", &opts) != H3_OK) fail_msg("%s", h3_error());
    return d;
}

/* RMS of the difference over RMS of the expectation. */
static double relative(h3_tensor want, h3_tensor got)
{
    double e = 0, n = 0;
    for (int64_t r = 0; r < h3_n_rows(want); r++)
        for (int64_t c = 0, at = h3_row_offset(&want, r); c < want.ne[want.rank - 1]; c++) {
            const double w = (double)h3_num_load(want.data, want.dtype, at + c);
            const double d = (double)h3_num_load(got.data, got.dtype, at + c) - w;
            e += d * d;
            n += w * w;
        }
    return sqrt(e / (n > 0 ? n : 1));
}

#define CLOSE(out, limit, call)                                                       \
    do {                                                                              \
        h3_tensor y = clone(out);                                                     \
        h3_dev *const fast_ = d;                                                      \
        d = ref;                                                                      \
        assert_int_equal(d->ops->call, H3_OK);                                        \
        const h3_tensor want_ = y;                                                    \
        y = clone(out);                                                               \
        d = fast_;                                                                    \
        if (d->ops->call != H3_OK) fail_msg("%s: %s", #call, h3_error());             \
        const double e_ = relative(want_, y);                                         \
        if (!(e_ <= (limit))) fail_msg("%s: %s off by %g", fast_->detail, #call, e_); \
    } while (0)

static h3_dev *ref;

/* bf16 and f16 rows on tensor cores: 16-bit weights, weights of other types, biases. */
static void test_tensor_cores(void **unused)
{
    static const h3_encoding enc[] = {H3_ENC_BF16, H3_ENC_F32, H3_ENC_F16};
    h3_dev *d = open_cuda("auto");
    (void)unused;
    for (int i = 0; i < 12; i++) {
        const int64_t S = i & 1 ? 130 : 5, K = 192, N = i & 2 ? 264 : 40;
        const h3_dtype t = i & 4 ? H3_F16 : H3_BF16;
        h3_weight w = weight_of(N, K);
        plain_part(&w, enc[i % 3], N - 8, 1 / sqrtf((float)K));
        plain_part(&w, enc[(i + 1) % 3], 8, 1 / sqrtf((float)K));
        if (i & 1) with_bias(&w);
        h3_tensor x = make(t, 8, EXTENTS(S, K)), out = make(t, 8, EXTENTS(S, N)),
                  f32 = make(H3_F32, 4, EXTENTS(S, N));
        fill(x, 1, 0);
        CLOSE(out, 6e-3, gemm(d, y, x, &w, (h3_act)(i % 4)));
        CLOSE(f32, 4e-3, gemm(d, y, x, &w, H3_ACT_NONE));
        drop_all();
    }
    h3_dev_close(&d);
}

/* Rows on 16-byte boundaries take the wide loads and the rotation in registers. */
static void test_wide_rows(void **unused)
{
    static const int64_t heads[][3] = {
        {128, 48, 7}, {64, 24, 5}, {128, 64, 3}, {256, 96, 2}, {72, 32, 3}};
    bench b = {.ref = ref, .fast = open_cuda("f32")};
    (void)unused;
    for (int i = 0; i < 4; i++) {
        const h3_dtype t = i & 1 ? H3_BF16 : H3_F32;
        const int64_t S = 21, C = i & 2 ? 5376 : 264;
        h3_tensor x = normal(t, 8, EXTENTS(S, C)), h = normal(t, 16, EXTENTS(S, C)),
                  out = make(t, 8, EXTENTS(S, C)), g = normal(H3_F32, 0, EXTENTS(C)),
                  c = normal(H3_F32, 0, EXTENTS(C));
        h3_tensor mod = normal(t, 0, EXTENTS(5, 6, C)), row = indices(S, 5, false);
        AGREE(&b, out, rel_of(out, F32_REL), 4e-6, rms_norm(d, y, x, g, 1e-5f, i & 2));
        AGREE(&b, out, rel_of(out, F32_REL), 4e-6, layer_norm(d, y, x, g, c, 1e-5f));
        AGREE(&b, out, 2 * rel_of(out, F32_REL), 4e-6 + 8e-3 * (i & 1),
              rms_norm_mod(d, y, x, g, 1e-5f, mod, 0, 1, row));
        AGREE(&b, x, EXACT, EXACT, gate_add(d, y, h, mod, 2, row));
        AGREE(&b, x, EXACT, EXACT, scale_add(d, y, h, g));
        h3_tensor two = normal(t, 8, EXTENTS(2 * S, C));
        AGREE(&b, two, 2 * rel_of(out, F32_REL), 4e-6 + 8e-3 * (i & 1),
              gate_add_norm(d, h3_slice(y, 0, 0, S), h3_slice(y, 0, S, S), h, mod, 2, g, 1e-5f, mod,
                            3, 4, row));
        AGREE(&b, out, 2 * rel_of(out, F32_REL), 4e-6, silu_mul(d, y, x, h));
        drop_all();
        for (size_t k = 0; k < sizeof heads / sizeof *heads; k++) {
            const int64_t D = heads[k][0], R = heads[k][1], H = heads[k][2];
            h3_tensor q = normal(t, 8, EXTENTS(S, H, D)), gain = normal(H3_F32, 0, EXTENTS(D)),
                      co = normal(t, 0, EXTENTS(S, R)), si = normal(t, 8, EXTENTS(S, R));
            AGREE(&b, q, 2 * rel_of(q, 4e-6), rel_of(q, 4e-6),
                  head_norm_rope(d, y, gain, 1e-6f, i & 2, co, si));
            h3_tensor both = normal(t, 8, EXTENTS(S, 2 * H, D)), g2 = normal(H3_F32, 0, EXTENTS(D));
            AGREE(&b, both, 2 * rel_of(q, 4e-6), rel_of(q, 4e-6),
                  qk_norm_rope(d, h3_slice(y, 1, 0, H), h3_slice(y, 1, H, H), gain, g2, 1e-6f,
                               i & 2, co, si));
            AGREE(&b, q, 2 * rel_of(q, 4e-6), rel_of(q, 4e-6),
                  head_norm_rope(d, y, none(), 0, false, co, si));
            AGREE(&b, q, 2 * rel_of(q, 4e-6), rel_of(q, 4e-6),
                  head_norm_rope(d, y, gain, 1e-6f, false, none(), none()));
            drop_all();
        }
    }
    h3_dev_close(&b.fast);
}

/* A number that no weight can be is found at any place, and none where there is none. */
static void test_scan(void **unused)
{
    static const unsigned char bad[4][4] = {{0, 0, 0xc0, 0x7f}, {0x80, 0x7f}, {0, 0x7c}, {0x7f}};
    static const size_t size[] = {4, 2, 2, 1}, n = 5003;
    h3_dev *d = NULL;
    unsigned char *host = calloc(n, 210);
    void *p = NULL;
    int *flag = NULL;

    (void)unused;
    if (h3_dev_open(&d, "cuda", NULL) != H3_OK) fail_msg("%s", h3_error());
    assert_int_equal(d->alloc(d, &p, n * 210), H3_OK);
    assert_int_equal(d->pin(d, (void **)&flag, sizeof *flag), H3_OK);
    for (int kind = 0; kind < 4; kind++)
        for (int k = 0; k < 5; k++) {
            const size_t stride = k < 4 ? size[kind] : 210;
            const size_t at[] = {0, 17, n - 1, 2 * n, 1234};
            memset(host, 0, n * stride);
            if (at[k] < n) memcpy(host + at[k] * stride, bad[kind], size[kind]);
            assert_int_equal(d->upload(d, p, host, n * stride), H3_OK);
            *flag = 0;
            assert_int_equal(d->scan(d, p, (h3_scan)kind, stride, n, flag), H3_OK);
            assert_int_equal(d->sync(d), H3_OK);
            assert_int_equal(*(volatile int *)flag, at[k] < n);
        }
    d->unpin(d, flag);
    d->dealloc(d, p);
    free(host);
    h3_dev_close(&d);
}

/* With a bias only where the caller bears it. */
static void test_e4m3_bias(void **unused)
{
    h3_dev *d = open_cuda("fp8");
    const int64_t S = 1600, K = 192, N = 48;
    h3_weight w = weight_of(N, K);

    (void)unused;
    plain_part(&w, H3_ENC_F32, N, 1 / sqrtf((float)K));
    with_bias(&w);
    h3_tensor x = make(H3_BF16, 8, EXTENTS(S, K)), out = make(H3_BF16, 8, EXTENTS(S, N));
    fill(x, 1, 0);
    CLOSE(out, 6e-3, gemm(d, y, x, &w, H3_ACT_NONE));
    d->is_tolerant = true;
    CLOSE(out, 4e-2, gemm(d, y, x, &w, H3_ACT_NONE));
    h3_tensor y = clone(out);
    assert_int_equal(d->ops->gemm(d, y, x, &w, H3_ACT_NONE), H3_OK);
    d->is_tolerant = false;
    h3_tensor exact = clone(out);
    assert_int_equal(d->ops->gemm(d, exact, x, &w, H3_ACT_NONE), H3_OK);
    assert_true(relative(exact, y) > 5e-3); // it was e4m3
    drop_all();
    h3_dev_close(&d);
}

/* The video decoder's stream: f32 rows under 16-bit products. */
static void test_residuals(void **unused)
{
    static const int64_t cols[] = {2048, 264, 48, 2304}; // the last two take the two kernels
    bench b = {.ref = ref, .fast = open_cuda("f32")};
    (void)unused;
    for (int i = 0; i < 8; i++) {
        const h3_dtype t = i & 1 ? H3_F16 : H3_BF16;
        const int64_t S = 19, C = cols[i / 2];
        h3_tensor x = normal(H3_F32, 8, EXTENTS(S, C)), h = normal(t, 16, EXTENTS(S, C)),
                  out = make(t, 8, EXTENTS(S, C)), g = normal(H3_F32, 0, EXTENTS(C)),
                  s = normal(H3_F32, 0, EXTENTS(C));
        AGREE(&b, x, EXACT, EXACT, scale_add_norm(d, clone(out), y, h, s, g, 1e-5f));
        const double rel = t == H3_F16 ? 1.0 / 900 : 1.0 / 120; // a step of the type
        AGREE(&b, out, rel, 4e-6, scale_add_norm(d, y, clone(x), h, s, g, 1e-5f));
        AGREE(&b, h, rel, 4e-6, scale_add_norm(d, y, clone(x), y, s, g, 1e-5f));
        drop_all();
    }
    h3_dev_close(&b.fast);
}

/* Heads without gains under f32 tables, q and k packed as a product leaves them. */
static void test_vit_heads(void **unused)
{
    static const int64_t shapes[][4] = {{64, 24, 32, 32}, {64, 32, 3, 5}, {128, 48, 9, 2}};
    bench b = {.ref = ref, .fast = open_cuda("f32")};
    (void)unused;
    for (int i = 0; i < 6; i++) {
        const h3_dtype t = i & 1 ? H3_F16 : H3_BF16;
        const int64_t *z = shapes[i / 2], D = z[0], R = z[1], H = z[2], K = z[3], S = 13;
        h3_tensor both = normal(t, 8, EXTENTS(S, H + K, D)), co = normal(H3_F32, 0, EXTENTS(S, R)),
                  si = normal(H3_F32, 8, EXTENTS(S, R));
        const double rel = t == H3_F16 ? 1.0 / 900 : 1.0 / 120;
        AGREE(&b, both, 2 * rel, rel,
              qk_norm_rope(d, h3_slice(y, 1, 0, H), h3_slice(y, 1, H, K), none(), none(), 1e-6f,
                           false, co, si));
        drop_all();
    }
    h3_dev_close(&b.fast);
}

/* Convolutions of lines by halves on tensor cores: f32 to 2e-6, at any size of numbers. */
static void test_lines(void **unused)
{
    static const struct {
        int64_t co, ci, n;
        int32_t taps, dilation, pad;
    } at[] = {{16, 16, 64, 3, 1, 1},    {40, 24, 131, 7, 3, 9}, {64, 72, 300, 11, 5, 25},
              {130, 33, 257, 7, 1, 3},  {32, 64, 96, 1, 1, 0},  {48, 32, 70, 3, 1, 0},
              {12, 12, 400, 11, 5, 25}, {1, 12, 90, 7, 1, 3},   {96, 256, 128, 3, 1, 1}};
    h3_dev *d = open_cuda("auto");
    (void)unused;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        const int64_t n_out = at[i].n + 2 * at[i].pad - (at[i].taps - 1) * at[i].dilation;
        const h3_conv c = {.kernel = {1, 1, at[i].taps},
                           .stride = {1, 1, 1},
                           .dilation = {1, 1, at[i].dilation},
                           .pad_lo = {0, 0, at[i].pad},
                           .pad_hi = {0, 0, at[i].pad}};
        const h3_tensor x = make(H3_F32, 8, EXTENTS(at[i].ci, 1, 1, at[i].n)),
                        out = make(H3_F32, 8, EXTENTS(at[i].co, 1, 1, n_out)),
                        add = make(H3_F32, 8, EXTENTS(at[i].co, 1, 1, n_out));
        h3_weight w = weight_of(at[i].co, at[i].ci * at[i].taps);
        plain_part(&w, H3_ENC_F32, at[i].co, i == 2 ? 1e-9f : i == 3 ? 1e5f : 1);
        if (i & 1) with_bias(&w);
        fill(x, i == 2 ? 1e7f : i == 4 ? 1e-12f : 1, 0);
        fill(add, i == 4 ? 1e-12f : 1, 0);
        CLOSE(out, 2e-6, conv(d, y, x, &w, &c, i & 2 ? add : none()));
        drop_all();
    }
    h3_dev_close(&d);
}

/* Both attention kernels of our own (and cuDNN where there is one) in 16 bit. */
static void test_attention_16(void **unused)
{
    static const struct {
        int64_t S, H, Hk, D;
        int32_t cu[4];
        int n;
        bool causal;
    } cases[] = {{200, 3, 3, 64, {0, 200}, 1, false},
                 {150, 4, 2, 128, {0, 150}, 1, true},
                 {300, 2, 2, 128, {0, 100, 200, 300}, 3, false},
                 {97, 2, 1, 72, {0, 30, 30, 97}, 3, true},
                 {130, 2, 2, 72, {0, 60, 130}, 2, false},
                 {70, 2, 1, 256, {0, 70}, 1, true},
                 {90, 2, 2, 256, {0, 90}, 1, false},
                 {33, 1, 1, 16, {0, 33}, 1, true}};
    h3_dev *d = open_cuda("auto");
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int v = 0; v < 2; v++) {
            const h3_dtype t = v ? H3_F16 : H3_BF16;
            const int64_t S = cases[i].S, H = cases[i].H, Hk = cases[i].Hk, D = cases[i].D;
            h3_tensor all = make(t, 8, EXTENTS(S, (H + 2 * Hk) * D)),
                      out = make(t, 0, EXTENTS(S, H, D));
            fill(all, 1.5f, 0);
            h3_tensor q = head_view(all, 0, H, D), k = head_view(all, H, Hk, D),
                      w = head_view(all, H + Hk, Hk, D);
            CLOSE(out, 6e-3,
                  attention(d, y, q, k, w, 1 / sqrtf((float)D), cases[i].cu, cases[i].n,
                            cases[i].causal));
            drop_all();
        }
    h3_dev_close(&d);
}

/* Products whose rows come quantised from the operation before, and those that quantise themselves.
 */
static void test_e4m3(void **unused)
{
    enum { S = 1600, C = 256, F = 512 };
    h3_dev *d = open_cuda("fp8");
    (void)unused;
    h3_weight w = weight_of(F, C);
    plain_part(&w, H3_ENC_BF16, F, 0.1f);
    h3_tensor x = normal(H3_BF16, 0, EXTENTS(S, C)), out = make(H3_BF16, 0, EXTENTS(S, F));
    CLOSE(out, 0.05, gemm(d, y, x, &w, H3_ACT_NONE));
    drop_all();
    h3_dev_close(&d);

    /* On the device without staging: norm, product, product after silu. */
    const h3_dev_opts opts = {.math = "fp8"};
    assert_int_equal(h3_dev_open(&d, "cuda", &opts), H3_OK);
    h3_tensor hx = normal(H3_BF16, 0, EXTENTS(S, C)), mod = normal(H3_BF16, 0, EXTENTS(3, 6, C)),
              row = indices(S, 3, false), hy = make(H3_BF16, 0, EXTENTS(S, F)),
              hz = make(H3_BF16, 0, EXTENTS(S, C));
    h3_weight a = weight_of(F, C), b = weight_of(C, F / 2);
    plain_part(&a, H3_ENC_BF16, F, 0.1f);
    plain_part(&b, H3_ENC_BF16, C, 0.1f);
    h3_tensor dx, dm, dr, dh, dy, ds, dz;
    const int64_t nx[] = {S, C}, nm[] = {3, 6, C}, nr[] = {S}, ny[] = {S, F}, ns[] = {S, F / 2};
    assert_int_equal(h3_dev_alloc(d, &dx, H3_BF16, 2, nx), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &dm, H3_BF16, 3, nm), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &dr, H3_I32, 1, nr), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &dh, H3_BF16, 2, nx), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &dy, H3_BF16, 2, ny), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &ds, H3_BF16, 2, ns), H3_OK);
    assert_int_equal(h3_dev_alloc(d, &dz, H3_BF16, 2, nx), H3_OK);
    assert_int_equal(h3_dev_upload(d, dx, hx.data), H3_OK);
    assert_int_equal(h3_dev_upload(d, dm, mod.data), H3_OK);
    assert_int_equal(h3_dev_upload(d, dr, row.data), H3_OK);
    const h3_tensor none_t = none();
    for (int i = 0; i < 2; i++) { // the reference, then the device
        h3_dev *e = i ? d : ref;
        h3_tensor X = i ? dx : hx, M = i ? dm : mod, R = i ? dr : row,
                  H = i ? dh : make(H3_BF16, 0, EXTENTS(S, C)), Y = i ? dy : hy,
                  Sm = i ? ds : make(H3_BF16, 0, EXTENTS(S, F / 2)), Z = i ? dz : hz;
        e->reader = &a; // nobody but the product reads the rows
        assert_int_equal(e->ops->rms_norm_mod(e, H, X, none_t, 1e-5f, M, 0, 1, R), H3_OK);
        e->reader = NULL;
        for (int64_t at = 0; at < S; at += S / 2) { // bands, as in the MLP
            e->whole_rows = S;
            assert_int_equal(e->ops->gemm(e, h3_slice(Y, 0, at, S / 2), h3_slice(H, 0, at, S / 2),
                                          &a, H3_ACT_NONE),
                             H3_OK);
            e->whole_rows = 0;
        }
        e->reader = &b;
        assert_int_equal(
            e->ops->silu_mul(e, Sm, h3_slice(Y, 1, 0, F / 2), h3_slice(Y, 1, F / 2, F / 2)), H3_OK);
        e->reader = NULL;
        if (e->ops->gemm(e, Z, Sm, &b, H3_ACT_NONE) != H3_OK) fail_msg("%s", h3_error());
        e->reader = &a; // the end of one half and the start of the next, over what is there
        assert_int_equal(e->ops->gate_add_norm(e, Z, X, Z, M, 2, none_t, 1e-5f, M, 3, 4, R), H3_OK);
        e->reader = NULL;
        if (e->ops->gemm(e, Y, Z, &a, H3_ACT_NONE) != H3_OK) fail_msg("%s", h3_error());
    }
    h3_tensor got = make(H3_BF16, 0, EXTENTS(S, F)), sum = make(H3_BF16, 0, EXTENTS(S, C));
    assert_int_equal(h3_dev_download(d, got.data, dy), H3_OK);
    assert_int_equal(h3_dev_download(d, sum.data, dx), H3_OK);
    const double e = relative(hy, got), e2 = relative(hx, sum);
    if (!(e < 0.08 && e2 < 0.08)) fail_msg("e4m3 chain off by %g and %g", e, e2);
    h3_tensor *const all[] = {&dx, &dm, &dr, &dh, &dy, &ds, &dz};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h3_dev_free(d, all[i]);
    h3_dev_weight_free(d, &a);
    h3_dev_weight_free(d, &b);
    drop_all();
    h3_dev_close(&d);
}

/* One long document; rows that fill whole tiles of keys and of queries, or neither, and heads that
 * share keys. Values have a mean, so that sums which forget small numbers show. */
static void long_documents(const char *math, double tolerance)
{
    enum { D = 128 };
    static const struct {
        int32_t S, H, Hk;
    } cases[] = {{1601, 2, 2}, {3072, 1, 1}, {3201, 2, 1}};
    h3_dev *d = open_cuda(math);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t S = cases[i].S, H = cases[i].H, Hk = cases[i].Hk, cu[] = {0, S};
        h3_tensor all = make(H3_BF16, 0, EXTENTS(S, (H + 2 * Hk) * D)),
                  out = make(H3_BF16, 0, EXTENTS(S, H, D));
        fill(all, 1, 0);
        h3_tensor q = head_view(all, 0, H, D), k = head_view(all, H, Hk, D),
                  w = head_view(all, H + Hk, Hk, D);
        fill(w, 1, 0.5f);
        CLOSE(out, tolerance, attention(d, y, q, k, w, 1 / sqrtf((float)D), cu, 1, false));
        drop_all();
    }
    h3_dev_close(&d);
}

static void test_attention_long(void **unused)
{
    (void)unused;
    long_documents("auto", 6e-3);
}

static void test_attention_e4m3(void **unused)
{
    (void)unused;
    long_documents("fp8", 0.03);
}

static h3_tensor on_device(h3_dev *d, h3_tensor host)
{
    h3_tensor t;
    assert_int_equal(h3_dev_alloc(d, &t, (h3_dtype)host.dtype, host.rank, host.ne), H3_OK);
    assert_int_equal(h3_dev_upload(d, t, host.data), H3_OK);
    return t;
}

/* As a block has it: q and k normed and rotated in place, which under fp8 leaves their e4m3 forms
 * for the attention behind it. */
static void test_heads_e4m3(void **unused)
{
    enum { S = 1600, H = 2, D = 128, R = 48 };
    const int32_t cu[] = {0, S};
    const h3_dev_opts opts = {.math = "fp8"};
    const float scale = 1 / sqrtf((float)D);
    h3_dev *const at[2] = {ref, NULL};
    h3_tensor out[2];
    h3_dev *d = NULL;
    (void)unused;
    if (h3_dev_open(&d, "cuda", &opts) != H3_OK) fail_msg("%s", h3_error());
    h3_tensor all = make(H3_BF16, 0, EXTENTS(S, 3 * H * D)), co = make(H3_BF16, 0, EXTENTS(S, R)),
              si = make(H3_BF16, 0, EXTENTS(S, R)), g = make(H3_F32, 0, EXTENTS(D));
    fill(all, 3, 0);
    fill(g, 0.1f, 1);
    for (int64_t i = 0; i < (int64_t)S * R; i++) { // a rotation: what the norm promises holds
        const float angle = 3 * random_normal();
        h3_num_store(co.data, co.dtype, i, cosf(angle));
        h3_num_store(si.data, si.dtype, i, sinf(angle));
    }
    for (int i = 0; i < 2; i++) {
        h3_dev *const b = at[i] ? at[i] : d;
        h3_tensor x = all, c = co, s = si, gain = g;
        out[i] = make(H3_BF16, 0, EXTENTS(S, H, D));
        h3_tensor o = out[i];
        if (b == d)
            x = on_device(d, all), c = on_device(d, co), s = on_device(d, si),
            gain = on_device(d, g), o = on_device(d, out[i]);
        else
            x = clone(all);
        const h3_tensor q = head_view(x, 0, H, D), k = head_view(x, H, H, D),
                        v = head_view(x, 2 * H, H, D);
        for (int again = 0; again < 2; again++) { // the second time norms what is normed
            b->reader = again ? &h3_reader_attention : NULL;
            assert_int_equal(b->ops->qk_norm_rope(b, q, k, gain, gain, 1e-5f, false, c, s), H3_OK);
            b->reader = NULL;
        }
        assert_int_equal(b->ops->attention(b, o, q, k, v, scale, cu, 1, false), H3_OK);
        if (b == d) assert_int_equal(h3_dev_download(d, out[i].data, o), H3_OK);
    }
    const double far = relative(out[0], out[1]);
    if (!(far <= 0.08)) fail_msg("%s: off by %g", d->detail, far);
    drop_all();
    h3_dev_close(&d);
}

/* A name as argument (with * for any run) picks tests. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
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
        cmocka_unit_test(test_math_names),
        cmocka_unit_test(test_every_entry_is_fast),
        cmocka_unit_test(test_wide_rows),
        cmocka_unit_test(test_residuals),
        cmocka_unit_test(test_scan),
        cmocka_unit_test(test_e4m3_bias),
        cmocka_unit_test(test_vit_heads),
        cmocka_unit_test(test_tensor_cores),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_attention_16),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_attention_long),
        cmocka_unit_test(test_attention_e4m3),
        cmocka_unit_test(test_heads_e4m3),
    };
    h3_dev *d = NULL;

    if (h3_dev_open(&d, "cuda", NULL) != H3_OK) {
        printf("no CUDA device, nothing was tested: %s\n", h3_error());
        return 0;
    }
    printf("%s\n", d->detail);
    h3_dev_close(&d);
    if (h3_dev_open(&ref, "ref", NULL) != H3_OK) return 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    h3_dev_close(&ref);
    return failed;
}
