/**
 * Goldens of the DiT, of the Euler steps, and of whole denoising runs.
 *
 *   dit      one forward: every intermediate of the file, in f32 or bf16, and the same again from
 * the diffusers layout of the same weights, which has to give the same bits steps    chains of
 * Euler steps under given velocities, on the device sample   the denoising part of a pipeline
 * golden: initial rows from the seed, then every step
 *
 * Limits are those of the oracle's notes: f32 outputs rel 3e-6 / abs 3e-5, intermediates rel 4e-6,
 * bf16 outputs rel 1.5e-2 against both the f32 and the bf16 golden. bf16 intermediates have no
 * stated limit: they get twice that of the outputs, which only tells gross mistakes. f32 tensors
 * inside a bf16 file (patch projections, time, rotation) keep the f32 limit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "dit.h"
#include "file.h"
#include "golden.h"
#include "golden_read.h"
#include "pack.h"
#include "sampler.h"
#include "test_models.h"

enum { F32_OUT, F32_MID, BF16_OUT, BF16_MID };
static const struct {
    double rel, abs;
} limits[] = {[F32_OUT] = {3e-6, 3e-5},
              [F32_MID] = {4e-6, 0},
              [BF16_OUT] = {1.5e-2, 0},
              [BF16_MID] = {3e-2, 0}};

/* ---- small helpers ---- */

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static const char *text_of(const golden *g, const char *key)
{
    return json_string_value(json_object_get(g->meta, key));
}

/* The tensor's values as int32, times `scale`; NULL when absent. */
static int32_t *ints(const golden *g, const char *name, int64_t *n)
{
    const h3_tensor *t = golden_find(g, name);
    int32_t *out;

    *n = t ? h3_numel(*t) : 0;
    if (!t) return NULL;
    out = calloc((size_t)*n + 1, sizeof *out);
    for (int64_t i = 0; out && i < *n; i++)
        out[i] = (int32_t)golden_value(*t, i);
    return out;
}

/* ---- taps ---- */

typedef struct seen {
    char *name;
    h3_tensor t;
} seen;

typedef struct trace {
    seen *item;
    int n, room;
} trace;

static void keep(void *user, const char *name, h3_tensor t)
{
    trace *r = user;
    const size_t bytes = (size_t)h3_numel(t) * h3_dtype_bytes((h3_dtype)t.dtype);

    if (r->n == r->room) {
        seen *grown = realloc(r->item, (size_t)(r->room = 2 * r->room + 64) * sizeof *grown);
        if (!grown) abort(); // a test may
        r->item = grown;
    }
    seen *s = &r->item[r->n++];
    s->name = h3_strdupf("%s", name);
    s->t = t;
    s->t.data = malloc(bytes + 1);
    if (!s->t.data) abort();
    memcpy(s->t.data, t.data, bytes);
}

static const h3_tensor *recall(const trace *r, const char *name)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->item[i].name, name) == 0) return &r->item[i].t;
    return NULL;
}

static void forget(trace *r)
{
    for (int i = 0; i < r->n; i++) {
        free(r->item[i].name);
        free(r->item[i].t.data);
    }
    free(r->item);
    memset(r, 0, sizeof *r);
}

/* ---- ranks ---- */

/* One GPU a rank. */
static h3_status open_device(const golden *g, h3_dev **d)
{
    char name[32];

    snprintf(name, sizeof name, "%s", g->device);
    if (g->comm && strcmp(name, "cuda") == 0)
        snprintf(name, sizeof name, "cuda:%d", g->comm->local_rank);
    H3_TRY(h3_dev_open(d, name, NULL));
    return h3_comm_attach(g->comm, *d);
}

static void close_device(const golden *g, h3_dev **d)
{
    h3_comm_detach(g->comm, *d);
    h3_dev_close(d);
}

