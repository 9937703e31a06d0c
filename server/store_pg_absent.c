/** In the place of store_pg.c in a build without libpq: the address is known when it is seen, and
 * opening says what is missing. Nothing else can be reached, since no store was opened. */
#include <string.h>

#include "store_pg.h"

bool srv_pg_is_url(const char *path)
{
    return strncmp(path, "postgresql://", 13) == 0 || strncmp(path, "postgres://", 11) == 0;
}

bool srv_pg_open(srv_pg **out, const char *url, char **why)
{
    (void)url;
    *out = NULL;
    *why = srv_copy("this build has no PostgreSQL: install libpq-dev and build again");
    return false;
}

#define UNREACHED(name, params)     \
    srv_result srv_pg_##name params \
    {                               \
        return SRV_BROKEN;          \
    }
#define U __attribute__((unused))

void srv_pg_close(srv_pg **p U) {}
void srv_pg_watch(srv_pg *p U, void (*stop)(void *user, const char *id) U, void *user U) {}
int srv_pg_ahead(srv_pg *p U, int64_t seq U)
{
    return 0;
}
int srv_pg_recover(srv_pg *p U, int64_t expires U)
{
    return -1;
}
UNREACHED(create, (srv_pg * p U, srv_job *j U, int max U, const char *key U, uint64_t hash U))
UNREACHED(get, (srv_pg * p U, const char *id U, srv_job *j U))
UNREACHED(list, (srv_pg * p U, const char *after U, int limit U, bool is_desc U, srv_job **list U,
                 int *n U, bool *has_more U))
UNREACHED(claim, (srv_pg * p U, srv_job *j U))
UNREACHED(planned, (srv_pg * p U, const char *id U, int w U, int h U, int f U, int s U))
UNREACHED(finish, (srv_pg * p U, const char *id U, srv_status status U, const char *code U,
                   const char *message U, const char *result U, const char *warnings U,
                   int64_t bytes U, int64_t expires U))
UNREACHED(cancel_queued, (srv_pg * p U, const char *id U, int64_t expires U))
UNREACHED(ask_cancel, (srv_pg * p U, const char *id U))
UNREACHED(requeue, (srv_pg * p U, const char *id U))
UNREACHED(delete, (srv_pg * p U, const char *id U))
UNREACHED(expired, (srv_pg * p U, int64_t now U, int keep U, uint64_t keep_bytes U,
                    char (**ids)[SRV_ID_LEN] U, int *n U))
UNREACHED(counts, (srv_pg * p U, srv_counts *c U))
UNREACHED(ping, (srv_pg * p U))
