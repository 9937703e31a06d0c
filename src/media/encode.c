/**
 * MP4 writer; see encode.h.
 *
 * Pictures go RGB -> YUV 4:2:0 (BT.709, limited range) -> H.264 as they come; the packets, not the
 * pictures, wait in a list until the sound is there too (a video of 15 s is some 20 MB of packets).
 * h3_mux_finish then encodes the sound and writes both streams in the order of their decoding
 * times. When the sound is known to be complete before that (n_samples), it is encoded at once and
 * every packet is written as soon as its turn is certain: the same file, without the list.
 *
 * Lengths are exact. An AAC frame holds 1024 samples and the encoder puts 1024 priming samples in
 * front, so a plain file starts late or ends with up to 1023 samples that nobody asked for, and
 * decoders differ in how they cut the tail. We therefore put the missing samples in *front*:
 * silence of p = -n mod 1024 samples at times -p..-1. All AAC frames are then full, and the edit
 * list, which every decoder knows (it must skip the priming anyway), starts the sound 1024 + p
 * samples in. Both tracks and the movie have time scales in which n samples and f frames are whole
 * numbers.
 *
 * Rejected: +faststart by rewriting in our own code (the muxer does it), fragmented MP4 (many
 * players show no length), a fixed MP4 written to the final name (a killed process would leave half
 * a file).
 */
#include "encode.h"

#include <fcntl.h>
#include <libavcodec/avcodec.h>
#include <libavcodec/bsf.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "av_util.h"
#include "file.h"
#include "size.h"

enum { MAX_SIDE = 16384, AAC_BITS_PER_SECOND = 192000, VIDEO = 0, AUDIO = 1 };

typedef struct packet_list {
    AVPacket **at;
    size_t n, room, next; // [next, n) are not written yet
} packet_list;

struct h3_mux {
    h3_atomic file;
    h3_mux_opt opt; // strings and meta of the caller are not read after open
    char *codec;
    AVFormatContext *fmt;
    AVStream *stream[2];
    AVCodecContext *enc[2];
    AVBSFContext *bsf; // takes the encoder's own description out; NULL when it may stay
    AVFrame *rgb,
        *yuv; // the caller's picture with padded rows (swscale reads past an end), converted
    struct SwsContext *sws;
    packet_list packets[2];
    float *pcm[2]; // (n_pcm) left, right
    int64_t n_pcm, pcm_room, n_frames;
    bool is_sound_done; // all of it is in packets[AUDIO]
};

static const char *const video_codecs[] = {"libx264", "libopenh264"};
enum { N_VIDEO_CODECS = sizeof video_codecs / sizeof *video_codecs };

h3_mux_opt h3_mux_default(int width, int height, int64_t n_frames)
{
    return (h3_mux_opt){.width = width,
                        .height = height,
                        .fps = 24,
                        .n_frames = n_frames,
                        .sample_rate = 32000,
                        .codec = "auto",
                        .crf = 18};
}

const char *h3_mux_codec(const h3_mux *m)
{
    return m->codec;
}

static bool is_auto(const h3_mux_opt *o)
{
    return !o->codec || strcmp(o->codec, "auto") == 0;
}

/** The encoders to try, in order; fails by name when there is none. */
static h3_status pick_codec(const AVCodec **out, const h3_mux_opt *o)
{
    bool is_known = is_auto(o);

    *out = NULL;
    for (int i = 0; i < N_VIDEO_CODECS && !*out; i++) {
        if (!is_auto(o) && strcmp(o->codec, video_codecs[i]) != 0) continue;
        is_known = true;
        *out = avcodec_find_encoder_by_name(video_codecs[i]);
    }
    if (!is_known)
        return h3_fail(H3_E_ARG, "video codec \"%s\": expected auto, libx264 or libopenh264",
                       o->codec);
    if (!*out && is_auto(o))
        return h3_fail(
            H3_E_UNSUPPORTED,
            "this libavcodec has no H.264 encoder: install one built with libx264 (Debian: "
            "libavcodec-extra) or libopenh264, or write frames with --frames-dir");
    if (!*out)
        return h3_fail(H3_E_UNSUPPORTED,
                       "this libavcodec has no encoder %s: use --codec auto, or install a "
                       "libavcodec built with it, or write frames with --frames-dir",
                       o->codec);
    return H3_OK;
}

