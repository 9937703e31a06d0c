/**
 * The GGUF container, versions 2 and 3 (ggml/docs/gguf.md): magic, counts, key-values, tensor
 * infos, then aligned data. Stricter than the reference reader where it lets nonsense pass: five
 * dimensions, unaligned or overlapping data, shape overrides that do not fit.
 *
 * A cursor carries the position; every read checks what is left of the file, and every count is
 * checked against the bytes it would at least take before anything is allocated or looped over.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "manifest_impl.h"
#include "number.h"
#include "size.h"

enum { MAX_DIMS = 4, MAX_DEPTH = 4, MAX_ALIGN = 1 << 20, DEFAULT_ALIGN = 32 };

enum {
    T_U8,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STRING,
    T_ARRAY,
    T_U64,
    T_I64,
    T_F64,
    T_COUNT
};
static const uint8_t value_bytes[T_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

#define SHAPE_KEY "comfy.gguf.orig_shape."

/* A shape override, remembered until the tensors are known. */
typedef struct override {
    char *name;
    const unsigned char *at; ///< elements
    uint32_t type;
    uint64_t n;
} override;

typedef struct reader {
    h3_manifest *m;
    const h3_file *f;
    uint32_t file;
    size_t at;
    uint32_t align;
    override *over;
    size_t n_over, cap_over;
    h3_name_table keys;
} reader;

static h3_status truncated(const reader *r, const char *what)
{
    return h3_fail(H3_E_FORMAT, "%s: truncated: the file ends inside %s", r->f->path, what);
}

static h3_status take(reader *r, void *out, size_t n, const char *what)
{
    if (r->f->size - r->at < n) return truncated(r, what);
    memcpy(out, r->f->data + r->at, n); // GGUF and all our hosts are little-endian
    r->at += n;
    return H3_OK;
}

/* A length and its bytes; *s points into the file. */
static h3_status take_string(reader *r, const char **s, size_t *n, const char *what)
{
    uint64_t len;

    H3_TRY(take(r, &len, 8, what));
    if (len > r->f->size - r->at)
        return h3_fail(H3_E_FORMAT,
                       "%s: truncated: %s: a string of %" PRIu64 " bytes does not fit in the file",
                       r->f->path, what, len);
    *s = (const char *)r->f->data + r->at;
    *n = (size_t)len;
    r->at += *n;
    return H3_OK;
}

/* ---- key-values ---- */

static h3_status skip_array(reader *r, const char *key, int depth);

static h3_status skip_value(reader *r, const char *key, uint32_t type, int depth)
{
    const char *s;
    size_t n;

    if (type >= T_COUNT)
        return h3_fail(H3_E_FORMAT, "%s: \"%s\": value type %" PRIu32 " is unknown", r->f->path,
                       key, type);
    if (type == T_STRING) return take_string(r, &s, &n, key);
    if (type == T_ARRAY) return skip_array(r, key, depth + 1);
    if (r->f->size - r->at < value_bytes[type]) return truncated(r, key);
    r->at += value_bytes[type];
    return H3_OK;
}

static h3_status array_head(reader *r, const char *key, uint32_t *type, uint64_t *n)
{
    H3_TRY(take(r, type, 4, key));
    H3_TRY(take(r, n, 8, key));
    if (*type >= T_COUNT)
        return h3_fail(H3_E_FORMAT, "%s: \"%s\": array of type %" PRIu32 ", which is unknown",
                       r->f->path, key, *type);
    const size_t least = *type == T_STRING ? 8 : *type == T_ARRAY ? 12 : value_bytes[*type];
    if (*n > (r->f->size - r->at) / least)
        return h3_fail(H3_E_FORMAT, "%s: \"%s\": array of %" PRIu64 " elements does not fit",
                       r->f->path, key, *n);
    return H3_OK;
}

static h3_status skip_array(reader *r, const char *key, int depth)
{
    uint32_t type;
    uint64_t n;

    if (depth > MAX_DEPTH)
        return h3_fail(H3_E_FORMAT, "%s: \"%s\": arrays nested deeper than %d", r->f->path, key,
                       MAX_DEPTH);
    H3_TRY(array_head(r, key, &type, &n));
    if (type != T_STRING && type != T_ARRAY) {
        r->at += (size_t)n * value_bytes[type];
        return H3_OK;
    }
    for (uint64_t i = 0; i < n; i++)
        H3_TRY(skip_value(r, key, type, depth));
    return H3_OK;
}