/* Every rank saw its rows of a tensor, or all of it, or nothing: all get the whole. */
static h3_status gather_tap(const golden *g, trace *r, const char *name, h3_tensor want)
{
    const int P = h3_comm_size(g->comm), me = h3_comm_rank(g->comm);
    const h3_tensor *own = recall(r, name);
    const size_t size = own ? h3_dtype_bytes((h3_dtype)own->dtype) : 0;
    const size_t n_want = (size_t)h3_numel(want) / (starts_with(name, "rope.") ? 2 : 1);
    size_t head[2 * H3_COMM_LOCAL] = {0}, bytes[H3_COMM_LOCAL], sum = 0, at = 0;
    h3_tensor t = own ? *own : want;

    for (int i = 0; i < P; i++)
        bytes[i] = 2 * sizeof *head;
    head[2 * me] = own ? (size_t)h3_numel(*own) * size : 0;
    head[2 * me + 1] = own ? own->dtype : 0;
    H3_TRY(h3_comm_all_gather(g->comm, NULL, head, bytes));
    for (int i = 0; i < P; i++) {
        bytes[i] = head[2 * i];
        if (bytes[i]) t.dtype = (uint8_t)head[2 * i + 1];
        at += i < me ? bytes[i] : 0;
        sum += bytes[i];
    }
    for (int i = 0; i < P; i++) // one that has everything speaks for all
        if (bytes[i] == n_want * h3_dtype_bytes((h3_dtype)t.dtype)) {
            for (int k = 0; k < P; k++)
                bytes[k] = k == i ? bytes[i] : 0;
            at = 0;
            sum = bytes[i];
            break;
        }
    unsigned char *all = malloc(sum + 1);
    if (!all) abort();
    if (own && bytes[me]) memcpy(all + at, own->data, bytes[me]);
    const h3_status st = h3_comm_all_gather(g->comm, NULL, all, bytes);
    if (sum == 0) {
        free(all);
        return st;
    }
    t.ne[0] = 1;
    t.ne[0] = (int64_t)(sum / h3_dtype_bytes((h3_dtype)t.dtype)) / h3_numel(t);
    t.data = all;
    for (int i = 0; i < r->n; i++) // the first of that name is the one looked at
        if (strcmp(r->item[i].name, name) == 0) {
            free(r->item[i].t.data);
            r->item[i].t = t;
            return st;
        }
    keep(r, name, t);
    free(all);
    return st;
}

static h3_status gather_taps(const golden *g, trace *r)
{
    for (int i = 0; g->comm && i < g->n_tensors; i++)
        if (!starts_with(g->tensors[i].name, "in."))
            H3_TRY(gather_tap(g, r, g->tensors[i].name, g->tensors[i].t));
    return H3_OK;
}

/* ---- one forward ---- */

typedef struct forward_in {
    int64_t n_video, n_audio, n_text, n_times, n_rows, n_cu, n_rcu, n_tags;
    int32_t *video_idx, *audio_idx, *text_idx, *mod_row, *tags, *cu, *rcu;
    const h3_tensor *video, *audio, *text, *times, *positions;
} forward_in;

static void free_forward_in(forward_in *f)
{
    free(f->video_idx);
    free(f->audio_idx);
    free(f->text_idx);
    free(f->mod_row);
    free(f->tags);
    free(f->cu);
    free(f->rcu);
}

/* Bounds that fit the rows at hand: the last document of a padded sequence may lie beyond them. */
static int64_t documents_within(const int32_t *cu, int64_t n, int64_t rows)
{
    while (n > 0 && cu[n - 1] > rows)
        n--;
    return n > 0 ? n - 1 : 0;
}

static bool read_forward_in(golden *g, forward_in *f)
{
    memset(f, 0, sizeof *f);
    f->video_idx = ints(g, "in.video_indices", &f->n_video);
    f->audio_idx = ints(g, "in.audio_indices", &f->n_audio);
    f->text_idx = ints(g, "in.text_indices", &f->n_text);
    f->mod_row = ints(g, "in.timestep_indices", &f->n_rows);
    f->tags = ints(g, "in.token_tags", &f->n_tags);
    f->cu = ints(g, "in.cu_seqlens", &f->n_cu);
    f->rcu = ints(g, "in.refiner_cu_seqlens", &f->n_rcu);
    f->video = golden_need(g, "in.hidden_states");
    f->audio = golden_need(g, "in.audio_hidden_states");
    f->text = golden_need(g, "in.encoder_hidden_states");
    f->times = golden_need(g, "in.timestep");
    f->positions = golden_need(g, "in.position_ids");
    if (!f->video || !f->audio || !f->text || !f->times || !f->positions || !f->video_idx ||
        !f->audio_idx || !f->text_idx || !f->mod_row || !f->tags || f->n_tags != f->n_rows ||
        f->positions->dtype != H3_F64 || f->times->dtype != H3_F32 || f->video->dtype != H3_F32 ||
        f->audio->dtype != H3_F32 || h3_numel(*f->positions) != 3 * f->n_rows) {
        golden_check(g, "inputs", false, "missing or of another type than the kind's");
        return false;
    }
    f->n_times = h3_numel(*f->times);
    for (int64_t i = 0; i < f->n_rows; i++)
        f->mod_row[i] = 3 * f->mod_row[i] + (f->tags[i] < 0 ? 0 : f->tags[i]);
    return true;
}

