/** See forms.h. */
#include "forms.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audio_vae.h"
#include "convert.h"
#include "dit.h"
#include "encoder.h"
#include "file.h"
#include "lora.h"
#include "video_vae.h"

h3_dev *dev;
char folder[] = "/tmp/h3av-forms-XXXXXX";

void must_at(h3_status st, int line)
{
    if (st != H3_OK) fail_msg("line %d: %s", line, h3_error());
}

char *in_folder(const char *name)
{
    return h3_path_join(folder, name);
}

static float wave(int64_t i)
{
    return (float)(sin(0.7 * (double)i) + 0.5 * sin(2.3 * (double)i + 1));
}

static float *waves(int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);

    assert_non_null(v);
    for (int64_t i = 0; i < n; i++)
        v[i] = wave(i);
    return v;
}

enum { N_TEXT = 5, N_VIDEO = 12, N_AUDIO = 6, N_ROWS = N_TEXT + N_VIDEO + N_AUDIO };

static numbers dit_forward(h3_dit *m, h3_dtype act)
{
    const h3_dit_dims *g = &m->dims;
    static const float timesteps[2] = {0.3f, 0.85f};
    int32_t text[N_TEXT], video[N_VIDEO], audio[N_AUDIO], mod[N_ROWS];
    double at[N_ROWS][3];
    h3_dit_state *state = NULL;
    size_t scratch, kept;

    for (int i = 0; i < N_ROWS; i++) {
        const int kind = i < N_TEXT ? 1 : i < N_TEXT + N_VIDEO ? 0 : 2;
        if (kind == 1) text[i] = i;
        if (kind == 0) video[i - N_TEXT] = i;
        if (kind == 2) audio[i - N_TEXT - N_VIDEO] = i;
        mod[i] = 3 * (kind == 2) + kind;
        at[i][0] = i / 4;
        at[i][1] = i % 4 / 2;
        at[i][2] = i % 2;
    }
    float *rows = waves(N_TEXT * g->text_dim), *v = waves(N_VIDEO * g->video_cols),
          *a = waves(N_AUDIO * g->audio_cols);
    const h3_dit_request rq = {.act = (uint8_t)act,
                               .n_rows = N_ROWS,
                               .n_video = N_VIDEO,
                               .n_audio = N_AUDIO,
                               .n_text = N_TEXT,
                               .video_indices = video,
                               .audio_indices = audio,
                               .text_indices = text,
                               .positions = &at[0][0],
                               .text = h3_tensor_2d(rows, H3_F32, N_TEXT, g->text_dim),
                               .n_steps = 1,
                               .n_timesteps = 2,
                               .timesteps = timesteps,
                               .mod_row = mod};
    const int64_t nv = N_VIDEO * g->video_cols, na = N_AUDIO * g->audio_cols;
    numbers out = {malloc((size_t)(nv + na) * sizeof(float)), nv + na};

    assert_non_null(out.v);
    must(h3_dit_scratch_bytes(m, &rq, &scratch, &kept));
    must(h3_dev_scratch(m->dev, scratch));
    must(h3_dit_prepare(&state, m, &rq));
    must(h3_dit_forward(m->dev, m, state, 0, h3_tensor_2d(out.v, H3_F32, N_VIDEO, g->video_cols),
                        h3_tensor_2d(out.v + nv, H3_F32, N_AUDIO, g->audio_cols),
                        h3_tensor_2d(v, H3_F32, N_VIDEO, g->video_cols),
                        h3_tensor_2d(a, H3_F32, N_AUDIO, g->audio_cols)));
    must(h3_dev_sync(m->dev));
    h3_dit_release(&state);
    free(rows);
    free(v);
    free(a);
    return out;
}

void add_all(h3_checkpoint *ck, const adapter *list)
{
    for (; list && list->path; list++) {
        const h3_lora_opts opts = {.strength = list->strength};
        h3_lora_report rep;
        must(h3_ckpt_add_lora(ck, list->path, &opts, &rep));
        assert_true(rep.n_matched > 0);
        free(rep.unmatched);
    }
}

numbers run_dit(const char *path, const h3_ckpt_opts *opts, const adapter *list, h3_dtype act)
{
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    numbers out;

    must(h3_ckpt_open(&ck, path, H3_ROLE_DIT, opts));
    add_all(ck, list);
    must(h3_dit_open(&m, ck, dev));
    out = dit_forward(m, act);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
    return out;
}

