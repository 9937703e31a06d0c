/**
 * Reading sizes of the autoencoders from the configuration files beside the weights. Two spellings
 * exist for most values, the release's and diffusers'; a file may lack all of them (single-file
 * repacks), so every read has a default. A value that is present and makes no sense is an error
 * that names it. Everything is small and inline: both autoencoders use it, neither owns it.
 */
#ifndef H3_NETS_VAE_CONFIG_H
#define H3_NETS_VAE_CONFIG_H

#include <math.h>

#include "checkpoint.h"

/** JSON objects to search, in this order. */
typedef struct vae_config {
    const json_t *object[4];
    int n;
    const h3_checkpoint *ck;
} vae_config;

static inline void vae_config_add(vae_config *c, const json_t *o)
{
    if (json_is_object(o) && c->n < 4) c->object[c->n++] = o;
}

/** The value called `a` or `b` (the other layout's name; may be NULL), or NULL. */
static inline const json_t *vae_config_find(const vae_config *c, const char *a, const char *b)
{
    for (int i = 0; i < c->n; i++) {
        const json_t *v = json_object_get(c->object[i], a);
        if (!v && b) v = json_object_get(c->object[i], b);
        if (v && !json_is_null(v)) return v;
    }
    return NULL;
}

/** *out in [lo, hi]; left as it is when the value is absent. */
static inline h3_status vae_config_int(const vae_config *c, const char *a, const char *b,
                                       int64_t lo, int64_t hi, int64_t *out)
{
    const json_t *v = vae_config_find(c, a, b);

    if (!v) return H3_OK;
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return h3_fail(H3_E_FORMAT,
                       "%s: %s in the configuration must be an integer from %lld to %lld",
                       h3_ckpt_path(c->ck), a, (long long)lo, (long long)hi);
    *out = (int64_t)json_integer_value(v);
    return H3_OK;
}

static inline h3_status vae_config_number(const vae_config *c, const char *a, const char *b,
                                          double lo, double hi, double *out)
{
    const json_t *v = vae_config_find(c, a, b);
    const double x = json_number_value(v);

    if (!v) return H3_OK;
    if (!json_is_number(v) || !(x >= lo && x <= hi))
        return h3_fail(H3_E_FORMAT, "%s: %s in the configuration must be a number from %g to %g",
                       h3_ckpt_path(c->ck), a, lo, hi);
    *out = x;
    return H3_OK;
}

/** At most `max` integers in [lo, hi]; *n and out are left as they are when the value is absent. */
static inline h3_status vae_config_ints(const vae_config *c, const char *a, const char *b,
                                        int64_t lo, int64_t hi, int64_t *out, int64_t max,
                                        int64_t *n)
{
    const json_t *v = vae_config_find(c, a, b);
    const size_t count = json_array_size(v);

    if (!v) return H3_OK;
    if (!json_is_array(v) || count == 0 || count > (size_t)max)
        return h3_fail(H3_E_FORMAT,
                       "%s: %s in the configuration must be a list of 1 to %lld numbers",
                       h3_ckpt_path(c->ck), a, (long long)max);
    for (size_t i = 0; i < count; i++) {
        const json_t *e = json_array_get(v, i);
        if (!json_is_integer(e) || json_integer_value(e) < lo || json_integer_value(e) > hi)
            return h3_fail(
                H3_E_FORMAT,
                "%s: entry %zu of %s in the configuration must be an integer from %lld to "
                "%lld",
                h3_ckpt_path(c->ck), i, a, (long long)lo, (long long)hi);
        out[i] = (int64_t)json_integer_value(e);
    }
    *n = (int64_t)count;
    return H3_OK;
}

/**
 * n statistics of the latents: from a tensor called `name` (single-file repacks carry one), else
 * the configuration, else `release` (NULL: then it is an error).
 */
static inline h3_status vae_config_stats(h3_checkpoint *ck, const vae_config *c, const char *name,
                                         int64_t n, const float *release, bool must_be_positive,
                                         float *out)
{
    const json_t *v = vae_config_find(c, name, NULL);

    if (h3_ckpt_has(ck, name)) {
        H3_TRY(h3_ckpt_floats(ck, out, name, n));
    } else if (v) {
        if (!json_is_array(v) || json_array_size(v) != (size_t)n)
            return h3_fail(H3_E_FORMAT,
                           "%s: %s in the configuration must be a list of %lld numbers",
                           h3_ckpt_path(ck), name, (long long)n);
        for (int64_t i = 0; i < n; i++)
            out[i] = json_is_number(json_array_get(v, (size_t)i))
                         ? (float)json_number_value(json_array_get(v, (size_t)i))
                         : NAN;
    } else if (release) {
        for (int64_t i = 0; i < n; i++)
            out[i] = release[i];
    } else {
        return h3_fail(H3_E_MISSING, "%s: neither a tensor nor a configuration gives %s",
                       h3_ckpt_path(ck), name);
    }
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]) || (must_be_positive && out[i] <= 0))
            return h3_fail(H3_E_FORMAT, "%s: entry %lld of %s is %g", h3_ckpt_path(ck),
                           (long long)i, name, (double)out[i]);
    return H3_OK;
}

#endif
