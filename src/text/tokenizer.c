/**
 * Encoding and look-ups. The order of work is the reference's and each step has a trap in it:
 *
 *   1. added tokens are cut out of the raw text (leftmost, longest), so they also end a word;
 *   2. each stretch between them is normalised alone: marks never compose across a token;
 *   3. the stretch is split into pieces (split.c), each piece is merged alone (bpe.c).
 */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "grow.h"
#include "split.h"
#include "tokenizer_priv.h"
#include "unicode.h"

h3_status h3_tok_open(h3_tok **out, const char *path)
{
    h3_tok *t = calloc(1, sizeof *t);
    h3_status st;

    *out = NULL;
    if (!t) return h3_fail(H3_E_NOMEM, "%s: no memory for a tokenizer", path);
    if ((st = h3_tok_load(t, path)) != H3_OK)
        h3_tok_free(&t);
    else
        *out = t;
    return st;
}

h3_status h3_tok_from_lists(h3_tok **out, const h3_tok_lists *lists)
{
    h3_tok *t = calloc(1, sizeof *t);
    h3_status st;

    *out = NULL;
    if (!t) return h3_fail(H3_E_NOMEM, "%s: no memory for a tokenizer", lists->path);
    if ((st = h3_tok_load_lists(t, lists)) != H3_OK)
        h3_tok_free(&t);
    else
        *out = t;
    return st;
}

void h3_tok_free(h3_tok **tp)
{
    h3_tok *t = tp ? *tp : NULL;

    if (!t) return;
    free(t->pool);
    free(t->str);
    free(t->slot);
    free(t->merge);
    free(t->pair);
    free(t->added);
    free(t);
    *tp = NULL;
}

void h3_tok_ids_free(h3_tok_ids *ids)
{
    free(ids->id);
    *ids = (h3_tok_ids){0};
}

/* ---- look-ups ---------------------------------------------------------------------------------
 */

int32_t h3_tok_find(const h3_tok *t, const char *string)
{
    return h3_tok_find_n(t, string, strlen(string));
}

int32_t h3_tok_n_ids(const h3_tok *t)
{
    return (int32_t)t->n_ids;
}

const char *h3_tok_string(const h3_tok *t, int32_t id, size_t *n_bytes)
{
    const bool is_used = id >= 0 && (size_t)id < t->n_ids && t->str[id].n;

    *n_bytes = is_used ? t->str[id].n : 0;
    return is_used ? t->pool + t->str[id].at : NULL;
}

size_t h3_tok_decode_piece(const h3_tok *t, int32_t id, char *buf, size_t cap)
{
    size_t n, len, n_out = 0;
    const char *s = h3_tok_string(t, id, &n);

    for (size_t i = 0; i < n; i += len) {
        const uint32_t cp = h3_utf8_get(s + i, &len);
        const int byte = cp < H3_TOK_ALPHABET && !t->str[id].is_added ? t->alphabet_byte[cp] : -1;
        for (size_t k = 0; k < (byte < 0 ? len : 1); k++, n_out++)
            if (n_out < cap) buf[n_out] = byte < 0 ? s[i + k] : (char)byte;
    }
    return n_out;
}

/* ---- added tokens -----------------------------------------------------------------------------
 */

/* First of the ordered added tokens [lo, hi), all longer than k bytes, whose byte k is >= c. */
static size_t bound(const h3_tok *t, size_t lo, size_t hi, size_t k, unsigned c)
{
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)t->pool[t->str[t->added[mid]].at + k] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest added token that the text begins with: its length, 0 for none. */
static size_t match_added(const h3_tok *t, const char *s, size_t n, int32_t *id)
{
    size_t lo = 0, hi = t->n_added, longest = 0;

    for (size_t k = 0; lo < hi; k++) { // [lo, hi) share their first k bytes with the text
        if (t->str[t->added[lo]].n == k) {
            longest = k;
            *id = t->added[lo++];
        }
        if (k == n) break;
        const unsigned c = (unsigned char)s[k];
        lo = bound(t, lo, hi, k, c);
        hi = bound(t, lo, hi, k, c + 1);
    }
    return longest;
}

