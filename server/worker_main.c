/**
 * The process of a worker; see worker.h for what it says and hears.
 *
 * One thread runs requests, one listens: "cancel" must get through while a request runs. Everything
 * a request leaves behind lies in the job's folder: video.mp4, sound.wav, thumbnail.png, and until
 * the server has stored the end of the job also checkpoint and latents, so that a run that was cut
 * off goes on where it was.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "params.h"
#include "server.h"

enum { THUMB_SIDE = 640 };

typedef struct proc {
    int fd;
    srv_lines in;
    pthread_mutex_t lock, send;
    pthread_cond_t has_op;
    json_t *op; ///< the next thing to do
    bool is_closed;
    h3_engine *engine;
    char running[SRV_ID_LEN], stopped[SRV_ID_LEN]; ///< job that runs; job last asked to stop
    json_t *warnings;
} proc;

static void tell(proc *p, json_t *o)
{
    pthread_mutex_lock(&p->send);
    srv_lines_send(p->fd, o);
    pthread_mutex_unlock(&p->send);
}

static json_t *text_of(const char *s)
{
    json_t *t = json_string(s);
    return t ? t : json_string("(text that is not UTF-8)");
}

static void tell_failure(proc *p, h3_status st)
{
    tell(p, json_pack("{s:s, s:s, s:o}", "e", "fail", "code", h3_status_name(st), "text",
                      text_of(h3_error())));
}

/* -------------------------------------------------------------------------------------- listening
 */

static void *listen_to_server(void *user)
{
    proc *p = user;
    json_t *o;

    while (srv_lines_next(&p->in, -1, &o) == SRV_READ_LINE) {
        const char *op = srv_json_str(o, "op"), *id = srv_json_str(o, "id");
        pthread_mutex_lock(&p->lock);
        if (op && strcmp(op, "cancel") == 0) {
            snprintf(p->stopped, sizeof p->stopped, "%s", id ? id : "");
            if (p->engine && strcmp(p->stopped, p->running) == 0) h3_cancel(p->engine);
            json_decref(o);
        } else {
            json_decref(p->op);
            p->op = o;
            pthread_cond_signal(&p->has_op);
        }
        pthread_mutex_unlock(&p->lock);
    }
    _exit(0); // the server is gone, or wants this to be gone
}

static json_t *next_op(proc *p)
{
    json_t *o;

    pthread_mutex_lock(&p->lock);
    while (!p->op)
        pthread_cond_wait(&p->has_op, &p->lock);
    o = p->op;
    p->op = NULL;
    pthread_mutex_unlock(&p->lock);
    return o;
}

/* ----------------------------------------------------------------------------------------- engine
 */

static void open_engine(proc *p, const json_t *o)
{
    h3_engine_opts e = h3_engine_default();
    h3_lora_file loras[SRV_INPUTS_MAX];
    h3_request rq = h3_request_default();
    json_t *list = json_object_get(o, "loras"), *one;
    char *plan = NULL;
    size_t i;
    h3_status st;

    e.model = srv_json_str(o, "model");
    e.dit = srv_json_str(o, "dit");
    e.text_encoder = srv_json_str(o, "text_encoder");
    e.vae = srv_json_str(o, "vae");
    e.audio_vae = srv_json_str(o, "audio_vae");
    e.tokenizer = srv_json_str(o, "tokenizer");
    e.device = srv_json_str(o, "device");
    e.dtype = srv_json_str(o, "dtype");
    e.math = srv_json_str(o, "math");
    e.qkv = srv_json_str(o, "qkv");
    e.quant = srv_json_str(o, "quant");
    e.offload = srv_json_str(o, "offload");
    e.n_threads = (int)srv_json_int(o, "n_threads");
    e.ram_limit = (uint64_t)srv_json_int(o, "ram_limit");
    e.vram_limit = (uint64_t)srv_json_int(o, "vram_limit");
    e.is_strict_lora = json_is_true(json_object_get(o, "is_strict_lora"));
    e.keep_loaded = true;
    json_array_foreach(list, i, one)
    {
        if (i < SRV_INPUTS_MAX)
            loras[e.n_loras++] = (h3_lora_file){.path = srv_json_str(one, "path"),
                                                .strength = (float)srv_json_num(one, "strength")};
    }
    e.loras = e.n_loras ? loras : NULL;
    st = h3_engine_open(&p->engine, &e);
    rq.prompt = "defaults";
    rq.task = "t2va";
    if (st == H3_OK)
        st = h3_plan_json(p->engine, &rq, &plan); // for the server to know the defaults
    if (st != H3_OK) {
        tell_failure(p, st);
        return;
    }
    tell(p, json_pack("{s:s, s:o}", "e", "ready", "plan", json_loads(plan, 0, NULL)));
    h3_string_free(plan);
}

