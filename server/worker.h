/**
 * Workers: one thread and one process for each device. The thread takes the oldest queued job and
 * hands it to the process; what the process tells becomes live progress (hub.h) and, at the end, a
 * row of the store. A process that dies fails the job it had and is started again.
 *
 * Messages are lines of JSON over a socket pair. To the process: {"op": "open" | "run" | "cancel" |
 * "check", ...}. From it: {"e": "ready" | "plan" | "phase" | "step" | "warning" | "preview" |
 * "done" | "fail" | "checked", ...}. It ends when the socket closes or the server dies.
 */
#ifndef H3AV_SERVER_WORKER_H
#define H3AV_SERVER_WORKER_H

#include "state.h"

bool srv_workers_start(srv *s);
void srv_workers_stop(srv *s); ///< ends the processes; a running job goes back to the queue

/** Asks the worker that runs `id` to stop; false when none does. */
bool srv_workers_cancel(srv *s, const char *id);
bool srv_workers_any_ready(srv *s);

/**
 * Checks a new job before it is queued, filling job width, height, frames and steps as far as they
 * are known: uploads are opened by a process of their own, since they may be hostile. `dir` holds
 * the files. False: *f says why.
 */
bool srv_check_job(srv *s, srv_params *p, const char *dir, srv_job *job, srv_fault *f);
void srv_checker_stop(srv *s);

#endif
