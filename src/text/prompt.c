/**
 * The presentation, see prompt.h; the reference is the pipeline's _build_presentation with
 * Qwen3-VL's get_rope_index behind it.
 *
 * One pass appends segments (a tokenised text, or a vision block) to the row arrays, and the clock
 * of the positions runs along. Two things went wrong in other readings of this model:
 *  - pieces joined before tokenising: the blank that ends "<Audio 1>: " then melts into the next
 * word;
 *  - the clock advanced by the number of vision rows: it advances by the longer side of their grid.
 */
#include "prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grow.h"

enum {
    TAG_VIDEO = 0, // the transformer modulates a vision block like video rows, markers included
    TAG_TEXT = 1,
    MAX_ROWS = 1 << 26 // positions stay far inside int32, and nothing real comes near
};

typedef struct builder {
    h3_prompt *p;
    const h3_tok *t;
    const h3_prompt_in *in;
    h3_tok_ids ids; // becomes p->ids
    size_t tags_cap, mm_cap, pos_cap, runs_cap;
    int32_t (*pos)[3]; // [S] t, h, w: transposed at the end
    int32_t clock;     // next position of a text row
} builder;

void h3_prompt_find_markers(const h3_tok *t, h3_prompt_markers *out)
{
    out->vision_start = h3_tok_find(t, "<|vision_start|>");
    out->vision_end = h3_tok_find(t, "<|vision_end|>");
    out->image_pad = h3_tok_find(t, "<|image_pad|>");
    out->video_pad = h3_tok_find(t, "<|video_pad|>");
}

/* ---- rows -------------------------------------------------------------------------------------
 */

/* Room for the rows [p->n_rows, n): everything but the ids. */
static h3_status reserve(builder *b, size_t n)
{
    h3_prompt *p = b->p;

    if (n > MAX_ROWS) return h3_fail(H3_E_ARG, "the presentation has more than %d rows", MAX_ROWS);
    H3_TRY(h3_grow(&p->tags, &b->tags_cap, n, sizeof *p->tags));
    H3_TRY(h3_grow(&p->mm_types, &b->mm_cap, n, sizeof *p->mm_types));
    return h3_grow(&b->pos, &b->pos_cap, n, sizeof *b->pos);
}

/* A row that advances the clock by one: text, or a marker. Its id is in place. */
static void text_row(builder *b, uint8_t tag, uint8_t mm)
{
    const int64_t r = b->p->n_rows++;

    b->p->tags[r] = tag;
    b->p->mm_types[r] = mm;
    for (int axis = 0; axis < 3; axis++)
        b->pos[r][axis] = b->clock;
    b->clock++;
}

/* The type of a pad that the user wrote, 0 for any other token. */
static uint8_t typed_pad(const builder *b, int32_t id)
{
    const h3_prompt_markers *m = &b->p->markers;
    return id == m->image_pad ? H3_PROMPT_IMAGE : id == m->video_pad ? H3_PROMPT_VIDEO : 0;
}

static h3_status add_text(builder *b, const char *s, size_t n)
{
    H3_TRY(h3_tok_encode(b->t, &b->ids, s, n));
    H3_TRY(reserve(b, b->ids.n));
    while ((size_t)b->p->n_rows < b->ids.n)
        text_row(b, TAG_TEXT, typed_pad(b, b->ids.id[b->p->n_rows]));
    return H3_OK;
}

static h3_status add_label(builder *b, const char *kind, int number)
{
    char label[32];
    const int n = snprintf(label, sizeof label, "<%s %d>: ", kind, number);
    return add_text(b, label, (size_t)n);
}

/* "<T seconds>", one decimal, ties to even (as printf on the exact binary value does, and as Python
 * does): 0.25 is "0.2". The point is a point whatever the locale says. */
static h3_status add_time(builder *b, double seconds)
{
    char digits[32], label[64];
    const int n = snprintf(digits, sizeof digits, "%.1f", seconds);
    const int whole = (int)strspn(digits, "0123456789");

    return add_text(
        b, label,
        (size_t)snprintf(label, sizeof label, "<%.*s.%c seconds>", whole, digits, digits[n - 1]));
}

/* start, h x w pads, end. The pads lie on the merged grid: t stays, rows and columns count from the
 * clock, which then moves on by the longer side. */
