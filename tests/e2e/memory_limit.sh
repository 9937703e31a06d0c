#!/bin/sh
# A transformer of the released widths, run from disk under a memory limit that is smaller than it, must
# complete and give the latents of an unlimited run. By hand, as root: 8 GB of disk, some minutes.
#
#   memory_limit.sh H3AV H3AV-MEMORY SOURCE_DIR [LIMIT_BYTES [BLOCKS]]
#
# Exit status 77: this machine has no memory control group that can be made here.
set -u
h3av=$1 memory=$2 source=$3 limit=${4:-4294967296} blocks=${5:-4}
group=
for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    if mkdir "$root/h3av-limit" 2>/dev/null; then group=$root/h3av-limit; break; fi
done
[ -n "$group" ] || { echo "no memory control group here"; exit 77; }
dir=$(mktemp -d) || exit 77
trap 'rm -rf "$dir"; rmdir "$group" 2>/dev/null' EXIT
if [ -e "$group/memory.limit_in_bytes" ]; then set_limit=memory.limit_in_bytes most=memory.max_usage_in_bytes
elif [ -e "$group/memory.max" ]; then set_limit=memory.max most=memory.peak
else echo "no memory controller here"; exit 77; fi
echo "$limit" > "$group/$set_limit" || exit 77

"$memory" big "$dir" "$blocks" || exit 1
bytes=$(stat -c %s "$dir/dit.safetensors")
[ "$bytes" -gt "$limit" ] || { echo "$bytes bytes of weights are no more than the limit"; exit 1; }

run() { # limited or not, more options
    where=$1; shift
    # Cached pages belong to whoever read them first: a warm cache would make the limit mean nothing.
    for f in "$dir"/*.safetensors; do dd if="$f" iflag=nocache count=0 2>/dev/null; sync; done
    ( [ "$where" = limited ] && sh -c 'echo $PPID' > "$group/cgroup.procs"
      exec "$h3av" generate "a red circle" -m "$source/tests/data/tiny-h3/original" \
          --dit "$dir/dit.safetensors" --text-encoder "$dir/te.safetensors" \
          -s 64x64 --lift-limits --frames 22 --steps 3 --threads 2 -o "$dir/out.mp4" "$@" ) 2> "$dir/log" ||
        { cat "$dir/log"; echo "FAILED: $where"; exit 1; }
    grep "peak memory" "$dir/log"
    hash=$(sed -n 's/.*latents \([0-9a-f]\{16\}\).*/\1/p' "$dir/log")
}
run limited
mine=$hash
charged=$(cat "$group/$most" 2>/dev/null || echo 0)
echo "charged at most $charged of $limit bytes"
# Weights that were cached before would not be charged, and nothing would be proven.
[ "$charged" -gt $((limit / 4)) ] || { echo "FAILED: the weights were not read under the limit"; exit 1; }
run unlimited --offload none
[ -n "$mine" ] && [ "$mine" = "$hash" ] || { echo "FAILED: latents $mine under the limit, $hash without"; exit 1; }
echo "ok: $bytes bytes of weights under $limit, latents $mine"
