/**
 * The weights room: decoders against each other, binding from every layout, errors by name, row
 * order statistics, writers, what inspect says.
 */
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

#include "checkpoint_impl.h"
#include "convert.h"
#include "decode.h"
#include "geometry.h"
#include "half.h"
#include "inspect.h"
#include "json.h"
#include "parts.h"
#include "qkv_check.h"
#include "test_models.h"
#include "writer.h"

#define DATA H3_SOURCE_DIR "/tests/data/"
#define TINY DATA "tiny-h3/"

static void must(h3_status st)
{
    if (st != H3_OK) fail_msg("%s", h3_error());
}

static void must_fail(h3_status st, h3_status code, const char *names)
{
    assert_int_equal(st, code);
    if (!strstr(h3_error(), names)) fail_msg("error names no %s: %s", names, h3_error());
}

static char *temporary(const char *suffix)
{
    static int n;
    return h3_strdupf("/tmp/h3av-weights-%ld-%d%s", (long)getpid(), n++, suffix);
}

static uint64_t rng(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* ---- decoders ---- */

/* A part of every encoding over random bytes with tame scales. cols is a multiple of 256. */
static void random_part(h3_weight_part *p, int encoding, int ggml, int64_t rows, int64_t cols,
                        uint8_t *bytes, uint8_t *scales, float *row_scales, uint64_t seed)
{
    const h3_ggml_info info = h3_ggml_type((uint32_t)ggml);
    const size_t row_bytes = encoding == H3_ENC_GGML  ? (size_t)cols / info.block * info.bytes
                             : encoding == H3_ENC_F32 ? (size_t)cols * 4
                             : encoding <= H3_ENC_F16 ? (size_t)cols * 2
                             : encoding == H3_ENC_W4A8 || encoding == H3_ENC_NVFP4
                                 ? (size_t)cols / 2
                                 : (size_t)cols;

    for (size_t i = 0; i < row_bytes * (size_t)rows; i++)
        bytes[i] = (uint8_t)(rng(&seed) & (encoding == H3_ENC_FP8_SCALED ? 0x7e : 0xff));
    if (encoding <= H3_ENC_F16 || encoding == H3_ENC_MXFP8) // no NaN: keep exponents small
        for (size_t i = 0; i < row_bytes * (size_t)rows; i++)
            bytes[i] &= 0x3b;
    if (encoding == H3_ENC_GGML) // f16 scales lie in the first or last bytes of a block
        for (size_t b = 0; b < row_bytes * (size_t)rows; b += info.bytes) {
            for (int k = 1; k < 4; k += 2)
                bytes[b + (size_t)k] &= 0xb3;
            for (int k = 1; k < 5; k += 2)
                bytes[b + info.bytes - (size_t)k] &= 0xb3;
        }
    for (int64_t i = 0; i < rows * cols / 16 + 4096; i++)
        scales[i] = (uint8_t)(0x30 + rng(&seed) % 16 + (encoding == H3_ENC_MXFP8 ? 70 : 0));
    for (int64_t i = 0; i < rows; i++)
        row_scales[i] = 0.01f + 0.001f * (float)i;
    *p = (h3_weight_part){.data = bytes,
                          .rows = rows,
                          .cols = cols,
                          .full_rows = rows,
                          .row_bytes = row_bytes,
                          .encoding = (uint8_t)encoding,
                          .ggml_type = (uint8_t)ggml,
                          .scale = encoding == H3_ENC_INT8 ? (void *)row_scales : scales,
                          .scale2 = row_scales,
                          .n_scale = encoding == H3_ENC_FP8_SCALED ? 1 : rows,
                          .block = 16,
                          .swizzled = encoding == H3_ENC_MXFP8,
                          .nibble_high = encoding == H3_ENC_NVFP4,
                          .group = encoding == H3_ENC_INT8 || encoding == H3_ENC_W4A8 ? 64 : 0,
                          .global = 0.37f};
}

enum { ROWS = 5, COLS = 512 };

static void check_decoder(int encoding, int ggml)
{
    static uint8_t bytes[ROWS * COLS * 4 + 16], moved[ROWS * COLS * 4 + 16], scales[32768];
    static float rows[ROWS], want[ROWS * COLS], got[ROWS * COLS];
    h3_weight_part p, slice;

    random_part(&p, encoding, ggml, ROWS, COLS, bytes, scales, rows,
                77 + (uint64_t)(encoding * 64 + ggml));
    h3_decode_use_level(0);
    h3_weight_decode_rows(&p, 0, ROWS, want);
    for (int i = 0; i < ROWS * COLS; i++)
        if (!isfinite(want[i])) fail_msg("encoding %d/%d: not finite", encoding, ggml);
    for (int level = 0; level <= h3_decode_best_level(); level++) {
        h3_decode_use_level(level);
        memset(got, 0, sizeof got);
        h3_weight_decode_rows(&p, 0, ROWS, got);
        assert_memory_equal(got, want, sizeof want);
        memcpy(moved + 3, bytes, sizeof bytes - 16); // unaligned data, same bits
        p.data = moved + 3;
        memset(got, 0, sizeof got);
        h3_weight_decode_rows(&p, 0, ROWS, got);
        assert_memory_equal(got, want, sizeof want);
        slice = h3_part_slice(&p, 2, 2); // rows keep their own companions
        h3_weight_decode_rows(&slice, 1, 1, got);
        assert_memory_equal(got, want + 3 * COLS, COLS * sizeof *want);
        p.data = bytes;
    }
    h3_decode_use_level(-1);
}

static void test_decoders(void **state)
{
    (void)state;
    for (int e = 0; e < H3_ENC_GGML; e++)
        check_decoder(e, 0);
    for (uint32_t t = 2; t < 64; t++)
        if (h3_ggml_type(t).can_decode && h3_ggml_type(t).block > 1)
            check_decoder(H3_ENC_GGML, (int)t);
}

/* Blocks that cross rows: 4 rows of 96 in blocks of 256 = 3 rows of 128 in the same blocks. */
static void test_crossing_blocks(void **state)
{
    static uint8_t bytes[144 * 3], scales[8192];
    static float rows[8], whole[768], got[768];
    h3_weight_part p;

    (void)state;
    random_part(&p, H3_ENC_GGML, 12, 3, 256, bytes, scales, rows, 5);
    h3_weight_decode_rows(&p, 0, 3, whole);
    p.cols = 96;
    p.rows = 8;
    p.row_bytes = 0;
    h3_weight_decode_rows(&p, 0, 8, got);
    assert_memory_equal(got, whole, sizeof whole);
    const h3_weight_part tail = h3_part_slice(&p, 5, 3);
    h3_weight_decode_rows(&tail, 1, 2, got);
    assert_memory_equal(got, whole + 6 * 96, 2 * 96 * sizeof *whole);
}

static void test_scalars(void **state)
{
    static const uint16_t halves[] = {0, 0x8000, 1, 0x03ff, 0x0400, 0x3c00, 0xfbff, 0x7c00, 0x8001};
    float f;

    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t u = (uint16_t)h;
        const float want = h3_f16_to_f32(u);
        h3_decode_dtype(H3_F16, &u, 1, &f);
        if (isnan(want))
            assert_true(isnan(f));
        else
            assert_int_equal(h3_f32_bits(f), h3_f32_bits(want));
    }
    h3_decode_dtype(H3_F16, &halves[6], 1, &f);
    assert_true(f == -65504.0f);
    assert_true(h3_e4m3[0x7e] == 448.0f && h3_e4m3[0x01] == 0x1p-9f && h3_e4m3[0x88] == -0x1p-6f);
    assert_true(isnan(h3_e4m3[0x7f]) && isnan(h3_e4m3[0xff]) && h3_e4m3[0x38] == 1.0f);
    assert_true(h3_e8m0(127) == 1.0f && h3_e8m0(0) == 0.0f && isnan(h3_e8m0(255)));
}

