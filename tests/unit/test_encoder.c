/**
 * The conditioner beyond its goldens: tables at their edges, requests that must be refused, and
 * what a run may not do (read bytes it has no use for, see later rows, depend on how rows are cut).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "encoder.h"
#include "encoder_tables.h"
#include "file.h"
#include "half.h"
#include "manifest.h"
#include "test_models.h"

#define TINY H3_SOURCE_DIR "/tests/data/encoder/tiny"
#define DEEP H3_SOURCE_DIR "/tests/data/encoder/deep"
#define CASE H3_SOURCE_DIR "/tests/data/encoder/case_t2va_short.safetensors"

/* ---- tables ---- */

static void test_mrope_axes(void **state)
{
    static const int32_t want[16] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0, 0};
    int32_t axis[64];

    (void)state;
    assert_true(h3_encoder_mrope_axes(axis, 16, (const int32_t[]){8, 4, 4}));
    assert_memory_equal(axis, want, sizeof want);
    assert_true(h3_encoder_mrope_axes(axis, 64, (const int32_t[]){24, 20, 20}));
    assert_int_equal(axis[58], 1);
    assert_int_equal(axis[59], 2);
    for (int j = 60; j < 64; j++)
        assert_int_equal(axis[j], 0);
    assert_true(h3_encoder_mrope_axes(axis, 4, (const int32_t[]){4, 0, 0}));
    assert_false(h3_encoder_mrope_axes(axis, 16, (const int32_t[]){8, 4, 3})); // does not fill
    assert_false(
        h3_encoder_mrope_axes(axis, 16, (const int32_t[]){4, 6, 6})); // w would pass the end
    assert_false(h3_encoder_mrope_axes(axis, 16, (const int32_t[]){17, -1, 0}));
    assert_false(h3_encoder_mrope_axes(axis, 16, (const int32_t[]){INT32_MAX, INT32_MAX, 18}));
}

static void test_grid_order(void **state)
{
    static const int32_t want[] = {0, 0, 0, 1, 1, 0, 1, 1, 0, 2, 0, 3, 1, 2, 1, 3};
    int32_t rc[16], index[4];
    float weight[4];

    (void)state;
    h3_encoder_grid_order(rc, 2, 4, 2);
    assert_memory_equal(rc, want, sizeof want);
    // the last corner sits on the last corner of the table, whatever the sizes
    h3_encoder_grid_taps(index, weight, (const int32_t[]){99, 5}, 1, 100, 6, 48);
    assert_int_equal(index[0], 48 * 48 - 1);
    assert_float_equal(weight[0], 1.0f, 0.0f);
    // one patch a side sits on the first corner
    h3_encoder_grid_taps(index, weight, (const int32_t[]){0, 0}, 1, 1, 1, 48);
    assert_int_equal(index[0], 0);
    assert_float_equal(weight[0], 1.0f, 0.0f);
}

/* ---- a small conditioner ---- */

typedef struct fixture {
    h3_dev *d;
    h3_checkpoint *ck;
    h3_encoder *e;
} fixture;

static void open_on(fixture *f, const char *device, const char *folder, int32_t select,
                    bool has_vision)
{
    const h3_encoder_opts opts = {.act = H3_F32, .select = select, .has_vision = has_vision};

    memset(f, 0, sizeof *f);
    assert_int_equal(h3_dev_open(&f->d, device, NULL), H3_OK);
    assert_int_equal(h3_ckpt_open(&f->ck, folder, H3_ROLE_TEXT_ENCODER, NULL), H3_OK);
    assert_int_equal(h3_encoder_open(&f->e, f->ck, f->d, &opts), H3_OK);
}

static void close_all(fixture *f)
{
    h3_encoder_close(&f->e);
    h3_ckpt_close(&f->ck);
    h3_dev_close(&f->d);
}

