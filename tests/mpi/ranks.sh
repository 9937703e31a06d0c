#!/bin/bash
# Several ranks, as a person starts them: forked (--ranks) and under mpirun. What they make must be the very
# file that one rank makes; when one stops or fails, all end, with one line.
#   tests/mpi/ranks.sh PATH-TO-h3av-ranks PATH-TO-h3av [brief]      brief: fewer counts, for slow builds
set -u
ranks=$(realpath "$1") h3av=$(realpath "$2") tiny=$(realpath "$(dirname "$0")/../data/tiny-h3/original")
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-ranks-e2e.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" && ln -s "$tiny" tiny || exit 1 # its 4 heads divide among 2 ranks
export OMP_WAIT_POLICY=passive TMPDIR=$work
# As root mpirun must be told twice; cores are few where tests run. The runtime keeps memory at exit.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_base_warn_component_unused=0 HWLOC_HIDE_ERRORS=2 # machines without /sys/devices
failed=0
bad() { failed=$((failed + 1)); echo "FAIL $1"; [ -f err ] && head -3 err | sed 's/^/     /'; }
check() { [ "$2" = "$3" ] || bad "$1: got '$2', expected '$3'"; }
mpi() { local n=$1; shift; ASAN_OPTIONS=detect_leaks=0 timeout 900 mpirun -q --bind-to none -n "$n" "$@"; }
has_mpi=
command -v mpirun >/dev/null && "$h3av" version >/dev/null && ldd "$h3av" | grep -q libmpi && has_mpi=yes

# ---- exchanges, the network, failures: the program made for it
forked="2 7" launched="2 3 4 7"
[ "${3:-}" = brief ] && forked=3 launched=2
for n in $forked; do timeout 900 "$ranks" same $n 2>err || bad "same on $n ranks"; done
for n in $forked; do timeout 900 "$ranks" spread $n 2>err || bad "spread weights on $n ranks"; done
for n in $forked; do H3_OVERLAP=3,2 timeout 900 "$ranks" same $n 2>err || bad "in pieces on $n ranks"; done
H3_PEER=off timeout 900 "$ranks" same 3 2>err || bad "same by messages"
for n in 3 $forked; do timeout 900 "$ranks" exchanges $n 2>err || bad "exchanges on $n ranks"; done
for s in cancel nan killed early; do timeout 900 "$ranks" $s 3 2>err || bad "$s on 3 ranks"; done
timeout 900 "$ranks" heads 3 2>err || bad "heads on 3 ranks"
if [ $has_mpi ]; then
    for n in $launched; do mpi $n "$ranks" same 2>err || bad "same on $n ranks of mpirun"; done
    for n in $launched; do
        H3_OVERLAP=2,3 mpi $n "$ranks" spread 2>err || bad "in pieces, spread, on $n ranks of mpirun"
    done
    for s in exchanges cancel nan early; do mpi 3 "$ranks" $s 2>err || bad "$s on 3 ranks of mpirun"; done
fi

