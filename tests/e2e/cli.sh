#!/bin/bash
# The program from the outside: what a person types, what comes out, what goes wrong and how it says so.
#   tests/e2e/cli.sh PATH-TO-h3av SOURCE-DIR
set -u
[ -x "$1" ] || { echo "$1: no such program"; exit 1; }
h3av=$(realpath "$1")
source_dir=$(realpath "$2")
data=$source_dir/tests/data
work=$(mktemp -d "${TMPDIR:-/tmp}/h3av-e2e.XXXXXX") || exit 1
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); printf 'FAIL %s\n' "$1"; [ -f err ] && sed 's/^/     /' err | head -5; }
check() { if [ "$2" = "$3" ]; then ok; else bad "$1: got '$2', expected '$3'"; fi; }

small="-s 64x32 -f 22 --steps 3 -q"

# succeeds NAME ARGS...: exit status 0
succeeds() { local name=$1; shift; if "$h3av" "$@" >out 2>err; then ok; else bad "$name: exit status $?"; fi; }

# refuses NAME STATUS TEXT ARGS...: that status, one line on stderr that holds TEXT, nothing left behind
refuses() {
    local name=$1 status=$2 text=$3 got
    shift 3
    rm -f refused.mp4
    "$h3av" "$@" >out 2>err
    got=$?
    if [ $got != "$status" ]; then bad "$name: exit status $got, expected $status"; return; fi
    if [ "$(grep -c '^h3av: ' err)" != 1 ]; then bad "$name: expected one line of error"; return; fi
    if ! grep -qF -- "$text" err; then bad "$name: the message lacks '$text'"; return; fi
    if [ -e refused.mp4 ] || ls .*part* >/dev/null 2>&1; then bad "$name: left a file behind"; rm -f .*part*; return; fi
    ok
}

count_frames() { ffprobe -v error -count_frames -select_streams v:0 -show_entries stream=nb_read_frames -of csv=p=0 "$1"; }
count_samples() { ffmpeg -v error -i "$1" -map a:0 -f f32le -ac 2 - | wc -c | awk '{print $1 / 8}'; }
start_of() { ffprobe -v error -select_streams "$2" -show_entries stream=start_time -of csv=p=0 "$1"; }

# ---- the main job
printf '{"sigmas": [1, 0.6, 0], "shift": 5}' >preset.json
succeeds "generate" generate -p "a red circle" $small -o a.mp4
succeeds "again" generate -p "a red circle" $small -o b.mp4
check "same seed, same file" "$(cmp a.mp4 b.mp4 && echo same)" same
succeeds "one thread" generate -p "a red circle" $small -j 1 -o b.mp4
check "same file for any number of threads" "$(cmp a.mp4 b.mp4 && echo same)" same
succeeds "other seed" generate -p "a red circle" $small --seed 43 -o b.mp4
check "another seed is another file" "$(cmp -s a.mp4 b.mp4 || echo differs)" differs
succeeds "other noise order" generate -p "a red circle" $small --noise-order omni -o b.mp4
check "another noise order is another file" "$(cmp -s a.mp4 b.mp4 || echo differs)" differs
if command -v ffprobe >/dev/null; then
    check "frames in the file" "$(count_frames a.mp4)" 22
    check "samples in the file" "$(count_samples a.mp4)" 29600
    check "picture starts at 0" "$(start_of a.mp4 v:0)" 0.000000
    check "sound starts at 0" "$(start_of a.mp4 a:0)" 0.000000
    check "prompt in the file" "$(ffprobe -v error -show_entries format_tags=prompt -of csv=p=0 a.mp4)" "a red circle"
    succeeds "preset" generate -p x -s 64x32 -f 22 -q --preset preset.json -o b.mp4
    check "shift of a preset in the file" "$(ffprobe -v error -show_entries format_tags=shift -of csv=p=0 b.mp4)" 5
    succeeds "without metadata" generate -p "secret words" $small --no-metadata -o n.mp4
    check "no prompt in the file" "$(grep -c 'secret words' n.mp4)" 0
    succeeds "length by seconds" generate -p x -s 32x32 -t 1 --steps 2 -q -o s.mp4
    check "1 s is 39 frames" "$(count_frames s.mp4)" 39
fi
check "no latents left" "$(ls ./*.latents 2>/dev/null | wc -l)" 0

succeeds "two processes with names of their own" generate -p x $small -m "$data/tiny-h3/original" --ranks 2 \
    --latents r.latents --checkpoint r.checkpoint --checkpoint-every 1 -o r.mp4

# ---- bf16 stream and the other layout run too
succeeds "bf16" generate -p x $small --dtype bf16 -o c.mp4
succeeds "released folder" generate -p x $small -m "$data/tiny-h3/original" -o c.mp4
"$(dirname "$h3av")/test_model" "$data/tiny-h3/diffusers" diffusers || bad "second layout"
succeeds "diffusers folder" generate -p x $small -m diffusers -o d.mp4
check "both layouts give the same file" "$(cmp c.mp4 d.mp4 && echo same)" same

