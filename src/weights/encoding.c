/**
 * Encodings; see encoding.h. What a matrix is follows from its own companions and descriptor, never
 * from the file: files mix encodings. Descriptors are ComfyUI's: a ".comfy_quant" tensor of JSON
 * text, the file's _quantization_metadata, or a GGUF's comfy.gguf.quant.<tensor>.
 */
#include "encoding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "json.h"
#include "size.h"

void *h3_keep_alloc(h3_keep *k, size_t bytes)
{
    void *p;

    if (k->n == k->cap) {
        const size_t cap = k->cap ? 2 * k->cap : 32;
        void **grown = realloc(k->block, cap * sizeof *grown);
        if (!grown) return NULL;
        k->block = grown;
        k->cap = cap;
    }
    p = malloc(bytes ? bytes : 1);
    if (!p) return NULL;
    k->block[k->n++] = p;
    k->bytes += bytes;
    return p;
}

void h3_keep_free(h3_keep *k)
{
    for (size_t i = 0; i < k->n; i++)
        free(k->block[i]);
    free(k->block);
    memset(k, 0, sizeof *k);
}

typedef enum format {
    FMT_PLAIN = 0,
    FMT_FP8,
    FMT_MXFP8,
    FMT_INT8,
    FMT_W4A8,
    FMT_NVFP4,
    FMT_GGML
} format;

typedef struct descriptor {
    format fmt;
    int64_t convrot; ///< group, 0: not rotated
    int64_t group;   ///< columns per block scale, W4A8
} descriptor;

static h3_status bad(const h3_quant_rules *r, const h3_entry *e, const char *what)
{
    return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": %s", h3_manifest_file(r->m, e->file)->path,
                   e->name, what);
}

static int64_t numel(const h3_entry *e)
{
    int64_t n = 1; // the container checked that the product fits
    for (int i = 0; i < e->rank; i++)
        n *= e->ne[i];
    return n;
}

/* ---- descriptors ---- */

static h3_status read_group(const h3_quant_rules *r, const h3_entry *e, const json_t *j,
                            const char *key, int64_t usual, int64_t *out)
{
    const json_t *v = json_object_get(j, key);

    *out = usual;
    if (!v) return H3_OK;
    if (!json_is_integer(v) || json_integer_value(v) <= 0 || json_integer_value(v) > 1 << 20)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": descriptor: %s is no sensible number",
                       h3_manifest_file(r->m, e->file)->path, e->name, key);
    *out = json_integer_value(v);
    return H3_OK;
}

static h3_status read_descriptor(const h3_quant_rules *r, const h3_entry *e, const json_t *j,
                                 descriptor *d)
{
    static const struct {
        const char *name;
        format fmt;
    } known[] = {{"float8_e4m3fn", FMT_FP8},
                 {"mxfp8", FMT_MXFP8},
                 {"int8_tensorwise", FMT_INT8},
                 {"asym_w4a8_int8", FMT_W4A8},
                 {"nvfp4", FMT_NVFP4}};
    const char *name = json_string_value(json_object_get(j, "format"));
    const json_t *rot = json_object_get(j, "convrot");
    size_t k = 0;

    if (!json_is_object(j)) return bad(r, e, "descriptor is no JSON object");
    if (!name) return bad(r, e, "descriptor has no \"format\"");
    while (k < sizeof known / sizeof *known && strcmp(known[k].name, name) != 0)
        k++;
    if (k == sizeof known / sizeof *known)
        return h3_fail(H3_E_UNSUPPORTED,
                       "%s: tensor \"%s\": quantization format \"%.60s\" is not "
                       "one that this program decodes",
                       h3_manifest_file(r->m, e->file)->path, e->name, name);
    d->fmt = known[k].fmt;
    const bool rotated = d->fmt == FMT_W4A8 ? !json_is_false(rot) : json_is_true(rot);
    H3_TRY(read_group(r, e, j, "convrot_groupsize", 256, &d->convrot));
    /* ComfyUI-GGUF: the flag exists because older files name the group but were left unrotated. */
    if (!rotated ||
        (h3_manifest_is_gguf(r->m) && !json_is_true(json_object_get(j, "weight_rotated"))))
        d->convrot = 0;
    return read_group(r, e, j, "group_size", 16, &d->group);
}

