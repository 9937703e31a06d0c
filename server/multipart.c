/**
 * See multipart.h.
 *
 * A delimiter is CR LF "--" boundary. CR stands in it at its very start only (a boundary has none),
 * so when a partial match breaks, the only place where a new one can begin is the byte that broke
 * it: no text is looked at twice, and no more than one delimiter is ever held back.
 */
#include "multipart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum state {
    PREAMBLE, ///< before the first delimiter
    HEAD,     ///< headers of a part
    DATA,     ///< its content
    TAIL,     ///< a delimiter was seen: what follows says whether it is one
    EPILOGUE, ///< after the closing delimiter
    BROKEN
} state;

enum { PAD_MAX = 64 };

struct srv_multipart {
    state state, before_tail;
    srv_multipart_events ev;
    void *user;
    char delim[SRV_BOUNDARY_MAX + 5]; // "\r\n--" boundary
    size_t n_delim, matched;
    char tail[PAD_MAX + 2]; // bytes after a delimiter, until it is decided
    size_t n_tail;
    char head[SRV_PART_HEAD_MAX + 1];
    size_t n_head;
    int n_parts;
    srv_part part;
    char error[160];
};

/* ------------------------------------------------------------------------------------- headers */

static bool is_token(unsigned char c)
{
    return c > 0x20 && c < 0x7f && !strchr("()<>@,;:\\\"/[]?={}", c);
}

static const char *skip_blanks(const char *p)
{
    while (*p == ' ' || *p == '\t')
        p++;
    return p;
}

/* Reads "value" or a token at *p into out (cut at cap - 1, *is_cut says so). A backslash escapes
 * only a quote or itself: browsers do not escape it, and old ones send whole Windows paths. */
static bool take_value(const char **p, char *out, size_t cap, bool *is_cut)
{
    const char *s = *p;
    size_t n = 0;

    *is_cut = false;
    if (*s == '"') {
        for (s++; *s != '"'; s++) {
            if (!*s) return false;
            if (*s == '\\' && (s[1] == '"' || s[1] == '\\')) s++;
            if (n + 1 < cap)
                out[n++] = *s;
            else
                *is_cut = true;
        }
        s++;
    } else {
        if (!is_token((unsigned char)*s)) return false;
        for (; is_token((unsigned char)*s) || (*s && strchr("/:?=@'", *s)); s++) {
            if (n + 1 < cap)
                out[n++] = *s;
            else
                *is_cut = true;
        }
    }
    out[n] = '\0';
    *p = s;
    return true;
}

/* The next "; name=value"; 1 found, 0 end, -1 malformed. */
static int next_param(const char **p, char name[32], char *value, size_t cap, bool *is_cut)
{
    const char *s = skip_blanks(*p);
    size_t n = 0;

    while (*s == ';')
        s = skip_blanks(s + 1);
    *p = s;
    if (!*s) return 0;
    for (; is_token((unsigned char)*s); s++)
        if (n < 31) name[n++] = *s;
    name[n] = '\0';
    s = skip_blanks(s);
    if (n == 0 || *s != '=') return -1;
    s = skip_blanks(s + 1);
    if (!take_value(&s, value, cap, is_cut)) return -1;
    s = skip_blanks(s);
    if (*s && *s != ';') return -1;
    *p = s;
    return 1;
}

bool srv_multipart_boundary(char out[SRV_BOUNDARY_MAX + 1], const char *type)
{
    static const char form[] = "multipart/form-data";
    const char *p = type + sizeof form - 1;
    char name[32], value[SRV_BOUNDARY_MAX + 2];
    bool is_cut, has_one = false;
    int found;

    if (strncasecmp(type, form, sizeof form - 1) != 0) return false;
    if (*skip_blanks(p) != ';') return false;
    while ((found = next_param(&p, name, value, sizeof value, &is_cut)) == 1) {
        if (strcasecmp(name, "boundary") != 0) continue;
        if (has_one || is_cut || !*value || strlen(value) > SRV_BOUNDARY_MAX) return false;
        for (const char *c = value; *c; c++)
            if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) return false;
        if (value[strlen(value) - 1] == ' ') return false;
        memcpy(out, value, strlen(value) + 1);
        has_one = true;
    }
    return found == 0 && has_one;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Undoes percent escapes: all of them, or only those that browsers make of a quote and of line
 * ends. */
static void unescape(char *s, bool is_all)
{
    char *o = s;

    for (; *s; s++) {
        const int hi = *s == '%' ? hex(s[1]) : -1, lo = hi >= 0 ? hex(s[2]) : -1;
        const int v = lo >= 0 ? hi * 16 + lo : -1;
        if (v > 0 && (is_all || v == '"' || v == '\r' || v == '\n')) {
            *o++ = (char)v;
            s += 2;
        } else {
            *o++ = *s;
        }
    }
    *o = '\0';
}

