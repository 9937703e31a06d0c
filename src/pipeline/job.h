/**
 * One request while it runs: what each phase made, and how the caller hears of it. The order of the
 * phases is h3_job_run's and nobody else's.
 */
#ifndef H3_PIPELINE_JOB_H
#define H3_PIPELINE_JOB_H

#include "engine.h"
#include "fit.h"
#include "latents.h"
#include "prepare.h"
#include "request.h"
#include "sampler.h"

typedef struct h3_job {
    h3_engine *e;
    const h3_request *rq;
    h3_result *rs;
    /* what phases hand on, in this order */
    h3_task task;
    h3_sources sources;
    h3_plan *plan;
    h3_prepared prepared[H3_MAX_CONDITIONS];
    h3_vision vision; ///< until the text phase ends
    h3_prompt prompt;
    h3_layout *layout;
    h3_fit_table fit;                     ///< what each phase takes
    h3_tensor embeds;                     ///< [n_text, text_dim] host, f32 or bf16
    float *condition[H3_MAX_CONDITIONS];  ///< [24, t, h, w] normalised, before noising
    float *sound_rows[H3_MAX_CONDITIONS]; ///< [2 n_audio, 32]
    float *video_rows, *audio_rows;       ///< what step 0 sees
    h3_latents latents;
    char *latents_path;    ///< where they are saved, NULL: nowhere
    char *checkpoint_path; ///< NULL: nowhere
    uint64_t fingerprint;  ///< of everything that decides the rows
    int first_step;
    int saved_step;   ///< steps in the file at checkpoint_path, 0: there is none of this run
    bool has_latents; ///< the file at latents_path is there and complete
    /* progress */
    const char *phase;
    double phase_start, phase_from, phase_to; ///< share of the whole run
    double started;
    uint8_t *preview; ///< RGB of the next step event, or NULL
    double preview_at;
} h3_job;

/** Runs all phases of j->rq on j->e. j->sources may be filled by the caller (tests); then nothing
 * is loaded from files. */
H3_NODISCARD h3_status h3_job_run(h3_job *j);
/** Decodes j->latents to the outputs of j->rq. */
H3_NODISCARD h3_status h3_job_decode(h3_job *j);
void h3_job_free(h3_job *j);

/* ---- phases, each a door with its own golden (job.c, job_text.c, job_encode.c, job_sample.c) ----
 */

h3_status h3_job_load(h3_job *j);
/** What the conditioner and the layout see of the request: needs no weights. Run by h3_job_text
 * when it was not run before. */
h3_status h3_job_present(h3_job *j);
h3_status h3_job_text(h3_job *j);
/** The request as the encoder takes it; points into j. */
h3_encoder_in h3_job_encoder_in(const h3_job *j);
h3_status h3_job_encode(h3_job *j);
/** Refuses a noise file that does not fit the request, before anything is computed. */
h3_status h3_job_check_noise(const h3_job *j);
h3_status h3_job_noise(h3_job *j);
h3_status h3_job_sample(h3_job *j);

/* ---- checkpoints (job_checkpoint.c) ---- */

/** Of everything that decides the generated rows. */
uint64_t h3_job_fingerprint(const h3_job *j, const h3_checkpoint *ck);
/** Replaces the generated rows by those of rq->resume_path, or refuses the file by name. */
H3_NODISCARD h3_status h3_job_resume(h3_job *j);
/** Callbacks of the sampler; user is the job. */
h3_status h3_job_after_step(void *user, const h3_sampler_step *s);
/** Fills j->preview for the next step event, when one is due (job_preview.c). */
void h3_job_preview(h3_job *j, const h3_sampler_step *s);
void h3_job_on_stop(void *user, const h3_sampler_step *s);
/** Passes `st` on; a failure's sentence also says how to go on from the checkpoint, if there is
 * one.
 */
h3_status h3_job_explain_checkpoint(const h3_job *j, h3_status st);

/* ---- checks between stages (job_checks.c): H3_E_NUMERIC names stage and place ---- */

/** That no two files of the run have one name: the second would replace, or remove, the first. */
H3_NODISCARD h3_status h3_job_check_names(const h3_job *j);
H3_NODISCARD h3_status h3_job_check_embeds(const h3_job *j);
H3_NODISCARD h3_status h3_job_check_condition(const h3_job *j, int i);
/** Also warns of latents far outside the range of pictures. */
H3_NODISCARD h3_status h3_job_check_latents(h3_job *j);
/** pcm [2, n]; also warns of silence. */
H3_NODISCARD h3_status h3_job_check_sound(h3_job *j, const float *pcm, int64_t n);

/** Puts the stage in front of what a network says about numbers that are none; other failures pass.
 */
h3_status h3_job_name_stage(h3_status st, const char *stage);

/* ---- memory (job_memory.c) ---- */

/** Plans the memory of all phases into j->fit, tells it, and refuses what does not fit. */
H3_NODISCARD h3_status h3_job_plan_memory(h3_job *j);
/** j->fit as events: a line a phase, and a warning when it does not fit. */
void h3_job_tell_fit(h3_job *j);
/** Before phase `next`: gives back what the one before it needed and sets its budget of weights. */
void h3_job_turn(h3_job *j, h3_fit_name next);
/** Pixels and samples of the inputs: gone after the encode phase. */
void h3_job_drop_media(h3_job *j);
/** Embeddings, rows and latents of conditions: gone after sampling. */
void h3_job_drop_rows(h3_job *j);

/** What opening the engine's parts found, as events (engine_parts.c). */
void h3_job_tell_parts(h3_job *j);

/* ---- reporting (job_events.c) ---- */

void h3_job_phase(h3_job *j, const char *name, double from, double to);
void h3_job_phase_end(h3_job *j);
void h3_job_step(h3_job *j, int64_t step, int64_t steps, double seconds);
void h3_job_say(h3_job *j, h3_event_kind kind, const char *fmt, ...) H3_PRINTF(3, 4);
double h3_now(void);
/** Highest resident set of this process so far, bytes. */
uint64_t h3_peak_rss(void);

/** FNV-1a 64 over bytes, continued from `h` (start with H3_FNV). */
uint64_t h3_fnv(uint64_t h, const void *p, size_t n);
#define H3_FNV 0xcbf29ce484222325u

/** Settings of the run as an object of strings: file metadata, latents, checkpoints. */
json_t *h3_job_settings(const h3_job *j);

/** Everything the plan decided, as JSON (plan_json.c). */
/** A seed as JSON: a number, or a string of digits above 2^63 - 1, which JSON readers cannot hold.
 */
json_t *h3_json_seed(uint64_t seed);
json_t *h3_plan_describe(const h3_plan *p, const h3_sources *s, const h3_request *rq);

#endif
