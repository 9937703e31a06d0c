/**
 * Inside of h3_manifest, shared by the readers that fill one. A reader appends a file, then its
 * entries; h3_manifest_seal builds the name table and refuses duplicates.
 */
#ifndef H3_WEIGHTS_MANIFEST_IMPL_H
#define H3_WEIGHTS_MANIFEST_IMPL_H

#include "manifest.h"
#include "name_table.h"

typedef struct h3_meta {
    char *key, *value;
} h3_meta;

/** An array of a GGUF's key-values: strings (vocabulary, merges) or 32-bit integers. */
typedef struct h3_string_list {
    char *key;
    const unsigned char *at; ///< first length field, or first integer
    uint64_t n;
    bool is_ints;
} h3_string_list;

struct h3_manifest {
    h3_entry *entries; ///< names are owned by the entry
    size_t n, cap;
    h3_name_table names;
    h3_file **files;
    uint32_t n_files;
    h3_meta *meta; ///< of the first file
    size_t n_meta, cap_meta;
    h3_string_list *lists;
    size_t n_lists;
    bool is_gguf, is_indexed;
};

/** Takes over `f` (also on failure) and reads it; several files may be added one after another. */
H3_NODISCARD h3_status h3_safetensors_read(h3_manifest *m, h3_file *f);
H3_NODISCARD h3_status h3_gguf_read(h3_manifest *m, h3_file *f);

/** Appends *f to the list of files; on failure frees it. Sets *index. */
H3_NODISCARD h3_status h3_manifest_add_file(h3_manifest *m, h3_file *f, uint32_t *index);
/** Appends an entry called name[0, n) (copied). */
H3_NODISCARD h3_status h3_manifest_add(h3_manifest *m, const h3_entry *e, const char *name,
                                       size_t n);
H3_NODISCARD h3_status h3_manifest_add_meta(h3_manifest *m, const char *key, size_t n_key,
                                            const char *value, size_t n_value);
/** Checks [from, n) for overlaps (entry names in the message). */
H3_NODISCARD h3_status h3_manifest_check_overlap(const h3_manifest *m, size_t from, bool is_strict,
                                                 size_t begin, size_t end);
/** Builds the name table. */
H3_NODISCARD h3_status h3_manifest_seal(h3_manifest *m);

#endif
