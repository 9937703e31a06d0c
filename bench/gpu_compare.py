#!/usr/bin/env python3
"""h3av on a GPU beside PyTorch and diffusers on the same one, in one run.

    bench/gpu_compare.py build/release/h3av-gpu-bench [--out FILE] [--budget S] [--only NAME,...] [--wheel diffusers.whl]
    bench/gpu_compare.py --recorded bench/results/cuda_h200_2.jsonl

Every line of result goes to --out (default: bench/results/gpu_compare_<n>.jsonl) when it comes, so a run that is cut off
keeps what it has; a part that fails or takes too long is left out and the next one begins. The parts, the most telling
first, with the seconds that each took on an H200 (estimated from single figures where it says so), for --only and for
planning a --budget:

    steps      60   steps in bf16 at all lengths, the library's calls alone right after each (estimated)
    steps8     45   the same under fp8 (estimated)
    diffusers 150   diffusers on the same card: steps eager and compiled, sound, video (estimated; needs PyTorch)
    clip       20   the video decoder: tiles, a clip, the deviation of bf16
    clip8      20   the same under fp8
    small      10   sound, conditioner
    real       65   the whole denoiser from a file of 66 GB in /dev/shm or TMPDIR, counted; 50 of them to write it
    ops        15   operations by themselves
    ops8       15   the same under fp8
    ways       35   a step recorded, call by call, not fused: seconds and bits
    ways8      25   the same under fp8, with its error against bf16, of a step and of each product
    limits     25   PyTorch's products and a copy (needs PyTorch)
    cool       20   steps in bf16, each after a rest of two seconds: the card is not at its limit of power (estimated)
    cool8      20   the same under fp8 (estimated)

Figures of diffusers 0.42.1 that were measured on an H200 on another day, below, stand where its part was not run.
"""
import argparse, json, os, shutil, signal, subprocess, sys, threading, time

import torch_env

# seconds on one H200, random weights, bf16: eager with SDPA, compiled blocks
DIFFUSERS = {("step", 3342): (0.301, 0.245), ("step", 14972): (1.747, 1.510), ("step", 39614): (7.126, 6.518),
             ("clip", 0): (None, 3.70), ("sound", 5): (None, 0.095), ("encoder", 64): (None, 0.0093),
             ("encoder", 1024): (None, 0.0097)}
PRODUCTS = ("qkv", "out", "fc1", "fc2")
HERE = os.path.dirname(os.path.abspath(__file__))
FP8 = ["--math", "fp8"]


def parts(a):
    """(name, least seconds worth a start, most seconds, command)"""
    rows, short = ["--rows", a.rows], ["--rows", ",".join(a.rows.split(",")[:2])]
    python = lambda script, *more: [sys.executable, os.path.join(HERE, script), *more]
    bench = lambda *more: [a.program, *more, *(["--layers", str(a.layers)] if a.layers else [])]
    return [
        ("steps", 10, 150, bench("--what", "dit,fast", "--repeat", "3", *rows)),
        ("steps8", 10, 120, bench(*FP8, "--what", "dit,fast", "--repeat", "3", *rows)),
        ("diffusers", 20, 260, python("gpu_diffusers.py", *rows, "--budget", "240", *(["--wheel", a.wheel] if a.wheel else []))),
        ("clip", 10, 60, bench("--what", "vae,clip", "--tiles", "1,12,14", "--repeat", "2")),
        ("clip8", 10, 60, bench(*FP8, "--what", "vae,clip", "--tiles", "1,12,14", "--repeat", "2")),
        ("small", 5, 40, bench("--what", "audio,encoder")),
        ("real", 60, 120, bench("--what", "load,real")),
        ("ops", 10, 40, bench("--what", "ops", "--repeat", "3", *rows)),
        ("ops8", 10, 40, bench(*FP8, "--what", "ops", "--repeat", "3", *rows)),
        ("ways", 20, 80, bench("--what", "dit,ab", "--repeat", "4", *short)),
        ("ways8", 20, 80, bench(*FP8, "--what", "dit,ab,errors", "--repeat", "4", *short)),
        ("limits", 15, 60, python("gpu_limits.py")),
        ("cool", 15, 60, bench("--what", "steps", "--repeat", "3", "--rest", "2", *short)),
        ("cool8", 15, 60, bench(*FP8, "--what", "steps", "--repeat", "3", "--rest", "2", *short)),
    ]


