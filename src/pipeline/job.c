/**
 * The order of the rooms: plan, text, encode, sample, decode, mux. Weights of a phase are opened
 * when it begins and dropped when it ends, so that no two networks are in memory together.
 */
#include "job_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audio_vae.h"
#include "file.h"
#include "number.h"
#include "output.h"
#include "parts.h"
#include "size.h"
#include "video_vae.h"

/* ----------------------------------------------------------------------------------- settings */

static void set_number(json_t *o, const char *key, const char *fmt, double v)
{
    char text[40];
    h3_number_write(text, sizeof text, fmt, v);
    json_object_set_new(o, key, json_string(text));
}

json_t *h3_job_settings(const h3_job *j)
{
    const h3_plan *p = j->plan;
    json_t *o = json_object();
    char seed[24];

    snprintf(seed, sizeof seed, "%llu", (unsigned long long)p->seed);
    json_object_set_new(o, "prompt", json_string(j->rq->prompt ? j->rq->prompt : ""));
    json_object_set_new(o, "seed", json_string(seed));
    json_object_set_new(o, "task", json_string(h3_task_name(p->task)));
    json_object_set_new(o, "noise_order",
                        json_string(p->noise_order == H3_NOISE_RESTART ? "omni" : "diffusers"));
    set_number(o, "steps", "%.0f", (double)p->video.n_sigmas);
    set_number(o, "width", "%.0f", (double)p->canvas.width);
    set_number(o, "height", "%.0f", (double)p->canvas.height);
    set_number(o, "frames", "%.0f", (double)p->n_frames);
    set_number(o, "shift", "%.6g", p->video.shift);
    set_number(o, "audio_shift", "%.6g", p->audio.shift);
    json_object_set_new(o, "program", json_pack("s+", "h3av ", h3_version()));
    return o;
}

/* ------------------------------------------------------------------------------------- decode */

typedef struct decode_user {
    h3_job *j;
    h3_output *out;
    double last;
} decode_user;

static h3_status take_frames(void *user, int64_t first, h3_tensor frames)
{
    decode_user *u = user;

    (void)first;
    h3_tap(u->j->e->dev, frames, "frames.%lld", (long long)first);
    H3_TRY(h3_output_frames(u->out, frames.data, frames.ne[0]));
    if (!h3_is_cancelled(&u->j->e->cancel)) return H3_OK; // a callback may have asked
    return h3_fail(H3_E_CANCELLED, "stopped on request");
}

static void tile_done(void *user, int64_t done, int64_t total)
{
    decode_user *u = user;
    const double t = h3_now();

    h3_job_step(u->j, done, total, t - u->last);
    u->last = t;
}

static h3_status decode_sound(h3_job *j, float **pcm, int64_t *n)
{
    h3_engine *e = j->e;
    h3_part *p = NULL;
    h3_status st;

    const h3_tensor z =
        h3_tensor_3d(j->latents.audio, H3_F32, 2, H3_AUDIO_LATENT_CHANNELS, j->latents.n_audio);

    *n = j->latents.n_audio * H3_AUDIO_HOP;
    *pcm = h3_malloc_2(sizeof(float), 2, *n);
    if (!*pcm) return h3_fail(H3_E_NOMEM, "no memory for %lld samples of sound", (long long)*n);
    st = h3_part_open(&p, e, e->dev, H3_PART_SOUND, (h3_part_how){0});
    if (st == H3_OK) st = h3_part_bind(p, e);
    if (st == H3_OK) st = h3_audio_vae_decode(e->dev, p->net.audio, z, NULL, *pcm);
    h3_part_leave(&p, e, st);
    return h3_job_name_stage(st, "sound decoder");
}

