/** The products and the attention of a step's blocks by themselves: how long the libraries take
 * when nothing else runs between them, whether they give the same bits again, and how far fp8 is
 * from bf16 in each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_bench.h"
#include "half.h"

uint64_t hash_of(const void *p, size_t n)
{
    uint64_t h = 1469598103934665603ull, w;

    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&w, (const unsigned char *)p + i, 8);
        h = (h ^ w) * 1099511628211ull;
    }
    return h;
}

double distance(const float *want, const float *got, int64_t n)
{
    double e = 0, w = 0;

    for (int64_t i = 0; i < n; i++) {
        e += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        w += (double)want[i] * (double)want[i];
    }
    return sqrt(e / w);
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
double library_step(const h3_dit *m, const h3_dit_state *state)
{
    const int64_t S = state->n_rows;
    const h3_dit_block *b = &m->block[0];
    const int32_t cu[2] = {0, (int32_t)S};
    const h3_ops *op = d->ops;
    const bool has_own = d->backend->has_attention90;
    double best = 1e30;

    d->backend->has_attention90 = false;
    block_io z = make_io(m, state);
    for (int i = 0; i < o.repeat; i++) {
        MUST(h3_dev_sync(d));
        take_rest();
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
    d->backend->has_attention90 = has_own;
    return best;
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

void report_repeats(const h3_dit *m, const h3_dit_state *state)
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

void report_op_errors(const h3_dit *m, const h3_dit_state *state)
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
