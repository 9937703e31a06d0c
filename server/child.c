/** See child.h. */
#include "child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* --------------------------------------------------------------------------------------- lines */

static bool take_line(srv_lines *l, json_t **out)
{
    char *end = l->used > l->seen ? memchr(l->buf + l->seen, '\n', l->used - l->seen) : NULL;
    size_t n;

    if (!end) {
        l->seen = l->used;
        return false;
    }
    n = (size_t)(end - l->buf);
    *out = json_loadb(l->buf, n, 0, NULL);
    memmove(l->buf, end + 1, l->used - n - 1);
    l->used -= n + 1;
    l->seen = 0;
    return true;
}

static bool grow(srv_lines *l)
{
    const size_t cap = l->cap ? l->cap * 2 : 4096;
    char *grown;

    if (cap > SRV_LINE_MAX) return false;
    grown = realloc(l->buf, cap);
    if (!grown) return false;
    l->buf = grown;
    l->cap = cap;
    return true;
}

srv_read srv_lines_next(srv_lines *l, int ms, json_t **out)
{
    const double until = srv_now() + ms * 1e-3;

    for (;;) {
        struct pollfd p = {.fd = l->fd, .events = POLLIN};
        const double left = until - srv_now();
        ssize_t n;

        if (take_line(l, out)) return json_is_object(*out) ? SRV_READ_LINE : SRV_READ_END;
        if (l->used == l->cap && !grow(l)) return SRV_READ_END;
        n = poll(&p, 1, ms < 0 ? -1 : left > 0 ? (int)(left * 1000) + 1 : 0);
        if (n == 0) return SRV_READ_TIMEOUT;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return SRV_READ_END;
        n = read(l->fd, l->buf + l->used, l->cap - l->used);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return SRV_READ_END;
        l->used += (size_t)n;
    }
}

bool srv_lines_send(int fd, json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);
    size_t n = text ? strlen(text) : 0, sent = 0;

    json_decref(o);
    if (!text) return false;
    text[n++] = '\n'; // over the NUL: the length is what counts
    while (sent < n) {
        const ssize_t w = send(fd, text + sent, n - sent, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) break;
        sent += (size_t)w;
    }
    free(text);
    return sent == n;
}

void srv_lines_free(srv_lines *l)
{
    free(l->buf);
    memset(l, 0, sizeof *l);
    l->fd = -1;
}

/* ------------------------------------------------------------------------------------- process */

srv_child *srv_child_start(void)
{
    char *argv[] = {"h3av", "--serve-worker", "3", NULL};
    posix_spawn_file_actions_t acts;
    posix_spawnattr_t attr;
    sigset_t none;
    srv_child *c = calloc(1, sizeof *c);
    int sv[2], rc;

    if (!c) return NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) != 0) {
        free(c);
        return NULL;
    }
    posix_spawn_file_actions_init(&acts);
    posix_spawnattr_init(&attr);
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attr, &none); // threads here block signals
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_adddup2(&acts, sv[1], 3);
    rc = posix_spawn(&c->pid, "/proc/self/exe", &acts, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&acts);
    posix_spawnattr_destroy(&attr);
    close(sv[1]);
    if (rc != 0) {
        close(sv[0]);
        free(c);
        errno = rc;
        return NULL;
    }
    c->in.fd = sv[0];
    return c;
}

int srv_child_end(srv_child **cp)
{
    srv_child *c = *cp;
    int status = -1;

    if (!c) return -1;
    kill(c->pid, SIGKILL); // it holds nothing that is not on disk in whole files
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    close(c->in.fd);
    srv_lines_free(&c->in);
    free(c);
    *cp = NULL;
    return status;
}

void srv_child_fate(int status, char *out, size_t cap)
{
    if (WIFSIGNALED(status))
        snprintf(out, cap, "signal %d, %s", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status))
        snprintf(out, cap, "exit status %d", WEXITSTATUS(status));
    else
        snprintf(out, cap, "status %d", status);
}