/* Runs into malloc'd host floats [S, C]; NULL with the status when it is refused. */
static float *run(fixture *f, const h3_encoder_in *in, h3_status *st)
{
    const int64_t ne[] = {in->n_rows, h3_encoder_width(f->e)};
    const size_t n = (size_t)(in->n_rows > 0 ? in->n_rows * ne[1] : 1);
    float *host = malloc(n * sizeof *host);
    size_t bytes = 0;
    h3_tensor out = {0};

    assert_non_null(host);
    *st = h3_encoder_scratch_bytes(f->e, in, &bytes);
    if (*st == H3_OK) *st = h3_dev_scratch(f->d, bytes);
    if (*st == H3_OK) *st = h3_dev_alloc(f->d, &out, H3_F32, 2, ne);
    if (*st == H3_OK) *st = h3_encoder_run(f->e, in, out);
    if (*st == H3_OK) *st = h3_dev_download(f->d, host, out);
    h3_dev_free(f->d, &out);
    assert_int_equal(f->d->scratch.used, 0);
    if (*st == H3_OK) return host;
    free(host);
    return NULL;
}

static int32_t *plain_positions(int64_t S)
{
    int32_t *p = malloc((size_t)S * 3 * sizeof *p);

    assert_non_null(p);
    for (int64_t i = 0; i < 3 * S; i++)
        p[i] = (int32_t)(i % S);
    return p;
}

static void test_layers(void **state)
{
    fixture f;

    (void)state;
    open_on(&f, "ref", test_model(TINY), 0, false); // 6 in the file
    assert_int_equal(h3_encoder_layers(f.e), 6);
    assert_int_equal(h3_ckpt_finish(f.ck), H3_OK);
    close_all(&f);
    open_on(&f, "ref", test_model(DEEP), 0, true); // 52 in the file
    assert_int_equal(h3_encoder_layers(f.e), H3_ENCODER_SELECT);
    assert_int_equal(h3_ckpt_finish(f.ck), H3_OK);
    close_all(&f);
}

static void test_refusals(void **state)
{
    static const int32_t ids[6] = {5, 1036, 1036, 1036, 1036, 7}, bad_id[1] = {1056};
    static const uint8_t mm[6] = {0, 1, 1, 1, 1, 0}, wrong_kind[6] = {0, 2, 2, 2, 2, 0};
    static const int32_t grid[3] = {1, 4, 4}, odd[3] = {1, 4, 3}, none[3] = {0, 4, 4};
    static const int32_t huge[3] = {1 << 20, 1 << 20, 1 << 20};
    static const int32_t negative[3] = {0, -1, 0};
    static float patches[16 * 1536];
    int32_t *pos = plain_positions(6);
    h3_encoder_in in = {.n_rows = 6, .ids = ids, .positions = pos, .mm = mm};
    h3_status st;
    fixture f;
    float *y;

    (void)state;
    open_on(&f, "ref", test_model(TINY), 2, true);
    in.image = (h3_encoder_media){.n = 1, .grid = grid, .patches = patches};
    y = run(&f, &in, &st);
    assert_non_null(y);
    free(y);

    in.mm = wrong_kind; // four clip pads, no clip, and a picture without pads
    assert_null(run(&f, &in, &st));
    assert_int_equal(st, H3_E_ARG);
    in.mm = mm;
    static const int32_t *const bad_grid[] = {odd, none, huge, negative};
    for (size_t i = 0; i < sizeof bad_grid / sizeof *bad_grid; i++) {
        in.image.grid = bad_grid[i];
        assert_null(run(&f, &in, &st));
        assert_int_equal(st, H3_E_ARG);
    }
    h3_encoder_in text = {.n_rows = 1, .ids = bad_id, .positions = negative + 2};
    text.positions = (const int32_t[]){0, 0, 0};
    assert_null(run(&f, &text, &st));
    assert_int_equal(st, H3_E_ARG);
    text.ids = ids;
    text.positions = negative;
    assert_null(run(&f, &text, &st));
    assert_int_equal(st, H3_E_ARG);
    text.n_rows = 0;
    assert_null(run(&f, &text, &st));
    assert_int_equal(st, H3_E_ARG);
    close_all(&f);

    open_on(&f, "ref", test_model(TINY), 2, false); // media for a conditioner without eyes
    in.image.grid = grid;
    assert_null(run(&f, &in, &st));
    assert_int_equal(st, H3_E_ARG);
    close_all(&f);
    free(pos);
}

