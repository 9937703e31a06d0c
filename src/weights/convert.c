/** See convert.h. */
#include "convert.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "gguf_writer.h"
#include "half.h"
#include "writer.h"

enum { TILE_BYTES = 4 << 20 };

/* Where the rows go: one of the two writers. */
typedef struct sink {
    h3_writer *st;
    h3_gguf_writer *gguf;
} sink;

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

/* Plain name of an item, malloc'd; NULL when it is left out. */
static char *plain_name(const h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o)
{
    static const char text[] = "model.language_model.", vision[] = "model.";
    const char *n = it->name;

    if (!it->is_known || it->rank == UINT8_MAX) return NULL;
    if (ck->naming.role == H3_ROLE_AUDIO_VAE && ends(n, ".filter")) return NULL;
    if (ck->naming.role != H3_ROLE_TEXT_ENCODER) return h3_strdupf("%s", n);
    if (o->text_layers > 0) {
        long layer;
        if (starts(n, "lm_head.") || starts(n, "model.language_model.norm.")) return NULL;
        if (sscanf(n, "model.language_model.layers.%9ld.", &layer) == 1 && layer >= o->text_layers)
            return NULL;
    }
    if (starts(n, text)) return h3_strdupf("model.%s", n + sizeof text - 1);
    if (starts(n, "model.visual.")) return h3_strdupf("%s", n + sizeof vision - 1);
    return h3_strdupf("%s", n);
}

/* Parameters that the release keeps in f32. */
static bool stays_f32(const h3_checkpoint *ck, const h3_item *it)
{
    static const char *const dit[] = {"video_patch_proj.",      "audio_patch_proj.",
                                      "time_embedder.",         "final_layer.video_out.",
                                      "final_layer.audio_out.", "rope.",
                                      "adaln_t_table"};
    if (ck->naming.role == H3_ROLE_VIDEO_VAE || ck->naming.role == H3_ROLE_AUDIO_VAE) return true;
    for (size_t i = 0; i < sizeof dit / sizeof *dit; i++)
        if (starts(it->name, dit[i])) return true;
    return false;
}

/* Type of the written tensor: a safetensors dtype, or Q8_0 (H3_DTYPE_COUNT) in a GGUF. */
static uint8_t type_of(const h3_checkpoint *ck, const h3_item *it, const h3_convert_opts *o)
{
    int64_t cols = it->rank > 1 ? it->ne[it->rank - 1] : 0;

    if (o->form == H3_CONVERT_F32 || stays_f32(ck, it)) return H3_F32;
    if (o->form == H3_CONVERT_Q8_0 && it->rank == 2 && cols % 32 == 0) return H3_DTYPE_COUNT;
    return H3_BF16;
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
        if (json_is_integer(v)) *out = json_integer_value(v);
    }
    if (*out <= 0 || it->ne[0] % (3 * *out))
        return h3_fail(H3_E_SHAPE, "%s: tensor \"%s\": %lld rows are no heads of 3 x %lld",
                       ck->path, it->name, (long long)it->ne[0], (long long)*out);
    return H3_OK;
}

static h3_status put_rows(sink *s, uint8_t type, float *v, int64_t n)
{
    if (type == H3_F32)
        return s->st ? h3_writer_put(s->st, v, (size_t)n * sizeof *v)
                     : h3_gguf_put(s->gguf, v, (size_t)n * sizeof *v);
    if (type == H3_BF16) {
        uint16_t *h = (uint16_t *)(void *)v; // narrowing in place: reads stay ahead of writes
        for (int64_t i = 0; i < n; i++) {
            float f;
            uint16_t b;
            memcpy(&f, (char *)v + 4 * i, 4);
            b = h3_f32_to_bf16(f);
            memcpy((char *)h + 2 * i, &b, 2);
        }
        return s->st ? h3_writer_put(s->st, h, (size_t)n * 2)
                     : h3_gguf_put(s->gguf, h, (size_t)n * 2);
    }
    return h3_gguf_put_q8_0(s->gguf, v, n);
}

