/**
 * Shared by the runners of the two autoencoders: taps kept by name, limits from the table beside
 * the goldens, small conversions. Inline, because a runner is one file.
 */
#ifndef H3_TESTS_GOLDEN_VAE_H
#define H3_TESTS_GOLDEN_VAE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "file.h"
#include "golden.h"

/* ---- taps ---- */

typedef struct vae_tap {
    char *name;
    h3_tensor t; // owns its memory
} vae_tap;

typedef struct vae_taps {
    vae_tap *item;
    int n, room;
} vae_taps;

static inline h3_tensor vae_copy(h3_tensor t)
{
    const size_t bytes = (size_t)h3_numel(t) * h3_dtype_bytes((h3_dtype)t.dtype);
    void *p = malloc(bytes ? bytes : 1);

    if (!p) abort(); // a test may
    if (bytes) memcpy(p, t.data, bytes);
    t.data = p;
    return t;
}

static inline void vae_keep(void *user, const char *name, h3_tensor t)
{
    vae_taps *r = (vae_taps *)user;

    if (r->n == r->room) {
        r->room = 2 * r->room + 64;
        r->item = (vae_tap *)realloc(r->item, (size_t)r->room * sizeof *r->item);
        if (!r->item) abort();
    }
    r->item[r->n++] = (vae_tap){h3_strdupf("%s", name), vae_copy(t)};
}

static inline void vae_forget(vae_taps *r)
{
    for (int i = 0; i < r->n; i++) {
        free(r->item[i].name);
        free(r->item[i].t.data);
    }
    free(r->item);
    *r = (vae_taps){.n = 0};
}

/** The nth tensor tapped under `name`, or NULL. */
static inline const h3_tensor *vae_nth(const vae_taps *r, const char *name, int nth)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->item[i].name, name) == 0 && nth-- == 0) return &r->item[i].t;
    return NULL;
}

/** The same, but a missing one is a counted failure. */
static inline const h3_tensor *vae_seen(golden *g, const vae_taps *r, const char *name, int nth)
{
    const h3_tensor *t = vae_nth(r, name, nth);
    if (!t) golden_check(g, name, false, "the network never showed this tensor");
    return t;
}

/* ---- limits ---- */

/** Largest allowed |got - want| of a tensor: the table tolerance.tsv beside the goldens says it for
 *  the stages, `other` is for the rest. */
static inline double vae_limit(const golden *g, const char *name, double other)
{
    char *path = h3_path_join(g->folder, "tolerance.tsv"), *text = NULL, *rest, *line;
    const char *slash = strrchr(g->path, '/');
    size_t size;
    double limit = other;

    if (h3_file_read(&text, &size, path, 1 << 22) == H3_OK)
        for (rest = text; (line = strsep(&rest, "\n")) != NULL;) {
            char file[256], tensor[128];
            double rms, error, bound;
            if (sscanf(line, "%255[^\t]\t%127[^\t]\t%lf\t%lf\t%lf", file, tensor, &rms, &error,
                       &bound) == 5 &&
                strcmp(file, slash ? slash + 1 : g->path) == 0 && strcmp(tensor, name) == 0)
                limit = bound;
        }
    free(text);
    free(path);
    return limit;
}

static inline void vae_near(golden *g, const char *name, h3_tensor got, double other)
{
    golden_near(g, name, got, 0, vae_limit(g, name, other));
}

/** A tap against the golden of the same (or another) name. */
static inline void vae_tap_near(golden *g, const vae_taps *r, const char *tap, const char *name,
                                double other)
{
    const h3_tensor *t = vae_seen(g, r, tap, 0);
    if (t) vae_near(g, name, *t, other);
}

/* ---- files ---- */

static inline int64_t vae_meta(const golden *g, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(g->meta, key));
}

/** [a, b] transposed, owned by the caller. */
static inline h3_tensor vae_transposed(h3_tensor t)
{
    h3_tensor y = vae_copy(h3_view_2d(t, t.ne[1], t.ne[0]));

    for (int64_t i = 0; i < t.ne[0]; i++)
        for (int64_t j = 0; j < t.ne[1]; j++)
            ((float *)y.data)[j * t.ne[0] + i] = ((const float *)t.data)[i * t.ne[1] + j];
    return y;
}

#endif
