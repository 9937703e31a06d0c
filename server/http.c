/** See http.h. */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DRAIN_MAX = 8 << 20,        ///< a refused body is read up to here, so that the answer arrives
    MIN_BYTES_A_SECOND = 65536, ///< of a body, on average, after the first half minute
    BODY_GRACE = 30,
    STACK_BYTES = 1 << 20
};

/* --------------------------------------------------------------------------- slow connections */

/* A connection and until when its client must have said what it is saying. */
struct srv_conn {
    int fd;
    double deadline; ///< 0: none, the server is the one who works
    srv_conn *prev, *next;
};

static void set_deadline(srv_req *r, double deadline)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    srv_conn *c = info ? info->socket_context : NULL;

    if (!c) return;
    pthread_mutex_lock(&r->s->conn_lock);
    c->deadline = deadline;
    pthread_mutex_unlock(&r->s->conn_lock);
}

static void on_connection(void *user, struct MHD_Connection *mc, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    srv *s = user;
    srv_conn *c = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *fd =
            MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = calloc(1, sizeof *c);
        *context = c;
        if (!c || !fd) return;
        const int one = 1;
        setsockopt(fd->connect_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd->connect_fd;
        c->deadline = srv_now() + s->opts.header_seconds;
        atomic_fetch_add(&s->n_connections, 1);
        pthread_mutex_lock(&s->conn_lock);
        c->next = s->conns;
        if (c->next) c->next->prev = c;
        s->conns = c;
        pthread_mutex_unlock(&s->conn_lock);
        return;
    }
    if (!c) return; // closed: the descriptor is still open, it goes after this call
    pthread_mutex_lock(&s->conn_lock);
    if (c->prev)
        c->prev->next = c->next;
    else if (s->conns == c)
        s->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    pthread_mutex_unlock(&s->conn_lock);
    atomic_fetch_sub(&s->n_connections, 1);
    free(c);
    *context = NULL;
}

static void *reap(void *user)
{
    srv *s = user;

    while (!srv_hub_is_stopping(&s->hub)) {
        const double now = srv_now();
        pthread_mutex_lock(&s->conn_lock);
        for (srv_conn *c = s->conns; c; c = c->next)
            if (c->deadline > 0 && now > c->deadline) {
                shutdown(c->fd, SHUT_RDWR); // its thread wakes up and closes
                c->deadline = 0;
            }
        pthread_mutex_unlock(&s->conn_lock);
        usleep(250000);
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------- answers */

const char *srv_header(srv_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->c, MHD_HEADER_KIND, name);
}

const char *srv_query(srv_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->c, MHD_GET_ARGUMENT_KIND, name);
}

void srv_add_header(struct MHD_Response *a, const char *name, const char *value)
{
    MHD_add_response_header(a, name, value);
}

