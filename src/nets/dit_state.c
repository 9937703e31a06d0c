/**
 * What a request fixes for all its forwards: index lists, rotation tables, refined text,
 * modulation.
 *
 * Everything that comes from the caller is checked here once, so that the forward can trust it:
 * each row of the sequence belongs to exactly one index list, every modulation row exists,
 * documents cover the sequence.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "dit.h"
#include "size.h"

/* ---- checks ---- */

static h3_status claim_rows(uint8_t *is_taken, int64_t S, const int32_t *rows, int64_t n,
                            const char *what)
{
    for (int64_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= S)
            return h3_fail(H3_E_ARG, "%s row %lld is %d, outside a sequence of %lld", what,
                           (long long)i, rows[i], (long long)S);
        if (is_taken[rows[i]]++)
            return h3_fail(H3_E_ARG, "%s row %lld: row %d of the sequence is used twice", what,
                           (long long)i, rows[i]);
    }
    return H3_OK;
}

static h3_status check_rows(const h3_dit_request *r)
{
    uint8_t *is_taken;
    h3_status st;

    if (r->n_video < 1 || r->n_audio < 1 || r->n_text < 1 ||
        r->n_video + r->n_audio + r->n_text != r->n_rows)
        return h3_fail(H3_E_ARG, "%lld video, %lld audio and %lld text rows do not make %lld",
                       (long long)r->n_video, (long long)r->n_audio, (long long)r->n_text,
                       (long long)r->n_rows);
    is_taken = calloc((size_t)r->n_rows, 1);
    if (!is_taken) return h3_fail(H3_E_NOMEM, "no memory to check rows");
    st = claim_rows(is_taken, r->n_rows, r->video_indices, r->n_video, "video");
    if (st == H3_OK) st = claim_rows(is_taken, r->n_rows, r->audio_indices, r->n_audio, "audio");
    if (st == H3_OK) st = claim_rows(is_taken, r->n_rows, r->text_indices, r->n_text, "text");
    free(is_taken);
    return st;
}

static h3_status check_documents(const int32_t *cu, int n, int64_t rows, const char *what)
{
    if (!cu) return H3_OK;
    if (n < 1 || cu[0] != 0 || cu[n] != rows)
        return h3_fail(H3_E_ARG, "%s documents do not cover %lld rows", what, (long long)rows);
    for (int i = 0; i < n; i++)
        if (cu[i] > cu[i + 1])
            return h3_fail(H3_E_ARG, "%s document %d ends before it starts", what, i);
    return H3_OK;
}

static h3_status check_times(const h3_dit_request *r)
{
    if (r->n_steps < 1 || r->n_timesteps < 1 || r->n_timesteps > INT32_MAX / 18)
        return h3_fail(H3_E_ARG, "%lld steps with %lld distinct timesteps", (long long)r->n_steps,
                       (long long)r->n_timesteps);
    for (int64_t u = 0; u < r->n_timesteps; u++)
        if (!(r->timesteps[u] >= 0.0f && r->timesteps[u] <= 1.0f))
            return h3_fail(H3_E_ARG, "timestep %lld is %g, expected 0..1", (long long)u,
                           (double)r->timesteps[u]);
    for (int64_t i = 0; i < r->n_steps * r->n_rows; i++)
        if (r->mod_row[i] < 0 || r->mod_row[i] >= 3 * r->n_timesteps)
            return h3_fail(H3_E_ARG, "row %lld of step %lld uses modulation row %d of %lld",
                           (long long)(i % r->n_rows), (long long)(i / r->n_rows), r->mod_row[i],
                           (long long)(3 * r->n_timesteps));
    return H3_OK;
}

static h3_status check_request(const h3_dit *m, const h3_dit_request *r)
{
    if (r->act != H3_F32 && r->act != H3_BF16)
        return h3_fail(H3_E_ARG, "the DiT runs in F32 or BF16, not in %s",
                       h3_dtype_name((h3_dtype)r->act));
    if (r->n_rows < 1 || r->n_rows > INT32_MAX / 4)
        return h3_fail(H3_E_ARG, "a sequence of %lld rows", (long long)r->n_rows);
    if (r->text.rank != 2 || r->text.ne[0] != r->n_text || r->text.ne[1] != m->dims.text_dim)
        return h3_fail(H3_E_SHAPE, "text embeddings are %s, expected [%lld, %lld]",
                       h3_tensor_desc(r->text), (long long)r->n_text, (long long)m->dims.text_dim);
    if (r->text.dtype != H3_F32 && r->text.dtype != H3_BF16 && r->text.dtype != H3_F16)
        return h3_fail(H3_E_ARG, "text embeddings are %s, expected F32, BF16 or F16",
                       h3_dtype_name((h3_dtype)r->text.dtype));
    H3_TRY(check_rows(r));
    H3_TRY(check_documents(r->cu, r->n_documents, r->n_rows, "sequence"));
    H3_TRY(check_documents(r->refiner_cu, r->n_refiner_documents, r->n_text, "text"));
    return check_times(r);
}

