/**
 * Ranks on one host without a launcher: the process is copied (fork) and every two copies share two
 * pairs of sockets, a stream for data and a packet socket for notes. Sockets rather than shared
 * memory because the kernel then does all that is hard: waiting without spinning, and knowing that
 * the other side is gone. A stream moves some GB/s, which is enough for ranks that compute on one
 * CPU, and for what ranks on several GPUs of one host exchange beside NCCL.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm.h"

typedef struct local {
    int data[H3_COMM_LOCAL], note[H3_COMM_LOCAL]; // sockets to each rank, -1 to oneself
    pid_t child[H3_COMM_LOCAL];                   // rank 0 only
    void *window[H3_COMM_LOCAL];                  // of each rank, mapped; all or none
    size_t window_bytes;
} local;

/* A list of messages, each peer at its own place in it. */
typedef struct queue {
    const h3_message *list;
    int n;
    int at[H3_COMM_LOCAL];      // message under way, n: all done
    size_t done[H3_COMM_LOCAL]; // bytes of it
} queue;

static int next_for(const queue *q, int peer, int from)
{
    while (from < q->n && (q->list[from].peer != peer || q->list[from].bytes == 0))
        from++;
    return from;
}

static void start(queue *q, const h3_message *list, int n, int size)
{
    q->list = list;
    q->n = n;
    for (int r = 0; r < size; r++) {
        q->at[r] = next_for(q, r, 0);
        q->done[r] = 0;
    }
}

static bool is_busy(const queue *q, int peer)
{
    return q->at[peer] < q->n;
}

