/** Opening and closing a golden; used by golden_main.c only. */
#ifndef H3_TESTS_GOLDEN_READ_H
#define H3_TESTS_GOLDEN_READ_H

#include "golden.h"

h3_status golden_read(golden *g, const char *path);
void golden_free(golden *g);

#endif
