/**
 * Streamed weights on a device with memory of its own: they pass through a few slots, and the next
 * load travels on the copy queue while this one computes.
 *
 *   host:     want(2) ......................... get(2), enqueue its products, done(2), want(3) ...
 *   copy:     [2 -> slot B]   wait until 1 is computed   [3 -> slot A]
 *   compute:  [1 in slot A]   wait until 2 is copied     [2 in slot B]
 *
 * The host never waits for the device here: two marks a slot order the queues among themselves,
 * "copied" (computing may begin) and "used" (the slot may be overwritten).
 *
 * Where the bytes come from:
 *   home     a pinned copy of the load, made at its first journey, while the budget for such lasts;
 *            then one call brings it, at the speed of the bus. Making one takes several times as
 *            long as a journey, so none is made once the host was seen to copy fast enough
 *   map      otherwise: chunk by chunk through two pinned buffers. A thread of the ring does it, so
 *            that products can be enqueued meanwhile; pages are asked for ahead of it
 *
 * On a device without a copy queue a load is uploaded when it is needed: slots, no overlap.
 */
#include "ring.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint.h"
#include "comm.h"
#include "file.h"
#include "size.h"

/* Bytes from maps until their speed is known, and the bytes a second that need no pinned copies: at
 * 14,972 rows an H200 takes 12 GB/s in 24 GiB. */
static const double ENOUGH_SEEN = 256e6, FAST_ENOUGH = 16e9;

enum { ALIGN = 256, CHUNK = 32 << 20, AHEAD = 3 * CHUNK, MAX_SLOTS = 8, MAX_HANDS = 16 };

typedef struct slot {
    void *dev;
    h3_load *load;    // what it holds or is to hold
    int copied, used; // marks
    bool is_busy;     // between get and done
    bool is_queued;   // the thread has it; guarded by the lock
    bool was_used;    // since it was filled
    bool is_new;      // nobody got it since it was sent
    uint64_t done_at; // order of the calls of done
    h3_status st;     // of the last journey
    char error[512];
} slot;

struct h3_ring {
    h3_dev *dev;
    size_t bytes; // of a slot
    int n_slots;
    slot slot[MAX_SLOTS];
    bool has_queue;
    uint64_t clock;
    void *stage[2];
    int stage_mark[2], next_stage;
    double copied, seconds; // bytes from maps, and the time that took
    /* the thread */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, filled;
    slot *queue[MAX_SLOTS];
    int n_queue;
    bool has_thread, is_over;
};

/* -------------------------------------------------------------------------------------- loads */

size_t h3_load_bytes(const h3_load *l)
{
    size_t n = 0;

    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++)
            n += h3_align_up(l->w[i]->part[k].bytes, ALIGN);
    return n;
}

h3_status h3_load_check(h3_load *l, int n_threads)
{
    for (int i = 0; i < l->n && !l->is_sound; i++)
        H3_TRY(h3_poison_check(l->w[i], n_threads));
    l->is_sound = true;
    return H3_OK;
}

void h3_load_count(h3_load *l, h3_dev *d, bool is_brought)
{
    for (int i = 0; i < l->n; i++) {
        const h3_weight *w = l->w[i];
        if (!l->is_counted) {
            d->loaded.tensors++;
            if (w->is_made)
                d->loaded.converted++;
            else
                d->loaded.direct++;
        }
        for (int k = 0; is_brought && k < w->n_parts; k++)
            d->loaded.bytes += w->part[k].bytes;
    }
    l->is_counted = true;
}

/* Calls visit(part, offset in a slot) for every part until one fails. */
typedef h3_status (*visit_fn)(h3_ring *r, slot *s, h3_weight_part *p, size_t offset);

static h3_status visit(h3_ring *r, slot *s, visit_fn fn)
{
    const h3_load *l = s->load;
    size_t at = 0;

    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++) {
            h3_weight_part *p = &l->w[i]->part[k];
            H3_TRY(fn(r, s, p, at));
            at += h3_align_up(p->bytes, ALIGN);
        }
    return H3_OK;
}

/* --------------------------------------------------------------------------- from map to pinned */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct hand {
    pthread_t thread;
    unsigned char *to;
    const unsigned char *from;
    size_t n;
} hand;

static void *copy_slice(void *user)
{
    const hand *h = user;
    if (!h3_map_read(h->to, h->from, h->n)) memcpy(h->to, h->from, h->n);
    return NULL;
}

