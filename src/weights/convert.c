/** See convert.h. */
#include "convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "gguf_writer.h"
#include "half.h"
#include "lora_impl.h"
#include "packing.h"
#include "parts.h"
#include "suffix.h"
#include "writer.h"

enum { TILE_BYTES = 4 << 20 };

/* Where the rows go: one of the two writers. */
typedef struct sink {
    h3_writer *st;
    h3_gguf_writer *gguf;
} sink;

/* What of an item a written tensor holds. */
typedef enum cut {
    WHOLE = 0,
    THIRD, ///< rows of q, k or v
    SWAP,  ///< the halves exchanged
    HEADS, ///< [q; k; v] rows, head by head
    G,     ///< length of each slice of a weight-norm pair
    V      ///< the slices themselves
} cut;

/* One tensor to write. */
typedef struct target {
    char *name;
    uint8_t type; ///< a safetensors dtype, or Q8_0 (H3_DTYPE_COUNT) in a GGUF
    uint8_t cut, slot;
    int rank;
    int64_t ne[8];
} target;

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool has_adapter(const h3_checkpoint *ck, const h3_item *it)
{
    const size_t index = (size_t)(it - ck->items);

    for (size_t i = 0; i < ck->n_adapters; i++)
        for (size_t k = 0; k < ck->adapters[i]->n; k++)
            if (ck->adapters[i]->entry[k].item == index) return true;
    return false;
}

/* Whether an item is written at all. */
static bool is_wanted(const h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o)
{
    const char *n = it->name;
    long layer;

    if (!it->is_known || it->rank == UINT8_MAX) return false;
    if (o->is_delta && !has_adapter(ck, it)) return false;
    if (ck->naming.role == H3_ROLE_AUDIO_VAE && h3_ends_with(n, ".filter"))
        return o->layout != H3_CONVERT_OWN; // computed by everybody; released files hold them
    if (o->layout == H3_CONVERT_DIFFUSERS &&
        (strcmp(n, "rope.inv_freq") == 0 || strcmp(n, "decoder.mask_token") == 0))
        return false;
    if (ck->naming.role != H3_ROLE_TEXT_ENCODER || o->text_layers <= 0) return true;
    if (starts(n, "lm_head.") || starts(n, "model.language_model.norm.")) return false;
    return sscanf(n, "model.language_model.layers.%9ld.", &layer) != 1 || layer < o->text_layers;
}

/* Name of a wanted item in the layout, malloc'd. */
static char *plain_name(const h3_checkpoint *ck, const char *n, const h3_convert_opts *o, int slot)
{
    static const char text[] = "model.language_model.", vision[] = "model.";

    if (o->layout == H3_CONVERT_DIFFUSERS) return h3_names_diffusers(ck->naming.role, n, slot);
    if (ck->naming.role != H3_ROLE_TEXT_ENCODER || o->layout == H3_CONVERT_ORIGINAL)
        return h3_strdupf("%s", n);
    if (starts(n, text)) return h3_strdupf("model.%s", n + sizeof text - 1);
    if (starts(n, "model.visual.")) return h3_strdupf("%s", n + sizeof vision - 1);
    return h3_strdupf("%s", n);
}

/* Parameters that the release keeps in f32. */
static bool stays_f32(const h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o)
{
    static const char *const dit[] = {"video_patch_proj.",      "audio_patch_proj.",
                                      "time_embedder.",         "final_layer.video_out.",
                                      "final_layer.audio_out.", "rope.",
                                      "adaln_t_table"};
    if (ck->naming.role == H3_ROLE_VIDEO_VAE || ck->naming.role == H3_ROLE_AUDIO_VAE)
        return o->form != H3_CONVERT_F16 || it->rank < 2;
    for (size_t i = 0; i < sizeof dit / sizeof *dit; i++)
        if (starts(it->name, dit[i])) return true;
    return false;
}

/* Type of what an item becomes: see target. */
static uint8_t type_of(const h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o)
{
    int64_t cols = it->rank > 1 ? it->ne[it->rank - 1] : 0;

    if (o->form == H3_CONVERT_F32 || stays_f32(ck, it, o)) return H3_F32;
    if (o->form == H3_CONVERT_Q8_0 && it->rank == 2 && cols % 32 == 0) return H3_DTYPE_COUNT;
    return o->form == H3_CONVERT_F16 ? H3_F16 : H3_BF16;
}