/* Parts, input scales and an adapter together. */
static void test_whole_weight(void **state)
{
    static const float a0[] = {1, 2, 3, 4}, a1[] = {5, 6, 7, 8, 9, 10, 11, 12};
    static const float scale[] = {1, 10, 100, 1000}, A[] = {1, 0, 1, 0}, B[] = {0.5f, 2};
    h3_weight w = {.rows = 3, .cols = 4, .n_parts = 2};
    const h3_weight_part like = {.cols = 4, .row_bytes = 16, .encoding = H3_ENC_F32};
    h3_lora l = {.row0 = 1, .weight_rows = 3, .scale = 2};
    float got[12];

    (void)state;
    w.part[0] = like;
    w.part[0].data = a0;
    w.part[0].rows = 1;
    w.part[1] = like;
    w.part[1].data = a1;
    w.part[1].rows = 2;
    w.part[1].in_scale = scale;
    l.a = like;
    l.a.data = A;
    l.a.rows = 1;
    l.b = (h3_weight_part){.data = B, .rows = 2, .cols = 1, .row_bytes = 4, .encoding = H3_ENC_F32};
    w.lora = &l;
    w.n_lora = 1;
    h3_weight_rows(&w, 0, 3, got);
    const float want[] = {1, 2, 3, 4, 5 + 1, 60, 700 + 1, 8000, 9 + 4, 100, 1100 + 4, 12000};
    assert_memory_equal(got, want, sizeof want);
    h3_weight_rows(&w, 2, 1, got);
    assert_memory_equal(got, want + 8, 16);
}

/* ---- checkpoints ---- */

/* Every matrix of the released layout has the values of the diffusers layout, up to q/k/v order. */
static void compare_layouts(const char *a, const char *b, h3_role role)
{
    h3_checkpoint *x = NULL, *y = NULL;
    char *px = temporary(".safetensors"), *py = temporary(".safetensors");
    h3_manifest *mx = NULL, *my = NULL;
    int64_t n = 0;

    must(h3_ckpt_open(&x, a, role, NULL));
    must(h3_ckpt_open(&y, b, role, NULL));
    must(h3_convert(x, px, NULL));
    must(h3_convert(y, py, NULL));
    must(h3_manifest_open(&mx, px));
    must(h3_manifest_open(&my, py));
    for (int64_t i = 0; i < h3_manifest_count(my); i++) {
        const h3_entry *e = h3_manifest_at(my, i), *o = h3_manifest_find(mx, e->name);
        if (!o) fail_msg("%s is only in %s", e->name, b);
        assert_int_equal(e->bytes, o->bytes);
        if (strcmp(e->name, "rope.inv_freq") != 0 && memcmp(e->data, o->data, e->bytes) != 0)
            fail_msg("%s differs", e->name);
        n++;
    }
    assert_true(n >= h3_manifest_count(mx) - 1); // decoder.mask_token is in one only
    h3_manifest_close(&mx);
    h3_manifest_close(&my);
    h3_ckpt_close(&x);
    h3_ckpt_close(&y);
    unlink(px);
    unlink(py);
    free(px);
    free(py);
}

static void test_layouts(void **state)
{
    (void)state;
    compare_layouts(TINY "original/FL2VA/transformer", test_model(TINY "diffusers/transformer"),
                    H3_ROLE_DIT);
    compare_layouts(TINY "original/Ref2VA/transformer",
                    test_model(TINY "diffusers/transformer_ref"), H3_ROLE_DIT);
    compare_layouts(TINY "original/FL2VA/video_vae", test_model(TINY "diffusers/vae"),
                    H3_ROLE_VIDEO_VAE);
    compare_layouts(TINY "original/FL2VA/audio_vae", test_model(TINY "diffusers/audio_vae"),
                    H3_ROLE_AUDIO_VAE);
    compare_layouts(TINY "original/FL2VA/text_encoder", test_model(TINY "diffusers/text_encoder"),
                    H3_ROLE_TEXT_ENCODER);
}

