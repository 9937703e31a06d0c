/**
 * The numbers of a checkpoint wherever they lie and whatever they are: the same bits from data at
 * odd offsets, and an error that says where for numbers that are none.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "convert.h"
#include "decode.h"
#include "file.h"
#include "forms.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_unaligned_others),
        cmocka_unit_test(test_poison),
    };
    return cmocka_run_group_tests(tests, forms_open, forms_close);
}
