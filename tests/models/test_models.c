/**
 * See test_models.h. A recipe is
 *
 *   {"files": [{"file": NAME, "sha256": HEX, "rule": RULE, "seed": N, ...}, ...]}
 *
 * NAME.head beside it is the header of the file (safetensors JSON, as in the file, without the
 * eight bytes of its length); the tensors follow from it by the rule:
 *
 *   audio_vae, video_vae   uniform values of FNV-1a and splitmix64, scaled by what a tensor is for
 *   encoder                normal values of Philox and a ziggurat, likewise
 *   layout                 tensors of the files `from`; `map` says of each where it comes from and
 *                          how: copy, swap (the halves), q, k or v (rows per head of `head_dim`)
 *   repeat                 no header, no tensors: the texts of `parts`, each so many times, perhaps
 *                          behind the length of all in eight bytes (files that nest very deep)
 *
 * The rules are those by which the reference's own scripts made these checkpoints.
 */
#include "test_models.h"

#include <dirent.h>
#include <ftw.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "half.h"
#include "sha256.h"

/* One tensor of a header. */
typedef struct slot {
    const char *name;
    int rank;
    int64_t ne[5], n;
    int64_t fan_in; // product of all extents but the first
    unsigned char *at;
    size_t bytes;
} slot;

_Noreturn static void stop(const char *what, const char *which)
{
    fprintf(stderr, "test model: %s: %s\n", which, what);
    abort();
}

static char *slurp(const char *folder, const char *name, size_t *size)
{
    char *path = h3_path_join(folder, name), *text;

    if (h3_file_read(&text, size, path, (size_t)1 << 28) != H3_OK) stop("cannot be read", path);
    free(path);
    return text;
}

static json_t *slurp_json(const char *folder, const char *name)
{
    size_t size;
    char *text = slurp(folder, name, &size);
    json_t *j = json_loadb(text, size, 0, NULL);

    if (!j) stop("no JSON", name);
    free(text);
    return j;
}

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

static bool ends(const char *s, const char *with)
{
    const size_t n = strlen(s), k = strlen(with);
    return n >= k && strcmp(s + n - k, with) == 0;
}

static bool has(const char *s, const char *part)
{
    return strstr(s, part) != NULL;
}

/* ---------------------------------------------------------------- uniform values */

static uint64_t fnv1a(const char *s)
{
    uint64_t h = 0xCBF29CE484222325u;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001B3u;
    return h;
}

static uint64_t splitmix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* f32 values in offset +- scale; the sum is of doubles, rounded once. */
static void uniform(const slot *t, int64_t seed, double scale, double offset)
{
    char *key = h3_strdupf("%lld:%s", (long long)seed, t->name);
    uint64_t state = fnv1a(key);

    for (int64_t i = 0; i < t->n; i++) {
        const double u =
            (double)(int64_t)(splitmix(state += 0x9E3779B97F4A7C15u) >> 40) - 8388608.0;
        const float v = (float)(u / 8388608.0 * scale + offset);
        memcpy(t->at + 4 * i, &v, 4);
    }
    free(key);
}

typedef struct spread {
    double scale, offset;
} spread;

static spread video_spread(const slot *t)
{
    const char *n = t->name;
    double gain = 1.2;

    if (strcmp(n, "decoder.mask_token") == 0) return (spread){0.0, 0.0};
    if (ends(n, ".register_tokens")) return (spread){0.8, 0.0};
    if (ends(n, ".scale1") || ends(n, ".scale2")) return (spread){0.3, 0.6};
    if (has(n, "norm")) return ends(n, ".weight") ? (spread){0.3, 1.0} : (spread){0.2, 0.0};
    if (ends(n, ".bias")) return (spread){0.1, 0.0};
    if (strcmp(n, "quant_conv.weight") == 0) gain = 1.4;
    if (strcmp(n, "encoder.conv_out.weight") == 0) gain = 1.6;
    if (strcmp(n, "decoder.proj_out.weight") == 0) gain = 1.1;
    return (spread){gain * sqrt(3.0 / (double)t->fan_in), 0.0};
}

