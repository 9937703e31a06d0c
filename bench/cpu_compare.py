#!/usr/bin/env python3
"""h3av beside its peers on one processor, in one run: torch with diffusers' classes, and stable-diffusion.cpp.

    python bench/cpu_compare.py --h3av build/release/h3av [--sdcpp sd-h3-bench] [--threads 1 16] [--cores 16-31]
                                [--parts rate,block,encoder,vae,sound] [--rounds 2] [--budget 280] [--out FILE]
                                [--wheel diffusers.whl]

Every case is timed in rounds, one contestant after the other, and the least time of each counts, so that a busy
machine disturbs all of them alike. Lines of JSON go to --out as they come; a table closes the run. The torch side needs
torch and diffusers >= 0.42, or its wheel (its conditioner: transformers too; without them its columns stay empty); the
stable-diffusion.cpp side needs sd-h3-bench, built by bench/peers/README.md. Random weights throughout: nothing here says
anything about quality. Nothing runs longer than --budget: what is under way then is ended, and the table is of what there is.

Seconds of a round (h3av, torch f32, both types of sd.cpp where they run), 512 rows, --reps 1, from the runs of
docs/performance.md: block 60 on one core, 12 on 14; encoder 25, 5; vae 25, 5; sound 8, 2 (sd.cpp's own sound 40, 8). The
first call of a part fills its weights: 5 to 10 more."""
import argparse, json, os, subprocess, sys, threading, time

import torch_env

ap = argparse.ArgumentParser()
ap.add_argument("--h3av", default="build/release/h3av")
ap.add_argument("--model", help="what h3av opens before it benches; only its existence matters")
ap.add_argument("--sdcpp")
ap.add_argument("--no-torch", action="store_true")
ap.add_argument("--no-sdcpp-sound", action="store_true", help="leave out its slowest case")
ap.add_argument("--threads", type=int, nargs="+", default=[1])
ap.add_argument("--cores", help="CPUs to stay on, as taskset takes them (16-31)")
ap.add_argument("--parts", default="rate,block,encoder,vae,sound")
ap.add_argument("--rows", type=int, nargs="+", default=[512, 2048])
ap.add_argument("--tokens", type=int, nargs="+", default=[64, 256])
ap.add_argument("--maths", nargs="+", default=["auto", "auto/bf16", "auto/q8_0", "f32", "int8"],
                help="h3av's --cpu-math values for the block and, but f32, the encoder; /bf16 with --dtype bf16; int8 and /q8_0 with q8_0 weights")
ap.add_argument("--types", nargs="+", default=["f16", "q8_0"], help="stable-diffusion.cpp's weight types for the block")
ap.add_argument("--torch-types", nargs="+", default=["f32", "bf16"])
ap.add_argument("--rounds", type=int, default=2)
ap.add_argument("--reps", type=int, default=1, help="timed repetitions of a contestant in a round, after one to warm up")
ap.add_argument("--budget", type=float, default=1e9, help="seconds after which no further case is started")
ap.add_argument("--out")
ap.add_argument("--wheel", help="of diffusers, where it is not installed")
ap.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
a = ap.parse_args()
started = time.time()
SHAPE = dict(hidden=5376, heads=56, head=128, ffn=14336, time=2688)


