/** Tensors, weights and files of random numbers, for benchmarks that need no model. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_bench.h"
#include "half.h"
#include "synth.h"

h3_tensor random_tensor(h3_dtype t, float scale, int rank, const int64_t *ne)
{
    enum { POOL = 1 << 22 };
    static float *pool;
    h3_tensor x;
    const size_t size = h3_dtype_bytes(t);

    MUST(h3_dev_alloc(d, &x, t, rank, ne));
    if (!pool) {
        uint32_t s = 1;
        pool = malloc(POOL * sizeof *pool);
        for (int i = 0; i < POOL; i++) {
            s = s * 1664525u + 1013904223u;
            pool[i] = (float)(int32_t)s * 0x1p-31f;
        }
    }
    unsigned char *part = malloc(POOL * size);
    for (int i = 0; i < POOL; i++) {
        if (t == H3_F32)
            ((float *)(void *)part)[i] = pool[i] * scale;
        else
            ((uint16_t *)(void *)part)[i] = h3_f32_to_bf16(pool[i] * scale);
    }
    const int64_t n = h3_numel(x);
    for (int64_t i = 0; i < n; i += POOL - 64) // not a power of two: no two rows alike
        MUST(d->upload(d, (char *)x.data + (size_t)i * size, part,
                       (size_t)(n - i < POOL - 64 ? n - i : POOL - 64) * size));
    free(part);
    return x;
}

h3_weight random_weight(h3_dtype t, int64_t rows, int64_t cols)
{
    const h3_tensor x = random_tensor(t, 0.02f, NE(rows, cols));
    h3_weight w = {.name = "bench", .rows = rows, .cols = cols, .n_parts = 1};

    w.part[0] = (h3_weight_part){.dev = x.data,
                                 .rows = rows,
                                 .cols = cols,
                                 .full_rows = rows,
                                 .row_bytes = (size_t)cols * h3_dtype_bytes(t),
                                 .bytes = (size_t)(rows * cols) * h3_dtype_bytes(t),
                                 .encoding = t == H3_F32 ? H3_ENC_F32 : H3_ENC_BF16,
                                 .global = 1};
    return w;
}

void free_weight(h3_weight *w)
{
    h3_dev_weight_free(d, w);
    d->dealloc(d, w->part[0].dev);
}

h3_tensor modulation_rows(int64_t first, int64_t n, int64_t n_audio, int per)
{
    int32_t *p = malloc((size_t)n * sizeof *p);
    h3_tensor t;

    for (int64_t i = 0; i < n; i++)
        p[i] = (first + i < N_TEXT ? 0 : first + i < N_TEXT + n_audio ? 4 : 8) / per;
    MUST(h3_dev_alloc(d, &t, H3_I32, 1, &n));
    MUST(h3_dev_upload(d, t, p));
    free(p);
    return h3_view_2d(t, 1, n);
}

h3_tensor indices(int64_t n, int64_t first, int64_t below)
{
    int32_t *p = malloc((size_t)n * sizeof *p);
    h3_tensor t;

    for (int64_t i = 0; i < n; i++)
        p[i] = (int32_t)(below ? i % below : first + i);
    MUST(h3_dev_alloc(d, &t, H3_I32, 1, &n));
    MUST(h3_dev_upload(d, t, p));
    free(p);
    return t;
}

h3_checkpoint *synthetic(h3_role role, int layers)
{
    const char *tmp = getenv("TMPDIR");
    const h3_synth_opts so = {.layers = layers, .seed = 1, .is_tiny = IS_TINY};
    h3_checkpoint *ck = NULL;
    char path[256];

    snprintf(path, sizeof path, "%s/h3av-gpu-bench-%d-%d.safetensors", tmp ? tmp : "/tmp",
             (int)role, (int)getpid());
    MUST(h3_synth_write(path, role, &so));
    MUST(h3_ckpt_open(&ck, path, role, NULL));
    unlink(path); // the map keeps the bytes
    return ck;
}
