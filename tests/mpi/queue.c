/**
 * One queue, several workers that are killed at random: every accepted job must end, and end once.
 *
 *   queue URL LOG [JOBS]      0 jobs: only the rules that a file and PostgreSQL share
 *
 * The workers are processes with a store of their own, as on other machines. One is killed every
 * now and then and replaced; another is stopped for longer than its lease and goes on, so that it
 * tries to end a job that is no longer its own. Each end that the store accepted is a line of LOG.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store.h"

enum { N_WORKERS = 4, SECONDS = 1000 };

static srv_store *open_store(const char *url)
{
    srv_store *s;
    char *why = NULL;

    if (srv_store_open(&s, url, &why)) return s;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void nap(int ms)
{
    usleep((useconds_t)ms * 1000);
}

/* Claims, works for a while, ends; until killed. */
static void work(const char *url, const char *log, unsigned seed)
{
    srv_store *s = open_store(url);
    const int fd = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
    char line[80];

    for (;;) {
        srv_job j;
        if (srv_store_claim(s, &j) != SRV_OK) {
            nap(20);
            continue;
        }
        nap(5 + rand_r(&seed) % 40);
        if (srv_store_finish(s, j.id, SRV_COMPLETED, NULL, NULL, "{}", NULL, 1, 0) == SRV_OK) {
            const int n = snprintf(line, sizeof line, "%s\n", j.id);
            if (write(fd, line, (size_t)n) != n) _exit(1);
        }
        srv_job_free(&j);
    }
}

static pid_t start(const char *url, const char *log, unsigned seed)
{
    const pid_t p = fork();

    if (p == 0) work(url, log, seed);
    return p;
}

static int64_t n_ended(srv_store *s, int64_t *n_other)
{
    srv_counts c;

    if (srv_store_counts(s, &c) != SRV_OK) return -1;
    *n_other = c.by_status[SRV_FAILED] + c.by_status[SRV_CANCELLED];
    return c.by_status[SRV_COMPLETED];
}

static void accept_jobs(srv_store *s, int n)
{
    for (int i = 0; i < n; i++) {
        srv_job j = {.created = srv_unix()};
        char key[24];
        if (!srv_new_id(j.id)) exit(1);
        j.prompt = srv_text("job %d, \"quoted\" \xc3\xa9", i);
        j.params = srv_copy("{}");
        j.inputs = srv_copy("[]");
        snprintf(key, sizeof key, "key-%d", i);
        if (srv_store_create(s, &j, n, key, (uint64_t)i) != SRV_OK) exit(1);
        srv_job again = {.created = srv_unix(), .params = srv_copy("{}")};
        if (!srv_new_id(again.id) ||
            srv_store_create(s, &again, n, key, (uint64_t)i) != SRV_REPLAYED ||
            strcmp(again.id, j.id) != 0 || strcmp(again.prompt, j.prompt) != 0) {
            fprintf(stderr, "a key made a second job\n");
            exit(1);
        }
        srv_job_free(&again);
        srv_job_free(&j);
    }
}

/* Lines of the log that stand there twice. */
static int n_repeated(const char *log)
{
    static char seen[4096][64];
    int n = 0, twice = 0;
    FILE *f = fopen(log, "r");

    while (f && n < 4096 && fgets(seen[n], sizeof seen[n], f)) {
        for (int i = 0; i < n; i++)
            twice += strcmp(seen[i], seen[n]) == 0;
        n++;
    }
    if (f) fclose(f);
    return twice;
}

