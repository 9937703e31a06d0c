/**
 * Every published form at its real size: files with real headers and no data (sparse) must be
 * recognised, complete, and of the published geometry; their parts must bind.
 *
 * tests/data/formats/manifests/FORM.tsv lists the tensors; "{0-3,7}" in a name stands for one row
 * per number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint_impl.h"
#include "decode.h"
#include "encoding.h"
#include "geometry.h"
#include "lora.h"
#include "suffix.h"

#define DATA H3_SOURCE_DIR "/tests/data/formats/manifests/"

typedef struct row {
    char name[128], dtype[12], shape[64], orig[64];
    int64_t bytes;
    size_t offset;
} row;

typedef struct table {
    row *row;
    size_t n;
    int64_t bytes;
} table;

static void add_row(table *t, const char *name, const row *like)
{
    t->row = realloc(t->row, (t->n + 1) * sizeof *t->row);
    assert_non_null(t->row);
    t->row[t->n] = *like;
    snprintf(t->row[t->n++].name, sizeof like->name, "%.*s", (int)sizeof like->name - 1, name);
    t->bytes += like->bytes;
}

/* One row per number of the braces. */
static void expand(table *t, const char *name, const row *like)
{
    const char *open = strchr(name, '{'), *close = strchr(name, '}');
    char full[192];

    if (!open) {
        add_row(t, name, like);
        return;
    }
    for (const char *p = open + 1; p < close;) {
        int a, b, used;
        assert_int_equal(sscanf(p, "%d%n", &a, &used), 1);
        p += used;
        b = a;
        if (*p == '-') {
            assert_int_equal(sscanf(p, "-%d%n", &b, &used), 1);
            p += used;
        }
        for (; a <= b; a++) {
            snprintf(full, sizeof full, "%.*s%d%s", (int)(open - name), name, a, close + 1);
            add_row(t, full, like);
        }
        if (*p == ',') p++;
    }
}

static table read_table(const char *form)
{
    char *path = h3_strdupf(DATA "%s.tsv", form), line[512];
    FILE *fp = fopen(path, "r");
    table t = {0};

    assert_non_null(fp);
    while (fgets(line, sizeof line, fp)) {
        char name[192], ne[64];
        long long bytes;
        row r = {.orig = "-"};
        if (line[0] == '#') continue;
        const int n = sscanf(line, "%191[^\t]\t%11[^\t]\t%63[^\t]\t%lld\t%63[^\t]\t%63[^\t]", name,
                             r.dtype, r.shape, &bytes, ne, r.orig);
        assert_true(n >= 4);
        r.bytes = bytes;
        expand(&t, name, &r);
    }
    fclose(fp);
    free(path);
    return t;
}

static void write_safetensors(const char *path, table *t, const char *form)
{
    FILE *fp = fopen(path, "wb"), *mem;
    char *head = NULL;
    size_t n = 0, at = 0;

    assert_non_null(fp);
    mem = open_memstream(&head, &n);
    for (size_t i = 0; i < t->n; i++) {
        row *r = &t->row[i];
        r->offset = at;
        at += (size_t)r->bytes;
        fprintf(mem, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                i ? "," : "{", r->name, r->dtype, r->shape, r->offset, at);
    }
    fprintf(mem, "}");
    fclose(mem);
    const uint64_t len = n;
    fwrite(&len, 8, 1, fp);
    fwrite(head, 1, n, fp);
    for (size_t i = 0; i < t->n; i++)
        if (h3_ends_with(t->row[i].name, ".comfy_quant")) {
            fseeko(fp, (off_t)(8 + n + t->row[i].offset), SEEK_SET);
            fputs(h3_quant_tag((size_t)t->row[i].bytes, strstr(form, "mxfp8") != NULL), fp);
        }
    fflush(fp);
    assert_int_equal(ftruncate(fileno(fp), (off_t)(8 + n + at)), 0);
    fclose(fp);
    free(head);
}

static void put(FILE *fp, uint64_t v, int bytes)
{
    fwrite(&v, 1, (size_t)bytes, fp);
}

