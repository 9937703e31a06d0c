/** What gemm.c and low.c share about one product. */
#ifndef H3_CPU_GEMM_H
#define H3_CPU_GEMM_H

#include "product.h"

typedef struct h3_gemm {
    h3_tensor x, y;
    const h3_weight *w;
    h3_act act;
    /* Low precision only. */
    bool has_int_sums;      ///< C holds int32, to be scaled by the weight's row scales
    float *row_scale;       ///< [S] scale of each quantised row of x, or NULL
    h3_amx_split split;     ///< of the product
    uint8_t zero;           ///< what stands for 0 in quantised x: 128, or 0 where bytes are signed
    unsigned char *scratch; ///< per-thread row buffers of `scratch_bytes`
    size_t scratch_bytes;
    uint8_t *held; ///< [S] digits.c: what rows of x hold, or NULL
    const struct h3_digit_form *digits;
    const uint8_t *only; ///< [S] rows of y to store, NULL: all
    void *owned;         ///< freed by the caller after the product
} h3_gemm;

/**
 * Turns the f32 product *p into a low-precision one when the device's math allows it and the
 * operands have it: bf16 x bf16 (exact products, f32 sums: as accurate as f32), or INT8/Q8_0
 * weights times rows of x quantised to int8. Leaves *p alone otherwise.
 */
h3_status ISA(h3_cpu_low)(h3_dev *d, h3_gemm *g, h3_product *p);

/** The same with x as three 8-bit digits, for 8-bit weights; see digits.c. false: not so. */
bool ISA(h3_cpu_digits)(const h3_dev *d, h3_gemm *g, h3_product *p);
/** After such a product: are there rows of x [m] that digits cannot hold? g->only says which. */
bool ISA(h3_cpu_digits_failed)(h3_gemm *g, int64_t m);
/** Its tile of blocks of 32, `columns` deep, to be timed. */
void ISA(h3_cpu_digits_tile)(int n, int64_t columns, const float *a, const float *b, float *c,
                             bool add, bool half);

/** y H_g / sqrt(g) on every run of g of n numbers (AVX-512 only): products with rows that were
 * turned back are products of turned rows. */
void ISA(h3_cpu_rotate_row)(float *y, int64_t n, int32_t g);

/** Scale of row n of an INT8 weight. */
float ISA(h3_cpu_row_scale)(const h3_weight *w, int64_t n);

/** Seconds of a fixed number of products in the tiles of f32, of VDPBF16PS, of digits and of AMX
 * (least of a few tries); only where the machine has them. */
double ISA(h3_cpu_time_f32)(void);
double ISA(h3_cpu_time_bf16)(void);
double ISA(h3_cpu_time_digits)(void);
/** n_a, n_b: pieces of the operands. */
double ISA(h3_cpu_time_amx)(int n_a, int n_b);

#if VL == 16
/* Tiles of bytes and of bf16 pairs are handed about as floats: 32-bit groups. */
INLINE vi load_int(const void *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE vi set_int(const float *p)
{
    int32_t i;
    memcpy(&i, p, sizeof i);
    return (vi)_mm512_set1_epi32(i);
}
#endif

#endif
