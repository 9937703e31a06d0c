/**
 * The tokenizer: UTF-8 text to token ids, byte-level BPE with Qwen2's normaliser and splitter.
 *
 *   h3_tok *t;
 *   H3_TRY(h3_tok_open(&t, "model/tokenizer"));
 *   h3_tok_ids ids = {0};
 *   h3_status st = h3_tok_encode(t, &ids, text, strlen(text)); // appends
 *   ...
 *   h3_tok_ids_free(&ids);
 *   h3_tok_free(&t);
 *
 * An open tokenizer is immutable: any number of threads may encode with it at once.
 */
#ifndef H3_TEXT_TOKENIZER_H
#define H3_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct h3_tok h3_tok;

/** A growing list of token ids. Zero-initialise; free with h3_tok_ids_free. */
typedef struct h3_tok_ids {
    int32_t *id;
    size_t n, cap;
} h3_tok_ids;

/**
 * Opens a folder holding `tokenizer.json`, or `vocab.json` and `merges.txt`; or one such file by
 * its path. A `tokenizer_config.json` in the same folder adds its tokens: those with an id keep it,
 * those named by content alone continue after the last id, in the order of the file.
 *
 * Everything is read and checked before it returns; no file stays open. H3_E_MISSING when nothing
 * is there, H3_E_FORMAT when a file is damaged or contradicts itself, H3_E_UNSUPPORTED when it asks
 * for another algorithm. The sentence names the file and the culprit. On failure *out is NULL.
 */
H3_NODISCARD h3_status h3_tok_open(h3_tok **out, const char *path);
void h3_tok_free(h3_tok **t);

/** A string of a list; UTF-8, not NUL-terminated. */
typedef struct h3_tok_text {
    const char *s;
    size_t n;
} h3_tok_text;

/** What a file that is not ours to read (a GGUF's metadata) says about its tokenizer. */
typedef struct h3_tok_lists {
    const char *path; ///< for messages
    const h3_tok_text *tokens, *merges;
    int64_t n_tokens, n_merges;
    const int32_t *types; ///< [n_tokens] ggml's: 3 control, 4 user-defined, 5 unused; or NULL
} h3_tok_lists;

/** The tokens that MiniMax-H3 adds to Qwen's, in the order of their ids: dialogue, and marks of
 *  sound that come in pairs but for the third. */
enum { H3_TOK_DIALOGUE = 7 };
extern const char *const h3_tok_dialogue[H3_TOK_DIALOGUE];

/**
 * Opens a tokenizer from lists: token i has id i, a merge is "left right", both in the byte
 * alphabet. Control and user-defined tokens are added tokens; without types, what no merge makes
 * and no byte stands for. Unused ids (padding of the vocabulary) stay free. The seven dialogue
 * tokens of MiniMax-H3, which upstream vocabularies lack, follow the last id where they are absent.
 * Everything is copied. Errors as h3_tok_open.
 */
H3_NODISCARD h3_status h3_tok_from_lists(h3_tok **out, const h3_tok_lists *lists);

/**
 * Appends the ids of `n_bytes` bytes of UTF-8 at `text` (U+0000 is an ordinary character). Nothing
 * is added and nothing is truncated; no text gives no ids. Added tokens are cut out wherever they
 * are written. H3_E_ARG for invalid UTF-8 (the sentence says at which byte), H3_E_NOMEM; then *out
 * holds what it held before.
 */
H3_NODISCARD h3_status h3_tok_encode(const h3_tok *t, h3_tok_ids *out, const char *text,
                                     size_t n_bytes);
void h3_tok_ids_free(h3_tok_ids *ids);

/** Id of the token that is written exactly so in the file (byte alphabet for ordinary tokens), or
 * -1. The way to find "<|vision_start|>". */
int32_t h3_tok_find(const h3_tok *t, const char *string);

/** One more than the largest id. Ids below it may be unused. */
int32_t h3_tok_n_ids(const h3_tok *t);

/** The token as the file writes it, `*n_bytes` bytes of UTF-8 without a NUL; NULL for an unused id.
 *  Lives as long as the tokenizer. */
const char *h3_tok_string(const h3_tok *t, int32_t id, size_t *n_bytes);

/** The bytes token `id` stands for (a fragment of UTF-8 as a rule): returns how many there are and
 *  writes at most `cap` of them. 0 for an unused id. */
size_t h3_tok_decode_piece(const h3_tok *t, int32_t id, char *buf, size_t cap);

/**
 * How the text is cut before BPE: calls `put` once for every piece in order. A positive `piece` is
 * the length in bytes of a piece after normalisation, a negative one is minus the id of an added
 * token.
 */
H3_NODISCARD h3_status h3_tok_split(const h3_tok *t, const char *text, size_t n_bytes,
                                    void (*put)(void *ctx, int64_t piece), void *ctx);

#endif