static h3_status check_options(const h3_mux_opt *o)
{
    if (o->width < 2 || o->height < 2 || o->width > MAX_SIDE || o->height > MAX_SIDE)
        return h3_fail(H3_E_ARG, "video of %dx%d: each side must be 2..%d", o->width, o->height,
                       MAX_SIDE);
    if (o->width % 2 || o->height % 2)
        return h3_fail(H3_E_ARG, "video of %dx%d: H.264 with 4:2:0 colour needs even sides",
                       o->width, o->height);
    if (o->fps < 1 || o->fps > 1000)
        return h3_fail(H3_E_ARG, "%d frames per second: expected 1..1000", o->fps);
    if (o->n_frames < 0) return h3_fail(H3_E_ARG, "a video of %lld frames", (long long)o->n_frames);
    if (o->crf < 0 || o->crf > 51) return h3_fail(H3_E_ARG, "crf %d: expected 0..51", o->crf);
    if (o->sample_rate < 0 || o->sample_rate > 96000)
        return h3_fail(H3_E_ARG, "sample rate %d: expected 8000..96000, or 0 for no sound",
                       o->sample_rate);
    return H3_OK;
}

static h3_status check_encoders(const h3_mux_opt *opt)
{
    const AVCodec *c;

    H3_TRY(check_options(opt));
    H3_TRY(pick_codec(&c, opt));
    if (opt->sample_rate && !avcodec_find_encoder(AV_CODEC_ID_AAC))
        return h3_fail(H3_E_UNSUPPORTED, "this libavcodec has no AAC encoder: install the "
                                         "distribution's full libavcodec, or write a WAV");
    return H3_OK;
}

/** libopenh264 has no constant quality worth the name: 0.2 bit per pixel is past visible loss. */
static int64_t bits_per_second(const h3_mux_opt *o)
{
    const int64_t b = (int64_t)o->width * o->height * o->fps / 5;
    return b < 200000 ? 200000 : b > 80000000 ? 80000000 : b;
}

/* With AVX-512 x264 (0.164 at least) reads lanes beyond the picture where it follows blocks through
 * time (mbtree): unless the width is a multiple of 256, what happens to lie in memory decides about
 * bits, and equal requests would not be equal files. AVX2 and below do not. A processor with
 * AVX-512 has all of these. */
static void keep_to_avx2(AVCodecContext *c)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        av_opt_set(c->priv_data, "x264-params",
                   "asm=MMX2,SSE,SSE2,SSE2Fast,LZCNT,SSE3,SSSE3,SSE4.1,SSE4.2,AVX,FMA3,BMI1,BMI2,"
                   "AVX2",
                   0);
#else
    (void)c;
#endif
}

static h3_status set_quality(h3_mux *m, AVCodecContext *c)
{
    const h3_mux_opt *o = &m->opt;
    const char *preset = o->preset ? o->preset : "medium";

    if (strcmp(m->codec, "libx264") != 0) {
        c->bit_rate = bits_per_second(o);
        av_opt_set(c->priv_data, "allow_skip_frames", "0", 0);
        return H3_OK;
    }
    if (!h3_mux_has_preset(preset)) // libx264 itself would complain on stderr
        return h3_fail(H3_E_ARG,
                       "libx264 has no preset %s; it has ultrafast, superfast, veryfast, faster, "
                       "fast, medium, slow, slower, veryslow and placebo",
                       preset);
    if (av_opt_set(c->priv_data, "preset", preset, 0) < 0 ||
        av_opt_set_int(c->priv_data, "crf", o->crf, 0) < 0)
        return h3_fail(H3_E_ARG, "libx264 refuses preset \"%s\" or crf %d", preset, o->crf);
    keep_to_avx2(c);
    return H3_OK;
}

