/**
 * The video autoencoder: latents [24, T, h, w] to frames and frames to latents.
 *
 * Decoder: a vision transformer over tiles of at most 256 x 256 pixels and clips of 7 latent
 * frames. Positions inside a tile are relative to that tile, so tiling is part of the function, not
 * a way to save memory; the same holds for clips. Encoder: a causal 3D convolutional network over
 * clips of 17 frames, tiles likewise. What is public here needs no knowledge of either.
 *
 * Decoding streams: frames leave in order through a callback while only one batch of tiles, the
 * seams to their neighbours, the frames of the current clip (as bytes) and the 5-frame tail of the
 * previous one are in memory.
 */
#ifndef H3_NETS_VIDEO_VAE_H
#define H3_NETS_VIDEO_VAE_H

#include "checkpoint.h"

enum { H3_VIDEO_VAE_LEVELS = 8, H3_VIDEO_VAE_LATENTS = 128 };

/** ImageNet statistics: what the networks' RGB is normalised with. */
extern const float h3_video_vae_pixel_mean[3], h3_video_vae_pixel_std[3];

/** Sizes, from tensor shapes and the configuration files. */
typedef struct h3_video_vae_geometry {
    int64_t latents;        ///< channels of a latent, 24
    int64_t ratio, ratio_t; ///< pixels per latent cell in space (16) and time (4)
    int64_t clip, drop;     ///< 17 frames a clip, 3 latent frames dropped once when encoding
    int64_t tile, overlap;  ///< pixels: 256, 64
    float mean[H3_VIDEO_VAE_LATENTS], std[H3_VIDEO_VAE_LATENTS]; ///< of the latents
    /* decoder */
    int64_t dim, heads, head_dim, ff, n_layers, n_registers;
    double rope_theta, rope_ratio;
    float eps;
    /* encoder */
    int64_t n_levels, n_blocks; ///< 6 levels of 2 residual blocks
    int64_t channels[H3_VIDEO_VAE_LEVELS];
    int64_t down[H3_VIDEO_VAE_LEVELS], down_t[H3_VIDEO_VAE_LEVELS]; ///< strides after each level
    int groups;
    float enc_eps;
} h3_video_vae_geometry;

typedef struct h3_video_vae h3_video_vae;

/** Which half to bind; a half that is not asked for need not be in the file. */
enum { H3_VIDEO_VAE_DECODER = 1, H3_VIDEO_VAE_ENCODER = 2 };

/**
 * Binds the network from `ck`, which must outlive it. Vectors and tables live on `d`; matrices are
 * brought there by the store when they are needed. Fails naming the tensor that is missing or has
 * another shape, or the configuration value that makes no sense.
 */
H3_NODISCARD h3_status h3_video_vae_open(h3_video_vae **out, h3_dev *d, h3_checkpoint *ck,
                                         unsigned halves);
void h3_video_vae_close(h3_video_vae **v);
const h3_video_vae_geometry *h3_video_vae_sizes(const h3_video_vae *v);

/**
 * Takes `frames` = frames [first, first + n) of the video, host memory, valid during the call: u8
 * [n, H, W, 3] RGB, or f32 [3, n, H, W] as the network left them (ImageNet-normalised; a colour's
 * frames lie together, the three may lie apart). An error
 * stops the decoding and is returned by it.
 */
typedef h3_status (*h3_frames_fn)(void *user, int64_t first, h3_tensor frames);

/** Called after each batch of tiles: `done` of `total` tile passes. */
typedef void (*h3_tiles_fn)(void *user, int64_t done, int64_t total);

typedef struct h3_video_decode_opts {
    int tiles_in_flight;   ///< tiles that go through the transformer together; 0 is 1
    h3_dtype act;          ///< F32, or BF16: then norms, residual stream and scales stay F32
    bool is_float;         ///< frames as f32 [3, n, H, W] instead of bytes
    bool is_denormalised;  ///< z is already x * std + mean
    bool is_one_clip;      ///< no clips in time: all T latents give 4 T frames in one pass
    int64_t tile, overlap; ///< pixels; 0: the checkpoint's
    h3_tiles_fn progress;  ///< may be NULL
    void *progress_user;
} h3_video_decode_opts;

