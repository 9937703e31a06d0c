/** The sample phase: noise, packing, the loop with its checkpoints, latents; see job.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_ranks.h"
#include "manifest.h"
#include "pack.h"
#include "size.h"

/* -------------------------------------------------------------------------------------- noise */

/* The caller's own noise: video [1, 24, T, h, w] or [24, T, h, w], audio [2, 32, n]; n numbers. */
static h3_status find_noise(const h3_manifest *m, const char *path, const char *name, int64_t n,
                            const void **out)
{
    const h3_entry *e = h3_manifest_find(m, name);

    if (!e) return h3_fail(H3_E_MISSING, "%s: no tensor %s (expected video and audio)", path, name);
    if (e->dtype != H3_F32 || e->bytes != (size_t)n * sizeof(float))
        return h3_fail(
            H3_E_SHAPE, "%s: tensor %s has %zu bytes of %s, this request needs %lld F32 numbers",
            path, name, e->bytes,
            e->dtype < H3_DTYPE_COUNT ? h3_dtype_name((h3_dtype)e->dtype) : "a ggml type",
            (long long)n);
    for (int64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, e->data + (size_t)i * sizeof x, sizeof x);
        if (!isfinite(x))
            return h3_fail(H3_E_NUMERIC, "%s: tensor %s holds NaN or infinity", path, name);
    }
    *out = e->data;
    return H3_OK;
}

/* How many numbers the request's noise has: video, then audio. */
static void noise_sizes(const h3_plan *p, int64_t n[2])
{
    n[0] = H3_VIDEO_CHANNELS * p->latent.t * p->latent.h * p->latent.w;
    n[1] = 2 * H3_AUDIO_LATENT_CHANNELS * p->n_audio;
}

h3_status h3_job_check_noise(const h3_job *j)
{
    const char *path = j->rq->noise_path;
    const void *data;
    h3_manifest *m = NULL;
    int64_t n[2];
    h3_status st;

    if (!path) return H3_OK;
    noise_sizes(j->plan, n);
    st = h3_manifest_open(&m, path);
    if (st == H3_OK) st = find_noise(m, path, "video", n[0], &data);
    if (st == H3_OK) st = find_noise(m, path, "audio", n[1], &data);
    h3_manifest_close(&m);
    return st;
}

static h3_status inject_noise(const h3_job *j, float *video, float *audio_rows)
{
    const char *path = j->rq->noise_path;
    const void *from_video, *from_audio;
    float *audio = NULL;
    h3_manifest *m = NULL;
    int64_t n[2];
    h3_status st;

    noise_sizes(j->plan, n);
    st = h3_manifest_open(&m, path);
    if (st == H3_OK) st = find_noise(m, path, "video", n[0], &from_video);
    if (st == H3_OK) st = find_noise(m, path, "audio", n[1], &from_audio);
    if (st == H3_OK && !(audio = h3_malloc_2(sizeof(float), n[1], 1)))
        st = h3_fail(H3_E_NOMEM, "no memory for the noise of %s", path);
    if (st == H3_OK) {
        memcpy(video, from_video, (size_t)n[0] * sizeof(float));
        memcpy(audio, from_audio, (size_t)n[1] * sizeof(float)); // aligned, whatever the file is
        h3_audio_to_rows(audio_rows, audio, 2, H3_AUDIO_LATENT_CHANNELS, j->plan->n_audio);
    }
    h3_manifest_close(&m);
    free(audio);
    return st;
}

typedef struct noise_set {
    float *condition[H3_MAX_CONDITIONS]; // visual ones only, in packed order
    float *video, *audio_rows;
    h3_pack_visual visual[H3_MAX_CONDITIONS];
    h3_pack_sound sound[H3_MAX_CONDITIONS];
    int n_visual, n_sound;
} noise_set;

static void noise_free(noise_set *s)
{
    for (int i = 0; i < s->n_visual; i++)
        free(s->condition[i]);
    free(s->video);
    free(s->audio_rows);
}

