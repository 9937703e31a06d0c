/**
 * Tiles of AMX. Operands are 32-bit groups (two bf16 or four bytes that follow each other in k) and
 * lie in the order in which they are loaded, a tile of 16 x 16 groups after the other:
 *   A [group of 32 rows][step][piece][2][16 rows][16 groups]
 *   B [step][piece][2][16 groups][16 lanes]
 * so that both are streams, which the prefetchers follow; where few lanes would not pay for copying
 * a weight so, tiles of A are 16 of its rows in place. Two by two accumulators of 16 x 16 sums
 * are fed by two tiles of A and two of B; one step is 16 groups deep. A tile is loaded again right
 * after its last use, while the products of the other pair run.
 *
 * TDPBF16PS multiplies exactly and adds in f32. A number of f32 is the sum of three bf16 numbers
 * (8 bits of mantissa each), so a product of f32 operands is a sum of such products: of the nine,
 * the three below 2^-24 of it are left out. An operand that is bf16 already has one piece.
 *
 * Rows of A past n are read and their sums stored: the caller's blocks are whole tiles.
 *
 * H3_AMX_EMULATE replaces the instructions by C, so that any machine can test the rest.
 */
#include <assert.h>

#include "gemm.h"

#if VL == 16
enum { T = 16 }; // rows of a tile, and groups of one of its rows

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

#ifdef H3_AMX_EMULATE
#define AMX
static _Thread_local struct {
    uint32_t v[T][T];
} tile_file[8];

static void emulate_load(int t, const void *p, size_t stride)
{
    for (int r = 0; r < T; r++)
        memcpy(tile_file[t].v[r], (const uint8_t *)p + (size_t)r * stride,
               sizeof tile_file[t].v[r]);
}

static void emulate_store(int t, void *p, size_t stride)
{
    for (int r = 0; r < T; r++)
        memcpy((uint8_t *)p + (size_t)r * stride, tile_file[t].v[r], sizeof tile_file[t].v[r]);
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void emulate_bf16(int c, int a, int b)
{
    for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++) {
            float s = float_of(tile_file[c].v[i][j]);
            for (int k = 0; k < T; k++) {
                const uint32_t x = tile_file[a].v[i][k], y = tile_file[b].v[k][j];
                s += float_of(x << 16) * float_of(y << 16);
                s += float_of(x & 0xffff0000u) * float_of(y & 0xffff0000u);
            }
            memcpy(&tile_file[c].v[i][j], &s, sizeof s);
        }
}

static void emulate_int8(int c, int a, int b)
{
    for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++)
            for (int k = 0; k < T; k++)
                for (int q = 0; q < 32; q += 8)
                    tile_file[c].v[i][j] +=
                        (uint32_t)((int8_t)(uint8_t)(tile_file[a].v[i][k] >> q) *
                                   (int8_t)(uint8_t)(tile_file[b].v[k][j] >> q));
}

#define TILE_CONFIG(p)           ((void)(p))
#define TILE_RELEASE()           ((void)0)
#define TILE_ZERO(t)             memset(&tile_file[t], 0, sizeof tile_file[t])
#define TILE_LOAD(t, p, stride)  emulate_load(t, p, stride)
#define TILE_STORE(t, p, stride) emulate_store(t, p, stride)
#define DOT_bf16(c, a, b)        emulate_bf16(c, a, b)
#define DOT_int8(c, a, b)        emulate_int8(c, a, b)
#else
#define AMX                      __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#define TILE_CONFIG(p)           _tile_loadconfig(p)
#define TILE_RELEASE()           _tile_release()
#define TILE_ZERO(t)             _tile_zero(t)
#define TILE_LOAD(t, p, stride)  _tile_loadd(t, p, stride)
#define TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define DOT_bf16(c, a, b)        _tile_dpbf16ps(c, a, b)
#define DOT_int8(c, a, b)        _tile_dpbssd(c, a, b)
#endif

AMX void ISA(h3_cpu_amx_begin)(void)
{
    static const tile_config config = {.palette = 1,
                                       .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                       .rows = {T, T, T, T, T, T, T, T}};
    TILE_CONFIG(&config);
}

