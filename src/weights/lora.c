/**
 * See lora.h. Three steps: group the file's keys by module; find each module's matrix and the rows
 * it addresses; check and record. The scale is alpha / rank: alpha from the module's own tensor,
 * else from the file's metadata or an adapter_config.json beside it, else as given, else there is
 * none and the scale is 1.
 */
#include "lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "json.h"
#include "lora_impl.h"
#include "number.h"
#include "suffix.h"

enum { FACTOR_A = 0, FACTOR_B = 1, FACTOR_ALPHA = 2, FACTOR_NONE = 3 };

/* A module of the file. */
typedef struct module {
    char *key;    ///< as spelled, without the factor's suffix
    char *target; ///< canonical name of the matrix ("blocks.0.attn.qkv_proj.weight")
    uint8_t piece, slot;
    bool has_default; ///< ".default." between lora_A and weight
    const h3_entry *factor[3];
} module;

typedef struct job {
    h3_checkpoint *ck;
    const char *path;
    h3_lora_opts opts;
    h3_adapter *ad;
    module *mods;
    size_t n_mods, cap_mods;
    h3_name_table by_key;    ///< module key -> index
    h3_name_table by_target; ///< "target#slot" -> index
    h3_name_table flat;      ///< flattened module name -> index into flat_names
    char **flat_names;       ///< pairs: flattened, dotted
    size_t n_flat, cap_flat;
    char **owned; ///< strings of by_target
    size_t n_owned;
    float file_alpha; ///< NaN: none
    bool is_kohya, is_diffusers, is_diffsynth;
} job;

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static h3_status bad(const job *j, const char *module_name, const char *what)
{
    return h3_fail(H3_E_FORMAT, "%s: lora module \"%s\": %s", j->path, module_name, what);
}

static h3_status no_memory(const job *j)
{
    return h3_fail(H3_E_NOMEM, "%s: no memory for its list of modules", j->path);
}

/* ---- keys ---- */

/* Length of the module's name in a key and which factor it is. */
static size_t split_key(const char *name, int *factor, bool *has_default)
{
    static const struct {
        const char *mark;
        int factor;
    } marks[] = {{".lora_A.", FACTOR_A},  {".lora_B.", FACTOR_B},    {".lora_down.", FACTOR_A},
                 {".lora_up.", FACTOR_B}, {".lora.down.", FACTOR_A}, {".lora.up.", FACTOR_B}};

    *has_default = false;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *at = strstr(name, marks[i].mark);
        if (!at || !h3_ends_with(name, ".weight")) continue;
        *factor = marks[i].factor;
        *has_default = strcmp(at + strlen(marks[i].mark), "weight") != 0;
        return (size_t)(at - name);
    }
    if (h3_ends_with(name, ".alpha")) {
        *factor = FACTOR_ALPHA;
        return strlen(name) - strlen(".alpha");
    }
    *factor = FACTOR_NONE;
    return strlen(name);
}

static h3_status get_module(job *j, const char *name, size_t n, module **out)
{
    char *key = h3_strdupf("%.*s", (int)n, name);
    const int64_t at = h3_names_find(&j->by_key, key);

    if (at >= 0) {
        free(key);
        *out = &j->mods[at];
        return H3_OK;
    }
    if (j->n_mods == j->cap_mods) {
        const size_t cap = j->cap_mods ? 2 * j->cap_mods : 256;
        module *m = realloc(j->mods, cap * sizeof *m);
        if (!m) {
            free(key);
            return no_memory(j);
        }
        j->mods = m;
        j->cap_mods = cap;
    }
    j->mods[j->n_mods] = (module){.key = key};
    if (!h3_names_add(&j->by_key, key, (uint32_t)j->n_mods)) {
        free(key);
        return no_memory(j);
    }
    *out = &j->mods[j->n_mods++];
    return H3_OK;
}

