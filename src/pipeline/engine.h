/** What an open engine holds; shared by the files of the pipeline. */
#ifndef H3_PIPELINE_ENGINE_H
#define H3_PIPELINE_ENGINE_H

#include <h3av/h3av.h>

#include "checkpoint.h"
#include "model.h"
#include "tokenizer.h"

struct h3_engine {
    h3_dev *dev;
    h3_cancel_flag cancel;
    h3_model model;
    bool is_builtin; ///< smaller defaults for size, length and steps
    uint8_t act;     ///< stream of the networks: H3_F32 or H3_BF16
    h3_ckpt_opts ckpt;
    h3_tok *tok;
    bool has_timing;
};

/** Default size, length and steps of a request that leaves them open. */
typedef struct h3_defaults {
    int width, height, frames, steps;
} h3_defaults;
h3_defaults h3_engine_defaults(const h3_engine *e); ///< e may be NULL: the released ones

/** Words of an option to a value; H3_E_ARG lists what is accepted. */
h3_status h3_parse_qkv(h3_qkv_order *out, const char *word);

#endif
