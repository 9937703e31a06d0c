/**
 * Containers and the list of their tensors; see manifest.h. Files are told by their first bytes; a
 * suffix that says something else is an error, because every other program goes by the suffix.
 *
 * A sharded index lists which file holds which tensor. Its file names come from the net: they must
 * stay inside the index's folder. Tensors that a shard holds beyond the index are kept.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "manifest_impl.h"
#include "size.h"
#include "suffix.h"

enum { MAX_ENTRIES = 1 << 20, MAX_SHARDS = 4096 };

/* ---- building ---- */

static h3_status no_memory(void)
{
    return h3_fail(H3_E_NOMEM, "no memory for the list of tensors");
}

h3_status h3_manifest_add_file(h3_manifest *m, h3_file *f, uint32_t *index)
{
    h3_file **files = realloc(m->files, (m->n_files + 1) * sizeof *files);

    if (!files) {
        h3_file_unmap(&f);
        return no_memory();
    }
    m->files = files;
    *index = m->n_files;
    files[m->n_files++] = f;
    return H3_OK;
}

/* Room for one more element of `size` bytes in a growing array. */
static bool grow(void **array, size_t n, size_t *cap, size_t size)
{
    size_t want = *cap ? 2 * *cap : 64, bytes;
    void *p;

    if (n < *cap) return true;
    if (!h3_mul_size(want, size, &bytes) || !(p = realloc(*array, bytes))) return false;
    *array = p;
    *cap = want;
    return true;
}

static char *copy_text(const char *s, size_t n)
{
    char *t = malloc(n + 1);
    if (!t) return NULL;
    if (n) memcpy(t, s, n);
    t[n] = '\0';
    return t;
}

h3_status h3_manifest_add(h3_manifest *m, const h3_entry *e, const char *name, size_t n)
{
    void *array = m->entries;
    char *copy;

    if (m->n >= MAX_ENTRIES)
        return h3_fail(H3_E_FORMAT, "%s: more than %d tensors", m->files[e->file]->path,
                       MAX_ENTRIES);
    if (!grow(&array, m->n, &m->cap, sizeof *e)) return no_memory();
    m->entries = array;
    copy = copy_text(name, n);
    if (!copy) return no_memory();
    m->entries[m->n] = *e;
    m->entries[m->n].name = copy;
    for (int i = e->rank; i < 8; i++)
        m->entries[m->n].ne[i] = 1;
    m->n++;
    return H3_OK;
}

h3_status h3_manifest_add_meta(h3_manifest *m, const char *key, size_t n_key, const char *value,
                               size_t n_value)
{
    void *array = m->meta;
    h3_meta x;

    if (!grow(&array, m->n_meta, &m->cap_meta, sizeof *m->meta)) return no_memory();
    m->meta = array;
    x.key = copy_text(key, n_key);
    x.value = copy_text(value, n_value);
    if (!x.key || !x.value) {
        free(x.key);
        free(x.value);
        return no_memory();
    }
    m->meta[m->n_meta++] = x;
    return H3_OK;
}

h3_status h3_manifest_seal(h3_manifest *m)
{
    h3_names_free(&m->names);
    for (size_t i = 0; i < m->n; i++) {
        const h3_entry *e = &m->entries[i];
        const int64_t other = h3_names_find(&m->names, e->name);
        if (other >= 0)
            return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\" is there twice (also in %s)",
                           m->files[e->file]->path, e->name,
                           m->files[m->entries[other].file]->path);
        if (!h3_names_add(&m->names, e->name, (uint32_t)i)) return no_memory();
    }
    return H3_OK;
}

static int by_offset(const void *pa, const void *pb)
{
    const h3_entry *a = *(const h3_entry *const *)pa, *b = *(const h3_entry *const *)pb;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* With is_strict, [begin, end) must be covered without hole or tail. */
h3_status h3_manifest_check_overlap(const h3_manifest *m, size_t from, bool is_strict, size_t begin,
                                    size_t end)
{
    const size_t n = m->n - from;
    const h3_entry **order = malloc((n ? n : 1) * sizeof *order), *last = NULL;
    h3_status st = H3_OK;
    size_t at = begin;

    if (!order) return no_memory();
    for (size_t i = 0; i < n; i++)
        order[i] = &m->entries[from + i];
    qsort(order, n, sizeof *order, by_offset);
    for (size_t i = 0; i < n && st == H3_OK; i++) {
        const h3_entry *e = order[i];
        const char *path = m->files[e->file]->path;
        if (e->bytes == 0) continue;
        if (e->offset < at)
            st = h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": its data overlaps that of \"%s\"", path,
                         e->name, last ? last->name : "the header");
        else if (is_strict && e->offset > at)
            st = h3_fail(H3_E_FORMAT, "%s: %zu unused bytes before tensor \"%s\"", path,
                         e->offset - at, e->name);
        at = e->offset + e->bytes;
        last = e;
    }
    if (st == H3_OK && is_strict && at != end)
        st = h3_fail(H3_E_FORMAT, "%s: %zu unused bytes at the end of the file",
                     m->files[m->n_files - 1]->path, end - at);
    free(order);
    return st;
}