/* ---- shares of the ranks ---- */

/* The part of an ascending list of rows that lies on each rank. */
static h3_status share_list(h3_dit_share *out, const h3_comm *c, int64_t S, const int32_t *rows,
                            int64_t n, const char *what)
{
    const int P = h3_comm_size(c), me = h3_comm_rank(c);

    for (int64_t i = 1; P > 1 && i < n; i++)
        if (rows[i] < rows[i - 1])
            return h3_fail(H3_E_UNSUPPORTED,
                           "%s rows are not in the order of the sequence (row %lld): such a "
                           "request runs on one rank only",
                           what, (long long)i);
    out->at = calloc((size_t)P + 1, sizeof *out->at);
    if (!out->at) return h3_fail(H3_E_NOMEM, "no memory for the shares of %d ranks", P);
    for (int r = 1; r < P; r++) {
        out->at[r] = out->at[r - 1];
        while (out->at[r] < n && rows[out->at[r]] < h3_comm_first(c, S, r))
            out->at[r]++;
    }
    out->at[P] = n;
    out->first = out->at[me];
    out->n = out->at[me + 1] - out->at[me];
    return H3_OK;
}

static void share_sequence(h3_dit_state *s)
{
    const h3_comm *c = s->dev->comm;
    const int me = h3_comm_rank(c);

    s->own.first = h3_comm_first(c, s->n_rows, me);
    s->own.n = h3_comm_first(c, s->n_rows, me + 1) - s->own.first;
}

static h3_status share_rows(h3_dit_state *s, const h3_dit_request *r)
{
    const h3_comm *c = s->dev->comm;
    const int64_t S = s->n_rows;

    H3_TRY(share_list(&s->own_video, c, S, r->video_indices, s->n_video, "video"));
    H3_TRY(share_list(&s->own_audio, c, S, r->audio_indices, s->n_audio, "audio"));
    return share_list(&s->own_text, c, S, r->text_indices, s->n_text, "text");
}

/* A dry run knows counts only: as much of each medium as a rank could have. */
static void share_at_most(h3_dit_state *s)
{
    const struct {
        h3_dit_share *own;
        int64_t n;
    } all[] = {{&s->own_video, s->n_video}, {&s->own_audio, s->n_audio}, {&s->own_text, s->n_text}};

    for (int i = 0; i < 3; i++)
        *all[i].own = (h3_dit_share){.n = all[i].n < s->own.n ? all[i].n : s->own.n};
}

/* ---- memory ---- */

typedef struct slot {
    h3_tensor *t;
    h3_dtype dtype;
    int rank;
    int64_t ne[4];
} slot;

enum { N_SLOTS = 12 };

static void list_slots(slot out[N_SLOTS], h3_dit_state *s, const h3_dit *m)
{
    const h3_dtype act = (h3_dtype)s->act;
    const int64_t S = s->own.n, C = m->dims.hidden, R = 3 * m->dims.rope_freqs;
    const int64_t U = s->n_timesteps;
    const slot all[N_SLOTS] = {
        {&s->text, act, 2, {s->n_text, C}},
        {&s->cos, act, 2, {S, R}},
        {&s->sin, act, 2, {S, R}},
        {&s->mod, act, 4, {m->dims.n_layers, 3 * U, 6, C}},
        {&s->final_mod, act, 3, {U, 2, C}},
        {&s->video_idx, H3_I32, 1, {s->own_video.n}},
        {&s->audio_idx, H3_I32, 1, {s->own_audio.n}},
        {&s->text_idx, H3_I32, 1, {s->own_text.n}},
        {&s->mod_row, H3_I32, 2, {s->n_steps, S}},
        {&s->time_row, H3_I32, 2, {s->n_steps, S}},
        {&s->row, H3_I32, 1, {S}},
        {&s->time, H3_I32, 1, {S}},
    };
    memcpy(out, all, sizeof all);
}

