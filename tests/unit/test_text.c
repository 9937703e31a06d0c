/**
 * The text room: file layouts, hostile files, UTF-8 errors, the presentation's refusals, and the
 * goldens of golden_text.c on the shipped files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "file.h"
#include "golden.h"
#include "golden_read.h"
#include "prompt.h"
#include "test_models.h"
#include "tokenizer.h"
#include "unicode.h"

#define DATA    H3_SOURCE_DIR "/tests/data/"
#define HOSTILE DATA "formats/hostile/"

/* ---- helpers ----------------------------------------------------------------------------------
 */

static h3_tok *open_ok(const char *path)
{
    h3_tok *t = NULL;
    const h3_status st = h3_tok_open(&t, path);

    if (st != H3_OK) fail_msg("%s", h3_error());
    return t;
}

static void expect_ids(const h3_tok *t, const char *text, const int32_t *want, size_t n)
{
    h3_tok_ids ids = {0};

    assert_int_equal(h3_tok_encode(t, &ids, text, strlen(text)), H3_OK);
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.id[i], want[i]);
    h3_tok_ids_free(&ids);
}

#define EXPECT_IDS(t, text, ...)                                  \
    do {                                                          \
        static const int32_t want_[] = {__VA_ARGS__};             \
        expect_ids(t, text, want_, sizeof want_ / sizeof *want_); \
    } while (0)

static char *slurp(const char *path, size_t *n)
{
    h3_file *f = NULL;
    char *text;

    if (h3_file_map(&f, path) != H3_OK) fail_msg("%s", h3_error());
    text = calloc(f->size + 1, 1);
    assert_non_null(text);
    memcpy(text, f->data, f->size);
    *n = f->size;
    h3_file_unmap(&f);
    return text;
}

/* A scratch folder of this test; files are overwritten from test to test. */
static const char *scratch(void)
{
    static char dir[] = "/tmp/h3av-test-text-XXXXXX";
    static int is_made;

    if (!is_made) assert_non_null(mkdtemp(dir));
    is_made = 1;
    return dir;
}

