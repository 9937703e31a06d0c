/**
 * What all fillings of comm.h share: the collective calls as lists of messages, the way of device
 * memory through the host, and how ranks hear of each other's failures. comm_local.c and
 * backend/mpi carry host memory, backend/nccl device memory.
 */
#include "comm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------- opening */

h3_status h3_comm_create(h3_comm **out, int rank, int size)
{
    h3_comm *c = calloc(1, sizeof *c);

    *out = c;
    if (c) {
        c->rank = rank;
        c->size = size;
        c->n_local = size;
        c->local_rank = rank;
        c->has_note = calloc((size_t)size, sizeof *c->has_note);
        c->note = calloc((size_t)size, sizeof *c->note);
    }
    if (c && c->has_note && c->note) return H3_OK;
    h3_comm_close(out);
    return h3_fail(H3_E_NOMEM, "no memory for %d ranks", size);
}

void h3_comm_close(h3_comm **cp)
{
    h3_comm *c = cp ? *cp : NULL;

    if (!c) return;
    if (c->link.close) c->link.close(c);
    free(c->has_note);
    free(c->note);
    free(c);
    *cp = NULL;
}

/* The first number of the environment that says how many ranks there are also names the launcher:
 * Open MPI, MPICH and Intel MPI (Hydra), SLURM with PMI. SLURM_NTASKS alone also stands in the
 * environment of a batch script, which is one process: srun sets a step as well. */
static const struct {
    const char *size, *rank, *also;
} launchers[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL},
                 {"PMI_SIZE", "PMI_RANK", NULL},
                 {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_ID"}};

void h3_comm_launched(int *rank, int *size)
{
    *rank = 0;
    *size = 1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *n = getenv(launchers[i].size), *r = getenv(launchers[i].rank);
        if (!n || !r || (launchers[i].also && !getenv(launchers[i].also))) continue;
        const int count = atoi(n), at = atoi(r);
        if (count < 1 || at < 0 || at >= count) continue;
        *rank = at;
        *size = count;
        return;
    }
}

h3_status h3_comm_join(h3_comm **out)
{
    int rank, size;

    *out = NULL;
    h3_comm_launched(&rank, &size);
    if (size == 1) return H3_OK;
    if (size > H3_COMM_MAX)
        return h3_fail(H3_E_ARG, "%d ranks: at most %d are supported", size, H3_COMM_MAX);
#ifdef H3_HAVE_MPI
    return h3_mpi_join(out, rank, size);
#else
    return h3_fail(H3_E_UNSUPPORTED,
                   "a launcher started %d ranks, but this build has no MPI: install libopenmpi-dev "
                   "and build again, or use --ranks %d without the launcher",
                   size, size);
#endif
}

/* Ranks that cut work by the units of their devices must cut it alike. */
static h3_status compare_units(h3_comm *c, const h3_dev *d)
{
    int all[H3_COMM_MAX] = {0};
    size_t bytes[H3_COMM_MAX];

    if (!c || c->size == 1 || d->mem == H3_HOST) return H3_OK;
    for (int r = 0; r < c->size; r++)
        bytes[r] = sizeof *all;
    all[c->rank] = d->n_units;
    H3_TRY(h3_comm_all_gather(c, NULL, all, bytes));
    c->n_units = all[0];
    for (int r = 1; r < c->size; r++)
        if (all[r] != all[0]) c->n_units = 0;
    return H3_OK;
}

h3_status h3_comm_stand_in(h3_comm **out, int n)
{
    *out = NULL;
    if (n < 1 || n > H3_COMM_MAX)
        return h3_fail(H3_E_ARG, "%d ranks: expected 1..%d", n, H3_COMM_MAX);
    if (n == 1) return H3_OK;
    H3_TRY(h3_comm_create(out, 0, n));
    (*out)->is_stand_in = true;
    snprintf((*out)->name, sizeof(*out)->name, "planned");
    return H3_OK;
}

/* Windows where ranks of one host would have them. */
static void attach_stand_in(h3_comm *c, const h3_dev *d)
{
    const char *wish = getenv("H3_PEER");
    bool has_windows = c->size <= H3_COMM_LOCAL && (!wish || strcmp(wish, "off") != 0);

#ifndef H3_HAVE_PEER
    has_windows = has_windows && d->mem == H3_HOST;
#endif
    c->has_window = has_windows;
    c->n_units = d->mem == H3_HOST ? 0 : d->n_units;
}

h3_status h3_comm_attach(h3_comm *c, h3_dev *d)
{
    d->comm = c;
    if (c && c->is_stand_in) {
        attach_stand_in(c, d);
        return H3_OK;
    }
#ifdef H3_HAVE_NCCL
    if (c && c->size > 1 && d->mem == H3_DEVICE) H3_TRY(h3_nccl_attach(c, d));
#endif
#ifdef H3_HAVE_PEER
    if (c && c->size > 1 && d->mem == H3_DEVICE) H3_TRY(h3_peer_attach(c, d));
#endif
    if (c) c->has_window = c->link.window && c->window_mem == d->mem;
    return compare_units(c, d);
}

