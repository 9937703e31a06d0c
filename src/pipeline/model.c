/**
 * Finding the parts of a model; see model.h. A real folder is searched by what its files hold (the
 * weights room knows every published form); the built-in model is one folder of known layout.
 */
#include "model.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "builtin.h"
#include "json.h"
#include "parts.h"

void h3_model_free(h3_model *m)
{
    free(m->root);
    free(m->dit);
    free(m->dit_ref);
    free(m->text_encoder);
    free(m->video_vae);
    free(m->audio_vae);
    free(m->tokenizer);
    free(m->processor);
    free(m->mmproj);
    free(m->notes);
    free(m->unread);
    memset(m, 0, sizeof *m);
}

/* dir/a/b if it exists, else NULL; malloc'd. `b` may be NULL. */
static char *existing(const char *dir, const char *a, const char *b)
{
    char *p = b ? h3_strdupf("%s/%s/%s", dir, a, b) : h3_path_join(dir, a);

    if (h3_path_exists(p)) return p;
    free(p);
    return NULL;
}

static char *dup_or_null(const char *s)
{
    return s ? h3_strdupf("%s", s) : NULL;
}

/* Fills *slot with a malloc'd path unless the caller named that part himself. */
static void take(char **slot, char **found)
{
    if (*slot) return;
    *slot = *found;
    *found = NULL;
}

/* Places of the released and of the diffusers layout. For the built-in model this is the whole
 * search; for a folder it catches parts that are there but damaged, so that opening them says what
 * is wrong with which file. */
static void search_layout(h3_model *m)
{
    static const struct {
        size_t at;
        const char *path[4];
    } parts[] = {
        {offsetof(h3_model, dit), {"FL2VA/transformer"}},
        {offsetof(h3_model, dit_ref), {"Ref2VA/transformer", "transformer_ref"}},
        {offsetof(h3_model, text_encoder),
         {"FL2VA/text_encoder", "Ref2VA/text_encoder", "text_encoder"}},
        {offsetof(h3_model, video_vae),
         {"FL2VA/video_vae", "Ref2VA/video_vae", "video_vae", "vae"}},
        {offsetof(h3_model, audio_vae), {"FL2VA/audio_vae", "Ref2VA/audio_vae", "audio_vae"}},
        {offsetof(h3_model, tokenizer), {"FL2VA/tokenizer", "Ref2VA/tokenizer", "tokenizer"}},
        {offsetof(h3_model, processor), {"FL2VA/processor", "Ref2VA/processor", "processor"}},
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int k = 0; k < 4 && parts[i].path[k]; k++) {
            char *found = existing(m->root, parts[i].path[k], NULL);
            take((char **)(void *)((char *)m + parts[i].at), &found);
            free(found);
        }
    if (!m->dit && !m->dit_ref) m->dit = existing(m->root, "transformer", NULL);
}

/* dirname, malloc'd; "." when there is none. */
static char *folder_of(const char *path)
{
    const char *slash;
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    slash = memrchr(path, '/', n);
    return slash ? h3_strdupf("%.*s", slash == path ? 1 : (int)(slash - path), path)
                 : h3_strdupf(".");
}

/* Settings of the image and video processors: beside the tokenizer or the text encoder, or in them.
 */
static char *find_processor(const h3_model *m)
{
    const char *const near[] = {m->tokenizer, m->text_encoder};
    char *found = NULL;

    for (int i = 0; i < 2 && !found; i++) {
        char *up;
        if (!near[i]) continue;
        up = folder_of(near[i]);
        found = existing(up, "processor", NULL);
        if (!found && (found = existing(near[i], "preprocessor_config.json", NULL))) {
            free(found);
            found = h3_strdupf("%s", near[i]);
        }
        free(up);
    }
    return found;
}

/* ROOT/FL2VA given: its sibling Ref2VA holds the other transformer, and the other way round. */
static void look_at_sibling(h3_model *m)
{
    static const char *const folders[] = {"FL2VA", "Ref2VA"};
    char *up = folder_of(m->root);
    const size_t n = strlen(m->root);

    for (int i = 0; i < 2; i++) {
        const size_t k = strlen(folders[i]);
        size_t end = n;
        char **slot = i ? &m->dit : &m->dit_ref;
        while (end && m->root[end - 1] == '/')
            end--;
        if (end < k || memcmp(m->root + end - k, folders[i], k) != 0 || *slot) continue;
        char *sibling = existing(up, folders[1 - i], "transformer");
        take(slot, &sibling);
        free(sibling);
    }
    free(up);
}

static h3_status search_folder(h3_model *m)
{
    h3_parts p;
    h3_status st = H3_OK;

    H3_TRY(h3_parts_find(&p, m->root));
    take(&m->dit, &p.dit);
    take(&m->dit_ref, &p.dit_ref);
    // where nothing tells the partition the caller's task decides
    if (!m->dit && p.dit_any) m->dit = h3_strdupf("%s", p.dit_any);
    if (!m->dit_ref && p.dit_any) m->dit_ref = h3_strdupf("%s", p.dit_any);
    if (!m->text_encoder) take(&m->mmproj, &p.mmproj); // belongs to the encoder found with it
    take(&m->text_encoder, &p.text_encoder);
    take(&m->video_vae, &p.video_vae);
    take(&m->audio_vae, &p.audio_vae);
    if (!m->tokenizer) st = h3_parts_check_tokenizer(&p);
    take(&m->tokenizer, &p.tokenizer);
    take(&m->notes, &p.notes);
    take(&m->unread, &p.unread);
    h3_parts_free(&p);
    look_at_sibling(m);
    return st;
}

