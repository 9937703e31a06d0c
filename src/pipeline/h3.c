/** The public API: engines, requests, results; see <h3av/h3av.h>. Work is done by the job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "builtin.h"
#include "file.h"
#include "job_ranks.h"
#include "output.h"
#include "tools.h"

#ifdef H3_HAVE_BUILTIN
extern const h3_builtin_file h3_builtin_table[];
extern const size_t h3_builtin_count;
#endif

#ifndef H3_VERSION
#define H3_VERSION "0.1.0"
#endif

void h3_register_builtin(void)
{
#ifdef H3_HAVE_BUILTIN
    h3_builtin_register(h3_builtin_table, h3_builtin_count);
#endif
}

const char *h3_version(void)
{
    return H3_VERSION;
}

void h3_string_free(char *s)
{
    free(s);
}

h3_engine_opts h3_engine_default(void)
{
    return (h3_engine_opts){.device = "cpu",
                            .dtype = "auto",
                            .math = "auto",
                            .qkv = "auto",
                            .quant = "auto",
                            .offload = "auto"};
}

h3_request h3_request_default(void)
{
    return (h3_request){.seed = 42, .crf = 18, .has_metadata = true, .save_latents = true};
}

h3_defaults h3_engine_defaults(const h3_engine *e)
{
    if (e && e->is_builtin) return (h3_defaults){256, 256, 56, 9};
    return (h3_defaults){0, 0, 124, 50};
}

h3_status h3_parse_qkv(h3_qkv_order *out, const char *word)
{
    *out = H3_QKV_AUTO;
    if (!word || strcmp(word, "auto") == 0) return H3_OK;
    *out = H3_QKV_INTERLEAVED;
    if (strcmp(word, "interleaved") == 0) return H3_OK;
    *out = H3_QKV_STACKED;
    if (strcmp(word, "stacked") == 0) return H3_OK;
    return h3_fail(H3_E_ARG, "qkv %s: expected auto, interleaved or stacked", word);
}

static h3_status parse_dtype(uint8_t *out, const char *word, const h3_dev *d)
{
    *out = d && d->mem == H3_DEVICE ? H3_BF16 : H3_F32;
    if (!word || strcmp(word, "auto") == 0) return H3_OK;
    *out = H3_F32;
    if (strcmp(word, "f32") == 0) return H3_OK;
    *out = H3_BF16;
    if (strcmp(word, "bf16") == 0) return H3_OK;
    return h3_fail(H3_E_ARG, "dtype %s: expected auto, f32 or bf16", word);
}

static h3_status parse_offload(h3_offload *out, const char *word)
{
    static const char *const words[] = {"auto", "none", "stream", "disk", "ranks"};

    *out = H3_OFFLOAD_AUTO;
    if (!word) return H3_OK;
    for (int i = 0; i < 5; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (h3_offload)i;
            return H3_OK;
        }
    return h3_fail(H3_E_ARG, "offload %s: expected auto, none, stream, disk or ranks", word);
}

static h3_status check_spread(const h3_engine *e)
{
    if (e->offload != H3_OFFLOAD_RANKS || h3_comm_size(e->comm) > 1) return H3_OK;
    return h3_fail(H3_E_ARG,
                   "offload ranks: there is one process only; start several with --ranks, "
                   "--gpus or a launcher");
}

static h3_status parse_quant(h3_quant_choice *out, const char *word)
{
    static const char *const words[] = {"auto", "keep", "expand"};

    *out = H3_QUANT_AUTO;
    if (!word) return H3_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (h3_quant_choice)i;
            return H3_OK;
        }
    return h3_fail(H3_E_ARG, "quant %s: expected auto, keep or expand", word);
}

/* Remembers the adapters; one of them may bring the schedule it was distilled for. */
static h3_status take_loras(h3_engine *e, const h3_engine_opts *opts)
{
    if (opts->n_loras > H3_MAX_LORAS)
        return h3_fail(H3_E_ARG, "%d adapters: at most %d are accepted", opts->n_loras,
                       H3_MAX_LORAS);
    if (opts->n_loras < 0 || (opts->n_loras && !opts->loras))
        return h3_fail(H3_E_ARG, "%d adapters, but no list of them", opts->n_loras);
    for (int i = 0; i < opts->n_loras; i++)
        if (!opts->loras[i].path) return h3_fail(H3_E_ARG, "adapter %d: no file given", i + 1);
    if (!(opts->lora_alpha >= 0))
        return h3_fail(H3_E_ARG, "alpha %g of adapters: expected 0 or more",
                       (double)opts->lora_alpha);
    e->lora_opts = (h3_lora_opts){.alpha = opts->lora_alpha, .is_strict = opts->is_strict_lora};
    for (int i = 0; i < opts->n_loras; i++) {
        h3_preset preset;
        int found = 0;
        H3_TRY(h3_preset_of_lora(&preset, opts->loras[i].path, &found));
        if (found && e->has_lora_preset)
            return h3_fail(H3_E_ARG, "%s: a second adapter that brings a schedule of its own",
                           opts->loras[i].path);
        if (found) {
            e->lora_preset = preset;
            e->has_lora_preset = 1;
        }
        e->lora[i] = h3_strdupf("%s", opts->loras[i].path);
        e->lora_strength[i] = opts->loras[i].strength;
        e->n_loras = i + 1;
    }
    return H3_OK;
}

