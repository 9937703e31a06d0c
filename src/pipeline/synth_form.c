/**
 * Random weights in any published form, and the parts of one that benchmarks and tests need: names,
 * types and shapes come from the tables of tests/data/formats/manifests, which are part of the
 * program ("{0-3,7}" in a name stands for one tensor per number). Values are those of synth.c, or
 * bytes that decode to numbers of the same size in the form at hand. The room on the disk is looked
 * at first, and the file appears when it is complete.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include <h3av/h3av.h>

#include "audio_vae.h"
#include "builtin.h"
#include "decode.h"
#include "encoding.h"
#include "file.h"
#include "gguf_writer.h"
#include "half.h"
#include "size.h"
#include "suffix.h"
#include "synth.h"
#include "writer.h"

extern const h3_builtin_file h3_form_table[];
extern const size_t h3_form_count;

enum { BLOCK = 1 << 20, MAX_NE = 8, NAME = 192 };

typedef struct tensor_row {
    char name[NAME];
    h3_dtype dtype;     ///< H3_DTYPE_COUNT: a ggml type
    uint32_t ggml_type; ///< of every tensor of a GGUF
    int rank, n_orig;
    int64_t ne[MAX_NE], orig[MAX_NE];
    size_t bytes;
} tensor_row;

/* A dimension of the release and what stands for it in a file of other widths. */
typedef struct width {
    int64_t from, to;
} width;

typedef struct form_file {
    const char *name, *path;
    int layers;              ///< to keep, 0: all
    const char *const *only; ///< beginnings of the names to keep; NULL: all
    const width *widths;     ///< up to a `from` of 0; NULL: as released
    int64_t vocabulary;      ///< rows of the token table to keep, 0: all
    bool is_gguf;
    int line; ///< of the table, from 1: where its reader stands
    tensor_row *row;
    size_t n, cap, bytes;
} form_file;

/* ---------------------------------------------------------------- tables */

/* The table came into the program when it was built: from a file that was cut off or replaced. */
static h3_status bad_table(const form_file *f, int column, const char *what, const char *line)
{
    return h3_fail(H3_E_INTERNAL,
                   "the table of form %s in this program is damaged: line %d, column %d: %s in "
                   "\"%.60s\"; build the program again from sound sources",
                   f->name, f->line, column, what, line);
}

static int numbers(const char *text, int64_t v[MAX_NE])
{
    int n = 0;

    for (const char *p = text; *p && n < MAX_NE;)
        if (*p >= '0' && *p <= '9')
            v[n++] = strtoll(p, (char **)(uintptr_t)&p, 10);
        else
            p++;
    return n;
}

/* The number in braces counts layers of the stack that --layers shortens. */
static bool counts_layers(const char *name, size_t at)
{
    static const char *const stacks[] = {"blocks.", "layers.", "blk.", "transformer_blocks_"};
    static const char *const others[] = {"refiner",  "visual",    "v.blk",
                                         "encoder.", "deepstack", "resblocks"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(name, others[i]) && !strstr(name, "text_encoder.")) return false;
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        const size_t n = strlen(stacks[i]);
        if (at >= n && strncmp(name + at - n, stacks[i], n) == 0) return true;
    }
    return false;
}

static bool is_kept(const form_file *f, const char *name)
{
    for (int i = 0; f->only && f->only[i]; i++)
        if (strncmp(name, f->only[i], strlen(f->only[i])) == 0) return true;
    return !f->only;
}

/* Other widths, and a shorter token table. */
static void reshape(const form_file *f, tensor_row *r)
{
    int64_t n = 1;

    if (!f->widths && !f->vocabulary) return;
    for (int i = 0; i < r->rank; i++) {
        for (const width *w = f->widths; w && w->from; w++)
            if (r->ne[i] == w->from) {
                r->ne[i] = w->to;
                break;
            }
        if (i == 0 && f->vocabulary && strstr(r->name, "embed_tokens")) r->ne[0] = f->vocabulary;
        n *= r->ne[i];
    }
    r->bytes = (size_t)n * h3_dtype_bytes(r->dtype);
}

