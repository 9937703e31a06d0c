/** See writer.h. The header is a jansson object that keeps insertion order. */
#include "writer.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

struct h3_writer {
    h3_atomic file;
    json_t *head, *meta;
    size_t declared, written;
    bool is_begun;
};

static h3_status no_memory(const h3_writer *w)
{
    return h3_fail(H3_E_NOMEM, "%s: no memory for its header", w->file.path);
}

h3_status h3_writer_open(h3_writer **out, const char *path)
{
    h3_writer *w = calloc(1, sizeof *w);
    h3_status st;

    *out = NULL;
    if (!w) return h3_fail(H3_E_NOMEM, "%s: no memory to write it", path);
    st = h3_atomic_open(&w->file, path);
    w->head = json_object();
    w->meta = json_object();
    if (st == H3_OK && (!w->head || !w->meta)) st = no_memory(w);
    if (st != H3_OK) {
        h3_writer_abort(&w);
        return st;
    }
    *out = w;
    return H3_OK;
}

h3_status h3_writer_meta(h3_writer *w, const char *key, const char *value)
{
    if (json_object_set_new(w->meta, key, json_string(value)) != 0) return no_memory(w);
    return H3_OK;
}

h3_status h3_writer_declare(h3_writer *w, const char *name, h3_dtype t, int rank, const int64_t *ne)
{
    size_t bytes = h3_dtype_bytes(t), end;
    json_t *shape = json_array(), *entry;

    for (int i = 0; i < rank; i++) {
        if (!h3_mul_size(bytes, (size_t)ne[i], &bytes))
            return h3_fail(H3_E_FORMAT, "tensor \"%s\" is too large to write", name);
        json_array_append_new(shape, json_integer(ne[i]));
    }
    if (!h3_add_size(w->declared, bytes, &end))
        return h3_fail(H3_E_FORMAT, "tensor \"%s\" is too large to write", name);
    entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", h3_dtype_name(t), "shape", shape,
                      "data_offsets", (json_int_t)w->declared, (json_int_t)end);
    w->declared = end;
    if (!entry || json_object_set_new(w->head, name, entry) != 0) return no_memory(w);
    return H3_OK;
}

static h3_status put(h3_writer *w, const void *data, size_t bytes)
{
    if (bytes && fwrite(data, 1, bytes, w->file.fp) != bytes)
        return h3_fail(H3_E_IO, "%s: write failed: %s", w->file.path, strerror(errno));
    return H3_OK;
}

h3_status h3_writer_begin(h3_writer *w)
{
    json_t *all = json_object();
    char *text = NULL;
    unsigned char len[8];
    h3_status st = H3_OK;
    size_t n = 0, padded = 0;

    if (json_object_size(w->meta)) json_object_set(all, "__metadata__", w->meta);
    if (all && json_object_update(all, w->head) == 0) text = json_dumps(all, JSON_COMPACT);
    if (!text) st = no_memory(w);
    if (st == H3_OK) {
        n = strlen(text);
        padded = h3_align_up(n, 8);
        for (int i = 0; i < 8; i++)
            len[i] = (unsigned char)((uint64_t)padded >> (8 * i));
        st = put(w, len, 8);
    }
    if (st == H3_OK) st = put(w, text, n);
    if (st == H3_OK) st = put(w, "        ", padded - n);
    free(text);
    json_decref(all);
    w->is_begun = true;
    return st;
}

h3_status h3_writer_put(h3_writer *w, const void *data, size_t bytes)
{
    w->written += bytes;
    return put(w, data, bytes);
}

h3_status h3_writer_commit(h3_writer **wp)
{
    h3_writer *w = *wp;
    h3_status st = H3_OK;

    if (!w->is_begun || w->written != w->declared)
        st = h3_fail(H3_E_INTERNAL, "%s: %zu of %zu bytes were written", w->file.path, w->written,
                     w->declared);
    else
        st = h3_atomic_commit(&w->file);
    h3_writer_abort(wp);
    return st;
}

void h3_writer_abort(h3_writer **wp)
{
    h3_writer *w = wp ? *wp : NULL;

    if (!w) return;
    h3_atomic_abort(&w->file);
    json_decref(w->head);
    json_decref(w->meta);
    free(w);
    *wp = NULL;
}
