/**
 * Pictures from files; see image.h.
 *
 * The format is recognised from the bytes, never from the name; the header is read by hand first
 * (image_head.c) so that a declared size of gigapixels or a missing end is refused before anything
 * is decoded. Then the whole file goes to libavcodec's decoder of that format as one packet: no
 * demuxer, no probing, and none of libavformat's formats that open other files.
 */
#include "image.h"

#include <libavcodec/avcodec.h>
#include <stdlib.h>
#include <string.h>

#include "av_util.h"
#include "image_head.h"
#include "image_impl.h"
#include "media_file.h"
#include "pixels.h"
#include "probe.h"
#include "size.h"

void h3_image_free(h3_image *img)
{
    free(img->rgb);
    memset(img, 0, sizeof *img);
}

/* Where pixel (x, y) of the upright picture comes from: swap axes first, then mirror. */
static const struct {
    bool is_swapped, flip_x, flip_y; // flips of the stored picture's axes
} turns[9] = {
    [1] = {false, false, false}, [2] = {false, true, false}, [3] = {false, true, true},
    [4] = {false, false, true},  [5] = {true, false, false}, [6] = {true, false, true},
    [7] = {true, true, true},    [8] = {true, true, false},
};

void h3_image_orient(uint8_t *out, const uint8_t *rgb, int width, int height, int orientation)
{
    const int o = orientation >= 1 && orientation <= 8 ? orientation : 1;
    const int w = turns[o].is_swapped ? height : width, h = turns[o].is_swapped ? width : height;

    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++, out += 3) {
            int sx = turns[o].is_swapped ? y : x, sy = turns[o].is_swapped ? x : y;
            if (turns[o].flip_x) sx = width - 1 - sx;
            if (turns[o].flip_y) sy = height - 1 - sy;
            memcpy(out, rgb + ((ptrdiff_t)sy * width + sx) * 3, 3);
        }
}

static enum AVCodecID codec_of(const h3_image_head *h, const uint8_t *data)
{
    switch (h->format) {
    case H3_IMAGE_JPEG:
        return AV_CODEC_ID_MJPEG;
    case H3_IMAGE_PNG:
        return AV_CODEC_ID_PNG;
    case H3_IMAGE_GIF:
        return AV_CODEC_ID_GIF;
    case H3_IMAGE_WEBP:
        return AV_CODEC_ID_WEBP;
    case H3_IMAGE_BMP:
        return AV_CODEC_ID_BMP;
    case H3_IMAGE_TIFF:
        return AV_CODEC_ID_TIFF;
    case H3_IMAGE_PNM:
        return data[1] == '1' || data[1] == '4'   ? AV_CODEC_ID_PBM
               : data[1] == '2' || data[1] == '5' ? AV_CODEC_ID_PGM
                                                  : AV_CODEC_ID_PPM;
    default:
        return AV_CODEC_ID_NONE;
    }
}

h3_status h3_image_check_head(const h3_image_head *h, const char *name)
{
    const char *format = h3_image_format_name(h->format);

    if (h->format == H3_IMAGE_UNKNOWN)
        return h3_fail(
            H3_E_FORMAT,
            "%s: not a picture (its content is none of JPEG, PNG, WebP, GIF, BMP, TIFF, PPM)",
            name);
    if (h->format == H3_IMAGE_HEIF)
        return h3_fail(H3_E_UNSUPPORTED,
                       "%s: HEIC and AVIF pictures cannot be read; convert it to "
                       "JPEG or PNG",
                       name);
    if (h->is_animated)
        return h3_fail(H3_E_UNSUPPORTED, "%s: animated WebP cannot be read; save one picture of it",
                       name);
    if (h->is_jpeg_inside)
        return h3_fail(H3_E_UNSUPPORTED,
                       "%s: TIFF with JPEG inside cannot be read; save it as JPEG", name);
    if (h->width < 1 || h->height < 1)
        return h3_fail(H3_E_FORMAT, "%s: the %s header is damaged: no size", name, format);
    if (h->width > INT32_MAX || h->height > INT32_MAX || h->height > H3_MEDIA_MAX_PIXELS / h->width)
        return h3_fail(H3_E_FORMAT, "%s: declares %lldx%lld pixels; at most %lld are read", name,
                       (long long)h->width, (long long)h->height, (long long)H3_MEDIA_MAX_PIXELS);
    if (!h->is_complete) return h3_fail(H3_E_FORMAT, "%s: the %s file is cut off", name, format);
    return H3_OK;
}