static void test_binding(void **state)
{
    static const struct {
        const char *path;
        int qkv_parts, fc1_parts;
        bool interleaved;
    } cases[] = {
        {TINY "original/FL2VA/transformer", 1, 1, true},
        {TINY "diffusers/transformer", 3, 2, false},
        {DATA "formats/samples/dit-comfy.safetensors", 1, 1, false},
    };
    h3_dev *d;

    (void)state;
    must(h3_dev_open(&d, "ref", NULL));
    for (size_t i = 0; i < 3; i++) {
        h3_checkpoint *ck = NULL;
        h3_weight w;
        h3_tensor v;
        int rank;
        int64_t ne[8];
        must(h3_ckpt_open(&ck, test_model(cases[i].path), H3_ROLE_DIT, NULL));
        assert_true(h3_ckpt_shape(ck, "blocks.0.attn.qkv_proj.weight", &rank, ne));
        must(h3_ckpt_matrix(ck, d, &w, "blocks.0.attn.qkv_proj", ne[0], ne[1], false));
        assert_int_equal(w.n_parts, cases[i].qkv_parts);
        assert_int_equal(w.interleaved, cases[i].interleaved);
        assert_ptr_equal(w.part[0].dev, w.part[0].data);
        must_fail(h3_ckpt_matrix(ck, d, &w, "blocks.0.attn.qkv_proj", ne[0], ne[1] + 1, false),
                  H3_E_SHAPE, "blocks.0.attn.qkv_proj.weight");
        assert_true(h3_ckpt_shape(ck, "blocks.0.mlp.fc1.weight", &rank, ne));
        must(h3_ckpt_matrix(ck, d, &w, "blocks.0.mlp.fc1", ne[0], ne[1], false));
        assert_int_equal(w.n_parts, cases[i].fc1_parts);
        must_fail(h3_ckpt_matrix(ck, d, &w, "blocks.99.mlp.fc1", 4, 4, false), H3_E_MISSING,
                  "blocks.99.mlp.fc1.weight");
        must_fail(h3_ckpt_vector(ck, d, &v, "blocks.0.norm1.weight", 7), H3_E_SHAPE,
                  "expected 7 elements");
        must_fail(h3_ckpt_finish(ck), H3_E_FORMAT, "not part of the model");
        h3_ckpt_ignore(ck, "*");
        must(h3_ckpt_finish(ck));
        h3_ckpt_close(&ck);
    }
    must_fail(
        h3_ckpt_open(&(h3_checkpoint *){NULL}, test_model(TINY "diffusers/vae"), H3_ROLE_DIT, NULL),
        H3_E_FORMAT, "video VAE");
    h3_dev_close(&d);
}

/* The order asked for wins over the rule of origin. */
static void test_order_override(void **state)
{
    const h3_ckpt_opts opts = {.qkv = H3_QKV_INTERLEAVED};
    h3_checkpoint *ck = NULL;
    const char *why;

    (void)state;
    must(h3_ckpt_open(&ck, DATA "formats/samples/dit-comfy.safetensors", H3_ROLE_DIT, &opts));
    assert_int_equal(h3_ckpt_qkv(ck, &why), H3_QKV_INTERLEAVED);
    assert_string_equal(why, "as asked for");
    h3_ckpt_close(&ck);
}

/* ComfyUI's prefix on the model's names, none on a stranger's: the model is read, the stranger
 * told. */
static void test_prefix(void **state)
{
    char *path = temporary(".safetensors"), *text;
    const int64_t one = 1, big = 1ll << 40;
    h3_manifest *m = NULL;
    h3_writer *w = NULL;
    h3_checkpoint *ck = NULL;
    h3_geometry g;

    (void)state;
    must(h3_manifest_open(&m, DATA "formats/hostile/dt-valid.safetensors"));
    must(h3_writer_open(&w, path));
    for (int64_t i = 0; i < h3_manifest_count(m); i++) {
        const h3_entry *e = h3_manifest_at(m, i);
        char *name = h3_strdupf("model.diffusion_model.%s", e->name);
        must(h3_writer_declare(w, name, (h3_dtype)e->dtype, e->rank, e->ne));
        free(name);
    }
    must(h3_writer_declare(w, "unknown.module.weight", H3_I64, 1, &one));
    must(h3_writer_begin(w));
    for (int64_t i = 0; i < h3_manifest_count(m); i++)
        must(h3_writer_put(w, h3_manifest_at(m, i)->data, h3_manifest_at(m, i)->bytes));
    must(h3_writer_put(w, &big, 8));
    must(h3_writer_commit(&w));
    must(h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL));
    must(h3_geometry_read(&g, ck, NULL));
    text = h3_ckpt_strangers(ck);
    assert_string_equal(text, "unknown.module.weight");
    free(text);
    h3_ckpt_close(&ck);
    h3_manifest_close(&m);
    unlink(path);
    free(path);
}

/* ---- row order statistics ---- */