static h3_status group_keys(job *j)
{
    const h3_manifest *m = j->ad->m;

    for (int64_t i = 0; i < h3_manifest_count(m); i++) {
        const h3_entry *e = h3_manifest_at(m, i);
        module *mod;
        int factor;
        bool has_default;
        const size_t n = split_key(e->name, &factor, &has_default);
        if (factor == FACTOR_NONE) {
            if (strstr(e->name, "dora_scale") || strstr(e->name, "magnitude_vector"))
                return bad(j, e->name, "DoRA adapters are not supported");
            if (strstr(e->name, ".hada_") || strstr(e->name, ".lokr_"))
                return bad(j, e->name, "LoHa and LoKr adapters are not supported");
            if (strstr(e->name, ".lora_mid.")) // between A and B: without it the product is another
                return bad(j, e->name, "adapters with a middle factor are not supported");
        }
        H3_TRY(get_module(j, e->name, n, &mod));
        if (factor == FACTOR_NONE) continue; // listed as unmatched
        if (mod->factor[factor]) return bad(j, mod->key, "a factor is there twice");
        mod->factor[factor] = e;
        if (factor != FACTOR_ALPHA) mod->has_default |= has_default;
    }
    return H3_OK;
}

/* ---- module names ---- */

static h3_status add_flat(job *j, const char *dotted)
{
    char *flat = h3_strdupf("%s", dotted);

    for (char *p = flat; *p; p++)
        if (*p == '.') *p = '_';
    if (h3_names_find(&j->flat, flat) >= 0) {
        free(flat);
        return H3_OK;
    }
    if (j->n_flat + 2 > j->cap_flat) {
        const size_t cap = j->cap_flat ? 2 * j->cap_flat : 1024;
        char **names = realloc(j->flat_names, cap * sizeof *names);
        if (!names) {
            free(flat);
            return no_memory(j);
        }
        j->flat_names = names;
        j->cap_flat = cap;
    }
    j->flat_names[j->n_flat] = flat;
    j->flat_names[j->n_flat + 1] = h3_strdupf("%s", dotted);
    j->n_flat += 2;
    if (!h3_names_add(&j->flat, flat, (uint32_t)j->n_flat - 2)) return no_memory(j);
    return H3_OK;
}

/* kohya writes '_' for '.', and names hold underscores of their own: so every matrix of the model
 * is flattened, in both spellings, and looked up. */
static h3_status build_flat(job *j)
{
    static const struct {
        const char *original, *diffusers;
    } leaves[] = {{".attn.qkv_proj", ".attn.to_q"},   {".attn.qkv_proj", ".attn.to_k"},
                  {".attn.qkv_proj", ".attn.to_v"},   {".attn.out_proj", ".attn.to_out.0"},
                  {".attn.out_proj", ".attn.to_out"}, {".mlp.fc1", ".ff.net.0.proj"},
                  {".mlp.fc2", ".ff.net.2"},          {".adaln_proj.linear", ".adaln_proj.linear"}};

    for (size_t i = 0; i < j->ck->n_items; i++) {
        const h3_item *it = &j->ck->items[i];
        const bool is_refiner = starts(it->name, "token_refiner.blocks.");
        char *name;
        h3_status st;
        if (!it->is_known || it->rank != 2 || !h3_ends_with(it->name, ".weight")) continue;
        name = h3_strdupf("%.*s", (int)(strlen(it->name) - 7), it->name);
        st = add_flat(j, name);
        for (size_t k = 0; k < sizeof leaves / sizeof *leaves && st == H3_OK; k++) {
            char *other;
            if (!h3_ends_with(name, leaves[k].original)) continue;
            const int stem = (int)(strlen(name) - strlen(leaves[k].original));
            other = is_refiner ? h3_strdupf("token_refiner.refiner_blocks.%.*s%s", stem - 21,
                                            name + 21, leaves[k].diffusers)
                               : h3_strdupf("transformer_%.*s%s", stem, name, leaves[k].diffusers);
            st = add_flat(j, other);
            free(other);
        }
        free(name);
        H3_TRY(st);
    }
    return H3_OK;
}

