/**
 * UTF-8, character classes, NFC. Tables are short sorted lists searched by bisection: prompts are a
 * few thousand characters, and text below U+0300, which is nearly all of it, never reaches a
 * search.
 *
 * NFC follows UAX 15: decompose fully, order marks by combining class (stable), compose. Everything
 * is linear in the text, also for a hostile prompt that is one long run of marks.
 */
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

#include "grow.h"
#include "unicode_tables.h"

h3_unicode_kind h3_unicode_kind_of(uint32_t cp)
{
    int lo = 0, hi = h3_uc_n_class; // class[lo] starts at or before cp

    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (h3_uc_class[mid] >> 2 <= cp)
            lo = mid;
        else
            hi = mid;
    }
    return (h3_unicode_kind)(h3_uc_class[lo] & 3);
}

bool h3_utf8_is_valid(const char *text, size_t n, size_t *bad)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;

    while (i < n) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, s + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        const unsigned char c = s[i];
        const size_t len = c < 0x80   ? 1
                           : c < 0xc2 ? 0
                           : c < 0xe0 ? 2
                           : c < 0xf0 ? 3
                           : c < 0xf5 ? 4
                                      : 0;
        bool ok = len && len <= n - i;
        for (size_t k = 1; ok && k < len; k++)
            ok = (s[i + k] & 0xc0) == 0x80;
        if (ok && len == 3) ok = !(c == 0xe0 && s[i + 1] < 0xa0) && !(c == 0xed && s[i + 1] > 0x9f);
        if (ok && len == 4) ok = !(c == 0xf0 && s[i + 1] < 0x90) && !(c == 0xf4 && s[i + 1] > 0x8f);
        if (!ok) {
            *bad = i;
            return false;
        }
        i += len;
    }
    return true;
}

