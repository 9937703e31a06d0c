/** A process of the server's own and the lines it exchanges with it; see worker.h. */
#ifndef H3AV_SERVER_CHILD_H
#define H3AV_SERVER_CHILD_H

#include <jansson.h>
#include <sys/types.h>

#include "util.h"

enum { SRV_LINE_MAX = 16 << 20 };

typedef struct srv_lines {
    int fd;
    char *buf;
    size_t used, cap, seen; ///< seen: bytes known to hold no line end
} srv_lines;

typedef enum srv_read { SRV_READ_LINE, SRV_READ_TIMEOUT, SRV_READ_END } srv_read;

/** Waits up to `ms` (-1: for ever) for a line and parses it; *out is the caller's. A line that is
 * no JSON object, or is longer than SRV_LINE_MAX, counts as the end. */
srv_read srv_lines_next(srv_lines *l, int ms, json_t **out);
/** Sends one message (takes `o` over). */
bool srv_lines_send(int fd, json_t *o);
void srv_lines_free(srv_lines *l);

struct srv_child {
    pid_t pid;
    srv_lines in;
};
typedef struct srv_child srv_child;

/** Starts this program again as a worker process. NULL: errno. */
srv_child *srv_child_start(void);
/** Ends it (at once) and frees. Returns what waitpid said, or -1. */
int srv_child_end(srv_child **c);
/** "signal 11 (Segmentation fault)" or "exit status 1". */
void srv_child_fate(int status, char *out, size_t cap);

#endif