static int numbers(const char *text, int64_t v[8])
{
    int n = 0;
    for (const char *p = text; *p && n < 8; p++)
        if (*p >= '0' && *p <= '9') {
            v[n++] = strtoll(p, (char **)&p, 10);
            if (!*p) break;
        }
    return n;
}

static uint32_t ggml_number(const char *name)
{
    for (uint32_t i = 0; i < 64; i++) {
        const h3_ggml_info info = h3_ggml_type(i);
        if (info.name && strcmp(info.name, name) == 0) return i;
    }
    fail_msg("ggml type %s", name);
    return 0;
}

static void write_gguf(const char *path, const table *t)
{
    FILE *fp = fopen(path, "wb");
    uint64_t n_kv = 0;
    size_t at = 0;
    int64_t v[8];

    assert_non_null(fp);
    for (size_t i = 0; i < t->n; i++)
        n_kv += t->row[i].orig[0] == '[';
    fputs("GGUF", fp);
    put(fp, 3, 4);
    put(fp, t->n, 8);
    put(fp, n_kv, 8);
    for (size_t i = 0; i < t->n; i++) {
        char *key;
        int n;
        if (t->row[i].orig[0] != '[') continue;
        key = h3_strdupf("comfy.gguf.orig_shape.%s", t->row[i].name);
        put(fp, strlen(key), 8);
        fputs(key, fp);
        free(key);
        n = numbers(t->row[i].orig, v);
        put(fp, 9, 4);
        put(fp, 5, 4);
        put(fp, (uint64_t)n, 8);
        for (int k = 0; k < n; k++)
            put(fp, (uint64_t)v[k], 4);
    }
    for (size_t i = 0; i < t->n; i++) {
        const int n = numbers(t->row[i].shape, v); // as stored
        put(fp, strlen(t->row[i].name), 8);
        fputs(t->row[i].name, fp);
        put(fp, (uint64_t)n, 4);
        for (int k = n - 1; k >= 0; k--)
            put(fp, (uint64_t)v[k], 8);
        put(fp, ggml_number(t->row[i].dtype), 4);
        put(fp, at, 8);
        at += ((size_t)t->row[i].bytes + 31) / 32 * 32;
    }
    fflush(fp);
    assert_int_equal(ftruncate(fileno(fp), (off_t)(((size_t)ftello(fp) + 31) / 32 * 32 + at)), 0);
    fclose(fp);
}

typedef struct form {
    const char *name, *extra;
    h3_role role;
    int64_t n_stored, bytes, n_items;
    int64_t n_quantized; ///< matrices that are neither F32, F16 nor BF16
} form;

