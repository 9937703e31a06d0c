/** See store.h. */
#include "store.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store_pg.h"

enum { N_READERS = 6, SCHEMA = 1 };

struct srv_store {
    srv_pg *pg; // not NULL: the jobs are in PostgreSQL, and nothing below is used
    sqlite3 *writer;
    pthread_mutex_t write;
    sqlite3 *reader[N_READERS];
    sqlite3 *idle[N_READERS];
    int n_idle;
    pthread_mutex_t pool;
    pthread_cond_t is_idle;
};

static const char schema[] =
    "CREATE TABLE jobs("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, status INTEGER NOT NULL,"
    " created INTEGER NOT NULL, started INTEGER NOT NULL DEFAULT 0,"
    " completed INTEGER NOT NULL DEFAULT 0, expires INTEGER NOT NULL DEFAULT 0,"
    " model TEXT, prompt TEXT, params TEXT, inputs TEXT,"
    " width INTEGER, height INTEGER, frames INTEGER, steps INTEGER,"
    " error_code TEXT, error_message TEXT, remixed_from TEXT, result TEXT, warnings TEXT,"
    " bytes INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,"
    " cancel INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX jobs_status ON jobs(status, seq);"
    "CREATE TABLE keys(key TEXT PRIMARY KEY, hash TEXT NOT NULL, id TEXT NOT NULL,"
    " created INTEGER NOT NULL) WITHOUT ROWID;"
    "PRAGMA user_version = 1;";

#define COLUMNS                                                                                    \
    "id, seq, status, created, started, completed, expires, model, prompt, params, inputs, width," \
    " height, frames, steps, error_code, error_message, remixed_from, result, warnings, bytes,"    \
    " attempts, cancel"

const char *srv_status_name(srv_status s)
{
    static const char *const names[] = {"queued", "in_progress", "completed", "failed",
                                        "cancelled"};
    return s < SRV_N_STATUS ? names[s] : "failed";
}

void srv_job_free(srv_job *j)
{
    free(j->model);
    free(j->prompt);
    free(j->params);
    free(j->inputs);
    free(j->error_code);
    free(j->error_message);
    free(j->remixed_from);
    free(j->result);
    free(j->warnings);
    memset(j, 0, sizeof *j);
}

/* ----------------------------------------------------------------------------------- open, close
 */

static sqlite3 *open_one(const char *path, bool is_writer, char **why)
{
    sqlite3 *db = NULL;
    const int flags = is_writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
    int rc =
        sqlite3_open_v2(path, &db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);

    if (rc == SQLITE_OK) sqlite3_busy_timeout(db, 5000);
    if (rc == SQLITE_OK && is_writer)
        rc = sqlite3_exec(db,
                          "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                          "PRAGMA journal_size_limit = 16777216;",
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK) return db;
    *why = srv_text("%s: %s", path, db ? sqlite3_errmsg(db) : "no memory");
    sqlite3_close(db);
    return NULL;
}

static int64_t ask_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q = NULL;
    int64_t v = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW)
        v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return v;
}

static bool is_sound(sqlite3 *db)
{
    sqlite3_stmt *q = NULL;
    bool is_ok = false;

    if (sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &q, NULL) == SQLITE_OK &&
        sqlite3_step(q) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(q, 0);
        is_ok = text && strcmp(text, "ok") == 0;
    }
    sqlite3_finalize(q);
    return is_ok;
}

static bool prepare_schema(sqlite3 *db, const char *path, char **why)
{
    const int64_t version = ask_int(db, "PRAGMA user_version");
    char *sql;
    int rc;

    if (version == SCHEMA) {
        if (is_sound(db)) return true;
        *why = srv_text("%s: the database is damaged; restore it or move it away", path);
        return false;
    }
    if (version != 0 || ask_int(db, "SELECT count(*) FROM sqlite_master") != 0) {
        *why = srv_text("%s: no job database of this version of h3av (its version is %lld)", path,
                        (long long)version);
        return false;
    }
    sql = srv_text("BEGIN IMMEDIATE; %s COMMIT;", schema);
    rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    free(sql);
    if (rc == SQLITE_OK) return true;
    *why = srv_text("%s: %s", path, sqlite3_errmsg(db));
    return false;
}