numbers run_encoder(const char *path, const h3_ckpt_opts *opts, int select)
{
    static const int32_t ids[7] = {3, 17, 21, 1, 0, 19, 23};
    static const int32_t positions[21] = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3,
                                          4, 5, 6, 0, 1, 2, 3, 4, 5, 6};
    const h3_encoder_in in = {.n_rows = 7, .ids = ids, .positions = positions};
    const h3_encoder_opts eo = {.act = H3_F32, .select = select};
    h3_checkpoint *ck = NULL;
    h3_encoder *e = NULL;
    numbers out = {0};
    size_t bytes;

    must(h3_ckpt_open(&ck, path, H3_ROLE_TEXT_ENCODER, opts));
    must(h3_encoder_open(&e, ck, dev, &eo));
    must(h3_encoder_scratch_bytes(e, &in, &bytes));
    must(h3_dev_scratch(dev, bytes));
    out.n = in.n_rows * h3_encoder_width(e);
    out.v = malloc((size_t)out.n * sizeof(float));
    assert_non_null(out.v);
    must(h3_encoder_run(e, &in, h3_tensor_2d(out.v, H3_F32, in.n_rows, h3_encoder_width(e))));
    h3_encoder_close(&e);
    h3_ckpt_close(&ck);
    return out;
}

static h3_status keep_frames(void *user, int64_t first, h3_tensor f)
{
    numbers *out = user;
    const int64_t n = f.ne[1] * f.ne[2] * f.ne[3];

    (void)first;
    out->v = realloc(out->v, (size_t)(out->n + 3 * n) * sizeof *out->v);
    assert_non_null(out->v);
    for (int c = 0; c < 3; c++)
        memcpy(out->v + out->n + c * n, (const float *)f.data + c * f.st[0],
               (size_t)n * sizeof(float));
    out->n += 3 * n;
    return H3_OK;
}

numbers run_video(const char *path, bool is_encoder)
{
    enum { T = 4, H = 2, W = 3, FRAMES = 5, SIDE = 64 };
    static uint8_t picture[FRAMES * SIDE * SIDE * 3];
    const unsigned half = is_encoder ? H3_VIDEO_VAE_ENCODER : H3_VIDEO_VAE_DECODER;
    const h3_video_decode_opts opts = {.is_float = true, .is_one_clip = true};
    h3_checkpoint *ck = NULL;
    h3_video_vae *v = NULL;
    numbers out = {0};

    must(h3_ckpt_open(&ck, path, H3_ROLE_VIDEO_VAE, NULL));
    must(h3_video_vae_open(&v, dev, ck, half));
    must(h3_ckpt_finish(ck));
    must(h3_dev_scratch(dev, 64 << 20));
    const h3_video_vae_geometry *g = h3_video_vae_sizes(v);
    if (!is_encoder) {
        const int64_t ne[4] = {g->latents, T, H, W};
        float *z = waves(g->latents * T * H * W);
        must(h3_video_vae_decode(dev, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, keep_frames,
                                 &out));
        free(z);
    } else {
        const int64_t ne[4] = {FRAMES, SIDE, SIDE, 3};
        const int64_t n = g->latents * h3_video_vae_latent_frames(v, FRAMES) * (SIDE / g->ratio) *
                          (SIDE / g->ratio);
        for (size_t i = 0; i < sizeof picture; i++)
            picture[i] = (uint8_t)(128 + 80 * sin(0.011 * (double)i) + 40 * sin(1.7 * (double)i));
        out = (numbers){malloc((size_t)(2 * n) * sizeof(float)), 2 * n};
        assert_non_null(out.v);
        must(h3_video_vae_encode(dev, v, h3_host_tensor(picture, H3_U8, 4, ne), NULL, out.v,
                                 out.v + n));
    }
    h3_video_vae_close(&v);
    h3_ckpt_close(&ck);
    return out;
}