/* One thread reads a file of the cache at some GB/s, too slow for the bus. */
static void copy_wide(unsigned char *to, const unsigned char *from, size_t n, int threads)
{
    const size_t least = (size_t)2 << 20;
    hand h[MAX_HANDS];
    int started = 0;

    if (threads > MAX_HANDS) threads = MAX_HANDS;
    const size_t even = h3_align_up(n / (size_t)(threads > 0 ? threads : 1) + 1, 4096);
    const size_t slice = even < least ? least : even;
    size_t at = 0;
    for (; n - at > slice && started < MAX_HANDS - 1; at += slice) {
        h[started] = (hand){.to = to + at, .from = from + at, .n = slice};
        if (pthread_create(&h[started].thread, NULL, copy_slice, &h[started]) != 0) break;
        started++;
    }
    const hand own = {.to = to + at, .from = from + at, .n = n - at};
    copy_slice((void *)(uintptr_t)&own);
    for (int i = 0; i < started; i++)
        pthread_join(h[i].thread, NULL);
}

static h3_status open_stages(h3_ring *r)
{
    for (int i = 0; i < 2; i++)
        if (!r->stage[i]) H3_TRY(r->dev->pin(r->dev, &r->stage[i], CHUNK));
    return H3_OK;
}

/* A part that has no filled home: through its place there, or through the two buffers. */
static h3_status bring_part(h3_ring *r, slot *s, h3_weight_part *p, size_t offset)
{
    const unsigned char *from = p->data;
    unsigned char *to = (unsigned char *)s->dev + offset, *home = s->load->home;
    h3_dev *d = r->dev;

    if (!home) H3_TRY(open_stages(r));
    h3_map_ahead(from, p->bytes < AHEAD ? p->bytes : AHEAD);
    for (size_t at = 0; at < p->bytes; at += CHUNK) {
        const size_t n = p->bytes - at < CHUNK ? p->bytes - at : CHUNK;
        const int k = r->next_stage;
        unsigned char *pinned = home ? home + offset + at : r->stage[k];
        if (at + AHEAD < p->bytes)
            h3_map_ahead(from + at + AHEAD,
                         p->bytes - at - AHEAD < CHUNK ? p->bytes - at - AHEAD : CHUNK);
        if (!home) H3_TRY(d->await(d, H3_QUEUE_HOST, r->stage_mark[k]));
        const double begun = now();
        copy_wide(pinned, from + at, n, d->n_threads);
        r->seconds += now() - begun;
        r->copied += (double)n;
        H3_TRY(d->copy_in(d, to + at, pinned, n));
        if (home) continue;
        H3_TRY(d->mark(d, H3_QUEUE_COPY, r->stage_mark[k]));
        r->next_stage = 1 - k;
    }
    h3_map_done(p->data, p->bytes, d->is_from_disk);
    return H3_OK;
}

static h3_status upload_part(h3_ring *r, slot *s, h3_weight_part *p, size_t offset)
{
    h3_dev *d = r->dev;

    H3_TRY(d->upload(d, (unsigned char *)s->dev + offset, p->data, p->bytes));
    h3_map_done(p->data, p->bytes, d->is_from_disk);
    return H3_OK;
}

/* Doing without a pinned copy only costs time. */
static void take_home(h3_ring *r, h3_load *l)
{
    if (l->home || !l->may_home || l->has_no_home) return;
    if (r->copied > ENOUGH_SEEN && r->copied > FAST_ENOUGH * r->seconds) return;
    l->has_no_home = r->dev->pin(r->dev, &l->home, l->bytes) != H3_OK;
    if (l->has_no_home) l->home = NULL;
}

/* ---------------------------------------------------------------------------------- a journey */

static h3_status fill(h3_ring *r, slot *s)
{
    h3_load *l = s->load;
    h3_dev *d = r->dev;

    H3_TRY(h3_load_check(l, d->n_threads));
    if (!r->has_queue) return visit(r, s, upload_part);
    H3_TRY(d->await(d, H3_QUEUE_COPY, s->used));
    take_home(r, l);
    if (l->is_filled)
        H3_TRY(d->copy_in(d, s->dev, l->home, l->bytes));
    else
        H3_TRY(visit(r, s, bring_part));
    H3_TRY(d->mark(d, H3_QUEUE_COPY, s->copied));
    l->is_filled = l->home != NULL;
    return H3_OK;
}

/* With what to say about it: the error text is that of a thread. */
static void fill_and_note(h3_ring *r, slot *s)
{
    const h3_status st = fill(r, s);

    s->st = st;
    if (st != H3_OK) snprintf(s->error, sizeof s->error, "%s", h3_error());
}