/* Canonical name of a module's matrix, or NULL. */
static h3_status find_target(job *j, module *m)
{
    static const char *const prefixes[] = {"base_model.model.", "model.diffusion_model.",
                                           "diffusion_model.", "transformer."};
    static const h3_naming diffusers = {
        .role = H3_ROLE_DIT, .layout = H3_LAYOUT_DIFFUSERS, .prefix = ""};
    const char *name = m->key;
    h3_canonical c;
    char *full;

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (starts(name, prefixes[i])) name += strlen(prefixes[i]);
    if (starts(name, "lora_unet_") || starts(name, "lora_transformer_")) {
        const char *flat = strchr(name + 5, '_') + 1;
        int64_t at;
        if (!j->flat.n) H3_TRY(build_flat(j));
        at = h3_names_find(&j->flat, flat);
        j->is_kohya = true;
        if (at < 0) return H3_OK;
        name = j->flat_names[at + 1];
    }
    if (starts(name, "transformer_blocks.") || strstr(name, ".refiner_blocks."))
        j->is_diffusers = true;
    if (h3_ends_with(name, ".attn.to_out")) // some trainers drop the list index
        full = h3_strdupf("%s.0.weight", name);
    else
        full = h3_strdupf("%s.weight", name);
    if (h3_names_canonical(&c, &diffusers, full) && h3_ckpt_item(j->ck, c.name)) {
        m->target = h3_strdupf("%s", c.name);
        m->piece = c.piece;
        m->slot = c.slot;
    }
    free(full);
    return H3_OK;
}

/* ---- alpha ---- */

static h3_status text_alpha(const job *j, const char *text, float *out)
{
    char *end;
    const double v = h3_number_read(text, &end);

    if (end == text || *end || !isfinite(v))
        return h3_fail(H3_E_FORMAT, "%s: lora metadata: alpha \"%.40s\" is no number", j->path,
                       text);
    *out = (float)v;
    return H3_OK;
}

/* The first number called *lora_alpha in an object (PEFT flattens and prefixes its config). */
static void config_alpha(const json_t *object, float *out)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)object, key,
                        v) if (h3_ends_with(key, "lora_alpha") && json_is_number(v) &&
                               isnan(*out)) *out = (float)json_number_value(v);
}

static h3_status find_file_alpha(job *j)
{
    static const char *const keys[] = {"alpha", "lora_alpha", "network_alpha", "ss_network_alpha"};
    const char *slash = strrchr(j->path, '/'), *meta;
    json_t *cfg = NULL;
    char *beside;

    j->file_alpha = NAN;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && isnan(j->file_alpha); i++) {
        const char *text = h3_manifest_meta(j->ad->m, keys[i]);
        if (text && strcmp(text, "None") != 0) H3_TRY(text_alpha(j, text, &j->file_alpha));
    }
    meta = h3_manifest_meta(j->ad->m, "lora_adapter_metadata");
    if (isnan(j->file_alpha) && meta) {
        H3_TRY(h3_json_parse(&cfg, meta, strlen(meta), j->path));
        config_alpha(cfg, &j->file_alpha);
        json_decref(cfg);
    }
    beside = slash ? h3_strdupf("%.*s/adapter_config.json", (int)(slash - j->path), j->path)
                   : h3_strdupf("adapter_config.json");
    H3_TRY(h3_ckpt_mark(j->ck, beside));
    if (isnan(j->file_alpha) && h3_path_exists(beside)) {
        H3_TRY(h3_json_load(&cfg, beside));
        config_alpha(cfg, &j->file_alpha);
        json_decref(cfg);
    }
    if (isnan(j->file_alpha) && j->opts.alpha > 0) j->file_alpha = j->opts.alpha;
    return H3_OK;
}

static h3_status module_alpha(const job *j, const module *m, float *out)
{
    const h3_entry *e = m->factor[FACTOR_ALPHA];

    *out = j->file_alpha;
    if (!e) return H3_OK;
    if (e->dtype != H3_F32 && e->dtype != H3_BF16 && e->dtype != H3_F16 && e->dtype != H3_F64 &&
        e->dtype != H3_I64 && e->dtype != H3_I32)
        return bad(j, m->key, "alpha is no number");
    if (e->bytes != h3_dtype_bytes((h3_dtype)e->dtype))
        return bad(j, m->key, "alpha is not one value");
    h3_decode_dtype((h3_dtype)e->dtype, e->data, 1, out);
    if (!isfinite(*out)) return bad(j, m->key, "alpha is not finite");
    return H3_OK;
}

/* ---- factors ---- */

/* No exponent of all ones among n numbers of 2 or 4 bytes; 8 bytes at a time, since adapters are
 * large. `mask` is the exponent's bits, repeated; a lane whose masked bits equal it becomes zero,
 * and (t - 1) & ~t carries into a lane's top bit only for such a lane (or one above it). */
