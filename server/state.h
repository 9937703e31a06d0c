/** The server's parts, as they know each other. */
#ifndef H3AV_SERVER_STATE_H
#define H3AV_SERVER_STATE_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "body.h"
#include "hub.h"
#include "params.h"
#include "server.h"
#include "store.h"

enum { SRV_PHASES_MAX = 8 };

/** Counters of /metrics. */
typedef struct srv_metrics {
    atomic_ullong by_class[6]; ///< answers by status / 100
    atomic_ullong requests, rejected_full, workers_crashed, streams_opened;
    pthread_mutex_t lock;
    double job_seconds, phase_seconds[SRV_PHASES_MAX];
    uint64_t jobs_done, jobs_failed, jobs_cancelled;
} srv_metrics;

typedef struct srv_conn srv_conn;
typedef struct srv_child srv_child;

/** A device's worker: a thread here, and the process it talks to. */
typedef struct srv_worker {
    struct srv *s;
    int index;
    char device[32];
    pthread_t thread;
    bool is_started;
    srv_child *child; ///< guarded by s->hub.lock for others than the thread itself
    atomic_bool is_ready;
    double retry_at; ///< not before then a process that could not start is tried again
} srv_worker;

typedef struct srv {
    srv_opts opts;
    char *data_dir, *jobs_dir, *spool_dir, *api_key, *model_name;
    int lock_fd, listen_fd, port;
    srv_store *store;
    srv_hub hub;
    srv_metrics metrics;
    srv_inflight inflight;
    double started;
    /* workers */
    srv_worker worker[SRV_WORKERS_MAX];
    int n_workers;
    pthread_mutex_t ready_lock; ///< of the defaults
    bool is_ready;              ///< an engine was opened; the defaults are known
    int def_width, def_height, def_frames, def_steps;
    atomic_int open_failure; ///< exit status when an engine could not be opened at all
    double mean_job_seconds; ///< guarded by metrics.lock
    /* checking uploads */
    pthread_mutex_t check_lock;
    srv_child *checker;
    /* http */
    struct MHD_Daemon *daemon;
    atomic_int n_streams, n_connections;
    pthread_mutex_t conn_lock;
    srv_conn *conns;
    pthread_t reaper;
    bool is_reaper_started;
} srv;

/** malloc'd path of a job's folder. Only for ids that passed srv_is_id or came from the store. */
char *srv_job_dir(const srv *s, const char *id);
int64_t srv_expiry(const srv *s); ///< expires of a job that ends now
/** Removes what names the server's folders from a sentence, in place. */
void srv_hide_paths(const srv *s, char *text);
/** Deletes jobs that retention wants gone. */
void srv_retain(srv *s);

#endif
