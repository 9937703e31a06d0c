#!/usr/bin/env python3
"""How a DiT step should scale over ranks, and how it does.

    bench/scaling.py                          the model: 1-8 GPUs of a host, 1-16 machines
    bench/scaling.py --measure PROGRAM        also runs `PROGRAM bench` on 1, 2, 4 ranks of this CPU
    bench/scaling.py --results FILE...        also reads reports that `h3av bench --json` or bench/multi_gpu_run.sh wrote

Every row says whether it was measured or modelled. The model (docs/scaling.md explains it):

    step = flops / (ranks x rate) + bytes sent by a rank / bandwidth + exchanges x latency + fixed

A step has, for each of the 50 blocks, two exchanges: q, k, v of the other ranks' heads, and the result back.
"""
import argparse
import json
import os
import subprocess

C, HEADS, D, F, LAYERS = 5376, 56, 128, 14336, 50
INNER = HEADS * D

# name, bytes/s one rank can send while all do, seconds per exchange. Data sheet numbers times 0.75.
NVLINK = ("NVLink 4 (H200)", 0.75 * 450e9, 15e-6)
PCIE = ("PCIe 5 x16", 0.75 * 63e9, 30e-6)
IB = ("InfiniBand 400 Gb/s", 0.75 * 50e9, 30e-6)
ETHERNET = ("Ethernet 100 Gb/s", 0.75 * 12.5e9, 60e-6)


def flops(rows):
    """Products and attention of one forward; the rest is bound by memory and below a hundredth."""
    per_row = 2 * (C * 3 * INNER + INNER * C + C * 2 * F + F * C)
    return LAYERS * (rows * per_row + 4 * rows * rows * INNER)


def sent(rows, ranks, width=2):
    """Bytes that one rank sends in a forward: of its rows all heads but its own, three times out, once back."""
    return LAYERS * 4 * rows / ranks * INNER * width * (ranks - 1) / ranks


def step(rows, ranks, rate, link):
    compute = flops(rows) / (ranks * rate)
    if ranks == 1:
        return compute, 0.0
    _, bandwidth, latency = link
    return compute, sent(rows, ranks) / bandwidth + LAYERS * 2 * latency


def modelled(rate, links):
    print(f"\nModelled at {rate / 1e12:.0f} TFLOP/s a GPU, exchanges not overlapped with products.\n")
    print("| rows | ranks | link | step, s | of it exchange | faster than one | MB sent a rank | |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |")
    for rows in (14972, 39614, 109500):
        alone = step(rows, 1, rate, None)[0]
        print(f"| {rows} | 1 | | {alone:.2f} | | 1.00 | | modelled |")
        for ranks, link in links:
            compute, exchange = step(rows, ranks, rate, link)
            print(f"| {rows} | {ranks} | {link[0]} | {compute + exchange:.2f} | "
                  f"{100 * exchange / (compute + exchange):.1f} % | {alone / (compute + exchange):.2f} | "
                  f"{sent(rows, ranks) / 1e6:.0f} | modelled |")


def queue_table():
    """Requests on many machines do not talk to each other: throughput is that of the machines."""
    print("\nOne queue, each machine its own requests (no exchange between them):\n")
    print("| machines | videos for one machine's | |")
    print("| ---: | ---: | --- |")
    for n in (1, 2, 4, 8, 16):
        print(f"| {n} | {n:.1f} | modelled |")


def run_bench(program, ranks, rows, layers, repeat):
    command = [program, "bench", "--what", "dit", "--layers", str(layers), "--rows", rows, "--repeat", str(repeat),
               "--threads", "1", "--json"]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    out = subprocess.run(command, check=True, capture_output=True, text=True,
                         env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    return json.loads(out.stdout)


def measured(reports):
    base = {}
    print("\n| device | ranks | by | rows | layers | step, s | of it exchange | faster than one | |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for r in sorted(reports, key=lambda r: r["ranks"]):
        for row in r["results"]:
            if row["name"] != "dit step":
                continue
            key = (r["detail"], row["rows"], row["layers"])
            base.setdefault(key, row["seconds"] if r["ranks"] == 1 else None)
            share = f"{100 * row['exchange_seconds'] / row['seconds']:.1f} %" if "exchange_seconds" in row else ""
            ratio = f"{base[key] / row['seconds']:.2f}" if base[key] else ""
            print(f"| {r['detail']} | {r['ranks']} | {r['ranks_by']} | {row['rows']} | {row['layers']} | "
                  f"{row['seconds']:.3f} | {share} | {ratio} | measured |")


def measured_steps(lines):
    """Steps of h3av-gpu-bench. Exchanges were timed by themselves; they are hidden as far as the step is shorter than
    its share of one GPU's and them together."""
    base = {(r["rows"], r["layers"]): r["s"] for r in lines if r["what"] == "step" and r["ranks"] == 1}
    print("\n| rows | ranks | by | layers | step, s | fifty layers, s | exchange alone | hidden | faster than one | "
          "peak, GiB a rank | |")
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for r in lines:
        if r["what"] != "step":
            continue
        one, alone = base.get((r["rows"], r["layers"])), r["exchange_alone_s"]
        ratio = f"{one / r['s']:.2f}" if one else ""
        share = f"{100 * alone / r['s']:.1f} %" if r["ranks"] > 1 else ""
        left = (r["s"] - one / r["ranks"]) / alone if one and alone else 0
        hidden = f"{100 * min(1, max(0, 1 - left)):.0f} %" if one and alone else ""
        print(f"| {r['rows']} | {r['ranks']} | {r['by']} | {r['layers']} | {r['s']:.4f} | {r['s_50_layers']:.3f} | {share} | "
              f"{hidden} | {ratio} | {r['peak_gib']:.1f} | measured |")


def load(path):
    """One report of `h3av bench`, or lines."""
    text = open(path).read()
    return [json.loads(line) for line in text.splitlines()] if path.endswith(".jsonl") else json.loads(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--measure", metavar="PROGRAM")
    p.add_argument("--results", nargs="*", default=[])
    p.add_argument("--rows", default="256", help="packed rows to measure")
    p.add_argument("--layers", type=int, default=1)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--tflops", type=float, default=500, help="rate of a GPU within a step (500)")
    a = p.parse_args()

    files = [load(f) for f in a.results]
    reports = [f for f in files if isinstance(f, dict)]
    lines = [r for f in files if isinstance(f, list) for r in f if "what" in r]  # an error has none
    if a.measure:
        print(f"{os.cpu_count()} cores here, load {os.getloadavg()[0]:.1f} at the start; one thread a rank.")
        reports += [run_bench(a.measure, n, a.rows, a.layers, a.repeat) for n in (1, 2, 4)]
    if reports:
        measured(reports)
    if lines:
        measured_steps(lines)
    hosts = [(n, NVLINK) for n in (2, 4, 7, 8)] + [(n, PCIE) for n in (2, 4, 8)]
    machines = [(n, IB) for n in (2, 4, 8, 14)] + [(n, ETHERNET) for n in (2, 4, 8, 14)]
    modelled(a.tflops * 1e12, hosts + machines)
    queue_table()


if __name__ == "__main__":
    main()
