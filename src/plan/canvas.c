/*
 * Canvas and picture geometry, after diffusers' resolve_canvas_size, MiniMaxH3ResizeStep and
 * MiniMaxH3Ref2VASetupStep. Doubles, evaluated in the reference's order: a size that falls half way
 * between two multiples goes to the even one there, so the last bit of a product can move an edge
 * by 32 pixels.
 */
#include "canvas.h"

#include <assert.h>
#include <math.h>

#include "frames.h"

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The nearest multiple, ties to even, at least one. */
static int64_t snap(double length, int64_t multiple)
{
    return max64(multiple, h3_round_even(length / (double)multiple) * multiple);
}

h3_status h3_canvas_resolve(h3_size *out, double aspect_w, double aspect_h, h3_canvas_rule rule)
{
    assert(rule.multiple > 0 && rule.short_edge > 0 && rule.max_pixels > 0);
    if (!(aspect_w > 0.0) || !(aspect_h > 0.0) || !isfinite(aspect_w) || !isfinite(aspect_h))
        return h3_fail(H3_E_ARG, "aspect ratio %g:%g: both numbers must be positive", aspect_w,
                       aspect_h);
    const double ratio = aspect_w / aspect_h;
    if (!(ratio >= 0.25 && ratio <= 4.0))
        return h3_fail(H3_E_ARG, "aspect ratio %g:%g is %g, outside 1:4 .. 4:1", aspect_w, aspect_h,
                       ratio);

    const double edge = (double)rule.short_edge;
    double width = ratio >= 1.0 ? edge * ratio : edge;
    double height = ratio >= 1.0 ? edge : edge / ratio;
    const double area = width * height;
    if (area > (double)rule.max_pixels) {
        // pow, not sqrt: the reference writes ** 0.5. Some compilers would turn a literal 0.5 into
        // a square root, which can differ in the last bit.
        const volatile double half = 0.5;
        const double scale = pow((double)rule.max_pixels / area, half);
        width = width * scale;
        height = height * scale;
    }
    *out = (h3_size){snap(width, rule.multiple), snap(height, rule.multiple)};
    return H3_OK;
}

h3_status h3_canvas_reference_image(h3_size *out, h3_size image, int64_t short_edge,
                                    int64_t multiple)
{
    if (image.width < 1 || image.height < 1)
        return h3_fail(H3_E_ARG, "image of %lld x %lld pixels: both sides must be positive",
                       (long long)image.width, (long long)image.height);
    assert(image.width <= H3_MAX_COUNT && image.height <= H3_MAX_COUNT);
    if (image.width > 4 * image.height || image.height > 4 * image.width)
        return h3_fail(H3_E_ARG, "image of %lld x %lld pixels: its ratio is outside 1:4 .. 4:1",
                       (long long)image.width, (long long)image.height);
    const int64_t edge = image.width < image.height ? image.width : image.height;
    const double scale = (double)short_edge / (double)edge;
    *out = (h3_size){snap((double)image.width * scale, multiple),
                     snap((double)image.height * scale, multiple)};
    return H3_OK;
}

static bool same_size(h3_size a, h3_size b)
{
    return a.width == b.width && a.height == b.height;
}

h3_fit h3_fit_stretch(h3_size source, h3_size canvas)
{
    return (h3_fit){
        .source = source, .resize = canvas, .canvas = canvas, .is_copy = same_size(source, canvas)};
}

h3_fit h3_fit_cover(h3_size source, h3_size canvas)
{
    h3_fit f = h3_fit_stretch(source, canvas);
    if (f.is_copy) return f;
    const double by_width = (double)canvas.width / (double)source.width;
    const double by_height = (double)canvas.height / (double)source.height;
    const double scale = by_width > by_height ? by_width : by_height;
    f.resize.width = max64(canvas.width, h3_round_even((double)source.width * scale));
    f.resize.height = max64(canvas.height, h3_round_even((double)source.height * scale));
    f.left = (f.resize.width - canvas.width) / 2;
    f.top = (f.resize.height - canvas.height) / 2;
    return f;
}
