/**
 * The memory of each phase; see fit.h. One function a phase, each a list of what is alive when the
 * phase takes most. A part of the model is opened on a counting device for it: that reads headers
 * and the small vectors, never a matrix.
 *
 * What is left out: the system's own (page tables, thread stacks), which is far below the 5 % that
 * tests allow between these numbers and the resident set.
 */
#include "fit.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "audio_vae.h"
#include "job.h"
#include "output.h"
#include "size.h"
#include "video_vae.h"

typedef struct planner {
    const h3_job *j;
    h3_fit_table *fit;
    h3_dev *plan;
    bool is_host;    // the device computes in host memory
    size_t embeds;   // prompt embeddings, carried from the text phase to the end of sampling
    size_t released; // of what was held when planning: media, once the encoders have seen them
    size_t work;     // of the backend, which keeps the largest it needed
} planner;

static void add(h3_fit_phase *p, h3_fit_kind kind, const char *name, size_t bytes)
{
    if (!bytes) return;
    if (p->n_rows < H3_FIT_MAX_ROWS) p->row[p->n_rows++] = (h3_fit_row){name, kind, bytes};
    if (!h3_add_size(p->sum[kind], bytes, &p->sum[kind])) p->sum[kind] = SIZE_MAX;
}

/* Where the device computes. */
static void place(const planner *k, h3_fit_phase *p, const char *name, size_t bytes)
{
    add(p, k->is_host ? H3_FIT_HOST : H3_FIT_DEVICE, name, bytes);
}

static size_t floats(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (size_t)a * (size_t)b * (size_t)c * (size_t)d * sizeof(float);
}

static h3_fit_phase begin(const planner *k, h3_fit_name name)
{
    static const char *const names[] = {"text", "encode", "sample", "sound", "decode", "mux"};
    return (h3_fit_phase){.name = names[name], .is_used = true, .released = k->released};
}

enum { CONVOLUTIONS = 0 };

/* An opened part: its tables, its vectors, and the workspace of products of `rows` rows with its
 * matrices (or of CONVOLUTIONS). */
static void add_part(planner *k, h3_fit_phase *p, const h3_checkpoint *ck, int64_t rows)
{
    const h3_dev *d = k->j->e->dev;
    const h3_ckpt_use u = h3_ckpt_usage(ck, NULL);

    add(p, H3_FIT_HOST, "tables of the checkpoint", u.owned - u.expanded);
    add(p, H3_FIT_HOST, "decoded weights (none with --quant keep)", u.expanded);
    place(k, p, "vectors", u.vectors);
    if (!d->work_bytes) return;
    const size_t work = d->work_bytes(d, rows, rows == CONVOLUTIONS ? u.largest : u.cols);
    if (work > k->work) k->work = work;
    add(p, H3_FIT_HOST, "workspace", k->work);
}

static size_t matrices(const h3_checkpoint *ck, const char *pattern)
{
    return h3_ckpt_usage(ck, pattern).matrices;
}

static void add_weights(h3_fit_phase *p, const h3_checkpoint *ck, const char *name,
                        const char *pattern)
{
    add(p, H3_FIT_MAPPED, name, matrices(ck, pattern));
}

/* Of a row added as `name`: what a device's own forms of matrices take less than their files, with
 * the group that lies there as stored meanwhile (h3_store_meets). That one is weights too: where
 * all of them stream nothing is made into forms, and within a budget the store counts it itself. */
static void add_forms(const planner *k, h3_fit_phase *p, const char *name, int64_t saved,
                      size_t on_the_way)
{
    if (k->is_host || !saved) return;
    for (int i = 0; i < p->n_rows; i++) {
        h3_fit_row *r = &p->row[i];
        if (r->kind != H3_FIT_MAPPED || strcmp(r->name, name) != 0) continue;
        if (saved > 0 && r->bytes < (size_t)saved) continue;
        r->bytes -= (size_t)saved; // less than nothing adds
        p->sum[H3_FIT_MAPPED] -= (size_t)saved;
        add(p, H3_FIT_MAPPED, "weights as stored, on their way", on_the_way);
        if (saved < 0) p->widened = (size_t)-saved + on_the_way;
        return;
    }
}

