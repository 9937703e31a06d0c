/**
 * Residency of weights: what a store keeps, what it streams, and that a stop in between loses
 * nothing. A made-up file of equal groups stands for a model; devices are the plain one, and one
 * that pretends to have memory of its own and counts what it is given.
 */
#include <pthread.h>
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

/* -------------------------------------------------------------------- a device with two queues
 *
 * Nothing is done when it is enqueued: the test decides which queue goes on, so that every order
 * that the marks allow can be tried. A copy reads its source and a product reads its weights only
 * when they are run. */

typedef enum what { COPY, PRODUCT, SET, WAIT } what;

typedef struct entry {
    what what;
    void *to;
    const void *from;
    size_t n;
    int mark, group;
    uint64_t version;
} entry;

enum { MAX_ENTRIES = 1 << 14 };

static struct {
    pthread_mutex_t lock;
    entry list[2][MAX_ENTRIES]; // by h3_queue
    int n[2], at[2];
    uint64_t set[H3_DEV_MARKS], reached[H3_DEV_MARKS];
    size_t pinned, most_pinned;
    int n_wrong, n_copies, n_host_waits;
    bool fails, is_greedy; // greedy: copies run as soon as they may
    unsigned seed;
} two = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool may_run(int q)
{
    const entry *e = &two.list[q][two.at[q]];
    return two.at[q] < two.n[q] && (e->what != WAIT || two.reached[e->mark] >= e->version);
}

static void run_one(int q)
{
    const entry *e = &two.list[q][two.at[q]++];
    const float *p = e->from;

    switch (e->what) {
    case COPY:
        memcpy(e->to, e->from, e->n);
        two.n_copies++;
        break;
    case PRODUCT:
        for (int i = 0; i < ROWS * COLS; i += 1021)
            if (p[i] != (float)(e->group * 1000 + i % 997)) two.n_wrong++;
        break;
    case SET:
        two.reached[e->mark] = e->version;
        break;
    case WAIT:
        break;
    }
}

/* One queue as far as it goes; how far depends on the other. */
static void run_queue(int q)
{
    while (may_run(q))
        run_one(q);
}

static void run_some(void)
{
    for (int i = rand_r(&two.seed) % 6; i > 0; i--) {
        const int q = rand_r(&two.seed) % 2;
        if (may_run(q)) run_one(q);
    }
}

static void run_all(void)
{
    pthread_mutex_lock(&two.lock);
    while (may_run(0) || may_run(1))
        for (int q = 0; q < 2; q++)
            run_queue(q);
    pthread_mutex_unlock(&two.lock);
}

static void enqueue(int q, entry e)
{
    pthread_mutex_lock(&two.lock);
    assert_true(two.n[q] < MAX_ENTRIES);
    if (e.what == SET) e.version = ++two.set[e.mark];
    if (e.what == WAIT) e.version = two.set[e.mark];
    two.list[q][two.n[q]++] = e;
    if (two.is_greedy) run_queue(H3_QUEUE_COPY);
    if (two.seed) run_some();
    pthread_mutex_unlock(&two.lock);
}

static h3_status two_pin(h3_dev *d, void **out, size_t bytes)
{
    (void)d;
    if (posix_memalign(out, 64, bytes + 64) != 0) return h3_fail(H3_E_NOMEM, "test");
    memcpy(*out, &bytes, sizeof bytes);
    *out = (char *)*out + 64;
    pthread_mutex_lock(&two.lock);
    two.pinned += bytes;
    if (two.pinned > two.most_pinned) two.most_pinned = two.pinned;
    pthread_mutex_unlock(&two.lock);
    return H3_OK;
}

static void two_unpin(h3_dev *d, void *p)
{
    size_t bytes;

    (void)d;
    run_all(); // and no copy may want it any more
    memcpy(&bytes, (char *)p - 64, sizeof bytes);
    two.pinned -= bytes;
    free((char *)p - 64);
}

static h3_status two_copy(h3_dev *d, void *to, const void *from, size_t n)
{
    (void)d;
    if (two.fails) return h3_fail(H3_E_DEVICE, "the bus is on fire");
    enqueue(H3_QUEUE_COPY, (entry){.what = COPY, .to = to, .from = from, .n = n});
    return H3_OK;
}

