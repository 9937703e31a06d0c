/**
 * Sound from files; see sound.h. Samples keep the file's rate; libswresample only changes the
 * format and, beyond two channels, mixes down. Mono is doubled here: its matrix would scale by
 * 1/sqrt(2).
 */
#include "sound.h"

#include <libavcodec/avcodec.h>
#include <libswresample/swresample.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "av_util.h"
#include "media_file.h"
#include "resample.h"
#include "size.h"

static const double longest_seconds = 3600.0;
enum { MAX_CHANNELS = 64 };

typedef struct reader {
    const char *name;
    AVCodecContext *dec;
    SwrContext *swr;
    int channels, rate, format; // of the decoded frames; 0 before the first
    int n_planes;               // 1 (mono) or 2 come out of swr
    float *pcm[2];
    int64_t n, room, limit;
    int64_t skip;        // samples before the first picture, still to be dropped
    bool is_exact_ticks; // one tick of the stream is one sample: durations can be trusted
} reader;

void h3_sound_free(h3_sound *s)
{
    free(s->pcm);
    memset(s, 0, sizeof *s);
}

static void reader_free(reader *r)
{
    avcodec_free_context(&r->dec);
    swr_free(&r->swr);
    free(r->pcm[0]);
    free(r->pcm[1]);
}

static h3_status open_decoder(reader *r, const AVStream *s)
{
    const AVCodec *codec = avcodec_find_decoder(s->codecpar->codec_id);
    int err;

    if (!codec)
        return h3_fail(H3_E_UNSUPPORTED, "%s: this libavcodec has no decoder for %s", r->name,
                       avcodec_get_name(s->codecpar->codec_id));
    r->dec = avcodec_alloc_context3(codec);
    if (!r->dec) return h3_fail(H3_E_NOMEM, "%s: no memory for the decoder", r->name);
    err = avcodec_parameters_to_context(r->dec, s->codecpar);
    r->dec->pkt_timebase = s->time_base;
    if (err >= 0) err = avcodec_open2(r->dec, codec, NULL);
    return err < 0 ? h3_av_fail(err, H3_E_UNSUPPORTED, r->name, "the decoder cannot be opened")
                   : H3_OK;
}

/** Converter from what the decoder gives to planar float, mono or stereo. */
static h3_status open_converter(reader *r, const AVFrame *f)
{
    AVChannelLayout in = {0}, out = {0};
    int err;

    r->channels = f->ch_layout.nb_channels;
    r->rate = f->sample_rate;
    r->format = f->format;
    r->n_planes = r->channels == 1 ? 1 : 2;
    if (r->channels < 1 || r->channels > MAX_CHANNELS || r->rate < 1)
        return h3_fail(H3_E_FORMAT, "%s: %d channels at %d Hz", r->name, r->channels, r->rate);
    if (r->channels <= 2 || f->ch_layout.order == AV_CHANNEL_ORDER_UNSPEC)
        av_channel_layout_default(&in, r->channels);
    else if (av_channel_layout_copy(&in, &f->ch_layout) < 0)
        return h3_fail(H3_E_NOMEM, "%s: no memory for a channel layout", r->name);
    av_channel_layout_default(&out, r->n_planes);
    err = swr_alloc_set_opts2(&r->swr, &out, AV_SAMPLE_FMT_FLTP, r->rate, &in,
                              (enum AVSampleFormat)f->format, r->rate, 0, NULL);
    if (err >= 0) err = swr_init(r->swr);
    av_channel_layout_uninit(&in);
    return err < 0 ? h3_fail(H3_E_UNSUPPORTED, "%s: sound of %d channels cannot be mixed down: %s",
                             r->name, r->channels, h3_av_text(err))
                   : H3_OK;
}

static h3_status reserve(reader *r, int64_t n)
{
    const int64_t want = r->n + n;
    const int64_t room = want > 2 * r->room ? want : 2 * r->room;

    if (want <= r->room) return H3_OK;
    for (int c = 0; c < r->n_planes; c++) {
        float *p = realloc(r->pcm[c], (size_t)room * sizeof *p);
        if (!p)
            return h3_fail(H3_E_NOMEM, "%s: no memory for %lld samples", r->name, (long long)room);
        r->pcm[c] = p;
    }
    r->room = room;
    return H3_OK;
}

