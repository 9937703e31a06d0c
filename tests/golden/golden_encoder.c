/**
 * Conditioner goldens.
 *
 *   encoder         one request (in/input_ids ... -> text/out), in float32 and in bfloat16. Every
 *                   tensor under f32/ and bf16/ must be met by a tap of the production forward.
 *   encoder_vision  a ragged batch for the vision tower alone: run as a request whose text is
 * nothing but pads, so the same forward is tested. encoder_tables  rotary and interpolation tables
 * at the released sizes, no weights.
 *
 * Tolerances are those stored in the file. bfloat16 tensors are also held against the float32
 * golden: at most 1.5 times as far from it as the oracle's own bfloat16 run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder.h"
#include "encoder_tables.h"
#include "file.h"
#include "golden.h"
#include "half.h"

/* Under ASan an arena on the host keeps red zones, which a counting one does not. */
#if defined(__SANITIZE_ADDRESS__)
#define HAS_RED_ZONES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_RED_ZONES 1
#endif
#endif
#ifndef HAS_RED_ZONES
#define HAS_RED_ZONES 0
#endif

enum { N_KINDS = 2, DEFAULT_SIDE = 48, DEFAULT_MERGE = 2 };
static const char *const kind_name[N_KINDS] = {"image", "video"};

/** A tapped tensor, kept whole. */
typedef struct kept {
    char name[64];
    h3_tensor t; ///< owns data
} kept;

typedef struct run {
    golden *g;
    const char *set; ///< "f32" or "bf16"
    bool *is_met;    ///< per tensor of the file
    bool is_quiet;   ///< keep, do not compare
    kept keep[32];
    int n_keep;
} run;

/** A request, in the types of the door. */
typedef struct request {
    h3_encoder_in in;
    int32_t *ids, *positions;
    uint8_t *mm;
    float *patches[N_KINDS];
    int32_t *grids[N_KINDS];
    int64_t n_patches[N_KINDS], patch;
} request;

/* ---- reading the request ---- */

static int32_t *ints_of(h3_tensor t)
{
    int32_t *out = malloc(((size_t)h3_numel(t) + 1) * sizeof *out);
    for (int64_t i = 0; out && i < h3_numel(t); i++)
        out[i] = (int32_t)golden_value(t, i);
    return out;
}

static uint8_t *bytes_of(h3_tensor t)
{
    uint8_t *out = malloc((size_t)h3_numel(t) + 1);
    for (int64_t i = 0; out && i < h3_numel(t); i++)
        out[i] = (uint8_t)golden_value(t, i);
    return out;
}

static void request_media(golden *g, request *r)
{
    for (int k = 0; k < N_KINDS; k++) {
        h3_encoder_media *m = k == 0 ? &r->in.image : &r->in.video;
        char name[64];
        const h3_tensor *px, *grid;

        snprintf(name, sizeof name, "in/%s_patches_u8", kind_name[k]);
        px = golden_find(g, name);
        snprintf(name, sizeof name, "in/%s_grid_thw", kind_name[k]);
        grid = golden_find(g, name);
        if (!px || !grid) continue;
        r->n_patches[k] = px->ne[0];
        r->patch = px->ne[1];
        r->grids[k] = ints_of(*grid);
        r->patches[k] = malloc((size_t)h3_numel(*px) * sizeof(float) + 1);
        for (int64_t i = 0; i < h3_numel(*px); i++)
            r->patches[k][i] = ((float)golden_value(*px, i) - 127.5f) / 127.5f;
        m->n = (int32_t)grid->ne[0];
        m->grid = r->grids[k];
        m->patches = r->patches[k];
    }
}

static bool request_read(golden *g, request *r)
{
    const h3_tensor *ids = golden_need(g, "in/input_ids"), *pos = golden_need(g, "in/position_ids");
    const h3_tensor *mm = golden_need(g, "in/mm_token_type_ids");

    memset(r, 0, sizeof *r);
    if (!ids || !pos || !mm) return false;
    r->in.n_rows = h3_numel(*ids);
    if (h3_numel(*pos) != 3 * r->in.n_rows || h3_numel(*mm) != r->in.n_rows) return false;
    r->in.ids = r->ids = ints_of(*ids);
    r->in.positions = r->positions = ints_of(*pos);
    r->in.mm = r->mm = bytes_of(*mm);
    request_media(g, r);
    return true;
}