/* Module name of a tensor: without prefix and ".weight". malloc'd. */
static char *module_of(const h3_quant_rules *r, const h3_entry *e, bool keep_prefix)
{
    const char *s = keep_prefix ? e->name : h3_names_strip(r->prefix, e->name);
    size_t n = strlen(s);
    if (n > 7 && strcmp(s + n - 7, ".weight") == 0) n -= 7;
    return h3_strdupf("%.*s", (int)n, s);
}

static json_t *file_descriptor(const h3_quant_rules *r, const h3_entry *e)
{
    json_t *j = NULL;
    for (int keep = 0; keep < 2 && !j && r->layers; keep++) {
        char *module = module_of(r, e, keep);
        j = json_object_get(r->layers, module);
        free(module);
    }
    return j;
}

static h3_status parse_text(const h3_quant_rules *r, const h3_entry *e, const char *text, size_t n,
                            descriptor *d)
{
    char *what = h3_strdupf("%s: tensor \"%s\": its quantization descriptor",
                            h3_manifest_file(r->m, e->file)->path, e->name);
    json_t *j;
    h3_status st = h3_json_parse(&j, text, n, what);

    free(what);
    if (st != H3_OK) return st;
    st = read_descriptor(r, e, j, d);
    json_decref(j);
    return st;
}

/* Without a descriptor, companions and dtype decide. */
static format guess(const h3_source *s)
{
    const h3_entry *scale = s->companion[H3_COMP_SCALE];

    switch (s->e->dtype) {
    case H3_DTYPE_COUNT:
        return FMT_GGML;
    case H3_U8:
        return s->companion[H3_COMP_SCALE_2] || scale ? FMT_NVFP4 : FMT_PLAIN;
    case H3_I8:
        return s->companion[H3_COMP_S_REL] ? FMT_W4A8 : scale ? FMT_INT8 : FMT_PLAIN;
    case H3_F8_E4M3:
        return scale && (scale->dtype == H3_U8 || scale->dtype == H3_F8_E8M0) ? FMT_MXFP8 : FMT_FP8;
    default:
        return FMT_PLAIN;
    }
}

static h3_status describe(const h3_quant_rules *r, const h3_source *s, descriptor *d)
{
    const h3_entry *tag = s->companion[H3_COMP_TAG], *e = s->e;
    const json_t *layer;

    *d = (descriptor){.fmt = guess(s), .group = 16};
    if (d->fmt == FMT_W4A8) d->convrot = 256;
    if (tag) {
        size_t n = tag->bytes;
        if (tag->dtype != H3_U8 && tag->dtype != H3_I8)
            return bad(r, tag, "a quantization descriptor must be bytes");
        while (n > 0 && tag->data[n - 1] == 0)
            n--;
        return parse_text(r, tag, (const char *)tag->data, n, d);
    }
    if ((layer = file_descriptor(r, e))) return read_descriptor(r, e, layer, d);
    if (h3_manifest_is_gguf(r->m)) {
        char *key = h3_strdupf("comfy.gguf.quant.%s", e->name);
        const char *text = h3_manifest_meta(r->m, key);
        free(key);
        if (text) return parse_text(r, e, text, strlen(text), d);
    }
    return H3_OK;
}

/* ---- companions ---- */

/* The values of a companion as f32: mapped when it is F32, else widened into `keep`. All finite. */
static h3_status floats_of(const h3_quant_rules *r, const h3_entry *c, h3_keep *keep,
                           const void **out, int64_t *n)
{
    float v;

    *n = numel(c);
    if (c->dtype != H3_F32 && c->dtype != H3_BF16 && c->dtype != H3_F16)
        return bad(r, c, "scales must be F32, BF16 or F16");
    *out = c->data;
    if (c->dtype != H3_F32) {
        float *f = h3_keep_alloc(keep, (size_t)*n * sizeof *f);
        if (!f) return h3_fail(H3_E_NOMEM, "no memory for the scales \"%s\"", c->name);
        h3_decode_dtype((h3_dtype)c->dtype, c->data, *n, f);
        *out = f;
    }
    for (int64_t i = 0; i < *n; i++) {
        memcpy(&v, (const unsigned char *)*out + 4 * i, 4);
        if (!(fabsf(v) <= 1e15f)) return bad(r, c, "holds a value that is not finite, or absurd");
    }
    return H3_OK;
}

