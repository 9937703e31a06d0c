/**
 * Matrices that a device holds in the form its products take (h3_dev.form): the products are bit
 * for bit those of a store that was told nothing, what is held is what was promised, and what is
 * stored comes back for whoever asks for it. Without a GPU the program says so and passes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "cuda.h"
#include "half.h"
#include "writer.h"

enum { N = 320, K = 512, S = 48, N_WEIGHTS = 3 };
static const h3_dtype types[N_WEIGHTS] = {H3_F32, H3_BF16, H3_F16};
static const uint8_t encodings[N_WEIGHTS] = {H3_ENC_F32, H3_ENC_BF16, H3_ENC_F16};

typedef struct fixture {
    char path[64];
    h3_manifest *m;
    h3_dev *d;
    h3_store *s;
    h3_weight w[N_WEIGHTS];
} fixture;

static float number(int i)
{
    return (float)((i * 37 + i / 7) % 201 - 100) / 512.0f;
}

static void write_file(const char *path)
{
    const int64_t ne[2] = {N, K};
    h3_writer *w = NULL;
    char name[8];

    assert_int_equal(h3_writer_open(&w, path), H3_OK);
    for (int g = 0; g < N_WEIGHTS; g++) {
        snprintf(name, sizeof name, "w%d", g);
        assert_int_equal(h3_writer_declare(w, name, types[g], 2, ne), H3_OK);
    }
    assert_int_equal(h3_writer_begin(w), H3_OK);
    for (int g = 0; g < N_WEIGHTS; g++)
        for (int i = 0; i < N * K; i++) {
            const float x = number(i + g);
            const uint16_t h = g == 1 ? h3_f32_to_bf16(x) : h3_f32_to_f16(x);
            assert_int_equal(h3_writer_put(w, g ? (const void *)&h : &x, h3_dtype_bytes(types[g])),
                             H3_OK);
        }
    assert_int_equal(h3_writer_commit(&w), H3_OK);
}

static void open_store(fixture *f, const char *math)
{
    const h3_dev_opts o = {.math = math};
    char name[8];

    assert_int_equal(h3_dev_open(&f->d, "cuda", &o), H3_OK);
    assert_int_equal(h3_manifest_open(&f->m, f->path), H3_OK);
    assert_int_equal(h3_store_create(&f->s, f->d), H3_OK);
    for (int g = 0; g < N_WEIGHTS; g++) {
        snprintf(name, sizeof name, "w%d", g);
        const h3_entry *e = h3_manifest_find(f->m, name);
        assert_non_null(e);
        f->w[g] = (h3_weight){.name = "test", .rows = N, .cols = K, .n_parts = 1};
        f->w[g].part[0] = (h3_weight_part){.data = e->data,
                                           .rows = N,
                                           .cols = K,
                                           .full_rows = N,
                                           .row_bytes = K * h3_dtype_bytes(types[g]),
                                           .bytes = e->bytes,
                                           .encoding = encodings[g],
                                           .global = 1};
        assert_int_equal(h3_store_add(f->s, g, &f->w[g]), H3_OK);
    }
}

static void close_store(fixture *f)
{
    h3_store_free(&f->s);
    h3_dev_close(&f->d);
    h3_manifest_close(&f->m);
}

static void tell(fixture *f, h3_dtype act)
{
    for (int g = 0; g < N_WEIGHTS; g++)
        h3_store_meets(f->s, g, act, S, false);
}

/* Products of rows of type `act` with every matrix; bytes for the caller to free. */
static unsigned char *products(fixture *f, h3_dtype act)
{
    const size_t each = h3_dtype_bytes(act), bytes = S * N * each;
    unsigned char *out = malloc(N_WEIGHTS * bytes), *rows = malloc(S * K * each);
    const int64_t ne_x[2] = {S, K}, ne_y[2] = {S, N};
    h3_tensor x, y;

    for (int i = 0; i < S * K; i++) {
        const float v = 8 * number(3 * i);
        const uint16_t h = h3_f32_to_bf16(v);
        memcpy(rows + (size_t)i * each, act == H3_F32 ? (const void *)&v : &h, each);
    }
    assert_int_equal(h3_dev_alloc(f->d, &x, act, 2, ne_x), H3_OK);
    assert_int_equal(h3_dev_alloc(f->d, &y, act, 2, ne_y), H3_OK);
    assert_int_equal(h3_dev_upload(f->d, x, rows), H3_OK);
    for (int g = 0; g < N_WEIGHTS; g++) {
        if (h3_store_acquire(f->s, g) != H3_OK) fail_msg("%s", h3_error());
        if (f->d->ops->gemm(f->d, y, x, &f->w[g], H3_ACT_NONE) != H3_OK) fail_msg("%s", h3_error());
        h3_store_release(f->s, g);
        assert_int_equal(h3_dev_download(f->d, out + (size_t)g * bytes, y), H3_OK);
    }
    h3_dev_free(f->d, &x);
    h3_dev_free(f->d, &y);
    free(rows);
    return out;
}