/* A part on the counting device, bound. */
static h3_status open_part(planner *k, h3_part **p, h3_part_kind kind, h3_part_how how)
{
    h3_status st = h3_part_open(p, k->j->e, k->plan, kind, how);

    if (st == H3_OK) st = h3_part_bind(*p, k->j->e);
    return st;
}

/* ---------------------------------------------------------------------------------------- text */

/* Tables of the vision tower on the host: a position row for each patch of a kind. */
static size_t vision_tables(const h3_job *j, const h3_checkpoint *ck)
{
    int64_t ne[8], n = 0;
    int rank;

    if (j->vision.n_image_rows + j->vision.n_video_rows == 0) return 0;
    if (!h3_ckpt_shape(ck, "model.visual.pos_embed.weight", &rank, ne) || rank != 2) return 0;
    n = ne[0] + j->vision.n_image_rows + j->vision.n_video_rows;
    return floats(n, ne[1], 1, 1);
}

static h3_status count_encoder(planner *k, h3_fit_phase *p, h3_part *part)
{
    const h3_job *j = k->j;
    const h3_encoder_in in = h3_job_encoder_in(j);
    const h3_encoder *enc = part->net.encoder;
    h3_checkpoint *ck = part->ck;
    size_t bytes = 0;
    h3_status st;

    st = h3_encoder_scratch_bytes(enc, &in, &bytes);
    if (st == H3_OK) {
        k->embeds =
            (size_t)in.n_rows * (size_t)h3_encoder_width(enc) * h3_dtype_bytes((h3_dtype)j->e->act);
        place(k, p, "activations", bytes);
        place(k, p, "embeddings being made", k->embeds);
        add(p, H3_FIT_HOST, "prompt embeddings", k->embeds);
        add(p, H3_FIT_HOST, "vision tables", vision_tables(j, ck));
        add_part(k, p, ck, in.n_rows);
        add_weights(p, ck, "vision tower", "model.visual.*");
        add_weights(p, ck, "decoder layers", "model.language_model.layers.*");
        add_weights(p, ck, "token table", "model.language_model.embed_tokens.*");
        const int64_t saved = h3_encoder_saved(enc, &bytes);
        add_forms(k, p, "decoder layers", saved, bytes);
        p->ring = 2 * matrices(ck, "model.language_model.layers.0.*");
    }
    return st;
}

static h3_status plan_text(planner *k)
{
    const h3_prompt *q = &k->j->prompt;
    h3_fit_phase *p = &k->fit->phase[H3_FIT_TEXT];
    h3_part *part = NULL;
    h3_status st;

    *p = begin(k, H3_FIT_TEXT);
    st = open_part(k, &part, H3_PART_TEXT,
                   (h3_part_how){.has_vision = q->n_images + q->n_videos > 0});
    if (st == H3_OK) st = count_encoder(k, p, part);
    h3_part_leave(&part, k->j->e, st);
    return st;
}

/* -------------------------------------------------------------------------------------- encode */

static size_t condition_floats(const h3_condition *c)
{
    return c->shape.kind == H3_COND_AUDIO
               ? 0
               : floats(H3_VIDEO_CHANNELS, c->shape.t, c->shape.h, c->shape.w);
}

static size_t sound_floats(const h3_condition *c)
{
    return floats(2, c->shape.n_audio, H3_AUDIO_LATENT_CHANNELS, 1);
}

/* Clean latents of all conditions, kept until the rows are packed. */
static size_t all_conditions(const h3_plan *p)
{
    size_t n = 0;

    for (int i = 0; i < p->n_conditions; i++)
        n += condition_floats(&p->conditions[i]) + sound_floats(&p->conditions[i]);
    return n;
}