/* One f32 per matrix or per row. */
static h3_status row_scales(const h3_quant_rules *r, const h3_source *s, h3_keep *keep,
                            h3_weight_part *p)
{
    const h3_entry *c = s->companion[H3_COMP_SCALE];

    H3_TRY(floats_of(r, c, keep, &p->scale, &p->n_scale));
    if (p->n_scale != 1 && p->n_scale != p->rows)
        return h3_fail(H3_E_SHAPE,
                       "%s: tensor \"%s\": %lld scales for %lld rows (expected one, or "
                       "one per row)",
                       h3_manifest_file(r->m, c->file)->path, c->name, (long long)p->n_scale,
                       (long long)p->rows);
    if (p->n_scale == 1) memcpy(&p->global, p->scale, 4);
    return H3_OK;
}

static h3_status need(const h3_quant_rules *r, const h3_source *s, h3_companion c, const char *what)
{
    if (s->companion[c]) return H3_OK;
    return h3_fail(H3_E_MISSING, "%s: tensor \"%s\": quantized, but its %s is missing",
                   h3_manifest_file(r->m, s->e->file)->path, s->e->name, what);
}

/* Block scales of one byte: decides linear or tiled from the count, where it tells. */
static h3_status block_scales(const h3_quant_rules *r, const h3_source *s, int64_t cols,
                              bool want_tiles, h3_weight_part *p)
{
    const h3_entry *c = s->companion[H3_COMP_SCALE];
    const int64_t linear = p->rows * cols;
    const int64_t tiles = (p->rows + 127) / 128 * 128 * ((cols + 3) / 4 * 4);

    p->scale = c->data;
    p->n_scale = numel(c);
    p->swizzled = p->n_scale == tiles && (want_tiles || tiles != linear);
    if (p->n_scale != linear && p->n_scale != tiles)
        return h3_fail(H3_E_SHAPE,
                       "%s: tensor \"%s\": %lld block scales, expected %lld x %lld, or "
                       "%lld with padding",
                       h3_manifest_file(r->m, c->file)->path, c->name, (long long)p->n_scale,
                       (long long)p->rows, (long long)cols, (long long)tiles);
    return H3_OK;
}

static h3_status no_nan(const h3_quant_rules *r, const h3_entry *c)
{
    if (!r->skips_values && (memchr(c->data, 0x7f, c->bytes) || memchr(c->data, 0xff, c->bytes)))
        return bad(r, c, "a block scale is NaN");
    return H3_OK;
}

/* ConvRot's group must be a power of 4 that divides the row. */
static h3_status set_rotation(const h3_quant_rules *r, const h3_entry *e, int64_t group,
                              h3_weight_part *p)
{
    int64_t g = group;

    if (group == 0) return H3_OK;
    while (g > 1 && g % 4 == 0)
        g /= 4;
    if (g != 1 || group < 4 || p->cols % group != 0)
        return h3_fail(H3_E_FORMAT,
                       "%s: tensor \"%s\": ConvRot group %lld is no power of 4 that "
                       "divides the row of %lld",
                       h3_manifest_file(r->m, e->file)->path, e->name, (long long)group,
                       (long long)p->cols);
    p->group = (int32_t)group;
    return H3_OK;
}

/* ---- one function per format ---- */

static h3_status want_dtype(const h3_quant_rules *r, const h3_entry *e, h3_dtype a, h3_dtype b,
                            const char *format_name)
{
    if (e->dtype == a || e->dtype == b) return H3_OK;
    return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": described as %s, but stored as %s",
                   h3_manifest_file(r->m, e->file)->path, e->name, format_name,
                   e->dtype == H3_DTYPE_COUNT ? h3_ggml_type(e->ggml_type).name
                                              : h3_dtype_name((h3_dtype)e->dtype));
}

