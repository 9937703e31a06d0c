/**
 * Exchanges between GPUs through NCCL: point-to-point sends and receives grouped into one launch on
 * a stream beside the one that computes, with events between the two. Ranks find each other through
 * the host communicator (mpi or local), which also carries notes of failures.
 *
 * A kernel of NCCL waits on the GPU for its peer, and a host that waits for the stream would wait
 * for ever when the peer is gone. So an event follows every exchange, and before the host blocks on
 * the device (sync, download, upload) it polls that event and the notes in turns; a failure aborts
 * the communicator, which ends the kernel. The same happens before an exchange that would leave too
 * many of them under way: a GPU takes about a thousand launches, and a host that waits for a place
 * among them hears nothing.
 *
 * ncclCommAbort returns when the other ranks have let go of what they share with this one (2.28:
 * the service thread lives until its last peer is gone), and they hear of the failure from us. So a
 * thread of its own calls it, and only closing waits for that.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

/* Exchanges that the device waits for as soon as they are enqueued are each followed by work of a
 * layer or of a batch of tiles. */
enum { AHEAD = 2 };

/* Seconds that closing waits for the other ranks after a failure. */
enum { PATIENCE = 20 };

/* A communicator on its end. The last of the two that know of it frees this. */
typedef enum end_state { ENDS, ENDED, FORGOTTEN } end_state;

typedef struct ending {
    ncclComm_t comm;
    int device;
    atomic_int state; // end_state
} ending;

typedef struct nccl_link {
    ncclComm_t comm;
    cudaStream_t side;                    // exchanges run here, beside the stream that computes
    cudaEvent_t ready;                    // what is to be sent was computed
    cudaEvent_t through[H3_COMM_TRAVELS]; // behind each exchange, round and round
    int next, last;                       // of `through`
    bool is_pending, is_dead;
    ending *end; // from is_dead on
    h3_dev *d;   // whose three calls below are ours while we are attached; NULL: not yet
    h3_status (*upload)(h3_dev *d, void *dst, const void *src, size_t bytes);
    h3_status (*download)(h3_dev *d, void *dst, const void *src, size_t bytes);
    h3_status (*sync)(h3_dev *d);
    char host_name[24];
} nccl_link;

static h3_status failed(ncclResult_t rc, const char *what)
{
    return h3_fail(H3_E_DEVICE, "NCCL: %s: %s", what, ncclGetErrorString(rc));
}

static h3_status cuda_failed(cudaError_t e, const char *what)
{
    return h3_fail(H3_E_DEVICE, "CUDA: %s: %s", what, cudaGetErrorString(e));
}

