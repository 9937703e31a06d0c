/**
 * Files; see file.h. A map is MAP_PRIVATE and read-only: a file that another process truncates
 * under us raises SIGBUS, which no reader can prevent; sizes are therefore taken once, from fstat.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "builtin.h"

char *h3_strdupf(const char *fmt, ...)
{
    va_list ap;
    char *s;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    s = n < 0 ? NULL : malloc((size_t)n + 1);
    if (!s) abort();
    va_start(ap, fmt);
    vsnprintf(s, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return s;
}

char *h3_path_join(const char *dir, const char *name)
{
    const size_t n = strlen(dir);
    return h3_strdupf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

char *h3_cache_path(const char *name)
{
    const char *dir = getenv("H3_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");

    if (dir) return *dir ? h3_path_join(dir, name) : NULL;
    if (xdg && *xdg) return h3_strdupf("%s/h3av/%s", xdg, name);
    if (home && *home) return h3_strdupf("%s/.cache/h3av/%s", home, name);
    return NULL;
}

void h3_make_folders_above(const char *path)
{
    char *folder = h3_strdupf("%s", path);

    for (char *p = folder + 1; *folder && *p; p++)
        if (*p == '/') {
            *p = 0;
            (void)mkdir(folder, 0700); // there already, or the file cannot be opened
            *p = '/';
        }
    free(folder);
}

static uint64_t mark_of(const struct stat *s)
{
    const uint64_t v[] = {(uint64_t)s->st_dev,          (uint64_t)s->st_ino,
                          (uint64_t)s->st_size,         (uint64_t)s->st_mtim.tv_sec,
                          (uint64_t)s->st_mtim.tv_nsec, (uint64_t)s->st_ctim.tv_sec,
                          (uint64_t)s->st_ctim.tv_nsec};
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        h = (h ^ v[i]) * 0x100000001b3u;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

uint64_t h3_path_mark(const char *path)
{
    struct stat st;
    if (h3_is_builtin(path)) return h3_path_exists(path);
    return stat(path, &st) == 0 ? mark_of(&st) : 0;
}

bool h3_path_exists(const char *path)
{
    struct stat st;
    if (h3_is_builtin(path)) return h3_builtin_find(path) || h3_builtin_is_dir(path);
    return stat(path, &st) == 0;
}

bool h3_path_is_same(const char *a, const char *b)
{
    struct stat x, y;

    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

bool h3_path_is_dir(const char *path)
{
    struct stat st;
    if (h3_is_builtin(path)) return h3_builtin_is_dir(path);
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static h3_status open_failed(const char *path, const char *what)
{
    const int e = errno;
    if (e == ENOENT || e == ENOTDIR) return h3_fail(H3_E_MISSING, "%s: no such %s", path, what);
    return h3_fail(H3_E_IO, "%s: cannot be opened: %s", path, strerror(e));
}

h3_status h3_path_need(const char *path, const char *what)
{
    struct stat st;

    errno = ENOENT;
    if (h3_is_builtin(path)) return h3_path_exists(path) ? H3_OK : open_failed(path, what);
    if (stat(path, &st) != 0) return open_failed(path, what);
    if (S_ISDIR(st.st_mode) && access(path, R_OK | X_OK) != 0) return open_failed(path, what);
    return H3_OK;
}

/* Live maps, so that an address can be told from heap memory (which MADV_DONTNEED would clear). */
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static h3_file *maps;

static void list_map(h3_file *f)
{
    pthread_mutex_lock(&maps_lock);
    f->next_map = maps;
    maps = f;
    pthread_mutex_unlock(&maps_lock);
}

static void unlist_map(h3_file *f)
{
    pthread_mutex_lock(&maps_lock);
    for (h3_file **at = &maps; *at; at = &(*at)->next_map)
        if (*at == f) {
            *at = f->next_map;
            break;
        }
    pthread_mutex_unlock(&maps_lock);
}

static h3_status take_builtin(h3_file *f, const char *path)
{
    const h3_builtin_file *b = h3_builtin_find(path);

    if (!b) return h3_fail(H3_E_MISSING, "%s: no such file in the built-in model", path);
    f->data = b->data;
    f->size = (size_t)(b->end - b->data);
    f->is_builtin = true;
    f->mark = 1;
    return H3_OK;
}

