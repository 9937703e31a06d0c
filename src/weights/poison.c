/**
 * Weights that are no weights: NaN, infinity, and numbers so large that their square is none. A
 * network often swallows them (a norm divides them away, pixels are clamped) and makes something
 * that looks like a result, so they are looked for where they are: once, when a matrix is first
 * needed and its bytes are read anyway.
 *
 * Plain encodings only: the scales of quantized ones were looked at when they were opened.
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
    while (c + 1 < p->cols && fabsf(v[c]) <= 1e15f)
        c++;
    const h3_status st =
        h3_fail(H3_E_NUMERIC, "tensor %s holds %g (row %lld, column %lld): the file is damaged",
                w->name, (double)v[c], (long long)(first + row), (long long)c);
    free(v);
    return st;
}

h3_status h3_poison_check(const h3_weight *w)
{
    enum { AT_ONCE = 1 << 18 }; // numbers: a bad one is then found quickly
    int64_t first = 0;

    /* Of the token table only the rows of the prompt are read. */
    if (w->name && strstr(w->name, "embed_tokens")) return H3_OK;
    for (int k = 0; k < w->n_parts; first += w->part[k++].rows) {
        const h3_weight_part *p = &w->part[k];
        const int64_t some = p->cols ? AT_ONCE / p->cols : 1, step = some ? some : 1;
        if (!p->data || p->encoding > H3_ENC_F16) continue;
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