static h3_dit_request request_of(const forward_in *f, h3_dtype act)
{
    const int64_t n_docs = f->cu ? documents_within(f->cu, f->n_cu, f->n_rows) : 0;
    const int64_t n_texts = f->rcu ? documents_within(f->rcu, f->n_rcu, f->n_text) : 0;

    return (h3_dit_request){
        .act = (uint8_t)act,
        .n_rows = f->n_rows,
        .n_video = f->n_video,
        .n_audio = f->n_audio,
        .n_text = f->n_text,
        .video_indices = f->video_idx,
        .audio_indices = f->audio_idx,
        .text_indices = f->text_idx,
        .positions = f->positions->data,
        .cu = f->cu,
        .n_documents = (int)n_docs,
        .refiner_cu = f->rcu,
        .n_refiner_documents = (int)n_texts,
        .text = *f->text,
        .n_steps = 1,
        .n_timesteps = f->n_times,
        .timesteps = f->times->data,
        .mod_row = f->mod_row,
    };
}

static h3_status forward(h3_dev *d, const h3_dit *m, const forward_in *f, h3_dtype act)
{
    const h3_dit_request r = request_of(f, act);
    h3_tensor video = {0}, audio = {0}, v_video = {0}, v_audio = {0};
    h3_dit_state *s = NULL;
    size_t scratch, kept;
    h3_status st;

    if ((st = h3_dit_scratch_bytes(m, &r, &scratch, &kept)) != H3_OK) return st;
    if ((st = h3_dev_scratch(d, scratch)) != H3_OK) return st;
    if ((st = h3_dit_prepare(&s, m, &r)) != H3_OK) return st;
    st = h3_dev_alloc(d, &video, H3_F32, 2, (int64_t[]){f->n_video, m->dims.video_cols});
    if (st == H3_OK) st = h3_dev_alloc(d, &v_video, H3_F32, 2, video.ne);
    if (st == H3_OK)
        st = h3_dev_alloc(d, &audio, H3_F32, 2, (int64_t[]){f->n_audio, m->dims.audio_cols});
    if (st == H3_OK) st = h3_dev_alloc(d, &v_audio, H3_F32, 2, audio.ne);
    if (st == H3_OK) st = h3_dev_upload(d, video, f->video->data);
    if (st == H3_OK) st = h3_dev_upload(d, audio, f->audio->data);
    if (st == H3_OK) st = h3_dit_forward(d, m, s, 0, v_video, v_audio, video, audio);
    if (st == H3_OK) st = h3_dev_sync(d);
    h3_dev_free(d, &video);
    h3_dev_free(d, &audio);
    h3_dev_free(d, &v_video);
    h3_dev_free(d, &v_audio);
    h3_dit_release(&s);
    return st;
}

/* Opens device and model, runs, keeps everything that was tapped. */
static h3_status run_model(golden *g, const char *folder, const forward_in *f, h3_dtype act,
                           trace *r)
{
    h3_dev *d = NULL;
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    h3_status st = open_device(g, &d);

    if (st == H3_OK) st = h3_ckpt_open(&ck, folder, H3_ROLE_DIT, NULL);
    if (st == H3_OK) st = h3_dit_open(&m, ck, d);
    if (st == H3_OK) {
        d->tap = keep;
        d->tap_user = r;
        st = forward(d, m, f, act);
    }
    if (st == H3_OK) st = gather_taps(g, r);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    close_device(g, &d);
    return st;
}

/* ---- comparisons ---- */