enum { MAX_THREADS = 1024 }; // each has its own scratch memory

/* The device of this rank: "cuda" alone means one GPU for each rank of the host. */
static h3_status open_device(h3_engine *e, const h3_engine_opts *opts)
{
    const char *name = opts->device ? opts->device : "cpu";
    const h3_dev_opts dev = {opts->n_threads ? opts->n_threads : h3_ranks_threads(e->comm),
                             opts->math, &e->cancel};
    char numbered[24];

    if (opts->n_threads < 0 || opts->n_threads > MAX_THREADS)
        return h3_fail(H3_E_ARG, "%d threads: expected 0 (all cores) to %d", opts->n_threads,
                       MAX_THREADS);
    if (e->comm && strcmp(name, "cuda") == 0) {
        snprintf(numbered, sizeof numbered, "cuda:%d", e->comm->local_rank);
        name = numbered;
    }
    H3_TRY(h3_dev_open(&e->dev, name, &dev));
    e->dev->is_timing = e->has_timing;
    return H3_OK;
}

static h3_status open_engine(h3_engine **out, const h3_engine_opts *opts)
{
    const h3_model_paths paths = {opts->model, opts->dit,       opts->text_encoder,
                                  opts->vae,   opts->audio_vae, opts->tokenizer};
    h3_engine *e = calloc(1, sizeof *e);
    h3_status st;

    *out = NULL;
    if (!e) return h3_fail(H3_E_NOMEM, "no memory for an engine");
    h3_register_builtin();
    e->is_builtin = !opts->model || h3_is_builtin(opts->model);
    e->has_timing = opts->has_timing;
    e->keeps =
        opts->keep_loaded && !opts->ranks; // ranks share the encoding: all or none would recall
    e->comm = opts->ranks ? opts->ranks->comm : NULL;
    if (e->comm) e->comm->cancel = &e->cancel;
    if ((st = h3_parse_qkv(&e->ckpt.qkv, opts->qkv)) != H3_OK) goto fail;
    if ((st = parse_dtype(&e->act, opts->dtype, NULL)) != H3_OK) goto fail;
    if ((st = parse_offload(&e->offload, opts->offload)) != H3_OK) goto fail;
    if ((st = check_spread(e)) != H3_OK) goto fail;
    if ((st = parse_quant(&e->quant, opts->quant)) != H3_OK) goto fail;
    e->ram_limit = opts->ram_limit;
    e->vram_limit = opts->vram_limit;
    if ((st = open_device(e, opts)) != H3_OK) goto fail;
    if ((st = parse_dtype(&e->act, opts->dtype, e->dev)) != H3_OK) goto fail;
    if ((st = h3_model_find(&e->model, &paths)) != H3_OK) goto fail;
    if ((st = take_loras(e, opts)) != H3_OK) goto fail;
    if ((st = h3_engine_check_parts(e)) != H3_OK) goto fail;
    if ((st = h3_open_tokenizer(&e->tok, e->model.tokenizer)) != H3_OK) goto fail;
    *out = e;
    return H3_OK;

fail:
    h3_engine_close(&e);
    return st;
}