/** Decoder for pictures: errors are errors, no threads, nothing beyond the pixel limit. */
static h3_status open_decoder(AVCodecContext **out, enum AVCodecID id, const char *name)
{
    const AVCodec *codec = avcodec_find_decoder(id);
    AVCodecContext *c;

    *out = NULL;
    if (!codec)
        return h3_fail(H3_E_UNSUPPORTED, "%s: this libavcodec has no decoder for %s", name,
                       avcodec_get_name(id));
    c = *out = avcodec_alloc_context3(codec);
    if (!c) return h3_fail(H3_E_NOMEM, "%s: no memory for the decoder", name);
    c->max_pixels = H3_MEDIA_MAX_PIXELS;
    c->thread_count = 1;
    c->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER;
    if (id != AV_CODEC_ID_TIFF)
        c->err_recognition |= AV_EF_EXPLODE; // to TIFF any new tag is an error
    c->idct_algo =
        FF_IDCT_FAAN; // nearest to libjpeg's: 97.4 % of the samples equal, at most 3 levels
    if (avcodec_open2(c, codec, NULL) < 0)
        return h3_fail(H3_E_UNSUPPORTED, "%s: the %s decoder cannot be opened", name, codec->name);
    return H3_OK;
}

static h3_status decode(AVFrame *f, AVCodecContext *c, const uint8_t *data, size_t size,
                        const char *name)
{
    AVPacket *p = av_packet_alloc();
    int err = AVERROR(ENOMEM);

    if (p && size < INT32_MAX - AV_INPUT_BUFFER_PADDING_SIZE && av_new_packet(p, (int)size) == 0) {
        memcpy(p->data, data, size);
        p->flags |= AV_PKT_FLAG_KEY;
        err = avcodec_send_packet(c, p);
        if (err >= 0) (void)avcodec_send_packet(c, NULL);
        if (err >= 0) err = avcodec_receive_frame(c, f);
    }
    av_packet_free(&p);
    if (err == AVERROR_EOF) err = AVERROR_INVALIDDATA;
    if (err >= 0 && f->decode_error_flags) err = AVERROR_INVALIDDATA;
    return err < 0 ? h3_av_fail(err, H3_E_FORMAT, name, "the picture is damaged") : H3_OK;
}

static h3_status to_upright(h3_image *out, const AVFrame *f, const h3_image_head *h,
                            const char *name)
{
    const h3_yuv_rule rule = h->format == H3_IMAGE_WEBP ? H3_YUV_WEBP : H3_YUV_JPEG;
    size_t bytes;
    uint8_t *raw;
    h3_status st;

    if (!h3_mul_size((size_t)f->width, (size_t)f->height, &bytes) ||
        !h3_mul_size(bytes, 3, &bytes) || !(raw = malloc(bytes)))
        return h3_fail(H3_E_NOMEM, "%s: no memory for %dx%d pixels", name, f->width, f->height);
    st = h3_pixels_rgb(raw, f, rule, name);
    if (st == H3_OK && h->orientation != 1) {
        uint8_t *turned = malloc(bytes);
        if (turned)
            h3_image_orient(turned, raw, f->width, f->height, h->orientation);
        else
            st = h3_fail(H3_E_NOMEM, "%s: no memory to turn the picture", name);
        free(raw);
        raw = turned;
    }
    if (st != H3_OK) {
        free(raw);
        return st;
    }
    *out = h->orientation >= 5 ? (h3_image){raw, f->height, f->width}
                               : (h3_image){raw, f->width, f->height};
    return H3_OK;
}

h3_status h3_image_decode(h3_image *out, const uint8_t *data, size_t size, const char *name)
{
    const h3_image_head h = h3_image_head_read(data, size);
    AVCodecContext *c = NULL;
    AVFrame *f = NULL;
    h3_status st;

    h3_av_quiet();
    if (!size) return h3_fail(H3_E_FORMAT, "%s: the file is empty", name);
    H3_TRY(h3_image_check_head(&h, name));
    st = open_decoder(&c, codec_of(&h, data), name);
    if (st == H3_OK && !(f = av_frame_alloc())) st = h3_fail(H3_E_NOMEM, "%s: no memory", name);
    if (st == H3_OK) st = decode(f, c, data, size, name);
    if (st == H3_OK) st = to_upright(out, f, &h, name);
    av_frame_free(&f);
    avcodec_free_context(&c);
    return st;
}

h3_status h3_image_load(h3_image *out, h3_media_src src)
{
    h3_media_file_data f;
    h3_status st;

    memset(out, 0, sizeof *out);
    H3_TRY(h3_media_file_open(&f, src));
    st = h3_image_decode(out, f.data, f.size, f.name);
    h3_media_file_close(&f);
    return st;
}
