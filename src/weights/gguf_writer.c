/** See gguf_writer.h. */
#include "gguf_writer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "half.h"
#include "size.h"

enum {
    ALIGN = 32,
    T_I32 = 5,
    T_STRING = 8,
    T_ARRAY = 9,
    MAX_TEXTS = 8,
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q8_0 = 8,
    GGML_BF16 = 30
};

typedef struct planned {
    char *name;
    uint32_t type;
    int rank, n_orig;
    int64_t ne[8],
        orig[8]; ///< extents, and those it is told to have had before; n_orig 0: the same
    size_t offset, bytes;
} planned;

struct h3_gguf_writer {
    h3_atomic file;
    planned *t;
    size_t n, cap;
    size_t end;     ///< of the data section as declared
    size_t current; ///< tensor whose bytes come next
    size_t written; ///< of the data section
    char *key[MAX_TEXTS], *text[MAX_TEXTS];
    size_t n_texts;
};

h3_status h3_gguf_writer_open(h3_gguf_writer **out, const char *path)
{
    h3_gguf_writer *w = calloc(1, sizeof *w);
    h3_status st;

    *out = NULL;
    if (!w) return h3_fail(H3_E_NOMEM, "%s: no memory to write it", path);
    st = h3_atomic_open(&w->file, path);
    if (st != H3_OK) {
        free(w);
        return st;
    }
    *out = w;
    return H3_OK;
}

h3_status h3_gguf_meta(h3_gguf_writer *w, const char *key, const char *value)
{
    if (w->n_texts == MAX_TEXTS) return h3_fail(H3_E_INTERNAL, "%s: too many texts", w->file.path);
    w->key[w->n_texts] = h3_strdupf("%s", key);
    w->text[w->n_texts++] = h3_strdupf("%s", value);
    return H3_OK;
}

h3_status h3_gguf_declare(h3_gguf_writer *w, const char *name, uint8_t type, int rank,
                          const int64_t *ne)
{
    const uint32_t as = type == H3_F32    ? GGML_F32
                        : type == H3_BF16 ? GGML_BF16
                        : type == H3_F16  ? GGML_F16
                                          : GGML_Q8_0;

    return h3_gguf_declare_as(w, name, as, rank, ne, 0, NULL);
}

h3_status h3_gguf_declare_as(h3_gguf_writer *w, const char *name, uint32_t type, int rank,
                             const int64_t *ne, int n_orig, const int64_t *orig)
{
    planned *p;
    size_t n = 1;

    if (w->n == w->cap) {
        const size_t cap = w->cap ? 2 * w->cap : 256;
        p = realloc(w->t, cap * sizeof *p);
        if (!p) return h3_fail(H3_E_NOMEM, "%s: no memory for its header", w->file.path);
        w->t = p;
        w->cap = cap;
    }
    p = &w->t[w->n];
    memset(p, 0, sizeof *p);
    p->type = type;
    p->rank = rank;
    p->n_orig = n_orig;
    if (n_orig) memcpy(p->orig, orig, (size_t)n_orig * sizeof *orig);
    for (int i = 0; i < rank; i++) {
        p->ne[i] = ne[i];
        if (!h3_mul_size(n, (size_t)ne[i], &n))
            return h3_fail(H3_E_FORMAT, "tensor \"%s\" is too large to write", name);
    }
    const h3_ggml_info info = h3_ggml_type(p->type);
    if (!h3_mul_size(n / info.block, info.bytes, &p->bytes))
        return h3_fail(H3_E_FORMAT, "tensor \"%s\" is too large to write", name);
    p->offset = h3_align_up(w->end, ALIGN);
    w->end = p->offset + p->bytes;
    p->name = h3_strdupf("%s", name);
    w->n++;
    return H3_OK;
}

static h3_status put(h3_gguf_writer *w, const void *data, size_t bytes)
{
    if (bytes && fwrite(data, 1, bytes, w->file.fp) != bytes)
        return h3_fail(H3_E_IO, "%s: write failed: %s", w->file.path, strerror(errno));
    return H3_OK;
}

static h3_status put_int(h3_gguf_writer *w, uint64_t v, int bytes)
{
    unsigned char b[8];
    for (int i = 0; i < bytes; i++)
        b[i] = (unsigned char)(v >> (8 * i));
    return put(w, b, (size_t)bytes);
}

static h3_status put_string(h3_gguf_writer *w, const char *s)
{
    H3_TRY(put_int(w, strlen(s), 8));
    return put(w, s, strlen(s));
}

/* Extents as GGUF can store them: at most 4, the axes in the middle multiplied together. */
static int folded(const planned *p, int64_t ne[4])
{
    int n = 0;

    if (p->rank <= 4) {
        memcpy(ne, p->ne, (size_t)p->rank * sizeof *ne);
        return p->rank;
    }
    ne[n++] = p->ne[0];
    ne[1] = 1;
    for (int i = 1; i < p->rank - 2; i++)
        ne[1] *= p->ne[i];
    ne[2] = p->ne[p->rank - 2];
    ne[3] = p->ne[p->rank - 1];
    return 4;
}

/* GGUF holds four extents at most: what had more, or others, keeps its shape as a value. */
static bool has_orig_shape(const planned *p)
{
    return p->rank > 4 || p->n_orig > 0;
}