/* ---- opening ---- */

static h3_status read_container(h3_manifest *m, const char *path)
{
    h3_file *f;
    bool is_gguf;

    H3_TRY(h3_file_map(&f, path));
    is_gguf = f->size >= 4 && memcmp(f->data, "GGUF", 4) == 0;
    if (is_gguf && h3_ends_with(path, ".safetensors")) is_gguf = false; // named there
    if (is_gguf || h3_ends_with(path, ".gguf")) return h3_gguf_read(m, f);
    return h3_safetensors_read(m, f);
}

/* A shard's name must be a relative path without "." or ".." steps. */
static bool is_inside(const char *name)
{
    if (name[0] == '/' || !*name || strchr(name, '\\')) return false;
    for (const char *p = name; p;) {
        const char *slash = strchr(p, '/');
        const size_t n = slash ? (size_t)(slash - p) : strlen(p);
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p = slash ? slash + 1 : NULL;
    }
    return true;
}

/* The file that an index names for tensor `name`, unless it was read for another one; `seen` has
 * the number of each. */
static h3_status read_shard(h3_manifest *m, const char *path, const char *dir, json_t *seen,
                            const char *name, const char *shard)
{
    if (!shard)
        return h3_fail(H3_E_FORMAT, "%s: weight_map: the file of \"%s\" is no string", path, name);
    if (json_object_get(seen, shard)) return H3_OK;
    if (!is_inside(shard))
        return h3_fail(H3_E_FORMAT,
                       "%s: weight_map: the file \"%s\" of \"%s\" is not inside the index's folder",
                       path, shard, name);
    if (json_object_size(seen) >= MAX_SHARDS)
        return h3_fail(H3_E_FORMAT, "%s: more than %d shards", path, MAX_SHARDS);
    if (json_object_set_new(seen, shard, json_integer(m->n_files)) != 0) return no_memory();
    char *file = h3_path_join(dir, shard);
    const h3_status st = read_container(m, file);
    free(file);
    return st == H3_E_MISSING ? h3_fail_in(st, "%s: a shard is missing", path) : st;
}

/* Every tensor is in the file that the index names for it. */
static h3_status check_shards(const h3_manifest *m, const char *path, json_t *seen, json_t *map)
{
    const char *name;
    json_t *v;

    json_object_foreach(map, name, v)
    {
        const h3_entry *e = h3_manifest_find(m, name);
        const json_int_t file = json_integer_value(json_object_get(seen, json_string_value(v)));
        if (!e || (json_int_t)e->file != file)
            return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\" is not in its shard %s", path, name,
                           json_string_value(v));
    }
    return H3_OK;
}

/* Every distinct shard once, in order of first mention. */
static h3_status read_shards(h3_manifest *m, const char *path, const char *dir, json_t *map)
{
    json_t *seen = json_object(), *v;
    h3_status st = seen ? H3_OK : no_memory();
    const char *name;

    json_object_foreach(map, name, v)
    {
        if (st == H3_OK) st = read_shard(m, path, dir, seen, name, json_string_value(v));
    }
    if (st == H3_OK) st = h3_manifest_seal(m);
    if (st == H3_OK) st = check_shards(m, path, seen, map);
    json_decref(seen);
    return st;
}

static h3_status read_index(h3_manifest *m, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? h3_strdupf("%.*s", (int)(slash - path), path) : h3_strdupf(".");
    json_t *top = NULL, *map;
    h3_status st = h3_json_load(&top, path);

    if (st != H3_OK) goto done;
    map = json_object_get(top, "weight_map");
    if (!json_is_object(top))
        st = h3_fail(H3_E_FORMAT, "%s: is no JSON object", path);
    else if (!json_is_object(map) || json_object_size(map) == 0)
        st = h3_fail(H3_E_FORMAT, "%s: weight_map is %s", path,
                     !map                  ? "missing"
                     : json_is_object(map) ? "empty"
                                           : "no object");
    else
        st = read_shards(m, path, dir, map);
    m->is_indexed = true;

done:
    json_decref(top);
    free(dir);
    return st;
}

/* The one file of a folder that stands for it: a usual name, an index, or the only container. NULL
 * with *n = how many candidates there are. */