static bool all_finite(const unsigned char *p, size_t bytes, h3_dtype t)
{
    const uint64_t mask = t == H3_F32   ? 0x7f8000007f800000u
                          : t == H3_F16 ? 0x7c007c007c007c00u
                                        : 0x7f807f807f807f80u;
    const uint64_t ones = t == H3_F32 ? 0x0000000100000001u : 0x0001000100010001u;
    const uint64_t tops = ones << (t == H3_F32 ? 31 : 15);
    uint64_t bad = 0;

    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t x = 0;
        memcpy(&x, p + at, bytes - at < 8 ? bytes - at : 8);
        x = (x & mask) ^ mask;
        bad |= (x - ones) & ~x & tops;
    }
    return bad == 0;
}

static h3_status factor_part(const job *j, const module *m, const h3_entry *e, h3_weight_part *p)
{
    if (e->rank != 2) return bad(j, m->key, "a factor has not two dimensions");
    if (e->dtype > H3_F16) // the three first dtypes are the three first encodings
        return bad(j, m->key, "factors must be F32, BF16 or F16");
    *p = (h3_weight_part){.data = e->data,
                          .rows = e->ne[0],
                          .cols = e->ne[1],
                          .full_rows = e->ne[0],
                          .row_bytes = (size_t)e->ne[1] * h3_dtype_bytes((h3_dtype)e->dtype),
                          .bytes = e->bytes,
                          .encoding = e->dtype,
                          .global = 1.0f};
    if (!all_finite(e->data, e->bytes, (h3_dtype)e->dtype))
        return bad(j, m->key, "a factor holds a value that is not finite");
    return H3_OK;
}

/* Channels per head of the attention that `target` belongs to. */
static int32_t head_of(const job *j, const char *target)
{
    const char *at = strstr(target, "qkv_proj.");
    char *name = at ? h3_strdupf("%.*sq_norm.weight", (int)(at - target), target) : NULL;
    const h3_item *norm = name ? h3_ckpt_item(j->ck, name) : NULL;

    free(name);
    return norm && norm->rank == 1 && norm->ne[0] < INT32_MAX ? (int32_t)norm->ne[0] : 0;
}

static h3_status record(job *j, const h3_item *it, const h3_lora *l)
{
    h3_adapter *ad = j->ad;

    if (ad->n == ad->cap) {
        const size_t cap = ad->cap ? 2 * ad->cap : 256;
        h3_adapter_entry *e = realloc(ad->entry, cap * sizeof *e);
        if (!e) return no_memory(j);
        ad->entry = e;
        ad->cap = cap;
    }
    ad->entry[ad->n++] = (h3_adapter_entry){(size_t)(it - j->ck->items), *l};
    return H3_OK;
}

/* How the rows of B meet the rows of the matrix. */
static h3_status place_rows(job *j, const module *m, const h3_item *it, h3_lora *l)
{
    const bool is_qkv = strstr(it->name, ".attn.qkv_proj.") != NULL;
    const bool is_base_mixed = h3_item_is_interleaved(j->ck, it);
    const h3_qkv_order order = j->opts.qkv != H3_QKV_AUTO           ? j->opts.qkv
                               : m->has_default && !j->is_diffusers ? H3_QKV_INTERLEAVED
                                                                    : H3_QKV_STACKED;
    const int64_t rows = it->ne[0];

    l->weight_rows = rows;
    if (!is_qkv) {
        if (m->piece == H3_PIECE_SWAP) { // B rows [value; gate]
            h3_lora gate = *l;
            gate.b = h3_part_slice(&l->b, rows / 2, rows / 2);
            H3_TRY(record(j, it, &gate));
            l->b = h3_part_slice(&l->b, 0, rows / 2);
            l->row0 = rows / 2;
        }
        return record(j, it, l);
    }
    l->head = head_of(j, it->name);
    if (l->head <= 0 || rows % (3 * (int64_t)l->head))
        return bad(j, m->key, "the base's heads are not known");
    l->slot = m->slot;
    if (m->piece == H3_PIECE_STACK) {
        l->map = is_base_mixed ? H3_LORA_ONE_OF_3 : H3_LORA_RANGE;
        l->row0 = is_base_mixed ? 0 : m->slot * (rows / 3);
    } else if (is_base_mixed != (order == H3_QKV_INTERLEAVED)) {
        l->map = is_base_mixed ? H3_LORA_STACKED : H3_LORA_MIXED;
    }
    return record(j, it, l);
}

