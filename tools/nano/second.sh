#!/bin/bash
# The second lease: the DiT on all GPUs, then its figures.
#   second.sh OUT SECONDS VAE_FOLDER [train_dit.py options]
set -u
cd "$(dirname "$0")" || exit 1
OUT=$1 SECONDS_=$2 VAE=$3
shift 3
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=2 DIFFUSERS_VERBOSITY=error TRANSFORMERS_VERBOSITY=error
W=/tmp/nano-weights
mkdir -p "$OUT" $W/logs && cp trained/* $W/ && { cp "$VAE"/*.safetensors $W/ || true; }
N=$(nvidia-smi -L | wc -l)
timeout $((SECONDS_ + 90)) python3 -m torch.distributed.run --standalone --nproc-per-node "$N" train_dit.py \
  --seconds "$SECONDS_" --weights $W --out $W --state $W/state "$@" 2>&1 | tee $W/logs/dit.log
cp $W/dit.safetensors $W/text_encoder.safetensors $W/state.*.safetensors "$OUT"/
try() { # gpu, file, options
  CUDA_VISIBLE_DEVICES=$1 timeout 60 python3 sample.py --weights $W --sheet $W/logs --workers 8 --out "$W/logs/$2.json" "${@:3}" \
    >"$W/logs/$2.log" 2>&1
}
try 0 t2va --tasks t2va --frames 56 --clips 128 &
try $((N - 1)) cond --tasks fl2va,ref2va --frames 56 --clips 40 &
wait
cp $W/dit_log.json $W/logs/
tar -C $W -cf "$OUT"/logs.tar logs
grep -h -v Warn $W/logs/t2va.log $W/logs/cond.log | tail -n 12
