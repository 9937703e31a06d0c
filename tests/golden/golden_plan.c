/*
 * Goldens of the plan room: everything here is compared bit for bit.
 *
 *   packing    one layout: positions, tags, indices, timestep plans, padded form; large ones by
 *              fingerprint
 *   patchify   latents <-> rows
 *   sigmas     schedules
 *   steps      Euler chains in float32 and bfloat16, and the anchor mix, on plain arrays
 *   randn      raw draws and streams
 *   noise      all noise of a request, in both orders
 *   seams      tile shares and cross-fade ramps of the video VAE
 *   request    the counts, sizes and timesteps a whole pipeline run resolved to
 */
#include "golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "plan.h"
#include "rng.h"

/* ---------------------------------------------------------------- helpers */

enum { NAME = 128, MAX_TEXT_RUNS = 4096 };

static const char *named(char buf[NAME], const char *fmt, ...) H3_PRINTF(2, 3);
static const char *named(char buf[NAME], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, NAME, fmt, ap);
    va_end(ap);
    return buf;
}

static int64_t integer(const json_t *obj, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(obj, key));
}

static double number(const json_t *obj, const char *key)
{
    return json_number_value(json_object_get(obj, key));
}

static const char *text(const json_t *obj, const char *key)
{
    const char *s = json_string_value(json_object_get(obj, key));
    return s ? s : "";
}

static int64_t element(const json_t *array, size_t i)
{
    return (int64_t)json_integer_value(json_array_get(array, i));
}

static void *room_for(int64_t n, size_t each)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), each);
    if (!p) abort();
    return p;
}

static h3_tensor floats(float *p, int64_t n)
{
    return h3_tensor_1d(p, H3_F32, n);
}

static h3_tensor ints(int32_t *p, int64_t n)
{
    return h3_tensor_1d(p, H3_I32, n);
}

static void expect_count(golden *g, const char *what, int64_t got, int64_t want)
{
    golden_check(g, what, got == want, "%lld, expected %lld", (long long)got, (long long)want);
}

/* ---------------------------------------------------------------- packing */

static bool match_packing(const golden *g)
{
    return json_is_object(json_object_get(g->meta, "case")) && golden_find(g, "position_ids") &&
           golden_find(g, "video_indices") && golden_find(g, "pad.input_ids");
}

/* Runs of [tag, count] -> one tag a row. */
static int32_t *tags_of(const json_t *runs, int64_t *n)
{
    size_t i;
    json_t *run;
    *n = 0;
    json_array_foreach(runs, i, run) *n += element(run, 1);
    int32_t *tags = room_for(*n, sizeof *tags);
    int64_t at = 0;
    json_array_foreach(runs, i, run) for (int64_t k = 0; k < element(run, 1); k++) tags[at++] =
        (int32_t)element(run, 0);
    return tags;
}

static int conditions_of(h3_condition_shape *out, const json_t *c, int64_t h, int64_t w)
{
    size_t i;
    json_t *v;
    int n = 0;
    json_array_foreach(json_object_get(c, "anchors"), i, v)
    {
        const bool is_last = strcmp(json_string_value(v), "last") == 0;
        out[n++] = (h3_condition_shape){is_last ? H3_COND_LAST : H3_COND_FIRST, 1, h, w, 0};
    }
    json_array_foreach(json_object_get(c, "references"), i, v)
    {
        const char *kind = text(v, "kind");
        h3_condition_shape s = {H3_COND_AUDIO, 0, integer(v, "height"), integer(v, "width"),
                                integer(v, "audio")};
        if (strcmp(kind, "image") == 0) s.kind = H3_COND_IMAGE, s.t = 1;
        if (strcmp(kind, "video") == 0) s.kind = H3_COND_VIDEO, s.t = integer(v, "frames");
        if (n < H3_MAX_CONDITIONS) out[n++] = s;
    }
    return n;
}

