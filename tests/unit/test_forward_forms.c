/**
 * Networks run off every published form: the forward of a sample against the forward of the same
 * sample decoded to plain f32, and against the unquantized weights it was made from, within what
 * its encoding can hold. Adapters against the dense merge, data at odd offsets, and quantized
 * weights expanded at load.
 */
#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "audio_vae.h"
#include "convert.h"
#include "decode.h"
#include "dit.h"
#include "encoder.h"
#include "file.h"
#include "kquant.h"
#include "lora.h"
#include "test_models.h"
#include "video_vae.h"
#include "writer.h"

#define SAMPLES H3_SOURCE_DIR "/tests/data/formats/samples/"
#define TINY    H3_SOURCE_DIR "/tests/data/tiny-h3/"

static h3_dev *dev;
static char folder[] = "/tmp/h3av-forms-XXXXXX";

static void must_at(h3_status st, int line)
{
    if (st != H3_OK) fail_msg("line %d: %s", line, h3_error());
}
#define must(call) must_at((call), __LINE__)

static char *in_folder(const char *name)
{
    return h3_path_join(folder, name);
}

/* ---- the forwards, with inputs that depend on sizes alone ---- */

typedef struct numbers {
    float *v;
    int64_t n;
} numbers;

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

typedef struct adapter {
    const char *path;
    float strength;
} adapter;

static void add_all(h3_checkpoint *ck, const adapter *list)
{
    for (; list && list->path; list++) {
        const h3_lora_opts opts = {.strength = list->strength};
        h3_lora_report rep;
        must(h3_ckpt_add_lora(ck, list->path, &opts, &rep));
        assert_true(rep.n_matched > 0);
        free(rep.unmatched);
    }
}

static numbers run_dit(const char *path, const h3_ckpt_opts *opts, const adapter *list,
                       h3_dtype act)
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

static numbers run_encoder(const char *path, const h3_ckpt_opts *opts, int select)
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

/* Largest deviation, relative to the largest number; frees `a`. */
static double apart(numbers a, const numbers *b)
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

static void same_bits(numbers a, const numbers *b)
{
    assert_int_equal(a.n, b->n);
    assert_memory_equal(a.v, b->v, (size_t)a.n * sizeof *a.v);
    free(a.v);
}

/* ---- plain copies ---- */

/* `path` decoded to f32 safetensors at folder/name; malloc'd path. */
static char *dump(const char *path, h3_role role, const h3_ckpt_opts *opts, const char *name)
{
    const h3_convert_opts how = {.form = H3_CONVERT_F32};
    char *out = in_folder(name);
    h3_checkpoint *ck = NULL;

    must(h3_ckpt_open(&ck, path, role, opts));
    must(h3_convert(ck, out, &how));
    h3_ckpt_close(&ck);
    return out;
}

/* Every tensor of an open checkpoint, adapters merged into its matrices, as f32 safetensors.
 * `keep` picks by name; NULL: all. */
static void write_plain(h3_writer *w, h3_checkpoint *ck, bool (*keep)(const char *), bool has_data)
{
    for (int64_t i = 0; i < h3_ckpt_n_tensors(ck); i++) {
        const char *name = h3_ckpt_tensor(ck, i);
        int64_t ne[8], n = 1;
        int rank;
        if (!name || (keep && !keep(name))) continue;
        assert_true(h3_ckpt_shape(ck, name, &rank, ne));
        if (!has_data) {
            must(h3_writer_declare(w, name, H3_F32, rank, ne));
            continue;
        }
        for (int k = 0; k < rank; k++)
            n *= ne[k];
        float *v = malloc((size_t)n * sizeof *v);
        const size_t len = strlen(name);
        assert_non_null(v);
        if (rank == 2 && len > 7 && strcmp(name + len - 7, ".weight") == 0) {
            char *module = h3_strdupf("%.*s", (int)(len - 7), name);
            h3_weight m;
            must(h3_ckpt_matrix(ck, dev, &m, module, ne[0], ne[1], false));
            h3_weight_rows(&m, 0, ne[0], v);
            free(module);
        } else {
            must(h3_ckpt_floats(ck, v, name, n));
        }
        must(h3_writer_put(w, v, (size_t)n * sizeof *v));
        free(v);
    }
}

static char *merge(const char *path, const adapter *list, const char *name)
{
    char *out = in_folder(name);
    h3_checkpoint *ck = NULL;
    h3_writer *w = NULL;

    must(h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL));
    add_all(ck, list);
    must(h3_writer_open(&w, out));
    must(h3_writer_meta(w, "h3av.qkv",
                        h3_ckpt_qkv(ck, NULL) == H3_QKV_INTERLEAVED ? "interleaved" : "stacked"));
    write_plain(w, ck, NULL, false);
    must(h3_writer_begin(w));
    write_plain(w, ck, NULL, true);
    must(h3_writer_commit(&w));
    h3_ckpt_close(&ck);
    return out;
}

