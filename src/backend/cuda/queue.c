/**
 * The copy queue: a stream beside the one that computes, and events between the two; see dev.h and
 * the ring of the weight store, which is all that uses it.
 */
#include <stdlib.h>

#include "cuda.h"

struct h3_cuda_queues {
    cudaStream_t copy;
    cudaEvent_t mark[H3_DEV_MARKS]; ///< made when first set
};

/* The ring calls from a thread of its own, and the current device is a thread's. */
static h3_status enter(h3_dev *d)
{
    H3_CUDA_TRY(cudaSetDevice(d->backend->index));
    return H3_OK;
}

static h3_status cuda_pin(h3_dev *d, void **out, size_t bytes)
{
    H3_TRY(enter(d));
    H3_CUDA_TRY(cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault));
    return H3_OK;
}

static void cuda_unpin(h3_dev *d, void *p)
{
    if (p && enter(d) == H3_OK) cudaFreeHost(p);
}

static h3_status cuda_copy_in(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_TRY(enter(d));
    H3_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, d->backend->queues->copy));
    return H3_OK;
}

static h3_status cuda_copy_out(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    H3_TRY(enter(d));
    H3_CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->backend->stream));
    return H3_OK;
}

static cudaStream_t stream_of(const h3_dev *d, h3_queue q)
{
    return q == H3_QUEUE_COPY ? d->backend->queues->copy : d->backend->stream;
}

static h3_status cuda_mark(h3_dev *d, h3_queue q, int i)
{
    cudaEvent_t *e = &d->backend->queues->mark[i];

    H3_TRY(enter(d));
    if (!*e) H3_CUDA_TRY(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    H3_CUDA_TRY(cudaEventRecord(*e, stream_of(d, q)));
    return H3_OK;
}

static h3_status cuda_await(h3_dev *d, h3_queue q, int i)
{
    const cudaEvent_t e = d->backend->queues->mark[i];

    if (!e) return H3_OK; // never set
    H3_TRY(enter(d));
    if (q == H3_QUEUE_HOST)
        H3_CUDA_TRY(cudaEventSynchronize(e));
    else
        H3_CUDA_TRY(cudaStreamWaitEvent(stream_of(d, q), e, 0));
    return H3_OK;
}

h3_status h3_cuda_queues_open(h3_dev *d)
{
    struct h3_cuda_queues *k = calloc(1, sizeof *k);

    if (!k) return h3_fail(H3_E_NOMEM, "no memory for the CUDA backend");
    d->backend->queues = k;
    H3_CUDA_TRY(cudaStreamCreateWithFlags(&k->copy, cudaStreamNonBlocking));
    d->pin = cuda_pin;
    d->unpin = cuda_unpin;
    d->copy_in = cuda_copy_in;
    d->copy_out = cuda_copy_out;
    d->mark = cuda_mark;
    d->await = cuda_await;
    return H3_OK;
}

void h3_cuda_queues_close(h3_dev *d)
{
    struct h3_cuda_queues *k = d->backend->queues;

    if (!k) return;
    if (k->copy) {
        cudaStreamSynchronize(k->copy);
        cudaStreamDestroy(k->copy);
    }
    for (int i = 0; i < H3_DEV_MARKS; i++)
        if (k->mark[i]) cudaEventDestroy(k->mark[i]);
    free(k);
    d->backend->queues = NULL;
}