static h3_status two_mark(h3_dev *d, h3_queue q, int i)
{
    (void)d;
    assert_true(q != H3_QUEUE_HOST && i >= 0 && i < H3_DEV_MARKS);
    enqueue((int)q, (entry){.what = SET, .mark = i});
    return H3_OK;
}

static h3_status two_await(h3_dev *d, h3_queue q, int i)
{
    (void)d;
    if (q != H3_QUEUE_HOST) {
        enqueue((int)q, (entry){.what = WAIT, .mark = i});
        return H3_OK;
    }
    pthread_mutex_lock(&two.lock);
    two.n_host_waits++;
    while (two.reached[i] < two.set[i]) {
        assert_true(may_run(0) || may_run(1)); // else the host waits for ever
        run_queue(H3_QUEUE_COPY);
        if (two.reached[i] < two.set[i] && may_run(0)) run_one(0);
    }
    pthread_mutex_unlock(&two.lock);
    return H3_OK;
}

static h3_status two_sync(h3_dev *d)
{
    (void)d;
    run_all();
    assert_int_equal(two.at[0], two.n[0]);
    return H3_OK;
}

static void two_reset(unsigned seed, bool is_greedy)
{
    run_all();
    memset(two.n, 0, sizeof two.n);
    memset(two.at, 0, sizeof two.at);
    two.n_wrong = two.n_copies = two.n_host_waits = 0;
    two.most_pinned = two.pinned;
    two.seed = seed;
    two.is_greedy = is_greedy;
    two.fails = false;
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
    f->d->mem = H3_HOST; // no scratch of its own
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

/* Mapped pages of file data in this process, bytes. smaps_rollup counts pages; statm adds up what
 * each processor knows and may be off by a megabyte for each of many. */
static size_t mapped_now(void)
{
    unsigned long total, resident, shared, kb[2] = {0, 0};
    FILE *fp = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    int n = 0;

    while (fp && fgets(line, sizeof line, fp)) {
        n += sscanf(line, "Rss: %lu", &kb[0]) == 1;
        n += sscanf(line, "Anonymous: %lu", &kb[1]) == 1;
    }
    if (fp) fclose(fp);
    if (n == 2) return (kb[0] - kb[1]) << 10;
    fp = fopen("/proc/self/statm", "r");
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
    assert_true(n_uploads <= 3 + 3 * (GROUPS - 3)); // three stay, the others come each time,
    assert_true(n_uploads >= 3 + 9 + 2 * 7);        // but for those that are still in a slot

    open_store(f, 1, true); // less than any group: one at a time, no failure
    go_round(f, 2);
    assert_true(n_most <= 2 * (size_t)BYTES);
    assert_int_equal(n_uploads, 2 * GROUPS);
    h3_store_free(&f->s);
    assert_int_equal(n_given, 0);
}

/* Matrices are counted once, bytes each time they come. */
static void test_loading_is_counted(void **state)
{
    fixture *f = *state;
    const h3_load_stat *l = &f->d->loaded;

    open_store(f, 0, true);
    f->w[3].is_made = true;
    go_round(f, 3);
    assert_int_equal(l->tensors, GROUPS);
    assert_int_equal(l->direct, GROUPS - 1);
    assert_int_equal(l->converted, 1);
    assert_int_equal(l->bytes, (size_t)GROUPS * BYTES);
    assert_true(l->seconds > 0);

    f->d->loaded = (h3_load_stat){0};
    open_store(f, 5 * (size_t)BYTES, true);
    go_round(f, 3);
    assert_int_equal(l->tensors, GROUPS);
    assert_int_equal(l->bytes, n_uploads * (size_t)BYTES);
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

/* ---------------------------------------------------------------------------- the two queues */

static void open_queues(fixture *f, size_t budget, size_t pinned)
{
    f->d->pin = two_pin;
    f->d->unpin = two_unpin;
    f->d->copy_in = two_copy;
    f->d->mark = two_mark;
    f->d->await = two_await;
    f->d->sync = two_sync;
    f->d->n_threads = 3;
    f->d->pinned_budget = pinned;
    open_store(f, budget, true);
}

/* A product with group g is enqueued; it reads the weights when its queue gets there. */
static void product(fixture *f, int g)
{
    assert_int_equal(h3_store_acquire(f->s, g), H3_OK);
    enqueue(H3_QUEUE_COMPUTE, (entry){.what = PRODUCT, .from = f->w[g].part[0].dev, .group = g});
    h3_store_release(f->s, g);
}

enum { BATCH = 9 }; // orders tried for each setting

/* Whatever order the queues take, each product sees its own weights; from pinned copies, from the
 * map, and with room for some of the copies. */
static void test_queues_in_any_order(void **state)
{
    static const int budgets[] = {1, 2, 3, 5, 8, 11}, pinned[] = {0, 4, GROUPS};
    fixture *f = *state;

    for (int b = 0; b < 6; b++)
        for (int p = 0; p < 3; p++)
            for (unsigned order = 0; order < BATCH; order++) {
                const size_t budget = (size_t)budgets[b] * BYTES;
                two_reset(order < 2 ? 0 : order, order == 1);
                open_queues(f, budget, (size_t)pinned[p] * BYTES);
                for (int i = 0; i < 3 * GROUPS; i++)
                    product(f, i % GROUPS);
                assert_true(n_most <= (budget > 2 * BYTES ? budget : 2 * BYTES));
                assert_true(two.most_pinned <= (size_t)pinned[p] * BYTES + (64 << 20));
                if (pinned[p] == GROUPS) assert_int_equal(two.n_host_waits, 0); // never
                h3_store_free(&f->s);
                if (two.n_wrong)
                    fail_msg("budget %d, pinned %d, order %u: %d wrong numbers", budgets[b],
                             pinned[p], order, two.n_wrong);
                assert_int_equal(two.pinned, 0);
                assert_int_equal(f->d->pinned_used, 0);
                assert_int_equal(f->d->marks_taken, 0);
                assert_int_equal(n_given, 0);
            }
}

/* Groups during whose turn, before the product with them, another group's journey ended. The thread
 * that makes journeys gets `patience` half milliseconds each time. */
static int count_overlapped(fixture *f, bool has_home, int patience, int *n_streamed)
{
    int n_overlapped = 0;

    *n_streamed = 0;
    for (int i = 0; i < GROUPS; i++) {
        assert_int_equal(h3_store_acquire(f->s, i), H3_OK);
        /* The compute queue stands still before the product. The copy queue may go on. */
        bool is_there = false;
        for (int wait = 0; wait < patience && !is_there; wait++) {
            if (has_home && wait > 0) break; // it was enqueued by acquire itself
            pthread_mutex_lock(&two.lock);
            const int before = two.n_copies;
            run_queue(H3_QUEUE_COPY);
            is_there = two.n_copies > before;
            pthread_mutex_unlock(&two.lock);
            if (!is_there) usleep(500);
        }
        n_overlapped += is_there;
        enqueue(H3_QUEUE_COMPUTE,
                (entry){.what = PRODUCT, .from = f->w[i].part[0].dev, .group = i});
        h3_store_release(f->s, i);
        *n_streamed += f->w[i].is_passing;
        two_sync(f->d);
    }
    return n_overlapped;
}

/* While the product with one group has not begun, the next group's journey ends. */
static void test_copies_run_beside_products(void **state)
{
    fixture *f = *state;

    for (int has_home = 0; has_home < 2; has_home++) {
        int n_overlapped, n_streamed, patience = 1000;
        two_reset(0, false);
        open_queues(f, 4 * (size_t)BYTES, has_home ? (size_t)GROUPS * BYTES : 0);
        for (int i = 0; i < 2 * GROUPS; i++) { // the first round makes the pinned copies
            product(f, i % GROUPS);
            two_sync(f->d);
        }
        do { // one for each streamed group, whichever group is computed with meanwhile
            n_overlapped = count_overlapped(f, has_home, patience, &n_streamed);
            patience *= 8; // a busy machine may not have run the thread
        } while (n_overlapped < n_streamed && patience < 100000);
        assert_int_equal(two.n_wrong, 0);
        assert_int_equal(n_streamed, GROUPS - 2);
        assert_true(n_overlapped >= n_streamed);
        h3_store_free(&f->s);
    }
}

/* Order of the calls, where no thread takes part: the next copy is enqueued before the product. */
static void test_order_of_calls(void **state)
{
    fixture *f = *state;
    char log[512] = "";

    two_reset(0, false);
    open_queues(f, 2 * (size_t)BYTES, (size_t)GROUPS * BYTES);
    for (int i = 0; i < 2 * GROUPS; i++)
        product(f, i % GROUPS);
    two_sync(f->d);
    for (int i = 0; i < 3; i++) {
        const int copies = two.n[H3_QUEUE_COPY], products = two.n[H3_QUEUE_COMPUTE];
        assert_int_equal(h3_store_acquire(f->s, i), H3_OK);
        /* On the copy queue: wait for the slot, copy, mark. On the other: wait for this group. */
        for (int k = copies; k < two.n[H3_QUEUE_COPY]; k++)
            strcat(log, (const char *[]){"c", "p", "s", "w"}[two.list[1][k].what]);
        strcat(log, ",");
        enqueue(H3_QUEUE_COMPUTE,
                (entry){.what = PRODUCT, .from = f->w[i].part[0].dev, .group = i});
        h3_store_release(f->s, i);
        for (int k = products; k < two.n[H3_QUEUE_COMPUTE]; k++)
            strcat(log, (const char *[]){"c", "p", "s", "w"}[two.list[0][k].what]);
        strcat(log, " ");
    }
    assert_string_equal(log, "wcs,wps wcs,wps wcs,wps ");
    assert_int_equal(two.n_wrong, 0);
    h3_store_free(&f->s);
}

/* A journey that fails is told by the call that needs the weights, in the words of its cause; the
 * next try may succeed. */
static void test_failed_journeys(void **state)
{
    fixture *f = *state;

    for (int has_home = 0; has_home < 2; has_home++) {
        h3_status st = H3_OK;
        two_reset(0, true);
        open_queues(f, 3 * (size_t)BYTES, has_home ? (size_t)GROUPS * BYTES : 0);
        for (int i = 0; i < 5; i++)
            product(f, i);
        two.fails = true;
        for (int i = 5; i < GROUPS && st == H3_OK; i++) {
            st = h3_store_acquire(f->s, i);
            h3_store_release(f->s, i);
        }
        assert_int_equal(st, H3_E_DEVICE);
        assert_string_equal(h3_error(), "the bus is on fire");
        two.fails = false;
        for (int i = 0; i < 2 * GROUPS; i++)
            product(f, i % GROUPS);
        two_sync(f->d);
        assert_int_equal(two.n_wrong, 0);
        h3_store_free(&f->s);
        assert_int_equal(two.pinned, 0);
    }
}

/* Another budget: the store arranges itself anew. */
static void test_budget_changes(void **state)
{
    static const int budgets[] = {0, 4, 2, 0, 11, 7, 0};
    fixture *f = *state;

    two_reset(3, false);
    open_queues(f, 0, 4 * (size_t)BYTES);
    for (int i = 0; i < 7; i++) {
        f->d->weight_budget = (size_t)budgets[i] * BYTES;
        n_most = 0;
        for (int k = 0; k < 2 * GROUPS; k++)
            product(f, k % GROUPS);
        if (budgets[i]) assert_true(n_most <= (size_t)budgets[i] * BYTES);
        if (!budgets[i]) assert_int_equal(h3_store_held(f->s), (size_t)GROUPS * BYTES);
        assert_int_equal(h3_store_held(f->s), n_given);
        assert_int_equal(f->w[0].is_passing && f->w[1].is_passing, budgets[i] && budgets[i] < 8);
    }
    h3_store_drop(f->s);
    assert_int_equal(n_given, 0);
    product(f, 3);
    h3_store_free(&f->s);
    assert_int_equal(two.n_wrong, 0);
}

/* What is mapped can be read without touching the map; what is not is refused. Pages of the program
 * that run here for the first time are mapped as well, some tens of kilobytes at a time. */
static void test_reading_beside_the_map(void **state)
{
    fixture *f = *state;
    const h3_entry *e = h3_manifest_find(f->m, "g05");
    unsigned char *copy = malloc(BYTES), heap[64] = {1};
    const size_t before = mapped_now();

    assert_non_null(e);
    assert_true(h3_map_read(copy, e->data, BYTES));
    assert_true(mapped_now() < before + BYTES / 2);
    assert_memory_equal(copy, e->data, BYTES);
    assert_true(h3_map_read(copy, e->data + 4097, 12345));
    assert_memory_equal(copy, e->data + 4097, 12345);
    assert_false(h3_map_read(copy, heap, sizeof heap));
    free(copy);
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
        cmocka_unit_test_setup_teardown(test_loading_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order_does_not_matter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reading_beside_the_map, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_heap_is_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_queues_in_any_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copies_run_beside_products, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_order_of_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_failed_journeys, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_budget_changes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