static void compare_times(golden *g, const h3_layout *l, int n_steps)
{
    h3_schedule video, audio;
    char name[NAME];
    if (h3_schedule_init(&video, n_steps, H3_VIDEO_SHIFT) != H3_OK ||
        h3_schedule_init(&audio, n_steps, H3_AUDIO_SHIFT) != H3_OK) {
        golden_check(g, "schedules", false, "%s", h3_error());
        return;
    }
    int32_t *time_row = room_for(l->n_rows, sizeof *time_row);
    int32_t *mod_row = room_for(l->n_rows, sizeof *mod_row);
    for (int i = 0; i < video.n_steps; i++) {
        if (g->json && !golden_find(g, named(name, "plan.%d.timesteps", i)))
            continue; // of a long run three steps are printed
        h3_step_times t = h3_layout_times(l, video.timesteps[i], audio.timesteps[i]);
        h3_layout_time_rows(l, &t, time_row, mod_row);
        golden_exact(g, named(name, "plan.%d.timesteps", i), floats(t.t, t.n));
        golden_exact(g, named(name, "plan.%d.timestep_indices", i), ints(time_row, l->n_rows));
        golden_exact(g, named(name, "plan.%d.adaln_indices", i), ints(mod_row, l->n_rows));
    }
    free(time_row);
    free(mod_row);
    h3_schedule_free(&video);
    h3_schedule_free(&audio);
}

static void compare_padded(golden *g, const h3_layout *l)
{
    h3_padded *p;
    if (h3_padded_create(&p, l, 64) != H3_OK) {
        golden_check(g, "padded", false, "%s", h3_error());
        return;
    }
    expect_count(g, "padded_length", p->n_rows, integer(g->meta, "padded_length"));
    golden_exact(g, "pad.input_ids", ints(p->ids, p->n_rows));
    golden_exact(g, "pad.document_id", ints(p->documents, p->n_rows));
    golden_exact(g, "pad.cu_seqlens", ints(p->cu_seqlens, 3));
    golden_exact(g, "pad.refiner_cu_seqlens", ints(p->refiner_cu_seqlens, 3));
    golden_exact(g, "pad.image_mask", h3_tensor_1d(p->is_video, H3_BOOL, p->n_rows));
    golden_exact(g, "pad.audio_mask", h3_tensor_1d(p->is_audio, H3_BOOL, p->n_rows));
    golden_exact(g, "pad.update_mask", h3_tensor_1d(p->is_video_target, H3_BOOL, l->n_video));
    golden_exact(g, "pad.audio_update_mask", h3_tensor_1d(p->is_audio_target, H3_BOOL, l->n_audio));
    if (golden_find(g, "pad.token_tags"))
        golden_exact(g, "pad.token_tags", ints(p->tags, p->n_rows));
    if (golden_find(g, "pad.position_ids"))
        golden_exact(g, "pad.position_ids", h3_tensor_2d(p->positions, H3_F64, p->n_rows, 3));
    h3_padded_free(&p);
}

static h3_status run_packing(golden *g)
{
    const json_t *c = json_object_get(g->meta, "case");
    const int64_t frames = h3_frames_align(integer(c, "num_frames"));
    h3_condition_shape conditions[H3_MAX_CONDITIONS];
    h3_layout_in in = {.conditions = conditions,
                       .t = h3_frames_to_latents(frames),
                       .h = integer(c, "height") / 16,
                       .w = integer(c, "width") / 16,
                       .n_audio = h3_frames_to_audio(frames)};
    h3_layout *l;

    int32_t *tags = tags_of(json_object_get(c, "text"), &in.n_text);
    in.text_tags = tags;
    in.n_conditions = conditions_of(conditions, c, in.h, in.w);
    const h3_status st = h3_layout_create(&l, &in);
    free(tags);
    if (st != H3_OK) return st;

    expect_count(g, "num_frames", frames, integer(g->meta, "num_frames"));
    expect_count(g, "num_audio_latents", in.n_audio, integer(g->meta, "num_audio_latents"));
    expect_count(g, "sequence_length", l->n_rows, integer(g->meta, "sequence_length"));
    expect_count(g, "num_condition_video_rows", l->n_condition_video,
                 integer(g->meta, "num_condition_video_rows"));
    expect_count(g, "num_condition_audio_rows", l->n_condition_audio,
                 integer(g->meta, "num_condition_audio_rows"));
    golden_exact(g, "position_ids", h3_tensor_2d(l->positions, H3_F64, l->n_rows, 3));
    golden_exact(g, "token_tags", ints(l->tags, l->n_rows));
    golden_exact(g, "video_indices", ints(l->video_rows, l->n_video));
    golden_exact(g, "audio_indices", ints(l->audio_rows, l->n_audio));
    golden_exact(g, "text_indices", ints(l->text_rows, l->n_text));
    compare_times(g, l, (int)integer(c, "steps"));
    compare_padded(g, l);
    h3_layout_free(&l);
    return H3_OK;
}

