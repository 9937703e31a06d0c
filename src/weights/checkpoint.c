/**
 * Checkpoints; see checkpoint.h. Opening builds one item per canonical tensor from the stored names
 * (names.c); binding turns an item into parts of the mapped files (encoding.c). Three kinds of item
 * cannot be slices and are computed once into memory of the checkpoint: weight-norm products, the
 * patch kernel that llama.cpp cuts into two time slices, and the rotary frequencies that diffusers
 * does not store.
 */
#include "checkpoint.h"

#include <assert.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "json.h"
#include "lora_impl.h"
#include "packing.h"
#include "size.h"
#include "suffix.h"

/* ---- items ---- */

const h3_item *h3_ckpt_item(const h3_checkpoint *ck, const char *name)
{
    const int64_t i = h3_names_find(&ck->names, name);
    return i < 0 || ck->items[i].rank == UINT8_MAX ? NULL : &ck->items[i];
}

static h3_item *item_mut(h3_checkpoint *ck, const char *name)
{
    return (h3_item *)(uintptr_t)h3_ckpt_item(ck, name);
}

const char *h3_item_file(const h3_checkpoint *ck, const h3_item *it)
{
    for (int i = 0; i < it->n_src; i++)
        if (it->src[i].e) return h3_manifest_file(ck->m, it->src[i].e->file)->path;
    return ck->path;
}

/* The item called `name`, made when it is not there yet. */
static h3_status get_item(h3_checkpoint *ck, const char *name, h3_item **out)
{
    const int64_t at = h3_names_find(&ck->names, name);
    h3_item *it;

    if (at >= 0) {
        *out = &ck->items[at];
        return H3_OK;
    }
    if (ck->n_items == ck->cap_items) {
        const size_t cap = ck->cap_items ? 2 * ck->cap_items : 256;
        it = realloc(ck->items, cap * sizeof *it);
        if (!it) return h3_fail(H3_E_NOMEM, "%s: no memory for its tensor list", ck->path);
        ck->items = it;
        ck->cap_items = cap;
    }
    it = &ck->items[ck->n_items];
    memset(it, 0, sizeof *it);
    it->name = h3_strdupf("%s", name);
    it->is_known = ck->naming.role == H3_ROLE_UNKNOWN || ck->naming.role == H3_ROLE_OTHER ||
                   h3_names_known(ck->naming.role, name);
    if (!h3_names_add(&ck->names, it->name, (uint32_t)ck->n_items)) {
        free(it->name);
        return h3_fail(H3_E_NOMEM, "%s: no memory for its tensor list", ck->path);
    }
    ck->n_items++;
    *out = it;
    return H3_OK;
}

static h3_status file_entry(h3_checkpoint *ck, const h3_entry *e)
{
    h3_canonical c;
    h3_item *it;
    h3_source *s;
    const h3_entry **place;

    if (!h3_names_canonical(&c, &ck->naming, e->name)) return H3_OK; // too long for one of ours
    H3_TRY(get_item(ck, c.name, &it));
    s = &it->src[c.slot];
    if (c.slot + 1 > it->n_src) it->n_src = c.slot + 1;
    if (c.piece) it->piece = c.piece;
    if (c.companion == H3_COMP_NONE) {
        if (h3_ends_with(e->name, ".weight_packed")) s->is_reciprocal = true;
        place = &s->e;
    } else {
        place = &s->companion[c.companion];
    }
    if (*place)
        return h3_fail(H3_E_FORMAT, "%s: tensors \"%s\" and \"%s\" are the same thing (%s)",
                       h3_manifest_file(ck->m, e->file)->path, (*place)->name, e->name, c.name);
    *place = e;
    return H3_OK;
}

static h3_status piece_missing(const h3_checkpoint *ck, const h3_item *it, int slot)
{
    static const char *const stack[] = {"q", "k", "v"}, *const norm[] = {"weight_g", "weight_v"},
                             *const frame[] = {"first", "second"};
    const char *what = it->piece == H3_PIECE_STACK  ? stack[slot]
                       : it->piece == H3_PIECE_NORM ? norm[slot]
                                                    : frame[slot];
    return h3_fail(H3_E_MISSING, "%s: tensor \"%s\": its %s piece is missing", h3_item_file(ck, it),
                   it->name, what);
}

static h3_status bad_item(const h3_checkpoint *ck, const h3_item *it, const char *what)
{
    return h3_fail(H3_E_SHAPE, "%s: tensor \"%s\": %s", h3_item_file(ck, it), it->name, what);
}

