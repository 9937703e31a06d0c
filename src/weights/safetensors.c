/**
 * The safetensors container: u64 header length, a JSON object name -> {dtype, shape, data_offsets},
 * then the data. Rules as in the reference reader (safetensors 0.5, `SafeTensors::deserialize`):
 * the tensors cover the data section without overlap, hole or tail; sizes agree with shapes.
 * Nothing is allocated from a number of the file before that number was checked against the file's
 * size.
 */
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "manifest_impl.h"
#include "packing.h"
#include "size.h"

enum { MAX_RANK = 8 };

static uint64_t load64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* Names what a file is that people save in place of weights; NULL when it is none of these. */
static const char *foreign(const unsigned char *p, size_t n)
{
    static const struct {
        const char *magic;
        size_t at;
        const char *what;
    } known[] = {
        {"GGUF", 0, "a GGUF file under another name: rename it to .gguf"},
        {"version https://git-lfs", 0, "a Git LFS pointer, not the file itself: run git lfs pull"},
        {"PK\003\004", 0, "a zip archive (a torch pickle?): convert it to safetensors"},
        {"\x80\x02", 0, "a Python pickle: convert it to safetensors"},
        {"\x80\x04", 0, "a Python pickle: convert it to safetensors"},
        {"<!DOCTYPE", 0, "a web page saved in place of the file: download it again"},
        {"<!doctype", 0, "a web page saved in place of the file: download it again"},
        {"<html", 0, "a web page saved in place of the file: download it again"},
        {"ftyp", 4, "a film (MP4)"},
        {"\x1a\x45\xdf\xa3", 0, "a film (Matroska or WebM)"},
        {"RIFF", 0, "a sound, film or picture (WAV, AVI, WebP)"},
        {"ID3", 0, "a sound (MP3)"},
        {"OggS", 0, "a sound (Ogg)"},
        {"fLaC", 0, "a sound (FLAC)"},
        {"\x89PNG", 0, "a picture (PNG)"},
        {"\xff\xd8\xff", 0, "a picture (JPEG)"},
        {"GIF8", 0, "a picture (GIF)"},
        {"%PDF", 0, "a PDF document"},
        {"SQLite format 3", 0, "a database"},
        {"\x1f\x8b", 0, "a gzip archive: unpack it"},
        {"7z\xbc\xaf", 0, "a 7z archive: unpack it"},
        {"Rar!", 0, "a RAR archive: unpack it"},
        {"\x7f"
         "ELF",
         0, "a program"},
        {"#!", 0, "a script"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const size_t len = strlen(known[i].magic), end = known[i].at + len;
        if (n >= end && memcmp(p + known[i].at, known[i].magic, len) == 0) return known[i].what;
    }
    if (n < 16) return NULL;
    for (size_t i = 0; i < 16; i++) // a length below 2^56 has a zero byte; text has none
        if (p[i] < 0x20 && p[i] != '\t' && p[i] != '\n' && p[i] != '\r') return NULL;
    return p[0] == '{' || p[0] == '[' ? "a JSON file" : "a text";
}

static h3_status bad(const h3_file *f, const char *name, const char *what)
{
    return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": %s", f->path, name, what);
}

/* Element count of a shape; every extent a nonnegative integer, the product and its bytes in range.
 */
static h3_status read_shape(const h3_file *f, const char *name, const json_t *shape, h3_entry *e)
{
    size_t bytes = h3_dtype_bytes((h3_dtype)e->dtype);

    if (!json_is_array(shape)) return bad(f, name, "has no shape that is an array");
    if (json_array_size(shape) > MAX_RANK)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": has %zu dimensions, more than %d", f->path,
                       name, json_array_size(shape), MAX_RANK);
    e->rank = (uint8_t)json_array_size(shape);
    for (int i = 0; i < e->rank; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad(f, name, "shape holds something that is no nonnegative integer");
        e->ne[i] = json_integer_value(v);
        if (!h3_mul_size(bytes, (size_t)e->ne[i], &bytes) || bytes > INT64_MAX)
            return bad(f, name, "shape is too large for any file");
    }
    e->bytes = bytes;
    return H3_OK;
}