static h3_status map_from_disk(h3_file *f, const char *path)
{
    struct stat info;

    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe without a writer would wait
    if (f->fd < 0) return open_failed(path, "file");
    if (fstat(f->fd, &info) != 0) return h3_fail(H3_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return h3_fail(H3_E_FORMAT, "%s: is %s, not a regular file", path,
                       S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    f->size = (size_t)info.st_size;
    f->mark = mark_of(&info);
    if (!f->size) return H3_OK;
    void *p = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (p == MAP_FAILED) return h3_fail(H3_E_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    f->data = p;
    list_map(f);
    return H3_OK;
}

h3_status h3_file_map(h3_file **out, const char *path)
{
    h3_file *f = calloc(1, sizeof *f);

    *out = NULL;
    if (!f) return h3_fail(H3_E_NOMEM, "%s: no memory to open it", path);
    f->path = h3_strdupf("%s", path);
    f->fd = -1;
    const h3_status st = h3_is_builtin(path) ? take_builtin(f, path) : map_from_disk(f, path);
    if (st == H3_OK)
        *out = f;
    else
        h3_file_unmap(&f);
    return st;
}

void h3_file_unmap(h3_file **fp)
{
    h3_file *f = fp ? *fp : NULL;

    if (!f) return;
    unlist_map(f);
    if (f->data && !f->is_builtin) munmap((void *)(uintptr_t)f->data, f->size);
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f);
    *fp = NULL;
}

void h3_file_done(const h3_file *f, size_t offset, size_t bytes)
{
    const size_t page = 4096;
    size_t a = (offset + page - 1) / page * page, b;

    if (!f->data || f->is_builtin || offset > f->size || bytes > f->size - offset) return;
    b = (offset + bytes) / page * page;
    if (b > a) madvise((void *)(uintptr_t)(f->data + a), b - a, MADV_DONTNEED);
}

/* The map that holds [p, p + bytes), or NULL. Called with the lock held. */
static const h3_file *map_of(const unsigned char *p, size_t bytes)
{
    for (const h3_file *f = maps; f; f = f->next_map)
        if (p >= f->data && bytes <= f->size && (size_t)(p - f->data) <= f->size - bytes) return f;
    return NULL;
}

/* The system reads no more than its readahead window for one hint, whatever its length. The lock is
 * held across each, so that the map cannot go away meanwhile. */
void h3_map_ahead(const void *p, size_t bytes)
{
    enum { WINDOW = 1 << 17 };
    const unsigned char *at = p, *end = at + bytes;

    while (at < end) {
        const size_t page = 4096, skew = (uintptr_t)at % page;
        const size_t n = (size_t)(end - at) < WINDOW - skew ? (size_t)(end - at) : WINDOW - skew;
        pthread_mutex_lock(&maps_lock);
        const bool is_mapped = map_of(at, n) != NULL;
        if (is_mapped) madvise((void *)((uintptr_t)at - skew), n + skew, MADV_WILLNEED);
        pthread_mutex_unlock(&maps_lock);
        if (!is_mapped) return;
        at += n;
    }
}

bool h3_map_read(void *dst, const void *p, size_t bytes)
{
    const h3_file *f;
    unsigned char *to = dst;
    int fd = -1;
    off_t at = 0;

    pthread_mutex_lock(&maps_lock);
    f = map_of(p, bytes);
    if (f) {
        fd = f->fd;
        at = (const unsigned char *)p - f->data;
    }
    pthread_mutex_unlock(&maps_lock);
    while (fd >= 0 && bytes > 0) {
        const ssize_t n = pread(fd, to, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        to += n;
        at += n;
        bytes -= (size_t)n;
    }
    return fd >= 0;
}

void h3_map_done(const void *p, size_t bytes, bool drops_cache)
{
    const h3_file *f;

    pthread_mutex_lock(&maps_lock);
    f = map_of(p, bytes);
    if (f) {
        const size_t offset = (size_t)((const unsigned char *)p - f->data);
        h3_file_done(f, offset, bytes);
        if (drops_cache) posix_fadvise(f->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    }
    pthread_mutex_unlock(&maps_lock);
}

h3_status h3_file_read(char **out, size_t *size, const char *path, size_t max_bytes)
{
    h3_file *f = NULL;
    char *text;

    *out = NULL;
    *size = 0;
    H3_TRY(h3_file_map(&f, path));
    if (f->size > max_bytes) {
        const size_t n = f->size;
        h3_file_unmap(&f);
        return h3_fail(H3_E_FORMAT, "%s: is %zu bytes, more than the %zu allowed here", path, n,
                       max_bytes);
    }
    text = malloc(f->size + 1);
    if (!text) {
        h3_file_unmap(&f);
        return h3_fail(H3_E_NOMEM, "%s: no memory to read it", path);
    }
    if (f->size) memcpy(text, f->data, f->size);
    text[f->size] = '\0';
    *out = text;
    *size = f->size;
    h3_file_unmap(&f);
    return H3_OK;
}

/* Temporary files that exist, for h3_atomic_drop_all. Pointers to paths owned by their h3_atomic.
 */
enum { MAX_LIVE = 64 };
static _Atomic(char *) live[MAX_LIVE];

static void enlist(char *tmp)
{
    for (int i = 0; i < MAX_LIVE; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&live[i], &none, tmp)) return;
    }
}

static void delist(char *tmp)
{
    for (int i = 0; i < MAX_LIVE; i++) {
        char *mine = tmp;
        if (tmp && atomic_compare_exchange_strong(&live[i], &mine, NULL)) return;
    }
}

void h3_atomic_drop_all(void)
{
    for (int i = 0; i < MAX_LIVE; i++) {
        const char *tmp = atomic_load(&live[i]);
        if (tmp) unlink(tmp);
    }
}

static bool is_special(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* Where a link to a file leads, malloc'd: it is the file that is replaced, not the link. */
static char *linked(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && h3_path_exists(path)
               ? realpath(path, NULL)
               : NULL;
}

/* ".<name>.part-", malloc'd: of a long name the begin, so that what is added has room in the 255
 * bytes that a name may have. */
static char *part_prefix(const char *name)
{
    enum { MOST = 200 };
    size_t n = strlen(name);

    for (n = n > MOST ? MOST : n; name[n] && ((unsigned char)name[n] & 0xc0) == 0x80;)
        n--; // whole characters: some disks take nothing else
    return h3_strdupf(".%.*s.part-", (int)n, name);
}

static h3_status reserve(h3_atomic *a, const char *path)
{
    static atomic_uint counter;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    char *dir = slash ? h3_strdupf("%.*s", (int)(slash - path), path) : h3_strdupf(".");
    h3_status st = H3_OK;

    memset(a, 0, sizeof *a);
    if (slash == path) {
        free(dir);
        dir = h3_strdupf("/");
    }
    if (strcmp(path, "-") == 0)
        st = h3_fail(H3_E_ARG, "-: standard output is not supported, give the name of a file");
    else if (!*name || h3_path_is_dir(path))
        st = h3_fail(H3_E_ARG, "%s: is a folder, give the name of a file", path);
    else if (is_special(path)) // root would replace /dev/null by a file
        st = h3_fail(H3_E_ARG, "%s: is a device or pipe, give the name of a file", path);
    else if (!h3_path_is_dir(dir))
        st = h3_fail(H3_E_MISSING, "%s: the folder %s does not exist", path, dir);
    else if (access(dir, W_OK) != 0)
        st =
            h3_fail(H3_E_IO, "%s: the folder %s cannot be written: %s", path, dir, strerror(errno));
    if (st == H3_OK) {
        a->path = h3_strdupf("%s", path);
        char *prefix = part_prefix(name);
        a->tmp =
            h3_strdupf("%s/%s%ld-%u", dir, prefix, (long)getpid(), atomic_fetch_add(&counter, 1));
        free(prefix);
        enlist(a->tmp);
    }
    free(dir);
    return st;
}

h3_status h3_atomic_reserve(h3_atomic *a, const char *path)
{
    char *real = linked(path);
    const h3_status st = reserve(a, real ? real : path);

    free(real);
    return st;
}

void h3_atomic_sweep(const char *path)
{
    char *real = linked(path);
    if (real) path = real;
    const char *slash = strrchr(path, '/');
    char *dir = slash ? h3_strdupf("%.*s", (int)(slash - path) + 1, path) : h3_strdupf(".");
    char *prefix = part_prefix(slash ? slash + 1 : path);
    const size_t n = strlen(prefix);
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        const long pid = strncmp(e->d_name, prefix, n) == 0 ? strtol(e->d_name + n, NULL, 10) : 0;
        if (pid <= 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        char *stale = h3_path_join(dir, e->d_name);
        unlink(stale);
        free(stale);
    }
    if (d) closedir(d);
    free(prefix);
    free(dir);
    free(real);
}

h3_status h3_atomic_open(h3_atomic *a, const char *path)
{
    H3_TRY(h3_atomic_reserve(a, path));
    a->fp = fopen(a->tmp, "wbe");
    if (!a->fp) {
        h3_status st = h3_fail(H3_E_IO, "%s: cannot be created: %s", path, strerror(errno));
        h3_atomic_abort(a);
        return st;
    }
    return H3_OK;
}

/* Makes the new name survive a power cut. Some file systems cannot; then the data is still there.
 */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? h3_strdupf("%.*s", (int)(slash - path) + 1, path) : h3_strdupf(".");
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(dir);
}

h3_status h3_atomic_commit(h3_atomic *a)
{
    h3_status st = H3_OK;
    FILE *fp = a->fp;

    a->fp = NULL;
    if (fp) {
        const int bad = ferror(fp) || fflush(fp) != 0 || fsync(fileno(fp)) != 0;
        const int e = errno;
        if (fclose(fp) != 0 || bad)
            st = h3_fail(H3_E_IO, "%s: write failed: %s", a->path, strerror(bad ? e : errno));
    }
    if (st == H3_OK && rename(a->tmp, a->path) != 0)
        st = h3_fail(H3_E_IO, "%s: cannot be put in place: %s", a->path, strerror(errno));
    if (st == H3_OK) sync_folder(a->path);
    if (st != H3_OK) {
        h3_atomic_abort(a);
        return st;
    }
    delist(a->tmp);
    free(a->path);
    free(a->tmp);
    memset(a, 0, sizeof *a);
    return H3_OK;
}

void h3_atomic_abort(h3_atomic *a)
{
    if (a->fp) fclose(a->fp);
    if (a->tmp) unlink(a->tmp);
    delist(a->tmp);
    free(a->path);
    free(a->tmp);
    memset(a, 0, sizeof *a);
}
