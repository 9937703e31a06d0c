#!/bin/bash
# Sequence parallelism on the GPUs of this host, in one command: build, ranks against one rank, a DiT step on 1,
# 2, 4, ... GPUs, and the table.
#   bench/multi_gpu_run.sh [RESULTS-FOLDER]        default bench/results
#   LAYERS=50  ROWS=14972,39614  REPEAT=2  BUILD=build/multi-gpu   change what is run
# Every GPU count writes RESULTS/multi_gpu_<n>.json (h3av bench). Goals: 1.85 times on 2 GPUs, 3.5 on 4.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/bench/results}
build=${BUILD:-$root/build/multi-gpu}
layers=${LAYERS:-50} rows=${ROWS:-14972,39614} repeat=${REPEAT:-2}
# Multicast over NVLink is not used here, and a program that uses it can disturb others on a shared host.
export NCCL_NVLS_ENABLE=0 OMP_WAIT_POLICY=passive
mkdir -p "$out"

n_gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
[ "$n_gpus" -ge 1 ] || { echo "no GPU here (nvidia-smi lists none)" >&2; exit 77; }
# NCCL of a Python environment serves when the system has none.
if [ -z "${NCCL_HOME:-}" ]; then
    NCCL_HOME=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null || true)
    export NCCL_HOME
fi
[ -n "${NCCL_HOME:-}" ] && export LD_LIBRARY_PATH="$NCCL_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$build" -j "$(nproc)" --target h3av h3av-ranks h3av-gpu-bench
nvidia-smi topo -m | tee "$out/multi_gpu_topology.txt" || true

counts=1
for n in 2 4 7 8; do [ "$n" -le "$n_gpus" ] && counts="$counts $n"; done

# What several ranks compute is what one does, within twice the goldens' tolerance.
for n in $counts; do
    [ "$n" = 1 ] && continue
    "$build/h3av-ranks" exchanges "$n"
    "$build/h3av-ranks" near "$n" cuda | tee "$out/multi_gpu_near_$n.txt"
    "$build/h3av-ranks" cancel "$n"
done

for n in $counts; do
    gpus=$(seq -s, 0 $((n - 1)))
    echo "== $n GPU(s): a step of $layers layers at $rows rows"
    "$build/h3av" bench --what dit --layers "$layers" --rows "$rows" --repeat "$repeat" --dtype bf16 --gpus "$gpus" --json \
        >"$out/multi_gpu_$n.json"
    # Tiles of a clip over the ranks; each rank says how much device memory it took.
    "$build/h3av-gpu-bench" --what clip --tiles 12 --repeat 1 --ranks "$n" 2>&1 | tee "$out/multi_gpu_clip_$n.txt"
done
python3 "$root/bench/scaling.py" --results "$out"/multi_gpu_[0-9].json | tee "$out/multi_gpu.md"