# ------------------------------------------------------------------------------------------------ torch, in a child
def worker():
    """Answers one JSON request a line with one JSON line: seconds of the fastest repetition."""
    import torch
    import diffusers_wheel

    who = diffusers_wheel.use(a.wheel)
    types = dict(f32=torch.float32, bf16=torch.bfloat16)
    made = {}

    def plain_block():
        """The operations of diffusers' MiniMaxH3TransformerBlock in torch alone, for where diffusers is not whole."""
        nn, F = torch.nn, torch.nn.functional
        C, H, D = SHAPE["hidden"], SHAPE["heads"], SHAPE["head"]

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm1, self.norm2 = nn.RMSNorm(C, eps=1e-5), nn.RMSNorm(C, eps=1e-5)
                self.norm_q, self.norm_k = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
                self.q, self.k, self.v = (nn.Linear(C, H * D, bias=False) for _ in range(3))
                self.out, self.fc1 = nn.Linear(H * D, C, bias=False), nn.Linear(C, 2 * SHAPE["ffn"], bias=False)
                self.fc2, self.adaln = nn.Linear(SHAPE["ffn"], C, bias=False), nn.Linear(SHAPE["time"], 18 * C)

            def turned(self, x, cos, sin):
                n = cos.shape[-1]
                cos, sin = (t.to(x.dtype)[None, :, None, :] for t in (cos, sin))
                a, b = x[..., :n].chunk(2, dim=-1)
                return torch.cat((x[..., :n] * cos + torch.cat((-b, a), dim=-1) * sin, x[..., n:]), dim=-1).contiguous()

            def forward(self, x, temb, at, pe):
                m = self.adaln(F.silu(temb).to(self.adaln.weight.dtype)).view(-1, 6 * C).chunk(6, dim=-1)
                h = self.norm1(x) * (1.0 + m[1].index_select(0, at)) + m[0].index_select(0, at)
                q, k, v = (f(h).unflatten(-1, (H, -1)) for f in (self.q, self.k, self.v))
                q, k = self.turned(self.norm_q(q), *pe), self.turned(self.norm_k(k), *pe)
                q, k, v = (t.permute(0, 2, 1, 3) for t in (q, k, v))
                o = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).flatten(2, 3)
                x = x + m[2].index_select(0, at) * self.out(o)
                h = self.norm2(x) * (1.0 + m[4].index_select(0, at)) + m[3].index_select(0, at)
                value, gate = self.fc1(h).chunk(2, dim=-1)
                return x + m[5].index_select(0, at) * self.fc2(value * F.silu(gate))

        def angles(at):
            f = at[..., None] * (1.0 / 10000.0 ** (torch.arange(0, 32, 2, dtype=torch.float32) / 32))
            f = torch.cat((*f.unbind(dim=1),) * 2, dim=-1)
            return f.cos(), f.sin()

        return Block, angles

    build = diffusers_wheel.filled

    def case(part, dtype, n):
        """The call to time; models stay until another part or type is asked for."""
        dt, key = types[dtype], (part, dtype)
        if key not in made:
            made.clear()
            if part == "block":
                try:
                    from diffusers.models.transformers.transformer_minimax_h3 import (MiniMaxH3RotaryPosEmbed,
                                                                                      MiniMaxH3TransformerBlock)
                    made[key] = (build(lambda: MiniMaxH3TransformerBlock(SHAPE["hidden"], SHAPE["heads"], SHAPE["head"],
                                                                         SHAPE["ffn"], SHAPE["time"], 1e-5, 1e-5), dt),
                                 MiniMaxH3RotaryPosEmbed())
                except Exception:
                    block, angles = plain_block()
                    made[key] = (build(block, dt), angles)
            elif part == "vae":
                from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import AutoencoderKLMiniMaxH3
                made[key] = build(lambda: AutoencoderKLMiniMaxH3(block_out_channels=(32,) * 6, decoder_num_layers=1), dt)
            elif part == "sound":
                from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio
                made[key] = build(lambda: AutoencoderKLMiniMaxH3Audio(), torch.float32)
            elif part == "encoder":
                from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
                from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel
                cfg = Qwen3VLTextConfig(vocab_size=1024, num_hidden_layers=1, rms_norm_eps=1e-6, hidden_size=5120,
                                        intermediate_size=25600, num_attention_heads=64, num_key_value_heads=8,
                                        head_dim=128, max_position_embeddings=262144,
                                        rope_parameters=dict(rope_type="default", rope_theta=5e6,
                                                             mrope_section=[24, 20, 20], mrope_interleaved=True))
                cfg._attn_implementation = "sdpa"
                made[key] = build(lambda: Qwen3VLTextModel(cfg), dt)
            else:
                made[key] = None
        m = made[key]
        if part == "product":
            x, w = torch.randn(n, SHAPE["hidden"]).to(dt), torch.randn(3 * 7168, SHAPE["hidden"]).to(dt)
            return lambda: torch.nn.functional.linear(x, w)
        if part == "block":
            x = torch.randn(1, n, SHAPE["hidden"]).to(dt)
            temb, at, pe = torch.randn(2, SHAPE["time"]), torch.randint(0, 6, (n,)), m[1](torch.rand(n, 3) * 30)
            return lambda: m[0](x, temb, at, pe)
        if part == "vae":
            z = torch.randn(1, 24, 7, 16, 16).to(dt)
            return lambda: m.decode(z)
        if part == "sound":
            z = torch.randn(2, 32, 40 * n)
            return lambda: m.decode(z)
        ids = torch.randint(0, 1024, (1, n))
        return lambda: m(input_ids=ids, use_cache=False)

    print(json.dumps(dict(torch=torch.__version__, diffusers=who, isa=torch.backends.cpu.get_cpu_capability())), flush=True)
    for line in sys.stdin:
        q = json.loads(line)
        try:
            torch.set_num_threads(q["threads"])
            f, best = case(q["part"], q["type"], q["n"]), 1e30
            with torch.no_grad():
                for i in range(q["reps"] + 1):
                    t = time.perf_counter()
                    f()
                    if i:
                        best = min(best, time.perf_counter() - t)
            print(json.dumps(dict(s=best)), flush=True)
        except Exception as e:  # the run goes on without this figure
            print(json.dumps(dict(error=repr(e)[:300])), flush=True)