static h3_status allocate(h3_dev *d, const h3_dit *m, h3_dit_state *s)
{
    slot slots[N_SLOTS];

    list_slots(slots, s, m);
    for (int i = 0; i < N_SLOTS; i++)
        if (!(s->is_mod_kept && (slots[i].t == &s->mod || slots[i].t == &s->final_mod)))
            H3_TRY(h3_dev_alloc(d, slots[i].t, slots[i].dtype, slots[i].rank, slots[i].ne));
    return H3_OK;
}

static void take_counts(h3_dit_state *s, const h3_dit_request *r)
{
    s->act = r->act;
    s->n_rows = r->n_rows;
    s->n_video = r->n_video;
    s->n_audio = r->n_audio;
    s->n_text = r->n_text;
    s->n_steps = r->n_steps;
    s->n_timesteps = r->n_timesteps;
}

/* ---- index lists ---- */

/* Own rows of a medium, counted from our first row of the sequence. */
static h3_status set_list(h3_dev *d, h3_tensor dst, const int32_t *rows, const h3_dit_share *own,
                          int64_t first, int32_t *work)
{
    for (int64_t i = 0; i < own->n; i++)
        work[i] = rows[own->first + i] - (int32_t)first;
    H3_TRY(h3_dev_upload(d, dst, work));
    return h3_dev_sync(d);
}

/* Columns [own] of mod_row [n_steps, S], and their timesteps. */
static h3_status set_row_tables(h3_dev *d, h3_dit_state *s, const int32_t *mod_row, int32_t *work)
{
    const int64_t n = s->own.n;

    for (int64_t i = 0; i < s->n_steps * n; i++)
        work[i] = mod_row[i / n * s->n_rows + s->own.first + i % n];
    H3_TRY(h3_dev_upload(d, s->mod_row, work));
    H3_TRY(h3_dev_sync(d));
    for (int64_t i = 0; i < s->n_steps * n; i++)
        work[i] /= 3;
    H3_TRY(h3_dev_upload(d, s->time_row, work));
    return h3_dev_sync(d);
}

static h3_status set_indices(h3_dev *d, h3_dit_state *s, const h3_dit_request *r)
{
    const int64_t first = s->own.first;
    int32_t *work = malloc((size_t)(r->n_steps * s->own.n + 1) * sizeof *work);
    h3_status st;

    if (!work) return h3_fail(H3_E_NOMEM, "no memory for row timesteps");
    st = set_row_tables(d, s, r->mod_row, work);
    if (st == H3_OK) st = set_list(d, s->video_idx, r->video_indices, &s->own_video, first, work);
    if (st == H3_OK) st = set_list(d, s->audio_idx, r->audio_indices, &s->own_audio, first, work);
    if (st == H3_OK) st = set_list(d, s->text_idx, r->text_indices, &s->own_text, first, work);
    free(work);
    return st;
}

static h3_status set_documents(h3_dit_state *s, const h3_dit_request *r)
{
    s->n_documents = r->cu ? r->n_documents : 1;
    s->cu = calloc((size_t)s->n_documents + 1, sizeof *s->cu);
    if (!s->cu) return h3_fail(H3_E_NOMEM, "no memory for documents");
    if (r->cu)
        memcpy(s->cu, r->cu, ((size_t)s->n_documents + 1) * sizeof *s->cu);
    else
        s->cu[1] = (int32_t)r->n_rows;
    return H3_OK;
}

/* ---- rotation ---- */

/*
 * Angles of the three axes side by side, one shared frequency vector. Positions are built in double
 * and reach thousands: the angle is float32(position) * float32(frequency) rounded to f32, and
 * cosine and sine are those of that number. A product in double would be another rotation.
 */
static void rotation(float *cosines, float *sines, const double *positions, int64_t S,
                     const float *inv_freq, int64_t n)
{
    for (int64_t s = 0; s < S; s++)
        for (int64_t axis = 0; axis < 3; axis++)
            for (int64_t i = 0; i < n; i++) {
                const float angle = (float)positions[3 * s + axis] * inv_freq[i];
                const int64_t at = (3 * s + axis) * n + i;
                cosines[at] = cosf(angle);
                sines[at] = sinf(angle);
            }
}

/* A bf16 stream rounds the tables before they are used (op->copy converts). */
static h3_status set_table(h3_dev *d, h3_tensor dst, const float *host, const char *name)
{
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_tensor f32 = h3_scratch_2d(d, H3_F32, dst.ne[0], dst.ne[1]);
    h3_status st = h3_scratch_check(d, name);

    if (st == H3_OK && host) st = h3_dev_upload(d, f32, host);
    h3_tap(d, f32, "%s", name);
    if (st == H3_OK) st = d->ops->copy(d, dst, f32);
    if (st == H3_OK) st = h3_dev_sync(d);
    h3_arena_release(&d->scratch, mark);
    return st;
}

