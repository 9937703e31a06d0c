/**
 * The loop of sampler.h. The reference is diffusers' MiniMax-H3 denoise step with its scheduler:
 * the velocity points toward the data, x0 = x + (1 - t) v, and x moves to ratio * x + (1 - ratio) *
 * x0 with ratio = sigma_next / sigma. No noise is added, whatever a sampler's name suggests.
 */
#include "sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "blame.h"
#include "schedule_rows.h"
#include "size.h"

/* Rows of one medium on the device: all of them, and the generated part that steps. */
typedef struct medium {
    const char *name;
    const h3_schedule *schedule;
    h3_tensor rows, v; ///< [n, cols] f32
    h3_tensor moving, v_moving;
    int is_bad; ///< set by check_finite
} medium;

typedef struct run_state {
    h3_dev *d;
    const h3_dit *m;
    const h3_sampler_in *in;
    h3_schedule_rows table;
    h3_dit_state *dit;
    medium video, audio;
} run_state;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static h3_dit_request request_of(const h3_sampler_in *in, const h3_schedule_rows *table)
{
    const h3_layout *l = in->layout;
    h3_dit_request r = {
        .act = in->act,
        .n_rows = l->n_rows,
        .n_video = l->n_video,
        .n_audio = l->n_audio,
        .n_text = l->n_text,
        .video_indices = l->video_rows,
        .audio_indices = l->audio_rows,
        .text_indices = l->text_rows,
        .positions = l->positions,
        .cu = l->cu_seqlens,
        .n_documents = 1,
        .refiner_cu = l->refiner_cu_seqlens,
        .n_refiner_documents = 1,
        .text = in->prompt_embeds,
        .n_steps = table->n_steps,
        .n_timesteps = table->n_timesteps,
        .timesteps = table->timesteps,
        .mod_row = table->mod_row,
    };

    return r;
}

static h3_status open_medium(h3_dev *d, medium *x, int64_t n, int64_t n_pinned, int64_t cols,
                             const float *host)
{
    const int64_t ne[2] = {n, cols};

    if (n_pinned < 0 || n_pinned >= n)
        return h3_fail(H3_E_ARG, "%lld of %lld %s rows are conditions: nothing to generate",
                       (long long)n_pinned, (long long)n, x->name);
    H3_TRY(h3_dev_alloc(d, &x->rows, H3_F32, 2, ne));
    H3_TRY(h3_dev_alloc(d, &x->v, H3_F32, 2, ne));
    x->moving = h3_slice(x->rows, 0, n_pinned, n - n_pinned);
    x->v_moving = h3_slice(x->v, 0, n_pinned, n - n_pinned);
    return h3_dev_upload(d, x->rows, host);
}

static void close_medium(h3_dev *d, medium *x)
{
    h3_dev_free(d, &x->rows);
    h3_dev_free(d, &x->v);
}

/* A run that goes on takes the table of the whole schedule all the same: products with fewer rows
 * may be summed in another order, and then it would not go on bit for bit. */
static h3_status check_first(const h3_sampler_in *in)
{
    if (in->first_step >= 0 && in->first_step < in->video->n_steps) return H3_OK;
    return h3_fail(H3_E_ARG, "first step is %d, the schedule has steps 0..%d", in->first_step,
                   in->video->n_steps - 1);
}

/* Rows, scratch, and everything the DiT can know before the first step. */
static h3_status prepare(run_state *k)
{
    const h3_sampler_in *in = k->in;
    const h3_layout *l = in->layout;
    h3_dit_request r;
    size_t scratch, kept;

    H3_TRY(check_first(in));
    H3_TRY(h3_schedule_rows_init(&k->table, l, in->video, in->audio, 0, true));
    r = request_of(in, &k->table);
    H3_TRY(h3_dit_scratch_bytes(k->m, &r, &scratch, &kept));
    H3_TRY(h3_dev_scratch(k->d, scratch));
    H3_TRY(open_medium(k->d, &k->video, l->n_video, l->n_condition_video, k->m->dims.video_cols,
                       in->video_rows));
    H3_TRY(open_medium(k->d, &k->audio, l->n_audio, l->n_condition_audio, k->m->dims.audio_cols,
                       in->audio_rows));
    return h3_dit_prepare(&k->dit, k->m, &r);
}

