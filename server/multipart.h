/**
 * multipart/form-data, fed in pieces of any size, in time linear in the body.
 *
 * The parser of libmicrohttpd is not used: it takes bare LF, mixes nested parts in, and cannot say
 * what was wrong. Here a body is right or it is refused with a sentence.
 *
 *     char b[SRV_BOUNDARY_MAX + 1];
 *     if (!srv_multipart_boundary(b, content_type)) ...
 *     srv_multipart *m = srv_multipart_open(b, &events, user);
 *     while (...) if (!srv_multipart_feed(m, p, n)) say(srv_multipart_error(m));
 *     if (!srv_multipart_finish(m)) ...           // was the closing boundary there?
 *     srv_multipart_close(&m);
 */
#ifndef H3AV_SERVER_MULTIPART_H
#define H3AV_SERVER_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

enum {
    SRV_BOUNDARY_MAX = 70,    ///< as RFC 2046 has it
    SRV_PART_HEAD_MAX = 8192, ///< bytes of the headers of one part
    SRV_PART_NAME_MAX = 255,  ///< of a field; file names are cut to it
    SRV_PARTS_MAX = 128
};

typedef struct srv_part {
    char name[SRV_PART_NAME_MAX + 1];
    char filename[SRV_PART_NAME_MAX + 1]; ///< last path component; for showing, never for opening
    char type[SRV_PART_NAME_MAX + 1];     ///< Content-Type of the part, or ""
    bool is_file;                         ///< a filename was given
} srv_part;

/** Called in order: begin, data..., end for each part. Returning false stops the parser. */
typedef struct srv_multipart_events {
    bool (*begin)(void *user, const srv_part *part);
    bool (*data)(void *user, const void *p, size_t n);
    bool (*end)(void *user);
} srv_multipart_events;

typedef struct srv_multipart srv_multipart;

/** Takes the boundary out of a Content-Type header of multipart/form-data: a token or quoted, any
 *  other parameters around it. */
bool srv_multipart_boundary(char out[SRV_BOUNDARY_MAX + 1], const char *content_type);

srv_multipart *srv_multipart_open(const char *boundary, const srv_multipart_events *ev, void *user);
/** False once anything is wrong; what follows is ignored. */
bool srv_multipart_feed(srv_multipart *m, const void *p, size_t n);
bool srv_multipart_finish(srv_multipart *m);
/** A sentence; "" while all is well, and when an event said stop. */
const char *srv_multipart_error(const srv_multipart *m);
void srv_multipart_close(srv_multipart **m);

#endif
