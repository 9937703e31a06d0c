#!/bin/bash
# Cases from bug reports about other engines, and the surroundings that break programs: odd files, closed and
# full outputs, limits of the system, signals. Quick ones only.
#   tests/e2e/cases.sh PATH-TO-h3av SOURCE-DIR
set -u
[ -x "$1" ] || { echo "$1: no such program"; exit 1; }
h3av=$(realpath "$1")
source_dir=$(realpath "$2")
tiny=$source_dir/tests/data/tiny-h3/original/FL2VA
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-cases.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); printf 'FAIL %s\n' "$1"; [ -f err ] && sed 's/^/     /' err | cut -c1-300 | head -5; }
check() { if [ "$2" = "$3" ]; then ok; else bad "$1: got '$2', expected '$3'"; fi; }
small="-s 64x32 -f 22 --steps 2 -q"

# refuses NAME STATUS TEXT ARGS...: that status, one line on stderr that holds TEXT, nothing left behind
refuses() {
    local name=$1 status=$2 text=$3 got
    shift 3
    timeout 300 "$h3av" "$@" >out 2>err </dev/null
    got=$?
    if [ $got != "$status" ]; then bad "$name: exit status $got, expected $status"; return; fi
    if [ "$(wc -l <err)" != 1 ]; then bad "$name: expected one line of error"; return; fi
    if [ "$(wc -c <err)" -gt 700 ]; then bad "$name: the line is $(wc -c <err) bytes long"; return; fi
    if ! grep -aqF -- "$text" err; then bad "$name: the message lacks '$text'"; return; fi
    if [ "$(ls -A | grep -ac refused)" != 0 ]; then bad "$name: left a file behind"; rm -f ./*refused* ./.refused*; return; fi
    ok
}
# ends NAME STATUS COMMAND...: exit status of a shell line, nothing half-written
ends() {
    local name=$1 status=$2 got
    shift 2
    timeout 300 bash -c "$*" >out 2>err </dev/null
    got=$?
    if [ $got != "$status" ]; then bad "$name: exit status $got, expected $status"; return; fi
    if ls -A | grep -q 'part-'; then bad "$name: left a part"; rm -f .*part-*; return; fi
    ok
}

# ---- numbers that are none, or nothing (zero is not "the default")
for o in --steps --frames --width --height; do refuses "$o 0" 2 "$o 0" generate -p x $o 0 -o refused.mp4; done
refuses "threads" 2 "threads" generate -p x $small -j 2147483647 -o refused.mp4
refuses "steps beside sigmas" 2 "sigmas" generate -p x --sigmas 1,0 --steps 4 -o refused.mp4
refuses "sigma above 1" 2 "sigma" generate -p x --sigmas 2,1,0 -o refused.mp4
refuses "sigma infinite" 2 "sigma" generate -p x --sigmas 1e39,1,0 -o refused.mp4
refuses "sigmas do not end at 0" 2 "must be 0" generate -p x --sigmas 1,0.5 -o refused.mp4
refuses "one sigma" 2 "2 .. 4096" generate -p x --sigmas 0 -o refused.mp4
refuses "too many sigmas" 2 "--sigmas" generate -p x --sigmas "$(seq -s, 9000 -1 0)" -o refused.mp4
refuses "canvas knobs are for tests" 2 "--lift-limits" generate -p x --canvas-short-edge 64 -o refused.mp4
refuses "preset of x264 before the work" 2 "warp" generate -p x $small --preset-x264 warp -o refused.mp4
refuses "help of no command" 2 "frob" help frob
refuses "long rubbish stays one short line" 2 "expected" generate -p x --task "$(printf 'y%.0s\n' $(seq 3000))" -o refused.mp4
refuses "shift that is lost in rounding" 2 "shift 1e-300" generate -p x --shift 1e-300 -o refused.mp4
for o in --vae --lora --tokenizer; do refuses "plan of a $o that is none" 5 "nowhere" plan -p x $o nowhere; done
refuses "5s" 2 "5s" plan -p x -t 5s
frames() { "$h3av" plan -p x --json "$@" 2>/dev/null | sed -n 's/^  "frames": \([0-9]*\),/\1/p'; }
for pair in 1e-300:22 4:107 4.46:124 5:124 10:243 14.375:345 15:362 15.083:362 15.1:379; do
    check "seconds ${pair%:*}" "$(frames -t "${pair%:*}")" "${pair#*:}"
done
for pair in 1:22 4:22 5:22 6:22 21:22 22:22 81:90 121:124 124:124 125:141 362:362 363:379; do
    check "frames ${pair%:*}" "$(frames -f "${pair%:*}")" "${pair#*:}"
done

# ---- prompts
printf 'a\0b' >nul.txt
printf '\xef\xbb\xbfa red circle\r\n' >bom.txt
head -c 1200000 /dev/zero | tr '\0' x >long.txt
refuses "prompt with a zero byte" 2 "zero byte" generate --prompt-file nul.txt $small -o refused.mp4
refuses "prompt too long" 2 "long.txt" generate --prompt-file long.txt $small -o refused.mp4
refuses "prompt is a folder" 3 "directory" generate --prompt-file . $small -o refused.mp4
refuses "no prompt file" 5 "nowhere" generate --prompt-file nowhere $small -o refused.mp4
check "byte order mark and line end are no prompt" \
    "$("$h3av" plan --prompt-file bom.txt 2>/dev/null | grep -c '"prompt": "a red circle"')" 1
ids() { "$h3av" tokenize --tokenizer "$source_dir/tests/data/tokenizer/$1" "$2" | sed 's/.*"ids":\[\([^]]*\)\].*/\1/'; }
mkdir seven && cp "$source_dir"/tests/data/tokenizer/tiny/* seven && chmod u+w seven/*
sed -i 's/"added_tokens_decoder": *{/&"1050": {"content": "<d>"}, "1051": {"content": "<\/d>"}, "1052": {"content": "<|cutoff|>"},/' seven/tokenizer_config.json
check "tokens that only the settings know" \
    "$("$h3av" tokenize --tokenizer seven '<d></d><|cutoff|>' | sed 's/.*"ids":\[\([^]]*\)\].*/\1/')" 1050,1051,1052
check "joined emoji" "$(ids real_subset '👩‍👩‍👧‍👦')" 145233,378,235,145233,378,235,145665,378,235,145988
check "digits stand alone" "$(ids real_subset '2026 12345')" 17,15,17,21,220,16,17,18,19,20
check "contractions of any case" "$(ids real_subset "I'M it'S don’t")" 40,27603,432,13272,1513,1405
check "contractions once more" "$(ids real_subset "don't DON'T we'LL")" 15007,944,44273,17323,582,6,4086
check "numbers that are no digits" "$(ids real_subset '1½ Ⅴ ٤')" 16,26062,220,70467,97,220,149,97

# ---- files that are none
mkfifo fifo
mkdir folder
ln -s loop2 loop1 && ln -s loop1 loop2
for o in --dit --vae --noise --resume --lora --first --ref; do
    refuses "$o of a pipe" 4 "fifo" generate -p x $small $o fifo -o refused.mp4
    refuses "$o of a loop" 3 "loop1" generate -p x $small $o loop1 -o refused.mp4
done
refuses "inspect a pipe" 4 "fifo" inspect fifo
refuses "decode a device" 4 "/dev/zero" decode /dev/zero -o refused.mp4
refuses "model is a file" 2 "--dit" generate -p x $small -m "$tiny/model_index.json" -o refused.mp4
refuses "the whole disk as a model" 5 "transformer" generate -p x $small -m /sys -o refused.mp4
for pair in dit:video_vae text-encoder:transformer vae:audio_vae audio-vae:text_encoder; do
    refuses "${pair#*:} as --${pair%:*}" 4 "${pair#*:}" generate -p x $small --"${pair%:*}" "$tiny/${pair#*:}" -o refused.mp4
done
refuses "adapter that is a model" 4 "lora" generate -p x $small --lora "$tiny/transformer" -o refused.mp4
refuses "name of two lines" 5 'new\x0aline' inspect $'new\nline'

# ---- outputs that are closed, full or gone
for c in "plan -p x" "tokenize hi" "inspect $tiny" help version "help --man" "bench --tiny --repeat 1 --what audio"; do
    ends "full output of $c" 3 "'$h3av' $c >/dev/full"
    ends "closed output of $c" 3 "'$h3av' $c >&-"
done
"$h3av" generate -p x $small -o a.mp4 2>err || bad "generate"
ends "all three closed" 0 "'$h3av' generate -p x -s 64x32 -f 22 --steps 2 -o b.mp4 <&- >&- 2>&-"
check "messages do not land in the video" "$(cmp a.mp4 b.mp4 && echo same)" same
ends "reader gone" 3 "exec 9> >(:); wait \$!; '$h3av' generate -p x $small --json -o b.mp4 >&9"
check "the video is there all the same" "$(cmp a.mp4 b.mp4 && echo same)" same
ends "size limit" 3 "ulimit -f 8; '$h3av' generate -p x $small -o c.mp4"
check "nothing cut" "$([ -e c.mp4 ] || echo none)" none

"$h3av" generate -p x $small --save-latents --latents l -o a.mp4 2>err || bad "latents"
for pair in --crf:99 --codec:h263 --preset-x264:warp; do
    refuses "decode ${pair%:*}" 2 "${pair#*:}" decode l "${pair%:*}" "${pair#*:}" -o refused.mp4
done
latents_of() { # NAME T,H,W N: a file of latents that holds no numbers, whatever its extents claim
    local header='{"__metadata__":{"h3av":"{\"kind\":\"latents\"}"},"video":{"dtype":"F32","shape":[24,'$2'],"data_offsets":[0,0]},"audio":{"dtype":"F32","shape":[2,32,'$3'],"data_offsets":[0,0]}}'
    while [ $((${#header} % 8)) != 0 ]; do header="$header "; done
    { printf "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))\\0\\0\\0\\0\\0\\0"; printf %s "$header"; } >"$1"
}
latents_of none 0,4,4 0 && refuses "latents of nothing" 4 "none: video of 0" decode none -o refused.mp4
latents_of vast 0,268435456,1099511627776 0 && refuses "latents of 2^40 columns" 4 "vast: video of 0" decode vast -o refused.mp4
cp l kept
for o in "-o kept" "--wav ./kept" "-o $work/kept"; do refuses "decode over the latents, $o" 2 "two names" decode kept $o; done
check "the latents are still there" "$(cmp l kept && echo same)" same
for o in --wav --latents --checkpoint; do
    refuses "$o is the MP4" 2 "two names" generate -p x $small $o ./refused.mp4 -o refused.mp4
done
mkdir old && "$h3av" decode l -q --frames-dir old --frames-format ppm
refuses "frames over frames, before the work" 2 "holds 22 frames" generate -p x $small --frames-dir old --latents refused
refuses "latents are no checkpoint" 4 "checkpoint" generate -p x $small --resume l -o refused.mp4
check "latents tell what they were made of" "$("$h3av" inspect l | grep -cE "^ *(seed +\"[0-9]+\"|kind +\"latents\"|prompt +\")")" 3

# ---- small surroundings
ends "no home, no place for temporary files" 0 "env -i OMP_WAIT_POLICY=passive '$h3av' generate -p x $small -o b.mp4"
check "same file" "$(cmp a.mp4 b.mp4 && echo same)" same
for kb in 256 64 32; do
    rm -f b.mp4
    ends "stack of $kb kB" 0 "ulimit -s $kb; env -i OMP_WAIT_POLICY=passive '$h3av' generate -p x $small -o b.mp4" # a large environment lies there too
    check "same file from $kb kB of stack" "$(cmp a.mp4 b.mp4 && echo same)" same
    check "nothing left by $kb kB of stack" "$(ls -A | grep -c 'part-')" 0
done
ends "few descriptors" 0 "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -n 16; '$h3av' generate -p x $small -o b.mp4"
"$h3av" generate -p x $small -o two.mp4 2>err &
first=$!
"$h3av" generate -p x $small -o two.mp4 2>err2
check "two at once: second" $? 0
wait $first
check "two at once: first" $? 0
check "two at once: whole" "$(cmp a.mp4 two.mp4 && echo same)" same

# ---- SIGTERM inside a run: what was done is kept, the message says how to go on, and the video is the same
# A fast machine may be past that place before the signal comes: then the same with a longer run.
long="-p x -s 128x128 -q --preset-x264 placebo"
awaits() { # NAME PID: until such a file is there, or the process has ended
    for _ in $(seq 30000); do ls -A | grep -q -- "$1" && return; kill -0 "$2" 2>/dev/null || return; sleep 0.01; done
}
for steps in 5 40 200 1000; do
    rm -f term.mp4*
    "$h3av" generate $long -f 39 --steps $steps --checkpoint-every 1 -o term.mp4 2>err &
    pid=$!
    awaits 'term.mp4.checkpoint$' $pid
    kill -TERM $pid 2>/dev/null
    wait $pid
    status=$?
    [ $status = 0 ] || [ -e term.mp4.latents ] || break
done
check "SIGTERM while sampling: status" $status 130
check "SIGTERM while sampling: files" "$(ls -A | grep term)" term.mp4.checkpoint
check "SIGTERM while sampling: how to go on" "$(grep -c -- '--resume term.mp4.checkpoint' err)" 1
mkdir far && : >far/x.mp4 && ln -s far/x.mp4 term.mp4 && : >far/.x.mp4.part-99999999-0 # of a process that cannot be
ends "going on from there" 0 "'$h3av' generate $long -f 39 --steps $steps --resume term.mp4.checkpoint -o term.mp4"
check "going on through a link: nothing is left of a killed run" "$([ -L term.mp4 ] && ls -A far)" x.mp4
"$h3av" generate $long -f 39 --steps $steps -o whole.mp4 2>err || bad "the whole run"
check "SIGTERM while sampling: the same video" "$(cmp whole.mp4 term.mp4 && echo same)" same
for frames in 39 124 362; do
    rm -f late.mp4*
    "$h3av" generate $long -f $frames --steps 5 -o late.mp4 2>err &
    pid=$!
    awaits 'late.mp4.latents$' $pid # the disk is tried with a .part before the work
    awaits 'late.mp4.part' $pid
    kill -TERM $pid 2>/dev/null
    wait $pid
    status=$?
    [ $status = 0 ] || break
done
check "SIGTERM while decoding: status" $status 130
check "SIGTERM while decoding: files" "$(ls -A | grep late)" late.mp4.latents
check "SIGTERM while decoding: how to go on" "$(grep -c 'h3av decode late.mp4.latents' err)" 1
ends "decoding from there" 0 "'$h3av' decode late.mp4.latents -q --preset-x264 placebo -o late.mp4"
"$h3av" generate $long -f $frames --steps 5 -o whole.mp4 2>err || bad "the whole run"
check "SIGTERM while decoding: the same video" "$(cmp whole.mp4 late.mp4 && echo same)" same
rm -f late.mp4.latents

# ---- signals outside a run: nothing half-written
mkdir many && "$h3av" generate -p x -s 256x256 -f 56 --steps 2 -q --frames-dir many --frames-format ppm 2>err
for sig in INT TERM HUP; do
    "$h3av" mux many -o stopped.mp4 --preset-x264 placebo 2>err &
    pid=$!
    awaits 'stopped.mp4.part' $pid
    kill -$sig $pid 2>/dev/null
    wait $pid 2>/dev/null
    check "mux and SIG$sig: nothing left" "$(ls -A | grep -c 'part-')" 0
    rm -f stopped.mp4
done

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