static h3_status plain_part(const h3_quant_rules *r, const h3_source *s, h3_weight_part *p)
{
    const h3_entry *e = s->e;

    if (s->companion[H3_COMP_SCALE] || s->companion[H3_COMP_S_REL] || s->companion[H3_COMP_SCALE_2])
        return bad(r, e, "has scales beside it, but is not quantized");
    if (e->dtype != H3_F32 && e->dtype != H3_BF16 && e->dtype != H3_F16)
        return h3_fail(H3_E_FORMAT, "%s: tensor \"%s\": dtype %s cannot be a weight",
                       h3_manifest_file(r->m, e->file)->path, e->name,
                       h3_dtype_name((h3_dtype)e->dtype));
    p->encoding = e->dtype; // the three first encodings are the three first dtypes
    p->row_bytes = (size_t)p->cols * h3_dtype_bytes((h3_dtype)e->dtype);
    return H3_OK;
}

static h3_status ggml_part(const h3_quant_rules *r, const h3_source *s, h3_weight_part *p)
{
    const h3_ggml_info info = h3_ggml_type(s->e->ggml_type);

    if (!info.can_decode)
        return h3_fail(H3_E_UNSUPPORTED, "%s: tensor \"%s\": ggml type %s is not supported",
                       h3_manifest_file(r->m, s->e->file)->path, s->e->name, info.name);
    p->encoding = H3_ENC_GGML;
    p->ggml_type = s->e->ggml_type;
    p->row_bytes = p->cols % info.block == 0 ? (size_t)(p->cols / info.block) * info.bytes : 0;
    return H3_OK;
}

static h3_status fp8_part(const h3_quant_rules *r, const h3_source *s, h3_keep *keep,
                          h3_weight_part *p)
{
    const bool is_described = s->companion[H3_COMP_TAG] || file_descriptor(r, s->e);

    H3_TRY(want_dtype(r, s->e, H3_F8_E4M3, H3_F8_E4M3, "float8_e4m3fn"));
    p->encoding = H3_ENC_FP8_SCALED;
    p->row_bytes = (size_t)p->cols;
    if (!is_described && !s->companion[H3_COMP_SCALE]) return H3_OK; // a bare cast
    H3_TRY(need(r, s, H3_COMP_SCALE, "weight_scale"));
    return row_scales(r, s, keep, p);
}

static h3_status mxfp8_part(const h3_quant_rules *r, const h3_source *s, h3_weight_part *p)
{
    const h3_entry *c = s->companion[H3_COMP_SCALE];

    H3_TRY(want_dtype(r, s->e, H3_F8_E4M3, H3_F8_E4M3, "mxfp8"));
    H3_TRY(need(r, s, H3_COMP_SCALE, "weight_scale"));
    if (c->dtype != H3_U8 && c->dtype != H3_F8_E8M0)
        return bad(r, c, "MXFP8 scales must be F8_E8M0 or U8");
    if (p->cols % 32) return bad(r, s->e, "MXFP8 needs rows of a multiple of 32");
    p->encoding = H3_ENC_MXFP8;
    p->row_bytes = (size_t)p->cols;
    p->block = 32;
    H3_TRY(block_scales(r, s, p->cols / 32, true, p));
    if (!r->skips_values && memchr(c->data, 0xff, c->bytes))
        return bad(r, c, "a block scale is NaN");
    return H3_OK;
}

static h3_status int8_part(const h3_quant_rules *r, const h3_source *s, const descriptor *d,
                           h3_keep *keep, h3_weight_part *p)
{
    H3_TRY(want_dtype(r, s->e, H3_I8, H3_I8, "int8_tensorwise"));
    H3_TRY(need(r, s, H3_COMP_SCALE, "weight_scale"));
    p->encoding = H3_ENC_INT8;
    p->row_bytes = (size_t)p->cols;
    H3_TRY(row_scales(r, s, keep, p));
    return set_rotation(r, s->e, d->convrot, p);
}

