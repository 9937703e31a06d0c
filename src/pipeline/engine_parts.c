/**
 * Opening the parts of a model for a look: headers of every part before anything runs, what there
 * is to tell about them, and the tokenizer, which may lie in the metadata of a GGUF.
 */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "qkv_check.h"
#include "video_vae.h"

/* ------------------------------------------------------------------------------------- notes */

/* Lines for every request of the engine: 'i' or 'w', then the sentence. */
static void note(h3_engine *e, char kind, const char *fmt, const char *a, const char *b,
                 const char *c)
{
    char *line = h3_strdupf(fmt, a, b, c);
    char *longer = h3_strdupf("%s%c%s\n", e->part_notes ? e->part_notes : "", kind, line);

    free(line);
    free(e->part_notes);
    e->part_notes = longer;
}

/* The order of fused q/k/v is the one thing no file tells: say which was taken, and doubt it where
 * the numbers do. */
static void note_order(h3_engine *e, h3_checkpoint *ck)
{
    const char *why;
    const char *order =
        h3_ckpt_qkv(ck, &why) == H3_QKV_INTERLEAVED ? "interleaved per head" : "stacked";
    h3_qkv_check check;

    note(e, 'i', "%s: q/k/v rows %s (%s)", h3_ckpt_path(ck), order, why);
    if (h3_ckpt_check_qkv(ck, &check) == H3_OK && check.is_done && check.is_doubtful)
        note(e, 'w', "%s: q/k/v rows are taken as %s, which does not look right; see --qkv%s",
             h3_ckpt_path(ck), order, "");
}

static void note_strangers(h3_engine *e, const h3_checkpoint *ck)
{
    char *names = h3_ckpt_strangers(ck);

    if (names)
        note(e, 'w', "%s: not used, since no MiniMax-H3 model has them: %s%s", h3_ckpt_path(ck),
             names, "");
    free(names);
}

void h3_job_tell_parts(h3_job *j)
{
    const char *dit = j->task == H3_REF2VA ? j->e->model.dit_ref : j->e->model.dit;
    const char *lists[] = {j->e->model.notes, j->e->part_notes};

    h3_job_say(j, H3_EVENT_INFO, "computing on %s: %s", j->e->dev->name, j->e->dev->detail);
    for (int k = 0; k < 2; k++) {
        char *text = lists[k] ? h3_strdupf("%s", lists[k]) : NULL, *rest = text, *line;
        while ((line = strsep(&rest, "\n"))) {
            const bool is_info = k == 1 && *line == 'i';
            if (!*line || (is_info && (!dit || strncmp(line + 1, dit, strlen(dit)) != 0)))
                continue; // the other transformer is of no interest
            h3_job_say(j, is_info ? H3_EVENT_INFO : H3_EVENT_WARNING, "%s", line + k);
        }
        free(text);
    }
}

/* ------------------------------------------------------------------------------------- checks */

/* Adapters against the headers of a transformer they will be added to. */
static h3_status check_adapters(const h3_engine *e, h3_checkpoint *ck)
{
    for (int i = 0; i < e->n_loras; i++) {
        h3_lora_opts opts = e->lora_opts;
        h3_lora_report r;
        opts.strength = e->lora_strength[i];
        H3_TRY(h3_ckpt_add_lora(ck, e->lora[i], &opts, &r));
        free(r.unmatched);
    }
    return H3_OK;
}

/* Header checks of a part now: a wrong file should not show after an hour of sampling. */
static h3_status check_part(h3_engine *e, const char *path, h3_role role)
{
    h3_ckpt_opts how = e->ckpt;
    h3_checkpoint *ck = NULL;

    if (!path) return H3_OK;
    if (role == H3_ROLE_TEXT_ENCODER) how.extra = e->model.mmproj;
    h3_status st = H3_OK;
    H3_TRY(h3_ckpt_open(&ck, path, role, &how));
    if (role == H3_ROLE_DIT) {
        note_order(e, ck);
        st = check_adapters(e, ck);
    }
    note_strangers(e, ck);
    h3_ckpt_close(&ck);
    return st;
}

h3_status h3_engine_check_parts(h3_engine *e)
{
    H3_TRY(check_part(e, e->model.dit, H3_ROLE_DIT));
    if (!e->model.dit || !e->model.dit_ref || strcmp(e->model.dit, e->model.dit_ref) != 0)
        H3_TRY(check_part(e, e->model.dit_ref, H3_ROLE_DIT));
    H3_TRY(check_part(e, e->model.text_encoder, H3_ROLE_TEXT_ENCODER));
    H3_TRY(check_part(e, e->model.video_vae, H3_ROLE_VIDEO_VAE));
    return check_part(e, e->model.audio_vae, H3_ROLE_AUDIO_VAE);
}