static h3_status need(const h3_model *m, const char *part, const char *key, const char *what,
                      const char *option)
{
    h3_status st;
    char *unread;

    if (part) return H3_OK;
    unread = h3_parts_unread(m->unread);
    st = h3_fail(H3_E_MISSING, "%s: no %s found; %sgive its path with %s (published as %s)",
                 m->root, what, unread, option, h3_parts_advice(key));
    free(unread);
    return st;
}

/* An encoder's GGUF may hold the vocabulary; where it does not, opening it says so by its name. */
static char *vocabulary_of(const char *text_encoder)
{
    const size_t n = text_encoder ? strlen(text_encoder) : 0;
    return n > 5 && strcmp(text_encoder + n - 5, ".gguf") == 0 ? h3_strdupf("%s", text_encoder)
                                                               : NULL;
}

/* One size of an index; it stays 0 where the index says nothing. */
static h3_status read_size(int64_t *out, const json_t *index, const char *key, const char *path)
{
    const json_t *v = json_object_get(index, key);

    if (!v) return H3_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 28)
        return h3_fail(H3_E_FORMAT, "%s: %s must be a whole number from 1 to %d", path, key,
                       1 << 28);
    *out = json_integer_value(v);
    return H3_OK;
}

/* The sizes of the pipeline's configuration, which the diffusers index holds at its top and a
 * released one beside its tasks. */
static h3_status read_sizes(h3_model *m)
{
    static const char *const names[] = {"modular_model_index.json", "FL2VA/model_index.json",
                                        "Ref2VA/model_index.json"};
    h3_status st = H3_OK;

    for (size_t i = 0; i < sizeof names / sizeof *names && st == H3_OK; i++) {
        char *path = existing(m->root, names[i], NULL);
        json_t *whole = NULL;
        const json_t *index;
        if (!path) continue;
        if ((st = h3_json_load(&whole, path)) == H3_OK) {
            index = json_object_get(whole, "_minimax_h3");
            if (!index) index = whole;
            st = read_size(&m->canvas_short_edge, index, "canvas_short_edge", path);
            if (st == H3_OK)
                st = read_size(&m->canvas_max_pixels, index, "canvas_max_pixels", path);
            if (st == H3_OK)
                st = read_size(&m->reference_short_edge, index, "reference_image_short_edge", path);
            if (st == H3_OK)
                st = read_size(&m->trained_min_frames, index, "trained_min_frames", path);
            if (st == H3_OK)
                st = read_size(&m->trained_max_frames, index, "trained_max_frames", path);
        }
        json_decref(whole);
        free(path);
    }
    return st;
}

h3_status h3_model_find(h3_model *out, const h3_model_paths *p)
{
    h3_status st = H3_OK;

    memset(out, 0, sizeof *out);
    out->root = h3_strdupf("%s", p->root ? p->root : "builtin:");
    if (p->root && (st = h3_path_need(p->root, "model folder")) != H3_OK) goto fail;
    if (p->root && !h3_path_is_dir(p->root)) {
        st = h3_fail(H3_E_ARG,
                     "%s: is a file, and a model is a folder with all its parts; single "
                     "files go to --dit, --text-encoder, --vae or --audio-vae",
                     p->root);
        goto fail;
    }
    out->dit = dup_or_null(p->dit);
    out->dit_ref = dup_or_null(p->dit);
    out->text_encoder = dup_or_null(p->text_encoder);
    out->video_vae = dup_or_null(p->video_vae);
    out->audio_vae = dup_or_null(p->audio_vae);
    out->tokenizer = dup_or_null(p->tokenizer);
    if (!h3_is_builtin(out->root) && (st = search_folder(out)) != H3_OK) goto fail;
    search_layout(out);
    if (!out->tokenizer) out->tokenizer = vocabulary_of(out->text_encoder);
    if (!out->processor) out->processor = find_processor(out);
    if ((st = need(out, out->dit ? out->dit : out->dit_ref, "dit", "transformer", "--dit")) !=
            H3_OK ||
        (st = need(out, out->text_encoder, "text_encoder", "text encoder", "--text-encoder")) !=
            H3_OK ||
        (st = need(out, out->video_vae, "video_vae", "video VAE", "--vae")) != H3_OK ||
        (st = need(out, out->audio_vae, "audio_vae", "audio VAE", "--audio-vae")) != H3_OK ||
        (st = need(out, out->tokenizer, "tokenizer", "tokenizer", "--tokenizer")) != H3_OK ||
        (st = read_sizes(out)) != H3_OK)
        goto fail;
    return H3_OK;

fail:
    h3_model_free(out);
    return st;
}
