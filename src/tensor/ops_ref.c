/**
 * The definition of every operation: plain C, one thread, any strides, sums in double where the
 * rounding of a sum is nobody's business, float32 where ops.h states a rounding. A fast backend is
 * right when it agrees with this file. Nothing here is clever; what speed there is comes from loops
 * over contiguous rows, enough for tiny models.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "num.h"
#include "ops.h"
#include "size.h"

#define UNUSED __attribute__((unused))

/* Short names for the loops below: element i of tensor t counted from offset `at`. */
static float get(h3_tensor t, int64_t i)
{
    return h3_num_load(t.data, t.dtype, i);
}

static void put(h3_tensor t, int64_t i, float v)
{
    h3_num_store(t.data, t.dtype, i, v);
}

/* Element i of a dense parameter vector, or `none` when the vector is absent. */
static float param(h3_tensor t, int64_t i, float none)
{
    return h3_is_null(t) ? none : get(t, i);
}

static int32_t index_at(h3_tensor t, int64_t i)
{
    assert(t.dtype == H3_I32);
    return ((const int32_t *)t.data)[i];
}

static h3_status take(void *out, int64_t n, size_t size)
{
    size_t bytes;
    void *p = NULL;

    if (!h3_mul_size((size_t)n, size, &bytes) || !(p = malloc(bytes ? bytes : 1)))
        return h3_fail(H3_E_NOMEM, "no memory for %lld numbers", (long long)n);
    memcpy(out, &p, sizeof p);
    return H3_OK;
}

static double act_of(h3_act act, double v)
{
    switch (act) {
    case H3_ACT_SILU:
        return v / (1 + exp(-v));
    case H3_ACT_GELU_TANH:
        return 0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
    case H3_ACT_GELU_ERF:
        return 0.5 * v * (1 + erf(v * 0.70710678118654752440));
    case H3_ACT_NONE:
        break;
    }
    return v;
}

/* ---------------------------------------------------------------- products */