/* A curve-form DiT of one block whose q, k and v rows have different magnitudes. */
static char *biased_dit(bool is_mixed)
{
    char *path = temporary(".safetensors");
    h3_manifest *m = NULL;
    h3_writer *w = NULL;
    uint64_t seed = 3;

    must(h3_manifest_open(&m, DATA "formats/hostile/dt-valid.safetensors"));
    must(h3_writer_open(&w, path));
    for (int64_t i = 0; i < h3_manifest_count(m); i++) {
        const h3_entry *e = h3_manifest_at(m, i);
        const bool is_qkv = strcmp(e->name, "blocks.0.attn.qkv_proj.weight") == 0;
        const int64_t ne[] = {192, 16}; // 4 heads of 16
        must(h3_writer_declare(w, e->name, (h3_dtype)e->dtype, e->rank, is_qkv ? ne : e->ne));
    }
    must(h3_writer_begin(w));
    for (int64_t i = 0; i < h3_manifest_count(m); i++) {
        const h3_entry *e = h3_manifest_at(m, i);
        uint16_t rows[192 * 16];
        if (strcmp(e->name, "blocks.0.attn.qkv_proj.weight") != 0) {
            must(h3_writer_put(w, e->data, e->bytes));
            continue;
        }
        for (int r = 0; r < 192; r++)
            for (int c = 0; c < 16; c++) {
                const int part = is_mixed ? r / 16 % 3 : r / 64;
                const float x = (float)(rng(&seed) % 2001) / 1000.0f - 1.0f;
                rows[r * 16 + c] = h3_f32_to_bf16(x * (1.0f + (float)part));
            }
        must(h3_writer_put(w, rows, sizeof rows));
    }
    must(h3_writer_commit(&w));
    h3_manifest_close(&m);
    return path;
}

static void test_statistics(void **state)
{
    (void)state;
    for (int mixed = 0; mixed < 2; mixed++)
        for (int order = H3_QKV_INTERLEAVED; order <= H3_QKV_STACKED; order++) {
            char *path = biased_dit(mixed);
            const h3_ckpt_opts opts = {.qkv = (h3_qkv_order)order};
            h3_checkpoint *ck = NULL;
            h3_qkv_check check;
            must(h3_ckpt_open(&ck, path, H3_ROLE_DIT, &opts));
            must(h3_ckpt_check_qkv(ck, &check));
            assert_true(check.is_done);
            assert_int_equal(check.is_doubtful, (order == H3_QKV_INTERLEAVED) != mixed);
            h3_ckpt_close(&ck);
            unlink(path);
            free(path);
        }
}

/* ---- conversion ---- */

static void test_convert(void **state)
{
    static const h3_convert_form forms[] = {H3_CONVERT_BF16, H3_CONVERT_Q8_0};
    h3_checkpoint *ck = NULL, *back = NULL;
    float a[192 * 64], b[192 * 64];

    (void)state;
    must(h3_ckpt_open(&ck, DATA "formats/samples/dit-original/transformer", H3_ROLE_DIT, NULL));
    for (int i = 0; i < 2; i++) {
        char *path = temporary(i ? ".gguf" : ".safetensors");
        const h3_convert_opts opts = {.form = forms[i]};
        double worst = 0;
        must(h3_convert(ck, path, &opts));
        must(h3_ckpt_open(&back, path, H3_ROLE_DIT, NULL));
        assert_int_equal(h3_ckpt_qkv(back, NULL), H3_QKV_STACKED);
        h3_geometry g;
        must(h3_geometry_read(&g, back, NULL));
        must(h3_ckpt_floats(ck, a, "blocks.1.attn.qkv_proj.weight", 192 * 64));
        must(h3_ckpt_floats(back, b, "blocks.1.attn.qkv_proj.weight", 192 * 64));
        for (int r = 0; r < 192; r++) // stored (head, part), written (part, head)
            for (int c = 0; c < 64; c++) {
                const int from = (r % 64 / 32 * 3 + r / 64) * 32 + r % 32;
                worst = fmax(worst, fabs((double)a[from * 64 + c] - (double)b[r * 64 + c]));
            }
        assert_true(worst <= (i ? 0.01 : 0));
        must_fail(h3_convert(ck, "/no/such/folder/x", &opts), H3_E_MISSING, "/no/such");
        h3_ckpt_close(&back);
        unlink(path);
        free(path);
    }
    h3_ckpt_close(&ck);
}

/* Every tensor of `got` is the one of `want`, to the byte; `absent` (a suffix or NULL) may lack. */
static void same_tensors(const char *got, const char *want, const char *absent)
{
    h3_manifest *a = NULL, *b = NULL;
    int64_t n_absent = 0;

    must(h3_manifest_open(&a, got));
    must(h3_manifest_open(&b, want));
    for (int64_t i = 0; i < h3_manifest_count(b); i++) {
        const h3_entry *y = h3_manifest_at(b, i), *x = h3_manifest_find(a, y->name);
        if (!x && absent && strcmp(y->name, absent) == 0) {
            n_absent++;
            continue;
        }
        if (!x) fail_msg("%s lacks %s", got, y->name);
        if (x->dtype != y->dtype || x->rank != y->rank || x->bytes != y->bytes ||
            memcmp(x->ne, y->ne, (size_t)x->rank * sizeof *x->ne) ||
            memcmp(x->data, y->data, x->bytes))
            fail_msg("%s: %s is not that of %s", got, y->name, want);
    }
    assert_int_equal(h3_manifest_count(a) + n_absent, h3_manifest_count(b));
    h3_manifest_close(&a);
    h3_manifest_close(&b);
}

static void convert_to(const char *from, const char *to, const h3_convert_opts *o)
{
    h3_checkpoint *ck = NULL;

    must(h3_ckpt_open(&ck, from, H3_ROLE_UNKNOWN, NULL));
    must(h3_convert(ck, to, o));
    h3_ckpt_close(&ck);
}

