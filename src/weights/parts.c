/** See parts.h. A walk collects weight files (an index stands for its shards), each header is read
 * and its role decides the place. */
#include "parts.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "builtin.h"
#include "json.h"
#include "names.h"
#include "suffix.h"

/* A model folder is small; the root of a disk, given by mistake, must not be walked for ever. */
enum { MAX_DEPTH = 4, MAX_FILES = 2000, MAX_FOLDERS = 2000 };

void h3_parts_free(h3_parts *p)
{
    free(p->dit);
    free(p->dit_ref);
    free(p->dit_any);
    free(p->text_encoder);
    free(p->mmproj);
    free(p->video_vae);
    free(p->audio_vae);
    free(p->tokenizer);
    free(p->rival);
    free(p->notes);
    free(p->unread);
    memset(p, 0, sizeof *p);
}

static bool holds(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (; *text; text++)
        if (strncasecmp(text, word, n) == 0) return true;
    return false;
}

/* ---- partition ---- */

static const char *from_index(const char *dir)
{
    char *path = h3_path_join(dir, "model_index.json");
    json_t *j = NULL;
    const char *s = NULL, *found = NULL;

    if (h3_path_exists(path) && h3_json_load(&j, path) == H3_OK)
        s = json_string_value(json_object_get(json_object_get(j, "_minimax_h3"), "partition"));
    if (s) found = strcmp(s, "ref2va") == 0 ? "ref2va" : strcmp(s, "fl2va") == 0 ? "fl2va" : NULL;
    json_decref(j);
    free(path);
    return found;
}

const char *h3_partition_of(const char *path)
{
    char *dir = h3_strdupf("%s", path), *slash;
    const char *found = NULL, *name;

    for (int up = 0; up < 3 && !found; up++) {
        if (h3_path_is_dir(dir)) found = from_index(dir);
        slash = strrchr(dir, '/');
        if (!slash) break;
        *slash = '\0';
    }
    free(dir);
    if (found) return found;
    name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (holds(path, "transformer_ref")) return "ref2va";
    if (holds(name, "ref2v")) return "ref2va";
    if (holds(name, "fl2v") || holds(name, "t2va")) return "fl2va";
    if (holds(path, "/ref2va/")) return "ref2va";
    return holds(path, "/fl2va/") ? "fl2va" : NULL;
}

const char *h3_partition_in(const h3_manifest *m, const char *path)
{
    const char *s = h3_manifest_meta(m, "h3av.partition");

    if (s && strcmp(s, "ref2va") == 0) return "ref2va";
    if (s && strcmp(s, "fl2va") == 0) return "fl2va";
    return h3_partition_of(path);
}

/* ---- the walk ---- */

typedef struct walk {
    h3_parts *p;
    char **file; ///< candidates, sorted
    size_t n, n_folders;
    char **tokenizer; ///< folders that hold a tokenizer.json
    size_t n_tokenizers;
} walk;

static void add_line(char **lines, const char *line)
{
    char *longer = h3_strdupf("%s%s%s", *lines ? *lines : "", *lines ? "\n" : "", line);
    free(*lines);
    *lines = longer;
}

static void note(h3_parts *p, const char *fmt, const char *a, const char *b)
{
    char *line = h3_strdupf(fmt, a, b);
    add_line(&p->notes, line);
    free(line);
}

/* Of what may hold the very part that will be missed. */
static void note_unread(h3_parts *p, const char *fmt, const char *a, const char *b)
{
    char *line = h3_strdupf(fmt, a, b);
    add_line(&p->notes, line);
    add_line(&p->unread, line);
    free(line);
}

char *h3_parts_unread(const char *unread)
{
    const int first = unread ? (int)strcspn(unread, "\n") : 0;
    int more = 0;

    if (!first) return h3_strdupf("%s", "");
    for (const char *p = unread + first; *p; p++)
        more += *p == '\n';
    if (more) return h3_strdupf("%.*s, and %d more; ", first, unread, more);
    return h3_strdupf("%.*s; ", first, unread);
}

/* By folder, in a folder indexes first (a merged copy may lie beside them), then by name. */
static int by_place(const void *pa, const void *pb)
{
    const char *a = *(char *const *)pa, *b = *(char *const *)pb;
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    const size_t na = slash_a ? (size_t)(slash_a - a) : 0, nb = slash_b ? (size_t)(slash_b - b) : 0;
    const int c = memcmp(a, b, na < nb ? na : nb);
    const bool ia = h3_ends_with(a, ".index.json"), ib = h3_ends_with(b, ".index.json");

    if (c || na != nb) return c ? c : na < nb ? -1 : 1;
    return ia != ib ? ib - ia : strcmp(a, b);
}

