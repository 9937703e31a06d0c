/**
 * Sample rate conversion with torchaudio's windowed sinc (Hann window, width 6, rolloff 0.99).
 */
#ifndef H3_MEDIA_RESAMPLE_H
#define H3_MEDIA_RESAMPLE_H

#include <stdint.h>

#include "status.h"

/** ceil(n * to / from), the quotient rounded to float32 before the ceiling as the reference does;
 * -1 on overflow or a rate <= 0. */
int64_t h3_resample_length(int64_t n, int from, int to);

/** in [n] -> out [h3_resample_length(n, from, to)], one channel. Equal rates copy. H3_E_ARG for
 * rates outside 1..1000000, H3_E_NOMEM. */
H3_NODISCARD h3_status h3_resample(float *out, const float *in, int64_t n, int from, int to);

/** Weight of tap i (0 .. h3_resample_taps - 1) for output phase j: the reference's kernel table,
 * value for value. o and b are the reduced rates (from / g, to / g). */
float h3_resample_tap(int64_t o, int64_t b, int64_t j, int64_t i);
int64_t h3_resample_taps(int64_t o, int64_t b);

#endif