/* The reference stores its angles twice over, once for each half of the rotation. */
static void compare_rope(golden *g, const char *name, h3_tensor want, h3_tensor got)
{
    const int64_t S = got.ne[0], n = got.ne[1];
    float *twice;

    if (h3_numel(want) != 2 * S * n) {
        golden_check(g, name, false, "%s, expected twice %s", h3_tensor_desc(want),
                     h3_tensor_desc(got));
        return;
    }
    twice = malloc((size_t)(2 * S * n) * sizeof *twice + 1);
    if (!twice) abort();
    for (int64_t s = 0; s < S; s++)
        for (int64_t i = 0; i < 2 * n; i++)
            twice[2 * n * s + i] = ((const float *)got.data)[n * s + i % n];
    golden_near(g, name, h3_tensor_2d(twice, H3_F32, S, 2 * n), limits[F32_MID].rel, 0);
    free(twice);
}

static int limit_of(const char *name, h3_tensor want, h3_dtype act)
{
    const bool is_out = starts_with(name, "out.");

    if (act == H3_F32) return is_out ? F32_OUT : F32_MID;
    if (is_out) return BF16_OUT;
    return want.dtype == H3_F32 ? F32_MID : BF16_MID;
}

static void compare_all(golden *g, const trace *r, h3_dtype act)
{
    for (int i = 0; i < g->n_tensors; i++) {
        const char *name = g->tensors[i].name;
        const h3_tensor want = g->tensors[i].t, *got = recall(r, name);
        if (starts_with(name, "in.")) continue;
        if (!got) {
            golden_check(g, name, false, "the forward has no such tensor");
        } else if (starts_with(name, "rope.")) {
            compare_rope(g, name, want, *got);
        } else {
            const int k = limit_of(name, want, act);
            golden_near(g, name, *got, limits[k].rel, limits[k].abs);
        }
    }
}

/* A bf16 run is judged by the f32 golden of the same case, when it is there. */
static void compare_sibling(golden *g, const trace *r)
{
    static const char *const outs[] = {"out.video", "out.audio"};
    const char *tag = strstr(g->path, ".bf16.safetensors");
    golden f32 = {0};
    char *path;

    if (!tag) return;
    path = h3_strdupf("%.*s.f32.safetensors", (int)(tag - g->path), g->path);
    if (h3_path_exists(path)) {
        if (golden_read(&f32, path) == H3_OK)
            for (int i = 0; i < 2; i++) {
                const h3_tensor *want = golden_find(&f32, outs[i]), *got = recall(r, outs[i]);
                char *name = h3_strdupf("%s against the f32 golden", outs[i]);
                if (want && got) golden_near_to(g, name, *want, *got, limits[BF16_OUT].rel, 0);
                free(name);
            }
        golden_free(&f32);
    }
    free(path);
}

/* Same weights, other layout: nothing may differ, not even by rounding. */
static void compare_bits(golden *g, const trace *a, const trace *b)
{
    static const char *const outs[] = {"out.video", "out.audio"};

    for (int i = 0; i < 2; i++) {
        const h3_tensor *x = recall(a, outs[i]), *y = recall(b, outs[i]);
        const bool same = x && y && h3_numel(*x) == h3_numel(*y) &&
                          memcmp(x->data, y->data, (size_t)h3_numel(*x) * sizeof(float)) == 0;
        char *name = h3_strdupf("%s from the diffusers layout", outs[i]);
        golden_check(g, name, same, "bits %s", same ? "equal" : "differ");
        free(name);
    }
}

/* ---- which model ---- */

/* The file names the seed of its weights; that of our copy is 1, of one beside the file unknown. */
static bool is_of_stored_model(const golden *g)
{
    const json_t *seed = json_object_get(g->meta, "weights_seed");
    return json_is_integer(seed) && json_integer_value(seed) == 1;
}

/* "<case>.model/transformer" beside the golden, else the tiny model's partition. */
static char *model_folder(golden *g, bool *is_tiny)
{
    const char *partition = text_of(g, "partition");
    const char *slash = strrchr(g->path, '/'), *base = slash ? slash + 1 : g->path;
    const char *dot = strchr(base, '.');
    char *own = h3_strdupf("%s/%.*s.model/transformer", g->folder,
                           dot ? (int)(dot - base) : (int)strlen(base), base);
    char *relative, *found;

    *is_tiny = false;
    if (h3_path_is_dir(own)) return own;
    free(own);
    *is_tiny = true;
    relative = h3_strdupf("tiny-h3/original/%s/transformer", partition ? partition : "FL2VA");
    found = is_of_stored_model(g) ? golden_stored_model(relative) : NULL;
    if (!found) found = golden_model(g, relative, relative);
    free(relative);
    return found;
}

