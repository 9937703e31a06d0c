/**
 * Decoded pictures to RGB; see pixels.h.
 *
 * For still pictures the goal is Pillow's convert("RGB") to the level. RGB and gray formats are
 * read component by component from libav's own description of the format: alpha is not looked at,
 * 16 bits are cut to their upper 8, fewer than 8 are stretched. YUV follows what the libraries
 * under Pillow do, each with its integer tables and its triangle filter for subsampled colour
 * (libjpeg: jdsample.c and jdcolor.c; libwebp: upsampling.c and yuv.h); swscale rounds differently
 * by a level or two. Frames of a video go through swscale as they do in the reference, whose reader
 * (PyAV) leaves its settings alone: the tagged matrix, and colour that is repeated rather than
 * interpolated where swscale has a direct way.
 */
#include "pixels.h"

#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "av_util.h"

static uint8_t clip8(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* ---- RGB, gray, palette, one bit ---- */

/** The component k that is stored at p, as 8 bits. */
static uint8_t component(const AVPixFmtDescriptor *d, const AVComponentDescriptor *k,
                         const uint8_t *p)
{
    unsigned v;

    if (k->depth + k->shift > 8)
        v = d->flags & AV_PIX_FMT_FLAG_BE ? (unsigned)p[0] << 8 | p[1] : (unsigned)p[1] << 8 | p[0];
    else
        v = *p;
    v = v >> k->shift & ((1u << k->depth) - 1);
    if (k->depth > 8) return (uint8_t)(v >> (k->depth - 8));
    return k->depth == 8 ? (uint8_t)v : (uint8_t)(v * 255 / ((1u << k->depth) - 1));
}

static void from_components(uint8_t *rgb, const AVFrame *f, const AVPixFmtDescriptor *d)
{
    const bool is_gray = d->nb_components < 3;

    for (int y = 0; y < f->height; y++, rgb += 3 * (ptrdiff_t)f->width)
        for (int c = 0; c < 3; c++) {
            const AVComponentDescriptor *k = &d->comp[is_gray ? 0 : c];
            const uint8_t *p = f->data[k->plane] + (ptrdiff_t)y * f->linesize[k->plane] + k->offset;
            if (k->depth == 8 && k->shift == 0)
                for (int x = 0; x < f->width; x++)
                    rgb[3 * x + c] = p[(ptrdiff_t)x * k->step];
            else
                for (int x = 0; x < f->width; x++)
                    rgb[3 * x + c] = component(d, k, p + (ptrdiff_t)x * k->step);
        }
}

static void from_palette(uint8_t *rgb, const AVFrame *f)
{
    for (int y = 0; y < f->height; y++)
        for (int x = 0; x < f->width; x++, rgb += 3) {
            uint32_t v; // 0xAARRGGBB in the machine's order
            memcpy(&v, f->data[1] + 4 * f->data[0][(ptrdiff_t)y * f->linesize[0] + x], 4);
            rgb[0] = (uint8_t)(v >> 16);
            rgb[1] = (uint8_t)(v >> 8);
            rgb[2] = (uint8_t)v;
        }
}

static void from_bits(uint8_t *rgb, const AVFrame *f, bool is_one_black)
{
    for (int y = 0; y < f->height; y++)
        for (int x = 0; x < f->width; x++, rgb += 3) {
            const uint8_t byte = f->data[0][(ptrdiff_t)y * f->linesize[0] + x / 8];
            memset(rgb, (byte >> (7 - x % 8) & 1) != is_one_black ? 255 : 0, 3);
        }
}

/* ---- YUV of still pictures ---- */

/** One colour plane brought to full size: out [height, width]. */
typedef struct plane {
    const uint8_t *p;
    int stride, w, h; // as stored
} plane;

static const uint8_t *plane_row(const plane *s, int y)
{
    return s->p + (ptrdiff_t)(y < 0 ? 0 : y >= s->h ? s->h - 1 : y) * s->stride;
}

/** Each sample repeated fx times; row y of the result. */
static void repeat_row(uint8_t *out, const plane *s, int y, int width, int fx, int fy)
{
    const uint8_t *p = plane_row(s, y / fy);

    for (int x = 0; x < width; x++)
        out[x] = p[x / fx];
}

/** Width doubled: 3/4 of the nearer and 1/4 of the further sample, rounding alternates (libjpeg).
 */
static void jpeg_h2v1(uint8_t *out, const plane *s, int y, int width)
{
    const uint8_t *p = plane_row(s, y);
    const int n = s->w;

    for (int x = 0; x < width; x++) {
        const int i = x / 2, side = x % 2 ? i + 1 : i - 1;
        out[x] =
            side < 0 || side >= n ? p[i] : (uint8_t)((3 * p[i] + p[side] + (x % 2 ? 2 : 1)) >> 2);
    }
}

/** Height doubled (libjpeg-turbo's h1v2). */
static void jpeg_h1v2(uint8_t *out, const plane *s, int y, int width)
{
    const uint8_t *p = plane_row(s, y / 2), *q = plane_row(s, y % 2 ? y / 2 + 1 : y / 2 - 1);

    for (int x = 0; x < width; x++)
        out[x] = (uint8_t)((3 * p[x] + q[x] + (y % 2 ? 2 : 1)) >> 2);
}

/** Both doubled: the sums of the height stay unrounded until the width is done. */
static void jpeg_h2v2(uint8_t *out, const plane *s, int y, int width)
{
    const uint8_t *p = plane_row(s, y / 2), *q = plane_row(s, y % 2 ? y / 2 + 1 : y / 2 - 1);
    const int n = s->w;

    for (int x = 0; x < width; x++) {
        const int i = x / 2, side = x % 2 ? i + 1 : i - 1, sum = 3 * p[i] + q[i];
        const int other = side < 0 || side >= n ? sum : 3 * p[side] + q[side];
        out[x] = (uint8_t)((3 * sum + other + (x % 2 ? 7 : 8)) >> 4);
    }
}

static void jpeg_chroma_row(uint8_t *out, const plane *s, int y, int width, int fx, int fy)
{
    const bool is_wide = s->w > 2; // libjpeg's filters need three samples in a row

    if (fx == 2 && fy == 1 && is_wide)
        jpeg_h2v1(out, s, y, width);
    else if (fx == 2 && fy == 2 && is_wide)
        jpeg_h2v2(out, s, y, width);
    else if (fx == 1 && fy == 2)
        jpeg_h1v2(out, s, y, width);
    else
        repeat_row(out, s, y, width, fx, fy);
}

/** libjpeg's tables: 16 fraction bits; green sums both parts before the shift. */
static void jpeg_rgb_row(uint8_t *rgb, const uint8_t *y, const uint8_t *u, const uint8_t *v,
                         int width)
{
    const int half = 1 << 15;

    for (int x = 0; x < width; x++, rgb += 3) {
        const int b = u[x] - 128, r = v[x] - 128;
        rgb[0] = clip8(y[x] + ((91881 * r + half) >> 16));
        rgb[1] = clip8(y[x] + ((-22554 * b - 46802 * r + half) >> 16));
        rgb[2] = clip8(y[x] + ((116130 * b + half) >> 16));
    }
}

/** libwebp's upsampler: 9/16, 3/16, 3/16, 1/16 in two roundings; edges use the nearest samples. */
static void webp_chroma_row(uint8_t *out, const plane *s, int y, int width, int fx, int fy)
{
    const uint8_t *p = plane_row(s, y / 2), *q = plane_row(s, y % 2 ? y / 2 + 1 : y / 2 - 1);

    if (fx != 2 || fy != 2) {
        repeat_row(out, s, y, width, fx, fy);
        return;
    }
    for (int x = 0; x < width; x++) {
        const int i = x / 2, side = x % 2 ? i + 1 : i - 1;
        if (side < 0 || side >= s->w) {
            out[x] = (uint8_t)((3 * p[i] + q[i] + 2) >> 2);
        } else {
            // (near + diagonal) is halved after it was rounded to eighths
            const int sum = p[i] + p[side] + q[i] + q[side] + 8;
            const int diag = (sum + 2 * (p[side] + q[i])) >> 3;
            out[x] = (uint8_t)((diag + p[i]) >> 1);
        }
    }
}

static uint8_t webp_clip(int v)
{
    return clip8(v >> 6);
}

static void webp_rgb_row(uint8_t *rgb, const uint8_t *y, const uint8_t *u, const uint8_t *v,
                         int width)
{
    for (int x = 0; x < width; x++, rgb += 3) {
        const int luma = 19077 * y[x] >> 8;
        rgb[0] = webp_clip(luma + (26149 * v[x] >> 8) - 14234);
        rgb[1] = webp_clip(luma - (6419 * u[x] >> 8) - (13320 * v[x] >> 8) + 8708);
        rgb[2] = webp_clip(luma + (33050 * u[x] >> 8) - 17685);
    }
}

static h3_status from_yuv(uint8_t *rgb, const AVFrame *f, const AVPixFmtDescriptor *d,
                          h3_yuv_rule rule)
{
    const int fx = 1 << d->log2_chroma_w, fy = 1 << d->log2_chroma_h;
    plane s[3];
    uint8_t *row = malloc((size_t)f->width * 2);

    if (!row) return h3_fail(H3_E_NOMEM, "no memory for a row of %d pixels", f->width);
    for (int c = 1; c < 3; c++)
        s[c] = (plane){f->data[c], f->linesize[c], AV_CEIL_RSHIFT(f->width, d->log2_chroma_w),
                       AV_CEIL_RSHIFT(f->height, d->log2_chroma_h)};
    for (int y = 0; y < f->height; y++, rgb += 3 * (ptrdiff_t)f->width) {
        const uint8_t *luma = f->data[0] + (ptrdiff_t)y * f->linesize[0];
        for (int c = 1; c < 3; c++) {
            uint8_t *to = row + (c - 1) * f->width;
            if (rule == H3_YUV_WEBP)
                webp_chroma_row(to, &s[c], y, f->width, fx, fy);
            else
                jpeg_chroma_row(to, &s[c], y, f->width, fx, fy);
        }
        if (rule == H3_YUV_WEBP)
            webp_rgb_row(rgb, luma, row, row + f->width, f->width);
        else
            jpeg_rgb_row(rgb, luma, row, row + f->width, f->width);
    }
    free(row);
    return H3_OK;
}

/* ---- video ---- */

/** The matrix a frame is tagged with. Untagged ones are BT.601 at any size, as in the reference and
 * for ffmpeg. */
static int matrix_of(const AVFrame *f)
{
    switch (f->colorspace) {
    case AVCOL_SPC_BT709:
        return SWS_CS_ITU709;
    case AVCOL_SPC_FCC:
        return SWS_CS_FCC;
    case AVCOL_SPC_SMPTE170M:
    case AVCOL_SPC_BT470BG:
        return SWS_CS_ITU601;
    case AVCOL_SPC_SMPTE240M:
        return SWS_CS_SMPTE240M;
    case AVCOL_SPC_BT2020_NCL:
    case AVCOL_SPC_BT2020_CL:
        return SWS_CS_BT2020;
    default:
        return SWS_CS_ITU601;
    }
}

static bool is_full_range(const AVFrame *f)
{
    switch ((enum AVPixelFormat)f->format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ444P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ411P:
        return true;
    default:
        return f->color_range == AVCOL_RANGE_JPEG;
    }
}

static bool is_interlaced(const AVFrame *f)
{
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 7, 100)
    const bool is_tagged = f->flags & AV_FRAME_FLAG_INTERLACED;
#else
    const bool is_tagged = f->interlaced_frame;
#endif
    return is_tagged && f->height % 4 == 0; // both fields have whole lines of colour
}