static h3_status no_memory(const reader *r)
{
    return h3_fail(H3_E_NOMEM, "%s: no memory for its header", r->f->path);
}

/* Remembers where a top-level array of strings or integers or a shape override lies. */
static h3_status note_array(reader *r, const char *key)
{
    const size_t start = r->at;
    uint32_t type;
    uint64_t n;

    H3_TRY(array_head(r, key, &type, &n));
    if (strncmp(key, SHAPE_KEY, strlen(SHAPE_KEY)) == 0) {
        if (r->n_over == r->cap_over) {
            const size_t cap = r->cap_over ? 2 * r->cap_over : 64;
            override *o = realloc(r->over, cap * sizeof *o);
            if (!o) return no_memory(r);
            r->over = o;
            r->cap_over = cap;
        }
        r->over[r->n_over++] =
            (override){h3_strdupf("%s", key + strlen(SHAPE_KEY)), r->f->data + r->at, type, n};
    } else if (type == T_STRING || type == T_I32 || type == T_U32) {
        h3_string_list *l = realloc(r->m->lists, (r->m->n_lists + 1) * sizeof *l);
        if (!l) return no_memory(r);
        r->m->lists = l;
        l[r->m->n_lists++] =
            (h3_string_list){h3_strdupf("%s", key), r->f->data + r->at, n, type != T_STRING};
    }
    r->at = start;
    return skip_array(r, key, 1);
}

/* Scalars are kept as text, so that one look-up serves both containers. */
static void scalar_text(char *s, size_t n, uint32_t type, const unsigned char *p)
{
    uint64_t u = 0;
    float f;
    double d;

    memcpy(&u, p, value_bytes[type]);
    memcpy(&f, p, type == T_F32 ? 4 : 0);
    memcpy(&d, p, type == T_F64 ? 8 : 0);
    switch (type) {
    case T_I8:
        snprintf(s, n, "%d", (int)(int8_t)u);
        break;
    case T_I16:
        snprintf(s, n, "%d", (int)(int16_t)u);
        break;
    case T_I32:
        snprintf(s, n, "%" PRId32, (int32_t)u);
        break;
    case T_I64:
        snprintf(s, n, "%" PRId64, (int64_t)u);
        break;
    case T_F32:
        h3_number_write(s, n, "%.9g", (double)f);
        break;
    case T_F64:
        h3_number_write(s, n, "%.17g", d);
        break;
    case T_BOOL:
        snprintf(s, n, "%s", u ? "true" : "false");
        break;
    default:
        snprintf(s, n, "%" PRIu64, u);
        break;
    }
}

static h3_status read_alignment(reader *r, uint32_t type)
{
    uint32_t a = 0;

    if (type != T_U32)
        return h3_fail(H3_E_FORMAT, "%s: general.alignment is no 32-bit number", r->f->path);
    if (r->f->size - r->at < 4) return truncated(r, "general.alignment");
    memcpy(&a, r->f->data + r->at, 4);
    if (a < 8 || a > MAX_ALIGN || (a & (a - 1)))
        return h3_fail(H3_E_FORMAT,
                       "%s: general.alignment %" PRIu32 " is no power of two from 8 to %d",
                       r->f->path, a, MAX_ALIGN);
    r->align = a;
    return H3_OK;
}