bool srv_is_gone(srv_req *r)
{
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(r->c, MHD_CONNECTION_INFO_CONNECTION_FD);
    char c;
    ssize_t n;

    if (!fd) return true;
    n = recv(fd->connect_fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Pages of the origins that were named may read answers; nobody else's. */
static void add_cors(srv_req *r, struct MHD_Response *a)
{
    const char *origin = srv_header(r, "Origin");

    if (!origin || !r->s->opts.cors || !srv_in_list(r->s->opts.cors, origin)) return;
    srv_add_header(a, "Access-Control-Allow-Origin", origin);
    srv_add_header(a, "Vary", "Origin");
    srv_add_header(a, "Access-Control-Expose-Headers",
                   "x-request-id, openai-poll-after-ms, retry-after, content-range");
}

enum MHD_Result srv_answer(srv_req *r, unsigned status, struct MHD_Response *a)
{
    enum MHD_Result ok;

    if (!a) return MHD_NO;
    if (!MHD_get_response_header(a, "x-request-id"))
        srv_add_header(a, "x-request-id", r->request_id);
    srv_add_header(a, "X-Content-Type-Options", "nosniff");
    srv_add_header(a, "Cross-Origin-Resource-Policy", "same-origin");
    if (!MHD_get_response_header(a, "Cache-Control"))
        srv_add_header(a, "Cache-Control", "no-store");
    if (r->must_close) srv_add_header(a, "Connection", "close");
    add_cors(r, a);
    r->status = status;
    atomic_fetch_add(&r->s->metrics.by_class[status / 100 < 6 ? status / 100 : 5], 1);
    ok = MHD_queue_response(r->c, status, a);
    MHD_destroy_response(a);
    return ok;
}

static struct MHD_Response *json_response(json_t *o)
{
    char *text = json_dumps(o, SRV_JSON);
    struct MHD_Response *a;

    json_decref(o);
    if (!text) return NULL;
    a = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (a)
        srv_add_header(a, "Content-Type", "application/json");
    else
        free(text);
    return a;
}

enum MHD_Result srv_answer_json(srv_req *r, unsigned status, json_t *o)
{
    return srv_answer(r, status, json_response(o));
}

static const char *error_type(int http)
{
    return http == 401   ? "authentication_error"
           : http == 403 ? "permission_error"
           : http == 429 ? "rate_limit_error"
           : http >= 500 ? "server_error"
                         : "invalid_request_error";
}

enum MHD_Result srv_answer_fault(srv_req *r, const srv_fault *f)
{
    json_t *param = f->param[0] ? json_string(f->param) : NULL;
    struct MHD_Response *a = json_response(json_pack("{s:{s:s, s:s, s:o, s:s}}", "error", "message",
                                                     f->text, "type", error_type(f->http), "param",
                                                     param ? param : json_null(), "code", f->code));
    char after[16];

    if (!a) return MHD_NO;
    if (f->retry_after > 0) {
        snprintf(after, sizeof after, "%d", f->retry_after);
        srv_add_header(a, "Retry-After", after);
    }
    if (f->is_final || f->http == 409 || f->http == 408)
        srv_add_header(a, "x-should-retry", "false");
    if (f->http == 401) srv_add_header(a, "WWW-Authenticate", "Bearer");
    return srv_answer(r, (unsigned)f->http, a);
}

enum MHD_Result srv_answer_error(srv_req *r, int http, const char *code, const char *param,
                                 const char *fmt, ...)
{
    srv_fault f = {.http = 0};
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    srv_fault_set(&f, http, code, param, "%s", text);
    return srv_answer_fault(r, &f);
}

enum MHD_Result srv_answer_store(srv_req *r, srv_result st)
{
    srv_fault f = {.is_final = true};

    switch (st) {
    case SRV_NO_JOB:
        srv_fault_set(&f, 404, "video_not_found", "video_id", "there is no video %s",
                      r->id[0] ? r->id : "of that id");
        break;
    case SRV_NO_SPACE:
        srv_fault_set(&f, 507, "storage_full", NULL, "the server's disk is full");
        break;
    default:
        srv_fault_set(&f, 500, "internal_error", NULL,
                      "the job database failed; see the server's log");
    }
    return srv_answer_fault(r, &f);
}

/* ------------------------------------------------------------------------------- who may ask */

bool srv_is_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "::1", "[::1]"};
    struct in_addr v4;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(host, names[i]) == 0) return true;
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

/* "localhost:8080", "[::1]:8080" -> the name without its port */
static void host_name(char *out, size_t cap, const char *host)
{
    const char *colon = *host == '[' ? strchr(host, ']') : strrchr(host, ':');
    const size_t n = !colon ? strlen(host) : (size_t)(colon - host) + (*host == '[');

    snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), host);
}

/* A name that points here by someone else's DNS is how a foreign page gets around Origin checks. */
static bool is_host_ok(srv_req *r)
{
    const char *host = srv_header(r, "Host");
    const srv *s = r->s;
    char name[256];

    if (s->api_key || s->opts.allow_public || !host) return true;
    host_name(name, sizeof name, host);
    return srv_is_loopback(name) || strcasecmp(name, s->opts.host) == 0 ||
           srv_in_list(s->opts.host_names, name);
}

/* Browsers say where a request comes from: only this server's own page, or origins that were named.
 */
static bool is_origin_ok(srv_req *r)
{
    const char *origin = srv_header(r, "Origin"), *host = srv_header(r, "Host");
    const char *site = srv_header(r, "Sec-Fetch-Site");
    const char *rest = origin ? strstr(origin, "://") : NULL;

    if (!origin)
        return !site || strcasecmp(site, "cross-site") != 0 || r->route->flags & SRV_STATIC;
    if (r->s->opts.cors && srv_in_list(r->s->opts.cors, origin)) return true;
    return rest && host && strcasecmp(rest + 3, host) == 0;
}

static bool is_key_ok(srv_req *r)
{
    const char *given = srv_header(r, "Authorization");

    if (!r->s->api_key || r->route->flags & SRV_OPEN) return true;
    if (!given || strncasecmp(given, "Bearer ", 7) != 0) return false;
    for (given += 7; *given == ' ';)
        given++;
    return srv_same_secret(given, r->s->api_key);
}