bool srv_store_open(srv_store **out, const char *path, char **why)
{
    srv_store *s = calloc(1, sizeof *s);

    *out = NULL;
    *why = NULL;
    if (!s) {
        *why = srv_copy("no memory for the job store");
        return false;
    }
    pthread_mutex_init(&s->write, NULL);
    pthread_mutex_init(&s->pool, NULL);
    pthread_cond_init(&s->is_idle, NULL);
    if (srv_pg_is_url(path)) {
        const bool ok = srv_pg_open(&s->pg, path, why);
        if (ok)
            *out = s;
        else
            srv_store_close(&s);
        return ok;
    }
    s->writer = open_one(path, true, why);
    if (!s->writer || !prepare_schema(s->writer, path, why)) {
        srv_store_close(&s);
        return false;
    }
    for (int i = 0; i < N_READERS; i++) {
        s->reader[i] = open_one(path, false, why);
        if (!s->reader[i]) {
            srv_store_close(&s);
            return false;
        }
        s->idle[s->n_idle++] = s->reader[i];
    }
    *out = s;
    return true;
}

void srv_store_close(srv_store **sp)
{
    srv_store *s = *sp;

    if (!s) return;
    srv_pg_close(&s->pg);
    for (int i = 0; i < N_READERS; i++)
        sqlite3_close(s->reader[i]);
    sqlite3_close(s->writer);
    pthread_cond_destroy(&s->is_idle);
    pthread_mutex_destroy(&s->pool);
    pthread_mutex_destroy(&s->write);
    free(s);
    *sp = NULL;
}

/* ------------------------------------------------------------------------------------ statements
 */

static sqlite3 *reader_take(srv_store *s)
{
    sqlite3 *db;

    pthread_mutex_lock(&s->pool);
    while (s->n_idle == 0)
        pthread_cond_wait(&s->is_idle, &s->pool);
    db = s->idle[--s->n_idle];
    pthread_mutex_unlock(&s->pool);
    return db;
}

static void reader_give(srv_store *s, sqlite3 *db)
{
    pthread_mutex_lock(&s->pool);
    s->idle[s->n_idle++] = db;
    pthread_cond_signal(&s->is_idle);
    pthread_mutex_unlock(&s->pool);
}

static srv_result failed(sqlite3 *db, const char *what)
{
    const int rc = sqlite3_errcode(db);

    srv_error("database: %s: %s", what, sqlite3_errmsg(db));
    return rc == SQLITE_FULL || rc == SQLITE_IOERR ? SRV_NO_SPACE : SRV_BROKEN;
}

/* Prepares `sql` and binds: s text (NULL allowed), i int64. */
static sqlite3_stmt *prepare(sqlite3 *db, const char *sql, const char *kinds, ...)
{
    sqlite3_stmt *q = NULL;
    va_list ap;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL);

    va_start(ap, kinds);
    for (int i = 1; rc == SQLITE_OK && *kinds; kinds++, i++) {
        if (*kinds == 's')
            rc = sqlite3_bind_text(q, i, va_arg(ap, const char *), -1, SQLITE_TRANSIENT);
        else
            rc = sqlite3_bind_int64(q, i, va_arg(ap, int64_t));
    }
    va_end(ap);
    if (rc == SQLITE_OK) return q;
    sqlite3_finalize(q);
    return NULL;
}

static char *column_text(sqlite3_stmt *q, int i)
{
    return srv_copy((const char *)sqlite3_column_text(q, i));
}

