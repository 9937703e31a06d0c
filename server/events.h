/**
 * GET /v1/videos/{id}/events: the life of a job as server-sent events.
 *
 *     event: status   data: the video object           at once, and whenever its status changes
 *     event: progress data: {phase, step, steps, ...}  at most ten a second, the newest state
 *     event: preview  data: {number, png}              a picture of the unfinished video, if any
 *     event: done     data: the video object           last; then the stream ends
 *     : keep-alive                                     after 10 s of silence
 *
 * Events carry whole states, not changes: whoever reconnects has missed nothing.
 */
#ifndef H3AV_SERVER_EVENTS_H
#define H3AV_SERVER_EVENTS_H

#include "http.h"

enum MHD_Result srv_events(srv_req *r);

#endif