static h3_status add_block(builder *b, const h3_prompt_run *shape)
{
    h3_prompt *p = b->p;
    const bool is_image = shape->kind == H3_PROMPT_IMAGE;
    const int32_t pad = is_image ? p->markers.image_pad : p->markers.video_pad;
    int64_t *vision_rows = is_image ? &p->n_image_rows : &p->n_video_rows;
    const size_t n = (size_t)shape->n_rows + 2, cap = b->ids.n + n;
    h3_prompt_run run = *shape;

    H3_TRY(reserve(b, cap));
    H3_TRY(h3_grow(&b->ids.id, &b->ids.cap, cap, sizeof *b->ids.id));
    H3_TRY(h3_grow(&p->runs, &b->runs_cap, (size_t)p->n_runs + 1, sizeof *p->runs));
    for (size_t i = 0; i < n; i++)
        b->ids.id[b->ids.n++] = i == 0       ? p->markers.vision_start
                                : i == n - 1 ? p->markers.vision_end
                                             : pad;
    text_row(b, TAG_VIDEO, 0);
    run.row = p->n_rows;
    run.vision_row = *vision_rows;
    for (int32_t y = 0; y < run.h; y++)
        for (int32_t x = 0; x < run.w; x++) {
            const int64_t r = p->n_rows++;
            p->tags[r] = TAG_VIDEO;
            p->mm_types[r] = (uint8_t)run.kind;
            b->pos[r][0] = b->clock;
            b->pos[r][1] = b->clock + y;
            b->pos[r][2] = b->clock + x;
        }
    b->clock += run.h > run.w ? run.h : run.w;
    *vision_rows += run.n_rows;
    p->runs[p->n_runs++] = run;
    text_row(b, TAG_VIDEO, 0);
    return H3_OK;
}

/* ---- references -------------------------------------------------------------------------------
 */

/* The merged grid of one block of reference `ref`. */
static h3_status block_shape(const h3_prompt_in *in, int ref, h3_prompt_run *out)
{
    const h3_prompt_ref *r = &in->refs[ref];
    const int32_t m = in->merge_size, t = r->grid[0], h = r->grid[1], w = r->grid[2];
    const char *what = r->kind == H3_PROMPT_IMAGE ? "picture" : "video";

    if (t < 1 || h < m || w < m || h % m || w % m || (r->kind == H3_PROMPT_IMAGE && t != 1))
        return h3_fail(
            H3_E_ARG,
            "reference %d: a %s of %d x %d x %d patches, rows and columns must be multiples "
            "of %d",
            ref + 1, what, (int)t, (int)h, (int)w, (int)m);
    *out = (h3_prompt_run){.kind = r->kind, .ref = ref, .h = h / m, .w = w / m};
    out->n_rows = (int64_t)out->h * out->w;
    if (out->n_rows > MAX_ROWS)
        return h3_fail(H3_E_ARG, "reference %d: a %s of %d x %d patches is too large", ref + 1,
                       what, (int)h, (int)w);
    return H3_OK;
}

static h3_status keep_grid(int32_t (**grids)[3], int32_t *n, const int32_t grid[3])
{
    size_t cap = (size_t)*n; // grown one by one: a request has a handful

    H3_TRY(h3_grow(grids, &cap, (size_t)*n + 1, sizeof **grids));
    memcpy((*grids)[(*n)++], grid, sizeof **grids);
    return H3_OK;
}

static h3_status add_picture(builder *b, int ref)
{
    h3_prompt *p = b->p;
    h3_prompt_run shape;

    H3_TRY(block_shape(b->in, ref, &shape));
    H3_TRY(keep_grid(&p->image_grids, &p->n_images, b->in->refs[ref].grid));
    H3_TRY(add_label(b, "Picture", p->n_images));
    return add_block(b, &shape);
}

/* Sampled frames are merged in groups of `size`, the last one repeated to fill its group; a group
 * is called by the mean of its first and last time. */
static double block_time(const h3_prompt_ref *r, int block, int size)
{
    const int first = block * size;
    const int last = first + size <= r->n_times ? first + size - 1 : r->n_times - 1;
    return (r->times[first] + r->times[last]) / 2;
}

static h3_status add_video(builder *b, int ref)
{
    const h3_prompt_ref *r = &b->in->refs[ref];
    const int size = b->in->temporal_patch;
    h3_prompt *p = b->p;
    h3_prompt_run shape;

    H3_TRY(block_shape(b->in, ref, &shape));
    if (r->n_times < size)
        return h3_fail(H3_E_ARG, "reference %d: %d sampled video frames, at least %d are needed",
                       ref + 1, r->n_times, size);
    if (r->grid[0] != h3_ceil_div(r->n_times, size))
        return h3_fail(H3_E_ARG, "reference %d: %d sampled frames make %d vision blocks, not %d",
                       ref + 1, r->n_times, (int)h3_ceil_div(r->n_times, size), (int)r->grid[0]);
    for (int i = 0; i < r->n_times; i++)
        if (!(r->times[i] >= 0 && r->times[i] < 1e6))
            return h3_fail(H3_E_ARG, "reference %d: frame %d at %g seconds", ref + 1, i,
                           r->times[i]);
    H3_TRY(keep_grid(&p->video_grids, &p->n_videos, r->grid));
    H3_TRY(add_label(b, "Video", p->n_videos));
    for (int i = 0; i < r->grid[0]; i++) {
        H3_TRY(add_time(b, block_time(r, i, size)));
        H3_TRY(add_block(b, &shape));
    }
    return H3_OK;
}

