/**
 * The two uint8 picture resizers of the reference, exact to the level.
 *
 *   LANCZOS  Pillow 13: keyframes, reference pictures and clips on their way to the canvas
 *   BICUBIC  torch's antialiased uint8 bicubic (a = -0.5): what the vision tower's processors do
 */
#ifndef H3_MEDIA_RESIZE_H
#define H3_MEDIA_RESIZE_H

#include <stdint.h>

#include "status.h"

typedef enum h3_filter { H3_LANCZOS = 0, H3_BICUBIC = 1 } h3_filter;

/** in [h, w, 3] u8 -> out [out_h, out_w, 3] u8; equal sizes copy. `out` and `in` must not overlap.
 *  H3_E_ARG for an extent outside 1..1000000, H3_E_NOMEM. */
H3_NODISCARD h3_status h3_resize(uint8_t *out, int out_h, int out_w, const uint8_t *in, int h,
                                 int w, h3_filter filter);

/** Resizes (LANCZOS) to [mid_h, mid_w] and cuts [out_h, out_w] out at (top, left): the cover crop
 * of the second keyframe, with the numbers of the plan's h3_fit. */
H3_NODISCARD h3_status h3_resize_crop(uint8_t *out, int out_h, int out_w, int mid_h, int mid_w,
                                      int top, int left, const uint8_t *in, int h, int w);

#endif