if a.torch_worker:
    worker()
    sys.exit()


# ------------------------------------------------------------------------------------------------ contestants
sink = open(a.out, "w") if a.out else None
results = {}  # (case, threads, contestant) -> least seconds


def emit(**kw):
    line = json.dumps({k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in kw.items()})
    print(line, flush=True)
    if sink:
        print(line, file=sink, flush=True)


def pinned(threads, cmd):
    if not a.cores:
        return cmd
    first, last = (int(x) for x in a.cores.split("-"))
    return ["taskset", "-c", f"{first}-{min(last, first + threads - 1)}"] + cmd


def left():
    return min(86400.0, max(1.0, a.budget - (time.time() - started)))


def finished(cmd):
    """subprocess.run within the budget; a run that was ended has failed."""
    try:
        return subprocess.run(cmd, capture_output=True, text=True, timeout=left())
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(cmd, 1, "", "the time is over")


class Torch:
    def __init__(self, threads):
        self.threads, env = threads, dict(torch_env.clean(os.environ), OMP_NUM_THREADS=str(threads), KMP_BLOCKTIME="0")
        cmd = [sys.executable, __file__, "--torch-worker"] + (["--wheel", a.wheel] if a.wheel else [])
        self.p = subprocess.Popen(pinned(threads, cmd), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, env=env)
        head = self.p.stdout.readline()
        self.is_up = bool(head)
        if head:
            emit(peer="torch", **json.loads(head))

    def __call__(self, part, dtype, n):
        if not self.is_up or late():
            return None
        timer = threading.Timer(left(), self.p.kill)
        timer.start()
        try:
            self.p.stdin.write(json.dumps(dict(part=part, type=dtype, n=n, threads=self.threads, reps=a.reps)) + "\n")
            self.p.stdin.flush()
            r = json.loads(self.p.stdout.readline())
        except (OSError, ValueError):
            self.is_up, r = False, dict(error="the torch process ended")
        timer.cancel()
        if "error" in r:
            emit(peer="torch", part=part, type=dtype, n=n, threads=self.threads, error=r["error"])
        return r.get("s")

    def close(self):
        try:
            self.p.stdin.close()
        except OSError:  # it ended before
            pass
        self.p.wait()


def ours(threads, what, math, extra, pick):
    """{name: seconds} of `h3av bench`; pick maps one result to a name or None."""
    math, _, kind = math.partition("/")
    extra = extra + (["--dtype", kind] if kind == "bf16" else [])
    cmd = [a.h3av, "bench", "--what", what, "--threads", str(threads), "--device", "cpu", "--cpu-math", math,
           "--repeat", str(a.reps), "--layers", "1"] + (["--model", a.model] if a.model else []) + extra
    if late():
        return {}
    r = finished(pinned(threads, cmd))
    if r.returncode:
        emit(peer="h3av", what=what, math=math, threads=threads, error=r.stderr.strip()[-300:])
        return {}
    doc = json.loads(r.stdout)
    for x in doc["results"]:
        emit(peer="h3av", what=what, math=math, threads=threads, detail=doc["detail"], name=x["name"], rows=x["rows"],
             seconds=x["seconds"], gflops=x["gflops"],
             ops={k: [round(v["seconds"], 4), round(v["gflops"], 1)] for k, v in x["operations"].items()
                  if v["seconds"] > 0.02 * x["seconds"]})
    return {pick(x): x for x in doc["results"] if pick(x)}


