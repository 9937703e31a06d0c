/**
 * Goldens that are tables: TSV by its heading, JSON by its keys, JSON lines by their "fn". Every
 * row is recomputed by the plan and media rooms and has to agree exactly; one comparison a row.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "plan.h"
#include "rng.h"
#include "sha256.h"
#include "vision_rows.h"

/* ---------------------------------------------------------------- rows */

enum { MAX_COLUMNS = 16 };

/* One row: its cells, or its object and what came out (NULL: refused); the first thing that was
 * wrong with it. */
typedef struct row {
    char *cell[MAX_COLUMNS];
    const json_t *args, *out;
    char wrong[256];
} row;

static void blame(row *r, const char *fmt, ...) H3_PRINTF(2, 3);
static void blame(row *r, const char *fmt, ...)
{
    va_list ap;

    if (r->wrong[0]) return;
    va_start(ap, fmt);
    vsnprintf(r->wrong, sizeof r->wrong, fmt, ap);
    va_end(ap);
}

static void same(row *r, const char *what, int64_t got, int64_t want)
{
    if (got != want) blame(r, "%s: %lld, expected %lld", what, (long long)got, (long long)want);
}

static void same_text(row *r, const char *what, const char *got, const char *want)
{
    if (!want || strcmp(got, want))
        blame(r, "%s: \"%.80s\", expected \"%.80s\"", what, got, want ? want : "");
}

/* What the reference refuses is refused, and the rest is not; whether there is more to compare. */
static bool goes_on(row *r, h3_status st, bool is_refused)
{
    if (is_refused != (st == H3_E_ARG) || (!is_refused && st != H3_OK))
        blame(r, "%s", st ? h3_error() : "taken, the reference refuses it");
    return !is_refused && st == H3_OK;
}

static int64_t cell(row *r, int column)
{
    char *end;
    const int64_t v = strtoll(r->cell[column], &end, 10);

    if (*end || end == r->cell[column]) blame(r, "\"%s\" is no number", r->cell[column]);
    return v;
}

/* An aspect may be a fraction. */
static double real_cell(row *r, int column)
{
    char *end;
    const double v = strtod(r->cell[column], &end);

    if (*end || end == r->cell[column]) blame(r, "\"%s\" is no number", r->cell[column]);
    return v;
}

static int64_t at_int(const json_t *a, size_t i)
{
    return (int64_t)json_integer_value(json_array_get(a, i));
}

static int64_t get_int(const json_t *o, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(o, key));
}

static double get_number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void same_list(row *r, const char *what, const int64_t *got, int64_t n, const json_t *want)
{
    same(r, what, n, (int64_t)json_array_size(want));
    for (int64_t i = 0; i < n && !r->wrong[0]; i++)
        same(r, what, got[i], at_int(want, (size_t)i));
}

static void same_size(row *r, h3_size got, const json_t *height_width)
{
    same(r, "height", got.height, at_int(height_width, 0));
    same(r, "width", got.width, at_int(height_width, 1));
}

/* ---------------------------------------------------------------- counts */

static void row_frames(row *r)
{
    const int64_t n = cell(r, 0), aligned = h3_frames_align(n), kept = cell(r, 7);
    char seconds[32];

    same(r, "aligned", aligned, cell(r, 1));
    same(r, "latent frames", h3_frames_to_latents(aligned), cell(r, 2));
    same(r, "audio latents", h3_frames_to_audio(aligned), cell(r, 3));
    same(r, "samples", h3_frames_to_audio(aligned) * H3_AUDIO_HOP, cell(r, 4));
    snprintf(seconds, sizeof seconds, "%.6f", (double)aligned / 24);
    same_text(r, "seconds", seconds, r->cell[5]);
    same(r, "accepted", h3_frames_is_trained(aligned), cell(r, 6));
    // the table gives what is asked for; a clip shorter than that goes in whole
    same(r, "reference frames", h3_reference_frames(n), n < kept ? n : kept);
}

static void row_lengths(row *r)
{
    const int64_t n = cell(r, 0);

    same(r, "latent frames", h3_frames_to_latents(n), cell(r, 2));
    same(r, "audio latents", h3_frames_to_audio(n), cell(r, 3));
    same(r, "samples", h3_frames_to_audio(n) * H3_AUDIO_HOP, cell(r, 4));
}

