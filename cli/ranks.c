/** Ranks of the command line program; see ranks.h. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_GPUS = 64 };

/* Only rank 0 talks; what the others have to say reaches it through the library. */
static void hush(void)
{
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(70);
}

void ranks_hush(void)
{
    if (h3_launched_rank(NULL) > 0) hush();
}

static bool is_shared(command cmd)
{
    return cmd == CMD_GENERATE || cmd == CMD_DECODE || cmd == CMD_BENCH;
}

bool ranks_is_idle(const cli *c)
{
    return h3_launched_rank(NULL) > 0 && (c->wants_help || !is_shared(c->cmd));
}

static int list_gpus(const char *text, int *out)
{
    int n = 0;

    for (const char *s = text; n < MAX_GPUS;) {
        char *end;
        const long v = strtol(s, &end, 10);
        if (end == s || v < 0 || v > 1023 || (*end && *end != ',')) break;
        out[n++] = (int)v;
        if (!*end) return n;
        s = end + 1;
    }
    fprintf(stderr, "h3av: --gpus %s: expected numbers of GPUs with commas between\n", text);
    return 0;
}

int ranks_open(cli *c)
{
    static char device[24];
    int gpus[MAX_GPUS], n_gpus = 0, n = c->ranks;
    h3_status st;

    if (c->gpus) {
        n_gpus = list_gpus(c->gpus, gpus);
        if (n_gpus == 0) return 2;
        if (n == 0) n = n_gpus;
    }
    st = h3_ranks_open(&c->engine.ranks, n);
    if (st != H3_OK) {
        fprintf(stderr, "h3av: %s\n", h3_error());
        return st == H3_E_UNSUPPORTED ? 7 : st == H3_E_ARG ? 2 : 70;
    }
    if (h3_ranks_rank(c->engine.ranks) > 0) hush();
    if (n_gpus) {
        const int at = h3_ranks_local(c->engine.ranks);
        if (at >= n_gpus) {
            fprintf(stderr, "h3av: --gpus %s: rank %d of this host has none\n", c->gpus, at);
            return ranks_close(c, 2);
        }
        snprintf(device, sizeof device, "cuda:%d", gpus[at]);
        c->engine.device = device;
    }
    return 0;
}

int ranks_close(cli *c, int status)
{
    const h3_status st = h3_ranks_close(&c->engine.ranks, status != 0);

    if (status || st == H3_OK) return status;
    fprintf(stderr, "h3av: %s\n", h3_error());
    return 70;
}
