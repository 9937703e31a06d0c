/**
 * Ranks: processes that work on one request together, and what they exchange.
 *
 * What ranks send each other is a list of messages, sent and received at once (h3_comm_exchange, or
 * in two halves with work between them: h3_comm_begin, h3_comm_finish); the other calls are such
 * lists. Three fillings carry them:
 *
 *   local   processes of one host, started by h3_comm_fork, over socket pairs
 *   mpi     processes started by mpirun or srun (backend/mpi), when the build has MPI
 *   nccl    beside one of the two, for tensors that live on GPUs (backend/nccl)
 *
 * Ranks of one host may also write into each other's memory, without messages (h3_comm_window,
 * h3_comm_put): `local` has shared memory for that, and GPUs theirs (backend/peer).
 *
 * A missing or single rank is no special case for callers: a NULL h3_comm has rank 0 of 1, and all
 * calls accept it and do nothing.
 *
 * Failures. A rank that fails leaves the sequence of exchanges and goes to h3_comm_agree, where
 * each stretch of work ends on every rank. The others hear of it while they wait: their exchange
 * returns the failed rank's status and sentence, and they unwind as if it had failed here (files
 * half written are removed, and so on). So no rank waits for one that is gone, and all return the
 * same status. What was in flight then is lost, so a failure is the end: every later exchange
 * fails, and h3_comm_agree returns at once.
 *
 * Collective calls are made by all ranks in the same order, from one thread.
 */
#ifndef H3_TENSOR_COMM_H
#define H3_TENSOR_COMM_H

#include "dev.h"

enum {
    H3_COMM_MAX = 256,   ///< ranks
    H3_COMM_LOCAL = 16,  ///< ranks that h3_comm_fork starts at most
    H3_COMM_TRAVELS = 32 ///< exchanges under way at once (h3_comm_begin)
};

typedef struct h3_comm h3_comm;

/** Bytes for or from rank `peer`: host memory, or memory of the device at hand. Messages between
 *  two ranks keep their order. A message to oneself is not sent: both sides are the caller's. */
typedef struct h3_message {
    int peer;
    void *data;
    size_t bytes;
} h3_message;

/** How a rank ended a stretch of work. */
typedef struct h3_comm_note {
    uint32_t epoch;
    int32_t status, origin; ///< origin: the rank whose failure this is
    char text[1024];
} h3_comm_note;

/** An exchange under way: what its filling keeps of it. Zero: none. */
typedef struct h3_travel {
    int slot; ///< of the filling, counted from 1; 0: it is through
    uint32_t number;
    bool is_put;
} h3_travel;

/** Rows of ours that are written into the window of rank `peer`, `at` bytes behind its begin. */
typedef struct h3_put {
    int peer;
    size_t at, pitch; ///< bytes; pitch: from row to row there
    const void *src;
    size_t src_pitch, width, rows;
} h3_put;

/** A filling. Only comm.c calls these. */
typedef struct h3_comm_link {
    /** Sends and receives all messages, or returns when h3_comm_heard fails. Host memory. */
    h3_status (*exchange)(h3_comm *c, const h3_message *send, int n_send, const h3_message *recv,
                          int n_recv);
    /** The same for memory of the device, enqueued there; NULL: by way of the host. */
    h3_status (*exchange_on)(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                             const h3_message *recv, int n_recv);
    /** The same two in halves, where they can travel beside computing; NULL: begin does it all. */
    h3_status (*begin)(h3_comm *c, const h3_message *send, int n_send, const h3_message *recv,
                       int n_recv, h3_travel *t);
    h3_status (*finish)(h3_comm *c, h3_travel *t);
    h3_status (*begin_on)(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                          const h3_message *recv, int n_recv, h3_travel *t);
    h3_status (*finish_on)(h3_comm *c, h3_dev *d, h3_travel *t);
    /** Windows; all three or none. For memory of the device, or the host's where `d` is one. */
    h3_status (*window)(h3_comm *c, h3_dev *d, size_t bytes, void **base);
    h3_status (*put)(h3_comm *c, h3_dev *d, const h3_put *list, int n, h3_travel *t);
    h3_status (*finish_put)(h3_comm *c, h3_dev *d, h3_travel *t);
    /** Ends what is under way: all ranks began it, so it arrives, unless one of them failed. */
    void (*abandon)(h3_comm *c);
    void (*cut)(h3_comm *c); ///< what a device waits for does not come: it goes on without
    void (*say)(h3_comm *c, int peer, const h3_comm_note *note); ///< must not block for long
    int (*hear)(h3_comm *c, int peer, h3_comm_note *note); ///< 1: here it is, 0: none yet, -1: gone
    void (*nap)(h3_comm *c, int ms); ///< until something may have come, at most so long
    void (*detach)(h3_comm *c);      ///< the device is about to close
    void (*close)(h3_comm *c);
} h3_comm_link;

