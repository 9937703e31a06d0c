/** A growing array: the one allocation pattern of this room. */
#ifndef H3_TEXT_GROW_H
#define H3_TEXT_GROW_H

#include <stdlib.h>
#include <string.h>

#include "size.h"
#include "status.h"

/** Makes room for `need` elements of `bytes` each; `p` is the address of the pointer (NULL at
 * first) and *cap what it holds. At least doubles. */
static inline h3_status h3_grow(void *p, size_t *cap, size_t need, size_t bytes)
{
    size_t n = *cap < 16 ? 16 : *cap, total;
    void *old, *q;

    if (need <= *cap) return H3_OK;
    while (n < need && n <= SIZE_MAX / 2)
        n *= 2;
    memcpy(&old, p, sizeof old); // the slot is a T *, and T * is no void * to the optimiser
    if (n < need || !h3_mul_size(n, bytes, &total) || !(q = realloc(old, total)))
        return h3_fail(H3_E_NOMEM, "no memory for %zu text elements of %zu bytes", need, bytes);
    memcpy(p, &q, sizeof q);
    *cap = n;
    return H3_OK;
}

#endif
