/**
 * Opened input; see media_file.h.
 */
#include "media_file.h"

#include <libavutil/display.h>
#include <stdlib.h>
#include <string.h>

#include "av_util.h"
#include "probe.h"

enum { IO_BYTES = 1 << 16 };

/* Containers that hold everything they need. Playlists (hls, concat, dash) and the like, which name
 * other files, are not among them. */
static const char containers[] =
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,wav,w64,aiff,au,caf,mp3,flac,"
    "ogg,aac,mpegts,mpeg,flv,asf,ivf,yuv4mpegpipe,h264,hevc,m4v,amr,ac3,"
    "eac3,wv,tta,ape,obu,av1";

h3_status h3_media_file_open(h3_media_file_data *f, h3_media_src src)
{
    *f = (h3_media_file_data){
        .data = src.data, .size = src.size, .name = src.path ? src.path : "upload"};
    if (!src.data && src.path) {
        H3_TRY(h3_file_map(&f->map, src.path));
        f->data = f->map->data;
        f->size = f->map->size;
    }
    if (!f->size) {
        const h3_status st = h3_fail(H3_E_FORMAT, "%s: the file is empty", f->name);
        h3_media_file_close(f);
        return st;
    }
    return H3_OK;
}

void h3_media_file_close(h3_media_file_data *f)
{
    h3_file_unmap(&f->map);
    f->data = NULL;
    f->size = 0;
}

static int read_some(void *opaque, uint8_t *buf, int n)
{
    h3_demux *d = opaque;
    const size_t left = d->file.size - d->at;

    if (!left) return AVERROR_EOF;
    if ((size_t)n > left) n = (int)left;
    memcpy(buf, d->file.data + d->at, (size_t)n);
    d->at += (size_t)n;
    return n;
}

static int64_t seek_to(void *opaque, int64_t offset, int whence)
{
    h3_demux *d = opaque;
    const int64_t size = (int64_t)d->file.size;

    whence &= ~AVSEEK_FORCE;
    if (whence == AVSEEK_SIZE) return size;
    if (whence == SEEK_CUR) offset += (int64_t)d->at;
    if (whence == SEEK_END) offset += size;
    if (offset < 0) return AVERROR(EINVAL);
    d->at = (size_t)(offset > size ? size : offset);
    return offset;
}

static h3_status check_pixels(const h3_demux *d)
{
    for (unsigned i = 0; i < d->fmt->nb_streams; i++) {
        const AVCodecParameters *p = d->fmt->streams[i]->codecpar;
        if (p->width > 0 && p->height > 0 && p->height > H3_MEDIA_MAX_PIXELS / p->width)
            return h3_fail(H3_E_FORMAT, "%s: declares %dx%d pixels; at most %lld are read",
                           d->file.name, p->width, p->height, (long long)H3_MEDIA_MAX_PIXELS);
    }
    return H3_OK;
}

/** Completes the codec parameters; decoders that run meanwhile respect the pixel limit. */
static int find_info(AVFormatContext *fmt)
{
    const unsigned n = fmt->nb_streams;
    AVDictionary **opt = calloc(n + 1, sizeof *opt);
    int err;

    if (!opt) return AVERROR(ENOMEM);
    for (unsigned i = 0; i < n; i++)
        av_dict_set_int(&opt[i], "max_pixels", H3_MEDIA_MAX_PIXELS, 0);
    err = avformat_find_stream_info(fmt, opt);
    for (unsigned i = 0; i < n; i++)
        av_dict_free(&opt[i]);
    free(opt);
    return err;
}

static h3_status open_format(h3_demux *d)
{
    uint8_t *buf = av_malloc(IO_BYTES);
    h3_status st;
    int err;

    if (buf) d->io = avio_alloc_context(buf, IO_BYTES, 0, d, read_some, NULL, seek_to);
    if (!d->io) {
        av_free(buf);
        return h3_fail(H3_E_NOMEM, "%s: no memory to open it", d->file.name);
    }
    d->fmt = avformat_alloc_context();
    if (!d->fmt) return h3_fail(H3_E_NOMEM, "%s: no memory to open it", d->file.name);
    d->fmt->pb = d->io;
    d->fmt->format_whitelist = av_strdup(containers);
    d->fmt->protocol_whitelist = av_strdup("");
    d->fmt->max_streams = 64;
    err = avformat_open_input(&d->fmt, "", NULL, NULL); // frees and clears fmt when it fails
    if (err < 0)
        return err == AVERROR(ENOMEM)
                   ? h3_fail(H3_E_NOMEM, "%s: no memory to open it", d->file.name)
                   : h3_fail(
                         H3_E_FORMAT,
                         "%s: no picture, video or sound that can be read: the format is unknown, "
                         "or the file is damaged or cut off (%s)",
                         d->file.name, h3_av_text(err));
    if ((st = check_pixels(d)) != H3_OK) return st;
    if ((err = find_info(d->fmt)) < 0)
        return h3_av_fail(err, H3_E_FORMAT, d->file.name, "the streams cannot be read");
    return check_pixels(d);
}

h3_status h3_demux_open(h3_demux **out, h3_media_src src)
{
    h3_demux *d = calloc(1, sizeof *d);
    h3_status st;

    *out = NULL;
    h3_av_quiet();
    if (!d) return h3_fail(H3_E_NOMEM, "%s: no memory to open it", src.path ? src.path : "upload");
    st = h3_media_file_open(&d->file, src);
    if (st == H3_OK) st = open_format(d);
    if (st == H3_OK)
        *out = d;
    else
        h3_demux_close(&d);
    return st;
}

void h3_demux_close(h3_demux **dp)
{
    h3_demux *d = dp ? *dp : NULL;

    if (!d) return;
    avformat_close_input(&d->fmt);
    if (d->io) av_freep(&d->io->buffer);
    avio_context_free(&d->io);
    h3_media_file_close(&d->file);
    free(d);
    *dp = NULL;
}

int h3_demux_video(const h3_demux *d)
{
    const int i = av_find_best_stream(d->fmt, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    return i >= 0 && !(d->fmt->streams[i]->disposition & AV_DISPOSITION_ATTACHED_PIC) ? i : -1;
}

int h3_demux_audio(const h3_demux *d)
{
    const int i = av_find_best_stream(d->fmt, AVMEDIA_TYPE_AUDIO, -1, -1, NULL, 0);
    return i >= 0 ? i : -1;
}

static const int32_t *display_matrix(const AVStream *s)
{
#if LIBAVFORMAT_VERSION_MAJOR >= 61
    const AVPacketSideData *p = av_packet_side_data_get(
        s->codecpar->coded_side_data, s->codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
    return p && p->size >= 36 ? (const int32_t *)(const void *)p->data : NULL;
#else
    size_t size = 0;
    const uint8_t *p = av_stream_get_side_data(s, AV_PKT_DATA_DISPLAYMATRIX, &size);
    return p && size >= 36 ? (const int32_t *)(const void *)p : NULL;
#endif
}

/* x' = m[0] x + m[3] y, y' = m[1] x + m[4] y. */
int h3_demux_orientation(const AVStream *s)
{
    const int32_t *m = display_matrix(s);

    if (!m) return 1;
    if (m[1] == 0 && m[3] == 0 && m[0] && m[4])
        return m[0] > 0 ? (m[4] > 0 ? 1 : 4) : (m[4] > 0 ? 2 : 3);
    if (m[0] == 0 && m[4] == 0 && m[1] && m[3])
        return m[3] > 0 ? (m[1] > 0 ? 5 : 8) : (m[1] > 0 ? 6 : 7);
    return 1;
}
