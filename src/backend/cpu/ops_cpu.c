/**
 * Opening the CPU: which instruction set, how many threads, and whose entries fill the table. Every
 * file of the backend exists once per instruction set; nothing else asks the processor anything.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "choice.h"
#include "cpu.h"
#include "line.h"
#include "size.h"

/* Panels and sums are walked in an order that goes through many pages: in large ones, where the
 * system has them, products take 1 to 2 % less time (Zen 4). Small workspaces would only grow. */
enum { PAGE = 1 << 12, LARGE_PAGE = 1 << 21, LARGE_WORK = 16 << 20 };

static void *work_memory(size_t bytes)
{
    void *p = NULL;
    const bool is_large = bytes >= LARGE_WORK;

    if (posix_memalign(&p, is_large ? LARGE_PAGE : PAGE, bytes) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (is_large) (void)madvise(p, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    return p;
}

h3_status h3_cpu_work(h3_dev *d, size_t bytes, void **out)
{
    h3_backend *b = d->backend;

    if (bytes > b->work_bytes) {
        const size_t want = h3_align_up(bytes, 1u << 16);
        free(b->work);
        b->work = NULL;
        b->work_bytes = 0;
        b->work = work_memory(want);
        if (!b->work) return h3_fail(H3_E_NOMEM, "no memory for %zu bytes of CPU workspace", want);
        b->work_bytes = want;
    }
    *out = b->work;
    return H3_OK;
}

static void cpu_close(h3_dev *d)
{
    if (!d->backend) return;
    free(d->backend->work);
    free(d->backend);
    d->backend = NULL;
}

/* What the threads share. Products: panels of at most 64 MB and 1024 rows, with gaps between them
 * (product.c). Convolutions: line.c's weights, which are up to 8/3 of the numbers stored. */
static size_t shared_bytes(bool is_split, int64_t rows, int64_t cols)
{
    const size_t limit = rows ? 64u << 20 : H3_CPU_LINE_SHARED;
    const size_t lanes = (size_t)(rows < 1024 ? rows : 1024);
    const size_t number =
        is_split ? 3 * sizeof(uint16_t) : sizeof(float); // operands in three pieces
    const size_t want =
        rows ? lanes * ((size_t)cols * number + 768) : (size_t)cols * 8 / 3 * sizeof(float);

    return want < limit ? want : limit;
}

/* Mirrors product.c and line.c: beside that, for each thread a tile, its sums and a piece of a
 * panel. Quantised weights add whole rows to that. */
static size_t work_bytes(const h3_dev *d, int64_t rows, int64_t cols)
{
    const bool is_split = d->backend->pairs == H3_PAIRS_AMX;
    const size_t lanes = (size_t)(rows && rows < 1024 ? rows : 1024); // of sums, NB rows each

    return shared_bytes(is_split, rows, cols) +
           (size_t)d->n_threads * ((lanes + (is_split ? 530 : 320)) * 896);
}

static int cores_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    return 1;
}

#define FILL(isa, op)                       \
    do {                                    \
        h3_cpu_fill_products_##isa(op);     \
        h3_cpu_fill_convolutions_##isa(op); \
        h3_cpu_fill_attention_##isa(op);    \
        h3_cpu_fill_rows_##isa(op);         \
        h3_cpu_fill_audio_##isa(op);        \
    } while (0)

/* Fills the table for the best instruction set and names it. H3_CPU_ISA=c|avx2|avx512 lowers the
 * choice, for tests of the other copies. */
static const char *choose(h3_dev *d)
{
    const char *limit = getenv("H3_CPU_ISA");

#if defined(__x86_64__)
    const bool any = !limit || strcmp(limit, "avx512") == 0;
    const bool upto_avx2 = any || strcmp(limit, "avx2") == 0;
    if (any && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        FILL(avx512, &d->impl);
        return "AVX-512";
    }
    if (upto_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        FILL(avx2, &d->impl);
        return "AVX2";
    }
#else
    (void)limit;
#endif
    FILL(c, &d->impl);
    return "portable C";
}

static h3_status parse_math(const char *name, h3_cpu_math *out)
{
    static const char *const names[] = {"auto", "f32", "bf16", "int8"};

    *out = H3_CPU_AUTO;
    if (!name) return H3_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (h3_cpu_math)i;
            return H3_OK;
        }
    return h3_fail(H3_E_ARG, "cpu math %s is not known; expected auto, f32, bf16 or int8", name);
}