static h3_status open_video(h3_mux *m, const AVCodec *codec)
{
    const h3_mux_opt *o = &m->opt;
    AVCodecContext *c = m->enc[VIDEO] = avcodec_alloc_context3(codec);
    int err;

    if (!c) return h3_fail(H3_E_NOMEM, "no memory for the video encoder");
    c->width = o->width;
    c->height = o->height;
    c->pix_fmt = AV_PIX_FMT_YUV420P;
    c->time_base = (AVRational){1, o->fps};
    c->framerate = (AVRational){o->fps, 1};
    c->gop_size = 2 * o->fps; // a key frame every two seconds: seeking in a browser is quick
    c->color_range = AVCOL_RANGE_MPEG;
    c->colorspace = AVCOL_SPC_BT709;
    c->color_primaries = AVCOL_PRI_BT709;
    c->color_trc = AVCOL_TRC_BT709;
    c->chroma_sample_location = AVCHROMA_LOC_LEFT;
    c->sample_aspect_ratio = (AVRational){1, 1};
    c->thread_count = o->n_threads;
    c->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    H3_TRY(set_quality(m, c));
    if ((err = avcodec_open2(c, codec, NULL)) < 0)
        return h3_fail(H3_E_ARG, "%s cannot be opened for %dx%d, preset \"%s\", crf %d: %s",
                       m->codec, o->width, o->height, o->preset ? o->preset : "medium", o->crf,
                       h3_av_text(err));
    return H3_OK;
}

h3_status h3_mux_check(const h3_mux_opt *opt)
{
    h3_mux m = {.opt = *opt};
    const AVCodec *codec = NULL;
    h3_status st;

    h3_av_quiet();
    H3_TRY(check_encoders(opt));
    H3_TRY(pick_codec(&codec, opt));
    m.codec = h3_strdupf("%s", codec->name);
    st = open_video(&m, codec); // a preset it does not know shows only now
    avcodec_free_context(&m.enc[VIDEO]);
    free(m.codec);
    return st;
}

static h3_status open_audio(h3_mux *m)
{
    const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_AAC);
    AVCodecContext *c = m->enc[AUDIO] = avcodec_alloc_context3(codec);
    int err;

    if (!c) return h3_fail(H3_E_NOMEM, "no memory for the audio encoder");
    c->sample_rate = m->opt.sample_rate;
    c->sample_fmt = AV_SAMPLE_FMT_FLTP;
    c->ch_layout = (AVChannelLayout)AV_CHANNEL_LAYOUT_STEREO;
    c->time_base = (AVRational){1, c->sample_rate};
    c->bit_rate = AAC_BITS_PER_SECOND;
    c->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    if ((err = avcodec_open2(c, codec, NULL)) < 0)
        return h3_fail(H3_E_ARG, "AAC cannot be opened for %d Hz stereo: %s", c->sample_rate,
                       h3_av_text(err));
    return H3_OK;
}

/** Everything the encoder tells about itself sits in SEI units (type 6); nothing needs them to
 * decode. */
static h3_status open_filter(h3_mux *m)
{
    const AVBitStreamFilter *f = av_bsf_get_by_name("filter_units");
    int err;

    if (m->opt.has_meta || !f) return H3_OK;
    if ((err = av_bsf_alloc(f, &m->bsf)) < 0 ||
        (err = avcodec_parameters_from_context(m->bsf->par_in, m->enc[VIDEO])) < 0)
        return h3_av_fail(err, H3_E_INTERNAL, m->file.path, "bitstream filter");
    m->bsf->time_base_in = m->enc[VIDEO]->time_base;
    if ((err = av_opt_set(m->bsf->priv_data, "remove_types", "6", 0)) < 0 ||
        (err = av_bsf_init(m->bsf)) < 0)
        return h3_av_fail(err, H3_E_INTERNAL, m->file.path, "bitstream filter");
    return H3_OK;
}

