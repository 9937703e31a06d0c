/*
 * The packed sequence, after diffusers' build_packed_sequence (t2va, fl2va) and
 * build_ref2va_packed_sequence. One builder serves both: keyframes do not move the clock,
 * references do.
 *
 * Clock: text rows stand at 0, 1, ...; media begin where text ends. An image takes 1 unit, sound
 * one unit a latent, a latent frame 5/3 units for each of its 1 or 4 pictures. A video reference
 * and its sound begin together and push the clock by the longer of the two. Target sound and target
 * video begin where the references end.
 *
 * Everything is float64 in the reference's order of operations; see the notes at each sum.
 */
#include "layout.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"
#include "size.h"

#define FRAME_UNIT (5.0 / 3.0)

/* ---------------------------------------------------------------- positions */

static double frame_span(int64_t k)
{
    return k % H3_LATENTS_PER_CHUNK ? FRAME_UNIT * 4.0
                                    : FRAME_UNIT; // one rounding, not 5/3 * 4 = 20/3
}

double h3_span_sequential(int64_t n)
{
    double sum = 0.0;
    for (int64_t k = 0; k < n; k++)
        sum += frame_span(k);
    return sum;
}

/* numpy's pairwise summation of spans [from, from + n). */
static double pairwise(int64_t from, int64_t n)
{
    if (n < 8) {
        double sum = 0.0;
        for (int64_t k = 0; k < n; k++)
            sum += frame_span(from + k);
        return sum;
    }
    if (n <= 128) {
        double r[8];
        for (int j = 0; j < 8; j++)
            r[j] = frame_span(from + j);
        int64_t k = 8;
        for (; k < n - n % 8; k += 8)
            for (int j = 0; j < 8; j++)
                r[j] += frame_span(from + k + j);
        double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; k < n; k++)
            sum += frame_span(from + k);
        return sum;
    }
    const int64_t half = n / 2 - n / 2 % 8;
    return pairwise(from, half) + pairwise(from + half, n - half);
}

double h3_span_pairwise(int64_t n)
{
    return pairwise(0, n);
}

/* One spatial axis: numpy.linspace(left, left + ratio, n, endpoint=False) * 32 at index i. Centred
 * on 16 and scaled so that a square spans 0 .. 32. */
typedef struct axis_grid {
    double left, step;
    int64_t n;
} axis_grid;

static axis_grid axis_of(int64_t cells, double sqrt_area)
{
    const double ratio = (double)cells / sqrt_area, left = (1.0 - ratio) / 2.0;
    const int64_t n = cells / H3_PATCH;
    // numpy subtracts the end points again: the difference is not `ratio` in the last bit.
    const double stop = left + ratio, step = (stop - left) / (double)n;
    return (axis_grid){left, step, n};
}

static double axis_at(axis_grid a, int64_t i)
{
    return ((double)i * a.step + a.left) * 32.0;
}

typedef struct frame_grid {
    axis_grid h, w;
} frame_grid;

static frame_grid grid_of(int64_t h, int64_t w)
{
    const double sqrt_area = sqrt((double)(h * w));
    return (frame_grid){axis_of(h, sqrt_area), axis_of(w, sqrt_area)};
}

/* ---------------------------------------------------------------- builder */

typedef struct builder {
    h3_layout *l;
    int64_t row;              ///< next free row
    int64_t n_video, n_audio; ///< rows listed so far
} builder;

static void open_segment(builder *b, const char *name, int condition, int32_t tag, int64_t n)
{
    h3_layout *l = b->l;
    if (n == 0) return;
    assert(l->n_segments < (int)(sizeof l->segments / sizeof *l->segments));
    l->segments[l->n_segments++] = (h3_segment){name, condition, tag, b->row, n};
}

static void put_row(builder *b, int32_t tag, double t, double h, double w)
{
    h3_layout *l = b->l;
    const int64_t r = b->row++;
    double *p = l->positions + 3 * r;
    p[0] = t;
    p[1] = h;
    p[2] = w;
    l->tags[r] = tag;
    if (tag == H3_TAG_VIDEO)
        l->video_rows[b->n_video++] = (int32_t)r;
    else
        l->audio_rows[b->n_audio++] = (int32_t)r;
}

