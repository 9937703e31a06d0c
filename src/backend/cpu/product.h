/**
 * The one inner product of the backend: C [n, m] = A [n, k] B [k, m] on small tiles.
 *
 * The vector lanes run along m (rows of activations, pixels, queries), numbers of A are broadcast.
 * So A (a weight as stored) needs only widening, never transposing, and a column of sums stays in
 * one lane: softmax needs no horizontal steps, convolutions store whole lines. B is packed in
 * panels of NR lanes: [k][NR].
 */
#ifndef H3_CPU_PRODUCT_H
#define H3_CPU_PRODUCT_H

#include "cpu.h"
#include "lanes.h"

#define NR (2 * VL)
#if VL == 16
#define MR 14 // 28 of 32 registers hold sums
#elif VL == 8
#define MR 6
#else
#define MR 5
#endif

/** X(n) for every number of rows that a tile may have. */
#define TILE_SIZES_5(X) X(1) X(2) X(3) X(4) X(5)
#if MR == 14
#define TILE_SIZES(X) TILE_SIZES_5(X) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif MR == 6
#define TILE_SIZES(X) TILE_SIZES_5(X) X(6)
#else
#define TILE_SIZES(X) TILE_SIZES_5(X)
#endif

enum {
    KC = 256,      ///< columns of A per pass: a multiple of every block size of quantized weights
    LDA = KC + 16, ///< row stride of a widened tile; the odd 64 bytes keep rows off one cache set
    /* Of operands in three pieces on AMX: pairs per pass, the same columns; half of them at a time
     * keep a panel's pieces in level 1. */
    KC_SPLIT = KC / 2,
    PANEL_GAP = KC / 2 * NR,          ///< floats between shared panels of B, see product.c
    NB = (16 * 14 + MR - 1) / MR * MR ///< rows of A that one call of fill may ask for: whole groups
};

/** The end of every tile: c [n][ldc] (= or +=) acc, v vectors; n and v are constants where it
 * lands, so that acc stays in registers. */
INLINE void store_sums(const int n, const int v, vf (*acc)[2], float *c, int64_t ldc, bool add)
{
#pragma GCC unroll 14
    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
        for (int j = 0; j < v; j++) {
            float *p = c + i * ldc + j * VL;
            v_store(p, add ? acc[i][j] + v_load(p) : acc[i][j]);
        }
}

/** c [n][NR] (= or +=) sum_k a[i * LDA + k] * b[k][NR]; n <= MR. `half`: only the first VL lanes.
 */
void ISA(h3_cpu_tile_rows)(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                           bool half);
/** The same with a transposed tile: a[k * lda + i]. */
void ISA(h3_cpu_tile_cols)(int n, int64_t kc, const float *a, int64_t lda, const float *b, float *c,
                           bool add, bool half);

/** The same where row k of B lies at b + at[k]: NR numbers in place, nothing packed. */
void ISA(h3_cpu_tile_direct)(int n, int64_t kc, const float *a, const float *b, const int64_t *at,
                             float *c, bool add);

/** What h3_cpu_tile_rows is; the low-precision kinds read A and B as 32-bit groups (see low.h). */
typedef void (*h3_tile_fn)(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                           bool half);

/** Tiles of pairs of bf16 (low.c): one 32-bit group holds two neighbours in k. Only where
 *  h3_backend.has_dot says so. */
void ISA(h3_cpu_bf16_rows)(int n, int64_t kc, const float *a, const float *b, float *c, bool add,
                           bool half);
void ISA(h3_cpu_bf16_cols)(int n, int64_t kc, const float *a, int64_t lda, const float *b, float *c,
                           bool add, bool half);

/** Of an AMX product: each operand is one bf16 number or the sum of three (see amx.c). */
typedef struct h3_amx_split {
    int n_a, n_b; ///< pieces, 1 or 3
} h3_amx_split;

/** The same on AMX, bf16 pairs and signed bytes in the layout of amx.c: n up to AMX_ROWS, kc a
 * multiple of AMX_STEP; rows up to the next multiple of AMX_STEP are read and stored. Between begin
 * and end only. */
enum { AMX_ROWS = 32, AMX_STEP = 16, AMX_PIECE = 2 * AMX_STEP * AMX_STEP };

/** Where group k of row i of A lies when a pass is kc groups deep, and group k of lanes j.. of B:
 * AMX_STEP neighbours in k (in lanes) follow. */
