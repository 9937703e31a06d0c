/**
 * Does it fit? What every phase of a request takes, before any of it runs, beside what is free.
 *
 * Nothing is estimated that can be counted: each part of the model is opened on a counting device
 * and its own forward, the same code that runs later, is walked through for the real shapes. What
 * the networks do not allocate themselves (rows of noise, latents, sound, the encoder of the file)
 * is listed beside it. Weights are mapped: their pages can leave again, so on a host device they
 * are a wish, not a need; a device with its own memory needs them there, all or a ring of groups.
 */
#ifndef H3_PIPELINE_FIT_H
#define H3_PIPELINE_FIT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "status.h"

struct h3_job;

typedef enum h3_fit_kind {
    H3_FIT_HOST = 0, ///< anonymous memory, beyond what the process holds when the plan is made
    H3_FIT_DEVICE,   ///< memory of the device, without streamed weights
    H3_FIT_PINNED,   ///< host memory that a device copies from
    H3_FIT_MAPPED,   ///< weights, as stored in their files
    H3_FIT_DISK,     ///< files written, temporary ones included
    H3_FIT_KINDS
} h3_fit_kind;

typedef struct h3_fit_row {
    const char *name; ///< static
    h3_fit_kind kind;
    size_t bytes;
} h3_fit_row;

enum { H3_FIT_MAX_ROWS = 16 };

/** Rows that are alive together when the phase takes most. */
typedef struct h3_fit_phase {
    const char *name;
    bool is_used;
    h3_fit_row row[H3_FIT_MAX_ROWS];
    int n_rows;
    size_t sum[H3_FIT_KINDS];
    size_t released; ///< of what was held at planning, bytes that are gone by then
    size_t spread;   ///< bytes of weights on each of several ranks that share them; 0: they cannot
    bool is_spread;  ///< they do: budget says how much of them a rank holds
    size_t widened;  ///< what of the weights a device's forms take beyond their files
    size_t ring;     ///< two groups of weights: the least that must be resident to stream the rest
    size_t budget;   ///< bytes of weights that may stay resident where the device computes; 0: all
    size_t pinned;   ///< host memory for pinned copies of streamed weights: what is to spare
} h3_fit_phase;

typedef enum h3_fit_name {
    H3_FIT_TEXT = 0,
    H3_FIT_ENCODE,
    H3_FIT_SAMPLE,
    H3_FIT_SOUND,
    H3_FIT_DECODE,
    H3_FIT_MUX,
    H3_FIT_PHASES
} h3_fit_name;

/** What the machine has for this process, the smallest of all limits. */
typedef struct h3_fit_room {
    size_t held;      ///< anonymous memory of the process at the time of the plan
    size_t ram_total; ///< of the machine
    size_t ram_free;  ///< what the process may still take
    char ram_by[96];  ///< which limit that is: "the machine", "cgroup /x", "--ram", ...
    bool has_device;  ///< the device has memory of its own
    size_t vram_total, vram_free;
    char vram_by[32];
    size_t disk_free; ///< SIZE_MAX: not known
    char disk_path[256];
} h3_fit_room;

/** What becomes of the DiT's quantized matrices, and why. */
typedef struct h3_fit_quant {
    bool is_expanded;
    size_t stored, expanded; ///< bytes of those that are read by every step; 0: none is quantized
    const char *why;         ///< static
} h3_fit_quant;

typedef struct h3_fit_table {
    h3_fit_quant quant;
    int ranks; ///< that share the request; what follows is rank 0's
    h3_fit_phase phase[H3_FIT_PHASES];
    h3_fit_room room;
} h3_fit_table;

/** Plans j after h3_job_load and h3_job_present. Opens the parts of the model, header and small
 *  vectors only. */
H3_NODISCARD h3_status h3_fit_plan(h3_fit_table *out, const struct h3_job *j);

/** H3_E_NOMEM (memory) or H3_E_IO (disk) when a phase does not fit; the sentence names the phase,
 * the numbers and the option that makes it smaller. */
H3_NODISCARD h3_status h3_fit_check(const h3_fit_table *f);

/** Bytes of weights that may stay resident in a phase; 0: all of them fit. For
 * h3_dev.weight_budget. */
size_t h3_fit_budget(const h3_fit_table *f, h3_fit_name phase);

/** The whole table. */
json_t *h3_fit_json(const h3_fit_table *f);
/** The same for people, one line a phase; malloc'd. */
char *h3_fit_text(const h3_fit_table *f);

/* ---- fit_room.c ---- */

/** What is free now. `outputs` is where the largest file will go; the limits are the caller's, 0
 * when not given. */
h3_fit_room h3_fit_room_now(const char *output, size_t ram_limit);
/** Anonymous resident bytes of this process. */
size_t h3_fit_held(void);

#endif
