/**
 * What this process may still take; see fit.h. Every limit a Linux process can have is asked:
 * memory of the machine, control groups of both versions with all their parents, rlimits, --ram.
 * The file cache counts as free, since it gives way.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "file.h"
#include "fit.h"

/* Number behind `key` in a file of "key value" or "key: value kB" lines; false when there is none.
 */
static bool read_key(const char *path, const char *key, size_t *out)
{
    FILE *f = fopen(path, "re");
    const size_t n = strlen(key);
    char line[256];
    bool found = false;

    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long v;
        if (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != ':')) continue;
        found = sscanf(line + n + 1, " %llu", &v) == 1;
        if (found) *out = (size_t)v * (strstr(line + n, " kB") ? 1024 : 1);
    }
    fclose(f);
    return found;
}

/* A file that holds one number; "max" is SIZE_MAX. */
static bool read_number(const char *folder, const char *name, size_t *out)
{
    char path[512], text[64];
    FILE *f;
    bool ok;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "re");
    if (!f) return false;
    ok = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    if (!ok) return false;
    *out = strncmp(text, "max", 3) == 0 ? SIZE_MAX : (size_t)strtoull(text, NULL, 10);
    return true;
}

static void limit(h3_fit_room *r, size_t bytes, const char *by)
{
    if (bytes >= r->ram_free) return;
    r->ram_free = bytes;
    snprintf(r->ram_by, sizeof r->ram_by, "%s", by);
}

/* -------------------------------------------------------------------------------- control groups
 */

typedef struct group_files {
    const char *max, *used, *inactive, *active; // files, and keys of memory.stat
} group_files;

static const group_files version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file", "total_active_file"};
static const group_files version2 = {"memory.max", "memory.current", "inactive_file",
                                     "active_file"};

static void limit_by_folder(h3_fit_room *r, const char *folder, const char *name,
                            const group_files *g)
{
    size_t max, used, inactive = 0, active = 0, left;
    char stat[512], by[96];

    if (!read_number(folder, g->max, &max) || !read_number(folder, g->used, &used)) return;
    if (max >= r->ram_total) return; // no limit, whatever number stands for that
    snprintf(stat, sizeof stat, "%s/memory.stat", folder);
    (void)read_key(stat, g->inactive, &inactive);
    (void)read_key(stat, g->active, &active);
    left = max > used ? max - used : 0;
    left = left + inactive + active < max ? left + inactive + active : max;
    snprintf(by, sizeof by, "the control group %.60s", name);
    limit(r, left, by);
}

/* The group and all its parents: each may have a limit of its own. */
static void limit_by_group(h3_fit_room *r, const char *mount, const char *group,
                           const group_files *g)
{
    char folder[512], name[256];

    snprintf(name, sizeof name, "%s", group);
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, strcmp(name, "/") == 0 ? "" : name);
        limit_by_folder(r, folder, name, g);
        char *slash = strrchr(name, '/');
        if (!slash || strcmp(name, "/") == 0) return;
        slash[slash == name ? 1 : 0] = '\0';
    }
}

/* Lines of /proc/self/cgroup: "0::/path" (version 2) and "4:memory:/path" (version 1). */
static void limit_by_groups(h3_fit_room *r)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[512];

    while (f && fgets(line, sizeof line, f)) {
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (!second) continue;
        line[strcspn(line, "\n")] = '\0';
        *second = '\0';
        if (first[1] == '\0')
            limit_by_group(r, "/sys/fs/cgroup", second + 1, &version2);
        else if (strstr(first + 1, "memory"))
            limit_by_group(r, "/sys/fs/cgroup/memory", second + 1, &version1);
    }
    if (f) fclose(f);
}

/* --------------------------------------------------------------------------------------- others */

size_t h3_fit_held(void)
{
    unsigned long long total, resident, shared;
    FILE *f = fopen("/proc/self/statm", "re");
    size_t n = 0;

    if (f && fscanf(f, "%llu %llu %llu", &total, &resident, &shared) == 3 && resident > shared)
        n = (size_t)(resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
    if (f) fclose(f);
    return n;
}

static void limit_by_rlimit(h3_fit_room *r, int which, const char *key, const char *by)
{
    struct rlimit lim;
    size_t used = 0;

    if (getrlimit((__rlimit_resource_t)which, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY) return;
    (void)read_key("/proc/self/status", key, &used);
    limit(r, lim.rlim_cur > used ? (size_t)lim.rlim_cur - used : 0, by);
}

static void find_disk(h3_fit_room *r, const char *output)
{
    const char *slash = output ? strrchr(output, '/') : NULL;
    struct statvfs v;

    r->disk_free = SIZE_MAX;
    snprintf(r->disk_path, sizeof r->disk_path, "%.*s", slash ? (int)(slash - output) + 1 : 1,
             slash ? output : ".");
    if (statvfs(r->disk_path, &v) == 0) r->disk_free = (size_t)v.f_bavail * (size_t)v.f_frsize;
}

h3_fit_room h3_fit_room_now(const char *output, size_t ram_limit)
{
    h3_fit_room r = {.held = h3_fit_held(), .ram_free = SIZE_MAX};
    size_t n = 0;

    r.ram_total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (read_key("/proc/meminfo", "MemAvailable", &n)) limit(&r, n, "the machine");
    limit_by_groups(&r);
    limit_by_rlimit(&r, RLIMIT_AS, "VmSize", "ulimit -v");
    limit_by_rlimit(&r, RLIMIT_DATA, "VmData", "ulimit -d");
    if (ram_limit) limit(&r, ram_limit > r.held ? ram_limit - r.held : 0, "--ram");
    find_disk(&r, output);
    return r;
}
