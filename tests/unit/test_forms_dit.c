/**
 * The denoiser run off every published form: the forward of a sample against the forward of the
 * same sample decoded to plain f32, and against the unquantized weights it was made from, within
 * what its encoding can hold. Adapters against the dense merge, and quantized weights expanded at
 * load.
 */
#include <string.h>

#include "decode.h"
#include "dit.h"
#include "file.h"
#include "forms.h"
#include "writer.h"

/* ---- plain copies ---- */

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
    h3_dev *usual = dev;
    int n_expanded = 0;

    (void)state;
    dev = NULL; // "auto" may multiply by stored weights in another way than by f32
    must(h3_dev_open(&dev, "cpu", &(h3_dev_opts){.n_threads = 1, .math = "f32"}));
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
    h3_dev_close(&dev);
    dev = usual;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dit_forms),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_expanded),
    };
    return cmocka_run_group_tests(tests, forms_open, forms_close);
}
