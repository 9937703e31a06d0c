/**
 * Reading golden files and comparing with them; see golden.h. The reader is separate from the
 * product's own on purpose: a mistake in one of them then shows.
 */
#include "golden.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "golden_read.h"
#include "half.h"
#include "sha256.h"
#include "suffix.h"
#include "test_models.h"

/* The folder of the file, and an empty object where there is no metadata. */
static h3_status read_end(golden *g)
{
    const char *slash = strrchr(g->path, '/');

    if (!g->meta) g->meta = json_object();
    g->folder = slash ? h3_strdupf("%.*s", (int)(slash - g->path), g->path) : h3_strdupf(".");
    return H3_OK;
}

/* Tensors too large to keep: {"golden": metadata, "tensors": {name: {dtype, shape, sha256}}}. */
static h3_status read_prints(golden *g)
{
    json_t *list = json_object_get(g->json, "tensors"), *v;
    const char *name;

    g->meta = json_incref(json_object_get(g->json, "golden"));
    g->is_golden = g->meta;
    g->tensors = calloc(json_object_size(list) + 1, sizeof *g->tensors);
    json_object_foreach(list, name, v)
    {
        static const struct {
            const char *word;
            h3_dtype dtype;
        } words[] = {{"float32", H3_F32}, {"float64", H3_F64}, {"int32", H3_I32},
                     {"int64", H3_I64},   {"bool", H3_BOOL},   {"uint8", H3_U8}};
        const char *word = json_string_value(json_object_get(v, "dtype"));
        const json_t *shape = json_object_get(v, "shape");
        golden_tensor *t = &g->tensors[g->n_tensors++];
        int64_t n = 1;
        size_t k = 0;
        t->name = h3_strdupf("%s", name);
        t->sha256 = json_string_value(json_object_get(v, "sha256"));
        while (k < sizeof words / sizeof *words && !(word && strcmp(words[k].word, word) == 0))
            k++;
        for (size_t i = 0; i < json_array_size(shape); i++)
            n *= json_integer_value(json_array_get(shape, i));
        if (k == sizeof words / sizeof *words || !t->sha256)
            return h3_fail(H3_E_FORMAT, "%s: fingerprint of %s", g->path, name);
        t->t = h3_host_tensor(NULL, words[k].dtype, 1, &n);
    }
    return read_end(g);
}

/* JSON with the integers of the reference: a seed may take all of 64 bits, jansson's integers are
 * signed. What is too large for them becomes the negative number of the same bits. */
static json_t *parse(const char *text, size_t n, json_error_t *err)
{
    char *copy = malloc(2 * n + 1);
    size_t to = 0;
    bool is_string = false;

    if (!copy) return NULL;
    for (size_t i = 0; i < n;) {
        const size_t digits = is_string ? 0 : strspn(text + i, "0123456789");
        if (digits == 0) {
            if (text[i] == '\\' && i + 1 < n)
                copy[to++] = text[i++];
            else if (text[i] == '"')
                is_string = !is_string;
            copy[to++] = text[i++];
            continue;
        }
        errno = 0;
        const unsigned long long v = strtoull(text + i, NULL, 10);
        const bool is_whole = !strchr(".eE", text[i + digits]) && (i == 0 || text[i - 1] != '.');
        if (is_whole && errno == 0 && v > INT64_MAX && (i == 0 || text[i - 1] != '-'))
            to += (size_t)sprintf(copy + to, "%lld", (long long)v);
        else // more than 64 bits: a real number
            to += (size_t)sprintf(copy + to, "%.*s%s", (int)digits, text + i,
                                  is_whole && errno ? ".0" : "");
        i += digits;
    }
    // a prompt may hold any character, U+0000 too
    json_t *j = json_loadb(copy, to, JSON_DECODE_ANY | JSON_ALLOW_NUL, err);
    free(copy);
    return j;
}

