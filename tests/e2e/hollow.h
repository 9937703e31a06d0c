/**
 * Hollow checkpoints: a real header of a published file, and a data section of the real length that
 * takes no disk (a hole). Enough for everything that reads names, shapes and sizes.
 */
#ifndef TESTS_HOLLOW_H
#define TESTS_HOLLOW_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Few tensors are checked by value: gives `bytes` of data for `name`, or false for a hole. */
typedef int (*hollow_fill)(const char *name, void *data, size_t bytes);

enum { HOLLOW_FILLED = 1024, HOLLOW_MOST = 256 };

typedef struct hollow_file {
    FILE *head; // of a memory buffer
    char *text;
    size_t n, at;
    int n_tensors;
    hollow_fill fill;
    struct {
        size_t at, bytes;
        unsigned char data[HOLLOW_MOST];
    } filled[HOLLOW_FILLED];
    int n_filled;
} hollow_file;

static inline void hollow_add(hollow_file *h, const char *name, const char *dtype,
                              const char *shape, size_t bytes)
{
    fprintf(h->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
            h->n_tensors++ ? "," : "{", name, dtype, shape, h->at, h->at + bytes);
    if (h->fill && bytes <= HOLLOW_MOST && h->n_filled < HOLLOW_FILLED &&
        h->fill(name, h->filled[h->n_filled].data, bytes)) {
        h->filled[h->n_filled].at = h->at;
        h->filled[h->n_filled++].bytes = bytes;
    }
    h->at += bytes;
}

/* "blocks.{0-3,7}.x": one tensor per number of the braces. */
static inline void hollow_expand(hollow_file *h, const char *name, const char *dtype,
                                 const char *shape, size_t bytes)
{
    const char *open = strchr(name, '{'), *close = strchr(name, '}');
    char full[256];

    if (!open || !close) {
        hollow_add(h, name, dtype, shape, bytes);
        return;
    }
    for (const char *p = open + 1; p < close; p++) {
        char *end;
        long a = strtol(p, &end, 10), b = *end == '-' ? strtol(end + 1, &end, 10) : a;
        for (; a <= b; a++) {
            snprintf(full, sizeof full, "%.*s%ld%s", (int)(open - name), name, a, close + 1);
            hollow_expand(h, full, dtype, shape, bytes); // a second pair of braces
        }
        p = end;
    }
}

/* Writes `path` after the table of one published file; false when something could not be read or
 * written. */
static inline int hollow_write(const char *path, const char *tsv, hollow_fill fill)
{
    static hollow_file h;
    FILE *in = fopen(tsv, "r"), *out = fopen(path, "wb");
    char line[512];
    int ok = in && out;

    memset(&h, 0, sizeof h);
    h.fill = fill;
    h.head = open_memstream(&h.text, &h.n);
    while (ok && fgets(line, sizeof line, in)) {
        char name[192], dtype[16], shape[64];
        long long bytes;
        if (line[0] == '#') continue;
        ok = sscanf(line, "%191[^\t]\t%15[^\t]\t%63[^\t]\t%lld", name, dtype, shape, &bytes) == 4;
        if (ok) hollow_expand(&h, name, dtype, shape, (size_t)bytes);
    }
    fputc('}', h.head);
    fclose(h.head);
    const uint64_t len = h.n;
    ok = ok && fwrite(&len, 8, 1, out) == 1 && fwrite(h.text, 1, h.n, out) == h.n &&
         fflush(out) == 0;
    for (int i = 0; ok && i < h.n_filled; i++)
        ok = pwrite(fileno(out), h.filled[i].data, h.filled[i].bytes,
                    (off_t)(8 + h.n + h.filled[i].at)) == (ssize_t)h.filled[i].bytes;
    ok = ok && ftruncate(fileno(out), (off_t)(8 + h.n + h.at)) == 0;
    free(h.text);
    if (in) fclose(in);
    if (out) fclose(out);
    return ok;
}

#endif
