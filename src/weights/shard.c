/**
 * Weights spread over ranks: of every load, laid out as in a slot, rank r keeps the r-th part and
 * sends it to the others when the load's turn comes. Two slots hold whole loads: one is computed
 * with while the next one arrives.
 *
 *   kept      [part of 1] [part of 2] [part of 3] ...                   bytes / ranks
 *   slots     [1: in use] [2: arriving]                                 two loads
 *
 * So ranks whose devices are too small for the model hold it together, and the files are read once
 * altogether. On a device the part is uploaded at the load's first turn; on the host it is the
 * mapped file, of which only these pages are touched.
 *
 * Gathering is collective: every rank asks for the same loads in the same order. The bytes are
 * those of the file, wherever they come from, so results do not change.
 */
#include "shard.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "file.h"
#include "size.h"

enum { ALIGN = 256, N_SLOTS = 2 };

/* What this rank keeps of a load. */
typedef struct kept {
    const h3_load *load;
    void *own; // on the device; NULL: on a host, or not there yet
    size_t bytes;
} kept;

typedef struct slot {
    void *mem;
    h3_load *load; // what it holds or is to hold
    h3_travel travel;
    bool is_here, is_busy;
    const void **home; // where the parts' bytes lie on a host, while they are read here
} slot;

struct h3_shards {
    h3_dev *d;
    h3_comm *c;
    size_t widest;
    slot slot[N_SLOTS];
    kept *kept;
    int n_kept, cap;
};

/* Where the part of rank r begins in a load of so many bytes. */
static size_t part_at(const h3_shards *z, size_t bytes, int r)
{
    return (size_t)h3_comm_first(z->c, (int64_t)(bytes / ALIGN), r) * ALIGN;
}

static bool is_host(const h3_shards *z)
{
    return z->d->mem == H3_HOST;
}

/* ---------------------------------------------------------------------------- the own part */

/* Calls move(dst + offset, bytes) for every stretch of file in [from, to) of the load. */
typedef h3_status (*move_fn)(h3_dev *d, void *dst, const void *src, size_t bytes);

static h3_status move_on_host(h3_dev *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (!h3_map_read(dst, src, bytes)) memcpy(dst, src, bytes);
    return H3_OK;
}

/* Bytes [from, to) of the load, from its mapped files, to `dst`. */
static h3_status bring(h3_shards *z, const h3_load *l, size_t from, size_t to, void *dst)
{
    const move_fn move = is_host(z) ? move_on_host : z->d->upload;
    size_t at = 0;

    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++) {
            const h3_weight_part *p = &l->w[i]->part[k];
            const size_t begin = at > from ? at : from;
            const size_t end = at + p->bytes < to ? at + p->bytes : to;
            if (begin < end) {
                const unsigned char *src = (const unsigned char *)p->data + (begin - at);
                H3_TRY(move(z->d, (unsigned char *)dst + (begin - from), src, end - begin));
                if (!is_host(z)) h3_map_done(src, end - begin, z->d->is_from_disk);
            }
            at += h3_align_up(p->bytes, ALIGN);
        }
    return H3_OK;
}

static h3_status keep(h3_shards *z, const h3_load *l, kept **out)
{
    const int me = z->c->rank;
    const size_t from = part_at(z, l->bytes, me), to = part_at(z, l->bytes, me + 1);

    for (int i = 0; i < z->n_kept; i++)
        if (z->kept[i].load == l) {
            *out = &z->kept[i];
            return H3_OK;
        }
    if (z->n_kept == z->cap) {
        const int cap = z->cap ? 2 * z->cap : 64;
        kept *grown = realloc(z->kept, (size_t)cap * sizeof *grown);
        if (!grown) return h3_fail(H3_E_NOMEM, "no memory for a list of weights");
        z->kept = grown;
        z->cap = cap;
    }
    kept *k = *out = &z->kept[z->n_kept];
    *k = (kept){.load = l, .bytes = to - from};
    if (!is_host(z)) {
        H3_TRY(h3_load_check((h3_load *)(uintptr_t)l, z->d->n_threads));
        H3_TRY(z->d->alloc(z->d, &k->own, k->bytes));
        z->n_kept++;
        return bring(z, l, from, to, k->own);
    }
    z->n_kept++;
    return H3_OK;
}

