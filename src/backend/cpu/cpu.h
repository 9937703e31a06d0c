/**
 * Private to the CPU backend. Most files here are compiled once per instruction set; ISA(name)
 * gives each copy its own symbol, and ops_cpu.c picks a copy when the device is opened.
 */
#ifndef H3_CPU_CPU_H
#define H3_CPU_CPU_H

#include "dev.h"

#ifndef H3_ISA
#define H3_ISA c // files compiled once see the portable names only
#endif
#define H3_ISA_NAME2(name, isa) name##_##isa
#define H3_ISA_NAME1(name, isa) H3_ISA_NAME2(name, isa)
#define ISA(name)               H3_ISA_NAME1(name, H3_ISA)

#define UNUSED __attribute__((unused))

typedef enum h3_cpu_math {
    H3_CPU_AUTO = 0, ///< of the ways as accurate as f32 the one that this machine is quickest at
    H3_CPU_F32,      ///< every product in f32
    H3_CPU_BF16,     ///< bf16 x bf16 with f32 sums wherever both operands are bf16
    H3_CPU_INT8      ///< int8 weights times rows quantised to int8; otherwise as auto
} h3_cpu_math;

/** What multiplies two bf16 operands. */
typedef enum h3_cpu_pairs {
    H3_PAIRS_NONE = 0, ///< widened to f32
    H3_PAIRS_DOT,      ///< VDPBF16PS
    H3_PAIRS_AMX       ///< TDPBF16PS; what does not fit its tiles goes by has_dot
} h3_cpu_pairs;

struct h3_backend {
    void *work; ///< grows to the largest call and stays; per-thread parts are carved by the callee
    size_t work_bytes;
    h3_cpu_math math;
    bool has_vnni, has_amx;
    h3_cpu_pairs pairs;
    int amx_terms;   ///< bf16 products on AMX that take no longer than one of f32
    bool has_digits; ///< f32 x 8-bit weights in three byte dots: faster here than f32
    bool has_dot;    ///< VDPBF16PS may be used: it exists and is faster than f32, or was asked for
};

/** At least `bytes` of workspace, 64-byte aligned, contents undefined. One user at a time. */
h3_status h3_cpu_work(h3_dev *d, size_t bytes, void **out);

/** Each instruction set's fillings of the table. */
#define H3_CPU_FILL(isa)                             \
    void h3_cpu_fill_products_##isa(h3_ops *op);     \
    void h3_cpu_fill_convolutions_##isa(h3_ops *op); \
    void h3_cpu_fill_attention_##isa(h3_ops *op);    \
    void h3_cpu_fill_rows_##isa(h3_ops *op);         \
    void h3_cpu_fill_audio_##isa(h3_ops *op);
H3_CPU_FILL(c)
H3_CPU_FILL(avx2)
H3_CPU_FILL(avx512)

#endif
