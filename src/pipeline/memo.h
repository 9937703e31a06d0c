/**
 * Results that an engine remembers between requests (keep_loaded): prompt embeddings and the
 * latents of conditions, which cost a network each and often stay while the seed or the steps
 * change.
 *
 * A key covers everything that went into a result: the weights' identity, settings, and every
 * byte of the input. Only the last result of each place is remembered.
 */
#ifndef H3_PIPELINE_MEMO_H
#define H3_PIPELINE_MEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct h3_memo_key {
    uint64_t a, b; ///< two hashes with nothing in common
} h3_memo_key;

typedef struct h3_memo {
    h3_memo_key key;
    void *data; ///< malloc'd, NULL: nothing is remembered
    size_t bytes;
} h3_memo;

h3_memo_key h3_memo_start(uint64_t identity);
/** Adds n bytes, and that they were n: neighbours cannot run into each other. p may be NULL if n is
 * 0.
 */
void h3_memo_mix(h3_memo_key *k, const void *p, size_t n);

/** Copies the remembered result to `out` if it is that of `key` and has `bytes`. */
bool h3_memo_recall(const h3_memo *m, h3_memo_key key, void *out, size_t bytes);
/** Remembers a copy in place of what was there; without memory for it, nothing. */
void h3_memo_keep(h3_memo *m, h3_memo_key key, const void *data, size_t bytes);
void h3_memo_free(h3_memo *m);

#endif
