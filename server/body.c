/** See body.h. */
#include "body.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NEST_MAX = 4, LIST_MAX = 64 };

/* --------------------------------------------------------------------------------------- files */

/* "No space" is the caller's to know; anything else is ours. */
static bool disk_fault(srv_body *b, const char *what)
{
    const int e = errno;

    if (e != ENOSPC && e != EDQUOT && e != EFBIG) srv_error("%s: %s", what, strerror(e));
    b->fault.is_final = true;
    return srv_fault_set(
        &b->fault, 507, "storage_full", NULL, "the server could not store the upload: %s",
        e == ENOSPC || e == EDQUOT || e == EFBIG ? "its disk is full" : "its data folder failed");
}

int srv_body_new_file(srv_body *b, const char *name, int *index)
{
    char *path;
    int fd;

    if (b->n_uploads == SRV_UPLOADS_MAX) {
        srv_fault_set(&b->fault, 400, "too_many_files", NULL, "more than %d files",
                      SRV_UPLOADS_MAX);
        return -1;
    }
    if (!b->is_dir_made && mkdir(b->dir, 0700) != 0) {
        disk_fault(b, b->dir);
        return -1;
    }
    b->is_dir_made = true;
    *index = b->n_uploads;
    path = srv_text("%s/in%d", b->dir, b->n_uploads);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    free(path);
    if (fd < 0) {
        disk_fault(b, b->dir);
        return -1;
    }
    srv_upload *u = &b->upload[b->n_uploads++];
    *u = (srv_upload){.hash = SRV_FNV};
    snprintf(u->name, sizeof u->name, "%s", name);
    return fd;
}

bool srv_body_sync(srv_body *b)
{
    bool is_ok = true;

    if (!b->is_dir_made) return true;
    for (int i = 0; is_ok && i < b->n_uploads; i++) {
        char *path = srv_text("%s/in%d", b->dir, i);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        is_ok = fd >= 0 && fsync(fd) == 0;
        if (fd >= 0) close(fd);
        free(path);
    }
    if (is_ok) is_ok = srv_sync_dir(b->dir);
    return is_ok ? true : disk_fault(b, b->dir);
}

/* ---------------------------------------------------------------------------------------- text */

static bool add_text(srv_body *b, const void *p, size_t n)
{
    if (n > SRV_TEXT_MAX || b->n_texts > SRV_TEXT_MAX - n)
        return srv_fault_set(&b->fault, 413, "request_too_large", NULL,
                             "text of more than %d MiB; send files as parts of a form",
                             SRV_TEXT_MAX >> 20);
    if (b->n_text + n + 1 > b->cap_text) {
        size_t cap = b->cap_text ? b->cap_text : 256;
        char *grown;
        while (cap < b->n_text + n + 1)
            cap *= 2;
        grown = realloc(b->text, cap);
        if (!grown)
            return srv_fault_set(&b->fault, 503, "out_of_memory", NULL,
                                 "no memory for the request");
        b->text = grown;
        b->cap_text = cap;
    }
    memcpy(b->text + b->n_text, p, n);
    b->n_text += n;
    b->n_texts += n;
    b->text[b->n_text] = '\0';
    return true;
}

/* ---------------------------------------------------------------------------- fields of a form */

static bool is_index(const char *key)
{
    for (; *key; key++)
        if (*key < '0' || *key > '9') return false;
    return true; // also "": append
}

/* Stores `value` at list[i] or at its end; always takes it over. */
static bool list_put(json_t *list, const char *index, json_t *value)
{
    const bool is_append = !*index;
    const unsigned long i = is_append ? json_array_size(list) : strtoul(index, NULL, 10);

    if (strlen(index) > 3 || i >= LIST_MAX ||
        (!is_append && json_array_get(list, i) && !json_is_null(json_array_get(list, i)))) {
        json_decref(value);
        return false;
    }
    while (json_array_size(list) <= i)
        json_array_append_new(list, json_null());
    return json_array_set_new(list, i, value) == 0;
}

/* Cuts "a[b][c]" into "a", "b", "c"; returns how many, 0 when malformed. */
static int split_name(char *name, char *key[NEST_MAX])
{
    char *p = strchr(name, '[');
    int n = 1;

    key[0] = name;
    if (p == name) return 0;
    while (p) {
        char *end = strchr(p, ']');
        if (!end || n == NEST_MAX) return 0;
        *p = *end = '\0';
        key[n++] = p + 1;
        if (strchr(p + 1, '[')) return 0;
        if (!end[1]) break;
        if (end[1] != '[') return 0;
        p = end + 1;
    }
    return n;
}

