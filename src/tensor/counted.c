/**
 * The table that networks call: each entry counts the call, its FLOPs and bytes, checks that the
 * tensors live on this device, times it when asked, and passes on to the backend's own entry. This
 * is where "the fast path ran" is proved: a call that reaches a reference entry on a fast device is
 * counted apart.
 */
#include <assert.h>
#include <time.h>

#include "counted.h"
#include "dev.h"
#include "ops_cost.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool __attribute__((unused)) lives_on(const h3_dev *d, h3_tensor t)
{
    return h3_is_null(t) || t.mem == d->mem;
}

/* A rank may own no rows of some medium; backends need not know. */
static bool is_empty(h3_tensor t)
{
    return h3_numel(t) == 0;
}

static double begin(h3_dev *d, h3_op_id id, h3_op_cost c)
{
    h3_op_stat *s = &d->stat[id];

    s->calls++;
    s->flops += c.flops;
    s->bytes += c.bytes;
    if (d->is_ref[id]) s->ref_calls++;
    return d->is_timing ? now() : 0.0;
}

static h3_status end(h3_dev *d, h3_op_id id, double t0, h3_status st)
{
    if (d->is_timing) {
        if (st == H3_OK && d->sync) st = d->sync(d);
        d->stat[id].seconds += now() - t0;
    }
    return st;
}

/* COUNTED(entry, cost, declared parameters, passed arguments): y and x name the checked tensors. */
#define REST(name, out, in) h3_cost_rest(H3_OP_##name, out, 1, &in)
#define COUNTED(name, cost_expr, params, args)               \
    static h3_status counted_##name params                   \
    {                                                        \
        assert(lives_on(d, y) && lives_on(d, x));            \
        if (is_empty(y) || is_empty(x)) return H3_OK;        \
        const double t0 = begin(d, H3_OP_##name, cost_expr); \
        return end(d, H3_OP_##name, t0, d->impl.name args);  \
    }

COUNTED(gemm, h3_cost_gemm(y, x, w),
        (h3_dev * d, h3_tensor y, h3_tensor x, const h3_weight *w, h3_act act), (d, y, x, w, act))
COUNTED(rms_norm, REST(rms_norm, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor g, float eps, bool round_first),
        (d, y, x, g, eps, round_first))
COUNTED(layer_norm, REST(layer_norm, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b, float eps),
        (d, y, x, g, b, eps))
COUNTED(rms_norm_mod, REST(rms_norm_mod, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor g, float eps, h3_tensor mod, int i_shift,
         int i_scale, h3_tensor row),
        (d, y, x, g, eps, mod, i_shift, i_scale, row))
COUNTED(group_norm, REST(group_norm, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor g, h3_tensor b, int groups, float eps,
         bool silu),
        (d, y, x, g, b, groups, eps, silu))
COUNTED(silu_mul, REST(silu_mul, y, x), (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor up),
        (d, y, x, up))
COUNTED(act, REST(act, y, x), (h3_dev * d, h3_tensor y, h3_tensor x, h3_act act), (d, y, x, act))
COUNTED(copy, REST(copy, y, x), (h3_dev * d, h3_tensor y, h3_tensor x), (d, y, x))
COUNTED(add, REST(add, y, x), (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor b), (d, y, x, b))
COUNTED(gather_rows, REST(gather_rows, y, y), (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor idx),
        (d, y, x, idx))
COUNTED(scatter_rows, REST(scatter_rows, x, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor idx), (d, y, x, idx))
COUNTED(scatter_add_rows, REST(scatter_add_rows, x, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor idx), (d, y, x, idx))
COUNTED(axpby, REST(axpby, y, x), (h3_dev * d, h3_tensor y, float a, h3_tensor x, float b),
        (d, y, a, x, b))
COUNTED(affine_rows, REST(affine_rows, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b), (d, y, x, a, b))
COUNTED(clamp, REST(clamp, y, x), (h3_dev * d, h3_tensor y, h3_tensor x, float lo, float hi),
        (d, y, x, lo, hi))
COUNTED(conv, h3_cost_conv(y, x, w, add),
        (h3_dev * d, h3_tensor y, h3_tensor x, const h3_weight *w, const h3_conv *c, h3_tensor add),
        (d, y, x, w, c, add))
COUNTED(conv_transpose1d, h3_cost_conv_transpose1d(y, x, w, kernel),
        (h3_dev * d, h3_tensor y, h3_tensor x, const h3_weight *w, int kernel, int stride, int pad),
        (d, y, x, w, kernel, stride, pad))
COUNTED(snake, REST(snake, y, x), (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b),
        (d, y, x, a, b))
COUNTED(snake_aa, REST(snake_aa, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, h3_tensor a, h3_tensor b, h3_tensor up,
         h3_tensor down),
        (d, y, x, a, b, up, down))
COUNTED(transpose, REST(transpose, y, x), (h3_dev * d, h3_tensor y, h3_tensor x), (d, y, x))
COUNTED(mean_groups, REST(mean_groups, y, x), (h3_dev * d, h3_tensor y, h3_tensor x), (d, y, x))
COUNTED(unpatchify, REST(unpatchify, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, int64_t t, int64_t h, int64_t w, int pt, int p),
        (d, y, x, t, h, w, pt, p))
COUNTED(fade, REST(fade, y, x), (h3_dev * d, h3_tensor y, h3_tensor x, int axis, int64_t n),
        (d, y, x, axis, n))
COUNTED(to_u8, REST(to_u8, y, x),
        (h3_dev * d, h3_tensor y, h3_tensor x, const float *mean, const float *std),
        (d, y, x, mean, std))

static h3_status counted_embed(h3_dev *d, h3_tensor y, const h3_weight *w, h3_tensor ids)
{
    assert(lives_on(d, y) && lives_on(d, ids));
    const double t0 = begin(d, H3_OP_embed, h3_cost_embed(y, w));
    return end(d, H3_OP_embed, t0, d->impl.embed(d, y, w, ids));
}

static h3_status counted_head_norm_rope(h3_dev *d, h3_tensor x, h3_tensor g, float eps,
                                        bool round_first, h3_tensor cos, h3_tensor sin)
{
    assert(lives_on(d, x) && lives_on(d, cos) && lives_on(d, sin));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_head_norm_rope, REST(head_norm_rope, x, x));
    return end(d, H3_OP_head_norm_rope, t0,
               d->impl.head_norm_rope(d, x, g, eps, round_first, cos, sin));
}

static h3_status counted_qk_norm_rope(h3_dev *d, h3_tensor q, h3_tensor k, h3_tensor gq,
                                      h3_tensor gk, float eps, bool round_first, h3_tensor cos,
                                      h3_tensor sin)
{
    h3_op_cost c = REST(qk_norm_rope, q, q);
    const h3_op_cost of_k = REST(qk_norm_rope, k, k);

    assert(lives_on(d, q) && lives_on(d, k) && lives_on(d, cos) && lives_on(d, sin));
    if (is_empty(q)) return H3_OK;
    c.flops += of_k.flops;
    c.bytes += of_k.bytes;
    const double t0 = begin(d, H3_OP_qk_norm_rope, c);
    return end(d, H3_OP_qk_norm_rope, t0,
               d->impl.qk_norm_rope(d, q, k, gq, gk, eps, round_first, cos, sin));
}

static h3_status counted_attention(h3_dev *d, h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v,
                                   float scale, const int32_t *cu, int n_segments, bool causal)
{
    assert(lives_on(d, o) && lives_on(d, q) && lives_on(d, k) && lives_on(d, v));
    if (is_empty(o)) return H3_OK;
    const double t0 =
        begin(d, H3_OP_attention, h3_cost_attention(o, q, k, v, cu, n_segments, causal));
    return end(d, H3_OP_attention, t0,
               d->impl.attention(d, o, q, k, v, scale, cu, n_segments, causal));
}

static h3_status counted_gate_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor mod, int i_gate,
                                  h3_tensor row)
{
    assert(lives_on(d, x) && lives_on(d, h) && lives_on(d, mod) && lives_on(d, row));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_gate_add, REST(gate_add, x, h));
    return end(d, H3_OP_gate_add, t0, d->impl.gate_add(d, x, h, mod, i_gate, row));
}

