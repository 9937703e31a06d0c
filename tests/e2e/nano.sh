#!/bin/bash
# Prompts in, pictures and sound out, and these say what the prompt said: colour, direction, background, pitch, pan.
#   tests/e2e/nano.sh PATH-TO-h3av PATH-TO-nano_read SOURCE-DIR
set -u
[ -x "$1" ] && [ -x "$2" ] || { echo "usage: nano.sh h3av nano_read source-dir"; exit 1; }
h3av=$(realpath "$1") reader=$(realpath "$2") model=$(realpath "$3")/models/h3-nano
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-nano.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
right=0 asked=0 broken=0

judge() { # what it is, what was asked
    asked=$((asked + 1))
    if [ "$1" = "$2" ]; then right=$((right + 1)); else echo "  asked for $2, got $1"; fi
}

clip() { # SEED COLOUR DIRECTION BACKGROUND SOUND PITCH PROMPT
    local got colour way ground sound pitch from to
    rm -rf f
    "$h3av" generate -m "$model" -s 256x256 -f 22 --steps 16 --seed "$1" -p "$7" --frames-dir f --frames-format ppm \
        --wav a.wav --no-save-latents -q || { echo "FAIL $7"; broken=$((broken + 1)); return; }
    got=$("$reader" f a.wav) || { echo "FAIL $7: cannot be read"; broken=$((broken + 1)); return; }
    echo "$7: $got"
    read -r colour way ground sound pitch from to <<<"$got"
    judge "$colour" "$2"
    judge "$way" "$3"
    judge "$ground" "$4"
    judge "$sound" "$5"
    [ "$6" = - ] || judge "$pitch" "$6"
    # the sound goes where the shape goes
    case $3 in
        left) judge "$(awk "BEGIN {print ($to < $from) ? \"panned\" : \"not panned\"}")" panned ;;
        right) judge "$(awk "BEGIN {print ($to > $from) ? \"panned\" : \"not panned\"}")" panned ;;
    esac
}

clip 1 red left black steady low "a large red circle moves left on a black background with a low tone"
clip 2 green right white steady high "a big green ball slides to the right on a white background with a high tone"
clip 3 blue up gray beep middle "a large blue disc floats up on a gray background with medium beeps"
clip 4 purple still beige fall - "a huge purple circle stays still on a beige background with a falling tone"
clip 5 orange down navy rise - "a large orange square sinks on a navy background with a rising tone"
clip 6 cyan left brown steady high "a big turquoise circle drifts left on a brown background accompanied by a shrill tone"

# The model is small and misses some; a broken engine misses nearly all.
echo "$right of $asked right"
[ $broken = 0 ] && [ $((right * 100)) -ge $((asked * 80)) ]
