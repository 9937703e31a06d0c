#!/bin/sh
# Proves that the goldens can fail: every wrong turn of tests/mutations.tsv is made in a copy of the
# source, and the golden named beside it must then fail. A turn that compiles and passes, that no
# longer applies, or that does not compile, is reported, and the script ends with status 1.
#
#   tests/mutations.sh [REGEX]      only mutations whose name matches
#
# Slow (one small build and one golden run per mutation), therefore not part of the ordinary tests;
# `cmake --build build --target mutations` runs it. JOBS sets the number of compile jobs, CC the
# compiler, KEEP=1 leaves the copy in place.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
table=$root/tests/mutations.tsv
only=${1:-.}
jobs=${JOBS:-2}
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-mutations.XXXXXX") || exit 1
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT INT TERM
tab=$(printf '\t')
copy=$work/src-tree
build=$work/build
caught=0
bad=0

# rows NAME PROGRAM DEVICE GOLDEN of the selected mutations, without comments
selected() {
    grep -v '^#' "$table" | grep -v '^$' | awk -F "$tab" -v re="$only" '$1 ~ re'
}

golden() { # program device golden: quiet; status of the program
    "$build/$1" --device "$2" "$root/tests/data/$3" >"$work/golden.log" 2>&1
}

compile() { # programs...
    cmake --build "$build" --target "$@" -j "$jobs" >"$work/build.log" 2>&1
}

say() { printf '%-9s %s\n' "$1" "$2"; }

# Only what a build needs; the data is read from where it is.
mkdir -p "$copy" && (cd "$root" && tar cf - --exclude=./build --exclude=./.git --exclude=./tests/data --exclude=./models .) |
    tar xf - -C "$copy" || exit 1
mkdir -p "$copy/tests" && ln -s "$root/tests/data" "$copy/tests/data"
cmake -S "$copy" -B "$build" -DCMAKE_BUILD_TYPE=Release -DH3_WERROR=OFF -DH3_CUDA=OFF >"$work/build.log" 2>&1 || {
    cat "$work/build.log"
    exit 1
}

programs=$(selected | cut -f 4 | sort -u)
[ -n "$programs" ] || { echo "no mutation matches $only"; exit 1; }
# shellcheck disable=SC2086
compile $programs || { tail -40 "$work/build.log"; exit 1; }
for run in $(selected | cut -f 4-6 | sort -u | tr "$tab" '|'); do
    IFS='|' read -r program device file <<EOF
$run
EOF
    golden "$program" "$device" "$file" || {
        say BROKEN "$file fails on $device without any mutation"
        tail -5 "$work/golden.log"
        exit 1
    }
done

for name in $(selected | cut -f 1 | uniq); do
    selected | awk -F "$tab" -v n="$name" '$1 == n' >"$work/rows"
    applied=1
    while IFS="$tab" read -r _ file script _; do
        cp "$copy/$file" "$work/before"
        sed -E -i "$script" "$copy/$file" || applied=0
        cmp -s "$work/before" "$copy/$file" && applied=0
    done <"$work/rows"
    IFS="$tab" read -r _ _ _ program device golden_file <"$work/rows"
    if [ $applied = 0 ]; then
        say STALE "$name: the edit does not apply any more"
        bad=$((bad + 1))
    elif ! compile "$program"; then
        say STALE "$name: does not compile"
        grep -m 3 'error' "$work/build.log"
        bad=$((bad + 1))
    elif golden "$program" "$device" "$golden_file"; then
        say MISSED "$name: $golden_file still passes"
        bad=$((bad + 1))
    else
        say caught "$name: $(grep -c FAIL "$work/golden.log") failures in $golden_file"
        caught=$((caught + 1))
    fi
    while IFS="$tab" read -r _ file _; do
        cp "$root/$file" "$copy/$file"
    done <"$work/rows"
done
echo "$caught caught, $bad not"
[ $bad = 0 ]
