/**
 * Norms, rotary embedding, gates and elementwise entries: one row at a time, VL lanes at a time,
 * rows over threads. All of them are bound by memory; each reads its inputs once (a norm reads its
 * row a second time from cache). Sums of a row are kept in 2 VL lanes and added in a fixed order.
 */
#include <assert.h>

#include "cpu.h"
#include "lanes.h"

/* Too little work is not worth waking threads for. */
static int threads_for(const h3_dev *d, int64_t elements)
{
    return elements < 16384 ? 1 : d->n_threads;
}

/* The last, partial vector of a row goes through the _n forms: body(i, n) sees n == VL elsewhere.
 * GET and PUT choose. */
#define GET(t, at, n) \
    ((n) == VL ? v_get((t).data, (t).dtype, at) : v_get_n((t).data, (t).dtype, at, n))
#define PUT(t, at, v, n)                            \
    do {                                            \
        if ((n) == VL)                              \
            v_put((t).data, (t).dtype, at, v);      \
        else                                        \
            v_put_n((t).data, (t).dtype, at, v, n); \
    } while (0)
#define LANES(i, C) (int)((C) - (i) < VL ? (C) - (i) : VL)

static int32_t index_at(h3_tensor t, int64_t i)
{
    return ((const int32_t *)t.data)[i];
}

/* ---------------------------------------------------------------- norms */

INLINE float rms_inverse(h3_tensor x, int64_t at, int64_t C, float eps)
{
    vf a = v_set(0), b = v_set(0);
    int64_t i = 0;

    for (; i + 2 * VL <= C; i += 2 * VL) {
        const vf u = v_get(x.data, x.dtype, at + i), v = v_get(x.data, x.dtype, at + i + VL);
        a = v_fma(u, u, a);
        b = v_fma(v, v, b);
    }
    for (; i < C; i += VL) {
        const vf u = GET(x, at + i, LANES(i, C));
        a = v_fma(u, u, a);
    }
    return 1.0f / sqrtf(v_sum(a + b) / (float)C + eps);
}

static h3_status rms_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                          bool round_first)
{
    const int64_t C = x.ne[x.rank - 1], rows = h3_n_rows(x);
    const uint8_t first = round_first ? y.dtype : H3_F32;

#pragma omp parallel for schedule(static) num_threads(threads_for(d, rows *C))
    for (int64_t r = 0; r < rows; r++) {
        const int64_t xo = h3_row_offset(&x, r), yo = h3_row_offset(&y, r);
        const vf inv = v_set(rms_inverse(x, xo, C, eps));
        for (int64_t i = 0; i < C; i += VL) {
            const int n = LANES(i, C);
            vf v = v_round(first, GET(x, xo + i, n) * inv);
            if (g.data) v *= GET(g, i, n);
            PUT(y, yo + i, v, n);
        }
    }
    return H3_OK;
}

static h3_status layer_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                            float eps)
{
    const int64_t C = x.ne[x.rank - 1], rows = h3_n_rows(x);

#pragma omp parallel for schedule(static) num_threads(threads_for(d, rows *C))
    for (int64_t r = 0; r < rows; r++) {
        const int64_t xo = h3_row_offset(&x, r), yo = h3_row_offset(&y, r);
        vf sum = v_set(0), var = v_set(0);
        for (int64_t i = 0; i < C; i += VL)
            sum += GET(x, xo + i, LANES(i, C));
        const float mean = v_sum(sum) / (float)C;
        for (int64_t i = 0; i < C; i += VL) {
            const int n = LANES(i, C);
            vf v = GET(x, xo + i, n) - mean;
            for (int j = n; j < VL; j++)
                v[j] = 0;
            var = v_fma(v, v, var);
        }
        const float inv = 1.0f / sqrtf(v_sum(var) / (float)C + eps);
        for (int64_t i = 0; i < C; i += VL) {
            const int n = LANES(i, C);
            vf v = (GET(x, xo + i, n) - mean) * inv;
            if (g.data) v *= GET(g, i, n);
            if (b.data) v += GET(b, i, n);
            PUT(y, yo + i, v, n);
        }
    }
    return H3_OK;
}

