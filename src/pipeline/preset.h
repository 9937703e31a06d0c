/**
 * Schedules of few-step models: how many steps, which shifts, perhaps explicit sigmas. A distilled
 * adapter works only with its own; it is named by the caller or written beside the adapter, never
 * guessed from a file name.
 */
#ifndef H3_PIPELINE_PRESET_H
#define H3_PIPELINE_PRESET_H

#include "status.h"

enum { H3_PRESET_SIGMAS = 256 };

typedef struct h3_preset {
    int n_steps;                     ///< sigma points, 0: not given
    double shift_video, shift_audio; ///< 0: not given
    int n_sigmas;
    float sigmas[H3_PRESET_SIGMAS]; ///< base positions, falling, ending in 0
} h3_preset;

/**
 * "turbo4", "turbo8" (N forwards over N + 1 sigmas, shifts 12 and 3), or a JSON file:
 *   {"steps": 5, "shift": 12, "audio_shift": 3}  or  {"sigmas": [1, 0.7, 0.4, 0.15, 0], "shift": 1}
 * H3_E_ARG for an unknown name, H3_E_FORMAT names the field that is wrong.
 */
H3_NODISCARD h3_status h3_preset_load(h3_preset *out, const char *name);

/** The schedule that belongs to an adapter: FILE.json beside FILE (with or without .safetensors),
 * or its metadata "h3_schedule". *found tells. */
H3_NODISCARD h3_status h3_preset_of_lora(h3_preset *out, const char *lora, int *found);

#endif