/* f -> rgb with rows of `stride` bytes. The lines of two fields are converted apart: neighbours in
 * a frame show different moments. */
static h3_status convert(uint8_t *rgb, int stride, const AVFrame *f, struct SwsContext *sws,
                         const char *name)
{
    const int n_fields = is_interlaced(f) ? 2 : 1, h = f->height / n_fields;

    for (int field = 0; field < n_fields; field++) {
        const uint8_t *from[4] = {0};
        int step[4] = {0};
        uint8_t *const to[4] = {rgb + field * stride};
        const int to_step[4] = {stride * n_fields};

        for (int i = 0; i < 4; i++)
            if (f->data[i]) {
                from[i] = f->data[i] + field * f->linesize[i];
                step[i] = f->linesize[i] * n_fields;
            }
        if (sws_scale(sws, from, step, 0, h, to, to_step) != h)
            return h3_fail(H3_E_INTERNAL, "%s: colour conversion failed", name);
    }
    return H3_OK;
}

h3_status h3_pixels_video(uint8_t *rgb, const AVFrame *f, struct SwsContext **ctx, const char *name)
{
    const int *matrix = sws_getCoefficients(matrix_of(f));
    const int h = f->height / (is_interlaced(f) ? 2 : 1);
    const int row = 3 * f->width, stride = (row + 15) / 16 * 16 + H3_PIXELS_PADDING;

    *ctx = sws_getCachedContext(*ctx, f->width, h, (enum AVPixelFormat)f->format, f->width, h,
                                AV_PIX_FMT_RGB24, SWS_BICUBIC, NULL, NULL, NULL);
    if (!*ctx)
        return h3_fail(H3_E_UNSUPPORTED, "%s: pixel format %s cannot be converted to RGB", name,
                       av_get_pix_fmt_name((enum AVPixelFormat)f->format));
    // fails for formats that are RGB already, where there is nothing to set
    (void)sws_setColorspaceDetails(*ctx, matrix, is_full_range(f),
                                   sws_getCoefficients(SWS_CS_ITU709), 1, 0, 1 << 16, 1 << 16);
    if (f->width % 8 == 0) return convert(rgb, row, f, *ctx, name);
    /* The direct ways work in eights and leave the rest of a row that has no room for more. */
    uint8_t *wide = av_malloc((size_t)stride * (size_t)f->height);
    if (!wide) return h3_fail(H3_E_NOMEM, "%s: no memory for a frame", name);
    const h3_status st = convert(wide, stride, f, *ctx, name);
    for (int y = 0; st == H3_OK && y < f->height; y++)
        memcpy(rgb + (size_t)y * (size_t)row, wide + (size_t)y * (size_t)stride, (size_t)row);
    av_free(wide);
    return st;
}