static h3_status use_module(job *j, module *m, h3_lora_report *rep)
{
    const h3_item *it = h3_ckpt_item(j->ck, m->target);
    h3_lora l = {0};
    float alpha;

    if (!m->factor[FACTOR_A] || !m->factor[FACTOR_B])
        return bad(j, m->key,
                   m->factor[FACTOR_A] ? "lora_A without lora_B" : "lora_B without lora_A");
    H3_TRY(factor_part(j, m, m->factor[FACTOR_A], &l.a));
    H3_TRY(factor_part(j, m, m->factor[FACTOR_B], &l.b));
    H3_TRY(module_alpha(j, m, &alpha));
    const int64_t rank = l.a.rows, rows = m->piece == H3_PIECE_STACK ? it->ne[0] / 3 : it->ne[0];
    if (rank < 1 || l.b.cols != rank)
        return h3_fail(H3_E_SHAPE, "%s: lora module \"%s\": ranks %lld and %lld", j->path, m->key,
                       (long long)rank, (long long)l.b.cols);
    if (it->rank != 2 || l.a.cols != it->ne[1] || l.b.rows != rows)
        return h3_fail(H3_E_SHAPE,
                       "%s: lora module \"%s\" is for a matrix [%lld, %lld], the model's "
                       "is [%lld, %lld]",
                       j->path, m->key, (long long)l.b.rows, (long long)l.a.cols, (long long)rows,
                       (long long)it->ne[1]);
    l.scale = j->opts.strength * (isnan(alpha) ? 1.0f : alpha / (float)rank);
    if (!isnan(alpha)) {
        rep->alpha_min = isnan(rep->alpha_min) ? alpha : fminf(rep->alpha_min, alpha);
        rep->alpha_max = isnan(rep->alpha_max) ? alpha : fmaxf(rep->alpha_max, alpha);
    }
    rep->rank_min = rep->rank_min && rep->rank_min < rank ? rep->rank_min : rank;
    rep->rank_max = rep->rank_max > rank ? rep->rank_max : rank;
    return place_rows(j, m, it, &l);
}

/* Two spellings of one module, or a fused and a split one, would be added twice. */
static h3_status check_once(job *j, const module *m)
{
    for (int slot = 0; slot < 4; slot++) {
        const bool all = m->piece != H3_PIECE_STACK;
        if (!all && slot != m->slot) continue;
        char *key = h3_strdupf("%s#%d", m->target, slot);
        const int64_t other = h3_names_find(&j->by_target, key);
        if (other >= 0) {
            free(key);
            return h3_fail(H3_E_FORMAT, "%s: lora modules \"%s\" and \"%s\" are the same", j->path,
                           j->mods[other].key, m->key);
        }
        j->owned[j->n_owned++] = key;
        if (!h3_names_add(&j->by_target, key, (uint32_t)(m - j->mods))) return no_memory(j);
    }
    return H3_OK;
}

static void list_unmatched(h3_lora_report *rep, const char *key, int64_t n)
{
    char *longer;

    if (n >= 3) return;
    longer = h3_strdupf("%s%s%.120s", rep->unmatched ? rep->unmatched : "", n ? ", " : "", key);
    free(rep->unmatched);
    rep->unmatched = longer;
}

static h3_status match(job *j, h3_lora_report *rep)
{
    int64_t missed = 0;

    j->owned = calloc(4 * j->n_mods + 1, sizeof *j->owned);
    if (!j->owned) return no_memory(j);
    for (size_t i = 0; i < j->n_mods; i++)
        H3_TRY(find_target(j, &j->mods[i]));
    for (size_t i = 0; i < j->n_mods; i++) {
        module *m = &j->mods[i];
        rep->n_modules++;
        if (!m->target) {
            list_unmatched(rep, m->key, missed++);
            continue;
        }
        j->is_diffsynth |= m->has_default && !j->is_diffusers;
        H3_TRY(check_once(j, m));
        H3_TRY(use_module(j, m, rep));
        rep->n_matched++;
    }
    if (missed > 3) {
        char *longer = h3_strdupf("%s and %lld more", rep->unmatched, (long long)(missed - 3));
        free(rep->unmatched);
        rep->unmatched = longer;
    }
    snprintf(rep->form, sizeof rep->form, "%s",
             j->is_kohya       ? "kohya"
             : j->is_diffusers ? "diffusers"
             : j->is_diffsynth ? "DiffSynth"
                               : "original");
    if (rep->n_matched == 0)
        return h3_fail(H3_E_FORMAT, "%s: no lora module of it belongs to this model (%s)", j->path,
                       rep->unmatched ? rep->unmatched : "it is empty");
    if (missed && j->opts.is_strict)
        return h3_fail(H3_E_FORMAT, "%s: lora modules without a matrix in this model: %s", j->path,
                       rep->unmatched);
    return H3_OK;
}

