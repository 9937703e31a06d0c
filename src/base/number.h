/* Numbers as text with a point, whatever locale the program around the library has set. */
#ifndef H3_NUMBER_H
#define H3_NUMBER_H

#include <stddef.h>

/** strtod in the C locale. */
double h3_number_read(const char *text, char **end);
/** snprintf of one number in the C locale; `format` is as "%.6g". */
__attribute__((format(printf, 3, 0))) int h3_number_write(char *out, size_t n, const char *format,
                                                          double v);

#endif
