/**
 * An opened part of a model (DiT, text encoder, video VAE, audio VAE), whatever form it has on
 * disk, presented under canonical names and in canonical layout.
 *
 * Canonical = the released layout: original tensor names, mlp.fc1 rows [gate; value], AdaLN rows as
 * stored. Differences of other layouts (split or fused q/k/v, swapped halves, other names,
 * prefixes, quantization companions) are resolved here and nowhere else. Binding never copies a
 * matrix: it returns slices of the mapped files.
 *
 * A checkpoint remembers which tensors were bound; h3_ckpt_finish names those nobody asked for.
 */
#ifndef H3_WEIGHTS_CHECKPOINT_H
#define H3_WEIGHTS_CHECKPOINT_H

#include <jansson.h>

#include "dev.h"
#include "manifest.h"

typedef enum h3_role {
    H3_ROLE_UNKNOWN = 0,
    H3_ROLE_DIT,
    H3_ROLE_TEXT_ENCODER,
    H3_ROLE_VIDEO_VAE,
    H3_ROLE_AUDIO_VAE,
    H3_ROLE_LORA,
    H3_ROLE_OTHER
} h3_role;

typedef struct h3_checkpoint h3_checkpoint;

typedef enum h3_qkv_order { H3_QKV_AUTO = 0, H3_QKV_INTERLEAVED, H3_QKV_STACKED } h3_qkv_order;

typedef enum h3_nvfp4_nibble { H3_NIBBLE_AUTO = 0, H3_NVFP4_HIGH, H3_NVFP4_LOW } h3_nvfp4_nibble;
typedef enum h3_nvfp4_scales {
    H3_SCALES_AUTO = 0,
    H3_NVFP4_TILED,
    H3_NVFP4_LINEAR
} h3_nvfp4_scales;

typedef enum h3_quant {
    H3_QUANT_KEEP = 0, ///< quantized matrices stay as stored and are decoded while they are read
    H3_QUANT_EXPAND    ///< those that are read again and again are decoded when they are bound
} h3_quant;

typedef struct h3_ckpt_opts {
    h3_qkv_order qkv; ///< how fused q/k/v rows of a DiT lie; AUTO: by origin (FORMATS section 0)
    h3_nvfp4_nibble nvfp4_nibble; ///< where the even column of an NVFP4 byte lies; AUTO: by origin
    h3_nvfp4_scales nvfp4_scales; ///< how NVFP4 block scales lie; AUTO: by origin and count
    h3_quant quant;               ///< EXPAND acts on host devices only
    const char *extra;            ///< one more file to read (an encoder's mmproj GGUF), or NULL
} h3_ckpt_opts;

/**
 * Opens `path`: a safetensors file, an index.json, or a folder that holds one of them (and perhaps
 * config.json, which is read when present). Fails, naming file and tensor, when it is not a
 * checkpoint of `role`. `opts` may be NULL. Free with h3_ckpt_close; weights bound from it must be
 * dropped first (they point into its maps).
 */
H3_NODISCARD h3_status h3_ckpt_open(h3_checkpoint **out, const char *path, h3_role role,
                                    const h3_ckpt_opts *opts);
void h3_ckpt_close(h3_checkpoint **ck);

/** False when a file that it was made from (weights, index, configuration, adapters) was exchanged,
 *  written to, moved or added since: opening it again would give something else. */
bool h3_ckpt_is_fresh(const h3_checkpoint *ck);
/** Is `path` one of those files, by whatever name? */
bool h3_ckpt_reads(const h3_checkpoint *ck, const char *path);
/** Of those files, their names and times, and of h3_ckpt_fingerprint: equal only for what would
 * give the same numbers, as far as a file system tells. */
uint64_t h3_ckpt_identity(const h3_checkpoint *ck);
/** The path it was opened from, for messages. */
const char *h3_ckpt_path(const h3_checkpoint *ck);
/** Parsed config.json beside the weights, or NULL. `which` names the file ("config.json",
 *  "source/config.json", "metadata.json"): looked up beside the folder that was opened. */
const json_t *h3_ckpt_config(const h3_checkpoint *ck, const char *which);

