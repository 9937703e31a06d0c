/**
 * Requests and answers over libmicrohttpd: one thread for each connection, so that an answer that
 * takes its time (a stream, a disk) holds up nobody else.
 *
 * What is bounded: connections, bytes of headers and bodies, seconds to send them (a connection
 * that trickles is cut by a thread of ours, since libmicrohttpd only knows idle ones), streams,
 * bytes of uploads in flight. Who may ask: with a key, whoever has it; without one, programs and
 * pages of this machine (Host and Origin are checked, so that a page from elsewhere cannot use a
 * browser to reach a server on localhost).
 */
#ifndef H3AV_SERVER_HTTP_H
#define H3AV_SERVER_HTTP_H

#include "state.h"

typedef struct srv_route srv_route;

typedef struct srv_req {
    srv *s;
    struct MHD_Connection *c;
    const srv_route *route;
    char id[SRV_ID_LEN];     ///< of the path, for routes with {id}
    char new_id[SRV_ID_LEN]; ///< of the job that this request makes
    char request_id[40];
    srv_fault fault; ///< found before the body
    bool has_body, must_close, is_head;
    srv_body body;
    int64_t dropped; ///< bytes of a body that nobody wants
    double started;
    unsigned status;
} srv_req;

typedef enum MHD_Result (*srv_handler)(srv_req *r);

enum {
    SRV_BODY = 1,
    SRV_OPEN = 2,
    SRV_STATIC = 4
}; ///< wants a body; needs no key; part of the page

struct srv_route {
    const char *method, *path; ///< "/v1/videos/{id}/cancel"
    srv_handler handle;
    int flags;
};

extern const srv_route srv_routes[];
extern const int srv_n_routes;

/** Starts listening (s->listen_fd is set up). False: the reason is logged. */
bool srv_http_start(srv *s);
void srv_http_stop(srv *s);

/** Binds opts.host and opts.port. Returns an exit status, 0 when well. */
int srv_http_listen(srv *s);
bool srv_is_loopback(const char *host);

const char *srv_header(srv_req *r, const char *name); ///< NULL when absent
const char *srv_query(srv_req *r, const char *name);
void srv_add_header(struct MHD_Response *a, const char *name, const char *value);

/* Each answers the request once, and gives what MHD wants back. */
enum MHD_Result srv_answer(srv_req *r, unsigned status, struct MHD_Response *a); ///< takes `a` over
enum MHD_Result srv_answer_json(srv_req *r, unsigned status, json_t *o);         ///< takes `o` over
enum MHD_Result srv_answer_fault(srv_req *r, const srv_fault *f);
enum MHD_Result srv_answer_error(srv_req *r, int http, const char *code, const char *param,
                                 const char *fmt, ...) SRV_PRINTF(5, 6);
enum MHD_Result srv_answer_store(srv_req *r, srv_result st); ///< what a failed store call means
/** Whether the client has closed its side. */
bool srv_is_gone(srv_req *r);

#endif