/* q, k and v one below the other. */
static h3_status stack_shapes(const h3_checkpoint *ck, h3_item *it, const int rank[],
                              int64_t ne[][8])
{
    it->ne[0] = 0;
    for (int i = 0; i < 3; i++) {
        if (rank[i] != rank[0] || rank[i] < 1 ||
            memcmp(&ne[i][1], &ne[0][1], 7 * sizeof ne[0][0]) != 0)
            return bad_item(ck, it, "its q, k and v differ in width");
        if (!h3_add_i64(it->ne[0], ne[i][0], &it->ne[0])) return bad_item(ck, it, "is too large");
    }
    return H3_OK;
}

/* A norm for each first index, and the direction. */
static h3_status norm_shapes(const h3_checkpoint *ck, const h3_item *it, const int rank[],
                             int64_t ne[][8])
{
    for (int i = 0; i < 2; i++)
        if (it->src[i].e->dtype != H3_F32 && it->src[i].e->dtype != H3_BF16 &&
            it->src[i].e->dtype != H3_F16)
            return bad_item(ck, it, "weight norm needs F32, BF16 or F16 pieces");
    if (rank[1] < 1 ||
        it->src[0].e->bytes / h3_dtype_bytes(it->src[0].e->dtype) != (size_t)ne[1][0])
        return bad_item(ck, it, "weight norm needs one norm per first index");
    return H3_OK;
}

/* Two slices [out, in, h, w] of time: [out, in, 2, h, w]. */
static h3_status frame_shapes(const h3_checkpoint *ck, h3_item *it, const int rank[],
                              int64_t ne[][8])
{
    if (rank[0] != 4 || rank[1] != 4 || memcmp(ne[0], ne[1], sizeof ne[0]) != 0)
        return bad_item(ck, it, "its two time slices differ");
    it->rank = 5;
    it->ne[4] = it->ne[3];
    it->ne[3] = it->ne[2];
    it->ne[2] = 2;
    return H3_OK;
}

/* Extents of an item from those of its pieces. */
static h3_status join_shapes(h3_checkpoint *ck, h3_item *it)
{
    static const int n_pieces[] = {1, 3, 1, 2, 2}; // by h3_piece
    int rank[H3_MAX_SLOTS];
    int64_t ne[H3_MAX_SLOTS][8];

    if (it->made) return H3_OK;
    for (int i = 0; i < n_pieces[it->piece]; i++) {
        if (!it->src[i].e) {
            if (!it->is_known || it->piece == H3_PIECE_WHOLE || it->piece == H3_PIECE_SWAP) {
                it->rank = UINT8_MAX; // only companions: not a tensor
                if (!it->is_known) return H3_OK;
                return h3_fail(H3_E_MISSING,
                               "%s: tensor \"%s\" is missing, only its scales are there", ck->path,
                               it->name);
            }
            return piece_missing(ck, it, i);
        }
        H3_TRY(h3_source_shape(&ck->rules, &it->src[i], &rank[i], ne[i]));
    }
    const int last = n_pieces[it->piece] - 1;
    it->rank = (uint8_t)rank[last];
    memcpy(it->ne, ne[last], sizeof it->ne);
    switch (it->piece) {
    case H3_PIECE_STACK:
        return stack_shapes(ck, it, rank, ne);
    case H3_PIECE_SWAP:
        if (rank[0] < 1 || ne[0][0] % 2) return bad_item(ck, it, "has no two equal halves of rows");
        return H3_OK;
    case H3_PIECE_NORM:
        return norm_shapes(ck, it, rank, ne);
    case H3_PIECE_FRAME:
        return frame_shapes(ck, it, rank, ne);
    default:
        return H3_OK;
    }
}

/* ---- opening ---- */

const json_t *h3_ckpt_config(const h3_checkpoint *ck, const char *which)
{
    json_t *j = json_object_get(ck->configs, which);
    char *path;

    if (j) return json_is_null(j) ? NULL : j;
    path = h3_path_join(ck->folder, which);
    if (h3_json_load(&j, path) != H3_OK) j = json_null();
    free(path);
    json_object_set_new(ck->configs, which, j);
    return json_is_null(j) ? NULL : j;
}

h3_status h3_ckpt_mark(h3_checkpoint *ck, char *path)
{
    h3_marked *grown = realloc(ck->marked, (ck->n_marked + 1) * sizeof *grown);

    if (!grown) {
        free(path);
        return h3_fail(H3_E_NOMEM, "%s: no memory to open it", ck->path);
    }
    ck->marked = grown;
    ck->marked[ck->n_marked++] = (h3_marked){path, h3_path_mark(path)};
    return H3_OK;
}

static bool are_same_files(const h3_manifest *m)
{
    for (uint32_t i = 0; i < h3_manifest_n_files(m); i++) {
        const h3_file *f = h3_manifest_file(m, i);
        if (h3_path_mark(f->path) != f->mark) return false;
    }
    return true;
}

