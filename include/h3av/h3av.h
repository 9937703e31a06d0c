/**
 * libh3av: MiniMax-H3 video with sound, from C.
 *
 *     h3_engine_opts eo = h3_engine_default();
 *     eo.model = "/models/MiniMax-H3/FL2VA"; // NULL: the small model built into the library
 *     h3_engine *e = NULL;
 *     if (h3_engine_open(&e, &eo) != H3_OK) die(h3_error());
 *
 *     h3_request rq = h3_request_default();
 *     rq.prompt = "a red circle moves left to right with a low tone";
 *     rq.out_path = "circle.mp4";
 *     h3_result rs;
 *     if (h3_generate(e, &rq, &rs) != H3_OK) die(h3_error());
 *     h3_engine_close(&e);
 *
 * Conventions
 *   - Every call returns an h3_status; h3_error() gives one sentence about the last failure on this
 *     thread. The library never prints, never exits and opens no socket.
 *   - Strings and arrays in options are borrowed for the duration of the call (h3_engine_open
 *     copies what it keeps). Strings returned through char ** are the caller's: h3_string_free.
 *   - An engine serves one request at a time; use one engine per thread. h3_cancel is the one call
 *     allowed from another thread (and from a signal handler).
 *   - Parts of a model are opened when a request needs them: with relative paths the working
 *     directory must stay what it was when the engine was opened.
 *   - Defaults come from the *_default functions; a zeroed struct is not a default.
 */
#ifndef H3AV_H3AV_H
#define H3AV_H3AV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <h3av/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** "0.1.0" */
H3_API const char *h3_version(void);

/** Frees a string that the library returned. Accepts NULL. */
H3_API void h3_string_free(char *s);

/* -------------------------------------------------------------------------------------- ranks */

/**
 * Several processes that work on each request together: over the GPUs of a host, or over machines.
 * Every process makes the same calls with the same options; rank 0 calls back and writes files, all
 * return the same status. A failure or h3_cancel on one rank ends the call on all, and after it
 * ranks can only be closed.
 */
typedef struct h3_ranks h3_ranks;

/**
 * Joins the processes that mpirun or srun started; without a launcher starts n - 1 copies of this
 * process (n up to 16), so that the call returns n times. Call it first, with one thread. n 0 or 1
 * without a launcher: one rank. H3_E_UNSUPPORTED when a launcher was used and the build has no MPI.
 */
H3_API h3_status h3_ranks_open(h3_ranks **out, int n);
/** Ranks that an engine can plan with and nothing else (h3_plan_json): `n` (up to 256) on this
 * host, of which none is started. */
H3_API h3_status h3_ranks_plan(h3_ranks **out, int n);
H3_API int h3_ranks_rank(const h3_ranks *r);  ///< 0 for NULL
H3_API int h3_ranks_size(const h3_ranks *r);  ///< 1 for NULL
H3_API int h3_ranks_local(const h3_ranks *r); ///< rank among those of this host, for picking a GPU
/** Waits for the others, after all engines are closed. `has_failed`: this rank gives up, whatever
 *  the last call said; then the others do too. */
H3_API h3_status h3_ranks_close(h3_ranks **r, bool has_failed);
/** The rank that a launcher gave to this process (0 without one), before h3_ranks_open. */
H3_API int h3_launched_rank(int *size);

/* ------------------------------------------------------------------------------------- engine */

typedef struct h3_engine h3_engine;

typedef struct h3_lora_file {
    const char *path;
    float strength; ///< 1 is the file's own
} h3_lora_file;

typedef struct h3_engine_opts {
    const char *model; ///< a folder in any published layout, or NULL for the built-in model
    const char *dit, *text_encoder, *vae, *audio_vae,
        *tokenizer;     ///< override single parts; or NULL
    const char *device; ///< "cpu" (default), "cuda", "cuda:N"
    const char *dtype;  ///< stream of the networks: "f32" (exact), "bf16", or "auto" (default): f32
                        ///< on the CPU, bf16 on a GPU
    const char
        *math; ///< products; CPU: "auto", "f32", "bf16", "int8"; CUDA: "auto", "f32", "tf32", "fp8"
    const char *qkv;   ///< row order of fused q/k/v: "auto", "interleaved", "stacked"
    const char *quant; ///< "auto", "keep" or "expand" quantized weights
    int n_threads;     ///< 0: all cores this process may use
    const h3_lora_file *loras;
    int n_loras;
    float lora_alpha;               ///< for adapter files that hold no alpha; 0: their scale is 1
    bool is_strict_lora;            ///< unmatched LoRA keys are an error
    bool has_timing;                ///< measure every operation (slower on a GPU)
    bool keep_loaded;               ///< keep parts in memory between requests (server, sessions)
    uint64_t ram_limit, vram_limit; ///< bytes, 0: what the machine has
    const char *offload;            ///< "auto", "none", "stream", "disk", "ranks"
    h3_ranks *ranks; ///< must outlive the engine; NULL: this process alone. "cuda" is then GPU N
                     ///< for the host's rank N
} h3_engine_opts;