static h3_status decode_picture(h3_job *j, h3_output *out)
{
    const int64_t ne[4] = {H3_VIDEO_CHANNELS, j->latents.t, j->latents.h, j->latents.w};
    h3_engine *e = j->e;
    decode_user u = {j, out, h3_now()};
    h3_video_decode_opts opts = {.act = H3_F32};
    h3_part *p = NULL;
    size_t bytes = 0;
    h3_status st;

    st = h3_part_open(&p, e, e->dev, H3_PART_PICTURE, (h3_part_how){0});
    if (st == H3_OK) st = h3_part_bind(p, e);
    if (st == H3_OK) opts = h3_engine_decode_opts(e, e->dev, p->net.video, ne[1], ne[2], ne[3]);
    opts.progress = tile_done;
    opts.progress_user = &u;
    if (st == H3_OK)
        st = h3_video_vae_decode_bytes(e->dev, p->net.video, ne[1], ne[2], ne[3], &opts, &bytes);
    if (st == H3_OK) st = h3_dev_scratch(e->dev, bytes);
    if (bytes > j->rs->scratch_bytes) j->rs->scratch_bytes = bytes;
    if (st == H3_OK)
        st = h3_video_vae_decode(e->dev, p->net.video,
                                 h3_host_tensor(j->latents.video, H3_F32, 4, ne), &opts,
                                 take_frames, &u);
    h3_part_leave(&p, e, st);
    return h3_job_name_stage(st, "video decoder");
}

enum { MAX_META = 32 };

static int list_meta(h3_meta *out, const json_t *settings)
{
    const char *key;
    json_t *v;
    int n = 0;

    json_object_foreach((json_t *)(uintptr_t)settings, key, v)
    {
        if (n < MAX_META && strcmp(key, "kind") != 0 && json_string_value(v))
            out[n++] = (h3_meta){key, json_string_value(v)};
    }
    return n;
}

/* Black and flat pictures are legal, but a person wants to know. */
static void warn_picture(h3_job *j, const h3_output *out)
{
    if (h3_output_is_flat(out))
        h3_job_say(j, H3_EVENT_WARNING, "the picture is one flat colour throughout");
    else if (h3_output_mean(out) < 1.0)
        h3_job_say(j, H3_EVENT_WARNING, "the picture is black (mean %.2f of 255)",
                   h3_output_mean(out));
}

/* What another rank does of the decoding: tiles. */
static h3_status help_decode(h3_job *j)
{
    if (!h3_output_has_picture(j->rq)) return H3_OK;
    h3_job_turn(j, H3_FIT_DECODE);
    return decode_picture(j, NULL);
}

h3_status h3_job_decode(h3_job *j)
{
    const int width = (int)j->latents.w * 16, height = (int)j->latents.h * 16;
    h3_meta meta[MAX_META];
    h3_output out;
    h3_decode_clips clips;
    float *pcm = NULL;
    int64_t n = 0;
    h3_status st;

    if (!h3_job_is_first(j)) return help_decode(j);
    H3_TRY(h3_decode_clips_init(&clips, j->latents.t, H3_CLIP_RULE));
    h3_job_turn(j, H3_FIT_SOUND);
    h3_job_phase(j, "sound", 0.75, 0.8);
    st = decode_sound(j, &pcm, &n);
    if (st == H3_OK) st = h3_job_check_sound(j, pcm, n);
    if (st != H3_OK) goto done;
    h3_tap(j->e->dev, h3_tensor_2d(pcm, H3_F32, 2, n), "audio");
    h3_job_phase_end(j);
    h3_job_turn(j, H3_FIT_DECODE);
    h3_job_phase(j, "decode", 0.8, 1.0);
    st = h3_output_open(&out, j->rq, width, height, clips.n_frames, n, meta,
                        list_meta(meta, j->latents.meta));
    if (st != H3_OK) goto done;
    st = h3_output_sound(&out, pcm, n);
    if (st == H3_OK && h3_output_has_picture(j->rq)) st = decode_picture(j, &out);
    if (st == H3_OK) h3_job_phase_end(j);
    if (st == H3_OK) h3_job_turn(j, H3_FIT_MUX);
    if (st == H3_OK) h3_job_phase(j, "mux", 1.0, 1.0);
    if (st == H3_OK)
        st = h3_output_finish(&out);
    else
        h3_output_abort(&out);
    if (st != H3_OK) goto done;
    h3_job_phase_end(j);
    warn_picture(j, &out);
    snprintf(j->rs->codec, sizeof j->rs->codec, "%s", out.codec);
    j->rs->width = width;
    j->rs->height = height;
    j->rs->frames = (int)clips.n_frames;
    j->rs->samples = n;

done:
    free(pcm);
    return st;
}