/* A row of COLUMNS. */
static void take_row(srv_job *j, sqlite3_stmt *q)
{
    memset(j, 0, sizeof *j);
    snprintf(j->id, sizeof j->id, "%s", (const char *)sqlite3_column_text(q, 0));
    j->seq = sqlite3_column_int64(q, 1);
    j->status = (srv_status)sqlite3_column_int(q, 2);
    j->created = sqlite3_column_int64(q, 3);
    j->started = sqlite3_column_int64(q, 4);
    j->completed = sqlite3_column_int64(q, 5);
    j->expires = sqlite3_column_int64(q, 6);
    j->model = column_text(q, 7);
    j->prompt = column_text(q, 8);
    j->params = column_text(q, 9);
    j->inputs = column_text(q, 10);
    j->width = sqlite3_column_int(q, 11);
    j->height = sqlite3_column_int(q, 12);
    j->frames = sqlite3_column_int(q, 13);
    j->steps = sqlite3_column_int(q, 14);
    j->error_code = column_text(q, 15);
    j->error_message = column_text(q, 16);
    j->remixed_from = column_text(q, 17);
    j->result = column_text(q, 18);
    j->warnings = column_text(q, 19);
    j->bytes = sqlite3_column_int64(q, 20);
    j->attempts = sqlite3_column_int(q, 21);
    j->is_cancel_asked = sqlite3_column_int(q, 22) != 0;
}

static srv_result get_with(sqlite3 *db, const char *id, srv_job *j)
{
    sqlite3_stmt *q = prepare(db, "SELECT " COLUMNS " FROM jobs WHERE id = ?", "s", id);
    srv_result r = SRV_NO_JOB;
    int rc;

    if (!q) return failed(db, "get");
    rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        take_row(j, q);
        r = SRV_OK;
    } else if (rc != SQLITE_DONE) {
        r = failed(db, "get");
    }
    sqlite3_finalize(q);
    return r;
}

/* Runs one statement of the writer; SRV_NO_JOB when it changed no row. */
static srv_result change(srv_store *s, const char *what, sqlite3_stmt *q)
{
    srv_result r = SRV_OK;

    if (!q) return failed(s->writer, what);
    if (sqlite3_step(q) != SQLITE_DONE)
        r = failed(s->writer, what);
    else if (sqlite3_changes(s->writer) == 0)
        r = SRV_NO_JOB;
    sqlite3_finalize(q);
    return r;
}

/* ----------------------------------------------------------------------------------------- reads
 */

srv_result srv_store_get(srv_store *s, const char *id, srv_job *j)
{
    if (s->pg) return srv_pg_get(s->pg, id, j);
    sqlite3 *db = reader_take(s);
    const srv_result r = get_with(db, id, j);

    reader_give(s, db);
    return r;
}

srv_result srv_store_list(srv_store *s, const char *after, int limit, bool is_desc, srv_job **list,
                          int *n, bool *has_more)
{
    if (s->pg) return srv_pg_list(s->pg, after, limit, is_desc, list, n, has_more);
    sqlite3 *db = reader_take(s);
    sqlite3_stmt *q =
        prepare(db,
                !after    ? is_desc ? "SELECT " COLUMNS " FROM jobs ORDER BY id DESC LIMIT ?1"
                                    : "SELECT " COLUMNS " FROM jobs ORDER BY id LIMIT ?1"
                : is_desc ? "SELECT " COLUMNS " FROM jobs WHERE id < ?2 ORDER BY id DESC LIMIT ?1"
                          : "SELECT " COLUMNS " FROM jobs WHERE id > ?2 ORDER BY id LIMIT ?1",
                after ? "is" : "i", (int64_t)limit + 1, after);
    srv_result r = SRV_OK;
    int rc = SQLITE_DONE;

    *n = 0;
    *has_more = false;
    *list = calloc((size_t)limit + 1, sizeof **list);
    if (!q || !*list) r = q ? SRV_BROKEN : failed(db, "list");
    while (r == SRV_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        if (*n == limit) {
            *has_more = true;
            break;
        }
        take_row(&(*list)[(*n)++], q);
    }
    if (r == SRV_OK && rc != SQLITE_ROW && rc != SQLITE_DONE) r = failed(db, "list");
    sqlite3_finalize(q);
    reader_give(s, db);
    if (r == SRV_OK) return r;
    while (*n)
        srv_job_free(&(*list)[--*n]);
    free(*list);
    *list = NULL;
    return r;
}