/* A text of pads only, as many as the batch gives rows. */
static bool request_pads(golden *g, request *r)
{
    memset(r, 0, sizeof *r);
    request_media(g, r);
    const int64_t S = r->n_patches[0] / (DEFAULT_MERGE * DEFAULT_MERGE);

    r->in.n_rows = S;
    r->in.ids = r->ids = calloc((size_t)S + 1, sizeof *r->ids);
    r->in.positions = r->positions = calloc(3 * (size_t)S + 1, sizeof *r->positions);
    r->in.mm = r->mm = malloc((size_t)S + 1);
    if (!r->ids || !r->positions || !r->mm) return false;
    memset(r->mm, 1, (size_t)S + 1);
    for (int64_t i = 0; i < 3 * S; i++)
        r->positions[i] = (int32_t)(i % S);
    return S > 0;
}

static void request_free(request *r)
{
    free(r->ids);
    free(r->positions);
    free(r->mm);
    for (int k = 0; k < N_KINDS; k++) {
        free(r->patches[k]);
        free(r->grids[k]);
    }
}

/* ---- comparing taps ---- */

static double meta_number(const golden *g, const char *a, const char *b, const char *c,
                          const char *e)
{
    const json_t *v = json_object_get(json_object_get(g->meta, a), b);

    if (c) v = json_object_get(v, c);
    if (e) v = json_object_get(v, e);
    return json_is_number(v) ? json_number_value(v) : -1;
}

static void mark_met(run *r, const char *name)
{
    for (int i = 0; i < r->g->n_tensors; i++)
        if (strcmp(r->g->tensors[i].name, name) == 0) r->is_met[i] = true;
}

/* Rotary tables are stored with their halves repeated. */
static h3_tensor repeat_halves(h3_tensor t)
{
    const int64_t n = t.ne[0], half = t.ne[1];
    float *p = malloc((size_t)(n * half) * 2 * sizeof *p);

    for (int64_t i = 0; p && i < n; i++)
        for (int64_t j = 0; j < 2 * half; j++)
            p[i * 2 * half + j] = ((const float *)t.data)[i * half + j % half];
    return h3_tensor_2d(p, H3_F32, n, 2 * half);
}

/* A tap of zero weight may name another neighbour, all others are exact. */
static void compare_indices(golden *g, const char *name, h3_tensor want, h3_tensor got,
                            const h3_tensor *weight)
{
    int64_t bad = 0;

    if (!weight || h3_numel(want) != h3_numel(got) || h3_numel(*weight) != h3_numel(got)) {
        golden_check(g, name, false, "shape %s, expected %s", h3_tensor_desc(got),
                     h3_tensor_desc(want));
        return;
    }
    for (int64_t i = 0; i < h3_numel(got); i++)
        bad += golden_value(want, i) != golden_value(got, i) && golden_value(*weight, i) > 1e-6;
    golden_check(g, name, bad == 0, "%lld of %lld taps differ", (long long)bad,
                 (long long)h3_numel(got));
}

static void compare_table(run *r, const char *name, const char *full, h3_tensor t)
{
    golden *g = r->g;
    const bool is_rope = strstr(name, "/rope_cos") || strstr(name, "/rope_sin");
    const double limit = meta_number(g, "tolerance", full, NULL, NULL);

    if (strstr(name, "/interp_indices")) {
        char weight[96];
        snprintf(weight, sizeof weight, "f32/%.*s/interp_weights", (int)strcspn(name, "/"), name);
        compare_indices(g, full, *golden_find(g, full), t, golden_find(g, weight));
    } else if (t.dtype == H3_I32) {
        golden_exact(g, full, t);
    } else {
        if (is_rope) t = repeat_halves(t);
        if (limit < 0)
            golden_check(g, full, false, "the file has no tolerance for it");
        else
            golden_near(g, full, t, limit, 0);
        if (is_rope) free(t.data);
    }
}

