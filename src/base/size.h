/**
 * Overflow-checked arithmetic on sizes and extents. Shapes come from hostile files: every product
 * that ends in an allocation, an offset or a loop bound goes through here.
 */
#ifndef H3_BASE_SIZE_H
#define H3_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/** *out = a * b; false on overflow (then *out is untouched). */
static inline bool h3_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool h3_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool h3_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool h3_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/** malloc'd a * b * c * d things of `size` bytes; NULL when that is too much, in numbers or in
 * memory, or when an extent is negative. Nothing is one byte. */
static inline void *h3_malloc_4(size_t size, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t ne[4] = {a, b, c, d};

    for (int i = 0; i < 4; i++)
        if (ne[i] < 0 || !h3_mul_size(size, (size_t)ne[i], &size)) return NULL;
    return malloc(size ? size : 1);
}

static inline void *h3_malloc_2(size_t size, int64_t a, int64_t b)
{
    return h3_malloc_4(size, a, b, 1, 1);
}

/** ceil(a / b) for a >= 0, b > 0. */
static inline int64_t h3_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/** a rounded up to a multiple of b (a >= 0, b > 0, no overflow expected by the caller). */
static inline size_t h3_align_up(size_t a, size_t b)
{
    return (a + b - 1) / b * b;
}

#endif
