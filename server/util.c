/** See util.h. */
#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------------- time */

double srv_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t srv_unix_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t srv_unix(void)
{
    return srv_unix_ms() / 1000;
}

/* ------------------------------------------------------------------------------------ secrets */

bool srv_random(void *out, size_t n)
{
    unsigned char *p = out;

    while (n) {
        const ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

bool srv_new_id(char out[SRV_ID_LEN])
{
    unsigned char r[16];
    int n;

    if (!srv_random(r, sizeof r)) return false;
    n = snprintf(out, SRV_ID_LEN, "video_%012llx",
                 (unsigned long long)srv_unix_ms() & 0xffffffffffffull);
    for (size_t i = 0; i < sizeof r; i++)
        n += snprintf(out + n, SRV_ID_LEN - (size_t)n, "%02x", r[i]);
    return true;
}

bool srv_is_id(const char *s)
{
    if (strncmp(s, "video_", 6) != 0 || strlen(s) != 50) return false;
    for (s += 6; *s; s++)
        if (!((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'f'))) return false;
    return true;
}

bool srv_same_secret(const char *given, const char *secret)
{
    const size_t n = strlen(given), m = strlen(secret);
    volatile unsigned char diff = (unsigned char)(n != m);

    if (m == 0) return false;
    for (size_t i = 0; i < n; i++) // as long as what was given: its length is no secret
        diff = (unsigned char)(diff | (unsigned char)(given[i] ^ secret[i % m]));
    return diff == 0;
}

uint64_t srv_fnv(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* --------------------------------------------------------------------------------------- text */

char *srv_text(const char *fmt, ...)
{
    va_list ap;
    char *s = NULL;

    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0) abort(); // a few bytes: nothing sensible can go on without them
    va_end(ap);
    return s;
}

char *srv_copy(const char *s)
{
    return s ? srv_text("%s", s) : NULL;
}

bool srv_in_list(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = list; p && *p;) {
        const char *comma = strchr(p, ',');
        size_t m = comma ? (size_t)(comma - p) : strlen(p);
        while (m && *p == ' ') {
            p++;
            m--;
        }
        while (m && p[m - 1] == ' ')
            m--;
        if (n && m == n && strncasecmp(p, word, n) == 0) return true;
        p = comma ? comma + 1 : NULL;
    }
    return false;
}

/* -------------------------------------------------------------------------------------- files */

bool srv_make_dirs(const char *path)
{
    char *p = srv_copy(path);
    bool is_ok = true;

    for (char *s = p + 1; is_ok && *s; s++) {
        if (*s != '/') continue;
        *s = '\0';
        if (mkdir(p, 0700) != 0 && errno != EEXIST) is_ok = false;
        *s = '/';
    }
    if (is_ok && mkdir(p, 0700) != 0 && errno != EEXIST) is_ok = false;
    free(p);
    return is_ok;
}

/* Symbolic links are removed, never followed: nothing below the data folder is a link of ours. */
static bool remove_at(int dir_fd, const char *name)
{
    const int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d;
    bool is_ok = true;

    if (fd < 0) return unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT;
    d = fdopendir(fd);
    if (!d) {
        close(fd);
        return false;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (!remove_at(fd, e->d_name)) is_ok = false;
    }
    closedir(d);
    return unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 && is_ok;
}

bool srv_remove_tree(const char *path)
{
    return remove_at(AT_FDCWD, path);
}

int64_t srv_tree_bytes(const char *path)
{
    DIR *d = opendir(path);
    int64_t sum = 0;

    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat s;
        if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode))
            sum += s.st_size;
    }
    closedir(d);
    return sum;
}

bool srv_copy_file(const char *from, const char *to)
{
    char buf[65536];
    ssize_t n;
    int in, out;
    bool is_ok = true;

    if (link(from, to) == 0) return true;
    in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0) return false;
    out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0) {
        close(in);
        return false;
    }
    while (is_ok && (n = read(in, buf, sizeof buf)) != 0)
        is_ok = n > 0 && write(out, buf, (size_t)n) == n;
    close(in);
    return (close(out) == 0) && is_ok;
}

bool srv_sync_dir(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int st;

    if (fd < 0) return false;
    st = fsync(fd);
    close(fd);
    return st == 0;
}

/* ------------------------------------------------------------------------------------- base64 */

static int base64_value(unsigned char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62; // '-' and '_': the URL alphabet
    if (c == '/' || c == '_') return 63;
    return -1;
}