static const form forms[] = {
    {"dit_original_bf16", NULL, H3_ROLE_DIT, 535, 66280430144, 535, 0},
    {"dit_comfy_bf16", NULL, H3_ROLE_DIT, 535, 66280430144, 535, 0},
    {"dit_diffusers_bf16", NULL, H3_ROLE_DIT, 638, 66280430080, 534, 0},
    {"dit_comfy_int8_convrot", NULL, H3_ROLE_DIT, 1035, 34038784094, 535, 250},
    {"dit_comfy_pruned_bf16", NULL, H3_ROLE_DIT, 532, 40225668192, 532, 0},
    {"dit_comfy_pruned_fp8_scaled", NULL, H3_ROLE_DIT, 932, 20958090392, 532, 200},
    {"dit_comfy_pruned_int8_convrot", NULL, H3_ROLE_DIT, 932, 20970284192, 532, 200},
    {"dit_comfy_pruned_mxfp8", NULL, H3_ROLE_DIT, 932, 21560199992, 532, 200},
    {"dit_gguf_pruned_q8_0", NULL, H3_ROLE_DIT, 532, 21437752416, 532, 210},
    {"dit_gguf_q3_k_m", NULL, H3_ROLE_DIT, 535, 15577884736, 535, 250},
    {"dit_nvfp4_full", NULL, H3_ROLE_DIT, 1051, 18745371176, 535, 258},
    {"dit_nvfp4_mixed", NULL, H3_ROLE_DIT, 951, 24435329376, 535, 258},
    {"dit_nvfp4_mixed200_inferred", NULL, H3_ROLE_DIT, 1135, 25543219224, 535, 250},
    {"dit_nvfp4_pruned", NULL, H3_ROLE_DIT, 1132, 12528520792, 532, 200},
    {"dit_w4a8_pruned", NULL, H3_ROLE_DIT, 1132, 12540714592, 532, 200},
    {"te_original_bf16", NULL, H3_ROLE_TEXT_ENCODER, 1058, 66714780128, 1058, 0},
    {"te_comfy_bf16", NULL, H3_ROLE_TEXT_ENCODER, 902, 51506191840, 902, 0},
    {"te_comfy_int8_convrot", NULL, H3_ROLE_TEXT_ENCODER, 1602, 27141161040, 902, 350},
    {"te_comfy_nvfp4_awq", NULL, H3_ROLE_TEXT_ENCODER, 2054, 15686911143, 902, 351},
    {"te_gguf_q4_k_m", NULL, H3_ROLE_TEXT_ENCODER, 902, 14563465920, 902, 467},
    {"te_llama_q4_k_m_inferred", "te_llama_mmproj_f16", H3_ROLE_TEXT_ENCODER, 707 + 352,
     19756174336 + 1200313280, 1058, 450},
    {"video_vae_original_f32", NULL, H3_ROLE_VIDEO_VAE, 560, 10415484128, 560, 0},
    {"video_vae_comfy_f16", NULL, H3_ROLE_VIDEO_VAE, 562, 5207742256, 562, 0},
    {"video_vae_diffusers_f32", NULL, H3_ROLE_VIDEO_VAE, 703, 10415475936, 559, 0},
    {"audio_vae_original_f32", NULL, H3_ROLE_AUDIO_VAE, 1087, 605306340, 915, 0},
    {"audio_vae_comfy_f32", NULL, H3_ROLE_AUDIO_VAE, 917, 605149280, 917, 0},
    {"controlnet_fun_full", NULL, H3_ROLE_OTHER, 64, 6806835712, 64, 0},
    {"latent_upscaler_3d", NULL, H3_ROLE_OTHER, 322, 690560432, 322, 0},
};

static char *sparse_file(const char *name)
{
    const bool is_gguf = strstr(name, "gguf") || strstr(name, "llama");
    char *path = h3_strdupf("/tmp/h3av-manifest-%ld-%s.%s", (long)getpid(), name,
                            is_gguf ? "gguf" : "safetensors");
    table t = read_table(name);

    if (is_gguf)
        write_gguf(path, &t);
    else
        write_safetensors(path, &t, name);
    free(t.row);
    return path;
}

static void check_geometry(h3_checkpoint *ck, const form *f)
{
    h3_geometry g;

    if (h3_geometry_read(&g, ck, NULL) != H3_OK) fail_msg("%s: %s", f->name, h3_error());
    switch (f->role) {
    case H3_ROLE_DIT:
        assert_int_equal(h3_geometry_dim(&g, "hidden"), 5376);
        assert_int_equal(h3_geometry_dim(&g, "layers"), 50);
        assert_int_equal(h3_geometry_dim(&g, "refiner layers"), 2);
        assert_int_equal(h3_geometry_dim(&g, "heads"), 56);
        assert_int_equal(h3_geometry_dim(&g, "head size"), 128);
        assert_int_equal(h3_geometry_dim(&g, "feed-forward"), 14336);
        assert_int_equal(h3_geometry_dim(&g, "text width"), 5120);
        assert_int_equal(h3_geometry_dim(&g, "time width"),
                         h3_ckpt_has(ck, "adaln_t_table") ? 8 : 2688);
        break;
    case H3_ROLE_TEXT_ENCODER:
        assert_int_equal(h3_geometry_dim(&g, "hidden"), 5120);
        assert_int_equal(h3_geometry_dim(&g, "layers"), f->n_items == 1058 ? 64 : 50);
        assert_int_equal(h3_geometry_dim(&g, "heads"), 64);
        assert_int_equal(h3_geometry_dim(&g, "kv heads"), 8);
        assert_int_equal(h3_geometry_dim(&g, "vocabulary"), 151936);
        assert_int_equal(h3_geometry_dim(&g, "vision layers"), 27);
        assert_int_equal(h3_geometry_dim(&g, "deepstack"), 3);
        break;
    case H3_ROLE_VIDEO_VAE:
        assert_int_equal(h3_geometry_dim(&g, "hidden"), 2048);
        assert_int_equal(h3_geometry_dim(&g, "layers"), 36);
        assert_int_equal(h3_geometry_dim(&g, "encoder levels"), 6);
        assert_int_equal(h3_geometry_dim(&g, "patch values"), 3072);
        break;
    case H3_ROLE_AUDIO_VAE:
        assert_int_equal(h3_geometry_dim(&g, "upsamplers"), 7);
        assert_int_equal(h3_geometry_dim(&g, "residual blocks"), 21);
        break;
    default:
        break;
    }
}

