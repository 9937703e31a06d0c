/** Operations by themselves, with their share of the hardware: multiplications a second of those
 * that multiply, bytes a second of those that only move rows. */
#include <string.h>

#include "gpu_bench.h"

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

/* Bytes of a number that only a product or attention reads: e4m3 or bf16. */
static double read_bytes(void)
{
    return strcmp(o.math, "fp8") == 0 ? 1 : 2;
}

static void bench_heads(int64_t S)
{
    const double s = (double)S;
    const int32_t cu[2] = {0, (int32_t)S};
    const h3_ops *op = d->ops;
    h3_tensor qkv = random_tensor(H3_BF16, 1, NE(S, 3 * INNER)),
              a = random_tensor(H3_BF16, 1, NE(S, INNER)), g = random_tensor(H3_F32, 1, NE(HEAD)),
              cos = random_tensor(H3_BF16, 1, NE(S, 3 * (HEAD / 8)));
    const h3_qkv p = h3_attention_split(qkv, HEADS, HEAD, true);
    double best;

    TIME(best,
         op->attention(d, h3_view_3d(a, S, HEADS, HEAD), p.q, p.k, p.v, 0.08838835f, cu, 1, false));
    report_op("attention", S, best, 4.0 * s * s * INNER, 2.0 * s * 4 * INNER);
    d->reader = &h3_reader_attention;
    TIME(best, op->qk_norm_rope(d, p.q, p.k, g, g, 1e-5f, false, cos, cos));
    d->reader = NULL;
    report_op("qk_norm_rope", S, best, 0, 2 * (2 + read_bytes()) * s * INNER);
    h3_dev_free(d, &qkv);
    h3_dev_free(d, &a);
    h3_dev_free(d, &g);
    h3_dev_free(d, &cos);
}

/* Norms and gates, whose rows only a product reads, as in a block. */
static void bench_rows(int64_t S)
{
    const double s = (double)S, to = read_bytes();
    const h3_ops *op = d->ops;
    h3_tensor x = random_tensor(H3_BF16, 1, NE(S, C)), h = random_tensor(H3_BF16, 1, NE(S, C)),
              mod = random_tensor(H3_BF16, 0.1f, NE(12, 6, C)),
              row = h3_at(modulation_rows(0, S, 240, 1), 0), gain = random_tensor(H3_F32, 1, NE(C));
    h3_weight reader = random_weight(H3_BF16, 64, C);
    double best;

    d->reader = &reader;
    TIME(best, op->rms_norm_mod(d, h, x, gain, 1e-5f, mod, 0, 1, row));
    report_op("rms_norm_mod", S, best, 0, (2 + to) * s * C);
    TIME(best, op->gate_add_norm(d, h, x, h, mod, 2, gain, 1e-5f, mod, 3, 4, row));
    report_op("gate_add_norm", S, best, 0, (6 + to) * s * C);
    d->reader = NULL;
    TIME(best, op->gate_add(d, x, h, mod, 2, row));
    report_op("gate_add", S, best, 0, 6.0 * s * C);
    free_weight(&reader);
    h3_dev_free(d, &x);
    h3_dev_free(d, &h);
    h3_dev_free(d, &mod);
    h3_dev_free(d, &row);
    h3_dev_free(d, &gain);
}

static void bench_silu(int64_t S)
{
    h3_tensor both = random_tensor(H3_BF16, 1, NE(S, 2 * FFN)),
              f = random_tensor(H3_BF16, 1, NE(S, FFN));
    h3_weight reader = random_weight(H3_BF16, 64, FFN);
    double best;

    d->reader = &reader;
    TIME(best, d->ops->silu_mul(d, f, h3_slice(both, 1, 0, FFN), h3_slice(both, 1, FFN, FFN)));
    d->reader = NULL;
    report_op("silu_mul", S, best, 0, (4 + read_bytes()) * (double)S * FFN);
    free_weight(&reader);
    h3_dev_free(d, &both);
    h3_dev_free(d, &f);
}

void bench_ops(int64_t S)
{
    time_product("qkv", S, 3 * INNER, C);
    time_product("out", S, C, INNER);
    time_product("fc1", S, 2 * FFN, C);
    time_product("fc2", S, C, FFN);
    bench_heads(S);
    bench_rows(S);
    bench_silu(S);
}

void report_ops(const char *what)
{
    for (int i = 0; i < H3_OP_COUNT; i++)
        if (d->stat[i].calls)
            printf("{\"what\": \"%s\", \"name\": \"%s\", \"calls\": %llu, \"ms\": %.3f, "
                   "\"gflop\": %.1f}\n",
                   what, h3_op_name((h3_op_id)i), (unsigned long long)d->stat[i].calls,
                   1e3 * d->stat[i].seconds, d->stat[i].flops * 1e-9);
    fflush(stdout);
}