static char *put_file(const char *name, const char *text, size_t n)
{
    char *path = h3_path_join(scratch(), name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void remove_file(const char *name)
{
    char *path = h3_path_join(scratch(), name);
    unlink(path);
    free(path);
}

/* `text` with its only `from` replaced by `to`; malloc'd. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);

    assert_non_null(at);
    return h3_strdupf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static int clean(void **state)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "vocab.json",
                                        "merges.txt", "other.json"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        remove_file(names[i]);
    return 0;
}

/* The ids of a text, decoded and joined, are its normal form. */
static void test_decode(void **state)
{
    static const char text[] = "Caf\u00e9 <|im_end|> \u4e00 \U0001f3ac 'tis\n";
    h3_tok *t = open_ok(DATA "tokenizer/tiny");
    h3_tok_ids ids = {0};
    char got[128];
    size_t n = 0;

    (void)state;
    assert_int_equal(h3_tok_encode(t, &ids, "Cafe\u0301", 6), H3_OK);
    assert_int_equal(h3_tok_encode(t, &ids, text + 5, sizeof text - 6), H3_OK); // appends
    for (size_t i = 0; i < ids.n; i++)
        n += h3_tok_decode_piece(t, ids.id[i], got + n, sizeof got - n);
    assert_int_equal(n, sizeof text - 1);
    assert_memory_equal(got, text, n);
    assert_int_equal(h3_tok_decode_piece(t, ids.id[0], NULL, 0) > 0, 1);
    assert_int_equal(h3_tok_decode_piece(t, 1 << 20, got, sizeof got), 0);
    assert_null(h3_tok_string(t, -1, &n));
    h3_tok_ids_free(&ids);
    h3_tok_free(&t);
}

/* ---- layouts and added tokens -----------------------------------------------------------------
 */

static void test_vocab_and_merges(void **state)
{
    static const char folder[] = DATA "tiny-h3/original/FL2VA/tokenizer";
    static const char text[] = "Two foxes play; it's <think>night</think> 12";
    size_t n_vocab, n_merges, n_config;
    char *vocab = slurp(DATA "tiny-h3/original/FL2VA/tokenizer/vocab.json", &n_vocab);
    char *merges = slurp(DATA "tiny-h3/original/FL2VA/tokenizer/merges.txt", &n_merges);
    char *config = slurp(DATA "tiny-h3/original/FL2VA/tokenizer/tokenizer_config.json", &n_config);
    const char *body = strncmp(merges, "#version", 8) == 0 ? strchr(merges, '\n') + 1 : merges;
    char *with = h3_strdupf("#version: 0.2\n%s", body);
    h3_tok *a = open_ok(folder);
    h3_tok_ids want = {0};

    (void)state;
    free(put_file("vocab.json", vocab, n_vocab));
    free(put_file("tokenizer_config.json", config, n_config));
    assert_int_equal(h3_tok_encode(a, &want, text, strlen(text)), H3_OK);
    for (int i = 0; i < 2; i++) {
        char *path = put_file("merges.txt", i ? body : with, strlen(i ? body : with));
        h3_tok *b = open_ok(i ? path : scratch());
        assert_int_equal(h3_tok_n_ids(b), h3_tok_n_ids(a));
        expect_ids(b, text, want.id, want.n);
        h3_tok_free(&b);
        free(path);
    }
    remove_file("merges.txt");
    h3_tok *b = NULL;
    assert_int_equal(h3_tok_open(&b, scratch()), H3_E_MISSING);
    assert_non_null(strstr(h3_error(), "merges.txt"));
    h3_tok_ids_free(&want);
    h3_tok_free(&a);
    free(with);
    free(vocab);
    free(merges);
    free(config);
}

/* The dialogue tokens of the release stand in tokenizer_config.json alone. */
static void test_config_tokens(void **state)
{
    static const char config[] =
        "{\"eos_token\": \"<|im_end|>\", \"bos_token\": null, \"additional_special_tokens\":"
        "[\"<|im_start|>\", \"<d>\", \"</d>\", {\"content\": \"<|cutoff|>\", \"special\": true}]}";
    static const char by_id[] =
        "{\"added_tokens_decoder\": {\"270\": {\"content\": \"<d>\", \"lstrip\": false}},"
        "\"extra_special_tokens\": {\"x\": \"</d>\"}}";
    size_t n;
    char *json = slurp(HOSTILE "tk-valid.json", &n);

    (void)state;
    free(put_file("tokenizer.json", json, n));
    free(put_file("tokenizer_config.json", config, sizeof config - 1));
    h3_tok *t = open_ok(scratch());
    EXPECT_IDS(t, "<d>hello</d>", 265, 259, 266);
    EXPECT_IDS(t, "<|cutoff|><|im_end|>", 267, 262);
    h3_tok_free(&t);
    free(put_file("tokenizer_config.json", by_id, sizeof by_id - 1));
    t = open_ok(scratch());
    EXPECT_IDS(t, "<d></d>", 270, 271);
    h3_tok_free(&t);
    char *alone = put_file("other.json", json, n); // not the config's tokenizer
    t = open_ok(alone);
    assert_int_equal(h3_tok_find(t, "<d>"), -1);
    h3_tok_free(&t);
    free(alone);
    free(json);
}

static void test_config_refusals(void **state)
{
    static const struct {
        const char *config, *names;
    } bad[] = {
        {"{\"added_tokens_decoder\": {\"5\": {\"content\": \"<d>\"}}}", "id 5"},
        {"{\"added_tokens_decoder\": {\"-1\": {\"content\": \"<d>\"}}}", "-1"},
        {"{\"added_tokens_decoder\": {\"9999999999\": {\"content\": \"<d>\"}}}", "<d>"},
        {"{\"added_tokens_decoder\": {\"300\": {}}}", "300"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"<d>\", \"lstrip\": true}}}",
         "lstrip"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"<|im_end|>\"}}}", "262"},
        {"{\"added_tokens_decoder\": []}", "added_tokens_decoder"},
        {"{\"additional_special_tokens\": [\"\"]}", "additional_special_tokens"},
        {"{\"additional_special_tokens\": [5]}", "additional_special_tokens"},
        {"{\"additional_special_tokens\": \"<d>\"}", "additional_special_tokens"},
        {"{\"eos_token\": {}}", "eos_token"},
        {"{\"eos_token\": \"a\", \"eos_token\": \"b\"}", "eos_token"},
        {"[]", "tokenizer_config.json"},
    };
    size_t n;
    char *json = slurp(HOSTILE "tk-valid.json", &n);

    (void)state;
    free(put_file("tokenizer.json", json, n));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        h3_tok *t = NULL;
        free(put_file("tokenizer_config.json", bad[i].config, strlen(bad[i].config)));
        assert_int_not_equal(h3_tok_open(&t, scratch()), H3_OK);
        assert_null(t);
        if (!strstr(h3_error(), bad[i].names)) fail_msg("%s: %s", bad[i].names, h3_error());
        assert_non_null(strstr(h3_error(), "tokenizer_config.json"));
    }
    free(json);
}

/* Leftmost, then longest; a beginning alone is text. */
static void test_added_matching(void **state)
{
    size_t n;
    char *json = slurp(HOSTILE "tk-valid.json", &n);
    char *more = replaced(json, "<tool_call>", "<|im_end|>h");
    char *path = put_file("other.json", more, strlen(more));
    h3_tok *t = open_ok(path);

    (void)state;
    EXPECT_IDS(t, "<|im_end|>hello", 264, 101, 257, 111); // the longer one eats the h
    EXPECT_IDS(t, "<|im_end|>e", 262, 101);
    EXPECT_IDS(t, "<|im_end|", 60, 124, 105, 109, 95, 101, 110, 100, 124);
    EXPECT_IDS(t, "<|im_<|im_end|>", 60, 124, 105, 109, 95, 262);
    EXPECT_IDS(t, "", );
    h3_tok_free(&t);
    free(path);
    free(more);
    free(json);
}

/* ignore_merges: a piece that is a token stays whole even where no merge leads to it. */
static void test_whole_pieces(void **state)
{
    size_t n;
    char *json = slurp(HOSTILE "tk-valid.json", &n);
    char *cut = replaced(json, ",[\"hell\",\"o\"]", ""),
         *path = put_file("other.json", cut, strlen(cut));
    h3_tok *t = open_ok(path);

    (void)state;
    EXPECT_IDS(t, "hello", 258, 111);
    h3_tok_free(&t);
    free(path);
    char *whole = replaced(cut, "\"dropout\"", "\"ignore_merges\":true,\"dropout\"");
    path = put_file("other.json", whole, strlen(whole));
    t = open_ok(path);
    EXPECT_IDS(t, "hello", 259);
    EXPECT_IDS(t, "hellos", 258, 111, 115);
    h3_tok_free(&t);
    free(path);
    free(whole);
    free(cut);
    free(json);
}

/* ---- hostile files ----------------------------------------------------------------------------
 */

static void check_hostile(const char *file, const char *expect, const char *names)
{
    char *path = h3_strdupf("%s/%s", test_model(DATA "formats/hostile"), file);
    h3_tok *t = NULL;
    const h3_status st = h3_tok_open(&t, path);

    if (strcmp(expect, "accept") == 0 && st != H3_OK) fail_msg("%s", h3_error());
    if (strcmp(expect, "reject") == 0 && st == H3_OK) fail_msg("%s was accepted", file);
    if (st != H3_OK) {
        assert_null(t);
        assert_non_null(strstr(h3_error(), file));
        assert_null(strchr(h3_error(), '\n'));
        if (strcmp(names, "-") != 0 && !strstr(h3_error(), names))
            fail_msg("%s: '%s' is not named: %s", file, names, h3_error());
    } else {
        h3_tok_ids ids = {0};
        assert_int_equal(h3_tok_encode(t, &ids, "hello", 5), H3_OK);
        assert_true(ids.n >= 1 && ids.n <= 5);
        h3_tok_ids_free(&ids);
    }
    h3_tok_free(&t);
    free(path);
}

static void test_hostile(void **state)
{
    size_t size;
    int n_cases = 0;
    char *text = slurp(HOSTILE "cases.tsv", &size), *save = NULL;

    (void)state;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *in = NULL, *file = strtok_r(line, "\t", &in), *kind = strtok_r(NULL, "\t", &in);
        char *expect = strtok_r(NULL, "\t", &in), *names = strtok_r(NULL, "\t", &in);
        if (!names || strcmp(kind, "tokenizer") != 0) continue;
        check_hostile(file, expect, names);
        n_cases++;
    }
    assert_true(n_cases >= 40);
    free(text);
}