static void same(const unsigned char *a, const unsigned char *b, h3_dtype act)
{
    assert_memory_equal(a, b, N_WEIGHTS * S * N * h3_dtype_bytes(act));
}

/* Bytes of matrices, forms and scales that the device has now; its buffers do not count. */
static size_t on_device(const fixture *f)
{
    const h3_backend *b = f->d->backend;
    const h3_cuda_buffer *buffers[] = {&b->lt_work, &b->sdpa_work, &b->operand,  &b->columns,
                                       &b->wide,    &b->quant[0],  &b->quant[1], &b->attn8};
    size_t n = b->allocated;

    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        n -= buffers[i]->bytes;
    return n;
}

/* What each math and type of rows makes of an F32, a BF16 and an F16 matrix: bytes held. */
static void forms_of(const char *math, size_t held, size_t untold)
{
    fixture f = {.path = ""};
    unsigned char *want, *got, *f32;

    snprintf(f.path, sizeof f.path, "/tmp/h3av-forms-%ld.safetensors", (long)getpid());
    write_file(f.path);
    open_store(&f, math);
    size_t before = on_device(&f);
    want = products(&f, H3_BF16);
    assert_int_equal(on_device(&f) - before, untold);
    h3_store_drop(f.s);
    f32 = products(&f, H3_F32);
    close_store(&f);

    open_store(&f, math);
    before = on_device(&f);
    tell(&f, H3_BF16);
    size_t on_the_way = 0;
    const size_t stored = 8 * (size_t)N * K;
    const int64_t saved = h3_store_saved(f.s, &on_the_way);
    assert_int_equal(saved, stored - held);
    assert_int_equal(on_the_way, saved ? 4 * (size_t)N * K : 0);
    got = products(&f, H3_BF16);
    same(want, got, H3_BF16);
    free(got);
    assert_int_equal(on_device(&f) - before, held);
    assert_int_equal(h3_store_held(f.s), held);
    assert_true(h3_store_is_resident(f.s));
    tell(&f, H3_BF16); // the same again: nothing moves
    assert_true(h3_store_is_resident(f.s));

    got = products(&f, H3_F32); // nobody said so: what is stored comes back beside
    same(f32, got, H3_F32);
    free(got);
    tell(&f, H3_F32);
    assert_int_equal(h3_store_saved(f.s, NULL), 0);
    if (saved) assert_int_equal(on_device(&f), before); // all of it went
    got = products(&f, H3_F32);
    same(f32, got, H3_F32);
    free(got);
    assert_int_equal(on_device(&f) - before, stored);

    /* Too little for what is stored, enough for the forms and the largest group on its way. */
    f.d->weight_budget = held + 4 * (size_t)N * K;
    tell(&f, H3_BF16);
    got = products(&f, H3_BF16);
    same(want, got, H3_BF16);
    free(got);
    assert_true(h3_store_is_resident(f.s));
    f.d->weight_budget = held < stored ? held : stored / 2; // not enough: some stream, as stored
    got = products(&f, H3_BF16);
    same(want, got, H3_BF16);
    free(got);
    assert_false(h3_store_is_resident(f.s));
    close_store(&f);
    unlink(f.path);
    free(want);
    free(f32);
}

static void test_bf16(void **unused)
{
    (void)unused;
    forms_of("auto", 3 * 2 * (size_t)N * K, (4 + 2 + 2 + 2 + 2) * (size_t)N * K);
}

static void test_f32(void **unused)
{
    (void)unused;
    forms_of("f32", 8 * (size_t)N * K, 8 * (size_t)N * K);
}

static void test_fp8(void **unused)
{
    const size_t form = (size_t)N * K + N * sizeof(float);

    (void)unused;
    setenv("H3_CUDA_FP8_ROWS", "1", 1);
    forms_of("fp8", 3 * form, (4 + 2 + 2 + 2 + 2) * (size_t)N * K + 3 * form);
    unsetenv("H3_CUDA_FP8_ROWS");
}

