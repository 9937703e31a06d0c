/**
 * The job store in PostgreSQL, for servers on several machines that share one queue (and one data
 * folder). store.c passes its calls on to these; what they return is said in store.h.
 *
 * Who runs what: a job is claimed with SELECT ... FOR UPDATE SKIP LOCKED, so two machines never get
 * the same one, and belongs to the claiming server (`owner`, new for every start) while that one's
 * heartbeat is younger than the lease. A job whose heartbeat is older is claimed by whoever asks
 * next and goes on from its checkpoint. The former owner, should it come back, can no longer end
 * the job; it is told to stop. Times are the database's, clocks of machines do not matter.
 */
#ifndef H3AV_SERVER_STORE_PG_H
#define H3AV_SERVER_STORE_PG_H

#include "store.h"

typedef struct srv_pg srv_pg;

/** Is it an address of PostgreSQL (postgresql://..., postgres://...) rather than a file? */
bool srv_pg_is_url(const char *path);

bool srv_pg_open(srv_pg **out, const char *url, char **why);
void srv_pg_close(srv_pg **p);

/** `stop` is called (from a thread of the store) with a job that runs here and shall not: someone
 *  asked another server to cancel it, or it was lost to another owner. Set once, after opening. */
void srv_pg_watch(srv_pg *p, void (*stop)(void *user, const char *id), void *user);

srv_result srv_pg_create(srv_pg *p, srv_job *j, int max_queue, const char *key, uint64_t hash);
srv_result srv_pg_get(srv_pg *p, const char *id, srv_job *j);
srv_result srv_pg_list(srv_pg *p, const char *after, int limit, bool is_desc, srv_job **list,
                       int *n, bool *has_more);
int srv_pg_ahead(srv_pg *p, int64_t seq);
srv_result srv_pg_claim(srv_pg *p, srv_job *j);
srv_result srv_pg_planned(srv_pg *p, const char *id, int width, int height, int frames, int steps);
srv_result srv_pg_finish(srv_pg *p, const char *id, srv_status status, const char *code,
                         const char *message, const char *result, const char *warnings,
                         int64_t bytes, int64_t expires);
srv_result srv_pg_cancel_queued(srv_pg *p, const char *id, int64_t expires);
srv_result srv_pg_ask_cancel(srv_pg *p, const char *id);
srv_result srv_pg_requeue(srv_pg *p, const char *id);
srv_result srv_pg_delete(srv_pg *p, const char *id);
int srv_pg_recover(srv_pg *p, int64_t expires);
srv_result srv_pg_expired(srv_pg *p, int64_t now, int keep, uint64_t keep_bytes,
                          char (**ids)[SRV_ID_LEN], int *n);
srv_result srv_pg_counts(srv_pg *p, srv_counts *c);
srv_result srv_pg_ping(srv_pg *p);

#endif