/* Moves what the socket takes or gives now. 0, or -1: the other side is gone. */
static int move(queue *q, int peer, int fd, bool is_send)
{
    while (is_busy(q, peer)) {
        const h3_message *m = &q->list[q->at[peer]];
        unsigned char *p = (unsigned char *)m->data + q->done[peer];
        const size_t left = m->bytes - q->done[peer];
        const ssize_t n = is_send ? send(fd, p, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : recv(fd, p, left, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
        if (n <= 0) return -1;
        q->done[peer] += (size_t)n;
        if (q->done[peer] < m->bytes) continue;
        q->at[peer] = next_for(q, peer, q->at[peer] + 1);
        q->done[peer] = 0;
    }
    return 0;
}

static h3_status gone(h3_comm *c, int peer)
{
    H3_TRY(h3_comm_heard(c)); // it may have said why
    return h3_fail(H3_E_INTERNAL, "rank %d ended unexpectedly", peer);
}

static h3_status exchange(h3_comm *c, const h3_message *send, int n_send, const h3_message *recv,
                          int n_recv)
{
    const local *l = c->state;
    queue out, in;

    start(&out, send, n_send, c->size);
    start(&in, recv, n_recv, c->size);
    for (;;) {
        struct pollfd fd[2 * H3_COMM_LOCAL];
        int n = 0;
        for (int r = 0; r < c->size; r++) {
            if (r == c->rank) continue;
            if (is_busy(&out, r) && move(&out, r, l->data[r], true) < 0) return gone(c, r);
            if (is_busy(&in, r) && move(&in, r, l->data[r], false) < 0) return gone(c, r);
            if (!is_busy(&out, r) && !is_busy(&in, r)) continue;
            fd[n++] = (struct pollfd){.fd = l->data[r],
                                      .events = (short)((is_busy(&out, r) ? POLLOUT : 0) |
                                                        (is_busy(&in, r) ? POLLIN : 0))};
        }
        if (n == 0) return H3_OK;
        for (int r = 0; r < c->size; r++)
            if (r != c->rank && !c->has_note[r])
                fd[n++] = (struct pollfd){.fd = l->note[r], .events = POLLIN};
        poll(fd, (nfds_t)n, 100); // a signal ends it at once
        H3_TRY(h3_comm_heard(c));
    }
}

static void say(h3_comm *c, int peer, const h3_comm_note *note)
{
    const local *l = c->state;

    /* Packets wait in the socket's buffer; one is under way at most. A peer that is gone hears
     * nothing. */
    while (send(l->note[peer], note, sizeof *note, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
}

static int hear(h3_comm *c, int peer, h3_comm_note *note)
{
    const local *l = c->state;
    const ssize_t n = recv(l->note[peer], note, sizeof *note, MSG_DONTWAIT);

    if (n == (ssize_t)sizeof *note) return 1;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

static void nap(h3_comm *c, int ms)
{
    const local *l = c->state;
    struct pollfd fd[H3_COMM_LOCAL];
    int n = 0;

    (void)ms; // sockets wake the sleeper
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && !c->has_note[r])
            fd[n++] = (struct pollfd){.fd = l->note[r], .events = POLLIN};
    poll(fd, (nfds_t)n, 1000);
}

/* --------------------------------------------------------------------------------- windows */

static void unmap_all(h3_comm *c, local *l)
{
    for (int r = 0; r < c->size; r++)
        if (l->window[r]) munmap(l->window[r], l->window_bytes);
    memset(l->window, 0, sizeof l->window);
    l->window_bytes = 0;
}

typedef struct place {
    pid_t pid;
    int fd; // -1: there is none
} place;

/* Every rank's memory, through the file table of its process. False when one cannot be mapped. */
static bool map_all(h3_comm *c, local *l, const place *at, size_t bytes)
{
    char path[64];

    l->window_bytes = bytes;
    for (int r = 0; r < c->size; r++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)at[r].pid, at[r].fd);
        const int fd = at[r].fd < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
        void *p =
            fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (p == MAP_FAILED) return false;
        l->window[r] = p;
    }
    return true;
}

static h3_status make_windows(h3_comm *c, local *l, size_t bytes)
{
    place at[H3_COMM_LOCAL];
    size_t of[H3_COMM_LOCAL];
    const int fd = memfd_create("h3av-window", MFD_CLOEXEC);
    const bool is_made = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0;
    h3_status st;

    memset(at, 0, sizeof at);
    at[c->rank] = (place){getpid(), is_made ? fd : -1};
    for (int r = 0; r < c->size; r++)
        of[r] = sizeof *at;
    st = h3_comm_all_gather(c, NULL, at, of);
    if (st == H3_OK && !map_all(c, l, at, bytes))
        st = h3_fail(H3_E_NOMEM, "no shared memory of %zu bytes for ranks: %s", bytes,
                     strerror(errno));
    if (st == H3_OK) st = h3_comm_barrier(c); // all have opened it
    if (fd >= 0) close(fd);
    if (st != H3_OK) unmap_all(c, l);
    return st;
}

static h3_status window(h3_comm *c, h3_dev *d, size_t bytes, void **base)
{
    local *l = c->state;

    (void)d;
    if (bytes == 0 || bytes > l->window_bytes) {
        if (l->window_bytes) H3_TRY(h3_comm_barrier(c)); // nobody writes any more
        unmap_all(c, l);
        if (bytes == 0) return H3_OK;
        H3_TRY(make_windows(c, l, bytes));
    }
    *base = l->window[c->rank];
    return H3_OK;
}

/* At once: a processor has nothing better to do meanwhile. */
static h3_status put(h3_comm *c, h3_dev *d, const h3_put *list, int n, h3_travel *t)
{
    const local *l = c->state;

    (void)d;
    (void)t;
    H3_TRY(h3_comm_barrier(c)); // all have read what was there
    for (int i = 0; i < n; i++) {
        unsigned char *to = (unsigned char *)l->window[list[i].peer] + list[i].at;
        const unsigned char *from = list[i].src;
        for (size_t k = 0; k < list[i].rows; k++)
            memcpy(to + k * list[i].pitch, from + k * list[i].src_pitch, list[i].width);
    }
    return h3_comm_barrier(c);
}

static h3_status finish_put(h3_comm *c, h3_dev *d, h3_travel *t)
{
    (void)c, (void)d, (void)t;
    return H3_OK;
}

static void close_local(h3_comm *c)
{
    local *l = c->state;

    if (!l) return;
    unmap_all(c, l);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        if (l->data[r] >= 0) close(l->data[r]);
        if (l->note[r] >= 0) close(l->note[r]);
    }
    for (int r = 1; c->rank == 0 && r < c->size; r++)
        while (l->child[r] > 0 && waitpid(l->child[r], NULL, 0) < 0 && errno == EINTR)
            continue;
    free(l);
    c->state = NULL;
}

/* ---------------------------------------------------------------------------------------- fork */

typedef int pair[2];

enum { N_PAIRS = H3_COMM_LOCAL * (H3_COMM_LOCAL - 1) / 2, STREAM_BYTES = 4 << 20 };

typedef struct wiring {
    pair data[N_PAIRS], note[N_PAIRS]; // side 0 is the lower rank's
    int n;
} wiring;

static int pair_of(int a, int b) // a < b
{
    return b * (b - 1) / 2 + a;
}

static void cut(wiring *w)
{
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < 2; k++) {
            if (w->data[i][k] >= 0) close(w->data[i][k]);
            if (w->note[i][k] >= 0) close(w->note[i][k]);
        }
}