static void put_frame(builder *b, frame_grid g, double time)
{
    for (int64_t y = 0; y < g.h.n; y++)
        for (int64_t x = 0; x < g.w.n; x++)
            put_row(b, H3_TAG_VIDEO, time, axis_at(g.h, y), axis_at(g.w, x));
}

/* The sum of the spans before a frame is built from zero and the origin added last. */
static void put_video(builder *b, frame_grid g, int64_t n_frames, double origin)
{
    double before = 0.0;
    for (int64_t k = 0; k < n_frames; k++) {
        put_frame(b, g, origin + before);
        before += frame_span(k);
    }
}

/* Left channel at the first column of the grid, right channel at the last; no height. */
static void put_audio(builder *b, frame_grid g, int64_t n, double origin)
{
    const double w[H3_AUDIO_CHANNELS] = {axis_at(g.w, 0), axis_at(g.w, g.w.n - 1)};
    for (int c = 0; c < H3_AUDIO_CHANNELS; c++)
        for (int64_t k = 0; k < n; k++)
            put_row(b, H3_TAG_AUDIO, origin + (double)k, 0.0, w[c]);
}

static void put_text(builder *b, const h3_layout_in *in)
{
    h3_layout *l = b->l;
    open_segment(b, "text", -1, H3_TAG_TEXT, in->n_text);
    for (int64_t i = 0; i < in->n_text; i++, b->row++) {
        l->positions[3 * i] = (double)i; // h = w = 0: the block is zeroed
        l->tags[i] = in->text_tags[i];
        l->text_rows[i] = (int32_t)i;
    }
}

/* Appends condition i and returns the clock after it. */
static double put_condition(builder *b, const h3_layout_in *in, int i, double clock)
{
    static const char *const names[] = {"first keyframe", "last keyframe", "reference image",
                                        "reference video", "reference audio"};
    const h3_condition_shape *c = &in->conditions[i];
    const int64_t rows = c->t * (c->h / H3_PATCH) * (c->w / H3_PATCH);
    const bool is_sound_alone = c->kind == H3_COND_AUDIO;
    const frame_grid g = is_sound_alone ? grid_of(in->h, in->w) : grid_of(c->h, c->w);

    if (c->n_audio) {
        open_segment(b, is_sound_alone ? names[c->kind] : "reference sound", i, H3_TAG_AUDIO,
                     H3_AUDIO_CHANNELS * c->n_audio);
        put_audio(b, g, c->n_audio, clock);
    }
    if (!is_sound_alone) open_segment(b, names[c->kind], i, H3_TAG_VIDEO, rows);

    switch (c->kind) {
    case H3_COND_FIRST:
        put_frame(b, g, clock);
        return clock;
    case H3_COND_LAST: // not the time of the last latent frame: 5/3 before the end of the video
        put_frame(b, g, clock + h3_span_pairwise(in->t) - FRAME_UNIT);
        return clock;
    case H3_COND_IMAGE:
        put_frame(b, g, clock);
        return clock + 1.0;
    case H3_COND_VIDEO: {
        put_video(b, g, c->t, clock);
        const double span = h3_span_sequential(c->t), sound = (double)c->n_audio;
        return clock + (sound > span ? sound : span);
    }
    case H3_COND_AUDIO:
        return clock + (double)c->n_audio;
    }
    assert(!"condition kind was checked");
    return clock;
}

/* ---------------------------------------------------------------- checks and sizes */

static bool is_extent(int64_t n)
{
    return n >= 1 && n <= 1 << 20;
}

static bool is_plane(int64_t t, int64_t h, int64_t w)
{
    return is_extent(t) && is_extent(h) && is_extent(w) && h % H3_PATCH == 0 && w % H3_PATCH == 0;
}

