/**
 * Weights that are no weights: NaN, infinity, and numbers so large that their square is none. A
 * network often swallows them (a norm divides them away, pixels are clamped) and makes something
 * that looks like a result, so they are looked for where they are: once, when a matrix is first
 * needed and its bytes are read anyway.
 *
 * Plain numbers, the e4m3 codes of FP8, and the half-precision scales inside ggml blocks; scales
 * that are tensors of their own were looked at when they were opened.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "decode.h"
#include "half.h"

enum {
    LARGE_F32 = 0x58635fa9, ///< 1e15; trained weights stay below 1e4
    LARGE_BF16 = 0x5863,
    LARGE_F16 = 0x7bff ///< the largest finite one
};

/* Written without branches, so that they run as fast as memory is read. */
static bool has_large32(const unsigned char *p, size_t n)
{
    int32_t any = 0;

    for (size_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, p + 4 * i, 4);
        any |= (v & 0x7fffffff) > LARGE_F32;
    }
    return any;
}

static bool has_large16(const unsigned char *p, size_t n, int16_t limit)
{
    int16_t any = 0;

    for (size_t i = 0; i < n; i++) {
        int16_t v;
        memcpy(&v, p + 2 * i, 2);
        any = (int16_t)(any | ((v & 0x7fff) > limit));
    }
    return any;
}

static bool has_nan8(const unsigned char *p, size_t n)
{
    unsigned char any = 0;

    for (size_t i = 0; i < n; i++)
        any |= (unsigned char)((p[i] & 0x7f) == 0x7f);
    return any;
}

/* Halves some way apart: scales of blocks. */
static bool has_bad_half(const unsigned char *p, size_t n, size_t stride)
{
    unsigned any = 0;

    for (size_t i = 0; i < n; i++)
        any |= (p[i * stride + 1] & 0x7cu) == 0x7c; // the exponent of NaN and infinity
    return any;
}

/* Where the halves lie in a block: scale and perhaps minimum. Types without any, or with a scale in
 * pieces, are not listed; what they decode to is bounded anyway. */
static const struct {
    uint8_t type;
    int16_t at, second; ///< -1: none
} halves[] = {{2, 0, -1},   {3, 0, 2},     {6, 0, -1},  {7, 0, 2},    {8, 0, -1},
              {10, 80, 82}, {11, 108, -1}, {12, 0, 2},  {13, 0, 2},   {14, 208, -1},
              {16, 0, -1},  {17, 0, -1},   {18, 0, -1}, {19, 0, -1},  {20, 0, -1},
              {21, 0, -1},  {22, 0, -1},   {23, 0, -1}, {34, 52, -1}, {35, 64, -1}};

/* Numbers to look at: n of them, `stride` bytes apart, from byte `at` of the part. */
typedef struct span {
    size_t at, stride, n;
    h3_scan kind;
} span;

/* Rows of ggml blocks; where these cross rows, every block that holds some of them. */
static int spans_of_blocks(const h3_weight_part *p, int64_t row, int64_t n, span out[2])
{
    const h3_ggml_info info = h3_ggml_type(p->ggml_type);
    size_t first, count;
    int found = 0;

    if (info.block <= 1) return 0;
    if (p->row_bytes) {
        first = (size_t)row * (p->row_bytes / info.bytes);
        count = (size_t)n * (p->row_bytes / info.bytes);
    } else {
        const size_t from = (size_t)((p->row0 + row) * p->cols), to = from + (size_t)(n * p->cols);
        first = from / info.block;
        count = (to + info.block - 1) / info.block - first;
    }
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        if (halves[i].type != p->ggml_type) continue;
        const int16_t at[2] = {halves[i].at, halves[i].second};
        for (int k = 0; k < 2 && at[k] >= 0; k++)
            out[found++] =
                (span){first * info.bytes + (size_t)at[k], info.bytes, count, H3_SCAN_F16};
    }
    return found;
}

/* Rows [row, row + n) of a part: at most two spans. */
static int spans_of(const h3_weight_part *p, int64_t row, int64_t n, span out[2])
{
    const size_t at = (size_t)row * p->row_bytes, numbers = (size_t)(n * p->cols);

    switch (p->encoding) {
    case H3_ENC_F32:
        out[0] = (span){at, 4, numbers, H3_SCAN_F32};
        return 1;
    case H3_ENC_BF16:
        out[0] = (span){at, 2, numbers, H3_SCAN_BF16};
        return 1;
    case H3_ENC_F16:
        out[0] = (span){at, 2, numbers, H3_SCAN_F16};
        return 1;
    case H3_ENC_FP8_SCALED:
    case H3_ENC_MXFP8:
        out[0] = (span){at, 1, numbers, H3_SCAN_E4M3};
        return 1;
    case H3_ENC_GGML:
        return spans_of_blocks(p, row, n, out);
    default:
        return 0;
    }
}