static h3_status add_refs(builder *b)
{
    const h3_prompt_in *in = b->in;
    int n_sounds = 0;

    for (int i = 0; i < in->n_refs; i++) {
        const h3_prompt_ref *r = &in->refs[i];
        if (r->kind == H3_PROMPT_AUDIO || (r->kind == H3_PROMPT_VIDEO && r->has_sound))
            H3_TRY(add_label(b, "Audio", ++n_sounds));
        if (r->kind == H3_PROMPT_IMAGE) H3_TRY(add_picture(b, i));
        if (r->kind == H3_PROMPT_VIDEO) H3_TRY(add_video(b, i));
    }
    return H3_OK;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static h3_status check_request(const h3_prompt_in *in)
{
    static const struct {
        const char *name;
        int min, max;
    } tasks[] = {{"t2va", 0, 0}, {"fl2va", 0, 2}, {"ref2va", 0, 1 << 16}};
    const unsigned task = (unsigned)in->task;

    if (task >= sizeof tasks / sizeof *tasks)
        return h3_fail(H3_E_ARG, "task number %u is none of t2va, fl2va, ref2va", task);
    if (in->n_refs < tasks[task].min || in->n_refs > tasks[task].max)
        return h3_fail(H3_E_ARG, "%s takes %d to %d references, not %d", tasks[task].name,
                       tasks[task].min, tasks[task].max, in->n_refs);
    if (in->n_refs && (in->merge_size < 1 || in->temporal_patch < 1))
        return h3_fail(H3_E_ARG, "merge size %d and temporal patch %d must be positive",
                       in->merge_size, in->temporal_patch);
    for (int i = 0; i < in->n_refs; i++) {
        const h3_prompt_kind k = in->refs[i].kind;
        const bool is_known = k == H3_PROMPT_IMAGE || k == H3_PROMPT_VIDEO || k == H3_PROMPT_AUDIO;
        if (!is_known || (in->task == H3_PROMPT_FL2VA && k != H3_PROMPT_IMAGE))
            return h3_fail(H3_E_ARG, "reference %d: its kind does not go with %s", i + 1,
                           tasks[task].name);
    }
    return H3_OK;
}

static h3_status check_markers(const builder *b)
{
    const h3_prompt_markers *m = &b->p->markers;
    bool has_image = false, has_video = false;

    for (int i = 0; i < b->in->n_refs; i++) {
        has_image |= b->in->refs[i].kind == H3_PROMPT_IMAGE;
        has_video |= b->in->refs[i].kind == H3_PROMPT_VIDEO;
    }
    const char *missing = !has_image && !has_video        ? NULL
                          : m->vision_start < 0           ? "<|vision_start|>"
                          : m->vision_end < 0             ? "<|vision_end|>"
                          : has_image && m->image_pad < 0 ? "<|image_pad|>"
                          : has_video && m->video_pad < 0 ? "<|video_pad|>"
                                                          : NULL;
    if (missing) return h3_fail(H3_E_MISSING, "the tokenizer has no token %s", missing);
    return H3_OK;
}

/* Beside vision input a typed pad would take a vision row that is not its own. Without any it is an
 * ordinary token, as in the reference. */
static h3_status check_typed_pads(const builder *b, int64_t from)
{
    for (int64_t r = from; r < b->p->n_rows && b->p->n_runs; r++)
        if (b->p->mm_types[r])
            return h3_fail(
                H3_E_ARG,
                "the prompt contains the token %s, which stands for pixels of a picture or "
                "video and cannot be typed beside one",
                b->p->mm_types[r] == H3_PROMPT_IMAGE ? "<|image_pad|>" : "<|video_pad|>");
    return H3_OK;
}

static h3_status transpose_positions(builder *b)
{
    h3_prompt *p = b->p;
    const size_t S = (size_t)p->n_rows;

    p->position_ids = malloc(3 * S * sizeof *p->position_ids);
    if (!p->position_ids) return h3_fail(H3_E_NOMEM, "no memory for the positions of %zu rows", S);
    for (size_t axis = 0; axis < 3; axis++)
        for (size_t r = 0; r < S; r++)
            p->position_ids[axis * S + r] = b->pos[r][axis];
    return H3_OK;
}

static h3_status build(builder *b)
{
    H3_TRY(check_request(b->in));
    h3_prompt_find_markers(b->t, &b->p->markers);
    H3_TRY(check_markers(b));
    H3_TRY(add_refs(b));
    const int64_t prompt_row = b->p->n_rows;
    h3_status st = add_text(b, b->in->text, b->in->n_bytes);
    if (st != H3_OK) return h3_fail_in(st, "prompt");
    H3_TRY(check_typed_pads(b, prompt_row));
    if (b->p->n_rows == 0)
        return h3_fail(H3_E_ARG, "the prompt is empty, and without a picture or another reference "
                                 "there is nothing to condition on");
    return transpose_positions(b);
}

h3_status h3_prompt_build(h3_prompt *out, const h3_tok *t, const h3_prompt_in *in)
{
    builder b = {.p = out, .t = t, .in = in};

    *out = (h3_prompt){0};
    const h3_status st = build(&b);
    out->ids = b.ids.id; // also after a failure: h3_prompt_free owns it now
    free(b.pos);
    if (st != H3_OK) h3_prompt_free(out);
    return st;
}

void h3_prompt_free(h3_prompt *p)
{
    free(p->ids);
    free(p->tags);
    free(p->mm_types);
    free(p->position_ids);
    free(p->runs);
    free(p->image_grids);
    free(p->video_grids);
    *p = (h3_prompt){0};
}
