/**
 * Residency of weights: what a store keeps, what it streams, and that a stop in between loses
 * nothing. A made-up file of equal groups stands for a model; devices are the plain one, and one
 * that pretends to have memory of its own and counts what it is given.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "writer.h"

enum { GROUPS = 12, ROWS = 64, COLS = 16384, BYTES = ROWS * COLS * 4 }; // 4 MB a group

typedef struct fixture {
    char path[64];
    h3_manifest *m;
    h3_dev *d;
    h3_store *s;
    h3_weight w[GROUPS];
} fixture;

/* ------------------------------------------------------------------ a device that counts */

static size_t n_given, n_most, n_uploads;

static h3_status give(h3_dev *d, void **out, size_t bytes)
{
    size_t *p = malloc(bytes + 64);

    (void)d;
    if (!p) return h3_fail(H3_E_NOMEM, "test");
    *p = bytes;
    n_given += bytes;
    if (n_given > n_most) n_most = n_given;
    *out = (char *)p + 64;
    return H3_OK;
}

static void take(h3_dev *d, void *p)
{
    size_t *head = (size_t *)(void *)((char *)p - 64);

    (void)d;
    n_given -= *head;
    free(head);
}

static h3_status upload(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    n_uploads++;
    memcpy(dst, src, bytes);
    return H3_OK;
}

/* ------------------------------------------------------------------------------- set up */