static bool may_ask(srv_req *r)
{
    if (!is_host_ok(r))
        return srv_fault_set(&r->fault, 403, "host_not_allowed", NULL,
                             "this server answers to localhost; name other hosts with --host-name, "
                             "or set a key");
    if (!is_origin_ok(r))
        return srv_fault_set(&r->fault, 403, "origin_not_allowed", NULL,
                             "pages of other origins may not use this server (--cors)");
    if (!is_key_ok(r))
        return srv_fault_set(&r->fault, 401, "invalid_api_key", NULL,
                             "a key is needed: Authorization: Bearer KEY");
    return true;
}

/* -------------------------------------------------------------------------------------- requests
 */

typedef struct heads {
    int n_length, n_encoding, n_host, n_type, n_auth;
    const char *length, *encoding;
} heads;

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    heads *h = user;

    (void)kind;
    if (strcasecmp(key, "Content-Length") == 0) {
        h->n_length++;
        h->length = value;
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->n_encoding++;
        h->encoding = value;
    }
    h->n_host += strcasecmp(key, "Host") == 0;
    h->n_type += strcasecmp(key, "Content-Type") == 0;
    h->n_auth += strcasecmp(key, "Authorization") == 0;
    return MHD_YES;
}

/* Headers that could be read in two ways are refused, and the connection with them. Returns the
 * announced length, 0 none, -1 unknown (chunked). */
static int64_t check_framing(srv_req *r, const char *version)
{
    heads h = {.n_length = 0};
    char *end;
    long long n;

    MHD_get_connection_values(r->c, MHD_HEADER_KIND, count_header, &h);
    if (h.n_length > 1 || h.n_encoding > 1 || (h.n_length && h.n_encoding) || h.n_host > 1 ||
        h.n_type > 1 || h.n_auth > 1) {
        r->must_close = true;
        srv_fault_set(&r->fault, 400, "invalid_headers", NULL,
                      "Content-Length, Transfer-Encoding, Host, Content-Type or Authorization is "
                      "given twice");
        return 0;
    }
    if (h.n_host == 0 && strcmp(version, MHD_HTTP_VERSION_1_1) == 0) {
        r->must_close = true;
        srv_fault_set(&r->fault, 400, "invalid_headers", NULL,
                      "a request of HTTP/1.1 needs a Host");
        return 0;
    }
    if (h.n_encoding) {
        if (strcasecmp(h.encoding, "chunked") == 0) return -1;
        r->must_close = true;
        srv_fault_set(&r->fault, 400, "invalid_headers", NULL,
                      "Transfer-Encoding: only chunked is accepted");
        return 0;
    }
    if (!h.n_length) return 0;
    errno = 0;
    n = strtoll(h.length, &end, 10);
    if (*h.length < '0' || *h.length > '9' || *end || errno) {
        r->must_close = true;
        srv_fault_set(&r->fault, 400, "invalid_headers", NULL, "Content-Length is no number");
        return 0;
    }
    return n;
}

/* The rest of `url` in the place of a pattern's {model}, which ends it; NULL: there is none. */
static const char *model_in(const char *path, const char *url)
{
    const char *brace = strstr(path, "{model}");
    const size_t n = brace ? (size_t)(brace - path) : 0;

    return brace && strncmp(path, url, n) == 0 && url[n] ? url + n : NULL;
}

/* Matches url with a pattern that may hold one {id} or {model}; 1 yes, 0 no, -1 yes but for the id.
 */
static int match(const char *path, const char *url, char id[SRV_ID_LEN])
{
    const char *brace = strstr(path, "{id}");
    const size_t n = brace ? (size_t)(brace - path) : 0;
    const char *slash;
    size_t m;

    if (!brace) return strcmp(path, url) == 0 || model_in(path, url);
    if (strncmp(path, url, n) != 0) return 0;
    slash = strchr(url + n, '/');
    m = slash ? (size_t)(slash - url) - n : strlen(url + n);
    if (strcmp(brace + 4, url + n + m) != 0 || m == 0) return 0;
    if (m >= SRV_ID_LEN) return -1;
    memcpy(id, url + n, m);
    id[m] = '\0';
    return srv_is_id(id) ? 1 : -1;
}

