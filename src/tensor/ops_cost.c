/** Costs from shapes; see ops_cost.h. Only ratios of like with like are meant to be read from them.
 */
#include "ops_cost.h"

static double bytes_of(h3_tensor t)
{
    return h3_is_null(t) ? 0 : (double)h3_numel(t) * (double)h3_dtype_bytes((h3_dtype)t.dtype);
}

static double weight_bytes(const h3_weight *w)
{
    double n = 0;
    for (int i = 0; i < w->n_parts; i++)
        n += (double)w->part[i].rows * (double)w->part[i].row_bytes;
    return n;
}

h3_op_cost h3_cost_gemm(h3_tensor y, h3_tensor x, const h3_weight *w)
{
    const double rows = (double)h3_n_rows(x);
    return (h3_op_cost){2 * rows * (double)w->rows * (double)w->cols,
                        bytes_of(y) + bytes_of(x) + weight_bytes(w)};
}

h3_op_cost h3_cost_embed(h3_tensor y, const h3_weight *w)
{
    const double per_row = w->rows > 0 ? weight_bytes(w) / (double)w->rows : 0;
    return (h3_op_cost){0, bytes_of(y) + (double)h3_n_rows(y) * per_row};
}

h3_op_cost h3_cost_attention(h3_tensor o, h3_tensor q, h3_tensor k, h3_tensor v, const int32_t *cu,
                             int n_segments, bool causal)
{
    double pairs = 0;
    for (int i = 0; i < n_segments; i++) {
        const double n = cu[i + 1] - cu[i];
        pairs += causal ? n * (n + 1) / 2 : n * n;
    }
    return (h3_op_cost){4 * pairs * (double)q.ne[1] * (double)q.ne[2],
                        bytes_of(o) + bytes_of(q) + bytes_of(k) + bytes_of(v)};
}

h3_op_cost h3_cost_conv(h3_tensor y, h3_tensor x, const h3_weight *w, h3_tensor add)
{
    return (h3_op_cost){2 * (double)h3_numel(y) * (double)w->cols,
                        bytes_of(y) + bytes_of(x) + bytes_of(add) + weight_bytes(w)};
}

h3_op_cost h3_cost_conv_transpose1d(h3_tensor y, h3_tensor x, const h3_weight *w, int kernel)
{
    return (h3_op_cost){2 * (double)h3_numel(x) * (double)y.ne[0] * kernel,
                        bytes_of(y) + bytes_of(x) + weight_bytes(w)};
}

/* Arithmetic per element of y; transcendental functions count as one. */
static const unsigned char per_element[H3_OP_COUNT] = {
    [H3_OP_rms_norm] = 4,       [H3_OP_layer_norm] = 7,
    [H3_OP_rms_norm_mod] = 7,   [H3_OP_group_norm] = 9,
    [H3_OP_head_norm_rope] = 7, [H3_OP_qk_norm_rope] = 7,
    [H3_OP_gate_add] = 2,       [H3_OP_gate_add_norm] = 9,
    [H3_OP_scale_add] = 2,      [H3_OP_scale_add_norm] = 6,
    [H3_OP_add] = 1,
    [H3_OP_silu_mul] = 5,       [H3_OP_act] = 6,
    [H3_OP_axpby] = 3,          [H3_OP_affine_rows] = 2,
    [H3_OP_clamp] = 2,          [H3_OP_snake] = 6,
    [H3_OP_snake_aa] = 60,      [H3_OP_mean_groups] = 2,
    [H3_OP_fade] = 4,           [H3_OP_to_u8] = 5,
    [H3_OP_flow_step] = 5,      [H3_OP_scatter_add_rows] = 1,
};

h3_op_cost h3_cost_rest(h3_op_id id, h3_tensor y, int n_in, const h3_tensor *in)
{
    h3_op_cost c = {per_element[id] * (double)h3_numel(y), bytes_of(y)};
    for (int i = 0; i < n_in; i++)
        c.bytes += bytes_of(in[i]);
    return c;
}
