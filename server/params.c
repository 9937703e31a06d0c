/** See params.h. */
#include "params.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------- what is asked
 */

typedef enum slot {
    S_PROMPT,
    S_MODEL,
    S_TASK,
    S_SIZE,
    S_WIDTH,
    S_HEIGHT,
    S_ASPECT,
    S_FRAMES,
    S_SECONDS,
    S_STEPS,
    S_SEED,
    S_SHIFT,
    S_AUDIO_SHIFT,
    S_FIT,
    S_NOISE,
    S_SIGMAS,
    S_FRAME_INDICES,
    S_SOUND,
    N_SLOTS
} slot;

typedef struct input {
    int upload;              ///< index of body->upload
    const char *kind, *role; ///< role NULL: decided by the task
    const char *sound;
    bool is_single; ///< came as `input_reference`, OpenAI's field for a first frame
} input;

typedef struct wish {
    srv_body *b;
    const srv_limits *lim;
    json_t *value[N_SLOTS];     ///< checked, canonical; NULL: not given
    const char *given[N_SLOTS]; ///< name of the field that gave it
    input in[SRV_UPLOADS_MAX];
    int n_in;
    int depth; ///< of extra_params
} wish;

static bool bad(wish *w, const char *name, const char *code, const char *fmt, ...) SRV_PRINTF(4, 5);
static bool bad(wish *w, const char *name, const char *code, const char *fmt, ...)
{
    char text[480];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return srv_fault_set(&w->b->fault, 400, code, name, "%s: %s", name, text);
}

/* A value as it stands in a message. */
static const char *shown(const json_t *v, char buf[80])
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);

    snprintf(buf, 80, "%.70s%s", text ? text : "?", text && strlen(text) > 70 ? "..." : "");
    free(text);
    return buf;
}

/* Sets a slot (takes the value over). The same value twice is no contradiction. */
static bool put(wish *w, slot s, const char *name, json_t *v)
{
    if (!v) return srv_fault_set(&w->b->fault, 503, "out_of_memory", NULL, "no memory");
    if (w->value[s]) {
        const bool is_same = json_equal(w->value[s], v);
        json_decref(v);
        if (is_same) return true;
        return bad(w, name, "duplicate_field", "contradicts %s", w->given[s]);
    }
    w->value[s] = v;
    w->given[s] = name;
    return true;
}

/* --------------------------------------------------------------------------------------- values */

/* Numbers come as JSON numbers or, in forms, as text. */
static bool to_number(const json_t *v, double *out)
{
    const char *s = json_string_value(v);
    char *end;

    if (json_is_number(v)) {
        *out = json_number_value(v);
        return isfinite(*out);
    }
    if (!s || !*s || strchr(" \t\r\n+", *s) || strpbrk(s, "xXnN")) return false; // no hex, nan, inf
    errno = 0;
    *out = strtod(s, &end);
    return !*end && errno == 0 && isfinite(*out);
}

static bool to_integer(const json_t *v, json_int_t *out)
{
    const char *s = json_string_value(v);
    double d;
    char *end;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (s) {
        if (!*s || strspn(s, "-0123456789") != strlen(s)) return false;
        errno = 0;
        *out = strtoll(s, &end, 10);
        return !*end && end != s && errno == 0;
    }
    if (!json_is_real(v)) return false;
    d = json_real_value(v);
    if (d != floor(d) || fabs(d) > 9e15) return false;
    *out = (json_int_t)d;
    return true;
}

/* true, "true", 1, "1", "on", "yes" -> 1; their contraries -> 0; else -1 */
static int to_bool(const json_t *v)
{
    static const char yes[] = "true,1,on,yes", no[] = "false,0,off,no";
    const char *s = json_string_value(v);

    if (json_is_boolean(v)) return json_is_true(v);
    if (json_is_integer(v))
        return json_integer_value(v) == 1 ? 1 : json_integer_value(v) == 0 ? 0 : -1;
    if (!s) return -1;
    return srv_in_list(yes, s) ? 1 : srv_in_list(no, s) ? 0 : -1;
}

/* A form carries lists and objects as text. NULL when it is neither; free with json_decref. */
static json_t *to_tree(const json_t *v)
{
    const char *s = json_string_value(v);

    if (json_is_object(v) || json_is_array(v)) return json_incref((json_t *)(uintptr_t)v);
    if (!s || strlen(s) > SRV_TEXT_MAX) return NULL;
    return json_loads(s, JSON_REJECT_DUPLICATES, NULL);
}

