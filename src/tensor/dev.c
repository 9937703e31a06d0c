/**
 * Devices by name, their memory, taps and counters. The only file that knows which backends exist;
 * H3_HAVE_CPU and H3_HAVE_CUDA are set by the build for those that were compiled in.
 */
#include "dev.h"

#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "counted.h"
#include "size.h"

const h3_weight h3_reader_attention = {.name = "attention"};

/* A backend starts from the reference table; entries it left alone are remembered as such. */
static void note_reference_entries(h3_dev *d)
{
    h3_ops ref;

    if (d->is_plan || strcmp(d->name, "ref") == 0) return; // there it is the right table

    h3_ops_ref_init(&ref);
#define X(name) d->is_ref[H3_OP_##name] = d->impl.name == ref.name;
    H3_OPS(X)
#undef X
}

static h3_status open_backend(h3_dev *d, const char *name, const h3_dev_opts *opts)
{
    (void)opts; // no backend may have been compiled in
    if (strcmp(name, "ref") == 0) {
        h3_ops_ref_init(&d->impl);
        snprintf(d->detail, sizeof d->detail, "plain C, one thread");
        return H3_OK;
    }
    if (strcmp(name, "plan") == 0) {
        h3_ops_plan_init(&d->impl);
        d->is_plan = true;
        h3_arena_init_virtual(&d->scratch);
        snprintf(d->detail, sizeof d->detail, "counts, computes nothing");
        return H3_OK;
    }
#ifdef H3_HAVE_CPU
    if (strcmp(name, "cpu") == 0) {
        return h3_cpu_open(d, opts);
    }
#endif
    if (strcmp(name, "cuda") == 0 || strncmp(name, "cuda:", 5) == 0) {
#ifdef H3_HAVE_CUDA
        char *end = NULL;
        const long index = name[4] ? strtol(name + 5, &end, 10) : 0;
        if (name[4] && (!isdigit((unsigned char)name[5]) || *end || index > 1023))
            return h3_fail(H3_E_ARG, "device %s: expected cuda or cuda:N", name);
        return h3_cuda_open(d, opts, (int)index);
#else
        return h3_fail(
            H3_E_UNSUPPORTED,
            "device %s: this build has no CUDA backend; rebuild where nvcc is installed, "
            "or use --device cpu",
            name);
#endif
    }
    return h3_fail(H3_E_ARG, "device %s is not known; expected cpu, cuda or cuda:N", name);
}

h3_status h3_dev_open(h3_dev **out, const char *name, const h3_dev_opts *opts)
{
    static const h3_dev_opts none;
    h3_dev *d = calloc(1, sizeof *d);
    h3_status st;

    *out = NULL;
    if (!d) return h3_fail(H3_E_NOMEM, "no memory for a device");
    if (!opts) opts = &none;
    d->mem = H3_HOST;
    d->n_threads = opts->n_threads > 0 ? opts->n_threads : 1;
    d->cancel = opts->cancel;
    d->ops = &h3_ops_counted;
    snprintf(d->name, sizeof d->name, "%s", name);
    st = open_backend(d, name, opts);
    if (st == H3_OK) note_reference_entries(d);
    if (st != H3_OK) {
        h3_dev_close(&d);
        return st;
    }
    *out = d;
    return H3_OK;
}

/* The scratch memory of a real device: owned here, freed here. */
static void drop_scratch(h3_dev *d)
{
    if (d->is_plan) return;
    if (d->mem == H3_DEVICE && d->scratch.base) d->dealloc(d, d->scratch.base);
    h3_arena_free(&d->scratch);
}

void h3_dev_close(h3_dev **dp)
{
    h3_dev *d = dp ? *dp : NULL;

    if (!d) return;
    drop_scratch(d);
    if (d->close) d->close(d);
    free(d);
    *dp = NULL;
}

h3_status h3_dev_scratch(h3_dev *d, size_t bytes)
{
    if (d->is_plan || bytes <= d->scratch.size) {
        d->scratch.failed = false;
        return H3_OK;
    }
    assert(d->scratch.used == 0);
    drop_scratch(d);
    if (d->mem == H3_HOST) return h3_arena_init(&d->scratch, bytes);
    void *p = NULL;
    H3_TRY(d->alloc(d, &p, bytes));
    h3_arena_init_on(&d->scratch, p, bytes);
    return H3_OK;
}

void h3_dev_scratch_drop(h3_dev *d)
{
    assert(d->scratch.used == 0);
    drop_scratch(d);
}

h3_tensor h3_scratch(h3_dev *d, h3_dtype t, int rank, const int64_t *ne)
{
    size_t bytes = h3_dtype_bytes(t);
    bool fits = true;

    for (int i = 0; i < rank; i++)
        fits = fits && ne[i] >= 0 && h3_mul_size(bytes, (size_t)ne[i], &bytes);
    void *p = h3_arena_alloc(&d->scratch, fits ? bytes : SIZE_MAX);
    h3_tensor v = h3_host_tensor(p, t, rank, ne);
    v.mem = d->mem;
    return v;
}

h3_tensor h3_scratch_1d(h3_dev *d, h3_dtype t, int64_t n0)
{
    return h3_scratch(d, t, 1, &n0);
}

h3_tensor h3_scratch_2d(h3_dev *d, h3_dtype t, int64_t n0, int64_t n1)
{
    return h3_scratch(d, t, 2, (const int64_t[]){n0, n1});
}

h3_tensor h3_scratch_3d(h3_dev *d, h3_dtype t, int64_t n0, int64_t n1, int64_t n2)
{
    return h3_scratch(d, t, 3, (const int64_t[]){n0, n1, n2});
}

