/**
 * The jobs, in one SQLite file (write-ahead log, every commit synced): what was accepted is never
 * lost, whatever happens to the process.
 *
 * A job is stored before anyone hears of it, and each change of its status is one transaction. One
 * connection writes, under a mutex; a few others read beside it, so that asking for a job never
 * waits for a sync of the disk. Live progress is not kept here (hub.h).
 *
 * All calls may come from any thread. Results other than SRV_OK say why; details go to the log.
 */
#ifndef H3AV_SERVER_STORE_H
#define H3AV_SERVER_STORE_H

#include "util.h"

typedef enum srv_status {
    SRV_QUEUED = 0,
    SRV_RUNNING,
    SRV_COMPLETED,
    SRV_FAILED,
    SRV_CANCELLED,
    SRV_N_STATUS
} srv_status;

const char *srv_status_name(srv_status s); ///< "queued", "in_progress", ...
static inline bool srv_is_final(srv_status s)
{
    return s >= SRV_COMPLETED;
}

typedef struct srv_job {
    char id[SRV_ID_LEN];
    int64_t seq; ///< order of the queue
    srv_status status;
    int64_t created, started, completed, expires; ///< seconds since 1970, 0: not yet
    char *model, *prompt;
    char *params; ///< JSON: what the worker is to do (params.h)
    char *inputs; ///< JSON: [{file, name, kind, role, sound}] in the job's folder
    int width, height, frames, steps; ///< 0 until planned
    char *error_code, *error_message;
    char *remixed_from; ///< id, or NULL
    char *result;       ///< JSON of a completed run, or NULL
    char *warnings;     ///< JSON list of sentences, or NULL
    int64_t bytes;      ///< of all files of the job
    int attempts;       ///< times a worker took it
    bool is_cancel_asked;
} srv_job;

void srv_job_free(srv_job *j); ///< what it points to; zeroes it

typedef enum srv_result {
    SRV_OK = 0,
    SRV_NO_JOB,     ///< no such id (or nothing to claim)
    SRV_FULL,       ///< the queue holds max_queue jobs
    SRV_REPLAYED,   ///< create: this idempotency key already made *j
    SRV_KEY_REUSED, ///< create: this idempotency key belongs to another request
    SRV_NO_SPACE,   ///< the disk is full
    SRV_BROKEN      ///< the database failed otherwise
} srv_result;

typedef struct srv_store srv_store;

/** Opens or makes the database: a file, or postgresql://... for a queue that several servers share
 *  (store_pg.h). On failure *why is a malloc'd sentence. */
bool srv_store_open(srv_store **out, const char *path, char **why);
void srv_store_close(srv_store **s);

/** Stores a new queued job; sets j->seq. `key` NULL: no idempotency. SRV_REPLAYED replaces *j. */
srv_result srv_store_create(srv_store *s, srv_job *j, int max_queue, const char *key,
                            uint64_t hash);
srv_result srv_store_get(srv_store *s, const char *id, srv_job *j);
/** Up to `limit` jobs after the id `after` (NULL: from the start), newest first when `is_desc`.
 *  *list is malloc'd; free each job, then the list. */
srv_result srv_store_list(srv_store *s, const char *after, int limit, bool is_desc, srv_job **list,
                          int *n, bool *has_more);
/** Jobs that wait before `seq`. */
int srv_store_ahead(srv_store *s, int64_t seq);

/** The oldest queued job becomes SRV_RUNNING. */
srv_result srv_store_claim(srv_store *s, srv_job *j);
srv_result srv_store_planned(srv_store *s, const char *id, int width, int height, int frames,
                             int steps);
/** The end of a running job (or of a queued one: cancelled). `result`, `warnings`, `code` and
 *  `message` may be NULL. SRV_NO_JOB when it was deleted or has ended already. */
srv_result srv_store_finish(srv_store *s, const char *id, srv_status status, const char *code,
                            const char *message, const char *result, const char *warnings,
                            int64_t bytes, int64_t expires);
/** Cancels a queued job; SRV_NO_JOB when it is not queued. */
srv_result srv_store_cancel_queued(srv_store *s, const char *id, int64_t expires);
/** Remembers that a running job is to stop, over a restart too. */
srv_result srv_store_ask_cancel(srv_store *s, const char *id);
/** Gives a running job back to the queue (the server stops). */
srv_result srv_store_requeue(srv_store *s, const char *id);
srv_result srv_store_delete(srv_store *s, const char *id);

/** After a restart: running jobs are queued again, those asked to cancel are cancelled. Returns how
 *  many, -1 on failure. */
int srv_store_recover(srv_store *s, int64_t expires);

/** Ids of finished jobs that retention wants gone: expired, beyond the newest `keep`, or beyond
 *  `keep_bytes` counted from the newest. *ids is malloc'd, at most 256. */
srv_result srv_store_expired(srv_store *s, int64_t now, int keep, uint64_t keep_bytes,
                             char (**ids)[SRV_ID_LEN], int *n);

typedef struct srv_counts {
    int64_t by_status[SRV_N_STATUS], bytes;
} srv_counts;
srv_result srv_store_counts(srv_store *s, srv_counts *c);
/** Can it be written? For /ready. */
srv_result srv_store_ping(srv_store *s);


/** Do other servers use the same jobs, and so the same folders? */
bool srv_store_is_shared(const srv_store *s);
/** Calls stop with jobs that run here and must not: see srv_pg_watch. Does nothing for a file. */
void srv_store_watch(srv_store *s, void (*stop)(void *user, const char *id), void *user);

#endif