/* Head size of a fused q/k/v item. */
static h3_status head_dim(h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o,
                          int64_t *out)
{
    *out = o->head_dim ? o->head_dim : 64;
    if (ck->naming.role == H3_ROLE_DIT) {
        const char *at = strstr(it->name, "qkv_proj.");
        char *name = h3_strdupf("%.*sq_norm.weight", (int)(at - it->name), it->name);
        const h3_item *norm = h3_ckpt_item(ck, name);
        free(name);
        if (!norm || norm->rank != 1)
            return h3_fail(H3_E_MISSING, "%s: \"%s\" has no q_norm that tells its head size",
                           ck->path, it->name);
        *out = norm->ne[0];
    } else if (!o->head_dim) {
        const json_t *kw = json_object_get(h3_ckpt_config(ck, "source/config.json"),
                                           "vit_decoder_kwargs"),
                     *v;
        if (!kw) kw = json_object_get(h3_ckpt_config(ck, "config.json"), "vit_decoder_kwargs");
        v = json_object_get(kw, "dim_head");
        if (!v)
            v = json_object_get(h3_ckpt_config(ck, "config.json"), "decoder_attention_head_dim");
        if (json_is_integer(v)) *out = json_integer_value(v);
    }
    if (*out <= 0 || it->ne[0] % (3 * *out))
        return h3_fail(H3_E_SHAPE, "%s: tensor \"%s\": %lld rows are no heads of 3 x %lld",
                       ck->path, it->name, (long long)it->ne[0], (long long)*out);
    return H3_OK;
}

/* Values narrowed in place, reads ahead of writes. */
static h3_status narrow(const target *t, float *v, int64_t n)
{
    char *bytes = (char *)v;

    for (int64_t i = 0; i < n; i++) {
        float f;
        uint16_t h;
        memcpy(&f, bytes + 4 * i, 4);
        h = t->type == H3_F16 ? h3_f32_to_f16(f) : h3_f32_to_bf16(f);
        if (t->type == H3_F16 && isfinite(f) && (h & 0x7c00) == 0x7c00)
            return h3_fail(H3_E_NUMERIC,
                           "tensor \"%s\" holds %g, more than f16 can: write bf16 or f32", t->name,
                           (double)f);
        memcpy(bytes + 2 * i, &h, 2);
    }
    return H3_OK;
}

static h3_status put_rows(sink *s, const target *t, float *v, int64_t n)
{
    size_t bytes = (size_t)n * sizeof *v;

    if (t->type == H3_DTYPE_COUNT) return h3_gguf_put_q8_0(s->gguf, v, n);
    if (t->type != H3_F32) {
        H3_TRY(narrow(t, v, n));
        bytes /= 2;
    }
    return s->st ? h3_writer_put(s->st, v, bytes) : h3_gguf_put(s->gguf, v, bytes);
}

/* ---- rows of an item, in the order of what is written ---- */

typedef struct reader {
    h3_weight_part part[H3_MAX_PARTS];
    int n_parts;
    int64_t rows, cols, head_dim;
    bool is_mixed;    ///< stored head by head
    h3_weight merged; ///< the same with adapters; n_lora 0: there are none
} reader;

static h3_status reader_open(reader *r, h3_checkpoint *ck, h3_item *it, const target *t,
                             const h3_convert_opts *o)
{
    *r = (reader){.is_mixed = h3_item_is_interleaved(ck, it)};
    if (t->cut == V && it->piece == H3_PIECE_NORM) { // the pair as stored
        H3_TRY(h3_source_part(&ck->rules, &it->src[1], &ck->keep, &r->part[0]));
        r->n_parts = 1;
    } else {
        H3_TRY(h3_item_parts(ck, it, r->part, &r->n_parts));
    }
    for (int i = 0; i < r->n_parts; i++)
        r->rows += r->part[i].rows;
    r->cols = r->part[0].cols;
    if (r->is_mixed || t->cut == HEADS) H3_TRY(head_dim(ck, it, o, &r->head_dim));
    if (it->rank != 2 || !ck->n_adapters) return H3_OK;
    r->merged = (h3_weight){.name = it->name,
                            .rows = r->rows,
                            .cols = r->cols,
                            .n_parts = r->n_parts,
                            .interleaved = r->is_mixed};
    memcpy(r->merged.part, r->part, sizeof r->part);
    if (o->is_delta) { // one row of zeros, again and again
        float *zeros = h3_keep_alloc(&ck->keep, (size_t)r->cols * sizeof *zeros);
        if (!zeros) return h3_fail(H3_E_NOMEM, "%s: no memory for \"%s\"", ck->path, it->name);
        memset(zeros, 0, (size_t)r->cols * sizeof *zeros);
        r->merged.n_parts = 1;
        r->merged.part[0] = (h3_weight_part){
            .data = zeros, .rows = r->rows, .cols = r->cols, .encoding = H3_ENC_F32};
    }
    return h3_lora_bind(ck, it, &r->merged);
}