h3_status h3_engine_open(h3_engine **out, const h3_engine_opts *opts)
{
    h3_comm *c = opts && opts->ranks ? opts->ranks->comm : NULL;

    if (!out) return h3_fail(H3_E_ARG, "no place for the engine given");
    *out = NULL;
    if (!opts) return h3_fail(H3_E_ARG, "no options given; h3_engine_default makes them");
    h3_status st = h3_comm_agree(c, open_engine(out, opts));

    if (st == H3_OK) st = h3_comm_agree(c, h3_comm_attach(c, (*out)->dev)); // all are there
    if (st != H3_OK) h3_engine_close(out);
    return st;
}

void h3_engine_close(h3_engine **ep)
{
    h3_engine *e = ep ? *ep : NULL;

    if (!e) return;
    h3_tok_free(&e->tok);
    for (int i = 0; i < e->n_loras; i++)
        free(e->lora[i]);
    free(e->part_notes);
    (void)h3_parts_close(e);
    h3_dev_close(&e->plan);
    h3_memo_free(&e->embeds);
    for (int i = 0; i < H3_MAX_CONDITIONS; i++) {
        h3_memo_free(&e->condition[i]);
        h3_memo_free(&e->sound[i]);
    }
    h3_model_free(&e->model);
    if (e->dev) h3_comm_detach(e->comm, e->dev);
    if (e->comm) e->comm->cancel = NULL;
    h3_dev_close(&e->dev);
    free(e);
    *ep = NULL;
}

void h3_cancel(h3_engine *e)
{
    if (e) atomic_store_explicit(&e->cancel.stop, true, memory_order_relaxed);
}

void h3_drop_partial_files(void)
{
    h3_atomic_drop_all();
}

static json_t *result_json(const h3_result *rs)
{
    json_t *phases = json_array();
    char hash[24];

    for (int i = 0; i < rs->n_phases; i++)
        json_array_append_new(phases, json_pack("{s:s, s:f, s:I}", "name", rs->phase[i].name,
                                                "seconds", rs->phase[i].seconds, "peak_rss",
                                                (json_int_t)rs->phase[i].peak_rss));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)rs->latent_hash);
    return json_pack("{s:i, s:i, s:i, s:I, s:i, s:i, s:o, s:f, s:f, s:I, s:I, s:I, s:s, s:s, s:o}",
                     "width", rs->width, "height", rs->height, "frames", rs->frames, "samples",
                     (json_int_t)rs->samples, "steps", rs->steps, "forwards", rs->n_forwards,
                     "seed", h3_json_seed(rs->seed), "seconds", rs->seconds_total, "step_seconds",
                     rs->step_seconds, "peak_rss", (json_int_t)rs->peak_rss, "peak_device",
                     (json_int_t)rs->peak_device, "scratch", (json_int_t)rs->scratch_bytes, "codec",
                     rs->codec, "latents", hash, "phases", phases);
}

static void name_outputs(json_t *o, const h3_request *rq)
{
    const struct {
        const char *key, *path;
    } list[] = {{"output", rq->out_path}, {"frames_dir", rq->frames_dir}, {"wav", rq->wav_path}};

    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].path) json_object_set_new(o, list[i].key, json_string(list[i].path));
}

h3_status h3_engine_can_run(const h3_engine *e)
{
    if (!e) return h3_fail(H3_E_ARG, "no engine given");
    if (e->comm && e->comm->is_stand_in)
        return h3_fail(H3_E_ARG, "%d ranks were planned for, and none of them runs", e->comm->size);
    return H3_OK;
}

