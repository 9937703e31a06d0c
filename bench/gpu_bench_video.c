/** The video decoder: tiles in flight, a clip of the released size, and how far its math is from
 * f32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_bench.h"
#include "video_vae_net.h"

static h3_status drop_frames(void *user, int64_t first, h3_tensor frames)
{
    (void)user, (void)first, (void)frames;
    return H3_OK;
}

static void decode(h3_video_vae *v, const char *name, int64_t t, int64_t h, int64_t w, int tiles,
                   h3_dtype act, int repeat)
{
    const int64_t ne[4] = {24, t, h, w};
    const h3_video_decode_opts opts = {.act = act, .tiles_in_flight = tiles};
    float *z = calloc((size_t)(24 * t * h * w), sizeof *z);
    double best = 1e30, first = 0;
    size_t bytes;

    for (int64_t i = 0; i < 24 * t * h * w; i++)
        z[i] = (float)(i % 11 - 5) * 0.2f;
    h3_dev_scratch_drop(d);
    MUST(h3_video_vae_decode_bytes(d, v, t, h, w, &opts, &bytes));
    MUST(h3_dev_scratch(d, bytes));
    for (int i = 0; i < repeat + 1; i++) {
        const double t0 = now();
        MUST(h3_video_vae_decode(d, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, drop_frames, NULL));
        const double s = now() - t0;
        if (i == 0) first = s;
        if (i > 0 && s < best) best = s;
    }
    printf("{\"what\": \"%s\", \"math\": \"%s\", \"act\": \"%s\", \"tiles_in_flight\": %d, \"s\": "
           "%.5f, "
           "\"first_s\": %.3f, \"scratch_gib\": %.2f}\n",
           name, o.math, h3_dtype_name(act), tiles, best, first, (double)bytes / 1073741824);
    fflush(stdout);
    if (act == H3_BF16 && repeat == o.repeat && h3_comm_size(d->comm) == 1) {
        d->is_timing = true;
        h3_dev_counters_reset(d);
        MUST(h3_video_vae_decode(d, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, drop_frames, NULL));
        d->is_timing = false;
        report_ops("vae_op");
    }
    free(z);
}

typedef struct kept_frames {
    float *p;
    int64_t n;
} kept_frames;

static h3_status keep_frames(void *user, int64_t first, h3_tensor f)
{
    kept_frames *k = user;
    const int64_t each = f.ne[1] * f.ne[2] * f.ne[3];

    (void)first;
    k->p = realloc(k->p, (size_t)(k->n + 3 * each) * sizeof *k->p);
    for (int c = 0; c < 3; c++, k->n += each)
        memcpy(k->p + k->n, (const float *)f.data + c * f.st[0], (size_t)each * sizeof *k->p);
    return H3_OK;
}

/* How far a tile under this math is from f32, in pixels of 0 to 1 (deviations of the picture's own
 * normalisation are taken as 0.225). */
static void vae_error(h3_video_vae *v, int64_t side)
{
    const int64_t ne[4] = {24, 7, side, side}, n = 24 * 7 * side * side;
    float *z = malloc((size_t)n * sizeof *z);
    kept_frames kept[2] = {{0}};
    double e = 0, sum = 0, worst = 0;

    for (int64_t i = 0; i < n; i++)
        z[i] = (float)(i % 11 - 5) * 0.2f;
    h3_dev_scratch_drop(d);
    for (int k = 0; k < 2; k++) {
        const h3_video_decode_opts opts = {.act = k ? H3_BF16 : H3_F32, .is_float = true};
        MUST(h3_video_vae_decode(d, v, h3_host_tensor(z, H3_F32, 4, ne), &opts, keep_frames,
                                 &kept[k]));
    }
    for (int64_t i = 0; i < kept[0].n; i++) {
        const double a = (double)kept[0].p[i], x = (double)kept[1].p[i] - a;
        e += x * x;
        sum += a * a;
        if (fabs(x) > worst) worst = fabs(x);
    }
    e = sqrt(e / (double)kept[0].n);
    sum = sqrt(sum / (double)kept[0].n);
    printf("{\"what\": \"vae_error\", \"math\": \"%s\", \"rms\": %.5f, \"of_rms\": %.5f, ", o.math,
           e, e / sum);
    printf("\"worst\": %.4f, \"psnr_db\": %.2f}\n", worst, -20 * log10(0.225 * e + 1e-12));
    fflush(stdout);
    free(kept[0].p);
    free(kept[1].p);
    free(z);
}

void bench_vae(bool has_tiles, bool has_clip)
{
    enum { SIDE = IS_TINY ? 3 : 16, DEPTH = IS_TINY ? 2 : 36 }; // latent cells of a tile, layers
    h3_checkpoint *ck = synthetic(H3_ROLE_VIDEO_VAE, 1);
    h3_video_vae *v = NULL;

    MUST(h3_video_vae_open(&v, d, ck, H3_VIDEO_VAE_DECODER));
    /* All layers are the one there is, once a run of that one has brought everything: a store of
     * nothing then. */
    vit_block *const one = v->dec.block, *deep = calloc(DEPTH, sizeof *deep);
    h3_store *const store = v->dec.store, *nothing = NULL;
    MUST(h3_store_create(&nothing, d));
    for (int k = 0; k < (has_tiles ? 2 : 1); k++) {
        const h3_dtype act = k ? H3_F32 : H3_BF16;
        v->geo.n_layers = 1;
        v->dec.block = one;
        v->dec.store = store;
        h3_dev_scratch_drop(d);
        h3_store_drop(store);
        const size_t before = d->backend->allocated;
        decode(v, "vae_one_layer", 7, SIDE, SIDE, 1, act, 1);
        h3_dev_scratch_drop(d);
        printf(
            "{\"what\": \"vae_weights\", \"math\": \"%s\", \"act\": \"%s\", \"stored_mib\": %.1f, "
            "\"saved_mib\": %.1f, \"taken_mib\": %.1f}\n",
            o.math, h3_dtype_name(act), (double)h3_ckpt_usage(ck, NULL).matrices / 1048576,
            (double)h3_store_saved(store, NULL) / 1048576,
            ((double)d->backend->allocated - (double)before) / 1048576);
        v->geo.n_layers = DEPTH;
        v->dec.block = deep;
        v->dec.store = nothing;
        for (int i = 0; i < DEPTH; i++)
            deep[i] = one[0];
        for (int i = 0; has_tiles && i < o.n_tiles; i++) {
            /* As many tiles as fly together, in one row of the picture. */
            const int n = (int)o.tiles[i];
            if (act == H3_F32 && i > 0) break;
            decode(v, "vae_tiles", 7, SIDE, SIDE + 12 * (n - 1), n, act,
                   act == H3_F32 ? 1 : o.repeat);
        }
        for (int i = 0; has_clip && act == H3_BF16 && i < o.n_tiles; i++)
            decode(v, "vae_clip_832x480x124", 37, 30, 52, (int)o.tiles[i], act, 1);
    }
    if (has_tiles) vae_error(v, SIDE);
}
