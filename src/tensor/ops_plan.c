/**
 * The counting table: no entry reads or writes anything. Calls, FLOPs and bytes are counted by the
 * front that every device shares (counted.c); scratch is measured by the device's virtual arena.
 * What is left for these entries is to succeed, whatever addresses they are given.
 */
#include "ops.h"

#define UNUSED __attribute__((unused))

/* Arguments of every entry, in the order of ops.h. */
static h3_status plan_gemm(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                           const h3_weight *w UNUSED, h3_act act UNUSED)
{
    return H3_OK;
}

static h3_status plan_embed(h3_dev *d UNUSED, h3_tensor y UNUSED, const h3_weight *w UNUSED,
                            h3_tensor ids UNUSED)
{
    return H3_OK;
}

static h3_status plan_rms_norm(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                               h3_tensor g UNUSED, float eps UNUSED, bool round_first UNUSED)
{
    return H3_OK;
}

static h3_status plan_layer_norm(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                 h3_tensor g UNUSED, h3_tensor b UNUSED, float eps UNUSED)
{
    return H3_OK;
}

static h3_status plan_rms_norm_mod(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                   h3_tensor g UNUSED, float eps UNUSED, h3_tensor mod UNUSED,
                                   int i_shift UNUSED, int i_scale UNUSED, h3_tensor row UNUSED)
{
    return H3_OK;
}

static h3_status plan_group_norm(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                 h3_tensor g UNUSED, h3_tensor b UNUSED, int groups UNUSED,
                                 float eps UNUSED, bool silu UNUSED)
{
    return H3_OK;
}

static h3_status plan_head_norm_rope(h3_dev *d UNUSED, h3_tensor x UNUSED, h3_tensor g UNUSED,
                                     float eps UNUSED, bool round_first UNUSED, h3_tensor c UNUSED,
                                     h3_tensor s UNUSED)
{
    return H3_OK;
}

static h3_status plan_qk_norm_rope(h3_dev *d UNUSED, h3_tensor q UNUSED, h3_tensor k UNUSED,
                                   h3_tensor gq UNUSED, h3_tensor gk UNUSED, float eps UNUSED,
                                   bool round_first UNUSED, h3_tensor c UNUSED, h3_tensor s UNUSED)
{
    return H3_OK;
}

static h3_status plan_attention(h3_dev *d UNUSED, h3_tensor o UNUSED, h3_tensor q UNUSED,
                                h3_tensor k UNUSED, h3_tensor v UNUSED, float scale UNUSED,
                                const int32_t *cu UNUSED, int n UNUSED, bool causal UNUSED)
{
    return H3_OK;
}

static h3_status plan_gate_add(h3_dev *d UNUSED, h3_tensor x UNUSED, h3_tensor h UNUSED,
                               h3_tensor mod UNUSED, int i_gate UNUSED, h3_tensor row UNUSED)
{
    return H3_OK;
}

static h3_status plan_gate_add_norm(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                    h3_tensor h UNUSED, h3_tensor mod UNUSED, int i_gate UNUSED,
                                    h3_tensor g UNUSED, float eps UNUSED, h3_tensor next UNUSED,
                                    int i_shift UNUSED, int i_scale UNUSED, h3_tensor row UNUSED)
{
    return H3_OK;
}

static h3_status plan_silu_mul(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor a UNUSED,
                               h3_tensor b UNUSED)
{
    return H3_OK;
}

static h3_status plan_act(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED, h3_act a UNUSED)
{
    return H3_OK;
}

static h3_status plan_axpby(h3_dev *d UNUSED, h3_tensor y UNUSED, float a UNUSED,
                            h3_tensor x UNUSED, float b UNUSED)
{
    return H3_OK;
}

static h3_status plan_clamp(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                            float lo UNUSED, float hi UNUSED)
{
    return H3_OK;
}

static h3_status plan_conv(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                           const h3_weight *w UNUSED, const h3_conv *c UNUSED, h3_tensor a UNUSED)
{
    return H3_OK;
}

static h3_status plan_conv_transpose1d(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                       const h3_weight *w UNUSED, int k UNUSED, int stride UNUSED,
                                       int pad UNUSED)
{
    return H3_OK;
}

static h3_status plan_snake_aa(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                               h3_tensor a UNUSED, h3_tensor b UNUSED, h3_tensor up UNUSED,
                               h3_tensor down UNUSED)
{
    return H3_OK;
}

static h3_status plan_unpatchify(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                 int64_t t UNUSED, int64_t h UNUSED, int64_t w UNUSED,
                                 int pt UNUSED, int p UNUSED)
{
    return H3_OK;
}

static h3_status plan_fade(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor a UNUSED,
                           int axis UNUSED, int64_t n UNUSED)
{
    return H3_OK;
}

static h3_status plan_to_u8(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                            const float *mean UNUSED, const float *std UNUSED)
{
    return H3_OK;
}

static h3_status plan_flow_step(h3_dev *d UNUSED, h3_tensor x UNUSED, h3_tensor v UNUSED,
                                float sigma UNUSED, float ratio UNUSED)
{
    return H3_OK;
}

static h3_status plan_check_finite(h3_dev *d UNUSED, h3_tensor x UNUSED, int *bad UNUSED)
{
    return H3_OK;
}

static h3_status plan_scale_add_norm(h3_dev *d UNUSED, h3_tensor y UNUSED, h3_tensor x UNUSED,
                                     h3_tensor h UNUSED, h3_tensor s UNUSED, h3_tensor g UNUSED,
                                     float eps UNUSED)
{
    return H3_OK;
}

/* Entries of two, three and four tensors share one body each. */
static h3_status plan_2(h3_dev *d UNUSED, h3_tensor a UNUSED, h3_tensor b UNUSED)
{
    return H3_OK;
}

static h3_status plan_3(h3_dev *d UNUSED, h3_tensor a UNUSED, h3_tensor b UNUSED,
                        h3_tensor c UNUSED)
{
    return H3_OK;
}

static h3_status plan_4(h3_dev *d UNUSED, h3_tensor a UNUSED, h3_tensor b UNUSED,
                        h3_tensor c UNUSED, h3_tensor e UNUSED)
{
    return H3_OK;
}

void h3_ops_plan_init(h3_ops *op)
{
    *op = (h3_ops){
        .gemm = plan_gemm,
        .embed = plan_embed,
        .rms_norm = plan_rms_norm,
        .layer_norm = plan_layer_norm,
        .rms_norm_mod = plan_rms_norm_mod,
        .group_norm = plan_group_norm,
        .head_norm_rope = plan_head_norm_rope,
        .qk_norm_rope = plan_qk_norm_rope,
        .attention = plan_attention,
        .gate_add = plan_gate_add,
        .gate_add_norm = plan_gate_add_norm,
        .scale_add = plan_3,
        .scale_add_norm = plan_scale_add_norm,
        .add = plan_3,
        .silu_mul = plan_silu_mul,
        .act = plan_act,
        .copy = plan_2,
        .gather_rows = plan_3,
        .scatter_rows = plan_3,
        .scatter_add_rows = plan_3,
        .axpby = plan_axpby,
        .affine_rows = plan_4,
        .clamp = plan_clamp,
        .conv = plan_conv,
        .conv_transpose1d = plan_conv_transpose1d,
        .snake = plan_4,
        .snake_aa = plan_snake_aa,
        .transpose = plan_2,
        .mean_groups = plan_2,
        .unpatchify = plan_unpatchify,
        .fade = plan_fade,
        .to_u8 = plan_to_u8,
        .flow_step = plan_flow_step,
        .check_finite = plan_check_finite,
    };
}