bool h3_ckpt_is_fresh(const h3_checkpoint *ck)
{
    char *located = NULL;
    bool is_same = h3_manifest_locate(&located, ck->path) == H3_OK && ck->located &&
                   strcmp(located, ck->located) == 0;

    free(located);
    is_same = is_same && are_same_files(ck->m);
    for (size_t i = 0; is_same && i < ck->n_adapters; i++)
        is_same = are_same_files(h3_adapter_files(ck->adapters[i]));
    for (size_t i = 0; is_same && i < ck->n_marked; i++)
        is_same = h3_path_mark(ck->marked[i].path) == ck->marked[i].mark;
    return is_same;
}

static bool is_among(const h3_manifest *m, const char *path)
{
    for (uint32_t i = 0; i < h3_manifest_n_files(m); i++)
        if (h3_path_is_same(h3_manifest_file(m, i)->path, path)) return true;
    return false;
}

bool h3_ckpt_reads(const h3_checkpoint *ck, const char *path)
{
    if (is_among(ck->m, path)) return true;
    for (size_t i = 0; i < ck->n_adapters; i++)
        if (is_among(h3_adapter_files(ck->adapters[i]), path)) return true;
    for (size_t i = 0; i < ck->n_marked; i++)
        if (h3_path_is_same(ck->marked[i].path, path)) return true;
    return false;
}

/* A config file that is there but broken must not be taken for an absent one. */
static h3_status load_configs(h3_checkpoint *ck)
{
    static const char *const names[] = {"config.json", "source/config.json", "metadata.json"};
    const char *inside = h3_manifest_meta(ck->m, "h3av.config"); // of files that convert.c wrote

    if (inside) {
        char *what = h3_strdupf("%s: h3av.config", ck->path);
        h3_status st = h3_json_parse(&ck->configs, inside, strlen(inside), what);
        free(what);
        return st == H3_OK && !json_is_object(ck->configs)
                   ? h3_fail(H3_E_FORMAT, "%s: h3av.config is no object", ck->path)
                   : st;
    }
    ck->configs = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = h3_path_join(ck->folder, names[i]);
        json_t *j = NULL;
        H3_TRY(h3_ckpt_mark(ck, path));
        H3_TRY(h3_path_exists(path) ? h3_json_load(&j, path) : H3_OK);
        json_object_set_new(ck->configs, names[i], j ? j : json_null());
    }
    return H3_OK;
}

static h3_status load_quant_meta(h3_checkpoint *ck)
{
    const char *text = h3_manifest_meta(ck->m, "_quantization_metadata");
    char *what;
    h3_status st;

    if (!text) return H3_OK;
    what = h3_strdupf("%s: _quantization_metadata", ck->path);
    st = h3_json_parse(&ck->quant_meta, text, strlen(text), what);
    free(what);
    if (st != H3_OK) return st;
    ck->rules.layers = json_object_get(ck->quant_meta, "layers");
    if (!json_is_object(ck->rules.layers))
        return h3_fail(H3_E_FORMAT, "%s: _quantization_metadata has no \"layers\"", ck->path);
    return H3_OK;
}

/* NVFP4 described per file and nowhere per tensor: made straight from the released shards. */
static bool is_straight_nvfp4(const h3_checkpoint *ck)
{
    const char *key;
    json_t *v;
    bool has_nvfp4 = false;

    json_object_foreach(ck->rules.layers, key, v)
    {
        const char *format = json_string_value(json_object_get(v, "format"));
        has_nvfp4 |= format && strcmp(format, "nvfp4") == 0;
    }
    for (int64_t i = 0; has_nvfp4 && i < h3_manifest_count(ck->m); i++)
        if (h3_ends_with(h3_manifest_at(ck->m, i)->name, ".comfy_quant")) return false;
    return has_nvfp4;
}