static void *work(void *user)
{
    h3_ring *r = user;

    pthread_mutex_lock(&r->lock);
    for (;;) {
        if (r->n_queue == 0) {
            if (r->is_over) break;
            pthread_cond_wait(&r->wake, &r->lock);
            continue;
        }
        slot *s = r->queue[0];
        pthread_mutex_unlock(&r->lock);
        fill_and_note(r, s);
        pthread_mutex_lock(&r->lock);
        memmove(r->queue, r->queue + 1, (size_t)(--r->n_queue) * sizeof *r->queue);
        s->is_queued = false;
        pthread_cond_broadcast(&r->filled);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static bool start_thread(h3_ring *r)
{
    if (!r->has_thread) r->has_thread = pthread_create(&r->thread, NULL, work, r) == 0;
    return r->has_thread;
}

/* Sends a load on its way. What only takes a call is done here and now. */
static void send(h3_ring *r, slot *s, h3_load *l)
{
    s->load = l;
    s->was_used = false;
    s->is_new = true;
    s->st = H3_OK;
    pthread_mutex_lock(&r->lock);
    const bool is_now = !r->has_queue || (r->n_queue == 0 && l->is_filled) || !start_thread(r);
    if (!is_now) {
        s->is_queued = true;
        r->queue[r->n_queue++] = s;
        pthread_cond_signal(&r->wake);
    }
    pthread_mutex_unlock(&r->lock);
    if (is_now) fill_and_note(r, s);
}

/* The thread may wait for the device, and the device for a rank that is gone: whoever waits for the
 * thread listens to the others meanwhile. */
static h3_status wait_for(h3_ring *r, const slot *s)
{
    h3_status st = H3_OK;

    pthread_mutex_lock(&r->lock);
    while (st == H3_OK && s->is_queued) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 20000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&r->filled, &r->lock, &soon);
        if (s->is_queued) st = h3_comm_watch(r->dev->comm);
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* -------------------------------------------------------------------------------------- slots */

static slot *slot_of(h3_ring *r, const h3_load *l)
{
    for (int i = 0; i < r->n_slots; i++)
        if (r->slot[i].load == l) return &r->slot[i];
    return NULL;
}

static bool take_marks(h3_dev *d, int *a, int *b)
{
    int *const to[2] = {a, b};
    int n = 0;

    for (int i = 0; i < H3_DEV_MARKS && n < 2; i++)
        if (!(d->marks_taken >> i & 1)) *to[n++] = i;
    if (n < 2) return false;
    d->marks_taken |= (uint64_t)1 << *a | (uint64_t)1 << *b;
    return true;
}

static void give_marks(h3_dev *d, int a, int b)
{
    d->marks_taken &= ~((uint64_t)1 << a | (uint64_t)1 << b);
}

static h3_status make_slot(h3_ring *r, slot *s)
{
    if (s->dev) return H3_OK;
    return r->dev->alloc(r->dev, &s->dev, r->bytes);
}

/* The slot that may be overwritten: an empty one, else the one used last, whose load comes round
 * latest. With `any`, also one that was filled for nothing; NULL when all are busy. */
static slot *free_slot(h3_ring *r, bool any)
{
    slot *best = NULL;

    for (int i = 0; i < r->n_slots; i++) {
        slot *s = &r->slot[i];
        if (s->is_busy) continue;
        if (!s->load) return s;
        if (s->was_used && (!best || s->done_at > best->done_at)) best = s;
    }
    for (int i = 0; any && !best && i < r->n_slots; i++)
        if (!r->slot[i].is_busy) best = &r->slot[i];
    return best;
}

/* More loads at once than there are slots: one more of them rather than a failure. */
static slot *one_more(h3_ring *r)
{
    slot *s = &r->slot[r->n_slots];

    if (r->n_slots == MAX_SLOTS) return NULL;
    if (r->has_queue && !take_marks(r->dev, &s->copied, &s->used)) return NULL;
    r->n_slots++;
    return s;
}

/* -------------------------------------------------------------------------------------- doors */

h3_status h3_ring_create(h3_ring **out, h3_dev *d, size_t bytes, int n_slots)
{
    h3_ring *r = calloc(1, sizeof *r);

    *out = NULL;
    if (!r) return h3_fail(H3_E_NOMEM, "no memory for a ring of weights");
    r->dev = d;
    r->bytes = bytes;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    pthread_cond_init(&r->filled, NULL);
    r->has_queue = d->copy_in && take_marks(d, &r->stage_mark[0], &r->stage_mark[1]);
    for (int i = 0; i < n_slots && i < MAX_SLOTS; i++)
        if (!one_more(r)) break;
    *out = r;
    return r->n_slots ? H3_OK : h3_fail(H3_E_DEVICE, "%s: no marks left for a ring", d->name);
}

void h3_ring_want(h3_ring *r, h3_load *l)
{
    slot *s;

    if (!r->has_queue || slot_of(r, l)) return;
    s = free_slot(r, false);
    if (!s || make_slot(r, s) != H3_OK) return;
    send(r, s, l);
}

h3_status h3_ring_get(h3_ring *r, h3_load *l)
{
    slot *s = slot_of(r, l);
    size_t at = 0;

    if (!s) {
        s = free_slot(r, true);
        if (!s) s = one_more(r);
        if (!s) return h3_fail(H3_E_DEVICE, "%s: too many weights in use", r->dev->name);
        H3_TRY(wait_for(r, s)); // filled for nothing, perhaps still on its way
        H3_TRY(make_slot(r, s));
        send(r, s, l);
    }
    H3_TRY(wait_for(r, s));
    if (s->st != H3_OK) {
        s->load = NULL;
        return h3_fail(s->st, "%s", s->error);
    }
    if (r->has_queue) H3_TRY(r->dev->await(r->dev, H3_QUEUE_COMPUTE, s->copied));
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++) {
            h3_weight_part *p = &l->w[i]->part[k];
            p->dev = (unsigned char *)s->dev + at;
            at += h3_align_up(p->bytes, ALIGN);
        }
    s->is_busy = true;
    h3_load_count(l, r->dev, s->is_new);
    s->is_new = false;
    return H3_OK;
}

void h3_ring_done(h3_ring *r, h3_load *l)
{
    slot *s = slot_of(r, l);

    if (!s || !s->is_busy) return;
    /* A mark that cannot be set: the slot stays as it is, and the next call says what is wrong. */
    if (r->has_queue && r->dev->mark(r->dev, H3_QUEUE_COMPUTE, s->used) != H3_OK) return;
    if (!r->has_queue && h3_dev_sync(r->dev) != H3_OK) return;
    s->is_busy = false;
    s->was_used = true;
    s->done_at = ++r->clock;
}

static void finish_copies(h3_ring *r)
{
    if (h3_comm_size(r->dev->comm) > 1) (void)!h3_dev_sync(r->dev); // with an ear for the others
    for (int i = 0; i < r->n_slots; i++) {
        const slot *s = &r->slot[i];
        while (wait_for(r, s) != H3_OK) // once: nobody is listened to after a failure
            continue;
        if (r->has_queue && s->load)
            (void)!r->dev->await(r->dev, H3_QUEUE_HOST, s->copied); // nothing to do about it
    }
}

void h3_ring_evict(h3_ring *r, h3_load *l)
{
    if (!l->may_home) return;
    finish_copies(r);
    if (l->home) r->dev->unpin(r->dev, l->home);
    r->dev->pinned_used -= l->bytes;
    l->home = NULL;
    l->is_filled = l->has_no_home = l->may_home = false;
}

bool h3_ring_is_pinned(h3_ring *r, const h3_load *l)
{
    bool is_on_its_way = false;

    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n_queue; i++) // the thread writes to it
        is_on_its_way = is_on_its_way || r->queue[i]->load == l;
    const bool is_pinned = !is_on_its_way && l->is_filled;
    pthread_mutex_unlock(&r->lock);
    return is_pinned;
}

size_t h3_ring_held(const h3_ring *r)
{
    size_t n = 0;

    for (int i = 0; i < r->n_slots; i++)
        if (r->slot[i].dev) n += r->bytes;
    return n;
}

void h3_ring_free(h3_ring **rp)
{
    h3_ring *r = rp ? *rp : NULL;

    if (!r) return;
    finish_copies(r);
    if (r->has_thread) {
        pthread_mutex_lock(&r->lock);
        r->is_over = true;
        pthread_cond_signal(&r->wake);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    (void)!h3_dev_sync(r->dev); // products may still read the slots
    for (int i = 0; i < r->n_slots; i++) {
        if (r->slot[i].dev) r->dev->dealloc(r->dev, r->slot[i].dev);
        if (r->has_queue) give_marks(r->dev, r->slot[i].copied, r->slot[i].used);
    }
    for (int i = 0; i < 2; i++)
        if (r->stage[i]) r->dev->unpin(r->dev, r->stage[i]);
    if (r->has_queue) give_marks(r->dev, r->stage_mark[0], r->stage_mark[1]);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    pthread_cond_destroy(&r->filled);
    free(r);
    *rp = NULL;
}
