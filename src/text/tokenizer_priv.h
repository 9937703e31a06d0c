/**
 * The tables behind h3_tok, shared by the loader (tokenizer_load.c), the encoder (tokenizer.c) and
 * the merger (bpe.c).
 */
#ifndef H3_TEXT_TOKENIZER_PRIV_H
#define H3_TEXT_TOKENIZER_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer.h"

enum {
    H3_TOK_MAX_IDS = 1 << 21, ///< the release has 151 676; bounds every table that an id indexes
    H3_TOK_ALPHABET = 0x144   ///< the byte alphabet uses code points below this one
};

typedef struct h3_tok_str {
    uint32_t at; ///< offset into pool
    uint32_t n : 31, is_added : 1;
} h3_tok_str; ///< n is 0 for an id that no token has

/** Two neighbours become one token. Its rank is its index: lower ones go first. */
typedef struct h3_tok_merge {
    int32_t left, right, id;
} h3_tok_merge;

struct h3_tok {
    char *pool; ///< all strings, as the file writes them
    size_t pool_n, pool_cap;
    h3_tok_str *str; ///< [n_ids]
    size_t n_ids, str_cap;

    uint32_t *slot; ///< [slot_mask + 1] string -> id + 1, open addressing; 0 is free
    size_t slot_mask, n_strings;

    h3_tok_merge *merge; ///< [n_merges]
    size_t n_merges, merge_cap;
    uint32_t *pair; ///< [pair_mask + 1] (left, right) -> rank + 1, open addressing; 0 is free
    size_t pair_mask;

    int32_t *added; ///< [n_added] ids of added tokens, ordered by their bytes
    size_t n_added, added_cap;
    bool starts_added[256]; ///< bytes that begin an added token

    int32_t byte_id[256];
    int16_t alphabet_byte[H3_TOK_ALPHABET]; ///< code point -> byte, -1 outside the byte alphabet
    bool takes_whole_pieces; ///< "ignore_merges": a piece that is a token stays whole
};

/** Id of a string, or -1. */
int32_t h3_tok_find_n(const h3_tok *t, const char *s, size_t n);

/** The merge of a pair, or NULL; *rank is its index. */
const h3_tok_merge *h3_tok_find_merge(const h3_tok *t, int32_t left, int32_t right, uint32_t *rank);

/** Fills an empty tokenizer from a path, see h3_tok_open; on failure the caller frees it. */
H3_NODISCARD h3_status h3_tok_load(h3_tok *t, const char *path);
/** The same from lists, see h3_tok_from_lists. */
H3_NODISCARD h3_status h3_tok_load_lists(h3_tok *t, const h3_tok_lists *lists);

#endif