static void compare_bf16(run *r, const char *name, const char *full, h3_tensor t)
{
    golden *g = r->g;
    char other[96], label[112];
    const double limit = meta_number(g, "tolerance", full, NULL, NULL);
    const double measured = meta_number(g, "measured", name, "bf16_vs_f32", "rel_l2");
    const h3_tensor *f32;

    snprintf(other, sizeof other, "f32/%s", name);
    snprintf(label, sizeof label, "%s against f32", full);
    f32 = golden_find(g, other);
    if (limit < 0 || measured < 0 || !f32) {
        golden_check(g, full, false, "the file has no tolerance for it");
        return;
    }
    golden_near(g, full, t, limit, 0);
    golden_near_to(g, label, *f32, t, 1.5 * measured, 0);
}

static void keep_tap(run *r, const char *name, h3_tensor t)
{
    const size_t n = (size_t)h3_numel(t) * h3_dtype_bytes((h3_dtype)t.dtype);
    kept *k;

    if (!strstr(name, "/merged") && !strstr(name, "/deepstack.")) return;
    if (r->n_keep == (int)(sizeof r->keep / sizeof *r->keep)) return;
    k = &r->keep[r->n_keep++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->t = t;
    k->t.data = malloc(n + 1);
    if (k->t.data) memcpy(k->t.data, t.data, n);
}

static void on_tap(void *user, const char *name, h3_tensor t)
{
    run *r = user;
    char full[96];

    keep_tap(r, name, t);
    if (r->is_quiet) return;
    snprintf(full, sizeof full, "%s/%s", r->set, name);
    if (!golden_find(r->g, full)) return;
    mark_met(r, full);
    if (strcmp(r->set, "f32") == 0)
        compare_table(r, name, full, t);
    else
        compare_bf16(r, name, full, t);
}

static void drop_kept(run *r)
{
    for (int i = 0; i < r->n_keep; i++)
        free(r->keep[i].t.data);
    r->n_keep = 0;
}

/* ---- running ---- */

typedef struct model {
    h3_dev *d;
    h3_checkpoint *ck;
    h3_encoder *e;
} model;

static void model_close(model *m)
{
    h3_encoder_close(&m->e);
    h3_ckpt_close(&m->ck);
    h3_dev_close(&m->d);
}

/* Also proves that the rest of the file is accounted for. */
static h3_status model_open(golden *g, model *m, h3_dtype act, bool has_vision)
{
    const char *set = json_string_value(json_object_get(g->meta, "checkpoint"));
    const json_t *select = json_object_get(g->meta, "select");
    const h3_dev_opts dev = {.math = act == H3_F32 ? "f32" : NULL};
    const h3_encoder_opts opts = {
        .act = act, .has_vision = has_vision, .select = (int32_t)json_integer_value(select)};
    char *stored = h3_path_join("encoder", set ? set : "tiny");
    char *folder = golden_model(g, set ? set : "tiny", stored);
    h3_status st;

    free(stored);
    memset(m, 0, sizeof *m);
    if (!folder) return h3_fail(H3_E_MISSING, "no checkpoint");
    st = h3_ckpt_open(&m->ck, folder, H3_ROLE_TEXT_ENCODER, NULL);
    free(folder);
    H3_TRY(st);
    H3_TRY(h3_dev_open(&m->d, g->device, &dev));
    H3_TRY(h3_encoder_open(&m->e, m->ck, m->d, &opts));
    return h3_ckpt_finish(m->ck);
}

static h3_status run_once(golden *g, model *m, const request *q, run *r, h3_dtype act)
{
    size_t bytes = 0;
    h3_tensor out;
    h3_status st;

    H3_TRY(h3_encoder_scratch_bytes(m->e, &q->in, &bytes));
    H3_TRY(h3_dev_scratch(m->d, bytes));
    H3_TRY(
        h3_dev_alloc(m->d, &out, act, 2, (const int64_t[]){q->in.n_rows, h3_encoder_width(m->e)}));
    m->d->tap = on_tap;
    m->d->tap_user = r;
    st = h3_encoder_run(m->e, &q->in, out);
    m->d->tap = NULL;
    h3_dev_free(m->d, &out);
    if (st == H3_OK && !r->is_quiet)
        golden_check(g, "planned scratch",
                     (HAS_RED_ZONES || m->d->scratch.peak == bytes) && m->d->scratch.used == 0,
                     "%zu bytes planned, %zu taken, %zu not given back", bytes, m->d->scratch.peak,
                     m->d->scratch.used);
    return st;
}

/* Changes the first frame pair of a kind and holds every other pair's rows to the same bits. */
static h3_status check_isolation(golden *g, model *m, request *q, int kind, const run *before)
{
    const int32_t *grid = q->grids[kind];
    const int64_t cut = (int64_t)grid[1] * grid[2], rows = cut / (DEFAULT_MERGE * DEFAULT_MERGE);
    run after = {.g = g, .set = "f32", .is_quiet = true};
    h3_status st;

    if (q->n_patches[kind] == cut) return H3_OK;
    for (int64_t i = 0; i < cut * q->patch; i++)
        q->patches[kind][i] = -q->patches[kind][i];
    st = run_once(g, m, q, &after, H3_F32);
    for (int i = 0; st == H3_OK && i < after.n_keep; i++) {
        const h3_tensor a = before->keep[i].t, b = after.keep[i].t;
        const size_t split = (size_t)(rows * a.ne[1]) * sizeof(float);
        const size_t all = (size_t)h3_numel(a) * sizeof(float);
        char label[112];

        if (strncmp(after.keep[i].name, kind_name[kind], 5) != 0) continue;
        snprintf(label, sizeof label, "%s of the other frame pairs", after.keep[i].name);
        golden_check(g, label,
                     memcmp((char *)a.data + split, (char *)b.data + split, all - split) == 0,
                     "must not change with the first one");
        snprintf(label, sizeof label, "%s of the changed frame pair", after.keep[i].name);
        golden_check(g, label, memcmp(a.data, b.data, split) != 0, "must change");
    }
    drop_kept(&after);
    for (int64_t i = 0; i < cut * q->patch; i++)
        q->patches[kind][i] = -q->patches[kind][i];
    return st;
}

static void check_met(golden *g, const bool *is_met)
{
    for (int i = 0; i < g->n_tensors; i++) {
        const char *name = g->tensors[i].name;
        if (is_met[i] || (strncmp(name, "f32/", 4) != 0 && strncmp(name, "bf16/", 5) != 0))
            continue;
        golden_check(g, name, false, "no tap of the forward has this name");
    }
}

static h3_status run_request(golden *g, request *q)
{
    static const h3_dtype acts[] = {H3_F32, H3_BF16};
    const bool has_vision = q->in.image.n > 0 || q->in.video.n > 0;
    bool *is_met = calloc((size_t)g->n_tensors + 1, sizeof *is_met);
    h3_status st = is_met ? H3_OK : h3_fail(H3_E_NOMEM, "no memory");

    for (int a = 0; st == H3_OK && a < 2; a++) {
        run r = {.g = g, .set = acts[a] == H3_F32 ? "f32" : "bf16", .is_met = is_met};
        model m;

        st = model_open(g, &m, acts[a], has_vision);
        if (st == H3_OK) st = run_once(g, &m, q, &r, acts[a]);
        for (int k = 0; st == H3_OK && acts[a] == H3_F32 && k < N_KINDS; k++)
            if (q->n_patches[k]) st = check_isolation(g, &m, q, k, &r);
        drop_kept(&r);
        model_close(&m);
    }
    if (st == H3_OK) check_met(g, is_met);
    free(is_met);
    return st;
}

static bool match_case(const golden *g)
{
    return golden_find(g, "in/input_ids") && golden_find(g, "f32/text/out");
}

static h3_status run_case(golden *g)
{
    request q;
    h3_status st = H3_OK;

    if (request_read(g, &q)) st = run_request(g, &q);
    request_free(&q);
    return st;
}

static bool match_vision(const golden *g)
{
    return !golden_find(g, "in/input_ids") && golden_find(g, "in/image_patches_u8") &&
           golden_find(g, "in/image_grid_thw") && golden_find(g, "f32/image/merged");
}

static h3_status run_vision(golden *g)
{
    request q;
    h3_status st = H3_OK;

    if (request_pads(g, &q)) st = run_request(g, &q);
    request_free(&q);
    return st;
}

/* ---- tables at the released sizes ---- */

static bool match_tables(const golden *g)
{
    return golden_find(g, "text_inv_freq") && golden_find(g, "text_axis") &&
           golden_find(g, "vision_inv_freq");
}

/* powf of the C library and the oracle's may round one value apart. */
static void check_freq(golden *g, const char *name, float theta)
{
    const h3_tensor *want = golden_need(g, name);
    int64_t worst = 0;
    float *f;

    if (!want) return;
    f = malloc((size_t)h3_numel(*want) * sizeof *f + 1);
    h3_encoder_inv_freq(f, h3_numel(*want), theta);
    for (int64_t i = 0; i < h3_numel(*want); i++) {
        const int64_t ulps =
            (int64_t)h3_f32_bits(f[i]) - (int64_t)h3_f32_bits(((const float *)want->data)[i]);
        if (llabs(ulps) > worst) worst = llabs(ulps);
    }
    golden_check(g, name, worst <= 1, "worst %lld ulp (limit 1)", (long long)worst);
    free(f);
}

/* bf16 tables: the f32 ones rounded once; a value on a rounding edge may fall on the other side. */
static void check_rounded(golden *g, const char *name, h3_tensor f32)
{
    const h3_tensor *want = golden_need(g, name);
    int64_t differ = 0, far = 0;

    if (!want) return;
    for (int64_t i = 0; i < h3_numel(*want); i++) {
        const int d = (int)h3_f32_to_bf16(((const float *)f32.data)[i]) -
                      (int)((const uint16_t *)want->data)[i];
        differ += d != 0;
        far += abs(d) > 1;
    }
    golden_check(g, name, far == 0 && differ <= h3_numel(*want) / 200, "%lld of %lld differ",
                 (long long)differ, (long long)h3_numel(*want));
}

static void check_text_tables(golden *g)
{
    static const int32_t section[3] = {24, 20, 20};
    const h3_tensor *freq = golden_need(g, "text_inv_freq"), *axis = golden_need(g, "text_axis");
    const h3_tensor *pos = golden_need(g, "text_position_ids");

    if (!freq || !axis || !pos) return;
    const int64_t n = h3_numel(*freq), S = pos->ne[1];
    int32_t *own = malloc((size_t)n * sizeof *own + 1), *p = ints_of(*pos);
    float *cos = malloc((size_t)(S * n) * sizeof *cos),
          *sin = malloc((size_t)(S * n) * sizeof *sin);

    check_freq(g, "text_inv_freq", 5e6f);
    golden_check(g, "M-RoPE sections", h3_encoder_mrope_axes(own, n, section), "24, 20, 20");
    golden_exact(g, "text_axis", h3_tensor_1d(own, H3_I32, n));
    h3_encoder_mrope(cos, sin, freq->data, own, n, p, S);
    h3_tensor c = repeat_halves(h3_tensor_2d(cos, H3_F32, S, n));
    h3_tensor s = repeat_halves(h3_tensor_2d(sin, H3_F32, S, n));
    golden_near(g, "text_cos", c, 2e-6, 1e-6);
    golden_near(g, "text_sin", s, 2e-6, 1e-6);
    check_rounded(g, "text_cos_bf16", c);
    check_rounded(g, "text_sin_bf16", s);
    free(c.data);
    free(s.data);
    free(own);
    free(p);
    free(cos);
    free(sin);
}

/* Row and column of every patch of a batch. */
static int32_t *batch_order(h3_tensor grid, int64_t *n)
{
    int32_t *rc = NULL;

    *n = 0;
    for (int64_t i = 0; i < grid.ne[0]; i++) {
        const int32_t h = (int32_t)golden_value(grid, 3 * i + 1);
        const int32_t w = (int32_t)golden_value(grid, 3 * i + 2);

        rc = realloc(rc, (size_t)(*n + h * w) * 2 * sizeof *rc);
        h3_encoder_grid_order(&rc[2 * *n], h, w, DEFAULT_MERGE);
        *n += (int64_t)h * w;
    }
    return rc;
}

static void check_vision_tables(golden *g)
{
    const h3_tensor *freq = golden_need(g, "vision_inv_freq");
    const h3_tensor *grid = golden_need(g, "vision_grid_thw");
    int64_t n = 0;

    if (!freq || !grid) return;
    const int64_t f = h3_numel(*freq);
    int32_t *rc = batch_order(*grid, &n);
    float *cos = malloc((size_t)(n * 2 * f) * sizeof *cos);
    float *sin = malloc((size_t)(n * 2 * f) * sizeof *sin);

    check_freq(g, "vision_inv_freq", 10000.0f);
    golden_exact(g, "vision_pos", h3_tensor_2d(rc, H3_I32, n, 2));
    h3_encoder_grid_rope(cos, sin, freq->data, f, rc, n);
    h3_tensor c = repeat_halves(h3_tensor_2d(cos, H3_F32, n, 2 * f));
    h3_tensor s = repeat_halves(h3_tensor_2d(sin, H3_F32, n, 2 * f));
    golden_near(g, "vision_cos", c, 2e-6, 1e-6);
    golden_near(g, "vision_sin", s, 2e-6, 1e-6);
    free(c.data);
    free(s.data);
    free(rc);
    free(cos);
    free(sin);
}

static void check_taps(golden *g, int k, h3_tensor grid)
{
    char name[64];
    int64_t n = 0;
    const h3_tensor *rows, *want;

    snprintf(name, sizeof name, "interp%d_rows", k);
    rows = golden_need(g, name);
    if (!rows) return;
    int32_t *rc = batch_order(h3_tensor_2d(grid.data, (h3_dtype)grid.dtype, 1, 3), &n);
    const int64_t m = h3_numel(*rows);
    int32_t *pick = malloc((size_t)m * 2 * sizeof *pick + 1);
    int32_t *index = malloc((size_t)m * 4 * sizeof *index + 1);
    float *weight = malloc((size_t)m * 4 * sizeof *weight + 1);

    for (int64_t i = 0; i < m; i++) {
        const int64_t row = (int64_t)golden_value(*rows, i);
        pick[2 * i] = row < n ? rc[2 * row] : 0;
        pick[2 * i + 1] = row < n ? rc[2 * row + 1] : 0;
    }
    h3_encoder_grid_taps(index, weight, pick, m, (int32_t)golden_value(grid, 1),
                         (int32_t)golden_value(grid, 2), DEFAULT_SIDE);
    snprintf(name, sizeof name, "interp%d_weights", k);
    golden_near(g, name, h3_tensor_2d(weight, H3_F32, m, 4), 2e-6, 1e-6);
    want = golden_need(g, name);
    snprintf(name, sizeof name, "interp%d_indices", k);
    const h3_tensor *w_index = golden_need(g, name);
    if (want && w_index)
        compare_indices(g, name, *w_index, h3_tensor_2d(index, H3_I32, m, 4), want);
    free(rc);
    free(pick);
    free(index);
    free(weight);
}

static h3_status run_tables(golden *g)
{
    const h3_tensor *grid;
    char name[64];

    check_text_tables(g);
    check_vision_tables(g);
    for (int k = 0;; k++) {
        snprintf(name, sizeof name, "interp%d_grid", k);
        if (!(grid = golden_find(g, name))) break;
        check_taps(g, k, *grid);
    }
    return H3_OK;
}

const golden_kind golden_kinds_encoder[] = {
    {"encoder", match_case, run_case},
    {"encoder_vision", match_vision, run_vision},
    {"encoder_tables", match_tables, run_tables},
    {0},
};
