#!/usr/bin/env python3
"""diffusers' MiniMax-H3 on this GPU, with random weights, one JSON object a line: seconds of a step of 50 layers (a few
blocks round and round, eager and compiled), of the video decoder and of sound. To be run beside h3av-gpu-bench on the same
machine; steps are as long a run as its own, so that both have the same clocks.

    gpu_diffusers.py [--wheel FILE] [--parts steps,sound,video] [--rows N,N] [--blocks L] [--budget S] [--tiny]

Where diffusers is not installed its models are taken from its wheel (diffusers_wheel.py). --tiny runs on the processor and
prints sums of the results, which must be the same either way."""
import argparse, json, sys, time

import torch_env

torch_env.ensure()
ap = argparse.ArgumentParser()
ap.add_argument("--wheel", help="of diffusers, where it is not installed")
ap.add_argument("--parts", default="steps,sound,video")
ap.add_argument("--rows", default="14972,3342,39614")
ap.add_argument("--blocks", type=int, default=4)
ap.add_argument("--kinds", default="eager,compiled")
ap.add_argument("--repeat", type=int, default=2)
ap.add_argument("--budget", type=float, default=240)
ap.add_argument("--tiny", action="store_true", help="on the processor, to see that it runs")
a = ap.parse_args()
T0 = time.perf_counter()
try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed")
import diffusers_wheel

CUDA = not a.tiny and torch.cuda.is_available()
DEV = "cuda" if CUDA else "cpu"


def left():
    return a.budget - (time.perf_counter() - T0)


def emit(**kw):
    print(json.dumps({k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in kw.items()}), flush=True)


def filled(make, dtype):
    return diffusers_wheel.filled(make, dtype, DEV)


def seconds(f, repeat):
    """Least of the repetitions, the first one, which makes ready, and what came out."""
    best, first = float("inf"), None
    for i in range(repeat + 1):
        t = time.perf_counter()
        out = f()
        if CUDA:
            torch.cuda.synchronize()
        t = time.perf_counter() - t
        first, best = (t, best) if i == 0 else (first, min(best, t))
        if i and left() < t + 1:
            break
    return best, first, out


def timed(f, repeat, scale=1, key="s", need=5, **kw):
    if left() < need:
        emit(**kw, skipped="time")
        return
    try:
        s, first, out = seconds(f, repeat)
        emit(**kw, **{"first_s": first, key: s * scale}, **(dict(sum=float(out.double().sum())) if a.tiny else {}))
    except Exception as e:  # a machine without a compiler, too little memory: the other figures stay
        emit(**kw, error=f"{type(e).__name__}: {e}"[:300])


def steps():
    from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3TransformerBlock
    C, heads, d, ffn, t_dim = (96, 4, 24, 80, 32) if a.tiny else (5376, 56, 128, 14336, 2688)
    torch.manual_seed(1)
    blocks = [filled(lambda: MiniMaxH3TransformerBlock(C, heads, d, ffn, t_dim, 1e-5, 1e-5), torch.bfloat16)
              for _ in range(a.blocks)]
    layers = a.blocks if a.tiny else 50
    for kind in a.kinds.split(","):
        for S in [64] if a.tiny else [int(v) for v in a.rows.split(",")]:
            torch._dynamo.reset()  # each size is compiled for itself, as in a model that has only that
            calls = blocks if kind == "eager" else [torch.compile(b, dynamic=False) for b in blocks]
            torch.manual_seed(2)
            x = torch.randn(1, S, C, device=DEV, dtype=torch.bfloat16)
            at = torch.zeros(S, dtype=torch.long, device=DEV)
            at[S // 20:] = 2
            pe = tuple(torch.rand(S, d * 3 // 4, device=DEV) for _ in range(2))
            temb = torch.randn(2, t_dim, device=DEV)

            def step():
                y = x
                for i in range(layers):
                    y = calls[i % len(calls)](y, temb, at, pe)
                return y

            timed(step, a.repeat, 50 / layers, "s_50_layers", 5 if kind == "eager" else 20, what="diffusers_step", kind=kind,
                  rows=S, blocks=a.blocks, layers=layers)


def video():
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import AutoencoderKLMiniMaxH3
    tiny = dict(block_out_channels=(32,) * 6, decoder_num_layers=1, decoder_num_attention_heads=4) if a.tiny else {}
    torch.manual_seed(1)
    m = filled(lambda: AutoencoderKLMiniMaxH3(**tiny), torch.bfloat16)
    z = lambda t, h, w: torch.randn(1, 24, t, h, w, device=DEV).to(torch.bfloat16)
    tile, clip = z(7, *((4, 4) if a.tiny else (16, 16))), None if a.tiny else z(37, 30, 52)
    timed(lambda: m.decode(tile)[0], 4, what="diffusers_tile")
    if clip is not None:
        timed(lambda: m.decode(clip)[0], 1, need=12, what="diffusers_clip")


def sound():
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio
    tiny = dict(encoder_dim=8, latent_dim=256, decoder_dim=128) if a.tiny else {}
    torch.manual_seed(1)
    m = filled(lambda: AutoencoderKLMiniMaxH3Audio(**tiny), torch.float32)
    for s in [0.2] if a.tiny else [5.0, 10.0]:
        z = torch.randn(2, 32, round(40 * s), device=DEV)
        timed(lambda: m.decode(z)[0], 4, what="diffusers_sound", seconds_of_sound=s)


def main():
    who = diffusers_wheel.use(a.wheel)
    if not who:
        sys.exit("diffusers is not installed: name its wheel with --wheel")
    try:
        cudnn = torch.backends.cudnn.version() or 0
    except RuntimeError as e:  # another cuDNN came first
        sys.exit(str(e))
    emit(what="diffusers", who=who, torch=torch.__version__, device=torch.cuda.get_device_name() if CUDA else "cpu",
         cudnn=cudnn, import_s=time.perf_counter() - T0)
    with torch.no_grad():
        for part in a.parts.split(","):
            dict(steps=steps, video=video, sound=sound)[part]()
            if CUDA:
                torch.cuda.empty_cache()


main()