/* ----------------------------------------------------------------------------------------- inputs
 */

typedef struct media {
    h3_input in[SRV_INPUTS_MAX];
    char *name[SRV_INPUTS_MAX];
    int n;
} media;

static void media_free(media *m)
{
    for (int i = 0; i < m->n; i++) {
        if (m->in[i].data) munmap((void *)(uintptr_t)m->in[i].data, m->in[i].size);
        free(m->name[i]);
    }
    m->n = 0;
}

static h3_input_kind kind_of(const char *s)
{
    static const char *const kinds[] = {"auto", "image", "video", "audio"};

    for (int i = 1; s && i < 4; i++)
        if (strcmp(s, kinds[i]) == 0) return (h3_input_kind)i;
    return H3_INPUT_AUTO;
}

/* Maps a file of the job's folder; the engine gets bytes and the client's own name for messages. */
static bool media_add(media *m, const char *dir, const json_t *o)
{
    const char *sound = srv_json_str(o, "sound"), *file = srv_json_str(o, "file");
    char *path = srv_text("%s/%s", dir, file ? file : "?");
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    h3_input *in = &m->in[m->n];
    struct stat s;
    void *data = MAP_FAILED;

    free(path);
    if (fd >= 0 && fstat(fd, &s) == 0 && s.st_size > 0)
        data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0) close(fd);
    if (data == MAP_FAILED) return false;
    m->name[m->n] = srv_copy(srv_json_str(o, "name"));
    *in = (h3_input){.path = m->name[m->n],
                     .data = data,
                     .size = (size_t)s.st_size,
                     .kind = kind_of(srv_json_str(o, "kind"))};
    if (sound && strcmp(sound, "yes") == 0) in->sound = H3_SOUND_YES;
    if (sound && strcmp(sound, "no") == 0) in->sound = H3_SOUND_NO;
    m->n++;
    return true;
}

/* Gives the request its inputs; refs has room for SRV_INPUTS_MAX. */
static bool media_bind(media *m, h3_request *rq, h3_input *refs, const char *dir,
                       const json_t *list)
{
    json_t *o;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, o)
    {
        const char *role = srv_json_str(o, "role");
        if (i >= SRV_INPUTS_MAX || !media_add(m, dir, o)) return false;
        if (role && strcmp(role, "first") == 0)
            rq->first = &m->in[i];
        else if (role && strcmp(role, "last") == 0)
            rq->last = &m->in[i];
        else
            refs[rq->n_refs++] = m->in[i];
    }
    // "no sound" means the soundtrack of clips; other references have none to leave out
    rq->refs = rq->n_refs ? refs : NULL;
    return true;
}

/* The sound option is about clips alone: a picture has no track to take or to leave. */
static void settle_sound(h3_input *in, const json_t *probe)
{
    const char *kind = srv_json_str(probe, "kind");

    if (kind && strcmp(kind, "video") != 0) in->sound = H3_SOUND_AUTO;
}

static h3_status probe_all(media *m, h3_input *refs, int n_refs, json_t *probes)
{
    for (int i = 0; i < m->n; i++) {
        char *text = NULL;
        json_t *probe;
        const h3_status st = h3_probe(&m->in[i], &text);
        if (st != H3_OK) return st;
        probe = json_loads(text, 0, NULL);
        h3_string_free(text);
        settle_sound(&m->in[i], probe);
        for (int k = 0; k < n_refs; k++)
            if (refs[k].data == m->in[i].data) settle_sound(&refs[k], probe);
        json_array_append_new(probes, probe);
    }
    return H3_OK;
}