/* A stop between layers comes back as such, with the scratch given back. */
static void test_cancel(void **state)
{
    static const int32_t ids[2] = {3, 4};
    h3_cancel_flag stop = {.stop = false};
    int32_t *pos = plain_positions(2);
    const h3_encoder_in in = {.n_rows = 2, .ids = ids, .positions = pos};
    h3_status st;
    fixture f;

    (void)state;
    open_on(&f, "ref", test_model(TINY), 0, false);
    f.d->cancel = &stop;
    stop.stop = true;
    assert_null(run(&f, &in, &st));
    assert_int_equal(st, H3_E_CANCELLED);
    close_all(&f);
    free(pos);
}

/* Causal everywhere: another last token leaves the earlier rows as they are, bit for bit. */
static void test_causal(void **state)
{
    int32_t ids[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, *pos = plain_positions(9);
    const h3_encoder_in in = {.n_rows = 9, .ids = ids, .positions = pos};
    h3_status st;
    fixture f;
    float *a, *b;

    (void)state;
    open_on(&f, "ref", test_model(TINY), 0, false);
    const size_t row = (size_t)h3_encoder_width(f.e) * sizeof(float);
    a = run(&f, &in, &st);
    ids[8] = 100;
    b = run(&f, &in, &st);
    assert_non_null(a);
    assert_non_null(b);
    assert_memory_equal(a, b, 8 * row);
    assert_memory_not_equal((char *)a + 8 * row, (char *)b + 8 * row, row);
    free(a);
    free(b);
    free(pos);
    close_all(&f);
}

enum { ROWS_1 = 4, ROWS_2 = 6, ROWS = ROWS_1 + ROWS_2 }; // merged rows of two pictures

/* The merged rows of a batch of pictures. */
static void keep_merged(void *user, const char *name, h3_tensor t)
{
    if (strcmp(name, "image/merged") != 0) return;
    assert_int_equal(t.ne[0], ROWS);
    free(*(float **)user);
    *(float **)user = malloc((size_t)h3_numel(t) * sizeof(float));
    memcpy(*(float **)user, t.data, (size_t)h3_numel(t) * sizeof(float));
}

static float *see(fixture *f, const h3_encoder_in *in)
{
    float *seen = NULL;
    h3_status st;

    f->d->tap = keep_merged;
    f->d->tap_user = &seen;
    free(run(f, in, &st));
    assert_int_equal(st, H3_OK);
    assert_non_null(seen);
    return seen;
}

/* Ragged batch: another picture beside it leaves a picture's rows as they are, bit for bit. */
static void ragged(const char *device)
{
    enum { PATCH = 1536, P1 = 4 * ROWS_1, P = 4 * ROWS };
    static const int32_t grid[6] = {1, 4, 4, 1, 4, 6};
    int32_t ids[ROWS], *pos = plain_positions(ROWS);
    uint8_t mm[ROWS];
    float *patches = malloc(P * PATCH * sizeof *patches), *a, *b;
    h3_encoder_in in = {.n_rows = ROWS, .ids = ids, .positions = pos, .mm = mm};
    fixture f;

    for (int i = 0; i < ROWS; i++) {
        ids[i] = 1036;
        mm[i] = 1;
    }
    for (int i = 0; i < P * PATCH; i++)
        patches[i] = (float)(i * 37 % 256 - 128) / 128;
    in.image = (h3_encoder_media){.n = 2, .grid = grid, .patches = patches};
    open_on(&f, device, test_model(TINY), 2, true);
    const size_t row = (size_t)h3_encoder_width(f.e) * sizeof *a;
    a = see(&f, &in);
    for (int first = 0; first < 2; first++) { // change one, look at the other
        patches[first ? 5 : P1 * PATCH + 5] += 0.25f;
        b = see(&f, &in);
        const size_t at = first ? ROWS_1 * row : 0, n = (first ? ROWS_2 : ROWS_1) * row;
        const size_t other = first ? 0 : ROWS_1 * row, m = (first ? ROWS_1 : ROWS_2) * row;
        assert_memory_equal((char *)a + at, (char *)b + at, n);
        assert_memory_not_equal((char *)a + other, (char *)b + other, m);
        free(a);
        a = b;
    }
    free(a);
    free(patches);
    free(pos);
    close_all(&f);
}

static void test_ragged(void **state)
{
    h3_dev *probe = NULL;

    (void)state;
    ragged("ref");
    if (h3_dev_open(&probe, "cpu", NULL) != H3_OK) return;
    h3_dev_close(&probe);
    ragged("cpu");
}

/* Equal tokens: one layer gives every row the same, in whatever chunk of the feed-forward it lies.
 */
static void test_row_chunks(void **state)
{
    enum { S = 4096 + 5 };
    int32_t *ids = calloc(S, sizeof *ids), *pos = plain_positions(S);
    const h3_encoder_in in = {.n_rows = S, .ids = ids, .positions = pos};
    h3_dev *probe = NULL;
    h3_status st;
    fixture f;
    float *y;

    (void)state;
    if (h3_dev_open(&probe, "cpu", NULL) != H3_OK) { // minutes on the reference device
        free(ids);
        free(pos);
        skip();
    }
    h3_dev_close(&probe);
    open_on(&f, "cpu", test_model(DEEP), 1, false);
    const int64_t C = h3_encoder_width(f.e);
    y = run(&f, &in, &st);
    assert_non_null(y);
    for (int64_t i = 0; i < S * C; i++)
        assert_true(fabsf(y[i] - y[i % C]) <= 1e-4f);
    free(y);
    free(ids);
    free(pos);
    close_all(&f);
}

/* ---- where bf16 rounds ---- */

/* Sums over a tap and the reference's tensor of the same name. */
typedef struct distance {
    const h3_entry *want;
    double diff, size;
} distance;

static void on_first_layer(void *user, const char *name, h3_tensor t)
{
    distance *x = user;

    if (strcmp(name, "text/layer.0") != 0) return;
    assert_int_equal(t.dtype, H3_BF16);
    assert_int_equal((size_t)h3_numel(t) * 2, x->want->bytes);
    for (int64_t i = 0; i < h3_numel(t); i++) {
        uint16_t h;

        memcpy(&h, x->want->data + 2 * i, sizeof h);
        const double w = (double)h3_bf16_to_f32(h);
        const double e = (double)h3_bf16_to_f32(((const uint16_t *)t.data)[i]) - w;
        x->diff += e * e;
        x->size += w * w;
    }
}

/**
 * The goldens' bf16 tolerance is twice the oracle's own error: too wide to see WHERE values round.
 * One layer of the reference device is not: measured 2.9e-3 with the oracle's rounding
 * points, 4.2e-3 when the rotation is left in float32, 7.6e-3 when RMSNorm rounds once.
 */
static void test_bf16_rounding_points(void **state)
{
    const h3_encoder_opts opts = {.act = H3_BF16, .select = 2};
    h3_manifest *m = NULL;
    fixture f = {0};
    distance x = {0};
    size_t bytes = 0;
    h3_tensor out;

    (void)state;
    assert_int_equal(h3_manifest_open(&m, CASE), H3_OK);
    const h3_entry *ids = h3_manifest_find(m, "in/input_ids");
    const h3_entry *pos = h3_manifest_find(m, "in/position_ids");
    x.want = h3_manifest_find(m, "bf16/text/layer.0");
    assert_true(ids && pos && x.want);
    const int64_t S = ids->ne[0];
    int32_t *host = malloc((size_t)S * 4 * sizeof *host);
    assert_non_null(host);
    memcpy(host, ids->data, (size_t)S * 4);
    memcpy(host + S, pos->data, (size_t)S * 12);
    const h3_encoder_in in = {.n_rows = S, .ids = host, .positions = host + S};

    assert_int_equal(h3_dev_open(&f.d, "ref", NULL), H3_OK);
    assert_int_equal(h3_ckpt_open(&f.ck, test_model(TINY), H3_ROLE_TEXT_ENCODER, NULL), H3_OK);
    assert_int_equal(h3_encoder_open(&f.e, f.ck, f.d, &opts), H3_OK);
    assert_int_equal(h3_encoder_scratch_bytes(f.e, &in, &bytes), H3_OK);
    assert_int_equal(h3_dev_scratch(f.d, bytes), H3_OK);
    assert_int_equal(
        h3_dev_alloc(f.d, &out, H3_BF16, 2, (const int64_t[]){S, h3_encoder_width(f.e)}), H3_OK);
    f.d->tap = on_first_layer;
    f.d->tap_user = &x;
    assert_int_equal(h3_encoder_run(f.e, &in, out), H3_OK);
    assert_true(x.size > 0);
    assert_true(sqrt(x.diff / x.size) < 3.5e-3);
    h3_dev_free(f.d, &out);
    close_all(&f);
    h3_manifest_close(&m);
    free(host);
}

/* ---- bytes that must not be read ---- */

static bool is_needed(const char *name, int n_layers)
{
    int layer;

    if (sscanf(name, "model.language_model.layers.%d.", &layer) == 1) return layer < n_layers;
    return false; // embedding rows are marked one by one
}

static void mark(bool *page, size_t from, size_t to, size_t page_bytes)
{
    for (size_t p = from / page_bytes; p <= (to - 1) / page_bytes; p++)
        page[p] = true;
}

/* Pages of the file that a text-only run of `n_layers` layers has a reason to read. */
static bool *needed_pages(const char *path, int n_layers, const int32_t *ids, int n_ids,
                          size_t page_bytes, size_t *n_pages)
{
    FILE *fp = fopen(path, "rb");
    uint64_t n = 0;
    const char *name;
    json_t *v;

    assert_non_null(fp);
    assert_int_equal(fread(&n, 8, 1, fp), 1);
    char *text = malloc((size_t)n);
    assert_int_equal(fread(text, (size_t)n, 1, fp), 1);
    fseek(fp, 0, SEEK_END);
    *n_pages = (size_t)ftell(fp) / page_bytes; // whole pages only
    bool *page = calloc(*n_pages + 2, sizeof *page);
    json_t *head = json_loadb(text, (size_t)n, 0, NULL);
    const size_t base = 8 + (size_t)n;

    mark(page, 0, base, page_bytes);
    json_object_foreach(head, name, v)
    {
        const json_t *off = json_object_get(v, "data_offsets");
        const size_t a = base + (size_t)json_integer_value(json_array_get(off, 0));
        const size_t b = base + (size_t)json_integer_value(json_array_get(off, 1));

        if (is_needed(name, n_layers)) mark(page, a, b, page_bytes);
        if (strcmp(name, "model.language_model.embed_tokens.weight") != 0) continue;
        const size_t row =
            2 * (size_t)json_integer_value(json_array_get(json_object_get(v, "shape"), 1));
        for (int i = 0; i < n_ids; i++)
            mark(page, a + (size_t)ids[i] * row, a + (size_t)(ids[i] + 1) * row, page_bytes);
    }
    json_decref(head);
    free(text);
    fclose(fp);
    return page;
}

/* Where this process has the file mapped. */
static unsigned char *find_map(const char *path)
{
    FILE *fp = fopen("/proc/self/maps", "r");
    char line[4096];
    unsigned char *at = NULL;

    assert_non_null(fp);
    while (!at && fgets(line, sizeof line, fp)) {
        unsigned long long from = 0, offset = 1;

        line[strcspn(line, "\n")] = '\0';
        if (strlen(line) < strlen(path) || strcmp(line + strlen(line) - strlen(path), path) != 0)
            continue;
        if (sscanf(line, "%llx-%*x %*s %llx", &from, &offset) == 2 && offset == 0)
            at = (unsigned char *)(uintptr_t)from; // NOLINT: an address from the kernel's own table
    }
    fclose(fp);
    return at;
}

/* Everything else is made unreadable: a touch would end this program. */
static void test_untouched_bytes(void **state)
{
    static const int32_t ids[3] = {70, 12, 900};
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const h3_encoder_opts opts = {.act = H3_F32, .select = 4};
    char *path = realpath(test_model(TINY "/model.safetensors"), NULL);
    int32_t *pos = plain_positions(3);
    const h3_encoder_in in = {.n_rows = 3, .ids = ids, .positions = pos};
    size_t n_pages = 0, n_closed = 0;
    fixture f = {0};
    h3_status st;
    float *y;

    (void)state;
    assert_non_null(path);
    assert_int_equal(h3_dev_open(&f.d, "ref", NULL), H3_OK);
    assert_int_equal(h3_ckpt_open(&f.ck, test_model(TINY), H3_ROLE_TEXT_ENCODER, NULL), H3_OK);
    bool *page = needed_pages(path, 4, ids, 3, page_bytes, &n_pages);
    unsigned char *map = find_map(path);
    assert_non_null(map);
    for (size_t p = 0; p < n_pages; p++)
        if (!page[p]) {
            assert_int_equal(mprotect(map + p * page_bytes, page_bytes, PROT_NONE), 0);
            n_closed++;
        }
    assert_true(n_closed > n_pages / 3); // vision, two layers, lm_head, most of the embedding
    assert_int_equal(h3_encoder_open(&f.e, f.ck, f.d, &opts), H3_OK);
    assert_int_equal(h3_ckpt_finish(f.ck), H3_OK);
    y = run(&f, &in, &st);
    assert_non_null(y);
    free(y);
    close_all(&f);
    free(page);
    free(path);
    free(pos);
}

/* ---- configurations that do not belong to the tensors, or to nobody ---- */

/* Opens the tiny tower beside a config.json in which part.key was replaced (NULL: removed). */
static h3_status open_with(const char *folder, const char *part, const char *key, const char *json)
{
    const h3_encoder_opts opts = {.act = H3_F32, .has_vision = true};
    char *path = h3_path_join(folder, "config.json");
    json_t *config = json_load_file(test_model(TINY "/config.json"), 0, NULL);
    json_t *o = part[0] ? json_object_get(config, part) : config;
    fixture f = {0};
    h3_status st;

    assert_non_null(o);
    if (json)
        assert_int_equal(json_object_set_new(o, key, json_loads(json, JSON_DECODE_ANY, NULL)), 0);
    else
        json_object_del(o, key);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    assert_int_equal(h3_dev_open(&f.d, "ref", NULL), H3_OK);
    st = h3_ckpt_open(&f.ck, folder, H3_ROLE_TEXT_ENCODER, NULL);
    if (st == H3_OK) st = h3_encoder_open(&f.e, f.ck, f.d, &opts);
    close_all(&f);
    json_decref(config);
    unlink(path);
    free(path);
    return st;
}

static void test_configurations(void **state)
{
    static const struct {
        const char *part, *key, *json;
        h3_status want;
    } cases[] = {
        {"text_config", "bos_token_id", "3", H3_OK},
        {"text_config", "head_dim", NULL, H3_OK}, // the shapes know
        {"text_config", "rope_parameters", "{\"rope_theta\": 5e6, \"mrope_section\": [8, 4, 4]}",
         H3_OK},
        {"text_config", "num_attention_heads", "8", H3_E_SHAPE},
        {"text_config", "num_key_value_heads", "\"2\"", H3_E_SHAPE},
        {"text_config", "hidden_act", "\"gelu\"", H3_E_UNSUPPORTED},
        {"text_config", "rope_theta", NULL, H3_E_FORMAT},
        {"text_config", "rope_theta", "1e300", H3_E_FORMAT},
        {"text_config", "rms_norm_eps", "-1", H3_E_FORMAT},
        {"text_config", "rope_scaling", "{}", H3_E_FORMAT},
        {"text_config", "rope_scaling", "{\"mrope_section\": [8, 4, 5]}", H3_E_FORMAT},
        {"text_config", "rope_scaling", "{\"mrope_section\": [\"a\", 8, 8]}", H3_E_FORMAT},
        {"text_config", "rope_scaling", "{\"mrope_section\": [8, 9223372036854775807, 4]}",
         H3_E_FORMAT},
        {"", "text_config", NULL, H3_E_MISSING}, // heads of 32 are not the released ones
        {"", "vision_config", NULL, H3_E_MISSING},
        {"vision_config", "num_heads", NULL, H3_E_MISSING},
        {"vision_config", "num_heads", "0", H3_E_SHAPE},
        {"vision_config", "num_heads", "5", H3_E_SHAPE},
        {"vision_config", "depth", "4", H3_E_SHAPE},
        {"vision_config", "spatial_merge_size", "4", H3_E_SHAPE},
        {"vision_config", "hidden_act", "\"gelu\"", H3_E_UNSUPPORTED},
        {"vision_config", "deepstack_visual_indexes", NULL, H3_E_MISSING},
        {"vision_config", "deepstack_visual_indexes", "[0, 2]", H3_E_SHAPE},
        {"vision_config", "deepstack_visual_indexes", "[3, 0, 2]", H3_OK},
        {"vision_config", "deepstack_visual_indexes", "[0, 2, 2]", H3_E_FORMAT},
        {"vision_config", "deepstack_visual_indexes", "[0, 2, 5]", H3_E_FORMAT},
        {"vision_config", "deepstack_visual_indexes", "[-1, 2, 3]", H3_E_FORMAT},
    };
    char folder[] = "/tmp/h3av-encoder-XXXXXX", *link;

    (void)state;
    assert_non_null(mkdtemp(folder));
    link = h3_path_join(folder, "model.safetensors");
    assert_int_equal(symlink(test_model(TINY "/model.safetensors"), link), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const h3_status st = open_with(folder, cases[i].part, cases[i].key, cases[i].json);

        if (st != cases[i].want)
            fail_msg("%s.%s = %s gave %s: %s", cases[i].part, cases[i].key,
                     cases[i].json ? cases[i].json : "(removed)", h3_status_name(st), h3_error());
    }
    unlink(link);
    rmdir(folder);
    free(link);
}

/* ---- the released sizes, without a config.json ---- */

/** Writes a header; the data behind it is one hole. */
typedef struct hollow {
    char *text;
    size_t n, room;
    uint64_t at;
    int n_tensors;
} hollow;

static void hollow_add(hollow *h, int64_t rows, int64_t cols, const char *fmt, ...)
{
    char name[128], line[320];
    const uint64_t end = h->at + 2 * (uint64_t)rows * (uint64_t)(cols ? cols : 1);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const int n =
        cols ? snprintf(line, sizeof line, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%lld,%lld],",
                        h->n ? "," : "{", name, (long long)rows, (long long)cols)
             : snprintf(line, sizeof line, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%lld],",
                        h->n ? "," : "{", name, (long long)rows);
    snprintf(line + n, sizeof line - (size_t)n, "\"data_offsets\":[%llu,%llu]}",
             (unsigned long long)h->at, (unsigned long long)end);
    assert_true(h->n + strlen(line) + 2 < h->room);
    h->n += (size_t)snprintf(h->text + h->n, h->room - h->n, "%s", line);
    h->at = end;
    h->n_tensors++;
}

