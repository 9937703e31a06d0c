/**
 * Frames and sound as plain files: a folder of pictures (PNG or PPM) and a WAV, written and read
 * back.
 *
 * Names are frame_00000.png, frame_00001.png, ... Each file appears under its name only when it is
 * complete. Reading takes every file of the folder whose name ends in a number and .png or .ppm, in
 * the order of the number.
 */
#ifndef H3_MEDIA_FRAME_FILES_H
#define H3_MEDIA_FRAME_FILES_H

#include "encode.h"

typedef enum h3_frame_format { H3_FRAMES_PNG = 0, H3_FRAMES_PPM = 1 } h3_frame_format;

typedef struct h3_frames h3_frames;

/** Whether h3_frames_open would take a folder that is there already, for a check before hours of
 *  sampling. */
H3_NODISCARD h3_status h3_frames_check(const char *dir);

/** Creates `dir` if it does not exist (its parent must) and writes pictures of one size into it. A
 *  folder that already holds frames is refused (H3_E_ARG): old and new would mix. */
H3_NODISCARD h3_status h3_frames_open(h3_frames **out, const char *dir, int width, int height,
                                      h3_frame_format format);
/** rgb [height, width, 3] u8. */
H3_NODISCARD h3_status h3_frames_write(h3_frames *f, const uint8_t *rgb);
/** Frees *f; with `keep` false everything written (and the folder, when h3_frames_open made it)
 * goes. */
void h3_frames_close(h3_frames **f, bool keep);

/** The frames of a folder in order: paths (each malloc'd, and the array) and their number.
 * H3_E_MISSING when there are none, H3_E_FORMAT when a number is missing in between or present
 * twice. */
H3_NODISCARD h3_status h3_frames_list(char ***paths, int64_t *n, const char *dir);
void h3_frames_list_free(char ***paths, int64_t n);

/** One picture file. */
H3_NODISCARD h3_status h3_frame_save(const char *path, const uint8_t *rgb, int width, int height,
                                     h3_frame_format format);

/** pcm [2, n] planar f32 -> [n, 2] i16: clip to [-1, 1], times 32767 in f32, truncated towards zero
 * (so -1 becomes -32767), as the reference's writer does. NaN becomes 0. */
void h3_pcm16(int16_t *out, const float *pcm, int64_t n, int64_t stride);

/** rgb01 [3, h, w] planar f32 in [0, 1] -> [h, w, 3] u8: clamp, times 255 in f32, round half to
 * even. */
void h3_rgb8(uint8_t *out, const float *rgb01, int64_t h, int64_t w);

/** Atomic 16-bit stereo WAV. */
H3_NODISCARD h3_status h3_wav_write(const char *path, const float *pcm, int64_t n, int64_t stride,
                                    int sample_rate);

/** What `h3av mux` does: a folder of pictures and, if `wav` is not NULL, a sound file become an
 * MP4. opt->width, height and n_frames are taken from the folder and sample_rate from the file
 * (resampled to opt->sample_rate when they differ). */
H3_NODISCARD h3_status h3_mux_folder(const char *path, const char *dir, const char *wav,
                                     const h3_mux_opt *opt);

#endif
