/**
 * config.json of a transformer. The published file and diffusers' own spell half of the fields
 * differently; one row of the table below holds both spellings and the field they fill.
 *
 * Sizes come from the tensors; a config only confirms them. It is still read strictly: a file that
 * claims to describe the model and does not is a sign that the folder holds something else.
 */
#include <math.h>
#include <string.h>

#include "dit.h"

enum { MAX_LAYERS = 4096, MAX_EXTENT = 1 << 24 };

typedef struct field {
    const char *original, *diffusers; ///< NULL: that form does not have it
    int64_t max;
    size_t offset;
} field;

#define AT(name) offsetof(h3_dit_config, name)
static const field fields[] = {
    {"hidden_size", "hidden_size", MAX_EXTENT, AT(hidden)},
    {"num_attention_heads", "num_attention_heads", MAX_EXTENT, AT(n_heads)},
    {"attention_head_dim", "attention_head_dim", MAX_EXTENT, AT(head_dim)},
    {"num_layers", "num_layers", MAX_LAYERS, AT(n_layers)},
    {"token_refiner_num_layers", "num_refiner_layers", MAX_LAYERS, AT(n_refiner)},
    {"ffn_hidden_size", "ffn_dim", MAX_EXTENT, AT(ffn)},
    {"latents_dim", "in_channels", MAX_EXTENT, AT(channels)},
    {"audio_latents_dim", "audio_in_channels", MAX_EXTENT, AT(audio_channels)},
    {"text_dim", "text_dim", MAX_EXTENT, AT(text_dim)},
    {"timestep_input_dim", "freq_dim", MAX_EXTENT, AT(t_freq)},
    {"time_embed_hidden_size", "time_embed_hidden_dim", MAX_EXTENT, AT(t_hidden)},
    {"time_embed_dim", "time_embed_dim", MAX_EXTENT, AT(t_dim)},
    {"adaln_out_features", NULL, (int64_t)MAX_EXTENT * 18, AT(adaln_rows)},
    {"final_adaln_out_features", NULL, (int64_t)MAX_EXTENT * 2, AT(final_adaln_rows)},
    {"rope_inv_freq_len", "rope_freq_dim", MAX_EXTENT, AT(rope_freqs)},
};

static const struct {
    const char *name;
    bool is_required;
    size_t offset;
} reals[] = {
    {"norm_eps", true, AT(norm_eps)},
    {"qk_norm_eps", true, AT(qk_norm_eps)},
    {"final_norm_eps", true, AT(final_norm_eps)},
    {"rope_theta", false, AT(rope_theta)},
};

static h3_status read_extent(int64_t *out, const json_t *v, const char *name, int64_t min,
                             int64_t max, const char *path)
{
    if (!v) return h3_fail(H3_E_FORMAT, "%s: field %s is missing", path, name);
    if (!json_is_integer(v))
        return h3_fail(H3_E_FORMAT, "%s: field %s is not an integer", path, name);
    if (json_integer_value(v) < min || json_integer_value(v) > max)
        return h3_fail(H3_E_FORMAT, "%s: field %s is %lld, expected %lld..%lld", path, name,
                       (long long)json_integer_value(v), (long long)min, (long long)max);
    *out = json_integer_value(v);
    return H3_OK;
}

static h3_status read_real(double *out, const json_t *v, const char *name, bool is_required,
                           const char *path)
{
    if (!v && !is_required) return H3_OK;
    if (!v) return h3_fail(H3_E_FORMAT, "%s: field %s is missing", path, name);
    if (!json_is_number(v) || !isfinite(json_number_value(v)) || json_number_value(v) <= 0)
        return h3_fail(H3_E_FORMAT, "%s: field %s is not a positive number", path, name);
    *out = json_number_value(v);
    return H3_OK;
}

static h3_status read_patch(int64_t patch[3], const json_t *v, const char *path)
{
    static const char *const axis[] = {"patch_size[0]", "patch_size[1]", "patch_size[2]"};

    if (!json_is_array(v) || json_array_size(v) != 3)
        return h3_fail(H3_E_FORMAT, "%s: patch_size is not a list of three numbers", path);
    for (size_t i = 0; i < 3; i++)
        H3_TRY(read_extent(&patch[i], json_array_get(v, i), axis[i], 1, 256, path));
    return H3_OK;
}

/* What no single field can tell: how the fields hang together. */
static h3_status check_relations(const h3_dit_config *c, const char *path)
{
    if (c->head_dim % 2)
        return h3_fail(H3_E_FORMAT, "%s: attention_head_dim is %lld, expected an even number", path,
                       (long long)c->head_dim);
    if (2 * 3 * c->rope_freqs > c->head_dim)
        return h3_fail(H3_E_FORMAT,
                       "%s: rope_inv_freq_len is %lld: three axes of that many pairs do not fit in "
                       "attention_head_dim %lld",
                       path, (long long)c->rope_freqs, (long long)c->head_dim);
    if (c->adaln_rows && c->adaln_rows != 18 * c->hidden)
        return h3_fail(H3_E_FORMAT,
                       "%s: adaln_out_features is %lld, expected 18 * hidden_size = %lld", path,
                       (long long)c->adaln_rows, (long long)(18 * c->hidden));
    if (c->final_adaln_rows && c->final_adaln_rows != 2 * c->hidden)
        return h3_fail(H3_E_FORMAT,
                       "%s: final_adaln_out_features is %lld, expected 2 * hidden_size = %lld",
                       path, (long long)c->final_adaln_rows, (long long)(2 * c->hidden));
    return H3_OK;
}

h3_status h3_dit_config_parse(h3_dit_config *out, const json_t *root, const char *path)
{
    const char *class = json_string_value(json_object_get(root, "_class_name"));
    const bool is_original = class && strcmp(class, "MiniMaxH3DiTModel") == 0;

    memset(out, 0, sizeof *out);
    if (!json_is_object(root)) return h3_fail(H3_E_FORMAT, "%s: config is not an object", path);
    if (!is_original && (!class || strcmp(class, "MiniMaxH3Transformer3DModel") != 0))
        return h3_fail(H3_E_FORMAT,
                       "%s: _class_name is %s, expected MiniMaxH3DiTModel or "
                       "MiniMaxH3Transformer3DModel",
                       path, class ? class : "absent");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const char *name = is_original ? fields[i].original : fields[i].diffusers;
        int64_t *to = (int64_t *)(void *)((char *)out + fields[i].offset);
        const int64_t min = fields[i].offset == AT(n_refiner) ? 0 : 1; // may be left out
        if (name)
            H3_TRY(read_extent(to, json_object_get(root, name), name, min, fields[i].max, path));
    }
    H3_TRY(read_patch(out->patch, json_object_get(root, "patch_size"), path));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        H3_TRY(read_real((double *)(void *)((char *)out + reals[i].offset),
                         json_object_get(root, reals[i].name), reals[i].name, reals[i].is_required,
                         path));
    return check_relations(out, path);
}
