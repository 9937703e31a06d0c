/**
 * Tables written by tools/unicode/make_tables.py. Two Unicode versions on purpose: the reference's
 * splitter knows the letters and numbers of 16.0, its normaliser the marks and compositions of 9.0.
 */
#ifndef H3_TEXT_UNICODE_TABLES_H
#define H3_TEXT_UNICODE_TABLES_H

#include <stdint.h>

/** Runs of one class, ascending: first code point << 2 | h3_unicode_kind. A run ends where the next
 *  begins. */
extern const uint32_t h3_uc_class[];
extern const int h3_uc_n_class;

/** Pairs, ascending: first code point; (last - first) << 8 | canonical combining class. */
extern const uint32_t h3_uc_marks[];
extern const int h3_uc_n_marks; ///< numbers, not pairs

/** One step of canonical decomposition, ascending: code point << 42 | first << 21 | second (0:
 * none). Hangul syllables are computed instead. */
extern const uint64_t h3_uc_decomp[];
extern const int h3_uc_n_decomp;

/** Rows of h3_uc_decomp that are composed again, ascending by (first, second). */
extern const uint16_t h3_uc_compose[];
extern const int h3_uc_n_compose;

#endif
