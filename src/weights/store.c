/**
 * Residency; see checkpoint.h. A group is a block of a network, or the rest of it, and they are
 * used in the order of their numbers, round and round. Where everything fits:
 *
 *   mapped    host devices: a matrix is used where the file is mapped.
 *   resident  devices with their own memory: a group is uploaded the first time.
 *
 * With less than that (h3_dev.weight_budget) some groups stay and the others stream: they come when
 * they are acquired and go when they are released. Those that stay are spread evenly over the
 * order, so that bringing the others has their time too. On a host device going means that pages
 * leave the resident set and the file cache: a cache that is smaller than what goes round in it
 * would never hit. A thread reads the next streamed group while this one computes. On a device with
 * memory of its own they pass through a ring of slots (ring.h): the next one is sent on its way
 * before this one is computed with.
 *
 * A matrix that stays may be held in another form than its file's (h3_dev.form): a group is
 * uploaded as it is stored, its forms are made, and what was uploaded goes. One that streams comes
 * as stored. So does one that stays where forms are wider than files (four bits that become eight)
 * and have no room: products decode it each time, as they do one that streams.
 *
 * Over ranks a store whose groups all of them use in the same order may instead be spread over
 * them (h3_dev.spreads_weights, shard.h): each holds a part of every large group and gathers the
 * next one ahead.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint.h"
#include "file.h"
#include "ring.h"
#include "shard.h"

typedef struct group {
    h3_load load;
    bool is_ready;
    bool is_kept;   ///< stays once it is there
    bool is_stored; ///< as it is stored, although it has a form
    size_t bytes;   ///< as stored
    size_t held;    ///< on the device when it is kept: in its form
} group;

/* Reads ahead on a thread of its own: the hint blocks until the disk has taken the requests. */
typedef struct reader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    const group *next; // to be read, NULL: nothing to do
    bool is_running, is_over;
} reader;

struct h3_store {
    h3_dev *dev;
    int tag;
    struct h3_store *next; // of the device
    group *groups;
    int n_groups;
    bool is_settled; ///< bytes and is_kept are known
    bool is_streaming;
    bool goes_round; ///< it was gone through more than once
    size_t budget;   ///< for which it was settled
    int last;        ///< group acquired last
    h3_ring *ring;   ///< NULL: nothing streams, or on a host device
    int n_slots;
    int *bad;          ///< pinned: what the device found in a group, see look_there
    bool may_spread;   ///< all ranks acquire the same groups in the same order
    h3_comm *comm;     ///< for which it was settled
    h3_shards *shards; ///< NULL: nothing is spread
    reader ahead;
};

h3_status h3_store_create(h3_store **out, h3_dev *d)
{
    h3_store *s = calloc(1, sizeof *s);

    *out = s;
    if (!s) return h3_fail(H3_E_NOMEM, "no memory for a weight store");
    s->dev = d;
    s->tag = d->store_tag;
    s->next = d->stores;
    d->stores = s;
    return H3_OK;
}

void h3_store_may_spread(h3_store *s)
{
    s->may_spread = true;
}

static bool wants_spreading(const h3_store *s)
{
    return s->dev->spreads_weights && h3_comm_size(s->dev->comm) > 1 && !s->dev->is_plan;
}

/* A store that is not spread where others are is used once a request: it passes through. */
static size_t budget_of(const h3_store *s)
{
    if (!wants_spreading(s)) return s->dev->weight_budget;
    return s->may_spread ? 0 : 1;
}

static bool is_outdated(const h3_store *s)
{
    return s->budget != budget_of(s) ||
           (s->shards != NULL) != (s->may_spread && wants_spreading(s)) ||
           (s->shards && s->comm != s->dev->comm);
}

