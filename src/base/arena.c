/**
 * Bump arena; see arena.h. Memory comes from mmap so that pages cost nothing until they are touched
 * and go back to the system when the arena is freed.
 */
#include "arena.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "size.h"

#if defined(__SANITIZE_ADDRESS__)
#define H3_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define H3_ASAN 1
#endif
#endif
#ifdef H3_ASAN
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = H3_ARENA_ALIGN };
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
enum { RED_ZONE = 0 };
#endif

h3_status h3_arena_init(h3_arena *a, size_t bytes)
{
    size_t size;
    void *p;

    memset(a, 0, sizeof *a);
    if (!h3_add_size(bytes, 4095, &size))
        return h3_fail(H3_E_NOMEM, "arena of %zu bytes does not fit in memory", bytes);
    size = size / 4096 * 4096;
    if (RED_ZONE) size += size / 4; // room for the red zones of a planned sequence of allocations
    if (size == 0) size = 4096;
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    if (p == MAP_FAILED) return h3_fail(H3_E_NOMEM, "no memory for an arena of %zu bytes", size);
    a->base = p;
    a->size = size;
    a->is_owner = true;
    ASAN_POISON_MEMORY_REGION(a->base, a->size);
    return H3_OK;
}

void h3_arena_init_on(h3_arena *a, void *base, size_t bytes)
{
    memset(a, 0, sizeof *a);
    a->base = base;
    a->size = bytes;
}

void h3_arena_init_virtual(h3_arena *a)
{
    memset(a, 0, sizeof *a);
    a->base = (unsigned char *)(uintptr_t)H3_ARENA_ALIGN; // aligned, never dereferenced
    a->size = SIZE_MAX / 2;
    a->is_virtual = true;
}

void h3_arena_free(h3_arena *a)
{
    if (!a) return;
    if (a->is_owner) {
        ASAN_UNPOISON_MEMORY_REGION(a->base, a->size);
        munmap(a->base, a->size);
    }
    memset(a, 0, sizeof *a);
}

void *h3_arena_alloc(h3_arena *a, size_t bytes)
{
    size_t end;
    void *p;

    if (!h3_add_size(bytes, H3_ARENA_ALIGN - 1, &end)) goto fail;
    end = end / H3_ARENA_ALIGN * H3_ARENA_ALIGN;
    if (!a->is_virtual && a->is_owner) end += RED_ZONE;
    if (!h3_add_size(a->used, end, &end) || end > a->size) goto fail;
    p = a->base + a->used;
    if (a->is_owner) ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    a->used = end;
    if (end > a->peak) a->peak = end;
    return p;

fail:
    a->failed = true;
    return NULL;
}

void h3_arena_release(h3_arena *a, size_t mark)
{
    assert(mark <= a->used);
    if (a->is_owner) ASAN_POISON_MEMORY_REGION(a->base + mark, a->used - mark);
    a->used = mark;
}
