/** What the GPU benchmarks share: a clock, a way out that prints the error, extents as arguments.
 */
#ifndef H3_BENCH_GPU_COMMON_H
#define H3_BENCH_GPU_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "status.h"

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define MUST(expr)                                                  \
    do {                                                            \
        if ((expr) != H3_OK) {                                      \
            printf("{\"error\": \"%s: %s\"}\n", #expr, h3_error()); \
            fflush(stdout);                                         \
            fprintf(stderr, "%s: %s\n", #expr, h3_error());         \
            exit(1);                                                \
        }                                                           \
    } while (0)

/* NE(4, 5): rank and extents, two arguments. */
#define NE(...)                                                            \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                      \
        __VA_ARGS__                                                        \
    }

#endif
