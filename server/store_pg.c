/** See store_pg.h. Every call takes one connection of a small pool, for one statement or one
 * transaction; a connection that broke is opened again by the next call that gets it. */
#include "store_pg.h"

#include <errno.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    N_CONNECTIONS = 6,
    SCHEMA = 1,
    LEASE = 15, ///< seconds; heartbeats come five times as often
    MAX_PARAMS = 14,
    MINE_MAX = 64 ///< jobs running here
};
#define LOCK_KEY "5206311943" // of advisory locks: schema and creation of jobs

struct srv_pg {
    PGconn *idle[N_CONNECTIONS], *all[N_CONNECTIONS];
    int n_idle;
    pthread_mutex_t pool;
    pthread_cond_t is_idle;
    char owner[SRV_ID_LEN];
    char lease[24];
    /* heartbeat */
    PGconn *beat;
    pthread_t thread;
    bool is_started, is_stopping;
    pthread_mutex_t lock; ///< of what follows
    pthread_cond_t wake;
    char mine[MINE_MAX][SRV_ID_LEN];
    void (*stop)(void *user, const char *id);
    void *user;
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS h3av_meta(version integer NOT NULL);"
    "CREATE TABLE IF NOT EXISTS h3av_jobs("
    " seq bigserial PRIMARY KEY, id text COLLATE \"C\" NOT NULL UNIQUE, status integer NOT NULL,"
    " created bigint NOT NULL, started bigint NOT NULL DEFAULT 0,"
    " completed bigint NOT NULL DEFAULT 0, expires bigint NOT NULL DEFAULT 0,"
    " model text, prompt text, params text, inputs text, width integer, height integer,"
    " frames integer, steps integer, error_code text, error_message text, remixed_from text,"
    " result text, warnings text, bytes bigint NOT NULL DEFAULT 0,"
    " attempts integer NOT NULL DEFAULT 0, cancel integer NOT NULL DEFAULT 0,"
    " owner text NOT NULL DEFAULT '', beat timestamptz NOT NULL DEFAULT now());"
    "CREATE INDEX IF NOT EXISTS h3av_jobs_status ON h3av_jobs(status, seq);"
    "CREATE TABLE IF NOT EXISTS h3av_keys(key text PRIMARY KEY, hash text NOT NULL,"
    " id text NOT NULL, created bigint NOT NULL);";

#define COLUMNS                                                                                    \
    "id, seq, status, created, started, completed, expires, model, prompt, params, inputs, width," \
    " height, frames, steps, error_code, error_message, remixed_from, result, warnings, bytes,"    \
    " attempts, cancel"

/* ----------------------------------------------------------------------------------- statements */

static srv_result failed(const PGconn *db, const PGresult *q, const char *what)
{
    const char *state = q ? PQresultErrorField(q, PG_DIAG_SQLSTATE) : NULL;
    char text[300];

    snprintf(text, sizeof text, "%s", q ? PQresultErrorMessage(q) : PQerrorMessage(db));
    text[strcspn(text, "\n")] = '\0';
    srv_error("database: %s: %s", what, text);
    return state && strncmp(state, "53", 2) == 0 ? SRV_NO_SPACE : SRV_BROKEN; // resources are short
}

/* `kinds`: s text (NULL allowed), i int64. NULL only without memory. */
static PGresult *ask(PGconn *db, const char *sql, const char *kinds, ...)
{
    const char *value[MAX_PARAMS];
    char number[MAX_PARAMS][24];
    va_list ap;
    int n = 0;

    va_start(ap, kinds);
    for (; kinds[n] && n < MAX_PARAMS; n++) {
        if (kinds[n] == 's') {
            value[n] = va_arg(ap, const char *);
        } else {
            snprintf(number[n], sizeof number[n], "%lld", (long long)va_arg(ap, int64_t));
            value[n] = number[n];
        }
    }
    va_end(ap);
    return PQexecParams(db, sql, n, NULL, value, NULL, NULL, 0);
}

static bool is_good(const PGresult *q)
{
    const ExecStatusType s = PQresultStatus(q);
    return s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK;
}

static bool run(PGconn *db, const char *sql)
{
    PGresult *q = PQexec(db, sql);
    const bool ok = is_good(q);

    PQclear(q);
    return ok;
}

static PGconn *take(srv_pg *p)
{
    PGconn *db;

    pthread_mutex_lock(&p->pool);
    while (p->n_idle == 0)
        pthread_cond_wait(&p->is_idle, &p->pool);
    db = p->idle[--p->n_idle];
    pthread_mutex_unlock(&p->pool);
    if (PQstatus(db) != CONNECTION_OK) PQreset(db);
    return db;
}

static void give(srv_pg *p, PGconn *db)
{
    pthread_mutex_lock(&p->pool);
    p->idle[p->n_idle++] = db;
    pthread_cond_signal(&p->is_idle);
    pthread_mutex_unlock(&p->pool);
}

/* The end of a statement that changes rows: SRV_NO_JOB when it changed none. Clears q. */
static srv_result changed(const PGconn *db, PGresult *q, const char *what)
{
    srv_result r = SRV_OK;

    if (!is_good(q))
        r = failed(db, q, what);
    else if (atoll(PQcmdTuples(q)) == 0)
        r = SRV_NO_JOB;
    PQclear(q);
    return r;
}

static int64_t number_at(const PGresult *q, int row, int i)
{
    return PQgetisnull(q, row, i) ? 0 : atoll(PQgetvalue(q, row, i));
}

static char *text_at(const PGresult *q, int row, int i)
{
    return PQgetisnull(q, row, i) ? NULL : srv_copy(PQgetvalue(q, row, i));
}

static void take_row(srv_job *j, const PGresult *q, int row)
{
    memset(j, 0, sizeof *j);
    snprintf(j->id, sizeof j->id, "%s", PQgetvalue(q, row, 0));
    j->seq = number_at(q, row, 1);
    j->status = (srv_status)number_at(q, row, 2);
    j->created = number_at(q, row, 3);
    j->started = number_at(q, row, 4);
    j->completed = number_at(q, row, 5);
    j->expires = number_at(q, row, 6);
    j->model = text_at(q, row, 7);
    j->prompt = text_at(q, row, 8);
    j->params = text_at(q, row, 9);
    j->inputs = text_at(q, row, 10);
    j->width = (int)number_at(q, row, 11);
    j->height = (int)number_at(q, row, 12);
    j->frames = (int)number_at(q, row, 13);
    j->steps = (int)number_at(q, row, 14);
    j->error_code = text_at(q, row, 15);
    j->error_message = text_at(q, row, 16);
    j->remixed_from = text_at(q, row, 17);
    j->result = text_at(q, row, 18);
    j->warnings = text_at(q, row, 19);
    j->bytes = number_at(q, row, 20);
    j->attempts = (int)number_at(q, row, 21);
    j->is_cancel_asked = number_at(q, row, 22) != 0;
}

static srv_result one_row(const PGconn *db, PGresult *q, srv_job *j, const char *what)
{
    srv_result r = SRV_NO_JOB;

    if (!is_good(q)) {
        r = failed(db, q, what);
    } else if (PQntuples(q) > 0) {
        take_row(j, q, 0);
        r = SRV_OK;
    }
    PQclear(q);
    return r;
}

/* ------------------------------------------------------------------------------------ heartbeats
 */

/* Which jobs run here; a lost or cancelled one is told of once. */
static void note_mine(srv_pg *p, const char *id, bool is_mine)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < MINE_MAX; i++) {
        if (strcmp(p->mine[i], is_mine ? "" : id) != 0) continue;
        snprintf(p->mine[i], sizeof p->mine[i], "%s", is_mine ? id : "");
        break;
    }
    pthread_mutex_unlock(&p->lock);
}

