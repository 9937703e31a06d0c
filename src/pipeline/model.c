/**
 * Finding the parts of a model; see model.h. Two published layouts:
 *
 *   released ROOT/{FL2VA,Ref2VA}/{transformer,text_encoder,video_vae,audio_vae,tokenizer,processor}
 *               (or one of the two folders given directly; its sibling is then looked at as well)
 *   diffusers   ROOT/{transformer,transformer_ref,text_encoder,vae,audio_vae,tokenizer,processor}
 */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builtin.h"
#include "json.h"

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

/* The first of up to four sub-folders of dir that exists. */
static char *first_of(const char *dir, const char *const *names)
{
    for (; *names; names++) {
        char *p = existing(dir, *names, NULL);
        if (p) return p;
    }
    return NULL;
}

/* "fl2va" or "ref2va" by model_index.json of a released folder; "" when it does not say. */
static void read_partition(const char *dir, char *out, size_t cap)
{
    char *path = h3_path_join(dir, "model_index.json");
    json_t *root = NULL;
    const char *s = NULL;

    out[0] = '\0';
    if (h3_path_exists(path) && h3_json_load(&root, path) == H3_OK)
        s = json_string_value(json_object_get(json_object_get(root, "_minimax_h3"), "partition"));
    if (s) snprintf(out, cap, "%s", s);
    json_decref(root);
    free(path);
}

static char *dup_or_null(const char *s)
{
    return s ? h3_strdupf("%s", s) : NULL;
}

/* One folder of the release (FL2VA or Ref2VA): fills what is still empty. */
static void take_partition(h3_model *m, const char *dir, bool is_ref)
{
    char **dit = is_ref ? &m->dit_ref : &m->dit;

    if (!*dit) *dit = existing(dir, "transformer", NULL);
    if (!m->text_encoder) m->text_encoder = existing(dir, "text_encoder", NULL);
    if (!m->video_vae)
        m->video_vae = first_of(dir, (const char *const[]){"video_vae", "vae", NULL});
    if (!m->audio_vae) m->audio_vae = existing(dir, "audio_vae", NULL);
    if (!m->tokenizer)
        m->tokenizer = first_of(dir, (const char *const[]){"tokenizer", "processor", NULL});
    if (!m->processor) m->processor = existing(dir, "processor", NULL);
}

/* Does the last component of a path read `name`? Sets *parent (malloc'd) then. */
static bool ends_with_folder(const char *path, const char *name, char **parent)
{
    size_t n = strlen(path);
    const size_t k = strlen(name);

    while (n && path[n - 1] == '/')
        n--;
    if (n < k || memcmp(path + n - k, name, k) != 0 || (n > k && path[n - k - 1] != '/'))
        return false;
    *parent = n > k ? h3_strdupf("%.*s", (int)(n - k), path) : h3_strdupf(".");
    return true;
}

static void search_root(h3_model *m, const char *root)
{
    static const char *const folders[] = {"FL2VA", "Ref2VA"};
    char partition[16], *parent = NULL;

    for (int i = 0; i < 2; i++) {
        char *dir = existing(root, folders[i], NULL);
        if (dir) take_partition(m, dir, i == 1);
        free(dir);
    }
    read_partition(root, partition, sizeof partition);
    take_partition(m, root, strcmp(partition, "ref2va") == 0);
    if (!m->dit_ref) m->dit_ref = existing(root, "transformer_ref", NULL);
    for (int i = 0; i < 2; i++)
        if (ends_with_folder(root, folders[i], &parent)) {
            char *sibling = existing(parent, folders[1 - i], NULL);
            if (sibling) take_partition(m, sibling, i == 0);
            free(sibling);
            free(parent);
            parent = NULL;
        }
}

static h3_status need(const h3_model *m, const char *part, const char *what, const char *option)
{
    if (part) return H3_OK;
    return h3_fail(H3_E_MISSING, "%s: no %s found; give its path with %s", m->root, what, option);
}

h3_status h3_model_find(h3_model *out, const h3_model_paths *p)
{
    h3_status st = H3_OK;

    memset(out, 0, sizeof *out);
    out->root = h3_strdupf("%s", p->root ? p->root : "builtin:");
    if (p->root && !h3_path_exists(p->root)) {
        st = h3_fail(H3_E_MISSING, "%s: no such model folder", p->root);
        goto fail;
    }
    out->dit = dup_or_null(p->dit);
    out->dit_ref = dup_or_null(p->dit);
    out->text_encoder = dup_or_null(p->text_encoder);
    out->video_vae = dup_or_null(p->video_vae);
    out->audio_vae = dup_or_null(p->audio_vae);
    out->tokenizer = dup_or_null(p->tokenizer);
    search_root(out, out->root);
    if ((st = need(out, out->dit ? out->dit : out->dit_ref, "transformer", "--dit")) != H3_OK ||
        (st = need(out, out->text_encoder, "text encoder", "--text-encoder")) != H3_OK ||
        (st = need(out, out->video_vae, "video VAE", "--vae")) != H3_OK ||
        (st = need(out, out->audio_vae, "audio VAE", "--audio-vae")) != H3_OK ||
        (st = need(out, out->tokenizer, "tokenizer", "--tokenizer")) != H3_OK)
        goto fail;
    return H3_OK;

fail:
    h3_model_free(out);
    return st;
}