/** RGB full range -> BT.709 limited range, chroma sited left as H.264 assumes. */
static h3_status open_scaler(h3_mux *m)
{
    const int *bt709 = sws_getCoefficients(SWS_CS_ITU709);
    const int w = m->opt.width, h = m->opt.height;
    struct SwsContext *s = m->sws = sws_alloc_context();

    if (!s) return h3_fail(H3_E_NOMEM, "no memory for the colour conversion");
    av_opt_set_int(s, "srcw", w, 0);
    av_opt_set_int(s, "srch", h, 0);
    av_opt_set_int(s, "dstw", w, 0);
    av_opt_set_int(s, "dsth", h, 0);
    av_opt_set_int(s, "src_format", AV_PIX_FMT_RGB24, 0);
    av_opt_set_int(s, "dst_format", AV_PIX_FMT_YUV420P, 0);
    av_opt_set_int(s, "src_range", 1, 0);
    av_opt_set_int(s, "dst_range", 0, 0);
    av_opt_set_int(s, "dst_h_chr_pos", 0, 0);
    av_opt_set_int(s, "dst_v_chr_pos", 128, 0);
    av_opt_set_int(s, "sws_flags",
                   SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP | SWS_FULL_CHR_H_INT, 0);
    if (sws_setColorspaceDetails(s, bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16) < 0 ||
        sws_init_context(s, NULL, NULL) < 0)
        return h3_fail(H3_E_INTERNAL, "swscale cannot convert RGB to YUV at %dx%d", w, h);
    m->yuv = av_frame_alloc();
    m->rgb = av_frame_alloc();
    if (!m->yuv || !m->rgb) return h3_fail(H3_E_NOMEM, "no memory for a picture");
    m->rgb->format = AV_PIX_FMT_RGB24;
    m->yuv->format = AV_PIX_FMT_YUV420P;
    m->yuv->width = m->rgb->width = w;
    m->yuv->height = m->rgb->height = h;
    m->yuv->color_range = AVCOL_RANGE_MPEG;
    m->yuv->colorspace = AVCOL_SPC_BT709;
    m->yuv->color_primaries = AVCOL_PRI_BT709;
    m->yuv->color_trc = AVCOL_TRC_BT709;
    m->yuv->chroma_location = AVCHROMA_LOC_LEFT;
    if (av_frame_get_buffer(m->yuv, 0) < 0 || av_frame_get_buffer(m->rgb, 0) < 0)
        return h3_fail(H3_E_NOMEM, "no memory for a picture of %dx%d", w, h);
    return H3_OK;
}

static h3_status add_stream(h3_mux *m, int which)
{
    AVStream *s = m->stream[which] = avformat_new_stream(m->fmt, NULL);
    int err;

    if (!s) return h3_fail(H3_E_NOMEM, "%s: no memory for a stream", m->file.path);
    s->time_base = m->enc[which]->time_base;
    if (which == VIDEO) s->avg_frame_rate = m->enc[VIDEO]->framerate;
    if (which == VIDEO && m->bsf)
        err = avcodec_parameters_copy(s->codecpar, m->bsf->par_out);
    else
        err = avcodec_parameters_from_context(s->codecpar, m->enc[which]);
    return err < 0 ? h3_av_fail(err, H3_E_INTERNAL, m->file.path, "stream") : H3_OK;
}

static h3_status set_meta(h3_mux *m)
{
    const h3_mux_opt *o = &m->opt;

    for (int i = 0; o->has_meta && i < o->n_meta; i++)
        if (av_dict_set(&m->fmt->metadata, o->meta[i].key, o->meta[i].value, 0) < 0)
            return h3_fail(H3_E_NOMEM, "%s: no memory for metadata", m->file.path);
    return H3_OK;
}