/* ---------------------------------------------------------------- patchify */

static bool match_patchify(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "video_shapes")) &&
           json_is_array(json_object_get(g->meta, "audio_lengths"));
}

static void video_rows(golden *g, size_t i, const json_t *shape)
{
    const int64_t c = element(shape, 0), t = element(shape, 1), h = element(shape, 2),
                  w = element(shape, 3), n = c * t * h * w;
    char name[NAME];
    const h3_tensor *z = golden_need(g, named(name, "video.%zu.latents", i));
    if (!z || h3_numel(*z) != n) return;
    float *iota = room_for(n, sizeof *iota), *rows = room_for(n, sizeof *rows);
    for (int64_t k = 0; k < n; k++)
        iota[k] = (float)k;
    h3_patchify(rows, iota, c, t, h, w);
    golden_exact(g, named(name, "video.%zu.iota_rows", i), floats(rows, n));
    h3_patchify(rows, z->data, c, t, h, w);
    golden_exact(g, named(name, "video.%zu.rand_rows", i), floats(rows, n));
    h3_unpatchify(iota, rows, c, t, h, w);
    golden_exact(g, named(name, "video.%zu.latents", i), floats(iota, n));
    free(iota);
    free(rows);
}

static void audio_rows(golden *g, size_t i)
{
    char name[NAME];
    const h3_tensor *z = golden_need(g, named(name, "audio.%zu.latents", i));
    if (!z) return;
    const int64_t n = h3_numel(*z);
    float *rows = room_for(n, sizeof *rows), *back = room_for(n, sizeof *back);
    h3_audio_to_rows(rows, z->data, z->ne[0], z->ne[1], z->ne[2]);
    golden_exact(g, named(name, "audio.%zu.rows", i), floats(rows, n));
    h3_audio_from_rows(back, rows, z->ne[0], z->ne[1], z->ne[2]);
    golden_exact(g, named(name, "audio.%zu.latents", i), floats(back, n));
    free(rows);
    free(back);
}

static h3_status run_patchify(golden *g)
{
    const json_t *shapes = json_object_get(g->meta, "video_shapes");
    for (size_t i = 0; i < json_array_size(shapes); i++)
        video_rows(g, i, json_array_get(shapes, i));
    for (size_t i = 0; i < json_array_size(json_object_get(g->meta, "audio_lengths")); i++)
        audio_rows(g, i);
    return H3_OK;
}

/* ---------------------------------------------------------------- sigmas */

static bool match_sigmas(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "shifts")) &&
           json_is_array(json_object_get(g->meta, "counts"));
}

static h3_status compare_schedule(golden *g, double shift, int n)
{
    char name[NAME];
    h3_schedule s;
    H3_TRY(h3_schedule_init(&s, n, shift));
    golden_exact(g, named(name, "shift%g.n%d.sigmas", shift, n), floats(s.sigmas, s.n_sigmas));
    golden_exact(g, named(name, "shift%g.n%d.timesteps", shift, n), floats(s.timesteps, s.n_steps));
    h3_schedule_free(&s);
    return H3_OK;
}

static h3_status compare_base(golden *g, double shift, size_t k, const json_t *base)
{
    char name[NAME];
    const int n = (int)json_array_size(base);
    float *b = room_for(n, sizeof *b);
    h3_schedule s;
    for (int i = 0; i < n; i++)
        b[i] = (float)json_number_value(json_array_get(base, (size_t)i));
    const h3_status st = h3_schedule_from(&s, b, n, shift);
    free(b);
    if (st != H3_OK) return st;
    golden_exact(g, named(name, "shift%g.base%zu.sigmas", shift, k), floats(s.sigmas, s.n_sigmas));
    h3_schedule_free(&s);
    return H3_OK;
}