/* tiny-h3/diffusers/transformer[_ref] next to tiny-h3/original/<partition>/transformer. */
static char *diffusers_folder(const golden *g, const char *original)
{
    const char *partition = text_of(g, "partition");
    const char *cut = strstr(original, "/original/");
    char *p;

    if (!cut) return NULL;
    p = h3_strdupf("%.*s/diffusers/transformer%s", (int)(cut - original), original,
                   partition && strcmp(partition, "Ref2VA") == 0 ? "_ref" : "");
    const char *whole = test_model(p);
    char *made = h3_path_is_dir(whole) ? h3_strdupf("%s", whole) : NULL;
    free(p);
    return made;
}

static h3_status run_both(golden *g, const forward_in *f, h3_dtype act)
{
    trace first = {0}, second = {0};
    bool is_tiny;
    char *folder = model_folder(g, &is_tiny);
    char *other = folder && is_tiny ? diffusers_folder(g, folder) : NULL;
    h3_status st = H3_OK;

    if (folder) st = run_model(g, folder, f, act, &first);
    if (folder && st == H3_OK) {
        compare_all(g, &first, act);
        if (act == H3_BF16) compare_sibling(g, &first);
    }
    if (other && st == H3_OK) {
        st = run_model(g, other, f, act, &second);
        if (st == H3_OK) compare_bits(g, &first, &second);
    }
    forget(&first);
    forget(&second);
    free(folder);
    free(other);
    return st;
}

static bool match_dit(const golden *g)
{
    return golden_find(g, "in.hidden_states") && golden_find(g, "in.timestep") &&
           golden_find(g, "out.video");
}

static h3_status run_dit(golden *g)
{
    const char *mode = text_of(g, "mode");
    const h3_dtype act = mode && strcmp(mode, "bf16") == 0 ? H3_BF16 : H3_F32;
    forward_in f;
    h3_status st = H3_OK;

    if (read_forward_in(g, &f)) st = run_both(g, &f, act);
    free_forward_in(&f);
    return st;
}

/* ---- Euler steps on the device ---- */

static bool match_steps(const golden *g)
{
    return golden_find(g, "0.f32.x0") && golden_find(g, "0.v0") &&
           json_is_array(json_object_get(g->meta, "chains"));
}

/* Chain k: x0 under v0, v1, ... to every x<i> that the file holds, bit for bit. */
static h3_status run_chain(golden *g, h3_dev *d, int k, const h3_schedule *s)
{
    char name[64];
    h3_tensor x = {0}, v = {0};
    const h3_tensor *first, *velocity;
    float *host;
    h3_status st;

    snprintf(name, sizeof name, "%d.v0", k);
    if (!golden_find(g, name)) return H3_OK; // velocities of long chains are not stored
    snprintf(name, sizeof name, "%d.f32.x0", k);
    if (!(first = golden_need(g, name))) return H3_OK;
    if (!(host = malloc((size_t)h3_numel(*first) * sizeof *host + 1))) abort();
    st = h3_dev_alloc(d, &x, H3_F32, 2, first->ne);
    if (st == H3_OK) st = h3_dev_alloc(d, &v, H3_F32, 2, first->ne);
    if (st == H3_OK) st = h3_dev_upload(d, x, first->data);
    for (int i = 0; st == H3_OK && i < s->n_steps; i++) {
        const h3_euler e = h3_sigma_euler(s, i);
        snprintf(name, sizeof name, "%d.v%d", k, i);
        if (!(velocity = golden_need(g, name))) break;
        st = h3_dev_upload(d, v, velocity->data);
        if (st == H3_OK) st = d->ops->flow_step(d, x, v, e.back, e.ratio);
        if (st == H3_OK) st = h3_dev_download(d, host, x);
        snprintf(name, sizeof name, "%d.f32.x%d", k, i + 1);
        if (st == H3_OK && golden_find(g, name))
            golden_exact(g, name, h3_tensor_2d(host, H3_F32, x.ne[0], x.ne[1]));
    }
    h3_dev_free(d, &x);
    h3_dev_free(d, &v);
    free(host);
    return st;
}

