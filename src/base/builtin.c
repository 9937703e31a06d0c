/** The table of linked-in files; see builtin.h. Lookup is linear: a few dozen names, asked for
 * once. */
#include "builtin.h"

#include <string.h>

static const h3_builtin_file *files;
static size_t n_files;
static const char prefix[] = "builtin:";

void h3_builtin_register(const h3_builtin_file *table, size_t n)
{
    files = table;
    n_files = n;
}

bool h3_is_builtin(const char *path)
{
    return strncmp(path, prefix, sizeof prefix - 1) == 0;
}

const char *h3_builtin_name(size_t i)
{
    return i < n_files ? files[i].name : NULL;
}

/* Advances past the prefix and any slashes. */
static const char *inner(const char *path)
{
    path += sizeof prefix - 1;
    while (*path == '/')
        path++;
    return path;
}

/* Does `name` equal `path` (with doubled slashes and "./" in path ignored)? *is_below when name
 * goes on after a slash where path ends. */
static bool match(const char *name, const char *path, bool *is_below)
{
    *is_below = false;
    while (*path) {
        if (*path == '/') {
            while (*path == '/')
                path++;
            if (!*path) break;
            if (*name++ != '/') return false;
            continue;
        }
        if (*name++ != *path++) return false;
    }
    *is_below = *name == '/';
    return *name == '\0';
}

const h3_builtin_file *h3_builtin_find(const char *path)
{
    bool is_below;

    if (!h3_is_builtin(path)) return NULL;
    for (size_t i = 0; i < n_files; i++)
        if (match(files[i].name, inner(path), &is_below)) return &files[i];
    return NULL;
}

bool h3_builtin_is_dir(const char *path)
{
    bool is_below;

    if (!h3_is_builtin(path)) return false;
    if (!*inner(path)) return n_files > 0;
    for (size_t i = 0; i < n_files; i++) {
        match(files[i].name, inner(path), &is_below);
        if (is_below) return true;
    }
    return false;
}
