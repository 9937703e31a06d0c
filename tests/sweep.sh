#!/bin/bash
# Tests remove what they put into the folder for temporary files; one that is killed cannot. `make check` calls this
# first: it removes, of the user's own and of the tests' own names, what belongs to a process that is gone, or
# (names without a process in them) was not touched for a day.
#   tests/sweep.sh [FOLDER]
set -u
folder=${1:-${TMPDIR:-/tmp}}
cd "$folder" 2>/dev/null || exit 0
of_process='^h3av-(weights|manifest|store|forms|memory|keep|test)-([0-9]+)[-.]'
without='^h3av-(golden|media|vae|encoder|forms|curve|formats|hollow|resume|ranks|model|frames|test-text)-[A-Za-z0-9]{6}(\.safetensors)?$|^h3av-(e2e|cases|media|nano|ranks-e2e|mutations|queue)\.[A-Za-z0-9]{6}$|^h3av-(formats|hostile)\.[a-z0-9_]{8}$|^h3av-test-[a-z0-9_]{8}$'
n=0
for f in h3av-*; do
    [ -e "$f" ] || [ -L "$f" ] || continue
    [ -O "$f" ] && [ ! -L "$f" ] || continue
    if [[ $f =~ $of_process ]]; then
        kill -0 "${BASH_REMATCH[2]}" 2>/dev/null && continue
        [ -e "/proc/${BASH_REMATCH[2]}" ] && continue # of another user
    elif ! [[ $f =~ $without ]] || [ -z "$(find "$f" -maxdepth 0 -mmin +1440)" ]; then
        continue
    fi
    chmod -R u+w "$f" 2>/dev/null
    rm -rf "./$f" && n=$((n + 1))
done
[ $n = 0 ] || echo "$folder: $n leftovers of killed tests removed"
