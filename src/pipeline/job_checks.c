/**
 * Are the numbers between the stages numbers? Once a stage, over what it hands on: a few million at
 * most, on the host, where they are anyway. The sampler looks at every step itself, the video
 * decoder at every tile.
 */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "file.h"
#include "half.h"
#include "job.h"

enum { H3_LATENT_RANGE = 100 }; ///< standard deviations; a picture lies within ten

/* The first of n numbers that is none, or -1. *top gets the largest magnitude. */
static int64_t scan(const void *p, uint8_t dtype, int64_t n, float *top)
{
    *top = 0;
    for (int64_t i = 0; i < n; i++) {
        const float v =
            dtype == H3_BF16 ? h3_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
        if (!(fabsf(v) <= 1e15f)) return i;
        if (fabsf(v) > *top) *top = fabsf(v);
    }
    return -1;
}

static h3_status bad(const char *stage, const char *what, int64_t at, int64_t n)
{
    return h3_fail(H3_E_NUMERIC, "%s: %s hold NaN or infinity (number %lld of %lld)", stage, what,
                   (long long)at, (long long)n);
}

/* Do two names mean one file, there or not: equal last parts in one folder? */
static bool is_same_name(const char *a, const char *b)
{
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    const char *name_a = slash_a ? slash_a + 1 : a, *name_b = slash_b ? slash_b + 1 : b;
    struct stat in_a, in_b;

    if (strcmp(name_a, name_b) != 0) return false;
    char *dir_a = h3_strdupf("%.*s.", (int)(name_a - a), a);
    char *dir_b = h3_strdupf("%.*s.", (int)(name_b - b), b);
    const bool is_same = stat(dir_a, &in_a) == 0 && stat(dir_b, &in_b) == 0 &&
                         in_a.st_dev == in_b.st_dev && in_a.st_ino == in_b.st_ino;
    free(dir_a);
    free(dir_b);
    return is_same;
}

/* Is `out` the very file that `in` is read from? */
static bool is_input(const h3_input *in, const char *out)
{
    return in && !in->data && h3_path_is_same(in->path, out);
}

/* Is it a part of the model, or an adapter? Of a part that is a folder only the folder itself. */
static bool is_of_model(const h3_engine *e, const char *out)
{
    const h3_model *m = &e->model;
    const char *const parts[] = {m->dit,       m->dit_ref,   m->text_encoder, m->video_vae,
                                 m->audio_vae, m->tokenizer, m->processor,    m->mmproj};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (h3_path_is_same(parts[i], out)) return true;
    for (int i = 0; i < e->n_loras; i++)
        if (h3_path_is_same(e->lora[i], out)) return true;
    return false;
}

static bool is_any_input(const h3_job *j, const char *out)
{
    const h3_request *rq = j->rq;

    if (is_of_model(j->e, out) || h3_path_is_same(rq->noise_path, out)) return true;
    if (is_input(rq->first, out) || is_input(rq->last, out)) return true;
    for (int i = 0; i < rq->n_refs; i++)
        if (is_input(&rq->refs[i], out)) return true;
    return false;
}

h3_status h3_job_check_names(const h3_job *j)
{
    const struct {
        const char *what, *path;
    } files[] = {{"the MP4", j->rq->out_path},
                 {"the sound", j->rq->wav_path},
                 {"the folder of frames", j->rq->frames_dir},
                 {"the latents", j->latents_path},
                 {"the checkpoint", j->checkpoint_path}};
    const int n = sizeof files / sizeof *files;

    for (int i = 0; i < n; i++)
        if (is_any_input(j, files[i].path))
            return h3_fail(H3_E_ARG, "%s: is read by this run and would be %s; give two names",
                           files[i].path, files[i].what);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (files[i].path && files[k].path && is_same_name(files[i].path, files[k].path))
                return h3_fail(H3_E_ARG, "%s: would be %s and %s of this run; give two names",
                               files[i].path, files[k].what, files[i].what);
    return H3_OK;
}

h3_status h3_job_name_stage(h3_status st, const char *stage)
{
    return st == H3_E_NUMERIC ? h3_fail_in(st, "%s", stage) : st;
}

h3_status h3_job_check_embeds(const h3_job *j)
{
    const int64_t n = h3_numel(j->embeds), width = j->embeds.ne[1];
    float top;
    const int64_t at = scan(j->embeds.data, j->embeds.dtype, n, &top);

    if (at < 0) return H3_OK;
    return h3_fail(H3_E_NUMERIC,
                   "text encoder: the prompt embeddings hold NaN or infinity (row %lld of %lld)",
                   (long long)(at / width), (long long)j->embeds.ne[0]);
}

h3_status h3_job_check_condition(const h3_job *j, int i)
{
    const h3_condition_shape *s = &j->plan->conditions[i].shape;
    const int64_t nv = 24 * s->t * s->h * s->w, na = 2 * s->n_audio * H3_AUDIO_LATENT_CHANNELS;
    char what[64];
    int64_t at;
    float top;

    snprintf(what, sizeof what, "the latents of condition %d", i + 1);
    if (j->condition[i] && (at = scan(j->condition[i], H3_F32, nv, &top)) >= 0)
        return bad("video encoder", what, at, nv);
    if (j->sound_rows[i] && (at = scan(j->sound_rows[i], H3_F32, na, &top)) >= 0)
        return bad("audio encoder", what, at, na);
    return H3_OK;
}

h3_status h3_job_check_latents(h3_job *j)
{
    const h3_latents *l = &j->latents;
    const int64_t nv = 24 * l->t * l->h * l->w, na = 64 * l->n_audio;
    float video, audio;
    int64_t at;

    if ((at = scan(l->video, H3_F32, nv, &video)) >= 0)
        return bad("sampler", "the video latents", at, nv);
    if ((at = scan(l->audio, H3_F32, na, &audio)) >= 0)
        return bad("sampler", "the audio latents", at, na);
    if (video > H3_LATENT_RANGE || audio > H3_LATENT_RANGE)
        h3_job_say(j, H3_EVENT_WARNING,
                   "the latents reach %.3g (video) and %.3g (audio), far outside what the decoders "
                   "know: a wrong model, schedule or adapter?",
                   (double)video, (double)audio);
    return H3_OK;
}

h3_status h3_job_check_sound(h3_job *j, const float *pcm, int64_t n)
{
    float top;
    const int64_t at = scan(pcm, H3_F32, 2 * n, &top);

    if (at >= 0) return bad("sound decoder", "the samples", at, 2 * n);
    if (top < 1e-4f)
        h3_job_say(j, H3_EVENT_WARNING, "the sound is silent (peak %.1e)", (double)top);
    return H3_OK;
}
