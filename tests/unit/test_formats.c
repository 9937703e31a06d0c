/**
 * Every file of tests/data/formats/hostile: the outcome that cases.tsv expects. A rejection must
 * name the file and the culprit, on one line, without control characters.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "convert.h"
#include "decode.h"
#include "file.h"
#include "geometry.h"
#include "lora.h"
#include "test_models.h"

#define DATA H3_SOURCE_DIR "/tests/data/formats/"

typedef struct hostile_case {
    char path[96], kind[16], expect[16], names[96];
} hostile_case;

static h3_status open_case(const hostile_case *c, const char *path)
{
    h3_manifest *m = NULL;
    h3_status st;

    if (strcmp(c->kind, "dit") == 0) {
        h3_checkpoint *ck = NULL;
        h3_geometry g;
        st = h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL);
        if (st == H3_OK) st = h3_geometry_read(&g, ck, NULL);
        h3_ckpt_close(&ck);
        return st;
    }
    if (strcmp(c->kind, "lora") == 0) {
        const h3_lora_opts opts = {.strength = 1.0f, .is_strict = true};
        h3_checkpoint *ck = NULL;
        h3_lora_report report = {0};
        st = h3_ckpt_open(&ck, DATA "hostile/dt-valid.safetensors", H3_ROLE_DIT, NULL);
        if (st == H3_OK) st = h3_ckpt_add_lora(ck, path, &opts, &report);
        free(report.unmatched);
        h3_ckpt_close(&ck);
        return st;
    }
    st = h3_manifest_open(&m, path);
    h3_manifest_close(&m);
    return st;
}

static int check_case(const hostile_case *c)
{
    char *path = h3_strdupf("%s/%s", test_model(DATA "hostile"), c->path);
    const h3_status st = open_case(c, path);
    const char *why = NULL;

    if (strcmp(c->expect, "accept") == 0 && st != H3_OK) why = "was rejected";
    if (strcmp(c->expect, "reject") == 0 && st == H3_OK) why = "was accepted";
    if (!why && st != H3_OK) {
        if (!strstr(h3_error(), c->path)) why = "error does not name the file";
        if (strcmp(c->names, "-") != 0 && !strstr(h3_error(), c->names))
            why = "error does not name the culprit";
        for (const char *p = h3_error(); *p; p++)
            if ((unsigned char)*p < 0x20 || *p == 0x7f) why = "error holds control characters";
    }
    if (why) fprintf(stderr, "%s: %s (%s): %s\n", c->path, why, c->names, h3_error());
    free(path);
    return why != NULL;
}

/* Runs the cases of one kind; returns how many there were. */
static int run_kind(const char *kind)
{
    FILE *fp = fopen(DATA "hostile/cases.tsv", "r");
    char line[512];
    int n = 0, failed = 0;

    assert_non_null(fp);
    while (fgets(line, sizeof line, fp)) {
        hostile_case c;
        if (sscanf(line, "%95[^\t]\t%15[^\t]\t%15[^\t]\t%95[^\t\n]", c.path, c.kind, c.expect,
                   c.names) != 4)
            continue;
        if (strcmp(c.kind, kind) != 0) continue;
        failed += check_case(&c);
        n++;
    }
    fclose(fp);
    assert_int_equal(failed, 0);
    return n;
}

static void test_safetensors(void **state)
{
    (void)state;
    assert_true(run_kind("safetensors") >= 60);
}

static void test_index(void **state)
{
    (void)state;
    assert_true(run_kind("index") >= 25);
}

static void test_gguf(void **state)
{
    (void)state;
    assert_true(run_kind("gguf") >= 70);
}

static void test_dit(void **state)
{
    (void)state;
    assert_true(run_kind("dit") >= 56);
}

static void test_lora(void **state)
{
    (void)state;
    assert_true(run_kind("lora") >= 19);
}

/* ---- samples: decoded values against the expectation ---- */

static uint64_t fnv1a64(const unsigned char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

typedef struct sample {
    const char *form, *file;
    const char *extra;
    int64_t layers, head_dim;
} sample;

static double number(const json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

/* One tensor of the dump against its entry; the rules of compare_dump.py. */
static const char *compare(const h3_entry *e, const json_t *want, const h3_entry *whole)
{
    static float v[1 << 20], ref[1 << 20];
    const json_t *shape = json_object_get(want, "shape");
    const json_t *first = json_object_get(want, "first"), *last = json_object_get(want, "last");
    const char *hash = json_string_value(json_object_get(want, "fnv1a64"));
    const double stated = json_number_value(json_object_get(want, "rtol_of_max"));
    const double tol = stated > 0 ? stated : 1e-7;
    const size_t n = e->bytes / 4;
    double sum = 0, abs_sum = 0, top = 1e-30;

    if (e->rank != json_array_size(shape) || n > 1 << 20) return "shape";
    for (int i = 0; i < e->rank; i++)
        if (e->ne[i] != json_integer_value(json_array_get(shape, (size_t)i))) return "shape";
    memcpy(v, e->data, e->bytes);
    for (size_t i = 0; i < n; i++) {
        sum += (double)v[i];
        abs_sum += fabs((double)v[i]);
        top = fmax(top, fabs((double)v[i]));
    }
    if (hash && fnv1a64(e->data, e->bytes) != strtoull(hash, NULL, 16)) return "hash";
    if (!(fabs(sum - json_number_value(json_object_get(want, "sum"))) <=
          tol * top * sqrt((double)n) * 8))
        return "sum";
    if (!(fabs(abs_sum - json_number_value(json_object_get(want, "sumabs"))) <=
          tol * top * (double)n))
        return "sum of magnitudes";
    for (size_t i = 0; i < json_array_size(first); i++)
        if (!(fabs((double)v[i] - number(first, i)) <= tol * top)) return "first values";
    for (size_t i = 0; i < json_array_size(last); i++)
        if (!(fabs((double)v[n - json_array_size(last) + i] - number(last, i)) <= tol * top))
            return "last values";
    if (!whole) return NULL;
    memcpy(ref, whole->data, whole->bytes);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)v[i] - (double)ref[i]) <= stated * top)) return "values";
    return NULL;
}