/* Every cut of a valid file is refused, and no change of one byte does harm. */
static void test_damaged(void **state)
{
    size_t n, n_accepted = 0;
    char *json = slurp(HOSTILE "tk-valid.json", &n);
    uint32_t seed = 1;

    (void)state;
    for (size_t i = 0; i < n; i += 1 + i / 40) {
        char *path = put_file("other.json", json, i);
        h3_tok *t = NULL;
        assert_int_not_equal(h3_tok_open(&t, path), H3_OK);
        free(path);
    }
    for (int i = 0; i < 400; i++) {
        seed = seed * 1664525 + 1013904223;
        const size_t at = (seed >> 8) % n;
        const char old = json[at];
        json[at] = (char)(seed >> 24);
        char *path = put_file("other.json", json, n);
        h3_tok *t = NULL;
        n_accepted += h3_tok_open(&t, path) == H3_OK;
        h3_tok_free(&t);
        free(path);
        json[at] = old;
    }
    assert_in_range(n_accepted, 1, 300); // a changed flag name passes, a changed bracket must not
    free(json);
}

static void test_missing(void **state)
{
    h3_tok *t = NULL;

    (void)state;
    assert_int_equal(h3_tok_open(&t, "/no/such/folder"), H3_E_MISSING);
    assert_int_equal(h3_tok_open(&t, H3_SOURCE_DIR "/src"), H3_E_MISSING);
    assert_non_null(strstr(h3_error(), "tokenizer.json"));
    assert_null(t);
}