static h3_status noise_alloc(noise_set *s, const h3_job *j)
{
    const h3_plan *p = j->plan;

    memset(s, 0, sizeof *s);
    for (int i = 0; i < p->n_conditions; i++) {
        const h3_condition_shape *c = &p->conditions[i].shape;
        if (c->n_audio > 0)
            s->sound[s->n_sound++] = (h3_pack_sound){j->sound_rows[i], 2 * c->n_audio};
        if (c->kind == H3_COND_AUDIO) continue;
        s->visual[s->n_visual] = (h3_pack_visual){{c->t, c->h, c->w}, j->condition[i], NULL};
        s->condition[s->n_visual] = h3_malloc_4(sizeof(float), H3_VIDEO_CHANNELS, c->t, c->h, c->w);
        if (!s->condition[s->n_visual]) goto nomem;
        s->visual[s->n_visual].noise = s->condition[s->n_visual];
        s->n_visual++;
    }
    s->video = h3_malloc_4(sizeof(float), H3_VIDEO_CHANNELS, p->latent.t, p->latent.h, p->latent.w);
    s->audio_rows = h3_malloc_4(sizeof(float), 2, p->n_audio, H3_AUDIO_LATENT_CHANNELS, 1);
    if (s->video && s->audio_rows) return H3_OK;

nomem:
    return h3_fail(H3_E_NOMEM, "no memory for the noise of the request");
}

h3_status h3_job_noise(h3_job *j)
{
    const h3_layout *l = j->layout;
    const bool is_injected = j->rq->noise_path != NULL;
    noise_set s;
    h3_status st;

    if (!h3_job_is_first(j)) return H3_OK; // the rows come with h3_job_share_rows
    st = noise_alloc(&s, j);
    j->video_rows = h3_malloc_4(sizeof(float), l->n_video, H3_VIDEO_CHANNELS, H3_PATCH, H3_PATCH);
    j->audio_rows = h3_malloc_2(sizeof(float), l->n_audio, H3_AUDIO_LATENT_CHANNELS);
    if (st == H3_OK && (!j->video_rows || !j->audio_rows))
        st = h3_fail(H3_E_NOMEM, "no memory for the packed rows");
    if (st != H3_OK) goto done;
    h3_plan_noise(j->plan, s.condition, is_injected ? NULL : s.video,
                  is_injected ? NULL : s.audio_rows);
    if (is_injected && (st = inject_noise(j, s.video, s.audio_rows)) != H3_OK) goto done;
    st = h3_pack_video(j->video_rows, s.visual, s.n_visual, s.video, j->plan->latent,
                       H3_VIDEO_CHANNELS);
    if (st == H3_OK)
        h3_pack_audio(j->audio_rows, s.sound, s.n_sound, s.audio_rows, 2 * j->plan->n_audio,
                      H3_AUDIO_LATENT_CHANNELS);

done:
    noise_free(&s);
    return st;
}

/* ----------------------------------------------------------------------------------- the loop */

static h3_status rows_to_latents(h3_job *j, const float *video_rows, const float *audio_rows)
{
    const h3_plan *p = j->plan;
    h3_latents *l = &j->latents;

    *l = (h3_latents){.t = p->latent.t, .h = p->latent.h, .w = p->latent.w, .n_audio = p->n_audio};
    l->video = h3_malloc_4(sizeof(float), H3_VIDEO_CHANNELS, l->t, l->h, l->w);
    l->audio = h3_malloc_4(sizeof(float), 2, H3_AUDIO_LATENT_CHANNELS, l->n_audio, 1);
    l->meta = h3_job_settings(j);
    if (!l->video || !l->audio) return h3_fail(H3_E_NOMEM, "no memory for the latents");
    h3_unpatchify(l->video, video_rows, H3_VIDEO_CHANNELS, l->t, l->h, l->w);
    h3_audio_from_rows(l->audio, audio_rows, 2, H3_AUDIO_LATENT_CHANNELS, l->n_audio);
    return H3_OK;
}

