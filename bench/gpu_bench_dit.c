/** Denoising steps on one device: how long they take the ways there are to run them, beside what
 * the libraries alone take, and how far fp8 is from bf16, on random weights or a model from files.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu_bench.h"

static void report_calls(const step *k, double first)
{
    const uint64_t before = d->backend->counts[H3_CUDA_N_LAUNCHES];
    uint64_t calls = 0;
    double flop = 0, t0;

    h3_dev_counters_reset(d);
    t0 = now();
    MUST(h3_dit_forward(d, k->m, k->s, 0, k->v2, k->a2, k->v, k->a));
    const double enqueued = now() - t0;
    MUST(h3_dev_sync(d));
    for (int i = 0; i < H3_OP_COUNT; i++) {
        calls += d->stat[i].calls;
        flop += d->stat[i].flops;
    }
    printf("{\"what\": \"dit_calls\", \"rows\": %lld, \"operations\": %llu, \"own_kernels\": %llu, "
           "\"launches\": %llu, \"not_recorded\": \"%s\", \"tflop\": %.2f, \"enqueue_s\": %.4f, "
           "\"first_layer_s\": %.2f}\n",
           (long long)k->s->n_rows, (unsigned long long)calls,
           (unsigned long long)(d->backend->counts[H3_CUDA_N_LAUNCHES] - before),
           (unsigned long long)d->backend->counts[H3_CUDA_N_NODES],
           d->unrecorded ? d->unrecorded : "", flop * 1e-12, enqueued, first);
}

/* The velocities of a step under another math. */
static float *velocities_under(const step *k, h3_cuda_math math)
{
    const h3_cuda_math before = d->backend->math;

    d->backend->math = math;
    (void)run_step(k, DIRECT);
    d->backend->math = before;
    return velocities(k);
}

/* Under fp8: against the same step in bf16 on the same inputs; `far` (bf16 from f32) tells how much
 * the model makes of an error. */
static void report_error(const step *k, const float *got, double far)
{
    float *want = velocities_under(k, H3_CUDA_AUTO);

    printf("{\"what\": \"dit_error\", \"math\": \"%s\", \"rows\": %lld, \"layers\": %lld, "
           "\"rms_relative_to_bf16\": %.5f, \"bf16_to_f32\": %.5f}\n",
           o.math, (long long)k->s->n_rows, (long long)k->m->dims.n_layers,
           distance(want, got, h3_numel(k->v2)), far);
    free(want);
}

/* What the repetitions of each way gave; seen[way] is NULL where a way was not asked for. */
typedef struct outcome {
    double best[N_VARIANTS];
    float *seen[N_VARIANTS]; ///< velocities of the first repetition
    int n_other[N_VARIANTS]; ///< repetitions that gave other bits than the first
    size_t bytes;            ///< of velocities
} outcome;

static outcome repeat_step(const step *k)
{
    const int n_ways = has("ab") ? N_VARIANTS : has("fast") ? DIRECT : DIRECT + 1;
    outcome r = {.best = {1e30, 1e30, 1e30}, .bytes = (size_t)h3_numel(k->v2) * 4};

    for (int i = 0; i < o.repeat; i++) // in turns: the ways meet the same clocks
        for (int how = RECORDED; how < n_ways; how++) {
            take_rest();
            const double once = run_step(k, (variant)how);
            r.best[how] = once < r.best[how] ? once : r.best[how];
            float *const again = velocities(k);
            if (!r.seen[how]) {
                r.seen[how] = again;
                continue;
            }
            r.n_other[how] += memcmp(r.seen[how], again, r.bytes) != 0;
            free(again);
        }
    return r;
}

static void report_ways(const outcome *r, int64_t S)
{
    static const char *const names[] = {"recorded", "call by call", "not fused"};

    for (int how = RECORDED; how < N_VARIANTS; how++) {
        if (!r->seen[how]) continue;
        const bool differs = r->seen[DIRECT] && memcmp(r->seen[how], r->seen[DIRECT], r->bytes);
        printf("{\"what\": \"dit_variant\", \"name\": \"%s\", \"math\": \"%s\", \"rows\": %lld, "
               "\"s\": %.4f, \"bits\": \"%016llx\", \"same_bits\": %s, "
               "\"differs_from_itself\": %d}\n",
               names[how], o.math, (long long)S, r->best[how],
               (unsigned long long)hash_of(r->seen[how], r->bytes), differs ? "false" : "true",
               r->n_other[how]);
    }
}

