/**
 * The conditioner run off every published form: a sample against its own f32 values and against the
 * unquantized weights it was made from. K types (of the denoiser, too) and input factors, from
 * numbers that are known.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "decode.h"
#include "file.h"
#include "forms.h"
#include "kquant.h"
#include "manifest.h"
#include "writer.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder_forms),
        cmocka_unit_test(test_k_types),
        cmocka_unit_test(test_awq),
    };
    return cmocka_run_group_tests(tests, forms_open, forms_close);
}
