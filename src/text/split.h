/** The pre-tokenizer: cuts normalised text into the pieces that BPE works on, one at a time. */
#ifndef H3_TEXT_SPLIT_H
#define H3_TEXT_SPLIT_H

#include <stddef.h>

/** The pattern this scanner implements, exactly as tokenizer.json writes it. */
extern const char h3_split_pattern[];

/** Length in bytes (at least 1) of the first piece of the n > 0 bytes of valid UTF-8 at s. */
size_t h3_split_next(const char *s, size_t n);

#endif