static h3_status wire(wiring *w, int size)
{
    const int bytes = STREAM_BYTES;

    for (w->n = 0; w->n < pair_of(0, size); w->n++) {
        int *d = w->data[w->n], *t = w->note[w->n];
        d[0] = d[1] = t[0] = t[1] = -1;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, d) != 0 ||
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, t) != 0) {
            const int e = errno;
            w->n++;
            cut(w);
            return h3_fail(H3_E_IO, "no sockets for %d ranks: %s", size, strerror(e));
        }
        for (int k = 0; k < 2; k++)
            setsockopt(d[k], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); // a wish
    }
    return H3_OK;
}

/* Keeps this rank's ends and closes the rest. */
static void keep_own(wiring *w, local *l, int rank, int size)
{
    for (int r = 0; r < size; r++) {
        l->data[r] = l->note[r] = -1;
        if (r == rank) continue;
        const int i = rank < r ? pair_of(rank, r) : pair_of(r, rank), side = rank < r ? 0 : 1;
        l->data[r] = w->data[i][side];
        l->note[r] = w->note[i][side];
        w->data[i][side] = w->note[i][side] = -1;
    }
    cut(w);
}

/* The parent of all copies is rank 0. Returns this process's rank, or -1: nothing was started. */
static int spawn(local *l, int size)
{
    for (int r = 1; r < size; r++) {
        const pid_t parent = getpid(), p = fork();
        if (p == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); // nobody is left to report to
            if (getppid() != parent) _exit(1);
            memset(l->child, 0, sizeof l->child);
            return r;
        }
        if (p < 0) {
            const int e = errno;
            for (int i = 1; i < r; i++) {
                kill(l->child[i], SIGKILL);
                waitpid(l->child[i], NULL, 0);
            }
            errno = e;
            return -1;
        }
        l->child[r] = p;
    }
    return 0;
}

h3_status h3_comm_fork(h3_comm **out, int n)
{
    local *l;
    wiring *w;
    h3_status st = H3_OK;
    int rank = 0;

    *out = NULL;
    if (n < 1 || n > H3_COMM_LOCAL)
        return h3_fail(H3_E_ARG, "%d ranks: expected 1..%d on one host", n, H3_COMM_LOCAL);
    if (n == 1) return H3_OK;
    l = calloc(1, sizeof *l);
    w = calloc(1, sizeof *w);
    if (!l || !w) st = h3_fail(H3_E_NOMEM, "no memory for %d ranks", n);
    if (st == H3_OK) st = wire(w, n);
    if (st == H3_OK && (rank = spawn(l, n)) < 0) {
        st = h3_fail(H3_E_IO, "cannot start %d ranks: %s", n, strerror(errno));
        cut(w);
    }
    if (st == H3_OK) {
        keep_own(w, l, rank, n);
        st = h3_comm_create(out, rank, n);
    }
    free(w);
    if (st != H3_OK) {
        free(l);
        return st;
    }
    (*out)->state = l;
    (*out)->link = (h3_comm_link){
        .exchange = exchange, .say = say, .hear = hear, .nap = nap, .close = close_local};
    const char *wish = getenv("H3_PEER");
    if (!wish || strcmp(wish, "off") != 0) { // "off" is for tests and measurements
        (*out)->window_mem = H3_HOST;
        (*out)->link.window = window;
        (*out)->link.put = put;
        (*out)->link.finish_put = finish_put;
    }
    snprintf((*out)->name, sizeof(*out)->name, "local");
    return H3_OK;
}
