/**
 * Bump arena: one block of memory, handed out front to back, given back by rewinding to a mark.
 *
 * An arena can be *virtual* (h3_arena_init_virtual): then it owns no memory, hands out addresses
 * that must not be touched, and only keeps the high-water mark. The counting operation table runs a
 * whole forward on a virtual arena to learn the exact scratch size of the real one.
 *
 * Allocation failure is sticky (h3_arena_failed) so that a forward can carve all its tensors and
 * check once. Under ASan, unused bytes are poisoned and every allocation has a red zone.
 */
#ifndef H3_BASE_ARENA_H
#define H3_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"

enum { H3_ARENA_ALIGN = 64 };

typedef struct h3_arena {
    unsigned char *base; ///< first byte; a fake address when virtual
    size_t size, used, peak;
    bool is_virtual, is_owner, failed;
} h3_arena;

/** Takes `bytes` (rounded up, 64-byte aligned, untouched pages) from the system. */
H3_NODISCARD h3_status h3_arena_init(h3_arena *a, size_t bytes);

/** Uses the caller's memory, e.g. device memory; `base` must be 64-byte aligned. */
void h3_arena_init_on(h3_arena *a, void *base, size_t bytes);

/** No memory at all: counts only. */
void h3_arena_init_virtual(h3_arena *a);

/** Returns the memory if the arena owns it and clears *a. Accepts a zeroed arena. */
void h3_arena_free(h3_arena *a);

/** `bytes` aligned to 64, or NULL (and failed becomes sticky) when they do not fit. */
void *h3_arena_alloc(h3_arena *a, size_t bytes);

static inline size_t h3_arena_mark(const h3_arena *a)
{
    return a->used;
}

/** Gives back everything taken since `mark` (no pointer to it may be used again). */
void h3_arena_release(h3_arena *a, size_t mark);

static inline bool h3_arena_failed(const h3_arena *a)
{
    return a->failed;
}

#endif
