/** A list of tensors to one safetensors file; see st_write.h. */
#include "st_write.h"

#include "writer.h"

static h3_status fill(h3_writer *w, const h3_st_tensor *tensors, int n, const json_t *meta)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)meta, key, v)
        H3_TRY(h3_writer_meta(w, key, json_string_value(v)));
    for (int i = 0; i < n; i++)
        H3_TRY(h3_writer_declare(w, tensors[i].name, (h3_dtype)tensors[i].t.dtype,
                                 tensors[i].t.rank, tensors[i].t.ne));
    H3_TRY(h3_writer_begin(w));
    for (int i = 0; i < n; i++)
        H3_TRY(h3_writer_put(w, tensors[i].t.data,
                             (size_t)h3_numel(tensors[i].t) *
                                 h3_dtype_bytes((h3_dtype)tensors[i].t.dtype)));
    return H3_OK;
}

h3_status h3_st_write(const char *path, const h3_st_tensor *tensors, int n, const json_t *meta)
{
    h3_writer *w = NULL;
    h3_status st = h3_writer_open(&w, path);

    if (st == H3_OK) st = fill(w, tensors, n, meta);
    if (st == H3_OK) return h3_writer_commit(&w);
    h3_writer_abort(&w);
    return st;
}
