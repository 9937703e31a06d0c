/** See name_table.h. At most half full, so a probe sequence always ends. */
#include "name_table.h"

#include <stdlib.h>
#include <string.h>

static size_t hash_name(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u; // FNV-1a
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return (size_t)(h ^ h >> 29);
}

/* Index of the slot that holds `name`, or of the empty one where it belongs. */
static size_t probe(const h3_name_table *t, const char *name)
{
    size_t at = hash_name(name) & (t->size - 1);
    while (t->slot[at].name && strcmp(t->slot[at].name, name) != 0)
        at = (at + 1) & (t->size - 1);
    return at;
}

int64_t h3_names_find(const h3_name_table *t, const char *name)
{
    if (!t->size) return -1;
    const h3_name_slot *s = &t->slot[probe(t, name)];
    return s->name ? (int64_t)s->value : -1;
}

static bool grow(h3_name_table *t)
{
    h3_name_table big = {.size = t->size ? 2 * t->size : 256, .n = t->n};

    big.slot = calloc(big.size, sizeof *big.slot);
    if (!big.slot) return false;
    for (size_t i = 0; i < t->size; i++)
        if (t->slot[i].name) big.slot[probe(&big, t->slot[i].name)] = t->slot[i];
    free(t->slot);
    *t = big;
    return true;
}

bool h3_names_add(h3_name_table *t, const char *name, uint32_t value)
{
    if (2 * (t->n + 1) > t->size && !grow(t)) return false;
    t->slot[probe(t, name)] = (h3_name_slot){name, value};
    t->n++;
    return true;
}

void h3_names_free(h3_name_table *t)
{
    free(t->slot);
    *t = (h3_name_table){0};
}
