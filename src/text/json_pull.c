/**
 * See json_pull.h. RFC 8259, strictly: no comments, no trailing commas, no lone surrogates, no
 * control characters in strings. Skipping keeps a bit per open bracket instead of recursing.
 */
#include "json_pull.h"

#include <stdlib.h>
#include <string.h>

#include "grow.h"
#include "unicode.h"

static h3_status bad(const h3_pull *j, const char *what)
{
    if (j->at >= j->end)
        return h3_fail(H3_E_FORMAT, "the JSON ends at byte %zu where %s was expected",
                       (size_t)(j->end - j->begin), what);
    return h3_fail(H3_E_FORMAT, "byte %zu of the JSON: %s was expected", (size_t)(j->at - j->begin),
                   what);
}

static void blanks(h3_pull *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
        j->at++;
}

h3_status h3_pull_init(h3_pull *j, const char *text, size_t n)
{
    size_t at;

    *j = (h3_pull){.begin = text, .at = text, .end = text + n, .is_first = true};
    if (!h3_utf8_is_valid(text, n, &at))
        return h3_fail(H3_E_FORMAT, "byte %zu of the JSON: not UTF-8", at);
    return H3_OK;
}

void h3_pull_free(h3_pull *j)
{
    free(j->text);
    *j = (h3_pull){0};
}

char h3_pull_peek(h3_pull *j)
{
    blanks(j);
    if (j->at == j->end) return 0;
    if (*j->at == '-' || (*j->at >= '0' && *j->at <= '9')) return '0';
    return strchr("{[\"tfn", *j->at) && *j->at ? *j->at : 0;
}

h3_status h3_pull_open(h3_pull *j, char bracket, const char *what)
{
    if (h3_pull_peek(j) != bracket) return bad(j, what);
    j->at++;
    j->is_first = true;
    return H3_OK;
}

/* Passes the comma before the next entry, or the closing bracket. */
static h3_status next_entry(h3_pull *j, char close, bool *more)
{
    blanks(j);
    if (j->at < j->end && *j->at == close) {
        j->at++;
        j->is_first = false; // the surrounding bracket has this entry now
        *more = false;
        return H3_OK;
    }
    if (!j->is_first) {
        if (j->at == j->end || *j->at != ',')
            return bad(j, close == '}' ? "',' or '}'" : "',' or ']'");
        j->at++;
    }
    j->is_first = false;
    *more = true;
    return H3_OK;
}

h3_status h3_pull_key(h3_pull *j, h3_pull_str *key, bool *more)
{
    H3_TRY(next_entry(j, '}', more));
    if (!*more) return H3_OK;
    H3_TRY(h3_pull_string(j, key, "a key"));
    blanks(j);
    if (j->at == j->end || *j->at != ':') return bad(j, "':'");
    j->at++;
    return H3_OK;
}

h3_status h3_pull_item(h3_pull *j, bool *more)
{
    return next_entry(j, ']', more);
}

static bool hex4(const char *s, const char *end, uint32_t *out)
{
    uint32_t v = 0;

    if (end - s < 4) return false;
    for (int i = 0; i < 4; i++) {
        const char c = s[i];
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0) return false;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

/* The escape behind the backslash at j->at - 1, written to dst (at most 4 bytes). */
static h3_status unescape(h3_pull *j, char *dst, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *hit = j->at < j->end && *j->at ? strchr(from, *j->at) : NULL;
    uint32_t cp, low = 0;

    if (hit) {
        dst[0] = to[hit - from];
        *n = 1;
        j->at++;
        return H3_OK;
    }
    if (j->at == j->end || *j->at != 'u' || !hex4(j->at + 1, j->end, &cp))
        return bad(j, "an escape");
    if (cp >= 0xd800 && cp < 0xe000) {
        const bool is_pair = cp < 0xdc00 && j->end - j->at >= 11 && j->at[5] == '\\' &&
                             j->at[6] == 'u' && hex4(j->at + 7, j->end, &low) && low >= 0xdc00 &&
                             low < 0xe000;
        if (!is_pair) return bad(j, "a pair of surrogates");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        j->at += 6;
    }
    j->at += 5;
    *n = h3_utf8_put(dst, cp);
    return H3_OK;
}

/* A string that holds an escape; j->at is at its first one, `head` bytes before it are plain. */
static h3_status escaped_string(h3_pull *j, h3_pull_str *out, size_t head)
{
    size_t n = head, k = 0;

    H3_TRY(h3_grow(&j->text, &j->text_cap, head + 4, 1));
    memcpy(j->text, j->at - head, head);
    while (j->at < j->end && *j->at != '"') {
        H3_TRY(h3_grow(&j->text, &j->text_cap, n + 4, 1));
        if (*j->at == '\\') {
            j->at++;
            H3_TRY(unescape(j, j->text + n, &k));
            n += k;
        } else if ((unsigned char)*j->at < 0x20) {
            return bad(j, "an escaped control character");
        } else {
            j->text[n++] = *j->at++;
        }
    }
    if (j->at == j->end) return bad(j, "'\"'");
    j->at++;
    *out = (h3_pull_str){j->text, n};
    return H3_OK;
}

h3_status h3_pull_string(h3_pull *j, h3_pull_str *out, const char *what)
{
    if (h3_pull_peek(j) != '"') return bad(j, what);
    const char *s = ++j->at;
    while (j->at < j->end && *j->at != '"' && *j->at != '\\' && (unsigned char)*j->at >= 0x20)
        j->at++;
    if (j->at < j->end && *j->at == '\\') return escaped_string(j, out, (size_t)(j->at - s));
    if (j->at == j->end || *j->at != '"')
        return bad(j, j->at == j->end ? "'\"'" : "an escaped control character");
    *out = (h3_pull_str){s, (size_t)(j->at - s)};
    j->at++;
    return H3_OK;
}

static size_t digits(h3_pull *j)
{
    const char *s = j->at;
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9')
        j->at++;
    return (size_t)(j->at - s);
}

/* Passes a number; *is_int when it has neither fraction nor exponent. */
static h3_status number(h3_pull *j, bool *is_int)
{
    *is_int = true;
    if (*j->at == '-') j->at++;
    const bool is_zero = j->at < j->end && *j->at == '0';
    const size_t n = digits(j);
    if (n == 0 || (is_zero && n > 1)) return bad(j, "a number");
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        *is_int = false;
        if (digits(j) == 0) return bad(j, "a digit");
    }
    if (j->at < j->end && (*j->at | 0x20) == 'e') {
        j->at++;
        *is_int = false;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-')) j->at++;
        if (digits(j) == 0) return bad(j, "a digit");
    }
    return H3_OK;
}