/* From each layout to each: the files of the reference, to the byte. */
static void test_convert_layouts(void **state)
{
    static const struct {
        const char *original, *diffusers;
        const char *lost; ///< what only the released file holds
    } parts[] = {
        {"original/FL2VA/transformer", "diffusers/transformer", "rope.inv_freq"},
        {"original/Ref2VA/transformer", "diffusers/transformer_ref", "rope.inv_freq"},
        {"original/FL2VA/video_vae", "diffusers/vae", "decoder.mask_token"},
        {"original/FL2VA/text_encoder", "diffusers/text_encoder", NULL},
        {"original/FL2VA/audio_vae", "diffusers/audio_vae", NULL},
    };
    const h3_convert_opts own = {.form = H3_CONVERT_BF16},
                          as_released = {.form = H3_CONVERT_BF16, .layout = H3_CONVERT_ORIGINAL},
                          split = {.form = H3_CONVERT_BF16, .layout = H3_CONVERT_DIFFUSERS};
    char *ours = temporary(".safetensors"), *out = temporary(".safetensors");

    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *original = h3_strdupf(TINY "%s", parts[i].original);
        char *files = h3_strdupf("%s%s", original, strstr(original, "video") ? "/source" : "");
        char *other = h3_strdupf(TINY "%s", parts[i].diffusers);
        const char *diffusers = test_model(other);
        convert_to(original, out, &split);
        same_tensors(out, diffusers, NULL);
        convert_to(original, out, &as_released);
        same_tensors(out, files, NULL);
        convert_to(diffusers, out, &as_released);
        same_tensors(out, files, parts[i].lost);
        convert_to(diffusers, out, &split);
        same_tensors(out, diffusers, NULL);
        convert_to(original, ours, &own);
        if (!strstr(original, "audio")) { // its pairs are multiplied out, which loses their lengths
            convert_to(ours, out, &split);
            same_tensors(out, diffusers, NULL);
            convert_to(ours, out, &as_released);
            same_tensors(out, files, NULL);
        }
        free(original);
        free(files);
        free(other);
    }
    unlink(ours);
    unlink(out);
    free(ours);
    free(out);
}

/* Pairs made for a file that holds products multiply back to them. */
static void test_convert_pairs(void **state)
{
    const h3_convert_opts plain = {.form = H3_CONVERT_F32},
                          pairs = {.form = H3_CONVERT_F32, .layout = H3_CONVERT_ORIGINAL};
    char *path[3];
    h3_manifest *x = NULL, *y = NULL;

    (void)state;
    for (int i = 0; i < 3; i++)
        path[i] = temporary(".safetensors");
    convert_to(TINY "original/FL2VA/audio_vae", path[0], &plain);
    convert_to(path[0], path[1], &pairs);
    convert_to(path[1], path[2], &plain);
    must(h3_manifest_open(&x, path[0]));
    must(h3_manifest_open(&y, path[2]));
    assert_int_equal(h3_manifest_count(x), h3_manifest_count(y));
    for (int64_t i = 0; i < h3_manifest_count(x); i++) {
        const h3_entry *want = h3_manifest_at(x, i), *got = h3_manifest_find(y, want->name);
        assert_non_null(got);
        assert_int_equal(got->bytes, want->bytes);
        for (size_t k = 0; k < want->bytes / 4; k++) {
            float u, v;
            memcpy(&u, want->data + 4 * k, 4);
            memcpy(&v, got->data + 4 * k, 4);
            assert_true(fabsf(u - v) <= 3e-7f * fabsf(u));
        }
    }
    h3_manifest_close(&x);
    h3_manifest_close(&y);
    for (int i = 0; i < 3; i++) {
        unlink(path[i]);
        free(path[i]);
    }
}

static void test_convert_refusals(void **state)
{
    const h3_convert_opts half = {.form = H3_CONVERT_F16},
                          gguf = {.form = H3_CONVERT_Q8_0, .layout = H3_CONVERT_DIFFUSERS};
    static const int64_t ne[2] = {6, 64};
    static const float values[6 * 64] = {[70] = 7e4f};
    char *from = temporary(".safetensors"), *to = temporary(".safetensors");
    h3_checkpoint *ck = NULL;
    h3_writer *w = NULL;

    (void)state;
    must(h3_writer_open(&w, from));
    must(h3_writer_declare(w, "blocks.0.attn.qkv_proj.weight", H3_F32, 2, ne));
    must(h3_writer_begin(w));
    must(h3_writer_put(w, values, sizeof values));
    must(h3_writer_commit(&w));
    must(h3_ckpt_open(&ck, from, H3_ROLE_UNKNOWN, NULL));
    must_fail(h3_convert(ck, to, &half), H3_E_NUMERIC, "blocks.0.attn.qkv_proj.weight");
    assert_int_equal(access(to, F_OK), -1);
    must_fail(h3_convert(ck, to, &gguf), H3_E_ARG, "diffusers");
    h3_ckpt_close(&ck);
    must(h3_ckpt_open(&ck, DATA "formats/samples/lora-kohya.safetensors", H3_ROLE_UNKNOWN, NULL));
    must_fail(h3_convert(ck, to, NULL), H3_E_FORMAT, "LoRA");
    h3_ckpt_close(&ck);
    assert_int_equal(access(to, F_OK), -1);
    unlink(from);
    free(from);
    free(to);
}

