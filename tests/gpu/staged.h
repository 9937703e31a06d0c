/**
 * A CUDA device behind host tensors: every operation uploads what it is given, runs on the device
 * and brings its output back, gaps between rows included. So the tests that compare table with
 * table run on a GPU as they are.
 */
#ifndef H3_TESTS_GPU_STAGED_H
#define H3_TESTS_GPU_STAGED_H

#include <stdlib.h>
#include <string.h>

#include "dev.h"

enum { MAX_STAGED = 16 };

/* Host tensors and their device copies, for the length of one operation. */
typedef struct stage {
    h3_dev *d;
    h3_tensor host[MAX_STAGED], dev[MAX_STAGED];
    int n;
} stage;

static size_t span_of(h3_tensor t)
{
    int64_t n = 1;
    for (int i = 0; i < t.rank; i++)
        n += (t.ne[i] - 1) * t.st[i];
    return (size_t)n * h3_dtype_bytes((h3_dtype)t.dtype);
}

/* The same tensor twice (an operation in place) is one device copy; so are views into each other.
 */
static h3_tensor up(stage *s, h3_tensor t)
{
    const size_t n = t.data ? span_of(t) : 0;
    h3_tensor v = t;
    void *p = NULL;

    if (!t.data || t.mem == H3_DEVICE) return t;
    v.mem = H3_DEVICE;
    for (int i = 0; i < s->n; i++) {
        const char *base = s->host[i].data;
        if ((char *)t.data >= base && (char *)t.data + n <= base + span_of(s->host[i])) {
            v.data = (char *)s->dev[i].data + ((char *)t.data - base);
            return v;
        }
    }
    if (s->n == MAX_STAGED || s->d->alloc(s->d, &p, n) != H3_OK ||
        s->d->upload(s->d, p, t.data, n) != H3_OK)
        abort();
    v.data = p;
    s->host[s->n] = t;
    s->dev[s->n++] = v;
    return v;
}

/* Brings the first tensor back and frees all. */
static h3_status down(stage *s, h3_status st, h3_tensor out)
{
    for (int i = 0; i < s->n; i++) {
        if (st == H3_OK && s->host[i].data == out.data)
            st = s->d->download(s->d, out.data, s->dev[i].data, span_of(s->host[i]));
        s->d->dealloc(s->d, s->dev[i].data);
    }
    return st;
}

static h3_weight up_weight(stage *s, const h3_weight *w)
{
    h3_weight v = *w;
    v.bias = up(s, w->bias);
    return v;
}

static h3_ops real_ops; ///< what the device's own table is

#define STAGE stage s = {.d = d}
#define DONE(out, call)                      \
    do {                                     \
        const h3_status st_ = real_ops.call; \
        return down(&s, st_, out);           \
    } while (0)

