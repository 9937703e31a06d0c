/** See inspect.h. */
#include "inspect.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "geometry.h"
#include "json.h"
#include "packing.h"
#include "parts.h"
#include "qkv_check.h"
#include "suffix.h"

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static void put_text(json_t *o, const char *key, const char *text)
{
    if (text) json_object_set_new(o, key, json_string(text));
}

static void put_int(json_t *o, const char *key, int64_t v)
{
    json_object_set_new(o, key, json_integer(v));
}

/* ---- classes of tensors ---- */

static const char *class_of(const h3_checkpoint *ck, const h3_item *it)
{
    const char *n = it->name;

    if (it->rank < 2) return "vectors";
    switch (ck->naming.role) {
    case H3_ROLE_DIT:
        if (strstr(n, "adaln")) return "AdaLN";
        if (starts(n, "blocks.")) return "blocks";
        if (starts(n, "token_refiner.")) return "refiner";
        return "embedders and heads";
    case H3_ROLE_TEXT_ENCODER:
        if (starts(n, "model.visual.")) return "vision";
        if (strstr(n, "embed_tokens")) return "embedding";
        return starts(n, "lm_head") ? "head" : "text";
    case H3_ROLE_VIDEO_VAE:
    case H3_ROLE_AUDIO_VAE:
        return starts(n, "encoder.") ? "encoder" : "decoder";
    default:
        return "matrices";
    }
}

static size_t item_bytes(const h3_item *it)
{
    size_t n = 0;
    for (int i = 0; i < it->n_src; i++)
        n += h3_source_bytes(&it->src[i]);
    return n;
}

/* Encoding of an item's pieces: "Q4_K", or "Q4_K + Q6_K" when they differ; of what cannot be read
 * its type where it has a name, and why is added to `problems`. malloc'd. */
static char *encoding_of(h3_checkpoint *ck, h3_item *it, json_t *problems)
{
    h3_weight_part part[H3_MAX_PARTS];
    char *text = NULL;
    const char *last = "";

    if (it->made || it->piece == H3_PIECE_NORM || it->piece == H3_PIECE_FRAME)
        return h3_strdupf("%s", it->src[0].e ? "F32" : "computed");
    for (int i = 0; i < it->n_src; i++) {
        const char *name;
        char *longer;
        if (h3_source_part(&ck->rules, &it->src[i], &ck->keep, &part[i]) != H3_OK) {
            const h3_entry *e = it->src[i].e;
            const char *type =
                e && e->dtype == H3_DTYPE_COUNT ? h3_ggml_type(e->ggml_type).name : NULL;
            json_array_append_new(problems, json_string(h3_error()));
            free(text);
            return h3_strdupf("%s", type ? type : "unreadable");
        }
        name = h3_part_encoding_name(&part[i]);
        if (strcmp(name, last) == 0) continue;
        longer = h3_strdupf("%s%s%s", text ? text : "", text ? " + " : "", name);
        free(text);
        text = longer;
        last = name;
    }
    return text ? text : h3_strdupf("?");
}

static void count_in(json_t *classes, const char *class_name, const char *encoding, size_t bytes)
{
    json_t *c = json_object_get(classes, class_name), *e;

    if (!c) {
        c = json_object();
        json_object_set_new(classes, class_name, c);
    }
    e = json_object_get(c, encoding);
    if (!e) {
        e = json_pack("{s:i, s:i}", "tensors", 0, "bytes", 0);
        json_object_set_new(c, encoding, e);
    }
    put_int(e, "tensors", json_integer_value(json_object_get(e, "tensors")) + 1);
    put_int(e, "bytes", json_integer_value(json_object_get(e, "bytes")) + (int64_t)bytes);
}