static void find_route(srv_req *r, const char *method, const char *url)
{
    bool is_path_known = false;

    r->is_head = strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    if (r->is_head) method = MHD_HTTP_METHOD_GET;
    for (int i = 0; i < srv_n_routes; i++) {
        const srv_route *t = &srv_routes[i];
        char id[SRV_ID_LEN] = "";
        const int found = match(t->path, url, id);
        if (!found) continue;
        is_path_known = true;
        if (strcmp(t->method, method) != 0) continue;
        r->route = t;
        memcpy(r->id, id, sizeof id);
        if (found < 0) {
            r->id[0] = '\0';
            srv_fault_set(&r->fault, 404, "video_not_found", "video_id", "there is no such video");
        }
        const char *model = model_in(t->path, url);
        if (model && strcmp(model, r->s->model_name) != 0)
            srv_fault_set(&r->fault, 404, "model_not_found", "model",
                          "there is no model %.200s; %.200s is served", model, r->s->model_name);
        return;
    }
    if (is_path_known)
        srv_fault_set(&r->fault, 405, "method_not_allowed", NULL, "%.16s is not allowed on %.200s",
                      method, url);
    else
        srv_fault_set(&r->fault, 404, "not_found", NULL, "there is nothing at %.200s", url);
}

/* What the client may do at `url`, for 405 and OPTIONS. */
static void allowed(char *out, size_t cap, const char *url)
{
    char id[SRV_ID_LEN];
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; i < srv_n_routes && n < cap; i++)
        if (match(srv_routes[i].path, url, id))
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", srv_routes[i].method);
}

static enum MHD_Result answer_options(srv_req *r, const char *url)
{
    struct MHD_Response *a = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    const char *origin = srv_header(r, "Origin");
    char methods[80];

    if (!a) return MHD_NO;
    allowed(methods, sizeof methods, url);
    srv_add_header(a, "Allow", methods);
    if (origin && r->s->opts.cors && srv_in_list(r->s->opts.cors, origin)) {
        srv_add_header(a, "Access-Control-Allow-Methods", methods);
        srv_add_header(a, "Access-Control-Allow-Headers",
                       "authorization, content-type, idempotency-key");
        srv_add_header(a, "Access-Control-Max-Age", "600");
    }
    return srv_answer(r, *methods ? 204 : 404, a);
}

static srv_req *begin(srv *s, struct MHD_Connection *c, const char *method, const char *url,
                      const char *version)
{
    static const srv_route none = {"", "", NULL, SRV_OPEN};
    srv_req *r = calloc(1, sizeof *r);
    unsigned char rnd[12];
    int64_t length;

    if (!r) return NULL;
    r->s = s;
    r->c = c;
    r->started = srv_now();
    memset(rnd, 0, sizeof rnd);
    srv_random(rnd, sizeof rnd); // only a label: zeros when the system has none
    for (size_t i = 0; i < sizeof rnd; i++)
        snprintf(r->request_id + 2 * i, 3, "%02x", rnd[i]);
    atomic_fetch_add(&s->metrics.requests, 1);
    length = check_framing(r, version);
    find_route(r, method, url);
    if (!r->route) r->route = &none;
    may_ask(r);
    if (r->fault.http) return r;
    if (r->route->flags & SRV_BODY) {
        char *dir;
        r->has_body = true;
        if (!srv_new_id(r->new_id)) {
            srv_fault_set(&r->fault, 503, "internal_error", NULL, "no random numbers");
            return r;
        }
        dir = srv_text("%s/%s", s->spool_dir, r->new_id);
        srv_body_begin(&r->body, srv_header(r, "Content-Type"), length, dir,
                       (int64_t)s->opts.max_body, &s->inflight);
        free(dir);
    }
    return r;
}

static const srv_fault *fault_of(const srv_req *r)
{
    return r->fault.http ? &r->fault : &r->body.fault;
}

/* A refused request whose body is large, or waits for a "100 Continue", is answered at once. */
static bool is_answered_early(srv_req *r)
{
    const char *length = srv_header(r, "Content-Length");

    if (!fault_of(r)->http) return false;
    return r->must_close || srv_header(r, "Expect") ||
           (length && strtoll(length, NULL, 10) > DRAIN_MAX);
}

/* Bytes of a body. False: cut the connection. */
static bool take_data(srv_req *r, const char *data, size_t n)
{
    if (r->has_body && !r->fault.http) {
        srv_body_feed(&r->body, data, n);
        set_deadline(r, r->started + BODY_GRACE + (double)r->body.received / MIN_BYTES_A_SECOND);
        return !r->body.fault.http || (r->dropped += (int64_t)n) <= DRAIN_MAX;
    }
    set_deadline(r, r->started + BODY_GRACE);
    return (r->dropped += (int64_t)n) <= DRAIN_MAX;
}