static h3_status read_pair(reader *r)
{
    const char *s, *key;
    size_t n;
    uint32_t type;
    char text[40] = "";

    H3_TRY(take_string(r, &s, &n, "a metadata key"));
    H3_TRY(h3_manifest_add_meta(r->m, s, n, "", 0));
    key = r->m->meta[r->m->n_meta - 1].key;
    if (h3_names_find(&r->keys, key) >= 0)
        return h3_fail(H3_E_FORMAT, "%s: metadata key \"%s\" is there twice", r->f->path, key);
    if (!h3_names_add(&r->keys, key, 0)) return no_memory(r);
    H3_TRY(take(r, &type, 4, "a metadata value's type"));
    if (strcmp(key, "general.alignment") == 0) H3_TRY(read_alignment(r, type));
    if (type == T_ARRAY) return note_array(r, key);
    if (strncmp(key, SHAPE_KEY, strlen(SHAPE_KEY)) == 0)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": its shape override is no array", r->f->path,
                       key + strlen(SHAPE_KEY));
    if (type == T_STRING) {
        char *value;
        H3_TRY(take_string(r, &s, &n, key));
        value = h3_strdupf("%.*s", (int)(n < 1 << 20 ? n : 1 << 20), s);
        free(r->m->meta[r->m->n_meta - 1].value);
        r->m->meta[r->m->n_meta - 1].value = value;
        return H3_OK;
    }
    const size_t at = r->at;
    H3_TRY(skip_value(r, key, type, 0));
    scalar_text(text, sizeof text, type, r->f->data + at);
    free(r->m->meta[r->m->n_meta - 1].value);
    r->m->meta[r->m->n_meta - 1].value = h3_strdupf("%s", text);
    return H3_OK;
}

/* ---- tensors ---- */

static bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)s[i];
        const size_t more = c < 0x80                ? 0
                            : c >= 0xc2 && c < 0xe0 ? 1
                            : c >= 0xe0 && c < 0xf0 ? 2
                            : c >= 0xf0 && c < 0xf5 ? 3
                                                    : SIZE_MAX;
        if (more > n - i - 1) return false;
        for (size_t k = 1; k <= more; k++)
            if (((unsigned char)s[i + k] & 0xc0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}

static h3_status bad(const reader *r, const char *name, const char *what)
{
    return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": %s", r->f->path, name, what);
}

static uint8_t dtype_of(uint32_t type)
{
    static const struct {
        uint8_t ggml, dtype;
    } plain[] = {{0, H3_F32},  {1, H3_F16},  {24, H3_I8},  {25, H3_I16},
                 {26, H3_I32}, {27, H3_I64}, {28, H3_F64}, {30, H3_BF16}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (plain[i].ggml == type) return plain[i].dtype;
    return H3_DTYPE_COUNT;
}

/* Extents (stored innermost first) and the byte count. */
static h3_status read_extents(reader *r, const char *name, h3_entry *e, uint64_t ne[MAX_DIMS],
                              size_t *n)
{
    uint32_t dims;

    H3_TRY(take(r, &dims, 4, "a tensor's dimensions"));
    if (dims > MAX_DIMS)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": %" PRIu32 " dimensions, more than %d",
                       r->f->path, name, dims, MAX_DIMS);
    e->rank = (uint8_t)dims;
    *n = 1;
    for (uint32_t i = 0; i < dims; i++) {
        H3_TRY(take(r, &ne[i], 8, "a tensor's dimensions"));
        if (ne[i] > INT64_MAX || !h3_mul_size(*n, (size_t)ne[i], n) || *n > INT64_MAX)
            return bad(r, name, "its dimensions are negative or too large");
        e->ne[dims - 1 - i] = (int64_t)ne[i];
    }
    return H3_OK;
}