/* The rule of origin, and why. */
static void decide_origin(h3_checkpoint *ck, const h3_ckpt_opts *opts)
{
    const char *class_name =
        json_string_value(json_object_get(h3_ckpt_config(ck, "config.json"), "_class_name"));
    const char *ours = h3_manifest_meta(ck->m, "h3av.qkv");
    const bool is_vae = ck->naming.role == H3_ROLE_VIDEO_VAE;
    const bool is_straight = is_straight_nvfp4(ck);
    const char *why;

    ck->rules.is_nvfp4_linear = ck->rules.is_nvfp4_low = is_straight;
    if (opts && opts->nvfp4_scales)
        ck->rules.is_nvfp4_linear = opts->nvfp4_scales == H3_NVFP4_LINEAR;
    if (opts && opts->nvfp4_nibble) ck->rules.is_nvfp4_low = opts->nvfp4_nibble == H3_NVFP4_LOW;

    ck->qkv = H3_QKV_STACKED;
    if (opts && opts->qkv != H3_QKV_AUTO && !is_vae) {
        ck->qkv = opts->qkv;
        why = "as asked for";
    } else if (ck->naming.layout == H3_LAYOUT_DIFFUSERS) {
        why = "stored split (diffusers layout)";
    } else if (ours) {
        ck->qkv = strcmp(ours, "interleaved") == 0 ? H3_QKV_INTERLEAVED : H3_QKV_STACKED;
        why = "as its metadata says";
    } else if (is_vae) {
        ck->qkv = H3_QKV_INTERLEAVED;
        why = "every published video VAE";
    } else if (h3_manifest_is_gguf(ck->m)) {
        why = "GGUF";
    } else if (h3_manifest_is_indexed(ck->m)) {
        ck->qkv = H3_QKV_INTERLEAVED;
        why = "released shards (an index)";
    } else if (class_name && strcmp(class_name, "MiniMaxH3DiTModel") == 0) {
        ck->qkv = H3_QKV_INTERLEAVED;
        why = "the released config.json beside it";
    } else if (is_straight) {
        ck->qkv = H3_QKV_INTERLEAVED;
        why = "NVFP4 made straight from the released shards";
    } else {
        why = "a single file of ComfyUI origin";
    }
    snprintf(ck->qkv_reason, sizeof ck->qkv_reason, "%s", why);
}

/* diffusers drops rope.inv_freq: theta^(-i / n), which its config describes. */
static h3_status make_inv_freq(h3_checkpoint *ck)
{
    const json_t *cfg = h3_ckpt_config(ck, "config.json");
    const json_int_t n = json_integer_value(json_object_get(cfg, "rope_freq_dim"));
    const double theta = json_number_value(json_object_get(cfg, "rope_theta"));
    h3_item *it;

    if (ck->naming.layout != H3_LAYOUT_DIFFUSERS || n <= 0 || n > 4096 || !(theta > 0) ||
        h3_ckpt_has(ck, "rope.inv_freq"))
        return H3_OK;
    H3_TRY(get_item(ck, "rope.inv_freq", &it));
    it->made = h3_keep_alloc(&ck->keep, (size_t)n * sizeof(float));
    if (!it->made) return h3_fail(H3_E_NOMEM, "%s: no memory", ck->path);
    for (json_int_t i = 0; i < n; i++)
        it->made[i] = (float)(1.0 / pow(theta, (double)i / (double)n));
    it->rank = 1;
    it->ne[0] = n;
    it->is_bound = true; // computed here: nobody needs to ask for it
    return H3_OK;
}

static h3_status check_role(h3_checkpoint *ck, h3_role role)
{
    const h3_naming *n = &ck->naming;
    const char *what = role == H3_ROLE_TEXT_ENCODER ? "MiniMax-H3 text encoder"
                       : role == H3_ROLE_VIDEO_VAE  ? "MiniMax-H3 video VAE"
                       : role == H3_ROLE_AUDIO_VAE  ? "MiniMax-H3 audio VAE"
                                                    : h3_role_name(role);

    if (n->role == H3_ROLE_DIT && n->layout == H3_LAYOUT_ORIGINAL)
        for (int64_t i = 0; i < h3_manifest_count(ck->m); i++) {
            const char *name = h3_names_strip(n->prefix, h3_manifest_at(ck->m, i)->name);
            if (strncmp(name, "transformer_blocks.", 19) == 0)
                return h3_fail(H3_E_FORMAT, "%s: mixes released names with diffusers' (\"%s\")",
                               ck->path, name);
        }
    if (role == H3_ROLE_UNKNOWN || n->role == role) return H3_OK;
    if (h3_manifest_count(ck->m) == 0)
        return h3_fail(H3_E_FORMAT, "%s: holds no tensors: no %s", ck->path, what);
    if (n->role == H3_ROLE_UNKNOWN)
        return h3_fail(H3_E_FORMAT,
                       "%s: is not a %s: none of its names are in there (first: \"%s\")", ck->path,
                       what, h3_manifest_at(ck->m, 0)->name);
    return h3_fail(H3_E_FORMAT, "%s: is not a %s but %s", ck->path, what,
                   n->role == H3_ROLE_OTHER ? n->other : h3_role_name(n->role));
}

/* llama.cpp keeps the vision tower in its own file: the one beside the text file, if there is one.
 */