H3_API h3_engine_opts h3_engine_default(void);

/** Finds and checks all parts (headers only; weights are mapped when their phase comes) and opens
 * the device. Errors name the missing part and a file that would fill it. */
H3_API h3_status h3_engine_open(h3_engine **out, const h3_engine_opts *opts);
H3_API void h3_engine_close(h3_engine **e);

/** Asks the running call of this engine to stop: it returns H3_E_CANCELLED within one network block
 *  and leaves no partial file. Callable from any thread and from a signal handler. */
H3_API void h3_cancel(h3_engine *e);

/** Removes the half-written files of this process: for a signal handler that is about to end it
 *  without h3_cancel. Nothing may be called afterwards. */
H3_API void h3_drop_partial_files(void);

/* ------------------------------------------------------------------------------------ request */

typedef enum h3_input_kind {
    H3_INPUT_AUTO = 0,
    H3_INPUT_IMAGE,
    H3_INPUT_VIDEO,
    H3_INPUT_AUDIO
} h3_input_kind;
typedef enum h3_sound_use {
    H3_SOUND_AUTO = 0,
    H3_SOUND_YES,
    H3_SOUND_NO,
    H3_SOUND_ONLY
} h3_sound_use;

/** A picture, clip or sound of the caller: a file, or its bytes in memory. */
typedef struct h3_input {
    const char *path; ///< file, or (for clips) a folder of frames; also the name shown in messages
    const void *data; ///< bytes of a file, or NULL to read `path`
    size_t size;
    h3_input_kind kind; ///< AUTO: by content
    h3_sound_use sound; ///< clips: use their own sound track (AUTO: yes, if there is one)
    double fps;         ///< folders of frames need their rate; 0 otherwise
} h3_input;

typedef struct h3_event h3_event;
/** Called on the thread that runs the request. Must not call back into the engine except h3_cancel.
 */
typedef void (*h3_event_fn)(void *user, const h3_event *ev);

/** A decoded frame. It is the decoder's own memory: copy what is needed after the call. */
typedef struct h3_frame {
    int64_t index, count; ///< frame 0, 1, ... of `count`; each once, in order
    int width, height;
    size_t stride;      ///< bytes from one row to the next
    const uint8_t *rgb; ///< [height, stride]: rows of `width` pixels, R, G, B bytes
} h3_frame;

/** Decoded sound: 32000 samples a second, both channels. Nothing is clipped: a peak may lie a
 *  little above 1. */
typedef struct h3_sound_part {
    int64_t first, n, count;   ///< samples [first, first + n) of `count`, in order without a gap
    const float *left, *right; ///< [n] each
} h3_sound_part;

/** Called on the thread that runs the request, on rank 0 alone. Returns whether to go on: false
 *  ends the request with H3_E_CANCELLED and leaves no output. Must not call back into the engine
 *  except h3_cancel. */
typedef bool (*h3_frame_fn)(void *user, const h3_frame *f);
typedef bool (*h3_sound_fn)(void *user, const h3_sound_part *s);