# ---- frames, sound, latents
succeeds "frames and wav" generate -p "a red circle" $small --frames-dir fr --wav s.wav -o e.mp4
check "22 pictures" "$(ls fr | wc -l)" 22
check "wav bytes" "$(stat -c %s s.wav)" $((44 + 29600 * 4))
succeeds "mux" mux fr --wav s.wav -o m.mp4
succeeds "only frames" generate -p x $small --frames-dir fr2 --frames-format ppm
check "22 ppm" "$(ls fr2/*.ppm | wc -l)" 22
succeeds "keep latents" generate -p "a red circle" $small --save-latents --latents l.safetensors -o f.mp4
succeeds "decode" decode l.safetensors -q -o g.mp4
for p in 1 85 170; do MALLOC_PERTURB_=$p "$h3av" decode l.safetensors -q -o "p$p.mp4" >out 2>err; done
check "what lies in fresh memory decides nothing" "$(cmp p1.mp4 p85.mp4 && cmp p1.mp4 p170.mp4 && echo same)" same
check "decoding saved latents gives the same file" "$(cmp f.mp4 g.mp4 && echo same)" same

# ---- many requests by one engine
cat >jobs.jsonl <<'END'
{"prompt": "a red circle", "seed": 42, "output": "b1.mp4"}

{"seed": 43, "steps": "3", "shift": 12.0}
{"sede": 3}
not json
{"output": "./b1.mp4"}
{"first": "nowhere.png"}
["a list"]
{"model": "elsewhere"}
{"wav": "b.wav", "seconds": 1, "sigmas": [1, 0.6, 0]}
{"frames-format": "ppm"}
{"seed": 7, "seed": 8}
{"seed": 1.5}
{"prompt": "with \"quotes\" and \u00e9", "save_latents": true, "frames_dir": "b fr"}
END
succeeds "the same alone" generate -p "a red circle" $small --seed 43 -o b43.mp4
"$h3av" generate "a red circle" -s 64x32 -f 22 --steps 3 --batch jobs.jsonl -o bb.mp4 --json >out 2>err
check "batch: the status is the first failure's" $? 2
check "batch: a line is what it is alone" "$(cmp a.mp4 b1.mp4 && echo same)" same
check "batch: the command line's settings hold, and its name gets the number" "$(cmp b43.mp4 bb-3.mp4 && echo same)" same
check "batch: sound alone, of its own length" "$(stat -c %s b.wav)" $((44 + 52000 * 4))
check "batch: frames alone" "$(ls "b fr" | wc -l)" 22
check "batch: each failure names its line" "$(grep -o 'jobs.jsonl, line [0-9]*' err | grep -o '[0-9]*$' | tr '\n' ' ')" "4 5 6 8 9 11 12 13 7 "
check "batch: events" "$(python3 -c '
import json
e = [json.loads(l) for l in open("out")]
print(sorted(x["line"] for x in e if x["event"] == "error"), [(x["line"], x["output"]) for x in e if x["event"] == "result"],
      {x.get("line") for x in e if x["event"] == "step"} == {1, 3, 10, 14}, *(e[-1][k] for k in ("event", "requests", "done", "failed")))')" \
    "[4, 5, 6, 7, 8, 9, 11, 12, 13] [(1, 'b1.mp4'), (3, 'bb-3.mp4'), (10, 'b.wav'), (14, 'b fr')] True batch 13 4 9"
printf '{"seed": 5, "output": "p1.mp4"}\n{"x": 1}\n{"seed": 6, "output": "p2.mp4"}' | "$h3av" generate x -s 64x32 -f 22 --steps 3 --batch - >out 2>err
check "batch from a pipe: status" $? 2
check "batch from a pipe: files" "$(ls p1.mp4 p2.mp4 | wc -l)" 2
check "batch: the end is told" "$(tail -1 err | sed 's/ in [0-9.]* s//')" "standard input: 2 of 3 requests done, 1 failed, the first in line 2"
printf '\xef\xbb\xbf{"prompt": "a red circle", "output": "m1.mp4", "latents": "m", "save-latents": true}\n{"latents": "m", "save-latents": true}\n' >mark.jsonl
"$h3av" generate $small --batch mark.jsonl >out 2>err
check "batch with a byte order mark, and latents kept twice under one name" "$? $(cmp a.mp4 m1.mp4 && echo same)" "2 same"
check "the later latents are refused" "$(grep -c 'line 2: m is the output of line 1' err)" 1
printf '\n\n' >blank.jsonl
refuses "batch without a request" 2 "holds no request" generate x --batch blank.jsonl
refuses "batch that is not there" 5 "nowhere.jsonl" generate x --batch nowhere.jsonl
refuses "batch that is a folder" 2 "is a folder" generate x --batch .
refuses "one WAV for all lines" 2 "--wav is one clip's" generate x --batch jobs.jsonl --wav refused.wav
refuses "batch over ranks" 2 "one process" generate x --batch jobs.jsonl --ranks 2
refuses "numbers for standard output" 2 "standard output is not supported" generate x --batch jobs.jsonl -o -
refuses "numbers for a folder" 2 "is a folder" generate x --batch jobs.jsonl -o .