/* Nothing, in any of its forms. */
static bool is_empty(const json_t *v)
{
    const char *s = json_string_value(v);

    return json_is_null(v) || json_is_false(v) ||
           (s && (!*s || strcmp(s, "[]") == 0 || strcmp(s, "{}") == 0)) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

/* --------------------------------------------------------------------------------------- fields */

typedef struct field field;
typedef bool (*field_fn)(wish *w, const field *f, const json_t *v);
struct field {
    const char *name;
    field_fn read;
    int slot;
    double lo, hi;
    const char *words; ///< accepted words, what is accepted, or why nothing else is
};

static bool read_object(wish *w, const json_t *o, const char *inside);

static bool f_ignored(wish *w, const field *f, const json_t *v)
{
    (void)w;
    (void)f;
    (void)v;
    return true;
}

static bool f_text(wish *w, const field *f, const json_t *v)
{
    if (!json_is_string(v)) return bad(w, f->name, "invalid_type", "expected a text");
    if (json_string_length(v) > (size_t)f->hi)
        return bad(w, f->name, "too_long", "has %zu bytes, at most %.0f are accepted",
                   json_string_length(v), f->hi);
    return put(w, (slot)f->slot, f->name, json_copy((json_t *)(uintptr_t)v));
}

static bool f_model(wish *w, const field *f, const json_t *v)
{
    const char *s = json_string_value(v);

    if (!s) return bad(w, f->name, "invalid_type", "expected a text");
    if (*s && strcmp(s, w->lim->model) != 0)
        return bad(w, f->name, "model_not_found", "\"%.80s\" is not served here, \"%s\" is", s,
                   w->lim->model);
    return true;
}

static bool f_word(wish *w, const field *f, const json_t *v)
{
    const char *s = json_string_value(v);
    char low[24];

    if (!s || strlen(s) >= sizeof low || !srv_in_list(f->words, s)) {
        char buf[80];
        return bad(w, f->name, "invalid_value", "%s: expected one of %s", shown(v, buf), f->words);
    }
    for (size_t i = 0; i <= strlen(s); i++)
        low[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + 32 : s[i]);
    if (strcmp(low, "auto") == 0) return true; // as if it was not given
    return put(w, (slot)f->slot, f->name, json_string(low));
}

static bool f_int(wish *w, const field *f, const json_t *v)
{
    json_int_t n;
    char buf[80];

    if (!to_integer(v, &n) || n < (json_int_t)f->lo || (double)n > f->hi)
        return bad(w, f->name, "invalid_value", "%s: expected a whole number from %.0f to %.0f",
                   shown(v, buf), f->lo, f->hi);
    return put(w, (slot)f->slot, f->name, json_integer(n));
}

static bool f_real(wish *w, const field *f, const json_t *v)
{
    double x;
    char buf[80];

    if (!to_number(v, &x) || x < f->lo || x > f->hi)
        return bad(w, f->name, "invalid_value", "%s: expected a number from %g to %g",
                   shown(v, buf), f->lo, f->hi);
    return put(w, (slot)f->slot, f->name, json_real(x));
}

static bool f_size(wish *w, const field *f, const json_t *v)
{
    const char *s = json_string_value(v);
    int width = 0, height = 0, used = 0;
    char buf[80];

    if (s && (strcmp(s, "auto") == 0 || !*s)) return true;
    if (!s || sscanf(s, "%5d%*1[xX]%5d%n", &width, &height, &used) != 2 || s[used] || width < 1 ||
        height < 1 || *s < '0' || *s > '9')
        return bad(w, f->name, "invalid_value", "%s: expected WIDTHxHEIGHT", shown(v, buf));
    return put(w, S_WIDTH, f->name, json_integer(width)) &&
           put(w, S_HEIGHT, f->name, json_integer(height));
}

/* One value is right, whatever its type is; f->words says why there is no other. */
static bool f_only(wish *w, const field *f, const json_t *v)
{
    double x;
    char buf[80];
    const json_t *one = json_is_array(v) && json_array_size(v) == 1 ? json_array_get(v, 0) : v;

    if (is_empty(one) && !json_is_false(one)) return true;
    if (to_number(one, &x) && x == f->lo) return true;
    if ((f->lo == 0 || f->lo == 1) && to_bool(one) == (int)f->lo) return true;
    return bad(w, f->name, "unsupported_value", "%s: %s", shown(v, buf), f->words);
}

static bool f_none(wish *w, const field *f, const json_t *v)
{
    return is_empty(v) ? true : bad(w, f->name, "unsupported_field", "%s", f->words);
}

static bool f_aspect(wish *w, const field *f, const json_t *v)
{
    const char *s = json_string_value(v);
    double a, b;
    int used = 0;
    char buf[80];

    if (s && (strcasecmp(s, "auto") == 0 || !*s)) return true;
    if (!s || strlen(s) > 20 || sscanf(s, "%lf%*1[:x/]%lf%n", &a, &b, &used) != 2 || s[used] ||
        !(a > 0) || !(b > 0) || !isfinite(a) || !isfinite(b))
        return bad(w, f->name, "invalid_value", "%s: expected a ratio such as 16:9, or auto",
                   shown(v, buf));
    return put(w, S_ASPECT, f->name, json_string(s));
}

static bool f_sigmas(wish *w, const field *f, const json_t *v)
{
    json_t *list = to_tree(v), *one;
    const size_t n = json_array_size(list);
    double x, last = HUGE_VAL;
    size_t i;
    bool is_ok = n >= 2 && n <= SRV_SIGMAS_MAX;

    json_array_foreach(list, i, one)
    {
        is_ok = is_ok && to_number(one, &x) && x < last;
        last = x;
    }
    if (!is_ok) {
        json_decref(list);
        return bad(w, f->name, "invalid_value", "expected a falling list of 2 to %d numbers",
                   SRV_SIGMAS_MAX);
    }
    return put(w, S_SIGMAS, f->name, list);
}

static bool f_indices(wish *w, const field *f, const json_t *v)
{
    json_t *list = to_tree(v), *one, *out = json_array();
    json_int_t n;
    size_t i;
    bool is_ok = json_is_array(list) && json_array_size(list) <= 2;
    char buf[80];

    json_array_foreach(list, i, one)
    {
        is_ok = is_ok && to_integer(one, &n) && (n == 0 || n == -1);
        if (is_ok) json_array_append_new(out, json_integer(n));
    }
    json_decref(list);
    if (is_ok && json_array_size(out) == 2 &&
        json_equal(json_array_get(out, 0), json_array_get(out, 1)))
        is_ok = false;
    if (is_ok) return put(w, S_FRAME_INDICES, f->name, out);
    json_decref(out);
    return bad(w, f->name, "invalid_value", "%s: expected [0], [-1], [0,-1] or [-1,0]",
               shown(v, buf));
}

/* extra_params and the like: fields inside a field, as an object or as JSON text. */
static bool f_object(wish *w, const field *f, const json_t *v)
{
    json_t *o = to_tree(v);
    bool is_ok;

    if (is_empty(v)) {
        json_decref(o);
        return true;
    }
    if (!json_is_object(o)) {
        json_decref(o);
        return bad(w, f->name, "invalid_type", "expected an object or its JSON text");
    }
    if (++w->depth > 3)
        is_ok = bad(w, f->name, "invalid_value", "nested too deep");
    else
        is_ok = read_object(w, o, f->name);
    w->depth--;
    json_decref(o);
    return is_ok;
}

/* --------------------------------------------------------------------------------------- inputs */

static bool add_input(wish *w, const char *name, int upload, const char *kind, const char *role)
{
    if (w->n_in == SRV_INPUTS_MAX)
        return bad(w, name, "too_many_references", "more than %d pictures, clips and sounds",
                   SRV_INPUTS_MAX);
    if (w->b->upload[upload].bytes == 0)
        return bad(w, name, "empty_file", "the file \"%.80s\" is empty", w->b->upload[upload].name);
    w->in[w->n_in++] = (input){.upload = upload,
                               .kind = kind,
                               .role = role,
                               .is_single = strcmp(name, "input_reference") == 0};
    return true;
}

/* data:image/png;base64,AAAA */
static bool add_data_url(wish *w, const char *name, const char *url, const char *kind,
                         const char *role)
{
    const char *comma = strchr(url, ',');
    int64_t bytes;
    int index, fd;

    if (!comma || comma - url < 12 || strncasecmp(comma - 7, ";base64", 7) != 0)
        return bad(w, name, "invalid_url", "a data: URL must be base64: data:image/png;base64,...");
    fd = srv_body_new_file(w->b, "(data URL)", &index);
    if (fd < 0) return false;
    bytes = srv_base64_to_fd(comma + 1, strlen(comma + 1), fd);
    close(fd);
    if (bytes == -1) return bad(w, name, "invalid_url", "the base64 of a data: URL is malformed");
    if (bytes < 0) {
        w->b->fault.is_final = true;
        return srv_fault_set(&w->b->fault, 507, "storage_full", name,
                             "the server could not store the upload");
    }
    w->b->upload[index].bytes = bytes;
    w->b->upload[index].hash = srv_fnv(SRV_FNV, comma + 1, strlen(comma + 1));
    return add_input(w, name, index, kind, role);
}

static bool add_url(wish *w, const char *name, const char *url, const char *kind, const char *role)
{
    if (strncasecmp(url, "data:", 5) == 0) return add_data_url(w, name, url, kind, role);
    if (strncasecmp(url, "http:", 5) == 0 || strncasecmp(url, "https:", 6) == 0)
        return bad(w, name, "fetch_disabled",
                   "this server fetches nothing from the net; upload the file or use a data: URL");
    return bad(w, name, "invalid_url", "expected a file or a data: URL");
}

static bool add_reference(wish *w, const char *name, const json_t *v, const char *kind,
                          const char *role);

/* Text that holds an object, or a list of references. */
static bool add_reference_text(wish *w, const char *name, const json_t *v, const char *kind,
                               const char *role)
{
    json_t *tree = to_tree(v), *item;
    bool is_ok;
    size_t i;

    if (!tree || ++w->depth > 3) {
        json_decref(tree);
        return bad(w, name, "invalid_value", "malformed JSON text");
    }
    is_ok = json_is_object(tree) ? add_reference(w, name, tree, kind, role) : json_is_array(tree);
    json_array_foreach(tree, i, item) is_ok = is_ok && add_reference(w, name, item, kind, role);
    w->depth--;
    json_decref(tree);
    return is_ok;
}

/* {image_url|video_url|audio_url|url|uri: a URL, or an object with one}, and nothing else. */
static bool add_url_object(wish *w, const char *name, const json_t *v, const char *kind,
                           const char *role)
{
    static const struct {
        const char *key, *kind;
    } urls[] = {{"image_url", "image"},
                {"video_url", "video"},
                {"audio_url", "audio"},
                {"url", NULL},
                {"uri", NULL}};
    const char *key;
    json_t *item;
    bool is_ok = false;

    json_object_foreach((json_t *)(uintptr_t)v, key, item)
    {
        const char *is = NULL;
        bool is_known = false;
        for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
            if (strcmp(key, urls[i].key) == 0) {
                is_known = true;
                is = urls[i].kind;
            }
        if (!is_known || is_ok) return bad(w, name, "unknown_field", "unexpected \"%.60s\"", key);
        if (json_is_object(item))
            item = json_object_get(item, "url"); // {"image_url": {"url": ...}}
        if (!json_is_string(item)) return bad(w, name, "invalid_type", "%s: expected a URL", key);
        if (!add_url(w, name, json_string_value(item), is ? is : kind, role)) return false;
        is_ok = true;
    }
    return is_ok ? true : bad(w, name, "invalid_value", "an empty object, expected a URL");
}

/* One reference: a file, a URL, JSON text, or an object. */
static bool add_reference(wish *w, const char *name, const json_t *v, const char *kind,
                          const char *role)
{
    const char *s = json_string_value(v);
    const json_t *upload = json_object_get(v, "$upload");

    if (s && (*s == '{' || *s == '[')) return add_reference_text(w, name, v, kind, role);
    if (s) return add_url(w, name, s, kind, role);
    if (!json_is_object(v)) return bad(w, name, "invalid_type", "expected a file or a URL");
    if (upload) {
        const json_int_t i = json_integer_value(upload);
        if (!json_is_integer(upload) || i < 0 || i >= w->b->n_uploads)
            return bad(w, name, "invalid_value", "no such upload");
        return add_input(w, name, (int)i, kind, role);
    }
    if (json_object_get(v, "file_id"))
        return bad(w, name, "unsupported_value", "file_id: this server keeps no files to refer to");
    return add_url_object(w, name, v, kind, role);
}

/* f->words: kind ("image", ...) or NULL; f->slot: 0 by task, 1 first frame, 2 last frame. */
static bool f_input(wish *w, const field *f, const json_t *v)
{
    static const char *const roles[] = {NULL, "first", "last", "reference"};
    const json_t *item;
    size_t i;

    if (is_empty(v)) return true;
    if (!json_is_array(v)) return add_reference(w, f->name, v, f->words, roles[f->slot]);
    json_array_foreach(v, i, item)
    {
        if (!is_empty(item) && !add_reference(w, f->name, item, f->words, roles[f->slot]))
            return false;
    }
    return true;
}

/* SGLang's conditions: [{type, uri, role, frame_index, start_time_seconds}] */
static bool add_condition(wish *w, const char *name, const json_t *o)
{
    static const char accepted[] = "type,uri,role,frame_index,start_time_seconds";
    const char *key, *type = srv_json_str(o, "type"), *uri = srv_json_str(o, "uri");
    const char *role = srv_json_str(o, "role"), *kind = type;
    json_t *at = json_object_get(o, "frame_index"), *v;

    json_object_foreach((json_t *)(uintptr_t)o, key, v) if (!srv_in_list(accepted, key)) return bad(
        w, name, "unknown_field", "unexpected \"%.60s\" in a condition", key);
    if (!type || !srv_in_list("image,video,audio,video_audio", type))
        return bad(w, name, "invalid_value", "type: expected image, video, audio or video_audio");
    if (!uri) return bad(w, name, "invalid_value", "a condition has no uri");
    if (role && !srv_in_list("keyframe,reference", role))
        return bad(w, name, "invalid_value", "role: expected keyframe or reference");
    if (json_is_number(json_object_get(o, "start_time_seconds")) &&
        srv_json_num(o, "start_time_seconds") != 0)
        return bad(w, name, "unsupported_value", "start_time_seconds: only 0 is supported");
    if (strcasecmp(type, "video_audio") == 0) kind = "video";
    kind = strcasecmp(kind, "image") == 0   ? "image"
           : strcasecmp(kind, "video") == 0 ? "video"
                                            : "audio";
    if (role && strcasecmp(role, "keyframe") == 0) {
        const json_int_t index = json_integer_value(at);
        if (at && !json_is_null(at) && (!json_is_integer(at) || (index != 0 && index != -1)))
            return bad(w, name, "invalid_value", "frame_index: expected 0 or -1");
        return add_url(w, name, uri, kind, index == -1 ? "last" : "first");
    }
    if (!add_url(w, name, uri, kind, "reference")) return false;
    if (strcasecmp(type, "video_audio") == 0) w->in[w->n_in - 1].sound = "yes";
    return true;
}

static bool f_conditions(wish *w, const field *f, const json_t *v)
{
    json_t *list = to_tree(v), *one;
    bool is_ok = json_is_array(list) || is_empty(v);
    size_t i;

    if (!is_ok) bad(w, f->name, "invalid_type", "expected a list of conditions");
    json_array_foreach(list, i, one)
    {
        if (is_ok && !json_is_object(one))
            is_ok = bad(w, f->name, "invalid_type", "a condition must be an object");
        is_ok = is_ok && add_condition(w, f->name, one);
    }
    json_decref(list);
    return is_ok;
}

#define WHY_LATENT  "editing latents is not supported"
#define WHY_INTERPO "frames are not interpolated by this server"
#define WHY_ONE     "one video is made for each request; send several"
#define WHY_CFG     "the model is run without classifier-free guidance; leave it out"
#define BIG         9007199254740991.0

/* Sorted by name: it is also the list that clients get to see. */
static const field fields[] = {
    {"aspect", f_aspect, S_ASPECT, 0, 0, NULL},
    {"aspect_ratio", f_aspect, S_ASPECT, 0, 0, NULL},
    {"audio_flow_shift", f_real, S_AUDIO_SHIFT, 0.01, 100, NULL},
    {"audio_noise_mask", f_none, 0, 0, 0, WHY_LATENT},
    {"audio_reference", f_input, 3, 0, 0, "audio"},
    {"audio_shift", f_real, S_AUDIO_SHIFT, 0.01, 100, NULL},
    {"conditions", f_conditions, 0, 0, 0, NULL},
    {"control_reference", f_none, 0, 0, 0, "control networks are not supported"},
    {"control_type", f_none, 0, 0, 0, "control networks are not supported"},
    {"duration", f_real, S_SECONDS, 0.001, 3600, NULL},
    {"duration_seconds", f_real, S_SECONDS, 0.001, 3600, NULL},
    {"enable_frame_interpolation", f_only, 0, 0, 0, WHY_INTERPO},
    {"extra_body", f_object, 0, 0, 0, NULL},
    {"extra_params", f_object, 0, 0, 0, NULL},
    {"first_frame", f_input, 1, 0, 0, "image"},
    {"fit", f_word, S_FIT, 0, 0, "auto,reference,stretch,cover,pad"},
    {"flow_shift", f_real, S_SHIFT, 0.01, 100, NULL},
    {"force_refresh_step_hint", f_ignored, 0, 0, 0, NULL},
    {"fps", f_only, 0, 24, 0, "the model makes 24 frames a second"},
    {"frame_indices", f_indices, S_FRAME_INDICES, 0, 0, NULL},
    {"frame_interpolation_exp", f_none, 0, 0, 0, WHY_INTERPO},
    {"frame_interpolation_model_path", f_none, 0, 0, 0, WHY_INTERPO},
    {"frame_interpolation_scale", f_none, 0, 0, 0, WHY_INTERPO},
    {"frames", f_int, S_FRAMES, 1, 17005, NULL},
    {"generate_sound", f_only, 0, 1, 0, "the model makes picture and sound together"},
    {"guidance_scale", f_only, 0, 1, 0, WHY_CFG},
    {"height", f_int, S_HEIGHT, 1, 16384, NULL},
    {"image_reference", f_input, 3, 0, 0, "image"},
    {"input_reference", f_input, 0, 0, 0, NULL},
    {"input_references", f_input, 3, 0, 0, NULL},
    {"last_frame", f_input, 2, 0, 0, "image"},
    {"lora", f_none, 0, 0, 0, "adapters are chosen when the server starts (h3av serve --lora)"},
    {"model", f_model, S_MODEL, 0, 0, NULL},
    {"n", f_only, 0, 1, 0, WHY_ONE},
    {"negative_prompt", f_none, 0, 0, 0, WHY_CFG},
    {"noise_order", f_word, S_NOISE, 0, 0, "auto,diffusers,omni"},
    {"num_frames", f_int, S_FRAMES, 1, 17005, NULL},
    {"num_inference_steps", f_int, S_STEPS, 2, 1000, NULL},
    {"num_outputs_per_prompt", f_only, 0, 1, 0, WHY_ONE},
    {"output_compression", f_ignored, 0, 0, 0, NULL},
    {"output_quality", f_ignored, 0, 0, 0, NULL},
    {"preencode_batch_frames", f_ignored, 0, 0, 0, NULL},
    {"preencode_mp4", f_ignored, 0, 0, 0, NULL},
    {"prompt", f_text, S_PROMPT, 0, 65536, NULL},
    {"quality", f_ignored, 0, 0, 0, NULL},
    {"reference_sound", f_word, S_SOUND, 0, 0, "auto,yes,no"},
    {"reference_url", f_input, 3, 0, 0, NULL},
    {"seconds", f_real, S_SECONDS, 0.001, 3600, NULL},
    {"seed", f_int, S_SEED, 0, BIG, NULL},
    {"shift", f_real, S_SHIFT, 0.01, 100, NULL},
    {"short_edge", f_only, 0, 768, 0, "canvases have a short edge of 768; give size instead"},
    {"sigmas", f_sigmas, S_SIGMAS, 0, 0, NULL},
    {"size", f_size, S_SIZE, 0, 0, NULL},
    {"sound_duration", f_none, 0, 0, 0, "the sound is as long as the picture"},
    {"source_audio", f_none, 0, 0, 0, WHY_LATENT},
    {"source_video", f_none, 0, 0, 0, WHY_LATENT},
    {"start_time_seconds", f_only, 0, 0, 0, "references are read from their start"},
    {"steps", f_int, S_STEPS, 2, 1000, NULL},
    {"target", f_object, 0, 0, 0, NULL},
    {"task", f_word, S_TASK, 0, 0, "auto,t2va,fl2va,ref2va"},
    {"user", f_ignored, 0, 0, 0, NULL},
    {"video_codec_options", f_none, 0, 0, 0, "the encoder is set up when the server is built"},
    {"video_noise_mask", f_none, 0, 0, 0, WHY_LATENT},
    {"video_reference", f_input, 3, 0, 0, "video"},
    {"width", f_int, S_WIDTH, 1, 16384, NULL},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

json_t *srv_params_names(void)
{
    json_t *list = json_array();

    for (int i = 0; i < N_FIELDS; i++)
        json_array_append_new(list, json_string(fields[i].name));
    return list;
}

static int by_name(const void *key, const void *row)
{
    return strcmp(key, ((const field *)row)->name);
}

static bool read_object(wish *w, const json_t *o, const char *inside)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        const field *f = bsearch(key, fields, N_FIELDS, sizeof *fields, by_name);
        if (!f) {
            char param[72];
            snprintf(param, sizeof param, "%s%s%.*s", inside ? inside : "", inside ? "." : "", 48,
                     key);
            return srv_fault_set(&w->b->fault, 400, "unknown_field", param,
                                 "unknown field \"%s\"; docs/server.md lists what is accepted",
                                 param);
        }
        if (json_is_null(v)) continue;
        if (!f->read(w, f, v)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------ the whole */

static json_int_t slot_int(const wish *w, slot s)
{
    return json_integer_value(w->value[s]);
}

static bool check_limits(wish *w)
{
    const json_int_t width = slot_int(w, S_WIDTH), height = slot_int(w, S_HEIGHT);
    const json_int_t frames = slot_int(w, S_FRAMES), steps = slot_int(w, S_STEPS);
    const double seconds = json_number_value(w->value[S_SECONDS]);
    const double most = w->lim->max_seconds;

    if (!w->value[S_WIDTH] != !w->value[S_HEIGHT])
        return bad(w, w->value[S_WIDTH] ? "width" : "height", "invalid_value",
                   "give width and height, or neither");
    if (width * height > w->lim->max_pixels)
        return bad(w, w->given[S_WIDTH], "too_large",
                   "%lldx%lld is more than the %d pixels this server accepts", (long long)width,
                   (long long)height, w->lim->max_pixels);
    if (frames && seconds > 0)
        return bad(w, w->given[S_FRAMES], "duplicate_field", "contradicts %s: give one length",
                   w->given[S_SECONDS]);
    if (seconds > most || (double)frames / 24.0 > most + 17.0 / 24.0)
        return bad(w, w->given[seconds > 0 ? S_SECONDS : S_FRAMES], "too_large",
                   "longer than the %g seconds this server accepts", most);
    if (steps > w->lim->max_steps)
        return bad(w, w->given[S_STEPS], "too_large", "more than the %d steps this server accepts",
                   w->lim->max_steps);
    if (w->value[S_SIGMAS] && w->value[S_STEPS] &&
        (json_int_t)json_array_size(w->value[S_SIGMAS]) != steps)
        return bad(w, w->given[S_SIGMAS], "duplicate_field", "contradicts %s", w->given[S_STEPS]);
    return true;
}

/* Which task do the inputs make? An explicit one wins; the engine checks that they agree. */
static const char *task_of(const wish *w)
{
    const char *task = json_string_value(w->value[S_TASK]);
    int n_key = 0, n_ref = 0;

    if (task) return task;
    for (int i = 0; i < w->n_in; i++) {
        const input *in = &w->in[i];
        const bool is_key = in->role ? strcmp(in->role, "reference") != 0 : in->is_single;
        n_key += is_key;
        n_ref += !is_key;
    }
    if (w->n_in == 0) return "t2va";
    if (w->value[S_FRAME_INDICES] && n_ref <= 2 && n_key == 0) return "fl2va";
    return n_ref ? "ref2va" : "fl2va";
}

/* Keyframes get their places, in the order they came: frame_indices says which. */
static bool place_keyframes(wish *w)
{
    static const char *const both[] = {"first", "last"};
    const json_t *at = w->value[S_FRAME_INDICES];
    const char *seen[2] = {NULL, NULL};
    int n_free = 0;

    for (int i = 0; i < w->n_in; i++) {
        input *in = &w->in[i];
        if (!in->role || strcmp(in->role, "reference") == 0) {
            if (n_free >= 2)
                return bad(w, "input_references", "too_many_references",
                           "fl2va takes a first and a last frame");
            in->role = both[n_free];
            if (at) {
                if ((size_t)n_free >= json_array_size(at))
                    return bad(w, "frame_indices", "invalid_value",
                               "names fewer frames than given");
                in->role = both[json_integer_value(json_array_get(at, (size_t)n_free)) == -1];
            }
            n_free++;
        }
        for (int k = 0; k < 2; k++) {
            if (strcmp(in->role, both[k]) != 0) continue;
            if (seen[k])
                return bad(w, k ? "last_frame" : "first_frame", "duplicate_field", "given twice");
            seen[k] = in->role;
        }
    }
    if (at && n_free && json_array_size(at) != (size_t)n_free)
        return bad(w, "frame_indices", "invalid_value", "names %zu frames, %d pictures were given",
                   json_array_size(at), n_free);
    return true;
}

static bool settle_roles(wish *w, const char *task)
{
    if (strcmp(task, "t2va") == 0) {
        if (w->n_in)
            return bad(w, "task", "invalid_value",
                       "t2va takes no pictures, clips or sounds; leave them or the task out");
        return true;
    }
    if (w->n_in == 0)
        return bad(w, "task", "invalid_value", "%s needs %s", task,
                   strcmp(task, "fl2va") == 0 ? "a first or a last frame"
                                              : "at least one reference");
    if (strcmp(task, "fl2va") == 0) return place_keyframes(w);
    for (int i = 0; i < w->n_in; i++) {
        if (w->in[i].role && strcmp(w->in[i].role, "reference") != 0)
            return bad(w, strcmp(w->in[i].role, "first") == 0 ? "first_frame" : "last_frame",
                       "invalid_value", "keyframes and references cannot be combined");
        w->in[i].role = "reference";
    }
    return true;
}

static json_t *list_inputs(const wish *w)
{
    const char *sound = json_string_value(w->value[S_SOUND]);
    json_t *list = json_array();

    for (int i = 0; i < w->n_in; i++) {
        const input *in = &w->in[i];
        const srv_upload *u = &w->b->upload[in->upload];
        char file[16];
        json_t *name = json_string(u->name);
        snprintf(file, sizeof file, "in%d", in->upload);
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:s, s:s, s:s, s:I}", "file", file, "name",
                                        name ? name : json_string("(upload)"), "kind",
                                        in->kind ? in->kind : "auto", "role", in->role, "sound",
                                        in->sound ? in->sound
                                        : sound   ? sound
                                                  : "auto",
                                        "bytes", (json_int_t)u->bytes));
    }
    return list;
}