/* Keeps what follows the last slash, of either kind, without control characters. */
static void keep_base_name(char *s)
{
    char *base = s, *o = s;

    for (char *p = s; *p; p++)
        if (*p == '/' || *p == '\\') base = p + 1;
    for (; *base; base++)
        if ((unsigned char)*base >= 0x20 && *base != 0x7f) *o++ = *base;
    *o = '\0';
}

static bool broken(srv_multipart *m, const char *text)
{
    if (!m->error[0]) snprintf(m->error, sizeof m->error, "%s", text);
    m->state = BROKEN;
    return false;
}

/* form-data; name="prompt"; filename="cat.png" */
static bool read_disposition(srv_multipart *m, const char *p)
{
    char name[32], value[1024];
    bool is_cut, has_name = false, has_star = false;
    int found;

    if (strncasecmp(p, "form-data", 9) != 0 || (p[9] && !strchr("; \t", p[9])))
        return broken(m, "a part's Content-Disposition is not form-data");
    p += 9;
    while ((found = next_param(&p, name, value, sizeof value, &is_cut)) == 1) {
        if (strcasecmp(name, "name") == 0) {
            if (has_name) return broken(m, "a part has two names");
            unescape(value, false);
            if (!*value || is_cut || strlen(value) > SRV_PART_NAME_MAX)
                return broken(m, "a part's name is empty or longer than 255 bytes");
            memcpy(m->part.name, value, strlen(value) + 1);
            has_name = true;
        } else if (strcasecmp(name, "filename") == 0) {
            m->part.is_file = true;
            if (has_star) continue;
            unescape(value, false);
            keep_base_name(value);
            snprintf(m->part.filename, sizeof m->part.filename, "%.255s", value);
        } else if (strcasecmp(name, "filename*") == 0) { // RFC 5987: UTF-8''name
            const char *text = strchr(value, '\'');
            text = text ? strchr(text + 1, '\'') : NULL;
            if (!text) return broken(m, "a part's filename* is malformed");
            m->part.is_file = has_star = true;
            memmove(value, text + 1, strlen(text + 1) + 1);
            unescape(value, true);
            keep_base_name(value);
            snprintf(m->part.filename, sizeof m->part.filename, "%.255s", value);
        }
    }
    if (found < 0) return broken(m, "a part's Content-Disposition is malformed");
    return has_name ? true : broken(m, "a part has no name");
}

static bool is_named(const char *line, size_t n, const char *name)
{
    return n == strlen(name) && strncasecmp(line, name, n) == 0;
}

static bool read_header(srv_multipart *m, char *line, bool *has_disposition)
{
    char *colon = strchr(line, ':');
    const size_t n = colon ? (size_t)(colon - line) : 0;
    const char *value;

    if (n == 0) return broken(m, "a part's header line has no colon");
    for (size_t i = 0; i < n; i++)
        if (!is_token((unsigned char)line[i]))
            return broken(m, "a part's header name is malformed"); // folded lines too
    value = skip_blanks(colon + 1);
    if (is_named(line, n, "Content-Disposition")) {
        if (*has_disposition) return broken(m, "a part has two Content-Disposition headers");
        *has_disposition = true;
        return read_disposition(m, value);
    }
    if (is_named(line, n, "Content-Type"))
        snprintf(m->part.type, sizeof m->part.type, "%.255s", value);
    if (is_named(line, n, "Content-Transfer-Encoding") && strncasecmp(value, "binary", 6) != 0 &&
        strncasecmp(value, "8bit", 4) != 0 && strncasecmp(value, "7bit", 4) != 0)
        return broken(m, "a part is encoded; only binary, 8bit and 7bit are accepted");
    return true;
}

/* The whole head of a part is in m->head, each line ended by CR LF, the last one empty. */
static bool read_head(srv_multipart *m)
{
    bool has_disposition = false;
    char *line = m->head;

    memset(&m->part, 0, sizeof m->part);
    if (++m->n_parts > SRV_PARTS_MAX) return broken(m, "the form has more than 128 parts");
    while (line < m->head + m->n_head - 2) {
        char *end = strchr(line, '\r');
        *end = '\0'; // feed_head made sure that CR comes only before LF
        if (!read_header(m, line, &has_disposition)) return false;
        line = end + 2;
    }
    if (!has_disposition) return broken(m, "a part has no Content-Disposition");
    m->n_head = 0;
    m->state = DATA;
    m->matched = 0;
    return m->ev.begin(m->user, &m->part) ? true : broken(m, "");
}

