/**
 * From prepared pictures to what the networks take: patch rows for the vision tower, normalised
 * pixels for the video VAE, and the smart-resize rules with the settings they come from.
 */
#ifndef H3_MEDIA_VISION_ROWS_H
#define H3_MEDIA_VISION_ROWS_H

#include <stdint.h>

#include "status.h"

/** preprocessor_config.json or video_preprocessor_config.json. */
typedef struct h3_processor {
    int patch, temporal_patch, merge;
    int64_t min_pixels, max_pixels; ///< of a picture; of a clip: summed over its sampled frames
    float mean[3], std[3];
} h3_processor;

/** The released settings: 16, 2, 2; 65536..16777216 (pictures) or 4096..25165824 (clips); 0.5. */
h3_processor h3_processor_image_default(void);
h3_processor h3_processor_video_default(void);

/** Reads the file at `path`; absent fields keep what *p holds (set defaults first). H3_E_MISSING
 * when there is no such file, H3_E_FORMAT for a damaged or senseless one. */
H3_NODISCARD h3_status h3_processor_load(h3_processor *p, const char *path);

/** The size a picture of [h, w] is resized to (BICUBIC) before it is cut into patches. Ratios above
 *  200 are H3_E_ARG. */
H3_NODISCARD h3_status h3_smart_size_image(int64_t *out_h, int64_t *out_w, int64_t h, int64_t w,
                                           const h3_processor *p);
/** The same for a clip of n sampled frames (n >= temporal_patch, else H3_E_ARG). */
H3_NODISCARD h3_status h3_smart_size_video(int64_t *out_h, int64_t *out_w, int64_t n, int64_t h,
                                           int64_t w, const h3_processor *p);

/** Rows of n frames (a picture: 1) of [h, w], h and w multiples of patch * merge:
 *  ceil(n / temporal) * (h / patch) * (w / patch). */
int64_t h3_patch_rows_count(int64_t n, int64_t h, int64_t w, const h3_processor *p);

/** Numbers in a row: 3 * temporal * patch * patch (1536). */
int64_t h3_patch_row_size(const h3_processor *p);

/**
 * frames [n, h, w, 3] u8 (already resized) -> out [rows, row size] f32, normalised as
 * (u8 - 255 mean) / (255 std), i.e. (u8 - 127.5) / 127.5. Row: channel, time, y, x. Order of rows:
 * frame pair, then merge x merge blocks in raster order, row-major inside. A picture fills both
 * time slots; the last frame of an odd clip is repeated.
 */
void h3_patch_rows(float *out, const uint8_t *frames, int64_t n, int64_t h, int64_t w,
                   const h3_processor *p);
/** The same without normalisation. */
void h3_patch_rows_u8(uint8_t *out, const uint8_t *frames, int64_t n, int64_t h, int64_t w,
                      const h3_processor *p);

/** frames [n, h, w, 3] u8 -> out [3, n, h, w] f32: (u8 / 255 - mean) / std with ImageNet's numbers,
 * the input of the video VAE's encoder. */
void h3_vae_pixels(float *out, const uint8_t *frames, int64_t n, int64_t h, int64_t w);

#endif
