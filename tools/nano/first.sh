#!/bin/bash
# The first lease of a training: both halves of the video VAE on one GPU, trials of the DiT's settings on the other.
#   first.sh OUT ENCODER_SECONDS DECODER_SECONDS TRIAL_SECONDS
set -u
cd "$(dirname "$0")" || exit 1
OUT=$1 ENC=$2 DEC=$3 TRY=$4
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=2 DIFFUSERS_VERBOSITY=error TRANSFORMERS_VERBOSITY=error
mkdir -p "$OUT" && cp trained/* "$OUT"/
LAST=$(($(nvidia-smi -L | wc -l) - 1))
(
  export CUDA_VISIBLE_DEVICES=$LAST
  timeout $((ENC + 60)) python3 train_video_vae.py encoder --seconds "$ENC" --out "$OUT" >"$OUT/encoder.log" 2>&1
  timeout $((DEC + 90)) python3 train_video_vae.py decoder --seconds "$DEC" --out "$OUT" --compile >"$OUT/decoder.log" 2>&1
  timeout 60 python3 train_video_vae.py join --out "$OUT" >"$OUT/join.log" 2>&1
) &
CUDA_VISIBLE_DEVICES=0 timeout 300 python3 tune.py --weights "$OUT" --seconds "$TRY" 2>&1 | tee "$OUT/tune.log"
wait
tail -n 6 "$OUT/encoder.log" "$OUT/decoder.log" "$OUT/join.log"
nvidia-smi --query-gpu=name,memory.used --format=csv