static h3_status add_vision_file(h3_checkpoint *ck)
{
    const h3_file *f = h3_manifest_file(ck->m, 0);
    const char *slash = strrchr(f->path, '/');
    char *dir = slash ? h3_strdupf("%.*s", (int)(slash - f->path), f->path) : h3_strdupf("."),
         *found = NULL;
    const struct dirent *e;
    DIR *d = opendir(dir);
    h3_status st = H3_OK;
    int n = 0;

    while (d && (e = readdir(d))) {
        if (!strstr(e->d_name, "mmproj") || !h3_ends_with(e->d_name, ".gguf")) continue;
        free(found);
        found = h3_path_join(dir, e->d_name);
        n++;
    }
    if (d) closedir(d);
    if (n == 1) st = h3_manifest_append(ck->m, found);
    free(found);
    const h3_status marked = h3_ckpt_mark(ck, dir); // another one may come
    return st == H3_OK ? marked : st;
}

bool h3_ckpt_lacks_vision(const h3_checkpoint *ck)
{
    return ck->naming.layout == H3_LAYOUT_LLAMA && !h3_manifest_find(ck->m, "v.blk.0.ln1.weight");
}

static h3_status open_parts(h3_checkpoint *ck, h3_role role, const h3_ckpt_opts *opts)
{
    H3_TRY(h3_manifest_locate(&ck->located, ck->path));
    H3_TRY(h3_ckpt_mark(ck, h3_strdupf("%s", ck->located))); // an index is read, not mapped
    H3_TRY(h3_manifest_open(&ck->m, ck->path));
    if (opts && opts->extra) H3_TRY(h3_manifest_append(ck->m, opts->extra));
    h3_names_detect(&ck->naming, ck->m);
    const bool may_be_encoder =
        role == H3_ROLE_TEXT_ENCODER ||
        (role == H3_ROLE_UNKNOWN && ck->naming.role == H3_ROLE_TEXT_ENCODER);
    if (may_be_encoder && h3_ckpt_lacks_vision(ck) && h3_manifest_is_gguf(ck->m))
        H3_TRY(add_vision_file(ck));
    H3_TRY(load_configs(ck));
    h3_names_detect(&ck->naming, ck->m);
    H3_TRY(check_role(ck, role));
    if (role != H3_ROLE_UNKNOWN) H3_TRY(h3_packing_check(ck->m, ck->path)); // inspect shows it all
    ck->rules.m = ck->m;
    ck->rules.prefix = ck->naming.prefix;
    H3_TRY(load_quant_meta(ck));
    decide_origin(ck, opts);
    for (int64_t i = 0; i < h3_manifest_count(ck->m); i++)
        H3_TRY(file_entry(ck, h3_manifest_at(ck->m, i)));
    H3_TRY(make_inv_freq(ck));
    for (size_t i = 0; i < ck->n_items; i++)
        H3_TRY(join_shapes(ck, &ck->items[i]));
    return H3_OK;
}

h3_status h3_ckpt_open(h3_checkpoint **out, const char *path, h3_role role,
                       const h3_ckpt_opts *opts)
{
    h3_checkpoint *ck = calloc(1, sizeof *ck);
    const char *slash = strrchr(path, '/');
    h3_status st;

    *out = NULL;
    if (!ck) return h3_fail(H3_E_NOMEM, "%s: no memory to open it", path);
    ck->path = h3_strdupf("%s", path);
    ck->folder = h3_path_is_dir(path) ? h3_strdupf("%s", path)
                 : slash              ? h3_strdupf("%.*s", (int)(slash - path), path)
                                      : h3_strdupf(".");
    if (opts) ck->quant = opts->quant;
    st = open_parts(ck, role, opts);
    if (st != H3_OK) {
        h3_ckpt_close(&ck);
        return st;
    }
    *out = ck;
    return H3_OK;
}

void h3_ckpt_close(h3_checkpoint **ckp)
{
    h3_checkpoint *ck = ckp ? *ckp : NULL;

    if (!ck) return;
    for (size_t i = 0; i < ck->n_vectors; i++)
        h3_dev_free(ck->vectors[i].dev, &ck->vectors[i].t);
    for (size_t i = 0; i < ck->n_items; i++)
        free(ck->items[i].name);
    for (size_t i = 0; i < ck->n_adapters; i++)
        h3_adapter_free(&ck->adapters[i]);
    for (size_t i = 0; i < ck->n_marked; i++)
        free(ck->marked[i].path);
    free(ck->marked);
    free(ck->located);
    free(ck->adapters);
    free(ck->vectors);
    free(ck->items);
    h3_names_free(&ck->names);
    h3_keep_free(&ck->keep);
    json_decref(ck->configs);
    json_decref(ck->quant_meta);
    h3_manifest_close(&ck->m);
    free(ck->folder);
    free(ck->path);
    free(ck);
    *ckp = NULL;
}

/* ---- asking ---- */

