/** Writing safetensors; see st_write.h. The header is padded so that the data starts at 8 bytes. */
#include "st_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

static json_t *describe(h3_tensor t, size_t from, size_t bytes)
{
    json_t *shape = json_array();

    for (int i = 0; i < t.rank; i++)
        json_array_append_new(shape, json_integer(t.ne[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", h3_dtype_name((h3_dtype)t.dtype), "shape",
                     shape, "data_offsets", (json_int_t)from, (json_int_t)(from + bytes));
}

static size_t bytes_of(h3_tensor t)
{
    return (size_t)h3_numel(t) * h3_dtype_bytes((h3_dtype)t.dtype);
}

h3_status h3_st_write(const char *path, const h3_st_tensor *tensors, int n, const json_t *meta)
{
    json_t *root = json_object();
    h3_atomic a = {0};
    h3_status st = H3_OK;
    char *text;
    size_t at = 0;

    if (meta) json_object_set_new(root, "__metadata__", json_deep_copy(meta));
    for (int i = 0; i < n; i++) {
        const size_t bytes = bytes_of(tensors[i].t);
        json_object_set_new(root, tensors[i].name, describe(tensors[i].t, at, bytes));
        at += bytes;
    }
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text) return h3_fail(H3_E_NOMEM, "%s: no memory for its header", path);
    if ((st = h3_atomic_open(&a, path)) != H3_OK) {
        free(text);
        return st;
    }
    const uint64_t len = strlen(text), padded = (len + 7) / 8 * 8;
    bool ok = fwrite(&padded, 8, 1, a.fp) == 1 && fwrite(text, 1, len, a.fp) == len;
    for (uint64_t i = len; ok && i < padded; i++)
        ok = fputc(' ', a.fp) != EOF;
    for (int i = 0; ok && i < n; i++) {
        const size_t bytes = bytes_of(tensors[i].t);
        ok = fwrite(tensors[i].t.data, 1, bytes, a.fp) == bytes;
    }
    free(text);
    if (!ok) {
        st = h3_fail(H3_E_IO, "%s: write failed: %s", path, strerror(errno));
        h3_atomic_abort(&a);
        return st;
    }
    return h3_atomic_commit(&a);
}