/* The object or list under `key`, made when there is none; NULL when something else is there. */
static json_t *descend(json_t *at, const char *key, const char *next)
{
    json_t *child;

    if (json_is_array(at) && (!is_index(key) || !*key)) return NULL;
    child =
        json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10)) : json_object_get(at, key);
    if (child && !json_is_null(child))
        return json_is_object(child) || json_is_array(child) ? child : NULL;
    child = is_index(next) ? json_array() : json_object();
    if (json_is_array(at)) return list_put(at, key, child) ? child : NULL;
    return json_object_set_new(at, key, child) == 0 ? child : NULL;
}

/* Puts `value` (taken over) under the path of keys. A plain name given twice becomes a list. */
static bool put_field(json_t *root, char **key, int n, json_t *value)
{
    json_t *at = root, *old;

    for (int i = 0; at && i + 1 < n; i++)
        at = descend(at, key[i], key[i + 1]);
    if (at && json_is_array(at) && is_index(key[n - 1])) return list_put(at, key[n - 1], value);
    old = json_object_get(at, key[n - 1]); // NULL too when `at` is no object
    if (json_is_object(at) && !old) return json_object_set_new(at, key[n - 1], value) == 0;
    if (!old || n > 1) {
        json_decref(value);
        return false;
    }
    if (!json_is_array(old)) {
        json_t *list = json_pack("[O]", old);
        json_object_set_new(at, key[0], list);
        old = list;
    }
    return list_put(old, "", value);
}

static bool part_begin(void *user, const srv_part *part)
{
    srv_body *b = user;
    int index, fd;

    b->part = *part;
    b->n_text = 0;
    if (!part->is_file) return add_text(b, "", 0);
    fd = srv_body_new_file(b, part->filename, &index);
    if (fd < 0) return false;
    b->file = fdopen(fd, "wb");
    if (b->file) return true;
    close(fd);
    return srv_fault_set(&b->fault, 503, "out_of_memory", NULL, "no memory for the upload");
}

static bool part_data(void *user, const void *p, size_t n)
{
    srv_body *b = user;
    srv_upload *u;

    if (!b->file) return add_text(b, p, n);
    u = &b->upload[b->n_uploads - 1];
    u->bytes += (int64_t)n;
    u->hash = srv_fnv(u->hash, p, n);
    return fwrite_unlocked(p, 1, n, b->file) == n ? true : disk_fault(b, b->dir);
}

static bool part_end(void *user)
{
    srv_body *b = user;
    char name[sizeof b->part.name], *key[NEST_MAX];
    json_t *value;
    int n;

    memcpy(name, b->part.name, sizeof name);
    if (b->file) {
        FILE *file = b->file;
        b->file = NULL;
        if (fclose(file) != 0) return disk_fault(b, b->dir);
        value = json_pack("{s:i}", "$upload", b->n_uploads - 1);
    } else {
        if (memchr(b->text, '\0', b->n_text))
            return srv_fault_set(&b->fault, 400, "invalid_text", name,
                                 "field \"%s\" holds a NUL byte", name);
        value = json_stringn(b->text, b->n_text);
        if (!value)
            return srv_fault_set(&b->fault, 400, "invalid_text", name,
                                 "field \"%s\" is not UTF-8 text", name);
    }
    n = split_name(name, key);
    if (n == 0) {
        json_decref(value);
        return srv_fault_set(&b->fault, 400, "invalid_field_name", b->part.name,
                             "field name \"%s\" is malformed", b->part.name);
    }
    if (!put_field(b->fields, key, n, value))
        return srv_fault_set(&b->fault, 400, "duplicate_field", b->part.name,
                             "field \"%s\" contradicts another one of that name", b->part.name);
    return true;
}

/* --------------------------------------------------------------------------------------- begin */

static bool is_json_type(const char *type)
{
    static const char json[] = "application/json";
    const size_t n = sizeof json - 1;

    return strncasecmp(type, json, n) == 0 && (!type[n] || strchr("; \t", type[n]));
}

/* Room for `n` more bytes among all requests. JSON is held as text and as values: it counts more.
 */
