"""Try settings of the DiT's training against each other for a few seconds each, on one pool and one compilation.

    python tune.py --weights weights --seconds 25
"""

import argparse
import json
import time

import numpy as np
import torch

import data
import nets
import optim
import train_dit

TRIALS = (
    dict(name="adamw 2e-3", lr=2e-3, no_muon=True, tokens=80_000),
    dict(name="muon 2e-3", lr=2e-3, no_muon=False, tokens=80_000),
    dict(name="muon 5e-3", lr=5e-3, no_muon=False, tokens=80_000),
    dict(name="muon 5e-3, half the batch", lr=5e-3, no_muon=False, tokens=40_000),
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="weights")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--trials", default="0123")
    args = parser.parse_args()
    workers = data.Workers(1 if args.toy else 8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    start = time.time()
    codec = train_dit.load_codec(args.weights, device, args.toy)
    table = train_dit.TOY_POOLS if args.toy else ((256, 256, 22, 6400, 0.8, 0.8), (256, 256, 56, 3200, 0.2, 0.2))
    pools = [data.Pool(h, w, f, n, codec, (a, b), workers, 5, chunk=16 if args.toy else 64) for h, w, f, n, a, b in table]
    for pool in pools:
        for k in range(2 if args.toy else 30):
            if k == 10:
                sync()
                mark = time.time()
            pool.grow()
        sync()
        if not args.toy:
            print(f"{pool.key}: {(time.time() - mark) / 20 * 1e3:.0f} ms for 64 clips", flush=True)
    print(f"ready after {time.time() - start:.1f} s", flush=True)

    eager = (nets.block_core, nets.refiner_core)
    fast = eager if args.toy else train_dit.compiled_cores()

    def one(trial, cores, seconds, most=None):
        torch.manual_seed(1)
        options = argparse.Namespace(lr=trial["lr"], no_muon=trial["no_muon"], ema=0.995, adam_scale=trial.get("adam_scale", 1.0))
        dit, text, trainer = train_dit.build(device, dtype, options)
        step = train_dit.Step(dit, text, trainer, pools, train_dit.Conditioning(dit, text, device), cores,
                              2000 if args.toy else trial["tokens"], 11, 0)
        clock = optim.Clock(seconds, warmup=100, hold=0.5)
        total, losses, norms = torch.zeros(2, device=device), [], []
        while not clock.done() and (most is None or trainer.steps < most):
            pool, task, anchors = step.choose(0.0)
            loss, lv, la = step.loss(pool, task, anchors)
            loss.backward()
            norm, _ = trainer.step(clock.scale(trainer.steps))
            if pool is pools[0]:
                losses.append(torch.stack((lv.detach(), la.detach())))
                norms.append(norm)
            if trainer.steps % 8 == 0:
                sync()
        elapsed = clock.elapsed
        part = lambda k: [round(v, 3) for v in torch.stack(losses[k] or losses).mean(0).tolist()]
        quarter = max(1, len(losses) // 4)
        print(json.dumps(dict(trial=trial["name"], steps=trainer.steps, ms=round(elapsed / trainer.steps * 1e3, 1),
                              second=part(slice(quarter, 2 * quarter)), third=part(slice(2 * quarter, 3 * quarter)),
                              last=part(slice(-max(1, quarter // 2), None)),
                              norm=round(float(torch.stack(norms[-50:]).mean()), 2))), flush=True)
        return dit, text, step

    if not args.toy:
        for name, cores in (("eager", eager), ("compiled", fast)):
            begin = time.time()
            one(dict(name=name + " warm-up", lr=1e-3, no_muon=False, tokens=80_000), cores, 60, 12)
            print(f"{name}: warm after {time.time() - begin:.1f} s", flush=True)
            for tokens in (40_000, 80_000, 160_000):
                one(dict(name=f"{name} {tokens}", lr=1e-3, no_muon=False, tokens=tokens), cores, 60, 24)
        print(f"memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB", flush=True)
    for k in args.trials:
        one(TRIALS[int(k)], fast, args.seconds)
    workers.stop()


if __name__ == "__main__":
    main()
