/**
 * Products of f32 with 8-bit weights by digits (src/backend/cpu/digits.c), whatever this machine's
 * measurement would choose: against float64, against the f32 tiles for rows that digits cannot
 * hold, and against themselves on other threads and in other company.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu.h"
#include "decode.h"
#include "dev.h"
#include "half.h"
#include "num.h"

static uint64_t state = 1;

static uint32_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) ^ (uint32_t)(state >> 20);
}

static float random_normal(void)
{
    float s = 0;
    for (int i = 0; i < 4; i++)
        s += (float)(random_bits() & 0xffff) / 65536.0f - 0.5f;
    return s * 1.7320508f;
}

/* NULL where this processor has no VNNI. */
static h3_dev *open_digits(int threads)
{
    const h3_dev_opts opts = {.n_threads = threads, .math = "auto"};
    h3_dev *d = NULL;

    setenv("H3_CPU_ISA", "avx512", 1); // AMX would take these products
    assert_int_equal(h3_dev_open(&d, "cpu", &opts), H3_OK);
    unsetenv("H3_CPU_ISA");
    if (!d->backend->has_vnni) h3_dev_close(&d);
    if (d) d->backend->has_digits = true;
    return d;
}

static h3_dev *open_f32(void)
{
    const h3_dev_opts opts = {.n_threads = 2, .math = "f32"};
    h3_dev *d = NULL;
    assert_int_equal(h3_dev_open(&d, "cpu", &opts), H3_OK);
    return d;
}

/* A weight of two parts, and what it stands for. */
typedef struct matrix {
    h3_weight w;
    uint8_t *bytes;
    float *scale, *wide; // [rows], [rows, cols]
} matrix;

enum { TURNED = -64, INT8 = 0, Q8_0 = 8, Q4_K = 12, Q5_K = 13 };

static void put_half(uint8_t *p, float v)
{
    const uint16_t half = h3_f32_to_f16(v);
    memcpy(p, &half, sizeof half);
}

/* TURNED and below: int8 in ConvRot groups of -type. */
static matrix matrix_of(int type, int64_t rows, int64_t cols)
{
    const int32_t group = type < 0 ? -type : 0;
    type = type < 0 ? INT8 : type;
    const h3_ggml_info info = h3_ggml_type((uint32_t)type);
    const size_t block = type ? info.bytes : 1;
    const size_t row_bytes = (size_t)(type ? cols / info.block : cols) * block;
    const size_t n = (size_t)rows * row_bytes;
    const int64_t first = rows - rows / 3;
    matrix m = {.w = {.name = "w", .rows = rows, .cols = cols, .n_parts = 2}};

    m.bytes = malloc(n);
    m.scale = malloc((size_t)rows * sizeof *m.scale);
    m.wide = malloc((size_t)(rows * cols) * sizeof *m.wide);
    for (size_t i = 0; i < n; i++)
        m.bytes[i] = type > Q8_0   ? (uint8_t)random_bits()
                     : i % 97 == 7 ? 128 // -128 too
                                   : (uint8_t)(int8_t)(random_normal() * 40);
    for (size_t i = 0; type && i < n; i += block) {
        put_half(m.bytes + i, 0.01f + 0.001f * random_normal());
        if (type > Q8_0) put_half(m.bytes + i + 2, type == Q4_K ? 0.075f : 0.155f);
    }
    for (int64_t i = 0; i < rows; i++)
        m.scale[i] = 0.01f + 0.001f * random_normal();
    for (int p = 0; p < 2; p++)
        m.w.part[p] = (h3_weight_part){.data = m.bytes + (p ? (size_t)first * row_bytes : 0),
                                       .rows = p ? rows - first : first,
                                       .cols = cols,
                                       .row_bytes = row_bytes,
                                       .bytes = (size_t)(p ? rows - first : first) * row_bytes,
                                       .encoding = type ? H3_ENC_GGML : H3_ENC_INT8,
                                       .ggml_type = (uint8_t)type,
                                       .group = group,
                                       .row0 = p ? first : 0,
                                       .full_rows = rows,
                                       .global = 1,
                                       .scale = type ? NULL : m.scale,
                                       .n_scale = type ? 0 : rows};
    h3_weight_rows(&m.w, 0, rows, m.wide);
    return m;
}

static void drop(matrix *m)
{
    free(m->bytes);
    free(m->scale);
    free(m->wide);
}

enum { GAP = 3 };

static h3_tensor tensor_of(h3_dtype dtype, int64_t rows, int64_t cols)
{
    h3_tensor x = {.rank = 2, .dtype = (uint8_t)dtype, .ne = {rows, cols}, .st = {cols + GAP, 1}};
    x.data = calloc((size_t)(rows * (cols + GAP)), h3_dtype_bytes(dtype));
    return x;
}

