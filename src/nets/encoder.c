/**
 * The conditioner's door: checks a request, prepares its tables on the host, runs the vision tower
 * once per kind of media and the text tower once. The scratch size comes from the same forward on a
 * counting device, so it cannot drift from what the forward takes.
 */
#include "encoder.h"

#include <stdlib.h>
#include <string.h>

#include "encoder_tables.h"
#include "encoder_text.h"

enum { N_KINDS = 2 };
static const char *const kind_name[N_KINDS] = {"image", "video"};

struct h3_encoder {
    h3_dev *d;
    h3_store *store;
    h3_dtype act;
    bool has_vision;
    int text_group; ///< first group of the text tower; the vision tower's start at 0
    h3_encoder_text text;
    h3_encoder_vision vision;
};

/** Host memory of one run; alive until the device has been synchronised. */
typedef struct request {
    h3_encoder_vision_tables table[N_KINDS];
    int32_t *row[N_KINDS]; ///< where each kind's merged rows go
    float *cos, *sin;      ///< [S, D / 2]
    int32_t cu[2];
} request;

void h3_encoder_watch(h3_encoder *e, h3_layers_fn progress, void *user)
{
    e->text.progress = progress;
    e->text.progress_user = user;
}

h3_status h3_encoder_open(h3_encoder **out, h3_checkpoint *ck, h3_dev *d,
                          const h3_encoder_opts *opts)
{
    const int32_t select = opts->select > 0 ? opts->select : H3_ENCODER_SELECT;
    h3_encoder *e = calloc(1, sizeof *e);
    h3_status st;

    *out = NULL;
    if (!e) return h3_fail(H3_E_NOMEM, "no memory for the conditioner");
    e->d = d;
    e->act = opts->act;
    e->has_vision = opts->has_vision;
    if ((st = h3_encoder_text_bind(&e->text, ck, d, select)) != H3_OK) goto fail;
    h3_encoder_watch(e, opts->progress, opts->progress_user);
    if (e->has_vision)
        st = h3_encoder_vision_bind(&e->vision, ck, d, e->text.width);
    else
        h3_ckpt_ignore(ck, "model.visual.*");
    if (st != H3_OK) goto fail;
    if ((st = h3_store_create(&e->store, d)) != H3_OK) goto fail;
    if (e->has_vision) {
        if ((st = h3_encoder_vision_store(&e->vision, e->store, 0)) != H3_OK) goto fail;
        e->text_group = e->vision.depth;
    }
    if ((st = h3_encoder_text_store(&e->text, e->store, e->text_group)) != H3_OK) goto fail;
    *out = e;
    return H3_OK;

fail:
    h3_encoder_close(&e);
    return st;
}

void h3_encoder_close(h3_encoder **ep)
{
    h3_encoder *e = ep ? *ep : NULL;

    if (!e) return;
    h3_store_free(&e->store);
    h3_encoder_text_free(&e->text, e->d);
    h3_encoder_vision_free(&e->vision, e->d);
    free(e);
    *ep = NULL;
}

int64_t h3_encoder_width(const h3_encoder *e)
{
    return e->text.width;
}

int32_t h3_encoder_layers(const h3_encoder *e)
{
    return e->text.n_layers;
}

/* ---- a request on the host ---- */

static const h3_encoder_media *media_of(const h3_encoder_in *in, int kind)
{
    return kind == 0 ? &in->image : &in->video;
}

static h3_status check_ids(const h3_encoder *e, const h3_encoder_in *in)
{
    for (int64_t s = 0; s < in->n_rows; s++) {
        if (in->ids[s] < 0 || in->ids[s] >= e->text.vocab)
            return h3_fail(H3_E_ARG, "token %lld is %d; the vocabulary has %lld rows", (long long)s,
                           in->ids[s], (long long)e->text.vocab);
        for (int a = 0; a < 3; a++)
            if (in->positions[a * in->n_rows + s] < 0)
                return h3_fail(H3_E_ARG, "row %lld has a negative position", (long long)s);
    }
    return H3_OK;
}

