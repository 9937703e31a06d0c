/**
 * One matrix product through cuBLASLt, with the algorithm chosen by measurement.
 *
 * cuBLASLt's heuristic answers in order of its own estimate, which at the released shapes is up to
 * a tenth off the best. So the first time a large product of some shape is asked for, its
 * candidates are run on the operands at hand and the fastest is remembered; small products take the
 * first answer. Choices are kept in a file beside the user's other caches, per GPU and library
 * version, and checked again by the library before they are used. On an H200 neighbours of these
 * candidates (order and grouping of tiles), and choices made under load or in turns, were tried: a
 * single product gained up to 4 %, whole steps lost 0.5 to 2 %.
 *
 * cuBLASLt is column-major: it computes y^T = w x^T, where our rows are its columns. Reductions
 * across blocks are restricted to those that add in f32, so that every algorithm keeps ops.h's one
 * rounding.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "file.h"

enum {
    CANDIDATES = 24,
    WORKSPACE = 64 << 20,
    N_BUCKETS = 256,
    FINALISTS = 4, // run again after the first round
};
/* Floating-point operations worth measuring: from some 10 microseconds on. Medium products gain
 * most: whether they are cut along k decides how much of the GPU they fill. */
static const double worth_measuring = 2e8;

/* What decides the algorithm. Written to the cache file as it is: no padding, no pointers. */
typedef struct key {
    int64_t m, n, k, ldx, ldw, ldy;
    uint8_t tx, tw, ty, flags, align_x, align_w, align_y, math;
} key;

typedef struct entry {
    struct entry *next;
    key at;
    cublasLtMatmulAlgo_t algo;
    uint64_t work;
    bool is_known; ///< false: cuBLASLt has nothing
    bool is_new;   ///< to be written to the file
} entry;

typedef struct record {
    key at;
    uint64_t work;
    cublasLtMatmulAlgo_t algo;
} record;

struct h3_lt_cache {
    entry *bucket[N_BUCKETS];
    char path[512]; ///< empty: no file
    cublasLtMatmulPreference_t pref;
    cudaEvent_t from, to;
};

static h3_status lt_failed(cublasStatus_t s, const char *what)
{
    return h3_fail(s == CUBLAS_STATUS_ALLOC_FAILED ? H3_E_NOMEM : H3_E_DEVICE, "cuBLASLt: %s: %s",
                   what, cublasLtGetStatusString(s));
}
#define LT_TRY(expr)                                                  \
    do {                                                              \
        const cublasStatus_t s_ = (expr);                             \
        if (s_ != CUBLAS_STATUS_SUCCESS) return lt_failed(s_, #expr); \
    } while (0)

/* ---------------------------------------------------------------- the file */

static void cache_path(h3_lt_cache *c, const h3_backend *b)
{
    char device[64], *path;

    snprintf(device, sizeof device, "%.60s", b->prop.name);
    for (char *p = device; *p; p++)
        if (*p == ' ' || *p == '/') *p = '-';
    char *name = h3_strdupf("cublaslt-%zu-%s-%d.bin", cublasLtGetVersion(), device,
                            b->prop.multiProcessorCount);
    path = h3_cache_path(name);
    if (path && strlen(path) < sizeof c->path) strcpy(c->path, path);
    free(name);
    free(path);
}

static uint32_t hash_of(const key *k)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ ((const unsigned char *)k)[i]) * 16777619u;
    return h % N_BUCKETS;
}

static entry *find(h3_lt_cache *c, const key *k)
{
    entry *e = c->bucket[hash_of(k)];
    while (e && memcmp(&e->at, k, sizeof *k) != 0)
        e = e->next;
    return e;
}

static entry *insert(h3_lt_cache *c, const key *k)
{
    entry *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->at = *k;
    e->next = c->bucket[hash_of(k)];
    c->bucket[hash_of(k)] = e;
    return e;
}