static size_t feed_head(srv_multipart *m, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = p[i], last = m->n_head ? m->head[m->n_head - 1] : '\0';
        if (c == '\0' || (c == '\n') != (last == '\r')) {
            broken(m, c ? "a part's headers have a line end other than CR LF"
                        : "a part's headers hold a NUL byte");
            return n;
        }
        if (m->n_head == SRV_PART_HEAD_MAX) {
            broken(m, "a part's headers are longer than 8192 bytes");
            return n;
        }
        m->head[m->n_head++] = c;
        if (c == '\n' && (m->n_head == 2 || m->head[m->n_head - 3] == '\n')) {
            m->head[m->n_head] = '\0';
            read_head(m);
            return i + 1;
        }
    }
    return n;
}

/* ---------------------------------------------------------------------------------------- data */

static bool emit(srv_multipart *m, const char *p, size_t n)
{
    if (m->state != DATA || n == 0) return true; // the preamble is nobody's
    return m->ev.data(m->user, p, n) ? true : broken(m, "");
}

/* Searches for the delimiter from p; returns how much was taken. */
static size_t feed_data(srv_multipart *m, const char *p, size_t n)
{
    size_t i = 0, start = 0; // p[start, i) is data not handed out yet

    while (i < n) {
        if (m->matched == 0) {
            const char *cr = memchr(p + i, '\r', n - i);
            if (!cr) {
                emit(m, p + start, n - start);
                return n;
            }
            i = (size_t)(cr - p);
            if (!emit(m, p + start, i - start)) return n;
            start = ++i;
            m->matched = 1;
            continue;
        }
        if (p[i] == m->delim[m->matched]) {
            start = ++i;
            if (++m->matched == m->n_delim) {
                m->before_tail = m->state;
                m->state = TAIL;
                m->n_tail = 0;
                return i;
            }
            continue;
        }
        if (!emit(m, m->delim, m->matched)) return n;
        m->matched = 0;
        start = i;
    }
    return n;
}

/* What looked like a delimiter was text: it goes out, and the search goes on behind it. */
static void not_a_delimiter(srv_multipart *m)
{
    size_t n = m->n_tail;
    const bool ends_in_cr = n && m->tail[n - 1] == '\r';

    m->state = m->before_tail;
    if (ends_in_cr) n--;
    if (!emit(m, m->delim, m->n_delim) || !emit(m, m->tail, n)) return;
    m->matched = ends_in_cr ? 1 : 0;
}

/* After a delimiter: "--" closes the form, blanks and CR LF begin a part, anything else means that
 * the boundary's text was part of the content. */
static size_t feed_tail(srv_multipart *m, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = p[i], last = m->n_tail ? m->tail[m->n_tail - 1] : '\0';
        const bool is_close = c == '-' && (m->n_tail == 0 || (m->n_tail == 1 && last == '-'));
        const bool is_blank = (c == ' ' || c == '\t') && last != '-' && last != '\r';
        const bool is_cr = c == '\r' && last != '-' && last != '\r';
        const bool is_lf = c == '\n' && last == '\r';

        if (!(is_close || is_blank || is_cr || is_lf) || m->n_tail > PAD_MAX) {
            not_a_delimiter(m);
            return i;
        }
        m->tail[m->n_tail++] = c;
        if (!is_lf && !(is_close && m->n_tail == 2)) continue;
        if (m->before_tail == DATA && !m->ev.end(m->user)) {
            broken(m, "");
            return n;
        }
        m->state = is_lf ? HEAD : EPILOGUE;
        m->n_head = 0;
        return i + 1;
    }
    return n;
}

/* -------------------------------------------------------------------------------------- parser */

srv_multipart *srv_multipart_open(const char *boundary, const srv_multipart_events *ev, void *user)
{
    srv_multipart *m = calloc(1, sizeof *m);

    if (!m) return NULL;
    m->ev = *ev;
    m->user = user;
    m->n_delim = (size_t)snprintf(m->delim, sizeof m->delim, "\r\n--%.70s", boundary);
    m->matched = 2; // the first delimiter may be the very first thing
    return m;
}

bool srv_multipart_feed(srv_multipart *m, const void *data, size_t n)
{
    const char *p = data;

    while (n && m->state != BROKEN) {
        size_t took = n; // the epilogue is nobody's
        if (m->state == HEAD)
            took = feed_head(m, p, n);
        else if (m->state == TAIL)
            took = feed_tail(m, p, n);
        else if (m->state != EPILOGUE)
            took = feed_data(m, p, n);
        p += took;
        n -= took;
    }
    return m->state != BROKEN;
}

bool srv_multipart_finish(srv_multipart *m)
{
    if (m->state == BROKEN) return false;
    if (m->state != EPILOGUE)
        return broken(m, m->n_parts == 0 && m->state == PREAMBLE
                             ? "the body does not hold the boundary of its Content-Type"
                             : "the form ends before its closing boundary");
    return true;
}

const char *srv_multipart_error(const srv_multipart *m)
{
    return m->error;
}

void srv_multipart_close(srv_multipart **m)
{
    free(*m);
    *m = NULL;
}