const char *h3_ckpt_path(const h3_checkpoint *ck)
{
    return ck->path;
}

h3_role h3_ckpt_role(const h3_checkpoint *ck)
{
    return ck->naming.role;
}

h3_qkv_order h3_ckpt_qkv(const h3_checkpoint *ck, const char **reason)
{
    if (reason) *reason = ck->qkv_reason;
    return ck->qkv;
}

const h3_manifest *h3_ckpt_manifest(const h3_checkpoint *ck)
{
    return ck->m;
}

bool h3_ckpt_shape(const h3_checkpoint *ck, const char *name, int *rank, int64_t ne[8])
{
    const h3_item *it = h3_ckpt_item(ck, name);

    if (!it) return false;
    *rank = it->rank;
    memcpy(ne, it->ne, sizeof it->ne);
    return true;
}

int64_t h3_ckpt_count(const h3_checkpoint *ck, const char *pattern)
{
    char name[256];
    int64_t n = 0;

    do {
        snprintf(name, sizeof name, pattern, (int)n);
    } while (h3_ckpt_has(ck, name) && ++n);
    return n;
}

int64_t h3_ckpt_n_tensors(const h3_checkpoint *ck)
{
    return (int64_t)ck->n_items;
}

const char *h3_ckpt_tensor(const h3_checkpoint *ck, int64_t i)
{
    return ck->items[i].rank == UINT8_MAX || !ck->items[i].is_known ? NULL : ck->items[i].name;
}

/* ---- values ---- */

/* w = v * (g / norm(v)), the norm over all but the first axis; torch computes in f32. */
static h3_status multiply_out(const h3_checkpoint *ck, const h3_item *it, float *w)
{
    const h3_entry *g = it->src[0].e, *v = it->src[1].e;
    const int64_t rows = v->ne[0];
    const size_t g_size = h3_dtype_bytes(g->dtype);
    const int64_t cols = rows ? (int64_t)(v->bytes / h3_dtype_bytes(v->dtype)) / rows : 0;

    h3_decode_dtype(v->dtype, v->data, rows * cols, w);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        float gain;
        for (int64_t c = 0; c < cols; c++)
            sum += (double)w[r * cols + c] * (double)w[r * cols + c];
        h3_decode_dtype(g->dtype, g->data + (size_t)r * g_size, 1, &gain);
        if (!(sum <= 1e30) || !(fabsf(gain) <= 1e15f)) // the norm would hide it
            return h3_fail(H3_E_NUMERIC,
                           "%s: tensor \"%s\", row %lld, is no finite number to "
                           "compute with",
                           h3_item_file(ck, it), sum <= 1e30 ? g->name : v->name, (long long)r);
        gain /= (float)sqrt(sum);
        for (int64_t c = 0; c < cols; c++)
            w[r * cols + c] *= gain;
    }
    return H3_OK;
}

/* [out * in, 2, h * w] from two [out * in, h * w]. */
static h3_status weave_frames(h3_checkpoint *ck, const h3_item *it, float *w)
{
    const int64_t n = it->ne[0] * it->ne[1], hw = it->ne[3] * it->ne[4];
    h3_weight_part p;

    for (int f = 0; f < 2; f++) {
        H3_TRY(h3_source_part(&ck->rules, &it->src[f], &ck->keep, &p));
        if (p.encoding > H3_ENC_F16)
            return bad_item(ck, it, "time slices must be F32, BF16 or F16");
        const h3_dtype t = (h3_dtype)p.encoding;
        for (int64_t i = 0; i < n; i++)
            h3_decode_dtype(t, (const unsigned char *)p.data + (size_t)(i * hw) * h3_dtype_bytes(t),
                            hw, w + (2 * i + f) * hw);
    }
    return H3_OK;
}

static int64_t item_numel(const h3_item *it)
{
    int64_t n = 1;
    for (int i = 0; i < it->rank; i++)
        n *= it->ne[i];
    return n;
}

static h3_status make_values(h3_checkpoint *ck, h3_item *it)
{
    h3_status st = H3_OK;

    if (it->made) return H3_OK;
    it->made = h3_keep_alloc(&ck->keep, (size_t)item_numel(it) * sizeof *it->made);
    if (!it->made) return h3_fail(H3_E_NOMEM, "%s: no memory for \"%s\"", ck->path, it->name);
    if (it->piece == H3_PIECE_NORM)
        st = multiply_out(ck, it, it->made);
    else
        st = weave_frames(ck, it, it->made);
    return st;
}