INLINE int64_t h3_amx_a(int64_t i, int64_t k, int64_t kc, int n_pieces, int piece)
{
    return ((i / AMX_ROWS * (kc / AMX_STEP) + k / AMX_STEP) * n_pieces + piece) * AMX_PIECE +
           i % AMX_ROWS * AMX_STEP;
}
INLINE int64_t h3_amx_b(int64_t k, int64_t j, int n_pieces, int piece)
{
    return (k / AMX_STEP * n_pieces + piece) * AMX_PIECE + (j + k % AMX_STEP) * AMX_STEP;
}

/** Where tiles of A lie, 16 rows each: one after the other in the order of h3_amx_a, or in place,
 * as a weight is stored. Distances are bytes. */
typedef struct h3_amx_rows {
    const uint8_t *at;
    size_t row, tile, step; ///< to the next row, to row 16, to the next AMX_STEP groups
    const uint8_t *next;    ///< what is called for meanwhile, NULL: nothing; a line of each of
    size_t next_row;        ///< n_next rows with every step
    int n_next;
} h3_amx_rows;

INLINE h3_amx_rows h3_amx_packed(const float *a, int n_pieces)
{
    return (h3_amx_rows){.at = (const uint8_t *)a,
                         .row = 4 * AMX_STEP,
                         .tile = 4 * AMX_STEP * AMX_STEP,
                         .step = 4 * (size_t)(n_pieces * AMX_PIECE)};
}

void ISA(h3_cpu_amx_begin)(void);
void ISA(h3_cpu_amx_end)(void);
void ISA(h3_cpu_amx_bf16)(const h3_amx_split *s, int n, int64_t kc, const h3_amx_rows *a,
                          const float *b, float *c, bool add, bool half);
void ISA(h3_cpu_amx_int8)(int n, int64_t kc, const h3_amx_rows *a, const float *b, float *c,
                          bool add, bool half);

/**
 * A whole product by callbacks, parallel over blocks of rows of A and of panels of B.
 *   fill   rows [n0, n0 + n), columns [k0, k0 + kc) of A -> dst[i * LDA + k]
 *   pack   lanes [m0, m0 + m) (m <= NR), k in [k0, k0 + kc) of B -> dst[k * NR + j]; lanes from m
 * on may hold anything finite or not: they are never stored store  c [n][NR], rows n0.. of A, lanes
 * m0.. ; called once per element of C `share`: B is packed once into the workspace (activations of
 * a gemm, reused by thousands of rows of A); otherwise each block packs the panels it needs into
 * its own cache (convolutions).
 */
typedef struct h3_product {
    int64_t n, m, k;
    bool share;
    h3_tile_fn tile;    ///< NULL: f32
    bool packs_whole;   ///< pack wants all of k at once
    int64_t kc;         ///< columns per pass, 0: KC
    bool is_amx;        ///< tiles of amx.c: rows in groups of AMX_ROWS; tile is not used
    bool is_bytes;      ///< AMX: signed bytes, otherwise bf16
    h3_amx_split split; ///< AMX: A and B in pieces
    const void *ctx;
    size_t row_scratch; ///< bytes per thread handed to fill (whole rows of awkward encodings)
    void (*fill)(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc, float *dst,
                 void *row_scratch);
    /* May be NULL: rows and columns that a later fill will ask for. */
    void (*ahead)(const void *ctx, int64_t n0, int64_t n, int64_t k0, int64_t kc);
    /* May be NULL: what a later store with the same arguments will write. */
    void (*results)(const void *ctx, int64_t n0, int64_t n, int64_t m0, int64_t m);
    /* AMX, may be NULL: where AMX_ROWS rows from n0, columns from k0 can be loaded in place. */
    void (*place)(const void *ctx, int64_t n0, int64_t k0, h3_amx_rows *out);
    void (*pack)(const void *ctx, int64_t m0, int64_t m, int64_t k0, int64_t kc, float *dst);
    void (*store)(const void *ctx, int64_t n0, int64_t n, int64_t m0, int64_t m, const float *c);
    const float *(*direct)(const void *ctx, int64_t m0, int64_t m);
    const int64_t *at;
} h3_product;

h3_status ISA(h3_cpu_product)(h3_dev *d, const h3_product *p);

/** fill for a weight as stored. */
void ISA(h3_cpu_fill_weight)(const h3_weight *w, int64_t n0, int64_t n, int64_t k0, int64_t kc,
                             float *dst, void *row_scratch);
/** Calls for rows [n0, n0 + n), columns [k0, k0 + kc) of w as far as they can be decoded alone. */
void ISA(h3_cpu_call_weight)(const h3_weight *w, int64_t n0, int64_t n, int64_t k0, int64_t kc);
/** Bytes of row_scratch that filling from w needs: 0 when columns can be decoded alone. */
size_t ISA(h3_cpu_fill_scratch)(const h3_weight *w);

#endif