typedef struct h3_request {
    const char *prompt; ///< UTF-8, verbatim
    const char *task;   ///< "auto" (NULL), "t2va", "fl2va", "ref2va"
    int width, height;  ///< 0: from the first keyframe, or `aspect`
    const char *aspect; ///< "16:9", "1:1", ... or NULL
    int frames;         ///< rounded up to 17n + 5, at least 22; 0: from `seconds`
    double seconds;     ///< 0: the default length
    int steps;          ///< sigma points as the reference counts them: steps - 1 forwards
    uint64_t seed;
    const char *noise_order;         ///< "diffusers" (default) or "omni"
    double shift_video, shift_audio; ///< sigma shifts, 0: 12 and 3 (or the preset's)
    const float *sigmas;             ///< explicit base sigmas, descending to 0, or NULL
    int n_sigmas;
    const char
        *schedule; ///< "turbo4", "turbo8" or a .json file: a few-step model's schedule; or NULL
    const char *noise_path;       ///< safetensors with video and audio noise, or NULL
    const h3_input *first, *last; ///< keyframes, or NULL
    const char *fit; ///< keyframes on the canvas: "reference" (NULL), "stretch", "cover", "pad"
    const h3_input *refs; ///< in order
    int n_refs;
    /* output: at least one file or callback */
    const char *out_path;      ///< MP4
    const char *frames_dir;    ///< folder of pictures
    const char *frames_format; ///< "png" (default), "ppm"
    const char *wav_path;
    h3_frame_fn on_frame; ///< frames as they are decoded, beside files or instead of them
    h3_sound_fn on_sound; ///< the sound, all of it before the first frame
    const char *codec;    ///< "auto", "libx264", "libopenh264"
    const char *preset;
    int crf;
    bool has_metadata; ///< prompt, seed and settings in the file
    /* never lose a run */
    const char *latents_path; ///< where latents are saved before decoding; NULL: "<out>.latents",
                              ///< nowhere when no file is written
    bool keep_latents;        ///< keep them after success
    bool save_latents;        ///< default true
    const char *checkpoint_path; ///< NULL: "<out>.checkpoint"
    int checkpoint_every;        ///< steps; 0: never
    const char *resume_path;     ///< continue from a checkpoint
    bool lift_limits;            ///< accept any size and length the networks can take (tests)
    int canvas_short_edge, canvas_max_pixels, reference_short_edge; ///< 0: 768, 1032192, 2048
    h3_event_fn on_event;
    void *user;        ///< of all callbacks
    bool has_previews; ///< steps bring a rough picture now and then
} h3_request;

H3_API h3_request h3_request_default(void);

typedef enum h3_event_kind {
    H3_EVENT_PLAN = 0, ///< text: the decisions as JSON
    H3_EVENT_PHASE,    ///< phase begins: name; seconds of the one before are in H3_EVENT_PHASE_END
    H3_EVENT_PHASE_END,
    H3_EVENT_STEP,    ///< step of steps done within phase
    H3_EVENT_WARNING, ///< text
    H3_EVENT_INFO,    ///< text
    H3_EVENT_DONE     ///< text: the result as JSON
} h3_event_kind;

struct h3_event {
    h3_event_kind kind;
    const char *phase; ///< "load", "text", "encode", "sample", "decode", "sound", "mux"
    int64_t step, steps;
    double seconds;     ///< of this step or phase
    double eta_seconds; ///< to the end of the phase; < 0: unknown
    double progress;    ///< 0..1 over all phases
    const char *text;
    const uint8_t *preview; ///< STEP: RGB [height, width, 3] in false colours, or NULL
    int preview_width, preview_height;
};

typedef struct h3_phase_time {
    const char *name;
    double seconds;
    uint64_t peak_rss;
} h3_phase_time;

enum { H3_MAX_PHASES = 12 };

typedef struct h3_result {
    int width, height, frames, steps, n_forwards;
    int64_t samples;
    uint64_t seed;
    double seconds_total, step_seconds;
    uint64_t peak_rss, peak_device, scratch_bytes;
    int n_phases;
    h3_phase_time phase[H3_MAX_PHASES];
    uint64_t latent_hash; ///< FNV-1a of the final latents: equal runs have equal hashes
    char codec[32];
} h3_result;

/** Everything from prompt to file. On failure nothing is left under the output names; latents that
 *  were already saved stay, and the error sentence says so. `rs` may be NULL. */
H3_API h3_status h3_generate(h3_engine *e, const h3_request *rq, h3_result *rs);

/** Decodes saved latents: rq names outputs, codec and callbacks; the rest of it is ignored. */
H3_API h3_status h3_decode(h3_engine *e, const char *latents, const h3_request *rq, h3_result *rs);

/** What h3_generate would do, as JSON: task, canvas, frames, seconds, rows, sigmas, tiles, memory
 * by phase (of rank 0, which takes most, where there are several). `e` may be NULL: then no model
 * is needed and memory is left out. */