static void add_to(char ***list, size_t *n, char *path)
{
    char **grown = *n < MAX_FILES ? realloc(*list, (*n + 1) * sizeof *grown) : NULL;

    if (!grown) {
        free(path);
        return;
    }
    *list = grown;
    (*list)[(*n)++] = path;
}

/* Adds the shards that an index names to a set. One that cannot be read may mean any file. */
static void add_shards(json_t *set, bool *is_any, const char *path)
{
    json_t *index = NULL, *shard;
    const char *tensor;

    if (h3_json_load(&index, path) != H3_OK) *is_any = true;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, shard)
    {
        if (json_is_string(shard)) json_object_set_new(set, json_string_value(shard), json_true());
    }
    json_decref(index);
}

/* The files of a folder that are parts of others: the shards of its indexes. Single files may lie
 * beside them. */
static json_t *shards_in(const char *dir, bool *is_any)
{
    json_t *set = json_object();
    DIR *d = opendir(dir);
    const struct dirent *e;

    *is_any = false;
    while (d && (e = readdir(d))) {
        char *path;
        if (e->d_name[0] == '.' || !h3_ends_with(e->d_name, ".safetensors.index.json")) continue;
        path = h3_path_join(dir, e->d_name);
        add_shards(set, is_any, path);
        free(path);
    }
    if (d) closedir(d);
    return set;
}

/* What a file of a folder is to us: takes `path`. */
static void see_file(walk *w, const char *dir, char *path, bool is_shard)
{
    const char *slash = strrchr(path, '/');

    if (h3_ends_with(path, ".safetensors.index.json") || h3_ends_with(path, ".gguf") ||
        (h3_ends_with(path, ".safetensors") && !is_shard)) {
        add_to(&w->file, &w->n, path);
        return;
    }
    if (slash && strcmp(slash + 1, "tokenizer.json") == 0)
        add_to(&w->tokenizer, &w->n_tokenizers, h3_strdupf("%s", dir));
    free(path);
}

/* The model inside the program, which has no folders to walk. */
static void visit_builtin(walk *w, const char *folder)
{
    char *want = h3_strdupf("builtin:%s", folder + strlen("builtin:") + strspn(folder + 8, "/"));
    const char *name;

    for (size_t n = strlen(want); n > 8 && want[n - 1] == '/';)
        want[--n] = '\0';
    for (size_t i = 0; (name = h3_builtin_name(i)) != NULL; i++) {
        char *path = h3_strdupf("builtin:%s", name), *slash = strrchr(path, '/');
        const size_t n = strlen(want);
        bool is_indexed = false;
        char *dir = slash ? h3_strdupf("%.*s", (int)(slash - path), path) : h3_strdupf("builtin:");
        const char *other;
        if (strncmp(path, want, n) != 0 || (n > 8 && path[n] != '/')) {
            free(path);
            free(dir);
            continue;
        }
        for (size_t k = 0; (other = h3_builtin_name(k)) != NULL; k++)
            is_indexed |= h3_ends_with(other, ".safetensors.index.json") &&
                          strncmp(other, dir + 8, strlen(dir + 8)) == 0 &&
                          !strchr(other + strlen(dir + 8) + 1, '/');
        see_file(w, dir, path, is_indexed);
        free(dir);
    }
    free(want);
}

static void visit(walk *w, const char *dir, int depth)
{
    bool is_any;
    json_t *shards = shards_in(dir, &is_any);
    DIR *d = opendir(dir);
    const struct dirent *e;

    if (!d) note_unread(w->p, "%s cannot be searched: %s", dir, strerror(errno));
    while (d && (e = readdir(d))) {
        char *path;
        if (e->d_name[0] == '.') continue;
        path = h3_path_join(dir, e->d_name);
        if (h3_path_is_dir(path)) {
            if (depth < MAX_DEPTH && w->n_folders++ < MAX_FOLDERS) visit(w, path, depth + 1);
            free(path);
        } else {
            see_file(w, dir, path, is_any || json_object_get(shards, e->d_name));
        }
    }
    if (d) closedir(d);
    json_decref(shards);
}