static float at(h3_tensor x, int64_t row, int64_t col)
{
    return h3_num_load(x.data, x.dtype, row * x.st[0] + col);
}

static void put(h3_tensor x, int64_t row, int64_t col, float v)
{
    h3_num_store(x.data, x.dtype, row * x.st[0] + col, v);
}

static void fill(h3_tensor x, float scale)
{
    for (int64_t s = 0; s < x.ne[0]; s++)
        for (int64_t k = 0; k < x.ne[1]; k++)
            put(x, s, k, random_normal() * scale);
}

static void multiply(h3_dev *d, h3_tensor y, h3_tensor x, const matrix *m)
{
    assert_int_equal(d->ops->gemm(d, y, x, &m->w, H3_ACT_NONE), H3_OK);
}

/* Rows [s, s + n): rms of the difference from float64 over rms of the product. */
static double error_of(h3_tensor y, h3_tensor x, const matrix *m, int64_t s, int64_t n)
{
    double sum = 0, off = 0;

    for (int64_t r = s; r < s + n; r++)
        for (int64_t j = 0; j < m->w.rows; j++) {
            double t = 0;
            for (int64_t k = 0; k < m->w.cols; k++)
                t += (double)at(x, r, k) * (double)m->wide[j * m->w.cols + k];
            sum += t * t;
            off += ((double)at(y, r, j) - t) * ((double)at(y, r, j) - t);
        }
    return sqrt(off) / sqrt(sum > 0 ? sum : 1);
}

/* ---------------------------------------------------------------- the tests */

static void test_error(void **unused)
{
    static const struct {
        int type;
        int64_t rows, n, k;
    } sizes[] = {{Q8_0, 17, 40, 32},    {Q8_0, 33, 101, 288}, {Q8_0, 70, 29, 2080},
                 {INT8, 18, 31, 33},    {INT8, 47, 57, 1027}, {INT8, 65, 230, 260},
                 {INT8, 100, 15, 31},   {Q8_0, 1045, 17, 64}, {Q4_K, 35, 47, 256},
                 {Q4_K, 18, 33, 1280},  {Q5_K, 67, 31, 768},  {Q5_K, 20, 45, 256},
                 {TURNED, 35, 40, 192}, {-256, 50, 31, 768}};
    h3_dev *d = open_digits(2);

    (void)unused;
    if (!d) skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int outliers = 0; outliers < 2; outliers++) {
            matrix m = matrix_of(sizes[i].type, sizes[i].n, sizes[i].k);
            h3_tensor x = tensor_of(H3_F32, sizes[i].rows, sizes[i].k);
            h3_tensor y = tensor_of(H3_F32, sizes[i].rows, sizes[i].n);
            fill(x, 3);
            for (int64_t s = 0; outliers && s < x.ne[0]; s++)
                for (int64_t k = s % 32; k < x.ne[1]; k += 32)
                    put(x, s, k, 1000 * at(x, s, k));
            multiply(d, y, x, &m);
            /* f32 loses 2.9e-7, with outliers too. */
            const double error = error_of(y, x, &m, 0, x.ne[0]);
            if (!(error < (outliers ? 5e-7 : 3e-7)))
                fail_msg("%lld x %lld: %g", (long long)sizes[i].n, (long long)sizes[i].k, error);
            for (int64_t s = 0; s < y.ne[0]; s++)
                for (int64_t j = y.ne[1]; j < y.st[0] && s + 1 < y.ne[0]; j++)
                    assert_true(at(y, s, j) == 0);
            free(x.data);
            free(y.data);
            drop(&m);
        }
    h3_dev_close(&d);
}

/* bf16 rows are the same numbers in another type. */
static void test_bf16_rows(void **unused)
{
    h3_dev *d = open_digits(2);
    matrix m = matrix_of(Q8_0, 37, 96);
    h3_tensor low = tensor_of(H3_BF16, 20, 96), x = tensor_of(H3_F32, 20, 96);
    h3_tensor y = tensor_of(H3_F32, 20, 37), same = tensor_of(H3_F32, 20, 37);

    (void)unused;
    fill(low, 1);
    for (int64_t s = 0; s < 20; s++)
        for (int64_t k = 0; k < 96; k++)
            put(x, s, k, at(low, s, k));
    if (d) {
        multiply(d, y, x, &m);
        multiply(d, same, low, &m);
        assert_memory_equal(y.data, same.data, (size_t)(20 * y.st[0]) * sizeof(float));
    }
    free(low.data);
    free(x.data);
    free(y.data);
    free(same.data);
    drop(&m);
    h3_dev_close(&d);
}