static h3_status run_steps(golden *g)
{
    const json_t *chains = json_object_get(g->meta, "chains");
    h3_dev *d = NULL;
    h3_status st = h3_dev_open(&d, g->device, NULL);

    for (size_t k = 0; st == H3_OK && k < json_array_size(chains); k++) {
        const json_t *c = json_array_get(chains, k);
        h3_schedule s;
        st = h3_schedule_init(&s, (int)json_integer_value(json_object_get(c, "steps")),
                              json_number_value(json_object_get(c, "shift")));
        if (st != H3_OK) break;
        st = run_chain(g, d, (int)k, &s);
        h3_schedule_free(&s);
    }
    h3_dev_close(&d);
    return st;
}

/* ---- denoising part of a pipeline golden ---- */

enum { MAX_CONDITIONS = H3_MAX_CONDITIONS };

typedef struct sample {
    golden *g;
    h3_layout *layout;
    h3_schedule video, audio;
    h3_condition_shape shapes[MAX_CONDITIONS];
    int n_conditions;
    h3_pack_visual visual[MAX_CONDITIONS];
    h3_latent_shape visual_shape[MAX_CONDITIONS];
    float *noise[MAX_CONDITIONS];
    int n_visual;
    h3_pack_sound sound[MAX_CONDITIONS];
    int n_sound;
    h3_latent_shape target;
    int64_t n_audio;
    float *video_rows, *audio_rows, *video_out, *audio_out;
    float *video_mid, *audio_mid; ///< generated rows after step 0, to resume from
} sample;

static void free_sample(sample *s)
{
    for (int i = 0; i < s->n_visual; i++)
        free(s->noise[i]);
    free(s->video_rows);
    free(s->audio_rows);
    free(s->video_out);
    free(s->audio_out);
    free(s->video_mid);
    free(s->audio_mid);
    h3_schedule_free(&s->video);
    h3_schedule_free(&s->audio);
    h3_layout_free(&s->layout);
}

static bool match_sample(const golden *g)
{
    return golden_find(g, "prompt_embeds") && golden_find(g, "text_token_tags") &&
           golden_find(g, "init.video_rows") && json_object_get(g->meta, "case");
}

static int64_t number(const json_t *o, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(o, key));
}

static float *floats(int64_t n)
{
    float *p = calloc((size_t)n + 1, sizeof *p);
    if (!p) abort();
    return p;
}

/* The next condition<i>.latents [1, 24, t, h, w]. */
static bool add_visual(sample *s, h3_condition_shape *shape)
{
    char name[64];
    const h3_tensor *z;

    snprintf(name, sizeof name, "condition%d.latents", s->n_visual);
    z = golden_need(s->g, name);
    if (!z || z->rank != 5 || z->dtype != H3_F32) return false;
    const h3_latent_shape at = {z->ne[2], z->ne[3], z->ne[4]};
    shape->t = at.t;
    shape->h = at.h;
    shape->w = at.w;
    s->noise[s->n_visual] = floats(h3_numel(*z));
    s->visual_shape[s->n_visual] = at;
    s->visual[s->n_visual] = (h3_pack_visual){at, z->data, s->noise[s->n_visual]};
    s->n_visual++;
    return true;
}

/* The next audio_condition<i>.rows [2 n, 32]. */
static bool add_sound(sample *s, h3_condition_shape *shape)
{
    char name[64];
    const h3_tensor *rows;

    snprintf(name, sizeof name, "audio_condition%d.rows", s->n_sound);
    rows = golden_need(s->g, name);
    if (!rows || rows->rank != 2 || rows->dtype != H3_F32) return false;
    shape->n_audio = rows->ne[0] / 2;
    s->sound[s->n_sound++] = (h3_pack_sound){rows->data, rows->ne[0]};
    return true;
}

