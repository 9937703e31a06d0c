/**
 * Checkpoints: the generated rows after a whole step, and what a run must agree on to go on from
 * them. Written beside the output as one file that is complete or not there (latents.h), so that a
 * process may be killed at any moment. Failing to write one is a warning, never the end of a run.
 */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "output.h"
#include "size.h"

/* Everything that decides the rows; the weights by what their file says of them and samples of it,
 * so that a model may be moved but not exchanged. */
uint64_t h3_job_fingerprint(const h3_job *j, const h3_checkpoint *ck)
{
    const h3_layout *l = j->layout;
    uint64_t h = h3_ckpt_fingerprint(ck);

    for (int i = 0; i < j->e->n_loras; i++) {
        h = h3_fnv(h, j->e->lora[i], strlen(j->e->lora[i]));
        h = h3_fnv(h, &j->e->lora_strength[i], sizeof(float));
    }
    h = h3_fnv(h, j->embeds.data,
               (size_t)h3_numel(j->embeds) * h3_dtype_bytes((h3_dtype)j->embeds.dtype));
    h = h3_fnv(h, j->video_rows, (size_t)(l->n_video * H3_VIDEO_CHANNELS * 4) * sizeof(float));
    h = h3_fnv(h, j->audio_rows, (size_t)(l->n_audio * H3_AUDIO_LATENT_CHANNELS) * sizeof(float));
    h = h3_fnv(h, l->positions, (size_t)l->n_rows * 3 * sizeof(double));
    h = h3_fnv(h, j->plan->video.sigmas, (size_t)j->plan->video.n_sigmas * sizeof(float));
    h = h3_fnv(h, j->plan->audio.sigmas, (size_t)j->plan->audio.n_sigmas * sizeof(float));
    return h3_fnv(h, &j->e->act, 1);
}

static void warn_device(h3_job *j, const h3_checkpoint_file *c, const char *path)
{
    const char *was = h3_latents_meta(c->meta, "device");

    if (was && strcmp(was, j->e->dev->name) != 0)
        h3_job_say(j, H3_EVENT_WARNING,
                   "%s was begun on %s and goes on on %s: the last digits may differ", path, was,
                   j->e->dev->name);
}

/* Names the first setting that is not the same; inputs and weights are known by their sum alone. */
static h3_status another_request(const h3_job *j, const h3_checkpoint_file *c, const char *path)
{
    h3_status st = H3_OK;
    json_t *settings = h3_job_settings(j), *mine;
    const char *key;

    (void)json_object_del(settings, "program");
    json_object_foreach(settings, key, mine)
    {
        const char *now = json_string_value(mine), *was = h3_latents_meta(c->meta, key);
        if (st != H3_OK || !was || strcmp(was, now) == 0) continue;
        st = strcmp(key, "prompt") == 0
                 ? h3_fail(H3_E_ARG,
                           "%s: was saved by another request: its prompt is not this one (h3av "
                           "inspect shows it)",
                           path)
                 : h3_fail(H3_E_ARG, "%s: was saved by another request: its %s is %.40s, here %s",
                           path, key, was, now);
    }
    json_decref(settings);
    if (st != H3_OK) return st;
    return h3_fail(H3_E_ARG,
                   "%s: was saved by another request: keyframes, references, noise, sigmas, model, "
                   "adapters and dtype must all be the same to continue",
                   path);
}

static h3_status check_checkpoint(const h3_job *j, const h3_checkpoint_file *c, const char *path)
{
    const h3_layout *l = j->layout;
    const int64_t nv = l->n_video - l->n_condition_video, na = l->n_audio - l->n_condition_audio;
    const char *print = h3_latents_meta(c->meta, "fingerprint");
    char mine[24];

    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)j->fingerprint);
    if (!print || strcmp(print, mine) != 0) return another_request(j, c, path);
    if (c->n_video != nv || c->n_audio != na || c->video_cols != H3_VIDEO_CHANNELS * 4 ||
        c->audio_cols != H3_AUDIO_LATENT_CHANNELS || c->step > j->plan->n_forwards)
        return h3_fail(
            H3_E_SHAPE,
            "%s: holds %lld video and %lld audio rows at step %lld, expected %lld and %lld", path,
            (long long)c->n_video, (long long)c->n_audio, (long long)c->step, (long long)nv,
            (long long)na);
    return H3_OK;
}