h3_status h3_pull_int(h3_pull *j, int64_t *out, bool *ok)
{
    *ok = false;
    if (h3_pull_peek(j) != '0') return h3_pull_skip(j);
    const char *s = j->at;
    bool is_int;
    H3_TRY(number(j, &is_int));
    const bool is_negative = *s == '-';
    int64_t v = 0;
    for (s += is_negative; is_int && s < j->at; s++)
        is_int = h3_mul_i64(v, 10, &v) && h3_add_i64(v, *s - '0', &v);
    *ok = is_int;
    *out = is_negative ? -v : v;
    return H3_OK;
}

static h3_status word(h3_pull *j, const char *w)
{
    const size_t n = strlen(w);

    if ((size_t)(j->end - j->at) < n || memcmp(j->at, w, n) != 0) return bad(j, "a value");
    j->at += n;
    return H3_OK;
}

h3_status h3_pull_bool(h3_pull *j, bool *out, bool *ok)
{
    const char c = h3_pull_peek(j);

    *ok = c == 't' || c == 'f';
    *out = c == 't';
    return *ok ? word(j, *out ? "true" : "false") : h3_pull_skip(j);
}

static h3_status skip_scalar(h3_pull *j)
{
    h3_pull_str s;
    bool is_int;

    switch (h3_pull_peek(j)) {
    case '"':
        return h3_pull_string(j, &s, "a string");
    case '0':
        return number(j, &is_int);
    case 't':
        return word(j, "true");
    case 'f':
        return word(j, "false");
    case 'n':
        return word(j, "null");
    default:
        return bad(j, "a value");
    }
}

h3_status h3_pull_skip(h3_pull *j)
{
    uint64_t is_object = 0; // bit 0: the innermost open bracket
    int depth = 0;
    h3_pull_str key;
    bool more;

    do {
        const char c = h3_pull_peek(j);
        if (c == '{' || c == '[') {
            if (depth == H3_PULL_MAX_DEPTH)
                return h3_fail(H3_E_FORMAT, "byte %zu of the JSON: nested deeper than %d",
                               (size_t)(j->at - j->begin), H3_PULL_MAX_DEPTH);
            H3_TRY(h3_pull_open(j, c, "a value"));
            is_object = is_object << 1 | (c == '{');
            depth++;
        } else {
            H3_TRY(skip_scalar(j));
        }
        for (more = false; depth > 0 && !more;) {
            H3_TRY(is_object & 1 ? h3_pull_key(j, &key, &more) : h3_pull_item(j, &more));
            if (!more) {
                is_object >>= 1;
                depth--;
            }
        }
    } while (depth > 0);
    j->is_first = false;
    return H3_OK;
}

h3_status h3_pull_finish(h3_pull *j)
{
    blanks(j);
    return j->at == j->end ? H3_OK : bad(j, "the end of the file");
}

bool h3_pull_is(h3_pull_str s, const char *literal)
{
    return s.n == strlen(literal) && memcmp(s.p, literal, s.n) == 0;
}