/** What it is, by its names. (h3_ckpt_open with H3_ROLE_UNKNOWN takes anything.) */
h3_role h3_ckpt_role(const h3_checkpoint *ck);
/** How fused q/k/v rows of a DiT are read, and in a few words why. `reason` may be NULL. */
h3_qkv_order h3_ckpt_qkv(const h3_checkpoint *ck, const char **reason);
/** What is stored, before renaming. */
const h3_manifest *h3_ckpt_manifest(const h3_checkpoint *ck);
/** Canonical tensors in file order: how many, and the name of number i (NULL: not one of the
 *  model's). */
int64_t h3_ckpt_n_tensors(const h3_checkpoint *ck);
const char *h3_ckpt_tensor(const h3_checkpoint *ck, int64_t i);

/** Shape of a canonical tensor (e.g. "blocks.0.attn.qkv_proj.weight"); false when absent. */
bool h3_ckpt_shape(const h3_checkpoint *ck, const char *name, int *rank, int64_t ne[8]);
static inline bool h3_ckpt_has(const h3_checkpoint *ck, const char *name)
{
    int rank;
    int64_t ne[8];
    return h3_ckpt_shape(ck, name, &rank, ne);
}
/** How many consecutive i from 0 exist with a canonical tensor printf(pattern, i). */
int64_t h3_ckpt_count(const h3_checkpoint *ck, const char *pattern);

/**
 * Binds "<name>.weight" (and "<name>.bias" when `has_bias`) as a matrix [rows, cols]; trailing
 * extents of the file's shape are multiplied into cols (convolutions: [Co, Ci, kt, kh, kw] ->
 * [Co, Ci*kt*kh*kw]). Weight-norm pairs (weight_g/weight_v and parametrizations.weight.original0/1)
 * are multiplied out here, once, into memory owned by the checkpoint. Errors name tensor, file and
 * the shape expected.
 */
H3_NODISCARD h3_status h3_ckpt_matrix(h3_checkpoint *ck, h3_dev *d, h3_weight *out,
                                      const char *name, int64_t rows, int64_t cols, bool has_bias);

/** Binds the tensor called exactly `name` (any rank, `n` elements) as a dense f32 vector on `d`,
 * owned by the checkpoint. */
H3_NODISCARD h3_status h3_ckpt_vector(h3_checkpoint *ck, h3_dev *d, h3_tensor *out,
                                      const char *name, int64_t n);

/** The same into caller's host memory. */
H3_NODISCARD h3_status h3_ckpt_floats(h3_checkpoint *ck, float *out, const char *name, int64_t n);

/** Declares tensors that may be present and are not used: `pattern` with '*' for any run. */
void h3_ckpt_ignore(h3_checkpoint *ck, const char *pattern);

/** Fails with the first tensor that was neither bound nor ignored (and how many there are). Names
 * that no MiniMax-H3 model of this role has are not errors: see h3_ckpt_strangers. */
H3_NODISCARD h3_status h3_ckpt_finish(h3_checkpoint *ck);

/** What the bound part of a checkpoint takes: bytes, without the file's own small tables. */
typedef struct h3_ckpt_use {
    size_t matrices; ///< stored bytes of bound matrices with their scales
    int64_t largest; ///< numbers of the largest one
    int64_t cols;    ///< columns of the widest one
    size_t owned;    ///< host memory: computed values, unpacked scales, tables of names
    size_t vectors;  ///< f32 vectors where the device computes
    size_t expanded; ///< of `owned`: matrices decoded at load
} h3_ckpt_use;

/** Sums over tensors whose canonical name matches `pattern` ('*', '#'); NULL: all, with `owned` and
 *  `vectors`, which belong to the whole. */
h3_ckpt_use h3_ckpt_usage(const h3_checkpoint *ck, const char *pattern);

/** Bound matrices that H3_QUANT_EXPAND would decode: bytes as stored, and about what they would
 * take. */
void h3_ckpt_expansion(h3_checkpoint *ck, size_t *stored, size_t *expanded);

/** Names, sizes and a few bytes from the middle of every stored tensor, wherever the files lie. */
uint64_t h3_ckpt_fingerprint(const h3_checkpoint *ck);

/** The names that no such model has, shortened ("a, b, c and 4 more"), for a warning; malloc'd,
 * NULL when there are none. */
char *h3_ckpt_strangers(const h3_checkpoint *ck);

/* ---- spec tables: one row per tensor of a network ---- */

typedef enum h3_spec_kind { H3_SPEC_MATRIX = 0, H3_SPEC_VECTOR } h3_spec_kind;

