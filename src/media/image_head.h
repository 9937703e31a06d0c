/**
 * What the first bytes of a picture file say, read by hand: format, declared size, EXIF
 * orientation. Nothing is decoded and nothing allocated, so a file can be refused before it costs
 * anything.
 */
#ifndef H3_MEDIA_IMAGE_HEAD_H
#define H3_MEDIA_IMAGE_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum h3_image_format {
    H3_IMAGE_UNKNOWN = 0,
    H3_IMAGE_JPEG,
    H3_IMAGE_PNG,
    H3_IMAGE_GIF,
    H3_IMAGE_WEBP,
    H3_IMAGE_BMP,
    H3_IMAGE_TIFF,
    H3_IMAGE_PNM,
    H3_IMAGE_HEIF ///< HEIC and AVIF: recognised in order to be named
} h3_image_format;

typedef struct h3_image_head {
    h3_image_format format;
    int64_t width, height; ///< as stored, before orientation; 0 when the header does not say
    int orientation;       ///< EXIF 1..8; 1 when absent or senseless
    bool is_complete;      ///< the end marker of the format is there (true where there is none)
    bool is_animated;      ///< a WebP of several pictures
    bool is_jpeg_inside;   ///< a TIFF whose strips are JPEG
} h3_image_head;

h3_image_head h3_image_head_read(const uint8_t *data, size_t size);

/** "JPEG", "PNG", ...; "" for unknown. */
const char *h3_image_format_name(h3_image_format f);

#endif
