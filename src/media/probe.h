/**
 * What a media file is, before it is decoded: kind, size, rate, length. Reads headers (of a video
 * also enough packets to know its codec parameters), never a whole file.
 */
#ifndef H3_MEDIA_PROBE_H
#define H3_MEDIA_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "source.h"

typedef enum h3_media_kind {
    H3_MEDIA_IMAGE = 1,
    H3_MEDIA_VIDEO = 2, ///< has moving pictures, with or without sound
    H3_MEDIA_AUDIO = 3  ///< sound only (a cover picture does not count)
} h3_media_kind;

typedef struct h3_media_info {
    h3_media_kind kind;
    char format[32];      ///< "png", "mov,mp4,m4a,3gp,3g2,mj2", "wav", ...
    char video_codec[32]; ///< "h264"; "" when there is no picture
    char audio_codec[32]; ///< "aac"; "" when there is no sound
    int width, height;    ///< upright: after EXIF orientation or rotation; 0 for audio
    double fps;           ///< nominal or mean rate; 0 for pictures and audio
    double duration;      ///< seconds of the moving picture, or of the sound if there is only sound
    int64_t n_frames;     ///< counted by the container, else duration * fps; 1 for a picture
    bool has_audio;
    int channels, sample_rate;
    double audio_duration; ///< seconds; 0 when unknown
} h3_media_info;

/**
 * H3_E_MISSING: no such file. H3_E_FORMAT: empty, no known format, damaged header, or a picture or
 * video whose declared size is beyond H3_MEDIA_MAX_PIXELS. H3_E_UNSUPPORTED: no decoder for it
 * here.
 */
H3_NODISCARD h3_status h3_media_probe(h3_media_info *out, h3_media_src src);

/** "picture", "video" or "sound". */
const char *h3_media_kind_name(h3_media_kind k);

/** Declared pixels beyond this are refused before anything is decoded (16 bytes of PNG can ask for
 *  gigabytes). Twice the reference library's own warning limit. */
#define H3_MEDIA_MAX_PIXELS ((int64_t)178956970)

#endif