/* Both entry points: run, time, tell the end. Ranks but the first are silent and write nothing. */
static h3_status run_job(h3_engine *e, h3_job *j, const h3_request *request, h3_result *rs,
                         h3_status (*work)(h3_job *))
{
    h3_request silent = h3_job_silent(request);
    const h3_request *rq = h3_comm_rank(e->comm) > 0 ? &silent : request;
    char *prompt = NULL;
    h3_result unasked;
    h3_status st;

    if (!rs) rs = &unasked;
    memset(rs, 0, sizeof *rs);
    j->e = e;
    j->rq = rq;
    j->rs = rs;
    j->started = h3_now();
    atomic_store(&e->cancel.stop, false);
    if (e->dev) e->dev->peak = 0; // what this request takes: everything is allocated anew
    st = h3_job_share_prompt(e->comm, &silent, &prompt);
    if (st == H3_OK) st = work(j);
    st = h3_comm_agree(e->comm, st);
    rs->seconds_total = h3_now() - j->started;
    rs->peak_rss = h3_peak_rss();
    rs->peak_device = e->dev ? e->dev->peak : 0;
    if (st == H3_OK && rq->on_event) {
        json_t *o = result_json(rs);
        name_outputs(o, rq);
        char *text = json_dumps(o, JSON_COMPACT);
        const h3_event ev = {
            .kind = H3_EVENT_DONE, .text = text ? text : "{}", .progress = 1, .eta_seconds = 0};
        rq->on_event(rq->user, &ev);
        free(text);
        json_decref(o);
    }
    h3_job_free(j);
    free(prompt);
    return st;
}

static h3_status need_request(const h3_request *rq)
{
    return rq ? H3_OK : h3_fail(H3_E_ARG, "no request given; h3_request_default makes one");
}

h3_status h3_generate(h3_engine *e, const h3_request *rq, h3_result *rs)
{
    h3_job *j;
    h3_status st = h3_engine_can_run(e);

    if (st == H3_OK) st = need_request(rq);
    if (st != H3_OK) return st;
    j = calloc(1, sizeof *j);
    if (!j) return h3_fail(H3_E_NOMEM, "no memory for a request");
    st = run_job(e, j, rq, rs, h3_job_run);
    free(j);
    return st;
}

static h3_status decode_work(h3_job *j)
{
    const char *seed;

    H3_TRY(h3_job_check_names(j));
    if (h3_comm_rank(j->e->comm) == 0) H3_TRY(h3_latents_read(&j->latents, j->latents_path));
    H3_TRY(h3_job_share_latents(j));
    const int width = (int)j->latents.w * 16, height = (int)j->latents.h * 16;
    seed = h3_latents_meta(j->latents.meta, "seed");
    if (seed) j->rs->seed = strtoull(seed, NULL, 10);
    if (h3_job_is_first(j)) H3_TRY(h3_output_check(j->rq, width, height, 0));
    return h3_job_decode(j);
}

h3_status h3_decode(h3_engine *e, const char *latents, const h3_request *rq, h3_result *rs)
{
    h3_job *j;
    h3_status st = h3_engine_can_run(e);

    if (st == H3_OK) st = need_request(rq);
    if (st != H3_OK) return st;
    if (!latents) return h3_fail(H3_E_ARG, "no latents given");
    j = calloc(1, sizeof *j);
    if (!j) return h3_fail(H3_E_NOMEM, "no memory for a request");
    j->latents_path = h3_strdupf("%s", latents);
    st = run_job(e, j, rq, rs, decode_work);
    free(j);
    return st;
}

/* Without a model only the arithmetic of the request is known. */
static h3_status plan_request(const h3_request *rq, json_t **out)
{
    h3_sources sources = {.n = 0};
    h3_plan *plan = NULL;
    h3_task task;
    h3_status st;

    H3_TRY(h3_request_task(&task, rq));
    H3_TRY(h3_request_check(rq, task));
    st = h3_sources_load(&sources, rq, task, NULL);
    if (st == H3_OK) st = h3_request_plan(&plan, rq, task, &sources, NULL);
    if (st == H3_OK) *out = h3_plan_describe(plan, &sources, rq);
    h3_plan_free(&plan);
    h3_sources_free(&sources);
    return st;
}