/* Rows of the item in plain order, through a tile. */
static h3_status write_item(h3_checkpoint *ck, h3_item *it, const h3_convert_opts *o, sink *s)
{
    h3_weight_part part[H3_MAX_PARTS];
    int n_parts, at = 0;
    int64_t rows = 0, cols, D = 0, first = 0, per_tile;
    float *tile;
    h3_status st = H3_OK;

    H3_TRY(h3_item_parts(ck, it, part, &n_parts));
    const bool is_mixed = h3_item_is_interleaved(ck, it);
    if (is_mixed) H3_TRY(head_dim(ck, it, o, &D));
    for (int i = 0; i < n_parts; i++)
        rows += part[i].rows;
    cols = part[0].cols;
    if (rows == 0 || cols == 0) return H3_OK;
    per_tile = TILE_BYTES / 4 / cols > 0 ? TILE_BYTES / 4 / cols : 1;
    tile = malloc((size_t)(per_tile * cols) * sizeof *tile);
    if (!tile) return h3_fail(H3_E_NOMEM, "%s: no memory for rows of \"%s\"", ck->path, it->name);
    for (int64_t r = 0; r < rows && st == H3_OK;) {
        int64_t n = rows - r < per_tile ? rows - r : per_tile;
        if (is_mixed) { // row (c, h, d) lies at (h, c, d)
            const int64_t inner = rows / 3;
            for (int64_t i = 0; i < n; i++) {
                const int64_t c = (r + i) / inner, h = (r + i) % inner / D, d = (r + i) % D;
                h3_weight_decode_rows(&part[0], (h * 3 + c) * D + d, 1, tile + i * cols);
            }
        } else {
            while (r - first >= part[at].rows)
                first += part[at++].rows;
            if (n > first + part[at].rows - r) n = first + part[at].rows - r;
            h3_weight_decode_rows(&part[at], r - first, n, tile);
        }
        st = put_rows(s, type_of(ck, it, o), tile, n * cols);
        r += n;
    }
    free(tile);
    return st;
}

/* AWQ input scales are kept as tensors of their own, as published. */
static const h3_entry *input_scale(const h3_item *it)
{
    return it->n_src == 1 ? it->src[0].companion[H3_COMP_PRE_QUANT] : NULL;
}

static h3_status declare(h3_checkpoint *ck, const h3_item *it, const char *name, uint8_t type,
                         sink *s)
{
    (void)ck;
    return s->st ? h3_writer_declare(s->st, name, (h3_dtype)type, it->rank, it->ne)
                 : h3_gguf_declare(s->gguf, name, type, it->rank, it->ne);
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
    const int64_t n = (int64_t)(e->bytes / h3_dtype_bytes((h3_dtype)e->dtype));
    float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
    h3_status st;

    if (!v) return h3_fail(H3_E_NOMEM, "no memory for \"%s\"", e->name);
    h3_decode_dtype((h3_dtype)e->dtype, e->data, n, v);
    st = put_rows(s, H3_F32, v, n);
    free(v);
    return st;
}

/* Both passes over the tensors: declare all, then write all. */
static h3_status pass(h3_checkpoint *ck, const h3_convert_opts *o, sink *s, bool is_writing)
{
    for (size_t i = 0; i < ck->n_items; i++) {
        h3_item *it = &ck->items[i];
        char *name = plain_name(ck, it, o);
        const h3_entry *scale = input_scale(it);
        h3_status st;
        if (!name) continue;
        st = is_writing ? write_item(ck, it, o, s) : declare(ck, it, name, type_of(ck, it, o), s);
        if (st == H3_OK && scale)
            st = is_writing ? write_scale(scale, s) : declare_scale(scale, name, s);
        free(name);
        if (st != H3_OK) return st;
    }
    return H3_OK;
}

h3_status h3_convert(h3_checkpoint *ck, const char *path, const h3_convert_opts *opts)
{
    static const h3_convert_opts usual;
    const h3_convert_opts *o = opts ? opts : &usual;
    sink s = {0};
    h3_status st;

    if (o->form == H3_CONVERT_Q8_0)
        st = h3_gguf_writer_open(&s.gguf, path);
    else
        st = h3_writer_open(&s.st, path);
    if (st == H3_OK && s.st) st = h3_writer_meta(s.st, "h3av.qkv", "stacked");
    if (st == H3_OK) st = pass(ck, o, &s, false);
    if (st == H3_OK) st = s.st ? h3_writer_begin(s.st) : h3_gguf_begin(s.gguf);
    if (st == H3_OK) st = pass(ck, o, &s, true);
    if (st == H3_OK) return s.st ? h3_writer_commit(&s.st) : h3_gguf_commit(&s.gguf);
    h3_writer_abort(&s.st);
    h3_gguf_abort(&s.gguf);
    return st;
}
