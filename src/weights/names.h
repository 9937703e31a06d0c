/**
 * What tensors are called: which part of a model a set of names is, and the canonical name of each.
 *
 * Canonical names are the released ones (checkpoint.h). Other layouts rename, split and swap; those
 * rules are tables in names.c and nowhere else.
 */
#ifndef H3_WEIGHTS_NAMES_H
#define H3_WEIGHTS_NAMES_H

#include "checkpoint.h"

typedef enum h3_layout {
    H3_LAYOUT_ORIGINAL = 0, ///< released names
    H3_LAYOUT_DIFFUSERS,
    H3_LAYOUT_COMFY, ///< encoder: model.layers, visual
    H3_LAYOUT_LLAMA  ///< encoder: blk, v.blk
} h3_layout;

typedef struct h3_naming {
    h3_role role;
    h3_layout layout;
    const char *prefix; ///< in front of the model's names, "" when none
    char other[64];     ///< what it is when role is H3_ROLE_OTHER
    int deepstack[8];   ///< LLAMA vision: layer numbers, ascending
    int n_deepstack;
} h3_naming;

/** How a source tensor contributes to its canonical one. */
typedef enum h3_piece {
    H3_PIECE_WHOLE = 0,
    H3_PIECE_STACK, ///< one of three row blocks (slot 0 q, 1 k, 2 v)
    H3_PIECE_SWAP,  ///< whole, its two halves of rows swapped
    H3_PIECE_NORM,  ///< weight norm: slot 0 g, 1 v
    H3_PIECE_FRAME  ///< one time slice of the patch kernel: slot 0, 1
} h3_piece;

/** Companions of a quantized matrix, by suffix of the module's name. */
typedef enum h3_companion {
    H3_COMP_NONE = 0,
    H3_COMP_SCALE,      ///< .weight_scale (also GGUF "<tensor>_scale")
    H3_COMP_SCALE_2,    ///< .weight_scale_2
    H3_COMP_S_REL,      ///< .weight_s_rel
    H3_COMP_S_CHANNEL,  ///< .weight_s_channel
    H3_COMP_CODEBOOK,   ///< .weight_codebook
    H3_COMP_CORRECTION, ///< .weight_correction
    H3_COMP_PRE_QUANT,  ///< .pre_quant_scale
    H3_COMP_INPUT,      ///< .input_scale: of run-time activation quantizers, not used
    H3_COMP_TAG,        ///< .comfy_quant
    H3_COMP_COUNT
} h3_companion;

typedef struct h3_canonical {
    char name[256]; ///< of the tensor; for a companion that of its matrix ("x.weight")
    uint8_t piece, slot, companion;
} h3_canonical;

/** Looks at all names of a manifest. Never fails: role H3_ROLE_UNKNOWN says "nothing known". */
void h3_names_detect(h3_naming *out, const h3_manifest *m);

/** `name` without the prefix, where it has it. */
const char *h3_names_strip(const char *prefix, const char *name);

/** Canonical form of one source name; false when it is too long to be one of ours. */
bool h3_names_canonical(h3_canonical *out, const h3_naming *n, const char *source);

/** The name that diffusers (transformers for the encoder) has for a canonical tensor; `slot` 0, 1,
 * 2 picks q, k or v of a fused one. malloc'd. */
char *h3_names_diffusers(h3_role role, const char *canonical, int slot);

/** Whether a canonical name belongs to a model of that role (by pattern, any layer number). */
bool h3_names_known(h3_role role, const char *name);

/** "MiniMax-H3 DiT", "text encoder", ... */
const char *h3_role_name(h3_role r);

/** '*' matches any run. '#' matches one run of digits. */
bool h3_name_match(const char *pattern, const char *name);

#endif
