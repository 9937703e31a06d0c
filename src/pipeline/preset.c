/** Few-step schedules; see preset.h. */
#include "preset.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "json.h"
#include "manifest.h"

static h3_status read_number(const json_t *o, const char *key, double lo, double hi, double *out,
                             const char *what)
{
    const json_t *v = json_object_get(o, key);

    if (!v) return H3_OK;
    if (!json_is_number(v) || !(json_number_value(v) >= lo && json_number_value(v) <= hi))
        return h3_fail(H3_E_FORMAT, "%s: %s must be a number from %g to %g", what, key, lo, hi);
    *out = json_number_value(v);
    return H3_OK;
}

static h3_status read_sigmas(h3_preset *p, const json_t *list, const char *what)
{
    const size_t n = json_array_size(list);

    if (!list) return H3_OK;
    if (!json_is_array(list) || n < 2 || n > H3_PRESET_SIGMAS)
        return h3_fail(H3_E_FORMAT, "%s: sigmas must be a list of 2 to %d numbers", what,
                       H3_PRESET_SIGMAS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= 0 && x <= 1) || (i && !((float)x < p->sigmas[i - 1])))
            return h3_fail(H3_E_FORMAT,
                           "%s: sigma %zu must be a number from 0 to 1, below the one before", what,
                           i);
        p->sigmas[i] = (float)x;
    }
    if (p->sigmas[n - 1] != 0) return h3_fail(H3_E_FORMAT, "%s: the last sigma must be 0", what);
    p->n_sigmas = (int)n;
    return H3_OK;
}

static h3_status check_keys(const json_t *o, const char *what)
{
    static const char *const known[] = {"steps",  "shift", "audio_shift",
                                        "sigmas", "name",  "comment"};
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        bool ok = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            ok = ok || strcmp(key, known[i]) == 0;
        if (!ok)
            return h3_fail(
                H3_E_FORMAT,
                "%s: unknown field %s; expected steps, shift, audio_shift, sigmas, name or comment",
                what, key);
    }
    return H3_OK;
}

static h3_status parse(h3_preset *out, const json_t *o, const char *what)
{
    double steps = 0;

    memset(out, 0, sizeof *out);
    if (!json_is_object(o)) return h3_fail(H3_E_FORMAT, "%s: expected a JSON object", what);
    H3_TRY(check_keys(o, what));
    H3_TRY(read_number(o, "steps", 2, 1000, &steps, what));
    H3_TRY(read_number(o, "shift", 1e-3, 1e3, &out->shift_video, what));
    H3_TRY(read_number(o, "audio_shift", 1e-3, 1e3, &out->shift_audio, what));
    H3_TRY(read_sigmas(out, json_object_get(o, "sigmas"), what));
    if (steps != floor(steps))
        return h3_fail(H3_E_FORMAT, "%s: steps must be a whole number", what);
    if (steps > 0 && out->n_sigmas)
        return h3_fail(H3_E_FORMAT, "%s: gives both steps and sigmas", what);
    out->n_steps = (int)steps;
    if (!steps && !out->n_sigmas)
        return h3_fail(H3_E_FORMAT, "%s: gives neither steps nor sigmas", what);
    return H3_OK;
}

static h3_status load_file(h3_preset *out, const char *path)
{
    json_t *o = NULL;
    h3_status st;

    H3_TRY(h3_json_load(&o, path));
    st = parse(out, o, path);
    json_decref(o);
    return st;
}

h3_status h3_preset_load(h3_preset *out, const char *name)
{
    const size_t n = strlen(name);

    memset(out, 0, sizeof *out);
    if (strcmp(name, "turbo4") == 0 || strcmp(name, "turbo8") == 0) {
        out->n_steps = name[5] - '0' + 1;
        out->shift_video = 12;
        out->shift_audio = 3;
        return H3_OK;
    }
    if (n > 5 && strcmp(name + n - 5, ".json") == 0) return load_file(out, name);
    return h3_fail(H3_E_ARG, "preset %s: expected turbo4, turbo8 or a .json file", name);
}

h3_status h3_preset_of_lora(h3_preset *out, const char *lora, int *found)
{
    static const char suffix[] = ".safetensors";
    const size_t n = strlen(lora), k = sizeof suffix - 1;
    const bool has_suffix = n > k && strcmp(lora + n - k, suffix) == 0;
    char *path = h3_strdupf("%.*s.json", (int)(has_suffix ? n - k : n), lora);
    h3_manifest *m = NULL;
    const char *text;
    json_t *o = NULL;
    h3_status st = H3_OK;

    *found = h3_path_exists(path);
    if (*found) st = load_file(out, path);
    free(path);
    if (*found || st != H3_OK) return st;
    H3_TRY(h3_manifest_open(&m, lora));
    text = h3_manifest_meta(m, "h3_schedule");
    if (text) {
        *found = 1;
        st = h3_json_parse(&o, text, strlen(text), lora);
        if (st == H3_OK) st = parse(out, o, lora);
        json_decref(o);
    }
    h3_manifest_close(&m);
    return st;
}