static h3_status read_tensor(reader *r)
{
    h3_entry e = {.file = r->file};
    uint64_t ne[MAX_DIMS] = {1, 1, 1, 1}, offset;
    const char *s;
    size_t n_name, n;
    uint32_t type;
    char *name;

    H3_TRY(take_string(r, &s, &n_name, "a tensor name"));
    if (!is_utf8(s, n_name) || memchr(s, 0, n_name))
        return h3_fail(H3_E_FORMAT, "%s: a tensor name is no UTF-8 text", r->f->path);
    if (n_name > 1024)
        return h3_fail(H3_E_FORMAT, "%s: a tensor name of %zu bytes", r->f->path, n_name);
    H3_TRY(h3_manifest_add(r->m, &e, s, n_name)); // filled in below; its name serves messages
    name = (char *)(uintptr_t)r->m->entries[r->m->n - 1].name;
    H3_TRY(read_extents(r, name, &e, ne, &n));
    H3_TRY(take(r, &type, 4, "a tensor's type"));
    H3_TRY(take(r, &offset, 8, "a tensor's offset"));
    const h3_ggml_info info = h3_ggml_type(type);
    if (!info.name)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": type %" PRIu32 " is unknown", r->f->path,
                       name, type);
    if (ne[0] % info.block)
        return h3_fail(H3_E_FORMAT,
                       "%s: tensor \"%s\": rows of %" PRIu64 " do not divide into %s blocks of %d",
                       r->f->path, name, ne[0], info.name, info.block);
    if (!h3_mul_size(n / info.block, info.bytes, &e.bytes) || e.bytes > INT64_MAX)
        return bad(r, name, "is too large for any file");
    if (offset % r->align)
        return h3_fail(H3_E_FORMAT,
                       "%s: tensor \"%s\": offset %" PRIu64
                       " is no multiple of the alignment %" PRIu32,
                       r->f->path, name, offset, r->align);
    e.dtype = dtype_of(type);
    e.ggml_type = (uint8_t)type;
    e.offset = (size_t)offset; // from the data section; made absolute when that is known
    for (int i = e.rank; i < 8; i++)
        e.ne[i] = 1;
    e.name = name;
    r->m->entries[r->m->n - 1] = e;
    return H3_OK;
}

static h3_status place_tensors(reader *r, size_t from)
{
    const size_t start = h3_align_up(r->at, r->align);
    const size_t space = start < r->f->size ? r->f->size - start : 0;

    for (size_t i = from; i < r->m->n; i++) {
        h3_entry *e = &r->m->entries[i];
        if (e->offset > space || e->bytes > space - e->offset)
            return h3_fail(H3_E_FORMAT,
                           "%s: tensor \"%s\": its %zu bytes at %zu end beyond the "
                           "file (is it truncated?)",
                           r->f->path, e->name, e->bytes, e->offset);
        e->offset += start;
        e->data = r->f->data + e->offset;
    }
    return h3_manifest_check_overlap(r->m, from, false, start, r->f->size);
}

/* ---- shape overrides ---- */

static h3_status apply_override(reader *r, const override *o, h3_entry *e)
{
    int64_t ne[8] = {1, 1, 1, 1, 1, 1, 1, 1}, have = 1, want = 1;

    if (o->type == T_F32 || o->type == T_F64 || o->type == T_BOOL || o->type == T_STRING ||
        o->type == T_ARRAY)
        return bad(r, e->name, "its shape override holds no integers");
    if (o->n < 1 || o->n > 8) return bad(r, e->name, "its shape override has no 1 to 8 dimensions");
    for (uint64_t i = 0; i < o->n; i++) {
        const unsigned char *p = o->at + i * value_bytes[o->type];
        uint64_t u = 0;
        memcpy(&u, p, value_bytes[o->type]);
        ne[i] = o->type == T_I32   ? (int32_t)u
                : o->type == T_I8  ? (int8_t)u
                : o->type == T_I16 ? (int16_t)u
                                   : (int64_t)u;
        if (ne[i] <= 0 || !h3_mul_i64(want, ne[i], &want))
            return bad(r, e->name, "its shape override is negative or too large");
    }
    for (int i = 0; i < e->rank; i++)
        have *= e->ne[i]; // checked when it was read
    if (have != want)
        return h3_fail(H3_E_FORMAT,
                       "%s: tensor \"%s\": its shape override is for %lld values, it "
                       "has %lld",
                       r->f->path, e->name, (long long)want, (long long)have);
    e->rank = (uint8_t)o->n;
    memcpy(e->ne, ne, sizeof ne);
    return H3_OK;
}

static h3_status apply_overrides(reader *r, size_t from)
{
    h3_name_table t = {0};
    h3_status st = H3_OK;

    if (!r->n_over) return H3_OK;
    for (size_t i = from; i < r->m->n && st == H3_OK; i++)
        if (h3_names_find(&t, r->m->entries[i].name) < 0 &&
            !h3_names_add(&t, r->m->entries[i].name, (uint32_t)i))
            st = no_memory(r);
    for (size_t i = 0; i < r->n_over && st == H3_OK; i++) {
        const int64_t at = h3_names_find(&t, r->over[i].name);
        if (at >= 0) st = apply_override(r, &r->over[i], &r->m->entries[at]);
    }
    h3_names_free(&t);
    return st;
}