static bool is_listed(const PGresult *q, const char *id)
{
    for (int i = 0; i < PQntuples(q); i++)
        if (strcmp(PQgetvalue(q, i, 0), id) == 0) return number_at(q, i, 1) == 0;
    return false;
}

/* Jobs that were running here when the statement began and are not among those it renewed. */
static void tell_stops(srv_pg *p, const PGresult *q, char before[MINE_MAX][SRV_ID_LEN])
{
    for (int i = 0; i < MINE_MAX; i++) {
        if (!before[i][0] || is_listed(q, before[i])) continue;
        pthread_mutex_lock(&p->lock);
        const bool is_still = strcmp(p->mine[i], before[i]) == 0;
        void (*const stop)(void *, const char *) = p->stop;
        void *const user = p->user;
        pthread_mutex_unlock(&p->lock);
        if (is_still && stop) stop(user, before[i]);
    }
}

static void beat_once(srv_pg *p)
{
    char before[MINE_MAX][SRV_ID_LEN];
    PGresult *q;

    pthread_mutex_lock(&p->lock);
    memcpy(before, p->mine, sizeof before);
    pthread_mutex_unlock(&p->lock);
    if (PQstatus(p->beat) != CONNECTION_OK) PQreset(p->beat);
    q = ask(p->beat,
            "UPDATE h3av_jobs SET beat = now() WHERE owner = $1 AND status = 1 "
            "RETURNING id, cancel",
            "s", p->owner);
    if (is_good(q))
        tell_stops(p, q, before);
    else
        failed(p->beat, q, "heartbeat");
    PQclear(q);
}

