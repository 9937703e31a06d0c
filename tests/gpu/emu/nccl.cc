/**
 * NCCL between processes of one host, for the emulator: what an exchange is on a stream, and how a communicator ends.
 * As in NCCL 2.28: an exchange whose peer is gone waits until it is aborted; ending a communicator waits for its
 * exchanges and then for all other ranks to end theirs, aborted or not.
 */
#include "streams.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <nccl.h>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

struct ncclComm {
    int rank, n, door;
    std::vector<int> data, service; // sockets to each rank
    std::atomic<int> state{ncclInProgress}, pending{0};
    std::atomic<bool> is_aborted{false};
    std::thread opener;
    sockaddr_un name(int r) const
    {
        sockaddr_un a = {};
        a.sun_family = AF_UNIX;
        std::snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "h3av-emu-%.40s-%d", id, r);
        return a;
    }
    char id[41];
};

struct hello {
    int rank, is_service;
};

static int call(ncclComm *c, int to, int is_service)
{
    const sockaddr_un a = c->name(to);
    const hello h = {c->rank, is_service};
    for (;;) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (const sockaddr *)&a, sizeof a) == 0 && write(fd, &h, sizeof h) == sizeof h) return fd;
        close(fd);
        if (c->is_aborted) return -1;
        usleep(1000);
    }
}

static void open_all(ncclComm *c)
{
    for (int r = 0; r < c->rank; r++) {
        c->data[(size_t)r] = call(c, r, 0);
        c->service[(size_t)r] = call(c, r, 1);
    }
    for (int left = 2 * (c->n - 1 - c->rank); left > 0 && !c->is_aborted;) {
        pollfd p = {c->door, POLLIN, 0};
        hello h;
        if (poll(&p, 1, 10) <= 0) continue;
        const int fd = accept4(c->door, nullptr, nullptr, SOCK_CLOEXEC);
        if (read(fd, &h, sizeof h) != sizeof h) continue;
        (h.is_service ? c->service : c->data)[(size_t)h.rank] = fd;
        left--;
    }
    c->state = c->is_aborted ? ncclInternalError : ncclSuccess;
}

/* ---- exchanges ---- */

struct transfer {
    ncclComm *c;
    int peer;
    bool is_send;
    char *at;
    size_t left;
};
static thread_local std::vector<transfer> group;
static thread_local cudaStream_t group_stream;

/* Moves what goes now; true when nothing is left. One socket carries its messages in order. */
static bool advance(std::vector<transfer> &list)
{
    bool is_through = true;
    std::vector<std::pair<int, bool>> busy;
    for (transfer &t : list) {
        bool is_next = t.left > 0;
        for (const auto &b : busy)
            is_next = is_next && !(b.first == t.peer && b.second == t.is_send);
        if (is_next) {
            const int fd = t.c->data[(size_t)t.peer];
            emu::memory_access open;
            const ssize_t n = t.is_send ? send(fd, t.at, t.left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                        : recv(fd, t.at, t.left, MSG_DONTWAIT);
            if (n > 0) t.at += n, t.left -= (size_t)n;
        }
        if (t.left > 0) busy.push_back({t.peer, t.is_send});
        is_through = is_through && t.left == 0;
    }
    return is_through;
}

extern "C" {
ncclResult_t ncclGetVersion(int *v)
{
    *v = 22809;
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t) { return "emulated error"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    std::random_device r;
    std::memset(id, 0, sizeof *id);
    std::snprintf(id->internal, 41, "%d-%08x%08x", (int)getpid(), (unsigned)r(), (unsigned)r());
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *)
{
    ncclComm *c = new ncclComm;
    c->rank = rank;
    c->n = n;
    c->data.assign((size_t)n, -1);
    c->service.assign((size_t)n, -1);
    std::memcpy(c->id, id.internal, sizeof c->id);
    c->door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un a = c->name(rank);
    if (bind(c->door, (const sockaddr *)&a, sizeof a) != 0 || listen(c->door, 64) != 0) return ncclSystemError;
    c->opener = std::thread(open_all, c);
    *out = c;
    return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e)
{
    *e = (ncclResult_t)c->state.load();
    return ncclSuccess;
}
ncclResult_t ncclGroupStart(void) { return ncclSuccess; }
ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t, int peer, ncclComm_t c, cudaStream_t s)
{
    group.push_back({c, peer, true, (char *)const_cast<void *>(p), n});
    group_stream = s;
    return ncclSuccess;
}
ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t, int peer, ncclComm_t c, cudaStream_t s)
{
    group.push_back({c, peer, false, (char *)p, n});
    group_stream = s;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void)
{
    std::vector<transfer> list;
    list.swap(group);
    if (list.empty()) return ncclSuccess;
    ncclComm *c = list[0].c;
    c->pending++;
    emu::enqueue(group_stream, [c, list]() mutable {
        if (!c->is_aborted && !advance(list)) return false;
        c->pending--;
        return true;
    });
    return ncclSuccess;
}

static ncclResult_t end(ncclComm *c)
{
    c->opener.join();
    while (c->pending > 0)
        usleep(100);
    for (int fd : c->service)
        if (fd >= 0) shutdown(fd, SHUT_WR);
    for (int fd : c->service) { // the service thread lives until its last peer is gone
        char byte;
        while (fd >= 0 && recv(fd, &byte, 1, 0) > 0)
            continue;
        if (fd >= 0) close(fd);
    }
    for (int fd : c->data)
        if (fd >= 0) close(fd);
    close(c->door);
    delete c;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    c->is_aborted = true;
    return end(c);
}
ncclResult_t ncclCommDestroy(ncclComm_t c) { return end(c); }
}