/* The hungriest condition: its scratch, and log variance and noise beside its latents. */
static h3_status count_pixels(const planner *k, h3_fit_phase *p, h3_video_vae *v, h3_checkpoint *ck)
{
    const h3_job *j = k->j;
    size_t scratch = 0, beside = 0;
    bool has_still = false;

    for (int i = 0; i < j->plan->n_conditions; i++) {
        const h3_condition *c = &j->plan->conditions[i];
        const int64_t n = c->shape.kind == H3_COND_VIDEO ? c->n_encoded : 1;
        size_t bytes = 0;
        if (c->shape.kind == H3_COND_AUDIO) continue;
        H3_TRY(h3_video_vae_encode_bytes(k->plan, v, n, j->prepared[i].h, j->prepared[i].w, NULL,
                                         &bytes));
        if (bytes > scratch) scratch = bytes;
        if (2 * condition_floats(c) > beside) beside = 2 * condition_floats(c);
        has_still = has_still || n == 1;
    }
    place(k, p, "activations", scratch);
    add(p, H3_FIT_HOST, "posteriors", beside);
    if (has_still) place(k, p, "kernels for stills", matrices(ck, "encoder.*") / 3);
    return H3_OK;
}

static h3_status plan_pixels(planner *k, h3_fit_phase *p)
{
    h3_part *part = NULL;
    h3_status st;

    st = open_part(k, &part, H3_PART_PIXELS, (h3_part_how){0});
    if (st == H3_OK) st = count_pixels(k, p, part->net.video, part->ck);
    if (st == H3_OK) {
        add_part(k, p, part->ck, CONVOLUTIONS);
        add_weights(p, part->ck, "video encoder", "*");
        p->ring = p->sum[H3_FIT_MAPPED];
    }
    h3_part_leave(&part, k->j->e, st);
    return st;
}

static h3_status plan_condition_sound(planner *k, h3_fit_phase *p)
{
    const h3_job *j = k->j;
    h3_part *part = NULL;
    size_t scratch = 0, wave = 0;
    h3_status st;

    st = open_part(k, &part, H3_PART_SOUND_IN, (h3_part_how){0});
    for (int i = 0; st == H3_OK && i < j->plan->n_conditions; i++) {
        size_t bytes = 0;
        if (j->plan->conditions[i].shape.n_audio == 0) continue;
        st = h3_audio_vae_encode_bytes(k->plan, part->net.audio, 2, j->prepared[i].n_samples,
                                       &bytes);
        if (bytes > scratch) scratch = bytes;
        if (floats(j->prepared[i].n_samples, 1, 1, 1) > wave)
            wave = floats(j->prepared[i].n_samples, 1, 1, 1);
    }
    if (st == H3_OK) {
        place(k, p, "activations", scratch);
        add(p, H3_FIT_HOST, "a padded channel", wave);
        add_part(k, p, part->ck, CONVOLUTIONS);
        add_weights(p, part->ck, "audio encoder", "*");
        p->ring = p->sum[H3_FIT_MAPPED];
    }
    h3_part_leave(&part, j->e, st);
    return st;
}

/* The two encoders run one after the other: the phase is the larger of them. */
static h3_status plan_encode(planner *k)
{
    const h3_plan *plan = k->j->plan;
    h3_fit_phase *p = &k->fit->phase[H3_FIT_ENCODE];
    h3_fit_phase sound = begin(k, H3_FIT_ENCODE);
    bool has_pixels = false, has_sound = false;

    *p = begin(k, H3_FIT_ENCODE);
    p->is_used = plan->n_conditions > 0;
    for (int i = 0; i < plan->n_conditions; i++) {
        has_pixels = has_pixels || plan->conditions[i].shape.kind != H3_COND_AUDIO;
        has_sound = has_sound || plan->conditions[i].shape.n_audio > 0;
    }
    if (has_pixels) H3_TRY(plan_pixels(k, p));
    if (has_sound) H3_TRY(plan_condition_sound(k, &sound));
    if (sound.sum[H3_FIT_HOST] + sound.sum[H3_FIT_DEVICE] >
        p->sum[H3_FIT_HOST] + p->sum[H3_FIT_DEVICE])
        *p = sound;
    if (p->is_used) {
        add(p, H3_FIT_HOST, "prompt embeddings", k->embeds);
        add(p, H3_FIT_HOST, "latents of conditions", all_conditions(plan));
    }
    return H3_OK;
}

/* -------------------------------------------------------------------------------------- sample */

