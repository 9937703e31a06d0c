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

/* Where the halves lie in a block: scale and perhaps minimum. Types without any, or with a scale in
 * pieces, are not listed; what they decode to is bounded anyway. */
static const struct {
    uint8_t type;
    int8_t at, second; ///< -1: none
} halves[] = {{2, 0, -1},   {3, 0, 2},     {6, 0, -1},   {7, 0, 2},   {8, 0, -1},
              {10, 80, 82}, {11, 108, -1}, {12, 0, 2},   {13, 0, 2},  {16, 0, -1},
              {17, 0, -1},  {18, 0, -1},   {19, 0, -1},  {20, 0, -1}, {21, 0, -1},
              {22, 0, -1},  {23, 0, -1},   {34, 52, -1}, {35, 64, -1}};
/* Q6_K's lies at 208, which no int8 holds. */
enum { Q6_K = 14, Q6_K_AT = 208 };

static bool has_bad_half(const unsigned char *p, size_t n, size_t stride)
{
    unsigned any = 0;

    for (size_t i = 0; i < n; i++)
        any |= (p[i * stride + 1] & 0x7cu) == 0x7c; // the exponent of NaN and infinity
    return any;
}

/* Rows of ggml blocks; where these cross rows, every block that holds some of them. */
static bool has_bad_blocks(const h3_weight_part *p, int64_t row, int64_t n)
{
    const h3_ggml_info info = h3_ggml_type(p->ggml_type);
    const unsigned char *d = p->data;
    size_t first, count;

    if (info.block <= 1) return false;
    if (p->row_bytes) {
        first = (size_t)row * (p->row_bytes / info.bytes);
        count = (size_t)n * (p->row_bytes / info.bytes);
    } else {
        const size_t from = (size_t)((p->row0 + row) * p->cols), to = from + (size_t)(n * p->cols);
        first = from / info.block;
        count = (to + info.block - 1) / info.block - first;
    }
    d += first * info.bytes;
    if (p->ggml_type == Q6_K) return has_bad_half(d + Q6_K_AT, count, info.bytes);
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        if (halves[i].type == p->ggml_type)
            return has_bad_half(d + halves[i].at, count, info.bytes) ||
                   (halves[i].second >= 0 && has_bad_half(d + halves[i].second, count, info.bytes));
    return false;
}

static bool is_poisoned(const h3_weight_part *p, int64_t row, int64_t n)
{
    const unsigned char *d = (const unsigned char *)p->data + (size_t)row * p->row_bytes;
    const size_t numbers = (size_t)(n * p->cols);

    switch (p->encoding) {
    case H3_ENC_F32:
        return has_large32(d, numbers);
    case H3_ENC_BF16:
        return has_large16(d, numbers, LARGE_BF16);
    case H3_ENC_F16:
        return has_large16(d, numbers, LARGE_F16);
    case H3_ENC_FP8_SCALED:
    case H3_ENC_MXFP8:
        return has_nan8(d, numbers);
    case H3_ENC_GGML:
        return has_bad_blocks(p, row, n);
    default:
        return false;
    }
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

h3_status h3_poison_check(const h3_weight *w)
{
    enum { AT_ONCE = 1 << 18 }; // numbers: a bad one is then found quickly
    int64_t first = 0;

    /* Of the token table only the rows of the prompt are read: h3_poison_rows. */
    if (w->name && strstr(w->name, "embed_tokens")) return H3_OK;
    for (int k = 0; k < w->n_parts; first += w->part[k++].rows) {
        const h3_weight_part *p = &w->part[k];
        const int64_t some = p->cols ? AT_ONCE / p->cols : 1, step = some ? some : 1;
        if (!p->data) continue;
        for (int64_t r = 0; r < p->rows; r += step) {
            const int64_t n = p->rows - r < step ? p->rows - r : step;
            if (!is_poisoned(p, r, n)) continue;
            int64_t at = r;
            while (!is_poisoned(p, at, 1))
                at++;
            return name_number(w, p, first, at);
        }
    }
    return H3_OK;
}
