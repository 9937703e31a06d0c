/**
 * What a container holds: names, shapes, types and where the bytes are. Filled by safetensors.c
 * (one file, or a sharded index) and gguf.c; nothing is interpreted here.
 */
#ifndef H3_WEIGHTS_MANIFEST_H
#define H3_WEIGHTS_MANIFEST_H

#include "file.h"
#include "tensor.h"

typedef struct h3_entry {
    const char *name;
    uint8_t dtype;     ///< h3_dtype; H3_DTYPE_COUNT when the type is a ggml block type
    uint8_t ggml_type; ///< valid when dtype is H3_DTYPE_COUNT
    uint8_t rank;      ///< 0..8
    uint32_t file;     ///< index into h3_manifest.files
    int64_t ne[8];     ///< outermost first
    const unsigned char *data;
    size_t offset, bytes; ///< offset in the file
} h3_entry;

typedef struct h3_manifest h3_manifest;

/** Opens a .safetensors, .gguf or index.json file, or a folder with one of them, by magic. */
H3_NODISCARD h3_status h3_manifest_open(h3_manifest **out, const char *path);
void h3_manifest_close(h3_manifest **m);

/** The file that h3_manifest_open would open for `path` (itself, or the one a folder holds).
 * malloc'd. */
H3_NODISCARD h3_status h3_manifest_locate(char **file, const char *path);
/** Reads one more container into an open manifest (an encoder's separate vision file). */
H3_NODISCARD h3_status h3_manifest_append(h3_manifest *m, const char *path);

/** Which container it came from; is_indexed: a sharded safetensors index. */
bool h3_manifest_is_gguf(const h3_manifest *m);
bool h3_manifest_is_indexed(const h3_manifest *m);

int64_t h3_manifest_count(const h3_manifest *m);
/** Entry i in file order. */
const h3_entry *h3_manifest_at(const h3_manifest *m, int64_t i);
/** NULL when absent. */
const h3_entry *h3_manifest_find(const h3_manifest *m, const char *name);
/** Value of a string in __metadata__ (safetensors) or a string KV (GGUF) of the first file, or
 * NULL. */
const char *h3_manifest_meta(const h3_manifest *m, const char *key);
/** A string array among a GGUF's key-values (vocabulary, merges): its length, or -1 when absent. */
int64_t h3_manifest_n_strings(const h3_manifest *m, const char *key);
/** Calls `visit` for each string of the array; `s` is not NUL-terminated. */
void h3_manifest_strings(const h3_manifest *m, const char *key,
                         void (*visit)(void *user, int64_t i, const char *s, size_t n), void *user);
/** Copies an array of exactly `n` 32-bit integers among a GGUF's key-values; false when there is no
 * such array. */
bool h3_manifest_ints(const h3_manifest *m, const char *key, int32_t *out, int64_t n);
const h3_file *h3_manifest_file(const h3_manifest *m, uint32_t i);
uint32_t h3_manifest_n_files(const h3_manifest *m);

#endif
