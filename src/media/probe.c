/**
 * What a file is; see probe.h. Pictures are told apart by their own header; everything else is a
 * container for libavformat.
 */
#include "probe.h"

#include <stdio.h>
#include <string.h>

#include "image_impl.h"
#include "media_file.h"

const char *h3_media_kind_name(h3_media_kind k)
{
    return k == H3_MEDIA_IMAGE ? "picture" : k == H3_MEDIA_VIDEO ? "video" : "sound";
}

static h3_status probe_image(h3_media_info *o, const h3_image_head *h, const char *name)
{
    const char *format = h3_image_format_name(h->format);

    H3_TRY(h3_image_check_head(h, name));
    o->kind = H3_MEDIA_IMAGE;
    for (size_t i = 0; format[i] && i + 1 < sizeof o->format; i++)
        o->format[i] = format[i] >= 'A' && format[i] <= 'Z' ? (char)(format[i] + 32) : format[i];
    o->width = (int)(h->orientation >= 5 ? h->height : h->width);
    o->height = (int)(h->orientation >= 5 ? h->width : h->height);
    o->n_frames = 1;
    return H3_OK;
}

static double seconds(const AVStream *s, const AVFormatContext *fmt)
{
    if (s->duration > 0) return (double)s->duration * av_q2d(s->time_base);
    return fmt->duration > 0 ? (double)fmt->duration / AV_TIME_BASE : 0.0;
}

static h3_status need_decoder(const AVStream *s, const char *what, const char *name)
{
    if (avcodec_find_decoder(s->codecpar->codec_id)) return H3_OK;
    return h3_fail(H3_E_UNSUPPORTED, "%s: this libavcodec has no decoder for the %s (%s)", name,
                   what, avcodec_get_name(s->codecpar->codec_id));
}

static h3_status probe_video(h3_media_info *o, h3_demux *d, AVStream *s)
{
    const AVRational rate = av_guess_frame_rate(d->fmt, s, NULL);
    const int orientation = h3_demux_orientation(s);
    const AVCodecParameters *p = s->codecpar;

    H3_TRY(need_decoder(s, "picture", d->file.name));
    if (p->width < 1 || p->height < 1)
        return h3_fail(H3_E_FORMAT, "%s: the size of the video cannot be read", d->file.name);
    o->kind = H3_MEDIA_VIDEO;
    snprintf(o->video_codec, sizeof o->video_codec, "%s", avcodec_get_name(p->codec_id));
    o->width = orientation >= 5 ? p->height : p->width;
    o->height = orientation >= 5 ? p->width : p->height;
    o->fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0.0;
    o->duration = seconds(s, d->fmt);
    o->n_frames = s->nb_frames > 0 ? s->nb_frames : (int64_t)(o->duration * o->fps + 0.5);
    if (o->n_frames < 1) o->n_frames = 1;
    return H3_OK;
}

static h3_status probe_audio(h3_media_info *o, h3_demux *d, AVStream *s)
{
    const AVCodecParameters *p = s->codecpar;

    H3_TRY(need_decoder(s, "sound", d->file.name));
    if (p->sample_rate < 1 || p->ch_layout.nb_channels < 1)
        return h3_fail(H3_E_FORMAT, "%s: the sound track's rate or channels cannot be read",
                       d->file.name);
    o->has_audio = true;
    snprintf(o->audio_codec, sizeof o->audio_codec, "%s", avcodec_get_name(p->codec_id));
    o->channels = p->ch_layout.nb_channels;
    o->sample_rate = p->sample_rate;
    o->audio_duration = seconds(s, d->fmt);
    if (!o->kind) {
        o->kind = H3_MEDIA_AUDIO;
        o->duration = o->audio_duration;
    }
    return H3_OK;
}

static h3_status probe_container(h3_media_info *o, h3_media_src src)
{
    h3_status st = H3_OK;
    h3_demux *d;
    int v, a;

    H3_TRY(h3_demux_open(&d, src));
    v = h3_demux_video(d);
    a = h3_demux_audio(d);
    snprintf(o->format, sizeof o->format, "%s", d->fmt->iformat->name);
    if (v < 0 && a < 0)
        st = h3_fail(H3_E_FORMAT, "%s: holds neither video nor sound", d->file.name);
    if (v >= 0) st = probe_video(o, d, d->fmt->streams[v]);
    if (st == H3_OK && a >= 0) st = probe_audio(o, d, d->fmt->streams[a]);
    h3_demux_close(&d);
    return st;
}

h3_status h3_media_probe(h3_media_info *out, h3_media_src src)
{
    h3_media_file_data f;
    h3_image_head head;
    h3_status st = H3_OK;

    memset(out, 0, sizeof *out);
    H3_TRY(h3_media_file_open(&f, src));
    head = h3_image_head_read(f.data, f.size);
    if (head.format) st = probe_image(out, &head, f.name);
    h3_media_file_close(&f);
    if (!head.format) st = probe_container(out, src);
    if (st != H3_OK) memset(out, 0, sizeof *out);
    return st;
}