static void check_form(const form *f)
{
    char *path = sparse_file(f->name), *extra = f->extra ? sparse_file(f->extra) : NULL;
    const h3_ckpt_opts opts = {.extra = extra};
    h3_checkpoint *ck = NULL;
    int64_t n_items = 0, n_quantized = 0, bytes = 0;

    if (h3_ckpt_open(&ck, path, H3_ROLE_UNKNOWN, &opts) != H3_OK)
        fail_msg("%s: %s", f->name, h3_error());
    assert_int_equal(h3_ckpt_role(ck), f->role);
    assert_int_equal(h3_manifest_count(ck->m), f->n_stored);
    for (int64_t i = 0; i < h3_manifest_count(ck->m); i++)
        bytes += (int64_t)h3_manifest_at(ck->m, i)->bytes;
    assert_int_equal(bytes, f->bytes);
    for (int64_t i = 0; i < h3_ckpt_n_tensors(ck); i++) {
        h3_weight_part part[H3_MAX_PARTS];
        h3_item *it = &ck->items[i];
        int n;
        if (!h3_ckpt_tensor(ck, i)) continue;
        n_items++;
        if (it->rank < 2 || it->piece == H3_PIECE_NORM || it->piece == H3_PIECE_FRAME) continue;
        if (h3_item_parts(ck, it, part, &n) != H3_OK) fail_msg("%s: %s", f->name, h3_error());
        n_quantized += part[0].encoding == H3_ENC_GGML ? h3_ggml_type(part[0].ggml_type).block > 1
                                                       : part[0].encoding > H3_ENC_F16;
    }
    if (n_items != f->n_items || n_quantized != f->n_quantized)
        fail_msg("%s: %lld tensors (expected %lld), %lld quantized (%lld)", f->name,
                 (long long)n_items, (long long)f->n_items, (long long)n_quantized,
                 (long long)f->n_quantized);
    check_geometry(ck, f);
    assert_null(h3_ckpt_strangers(ck));
    h3_ckpt_close(&ck);
    unlink(path);
    if (extra) unlink(extra);
    free(path);
    free(extra);
}

static void test_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check_form(&forms[i]);
}

/* Modules and rank of the Turbo adapters on a base of either layout. */
static void test_adapters(void **state)
{
    static const struct {
        const char *adapter, *base;
        int64_t modules;
    } pairs[] = {
        {"lora_turbo_diffusers", "dit_comfy_bf16", 312},
        {"lora_native_inferred", "dit_comfy_int8_convrot", 259},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *base = sparse_file(pairs[i].base), *path = sparse_file(pairs[i].adapter);
        h3_checkpoint *ck = NULL;
        h3_lora_report rep;
        if (h3_ckpt_open(&ck, base, H3_ROLE_DIT, NULL) != H3_OK ||
            h3_ckpt_add_lora(ck, path, NULL, &rep) != H3_OK)
            fail_msg("%s: %s", pairs[i].adapter, h3_error());
        assert_int_equal(rep.n_modules, pairs[i].modules);
        assert_int_equal(rep.n_matched, pairs[i].modules);
        h3_ckpt_close(&ck);
        unlink(base);
        unlink(path);
        free(base);
        free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