static h3_status set_rotation(h3_dev *d, const h3_dit *m, h3_dit_state *s, const double *positions)
{
    const size_t n = (size_t)h3_numel(s->cos);
    float *cosines = NULL;
    h3_status st;

    if (!d->is_plan) {
        cosines = malloc((2 * n + 1) * sizeof *cosines);
        if (!cosines) return h3_fail(H3_E_NOMEM, "no memory for rotary tables");
        rotation(cosines, cosines + n, positions + 3 * s->own.first, s->own.n, m->inv_freq,
                 m->dims.rope_freqs);
    }
    st = set_table(d, s->cos, cosines, "rope.cos");
    if (st == H3_OK) st = set_table(d, s->sin, cosines ? cosines + n : NULL, "rope.sin");
    free(cosines);
    return st;
}

/* ---- text ---- */

static h3_status refine(h3_dev *d, const h3_dit *m, h3_dit_state *s, const h3_dit_request *r)
{
    const int32_t whole[2] = {0, (int32_t)s->n_text};
    const int32_t *cu = r->refiner_cu ? r->refiner_cu : whole;
    const int n = r->refiner_cu ? r->n_refiner_documents : 1;
    h3_tensor given = h3_scratch_2d(d, (h3_dtype)r->text.dtype, s->n_text, m->dims.text_dim);
    h3_tensor text = h3_scratch_2d(d, (h3_dtype)s->act, s->n_text, m->dims.text_dim);

    H3_TRY(h3_scratch_check(d, "text rows"));
    if (r->text.data) H3_TRY(h3_dev_upload(d, given, r->text.data));
    H3_TRY(d->ops->copy(d, text, given));
    H3_TRY(h3_dit_refine(d, m, s->text, text, cu, n));
    return h3_dev_sync(d);
}

/* The condition projection and the refiner are used once a request: a store of their own, which
 * stays only for more requests and where everything fits. */
static h3_status set_text(h3_dev *d, const h3_dit *m, h3_dit_state *s, const h3_dit_request *r)
{
    const size_t mark = h3_arena_mark(&d->scratch);
    h3_store *store = d->is_plan ? NULL : m->text_store;
    h3_status st = store ? h3_store_acquire(store, 0) : H3_OK;

    if (st == H3_OK) {
        st = refine(d, m, s, r);
        if (store) h3_store_release(store, 0);
    }
    h3_arena_release(&d->scratch, mark);
    if (store && (!m->keeps || d->weight_budget || d->spreads_weights)) h3_store_drop(store);
    return st;
}

/* ---- doors ---- */

static h3_status prepare(h3_dev *d, const h3_dit *m, h3_dit_state *s, const h3_dit_request *r)
{
    share_sequence(s);
    H3_TRY(share_rows(s, r));
    const bool is_known = h3_dit_recall_mod(m, s, r->timesteps);
    if (!is_known) h3_dit_forget_mod((h3_dit *)(uintptr_t)m); // no two of them in memory
    H3_TRY(allocate(d, m, s));
    H3_TRY(set_documents(s, r));
    H3_TRY(set_indices(d, s, r));
    H3_TRY(set_rotation(d, m, s, r->positions));
    H3_TRY(set_text(d, m, s, r));
    if (is_known) return H3_OK;
    H3_TRY(h3_dit_modulate(d, m, s, r->timesteps));
    h3_dit_keep_mod(m, s, r->timesteps);
    return H3_OK;
}

/* What the blocks' matrices will see. */
static void tell_store(const h3_dit *m, const h3_dit_request *r)
{
    for (int i = 0; m->store && i < (int)m->dims.n_layers; i++)
        h3_store_meets(m->store, 1 + i, (h3_dtype)r->act, r->n_rows, false);
}

h3_status h3_dit_prepare(h3_dit_state **out, const h3_dit *m, const h3_dit_request *r)
{
    h3_dit_state *s;
    h3_status st;

    *out = NULL;
    H3_TRY(h3_attention_check(m->dev->comm, m->dims.n_heads));
    H3_TRY(check_request(m, r));
    s = calloc(1, sizeof *s);
    if (!s) return h3_fail(H3_E_NOMEM, "no memory for a request");
    s->dev = m->dev;
    s->store = m->store;
    take_counts(s, r);
    tell_store(m, r);
    if ((st = prepare(m->dev, m, s, r)) != H3_OK) {
        h3_dit_release(&s);
        return st;
    }
    *out = s;
    return H3_OK;
}

