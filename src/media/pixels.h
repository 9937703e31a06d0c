/**
 * From a decoded picture of libav, in whatever pixel format, to 8-bit RGB.
 */
#ifndef H3_MEDIA_PIXELS_H
#define H3_MEDIA_PIXELS_H

#include <libavutil/frame.h>
#include <libswscale/swscale.h>
#include <stdint.h>

#include "status.h"

/** Bytes that every target buffer must have behind its last pixel: swscale writes in whole vectors.
 */
enum { H3_PIXELS_PADDING = 64 };

/** How the colour samples of a YUV picture become RGB. */
typedef enum h3_yuv_rule {
    H3_YUV_JPEG, ///< full range BT.601, libjpeg's "fancy" upsampling and integer tables
    H3_YUV_WEBP, ///< limited range BT.601, libwebp's upsampling and integer tables
    H3_YUV_VIDEO ///< as the frame is tagged, through swscale
} h3_yuv_rule;

/** f -> rgb [f->height, f->width, 3] and padding. `name` is for messages. H3_E_UNSUPPORTED for an
 * odd format.
 */
H3_NODISCARD h3_status h3_pixels_rgb(uint8_t *rgb, const AVFrame *f, h3_yuv_rule rule,
                                     const char *name);

/** Video frames: keeps the converter between frames of one format (pass the same *ctx, NULL at
 * first; free with sws_freeContext). */
H3_NODISCARD h3_status h3_pixels_video(uint8_t *rgb, const AVFrame *f, struct SwsContext **ctx,
                                       const char *name);

#endif