static h3_status add_row(form_file *f, const char *name, const tensor_row *like)
{
    if (!is_kept(f, name)) return H3_OK;
    if (f->n == f->cap) {
        const size_t cap = f->cap ? 2 * f->cap : 512;
        tensor_row *grown = realloc(f->row, cap * sizeof *grown);
        if (!grown) return h3_fail(H3_E_NOMEM, "no memory for the tensors of %s", f->path);
        f->row = grown;
        f->cap = cap;
    }
    f->row[f->n] = *like;
    snprintf(f->row[f->n].name, NAME, "%s", name);
    reshape(f, &f->row[f->n]);
    f->bytes += f->row[f->n++].bytes;
    return H3_OK;
}

/* One tensor per number of the braces. */
static h3_status expand(form_file *f, const char *name, const tensor_row *like)
{
    const char *open = strchr(name, '{'), *close = open ? strchr(open, '}') : NULL;

    if (!open || !close) return add_row(f, name, like);
    const bool is_layer = counts_layers(name, (size_t)(open - name));
    for (const char *p = open + 1; p < close; p++) { // p++: the comma
        long from = strtol(p, (char **)(uintptr_t)&p, 10), to = from;
        if (*p == '-') to = strtol(p + 1, (char **)(uintptr_t)&p, 10);
        for (; from <= to; from++) {
            char full[NAME];
            if (f->layers && is_layer && from >= f->layers) break;
            snprintf(full, sizeof full, "%.*s%ld%s", (int)(open - name), name, from, close + 1);
            H3_TRY(add_row(f, full, like));
        }
    }
    return H3_OK;
}

static bool find_type(tensor_row *r, const char *word, bool is_gguf)
{
    r->dtype = H3_DTYPE_COUNT;
    for (int t = 0; t < H3_DTYPE_COUNT && !is_gguf; t++)
        if (strcmp(h3_dtype_name((h3_dtype)t), word) == 0) r->dtype = (h3_dtype)t;
    if (!is_gguf) return r->dtype != H3_DTYPE_COUNT;
    for (uint32_t t = 0; t < 64; t++) {
        const h3_ggml_info info = h3_ggml_type(t);
        if (!info.name || strcmp(info.name, word) != 0) continue;
        r->ggml_type = t;
        r->dtype = t == 0 ? H3_F32 : t == 1 ? H3_F16 : t == 30 ? H3_BF16 : H3_DTYPE_COUNT;
        return true;
    }
    return false;
}

static h3_status read_line(form_file *f, const char *line)
{
    char name[NAME], type[16], shape[64], ne[64] = "", orig[64] = "-";
    long long bytes;
    tensor_row r;

    memset(&r, 0, sizeof r);
    if (line[0] == '#') {
        f->is_gguf = strstr(line, "ggml_type") != NULL;
        return H3_OK;
    }
    const int n = sscanf(line, "%191[^\t]\t%15[^\t]\t%63[^\t]\t%lld\t%63[^\t]\t%63[^\t]", name,
                         type, shape, &bytes, ne, orig);
    if (n < 4) {
        static const char *const what[] = {"no name", "no type", "no shape", "no number of bytes"};
        return bad_table(f, n < 0 ? 1 : n + 1, what[n < 0 ? 0 : n], line);
    }
    if (bytes < 0) return bad_table(f, 4, "a number of bytes below 0", line);
    if (!find_type(&r, type, f->is_gguf)) return bad_table(f, 2, "an unknown type", line);
    r.rank = numbers(shape, r.ne);
    r.n_orig = orig[0] == '[' ? numbers(orig, r.orig) : 0;
    r.bytes = (size_t)bytes;
    return expand(f, name, &r);
}

static int n_tabs(const char *line)
{
    int n = 0;

    for (; *line; line++)
        n += *line == '\t';
    return n;
}

static h3_status read_table(form_file *f)
{
    char line[512];

    for (size_t i = 0; i < h3_form_count; i++) {
        const char *p = (const char *)h3_form_table[i].data,
                   *end = (const char *)h3_form_table[i].end;
        if (strcmp(h3_form_table[i].name, f->name) != 0) continue;
        for (f->line = 1; p < end; f->line++) {
            const char *nl = memchr(p, '\n', (size_t)(end - p));
            const size_t n = (size_t)((nl ? nl : end) - p);
            const char *zero = memchr(p, '\0', n);
            snprintf(line, sizeof line, "%.*s", (int)n, p);
            if (zero) return bad_table(f, 1 + n_tabs(line), "a zero byte", line);
            if (n) H3_TRY(read_line(f, line));
            p += n + 1;
        }
        if (f->line == 1)
            return h3_fail(H3_E_INTERNAL,
                           "the table of form %s in this program is empty; build the program again "
                           "from sound sources",
                           f->name);
        return H3_OK;
    }
    return h3_fail(H3_E_ARG, "form %s is not known (h3av synth list names them)", f->name);
}

