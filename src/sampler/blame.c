/** Finding the first bad tensor of a forward; see blame.h. */
#include "blame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "num.h"

typedef struct h3_blame_watch {
    h3_dev *dev;
    char *name;
} h3_blame_watch;

static bool is_bad(h3_tensor t)
{
    const int64_t n = h3_numel(t);

    if (t.dtype != H3_F32 && t.dtype != H3_BF16 && t.dtype != H3_F16) return false;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(h3_num_load(t.data, t.dtype, i))) return true;
    return false;
}

static void look(void *user, const char *name, h3_tensor t)
{
    const h3_blame_watch *w = user;

    if (!is_bad(t)) return;
    const char *plain =
        strncmp(name, "step", 4) == 0 ? strchr(name, '.') : NULL; // "step3.blocks.."
    snprintf(w->name, H3_BLAME_NAME, "%s", plain ? plain + 1 : name);
    w->dev->tap = NULL; // what follows is bad because of this one
}

h3_blame h3_blame_begin(h3_dev *d, char *name)
{
    const h3_blame b = {d->tap, d->tap_user, malloc(sizeof *b.watch)};

    if (!b.watch) return b; // then nothing is found
    *b.watch = (h3_blame_watch){d, name};
    d->tap = look;
    d->tap_user = b.watch;
    return b;
}

void h3_blame_end(h3_dev *d, const h3_blame *b)
{
    d->tap = b->tap;
    d->tap_user = b->user;
    free(b->watch);
}
