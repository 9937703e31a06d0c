/**
 * Tiles of AMX: the layouts of low.c (A as 32-bit groups of a row, B as [k][NR] groups) are what
 * the tile instructions read, so only the inner loop differs. Two by two accumulators of 16 x 16
 * sums are fed by two tiles of A and two of B; one step is 16 groups deep.
 *
 * TDPBF16PS multiplies exactly and adds in f32 as VDPBF16PS does. Rows of A past n are read and
 * their sums stored: the caller's blocks are whole tiles (see h3_product.mr).
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

/* Bytes from row to row. */
#define A_STEP ((size_t)LDA * 4)
#define B_STEP ((size_t)NR * 4)

/* Two tiles of A (0 1 | 2 3 are the sums, 4 5 A, 6 7 B); tile numbers are immediates. */
#define AMX_TILES(kind)                                                                            \
    AMX static void kind##_2x2(int64_t kc, const float *a, const float *b, float *c, bool add)     \
    {                                                                                              \
        if (add) {                                                                                 \
            TILE_LOAD(0, c, B_STEP);                                                               \
            TILE_LOAD(1, c + T, B_STEP);                                                           \
            TILE_LOAD(2, c + T * NR, B_STEP);                                                      \
            TILE_LOAD(3, c + T * NR + T, B_STEP);                                                  \
        } else {                                                                                   \
            TILE_ZERO(0);                                                                          \
            TILE_ZERO(1);                                                                          \
            TILE_ZERO(2);                                                                          \
            TILE_ZERO(3);                                                                          \
        }                                                                                          \
        for (int64_t k = 0; k < kc; k += T) {                                                      \
            TILE_LOAD(6, b + k * NR, B_STEP);                                                      \
            TILE_LOAD(4, a + k, A_STEP);                                                           \
            TILE_LOAD(7, b + k * NR + T, B_STEP);                                                  \
            TILE_LOAD(5, a + T * LDA + k, A_STEP);                                                 \
            DOT_##kind(0, 4, 6);                                                                   \
            DOT_##kind(1, 4, 7);                                                                   \
            DOT_##kind(2, 5, 6);                                                                   \
            DOT_##kind(3, 5, 7);                                                                   \
        }                                                                                          \
        TILE_STORE(0, c, B_STEP);                                                                  \
        TILE_STORE(1, c + T, B_STEP);                                                              \
        TILE_STORE(2, c + T * NR, B_STEP);                                                         \
        TILE_STORE(3, c + T * NR + T, B_STEP);                                                     \
    }                                                                                              \
    AMX static void kind##_2x1(int64_t kc, const float *a, const float *b, float *c, bool add)     \
    {                                                                                              \
        if (add) {                                                                                 \
            TILE_LOAD(0, c, B_STEP);                                                               \
            TILE_LOAD(2, c + T * NR, B_STEP);                                                      \
        } else {                                                                                   \
            TILE_ZERO(0);                                                                          \
            TILE_ZERO(2);                                                                          \
        }                                                                                          \
        for (int64_t k = 0; k < kc; k += T) {                                                      \
            TILE_LOAD(6, b + k * NR, B_STEP);                                                      \
            TILE_LOAD(4, a + k, A_STEP);                                                           \
            TILE_LOAD(5, a + T * LDA + k, A_STEP);                                                 \
            DOT_##kind(0, 4, 6);                                                                   \
            DOT_##kind(2, 5, 6);                                                                   \
        }                                                                                          \
        TILE_STORE(0, c, B_STEP);                                                                  \
        TILE_STORE(2, c + T * NR, B_STEP);                                                         \
    }                                                                                              \
    AMX static void kind##_1x2(int64_t kc, const float *a, const float *b, float *c, bool add)     \
    {                                                                                              \
        if (add) {                                                                                 \
            TILE_LOAD(0, c, B_STEP);                                                               \
            TILE_LOAD(1, c + T, B_STEP);                                                           \
        } else {                                                                                   \
            TILE_ZERO(0);                                                                          \
            TILE_ZERO(1);                                                                          \
        }                                                                                          \
        for (int64_t k = 0; k < kc; k += T) {                                                      \
            TILE_LOAD(6, b + k * NR, B_STEP);                                                      \
            TILE_LOAD(4, a + k, A_STEP);                                                           \
            TILE_LOAD(7, b + k * NR + T, B_STEP);                                                  \
            DOT_##kind(0, 4, 6);                                                                   \
            DOT_##kind(1, 4, 7);                                                                   \
        }                                                                                          \
        TILE_STORE(0, c, B_STEP);                                                                  \
        TILE_STORE(1, c + T, B_STEP);                                                              \
    }                                                                                              \
    AMX static void kind##_1x1(int64_t kc, const float *a, const float *b, float *c, bool add)     \
    {                                                                                              \
        if (add)                                                                                   \
            TILE_LOAD(0, c, B_STEP);                                                               \
        else                                                                                       \
            TILE_ZERO(0);                                                                          \
        for (int64_t k = 0; k < kc; k += T) {                                                      \
            TILE_LOAD(6, b + k * NR, B_STEP);                                                      \
            TILE_LOAD(4, a + k, A_STEP);                                                           \
            DOT_##kind(0, 4, 6);                                                                   \
        }                                                                                          \
        TILE_STORE(0, c, B_STEP);                                                                  \
    }                                                                                              \
    void ISA(h3_cpu_amx_##kind)(int n, int64_t kc, const float *a, const float *b, float *c,       \
                                bool add, bool half)                                               \
    {                                                                                              \
        static void (*const table[2][2])(int64_t, const float *, const float *, float *, bool) = { \
            {kind##_1x2, kind##_1x1}, {kind##_2x2, kind##_2x1}};                                   \
        assert(n >= 1 && n <= AMX_ROWS && kc % T == 0);                                            \
        table[n > T][half](kc, a, b, c, add);                                                      \
    }

AMX_TILES(bf16)
AMX_TILES(int8)
#endif