# ---- several videos of one request
"$h3av" generate "a red circle" -s 64x32 -f 22 --steps 3 --seed 42 --count 2 -o "n m.mp4" --wav n.wav --frames-dir nf --frames-format ppm --json >out 2>err
check "count: status" $? 0
check "count: the first has the seed, the next the next" "$(cmp a.mp4 "n m-1.mp4" && cmp b43.mp4 "n m-2.mp4" && echo same)" same
check "count: every name has its number" "$(ls | grep '^n[f.-].*v$\|^nf' | tr '\n' ' ')" "n-1.wav n-2.wav nf-1 nf-2 "
check "count: events" "$(python3 -c '
import json
e = [json.loads(l) for l in open("out")]
print([(x["video"], x["seed"], x["output"]) for x in e if x["event"] == "result"], {x.get("videos") for x in e[:-1] if x["event"] != "result"},
      [x["progress_of_all"] for x in e if x["event"] == "step"][-1] > 0.99, *(e[-1][k] for k in ("event", "requests", "done", "failed")))')" \
    "[(1, 42, 'n m-1.mp4'), (2, 43, 'n m-2.mp4')] {2} True batch 2 2 0"
mkdir n-2.mp4
"$h3av" generate x $small --count 4 -o n.mp4 >out 2>err
check "count: the first failure is the end" "$? $(cat err) $(ls -d n-[1-4].mp4 | tr '\n' ' ')" "2 h3av: video 2 of 4: n-2.mp4: is a folder, give the name of a file n-1.mp4 n-2.mp4 "
rmdir n-2.mp4
refuses "count to standard output" 2 "standard output is not supported" generate x --count 2 -o -
refuses "count into a folder" 2 "is a folder" generate x --count 2 -o nf-1
refuses "count of nothing" 2 "whole number from 1" generate x --count 0
refuses "count of lines" 2 "each line is one video" generate x --count 2 --batch jobs.jsonl
refuses "count over ranks" 2 "one process" generate x --count 2 --ranks 2
refuses "count of one noise" 2 "--noise is one video's" generate x --count 2 --noise n
refuses "count beyond the seeds" 2 "2^64" generate x --count 2 --seed 18446744073709551615
refuses "count in a line" 2 "a line is one video" generate x --batch <(printf '{"count": 2}\n') -q
refuses "count of other programs" 2 "--batch-count: it is --count N here" generate x --batch-count 2
printf '{"steps": 60}\n{"seed": 2}\n' >long.jsonl
"$h3av" generate x -s 512x512 -f 124 --batch long.jsonl -o stop.mp4 --json >out 2>err &
pid=$!
until grep -q '"event":"step","line":1' out || ! kill -0 $pid 2>/dev/null; do sleep 0.1; done
kill -INT $pid
wait $pid
check "Ctrl-C in a batch: status" $? 130
check "Ctrl-C in a batch: the rest is not begun" "$(grep -c '"line":2' out)" 0
check "Ctrl-C in a batch: nothing left" "$(ls -A | grep -c 'stop-')" 0

# ---- checkpoints
succeeds "checkpoint" generate -p "a red circle" -s 64x32 -f 22 --steps 5 -q --checkpoint-every 1 --checkpoint k --save-latents -o h.mp4
check "checkpoint goes when the run is over" "$([ -e k ] || echo gone)" gone

# ---- plan, inspect, tokenize, dump, bench
succeeds "plan" plan -p x --seconds 10 --json
check "plan: 10 s are 243 frames" "$(python3 -c 'import json; print(json.load(open("out"))["frames"])')" 243
succeeds "inspect" inspect "$data/tiny-h3/original" --json
check "inspect: nothing is missing" "$(python3 -c 'import json; print(json.load(open("out"))["missing"])')" "[]"
check "inspect is JSON" "$(python3 -c 'import json; print(json.load(open("out"))["role"])')" model
succeeds "inspect builtin:" inspect builtin: --json
check "inspect builtin: finds its parts" "$(python3 -c '
import json
o = json.load(open("out")); print(*[p for p in ("dit", "text_encoder", "video_vae", "audio_vae", "tokenizer") if p in o["parts"]])')" \
    "dit text_encoder video_vae audio_vae tokenizer"