/* ---- text -------------------------------------------------------------------------------------
 */

static void test_bad_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *offset;
    } bad[] = {{"abc\xff", 4, "offset 3"},          {"\xc3", 1, "offset 0"},
               {"a\xc3(", 3, "offset 1"},           {"\xc0\xaf", 2, "offset 0"},
               {"\xe0\x80\x80", 3, "offset 0"},     {"\xed\xa0\x80", 3, "offset 0"},
               {"\xf4\x90\x80\x80", 4, "offset 0"}, {"12345678\x80", 9, "offset 8"},
               {"\xf0\x9f\x8e", 3, "offset 0"},     {"\xf8\x88\x80\x80\x80", 5, "offset 0"}};
    h3_tok *t = open_ok(DATA "tokenizer/tiny");
    h3_tok_ids ids = {0};

    (void)state;
    assert_int_equal(h3_tok_encode(t, &ids, "ab", 2), H3_OK);
    const size_t before = ids.n;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(h3_tok_encode(t, &ids, bad[i].text, bad[i].n), H3_E_ARG);
        if (!strstr(h3_error(), bad[i].offset)) fail_msg("%s: %s", bad[i].offset, h3_error());
        assert_int_equal(ids.n, before);
    }
    h3_tok_ids_free(&ids);
    h3_tok_free(&t);
}

/* Words, blanks and marks without end take time in proportion. The bound is two orders above what
 * it takes and one below what a quadratic search would. */
static void test_long_pieces(void **state)
{
    enum { N = 400000 };
    static const char *const units[] = {"x",  "ab",           " ",  " \n",
                                        "<|", "\u0301\u0327", "'s", "<|im_end|"};
    h3_tok *t = open_ok(DATA "tokenizer/tiny");
    char *text = malloc(N + 16);
    const clock_t start = clock();

    (void)state;
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        h3_tok_ids ids = {0};
        size_t n = 0;
        for (const size_t k = strlen(units[u]); n + k <= N; n += k)
            memcpy(text + n, units[u], k);
        assert_int_equal(h3_tok_encode(t, &ids, text, n), H3_OK);
        assert_true(ids.n > 0);
        h3_tok_ids_free(&ids);
    }
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 60);
    free(text);
    h3_tok_free(&t);
}

static void expect_nfc(const char *from, const char *to)
{
    h3_bytes out = {0};

    assert_int_equal(h3_unicode_nfc(&out, from, strlen(from)), H3_OK);
    assert_int_equal(out.n, strlen(to));
    if (out.n) assert_memory_equal(out.p, to, out.n);
    free(out.p);
}