/* ---------------------------------------------------------------------------------- the phases */

static h3_status prepare_inputs(h3_job *j)
{
    h3_fit_mode mode;

    H3_TRY(h3_parse_fit(&mode, j->rq->fit));
    for (int i = 0; i < j->plan->n_conditions; i++) {
        const h3_condition *c = &j->plan->conditions[i];
        const int at = j->task == H3_REF2VA ? c->source : i;
        H3_TRY(h3_prepare_source(&j->prepared[i], &j->sources.list[at], c, mode));
    }
    return H3_OK;
}

static void tell_plan(h3_job *j)
{
    const h3_plan *p = j->plan;
    json_t *o = h3_plan_describe(p, &j->sources, j->rq);
    char *text = json_dumps(o, JSON_COMPACT);

    if (text && j->rq->on_event) {
        const h3_event ev = {.kind = H3_EVENT_PLAN, .text = text, .eta_seconds = -1};
        j->rq->on_event(j->rq->user, &ev);
    }
    free(text);
    json_decref(o);
    h3_job_say(j, H3_EVENT_INFO,
               "%s: %lldx%lld, %lld frames (%.3f s), %lld samples of sound, %d sigma points = %d "
               "forwards, "
               "seed %llu",
               h3_task_name(p->task), (long long)p->canvas.width, (long long)p->canvas.height,
               (long long)p->n_frames, p->seconds, (long long)p->n_samples, p->video.n_sigmas,
               p->n_forwards, (unsigned long long)p->seed);
    for (int i = 0; i < p->n_warnings; i++)
        h3_job_say(j, H3_EVENT_WARNING, "%s", p->warnings[i].text);
}

/* "<output>.latents" beside the output, unless the caller names it; NULL where nothing has a name.
 */
static char *beside_output(const h3_request *rq, const char *given, const char *suffix)
{
    const char *base = h3_output_base(rq);
    size_t n;

    if (given) return h3_strdupf("%s", given);
    if (!base) return NULL;
    n = strlen(base);
    while (n > 1 && base[n - 1] == '/')
        n--;
    return h3_strdupf("%.*s%s", (int)n, base, suffix);
}

/* A disk that cannot take the latents may still take the video: that is not the end. */
static void save_latents(h3_job *j)
{
    if (!h3_output_saves_latents(j->rq)) return;
    if (h3_latents_write(j->latents_path, &j->latents) == H3_OK)
        j->has_latents = true;
    else
        h3_job_say(j, H3_EVENT_WARNING, "the latents are not saved, decoding goes on: %s",
                   h3_error());
}

/* A checkpoint is of use until something that is further on lies on the disk. */
static void drop_checkpoint(h3_job *j)
{
    if (j->saved_step) unlink(j->checkpoint_path);
    j->saved_step = 0;
}

/* Latents outlive a failure after sampling, and the sentence says how to go on. */
static h3_status explain_latents(const h3_job *j, h3_status st)
{
    char text[512];

    if (!j->has_latents) return h3_job_explain_checkpoint(j, st);
    snprintf(text, sizeof text, "%s", h3_error());
    return h3_fail(st, "%s (the latents are kept: h3av decode %s -o FILE finishes the run)", text,
                   j->latents_path);
}

/* A model may have the transformer of the other tasks only. */
static h3_status need_transformer(const h3_job *j)
{
    const h3_model *m = &j->e->model;
    const bool is_ref = j->task == H3_REF2VA;
    h3_status st;
    char *unread;

    if (is_ref ? m->dit_ref : m->dit) return H3_OK;
    unread = h3_parts_unread(m->unread);
    st = h3_fail(H3_E_MISSING, "%s: has no %s transformer, which %s; %sgive its path with --dit",
                 m->root, is_ref ? "Ref2VA" : "FL2VA",
                 is_ref                ? "references need"
                 : j->task == H3_FL2VA ? "keyframes need"
                                       : "a prompt alone needs",
                 unread);
    free(unread);
    return st;
}