static h3_status grow_groups(h3_store *s, int n)
{
    group *g;

    if (n <= s->n_groups) return H3_OK;
    g = realloc(s->groups, (size_t)n * sizeof *g);
    if (!g) return h3_fail(H3_E_NOMEM, "no memory for a weight store");
    memset(g + s->n_groups, 0, (size_t)(n - s->n_groups) * sizeof *g);
    s->groups = g;
    s->n_groups = n;
    return H3_OK;
}

h3_status h3_store_add(h3_store *s, int index, h3_weight *w)
{
    H3_TRY(grow_groups(s, index + 1));
    h3_load *l = &s->groups[index].load;
    if (l->n == l->cap) {
        const int cap = l->cap ? 2 * l->cap : 8;
        h3_weight **grown = realloc(l->w, (size_t)cap * sizeof *grown);
        if (!grown) return h3_fail(H3_E_NOMEM, "no memory for a weight store");
        l->w = grown;
        l->cap = cap;
    }
    if (s->is_settled) h3_store_drop(s);
    l->w[l->n++] = w;
    l->is_sound = false;
    return H3_OK;
}

h3_status h3_store_add_spec(h3_store *s, int index, const h3_spec *spec, int n, void *base)
{
    for (int i = 0; i < n; i++) {
        if (spec[i].kind != H3_SPEC_MATRIX) continue;
        h3_weight *w = (h3_weight *)(void *)((char *)base + spec[i].offset);
        if (w->n_parts) H3_TRY(h3_store_add(s, index, w));
    }
    return H3_OK;
}

/* A part made by hand may name its host bytes as those of the device. */
static bool is_on_device(const h3_weight_part *p)
{
    return p->dev && p->dev != p->data;
}

static h3_status upload_part(h3_dev *d, h3_weight_part *p)
{
    if (is_on_device(p)) return H3_OK;
    p->dev = NULL;
    H3_TRY(d->alloc(d, &p->dev, p->bytes));
    H3_TRY(d->upload(d, p->dev, p->data, p->bytes));
    h3_map_done(p->data, p->bytes, false); // the host has no further use for these pages
    return H3_OK;
}

/* What is uploaded has been made into another form: it goes. */
static h3_status reform(h3_dev *d, h3_load *l)
{
    for (int i = 0; i < l->n; i++) {
        h3_weight *w = l->w[i];
        if (w->form == H3_F32) continue;
        H3_TRY(d->reform(d, w));
        for (int k = 0; k < w->n_parts; k++) {
            if (is_on_device(&w->part[k])) d->dealloc(d, w->part[k].dev);
            w->part[k].dev = NULL;
        }
    }
    return H3_OK;
}

/* A device reads its own memory a hundred times as fast as the host reads a map. */
static h3_status look_there(h3_store *s, h3_load *l)
{
    h3_dev *d = s->dev;

    if (!s->bad) H3_TRY(d->pin(d, (void **)&s->bad, sizeof *s->bad));
    *s->bad = 0;
    for (int i = 0; i < l->n; i++)
        H3_TRY(h3_poison_scan(d, l->w[i], s->bad));
    H3_TRY(h3_dev_sync(d));
    if (!*(volatile int *)s->bad) {
        l->is_sound = true;
        return H3_OK;
    }
    H3_TRY(h3_load_check(l, d->n_threads)); // says where
    l->is_sound = false;
    return h3_fail(H3_E_DEVICE, "%s: weights are other ones there than in the file", d->name);
}

/* All of a group where the device computes: kept ones, and mapped ones. */
static h3_status fetch(h3_store *s, group *g)
{
    const bool is_remote = s->dev->mem != H3_HOST && !s->dev->is_plan;
    const bool looks = is_remote && s->dev->scan && s->dev->pin && !g->load.is_sound;
    h3_load *l = &g->load;

    if (!s->dev->is_plan && !looks) H3_TRY(h3_load_check(l, s->dev->n_threads));
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++) {
            h3_weight_part *p = &l->w[i]->part[k];
            if (s->dev->mem == H3_HOST)
                p->dev = (void *)(uintptr_t)p->data;
            else
                H3_TRY(upload_part(s->dev, p));
        }
    if (looks) H3_TRY(look_there(s, l));
    if (is_remote && !g->is_stored) H3_TRY(reform(s->dev, l));
    if (!s->dev->is_plan) h3_load_count(l, s->dev, is_remote);
    g->is_ready = true;
    return H3_OK;
}