static h3_status staged_gemm(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w, h3_act act)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    h3_weight W = up_weight(&s, w);
    h3_status st = real_ops.gemm(d, Y, X, &W, act);
    h3_dev_weight_free(d, &W);
    return down(&s, st, y);
}
static h3_status staged_embed(h3_dev *d, h3_tensor y, const h3_weight *w, h3_tensor ids)
{
    STAGE;
    const h3_tensor Y = up(&s, y), I = up(&s, ids);
    h3_weight W = up_weight(&s, w);
    h3_status st = real_ops.embed(d, Y, &W, I);
    h3_dev_weight_free(d, &W);
    return down(&s, st, y);
}
static h3_status staged_conv(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                             const h3_conv *c, h3_tensor add)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), A = up(&s, add);
    h3_weight W = up_weight(&s, w);
    h3_status st = real_ops.conv(d, Y, X, &W, c, A);
    h3_dev_weight_free(d, &W);
    return down(&s, st, y);
}
static h3_status staged_conv_transpose1d(h3_dev *d, h3_tensor y, h3_tensor x, const h3_weight *w,
                                         int kernel, int stride, int pad)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    h3_weight W = up_weight(&s, w);
    h3_status st = real_ops.conv_transpose1d(d, Y, X, &W, kernel, stride, pad);
    h3_dev_weight_free(d, &W);
    return down(&s, st, y);
}
static h3_status staged_rms_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                                 bool rf)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), G = up(&s, g);
    DONE(y, rms_norm(d, Y, X, G, eps, rf));
}
static h3_status staged_layer_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                                   float eps)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), G = up(&s, g), B = up(&s, b);
    DONE(y, layer_norm(d, Y, X, G, B, eps));
}
static h3_status staged_rms_norm_mod(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                                     h3_tensor mod, int i, int j, h3_tensor row)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), G = up(&s, g), M = up(&s, mod), R = up(&s, row);
    DONE(y, rms_norm_mod(d, Y, X, G, eps, M, i, j, R));
}
static h3_status staged_group_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                                   int groups, float eps, bool silu)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), G = up(&s, g), B = up(&s, b);
    DONE(y, group_norm(d, Y, X, G, B, groups, eps, silu));
}
static h3_status staged_head_norm_rope(h3_dev *d, h3_tensor x, h3_tensor g, float eps, bool rf,
                                       h3_tensor c, h3_tensor n)
{
    STAGE;
    const h3_tensor X = up(&s, x), G = up(&s, g), C = up(&s, c), N = up(&s, n);
    DONE(x, head_norm_rope(d, X, G, eps, rf, C, N));
}
/* Views of one packed buffer fall into a copy of all that they span. */
static h3_tensor up_span(stage *s, int n, const h3_tensor *in)
{
    const char *lo = in[0].data, *hi = lo;
    const int64_t each = (int64_t)h3_dtype_bytes((h3_dtype)in[0].dtype);

    for (int i = 0; i < n; i++) {
        const char *a = in[i].data, *b = a + span_of(in[i]);
        lo = a < lo ? a : lo;
        hi = b > hi ? b : hi;
    }
    const h3_tensor all =
        h3_tensor_1d((void *)(uintptr_t)lo, (h3_dtype)in[0].dtype, (hi - lo) / each);
    (void)up(s, all);
    return all;
}
static h3_status staged_qk_norm_rope(h3_dev *d, h3_tensor q, h3_tensor k, h3_tensor gq,
                                     h3_tensor gk, float eps, bool rf, h3_tensor c, h3_tensor n)
{
    STAGE;
    const h3_tensor all = up_span(&s, 2, (const h3_tensor[]){q, k});
    const h3_tensor Q = up(&s, q), K = up(&s, k), A = up(&s, gq), B = up(&s, gk), C = up(&s, c),
                    N = up(&s, n);
    DONE(all, qk_norm_rope(d, Q, K, A, B, eps, rf, C, N));
}
static h3_status staged_attention(h3_dev *d, h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v,
                                  float scale, const int32_t *cu, int n, bool causal)
{
    STAGE;
    (void)up_span(&s, 3, (const h3_tensor[]){q, k, v});
    const h3_tensor O = up(&s, o), Q = up(&s, q), K = up(&s, k), V = up(&s, v);
    DONE(o, attention(d, O, Q, K, V, scale, cu, n, causal));
}
static h3_status staged_gate_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor mod, int i,
                                 h3_tensor row)
{
    STAGE;
    const h3_tensor X = up(&s, x), H = up(&s, h), M = up(&s, mod), R = up(&s, row);
    DONE(x, gate_add(d, X, H, M, i, R));
}
static h3_status staged_gate_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h,
                                      h3_tensor mod, int ig, h3_tensor g, float eps, h3_tensor next,
                                      int i, int j, h3_tensor row)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), H = up(&s, h), M = up(&s, mod), G = up(&s, g),
                    N = up(&s, next), R = up(&s, row);
    h3_status st = real_ops.gate_add_norm(d, Y, X, H, M, ig, G, eps, N, i, j, R);
    if (st == H3_OK) st = d->download(d, x.data, X.data, span_of(x));
    return down(&s, st, y);
}
static h3_status staged_scale_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor g)
{
    STAGE;
    const h3_tensor X = up(&s, x), H = up(&s, h), G = up(&s, g);
    DONE(x, scale_add(d, X, H, G));
}
static h3_status staged_scale_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h,
                                       h3_tensor s1, h3_tensor g, float eps)
{
    STAGE;
    const h3_tensor X = up(&s, x), H = up(&s, h), S = up(&s, s1), G = up(&s, g), Y = up(&s, y);
    h3_status st = real_ops.scale_add_norm(d, Y, X, H, S, G, eps);
    if (st == H3_OK) st = d->download(d, x.data, X.data, span_of(x));
    return down(&s, st, y);
}
static h3_status staged_add(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b)
{
    STAGE;
    const h3_tensor Y = up(&s, y), A = up(&s, a), B = up(&s, b);
    DONE(y, add(d, Y, A, B));
}
static h3_status staged_silu_mul(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b)
{
    STAGE;
    const h3_tensor Y = up(&s, y), A = up(&s, a), B = up(&s, b);
    DONE(y, silu_mul(d, Y, A, B));
}
static h3_status staged_act(h3_dev *d, h3_tensor y, h3_tensor x, h3_act act)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    DONE(y, act(d, Y, X, act));
}
#define PAIR(name)                                                      \
    static h3_status staged_##name(h3_dev *d, h3_tensor y, h3_tensor x) \
    {                                                                   \
        STAGE;                                                          \
        const h3_tensor Y = up(&s, y), X = up(&s, x);                   \
        DONE(y, name(d, Y, X));                                         \
    }
