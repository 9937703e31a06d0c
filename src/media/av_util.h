/**
 * What every file of this room that touches libav shares: error texts, paths that cannot be taken
 * for a protocol, and a silenced log (the library never prints).
 */
#ifndef H3_MEDIA_AV_UTIL_H
#define H3_MEDIA_AV_UTIL_H

#include <libavutil/error.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

/** Text of a libav error code; a ring of 4 buffers per thread. */
const char *h3_av_text(int err);

/** Fails with "path: what: text", choosing the code: no space and other refusals of the system are
 *  H3_E_IO, a missing file H3_E_MISSING, memory H3_E_NOMEM, everything else `other`. */
h3_status h3_av_fail(int err, h3_status other, const char *path, const char *what);

/** malloc'd "file:<path>": a name with a colon or a leading dash stays a file name. Never NULL. */
char *h3_av_url(const char *path);

/** Turns libav's log off, once per process. Called by every open of this room. */
void h3_av_quiet(void);

#endif