static h3_status run_loop(h3_job *j, const h3_dit *m, float *video_out, float *audio_out)
{
    const h3_sampler_in in = {.layout = j->layout,
                              .video = &j->plan->video,
                              .audio = &j->plan->audio,
                              .prompt_embeds = j->embeds,
                              .act = j->e->act,
                              .video_rows = j->video_rows,
                              .audio_rows = j->audio_rows,
                              .first_step = j->first_step,
                              .after_step = h3_job_after_step,
                              .on_stop = h3_job_on_stop,
                              .user = j};
    const h3_status st = h3_job_explain_checkpoint(j, h3_sampler_run(video_out, audio_out, m, &in));

    if (j->e->dev->scratch.peak > j->rs->scratch_bytes)
        j->rs->scratch_bytes = j->e->dev->scratch.peak;
    return st;
}

/* Adapters go in before anything is bound; each says what it matched. */
static h3_status add_loras(h3_job *j, h3_checkpoint *ck)
{
    const h3_engine *e = j->e;

    for (int i = 0; i < e->n_loras; i++) {
        h3_lora_opts opts = e->lora_opts;
        h3_lora_report r = {0};
        h3_status st;
        opts.strength = e->lora_strength[i];
        st = h3_ckpt_add_lora(ck, e->lora[i], &opts, &r);
        if (st == H3_OK) {
            char alpha[48] = "none"; // the file's scale is then 1
            if (isfinite(r.alpha_min))
                snprintf(alpha, sizeof alpha, "%g..%g", (double)r.alpha_min, (double)r.alpha_max);
            h3_job_say(j, H3_EVENT_INFO,
                       "adapter %s: %lld of %lld modules matched, rank %lld..%lld, alpha %s, "
                       "strength %g (%s keys)",
                       e->lora[i], (long long)r.n_matched, (long long)r.n_modules,
                       (long long)r.rank_min, (long long)r.rank_max, alpha, (double)opts.strength,
                       r.form);
            if (r.unmatched)
                h3_job_say(j, H3_EVENT_WARNING, "adapter %s: no match for %s", e->lora[i],
                           r.unmatched);
        }
        free(r.unmatched);
        if (st != H3_OK) return st;
    }
    return H3_OK;
}

h3_status h3_job_sample(h3_job *j)
{
    const h3_layout *l = j->layout;
    const int64_t nv = l->n_video - l->n_condition_video, na = l->n_audio - l->n_condition_audio;
    const h3_part_kind kind = j->task == H3_REF2VA ? H3_PART_DIT_REF : H3_PART_DIT;
    const h3_part_how how = {.is_expanded = j->fit.quant.is_expanded};
    float *video_out = h3_malloc_4(sizeof(float), nv, H3_VIDEO_CHANNELS, H3_PATCH, H3_PATCH);
    float *audio_out = h3_malloc_2(sizeof(float), na, H3_AUDIO_LATENT_CHANNELS);
    h3_part *p = NULL;
    h3_status st = H3_OK;

    if (!video_out || !audio_out) st = h3_fail(H3_E_NOMEM, "no memory for the generated rows");
    if (st == H3_OK) st = h3_part_open(&p, j->e, j->e->dev, kind, how);
    if (st == H3_OK && h3_job_is_first(j)) {
        j->fingerprint = h3_job_fingerprint(j, p->ck);
        if (j->rq->resume_path) st = h3_job_resume(j);
    }
    if (st == H3_OK) st = h3_job_share_rows(j);
    if (st == H3_OK && !p->net.any) st = add_loras(j, p->ck);
    if (st == H3_OK) st = h3_part_bind(p, j->e);
    if (st == H3_OK) st = run_loop(j, p->net.dit, video_out, audio_out);
    h3_part_leave(&p, j->e, st);
    if (st == H3_OK) st = rows_to_latents(j, video_out, audio_out);
    if (st == H3_OK) st = h3_job_check_latents(j);
    free(video_out);
    free(audio_out);
    return st;
}
