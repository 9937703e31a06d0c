/**
 * Sizes in pixels: the canvas, and how a picture is brought onto it. Rounding is Python's (half to
 * even) and the arithmetic is double in the reference's order, so sizes agree to the pixel.
 */
#ifndef H3_PLAN_CANVAS_H
#define H3_PLAN_CANVAS_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

typedef struct h3_size {
    int64_t width, height;
} h3_size;

/** What a canvas rounds to and how large it gets. Released: 32, 768, 768 * 1344. */
typedef struct h3_canvas_rule {
    int64_t multiple, short_edge, max_pixels;
} h3_canvas_rule;

/** The rule for a ratio (only the ratio of the two numbers matters): short edge first, then the
 * area cap, then both sides to the nearest multiple, so the cap may be exceeded a little. Ratios
 * outside 1:4 .. 4:1 are H3_E_ARG. */
H3_NODISCARD h3_status h3_canvas_resolve(h3_size *out, double aspect_w, double aspect_h,
                                         h3_canvas_rule rule);

/** A reference image: the short edge to `short_edge` (2048), upscaled too, no area cap, both sides
 * to the nearest multiple. Ratios outside 1:4 .. 4:1 are H3_E_ARG. */
H3_NODISCARD h3_status h3_canvas_reference_image(h3_size *out, h3_size image, int64_t short_edge,
                                                 int64_t multiple);

/**
 * How a picture reaches its canvas: resize (Lanczos) to `resize`, then cut `canvas` out at
 * (left, top). A picture that already has the canvas' size is left alone (is_copy).
 */
typedef struct h3_fit {
    h3_size source, resize, canvas;
    int64_t left, top;
    bool is_copy;
} h3_fit;

/** Resizes both sides independently: the first keyframe given, and every reference. */
h3_fit h3_fit_stretch(h3_size source, h3_size canvas);

/** Covers the canvas and cuts the middle out: the second keyframe. Sizes are rounded half to even,
 *  offsets are floored. */
h3_fit h3_fit_cover(h3_size source, h3_size canvas);

#endif