static size_t file_bytes(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISREG(info.st_mode) ? (size_t)info.st_size : 0;
}

/* Bytes of all generated and pinned rows in f32. */
static size_t row_bytes(const h3_layout *l)
{
    return floats(l->n_video, H3_VIDEO_CHANNELS * H3_PATCH * H3_PATCH, 1, 1) +
           floats(l->n_audio, H3_AUDIO_LATENT_CHANNELS, 1, 1);
}

static void add_dit_weights(h3_fit_phase *p, const h3_engine *e, const h3_checkpoint *ck)
{
    const size_t mod = matrices(ck, "blocks.#.adaln_proj.*"), all = matrices(ck, "blocks.*");
    const size_t refiner = matrices(ck, "token_refiner.*") + matrices(ck, "condition_proj.*");

    add(p, H3_FIT_MAPPED, "blocks", all - mod);
    add(p, H3_FIT_MAPPED, "modulation, once", mod);
    add(p, H3_FIT_MAPPED, "refiner, once", refiner);
    add(p, H3_FIT_MAPPED, "edges", matrices(ck, NULL) - all - refiner);
    for (int i = 0; i < e->n_loras; i++)
        add(p, H3_FIT_MAPPED, "adapter", file_bytes(e->lora[i]));
    p->ring = 2 * (matrices(ck, "blocks.0.*") - matrices(ck, "blocks.0.adaln_proj.*"));
    if (h3_comm_size(e->comm) == 1) return;
    p->spread = p->ring + (all - mod) / (size_t)h3_comm_size(e->comm);
    p->is_spread = e->offload == H3_OFFLOAD_RANKS;
    if (!p->is_spread) return;
    if (e->dev->mem == H3_HOST) add(p, H3_FIT_HOST, "blocks of all ranks, two at a time", p->ring);
    p->ring = p->spread;
}

static h3_status count_dit(const planner *k, h3_fit_phase *p, const h3_dit *m)
{
    const h3_job *j = k->j;
    const h3_layout *l = j->layout;
    const int64_t ne[2] = {l->n_text, m->dims.text_dim};
    const h3_sampler_in in = {.layout = l,
                              .video = &j->plan->video,
                              .audio = &j->plan->audio,
                              .prompt_embeds = h3_host_tensor(NULL, (h3_dtype)j->e->act, 2, ne),
                              .act = j->e->act};
    size_t scratch = 0, kept = 0;

    H3_TRY(h3_sampler_bytes(m, &in, &scratch, &kept));
    place(k, p, "activations", scratch);
    place(k, p, "modulation, rotation, rows", kept - k->plan->window);
    place(k, p, "window of a rank", k->plan->window);
    add(p, H3_FIT_HOST, "timesteps of rows",
        (size_t)j->plan->n_forwards * (size_t)l->n_rows * sizeof(int32_t));
    return H3_OK;
}

/* Kept or decoded at load. On the processor a product takes quantized weights as fast as decoded
 * ones (0.8 to 1.1 times the time from 32 rows on, by what is saved in reading; only codebook types
 * lose with few rows), so memory is spent only on request. */
static void choose_quant(const planner *k, h3_checkpoint *ck)
{
    const h3_engine *e = k->j->e;
    h3_fit_quant *q = &k->fit->quant;
    const h3_fit_room room = h3_fit_room_now(NULL, e->ram_limit);

    h3_ckpt_expansion(ck, &q->stored, &q->expanded);
    q->is_expanded = k->is_host && e->quant == H3_QUANT_ALWAYS_EXPAND;
    if (!k->is_host)
        q->why = "the device decodes them, and keeps what its memory allows";
    else if (e->quant != H3_QUANT_AUTO)
        q->why = "as asked for";
    else if (q->expanded > room.ram_free)
        q->why = "decoded at load they would not fit";
    else
        q->why = "decoding while they are read is as fast here";
}

/* The DiT of the task on the counting device, with what becomes of its quantized matrices. */
static h3_status open_dit(planner *k, h3_part **p)
{
    const h3_part_kind kind = k->j->task == H3_REF2VA ? H3_PART_DIT_REF : H3_PART_DIT;

    H3_TRY(open_part(k, p, kind, (h3_part_how){0}));
    choose_quant(k, (*p)->ck);
    if (!k->fit->quant.is_expanded) return H3_OK;
    h3_part_leave(p, k->j->e, H3_OK);
    return open_part(k, p, kind, (h3_part_how){.is_expanded = true});
}