/* ---------------------------------------------------------------- values */

/* Plain numbers of a tensor: mean + uniform(-1, 1) * spread. */
static void range_of(const form_file *f, const tensor_row *r, float *mean, float *spread)
{
    const char *n = r->name;
    double cols = 1;

    for (int i = 1; i < r->rank; i++)
        cols *= (double)r->ne[i];
    *mean = 0;
    *spread = 0.02f;
    if (h3_ends_with(n, "weight_scale_2") || h3_ends_with(n, "weight_global_scale"))
        *mean = 2e-3f, *spread = 0;
    else if (h3_ends_with(n, "_scale") || h3_ends_with(n, "scale_weight") ||
             h3_ends_with(n, "_s_channel") || h3_ends_with(n, "_correction"))
        *mean = strstr(f->name, "int8") || strstr(f->name, "w4a8") ? 1e-4f : 0.013f, *spread = 0;
    else if (h3_ends_with(n, "_codebook"))
        *spread = 60; // times s_rel it is a number of 8 bits
    else if (h3_ends_with(n, "inv_freq"))
        *mean = 0.5f, *spread = 0.4f;
    else if (strstr(n, "norm") && r->rank <= 1 && h3_ends_with(n, "weight"))
        *mean = 1, *spread = 0.1f;
    else if (h3_ends_with(n, "weight_g") || h3_ends_with(n, "original0"))
        *mean = 0.7f, *spread = 0.1f;
    else if (h3_ends_with(n, "scale1") || h3_ends_with(n, "scale2"))
        *mean = 0.1f, *spread = 0.05f;
    else if (h3_ends_with(n, ".alpha") || h3_ends_with(n, ".beta"))
        *spread = 0.3f;
    else if (r->rank > 1)
        *spread = (float)(1 / sqrt(cols));
}

/* Random bytes made into numbers of a type; the pattern of blocks goes on from `at`. */
static void shape_bytes(const form_file *f, const tensor_row *r, unsigned char *p, size_t n,
                        size_t at)
{
    static const struct {
        uint8_t type;
        int16_t half[2]; // bytes of a block that hold an f16 scale
    } blocks[] = {{2, {0, -1}},   {3, {0, 2}},     {6, {0, -1}}, {7, {0, 2}},  {8, {0, -1}},
                  {10, {80, 82}}, {11, {108, -1}}, {12, {0, 2}}, {13, {0, 2}}, {14, {208, -1}}};
    const bool is_scale = h3_ends_with(r->name, "_scale");

    if (r->dtype == H3_F8_E4M3)
        for (size_t i = 0; i < n; i++) // 0.5 to 1.9, of either sign for weights
            p[i] = (unsigned char)((p[i] & (is_scale ? 0x0f : 0x8f)) | 0x30);
    if (r->dtype == H3_F8_E8M0 || (r->dtype == H3_U8 && is_scale)) memset(p, 0x79, n);
    if (r->dtype == H3_U8 && h3_ends_with(r->name, ".comfy_quant")) {
        const char *tag = h3_quant_tag(r->bytes, strstr(f->name, "mxfp8") != NULL);
        if (strlen(tag) >= at + n) memcpy(p, tag + at, n);
    }
    if (r->dtype != H3_DTYPE_COUNT) return;
    const h3_ggml_info info = h3_ggml_type(r->ggml_type);
    const uint16_t half = h3_f32_to_f16(0x1p-12f);
    for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++)
        for (int h = 0; blocks[k].type == r->ggml_type && h < 2 && blocks[k].half[h] >= 0; h++)
            for (size_t i = 0; i + info.bytes <= n; i += info.bytes)
                memcpy(p + i + blocks[k].half[h], &half, sizeof half);
}

/* ---------------------------------------------------------------- writing */