H3_API h3_status h3_plan_json(h3_engine *e, const h3_request *rq, char **json);

/* -------------------------------------------------------------------------------------- tools */

/** What a file or folder is: role, form, tensors, what is missing. As JSON or as text for people.
 *  `verbose` lists every tensor. */
H3_API h3_status h3_inspect(const char *path, bool as_json, bool verbose, char **out);

/** Token ids and pieces of a text as JSON. `path`: tokenizer folder or file, or a model; NULL: the
 *  built-in model's. */
H3_API h3_status h3_tokenize(const char *path, const char *text, char **json);

/** How h3_dump and h3_convert_file read and write. All zero: everything by itself, bf16, ours. */
typedef struct h3_file_opts {
    const char *qkv;    ///< row order of fused q/k/v in the file: "auto", "interleaved", "stacked"
    const char *form;   ///< "bf16" (default), "f16", "f32" (safetensors), "q8_0" (GGUF)
    const char *layout; ///< "own" (default), "original" (as released), "diffusers"
    const char *mmproj; ///< the vision file of an encoder in two files; or NULL
    int layers;         ///< an encoder's layers to keep, without norm and head; 0: all there are
    int head_dim;       ///< of a video VAE whose config is not there; 0: 64
    const h3_lora_file *loras; ///< adapters to merge into a transformer
    int n_loras;
    float lora_alpha;
    bool is_strict_lora;
    bool is_delta; ///< write only what the adapters add
} h3_file_opts;

/** Writes tensors of a checkpoint as float32 safetensors under canonical names, fused q/k/v as
 *  [q; k; v]. `name` NULL: all; one alone is as stored, without adapters. `opts` may be NULL. */
H3_API h3_status h3_dump(const char *path, const char *name, const h3_file_opts *opts,
                         const char *out_path);

/** Writes a part of a model in another form, one tensor at a time. `opts` may be NULL. */
H3_API h3_status h3_convert_file(const char *path, const h3_file_opts *opts, const char *out_path);

/** Random weights in a published form ("dit_original_bf16"): its names, types and shapes, `layers`
 * of its blocks (0: all), to try loaders and speed without the released files. The disk is looked
 * at first; the file appears when it is complete. */
H3_API h3_status h3_synth(const char *form, int layers, uint64_t seed, const char *out_path);
/** The forms that h3_synth knows and their sizes, one a line. Free with h3_string_free. */
H3_API h3_status h3_synth_list(int layers, char **text);

/** What a picture, clip or sound is, from its headers: kind ("image", "video", "audio"), format,
 *  codecs, width, height, fps, duration, frames, has_audio, channels, sample_rate, audio_duration.
 *  Needs no engine; safe from any thread. */
H3_API h3_status h3_probe(const h3_input *in, char **json);

/** The first frame of a clip as a PNG, no side longer than max_side (0: as it is). Needs no engine;
 *  safe from any thread. */
H3_API h3_status h3_thumbnail(const char *clip, const char *png, int max_side);

/** Frame folder + WAV -> MP4. rq gives out_path, codec, crf and preset. fps 0: 24. */
H3_API h3_status h3_mux_files(const char *frames_dir, const char *wav, double fps,
                              const h3_request *rq);

typedef struct h3_bench_opts {
    const char *what;    ///< "ops", "forms", "dit", "encoder", "vae", "audio", "all"
    int layers;          ///< synthetic networks: how many layers (0: as real)
    const int64_t *rows; ///< packed rows to time; NULL: 512 and 2048
    int n_rows;
    int repeat;
    bool is_tiny;     ///< reduced widths, for tests of the program itself
    const char *form; ///< "q8_0": networks with such weights; NULL: as released
} h3_bench_opts;

/** Times operations and stages on random weights of the real widths; a JSON report. */
H3_API h3_status h3_bench(h3_engine *e, const h3_bench_opts *opts, char **json);

/** Operation counters of the engine's device since it was opened, as JSON: calls, reference calls
 *  (a fast device should have none), FLOPs, seconds. "loading" tells what came of the files, and
 * the most memory that the process had; a GPU adds "ways": how often each of its ways was taken. */
H3_API h3_status h3_counters_json(h3_engine *e, char **json);

#ifdef __cplusplus
}
#endif

#endif
