/** Byte-pair encoding of one piece. */
#ifndef H3_TEXT_BPE_H
#define H3_TEXT_BPE_H

#include "tokenizer_priv.h"
#include "unicode.h"

/** Working memory, kept from piece to piece. Zero-initialise; free with h3_bpe_free. */
typedef struct h3_bpe {
    struct h3_bpe_symbol *symbol;
    size_t symbol_cap;
    struct h3_bpe_candidate *heap;
    size_t n_heap, heap_cap;
    h3_bytes spelled; ///< a piece in the byte alphabet
} h3_bpe;

/** Appends the ids of the n > 0 bytes at `piece`; O(n log n). */
H3_NODISCARD h3_status h3_bpe_encode(const h3_tok *t, h3_bpe *b, h3_tok_ids *out, const char *piece,
                                     size_t n);
void h3_bpe_free(h3_bpe *b);

#endif