static h3_status check_room(const form_file *f)
{
    const char *slash = strrchr(f->path, '/');
    char *folder =
        slash ? h3_strdupf("%.*s", (int)(slash - f->path) + 1, f->path) : h3_strdupf(".");
    struct statvfs v;
    h3_status st = H3_OK;

    if (statvfs(folder, &v) == 0) {
        const double room = (double)v.f_bavail * (double)v.f_frsize;
        if ((double)f->bytes + 1e6 > room)
            st = h3_fail(H3_E_IO, "%s: %.2f GB are needed, %.2f GB are free in %s", f->path,
                         (double)f->bytes * 1e-9, room * 1e-9, folder);
    }
    free(folder);
    return st;
}

static h3_status put(h3_writer *st, h3_gguf_writer *gguf, const void *p, size_t n)
{
    return st ? h3_writer_put(st, p, n) : h3_gguf_put(gguf, p, n);
}

static h3_status put_filter(const tensor_row *r, h3_writer *st, h3_gguf_writer *gguf)
{
    double filter[H3_AUDIO_VAE_TAPS];
    float narrow[H3_AUDIO_VAE_TAPS];

    (void)r;
    h3_audio_vae_kaiser_sinc(filter, NULL, H3_AUDIO_VAE_TAPS, 0.25, 0.3);
    for (int i = 0; i < H3_AUDIO_VAE_TAPS; i++)
        narrow[i] = (float)filter[i];
    return put(st, gguf, narrow, sizeof narrow);
}

static h3_status put_tensor(const form_file *f, const tensor_row *r, uint64_t *state,
                            unsigned char *buf, h3_writer *st, h3_gguf_writer *gguf)
{
    const bool is_plain = r->dtype == H3_F32 || r->dtype == H3_BF16 || r->dtype == H3_F16;
    const size_t unit = is_plain                     ? h3_dtype_bytes(r->dtype)
                        : r->dtype == H3_DTYPE_COUNT ? h3_ggml_type(r->ggml_type).bytes
                                                     : 1;
    const size_t most = BLOCK * 4 / unit * unit;
    float mean, spread;

    if (h3_ends_with(r->name, ".filter") && r->bytes == H3_AUDIO_VAE_TAPS * sizeof(float))
        return put_filter(r, st, gguf);
    range_of(f, r, &mean, &spread);
    for (size_t at = 0; at < r->bytes; at += most) {
        const size_t n = r->bytes - at < most ? r->bytes - at : most;
        if (is_plain)
            h3_synth_fill(buf, r->dtype, (int64_t)(n / unit), mean, spread, state);
        else
            h3_synth_bytes(buf, n, state);
        if (!is_plain) shape_bytes(f, r, buf, n, at);
        H3_TRY(put(st, gguf, buf, n));
    }
    return H3_OK;
}

static h3_status declare(const form_file *f, h3_writer *st, h3_gguf_writer *gguf)
{
    for (size_t i = 0; i < f->n; i++) {
        const tensor_row *r = &f->row[i];
        if (st)
            H3_TRY(h3_writer_declare(st, r->name, r->dtype, r->rank, r->ne));
        else
            H3_TRY(h3_gguf_declare_as(gguf, r->name, r->ggml_type, r->rank, r->ne, r->n_orig,
                                      r->orig));
    }
    return st ? h3_writer_begin(st) : h3_gguf_begin(gguf);
}

static h3_status write_all(const form_file *f, uint64_t seed)
{
    unsigned char *buf = malloc((size_t)BLOCK * 4);
    h3_writer *w = NULL;
    h3_gguf_writer *gguf = NULL;
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    h3_status st = buf ? H3_OK : h3_fail(H3_E_NOMEM, "no memory to write %s", f->path);

    if (st == H3_OK)
        st = f->is_gguf ? h3_gguf_writer_open(&gguf, f->path) : h3_writer_open(&w, f->path);
    if (st == H3_OK) st = declare(f, w, gguf);
    for (size_t i = 0; st == H3_OK && i < f->n; i++)
        st = put_tensor(f, &f->row[i], &state, buf, w, gguf);
    if (st == H3_OK) st = f->is_gguf ? h3_gguf_commit(&gguf) : h3_writer_commit(&w);
    h3_writer_abort(&w);
    h3_gguf_abort(&gguf);
    free(buf);
    return st;
}