static void put_quantization(json_t *o, h3_checkpoint *ck, bool verbose)
{
    json_t *classes = json_object(), *all = json_object();

    for (size_t i = 0; i < ck->n_items; i++) {
        h3_item *it = &ck->items[i];
        char *encoding;
        if (!it->is_known || it->rank == UINT8_MAX) continue;
        encoding = encoding_of(ck, it, json_object_get(o, "problems"));
        count_in(classes, class_of(ck, it), encoding, item_bytes(it));
        if (verbose) {
            json_t *shape = json_array();
            for (int k = 0; k < it->rank; k++)
                json_array_append_new(shape, json_integer(it->ne[k]));
            json_object_set_new(all, it->name,
                                json_pack("{s:o, s:s, s:I}", "shape", shape, "encoding", encoding,
                                          "bytes", (json_int_t)item_bytes(it)));
        }
        free(encoding);
    }
    json_object_set_new(o, "quantization", classes);
    if (verbose) json_object_set_new(o, "all", all);
    if (!verbose) json_decref(all);
}

/* ---- one checkpoint ---- */

static void put_container(json_t *o, const h3_checkpoint *ck)
{
    static const char *const layouts[] = {"released", "diffusers", "ComfyUI", "llama.cpp"};
    const h3_manifest *m = ck->m;
    size_t bytes = 0;

    for (int64_t i = 0; i < h3_manifest_count(m); i++)
        bytes += h3_manifest_at(m, i)->bytes;
    put_text(o, "container", h3_manifest_is_gguf(m) ? "GGUF" : "safetensors");
    if (ck->naming.role != H3_ROLE_UNKNOWN && ck->naming.role != H3_ROLE_OTHER)
        put_text(o, "layout", layouts[ck->naming.layout]);
    if (*ck->naming.prefix) put_text(o, "prefix", ck->naming.prefix);
    put_int(o, "files", h3_manifest_n_files(m));
    put_int(o, "tensors", h3_manifest_count(m));
    put_int(o, "bytes", (int64_t)bytes);
}

static void put_qkv(json_t *o, h3_checkpoint *ck)
{
    h3_qkv_check check;
    json_t *q = json_object();

    put_text(q, "order",
             ck->naming.layout == H3_LAYOUT_DIFFUSERS ? "split"
             : ck->qkv == H3_QKV_INTERLEAVED          ? "interleaved"
                                                      : "stacked");
    put_text(q, "reason", ck->qkv_reason);
    if (h3_ckpt_check_qkv(ck, &check) == H3_OK && check.is_done) {
        json_object_set_new(q, "interleaved", json_real(check.interleaved));
        json_object_set_new(q, "stacked", json_real(check.stacked));
        json_object_set_new(q, "doubtful", json_boolean(check.is_doubtful));
    }
    json_object_set_new(o, "qkv", q);
}

static void put_geometry(json_t *o, h3_checkpoint *ck)
{
    h3_geometry g;
    json_t *problems = json_array(), *sizes = json_object();

    if (h3_packing_check(ck->m, ck->path) != H3_OK)
        json_array_append_new(problems, json_string(h3_error()));
    if (h3_geometry_read(&g, ck, problems) == H3_OK)
        for (int i = 0; i < g.n; i++)
            put_int(sizes, g.dim[i].name, g.dim[i].value);
    if (ck->naming.role == H3_ROLE_TEXT_ENCODER && h3_ckpt_lacks_vision(ck))
        json_array_insert_new(
            problems, 0,
            json_sprintf("%s: holds no vision tower; llama.cpp has it in a second file, of which "
                         "one, called *mmproj*.gguf, has to lie beside it",
                         ck->path));
    json_object_set_new(o, "geometry", sizes);
    json_object_set_new(o, "problems", problems);
    if (ck->naming.role == H3_ROLE_DIT)
        put_text(o, "form", h3_ckpt_has(ck, "adaln_t_table") ? "AdaLN curve (pruned)" : "full");
    if (ck->naming.role == H3_ROLE_TEXT_ENCODER) {
        char text[48];
        snprintf(text, sizeof text, "%lld layers", (long long)h3_geometry_dim(&g, "layers"));
        put_text(o, "form", text);
    }
}

