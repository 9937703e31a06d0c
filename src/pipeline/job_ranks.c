/**
 * A request over ranks: which of them does what, and what is handed on between them; see job.h.
 *
 *   load, layout   every rank, from its own copy of the files and arguments; compared
 *   text           rank 0; the embeddings go to all
 *   encode         condition i on rank i modulo ranks; latents go to rank 0
 *   noise, resume  rank 0; packed rows go to all
 *   sample         all (nets/attention.c); all have the latents
 *   sound, mux     rank 0
 *   picture        tiles on all (nets/video_vae_dec.c), frames on rank 0
 *
 * With one rank every call here returns at once.
 */
#include <stdlib.h>
#include <string.h>

#include "job_ranks.h"
#include "output.h"
#include "size.h"

static int size_of(const h3_job *j)
{
    return h3_comm_size(j->e->comm);
}

static int rank_of(const h3_job *j)
{
    return h3_comm_rank(j->e->comm);
}

bool h3_job_is_first(const h3_job *j)
{
    return rank_of(j) == 0;
}

bool h3_job_is_mine(const h3_job *j, int i)
{
    return i % size_of(j) == rank_of(j);
}

h3_request h3_job_silent(const h3_request *rq)
{
    h3_request silent = *rq;

    silent.on_event = NULL;
    silent.save_latents = silent.keep_latents = false;
    silent.latents_path = silent.checkpoint_path = NULL;
    silent.checkpoint_every = 0;
    silent.resume_path = NULL;
    return silent;
}

/* Rank 0's block to all; the others allocate. */
static h3_status share_block(h3_comm *c, void **data, size_t bytes, const char *what)
{
    if (h3_comm_rank(c) > 0) {
        *data = bytes < SIZE_MAX ? malloc(bytes + 1) : NULL;
        if (!*data) return h3_fail(H3_E_NOMEM, "no memory for %s", what);
    }
    return h3_comm_broadcast(c, NULL, *data, bytes, 0);
}

h3_status h3_job_share_prompt(h3_comm *c, h3_request *rq, char **owned)
{
    int64_t n = rq->prompt ? (int64_t)strlen(rq->prompt) : -1;
    void *text = (void *)(uintptr_t)rq->prompt;

    if (h3_comm_size(c) == 1) return H3_OK;
    H3_TRY(h3_comm_broadcast(c, NULL, &n, sizeof n, 0));
    if (n < 0) {
        rq->prompt = NULL;
        return H3_OK;
    }
    H3_TRY(share_block(c, &text, (size_t)n, "the prompt"));
    if (h3_comm_rank(c) > 0) {
        *owned = text;
        (*owned)[n] = '\0';
        rq->prompt = *owned;
    }
    return H3_OK;
}

h3_status h3_job_same_request(const h3_job *j)
{
    const h3_layout *l = j->layout;
    const h3_plan *p = j->plan;
    uint64_t h = H3_FNV;

    if (size_of(j) == 1) return H3_OK;
    h = h3_fnv(h, &j->task, sizeof j->task);
    h = h3_fnv(h, &j->e->act, 1);
    h = h3_fnv(h, &p->seed, sizeof p->seed);
    h = h3_fnv(h, &(bool){h3_output_has_picture(j->rq)}, sizeof(bool)); // all decode, or none
    h = h3_fnv(h, j->prompt.ids, (size_t)j->prompt.n_rows * sizeof *j->prompt.ids);
    h = h3_fnv(h, l->positions, (size_t)l->n_rows * 3 * sizeof *l->positions);
    h = h3_fnv(h, l->tags, (size_t)l->n_rows * sizeof *l->tags);
    h = h3_fnv(h, p->video.sigmas, (size_t)p->video.n_sigmas * sizeof(float));
    h = h3_fnv(h, p->audio.sigmas, (size_t)p->audio.n_sigmas * sizeof(float));
    for (int i = 0; i < p->n_conditions; i++)
        h = h3_fnv(h, &p->conditions[i].shape, sizeof p->conditions[i].shape);
    return h3_comm_same(j->e->comm, h, "the request");
}