static bool write_all(int fd, const unsigned char *p, size_t n)
{
    while (n) {
        const ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

int64_t srv_base64_to_fd(const char *text, size_t n, int fd)
{
    unsigned char out[49152];
    size_t used = 0;
    uint32_t bits = 0;
    int n_bits = 0, n_pad = 0;
    int64_t total = 0, digits = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const int v = base64_value(c);
        if (c == '\r' || c == '\n' || c == ' ' || c == '\t') continue;
        if (c == '=') {
            if (++n_pad > 2) return -1;
            continue;
        }
        if (v < 0 || n_pad) return -1;
        bits = (bits << 6 | (uint32_t)v) & 0xffffff;
        n_bits += 6;
        digits++;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[used++] = (unsigned char)(bits >> n_bits);
        total++;
        if (used == sizeof out) {
            if (!write_all(fd, out, used)) return -2;
            used = 0;
        }
    }
    if (digits % 4 == 1 || (n_pad && (digits + n_pad) % 4)) return -1;
    return write_all(fd, out, used) ? total : -2;
}

char *srv_base64(const void *data, size_t n)
{
    static const char abc[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    char *out = malloc((n + 2) / 3 * 4 + 1), *o = out;

    if (!out) return NULL;
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
                           (left > 2 ? p[i + 2] : 0);
        *o++ = abc[v >> 18];
        *o++ = abc[v >> 12 & 63];
        *o++ = left > 1 ? abc[v >> 6 & 63] : '=';
        *o++ = left > 2 ? abc[v & 63] : '=';
    }
    *o = '\0';
    return out;
}

/* ---------------------------------------------------------------------------------------- PNG */

static uint32_t crc32_of(const unsigned char *p, size_t n)
{
    uint32_t c = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
    }
    return ~c;
}

static unsigned char *put32(unsigned char *p, uint32_t v)
{
    for (int i = 24; i >= 0; i -= 8)
        *p++ = (unsigned char)(v >> i);
    return p;
}

/* Length, name, content (already at p + 8), checksum. */
static unsigned char *end_chunk(unsigned char *p, const char *name, size_t n)
{
    put32(p, (uint32_t)n);
    memcpy(p + 4, name, 4);
    return put32(p + 8 + n, crc32_of(p + 4, n + 4));
}

/* One stored block for each row (a row has less than 64 KiB), so that no compressor is needed. */
unsigned char *srv_png(const uint8_t *rgb, int width, int height, size_t *n)
{
    static const unsigned char magic[] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};
    const size_t row = 3 * (size_t)width + 1, data = 6 + (size_t)height * (row + 5);
    unsigned char *out, *p, *d;
    uint32_t a = 1, b = 0;

    if (width < 1 || height < 1 || width > 4096 || height > 4096) return NULL;
    out = malloc(data + 64);
    if (!out) return NULL;
    memcpy(out, magic, sizeof magic);
    p = out + sizeof magic;
    d = put32(put32(p + 8, (uint32_t)width), (uint32_t)height);
    memcpy(d, "\x08\x02\x00\x00\x00", 5); // 8 bits, RGB
    p = end_chunk(p, "IHDR", 13);
    d = p + 8;
    *d++ = 0x78; // zlib's head
    *d++ = 0x01;
    for (int y = 0; y < height; y++) {
        *d++ = y == height - 1;
        *d++ = (unsigned char)row;
        *d++ = (unsigned char)(row >> 8);
        *d++ = (unsigned char)~row;
        *d++ = (unsigned char)(~row >> 8);
        *d = 0; // no filter
        memcpy(d + 1, rgb + (size_t)y * (row - 1), row - 1);
        for (size_t i = 0; i < row; i++) {
            a = (a + d[i]) % 65521;
            b = (b + a) % 65521;
        }
        d += row;
    }
    put32(d, b << 16 | a);
    p = end_chunk(p, "IDAT", data);
    p = end_chunk(p, "IEND", 0);
    *n = (size_t)(p - out);
    return out;
}

/* --------------------------------------------------------------------------------------- JSON */

const char *srv_json_str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

int64_t srv_json_int(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

double srv_json_num(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* ---------------------------------------------------------------------------------------- log */

static bool log_is_quiet;

void srv_log_quiet(bool is_quiet)
{
    log_is_quiet = is_quiet;
}

static void put_line(const char *fmt, va_list ap)
{
    char line[1024], stamp[32];
    const time_t t = (time_t)srv_unix();
    struct tm tm;
    int n;

    gmtime_r(&t, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    n = snprintf(line, sizeof line, "%s ", stamp);
    vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    for (char *p = line; *p; p++) // what a client sent must not make lines of its own
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    n = (int)strlen(line);
    line[n] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n + 1) < 0) return; // nowhere left to say so
}

void srv_log(const char *fmt, ...)
{
    va_list ap;

    if (log_is_quiet) return;
    va_start(ap, fmt);
    put_line(fmt, ap);
    va_end(ap);
}

void srv_error(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put_line(fmt, ap);
    va_end(ap);
}