static h3_status put_orig_shape(h3_gguf_writer *w, const planned *p)
{
    const int n = p->n_orig ? p->n_orig : p->rank;
    char *key = h3_strdupf("comfy.gguf.orig_shape.%s", p->name);
    const h3_status st = put_string(w, key);

    free(key);
    H3_TRY(st);
    H3_TRY(put_int(w, T_ARRAY, 4));
    H3_TRY(put_int(w, T_I32, 4));
    H3_TRY(put_int(w, (uint64_t)n, 8));
    for (int k = 0; k < n; k++)
        H3_TRY(put_int(w, (uint64_t)(p->n_orig ? p->orig : p->ne)[k], 4));
    return H3_OK;
}

/* Innermost extent first. */
static h3_status put_tensor(h3_gguf_writer *w, const planned *p)
{
    int64_t ne[4];
    const int rank = folded(p, ne);

    H3_TRY(put_string(w, p->name));
    H3_TRY(put_int(w, (uint64_t)(rank ? rank : 1), 4));
    if (!rank) H3_TRY(put_int(w, 1, 8));
    for (int k = rank - 1; k >= 0; k--)
        H3_TRY(put_int(w, (uint64_t)ne[k], 8));
    H3_TRY(put_int(w, p->type, 4));
    return put_int(w, p->offset, 8);
}

static h3_status put_header(h3_gguf_writer *w)
{
    uint64_t n_kv = 1 + w->n_texts;

    for (size_t i = 0; i < w->n; i++)
        n_kv += has_orig_shape(&w->t[i]);
    H3_TRY(put(w, "GGUF", 4));
    H3_TRY(put_int(w, 3, 4));
    H3_TRY(put_int(w, w->n, 8));
    H3_TRY(put_int(w, n_kv, 8));
    H3_TRY(put_string(w, "general.architecture"));
    H3_TRY(put_int(w, T_STRING, 4));
    H3_TRY(put_string(w, "minimax_h3"));
    for (size_t i = 0; i < w->n_texts; i++) {
        H3_TRY(put_string(w, w->key[i]));
        H3_TRY(put_int(w, T_STRING, 4));
        H3_TRY(put_string(w, w->text[i]));
    }
    for (size_t i = 0; i < w->n; i++)
        if (has_orig_shape(&w->t[i])) H3_TRY(put_orig_shape(w, &w->t[i]));
    for (size_t i = 0; i < w->n; i++)
        H3_TRY(put_tensor(w, &w->t[i]));
    return H3_OK;
}

static h3_status pad_to(h3_gguf_writer *w, size_t n)
{
    static const char zeros[ALIGN];
    return put(w, zeros, n);
}

h3_status h3_gguf_begin(h3_gguf_writer *w)
{
    long at;

    H3_TRY(put_header(w));
    at = ftell(w->file.fp);
    if (at < 0) return h3_fail(H3_E_IO, "%s: %s", w->file.path, strerror(errno));
    return pad_to(w, h3_align_up((size_t)at, ALIGN) - (size_t)at);
}

h3_status h3_gguf_put(h3_gguf_writer *w, const void *data, size_t bytes)
{
    while (w->current + 1 < w->n &&
           w->written == w->t[w->current].offset + w->t[w->current].bytes) {
        w->current++;
        H3_TRY(pad_to(w, w->t[w->current].offset - w->written));
        w->written = w->t[w->current].offset;
    }
    w->written += bytes;
    return put(w, data, bytes);
}

h3_status h3_gguf_put_q8_0(h3_gguf_writer *w, const float *v, int64_t n)
{
    for (int64_t at = 0; at < n; at += 32) {
        unsigned char block[34];
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = fmaxf(amax, fabsf(v[at + i]));
        const float d = amax / 127.0f, inv = d > 0 ? 1.0f / d : 0.0f;
        const uint16_t h = h3_f32_to_f16(d);
        if ((h & 0x7c00) == 0x7c00)
            return h3_fail(H3_E_NUMERIC, "tensor \"%s\" holds %g, more than Q8_0 can",
                           w->t[w->current].name, (double)amax);
        memcpy(block, &h, 2);
        for (int i = 0; i < 32; i++)
            block[2 + i] = (unsigned char)(int8_t)lrintf(v[at + i] * inv);
        H3_TRY(h3_gguf_put(w, block, sizeof block));
    }
    return H3_OK;
}

h3_status h3_gguf_commit(h3_gguf_writer **wp)
{
    h3_gguf_writer *w = *wp;
    h3_status st = H3_OK;

    if (w->written != w->end)
        st = h3_fail(H3_E_INTERNAL, "%s: %zu of %zu bytes were written", w->file.path, w->written,
                     w->end);
    else
        st = h3_atomic_commit(&w->file);
    h3_gguf_abort(wp);
    return st;
}

void h3_gguf_abort(h3_gguf_writer **wp)
{
    h3_gguf_writer *w = wp ? *wp : NULL;

    if (!w) return;
    h3_atomic_abort(&w->file);
    for (size_t i = 0; i < w->n; i++)
        free(w->t[i].name);
    for (size_t i = 0; i < w->n_texts; i++) {
        free(w->key[i]);
        free(w->text[i]);
    }
    free(w->t);
    free(w);
    *wp = NULL;
}
