/** Names to small numbers: an open-addressing table that points at the caller's strings. */
#ifndef H3_WEIGHTS_NAME_TABLE_H
#define H3_WEIGHTS_NAME_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct h3_name_slot {
    const char *name; ///< NULL: empty
    uint32_t value;
} h3_name_slot;

typedef struct h3_name_table {
    h3_name_slot *slot;
    size_t size, n;
} h3_name_table;

/** The value of `name`, or -1. A zeroed table is empty. */
int64_t h3_names_find(const h3_name_table *t, const char *name);

/** Adds a name that is not there yet; the string must outlive the table. false: no memory. */
bool h3_names_add(h3_name_table *t, const char *name, uint32_t value);

void h3_names_free(h3_name_table *t);

#endif