struct h3_comm {
    int rank, size;
    int local_rank, n_local;      ///< among the ranks of this host
    char name[24];                ///< "local", "mpi", "mpi + nccl"
    char detail[96];              ///< versions
    const h3_cancel_flag *cancel; ///< polled while waiting; may be NULL
    h3_comm_link link;
    uint8_t window_mem;                      ///< h3_mem of windows that the link has
    bool has_window;                         ///< the attached device's memory is of that kind
    int n_units;                             ///< h3_dev.n_units of all ranks, 0: they differ
    void *state, *device_state, *peer_state; ///< of the fillings
    /* where a stretch of work stands */
    uint32_t epoch;
    bool is_broken;   ///< an exchange was left in the middle
    bool is_over;     ///< all ranks know of a failure
    bool is_stand_in; ///< of ranks that were not started: see h3_comm_stand_in
    bool *has_note;   ///< [size]
    h3_comm_note *note;
    /* what it cost */
    uint64_t n_exchanges, sent_bytes;
    double seconds; ///< in exchanges of host memory, waiting included
};

/* ---- opening ---- */

/** What a launcher (mpirun, srun) gave to this process, from its environment: *rank and *size, or
 *  0 and 1. Starts nothing. */
void h3_comm_launched(int *rank, int *size);

/**
 * Joins the ranks that a launcher started. H3_OK with *out NULL when there is one rank only;
 * H3_E_UNSUPPORTED when a launcher started several but the build has no MPI.
 */
H3_NODISCARD h3_status h3_comm_join(h3_comm **out);

/**
 * Starts n - 1 copies of this process and connects all of them: the call returns n times, once in
 * each. Call it before anything else was opened, from a process with one thread. The caller is rank
 * 0, the parent of the others; h3_comm_close waits for them.
 */
H3_NODISCARD h3_status h3_comm_fork(h3_comm **out, int n);

/**
 * Rank 0 of n on this host, without the others: what it would take in memory can be counted, since
 * a counting device exchanges nothing. Every exchange of another device fails.
 */
H3_NODISCARD h3_status h3_comm_stand_in(h3_comm **out, int n);

/** Lets tensors of `d` travel without passing through the host, where a filling for it was built.
 *  Sets d->comm. Collective. */
H3_NODISCARD h3_status h3_comm_attach(h3_comm *c, h3_dev *d);
/** Before `d` closes. */
void h3_comm_detach(h3_comm *c, h3_dev *d);

/** Frees; ends the MPI runtime, waits for children. All ranks have agreed before. */
void h3_comm_close(h3_comm **c);

/* ---- asking ---- */

static inline int h3_comm_rank(const h3_comm *c)
{
    return c ? c->rank : 0;
}
static inline int h3_comm_size(const h3_comm *c)
{
    return c ? c->size : 1;
}

/** First of n rows that rank r owns; rank r's rows end where those of r + 1 begin. Shares differ by
 *  one at most. */
static inline int64_t h3_comm_first(const h3_comm *c, int64_t n, int r)
{
    const int64_t size = h3_comm_size(c);
    return n / size * r + (n % size * r) / size;
}

/* ---- exchanging; d NULL: host memory ---- */

H3_NODISCARD h3_status h3_comm_exchange(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                                        const h3_message *recv, int n_recv);

