/** See streams.h. What of the CUDA runtime has to do with streams, events, copies and other processes' memory. */
#include "streams.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace emu
{
enum { LAUNCHES = 1024, PRIORITIES = 6 };

bool is_async()
{
    static const bool is = std::getenv("H3_EMU_GPUS") != nullptr;
    return is;
}

struct stream {
    struct channel *on;
    std::atomic<uint64_t> given{0}, done{0};
};

struct channel {
    std::mutex lock;
    std::condition_variable wake, room;
    std::deque<std::pair<stream *, std::function<bool()>>> queue;
};

struct event {
    std::atomic<uint64_t> given{0}, done{0};
};

static std::mutex list_lock;
/* To the very end of the process, where threads of theirs may still run. */
static std::vector<stream *> &streams = *new std::vector<stream *>;
static std::vector<channel *> &channels = *new std::vector<channel *>;
static int n_made[PRIORITIES];

static void work(channel *c)
{
    for (;;) {
        std::unique_lock<std::mutex> hold(c->lock);
        c->wake.wait(hold, [c] { return !c->queue.empty(); });
        auto &front = c->queue.front(); // stays where it is: a deque, and only this thread pops
        hold.unlock();
        while (!front.second())
            usleep(100);
        stream *s = front.first;
        hold.lock();
        c->queue.pop_front();
        s->done++;
        c->room.notify_all();
    }
}

static int n_channels()
{
    const char *wish = std::getenv("H3_EMU_CHANNELS");
    const int n = wish ? std::atoi(wish) : 8;
    return n > 0 && n <= 32 ? n : 8;
}

static stream *make(int priority)
{
    const std::lock_guard<std::mutex> hold(list_lock);
    const int level = -priority < PRIORITIES ? -priority : PRIORITIES - 1, n = n_channels();
    if (channels.empty())
        for (int i = 0; i < n * PRIORITIES; i++) {
            channels.push_back(new channel);
            std::thread(work, channels.back()).detach();
        }
    stream *s = new stream;
    s->on = channels[(size_t)(level * n + n_made[level]++ % n)];
    streams.push_back(s);
    return s;
}

void enqueue(cudaStream_t handle, std::function<bool()> step)
{
    stream *s = (stream *)handle;
    if (!s) {
        while (!step())
            usleep(100);
        return;
    }
    channel *c = s->on;
    std::unique_lock<std::mutex> hold(c->lock);
    c->room.wait(hold, [c] { return c->queue.size() < LAUNCHES; });
    s->given++;
    c->queue.emplace_back(s, std::move(step));
    c->wake.notify_one();
}

cudaError_t wait(cudaStream_t handle)
{
    stream *s = (stream *)handle;
    const uint64_t n = s ? s->given.load() : 0;
    while (s && s->done < n)
        usleep(50);
    return cudaSuccess;
}

void drain()
{
    std::vector<stream *> all;
    {
        const std::lock_guard<std::mutex> hold(list_lock);
        all = streams;
    }
    for (stream *s : all)
        wait((cudaStream_t)s);
}

static void once(cudaStream_t s, std::function<void()> what)
{
    enqueue(s, [what] {
        memory_access open;
        what();
        return true;
    });
}

/* ---- pinned memory ---- */

static std::mutex pinned_lock;
static std::map<const char *, size_t> pinned;

bool is_pinned(const void *p)
{
    const std::lock_guard<std::mutex> hold(pinned_lock);
    auto it = pinned.upper_bound((const char *)p);
    return it != pinned.begin() && (const char *)p < (--it)->first + it->second;
}
} // namespace emu

using namespace emu;

