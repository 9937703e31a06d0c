/**
 * Slots of device memory that streamed weights pass through; see ring.c. Private to the store.
 */
#ifndef H3_WEIGHTS_RING_H
#define H3_WEIGHTS_RING_H

#include "dev.h"

/** Matrices that travel together. */
typedef struct h3_load {
    h3_weight **w;
    int n, cap;
    size_t bytes;     ///< as they lie in a slot (h3_load_bytes)
    bool may_home;    ///< a pinned copy may be kept: its bytes are counted in dev->pinned_used
    bool has_no_home; ///< there was no memory for one
    void *home;       ///< pinned, laid out as in a slot, or NULL
    bool is_filled;   ///< home holds the bytes
    bool is_sound;    ///< its numbers were looked at
    bool is_counted;  ///< its matrices are in dev->loaded
} h3_load;

/** Bytes of a slot that holds `l`. */
size_t h3_load_bytes(const h3_load *l);
/** H3_E_NUMERIC, once, when a matrix holds what is no number to compute with. */
H3_NODISCARD h3_status h3_load_check(h3_load *l, int n_threads);
/** Counts its matrices, once, and its bytes, each time they are `is_brought`, in d->loaded. */
void h3_load_count(h3_load *l, h3_dev *d, bool is_brought);

typedef struct h3_ring h3_ring;

/** A ring of at most `n_slots` of `bytes` each; a slot is made when it is first needed. */
H3_NODISCARD h3_status h3_ring_create(h3_ring **out, h3_dev *d, size_t bytes, int n_slots);
/** Gives the slots back; pinned copies are given back before, load by load. Accepts NULL. */
void h3_ring_free(h3_ring **r);

/** Begins to bring `l` when a slot is free; otherwise, and on failure, nothing happens. */
void h3_ring_want(h3_ring *r, h3_load *l);
/** `l` is there for whatever is computed from now on: part[].dev of its matrices points to it. */
H3_NODISCARD h3_status h3_ring_get(h3_ring *r, h3_load *l);
/** What was enqueued until now was the last to read `l`: its slot is free. */
void h3_ring_done(h3_ring *r, h3_load *l);
/** Waits for copies and gives the pinned copy of `l` back, and its place in the budget. */
void h3_ring_evict(h3_ring *r, h3_load *l);
/** True when `l` has a pinned copy: its file is not read again. */
bool h3_ring_is_pinned(h3_ring *r, const h3_load *l);
/** Bytes of device memory in slots. */
size_t h3_ring_held(const h3_ring *r);

#endif