static void *beat(void *user)
{
    srv_pg *p = user;
    const double every = atof(p->lease) / 5;

    pthread_mutex_lock(&p->lock);
    while (!p->is_stopping) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (time_t)every;
        until.tv_nsec += (long)((every - (double)(time_t)every) * 1e9);
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        if (pthread_cond_timedwait(&p->wake, &p->lock, &until) != ETIMEDOUT) continue;
        pthread_mutex_unlock(&p->lock);
        beat_once(p);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void srv_pg_watch(srv_pg *p, void (*stop)(void *user, const char *id), void *user)
{
    pthread_mutex_lock(&p->lock);
    p->stop = stop;
    p->user = user;
    pthread_mutex_unlock(&p->lock);
}

/* ----------------------------------------------------------------------------------- open, close
 */

bool srv_pg_is_url(const char *path)
{
    return strncmp(path, "postgresql://", 13) == 0 || strncmp(path, "postgres://", 11) == 0;
}

static void no_notice(void *user, const char *text)
{
    (void)user;
    (void)text;
}

static PGconn *connect_one(const char *url, char **why)
{
    PGconn *db = PQconnectdb(url);

    if (PQstatus(db) == CONNECTION_OK && PQsetClientEncoding(db, "UTF8") == 0) {
        PQsetNoticeProcessor(db, no_notice, NULL);
        return db;
    }
    *why = srv_text("the database: %s", PQerrorMessage(db)); // holds no password
    (*why)[strcspn(*why, "\n")] = '\0';
    PQfinish(db);
    return NULL;
}

/* Servers that start at the same time make the tables once. */
static bool prepare_schema(PGconn *db, char **why)
{
    PGresult *q = NULL;
    bool ok = run(db, "BEGIN") && run(db, "SELECT pg_advisory_xact_lock(" LOCK_KEY ")") &&
              run(db, schema) &&
              run(db, "INSERT INTO h3av_meta SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM h3av_meta)");
    int64_t version = -1;

    if (ok) {
        q = PQexec(db, "SELECT version FROM h3av_meta");
        if (is_good(q) && PQntuples(q) == 1) version = number_at(q, 0, 0);
        PQclear(q);
        ok = run(db, "COMMIT");
    }
    if (ok && version == SCHEMA) return true;
    if (!ok) {
        *why = srv_text("the database: %s", PQerrorMessage(db));
        (*why)[strcspn(*why, "\n")] = '\0';
        run(db, "ROLLBACK");
    } else {
        *why = srv_text("the database: its jobs are of another version of h3av (%lld)",
                        (long long)version);
    }
    return false;
}

bool srv_pg_open(srv_pg **out, const char *url, char **why)
{
    const char *lease = getenv("H3AV_LEASE_SECONDS"); // for tests
    srv_pg *p = calloc(1, sizeof *p);
    bool ok;

    *out = NULL;
    if (!p) {
        *why = srv_copy("no memory for the job store");
        return false;
    }
    pthread_mutex_init(&p->pool, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->is_idle, NULL);
    pthread_cond_init(&p->wake, NULL);
    snprintf(p->lease, sizeof p->lease, "%g", lease && atof(lease) > 0 ? atof(lease) : LEASE);
    ok = srv_new_id(p->owner);
    if (!ok) *why = srv_copy("the system has no random numbers");
    for (int i = 0; ok && i < N_CONNECTIONS; i++) {
        ok = (p->all[i] = connect_one(url, why)) != NULL;
        if (ok) p->idle[p->n_idle++] = p->all[i];
    }
    if (ok) ok = (p->beat = connect_one(url, why)) != NULL;
    if (ok) ok = prepare_schema(p->all[0], why);
    if (ok && pthread_create(&p->thread, NULL, beat, p) == 0)
        p->is_started = true;
    else if (ok)
        *why = srv_copy("no thread for heartbeats");
    if (!p->is_started) {
        srv_pg_close(&p);
        return false;
    }
    *out = p;
    return true;
}

void srv_pg_close(srv_pg **pp)
{
    srv_pg *p = *pp;

    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    if (p->is_started) pthread_join(p->thread, NULL);
    for (int i = 0; i < N_CONNECTIONS; i++)
        PQfinish(p->all[i]);
    PQfinish(p->beat);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->is_idle);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->pool);
    free(p);
    *pp = NULL;
}