/* With an adapter the form is the sum: a matrix of the right type already goes too. */
static void test_adapters(void **unused)
{
    enum { RANK = 4 };
    static float a[RANK * K], b[N * RANK];
    const size_t bytes_a = sizeof a, bytes_b = sizeof b;
    const h3_weight_part part = {.encoding = H3_ENC_F32, .global = 1};
    h3_lora l = {.a = part, .b = part, .weight_rows = N, .scale = 0.5f};
    unsigned char *seen[2];
    size_t taken[2];

    (void)unused;
    for (int i = 0; i < RANK * K; i++)
        a[i] = number(5 * i);
    for (int i = 0; i < N * RANK; i++)
        b[i] = number(11 * i);
    l.a.data = a, l.a.rows = l.a.full_rows = RANK, l.a.cols = K;
    l.a.row_bytes = K * sizeof *a, l.a.bytes = bytes_a;
    l.b.data = b, l.b.rows = l.b.full_rows = N, l.b.cols = RANK;
    l.b.row_bytes = RANK * sizeof *b, l.b.bytes = bytes_b;
    for (int told = 0; told < 2; told++) {
        fixture f = {.path = ""};
        snprintf(f.path, sizeof f.path, "/tmp/h3av-forms-%ld.safetensors", (long)getpid());
        write_file(f.path);
        open_store(&f, "auto");
        for (int g = 0; g < N_WEIGHTS; g++)
            f.w[g].lora = &l, f.w[g].n_lora = 1;
        const size_t before = on_device(&f);
        if (told) tell(&f, H3_BF16);
        seen[told] = products(&f, H3_BF16);
        taken[told] = on_device(&f) - before;
        close_store(&f);
        unlink(f.path);
    }
    same(seen[0], seen[1], H3_BF16);
    assert_int_equal(taken[0] - taken[1], 8 * (size_t)N * K); // all that was stored
    free(seen[0]);
    free(seen[1]);
}

/* Four bits a number become eight: the form is wider than what is stored, and is counted so. With
 * room for what is stored and none for that form (the third round) it stays as stored, nothing
 * streams, and products are the same bits again. */
static void test_wider(void **unused)
{
    enum { BLOCK = 18, ROW = K / 32 * BLOCK }; // Q4_0: a scale in f16, then 32 numbers
    const size_t form = (size_t)N * K + N * sizeof(float), stored = (size_t)N * ROW;
    uint8_t *bytes = malloc(stored);
    unsigned char *seen[3];

    (void)unused;
    for (size_t i = 0; i < stored; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 7);
    for (size_t i = 0; i < stored; i += BLOCK) {
        const uint16_t scale = h3_f32_to_f16(0.01f);
        memcpy(bytes + i, &scale, sizeof scale);
    }
    setenv("H3_CUDA_FP8_ROWS", "1", 1);
    for (int told = 0; told < 3; told++) {
        fixture f = {.path = ""};
        snprintf(f.path, sizeof f.path, "/tmp/h3av-forms-%ld.safetensors", (long)getpid());
        write_file(f.path);
        open_store(&f, "fp8");
        f.w[1].part[0].data = bytes;
        f.w[1].part[0].encoding = H3_ENC_GGML;
        f.w[1].part[0].ggml_type = 2;
        f.w[1].part[0].row_bytes = ROW;
        f.w[1].part[0].bytes = stored;
        if (told) h3_store_meets(f.s, 1, H3_BF16, S, false);
        const size_t before = on_device(&f);
        seen[told] = products(&f, H3_BF16);
        if (told == 2) {
            const size_t all = (4 + 2) * (size_t)N * K + stored;
            f.d->weight_budget = all;
            const void *there[2];
            for (int again = 0; again < 2; again++) {
                unsigned char *one = products(&f, H3_BF16);
                same(seen[told], one, H3_BF16);
                free(one);
                there[again] = f.w[1].part[0].dev;
            }
            assert_true(there[0] && there[0] == there[1]); // it stays
            assert_int_equal(h3_store_held(f.s), all);
            assert_true(f.w[1].is_passing && !f.w[0].is_passing && !f.w[2].is_passing);
        } else if (told) {
            assert_int_equal(h3_store_saved(f.s, NULL), (int64_t)stored - (int64_t)form);
            assert_int_equal(h3_store_held(f.s), (4 + 2) * (size_t)N * K + form);
            assert_true(on_device(&f) - before >= h3_store_held(f.s));
        }
        close_store(&f);
        unlink(f.path);
    }
    unsetenv("H3_CUDA_FP8_ROWS");
    for (int i = 0; i < 3; i++) {
        same(seen[0], seen[i], H3_BF16);
        if (i) free(seen[i]);
    }
    free(seen[0]);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bf16), cmocka_unit_test(test_f32),
                                       cmocka_unit_test(test_fp8), cmocka_unit_test(test_adapters),
                                       cmocka_unit_test(test_wider)};
    h3_dev *d = NULL;

    if (h3_dev_open(&d, "cuda", NULL) != H3_OK) {
        printf("no CUDA device, nothing was tested: %s\n", h3_error());
        return 0;
    }
    h3_dev_close(&d);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