/* Tables: JSON, or lines of text. */
static h3_status read_table(golden *g)
{
    size_t size = 0;
    json_error_t err;

    H3_TRY(h3_file_read(&g->text, &size, g->path, (size_t)1 << 30));
    if (!h3_ends_with(g->path, ".json")) return read_end(g);
    g->json = parse(g->text, size, &err);
    if (!g->json) return h3_fail(H3_E_FORMAT, "%s: %s", g->path, err.text);
    free(g->text);
    g->text = NULL;
    if (json_object_get(g->json, "golden") && json_object_get(g->json, "tensors"))
        return read_prints(g);
    return read_end(g);
}

h3_status golden_read(golden *g, const char *path)
{
    json_t *head = NULL;
    json_error_t err;
    const char *name;
    json_t *v;
    size_t size = 0;
    uint64_t n = 0;

    g->path = path;
    if (!h3_ends_with(path, ".safetensors")) return read_table(g);
    H3_TRY(h3_file_read((char **)&g->blob, &size, path, (size_t)1 << 31));
    if (size >= 8) memcpy(&n, g->blob, 8);
    if (size < 8 || n > size - 8) return h3_fail(H3_E_FORMAT, "%s: not a safetensors file", path);
    head = json_loadb((char *)g->blob + 8, (size_t)n, 0, &err);
    if (!json_is_object(head)) return h3_fail(H3_E_FORMAT, "%s: header: %s", path, err.text);
    g->tensors = calloc(json_object_size(head) + 1, sizeof *g->tensors);
    json_object_foreach(head, name, v)
    {
        const json_t *shape = json_object_get(v, "shape"),
                     *off = json_object_get(v, "data_offsets");
        int64_t ne[H3_MAX_RANK] = {1, 1, 1, 1, 1}, count = 1;
        int rank = (int)json_array_size(shape);
        h3_dtype dt;

        if (strcmp(name, "__metadata__") == 0) {
            const char *text = json_string_value(json_object_get(v, "golden"));
            g->meta = text ? parse(text, strlen(text), &err) : NULL;
            g->is_golden = text;
            if (text && !g->meta) {
                json_decref(head);
                return h3_fail(H3_E_FORMAT, "%s: __metadata__.golden: %s", path, err.text);
            }
            continue;
        }
        const char *word = json_string_value(json_object_get(v, "dtype"));
        if (!word || !h3_dtype_parse(word, &dt) || rank > H3_MAX_RANK) {
            json_decref(head);
            return h3_fail(H3_E_FORMAT, "%s: tensor %s: dtype or rank", path, name);
        }
        for (int i = 0; i < rank; i++) {
            ne[i] = (int64_t)json_integer_value(json_array_get(shape, (size_t)i));
            if (ne[i] < 0 || __builtin_mul_overflow(count, ne[i], &count) ||
                count > (int64_t)1 << 40)
                count = (int64_t)1 << 40; // longer than any file that was read: cut off
        }
        const uint64_t a = (uint64_t)json_integer_value(json_array_get(off, 0));
        if (a > size - 8 - n || (uint64_t)count * h3_dtype_bytes(dt) > size - 8 - n - a) {
            json_decref(head);
            return h3_fail(H3_E_FORMAT, "%s: tensor %s is cut off", path, name);
        }
        golden_tensor *t = &g->tensors[g->n_tensors++];
        t->name = h3_strdupf("%s", name);
        t->t = h3_host_tensor((char *)g->blob + 8 + n + a, dt, rank ? rank : 1, ne);
    }
    json_decref(head);
    return read_end(g);
}

void golden_free(golden *g)
{
    for (int i = 0; i < g->n_tensors; i++)
        free(g->tensors[i].name);
    free(g->tensors);
    free(g->blob);
    free((void *)(uintptr_t)g->folder);
    json_decref(g->meta);
    json_decref(g->json);
    free(g->text);
}

const h3_tensor *golden_find(const golden *g, const char *name)
{
    for (int i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i].t;
    return NULL;
}

const h3_tensor *golden_need(golden *g, const char *name)
{
    const h3_tensor *t = golden_find(g, name);
    if (!t) golden_check(g, name, false, "the golden file lacks this tensor");
    return t;
}