/** Opens the container and writes its header. The movie's time scale holds frames and samples
 * exactly. */
static h3_status open_container(h3_mux *m)
{
    const int scale = m->opt.sample_rate ? m->opt.sample_rate * (24 / 8) : 96000;
    AVDictionary *d = NULL;
    char *url = h3_av_url(m->file.tmp);
    int err;

    err = avformat_alloc_output_context2(&m->fmt, NULL, "mp4", url);
    if (err >= 0) err = avio_open(&m->fmt->pb, url, AVIO_FLAG_WRITE);
    free(url);
    if (err < 0) return h3_av_fail(err, H3_E_IO, m->file.path, "cannot be created");
    H3_TRY(add_stream(m, VIDEO));
    if (m->opt.sample_rate) H3_TRY(add_stream(m, AUDIO));
    H3_TRY(set_meta(m));
    m->fmt->flags |= AVFMT_FLAG_BITEXACT; // no library versions, no date: equal input, equal file
    av_dict_set(&d, "movflags", "+faststart+use_metadata_tags", 0);
    av_dict_set_int(&d, "movie_timescale", scale % m->opt.fps ? (int64_t)scale * m->opt.fps : scale,
                    0);
    err = avformat_write_header(m->fmt, &d);
    av_dict_free(&d);
    return err < 0 ? h3_av_fail(err, H3_E_IO, m->file.path, "the MP4 header cannot be written")
                   : H3_OK;
}

h3_status h3_mux_open(h3_mux **out, const char *path, const h3_mux_opt *opt)
{
    const AVCodec *codec = NULL;
    h3_status st;
    h3_mux *m;

    *out = NULL;
    h3_av_quiet();
    H3_TRY(check_encoders(opt));
    H3_TRY(pick_codec(&codec, opt));
    m = calloc(1, sizeof *m);
    if (!m) return h3_fail(H3_E_NOMEM, "%s: no memory for the writer", path);
    m->opt = *opt;
    m->codec = h3_strdupf("%s", codec->name);
    if ((st = h3_atomic_reserve(&m->file, path)) != H3_OK) goto fail;
    if ((st = open_video(m, codec)) != H3_OK) goto fail;
    if (opt->sample_rate && (st = open_audio(m)) != H3_OK) goto fail;
    if ((st = open_filter(m)) != H3_OK) goto fail;
    if ((st = open_scaler(m)) != H3_OK) goto fail;
    if ((st = open_container(m)) != H3_OK) goto fail;
    *out = m;
    return H3_OK;

fail:
    h3_mux_abort(&m);
    return st;
}

static h3_status keep_packet(packet_list *l, const AVPacket *p)
{
    AVPacket *copy;

    if (l->n == l->room) {
        const size_t room = l->room ? 2 * l->room : 256;
        AVPacket **at = realloc(l->at, room * sizeof *at);
        if (!at) return h3_fail(H3_E_NOMEM, "no memory for %zu packets", room);
        l->at = at;
        l->room = room;
    }
    copy = av_packet_clone(p);
    if (!copy) return h3_fail(H3_E_NOMEM, "no memory for a packet of %d bytes", p->size);
    l->at[l->n++] = copy;
    return H3_OK;
}

static void free_packets(packet_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        av_packet_free(&l->at[i]);
    free(l->at);
    memset(l, 0, sizeof *l);
}

