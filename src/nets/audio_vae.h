/**
 * The audio autoencoder: latents [32, n] of one channel to 800 n samples at 32 kHz, and back.
 *
 * The network is mono; left and right are two independent runs. Decoder: transposed convolutions
 * with anti-aliased snake activations. Encoder: strided convolutions, then a causal attention that
 * narrows 2048 channels to 32. Always float32: it degrades in 16 bit.
 */
#ifndef H3_NETS_AUDIO_VAE_H
#define H3_NETS_AUDIO_VAE_H

#include "checkpoint.h"

enum {
    H3_AUDIO_VAE_STAGES = 12,
    H3_AUDIO_VAE_KERNELS = 4,
    H3_AUDIO_VAE_DILATIONS = 6,
    H3_AUDIO_VAE_LATENTS = 256,
    H3_AUDIO_VAE_TAPS = 12 ///< of the anti-aliasing filters
};

/** Sizes, from tensor shapes and the configuration files. */
typedef struct h3_audio_vae_geometry {
    int64_t latents; ///< 32
    int64_t width;   ///< 2048, between the latent projections and the networks
    int64_t hop;     ///< 800 samples a latent
    int64_t rate;    ///< 32000 Hz
    float mean[H3_AUDIO_VAE_LATENTS], std[H3_AUDIO_VAE_LATENTS]; ///< of the latents
    /* decoder */
    int64_t n_stages, dec_channels[H3_AUDIO_VAE_STAGES + 1]; ///< before stage 0, after each
    int64_t dec_rate[H3_AUDIO_VAE_STAGES], dec_kernel[H3_AUDIO_VAE_STAGES];
    int64_t n_kernels, n_dilations; ///< AMP blocks a stage, pairs of convolutions in each
    int64_t amp_kernel[H3_AUDIO_VAE_KERNELS];
    int64_t dilation[H3_AUDIO_VAE_KERNELS][H3_AUDIO_VAE_DILATIONS];
    int64_t halo; ///< latents on each side that an output sample can depend on
    int64_t grid; ///< pieces begin at multiples of so many latents
    /* encoder */
    int64_t n_enc, enc_channels[H3_AUDIO_VAE_STAGES + 1], enc_rate[H3_AUDIO_VAE_STAGES];
    int64_t heads;
} h3_audio_vae_geometry;

typedef struct h3_audio_vae h3_audio_vae;

/** Which half to bind; a half that is not asked for need not be in the file. */
enum { H3_AUDIO_VAE_DECODER = 1, H3_AUDIO_VAE_ENCODER = 2 };

/** Binds the network from `ck`, which must outlive it. Fails naming the tensor or configuration
 * value that is missing or makes no sense. */
H3_NODISCARD h3_status h3_audio_vae_open(h3_audio_vae **out, h3_dev *d, h3_checkpoint *ck,
                                         unsigned halves);
void h3_audio_vae_close(h3_audio_vae **v);
const h3_audio_vae_geometry *h3_audio_vae_sizes(const h3_audio_vae *v);

typedef struct h3_audio_decode_opts {
    /** Latents decoded at a time; 0: all of them, up to 1024. Pieces overlap by the halo, so the
     *  result does not depend on it. */
    int64_t chunk;
    bool is_denormalised;                                      ///< z is already x * std + mean
    void (*progress)(void *user, int64_t done, int64_t total); ///< pieces; may be NULL
    void *progress_user;
} h3_audio_decode_opts;

/**
 * z [channels, 32, n] f32 (host, or memory of `d`) to out [channels, 800 n] in host memory, clamped
 * to [-1, 1]. `opts` may be NULL. Scratch is reserved here when the device's arena is empty,
 * otherwise it must hold h3_audio_vae_decode_bytes. On a plan device `out` may be NULL. H3_E_SHAPE,
 * H3_E_NUMERIC (NaN), H3_E_CANCELLED.
 */
H3_NODISCARD h3_status h3_audio_vae_decode(h3_dev *d, h3_audio_vae *v, h3_tensor z,
                                           const h3_audio_decode_opts *opts, float *out);
H3_NODISCARD h3_status h3_audio_vae_decode_bytes(const h3_dev *d, h3_audio_vae *v, int64_t channels,
                                                 int64_t n, const h3_audio_decode_opts *opts,
                                                 size_t *bytes);

/** Latents per channel of n samples: zeros are appended to whole hops. */
int64_t h3_audio_vae_latents(const h3_audio_vae *v, int64_t n_samples);

/**
 * wave [channels, n] f32 host memory at 32 kHz to rows [channels * latents, 32] in host memory: all
 * of the first channel, then all of the second. `is_raw` gives the posterior means, otherwise they
 * are normalised, (mean - latents_mean) / latents_std, as the denoiser takes them.
 */
H3_NODISCARD h3_status h3_audio_vae_encode(h3_dev *d, h3_audio_vae *v, h3_tensor wave, bool is_raw,
                                           float *rows);
H3_NODISCARD h3_status h3_audio_vae_encode_bytes(const h3_dev *d, h3_audio_vae *v, int64_t channels,
                                                 int64_t n, size_t *bytes);

/** Kaiser-windowed sinc low-pass of `taps` <= 64 taps, sum 1, in double; `window` may be NULL. The
 *  network's filters are (12, 0.25, 0.3). */
void h3_audio_vae_kaiser_sinc(double *filter, double *window, int taps, double cutoff,
                              double half_width);

#endif