static h3_status plan_sample(planner *k)
{
    const h3_job *j = k->j;
    const h3_layout *l = j->layout;
    h3_fit_phase *p = &k->fit->phase[H3_FIT_SAMPLE];
    h3_part *part = NULL;
    h3_status st;

    *p = begin(k, H3_FIT_SAMPLE);
    st = open_dit(k, &part);
    if (st == H3_OK) st = count_dit(k, p, part->net.dit);
    if (st == H3_OK) {
        add(p, H3_FIT_HOST, "prompt embeddings", k->embeds);
        add(p, H3_FIT_HOST, "noise and results", 2 * row_bytes(l));
        if (j->rq->checkpoint_every > 0) {
            add(p, H3_FIT_HOST, "a checkpoint", row_bytes(l));
            add(p, H3_FIT_DISK, "checkpoint, and its successor", 2 * row_bytes(l));
        }
        add_part(k, p, part->ck, l->n_rows);
        add_dit_weights(p, j->e, part->ck);
        size_t on_the_way = 0;
        const int64_t saved = h3_store_saved(part->net.dit->store, &on_the_way);
        if (!p->is_spread) add_forms(k, p, "blocks", saved, on_the_way);
    }
    h3_part_leave(&part, j->e, st);
    return st;
}

/* -------------------------------------------------------------------------------------- decode */

static size_t latent_bytes(const h3_plan *p)
{
    return floats(H3_VIDEO_CHANNELS, p->latent.t, p->latent.h, p->latent.w) +
           floats(2, p->n_audio, H3_AUDIO_LATENT_CHANNELS, 1);
}

/* The host's convolutions list the inputs of every output, a number for each tap of the widest
 * kernel; of two convolutions, since the allocator keeps the list before. */
static size_t convolution_lists(const h3_checkpoint *ck, int64_t n_latents)
{
    const int64_t most = n_latents < 1024 ? n_latents : 1024; // decoded at a time
    int64_t taps = 1;

    for (int64_t i = 0; i < h3_ckpt_n_tensors(ck); i++) {
        const char *name = h3_ckpt_tensor(ck, i);
        const char *end = name ? strstr(name, ".weight") : NULL;
        int64_t ne[8];
        int rank;
        if (!end || end[7] || strncmp(name, "decoder.", 8) != 0 ||
            strncmp(name, "decoder.ups.", 12) == 0 || !h3_ckpt_shape(ck, name, &rank, ne) ||
            rank != 3)
            continue;
        if (ne[2] > taps && ne[2] < 64) taps = ne[2];
    }
    return 2 * sizeof(int32_t) * (size_t)(taps * most * H3_AUDIO_HOP);
}

static h3_status plan_sound(planner *k)
{
    const h3_job *j = k->j;
    h3_fit_phase *p = &k->fit->phase[H3_FIT_SOUND];
    h3_part *part = NULL;
    size_t bytes = 0;
    h3_status st;

    *p = begin(k, H3_FIT_SOUND);
    st = open_part(k, &part, H3_PART_SOUND, (h3_part_how){0});
    if (st == H3_OK)
        st = h3_audio_vae_decode_bytes(k->plan, part->net.audio, 2, j->plan->n_audio, NULL, &bytes);
    if (st == H3_OK) {
        place(k, p, "activations", bytes);
        add(p, H3_FIT_HOST, "latents", latent_bytes(j->plan));
        add(p, H3_FIT_HOST, "sound", floats(2, j->plan->n_samples, 1, 1));
        if (k->is_host)
            add(p, H3_FIT_HOST, "convolution lists", convolution_lists(part->ck, j->plan->n_audio));
        if (h3_output_saves_latents(j->rq)) add(p, H3_FIT_DISK, "latents", latent_bytes(j->plan));
        add_part(k, p, part->ck, CONVOLUTIONS);
        add_weights(p, part->ck, "audio decoder", "*");
        p->ring = p->sum[H3_FIT_MAPPED];
    }
    h3_part_leave(&part, j->e, st);
    return st;
}