/* Eight partial sums: the order does not matter in double, and the compiler can pair them. */
static double dot(const float *a, const float *b, int64_t n)
{
    double s[8] = {0};
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; i++)
        s[0] += (double)a[i] * (double)b[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static h3_status ref_gemm(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, const h3_weight *w,
                          h3_act act)
{
    const int64_t S = h3_n_rows(x), K = w->cols;
    float *row = NULL, *wide = NULL; // [K]; [S, K]
    h3_status st;

    assert(x.ne[x.rank - 1] == K && y.ne[y.rank - 1] == w->rows && h3_n_rows(y) == S);
    if ((st = take(&row, K, sizeof *row)) != H3_OK) goto done;
    if ((st = take(&wide, S * K, sizeof *wide)) != H3_OK) goto done;
    for (int64_t s = 0; s < S; s++)
        for (int64_t k = 0, at = h3_row_offset(&x, s); k < K; k++)
            wide[s * K + k] = get(x, at + k);
    for (int64_t n = 0; n < w->rows; n++) {
        const double bias = (double)param(w->bias, n, 0);
        h3_weight_rows(w, n, 1, row);
        for (int64_t s = 0; s < S; s++) {
            const float v = h3_num_round(y.dtype, (float)(dot(wide + s * K, row, K) + bias));
            put(y, h3_row_offset(&y, s) + n, (float)act_of(act, (double)v));
        }
    }
done:
    free(wide);
    free(row);
    return st;
}

static h3_status ref_embed(h3_dev *d UNUSED, h3_tensor y, const h3_weight *w, h3_tensor ids)
{
    const int64_t C = w->cols;
    float *row = NULL;

    H3_TRY(take(&row, C, sizeof *row));
    for (int64_t i = 0; i < h3_numel(ids); i++) {
        assert(index_at(ids, i) >= 0 && index_at(ids, i) < w->rows);
        h3_weight_rows(w, index_at(ids, i), 1, row);
        for (int64_t c = 0; c < C; c++)
            put(y, h3_row_offset(&y, i) + c, row[c]);
    }
    free(row);
    return H3_OK;
}

/* ---------------------------------------------------------------- norms */

/* 1 / sqrt(mean(x^2) + eps) of n elements from `at`. */
static float rms_inverse(h3_tensor x, int64_t at, int64_t n, float eps)
{
    double ss = 0;
    for (int64_t c = 0; c < n; c++) {
        const double v = (double)get(x, at + c);
        ss += v * v;
    }
    return (float)(1 / sqrt(ss / (double)n + (double)eps));
}

static h3_status ref_rms_norm(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                              bool round_first)
{
    const int64_t C = x.ne[x.rank - 1];

    for (int64_t r = 0; r < h3_n_rows(x); r++) {
        const int64_t xo = h3_row_offset(&x, r), yo = h3_row_offset(&y, r);
        const float inv = rms_inverse(x, xo, C, eps);
        for (int64_t c = 0; c < C; c++) {
            float v = get(x, xo + c) * inv;
            if (round_first) v = h3_num_round(y.dtype, v);
            put(y, yo + c, v * param(g, c, 1));
        }
    }
    return H3_OK;
}

static h3_status ref_layer_norm(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor g,
                                h3_tensor b, float eps)
{
    const int64_t C = x.ne[x.rank - 1];

    for (int64_t r = 0; r < h3_n_rows(x); r++) {
        const int64_t xo = h3_row_offset(&x, r), yo = h3_row_offset(&y, r);
        double mean = 0, var = 0;
        for (int64_t c = 0; c < C; c++)
            mean += (double)get(x, xo + c);
        mean /= (double)C;
        for (int64_t c = 0; c < C; c++) {
            const double v = (double)get(x, xo + c) - mean;
            var += v * v;
        }
        const double inv = 1 / sqrt(var / (double)C + (double)eps);
        for (int64_t c = 0; c < C; c++) {
            const double v = ((double)get(x, xo + c) - mean) * inv;
            put(y, yo + c, (float)(v * (double)param(g, c, 1) + (double)param(b, c, 0)));
        }
    }
    return H3_OK;
}

/* Offset of vector i of row m in mod [R, P, C]. */
static int64_t mod_offset(h3_tensor mod, int64_t m, int i)
{
    assert(mod.rank == 3 && m >= 0 && m < mod.ne[0] && i >= 0 && i < mod.ne[1]);
    return m * mod.st[0] + i * mod.st[1];
}

static h3_status ref_rms_norm_mod(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor g,
                                  float eps, h3_tensor mod, int i_shift, int i_scale, h3_tensor row)
{
    const int64_t C = x.ne[x.rank - 1];
    const uint8_t t = y.dtype;

    for (int64_t s = 0; s < h3_n_rows(x); s++) {
        const int64_t xo = h3_row_offset(&x, s), yo = h3_row_offset(&y, s);
        const int64_t shift = mod_offset(mod, index_at(row, s), i_shift);
        const int64_t scale = mod_offset(mod, index_at(row, s), i_scale);
        const float inv = rms_inverse(x, xo, C, eps);
        for (int64_t c = 0; c < C; c++) {
            const float v = h3_num_round(t, get(x, xo + c) * inv * param(g, c, 1));
            const float m = h3_num_round(t, 1.0f + get(mod, scale + c));
            put(y, yo + c, h3_num_round(t, v * m) + get(mod, shift + c));
        }
    }
    return H3_OK;
}

static h3_status ref_group_norm(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor g,
                                h3_tensor b, int groups, float eps, bool silu)
{
    const int64_t T = x.ne[1], H = x.ne[2], W = x.ne[3], per = x.ne[0] / groups;
    const double n = (double)(per * H * W);

    assert(x.rank == 4 && x.ne[0] % groups == 0);
    for (int64_t q = 0; q < groups * T; q++) {
        const int64_t t = q % T, c0 = q / T * per;
        double mean = 0, var = 0;
        for (int pass = 0; pass < 3; pass++)
            for (int64_t c = c0; c < c0 + per; c++)
                for (int64_t h = 0; h < H; h++)
                    for (int64_t w = 0; w < W; w++) {
                        const double v =
                            (double)get(x, c * x.st[0] + t * x.st[1] + h * x.st[2] + w);
                        if (pass == 0) {
                            mean += v / n;
                        } else if (pass == 1) {
                            var += (v - mean) * (v - mean) / n;
                        } else {
                            const double u = (v - mean) / sqrt(var + (double)eps);
                            const float z =
                                (float)(u * (double)param(g, c, 1) + (double)param(b, c, 0));
                            put(y, c * y.st[0] + t * y.st[1] + h * y.st[2] + w,
                                silu ? (float)act_of(H3_ACT_SILU, (double)z) : z);
                        }
                    }
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- attention */

static void rotate(h3_tensor x, int64_t at, h3_tensor cos, int64_t c_at, h3_tensor sin,
                   int64_t s_at)
{
    const int64_t R = cos.ne[cos.rank - 1];

    for (int64_t j = 0; j < R; j++) {
        const float c = get(cos, c_at + j), s = get(sin, s_at + j);
        const float a = get(x, at + j), b = get(x, at + j + R);
        const uint8_t t = cos.dtype; // bf16 tables: each product rounds; f32 tables: none does
        put(x, at + j, h3_num_round(t, a * c) - h3_num_round(t, b * s));
        put(x, at + j + R, h3_num_round(t, b * c) + h3_num_round(t, a * s));
    }
}

static h3_status ref_head_norm_rope(h3_dev *d UNUSED, h3_tensor x, h3_tensor g, float eps,
                                    bool round_first, h3_tensor cos, h3_tensor sin)
{
    const int64_t S = x.ne[0], H = x.ne[1], D = x.ne[2];

    assert(x.rank == 3 && (h3_is_null(cos) || 2 * cos.ne[cos.rank - 1] <= D));
    for (int64_t s = 0; s < S; s++)
        for (int64_t h = 0; h < H; h++) {
            const int64_t at = s * x.st[0] + h * x.st[1];
            if (eps > 0) {
                const float inv = rms_inverse(x, at, D, eps);
                for (int64_t j = 0; j < D; j++) {
                    float v = get(x, at + j) * inv;
                    if (round_first) v = h3_num_round(x.dtype, v);
                    put(x, at + j, v * param(g, j, 1));
                }
            }
            if (!h3_is_null(cos)) rotate(x, at, cos, s * cos.st[0], sin, s * sin.st[0]);
        }
    return H3_OK;
}

static h3_status ref_qk_norm_rope(h3_dev *d, h3_tensor q, h3_tensor k, h3_tensor gq, h3_tensor gk,
                                  float eps, bool round_first, h3_tensor cos, h3_tensor sin)
{
    H3_TRY(ref_head_norm_rope(d, q, gq, eps, round_first, cos, sin));
    return ref_head_norm_rope(d, k, gk, eps, round_first, cos, sin);
}

/* One query against keys [j0, j1): p holds j1 - j0 doubles, acc D. */
static void attend(h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v, float scale, int64_t i,
                   int64_t h, int64_t j0, int64_t j1, double *p, double *acc)
{
    const int64_t D = q.ne[2], hk = h / (q.ne[1] / k.ne[1]);
    const int64_t qo = i * q.st[0] + h * q.st[1], oo = i * o.st[0] + h * o.st[1];
    double top = -HUGE_VAL, sum = 0;

    for (int64_t j = j0; j < j1; j++) {
        const int64_t ko = j * k.st[0] + hk * k.st[1];
        double s = 0;
        for (int64_t c = 0; c < D; c++)
            s += (double)get(q, qo + c) * (double)get(k, ko + c);
        p[j - j0] = s * (double)scale;
        top = fmax(top, p[j - j0]);
    }
    for (int64_t j = j0; j < j1; j++)
        sum += p[j - j0] = exp(p[j - j0] - top);
    memset(acc, 0, (size_t)D * sizeof *acc);
    for (int64_t j = j0; j < j1; j++) {
        const int64_t vo = j * v.st[0] + hk * v.st[1];
        for (int64_t c = 0; c < D; c++)
            acc[c] += p[j - j0] * (double)get(v, vo + c);
    }
    for (int64_t c = 0; c < D; c++)
        put(o, oo + c, (float)(acc[c] / sum));
}

static h3_status ref_attention(h3_dev *d UNUSED, h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v,
                               float scale, const int32_t *cu, int n_segments, bool causal)
{
    double *p = NULL, *acc = NULL;
    h3_status st;

    assert(q.rank == 3 && k.rank == 3 && q.ne[1] % k.ne[1] == 0);
    assert(cu[0] == 0 && cu[n_segments] == q.ne[0]);
    if ((st = take(&p, q.ne[0], sizeof *p)) != H3_OK) goto done;
    if ((st = take(&acc, q.ne[2], sizeof *acc)) != H3_OK) goto done;
    for (int g = 0; g < n_segments; g++)
        for (int64_t i = cu[g]; i < cu[g + 1]; i++)
            for (int64_t h = 0; h < q.ne[1]; h++)
                attend(o, q, k, v, scale, i, h, cu[g], causal ? i + 1 : cu[g + 1], p, acc);
done:
    free(acc);
    free(p);
    return st;
}

/* ---------------------------------------------------------------- elementwise and rows */

static h3_status ref_gate_add(h3_dev *d UNUSED, h3_tensor x, h3_tensor h, h3_tensor mod, int i_gate,
                              h3_tensor row)
{
    for (int64_t s = 0; s < h3_n_rows(x); s++) {
        const int64_t xo = h3_row_offset(&x, s), ho = h3_row_offset(&h, s);
        const int64_t gate = mod_offset(mod, index_at(row, s), i_gate);
        for (int64_t c = 0; c < x.ne[x.rank - 1]; c++) {
            const float p = h3_num_round(x.dtype, get(mod, gate + c) * get(h, ho + c));
            put(x, xo + c, get(x, xo + c) + p);
        }
    }
    return H3_OK;
}

static h3_status ref_gate_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor mod,
                                   int i_gate, h3_tensor g, float eps, h3_tensor next, int i_shift,
                                   int i_scale, h3_tensor row)
{
    H3_TRY(ref_gate_add(d, x, h, mod, i_gate, row));
    return ref_rms_norm_mod(d, y, x, g, eps, next, i_shift, i_scale, row);
}

static h3_status ref_scale_add(h3_dev *d UNUSED, h3_tensor x, h3_tensor h, h3_tensor g)
{
    for (int64_t s = 0; s < h3_n_rows(x); s++) {
        const int64_t xo = h3_row_offset(&x, s), ho = h3_row_offset(&h, s);
        for (int64_t c = 0; c < x.ne[x.rank - 1]; c++) {
            const float p = h3_num_round(x.dtype, get(h, ho + c) * param(g, c, 1));
            put(x, xo + c, get(x, xo + c) + p);
        }
    }
    return H3_OK;
}

static h3_status ref_scale_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor s,
                                    h3_tensor g, float eps)
{
    H3_TRY(ref_scale_add(d, x, h, s));
    return ref_rms_norm(d, y, x, g, eps, false);
}

static h3_status ref_add(h3_dev *d UNUSED, h3_tensor y, h3_tensor a, h3_tensor b)
{
    for (int64_t r = 0; r < h3_n_rows(y); r++) {
        const int64_t yo = h3_row_offset(&y, r), ao = h3_row_offset(&a, r),
                      bo = h3_row_offset(&b, r);
        for (int64_t c = 0; c < y.ne[y.rank - 1]; c++)
            put(y, yo + c, get(a, ao + c) + get(b, bo + c));
    }
    return H3_OK;
}

static h3_status ref_silu_mul(h3_dev *d UNUSED, h3_tensor y, h3_tensor gate, h3_tensor up)
{
    for (int64_t r = 0; r < h3_n_rows(y); r++) {
        const int64_t yo = h3_row_offset(&y, r), go = h3_row_offset(&gate, r),
                      uo = h3_row_offset(&up, r);
        for (int64_t c = 0; c < y.ne[y.rank - 1]; c++) {
            const float s = (float)act_of(H3_ACT_SILU, (double)get(gate, go + c));
            put(y, yo + c, h3_num_round(y.dtype, s) * get(up, uo + c));
        }
    }
    return H3_OK;
}

static h3_status ref_act(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_act act)
{
    for (int64_t r = 0; r < h3_n_rows(y); r++) {
        const int64_t yo = h3_row_offset(&y, r), xo = h3_row_offset(&x, r);
        for (int64_t c = 0; c < y.ne[y.rank - 1]; c++)
            put(y, yo + c, (float)act_of(act, (double)get(x, xo + c)));
    }
    return H3_OK;
}

/* n elements from x + xo to y + yo, converting unless the dtypes agree. */
static void copy_run(h3_tensor y, int64_t yo, h3_tensor x, int64_t xo, int64_t n)
{
    if (x.dtype == y.dtype) {
        memmove(h3_num_at(y, yo), h3_num_at(x, xo), (size_t)n * h3_dtype_bytes((h3_dtype)x.dtype));
        return;
    }
    for (int64_t c = 0; c < n; c++)
        put(y, yo + c, get(x, xo + c));
}

static h3_status ref_copy(h3_dev *d UNUSED, h3_tensor y, h3_tensor x)
{
    for (int64_t r = 0; r < h3_n_rows(y); r++)
        copy_run(y, h3_row_offset(&y, r), x, h3_row_offset(&x, r), y.ne[y.rank - 1]);
    return H3_OK;
}

static h3_status ref_gather_rows(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    for (int64_t i = 0; i < h3_numel(idx); i++) {
        assert(index_at(idx, i) >= 0 && index_at(idx, i) < x.ne[0]);
        copy_run(y, i * y.st[0], x, index_at(idx, i) * x.st[0], y.ne[1]);
    }
    return H3_OK;
}

static h3_status ref_scatter_rows(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    for (int64_t i = 0; i < h3_numel(idx); i++) {
        assert(index_at(idx, i) >= 0 && index_at(idx, i) < y.ne[0]);
        copy_run(y, index_at(idx, i) * y.st[0], x, i * x.st[0], y.ne[1]);
    }
    return H3_OK;
}

static h3_status ref_scatter_add_rows(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    for (int64_t i = 0; i < h3_numel(idx); i++) {
        const int64_t yo = index_at(idx, i) * y.st[0], xo = i * x.st[0];
        assert(index_at(idx, i) >= 0 && index_at(idx, i) < y.ne[0]);
        for (int64_t c = 0; c < y.ne[1]; c++)
            put(y, yo + c, get(y, yo + c) + get(x, xo + c));
    }
    return H3_OK;
}

static h3_status ref_axpby(h3_dev *d UNUSED, h3_tensor y, float a, h3_tensor x, float b)
{
    for (int64_t r = 0; r < h3_n_rows(y); r++) {
        const int64_t yo = h3_row_offset(&y, r), xo = h3_row_offset(&x, r);
        for (int64_t c = 0; c < y.ne[y.rank - 1]; c++) {
            const float ax = a * get(x, xo + c), by = b * get(y, yo + c);
            put(y, yo + c, ax + by);
        }
    }
    return H3_OK;
}

static h3_status ref_affine_rows(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor a,
                                 h3_tensor b)
{
    const int64_t rows = h3_n_rows(y), per = y.rank > 1 && y.ne[0] ? rows / y.ne[0] : 1;

    for (int64_t r = 0; r < rows; r++) {
        const int64_t yo = h3_row_offset(&y, r), xo = h3_row_offset(&x, r);
        for (int64_t c = 0; c < y.ne[y.rank - 1]; c++) {
            const int64_t ch = y.rank > 1 ? r / per : c;
            const float p = get(x, xo + c) * get(a, ch);
            put(y, yo + c, p + get(b, ch));
        }
    }
    return H3_OK;
}

static h3_status ref_clamp(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, float lo, float hi)
{
    for (int64_t r = 0; r < h3_n_rows(y); r++) {
        const int64_t yo = h3_row_offset(&y, r), xo = h3_row_offset(&x, r);
        for (int64_t c = 0; c < y.ne[y.rank - 1]; c++) {
            const float v = get(x, xo + c);
            put(y, yo + c, v < lo ? lo : v > hi ? hi : v); // NaN stays NaN
        }
    }
    return H3_OK;
}

/* ---------------------------------------------------------------- convolutions and audio */

/* Where cell i (may be outside) of an axis of n cells is read from; -1 means zero. */
static int64_t pad_index(int64_t i, int64_t n, uint8_t mode)
{
    if (i >= 0 && i < n) return i;
    if (mode == H3_PAD_EDGE) return i < 0 ? 0 : n - 1;
    if (mode == H3_PAD_REFLECT) return i < 0 ? -i : 2 * (n - 1) - i;
    return -1;
}

/* acc[T'H'W'] += one input channel at x + xo convolved with taps [kt kh kw]. */
static void conv_channel(double *acc, h3_tensor y, h3_tensor x, int64_t xo, const float *tap,
                         const h3_conv *c)
{
    for (int64_t k = 0; k < (int64_t)c->kernel[0] * c->kernel[1] * c->kernel[2]; k++) {
        const int64_t kt = k / (c->kernel[1] * c->kernel[2]);
        const int64_t kh = k / c->kernel[2] % c->kernel[1], kw = k % c->kernel[2];
        const double v = (double)tap[k];
        for (int64_t r = 0; r < y.ne[1] * y.ne[2]; r++) {
            const int64_t t =
                pad_index(r / y.ne[2] * c->stride[0] + kt * c->dilation[0] - c->pad_lo[0], x.ne[1],
                          c->pad_mode[0]);
            const int64_t h =
                pad_index(r % y.ne[2] * c->stride[1] + kh * c->dilation[1] - c->pad_lo[1], x.ne[2],
                          c->pad_mode[1]);
            if (t < 0 || h < 0) continue;
            const int64_t line = xo + t * x.st[1] + h * x.st[2];
            for (int64_t w = 0; w < y.ne[3]; w++) {
                const int64_t i = pad_index(w * c->stride[2] + kw * c->dilation[2] - c->pad_lo[2],
                                            x.ne[3], c->pad_mode[2]);
                if (i >= 0) acc[r * y.ne[3] + w] += v * (double)get(x, line + i);
            }
        }
    }
}

static h3_status ref_conv(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, const h3_weight *w,
                          const h3_conv *c, h3_tensor add)
{
    const int64_t taps = (int64_t)c->kernel[0] * c->kernel[1] * c->kernel[2];
    const int64_t n = y.ne[1] * y.ne[2] * y.ne[3];
    double *acc = NULL;
    float *row = NULL;
    h3_status st;

    assert(x.rank == 4 && y.rank == 4 && w->cols == x.ne[0] * taps && w->rows == y.ne[0]);
    if ((st = take(&acc, n, sizeof *acc)) != H3_OK) goto done;
    if ((st = take(&row, w->cols, sizeof *row)) != H3_OK) goto done;
    for (int64_t co = 0; co < w->rows; co++) {
        h3_weight_rows(w, co, 1, row);
        for (int64_t i = 0; i < n; i++)
            acc[i] = (double)param(w->bias, co, 0);
        for (int64_t ci = 0; ci < x.ne[0]; ci++)
            conv_channel(acc, y, x, ci * x.st[0], row + ci * taps, c);
        for (int64_t i = 0; i < n; i++) {
            const int64_t t = i / y.ne[3] / y.ne[2], h = i / y.ne[3] % y.ne[2], v = i % y.ne[3];
            float sum = (float)acc[i];
            if (!h3_is_null(add))
                sum += get(add, co * add.st[0] + t * add.st[1] + h * add.st[2] + v);
            put(y, co * y.st[0] + t * y.st[1] + h * y.st[2] + v, sum);
        }
    }
done:
    free(row);
    free(acc);
    return st;
}

static h3_status ref_conv_transpose1d(h3_dev *d UNUSED, h3_tensor y, h3_tensor x,
                                      const h3_weight *w, int kernel, int stride, int pad)
{
    const int64_t Co = y.ne[0], N = y.ne[1];
    double *acc = NULL;
    float *row = NULL;
    h3_status st;

    assert(w->rows == x.ne[0] && w->cols == Co * kernel);
    assert(N == (x.ne[1] - 1) * stride + kernel - 2 * pad);
    if ((st = take(&acc, Co * N, sizeof *acc)) != H3_OK) goto done;
    if ((st = take(&row, w->cols, sizeof *row)) != H3_OK) goto done;
    for (int64_t i = 0; i < Co * N; i++)
        acc[i] = (double)param(w->bias, i / N, 0);
    for (int64_t ci = 0; ci < w->rows; ci++) {
        h3_weight_rows(w, ci, 1, row);
        for (int64_t i = 0; i < x.ne[1]; i++)
            for (int64_t co = 0; co < Co; co++)
                for (int64_t k = 0; k < kernel; k++) {
                    const int64_t at = i * stride + k - pad;
                    if (at >= 0 && at < N)
                        acc[co * N + at] +=
                            (double)get(x, ci * x.st[0] + i) * (double)row[co * kernel + k];
                }
    }
    for (int64_t i = 0; i < Co * N; i++)
        put(y, i / N * y.st[0] + i % N, (float)acc[i]);
done:
    free(row);
    free(acc);
    return st;
}

/* a x is rounded to f32 before the sine, as the reference does. */
static float snake_of(float x, float a, float b)
{
    const float ax = a * x;
    const float s = (float)sin((double)ax);
    return x + s * s / (b + 1e-9f);
}

static h3_status ref_snake(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b)
{
    for (int64_t c = 0; c < x.ne[0]; c++)
        for (int64_t n = 0; n < x.ne[1]; n++)
            put(y, c * y.st[0] + n, snake_of(get(x, c * x.st[0] + n), get(a, c), get(b, c)));
    return H3_OK;
}

static int64_t clamp_index(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i < n ? i : n - 1;
}

/* Sample m of the doubled signal: a padded sample i reaches outputs 2 i .. 2 i + 11, of which the
 * first 15 are cut. */
static double upsampled(h3_tensor x, int64_t at, int64_t m, h3_tensor up)
{
    double s = 0;
    for (int64_t k = (m + 15) & 1; k < 12; k += 2)
        s += (double)get(x, at + clamp_index((m + 15 - k) / 2 - 5, x.ne[1])) * (double)get(up, k);
    return 2 * s;
}

static h3_status ref_snake_aa(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b,
                              h3_tensor up, h3_tensor down)
{
    const int64_t N = x.ne[1];
    float *u = NULL; // [2 N] one channel's doubled signal after the snake
    h3_status st;

    if ((st = take(&u, 2 * N, sizeof *u)) != H3_OK) return st;
    for (int64_t c = 0; c < x.ne[0]; c++) {
        for (int64_t m = 0; m < 2 * N; m++)
            u[m] = snake_of((float)upsampled(x, c * x.st[0], m, up), get(a, c), get(b, c));
        for (int64_t n = 0; n < N; n++) {
            double s = 0;
            for (int64_t k = 0; k < 12; k++)
                s += (double)u[clamp_index(2 * n + k - 5, 2 * N)] * (double)get(down, k);
            put(y, c * y.st[0] + n, (float)s);
        }
    }
    free(u);
    return H3_OK;
}

static h3_status ref_transpose(h3_dev *d UNUSED, h3_tensor y, h3_tensor x)
{
    assert(x.rank == 2 && y.rank == 2 && x.ne[0] == y.ne[1] && x.ne[1] == y.ne[0]);
    for (int64_t i = 0; i < x.ne[0]; i++)
        for (int64_t j = 0; j < x.ne[1]; j++)
            put(y, j * y.st[0] + i, get(x, i * x.st[0] + j));
    return H3_OK;
}

static h3_status ref_mean_groups(h3_dev *d UNUSED, h3_tensor y, h3_tensor x)
{
    const int64_t H = x.ne[1], C = x.ne[2], J = y.ne[1];

    assert(x.rank == 3);
    for (int64_t s = 0; s < x.ne[0]; s++)
        for (int64_t j = 0; j < J; j++) {
            const int64_t from = j * C / J, to = ((j + 1) * C + J - 1) / J;
            double sum = 0;
            for (int64_t c = from; c < to; c++) {
                double over_h = 0;
                for (int64_t h = 0; h < H; h++)
                    over_h += (double)get(x, s * x.st[0] + h * x.st[1] + c);
                sum += over_h / (double)H;
            }
            put(y, s * y.st[0] + j, (float)(sum / (double)(to - from)));
        }
    return H3_OK;
}

/* ---------------------------------------------------------------- video tiles */

static h3_status ref_unpatchify(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, int64_t t, int64_t h,
                                int64_t w, int pt, int p)
{
    assert(x.ne[0] == t * h * w && x.ne[1] == 3 * (int64_t)pt * p * p && y.rank == 4);
    for (int64_t r = 0; r < t * h * w; r++)
        for (int64_t q = 0; q < 3 * (int64_t)pt * p; q++) { // q = (colour, frame, line)
            const int64_t colour = q / (pt * p), frame = r / (h * w) * pt + q / p % pt;
            const int64_t line = r / w % h * p + q % p;
            for (int64_t i = 0; i < p; i++)
                put(y, colour * y.st[0] + frame * y.st[1] + line * y.st[2] + r % w * p + i,
                    get(x, r * x.st[0] + q * p + i));
        }
    return H3_OK;
}

static h3_status ref_fade(h3_dev *d UNUSED, h3_tensor y, h3_tensor a, int axis, int64_t n)
{
    assert(y.rank == 4 && a.rank == 4 && n <= y.ne[axis] && n <= a.ne[axis]);
    y.ne[axis] = n;
    for (int64_t r = 0; r < h3_n_rows(y); r++) {
        const int64_t at[3] = {r / (y.ne[2] * y.ne[1]), r / y.ne[2] % y.ne[1], r % y.ne[2]};
        const int64_t yo = h3_row_offset(&y, r);
        const int64_t ao = at[0] * a.st[0] + at[1] * a.st[1] + at[2] * a.st[2];
        for (int64_t c = 0; c < y.ne[3]; c++) {
            const float ramp = (float)(axis == 3 ? c : at[axis]) / (float)n;
            const float old = get(a, ao + c) * (1.0f - ramp), new = get(y, yo + c) * ramp;
            put(y, yo + c, old + new);
        }
    }
    return H3_OK;
}

static h3_status ref_to_u8(h3_dev *d UNUSED, h3_tensor y, h3_tensor x, const float *mean,
                           const float *std)
{
    assert(x.rank == 4 && x.ne[0] == 3 && y.dtype == H3_U8 && y.ne[3] == 3);
    for (int64_t r = 0; r < x.ne[1] * x.ne[2]; r++)
        for (int64_t w = 0; w < x.ne[3]; w++)
            for (int64_t c = 0; c < 3; c++) {
                const int64_t f = r / x.ne[2], h = r % x.ne[2];
                const float p = get(x, c * x.st[0] + f * x.st[1] + h * x.st[2] + w) * std[c];
                const float v = p + mean[c];
                const float u = (v > 0 ? v < 1 ? v : 1.0f : 0.0f) * 255.0f; // NaN becomes 0
                ((uint8_t *)y.data)[f * y.st[0] + h * y.st[1] + w * y.st[2] + c] =
                    (uint8_t)lrintf(u);
            }
    return H3_OK;
}

/* ---------------------------------------------------------------- sampler */

static h3_status ref_flow_step(h3_dev *d UNUSED, h3_tensor x, h3_tensor v, float sigma, float ratio)
{
    const float rest = 1.0f - ratio;

    for (int64_t r = 0; r < h3_n_rows(x); r++) {
        const int64_t xo = h3_row_offset(&x, r), vo = h3_row_offset(&v, r);
        for (int64_t c = 0; c < x.ne[x.rank - 1]; c++) {
            const float now = get(x, xo + c), sv = sigma * get(v, vo + c);
            const float x0 = now + sv;
            const float keep = ratio * now, move = rest * x0;
            put(x, xo + c, keep + move);
        }
    }
    return H3_OK;
}

static h3_status ref_check_finite(h3_dev *d UNUSED, h3_tensor x, int *bad)
{
    for (int64_t r = 0; r < h3_n_rows(x); r++)
        for (int64_t c = 0, at = h3_row_offset(&x, r); c < x.ne[x.rank - 1]; c++)
            if (!isfinite(get(x, at + c))) {
                *bad = 1;
                return H3_OK;
            }
    return H3_OK;
}

void h3_ops_ref_init(h3_ops *op)
{
#define X(name) op->name = ref_##name;
    H3_OPS(X)
#undef X
}