static void test_nfc(void **state)
{
    (void)state;
    expect_nfc("", "");
    expect_nfc("e\u0301", "\u00e9");
    expect_nfc("a\u0323\u0302", "\u1ead");
    expect_nfc("a\u0302\u0323", "\u1ead");       // reordered first
    expect_nfc("a\u0327\u0301", "\u00e1\u0327"); // passes a mark of a lower class
    expect_nfc("\u212b\u2126", "\u00c5\u03a9");
    expect_nfc("\u1100\u1161\u11a8", "\uac01");
    expect_nfc("\uac00\u11a7", "\uac00\u11a7"); // U+11A7 is no final consonant
    expect_nfc("\u0958", "\u0915\u093c");       // excluded from composition
    expect_nfc("\u0344", "\u0308\u0301");
    expect_nfc("a\u1df6\u0301", "a\u1df6\u0301"); // a mark of Unicode 10: unknown to the normaliser
    expect_nfc("a\u0301\u0301", "\u00e1\u0301");
    expect_nfc("\u0301a", "\u0301a");
}

/* ---- presentation -----------------------------------------------------------------------------
 */

static void expect_refused(const h3_tok *t, h3_prompt_in in, h3_status want, const char *names)
{
    h3_prompt p;

    in.n_bytes = strlen(in.text);
    assert_int_equal(h3_prompt_build(&p, t, &in), want);
    if (!strstr(h3_error(), names)) fail_msg("'%s' is not named: %s", names, h3_error());
    assert_null(p.ids);
    assert_int_equal(p.n_rows, 0);
    h3_prompt_free(&p);
}

static h3_prompt_in request(h3_prompt_task task, const char *text, const h3_prompt_ref *refs, int n)
{
    return (h3_prompt_in){task, text, strlen(text), refs, n, 2, 2};
}

static void test_prompt_refusals(void **state)
{
    static const double times[] = {0, 0.5, 1.0};
    static const double wild[] = {0, -1, 1};
    const h3_prompt_ref image = {.kind = H3_PROMPT_IMAGE, .grid = {1, 4, 4}};
    const h3_prompt_ref odd = {.kind = H3_PROMPT_IMAGE, .grid = {1, 5, 4}};
    const h3_prompt_ref none = {.kind = H3_PROMPT_IMAGE, .grid = {1, 0, 4}};
    const h3_prompt_ref huge = {.kind = H3_PROMPT_IMAGE, .grid = {1, 1 << 30, 1 << 30}};
    const h3_prompt_ref audio = {.kind = H3_PROMPT_AUDIO};
    const h3_prompt_ref clip = {H3_PROMPT_VIDEO, false, {2, 4, 4}, times, 3};
    const h3_prompt_ref shorter = {H3_PROMPT_VIDEO, false, {1, 4, 4}, times, 3};
    const h3_prompt_ref single = {H3_PROMPT_VIDEO, false, {1, 4, 4}, times, 1};
    const h3_prompt_ref past = {H3_PROMPT_VIDEO, false, {2, 4, 4}, wild, 3};
    const h3_prompt_ref three[3] = {image, image, image};
    h3_tok *t = open_ok(DATA "tokenizer/tiny"), *bare = open_ok(HOSTILE "tk-valid.json");

    (void)state;
    expect_refused(t, request(H3_PROMPT_T2VA, "", NULL, 0), H3_E_ARG, "empty");
    expect_refused(t, request(H3_PROMPT_FL2VA, "", NULL, 0), H3_E_ARG, "empty");
    expect_refused(t, request(H3_PROMPT_T2VA, "a\xff", NULL, 0), H3_E_ARG, "offset 1");
    expect_refused(t, request(H3_PROMPT_T2VA, "a", &image, 1), H3_E_ARG, "t2va");
    expect_refused(t, request(H3_PROMPT_FL2VA, "a", three, 3), H3_E_ARG, "fl2va");
    expect_refused(t, request(H3_PROMPT_FL2VA, "a", &audio, 1), H3_E_ARG, "fl2va");
    expect_refused(t, request(H3_PROMPT_FL2VA, "a <|video_pad|>", &image, 1), H3_E_ARG,
                   "video_pad");
    expect_refused(t, request(H3_PROMPT_REF2VA, "<|image_pad|>", &clip, 1), H3_E_ARG, "image_pad");
    expect_refused(t, request(H3_PROMPT_FL2VA, "a", &odd, 1), H3_E_ARG, "reference 1");
    expect_refused(t, request(H3_PROMPT_FL2VA, "a", &none, 1), H3_E_ARG, "reference 1");
    expect_refused(t, request(H3_PROMPT_FL2VA, "a", &huge, 1), H3_E_ARG, "too large");
    expect_refused(t, request(H3_PROMPT_REF2VA, "a", &shorter, 1), H3_E_ARG, "3 sampled");
    expect_refused(t, request(H3_PROMPT_REF2VA, "a", &single, 1), H3_E_ARG, "at least 2");
    expect_refused(t, request(H3_PROMPT_REF2VA, "a", &past, 1), H3_E_ARG, "-1 seconds");
    expect_refused(bare, request(H3_PROMPT_FL2VA, "a", &image, 1), H3_E_MISSING, "vision_end");
    h3_tok_free(&t);
    h3_tok_free(&bare);
}

