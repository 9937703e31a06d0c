/**
 * Both autoencoders run off every published form: a sample against its own f32 values and against
 * the unquantized weights it was made from.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert.h"
#include "file.h"
#include "forms.h"
#include "half.h"
#include "manifest.h"
#include "test_models.h"
#include "writer.h"

typedef struct vae_case {
    const char *file; ///< of a sample, or the path of a part of the small model
    const char *base; ///< its unquantized counterpart
    const char
        *config[2]; ///< config.json for decoder and encoder; NULL: the file's own folder says
    double limit;   ///< of the whole network against `base`
} vae_case;

/* A form's own f32 values, and the unquantized weights it was made from. */
static void check_vae(const vae_case *c, h3_role role, bool is_encoder)
{
    numbers (*run)(const char *, bool) = role == H3_ROLE_VIDEO_VAE ? run_video : run_audio;
    const char *config = c->config[is_encoder];
    char *file = config ? beside(c->file, config, "a.safetensors") : h3_strdupf("%s", c->file);
    char *base = config ? beside(c->base, config, "b.safetensors") : h3_strdupf("%s", c->base);
    char *plain = dump(file, role, NULL, "plain.safetensors");
    const numbers want = run(plain, is_encoder), unquantized = run(base, is_encoder);
    const double exact = apart(run(file, is_encoder), &want),
                 off = apart(run(file, is_encoder), &unquantized);
    const char *name = strrchr(c->file, '/');

    print_message("%-32s %s decoded %.1e  unquantized %.1e\n", name + 1,
                  is_encoder ? "encoder" : "decoder", exact, off);
    if (!(exact <= 2e-6)) fail_msg("%s: %g from its own f32 values", c->file, exact);
    if (!(off <= c->limit)) fail_msg("%s: %g from the unquantized weights", c->file, off);
    free(want.v);
    free(unquantized.v);
    free(file);
    free(base);
    free(plain);
}

/* A copy of a file with other names; `rename` returns NULL for tensors that are left out. */
static char *renamed(const char *from, const char *to, char *(*rename)(const char *))
{
    char *out = in_folder(to);
    h3_manifest *m = NULL;
    h3_writer *w = NULL;

    must(h3_manifest_open(&m, from));
    must(h3_writer_open(&w, out));
    for (int has_data = 0; has_data < 2; has_data++) {
        for (int64_t i = 0; i < h3_manifest_count(m); i++) {
            const h3_entry *e = h3_manifest_at(m, i);
            char *name = rename(e->name);
            if (name && has_data)
                must(h3_writer_put(w, e->data, e->bytes));
            else if (name)
                must(h3_writer_declare(w, name, (h3_dtype)e->dtype, e->rank, e->ne));
            free(name);
        }
        if (!has_data) must(h3_writer_begin(w));
    }
    must(h3_writer_commit(&w));
    h3_manifest_close(&m);
    return out;
}

/* Samples hold random numbers where a network has to refuse them: a spread below zero, filters that
 * are not the network's. */
static char *without_constants(const char *name)
{
    const size_t n = strlen(name);

    if (strncmp(name, "latents_", 8) == 0 || (n > 7 && strcmp(name + n - 7, ".filter") == 0))
        return NULL;
    return h3_strdupf("%s", name);
}

/* Pairs of weight norm under the newer names. */
static char *modern_name(const char *name)
{
    const size_t n = strlen(name);

    for (int k = 0; k < 2 && n > 9; k++)
        if (strcmp(name + n - 9, k ? ".weight_v" : ".weight_g") == 0)
            return h3_strdupf("%.*s.parametrizations.weight.original%d", (int)(n - 9), name, k);
    return h3_strdupf("%s", name);
}

/* The samples tell no sizes of heads and no strides, and only one holds latent statistics. */
#define VIDEO_CONFIG(space)                                                                 \
    "{\"spatial_downsample_factors\": " space ", \"temporal_downsample_factors\": [1, 1], " \
    "\"decoder_attention_head_dim\": 12, \"decoder_num_attention_heads\": 2, "              \
    "\"decoder_rope_dim_ratio\": 0.5, \"norm_num_groups\": 2, \"clip_length\": 17, "        \
    "\"token_drop\": 3, \"latents_mean\": [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], "         \
    "\"latents_std\": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]}"