static h3_status check_condition(const h3_layout_in *in, int i)
{
    const h3_condition_shape *c = &in->conditions[i];
    const bool is_keyframe = c->kind == H3_COND_FIRST || c->kind == H3_COND_LAST;
    if ((int)c->kind < H3_COND_FIRST || (int)c->kind > H3_COND_AUDIO)
        return h3_fail(H3_E_ARG, "layout: condition %d has unknown kind %d", i, (int)c->kind);
    const bool is_first_keyframe =
        in->conditions[0].kind == H3_COND_FIRST || in->conditions[0].kind == H3_COND_LAST;
    if (is_keyframe != is_first_keyframe)
        return h3_fail(H3_E_ARG, "layout: condition %d mixes keyframes and references", i);
    if (c->kind != H3_COND_AUDIO && !is_plane(c->t, c->h, c->w))
        return h3_fail(H3_E_ARG, "layout: condition %d is %lld x %lld x %lld latent cells", i,
                       (long long)c->t, (long long)c->h, (long long)c->w);
    if (c->kind != H3_COND_AUDIO && c->kind != H3_COND_VIDEO && c->t != 1)
        return h3_fail(H3_E_ARG, "layout: condition %d is one picture but has %lld latent frames",
                       i, (long long)c->t);
    if (is_keyframe && (c->h != in->h || c->w != in->w))
        return h3_fail(H3_E_ARG, "layout: keyframe %d is %lld x %lld cells, the canvas %lld x %lld",
                       i, (long long)c->h, (long long)c->w, (long long)in->h, (long long)in->w);
    const bool may_sound = c->kind == H3_COND_AUDIO || c->kind == H3_COND_VIDEO;
    if (c->n_audio < 0 || c->n_audio > INT32_MAX || (c->n_audio && !may_sound) ||
        (c->kind == H3_COND_AUDIO && c->n_audio < 1))
        return h3_fail(H3_E_ARG, "layout: condition %d has %lld audio latents", i,
                       (long long)c->n_audio);
    return H3_OK;
}

/* Fills the counts of *l; H3_E_ARG when a number is out of range or the rows pass 2^31. */
static h3_status count_rows(h3_layout *l, const h3_layout_in *in)
{
    if (in->n_text < 0 || in->n_text > INT32_MAX || (in->n_text && !in->text_tags))
        return h3_fail(H3_E_ARG, "layout: %lld text rows", (long long)in->n_text);
    for (int64_t i = 0; i < in->n_text; i++)
        if (in->text_tags[i] != H3_TAG_TEXT && in->text_tags[i] != H3_TAG_VIDEO)
            return h3_fail(H3_E_ARG, "layout: text row %lld has tag %d, expected 0 or 1",
                           (long long)i, (int)in->text_tags[i]);
    if (!is_plane(in->t, in->h, in->w) || in->n_audio < 1 || in->n_audio > INT32_MAX)
        return h3_fail(
            H3_E_ARG, "layout: target of %lld x %lld x %lld latent cells and %lld audio latents",
            (long long)in->t, (long long)in->h, (long long)in->w, (long long)in->n_audio);
    if (in->n_conditions < 0 || in->n_conditions > H3_MAX_CONDITIONS)
        return h3_fail(H3_E_ARG, "layout: %d conditions, at most %d", in->n_conditions,
                       (int)H3_MAX_CONDITIONS);
    for (int i = 0; i < in->n_conditions; i++) { // 64 x 2^58 cannot overflow
        const h3_condition_shape *c = &in->conditions[i];
        H3_TRY(check_condition(in, i));
        if (c->kind != H3_COND_AUDIO)
            l->n_condition_video += c->t * (c->h / H3_PATCH) * (c->w / H3_PATCH);
        l->n_condition_audio += H3_AUDIO_CHANNELS * c->n_audio;
        if (l->n_condition_video > INT32_MAX) break;
    }
    l->n_text = in->n_text;
    l->n_video = l->n_condition_video + in->t * (in->h / H3_PATCH) * (in->w / H3_PATCH);
    l->n_audio = l->n_condition_audio + H3_AUDIO_CHANNELS * in->n_audio;
    l->n_rows = l->n_text + l->n_video + l->n_audio;
    if (l->n_rows > INT32_MAX - 64)
        return h3_fail(H3_E_ARG, "layout: %lld rows, more than the %d a sequence can have",
                       (long long)l->n_rows, INT32_MAX - 64);
    return H3_OK;
}

