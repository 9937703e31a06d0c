/**
 * Ranks started by mpirun or srun, over MPI: host memory only (GPUs talk through NCCL, which this
 * connects).
 *
 * Exchanges are point-to-point messages rather than MPI's collectives, because a collective cannot
 * be left: here a rank that waits looks for notes of failed ranks and for the stop flag between two
 * looks at its requests, cancels its receives and goes. Notes travel on a communicator of their
 * own.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

enum { TAG = 1, CHUNK = 1 << 30 }; // counts of MPI are ints

typedef struct requests {
    MPI_Request *at;
    int n, n_recv; // receives come first
} requests;

typedef struct mpi_link {
    MPI_Comm data, notes;
    requests travel[H3_COMM_TRAVELS]; // at NULL: free
    MPI_Request *told;                // [size] notes under way
    h3_comm_note *outgoing;           // [size]
} mpi_link;

static h3_status failed(int rc, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    MPI_Error_string(rc, text, &n);
    return h3_fail(H3_E_DEVICE, "MPI: %s: %s", what, text);
}

#define MPI_TRY(expr)                                      \
    do {                                                   \
        const int rc_ = (expr);                            \
        if (rc_ != MPI_SUCCESS) return failed(rc_, #expr); \
    } while (0)

/* ------------------------------------------------------------------------------------ requests */

static int pieces(const h3_message *m, int n)
{
    size_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += (m[i].bytes + CHUNK - 1) / CHUNK;
    return (int)sum;
}

static h3_status post(const mpi_link *l, requests *q, const h3_message *m, bool is_send)
{
    unsigned char *p = m->data;

    for (size_t left = m->bytes; left > 0;) {
        const int n = (int)(left < CHUNK ? left : CHUNK);
        if (is_send)
            MPI_TRY(MPI_Isend(p, n, MPI_BYTE, m->peer, TAG, l->data, &q->at[q->n]));
        else
            MPI_TRY(MPI_Irecv(p, n, MPI_BYTE, m->peer, TAG, l->data, &q->at[q->n]));
        q->n++;
        p += n;
        left -= (size_t)n;
    }
    return H3_OK;
}

/* Some looks at once, then the processor goes to whoever computes. */
static void rest(int turn)
{
    const struct timespec t = {0, turn < 400 ? 20000 : 200000};

    if (turn > 200) nanosleep(&t, NULL);
}

static h3_status wait_all(h3_comm *c, const requests *q)
{
    for (int turn = 0;; turn++) {
        int is_done = 0;
        MPI_TRY(MPI_Testall(q->n, q->at, &is_done, MPI_STATUSES_IGNORE));
        if (is_done) return H3_OK;
        if (turn % 16 == 15) H3_TRY(h3_comm_heard(c));
        rest(turn);
    }
}

/* Receives are cancelled, so that nothing is written behind our back; a matched one ends by itself,
 * since its sender is there. Sends nobody takes are left to the runtime. */
static void abandon(const requests *q)
{
    for (int i = 0; i < q->n; i++) {
        if (q->at[i] == MPI_REQUEST_NULL) continue;
        if (i < q->n_recv) {
            MPI_Cancel(&q->at[i]);
            MPI_Wait(&q->at[i], MPI_STATUS_IGNORE);
        } else {
            MPI_Request_free(&q->at[i]);
        }
    }
}

static h3_status post_all(const mpi_link *l, requests *q, const h3_message *send, int n_send,
                          const h3_message *recv, int n_recv)
{
    for (int i = 0; i < n_recv; i++)
        H3_TRY(post(l, q, &recv[i], false));
    q->n_recv = q->n;
    for (int i = 0; i < n_send; i++)
        H3_TRY(post(l, q, &send[i], true));
    return H3_OK;
}

/* Posts all messages; q->at is the caller's to free. */
static h3_status depart(h3_comm *c, requests *q, const h3_message *send, int n_send,
                        const h3_message *recv, int n_recv)
{
    const int n = pieces(send, n_send) + pieces(recv, n_recv);
    h3_status st;

    *q = (requests){.at = malloc((size_t)(n + 1) * sizeof *q->at)};
    if (!q->at) return h3_fail(H3_E_NOMEM, "no memory for %d messages between ranks", n);
    st = post_all(c->state, q, send, n_send, recv, n_recv);
    if (st != H3_OK) abandon(q);
    return st;
}

static h3_status arrive(h3_comm *c, requests *q)
{
    const h3_status st = wait_all(c, q);

    if (st != H3_OK) abandon(q);
    free(q->at);
    q->at = NULL;
    return st;
}

static h3_status exchange(h3_comm *c, const h3_message *send, int n_send, const h3_message *recv,
                          int n_recv)
{
    requests q;
    const h3_status st = depart(c, &q, send, n_send, recv, n_recv);

    if (st == H3_OK) return arrive(c, &q);
    free(q.at);
    return st;
}

/* In halves. The runtime moves most bytes of large messages within its calls, so on one host little
 * is won; a network that works by itself carries them meanwhile. */
static h3_status begin(h3_comm *c, const h3_message *send, int n_send, const h3_message *recv,
                       int n_recv, h3_travel *t)
{
    mpi_link *l = c->state;

    for (int i = 0; i < H3_COMM_TRAVELS; i++) {
        requests *q = &l->travel[i];
        if (q->at) continue;
        const h3_status st = depart(c, q, send, n_send, recv, n_recv);
        if (st == H3_OK) {
            t->slot = i + 1;
            return H3_OK;
        }
        free(q->at);
        q->at = NULL;
        return st;
    }
    return exchange(c, send, n_send, recv, n_recv);
}

