/**
 * Goldens of the text room: token ids, tags and positions of whole presentations.
 *
 * Four kinds of file hold them: a table of texts and their ids (tokens.jsonl: whole rows under
 * several vocabularies, and where the splitter cuts), `presentation.safetensors` (released sizes,
 * the released vocabulary), the conditioner cases (reduced checkpoints that carry their own
 * tokenizer) and the pipeline runs. Only the request, the patch grids and the processor's settings
 * are taken from outside; everything that is compared comes out of h3_prompt_build.
 *
 * The released vocabulary is too large to ship. $H3AV_REAL_TOKENIZER names a folder that has it, or
 * a cut of it that holds every token and merge the file needs; without, a presentation is compared
 * block by block only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "golden.h"
#include "prompt.h"

enum { MAX_REFS = 16, MAX_TIMES = 4096 };

/* A request as a golden states it; times of all videos share one pool. */
typedef struct request {
    h3_prompt_in in;
    h3_prompt_ref refs[MAX_REFS];
    double times[MAX_TIMES];
    int n_times;
} request;

/* ---- requests ---------------------------------------------------------------------------------
 */

/* The conditioner reads two frames a second of a 24 fps clip: every twelfth, index / 2 seconds. */
static void set_times(request *r, h3_prompt_ref *ref, int n_frames)
{
    const int n = (n_frames + 11) / 12;

    ref->times = r->times + r->n_times;
    ref->n_times = n;
    for (int i = 0; i < n && r->n_times < MAX_TIMES; i++)
        r->times[r->n_times++] = i / 2.0;
}

/* Row i of a grid tensor; where a request was refused and left none, the size of the input. */
static void set_grid(h3_prompt_ref *ref, const h3_tensor *grids, int i, const json_t *spec,
                     int size)
{
    if (grids && i < grids->ne[0]) {
        for (int k = 0; k < 3; k++)
            ref->grid[k] = (int32_t)golden_value(*grids, 3 * i + k);
        return;
    }
    ref->grid[0] = ref->kind == H3_PROMPT_VIDEO ? (ref->n_times + size - 1) / size : 1;
    ref->grid[1] = (int32_t)json_integer_value(json_object_get(spec, "h")) / 16;
    ref->grid[2] = (int32_t)json_integer_value(json_object_get(spec, "w")) / 16;
}

static const json_t *first_of(const json_t *spec, const char *a, const char *b)
{
    const json_t *v = json_object_get(spec, a);
    return v ? v : json_object_get(spec, b);
}

/* `list` of {"kind", "frames", "audio" or "sound"} in request order; clips are cut to `max_frames`.
 */
static void add_refs(request *r, const json_t *list, const h3_tensor *images,
                     const h3_tensor *videos, int max_frames)
{
    int n_images = 0, n_videos = 0;
    size_t i;
    json_t *spec;

    json_array_foreach(list, i, spec)
    {
        if (r->in.n_refs == MAX_REFS) return;
        h3_prompt_ref *ref = &r->refs[r->in.n_refs++];
        const char *kind = json_string_value(json_object_get(spec, "kind"));
        int n = (int)json_integer_value(json_object_get(spec, "frames"));
        *ref = (h3_prompt_ref){.kind = H3_PROMPT_AUDIO};
        if (kind && strcmp(kind, "image") == 0) {
            ref->kind = H3_PROMPT_IMAGE;
            set_grid(ref, images, n_images++, spec, r->in.temporal_patch);
        } else if (kind && strcmp(kind, "video") == 0) {
            const json_t *fps = json_object_get(spec, "fps");
            const json_t *sound = first_of(spec, "audio", "sound");
            if (fps) n = (int)((double)n * 24.0 / json_number_value(fps) + 0.5);
            ref->kind = H3_PROMPT_VIDEO;
            ref->has_sound = json_is_true(sound) || json_integer_value(sound) > 0;
            set_times(r, ref, max_frames > 0 && n > max_frames ? max_frames : n);
            set_grid(ref, videos, n_videos++, spec, r->in.temporal_patch);
        }
    }
    r->in.refs = r->refs;
}

