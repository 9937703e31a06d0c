/**
 * Video clips at 24 fps; see clip.h.
 *
 * Two passes over the part of the file that is needed. The first reads packets only and collects
 * presentation times: whether the rate is constant, and which source frames reach a 24 fps slot, is
 * known before anything is decoded. The second decodes and converts only frames with a slot.
 *
 * A rate counts as constant when every time lies within one tick of its time base (at least 1.5 ms,
 * the jitter of containers that count milliseconds) of i / fps for the rate the container names.
 * Then the reference's formula with that rate is used, so rounding in the container cannot move a
 * frame to another slot. Streams without usable times count frames at the named rate.
 */
#include "clip.h"

#include <libavcodec/avcodec.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "av_util.h"
#include "frame_files.h"
#include "image.h"
#include "media_file.h"
#include "pixels.h"
#include "probe.h"
#include "resize.h"
#include "size.h"

static const double target_fps = 24.0;
enum { MAX_FRAMES = 1 << 20 };

/** Presentation times of the source frames in order, and the slots they fill. */
typedef struct timeline {
    int64_t *pts; // (n) ascending
    int64_t n, room;
    int64_t n_packets;            // including those that are decoded but not shown
    int64_t last_pts, last_ticks; // of the frame shown last; its duration, 0 when unknown
    AVRational tick;
    double fps;
    bool has_times, is_variable, is_at_end;
} timeline;

void h3_clip_free(h3_clip *c)
{
    free(c->rgb);
    memset(c, 0, sizeof *c);
}

/* ---- slots ---- */

/** Ticks of source frame i after the first. Times of a hostile file may be far apart: no integer
 *  difference. */
static double ticks_of(const timeline *t, int64_t i)
{
    return (double)t->pts[i] - (double)t->pts[0];
}

/** n ticks in units of 1 / per_second; the division comes last, so that whole results are exact. */
static double scaled(const timeline *t, double n, double per_second)
{
    return n * t->tick.num * per_second / t->tick.den;
}

/** Slot of a time that was multiplied by 24, kept within what can be counted. */
static int64_t slot(double x)
{
    return (int64_t)floor(fmin(fmax(x, 0.0), 1e15) + 0.5);
}

/** First 24 fps slot of source frame i; i == n is the end of the last one. */
static int64_t edge(const timeline *t, int64_t i)
{
    if (!t->is_variable) return slot((double)i * (target_fps / t->fps));
    if (i < t->n) return slot(scaled(t, ticks_of(t, i), target_fps));
    if (t->last_ticks > 0)
        return slot(scaled(t, ticks_of(t, t->n - 1) + (double)t->last_ticks, target_fps));
    return slot(scaled(t, ticks_of(t, t->n - 1), target_fps) + target_fps / t->fps);
}

/** How many 24 fps frames the clip gives: at least one, however short it is. */
static int64_t count_slots(const timeline *t, int64_t max_frames)
{
    const int64_t n = edge(t, t->n);
    return n < 1 ? 1 : n > max_frames ? max_frames : n;
}

