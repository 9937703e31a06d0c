/**
 * The diffusion transformer: packed rows of text, video and audio in, velocities out.
 *
 *   video rows [Nv, 96] f32 ─ video_patch_proj ─┐
 *   audio rows [Na, 32] f32 ─ audio_patch_proj ─┼─ packed x [S, C] ─ 50 blocks ─ final layer ─
 * velocities text rows [Nt, 5120] ─ condition_proj ─ 2 refiner blocks ─┘
 *
 * A request goes through three doors:
 *   h3_dit_open     binds the tensors of a checkpoint; the geometry is read from their shapes
 *   h3_dit_prepare  what does not change from step to step: refined text, rotation tables, and the
 *                   AdaLN modulation of every block for every timestep of the schedule (13 of the
 * 33 billion weights see only timesteps, so sampling never touches them again) h3_dit_forward  one
 * forward of the blocks; no allocation but the scratch arena, nothing leaves the device
 *
 * The stream x is f32 or bf16 (`act`). Patch projections, the time embedder and both output heads
 * are f32 whatever the stream is. bf16 rounds where the reference does (diffusers 0.42.1,
 * transformer_minimax_h3.py); the roundings are those that ops.h states for each operation.
 *
 * Letters: S packed rows, C hidden, H heads, D head size, F feed-forward, U distinct timesteps.
 */
#ifndef H3_NETS_DIT_H
#define H3_NETS_DIT_H

#include "checkpoint.h"
#include "comm.h"

/** config.json of a transformer, in either spelling. Fields absent from the file are 0. */
typedef struct h3_dit_config {
    int64_t hidden, n_heads, head_dim, n_layers, n_refiner, ffn;
    int64_t channels, audio_channels, patch[3], text_dim;
    int64_t t_freq, t_hidden, t_dim, adaln_rows, final_adaln_rows, rope_freqs;
    double rope_theta, norm_eps, qk_norm_eps, final_norm_eps;
} h3_dit_config;

/** Reads and checks a parsed config.json; `path` is for messages. H3_E_FORMAT names the field. */
H3_NODISCARD h3_status h3_dit_config_parse(h3_dit_config *out, const json_t *root,
                                           const char *path);

/** Sizes, as the tensors have them. */
typedef struct h3_dit_dims {
    int64_t hidden;                  ///< C, 5376
    int64_t n_heads, head_dim;       ///< H 56, D 128
    int64_t inner;                   ///< H * D, 7168: wider than C
    int64_t ffn;                     ///< F, 14336
    int64_t n_layers, n_refiner;     ///< 50, 2
    int64_t text_dim;                ///< 5120
    int64_t video_cols, audio_cols;  ///< 96 = channels * 1 * 2 * 2, 32
    int64_t t_freq, t_hidden, t_dim; ///< 256, 5376, 2688; curve form: 0, 0, width of the curve
    int64_t rope_freqs;              ///< 16 per axis
} h3_dit_dims;

/** A transformer block, and without the modulation also a block of the token refiner. */
typedef struct h3_dit_block {
    h3_tensor norm1, norm2;   ///< [C] f32
    h3_tensor q_norm, k_norm; ///< [D] f32
    h3_weight qkv;            ///< [3 H D, C], row order by qkv.interleaved
    h3_weight out;            ///< [C, H D]
    h3_weight fc1;            ///< [2 F, C], rows [gate; value]
    h3_weight fc2;            ///< [C, F]
} h3_dit_block;

/** One modulation matrix, [18 C, t_dim]: rows (modality 3, parameter 6, channel C). */
typedef struct h3_dit_adaln {
    h3_weight proj;
} h3_dit_adaln;

/** What lies outside the blocks. The final adaln is [2 C, t_dim]: shift, then scale. */
typedef struct h3_dit_edge {
    h3_weight video_proj, audio_proj, condition_proj; ///< [C, 96], [C, 32], [C, 5120]
    h3_weight time_in, time_out;                      ///< zeroed in the curve form
    h3_weight final_adaln, video_out, audio_out;
    h3_tensor refiner_norm, final_norm; ///< [C] f32
} h3_dit_edge;

/** Modulation of a schedule, kept for the next request with the same one. The weights and adapters
 *  that made it are those of the model it belongs to. */
typedef struct h3_dit_kept_mod {
    uint8_t act;
    int64_t n_timesteps;
    float *timesteps;         ///< [n_timesteps]; NULL: nothing is kept
    h3_tensor mod, final_mod; ///< as in h3_dit_state
} h3_dit_kept_mod;

typedef struct h3_dit {
    h3_dev *dev; ///< where the vectors live
    h3_dit_dims dims;
    float norm_eps, qk_norm_eps, final_norm_eps;
    h3_dit_edge edge;
    h3_dit_block *block, *refiner; ///< [n_layers], [n_refiner]
    h3_dit_adaln *adaln;           ///< [n_layers]
    float *inv_freq;               ///< [rope_freqs] host
    float *curve;                  ///< [n_curve, t_dim] host, or NULL: the time embedder is there
    int64_t n_curve;
    int64_t mlp_band; ///< rows that the MLP takes at a time; the result does not depend on it
    h3_store *store;  ///< group 0 patch projections, 1..L blocks, L + 1 output heads
    /* Used once a request: condition projection and refiner; time embedder and adaln. */
    h3_store *text_store, *mod_store; ///< NULL on a plan device
    bool keeps;                       ///< for more requests: set by the caller after h3_dit_open
    h3_dit_kept_mod kept;             ///< when `keeps`
} h3_dit;

/**
 * Binds every tensor of `ck` on `d`; a tensor that is missing, superfluous or misshapen fails by
 * name, as does a config.json that disagrees with the tensors. `ck` and `d` must outlive *out. Free
 * with h3_dit_close (accepts NULL, clears the pointer).
 */