/* Row of [q; k; v] order (or of an ordinary matrix) into out. */
static void read_row(const reader *r, int64_t row, float *out)
{
    int at = 0;

    if (r->is_mixed) { // row (c, h, d) lies at (h, c, d)
        const int64_t inner = r->rows / 3, D = r->head_dim;
        row = (row % inner / D * 3 + row / inner) * D + row % D;
    }
    if (r->merged.n_lora) {
        h3_weight_rows(&r->merged, row, 1, out);
        return;
    }
    while (row >= r->part[at].rows)
        row -= r->part[at++].rows;
    h3_weight_decode_rows(&r->part[at], row, 1, out);
}

/* n rows of the target, from row `first` of it. */
static void read_rows(const reader *r, const target *t, int64_t first, int64_t n, float *out)
{
    const int64_t inner = r->rows / 3, D = r->head_dim;

    for (int64_t i = 0; i < n; i++) {
        int64_t row = first + i;
        if (t->cut == THIRD) row += t->slot * inner;
        if (t->cut == SWAP) row = (row + r->rows / 2) % r->rows;
        if (t->cut == HEADS) row = row / D % 3 * inner + row / D / 3 * D + row % D;
        read_row(r, row, out + i * r->cols);
    }
}

/* Lengths of the slices: the g of a pair whose v is the matrix. */
static h3_status write_lengths(h3_checkpoint *ck, h3_item *it, const target *t,
                               const h3_convert_opts *o, sink *s)
{
    reader r;
    float *row, *g;
    h3_status st = H3_OK;

    if (it->piece == H3_PIECE_NORM) {
        H3_TRY(h3_source_part(&ck->rules, &it->src[0], &ck->keep, &r.part[0]));
        r.rows = r.part[0].rows;
        r.cols = r.part[0].cols;
    } else {
        H3_TRY(reader_open(&r, ck, it, t, o));
    }
    row = malloc((size_t)(r.cols + 1) * sizeof *row);
    g = malloc((size_t)(r.rows + 1) * sizeof *g);
    if (!row || !g) st = h3_fail(H3_E_NOMEM, "%s: no memory for \"%s\"", ck->path, it->name);
    for (int64_t i = 0; i < r.rows && st == H3_OK; i++) {
        double sum = 0;
        if (it->piece == H3_PIECE_NORM) {
            h3_weight_decode_rows(&r.part[0], i, 1, g + i);
            continue;
        }
        read_row(&r, i, row);
        for (int64_t k = 0; k < r.cols; k++)
            sum += (double)row[k] * (double)row[k];
        g[i] = (float)sqrt(sum);
    }
    if (st == H3_OK) st = put_rows(s, t, g, r.rows);
    free(row);
    free(g);
    return st;
}

/* Rows of the target through a tile. */
static h3_status write_item(h3_checkpoint *ck, h3_item *it, const target *t,
                            const h3_convert_opts *o, sink *s)
{
    reader r;
    int64_t rows, per_tile;
    float *tile;
    h3_status st = H3_OK;

    if (t->cut == G) return write_lengths(ck, it, t, o, s);
    H3_TRY(reader_open(&r, ck, it, t, o));
    rows = t->cut == THIRD ? r.rows / 3 : r.rows;
    if (rows == 0 || r.cols == 0) return H3_OK;
    per_tile = TILE_BYTES / 4 / r.cols > 0 ? TILE_BYTES / 4 / r.cols : 1;
    tile = malloc((size_t)(per_tile * r.cols) * sizeof *tile);
    if (!tile) return h3_fail(H3_E_NOMEM, "%s: no memory for rows of \"%s\"", ck->path, it->name);
    for (int64_t at = 0; at < rows && st == H3_OK; at += per_tile) {
        const int64_t n = rows - at < per_tile ? rows - at : per_tile;
        read_rows(&r, t, at, n, tile);
        st = put_rows(s, t, tile, n * r.cols);
    }
    free(tile);
    for (int i = 0; i < r.n_parts; i++) // or a model's worth of pages would stay resident
        h3_map_done(r.part[i].data, r.part[i].bytes, false);
    return st;
}

/* ---- what is written ---- */