/** Takes every packet the filter has ready (or passes `p` through when there is no filter). */
static h3_status filter_packet(h3_mux *m, AVPacket *p)
{
    int err;

    if (!m->bsf) return keep_packet(&m->packets[VIDEO], p);
    if ((err = av_bsf_send_packet(m->bsf, p)) < 0)
        return h3_av_fail(err, H3_E_INTERNAL, m->file.path, "bitstream filter");
    while ((err = av_bsf_receive_packet(m->bsf, p)) >= 0) {
        const h3_status st = keep_packet(&m->packets[VIDEO], p);
        av_packet_unref(p);
        H3_TRY(st);
    }
    return err == AVERROR(EAGAIN) || err == AVERROR_EOF
               ? H3_OK
               : h3_av_fail(err, H3_E_INTERNAL, m->file.path, "bitstream filter");
}

/** Sends one frame (NULL flushes) and keeps the packets that come out. */
static h3_status encode(h3_mux *m, int which, const AVFrame *frame)
{
    h3_status st = H3_OK;
    AVPacket *p;
    int err = avcodec_send_frame(m->enc[which], frame);

    if (err < 0)
        return h3_av_fail(err, H3_E_INTERNAL, m->file.path,
                          which == VIDEO ? "the video encoder" : "the audio encoder");
    p = av_packet_alloc();
    if (!p) return h3_fail(H3_E_NOMEM, "no memory for a packet");
    while (st == H3_OK && (err = avcodec_receive_packet(m->enc[which], p)) >= 0) {
        if (which == VIDEO) {
            p->duration = 1; // of 1 / fps; the last frame's is taken from here
            st = filter_packet(m, p);
        } else {
            st = keep_packet(&m->packets[AUDIO], p);
        }
        av_packet_unref(p);
    }
    av_packet_free(&p);
    if (st == H3_OK && err != AVERROR(EAGAIN) && err != AVERROR_EOF)
        st = h3_av_fail(err, H3_E_INTERNAL, m->file.path, "the encoder");
    return st;
}

static h3_status convert(h3_mux *m, const uint8_t *rgb)
{
    const size_t row = (size_t)m->opt.width * 3;

    for (int y = 0; y < m->opt.height; y++)
        memcpy(m->rgb->data[0] + (ptrdiff_t)y * m->rgb->linesize[0], rgb + (size_t)y * row, row);
    if (av_frame_make_writable(m->yuv) < 0)
        return h3_fail(H3_E_NOMEM, "%s: no memory for a picture", m->file.path);
    if (sws_scale(m->sws, (const uint8_t *const *)m->rgb->data, m->rgb->linesize, 0, m->opt.height,
                  m->yuv->data, m->yuv->linesize) != m->opt.height)
        return h3_fail(H3_E_INTERNAL, "%s: colour conversion failed", m->file.path);
    return H3_OK;
}

static h3_status reserve_pcm(h3_mux *m, int64_t n)
{
    int64_t want, room;

    if (!h3_add_i64(m->n_pcm, n, &want) || want > INT64_MAX / 16)
        return h3_fail(H3_E_ARG, "%s: %lld samples are too many", m->file.path, (long long)n);
    if (want <= m->pcm_room) return H3_OK;
    room = want > 2 * m->pcm_room ? want : 2 * m->pcm_room;
    for (int c = 0; c < 2; c++) {
        float *p = realloc(m->pcm[c], (size_t)room * sizeof *p);
        if (!p) return h3_fail(H3_E_NOMEM, "no memory for %lld samples", (long long)room);
        m->pcm[c] = p;
    }
    m->pcm_room = room;
    return H3_OK;
}