/* What a device with its own memory holds of a group goes back to it. */
static void free_group(h3_store *s, group *g)
{
    for (int k = 0; k < g->load.n; k++) {
        h3_weight *w = g->load.w[k];
        h3_dev_weight_free(s->dev, w);
        for (int j = 0; s->dev->mem != H3_HOST && j < w->n_parts; j++)
            if (is_on_device(&w->part[j])) {
                if ((!s->ring && !s->shards) || g->is_kept) s->dev->dealloc(s->dev, w->part[j].dev);
                w->part[j].dev = NULL;
            }
        w->is_passing = false;
    }
    g->is_ready = false;
}

/* ------------------------------------------------------------------------------ who stays */

static bool has_form(const group *g)
{
    for (int i = 0; i < g->load.n; i++)
        if (g->load.w[i]->form != H3_F32) return true;
    return false;
}

/* Bytes of a group that stays; as they lie in a file, where it has no form. */
static size_t held_bytes(const group *g)
{
    size_t n = 0;

    for (int i = 0; i < g->load.n; i++) {
        const h3_weight *w = g->load.w[i];
        const size_t each = h3_dtype_bytes((h3_dtype)w->form);
        for (int k = 0; k < w->n_parts; k++) {
            const h3_weight_part *p = &w->part[k];
            n += w->form == H3_F32 ? p->bytes : (size_t)(p->rows * p->cols) * each;
            if (w->form == H3_F8_E4M3) n += (size_t)p->rows * sizeof(float); // scales
        }
    }
    return n;
}

/* `n_kept` groups, evenly spread: group i stays when the line i * n_kept / n steps up. True when
 * they, as stored the one that comes last, and one streamed group in use and one on its way take no
 * more than `budget`. */
static bool try_keeping(h3_store *s, int n_kept, size_t budget)
{
    size_t kept = 0, widest = 0, on_the_way = 0;

    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        g->is_kept = (int64_t)(i + 1) * n_kept / s->n_groups > (int64_t)i * n_kept / s->n_groups;
        if (g->is_kept)
            kept += g->held;
        else if (g->bytes > widest)
            widest = g->bytes;
        if (g->is_kept && has_form(g) && g->bytes > on_the_way) on_the_way = g->bytes;
    }
    return kept + on_the_way + 2 * widest <= budget;
}

/* Everything stays, `n_formed` of the groups with wider forms in them, evenly spread, and the
 * others as stored. True when that takes no more than the budget. */
static bool try_stored(h3_store *s, int n_formed)
{
    size_t kept = 0, on_the_way = 0;

    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        const bool steps_up =
            (int64_t)(i + 1) * n_formed / s->n_groups > (int64_t)i * n_formed / s->n_groups;
        g->is_stored = g->held > g->bytes && !steps_up;
        kept += g->is_stored ? g->bytes : g->held;
        if (!g->is_stored && has_form(g) && g->bytes > on_the_way) on_the_way = g->bytes;
    }
    return kept + on_the_way <= s->budget;
}

/* What has no room in its form need not come again and again: it stays as stored where that fits.
 */
static bool keep_stored(h3_store *s)
{
    bool fits = false;

    if (s->dev->mem == H3_HOST) return false;
    for (int n = s->n_groups - 1; n >= 0 && !fits; n--)
        fits = try_stored(s, n);
    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        g->is_stored = g->is_stored && fits;
        if (!g->is_stored) continue;
        g->held = g->bytes;
        for (int k = 0; k < g->load.n; k++)
            g->load.w[k]->is_passing = true; // nothing is made of it that stays
    }
    return fits;
}