static bool is_fused_qkv(const h3_checkpoint *ck, const h3_item *it)
{
    return ck->naming.role == H3_ROLE_DIT
               ? strstr(it->name, ".attn.qkv_proj.") != NULL
               : ck->naming.role == H3_ROLE_VIDEO_VAE && strstr(it->name, ".attn.to_qkv.") != NULL;
}

static bool is_gated(const h3_checkpoint *ck, const h3_item *it)
{
    return ck->naming.role == H3_ROLE_DIT
               ? strstr(it->name, ".mlp.fc1.") != NULL
               : ck->naming.role == H3_ROLE_VIDEO_VAE && strstr(it->name, ".ff.w1.") != NULL;
}

/* A convolution that the release keeps as a weight-norm pair. */
static bool is_pair(const h3_checkpoint *ck, const h3_item *it)
{
    return ck->naming.role == H3_ROLE_AUDIO_VAE && it->rank == 3 &&
           h3_ends_with(it->name, ".weight") &&
           (starts(it->name, "encoder.") || starts(it->name, "decoder."));
}

enum { MAX_TARGETS = 3 };

/* The tensors that an item becomes; names are malloc'd. */
static int targets_of(const h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o,
                      target out[MAX_TARGETS])
{
    const bool is_ours = o->layout == H3_CONVERT_OWN;
    int n = 1;

    if (!is_wanted(ck, it, o)) return 0;
    out[0] = (target){.type = type_of(ck, it, o), .rank = it->rank};
    memcpy(out[0].ne, it->ne, sizeof out[0].ne);
    if (o->layout == H3_CONVERT_DIFFUSERS && is_fused_qkv(ck, it)) {
        out[0].cut = THIRD;
        out[0].ne[0] /= 3;
        out[1] = out[2] = out[0];
        out[1].slot = 1;
        out[2].slot = 2;
        n = 3;
    } else if (o->layout == H3_CONVERT_DIFFUSERS && is_gated(ck, it)) {
        out[0].cut = SWAP;
    } else if (o->layout == H3_CONVERT_ORIGINAL && is_fused_qkv(ck, it)) {
        out[0].cut = HEADS;
    } else if (!is_ours && is_pair(ck, it)) {
        out[0].cut = G;
        out[1] = out[0];
        out[1].cut = V;
        out[0].type = H3_F32;
        out[0].ne[1] = out[0].ne[2] = 1;
        n = 2;
    }
    for (int i = 0; i < n; i++) {
        out[i].name = plain_name(ck, it->name, o, out[i].slot);
        if (out[i].cut == G || out[i].cut == V) {
            char *pair = h3_strdupf("%s%s", out[i].name, out[i].cut == G ? "_g" : "_v");
            free(out[i].name);
            out[i].name = pair;
        }
    }
    return n;
}

/* AWQ input scales are kept as tensors of their own, as published. */
static const h3_entry *input_scale(const h3_item *it)
{
    return it->n_src == 1 ? it->src[0].companion[H3_COMP_PRE_QUANT] : NULL;
}

static h3_status declare(const target *t, sink *s)
{
    return s->st ? h3_writer_declare(s->st, t->name, (h3_dtype)t->type, t->rank, t->ne)
                 : h3_gguf_declare(s->gguf, t->name, t->type, t->rank, t->ne);
}

static h3_status declare_scale(const h3_entry *e, const char *name, sink *s)
{
    char *full = h3_strdupf("%.*spre_quant_scale", (int)(strlen(name) - strlen("weight")), name);
    h3_status st = s->st ? h3_writer_declare(s->st, full, H3_F32, e->rank, e->ne)
                         : h3_gguf_declare(s->gguf, full, H3_F32, e->rank, e->ne);
    free(full);
    return st;
}

static h3_status write_scale(const h3_entry *e, sink *s)
{
    static const target plain = {.type = H3_F32};
    const int64_t n = (int64_t)(e->bytes / h3_dtype_bytes((h3_dtype)e->dtype));
    float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
    h3_status st;

    if (!v) return h3_fail(H3_E_NOMEM, "no memory for \"%s\"", e->name);
    h3_decode_dtype((h3_dtype)e->dtype, e->data, n, v);
    st = put_rows(s, &plain, v, n);
    free(v);
    return st;
}