static h3_status run_sigmas(golden *g)
{
    const json_t *bases = json_object_get(g->meta, "base_schedules");
    json_t *shift, *count, *base;
    size_t i, k;
    char name[NAME];
    json_array_foreach(json_object_get(g->meta, "shifts"), i, shift)
    {
        json_array_foreach(json_object_get(g->meta, "counts"), k, count)
            H3_TRY(compare_schedule(g, json_number_value(shift), (int)json_integer_value(count)));
        json_array_foreach(bases, k, base)
            H3_TRY(compare_base(g, json_number_value(shift), k, base));
    }
    json_array_foreach(json_object_get(g->meta, "counts"), k, count)
    {
        const int n = (int)json_integer_value(count);
        float *line = room_for(n, sizeof *line);
        h3_sigma_linspace(line, n);
        golden_exact(g, named(name, "linspace.n%d", n), floats(line, n));
        free(line);
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- steps */

static bool match_steps(const golden *g)
{
    return golden_find(g, "0.f32.x0") && json_is_array(json_object_get(g->meta, "chains"));
}

/* Synthetic tensors addressed by name: FNV-1a of "<seed>/<name>", then splitmix64; unit deviation.
 */
static void hashed_tensor(float *out, int64_t n, const char *name, int64_t seed)
{
    char key[NAME];
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    named(key, "%lld/%s", (long long)seed, name);
    for (const char *p = key; *p; p++)
        h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = h + (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        out[i] = (float)(sqrt(3.0) * ((double)(z >> 40) * 0x1p-23 - 1.0));
    }
}

/* The velocities of every step follow from the seed; short chains also store them. */
static void velocity(golden *g, float *v, int64_t n, int k, int step)
{
    char name[NAME];
    hashed_tensor(v, n, named(name, "chain/%d/v%d", k, step), integer(g->meta, "seed"));
    if (golden_find(g, named(name, "%d.v%d", k, step))) golden_exact(g, name, floats(v, n));
}

static void chain_f32(golden *g, int k, const h3_schedule *s)
{
    char name[NAME];
    const h3_tensor *first = golden_need(g, named(name, "%d.f32.x0", k));
    if (!first) return;
    const int64_t n = h3_numel(*first);
    float *x = room_for(n, sizeof *x), *v = room_for(n, sizeof *v);
    memcpy(x, first->data, (size_t)n * sizeof *x);
    for (int i = 0; i < s->n_steps; i++) {
        velocity(g, v, n, k, i);
        h3_sigma_step(x, v, n, h3_sigma_euler(s, i));
        if (golden_find(g, named(name, "%d.f32.x%d", k, i + 1)))
            golden_exact(g, name, floats(x, n));
    }
    free(x);
    free(v);
}

static void chain_bf16(golden *g, int k, const h3_schedule *s)
{
    char name[NAME];
    const h3_tensor *first = golden_find(g, named(name, "%d.bf16.x0", k));
    if (!first) return;
    const int64_t n = h3_numel(*first);
    uint16_t *x = room_for(n, sizeof *x), *vb = room_for(n, sizeof *vb);
    float *v = room_for(n, sizeof *v);
    memcpy(x, first->data, (size_t)n * sizeof *x);
    for (int i = 0; i < s->n_steps; i++) {
        hashed_tensor(v, n, named(name, "chain/%d/v%d", k, i), integer(g->meta, "seed"));
        for (int64_t j = 0; j < n; j++)
            vb[j] = h3_f32_to_bf16(v[j]);
        h3_sigma_step_bf16(x, vb, n, s->timesteps[i], h3_sigma_euler(s, i));
        if (golden_find(g, named(name, "%d.bf16.x%d", k, i + 1)))
            golden_exact(g, name, h3_tensor_1d(x, H3_BF16, n));
    }
    free(x);
    free(vb);
    free(v);
}

static void compare_anchor(golden *g, const char *name, float t)
{
    const h3_tensor *clean = golden_need(g, "anchor.clean"),
                    *noise = golden_need(g, "anchor.noise");
    if (!clean || !noise || h3_numel(*clean) != h3_numel(*noise)) return;
    const int64_t n = h3_numel(*clean);
    float *z = room_for(n, sizeof *z);
    memcpy(z, clean->data, (size_t)n * sizeof *z);
    h3_sigma_anchor(z, noise->data, n, t);
    golden_exact(g, name, floats(z, n));
    free(z);
}

static h3_status run_steps(golden *g)
{
    const json_t *chains = json_object_get(g->meta, "chains");
    for (size_t k = 0; k < json_array_size(chains); k++) {
        const json_t *c = json_array_get(chains, k);
        h3_schedule s;
        H3_TRY(h3_schedule_init(&s, (int)integer(c, "steps"), number(c, "shift")));
        chain_f32(g, (int)k, &s);
        chain_bf16(g, (int)k, &s);
        h3_schedule_free(&s);
    }
    if (golden_find(g, "anchor.t0.999")) compare_anchor(g, "anchor.t0.999", H3_ANCHOR_T);
    if (golden_find(g, "anchor.t1")) compare_anchor(g, "anchor.t1", 1.0f);
    return H3_OK;
}

/* ---------------------------------------------------------------- randn */

static bool match_randn(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "seeds")) &&
           json_is_array(json_object_get(g->meta, "sizes"));
}

