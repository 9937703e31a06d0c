/**
 * Windows between the GPUs of one host: every rank maps a stretch of the others' device memory
 * (CUDA IPC) and its copy engines write into it over NVLink or PCIe, strided as the tensors lie.
 * Multiprocessors take no part, so what computes meanwhile keeps all of them; a kernel of NCCL
 * takes some, and a product that occupies the whole GPU then waits for the places it lost.
 *
 * Every put has a number. Two words of device memory a pair of ranks order the streams of the two
 * GPUs, written and awaited by the GPUs' own front ends (stream memory operations), so that no host
 * waits for another:
 *
 *   ready[r]   rank r will not touch what put number n writes in its window
 *   done[r]    rank r's part of put number n is here
 *
 *   compute   ... made | ................................ | wait done n | reads
 *   side r             | ready n to r | wait ready n of r | copies | done n to r
 *
 * A GPU that waits for a rank that is gone would wait for ever. So before the host blocks on the
 * device it polls an event and the notes in turns, and a failure lets all waits pass: what they
 * guarded is not used any more. Before a put that would leave too many of them under way it does
 * the same: a GPU takes about a thousand launches, and a host that waits for a place among them
 * hears nothing.
 *
 * Streams share a few channels of the GPU, and one that waits holds up those behind it. What lets
 * waits pass has another priority, which no other stream has, so that it shares no channel.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"
#include "size.h"

enum { READY, DONE, N_FLAGS };

/* Smaller blocks may share one of the driver's, and a map is one of the whole of that. */
enum { BLOCK = 2 << 20 };

typedef CUresult (*stream_value)(CUstream s, CUdeviceptr at, cuuint32_t value, unsigned flags);

typedef struct peer_link {
    h3_dev *d; // whose calls below are ours while we are attached
    h3_status (*upload)(h3_dev *d, void *dst, const void *src, size_t bytes);
    h3_status (*download)(h3_dev *d, void *dst, const void *src, size_t bytes);
    h3_status (*sync)(h3_dev *d);
    void (*detach)(h3_comm *c), (*cut)(h3_comm *c); // of the filling below, or NULL
    h3_comm_link below;
    char name[24]; // before ours was added
    stream_value write, wait;
    uint32_t *flags;                // [ranks][N_FLAGS], as the others tell us
    uint32_t *their[H3_COMM_LOCAL]; // theirs; NULL for ourselves
    void *window;                   // ours
    size_t bytes;
    char *there[H3_COMM_LOCAL]; // theirs
    cudaStream_t side[H3_COMM_LOCAL], rescue;
    cudaEvent_t ready, pulse, through[H3_COMM_LOCAL][H3_COMM_TRAVELS];
    uint32_t number;
    bool is_pending, is_dead;
} peer_link;

static h3_status cuda_failed(cudaError_t e, const char *what)
{
    (void)cudaGetLastError();
    return h3_fail(H3_E_DEVICE, "CUDA: %s: %s", what, cudaGetErrorString(e));
}