h3_tensor h3_scratch_4d(h3_dev *d, h3_dtype t, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    return h3_scratch(d, t, 4, (const int64_t[]){n0, n1, n2, n3});
}

h3_status h3_scratch_check(h3_dev *d, const char *what)
{
    if (!h3_arena_failed(&d->scratch)) return H3_OK;
    d->scratch.failed = false;
    return h3_fail(H3_E_NOMEM, "%s: the scratch arena of %zu bytes on %s is too small", what,
                   d->scratch.size, d->name);
}

h3_status h3_dev_alloc(h3_dev *d, h3_tensor *out, h3_dtype t, int rank, const int64_t *ne)
{
    size_t bytes = h3_dtype_bytes(t);
    void *p = NULL;

    memset(out, 0, sizeof *out);
    for (int i = 0; i < rank; i++)
        if (ne[i] < 0 || !h3_mul_size(bytes, (size_t)ne[i], &bytes))
            return h3_fail(H3_E_NOMEM, "a tensor's extents overflow");
    if (d->alloc) {
        H3_TRY(d->alloc(d, &p, bytes));
    } else if (posix_memalign(&p, 64, bytes ? h3_align_up(bytes, 64) : 64) != 0) {
        return h3_fail(H3_E_NOMEM, "no memory for a tensor of %zu bytes", bytes);
    }
    *out = h3_host_tensor(p, t, rank, ne);
    out->mem = d->mem;
    return H3_OK;
}

void h3_dev_free(h3_dev *d, h3_tensor *t)
{
    if (!t->data) return;
    if (d->dealloc)
        d->dealloc(d, t->data);
    else
        free(t->data);
    memset(t, 0, sizeof *t);
}

static size_t dense_bytes(h3_tensor t)
{
    assert(h3_is_dense(t));
    return (size_t)h3_numel(t) * h3_dtype_bytes(t.dtype);
}

h3_status h3_dev_upload(h3_dev *d, h3_tensor dst, const void *src)
{
    const size_t n = dense_bytes(dst);

    if (d->is_plan || n == 0) return H3_OK;
    if (d->upload) return d->upload(d, dst.data, src, n);
    memcpy(dst.data, src, n);
    return H3_OK;
}

h3_status h3_dev_download(h3_dev *d, void *dst, h3_tensor src)
{
    const size_t n = dense_bytes(src);

    if (d->is_plan || n == 0) return H3_OK;
    if (d->download && src.mem == H3_DEVICE) return d->download(d, dst, src.data, n); // host: a tap
    memcpy(dst, src.data, n);
    return H3_OK;
}

h3_status h3_dev_sync(h3_dev *d)
{
    return d->sync ? d->sync(d) : H3_OK;
}

h3_status h3_dev_check(h3_dev *d)
{
    if (h3_is_cancelled(d->cancel)) return h3_fail(H3_E_CANCELLED, "stopped on request");
    return H3_OK;
}

void h3_dev_weight_free(h3_dev *d, h3_weight *w)
{
    if (w->packed && d->weight_free) d->weight_free(d, w);
    w->packed = NULL;
}

/* A strided device tensor is first made dense on the device, so that one plain download follows. */
static h3_status tap_host_copy(h3_dev *d, h3_tensor *host, h3_tensor t)
{
    h3_tensor dense = t, tmp = {0};
    h3_status st = H3_OK;
    void *p;

    if (!h3_is_dense(t)) {
        H3_TRY(h3_dev_alloc(d, &tmp, t.dtype, t.rank, t.ne));
        dense = tmp;
        st = d->impl.copy(d, dense, t);
    }
    p = malloc(dense_bytes(dense) + 1);
    if (st == H3_OK && !p) st = h3_fail(H3_E_NOMEM, "no memory for a tap");
    if (st == H3_OK) st = h3_dev_download(d, p, dense);
    h3_dev_free(d, &tmp);
    if (st != H3_OK) {
        free(p);
        return st;
    }
    *host = h3_host_tensor(p, t.dtype, t.rank, t.ne);
    return H3_OK;
}

void h3_tap(h3_dev *d, h3_tensor t, const char *fmt, ...)
{
    char name[192];
    h3_tensor host;
    va_list ap;
    size_t n;

    if (!d->tap || d->is_plan) return;
    n = (size_t)snprintf(name, sizeof name, "%s", d->tap_prefix);
    va_start(ap, fmt);
    vsnprintf(name + n, sizeof name - n, fmt, ap);
    va_end(ap);
    if (tap_host_copy(d, &host, t) != H3_OK) return; // a missing tap is the golden's failure
    d->tap(d->tap_user, name, host);
    free(host.data);
}

void h3_dev_counters_reset(h3_dev *d)
{
    memset(d->stat, 0, sizeof d->stat);
}

void h3_dev_counters_print(const h3_dev *d, FILE *to)
{
    fprintf(to, "%-18s %9s %9s %11s %11s %9s %10s\n", "operation", "calls", "fallback", "GFLOP",
            "GB", "seconds", "GFLOP/s");
    for (int i = 0; i < H3_OP_COUNT; i++) {
        const h3_op_stat *s = &d->stat[i];
        if (!s->calls) continue;
        fprintf(to, "%-18s %9llu %9llu %11.3f %11.4f %9.3f %10.1f\n", h3_op_name((h3_op_id)i),
                (unsigned long long)s->calls, (unsigned long long)s->ref_calls, s->flops * 1e-9,
                s->bytes * 1e-9, s->seconds, s->seconds > 0 ? s->flops * 1e-9 / s->seconds : 0.0);
    }
}