static void begin(request *r, const json_t *item)
{
    const char *task = json_string_value(json_object_get(item, "task"));

    *r = (request){.in = {.merge_size = 2, .temporal_patch = 2}};
    r->in.task = task && strcmp(task, "fl2va") == 0    ? H3_PROMPT_FL2VA
                 : task && strcmp(task, "ref2va") == 0 ? H3_PROMPT_REF2VA
                                                       : H3_PROMPT_T2VA;
    r->in.text = json_string_value(json_object_get(item, "prompt"));
    r->in.n_bytes = json_string_length(json_object_get(item, "prompt"));
}

/* The processor's settings beside a checkpoint. */
static void read_settings(request *r, const char *folder)
{
    char *path = h3_path_join(folder, "preprocessor_config.json");
    json_t *j = json_load_file(path, 0, NULL);

    if (j) {
        r->in.merge_size = (int)json_integer_value(json_object_get(j, "merge_size"));
        r->in.temporal_patch = (int)json_integer_value(json_object_get(j, "temporal_patch_size"));
    }
    json_decref(j);
    free(path);
}

/* ---- presentation.safetensors -----------------------------------------------------------------
 */

static bool is_presentation(const golden *g)
{
    const json_t *cases = json_object_get(g->meta, "cases");
    return json_is_array(cases) && json_object_get(json_array_get(cases, 0), "pieces");
}

static const char *name_of(char *buf, size_t cap, const char *item, const char *tensor)
{
    snprintf(buf, cap, "%s/%s", item, tensor);
    return buf;
}

static void compare_runs(golden *g, const char *name, const h3_prompt *p)
{
    int32_t *runs = calloc((size_t)p->n_runs * 2 + 1, sizeof *runs);

    for (int i = 0; i < p->n_runs; i++) {
        runs[2 * i] = (int32_t)p->runs[i].row;
        runs[2 * i + 1] = (int32_t)p->runs[i].n_rows;
    }
    golden_exact(g, name, h3_tensor_2d(runs, H3_I32, p->n_runs, 2));
    free(runs);
}

/* Rows of vision blocks that another vocabulary leaves alone: their number, types, tags (markers
 * included) and positions relative to the block's start. */
static void compare_blocks(golden *g, const char *item, const h3_prompt *p)
{
    char buf[128];
    const h3_tensor *runs = golden_need(g, name_of(buf, sizeof buf, item, "visual_runs"));
    const h3_tensor *tags = golden_need(g, name_of(buf, sizeof buf, item, "tags"));
    const h3_tensor *mm = golden_need(g, name_of(buf, sizeof buf, item, "mm"));
    const h3_tensor *pos = golden_need(g, name_of(buf, sizeof buf, item, "position_ids"));
    if (!runs || !tags || !mm || !pos) return;
    const int64_t S = h3_numel(*tags);
    bool ok = runs->ne[0] == p->n_runs;

    for (int i = 0; ok && i < p->n_runs; i++) {
        const int64_t at = (int64_t)golden_value(*runs, 2 * i), ours = p->runs[i].row;
        const int64_t n = p->runs[i].n_rows;
        ok = (int64_t)golden_value(*runs, 2 * i + 1) == n && at + n < S && at > 0;
        for (int64_t k = -1; ok && k <= n; k++) {
            ok = golden_value(*tags, at + k) == p->tags[ours + k] &&
                 golden_value(*mm, at + k) == p->mm_types[ours + k];
            for (int64_t axis = 0; ok && axis < 3; axis++) {
                const int64_t a = axis * S + at, b = axis * p->n_rows + ours;
                ok = golden_value(*pos, a + k) - golden_value(*pos, a - 1) ==
                     p->position_ids[b + k] - p->position_ids[b - 1];
            }
        }
    }
    golden_check(g, item, ok, "%d vision blocks, by structure only", p->n_runs);
}