static h3_status counted_gate_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h,
                                       h3_tensor mod, int i_gate, h3_tensor g, float eps,
                                       h3_tensor next, int i_shift, int i_scale, h3_tensor row)
{
    const h3_tensor in[] = {x, x, h}; // x is read and written

    assert(lives_on(d, y) && lives_on(d, x) && lives_on(d, h) && lives_on(d, mod) &&
           lives_on(d, next) && lives_on(d, row));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_gate_add_norm, h3_cost_rest(H3_OP_gate_add_norm, y, 3, in));
    return end(d, H3_OP_gate_add_norm, t0,
               d->impl.gate_add_norm(d, y, x, h, mod, i_gate, g, eps, next, i_shift, i_scale, row));
}

static h3_status counted_scale_add(h3_dev *d, h3_tensor x, h3_tensor h, h3_tensor g)
{
    assert(lives_on(d, x) && lives_on(d, h) && lives_on(d, g));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_scale_add, REST(scale_add, x, h));
    return end(d, H3_OP_scale_add, t0, d->impl.scale_add(d, x, h, g));
}

static h3_status counted_scale_add_norm(h3_dev *d, h3_tensor y, h3_tensor x, h3_tensor h,
                                        h3_tensor s, h3_tensor g, float eps)
{
    const h3_tensor in[] = {x, x, h}; // x is read and written

    assert(lives_on(d, y) && lives_on(d, x) && lives_on(d, h) && lives_on(d, s) && lives_on(d, g));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_scale_add_norm, h3_cost_rest(H3_OP_scale_add_norm, y, 3, in));
    return end(d, H3_OP_scale_add_norm, t0, d->impl.scale_add_norm(d, y, x, h, s, g, eps));
}

static h3_status counted_flow_step(h3_dev *d, h3_tensor x, h3_tensor v, float sigma, float ratio)
{
    assert(lives_on(d, x) && lives_on(d, v));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_flow_step, REST(flow_step, x, v));
    return end(d, H3_OP_flow_step, t0, d->impl.flow_step(d, x, v, sigma, ratio));
}

static h3_status counted_check_finite(h3_dev *d, h3_tensor x, int *bad)
{
    assert(lives_on(d, x));
    if (is_empty(x)) return H3_OK;
    const double t0 = begin(d, H3_OP_check_finite, REST(check_finite, x, x));
    return end(d, H3_OP_check_finite, t0, d->impl.check_finite(d, x, bad));
}

const h3_ops h3_ops_counted = {
#define X(name) .name = counted_##name,
    H3_OPS(X)
#undef X
};

const char *h3_op_name(h3_op_id id)
{
    static const char *const names[] = {
#define X(name) #name,
        H3_OPS(X)
#undef X
    };
    return (unsigned)id < H3_OP_COUNT ? names[id] : "?";
}