/* ----------------------------------------------------------------------------------------- reads
 */

srv_result srv_pg_get(srv_pg *p, const char *id, srv_job *j)
{
    PGconn *db = take(p);
    const srv_result r =
        one_row(db, ask(db, "SELECT " COLUMNS " FROM h3av_jobs WHERE id = $1", "s", id), j, "get");

    give(p, db);
    return r;
}

srv_result srv_pg_list(srv_pg *p, const char *after, int limit, bool is_desc, srv_job **list,
                       int *n, bool *has_more)
{
    PGconn *db = take(p);
    PGresult *q =
        !after ? ask(db,
                     is_desc ? "SELECT " COLUMNS " FROM h3av_jobs ORDER BY id DESC LIMIT $1::bigint"
                             : "SELECT " COLUMNS " FROM h3av_jobs ORDER BY id LIMIT $1::bigint",
                     "i", (int64_t)limit + 1)
               : ask(db,
                     is_desc ? "SELECT " COLUMNS
                               " FROM h3av_jobs WHERE id < $2 ORDER BY id DESC LIMIT $1::bigint"
                             : "SELECT " COLUMNS
                               " FROM h3av_jobs WHERE id > $2 ORDER BY id LIMIT $1::bigint",
                     "is", (int64_t)limit + 1, after);
    srv_result r = SRV_OK;

    *n = 0;
    *has_more = false;
    *list = calloc((size_t)limit + 1, sizeof **list);
    if (!is_good(q))
        r = failed(db, q, "list");
    else if (!*list)
        r = SRV_BROKEN;
    for (int i = 0; r == SRV_OK && i < PQntuples(q); i++) {
        *has_more = i == limit;
        if (!*has_more) take_row(&(*list)[(*n)++], q, i);
    }
    PQclear(q);
    give(p, db);
    if (r == SRV_OK) return r;
    free(*list);
    *list = NULL;
    return r;
}