static void compare_presentation(golden *g, const char *item, const h3_prompt *p)
{
    char buf[128];
    const int64_t S = p->n_rows;

    golden_exact(g, name_of(buf, sizeof buf, item, "ids"), h3_tensor_1d(p->ids, H3_I32, S));
    golden_exact(g, name_of(buf, sizeof buf, item, "tags"), h3_tensor_1d(p->tags, H3_U8, S));
    golden_exact(g, name_of(buf, sizeof buf, item, "mm"), h3_tensor_1d(p->mm_types, H3_U8, S));
    golden_exact(g, name_of(buf, sizeof buf, item, "position_ids"),
                 h3_tensor_2d(p->position_ids, H3_I32, 3, S));
    compare_runs(g, name_of(buf, sizeof buf, item, "visual_runs"), p);
}

static void run_item(golden *g, const h3_tok *t, const json_t *item, bool is_real, bool is_refused)
{
    const char *name = json_string_value(json_object_get(item, "name"));
    char buf[128];
    request r;
    h3_prompt p;

    begin(&r, item);
    if (!name || !r.in.text) {
        golden_check(g, "case", false, "a case without name or prompt");
        return;
    }
    add_refs(&r, json_object_get(item, "refs"),
             golden_find(g, name_of(buf, sizeof buf, name, "image_grid_thw")),
             golden_find(g, name_of(buf, sizeof buf, name, "video_grid_thw")), 0);
    const h3_status st = h3_prompt_build(&p, t, &r.in);
    if (is_refused)
        golden_check(g, name, st == H3_E_ARG, "must be refused: %s", st ? h3_error() : "accepted");
    else if (st != H3_OK)
        golden_check(g, name, false, "%s", h3_error());
    else if (is_real)
        compare_presentation(g, name, &p);
    else
        compare_blocks(g, name, &p);
    h3_prompt_free(&p);
}

/* The released vocabulary, or NULL; malloc'd. */
static char *find_real_tokenizer(const golden *g)
{
    const char *env = getenv("H3AV_REAL_TOKENIZER");
    char *cut = h3_path_join(g->folder, "../tokenizer/real_subset");

    if (!env && h3_path_exists(cut)) return cut;
    free(cut);
    return env ? h3_strdupf("%s", env) : NULL;
}

static h3_status run_presentation(golden *g)
{
    char *real = find_real_tokenizer(g),
         *folder = real ? real : golden_model(g, "tiny", "tokenizer/tiny");
    h3_tok *t = NULL;
    const json_t *item;
    size_t i;

    const h3_status st = folder ? h3_tok_open(&t, folder) : H3_OK;
    if (t) {
        json_array_foreach(json_object_get(g->meta, "cases"), i, item)
            run_item(g, t, item, real != NULL, false);
        json_array_foreach(json_object_get(g->meta, "refused"), i, item)
            run_item(g, t, item, real != NULL, true);
    }
    h3_tok_free(&t);
    free(folder);
    return st;
}

/* ---- conditioner cases ------------------------------------------------------------------------
 */

static bool is_encoder_case(const golden *g)
{
    return json_object_get(json_object_get(g->meta, "case"), "task") &&
           json_object_get(g->meta, "checkpoint") && golden_find(g, "in/input_ids");
}