static void draw(golden *g, h3_rng *r, const char *name, int64_t n)
{
    float *x = room_for(n, sizeof *x);
    h3_rng_normal(r, x, n);
    golden_exact(g, name, floats(x, n));
    free(x);
}

/* The seed as names have it: what has the sign bit is negative, or above 2^63. */
static const char *seed_word(char word[24], const golden *g, int64_t seed, const char *before,
                             const char *after)
{
    char name[NAME];

    snprintf(word, 24, "%lld", (long long)seed);
    if (!golden_find(g, named(name, "%s%s%s", before, word, after)))
        snprintf(word, 24, "%llu", (unsigned long long)seed);
    return word;
}

static void compare_seed(golden *g, int64_t seed)
{
    char name[NAME], word[24];
    h3_rng r;
    seed_word(word, g, seed, "words.seed", "");
    const h3_tensor *words = golden_find(g, named(name, "words.seed%s", word));
    h3_rng_seed(&r, (uint64_t)seed);
    if (words) {
        const int64_t n = h3_numel(*words);
        int64_t *got = room_for(n, sizeof *got);
        for (int64_t i = 0; i < n; i++)
            got[i] = h3_rng_u32(&r);
        golden_exact(g, name, h3_tensor_1d(got, H3_I64, n));
        free(got);
    }
    const json_t *sizes = json_object_get(g->meta, "sizes");
    for (size_t i = 0; i < json_array_size(sizes); i++) {
        h3_rng_seed(&r, (uint64_t)seed);
        draw(g, &r, named(name, "seed%s.n%lld", word, (long long)element(sizes, i)),
             element(sizes, i));
    }
}