static json_t *list_params(const wish *w, const char *task)
{
    static const struct {
        slot from;
        const char *key;
    } rows[] = {{S_WIDTH, "width"},       {S_HEIGHT, "height"},           {S_ASPECT, "aspect"},
                {S_FRAMES, "frames"},     {S_SECONDS, "seconds"},         {S_STEPS, "steps"},
                {S_SHIFT, "shift"},       {S_AUDIO_SHIFT, "audio_shift"}, {S_FIT, "fit"},
                {S_NOISE, "noise_order"}, {S_SIGMAS, "sigmas"},           {S_SEED, "seed"}};
    json_t *o = json_pack("{s:s}", "task", task);
    uint32_t seed;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (w->value[rows[i].from]) json_object_set(o, rows[i].key, w->value[rows[i].from]);
    if (!w->value[S_SEED]) { // a new one each time, told in the answer
        if (!srv_random(&seed, sizeof seed)) seed = (uint32_t)srv_unix_ms();
        json_object_set_new(o, "seed", json_integer(seed));
        json_object_set_new(o, "seed_is_random", json_true());
    }
    return o;
}

bool srv_params_read(srv_params *out, srv_body *b, const srv_limits *lim)
{
    wish w = {.b = b, .lim = lim};
    const char *task, *prompt;
    bool is_ok;

    memset(out, 0, sizeof *out);
    is_ok = read_object(&w, b->fields, NULL);
    prompt = json_string_value(w.value[S_PROMPT]);
    if (is_ok && (!prompt || !prompt[strspn(prompt, " \t\r\n\v\f")]))
        is_ok = srv_fault_set(&b->fault, 400, "missing_field", "prompt",
                              prompt ? "prompt: is empty" : "the field \"prompt\" is missing");
    task = task_of(&w);
    is_ok = is_ok && check_limits(&w) && settle_roles(&w, task);
    if (is_ok) {
        out->prompt = srv_copy(prompt);
        out->params = list_params(&w, task);
        out->inputs = list_inputs(&w);
    }
    for (int i = 0; i < N_SLOTS; i++)
        json_decref(w.value[i]);
    return is_ok;
}