/* ---- the walk over a text ---------------------------------------------------------------------
 */

typedef struct visitor {
    h3_status (*piece)(void *ctx, const char *s, size_t n);
    h3_status (*added)(void *ctx, int32_t id);
    void *ctx;
} visitor;

static h3_status walk_stretch(const char *s, size_t n, h3_bytes *nfc, const visitor *v)
{
    if (n == 0) return H3_OK;
    nfc->n = 0;
    H3_TRY(h3_unicode_nfc(nfc, s, n));
    for (size_t at = 0, len; at < nfc->n; at += len) {
        len = h3_split_next(nfc->p + at, nfc->n - at);
        H3_TRY(v->piece(v->ctx, nfc->p + at, len));
    }
    return H3_OK;
}

static h3_status walk(const h3_tok *t, const char *s, size_t n, h3_bytes *nfc, const visitor *v)
{
    size_t from = 0, len;
    int32_t id = -1;

    for (size_t i = 0; i < n; i += len) {
        len = t->starts_added[(unsigned char)s[i]] ? match_added(t, s + i, n - i, &id) : 0;
        if (!len) {
            len = 1;
            continue;
        }
        H3_TRY(walk_stretch(s + from, i - from, nfc, v));
        H3_TRY(v->added(v->ctx, id));
        from = i + len;
    }
    return walk_stretch(s + from, n - from, nfc, v);
}

static h3_status walk_checked(const h3_tok *t, const char *s, size_t n, const visitor *v)
{
    enum { MAX_BYTES = 1 << 29 }; // NFC can triple the length, and symbol indices are 32 bits wide
    h3_bytes nfc = {0};
    size_t bad;
    h3_status st;

    if (n > MAX_BYTES)
        return h3_fail(H3_E_ARG, "the text has %zu bytes, at most %d are tokenised", n, MAX_BYTES);
    if (!h3_utf8_is_valid(s, n, &bad))
        return h3_fail(H3_E_ARG, "the text is not UTF-8: byte 0x%02x at offset %zu",
                       (unsigned)(unsigned char)s[bad], bad);
    st = walk(t, s, n, &nfc, v);
    free(nfc.p);
    return st;
}

typedef struct encoding {
    const h3_tok *t;
    h3_tok_ids *out;
    h3_bpe bpe;
} encoding;

static h3_status encode_piece(void *ctx, const char *s, size_t n)
{
    encoding *e = ctx;
    return h3_bpe_encode(e->t, &e->bpe, e->out, s, n);
}

static h3_status encode_added(void *ctx, int32_t id)
{
    h3_tok_ids *out = ((encoding *)ctx)->out;

    H3_TRY(h3_grow(&out->id, &out->cap, out->n + 1, sizeof *out->id));
    out->id[out->n++] = id;
    return H3_OK;
}

h3_status h3_tok_encode(const h3_tok *t, h3_tok_ids *out, const char *text, size_t n_bytes)
{
    encoding e = {.t = t, .out = out};
    const visitor v = {encode_piece, encode_added, &e};
    const size_t before = out->n;
    const h3_status st = walk_checked(t, text, n_bytes, &v);

    if (st != H3_OK) out->n = before;
    h3_bpe_free(&e.bpe);
    return st;
}

typedef struct cutting {
    void (*put)(void *ctx, int64_t piece);
    void *ctx;
} cutting;

static h3_status cut_piece(void *ctx, const char *s, size_t n)
{
    const cutting *c = ctx;
    (void)s;
    c->put(c->ctx, (int64_t)n);
    return H3_OK;
}

static h3_status cut_added(void *ctx, int32_t id)
{
    const cutting *c = ctx;
    c->put(c->ctx, -(int64_t)id);
    return H3_OK;
}

h3_status h3_tok_split(const h3_tok *t, const char *text, size_t n_bytes,
                       void (*put)(void *ctx, int64_t piece), void *ctx)
{
    cutting c = {put, ctx};
    const visitor v = {cut_piece, cut_added, &c};
    return walk_checked(t, text, n_bytes, &v);
}