static h3_status check_finite(const reader *r, int64_t from)
{
    for (int c = 0; c < r->n_planes; c++)
        for (int64_t i = from; i < r->n; i++)
            if (!isfinite(r->pcm[c][i]))
                return h3_fail(H3_E_NUMERIC, "%s: sample %lld is not a finite number", r->name,
                               (long long)i);
    return H3_OK;
}

/** The frame's own length may be shorter than what the codec's block decodes to (last AAC frame).
 */
static int64_t samples_of(const reader *r, const AVFrame *f)
{
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(57, 30, 100)
    const int64_t ticks = f->duration;
#else
    const int64_t ticks = f->pkt_duration;
#endif
    return r->is_exact_ticks && ticks > 0 && ticks < f->nb_samples ? ticks : f->nb_samples;
}

static h3_status append(reader *r, const AVFrame *f)
{
    const int64_t n = samples_of(r, f), from = r->n;
    uint8_t *to[2];
    int64_t drop;
    int got;

    H3_TRY(reserve(r, f->nb_samples));
    for (int c = 0; c < r->n_planes; c++)
        to[c] = (uint8_t *)(r->pcm[c] + r->n);
    got = swr_convert(r->swr, to, f->nb_samples, (const uint8_t **)f->extended_data, f->nb_samples);
    if (got < 0) return h3_av_fail(got, H3_E_INTERNAL, r->name, "sound conversion");
    r->n += got < n ? got : n;
    drop = r->skip < r->n - from ? r->skip : r->n - from;
    for (int c = 0; drop && c < r->n_planes; c++)
        memmove(r->pcm[c] + from, r->pcm[c] + from + drop,
                (size_t)(r->n - from - drop) * sizeof(float));
    r->n -= drop;
    r->skip -= drop;
    return check_finite(r, from);
}

static h3_status append_silence(reader *r, int64_t n)
{
    if (n > r->limit) n = r->limit;
    H3_TRY(reserve(r, n));
    for (int c = 0; c < r->n_planes; c++)
        memset(r->pcm[c] + r->n, 0, (size_t)n * sizeof(float));
    r->n += n;
    return H3_OK;
}

/** Sound and picture of a clip start together: `lead` seconds of silence, or of sound to drop. */
static h3_status align(reader *r, double lead)
{
    const int64_t n =
        (int64_t)llrint(fmin(fmax(lead, -longest_seconds), longest_seconds) * r->rate);

    if (n > 0) return append_silence(r, n);
    r->skip = -n;
    return H3_OK;
}

static double lead_of(const h3_demux *d, int audio, const AVFrame *f)
{
    const int video = h3_demux_video(d);
    const AVStream *v = video >= 0 ? d->fmt->streams[video] : NULL, *a = d->fmt->streams[audio];

    if (!v || v->start_time == AV_NOPTS_VALUE || f->best_effort_timestamp == AV_NOPTS_VALUE)
        return 0.0;
    return (double)f->best_effort_timestamp * av_q2d(a->time_base) -
           (double)v->start_time * av_q2d(v->time_base);
}

static h3_status take_frame(reader *r, const h3_demux *d, int audio, const AVFrame *f,
                            double seconds)
{
    if (!f->nb_samples) return H3_OK;
    if (!r->swr) {
        const AVRational tick = d->fmt->streams[audio]->time_base;
        H3_TRY(open_converter(r, f));
        r->limit =
            (int64_t)((seconds > 0.0 && seconds < longest_seconds ? seconds : longest_seconds) *
                      r->rate);
        r->is_exact_ticks =
            tick.num == 1 && tick.den == r->rate && strstr(d->fmt->iformat->name, "mp4") != NULL;
        H3_TRY(align(r, lead_of(d, audio, f)));
    }
    if (f->ch_layout.nb_channels != r->channels || f->sample_rate != r->rate ||
        f->format != r->format)
        return h3_fail(H3_E_UNSUPPORTED,
                       "%s: the sound changes from %d channels at %d Hz to %d channels at %d Hz",
                       r->name, r->channels, r->rate, f->ch_layout.nb_channels, f->sample_rate);
    return append(r, f);
}