static bool is_one_block(const char *name)
{
    return strncmp(name, "blocks.", 7) != 0 || strncmp(name, "blocks.0.", 9) == 0;
}

static bool is_time(const char *name)
{
    return strstr(name, "adaln") || strncmp(name, "time_embedder.", 14) == 0;
}

static bool is_no_time(const char *name)
{
    return is_one_block(name) && !is_time(name);
}

static bool is_curve(const char *name)
{
    return is_one_block(name) && is_time(name);
}

/* The samples are made from the same numbers, by name and shape: what a one-block sample in curve
 * form was before it was quantized is the ComfyUI sample with the modulation of a curve sample. */
static char *base_of(bool has_curve, const char *name)
{
    char *out = in_folder(name);
    h3_checkpoint *ck = NULL, *curve = NULL;
    h3_writer *w = NULL;

    must(h3_ckpt_open(&ck, SAMPLES "dit-comfy.safetensors", H3_ROLE_DIT, NULL));
    must(h3_ckpt_open(&curve, SAMPLES "dit-pruned-int8.safetensors", H3_ROLE_DIT, NULL));
    must(h3_writer_open(&w, out));
    must(h3_writer_meta(w, "h3av.qkv", "stacked"));
    for (int has_data = 0; has_data < 2; has_data++) {
        write_plain(w, ck, has_curve ? is_no_time : is_one_block, has_data);
        if (has_curve) write_plain(w, curve, is_curve, has_data);
        if (!has_data) must(h3_writer_begin(w));
    }
    must(h3_writer_commit(&w));
    h3_ckpt_close(&ck);
    h3_ckpt_close(&curve);
    return out;
}

/* ---- every form ---- */

typedef enum against { NOTHING, FULL, FULL_ONE, CURVE_ONE, N_BASES } against;

/* `limit`: of the whole forward against the unquantized weights. */
static const struct {
    const char *file;
    against base;
    double limit;
} dits[] = {
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
enum { N_DITS = sizeof dits / sizeof *dits };

static void test_dit_forms(void **state)
{
    char *path[N_BASES] = {[FULL] = h3_strdupf(SAMPLES "dit-comfy.safetensors"),
                           [FULL_ONE] = base_of(false, "full.safetensors"),
                           [CURVE_ONE] = base_of(true, "curve.safetensors")};
    numbers base[N_BASES] = {{0}};

    (void)state;
    for (int b = FULL; b < N_BASES; b++)
        base[b] = run_dit(path[b], NULL, NULL, H3_F32);
    for (int i = 0; i < N_DITS; i++) {
        char *file = h3_strdupf(SAMPLES "%s", dits[i].file);
        char *plain = dump(file, H3_ROLE_DIT, NULL, "plain.safetensors");
        const numbers want = run_dit(plain, NULL, NULL, H3_F32);
        const double exact = apart(run_dit(file, NULL, NULL, H3_F32), &want);
        const double off =
            dits[i].base ? apart(run_dit(file, NULL, NULL, H3_F32), &base[dits[i].base]) : 0;
        print_message("%-32s decoded %.1e  unquantized %.1e\n", dits[i].file, exact, off);
        if (!(exact <= 2e-6)) fail_msg("%s: %g from its own f32 values", dits[i].file, exact);
        if (!(off <= dits[i].limit) && dits[i].base)
            fail_msg("%s: %g from the unquantized weights", dits[i].file, off);
        free(want.v);
        free(plain);
        free(file);
    }
    for (int b = FULL; b < N_BASES; b++) {
        free(base[b].v);
        free(path[b]);
    }
}

/* ---- adapters ---- */

/* On every base, quantized ones included: the adapter added at load is the dense merge. */
static void test_adapters(void **state)
{
    static const char *const forms[] = {"peft", "comfy", "kohya", "diffsynth", "native"};

    (void)state;
    for (int i = 0; i < N_DITS; i++) {
        char *file = h3_strdupf(SAMPLES "%s", dits[i].file);
        if (!dits[i].base) { // sizes of their own: no adapter fits
            free(file);
            continue;
        }
        const numbers bare = run_dit(file, NULL, NULL, H3_F32);
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            // the modulation of curve samples is narrower than the last adapter's
            if (dits[i].base == CURVE_ONE && strcmp(forms[f], "native") == 0) continue;
            char *path = h3_strdupf(SAMPLES "lora-%s.safetensors", forms[f]);
            const adapter one[] = {{path, 1}, {NULL, 0}};
            const adapter two[] = {
                {path, 0.8f}, {SAMPLES "lora-comfy.safetensors", -0.4f}, {NULL, 0}};
            const adapter *const lists[] = {one, two};
            for (int k = 0; k < 2; k++) {
                char *merged = merge(file, lists[k], "merged.safetensors");
                const numbers want = run_dit(merged, NULL, NULL, H3_F32);
                const double off = apart(run_dit(file, NULL, lists[k], H3_F32), &want);
                if (!(off <= 5e-6))
                    fail_msg("%s on %s: %g from the dense merge", forms[f], dits[i].file, off);
                if (!(apart(run_dit(file, NULL, lists[k], H3_F32), &bare) > 1e-2))
                    fail_msg("%s on %s: changes nothing", forms[f], dits[i].file);
                free(want.v);
                free(merged);
            }
            free(path);
        }
        free(bare.v);
        free(file);
    }
}