static h3_status move(h3_dev *d, medium *x, int step)
{
    const h3_euler e = h3_sigma_euler(x->schedule, step);

    H3_TRY(d->ops->flow_step(d, x->moving, x->v_moving, e.back, e.ratio));
    h3_tap(d, x->moving, "%s_rows", x->name);
    return H3_OK;
}

/* Velocities of all rows to every rank: a few megabytes, after which each goes on as if it were
 * alone. Rows never travel, so they are whole whenever a run is stopped. */
static h3_status gather(h3_dev *d, medium *x, const h3_dit_share *share)
{
    const size_t row = (size_t)x->v.ne[1] * sizeof(float);
    size_t bytes[H3_COMM_MAX];

    for (int r = 0; r < h3_comm_size(d->comm); r++)
        bytes[r] = (size_t)(share->at[r + 1] - share->at[r]) * row;
    H3_TRY(h3_comm_all_gather(d->comm, d, x->v.data, bytes));
    h3_tap(d, x->v_moving, "velocity_%s", x->name);
    return d->ops->check_finite(d, x->v_moving, &x->is_bad);
}

static h3_status forward(run_state *k, int step)
{
    return h3_dit_forward(k->d, k->m, k->dit, step, k->video.v, k->audio.v, k->video.rows,
                          k->audio.rows);
}

/* What the step is given: a bad weight may have spoiled it before the first step. */
static void show_inputs(const run_state *k)
{
    h3_tap(k->d, k->dit->text, "token_refiner.final_norm");
    for (int64_t i = 0; i < k->m->dims.n_layers; i++)
        h3_tap(k->d, h3_at(k->dit->mod, i), "blocks.%lld.adaln", (long long)i);
    h3_tap(k->d, k->dit->final_mod, "final_layer.adaln");
    h3_tap(k->d, k->video.rows, "video_rows");
    h3_tap(k->d, k->audio.rows, "audio_rows");
}

/* Rows are not moved by velocities that are no numbers, so the step can be run again, watched. */
static h3_status explain_step(run_state *k, int step)
{
    const char *name = k->video.is_bad ? k->video.name : k->audio.name;
    char where[H3_BLAME_NAME] = "";

    if (h3_comm_size(k->d->comm) == 1) {
        const h3_blame b = h3_blame_begin(k->d, where);
        show_inputs(k);
        const h3_status st = forward(k, step);
        h3_blame_end(k->d, &b);
        H3_TRY(st);
        if (!where[0]) snprintf(where, sizeof where, "nothing when the step is run again");
    }
    return h3_fail(H3_E_NUMERIC, "step %d: the %s velocity holds NaN or infinity%s%s", step, name,
                   where[0] ? "; the first to hold it is " : "", where);
}

static h3_status take_step(run_state *k, int step)
{
    h3_dev *d = k->d;

    H3_TRY(h3_dev_check(d));
    H3_TRY(forward(k, step));
    H3_TRY(gather(d, &k->video, &k->dit->own_video));
    H3_TRY(gather(d, &k->audio, &k->dit->own_audio));
    H3_TRY(h3_dev_sync(d)); // the flags are valid from here on
    if (k->video.is_bad || k->audio.is_bad) return explain_step(k, step);
    H3_TRY(move(d, &k->video, step));
    return move(d, &k->audio, step);
}

/* Names taps of the step "step<i>." behind whatever prefix the device already has. */
static h3_status take_named_step(run_state *k, int step)
{
    h3_dev *d = k->d;
    char saved[sizeof d->tap_prefix];
    h3_status st;

    memcpy(saved, d->tap_prefix, sizeof saved);
    const size_t n = strlen(saved);
    snprintf(d->tap_prefix + n, sizeof saved - n, "step%d.", step);
    st = take_step(k, step);
    memcpy(d->tap_prefix, saved, sizeof saved);
    return st;
}