static spread gain_spread(const char *n) // of weight_g
{
    const bool is_encoder = starts(n, "encoder.");

    if (has(n, ".convs2.") || (is_encoder && ends(n, ".block.3.weight_g")))
        return (spread){0.05, 0.35};
    if (is_encoder && ends(n, ".block.4.weight_g")) return (spread){0.1, 0.6};
    if (has(n, ".ups.")) return (spread){0.1, has(n, ".ups.0.") || has(n, ".ups.1.") ? 1.5 : 0.95};
    if (has(n, "conv_post")) return (spread){0.0, 0.25};
    return (spread){0.2, 0.9};
}

static spread audio_spread(const slot *t)
{
    const char *n = t->name;

    if (ends(n, ".zero_k_bias")) return (spread){0.0, 0.0};
    if (ends(n, ".alpha") && t->rank == 3) return (spread){0.6, 1.0};
    if (ends(n, ".alpha") || ends(n, ".beta")) return (spread){0.5, 0.1};
    if (has(n, "norm")) return ends(n, ".weight") ? (spread){0.3, 1.0} : (spread){0.2, 0.0};
    if (ends(n, ".bias") || ends(n, ".q_bias") || ends(n, ".v_bias")) return (spread){0.1, 0.0};
    if (ends(n, ".weight_v")) return (spread){0.7, 0.0};
    if (ends(n, ".weight_g")) return gain_spread(n);
    return (spread){sqrt(3.0 / (double)t->fan_in), 0.0};
}

static void make_video(const slot *t, const json_t *how)
{
    const spread s = video_spread(t);

    uniform(t, json_integer_value(json_object_get(how, "seed")), s.scale, s.offset);
    if (strcmp(t->name, "quant_conv.bias") == 0) // a narrow posterior, as a trained one is
        for (int64_t i = t->n / 2; i < t->n; i++) {
            float v;
            memcpy(&v, t->at + 4 * i, 4);
            v -= 3.0f;
            memcpy(t->at + 4 * i, &v, 4);
        }
}

static void make_audio(const slot *t, const json_t *how)
{
    const json_t *filter = json_object_get(how, "filter");
    const spread s = audio_spread(t);

    if (!ends(t->name, "filter")) {
        uniform(t, json_integer_value(json_object_get(how, "seed")), s.scale, s.offset);
        return;
    }
    for (size_t i = 0; i < (size_t)t->n; i++) {
        const float v = (float)json_real_value(json_array_get(filter, i));
        memcpy(t->at + 4 * i, &v, 4);
    }
}

/* ---------------------------------------------------------------- normal values */

/* Philox 4x64, ten rounds (Salmon et al. 2011), keyed by the sha256 of "seed/name". */
typedef struct philox {
    uint64_t counter[4], key[2], out[4];
    int next;
} philox;

static uint64_t philox_next(philox *p)
{
    uint64_t c[4], k[2];

    if (p->next < 4) return p->out[p->next++];
    for (int i = 0; i < 4 && ++p->counter[i] == 0; i++) {
    }
    memcpy(c, p->counter, sizeof c);
    memcpy(k, p->key, sizeof k);
    for (int round = 0; round < 10; round++) {
        __extension__ typedef unsigned __int128 wide;
        const wide a = (wide)0xD2E7470EE14C6C93u * c[0], b = (wide)0xCA5A826395121157u * c[2];
        const uint64_t n[4] = {(uint64_t)(b >> 64) ^ c[1] ^ k[0], (uint64_t)b,
                               (uint64_t)(a >> 64) ^ c[3] ^ k[1], (uint64_t)a};
        memcpy(c, n, sizeof c);
        k[0] += 0x9E3779B97F4A7C15u;
        k[1] += 0xBB67AE8584CAA73Bu;
    }
    memcpy(p->out, c, sizeof c);
    p->next = 1;
    return p->out[0];
}

