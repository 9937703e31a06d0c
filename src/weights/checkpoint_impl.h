/** Inside of h3_checkpoint, shared by checkpoint.c, bind.c, lora.c and inspect.c. */
#ifndef H3_WEIGHTS_CHECKPOINT_IMPL_H
#define H3_WEIGHTS_CHECKPOINT_IMPL_H

#include "checkpoint.h"
#include "encoding.h"
#include "name_table.h"
#include "names.h"

enum { H3_MAX_SLOTS = 3 };

/** One canonical tensor and the stored ones it is made of. */
typedef struct h3_item {
    char *name;
    h3_source src[H3_MAX_SLOTS];
    uint8_t n_src, piece, rank;
    bool is_bound, is_known;
    bool is_used; ///< bound as a matrix: its stored bytes are read while the network runs
    int64_t ne[8];
    float *made; ///< multiplied-out or computed values, owned by the checkpoint; else NULL
    h3_weight_part *expanded[H3_MAX_PARTS]; ///< quantized parts decoded at load, else NULL
    size_t expanded_bytes, expanded_from;   ///< what they take, and took as stored
} h3_item;

/** A path and what lay there (h3_path_mark). */
typedef struct h3_marked {
    char *path;
    uint64_t mark;
} h3_marked;

typedef struct h3_device_vector {
    h3_dev *dev;
    h3_tensor t;
} h3_device_vector;

struct h3_checkpoint {
    char *path;   ///< as given
    char *folder; ///< where config files are looked up
    h3_manifest *m;
    h3_naming naming;
    h3_quant_rules rules;
    json_t *quant_meta; ///< parsed _quantization_metadata, or NULL
    h3_qkv_order qkv;   ///< decided: INTERLEAVED or STACKED
    char qkv_reason[128];
    h3_quant quant;
    size_t planned_bytes; ///< expanded on a counting device: not in `keep`
    h3_item *items;
    size_t n_items, cap_items;
    h3_name_table names;
    h3_keep keep;
    h3_device_vector *vectors;
    size_t n_vectors, cap_vectors;
    char **ignored;
    size_t n_ignored;
    json_t *configs; ///< name -> parsed file
    /* Small files that were read, or were not there, when it was opened; see h3_ckpt_is_fresh. */
    h3_marked *marked;
    size_t n_marked;
    bool is_counted; ///< its files are in h3_dev.loaded
    char *located;   ///< the file that `path` stood for
    struct h3_adapter **adapters;
    size_t n_adapters;
};

/** The files of an adapter (lora.c). */
const h3_manifest *h3_adapter_files(const struct h3_adapter *ad);
const h3_item *h3_ckpt_item(const h3_checkpoint *ck, const char *name);
/** Parts of an item in canonical row order (at most H3_MAX_PARTS). */
H3_NODISCARD h3_status h3_item_parts(h3_checkpoint *ck, h3_item *it, h3_weight_part *part, int *n);
/** Replaces quantized parts by decoded ones, where the checkpoint was opened for that (expand.c).
 */
H3_NODISCARD h3_status h3_item_expand(h3_checkpoint *ck, h3_item *it, const h3_dev *d,
                                      h3_weight_part *part, int n);
/** Whether the rows of a fused q/k/v item lie (head, {q, k, v}, channel). */
bool h3_item_is_interleaved(const h3_checkpoint *ck, const h3_item *it);
/** All values of an item, canonical row order as stored (fused q/k/v not reordered). */
H3_NODISCARD h3_status h3_item_floats(h3_checkpoint *ck, h3_item *it, float *out);
/** Remembers what lies at `path` (taken over) now. */
H3_NODISCARD h3_status h3_ckpt_mark(h3_checkpoint *ck, char *path);
/** Path of the file that holds the item's first piece. */
const char *h3_item_file(const h3_checkpoint *ck, const h3_item *it);

/** Is it a text encoder of llama.cpp (of which a file holds one tower) without the vision tower? */
bool h3_ckpt_lacks_vision(const h3_checkpoint *ck);

#endif