/* A damaged file costs a measurement: every algorithm is checked by the library before its use. */
static void read_file(h3_lt_cache *c)
{
    FILE *f = c->path[0] ? fopen(c->path, "rb") : NULL;
    record r;

    if (!f) return;
    while (fread(&r, sizeof r, 1, f) == 1) {
        entry *e = r.work <= WORKSPACE && !find(c, &r.at) ? insert(c, &r.at) : NULL;
        if (!e) continue;
        e->algo = r.algo;
        e->work = r.work;
        e->is_known = true;
    }
    fclose(f);
}

static void write_file(h3_lt_cache *c)
{
    FILE *f = NULL;

    if (!c->path[0]) return;
    for (int i = 0; i < N_BUCKETS; i++)
        for (const entry *e = c->bucket[i]; e; e = e->next) {
            if (!e->is_new) continue;
            if (!f) {
                h3_make_folders_above(c->path);
                f = fopen(c->path, "ab");
            }
            if (!f) return; // a cache that cannot be kept is no error
            record r;
            memset(&r, 0, sizeof r);
            r.at = e->at;
            r.work = e->work;
            r.algo = e->algo;
            fwrite(&r, sizeof r, 1, f);
        }
    if (f) fclose(f);
}

/* ---------------------------------------------------------------- opening */

h3_status h3_lt_open(h3_dev *d)
{
    h3_backend *b = d->backend;
    const uint64_t work = WORKSPACE;
    const uint32_t reduction =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    h3_lt_cache *c = calloc(1, sizeof *c);

    b->lt_cache = c;
    if (!c) return h3_fail(H3_E_NOMEM, "no memory for the CUDA backend");
    LT_TRY(cublasLtCreate(&b->lt));
    LT_TRY(cublasLtMatmulPreferenceCreate(&c->pref));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(c->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &work, sizeof work));
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(c->pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                &reduction, sizeof reduction));
    H3_CUDA_TRY(cudaEventCreate(&c->from));
    H3_CUDA_TRY(cudaEventCreate(&c->to));
    H3_TRY(h3_cuda_grow(d, &b->lt_work, WORKSPACE));
    cache_path(c, b);
    read_file(c);
    return H3_OK;
}

void h3_lt_close(h3_dev *d)
{
    h3_backend *b = d->backend;
    h3_lt_cache *c = b->lt_cache;

    if (c) {
        write_file(c);
        for (int i = 0; i < N_BUCKETS; i++)
            while (c->bucket[i]) {
                entry *next = c->bucket[i]->next;
                free(c->bucket[i]);
                c->bucket[i] = next;
            }
        if (c->pref) cublasLtMatmulPreferenceDestroy(c->pref);
        if (c->from) cudaEventDestroy(c->from);
        if (c->to) cudaEventDestroy(c->to);
        free(c);
    }
    if (b->lt) cublasLtDestroy(b->lt);
}

/* ---------------------------------------------------------------- one product */

/* Descriptors of one call; those that are NULL were not made. */
typedef struct call {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, x, y;
    float alpha, beta;
    double alpha64, beta64; ///< the same for f64, whose factors are f64 too
} call;

static cudaDataType_t type_of(uint8_t t)
{
    return t == H3_F32    ? CUDA_R_32F
           : t == H3_F64  ? CUDA_R_64F
           : t == H3_BF16 ? CUDA_R_16BF
           : t == H3_F16  ? CUDA_R_16F
                          : CUDA_R_8F_E4M3;
}

static void drop(call *c)
{
    if (c->op) cublasLtMatmulDescDestroy(c->op);
    if (c->w) cublasLtMatrixLayoutDestroy(c->w);
    if (c->x) cublasLtMatrixLayoutDestroy(c->x);
    if (c->y) cublasLtMatrixLayoutDestroy(c->y);
}

static cublasStatus_t set(call *c, cublasLtMatmulDescAttributes_t a, const void *v, size_t n)
{
    return cublasLtMatmulDescSetAttribute(c->op, a, v, n);
}

static h3_status set_scales(call *c, const h3_mm *mm)
{
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int8_t fast = 1;

    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode));
    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode));
    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &mm->sw, sizeof mm->sw));
    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &mm->sx, sizeof mm->sx));
    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    return H3_OK;
}