static double philox_unit(philox *p)
{
    return (double)(philox_next(p) >> 11) * 0x1p-53;
}

/* Marsaglia and Tsang's ziggurat of 256 layers over 52 bits. */
static double tail_at; // where the last layer starts
static double layer_w[256], layer_f[256];
static uint64_t layer_k[256];

static void ziggurat_build(void)
{
    const long double m = 0x1p52L, r = 3.6541528853610087963519472518L;
    const long double area = r * expl(-r * r / 2) + sqrtl(acosl(-1) / 2) * erfcl(r / sqrtl(2));
    long double d = r, last = r;

    if (tail_at > 0) return;
    layer_k[0] = (uint64_t)(r * expl(-r * r / 2) / area * m);
    layer_k[1] = 0;
    layer_w[0] = (double)(area / expl(-r * r / 2) / m);
    layer_w[255] = (double)(r / m);
    layer_f[0] = 1.0;
    layer_f[255] = (double)expl(-r * r / 2);
    for (int i = 254; i >= 1; i--) {
        d = sqrtl(-2 * logl(area / d + expl(-d * d / 2)));
        layer_k[i + 1] = (uint64_t)(d / last * m);
        last = d;
        layer_f[i] = (double)expl(-d * d / 2);
        layer_w[i] = (double)(d / m);
    }
    tail_at = (double)r;
}

static double philox_normal(philox *p)
{
    for (;;) {
        uint64_t r = philox_next(p);
        const int i = (int)(r & 0xff);
        const bool is_negative = (r >> 8) & 1;
        const uint64_t bits = (r >> 9) & 0xfffffffffffffu;
        double x = (double)bits * layer_w[i];

        if (is_negative) x = -x;
        if (bits < layer_k[i]) return x;
        if (i > 0) {
            if ((layer_f[i - 1] - layer_f[i]) * philox_unit(p) + layer_f[i] < exp(-0.5 * x * x))
                return x;
            continue;
        }
        for (;;) {
            const double a = -log1p(-philox_unit(p)) / tail_at, b = -log1p(-philox_unit(p));
            if (b + b > a * a) return (bits >> 8) & 1 ? -(tail_at + a) : tail_at + a;
        }
    }
}

/* What a normal value is turned into: a * x + b, or x / sqrt(fan_in) times a. */
static double encoder_value(const slot *t, bool is_deep, double x)
{
    const char *n = t->name;
    const bool is_norm = has(n, "norm");
    const double root = sqrt((double)t->fan_in);

    if (ends(n, "embed_tokens.weight") || starts(n, "lm_head.")) return x * 0.6;
    if (ends(n, ".bias")) return x * 0.1;
    if (ends(n, "q_norm.weight") || ends(n, "k_norm.weight")) return 1.2 + 0.25 * x;
    if (strcmp(n, "model.language_model.norm.weight") == 0) return 1.5 + 0.5 * x;
    if (is_norm) return 1.0 + 0.2 * x;
    if (ends(n, "pos_embed.weight")) return x * 0.5;
    if (ends(n, "patch_embed.proj.weight")) return x * (1.6 / root);
    if (ends(n, "attn.qkv.weight")) return x * (1.5 / root);
    if (ends(n, "o_proj.weight") || ends(n, "down_proj.weight") || ends(n, "attn.proj.weight") ||
        (has(n, ".blocks.") && ends(n, "linear_fc2.weight")))
        return x * ((is_deep && starts(n, "model.language_model") ? 0.35 : 0.8) / root);
    return x / root;
}

static void make_encoder(const slot *t, const json_t *how)
{
    const bool is_deep = json_is_true(json_object_get(how, "is_deep"));
    char *key =
        h3_strdupf("%lld/%s", (long long)json_integer_value(json_object_get(how, "seed")), t->name);
    unsigned char digest[32];
    philox p = {.next = 4};

    ziggurat_build();
    sha256(digest, key, strlen(key));
    memcpy(p.key, digest, sizeof p.key);
    free(key);
    for (int64_t i = 0; i < t->n; i++) {
        const uint16_t v = h3_f32_to_bf16((float)encoder_value(t, is_deep, philox_normal(&p)));
        memcpy(t->at + 2 * i, &v, 2);
    }
}

