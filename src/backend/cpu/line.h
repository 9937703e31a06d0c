/** Convolutions along lines with a third fewer products, see line.c. */
#ifndef H3_CPU_LINE_H
#define H3_CPU_LINE_H

#include "cpu.h"

enum { H3_CPU_LINE_SHARED = 7 << 20 }; ///< bytes of weights made for all threads at a time, about

/** Whether h3_cpu_line may take this convolution, and gains. Depends on everything but the length
 *  of the line: a piece of a sound must take the same way as the whole. */
bool ISA(h3_cpu_is_line)(h3_tensor x, const h3_weight *w, const h3_conv *c);

/** y = conv(x) + bias (+ add), as the entry `conv`. */
h3_status ISA(h3_cpu_line)(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                           const h3_conv *c, h3_tensor add);

#endif
