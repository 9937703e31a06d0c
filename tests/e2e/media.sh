#!/bin/bash
# Keyframes and references from ordinary files, through the program: photos, clips, songs.
#   tests/e2e/media.sh PATH-TO-h3av SOURCE-DIR          (needs the ffmpeg program to make the files)
set -u
[ -x "$1" ] || { echo "$1: no such program"; exit 1; }
command -v ffmpeg >/dev/null || { echo "skipped: no ffmpeg to make test media"; exit 77; }
h3av=$(realpath "$1") tiny=$(realpath "$2")/tests/data/tiny-h3/original
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-media.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" && ln -s "$tiny" tiny || exit 1
passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); printf 'FAIL %s\n' "$1"; sed 's/^/     /' err | head -4; }
check() { if [ "$2" = "$3" ]; then ok; else bad "$1: got '$2', expected '$3'"; fi; }
ff() { ffmpeg -v error -nostdin -y "$@" || { echo "ffmpeg failed: $*"; exit 1; }; }

# knobs that keep the tiny model quick: canvases and references of 64 pixels
small="-m tiny -f 22 --steps 3 -q --lift-limits --canvas-short-edge 64 --canvas-max-pixels 8192 --reference-short-edge 64"

runs() { local name=$1; shift; rm -f out.mp4; if "$h3av" generate $small -o out.mp4 "$@" >out 2>err && [ -s out.mp4 ]; then ok; else bad "$name: exit status $?"; fi; }
refuses() {
    local name=$1 status=$2 text=$3 got
    shift 3
    rm -f out.mp4
    "$h3av" generate $small -o out.mp4 "$@" >out 2>err
    got=$?
    if [ $got != "$status" ] || ! grep -qF -- "$text" err || [ -e out.mp4 ] || [ "$(grep -c '^h3av: ' err)" != 1 ]; then
        bad "$name: exit status $got, expected $status and '$text'"
    else ok; fi
}
planned() { # EXPRESSION ARGS...: a Python expression over the plan p
    local e=$1
    shift
    "$h3av" plan --json -p x "$@" >out 2>err && python3 -c "import json; p = json.load(open('out')); print($e)"
}

ff -f lavfi -i testsrc=size=160x90:rate=1:duration=1 -frames:v 1 photo.jpg
ff -f lavfi -i testsrc=size=90x160:rate=1:duration=1 -frames:v 1 tall.png
ff -f lavfi -i testsrc2=size=64x64:rate=1:duration=1 -frames:v 1 pic.webp
ff -f lavfi -i testsrc2=size=64x48:rate=1:duration=1 -frames:v 1 pic.gif
ff -f lavfi -i "sine=440:duration=1.5:sample_rate=44100" voice.wav
ff -f lavfi -i "sine=440:duration=1.5" -f lavfi -i "sine=880:duration=1.5" -filter_complex "[0][1]join=inputs=2" song.mp3
ff -f lavfi -i "sine=300:duration=1" song.flac
for rate in 24 24000/1001 30000/1001 60; do
    ff -f lavfi -i "testsrc2=size=86x48:rate=$rate:duration=1.2" -f lavfi -i "sine=300:duration=1.2" -c:v libx264 -pix_fmt yuv420p -c:a aac "clip${rate%%/*}.mp4"
done
ff -f lavfi -i "testsrc2=size=64x64:rate=24:duration=1.2" -c:v libx264 -pix_fmt yuv420p silent.mp4
ff -f lavfi -i "testsrc2=size=64x64:rate=24" -frames:v 1 -c:v libx264 -pix_fmt yuv420p one.mp4
ff -f lavfi -i "testsrc2=size=64x64:rate=30:duration=1.2" -c:v libx265 -x265-params log-level=none -pix_fmt yuv420p10le ten.mp4 2>/dev/null
ff -f lavfi -i "testsrc2=size=64x64:rate=30:duration=1" -c:v libvpx-vp9 -b:v 200k vp9.webm
ff -f lavfi -i "testsrc2=size=64x64:rate=30:duration=1.2" -vf "select='not(mod(n,3))+gt(n,20)'" -fps_mode vfr -c:v libx264 -pix_fmt yuv420p vfr.mp4
mkdir folder && ff -f lavfi -i "testsrc2=size=64x64:rate=24:duration=1" folder/f_%03d.png

# ---- fl2va
runs "first" -p "it moves" --first photo.jpg
runs "last" -p "it moves" --last tall.png
runs "both" -p "it moves" --first photo.jpg --last tall.png
runs "empty prompt is fine with a keyframe" -p "" --first photo.jpg
cp out.mp4 a.mp4
runs "again" -p "" --first photo.jpg
check "same inputs, same file" "$(cmp a.mp4 out.mp4 && echo same)" same
for fit in stretch cover pad; do runs "fit $fit" -p x --first photo.jpg -s 64x64 --fit $fit; cp out.mp4 $fit.mp4; done
check "cover and pad differ" "$(cmp -s cover.mp4 pad.mp4 || echo differ)" differ
check "canvas follows the first keyframe" "$(planned 'p["width"], p["height"]' --first photo.jpg)" "1344 768"
check "portrait" "$(planned 'p["width"], p["height"]' --first tall.png)" "768 1344"
check "numbering" "$(planned '[c["labels"] for c in p["conditions"]]' --first photo.jpg --last tall.png)" "[['<Picture 1>'], ['<Picture 2>']]"

