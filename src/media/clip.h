/**
 * Video clips from files as RGB frames at 24 fps.
 *
 * A constant frame rate uses the reference's slots: source frame i fills the 24 fps slots from
 * floor(i * 24 / fps + 0.5) to those of frame i + 1 (hold or drop whole frames). A variable rate
 * does the same with the presentation times themselves: floor((t_i - t_0) * 24 + 0.5). Frames are
 * turned upright (rotation metadata), 10 and 12 bits are rounded to 8.
 */
#ifndef H3_MEDIA_CLIP_H
#define H3_MEDIA_CLIP_H

#include <stdbool.h>
#include <stdint.h>

#include "cancel.h"
#include "source.h"

typedef struct h3_clip {
    uint8_t *rgb; ///< [n, height, width, 3], malloc'd
    int64_t n;    ///< frames at 24 fps
    int width, height;
    double fps;        ///< of the source (the mean if it varies)
    bool is_variable;  ///< timestamps were used, not a constant rate
    int64_t n_source;  ///< source frames looked at
    double start_time; ///< presentation time of the first frame in the container, seconds
} h3_clip;

/**
 * Reads at most `max_frames` frames (of 24 fps), and no further in the file than these need. With
 * width and height > 0 each frame is resized (LANCZOS) to them as it is read, so that a 4K clip
 * does not have to fit in memory; 0, 0 keeps the size. `stop` may be NULL.
 *
 * Errors as h3_media_probe; H3_E_FORMAT when a frame that is needed is damaged or missing;
 * H3_E_CANCELLED. On failure *out is zeroed.
 */
H3_NODISCARD h3_status h3_clip_load(h3_clip *out, h3_media_src src, int64_t max_frames, int width,
                                    int height, const h3_cancel_flag *stop);

/** A folder of frames (frame_files.h) as a clip of `fps` frames per second; same rules. */
H3_NODISCARD h3_status h3_clip_load_folder(h3_clip *out, const char *dir, double fps,
                                           int64_t max_frames, int width, int height,
                                           const h3_cancel_flag *stop);

void h3_clip_free(h3_clip *c);

#endif
