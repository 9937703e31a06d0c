#!/bin/bash
# tests/sweep.sh removes what is stale and nothing else.   tests/sweep_test.sh SOURCE-DIR
set -u
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-e2e.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
(exit 0) & gone=$!
wait $gone
while kill -0 $gone 2>/dev/null; do (exit 0) & gone=$!; wait $gone; done
touch "h3av-store-$gone.safetensors" "h3av-keep-$gone-a.wav" "h3av-store-$$.safetensors" h3av-mine.mp4 "h3av-$gone-x" h3av-media-young1
mkdir "h3av-keep-$gone-model" h3av-ranks-AbCd12 h3av-bench-AbCd12 && touch "h3av-keep-$gone-model/x" && chmod 555 "h3av-keep-$gone-model"
mkdir h3av-golden-AbCd12 && touch -d '2 days ago' h3av-golden-AbCd12 h3av-bench-AbCd12 h3av-mine.mp4
ln -s h3av-mine.mp4 "h3av-weights-$gone-1.gguf" # never through a link
bash "$1/tests/sweep.sh" "$work" >said || exit 1
got=$(ls -d h3av-* | tr '\n' ' ')
want="h3av-$gone-x h3av-bench-AbCd12 h3av-media-young1 h3av-mine.mp4 h3av-ranks-AbCd12 h3av-store-$$.safetensors h3av-weights-$gone-1.gguf "
[ "$(echo "$got" | tr ' ' '\n' | sort)" = "$(echo "$want" | tr ' ' '\n' | sort)" ] || { echo "left: $got, expected: $want"; exit 1; }
grep -q '4 leftovers' said || { cat said; exit 1; }
