/** The small networks beside the denoiser and the video decoder: sound, and four layers of the
 * conditioner's text tower. */
#include <stdlib.h>

#include "audio_vae.h"
#include "encoder_text.h"
#include "gpu_bench.h"

void bench_audio(void)
{
    h3_checkpoint *ck = synthetic(H3_ROLE_AUDIO_VAE, 0);
    h3_audio_vae *v = NULL;
    static const int64_t lengths[] = {IS_TINY ? 3 : 200, IS_TINY ? 4 : 400};

    MUST(h3_audio_vae_open(&v, d, ck, H3_AUDIO_VAE_DECODER));
    for (int k = 0; k < 2; k++) {
        const int64_t n = lengths[k];
        float *z = calloc((size_t)(64 * n), sizeof *z),
              *pcm = malloc((size_t)(1600 * n) * sizeof *pcm);
        double best = 1e30, first = 0;
        h3_dev_scratch_drop(d);
        for (int i = 0; i < 64 * n; i++)
            z[i] = (float)(i % 7 - 3) * 0.3f;
        for (int i = 0; i < o.repeat + 1; i++) {
            h3_dev_counters_reset(d);
            d->is_timing = false;
            const double t0 = now();
            MUST(h3_audio_vae_decode(d, v, h3_tensor_3d(z, H3_F32, 2, 32, n), NULL, pcm));
            const double s = now() - t0;
            if (i == 0) first = s;
            if (i > 0 && s < best) best = s;
        }
        printf("{\"what\": \"audio_decode\", \"math\": \"%s\", \"seconds_of_sound\": %.1f, "
               "\"channels\": 2, "
               "\"s\": %.5f, \"first_s\": %.3f}\n",
               o.math, (double)n / 40, best, first);
        d->is_timing = true;
        h3_dev_counters_reset(d);
        MUST(h3_audio_vae_decode(d, v, h3_tensor_3d(z, H3_F32, 2, 32, n), NULL, pcm));
        d->is_timing = false;
        report_ops("audio_op");
        fflush(stdout);
        free(z);
        free(pcm);
    }
}

void bench_encoder(void)
{
    enum { W = ENC_W, Q = ENC_Q, K = ENC_K, D = ENC_D, F = ENC_F, LAYERS = 4 };
    static const int64_t lengths[] = {64, 256, 1024};
    h3_encoder_layer l = {.norm1 = random_tensor(H3_F32, 1, NE(W)),
                          .norm2 = random_tensor(H3_F32, 1, NE(W)),
                          .q_norm = random_tensor(H3_F32, 1, NE(D)),
                          .k_norm = random_tensor(H3_F32, 1, NE(D)),
                          .q = random_weight(H3_BF16, Q * D, W),
                          .k = random_weight(H3_BF16, K * D, W),
                          .v = random_weight(H3_BF16, K * D, W),
                          .o = random_weight(H3_BF16, W, Q * D),
                          .gate = random_weight(H3_BF16, F, W),
                          .up = random_weight(H3_BF16, F, W),
                          .down = random_weight(H3_BF16, W, F)};
    h3_encoder_text t = {.width = W,
                         .heads = Q,
                         .kv_heads = K,
                         .head_dim = D,
                         .hidden = F,
                         .vocab = ENC_VOCAB,
                         .n_layers = LAYERS,
                         .eps = 1e-6f};

    t.embed = random_weight(H3_BF16, ENC_VOCAB, W);
    t.layer = calloc(LAYERS, sizeof *t.layer);
    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, 1u << 30));
    for (int k = 0; k < 3; k++) {
        const int64_t S = lengths[k], ne[2] = {S, W};
        const int32_t cu[2] = {0, (int32_t)S};
        h3_tensor x, ids = indices(S, 0, ENC_VOCAB), cos = random_tensor(H3_BF16, 1, NE(S, D / 2));
        double best = 1e30;
        MUST(h3_dev_alloc(d, &x, H3_BF16, 2, ne));
        for (int i = 0; i < LAYERS; i++)
            t.layer[i] = l;
        for (int i = 0; i < 10 * o.repeat; i++) {
            const double t0 = now();
            MUST(h3_encoder_text_forward(&t, d, NULL, 0, x, ids, cos, cos, cu, NULL, 0, 0));
            MUST(h3_dev_sync(d));
            const double s = now() - t0;
            if (i > 1 && s < best) best = s;
        }
        printf(
            "{\"what\": \"encoder_4_layers\", \"math\": \"%s\", \"tokens\": %lld, \"s\": %.5f}\n",
            o.math, (long long)S, best);
        fflush(stdout);
        h3_dev_free(d, &x);
        h3_dev_free(d, &ids);
        h3_dev_free(d, &cos);
    }
}
