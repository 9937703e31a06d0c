/**
 * As much Unicode as the tokenizer needs: UTF-8, the three classes of its splitter, and NFC.
 */
#ifndef H3_TEXT_UNICODE_H
#define H3_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

/** \p{L}, \p{N} (Unicode 16.0) and \s (White_Space); every code point is of exactly one kind. */
typedef enum h3_unicode_kind {
    H3_UC_OTHER = 0,
    H3_UC_LETTER = 1,
    H3_UC_NUMBER = 2,
    H3_UC_SPACE = 3
} h3_unicode_kind;

h3_unicode_kind h3_unicode_kind_of(uint32_t cp);

/** Strict UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). On failure *bad is the offset
 * of the first byte of the broken sequence. */
bool h3_utf8_is_valid(const char *s, size_t n, size_t *bad);

/** Code point at s (valid UTF-8); *len is its length in bytes. */
uint32_t h3_utf8_get(const char *s, size_t *len);

/** Writes cp as UTF-8 and returns the length, 1..4. */
size_t h3_utf8_put(char *dst, uint32_t cp);

/** A growing byte buffer. Zero-initialise; free(b.p). */
typedef struct h3_bytes {
    char *p;
    size_t n, cap;
} h3_bytes;

H3_NODISCARD h3_status h3_bytes_add(h3_bytes *b, const char *s, size_t n);

/** Appends the NFC form (Unicode 9.0, as the reference) of n bytes of valid UTF-8. Linear in n. */
H3_NODISCARD h3_status h3_unicode_nfc(h3_bytes *out, const char *s, size_t n);

#endif