/* The rows marked kind + 1, in order; as many as that kind has merged rows. */
static h3_status find_rows(const h3_encoder_in *in, int kind, int64_t want, int32_t **out)
{
    int64_t n = 0;

    for (int64_t s = 0; s < in->n_rows; s++)
        n += in->mm[s] == kind + 1;
    if (n != want)
        return h3_fail(H3_E_ARG, "the text has %lld %s pads, but the %ss give %lld rows",
                       (long long)n, kind_name[kind], kind_name[kind], (long long)want);
    if (n == 0) return H3_OK;
    *out = malloc((size_t)n * sizeof **out);
    if (!*out) return h3_fail(H3_E_NOMEM, "no memory for row numbers");
    n = 0;
    for (int64_t s = 0; s < in->n_rows; s++)
        if (in->mm[s] == kind + 1) (*out)[n++] = (int32_t)s;
    return H3_OK;
}

static h3_status prepare_rotary(const h3_encoder *e, const h3_encoder_in *in, request *r)
{
    const int64_t half = e->text.head_dim / 2;

    r->cos = calloc((size_t)in->n_rows, (size_t)half * sizeof *r->cos);
    r->sin = calloc((size_t)in->n_rows, (size_t)half * sizeof *r->sin);
    if (!r->cos || !r->sin) return h3_fail(H3_E_NOMEM, "no memory for rotary tables");
    h3_encoder_mrope(r->cos, r->sin, e->text.inv_freq, e->text.axis, half, in->positions,
                     in->n_rows);
    return H3_OK;
}

static h3_status prepare(const h3_encoder *e, const h3_encoder_in *in, bool is_plan, request *r)
{
    const bool has_media = in->image.n > 0 || in->video.n > 0;

    if (in->n_rows < 1 || in->n_rows > INT32_MAX / 4)
        return h3_fail(H3_E_ARG, "a prompt of %lld tokens cannot be encoded",
                       (long long)in->n_rows);
    if (has_media && !e->has_vision)
        return h3_fail(H3_E_ARG, "media was given to a conditioner opened without vision");
    r->cu[1] = (int32_t)in->n_rows;
    if (!is_plan) {
        H3_TRY(check_ids(e, in));
        H3_TRY(h3_poison_rows(&e->text.embed, in->ids, in->n_rows));
        H3_TRY(prepare_rotary(e, in, r));
    }
    for (int k = 0; has_media && k < N_KINDS; k++) {
        const h3_encoder_media *m = media_of(in, k);

        if (m->n > 0) H3_TRY(h3_encoder_vision_prepare(&e->vision, m, is_plan, &r->table[k]));
        if (!is_plan)
            H3_TRY(find_rows(in, k, r->table[k].n_patches / e->vision.merge_rows, &r->row[k]));
    }
    return H3_OK;
}

static void request_free(request *r)
{
    for (int k = 0; k < N_KINDS; k++) {
        h3_encoder_vision_tables_free(&r->table[k]);
        free(r->row[k]);
    }
    free(r->cos);
    free(r->sin);
}

/* ---- forward ---- */

/* A rotary table in the dtype of the stream: bf16 runs rotate with rounded cos and sin. */
static h3_status upload_rotary(h3_dev *d, h3_dtype act, const float *src, h3_tensor f32,
                               h3_tensor *out, const char *name)
{
    H3_TRY(h3_dev_upload(d, f32, src));
    h3_tap(d, f32, "text/%s", name);
    *out = f32;
    if (act == H3_F32) return H3_OK;
    *out = h3_scratch(d, act, 2, f32.ne);
    H3_TRY(h3_scratch_check(d, "rotary tables"));
    return d->ops->copy(d, *out, f32);
}

/* Vision first: what it leaves behind is small and stays below everything else in the arena. */
static h3_status run_vision(const h3_encoder *e, h3_dev *d, h3_store *store,
                            const h3_encoder_in *in, const request *r, h3_encoder_seen *seen,
                            h3_encoder_insert *insert, int *n_insert)
{
    for (int k = 0; k < N_KINDS; k++) {
        const h3_encoder_media *m = media_of(in, k);
        h3_encoder_insert *to = &insert[*n_insert];

        if (m->n <= 0) continue;
        h3_encoder_vision_carve(&e->vision, d, e->act, &r->table[k], &seen[k]);
        to->index = h3_scratch_1d(d, H3_I32, seen[k].n_rows);
        to->seen = &seen[k];
        H3_TRY(h3_scratch_check(d, "vision rows"));
        H3_TRY(h3_dev_upload(d, to->index, r->row[k]));
        H3_TRY(h3_encoder_vision_forward(&e->vision, d, store, 0, e->act, kind_name[k], m->patches,
                                         &r->table[k], &seen[k]));
        ++*n_insert;
    }
    return H3_OK;
}