void bench_dit(h3_dit *m, int64_t S)
{
    const step k = make_step(m, S);
    const int layers = (int)m->dims.n_layers;
    const bool is_fp8 = d->backend->math == H3_CUDA_FP8;

    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, dit_scratch(S)));
    /* One layer first: algorithms, plans and quantised weights are found once. */
    m->dims.n_layers = 1;
    const double first = run_step(&k, DIRECT);
    m->dims.n_layers = layers;
    share_packed(m);
    const outcome r = repeat_step(&k);
    if (!has("fast")) report_calls(&k, first);
    if (has("repeats")) report_repeats(m, k.s);
    if (is_fp8 && has("errors")) report_op_errors(m, k.s);
    report_ways(&r, S);
    if (is_fp8 && r.seen[DIRECT]) report_error(&k, r.seen[DIRECT], 0);
    const double best = r.best[RECORDED];
    const double limit = library_step(m, k.s);
    printf("{\"what\": \"dit_step\", \"math\": \"%s\", \"rows\": %lld, \"layers\": %d, "
           "\"s\": %.4f, \"s_50_layers\": %.4f, \"library_s_50_layers\": %.4f, "
           "\"share_of_library\": %.3f, \"peak_gib\": %.2f, \"rest_s\": %g}\n",
           o.math, (long long)S, layers, best, best * 50 / layers, limit * 50 / layers,
           limit / best, (double)d->backend->peak / 1073741824, o.rest);
    fflush(stdout);
    for (int i = 0; i < N_VARIANTS; i++)
        free(r.seen[i]);
    free_step(&k);
}

/* A sequence of random numbers through a model from files. */
static h3_dit_state *open_state(const h3_dit *m, int64_t S, h3_dtype act)
{
    const int64_t n_video = S - N_TEXT - N_AUDIO;
    int32_t *idx = malloc((size_t)S * sizeof *idx), *row = malloc((size_t)S * sizeof *row);
    double *at = malloc((size_t)(3 * S) * sizeof *at);
    float *text = malloc((size_t)(N_TEXT * m->dims.text_dim) * sizeof *text);
    const float timestep = 0.4f;
    h3_dit_state *s;
    uint32_t u = 7;

    for (int64_t i = 0; i < S; i++) {
        idx[i] = (int32_t)i;
        row[i] = i < N_TEXT ? 1 : i < N_TEXT + N_AUDIO ? 2 : 0;
        at[3 * i] = (double)(i < N_TEXT + N_AUDIO ? i : N_TEXT + i / 64);
        at[3 * i + 1] = (double)(i / 8 % 8);
        at[3 * i + 2] = (double)(i % 8);
    }
    for (int64_t i = 0; i < N_TEXT * m->dims.text_dim; i++) {
        u = u * 1664525u + 1013904223u;
        text[i] = 1.7f * (float)(int32_t)u * 0x1p-31f;
    }
    const h3_dit_request r = {
        .act = (uint8_t)act,
        .n_rows = S,
        .n_video = n_video,
        .n_audio = N_AUDIO,
        .n_text = N_TEXT,
        .video_indices = idx + N_TEXT + N_AUDIO,
        .audio_indices = idx + N_TEXT,
        .text_indices = idx,
        .positions = at,
        .text = h3_tensor_2d(text, H3_F32, N_TEXT, m->dims.text_dim),
        .n_steps = 1,
        .n_timesteps = 1,
        .timesteps = &timestep,
        .mod_row = row,
    };
    size_t scratch, kept;
    MUST(h3_dit_scratch_bytes(m, &r, &scratch, &kept));
    h3_dev_scratch_drop(d);
    MUST(h3_dev_scratch(d, scratch));
    MUST(h3_dit_prepare(&s, m, &r));
    free(idx);
    free(row);
    free(at);
    free(text);
    return s;
}

void bench_model_error(void)
{
    h3_checkpoint *ck = NULL;
    h3_dit *m = NULL;

    MUST(h3_ckpt_open(&ck, o.model, H3_ROLE_DIT, NULL));
    MUST(h3_dit_open(&m, ck, d));
    for (int i = 0; i < o.n_rows; i++) {
        step k = {.m = m, .s = open_state(m, o.rows[i], H3_F32)};
        k.v = random_tensor(H3_F32, 1.7f, NE(k.s->n_video, m->dims.video_cols));
        k.v2 = random_tensor(H3_F32, 1, NE(k.s->n_video, m->dims.video_cols));
        k.a = random_tensor(H3_F32, 1.7f, NE(k.s->n_audio, m->dims.audio_cols));
        k.a2 = random_tensor(H3_F32, 1, NE(k.s->n_audio, m->dims.audio_cols));
        float *f32 = velocities_under(&k, H3_CUDA_F32);
        h3_dit_release(&k.s);
        k.s = open_state(m, o.rows[i], H3_BF16);
        float *bf16 = velocities_under(&k, H3_CUDA_AUTO),
              *own = velocities_under(&k, d->backend->math);
        report_error(&k, own, distance(f32, bf16, h3_numel(k.v2)));
        free(f32);
        free(bf16);
        free(own);
        h3_dit_release(&k.s);
        h3_tensor *const all[] = {&k.v, &k.v2, &k.a, &k.a2};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            h3_dev_free(d, all[j]);
    }
    h3_dit_close(&m);
    h3_ckpt_close(&ck);
}