static bool is_poisoned(const h3_weight_part *p, int64_t row, int64_t n)
{
    span s[2];
    const int found = spans_of(p, row, n, s);
    bool bad = false;

    for (int i = 0; i < found; i++) {
        const unsigned char *d = (const unsigned char *)p->data + s[i].at;
        if (s[i].kind == H3_SCAN_F32)
            bad = bad || has_large32(d, s[i].n);
        else if (s[i].kind == H3_SCAN_BF16)
            bad = bad || has_large16(d, s[i].n, LARGE_BF16);
        else if (s[i].kind == H3_SCAN_F16 && s[i].stride == 2)
            bad = bad || has_large16(d, s[i].n, LARGE_F16);
        else if (s[i].kind == H3_SCAN_F16)
            bad = bad || has_bad_half(d, s[i].n, s[i].stride);
        else
            bad = bad || has_nan8(d, s[i].n);
    }
    return bad;
}

/* The first bad number of a row of the whole matrix. */
static h3_status name_number(const h3_weight *w, const h3_weight_part *p, int64_t first,
                             int64_t row)
{
    float *v = malloc((size_t)p->cols * sizeof *v);
    int64_t c = 0;

    if (!v) return h3_fail(H3_E_NUMERIC, "tensor %s holds NaN or an absurd number", w->name);
    h3_weight_decode_rows(p, row, 1, v);
    while (c < p->cols && fabsf(v[c]) <= 1e15f)
        c++;
    const h3_status st =
        c < p->cols
            ? h3_fail(H3_E_NUMERIC,
                      "tensor %s holds %g (row %lld, column %lld): the file is damaged", w->name,
                      (double)v[c], (long long)(first + row), (long long)c)
            : h3_fail(
                  H3_E_NUMERIC,
                  "tensor %s holds a block whose scale is no number (near row %lld): the file is "
                  "damaged",
                  w->name, (long long)(first + row));
    free(v);
    return st;
}

h3_status h3_poison_rows(const h3_weight *w, const int32_t *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t first = 0;
        int k = 0;
        while (k < w->n_parts && row[i] >= first + w->part[k].rows)
            first += w->part[k++].rows;
        if (k < w->n_parts && w->part[k].data && is_poisoned(&w->part[k], row[i] - first, 1))
            return name_number(w, &w->part[k], first, row[i] - first);
    }
    return H3_OK;
}

/* Of the token table only the rows of the prompt are read: h3_poison_rows. */
static bool is_exempt(const h3_weight *w)
{
    return w->name && strstr(w->name, "embed_tokens");
}

/* A part of a matrix and the rows of it that nobody took yet. */
typedef struct hunt {
    const h3_weight_part *p;
    int64_t step;
    atomic_llong next;
    atomic_bool found;
} hunt;

static void *look(void *user)
{
    hunt *h = user;

    while (!atomic_load(&h->found)) {
        const int64_t r = atomic_fetch_add(&h->next, h->step), left = h->p->rows - r;
        if (left <= 0) break;
        if (is_poisoned(h->p, r, left < h->step ? left : h->step)) atomic_store(&h->found, true);
    }
    return NULL;
}

/* One thread reads a mapped file at a few GB/s: some look together. */
static bool is_part_poisoned(const h3_weight_part *p, int n_threads)
{
    enum { AT_ONCE = 1 << 18, WORTH_THREADS = 16 << 20, MAX_THREADS = 16 };
    const int64_t some = p->cols ? AT_ONCE / p->cols : 1;
    hunt h = {.p = p, .step = some ? some : 1};
    pthread_t thread[MAX_THREADS];
    int started = 0;

    if (p->bytes < WORTH_THREADS) n_threads = 1;
    for (; started + 1 < n_threads && started < MAX_THREADS; started++)
        if (pthread_create(&thread[started], NULL, look, &h) != 0) break;
    look(&h);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return atomic_load(&h.found);
}

h3_status h3_poison_check(const h3_weight *w, int n_threads)
{
    int64_t first = 0;

    if (is_exempt(w)) return H3_OK;
    for (int k = 0; k < w->n_parts; first += w->part[k++].rows) {
        const h3_weight_part *p = &w->part[k];
        int64_t at = 0;
        if (!p->data || !is_part_poisoned(p, n_threads)) continue;
        while (at < p->rows && !is_poisoned(p, at, 1)) // which row it is
            at++;
        return name_number(w, p, first, at < p->rows ? at : 0);
    }
    return H3_OK;
}

h3_status h3_poison_scan(h3_dev *d, const h3_weight *w, int *bad)
{
    if (is_exempt(w)) return H3_OK;
    for (int k = 0; k < w->n_parts; k++) {
        const h3_weight_part *p = &w->part[k];
        span s[2];
        const int n = spans_of(p, 0, p->rows, s);
        for (int i = 0; i < n && p->dev; i++)
            H3_TRY(d->scan(d, (const unsigned char *)p->dev + s[i].at, s[i].kind, s[i].stride,
                           s[i].n, bad));
    }
    return H3_OK;
}