static void put_adapter(json_t *o, const h3_manifest *m)
{
    static const char *const keys[] = {"alpha", "lora_alpha", "ss_network_alpha", "key_format"};
    json_t *a = json_object();
    int64_t lo = 0, hi = 0, pairs = 0, alphas = 0;
    bool kohya = false, diffusers = false;

    for (int64_t i = 0; i < h3_manifest_count(m); i++) {
        const h3_entry *e = h3_manifest_at(m, i);
        kohya |= starts(e->name, "lora_unet_");
        diffusers |= strstr(e->name, "transformer_blocks.") || strstr(e->name, "refiner_blocks.");
        alphas += h3_ends_with(e->name, ".alpha");
        if ((!strstr(e->name, ".lora_A.") && !strstr(e->name, ".lora_down.")) || e->rank < 1)
            continue;
        pairs++;
        if (!lo || e->ne[0] < lo) lo = e->ne[0];
        if (e->ne[0] > hi) hi = e->ne[0];
    }
    put_text(a, "keys", kohya ? "kohya" : diffusers ? "diffusers" : "original");
    put_int(a, "modules", pairs);
    put_int(a, "rank_min", lo);
    put_int(a, "rank_max", hi);
    put_int(a, "alpha_tensors", alphas);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        put_text(a, keys[i], h3_manifest_meta(m, keys[i]));
    json_object_set_new(o, "adapter", a);
}

/* What latents and checkpoints were made of: the request to go on with, for who has lost it. */
static void put_settings(json_t *o, const char *saved)
{
    json_t *settings = saved ? json_loads(saved, 0, NULL) : NULL;

    if (json_is_object(settings)) {
        (void)json_object_del(settings, "fingerprint");
        json_object_set(o, "settings", settings);
    }
    json_decref(settings);
}

static h3_status inspect_file(json_t **out, const char *path, const h3_ckpt_opts *opts,
                              bool verbose)
{
    static const char *const words[] = {"unknown",   "dit",  "text_encoder", "video_vae",
                                        "audio_vae", "lora", "other"};
    h3_checkpoint *ck = NULL;
    json_t *o;
    char *strangers;

    H3_TRY(h3_ckpt_open(&ck, path, H3_ROLE_UNKNOWN, opts));
    ck->rules.skips_values = true;
    o = json_object();
    put_text(o, "path", path);
    put_text(o, "role", words[ck->naming.role]);
    put_text(o, "what",
             ck->naming.role == H3_ROLE_OTHER     ? ck->naming.other
             : ck->naming.role != H3_ROLE_UNKNOWN ? h3_role_name(ck->naming.role)
             : h3_manifest_meta(ck->m, "h3av") != NULL
                 ? "saved by h3av: latents (h3av decode) or a "
                   "checkpoint (generate --resume)"
                 : "no part of MiniMax-H3");
    if (ck->naming.role == H3_ROLE_UNKNOWN) put_settings(o, h3_manifest_meta(ck->m, "h3av"));
    put_container(o, ck);
    if (ck->naming.role == H3_ROLE_LORA) {
        put_adapter(o, ck->m);
    } else {
        put_geometry(o, ck);
        if (ck->naming.role == H3_ROLE_DIT) {
            put_text(o, "partition", h3_partition_in(ck->m, path));
            put_qkv(o, ck);
        }
        put_quantization(o, ck, verbose);
        strangers = h3_ckpt_strangers(ck);
        put_text(o, "ignored", strangers);
        free(strangers);
    }
    h3_ckpt_close(&ck);
    *out = o;
    return H3_OK;
}

/* ---- a folder ---- */

