/** Starting and stopping; see server.h. The order matters: nothing is accepted before what an
 * earlier run left is put in order. */
#include "server.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "http.h"
#include "store_pg.h"
#include "worker.h"

enum { KEY_BYTES_MAX = 4096, RETAIN_SECONDS = 60 };

srv_opts srv_opts_default(void)
{
    return (srv_opts){.engine = h3_engine_default(),
                      .host = "127.0.0.1",
                      .port = 8080,
                      .max_queue = 32,
                      .max_connections = 256,
                      .max_streams = 64,
                      .max_body = 512ull << 20,
                      .max_seconds = 30,
                      .max_pixels = 2097152,
                      .max_steps = 200,
                      .keep_jobs = 1000,
                      .keep_days = 30,
                      .keep_bytes = 50ull << 30,
                      .checkpoint_every = 1,
                      .header_seconds = 15,
                      .idle_seconds = 30,
                      .sync_seconds = 3600};
}

/* ---------------------------------------------------------------------------------------- shared
 */

char *srv_job_dir(const srv *s, const char *id)
{
    return srv_text("%s/%s", s->jobs_dir, id);
}

int64_t srv_expiry(const srv *s)
{
    return s->opts.keep_days > 0 ? srv_unix() + (int64_t)(s->opts.keep_days * 86400) : 0;
}

static void cut_out(char *text, const char *part)
{
    const size_t n = part ? strlen(part) : 0;

    for (char *p; n > 1 && (p = strstr(text, part));)
        memmove(p, p + n, strlen(p + n) + 1);
}

void srv_hide_paths(const srv *s, char *text)
{
    const char *model = s->opts.engine.model, *slash = model ? strrchr(model, '/') : NULL;
    char *jobs = srv_text("%s/", s->jobs_dir), *data = srv_text("%s/", s->data_dir);
    char *parent = slash ? srv_text("%.*s/", (int)(slash - model), model) : NULL;

    cut_out(text, jobs);
    cut_out(text, data);
    cut_out(text, parent);
    free(jobs);
    free(data);
    free(parent);
}

void srv_retain(srv *s)
{
    char(*ids)[SRV_ID_LEN] = NULL;
    int n = 0;

    if (srv_store_expired(s->store, srv_unix(), s->opts.keep_jobs, s->opts.keep_bytes, &ids, &n) ==
        SRV_OK)
        for (int i = 0; i < n; i++) {
            char *dir = srv_job_dir(s, ids[i]);
            if (srv_store_delete(s->store, ids[i]) == SRV_OK) srv_remove_tree(dir);
            free(dir);
        }
    free(ids);
    if (n) {
        srv_log("retention: %d old videos removed", n);
        srv_hub_ring(&s->hub);
    }
}

/* --------------------------------------------------------------------------------------- options
 */

static char *default_data_dir(void)
{
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

    if (xdg && *xdg == '/') return srv_text("%s/h3av", xdg);
    if (home && *home == '/') return srv_text("%s/.local/share/h3av", home);
    return srv_copy("h3av-data");
}

/* The key's own sources, in this order: option, file, environment. 0 or an exit status. */
static int read_key(srv *s)
{
    const char *path = s->opts.api_key_file, *env = getenv("H3AV_API_KEY");
    char buf[KEY_BYTES_MAX];
    FILE *f;
    size_t n;

    if (s->opts.api_key) {
        s->api_key = srv_copy(s->opts.api_key);
    } else if (path) {
        f = fopen(path, "re");
        if (!f) {
            srv_error("%s: %s", path, strerror(errno));
            return 3;
        }
        n = fread(buf, 1, sizeof buf - 1, f);
        fclose(f);
        while (n && (buf[n - 1] == '\n' || buf[n - 1] == '\r' || buf[n - 1] == ' '))
            n--;
        buf[n] = '\0';
        s->api_key = srv_copy(buf);
    } else if (env && *env) {
        s->api_key = srv_copy(env);
    }
    if (s->api_key && strlen(s->api_key) < 8) {
        srv_error("the API key has fewer than 8 characters");
        return 2;
    }
    return 0;
}

/* Are all of a list origins, as browsers write them: scheme://host or scheme://host:port? */
static bool are_origins(const char *list)
{
    while (list && *list) {
        const char *from = list + strspn(list, " "), *end = from + strcspn(from, ","), *to = end;
        while (to > from && to[-1] == ' ')
            to--;
        const char *host = memmem(from, (size_t)(to - from), "://", 3);
        if (!host || host == from || host + 3 >= to || from + strcspn(from, " *") < to ||
            memchr(host + 3, '/', (size_t)(to - host) - 3))
            return false;
        list = end + (*end == ',');
    }
    return true;
}