static void take_rows(h3_job *j, const h3_checkpoint_file *c)
{
    const h3_layout *l = j->layout;

    memcpy(j->video_rows + l->n_condition_video * c->video_cols, c->video_rows,
           (size_t)(c->n_video * c->video_cols) * sizeof(float));
    memcpy(j->audio_rows + l->n_condition_audio * c->audio_cols, c->audio_rows,
           (size_t)(c->n_audio * c->audio_cols) * sizeof(float));
    j->first_step = (int)c->step;
}

h3_status h3_job_resume(h3_job *j)
{
    const char *path = j->rq->resume_path;
    h3_checkpoint_file c;
    h3_status st;

    H3_TRY(h3_checkpoint_read(&c, path));
    st = check_checkpoint(j, &c, path);
    if (st == H3_OK) {
        take_rows(j, &c);
        if (j->checkpoint_path && strcmp(path, j->checkpoint_path) == 0)
            j->saved_step = j->first_step;
        warn_device(j, &c, path);
        h3_job_say(j, H3_EVENT_INFO, "continuing %s after step %d of %d", path, j->first_step,
                   j->plan->n_forwards);
    }
    h3_checkpoint_free(&c);
    return st;
}

static h3_status write_checkpoint(h3_job *j, const h3_sampler_step *s)
{
    h3_checkpoint_file c = {.step = s->step + 1,
                            .n_video = s->video.ne[0],
                            .video_cols = s->video.ne[1],
                            .n_audio = s->audio.ne[0],
                            .audio_cols = s->audio.ne[1]};
    char print[24];
    h3_status st;

    c.video_rows = h3_malloc_2(sizeof(float), s->video.ne[0], s->video.ne[1]);
    c.audio_rows = h3_malloc_2(sizeof(float), s->audio.ne[0], s->audio.ne[1]);
    c.meta = h3_job_settings(j);
    snprintf(print, sizeof print, "%016llx", (unsigned long long)j->fingerprint);
    json_object_set_new(c.meta, "fingerprint", json_string(print));
    json_object_set_new(c.meta, "device", json_string(j->e->dev->name));
    if (!c.video_rows || !c.audio_rows)
        st = h3_fail(H3_E_NOMEM, "no memory for a checkpoint");
    else if ((st = h3_dev_download(s->dev, c.video_rows, s->video)) == H3_OK &&
             (st = h3_dev_download(s->dev, c.audio_rows, s->audio)) == H3_OK)
        st = h3_checkpoint_write(j->checkpoint_path, &c);
    h3_checkpoint_free(&c);
    return st;
}

/* A full disk must not end the run that a checkpoint is there to save. */
static void save_checkpoint(h3_job *j, const h3_sampler_step *s)
{
    if (write_checkpoint(j, s) == H3_OK)
        j->saved_step = s->step + 1;
    else if (j->saved_step)
        h3_job_say(j, H3_EVENT_WARNING, "no checkpoint after step %d, the one of step %d stays: %s",
                   s->step + 1, j->saved_step, h3_error());
    else
        h3_job_say(j, H3_EVENT_WARNING, "no checkpoint after step %d: %s", s->step + 1, h3_error());
}

h3_status h3_job_after_step(void *user, const h3_sampler_step *s)
{
    h3_job *j = user;
    const int done = s->step + 1, every = j->rq->checkpoint_every;

    j->rs->step_seconds = s->seconds;
    h3_job_preview(j, s);
    h3_job_step(j, done, s->n_steps, s->seconds);
    if (every > 0 && done < s->n_steps && done % every == 0) save_checkpoint(j, s);
    return H3_OK;
}

enum { WORTH_SECONDS = 30 }; ///< of sampling: from here on a stop keeps it unasked

void h3_job_on_stop(void *user, const h3_sampler_step *s)
{
    h3_job *j = user;
    const bool is_worth = h3_output_saves_latents(j->rq) && j->checkpoint_path &&
                          h3_now() - j->phase_start >= WORTH_SECONDS;

    if ((j->rq->checkpoint_every > 0 || is_worth) && j->saved_step <= s->step)
        save_checkpoint(j, s);
}

/* The sentence of a run that ended while sampling says how to go on. */
h3_status h3_job_explain_checkpoint(const h3_job *j, h3_status st)
{
    char text[512];

    if (st == H3_OK || !j->saved_step) return st;
    snprintf(text, sizeof text, "%s", h3_error());
    return h3_fail(st,
                   "%s (%d of %d steps are kept: the same command with --resume %s goes on after "
                   "them)",
                   text, j->saved_step, j->plan->n_forwards, j->checkpoint_path);
}