static h3_status describe(call *c, const h3_mm *mm, h3_cuda_math math)
{
    const bool is_f32 = mm->tx == H3_F32;
    const bool is_f64 = mm->tx == H3_F64;
    const cublasComputeType_t compute = is_f64 ? CUBLAS_COMPUTE_64F
                                        : is_f32 && math == H3_CUDA_TF32
                                            ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    const cublasOperation_t tw = mm->w_is_t ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t tx = mm->x_is_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;

    c->alpha = 1.0f;
    c->beta = mm->adds ? 1.0f : 0.0f;
    c->alpha64 = 1.0;
    c->beta64 = mm->adds ? 1.0 : 0.0;
    LT_TRY(cublasLtMatmulDescCreate(&c->op, compute, is_f64 ? CUDA_R_64F : CUDA_R_32F));
    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_TRANSA, &tw, sizeof tw));
    LT_TRY(set(c, CUBLASLT_MATMUL_DESC_TRANSB, &tx, sizeof tx));
    if (mm->bias) {
        const cudaDataType_t t = type_of(mm->ty);
        LT_TRY(set(c, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias));
        LT_TRY(set(c, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &mm->bias, sizeof mm->bias));
        LT_TRY(set(c, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &t, sizeof t));
    }
    if (mm->sx) H3_TRY(set_scales(c, mm));
    LT_TRY(cublasLtMatrixLayoutCreate(&c->w, type_of(mm->tw),
                                      (uint64_t)(mm->w_is_t ? mm->n : mm->k),
                                      (uint64_t)(mm->w_is_t ? mm->k : mm->n), mm->ldw));
    LT_TRY(cublasLtMatrixLayoutCreate(&c->x, type_of(mm->tx),
                                      (uint64_t)(mm->x_is_t ? mm->m : mm->k),
                                      (uint64_t)(mm->x_is_t ? mm->k : mm->m), mm->ldx));
    LT_TRY(cublasLtMatrixLayoutCreate(&c->y, type_of(mm->ty), (uint64_t)mm->n, (uint64_t)mm->m,
                                      mm->ldy));
    return H3_OK;
}

static cublasStatus_t run(h3_dev *d, const call *c, const h3_mm *mm, const cublasLtMatmulAlgo_t *a,
                          size_t work)
{
    h3_backend *b = d->backend;
    const bool is_f64 = mm->tx == H3_F64;
    const void *alpha = is_f64 ? (const void *)&c->alpha64 : &c->alpha;
    const void *beta = is_f64 ? (const void *)&c->beta64 : &c->beta;

    return cublasLtMatmul(b->lt, c->op, alpha, mm->w, c->w, mm->x, c->x, beta, mm->y, c->y, mm->y,
                          c->y, a, work ? b->lt_work.p : NULL, work, b->stream);
}

/* Milliseconds of one run, the better of `times`; a failed run takes forever. */
static h3_status time_one(h3_dev *d, const call *c, const h3_mm *mm,
                          const cublasLtMatmulHeuristicResult_t *r, int times, float *best)
{
    h3_lt_cache *cache = d->backend->lt_cache;
    float ms;

    *best = 1e30f;
    for (int i = 0; i < times; i++) {
        H3_CUDA_TRY(cudaEventRecord(cache->from, d->backend->stream));
        if (run(d, c, mm, &r->algo, r->workspaceSize) != CUBLAS_STATUS_SUCCESS) return H3_OK;
        H3_CUDA_TRY(cudaEventRecord(cache->to, d->backend->stream));
        H3_CUDA_TRY(cudaEventSynchronize(cache->to));
        H3_CUDA_TRY(cudaEventElapsedTime(&ms, cache->from, cache->to));
        if (ms < *best) *best = ms;
    }
    return H3_OK;
}