void h3_adapter_free(h3_adapter **adp)
{
    h3_adapter *ad = adp ? *adp : NULL;

    if (!ad) return;
    h3_manifest_close(&ad->m);
    free(ad->entry);
    free(ad);
    *adp = NULL;
}

static h3_status open_adapter(job *j, h3_lora_report *rep)
{
    h3_naming n;

    H3_TRY(h3_manifest_open(&j->ad->m, j->path));
    h3_names_detect(&n, j->ad->m);
    if (n.role != H3_ROLE_LORA)
        return h3_fail(H3_E_FORMAT, "%s: holds no lora factors%s%s", j->path,
                       n.role == H3_ROLE_UNKNOWN ? "" : ", but the weights of another part: ",
                       n.role == H3_ROLE_UNKNOWN ? "" : h3_role_name(n.role));
    H3_TRY(find_file_alpha(j));
    H3_TRY(group_keys(j));
    return match(j, rep);
}

static h3_status keep_adapter(job *j)
{
    h3_adapter **list = realloc(j->ck->adapters, (j->ck->n_adapters + 1) * sizeof *list);

    if (!list) return no_memory(j);
    j->ck->adapters = list;
    list[j->ck->n_adapters++] = j->ad;
    j->ad = NULL;
    return H3_OK;
}

h3_status h3_ckpt_add_lora(h3_checkpoint *ck, const char *path, const h3_lora_opts *opts,
                           h3_lora_report *report)
{
    job j = {.ck = ck, .path = path, .opts = opts ? *opts : (h3_lora_opts){.strength = 1.0f}};
    h3_status st;

    memset(report, 0, sizeof *report);
    report->alpha_min = report->alpha_max = NAN;
    if (ck->naming.role != H3_ROLE_DIT)
        return h3_fail(H3_E_ARG, "%s: adapters fit a DiT only, %s is a %s", path, ck->path,
                       h3_role_name(ck->naming.role));
    if (!isfinite(j.opts.strength))
        return h3_fail(H3_E_ARG, "%s: its strength is no finite number", path);
    j.ad = calloc(1, sizeof *j.ad);
    st = j.ad ? open_adapter(&j, report) : no_memory(&j);
    if (st == H3_OK) st = keep_adapter(&j);
    for (size_t i = 0; i < j.n_mods; i++) {
        free(j.mods[i].key);
        free(j.mods[i].target);
    }
    for (size_t i = 0; i < j.n_flat; i++)
        free(j.flat_names[i]);
    for (size_t i = 0; i < j.n_owned; i++)
        free(j.owned[i]);
    free(j.owned);
    free(j.flat_names);
    free(j.mods);
    h3_names_free(&j.by_key);
    h3_names_free(&j.by_target);
    h3_names_free(&j.flat);
    h3_adapter_free(&j.ad);
    if (st != H3_OK) {
        free(report->unmatched);
        report->unmatched = NULL;
    }
    return st;
}

const h3_manifest *h3_adapter_files(const struct h3_adapter *ad)
{
    return ad->m;
}

h3_status h3_lora_bind(h3_checkpoint *ck, const h3_item *it, h3_weight *w)
{
    const size_t index = (size_t)(it - ck->items);
    int32_t n = 0;
    h3_lora *list;

    for (size_t i = 0; i < ck->n_adapters; i++)
        for (size_t k = 0; k < ck->adapters[i]->n; k++)
            n += ck->adapters[i]->entry[k].item == index;
    if (!n) return H3_OK;
    list = h3_keep_alloc(&ck->keep, (size_t)n * sizeof *list);
    if (!list) return h3_fail(H3_E_NOMEM, "%s: no memory for adapters", ck->path);
    w->lora = list;
    w->n_lora = n;
    for (size_t i = 0; i < ck->n_adapters; i++)
        for (size_t k = 0; k < ck->adapters[i]->n; k++)
            if (ck->adapters[i]->entry[k].item == index) *list++ = ck->adapters[i]->entry[k].l;
    return H3_OK;
}