extern "C" {
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int priority)
{
    *s = is_async() ? (cudaStream_t)make(priority) : nullptr;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    return cudaStreamCreateWithPriority(s, 0, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
    *least = 0;
    *most = 1 - PRIORITIES;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return wait(s); }
cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    const stream *s = (const stream *)handle;
    return s && s->done < s->given ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    drain();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = (cudaEvent_t) new std::shared_ptr<event>(new event);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete (std::shared_ptr<event> *)e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t s)
{
    const std::shared_ptr<event> e = *(std::shared_ptr<event> *)handle;
    const uint64_t n = ++e->given;
    enqueue(s, [e, n] {
        if (e->done < n) e->done = n;
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t handle, unsigned)
{
    const std::shared_ptr<event> e = *(std::shared_ptr<event> *)handle;
    const uint64_t n = e->given;
    enqueue(s, [e, n] { return e->done >= n; });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    const event *e = ((std::shared_ptr<event> *)handle)->get();
    return e->done < e->given ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    const event *e = ((std::shared_ptr<event> *)handle)->get();
    for (const uint64_t n = e->given; e->done < n;)
        usleep(50);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    *ms = 1.0f;
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
    *p = std::malloc(n);
    if (!*p) return cudaErrorMemoryAllocation;
    const std::lock_guard<std::mutex> hold(pinned_lock);
    pinned[(const char *)*p] = n;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    if (is_async()) drain();
    {
        const std::lock_guard<std::mutex> hold(pinned_lock);
        pinned.erase((const char *)p);
    }
    std::free(p);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *at, const void *p)
{
    std::memset(at, 0, sizeof *at); // kernels here reach all of it, unless it is to be as there
    at->type = !is_async() || is_pinned(p) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    at->devicePointer = const_cast<void *>(p);
    return cudaSuccess;
}

/* From pageable memory a copy is taken at once, and to it the host waits. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t s)
{
    std::shared_ptr<std::string> kept;
    if (s && kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
        kept = std::make_shared<std::string>((const char *)from, rows ? (rows - 1) * from_pitch + width : 0);
        from = kept->data();
    }
    once(s, [=] {
        (void)kept;
        for (size_t i = 0; i < rows; i++)
            std::memcpy((char *)to + i * pitch, (const char *)from + i * from_pitch, width);
    });
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to)) return wait(s);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    return cudaMemcpy2DAsync(to, n, from, n, n, 1, kind, s);
}
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s)
{
    once(s, [=] { std::memset(p, v, n); });
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int v, size_t n) { return cudaMemsetAsync(p, v, n, nullptr); }

/* ---- other processes ---- */

struct ipc {
    int pid, fd;
    size_t at, bytes;
};
static std::map<void *, size_t> mapped;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
    ipc x = {(int)getpid(), -1, 0, 0};
    if (!find_block(p, &x.fd, &x.at, &x.bytes)) return cudaErrorInvalidValue;
    std::memset(h, 0, sizeof *h);
    std::memcpy(h, &x, sizeof x);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned)
{
    ipc x;
    std::memcpy(&x, &h, sizeof x);
    const std::string path = "/proc/" + std::to_string(x.pid) + "/fd/" + std::to_string(x.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return cudaErrorInvalidValue;
    *p = mmap(nullptr, x.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)x.at);
    close(fd);
    if (*p == MAP_FAILED) return cudaErrorInvalidValue;
    mapped[*p] = x.bytes;
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *p)
{
    drain();
    munmap(p, mapped[p]);
    mapped.erase(p);
    return cudaSuccess;
}

/* cuStreamWriteValue32 and cuStreamWaitValue32, without cuda.h: the backend has a header of that name. */
static int write_value(cudaStream_t s, unsigned long long at, uint32_t value, unsigned)
{
    once(s, [=] { __atomic_store_n((uint32_t *)at, value, __ATOMIC_SEQ_CST); });
    return 0;
}
static int wait_value(cudaStream_t s, unsigned long long at, uint32_t value, unsigned)
{
    enqueue(s, [=] {
        memory_access open;
        return (int32_t)(__atomic_load_n((uint32_t *)at, __ATOMIC_SEQ_CST) - value) >= 0;
    });
    return 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    *f = !is_async()                                    ? nullptr
         : std::strcmp(name, "cuStreamWriteValue32") == 0 ? (void *)write_value
         : std::strcmp(name, "cuStreamWaitValue32") == 0  ? (void *)wait_value
                                                          : nullptr;
    *found = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *i)
{
    *i = 0;
    return cudaSuccess;
}
}
