/**
 * Where input media comes from: a file, or bytes that the caller holds (an upload). Whichever it
 * is, all of it is visible as one block while it is open; a file is mapped, not read.
 */
#ifndef H3_MEDIA_SOURCE_H
#define H3_MEDIA_SOURCE_H

#include <stddef.h>

#include "status.h"

typedef struct h3_media_src {
    const char *path; ///< the file; with `data` only a name for messages
    const void *data; ///< NULL: read `path`
    size_t size;
} h3_media_src;

static inline h3_media_src h3_media_file(const char *path)
{
    return (h3_media_src){.path = path};
}

static inline h3_media_src h3_media_bytes(const char *name, const void *data, size_t size)
{
    return (h3_media_src){.path = name, .data = data, .size = size};
}

#endif