static bool add_reference(sample *s, const json_t *r)
{
    const char *kind = json_string_value(json_object_get(r, "kind"));
    h3_condition_shape *shape = &s->shapes[s->n_conditions++];
    const bool is_sound = kind && strcmp(kind, "audio") == 0;

    if (!kind) return false;
    shape->kind = is_sound                     ? H3_COND_AUDIO
                  : strcmp(kind, "video") == 0 ? H3_COND_VIDEO
                                               : H3_COND_IMAGE;
    if (!is_sound && !add_visual(s, shape)) return false;
    if (is_sound || json_integer_value(json_object_get(r, "sound")) > 0) return add_sound(s, shape);
    return true;
}

static bool add_keyframe(sample *s, const json_t *c, const char *key, h3_condition_kind kind)
{
    if (!json_object_get(c, key)) return true;
    s->shapes[s->n_conditions].kind = kind;
    return add_visual(s, &s->shapes[s->n_conditions++]);
}

static bool read_conditions(sample *s, const json_t *c)
{
    const json_t *refs = json_object_get(c, "references");

    if (json_array_size(refs) > MAX_CONDITIONS) return false;
    for (size_t i = 0; i < json_array_size(refs); i++)
        if (!add_reference(s, json_array_get(refs, i))) return false;
    if (refs) return true;
    return add_keyframe(s, c, "image", H3_COND_FIRST) &&
           add_keyframe(s, c, "last_image", H3_COND_LAST);
}

static h3_status make_layout(sample *s)
{
    int64_t n_text;
    int32_t *tags = ints(s->g, "text_token_tags", &n_text);
    const h3_layout_in in = {.text_tags = tags,
                             .n_text = n_text,
                             .conditions = s->shapes,
                             .n_conditions = s->n_conditions,
                             .t = s->target.t,
                             .h = s->target.h,
                             .w = s->target.w,
                             .n_audio = s->n_audio};
    const h3_status st = h3_layout_create(&s->layout, &in);

    free(tags);
    return st;
}

static h3_status make_rows(sample *s, uint64_t seed)
{
    const int64_t n_video = 24 * s->target.t * s->target.h * s->target.w;
    float *video = floats(n_video), *audio = floats(64 * s->n_audio);
    const h3_noise_spec spec = {.seed = seed,
                                .order = H3_NOISE_ONE_STREAM,
                                .n_conditions = s->n_visual,
                                .conditions = s->visual_shape,
                                .video = s->target,
                                .n_audio = s->n_audio};
    const h3_layout *l = s->layout;
    h3_status st;

    s->video_rows = floats(l->n_video * 96);
    s->video_out = floats(l->n_video * 96);
    s->video_mid = floats(l->n_video * 96);
    s->audio_rows = floats(l->n_audio * 32);
    s->audio_out = floats(l->n_audio * 32);
    s->audio_mid = floats(l->n_audio * 32);
    h3_noise_fill(&spec, s->noise, video, audio);
    st = h3_pack_video(s->video_rows, s->visual, s->n_visual, video, s->target, 24);
    h3_pack_audio(s->audio_rows, s->sound, s->n_sound, audio, 2 * s->n_audio, 32);
    golden_exact(s->g, "init.video_rows", h3_tensor_2d(s->video_rows, H3_F32, l->n_video, 96));
    golden_exact(s->g, "init.audio_rows", h3_tensor_2d(s->audio_rows, H3_F32, l->n_audio, 32));
    free(video);
    free(audio);
    return st;
}

/* Compares what the file has of this step, if it has it. */
static void compare_step(sample *s, h3_dev *d, int step, const char *leaf, h3_tensor t)
{
    char name[64];
    float *host = floats(h3_numel(t));

    snprintf(name, sizeof name, "step%d.%s", step, leaf);
    if (golden_find(s->g, name)) {
        if (h3_dev_download(d, host, t) != H3_OK) abort();
        golden_near(s->g, name, h3_tensor_2d(host, H3_F32, t.ne[0], t.ne[1]), 4e-6, 3e-5);
    }
    free(host);
}