/* Brings the fastest candidate to the front. Results go to y, which the caller's run overwrites. */
static h3_status measure(h3_dev *d, const call *c, const h3_mm *mm,
                         cublasLtMatmulHeuristicResult_t *r, int n)
{
    float ms[CANDIDATES];

    H3_TRY(h3_cuda_wait(d));
    H3_TRY(time_one(d, c, mm, &r[0], 2, &ms[0])); // the first launch loads code
    for (int i = 0; i < n; i++)
        H3_TRY(time_one(d, c, mm, &r[i], 2, &ms[i]));
    for (int i = 0; i < n; i++) // n is small: selection sort
        for (int j = i + 1; j < n; j++)
            if (ms[j] < ms[i]) {
                const float t = ms[i];
                const cublasLtMatmulHeuristicResult_t h = r[i];
                ms[i] = ms[j], r[i] = r[j];
                ms[j] = t, r[j] = h;
            }
    int best = 0;
    for (int i = 0; i < n && i < FINALISTS; i++) {
        H3_TRY(time_one(d, c, mm, &r[i], 4, &ms[i]));
        if (ms[i] < ms[best]) best = i;
    }
    r[0] = r[best];
    return H3_OK;
}

static uint8_t alignment(const void *p)
{
    const uintptr_t a = (uintptr_t)p;
    uint8_t n = 0;
    while (n < 4 && !(a >> n & 1)) // no kernel asks for more than 16 bytes
        n++;
    return n;
}

static key key_of(const h3_mm *mm, h3_cuda_math math)
{
    key k;

    memset(&k, 0, sizeof k);
    k.m = mm->m;
    k.n = mm->n_whole ? mm->n_whole : mm->n;
    k.k = mm->k;
    k.ldx = mm->ldx;
    k.ldw = mm->ldw;
    k.ldy = mm->ldy;
    k.tx = mm->tx;
    k.tw = mm->tw;
    k.ty = mm->ty;
    k.flags = (uint8_t)(mm->x_is_t | mm->w_is_t << 1 | (mm->bias != NULL) << 2);
    k.align_x = alignment(mm->x);
    k.align_w = alignment(mm->w);
    k.align_y = alignment(mm->y);
    k.math = math == H3_CUDA_TF32;
    return k;
}

/* Candidates for the product as a whole: a weight in several parts takes the algorithm that it
 * would take in one, so that its sums are the same. */
static h3_status ask(h3_dev *d, const call *c, const h3_mm *mm, cublasLtMatmulHeuristicResult_t *r,
                     int *n)
{
    h3_backend *b = d->backend;
    call other = {.op = NULL};
    h3_mm whole = *mm;
    h3_status st = H3_OK;

    *n = 0;
    if (mm->n_whole && mm->n_whole != mm->n) {
        whole.n = mm->n_whole;
        if (whole.ldy < whole.n) whole.ldy = whole.n;
        st = describe(&other, &whole, b->math);
        c = &other;
    }
    if (st == H3_OK) {
        const cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(
            b->lt, c->op, c->w, c->x, c->y, c->y, b->lt_cache->pref, CANDIDATES, r, n);
        if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
            *n = 0;
        else if (s != CUBLAS_STATUS_SUCCESS)
            st = lt_failed(s, "candidates of a product");
    }
    drop(&other);
    return st;
}

/* True when an algorithm goes with these very extents and the workspace there is. */
static bool is_usable(h3_dev *d, const call *c, cublasLtMatmulHeuristicResult_t *r)
{
    cublasLtMatmulHeuristicResult_t now;

    if (cublasLtMatmulAlgoCheck(d->backend->lt, c->op, c->w, c->x, c->y, c->y, &r->algo, &now) !=
            CUBLAS_STATUS_SUCCESS ||
        now.workspaceSize > WORKSPACE)
        return false;
    r->workspaceSize = now.workspaceSize;
    return true;
}