/** Frames that T latent frames decode to (0 when T is too short to decode: fewer than 3). */
int64_t h3_video_vae_frames(const h3_video_vae *v, int64_t latent_frames);

/**
 * Decodes z [24, T, h, w] f32 (host, or memory of `d`): h * 16 x w * 16 pixels, frames to `sink`.
 * `opts` may be NULL. Scratch is reserved here when the device's arena is empty; otherwise it must
 * hold h3_video_vae_decode_bytes. On a plan device nothing is computed and `sink` is not called.
 * Over ranks (d->comm) all call this with the same latents and share the tiles; frames, progress
 * and errors of the sink are rank 0's alone. H3_E_ARG (T < 3), H3_E_NUMERIC (NaN in a tile),
 * H3_E_CANCELLED, or the sink's error.
 */
H3_NODISCARD h3_status h3_video_vae_decode(h3_dev *d, h3_video_vae *v, h3_tensor z,
                                           const h3_video_decode_opts *opts, h3_frames_fn sink,
                                           void *user);

/** Scratch bytes of the call above for latents [24, T, h, w] (a dry run of the same code). */
H3_NODISCARD h3_status h3_video_vae_decode_bytes(const h3_dev *d, h3_video_vae *v, int64_t t,
                                                 int64_t h, int64_t w,
                                                 const h3_video_decode_opts *opts, size_t *bytes);

/** h3_store_saved of the decoder, as it was decoded (or planned) last. */
int64_t h3_video_vae_decoder_saved(const h3_video_vae *v, size_t *on_the_way);

/** The largest power of two of tiles_in_flight, up to 64, whose scratch stays within `budget`
 * bytes; 1 when even one tile does not. Where the device says how many pieces of a product it works
 * on at once, the number that leaves it idle least. Other settings are those of `opts`. */
int h3_video_vae_tiles_that_fit(const h3_dev *d, h3_video_vae *v, int64_t t, int64_t h, int64_t w,
                                const h3_video_decode_opts *opts, size_t budget);

typedef struct h3_video_encode_opts {
    int64_t tile, overlap; ///< pixels; 0: the checkpoint's
    int frames_at_once;    ///< frames a clip advances by: 0 all 17 (fast), 1 the least memory
    h3_tiles_fn progress;
    void *progress_user;
} h3_video_encode_opts;

/** Latent frames that n frames encode to: 1 for one, else 5 * ceil(n / 17) - 3. */
int64_t h3_video_vae_latent_frames(const h3_video_vae *v, int64_t n_frames);

/**
 * Posterior of frames [n, H, W, 3] u8 RGB in host memory (H, W multiples of 16): mean and log
 * variance (clamped to [-30, 20]), each [24, t, H/16, W/16] f32 in the caller's host memory, t as
 * above. One frame takes the keyframe path.
 */
H3_NODISCARD h3_status h3_video_vae_encode(h3_dev *d, h3_video_vae *v, h3_tensor frames,
                                           const h3_video_encode_opts *opts, float *mean,
                                           float *logvar);

/** Scratch bytes of the call above for n frames of h x w pixels (a dry run of the same code). */
H3_NODISCARD h3_status h3_video_vae_encode_bytes(h3_dev *d, h3_video_vae *v, int64_t n, int64_t h,
                                                 int64_t w, const h3_video_encode_opts *opts,
                                                 size_t *bytes);

/**
 * What the denoiser gets of a posterior, in place on mean [24, n]: a sample with `noise` [24, n]
 * (standard normal), rounded to float16, then (x - mean) / std per channel. n is t * h * w.
 */
void h3_video_vae_condition(const h3_video_vae *v, float *mean, const float *logvar,
                            const float *noise, int64_t n);

#endif
