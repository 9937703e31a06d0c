#!/usr/bin/env python3
"""h3av on a GPU beside PyTorch on the same one, in one run.

    bench/gpu_compare.py build/release/h3av-gpu-bench          runs both (PyTorch where it is installed)
    bench/gpu_compare.py --recorded bench/results/cuda_h200_2.jsonl

Products by PyTorch's library calls (bench/gpu_limits.py), whole steps and decoders beside the figures of diffusers
0.42.1 measured on an H200 on another day: these are written down below, diffusers is not run.
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
    return lines(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


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
        theirs = DIFFUSERS.get(key, (None, None))
        best = min((t for t in theirs if t), default=None)
        show = lambda v: f"{v:.4g}" if v else ""
        print(f"| {name} | {s:.4g} | {show(limit)} | {show(theirs[0])} | {show(theirs[1])} | "
              f"{f'{best / s:.2f} x' if best else ''} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", nargs="?", help="h3av-gpu-bench")
    p.add_argument("--recorded", nargs="*", default=[])
    a = p.parse_args()
    seen = [r for f in a.recorded for r in lines(open(f).read())]
    if a.program:
        seen += run([a.program, "--what", "ops,dit,vae,clip,audio,encoder", "--tiles", "12"])
        seen += run([a.program, "--math", "fp8", "--what", "ops,dit"])
        try:
            seen += run([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_limits.py")])
        except subprocess.CalledProcessError:
            print("PyTorch is not here or sees no GPU: its products are left out", file=sys.stderr)
    if not seen:
        p.error("a program to run, or --recorded files")
    products(seen)
    whole(seen)


if __name__ == "__main__":
    main()