/* A config inside a file comes from anybody: text that is none, and values of other kinds. */
static void test_config_inside(void **state)
{
    static const struct {
        const char *text;
        bool is_taken;
    } cases[] = {
        {"{", false},
        {"[]", false},
        {"", false},
        {"{\"config.json\": 5}", true},
        {"{\"config.json\": {\"vit_decoder_kwargs\": []}, \"metadata.json\": null}", true}};
    static const int64_t ne[2] = {6, 64};
    static const float values[6 * 64];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = temporary(".safetensors");
        h3_checkpoint *ck = NULL;
        h3_writer *w = NULL;
        must(h3_writer_open(&w, path));
        must(h3_writer_meta(w, "h3av.config", cases[i].text));
        must(h3_writer_declare(w, "blocks.0.attn.qkv_proj.weight", H3_F32, 2, ne));
        must(h3_writer_begin(w));
        must(h3_writer_put(w, values, sizeof values));
        must(h3_writer_commit(&w));
        if (cases[i].is_taken) {
            must(h3_ckpt_open(&ck, path, H3_ROLE_UNKNOWN, NULL));
            assert_null(json_object_get(h3_ckpt_config(ck, "config.json"), "heads"));
            h3_ckpt_close(&ck);
        } else {
            must_fail(h3_ckpt_open(&ck, path, H3_ROLE_UNKNOWN, NULL), H3_E_FORMAT, "h3av.config");
            assert_null(ck);
        }
        unlink(path);
        free(path);
    }
}

/* ---- inspect and parts ---- */

static const char *text_at(const json_t *o, const char *a, const char *b, const char *c)
{
    o = json_object_get(o, a);
    if (b) o = json_object_get(o, b);
    if (c) o = json_object_get(o, c);
    return json_is_string(o) ? json_string_value(o) : "";
}

static void copy_file(const char *from, const char *dir, const char *name)
{
    char *to = h3_path_join(dir, name), *text;
    size_t n;
    FILE *fp;

    must(h3_file_read(&text, &n, from, 64 << 20));
    fp = fopen(to, "wb");
    assert_non_null(fp);
    assert_int_equal(fwrite(text, 1, n, fp), n);
    fclose(fp);
    free(text);
    free(to);
}

static void test_inspect(void **state)
{
    json_t *o = NULL;
    char *text;

    (void)state;
    must(h3_inspect_path(&o, TINY "original/FL2VA", NULL, false));
    assert_string_equal(text_at(o, "role", NULL, NULL), "model");
    assert_string_equal(text_at(o, "parts", "dit", "partition"), "fl2va");
    assert_string_equal(
        json_string_value(json_object_get(
            json_object_get(json_object_get(json_object_get(o, "parts"), "dit"), "qkv"), "order")),
        "interleaved");
    assert_int_equal(json_array_size(json_object_get(o, "missing")), 1); // dit_ref
    assert_string_equal(
        text_at(json_array_get(json_object_get(o, "missing"), 0), "part", NULL, NULL), "dit_ref");
    text = h3_inspect_text(o);
    assert_non_null(strstr(text, "missing dit_ref"));
    assert_null(strstr(text, "PROBLEM"));
    free(text);
    json_decref(o);
    must(h3_inspect_path(&o, test_model(TINY "diffusers"), NULL, false));
    assert_int_equal(json_array_size(json_object_get(o, "missing")), 0);
    assert_string_equal(text_at(o, "parts", "dit_ref", "partition"), "ref2va");
    json_decref(o);
    must(h3_inspect_path(&o, DATA "formats/samples/lora-kohya.safetensors", NULL, false));
    assert_string_equal(text_at(o, "role", NULL, NULL), "lora");
    assert_string_equal(text_at(o, "adapter", "keys", NULL), "kohya");
    json_decref(o);
    must(h3_inspect_path(&o, DATA "formats/samples/te-llama.gguf", NULL, false));
    assert_int_equal(json_integer_value(json_object_get(o, "files")), 2); // its mmproj lies beside
    assert_int_equal(json_array_size(json_object_get(o, "problems")), 0);
    json_decref(o);
    must(h3_inspect_path(&o, DATA "formats/samples/te-llama-mmproj.gguf", NULL, false));
    json_t *problems = json_object_get(o, "problems"); // each is told once
    assert_true(json_array_size(problems) > 2);
    for (size_t i = 0; i < json_array_size(problems); i++)
        for (size_t k = 0; k < i; k++)
            assert_false(json_equal(json_array_get(problems, i), json_array_get(problems, k)));
    json_decref(o);
    must(h3_inspect_path(&o, DATA "formats/hostile/dt-gap.safetensors", NULL, true));
    text = h3_inspect_text(o);
    assert_non_null(strstr(text, "PROBLEM"));
    free(text);
    json_decref(o);
    must_fail(h3_inspect_path(&o, "/no/such/thing", NULL, false), H3_E_MISSING, "/no/such/thing");
}

/* What is there but cannot be entered is not called missing. */
static void test_no_entry(void **state)
{
    char *root = temporary(""), *loop = h3_path_join(root, "loop"),
         *shut = h3_path_join(root, "shut");
    json_t *o = NULL;
    h3_parts p;
    char *file, *unread;

    (void)state;
    assert_int_equal(mkdir(root, 0755), 0);
    assert_int_equal(symlink("loop", loop), 0);
    must_fail(h3_inspect_path(&o, loop, NULL, false), H3_E_IO, "Too many levels");
    must_fail(h3_parts_find(&p, loop), H3_E_IO, "Too many levels");
    assert_int_equal(mkdir(shut, 0), 0);
    const bool is_root = geteuid() == 0 && setresuid(65534, 65534, 0) == 0; // root enters anything
    if (geteuid() != 0 && access(root, R_OK | X_OK) == 0) {
        must_fail(h3_inspect_path(&o, shut, NULL, false), H3_E_IO, "Permission denied");
        must_fail(h3_parts_find(&p, shut), H3_E_IO, "Permission denied");
        must_fail(h3_manifest_locate(&file, shut), H3_E_IO, "Permission denied");
        must(h3_parts_find(&p, root));
        assert_non_null(strstr(p.notes, "shut cannot be searched: Permission denied"));
        unread = h3_parts_unread(p.unread);
        assert_non_null(strstr(unread, "shut cannot be searched: Permission denied; "));
        free(unread);
        h3_parts_free(&p);
    }
    if (is_root) assert_int_equal(setresuid(0, 0, 0), 0);
    unread = h3_parts_unread("one\ntwo\nthree");
    assert_string_equal(unread, "one, and 2 more; ");
    free(unread);
    unlink(loop);
    rmdir(shut);
    rmdir(root);
    free(loop);
    free(shut);
    free(root);
}