static void hollow_text(hollow *h, int n_layers)
{
    hollow_add(h, 151936, 5120, "model.language_model.embed_tokens.weight");
    for (int i = 0; i < n_layers; i++) {
#define LAYER "model.language_model.layers.%d."
        hollow_add(h, 5120, 0, LAYER "input_layernorm.weight", i);
        hollow_add(h, 5120, 0, LAYER "post_attention_layernorm.weight", i);
        hollow_add(h, 128, 0, LAYER "self_attn.q_norm.weight", i);
        hollow_add(h, 128, 0, LAYER "self_attn.k_norm.weight", i);
        hollow_add(h, 8192, 5120, LAYER "self_attn.q_proj.weight", i);
        hollow_add(h, 1024, 5120, LAYER "self_attn.k_proj.weight", i);
        hollow_add(h, 1024, 5120, LAYER "self_attn.v_proj.weight", i);
        hollow_add(h, 5120, 8192, LAYER "self_attn.o_proj.weight", i);
        hollow_add(h, 25600, 5120, LAYER "mlp.gate_proj.weight", i);
        hollow_add(h, 25600, 5120, LAYER "mlp.up_proj.weight", i);
        hollow_add(h, 5120, 25600, LAYER "mlp.down_proj.weight", i);
    }
    hollow_add(h, 5120, 0, "model.language_model.norm.weight");
    hollow_add(h, 151936, 5120, "lm_head.weight");
}

