/**
 * What is happening right now: progress of the running jobs, and a bell that rings when anything
 * about any job changed. Streams wait on the bell and then look; nothing is queued for them, so a
 * slow reader costs nothing and always gets the newest state.
 */
#ifndef H3AV_SERVER_HUB_H
#define H3AV_SERVER_HUB_H

#include <pthread.h>

#include "util.h"

enum { SRV_WORKERS_MAX = 16 };

typedef struct srv_live {
    char id[SRV_ID_LEN]; ///< "" when the slot is free
    char phase[16];
    int64_t step, steps;
    double progress, eta, step_seconds; ///< 0..1; seconds or < 0 when unknown
    double phase_from, phase_since;     ///< progress and srv_now() when the phase began
    double since;                       ///< srv_now() of the start
    bool is_cancelling;
    uint64_t preview_no; ///< counts the previews, 0: none yet
} srv_live;

typedef struct srv_hub {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    uint64_t version;
    bool is_stopping;
    srv_live live[SRV_WORKERS_MAX];
    char *preview[SRV_WORKERS_MAX]; ///< base64 of the newest picture
} srv_hub;

void srv_hub_init(srv_hub *h);
void srv_hub_free(srv_hub *h);
void srv_hub_ring(srv_hub *h);
void srv_hub_stop(srv_hub *h); ///< rings, and every wait returns at once from now on

/** The version now. */
uint64_t srv_hub_version(srv_hub *h);
/** Waits until the version is not `seen` any more, for at most `seconds`. Returns the version. */
uint64_t srv_hub_wait(srv_hub *h, uint64_t seen, double seconds);
bool srv_hub_is_stopping(srv_hub *h);

/** Copies the live state of a running job; false when it does not run. */
bool srv_hub_get(srv_hub *h, const char *id, srv_live *out);
/** base64 of the newest preview when its number is not `seen`; malloc'd, or NULL. */
char *srv_hub_preview(srv_hub *h, const char *id, uint64_t seen, uint64_t *no);

#endif