h3_video_decode_opts h3_engine_decode_opts(const h3_engine *e, const h3_dev *d, h3_video_vae *v,
                                           int64_t t, int64_t h, int64_t w)
{
    const size_t most = (size_t)4 << 30; // beyond that nothing is gained
    h3_video_decode_opts o = {.act = H3_F32};
    size_t n_free, n_total = 0;

    if (e->dev->mem != H3_DEVICE) return o;
    o.act = (h3_dtype)e->act;
    if (!e->dev->memory || e->dev->memory(e->dev, &n_free, &n_total) != H3_OK) return o;
    size_t budget = e->vram_limit ? e->vram_limit / 4 : n_total / 8;
    if (budget > most) budget = most;
    o.tiles_in_flight = h3_video_vae_tiles_that_fit(d, v, t, h, w, &o, budget);
    return o;
}

/* ---------------------------------------------------------------------------------- tokenizer */

static void collect(void *user, int64_t i, const char *s, size_t n)
{
    ((h3_tok_text *)user)[i] = (h3_tok_text){s, n};
}

static h3_tok_text *strings(const h3_manifest *m, const char *key, int64_t *n)
{
    const int64_t found = h3_manifest_n_strings(m, key);
    h3_tok_text *list = calloc((size_t)(found > 0 ? found : 0) + 1, sizeof *list);

    *n = found > 0 ? found : 0;
    if (list) h3_manifest_strings(m, key, collect, list);
    return list;
}

static h3_status from_metadata(h3_tok **out, const h3_manifest *m, const char *path)
{
    const char *model = h3_manifest_meta(m, "tokenizer.ggml.model");
    const char *pre = h3_manifest_meta(m, "tokenizer.ggml.pre");
    h3_tok_lists l = {.path = path};
    h3_status st;

    if (h3_manifest_n_strings(m, "tokenizer.ggml.tokens") < 1)
        return h3_fail(H3_E_MISSING,
                       "%s: has no vocabulary in its metadata; give the tokenizer's folder with "
                       "--tokenizer",
                       path);
    if (h3_manifest_n_strings(m, "tokenizer.ggml.merges") < 0)
        return h3_fail(H3_E_MISSING,
                       "%s: its vocabulary comes without merges (tokenizer.ggml.merges); give the "
                       "tokenizer's folder with --tokenizer",
                       path);
    if ((model && strcmp(model, "gpt2") != 0) || (pre && strcmp(pre, "qwen2") != 0))
        return h3_fail(H3_E_UNSUPPORTED,
                       "%s: its vocabulary is of type %s, split as %s; expected gpt2 and qwen2",
                       path, model ? model : "gpt2", pre ? pre : "qwen2");
    h3_tok_text *tokens = strings(m, "tokenizer.ggml.tokens", &l.n_tokens);
    h3_tok_text *merges = strings(m, "tokenizer.ggml.merges", &l.n_merges);
    int32_t *types = malloc((size_t)l.n_tokens * sizeof *types);
    l.tokens = tokens;
    l.merges = merges;
    if (types && h3_manifest_ints(m, "tokenizer.ggml.token_type", types, l.n_tokens))
        l.types = types;
    st = tokens && merges && types ? h3_tok_from_lists(out, &l)
                                   : h3_fail(H3_E_NOMEM, "%s: no memory for its vocabulary", path);
    free(tokens);
    free(merges);
    free(types);
    return st;
}

static bool is_gguf(const char *path)
{
    h3_file *f = NULL;
    bool yes = false;

    if (h3_path_is_dir(path) || !h3_path_exists(path)) return false;
    if (h3_file_map(&f, path) == H3_OK) yes = f->size >= 4 && memcmp(f->data, "GGUF", 4) == 0;
    h3_file_unmap(&f);
    return yes;
}

h3_status h3_open_tokenizer(h3_tok **out, const char *path)
{
    h3_manifest *m = NULL;
    h3_status st;

    *out = NULL;
    if (!is_gguf(path)) return h3_tok_open(out, path);
    H3_TRY(h3_manifest_open(&m, path));
    st = from_metadata(out, m, path);
    h3_manifest_close(&m);
    return st;
}
