/**
 * Every file of tests/data/formats/hostile: the outcome that cases.tsv expects. A rejection must name
 * the file and the culprit, on one line, without control characters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "file.h"

#define DATA H3_SOURCE_DIR "/tests/data/formats/"

typedef struct hostile_case {
    char path[96], kind[16], expect[16], names[96];
} hostile_case;

static h3_status open_case(const hostile_case *c, const char *path)
{
    h3_manifest *m = NULL;
    h3_status st;

    (void)c;
    st = h3_manifest_open(&m, path);
    h3_manifest_close(&m);
    return st;
}

static int check_case(const hostile_case *c)
{
    char *path = h3_strdupf(DATA "hostile/%s", c->path);
    const h3_status st = open_case(c, path);
    const char *why = NULL;

    if (strcmp(c->expect, "accept") == 0 && st != H3_OK) why = "was rejected";
    if (strcmp(c->expect, "reject") == 0 && st == H3_OK) why = "was accepted";
    if (!why && st != H3_OK) {
        if (!strstr(h3_error(), c->path)) why = "error does not name the file";
        if (strcmp(c->names, "-") != 0 && !strstr(h3_error(), c->names))
            why = "error does not name the culprit";
        for (const char *p = h3_error(); *p; p++)
            if ((unsigned char)*p < 0x20 || *p == 0x7f) why = "error holds control characters";
    }
    if (why) fprintf(stderr, "%s: %s (%s): %s\n", c->path, why, c->names, h3_error());
    free(path);
    return why != NULL;
}

/* Runs the cases of one kind; returns how many there were. */
static int run_kind(const char *kind)
{
    FILE *fp = fopen(DATA "hostile/cases.tsv", "r");
    char line[512];
    int n = 0, failed = 0;

    assert_non_null(fp);
    while (fgets(line, sizeof line, fp)) {
        hostile_case c;
        if (sscanf(line, "%95[^\t]\t%15[^\t]\t%15[^\t]\t%95[^\t\n]", c.path, c.kind, c.expect,
                   c.names) != 4)
            continue;
        if (strcmp(c.kind, kind) != 0) continue;
        failed += check_case(&c);
        n++;
    }
    fclose(fp);
    assert_int_equal(failed, 0);
    return n;
}

static void test_safetensors(void **state)
{
    (void)state;
    assert_true(run_kind("safetensors") >= 60);
}

static void test_index(void **state)
{
    (void)state;
    assert_true(run_kind("index") >= 25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