/* Checks uploads. Keyframes also decide the canvas, so they are planned with. */
static void check(proc *p, const json_t *o)
{
    const json_t *params = json_object_get(o, "params");
    const char *task = srv_json_str(params, "task");
    h3_request rq = h3_request_default();
    h3_input refs[SRV_INPUTS_MAX];
    float sigmas[SRV_SIGMAS_MAX];
    media m = {.n = 0};
    json_t *probes = json_array();
    char *plan = NULL;
    h3_status st = H3_E_IO;

    srv_params_request(&rq, params, sigmas);
    rq.prompt = srv_json_str(o, "prompt");
    if (media_bind(&m, &rq, refs, srv_json_str(o, "dir"), json_object_get(o, "inputs")))
        st = probe_all(&m, refs, rq.n_refs, probes);
    if (st == H3_OK && task && strcmp(task, "fl2va") == 0) st = h3_plan_json(NULL, &rq, &plan);
    media_free(&m);
    if (st != H3_OK) {
        tell_failure(p, st);
        json_decref(probes);
        return;
    }
    tell(p, json_pack("{s:s, s:o, s:o}", "e", "checked", "probes", probes, "plan",
                      plan ? json_loads(plan, 0, NULL) : json_null()));
    h3_string_free(plan);
}

/* -------------------------------------------------------------------------------------------- run
 */

/* The picture as a PNG for the page, base64. */
static void tell_preview(proc *p, const h3_event *ev)
{
    size_t n;
    unsigned char *png = srv_png(ev->preview, ev->preview_width, ev->preview_height, &n);
    char *text = png ? srv_base64(png, n) : NULL;

    if (text) tell(p, json_pack("{s:s, s:s}", "e", "preview", "png", text));
    free(text);
    free(png);
}

static void on_event(void *user, const h3_event *ev)
{
    proc *p = user;

    pthread_mutex_lock(&p->lock);
    if (strcmp(p->stopped, p->running) == 0)
        h3_cancel(p->engine); // it may have come before the run had begun
    pthread_mutex_unlock(&p->lock);
    switch (ev->kind) {
    case H3_EVENT_PLAN:
        tell(p, json_pack("{s:s, s:o}", "e", "plan", "plan", json_loads(ev->text, 0, NULL)));
        return;
    case H3_EVENT_PHASE:
        tell(p, json_pack("{s:s, s:s, s:f}", "e", "phase", "phase", ev->phase, "progress",
                          ev->progress));
        return;
    case H3_EVENT_STEP:
        tell(p, json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f}", "e", "step", "phase", ev->phase,
                          "step", (json_int_t)ev->step, "steps", (json_int_t)ev->steps, "seconds",
                          ev->seconds, "eta", ev->eta_seconds, "progress", ev->progress));
        if (ev->preview) tell_preview(p, ev);
        return;
    case H3_EVENT_WARNING:
        json_array_append_new(p->warnings, text_of(ev->text));
        return;
    case H3_EVENT_PHASE_END:
    case H3_EVENT_INFO:
    case H3_EVENT_DONE:
        return;
    }
}

static json_t *describe(const h3_result *rs)
{
    json_t *stages = json_object();
    char hash[24];

    for (int i = 0; i < rs->n_phases; i++)
        json_object_set_new(stages, rs->phase[i].name, json_real(rs->phase[i].seconds));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)rs->latent_hash);
    return json_pack("{s:i, s:i, s:i, s:I, s:f, s:f, s:I, s:I, s:s, s:s, s:o}", "width", rs->width,
                     "height", rs->height, "frames", rs->frames, "samples", (json_int_t)rs->samples,
                     "seconds", rs->seconds_total, "step_seconds", rs->step_seconds, "peak_rss",
                     (json_int_t)rs->peak_rss, "peak_device", (json_int_t)rs->peak_device, "codec",
                     rs->codec, "latents", hash, "stages", stages);
}

static bool exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && s.st_size > 0;
}

typedef struct files {
    char *video, *wav, *thumb, *latents, *checkpoint;
} files;

