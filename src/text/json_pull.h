/**
 * A bounded pull parser for JSON: the caller walks the document in its own order and nothing is
 * built.
 *
 * Chosen over a tree because a released tokenizer.json holds 300 000 strings: a tree costs ten
 * times the file in memory, cannot name the token whose id is 2^64, and cannot see a key that
 * stands twice.
 *
 * The document must be valid UTF-8 (h3_pull_init checks) and stay in memory. Each call expects a
 * certain value at the cursor and fails with a sentence naming the offset; depth is limited.
 */
#ifndef H3_TEXT_JSON_PULL_H
#define H3_TEXT_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { H3_PULL_MAX_DEPTH = 64 };

typedef struct h3_pull {
    const char *begin, *at, *end;
    bool is_first; ///< of the innermost open object or array: no comma yet
    char *text;    ///< the last unescaped string
    size_t text_cap;
} h3_pull;

/** A string of the document: in place, or in the parser's buffer until the next string is read. */
typedef struct h3_pull_str {
    const char *p;
    size_t n;
} h3_pull_str;

H3_NODISCARD h3_status h3_pull_init(h3_pull *j, const char *text, size_t n);
void h3_pull_free(h3_pull *j);

/** First byte of the next value: '{' '[' '"' 't' 'f' 'n' or a digit/minus as '0'; 0 for anything
 * else. */
char h3_pull_peek(h3_pull *j);

/** Opens '{' / '['; then loop on the next two. `what` names the value in the failure. */
H3_NODISCARD h3_status h3_pull_open(h3_pull *j, char bracket, const char *what);
/** Moves to the next member and reads its key; *more false (and the object closed) at the end. */
H3_NODISCARD h3_status h3_pull_key(h3_pull *j, h3_pull_str *key, bool *more);
/** Moves to the next element; *more false (and the array closed) at the end. */
H3_NODISCARD h3_status h3_pull_item(h3_pull *j, bool *more);

H3_NODISCARD h3_status h3_pull_string(h3_pull *j, h3_pull_str *out, const char *what);
/** A number written as an integer that fits; *ok false (value skipped) for any other value. */
H3_NODISCARD h3_status h3_pull_int(h3_pull *j, int64_t *out, bool *ok);
/** true or false; *ok false (value skipped) for any other value. */
H3_NODISCARD h3_status h3_pull_bool(h3_pull *j, bool *out, bool *ok);
/** Checks and passes over one value of any kind. */
H3_NODISCARD h3_status h3_pull_skip(h3_pull *j);
/** Nothing but blanks may follow. */
H3_NODISCARD h3_status h3_pull_finish(h3_pull *j);

bool h3_pull_is(h3_pull_str s, const char *literal);

#endif