#define AUDIO_CONFIG                                                                              \
    "{\"decoder_rates\": [5], \"num_attention_heads\": 2, \"latents_mean\": [0, 0.1, 0.2, 0.3], " \
    "\"latents_std\": [1, 1.1, 1.2, 1.3]}"

static void test_video_vae_forms(void **state)
{
    static const char *const config[2] = {VIDEO_CONFIG("[2, 2]"), VIDEO_CONFIG("[2, 1]")};
    static const struct {
        const char *file;
        double limit;
    } samples[] = {{"vvae-original", 0}, {"vvae-diffusers", 2e-6}, {"vvae-comfy", 2e-3}};

    (void)state;
    for (int half = 0; half < 2; half++)
        for (size_t i = 0; i < 3; i++) {
            char *sample = h3_strdupf(SAMPLES "%s.safetensors", samples[i].file);
            char *file = renamed(sample, samples[i].file, without_constants);
            const vae_case c = {.file = file,
                                .base = SAMPLES "vvae-original.safetensors",
                                .config = {config[0], config[1]},
                                .limit = samples[i].limit};
            check_vae(&c, H3_ROLE_VIDEO_VAE, half);
            free(sample);
            free(file);
        }
}

static void test_audio_vae_forms(void **state)
{
    static const struct {
        const char *file;
        double limit; // a product that somebody else rounded, behind exponentials
    } samples[] = {{"avae-original", 0}, {"avae-modern", 0}, {"avae-comfy", 2e-5}};

    char *base = renamed(SAMPLES "avae-original.safetensors", "avae", without_constants);

    (void)state; // what the samples hold of an encoder is no whole network: see test_whole_vaes
    for (size_t i = 0; i < 3; i++) {
        char *sample = h3_strdupf(SAMPLES "%s.safetensors", samples[i].file);
        char *file = renamed(sample, samples[i].file, without_constants);
        const vae_case c = {
            .file = file, .base = base, .config = {AUDIO_CONFIG, NULL}, .limit = samples[i].limit};
        check_vae(&c, H3_ROLE_AUDIO_VAE, false);
        free(sample);
        free(file);
    }
    free(base);
}

/* A file of f32 tensors with its matrices in bf16. */
static char *in_bf16(const char *from, const char *name)
{
    char *out = in_folder(name);
    h3_manifest *m = NULL;
    h3_writer *w = NULL;

    must(h3_manifest_open(&m, from));
    must(h3_writer_open(&w, out));
    for (int has_data = 0; has_data < 2; has_data++) {
        for (int64_t i = 0; i < h3_manifest_count(m); i++) {
            const h3_entry *e = h3_manifest_at(m, i);
            const bool is_matrix = e->rank > 1 && !strstr(e->name, ".filter");
            if (!has_data) {
                must(h3_writer_declare(w, e->name, is_matrix ? H3_BF16 : H3_F32, e->rank, e->ne));
                continue;
            }
            for (size_t at = 0; is_matrix && at < e->bytes; at += 4) {
                float f;
                memcpy(&f, e->data + at, 4);
                const uint16_t b = h3_f32_to_bf16(f);
                must(h3_writer_put(w, &b, 2));
            }
            if (!is_matrix) must(h3_writer_put(w, e->data, e->bytes));
        }
        if (!has_data) must(h3_writer_begin(w));
    }
    must(h3_writer_commit(&w));
    h3_manifest_close(&m);
    return out;
}

static const char video[] = TINY "original/FL2VA/video_vae",
                  audio[] = TINY "original/FL2VA/audio_vae";

static void check_halves(const vae_case *c, h3_role role)
{
    for (int is_encoder = 0; is_encoder < 2; is_encoder++)
        check_vae(c, role, is_encoder);
}

/* `path` (an audio VAE with pairs of weight norm) under the newer names, where its configuration
 * lies beside it. */
