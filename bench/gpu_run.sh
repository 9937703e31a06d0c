#!/bin/bash
# Tests, goldens, a memory check and the benchmark on a machine with an NVIDIA GPU, in one go.
#   bench/gpu_run.sh BIN OUT [part...]     parts: ops goldens sanitizer limits bench bench8 (default: all)
# BIN holds test_cuda_ops, h3av-golden, h3av-gpu-bench; results go to OUT. Each part has a time limit
# (LIMIT_ops=... in seconds). Libraries are looked for where CUDA and Python packages keep them.
BIN=$1; OUT=$2; shift 2
PARTS=${*:-ops goldens sanitizer limits bench bench8}
mkdir -p "$OUT"
find_lib() { find / -name "$1" -not -path "/proc/*" -not -path "*/stubs/*" 2>/dev/null | head -1; }
for l in libcudart.so.13 libcublasLt.so.13 libcudnn.so.9; do
    p=$(ldconfig -p | awk -v l=$l '$1 == l { print $NF; exit }')
    [ -n "$p" ] || p=$(find_lib $l)
    echo "$l: ${p:-not found}"
    [ -n "$p" ] && LD_LIBRARY_PATH=$(dirname "$p"):$LD_LIBRARY_PATH
done
export LD_LIBRARY_PATH
export TMPDIR=${TMPDIR:-/dev/shm}
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv,noheader
run() { # run NAME LIMIT COMMAND...
    local name=$1 limit=$2 t=$SECONDS
    shift 2
    timeout "$limit" "$@" > "$OUT/$name.txt" 2>&1
    echo "== $name: exit $?, $((SECONDS - t)) s"
}
for part in $PARTS; do
    case $part in
    ops)
        run ops "${LIMIT_ops:-60}" "$BIN/test_cuda_ops"
        grep -vE "^\[ +(RUN|OK) " "$OUT/ops.txt" | cut -c1-240 | tail -25 ;;
    goldens)
        run goldens "${LIMIT_goldens:-90}" "$BIN/h3av-golden" --device cuda ${GOLDENS:-tests/data}
        grep -E "^(ok|FAIL|[0-9]+ passed)|error|FAIL" "$OUT/goldens.txt" | grep -v "^ok" | cut -c1-200 | tail -30
        grep -c "^ok" "$OUT/goldens.txt" ;;
    sanitizer)
        run sanitizer "${LIMIT_sanitizer:-60}" compute-sanitizer --tool memcheck --error-exitcode 9 \
            "$BIN/h3av-golden" --device cuda tests/data/dit/t2va_step0.bf16.safetensors
        tail -4 "$OUT/sanitizer.txt" | cut -c1-200
        run racecheck "${LIMIT_sanitizer:-60}" compute-sanitizer --tool racecheck --error-exitcode 9 \
            "$BIN/h3av-golden" --device cuda tests/data/dit/t2va_step0.f32.safetensors
        tail -4 "$OUT/racecheck.txt" | cut -c1-200 ;;
    bench)
        run bench "${LIMIT_bench:-150}" "$BIN/h3av-gpu-bench" ${BENCH:---what load,ops,dit,encoder,audio,vae,clip}
        cat "$OUT/bench.txt" | cut -c1-260 ;;
    limits)
        run limits "${LIMIT_limits:-60}" python3 "$(dirname "$0")/gpu_limits.py"
        cat "$OUT/limits.txt" ;;
    bench8)
        run bench8 "${LIMIT_bench8:-60}" "$BIN/h3av-gpu-bench" --math fp8 ${BENCH8:---what ops,dit}
        cat "$OUT/bench8.txt" | cut -c1-260 ;;
    esac
done
