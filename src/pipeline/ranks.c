/** Ranks as the public API shows them; see <h3av/h3av.h> and comm.h. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "ranks.h"

h3_status h3_ranks_open(h3_ranks **out, int n)
{
    h3_ranks *r;
    int rank, size;
    h3_status st;

    if (!out) return h3_fail(H3_E_ARG, "no place for the ranks given");
    *out = NULL;
    r = calloc(1, sizeof *r);
    if (!r) return h3_fail(H3_E_NOMEM, "no memory for ranks");
    h3_comm_launched(&rank, &size);
    if (size > 1 && n > 1 && n != size)
        st = h3_fail(H3_E_ARG, "ranks %d: the launcher started %d", n, size);
    else
        st = size > 1 ? h3_comm_join(&r->comm) : h3_comm_fork(&r->comm, n > 1 ? n : 1);
    if (st != H3_OK) {
        free(r);
        return st;
    }
    *out = r;
    return H3_OK;
}

h3_status h3_ranks_plan(h3_ranks **out, int n)
{
    h3_ranks *r;
    h3_status st;

    if (!out) return h3_fail(H3_E_ARG, "no place for the ranks given");
    *out = NULL;
    r = calloc(1, sizeof *r);
    if (!r) return h3_fail(H3_E_NOMEM, "no memory for ranks");
    st = h3_comm_stand_in(&r->comm, n);
    if (st == H3_OK)
        *out = r;
    else
        free(r);
    return st;
}

h3_status h3_ranks_close(h3_ranks **rp, bool has_failed)
{
    h3_ranks *r = rp ? *rp : NULL;
    h3_status st = H3_OK;

    if (!r) return H3_OK;
    if (r->comm && !r->comm->is_over)
        st = h3_comm_agree(r->comm,
                           has_failed ? h3_fail(H3_E_INTERNAL, "the program ended early") : H3_OK);
    h3_comm_close(&r->comm);
    free(r);
    *rp = NULL;
    return st;
}

int h3_ranks_rank(const h3_ranks *r)
{
    return r ? h3_comm_rank(r->comm) : 0;
}

int h3_ranks_size(const h3_ranks *r)
{
    return r ? h3_comm_size(r->comm) : 1;
}

int h3_ranks_local(const h3_ranks *r)
{
    return r && r->comm ? r->comm->local_rank : 0;
}

int h3_launched_rank(int *size)
{
    int rank, n;

    h3_comm_launched(&rank, &n);
    if (size) *size = n;
    return rank;
}

/* A launcher that binds processes to cores has shared them out already. */
int h3_ranks_threads(const h3_comm *c)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    int n;

    if (h3_comm_size(c) == 1 || sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    n = CPU_COUNT(&set);
    if (n >= online) n /= c->n_local;
    return n > 0 ? n : 1;
}