int srv_pg_ahead(srv_pg *p, int64_t seq)
{
    PGconn *db = take(p);
    PGresult *q =
        ask(db, "SELECT count(*) FROM h3av_jobs WHERE status = 0 AND seq < $1::bigint", "i", seq);
    const int n = is_good(q) ? (int)number_at(q, 0, 0) : 0;

    PQclear(q);
    give(p, db);
    return n;
}

srv_result srv_pg_counts(srv_pg *p, srv_counts *c)
{
    PGconn *db = take(p);
    PGresult *q = PQexec(db, "SELECT status, count(*), sum(bytes) FROM h3av_jobs GROUP BY status");
    srv_result r = SRV_OK;

    memset(c, 0, sizeof *c);
    if (!is_good(q)) r = failed(db, q, "counts");
    for (int i = 0; r == SRV_OK && i < PQntuples(q); i++) {
        const int64_t st = number_at(q, i, 0);
        if (st >= 0 && st < SRV_N_STATUS) c->by_status[st] = number_at(q, i, 1);
        c->bytes += number_at(q, i, 2);
    }
    PQclear(q);
    give(p, db);
    return r;
}

/* ---------------------------------------------------------------------------------------- writes
 */

static srv_result look_up_key(PGconn *db, srv_job *j, const char *key, const char *hash)
{
    PGresult *q = ask(db, "SELECT hash, id FROM h3av_keys WHERE key = $1", "s", key);
    srv_result r = SRV_OK;
    srv_job old;

    if (!is_good(q)) {
        r = failed(db, q, "idempotency key");
    } else if (PQntuples(q) > 0 && strcmp(PQgetvalue(q, 0, 0), hash) != 0) {
        r = SRV_KEY_REUSED;
    } else if (PQntuples(q) > 0) {
        r = one_row(
            db,
            ask(db, "SELECT " COLUMNS " FROM h3av_jobs WHERE id = $1", "s", PQgetvalue(q, 0, 1)),
            &old, "get");
        if (r == SRV_OK) {
            srv_job_free(j);
            *j = old;
            r = SRV_REPLAYED;
        } else if (r == SRV_NO_JOB) { // deleted since: the key is free again
            r = SRV_OK;
        }
    }
    PQclear(q);
    return r;
}

static srv_result insert(PGconn *db, srv_job *j, int max_queue)
{
    PGresult *q = PQexec(db, "SELECT count(*) FROM h3av_jobs WHERE status = 0");
    srv_result r = SRV_OK;

    if (!is_good(q))
        r = failed(db, q, "create");
    else if (number_at(q, 0, 0) >= max_queue)
        r = SRV_FULL;
    PQclear(q);
    if (r != SRV_OK) return r;
    q = ask(db,
            "INSERT INTO h3av_jobs(id, status, created, model, prompt, params, inputs, width,"
            " height, frames, steps, remixed_from, bytes)"
            " VALUES($1,0,$2::bigint,$3,$4,$5,$6,$7::integer,$8::integer,$9::integer,$10::integer,"
            "$11,$12::bigint) RETURNING seq",
            "sissssiiiisi", j->id, j->created, j->model, j->prompt, j->params, j->inputs,
            (int64_t)j->width, (int64_t)j->height, (int64_t)j->frames, (int64_t)j->steps,
            j->remixed_from, j->bytes);
    if (is_good(q) && PQntuples(q) == 1)
        j->seq = number_at(q, 0, 0);
    else
        r = failed(db, q, "create");
    PQclear(q);
    return r;
}