/* ---- sorting into places ---- */

static void take(h3_parts *p, char **place, const char *path)
{
    if (*place) {
        note(p, "%s is not used: %s has the same role", path, *place);
        return;
    }
    *place = h3_strdupf("%s", path);
}

/* Where h3_ckpt_open should look: the folder when it has config files, else the file. */
static char *openable(const char *file, h3_role role)
{
    const char *slash = strrchr(file, '/');
    char *dir = slash ? h3_strdupf("%.*s", (int)(slash - file), file) : h3_strdupf("."), *cfg, *up;

    if (role == H3_ROLE_VIDEO_VAE &&
        h3_ends_with(dir, "/source")) { // the release's config lies above
        up = h3_strdupf("%.*s", (int)(strlen(dir) - strlen("/source")), dir);
        free(dir);
        return up;
    }
    cfg = h3_path_join(dir, "config.json");
    if (h3_ends_with(file, ".index.json") && h3_path_exists(cfg)) {
        free(cfg);
        return dir;
    }
    free(cfg);
    free(dir);
    return h3_strdupf("%s", file);
}

static void sort_file(h3_parts *p, const char *file)
{
    h3_manifest *m = NULL;
    h3_naming n;
    const char *partition;
    char *path;

    if (h3_manifest_open(&m, file) != H3_OK) {
        note_unread(p, "%s is passed over: %s", file, h3_error());
        return;
    }
    h3_names_detect(&n, m);
    path = openable(file, n.role);
    switch (n.role) {
    case H3_ROLE_DIT:
        partition = h3_partition_in(m, file);
        take(p, !partition ? &p->dit_any : *partition == 'r' ? &p->dit_ref : &p->dit, path);
        break;
    case H3_ROLE_TEXT_ENCODER:
        if (h3_manifest_find(m, "v.blk.0.ln1.weight") && !h3_manifest_find(m, "token_embd.weight"))
            take(p, &p->mmproj, path);
        else
            take(p, &p->text_encoder, path);
        if (!p->tokenizer && h3_manifest_n_strings(m, "tokenizer.ggml.tokens") > 0)
            p->tokenizer = h3_strdupf("%s", file);
        break;
    case H3_ROLE_VIDEO_VAE:
        take(p, &p->video_vae, path);
        break;
    case H3_ROLE_AUDIO_VAE:
        take(p, &p->audio_vae, path);
        break;
    default:
        break;
    }
    free(path);
    h3_manifest_close(&m);
}

/* ---- which tokenizer ---- */

static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int n_folders_of(const char *path)
{
    int n = 0;

    for (; *path; path++)
        n += *path == '/' && path[1];
    return n;
}

/* Folders to leave and to enter on the way from one to another of the same tree. */
static int steps_between(const char *a, const char *b)
{
    size_t same = 0; // up to the end of the last name that both share

    for (size_t i = 0;; i++) {
        const bool ends = (!a[i] || a[i] == '/') && (!b[i] || b[i] == '/');
        if (ends) same = i;
        if (a[i] != b[i] || !a[i]) break;
    }
    return n_folders_of(a + same) + n_folders_of(b + same);
}

/* The release keeps a tokenizer in tokenizer/ and a copy in processor/. */
static int rank_of(const char *folder, const char *home)
{
    const char *name = last_name(folder);
    const int by_name = strcmp(name, "tokenizer") == 0 ? 0 : strcmp(name, "processor") == 0 ? 2 : 1;

    return 3 * steps_between(folder, home) + by_name;
}

