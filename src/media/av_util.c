/**
 * Shared helpers around libav; see av_util.h.
 */
#include "av_util.h"

#include <errno.h>
#include <libavutil/log.h>
#include <pthread.h>

#include "file.h"

const char *h3_av_text(int err)
{
    static _Thread_local char ring[4][AV_ERROR_MAX_STRING_SIZE];
    static _Thread_local unsigned next;
    char *s = ring[next++ % 4];

    if (av_strerror(err, s, AV_ERROR_MAX_STRING_SIZE) < 0) s[0] = '\0';
    return s;
}

h3_status h3_av_fail(int err, h3_status other, const char *path, const char *what)
{
    if (err == AVERROR(ENOSPC) || err == AVERROR(EDQUOT) || err == AVERROR(EFBIG))
        return h3_fail(H3_E_IO, "%s: %s: the disk is full (%s)", path, what, h3_av_text(err));
    if (err == AVERROR(ENOENT)) return h3_fail(H3_E_MISSING, "%s: no such file", path);
    if (err == AVERROR(EACCES) || err == AVERROR(EPERM) || err == AVERROR(EIO) ||
        err == AVERROR(EROFS) || err == AVERROR(EISDIR) || err == AVERROR(EMFILE))
        return h3_fail(H3_E_IO, "%s: %s: %s", path, what, h3_av_text(err));
    if (err == AVERROR(ENOMEM)) return h3_fail(H3_E_NOMEM, "%s: %s: out of memory", path, what);
    return h3_fail(other, "%s: %s: %s", path, what, h3_av_text(err));
}

char *h3_av_url(const char *path)
{
    return h3_strdupf("file:%s", path);
}

static void drop_line(void *ctx, int level, const char *fmt, va_list ap)
{
    (void)ctx, (void)level, (void)fmt, (void)ap;
}

static void silence(void)
{
    av_log_set_callback(drop_line);
}

void h3_av_quiet(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, silence);
}
