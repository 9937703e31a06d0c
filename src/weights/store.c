/**
 * Residency; see checkpoint.h. Two policies behind one interface:
 *
 *   mapped    host devices: a matrix is used where the file is mapped. acquire sets part[].dev once
 *             and, for the following group, asks the system to read ahead; release does nothing.
 *   resident  devices with their own memory: acquire uploads a group's parts the first time.
 *
 * A ring that streams groups through a fixed budget replaces `resident` by overriding fetch/drop of
 * a group; nothing outside this file sees the difference.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint.h"
#include "file.h"

typedef struct group {
    h3_weight **w;
    int n, cap;
    bool is_ready;
} group;

struct h3_store {
    h3_dev *dev;
    group *groups;
    int n_groups;
};

h3_status h3_store_create(h3_store **out, h3_dev *d)
{
    h3_store *s = calloc(1, sizeof *s);

    *out = s;
    if (!s) return h3_fail(H3_E_NOMEM, "no memory for a weight store");
    s->dev = d;
    return H3_OK;
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
    group *g;

    H3_TRY(grow_groups(s, index + 1));
    g = &s->groups[index];
    if (g->n == g->cap) {
        const int cap = g->cap ? 2 * g->cap : 8;
        h3_weight **grown = realloc(g->w, (size_t)cap * sizeof *grown);
        if (!grown) return h3_fail(H3_E_NOMEM, "no memory for a weight store");
        g->w = grown;
        g->cap = cap;
    }
    g->w[g->n++] = w;
    g->is_ready = false;
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

static h3_status fetch(h3_store *s, group *g)
{
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->w[i]->n_parts; k++) {
            h3_weight_part *p = &g->w[i]->part[k];
            if (s->dev->mem == H3_HOST)
                p->dev = (void *)(uintptr_t)p->data;
            else
                H3_TRY(upload_part(s->dev, p));
        }
    g->is_ready = true;
    return H3_OK;
}

/* Starts reading the mapped pages of a group; only a hint. */
static void read_ahead(const group *g)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->w[i]->n_parts; k++) {
            const h3_weight_part *p = &g->w[i]->part[k];
            const uintptr_t a = (uintptr_t)p->data / page * page;
            if (p->bytes) madvise((void *)a, (uintptr_t)p->data + p->bytes - a, MADV_WILLNEED);
        }
}

h3_status h3_store_acquire(h3_store *s, int index)
{
    if (index < 0 || index >= s->n_groups) return H3_OK; // a group without matrices
    if (!s->groups[index].is_ready) {
        if (s->dev->mem == H3_HOST && !s->dev->is_plan && index + 1 < s->n_groups)
            read_ahead(&s->groups[index + 1]);
        H3_TRY(fetch(s, &s->groups[index]));
    }
    return H3_OK;
}

void h3_store_release(h3_store *s, int index)
{
    (void)s; // mapped and resident groups stay
    (void)index;
}

void h3_store_free(h3_store **sp)
{
    h3_store *s = sp ? *sp : NULL;

    if (!s) return;
    for (int i = 0; i < s->n_groups; i++) {
        group *g = &s->groups[i];
        for (int k = 0; k < g->n; k++) {
            h3_weight *w = g->w[k];
            h3_dev_weight_free(s->dev, w);
            for (int j = 0; s->dev->mem != H3_HOST && j < w->n_parts; j++)
                if (is_on_device(&w->part[j])) {
                    s->dev->dealloc(s->dev, w->part[j].dev);
                    w->part[j].dev = NULL;
                }
        }
        free(g->w);
    }
    free(s->groups);
    free(s);
    *sp = NULL;
}