static h3_status inspect_folder(json_t **out, const char *path, const h3_ckpt_opts *opts)
{
    h3_parts p;
    json_t *o, *parts = json_object(), *missing = json_array();

    H3_TRY(h3_parts_find(&p, path));
    const struct {
        const char *name, *path;
        bool is_needed;
    } list[] = {
        {"dit", p.dit ? p.dit : p.dit_any, true}, {"dit_ref", p.dit_ref, true},
        {"text_encoder", p.text_encoder, true},   {"mmproj", p.mmproj, false},
        {"video_vae", p.video_vae, true},         {"audio_vae", p.audio_vae, true},
    };
    o = json_object();
    put_text(o, "path", path);
    put_text(o, "role", "model");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        json_t *part = NULL;
        if (list[i].path && inspect_file(&part, list[i].path, opts, false) != H3_OK)
            part = json_pack("{s:s, s:s}", "path", list[i].path, "error", h3_error());
        if (part) json_object_set_new(parts, list[i].name, part);
        if (!part && list[i].is_needed)
            json_array_append_new(missing, json_pack("{s:s, s:s}", "part", list[i].name, "from",
                                                     h3_parts_advice(list[i].name)));
    }
    if (p.tokenizer)
        json_object_set_new(parts, "tokenizer", json_pack("{s:s}", "path", p.tokenizer));
    else
        json_array_append_new(missing, json_pack("{s:s, s:s}", "part", "tokenizer", "from",
                                                 h3_parts_advice("tokenizer")));
    json_object_set_new(o, "parts", parts);
    json_object_set_new(o, "missing", missing);
    put_text(o, "notes", p.notes);
    h3_parts_free(&p);
    *out = o;
    return H3_OK;
}

/* Does a folder hold several parts of a model, one of which could stand for it? */
static bool is_collection(const char *path)
{
    h3_parts p;
    int n = 0;

    if (h3_parts_find(&p, path) != H3_OK) return false;
    const char *const found[] = {p.dit,          p.dit_ref,   p.dit_any,
                                 p.text_encoder, p.video_vae, p.audio_vae};
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        n += found[i] != NULL;
    h3_parts_free(&p);
    return n > 1;
}

h3_status h3_inspect_path(json_t **out, const char *path, const h3_ckpt_opts *opts, bool verbose)
{
    char *file = NULL;

    *out = NULL;
    H3_TRY(h3_path_need(path, "file or folder"));
    if (!h3_path_is_dir(path)) return inspect_file(out, path, opts, verbose);
    if (h3_manifest_locate(&file, path) == H3_OK) {
        free(file);
        return is_collection(path) ? inspect_folder(out, path, opts)
                                   : inspect_file(out, path, opts, verbose);
    }
    return inspect_folder(out, path, opts);
}

/* ---- text ---- */

typedef struct lines {
    char *text;
    size_t n;
} lines;

static void line(lines *l, int indent, const char *text)
{
    char *grown = realloc(l->text, l->n + (size_t)indent + strlen(text) + 2);

    if (!grown) return;
    l->text = grown;
    memset(grown + l->n, ' ', (size_t)indent);
    strcpy(grown + l->n + indent, text);
    l->n += (size_t)indent + strlen(text);
    strcpy(grown + l->n++, "\n");
}

static void linef(lines *l, int indent, char *text)
{
    line(l, indent, text);
    free(text);
}