static void row_align(row *r)
{
    same(r, "aligned", h3_frames_align(cell(r, 0)), cell(r, 1));
}

static void row_audio(row *r)
{
    const int64_t kept = h3_audio_keep(cell(r, 0), cell(r, 1), cell(r, 2));

    same(r, "kept", kept, cell(r, 3));
    same(r, "at 32000", h3_audio_resampled(kept, cell(r, 1)), cell(r, 4));
    same(r, "latents", h3_audio_latents(h3_audio_resampled(kept, cell(r, 1))), cell(r, 5));
}

static void row_reference_lengths(row *r)
{
    const int64_t kept = h3_audio_keep(INT32_MAX, cell(r, 0), cell(r, 1));
    const int64_t there = h3_audio_resampled(kept, cell(r, 0));

    same(r, "kept", kept, cell(r, 2));
    same(r, "at 32000", there, cell(r, 3));
    same(r, "padded", h3_audio_latents(there) * H3_AUDIO_HOP, cell(r, 4));
    same(r, "latents", h3_audio_latents(there), cell(r, 5));
}

static void row_span(row *r)
{
    const double pairwise = h3_span_pairwise(cell(r, 0));
    const double sequential = h3_span_sequential(cell(r, 0));

    if (pairwise != strtod(r->cell[1], NULL)) blame(r, "pairwise sum %a", pairwise);
    if (sequential != strtod(r->cell[2], NULL)) blame(r, "sequential sum %a", sequential);
    same(r, "differ", pairwise != sequential, cell(r, 3));
}

/* ---------------------------------------------------------------- sizes */

static void row_canvas(row *r)
{
    const h3_canvas_rule rule = {cell(r, 2), cell(r, 3), cell(r, 4)};
    h3_size s;
    const h3_status st = h3_canvas_resolve(&s, real_cell(r, 0), real_cell(r, 1), rule);

    if (!goes_on(r, st, strcmp(r->cell[5], "error") == 0)) return;
    same(r, "height", s.height, cell(r, 5));
    same(r, "width", s.width, cell(r, 6));
}

static void row_reference_image(row *r)
{
    h3_size s;
    const h3_status st = h3_canvas_reference_image(&s, (h3_size){cell(r, 0), cell(r, 1)}, 2048, 32);

    if (!goes_on(r, st, strcmp(r->cell[2], "error") == 0)) return;
    same(r, "width", s.width, cell(r, 2));
    same(r, "height", s.height, cell(r, 3));
    same(r, "rows", (s.width / 32) * (s.height / 32), cell(r, 6));
}

static void fn_canvas(row *r)
{
    const h3_canvas_rule rule = {get_int(r->args, "multiple"), get_int(r->args, "short_edge"),
                                 get_int(r->args, "max_pixels")};
    h3_size s;
    const h3_status st =
        h3_canvas_resolve(&s, get_number(r->args, "width"), get_number(r->args, "height"), rule);

    if (goes_on(r, st, !r->out)) same_size(r, s, r->out);
}

static void fn_reference_image(row *r)
{
    h3_size s;
    const h3_status st = h3_canvas_reference_image(
        &s, (h3_size){get_int(r->args, "width"), get_int(r->args, "height")},
        get_int(r->args, "short_edge"), get_int(r->args, "multiple"));

    if (goes_on(r, st, !r->out)) same_size(r, s, r->out);
}

static void fn_cover_crop(row *r)
{
    const h3_fit f = h3_fit_cover(
        (h3_size){get_int(r->args, "width"), get_int(r->args, "height")},
        (h3_size){get_int(r->args, "canvas_width"), get_int(r->args, "canvas_height")});

    same_size(r, f.resize, json_object_get(r->out, "resized"));
    same(r, "top", f.top, get_int(r->out, "top"));
    same(r, "left", f.left, get_int(r->out, "left"));
}

static h3_processor processor_of(const json_t *a)
{
    h3_processor p = h3_processor_image_default();

    p.patch = (int)get_int(a, "factor") / p.merge;
    p.min_pixels = get_int(a, "min_pixels");
    p.max_pixels = get_int(a, "max_pixels");
    return p;
}