static h3_status run_randn(golden *g)
{
    const json_t *seeds = json_object_get(g->meta, "seeds");
    size_t k;
    json_t *stream;
    for (size_t i = 0; i < json_array_size(seeds); i++)
        compare_seed(g, element(seeds, i));
    json_array_foreach(json_object_get(g->meta, "streams"), k, stream)
    {
        const int64_t seed = element(stream, 0);
        const json_t *sizes = json_array_get(stream, 1);
        h3_rng r;
        char name[NAME], word[24], first[40];
        snprintf(first, sizeof first, ".0.n%lld", (long long)element(sizes, 0));
        seed_word(word, g, seed, "stream", first);
        h3_rng_seed(&r, (uint64_t)seed);
        for (size_t i = 0; i < json_array_size(sizes); i++)
            draw(g, &r, named(name, "stream%s.%zu.n%lld", word, i, (long long)element(sizes, i)),
                 element(sizes, i));
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- noise of a request */

static bool match_noise(const golden *g)
{
    return json_is_array(json_object_get(g->meta, "requests"));
}

static h3_latent_shape shape_of(const json_t *a)
{
    return (h3_latent_shape){element(a, 0), element(a, 1), element(a, 2)};
}

static int64_t values(h3_latent_shape s)
{
    return H3_VIDEO_CHANNELS * s.t * s.h * s.w;
}

static void compare_request(golden *g, const json_t *r, h3_noise_order order)
{
    const char *request = text(r, "name");
    const char *mode = order == H3_NOISE_ONE_STREAM ? "one_stream" : "restart";
    const json_t *list = json_object_get(r, "conditions");
    h3_latent_shape shapes[H3_MAX_CONDITIONS];
    float *noise[H3_MAX_CONDITIONS];
    h3_noise_spec spec = {.seed = (uint64_t)integer(r, "seed"),
                          .order = order,
                          .conditions = shapes,
                          .video = shape_of(json_object_get(r, "video")),
                          .n_audio = integer(r, "audio")};
    char name[NAME];
    for (size_t i = 0; i < json_array_size(list) && i < H3_MAX_CONDITIONS; i++) {
        shapes[i] = shape_of(json_array_get(list, i));
        noise[i] = room_for(values(shapes[i]), sizeof **noise);
        spec.n_conditions++;
    }
    const int64_t n_audio = 2 * spec.n_audio * H3_AUDIO_LATENT_CHANNELS;
    float *video = room_for(values(spec.video), sizeof *video);
    float *audio = room_for(n_audio, sizeof *audio);
    h3_noise_fill(&spec, noise, video, audio);
    for (int i = 0; i < spec.n_conditions; i++) {
        golden_exact(g, named(name, "%s.%s.condition%d", request, mode, i),
                     floats(noise[i], values(shapes[i])));
        free(noise[i]);
    }
    golden_exact(g, named(name, "%s.%s.video", request, mode), floats(video, values(spec.video)));
    golden_exact(g, named(name, "%s.%s.audio_rows", request, mode), floats(audio, n_audio));
    free(video);
    free(audio);
}

static h3_status run_noise(golden *g)
{
    size_t i;
    json_t *r;
    json_array_foreach(json_object_get(g->meta, "requests"), i, r)
    {
        compare_request(g, r, H3_NOISE_ONE_STREAM);
        compare_request(g, r, H3_NOISE_RESTART);
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- seams */

static bool match_seams(const golden *g)
{
    return json_is_string(json_object_get(g->meta, "axis")) &&
           json_is_string(json_object_get(g->meta, "ramp"));
}

static h3_status released_axis(h3_tile_axis *a, int64_t length)
{
    return h3_tile_axis_init(a, length, 256, 64, 16);
}

static h3_status compare_axis(golden *g, const char *name, int64_t length)
{
    h3_tile_axis a;
    H3_TRY(released_axis(&a, length));
    float *share = room_for(a.n * length, sizeof *share);
    for (int64_t x = 0; x < length; x++) {
        const h3_seam s = h3_tile_seam(&a, x);
        share[s.tile * length + x] = s.w.current;
        if (s.tile) share[(s.tile - 1) * length + x] = s.w.previous;
    }
    golden_exact(g, name, floats(share, a.n * length));
    free(share);
    return H3_OK;
}

static h3_status compare_plane(golden *g, const char *name, int64_t height, int64_t width)
{
    h3_tile_axis ay, ax;
    H3_TRY(released_axis(&ay, height));
    H3_TRY(released_axis(&ax, width));
    const int64_t h = (height + 7) / 16, w = (width + 7) / 16, plane = h * w, n = ay.n * ax.n;
    float *share = room_for(n * plane, sizeof *share);
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++) {
            const h3_seam sy = h3_tile_seam(&ay, 8 + 16 * y), sx = h3_tile_seam(&ax, 8 + 16 * x);
            float *own = share + (sy.tile * ax.n + sx.tile) * plane + y * w + x;
            *own = sy.w.current * sx.w.current;
            if (sy.tile) own[-ax.n * plane] = sy.w.previous * sx.w.current;
            if (sx.tile) own[-plane] = sx.w.previous;
        }
    golden_exact(g, name, floats(share, n * plane));
    free(share);
    return H3_OK;
}

/* The ramp as float32, or rounded after each operation as a 16-bit backend forms it. */
static void compare_ramp(golden *g, const char *name, const char *type, int64_t n, bool is_current)
{
    float *f = room_for(n, sizeof *f);
    uint16_t *h = room_for(n, sizeof *h);
    const bool is_f32 = strcmp(type, "f32") == 0, is_bf16 = strcmp(type, "bf16") == 0;
    for (int64_t p = 0; p < n; p++) {
        const h3_ramp r = h3_ramp_at(p, n);
        f[p] = is_current ? r.current : r.previous;
        const float share =
            is_bf16 ? h3_round_bf16(r.current) : h3_f16_to_f32(h3_f32_to_f16(r.current));
        const float out = is_current ? share : 1.0f - share;
        h[p] = is_bf16 ? h3_f32_to_bf16(out) : h3_f32_to_f16(out);
    }
    golden_exact(g, name, is_f32 ? floats(f, n) : h3_tensor_1d(h, is_bf16 ? H3_BF16 : H3_F16, n));
    free(f);
    free(h);
}

static h3_status run_seams(golden *g)
{
    for (int i = 0; i < g->n_tensors; i++) {
        const char *name = g->tensors[i].name;
        long long a = 0, b = 0;
        char type[16], side[16];
        if (sscanf(name, "axis.%lld", &a) == 1)
            H3_TRY(compare_axis(g, name, a));
        else if (sscanf(name, "plane16.%lldx%lld", &a, &b) == 2)
            H3_TRY(compare_plane(g, name, a, b));
        else if (sscanf(name, "ramp.%15[a-z0-9].%lld.%15s", type, &a, side) == 3 && a > 0)
            compare_ramp(g, name, type, a, strcmp(side, "current") == 0);
        else
            golden_check(g, name, false, "a tensor of no known meaning");
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- whole requests */

static bool match_request(const golden *g)
{
    return json_is_string(json_object_get(json_object_get(g->meta, "case"), "prompt")) &&
           json_is_integer(json_object_get(g->meta, "num_latent_frames")) &&
           golden_find(g, "step0.timesteps");
}

static h3_size size_in(const json_t *o)
{
    return (h3_size){integer(o, "width"), integer(o, "height")};
}

static h3_ref_info reference_of(const json_t *v)
{
    const char *kind = text(v, "kind");
    h3_ref_info r = {.kind = H3_REF_AUDIO, .size = size_in(v), .n_frames = integer(v, "frames")};
    r.fps = number(v, "fps");
    r.n_samples = integer(v, "samples") + integer(v, "sound");
    r.has_audio = r.n_samples > 0;
    r.rate = integer(v, "sample_rate") ? integer(v, "sample_rate") : H3_AUDIO_RATE;
    if (strcmp(kind, "image") == 0) r.kind = H3_REF_IMAGE;
    if (strcmp(kind, "video") == 0) r.kind = H3_REF_VIDEO;
    return r;
}

static h3_plan_request request_of(const json_t *c, h3_ref_info *references)
{
    h3_plan_request r = h3_plan_request_default();
    const json_t *config = json_object_get(c, "config"), *list = json_object_get(c, "references");
    r.n_frames = json_object_get(c, "num_frames") ? integer(c, "num_frames") : 124;
    r.n_steps = (int)integer(c, "num_inference_steps");
    r.seed = (uint64_t)integer(c, "seed");
    r.canvas = size_in(c);
    r.first = size_in(json_object_get(c, "image"));
    r.last = size_in(json_object_get(c, "last_image"));
    r.knobs.is_duration_strict = !json_is_true(json_object_get(c, "free_duration"));
    if (json_object_get(config, "canvas_short_edge"))
        r.knobs.canvas_short_edge = integer(config, "canvas_short_edge");
    if (json_object_get(config, "canvas_max_pixels"))
        r.knobs.canvas_max_pixels = integer(config, "canvas_max_pixels");
    if (json_object_get(config, "reference_image_short_edge"))
        r.knobs.reference_short_edge = integer(config, "reference_image_short_edge");
    if (r.first.width || r.last.width) r.task = H3_FL2VA;
    if (list) {
        r.task = H3_REF2VA;
        r.references = references;
        for (size_t i = 0; i < json_array_size(list) && i < H3_MAX_CONDITIONS; i++)
            references[r.n_references++] = reference_of(json_array_get(list, i));
    }
    return r;
}

/* An extent list against the shape of a tensor of the file, if it is there. */
static void expect_shape(golden *g, const char *name, int rank, const int64_t *ne)
{
    const h3_tensor *t = golden_find(g, name);
    if (!t) return;
    bool ok = t->rank == rank;
    for (int i = 0; ok && i < rank; i++)
        ok = t->ne[i] == ne[i];
    golden_check(g, name, ok, "shape %s", h3_tensor_desc(*t));
}

static void compare_conditions(golden *g, const h3_plan *p)
{
    char name[NAME];
    int n_visual = 0, n_sound = 0;
    for (int i = 0; i < p->n_conditions; i++) {
        const h3_condition *c = &p->conditions[i];
        const h3_condition_shape *s = &c->shape;
        const h3_size to = c->fit.canvas;
        if (s->n_audio)
            expect_shape(g, named(name, "audio_condition%d.rows", n_sound++), 2,
                         (int64_t[]){2 * s->n_audio, H3_AUDIO_LATENT_CHANNELS});
        if (s->kind == H3_COND_AUDIO) continue;
        expect_shape(g, named(name, "condition%d.latents", n_visual++), 5,
                     (int64_t[]){1, H3_VIDEO_CHANNELS, s->t, s->h, s->w});
        expect_shape(g, named(name, "keyframe%d.pixels", i), 3,
                     (int64_t[]){to.height, to.width, 3});
        if (s->kind == H3_COND_IMAGE)
            expect_shape(g, named(name, "ref%d.pixels", i), 3, (int64_t[]){to.height, to.width, 3});
        if (s->kind == H3_COND_VIDEO && golden_find(g, named(name, "ref%d.pixels_shape", i)))
            golden_exact(g, name,
                         h3_tensor_1d((int64_t[]){c->n_frames, to.height, to.width, 3}, H3_I64, 4));
    }
}

static h3_status compare_plan(golden *g, const h3_plan *p)
{
    const h3_tensor *tags = golden_need(g, "text_token_tags");
    char name[NAME];
    h3_layout *l;
    expect_count(g, "height", p->canvas.height, integer(g->meta, "height"));
    expect_count(g, "width", p->canvas.width, integer(g->meta, "width"));
    expect_count(g, "num_frames", p->n_frames, integer(g->meta, "num_frames"));
    expect_count(g, "num_latent_frames", p->latent.t, integer(g->meta, "num_latent_frames"));
    expect_count(g, "latent_height", p->latent.h, integer(g->meta, "latent_height"));
    expect_count(g, "latent_width", p->latent.w, integer(g->meta, "latent_width"));
    expect_count(g, "num_audio_latents", p->n_audio, integer(g->meta, "num_audio_latents"));
    expect_count(g, "audio_samples", p->n_samples, integer(g->meta, "audio_samples"));
    expect_count(g, "num_condition_video_rows", p->n_condition_video,
                 integer(g->meta, "num_condition_video_rows"));
    expect_count(g, "num_condition_audio_rows", p->n_condition_audio,
                 integer(g->meta, "num_condition_audio_rows"));
    expect_count(g, "frames decoded", p->clips.n_frames, p->n_frames);
    compare_conditions(g, p);
    if (!tags) return H3_OK;

    const int64_t n_text = h3_numel(*tags);
    int32_t *t = room_for(n_text, sizeof *t);
    for (int64_t i = 0; i < n_text; i++)
        t[i] = (int32_t)golden_value(*tags, i);
    const h3_status st = h3_plan_layout(&l, p, t, n_text);
    free(t);
    if (st != H3_OK) return st;
    expect_count(g, "rows", l->n_rows, p->n_media_rows + n_text);
    for (int i = 0; i < p->n_forwards; i++) {
        h3_step_times times = h3_layout_times(l, p->video.timesteps[i], p->audio.timesteps[i]);
        golden_exact(g, named(name, "step%d.timesteps", i), floats(times.t, times.n));
    }
    h3_layout_free(&l);
    return H3_OK;
}

static h3_status run_request(golden *g)
{
    h3_ref_info references[H3_MAX_CONDITIONS];
    const h3_plan_request r = request_of(json_object_get(g->meta, "case"), references);
    h3_plan *p;
    H3_TRY(h3_plan_create(&p, &r));
    const h3_status st = compare_plan(g, p);
    h3_plan_free(&p);
    return st;
}

const golden_kind golden_kinds_plan[] = {
    {"packing", match_packing, run_packing},
    {"patchify", match_patchify, run_patchify},
    {"sigmas", match_sigmas, run_sigmas},
    {"steps", match_steps, run_steps},
    {"randn", match_randn, run_randn},
    {"request noise", match_noise, run_noise},
    {"seams", match_seams, run_seams},
    {"request", match_request, run_request},
    {0},
};