/* Without vision input a typed pad is an ordinary token, also after an audio reference. */
static void test_typed_pads(void **state)
{
    const h3_prompt_ref audio = {.kind = H3_PROMPT_AUDIO};
    const h3_prompt_in in = request(H3_PROMPT_REF2VA, "<|image_pad|>", &audio, 1);
    h3_tok *t = open_ok(DATA "tokenizer/tiny");
    h3_prompt p;

    (void)state;
    assert_int_equal(h3_prompt_build(&p, t, &in), H3_OK);
    assert_int_equal(p.ids[p.n_rows - 1], p.markers.image_pad);
    assert_int_equal(p.mm_types[p.n_rows - 1], 1);
    assert_int_equal(p.tags[p.n_rows - 1], 1);
    assert_int_equal(p.position_ids[p.n_rows - 1], p.n_rows - 1);
    assert_int_equal(p.n_runs, 0);
    h3_prompt_free(&p);
    h3_tok_free(&t);
}

/* Pictures and clips interleaved: runs count vision rows per kind, blocks of a clip share its grid.
 */
/* Lists as a GGUF's metadata has them: padding stays free, the dialogue tokens follow. */
static void test_lists(void **state)
{
    enum { N = 256 + 4 };
    static char bytes[256][4];
    h3_tok_text token[N];
    const h3_tok_text merge[] = {{"h i", 3}};
    int32_t type[N];
    h3_tok *t = NULL;
    h3_tok_ids ids = {0};
    uint32_t next = 0x100;

    (void)state;
    for (int b = 0; b < 256; b++) { // the byte alphabet, token b for byte b
        const bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        token[b] = (h3_tok_text){bytes[b], h3_utf8_put(bytes[b], prints ? (uint32_t)b : next++)};
        type[b] = 1;
    }
    token[256] = (h3_tok_text){"hi", 2};
    token[257] = (h3_tok_text){"<|im_end|>", 10};
    token[258] = (h3_tok_text){"[PAD258]", 8};
    token[259] = (h3_tok_text){"[PAD259]", 8};
    type[256] = 1;
    type[257] = 3;
    type[258] = type[259] = 5;
    h3_tok_lists l = {"v.gguf", token, merge, N, 1, type};
    for (int has_types = 1; has_types >= 0; has_types--) {
        const int32_t first = has_types ? 258 : 260; // padding cannot be told without types
        const int32_t want[] = {256, 257, first, 'o', first + 1};
        l.types = has_types ? type : NULL;
        assert_int_equal(h3_tok_from_lists(&t, &l), H3_OK);
        assert_int_equal(h3_tok_encode(t, &ids, "hi<|im_end|><d>o</d>", 20), H3_OK);
        assert_int_equal(ids.n, 5);
        assert_memory_equal(ids.id, want, sizeof want);
        assert_int_equal(h3_tok_find(t, "<|caption_end|>"), first + 6);
        h3_tok_ids_free(&ids);
        h3_tok_free(&t);
    }
    const struct {
        int at;
        h3_tok_text text;
        const char *names;
    } bad[] = {{256, {"", 0}, "number 256"},
               {256, {"a", 1}, "'a'"},
               {256, {"\xff", 1}, "UTF-8"},
               {'a', {"aa", 2}, "byte 0x61"}};
    l.types = type;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const h3_tok_text keep = token[bad[i].at];
        token[bad[i].at] = bad[i].text;
        assert_int_equal(h3_tok_from_lists(&t, &l), H3_E_FORMAT);
        if (!strstr(h3_error(), bad[i].names) || !strstr(h3_error(), "v.gguf"))
            fail_msg("%s: %s", bad[i].names, h3_error());
        assert_null(t);
        token[bad[i].at] = keep;
    }
    const h3_tok_text bad_merge[] = {{"h x", 3}};
    l.merges = bad_merge;
    assert_int_equal(h3_tok_from_lists(&t, &l), H3_E_FORMAT);
    assert_non_null(strstr(h3_error(), "merges"));
}