# ---- whole requests: tiles and clips on several ranks, conditions of every kind
common="-m tiny -s 160x64 --lift-limits --reference-short-edge 32 --steps 3 -q -j 1"
one() { local out=$1; shift; "$h3av" generate $common "$@" -o "$out" 2>err || bad "one rank: $*"; }
several() { # NAME N ARGS...: the same file as $1-1.mp4
    local name=$1 n=$2; shift 2
    "$h3av" generate $common --ranks "$n" "$@" -o "$name-$n.mp4" >out 2>err || bad "$name on $n ranks: exit $?"
    check "$name on $n ranks is the same file" "$(cmp "$name-1.mp4" "$name-$n.mp4" 2>&1 && echo same)" same
    check "$name on $n ranks says nothing when quiet" "$(cat out err)" ""
}
one text-1.mp4 -p "a red circle" -f 39 --frames-dir frames --wav sound.wav
several text 2 -p "a red circle" -f 39
several text 4 -p "a red circle" -f 39
first=$(ls frames/* | head -1) last=$(ls frames/* | tail -1)
"$h3av" generate $common --ranks 2 --offload ranks -p "a red circle" -f 39 -o spread.mp4 2>err || bad "spread: exit $?"
check "weights spread over 2 ranks make the same file" "$(cmp text-1.mp4 spread.mp4 && echo same)" same
H3_PEER=off "$h3av" generate $common --ranks 4 -p "a red circle" -f 39 -o messages.mp4 2>err || bad "messages: exit $?"
check "messages make the same file as windows" "$(cmp text-1.mp4 messages.mp4 && echo same)" same
one keys-1.mp4 -p x -f 22 --first "$first" --last "$last"
several keys 4 -p x -f 22 --first "$first" --last "$last"
one refs-1.mp4 -p x -f 22 --ref "$last" --ref sound.wav --ref "$first"
several refs 2 -p x -f 22 --ref "$last" --ref sound.wav --ref "$first"
if [ $has_mpi ]; then
    mpi 4 "$h3av" generate $common -p "a red circle" -f 39 -o mpi.mp4 >out 2>err || bad "mpirun -n 4: exit $?"
    check "mpirun -n 4 makes the same file" "$(cmp text-1.mp4 mpi.mp4 && echo same)" same
    check "mpirun says nothing when quiet" "$(cat out err)" ""
    printf 'a red circle' | mpi 2 "$h3av" generate $common --prompt-file - -f 39 -o mpi.mp4 2>err
    check "a prompt from standard input reaches all ranks" "$(cmp text-1.mp4 mpi.mp4 && echo same)" same
    check "one process prints the version" "$(mpi 3 "$h3av" version | wc -l)" 1
    mpi 2 "$h3av" generate $common -p x --ranks 3 -o no.mp4 2>err
    check "ranks that contradict the launcher" "$? $(wc -l <err)" "2 1"
fi

# ---- saved states do not know how many ranks made them
"$h3av" generate $common -p "a red circle" -f 39 --ranks 4 --save-latents -o kept.mp4 2>err || bad "latents"
"$h3av" decode kept.mp4.latents -m tiny -q -j 1 --ranks 2 -o decoded.mp4 2>err || bad "decode on 2 ranks"
check "decoded on 2 ranks" "$(cmp kept.mp4 decoded.mp4 && echo same)" same

# ---- one line for all, nothing left behind
lines() { grep -c '^h3av: ' err; }
"$h3av" generate $common -p x -f 22 --ranks 3 -o no.mp4 >out 2>err
check "heads that do not divide" "$? $(lines)" "7 1"
grep -q '4 attention heads do not divide among 3 ranks: use one of 1, 2, 4' err || bad "which ranks would do"
"$h3av" generate $common -p x --model nowhere --ranks 2 -o no.mp4 >out 2>err
check "a model that is not there" "$(lines)" 1
"$h3av" generate $common -p x --ranks 17 -o no.mp4 2>err
check "more ranks than a host takes" "$? $(lines)" "2 1"

"$h3av" generate $common -p x --offload ranks -o no.mp4 >out 2>err
check "weights over one rank" "$? $(lines)" "2 1"

# Long enough to be stopped in the middle: rank 0, then another rank, by signal; then one is killed.
long="-m tiny -s 320x192 --lift-limits -f 73 --steps 1000 --json -j 1 -p x --ranks 2 -o no.mp4"
start() { # until it samples
    "$h3av" generate $long >out 2>err &
    pid=$!
    for _ in $(seq 6000); do grep -q '"phase":"sample","step"' out && break; kill -0 $pid 2>/dev/null || break; sleep 0.1; done
    child=$(pgrep -P $pid | head -1)
}
start; kill -TERM $pid; wait $pid; check "stopping rank 0" "$? $(lines)" "130 1"
start; kill -INT "$child"; wait $pid; check "stopping another rank" "$? $(lines)" "130 1"
start; kill -KILL "$child"; wait $pid; check "a rank that is killed" "$? $(lines)" "70 1"
grep -q 'rank 1: ended unexpectedly' err || bad "which rank was killed"
start; kill -KILL $pid; wait $pid 2>/dev/null
lives() { grep -q '^State:[[:space:]]*[RSDT]' "/proc/$child/status" 2>/dev/null; }
for _ in $(seq 1200); do lives || break; sleep 0.1; done
lives && bad "a rank outlives rank 0"
check "nothing is left behind" "$(ls -A | grep -c 'no\.mp4')" 0

[ $failed = 0 ] && echo "ranks: all as one${has_mpi:+, mpirun too}"
[ $failed = 0 ]