void h3_comm_detach(h3_comm *c, h3_dev *d)
{
    if (c && d && d->comm == c && c->link.abandon) c->link.abandon(c);
    if (c && d && d->comm == c && c->link.detach) c->link.detach(c);
    if (c) c->has_window = false;
    if (d) d->comm = NULL;
}

/* ------------------------------------------------------------------------------------- failures */

static h3_status parted(const h3_comm *c)
{
    if (c->is_stand_in)
        return h3_fail(H3_E_ARG, "%d ranks were planned for, and none of them runs", c->size);
    return h3_fail(H3_E_INTERNAL, "the ranks parted after a failure; start the program again");
}

/* A failure that rank `peer` told of becomes ours. */
static h3_status take_failure(const h3_comm *c, int peer)
{
    const h3_comm_note *n = &c->note[peer];
    char text[sizeof n->text];

    memcpy(text, n->text, sizeof text); // h3_fail may write where it came from
    text[sizeof text - 1] = '\0';
    if (n->origin == 0 || n->status == H3_E_CANCELLED)
        return h3_fail((h3_status)n->status, "%s", text);
    return h3_fail((h3_status)n->status, "rank %d: %s", n->origin, text);
}

static void listen_to(h3_comm *c, int peer)
{
    h3_comm_note *n = &c->note[peer];
    int got;

    if (peer == c->rank || c->has_note[peer]) return;
    got = c->link.hear(c, peer, n);
    if (got == 0) return;
    c->has_note[peer] = true;
    if (got > 0 && n->status >= H3_OK && n->status <= H3_E_INTERNAL) return;
    *n = (h3_comm_note){.status = H3_E_INTERNAL, .origin = peer};
    snprintf(n->text, sizeof n->text, "ended unexpectedly");
}

h3_status h3_comm_heard(h3_comm *c)
{
    for (int r = 0; r < c->size; r++) {
        listen_to(c, r);
        if (c->has_note[r] && c->note[r].status != H3_OK) return take_failure(c, r);
    }
    if (h3_is_cancelled(c->cancel)) return h3_fail(H3_E_CANCELLED, "stopped on request");
    return H3_OK;
}

/* This stretch is over here: what a device of ours waits for may not come, so it goes on without.
 */
static void part(h3_comm *c)
{
    c->is_broken = true;
    if (c->link.cut) c->link.cut(c);
}

h3_status h3_comm_watch(h3_comm *c)
{
    h3_status st;

    if (!c || c->size == 1 || c->is_broken || c->is_over || c->is_stand_in) return H3_OK;
    st = h3_comm_heard(c);
    if (st != H3_OK) part(c);
    return st;
}

/* Who failed here: this rank, or one whose failure it took over while waiting. */
static int origin_of(const h3_comm *c, h3_status mine)
{
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && c->has_note[r] && c->note[r].status == (int32_t)mine && c->is_broken)
            return c->note[r].origin;
    return c->rank;
}

/* The sentence without the "rank N: " that take_failure may have put before it. */
static const char *bare_text(int origin)
{
    char prefix[24];
    const char *text = h3_error();
    const int n = snprintf(prefix, sizeof prefix, "rank %d: ", origin);

    return strncmp(text, prefix, (size_t)n) == 0 ? text + n : text;
}

static void tell_all(h3_comm *c, h3_status mine)
{
    h3_comm_note *n = &c->note[c->rank];

    memset(n, 0, sizeof *n);
    n->epoch = c->epoch;
    n->status = (int32_t)mine;
    if (mine != H3_OK) {
        n->origin = origin_of(c, mine);
        snprintf(n->text, sizeof n->text, "%s", bare_text(n->origin));
    }
    c->has_note[c->rank] = true;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) c->link.say(c, r, n);
}

static int n_missing(const h3_comm *c)
{
    int n = 0;

    for (int r = 0; r < c->size; r++)
        n += !c->has_note[r];
    return n;
}

h3_status h3_comm_agree(h3_comm *c, h3_status mine)
{
    h3_status st = mine;
    int first = -1;

    if (!c || c->size == 1 || c->is_stand_in) return mine;
    if (c->is_over) return mine != H3_OK ? mine : parted(c);
    tell_all(c, mine);
    for (int ms = 0; n_missing(c); ms = ms < 10 ? ms + 1 : 10) {
        for (int r = 0; r < c->size; r++)
            listen_to(c, r);
        if (n_missing(c)) c->link.nap(c, ms);
    }
    for (int r = c->size - 1; r >= 0; r--)
        if (c->note[r].status != H3_OK) first = r;
    c->is_over = first >= 0;
    if (c->is_over) part(c); // a rank that did its part may still wait on its device for others
    if (first >= 0 && first != c->rank) st = take_failure(c, first);
    memset(c->has_note, 0, (size_t)c->size * sizeof *c->has_note);
    c->epoch++;
    return st;
}