succeeds "tokenize" tokenize "hello world"
check "tokenize is JSON" "$(python3 -c 'import json; d = json.load(open("out")); print(d["count"] == len(d["ids"]))')" True
succeeds "tokenize with a folder that lacks the rest" tokenize --tokenizer "$data/tiny-h3/original/FL2VA/tokenizer" x
mkdir -p lone && cp -r "$data/tiny-h3/original/FL2VA/tokenizer" lone
succeeds "tokenizer in a folder that lacks the rest" tokenize --tokenizer lone x
refuses "folder without a tokenizer" 5 "no tokenizer" tokenize --tokenizer fr x
refuses "inspect a film" 4 "this is a film" inspect a.mp4
refuses "inspect a text" 4 "this is a text" inspect "$source_dir/README.md"
succeeds "inspect latents" inspect l.safetensors
check "inspect knows latents" "$(grep -c 'h3av decode' out)" 1
succeeds "plan without a model" plan -p x
succeeds "a prompt of blanks, which are tokens" plan -p $' \n\t'
check "plan says for which model" "$(grep -c 'released model' err)" 1
succeeds "plan for ranks" plan -p x -m builtin --ranks 3 --offload ranks -s 256x256 -f 22 --json
check "plan for ranks: each of three" "$(python3 -c '
import json
m = json.load(open("out"))["memory"]
print(m["ranks"], [p["weight_budget"] == p["weights_spread"] < p["mapped"] for p in m["phases"] if p["phase"] == "sample"], m["fits"])')" "3 [True] True"
refuses "plan for ranks without a model" 2 "takes a model" plan -p x --ranks 2
for option in "--ram 8G" "--vram 24G --device cuda" "--device none" "--offload stream" "--dtype bf16" "-j 2" "--cpu-math f32"; do
    refuses "plan $option without a model" 2 "without a model: -m DIR" plan -p x $option
done
succeeds "plan within memory" plan -p x -m builtin --ram 8G -j 1 -q
refuses "device memory without a device" 2 "--vram has no effect without --device cuda" generate -p x --vram 4G -o refused.mp4
refuses "plan for ranks that cannot share the heads" 7 "do not divide" plan -p x -m builtin --ranks 2 -q
refuses "plan for weights spread over one" 2 "one process only" plan -p x -m builtin --offload ranks -q
succeeds "dump one" dump "$data/tiny-h3/original/FL2VA/transformer" --tensor rope.inv_freq -o t.safetensors
succeeds "dump all" dump "$data/tiny-h3/original/FL2VA/transformer" --all -o all.safetensors
succeeds "convert" convert "$data/tiny-h3/original/FL2VA/transformer" --to bf16 -o cv.safetensors
succeeds "converted runs" generate -p x $small -m "$data/tiny-h3/original" --dit cv.safetensors --qkv stacked -o cv.mp4
check "converted gives the same file" "$(cmp c.mp4 cv.mp4 && echo same)" same
for layout in own original diffusers; do
    for part in transformer text_encoder video_vae audio_vae; do
        succeeds "$part in layout $layout" convert "$data/tiny-h3/original/FL2VA/$part" --layout $layout -o "cv_$part.safetensors"
    done
    succeeds "layout $layout runs" generate -p x $small -m "$data/tiny-h3/original" --dit cv_transformer.safetensors \
        --text-encoder cv_text_encoder.safetensors --vae cv_video_vae.safetensors --audio-vae cv_audio_vae.safetensors -o cv.mp4
    check "layout $layout gives the same file" "$(cmp c.mp4 cv.mp4 && echo same)" same
done
mkfifo pipe
refuses "a pipe as output" 2 "device or pipe" generate -p x $small -o pipe
printf 'P6\n64 64\n255\n' >key.mp4 && head -c 12288 /dev/zero >>key.mp4
cp "$source_dir/models/h3-nano-lime.safetensors" lime.safetensors
for o in "--wav lime.safetensors" "--latents lime.safetensors --save-latents" "--checkpoint ./lime.safetensors --checkpoint-every 1"; do
    refuses "an adapter as output: $o" 2 "is read by this run" generate -p x -s 64x64 --lift-limits -f 22 --steps 3 -q --lora lime.safetensors $o -o refused.mp4
done
check "the adapter is as it was" "$(cmp lime.safetensors "$source_dir/models/h3-nano-lime.safetensors" && echo same)" same
cp cv.safetensors cv2.safetensors
refuses "convert of a whole model" 5 "name its folder or file" convert "$source_dir/models/h3-nano" -o refused.mp4
succeeds "the built-in model, inspected by its short name" inspect builtin
refuses "convert onto its own source" 2 "is read by this run" convert cv2.safetensors --to q8_0 -o ./cv2.safetensors
refuses "dump onto its own source" 2 "is read by this run" dump cv2.safetensors --all -o cv2.safetensors
check "the source is as it was" "$(cmp cv.safetensors cv2.safetensors && echo same)" same
refuses "an input as output" 2 "is read by this run" generate -p x $small --first key.mp4 -o key.mp4
refuses "latents to keep where nothing can be" 5 "nodir" generate -p x $small --save-latents --latents nodir/l -o refused.mp4
refuses "latents in a folder" 2 "is a folder" generate -p x $small --latents . -o refused.mp4
refuses "another container" 2 "only MP4 is written" generate -p x $small -o refused.avi
mkdir parts && mv cv_text_encoder.safetensors cv_video_vae.safetensors cv_audio_vae.safetensors parts && cp -r "$data/tiny-h3/original/FL2VA/tokenizer" parts
for partition in FL2VA Ref2VA; do
    succeeds "convert $partition" convert "$data/tiny-h3/original/$partition/transformer" --to f16 -o "parts/$(echo $partition | md5sum | cut -c1-8).safetensors"
