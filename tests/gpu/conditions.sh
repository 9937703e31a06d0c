#!/bin/bash
# What can go wrong on a machine with an NVIDIA GPU, provoked: every case must end with a status other than 0
# and a sentence that names it.
#   tests/gpu/conditions.sh H3AV HOG MODEL [OTHER]
# HOG: h3av-gpu-hog. OTHER: an h3av without kernels for this GPU (-DH3_CUDA_ARCH of another one).
h3=$1 hog=$2 model=$3 other=${4:-}
work=$(mktemp -d) n_bad=0 n=0 held=
trap '[ -n "$held" ] && kill $held 2>/dev/null; rm -rf "$work"' EXIT
picture=(--frames-dir "$work/frames" --frames-format ppm)
small=(-m "$model" -p "a red circle" -s 64x64 -f 22 --steps 3 "${picture[@]}" --no-save-latents -q)
large=(-m "$model" -p "a red circle" -s 1344x768 -f 124 "${picture[@]}")

judge() { # judge NAME STATUS PATTERN OUTPUT: the status (or "not 0") and a sentence of the output
    n=$((n + 1))
    local ok=1
    if [ "$2" = fails ]; then [ "$status" -ne 0 ] && [ "$status" -lt 124 ] || ok=0; else [ "$status" -eq "$2" ] || ok=0; fi
    grep -qiE -e "$3" "$4" || [ -z "$3" ] || ok=0
    if [ $ok = 1 ]; then echo "ok   $1: $status${3:+, $(grep -iE -e "$3" "$4" | head -1 | cut -c1-240)}"; return; fi
    n_bad=$((n_bad + 1))
    echo "FAIL $1: status $status, wanted $2 and /$3/; it said:"; tail -5 "$4" | cut -c1-300
}
try() { # try NAME STATUS PATTERN COMMAND...
    local name=$1 want=$2 pattern=$3
    shift 3
    rm -rf "$work/frames"
    timeout 100 "$@" >"$work/out" 2>&1
    status=$?
    judge "$name" "$want" "$pattern" "$work/out"
}
hold() { # hold LEAVE_MIB: until let_go
    mkfifo "$work/in" && "$hog" "$1" <"$work/in" >"$work/held" 2>&1 &
    held=$!
    while [ ! -p "$work/in" ]; do sleep 0.05; done
    exec 9>"$work/in"
    for _ in $(seq 200); do grep -q held "$work/held" && break; sleep 0.1; done
    cat "$work/held"
}
let_go() { exec 9>&-; wait $held 2>/dev/null; held=; rm -f "$work/in"; }

try "a request as it should be" 0 "" "$h3" generate "${small[@]}" -d cuda
try "no GPU to be seen" fails "no NVIDIA GPU|driver" env CUDA_VISIBLE_DEVICES= "$h3" generate "${small[@]}" -d cuda
try "a GPU that is not there" fails "this machine has" "$h3" generate "${small[@]}" -d cuda:99
try "math that is unknown" fails "expected auto, f32, tf32 or fp8|auto\|f32\|tf32\|fp8" "$h3" generate "${small[@]}" -d cuda --cuda-math f8

# cuDNN of another major version, and doing without.
mkdir "$work/lib"
{
    echo '#include <stddef.h>'
    echo 'size_t cudnnGetVersion(void) { return 80907; }'
    for f in $(nm -D --undefined-only "$h3" | awk '{print $NF}' | sed 's/@.*//' | grep ^cudnn | grep -v GetVersion); do
        echo "int $f(void) { return 1; }"
    done
} >"$work/cudnn.c"
nm -D --undefined-only "$h3" | grep -oE '@libcudnn[^ ]*' | tr -d @ | sort -u | head -1 | sed 's/$/ { global: *; };/' >"$work/cudnn.map"
[ -s "$work/cudnn.map" ] || echo '{ global: *; };' >"$work/cudnn.map"
if cc -w -shared -fPIC -Wl,-soname,libcudnn.so.9 -Wl,--version-script="$work/cudnn.map" -o "$work/lib/libcudnn.so.9" "$work/cudnn.c" 2>/dev/null; then
    try "another cuDNN" fails "cuDNN 8.9 was found, version 9 is needed" env LD_LIBRARY_PATH="$work/lib:$LD_LIBRARY_PATH" "$h3" generate "${small[@]}" -d cuda
    try "another cuDNN, left out" 0 "" env H3_CUDNN=off LD_LIBRARY_PATH="$work/lib:$LD_LIBRARY_PATH" "$h3" generate "${small[@]}" -d cuda
else
    echo "skip another cuDNN: no compiler"
fi
try "no cuDNN wanted" 0 "" env H3_CUDNN=off "$h3" generate "${small[@]}" -d cuda

if [ -n "$other" ]; then
    try "no kernels for this GPU" fails "no kernels for .*H3_CUDA_ARCH" "$other" generate "${small[@]}" -d cuda
else
    echo "skip no kernels for this GPU: no such build was given"
fi

# Memory: another program has it before the start, and takes it during a run.
hold 1200
try "not enough device memory for the request" fails "does not fit|no device memory" "$h3" generate "${large[@]}" --steps 3 -q -d cuda \
    --latents "$work/l1"
try "a smaller one fits beside" 0 "" "$h3" generate "${small[@]}" -d cuda
let_go
hold 60
try "no device memory at all" fails "out of memory|no device memory" "$h3" generate "${small[@]}" -d cuda
let_go
try "more than --vram allows" fails "free \(--vram\)" "$h3" generate "${large[@]}" --steps 3 -q -d cuda --vram 64M --latents "$work/l2"

# What sampling needs is its own by the first step; decoding needs three times as much, which is gone then.
rm -rf "$work/frames"
timeout 100 "$h3" generate "${large[@]}" --steps 12 -d cuda --dtype f32 --latents "$work/kept.safetensors" --json >"$work/out" 2>&1 &
run=$!
for _ in $(seq 600); do grep -q '"event": *"step"' "$work/out" && break; sleep 0.05; done
hold 250
wait $run
status=$?
judge "memory taken while it ran" fails "no device memory|out of memory" "$work/out"
n=$((n + 1))
if [ -s "$work/kept.safetensors" ]; then
    echo "ok   latents were kept"
else
    n_bad=$((n_bad + 1))
    echo "FAIL latents were not kept"
fi
let_go
rm -rf "$work/frames"
try "and they are finished afterwards" 0 "" "$h3" decode "$work/kept.safetensors" -m "$model" -d cuda "${picture[@]}" -q

echo "$((n - n_bad)) of $n conditions as they should be"
[ $n_bad = 0 ]