static h3_status w4a8_part(const h3_quant_rules *r, const h3_source *s, const descriptor *d,
                           h3_keep *keep, h3_weight_part *p)
{
    const h3_entry *rel = s->companion[H3_COMP_S_REL], *ch = s->companion[H3_COMP_S_CHANNEL],
                   *book = s->companion[H3_COMP_CODEBOOK], *corr = s->companion[H3_COMP_CORRECTION];
    int64_t n;

    H3_TRY(want_dtype(r, s->e, H3_I8, H3_U8, "asym_w4a8_int8"));
    H3_TRY(need(r, s, H3_COMP_S_REL, "weight_s_rel"));
    H3_TRY(need(r, s, H3_COMP_S_CHANNEL, "weight_s_channel"));
    p->encoding = H3_ENC_W4A8;
    p->row_bytes = (size_t)p->cols / 2;
    p->block = (int32_t)d->group;
    if (p->block % 2 || p->cols % p->block)
        return bad(r, s->e, "W4A8 group does not divide the row");
    if (rel->dtype != H3_F8_E4M3) return bad(r, rel, "group scales must be F8_E4M3");
    p->scale = rel->data;
    p->n_scale = numel(rel);
    if (p->n_scale != p->rows * (p->cols / p->block))
        return bad(r, rel, "the number of group scales does not fit the matrix");
    H3_TRY(no_nan(r, rel));
    H3_TRY(floats_of(r, ch, keep, &p->scale2, &n));
    if (n != p->rows) return bad(r, ch, "the number of row scales does not fit the matrix");
    if (book) {
        H3_TRY(floats_of(r, book, keep, &p->aux, &n));
        if (n != 16) return bad(r, book, "a codebook has 16 entries");
    }
    if (corr) {
        const void *v;
        H3_TRY(floats_of(r, corr, keep, &v, &n));
        if (n != p->rows * (p->cols / p->block))
            return bad(r, corr, "the number of corrections does not fit the matrix");
        p->corr = v;
    }
    return set_rotation(r, s->e, d->convrot, p);
}

static h3_status nvfp4_part(const h3_quant_rules *r, const h3_source *s, h3_keep *keep,
                            h3_weight_part *p)
{
    const h3_entry *c = s->companion[H3_COMP_SCALE], *g = s->companion[H3_COMP_SCALE_2];
    const void *v;
    int64_t n;

    H3_TRY(want_dtype(r, s->e, H3_U8, H3_I8, "nvfp4"));
    H3_TRY(need(r, s, H3_COMP_SCALE, "weight_scale"));
    H3_TRY(need(r, s, H3_COMP_SCALE_2, "weight_scale_2"));
    if (p->cols % 16) return bad(r, s->e, "NVFP4 needs rows of a multiple of 16");
    if (c->dtype != H3_F8_E4M3 && c->dtype != H3_U8)
        return bad(r, c, "NVFP4 block scales must be F8_E4M3");
    p->encoding = H3_ENC_NVFP4;
    p->row_bytes = (size_t)p->cols / 2;
    p->block = 16;
    p->nibble_high = !(r->is_nvfp4_low || s->is_reciprocal);
    H3_TRY(block_scales(r, s, p->cols / 16, !(r->is_nvfp4_linear || s->is_reciprocal), p));
    H3_TRY(no_nan(r, c));
    H3_TRY(floats_of(r, g, keep, &v, &n));
    if (n != 1) return bad(r, g, "the global scale must be one value");
    memcpy(&p->global, v, 4);
    if (s->is_reciprocal) p->global = 1.0f / p->global;
    if (!isfinite(p->global)) return bad(r, g, "the global scale is not finite");
    return H3_OK;
}