static char *pick_in_folder(const char *dir, int *n)
{
    static const char *const usual[] = {"model.safetensors.index.json",
                                        "diffusion_pytorch_model.safetensors.index.json",
                                        "model.safetensors", "diffusion_pytorch_model.safetensors"};
    static const char *const kinds[] = {".safetensors.index.json", ".safetensors", ".gguf"};
    char *found = NULL;

    *n = 1;
    for (size_t k = 0; k < sizeof usual / sizeof *usual; k++) {
        char *path = h3_path_join(dir, usual[k]);
        if (h3_path_exists(path) && !h3_path_is_dir(path)) return path;
        free(path);
    }
    *n = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds && *n == 0; k++) {
        DIR *d = opendir(dir);
        const struct dirent *e;
        if (!d) return NULL;
        while ((e = readdir(d))) {
            char *path;
            if (e->d_name[0] == '.' || !h3_ends_with(e->d_name, kinds[k])) continue;
            if (k == 2 && strstr(e->d_name, "mmproj")) continue; // goes with the encoder's file
            path = h3_path_join(dir, e->d_name);
            if (h3_path_is_dir(path)) {
                free(path);
                continue;
            }
            free(found);
            found = path;
            ++*n;
        }
        closedir(d);
    }
    if (*n != 1) {
        free(found);
        found = NULL;
    }
    return found;
}

h3_status h3_manifest_locate(char **file, const char *path)
{
    int n;
    char *source;

    *file = NULL;
    if (!h3_path_is_dir(path)) {
        *file = h3_strdupf("%s", path);
        return H3_OK;
    }
    H3_TRY(h3_path_need(path, "folder"));
    *file = pick_in_folder(path, &n);
    if (*file) return H3_OK;
    if (n > 1)
        return h3_fail(H3_E_FORMAT, "%s: holds %d weight files and no index: name one of them",
                       path, n);
    source = h3_path_join(path, "source"); // the released video VAE
    *file = h3_path_is_dir(source) ? pick_in_folder(source, &n) : NULL;
    free(source);
    if (*file) return H3_OK;
    return h3_fail(H3_E_MISSING, "%s: holds no .safetensors, .gguf or .safetensors.index.json file",
                   path);
}

h3_status h3_manifest_open(h3_manifest **out, const char *path)
{
    h3_manifest *m = NULL;
    char *file = NULL;
    h3_status st;

    *out = NULL;
    H3_TRY(h3_manifest_locate(&file, path));
    m = calloc(1, sizeof *m);
    if (!m)
        st = no_memory();
    else if (h3_ends_with(file, ".json"))
        st = read_index(m, file);
    else if ((st = read_container(m, file)) == H3_OK)
        st = h3_manifest_seal(m);
    free(file);
    if (st != H3_OK) {
        h3_manifest_close(&m);
        return st;
    }
    *out = m;
    return H3_OK;
}

h3_status h3_manifest_append(h3_manifest *m, const char *path)
{
    H3_TRY(read_container(m, path));
    return h3_manifest_seal(m);
}

void h3_manifest_close(h3_manifest **mp)
{
    h3_manifest *m = mp ? *mp : NULL;

    if (!m) return;
    for (size_t i = 0; i < m->n; i++)
        free((void *)(uintptr_t)m->entries[i].name);
    for (uint32_t i = 0; i < m->n_files; i++)
        h3_file_unmap(&m->files[i]);
    for (size_t i = 0; i < m->n_meta; i++) {
        free(m->meta[i].key);
        free(m->meta[i].value);
    }
    for (size_t i = 0; i < m->n_lists; i++)
        free(m->lists[i].key);
    free(m->lists);
    free(m->meta);
    free(m->files);
    free(m->entries);
    h3_names_free(&m->names);
    free(m);
    *mp = NULL;
}

/* ---- asking ---- */

int64_t h3_manifest_count(const h3_manifest *m)
{
    return (int64_t)m->n;
}

const h3_entry *h3_manifest_at(const h3_manifest *m, int64_t i)
{
    return i >= 0 && (size_t)i < m->n ? &m->entries[i] : NULL;
}

const h3_entry *h3_manifest_find(const h3_manifest *m, const char *name)
{
    const int64_t i = h3_names_find(&m->names, name);
    return i < 0 ? NULL : &m->entries[i];
}

const char *h3_manifest_meta(const h3_manifest *m, const char *key)
{
    for (size_t i = 0; i < m->n_meta; i++)
        if (strcmp(m->meta[i].key, key) == 0) return m->meta[i].value;
    return NULL;
}

const h3_file *h3_manifest_file(const h3_manifest *m, uint32_t i)
{
    return i < m->n_files ? m->files[i] : NULL;
}

uint32_t h3_manifest_n_files(const h3_manifest *m)
{
    return m->n_files;
}

bool h3_manifest_is_gguf(const h3_manifest *m)
{
    return m->is_gguf;
}

bool h3_manifest_is_indexed(const h3_manifest *m)
{
    return m->is_indexed;
}