static const float odd_numbers[] = {INFINITY, -INFINITY, NAN, 3e38f, 0x1p101f};

/* Row s of what test_odd_rows multiplies, of 13 kinds; true: digits cannot hold it. */
static bool odd_row(h3_tensor x, int64_t s)
{
    const int64_t kind = s % 13, K = x.ne[1];
    static const float scales[] = {1e-45f, 1e-39f, 1e-33f, 1e-30f, 1e25f, 0, 1e-20f, 1};

    if (kind < 5) put(x, s, (7 * s) % K, odd_numbers[kind]);
    for (int64_t k = 0; kind >= 5 && k < K; k++)
        put(x, s, k, scales[kind - 5] * (kind == 5 ? (float)(k % 5) - 2 : at(x, s, k)));
    /* Blocks of nothing but dust between others. */
    for (int64_t k = 32; kind == 12 && k < K && k < 64; k++)
        put(x, s, k, 1e-40f * at(x, s, k));
    return kind < 8;
}

/* Rows that are not finite, huge or tiny come out bit for bit as f32 gives them, all others as
 * exactly as ever, next to them. */
static void test_odd_rows(void **unused)
{
    h3_dev *d = open_digits(2), *f32 = open_f32();
    (void)unused;

    static const int types[] = {INT8, Q8_0, Q4_K, TURNED};

    for (int i = 0; d && i < 4; i++) {
        const int64_t S = 61, N = 45, K = 512;
        bool odd[61];
        matrix m = matrix_of(types[i], N, K);
        h3_tensor x = tensor_of(H3_F32, S, K), y = tensor_of(H3_F32, S, N),
                  want = tensor_of(H3_F32, S, N);
        fill(x, 1);
        for (int64_t s = 0; s < S; s++)
            odd[s] = odd_row(x, s);
        multiply(d, y, x, &m);
        multiply(f32, want, x, &m);
        for (int64_t s = 0; s < S; s++) {
            const void *got = (const float *)y.data + s * y.st[0];
            const void *right = (const float *)want.data + s * want.st[0];
            /* Turned, what is 2^101 or tiny may be neither. */
            if (types[i] == TURNED && s % 13 >= 4 && s % 13 < 8) continue;
            if (odd[s])
                assert_memory_equal(got, right, (size_t)N * sizeof(float));
            else
                assert_true(error_of(y, x, &m, s, 1) < 5e-7);
        }
        assert_true(isnan(at(y, 2, 0)) && !isfinite(at(y, 0, 0)) && at(y, 10, 0) == 0);
        free(x.data);
        free(y.data);
        free(want.data);
        drop(&m);
    }
    h3_dev_close(&d);
    h3_dev_close(&f32);
}

/* A row's product depends on nothing but the row: not on threads, nor on the rows beside it. */
static void test_company(void **unused)
{
    h3_dev *one = open_digits(1), *three = open_digits(3), *f32 = open_f32();
    matrix m = matrix_of(Q8_0, 300, 544);
    h3_tensor x = tensor_of(H3_F32, 90, 544), y = tensor_of(H3_F32, 90, 300);
    h3_tensor other = tensor_of(H3_F32, 90, 300), part = tensor_of(H3_F32, 21, 300);
    const size_t bytes = (size_t)(90 * y.st[0]) * sizeof(float);

    (void)unused;
    fill(x, 1);
    if (one) {
        multiply(one, y, x, &m);
        multiply(three, other, x, &m);
        assert_memory_equal(y.data, other.data, bytes);
        put(x, 80, 5, NAN); // another row is multiplied again
        three->whole_rows = 90;
        multiply(three, part, h3_slice(x, 0, 50, 21), &m);
        for (int64_t s = 0; s < 21; s++)
            assert_memory_equal((float *)part.data + s * part.st[0],
                                (float *)y.data + (50 + s) * y.st[0], 300 * sizeof(float));
        put(x, 80, 5, 0.5f);
        multiply(one, y, x, &m);
        multiply(f32, other, x, &m);
        assert_true(memcmp(y.data, other.data, bytes) != 0); // digits were taken
    }
    free(x.data);
    free(y.data);
    free(other.data);
    free(part.data);
    drop(&m);
    h3_dev_close(&one);
    h3_dev_close(&three);
    h3_dev_close(&f32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error), cmocka_unit_test(test_bf16_rows),
        cmocka_unit_test(test_odd_rows), cmocka_unit_test(test_company)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
