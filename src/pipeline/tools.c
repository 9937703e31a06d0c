/** The small public calls: tokenize, dump, mux, inspect; see <h3av/h3av.h>. */
#include <stdlib.h>
#include <string.h>

#include "builtin.h"
#include "convert.h"
#include "file.h"
#include "frame_files.h"
#include "inspect.h"
#include "job.h"
#include "lora.h"
#include "output.h"
#include "parts.h"
#include "st_write.h"
#include "tools.h"

static h3_status need_paths(const char *path, const char *out_path)
{
    if (path && out_path) return H3_OK;
    return h3_fail(H3_E_ARG, "no %s given", path ? "name for the file to write" : "file to read");
}

/* ----------------------------------------------------------------------------------- tokenize */

/* A path may name a tokenizer, or a model that has one. */
static h3_status open_tokenizer(h3_tok **out, const char *path)
{
    const h3_model_paths paths = {.root = path};
    h3_model m;
    h3_status st;

    if (path && h3_open_tokenizer(out, path) == H3_OK) return H3_OK;
    if (path && !h3_path_is_dir(path)) return h3_open_tokenizer(out, path);
    st = h3_model_find(&m, &paths);
    if (st == H3_OK) {
        st = h3_open_tokenizer(out, m.tokenizer);
    } else if (path) { // a folder that lacks other parts
        h3_parts p;
        H3_TRY(h3_parts_find(&p, path));
        st = h3_parts_check_tokenizer(&p);
        if (st == H3_OK) st = h3_open_tokenizer(out, p.tokenizer ? p.tokenizer : path);
        h3_parts_free(&p);
    }
    h3_model_free(&m);
    return st;
}

static json_t *describe_token(const h3_tok *t, int32_t id)
{
    char bytes[256];
    size_t n = h3_tok_decode_piece(t, id, bytes, sizeof bytes);
    json_t *text;

    if (n > sizeof bytes) n = sizeof bytes;
    text = json_stringn(bytes, n); // NULL when the piece is a fragment of a character
    if (!text) {
        size_t len = 0;
        const char *s = h3_tok_string(t, id, &len);
        text = json_stringn(s ? s : "", s ? len : 0);
    }
    return json_pack("{s:i, s:o}", "id", id, "text", text ? text : json_null());
}

h3_status h3_tokenize(const char *path, const char *text, char **json)
{
    h3_tok *t = NULL;
    h3_tok_ids ids = {0};
    json_t *list, *tokens;
    h3_status st;

    if (!json) return h3_fail(H3_E_ARG, "tokenize: no place for the JSON given");
    *json = NULL;
    if (!text) return h3_fail(H3_E_ARG, "tokenize: no text given");
    h3_register_builtin();
    H3_TRY(open_tokenizer(&t, path));
    st = h3_tok_encode(t, &ids, text, strlen(text));
    if (st == H3_OK) {
        list = json_array();
        tokens = json_array();
        for (size_t i = 0; i < ids.n; i++) {
            json_array_append_new(list, json_integer(ids.id[i]));
            json_array_append_new(tokens, describe_token(t, ids.id[i]));
        }
        json_t *o =
            json_pack("{s:I, s:o, s:o}", "count", (json_int_t)ids.n, "ids", list, "tokens", tokens);
        *json = json_dumps(o, JSON_COMPACT);
        json_decref(o);
    }
    h3_tok_ids_free(&ids);
    h3_tok_free(&t);
    return st;
}

/* --------------------------------------------------------------------------------------- dump */

static h3_status dump_one(h3_checkpoint *ck, const char *name, const char *out_path)
{
    int rank;
    int64_t ne[8], n = 1;
    float *data;
    h3_status st;

    if (!h3_ckpt_shape(ck, name, &rank, ne))
        return h3_fail(H3_E_MISSING, "%s: no tensor %s (h3av inspect -v lists the names)",
                       h3_ckpt_path(ck), name);
    if (rank > H3_MAX_RANK)
        return h3_fail(H3_E_UNSUPPORTED, "%s: tensor %s has rank %d", h3_ckpt_path(ck), name, rank);
    for (int i = 0; i < rank; i++)
        n *= ne[i];
    data = malloc((size_t)(n ? n : 1) * sizeof(float));
    if (!data) return h3_fail(H3_E_NOMEM, "%s: no memory for %s", h3_ckpt_path(ck), name);
    st = h3_ckpt_floats(ck, data, name, n);
    const int64_t one = 1;
    const h3_st_tensor t = {name, h3_host_tensor(data, H3_F32, rank ? rank : 1, rank ? ne : &one)};
    if (st == H3_OK) st = h3_st_write(out_path, &t, 1, NULL);
    free(data);
    return st;
}

/* Index of `word` among n words, 0 when it is NULL, -1 when it is none of them. */
static int word_index(const char *word, const char *const *words, int n)
{
    if (!word) return 0;
    while (n-- > 0)
        if (strcmp(word, words[n]) == 0) return n;
    return -1;
}