#define CUDA_TRY(expr)                                        \
    do {                                                      \
        const cudaError_t e_ = (expr);                        \
        if (e_ != cudaSuccess) return cuda_failed(e_, #expr); \
    } while (0)
#define CU_TRY(expr)                                                                    \
    do {                                                                                \
        const CUresult e_ = (expr);                                                     \
        if (e_ != CUDA_SUCCESS) return h3_fail(H3_E_DEVICE, "CUDA: %s: %d", #expr, e_); \
    } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static peer_link *link_of(const h3_comm *c)
{
    return c->peer_state;
}

static CUdeviceptr flag_at(uint32_t *flags, int rank, int which)
{
    return (CUdeviceptr)(uintptr_t)(flags + N_FLAGS * rank + which);
}

/* ------------------------------------------------------------------------- waiting on the host */

/* Seconds that a GPU may take, after a failure, for what it was given before. */
enum { PATIENCE = 60 };

/* Above all that will be waited for, as the comparison of stream memory operations goes. */
static const uint32_t PASS = 0x6f6f6f6f;

static bool is_through(const h3_comm *c, const peer_link *l)
{
    bool is = !l->d || cudaStreamQuery(l->d->stream) != cudaErrorNotReady;

    for (int r = 0; is && r < c->size; r++)
        if (l->side[r]) is = cudaStreamQuery(l->side[r]) != cudaErrorNotReady;
    return is;
}

/* Lets every wait of our GPU pass, until all that it was given is through. Again and again: ranks
 * that go on for a while set their flags behind us. */
static void pass_all(h3_comm *c, peer_link *l)
{
    const struct timespec nap = {0, 200000};
    const double t0 = now();

    while (!is_through(c, l) && now() - t0 < PATIENCE) {
        for (int r = 0; r < c->size; r++)
            for (int k = 0; r != c->rank && k < N_FLAGS; k++)
                if (l->write(l->rescue, flag_at(l->flags, r, k), PASS, 0) != CUDA_SUCCESS) return;
        do
            nanosleep(&nap, NULL);
        while (cudaStreamQuery(l->rescue) == cudaErrorNotReady && now() - t0 < PATIENCE);
    }
    (void)cudaGetLastError();
}

static void give_up(h3_comm *c)
{
    peer_link *l = link_of(c);

    c->is_broken = true;
    if (l->is_dead) return;
    l->is_dead = true;
    l->is_pending = false;
    if (l->cut) l->cut(c); // kernels of the filling below wait for others, and our GPU for them
    if (l->write && l->flags && l->rescue) pass_all(c, l);
}

/* Until that event is reached, or a rank failed. */
static h3_status await_event(h3_comm *c, cudaEvent_t event)
{
    const struct timespec nap = {0, 20000};

    for (int turn = 0;; turn++) {
        const cudaError_t e = cudaEventQuery(event);
        if (e == cudaSuccess) return H3_OK;
        if (e != cudaErrorNotReady) return cuda_failed(e, "an exchange");
        if (turn % 16 == 15) H3_TRY(h3_comm_heard(c));
        if (turn > 2000) nanosleep(&nap, NULL);
    }
}

/* Until all that the device was given so far is through, or a rank failed. */
static h3_status calm(h3_dev *d)
{
    h3_comm *c = d->comm;
    peer_link *l = link_of(c);
    h3_status st;

    if (!l->is_pending) return H3_OK;
    CUDA_TRY(cudaEventRecord(l->pulse, d->stream));
    st = await_event(c, l->pulse);
    l->is_pending = false;
    if (st != H3_OK) give_up(c);
    return st;
}

static h3_status sync_after(h3_dev *d)
{
    H3_TRY(calm(d));
    return link_of(d->comm)->sync(d);
}

static h3_status upload_after(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_TRY(calm(d));
    return link_of(d->comm)->upload(d, dst, src, bytes);
}

static h3_status download_after(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_TRY(calm(d));
    return link_of(d->comm)->download(d, dst, src, bytes);
}

/* ------------------------------------------------------------------------------------- mapping */

static void close_all(h3_comm *c, void **mapped)
{
    for (int r = 0; r < c->size; r++) {
        if (mapped[r]) cudaIpcCloseMemHandle(mapped[r]);
        mapped[r] = NULL;
    }
}

/* Every rank's block at `own`, as seen from here. All succeed or all fail. */
static h3_status map_all(h3_comm *c, void *own, void **mapped)
{
    cudaIpcMemHandle_t handle[H3_COMM_LOCAL];
    size_t bytes[H3_COMM_LOCAL];
    unsigned char is_bad[H3_COMM_LOCAL] = {0};
    const int me = c->rank;

    memset(handle, 0, sizeof handle);
    is_bad[me] = cudaIpcGetMemHandle(&handle[me], own) != cudaSuccess;
    for (int r = 0; r < c->size; r++)
        bytes[r] = sizeof handle[r];
    H3_TRY(h3_comm_all_gather(c, NULL, handle, bytes));
    for (int r = 0; r < c->size && !is_bad[me]; r++)
        if (r != me && cudaIpcOpenMemHandle(&mapped[r], handle[r],
                                            cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
            mapped[r] = NULL;
            is_bad[me] = 1;
        }
    (void)cudaGetLastError();
    for (int r = 0; r < c->size; r++)
        bytes[r] = 1;
    H3_TRY(h3_comm_all_gather(c, NULL, is_bad, bytes));
    for (int r = 0; r < c->size; r++)
        if (is_bad[r]) {
            close_all(c, mapped);
            return h3_fail(H3_E_UNSUPPORTED, "GPUs of rank %d and others do not see each other", r);
        }
    return H3_OK;
}

/* Nobody writes to it any more, and nobody has it mapped: it can go. */
static h3_status drop_window(h3_comm *c, h3_dev *d)
{
    peer_link *l = link_of(c);

    if (!l->window) return H3_OK;
    H3_TRY(sync_after(d));
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        CUDA_TRY(cudaEventRecord(l->pulse, l->side[r]));
        H3_TRY(await_event(c, l->pulse));
    }
    H3_TRY(h3_comm_barrier(c)); // theirs are through, too
    close_all(c, (void **)l->there);
    H3_TRY(h3_comm_barrier(c));
    d->dealloc(d, l->window);
    l->window = NULL;
    l->bytes = 0;
    return H3_OK;
}

static h3_status window(h3_comm *c, h3_dev *d, size_t bytes, void **base)
{
    peer_link *l = link_of(c);

    if (bytes == 0 || bytes > l->bytes) {
        H3_TRY(drop_window(c, d));
        if (bytes == 0) return H3_OK;
        H3_TRY(d->alloc(d, &l->window, h3_align_up(bytes, BLOCK)));
        H3_TRY(map_all(c, l->window, (void **)l->there));
        l->bytes = bytes;
    }
    *base = l->window;
    return H3_OK;
}

/* ------------------------------------------------------------------------------------- putting */

static h3_status copy_to(peer_link *l, const h3_put *p, cudaStream_t s)
{
    char *dst = l->there[p->peer] + p->at;

    if (p->rows == 1 || (p->pitch == p->width && p->src_pitch == p->width))
        CUDA_TRY(cudaMemcpyAsync(dst, p->src, p->width * p->rows, cudaMemcpyDeviceToDevice, s));
    else
        CUDA_TRY(cudaMemcpy2DAsync(dst, p->pitch, p->src, p->src_pitch, p->width, p->rows,
                                   cudaMemcpyDeviceToDevice, s));
    return H3_OK;
}

static h3_status put_to(h3_comm *c, h3_dev *d, int r, const h3_put *list, int n, int slot)
{
    peer_link *l = link_of(c);
    cudaStream_t s = l->side[r];

    (void)d;
    CUDA_TRY(cudaStreamWaitEvent(s, l->ready, 0));
    CU_TRY(l->write(s, flag_at(l->their[r], c->rank, READY), l->number, 0));
    CU_TRY(l->wait(s, flag_at(l->flags, r, READY), l->number, CU_STREAM_WAIT_VALUE_GEQ));
    for (int i = 0; i < n; i++)
        if (list[i].peer == r && list[i].width * list[i].rows > 0) H3_TRY(copy_to(l, &list[i], s));
    CU_TRY(l->write(s, flag_at(l->their[r], c->rank, DONE), l->number, 0));
    CUDA_TRY(cudaEventRecord(l->through[r][slot], s));
    return H3_OK;
}

static h3_status put_all(h3_comm *c, h3_dev *d, const h3_put *list, int n, h3_travel *t)
{
    peer_link *l = link_of(c);
    const int slot = (int)(++l->number % H3_COMM_TRAVELS);

    H3_TRY(h3_comm_heard(c));
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) H3_TRY(await_event(c, l->through[r][slot])); // of the last time round
    CUDA_TRY(cudaEventRecord(l->ready, d->stream));
    l->is_pending = true;
    for (int i = 1; i < c->size; i++)
        H3_TRY(put_to(c, d, (c->rank + i) % c->size, list, n, slot));
    *t = (h3_travel){.slot = slot + 1, .number = l->number, .is_put = true};
    return H3_OK;
}

static h3_status finish_put(h3_comm *c, h3_dev *d, h3_travel *t)
{
    const peer_link *l = link_of(c);
    const int slot = t->slot - 1;

    t->slot = 0;
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        CU_TRY(l->wait((CUstream)d->stream, flag_at(l->flags, r, DONE), t->number,
                       CU_STREAM_WAIT_VALUE_GEQ));
        CUDA_TRY(cudaStreamWaitEvent(d->stream, l->through[r][slot], 0)); // ours may be reused
    }
    return H3_OK;
}