/* ----------------------------------------------------------------------------------- exchanging */

static uint64_t total(const h3_message *m, int n)
{
    uint64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += m[i].bytes;
    return sum;
}

static h3_status on_host(h3_comm *c, const h3_message *send, int n_send, const h3_message *recv,
                         int n_recv)
{
    const double t0 = now();
    h3_status st = h3_comm_heard(c);

    if (st == H3_OK) st = c->link.exchange(c, send, n_send, recv, n_recv);
    c->seconds += now() - t0;
    if (st != H3_OK) part(c);
    return st;
}

static h3_tensor device_bytes(const h3_message *m)
{
    h3_tensor t = h3_tensor_1d(m->data, H3_U8, (int64_t)m->bytes);
    t.mem = H3_DEVICE;
    return t;
}

/* Host copies of messages in device memory, one block. */
static h3_status stage(h3_message **out, const h3_message *m, int n)
{
    const size_t head = (size_t)n * sizeof **out;
    h3_message *copy = malloc(head + total(m, n) + 1);
    unsigned char *at = (unsigned char *)copy + head;

    *out = copy;
    if (!copy)
        return h3_fail(H3_E_NOMEM, "no memory to pass %llu bytes between ranks",
                       (unsigned long long)total(m, n));
    for (int i = 0; i < n; i++, at += m[i - 1].bytes)
        copy[i] = (h3_message){m[i].peer, at, m[i].bytes};
    return H3_OK;
}

static h3_status by_way_of_host(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                                const h3_message *recv, int n_recv)
{
    h3_message *out = NULL, *in = NULL;
    h3_status st = stage(&out, send, n_send);

    if (st == H3_OK) st = stage(&in, recv, n_recv);
    for (int i = 0; st == H3_OK && i < n_send; i++)
        st = h3_dev_download(d, out[i].data, device_bytes(&send[i]));
    if (st == H3_OK) st = on_host(c, out, n_send, in, n_recv);
    for (int i = 0; st == H3_OK && i < n_recv; i++)
        st = h3_dev_upload(d, device_bytes(&recv[i]), in[i].data);
    if (st == H3_OK) st = h3_dev_sync(d);
    free(out);
    free(in);
    return st;
}

h3_status h3_comm_exchange(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                           const h3_message *recv, int n_recv)
{
    if (!c || c->size == 1 || (d && d->is_plan)) return H3_OK;
    if (c->is_broken || c->is_over || c->is_stand_in) return parted(c);
    c->n_exchanges++;
    c->sent_bytes += total(send, n_send);
    if (!d || d->mem == H3_HOST) return on_host(c, send, n_send, recv, n_recv);
    if (!c->link.exchange_on) return by_way_of_host(c, d, send, n_send, recv, n_recv);
    const h3_status st = c->link.exchange_on(c, d, send, n_send, recv, n_recv);
    if (st != H3_OK) part(c);
    return st;
}

bool h3_comm_can_travel(const h3_comm *c, const h3_dev *d)
{
    if (!c || c->size == 1) return false;
    return d && d->mem == H3_DEVICE ? c->link.begin_on != NULL : c->link.begin != NULL;
}

h3_status h3_comm_begin(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                        const h3_message *recv, int n_recv, h3_travel *t)
{
    const bool is_on_device = d && d->mem == H3_DEVICE;
    h3_status st;

    *t = (h3_travel){0};
    if (!h3_comm_can_travel(c, d) || d->is_plan)
        return h3_comm_exchange(c, d, send, n_send, recv, n_recv);
    if (c->is_broken || c->is_over || c->is_stand_in) return parted(c);
    c->n_exchanges++;
    c->sent_bytes += total(send, n_send);
    st = is_on_device ? c->link.begin_on(c, d, send, n_send, recv, n_recv, t) : h3_comm_heard(c);
    if (st == H3_OK && !is_on_device) st = c->link.begin(c, send, n_send, recv, n_recv, t);
    if (st != H3_OK) part(c);
    return st;
}

h3_status h3_comm_finish(h3_comm *c, h3_dev *d, h3_travel *t)
{
    const double t0 = now();
    h3_status st;

    if (!t->slot) return H3_OK;
    if (c->is_broken || c->is_over || c->is_stand_in) return parted(c);
    if (t->is_put) {
        st = c->link.finish_put(c, d, t);
    } else if (d && d->mem == H3_DEVICE) {
        st = c->link.finish_on(c, d, t);
    } else {
        st = c->link.finish(c, t);
        c->seconds += now() - t0;
    }
    if (st != H3_OK) part(c);
    return st;
}