h3_status h3_job_share_text(h3_job *j)
{
    int64_t head[3] = {j->embeds.dtype, j->embeds.ne[0], j->embeds.ne[1]};
    h3_comm *c = j->e->comm;
    void *data = j->embeds.data;

    if (size_of(j) == 1) return H3_OK;
    H3_TRY(h3_comm_broadcast(c, NULL, head, sizeof head, 0));
    const size_t bytes = (size_t)head[1] * (size_t)head[2] * h3_dtype_bytes((h3_dtype)head[0]);
    const h3_status st = share_block(c, &data, bytes, "prompt embeddings");
    j->embeds = h3_tensor_2d(data, (h3_dtype)head[0], head[1], head[2]);
    return st;
}

/* One condition's latents, from the rank that made them to rank 0. */
static h3_status hand_in(h3_job *j, int owner, float **data, int64_t n)
{
    size_t bytes = 0;

    if (n < 0 || !h3_mul_size((size_t)n, sizeof(float), &bytes))
        return h3_fail(H3_E_NOMEM, "no memory for %lld numbers of a condition", (long long)n);
    h3_message m = {owner, *data, bytes};

    if (n == 0 || owner == 0) return H3_OK;
    if (rank_of(j) == owner) {
        m.peer = 0;
        return h3_comm_exchange(j->e->comm, NULL, &m, 1, NULL, 0);
    }
    if (!h3_job_is_first(j)) return H3_OK;
    m.data = *data = malloc(bytes);
    if (!m.data) return h3_fail(H3_E_NOMEM, "no memory for the latents of a condition");
    return h3_comm_exchange(j->e->comm, NULL, NULL, 0, &m, 1);
}

h3_status h3_job_share_conditions(h3_job *j)
{
    for (int i = 0; size_of(j) > 1 && i < j->plan->n_conditions; i++) {
        const h3_condition_shape *s = &j->plan->conditions[i].shape;
        const int owner = i % size_of(j);
        const int64_t cells = s->kind == H3_COND_AUDIO ? 0 : s->t * s->h * s->w;
        H3_TRY(hand_in(j, owner, &j->condition[i], cells * H3_VIDEO_CHANNELS));
        H3_TRY(hand_in(j, owner, &j->sound_rows[i], 2 * s->n_audio * H3_AUDIO_LATENT_CHANNELS));
    }
    return H3_OK;
}

h3_status h3_job_share_rows(h3_job *j)
{
    const h3_layout *l = j->layout;
    const size_t nv = (size_t)(l->n_video * H3_VIDEO_CHANNELS * H3_PATCH * H3_PATCH);
    const size_t na = (size_t)(l->n_audio * H3_AUDIO_LATENT_CHANNELS);
    h3_comm *c = j->e->comm;
    void *video = j->video_rows, *audio = j->audio_rows;
    h3_status st;

    if (size_of(j) == 1) return H3_OK;
    st = h3_comm_broadcast(c, NULL, &j->first_step, sizeof j->first_step, 0);
    if (st == H3_OK) st = share_block(c, &video, nv * sizeof(float), "the packed rows");
    j->video_rows = video;
    if (st == H3_OK) st = share_block(c, &audio, na * sizeof(float), "the packed rows");
    j->audio_rows = audio;
    return st;
}

h3_status h3_job_share_latents(h3_job *j)
{
    h3_latents *l = &j->latents;
    int64_t head[4] = {l->t, l->h, l->w, l->n_audio};
    h3_comm *c = j->e->comm;
    void *video = l->video;
    h3_status st;

    if (size_of(j) == 1) return H3_OK;
    H3_TRY(h3_comm_broadcast(c, NULL, head, sizeof head, 0));
    l->t = head[0];
    l->h = head[1];
    l->w = head[2];
    l->n_audio = head[3];
    const size_t n = (size_t)H3_VIDEO_CHANNELS * (size_t)l->t * (size_t)l->h * (size_t)l->w;
    st = share_block(c, &video, n * sizeof(float), "the latents"); // sound is rank 0's
    l->video = video;
    return st;
}