uint32_t h3_utf8_get(const char *text, size_t *len)
{
    const unsigned char *s = (const unsigned char *)text;

    if (s[0] < 0x80) return *len = 1, s[0];
    if (s[0] < 0xe0) return *len = 2, (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    if (s[0] < 0xf0) return *len = 3, (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    return *len = 4,
           (s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

size_t h3_utf8_put(char *dst, uint32_t cp)
{
    if (cp < 0x80) return dst[0] = (char)cp, 1;
    if (cp < 0x800) {
        dst[0] = (char)(0xc0 | cp >> 6);
        dst[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        dst[0] = (char)(0xe0 | cp >> 12);
        dst[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | cp >> 18);
    dst[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

h3_status h3_bytes_add(h3_bytes *b, const char *s, size_t n)
{
    if (!n) return H3_OK;
    H3_TRY(h3_grow(&b->p, &b->cap, b->n + n, 1));
    memcpy(b->p + b->n, s, n);
    b->n += n;
    return H3_OK;
}

/* ---- normalisation ----------------------------------------------------------------------------
 */

/* Hangul syllables, Unicode 3.12: S = ((L * 21) + V) * 28 + T. */
enum { S0 = 0xac00, L0 = 0x1100, V0 = 0x1161, T0 = 0x11a7, NL = 19, NV = 21, NT = 28, NS = 11172 };

typedef struct mark {
    uint32_t cp;
    uint32_t ccc; // canonical combining class, 0 for a starter
} mark;

typedef struct marks {
    mark *p;
    size_t n, cap;
} marks;

static uint32_t combining_class(uint32_t cp)
{
    int lo = 0, hi = h3_uc_n_marks / 2;

    if (cp < h3_uc_marks[0]) return 0;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (h3_uc_marks[2 * mid] <= cp)
            lo = mid;
        else
            hi = mid;
    }
    const uint32_t v = h3_uc_marks[2 * lo + 1];
    return cp - h3_uc_marks[2 * lo] <= v >> 8 ? v & 0xff : 0;
}

static bool decompose_once(uint32_t cp, uint32_t *first, uint32_t *second)
{
    int lo = 0, hi = h3_uc_n_decomp;

    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        const uint64_t row = h3_uc_decomp[mid];
        if (row >> 42 == cp) {
            *first = row >> 21 & 0x1fffff;
            *second = row & 0x1fffff;
            return true;
        }
        if (row >> 42 < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

static bool compose(uint32_t first, uint32_t second, uint32_t *out)
{
    const uint64_t key = (uint64_t)first << 21 | second;
    int lo = 0, hi = h3_uc_n_compose;

    if (first - L0 < NL && second - V0 < NV) {
        *out = S0 + ((first - L0) * NV + (second - V0)) * NT;
        return true;
    }
    if (first - S0 < NS && (first - S0) % NT == 0 && second - T0 - 1 < NT - 1) {
        *out = first + (second - T0);
        return true;
    }
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        const uint64_t row = h3_uc_decomp[h3_uc_compose[mid]], k = row & 0x3ffffffffffu;
        if (k == key) {
            *out = (uint32_t)(row >> 42);
            return true;
        }
        if (k < key)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

static h3_status push(marks *m, uint32_t cp)
{
    H3_TRY(h3_grow(&m->p, &m->cap, m->n + 1, sizeof *m->p));
    m->p[m->n++] = (mark){cp, combining_class(cp)};
    return H3_OK;
}

/* The second part of a decomposition never decomposes further except for a few marks, and the first
 * one at most twice more, so recursion is shallow. */
static h3_status push_decomposed(marks *m, uint32_t cp)
{
    uint32_t a, b;

    if (cp < 0xc0) return push(m, cp);
    if (cp - S0 < NS) {
        const uint32_t s = cp - S0;
        H3_TRY(push(m, L0 + s / (NV * NT)));
        H3_TRY(push(m, V0 + s / NT % NV));
        return s % NT ? push(m, T0 + s % NT) : H3_OK;
    }
    if (!decompose_once(cp, &a, &b)) return push(m, cp);
    H3_TRY(push_decomposed(m, a));
    return b ? push_decomposed(m, b) : H3_OK;
}

/* Stable order of one run of marks by class. Runs of more than a handful are counted into 256
 * buckets, so that a prompt of marks alone costs no square. */
static h3_status order_run(mark *p, size_t n)
{
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            const mark x = p[i];
            size_t k = i;
            for (; k > 0 && p[k - 1].ccc > x.ccc; k--)
                p[k] = p[k - 1];
            p[k] = x;
        }
        return H3_OK;
    }
    size_t at[257] = {0};
    mark *tmp = malloc(n * sizeof *tmp);
    if (!tmp) return h3_fail(H3_E_NOMEM, "no memory to order %zu combining marks", n);
    for (size_t i = 0; i < n; i++)
        at[p[i].ccc + 1]++;
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++)
        tmp[at[p[i].ccc]++] = p[i];
    memcpy(p, tmp, n * sizeof *p);
    free(tmp);
    return H3_OK;
}

static h3_status order_marks(marks *m)
{
    for (size_t i = 0; i < m->n;) {
        size_t e = i;
        while (e < m->n && m->p[e].ccc)
            e++;
        if (e - i > 1) H3_TRY(order_run(m->p + i, e - i));
        i = e > i ? e : i + 1;
    }
    return H3_OK;
}

/* In place: each character joins the last starter unless a kept one between them blocks it (its
 * class is not below the character's, or the character is a starter that does not follow directly).
 */
static void compose_marks(marks *m)
{
    size_t starter = SIZE_MAX, n = 0;

    for (size_t i = 0; i < m->n; i++) {
        const mark x = m->p[i];
        uint32_t joined;
        if (starter != SIZE_MAX) {
            const bool is_next = starter + 1 == n;
            if ((is_next || m->p[n - 1].ccc < x.ccc) && compose(m->p[starter].cp, x.cp, &joined)) {
                m->p[starter].cp = joined;
                continue;
            }
        }
        if (x.ccc == 0) starter = n;
        m->p[n++] = x;
    }
    m->n = n;
}

h3_status h3_unicode_nfc(h3_bytes *out, const char *s, size_t n)
{
    marks m = {0};
    size_t i = 0, len;
    h3_status st = H3_OK;

    // below U+0300 (first byte under 0xcc) everything is its own NFC
    while (i < n && (unsigned char)s[i] < 0xcc)
        i++;
    if (i == n) return h3_bytes_add(out, s, n);
    for (i = 0; i < n && st == H3_OK; i += len)
        st = push_decomposed(&m, h3_utf8_get(s + i, &len));
    if (st == H3_OK) st = order_marks(&m);
    if (st == H3_OK) {
        compose_marks(&m);
        st = h3_grow(&out->p, &out->cap, out->n + 4 * m.n, 1);
    }
    for (i = 0; i < m.n && st == H3_OK; i++)
        out->n += h3_utf8_put(out->p + out->n, m.p[i].cp);
    free(m.p);
    return st;
}