static void hollow_linear(hollow *h, int64_t rows, int64_t cols, const char *name)
{
    hollow_add(h, rows, cols, "%s.weight", name);
    hollow_add(h, rows, 0, "%s.bias", name);
}

static void hollow_vision(hollow *h)
{
    char name[96];

    hollow_linear(h, 1152, 1536, "model.visual.patch_embed.proj");
    hollow_add(h, 2304, 1152, "model.visual.pos_embed.weight");
    for (int i = 0; i < 27; i++) {
        static const struct {
            const char *name;
            int64_t rows, cols;
        } part[] = {{"norm1", 1152, 0},
                    {"norm2", 1152, 0},
                    {"attn.qkv", 3456, 1152},
                    {"attn.proj", 1152, 1152},
                    {"mlp.linear_fc1", 4304, 1152},
                    {"mlp.linear_fc2", 1152, 4304}};
        for (size_t j = 0; j < sizeof part / sizeof *part; j++) {
            snprintf(name, sizeof name, "model.visual.blocks.%d.%s", i, part[j].name);
            hollow_linear(h, part[j].rows, part[j].cols, name);
        }
    }
    for (int k = 0; k < 4; k++) {
        char merger[64] = "model.visual.merger";

        if (k < 3) snprintf(merger, sizeof merger, "model.visual.deepstack_merger_list.%d", k);
        snprintf(name, sizeof name, "%s.norm", merger);
        hollow_linear(h, k < 3 ? 4608 : 1152, 0, name);
        snprintf(name, sizeof name, "%s.linear_fc1", merger);
        hollow_linear(h, 4608, 4608, name);
        snprintf(name, sizeof name, "%s.linear_fc2", merger);
        hollow_linear(h, 5120, 4608, name);
    }
}

