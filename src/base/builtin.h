/**
 * Files inside the program: a path "builtin:NAME/..." reads from a table linked into the library
 * (the small default model). h3_file_map, h3_path_exists and h3_path_is_dir understand such paths,
 * so no other code knows the difference.
 */
#ifndef H3_BASE_BUILTIN_H
#define H3_BASE_BUILTIN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct h3_builtin_file {
    const char *name;          ///< "FL2VA/model_index.json"
    const unsigned char *data; ///< 64-byte aligned
    const unsigned char *end;
} h3_builtin_file;

/** Makes the table known; called once by the pipeline before anything opens a file. */
void h3_builtin_register(const h3_builtin_file *table, size_t n);

/** The file behind a "builtin:" path; NULL when the path is an ordinary one or names nothing. */
const h3_builtin_file *h3_builtin_find(const char *path);

bool h3_is_builtin(const char *path);
/** Name of file number i ("FL2VA/model_index.json"); NULL behind the last. */
const char *h3_builtin_name(size_t i);
/** True when some builtin file lies below this "builtin:" path. */
bool h3_builtin_is_dir(const char *path);

#endif