/* Both passes over the tensors: declare all, then write all. */
static h3_status pass(h3_checkpoint *ck, const h3_convert_opts *o, sink *s, bool is_writing)
{
    const h3_naming *is = &ck->naming;
    int64_t n_all = 0;

    for (size_t i = 0; i < ck->n_items; i++) {
        h3_item *it = &ck->items[i];
        target t[MAX_TARGETS];
        const int n = targets_of(ck, it, o, t);
        const h3_entry *scale = input_scale(it);
        h3_status st = H3_OK;
        n_all += n;
        for (int k = 0; k < n && st == H3_OK; k++) {
            st = is_writing ? write_item(ck, it, &t[k], o, s) : declare(&t[k], s);
            if (st == H3_OK && scale && k == 0)
                st = is_writing ? write_scale(scale, s) : declare_scale(scale, t[k].name, s);
        }
        for (int k = 0; k < n; k++)
            free(t[k].name);
        if (st != H3_OK) return st;
    }
    if (n_all == 0)
        return h3_fail(H3_E_FORMAT, "%s: %s cannot be converted, only the parts of a model",
                       ck->path, is->role == H3_ROLE_OTHER ? is->other : h3_role_name(is->role));
    return H3_OK;
}

static h3_status put_meta(sink *s, const char *key, const char *value)
{
    return s->st ? h3_writer_meta(s->st, key, value) : h3_gguf_meta(s->gguf, key, value);
}

/* Where rows come from, and the config files that the source had beside it. */
static h3_status put_origin(h3_checkpoint *ck, const h3_convert_opts *o, sink *s)
{
    const char *partition =
        ck->naming.role == H3_ROLE_DIT ? h3_partition_in(ck->m, ck->path) : NULL;
    json_t *configs = json_object(), *one;
    const char *name;
    char *text = NULL;
    h3_status st = H3_OK;

    if (!configs) return h3_fail(H3_E_NOMEM, "%s: no memory for its config", ck->path);
    json_object_foreach(ck->configs, name, one) if (!json_is_null(one))
        json_object_set(configs, name, one);
    if (json_object_size(configs)) {
        text = json_dumps(configs, JSON_COMPACT);
        st = text ? put_meta(s, "h3av.config", text)
                  : h3_fail(H3_E_NOMEM, "%s: no memory for its config", ck->path);
    }
    json_decref(configs);
    free(text);
    if (st == H3_OK && o->layout != H3_CONVERT_DIFFUSERS)
        st = put_meta(s, "h3av.qkv", o->layout == H3_CONVERT_ORIGINAL ? "interleaved" : "stacked");
    if (st == H3_OK && o->layout != H3_CONVERT_OWN) st = put_meta(s, "format", "pt");
    if (st == H3_OK && partition) st = put_meta(s, "h3av.partition", partition);
    return st;
}

h3_status h3_convert(h3_checkpoint *ck, const char *path, const h3_convert_opts *opts)
{
    static const h3_convert_opts usual;
    const h3_convert_opts *o = opts ? opts : &usual;
    sink s = {0};
    h3_status st;

    H3_TRY(h3_packing_check(ck->m, ck->path));
    if (o->form == H3_CONVERT_Q8_0 && o->layout != H3_CONVERT_OWN)
        return h3_fail(H3_E_ARG, "Q8_0 is written in the layout of GGUF files (own), not %s",
                       o->layout == H3_CONVERT_ORIGINAL ? "original" : "diffusers");
    if (o->text_layers && ck->naming.role != H3_ROLE_TEXT_ENCODER)
        return h3_fail(H3_E_ARG,
                       "layers %lld: only of an encoder are fewer layers kept, and this is %s",
                       (long long)o->text_layers, h3_role_name(ck->naming.role));
    if (h3_ends_with(path,
                     o->form == H3_CONVERT_Q8_0 ? ".safetensors"
                                                : ".gguf")) // other programs go by it
        return h3_fail(H3_E_ARG, "%s: %s is written, so the name must not end like that", path,
                       o->form == H3_CONVERT_Q8_0 ? "a GGUF file" : "a safetensors file");
    if (o->form == H3_CONVERT_Q8_0)
        st = h3_gguf_writer_open(&s.gguf, path);
    else
        st = h3_writer_open(&s.st, path);
    if (st == H3_OK) st = put_origin(ck, o, &s);
    if (st == H3_OK) st = pass(ck, o, &s, false);
    if (st == H3_OK) st = s.st ? h3_writer_begin(s.st) : h3_gguf_begin(s.gguf);
    if (st == H3_OK) st = pass(ck, o, &s, true);
    if (st == H3_OK) return s.st ? h3_writer_commit(&s.st) : h3_gguf_commit(&s.gguf);
    h3_writer_abort(&s.st);
    h3_gguf_abort(&s.gguf);
    return st;
}
