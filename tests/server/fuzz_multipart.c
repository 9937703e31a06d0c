/**
 * The form parser under arbitrary bytes. What must hold: it ends, it stays within its memory, and
 * what it makes of a body does not depend on where the body was cut into pieces.
 *
 * Built twice: as a libFuzzer program (H3_FUZZ), and as an ordinary test with a main of its own
 * that tries every cut of some forms and many random changes of them, from a fixed seed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct trace {
    uint64_t hash;
    int n_begun, n_ended;
    size_t bytes;
} trace;

static void mix(trace *t, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        t->hash = (t->hash ^ b[i]) * 0x100000001b3u;
}

static bool begin(void *user, const srv_part *part)
{
    trace *t = user;

    if (strlen(part->name) > SRV_PART_NAME_MAX || strlen(part->filename) > SRV_PART_NAME_MAX ||
        strchr(part->filename, '/'))
        abort();
    mix(t, part->name, strlen(part->name) + 1);
    mix(t, part->filename, strlen(part->filename) + 1);
    mix(t, part->type, strlen(part->type) + 1);
    t->n_begun++;
    return true;
}

static bool data_came(void *user, const void *p, size_t n)
{
    trace *t = user;

    if (t->n_begun != t->n_ended + 1 || n == 0) abort(); // only inside a part
    mix(t, p, n);
    t->bytes += n;
    return true;
}

static bool end(void *user)
{
    trace *t = user;

    if (++t->n_ended != t->n_begun) abort();
    mix(t, "end", 3);
    return true;
}

/* Parses in pieces: `step` bytes each, or (0) lengths drawn from `seed`. 0: refused. */
static bool parse(trace *t, const uint8_t *data, size_t n, size_t step, uint32_t seed)
{
    static const srv_multipart_events events = {begin, data_came, end};
    srv_multipart *m = srv_multipart_open("Bound", &events, t);
    bool is_ok = true;

    memset(t, 0, sizeof *t);
    t->hash = 0xcbf29ce484222325u;
    for (size_t at = 0; is_ok && at < n;) {
        size_t piece = step;
        uint8_t *copy;
        if (!step) {
            seed = seed * 1664525u + 1013904223u;
            piece = 1 + (seed >> 24) % 40;
        }
        if (piece > n - at) piece = n - at;
        copy = malloc(piece); // a block of its own: reading past it is seen
        memcpy(copy, data + at, piece);
        is_ok = srv_multipart_feed(m, copy, piece);
        free(copy);
        at += piece;
    }
    if (is_ok) is_ok = srv_multipart_finish(m);
    if (!is_ok && !*srv_multipart_error(m)) abort(); // a refusal has its reason
    if (is_ok && t->n_begun != t->n_ended) abort();
    if (t->bytes > n) abort();
    srv_multipart_close(&m);
    return is_ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char boundary[SRV_BOUNDARY_MAX + 1], type[128];
    trace whole, cut;
    const bool is_ok = parse(&whole, data, n, n ? n : 1, 0);

    for (size_t step = 1; step <= 3; step += 2)
        if (parse(&cut, data, n, step, 0) != is_ok || (is_ok && cut.hash != whole.hash)) abort();
    if (parse(&cut, data, n, 0, (uint32_t)n) != is_ok || (is_ok && cut.hash != whole.hash)) abort();
    snprintf(type, sizeof type, "multipart/form-data; %.*s", (int)(n < 90 ? n : 90),
             (const char *)data);
    if (srv_multipart_boundary(boundary, type) && !*boundary) abort();
    return 0;
}

#ifndef H3_LIBFUZZER
static const char *const seeds[] = {
    "--Bound\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nvalue\r\n--Bound--\r\n",
    ("pre\r\n--Bound \t\r\nContent-Disposition: form-data; name=\"a[b]\"; "
     "filename=\"x\\\"y.png\"\r\n"
     "Content-Type: image/png\r\n\r\n\r\n--Boun\r\r\n--BoundX\r\n--Bound-\r\n--Bound--tail"),
    ("--Bound\r\nContent-Disposition: form-data; name=a; filename*=UTF-8''%e2%98%83\r\n\r\n\r\n"
     "--Bound\r\ncontent-disposition:form-data;name=\"b\"\r\n\r\n--Bound\r\n--Bound--"),
    "--Bound--",
    "\r\n--Bound\r\n",
    ""};

int main(void)
{
    static uint8_t buf[4096];
    uint32_t r = 1;
    trace whole, cut;

    for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++) {
        const size_t n = strlen(seeds[s]);
        const bool is_ok = parse(&whole, (const uint8_t *)seeds[s], n, n ? n : 1, 0);
        if (is_ok != (s < 4)) return 1; // the first four are right
        for (size_t step = 1; step <= n; step++)
            if (parse(&cut, (const uint8_t *)seeds[s], n, step, 0) != is_ok ||
                (is_ok && cut.hash != whole.hash))
                return 2;
        for (int k = 0; k < 4000; k++) {
            size_t m = n;
            memcpy(buf, seeds[s], n);
            for (int c = 0; m && c < 1 + k % 4; c++) {
                r = r * 1664525u + 1013904223u;
                buf[(r >> 8) % m] = "\r\n-B\"; =\0:x%"[r >> 4 & 7] ^ (uint8_t)(k % 97 == 0 ? r : 0);
                if (k % 5 == 0) m = (r >> 9) % (m + 1);
            }
            LLVMFuzzerTestOneInput(buf, m);
        }
    }
    return 0;
}
#endif