/* The own part into its place in the slot. */
static h3_status place_own(h3_shards *z, const slot *s)
{
    const int me = z->c->rank;
    const h3_load *l = s->load;
    const size_t from = part_at(z, l->bytes, me), to = part_at(z, l->bytes, me + 1);
    unsigned char *dst = (unsigned char *)s->mem + from;
    kept *k;

    H3_TRY(keep(z, l, &k));
    if (is_host(z)) return bring(z, l, from, to, dst);
    h3_tensor a = h3_tensor_1d(dst, H3_I32, (int64_t)((to - from) / 4));
    h3_tensor b = h3_tensor_1d(k->own, H3_I32, (int64_t)((to - from) / 4));
    a.mem = b.mem = z->d->mem;
    return to > from ? z->d->ops->copy(z->d, a, b) : H3_OK;
}

/* ------------------------------------------------------------------------------- gathering */

static slot *slot_of(h3_shards *z, const h3_load *l)
{
    for (int i = 0; i < N_SLOTS; i++)
        if (z->slot[i].load == l) return &z->slot[i];
    return NULL;
}

/* An empty one, else one that holds nothing in use; NULL: all are in use. */
static slot *free_slot(h3_shards *z)
{
    slot *best = NULL;

    for (int i = 0; i < N_SLOTS; i++) {
        slot *s = &z->slot[i];
        if (!s->load) return s;
        if (!s->is_busy && (!best || s->is_here)) best = s; // rather not one that still travels
    }
    return best;
}

static h3_status settle(h3_shards *z, slot *s)
{
    if (!s->load || s->is_here) return H3_OK;
    H3_TRY(h3_comm_finish(z->c, z->d, &s->travel));
    s->is_here = true;
    return H3_OK;
}

static h3_status make(h3_shards *z, slot *s)
{
    if (s->mem) return H3_OK;
    if (!is_host(z)) return z->d->alloc(z->d, &s->mem, z->widest);
    s->mem = calloc(1, z->widest + ALIGN);
    return s->mem ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for %zu bytes of weights", z->widest);
}

/* Sends our part of the slot's load, and lets the others' come. */
static h3_status gather(h3_shards *z, slot *s)
{
    h3_message send[H3_COMM_MAX], recv[H3_COMM_MAX];
    const int P = z->c->size, me = z->c->rank;
    const size_t all = s->load->bytes;
    unsigned char *mem = s->mem;
    int n_send = 0, n_recv = 0;

    H3_TRY(place_own(z, s));
    for (int i = 1; i < P; i++) {
        const int to = (me + i) % P, from = (me + P - i) % P;
        const size_t a = part_at(z, all, me), b = part_at(z, all, me + 1);
        const size_t c = part_at(z, all, from), e = part_at(z, all, from + 1);
        if (b > a) send[n_send++] = (h3_message){to, mem + a, b - a};
        if (e > c) recv[n_recv++] = (h3_message){from, mem + c, e - c};
    }
    return h3_comm_begin(z->c, z->d, send, n_send, recv, n_recv, &s->travel);
}

static h3_status start(h3_shards *z, slot *s, h3_load *l)
{
    h3_status st;

    H3_TRY(settle(z, s));
    H3_TRY(make(z, s));
    s->load = l;
    s->is_here = false;
    st = gather(z, s);
    if (st != H3_OK) s->load = NULL;
    return st;
}