bool h3_comm_has_window(const h3_comm *c, const h3_dev *d)
{
    (void)d;
    return c && c->size > 1 && c->has_window;
}

h3_status h3_comm_window(h3_comm *c, h3_dev *d, size_t bytes, void **base)
{
    h3_status st;

    if (base) *base = NULL;
    if (!h3_comm_has_window(c, d) || d->is_plan) return H3_OK;
    if (c->is_broken || c->is_over || c->is_stand_in) return parted(c);
    st = c->link.window(c, d, bytes, base);
    if (st != H3_OK) part(c);
    return st;
}

h3_status h3_comm_put(h3_comm *c, h3_dev *d, const h3_put *list, int n, h3_travel *t)
{
    h3_status st;

    *t = (h3_travel){0};
    if (d->is_plan) return H3_OK;
    if (c->is_broken || c->is_over || c->is_stand_in) return parted(c);
    c->n_exchanges++;
    for (int i = 0; i < n; i++)
        c->sent_bytes += (uint64_t)list[i].width * list[i].rows;
    st = c->link.put(c, d, list, n, t);
    if (st != H3_OK) part(c);
    return st;
}

void h3_comm_abandon(h3_comm *c)
{
    if (!c || c->size == 1) return;
    part(c);
    if (c->link.abandon) c->link.abandon(c);
}

/* Messages of at least a byte, to others; both sides leave out the same ones. */
static void add(h3_message *list, int *n, const h3_comm *c, int peer, void *data, size_t bytes)
{
    if (peer != c->rank && bytes > 0) list[(*n)++] = (h3_message){peer, data, bytes};
}

h3_status h3_comm_all_gather(h3_comm *c, h3_dev *d, void *data, const size_t *bytes)
{
    h3_message send[H3_COMM_MAX], recv[H3_COMM_MAX];
    unsigned char *at = data, *mine = data;
    int n_send = 0, n_recv = 0;

    if (!c || c->size == 1) return H3_OK;
    for (int r = 0; r < c->rank; r++)
        mine += bytes[r];
    for (int r = 0; r < c->size; at += bytes[r++]) {
        add(send, &n_send, c, r, mine, bytes[c->rank]);
        add(recv, &n_recv, c, r, at, bytes[r]);
    }
    return h3_comm_exchange(c, d, send, n_send, recv, n_recv);
}

h3_status h3_comm_all_to_all(h3_comm *c, h3_dev *d, const h3_message *recv, const h3_message *send)
{
    h3_message out[H3_COMM_MAX], in[H3_COMM_MAX];
    int n_out = 0, n_in = 0;

    if (!c || c->size == 1) return H3_OK;
    /* Starting with the neighbour, so that not all ranks begin with the same one. */
    for (int i = 1; i < c->size; i++) {
        const int to = (c->rank + i) % c->size, from = (c->rank + c->size - i) % c->size;
        add(out, &n_out, c, to, send[to].data, send[to].bytes);
        add(in, &n_in, c, from, recv[from].data, recv[from].bytes);
    }
    return h3_comm_exchange(c, d, out, n_out, in, n_in);
}

h3_status h3_comm_broadcast(h3_comm *c, h3_dev *d, void *data, size_t bytes, int root)
{
    h3_message list[H3_COMM_MAX];
    int n = 0;

    if (!c || c->size == 1) return H3_OK;
    assert(root >= 0 && root < c->size);
    if (c->rank != root) {
        add(list, &n, c, root, data, bytes);
        return h3_comm_exchange(c, d, NULL, 0, list, n);
    }
    for (int r = 0; r < c->size; r++)
        add(list, &n, c, r, data, bytes);
    return h3_comm_exchange(c, d, list, n, NULL, 0);
}

h3_status h3_comm_barrier(h3_comm *c)
{
    unsigned char seen[H3_COMM_MAX] = {0};
    size_t bytes[H3_COMM_MAX];

    for (int r = 0; r < h3_comm_size(c); r++)
        bytes[r] = 1;
    return h3_comm_all_gather(c, NULL, seen, bytes);
}

h3_status h3_comm_same(h3_comm *c, uint64_t value, const char *what)
{
    uint64_t all[H3_COMM_MAX] = {0};
    size_t bytes[H3_COMM_MAX];

    if (!c || c->size == 1) return H3_OK;
    for (int r = 0; r < c->size; r++)
        bytes[r] = sizeof *all;
    all[c->rank] = value;
    H3_TRY(h3_comm_all_gather(c, NULL, all, bytes));
    for (int r = 1; r < c->size; r++)
        if (all[r] != all[0])
            return h3_fail(H3_E_ARG,
                           "%s is not the same on rank 0 and rank %d: all ranks need the same "
                           "arguments and files",
                           what, r);
    return H3_OK;
}
