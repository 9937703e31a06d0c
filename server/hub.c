/** See hub.h. */
#include "hub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void srv_hub_init(srv_hub *h)
{
    pthread_condattr_t a;

    memset(h, 0, sizeof *h);
    h->version = 1;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&h->bell, &a);
    pthread_condattr_destroy(&a);
}

void srv_hub_free(srv_hub *h)
{
    for (int i = 0; i < SRV_WORKERS_MAX; i++)
        free(h->preview[i]);
    pthread_cond_destroy(&h->bell);
    pthread_mutex_destroy(&h->lock);
}

void srv_hub_ring(srv_hub *h)
{
    pthread_mutex_lock(&h->lock);
    h->version++;
    pthread_cond_broadcast(&h->bell);
    pthread_mutex_unlock(&h->lock);
}

void srv_hub_stop(srv_hub *h)
{
    pthread_mutex_lock(&h->lock);
    h->is_stopping = true;
    h->version++;
    pthread_cond_broadcast(&h->bell);
    pthread_mutex_unlock(&h->lock);
}

bool srv_hub_is_stopping(srv_hub *h)
{
    bool v;

    pthread_mutex_lock(&h->lock);
    v = h->is_stopping;
    pthread_mutex_unlock(&h->lock);
    return v;
}

uint64_t srv_hub_version(srv_hub *h)
{
    uint64_t v;

    pthread_mutex_lock(&h->lock);
    v = h->version;
    pthread_mutex_unlock(&h->lock);
    return v;
}

uint64_t srv_hub_wait(srv_hub *h, uint64_t seen, double seconds)
{
    struct timespec until;
    uint64_t v;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&h->lock);
    while (h->version == seen && !h->is_stopping && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&h->bell, &h->lock, &until);
    v = h->version;
    pthread_mutex_unlock(&h->lock);
    return v;
}

bool srv_hub_get(srv_hub *h, const char *id, srv_live *out)
{
    bool is_found = false;

    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < SRV_WORKERS_MAX && !is_found; i++) {
        if (strcmp(h->live[i].id, id) != 0) continue;
        *out = h->live[i];
        is_found = true;
    }
    pthread_mutex_unlock(&h->lock);
    return is_found;
}

char *srv_hub_preview(srv_hub *h, const char *id, uint64_t seen, uint64_t *no)
{
    char *out = NULL;

    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < SRV_WORKERS_MAX; i++) {
        if (strcmp(h->live[i].id, id) != 0 || h->live[i].preview_no == seen || !h->preview[i])
            continue;
        out = srv_copy(h->preview[i]);
        *no = h->live[i].preview_no;
    }
    pthread_mutex_unlock(&h->lock);
    return out;
}
