/** What an open engine holds; shared by the files of the pipeline. */
#ifndef H3_PIPELINE_ENGINE_H
#define H3_PIPELINE_ENGINE_H

#include <h3av/h3av.h>

#include "checkpoint.h"
#include "fit.h"
#include "kept.h"
#include "layout.h"
#include "lora.h"
#include "memo.h"
#include "model.h"
#include "preset.h"
#include "ranks.h"
#include "tokenizer.h"

enum { H3_MAX_LORAS = 16 };

/** Where weights wait for their turn. */
typedef enum h3_offload {
    H3_OFFLOAD_AUTO = 0, ///< resident while they fit, else streamed
    H3_OFFLOAD_NONE,     ///< resident
    H3_OFFLOAD_STREAM,   ///< two groups at a time
    H3_OFFLOAD_DISK,     ///< the same, straight from the files
    H3_OFFLOAD_RANKS     ///< the DiT's blocks spread over the ranks
} h3_offload;

/** Quantized weights in memory. */
typedef enum h3_quant_choice {
    H3_QUANT_AUTO = 0, ///< by memory and by what is faster, for each request
    H3_QUANT_ALWAYS_KEEP,
    H3_QUANT_ALWAYS_EXPAND
} h3_quant_choice;

struct h3_engine {
    h3_dev *dev;
    h3_comm *comm; ///< ranks, NULL: one
    h3_cancel_flag cancel;
    h3_model model;
    bool is_builtin; ///< smaller defaults for size, length and steps
    uint8_t act;     ///< stream of the networks: H3_F32 or H3_BF16
    h3_ckpt_opts ckpt;
    h3_tok *tok;
    bool has_timing;
    bool keeps;                     ///< parts stay open and results are remembered between requests
    h3_part part[2][H3_PART_KINDS]; ///< on the device, and on the counting one
    h3_dev *plan;                   ///< the counting device; NULL until the first plan
    h3_memo embeds, condition[H3_MAX_CONDITIONS], sound[H3_MAX_CONDITIONS];
    size_t ram_limit, vram_limit; ///< bytes, 0: what the machine has
    h3_offload offload;
    h3_quant_choice quant;
    char *part_notes; ///< what opening the parts found, see engine_parts.c; or NULL
    char *lora[H3_MAX_LORAS];
    float lora_strength[H3_MAX_LORAS];
    int n_loras;
    h3_lora_opts lora_opts;
    h3_preset lora_preset; ///< schedule that came with an adapter
    int has_lora_preset;
};

/** Default size, length and steps of a request that leaves them open. */
typedef struct h3_defaults {
    int width, height, frames, steps;
} h3_defaults;
h3_defaults h3_engine_defaults(const h3_engine *e); ///< e may be NULL: the released ones

/** H3_E_ARG without an engine, and with one that can only plan. */
h3_status h3_engine_can_run(const h3_engine *e);
/** Opens the headers of all parts; what there is to tell goes to e->part_notes. */
h3_status h3_engine_check_parts(h3_engine *e);
/** A tokenizer's folder or file, or a GGUF with a vocabulary in its metadata. */
h3_status h3_open_tokenizer(h3_tok **out, const char *path);

/**
 * How latents [24, t, h, w] are decoded, for the plan and for the run. On a GPU activations are
 * those of the other networks and many tiles fly together: as many as a part of its memory holds,
 * whatever is free of it now, since sums may depend on how many there are. On a host one after
 * another in f32: there the memory counts. `d` is the device, or the counting one.
 */
struct h3_video_decode_opts h3_engine_decode_opts(const h3_engine *e, const h3_dev *d,
                                                  struct h3_video_vae *v, int64_t t, int64_t h,
                                                  int64_t w);

/** Words of an option to a value; H3_E_ARG lists what is accepted. */
h3_status h3_parse_qkv(h3_qkv_order *out, const char *word);

#endif