static void compare_case(golden *g, const h3_prompt *p)
{
    const int64_t S = p->n_rows;
    uint8_t *mask = calloc((size_t)S, 1);

    golden_exact(g, "in/input_ids", h3_tensor_1d(p->ids, H3_I32, S));
    golden_exact(g, "in/token_tags", h3_tensor_1d(p->tags, H3_U8, S));
    golden_exact(g, "in/mm_token_type_ids", h3_tensor_1d(p->mm_types, H3_U8, S));
    golden_exact(g, "in/position_ids", h3_tensor_2d(p->position_ids, H3_I32, 3, S));
    for (int i = 0; i < p->n_runs; i++)
        memset(mask + p->runs[i].row, 1, (size_t)p->runs[i].n_rows);
    if (p->n_runs) golden_exact(g, "in/visual_mask", h3_tensor_1d(mask, H3_U8, S));
    if (p->n_images)
        golden_exact(g, "in/image_grid_thw", h3_tensor_2d(p->image_grids, H3_I32, p->n_images, 3));
    if (p->n_videos)
        golden_exact(g, "in/video_grid_thw", h3_tensor_2d(p->video_grids, H3_I32, p->n_videos, 3));
    free(mask);
}

static h3_status run_encoder_case(golden *g)
{
    const json_t *item = json_object_get(g->meta, "case");
    const char *checkpoint = json_string_value(json_object_get(g->meta, "checkpoint"));
    char *stored = h3_path_join("encoder", checkpoint);
    char *folder = golden_model(g, checkpoint, stored);
    h3_tok *t = NULL;
    request r;
    h3_prompt p = {0};
    h3_status st;

    free(stored);
    if (!folder) return H3_OK; // counted as a failure
    begin(&r, item);
    read_settings(&r, folder);
    add_refs(&r, json_object_get(item, "refs"), golden_find(g, "in/image_grid_thw"),
             golden_find(g, "in/video_grid_thw"), 0);
    if ((st = h3_tok_open(&t, folder)) == H3_OK && (st = h3_prompt_build(&p, t, &r.in)) == H3_OK)
        compare_case(g, &p);
    h3_prompt_free(&p);
    h3_tok_free(&t);
    free(folder);
    return st;
}

/* ---- pipeline runs ----------------------------------------------------------------------------
 */

static bool is_pipeline_run(const golden *g)
{
    return golden_find(g, "token_ids") && golden_find(g, "text_token_tags") &&
           json_object_get(json_object_get(g->meta, "case"), "prompt");
}

/* Keyframes are fields of their own in these files. */
static void add_keyframes(request *r, const json_t *item, const h3_tensor *images)
{
    static const char *const fields[] = {"image", "last_image"};

    for (int i = 0; i < 2; i++) {
        const json_t *spec = json_object_get(item, fields[i]);
        if (!spec) continue;
        h3_prompt_ref *ref = &r->refs[r->in.n_refs];
        *ref = (h3_prompt_ref){.kind = H3_PROMPT_IMAGE};
        set_grid(ref, images, r->in.n_refs++, spec, 2);
        r->in.task = H3_PROMPT_FL2VA;
    }
    r->in.refs = r->refs;
}

static char *tiny_part(golden *g, const char *part)
{
    char *relative = h3_path_join("tiny-h3/original/FL2VA", part);
    char *folder = golden_model(g, relative, relative);

    free(relative);
    return folder;
}

static h3_status run_pipeline_text(golden *g)
{
    const json_t *item = json_object_get(g->meta, "case"),
                 *refs = json_object_get(item, "references");
    const h3_tensor *images = golden_find(g, "vision.image_grid_thw");
    char *folder = tiny_part(g, "tokenizer");
    char *settings = tiny_part(g, "processor");
    h3_tok *t = NULL;
    request r;
    h3_prompt p = {0};
    h3_status st = H3_OK;

    begin(&r, item);
    if (settings) read_settings(&r, settings);
    if (refs) r.in.task = H3_PROMPT_REF2VA;
    add_refs(&r, refs, images, golden_find(g, "vision.video_grid_thw"),
             (int)json_integer_value(json_object_get(g->meta, "num_frames")));
    if (!refs) add_keyframes(&r, item, images);
    if (folder && settings && (st = h3_tok_open(&t, folder)) == H3_OK &&
        (st = h3_prompt_build(&p, t, &r.in)) == H3_OK) {
        golden_exact(g, "token_ids", h3_tensor_1d(p.ids, H3_I32, p.n_rows));
        golden_exact(g, "text_token_tags", h3_tensor_1d(p.tags, H3_U8, p.n_rows));
    }
    h3_prompt_free(&p);
    h3_tok_free(&t);
    free(folder);
    free(settings);
    return st;
}