static h3_status forward(const h3_encoder *e, h3_dev *d, h3_store *store, const h3_encoder_in *in,
                         const request *r, h3_tensor out)
{
    const int64_t S = in->n_rows, half = e->text.head_dim / 2;
    h3_encoder_seen seen[N_KINDS];
    h3_encoder_insert insert[N_KINDS];
    int n_insert = 0;
    h3_tensor ids, cos32, sin32, cos, sin;

    memset(seen, 0, sizeof seen);
    memset(insert, 0, sizeof insert);
    H3_TRY(run_vision(e, d, store, in, r, seen, insert, &n_insert));
    ids = h3_scratch_1d(d, H3_I32, S);
    cos32 = h3_scratch_2d(d, H3_F32, S, half);
    sin32 = h3_scratch_2d(d, H3_F32, S, half);
    H3_TRY(h3_scratch_check(d, "text tower"));
    H3_TRY(h3_dev_upload(d, ids, in->ids));
    H3_TRY(upload_rotary(d, e->act, r->cos, cos32, &cos, "rope_cos"));
    H3_TRY(upload_rotary(d, e->act, r->sin, sin32, &sin, "rope_sin"));
    return h3_encoder_text_forward(&e->text, d, store, e->text_group, out, ids, cos, sin, r->cu,
                                   insert, n_insert, e->vision.n_deep);
}

/* What the text layers' matrices will see. Their MLPs take rows in bands, the last of any length,
 * so that products in e4m3 are not for sure. */
static void tell_store(const h3_encoder *e)
{
    for (int32_t i = 0; i < e->text.n_layers; i++)
        h3_store_meets(e->store, e->text_group + 1 + i, e->act, 1, false);
}

int64_t h3_encoder_saved(const h3_encoder *e, size_t *on_the_way)
{
    return h3_store_saved(e->store, on_the_way);
}

h3_status h3_encoder_scratch_bytes(const h3_encoder *e, const h3_encoder_in *in, size_t *bytes)
{
    request r;
    h3_dev *plan = NULL;
    h3_tensor out;
    h3_status st;

    *bytes = 0;
    memset(&r, 0, sizeof r);
    if ((st = prepare(e, in, true, &r)) != H3_OK) goto done;
    if (e->d->is_plan) tell_store(e);
    if ((st = h3_dev_open(&plan, "plan", NULL)) != H3_OK) goto done;
    out = h3_tensor_2d(&r, e->act, in->n_rows, e->text.width); // an address; nothing is written
    st = forward(e, plan, NULL, in, &r, out);
    *bytes = plan->scratch.peak;

done:
    h3_dev_close(&plan);
    request_free(&r);
    return st;
}

h3_status h3_encoder_run(h3_encoder *e, const h3_encoder_in *in, h3_tensor out)
{
    h3_dev *d = e->d;
    const size_t mark = h3_arena_mark(&d->scratch);
    request r;
    h3_status st, synced;

    if (out.rank != 2 || out.ne[0] != in->n_rows || out.ne[1] != e->text.width ||
        out.dtype != e->act || !h3_is_dense(out))
        return h3_fail(H3_E_SHAPE, "prompt_embeds is %s; expected a dense [%lld, %lld] %s",
                       h3_tensor_desc(out), (long long)in->n_rows, (long long)e->text.width,
                       h3_dtype_name(e->act));
    memset(&r, 0, sizeof r);
    st = prepare(e, in, false, &r);
    tell_store(e);
    if (st == H3_OK) st = forward(e, d, e->store, in, &r, out);
    synced = h3_dev_sync(d); // the tables below are read until here
    if (st == H3_OK) st = synced;
    h3_arena_release(&d->scratch, mark);
    request_free(&r);
    return st;
}
