/** Configuration and shapes of the conditioner; see encoder_config.h. */
#include "encoder_config.h"

#include <string.h>

const json_t *h3_encoder_config(const h3_checkpoint *ck, const char *part)
{
    const json_t *o = json_object_get(h3_ckpt_config(ck, "config.json"), part);
    return json_is_object(o) ? o : NULL;
}

h3_status h3_encoder_config_expect(const h3_checkpoint *ck, const char *part, const char *key,
                                   int64_t value)
{
    const json_t *v = json_object_get(h3_encoder_config(ck, part), key);

    if (!v || (json_is_integer(v) && json_integer_value(v) == value)) return H3_OK;
    return h3_fail(H3_E_SHAPE, "%s: config.json says %s.%s = %lld, but the tensors have %lld",
                   h3_ckpt_path(ck), part, key, (long long)json_integer_value(v), (long long)value);
}

h3_status h3_encoder_config_only(const h3_checkpoint *ck, const char *part, const char *key,
                                 const char *value)
{
    const json_t *v = json_object_get(h3_encoder_config(ck, part), key);
    const char *s = json_string_value(v);

    if (!v || (s && strcmp(s, value) == 0)) return H3_OK;
    return h3_fail(H3_E_UNSUPPORTED, "%s: config.json says %s.%s = %s; only %s is known",
                   h3_ckpt_path(ck), part, key, s ? s : "(not a string)", value);
}

h3_status h3_encoder_shape(const h3_checkpoint *ck, const char *name, int min_rank, int *rank,
                           int64_t ne[8])
{
    if (!h3_ckpt_shape(ck, name, rank, ne))
        return h3_fail(H3_E_MISSING, "%s: tensor %s is missing", h3_ckpt_path(ck), name);
    if (*rank < min_rank)
        return h3_fail(H3_E_SHAPE, "%s: tensor %s has %d axes, expected at least %d",
                       h3_ckpt_path(ck), name, *rank, min_rank);
    for (int i = 0; i < *rank; i++)
        if (ne[i] <= 0 || ne[i] > INT32_MAX)
            return h3_fail(H3_E_SHAPE, "%s: tensor %s has extent %lld on axis %d", h3_ckpt_path(ck),
                           name, (long long)ne[i], i);
    return H3_OK;
}

h3_status h3_encoder_no_config(const h3_checkpoint *ck, const char *what)
{
    return h3_fail(H3_E_MISSING,
                   "%s: %s cannot be told from the shapes; put the model's config.json beside it",
                   h3_ckpt_path(ck), what);
}