/* Numbers of tensors and bytes are the published ones; nothing but the vectors is ever read. */
static void test_released_sizes(void **state)
{
    char path[] = "/tmp/h3av-encoder-XXXXXX.safetensors";
    hollow h = {.room = 1 << 20};
    const int32_t grid[] = {1, 128, 128, 1, 48, 84}; // a reference picture and a keyframe
    const h3_encoder_opts opts = {.act = H3_BF16, .has_vision = true};
    h3_encoder_in in = {.n_rows = 12574, .image = {.n = 2, .grid = grid}};
    size_t text_bytes = 0, both_bytes = 0;
    fixture f = {0};

    (void)state;
    h.text = malloc(h.room);
    assert_non_null(h.text);
    hollow_text(&h, 64);
    hollow_vision(&h);
    assert_int_equal(h.n_tensors, 1058);
    assert_int_equal(h.at, UINT64_C(66714780128));
    h.text[h.n++] = '}';
    const uint64_t n = h.n;
    const int fd = mkstemps(path, 12);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &n, 8), 8);
    assert_int_equal(write(fd, h.text, h.n), (ssize_t)h.n);
    const bool has_room = ftruncate(fd, (off_t)(8 + n + h.at)) == 0;
    close(fd);
    free(h.text);
    if (has_room) {
        assert_int_equal(h3_dev_open(&f.d, "ref", NULL), H3_OK);
        assert_int_equal(h3_ckpt_open(&f.ck, path, H3_ROLE_TEXT_ENCODER, NULL), H3_OK);
        assert_int_equal(h3_encoder_open(&f.e, f.ck, f.d, &opts), H3_OK);
        assert_int_equal(h3_ckpt_finish(f.ck), H3_OK);
        assert_int_equal(h3_encoder_width(f.e), 5120);
        assert_int_equal(h3_encoder_layers(f.e), 50);
        assert_int_equal(h3_encoder_scratch_bytes(f.e, &in, &both_bytes), H3_OK);
        in.image.n = 0;
        assert_int_equal(h3_encoder_scratch_bytes(f.e, &in, &text_bytes), H3_OK);
        assert_true(text_bytes < both_bytes);
        assert_true(both_bytes < (size_t)3 << 30); // 25600-wide rows are cut into chunks
    }
    close_all(&f);
    unlink(path);
    if (!has_room) skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mrope_axes),      cmocka_unit_test(test_grid_order),
        cmocka_unit_test(test_layers),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cancel),          cmocka_unit_test(test_causal),
        cmocka_unit_test(test_ragged),          cmocka_unit_test(test_row_chunks),
        cmocka_unit_test(test_untouched_bytes), cmocka_unit_test(test_bf16_rounding_points),
        cmocka_unit_test(test_configurations),  cmocka_unit_test(test_released_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