/* With clocks around operations an exchange is timed by itself, as they are. */
static h3_status put(h3_comm *c, h3_dev *d, const h3_put *list, int n, h3_travel *t)
{
    const double t0 = d->is_timing && sync_after(d) == H3_OK ? now() : 0;
    h3_status st = put_all(c, d, list, n, t);

    if (st == H3_OK && d->is_timing) {
        st = finish_put(c, d, t);
        if (st == H3_OK) st = sync_after(d);
        c->seconds += now() - t0;
    }
    return st;
}

/* ------------------------------------------------------------------------------------- opening */

static void detach(h3_comm *c)
{
    peer_link *l = link_of(c);
    const bool is_well = !c->is_broken && !c->is_over && !l->is_dead;

    if (!is_well && l->d) give_up(c);
    if (l->d && is_well && drop_window(c, l->d) != H3_OK) c->is_broken = true;
    for (int r = 0; r < c->size; r++) {
        if (l->side[r]) cudaStreamSynchronize(l->side[r]);
        if (l->side[r]) cudaStreamDestroy(l->side[r]);
        for (int i = 0; i < H3_COMM_TRAVELS; i++)
            if (l->through[r][i]) cudaEventDestroy(l->through[r][i]);
    }
    if (is_well) (void)!h3_comm_barrier(c); // no flag of ours is written any more
    close_all(c, (void **)l->there);
    close_all(c, (void **)l->their);
    if (l->ready) cudaEventDestroy(l->ready);
    if (l->pulse) cudaEventDestroy(l->pulse);
    if (l->rescue) cudaStreamSynchronize(l->rescue);
    if (l->rescue) cudaStreamDestroy(l->rescue);
    if (l->d) { // the device lives on without ranks
        l->d->upload = l->upload;
        l->d->download = l->download;
        l->d->sync = l->sync;
    }
    /* After a failure others may not be through yet: what they write to stays as long as we do. */
    if (l->flags && (!l->d || !c->is_broken)) cudaFree(l->flags);
    snprintf(c->name, sizeof c->name, "%s", l->name);
    c->link.window = l->below.window;
    c->link.put = l->below.put;
    c->link.finish_put = l->below.finish_put;
    c->window_mem = H3_HOST;
    c->link.cut = l->cut;
    c->link.detach = l->detach;
    c->peer_state = NULL;
    free(l);
    if (c->link.detach) c->link.detach(c);
}