static h3_status feed(reader *r, const h3_demux *d, int audio, const AVPacket *p, AVFrame *f,
                      double seconds)
{
    int err = avcodec_send_packet(r->dec, p);

    if (err < 0 && err != AVERROR_EOF)
        return h3_av_fail(err, H3_E_FORMAT, r->name, "the sound is damaged");
    while ((err = avcodec_receive_frame(r->dec, f)) >= 0) {
        const h3_status st = take_frame(r, d, audio, f, seconds);
        av_frame_unref(f);
        H3_TRY(st);
    }
    return err == AVERROR(EAGAIN) || err == AVERROR_EOF
               ? H3_OK
               : h3_av_fail(err, H3_E_FORMAT, r->name, "the sound is damaged");
}

static bool is_full(const reader *r)
{
    return r->swr && r->n >= r->limit;
}

static h3_status read_all(reader *r, h3_demux *d, int audio, double seconds,
                          const h3_cancel_flag *stop)
{
    AVPacket *p = av_packet_alloc();
    AVFrame *f = av_frame_alloc();
    h3_status st = p && f ? H3_OK : h3_fail(H3_E_NOMEM, "%s: no memory", r->name);
    int err = 0;

    while (st == H3_OK && err >= 0 && !is_full(r)) {
        if (h3_is_cancelled(stop)) {
            st = h3_fail(H3_E_CANCELLED, "%s: cancelled", r->name);
            break;
        }
        err = av_read_frame(d->fmt, p);
        if (err < 0 && err != AVERROR_EOF)
            st = h3_av_fail(err, H3_E_FORMAT, r->name, "the sound is damaged");
        else if (err < 0 || p->stream_index == audio)
            st = feed(r, d, audio, err < 0 ? NULL : p, f, seconds);
        av_packet_unref(p);
    }
    av_packet_free(&p);
    av_frame_free(&f);
    if (st == H3_OK && !r->n) st = h3_fail(H3_E_FORMAT, "%s: the sound track is empty", r->name);
    return st;
}

/** Both channels into one block, mono twice. */
static h3_status hand_over(h3_sound *out, const reader *r)
{
    const int64_t n = r->n < r->limit ? r->n : r->limit;

    out->pcm = malloc((size_t)n * 2 * sizeof(float));
    if (!out->pcm)
        return h3_fail(H3_E_NOMEM, "%s: no memory for %lld samples", r->name, (long long)n);
    for (int c = 0; c < 2; c++)
        memcpy(out->pcm + c * n, r->pcm[r->n_planes == 2 ? c : 0], (size_t)n * sizeof(float));
    out->n = n;
    out->sample_rate = r->rate;
    out->n_channels = r->channels;
    return H3_OK;
}

h3_status h3_sound_load(h3_sound *out, h3_media_src src, double max_seconds,
                        const h3_cancel_flag *stop)
{
    reader r = {.name = src.path ? src.path : "upload"};
    h3_demux *d;
    h3_status st;
    int audio;

    memset(out, 0, sizeof *out);
    H3_TRY(h3_demux_open(&d, src));
    audio = h3_demux_audio(d);
    st = audio < 0 ? h3_fail(H3_E_MISSING, "%s: has no sound track", r.name)
                   : open_decoder(&r, d->fmt->streams[audio]);
    if (st == H3_OK) st = read_all(&r, d, audio, max_seconds, stop);
    if (st == H3_OK) st = hand_over(out, &r);
    reader_free(&r);
    h3_demux_close(&d);
    return st;
}

h3_status h3_sound_resample(h3_sound *s, int sample_rate)
{
    const int64_t n = h3_resample_length(s->n, s->sample_rate, sample_rate);
    h3_status st = H3_OK;
    float *pcm;

    if (sample_rate == s->sample_rate) return H3_OK;
    if (n < 0 || n > INT64_MAX / 8)
        return h3_fail(H3_E_ARG, "sound of %lld samples cannot go from %d Hz to %d Hz",
                       (long long)s->n, s->sample_rate, sample_rate);
    pcm = malloc((size_t)n * 2 * sizeof *pcm);
    if (!pcm) return h3_fail(H3_E_NOMEM, "no memory for %lld samples", (long long)n);
    for (int c = 0; st == H3_OK && c < 2; c++)
        st = h3_resample(pcm + c * n, s->pcm + c * s->n, s->n, s->sample_rate, sample_rate);
    if (st != H3_OK) {
        free(pcm);
        return st;
    }
    free(s->pcm);
    s->pcm = pcm;
    s->n = n;
    s->sample_rate = sample_rate;
    return H3_OK;
}