static enum MHD_Result answer(srv_req *r, const char *method, const char *url)
{
    if (strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0 &&
        (r->fault.http == 405 || r->fault.http == 404))
        return answer_options(r, url);
    if (!r->fault.http && r->has_body) srv_body_end(&r->body);
    if (!fault_of(r)->http) return r->route->handle(r);
    if (r->fault.http == 405) {
        json_t *error = json_pack("{s:{s:s, s:s, s:n, s:s}}", "error", "message", r->fault.text,
                                  "type", error_type(405), "param", "code", r->fault.code);
        struct MHD_Response *a = json_response(error);
        char methods[80];
        allowed(methods, sizeof methods, url);
        if (a) srv_add_header(a, "Allow", methods);
        return srv_answer(r, 405, a);
    }
    return srv_answer_fault(r, fault_of(r));
}

/* What the request had uploaded is gone before its client hears the answer. */
static enum MHD_Result finish(srv_req *r, const char *method, const char *url)
{
    const enum MHD_Result ok = answer(r, method, url);

    srv_body_free(&r->body);
    return ok;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **context)
{
    srv_req *r = *context;

    if (!r) {
        r = *context = begin(user, c, method, url, version);
        if (!r) return MHD_NO;
        set_deadline(r, r->started + BODY_GRACE);
        if (!is_answered_early(r)) return MHD_YES;
        r->must_close = true;
        return srv_answer_fault(r, fault_of(r));
    }
    if (*n_data) {
        const bool is_ok = take_data(r, data, *n_data);
        *n_data = 0;
        return is_ok ? MHD_YES : MHD_NO;
    }
    if (r->status) return MHD_YES;
    set_deadline(r, 0);
    return finish(r, method, url);
}

static void on_completed(void *user, struct MHD_Connection *c, void **context,
                         enum MHD_RequestTerminationCode why)
{
    srv *s = user;
    srv_req *r = *context;

    (void)c;
    (void)why;
    if (!r) return;
    if (s->opts.is_verbose)
        srv_log("%s %s %s %u %.0f ms", r->request_id, r->route->method, r->route->path, r->status,
                (srv_now() - r->started) * 1e3);
    set_deadline(r, srv_now() + s->opts.idle_seconds + s->opts.header_seconds);
    srv_body_free(&r->body);
    free(r);
    *context = NULL;
}

/* ------------------------------------------------------------------------------------- listening
 */

int srv_http_listen(srv *s)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char port[16];
    const int one = 1;
    int rc;

    snprintf(port, sizeof port, "%d", s->opts.port);
    rc = getaddrinfo(s->opts.host, port, &want, &list);
    if (rc != 0) {
        srv_error("%s: %s", s->opts.host, gai_strerror(rc));
        return 2;
    }
    s->listen_fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s->listen_fd < 0 || bind(s->listen_fd, list->ai_addr, list->ai_addrlen) != 0 ||
        listen(s->listen_fd, 256) != 0) {
        srv_error("cannot listen on %s port %s: %s", s->opts.host, port, strerror(errno));
        freeaddrinfo(list);
        return 3;
    }
    freeaddrinfo(list);
    getsockname(s->listen_fd, (struct sockaddr *)&at, &n);
    s->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port
                                             : ((struct sockaddr_in *)(void *)&at)->sin_port);
    return 0;
}

static void on_library_log(void *user, const char *fmt, va_list ap)
{
    const srv *s = user;
    char text[400];

    if (!s->opts.is_verbose) return; // clients that break the protocol are not news
    vsnprintf(text, sizeof text, fmt, ap);
    srv_log("http: %s", text);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* Decodes %XX in place. A zero byte would end the path and hide what follows from the routes: it
 * stays as it was sent, and names nothing. */
static size_t unescape(void *user, struct MHD_Connection *c, char *s)
{
    char *to = s;

    (void)user;
    (void)c;
    for (const char *p = s; *p; p++) {
        const int hi = *p == '%' ? hex(p[1]) : -1, lo = hi >= 0 ? hex(p[2]) : -1;
        const bool is_coded = lo >= 0 && hi + lo > 0;
        *to++ = is_coded ? (char)(hi << 4 | lo) : *p;
        if (is_coded) p += 2;
    }
    *to = '\0';
    return (size_t)(to - s);
}

bool srv_http_start(srv *s)
{
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                           MHD_USE_POLL | MHD_USE_ERROR_LOG | MHD_USE_ITC;

    if (pthread_create(&s->reaper, NULL, reap, s) != 0) return false;
    s->is_reaper_started = true;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, s,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, s, MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->opts.max_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->opts.idle_seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)STACK_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_END);
    if (!s->daemon) srv_error("the HTTP library did not start");
    return s->daemon != NULL;
}

void srv_http_stop(srv *s)
{
    if (s->daemon) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    if (s->is_reaper_started) pthread_join(s->reaper, NULL);
    s->is_reaper_started = false;
}
