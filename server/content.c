/** See content.h. */
#include "content.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct variant {
    const char *word, *file, *type, *suffix;
} variant;

static const variant variants[] = {
    {"video", "video.mp4", "video/mp4", ".mp4"},
    {"0", "video.mp4", "video/mp4", ".mp4"}, // SGLang's: the index of the output
    {"thumbnail", "thumbnail.png", "image/png", ".png"},
    {"audio", "sound.wav", "audio/wav", ".wav"},
};

/* "bytes=a-b", "bytes=a-", "bytes=-n". 0: not a single range (send all), 1: [*from, *to], -1: none
 * of it exists. */
static int read_range(const char *text, int64_t size, int64_t *from, int64_t *to)
{
    char *end;
    long long a, b;

    if (!text || strncasecmp(text, "bytes=", 6) != 0 || strchr(text, ',')) return 0;
    text += 6;
    errno = 0;
    if (*text == '-') {
        b = strtoll(text + 1, &end, 10);
        if (end == text + 1 || *end || text[1] < '0' || text[1] > '9' || errno) return 0;
        if (b == 0 || size == 0) return -1;
        *from = b < size ? size - b : 0;
        *to = size - 1;
        return 1;
    }
    if (*text < '0' || *text > '9') return 0;
    a = strtoll(text, &end, 10);
    if (*end != '-' || errno) return 0;
    text = end + 1;
    b = size - 1;
    if (*text) {
        if (*text < '0' || *text > '9') return 0;
        b = strtoll(text, &end, 10);
        if (*end || errno || b < a) return 0;
    }
    if (a >= size) return -1;
    *from = a;
    *to = b < size - 1 ? b : size - 1;
    return 1;
}

static void add_headers(struct MHD_Response *a, const srv_job *j, const variant *v, const char *tag)
{
    char text[160];

    srv_add_header(a, "Content-Type", v->type);
    srv_add_header(a, "Accept-Ranges", "bytes");
    srv_add_header(a, "ETag", tag);
    srv_add_header(a, "Cache-Control", "private, no-cache");
    snprintf(text, sizeof text, "inline; filename=\"%s%s\"", j->id, v->suffix);
    srv_add_header(a, "Content-Disposition", text);
}

static void add_run_headers(struct MHD_Response *a, const srv_job *j)
{
    json_t *res = j->result ? json_loads(j->result, 0, NULL) : NULL;
    char *stages = json_dumps(json_object_get(res, "stages"), SRV_JSON), text[40];

    srv_add_header(a, "X-Request-Id", j->id);
    if (j->model) srv_add_header(a, "X-Model", j->model);
    snprintf(text, sizeof text, "%.3f", srv_json_num(res, "seconds"));
    srv_add_header(a, "X-Inference-Time-S", text);
    if (stages) srv_add_header(a, "X-Stage-Durations", stages);
    snprintf(text, sizeof text, "%.1f", (double)srv_json_int(res, "peak_rss") / 1048576.0);
    srv_add_header(a, "X-Peak-Memory-MB", text);
    free(stages);
    json_decref(res);
}

static enum MHD_Result send_file(srv_req *r, const srv_job *j, const variant *v, bool is_sync)
{
    char *dir = srv_job_dir(r->s, j->id), *path = srv_text("%s/%s", dir, v->file), tag[80],
         text[80];
    const char *match = is_sync ? NULL : srv_header(r, "If-None-Match");
    const char *if_range = srv_header(r, "If-Range"), *range = srv_header(r, "Range");
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct MHD_Response *a;
    struct stat st;
    int64_t from = 0, to;
    int kind = 0;

    free(path);
    free(dir);
    if (fd < 0 || fstat(fd, &st) != 0) {
        if (fd >= 0) close(fd);
        return srv_answer_error(r, 404, "content_missing", "variant",
                                "the file of this video is not there any more");
    }
    snprintf(tag, sizeof tag, "\"%.40s-%s-%lld\"", j->id + 6, v->word, (long long)st.st_size);
    if (match && (strcmp(match, "*") == 0 || strstr(match, tag))) {
        close(fd);
        a = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
        if (a) add_headers(a, j, v, tag);
        return srv_answer(r, 304, a);
    }
    to = st.st_size - 1;
    if (!is_sync && (!if_range || strcmp(if_range, tag) == 0))
        kind = read_range(range, st.st_size, &from, &to);
    if (kind < 0) {
        close(fd);
        a = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
        snprintf(text, sizeof text, "bytes */%lld", (long long)st.st_size);
        if (a) srv_add_header(a, "Content-Range", text);
        return srv_answer(r, 416, a);
    }
    a = MHD_create_response_from_fd_at_offset64((uint64_t)(to - from + 1), fd, (uint64_t)from);
    if (!a) {
        close(fd);
        return MHD_NO;
    }
    add_headers(a, j, v, tag);
    if (is_sync) add_run_headers(a, j);
    if (kind > 0) {
        snprintf(text, sizeof text, "bytes %lld-%lld/%lld", (long long)from, (long long)to,
                 (long long)st.st_size);
        srv_add_header(a, "Content-Range", text);
    }
    return srv_answer(r, kind > 0 ? 206 : 200, a);
}

enum MHD_Result srv_content_of(srv_req *r, const srv_job *j)
{
    return send_file(r, j, &variants[0], true);
}

enum MHD_Result srv_content(srv_req *r)
{
    const char *word = srv_query(r, "variant");
    const variant *v = word ? NULL : &variants[0];
    enum MHD_Result ok;
    srv_job j;
    srv_result st;

    for (size_t i = 0; word && i < sizeof variants / sizeof *variants; i++)
        if (strcmp(word, variants[i].word) == 0) v = &variants[i];
    if (!v)
        return srv_answer_error(r, 400, "invalid_value", "variant",
                                "variant: expected video, thumbnail or audio");
    st = srv_store_get(r->s->store, r->id, &j);
    if (st != SRV_OK) return srv_answer_store(r, st);
    if (j.status == SRV_COMPLETED)
        ok = send_file(r, &j, v, false);
    else if (!srv_is_final(j.status))
        ok = srv_answer_error(r, 409, "video_not_ready", NULL, "the video is %s; ask again later",
                              srv_status_name(j.status));
    else if (j.status == SRV_CANCELLED)
        ok = srv_answer_error(r, 404, "video_cancelled", NULL, "the video was cancelled");
    else
        ok = srv_answer_error(r, 404, "video_failed", NULL, "the video failed: %s",
                              j.error_message ? j.error_message : "");
    srv_job_free(&j);
    return ok;
}