static void test_runs(void **state)
{
    static const double times[] = {0, 0.5, 1.0};
    const h3_prompt_ref refs[] = {{.kind = H3_PROMPT_IMAGE, .grid = {1, 4, 6}},
                                  {H3_PROMPT_VIDEO, true, {2, 2, 4}, times, 3},
                                  {.kind = H3_PROMPT_IMAGE, .grid = {1, 2, 2}}};
    static const int64_t vision_row[] = {0, 0, 2, 6}, n_rows[] = {6, 2, 2, 1};
    static const int32_t ref[] = {0, 1, 1, 2};
    const h3_prompt_in in = request(H3_PROMPT_REF2VA, "", refs, 3);
    h3_tok *t = open_ok(DATA "tokenizer/tiny");
    h3_prompt p;

    (void)state;
    assert_int_equal(h3_prompt_build(&p, t, &in), H3_OK);
    assert_int_equal(p.n_runs, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(p.runs[i].vision_row, vision_row[i]);
        assert_int_equal(p.runs[i].n_rows, n_rows[i]);
        assert_int_equal(p.runs[i].ref, ref[i]);
        assert_int_equal(p.ids[p.runs[i].row - 1], p.markers.vision_start);
        assert_int_equal(p.ids[p.runs[i].row + n_rows[i]], p.markers.vision_end);
    }
    assert_int_equal(p.n_image_rows, 7);
    assert_int_equal(p.n_video_rows, 4);
    assert_int_equal(p.image_grids[1][1], 2);
    assert_int_equal(p.video_grids[0][0], 2);
    h3_prompt_free(&p);
    h3_tok_free(&t);
}

/* ---- goldens ----------------------------------------------------------------------------------
 */

static void test_goldens(void **state)
{
    static const char *const files[] = {"tokenizer/tokens.jsonl",
                                        "encoder/presentation.safetensors",
                                        "encoder/case_t2va_short.safetensors",
                                        "encoder/case_t2va_long.safetensors",
                                        "encoder/case_t2va_pad_text.safetensors",
                                        "encoder/case_fl2va_both.safetensors",
                                        "encoder/case_fl2va_empty.safetensors",
                                        "encoder/case_fl2va_first.safetensors",
                                        "encoder/case_ref2va_mix.safetensors",
                                        "encoder/case_deep_fl2va.safetensors",
                                        "encoder/case_ref2va_audio_last.safetensors",
                                        "encoder/case_deep_t2va.safetensors",
                                        "encoder/case_ref2va_two_videos.safetensors",
                                        "pipeline/fl2va_22.safetensors",
                                        "pipeline/ref2va_22.safetensors"};

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = h3_strdupf("%s%s", DATA, files[i]);
        golden g = {.device = "cpu"};
        int n_kinds = 0;
        if (golden_read(&g, path) != H3_OK) fail_msg("%s", h3_error());
        for (const golden_kind *k = golden_kinds_text; k->name; k++) {
            if (!k->match(&g)) continue;
            n_kinds++;
            if (k->run(&g) != H3_OK) fail_msg("%s", h3_error());
        }
        if (g.n_failed || !g.n_compared) fail_msg("%s: %d failed", files[i], g.n_failed);
        assert_int_equal(n_kinds, 1);
        golden_free(&g);
        free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test_teardown(test_vocab_and_merges, clean),
        cmocka_unit_test_teardown(test_config_tokens, clean),
        cmocka_unit_test_teardown(test_config_refusals, clean),
        cmocka_unit_test_teardown(test_added_matching, clean),
        cmocka_unit_test_teardown(test_whole_pieces, clean),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test_teardown(test_damaged, clean),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_bad_utf8),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_prompt_refusals),
        cmocka_unit_test(test_typed_pads),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_goldens),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);

    rmdir(scratch());
    return rc;
}
