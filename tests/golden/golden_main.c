/**
 * h3av-golden [--device NAME] [--ranks N] [--verbose] PATH...: recomputes the stage behind every
 * golden file and compares. Goldens are safetensors with their metadata, tables (TSV, JSON, JSON
 * lines) and fingerprints. A folder is walked; files that are no goldens of a known kind fail the
 * run when they are safetensors with golden metadata or are named themselves; the rest (models,
 * tolerances, costs) is counted.
 *
 * With --ranks the DiT's kinds run on so many processes, a GPU each, and every one compares; the
 * first one speaks.
 *
 * Exit status 0 only if at least one comparison was made and every one held.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "file.h"
#include "golden.h"
#include "golden_read.h"
#include "suffix.h"

static const golden_kind *const all_kinds[] = {
#ifdef GOLDEN_TABLES
    golden_kinds_tables,
#endif
#ifdef GOLDEN_PLAN
    golden_kinds_plan,
#endif
#ifdef GOLDEN_TEXT
    golden_kinds_text,
#endif
#ifdef GOLDEN_MEDIA
    golden_kinds_media,
#endif
#ifdef GOLDEN_DIT
    golden_kinds_dit,
#endif
#ifdef GOLDEN_ENCODER
    golden_kinds_encoder,
#endif
#ifdef GOLDEN_VIDEO_VAE
    golden_kinds_video_vae,
#endif
#ifdef GOLDEN_AUDIO_VAE
    golden_kinds_audio_vae,
#endif
#ifdef GOLDEN_PIPELINE
    golden_kinds_pipeline,
#endif
    NULL};

typedef struct totals {
    int n_files, n_failed, n_compared, n_skipped;
    bool is_verbose;
    const char *device;
    h3_comm *comm;
} totals;

/* Several kinds may know parts of one file (ids here, towers there): all that match run. */
static void run_file(totals *t, const char *path)
{
    golden g = {.is_verbose = t->is_verbose, .device = t->device, .comm = t->comm};
    h3_status st = golden_read(&g, path);
    int n_kinds = 0;

    if (st == H3_OK)
        for (int k = 0; all_kinds[k]; k++)
            for (const golden_kind *kind = all_kinds[k]; kind->name && st == H3_OK; kind++)
                if (kind->match(&g)) {
                    n_kinds++;
                    st = kind->run(&g);
                }
    const bool ok = st == H3_OK && g.n_compared > 0 && g.n_failed == 0;
    t->n_files++;
    t->n_compared += g.n_compared;
    t->n_failed += !ok;
    printf("%-4s %s: %d compared, worst %.3g of the tolerance%s%s%s\n", ok ? "ok" : "FAIL", path,
           g.n_compared, g.worst, g.worst_name[0] ? " at " : "", g.worst_name,
           n_kinds ? "" : " (no known kind of golden)");
    if (st != H3_OK) printf("  error: %s\n", h3_error());
    fflush(stdout);
    golden_free(&g);
}

static bool is_known(const golden *g)
{
    for (int k = 0; all_kinds[k]; k++)
        for (const golden_kind *kind = all_kinds[k]; kind->name; kind++)
            if (kind->match(g)) return true;
    return false;
}

/* A checkpoint has no golden metadata, and other tables of a folder tell what was measured: they
 * are no expectation. A golden that cannot be read is run, and fails there. */
static bool is_golden_file(const char *path)
{
    static const char *const endings[] = {".safetensors", ".tsv", ".jsonl", ".json"};
    golden g = {.device = "cpu"};
    size_t k = 0;

    while (k < sizeof endings / sizeof *endings && !h3_ends_with(path, endings[k]))
        k++;
    if (k == sizeof endings / sizeof *endings) return false;
    const h3_status st = golden_read(&g, path);
    const bool yes = g.is_golden || (k > 0 && st == H3_OK && is_known(&g));
    golden_free(&g);
    return yes;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void walk(totals *t, const char *path)
{
    struct dirent **list = NULL;
    const int n = scandir(path, &list, NULL, by_name);

    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        char *p = h3_path_join(path, name);
        if (name[0] == '.')
            ;
        else if (h3_path_is_dir(p))
            walk(t, p);
        else if (is_golden_file(p))
            run_file(t, p);
        else
            t->n_skipped++;
        free(p);
        free(list[i]);
    }
    free(list);
}

/* Before anything else: --ranks copies this process. */
static bool start_ranks(totals *t, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--ranks") == 0 && h3_comm_fork(&t->comm, atoi(argv[i + 1])) != H3_OK) {
            fprintf(stderr, "%s\n", h3_error());
            return false;
        }
    return h3_comm_rank(t->comm) == 0 || freopen("/dev/null", "w", stdout);
}

static int end_ranks(totals *t, int status)
{
    const h3_status st = status ? h3_fail(H3_E_INTERNAL, "goldens failed") : H3_OK;

    if (h3_comm_agree(t->comm, st) != H3_OK) status = 1;
    h3_comm_close(&t->comm);
    return status;
}

int main(int argc, char **argv)
{
    totals t = {.device = "cpu"};
    int n_paths = 0;

    if (!start_ranks(&t, argc, argv)) return 2;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0 || strcmp(argv[i], "-v") == 0)
            t.is_verbose = true;
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            t.device = argv[++i];
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc)
            i++;
        else if (argv[i][0] == '-') {
            fprintf(stderr,
                    "usage: h3av-golden [--device cpu|ref|cuda] [--ranks N] [--verbose] PATH...\n");
            return 2;
        } else {
            n_paths++;
            if (h3_path_is_dir(argv[i]))
                walk(&t, argv[i]);
            else
                run_file(&t, argv[i]);
        }
    }
    if (n_paths == 0) {
        fprintf(stderr,
                "usage: h3av-golden [--device cpu|ref|cuda] [--ranks N] [--verbose] PATH...\n");
        return 2;
    }
    printf("%d passed, %d failed (%d comparisons on %s; %d other files: models and notes)\n",
           t.n_files - t.n_failed, t.n_failed, t.n_compared, t.device, t.n_skipped);
    return end_ranks(&t, t.n_failed == 0 && t.n_compared > 0 ? 0 : 1);
}