h3_status h3_layout_create(h3_layout **out, const h3_layout_in *in)
{
    *out = NULL;
    h3_layout n = {0};
    H3_TRY(count_rows(&n, in));

    // One block: the struct, positions, tags, then the three lists. S < 2^31, so sizes fit.
    const size_t rows = (size_t)n.n_rows, head = h3_align_up(sizeof n, 64);
    const size_t lists = (size_t)(n.n_text + n.n_video + n.n_audio);
    char *block = calloc(1, head + rows * 3 * sizeof(double) + (rows + lists) * sizeof(int32_t));
    if (!block)
        return h3_fail(H3_E_NOMEM, "no memory for a layout of %lld rows", (long long)n.n_rows);
    h3_layout *l = (h3_layout *)(void *)block;
    *l = n;
    l->positions = (double *)(void *)(block + head);
    l->tags = (int32_t *)(void *)(l->positions + 3 * rows);
    l->text_rows = l->tags + rows;
    l->video_rows = l->text_rows + n.n_text;
    l->audio_rows = l->video_rows + n.n_video;

    builder b = {.l = l};
    put_text(&b, in);
    double clock = (double)in->n_text;
    for (int i = 0; i < in->n_conditions; i++)
        clock = put_condition(&b, in, i, clock);
    const frame_grid g = grid_of(in->h, in->w);
    open_segment(&b, "audio", -1, H3_TAG_AUDIO, H3_AUDIO_CHANNELS * in->n_audio);
    put_audio(&b, g, in->n_audio, clock);
    open_segment(&b, "video", -1, H3_TAG_VIDEO, n.n_video - n.n_condition_video);
    put_video(&b, g, in->t, clock);
    assert(b.row == n.n_rows && b.n_video == n.n_video && b.n_audio == n.n_audio);

    l->cu_seqlens[1] = (int32_t)n.n_rows;
    l->refiner_cu_seqlens[1] = (int32_t)n.n_text;
    *out = l;
    return H3_OK;
}

void h3_layout_free(h3_layout **l)
{
    if (!l) return;
    free(*l);
    *l = NULL;
}

/* ---------------------------------------------------------------- timesteps of a step */

/* Index of t in the sorted list, inserting it when new; moves the indices in `known` that follow.
 */
static int place(h3_step_times *s, float t, int *const known[], int n_known)
{
    int at = 0;
    while (at < s->n && s->t[at] < t)
        at++;
    if (at < s->n && s->t[at] == t) return at;
    assert(s->n < 4);
    memmove(s->t + at + 1, s->t + at, (size_t)(s->n - at) * sizeof *s->t);
    s->t[at] = t;
    s->n++;
    for (int k = 0; k < n_known; k++)
        if (*known[k] >= at) ++*known[k];
    return at;
}

h3_step_times h3_layout_times(const h3_layout *l, float video_t, float audio_t)
{
    h3_step_times s = {.video = -1, .audio = -1, .condition_video = -1, .condition_audio = -1};
    int *const known[] = {&s.video, &s.audio, &s.condition_video, &s.condition_audio};
    const float anchor_t = video_t > 0.999f ? video_t : 0.999f;
    s.video = place(&s, video_t, known, 0);
    s.audio = place(&s, audio_t, known, 1);
    if (l->n_condition_video) s.condition_video = place(&s, anchor_t, known, 2);
    if (l->n_condition_audio) s.condition_audio = place(&s, 1.0f, known, 3);
    return s;
}

void h3_layout_time_rows(const h3_layout *l, const h3_step_times *times, int32_t *time_row,
                         int32_t *mod_row)
{
    int32_t *const out = time_row ? time_row : mod_row; // where the index is formed
    if (!out) return;
    for (int64_t r = 0; r < l->n_rows; r++)
        out[r] = times->video; // text rows stay so
    for (int64_t i = 0; i < l->n_condition_video; i++)
        out[l->video_rows[i]] = times->condition_video;
    for (int64_t i = 0; i < l->n_audio; i++)
        out[l->audio_rows[i]] = i < l->n_condition_audio ? times->condition_audio : times->audio;
    if (mod_row)
        for (int64_t r = 0; r < l->n_rows; r++)
            mod_row[r] = 3 * out[r] + l->tags[r];
}