static void fn_smart_image(row *r)
{
    const h3_processor p = processor_of(r->args);
    h3_size s = {0, 0};
    const h3_status st = h3_smart_size_image(&s.height, &s.width, get_int(r->args, "height"),
                                             get_int(r->args, "width"), &p);

    if (goes_on(r, st, !r->out)) same_size(r, s, r->out);
}

static void fn_smart_video(row *r)
{
    const h3_processor p = processor_of(r->args);
    h3_size s = {0, 0};
    const h3_status st =
        h3_smart_size_video(&s.height, &s.width, get_int(r->args, "num_frames"),
                            get_int(r->args, "height"), get_int(r->args, "width"), &p);

    if (goes_on(r, st, !r->out)) same_size(r, s, r->out);
}

static h3_size size_of(const json_t *pair)
{
    return (h3_size){at_int(pair, 0), at_int(pair, 1)};
}

/* The list of resizes and cuts that the reference made of one keyframe. */
static void same_fit(row *r, const h3_fit *f, const json_t *steps)
{
    const json_t *first = json_array_get(steps, 0), *second = json_array_get(steps, 1);

    same(r, "copied", f->is_copy, json_array_size(steps) == 0);
    if (f->is_copy) return;
    same(r, "resized width", f->resize.width, at_int(first, 1));
    same(r, "resized height", f->resize.height, at_int(first, 2));
    if (!second) {
        same_text(r, "step", "stretch", json_string_value(json_array_get(first, 0)));
        same(r, "cut", f->left + f->top, 0);
        return;
    }
    same(r, "left", f->left, at_int(second, 1));
    same(r, "top", f->top, at_int(second, 2));
    same(r, "right", f->left + f->canvas.width, at_int(second, 3));
    same(r, "bottom", f->top + f->canvas.height, at_int(second, 4));
}

static void item_keyframes(row *r)
{
    const json_t *c = r->args, *canvas = json_object_get(c, "canvas");
    const json_t *steps = json_object_get(c, "steps");
    h3_plan_request q = h3_plan_request_default();
    h3_plan *p;

    q.task = H3_FL2VA;
    q.first = size_of(json_object_get(c, "image"));
    q.last = size_of(json_object_get(c, "last_image"));
    if (json_is_array(canvas)) q.canvas = (h3_size){at_int(canvas, 1), at_int(canvas, 0)};
    if (!goes_on(r, h3_plan_create(&p, &q), json_object_get(c, "error") != NULL)) return;
    same(r, "height", p->canvas.height, get_int(c, "height"));
    same(r, "width", p->canvas.width, get_int(c, "width"));
    same(r, "keyframes", p->n_conditions, (int64_t)json_array_size(steps));
    for (int k = 0; k < p->n_conditions && !r->wrong[0]; k++) {
        const json_t *anchor = json_array_get(json_object_get(c, "anchors"), (size_t)k);
        const bool is_last = p->conditions[k].shape.kind == H3_COND_LAST;
        same_text(r, "anchor", is_last ? "last" : "first", json_string_value(anchor));
        same(r, "source", p->conditions[k].source, is_last);
        same_fit(r, &p->conditions[k].fit, json_array_get(steps, (size_t)k));
    }
    h3_plan_free(&p);
}

/* ---------------------------------------------------------------- clips */

static void same_24fps(row *r, int64_t n, double fps, int64_t limit, const json_t *want)
{
    int64_t *source = calloc((size_t)(limit > 0 ? limit : 0) + 1, sizeof *source), n_out = 0;

    if (!source) abort(); // a test may
    if (goes_on(r, h3_frames_to_24fps(n, fps, limit, source, &n_out), !want))
        same_list(r, "source frames", source, n_out, want);
    free(source);
}

static void same_samples(row *r, const h3_clip_samples *s, const json_t *index,
                         const json_t *labels)
{
    char label[48];

    same_list(r, "sampled frames", s->index, s->n, index);
    same(r, "labels", s->n_blocks, (int64_t)json_array_size(labels));
    for (int64_t b = 0; b < s->n_blocks; b++) {
        snprintf(label, sizeof label, "<%.1f seconds>", s->block_time[b]);
        same_text(r, "label", label, json_string_value(json_array_get(labels, (size_t)b)));
    }
}