static bool are_limits_ok(const srv_opts *o)
{
    const struct {
        const char *name;
        long long value, least, most;
    } list[] = {{"--port", o->port, 0, 65535},
                {"--queue", o->max_queue, 1, INT_MAX},
                {"--max-connections", o->max_connections, 4, INT_MAX},
                {"--max-streams", o->max_streams, 1, INT_MAX},
                {"--max-body", (long long)o->max_body, 1024, LLONG_MAX},
                {"--checkpoint-every", o->checkpoint_every, 0, INT_MAX}};

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (list[i].value >= list[i].least && list[i].value <= list[i].most) continue;
        if (list[i].most == 65535)
            srv_error("%s %lld: expected 0 to 65535", list[i].name, list[i].value);
        else
            srv_error("%s %lld: expected at least %lld", list[i].name, list[i].value,
                      list[i].least);
        return false;
    }
    return true;
}

static int check_opts(srv *s)
{
    const int st = read_key(s);

    if (st) return st;
    if (!are_origins(s->opts.cors)) {
        srv_error("--cors %s: expected origins such as https://video.example.org, with commas "
                  "between",
                  s->opts.cors);
        return 2;
    }
    if (!are_limits_ok(&s->opts)) return 2;
    if (s->opts.db && (!srv_pg_is_url(s->opts.db) || !s->opts.data_dir)) {
        srv_error("--db expects postgresql://..., and --data the folder that all servers share");
        return 2;
    }
    if (!srv_is_loopback(s->opts.host) && !s->api_key && !s->opts.allow_public) {
        srv_error("%s can be reached from other machines, and no key is set: give --api-key-file, "
                  "or --allow-public if everyone there may use this server",
                  s->opts.host);
        return 2;
    }
    return 0;
}

/* "cpu", "cuda:0,cuda:1": a worker for each. */
static int list_devices(srv *s)
{
    const char *p = s->opts.engine.device ? s->opts.engine.device : "cpu";

    while (*p) {
        const size_t n = strcspn(p, ",");
        if (s->n_workers == SRV_WORKERS_MAX || n == 0 || n >= sizeof s->worker[0].device) {
            srv_error("device %s: expected up to %d names with commas between",
                      s->opts.engine.device, SRV_WORKERS_MAX);
            return 2;
        }
        snprintf(s->worker[s->n_workers++].device, sizeof s->worker[0].device, "%.*s", (int)n, p);
        p += n;
        if (*p) p++;
    }
    return 0;
}

static void name_model(srv *s)
{
    const char *path = s->opts.engine.model ? s->opts.engine.model : s->opts.engine.dit;
    char *copy, *base;

    if (s->opts.model_name || !path) {
        s->model_name = srv_copy(s->opts.model_name ? s->opts.model_name : "h3-nano");
        return;
    }
    copy = srv_copy(path);
    while (strlen(copy) > 1 && copy[strlen(copy) - 1] == '/')
        copy[strlen(copy) - 1] = '\0';
    base = strrchr(copy, '/');
    s->model_name = srv_copy(base ? base + 1 : copy);
    free(copy);
}

/* ----------------------------------------------------------------------------------- data folder
 */

/* One server for a folder: two would run the same jobs. */
static int lock_data(srv *s)
{
    char *path = srv_text("%s/lock", s->data_dir);
    int st = 0;

    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0) {
        srv_error("the data folder cannot be used (--data names another): %s: %s", path,
                  strerror(errno));
        st = 3;
    } else if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        srv_error("%s is in use by another h3av serve", s->data_dir);
        st = 3;
    }
    free(path);
    return st;
}

/* Files that a run was writing when it was killed. */
static void sweep_parts(const char *dir)
{
    DIR *d = opendir(dir);

    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

/* Folders without a job: an upload that was never accepted, a deletion that was cut short. */
static void sweep_jobs(srv *s)
{
    DIR *d = opendir(s->jobs_dir);

    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char *dir;
        srv_job j;
        srv_result r;
        if (!srv_is_id(e->d_name)) continue;
        dir = srv_job_dir(s, e->d_name);
        r = srv_store_get(s->store, e->d_name, &j);
        if (r == SRV_NO_JOB)
            srv_remove_tree(dir);
        else if (r == SRV_OK)
            sweep_parts(dir);
        if (r == SRV_OK) srv_job_free(&j);
        free(dir);
    }
    closedir(d);
}

static const char *host_name(void)
{
    static char name[64];

    if (gethostname(name, sizeof name - 1) != 0 || !name[0]) return "host";
    for (char *c = name; *c; c++)
        if (*c == '/' || *c == '.') *c = '-';
    return name;
}