/* ---- quantized matrices expanded at load ---- */

static void test_expanded(void **state)
{
    const h3_ckpt_opts expand = {.quant = H3_QUANT_EXPAND};
    const adapter list[] = {{SAMPLES "lora-comfy.safetensors", 0.7f}, {NULL, 0}};
    int n_expanded = 0;

    (void)state;
    for (int i = 0; i < N_DITS; i++) {
        char *file = h3_strdupf(SAMPLES "%s", dits[i].file);
        const adapter *with = dits[i].base ? list : NULL;
        h3_checkpoint *ck = NULL;
        h3_dit *m = NULL;
        size_t stored, expanded;
        h3_ckpt_use use[2];
        h3_dev *plan;
        for (int k = 0; k < 2; k++) { // the same numbers, whoever decodes them
            const numbers want = run_dit(file, NULL, k ? with : NULL, H3_F32);
            same_bits(run_dit(file, &expand, k ? with : NULL, H3_F32), &want);
            free(want.v);
        }
        must(h3_dev_open(&plan, "plan", NULL)); // what it takes is known before
        for (int k = 0; k < 2; k++) {
            must(h3_ckpt_open(&ck, file, H3_ROLE_DIT, &expand));
            must(h3_dit_open(&m, ck, k ? dev : plan));
            h3_ckpt_expansion(ck, &stored, &expanded);
            use[k] = h3_ckpt_usage(ck, NULL);
            assert_int_equal(use[k].expanded, expanded);
            assert_true(use[k].owned > expanded && (stored > 0) == (expanded > stored));
            h3_dit_close(&m);
            h3_ckpt_close(&ck);
        }
        assert_int_equal(use[0].matrices, use[1].matrices);
        n_expanded += expanded > 0;
        h3_dev_close(&plan);
        free(file);
    }
    assert_int_equal(n_expanded, 8);
}

/* ---- damaged numbers ---- */

/* NaN is the only number of e4m3 that is none. */
static void check_poisoned_codes(void)
{
    static uint8_t code[60 * 64];
    static const float one = 1;
    h3_weight w = {.name = "blocks.0.mlp.fc2.weight", .rows = 60, .cols = 64, .n_parts = 1};

    w.part[0] = (h3_weight_part){.data = code,
                                 .rows = 60,
                                 .cols = 64,
                                 .row_bytes = 64,
                                 .bytes = sizeof code,
                                 .encoding = H3_ENC_FP8_SCALED,
                                 .scale = &one,
                                 .n_scale = 1,
                                 .full_rows = 60,
                                 .global = 1};
    memset(code, 0xfe, sizeof code); // -448
    must(h3_poison_check(&w, 1));
    code[59 * 64 + 2] = 0xff;
    assert_int_equal(h3_poison_check(&w, 1), H3_E_NUMERIC);
    assert_non_null(strstr(h3_error(), "row 59, column 2)"));
}

/* Each 16-bit word of a block that moves its values when it becomes NaN is a scale, and is seen. */
static void check_poisoned_blocks(void)
{
    enum { ROWS = 6, COLS = 512 };
    static uint8_t blocks[ROWS * COLS * 4];
    static float v[ROWS * COLS];
    h3_weight w = {.name = "blocks.1.mlp.fc2.weight", .rows = ROWS, .cols = COLS, .n_parts = 1};

    for (int type = 2; type < 39; type++) {
        const h3_ggml_info info = h3_ggml_type((uint32_t)type);
        int n_seen = 0;
        if (!info.can_decode || info.block <= 1 || type == 29) continue; // IQ1_M: a scale in pieces
        for (int crosses = 0; crosses < 2; crosses++)
            for (size_t at = 0; at + 1 < info.bytes; at += 2) {
                const size_t bad = 4 * COLS / info.block * info.bytes + at;
                memset(blocks, 0, sizeof blocks);
                w.part[0] =
                    (h3_weight_part){.data = blocks,
                                     .rows = ROWS,
                                     .cols = COLS,
                                     .row_bytes = crosses ? 0 : COLS / info.block * info.bytes,
                                     .bytes = ROWS * COLS / info.block * info.bytes,
                                     .encoding = H3_ENC_GGML,
                                     .ggml_type = (uint8_t)type,
                                     .full_rows = ROWS};
                must(h3_poison_check(&w, 1));
                blocks[bad] = 0;
                blocks[bad + 1] = 0x7e;
                h3_weight_decode_rows(&w.part[0], 0, ROWS, v);
                bool is_nan = false;
                for (int i = 0; i < ROWS * COLS; i++)
                    is_nan |= isnan(v[i]);
                assert_int_equal(h3_poison_check(&w, 1), is_nan ? H3_E_NUMERIC : H3_OK);
                if (!is_nan) continue;
                n_seen++;
                assert_non_null(strstr(h3_error(), "row 4, column 0)"));
            }
        if (n_seen < 2) fail_msg("%s: no scale found", info.name);
    }
}

