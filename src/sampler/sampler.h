/**
 * The denoising loop: rows of noise and pinned condition rows in, rows of latents out.
 *
 *   prepare the DiT for the whole schedule
 *   for each step: velocities = dit(rows, t); generated rows take an Euler step; conditions stay
 *
 * Video and audio follow schedules of their own, stepped together, one forward for both. The rows
 * stay on the device from the first step to the last; what crosses is one flag (are the velocities
 * finite?) a step, and whatever a callback asks for.
 */
#ifndef H3_SAMPLER_SAMPLER_H
#define H3_SAMPLER_SAMPLER_H

#include "dit.h"
#include "layout.h"
#include "sigmas.h"

/** One finished step, as callbacks see it. Tensors live on the device and are valid during the
 * call; read them with h3_dev_download. */
typedef struct h3_sampler_step {
    int step, n_steps; ///< step 0 .. n_steps - 1 has just been done
    double seconds;    ///< what this step took
    h3_dev *dev;
    h3_step_times times;        ///< distinct timesteps of the step, ascending
    h3_tensor video, audio;     ///< generated rows [., 96], [., 32] after the step, f32 dense
    h3_tensor v_video, v_audio; ///< their velocities
} h3_sampler_step;

typedef struct h3_sampler_in {
    const h3_layout *layout;
    const h3_schedule *video, *audio; ///< equally long
    h3_tensor prompt_embeds;          ///< [n_text, text_dim] host, f32, bf16 or f16
    uint8_t act;                      ///< stream of the DiT: H3_F32 or H3_BF16
    const float *video_rows;          ///< [Nv, cols] conditions (noised, see pack.h), then noise
    const float *audio_rows;          ///< [Na, cols] reference sound, then noise
    int first_step;                   ///< 0, or k: the generated rows are those after step k - 1
    /** After every step; may be NULL. Anything but H3_OK ends the run with that status. */
    h3_status (*after_step)(void *user, const h3_sampler_step *s);
    /** A stop was asked for within a step: sees the rows after the last whole one (if this run did
     *  any), so that they can be kept. May be NULL. */
    void (*on_stop)(void *user, const h3_sampler_step *s);
    void *user;
} h3_sampler_in;

/**
 * Runs steps first_step .. n_steps - 1 on m->dev and writes the generated rows,
 * [Nv - n_condition_video, cols] and [Na - n_condition_audio, cols] f32, to host memory of the
 * caller.
 *
 * Over ranks (m->dev->comm) all call this with the same `in`, and all get all rows, after every
 * step and at the end.
 *
 * Grows the device's scratch arena as needed (it must be empty). With a tap set on the device the
 * network's own taps appear as "step<i>.<name>", and "step<i>.velocity_video", ".velocity_audio",
 * ".video_rows", ".audio_rows" (generated rows only) follow.
 *
 * H3_E_ARG (schedules of different length, first_step outside), H3_E_SHAPE, H3_E_NUMERIC (a
 * velocity is NaN or infinite; names the step and, found by running it again, the tensor),
 * H3_E_CANCELLED, H3_E_NOMEM, H3_E_DEVICE.
 */
H3_NODISCARD h3_status h3_sampler_run(float *video_out, float *audio_out, const h3_dit *m,
                                      const h3_sampler_in *in);

/** Device memory of a run: the scratch arena, and what is kept beside it. Only counts of `in` are
 *  read; prompt_embeds.data and the rows may be NULL. */
H3_NODISCARD h3_status h3_sampler_bytes(const h3_dit *m, const h3_sampler_in *in, size_t *scratch,
                                        size_t *kept);

#endif