/* A tokenizer.json of that text in root/folder, whose folders are made. */
static void put_tokenizer(const char *root, const char *folder, const char *text)
{
    char *path = h3_strdupf("%s/%s/tokenizer.json", root, folder);
    FILE *f;

    h3_make_folders_above(path);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(path);
}

/* Which of several tokenizers: a rule, not the order of a folder's entries. */
static void test_parts_tokenizer(void **state)
{
    static const struct {
        const char *folder[3], *text[3], *encoder, *want, *rival, *note;
    } cases[] = {
        {{"FL2VA/tokenizer", "Ref2VA/tokenizer", "FL2VA/processor"},
         {"a", "b", "c"},
         "FL2VA/text_encoder",
         "FL2VA/tokenizer",
         NULL,
         "Ref2VA/tokenizer"},
        {{"a_tokenizer", "text_encoders", "z"},
         {"a", "b", "c"},
         "text_encoders",
         "text_encoders",
         NULL,
         "a_tokenizer/tokenizer.json is not used"},
        {{"other", "old/tokenizer", "tokenizer"}, {"a", "b", "c"}, "te", "tokenizer", NULL, "old"},
        {{"one", "two"}, {"a", "b"}, "te", "one", "two", "hold different"},
        {{"one", "two"}, {"same", "same"}, "te", "one", NULL, NULL},
        {{"deep/er/one", "two"}, {"a", "b"}, NULL, "two", NULL, "deep/er/one"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *root = temporary(""), *command = h3_strdupf("rm -rf '%s'", root), *path;
        h3_parts p;
        mkdir(root, 0700);
        for (int k = 0; k < 3 && cases[i].folder[k]; k++)
            put_tokenizer(root, cases[i].folder[k], cases[i].text[k]);
        if (cases[i].encoder) {
            path = h3_strdupf("%s/%s/x", root, cases[i].encoder);
            h3_make_folders_above(path);
            *strrchr(path, '/') = '\0';
            copy_file(DATA "formats/samples/te-llama.gguf", path, "qwen.gguf");
            free(path);
        }
        must(h3_parts_find(&p, root));
        path = h3_path_join(root, cases[i].want);
        assert_string_equal(p.tokenizer, path);
        free(path);
        path = cases[i].rival ? h3_path_join(root, cases[i].rival) : NULL;
        if (path)
            assert_string_equal(p.rival, path);
        else
            assert_null(p.rival);
        if (path) must_fail(h3_parts_check_tokenizer(&p), H3_E_ARG, "--tokenizer");
        if (!path) must(h3_parts_check_tokenizer(&p));
        if (cases[i].note)
            assert_non_null(strstr(p.notes, cases[i].note));
        else
            assert_null(p.notes);
        h3_parts_free(&p);
        assert_int_equal(system(command), 0);
        free(path);
        free(command);
        free(root);
    }
}

static void test_parts(void **state)
{
    char *root = temporary("");
    h3_parts p;
    static const char *const files[][3] = {
        {"dit-comfy.safetensors", "diffusion_models", "minimax_h3_fl2va_bf16.safetensors"},
        {"dit-gguf.gguf", "diffusion_models", "MiniMax-H3-Ref2VA-Q3_K_M.gguf"},
        {"te-llama.gguf", "text_encoders", "qwen.gguf"},
        {"te-llama-mmproj.gguf", "text_encoders", "qwen-mmproj-F16.gguf"},
        {"vvae-comfy.safetensors", "vae", "v.safetensors"},
        {"avae-comfy.safetensors", "vae", "a.safetensors"},
        {"lora-peft.safetensors", "loras", "turbo.safetensors"},
    };

    (void)state;
    mkdir(root, 0700);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *dir = h3_path_join(root, files[i][1]);
        char *from = h3_strdupf(DATA "formats/samples/%s", files[i][0]);
        mkdir(dir, 0700);
        copy_file(from, dir, files[i][2]);
        free(dir);
        free(from);
    }
    must(h3_parts_find(&p, root));
    assert_non_null(strstr(p.dit, "minimax_h3_fl2va_bf16.safetensors"));
    assert_non_null(strstr(p.dit_ref, "Ref2VA-Q3_K_M.gguf"));
    assert_non_null(strstr(p.text_encoder, "qwen.gguf"));
    assert_non_null(strstr(p.mmproj, "mmproj"));
    assert_non_null(strstr(p.video_vae, "v.safetensors"));
    assert_non_null(strstr(p.audio_vae, "a.safetensors"));
    assert_non_null(strstr(p.tokenizer, "qwen.gguf"));
    assert_null(p.notes);
    { // the vision file beside the text file is read without being named
        h3_checkpoint *ck = NULL;
        must(h3_ckpt_open(&ck, p.text_encoder, H3_ROLE_TEXT_ENCODER, NULL));
        assert_true(h3_ckpt_has(ck, "model.visual.patch_embed.proj.weight"));
        h3_ckpt_close(&ck);
    }
    h3_parts_free(&p);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = h3_strdupf("%s/%s/%s", root, files[i][1], files[i][2]);
        unlink(path);
        *strrchr(path, '/') = '\0';
        rmdir(path);
        free(path);
    }
    rmdir(root);
    free(root);
}

