/**
 * Adapters (LoRA) on a DiT checkpoint: added before its matrices are bound, never merged into a
 * copy. Every h3_weight bound afterwards carries the low-rank factors (weight.h, h3_lora), mapped
 * from the adapter's file, whatever the encoding of the base.
 *
 * Key forms: diffusers/PEFT (transformer_blocks, to_q/to_k/to_v, ff.net; with or without an adapter
 * name between lora_A and weight), ComfyUI and native (released names, diffusion_model. or no
 * prefix), kohya (lora_unet_ with underscores, lora_down/lora_up), DiffSynth (released names with
 * .default., q/k/v rows interleaved).
 */
#ifndef H3_WEIGHTS_LORA_H
#define H3_WEIGHTS_LORA_H

#include "checkpoint.h"

typedef struct h3_lora_opts {
    float strength;   ///< factor on the file's own scale
    float alpha;      ///< for files that hold none; 0: their scale is 1
    h3_qkv_order qkv; ///< order of fused q/k/v rows in the file; AUTO: by key form
    bool is_strict;   ///< a key without a matching matrix is an error
} h3_lora_opts;

/** What an adapter turned out to be. */
typedef struct h3_lora_report {
    int64_t n_modules, n_matched;
    int64_t rank_min, rank_max;
    float alpha_min, alpha_max; ///< of modules that have one; NaN when none has
    char form[24];              ///< "diffusers", "original", "kohya", "DiffSynth"
    char *unmatched;            ///< "a, b and 3 more", malloc'd, or NULL
} h3_lora_report;

/**
 * Adds an adapter file to `ck` (role DiT). Its mapped file lives as long as `ck`. `opts` may be
 * NULL (strength 1). Zero matches, wrong shapes, infinities, a module given twice: an error that
 * names file and module, and `ck` stays as it was. Free report->unmatched.
 */
H3_NODISCARD h3_status h3_ckpt_add_lora(h3_checkpoint *ck, const char *path,
                                        const h3_lora_opts *opts, h3_lora_report *report);

#endif
