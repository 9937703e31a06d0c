/**
 * Pictures from files: JPEG, PNG, WebP, GIF, BMP, TIFF, PPM (of an animation the first frame), as
 * upright 8-bit RGB.
 *
 * The pixels are those of the reference's loader (Pillow, convert("RGB")): EXIF orientation
 * applied, alpha dropped (not blended), palettes resolved, gray repeated, 16 bits cut to 8, CMYK
 * converted.
 */
#ifndef H3_MEDIA_IMAGE_H
#define H3_MEDIA_IMAGE_H

#include <stdint.h>

#include "source.h"

typedef struct h3_image {
    uint8_t *rgb; ///< [height, width, 3], malloc'd
    int width, height;
} h3_image;

/** Errors as h3_media_probe, and H3_E_FORMAT for a damaged or cut-off picture. On failure *out is
 *  zeroed. */
H3_NODISCARD h3_status h3_image_load(h3_image *out, h3_media_src src);

/** Frees the pixels and clears *img. Accepts a zeroed one. */
void h3_image_free(h3_image *img);

/** Turns rgb [h, w, 3] upright by EXIF orientation 1..8: out has [w, h, 3] for 5..8. */
void h3_image_orient(uint8_t *out, const uint8_t *rgb, int width, int height, int orientation);

#endif
