/**
 * Files: read-only maps, whole small files, and atomic writes.
 */
#ifndef H3_BASE_FILE_H
#define H3_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "status.h"

typedef struct h3_file {
    const unsigned char *data; ///< NULL when size is 0
    size_t size;
    char *path;               ///< as given, for messages
    int fd;                   ///< -1 for a builtin file
    bool is_builtin;          ///< part of the program's own image: never unmapped
    uint64_t mark;            ///< h3_path_mark of the file that was mapped
    struct h3_file *next_map; ///< list of live maps, kept by file.c
} h3_file;

/** Maps `path` read-only (private, no readahead forced). Directories and unreadable files fail by
 *  name. Free with h3_file_unmap. */
H3_NODISCARD h3_status h3_file_map(h3_file **out, const char *path);
void h3_file_unmap(h3_file **f);

/** Tells the system that [offset, offset + bytes) will not be read again soon: clean pages leave
 *  this process's resident set. A hint; never fails. */
void h3_file_done(const h3_file *f, size_t offset, size_t bytes);

/**
 * The same by address, for holders of pointers into maps. What lies in no live map of h3_file_map
 * (heap, built-in files) is left alone. Callable from any thread.
 *   ahead  starts reading; may block until the reads are queued
 *   done   pages leave the resident set; with `drops_cache` also the system's file cache, so that a
 *          model larger than memory does not push out what is read again soon
 */
void h3_map_ahead(const void *p, size_t bytes);
/** Copies bytes of a live map by reading its file: no page of it is mapped for that (and has to be
 *  unmapped again, which takes longer than the copy). False, and nothing promised about `dst`, for
 *  what lies in no such map or cannot be read. The map must outlive the call. */
bool h3_map_read(void *dst, const void *p, size_t bytes);
void h3_map_done(const void *p, size_t bytes, bool drops_cache);

/** Reads a whole file of at most `max_bytes` into a malloc'd, NUL-terminated buffer (`*size`
 * without the NUL). H3_E_MISSING when it does not exist, H3_E_FORMAT when it is larger. */
H3_NODISCARD h3_status h3_file_read(char **out, size_t *size, const char *path, size_t max_bytes);

/** Which file or folder lies there, and since when: another number after it was exchanged or
 * written to. 0 when there is none. */
uint64_t h3_path_mark(const char *path);
bool h3_path_exists(const char *path);
bool h3_path_is_dir(const char *path);
/** Do both exist and are one file (or folder), whatever they are called? NULL is none. */
bool h3_path_is_same(const char *a, const char *b);

/** Whether the file is there, or the folder can be listed: H3_E_MISSING "PATH: no such WHAT", or
 * H3_E_IO with the reason (no permission, links in a circle) of one that is. */
H3_NODISCARD h3_status h3_path_need(const char *path, const char *what);

/** malloc'd "dir/name"; never NULL (aborts only when malloc of a few bytes fails). */
char *h3_path_join(const char *dir, const char *name);

/** malloc'd path of `name` in the user's cache: H3_CACHE_DIR, else XDG_CACHE_HOME/h3av, else
 *  ~/.cache/h3av. NULL when nothing is to be kept (H3_CACHE_DIR set to nothing) or none of them is.
 */
char *h3_cache_path(const char *name);

/** Makes the folders above `path`, as far as they can be: opening the file then tells. */
void h3_make_folders_above(const char *path);

/** malloc'd printf; never NULL. */
char *h3_strdupf(const char *fmt, ...) H3_PRINTF(1, 2);

/**
 * A file that appears under its final name only when it is complete: written to a hidden sibling
 * ".<name>.part-<pid>-<n>", synced, then renamed. h3_atomic_abort removes the sibling. Both clear
 * *a.
 */
typedef struct h3_atomic {
    FILE *fp; ///< NULL when the caller writes the temporary by name (h3_atomic_reserve)
    char *path, *tmp;
} h3_atomic;

H3_NODISCARD h3_status h3_atomic_open(h3_atomic *a, const char *path);
/** Only reserves the temporary name (a->tmp) and checks that the folder is writable. */
H3_NODISCARD h3_status h3_atomic_reserve(h3_atomic *a, const char *path);
/** Removes temporaries of `path` whose process no longer lives (it was killed). */
void h3_atomic_sweep(const char *path);
H3_NODISCARD h3_status h3_atomic_commit(h3_atomic *a);
void h3_atomic_abort(h3_atomic *a);
/** Unlinks every temporary file of this process; async-signal-safe, the last act before an end. */
void h3_atomic_drop_all(void);

#endif