double golden_value(h3_tensor t, int64_t i)
{
    const void *p = t.data;
    switch ((h3_dtype)t.dtype) {
    case H3_F32:
        return (double)((const float *)p)[i];
    case H3_F64:
        return ((const double *)p)[i];
    case H3_BF16:
        return (double)h3_bf16_to_f32(((const uint16_t *)p)[i]);
    case H3_F16:
        return (double)h3_f16_to_f32(((const uint16_t *)p)[i]);
    case H3_I32:
        return (double)((const int32_t *)p)[i];
    case H3_I64:
        return (double)((const int64_t *)p)[i];
    case H3_I16:
        return (double)((const int16_t *)p)[i];
    case H3_I8:
        return (double)((const int8_t *)p)[i];
    case H3_U8:
    case H3_BOOL:
        return (double)((const uint8_t *)p)[i];
    default:
        return HUGE_VAL - HUGE_VAL;
    }
}

/* One line per comparison; failures always, the rest with --verbose. */
static void report(golden *g, const char *name, bool ok, double ratio, const char *fmt, ...)
{
    va_list ap;

    g->n_compared++;
    if (!ok) g->n_failed++;
    if (!(ratio <= g->worst)) {
        g->worst = ratio;
        snprintf(g->worst_name, sizeof g->worst_name, "%s", name);
    }
    if (ok && !g->is_verbose) return;
    printf("  %-44s %s ", name, ok ? "ok  " : "FAIL");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

void golden_check(golden *g, const char *what, bool ok, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    report(g, what, ok, ok ? 0.0 : HUGE_VAL, "%s", text);
}

static bool is_float(uint8_t t)
{
    return t == H3_F32 || t == H3_F64 || t == H3_BF16 || t == H3_F16;
}

static const char *print_of(const golden *g, const char *name)
{
    for (int i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return g->tensors[i].sha256;
    return NULL;
}

/* The bytes of `got` in the type that the fingerprint was taken in. */
static void compare_print(golden *g, const char *name, h3_tensor want, h3_tensor got)
{
    const char *sha256 = print_of(g, name);
    const int64_t n = h3_numel(got);
    const bool is_wider = want.dtype == H3_I64 && got.dtype == H3_I32;
    int64_t *wide = malloc((size_t)n * sizeof *wide + 1);
    char hex[65] = "";

    if (!wide) abort(); // a test may
    for (int64_t i = 0; is_wider && i < n; i++)
        wide[i] = ((const int32_t *)got.data)[i];
    if (is_wider || want.dtype == got.dtype)
        sha256_hex(hex, is_wider ? wide : got.data,
                   (size_t)n * h3_dtype_bytes((h3_dtype)want.dtype));
    free(wide);
    golden_check(g, name, strcmp(hex, sha256) == 0, "sha256 %.16s, expected %.16s", hex, sha256);
}

void golden_exact(golden *g, const char *name, h3_tensor got)
{
    const h3_tensor *want = golden_need(g, name);
    const int64_t n = h3_numel(got);

    if (!want) return;
    if (h3_numel(*want) != n) {
        golden_check(g, name, false, "shape %s, expected %s", h3_tensor_desc(got),
                     h3_tensor_desc(*want));
        return;
    }
    if (!want->data && print_of(g, name)) {
        compare_print(g, name, *want, got);
        return;
    }
    if (is_float(want->dtype) != is_float(got.dtype) ||
        (is_float(want->dtype) && want->dtype != got.dtype)) {
        golden_check(g, name, false, "type %s, expected %s", h3_tensor_desc(got),
                     h3_tensor_desc(*want));
        return;
    }
    const size_t e = h3_dtype_bytes(want->dtype);
    int64_t bad = 0, first = -1;
    for (int64_t i = 0; i < n; i++) {
        const bool same = want->dtype == got.dtype
                              ? memcmp((char *)want->data + (size_t)i * e,
                                       (char *)got.data + (size_t)i * e, e) == 0
                              : golden_value(*want, i) == golden_value(got, i);
        if (!same && bad++ == 0) first = i;
    }
    if (bad)
        golden_check(g, name, false, "%lld of %lld differ; first at %lld: %.17g, expected %.17g",
                     (long long)bad, (long long)n, (long long)first, golden_value(got, first),
                     golden_value(*want, first));
    else
        golden_check(g, name, true, "%lld values equal", (long long)n);
}

void golden_near_to(golden *g, const char *name, h3_tensor want, h3_tensor got, double rel_limit,
                    double abs_limit)
{
    const int64_t n = h3_numel(got);
    double sum_d = 0, sum_w = 0, worst = 0;

    if (h3_numel(want) != n) {
        golden_check(g, name, false, "shape %s, expected %s", h3_tensor_desc(got),
                     h3_tensor_desc(want));
        return;
    }
    if (!h3_is_dense(want) || !h3_is_dense(got)) {
        golden_check(g, name, false, "compared tensors must be dense");
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const double w = golden_value(want, i), e = golden_value(got, i) - w;
        sum_d += e * e;
        sum_w += w * w;
        if (!(fabs(e) <= worst)) worst = fabs(e);
    }
    const double rel = n == 0 ? 0 : sum_w > 0 ? sqrt(sum_d / sum_w) : (sum_d > 0 ? HUGE_VAL : 0);
    double ratio = rel_limit > 0 ? rel / rel_limit : 0;
    if (abs_limit > 0 && !(worst / abs_limit <= ratio)) ratio = worst / abs_limit;
    if (rel_limit <= 0 && abs_limit <= 0) ratio = sum_d == 0 ? 0 : HUGE_VAL;
    report(g, name, ratio <= 1.0, ratio, "rel %.2e (limit %.2e)  abs %.2e (limit %.2e)", rel,
           rel_limit, worst, abs_limit);
}

void golden_near(golden *g, const char *name, h3_tensor got, double rel_limit, double abs_limit)
{
    const h3_tensor *want = golden_need(g, name);
    if (want) golden_near_to(g, name, *want, got, rel_limit, abs_limit);
}

void golden_near_u8(golden *g, const char *name, h3_tensor got, double share, int step)
{
    const h3_tensor *want = golden_need(g, name);
    int64_t differ = 0;
    int worst = 0;

    if (!want) return;
    const int64_t n = h3_numel(got);
    if (h3_numel(*want) != n) {
        golden_check(g, name, false, "shape %s, expected %s", h3_tensor_desc(got),
                     h3_tensor_desc(*want));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int e = abs((int)golden_value(*want, i) - (int)golden_value(got, i));
        differ += e != 0;
        if (e > worst) worst = e;
    }
    const double part = n ? (double)differ / (double)n : 0;
    const double ratio = worst > step ? HUGE_VAL
                         : share > 0  ? part / share
                                      : (differ ? HUGE_VAL : 0);
    report(g, name, ratio <= 1.0, ratio,
           "%.2e of the samples differ (limit %.1e), by at most %d (%d)", part, share, worst, step);
}

/* The model at `path` (taken), made if it is a recipe; NULL when there is none. */
static char *model_at(char *path)
{
    char *model = h3_path_exists(path) ? h3_strdupf("%s", test_model(path)) : NULL;
    free(path);
    return model;
}

char *golden_stored_model(const char *relative)
{
#ifdef H3_TEST_DATA
    return model_at(h3_strdupf("%s/%s", H3_TEST_DATA, relative));
#else
    (void)relative;
    return NULL;
#endif
}

char *golden_model(golden *g, const char *relative, const char *stored)
{
    static const char *const up[] = {".", "..", "../..", "../../.."};
    const char *env = getenv("H3AV_GOLDEN_MODELS");
    char *model = NULL;

    for (size_t i = 0; !model && i < sizeof up / sizeof *up; i++)
        model = model_at(h3_strdupf("%s/%s/%s", g->folder, up[i], relative));
    if (!model && env) model = model_at(h3_path_join(env, relative));
    if (!model && stored) model = golden_stored_model(stored);
    if (model) return model;
    golden_check(g, relative, false,
                 "model not found beside or above %s, nor in "
                 "$H3AV_GOLDEN_MODELS",
                 g->folder);
    return NULL;
}