#define NCCL_TRY(expr)                                                              \
    do {                                                                            \
        const ncclResult_t rc_ = (expr);                                            \
        if (rc_ != ncclSuccess && rc_ != ncclInProgress) return failed(rc_, #expr); \
    } while (0)
#define CUDA_TRY(expr)                                        \
    do {                                                      \
        const cudaError_t e_ = (expr);                        \
        if (e_ != cudaSuccess) return cuda_failed(e_, #expr); \
    } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void rest(int turn)
{
    const struct timespec t = {0, 20000};

    if (turn > 2000) nanosleep(&t, NULL);
}

static void *end_comm(void *user)
{
    ending *e = user;

    cudaSetDevice(e->device); // not the first one, which is another rank's
    ncclCommAbort(e->comm);
    if (atomic_exchange(&e->state, ENDED) == FORGOTTEN) free(e);
    return NULL;
}

/* Nothing of the communicator is touched from here on. */
static void give_up(nccl_link *l)
{
    pthread_t thread;

    if (l->is_dead || !l->comm) return;
    l->is_dead = true;
    l->is_pending = false;
    l->end = calloc(1, sizeof *l->end);
    if (!l->end) return; // the device may hang, which is one of several ways to be out of memory
    l->end->comm = l->comm;
    cudaGetDevice(&l->end->device);
    if (pthread_create(&thread, NULL, end_comm, l->end) == 0) {
        pthread_detach(thread);
        return;
    }
    free(l->end);
    l->end = NULL;
    ncclCommAbort(l->comm);
}

static void cut(h3_comm *c)
{
    give_up(c->device_state);
}

/* Should another rank not get to its end, or not have been told yet, ours is left to the end of the
 * process. */
static void wait_for_end(nccl_link *l, double patience)
{
    const struct timespec nap = {0, 1000000};
    const double t0 = now();

    if (!l->end) return;
    while (atomic_load(&l->end->state) == ENDS && now() - t0 < patience)
        nanosleep(&nap, NULL);
    if (atomic_exchange(&l->end->state, FORGOTTEN) == ENDED) free(l->end);
}

/* The communicator works without blocking; this waits for what it was asked. */
static h3_status settle(h3_comm *c, nccl_link *l)
{
    for (int turn = 0;; turn++) {
        ncclResult_t state = ncclSuccess;
        NCCL_TRY(ncclCommGetAsyncError(l->comm, &state));
        if (state == ncclSuccess) return H3_OK;
        if (state != ncclInProgress) return failed(state, "between ranks");
        H3_TRY(h3_comm_heard(c));
        rest(turn);
    }
}

/* Until the exchange in that place is through, or a rank failed. */
static h3_status await_slot(h3_comm *c, nccl_link *l, int slot)
{
    for (int turn = 0;; turn++) {
        const cudaError_t e = cudaEventQuery(l->through[slot]);
        if (e == cudaSuccess) return H3_OK;
        if (e != cudaErrorNotReady) return cuda_failed(e, "an exchange");
        H3_TRY(h3_comm_heard(c));
        rest(turn);
    }
}

/* Until the last exchange is through. */
static h3_status wait_last(h3_dev *d)
{
    h3_comm *c = d->comm;
    nccl_link *l = c->device_state;
    h3_status st;

    if (!l->is_pending) return H3_OK;
    st = await_slot(c, l, l->last);
    if (st == H3_OK) st = settle(c, l);
    l->is_pending = false;
    if (st == H3_OK) return H3_OK;
    c->is_broken = true;
    c->link.cut(c); // of all fillings
    return st;
}

static h3_status sync_after(h3_dev *d)
{
    H3_TRY(wait_last(d));
    return ((nccl_link *)d->comm->device_state)->sync(d);
}

static h3_status upload_after(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_TRY(wait_last(d));
    return ((nccl_link *)d->comm->device_state)->upload(d, dst, src, bytes);
}

static h3_status download_after(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_TRY(wait_last(d));
    return ((nccl_link *)d->comm->device_state)->download(d, dst, src, bytes);
}

static h3_status enqueue(nccl_link *l, cudaStream_t stream, const h3_message *send, int n_send,
                         const h3_message *recv, int n_recv)
{
    ncclResult_t rc = ncclGroupStart();

    for (int i = 0; rc == ncclSuccess && i < n_send; i++)
        rc = ncclSend(send[i].data, send[i].bytes, ncclInt8, send[i].peer, l->comm, stream);
    for (int i = 0; rc == ncclSuccess && i < n_recv; i++)
        rc = ncclRecv(recv[i].data, recv[i].bytes, ncclInt8, recv[i].peer, l->comm, stream);
    const ncclResult_t end = ncclGroupEnd();
    if (rc != ncclSuccess) return failed(rc, "an exchange");
    NCCL_TRY(end);
    return H3_OK;
}

static h3_status launch(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                        const h3_message *recv, int n_recv, h3_travel *t)
{
    nccl_link *l = c->device_state;

    H3_TRY(h3_comm_heard(c));
    if (n_send + n_recv == 0) return H3_OK;
    H3_TRY(await_slot(c, l, l->next));
    CUDA_TRY(cudaEventRecord(l->ready, d->stream));
    CUDA_TRY(cudaStreamWaitEvent(l->side, l->ready, 0));
    H3_TRY(enqueue(l, l->side, send, n_send, recv, n_recv));
    H3_TRY(settle(c, l));
    CUDA_TRY(cudaEventRecord(l->through[l->next], l->side));
    l->last = l->next;
    l->next = (l->next + 1) % H3_COMM_TRAVELS;
    l->is_pending = true;
    t->slot = l->last + 1;
    return H3_OK;
}

/* With clocks around operations an exchange is timed by itself, as they are. */
static h3_status begin_on(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                          const h3_message *recv, int n_recv, h3_travel *t)
{
    const double t0 = d->is_timing ? (H3_OK == sync_after(d) ? now() : 0) : 0;
    h3_status st = launch(c, d, send, n_send, recv, n_recv, t);

    if (st == H3_OK && d->is_timing) {
        st = wait_last(d);
        c->seconds += now() - t0;
    }
    return st;
}

static h3_status finish_on(h3_comm *c, h3_dev *d, h3_travel *t)
{
    const nccl_link *l = c->device_state;

    CUDA_TRY(cudaStreamWaitEvent(d->stream, l->through[t->slot - 1], 0));
    t->slot = 0;
    return H3_OK;
}

static h3_status exchange_on(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                             const h3_message *recv, int n_recv)
{
    nccl_link *l = c->device_state;
    h3_travel t = {0};

    H3_TRY(await_slot(c, l, (l->next + H3_COMM_TRAVELS - AHEAD) % H3_COMM_TRAVELS));
    H3_TRY(begin_on(c, d, send, n_send, recv, n_recv, &t));
    return t.slot ? finish_on(c, d, &t) : H3_OK;
}

static void detach(h3_comm *c)
{
    nccl_link *l = c->device_state;

    if (!l) return;
    if (l->d && !l->is_dead && !c->is_broken && !c->is_over && l->d->comm == c)
        (void)!wait_last(l->d); // what was fetched ahead and is not needed
    if (c->is_broken || c->is_over)
        give_up(l);
    else if (l->comm && !l->is_dead)
        ncclCommDestroy(l->comm);
    wait_for_end(l, c->is_over ? PATIENCE : 0);
    if (l->ready) cudaEventDestroy(l->ready);
    for (int i = 0; i < H3_COMM_TRAVELS; i++)
        if (l->through[i]) cudaEventDestroy(l->through[i]);
    if (l->side) cudaStreamDestroy(l->side);
    if (l->d) { // the device lives on without ranks
        l->d->upload = l->upload;
        l->d->download = l->download;
        l->d->sync = l->sync;
    }
    snprintf(c->name, sizeof c->name, "%s", l->host_name);
    free(l);
    c->device_state = NULL;
    c->link.exchange_on = NULL;
    c->link.begin_on = NULL;
    c->link.cut = NULL;
    c->link.finish_on = NULL;
    c->link.detach = NULL;
}

static h3_status open_link(h3_comm *c, nccl_link *l)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    int least = 0, most = 0;

    config.blocking = 0;
    memset(&id, 0, sizeof id);
    if (c->rank == 0) NCCL_TRY(ncclGetUniqueId(&id));
    H3_TRY(h3_comm_broadcast(c, NULL, &id, sizeof id, 0));
    NCCL_TRY(ncclCommInitRankConfig(&l->comm, c->size, id, c->rank, &config));
    H3_TRY(settle(c, l));
    /* First in line for the processors of the GPU: an exchange needs few of them, and others wait
     * for it. */
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &most));
    CUDA_TRY(cudaStreamCreateWithPriority(&l->side, cudaStreamNonBlocking, most));
    CUDA_TRY(cudaEventCreateWithFlags(&l->ready, cudaEventDisableTiming));
    for (int i = 0; i < H3_COMM_TRAVELS; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&l->through[i], cudaEventDisableTiming));
    return H3_OK;
}

h3_status h3_nccl_attach(h3_comm *c, h3_dev *d)
{
    nccl_link *l;
    int version = 0;
    h3_status st;

    if (!d->stream || !d->upload || !d->download || !d->sync)
        return h3_fail(H3_E_INTERNAL, "device %s has no stream for exchanges", d->name);
    l = calloc(1, sizeof *l);
    if (!l) return h3_fail(H3_E_NOMEM, "no memory for NCCL");
    c->device_state = l;
    c->link.detach = detach;
    snprintf(l->host_name, sizeof l->host_name, "%s", c->name);
    st = open_link(c, l);
    if (st != H3_OK) {
        c->is_broken = true;
        detach(c);
        return st;
    }
    l->d = d;
    l->upload = d->upload;
    l->download = d->download;
    l->sync = d->sync;
    d->upload = upload_after;
    d->download = download_after;
    d->sync = sync_after;
    c->link.exchange_on = exchange_on;
    c->link.begin_on = begin_on;
    c->link.cut = cut;
    c->link.finish_on = finish_on;
    ncclGetVersion(&version);
    snprintf(c->name, sizeof c->name, "%.12s + nccl", l->host_name);
    snprintf(c->detail, sizeof c->detail, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return H3_OK;
}