/* Two slots let one group travel while another is computed with; a third takes up unevenness when
 * the budget has room for it. */
static h3_status make_ring(h3_store *s)
{
    size_t kept = 0, widest = 0;
    int n_streamed = 0;

    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        if (g->is_kept) kept += g->held;
        if (g->is_kept || g->load.n == 0) continue;
        if (g->bytes > widest) widest = g->bytes;
        n_streamed++;
        for (int k = 0; k < g->load.n; k++)
            g->load.w[k]->is_passing = true;
        g->load.may_home = s->dev->pin && !s->dev->is_from_disk &&
                           s->dev->pinned_used + g->bytes <= s->dev->pinned_budget;
        if (g->load.may_home) s->dev->pinned_used += g->bytes;
    }
    s->n_slots = kept + 3 * widest <= s->budget ? 3 : 2;
    if (n_streamed < s->n_slots) s->n_slots = n_streamed;
    if (kept + 2 * widest > s->budget && !s->dev->copy_in) s->n_slots = 1;
    return n_streamed ? h3_ring_create(&s->ring, s->dev, widest, s->n_slots) : H3_OK;
}

/* Small groups stay as they are. */
static h3_status spread(h3_store *s)
{
    size_t widest = 0;

    for (int i = 0; i < s->n_groups; i++)
        if (s->groups[i].bytes > widest) widest = s->groups[i].bytes;
    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        g->is_kept = g->bytes < widest / 4;
        for (int k = 0; k < g->load.n && !g->is_kept; k++)
            g->load.w[k]->is_passing = true;
    }
    return h3_shards_create(&s->shards, s->dev, widest);
}

/* Once, at the first use: all groups are known then. */
static h3_status settle(h3_store *s)
{
    size_t total = 0, on_the_way = 0;

    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        g->load.bytes = g->bytes = h3_load_bytes(&g->load);
        g->held = has_form(g) ? held_bytes(g) : g->bytes;
        g->is_kept = true;
        g->is_stored = false;
        total += g->held;
        if (has_form(g) && g->bytes > on_the_way) on_the_way = g->bytes;
    }
    total += on_the_way;
    s->budget = budget_of(s);
    s->comm = s->dev->comm;
    s->is_settled = true;
    s->goes_round = false;
    s->last = -1;
    s->is_streaming = s->budget && total > s->budget;
    if (s->may_spread && wants_spreading(s)) return spread(s);
    if (s->is_streaming && keep_stored(s)) s->is_streaming = false;
    for (int n = s->n_groups - 1; s->is_streaming && n >= 0; n--)
        if (try_keeping(s, n, s->budget)) break;
    if (!s->is_streaming || s->dev->mem == H3_HOST || s->dev->is_plan) return H3_OK;
    return make_ring(s);
}

/* --------------------------------------------------------------------------- reading ahead */

static void read_group(const group *g)
{
    const h3_load *l = &g->load;

    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++)
            h3_map_ahead(l->w[i]->part[k].data, l->w[i]->part[k].bytes);
}