int srv_store_ahead(srv_store *s, int64_t seq)
{
    if (s->pg) return srv_pg_ahead(s->pg, seq);
    sqlite3 *db = reader_take(s);
    sqlite3_stmt *q =
        prepare(db, "SELECT count(*) FROM jobs WHERE status = 0 AND seq < ?", "i", seq);
    int n = 0;

    if (q && sqlite3_step(q) == SQLITE_ROW) n = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    reader_give(s, db);
    return n;
}

srv_result srv_store_counts(srv_store *s, srv_counts *c)
{
    if (s->pg) return srv_pg_counts(s->pg, c);
    sqlite3 *db = reader_take(s);
    sqlite3_stmt *q =
        prepare(db, "SELECT status, count(*), sum(bytes) FROM jobs GROUP BY status", "");
    srv_result r = SRV_OK;
    int rc = SQLITE_DONE;

    memset(c, 0, sizeof *c);
    while (q && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        const int st = sqlite3_column_int(q, 0);
        if (st >= 0 && st < SRV_N_STATUS) c->by_status[st] = sqlite3_column_int64(q, 1);
        c->bytes += sqlite3_column_int64(q, 2);
    }
    if (!q || rc != SQLITE_DONE) r = failed(db, "counts");
    sqlite3_finalize(q);
    reader_give(s, db);
    return r;
}

/* ---------------------------------------------------------------------------------------- writes
 */

static srv_result insert(srv_store *s, srv_job *j)
{
    const srv_result r = change(
        s, "create",
        prepare(s->writer,
                "INSERT INTO jobs(id, status, created, model, prompt, params, inputs, width,"
                " height, frames, steps, remixed_from, bytes) VALUES(?,0,?,?,?,?,?,?,?,?,?,?,?)",
                "sissssiiiisi", j->id, j->created, j->model, j->prompt, j->params, j->inputs,
                (int64_t)j->width, (int64_t)j->height, (int64_t)j->frames, (int64_t)j->steps,
                j->remixed_from, j->bytes));
    if (r == SRV_OK) j->seq = sqlite3_last_insert_rowid(s->writer);
    return r;
}

/* Has this key made a job before? SRV_OK: no. */
static srv_result look_up_key(srv_store *s, srv_job *j, const char *key, const char *hash)
{
    sqlite3_stmt *q = prepare(s->writer, "SELECT hash, id FROM keys WHERE key = ?", "s", key);
    srv_result r = SRV_OK;
    srv_job old;

    if (!q) return failed(s->writer, "idempotency key");
    if (sqlite3_step(q) == SQLITE_ROW) {
        r = SRV_KEY_REUSED;
        if (strcmp((const char *)sqlite3_column_text(q, 0), hash) == 0) {
            r = get_with(s->writer, (const char *)sqlite3_column_text(q, 1), &old);
            if (r == SRV_OK) {
                srv_job_free(j);
                *j = old;
                r = SRV_REPLAYED;
            } else if (r == SRV_NO_JOB) { // deleted since: the key is free again
                r = SRV_OK;
            }
        }
    }
    sqlite3_finalize(q);
    return r;
}

static srv_result create_locked(srv_store *s, srv_job *j, int max_queue, const char *key,
                                uint64_t hash)
{
    char text[24];
    srv_result r;

    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    if (key && (r = look_up_key(s, j, key, text)) != SRV_OK) return r;
    if (ask_int(s->writer, "SELECT count(*) FROM jobs WHERE status = 0") >= max_queue)
        return SRV_FULL;
    r = insert(s, j);
    if (r == SRV_OK && key)
        r = change(s, "idempotency key",
                   prepare(s->writer, "INSERT OR REPLACE INTO keys VALUES(?,?,?,?)", "sssi", key,
                           text, j->id, j->created));
    return r;
}

