#!/bin/bash
# The stages of h3-nano's training, one word each, on one GPU:
#   train.sh WEIGHTS code audio encoder decoder join dit      # everything, from nothing
#   train.sh WEIGHTS model code dit-more                      # on from the exported model
#   train.sh WEIGHTS weak                                     # keeps a checkpoint of now: the guide of dit-more
#   train.sh WEIGHTS lime steps sample export                 # adapter, four-step schedule, figures, model folder
# Seconds of a stage: SECONDS_audio=240 SECONDS_encoder=60 SECONDS_decoder=240 SECONDS_dit=900 SECONDS_lime=60 SECONDS_steps=90.
set -eu
[ $# -ge 2 ] || { sed -n '2,7s|^# *||p' "$0"; exit 2; }
mkdir -p "$1"
W=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")"
MODEL=../../models/h3-nano
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
dit() { python3 train_dit.py --graphs --compiler-cache "$W/compiled.bin" --near 0.3 --tokens 96000 --workers 8 --weights "$W" --out "$W" "$@"; }
for stage in "$@"; do
    case $stage in
        model) python3 export.py --back $MODEL --weights "$W" ;;
        code) python3 lincode.py --out "$W" ;;
        audio) python3 train_audio_vae.py --seconds "${SECONDS_audio:-240}" --out "$W" ;;
        encoder) python3 train_video_vae.py encoder --seconds "${SECONDS_encoder:-60}" --out "$W" ;;
        decoder) python3 train_video_vae.py decoder --seconds "${SECONDS_decoder:-240}" --out "$W" --compile ;;
        join) python3 train_video_vae.py join --out "$W" ;;
        dit) dit --seconds "${SECONDS_dit:-900}" --state "$W/state" ;;
        weak) mkdir -p "$W/weak" && cp "$W/dit.safetensors" "$W/text_encoder.safetensors" "$W/weak/" ;;
        dit-more)
            guide=() && [ -d "$W/weak" ] && guide=(--guide "$W/weak" --guide-share 0.55)
            dit --seconds "${SECONDS_dit:-400}" --init "$W" --since 0.45 --hold 0.75 --stride 4 --seed "${SEED:-17}" "${guide[@]}"
            ;;
        lime) python3 train_lora.py --rank 8 --seconds "${SECONDS_lime:-60}" --weights "$W" --out "$W/lime.safetensors" ;;
        steps) python3 few_steps.py --seconds "${SECONDS_steps:-90}" --weights "$W" --out "$W/four.json" ;;
        sample) python3 sample.py --weights "$W" --clips 200 --tasks t2va,fl2va,ref2va --sheet "$W/sheets" --out "$W/figures.json" ;;
        export) python3 export.py --weights "$W" --original $MODEL ;;
        *)
            echo "$stage: no such stage" >&2
            exit 2
            ;;
    esac
done
