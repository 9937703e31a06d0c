/** Rows before the first step; the reference is diffusers' prepare-latents steps of MiniMax-H3. */
#include "pack.h"

#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "sigmas.h"

static int64_t cells(h3_latent_shape s)
{
    return s.t * s.h * s.w;
}

/* Elements of `channels` planes: the same count as rows and as latents. */
static int64_t elements(h3_latent_shape s, int64_t channels)
{
    return channels * cells(s);
}

h3_status h3_pack_video(float *rows, const h3_pack_visual *conditions, int n_conditions,
                        const float *noise, h3_latent_shape target, int64_t channels)
{
    int64_t most = 0;
    float *mixed = NULL;

    for (int i = 0; i < n_conditions; i++)
        if (elements(conditions[i].shape, channels) > most)
            most = elements(conditions[i].shape, channels);
    if (most && !(mixed = malloc((size_t)most * sizeof *mixed)))
        return h3_fail(H3_E_NOMEM, "no memory for %lld condition latents", (long long)most);
    for (int i = 0; i < n_conditions; i++) {
        const h3_latent_shape s = conditions[i].shape;
        const int64_t n = elements(s, channels);
        memcpy(mixed, conditions[i].clean, (size_t)n * sizeof *mixed);
        h3_sigma_anchor(mixed, conditions[i].noise, n, H3_ANCHOR_T);
        h3_patchify(rows, mixed, channels, s.t, s.h, s.w);
        rows += n;
    }
    h3_patchify(rows, noise, channels, target.t, target.h, target.w);
    free(mixed);
    return H3_OK;
}

void h3_pack_audio(float *rows, const h3_pack_sound *references, int n_references,
                   const float *noise_rows, int64_t n_noise_rows, int64_t cols)
{
    for (int i = 0; i < n_references; i++) {
        const int64_t n = references[i].n_rows * cols;
        memcpy(rows, references[i].rows, (size_t)n * sizeof *rows);
        rows += n;
    }
    memcpy(rows, noise_rows, (size_t)(n_noise_rows * cols) * sizeof *rows);
}
