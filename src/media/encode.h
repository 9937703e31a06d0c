/**
 * MP4 writer: H.264 yuv420p (BT.709) and AAC stereo, fed frame by frame.
 *
 *     h3_mux_opt o = h3_mux_default(1344, 768, 124);
 *     h3_mux *m = NULL;
 *     H3_TRY(h3_mux_open(&m, "out.mp4", &o));
 *     for each frame: h3_mux_frame(m, rgb);      // as the decoder hands them out
 *     h3_mux_audio(m, pcm, n);                   // before, between or after the frames, in pieces
 *     h3_mux_finish(&m);                         // or h3_mux_abort(&m)
 *
 * The file appears under its name only when h3_mux_finish succeeds; everything else (an error of
 * any call, then h3_mux_abort) leaves nothing behind. The index stands in front of the media data,
 * so a browser starts playing before the download ends. Sound and picture both start at time zero:
 * the priming samples of the AAC encoder are cut off by an edit list.
 *
 * Not thread safe: one writer, one thread at a time. Audio that arrives after the frames is fine:
 * the encoded packets (not the frames) wait in memory so that both streams interleave. Announced
 * (n_samples) and given first, nothing waits.
 *
 * H3_E_ARG: sizes, fps, codec or preset not usable; more or fewer frames than announced.
 * H3_E_UNSUPPORTED: the libavcodec of this machine lacks the encoder (the sentence says which to
 * install). H3_E_IO: cannot be written, disk full. H3_E_NUMERIC: NaN or infinity in the sound.
 */
#ifndef H3_MEDIA_ENCODE_H
#define H3_MEDIA_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

/** One line of container metadata, e.g. {"seed", "42"}; UTF-8. */
typedef struct h3_meta {
    const char *key, *value;
} h3_meta;

typedef struct h3_mux_opt {
    int width, height; ///< even, 2..16384
    int fps;           ///< 24
    int64_t n_frames;  ///< exact number of frames to come; 0 when not known
    int sample_rate;   ///< 32000; 0 for a video without sound track
    /** Exact number of samples to come, or 0 when not known. When they are all there before the
     * first frame, packets go to the file as they appear and memory does not grow with the length.
     */
    int64_t n_samples;
    const char *codec;   ///< "auto" (NULL), "libx264" or "libopenh264"
    const char *preset;  ///< of libx264, NULL for "medium"
    int crf;             ///< of libx264, 0..51 (18); libopenh264 gets the bit rate that suits it
    int n_threads;       ///< of the video encoder; 0 lets it choose
    const h3_meta *meta; ///< written when has_meta; "title", "comment" etc. and free keys
    int n_meta;
    bool has_meta; ///< false: nothing about the request is written, nor the encoder's name
} h3_mux_opt;

typedef struct h3_mux h3_mux;

/** Defaults: 24 fps, 32 kHz stereo, codec auto, crf 18, no metadata lines. */
h3_mux_opt h3_mux_default(int width, int height, int64_t n_frames);

/** Whether the encoder `codec` ("auto" = any of them) and AAC exist in this build of libavcodec and
 * take this size, preset and quality; fails with the sentence of h3_mux_open. For a check before
 * hours of sampling. */
H3_NODISCARD h3_status h3_mux_check(const h3_mux_opt *opt);

H3_NODISCARD h3_status h3_mux_open(h3_mux **out, const char *path, const h3_mux_opt *opt);

/** rgb [height, width, 3] u8, dense. */
H3_NODISCARD h3_status h3_mux_frame(h3_mux *m, const uint8_t *rgb);

/** Appends n samples of both channels: left = pcm[0..n), right = pcm[stride..stride + n) (planar
 * f32, clipped to [-1, 1]); stride is n for one dense [2, n] block. */
H3_NODISCARD h3_status h3_mux_audio(h3_mux *m, const float *pcm, int64_t n, int64_t stride);

/** Completes the file and frees *m (also when it fails; then nothing is left). */
H3_NODISCARD h3_status h3_mux_finish(h3_mux **m);

/** Drops the file and frees *m. Accepts NULL. */
void h3_mux_abort(h3_mux **m);

/** Whether libx264 has a preset of that name; NULL is "medium". */
bool h3_mux_has_preset(const char *name);

/** What a writer takes at most while frames come, or when it finishes; for memory plans. Packets
 * that wait for late sound are not in it. Measured on libx264 164. */
size_t h3_mux_bytes(const h3_mux_opt *opt, bool is_finishing);

/** Name of the video encoder in use, e.g. "libx264". */
const char *h3_mux_codec(const h3_mux *m);

#endif