/* ---------------------------------------------------------------- safetensors */

typedef struct image { // of a safetensors file
    unsigned char *data;
    size_t size;
    json_t *head;
} image;

static image image_read(const char *folder, const char *name)
{
    image m;
    uint64_t n;

    m.data = (unsigned char *)slurp(folder, name, &m.size);
    memcpy(&n, m.data, 8);
    m.head = json_loadb((char *)m.data + 8, n, 0, NULL);
    if (!m.head) stop("no safetensors file", name);
    return m;
}

static void image_free(image *m)
{
    json_decref(m->head);
    free(m->data);
}

/* False when the image has no such tensor. */
static bool image_slot(const image *m, const char *name, slot *t)
{
    const json_t *one = json_object_get(m->head, name), *shape = json_object_get(one, "shape");
    const json_t *at = json_object_get(one, "data_offsets");
    const int64_t a = json_integer_value(json_array_get(at, 0)),
                  b = json_integer_value(json_array_get(at, 1));
    uint64_t n;

    if (!one) return false;
    memcpy(&n, m->data, 8);
    *t = (slot){.name = name, .rank = (int)json_array_size(shape), .n = 1, .fan_in = 1};
    for (int i = 0; i < t->rank && i < 5; i++) {
        t->ne[i] = json_integer_value(json_array_get(shape, (size_t)i));
        t->n *= t->ne[i];
        if (i) t->fan_in *= t->ne[i];
    }
    t->at = m->data + 8 + n + a;
    t->bytes = (size_t)(b - a);
    return true;
}

/* ---------------------------------------------------------------- another layout */

enum { MAX_FROM = 4 };

/* The line "NAME SOURCE HOW" of a map; without a map, or a line, a tensor is itself. */
static void map_find(const char *map, const char *name, char source[200], char how[8])
{
    const size_t k = strlen(name);

    snprintf(source, 200, "%s", name);
    snprintf(how, 8, "copy");
    for (const char *line = map; line && *line; line = strchr(line, '\n') + 1)
        if (strncmp(line, name, k) == 0 && line[k] == '\t') {
            if (sscanf(line + k, "%199s %7s", source, how) != 2) stop("bad line of a map", name);
            return;
        }
}

static void move_rows(const slot *to, const slot *from, const char *how, int64_t head_dim)
{
    const size_t half = from->bytes / 2;
    const char *letter = strchr("qkv", how[0]);

    if (strcmp(how, "copy") == 0 && to->bytes == from->bytes) {
        memcpy(to->at, from->at, to->bytes);
    } else if (strcmp(how, "swap") == 0 && to->bytes == from->bytes) {
        memcpy(to->at, from->at + half, half);
        memcpy(to->at + half, from->at, half);
    } else if (letter && to->bytes * 3 == from->bytes && to->ne[0] % head_dim == 0) {
        const size_t run = to->bytes / (size_t)to->ne[0] * (size_t)head_dim; // of one head
        for (size_t h = 0; h < to->bytes / run; h++)
            memcpy(to->at + h * run, from->at + (3 * h + (size_t)(letter - "qkv")) * run, run);
    } else {
        stop("does not fit its source", to->name);
    }
}

