#!/bin/bash
# Ranks on emulated GPUs that go on by themselves (tests/gpu/emu/streams.h), as on real ones: what they compute, and how
# they end when one stops, fails or is killed at any moment. A hang ends with the stacks of all threads.
#   tests/mpi/ranks_gpu.sh PATH-TO-h3av-ranks [SEEDS]      SEEDS of "anytime", 12 without
set -u
ranks=$(realpath "$1") seeds=${2:-12}
export H3_EMU_GPUS=2 OMP_WAIT_POLICY=passive
failed=0
try() { timeout 1800 "$ranks" "$@" >/dev/null || { failed=$((failed + 1)); echo "FAIL ${H3_PEER:+H3_PEER=$H3_PEER }$*"; }; }
for s in cancel killed nan near spread; do try $s 2 cuda; done
for ((i = 0; i < seeds; i++)); do try anytime 2 cuda $i; done
export H3_EMU_CHANNELS=1
for s in cancel killed; do try $s 2 cuda; done
export H3_PEER=off
for s in cancel killed nan; do try $s 2 cuda; done
for ((i = 0; i < seeds; i += 3)); do try anytime 2 cuda $i; done
unset H3_EMU_CHANNELS H3_PEER
H3_EMU_GPUS=3 try killed 3 cuda
[ $failed = 0 ] && echo "ranks on GPUs: all end"
[ $failed = 0 ]