static void write_file(const char *path)
{
    float *row = malloc(BYTES);
    h3_writer *w = NULL;
    char name[32];

    assert_int_equal(h3_writer_open(&w, path), H3_OK);
    for (int g = 0; g < GROUPS; g++) {
        const int64_t ne[2] = {ROWS, COLS};
        snprintf(name, sizeof name, "g%02d", g);
        assert_int_equal(h3_writer_declare(w, name, H3_F32, 2, ne), H3_OK);
    }
    assert_int_equal(h3_writer_begin(w), H3_OK);
    for (int g = 0; g < GROUPS; g++) {
        for (int i = 0; i < ROWS * COLS; i++)
            row[i] = (float)(g * 1000 + i % 997);
        assert_int_equal(h3_writer_put(w, row, BYTES), H3_OK);
    }
    assert_int_equal(h3_writer_commit(&w), H3_OK);
    free(row);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    snprintf(f->path, sizeof f->path, "/tmp/h3av-store-%ld.safetensors", (long)getpid());
    write_file(f->path);
    assert_int_equal(h3_manifest_open(&f->m, f->path), H3_OK);
    assert_int_equal(h3_dev_open(&f->d, "ref", NULL), H3_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    h3_store_free(&f->s);
    h3_dev_close(&f->d);
    h3_manifest_close(&f->m);
    unlink(f->path);
    free(f);
    return 0;
}

/* A store over the file with that budget, one matrix a group. */
static void open_store(fixture *f, size_t budget, bool has_memory)
{
    h3_store_free(&f->s);
    if (has_memory) {
        f->d->mem = H3_DEVICE;
        f->d->alloc = give;
        f->d->dealloc = take;
        f->d->upload = upload;
    }
    f->d->weight_budget = budget;
    n_given = n_most = n_uploads = 0;
    assert_int_equal(h3_store_create(&f->s, f->d), H3_OK);
    for (int g = 0; g < GROUPS; g++) {
        char name[32];
        snprintf(name, sizeof name, "g%02d", g);
        const h3_entry *e = h3_manifest_find(f->m, name);
        assert_non_null(e);
        f->w[g] = (h3_weight){.rows = ROWS, .cols = COLS, .n_parts = 1};
        f->w[g].part[0] = (h3_weight_part){.data = e->data,
                                           .rows = ROWS,
                                           .cols = COLS,
                                           .row_bytes = COLS * 4,
                                           .bytes = BYTES,
                                           .global = 1};
        assert_int_equal(h3_store_add(f->s, g, &f->w[g]), H3_OK);
    }
}

/* The group is there and holds its own numbers. */
static void use(fixture *f, int g)
{
    assert_int_equal(h3_store_acquire(f->s, g), H3_OK);
    const float *p = f->w[g].part[0].dev;
    assert_non_null(p);
    for (int i = 0; i < ROWS * COLS; i += 1021)
        if (p[i] != (float)(g * 1000 + i % 997)) fail_msg("group %d, number %d", g, i);
    h3_store_release(f->s, g);
}

static void go_round(fixture *f, int times)
{
    for (int t = 0; t < times; t++)
        for (int g = 0; g < GROUPS; g++)
            use(f, g);
}

/* Mapped pages of file data in this process, bytes. */
static size_t mapped_now(void)
{
    unsigned long total, resident, shared;
    FILE *fp = fopen("/proc/self/statm", "r");

    assert_non_null(fp);
    assert_int_equal(fscanf(fp, "%lu %lu %lu", &total, &resident, &shared), 3);
    fclose(fp);
    return shared * (size_t)sysconf(_SC_PAGESIZE);
}

/* ---------------------------------------------------------------------------------- tests */

static void test_all_stays_without_a_budget(void **state)
{
    fixture *f = *state;
    const size_t before = mapped_now();

    open_store(f, 0, false);
    go_round(f, 2);
    assert_true(mapped_now() - before > (size_t)GROUPS * BYTES * 9 / 10);
}

static void test_pages_go_on_a_host(void **state)
{
    static const int in_groups[] = {2, 3, 6, 11};
    fixture *f = *state;

    for (int i = 0; i < 4; i++) {
        const size_t budget = (size_t)in_groups[i] * BYTES;
        size_t most = 0;
        open_store(f, budget, false);
        const size_t before = mapped_now();
        for (int g = 0; g < 3 * GROUPS; g++) {
            assert_int_equal(h3_store_acquire(f->s, g % GROUPS), H3_OK);
            const float *p = f->w[g % GROUPS].part[0].dev;
            for (int k = 0; k < ROWS * COLS; k += 512)
                if (p[k] != (float)(g % GROUPS * 1000 + k % 997)) fail_msg("group %d", g);
            const size_t now = mapped_now() - before;
            if (now > most) most = now;
            h3_store_release(f->s, g % GROUPS);
        }
        // pages at the ends of groups are shared with their neighbours and stay
        if (most > budget + GROUPS * (64 << 10))
            fail_msg("budget of %d groups: %.1f MB mapped", in_groups[i], (double)most / 1e6);
        if (in_groups[i] >= 4) // and what may stay does stay
            assert_true(mapped_now() - before > (size_t)(in_groups[i] - 3) * BYTES);
        h3_store_free(&f->s);
        assert_true(mapped_now() < before + GROUPS * (64 << 10)); // all goes with the store
    }
}

/* Stores that fit one by one, used one after another: the first leaves nothing beside the second.
 */
static void test_stores_share_a_budget(void **state)
{
    fixture *f = *state;
    const size_t before = mapped_now();

    open_store(f, 2 * (size_t)GROUPS * BYTES, false); // nothing streams
    go_round(f, 1);
    assert_true(mapped_now() - before > (size_t)GROUPS * BYTES * 9 / 10);
    h3_store_free(&f->s);
    assert_true(mapped_now() < before + GROUPS * (64 << 10));
}

static void test_ring_on_a_device(void **state)
{
    fixture *f = *state;

    open_store(f, 0, true);
    go_round(f, 3);
    assert_int_equal(n_uploads, GROUPS); // once each
    assert_int_equal(n_most, (size_t)GROUPS * BYTES);

    open_store(f, 5 * (size_t)BYTES, true);
    go_round(f, 3);
    assert_true(n_most <= 5 * (size_t)BYTES);
    assert_int_equal(n_uploads, 3 + 3 * (GROUPS - 3)); // three stay, the others come each time

    open_store(f, 1, true); // less than any group: one at a time, no failure
    go_round(f, 2);
    assert_true(n_most <= 2 * (size_t)BYTES);
    assert_int_equal(n_uploads, 2 * GROUPS);
    h3_store_free(&f->s);
    assert_int_equal(n_given, 0);
}

static void test_order_does_not_matter(void **state)
{
    fixture *f = *state;

    for (int is_device = 0; is_device < 2; is_device++) {
        open_store(f, 4 * (size_t)BYTES, is_device);
        for (int i = 0; i < 200; i++)
            use(f, rand() % GROUPS);
        assert_int_equal(h3_store_acquire(f->s, 3), H3_OK); // twice without a release between
        use(f, 3);
        use(f, 3);
        assert_int_equal(h3_store_acquire(f->s, GROUPS + 5), H3_OK); // a group without matrices
        h3_store_release(f->s, GROUPS + 5);
        h3_store_release(f->s, -1);
    }
}

/* Heap memory between maps: hints must not touch it (one of them would clear it). */
static void test_heap_is_left_alone(void **state)
{
    fixture *f = *state;
    float *heap = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(heap != MAP_FAILED);
    for (int i = 0; i < ROWS * COLS; i++)
        heap[i] = 5000 + (float)(i % 997);
    open_store(f, 2 * (size_t)BYTES, false);
    f->w[5].part[0].data = heap;
    go_round(f, 2);
    munmap(heap, BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_stays_without_a_budget, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pages_go_on_a_host, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stores_share_a_budget, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ring_on_a_device, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order_does_not_matter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_heap_is_left_alone, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
