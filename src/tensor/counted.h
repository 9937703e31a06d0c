/** The counting front of every device; see counted.c. */
#ifndef H3_TENSOR_COUNTED_H
#define H3_TENSOR_COUNTED_H

#include "ops.h"

extern const h3_ops h3_ops_counted;

#endif
