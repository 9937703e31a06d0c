/* Ends of names: what a tensor, a file or a field is called says what it is. */
#ifndef H3_SUFFIX_H
#define H3_SUFFIX_H

#include <stdbool.h>
#include <string.h>

/** Whether `s` ends with `suffix`; every text ends with "". */
static inline bool h3_ends_with(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

#endif