/* With one, the job goes as far as it can without computing. A plan that does not fit is a plan. */
static h3_status plan_job(h3_engine *e, const h3_request *rq, json_t **out)
{
    h3_job *j = calloc(1, sizeof *j);
    h3_result rs = {0};
    h3_status st;

    if (!j) return h3_fail(H3_E_NOMEM, "no memory for a request");
    j->e = e;
    j->rq = rq;
    j->rs = &rs;
    st = h3_job_load(j);
    if (st == H3_OK) st = h3_job_present(j);
    if (st == H3_OK) st = h3_fit_plan(&j->fit, j);
    if (st == H3_OK) {
        *out = h3_plan_describe(j->plan, &j->sources, rq);
        json_object_set_new(*out, "text_rows", json_integer(j->layout->n_text));
        json_object_set_new(*out, "rows", json_integer(j->layout->n_rows));
        json_object_set_new(*out, "memory", h3_fit_json(&j->fit));
        h3_job_tell_fit(j);
    }
    h3_job_free(j);
    free(j);
    return st;
}

/* A list of numbers on one line: fifty sigmas are read as one thing. */
static void join_numbers(char *text)
{
    char *to = text;

    for (const char *p = text; *p;) {
        const size_t n = *p == '[' ? strspn(p + 1, " \n0123456789+-.eE,") : 0;
        const char *end = n && p[1 + n] == ']' ? p + 1 + n : NULL;
        if (*p == '"') { // texts stay as they are
            do {
                if (*p == '\\') *to++ = *p++;
                *to++ = *p++;
            } while (*p != '"');
        }
        for (; end && p < end; p++)
            if (*p != '\n' && (*p != ' ' || to[-1] == ',')) *to++ = *p;
        *to++ = *p++;
    }
    *to = '\0';
}

h3_status h3_plan_json(h3_engine *e, const h3_request *rq, char **json)
{
    h3_request with_file;
    json_t *o = NULL;
    h3_status st;

    if (!json) return h3_fail(H3_E_ARG, "plan: no place for the JSON given");
    *json = NULL;
    H3_TRY(need_request(rq));
    with_file = *rq;
    if (!h3_output_base(rq) && !rq->on_frame && !rq->on_sound) with_file.out_path = "h3av.mp4";
    st = e ? plan_job(e, &with_file, &o) : plan_request(rq, &o);
    if (st != H3_OK) return st;
    *json = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    if (*json) join_numbers(*json);
    return *json ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for the plan");
}

/* What a backend counts beside operations: which of its ways were taken, and how often. */
static void add_ways(json_t *o, const h3_dev *d)
{
    json_t *all = json_object();
    const char *name;
    uint64_t n = 0;

    for (int i = 0; d->way && (name = d->way(d, i, &n)); i++)
        if (n > 0) json_object_set_new(all, name, json_integer((json_int_t)n));
    if (json_object_size(all) > 0)
        json_object_set_new(o, "ways", all);
    else
        json_decref(all);
}

/* What came of the files, and the most that the process had in memory. */
static void add_loading(json_t *o, const h3_dev *d)
{
    const h3_load_stat *l = &d->loaded;
    struct rusage u;

    memset(&u, 0, sizeof u);
    (void)getrusage(RUSAGE_SELF, &u);
    json_object_set_new(
        o, "loading",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:I}", "files", (json_int_t)l->files, "matrices",
                  (json_int_t)l->tensors, "direct", (json_int_t)l->direct, "converted",
                  (json_int_t)l->converted, "bytes", (json_int_t)l->bytes, "seconds", l->seconds,
                  "host_peak_bytes", (json_int_t)u.ru_maxrss * 1024));
}

h3_status h3_counters_json(h3_engine *e, char **json)
{
    json_t *o;

    if (!json) return h3_fail(H3_E_ARG, "counters: no place for the JSON given");
    *json = NULL;
    if (!e) return h3_fail(H3_E_ARG, "no engine given");
    o = json_object();

    for (int i = 0; i < H3_OP_COUNT; i++) {
        const h3_op_stat *s = &e->dev->stat[i];
        if (!s->calls) continue;
        json_object_set_new(o, h3_op_name((h3_op_id)i),
                            json_pack("{s:I, s:I, s:f, s:f, s:f}", "calls", (json_int_t)s->calls,
                                      "reference_calls", (json_int_t)s->ref_calls, "gflop",
                                      s->flops * 1e-9, "gbyte", s->bytes * 1e-9, "seconds",
                                      s->seconds));
    }
    add_ways(o, e->dev);
    add_loading(o, e->dev);
    *json = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    return *json ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for the counters");
}