/* What is written: an MP4 of half a bit a pixel is generous, pictures hardly compress. */
static void add_outputs(h3_fit_phase *p, const h3_job *j)
{
    const h3_plan *plan = j->plan;
    const size_t pixels = (size_t)plan->canvas.width * (size_t)plan->canvas.height;
    const size_t all = pixels * (size_t)plan->n_frames;

    if (h3_output_saves_latents(j->rq)) add(p, H3_FIT_DISK, "latents", latent_bytes(plan));
    if (j->rq->out_path) add(p, H3_FIT_DISK, "MP4, about", all / 16);
    if (j->rq->frames_dir) add(p, H3_FIT_DISK, "frames, at most", 3 * all);
    if (j->rq->wav_path) add(p, H3_FIT_DISK, "WAV", floats(2, plan->n_samples, 1, 1));
}

/* The writer is there from the first frame to the end of the file. */
static void add_writer(h3_fit_phase *p, const h3_job *j, bool is_finishing)
{
    const h3_plan *plan = j->plan;
    const h3_mux_opt opt = h3_output_mux(j->rq, (int)plan->canvas.width, (int)plan->canvas.height,
                                         plan->n_frames, plan->n_samples);

    add(p, H3_FIT_HOST, "latents", latent_bytes(plan));
    add(p, H3_FIT_HOST, "sound", floats(2, plan->n_samples, 1, 1));
    if (j->rq->out_path) add(p, H3_FIT_HOST, "video encoder", h3_mux_bytes(&opt, is_finishing));
    add_outputs(p, j);
}

static h3_status plan_decode(planner *k)
{
    const h3_job *j = k->j;
    const h3_plan *plan = j->plan;
    h3_video_decode_opts opts;
    h3_fit_phase *p = &k->fit->phase[H3_FIT_DECODE];
    h3_part *part = NULL;
    size_t bytes = 0;
    h3_status st;

    *p = begin(k, H3_FIT_DECODE);
    p->is_used = h3_output_has_picture(j->rq);
    st = open_part(k, &part, H3_PART_PICTURE, (h3_part_how){0});
    if (st == H3_OK)
        opts = h3_engine_decode_opts(j->e, k->plan, part->net.video, plan->latent.t, plan->latent.h,
                                     plan->latent.w);
    if (st == H3_OK)
        st = h3_video_vae_decode_bytes(k->plan, part->net.video, plan->latent.t, plan->latent.h,
                                       plan->latent.w, &opts, &bytes);
    if (st == H3_OK) {
        place(k, p, "activations", bytes);
        add_writer(p, j, false);
        add_part(k, p, part->ck, 2048);
        add_weights(p, part->ck, "video decoder", "*");
        const int64_t saved = h3_video_vae_decoder_saved(part->net.video, &bytes);
        add_forms(k, p, "video decoder", saved, bytes);
        p->ring = 2 * matrices(part->ck, "decoder.transformer_blocks.0.*");
        if (!k->is_host)
            add(p, H3_FIT_HOST, "frames of a clip",
                (size_t)plan->clips.own * (size_t)(plan->canvas.width * plan->canvas.height) * 3);
    }
    h3_part_leave(&part, j->e, st);
    return st;
}

static void plan_mux(planner *k)
{
    h3_fit_phase *p = &k->fit->phase[H3_FIT_MUX];

    *p = begin(k, H3_FIT_MUX);
    add(p, H3_FIT_HOST, "workspace", k->work);
    add_writer(p, k->j, true);
}

/* --------------------------------------------------------------------------------------- doors */

/* Media in memory: gone after the encode phase. */
static size_t media_bytes(const h3_job *j)
{
    size_t n = 0;

    for (int i = 0; i < j->sources.n; i++) {
        const h3_source *s = &j->sources.list[i];
        if (s->rgb) n += (size_t)s->n * (size_t)(s->size.width * s->size.height) * 3;
        if (s->pcm) n += floats(2, s->n_samples, 1, 1);
    }
    for (int i = 0; i < j->plan->n_conditions; i++) {
        const h3_prepared *p = &j->prepared[i];
        if (p->rgb) n += (size_t)p->n * (size_t)(p->h * p->w) * 3;
        if (p->pcm) n += floats(2, p->n_samples, 1, 1);
    }
    return n;
}