static void *read_ahead(void *user)
{
    reader *r = user;

    pthread_mutex_lock(&r->lock);
    while (!r->is_over) {
        const group *g = r->next;
        r->next = NULL;
        if (!g) {
            pthread_cond_wait(&r->wake, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        read_group(g);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

enum { WORTH_A_THREAD = 64 << 20 };

/* Without a thread nothing is read ahead, which only costs time. */
static void ask_for(h3_store *s, const group *g)
{
    reader *r = &s->ahead;

    if (g->bytes < WORTH_A_THREAD) return;
    if (!r->is_running) {
        pthread_mutex_init(&r->lock, NULL);
        pthread_cond_init(&r->wake, NULL);
        r->is_running = pthread_create(&r->thread, NULL, read_ahead, r) == 0;
        if (!r->is_running) return;
    }
    pthread_mutex_lock(&r->lock);
    r->next = g;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

static void stop_reader(reader *r)
{
    if (!r->is_running) return;
    pthread_mutex_lock(&r->lock);
    r->is_over = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
}

/* The group that has to be read next: the following streamed one, or, while nothing streams, the
 * following one that was not used yet. */
static const group *next_to_read(const h3_store *s, int index)
{
    for (int i = 1; i < s->n_groups; i++) {
        const group *g = &s->groups[(index + i) % s->n_groups];
        if (!g->is_kept || !g->is_ready) return g;
        if (!s->is_streaming) return NULL; // one look is enough: they come in order
    }
    return NULL;
}

/* Streamed groups that come after this one start their journey, as many as there are slots. */
static void send_next(h3_store *s, int index)
{
    int n = 1;

    for (int i = 1; i < s->n_groups && n < s->n_slots; i++) {
        const int at = (index + i) % s->n_groups;
        group *g = &s->groups[at];
        if (at < index && !s->goes_round) return; // perhaps there is no second round
        if (g->is_kept || g->load.n == 0) continue;
        h3_ring_want(s->ring, &g->load);
        n++;
    }
}

/* ------------------------------------------------------------------------------------- doors */

static h3_status acquire_streamed(h3_store *s, int index)
{
    group *g = &s->groups[index];

    if (!g->is_kept) H3_TRY(h3_ring_get(s->ring, &g->load));
    if (g->is_kept && !g->is_ready) H3_TRY(fetch(s, g));
    g->is_ready = true;
    send_next(s, index);
    return H3_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

h3_status h3_store_acquire(h3_store *s, int index)
{
    const double t0 = now();
    group *g;
    h3_status st;

    if (index < 0 || index >= s->n_groups) return H3_OK; // a group without matrices
    if (s->is_settled && is_outdated(s)) h3_store_drop(s);
    if (!s->is_settled) H3_TRY(settle(s));
    g = &s->groups[index];
    if (index < s->last) s->goes_round = true;
    s->last = index;
    if (s->shards && !g->is_kept) {
        H3_TRY(h3_shards_get(s->shards, &g->load));
        h3_load_count(&g->load, s->dev, true);
        s->dev->loaded.seconds += now() - t0;
        g->is_ready = true;
        return H3_OK;
    }
    if (g->is_ready && (g->is_kept || !s->ring)) {
        if (s->ring) send_next(s, index);
        return H3_OK;
    }
    if (s->dev->is_plan || g->load.n == 0) return fetch(s, g);
    const group *next = next_to_read(s, index);
    if (next && !(s->ring && h3_ring_is_pinned(s->ring, &next->load))) ask_for(s, next);
    st = s->ring ? acquire_streamed(s, index) : fetch(s, g);
    s->dev->loaded.seconds += now() - t0;
    return st;
}

h3_status h3_store_ahead(h3_store *s, int index)
{
    if (!s->shards) return H3_OK;
    for (int i = 1; i < s->n_groups; i++) {
        const int at = (index + i) % s->n_groups;
        group *g = &s->groups[at];
        if (at < index && !s->goes_round) return H3_OK; // perhaps there is no second round
        if (!g->is_kept && g->load.n) return h3_shards_want(s->shards, &g->load);
    }
    return H3_OK;
}

/* Pages of a streamed group leave memory; clean ones of a file, read again when they are needed. */
static void drop_pages(const group *g)
{
    const h3_load *l = &g->load;

    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++)
            h3_map_done(l->w[i]->part[k].data, l->w[i]->part[k].bytes, true);
}

void h3_store_meets(h3_store *s, int index, h3_dtype act, int64_t rows, bool is_tolerant)
{
    const h3_dev *d = s->dev->is_plan ? s->dev->plans_for : s->dev;

    if (!d || !d->form || index < 0 || index >= s->n_groups) return;
    const h3_load *l = &s->groups[index].load;
    for (int i = 0; i < l->n; i++) {
        const h3_dtype form = d->form(d, l->w[i], act, rows, is_tolerant);
        if (form == (h3_dtype)l->w[i]->form) continue;
        if (s->is_settled) h3_store_drop(s);
        l->w[i]->form = (uint8_t)form;
    }
}

int64_t h3_store_saved(const h3_store *s, size_t *on_the_way)
{
    int64_t n = 0;
    size_t widest = 0;

    for (int i = 0; i < s->n_groups; i++) {
        const group *g = &s->groups[i];
        const size_t stored = h3_load_bytes(&g->load);
        if (!has_form(g)) continue;
        n += (int64_t)stored - (int64_t)held_bytes(g);
        if (stored > widest) widest = stored;
    }
    if (on_the_way) *on_the_way = widest;
    return n;
}

bool h3_store_is_resident(const h3_store *s)
{
    if (!s->is_settled || is_outdated(s) || s->is_streaming || s->shards) return false;
    for (int i = 0; i < s->n_groups; i++) {
        const group *g = &s->groups[i];
        if (g->load.n > 0 && (g->is_stored || !(g->is_ready && (g->is_kept || !s->ring))))
            return false; // as stored: each product decodes it into a buffer that may move
    }
    return true;
}

void h3_store_release(h3_store *s, int index)
{
    group *g;

    if (index < 0 || index >= s->n_groups) return;
    g = &s->groups[index];
    if (s->shards && !g->is_kept && g->is_ready) {
        h3_shards_done(s->shards, &g->load);
        g->is_ready = false;
    }
    if (!s->is_streaming || g->is_kept || !g->is_ready || s->dev->is_plan) return;
    if (s->ring) {
        h3_ring_done(s->ring, &g->load);
        g->is_ready = false;
        return;
    }
    if (h3_dev_sync(s->dev) != H3_OK) return; // still in use, and the next call says what is wrong
    drop_pages(g);
    free_group(s, g);
}

size_t h3_store_held(const h3_store *s)
{
    size_t n = s->ring ? h3_ring_held(s->ring) : s->shards ? h3_shards_held(s->shards) : 0;

    for (int i = 0; i < s->n_groups; i++)
        if (s->groups[i].is_kept && s->groups[i].is_ready) n += s->groups[i].held;
    return n;
}

void h3_store_drop(h3_store *s)
{
    /* A budget holds for the stores of a phase one after another: what one used once must not lie
     * beside what the next one needs, even if each by itself would fit. */
    const bool has_budget = s->budget && s->dev->mem == H3_HOST && !s->dev->is_plan;

    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        if (has_budget) drop_pages(g);
        if (s->ring) h3_ring_evict(s->ring, &g->load);
    }
    if (s->dev->mem != H3_HOST) (void)!h3_dev_sync(s->dev); // products may still read what goes
    for (int i = 0; i < s->n_groups; i++)
        free_group(s, &s->groups[i]);
    h3_ring_free(&s->ring);
    h3_shards_free(&s->shards);
    s->is_settled = false;
}

size_t h3_stores_held(const h3_dev *d, int tag)
{
    size_t n = 0;

    for (const h3_store *s = d->stores; s; s = s->next)
        if (tag < 0 || s->tag == tag) n += h3_store_held(s);
    return n;
}

void h3_stores_drop(h3_dev *d)
{
    for (h3_store *s = d->stores; s; s = s->next)
        h3_store_drop(s);
}

void h3_store_free(h3_store **sp)
{
    h3_store *s = sp ? *sp : NULL;

    if (!s) return;
    for (h3_store **at = &s->dev->stores; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    stop_reader(&s->ahead);
    h3_store_drop(s);
    if (s->bad) s->dev->unpin(s->dev, s->bad);
    for (int i = 0; i < s->n_groups; i++)
        free(s->groups[i].load.w);
    free(s->groups);
    free(s);
    *sp = NULL;
}