srv_result srv_store_create(srv_store *s, srv_job *j, int max_queue, const char *key, uint64_t hash)
{
    if (s->pg) return srv_pg_create(s->pg, j, max_queue, key, hash);
    srv_result r = SRV_OK;

    pthread_mutex_lock(&s->write);
    if (sqlite3_exec(s->writer, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        r = failed(s->writer, "create");
    if (r == SRV_OK) {
        r = create_locked(s, j, max_queue, key, hash);
        if (r == SRV_OK && sqlite3_exec(s->writer, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
            r = failed(s->writer, "create");
        if (r != SRV_OK && !sqlite3_get_autocommit(s->writer))
            sqlite3_exec(s->writer, "ROLLBACK", NULL, NULL, NULL);
    }
    pthread_mutex_unlock(&s->write);
    return r;
}

srv_result srv_store_claim(srv_store *s, srv_job *j)
{
    if (s->pg) return srv_pg_claim(s->pg, j);
    sqlite3_stmt *q;
    srv_result r = SRV_NO_JOB;
    int rc;

    pthread_mutex_lock(&s->write);
    q = prepare(s->writer,
                "UPDATE jobs SET status = 1, attempts = attempts + 1,"
                " started = CASE started WHEN 0 THEN ? ELSE started END"
                " WHERE seq = (SELECT min(seq) FROM jobs WHERE status = 0) AND status = 0"
                " RETURNING " COLUMNS,
                "i", srv_unix());
    if (!q) {
        r = failed(s->writer, "claim");
    } else {
        rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) {
            take_row(j, q);
            r = SRV_OK;
            rc = sqlite3_step(q); // to its end: that commits
        }
        if (rc != SQLITE_DONE) {
            if (r == SRV_OK) srv_job_free(j);
            r = failed(s->writer, "claim");
        }
    }
    sqlite3_finalize(q);
    pthread_mutex_unlock(&s->write);
    return r;
}

/* One statement under the write lock. */
#define CHANGE(what, ...)                                      \
    do {                                                       \
        srv_result r_;                                         \
        pthread_mutex_lock(&s->write);                         \
        r_ = change(s, what, prepare(s->writer, __VA_ARGS__)); \
        pthread_mutex_unlock(&s->write);                       \
        return r_;                                             \
    } while (0)

srv_result srv_store_planned(srv_store *s, const char *id, int width, int height, int frames,
                             int steps)
{
    if (s->pg) return srv_pg_planned(s->pg, id, width, height, frames, steps);
    CHANGE("plan", "UPDATE jobs SET width = ?, height = ?, frames = ?, steps = ? WHERE id = ?",
           "iiiis", (int64_t)width, (int64_t)height, (int64_t)frames, (int64_t)steps, id);
}

srv_result srv_store_finish(srv_store *s, const char *id, srv_status status, const char *code,
                            const char *message, const char *result, const char *warnings,
                            int64_t bytes, int64_t expires)
{
    if (s->pg)
        return srv_pg_finish(s->pg, id, status, code, message, result, warnings, bytes, expires);
    CHANGE("finish",
           "UPDATE jobs SET status = ?, completed = ?, expires = ?, error_code = ?,"
           " error_message = ?, result = ?, warnings = ?, bytes = ? WHERE id = ? AND status = 1",
           "iiissssis", (int64_t)status, srv_unix(), expires, code, message, result, warnings,
           bytes, id);
}

srv_result srv_store_cancel_queued(srv_store *s, const char *id, int64_t expires)
{
    if (s->pg) return srv_pg_cancel_queued(s->pg, id, expires);
    CHANGE("cancel",
           "UPDATE jobs SET status = 4, completed = ?, expires = ? WHERE id = ? AND status = 0",
           "iis", srv_unix(), expires, id);
}

srv_result srv_store_ask_cancel(srv_store *s, const char *id)
{
    if (s->pg) return srv_pg_ask_cancel(s->pg, id);
    CHANGE("cancel", "UPDATE jobs SET cancel = 1 WHERE id = ? AND status = 1", "s", id);
}

srv_result srv_store_requeue(srv_store *s, const char *id)
{
    if (s->pg) return srv_pg_requeue(s->pg, id);
    CHANGE("requeue", "UPDATE jobs SET status = 0 WHERE id = ? AND status = 1", "s", id);
}

srv_result srv_store_delete(srv_store *s, const char *id)
{
    if (s->pg) return srv_pg_delete(s->pg, id);
    CHANGE("delete", "DELETE FROM jobs WHERE id = ?", "s", id);
}

int srv_store_recover(srv_store *s, int64_t expires)
{
    if (s->pg) return srv_pg_recover(s->pg, expires);
    int n = 0;
    srv_result r;

    pthread_mutex_lock(&s->write);
    r = change(s, "recover",
               prepare(s->writer,
                       "UPDATE jobs SET status = 4, completed = ?, expires = ?"
                       " WHERE status = 1 AND cancel = 1",
                       "ii", srv_unix(), expires));
    if (r == SRV_OK || r == SRV_NO_JOB)
        r = change(s, "recover",
                   prepare(s->writer, "UPDATE jobs SET status = 0 WHERE status = 1", ""));
    if (r == SRV_OK) n = sqlite3_changes(s->writer);
    if (r == SRV_OK || r == SRV_NO_JOB) // keys live a day
        r = change(
            s, "recover",
            prepare(s->writer, "DELETE FROM keys WHERE created < ?", "i", srv_unix() - 86400));
    pthread_mutex_unlock(&s->write);
    return r == SRV_OK || r == SRV_NO_JOB ? n : -1;
}

srv_result srv_store_expired(srv_store *s, int64_t now, int keep, uint64_t keep_bytes,
                             char (**ids)[SRV_ID_LEN], int *n)
{
    if (s->pg) return srv_pg_expired(s->pg, now, keep, keep_bytes, ids, n);
    enum { MOST = 256 };
    sqlite3 *db = reader_take(s);
    sqlite3_stmt *q = prepare(db,
                              "SELECT id, expires, bytes FROM jobs WHERE status >= 2"
                              " ORDER BY completed DESC, seq DESC",
                              "");
    srv_result r = SRV_OK;
    int64_t kept = 0;
    uint64_t bytes = 0;
    int rc = SQLITE_DONE;

    *n = 0;
    *ids = calloc(MOST, sizeof **ids);
    if (!q || !*ids) r = q ? SRV_BROKEN : failed(db, "retention");
    while (r == SRV_OK && *n < MOST && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        const int64_t expires = sqlite3_column_int64(q, 1);
        kept++;
        bytes += (uint64_t)sqlite3_column_int64(q, 2);
        if ((expires > 0 && expires <= now) || (keep > 0 && kept > keep) ||
            (keep_bytes > 0 && kept > 1 && bytes > keep_bytes)) // the newest always stays
            snprintf((*ids)[(*n)++], SRV_ID_LEN, "%s", (const char *)sqlite3_column_text(q, 0));
    }
    if (r == SRV_OK && rc != SQLITE_ROW && rc != SQLITE_DONE) r = failed(db, "retention");
    sqlite3_finalize(q);
    reader_give(s, db);
    return r;
}

srv_result srv_store_ping(srv_store *s)
{
    if (s->pg) return srv_pg_ping(s->pg);
    srv_result r = SRV_OK;

    pthread_mutex_lock(&s->write);
    if (sqlite3_exec(s->writer, "BEGIN IMMEDIATE; ROLLBACK", NULL, NULL, NULL) != SQLITE_OK)
        r = failed(s->writer, "ping");
    pthread_mutex_unlock(&s->write);
    return r;
}

void srv_store_watch(srv_store *s, void (*stop)(void *user, const char *id), void *user)
{
    if (s->pg) srv_pg_watch(s->pg, stop, user);
}

bool srv_store_is_shared(const srv_store *s)
{
    return s->pg != NULL;
}