AMX void ISA(h3_cpu_amx_end)(void)
{
    TILE_RELEASE();
}

/* Tiles 0 1 | 2 3 are the sums, 4 5 A (na tiles, at most 2), 6 7 B (nb tiles); tile numbers are
 * immediates. */
#define C_STEP       ((size_t)NR * 4) // bytes from row to row
#define LOAD_A(t, p) TILE_LOAD(t, p, row)
#define LOAD_B(t, p) TILE_LOAD(t, p, (size_t)64)
#define LOAD_BOTH(a, b)                    \
    do {                                   \
        LOAD_B(6, b);                      \
        LOAD_A(4, a);                      \
        if (na > 1) LOAD_A(5, (a) + tile); \
        if (nb > 1) LOAD_B(7, (b) + TILE); \
    } while (0)
#define DOTS(kind)                                 \
    do {                                           \
        DOT_##kind(0, 4, 6);                       \
        if (na > 1) DOT_##kind(2, 5, 6);           \
        if (nb > 1) DOT_##kind(1, 4, 7);           \
        if (na > 1 && nb > 1) DOT_##kind(3, 5, 7); \
    } while (0)
/* The same, with the next B (or A) coming in. */
#define DOTS_THEN_B(b)                           \
    do {                                         \
        DOT_bf16(0, 4, 6);                       \
        if (na > 1) DOT_bf16(2, 5, 6);           \
        LOAD_B(6, b);                            \
        if (nb > 1) DOT_bf16(1, 4, 7);           \
        if (na > 1 && nb > 1) DOT_bf16(3, 5, 7); \
        if (nb > 1) LOAD_B(7, (b) + TILE);       \
    } while (0)
#define DOTS_THEN_A(a)                           \
    do {                                         \
        DOT_bf16(0, 4, 6);                       \
        if (nb > 1) DOT_bf16(1, 4, 7);           \
        LOAD_A(4, a);                            \
        if (na > 1) DOT_bf16(2, 5, 6);           \
        if (na > 1 && nb > 1) DOT_bf16(3, 5, 7); \
        if (na > 1) LOAD_A(5, (a) + tile);       \
    } while (0)
/* Lines to come, a few with every step: many at once would fill what a core can wait for, and the
 * tiles' own loads would queue behind them. */
#define CALL_NEXT()                                                          \
    do {                                                                     \
        if (next) {                                                          \
            for (int i = 0; i < rows->n_next; i++)                           \
                __builtin_prefetch(next + (size_t)i * rows->next_row, 0, 2); \
            next += 4 * T;                                                   \
        }                                                                    \
    } while (0)
#define EACH_SUM(WHAT)                                  \
    do {                                                \
        WHAT(0, to);                                    \
        if (nb > 1) WHAT(1, to + T);                    \
        if (na > 1) WHAT(2, to + T * NR);               \
        if (na > 1 && nb > 1) WHAT(3, to + T * NR + T); \
    } while (0)
#define SUM_ZERO(t, p)  TILE_ZERO(t)
#define SUM_STORE(t, p) TILE_STORE(t, p, C_STEP)

/* Sums of one pass onto those of the passes before: chains of additions stay short, and the tiles
 * need not be loaded again. */
#define ADD_SUMS(type)                                       \
    do {                                                     \
        for (int i = 0; i < na * T; i++)                     \
            for (int j = 0; j < nb * T; j += VL) {           \
                type now, was;                               \
                memcpy(&now, part + i * NR + j, sizeof now); \
                memcpy(&was, c + i * NR + j, sizeof was);    \
                now += was;                                  \
                memcpy(c + i * NR + j, &now, sizeof now);    \
            }                                                \
    } while (0)

/* A of n_a pieces, B of n_b, each 1 or 3; everything but the addresses is constant. Of nine
 * products the three below 2^-24 of the whole are left out. */
