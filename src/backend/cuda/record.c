/**
 * A whole step as one call: what is enqueued between record and recorded becomes a CUDA graph.
 *
 * The graph holds the addresses of every buffer it saw, so it is worth something only while all of
 * them stay: memory that is given back makes a new generation, and recordings of an older one are
 * refused. What a graph would not do again (uploads from the host's memory, choices by measurement,
 * buffers that grow) fails while it is recorded; the caller then runs the step call by call.
 *
 * The counters of the recorded operations are kept and added at every replay, so that a step counts
 * the same either way.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct h3_recording {
    cudaGraphExec_t exec;
    uint64_t generation;
    h3_op_stat stat[H3_OP_COUNT];      ///< before it, then what it adds
    uint64_t counts[H3_CUDA_N_COUNTS]; ///< the same
    uint64_t nodes;
};

h3_status h3_cuda_not_recording(const h3_dev *d, const char *what)
{
    if (!d->backend->record) return H3_OK;
    return h3_fail(H3_E_UNSUPPORTED, "%s: %s cannot be part of a recording", d->name, what);
}

/* What ran since `stat` and `counts` were taken is taken back, and kept there. */
static void keep_difference(h3_dev *d, h3_recording *r)
{
    h3_backend *b = d->backend;

    for (int i = 0; i < H3_OP_COUNT; i++) {
        const h3_op_stat now = d->stat[i], then = r->stat[i];
        d->stat[i] = then;
        r->stat[i] = (h3_op_stat){.calls = now.calls - then.calls,
                                  .flops = now.flops - then.flops,
                                  .bytes = now.bytes - then.bytes,
                                  .ref_calls = now.ref_calls - then.ref_calls};
    }
    for (int i = 0; i < H3_CUDA_N_COUNTS; i++) {
        const uint64_t now = b->counts[i];
        b->counts[i] = r->counts[i];
        r->counts[i] = now - r->counts[i];
    }
}

static void add_difference(h3_dev *d, const h3_recording *r)
{
    for (int i = 0; i < H3_OP_COUNT; i++) {
        d->stat[i].calls += r->stat[i].calls;
        d->stat[i].flops += r->stat[i].flops;
        d->stat[i].bytes += r->stat[i].bytes;
        d->stat[i].ref_calls += r->stat[i].ref_calls;
    }
    for (int i = 0; i < H3_CUDA_N_COUNTS; i++)
        d->backend->counts[i] += r->counts[i];
    d->backend->counts[H3_CUDA_N_REPLAYS]++;
    d->backend->counts[H3_CUDA_N_NODES] = r->nodes;
}

static void cuda_forget(h3_dev *d, h3_recording *r)
{
    (void)d;
    if (!r) return;
    if (r->exec) cudaGraphExecDestroy(r->exec);
    free(r);
}

static h3_status cuda_record(h3_dev *d)
{
    h3_backend *b = d->backend;
    h3_recording *r = calloc(1, sizeof *r);

    if (!r) return h3_fail(H3_E_NOMEM, "no memory for a recording");
    memcpy(r->stat, d->stat, sizeof r->stat);
    memcpy(r->counts, b->counts, sizeof r->counts);
    r->generation = b->generation;
    /* Other threads (the ring of streamed weights, another device) may allocate meanwhile. */
    const cudaError_t e = cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) {
        free(r);
        return h3_cuda_failed(e, "recording a step");
    }
    b->record = r;
    return H3_OK;
}

/* A copy from the host's memory would read at every replay what lies there then. */
static bool keeps_to_device(cudaGraph_t graph, size_t n)
{
    cudaGraphNode_t *node = malloc((n ? n : 1) * sizeof *node);
    bool does = node && cudaGraphGetNodes(graph, node, &n) == cudaSuccess;

    for (size_t i = 0; does && i < n; i++) {
        enum cudaGraphNodeType type;
        struct cudaMemcpy3DParms copy;
        does = cudaGraphNodeGetType(node[i], &type) == cudaSuccess;
        if (!does || type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset ||
            type == cudaGraphNodeTypeEmpty)
            continue;
        does = type == cudaGraphNodeTypeMemcpy &&
               cudaGraphMemcpyNodeGetParams(node[i], &copy) == cudaSuccess &&
               copy.kind == cudaMemcpyDeviceToDevice;
    }
    free(node);
    return does;
}

static void cuda_recorded(h3_dev *d, h3_recording **out)
{
    h3_backend *b = d->backend;
    h3_recording *r = b->record;
    cudaGraph_t graph = NULL;
    size_t nodes = 0;

    *out = NULL;
    b->record = NULL;
    keep_difference(d, r);
    const bool is_good = cudaStreamEndCapture(b->stream, &graph) == cudaSuccess && graph &&
                         cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes > 0 &&
                         r->generation == b->generation && keeps_to_device(graph, nodes) &&
                         cudaGraphInstantiate(&r->exec, graph, 0) == cudaSuccess;
    if (graph) cudaGraphDestroy(graph);
    r->nodes = nodes;
    if (is_good) {
        *out = r;
        return;
    }
    (void)cudaGetLastError(); // not to be found by the next call
    r->exec = NULL;
    cuda_forget(d, r);
}

static h3_status cuda_replay(h3_dev *d, h3_recording *r, bool *done)
{
    h3_backend *b = d->backend;

    *done = false;
    if (r->generation != b->generation) return H3_OK;
    H3_CUDA_TRY(cudaGraphLaunch(r->exec, b->stream));
    add_difference(d, r);
    *done = true;
    return H3_OK;
}

void h3_cuda_fill_recording(h3_dev *d)
{
    const char *wish = getenv("H3_CUDA_GRAPH");

    if (wish && strcmp(wish, "off") == 0) return;
    d->record = cuda_record;
    d->recorded = cuda_recorded;
    d->replay = cuda_replay;
    d->forget = cuda_forget;
}
