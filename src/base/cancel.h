/** A request to stop, set from a signal handler or another thread and polled between blocks. */
#ifndef H3_BASE_CANCEL_H
#define H3_BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct h3_cancel_flag {
    atomic_bool stop;
} h3_cancel_flag;

static inline bool h3_is_cancelled(const h3_cancel_flag *c)
{
    return c && atomic_load_explicit(&c->stop, memory_order_relaxed);
}

#endif
