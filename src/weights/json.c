/**
 * Guarded JSON; see json.h. jansson builds a tree some 20 times the size of hostile text, and its
 * messages give a byte position only. So a small scanner runs first: it counts values and depth,
 * and after a failure runs again up to the position of the failure to find the keys it lies under.
 */
#include "json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

/* Where the scanner stands: for each depth, the last key seen there (as offsets into the text). */
typedef struct scan {
    size_t key_at[H3_JSON_MAX_DEPTH + 1], key_n[H3_JSON_MAX_DEPTH + 1];
    bool is_object[H3_JSON_MAX_DEPTH + 1], wants_key[H3_JSON_MAX_DEPTH + 1];
    int depth;
    long n_values;
    bool is_too_deep;
} scan;

/* One past the closing quote of the string whose opening quote is at `i`. */
static size_t skip_string(const char *s, size_t n, size_t i)
{
    for (i++; i < n && s[i] != '"'; i++)
        if (s[i] == '\\') i++;
    return i < n ? i + 1 : n;
}

static void scan_text(scan *sc, const char *s, size_t n)
{
    memset(sc, 0, sizeof *sc);
    for (size_t i = 0; i < n && !sc->is_too_deep;) {
        switch (s[i]) {
        case '"': {
            const size_t end = skip_string(s, n, i);
            if (sc->wants_key[sc->depth]) {
                sc->key_at[sc->depth] = i;
                sc->key_n[sc->depth] = end - i;
            }
            i = end;
            continue;
        }
        case '{':
        case '[':
            sc->n_values++;
            if (sc->depth == H3_JSON_MAX_DEPTH) {
                sc->is_too_deep = true;
                break;
            }
            sc->key_n[++sc->depth] = 0;
            sc->is_object[sc->depth] = sc->wants_key[sc->depth] = s[i] == '{';
            break;
        case '}':
        case ']':
            if (sc->depth) sc->depth--;
            break;
        case ',':
            sc->n_values++;
            sc->wants_key[sc->depth] = sc->is_object[sc->depth];
            break;
        case ':':
            sc->n_values++;
            sc->wants_key[sc->depth] = false;
            break;
        default:
            break;
        }
        i++;
    }
}

/* "a.weight > shape", or "" when outside of any key. Escapes are decoded so that a name spelled
 * differently is still told by its name. */
static char *path_of(const scan *sc, const char *s)
{
    char *path = h3_strdupf("%s", "");

    for (int d = 1; d <= sc->depth; d++) {
        json_t *key = sc->key_n[d]
                          ? json_loadb(s + sc->key_at[d], sc->key_n[d], JSON_DECODE_ANY, NULL)
                          : NULL;
        if (json_is_string(key)) {
            char *longer =
                h3_strdupf("%s%s%.200s", path, *path ? " > " : "", json_string_value(key));
            free(path);
            path = longer;
        }
        json_decref(key);
    }
    return path;
}

static bool is_blank(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && strchr(" \t\r\n", s[i]) && s[i])
        i++;
    return i == n;
}

h3_status h3_json_parse(json_t **out, const char *text, size_t n, const char *what)
{
    json_error_t err;
    scan sc;

    *out = NULL;
    if (n > H3_JSON_MAX_BYTES)
        return h3_fail(H3_E_FORMAT, "%s: %zu bytes of JSON, more than the %d allowed", what, n,
                       H3_JSON_MAX_BYTES);
    if (is_blank(text, n))
        return h3_fail(H3_E_FORMAT, "%s is empty%s; JSON was expected", what,
                       n ? " but for blanks" : "");
    if (*text == '\0')
        return h3_fail(H3_E_FORMAT, "%s begins with a zero byte, so it is no JSON", what);
    scan_text(&sc, text, n);
    if (sc.is_too_deep)
        return h3_fail(H3_E_FORMAT, "%s: JSON nested deeper than %d levels", what,
                       H3_JSON_MAX_DEPTH);
    if (sc.n_values > H3_JSON_MAX_VALUES)
        return h3_fail(H3_E_FORMAT, "%s: JSON of more than %d values", what, H3_JSON_MAX_VALUES);
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &err);
    if (!*out) {
        h3_status st;
        const size_t at = err.position > 0 && (size_t)err.position < n ? (size_t)err.position : n;
        char *path;
        scan_text(&sc, text, at);
        path = path_of(&sc, text);
        st = h3_fail(H3_E_FORMAT, "%s is not valid JSON: %s%s%s%s (line %d, column %d)", what,
                     *path ? "in \"" : "", path, *path ? "\": " : "", err.text, err.line,
                     err.column);
        free(path);
        return st;
    }
    return H3_OK;
}

h3_status h3_json_load(json_t **out, const char *path)
{
    size_t n;
    char *text;
    h3_status st;

    *out = NULL;
    H3_TRY(h3_file_read(&text, &n, path, H3_JSON_MAX_BYTES));
    st = h3_json_parse(out, text, n, path);
    free(text);
    return st;
}
