/** The text phase: presentation, token ids, conditioner; see job.h. */
#include <stdlib.h>
#include <string.h>

#include "job_ranks.h"
#include "size.h"

static h3_prompt_task prompt_task(h3_task t)
{
    return t == H3_T2VA ? H3_PROMPT_T2VA : t == H3_FL2VA ? H3_PROMPT_FL2VA : H3_PROMPT_REF2VA;
}

/* A tokenizer of another model family would give ids that mean something else: compare the markers
 * it knows with what the encoder's configuration says. */
static h3_status check_markers(const h3_job *j, const h3_checkpoint *ck)
{
    const json_t *config = h3_ckpt_config(ck, "config.json");
    const h3_prompt_markers *m = &j->prompt.markers;
    const struct {
        const char *key;
        int32_t id;
    } pairs[] = {{"vision_start_token_id", m->vision_start},
                 {"vision_end_token_id", m->vision_end},
                 {"image_token_id", m->image_pad},
                 {"video_token_id", m->video_pad}};

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const json_t *v = json_object_get(config, pairs[i].key);
        if (json_is_integer(v) && pairs[i].id >= 0 && json_integer_value(v) != pairs[i].id)
            return h3_fail(H3_E_FORMAT,
                           "%s: %s is %lld, but the tokenizer %s has id %d there: they do not "
                           "belong together",
                           h3_ckpt_path(ck), pairs[i].key, (long long)json_integer_value(v),
                           j->e->model.tokenizer, pairs[i].id);
    }
    return H3_OK;
}

h3_encoder_in h3_job_encoder_in(const h3_job *j)
{
    const h3_prompt *p = &j->prompt;
    const h3_vision *v = &j->vision;

    return (h3_encoder_in){
        .n_rows = p->n_rows,
        .ids = p->ids,
        .positions = p->position_ids,
        .mm = p->mm_types,
        .image = {p->n_images, (const int32_t *)p->image_grids, v->image_patches},
        .video = {p->n_videos, (const int32_t *)p->video_grids, v->video_patches},
    };
}

static void mix_media(h3_memo_key *k, const h3_encoder_media *m, int64_t n_rows, int64_t row_size)
{
    h3_memo_mix(k, m->grid, (size_t)m->n * 3 * sizeof *m->grid);
    h3_memo_mix(k, m->patches, (size_t)(n_rows * row_size) * sizeof(float));
}

/* Everything the conditioner sees, and what it is. */
static h3_memo_key embeds_key(const h3_job *j, const h3_checkpoint *ck, const h3_encoder_in *in)
{
    const h3_vision *v = &j->vision;
    h3_memo_key k = h3_memo_start(h3_ckpt_identity(ck));
    const size_t n = (size_t)in->n_rows;

    h3_memo_mix(&k, &j->e->act, sizeof j->e->act);
    h3_memo_mix(&k, in->ids, n * sizeof *in->ids);
    h3_memo_mix(&k, in->positions, 3 * n * sizeof *in->positions);
    h3_memo_mix(&k, in->mm, n);
    mix_media(&k, &in->image, v->n_image_rows, h3_patch_row_size(&v->image));
    mix_media(&k, &in->video, v->n_video_rows, h3_patch_row_size(&v->video));
    return k;
}

/* The embeddings of the request before, when nothing that makes them has changed. */
static bool recall_embeds(h3_job *j, h3_memo_key key, int64_t n_rows)
{
    const h3_memo *m = &j->e->embeds;
    const size_t row = (size_t)n_rows * h3_dtype_bytes((h3_dtype)j->e->act);
    void *host;

    if (!m->data || m->bytes % row || !(host = malloc(m->bytes))) return false;
    if (!h3_memo_recall(m, key, host, m->bytes)) {
        free(host);
        return false;
    }
    j->embeds = h3_tensor_2d(host, (h3_dtype)j->e->act, n_rows, (int64_t)(m->bytes / row));
    return true;
}

typedef struct layers_user {
    h3_job *j;
    double last; ///< when the layer before ended
} layers_user;

static void layer_done(void *user, int64_t done, int64_t total)
{
    layers_user *u = user;
    const double now = h3_now();

    h3_job_step(u->j, done, total, now - u->last);
    u->last = now;
}

static size_t bytes_of(h3_tensor t)
{
    return (size_t)h3_numel(t) * h3_dtype_bytes((h3_dtype)t.dtype);
}