done
succeeds "converted files say their partition" inspect parts --json
check "both transformers found" "$(python3 -c 'import json; o = json.load(open("out")); print(o["parts"]["dit"]["partition"], o["parts"]["dit_ref"]["partition"], o["missing"])')" "fl2va ref2va []"
succeeds "a folder of converted files runs" generate -p x $small -m parts -o cv.mp4
refuses "a GGUF named safetensors" 2 "GGUF" convert "$data/tiny-h3/original/FL2VA/transformer" --to q8_0 -o refused.safetensors
refuses "safetensors named GGUF" 2 "safetensors" convert "$data/tiny-h3/original/FL2VA/transformer" --to bf16 -o refused.gguf
refuses "fewer layers of a transformer" 2 "encoder" convert "$data/tiny-h3/original/FL2VA/transformer" --layers 1 -o refused
mkdir flat && cp "$data"/tiny-h3/original/FL2VA/transformer/* "$data"/tiny-h3/original/FL2VA/tokenizer/* flat && chmod -R u+w flat
for part in text_encoder video_vae audio_vae; do
    succeeds "flat $part" convert "$data/tiny-h3/original/FL2VA/$part" -o "flat/a_$part.safetensors"
done
succeeds "flat transformer, merged" convert flat/model.safetensors.index.json -o flat/a_transformer.safetensors
succeeds "single files beside shards" generate -p x $small -m flat -o flat.mp4
check "single files beside shards: same file" "$(cmp c.mp4 flat.mp4 && echo same)" same
succeeds "inspect single files beside shards" inspect flat --json
check "every part is named, shards before a merged copy" "$(python3 -c '
import json
o = json.load(open("out")); print(o["role"], o["parts"]["dit"]["path"], len(o["parts"]), [m["part"] for m in o["missing"]])')" \
    "model flat 5 ['dit_ref']"
refuses "layout unknown" 2 "own|original|diffusers" convert "$data/tiny-h3/original/FL2VA/transformer" --layout mine -o refused.mp4
refuses "Q8_0 in another layout" 2 "diffusers" convert "$data/tiny-h3/original/FL2VA/transformer" --to q8_0 --layout diffusers -o refused.mp4
succeeds "bench" bench --tiny --repeat 1
check "bench is JSON" "$(python3 -c 'import json; print(len(json.load(open("out"))["results"]) > 3)')" True
succeeds "events" generate -p x -s 64x32 -f 22 --steps 3 --json -o j.mp4
check "events are JSON lines" "$(python3 -c '
import json
e = [json.loads(l) for l in open("out")]
print(e[-1]["event"], e[-1]["data"]["output"], sum(x["event"] == "step" and x["phase"] == "sample" for x in e))')" "done j.mp4 2"
succeeds "counters" generate -p x -s 64x32 -f 22 --steps 3 --verbose -o j.mp4
check "nothing fell back" "$(python3 -c '
import json
t = open("err").read(); o = json.loads(t[t.rindex("\n{") + 1:])
print(len(o) > 8, sum(v["reference_calls"] for k, v in o.items() if k != "loading"))')" "True 0"
check "loading is told" "$(python3 -c '
import json
t = open("err").read(); l = json.loads(t[t.rindex("\n{") + 1:])["loading"]
print(l["files"] > 0, 0 < l["matrices"] == l["direct"] + l["converted"], l["host_peak_bytes"] > 1e6)')" "True True True"
succeeds "help" help
for c in generate plan decode mux inspect tokenize dump bench convert; do succeeds "help of $c" $c --help; done

# ---- random weights in published forms
succeeds "synth list" synth list
check "sizes of the published forms" "$(python3 - "$data/formats/manifests" <<'PY'
import os, re, sys
want = {}
for f in os.listdir(sys.argv[1]):
    total = 0
    for line in open(os.path.join(sys.argv[1], f)):
        if line[0] == "#":
            continue
        name, _, _, size = line.split("\t")[:4]
        m = re.search(r"\{(.*?)\}", name)
        parts = [p.split("-") for p in m.group(1).split(",")] if m else [["0"]]
        total += int(size) * sum(int(p[-1]) - int(p[0]) + 1 for p in parts)
    want[f[:-4]] = f"{total * 1e-9:.3f}"
got = {l.split()[0]: l.split()[1] for l in open("out")}
print(got == want and len(got) > 30)
PY
)" True
succeeds "synth" synth lora_native_inferred --layers 1 --seed 7 -o random.safetensors
succeeds "the same seed" synth lora_native_inferred --layers 1 --seed 7 -o again.safetensors
succeeds "another seed" synth lora_native_inferred --layers 1 --seed 8 -o other.safetensors
check "seeds" "$(cmp -s random.safetensors again.safetensors && ! cmp -s random.safetensors other.safetensors && echo yes)" yes
succeeds "a form's file is one of its kind" inspect random.safetensors
rm -f random.safetensors again.safetensors other.safetensors
refuses "a form unknown" 2 "not known" synth dit_nonsense -o refused.safetensors
refuses "no file" 2 "needs --output" synth dit_comfy_bf16
if [ "$(df -P -k . | awk 'NR == 2 { print $4 }')" -lt 60000000 ]; then
    refuses "no room on the disk" 3 "GB are needed" synth te_original_bf16 -o refused.safetensors
fi
check "nothing is left of what was refused" "$(ls -A | grep -c refused)" 0

# ---- requests that cannot be
refuses "empty prompt" 2 "prompt is empty" generate -p "" -o refused.mp4
refuses "no prompt" 2 "prompt is empty" generate -o refused.mp4
refuses "latents kept and not saved" 2 "no-save-latents" generate -p x $small --no-save-latents --save-latents -o refused.mp4
refuses "latents named and not saved" 2 "no-save-latents" generate -p x $small --no-save-latents --latents l -o refused.mp4
refuses "checkpoint without a step" 2 "--checkpoint-every" generate -p x $small --checkpoint c -o refused.mp4
refuses "frames and sound of one name" 2 "two names" generate -p x $small --wav refused --frames-dir refused
refuses "invalid UTF-8" 2 "UTF-8 at byte 2" generate -p $'ab\xff' -o refused.mp4
refuses "unknown option" 2 "--frobnicate" generate -p x --frobnicate -o refused.mp4
refuses "unknown command" 2 "frob" frob
refuses "option of another command" 2 "--seed" inspect --seed 1 x
refuses "missing value" 2 "--seed" generate -p x --seed
refuses "seed no number" 2 "--seed 12x" generate -p x --seed 12x -o refused.mp4
refuses "size not 32" 2 "100 x 100" generate -p x -s 100x100 -o refused.mp4
refuses "size one number" 2 "1344" generate -p x -s 1344 -o refused.mp4
refuses "huge size" 2 "x" generate -p x -s 1048576x32 -o refused.mp4
refuses "extreme ratio" 2 "4:1" generate -p x --aspect 9:1 -o refused.mp4
refuses "bad aspect" 2 "aspect" generate -p x --aspect wide -o refused.mp4
refuses "seconds nan" 2 "--seconds nan" generate -p x --seconds nan -o refused.mp4
refuses "seconds negative" 2 "--seconds" generate -p x --seconds -1 -o refused.mp4
refuses "seconds huge" 2 "1e+09" generate -p x --seconds 1e9 -o refused.mp4
refuses "frames huge" 2 "frames" generate -p x -f 2147483647 -o refused.mp4
refuses "steps 1" 2 "1" generate -p x --steps 1 -o refused.mp4
refuses "sigmas rising" 2 "sigma" generate -p x --sigmas 0.5,0.7,0 -o refused.mp4
refuses "preset unknown" 2 "turbo4" generate -p x --preset turbo5 -o refused.mp4
refuses "task and inputs" 2 "fl2va" generate -p x --task fl2va -o refused.mp4
refuses "keyframe and reference" 2 "cannot be combined" generate -p x --first a.png --ref b.png -o refused.mp4
refuses "prompt twice" 2 "twice" generate -p x y -o refused.mp4
refuses "length twice" 2 "twice" generate -p x -f 22 -t 3 -o refused.mp4
refuses "device unknown" 2 "tpu" generate -p x -d tpu -o refused.mp4
refuses "codec unknown" 2 "libfoo" generate -p x --codec libfoo -o refused.mp4

refuses "a prompt without quotes" 2 "needs quotes" generate a red circle -o refused.mp4
refuses "an option of other programs" 2 "--num-frames: it is --frames here" generate x --num-frames 22 -o refused.mp4
refuses "a letter that lacks" 2 "--sed; is it --seed?" generate x --sed 4 -o refused.mp4
refuses "a dash that lacks" 2 "-steps; is it --steps?" generate x -steps 4 -o refused.mp4
refuses "letters that are wrong" 2 "genrate; is it generate?" genrate x
refuses "nothing near" 2 "help lists them" generate x --frobnicate
refuses "a prompt without a command" 2 'h3av generate "a red fox"' "a red fox"
refuses "an option without a command" 2 "the command comes first" -p x
refuses "products of a device that is not used" 2 "--cuda-math has no effect without --device cuda" generate x $small --cuda-math fp8 -o refused.mp4
refuses "a count that is too high" 2 "from 1 to 2147483647" generate x --steps 2147483648 -o refused.mp4
refuses "a preset that x264 has not" 2 "it has ultrafast" generate x $small --preset-x264 turbo -o refused.mp4
refuses "something the model has not" 2 "without guidance" generate x --cfg-scale 7 -o refused.mp4
refuses "a frame rate" 2 "24 frames a second" generate x --fps 30 -o refused.mp4
refuses "a form of frames nobody writes" 2 "without --frames-dir" generate x $small --frames-format ppm -o refused.mp4
refuses "a rate of references that are not there" 2 "without --ref" generate x $small --ref-fps 12 -o refused.mp4
refuses "strictness with nothing to be strict about" 2 "without --lora" generate x $small --strict -o refused.mp4
refuses "sound that is no WAV" 2 "s.wav" generate x $small --wav s.mp3
refuses "an option of the server" 2 "does not apply" version --port 1
"$h3av" serve --port 99999 >out 2>err
check "serve names the option that is out of range" "$? $(grep -c -- '--port 99999: expected 0 to 65535' err)" "2 1"
succeeds "labels without references" plan -p "<Picture 1> sings <Audio 2>; <Video 1x>, <Picture one>" --json
check "labels without references are told" "$(python3 -c '
import json
print([w.split(",")[0] for w in json.load(open("out"))["warnings"] if "names" in w])')" "['the prompt names <Picture 1>', 'the prompt names <Audio 2>']"
told() { "$h3av" plan -p "$1" --json 2>err | python3 -c '
import json, sys
print([w[:28] for w in json.load(sys.stdin)["warnings"] if "tag" in w or "pairs" in w])'; }
check "tags that the model has" "$(told '<d>[English] hi</d><|cutoff|> <|lyrics_start|>la<|lyrics_end|>, a <b, <3, a < b > c')" "[]"
check "a tag that it has not" "$(told 'the man of <Image 1>')" "['<Image 1> in the prompt is n']"
check "a label in small letters" "$(told '<picture 1> and <foo>')" "['<picture 1> in the prompt is']"
check "a label of another script" "$(told '<图 1>')" "['<图 1> in the prompt is no ta']"
check "a label with a zero" "$(told '<Picture 01>')" "['<Picture 01> in the prompt i']"
check "half of a pair" "$(told '<d>[English] hi')" "['the prompt has 1 <d> and 0 <']"
check "numbers of the plan lie on one line" "$(grep -c '"sigmas": \[1.0, .*, 0.0\]' out)" 1
succeeds "the built-in model by its short name" plan -m builtin -p x -q
check "its size" "$(python3 -c 'import json; print(json.load(open("out"))["width"])')" 256
printf 'two words\n' | "$h3av" tokenize --prompt-file - >piped 2>err
"$h3av" tokenize "two words" >out 2>>err
check "tokens of standard input" "$(cmp piped out && echo same)" same
for c in "version" "synth list" "dump $data/tiny-h3/original/FL2VA/transformer --tensor rope.inv_freq -o one.safetensors" \
    "synth lora_native_inferred --layers 1 -o two.safetensors" "mux fr --wav s.wav -o three.mp4"; do
    "$h3av" $c --json >out 2>err
    check "$c: one JSON document" "$(python3 -c 'import json; print(bool(json.load(open("out"))))')" True
done
: >target.mp4 && ln -s target.mp4 link.mp4
succeeds "a link as output" generate -p "a red circle" $small -o link.mp4
check "the file that a link leads to is written" "$([ -L link.mp4 ] && cmp a.mp4 target.mp4 && echo same)" same

# ---- files that are not what they should be
refuses "no such model" 5 "nowhere" generate -p x -m nowhere -o refused.mp4
mkdir empty
refuses "empty model folder" 5 "empty" generate -p x -m empty -o refused.mp4
refuses "no such picture" 5 "cat.jpg" generate -p x --first cat.jpg -o refused.mp4
printf 'just text\n' >text.png
refuses "text as picture" 4 "text.png" generate -p x --first text.png -o refused.mp4
: >empty.mp4
refuses "empty clip" 4 "empty.mp4" generate -p x --ref empty.mp4 -o refused.mp4
mkdir bad && cp -r "$data/tiny-h3/original/." bad/ && chmod -R u+w bad
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n' >bad/FL2VA/transformer/model-00002-of-00003.safetensors
refuses "LFS pointer" 4 "model-00002-of-00003" generate -p x -m bad -o refused.mp4
printf '<!DOCTYPE html><html></html>' >bad/FL2VA/transformer/model-00002-of-00003.safetensors
refuses "web page" 4 "model-00002-of-00003" generate -p x -m bad -o refused.mp4
head -c 200000 "$data/tiny-h3/original/FL2VA/transformer/model-00002-of-00003.safetensors" >bad/FL2VA/transformer/model-00002-of-00003.safetensors
refuses "truncated shard" 4 "model-00002-of-00003" generate -p x -m bad -o refused.mp4
rm bad/FL2VA/transformer/model-00002-of-00003.safetensors
refuses "missing shard" 5 "model-00002-of-00003" generate -p x -m bad -o refused.mp4
cp -r parts loose && head -c 5000 parts/cv_text_encoder.safetensors >loose/cv_text_encoder.safetensors
refuses "a part that is cut off" 5 "no text encoder found; loose/cv_text_encoder.safetensors is passed over: " generate -p x -m loose -o refused.mp4
mkdir loose/shut && mv loose/cv_text_encoder.safetensors loose/shut && chmod 0 loose/shut
cp "$h3av" other && printf '#!/bin/sh\nexec "%s" "$@"\n' "$work/other" >as_other
if [ "$(id -u)" = 0 ]; then # who may enter everything
    printf '#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups "%s" "$@"\n' "$work/other" >as_other
    chmod 755 "$work"
fi
chmod 755 as_other
if ./as_other version >out 2>err; then
    for c in generate plan; do
        h3av=./as_other refuses "$c: a folder that cannot be entered" 5 "loose/shut cannot be searched: Permission denied; give" $c -p x -m loose
    done
    check "inspect: a folder that cannot be entered" "$(./as_other inspect loose | grep -c 'loose/shut cannot be searched: Permission denied')" 1
fi
chmod 755 loose/shut && rm -r other as_other loose
refuses "text encoder as DiT" 4 "text_encoder" generate -p x --dit "$data/tiny-h3/original/FL2VA/text_encoder" -o refused.mp4
for step in x 0 1x "" 99999999999999999999; do
    python3 - "$step" <<'END'
import json, struct, sys
h = {"__metadata__": {"h3av": json.dumps({"kind": "checkpoint", "step": sys.argv[1]})},
     "video_rows": {"dtype": "F32", "shape": [1, 96], "data_offsets": [0, 384]},
     "audio_rows": {"dtype": "F32", "shape": [1, 32], "data_offsets": [384, 512]}}
j = json.dumps(h).encode()
open("odd.checkpoint", "wb").write(struct.pack("<Q", len(j)) + j + bytes(512))
END
    case $step in 9*) what="another request" status=2 ;; *) what="does not say its step" status=4 ;; esac
    refuses "checkpoint at step '$step'" $status "$what" generate -p x $small --resume odd.checkpoint -o refused.mp4
done
refuses "latents of no kind" 4 "t.safetensors" decode t.safetensors -o refused.mp4

# ---- places that cannot be written
mkdir ro && chmod 555 ro
[ "$(id -u)" = 0 ] || refuses "read-only folder" 3 "ro" generate -p x $small -o ro/refused.mp4
refuses "folder as output" 2 "folder" generate -p x $small -o ro
refuses "no such folder" 5 "nodir" generate -p x $small -o nodir/refused.mp4
refuses "no folder for the folder of frames" 5 "above it" generate -p x $small --frames-dir nodir/refused --latents early.latents
check "frames: said before the work" "$([ -e early.latents ] || echo none)" none
refuses "folder of frames without a name" 2 "--frames-dir needs a value" generate -p x $small --frames-dir ""
refuses "model without a name" 2 "--model needs a value" generate -p x $small --model= -o refused.mp4
refuses "data folder without a name" 2 "--data needs a value" serve --port 0 --data ""
refuses "standard output" 2 "standard output" generate -p x $small -o -
if [ "$(id -u)" = 0 ] && mkdir full && mount -t tmpfs -o size=24k tmpfs full 2>/dev/null; then
    refuses "full disk: said before the work" 3 "full/" generate -p x -s 256x256 -f 56 --steps 2 -q -o full/refused.mp4
    check "full disk: nothing half-written" "$(ls -A full | wc -l)" 0
    umount full
fi
# a limit that the plan does not see strikes in the middle: latents fit, the MP4 does not
(ulimit -f 32; exec "$h3av" generate -p x $small -m "$data/tiny-h3/original" --latents l.kept -o refused.mp4) >out 2>err
check "cut off: status" $? 3
check "cut off: nothing half-written" "$(ls -A | grep -c 'refused\|part-')" 0
check "cut off: latents kept" "$([ -e l.kept ] && grep -c 'h3av decode' err)" 1

# ---- Ctrl-C
"$h3av" generate -p x -s 512x512 -f 124 --steps 200 --json -o stopped.mp4 >out 2>err & # many minutes
pid=$!
for _ in $(seq 3000); do grep -q '"phase":"sample"' out && break; kill -0 $pid 2>/dev/null || break; sleep 0.1; done
kill -INT $pid
wait $pid
check "Ctrl-C: status" $? 130
check "Ctrl-C: nothing left" "$(ls -A | grep -c stopped)" 0

# ---- odd names
name=$(printf '\303\251%.0s' $(seq 125))a.mp4 # 255 bytes, all that a name may have
succeeds "the longest name" generate -p "a red circle" $small -o "$name"
check "the longest name: file" "$(cmp a.mp4 "$name" && echo same)" same
succeeds "a name that is no UTF-8" generate -p "a red circle" -s 64x32 -f 22 --steps 3 --count 1 --json -o $'q\xff\xc3.mp4'
check "a name that is no UTF-8 in JSON" "$(python3 -c 'import json; print([e["output"] for e in map(json.loads, open("out", "rb")) if e["event"] == "result"] == ["q\ufffd\ufffd-1.mp4"])')" True
"$h3av" inspect builtin: -v 2>err | head -1 >out
check "a reader that has seen enough is no news" "$(cat err)" ""
succeeds "odd name" generate -p x $small -o "./a b;'c\".mp4"
check "odd name: file" "$([ -s "./a b;'c\".mp4" ] && echo there)" there
succeeds "leading dash" generate -p x $small -o ./-x.mp4
succeeds "prompt with a dash" generate $small -o y.mp4 -- "-x is my prompt"

printf '%d passed, %d failed\n' $passed $failed
[ $failed = 0 ]