/* Parts are read where they were gathered. A host reads `data`, which is put back afterwards. */
static h3_status point_to(h3_shards *z, slot *s)
{
    const h3_load *l = s->load;
    size_t at = 0;
    int n = 0;

    for (int i = 0; i < l->n; i++)
        n += l->w[i]->n_parts;
    if (is_host(z)) {
        s->home = malloc((size_t)(n + 1) * sizeof *s->home);
        if (!s->home) return h3_fail(H3_E_NOMEM, "no memory for a list of weights");
    }
    n = 0;
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->w[i]->n_parts; k++) {
            h3_weight_part *p = &l->w[i]->part[k];
            if (is_host(z)) s->home[n++] = p->data;
            p->dev = (unsigned char *)s->mem + at;
            if (is_host(z)) p->data = p->dev;
            at += h3_align_up(p->bytes, ALIGN);
        }
    return H3_OK;
}

static void point_back(h3_shards *z, slot *s)
{
    const h3_load *l = s->load;
    int n = 0;

    if (!s->home) return;
    for (int i = 0; i < l->n; i++) {
        h3_dev_weight_free(z->d, l->w[i]);
        for (int k = 0; k < l->w[i]->n_parts; k++) {
            l->w[i]->part[k].data = s->home[n++];
            l->w[i]->part[k].dev = NULL;
        }
    }
    free(s->home);
    s->home = NULL;
}

/* ------------------------------------------------------------------------------------- doors */

h3_status h3_shards_create(h3_shards **out, h3_dev *d, size_t widest)
{
    h3_shards *z = *out = calloc(1, sizeof *z);

    if (!z) return h3_fail(H3_E_NOMEM, "no memory for weights over ranks");
    z->d = d;
    z->c = d->comm;
    z->widest = widest;
    return H3_OK;
}

h3_status h3_shards_want(h3_shards *z, h3_load *l)
{
    slot *s = slot_of(z, l) ? NULL : free_slot(z);

    return s ? start(z, s, l) : H3_OK;
}

h3_status h3_shards_get(h3_shards *z, h3_load *l)
{
    slot *s = slot_of(z, l);

    if (!s) {
        s = free_slot(z);
        if (!s) return h3_fail(H3_E_INTERNAL, "%s: too many weights in use", z->d->name);
        H3_TRY(start(z, s, l));
    }
    if (s->is_busy) return H3_OK;
    H3_TRY(settle(z, s));
    H3_TRY(point_to(z, s));
    s->is_busy = true;
    return is_host(z) ? h3_load_check(l, z->d->n_threads) : H3_OK;
}

void h3_shards_done(h3_shards *z, h3_load *l)
{
    slot *s = slot_of(z, l);

    if (!s || !s->is_busy) return;
    point_back(z, s);
    s->is_busy = false;
}

size_t h3_shards_held(const h3_shards *z)
{
    size_t n = 0;

    for (int i = 0; i < N_SLOTS; i++)
        if (z->slot[i].mem) n += z->widest;
    for (int i = 0; i < z->n_kept; i++)
        if (z->kept[i].own) n += z->kept[i].bytes;
    return n;
}

void h3_shards_free(h3_shards **zp)
{
    h3_shards *z = zp ? *zp : NULL;

    if (!z) return;
    for (int i = 0; i < N_SLOTS; i++) {
        slot *s = &z->slot[i];
        /* The last one gathered may never have been used. Ranks that part have ended it already. */
        if (z->d->comm == z->c && settle(z, s) != H3_OK) h3_comm_abandon(z->c);
        if (s->load && s->is_busy) point_back(z, s);
    }
    (void)!h3_dev_sync(z->d); // products may still read the slots
    for (int i = 0; i < N_SLOTS; i++) {
        if (is_host(z))
            free(z->slot[i].mem);
        else
            z->d->dealloc(z->d, z->slot[i].mem);
    }
    for (int i = 0; i < z->n_kept; i++)
        if (z->kept[i].own) z->d->dealloc(z->d, z->kept[i].own);
    free(z->kept);
    free(z);
    *zp = NULL;
}
