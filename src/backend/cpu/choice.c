/** The measured choice and where it is kept; see choice.h. */
#include "choice.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>

#include "file.h"

/* See gemm.h, which needs vectors. */
double h3_cpu_time_f32_avx512(void);
double h3_cpu_time_bf16_avx512(void);
double h3_cpu_time_digits_avx512(void);
double h3_cpu_time_amx_avx512(int n_a, int n_b);

static h3_cpu_choice the;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* CPUID leaf 7 names AMX; the kernel hands its 8 KB of state only to processes that ask. */
static bool has_amx(void)
{
#ifdef H3_AMX_EMULATE
    return true;
#elif defined(SYS_arch_prctl)
    enum { TILES = 1 << 24, BF16 = 1 << 22, INT8 = 1 << 25, REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & (TILES | BF16 | INT8)) != (TILES | BF16 | INT8)) return false;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static void keep_least(double *best, double t)
{
    if (t < *best) *best = t;
}

/* In turn and by the least: whatever else runs here delays all of them or none. */
static void measure(h3_cpu_choice *c)
{
    enum { ROUNDS = 10 };
    double f32 = 1, dot = 1, digits = 1, amx = 1, three = 1, six = 1;

    for (int i = 0; i < ROUNDS; i++) {
        keep_least(&f32, h3_cpu_time_f32_avx512());
        if (c->has_dot) keep_least(&dot, h3_cpu_time_bf16_avx512());
        if (c->has_vnni) keep_least(&digits, h3_cpu_time_digits_avx512());
        if (!c->has_amx) continue;
        keep_least(&amx, h3_cpu_time_amx_avx512(1, 1));
        keep_least(&three, h3_cpu_time_amx_avx512(1, 3));
        keep_least(&six, h3_cpu_time_amx_avx512(3, 3));
    }
    c->dot_beats_f32 = c->has_dot && dot < f32;
    c->digits_beat_f32 = c->has_vnni && digits < f32;
    c->amx_beats_f32 = c->has_amx && amx < f32;
    c->amx_beats_dot = c->has_amx && amx < dot;
    /* On a quiet machine six take half as long as one of f32, which leaves time to make pieces; a
     * neighbour on the same tiles must not turn that around (one did by a little: the choice stays
     * on the machine, and the video decoder took a quarter longer from then on). */
    c->amx_terms = 1.25 * f32 > six ? 6 : f32 > three ? 3 : 1;
}

/* The file is for one kind of processor and one version of the measurement. */
static char *file_name(const h3_cpu_choice *c)
{
    unsigned brand[12] = {0};
    uint32_t h = 2166136261u;
    char name[64];

    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002 + i, &brand[4 * i], &brand[4 * i + 1], &brand[4 * i + 2],
                    &brand[4 * i + 3]);
    for (size_t i = 0; i < sizeof brand; i++)
        h = (h ^ ((const unsigned char *)brand)[i]) * 16777619u;
    snprintf(name, sizeof name, "cpu-5-%08x-%d%d%d", (unsigned)h, c->has_dot, c->has_vnni,
             c->has_amx);
    return h3_cache_path(name);
}

static bool read_choice(const char *path, h3_cpu_choice *c)
{
    FILE *f = fopen(path, "re");
    int v[4] = {0}, terms = 0;
    bool is_whole;

    if (!f) return false;
    is_whole =
        fscanf(f, "dot %d digits %d amx %d %d terms %d", &v[0], &v[1], &v[2], &v[3], &terms) == 5 &&
        (terms == 1 || terms == 3 || terms == 6);
    fclose(f);
    if (!is_whole) return false;
    c->dot_beats_f32 = c->has_dot && v[0];
    c->digits_beat_f32 = c->has_vnni && v[1];
    c->amx_beats_f32 = c->has_amx && v[2];
    c->amx_beats_dot = c->has_amx && v[3];
    c->amx_terms = terms;
    return true;
}

/* Of several processes that measure at once the first one's answer is everyone's: link() does not
 * replace. Where nothing can be kept the measurement has to do. */
static void keep_choice(const char *path, h3_cpu_choice *c)
{
    char *temporary = h3_strdupf("%s.%ld", path, (long)getpid());
    FILE *f;

    h3_make_folders_above(path);
    f = fopen(temporary, "wxe");
    if (!f) goto done;
    const int n = fprintf(f, "dot %d digits %d amx %d %d terms %d\n", c->dot_beats_f32,
                          c->digits_beat_f32, c->amx_beats_f32, c->amx_beats_dot, c->amx_terms);
    if (fclose(f) == 0 && n > 0 && link(temporary, path) != 0 && !read_choice(path, c))
        (void)rename(temporary, path); // no hard links here
    (void)unlink(temporary);
done:
    free(temporary);
}

static void decide(void)
{
    char *path;

    the.has_dot = __builtin_cpu_supports("avx512bf16");
    the.has_vnni = __builtin_cpu_supports("avx512vnni");
    the.has_amx = has_amx();
    path = file_name(&the);
    if (!path || !read_choice(path, &the)) {
        measure(&the);
        if (path) keep_choice(path, &the);
    }
    free(path);
}

const h3_cpu_choice *h3_cpu_choose(void)
{
    pthread_once(&once, decide);
    return &the;
}
#else
const h3_cpu_choice *h3_cpu_choose(void)
{
    static const h3_cpu_choice nothing = {.amx_terms = 1};
    return &nothing;
}
#endif
