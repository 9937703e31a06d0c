/**
 * Sound from files (WAV, MP3, AAC, FLAC, OGG, ..., or the track of a clip) as planar float stereo.
 */
#ifndef H3_MEDIA_SOUND_H
#define H3_MEDIA_SOUND_H

#include <stdint.h>

#include "cancel.h"
#include "source.h"

typedef struct h3_sound {
    float *pcm;      ///< [2, n] planar, malloc'd: left = pcm[0..n), right = pcm[n..2n)
    int64_t n;       ///< samples per channel
    int sample_rate; ///< of the file: nothing is resampled by h3_sound_load
    int n_channels;  ///< of the file: 1 was doubled, more than 2 were mixed down
} h3_sound;

/**
 * Reads the first sound track, at most int(max_seconds * rate) samples at the file's own rate (the
 * reference cuts before it resamples); max_seconds <= 0 reads all of it, but never more than an
 * hour. In a clip, time 0 is the first picture: sound that begins later is preceded by silence.
 *
 * H3_E_MISSING when there is no sound track (probe first); other errors as h3_media_probe.
 */
H3_NODISCARD h3_status h3_sound_load(h3_sound *out, h3_media_src src, double max_seconds,
                                     const h3_cancel_flag *stop);

/** To `sample_rate` with the reference's resampler (resample.h), in place; nothing to do if equal.
 */
H3_NODISCARD h3_status h3_sound_resample(h3_sound *s, int sample_rate);

void h3_sound_free(h3_sound *s);

#endif