static const char *str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t num(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void text_classes(lines *l, int indent, const json_t *q)
{
    const char *class_name, *encoding;
    json_t *c, *e;

    json_object_foreach((json_t *)(uintptr_t)q, class_name, c) json_object_foreach(c, encoding, e)
        linef(l, indent,
              h3_strdupf("%-20s %-16s %5lld tensors %9.3f GB", class_name, encoding,
                         (long long)num(e, "tensors"), (double)num(e, "bytes") / 1e9));
}

static void text_adapter(lines *l, int in, const json_t *a)
{
    linef(l, in,
          h3_strdupf("%lld modules, %s keys, rank %lld to %lld, alpha %s",
                     (long long)num(a, "modules"), str(a, "keys"), (long long)num(a, "rank_min"),
                     (long long)num(a, "rank_max"),
                     *str(a, "alpha")          ? str(a, "alpha")
                     : num(a, "alpha_tensors") ? "per module"
                                               : "absent (scale 1)"));
}

static void text_problems(lines *l, int in, const json_t *problems)
{
    json_t *v;
    size_t i;

    json_array_foreach(problems, i, v)
    {
        if (i == 10) {
            linef(l, in, h3_strdupf("and %zu problems more", json_array_size(problems) - i));
            break;
        }
        linef(l, in, h3_strdupf("PROBLEM: %s", json_string_value(v)));
    }
}

static void text_tensors(lines *l, int in, json_t *all)
{
    const char *name;
    json_t *v;

    json_object_foreach(all, name, v)
    {
        const json_t *shape = json_object_get(v, "shape");
        char dims[128] = "";
        for (size_t i = 0; i < json_array_size(shape); i++)
            snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%lld", i ? ", " : "",
                     (long long)json_integer_value(json_array_get(shape, i)));
        linef(l, in, h3_strdupf("  %s [%s] %s", name, dims, str(v, "encoding")));
    }
}

static void text_checkpoint(lines *l, int in, const json_t *o)
{
    const json_t *qkv = json_object_get(o, "qkv"), *adapter = json_object_get(o, "adapter");
    const char *key, *form = str(o, "form"), *partition = str(o, "partition");
    json_t *v;

    if (*str(o, "error")) {
        linef(l, in, h3_strdupf("unreadable: %s", str(o, "error")));
        return;
    }
    linef(l, in,
          h3_strdupf("%s%s%s%s%s", str(o, "what"), *form ? ", " : "", form, *partition ? ", " : "",
                     partition));
    linef(l, in,
          h3_strdupf("%s, %s names, %lld file%s, %lld tensors, %.3f GB", str(o, "container"),
                     *str(o, "layout") ? str(o, "layout") : "other", (long long)num(o, "files"),
                     num(o, "files") == 1 ? "" : "s", (long long)num(o, "tensors"),
                     (double)num(o, "bytes") / 1e9));
    if (qkv) {
        linef(l, in, h3_strdupf("q/k/v rows: %s (%s)", str(qkv, "order"), str(qkv, "reason")));
        if (json_is_true(json_object_get(qkv, "doubtful")))
            line(l, in, "WARNING: the numbers look like the other row order; try --qkv");
    }
    if (adapter) text_adapter(l, in, adapter);
    text_classes(l, in, json_object_get(o, "quantization"));
    json_object_foreach(json_object_get(o, "geometry"), key, v)
        linef(l, in, h3_strdupf("%-20s %lld", key, (long long)json_integer_value(v)));
    json_object_foreach(json_object_get(o, "settings"), key, v)
    { // as JSON has it: a prompt may hold lines and worse
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        linef(l, in, h3_strdupf("%-20s %s", key, text ? text : ""));
        free(text);
    }
    if (*str(o, "ignored")) linef(l, in, h3_strdupf("not used: %s", str(o, "ignored")));
    text_problems(l, in, json_object_get(o, "problems"));
    text_tensors(l, in, json_object_get(o, "all"));
}

char *h3_inspect_text(const json_t *o)
{
    lines l = {0};
    const char *part;
    json_t *v;
    size_t i;

    line(&l, 0, str(o, "path"));
    if (strcmp(str(o, "role"), "model") != 0) {
        text_checkpoint(&l, 2, o);
        return l.text;
    }
    json_object_foreach(json_object_get(o, "parts"), part, v)
    {
        linef(&l, 2, h3_strdupf("%s: %s", part, str(v, "path")));
        if (json_object_get(v, "role") || json_object_get(v, "error")) text_checkpoint(&l, 4, v);
    }
    json_array_foreach(json_object_get(o, "missing"), i, v)
        linef(&l, 2, h3_strdupf("missing %s: take it from %s", str(v, "part"), str(v, "from")));
    if (*str(o, "notes")) line(&l, 2, str(o, "notes"));
    return l.text;
}