static h3_status find_calls(peer_link *l)
{
    enum cudaDriverEntryPointQueryResult found;

    CUDA_TRY(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", (void **)&l->write, 12000,
                                              cudaEnableDefault, &found));
    CUDA_TRY(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", (void **)&l->wait, 12000,
                                              cudaEnableDefault, &found));
    return l->write && l->wait ? H3_OK : h3_fail(H3_E_UNSUPPORTED, "no stream memory operations");
}

static h3_status make_streams(h3_comm *c, peer_link *l)
{
    const size_t bytes = (size_t)c->size * N_FLAGS * sizeof *l->flags;
    int least = 0, most = 0;

    H3_TRY(find_calls(l));
    CUDA_TRY(cudaMalloc((void **)&l->flags, h3_align_up(bytes, BLOCK)));
    CUDA_TRY(cudaMemset(l->flags, 0, bytes));
    CUDA_TRY(cudaDeviceSynchronize());
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &most));
    /* The first in line is NCCL's. */
    CUDA_TRY(cudaStreamCreateWithPriority(&l->rescue, cudaStreamNonBlocking,
                                          most + 1 < least ? most + 1 : most));
    CUDA_TRY(cudaEventCreateWithFlags(&l->ready, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&l->pulse, cudaEventDisableTiming));
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        CUDA_TRY(cudaStreamCreateWithFlags(&l->side[r], cudaStreamNonBlocking));
        for (int i = 0; i < H3_COMM_TRAVELS; i++)
            CUDA_TRY(cudaEventCreateWithFlags(&l->through[r][i], cudaEventDisableTiming));
    }
    return H3_OK;
}

/* Every rank goes through the same exchanges here, whether its own part went well or not. */
static h3_status open_link(h3_comm *c, peer_link *l)
{
    unsigned char is_bad[H3_COMM_LOCAL] = {0};
    size_t bytes[H3_COMM_LOCAL];

    is_bad[c->rank] = make_streams(c, l) != H3_OK;
    for (int r = 0; r < c->size; r++)
        bytes[r] = 1;
    H3_TRY(h3_comm_all_gather(c, NULL, is_bad, bytes));
    for (int r = 0; r < c->size; r++)
        if (is_bad[r]) return h3_fail(H3_E_UNSUPPORTED, "rank %d has no windows", r);
    return map_all(c, l->flags, (void **)l->their);
}

h3_status h3_peer_attach(h3_comm *c, h3_dev *d)
{
    const char *wish = getenv("H3_PEER");
    peer_link *l;
    h3_status st;

    if (c->n_local != c->size || c->size > H3_COMM_LOCAL || !d->stream) return H3_OK;
    if (wish && strcmp(wish, "off") == 0) return H3_OK;
    l = calloc(1, sizeof *l);
    if (!l) return h3_fail(H3_E_NOMEM, "no memory for windows between ranks");
    c->peer_state = l;
    snprintf(l->name, sizeof l->name, "%s", c->name);
    l->detach = c->link.detach;
    l->cut = c->link.cut;
    l->below = c->link;
    st = open_link(c, l);
    if (st != H3_OK) { // messages do, unless the ranks have parted
        const bool is_broken = c->is_broken;
        c->is_broken = true; // nobody waits for us
        c->link.detach = NULL;
        void (*const below)(h3_comm *) = l->detach;
        l->detach = NULL;
        detach(c);
        c->is_broken = is_broken;
        c->link.detach = below;
        return is_broken ? st : H3_OK;
    }
    l->d = d;
    l->upload = d->upload;
    l->download = d->download;
    l->sync = d->sync;
    d->upload = upload_after;
    d->download = download_after;
    d->sync = sync_after;
    c->window_mem = H3_DEVICE;
    c->link.window = window;
    c->link.put = put;
    c->link.finish_put = finish_put;
    c->link.cut = give_up;
    c->link.detach = detach;
    snprintf(c->name, sizeof c->name, "%.15s + peer", l->name);
    return H3_OK;
}
