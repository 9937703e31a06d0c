/**
 * How fast a CUDA device runs the released shapes, on random numbers and without files: single
 * operations with their share of the hardware, whole denoising steps, tiles and a clip of the video
 * decoder, sound, the conditioner. One JSON object a line, to standard output.
 *
 *   h3av-gpu-bench [--math auto|fp8|tf32|f32] [--what ops,dit,vae,clip,audio,encoder,load,real]
 *                  [--rows N,N,...] [--layers L] [--tiles N,N,...] [--repeat R] [--ranks N]
 *                  [--file DIT] [--pieces B,C:B,C:...] [--rest S]
 *
 * --model DIR, under fp8: how far one forward of that model's DiT is from the same in bf16, at the
 * given rows (H3_CUDA_FP8_ROWS=1 for less than 1,536).
 * With dit: --what fast, no second way for comparison; errors, under fp8, of each product.
 * --what ab, with dit: also with what is fused taken apart. --what repeats, with dit: whether
 * products and attention give the same bits again.
 * --ranks: one process a GPU; "steps" (dit without the library) and the clip's tiles are shared,
 * the rest every rank does alone.
 * --pieces: how the exchanges of steps are cut (H3_OVERLAP), one after another.
 * --rest: seconds of sleep before every timed repetition of dit and steps, the library's too: a
 * step on a device that is not at its limit of power.
 *
 * All layers of a stack share one set of weights, which is far larger than the cache: the time of
 * fifty layers needs the memory of one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_bench.h"

h3_dev *d;
options o = {.math = "auto",
             .what = "ops,dit,vae,audio,encoder",
             .rows = {3342, 14972, 39614},
             .tiles = {1, 4, 12},
             .n_rows = 3,
             .n_tiles = 3,
             .layers = 50,
             .repeat = 3};

bool has(const char *word)
{
    const char *p = o.what;
    const size_t n = strlen(word);
    for (; (p = strstr(p, word)); p += n)
        if ((p == o.what || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

static int numbers(int64_t *out, const char *s)
{
    int n = 0;
    for (char *end; n < 8 && *s; s = *end ? end + 1 : end)
        out[n++] = strtoll(s, &end, 10);
    return n;
}

void take_rest(void)
{
    const double whole = floor(o.rest);
    const struct timespec t = {(time_t)whole, (long)(1e9 * (o.rest - whole))};

    nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--math") == 0) o.math = argv[i + 1];
        if (strcmp(argv[i], "--what") == 0) o.what = argv[i + 1];
        if (strcmp(argv[i], "--model") == 0) o.model = argv[i + 1];
        if (strcmp(argv[i], "--rows") == 0) o.n_rows = numbers(o.rows, argv[i + 1]);
        if (strcmp(argv[i], "--tiles") == 0) o.n_tiles = numbers(o.tiles, argv[i + 1]);
        if (strcmp(argv[i], "--layers") == 0) o.layers = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--repeat") == 0) o.repeat = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--pieces") == 0) o.pieces = argv[i + 1];
        if (strcmp(argv[i], "--file") == 0) o.file = argv[i + 1];
        if (strcmp(argv[i], "--ranks") == 0) o.ranks = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--rest") == 0) o.rest = strtod(argv[i + 1], NULL);
    }
    const h3_dev_opts opts = {.math = o.math};
    h3_comm *comm = NULL;
    char name[16] = "cuda";
    if (o.ranks > 1) {
        MUST(h3_comm_fork(&comm, o.ranks));
        snprintf(name, sizeof name, "cuda:%d", comm->local_rank);
        if (comm->rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    }
    MUST(h3_dev_open(&d, name, &opts));
    if (comm) MUST(h3_comm_attach(comm, d));
    if (comm)
        printf("{\"what\": \"ranks\", \"n\": %d, \"by\": \"%s\", \"detail\": \"%s\"}\n", comm->size,
               comm->name, comm->detail);
    printf("{\"what\": \"device\", \"detail\": \"%s\"}\n", d->detail);
    fflush(stdout);
    if (has("load")) bench_load();
    if (has("real")) bench_real();
    if (o.model) bench_model_error();
    h3_dit *m = has("dit") || has("steps") ? make_dit() : NULL;
    for (int i = 0; i < o.n_rows; i++) {
        if (has("ops")) bench_ops(o.rows[i]);
        if (has("dit")) bench_dit(m, o.rows[i]);
        if (has("steps")) bench_steps(m, o.rows[i]);
    }
    if (has("encoder")) bench_encoder();
    if (has("vae") || has("clip")) bench_vae(has("vae"), has("clip"));
    if (has("audio")) bench_audio();
    h3_cuda_report(d, stderr);
    if (comm) {
        MUST(h3_comm_agree(comm, H3_OK));
        h3_comm_detach(comm, d);
    }
    h3_dev_close(&d); // keeps what was learned about products
    h3_comm_close(&comm);
    return 0;
}