/**
 * One row of a network's table. `name` is canonical, with one %d for the layer where there is one;
 * MATRIX names have no ".weight". `dim` are indices into the network's list of extents.
 */
typedef struct h3_spec {
    const char *name;
    uint8_t kind;
    bool has_bias;    ///< MATRIX only
    bool is_optional; ///< absent leaves the field zeroed
    uint8_t dim[2];   ///< MATRIX: rows, cols; VECTOR: dim[0]
    size_t offset;    ///< of the h3_weight or h3_tensor in the struct
} h3_spec;

/** Binds all rows of a table into `base` (a struct that `offset` refers to) for one layer. */
H3_NODISCARD h3_status h3_bind(h3_checkpoint *ck, h3_dev *d, const h3_spec *spec, int n,
                               const int64_t *dims, void *base, int layer);

/**
 * H3_E_NUMERIC, naming tensor and place, when a plain matrix holds NaN, infinity or more than 1e15.
 * Reads all of it (but for token tables), by several threads; the store calls it when a matrix is
 * first needed.
 */
H3_NODISCARD h3_status h3_poison_check(const h3_weight *w, int n_threads);
/** Has a device look through a matrix that it holds (h3_dev.scan): *bad tells behind the next sync,
 * and h3_poison_check then where. */
H3_NODISCARD h3_status h3_poison_scan(h3_dev *d, const h3_weight *w, int *bad);
/** The same of some rows, for a token table: `row[i]` are rows of the whole matrix. */
H3_NODISCARD h3_status h3_poison_rows(const h3_weight *w, const int32_t *row, int64_t n);

/* ---- residency ---- */

/**
 * Matrices as the device needs them. A group is a block of a network (or the rest of it). acquire
 * makes every matrix of the group ready (part[].dev set) and starts fetching the next group;
 * release allows reuse. On the CPU both are free: dev points into the map. What may stay where the
 * device computes follows dev->weight_budget, also when that changes later.
 */
typedef struct h3_store h3_store;

H3_NODISCARD h3_status h3_store_create(h3_store **out, h3_dev *d);
/** Adds a matrix to group `group` (groups count from 0 in order of use). */
H3_NODISCARD h3_status h3_store_add(h3_store *s, int group, h3_weight *w);
H3_NODISCARD h3_status h3_store_acquire(h3_store *s, int group);
void h3_store_release(h3_store *s, int group);
/** What meets the matrices of a group from now on: `rows` rows (the fewest at once) of type `act`,
 *  by products that `is_tolerant` says (h3_dev). A device may hold those that stay in the form that
 *  such products take, and in no other. Where that changes all groups come anew; none may be in
 * use.
 */
void h3_store_meets(h3_store *s, int group, h3_dtype act, int64_t rows, bool is_tolerant);
/** Bytes that the matrices take less on the device than in their files because of that, when all
 *  stay (below 0 where a form is wider than what is stored, as e4m3 than four bits), and (may be
 *  NULL) the most that a group takes as stored on its way to its form. */
int64_t h3_store_saved(const h3_store *s, size_t *on_the_way);
/** True once every group stays on the device: acquire and release have nothing more to do. */
bool h3_store_is_resident(const h3_store *s);
/** All ranks of the device acquire the same groups of this store in the same order, so it may be
 *  spread over them: h3_dev.spreads_weights. */
void h3_store_may_spread(h3_store *s);
/** Group `group` is in use, and there is time to fetch the next one from other ranks. Collective;
 *  nothing happens where the store is not spread. */
H3_NODISCARD h3_status h3_store_ahead(h3_store *s, int group);
/** Gives back what the device (or, under a budget, memory) holds of the groups; they come again
 * when they are acquired. Nothing may be in use. */
void h3_store_drop(h3_store *s);
/** Bytes of weights that the store has where the device computes. */
size_t h3_store_held(const h3_store *s);
/** The same over all stores of a device that were made while d->store_tag was `tag`, or all (-1).
 */
size_t h3_stores_held(const h3_dev *d, int tag);
/** Drops all stores of a device; none may be in use. */
void h3_stores_drop(h3_dev *d);
void h3_store_free(h3_store **s);

/** Adds every MATRIX of a spec table, bound in `base`, to a group. */
H3_NODISCARD h3_status h3_store_add_spec(h3_store *s, int group, const h3_spec *spec, int n,
                                         void *base);

#endif