numbers run_audio(const char *path, bool is_encoder)
{
    enum { N = 7, N_SAMPLES = 2000 };
    const unsigned half = is_encoder ? H3_AUDIO_VAE_ENCODER : H3_AUDIO_VAE_DECODER;
    h3_checkpoint *ck = NULL;
    h3_audio_vae *v = NULL;
    numbers out = {0};

    must(h3_ckpt_open(&ck, path, H3_ROLE_AUDIO_VAE, NULL));
    must(h3_audio_vae_open(&v, dev, ck, half));
    must(h3_dev_scratch(dev, 64 << 20));
    const h3_audio_vae_geometry *g = h3_audio_vae_sizes(v);
    const int64_t ne[3] = {2, is_encoder ? N_SAMPLES : g->latents, N};
    float *in = waves(2 * (is_encoder ? N_SAMPLES : g->latents * N));
    out.n = 2 * (is_encoder ? g->latents * h3_audio_vae_latents(v, N_SAMPLES) : g->hop * N);
    out.v = malloc((size_t)out.n * sizeof(float));
    assert_non_null(out.v);
    if (is_encoder)
        must(h3_audio_vae_encode(dev, v, h3_host_tensor(in, H3_F32, 2, ne), true, out.v));
    else
        must(h3_audio_vae_decode(dev, v, h3_host_tensor(in, H3_F32, 3, ne), NULL, out.v));
    free(in);
    h3_audio_vae_close(&v);
    h3_ckpt_close(&ck);
    return out;
}

double apart(numbers a, const numbers *b)
{
    double worst = 0, top = 0;

    assert_int_equal(a.n, b->n);
    for (int64_t i = 0; i < a.n; i++) {
        assert_true(isfinite(a.v[i]) && isfinite(b->v[i]));
        worst = fmax(worst, fabs((double)a.v[i] - (double)b->v[i]));
        top = fmax(top, fabs((double)b->v[i]));
    }
    assert_true(top > 1e-3); // a forward that gives nothing would agree with anything
    free(a.v);
    return worst / top;
}

void same_bits(numbers a, const numbers *b)
{
    assert_int_equal(a.n, b->n);
    assert_memory_equal(a.v, b->v, (size_t)a.n * sizeof *a.v);
    free(a.v);
}

/* ---- files ---- */

char *dump(const char *path, h3_role role, const h3_ckpt_opts *opts, const char *name)
{
    const h3_convert_opts how = {.form = H3_CONVERT_F32};
    char *out = in_folder(name);
    h3_checkpoint *ck = NULL;

    must(h3_ckpt_open(&ck, path, role, opts));
    must(h3_convert(ck, out, &how));
    h3_ckpt_close(&ck);
    return out;
}

const char te_config_16[] = "{\"text_config\": {\"rope_theta\": 5000000.0, \"rms_norm_eps\": 1e-6, "
                            "\"rope_scaling\": {\"mrope_section\": [4, 2, 2]}}}";

char *beside(const char *from, const char *config, const char *as)
{
    char *where = in_folder("vae"), *file = h3_path_join(where, as),
         *path = h3_path_join(where, "config.json");
    FILE *f;

    (void)mkdir(where, 0700);
    (void)unlink(file);
    assert_int_equal(symlink(from, file), 0);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(config, f) >= 0);
    assert_int_equal(fclose(f), 0);
    free(where);
    free(path);
    return file;
}

const struct dit_sample dits[N_DITS] = {
    {"dit-original/transformer", FULL, 2e-6},
    {"dit-diffusers/transformer", FULL, 2e-6},
    {"dit-comfy.safetensors", FULL, 2e-6},
    {"dit-comfy-prefixed.safetensors", NOTHING, 0}, // sizes of its own
    {"dit-gguf.gguf", NOTHING, 0},                  // K-quant blocks of random bytes
    {"dit-gguf-pruned.gguf", CURVE_ONE, 0.012},     // Q8_0
    {"dit-gguf-q8cr.gguf", CURVE_ONE, 0.03},
    {"dit-nvfp4-full.safetensors", FULL_ONE, 0.11},
    {"dit-nvfp4-linear.safetensors", FULL_ONE, 0.11},
    {"dit-pruned-int8.safetensors", CURVE_ONE, 0.008},
    {"dit-pruned-mixed.safetensors", CURVE_ONE, 0.07}, // FP8, MXFP8 and NVFP4 among them
    {"dit-pruned-w4a8.safetensors", CURVE_ONE, 0.16},
};

/* ---- the group ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

int forms_open(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    return h3_dev_open(&dev, "cpu", &(h3_dev_opts){.n_threads = 1}) == H3_OK ? 0 : -1;
}

int forms_close(void **state)
{
    (void)state;
    h3_dev_close(&dev);
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