static h3_status choose(h3_dev *d, const call *c, const h3_mm *mm, entry *e)
{
    static const cublasLtMatmulPreferenceAttributes_t names[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes[] = {1u << e->at.align_w, 1u << e->at.align_x, 1u << e->at.align_y,
                              1u << e->at.align_y};
    h3_backend *b = d->backend;
    cublasLtMatmulHeuristicResult_t r[CANDIDATES];
    int n = 0, usable = 0;

    H3_TRY(h3_cuda_not_recording(d, "the choice of an algorithm"));
    for (int i = 0; i < 4; i++)
        LT_TRY(cublasLtMatmulPreferenceSetAttribute(b->lt_cache->pref, names[i], &bytes[i],
                                                    sizeof bytes[i]));
    H3_TRY(ask(d, c, mm, r, &n));
    for (int i = 0; i < n; i++)
        if (r[i].state == CUBLAS_STATUS_SUCCESS && is_usable(d, c, &r[i])) r[usable++] = r[i];
    if (usable == 0) return H3_OK;
    /* A sum cannot be repeated in place; its first piece, of the same shape, was measured. */
    if (!mm->adds && 2.0 * (double)mm->m * (double)mm->n * (double)mm->k > worth_measuring) {
        H3_TRY(measure(d, c, mm, r, usable));
        e->is_new = true;
    }
    e->algo = r[0].algo;
    e->work = r[0].workspaceSize;
    e->is_known = true;
    return H3_OK;
}

/* A choice read from the file is used only if the library still takes it. */
static void check(h3_dev *d, const call *c, entry *e)
{
    cublasLtMatmulHeuristicResult_t r;

    if (cublasLtMatmulAlgoCheck(d->backend->lt, c->op, c->w, c->x, c->y, c->y, &e->algo, &r) !=
            CUBLAS_STATUS_SUCCESS ||
        r.workspaceSize > WORKSPACE)
        e->is_known = e->is_new = false;
}

static h3_status multiply(h3_dev *d, const call *c, const h3_mm *mm, bool *done)
{
    h3_backend *b = d->backend;
    const key k = key_of(mm, b->math);
    entry *e = find(b->lt_cache, &k);

    if (e && e->is_known && (!e->is_new || k.n != mm->n)) check(d, c, e);
    if (!e || (!e->is_known && !e->is_new)) {
        if (!e) e = insert(b->lt_cache, &k);
        if (!e) return h3_fail(H3_E_NOMEM, "no memory for a list of algorithms");
        H3_TRY(choose(d, c, mm, e));
        if (!e->is_known) e->is_new = false;
    }
    *done = e->is_known;
    if (!e->is_known) return H3_OK;
    LT_TRY(run(d, c, mm, &e->algo, e->work));
    b->counts[H3_CUDA_N_LT]++;
    if (mm->sx) b->counts[H3_CUDA_N_LT_FP8]++;
    return H3_OK;
}

h3_status h3_cuda_lt(h3_dev *d, const h3_mm *mm, bool *done)
{
    call c = {.op = NULL};
    h3_status st = describe(&c, mm, d->backend->math);

    *done = false;
    if (st == H3_OK) st = multiply(d, &c, mm, done);
    drop(&c);
    return st;
}

h3_status h3_cuda_mm(h3_dev *d, const h3_mm *mm)
{
    bool done = false;

    if (mm->m == 0 || mm->n == 0) return H3_OK;
    H3_TRY(h3_cuda_lt(d, mm, &done));
    if (done) return H3_OK;
    const h3_plain_mm p = {.m = mm->m,
                           .n = mm->n,
                           .k = mm->k,
                           .x_r = mm->x_is_t ? 1 : mm->ldx,
                           .x_c = mm->x_is_t ? mm->ldx : 1,
                           .w_r = mm->w_is_t ? 1 : mm->ldw,
                           .w_c = mm->w_is_t ? mm->ldw : 1,
                           .y_r = mm->ldy,
                           .x = mm->x,
                           .w = mm->w,
                           .bias = mm->bias,
                           .y = mm->y,
                           .tx = mm->tx,
                           .tw = mm->tw,
                           .ty = mm->ty,
                           .adds = mm->adds};
    d->backend->counts[H3_CUDA_N_PLAIN]++;
    H3_LAUNCH(d, h3_k_matmul(d->backend->stream, &p));
    return H3_OK;
}