static void test_poison(void **state)
{
    static float f32[300 * 40];
    static uint16_t half[300 * 40];
    h3_weight w = {.name = "blocks.0.mlp.fc1.weight", .rows = 300, .cols = 40, .n_parts = 1};
    static const float bad[] = {NAN, -INFINITY, 1e38f, -2e15f};

    (void)state;
    for (int i = 0; i < 300 * 40; i++)
        f32[i] = i % 2 ? -1e4f : 9.99e14f;
    w.part[0] = (h3_weight_part){
        .data = f32, .rows = 300, .cols = 40, .row_bytes = 160, .bytes = sizeof f32};
    must(h3_poison_check(&w, 1));
    for (size_t k = 0; k < 4; k++) {
        const float keep = f32[299 * 40 + 39];
        f32[299 * 40 + 39] = bad[k];
        assert_int_equal(h3_poison_check(&w, 1), H3_E_NUMERIC);
        assert_non_null(strstr(h3_error(), "fc1.weight"));
        assert_non_null(strstr(h3_error(), "row 299, column 39"));
        f32[299 * 40 + 39] = keep;
    }
    w.part[0] = (h3_weight_part){.data = half,
                                 .rows = 300,
                                 .cols = 40,
                                 .row_bytes = 80,
                                 .bytes = sizeof half,
                                 .encoding = H3_ENC_BF16};
    for (int e = H3_ENC_BF16; e <= H3_ENC_F16; e++) {
        static const uint16_t large[2][2] = {{0x5863, 0xd870}, {0x7bff, 0xfc00}};
        w.part[0].encoding = (uint8_t)e;
        half[77] = large[e - H3_ENC_BF16][0];
        must(h3_poison_check(&w, 1));
        half[77] = large[e - H3_ENC_BF16][1];
        assert_int_equal(h3_poison_check(&w, 1), H3_E_NUMERIC);
        assert_non_null(strstr(h3_error(), "row 1, column 37"));
    }
    check_poisoned_codes();
    check_poisoned_blocks();
    w.name = "model.language_model.embed_tokens.weight"; // nobody reads all of it
    must(h3_poison_check(&w, 1));
    must(h3_poison_rows(&w, (const int32_t[]){0, 2, 299}, 3)); // but the rows of a prompt are
    assert_int_equal(h3_poison_rows(&w, (const int32_t[]){0, 1}, 2), H3_E_NUMERIC);
    assert_non_null(strstr(h3_error(), "embed_tokens.weight holds"));
    assert_non_null(strstr(h3_error(), "row 1, column 37"));
}

/* ---- where the data lies ---- */