h3_status h3_pixels_rgb(uint8_t *rgb, const AVFrame *f, h3_yuv_rule rule, const char *name)
{
    const AVPixFmtDescriptor *d = av_pix_fmt_desc_get((enum AVPixelFormat)f->format);
    struct SwsContext *ctx = NULL;
    h3_status st;

    if (!d || d->flags & AV_PIX_FMT_FLAG_HWACCEL)
        return h3_fail(H3_E_UNSUPPORTED, "%s: unknown pixel format %d", name, f->format);
    if (f->format == AV_PIX_FMT_MONOWHITE || f->format == AV_PIX_FMT_MONOBLACK) {
        from_bits(rgb, f, f->format == AV_PIX_FMT_MONOWHITE);
        return H3_OK;
    }
    if (d->flags & AV_PIX_FMT_FLAG_PAL) {
        from_palette(rgb, f);
        return H3_OK;
    }
    if (!(d->flags & (AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_FLOAT)) &&
        (d->flags & AV_PIX_FMT_FLAG_RGB || d->nb_components < 3)) {
        from_components(rgb, f, d);
        return H3_OK;
    }
    if (rule != H3_YUV_VIDEO && d->comp[0].depth == 8 && d->flags & AV_PIX_FMT_FLAG_PLANAR &&
        d->comp[1].step == 1)
        return from_yuv(rgb, f, d, rule);
    st = h3_pixels_video(rgb, f, &ctx, name);
    sws_freeContext(ctx);
    return st;
}