static h3_status read_offsets(const h3_file *f, const char *name, const json_t *off, size_t base,
                              h3_entry *e)
{
    const size_t space = f->size - base;
    int64_t v[2];

    if (!json_is_array(off) || json_array_size(off) != 2)
        return bad(f, name, "data_offsets is no pair [begin, end]");
    for (int i = 0; i < 2; i++) {
        const json_t *o = json_array_get(off, (size_t)i);
        if (!json_is_integer(o) || json_integer_value(o) < 0)
            return bad(f, name, "data_offsets holds something that is no nonnegative integer");
        v[i] = json_integer_value(o);
    }
    if (v[0] > v[1]) return bad(f, name, "data_offsets end before they begin");
    if ((uint64_t)v[1] > space)
        return h3_fail(H3_E_FORMAT,
                       "%s: tensor \"%s\": data ends at %lld, beyond the %zu bytes of the data "
                       "section (is the file cut?)",
                       f->path, name, (long long)v[1], space);
    if ((size_t)(v[1] - v[0]) != e->bytes)
        return h3_fail(H3_E_FORMAT,
                       "%s: tensor \"%s\": has %lld bytes, its shape and type need %zu", f->path,
                       name, (long long)(v[1] - v[0]), e->bytes);
    e->offset = base + (size_t)v[0];
    e->data = f->data + e->offset;
    return H3_OK;
}

static h3_status read_entry(h3_manifest *m, const h3_file *f, uint32_t file, size_t base,
                            const char *name, const json_t *j, const json_t *head)
{
    const char *type = json_string_value(json_object_get(j, "dtype"));
    h3_entry e = {.file = file};
    h3_dtype t;

    if (!json_is_object(j)) return bad(f, name, "its header entry is no object");
    if (!type) return bad(f, name, "has no dtype that is a string");
    if (!h3_dtype_parse(type, &t)) return h3_packing_dtype(f->path, name, type, head);
    e.dtype = (uint8_t)t;
    H3_TRY(read_shape(f, name, json_object_get(j, "shape"), &e));
    H3_TRY(read_offsets(f, name, json_object_get(j, "data_offsets"), base, &e));
    return h3_manifest_add(m, &e, name, strlen(name));
}

static h3_status read_metadata(h3_manifest *m, const h3_file *f, json_t *meta)
{
    const char *key;
    json_t *v;

    if (json_is_null(meta)) return H3_OK; // some writers' none; the format's own reader takes it
    if (!json_is_object(meta))
        return h3_fail(H3_E_FORMAT, "%s: __metadata__ is no object", f->path);
    json_object_foreach(meta, key, v)
    {
        if (!json_is_string(v))
            return h3_fail(H3_E_FORMAT, "%s: __metadata__: \"%s\" is no string", f->path, key);
        H3_TRY(
            h3_manifest_add_meta(m, key, strlen(key), json_string_value(v), json_string_length(v)));
    }
    return H3_OK;
}

static h3_status read_header(h3_manifest *m, const h3_file *f, uint32_t file, json_t *head,
                             size_t base)
{
    const size_t from = m->n;
    const char *name;
    json_t *v;

    if (!json_is_object(head)) return h3_fail(H3_E_FORMAT, "%s: header is no JSON object", f->path);
    json_object_foreach(head, name, v)
    {
        if (strcmp(name, "__metadata__") != 0)
            H3_TRY(read_entry(m, f, file, base, name, v, head));
        else if (file == 0)
            H3_TRY(read_metadata(m, f, v));
    }
    return h3_manifest_check_overlap(m, from, true, base, f->size);
}

h3_status h3_safetensors_read(h3_manifest *m, h3_file *f)
{
    h3_status st;
    uint32_t file;
    uint64_t len;
    json_t *head;
    char *what;

    H3_TRY(h3_manifest_add_file(m, f, &file)); // m owns f from here on
    if (f->size) {
        const char *other = foreign(f->data, f->size);
        if (other)
            return h3_fail(H3_E_FORMAT, "%s: no safetensors header: this is %s", f->path, other);
    }
    if (f->size < 8)
        return h3_fail(H3_E_FORMAT, "%s: file too short: %zu bytes hold no header length", f->path,
                       f->size);
    len = load64(f->data);
    if (len > f->size - 8)
        return h3_fail(H3_E_FORMAT,
                       "%s: header length %llu does not fit in the file's %zu bytes (cut, or no "
                       "safetensors file)",
                       f->path, (unsigned long long)len, f->size);
    if (len < 2 || f->data[8] != '{')
        return h3_fail(H3_E_FORMAT, "%s: header does not begin with '{': no safetensors file",
                       f->path);
    what = h3_strdupf("%s: header", f->path);
    st = h3_json_parse(&head, (const char *)f->data + 8, (size_t)len, what);
    free(what);
    if (st != H3_OK) return st;
    st = read_header(m, f, file, head, 8 + (size_t)len);
    json_decref(head);
    return st;
}