static bool reserve(srv_body *b, int64_t n)
{
    n *= b->is_form ? 1 : 3;
    if (atomic_fetch_add(&b->inflight->bytes, n) + n > b->inflight->limit &&
        b->reserved + n > 65536) {
        atomic_fetch_sub(&b->inflight->bytes, n);
        b->fault.retry_after = 5;
        return srv_fault_set(&b->fault, 429, "uploads_busy", NULL,
                             "the server is receiving as much as it can hold; try again");
    }
    b->reserved += n;
    return true;
}

bool srv_body_begin(srv_body *b, const char *type, int64_t length, const char *dir,
                    int64_t max_bytes, srv_inflight *inflight)
{
    static const srv_multipart_events events = {part_begin, part_data, part_end};
    char boundary[SRV_BOUNDARY_MAX + 1];

    memset(b, 0, sizeof *b);
    b->dir = srv_copy(dir);
    b->inflight = inflight;
    b->is_form = type && strncasecmp(type, "multipart/", 10) == 0;
    b->max_bytes = b->is_form || max_bytes < SRV_TEXT_MAX ? max_bytes : SRV_TEXT_MAX;
    if (length > b->max_bytes)
        return srv_fault_set(&b->fault, 413, "request_too_large", NULL,
                             "the body has %lld bytes, at most %lld are accepted",
                             (long long)length, (long long)b->max_bytes);
    if (b->is_form) {
        if (!srv_multipart_boundary(boundary, type))
            return srv_fault_set(&b->fault, 400, "invalid_content_type", NULL,
                                 "Content-Type: expected multipart/form-data with a boundary of 1 "
                                 "to 70 characters");
        b->fields = json_object();
        b->form = srv_multipart_open(boundary, &events, b);
        if (!b->fields || !b->form)
            return srv_fault_set(&b->fault, 503, "out_of_memory", NULL, "no memory for the form");
    } else if (type && *type && !is_json_type(type)) {
        return srv_fault_set(&b->fault, 415, "unsupported_content_type", NULL,
                             "Content-Type %.80s: expected multipart/form-data or application/json",
                             type);
    }
    return length > 0 ? reserve(b, length) : true;
}

void srv_body_feed(srv_body *b, const void *p, size_t n)
{
    b->received += (int64_t)n;
    if (b->fault.http) return;
    if (b->received > b->max_bytes) {
        srv_fault_set(&b->fault, 413, "request_too_large", NULL,
                      "the body has more than the %lld bytes that are accepted",
                      (long long)b->max_bytes);
        return;
    }
    const int64_t weight = b->is_form ? 1 : 3;
    if (b->received * weight > b->reserved &&
        !reserve(b, b->received - b->reserved / weight + 65536))
        return;
    if (!b->form)
        add_text(b, p, n);
    else if (!srv_multipart_feed(b->form, p, n) && !b->fault.http)
        srv_fault_set(&b->fault, 400, "invalid_multipart", NULL, "malformed form: %s",
                      srv_multipart_error(b->form));
}

/* An empty body is an empty object: clients send a JSON content type with nothing behind it. */
static bool parse_json(srv_body *b)
{
    json_error_t err;

    if (b->n_text == 0) {
        b->fields = json_object();
        return b->fields != NULL;
    }
    b->fields = json_loadb(b->text, b->n_text, JSON_REJECT_DUPLICATES, &err);
    if (!b->fields)
        return srv_fault_set(&b->fault, 400, "invalid_json", NULL,
                             "the body is no valid JSON: %s (line %d, column %d)", err.text,
                             err.line, err.column);
    if (!json_is_object(b->fields))
        return srv_fault_set(&b->fault, 400, "invalid_json", NULL,
                             "the body is JSON, but no object of fields");
    return true;
}

bool srv_body_end(srv_body *b)
{
    if (b->fault.http) return false;
    if (!b->form) {
        const bool is_ok = parse_json(b);
        free(b->text); // may be large, and is not needed any more
        b->text = NULL;
        b->n_text = b->cap_text = 0;
        return is_ok;
    }
    if (!srv_multipart_finish(b->form))
        return srv_fault_set(&b->fault, 400, "invalid_multipart", NULL, "malformed form: %s",
                             srv_multipart_error(b->form));
    return true;
}

void srv_body_free(srv_body *b)
{
    if (b->file) fclose(b->file);
    if (b->dir && b->is_dir_made) srv_remove_tree(b->dir);
    free(b->dir);
    free(b->text);
    json_decref(b->fields);
    if (b->form) srv_multipart_close(&b->form);
    if (b->inflight) atomic_fetch_sub(&b->inflight->bytes, b->reserved);
    memset(b, 0, sizeof *b);
}