/* What the two kinds of store must agree on, in a few calls. */
static void check_rules(srv_store *s)
{
    srv_job j = {.created = srv_unix(), .params = srv_copy("{}")}, got;
    srv_job *list;
    bool has_more;
    int n;

    if (!srv_new_id(j.id) || srv_store_create(s, &j, 1, NULL, 0) != SRV_OK) goto bad;
    srv_job second = {.created = srv_unix(), .params = srv_copy("{}")};
    if (!srv_new_id(second.id) || srv_store_create(s, &second, 1, NULL, 0) != SRV_FULL) goto bad;
    srv_job_free(&second);
    if (srv_store_ahead(s, j.seq + 1) != 1 || srv_store_ahead(s, j.seq) != 0) goto bad;
    if (srv_store_finish(s, j.id, SRV_COMPLETED, NULL, NULL, NULL, NULL, 0, 0) != SRV_NO_JOB)
        goto bad;
    if (srv_store_ask_cancel(s, j.id) != SRV_NO_JOB) goto bad;
    if (srv_store_claim(s, &got) != SRV_OK || got.attempts != 1 || got.started == 0) goto bad;
    srv_job_free(&got);
    if (srv_store_claim(s, &got) != SRV_NO_JOB) goto bad;
    if (srv_store_requeue(s, j.id) != SRV_OK || srv_store_claim(s, &got) != SRV_OK) goto bad;
    srv_job_free(&got);
    if (srv_store_planned(s, j.id, 64, 32, 22, 3) != SRV_OK) goto bad;
    if (srv_store_ask_cancel(s, j.id) != SRV_OK || srv_store_get(s, j.id, &got) != SRV_OK) goto bad;
    if (!got.is_cancel_asked || got.width != 64 || got.frames != 22 || got.attempts != 2) goto bad;
    srv_job_free(&got);
    if (srv_store_finish(s, j.id, SRV_FAILED, "code", "why", NULL, "[]", 5, 0) != SRV_OK) goto bad;
    if (srv_store_list(s, NULL, 10, true, &list, &n, &has_more) != SRV_OK || n != 1 || has_more)
        goto bad;
    if (list[0].status != SRV_FAILED || strcmp(list[0].error_message, "why") != 0 ||
        list[0].bytes != 5)
        goto bad;
    srv_job_free(&list[0]);
    free(list);
    if (srv_store_ping(s) != SRV_OK || srv_store_delete(s, j.id) != SRV_OK) goto bad;
    if (srv_store_delete(s, j.id) != SRV_NO_JOB || srv_store_get(s, j.id, &got) != SRV_NO_JOB)
        goto bad;
    srv_job_free(&j);
    return;

bad:
    fprintf(stderr, "the store breaks its rules\n");
    exit(1);
}

int main(int argc, char **argv)
{
    pid_t worker[N_WORKERS];
    unsigned seed = 7;
    int n_killed = 0, n_paused = 0;
    int64_t ended = 0, other = 0;

    if (argc < 3) return 2;
    const int n_jobs = argc > 3 ? atoi(argv[3]) : 150;
    srv_store *s = open_store(argv[1]);
    check_rules(s);
    if (n_jobs == 0) {
        srv_store_close(&s);
        return 0;
    }
    accept_jobs(s, n_jobs);
    for (int i = 0; i < N_WORKERS; i++)
        worker[i] = start(argv[1], argv[2], seed + (unsigned)i);
    const double begin = srv_now();
    while (srv_now() - begin < SECONDS && (ended = n_ended(s, &other)) < n_jobs) {
        const int i = rand_r(&seed) % N_WORKERS;
        const double last = srv_now();
        nap(60);
        // where a start takes longer than that, all would be killed before they have done anything
        for (int64_t n = ended; n == ended && srv_now() - last < 20; nap(20))
            n = n_ended(s, &other);
        if (rand_r(&seed) % 4 == 0) { // longer than its lease
            kill(worker[i], SIGSTOP);
            nap(1500);
            kill(worker[i], SIGCONT);
            n_paused++;
            continue;
        }
        kill(worker[i], SIGKILL);
        waitpid(worker[i], NULL, 0);
        worker[i] = start(argv[1], argv[2], seed + 100u * (unsigned)++n_killed);
    }
    for (int i = 0; i < N_WORKERS; i++) {
        kill(worker[i], SIGKILL);
        waitpid(worker[i], NULL, 0);
    }
    const int twice = n_repeated(argv[2]);
    printf("%d jobs, %lld completed, %lld ended otherwise, %d ended twice; %d workers killed, %d "
           "paused, %.1f s\n",
           n_jobs, (long long)ended, (long long)other, twice, n_killed, n_paused,
           srv_now() - begin);
    srv_store_close(&s);
    return ended == n_jobs && other == 0 && twice == 0 && n_killed > 0 ? 0 : 1;
}