/* Reads the table and, unless there is no path, writes the file. */
static h3_status make(form_file *f, const h3_synth_opts *o, size_t *bytes)
{
    h3_status st;

    if (o->layers < 0 || o->layers > 1000)
        return h3_fail(H3_E_ARG, "layers %d: expected 1..1000", o->layers);
    st = read_table(f);
    if (bytes) *bytes = f->bytes;
    if (st == H3_OK && *f->path) st = check_room(f);
    if (st == H3_OK && *f->path) st = write_all(f, o->seed);
    free(f->row);
    return st;
}

h3_status h3_synth_form(const char *path, const char *form, const h3_synth_opts *o, size_t *bytes)
{
    form_file f = {.name = form, .path = path ? path : "", .layers = o->layers};

    return make(&f, o, bytes);
}

/* What of a released form a part is, for those who compute with it. */
static const struct {
    h3_role role;
    const char *form, *only[3];
    int layers, vocabulary; ///< 0: all
} parts[] = {
    {H3_ROLE_DIT, "dit_original_bf16", {""}, 0, 0},
    {H3_ROLE_TEXT_ENCODER,
     "te_original_bf16",
     {"model.language_model.embed_tokens", "model.language_model.layers."},
     50,
     4096},
    {H3_ROLE_VIDEO_VAE, "video_vae_original_f32", {"decoder.", "post_quant_conv."}, 0, 0},
    {H3_ROLE_AUDIO_VAE, "audio_vae_comfy_f32", {"decoder.", "dec_in_proj."}, 0, 0},
};

h3_status h3_synth_write(const char *path, h3_role role, const h3_synth_opts *o)
{
    const int64_t heads = o->heads ? o->heads : o->is_tiny ? 4 : 56, head = o->is_tiny ? 32 : 128;
    const width tiny[] = {{5376, 96},  {14336, 72}, {28672, 144},         {5120, 24},
                          {256, 32},   {2688, 12},  {96768, 18 * 96},     {10752, 2 * 96},
                          {128, head}, {16, 4},     {7168, heads * head}, {21504, 3 * heads * head},
                          {0, 0}};
    const width others[] = {{7168, heads * head}, {21504, 3 * heads * head}, {0, 0}};

    if (o->heads < 0 || o->heads > 1024)
        return h3_fail(H3_E_ARG, "heads %d: expected 1..1024", o->heads);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        form_file f = {.name = parts[i].form,
                       .path = path,
                       .layers = o->layers ? o->layers : parts[i].layers,
                       .only = parts[i].only,
                       .vocabulary = parts[i].vocabulary};
        if (parts[i].role != role) continue;
        if (role == H3_ROLE_DIT) f.widths = o->is_tiny ? tiny : others;
        if (role == H3_ROLE_DIT && o->is_tiny && !o->layers) f.layers = 3;
        return make(&f, o, NULL);
    }
    return h3_fail(H3_E_ARG, "a synthetic checkpoint of this kind is not known");
}

h3_status h3_synth(const char *form, int layers, uint64_t seed, const char *out_path)
{
    const h3_synth_opts o = {.layers = layers, .seed = seed};

    if (!form || !out_path) return h3_fail(H3_E_ARG, "synth: no form and no file given");
    return h3_synth_form(out_path, form, &o, NULL);
}

h3_status h3_synth_list(int layers, char **text)
{
    const h3_synth_opts o = {.layers = layers};
    char *all;
    h3_status st = H3_OK;

    if (!text) return h3_fail(H3_E_ARG, "synth: no place for the list given");
    all = h3_strdupf("%s", "");
    for (size_t i = 0; st == H3_OK && h3_synth_form_name(i); i++) {
        size_t bytes = 0;
        st = h3_synth_form(NULL, h3_synth_form_name(i), &o, &bytes);
        char *longer =
            h3_strdupf("%s%-28s %8.3f GB\n", all, h3_synth_form_name(i), (double)bytes * 1e-9);
        free(all);
        all = longer;
    }
    *text = st == H3_OK ? all : NULL;
    if (st != H3_OK) free(all);
    return st;
}

const char *h3_synth_form_name(size_t i)
{
    return i < h3_form_count ? h3_form_table[i].name : NULL;
}