static srv_result create_locked(PGconn *db, srv_job *j, int max_queue, const char *key,
                                const char *hash)
{
    srv_result r;

    if (key && (r = look_up_key(db, j, key, hash)) != SRV_OK) return r;
    r = insert(db, j, max_queue);
    if (r == SRV_OK && key)
        r = changed(db,
                    ask(db,
                        "INSERT INTO h3av_keys VALUES($1,$2,$3,$4::bigint) ON CONFLICT (key) DO "
                        "UPDATE SET hash = excluded.hash, id = excluded.id, created = "
                        "excluded.created",
                        "sssi", key, hash, j->id, j->created),
                    "idempotency key");
    return r;
}

/* One creation at a time over all servers: the limit of the queue and the order of seq hold. */
srv_result srv_pg_create(srv_pg *p, srv_job *j, int max_queue, const char *key, uint64_t hash)
{
    PGconn *db = take(p);
    srv_result r = SRV_OK;
    char text[24];

    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    if (!run(db, "BEGIN") || !run(db, "SELECT pg_advisory_xact_lock(" LOCK_KEY ")"))
        r = failed(db, NULL, "create");
    if (r == SRV_OK) r = create_locked(db, j, max_queue, key, text);
    if (r == SRV_OK && !run(db, "COMMIT")) r = failed(db, NULL, "create");
    if (PQtransactionStatus(db) != PQTRANS_IDLE) run(db, "ROLLBACK");
    give(p, db);
    return r;
}

srv_result srv_pg_claim(srv_pg *p, srv_job *j)
{
    PGconn *db = take(p);
    const srv_result r = one_row(
        db,
        ask(db,
            "WITH pick AS (SELECT seq FROM h3av_jobs WHERE status = 0 OR (status = 1 AND owner <> "
            "$1 AND beat < now() - make_interval(secs => $2::float8)) ORDER BY seq LIMIT 1 FOR "
            "UPDATE SKIP LOCKED) "
            "UPDATE h3av_jobs SET status = 1, attempts = attempts + 1, owner = $1, beat = now(),"
            " started = CASE started WHEN 0 THEN $3::bigint ELSE started END"
            " WHERE seq = (SELECT seq FROM pick) RETURNING " COLUMNS,
            "ssi", p->owner, p->lease, srv_unix()),
        j, "claim");

    give(p, db);
    if (r == SRV_OK) note_mine(p, j->id, true);
    return r;
}

/* One statement on one connection. */
#define CHANGE(what, ...)                                                \
    do {                                                                 \
        PGconn *db_ = take(p);                                           \
        const srv_result r_ = changed(db_, ask(db_, __VA_ARGS__), what); \
        give(p, db_);                                                    \
        return r_;                                                       \
    } while (0)

srv_result srv_pg_planned(srv_pg *p, const char *id, int width, int height, int frames, int steps)
{
    CHANGE("plan",
           "UPDATE h3av_jobs SET width = $1::integer, height = $2::integer, frames = $3::integer,"
           " steps = $4::integer WHERE id = $5 AND owner = $6",
           "iiiiss", (int64_t)width, (int64_t)height, (int64_t)frames, (int64_t)steps, id,
           p->owner);
}

/* Only the owner ends a job. Said twice (the first answer may have been lost with its connection)
 * it is still one end. */
srv_result srv_pg_finish(srv_pg *p, const char *id, srv_status status, const char *code,
                         const char *message, const char *result, const char *warnings,
                         int64_t bytes, int64_t expires)
{
    PGconn *db = take(p);
    const srv_result r = changed(
        db,
        ask(db,
            "UPDATE h3av_jobs SET status = $1::integer, completed = $2::bigint, expires ="
            " $3::bigint, error_code = $4, error_message = $5, result = $6, warnings = $7, bytes ="
            " $8::bigint WHERE id = $9 AND owner = $10 AND (status = 1 OR status = $1::integer)",
            "iiissssiss", (int64_t)status, srv_unix(), expires, code, message, result, warnings,
            bytes, id, p->owner),
        "finish");

    give(p, db);
    if (r == SRV_OK || r == SRV_NO_JOB) note_mine(p, id, false);
    return r;
}

