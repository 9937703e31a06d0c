#!/bin/bash
# Sequence parallelism on the GPUs of this host, in one command: build, a DiT step of exactly 14,972 and 39,614 rows and
# a clip of the video decoder on 1, 2, 4, ... GPUs, goldens and checks on several ranks, and the table.
#   bench/multi_gpu_run.sh [FILE]              default bench/results/multi_gpu_<next number>.jsonl
#   BIN=folder   programs that are built already (h3av-ranks, h3av-golden-dit, h3av-gpu-bench)
#   GOLDENS="file..." (default: all of the DiT)   CLIP=no (leaves the video decoder out)
#   LAYERS=50  ROWS=14972,39614  REPEAT=3  GPUS="1 2"  BUILD=build/multi-gpu
#   LIMIT=120 (seconds a program)  BUDGET=590 (seconds in all: what would begin later is left out)
# All layers share one set of weights, so few of them say as much as fifty: s_50_layers is the step times 50 / LAYERS.
# Goals: 1.85 times on 2 GPUs, 3.5 on 4. Every line is kept when it comes.
#
# Seconds that the parts take on H200 (from bench/results/multi_gpu_3.jsonl; the sums for 50 layers are reckoned):
#   steps, 1 GPU      55    5 x (1.45 + 6.45), and choosing algorithms
#   steps, 2 GPUs     35    5 x (0.76 + 3.3), starting NCCL and windows
#   clip, 1 and 2     15
#   goldens           30    nine files; the first program of a cold machine takes 8 to 15 s to load its libraries
#   near, spread      15 each
#   cancel, killed, nan  8 each
set -euo pipefail # a program that fails before tee counts
root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build/multi-gpu}
layers=${LAYERS:-50} rows=${ROWS:-14972,39614} repeat=${REPEAT:-3} limit=${LIMIT:-120} budget=${BUDGET:-590}
n=1
while [ -e "$root/bench/results/multi_gpu_$n.json" ] || [ -e "$root/bench/results/multi_gpu_$n.jsonl" ]; do n=$((n + 1)); done
out=${1:-$root/bench/results/multi_gpu_$n.jsonl}
# Multicast over NVLink is not used here, and a program that uses it can disturb others on a shared host.
export NCCL_NVLS_ENABLE=0 OMP_WAIT_POLICY=passive H3_RANKS_PATIENCE=40

n_gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
[ "$n_gpus" -ge 1 ] || { echo "no GPU here (nvidia-smi lists none)" >&2; exit 77; }
# NCCL of a Python environment serves when the system has none.
if [ -z "${NCCL_HOME:-}" ]; then
    NCCL_HOME=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null || true)
    export NCCL_HOME
fi
[ -n "${NCCL_HOME:-}" ] && export LD_LIBRARY_PATH="$NCCL_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

if [ -z "${BIN:-}" ]; then
    cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release >/dev/null
    cmake --build "$build" -j "$(nproc)" --target h3av-ranks h3av-golden-dit h3av-gpu-bench
    BIN=$build
else
    . "$root/bench/gpu_libs.sh"
fi
SECONDS=0
links=$(nvidia-smi topo -m 2>/dev/null | awk '$1 ~ /GPU0$/ { print $3; exit }' || true)
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
mkdir -p "$(dirname "$out")"
echo "{\"what\": \"run\", \"date\": \"$(date -u +%F)\", \"gpus\": $n_gpus, \"link\": \"$links\", \"nccl_nvls\": 0, \"layers\": $layers}" >"$out"
echo "$n_gpus GPUs, linked by ${links:-nothing}"

failed=0
quoted() { tail -1 | tr -d '"\\' | tr '\t' ' ' | cut -c1-300; }
time_left() { # NAME LEAST: sets `most`, or says that the time is over
    most=$((budget - SECONDS))
    [ $most -ge "$2" ] || { echo "{\"what\": \"part\", \"name\": \"$1\", \"skipped\": \"time\"}" | tee -a "$out"; failed=1; return 1; }
    [ $most -lt "$limit" ] || most=$limit
}
check() { # NAME COMMAND...: its last line and exit status are kept
    local name=$1 status=0 text begun=$SECONDS
    shift
    time_left "$name" 5 || return 0
    text=$(timeout -k 5 "$most" "$@" 2>&1) || status=$?
    echo "$text" | tail -40
    echo "{\"what\": \"check\", \"name\": \"$name\", \"exit\": $status, \"s\": $((SECONDS - begun)), \"last\": \"$(echo "$text" | quoted)\"}" >>"$out"
    [ $status = 0 ] || failed=1
}
measure() { # NAME ARGUMENTS...: its JSON lines are kept
    local name=$1 status=0 begun=$SECONDS
    shift
    time_left "$name" 10 || return 0
    timeout -k 5 "$most" "$BIN/h3av-gpu-bench" "$@" 2>"$errors" | tee -a "$out" || status=$?
    echo "{\"what\": \"part\", \"name\": \"$name\", \"exit\": $status, \"s\": $((SECONDS - begun))$(
        [ $status = 0 ] || echo ", \"last\": \"$(quoted <"$errors")\"")}" >>"$out"
    [ $status = 0 ] || failed=1
}
counts=${GPUS:-$(for k in 1 2 4 7 8; do if [ $k -le "$n_gpus" ]; then echo $k; fi; done)}
for k in $counts; do
    echo "== $k GPU(s): a step of $layers layers at $rows rows"
    measure "steps on $k" --what steps --layers "$layers" --rows "$rows" --repeat "$repeat" --ranks "$k"
done
for k in $counts; do
    [ "$k" = 1 ] && continue
    # What several ranks compute is what the reference does, and what one rank does.
    [ "$k" -le 4 ] && check "goldens on $k ranks" "$BIN/h3av-golden-dit" --device cuda --ranks "$k" ${GOLDENS:-"$root/tests/data/dit"}
    check "near $k" "$BIN/h3av-ranks" near "$k" cuda
done
for k in $counts; do # tiles of a clip over the ranks
    [ "${CLIP:-}" = no ] || measure "clip on $k" --what clip --tiles 12 --repeat 2 --ranks "$k"
done
for k in $counts; do
    [ "$k" = 1 ] && continue
    for what in spread cancel killed nan; do check "$what $k" "$BIN/h3av-ranks" $what "$k" cuda; done
done
python3 "$root/bench/scaling.py" --results "$out"
exit $failed
