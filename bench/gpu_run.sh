#!/bin/bash
# Everything that a machine with an NVIDIA GPU can settle, in one go: the figures beside the libraries and diffusers,
# tests, goldens, memory checks, bad conditions.
#   bench/gpu_run.sh BIN OUT [part...]     default: compare ops goldens repeat conditions memcheck racecheck
# BIN holds h3av-gpu-bench, test_cuda_ops, h3av-golden, h3av-gpu-repeat, h3av, h3av-gpu-hog (what a part needs; one that
# is not there leaves its part out); results go to OUT. Each part has a time limit (LIMIT_ops=... in seconds); BUDGET
# seconds in all (590): what would begin later is left out. COMPARE: more arguments of bench/gpu_compare.py, e.g.
# "--wheel diffusers.whl". GOLDENS: files (all). MODEL: of repeat and of the bad conditions (the tiny one).
#
# Seconds of the parts on an H200, from earlier runs:
#   compare     430   its own parts: gpu_compare.py
#   ops          20   the first program of a cold machine: 10 to 15 s are loading libraries
#   goldens      10   97 files, programs loaded already
#   repeat       40   twenty requests of the tiny model
#   conditions   15   14 cases
#   memcheck     60   one golden of the DiT
#   racecheck    60   one more
#
# A machine lent for three commands of ten minutes settles everything with, for instance,
#   bench/gpu_run.sh BIN OUT compare & python3 bench/cpu_compare.py --cores 16-31 --threads 1 14 --budget 580 ...; wait
#   bench/multi_gpu_run.sh                                       (200 s on two GPUs), then
#   BUDGET=380 bench/gpu_run.sh BIN OUT goldens conditions ops repeat
#   bench/gpu_run.sh BIN OUT memcheck racecheck, and what was left out for want of time
bin=$1; out=$2; shift 2
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/.." && pwd)
parts=${*:-compare ops goldens repeat conditions memcheck racecheck}
budget=${BUDGET:-590}
mkdir -p "$out"
. "$here/gpu_libs.sh"
[ -d /dev/shm ] && fast=/dev/shm # not for PyTorch, which loads what it compiles from TMPDIR: often forbidden there
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.limit --format=csv,noheader
SECONDS=0 failed=0
run() { # run NAME LIMIT PROGRAM ARGUMENTS...
    local name=$1 limit=$2 begun=$SECONDS left=$((budget - SECONDS)) status
    shift 2
    eval "limit=\${LIMIT_$name:-$limit}"
    if [ $left -lt 10 ]; then echo "== $name: left out, the time is over"; failed=1; return 1; fi
    [ "$limit" -le $left ] || limit=$left
    if ! command -v "$1" >/dev/null; then echo "== $name: left out, there is no $1"; failed=1; return 1; fi
    timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1
    status=$?
    echo "== $name: exit $status, $((SECONDS - begun)) s"
    [ $status = 0 ] || failed=1
}
sanitize() { # TOOL GOLDEN
    run "$1" 90 compute-sanitizer --tool "$1" --error-exitcode 9 "$bin/h3av-golden" --device cuda "$root/tests/data/dit/$2" &&
        tail -4 "$out/$1.txt" | cut -c1-200
}
for part in $parts; do
    case $part in
    compare)
        run compare 590 python3 "$here/gpu_compare.py" "$bin/h3av-gpu-bench" --out "$out/compare.jsonl" \
            --budget $((budget - SECONDS - 10)) $COMPARE && grep -v '^+' "$out/compare.txt" | grep '^|' ;;
    ops)
        run ops 90 "$bin/test_cuda_ops"
        grep -vE "^\[ +(RUN|OK) " "$out/ops.txt" | cut -c1-240 | tail -25 ;;
    goldens)
        run goldens 150 "$bin/h3av-golden" --device cuda ${GOLDENS:-"$root/tests/data"}
        grep -E "^(ok|FAIL|[0-9]+ passed)|error|FAIL" "$out/goldens.txt" | grep -v "^ok" | cut -c1-200 | tail -30
        grep -c "^ok" "$out/goldens.txt" ;;
    repeat)
        mkdir -p "${fast:-$out}/h3av-repeat"
        run repeat 90 "$bin/h3av-gpu-repeat" cuda 20 "${fast:-$out}/h3av-repeat" "${MODEL:-$root/tests/data/tiny-h3/original}"
        tail -2 "$out/repeat.txt" ;;
    conditions)
        TMPDIR=${fast:-${TMPDIR:-/tmp}} run conditions 200 bash "$root/tests/gpu/conditions.sh" "$bin/h3av" "$bin/h3av-gpu-hog" \
            "${MODEL:-$root/tests/data/tiny-h3/original}"
        tail -20 "$out/conditions.txt" | cut -c1-200 ;;
    memcheck) sanitize memcheck t2va_step0.bf16.safetensors ;;
    racecheck) sanitize racecheck t2va_step0.f32.safetensors ;;
    *) echo "no part $part" >&2; exit 2 ;;
    esac
done
exit $failed