static h3_sampler_step describe(const run_state *k, int step, double seconds)
{
    const h3_sampler_in *in = k->in;

    return (h3_sampler_step){
        .step = step,
        .n_steps = in->video->n_steps,
        .seconds = seconds,
        .dev = k->d,
        .times =
            h3_layout_times(in->layout, in->video->timesteps[step], in->audio->timesteps[step]),
        .video = k->video.moving,
        .audio = k->audio.moving,
        .v_video = k->video.v_moving,
        .v_audio = k->audio.v_moving,
    };
}

static h3_status report(const run_state *k, int step, double seconds)
{
    const h3_sampler_step s = describe(k, step, seconds);
    return k->in->after_step ? k->in->after_step(k->in->user, &s) : H3_OK;
}

/* Stopped within step `step`: the rows are still those after the one before. */
static h3_status stopped(const run_state *k, int step, h3_status st)
{
    if (st != H3_E_CANCELLED || !k->in->on_stop || step == k->in->first_step) return st;
    if (h3_dev_sync(k->d) != H3_OK) return st;
    const h3_sampler_step s = describe(k, step - 1, 0);
    k->in->on_stop(k->in->user, &s);
    return h3_fail(H3_E_CANCELLED, "stopped on request");
}

static h3_status run(run_state *k, float *video_out, float *audio_out)
{
    const h3_status ready = prepare(k);
    if (ready == H3_E_NUMERIC) return h3_fail_in(ready, "before step %d", k->in->first_step);
    H3_TRY(ready);
    for (int step = k->in->first_step; step < k->in->video->n_steps; step++) {
        const double t0 = now();
        const h3_status st = take_named_step(k, step);
        if (st == H3_E_NUMERIC && strncmp(h3_error(), "step ", 5) != 0)
            return h3_fail_in(st, "step %d", step); // a weight, before anything was computed
        if (st != H3_OK) return stopped(k, step, st);
        H3_TRY(report(k, step, now() - t0));
    }
    H3_TRY(h3_dev_download(k->d, video_out, k->video.moving));
    H3_TRY(h3_dev_download(k->d, audio_out, k->audio.moving));
    return h3_comm_window(k->d->comm, k->d, 0, NULL);
}

h3_status h3_sampler_run(float *video_out, float *audio_out, const h3_dit *m,
                         const h3_sampler_in *in)
{
    run_state k = {.d = m->dev,
                   .m = m,
                   .in = in,
                   .video = {.name = "video", .schedule = in->video},
                   .audio = {.name = "audio", .schedule = in->audio}};
    h3_status st = run(&k, video_out, audio_out);

    if (st != H3_OK) h3_comm_abandon(k.d->comm); // before memory goes that others may write to
    h3_dit_release(&k.dit);
    close_medium(k.d, &k.video);
    close_medium(k.d, &k.audio);
    h3_schedule_rows_free(&k.table);
    return st;
}

h3_status h3_sampler_bytes(const h3_dit *m, const h3_sampler_in *in, size_t *scratch, size_t *kept)
{
    const h3_layout *l = in->layout;
    h3_schedule_rows table;
    h3_dit_request r;
    size_t rows;
    h3_status st;

    H3_TRY(h3_schedule_rows_init(&table, l, in->video, in->audio, 0, false));
    r = request_of(in, &table);
    st = h3_dit_scratch_bytes(m, &r, scratch, kept);
    h3_schedule_rows_free(&table);
    if (st != H3_OK) return st;
    // rows and velocities of both media; the dry run has shown that the counts are sane
    rows = 2 * sizeof(float) *
           (size_t)(l->n_video * m->dims.video_cols + l->n_audio * m->dims.audio_cols);
    if (!h3_add_size(*kept, rows, kept)) return h3_fail(H3_E_NOMEM, "rows do not fit in memory");
    return H3_OK;
}
