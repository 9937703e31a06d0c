/**
 * Tables of forms inside the program, here damaged ones: what is wrong is said with its place. The
 * real ones come from the same build rule and are read by `h3av synth list` (e2e_cli).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <h3av/h3av.h>

#include "builtin.h"

/* Instead of cmake/pipeline.cmake's. */
extern const h3_builtin_file h3_form_table[];
extern const size_t h3_form_count;
extern const h3_builtin_file h3_builtin_table[];
extern const size_t h3_builtin_count;

#define TABLE(name, text)                                                                \
    {                                                                                    \
        name, (const unsigned char *)text, (const unsigned char *)text + sizeof text - 1 \
    }
static const char none[] = "", zeros[] = "a\tBF16\t[2]\t4\nb\tBF\0\0\0\0\n",
                  shape[] = "# a comment\n\na\tBF16\t[2]\t4\nb\tBF16\n",
                  type[] = "a\tBF17\t[2]\t4\n", bytes[] = "a\tBF16\t[2]\tfour\n",
                  below[] = "a\tBF16\t[2]\t-4\n", good[] = "a\tBF16\t[2]\t4\n";
const h3_builtin_file h3_form_table[] = {
    TABLE("none", none),   TABLE("zeros", zeros), TABLE("shape", shape), TABLE("type", type),
    TABLE("bytes", bytes), TABLE("below", below), TABLE("good", good),
};
const size_t h3_form_count = sizeof h3_form_table / sizeof *h3_form_table;
const h3_builtin_file h3_builtin_table[] = {
    {"index.json", (const unsigned char *)none, (const unsigned char *)none}};
const size_t h3_builtin_count = 1;

static void says(const char *form, const char *what)
{
    assert_int_equal(h3_synth(form, 0, 1, "/nonexistent/x.safetensors"), H3_E_INTERNAL);
    if (!strstr(h3_error(), what)) fail_msg("%s: \"%s\" lacks \"%s\"", form, h3_error(), what);
}

static void test_damaged(void **state)
{
    (void)state;
    says("none", "the table of form none in this program is empty");
    says("zeros", "line 2, column 2: a zero byte in \"b\\x09BF\"");
    says("shape", "line 4, column 3: no shape in");
    says("type", "line 1, column 2: an unknown type in \"a");
    says("bytes", "line 1, column 4: no number of bytes in");
    says("below", "line 1, column 4: a number of bytes below 0 in");
    assert_int_equal(h3_synth("good", 0, 1, "/nonexistent/x.safetensors"), H3_E_MISSING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