PAIR(copy)
PAIR(transpose)
PAIR(mean_groups)
#define INDEXED(name)                                                                  \
    static h3_status staged_##name(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx) \
    {                                                                                  \
        STAGE;                                                                         \
        const h3_tensor Y = up(&s, y), X = up(&s, x), I = up(&s, idx);                 \
        DONE(y, name(d, Y, X, I));                                                     \
    }
INDEXED(gather_rows)
INDEXED(scatter_rows)
INDEXED(scatter_add_rows)
static h3_status staged_axpby(h3_dev *d, h3_tensor y, float a, h3_tensor x, float b)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    DONE(y, axpby(d, Y, a, X, b));
}
#define FOUR(name)                                                                                \
    static h3_status staged_##name(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b) \
    {                                                                                             \
        STAGE;                                                                                    \
        const h3_tensor Y = up(&s, y), X = up(&s, x), A = up(&s, a), B = up(&s, b);               \
        DONE(y, name(d, Y, X, A, B));                                                             \
    }
FOUR(affine_rows)
FOUR(snake)
static h3_status staged_snake_aa(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b,
                                 h3_tensor u, h3_tensor w)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x), A = up(&s, a), B = up(&s, b), U = up(&s, u),
                    W = up(&s, w);
    DONE(y, snake_aa(d, Y, X, A, B, U, W));
}
static h3_status staged_clamp(h3_dev *d, h3_tensor y, h3_tensor x, float lo, float hi)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    DONE(y, clamp(d, Y, X, lo, hi));
}
static h3_status staged_unpatchify(h3_dev *d, h3_tensor y, h3_tensor x, int64_t t, int64_t h,
                                   int64_t w, int pt, int p)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    DONE(y, unpatchify(d, Y, X, t, h, w, pt, p));
}
static h3_status staged_fade(h3_dev *d, h3_tensor y, h3_tensor a, int axis, int64_t n)
{
    STAGE;
    const h3_tensor Y = up(&s, y), A = up(&s, a);
    DONE(y, fade(d, Y, A, axis, n));
}
static h3_status staged_to_u8(h3_dev *d, h3_tensor y, h3_tensor x, const float *mean,
                              const float *std)
{
    STAGE;
    const h3_tensor Y = up(&s, y), X = up(&s, x);
    DONE(y, to_u8(d, Y, X, mean, std));
}
static h3_status staged_flow_step(h3_dev *d, h3_tensor x, h3_tensor v, float sigma, float ratio)
{
    STAGE;
    const h3_tensor X = up(&s, x), V = up(&s, v);
    DONE(x, flow_step(d, X, V, sigma, ratio));
}
static h3_status staged_check_finite(h3_dev *d, h3_tensor x, int *bad)
{
    STAGE;
    const h3_tensor X = up(&s, x);
    DONE(x, check_finite(d, X, bad));
}

static const h3_ops staged_ops = {
#define X(name) .name = staged_##name,
    H3_OPS(X)
#undef X
};

/* Opens "cuda" where a test asks for "cpu". */
static h3_status open_staged(h3_dev **out, const char *name, const h3_dev_opts *opts)
{
    if (strcmp(name, "cpu") != 0) return h3_dev_open(out, name, opts);
    H3_TRY(h3_dev_open(out, "cuda", opts));
    real_ops = *(*out)->ops;
    (*out)->ops = &staged_ops;
    return H3_OK;
}

#endif