h3_status h3_job_load(h3_job *j)
{
    H3_TRY(h3_request_task(&j->task, j->rq));
    H3_TRY(h3_request_check(j->rq, j->task));
    if (j->sources.n == 0) H3_TRY(h3_sources_load(&j->sources, j->rq, j->task, j->e));
    H3_TRY(h3_request_plan(&j->plan, j->rq, j->task, &j->sources, j->e));
    tell_plan(j);
    h3_job_tell_parts(j);
    H3_TRY(need_transformer(j));
    return prepare_inputs(j);
}

/* A file that is no checkpoint is refused before anything is computed. The run that goes on was
 * perhaps killed while it wrote: what is left of that goes away. */
static h3_status check_resume(const h3_job *j)
{
    h3_checkpoint_file c;

    if (!j->rq->resume_path) return H3_OK;
    H3_TRY(h3_checkpoint_read(&c, j->rq->resume_path));
    h3_checkpoint_free(&c);
    if (j->checkpoint_path) h3_atomic_sweep(j->checkpoint_path);
    if (j->latents_path) h3_atomic_sweep(j->latents_path);
    if (j->rq->out_path) h3_atomic_sweep(j->rq->out_path);
    return H3_OK;
}

h3_status h3_job_run(h3_job *j)
{
    h3_status st;

    H3_TRY(h3_output_any(j->rq));
    H3_TRY(h3_request_task(&j->task, j->rq)); // looks at every list first
    j->latents_path = beside_output(j->rq, j->rq->latents_path, ".latents");
    j->checkpoint_path = beside_output(j->rq, j->rq->checkpoint_path, ".checkpoint");
    h3_job_phase(j, "load", 0, 0.02);
    H3_TRY(h3_job_check_names(j));
    H3_TRY(check_resume(j));
    H3_TRY(h3_job_load(j));
    if (h3_job_is_first(j))
        H3_TRY(h3_output_check(j->rq, (int)j->plan->canvas.width, (int)j->plan->canvas.height,
                               j->plan->n_frames));
    H3_TRY(h3_job_present(j));
    H3_TRY(h3_job_same_request(j));
    H3_TRY(h3_job_check_noise(j));
    H3_TRY(h3_job_plan_memory(j));
    h3_job_phase_end(j);
    h3_job_turn(j, H3_FIT_TEXT);
    h3_job_phase(j, "text", 0.02, 0.06);
    H3_TRY(h3_job_text(j));
    h3_job_phase_end(j);
    if (j->plan->n_conditions > 0) {
        h3_job_turn(j, H3_FIT_ENCODE);
        h3_job_phase(j, "encode", 0.06, 0.1);
        H3_TRY(h3_job_encode(j));
        h3_job_phase_end(j);
    }
    h3_job_drop_media(j);
    h3_job_turn(j, H3_FIT_SAMPLE);
    h3_job_phase(j, "sample", 0.1, 0.75);
    H3_TRY(h3_job_noise(j));
    H3_TRY(h3_job_sample(j));
    h3_job_phase_end(j);
    j->rs->latent_hash =
        h3_fnv(H3_FNV, j->latents.video,
               (size_t)(24 * j->latents.t * j->latents.h * j->latents.w) * sizeof(float));
    j->rs->latent_hash = h3_fnv(j->rs->latent_hash, j->latents.audio,
                                (size_t)(64 * j->latents.n_audio) * sizeof(float));
    save_latents(j);
    h3_job_drop_rows(j);
    if (j->has_latents) drop_checkpoint(j);
    st = h3_job_decode(j);
    if (st != H3_OK) return explain_latents(j, st);
    drop_checkpoint(j);
    if (j->has_latents && !j->rq->keep_latents) unlink(j->latents_path);
    j->rs->steps = j->plan->video.n_sigmas;
    j->rs->n_forwards = j->plan->n_forwards - j->first_step;
    j->rs->seed = j->plan->seed;
    return H3_OK;
}

void h3_job_free(h3_job *j)
{
    h3_job_drop_media(j);
    h3_job_drop_rows(j);
    h3_vision_free(&j->vision);
    h3_plan_free(&j->plan);
    h3_layout_free(&j->layout);
    h3_prompt_free(&j->prompt);
    h3_latents_free(&j->latents);
    free(j->latents_path);
    free(j->checkpoint_path);
    free(j->preview);
    memset(j, 0, sizeof *j);
}
