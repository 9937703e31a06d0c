/**
 * Every fuzz target over its corpus, each file as it is and in a number of mutations from a fixed
 * seed. No oracle but the sanitizers, the asserts, and a limit of two seconds for each input.
 *
 *   fuzz_replay [MUTATIONS [TARGET]]
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file.h"
#include "targets.h"
#include "test_models.h"

#define HOSTILE H3_SOURCE_DIR "/tests/data/formats/hostile"

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

/* One to four edits: a bit, a byte, an interesting number, a run moved, a cut. */
static size_t mutate(uint8_t *d, size_t n)
{
    static const uint64_t numbers[] = {0,          1,          0x7f,       0xff,
                                       0x7fff,     0xffff,     0x7fffffff, 0xffffffff,
                                       1ull << 40, 1ull << 62, 1ull << 63, UINT64_MAX};
    static const char bytes[] = "0123456789-.,:[]{}\"\\eE \0";

    for (uint64_t k = rng() % 4 + 1; k > 0 && n > 0; k--) {
        const size_t at = rng() % n, to = rng() % n, len = rng() % 16;
        switch (rng() % 6) {
        case 0:
            d[at] ^= (uint8_t)(1u << rng() % 8);
            break;
        case 1:
            d[at] = (uint8_t)bytes[rng() % (sizeof bytes - 1)];
            break;
        case 2: {
            const uint64_t v = numbers[rng() % (sizeof numbers / sizeof *numbers)];
            memcpy(d + at, &v, n - at < 8 ? n - at : 8);
            break;
        }
        case 3:
            if (at + len <= n && to + len <= n) memmove(d + to, d + at, len);
            break;
        case 4:
            d[at] = (uint8_t)rng();
            break;
        default:
            if (rng() % 8 == 0) n = at;
            break;
        }
    }
    return n;
}

/* Of this program's own work: how busy the machine is says nothing about a parser. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_one(const fuzz_target *t, const char *file, const uint8_t *d, size_t n)
{
    const double start = now();

    t->run(d, n);
    if (now() - start < 2.0) return 0;
    fprintf(stderr, "%s: %s took %.1f s\n", t->name, file, now() - start);
    return 1;
}

static int run_file(const fuzz_target *t, const char *path, long mutations)
{
    char *text;
    size_t n;
    uint8_t *copy;
    int slow;

    if (h3_file_read(&text, &n, path, 64 << 20) != H3_OK) return 0;
    slow = run_one(t, path, (uint8_t *)text, n);
    copy = malloc(n + 1);
    if (!copy) abort();
    for (long i = 0; i < mutations && n < 1 << 20; i++) {
        memcpy(copy, text, n);
        slow += run_one(t, path, copy, mutate(copy, n));
    }
    free(copy);
    free(text);
    return slow;
}

static int run_target(const fuzz_target *t, long mutations, int *n_files)
{
    const char *hostile = test_model(HOSTILE);
    DIR *d = opendir(hostile);
    const struct dirent *e;
    int slow = 0;

    while (d && (e = readdir(d))) {
        char *path;
        if (strncmp(e->d_name, t->corpus, strlen(t->corpus)) != 0) continue;
        path = t->inside ? h3_strdupf("%s/%s/%s", hostile, e->d_name, t->inside)
                         : h3_strdupf("%s/%s", hostile, e->d_name);
        slow += run_file(t, path, mutations);
        ++*n_files;
        free(path);
    }
    if (d) closedir(d);
    return slow;
}

int main(int argc, char **argv)
{
    const long mutations = argc > 1 ? strtol(argv[1], NULL, 10) : 20;
    int slow = 0;

    for (size_t i = 0; i < n_fuzz_targets; i++) {
        int n_files = 0;
        if (argc > 2 && strcmp(argv[2], fuzz_targets[i].name) != 0) continue;
        slow += run_target(&fuzz_targets[i], mutations, &n_files);
        printf("%s: %d files, %ld mutations each\n", fuzz_targets[i].name, n_files, mutations);
        if (n_files == 0) return 1;
    }
    return slow != 0;
}