static int open_data(srv *s)
{
    char *path, *why = NULL;
    int st = 0, n;

    s->data_dir = s->opts.data_dir ? srv_copy(s->opts.data_dir) : default_data_dir();
    s->jobs_dir = srv_text("%s/jobs", s->data_dir);
    s->spool_dir = s->opts.db ? srv_text("%s/spool-%s-%d", s->data_dir, host_name(), (int)getpid())
                              : srv_text("%s/spool", s->data_dir);
    if (!srv_make_dirs(s->jobs_dir)) {
        srv_error("the data folder cannot be used (--data names another): %s: %s", s->jobs_dir,
                  strerror(errno));
        return 3;
    }
    if (!s->opts.db && (st = lock_data(s)) != 0) return st;
    srv_remove_tree(s->spool_dir);
    if (!srv_make_dirs(s->spool_dir)) {
        srv_error("the data folder cannot be used (--data names another): %s: %s", s->spool_dir,
                  strerror(errno));
        return 3;
    }
    path = s->opts.db ? srv_copy(s->opts.db) : srv_text("%s/jobs.sqlite", s->data_dir);
    if (!srv_store_open(&s->store, path, &why)) {
        srv_error("%s", why);
        st = 3;
    }
    free(path);
    free(why);
    if (st) return st;
    n = srv_store_recover(s->store, srv_expiry(s));
    if (n < 0) return 3;
    if (n > 0) srv_log("%d interrupted videos go on", n);
    if (!srv_store_is_shared(s->store)) sweep_jobs(s); // other servers are at work in a shared one
    srv_retain(s);
    return 0;
}

/* -------------------------------------------------------------------------------------- the life
 */

static void init(srv *s, const srv_opts *opts)
{
    memset(s, 0, sizeof *s);
    s->opts = *opts;
    s->lock_fd = s->listen_fd = -1;
    s->started = srv_now();
    s->inflight.limit = 2 * (int64_t)opts->max_body;
    srv_log_quiet(opts->is_quiet);
    srv_hub_init(&s->hub);
    pthread_mutex_init(&s->metrics.lock, NULL);
    pthread_mutex_init(&s->ready_lock, NULL);
    pthread_mutex_init(&s->check_lock, NULL);
    pthread_mutex_init(&s->conn_lock, NULL);
}

static void release(srv *s)
{
    srv_store_close(&s->store);
    if (s->listen_fd >= 0 && !s->daemon) close(s->listen_fd);
    if (s->lock_fd >= 0) close(s->lock_fd);
    if (s->opts.db && s->spool_dir) srv_remove_tree(s->spool_dir); // its name is of this process
    srv_hub_free(&s->hub);
    free(s->data_dir);
    free(s->jobs_dir);
    free(s->spool_dir);
    free(s->api_key);
    free(s->model_name);
}

/* Until a signal, or until no model could be opened. */
static int wait_for_end(srv *s, const sigset_t *set)
{
    double retained = srv_now();

    for (;;) {
        const struct timespec pause = {.tv_sec = 0, .tv_nsec = 500000000};
        const int sig = sigtimedwait(set, NULL, &pause);
        const int failure = atomic_load(&s->open_failure);
        bool is_ready;
        if (sig > 0) {
            srv_log("stopping (%s)", sig == SIGINT ? "interrupt" : "terminate");
            return 0;
        }
        pthread_mutex_lock(&s->ready_lock);
        is_ready = s->is_ready;
        pthread_mutex_unlock(&s->ready_lock);
        if (failure && !is_ready) return failure;
        if (srv_now() - retained > RETAIN_SECONDS) {
            srv_retain(s);
            retained = srv_now();
        }
    }
}

static void say_hello(const srv *s)
{
    const bool is_v6 = strchr(s->opts.host, ':') != NULL;

    srv_log("h3av %s listens on http://%s%s%s:%d/ (data in %s, %s)", h3_version(), is_v6 ? "[" : "",
            s->opts.host, is_v6 ? "]" : "", s->port, s->data_dir,
            s->api_key ? "with a key" : "without a key");
}

int srv_run(const srv_opts *opts)
{
    static srv s; // threads point into it
    sigset_t set;
    int st;

    init(&s, opts);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL); // every thread inherits it: signals are waited for
    st = check_opts(&s);
    if (!st) st = list_devices(&s);
    if (!st) name_model(&s);
    if (!st) st = open_data(&s);
    if (!st) st = srv_http_listen(&s);
    if (!st) {
        if (srv_workers_start(&s) && srv_http_start(&s)) {
            say_hello(&s);
            st = wait_for_end(&s, &set);
        } else {
            st = 70;
        }
        srv_workers_stop(&s);
        srv_http_stop(&s);
        srv_checker_stop(&s);
        s.listen_fd = -1; // closed by the HTTP library
    }
    release(&s);
    return st;
}
