/** The files of h3av-gpu-bench: each measures one thing and prints a JSON object a line.
 *
 *   gpu_bench.c         options, and what is measured in which order
 *   gpu_bench_random.c  tensors, weights and files of random numbers
 *   gpu_bench_ops.c     single operations
 *   gpu_bench_step.c    a denoising step to run
 *   gpu_bench_block.c   the products and the attention of its blocks by themselves
 *   gpu_bench_dit.c     such steps on one device: time, ways to run them, errors
 *   gpu_bench_ranks.c   such steps over several devices
 *   gpu_bench_video.c   the video decoder: tiles, a clip, its error
 *   gpu_bench_small.c   sound and the conditioner
 *   gpu_bench_load.c    bytes, and a whole denoiser, to the device
 *
 * A measurement that fails ends the program (MUST).
 */
#ifndef H3_BENCH_GPU_BENCH_H
#define H3_BENCH_GPU_BENCH_H

#include <stdbool.h>

#include "attention.h"
#include "checkpoint.h"
#include "comm.h"
#include "cuda.h"
#include "dit.h"
#include "gpu_common.h"

/* Extents of the released models, or of something small: to see on the emulated device that the
 * program runs. ENC_: the text tower, with Q heads and K of keys. */
#ifdef H3_BENCH_TINY
enum { C = 96, HEADS = 4, HEAD = 32, FFN = 80, N_TEXT = 16, N_AUDIO = 24, IS_TINY = 1 };
enum { ENC_W = 64, ENC_Q = 4, ENC_K = 2, ENC_D = 16, ENC_F = 96, ENC_VOCAB = 64 };
#else
enum { C = 5376, HEADS = 56, HEAD = 128, FFN = 14336, N_TEXT = 128, N_AUDIO = 240, IS_TINY = 0 };
enum { ENC_W = 5120, ENC_Q = 64, ENC_K = 8, ENC_D = 128, ENC_F = 25600, ENC_VOCAB = 1024 };
#endif
enum { INNER = HEADS * HEAD };

typedef struct options {
    const char *math, *what, *model, *pieces, *file;
    int64_t rows[8], tiles[8];
    int n_rows, n_tiles, layers, repeat, ranks;
    double rest; ///< seconds before every timed repetition of a step
} options;

extern h3_dev *d; ///< what everything runs on; the whole program has one
extern options o;

/* True when `word` is in --what. */
bool has(const char *word);

/* Lets a device that steps have brought to its limit of power cool down: sleeps o.rest seconds. */
void take_rest(void);

/* ---- gpu_bench_random.c */

/* Uniform in [-scale, scale], from one pool of numbers repeated: NE(...) gives rank and extents. */
h3_tensor random_tensor(h3_dtype t, float scale, int rank, const int64_t *ne);

/* A matrix [rows, cols] on the device, in bf16 or f32; free_weight also drops what the backend made
 * of it. */
h3_weight random_weight(h3_dtype t, int64_t rows, int64_t cols);
void free_weight(h3_weight *w);

/* [1, n] i32: which row of modulation the rows of a request from `first` on take, text, sound, then
 * video, each under one of its own; `per` modalities to a row (1, or 3 for rows of timesteps). */
h3_tensor modulation_rows(int64_t first, int64_t n, int64_t n_audio, int per);

/* [n] i32: first, first + 1, ..., or 0, 1, ... below - 1 over and over where `below` is not 0. */
h3_tensor indices(int64_t n, int64_t first, int64_t below);

/* A file with a role's released names and shapes (`layers` of them, 0: all), already unlinked. */
h3_checkpoint *synthetic(h3_role role, int layers);

/* ---- gpu_bench_ops.c */

void bench_ops(int64_t S);

/* Every operation that ran since the counters were reset, with timing on: a run that waits after
 * each, so that the sum exceeds the whole by what the waits cost. */
void report_ops(const char *what);

/* ---- gpu_bench_step.c */

/* How a step runs: recorded once and replayed, call by call, and that with what is fused taken
 * apart, to see what fusing gives on the same clocks. */
typedef enum variant { RECORDED, DIRECT, APART, N_VARIANTS } variant;

typedef struct step {
    h3_dit *m;
    h3_dit_state *s;
    h3_tensor v, v2, a, a2; ///< latents of video and sound, and (2) the velocities that come out
} step;

/* All layers of it share one set of weights; what a backend hangs on a weight in use is shared too,
 * once share_packed has shown every layer what the first one has. */
h3_dit *make_dit(void);
void share_packed(h3_dit *m);

step make_step(h3_dit *m, int64_t S);
void free_step(const step *k);
size_t dit_scratch(int64_t S);

/* Seconds until the device is done. */
double run_step(const step *k, variant how);

/* Velocities of the last step, on the host; free() them. */
float *velocities(const step *k);

/* ---- gpu_bench_block.c */

/* Seconds that the libraries take for the products and the attention of a step when nothing else
 * runs between them. */
double library_step(const h3_dit *m, const h3_dit_state *state);

/* Whether products and attention give the same bits again. */
void report_repeats(const h3_dit *m, const h3_dit_state *state);

/* Under fp8: how far each product of a block, and its attention, are from bf16 on the same input.
 */
void report_op_errors(const h3_dit *m, const h3_dit_state *state);

uint64_t hash_of(const void *p, size_t n);

/* Root of the mean square of the difference, relative to that of `want`. */
double distance(const float *want, const float *got, int64_t n);

/* ---- one measurement each */

void bench_dit(h3_dit *m, int64_t S);
void bench_model_error(void);
void bench_steps(h3_dit *m, int64_t S);
void bench_vae(bool has_tiles, bool has_clip);
void bench_audio(void);
void bench_encoder(void);
void bench_load(void);
void bench_real(void);

#endif