/* `from` with `shift` blanks more in its header, which moves the data by as much. */
static void shift_data(const char *from, const char *to, size_t shift)
{
    char *text;
    size_t size;
    uint64_t header, longer;
    FILE *f = fopen(to, "wb");

    must(h3_file_read(&text, &size, from, (size_t)1 << 30));
    memcpy(&header, text, 8);
    longer = header + shift;
    assert_non_null(f);
    assert_int_equal(fwrite(&longer, 8, 1, f), 1);
    assert_int_equal(fwrite(text + 8, header, 1, f), 1);
    assert_int_equal(fprintf(f, "%*s", (int)shift, ""), (int)shift);
    assert_int_equal(fwrite(text + 8 + header, size - 8 - header, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    free(text);
}

static void test_unaligned(void **state)
{
    (void)state;
    for (int i = 0; i < N_DITS; i++) {
        char *from = h3_strdupf(SAMPLES "%s", dits[i].file), *to = in_folder("shifted.safetensors");
        if (!strstr(from, ".safetensors")) {
            free(from);
            free(to);
            continue;
        }
        shift_data(from, to, 0);
        for (int act = H3_F32; act <= H3_BF16; act++) {
            const numbers want = run_dit(from, NULL, NULL, (h3_dtype)act);
            for (size_t shift = 1; shift < 8; shift++) {
                shift_data(from, to, shift);
                same_bits(run_dit(to, NULL, NULL, (h3_dtype)act), &want);
            }
            free(want.v);
        }
        free(from);
        free(to);
    }
}

/* ---- the conditioner ---- */

static const char encoder_config[] =
    "{\"text_config\": {\"rope_theta\": 5000000.0, \"rms_norm_eps\": 1e-6, "
    "\"rope_scaling\": {\"mrope_section\": [%d, %d, %d]}}}";

/* The heads of the samples are narrower than the release's: their rotation has to be said. */
static void put_config(const char *where, int head_dim)
{
    char *path = h3_path_join(where, "config.json");
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fprintf(f, encoder_config, head_dim / 4, head_dim / 8, head_dim / 8);
    assert_int_equal(fclose(f), 0);
    free(path);
}

/* A folder of links to sample files, with a config.json. */
static void test_encoder_forms(void **state)
{
    static const struct {
        const char *file[4];
        int head_dim, base_layers; ///< 0: not made from the numbers of te-comfy
        double limit;
    } forms[] = {
        {{"te-comfy.safetensors"}, 16, 3, 2e-6},
        {{"te-original/model-00001-of-00002.safetensors",
          "te-original/model-00002-of-00002.safetensors",
          "te-original/model.safetensors.index.json"},
         16,
         3,
         2e-6},
        {{"te-int8.safetensors"}, 16, 2, 0.035},
        {{"te-nvfp4-awq.safetensors"}, 16, 0, 0},
        {{"te-gguf.gguf"}, 32, 0, 0},
        {{"te-llama.gguf"}, 32, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char name[8], *where, *open = NULL, *plain, *base;
        snprintf(name, sizeof name, "te%zu", i);
        where = in_folder(name);
        assert_int_equal(mkdir(where, 0700), 0);
        put_config(where, forms[i].head_dim);
        for (int k = 0; k < 4 && forms[i].file[k]; k++) {
            const char *slash = strrchr(forms[i].file[k], '/');
            char *from = h3_strdupf(SAMPLES "%s", forms[i].file[k]);
            char *to = h3_path_join(where, slash ? slash + 1 : forms[i].file[k]);
            assert_int_equal(symlink(from, to), 0);
            free(from);
            free(open);
            open = to;
        }
        put_config(folder, forms[i].head_dim);
        base = in_folder("base.safetensors");
        (void)unlink(base);
        assert_int_equal(symlink(SAMPLES "te-comfy.safetensors", base), 0);
        plain = dump(open, H3_ROLE_TEXT_ENCODER, NULL, "plain.safetensors");
        const int n = forms[i].base_layers;
        const numbers want = run_encoder(plain, NULL, n);
        const double exact = apart(run_encoder(open, NULL, n), &want);
        double off = 0;
        if (n) {
            const numbers b = run_encoder(base, NULL, n);
            off = apart(run_encoder(open, NULL, n), &b);
            free(b.v);
        }
        print_message("%-32s decoded %.1e  unquantized %.1e\n", forms[i].file[0], exact, off);
        if (!(exact <= 2e-6)) fail_msg("%s: %g from its f32 values", forms[i].file[0], exact);
        if (!(off <= forms[i].limit)) fail_msg("%s: %g from te-comfy", forms[i].file[0], off);
        free(want.v);
        free(plain);
        free(base);
        free(open);
        free(where);
    }
    char *config = in_folder("config.json"); // the other tests' files stand alone
    assert_int_equal(unlink(config), 0);
    free(config);
}

static const char te_config_16[] =
    "{\"text_config\": {\"rope_theta\": 5000000.0, \"rms_norm_eps\": 1e-6, "
    "\"rope_scaling\": {\"mrope_section\": [4, 2, 2]}}}";

/* ---- the autoencoders ---- */

typedef struct vae_case {
    const char *file; ///< of a sample, or the path of a part of the small model
    const char *base; ///< its unquantized counterpart
    const char
        *config[2]; ///< config.json for decoder and encoder; NULL: the file's own folder says
    double limit;   ///< of the whole network against `base`
} vae_case;

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

static numbers run_video(const char *path, bool is_encoder)
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

static numbers run_audio(const char *path, bool is_encoder)
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

/* `from` (a file) where `config` lies beside it; malloc'd path. */
static char *beside(const char *from, const char *config, const char *as)
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

/* The other networks at odd offsets: the same bits, too. */
static void test_unaligned_others(void **state)
{
    static const char *const encoders[] = {"te-comfy", "te-int8", "te-nvfp4-awq"};
    static const char *const parts[2] = {TINY "original/FL2VA/video_vae",
                                         TINY "original/FL2VA/audio_vae"};
    const h3_convert_opts half = {.form = H3_CONVERT_F16};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char *from = h3_strdupf(SAMPLES "%s.safetensors", encoders[i]);
        char *moved = in_folder("moved.safetensors"),
             *file = beside(from, te_config_16, "te.safetensors");
        const numbers want = run_encoder(file, NULL, 2);
        free(file);
        for (size_t shift = 1; shift < 4; shift++) {
            shift_data(from, moved, shift);
            file = beside(moved, te_config_16, "te.safetensors");
            same_bits(run_encoder(file, NULL, 2), &want);
            free(file);
        }
        free(want.v);
        free(moved);
        free(from);
    }
    for (int i = 0; i < 4; i++) {
        const h3_role role = i < 2 ? H3_ROLE_VIDEO_VAE : H3_ROLE_AUDIO_VAE;
        numbers (*run)(const char *, bool) = i < 2 ? run_video : run_audio;
        char *from = in_folder("still.safetensors"), *moved = in_folder("moved.safetensors");
        h3_checkpoint *ck = NULL;
        must(h3_ckpt_open(&ck, parts[i / 2], role, NULL));
        must(h3_convert(ck, from, &half));
        h3_ckpt_close(&ck);
        const numbers want = run(from, i % 2);
        for (size_t shift = 1; shift < 4; shift++) {
            shift_data(from, moved, shift);
            same_bits(run(moved, i % 2), &want);
        }
        free(want.v);
        free(from);
        free(moved);
    }
}

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

/* Both halves of both autoencoders of the small model, in every form that circulates. */
static void test_whole_vaes(void **state)
{
    static const char video[] = TINY "original/FL2VA/video_vae",
                      audio[] = TINY "original/FL2VA/audio_vae";
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
        const vae_case c = {.file = path, .base = forms[i].part, .limit = forms[i].limit};
        for (int h = 0; h < 2; h++)
            check_vae(&c, role, h);
        if (role == H3_ROLE_AUDIO_VAE && forms[i].how == &pairs) {
            char *text, *config = h3_path_join(audio, "config.json"), *modern, *named;
            size_t n;
            must(h3_file_read(&text, &n, config, 1 << 20));
            modern = renamed(path, "modern.safetensors", modern_name);
            named = beside(modern, text, "a.safetensors");
            (void)named;
            free(text);
            free(config);
            config = h3_strdupf("%s/metadata.json", audio);
            char *meta = in_folder("vae/metadata.json");
            (void)unlink(meta);
            assert_int_equal(symlink(config, meta), 0);
            const vae_case m = {.file = named, .base = audio, .limit = 0};
            for (int h = 0; h < 2; h++)
                check_vae(&m, role, h);
            unlink(meta);
            free(meta);
            free(config);
            free(modern);
            free(named);
        }
        free(path);
    }
    static const char *const files[2] = {TINY "original/FL2VA/video_vae/source/model.safetensors",
                                         TINY "original/FL2VA/audio_vae/model.safetensors"};
    for (int audio_too = 0; audio_too < 2; audio_too++) { // a folder like theirs, with bf16 in it
        char *folder_of = h3_strdupf("%s/bf16-%d", folder, audio_too), *file, *narrow;
        const char *beside_it[] = {"config.json", audio_too ? "metadata.json" : "source"};
        assert_int_equal(mkdir(folder_of, 0700), 0);
        for (int k = 0; k < 2; k++) {
            char *from = h3_path_join(audio_too ? audio : video, beside_it[k]);
            char *to = h3_path_join(folder_of, beside_it[k]);
            char *only = h3_strdupf("%s/config.json", from),
                 *there = h3_path_join(to, "config.json");
            if (h3_path_is_dir(from)) {
                assert_int_equal(mkdir(to, 0700), 0);
                assert_int_equal(symlink(only, there), 0);
            } else {
                assert_int_equal(symlink(from, to), 0);
            }
            free(from);
            free(to);
            free(only);
            free(there);
        }
        narrow = in_bf16(files[audio_too], "bf16.safetensors");
        file =
            h3_path_join(folder_of, audio_too ? "model.safetensors" : "source/model.safetensors");
        assert_int_equal(rename(narrow, file), 0);
        const vae_case c = {.file = folder_of, .base = audio_too ? audio : video, .limit = 0.05};
        for (int h = 0; h < 2; h++)
            check_vae(&c, audio_too ? H3_ROLE_AUDIO_VAE : H3_ROLE_VIDEO_VAE, h);
        free(narrow);
        free(file);
        free(folder_of);
    }
    const vae_case split = {.file = test_model(TINY "diffusers/vae"), .base = video, .limit = 0};
    for (int h = 0; h < 2; h++)
        check_vae(&split, H3_ROLE_VIDEO_VAE, h);
}

/* ---- K types, from numbers that are known ---- */

static const char *const llama_names[][2] = {
    {"model.language_model.embed_tokens.", "token_embd."},
    {"model.language_model.norm.", "output_norm."},
    {"lm_head.", "output."},
    {"model.language_model.layers.", "blk."},
    {".input_layernorm.", ".attn_norm."},
    {".post_attention_layernorm.", ".ffn_norm."},
    {".self_attn.q_proj.", ".attn_q."},
    {".self_attn.k_proj.", ".attn_k."},
    {".self_attn.v_proj.", ".attn_v."},
    {".self_attn.o_proj.", ".attn_output."},
    {".self_attn.q_norm.", ".attn_q_norm."},
    {".self_attn.k_norm.", ".attn_k_norm."},
    {".mlp.gate_proj.", ".ffn_gate."},
    {".mlp.up_proj.", ".ffn_up."},
    {".mlp.down_proj.", ".ffn_down."},
};

static char *llama_name(const char *name)
{
    char *out = h3_strdupf("%s", name);

    for (size_t i = 0; i < sizeof llama_names / sizeof *llama_names; i++) {
        char *at = strstr(out, llama_names[i][0]), *longer;
        if (!at) continue;
        longer = h3_strdupf("%.*s%s%s", (int)(at - out), out, llama_names[i][1],
                            at + strlen(llama_names[i][0]));
        free(out);
        out = longer;
    }
    return out;
}

/* The type of a tensor in a file of mostly `type`, as published ones are mixed: values one type
 * better, and of a group of q, k, v or gate, up one of another type. */
static int type_in(const char *name, int type)
{
    if (!strstr(name, "_proj.weight") && !strstr(name, ".fc1.weight") &&
        !strstr(name, ".fc2.weight"))
        return KQ_F32;
    if (strstr(name, "patch_proj") || strstr(name, "condition_proj")) return KQ_F32;
    if (strstr(name, ".v_proj.")) return KQ_Q6_K;
    return strstr(name, ".up_proj.") && type < KQ_Q6_K ? type + 1 : type;
}

static bool is_text(const char *name)
{
    return strncmp(name, "model.visual.", 13) != 0;
}

/* `from` as a GGUF at folder/name, quantized here. */
static char *quantized(const char *from, h3_role role, int type, bool is_llama, const char *name)
{
    static kq_tensor t[512];
    char *out = in_folder(name);
    h3_checkpoint *ck = NULL;
    int n = 0, n_quantized = 0;

    must(h3_ckpt_open(&ck, from, role, NULL));
    for (int64_t i = 0; i < h3_ckpt_n_tensors(ck); i++) {
        const char *canonical = h3_ckpt_tensor(ck, i);
        int64_t ne[8];
        int rank = 0;
        if (!canonical || (is_llama && !is_text(canonical))) continue;
        assert_true(n < 512 && h3_ckpt_shape(ck, canonical, &rank, ne) && rank <= 5);
        t[n] = (kq_tensor){.name = is_llama ? llama_name(canonical) : h3_strdupf("%s", canonical),
                           .rank = rank,
                           .type = type_in(canonical, type)};
        memcpy(t[n].ne, ne, (size_t)rank * sizeof *ne);
        if (kq_count(&t[n]) % KQ_BLOCK) t[n].type = KQ_F32;
        n_quantized += t[n].type != KQ_F32;
        t[n].v = malloc((size_t)kq_count(&t[n]) * sizeof(float));
        assert_non_null(t[n].v);
        must(h3_ckpt_floats(ck, t[n].v, canonical, kq_count(&t[n])));
        n++;
    }
    assert_true(n_quantized >= 4);
    h3_ckpt_close(&ck);
    kq_write(out, t, n);
    while (n-- > 0) {
        free(t[n].name);
        free(t[n].v);
    }
    return out;
}

/* What steps of 1/3 .. 1/63 of a block's range do to a forward: of the DiT, and of the encoder's
 * few narrow layers, which enlarge them. Each type has to be better than the one before. */
static const struct {
    int type;
    double dit, encoder;
} k_types[] = {{KQ_Q2_K, 0.45, 1.2},
               {KQ_Q3_K, 0.2, 0.5},
               {KQ_Q4_K, 0.1, 0.27},
               {KQ_Q5_K, 0.04, 0.15},
               {KQ_Q6_K, 0.025, 0.09}};

static void test_k_types(void **state)
{
    static const char te[] = SAMPLES "te-comfy.safetensors",
                      dit[] = SAMPLES "dit-comfy.safetensors";
    char *base = beside(te, te_config_16, "b.safetensors");
    const numbers want_dit = run_dit(dit, NULL, NULL, H3_F32), want_te = run_encoder(base, NULL, 3);
    double last[3] = {9, 9, 9};

    (void)state;
    for (size_t i = 0; i < sizeof k_types / sizeof *k_types; i++) {
        char *file = quantized(dit, H3_ROLE_DIT, k_types[i].type, false, "k.gguf");
        double off = apart(run_dit(file, NULL, NULL, H3_F32), &want_dit);
        print_message("type %d: DiT %.1e", k_types[i].type, off);
        if (!(off <= k_types[i].dit && off < 0.75 * last[0]))
            fail_msg("%s: %g from the unquantized", file, off);
        last[0] = off;
        free(file);
        for (int llama = 0; llama < 2; llama++) {
            char *gguf = quantized(te, H3_ROLE_TEXT_ENCODER, k_types[i].type, llama, "k.gguf");
            file = beside(gguf, te_config_16, "k.gguf");
            off = apart(run_encoder(file, NULL, 3), &want_te);
            print_message("  %s %.1e", llama ? "llama.cpp names" : "encoder", off);
            if (!(off <= k_types[i].encoder && off < 0.75 * last[1 + llama]))
                fail_msg("%s: %g from the unquantized", file, off);
            last[1 + llama] = off;
            free(gguf);
            free(file);
        }
        print_message("\n");
    }
    free(want_dit.v);
    free(want_te.v);
    free(base);
}

/* `from` with the input factors of te-nvfp4-awq on the columns that they act on, as plain f32. Of
 * te-comfy: what that sample was before it was quantized. */
static char *with_factors(const char *from, const char *name)
{
    char *out = in_folder(name);
    h3_checkpoint *ck = NULL;
    h3_manifest *awq = NULL;
    h3_writer *w = NULL;
    int n_scaled = 0;

    must(h3_ckpt_open(&ck, from, H3_ROLE_TEXT_ENCODER, NULL));
    must(h3_manifest_open(&awq, SAMPLES "te-nvfp4-awq.safetensors"));
    must(h3_writer_open(&w, out));
    for (int has_data = 0; has_data < 2; has_data++) {
        for (int64_t i = 0; i < h3_ckpt_n_tensors(ck); i++) {
            const char *canonical = h3_ckpt_tensor(ck, i), *layers = "model.language_model.";
            int64_t ne[8], n = 1;
            int rank;
            if (!canonical || !h3_ckpt_shape(ck, canonical, &rank, ne)) continue;
            if (!has_data) {
                must(h3_writer_declare(w, canonical, H3_F32, rank, ne));
                continue;
            }
            for (int k = 0; k < rank; k++)
                n *= ne[k];
            float *v = malloc((size_t)n * sizeof *v);
            assert_non_null(v);
            must(h3_ckpt_floats(ck, v, canonical, n));
            if (strncmp(canonical, layers, strlen(layers)) == 0) {
                char *key = h3_strdupf("model.%.*spre_quant_scale",
                                       (int)(strlen(canonical) - strlen(layers) - strlen("weight")),
                                       canonical + strlen(layers));
                const h3_entry *e = h3_manifest_find(awq, key);
                for (int64_t k = 0; e && k < n; k++) {
                    uint16_t b;
                    memcpy(&b, e->data + 2 * (k % ne[1]), 2);
                    v[k] *= h3_bf16_to_f32(b);
                }
                n_scaled += e != NULL;
                free(key);
            }
            must(h3_writer_put(w, v, (size_t)n * sizeof *v));
            free(v);
        }
        if (!has_data) must(h3_writer_begin(w));
    }
    must(h3_writer_commit(&w));
    h3_manifest_close(&awq);
    h3_ckpt_close(&ck);
    assert_int_equal(n_scaled, 4);
    return out;
}

static void test_awq(void **state)
{
    static const char comfy[] = SAMPLES "te-comfy.safetensors",
                      awq[] = SAMPLES "te-nvfp4-awq.safetensors";
    char *plain[2] = {with_factors(awq, "awq.safetensors"), with_factors(comfy, "te.safetensors")};
    char *base[2] = {beside(plain[0], te_config_16, "b.safetensors"),
                     beside(plain[1], te_config_16, "c.safetensors")};
    char *file = beside(awq, te_config_16, "a.safetensors"),
         *bare = beside(comfy, te_config_16, "d.safetensors");
    const numbers decoded = run_encoder(base[0], NULL, 2), want = run_encoder(base[1], NULL, 2);

    (void)state;
    const double exact = apart(run_encoder(file, NULL, 2), &decoded),
                 off = apart(run_encoder(file, NULL, 2), &want),
                 moved = apart(run_encoder(bare, NULL, 2), &want);
    print_message(
        "te-nvfp4-awq: factors in the weights %.1e, unquantized %.1e, without factors %.1e\n",
        exact, off, moved);
    assert_true(exact <= 1e-5);
    assert_true(off <= 0.5);
    assert_true(moved > 0.02); // factors that change nothing would prove nothing
    free(decoded.v);
    free(want.v);
    for (int i = 0; i < 2; i++) {
        free(plain[i]);
        free(base[i]);
    }
    free(file);
    free(bare);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dit_forms),
        cmocka_unit_test(test_encoder_forms),
        cmocka_unit_test(test_video_vae_forms),
        cmocka_unit_test(test_audio_vae_forms),
        cmocka_unit_test(test_whole_vaes),
        cmocka_unit_test(test_k_types),
        cmocka_unit_test(test_awq),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_expanded),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_unaligned_others),
        cmocka_unit_test(test_poison),
    };
    int failed;

    if (!mkdtemp(folder)) return 1;
    if (h3_dev_open(&dev, "cpu", &(h3_dev_opts){.n_threads = 1}) != H3_OK) return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    h3_dev_close(&dev);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failed;
}