/** All of the sound through the AAC encoder, silence in front (see the note at the top). */
static h3_status encode_audio(h3_mux *m)
{
    const int size = m->enc[AUDIO]->frame_size;
    // less than one AAC frame is not padded: libavformat then loses it behind the edit list
    const int64_t pad = m->n_pcm < size ? 0 : (size - m->n_pcm % size) % size;
    h3_status st = H3_OK;
    AVFrame *f = av_frame_alloc();

    if (!f) return h3_fail(H3_E_NOMEM, "no memory for a sound frame");
    f->format = AV_SAMPLE_FMT_FLTP;
    f->nb_samples = size;
    f->sample_rate = m->opt.sample_rate;
    f->ch_layout = (AVChannelLayout)AV_CHANNEL_LAYOUT_STEREO;
    if (av_frame_get_buffer(f, 0) < 0) st = h3_fail(H3_E_NOMEM, "no memory for a sound frame");
    for (int64_t at = -pad; st == H3_OK && at < m->n_pcm; at += size) {
        const int64_t skip = at < 0 ? -at : 0, n = m->n_pcm - at < size ? m->n_pcm - at : size;
        if (av_frame_make_writable(f) < 0) st = h3_fail(H3_E_NOMEM, "no memory for a sound frame");
        for (int c = 0; st == H3_OK && c < 2; c++) {
            float *to = (float *)(void *)f->data[c];
            memset(to, 0, (size_t)skip * sizeof *to);
            memcpy(to + skip, m->pcm[c] + at + skip, (size_t)(n - skip) * sizeof *to);
        }
        f->nb_samples = (int)n;
        f->pts = at;
        if (st == H3_OK) st = encode(m, AUDIO, f);
    }
    if (st == H3_OK) st = encode(m, AUDIO, NULL);
    av_frame_free(&f);
    return st;
}

static h3_status finish_sound(h3_mux *m)
{
    H3_TRY(encode_audio(m));
    m->is_sound_done = true;
    for (int c = 0; c < 2; c++) {
        free(m->pcm[c]);
        m->pcm[c] = NULL;
    }
    return H3_OK;
}

h3_status h3_mux_audio(h3_mux *m, const float *pcm, int64_t n, int64_t stride)
{
    if (!m->opt.sample_rate)
        return h3_fail(H3_E_ARG, "%s: opened without sound, but sound was given", m->file.path);
    if (n < 0) return h3_fail(H3_E_ARG, "%s: %lld samples", m->file.path, (long long)n);
    if (m->opt.n_samples && n > m->opt.n_samples - m->n_pcm)
        return h3_fail(H3_E_ARG, "%s: more than the %lld samples that were announced", m->file.path,
                       (long long)m->opt.n_samples);
    H3_TRY(reserve_pcm(m, n));
    for (int c = 0; c < 2; c++)
        for (int64_t i = 0; i < n; i++) {
            const float v = pcm[c * stride + i];
            if (!isfinite(v))
                return h3_fail(H3_E_NUMERIC, "%s: sample %lld of channel %d is %s", m->file.path,
                               (long long)(m->n_pcm + i), c, isnan(v) ? "NaN" : "infinite");
            m->pcm[c][m->n_pcm + i] = v < -1.0f ? -1.0f : v > 1.0f ? 1.0f : v;
        }
    m->n_pcm += n;
    if (m->opt.n_samples && m->n_pcm == m->opt.n_samples) return finish_sound(m);
    return H3_OK;
}

/** The stream whose next packet is to be decoded first; -1 when none is left, or (while frames are
 * still to come) when that is not certain yet. */
static int next_stream(const h3_mux *m, bool is_final)
{
    const packet_list *v = &m->packets[VIDEO], *a = &m->packets[AUDIO];

    if (v->next == v->n) return is_final && a->next < a->n ? AUDIO : -1;
    if (a->next == a->n) return VIDEO;
    return av_compare_ts(v->at[v->next]->dts, m->enc[VIDEO]->time_base, a->at[a->next]->dts,
                         m->enc[AUDIO]->time_base) <= 0
               ? VIDEO
               : AUDIO;
}

static h3_status write_packets(h3_mux *m, bool is_final)
{
    for (int w; (w = next_stream(m, is_final)) >= 0;) {
        packet_list *l = &m->packets[w];
        AVPacket *p = l->at[l->next++];
        int err;

        av_packet_rescale_ts(p, m->enc[w]->time_base, m->stream[w]->time_base);
        p->stream_index = m->stream[w]->index;
        err = av_write_frame(m->fmt, p);
        if (err >= 0) err = m->fmt->pb->error;
        if (err < 0) return h3_av_fail(err, H3_E_IO, m->file.path, "cannot be written");
        av_packet_unref(p);
    }
    return H3_OK;
}

