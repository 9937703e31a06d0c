/**
 * Merging by rank. The symbols of a piece form a linked list; a heap holds the pairs that could
 * merge, lowest rank first and leftmost first within a rank, as the reference orders them. A merge
 * makes at most two new pairs and leaves stale ones in the heap, which are recognised when they
 * come up (the pair at that place no longer makes that token) and dropped. Searching the whole
 * piece for the best pair each time would be simpler and takes seconds for one word of 20 000
 * letters.
 */
#include "bpe.h"

#include <stdlib.h>
#include <string.h>

#include "grow.h"

typedef struct h3_bpe_symbol {
    int32_t id;         // -1 once merged into its left neighbour
    int32_t prev, next; // -1 at the ends
} symbol;

typedef struct h3_bpe_candidate {
    uint64_t key; // rank << 32 | index of the left symbol
    int32_t id;   // what the pair becomes
} candidate;

/* Slot 0 stays empty, so the children of i are 2i and 2i + 1. */
static h3_status heap_push(h3_bpe *b, candidate c)
{
    H3_TRY(h3_grow(&b->heap, &b->heap_cap, b->n_heap + 2, sizeof *b->heap));
    size_t i = ++b->n_heap;
    for (; i > 1 && b->heap[i / 2].key > c.key; i /= 2)
        b->heap[i] = b->heap[i / 2];
    b->heap[i] = c;
    return H3_OK;
}

static candidate heap_pop(h3_bpe *b)
{
    const candidate top = b->heap[1], last = b->heap[b->n_heap--];
    size_t i = 1, k;

    for (; (k = 2 * i) <= b->n_heap; i = k) {
        if (k < b->n_heap && b->heap[k + 1].key < b->heap[k].key) k++;
        if (b->heap[k].key >= last.key) break;
        b->heap[i] = b->heap[k];
    }
    b->heap[i] = last;
    return top;
}

/* Offers the pair whose left symbol is at `left`, if it merges. */
static h3_status offer(const h3_tok *t, h3_bpe *b, int32_t left)
{
    const symbol *s = b->symbol;
    const h3_tok_merge *m;
    uint32_t rank;

    if (left < 0 || s[left].next < 0) return H3_OK;
    m = h3_tok_find_merge(t, s[left].id, s[s[left].next].id, &rank);
    return m ? heap_push(b, (candidate){(uint64_t)rank << 32 | (uint32_t)left, m->id}) : H3_OK;
}

static bool is_current(const h3_tok *t, const symbol *s, candidate c)
{
    const symbol *left = &s[(uint32_t)c.key];
    const h3_tok_merge *m;
    uint32_t rank;

    if (left->id < 0 || left->next < 0) return false;
    m = h3_tok_find_merge(t, left->id, s[left->next].id, &rank);
    return m && m->id == c.id;
}

static h3_status merge_all(const h3_tok *t, h3_bpe *b)
{
    symbol *s = b->symbol;

    while (b->n_heap) {
        const candidate c = heap_pop(b);
        if (!is_current(t, s, c)) continue;
        const int32_t left = (int32_t)(uint32_t)c.key, right = s[left].next;
        s[left].id = c.id;
        s[left].next = s[right].next;
        if (s[right].next >= 0) s[s[right].next].prev = left;
        s[right].id = -1;
        H3_TRY(offer(t, b, s[left].prev));
        H3_TRY(offer(t, b, left));
    }
    return H3_OK;
}

static h3_status emit(h3_tok_ids *out, int32_t id)
{
    H3_TRY(h3_grow(&out->id, &out->cap, out->n + 1, sizeof *out->id));
    out->id[out->n++] = id;
    return H3_OK;
}

/* Id of the token that stands for exactly these bytes, or -1. Tokens are filed in the byte
 * alphabet. */
static h3_status find_whole(const h3_tok *t, h3_bytes *spelled, const char *piece, size_t n,
                            int32_t *id)
{
    spelled->n = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *s = h3_tok_string(t, t->byte_id[(unsigned char)piece[i]], &len);
        H3_TRY(h3_bytes_add(spelled, s, len));
    }
    *id = h3_tok_find_n(t, spelled->p, spelled->n);
    return H3_OK;
}

h3_status h3_bpe_encode(const h3_tok *t, h3_bpe *b, h3_tok_ids *out, const char *piece, size_t n)
{
    int32_t whole = -1;

    if (t->takes_whole_pieces) H3_TRY(find_whole(t, &b->spelled, piece, n, &whole));
    if (whole >= 0) return emit(out, whole);
    H3_TRY(h3_grow(&b->symbol, &b->symbol_cap, n, sizeof *b->symbol));
    for (size_t i = 0; i < n; i++)
        b->symbol[i] = (symbol){t->byte_id[(unsigned char)piece[i]], (int32_t)i - 1,
                                i + 1 < n ? (int32_t)i + 1 : -1};
    b->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        H3_TRY(offer(t, b, (int32_t)i));
    H3_TRY(merge_all(t, b));
    for (int32_t i = 0; i >= 0; i = b->symbol[i].next)
        H3_TRY(emit(out, b->symbol[i].id));
    return H3_OK;
}

void h3_bpe_free(h3_bpe *b)
{
    free(b->symbol);
    free(b->heap);
    free(b->spelled.p);
    *b = (h3_bpe){0};
}
