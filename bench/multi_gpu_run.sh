#!/bin/bash
# Sequence parallelism on the GPUs of this host, in one command: build, goldens and checks on several ranks, a DiT
# step of exactly 14,972 and 39,614 rows and a clip of the video decoder on 1, 2, 4, ... GPUs, and the table.
#   bench/multi_gpu_run.sh [FILE]              default bench/results/multi_gpu_<next number>.jsonl
#   BIN=folder   programs that are built already (h3av-ranks, h3av-golden-dit, h3av-gpu-bench)
#   GOLDENS="file..." (default: all of the DiT)   CLIP=no (leaves the video decoder out)
#   LAYERS=50  ROWS=14972,39614  REPEAT=4  GPUS="1 2"  LIMIT=120 (seconds a program)  BUILD=build/multi-gpu
# All layers share one set of weights, so few of them say as much as fifty: s_50_layers is the step times 50 / LAYERS.
# Goals: 1.85 times on 2 GPUs, 3.5 on 4.
set -euo pipefail # a program that fails before tee counts
root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build/multi-gpu}
layers=${LAYERS:-50} rows=${ROWS:-14972,39614} repeat=${REPEAT:-4} limit=${LIMIT:-120}
n=1
while [ -e "$root/bench/results/multi_gpu_$n.json" ] || [ -e "$root/bench/results/multi_gpu_$n.jsonl" ]; do n=$((n + 1)); done
out=${1:-$root/bench/results/multi_gpu_$n.jsonl}
# Multicast over NVLink is not used here, and a program that uses it can disturb others on a shared host.
export NCCL_NVLS_ENABLE=0 OMP_WAIT_POLICY=passive

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
fi
links=$(nvidia-smi topo -m 2>/dev/null | awk '$1 ~ /GPU0$/ { print $3; exit }' || true)
mkdir -p "$(dirname "$out")"
echo "{\"what\": \"run\", \"date\": \"$(date -u +%F)\", \"gpus\": $n_gpus, \"link\": \"$links\", \"nccl_nvls\": 0, \"layers\": $layers}" >"$out"
echo "$n_gpus GPUs, linked by ${links:-nothing}"

check() { # NAME COMMAND...: its last line and exit status are kept
    local name=$1 status=0 text
    shift
    text=$(timeout "$limit" "$@" 2>&1) || status=$?
    echo "$text"
    echo "{\"what\": \"check\", \"name\": \"$name\", \"exit\": $status, \"last\": \"$(echo "$text" | tail -1 | tr -d '"\\')\"}" >>"$out"
    [ $status = 0 ] || failed=1
}
measure() { # its JSON lines are kept
    timeout "$limit" "$BIN/h3av-gpu-bench" "$@" 2>/dev/null | tee -a "$out" || failed=1
}
failed=0
counts=${GPUS:-$(for k in 1 2 4 7 8; do if [ $k -le "$n_gpus" ]; then echo $k; fi; done)}
for k in $counts; do
    [ "$k" = 1 ] && continue
    # What several ranks compute is what the reference does, and what one rank does.
    [ "$k" -le 4 ] && check "goldens on $k ranks" "$BIN/h3av-golden-dit" --device cuda --ranks "$k" ${GOLDENS:-"$root/tests/data/dit"}
    check "near $k" "$BIN/h3av-ranks" near "$k" cuda
    check "spread $k" "$BIN/h3av-ranks" spread "$k" cuda
    check "cancel $k" "$BIN/h3av-ranks" cancel "$k" cuda
done
for k in $counts; do
    echo "== $k GPU(s): a step of $layers layers at $rows rows"
    measure --what steps --layers "$layers" --rows "$rows" --repeat "$repeat" --ranks "$k"
    # Tiles of a clip over the ranks.
    [ "${CLIP:-}" = no ] || measure --what clip --tiles 12 --repeat 2 --ranks "$k"
done
python3 "$root/bench/scaling.py" --results "$out"
exit $failed