bool h3_item_is_interleaved(const h3_checkpoint *ck, const h3_item *it)
{
    if (it->piece == H3_PIECE_STACK) return false;
    return ck->qkv == H3_QKV_INTERLEAVED &&
           ((ck->naming.role == H3_ROLE_DIT && strstr(it->name, ".attn.qkv_proj.")) ||
            (ck->naming.role == H3_ROLE_VIDEO_VAE && strstr(it->name, ".attn.to_qkv.")));
}

h3_status h3_item_parts(h3_checkpoint *ck, h3_item *it, h3_weight_part *part, int *n)
{
    h3_weight_part p;

    if (it->made || it->piece == H3_PIECE_NORM || it->piece == H3_PIECE_FRAME) {
        H3_TRY(make_values(ck, it));
        const int64_t rows = it->rank ? it->ne[0] : 1, cols = rows ? item_numel(it) / rows : 0;
        part[0] = (h3_weight_part){.data = it->made,
                                   .rows = rows,
                                   .cols = cols,
                                   .full_rows = rows,
                                   .row_bytes = (size_t)cols * sizeof(float),
                                   .bytes = (size_t)(rows * cols) * sizeof(float),
                                   .encoding = H3_ENC_F32,
                                   .global = 1.0f};
        *n = 1;
        return H3_OK;
    }
    if (it->piece == H3_PIECE_SWAP) {
        H3_TRY(h3_source_part(&ck->rules, &it->src[0], &ck->keep, &p));
        const int64_t half = p.rows / 2;
        part[0] = h3_part_slice(&p, half, half);
        part[1] = h3_part_slice(&p, 0, half);
        *n = 2;
        return H3_OK;
    }
    *n = it->piece == H3_PIECE_STACK ? 3 : 1;
    for (int i = 0; i < *n; i++)
        H3_TRY(h3_source_part(&ck->rules, &it->src[i], &ck->keep, &part[i]));
    return H3_OK;
}

/* A vector's part as one long row, which decodes in one go. */
static h3_weight_part as_row(const h3_weight_part *p)
{
    h3_weight_part row = *p;
    if (p->cols != 1) return row;
    row.cols = p->rows;
    row.rows = 1;
    if (p->encoding == H3_ENC_GGML && p->row_bytes == 0) { // blocks along the vector
        row.row0 = 0;
        if (p->row0) return *p;
    }
    row.row_bytes = p->row_bytes * (size_t)p->rows;
    return row;
}

h3_status h3_item_floats(h3_checkpoint *ck, h3_item *it, float *out)
{
    h3_weight_part part[H3_MAX_PARTS], row;
    int n;

    H3_TRY(h3_item_parts(ck, it, part, &n));
    for (int i = 0; i < n; i++) {
        row = part[i].encoding <= H3_ENC_F16 || part[i].encoding == H3_ENC_GGML ? as_row(&part[i])
                                                                                : part[i];
        h3_weight_decode_rows(&row, 0, row.rows, out);
        out += part[i].rows * part[i].cols;
    }
    return H3_OK;
}

static h3_status missing(const h3_checkpoint *ck, const char *name, const char *expected)
{
    return h3_fail(H3_E_MISSING, "%s: tensor \"%s\" is missing (expected %s)", ck->path, name,
                   expected);
}

/* "[96768, 8]" */
static void shape_text(char *s, size_t n, int rank, const int64_t *ne)
{
    size_t at = (size_t)snprintf(s, n, "[");
    for (int i = 0; i < rank && at < n; i++)
        at += (size_t)snprintf(s + at, n - at, "%s%lld", i ? ", " : "", (long long)ne[i]);
    if (at < n) snprintf(s + at, n - at, "]");
}

static h3_status wrong_shape(const h3_checkpoint *ck, const h3_item *it, const char *expected)
{
    char got[160];
    shape_text(got, sizeof got, it->rank, it->ne);
    return h3_fail(H3_E_SHAPE, "%s: tensor \"%s\" is %s, expected %s", h3_item_file(ck, it),
                   it->name, got, expected);
}

h3_status h3_ckpt_floats(h3_checkpoint *ck, float *out, const char *name, int64_t n)
{
    h3_item *it = item_mut(ck, name);
    char expected[64];

    snprintf(expected, sizeof expected, "%lld elements", (long long)n);
    if (!it) return missing(ck, name, expected);
    if (item_numel(it) != n) return wrong_shape(ck, it, expected);
    H3_TRY(h3_item_floats(ck, it, out));
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(out[i]) <= 1e15f)) // see poison.c
            return h3_fail(H3_E_NUMERIC,
                           "%s: tensor \"%s\" holds %g, which is no finite number to "
                           "compute with",
                           h3_item_file(ck, it), name, (double)out[i]);
    it->is_bound = true;
    return H3_OK;
}