static void make_layout(image *m, const char *folder, const json_t *how)
{
    const json_t *from = json_object_get(how, "from");
    const char *map_name = json_string_value(json_object_get(how, "map")), *name;
    const int64_t head_dim = json_integer_value(json_object_get(how, "head_dim"));
    size_t size, n_sources = json_array_size(from);
    char *map = map_name ? slurp(folder, map_name, &size) : NULL;
    image source[MAX_FROM];
    json_t *one;

    if (n_sources > MAX_FROM) stop("too many sources", folder);
    for (size_t i = 0; i < n_sources; i++)
        source[i] = image_read(folder, json_string_value(json_array_get(from, i)));
    json_object_foreach(m->head, name, one)
    {
        char wanted[200], step[8];
        bool is_found = strcmp(name, "__metadata__") == 0;
        slot to, it;
        if (is_found) continue;
        map_find(map, name, wanted, step);
        for (size_t i = 0; i < n_sources && !is_found; i++)
            is_found = image_slot(&source[i], wanted, &it);
        if (!is_found || !image_slot(m, name, &to)) stop("no source", name);
        move_rows(&to, &it, step, head_dim);
    }
    for (size_t i = 0; i < n_sources; i++)
        image_free(&source[i]);
    free(map);
}

/* ---------------------------------------------------------------- files and folders */

/* The bytes of a file of rule "repeat". */
static image make_repeated(const json_t *how)
{
    const size_t start = json_is_true(json_object_get(how, "has_length")) ? 8 : 0;
    image m = {.size = start};
    json_t *one;
    size_t i;

    for (int is_writing = 0; is_writing < 2; is_writing++) {
        size_t at = start;
        json_array_foreach(json_object_get(how, "parts"), i, one)
        {
            const char *text = json_string_value(json_array_get(one, 0));
            const size_t k = strlen(text), n = (size_t)json_integer_value(json_array_get(one, 1));
            for (size_t j = 0; j < n && is_writing; j++)
                memcpy(m.data + at + j * k, text, k);
            at += n * k;
        }
        if (is_writing) break;
        m.size = at;
        m.data = calloc(1, at + 1);
        if (!m.data) abort();
        if (start) memcpy(m.data, &(uint64_t){at - start}, 8);
    }
    return m;
}

/* The bytes of a safetensors file whose header is stored. */
static image make_tensors(const char *folder, const json_t *how)
{
    static const struct {
        const char *rule;
        void (*make)(const slot *, const json_t *);
    } rules[] = {{"audio_vae", make_audio}, {"video_vae", make_video}, {"encoder", make_encoder}};
    const char *rule = json_string_value(json_object_get(how, "rule")), *name;
    char *head_name = h3_strdupf("%s.head", json_string_value(json_object_get(how, "file")));
    size_t n;
    char *head = slurp(folder, head_name, &n);
    image m = {.head = json_loadb(head, n, 0, NULL)};
    json_t *one;

    if (!m.head) stop("no header", head_name);
    json_object_foreach(m.head, name, one)
    {
        const size_t end =
            (size_t)json_integer_value(json_array_get(json_object_get(one, "data_offsets"), 1));
        if (end > m.size) m.size = end;
    }
    m.size += 8 + n;
    m.data = calloc(1, m.size);
    if (!m.data) abort();
    memcpy(m.data, &(uint64_t){n}, 8);
    memcpy(m.data + 8, head, n);
    if (strcmp(rule, "layout") == 0) make_layout(&m, folder, how);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rule, rules[i].rule) == 0) json_object_foreach(m.head, name, one)
            {
                slot t;
                if (strcmp(name, "__metadata__") != 0 && image_slot(&m, name, &t))
                    rules[i].make(&t, how);
            }
    free(head);
    free(head_name);
    return m;
}

static void make_file(const char *folder, const char *out, const json_t *how)
{
    const bool is_text = strcmp(json_string_value(json_object_get(how, "rule")), "repeat") == 0;
    char *path = h3_path_join(out, json_string_value(json_object_get(how, "file"))), hex[65];
    image m = is_text ? make_repeated(how) : make_tensors(folder, how);
    FILE *f;

    sha256_hex(hex, m.data, m.size);
    if (strcmp(hex, json_string_value(json_object_get(how, "sha256"))) != 0)
        stop("is not the file of the recipe", path);
    (void)unlink(path); // never through a link
    f = fopen(path, "wb");
    if (!f || fwrite(m.data, 1, m.size, f) != m.size || fclose(f) != 0) stop("not written", path);
    image_free(&m);
    free(path);
}

