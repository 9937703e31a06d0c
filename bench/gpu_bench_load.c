/** Bytes to the device: a copy of two GiB, and a whole denoiser from a file. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_bench.h"
#include "synth.h"

void bench_load(void)
{
    const size_t n = (size_t)2 << 30;
    unsigned char *host = malloc(n);
    h3_tensor t;
    const int64_t ne = (int64_t)n;

    memset(host, 3, n);
    MUST(h3_dev_alloc(d, &t, H3_U8, 1, &ne));
    for (int i = 0; i < 2; i++) {
        const double t0 = now();
        MUST(h3_dev_upload(d, t, host));
        MUST(h3_dev_sync(d));
        const double s = now() - t0;
        if (i)
            printf("{\"what\": \"upload\", \"gib\": 2, \"s\": %.4f, \"gbs\": %.1f}\n", s,
                   (double)n / s * 1e-9);
    }
    fflush(stdout);
    h3_dev_free(d, &t);
    free(host);
}

/* Lines of /proc/self/status, in GiB. */
static double status_gib(const char *field)
{
    FILE *f = fopen("/proc/self/status", "r");
    const size_t n = strlen(field);
    char line[256];
    double kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, n) == 0 && line[n] == ':') kib = atof(line + n + 1);
    if (f) fclose(f);
    return kib / 1048576;
}

/* The whole denoiser from a file to the device, the way a run takes: --file names one (h3av synth
 * writes any published form), else one with the released names and shapes and random numbers is
 * written to TMPDIR: 66.3 GB for 50 layers. */
void bench_real(void)
{
    const char *tmp = getenv("TMPDIR");
    const h3_synth_opts so = {.layers = o.layers, .seed = 1, .is_tiny = IS_TINY};
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;
    char path[256];
    double t[3];

    if (o.file)
        snprintf(path, sizeof path, "%s", o.file);
    else
        snprintf(path, sizeof path, "%s/h3av-gpu-bench-real-%d.safetensors", tmp ? tmp : "/tmp",
                 (int)getpid());
    t[0] = now();
    if (!o.file && h3_synth_write(path, H3_ROLE_DIT, &so) != H3_OK) {
        unlink(path);
        MUST(H3_E_IO);
    }
    FILE *f = fopen(path, "rb");
    const double bytes = f && fseeko(f, 0, SEEK_END) == 0 ? (double)ftello(f) : 0;
    if (f) fclose(f);
    t[0] = now() - t[0];
    printf("{\"what\": \"real_written\", \"layers\": %d, \"gb\": %.2f, \"s\": %.2f}\n", o.layers,
           bytes * 1e-9, t[0]);
    fflush(stdout);
    const uint64_t before = d->backend->uploaded;
    t[1] = now();
    const h3_status st = h3_ckpt_open(&ck, path, H3_ROLE_DIT, NULL);
    if (!o.file) unlink(path); // the map keeps the bytes
    MUST(st);
    MUST(h3_dit_open(&m, ck, d));
    for (int i = 0; i < m->dims.n_layers; i++) // as a request of so many rows says
        h3_store_meets(m->store, 1 + i, H3_BF16, o.rows[0], false);
    t[1] = now() - t[1];
    t[2] = now();
    for (int i = 0; i <= m->dims.n_layers + 1; i++) {
        MUST(h3_store_acquire(m->store, i));
        h3_store_release(m->store, i);
    }
    MUST(h3_dev_sync(d));
    t[2] = now() - t[2];
    printf("{\"what\": \"load_real\", \"layers\": %d, \"gb\": %.2f, \"open_s\": %.2f, \"load_s\": "
           "%.2f, \"uploaded_gb\": %.2f, \"gbs\": %.1f, \"device_peak_gib\": %.2f, "
           "\"host_peak_gib\": %.2f, \"host_anonymous_gib\": %.2f, \"host_mapped_gib\": %.2f, "
           "\"files\": %llu, \"matrices\": %llu, \"direct\": %llu, \"converted\": %llu}\n",
           o.layers, bytes * 1e-9, t[1], t[2], (double)(d->backend->uploaded - before) * 1e-9,
           (double)(d->backend->uploaded - before) * 1e-9 / t[2],
           (double)d->backend->peak / 1073741824, status_gib("VmHWM"), status_gib("RssAnon"),
           status_gib("RssShmem") + status_gib("RssFile"), (unsigned long long)d->loaded.files,
           (unsigned long long)d->loaded.tensors, (unsigned long long)d->loaded.direct,
           (unsigned long long)d->loaded.converted);
    fflush(stdout);
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
}