static bool is_same_tokenizer(const char *a, const char *b)
{
    enum { MOST = 256 << 20 };
    char *path[2] = {h3_path_join(a, "tokenizer.json"), h3_path_join(b, "tokenizer.json")};
    char *text[2] = {NULL, NULL};
    size_t size[2] = {0, 0};
    bool same = true;

    for (int i = 0; i < 2; i++) {
        same = same && h3_file_read(&text[i], &size[i], path[i], MOST) == H3_OK;
        free(path[i]);
    }
    same = same && size[0] == size[1] && memcmp(text[0], text[1], size[0]) == 0;
    free(text[0]);
    free(text[1]);
    return same;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The one that lies nearest to the text encoder, or to the top where the encoder is elsewhere. Of
 * several as near, one is as good as another while they hold the same; else `rival` names one. */
static void choose_tokenizer(const walk *w, const char *folder)
{
    h3_parts *p = w->p;
    const char *best = NULL;
    char *home = p->text_encoder && !h3_path_is_dir(p->text_encoder)
                     ? h3_strdupf("%.*s", (int)(last_name(p->text_encoder) - p->text_encoder),
                                  p->text_encoder)
                     : h3_strdupf("%s", p->text_encoder ? p->text_encoder : folder);

    for (size_t n = strlen(home); n > 1 && home[n - 1] == '/';)
        home[--n] = '\0';
    if (w->n_tokenizers) qsort(w->tokenizer, w->n_tokenizers, sizeof *w->tokenizer, by_text);
    for (size_t i = 0; i < w->n_tokenizers; i++)
        if (!best || rank_of(w->tokenizer[i], home) < rank_of(best, home)) best = w->tokenizer[i];
    for (size_t i = 0; i < w->n_tokenizers; i++) {
        const char *other = w->tokenizer[i];
        if (other == best || is_same_tokenizer(best, other)) continue;
        if (rank_of(other, home) > rank_of(best, home))
            note(p, "%s/tokenizer.json is not used: %s goes with the text encoder", other, best);
        else if (!p->rival)
            p->rival = h3_strdupf("%s", other);
    }
    if (p->rival) note(p, "%s and %s hold different tokenizers: name one", best, p->rival);
    if (best) {
        free(p->tokenizer); // a vocabulary in a GGUF counts where there is no other
        p->tokenizer = h3_strdupf("%s", best);
    }
    free(home);
}

h3_status h3_parts_find(h3_parts *out, const char *folder)
{
    walk w = {.p = out};

    memset(out, 0, sizeof *out);
    H3_TRY(h3_path_need(folder, "model folder"));
    if (!h3_path_is_dir(folder)) return h3_fail(H3_E_MISSING, "%s: no such model folder", folder);
    if (h3_is_builtin(folder))
        visit_builtin(&w, folder);
    else
        visit(&w, folder, 0);
    if (w.n_folders > MAX_FOLDERS)
        note(out, "%s: only some of its folders were searched%s", folder, "");
    if (w.n) qsort(w.file, w.n, sizeof *w.file, by_place);
    for (size_t i = 0; i < w.n; i++) {
        sort_file(out, w.file[i]);
        free(w.file[i]);
    }
    free(w.file);
    choose_tokenizer(&w, folder);
    for (size_t i = 0; i < w.n_tokenizers; i++)
        free(w.tokenizer[i]);
    free(w.tokenizer);
    return H3_OK;
}

h3_status h3_parts_check_tokenizer(const h3_parts *p)
{
    if (!p->rival) return H3_OK;
    return h3_fail(H3_E_ARG,
                   "%s and %s hold different tokenizers, and neither lies nearer to the text "
                   "encoder; name the one to use with --tokenizer",
                   p->tokenizer, p->rival);
}

const char *h3_parts_advice(const char *part)
{
    static const struct {
        const char *part, *file;
    } table[] = {
        {"dit", "MiniMaxAI/MiniMax-H3 FL2VA/transformer, or Comfy-Org/MiniMax-H3 "
                "diffusion_models/minimax_h3_fl2va_*.safetensors"},
        {"dit_ref", "MiniMaxAI/MiniMax-H3 Ref2VA/transformer, or Comfy-Org/MiniMax-H3 "
                    "diffusion_models/minimax_h3_ref2va_*.safetensors"},
        {"text_encoder", "MiniMaxAI/MiniMax-H3 FL2VA/text_encoder, or Comfy-Org/MiniMax-H3 "
                         "text_encoders/qwen3vl_32b_minimax_h3_*.safetensors"},
        {"video_vae", "MiniMaxAI/MiniMax-H3 FL2VA/video_vae, or Comfy-Org/MiniMax-H3 "
                      "vae/minimax_h3_video_vae_fp16.safetensors"},
        {"audio_vae", "MiniMaxAI/MiniMax-H3 FL2VA/audio_vae, or Comfy-Org/MiniMax-H3 "
                      "vae/minimax_h3_audio_vae_fp32.safetensors"},
        {"tokenizer", "MiniMaxAI/MiniMax-H3 FL2VA/tokenizer (tokenizer.json and "
                      "tokenizer_config.json)"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].part, part) == 0) return table[i].file;
    return "";
}
