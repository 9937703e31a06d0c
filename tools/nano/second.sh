#!/bin/bash
# The second lease: the DiT on the first GPU, the video VAE on from its checkpoints on the last, then the figures.
#   second.sh OUT DIT_SECONDS ENCODER_SECONDS DECODER_SECONDS [train_dit.py options]
set -u
cd "$(dirname "$0")" || exit 1
OUT=$1 DIT=$2 ENC=$3 DEC=$4
shift 4
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=2 DIFFUSERS_VERBOSITY=error TRANSFORMERS_VERBOSITY=error
W=/tmp/nano-weights
mkdir -p "$OUT" $W/logs && cp trained/* $W/
LAST=$(($(nvidia-smi -L | wc -l) - 1))
(
  export CUDA_VISIBLE_DEVICES=$LAST
  [ "$ENC" = 0 ] || timeout $((ENC + 40)) python3 train_video_vae.py encoder --seconds "$ENC" --lr 2e-4 --out $W --resume >$W/logs/encoder.log 2>&1
  [ "$DEC" = 0 ] || timeout $((DEC + 60)) python3 train_video_vae.py decoder --seconds "$DEC" --out $W --compile --resume >$W/logs/decoder.log 2>&1
  cp $W/decoder.safetensors $W/encoder.safetensors "$OUT"/
  timeout 40 python3 train_video_vae.py join --out $W >$W/logs/join.log 2>&1
) &
VAE=$!
CUDA_VISIBLE_DEVICES=0 timeout $((DIT + 40)) python3 train_dit.py --whole \
  --seconds "$DIT" --weights $W --out $W --state $W/state "$@" 2>&1 | tee $W/logs/dit.log
cp $W/dit.safetensors $W/text_encoder.safetensors $W/state.*.safetensors "$OUT"/
try() { # gpu, file, options
  CUDA_VISIBLE_DEVICES=$1 timeout 50 python3 sample.py --weights $W --sheet $W/logs --workers 8 --out "$W/logs/$2.json" "${@:3}" >"$W/logs/$2.log" 2>&1
}
try 0 t2va --tasks t2va --frames 56 --clips 72 &
T=$!
try "$LAST" cond --tasks fl2va,ref2va --frames 56 --clips 20
wait $T $VAE
cp $W/dit_log.json $W/video_vae.json $W/logs/
tar -C $W -cf "$OUT"/logs.tar logs
grep -h -v Warn $W/logs/encoder.log $W/logs/decoder.log | tail -n 6
cat $W/logs/join.log | tail -n 2
grep -h -v Warn $W/logs/t2va.log $W/logs/cond.log | tail -n 12