h3_status h3_ckpt_vector(h3_checkpoint *ck, h3_dev *d, h3_tensor *out, const char *name, int64_t n)
{
    float *host = malloc((size_t)(n > 0 ? n : 1) * sizeof *host);
    h3_status st;

    memset(out, 0, sizeof *out);
    if (!host) return h3_fail(H3_E_NOMEM, "%s: no memory for \"%s\"", ck->path, name);
    st = h3_ckpt_floats(ck, host, name, n);
    if (st == H3_OK && ck->n_vectors == ck->cap_vectors) {
        const size_t cap = ck->cap_vectors ? 2 * ck->cap_vectors : 256;
        h3_device_vector *v = realloc(ck->vectors, cap * sizeof *v);
        if (v) {
            ck->vectors = v;
            ck->cap_vectors = cap;
        } else {
            st = h3_fail(H3_E_NOMEM, "%s: no memory for \"%s\"", ck->path, name);
        }
    }
    if (st == H3_OK) st = h3_dev_alloc(d, out, H3_F32, 1, &n);
    if (st == H3_OK) {
        ck->vectors[ck->n_vectors++] = (h3_device_vector){d, *out};
        st = h3_dev_upload(d, *out, host);
    }
    free(host);
    return st;
}

h3_status h3_ckpt_matrix(h3_checkpoint *ck, h3_dev *d, h3_weight *out, const char *name,
                         int64_t rows, int64_t cols, bool has_bias)
{
    char full[256], expected[64];
    h3_item *it;
    int n;

    memset(out, 0, sizeof *out);
    snprintf(full, sizeof full, "%s.weight", name);
    snprintf(expected, sizeof expected, "[%lld, %lld]", (long long)rows, (long long)cols);
    it = item_mut(ck, full);
    if (!it) return missing(ck, full, expected);
    const bool must_be_flat = ck->naming.role == H3_ROLE_DIT;
    if (it->rank < 2 || (must_be_flat && it->rank != 2) || it->ne[0] != rows ||
        item_numel(it) / (rows > 0 ? rows : 1) != cols || item_numel(it) % (rows > 0 ? rows : 1))
        return wrong_shape(ck, it, expected);
    H3_TRY(h3_item_parts(ck, it, out->part, &n));
    H3_TRY(h3_item_expand(ck, it, d, out->part, n));
    out->name = it->name; // with ".weight"; h3_bind and messages cut nothing
    out->rows = rows;
    out->cols = cols;
    out->n_parts = n;
    out->interleaved = h3_item_is_interleaved(ck, it);
    out->is_made = it->made != NULL;
    for (int i = 0; i < n; i++)
        out->is_made = out->is_made || it->expanded[i];
    if (!ck->is_counted && !d->is_plan) {
        d->loaded.files += h3_manifest_n_files(ck->m);
        ck->is_counted = true;
    }
    H3_TRY(h3_lora_bind(ck, it, out));
    it->is_bound = it->is_used = true;
    if (d->mem == H3_HOST)
        for (int i = 0; i < n; i++)
            out->part[i].dev = (void *)(uintptr_t)out->part[i].data;
    if (has_bias) {
        snprintf(full, sizeof full, "%s.bias", name);
        H3_TRY(h3_ckpt_vector(ck, d, &out->bias, full, rows));
    }
    return H3_OK;
}

/* ---- what was left over ---- */

void h3_ckpt_ignore(h3_checkpoint *ck, const char *pattern)
{
    for (size_t i = 0; i < ck->n_items; i++)
        if (h3_name_match(pattern, ck->items[i].name)) ck->items[i].is_bound = true;
}

h3_status h3_ckpt_finish(h3_checkpoint *ck)
{
    const h3_item *first = NULL;
    int64_t n = 0;

    for (size_t i = 0; i < ck->n_items; i++) {
        const h3_item *it = &ck->items[i];
        if (!it->is_known || it->is_bound) continue;
        if (!first) first = it;
        n++;
    }
    if (!first) return H3_OK;
    return h3_fail(H3_E_FORMAT,
                   "%s: tensor \"%s\" is not part of the model that the rest of the file describes "
                   "(%lld such tensors)",
                   h3_item_file(ck, first), first->name, (long long)n);
}

char *h3_ckpt_strangers(const h3_checkpoint *ck)
{
    char *text = NULL;
    int64_t n = 0;

    for (size_t i = 0; i < ck->n_items; i++) {
        if (ck->items[i].is_known) continue;
        if (n++ < 3) {
            char *longer =
                h3_strdupf("%s%s%.100s", text ? text : "", text ? ", " : "", ck->items[i].name);
            free(text);
            text = longer;
        }
    }
    if (n > 3) {
        char *longer = h3_strdupf("%s and %lld more", text, (long long)(n - 3));
        free(text);
        text = longer;
    }
    return text;
}