def lines(text):
    return [json.loads(l) for l in text.splitlines() if l.startswith("{")]


def roomiest():
    """For files of many gigabytes: memory rather than a disk, where it is large enough."""
    free = lambda d: shutil.disk_usage(d).free if os.path.isdir(d) else 0
    given = os.environ.get("TMPDIR", "/tmp")
    return "/dev/shm" if free("/dev/shm") > 70e9 or free("/dev/shm") > free(given) else given


def run(name, command, limit, keep):
    """Its lines go to keep() as they come. It is ended, with what it started, after `limit` seconds."""
    print(f"+ {name}: " + " ".join(command), file=sys.stderr)
    env = dict(os.environ)
    if command[0] == sys.executable:
        env = torch_env.clean(env)
    else:
        env["TMPDIR"] = roomiest()
    begun = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env=env, start_new_session=True)
    end = lambda: os.killpg(p.pid, signal.SIGKILL)
    timer = threading.Timer(limit, end)
    timer.start()
    try:
        for line in p.stdout:
            if line.startswith("{"):
                keep(json.loads(line))
        status = p.wait()
    finally:  # nothing outlives this program
        timer.cancel()
        if p.poll() is None:
            end()
    keep(dict(what="part", name=name, command=" ".join(command[1 if command[0] == sys.executable else 0:]), exit=status,
              s=round(time.monotonic() - begun, 1)))


def run_all(a, keep):
    begun = time.monotonic()
    only = a.only.split(",") if a.only else None
    for name, least, most, command in parts(a):
        left = a.budget - (time.monotonic() - begun)
        if only and name not in only:
            continue
        if left < least:
            keep(dict(what="part", name=name, skipped="time"))
            continue
        try:
            run(name, command, min(most, left), keep)
        except (OSError, ValueError) as e:  # no such program; a line that is no JSON
            keep(dict(what="part", name=name, error=str(e)[:300]))


def next_file():
    n = 1
    while os.path.exists(path := os.path.join(HERE, "results", f"gpu_compare_{n}.jsonl")):
        n += 1
    return path


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
        elif r["what"] == "diffusers_clip" and "s" in r:
            diffusers[("clip", 0)] = (r["s"], None)
        elif r["what"] == "diffusers_sound" and "s" in r:
            diffusers[("sound", int(r["seconds_of_sound"]))] = (r["s"], None)
    for r in seen:
        if r["what"] == "dit_step":
            rows.append((f"step, {r['math']}, {r['rows']} rows", r["s_50_layers"], r.get("library_s_50_layers"),
                         ("step", r["rows"]) if r["math"] == "auto" else None))
        elif r["what"] == "step" and r.get("rest_s"):
            rows.append((f"step, {r['math']}, {r['rows']} rows, each after {r['rest_s']:g} s of rest",
                         r["s_50_layers"], None, None))
        elif r["what"].startswith("vae_clip"):
            rows.append((f"video decoder, 832x480x124, {r['math']}, {r['tiles_in_flight']} tiles", r["s"], None,
                         ("clip", 0) if r["math"] == "auto" else None))
        elif r["what"] == "load_real":
            rows.append((f"load {r['gb']:.0f} GB, {r['gbs']:.0f} GB/s, host peak {r['host_peak_gib']:.1f} GiB", r["load_s"],
                         None, None))
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
    p.add_argument("--out")
    p.add_argument("--budget", type=float, default=590, help="seconds for everything (590)")
    p.add_argument("--only", help="parts, by name")
    p.add_argument("--rows", default="14972,3342,39614")
    p.add_argument("--layers", type=int, help="of the step and of the file (50)")
    p.add_argument("--wheel", help="of diffusers, where it is not installed")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seen = [r for f in a.recorded for r in lines(open(f).read())]
    if a.program:
        out = a.out or next_file()
        with open(out, "a") as f:
            def keep(r):
                seen.append(r := dict(dict(what="error"), **r))
                print(json.dumps(r), file=f, flush=True)
            keep(dict(what="run", date=time.strftime("%F", time.gmtime()), program=os.path.basename(a.program)))
            run_all(a, keep)
        print(f"lines: {out}\n")
    if not seen:
        p.error("a program to run, or --recorded files")
    products(seen)
    whole(seen)


if __name__ == "__main__":
    main()