static h3_status rms_norm_mod(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, float eps,
                              h3_tensor mod, int i_shift, int i_scale, h3_tensor row)
{
    const int64_t C = x.ne[x.rank - 1], rows = h3_n_rows(x);
    const uint8_t t = y.dtype;

#pragma omp parallel for schedule(static) num_threads(threads_for(d, rows *C))
    for (int64_t r = 0; r < rows; r++) {
        const int64_t xo = h3_row_offset(&x, r), yo = h3_row_offset(&y, r);
        const int64_t m = index_at(row, r) * mod.st[0];
        const int64_t shift = m + i_shift * mod.st[1], scale = m + i_scale * mod.st[1];
        const vf inv = v_set(rms_inverse(x, xo, C, eps));
        for (int64_t i = 0; i < C; i += VL) {
            const int n = LANES(i, C);
            vf v = GET(x, xo + i, n) * inv;
            if (g.data) v *= GET(g, i, n);
            v = v_round(t, v_round(t, v) * v_round(t, 1.0f + GET(mod, scale + i, n)));
            v += GET(mod, shift + i, n);
            PUT(y, yo + i, v, n);
        }
    }
    return H3_OK;
}

/* Statistics in double across lines, f32 lanes within one. */
static h3_status group_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b,
                            int groups, float eps, bool silu)
{
    const int64_t T = x.ne[1], H = x.ne[2], W = x.ne[3], per = x.ne[0] / groups;
    const double count = (double)(per * H * W);
    const float *gain = g.data, *bias = b.data;

#pragma omp parallel for schedule(dynamic, 1) num_threads(threads_for(d, h3_numel(x)))
    for (int64_t q = 0; q < groups * T; q++) {
        const int64_t t = q % T, c0 = q / T * per;
        double sum = 0, var = 0;
        for (int64_t l = 0; l < per * H; l++) {
            const int64_t at = (c0 + l / H) * x.st[0] + t * x.st[1] + l % H * x.st[2];
            vf s = v_set(0);
            for (int64_t i = 0; i < W; i += VL)
                s += GET(x, at + i, LANES(i, W));
            sum += (double)v_sum(s);
        }
        const float mean = (float)(sum / count);
        for (int64_t l = 0; l < per * H; l++) {
            const int64_t at = (c0 + l / H) * x.st[0] + t * x.st[1] + l % H * x.st[2];
            vf s = v_set(0);
            for (int64_t i = 0; i < W; i += VL) {
                const int n = LANES(i, W);
                vf v = GET(x, at + i, n) - mean;
                for (int j = n; j < VL; j++)
                    v[j] = 0;
                s = v_fma(v, v, s);
            }
            var += (double)v_sum(s);
        }
        const float inv = (float)(1 / sqrt(var / count + (double)eps));
        for (int64_t l = 0; l < per * H; l++) {
            const int64_t c = c0 + l / H, h = l % H;
            const int64_t at = c * x.st[0] + t * x.st[1] + h * x.st[2];
            const int64_t to = c * y.st[0] + t * y.st[1] + h * y.st[2];
            const float mul = inv * (gain ? gain[c] : 1.0f), add = bias ? bias[c] : 0.0f;
            for (int64_t i = 0; i < W; i += VL) {
                const int n = LANES(i, W);
                vf v = (GET(x, at + i, n) - mean) * mul + add;
                if (silu) v = v_silu(v);
                PUT(y, to + i, v, n);
            }
        }
    }
    return H3_OK;
}

/* One head: rotate the first 2 R channels by the tables of its row. */
INLINE void rotate(h3_tensor x, int64_t at, h3_tensor cos, int64_t co, h3_tensor sin, int64_t so)
{
    const int64_t R = cos.ne[cos.rank - 1];
    const uint8_t t = cos.dtype;

    for (int64_t i = 0; i < R; i += VL) {
        const int n = LANES(i, R);
        const vf c = GET(cos, co + i, n), s = GET(sin, so + i, n);
        const vf a = GET(x, at + i, n), b = GET(x, at + R + i, n);
        const vf lo = v_round(t, a * c) - v_round(t, b * s);
        const vf hi = v_round(t, b * c) + v_round(t, a * s);
        PUT(x, at + i, lo, n);
        PUT(x, at + R + i, hi, n);
    }
}

