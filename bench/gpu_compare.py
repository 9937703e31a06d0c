#!/usr/bin/env python3
"""h3av on a GPU beside PyTorch on the same one, in one run.

    bench/gpu_compare.py build/release/h3av-gpu-bench [--wheel diffusers.whl]     runs all (PyTorch where it is installed)
    bench/gpu_compare.py --recorded bench/results/cuda_h200_2.jsonl

Products by PyTorch's library calls (bench/gpu_limits.py); steps beside diffusers' own block in the same run
(bench/gpu_block.py; its source may come from a wheel that is not installed). What was not run stands beside the figures of
diffusers 0.42.1 measured on an H200 on another day, which are written down below.
"""
import argparse, json, os, subprocess, sys

# seconds on one H200, random weights, bf16: eager with SDPA, compiled blocks
DIFFUSERS = {("step", 3342): (0.301, 0.245), ("step", 14972): (1.747, 1.510), ("step", 39614): (7.126, 6.518),
             ("clip", 0): (None, 3.70), ("sound", 5): (None, 0.095), ("encoder", 64): (None, 0.0093),
             ("encoder", 1024): (None, 0.0097)}
PRODUCTS = ("qkv", "out", "fc1", "fc2")


def lines(text):
    return [json.loads(l) for l in text.splitlines() if l.startswith("{")]


def run(command):
    print("+ " + " ".join(command), file=sys.stderr)
    env = dict(os.environ)
    if command[0] == sys.executable:  # PyTorch brings a cuDNN of its own and refuses another one
        env.pop("LD_LIBRARY_PATH", None)
    return lines(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout)


def products(seen):
    ours = {(r["name"], r["rows"], r["math"]): r["ms"] for r in seen if r["what"] == "op" and r["name"] in PRODUCTS}
    torch = {(r["name"], r["rows"]): r for r in seen if r["what"] == "torch_product"}
    if not torch:
        return
    print("| product | rows | bf16 h3av, ms | torch | e4m3 h3av, ms | torch |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for (name, rows), t in sorted(torch.items(), key=lambda kv: (kv[0][1], kv[0][0])):
        cells = [f"{ours[(name, rows, m)]:.3f}" if (name, rows, m) in ours else "" for m in ("auto", "fp8")]
        print(f"| {name} | {rows} | {cells[0]} | {t['bf16_ms']:.3f} | {cells[1]} | {t['fp8_ms']:.3f} |")
    print()


def whole(seen):
    rows = []
    diffusers = dict(DIFFUSERS)
    for r in seen:
        if r["what"] == "diffusers_step" and "s_50_layers" in r:
            eager, compiled = diffusers.get(("step", r["rows"], "now"), (None, None))
            both = (r["s_50_layers"], compiled) if r["kind"] == "eager" else (eager, r["s_50_layers"])
            diffusers[("step", r["rows"], "now")] = diffusers[("step", r["rows"])] = both
    for r in seen:
        if r["what"] == "dit_step":
            rows.append((f"step, {r['math']}, {r['rows']} rows", r["s_50_layers"], r["library_s_50_layers"],
                         ("step", r["rows"]) if r["math"] == "auto" else None))
        elif r["what"].startswith("vae_clip") and r["tiles_in_flight"] == 12:
            rows.append(("video decoder, 832x480x124", r["s"], None, ("clip", 0)))
        elif r["what"] == "audio_decode":
            rows.append((f"sound, {r['seconds_of_sound']:.0f} s", r["s"], None, ("sound", int(r["seconds_of_sound"]))))
        elif r["what"] == "encoder_4_layers":
            rows.append((f"encoder, {r['tokens']} tokens", r["s"], None, ("encoder", r["tokens"])))
    print("| seconds | h3av | library, same run | diffusers eager | compiled | h3av is faster than the best |\n"
          "| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, s, limit, key in rows:
        theirs = diffusers.get(key, (None, None))
        best = min((t for t in theirs if t), default=None)
        show = lambda v: f"{v:.4g}" if v else ""
        print(f"| {name} | {s:.4g} | {show(limit)} | {show(theirs[0])} | {show(theirs[1])} | "
              f"{f'{best / s:.2f} x' if best else ''} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", nargs="?", help="h3av-gpu-bench")
    p.add_argument("--recorded", nargs="*", default=[])
    p.add_argument("--wheel", help="of diffusers, where it is not installed")
    a = p.parse_args()
    seen = [r for f in a.recorded for r in lines(open(f).read())]
    if a.program:
        seen += run([a.program, "--what", "ops,dit,vae,clip,audio,encoder", "--tiles", "12"])
        seen += run([a.program, "--math", "fp8", "--what", "ops,dit"])
        here = os.path.dirname(os.path.abspath(__file__))
        for script in (["gpu_limits.py"], ["gpu_block.py", *(["--wheel", a.wheel] if a.wheel else [])]):
            try:
                seen += run([sys.executable, os.path.join(here, script[0]), *script[1:]])
            except subprocess.CalledProcessError:
                print(f"{script[0]}: PyTorch is not here, sees no GPU or lacks diffusers: left out", file=sys.stderr)
    if not seen:
        p.error("a program to run, or --recorded files")
    products(seen)
    whole(seen)


if __name__ == "__main__":
    main()