/* The folder with links to its files, folders being folders. */
static void mirror(const char *folder, const char *out)
{
    DIR *d = opendir(folder);
    struct dirent *e;

    if (!d) stop("cannot be read", folder);
    while ((e = readdir(d)) != NULL) {
        char *from, *to;
        if (e->d_name[0] == '.' || ends(e->d_name, ".head") || ends(e->d_name, ".map") ||
            strcmp(e->d_name, "recipe.json") == 0)
            continue;
        from = h3_path_join(folder, e->d_name);
        to = h3_path_join(out, e->d_name);
        if (h3_path_is_dir(from)) {
            if (mkdir(to, 0777) != 0) stop("not made", to);
            mirror(from, to);
        } else {
            char *real = realpath(from, NULL);
            if (!real || symlink(real, to) != 0) stop("not linked", to);
            free(real);
        }
        free(from);
        free(to);
    }
    closedir(d);
}

typedef struct made {
    char *folder, *out;
    struct made *next;
} made;

static made *all_made;
static pid_t owner; // a child process leaves its parent's folders alone

static int drop_one(const char *path, const struct stat *s, int kind, struct FTW *w)
{
    (void)s;
    (void)kind;
    (void)w;
    return remove(path);
}

static void drop_all(void)
{
    while (all_made) {
        made *m = all_made;
        all_made = m->next;
        if (getpid() == owner) nftw(m->out, drop_one, 8, FTW_DEPTH | FTW_PHYS);
        free(m->folder);
        free(m->out);
        free(m);
    }
}

void test_model_fill(const char *folder, const char *out)
{
    json_t *recipe = slurp_json(folder, "recipe.json"), *one;
    size_t i;

    mirror(folder, out);
    json_array_foreach(json_object_get(recipe, "files"), i, one) make_file(folder, out, one);
    json_decref(recipe);
}

static made *make_folder(const char *folder)
{
    const char *tmp = getenv("TMPDIR");
    made *m = calloc(1, sizeof *m);

    if (!m) abort();
    m->folder = h3_strdupf("%s", folder);
    m->out = h3_strdupf("%s/h3av-model-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(m->out)) stop("not made", m->out);
    if (!all_made) {
        owner = getpid();
        atexit(drop_all);
    }
    m->next = all_made;
    all_made = m;
    test_model_fill(folder, m->out);
    return m;
}

/* realpath of something that exists, or of a file that does not (yet) in a folder that does. */
static char *real_path(const char *path)
{
    char *whole = realpath(path, NULL), *parent, *real;
    const char *slash = strrchr(path, '/');

    if (whole || !slash) return whole;
    parent = h3_strdupf("%.*s", (int)(slash - path), path);
    real = realpath(parent, NULL);
    if (real) whole = h3_path_join(real, slash + 1);
    free(parent);
    free(real);
    return whole;
}

const char *test_model(const char *folder)
{
    static char *paths[64];
    static int n_paths;
    char *root = real_path(folder), *rest;

    if (!root) return folder;
    rest = root + strlen(root);
    for (int up = 0; up < 4 && rest; up++) { // the folder and three above it
        char *path = h3_strdupf("%.*s/recipe.json", (int)(rest - root), root);
        const bool is_here = h3_path_exists(path);
        free(path);
        if (is_here) break;
        do
            rest--;
        while (rest > root && *rest != '/');
        if (rest <= root || up == 3) rest = NULL;
    }
    if (!rest) {
        free(root);
        return folder;
    }
    char *tail = h3_strdupf("%s", rest), *out;
    made *m;
    *rest = 0;
    for (m = all_made; m && strcmp(m->folder, root) != 0; m = m->next) {
    }
    if (!m) m = make_folder(root);
    out = h3_strdupf("%s%s", m->out, tail);
    free(tail);
    free(root);
    for (int i = 0; i < n_paths; i++)
        if (strcmp(paths[i], out) == 0) {
            free(out);
            return paths[i];
        }
    if (n_paths == 64) stop("too many folders", folder);
    return paths[n_paths++] = out;
}