static h3_status head_norm_rope(h3_dev *d, h3_tensor x, h3_tensor g, float eps, bool round_first,
                                h3_tensor cos, h3_tensor sin)
{
    const int64_t S = x.ne[0], H = x.ne[1], D = x.ne[2];
    const uint8_t first = round_first ? x.dtype : H3_F32;

#pragma omp parallel for schedule(static) num_threads(threads_for(d, S *H *D))
    for (int64_t q = 0; q < S * H; q++) {
        const int64_t s = q / H, at = s * x.st[0] + q % H * x.st[1];
        if (eps > 0) {
            const vf inv = v_set(rms_inverse(x, at, D, eps));
            for (int64_t i = 0; i < D; i += VL) {
                const int n = LANES(i, D);
                vf v = v_round(first, GET(x, at + i, n) * inv);
                if (g.data) v *= GET(g, i, n);
                PUT(x, at + i, v, n);
            }
        }
        if (cos.data) rotate(x, at, cos, s * cos.st[0], sin, s * sin.st[0]);
    }
    return H3_OK;
}

static h3_status qk_norm_rope(h3_dev *d, h3_tensor q, h3_tensor k, h3_tensor gq, h3_tensor gk,
                              float eps, bool round_first, h3_tensor cos, h3_tensor sin)
{
    H3_TRY(head_norm_rope(d, q, gq, eps, round_first, cos, sin));
    return head_norm_rope(d, k, gk, eps, round_first, cos, sin);
}

/* ---------------------------------------------------------------- elementwise */

/* Every row r of `shape` over threads, and every vector of it: channel i, n lanes. */
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define EACH_ROW(d, shape)                                                                 \
    PRAGMA(omp parallel for schedule(static) num_threads(threads_for(d, h3_numel(shape)))) \
    for (int64_t r = 0; r < h3_n_rows(shape); r++)
#define EACH_LANES(C) for (int64_t i = 0, n = LANES(0, C); i < (C); i += VL, n = LANES(i, C))

static h3_status gate_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor mod, int i_gate,
                          h3_tensor row)
{
    const int64_t C = x.ne[x.rank - 1];

    EACH_ROW(d, x)
    {
        const int64_t xo = h3_row_offset(&x, r), ho = h3_row_offset(&h, r);
        const int64_t gate = index_at(row, r) * mod.st[0] + i_gate * mod.st[1];
        EACH_LANES(C)
        {
            const vf p = v_round(x.dtype, GET(mod, gate + i, (int)n) * GET(h, ho + i, (int)n));
            PUT(x, xo + i, GET(x, xo + i, (int)n) + p, (int)n);
        }
    }
    return H3_OK;
}

/* The rows of one half of a block are far more than a cache holds: two passes cost no more here. */
static h3_status gate_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor mod,
                               int i_gate, h3_tensor g, float eps, h3_tensor next, int i_shift,
                               int i_scale, h3_tensor row)
{
    H3_TRY(gate_add(d, x, h, mod, i_gate, row));
    return rms_norm_mod(d, y, x, g, eps, next, i_shift, i_scale, row);
}

static h3_status scale_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor g)
{
    const int64_t C = x.ne[x.rank - 1];

    EACH_ROW(d, x)
    {
        const int64_t xo = h3_row_offset(&x, r), ho = h3_row_offset(&h, r);
        EACH_LANES(C)
        {
            vf p = GET(h, ho + i, (int)n);
            if (g.data) p *= GET(g, i, (int)n);
            PUT(x, xo + i, GET(x, xo + i, (int)n) + v_round(x.dtype, p), (int)n);
        }
    }
    return H3_OK;
}

static h3_status scale_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h, h3_tensor s,
                                h3_tensor g, float eps)
{
    H3_TRY(scale_add(d, x, h, s));
    return rms_norm(d, y, x, g, eps, false);
}

static h3_status add(h3_dev *d, h3_tensor y, h3_tensor a, h3_tensor b)
{
    const int64_t C = y.ne[y.rank - 1];

    EACH_ROW(d, y)
    {
        const int64_t yo = h3_row_offset(&y, r), ao = h3_row_offset(&a, r),
                      bo = h3_row_offset(&b, r);
        EACH_LANES(C)
        PUT(y, yo + i, GET(a, ao + i, (int)n) + GET(b, bo + i, (int)n), (int)n);
    }
    return H3_OK;
}