static int check_dump(const char *form, const char *path)
{
    const char *folder = strcmp(form, "gguf-iq") == 0 ? "iq" : "samples";
    char *expected = h3_strdupf(DATA "%s/%s.expected.json", folder, form);
    char *few = h3_strdupf(DATA "%s/%s.expected.safetensors", folder, form);
    json_t *top = json_load_file(expected, 0, NULL), *tensors, *want;
    h3_manifest *m = NULL, *whole = NULL;
    const char *name;
    int failed = 0;

    assert_non_null(top);
    tensors = json_object_get(top, "tensors");
    assert_int_equal(h3_manifest_open(&m, path), H3_OK);
    if (h3_path_exists(few)) assert_int_equal(h3_manifest_open(&whole, few), H3_OK);
    json_object_foreach(tensors, name, want)
    {
        const h3_entry *e = h3_manifest_find(m, name);
        const char *why =
            e ? compare(e, want, whole ? h3_manifest_find(whole, name) : NULL) : "missing";
        if (why) fprintf(stderr, "%s: %s: %s\n", form, name, why);
        failed += why != NULL;
    }
    for (int64_t i = 0; i < h3_manifest_count(m); i++)
        if (!json_object_get(tensors, h3_manifest_at(m, i)->name)) {
            fprintf(stderr, "%s: %s: surplus\n", form, h3_manifest_at(m, i)->name);
            failed++;
        }
    h3_manifest_close(&m);
    h3_manifest_close(&whole);
    json_decref(top);
    free(expected);
    free(few);
    return failed;
}

static const sample samples[] = {
    {"dit-original", "dit-original/transformer", NULL, 0, 0},
    {"dit-diffusers", "dit-diffusers/transformer", NULL, 0, 0},
    {"dit-comfy", "dit-comfy.safetensors", NULL, 0, 0},
    {"dit-comfy-prefixed", "dit-comfy-prefixed.safetensors", NULL, 0, 0},
    {"dit-gguf", "dit-gguf.gguf", NULL, 0, 0},
    {"dit-gguf-pruned", "dit-gguf-pruned.gguf", NULL, 0, 0},
    {"dit-gguf-q8cr", "dit-gguf-q8cr.gguf", NULL, 0, 0},
    {"dit-nvfp4-full", "dit-nvfp4-full.safetensors", NULL, 0, 0},
    {"dit-nvfp4-linear", "dit-nvfp4-linear.safetensors", NULL, 0, 0},
    {"dit-pruned-int8", "dit-pruned-int8.safetensors", NULL, 0, 0},
    {"dit-pruned-mixed", "dit-pruned-mixed.safetensors", NULL, 0, 0},
    {"dit-pruned-w4a8", "dit-pruned-w4a8.safetensors", NULL, 0, 0},
    {"gguf-types", "gguf-types.gguf", NULL, 0, 0},
    {"gguf-iq", "../iq/gguf-iq.gguf", NULL, 0, 0},
    {"te-original", "te-original", NULL, 3, 0},
    {"te-comfy", "te-comfy.safetensors", NULL, 0, 0},
    {"te-int8", "te-int8.safetensors", NULL, 0, 0},
    {"te-nvfp4-awq", "te-nvfp4-awq.safetensors", NULL, 0, 0},
    {"te-gguf", "te-gguf.gguf", NULL, 0, 0},
    {"te-llama", "te-llama.gguf", "te-llama-mmproj.gguf", 1, 0},
    {"vvae-original", "vvae-original.safetensors", NULL, 0, 12},
    {"vvae-comfy", "vvae-comfy.safetensors", NULL, 0, 12},
    {"vvae-diffusers", "vvae-diffusers.safetensors", NULL, 0, 12},
    {"avae-original", "avae-original.safetensors", NULL, 0, 0},
    {"avae-modern", "avae-modern.safetensors", NULL, 0, 0},
    {"avae-comfy", "avae-comfy.safetensors", NULL, 0, 0},
};