static void test_json(void **state)
{
    json_t *j;
    char *deep = malloc(4 << 20);

    (void)state;
    assert_non_null(deep);
    must_fail(h3_json_parse(&j, "", 0, "x"), H3_E_FORMAT, "x is empty; JSON was expected");
    must_fail(h3_json_parse(&j, " \n\t", 3, "x"), H3_E_FORMAT, "x is empty but for blanks");
    must_fail(h3_json_parse(&j, "\0\0", 2, "x"), H3_E_FORMAT, "x begins with a zero byte");
    must_fail(h3_json_parse(&j, "{\n  \"a\": }", 11, "x"), H3_E_FORMAT, "(line 2, column 8)");
    must_fail(h3_json_parse(&j, "{\"a\": {\"b\": 1e999}}", 19, "x"), H3_E_FORMAT, "a > b");
    must_fail(h3_json_parse(&j, "{\"a\": 1, \"\\u0061\": 2}", 21, "x"), H3_E_FORMAT, "\"a\"");
    memset(deep, '[', 1 << 20);
    must_fail(h3_json_parse(&j, deep, 1 << 20, "x"), H3_E_FORMAT, "nested");
    for (int i = 0; i < 2 << 20; i++)
        memcpy(deep + 2 * i, "1,", 2);
    deep[0] = '[';
    deep[(4 << 20) - 1] = ']';
    must_fail(h3_json_parse(&j, deep, 4 << 20, "x"), H3_E_FORMAT, "values");
    free(deep);
    deep = malloc(20 << 20); // a header may be padded, and long with what a user interface put in
    assert_non_null(deep);
    memset(deep, ' ', 20 << 20);
    memcpy(deep, "{\"a\": 1", 7);
    deep[(20 << 20) - 1] = '}';
    must(h3_json_parse(&j, deep, 20 << 20, "x"));
    json_decref(j);
    free(deep);
}

/* ---- weight norm ---- */

/* The audio VAE again, every norm and direction rounded to `round` and stored as `keep`. */
static char *normed_audio(h3_dtype round, h3_dtype keep)
{
    char *path = temporary(".safetensors");
    h3_manifest *m = NULL;
    h3_writer *w = NULL;

    must(h3_manifest_open(&m, TINY "original/FL2VA/audio_vae/model.safetensors"));
    must(h3_writer_open(&w, path));
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < h3_manifest_count(m); i++) {
            const h3_entry *e = h3_manifest_at(m, i);
            const bool is_norm = strstr(e->name, ".weight_g") || strstr(e->name, ".weight_v");
            const int64_t n = (int64_t)(e->bytes / 4);
            if (k == 0) {
                must(h3_writer_declare(w, e->name, is_norm ? keep : (h3_dtype)e->dtype, e->rank,
                                       e->ne));
                continue;
            }
            if (!is_norm) {
                must(h3_writer_put(w, e->data, e->bytes));
                continue;
            }
            assert_int_equal(e->dtype, H3_F32);
            for (int64_t c = 0; c < n; c++) {
                float v;
                memcpy(&v, e->data + 4 * c, 4);
                const uint16_t h = round == H3_BF16 ? h3_f32_to_bf16(v) : h3_f32_to_f16(v);
                const float back = round == H3_BF16 ? h3_bf16_to_f32(h) : h3_f16_to_f32(h);
                if (h3_dtype_bytes(keep) == 4)
                    must(h3_writer_put(w, &back, 4));
                else
                    must(h3_writer_put(w, &h, 2));
            }
        }
        if (k == 0) must(h3_writer_begin(w));
    }
    must(h3_writer_commit(&w));
    h3_manifest_close(&m);
    return path;
}

/* Halves of a norm multiply out to what the same numbers in F32 do; integers are refused. */
static void test_norms_in_halves(void **state)
{
    static const char *const names[] = {"decoder.conv_pre.weight", "encoder.conv_pre.weight",
                                        "decoder.conv_post.weight"};
    (void)state;

    for (int k = 0; k < 2; k++) {
        const h3_dtype half = k ? H3_F16 : H3_BF16;
        char *plain = normed_audio(half, H3_F32), *small = normed_audio(half, half);
        h3_checkpoint *a = NULL, *b = NULL;
        int n_seen = 0;

        must(h3_ckpt_open(&a, plain, H3_ROLE_AUDIO_VAE, NULL));
        must(h3_ckpt_open(&b, small, H3_ROLE_AUDIO_VAE, NULL));
        for (int i = 0; i < 3; i++) {
            int rank;
            int64_t ne[8], n = 1;
            if (!h3_ckpt_shape(a, names[i], &rank, ne)) continue;
            n_seen++;
            for (int r = 0; r < rank; r++)
                n *= ne[r];
            float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
            must(h3_ckpt_floats(a, x, names[i], n));
            must(h3_ckpt_floats(b, y, names[i], n));
            assert_memory_equal(x, y, (size_t)n * 4);
            free(x);
            free(y);
        }
        assert_true(n_seen >= 2);
        h3_ckpt_close(&a);
        h3_ckpt_close(&b);
        unlink(plain);
        unlink(small);
        free(plain);
        free(small);
    }
    char *ints = normed_audio(H3_BF16, H3_I32);
    h3_checkpoint *ck = NULL;
    must_fail(h3_ckpt_open(&ck, ints, H3_ROLE_AUDIO_VAE, NULL), H3_E_SHAPE, "F32, BF16 or F16");
    h3_ckpt_close(&ck);
    unlink(ints);
    free(ints);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_crossing_blocks),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_whole_weight),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_order_override),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_convert_layouts),
        cmocka_unit_test(test_convert_pairs),
        cmocka_unit_test(test_convert_refusals),
        cmocka_unit_test(test_config_inside),
        cmocka_unit_test(test_inspect),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_no_entry),
        cmocka_unit_test(test_parts_tokenizer),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_norms_in_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