static void fn_24fps(row *r)
{
    same_24fps(r, get_int(r->args, "frames"), get_number(r->args, "fps"), get_int(r->args, "limit"),
               r->out);
}

static void fn_sample_frames(row *r)
{
    const json_t *times = json_object_get(r->out, "timestamps");
    h3_clip_samples s;
    const h3_status st = h3_clip_samples_init(
        &s, get_int(r->args, "frames"), get_number(r->args, "fps"),
        get_number(r->args, "sample_fps"), (int)get_int(r->args, "temporal_patch"));

    if (!goes_on(r, st, !r->out)) return;
    same_samples(r, &s, json_object_get(r->out, "indices"), json_object_get(r->out, "labels"));
    for (int64_t b = 0; b < s.n_blocks; b++)
        if (s.block_time[b] != json_number_value(json_array_get(times, (size_t)b)))
            blame(r, "time %a of block %lld", s.block_time[b], (long long)b);
    h3_clip_samples_free(&s);
}

static void item_clip(row *r)
{
    const json_t *source = json_object_get(r->args, "source_index");
    const int64_t n = (int64_t)json_array_size(source), want = get_int(r->args, "encoded_frames");

    same_24fps(r, get_int(r->args, "frames"), get_number(r->args, "fps"),
               get_int(r->args, "num_frames"), source);
    same(r, "encoded frames", h3_reference_frames(n), n < want ? n : want);
}

static void item_condition_clip(row *r)
{
    h3_clip_samples s;

    if (!goes_on(r, h3_clip_samples_init(&s, get_int(r->args, "frames"), 24.0, 2.0, 2), false))
        return;
    same_samples(r, &s, json_object_get(r->args, "index"), json_object_get(r->args, "labels"));
    h3_clip_samples_free(&s);
}

/* ---------------------------------------------------------------- tiles and windows */

/* "0,160,336,512", or "-" for none. */
static void same_numbers(row *r, const char *what, const int64_t *got, int64_t n, const char *want)
{
    char text[4096] = "", *end = text;

    for (int64_t i = 0; i < n; i++)
        end += snprintf(end, sizeof text - (size_t)(end - text), "%s%lld", i ? "," : "",
                        (long long)got[i]);
    same_text(r, what, n ? text : "-", want);
}

static h3_tile_axis same_axis(row *r, int64_t length, int64_t tiles, const char *starts,
                              const char *overlaps, int64_t tile)
{
    enum { MOST = 256 };
    int64_t start[MOST], overlap[MOST], covered = 0;
    h3_tile_axis a = {0};

    if (!goes_on(r, h3_tile_axis_init(&a, length, 256, 64, 16), false)) return a;
    same(r, "tiles", a.n, tiles);
    same(r, "tile", a.tile, tile);
    for (int64_t i = 0; i < a.n && i < MOST; i++) {
        start[i] = h3_tile_start(&a, i);
        same(r, "start", start[i], covered);
        covered += h3_tile_kept(&a, i);
        if (i + 1 < a.n) overlap[i] = h3_tile_overlap(&a, i);
    }
    same(r, "covered", covered, length);
    same_numbers(r, "starts", start, a.n, starts);
    same_numbers(r, "overlaps", overlap, a.n - 1, overlaps);
    return a;
}

static void row_tile_axis(row *r)
{
    same_axis(r, cell(r, 0), cell(r, 1), r->cell[2], r->cell[4], cell(r, 3));
}

static void row_tile_canvas(row *r)
{
    const h3_tile_axis y =
        same_axis(r, cell(r, 1), cell(r, 3), r->cell[6], r->cell[7], cell(r, 10));
    const h3_tile_axis x =
        same_axis(r, cell(r, 2), cell(r, 4), r->cell[8], r->cell[9], cell(r, 11));

    same(r, "tiles", y.n * x.n, cell(r, 5));
    same(r, "tokens", 7 * (y.tile / 16) * (x.tile / 16) + 5, cell(r, 12));
}