INLINE AMX void bf16_tiles(const int na, const int nb, const int n_a, const int n_b, int64_t kc,
                           const h3_amx_rows *rows, const float *b, float *c, bool add)
{
    enum { TILE = T * T, PIECE = 2 * TILE, A_PIECE = 4 * PIECE };
    _Alignas(64) float part[AMX_ROWS * NR]; // rows are whole cache lines
    float *to = add ? part : c;
    const size_t row = rows->row, tile = rows->tile;
    const uint8_t *a = rows->at, *next = rows->next;

    EACH_SUM(SUM_ZERO);
    for (int64_t k = 0; k < kc; k += T, a += rows->step, b += n_b * PIECE) {
        LOAD_BOTH(a, b);
        CALL_NEXT();
        if (n_b > 1) {
            DOTS_THEN_B(b + 2 * PIECE);
            DOTS_THEN_B(b + PIECE);
        }
        if (n_a > 1) {
            DOTS_THEN_A(a + A_PIECE);
            if (n_b > 1) DOTS_THEN_B(b);
            DOTS_THEN_A(a + 2 * A_PIECE);
        }
        DOTS(bf16);
    }
    EACH_SUM(SUM_STORE);
    if (add) ADD_SUMS(vf);
}

INLINE AMX void int8_tiles(const int na, const int nb, int64_t kc, const h3_amx_rows *rows,
                           const float *b, float *c, bool add)
{
    enum { TILE = T * T, PIECE = 2 * TILE };
    _Alignas(64) float part[AMX_ROWS * NR]; // rows are whole cache lines
    float *to = add ? part : c;
    const size_t row = rows->row, tile = rows->tile;
    const uint8_t *a = rows->at, *next = rows->next;

    EACH_SUM(SUM_ZERO);
    for (int64_t k = 0; k < kc; k += T, a += rows->step, b += PIECE) {
        LOAD_BOTH(a, b);
        CALL_NEXT();
        DOTS(int8);
    }
    EACH_SUM(SUM_STORE);
    if (add) ADD_SUMS(vi);
}

#define PIECES(na, nb, n_a, n_b)                                                              \
    AMX static void bf16_##na##nb##n_a##n_b(int64_t kc, const h3_amx_rows *a, const float *b, \
                                            float *c, bool add)                               \
    {                                                                                         \
        bf16_tiles(na, nb, n_a, n_b, kc, a, b, c, add);                                       \
    }
#define SIZE(na, nb)                                                                             \
    PIECES(na, nb, 1, 1)                                                                         \
    PIECES(na, nb, 1, 3)                                                                         \
    PIECES(na, nb, 3, 1)                                                                         \
    PIECES(na, nb, 3, 3)                                                                         \
    AMX static void int8_##na##x##nb(int64_t kc, const h3_amx_rows *a, const float *b, float *c, \
                                     bool add)                                                   \
    {                                                                                            \
        int8_tiles(na, nb, kc, a, b, c, add);                                                    \
    }
SIZE(1, 1)
SIZE(1, 2)
SIZE(2, 1)
SIZE(2, 2)

typedef void (*const sized_tiles)(int64_t, const h3_amx_rows *, const float *, float *, bool);

void ISA(h3_cpu_amx_bf16)(const h3_amx_split *s, int n, int64_t kc, const h3_amx_rows *a,
                          const float *b, float *c, bool add, bool half)
{
#define OF_PIECES(na, nb)                        \
    {                                            \
        {bf16_##na##nb##11, bf16_##na##nb##13},  \
        {                                        \
            bf16_##na##nb##31, bf16_##na##nb##33 \
        }                                        \
    }
    static sized_tiles table[2][2][2][2] = {{OF_PIECES(1, 2), OF_PIECES(1, 1)},
                                            {OF_PIECES(2, 2), OF_PIECES(2, 1)}};
    assert(n >= 1 && n <= AMX_ROWS && kc % T == 0);
    table[n > T][half][s->n_a > 1][s->n_b > 1](kc, a, b, c, add);
}

void ISA(h3_cpu_amx_int8)(int n, int64_t kc, const h3_amx_rows *a, const float *b, float *c,
                          bool add, bool half)
{
    static sized_tiles table[2][2] = {{int8_1x2, int8_1x1}, {int8_2x2, int8_2x1}};
    assert(n >= 1 && n <= AMX_ROWS && kc % T == 0);
    table[n > T][half](kc, a, b, c, add);
}
#endif