void h3_dit_release(h3_dit_state **ps)
{
    h3_dit_state *s = ps ? *ps : NULL;

    if (!s) return;
    h3_dev_free(s->dev, &s->text);
    h3_dev_free(s->dev, &s->cos);
    h3_dev_free(s->dev, &s->sin);
    if (!s->is_mod_kept) {
        h3_dev_free(s->dev, &s->mod);
        h3_dev_free(s->dev, &s->final_mod);
    }
    h3_dev_free(s->dev, &s->video_idx);
    h3_dev_free(s->dev, &s->audio_idx);
    h3_dev_free(s->dev, &s->text_idx);
    h3_dev_free(s->dev, &s->mod_row);
    h3_dev_free(s->dev, &s->time_row);
    h3_dev_free(s->dev, &s->row);
    h3_dev_free(s->dev, &s->time);
    if (s->replay.it) s->dev->forget(s->dev, s->replay.it);
    free(s->own_video.at);
    free(s->own_audio.at);
    free(s->own_text.at);
    free(s->cu);
    free(s);
    *ps = NULL;
}

/* Gives every slot an address that must not be touched, and sums up what they would take. */
static h3_status pretend(const h3_dit *m, h3_dit_state *s, size_t *kept)
{
    slot slots[N_SLOTS];

    list_slots(slots, s, m);
    *kept = 0;
    for (int i = 0; i < N_SLOTS; i++) {
        size_t bytes = h3_dtype_bytes(slots[i].dtype);
        for (int k = 0; k < slots[i].rank; k++)
            if (slots[i].ne[k] < 0 || !h3_mul_size(bytes, (size_t)slots[i].ne[k], &bytes))
                return h3_fail(H3_E_ARG, "a request of %lld rows is too large",
                               (long long)s->n_rows);
        *slots[i].t = h3_host_tensor((void *)64, slots[i].dtype, slots[i].rank, slots[i].ne);
        if (!h3_add_size(*kept, h3_align_up(bytes, 64), kept))
            return h3_fail(H3_E_ARG, "a request of %lld rows is too large", (long long)s->n_rows);
    }
    return H3_OK;
}

static h3_status dry_run(h3_dev *plan, const h3_dit *m, h3_dit_state *s, const h3_dit_request *r)
{
    const h3_dit_request counts = {.text = {.dtype = r->text.dtype}};
    int32_t cu[2] = {0, (int32_t)s->n_rows};
    h3_tensor video = h3_tensor_2d((void *)64, H3_F32, s->n_video, m->dims.video_cols);
    h3_tensor audio = h3_tensor_2d((void *)64, H3_F32, s->n_audio, m->dims.audio_cols);

    s->cu = cu;
    s->n_documents = 1;
    H3_TRY(set_rotation(plan, m, s, NULL));
    H3_TRY(set_text(plan, m, s, &counts));
    H3_TRY(h3_dit_modulate(plan, m, s, NULL));
    return h3_dit_forward(plan, m, s, 0, video, audio, video, audio);
}

h3_status h3_dit_scratch_bytes(const h3_dit *m, const h3_dit_request *r, size_t *scratch,
                               size_t *kept)
{
    h3_dit_state s = {0};
    h3_dev *plan;
    h3_status st;

    if (r->n_rows < 1 || r->n_rows > INT32_MAX / 4)
        return h3_fail(H3_E_ARG, "a sequence of %lld rows", (long long)r->n_rows);
    if (m->dev) H3_TRY(h3_attention_check(m->dev->comm, m->dims.n_heads));
    H3_TRY(h3_dev_open(&plan, "plan", NULL));
    plan->comm = m->dev ? m->dev->comm : NULL; // rows are shared out, nothing is sent
    take_counts(&s, r);
    if (m->dev && m->dev->is_plan) tell_store(m, r);
    s.dev = plan;
    share_sequence(&s);
    share_at_most(&s);
    st = pretend(m, &s, kept);
    if (st == H3_OK) st = dry_run(plan, m, &s, r);
    *scratch = plan->scratch.peak;
    if (m->dev && m->dev->is_plan) m->dev->window = plan->window; // of `kept`, shared by ranks
    if (st == H3_OK && !h3_add_size(*kept, plan->window, kept))
        st = h3_fail(H3_E_ARG, "a request of %lld rows is too large", (long long)r->n_rows);
    h3_dev_close(&plan);
    return st;
}