static h3_status shape_of(const h3_quant_rules *r, const h3_source *s, format fmt, int *rank,
                          int64_t ne[8])
{
    const h3_entry *e = s->e;

    *rank = e->rank;
    memcpy(ne, e->ne, sizeof e->ne);
    if (fmt != FMT_NVFP4 && fmt != FMT_W4A8) return H3_OK;
    if (e->rank != 2) return bad(r, e, "a packed 4-bit matrix must have two dimensions");
    if (!h3_mul_i64(ne[1], 2, &ne[1])) return bad(r, e, "is too wide");
    return H3_OK;
}

h3_status h3_source_shape(const h3_quant_rules *r, const h3_source *s, int *rank, int64_t ne[8])
{
    descriptor d;
    H3_TRY(describe(r, s, &d));
    return shape_of(r, s, d.fmt, rank, ne);
}

h3_status h3_source_part(const h3_quant_rules *r, const h3_source *s, h3_keep *keep,
                         h3_weight_part *p)
{
    const h3_entry *e = s->e, *pqs = s->companion[H3_COMP_PRE_QUANT];
    descriptor d;
    int rank;
    int64_t ne[8], n;
    h3_status st;

    H3_TRY(describe(r, s, &d));
    H3_TRY(shape_of(r, s, d.fmt, &rank, ne));
    *p = (h3_weight_part){.data = e->data, .rows = rank ? ne[0] : 1, .cols = 1, .global = 1.0f};
    for (int i = 1; i < rank; i++)
        p->cols *= ne[i];
    p->full_rows = p->rows;
    p->bytes = e->bytes;
    switch (d.fmt) {
    case FMT_FP8:
        st = fp8_part(r, s, keep, p);
        break;
    case FMT_MXFP8:
        st = mxfp8_part(r, s, p);
        break;
    case FMT_INT8:
        st = int8_part(r, s, &d, keep, p);
        break;
    case FMT_W4A8:
        st = w4a8_part(r, s, &d, keep, p);
        break;
    case FMT_NVFP4:
        st = nvfp4_part(r, s, keep, p);
        break;
    case FMT_GGML:
        st = ggml_part(r, s, p);
        break;
    default:
        st = plain_part(r, s, p);
        break;
    }
    if (st == H3_OK && pqs) {
        const void *v;
        H3_TRY(floats_of(r, pqs, keep, &v, &n));
        if (n != p->cols) return bad(r, pqs, "the number of input scales does not fit the matrix");
        p->in_scale = v;
    }
    return st;
}

h3_weight_part h3_part_slice(const h3_weight_part *p, int64_t from, int64_t n)
{
    h3_weight_part s = *p;

    s.rows = n;
    s.row0 = p->row0 + from;
    if (p->row_bytes) {
        s.data = (const unsigned char *)p->data + (size_t)from * p->row_bytes;
        s.bytes = (size_t)n * p->row_bytes;
    }
    return s;
}

const char *h3_part_encoding_name(const h3_weight_part *p)
{
    static const char *const names[] = {"F32",   "BF16", "F16",  "FP8",
                                        "MXFP8", "INT8", "W4A8", "NVFP4"};
    if (p->encoding == H3_ENC_GGML) return h3_ggml_type(p->ggml_type).name;
    if (p->encoding == H3_ENC_INT8 && p->group) return "INT8-ConvRot";
    return p->encoding < sizeof names / sizeof *names ? names[p->encoding] : "?";
}

size_t h3_source_bytes(const h3_source *s)
{
    size_t n = s->e ? s->e->bytes : 0;
    for (int i = 0; i < H3_COMP_COUNT; i++)
        if (s->companion[i]) n += s->companion[i]->bytes;
    return n;
}

const char *h3_quant_tag(size_t bytes, bool is_mx)
{
    switch (bytes) {
    case 19:
        return is_mx ? "{\"format\": \"mxfp8\"}" : "{\"format\": \"nvfp4\"}";
    case 27:
        return "{\"format\": \"float8_e4m3fn\"}";
    case 29:
        return "{\"format\": \"int8_tensorwise\"}";
    case 55:
        return "{\"format\": \"nvfp4\", \"full_precision_matrix_mult\": true}";
    case 71:
        return "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": 64}";
    case 72:
        return "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": 256}";
    default:
        return "";
    }
}
