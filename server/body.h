/**
 * The body of a request, as it comes in: a form or JSON becomes one JSON object of fields, files go
 * straight to a folder of the server's own. Nothing of the client's ever becomes part of a path.
 *
 * A form's text fields are strings; "extra_params[task]" nests, "x[]" and a repeated name make a
 * list. A file stands in the object as {"$upload": n}. The order of the fields is kept: it is the
 * order of the references.
 */
#ifndef H3AV_SERVER_BODY_H
#define H3AV_SERVER_BODY_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>

#include "fault.h"
#include "multipart.h"

enum {
    SRV_UPLOADS_MAX = 16,
    SRV_TEXT_MAX = 64 << 20 ///< bytes of JSON, or of all text fields of a form
};

typedef struct srv_upload {
    char name[SRV_PART_NAME_MAX + 1]; ///< for messages
    int64_t bytes;
    uint64_t hash;
} srv_upload;

/** Bytes of bodies that the server holds at the moment, on disk and in memory, and how many it
 *  accepts at once: many clients must not fill either together. */
typedef struct srv_inflight {
    atomic_llong bytes;
    int64_t limit;
} srv_inflight;

typedef struct srv_body {
    srv_fault fault;
    json_t *fields; ///< object, once srv_body_end returned true
    srv_upload upload[SRV_UPLOADS_MAX];
    int n_uploads;
    char *dir; ///< folder of the files in0, in1, ...; made with the first one
    /* the rest is the reader's own */
    bool is_form, is_dir_made, is_dropped;
    srv_multipart *form;
    srv_part part;
    FILE *file; ///< of the file part, or NULL: buffered, since a parser may hand out single bytes
    char *text;
    size_t n_text, cap_text, n_texts; ///< of this field, of all fields
    int64_t received, max_bytes, reserved;
    srv_inflight *inflight;
} srv_body;

/** `dir`: where files would go (copied); `length` -1: not announced. Content types other than a
 * form or JSON are faults (415). */
bool srv_body_begin(srv_body *b, const char *content_type, int64_t length, const char *dir,
                    int64_t max_bytes, srv_inflight *inflight);
/** After a fault what comes is counted and dropped. */
void srv_body_feed(srv_body *b, const void *p, size_t n);
bool srv_body_end(srv_body *b);

/** A new file of the folder for the caller to write, counted as an upload; -1 and a fault. */
int srv_body_new_file(srv_body *b, const char *name, int *index);
/** Makes all files durable. */
bool srv_body_sync(srv_body *b);
/** Frees; removes the folder unless it was moved away (b->dir set to NULL). */
void srv_body_free(srv_body *b);

#endif