static h3_status read_opts(h3_ckpt_opts *how, h3_convert_opts *to, const h3_file_opts *o)
{
    static const char *const forms[] = {"bf16", "f16", "f32", "q8_0"};
    static const h3_convert_form form_of[] = {H3_CONVERT_BF16, H3_CONVERT_F16, H3_CONVERT_F32,
                                              H3_CONVERT_Q8_0};
    static const char *const layouts[] = {"own", "original", "diffusers"};
    const int f = word_index(o->form, forms, 4), l = word_index(o->layout, layouts, 3);

    if (f < 0) return h3_fail(H3_E_ARG, "form %s: expected bf16, f16, f32 or q8_0", o->form);
    if (l < 0)
        return h3_fail(H3_E_ARG, "layout %s: expected own, original or diffusers", o->layout);
    *how = (h3_ckpt_opts){.extra = o->mmproj};
    *to = (h3_convert_opts){.form = form_of[f],
                            .layout = (h3_convert_layout)l,
                            .text_layers = o->layers,
                            .head_dim = o->head_dim,
                            .is_delta = o->is_delta};
    return h3_parse_qkv(&how->qkv, o->qkv);
}

static h3_status open_part(h3_checkpoint **ck, const char *path, const h3_ckpt_opts *how)
{
    const h3_status st = h3_ckpt_open(ck, path, H3_ROLE_UNKNOWN, how);

    if (st != H3_E_MISSING || !(h3_path_is_dir(path) || h3_is_builtin(path))) return st;
    char *why = h3_strdupf("%s", h3_error());
    (void)h3_fail(st, "%s (of a model one part is taken: name its folder or file)", why);
    free(why);
    return st;
}

static h3_status merge_adapters(h3_checkpoint *ck, const h3_file_opts *o)
{
    if (o->is_delta && !o->n_loras)
        return h3_fail(H3_E_ARG, "only what adapters add is asked for, but no adapter is given");
    for (int i = 0; i < o->n_loras; i++) {
        const h3_lora_opts opts = {.strength = o->loras[i].strength,
                                   .alpha = o->lora_alpha,
                                   .is_strict = o->is_strict_lora};
        h3_lora_report rep = {0};
        const h3_status st = h3_ckpt_add_lora(ck, o->loras[i].path, &opts, &rep);
        free(rep.unmatched);
        if (st != H3_OK) return st;
    }
    return H3_OK;
}

/* The file that comes of it takes the name when it is complete: then what it was made from would be
 * lost, and a part that was rounded does not come back. */
static h3_status check_output(const h3_checkpoint *ck, const char *out_path)
{
    if (!h3_ckpt_reads(ck, out_path)) return H3_OK;
    return h3_fail(H3_E_ARG, "%s: is read by this run and would be its output; give another name",
                   out_path);
}

h3_status h3_dump(const char *path, const char *name, const h3_file_opts *opts,
                  const char *out_path)
{
    static const h3_file_opts none;
    const h3_file_opts *o = opts ? opts : &none;
    h3_convert_opts to;
    h3_ckpt_opts how;
    h3_checkpoint *ck = NULL;
    h3_status st;

    H3_TRY(need_paths(path, out_path));
    h3_register_builtin();
    H3_TRY(read_opts(&how, &to, o));
    to.form = H3_CONVERT_F32;
    to.layout = H3_CONVERT_OWN;
    H3_TRY(open_part(&ck, path, &how));
    st = merge_adapters(ck, o);
    if (st == H3_OK) st = check_output(ck, out_path);
    if (st == H3_OK) st = name ? dump_one(ck, name, out_path) : h3_convert(ck, out_path, &to);
    h3_ckpt_close(&ck);
    return st;
}

/* ------------------------------------------------------------------------------------ convert */

h3_status h3_convert_file(const char *path, const h3_file_opts *opts, const char *out_path)
{
    static const h3_file_opts none;
    const h3_file_opts *o = opts ? opts : &none;
    h3_convert_opts to;
    h3_ckpt_opts how;
    h3_checkpoint *ck = NULL;
    h3_status st;

    H3_TRY(need_paths(path, out_path));
    h3_register_builtin();
    H3_TRY(read_opts(&how, &to, o));
    H3_TRY(open_part(&ck, path, &how));
    st = merge_adapters(ck, o);
    if (st == H3_OK) st = check_output(ck, out_path);
    if (st == H3_OK) st = h3_convert(ck, out_path, &to);
    h3_ckpt_close(&ck);
    return st;
}

/* ------------------------------------------------------------------------------------ inspect */

h3_status h3_inspect(const char *path, bool as_json, bool verbose, char **out)
{
    json_t *report = NULL;

    if (!out) return h3_fail(H3_E_ARG, "inspect: no place for the text given");
    *out = NULL;
    if (!path) return h3_fail(H3_E_ARG, "inspect: no file and no folder given");
    h3_register_builtin();
    H3_TRY(h3_inspect_path(&report, path, NULL, verbose));
    *out = as_json ? json_dumps(report, JSON_INDENT(2)) : h3_inspect_text(report);
    json_decref(report);
    return *out ? H3_OK : h3_fail(H3_E_NOMEM, "%s: no memory for the report", path);
}

/* ---------------------------------------------------------------------------------------- mux */

h3_status h3_mux_files(const char *frames_dir, const char *wav, double fps, const h3_request *rq)
{
    h3_mux_opt opt = h3_mux_default(0, 0, 0);

    if (!frames_dir || !rq || !rq->out_path)
        return h3_fail(H3_E_ARG, "mux: no folder of frames, or no name for the MP4");
    opt.codec = rq->codec;
    opt.preset = rq->preset;
    opt.crf = rq->crf;
    opt.has_meta = false;
    if (fps != 0) {
        if (fps < 1 || fps > 240 || fps != (double)(int)fps)
            return h3_fail(H3_E_ARG, "fps %g: expected a whole number from 1 to 240", fps);
        opt.fps = (int)fps;
    }
    H3_TRY(h3_output_container(rq->out_path));
    return h3_mux_folder(rq->out_path, frames_dir, wav, &opt);
}