static h3_status silu_mul(h3_dev *d, h3_tensor y, h3_tensor gate, h3_tensor up)
{
    const int64_t C = y.ne[y.rank - 1];

    EACH_ROW(d, y)
    {
        const int64_t yo = h3_row_offset(&y, r), go = h3_row_offset(&gate, r),
                      uo = h3_row_offset(&up, r);
        EACH_LANES(C)
        {
            const vf s = v_round(y.dtype, v_silu(GET(gate, go + i, (int)n)));
            PUT(y, yo + i, s * GET(up, uo + i, (int)n), (int)n);
        }
    }
    return H3_OK;
}

static h3_status act(h3_dev *d, h3_tensor y, h3_tensor x, h3_act kind)
{
    const int64_t C = y.ne[y.rank - 1];

    EACH_ROW(d, y)
    {
        const int64_t yo = h3_row_offset(&y, r), xo = h3_row_offset(&x, r);
        EACH_LANES(C)
        {
            vf v = GET(x, xo + i, (int)n);
            if (kind == H3_ACT_SILU)
                v = v_silu(v);
            else if (kind == H3_ACT_GELU_TANH)
                v = v_gelu_tanh(v);
            else if (kind == H3_ACT_GELU_ERF)
                v = v_gelu_erf(v);
            PUT(y, yo + i, v, (int)n);
        }
    }
    return H3_OK;
}

/* n elements of one row, converting unless the dtypes agree. */
static void copy_run(h3_tensor y, int64_t yo, h3_tensor x, int64_t xo, int64_t n)
{
    if (x.dtype == y.dtype) {
        memmove(h3_num_at(y, yo), h3_num_at(x, xo), (size_t)n * h3_dtype_bytes((h3_dtype)x.dtype));
    } else if (x.dtype == H3_F16 || y.dtype == H3_F16) {
        for (int64_t i = 0; i < n; i++)
            h3_num_store(y.data, y.dtype, yo + i, h3_num_load(x.data, x.dtype, xo + i));
    } else {
        for (int64_t i = 0; i < n; i += VL)
            PUT(y, yo + i, GET(x, xo + i, LANES(i, n)), LANES(i, n));
    }
}

static h3_status copy(h3_dev *d, h3_tensor y, h3_tensor x)
{
    EACH_ROW(d, y)
    copy_run(y, h3_row_offset(&y, r), x, h3_row_offset(&x, r), y.ne[y.rank - 1]);
    return H3_OK;
}

static h3_status gather_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    EACH_ROW(d, y)
    {
        assert(index_at(idx, r) >= 0 && index_at(idx, r) < x.ne[0]);
        copy_run(y, r * y.st[0], x, index_at(idx, r) * x.st[0], y.ne[1]);
    }
    return H3_OK;
}

static h3_status scatter_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    EACH_ROW(d, x)
    {
        assert(index_at(idx, r) >= 0 && index_at(idx, r) < y.ne[0]);
        copy_run(y, index_at(idx, r) * y.st[0], x, r * x.st[0], y.ne[1]);
    }
    return H3_OK;
}

static h3_status scatter_add_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor idx)
{
    EACH_ROW(d, x)
    {
        const int64_t yo = index_at(idx, r) * y.st[0], xo = r * x.st[0];
        assert(index_at(idx, r) >= 0 && index_at(idx, r) < y.ne[0]);
        EACH_LANES(y.ne[1])
        PUT(y, yo + i, GET(y, yo + i, (int)n) + GET(x, xo + i, (int)n), (int)n);
    }
    return H3_OK;
}

/* The next four state every rounding: plain float arithmetic, never contracted (see lanes.h). */

static h3_status axpby(h3_dev *d, h3_tensor y, float a, h3_tensor x, float b)
{
    const int64_t C = y.ne[y.rank - 1];

    EACH_ROW(d, y)
    {
        float *to = h3_num_at(y, h3_row_offset(&y, r));
        const float *from = h3_num_at(x, h3_row_offset(&x, r));
        for (int64_t c = 0; c < C; c++) {
            const float ax = a * from[c], by = b * to[c];
            to[c] = ax + by;
        }
    }
    return H3_OK;
}