def sdcpp(threads, *args):
    if not a.sdcpp or late():
        return None
    r = finished(pinned(threads, [a.sdcpp, "--threads", str(threads), "--reps", str(a.reps), *map(str, args)]))
    lines = [json.loads(x) for x in r.stdout.splitlines() if x.startswith("{")]
    for x in lines:
        emit(**x)
    if not lines:
        emit(peer="stable-diffusion.cpp", args=list(map(str, args)), error=r.stderr.strip()[-300:])
    return lines[-1] if lines else None


def note(case, threads, who, seconds):
    if seconds:
        key = (case, threads, who)
        results[key] = min(seconds, results.get(key, 1e30))


def late():
    return time.time() - started > a.budget


# ------------------------------------------------------------------------------------------------ cases
def run_rate(t, torch):
    for x in ours(t, "ops", "auto", ["--rows", str(a.rows[-1])], lambda x: x["name"]).values():
        note(f"GFLOP/s: {x['name']}, {x['rows']} rows", t, "h3av", x["seconds"])
    n = a.rows[-1]
    for dt in a.torch_types:
        s = torch("product", dt, n)
        note(f"product {n} x 5376 x 21504", t, f"torch {dt}", s)


def form(math):
    return ["--form", "q8_0"] if math.startswith("int8") or math.endswith("/q8_0") else []


def run_block(t, torch):
    for math in a.maths:
        extra = ["--rows", ",".join(map(str, a.rows))] + form(math)
        for n, x in ours(t, "dit", math, extra, lambda x: x["rows"]).items():
            note(f"block, {n} rows", t, f"h3av {math}", x["seconds"])
    for n in a.rows:
        for ty in a.types:
            x = sdcpp(t, "--part", "dit", "--layers", 1, "--type", ty, "--seq", n)
            note(f"block, {n} rows", t, f"sd.cpp {ty}", x and x["min_s"])
    for dt in a.torch_types:
        for n in a.rows:
            note(f"block, {n} rows", t, f"torch {dt}", torch("block", dt, n))


def run_encoder(t, torch):
    for math in [m for m in a.maths if m != "f32"]:
        for n, x in ours(t, "encoder", math, form(math), lambda x: x["rows"]).items():
            note(f"encoder layer, {n} tokens", t, f"h3av {math}", x["seconds"])
    for n in a.tokens:
        for ty in a.types:
            x = sdcpp(t, "--part", "llm", "--layers", 1, "--type", ty, "--tokens", n)
            note(f"encoder layer, {n} tokens", t, f"sd.cpp {ty}", x and x["min_s"])
    for dt in a.torch_types:
        for n in a.tokens:
            note(f"encoder layer, {n} tokens", t, f"torch {dt}", torch("encoder", dt, n))


def run_vae(t, torch):
    for x in ours(t, "vae", "auto", [], lambda x: x["name"]).values():
        note("VAE tile, one layer", t, "h3av auto", x["seconds"])
    x = sdcpp(t, "--part", "vae", "--layers", 1, "--type", "f16")
    note("VAE tile, one layer", t, "sd.cpp f16", x and x["min_s"])
    note("VAE tile, one layer", t, "torch f32", torch("vae", "f32", 1))


def run_sound(t, torch):
    for x in ours(t, "audio", "auto", [], lambda x: x["name"]).values():
        note("sound, 1 s stereo", t, "h3av auto", x["seconds"])
    x = sdcpp(t, "--part", "audio", "--seconds", 1) if not a.no_sdcpp_sound else None
    note("sound, 1 s stereo", t, "sd.cpp f16", x and x["min_s"])
    note("sound, 1 s stereo", t, "torch f32", torch("sound", "f32", 1))


def table():
    cases = list(dict.fromkeys(k[:2] for k in results))
    for case, t in cases:
        row = {w: s for (c, n, w), s in results.items() if (c, n) == (case, t)}
        best = min(row.values())
        print(f"{case:48} {t:3} threads  " + "  ".join(f"{w} {s:.4g} s" for w, s in row.items()) +
              ("" if len(row) < 2 else f"  | fastest {min(row, key=row.get)} ({best:.4g} s)"))


for t in a.threads:
    torch = (lambda *q: None) if a.no_torch else Torch(t)
    for _ in range(a.rounds):
        for part in a.parts.split(","):
            if not late():
                dict(rate=run_rate, block=run_block, encoder=run_encoder, vae=run_vae, sound=run_sound)[part](t, torch)
    if not a.no_torch:
        torch.close()
emit(seconds=time.time() - started, load=os.getloadavg()[0])
table()