static h3_status after_step(void *user, const h3_sampler_step *k)
{
    sample *s = user;
    float t[4];
    char name[64];

    memcpy(t, k->times.t, sizeof t);
    snprintf(name, sizeof name, "step%d.timesteps", k->step);
    if (golden_find(s->g, name)) golden_exact(s->g, name, h3_tensor_1d(t, H3_F32, k->times.n));
    compare_step(s, k->dev, k->step, "velocity_video", k->v_video);
    compare_step(s, k->dev, k->step, "velocity_audio", k->v_audio);
    compare_step(s, k->dev, k->step, "video_rows", k->video);
    compare_step(s, k->dev, k->step, "audio_rows", k->audio);
    if (k->step > 0) return H3_OK;
    H3_TRY(h3_dev_download(k->dev, s->video_mid, k->video));
    return h3_dev_download(k->dev, s->audio_mid, k->audio);
}

/* From the rows after step 0 the rest of the run must come out the same, bit for bit. */
static h3_status resume(sample *s, const h3_dit *m, h3_sampler_in in)
{
    const h3_layout *l = s->layout;
    const int64_t nv = l->n_video - l->n_condition_video, na = l->n_audio - l->n_condition_audio;
    float *video = floats(nv * 96), *audio = floats(na * 32);
    h3_status st;

    memcpy(s->video_rows + l->n_condition_video * 96, s->video_mid, (size_t)nv * 96 * 4);
    memcpy(s->audio_rows + l->n_condition_audio * 32, s->audio_mid, (size_t)na * 32 * 4);
    in.first_step = 1;
    in.after_step = NULL;
    st = h3_sampler_run(video, audio, m, &in);
    if (st == H3_OK)
        golden_check(s->g, "resumed from step 1",
                     memcmp(video, s->video_out, (size_t)nv * 96 * 4) == 0 &&
                         memcmp(audio, s->audio_out, (size_t)na * 32 * 4) == 0,
                     "rows of an interrupted and an uninterrupted run");
    free(video);
    free(audio);
    return st;
}

static h3_status denoise(sample *s, const h3_dit *m)
{
    const h3_tensor *embeds = golden_need(s->g, "prompt_embeds");
    h3_sampler_in in = {.layout = s->layout,
                        .video = &s->video,
                        .audio = &s->audio,
                        .act = H3_F32,
                        .video_rows = s->video_rows,
                        .audio_rows = s->audio_rows,
                        .after_step = after_step,
                        .user = s};

    in.prompt_embeds = *embeds;
    H3_TRY(h3_sampler_run(s->video_out, s->audio_out, m, &in));
    return s->video.n_steps > 1 ? resume(s, m, in) : H3_OK;
}

static h3_status with_model(sample *s, const char *folder)
{
    h3_dev *d = NULL;
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    h3_status st = open_device(s->g, &d);

    if (st == H3_OK) st = h3_ckpt_open(&ck, folder, H3_ROLE_DIT, NULL);
    if (st == H3_OK) st = h3_dit_open(&m, ck, d);
    if (st == H3_OK) st = denoise(s, m);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    close_device(s->g, &d);
    return st;
}

static h3_status run_sample(golden *g)
{
    const json_t *c = json_object_get(g->meta, "case");
    const bool is_ref = json_object_get(c, "references") != NULL;
    const int points = (int)number(c, "num_inference_steps");
    sample s = {.g = g,
                .target = {number(g->meta, "num_latent_frames"), number(g->meta, "latent_height"),
                           number(g->meta, "latent_width")},
                .n_audio = number(g->meta, "num_audio_latents")};
    const char *relative =
        is_ref ? "tiny-h3/original/Ref2VA/transformer" : "tiny-h3/original/FL2VA/transformer";
    char *folder = golden_model(g, relative, relative);
    h3_status st = H3_OK;

    if (!read_conditions(&s, c)) {
        golden_check(g, "conditions", false, "the file lacks what its case names");
    } else if (folder) {
        st = h3_schedule_init(&s.video, points, H3_VIDEO_SHIFT);
        if (st == H3_OK) st = h3_schedule_init(&s.audio, points, H3_AUDIO_SHIFT);
        if (st == H3_OK) st = make_layout(&s);
        if (st == H3_OK) st = make_rows(&s, (uint64_t)number(c, "seed"));
        if (st == H3_OK) st = with_model(&s, folder);
    }
    free_sample(&s);
    free(folder);
    return st;
}

const golden_kind golden_kinds_dit[] = {
    {"dit", match_dit, run_dit},
    {"steps", match_steps, run_steps},
    {"sample", match_sample, run_sample},
    {0},
};