/* ---- texts and their ids ----------------------------------------------------------------------
 */

static bool is_token_table(const golden *g)
{
    const char *end = g->text ? strchr(g->text, '\n') : NULL;
    json_t *row = end ? json_loadb(g->text, (size_t)(end - g->text), JSON_ALLOW_NUL, NULL) : NULL;
    const bool yes =
        json_is_string(json_object_get(row, "text")) && json_is_array(json_object_get(row, "tiny"));
    json_decref(row);
    return yes;
}

typedef struct cuts {
    const json_t *want;
    size_t n, n_bad;
    int64_t shift; // the table states the released ids of added tokens
} cuts;

static void check_cut(void *ctx, int64_t piece)
{
    cuts *c = ctx;
    int64_t want = json_integer_value(json_array_get(c->want, c->n++));

    if (want < 0) want += c->shift;
    c->n_bad += piece != want;
}

static void compare_ids(golden *g, const h3_tok *t, const json_t *row, const char *column)
{
    const json_t *item = json_object_get(row, "text"), *want = json_object_get(row, column);
    const char *s = json_string_value(item);
    const size_t n = json_string_length(item);
    cuts c = {json_object_get(row, "pieces"), 0, 0, 151643 - h3_tok_find(t, "<|endoftext|>")};
    h3_tok_ids ids = {0};
    size_t n_bad = 0;
    char name[64];

    if (!s || h3_tok_encode(t, &ids, s, n) != H3_OK) {
        golden_check(g, column, false, "%s", s ? h3_error() : "a row without text");
        return;
    }
    n_bad += ids.n != json_array_size(want);
    for (size_t i = 0; i < ids.n; i++)
        n_bad += ids.id[i] != json_integer_value(json_array_get(want, i));
    if (c.want && h3_tok_split(t, s, n, check_cut, &c) == H3_OK)
        n_bad += c.n_bad + (c.n != json_array_size(c.want));
    snprintf(name, sizeof name, "%s of row %lld", column,
             (long long)json_integer_value(json_object_get(row, "n")));
    golden_check(g, name, n_bad == 0, "%zu ids", ids.n);
    h3_tok_ids_free(&ids);
}

/* All rows of the table under one vocabulary (its path is taken). */
static h3_status compare_vocabulary(golden *g, char *folder, const char *column)
{
    const char *line = g->text;
    h3_tok *t = NULL;
    const h3_status st = h3_tok_open(&t, folder);

    free(folder);
    while (st == H3_OK && *line) {
        const char *end = strchrnul(line, '\n');
        json_t *row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        compare_ids(g, t, row, column);
        json_decref(row);
        line = *end ? end + 1 : end;
    }
    h3_tok_free(&t);
    return st;
}

static h3_status run_token_table(golden *g)
{
    char *tiny = golden_model(g, "tiny", "tokenizer/tiny");
    char *pair = h3_path_join(g->folder, "tiny_pair"), *real = find_real_tokenizer(g);
    h3_status st = tiny ? compare_vocabulary(g, tiny, "tiny") : H3_OK;

    if (!h3_path_exists(pair)) {
        free(pair);
        pair = NULL;
    }
    if (st == H3_OK && pair) st = compare_vocabulary(g, pair, "tiny");
    if (st == H3_OK && real) st = compare_vocabulary(g, real, "ids");
    return st;
}

const golden_kind golden_kinds_text[] = {{"tokens", is_token_table, run_token_table},
                                         {"presentation", is_presentation, run_presentation},
                                         {"prompt", is_encoder_case, run_encoder_case},
                                         {"pipeline-text", is_pipeline_run, run_pipeline_text},
                                         {0}};