static size_t vision_bytes(const h3_vision *v)
{
    return floats(v->n_image_rows, h3_patch_row_size(&v->image), 1, 1) +
           floats(v->n_video_rows, h3_patch_row_size(&v->video), 1, 1);
}

static h3_status plan_all(planner *k)
{
    H3_TRY(plan_text(k));
    k->released = vision_bytes(&k->j->vision);
    H3_TRY(plan_encode(k));
    k->released += media_bytes(k->j);
    H3_TRY(plan_sample(k));
    H3_TRY(plan_sound(k));
    H3_TRY(plan_decode(k));
    plan_mux(k);
    return H3_OK;
}

/* Where the weights of each phase wait, and what of them may be pinned: never more than is left of
 * the host's memory, so that it is no reason to refuse. */
static void place_weights(h3_fit_table *f, const h3_engine *e)
{
    for (int i = 0; i < H3_FIT_PHASES; i++) {
        h3_fit_phase *p = &f->phase[i];
        const size_t ring = p->ring ? p->ring : 1;
        const size_t host =
            p->sum[H3_FIT_HOST] > p->released ? p->sum[H3_FIT_HOST] - p->released : 0;
        const size_t taken = host + f->room.ram_free / 8;
        if (!p->is_used) continue;
        p->budget = e->offload == H3_OFFLOAD_NONE ? 0
                    : p->is_spread                ? ring
                    : e->offload == H3_OFFLOAD_AUTO || e->offload == H3_OFFLOAD_RANKS
                        ? h3_fit_budget(f, (h3_fit_name)i)
                        : ring;
        if (!f->room.has_device || !p->budget || p->is_spread ||
            p->sum[H3_FIT_MAPPED] - p->widened <= p->budget) // then some stay as stored
            continue;
        if (e->offload == H3_OFFLOAD_DISK || f->room.ram_free <= taken) continue;
        p->pinned = f->room.ram_free - taken;
        if (p->pinned > p->sum[H3_FIT_MAPPED]) p->pinned = p->sum[H3_FIT_MAPPED];
        add(p, H3_FIT_PINNED, "streamed weights, at most", p->pinned);
    }
}

h3_status h3_fit_plan(h3_fit_table *out, const h3_job *j)
{
    h3_engine *e = j->e;
    planner k = {.j = j, .fit = out, .is_host = e->dev->mem == H3_HOST};
    const h3_request *rq = j->rq;
    h3_status st;

    memset(out, 0, sizeof *out);
    if (!e->plan) H3_TRY(h3_dev_open(&e->plan, "plan", NULL));
    k.plan = e->plan;
    k.plan->comm = e->dev->comm; // this rank's share is planned
    k.plan->n_units = e->dev->n_units;
    k.plan->plans_for = e->dev;
    st = plan_all(&k);
#ifdef __GLIBC__
    malloc_trim(0); // what planning took and gave back is free, not held
#endif
    out->room = h3_fit_room_now(h3_output_base(rq), e->ram_limit);
    out->ranks = h3_comm_size(e->comm);
    if (out->ranks > 1) out->room.ram_free /= (size_t)e->comm->n_local; // all take as much
    if (st == H3_OK && e->dev->memory) {
        out->room.has_device = true;
        st = e->dev->memory(e->dev, &out->room.vram_free, &out->room.vram_total);
        out->room.vram_free += h3_stores_held(e->dev, -1); // kept weights make way
        snprintf(out->room.vram_by, sizeof out->room.vram_by, "%s", e->dev->name);
        if (e->vram_limit && e->vram_limit < out->room.vram_free) {
            out->room.vram_free = e->vram_limit;
            snprintf(out->room.vram_by, sizeof out->room.vram_by, "--vram");
        }
    }
    if (st == H3_OK) place_weights(out, e);
    return st;
}
