/**
 * Loads of which every rank keeps a part and gathers the rest ahead of use; see shard.c. Private to
 * the store.
 */
#ifndef H3_WEIGHTS_SHARD_H
#define H3_WEIGHTS_SHARD_H

#include "comm.h"
#include "ring.h"

typedef struct h3_shards h3_shards;

/** For loads of at most `widest` bytes, on the ranks of `d`. */
H3_NODISCARD h3_status h3_shards_create(h3_shards **out, h3_dev *d, size_t widest);
/** Waits for what is under way, and gives everything back. Accepts NULL. */
void h3_shards_free(h3_shards **z);

/* Collective, in the same order on all ranks. */

/** Begins to gather `l` when a slot is free. */
H3_NODISCARD h3_status h3_shards_want(h3_shards *z, h3_load *l);
/** `l` is there, whole, for whatever is computed from now on. */
H3_NODISCARD h3_status h3_shards_get(h3_shards *z, h3_load *l);
/** What was enqueued until now was the last to read `l`. */
void h3_shards_done(h3_shards *z, h3_load *l);

/** Bytes in slots and kept parts. */
size_t h3_shards_held(const h3_shards *z);

#endif