/* The latents of the windows as "0,1,2;5,6,7". */
static void row_decode(row *r)
{
    char text[8192] = "", *end = text;
    h3_decode_clips p;
    const h3_status st = h3_decode_clips_init(&p, cell(r, 0), H3_CLIP_RULE);

    if (!goes_on(r, st, strcmp(r->cell[4], "ok") != 0)) return;
    same(r, "windows", p.n_clips, cell(r, 1));
    for (int64_t c = 0; c < p.n_clips; c++)
        for (int64_t k = 0; k < p.window && end - text < 8000; k++)
            end += snprintf(end, sizeof text - (size_t)(end - text), "%s%lld",
                            k ? "," : (c ? ";" : ""), (long long)h3_decode_latent(&p, c, k));
    same_text(r, "latents", text, r->cell[2]);
    same(r, "frames", p.n_frames, cell(r, 3));
}

static void row_decode_frame(row *r)
{
    char text[96] = "";
    h3_decode_clips p;
    int n = 0;

    if (!goes_on(r, h3_decode_clips_init(&p, cell(r, 0), H3_CLIP_RULE), false)) return;
    const h3_frame_source s = h3_decode_frame(&p, cell(r, 1));
    if (s.w.previous > 0.0f)
        n = snprintf(text, sizeof text, "%lld:%lld:%.9g%s", (long long)s.clip - 1,
                     (long long)s.previous_at, (double)s.w.previous, s.w.current > 0.0f ? ";" : "");
    if (s.w.current > 0.0f)
        snprintf(text + n, sizeof text - (size_t)n, "%lld:%lld:%.9g", (long long)s.clip,
                 (long long)s.at, (double)s.w.current);
    same_text(r, "sources", text, r->cell[2]);
}

static void row_encode(row *r)
{
    const int64_t n = cell(r, 0), kept = h3_reference_frames(n);
    h3_encode_clips p;

    if (!goes_on(r, h3_encode_clips_init(&p, n, H3_CLIP_RULE), false)) return;
    same(r, "padded", p.n_padded, cell(r, 1));
    same(r, "windows", p.n_clips, cell(r, 2));
    same(r, "latents", p.n_latents, cell(r, 3));
    same(r, "encoded latents", h3_encoded_latents(n), cell(r, 3));
    same(r, "kept frames", kept, cell(r, 4));
    same(r, "their latents", h3_encoded_latents(kept), cell(r, 5));
    same(r, "last frame", h3_encode_frame(&p, p.n_clips - 1, p.clip_frames - 1), n - 1);
    same(r, "first frame", h3_encode_frame(&p, 0, 0), 0);
}

/* ---------------------------------------------------------------- noise */

static void item_randn(row *r)
{
    const int64_t n = get_int(r->args, "n");
    float *x = malloc((size_t)n * sizeof *x + 1);
    char hex[65];
    h3_rng rng;

    if (!x) abort();
    h3_rng_seed(&rng, (uint64_t)get_int(r->args, "seed"));
    h3_rng_normal(&rng, x, n);
    sha256_hex(hex, x, (size_t)n * sizeof *x);
    same_text(r, "sha256", hex, json_string_value(json_object_get(r->args, "sha256")));
    free(x);
}

/* ---------------------------------------------------------------- kinds */

/* A TSV is known by its first two headings; a "# " before them is not one. */
static const struct {
    const char *heading;
    int n_columns;
    void (*check)(row *r);
} tsv_kinds[] = {
    {"num_frames\taligned", 8, row_frames},
    {"frames\tseconds", 7, row_lengths},
    {"asked\taligned", 2, row_align},
    {"samples\tsample_rate", 6, row_audio},
    {"rate\tgenerated_frames", 6, row_reference_lengths},
    {"latent_frames\tpairwise", 4, row_span},
    {"aspect_w\taspect_h", 7, row_canvas},
    {"width\theight", 7, row_reference_image},
    {"length\ttiles", 5, row_tile_axis},
    {"label\theight", 13, row_tile_canvas},
    {"latent_frames\tclips", 5, row_decode},
    {"latent_frames\tframe\t", 3, row_decode_frame},
    {"frames\tframes_padded", 6, row_encode},
};
enum { N_TSV_KINDS = sizeof tsv_kinds / sizeof *tsv_kinds };

static const struct {
    const char *fn;
    void (*check)(row *r);
} line_kinds[] = {
    {"canvas", fn_canvas},
    {"reference_image_size", fn_reference_image},
    {"cover_crop", fn_cover_crop},
    {"image_smart_resize", fn_smart_image},
    {"video_smart_resize", fn_smart_video},
    {"frames_to_24fps", fn_24fps},
    {"sample_frames", fn_sample_frames},
};
enum { N_LINE_KINDS = sizeof line_kinds / sizeof *line_kinds };