void srv_params_free(srv_params *p)
{
    free(p->prompt);
    json_decref(p->params);
    json_decref(p->inputs);
    memset(p, 0, sizeof *p);
}

void srv_params_request(h3_request *rq, const json_t *p, float *sigmas)
{
    const json_t *list = json_object_get(p, "sigmas"), *one;
    size_t i;

    rq->task = srv_json_str(p, "task");
    rq->width = (int)srv_json_int(p, "width");
    rq->height = (int)srv_json_int(p, "height");
    rq->aspect = srv_json_str(p, "aspect");
    rq->frames = (int)srv_json_int(p, "frames");
    rq->seconds = srv_json_num(p, "seconds");
    rq->steps = (int)srv_json_int(p, "steps");
    rq->seed = (uint64_t)srv_json_int(p, "seed");
    rq->shift_video = srv_json_num(p, "shift");
    rq->shift_audio = srv_json_num(p, "audio_shift");
    rq->fit = srv_json_str(p, "fit");
    rq->noise_order = srv_json_str(p, "noise_order");
    json_array_foreach(list, i, one)
    {
        if (i < SRV_SIGMAS_MAX) sigmas[rq->n_sigmas++] = (float)json_number_value(one);
    }
    if (rq->n_sigmas) rq->sigmas = sigmas;
}