/* The conditioner of an open part, to j->embeds. */
static h3_status compute_embeds(h3_job *j, h3_encoder *enc, const h3_encoder_in *in)
{
    h3_engine *e = j->e;
    const h3_dtype act = (h3_dtype)e->act;
    const int64_t ne[2] = {in->n_rows, h3_encoder_width(enc)};
    h3_tensor out = {0};
    size_t bytes = 0;
    void *host = NULL;
    h3_status st;

    H3_TRY(h3_encoder_scratch_bytes(enc, in, &bytes));
    H3_TRY(h3_dev_scratch(e->dev, bytes));
    if (bytes > j->rs->scratch_bytes) j->rs->scratch_bytes = bytes;
    st = h3_dev_alloc(e->dev, &out, act, 2, ne);
    if (st == H3_OK) st = h3_job_name_stage(h3_encoder_run(enc, in, out), "text encoder");
    if (st == H3_OK) {
        host = malloc(bytes_of(out));
        st = host ? h3_dev_download(e->dev, host, out)
                  : h3_fail(H3_E_NOMEM, "no memory for prompt embeddings");
        j->embeds = h3_tensor_2d(host, act, ne[0], ne[1]);
        h3_tap(e->dev, out, "prompt_embeds");
    }
    h3_dev_free(e->dev, &out);
    return st;
}

static h3_status run_encoder(h3_job *j)
{
    h3_engine *e = j->e;
    const h3_part_how how = {.has_vision = j->prompt.n_images + j->prompt.n_videos > 0};
    const h3_encoder_in in = h3_job_encoder_in(j);
    const bool keeps = e->keeps && !e->dev->tap;
    layers_user layers = {j, h3_now()};
    h3_memo_key key = {0, 0};
    h3_part *p = NULL;
    h3_status st;

    st = h3_part_open(&p, e, e->dev, H3_PART_TEXT, how);
    if (st == H3_OK) st = check_markers(j, p->ck);
    if (st == H3_OK && keeps) key = embeds_key(j, p->ck, &in);
    if (st == H3_OK && !(keeps && recall_embeds(j, key, in.n_rows))) {
        st = h3_part_bind(p, e);
        if (st == H3_OK) {
            h3_encoder_watch(p->net.encoder, layer_done, &layers);
            st = compute_embeds(j, p->net.encoder, &in);
            h3_encoder_watch(p->net.encoder, NULL, NULL);
        }
        if (keeps && st == H3_OK)
            h3_memo_keep(&e->embeds, key, j->embeds.data, bytes_of(j->embeds));
    }
    h3_part_leave(&p, e, st);
    return st;
}

/* The packed sequence wants the tags as int32. */
static h3_status lay_out(h3_job *j)
{
    const int64_t n = j->prompt.n_rows;
    int32_t *tags = h3_malloc_2(sizeof *tags, n + 1, 1);
    h3_status st;

    if (!tags) return h3_fail(H3_E_NOMEM, "no memory for %lld text rows", (long long)n);
    for (int64_t i = 0; i < n; i++)
        tags[i] = j->prompt.tags[i];
    st = h3_plan_layout(&j->layout, j->plan, tags, n);
    free(tags);
    return st;
}

h3_status h3_job_present(h3_job *j)
{
    const char *text = j->rq->prompt ? j->rq->prompt : "";
    const h3_vision *v = &j->vision;

    H3_TRY(h3_vision_create(&j->vision, j->e->model.processor, j->plan, j->prepared));
    const h3_prompt_in in = {.task = prompt_task(j->task),
                             .text = text,
                             .n_bytes = strlen(text),
                             .refs = v->refs,
                             .n_refs = v->n_refs,
                             .merge_size = v->image.merge,
                             .temporal_patch = v->video.temporal_patch};
    H3_TRY(h3_prompt_build(&j->prompt, j->e->tok, &in));
    return lay_out(j);
}

h3_status h3_job_text(h3_job *j)
{
    h3_status st = H3_OK;

    if (!j->layout) st = h3_job_present(j);
    if (st == H3_OK && h3_job_is_first(j)) st = run_encoder(j);
    if (st == H3_OK) st = h3_job_share_text(j);
    if (st == H3_OK) st = h3_job_check_embeds(j);
    h3_vision_free(&j->vision); // the patches are not needed again
    return st;
}