H3_NODISCARD h3_status h3_dit_open(h3_dit **out, h3_checkpoint *ck, h3_dev *d);
void h3_dit_close(h3_dit **m);

/** What a request fixes for all its forwards. Host memory of the caller, read during the call. */
typedef struct h3_dit_request {
    uint8_t act;    ///< H3_F32 or H3_BF16: the stream
    int64_t n_rows; ///< S; each row belongs to exactly one of the three index lists
    int64_t n_video, n_audio, n_text;
    const int32_t *video_indices, *audio_indices, *text_indices; ///< [n_*], rows of the sequence
    const double *positions;                                     ///< [S, 3]: t, h, w
    const int32_t *cu; ///< [n_documents + 1] bounds in the sequence, or NULL: one document
    int n_documents;
    const int32_t *refiner_cu; ///< the same over text rows
    int n_refiner_documents;
    h3_tensor text; ///< [n_text, text_dim] f32, bf16 or f16
    int64_t n_steps;
    int64_t n_timesteps;    ///< U, distinct over the whole schedule
    const float *timesteps; ///< [U] in [0, 1]; 1 is clean
    const int32_t *mod_row; ///< [n_steps, S]: 3 * (index into timesteps) + modality
} h3_dit_request;

/** What this rank has of some rows: [first, first + n). at [ranks + 1]: the first of each rank. */
typedef struct h3_dit_share {
    int64_t first, n;
    int64_t *at; ///< NULL on a plan device and for the sequence itself
} h3_dit_share;

/** Device tensors of a prepared request. Counts are those of the request; over ranks (dev->comm)
 * this one has the rows own of the sequence, and of each medium those that lie there. */
typedef struct h3_dit_state {
    h3_dev *dev;
    h3_store *store; ///< NULL on a plan device
    uint8_t act;
    int64_t n_rows, n_video, n_audio, n_text, n_steps, n_timesteps;
    h3_dit_share own, own_video, own_audio, own_text;
    h3_tensor text;                           ///< [n_text, C] act, refined: all of them
    h3_tensor cos, sin;                       ///< [own, 3 * rope_freqs], f32 or bf16 as the stream
    h3_tensor mod;                            ///< [L, 3 U, 6, C] act
    h3_tensor final_mod;                      ///< [U, 2, C] act
    h3_tensor video_idx, audio_idx, text_idx; ///< i32, own rows counted from own.first
    h3_tensor mod_row, time_row;              ///< [n_steps, own] i32; time_row = mod_row / 3
    int32_t *cu;                              ///< [n_documents + 1] host
    int n_documents;
    bool is_mod_kept;    ///< mod and final_mod are the model's
    h3_tensor row, time; ///< [own] i32: those of the step at hand, always in the same place
    struct {             ///< a forward as one call, from the second one with the same buffers on
        h3_recording *it;
        const void *buffers[5];
        int n_direct, n_lost;
    } replay;
} h3_dit_state;

/**
 * Runs what only depends on the request. Uses the scratch arena (h3_dit_scratch_bytes is enough)
 * and device memory of its own, given back by h3_dit_release (accepts NULL, clears the pointer).
 * H3_E_ARG or H3_E_SHAPE when the request contradicts itself or the model; H3_E_CANCELLED. Over
 * ranks: collective; H3_E_UNSUPPORTED when heads do not divide among them.
 */
H3_NODISCARD h3_status h3_dit_prepare(h3_dit_state **out, const h3_dit *m, const h3_dit_request *r);
void h3_dit_release(h3_dit_state **s);

/**
 * One forward with the timesteps of step `step`.
 *
 *   video [Nv, 96], audio [Na, 32]   f32   rows, conditions and references first
 *   v_video, v_audio                 f32   velocities of all those rows, same shapes; dense
 *
 * Over ranks all have the same rows before the call, and each writes its own ones (s->own_video,
 * s->own_audio) of the velocities.
 *
 * Enqueued on the device; H3_E_NOMEM when the scratch arena is too small, H3_E_CANCELLED between
 * blocks.
 */
H3_NODISCARD h3_status h3_dit_forward(h3_dev *d, const h3_dit *m, h3_dit_state *s, int64_t step,
                                      h3_tensor v_video, h3_tensor v_audio, h3_tensor video,
                                      h3_tensor audio);

/** Scratch that h3_dit_prepare and h3_dit_forward need for `r` (its pointers are not read, only its
 *  counts), and what h3_dit_prepare keeps on the device. Found by a dry run of the same code. */
H3_NODISCARD h3_status h3_dit_scratch_bytes(const h3_dit *m, const h3_dit_request *r,
                                            size_t *scratch, size_t *kept);

/* ---- between the files of the DiT ---- */

/** Modulation of all blocks and of the final layer into s->mod and s->final_mod (dit_mod.c). */
H3_NODISCARD h3_status h3_dit_modulate(h3_dev *d, const h3_dit *m, h3_dit_state *s,
                                       const float *timesteps);

/** Modulation kept by `m` that is just what `r` needs: into s. False when there is none. */
bool h3_dit_recall_mod(const h3_dit *m, h3_dit_state *s, const float *timesteps);
/** Hands s->mod and s->final_mod over to a model that keeps; what it kept before goes. */
void h3_dit_keep_mod(const h3_dit *m, h3_dit_state *s, const float *timesteps);
void h3_dit_forget_mod(h3_dit *m);

/** y [n_text, C] = final_norm(refiner(condition_proj(text))); text [n_text, text_dim] act (dit.c).
 */
H3_NODISCARD h3_status h3_dit_refine(h3_dev *d, const h3_dit *m, h3_tensor y, h3_tensor text,
                                     const int32_t *cu, int n_documents);

#endif