h3_status h3_mux_frame(h3_mux *m, const uint8_t *rgb)
{
    if (m->opt.n_frames && m->n_frames == m->opt.n_frames)
        return h3_fail(H3_E_ARG, "%s: more than the %lld frames that were announced", m->file.path,
                       (long long)m->opt.n_frames);
    H3_TRY(convert(m, rgb));
    m->yuv->pts = m->n_frames;
    H3_TRY(encode(m, VIDEO, m->yuv));
    m->n_frames++;
    return m->is_sound_done || !m->opt.sample_rate ? write_packets(m, false) : H3_OK;
}

static h3_status sync_file(const h3_mux *m)
{
    const int fd = open(m->file.tmp, O_WRONLY | O_CLOEXEC);
    const bool ok = fd >= 0 && fsync(fd) == 0;
    const int e = errno;

    if (fd >= 0) close(fd);
    return ok ? H3_OK : h3_av_fail(AVERROR(e), H3_E_IO, m->file.path, "cannot be written");
}

static h3_status complete(h3_mux *m)
{
    int err, err_close;

    if (m->n_frames == 0 || (m->opt.n_frames && m->n_frames != m->opt.n_frames))
        return h3_fail(H3_E_ARG, "%s: %lld frames were announced but %lld given", m->file.path,
                       (long long)m->opt.n_frames, (long long)m->n_frames);
    if (m->opt.sample_rate && !m->n_pcm)
        return h3_fail(H3_E_ARG, "%s: opened with sound, but no sound was given", m->file.path);
    H3_TRY(encode(m, VIDEO, NULL));
    if (m->bsf) {
        AVPacket *p = av_packet_alloc(); // an empty packet flushes the filter
        const h3_status st =
            p ? filter_packet(m, p) : h3_fail(H3_E_NOMEM, "no memory for a packet");
        av_packet_free(&p);
        H3_TRY(st);
    }
    if (m->opt.n_samples && m->n_pcm != m->opt.n_samples)
        return h3_fail(H3_E_ARG, "%s: %lld samples were announced but %lld given", m->file.path,
                       (long long)m->opt.n_samples, (long long)m->n_pcm);
    if (m->opt.sample_rate && !m->is_sound_done) H3_TRY(finish_sound(m));
    H3_TRY(write_packets(m, true));
    err = av_write_trailer(m->fmt);
    if (err >= 0) err = m->fmt->pb->error;
    err_close = avio_closep(&m->fmt->pb);
    if (err >= 0) err = err_close;
    if (err < 0) return h3_av_fail(err, H3_E_IO, m->file.path, "cannot be written");
    H3_TRY(sync_file(m));
    return h3_atomic_commit(&m->file);
}

h3_status h3_mux_finish(h3_mux **mp)
{
    const h3_status st = complete(*mp);

    h3_mux_abort(mp); // after a commit there is no file left to drop
    return st;
}

void h3_mux_abort(h3_mux **mp)
{
    h3_mux *m = mp ? *mp : NULL;

    if (!m) return;
    for (int w = 0; w < 2; w++) {
        free_packets(&m->packets[w]);
        avcodec_free_context(&m->enc[w]);
        free(m->pcm[w]);
    }
    if (m->fmt && m->fmt->pb) avio_closep(&m->fmt->pb);
    avformat_free_context(m->fmt);
    av_bsf_free(&m->bsf);
    av_frame_free(&m->yuv);
    av_frame_free(&m->rgb);
    sws_freeContext(m->sws);
    h3_atomic_abort(&m->file);
    free(m->codec);
    free(m);
    *mp = NULL;
}