/**
 * The same in two halves, so that work can go on between them: `send` is as it was enqueued until
 * h3_comm_begin, and `recv` is there for what is enqueued after h3_comm_finish. Until then neither
 * is touched. Both are collective; travels end in the order in which they began. A filling that
 * cannot do both at once does it all in begin (h3_comm_can_travel).
 */
H3_NODISCARD h3_status h3_comm_begin(h3_comm *c, h3_dev *d, const h3_message *send, int n_send,
                                     const h3_message *recv, int n_recv, h3_travel *t);
H3_NODISCARD h3_status h3_comm_finish(h3_comm *c, h3_dev *d, h3_travel *t);
/** A failure here, with exchanges under way that others may not take part in any more: nothing
 * waits for them, and they are the last. Before memory they use is given back. */
void h3_comm_abandon(h3_comm *c);
/** For a caller that waits for something of its own which may hang on an exchange under way: fails
 * when another rank did, and then nothing waits for it any more. To be called from time to time. */
H3_NODISCARD h3_status h3_comm_watch(h3_comm *c);
/** True when exchanges of `d` go on while it computes. */
bool h3_comm_can_travel(const h3_comm *c, const h3_dev *d);

/**
 * Windows: memory of each rank that the others write to directly, without messages, where the
 * filling has such a thing (GPUs of one host). Collective, with the same number of bytes on all
 * ranks. A window only grows, and its contents are lost then; 0 bytes give it back (as
 * h3_comm_detach does).
 */
bool h3_comm_has_window(const h3_comm *c, const h3_dev *d);
H3_NODISCARD h3_status h3_comm_window(h3_comm *c, h3_dev *d, size_t bytes, void **base);
/**
 * Collective, each rank with its own list: begins to write rows of ours into windows of others, as
 * they are where the work enqueued so far has made them; and they write into ours, which the work
 * enqueued so far has read for the last time. All of it is there for what is enqueued after
 * h3_comm_finish; until then sources and targets are left alone.
 */
H3_NODISCARD h3_status h3_comm_put(h3_comm *c, h3_dev *d, const h3_put *list, int n, h3_travel *t);

/** `data` [size] slabs one after another, bytes[r] of rank r: every rank has its own and gets the
 *  others. */
H3_NODISCARD h3_status h3_comm_all_gather(h3_comm *c, h3_dev *d, void *data, const size_t *bytes);

/** send[r] goes to rank r, recv[r] comes from it, r over all ranks; the own one (r = rank) is the
 *  caller's. */
H3_NODISCARD h3_status h3_comm_all_to_all(h3_comm *c, h3_dev *d, const h3_message *recv,
                                          const h3_message *send);

/** `bytes` from `root` to all. */
H3_NODISCARD h3_status h3_comm_broadcast(h3_comm *c, h3_dev *d, void *data, size_t bytes, int root);

H3_NODISCARD h3_status h3_comm_barrier(h3_comm *c);

/** H3_E_ARG when `value` differs between the ranks; `what` names it. */
H3_NODISCARD h3_status h3_comm_same(h3_comm *c, uint64_t value, const char *what);

/**
 * Ends a stretch of work on all ranks: each gives how it went here (with h3_error() when it failed)
 * and gets how it went altogether: H3_OK, or the first failure, its sentence as h3_error().
 */
H3_NODISCARD h3_status h3_comm_agree(h3_comm *c, h3_status mine);

/* ---- for fillings ---- */

/** Polls the other ranks and the stop flag; anything but H3_OK ends the exchange at hand. */
H3_NODISCARD h3_status h3_comm_heard(h3_comm *c);

/** calloc of a comm and its tables. */
H3_NODISCARD h3_status h3_comm_create(h3_comm **out, int rank, int size);

/* backend/mpi, nccl and peer, where they were built; called by comm.c only. */
h3_status h3_mpi_join(h3_comm **out, int rank, int size);
h3_status h3_nccl_attach(h3_comm *c, h3_dev *d);
/** Windows between the GPUs of a host; none, and H3_OK, where they cannot see each other. */
h3_status h3_peer_attach(h3_comm *c, h3_dev *d);

#endif