static h3_status affine_rows(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b)
{
    const int64_t C = y.ne[y.rank - 1], rows = h3_n_rows(y);
    const int64_t per = y.ne[0] > 0 ? rows / y.ne[0] : 1; // rows of one channel; 0: rank 1
    const float *mul = a.data, *plus = b.data;

    EACH_ROW(d, y)
    {
        float *to = h3_num_at(y, h3_row_offset(&y, r));
        const float *from = h3_num_at(x, h3_row_offset(&x, r));
        for (int64_t c = 0; c < C; c++) {
            const int64_t ch = y.rank > 1 ? r / per : c;
            const float p = from[c] * mul[ch];
            to[c] = p + plus[ch];
        }
    }
    return H3_OK;
}

static h3_status flow_step(h3_dev *d, h3_tensor x, h3_tensor v, float sigma, float ratio)
{
    const int64_t C = x.ne[x.rank - 1];
    const float rest = 1.0f - ratio;

    EACH_ROW(d, x)
    {
        float *to = h3_num_at(x, h3_row_offset(&x, r));
        const float *from = h3_num_at(v, h3_row_offset(&v, r));
        for (int64_t c = 0; c < C; c++) {
            const float sv = sigma * from[c], x0 = to[c] + sv;
            const float keep = ratio * to[c], move = rest * x0;
            to[c] = keep + move;
        }
    }
    return H3_OK;
}

static h3_status clamp(h3_dev *d, h3_tensor y, h3_tensor x, float lo, float hi)
{
    const int64_t C = y.ne[y.rank - 1];

    EACH_ROW(d, y)
    {
        float *to = h3_num_at(y, h3_row_offset(&y, r));
        const float *from = h3_num_at(x, h3_row_offset(&x, r));
        for (int64_t c = 0; c < C; c++)
            to[c] = from[c] < lo ? lo : from[c] > hi ? hi : from[c];
    }
    return H3_OK;
}

static h3_status check_finite(h3_dev *d, h3_tensor x, int *bad)
{
    const int64_t C = x.ne[x.rank - 1];
    int found = 0;

#pragma omp parallel for schedule(static) reduction(|        \
                                                    : found) \
    num_threads(threads_for(d, h3_numel(x)))
    for (int64_t r = 0; r < h3_n_rows(x); r++) {
        const int64_t at = h3_row_offset(&x, r);
        vu any = {0};
        EACH_LANES(C)
        {
            const vu u = (vu)GET(x, at + i, (int)n) & 0x7f800000u;
            any |= (vu)(u == 0x7f800000u);
        }
        for (int j = 0; j < VL; j++)
            found |= any[j] != 0;
    }
    if (found) *bad = 1;
    return H3_OK;
}

/* ---------------------------------------------------------------- layouts */

/* Blocks of 32 x 32 keep both sides in cache. */
static h3_status transpose(h3_dev *d, h3_tensor y, h3_tensor x)
{
    enum { B = 32 };
    const int64_t I = x.ne[0], J = x.ne[1];

#pragma omp parallel for schedule(static) num_threads(threads_for(d, I *J))
    for (int64_t i0 = 0; i0 < I; i0 += B)
        for (int64_t j0 = 0; j0 < J; j0 += B)
            for (int64_t j = j0; j < j0 + B && j < J; j++)
                for (int64_t i = i0; i < i0 + B && i < I; i++)
                    h3_num_store(y.data, y.dtype, j * y.st[0] + i,
                                 h3_num_load(x.data, x.dtype, i * x.st[0] + j));
    return H3_OK;
}