static void check_modern_names(const char *path)
{
    char *text, *config = h3_path_join(audio, "config.json"),
                *metadata = h3_path_join(audio, "metadata.json");
    size_t n;

    must(h3_file_read(&text, &n, config, 1 << 20));
    char *modern = renamed(path, "modern.safetensors", modern_name);
    char *file = beside(modern, text, "a.safetensors"), *meta = in_folder("vae/metadata.json");
    (void)unlink(meta);
    assert_int_equal(symlink(metadata, meta), 0);
    check_halves(&(vae_case){.file = file, .base = audio, .limit = 0}, H3_ROLE_AUDIO_VAE);
    unlink(meta);
    free(meta);
    free(file);
    free(modern);
    free(metadata);
    free(config);
    free(text);
}

/* A link in folder `to` to `name` of folder `from`, or to the configuration in it when `name` is a
 * folder itself. */
static void link_beside(const char *from, const char *to, const char *name)
{
    char *source = h3_path_join(from, name), *target = h3_path_join(to, name);

    if (h3_path_is_dir(source)) {
        char *only = h3_path_join(source, "config.json"),
             *there = h3_path_join(target, "config.json");
        assert_int_equal(mkdir(target, 0700), 0);
        assert_int_equal(symlink(only, there), 0);
        free(only);
        free(there);
    } else {
        assert_int_equal(symlink(source, target), 0);
    }
    free(source);
    free(target);
}

/* A folder like the published ones, with bf16 in it. */
static void check_folder_in_bf16(const char *part, h3_role role, const char *weights,
                                 const char *beside_it)
{
    char *where = h3_strdupf("%s/bf16-%d", folder, (int)role), *from = h3_path_join(part, weights),
         *to = h3_path_join(where, weights);

    assert_int_equal(mkdir(where, 0700), 0);
    link_beside(part, where, "config.json");
    link_beside(part, where, beside_it);
    char *narrow = in_bf16(from, "bf16.safetensors");
    assert_int_equal(rename(narrow, to), 0);
    check_halves(&(vae_case){.file = where, .base = part, .limit = 0.05}, role);
    free(narrow);
    free(to);
    free(from);
    free(where);
}

/* Both halves of both autoencoders of the small model, in every form that circulates. */
static void test_whole_vaes(void **state)
{
    const h3_convert_opts half = {.form = H3_CONVERT_F16}, products = {.form = H3_CONVERT_F32},
                          pairs = {.form = H3_CONVERT_F32, .layout = H3_CONVERT_ORIGINAL};
    const struct {
        const char *part;
        const h3_convert_opts *how;
        double limit;
    } forms[] = {{video, &half, 4e-3}, {video, &products, 0}, {video, &pairs, 0},
                 {audio, &half, 4e-3}, {audio, &products, 0}, {audio, &pairs, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const h3_role role = forms[i].part == video ? H3_ROLE_VIDEO_VAE : H3_ROLE_AUDIO_VAE;
        char *path = in_folder("form.safetensors");
        h3_checkpoint *ck = NULL;
        must(h3_ckpt_open(&ck, forms[i].part, role, NULL));
        must(h3_convert(ck, path, forms[i].how));
        h3_ckpt_close(&ck);
        check_halves(&(vae_case){.file = path, .base = forms[i].part, .limit = forms[i].limit},
                     role);
        if (role == H3_ROLE_AUDIO_VAE && forms[i].how == &pairs) check_modern_names(path);
        free(path);
    }
    check_folder_in_bf16(video, H3_ROLE_VIDEO_VAE, "source/model.safetensors", "source");
    check_folder_in_bf16(audio, H3_ROLE_AUDIO_VAE, "model.safetensors", "metadata.json");
    check_halves(&(vae_case){.file = test_model(TINY "diffusers/vae"), .base = video, .limit = 0},
                 H3_ROLE_VIDEO_VAE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_video_vae_forms),
        cmocka_unit_test(test_audio_vae_forms),
        cmocka_unit_test(test_whole_vaes),
    };
    return cmocka_run_group_tests(tests, forms_open, forms_close);
}
