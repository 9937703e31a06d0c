/** Denoising steps shared by the ranks, one process a GPU: a step takes as long as the slowest of
 * them. Also of one rank, where nothing is exchanged. */
#include <stdio.h>
#include <stdlib.h>

#include "gpu_bench.h"

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
        take_rest();
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
        "\"exchange_alone_s\": %.5f, \"sent_bytes\": %.0f, \"peak_gib\": %.2f, \"rest_s\": %g}\n",
        o.math, (long long)S, layers, h3_comm_size(d->comm), d->comm ? d->comm->name : "", pieces,
        best, sum / o.repeat, best * 50 / layers, alone, bytes, peak / 1073741824, o.rest);
    fflush(stdout);
    free_step(&k);
}

void bench_steps(h3_dit *m, int64_t S)
{
    char one[32];
    const char *at = o.pieces;

    if (!at) bench_step(m, S, "auto");
    for (int n; at && sscanf(at, "%31[^:]%n", one, &n) == 1; at += n + (at[n] == ':')) {
        setenv("H3_OVERLAP", one, 1);
        bench_step(m, S, one);
    }
}