static bool is_constant(const timeline *t, double fps)
{
    const double tick = 1.01 * av_q2d(t->tick), slack = tick > 1.5e-3 ? tick : 1.5e-3;

    for (int64_t i = 1; i < t->n; i++)
        if (fabs(scaled(t, ticks_of(t, i), 1.0) - (double)i / fps) > slack) return false;
    return true;
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/** Decides between a constant and a variable rate. */
static h3_status settle_rate(timeline *t, const h3_demux *d, AVStream *s)
{
    const AVRational rates[2] = {s->r_frame_rate, s->avg_frame_rate};

    if (t->has_times) {
        qsort(t->pts, (size_t)t->n, sizeof *t->pts, by_time);
        for (int i = 0; i < 2; i++) {
            if (rates[i].num <= 0 || rates[i].den <= 0) continue;
            t->fps = av_q2d(rates[i]);
            if (is_constant(t, t->fps)) return H3_OK;
        }
        t->is_variable = true;
        if (t->n > 1) t->fps = (double)(t->n - 1) / scaled(t, ticks_of(t, t->n - 1), 1.0);
    } else {
        const AVRational r = av_guess_frame_rate(d->fmt, s, NULL);
        if (r.num > 0 && r.den > 0) t->fps = av_q2d(r);
    }
    if (!(t->fps > 0.0) || !isfinite(t->fps))
        return h3_fail(H3_E_FORMAT, "%s: the frame rate of the video cannot be told", d->file.name);
    return H3_OK;
}

/* ---- first pass ---- */

static h3_status add_packet(timeline *t, const AVPacket *p, const char *name)
{
    t->n_packets++;
    if (p->flags & AV_PKT_FLAG_DISCARD) return H3_OK;
    if (t->n == t->room) {
        const int64_t room = t->room ? 2 * t->room : 512;
        int64_t *pts = realloc(t->pts, (size_t)room * sizeof *pts);
        if (!pts) return h3_fail(H3_E_NOMEM, "%s: no memory for %lld times", name, (long long)room);
        t->pts = pts;
        t->room = room;
    }
    if (p->pts == AV_NOPTS_VALUE) {
        t->has_times = false;
    } else if (t->n == 0 || p->pts > t->last_pts) {
        t->last_pts = p->pts;
        t->last_ticks = p->duration;
    }
    t->pts[t->n++] = p->pts;
    return H3_OK;
}

/** True when every frame that can reach a slot below max_frames has been seen. */
static bool is_enough(const timeline *t, const AVPacket *p, int64_t max_frames)
{
    const double need = (double)max_frames / target_fps + 1.0;
    const int64_t now = p->dts != AV_NOPTS_VALUE ? p->dts : p->pts;
    int64_t first = INT64_MAX;

    if (t->n >= MAX_FRAMES) return true;
    if (now == AV_NOPTS_VALUE || !t->has_times) return t->n > 300 * max_frames;
    for (int64_t i = 0; i < t->n && i < 64; i++)
        if (t->pts[i] < first) first = t->pts[i];
    return ((double)now - (double)first) * av_q2d(t->tick) > need;
}

static h3_status read_times(timeline *t, h3_demux *d, int video, int64_t max_frames,
                            const h3_cancel_flag *stop)
{
    AVStream *s = d->fmt->streams[video];
    AVPacket *p = av_packet_alloc();
    h3_status st = p ? H3_OK : h3_fail(H3_E_NOMEM, "%s: no memory", d->file.name);
    int err = 0;

    *t = (timeline){.tick = s->time_base, .has_times = true};
    for (bool done = false; st == H3_OK && !done && (err = av_read_frame(d->fmt, p)) >= 0;) {
        if (h3_is_cancelled(stop)) st = h3_fail(H3_E_CANCELLED, "%s: cancelled", d->file.name);
        if (st == H3_OK && p->stream_index == video) {
            if (p->flags & AV_PKT_FLAG_CORRUPT)
                st = h3_fail(H3_E_FORMAT, "%s: the video is damaged or cut off after %lld frames",
                             d->file.name, (long long)t->n);
            else
                st = add_packet(t, p, d->file.name);
            done = st == H3_OK && is_enough(t, p, max_frames);
        }
        av_packet_unref(p);
    }
    av_packet_free(&p);
    if (st != H3_OK) return st;
    t->is_at_end = err < 0;
    if (err < 0 && err != AVERROR_EOF)
        return h3_av_fail(err, H3_E_FORMAT, d->file.name, "the video is damaged");
    if (!t->n) return h3_fail(H3_E_FORMAT, "%s: the video holds no frames", d->file.name);
    if (t->is_at_end && strstr(d->fmt->iformat->name, "mp4") && s->nb_frames > t->n_packets)
        return h3_fail(H3_E_FORMAT, "%s: the video is cut off: %lld of %lld frames are there",
                       d->file.name, (long long)t->n_packets, (long long)s->nb_frames);
    return settle_rate(t, d, s);
}

/* ---- second pass ---- */

/** Puts frames where they belong; knows nothing of where they come from. */
typedef struct placer {
    const timeline *t;
    h3_clip *clip;
    const char *name;
    int src_w, src_h, orientation; // as decoded
    int64_t filled;                // slots [0, filled) are there
    uint8_t *raw, *turned;
    struct SwsContext *sws;
} placer;

static void placer_free(placer *p)
{
    free(p->raw);
    free(p->turned);
    sws_freeContext(p->sws);
}

static size_t frame_bytes(const h3_clip *c)
{
    return (size_t)c->width * (size_t)c->height * 3;
}

/** Sizes are known with the first frame. */
static h3_status placer_begin(placer *p, int w, int h, int width, int height)
{
    const bool is_turned = p->orientation >= 5;
    h3_clip *c = p->clip;
    size_t total;

    p->src_w = w;
    p->src_h = h;
    c->width = width ? width : is_turned ? h : w;
    c->height = height ? height : is_turned ? w : h;
    if (h3_mul_size(frame_bytes(c), (size_t)c->n, &total)) c->rgb = malloc(total);
    p->raw = malloc((size_t)w * (size_t)h * 3 + H3_PIXELS_PADDING);
    if (p->orientation != 1) p->turned = malloc((size_t)w * (size_t)h * 3);
    if (!c->rgb || !p->raw || (p->orientation != 1 && !p->turned))
        return h3_fail(H3_E_NOMEM, "%s: no memory for %lld frames of %dx%d", p->name,
                       (long long)c->n, c->width, c->height);
    return H3_OK;
}

/** Slots [from, to) show the picture rgb [src_h, src_w, 3]. */
static h3_status place(placer *p, const uint8_t *rgb, int64_t from, int64_t to)
{
    h3_clip *c = p->clip;
    const size_t bytes = frame_bytes(c);
    int w = p->src_w, h = p->src_h;

    if (p->orientation != 1) {
        h3_image_orient(p->turned, rgb, w, h, p->orientation);
        rgb = p->turned;
        if (p->orientation >= 5) w = p->src_h, h = p->src_w;
    }
    H3_TRY(h3_resize(c->rgb + (size_t)from * bytes, c->height, c->width, rgb, h, w, H3_LANCZOS));
    for (int64_t i = from + 1; i < to; i++)
        memcpy(c->rgb + (size_t)i * bytes, c->rgb + (size_t)from * bytes, bytes);
    p->filled = to;
    return H3_OK;
}

/** Slots of source frame i that are still empty and wanted; false when there are none. */
static bool slots_of(const placer *p, int64_t i, int64_t *from, int64_t *to)
{
    *from = edge(p->t, i);
    *to = edge(p->t, i + 1);
    if (p->filled == 0 && (i == p->t->n - 1 || *to > 0)) *from = 0; // a clip shorter than a slot,
    if (p->filled == 0 && i == p->t->n - 1 && *to < 1) *to = 1;     // or undecodable leading frames
    if (*to > p->clip->n) *to = p->clip->n;
    return *from < *to;
}

static int64_t index_of(const timeline *t, int64_t pts, int64_t counted)
{
    int64_t lo = 0, hi = t->n;

    if (!t->has_times || pts == AV_NOPTS_VALUE) return counted;
    while (lo < hi) {
        const int64_t mid = (lo + hi) / 2;
        if (t->pts[mid] < pts)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static h3_status take_frame(placer *p, const AVFrame *f, int64_t counted, int width, int height)
{
    const int64_t i = index_of(p->t, f->best_effort_timestamp, counted);
    int64_t from, to;

    if (f->decode_error_flags || f->flags & AV_FRAME_FLAG_CORRUPT)
        return h3_fail(H3_E_FORMAT, "%s: frame %lld of the video is damaged", p->name,
                       (long long)i);
    if (i >= p->t->n || !slots_of(p, i, &from, &to)) return H3_OK;
    if (from < p->filled) return H3_OK;
    if (from > p->filled)
        return h3_fail(H3_E_FORMAT, "%s: frames before frame %lld of the video are missing",
                       p->name, (long long)i);
    if (!p->raw) H3_TRY(placer_begin(p, f->width, f->height, width, height));
    if (f->width != p->src_w || f->height != p->src_h)
        return h3_fail(H3_E_UNSUPPORTED, "%s: the video changes its size from %dx%d to %dx%d",
                       p->name, p->src_w, p->src_h, f->width, f->height);
    H3_TRY(h3_pixels_video(p->raw, f, &p->sws, p->name));
    return place(p, p->raw, from, to);
}

static h3_status open_decoder(AVCodecContext **out, const AVStream *s, const char *name)
{
    const AVCodec *codec = avcodec_find_decoder(s->codecpar->codec_id);
    AVCodecContext *c;
    int err;

    *out = NULL;
    if (!codec)
        return h3_fail(H3_E_UNSUPPORTED, "%s: this libavcodec has no decoder for %s", name,
                       avcodec_get_name(s->codecpar->codec_id));
    c = *out = avcodec_alloc_context3(codec);
    if (!c) return h3_fail(H3_E_NOMEM, "%s: no memory for the decoder", name);
    err = avcodec_parameters_to_context(c, s->codecpar);
    c->pkt_timebase = s->time_base;
    c->max_pixels = H3_MEDIA_MAX_PIXELS;
    c->thread_count = 0;
    if (err >= 0) err = avcodec_open2(c, codec, NULL);
    return err < 0 ? h3_av_fail(err, H3_E_UNSUPPORTED, name, "the decoder cannot be opened")
                   : H3_OK;
}

/** Sends packets (NULL at the end) and takes frames until the slots are full. */
static h3_status feed(placer *p, AVCodecContext *c, const AVPacket *packet, AVFrame *f,
                      int64_t *counted, int width, int height)
{
    int err = avcodec_send_packet(c, packet);

    if (err < 0 && err != AVERROR_EOF)
        return h3_av_fail(err, H3_E_FORMAT, p->name, "the video is damaged");
    while (p->filled < p->clip->n && (err = avcodec_receive_frame(c, f)) >= 0) {
        const h3_status st = take_frame(p, f, (*counted)++, width, height);
        av_frame_unref(f);
        H3_TRY(st);
    }
    if (p->filled < p->clip->n && err != AVERROR(EAGAIN) && err != AVERROR_EOF)
        return h3_av_fail(err, H3_E_FORMAT, p->name, "the video is damaged");
    return H3_OK;
}

static h3_status decode_clip(placer *p, h3_demux *d, int video, int width, int height,
                             const h3_cancel_flag *stop)
{
    AVPacket *packet = av_packet_alloc();
    AVFrame *f = av_frame_alloc();
    AVCodecContext *c = NULL;
    int64_t counted = 0;
    h3_status st = open_decoder(&c, d->fmt->streams[video], p->name);
    int err = 0;

    if (st == H3_OK && (!packet || !f)) st = h3_fail(H3_E_NOMEM, "%s: no memory", p->name);
    while (st == H3_OK && p->filled < p->clip->n && err >= 0) {
        if (h3_is_cancelled(stop)) {
            st = h3_fail(H3_E_CANCELLED, "%s: cancelled", p->name);
            break;
        }
        err = av_read_frame(d->fmt, packet);
        if (err >= 0 && packet->stream_index != video) {
            av_packet_unref(packet);
            continue;
        }
        if (err < 0 && err != AVERROR_EOF)
            st = h3_av_fail(err, H3_E_FORMAT, p->name, "the video is damaged");
        else
            st = feed(p, c, err < 0 ? NULL : packet, f, &counted, width, height);
        av_packet_unref(packet);
    }
    if (st == H3_OK && p->filled < p->clip->n)
        st = h3_fail(H3_E_FORMAT, "%s: %lld frames were expected at 24 fps, %lld could be decoded",
                     p->name, (long long)p->clip->n, (long long)p->filled);
    av_packet_free(&packet);
    av_frame_free(&f);
    avcodec_free_context(&c);
    return st;
}

static h3_status check_request(int64_t max_frames, int width, int height)
{
    if (max_frames < 1 || max_frames > MAX_FRAMES)
        return h3_fail(H3_E_ARG, "%lld frames of a clip: expected 1..%d", (long long)max_frames,
                       MAX_FRAMES);
    if (width < 0 || height < 0 || !width != !height)
        return h3_fail(H3_E_ARG, "a clip cannot be resized to %dx%d", width, height);
    return H3_OK;
}

/** The second pass starts over on a fresh demuxer: seeking back is not exact in every container. */
static h3_status second_pass(placer *p, h3_media_src src, int width, int height,
                             const h3_cancel_flag *stop)
{
    h3_demux *d;
    h3_status st;

    H3_TRY(h3_demux_open(&d, src));
    st = decode_clip(p, d, h3_demux_video(d), width, height, stop);
    h3_demux_close(&d);
    return st;
}

h3_status h3_clip_load(h3_clip *out, h3_media_src src, int64_t max_frames, int width, int height,
                       const h3_cancel_flag *stop)
{
    const char *name = src.path ? src.path : "upload";
    timeline t = {0};
    placer p = {.t = &t, .clip = out, .name = name};
    h3_demux *d;
    h3_status st;
    int video;

    memset(out, 0, sizeof *out);
    H3_TRY(check_request(max_frames, width, height));
    H3_TRY(h3_demux_open(&d, src));
    video = h3_demux_video(d);
    if (video < 0)
        st = h3_fail(H3_E_FORMAT, "%s: has no video", name);
    else
        st = read_times(&t, d, video, max_frames, stop);
    if (st == H3_OK) {
        p.orientation = h3_demux_orientation(d->fmt->streams[video]);
        out->n = count_slots(&t, max_frames);
        out->fps = t.fps;
        out->is_variable = t.is_variable;
        out->n_source = t.n;
        out->start_time = t.has_times ? (double)t.pts[0] * av_q2d(t.tick) : 0.0;
    }
    h3_demux_close(&d);
    if (st == H3_OK) st = second_pass(&p, src, width, height, stop);
    placer_free(&p);
    free(t.pts);
    if (st != H3_OK) h3_clip_free(out);
    return st;
}

/* ---- folders of frames ---- */

static h3_status place_file(placer *p, const char *path, int64_t i, int width, int height)
{
    h3_image img;
    h3_status st = H3_OK;
    int64_t from, to;

    if (!slots_of(p, i, &from, &to)) return H3_OK;
    H3_TRY(h3_image_load(&img, h3_media_file(path)));
    if (!p->raw) st = placer_begin(p, img.width, img.height, width, height);
    if (st == H3_OK && (img.width != p->src_w || img.height != p->src_h))
        st = h3_fail(H3_E_SHAPE, "%s: is %dx%d, the first frame is %dx%d", path, img.width,
                     img.height, p->src_w, p->src_h);
    if (st == H3_OK) st = place(p, img.rgb, from, to);
    h3_image_free(&img);
    return st;
}

h3_status h3_clip_load_folder(h3_clip *out, const char *dir, double fps, int64_t max_frames,
                              int width, int height, const h3_cancel_flag *stop)
{
    timeline t = {.fps = fps};
    placer p = {.t = &t, .clip = out, .name = dir, .orientation = 1};
    char **paths;
    h3_status st;

    memset(out, 0, sizeof *out);
    H3_TRY(check_request(max_frames, width, height));
    if (!(fps >= 0.01 && fps <= 1000.0))
        return h3_fail(H3_E_ARG, "%s: %g frames per second: expected 0.01..1000", dir, fps);
    H3_TRY(h3_frames_list(&paths, &t.n, dir));
    out->n = count_slots(&t, max_frames);
    out->fps = fps;
    out->n_source = t.n;
    st = H3_OK;
    for (int64_t i = 0; st == H3_OK && i < t.n && p.filled < out->n; i++)
        st = h3_is_cancelled(stop) ? h3_fail(H3_E_CANCELLED, "%s: cancelled", dir)
                                   : place_file(&p, paths[i], i, width, height);
    h3_frames_list_free(&paths, t.n);
    placer_free(&p);
    if (st != H3_OK) h3_clip_free(out);
    return st;
}