static void test_samples(void **state)
{
    char out[] = "/tmp/h3av-formats-XXXXXX";
    const int fd = mkstemp(out);
    int failed = 0;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        char *path = h3_strdupf(DATA "samples/%s", s->file);
        char *extra = s->extra ? h3_strdupf(DATA "samples/%s", s->extra) : NULL;
        const h3_ckpt_opts opts = {.extra = extra};
        const h3_convert_opts convert = {.text_layers = s->layers, .head_dim = s->head_dim};
        h3_checkpoint *ck = NULL;
        h3_status st = h3_ckpt_open(&ck, path, H3_ROLE_UNKNOWN, &opts);
        if (st == H3_OK) st = h3_convert(ck, out, &convert);
        if (st != H3_OK) fprintf(stderr, "%s: %s\n", s->form, h3_error());
        failed += st != H3_OK ? 1 : check_dump(s->form, out);
        h3_ckpt_close(&ck);
        free(path);
        free(extra);
    }
    unlink(out);
    assert_int_equal(failed, 0);
}

/* The adapter on a base of zeros is the delta: rows in the base's order, compared in [q; k; v]. */
static int check_delta(h3_checkpoint *ck, h3_dev *d, const char *form, bool is_mixed)
{
    char *expected = h3_strdupf(DATA "samples/%s.expected.json", form);
    json_t *top = json_load_file(expected, 0, NULL), *want;
    const char *name;
    int failed = 0;

    assert_non_null(top);
    json_object_foreach(json_object_get(top, "tensors"), name, want)
    {
        char *module = h3_strdupf("%.*s", (int)(strlen(name) - 7), name);
        const bool is_qkv = strstr(name, "qkv_proj") != NULL;
        int rank;
        int64_t ne[8];
        h3_weight w;
        assert_true(h3_ckpt_shape(ck, name, &rank, ne));
        assert_int_equal(h3_ckpt_matrix(ck, d, &w, module, ne[0], ne[1], false), H3_OK);
        void *zeros = calloc((size_t)(ne[0] * ne[1]), 4);
        float *got = malloc((size_t)(ne[0] * ne[1]) * 4), *plain;
        w.part[0] = (h3_weight_part){.data = zeros,
                                     .rows = ne[0],
                                     .cols = ne[1],
                                     .row_bytes = (size_t)ne[1] * 4,
                                     .encoding = H3_ENC_F32};
        w.n_parts = 1;
        assert_int_equal(w.interleaved, is_mixed && is_qkv);
        plain = malloc((size_t)(ne[0] * ne[1]) * 4);
        for (int64_t r = 0; r < ne[0]; r += 7) // odd tiles, as a product takes them
            h3_weight_rows(&w, r, ne[0] - r < 7 ? ne[0] - r : 7, got + r * ne[1]);
        for (int64_t r = 0; r < ne[0]; r++) {
            const int64_t D = 32, inner = ne[0] / 3;
            const int64_t from = w.interleaved ? (r % inner / D * 3 + r / inner) * D + r % D : r;
            memcpy(plain + r * ne[1], got + from * ne[1], (size_t)ne[1] * 4);
        }
        const h3_entry e = {.rank = 2,
                            .ne = {ne[0], ne[1]},
                            .data = (const unsigned char *)plain,
                            .bytes = (size_t)(ne[0] * ne[1]) * 4};
        const char *why = compare(&e, want, NULL);
        if (why) fprintf(stderr, "%s: %s: %s\n", form, name, why);
        failed += why != NULL;
        free(zeros);
        free(got);
        free(plain);
        free(module);
    }
    json_decref(top);
    free(expected);
    return failed;
}

static void test_lora_samples(void **state)
{
    static const char *const forms[] = {"lora-peft", "lora-comfy", "lora-kohya", "lora-diffsynth",
                                        "lora-native"};
    static const char *const bases[] = {"dit-comfy.safetensors", "dit-original/transformer",
                                        "dit-diffusers/transformer"};
    h3_dev *d;
    int failed = 0;

    (void)state;
    assert_int_equal(h3_dev_open(&d, "ref", NULL), H3_OK);
    for (size_t b = 0; b < 3; b++)
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            char *base = h3_strdupf(DATA "samples/%s", bases[b]);
            char *path = h3_strdupf(DATA "samples/%s.safetensors", forms[f]);
            h3_checkpoint *ck = NULL;
            h3_lora_report rep;
            h3_status st = h3_ckpt_open(&ck, base, H3_ROLE_DIT, NULL);
            if (st == H3_OK) st = h3_ckpt_add_lora(ck, path, NULL, &rep);
            if (st != H3_OK) fail_msg("%s on %s: %s", forms[f], bases[b], h3_error());
            assert_int_equal(rep.n_modules, rep.n_matched);
            assert_null(rep.unmatched);
            failed += check_delta(ck, d, forms[f], b == 1);
            h3_ckpt_close(&ck);
            free(base);
            free(path);
        }
    h3_dev_close(&d);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),  cmocka_unit_test(test_index),
        cmocka_unit_test(test_gguf),         cmocka_unit_test(test_dit),
        cmocka_unit_test(test_lora),         cmocka_unit_test(test_samples),
        cmocka_unit_test(test_lora_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