static h3_status generate(proc *p, h3_request *rq, const files *f, h3_result *rs)
{
    h3_status st = H3_E_ARG;

    if (exists(f->latents)) { // only decoding was left
        st = h3_decode(p->engine, f->latents, rq, rs);
        if (st == H3_OK || st == H3_E_CANCELLED || st == H3_E_IO) return st;
        unlink(f->latents);
    }
    if (exists(f->checkpoint)) {
        rq->resume_path = f->checkpoint;
        st = h3_generate(p->engine, rq, rs);
        // one that belongs to another model or build is of no use: from the start, then
        if (st != H3_E_ARG && st != H3_E_FORMAT && st != H3_E_SHAPE && st != H3_E_MISSING)
            return st;
        rq->resume_path = NULL;
        unlink(f->checkpoint);
    }
    return h3_generate(p->engine, rq, rs);
}

static h3_status run_in(proc *p, const json_t *o, const files *f, h3_result *rs)
{
    h3_request rq = h3_request_default();
    h3_input refs[SRV_INPUTS_MAX];
    float sigmas[SRV_SIGMAS_MAX];
    media m = {.n = 0};
    json_t *probes = json_array();
    h3_status st = H3_E_IO;

    srv_params_request(&rq, json_object_get(o, "params"), sigmas);
    rq.prompt = srv_json_str(o, "prompt");
    rq.out_path = f->video;
    rq.wav_path = f->wav;
    rq.latents_path = f->latents;
    rq.keep_latents = true; // until the end of the job is stored
    rq.checkpoint_every = (int)srv_json_int(o, "checkpoint_every");
    rq.checkpoint_path = rq.checkpoint_every ? f->checkpoint : NULL;
    rq.on_event = on_event;
    rq.has_previews = true;
    rq.user = p;
    if (media_bind(&m, &rq, refs, srv_json_str(o, "dir"), json_object_get(o, "inputs")))
        st = probe_all(&m, refs, rq.n_refs, probes);
    if (st == H3_OK) st = generate(p, &rq, f, rs);
    if (st == H3_OK) st = h3_thumbnail(f->video, f->thumb, THUMB_SIDE);
    media_free(&m);
    json_decref(probes);
    return st;
}

static void run(proc *p, const json_t *o)
{
    const char *dir = srv_json_str(o, "dir");
    const files f = {srv_text("%s/video.mp4", dir), srv_text("%s/sound.wav", dir),
                     srv_text("%s/thumbnail.png", dir), srv_text("%s/latents", dir),
                     srv_text("%s/checkpoint", dir)};
    h3_result rs;
    h3_status st;

    memset(&rs, 0, sizeof rs);
    pthread_mutex_lock(&p->lock);
    snprintf(p->running, sizeof p->running, "%s", srv_json_str(o, "id"));
    pthread_mutex_unlock(&p->lock);
    p->warnings = json_array();
    st = run_in(p, o, &f, &rs);
    pthread_mutex_lock(&p->lock);
    p->running[0] = '\0';
    pthread_mutex_unlock(&p->lock);
    if (st == H3_OK)
        tell(p, json_pack("{s:s, s:o, s:O}", "e", "done", "result", describe(&rs), "warnings",
                          p->warnings));
    else
        tell_failure(p, st);
    json_decref(p->warnings);
    p->warnings = NULL;
    free(f.video);
    free(f.wav);
    free(f.thumb);
    free(f.latents);
    free(f.checkpoint);
}

int srv_worker_main(int fd)
{
    static proc p;
    pthread_t listener;

    p.fd = p.in.fd = fd;
    signal(SIGINT, SIG_IGN); // the server decides: Ctrl-C reaches the whole group
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    setpriority(PRIO_PROCESS, 0, 5); // answering comes before generating
    pthread_mutex_init(&p.lock, NULL);
    pthread_mutex_init(&p.send, NULL);
    pthread_cond_init(&p.has_op, NULL);
    if (pthread_create(&listener, NULL, listen_to_server, &p) != 0) return 70;
    for (;;) {
        json_t *o = next_op(&p);
        const char *op = srv_json_str(o, "op");
        if (op && strcmp(op, "open") == 0) open_engine(&p, o);
        if (op && strcmp(op, "check") == 0) check(&p, o);
        if (op && strcmp(op, "run") == 0) run(&p, o);
        json_decref(o);
    }
}
