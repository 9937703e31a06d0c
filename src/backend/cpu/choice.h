/**
 * Which products this processor is quick at, measured. Ways differ in their last bits, so equal
 * requests must find equal answers: the first process of a machine decides and leaves the decision
 * in the user's cache (H3_CACHE_DIR, else XDG_CACHE_HOME/h3av, else ~/.cache/h3av; H3_CACHE_DIR= :
 * nowhere); every later one reads it. Delete the file to have it measured again.
 */
#ifndef H3_BACKEND_CPU_CHOICE_H
#define H3_BACKEND_CPU_CHOICE_H

#include <stdbool.h>

typedef struct h3_cpu_choice {
    bool has_dot, has_vnni, has_amx;   ///< VDPBF16PS, VPDPBUSD, AMX: there at all
    bool dot_beats_f32;                ///< products of bf16 pairs beat those of f32
    bool digits_beat_f32;              ///< three dots of bytes beat products of f32
    bool amx_beats_f32, amx_beats_dot; ///< and those on tiles
    int amx_terms;                     ///< products on tiles in the time of one of f32: 1, 3, 6
} h3_cpu_choice;

/** Of this process: measured or read once. AVX-512 is needed. */
const h3_cpu_choice *h3_cpu_choose(void);

#endif
