/** The encode phase: prepared conditions become clean latents; see job.h. */
#include <stdlib.h>

#include "audio_vae.h"
#include "job_ranks.h"
#include "rng.h"
#include "size.h"
#include "video_vae.h"

enum {
    POSTERIOR_SEED = 42
}; // the reference's, anew for every condition whatever the request's seed

static h3_memo_key pixels_key(const h3_job *j, const h3_checkpoint *ck, int i)
{
    const h3_condition *c = &j->plan->conditions[i];
    const h3_prepared *p = &j->prepared[i];
    const int64_t n = c->shape.kind == H3_COND_VIDEO ? c->n_encoded : 1;
    const int64_t ne[3] = {n, p->h, p->w};
    h3_memo_key k = h3_memo_start(h3_ckpt_identity(ck));

    h3_memo_mix(&k, ne, sizeof ne);
    h3_memo_mix(&k, p->rgb, (size_t)(n * p->h * p->w) * 3);
    return k;
}

static h3_memo_key sound_key(const h3_job *j, const h3_checkpoint *ck, int i)
{
    const h3_prepared *p = &j->prepared[i];
    h3_memo_key k = h3_memo_start(h3_ckpt_identity(ck));

    h3_memo_mix(&k, p->pcm, (size_t)(2 * p->n_samples) * sizeof(float));
    return k;
}

/* A condition of the request before, or `encode` it and remember that. */
static h3_status recall_or(h3_job *j, h3_memo *m, h3_memo_key key, float **out, size_t bytes,
                           h3_status (*encode)(h3_job *, void *, int), void *net, int i)
{
    h3_status st;

    if (!j->e->keeps || j->e->dev->tap) return encode(j, net, i);
    *out = malloc(bytes);
    if (*out && h3_memo_recall(m, key, *out, bytes)) return H3_OK;
    free(*out);
    *out = NULL;
    st = encode(j, net, i);
    if (st == H3_OK) h3_memo_keep(m, key, *out, bytes);
    return st;
}

static h3_status encode_pixels(h3_job *j, void *net, int i)
{
    h3_video_vae *v = net;
    const h3_condition *c = &j->plan->conditions[i];
    const h3_prepared *p = &j->prepared[i];
    const int64_t n = c->shape.kind == H3_COND_VIDEO ? c->n_encoded : 1;
    const h3_condition_shape *z = &c->shape;
    const int64_t cells = z->t * z->h * z->w;
    float *logvar = h3_malloc_4(sizeof(float), H3_VIDEO_CHANNELS, z->t, z->h, z->w);
    float *noise = h3_malloc_4(sizeof(float), H3_VIDEO_CHANNELS, z->t, z->h, z->w);
    h3_status st = H3_OK;
    h3_rng rng;

    j->condition[i] = h3_malloc_4(sizeof(float), H3_VIDEO_CHANNELS, z->t, z->h, z->w);
    if (!logvar || !noise || !j->condition[i]) {
        st = h3_fail(H3_E_NOMEM, "no memory for the latents of condition %d", i + 1);
        goto done;
    }
    const int64_t ne[4] = {n, p->h, p->w, 3};
    st = h3_video_vae_encode(j->e->dev, v, h3_host_tensor(p->rgb, H3_U8, 4, ne), NULL,
                             j->condition[i], logvar);
    if (st != H3_OK) goto done;
    h3_rng_seed(&rng, POSTERIOR_SEED);
    h3_rng_normal(&rng, noise, cells * H3_VIDEO_CHANNELS);
    h3_video_vae_condition(v, j->condition[i], logvar, noise, cells);

done:
    free(logvar);
    free(noise);
    return st;
}

static h3_status encode_all_pixels(h3_job *j)
{
    h3_engine *e = j->e;
    h3_part *p = NULL;
    h3_status st;

    st = h3_part_open(&p, e, e->dev, H3_PART_PIXELS, (h3_part_how){0});
    if (st == H3_OK) st = h3_part_bind(p, e);
    for (int i = 0; st == H3_OK && i < j->plan->n_conditions; i++) {
        if (!h3_job_is_mine(j, i)) continue;
        const h3_condition_shape *c = &j->plan->conditions[i].shape;
        if (c->kind != H3_COND_AUDIO)
            st = recall_or(
                j, &e->condition[i], e->keeps ? pixels_key(j, p->ck, i) : (h3_memo_key){0, 0},
                &j->condition[i], (size_t)(H3_VIDEO_CHANNELS * c->t * c->h * c->w) * sizeof(float),
                encode_pixels, p->net.video, i);
        if (st == H3_OK) h3_job_step(j, i + 1, j->plan->n_conditions, 0);
    }
    h3_part_leave(&p, e, st);
    return h3_job_name_stage(st, "video encoder");
}

static h3_status encode_sound(h3_job *j, void *net, int i)
{
    const h3_prepared *p = &j->prepared[i];
    const int64_t n = j->plan->conditions[i].shape.n_audio;

    j->sound_rows[i] = h3_malloc_4(sizeof(float), 2, n, H3_AUDIO_LATENT_CHANNELS, 1);
    if (!j->sound_rows[i])
        return h3_fail(H3_E_NOMEM, "no memory for the sound of condition %d", i + 1);
    return h3_audio_vae_encode(j->e->dev, net, h3_tensor_2d(p->pcm, H3_F32, 2, p->n_samples), false,
                               j->sound_rows[i]);
}

static h3_status encode_all_sound(h3_job *j)
{
    h3_engine *e = j->e;
    h3_part *p = NULL;
    h3_status st;

    st = h3_part_open(&p, e, e->dev, H3_PART_SOUND_IN, (h3_part_how){0});
    if (st == H3_OK) st = h3_part_bind(p, e);
    for (int i = 0; st == H3_OK && i < j->plan->n_conditions; i++) {
        const int64_t n = j->plan->conditions[i].shape.n_audio;
        if (n == 0 || !h3_job_is_mine(j, i)) continue;
        st =
            recall_or(j, &e->sound[i], e->keeps ? sound_key(j, p->ck, i) : (h3_memo_key){0, 0},
                      &j->sound_rows[i], (size_t)(2 * n * H3_AUDIO_LATENT_CHANNELS) * sizeof(float),
                      encode_sound, p->net.audio, i);
    }
    h3_part_leave(&p, e, st);
    return h3_job_name_stage(st, "audio encoder");
}

h3_status h3_job_encode(h3_job *j)
{
    bool has_pixels = false, has_sound = false;

    for (int i = 0; i < j->plan->n_conditions; i++) {
        if (!h3_job_is_mine(j, i)) continue;
        has_pixels = has_pixels || j->plan->conditions[i].shape.kind != H3_COND_AUDIO;
        has_sound = has_sound || j->plan->conditions[i].shape.n_audio > 0;
    }
    if (has_pixels) H3_TRY(encode_all_pixels(j));
    if (has_sound) H3_TRY(encode_all_sound(j));
    H3_TRY(h3_job_share_conditions(j));
    for (int i = 0; i < j->plan->n_conditions; i++)
        H3_TRY(h3_job_check_condition(j, i));
    return H3_OK;
}