/* ---- the file ---- */

static h3_status check_magic(const h3_file *f)
{
    static const char *const hint = "; it looks like a safetensors file: rename it";
    bool is_st;

    if (f->size < 4) return h3_fail(H3_E_FORMAT, "%s: file too short: %zu bytes", f->path, f->size);
    if (memcmp(f->data, "GGUF", 4) == 0) return H3_OK;
    is_st = f->size > 8 && f->data[8] == '{';
    return h3_fail(H3_E_FORMAT, "%s: magic is not GGUF%s", f->path, is_st ? hint : "");
}

static h3_status read_file(reader *r)
{
    const size_t from = r->m->n;
    uint32_t version = 0;
    uint64_t n_tensors, n_kv;

    H3_TRY(check_magic(r->f));
    r->at = 4;
    H3_TRY(take(r, &version, 4, "the version"));
    if (version != 2 && version != 3)
        return h3_fail(H3_E_FORMAT, "%s: GGUF version %" PRIu32 " is not supported (2 and 3 are)%s",
                       r->f->path, version,
                       (version & 0xffff) == 0 ? "; big-endian files are not supported" : "");
    H3_TRY(take(r, &n_tensors, 8, "the counts"));
    H3_TRY(take(r, &n_kv, 8, "the counts"));
    const size_t left = r->f->size - r->at;
    if (n_tensors > left / 24) // the least that a tensor info takes
        return n_tensors > 1 << 20 || n_tensors > left
                   ? h3_fail(H3_E_FORMAT, "%s: tensor count %" PRIu64 " does not fit in the file",
                             r->f->path, n_tensors)
                   : truncated(r, "the tensor list");
    if (n_kv > left / 13)
        return n_kv > left
                   ? h3_fail(H3_E_FORMAT, "%s: metadata count %" PRIu64 " does not fit in the file",
                             r->f->path, n_kv)
                   : truncated(r, "the metadata");
    for (uint64_t i = 0; i < n_kv; i++)
        H3_TRY(read_pair(r));
    for (uint64_t i = 0; i < n_tensors; i++)
        H3_TRY(read_tensor(r));
    H3_TRY(place_tensors(r, from));
    return apply_overrides(r, from);
}

h3_status h3_gguf_read(h3_manifest *m, h3_file *f)
{
    reader r = {.m = m, .f = f, .align = DEFAULT_ALIGN};
    h3_status st;

    H3_TRY(h3_manifest_add_file(m, f, &r.file)); // m owns f from here on
    m->is_gguf = true;
    st = read_file(&r);
    for (size_t i = 0; i < r.n_over; i++)
        free(r.over[i].name);
    free(r.over);
    h3_names_free(&r.keys);
    return st;
}

/* ---- arrays ---- */

static const h3_string_list *find_list(const h3_manifest *m, const char *key, bool is_ints)
{
    for (size_t i = 0; i < m->n_lists; i++)
        if (m->lists[i].is_ints == is_ints && strcmp(m->lists[i].key, key) == 0)
            return &m->lists[i];
    return NULL;
}

int64_t h3_manifest_n_strings(const h3_manifest *m, const char *key)
{
    const h3_string_list *l = find_list(m, key, false);
    return l ? (int64_t)l->n : -1;
}

void h3_manifest_strings(const h3_manifest *m, const char *key,
                         void (*visit)(void *user, int64_t i, const char *s, size_t n), void *user)
{
    const h3_string_list *l = find_list(m, key, false);
    const unsigned char *p = l ? l->at : NULL;

    for (uint64_t k = 0; l && k < l->n; k++) { // lengths were checked while reading
        uint64_t len;
        memcpy(&len, p, 8);
        visit(user, (int64_t)k, (const char *)p + 8, (size_t)len);
        p += 8 + len;
    }
}

bool h3_manifest_ints(const h3_manifest *m, const char *key, int32_t *out, int64_t n)
{
    const h3_string_list *l = find_list(m, key, true);

    if (!l || l->n != (uint64_t)n) return false;
    memcpy(out, l->at, (size_t)n * sizeof *out);
    return true;
}