static h3_status finish(h3_comm *c, h3_travel *t)
{
    mpi_link *l = c->state;
    requests *q = &l->travel[t->slot - 1];

    t->slot = 0;
    return q->at ? arrive(c, q) : H3_OK;
}

/* What all ranks began goes on to its end; after a failure it is cut off. */
static void abandon_all(h3_comm *c)
{
    mpi_link *l = c->state;

    for (int i = 0; i < H3_COMM_TRAVELS; i++) {
        requests *q = &l->travel[i];
        if (!q->at) continue;
        if (c->is_broken || c->is_over) {
            abandon(q);
            free(q->at);
            q->at = NULL;
        } else if (arrive(c, q) != H3_OK) {
            c->is_broken = true;
        }
    }
}

/* --------------------------------------------------------------------------------------- notes */

static void say(h3_comm *c, int peer, const h3_comm_note *note)
{
    mpi_link *l = c->state;

    MPI_Wait(&l->told[peer], MPI_STATUS_IGNORE); // of an earlier stretch: long taken
    l->outgoing[peer] = *note;
    MPI_Isend(&l->outgoing[peer], (int)sizeof *note, MPI_BYTE, peer, TAG, l->notes, &l->told[peer]);
}

static int hear(h3_comm *c, int peer, h3_comm_note *note)
{
    mpi_link *l = c->state;
    int is_there = 0;

    if (MPI_Iprobe(peer, TAG, l->notes, &is_there, MPI_STATUS_IGNORE) != MPI_SUCCESS) return -1;
    if (!is_there) return 0;
    return MPI_Recv(note, (int)sizeof *note, MPI_BYTE, peer, TAG, l->notes, MPI_STATUS_IGNORE) ==
                   MPI_SUCCESS
               ? 1
               : -1;
}

static void nap(h3_comm *c, int ms)
{
    const struct timespec t = {0, (ms > 0 ? ms : 1) * 100000L};

    (void)c;
    nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------------------------- opening */

static void close_link(h3_comm *c)
{
    mpi_link *l = c->state;

    if (l) abandon_all(c);
    for (int r = 0; l && l->told && r < c->size; r++)
        MPI_Wait(&l->told[r], MPI_STATUS_IGNORE);
    if (l) {
        free(l->told);
        free(l->outgoing);
        free(l);
    }
    c->state = NULL;
    MPI_Finalize();
}

static h3_status connect_all(h3_comm *c, mpi_link *l)
{
    MPI_Comm host;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;

    MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &l->data));
    MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &l->notes));
    MPI_TRY(MPI_Comm_set_errhandler(l->data, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_set_errhandler(l->notes, MPI_ERRORS_RETURN));
    MPI_TRY(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &host));
    MPI_TRY(MPI_Comm_rank(host, &c->local_rank));
    MPI_TRY(MPI_Comm_size(host, &c->n_local));
    MPI_TRY(MPI_Comm_free(&host));
    MPI_TRY(MPI_Get_library_version(version, &n));
    version[strcspn(version, ",\n")] = '\0'; // "Open MPI v4.1.4"
    snprintf(c->detail, sizeof c->detail, "%.90s", version);
    return H3_OK;
}

h3_status h3_mpi_join(h3_comm **out, int rank, int size)
{
    int is_up = 0, got = 0, provided = 0;
    mpi_link *l = NULL;
    h3_status st;

    *out = NULL;
    MPI_Finalized(&is_up);
    if (is_up) return h3_fail(H3_E_ARG, "the MPI runtime has ended already in this process");
    MPI_Initialized(&is_up);
    /* A runtime that cannot start prints its own words and ends the process. */
    if (!is_up) MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided));
    MPI_Comm_size(MPI_COMM_WORLD, &got);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    st = got == size ? h3_comm_create(out, rank, size)
                     : h3_fail(H3_E_UNSUPPORTED,
                               "the launcher says %d ranks, MPI says %d: this build's MPI is not "
                               "the launcher's",
                               size, got);
    if (st == H3_OK && !(l = calloc(1, sizeof *l))) st = h3_fail(H3_E_NOMEM, "no memory for MPI");
    if (st == H3_OK) {
        (*out)->state = l;
        l->told = malloc((size_t)size * sizeof *l->told);
        l->outgoing = calloc((size_t)size, sizeof *l->outgoing);
        if (!l->told || !l->outgoing) st = h3_fail(H3_E_NOMEM, "no memory for MPI");
        for (int r = 0; l->told && r < size; r++)
            l->told[r] = MPI_REQUEST_NULL;
    }
    if (st == H3_OK) st = connect_all(*out, l);
    if (st != H3_OK) {
        if (*out) (*out)->link.close = close_link;
        if (*out)
            h3_comm_close(out);
        else
            MPI_Finalize();
        return st;
    }
    (*out)->link = (h3_comm_link){.exchange = exchange,
                                  .begin = begin,
                                  .finish = finish,
                                  .abandon = abandon_all,
                                  .say = say,
                                  .hear = hear,
                                  .nap = nap,
                                  .close = close_link};
    snprintf((*out)->name, sizeof(*out)->name, "mpi");
    return H3_OK;
}