# ---- ref2va
runs "picture" -p "like <Picture 1>" --ref photo.jpg
runs "webp and gif" -p x --ref pic.webp --ref pic.gif
runs "picture and voice" -p "<Picture 1> speaks" --ref photo.jpg --ref voice.wav
runs "stereo mp3" -p x --ref photo.jpg --ref song.mp3
runs "flac" -p x --ref photo.jpg --ref song.flac
for rate in 24 24000 30000 60; do runs "clip at $rate" -p x --ref clip$rate.mp4; done
runs "clip without its sound" -p x --ref clip24.mp4,sound=no
runs "sound of a clip" -p x --ref photo.jpg --ref clip24.mp4,sound=only
runs "silent clip" -p x --ref silent.mp4
[ -s ten.mp4 ] && runs "10 bit H.265" -p x --ref ten.mp4
runs "VP9" -p x --ref vp9.webm
runs "variable rate" -p x --ref vfr.mp4
runs "folder of frames" -p x --ref folder --ref-fps 24
runs "mixed" -p "<Picture 1> <Video 1> <Audio 2>" --ref photo.jpg --ref clip24.mp4 --ref voice.wav
check "mixed numbering" "$(planned '[c["labels"] for c in p["conditions"]]' --ref photo.jpg --ref clip24.mp4 --ref voice.wav)" \
    "[['<Picture 1>'], ['<Audio 1>', '<Video 1>'], ['<Audio 2>']]"
check "sound=no numbering" "$(planned '[c["labels"] for c in p["conditions"]]' --ref clip24.mp4,sound=no --ref photo.jpg)" "[['<Video 1>'], ['<Picture 1>']]"
check "60 fps becomes 24" "$(planned 'p["conditions"][0]["frames"] in (28, 29)' --ref clip60.mp4)" True

# ---- refused by name, before any weight is read
refuses "clip as keyframe" 2 "first keyframe: clip24.mp4" -p x --first clip24.mp4
refuses "sound as keyframe" 2 "voice.wav is a sound" -p x --first voice.wav
printf "no picture\n" >note.txt
refuses "text as keyframe" 4 "last keyframe: note.txt: no picture, video or sound" -p x --last note.txt
refuses "sound alone" 2 "audio" -p x --ref voice.wav
refuses "sound of a silent clip" 2 "silent.mp4 has no sound" -p x --ref silent.mp4,sound=yes
refuses "sound of a picture" 2 "no sound" -p x --ref photo.jpg,sound=only
refuses "bad sound word" 2 "sound=yes" -p x --ref clip24.mp4,sound=maybe
refuses "one frame" 2 "13" -p x --ref one.mp4
refuses "folder without rate" 2 "--ref-fps" -p x --ref folder
refuses "missing" 5 "nothing.jpg" -p x --ref nothing.jpg
printf 'not a picture' >fake.png
refuses "text named png" 4 "fake.png" -p x --ref fake.png
head -c 900 photo.jpg >cut.jpg
refuses "cut picture" 4 "cut.jpg" -p x --first cut.jpg
: >zero.wav
refuses "empty sound" 4 "zero.wav" -p x --ref photo.jpg --ref zero.wav
refuses "pad tokens in the prompt" 2 "image_pad" -p "a <|image_pad|> b" --ref photo.jpg
refuses "references for fl2va" 2 "fl2va" -p x --task fl2va --ref photo.jpg
ff -f lavfi -i testsrc=size=500x50:rate=1:duration=1 -frames:v 1 wide.png
refuses "1:10 reference" 2 "4:1" -p x --ref wide.png
args=; for i in 1 2 3 4 5 6 7 8 9 10; do args="$args --ref photo.jpg"; done
refuses "10 pictures" 2 "9" -p x $args
args=; for i in 1 2 3 4; do args="$args --ref clip24.mp4"; done
refuses "4 clips" 2 "3" -p x $args
refuses "4 sounds" 2 "3" -p x --ref photo.jpg --ref voice.wav --ref voice.wav --ref voice.wav --ref voice.wav
# 33 bytes of PNG that ask for 60000 x 60000 pixels
printf '\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xea\x60\0\0\xea\x60\x08\x02\0\0\0\x6b\x7c\x1e\xb1' >bomb.png
refuses "decompression bomb" 4 "bomb.png" -p x --ref bomb.png

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