#if defined(__x86_64__)
/* What the AVX-512 copy may use beyond f32. H3_CPU_ISA=avx512 leaves AMX out. */
static h3_status choose_low(h3_backend *b)
{
    const bool may_tile = !getenv("H3_CPU_ISA");

    b->has_vnni = __builtin_cpu_supports("avx512vnni");
    if (b->math == H3_CPU_INT8 && !b->has_vnni)
        return h3_fail(H3_E_UNSUPPORTED, "cpu math int8: this processor has no AVX-512 VNNI");
    if (b->math == H3_CPU_F32) return H3_OK;
    const h3_cpu_choice *c = h3_cpu_choose();
    b->has_amx = c->has_amx && may_tile;
    b->has_dot = b->math == H3_CPU_BF16 ? c->has_dot : c->dot_beats_f32;
    if (b->math == H3_CPU_BF16 && !c->has_dot && !b->has_amx)
        return h3_fail(H3_E_UNSUPPORTED, "cpu math bf16: this processor has no AVX-512 BF16");
    b->pairs = b->has_dot ? H3_PAIRS_DOT : H3_PAIRS_NONE;
    if (b->has_amx && (b->has_dot ? c->amx_beats_dot : c->amx_beats_f32)) b->pairs = H3_PAIRS_AMX;
    if (b->pairs == H3_PAIRS_AMX) b->amx_terms = c->amx_terms;
#ifdef H3_AMX_EMULATE // as on a processor whose VDPBF16PS is slow
    if (b->has_amx) b->pairs = H3_PAIRS_AMX, b->amx_terms = 6;
    b->has_dot = false;
#endif
    b->has_digits = c->digits_beat_f32 && b->pairs != H3_PAIRS_AMX;
    return H3_OK;
}
#endif

static h3_status choose_math(h3_backend *b, bool is_avx512)
{
#if defined(__x86_64__)
    if (is_avx512) return choose_low(b);
#endif
    (void)is_avx512;
    if (b->math == H3_CPU_BF16 || b->math == H3_CPU_INT8)
        return h3_fail(H3_E_UNSUPPORTED, "cpu math bf16 and int8 need AVX-512");
    return H3_OK;
}

h3_status h3_cpu_open(h3_dev *d, const h3_dev_opts *opts)
{
    const char *isa;
    h3_backend *b;

    d->backend = b = calloc(1, sizeof *b);
    if (!b) return h3_fail(H3_E_NOMEM, "no memory for the CPU backend");
    d->close = cpu_close;
    d->work_bytes = work_bytes;
    H3_TRY(parse_math(opts->math, &b->math));
    d->mem = H3_HOST;
    d->n_threads = opts->n_threads > 0 ? opts->n_threads : cores_allowed();
    h3_ops_ref_init(&d->impl);
    isa = choose(d);
    H3_TRY(choose_math(b, strcmp(isa, "AVX-512") == 0));
    static const char *const pairs[] = {"", ", bf16 products", ", bf16 products on AMX"};
    snprintf(d->detail, sizeof d->detail, "%s%s%s, %d thread%s", isa, pairs[b->pairs],
             b->math != H3_CPU_INT8 ? b->has_digits ? ", f32 in 8-bit digits" : ""
             : b->has_amx           ? ", int8 products on AMX"
                                    : ", int8 products",
             d->n_threads, d->n_threads == 1 ? "" : "s");
    return H3_OK;
}