/* Lists in JSON: the key ("" for the whole file) and what every entry has. */
static const struct {
    const char *list, *has;
    void (*check)(row *r);
} item_kinds[] = {
    {"cases", "last_image", item_keyframes},
    {"resample", "source_index", item_clip},
    {"conditioner", "labels", item_condition_clip},
    {"", "sha256", item_randn},
};
enum { N_ITEM_KINDS = sizeof item_kinds / sizeof *item_kinds };

static void finish(golden *g, row *r, size_t i, const char *label)
{
    char name[64];

    snprintf(name, sizeof name, "%s %zu", label, i);
    golden_check(g, name, !r->wrong[0], "%s", r->wrong[0] ? r->wrong : "as the reference");
}

/* ---- TSV ---- */

static int tsv_kind(const golden *g)
{
    const char *t = g->text;

    if (!t) return -1;
    if (strncmp(t, "# ", 2) == 0) t += 2;
    for (int k = 0; k < N_TSV_KINDS; k++)
        if (strncmp(t, tsv_kinds[k].heading, strlen(tsv_kinds[k].heading)) == 0) return k;
    return -1;
}

static bool match_tsv(const golden *g)
{
    return tsv_kind(g) >= 0;
}

static h3_status run_tsv(golden *g)
{
    const int k = tsv_kind(g);
    char *next = g->text, *line;

    strsep(&next, "\n"); // the heading
    for (size_t i = 1; (line = strsep(&next, "\n")) && *line; i++) {
        row r = {0};
        int n = 0;
        while (line && n < MAX_COLUMNS)
            r.cell[n++] = strsep(&line, "\t");
        if (line || n != tsv_kinds[k].n_columns)
            blame(&r, "%d columns, expected %d", n, tsv_kinds[k].n_columns);
        else
            tsv_kinds[k].check(&r);
        finish(g, &r, i, "row");
    }
    return H3_OK;
}

/* ---- JSON lines ---- */

static bool match_lines(const golden *g)
{
    return g->text && strncmp(g->text, "{\"fn\":", 6) == 0;
}

static h3_status run_lines(golden *g)
{
    char *next = g->text, *line;

    for (size_t i = 1; (line = strsep(&next, "\n")) && *line; i++) {
        json_t *j = json_loads(line, 0, NULL);
        const char *fn = json_string_value(json_object_get(j, "fn"));
        row r = {.args = json_object_get(j, "args"), .out = json_object_get(j, "out")};
        int k = 0;
        while (k < N_LINE_KINDS && !(fn && strcmp(line_kinds[k].fn, fn) == 0))
            k++;
        if (k < N_LINE_KINDS && r.args)
            line_kinds[k].check(&r);
        else
            blame(&r, "no rule is called %s", fn ? fn : "(nothing)");
        finish(g, &r, i, fn ? fn : "row");
        json_decref(j);
    }
    return H3_OK;
}

/* ---- JSON ---- */

static const json_t *item_list(const golden *g, int k)
{
    const json_t *list =
        item_kinds[k].list[0] ? json_object_get(g->json, item_kinds[k].list) : g->json;
    return json_object_get(json_array_get(list, 0), item_kinds[k].has) ? list : NULL;
}

static bool match_items(const golden *g)
{
    for (int k = 0; k < N_ITEM_KINDS; k++)
        if (item_list(g, k)) return true;
    return false;
}

static h3_status run_items(golden *g)
{
    for (int k = 0; k < N_ITEM_KINDS; k++) {
        const json_t *list = item_list(g, k), *item;
        size_t i;
        json_array_foreach(list, i, item)
        {
            row r = {.args = item};
            item_kinds[k].check(&r);
            finish(g, &r, i, item_kinds[k].list[0] ? item_kinds[k].list : "draw");
        }
    }
    return H3_OK;
}

const golden_kind golden_kinds_tables[] = {{"table", match_tsv, run_tsv},
                                           {"rules", match_lines, run_lines},
                                           {"list", match_items, run_items},
                                           {0}};
