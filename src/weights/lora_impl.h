/** Adapters as a checkpoint keeps them. */
#ifndef H3_WEIGHTS_LORA_IMPL_H
#define H3_WEIGHTS_LORA_IMPL_H

#include "checkpoint_impl.h"

typedef struct h3_adapter_entry {
    size_t item; ///< index into the checkpoint's items
    h3_lora l;
} h3_adapter_entry;

typedef struct h3_adapter {
    h3_manifest *m;
    h3_adapter_entry *entry;
    size_t n, cap;
} h3_adapter;

void h3_adapter_free(h3_adapter **ad);
/** Hangs the additions of all adapters onto a weight that was just bound from item `it`. */
H3_NODISCARD h3_status h3_lora_bind(h3_checkpoint *ck, const h3_item *it, h3_weight *w);

#endif