srv_result srv_pg_cancel_queued(srv_pg *p, const char *id, int64_t expires)
{
    CHANGE("cancel",
           "UPDATE h3av_jobs SET status = 4, completed = $1::bigint, expires = $2::bigint"
           " WHERE id = $3 AND status = 0",
           "iis", srv_unix(), expires, id);
}

srv_result srv_pg_ask_cancel(srv_pg *p, const char *id)
{
    CHANGE("cancel", "UPDATE h3av_jobs SET cancel = 1 WHERE id = $1 AND status = 1", "s", id);
}

srv_result srv_pg_requeue(srv_pg *p, const char *id)
{
    note_mine(p, id, false);
    CHANGE("requeue",
           "UPDATE h3av_jobs SET status = 0, owner = '' WHERE id = $1 AND status = 1 AND owner = "
           "$2",
           "ss", id, p->owner);
}

srv_result srv_pg_delete(srv_pg *p, const char *id)
{
    CHANGE("delete", "DELETE FROM h3av_jobs WHERE id = $1", "s", id);
}

/* A job whose server is gone is claimed again by itself; only one that was to be cancelled would
 * start for nothing. */
int srv_pg_recover(srv_pg *p, int64_t expires)
{
    PGconn *db = take(p);
    srv_result r = changed(
        db,
        ask(db,
            "UPDATE h3av_jobs SET status = 4, completed = $1::bigint, expires = $2::bigint WHERE"
            " status = 1 AND cancel = 1 AND beat < now() - make_interval(secs => $3::float8)",
            "iis", srv_unix(), expires, p->lease),
        "recover");

    if (r == SRV_OK || r == SRV_NO_JOB) // keys live a day
        r = changed(
            db,
            ask(db, "DELETE FROM h3av_keys WHERE created < $1::bigint", "i", srv_unix() - 86400),
            "recover");
    give(p, db);
    return r == SRV_OK || r == SRV_NO_JOB ? 0 : -1;
}

srv_result srv_pg_expired(srv_pg *p, int64_t now, int keep, uint64_t keep_bytes,
                          char (**ids)[SRV_ID_LEN], int *n)
{
    enum { MOST = 256 };
    PGconn *db = take(p);
    PGresult *q = PQexec(db, "SELECT id, expires, bytes FROM h3av_jobs WHERE status >= 2"
                             " ORDER BY completed DESC, seq DESC");
    srv_result r = SRV_OK;
    int64_t kept = 0;
    uint64_t bytes = 0;

    *n = 0;
    *ids = calloc(MOST, sizeof **ids);
    if (!is_good(q))
        r = failed(db, q, "retention");
    else if (!*ids)
        r = SRV_BROKEN;
    for (int i = 0; r == SRV_OK && *n < MOST && i < PQntuples(q); i++) {
        const int64_t expires = number_at(q, i, 1);
        kept++;
        bytes += (uint64_t)number_at(q, i, 2);
        if ((expires > 0 && expires <= now) || (keep > 0 && kept > keep) ||
            (keep_bytes > 0 && kept > 1 && bytes > keep_bytes)) // the newest always stays
            snprintf((*ids)[(*n)++], SRV_ID_LEN, "%s", PQgetvalue(q, i, 0));
    }
    PQclear(q);
    give(p, db);
    return r;
}

srv_result srv_pg_ping(srv_pg *p)
{
    PGconn *db = take(p);
    PGresult *q = PQexec(db, "SELECT pg_is_in_recovery()");
    srv_result r = SRV_OK;

    if (!is_good(q))
        r = failed(db, q, "ping");
    else if (PQgetvalue(q, 0, 0)[0] == 't') // a standby can be read only
        r = SRV_BROKEN;
    PQclear(q);
    give(p, db);
    return r;
}