static h3_status mean_groups(h3_dev *d, h3_tensor y, h3_tensor x)
{
    const int64_t H = x.ne[1], C = x.ne[2], J = y.ne[1];

#pragma omp parallel for schedule(static) num_threads(threads_for(d, h3_numel(x)))
    for (int64_t s = 0; s < x.ne[0]; s++)
        for (int64_t j = 0; j < J; j++) {
            const int64_t from = j * C / J, to = ((j + 1) * C + J - 1) / J;
            float sum = 0;
            for (int64_t c = from; c < to; c++) {
                float over_h = 0;
                for (int64_t h = 0; h < H; h++)
                    over_h += h3_num_load(x.data, x.dtype, s * x.st[0] + h * x.st[1] + c);
                sum += over_h / (float)H;
            }
            h3_num_store(y.data, y.dtype, s * y.st[0] + j, sum / (float)(to - from));
        }
    return H3_OK;
}

static h3_status unpatchify(h3_dev *d, h3_tensor y, h3_tensor x, int64_t t, int64_t h, int64_t w,
                            int pt, int p)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(d, h3_numel(x)))
    for (int64_t r = 0; r < t * h * w; r++)
        for (int64_t q = 0; q < 3 * (int64_t)pt * p; q++) { // q = (colour, frame, line)
            const int64_t frame = r / (h * w) * pt + q / p % pt, line = r / w % h * p + q % p;
            const int64_t to = q / (pt * p) * y.st[0] + frame * y.st[1] + line * y.st[2];
            copy_run(y, to + r % w * p, x, r * x.st[0] + q * p, p);
        }
    return H3_OK;
}

static h3_status fade(h3_dev *d, h3_tensor y, h3_tensor a, int axis, int64_t n)
{
    y.ne[axis] = n;
    EACH_ROW(d, y)
    {
        const int64_t at[3] = {r / (y.ne[2] * y.ne[1]), r / y.ne[2] % y.ne[1], r % y.ne[2]};
        float *to = h3_num_at(y, h3_row_offset(&y, r));
        const float *from = h3_num_at(a, at[0] * a.st[0] + at[1] * a.st[1] + at[2] * a.st[2]);
        for (int64_t c = 0; c < y.ne[3]; c++) {
            const float ramp = (float)(axis == 3 ? c : at[axis]) / (float)n;
            const float old = from[c] * (1.0f - ramp), new = to[c] * ramp;
            to[c] = old + new;
        }
    }
    return H3_OK;
}

static h3_status to_u8(h3_dev *d, h3_tensor y, h3_tensor x, const float *mean, const float *std)
{
    const int64_t H = x.ne[2], W = x.ne[3];

#pragma omp parallel for schedule(static) num_threads(threads_for(d, h3_numel(x)))
    for (int64_t r = 0; r < x.ne[1] * H; r++)
        for (int64_t c = 0; c < 3; c++) {
            const float *from = h3_num_at(x, c * x.st[0] + r / H * x.st[1] + r % H * x.st[2]);
            uint8_t *to = (uint8_t *)y.data + r / H * y.st[0] + r % H * y.st[1] + c;
            for (int64_t w = 0; w < W; w++) {
                const float p = from[w] * std[c], v = p + mean[c];
                const float u = (v > 0 ? v < 1 ? v : 1.0f : 0.0f) * 255.0f;
                to[w * y.st[2]] = (uint8_t)(int)(u + 0x1.8p23f - 0x1.8p23f); // ties to even
            }
        }
    return H3_OK;
}

void ISA(h3_cpu_fill_rows)(h3_ops *op)
{
    op->rms_norm = rms_norm;
    op->layer_norm = layer_norm;
    op->rms_norm_mod = rms_norm_mod;
    op->group_norm = group_norm;
    op->head_norm_rope = head_norm_rope;
    op->qk_norm_rope = qk_norm_rope;
    op->gate_add = gate_add;
    op->gate_add_norm = gate_add_norm;
    op->scale_add = scale_add;
    op->scale_add_norm = scale_add_norm;
    op->add = add;
    op->silu_mul = silu_mul;
    op->act = act;
    op->copy = copy;
    op->gather_rows = gather_rows;
    op->scatter_rows = scatter_rows;
    op->scatter_add_rows = scatter_add_rows;
    op->axpby = axpby;
    op->affine_rows = affine_rows;
    op->flow_step = flow_step;
    op->clamp = clamp;
    op->check_finite = check_finite;
    op->transpose = transpose;
    op->mean_groups = mean_groups;
    op->unpatchify = unpatchify;
    op->fade = fade;
    op->to_u8 = to_u8;
}
