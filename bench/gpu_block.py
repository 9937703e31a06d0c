#!/usr/bin/env python3
"""diffusers' MiniMax-H3 block on this GPU: seconds of a step of 50 layers, a few blocks with random weights round and
round, eager and compiled, one JSON object a line. To be run beside h3av-gpu-bench on the same machine: as long a run as its
steps, so that both have the same clocks.

    gpu_block.py [--source FILE] [--rows N,N] [--blocks L] [--kinds eager,compiled] [--budget S] [--tiny]

Where diffusers is not installed whole, the block's own source is taken from FILE: its wheel, or its
models/transformers/transformer_minimax_h3.py. What it imports of the framework (mixins, the dispatcher of attention) is
replaced by the few lines that it uses of them: PyTorch's scaled_dot_product_attention, as diffusers' default does.
--tiny runs on the processor and prints a sum of the result, which must be the same with diffusers and with its source alone
(--source with --alone)."""
import argparse, importlib.util, json, os, sys, tempfile, time, types, zipfile

import torch_env

torch_env.ensure()
ap = argparse.ArgumentParser()
ap.add_argument("--source", "--wheel", dest="source")
ap.add_argument("--alone", action="store_true", help="take --source even where diffusers is installed")
ap.add_argument("--rows", default="14972,3342,39614")
ap.add_argument("--blocks", type=int, default=4)
ap.add_argument("--kinds", default="eager,compiled")
ap.add_argument("--repeat", type=int, default=2)
ap.add_argument("--budget", type=float, default=180)
ap.add_argument("--tiny", action="store_true", help="on the processor, to see that it runs")
a = ap.parse_args()
T0 = time.perf_counter()
import torch
from torch import nn

PACKAGE = "h3_stand_in"
SOURCE = "models/transformers/transformer_minimax_h3.py"


def left():
    return a.budget - (time.perf_counter() - T0)


def emit(**kw):
    print(json.dumps({k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in kw.items()}), flush=True)


def dispatch(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **_):
    q, k, v = (t.permute(0, 2, 1, 3) for t in (query, key, value))
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal).permute(0, 2, 1, 3)


class SwiGLU(nn.Module):
    def __init__(self, dim, inner, bias):
        super().__init__()
        self.proj, self.activation = nn.Linear(dim, inner * 2, bias=bias), nn.SiLU()

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * self.activation(gate)


class FeedForward(nn.Module):
    def __init__(self, dim, inner_dim, activation_fn, bias):
        super().__init__()
        assert activation_fn == "swiglu"
        self.net = nn.ModuleList([SwiGLU(dim, inner_dim, bias), nn.Dropout(0.0), nn.Linear(inner_dim, dim, bias=bias)])

    def forward(self, x):
        for m in self.net:
            x = m(x)
        return x


class Processors:
    fused_projections = False

    def set_processor(self, processor):
        self.processor = processor


def stand_in(path):
    """The module at `path` inside a package that offers just what it imports."""
    class Any_:
        def __init__(self, *_, **__):
            pass

    def anything(*names):
        return {n: type(n, (Any_,), {}) for n in names}

    same = lambda f: f
    offers = {
        "configuration_utils": {"ConfigMixin": type("ConfigMixin", (), {}), "register_to_config": same},
        "loaders": anything("FromOriginalModelMixin", "PeftAdapterMixin"),
        "utils": {"BaseOutput": type("BaseOutput", (dict,), {}), "apply_lora_scale": lambda *_: same,
                  "logging": types.SimpleNamespace(get_logger=lambda _: None)},
        "models._modeling_parallel": anything("ContextParallelInput", "ContextParallelOutput"),
        "models.attention": {"AttentionMixin": type("AttentionMixin", (), {}), "AttentionModuleMixin": Processors,
                             "FeedForward": FeedForward},
        "models.attention_dispatch": {"dispatch_attention_fn": dispatch},
        "models.cache_utils": anything("CacheMixin"),
        "models.embeddings": {"TimestepEmbedding": nn.Module, "Timesteps": nn.Module},
        "models.modeling_utils": {"ModelMixin": nn.Module,
                                  "get_parameter_dtype": lambda m: next(m.parameters()).dtype},
    }
    for name in ("", "models", "models.transformers", *offers):
        m = types.ModuleType(f"{PACKAGE}.{name}".rstrip("."))
        m.__path__ = []
        m.__dict__.update(offers.get(name, {}))
        sys.modules[m.__name__] = m
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.models.transformers.h3", path)
    m = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = m
    spec.loader.exec_module(m)
    return m


def classes():
    if not a.alone:
        try:
            import diffusers
            from diffusers.models.transformers import transformer_minimax_h3 as m
            return m, f"diffusers {diffusers.__version__}"
        except Exception:  # not installed, or one of the many things that it imports is missing
            pass
    if not a.source or not os.path.exists(a.source):
        sys.exit("diffusers is not installed whole: name its wheel, or transformer_minimax_h3.py, with --source")
    who = f"{os.path.basename(a.source)}, its block alone"
    if not a.source.endswith(".whl"):
        return stand_in(a.source), who
    with tempfile.TemporaryDirectory() as t, zipfile.ZipFile(a.source) as z:
        return stand_in(z.extract(next(n for n in z.namelist() if n.endswith(SOURCE)), t)), who


def filled(make, device, dtype):
    with torch.device("meta"):
        m = make()
    m = m.to(dtype).to_empty(device=device)
    pool = torch.randn(1 << 22, device=device) * 0.02
    for name, p in m.named_parameters():
        flat = p.data.view(-1)
        if "norm" in name:
            flat.fill_(1)
            continue
        for i in range(0, flat.numel(), pool.numel()):
            flat[i:i + pool.numel()] = pool[:min(pool.numel(), flat.numel() - i)].to(dtype)
    return m.eval().requires_grad_(False)


def main():
    cuda = not a.tiny and torch.cuda.is_available()
    try:
        cudnn = torch.backends.cudnn.version() or 0
    except RuntimeError as e:  # another cuDNN comes first in LD_LIBRARY_PATH
        sys.exit(str(e))
    dev, dt = ("cuda" if cuda else "cpu"), torch.bfloat16
    h, heads, ffn, t_dim = (96, 4, 80, 32) if a.tiny else (5376, 56, 14336, 2688)
    d = 24 if a.tiny else 128
    m, who = classes()
    emit(what="diffusers", who=who, torch=torch.__version__, device=torch.cuda.get_device_name() if cuda else "cpu",
         cudnn=cudnn, import_s=time.perf_counter() - T0)
    torch.manual_seed(1)
    blocks = [filled(lambda: m.MiniMaxH3TransformerBlock(h, heads, d, ffn, t_dim, 1e-5, 1e-5), dev, dt)
              for _ in range(a.blocks)]
    layers = a.blocks if a.tiny else 50

    def step(calls, x, *args):
        for i in range(layers):
            x = calls[i % len(calls)](x, *args)
        return x

    def seconds(calls, *args):
        """Least of the repetitions, after one that makes ready; and what came out."""
        best, first = float("inf"), None
        for i in range(a.repeat + 1):
            t = time.perf_counter()
            out = step(calls, *args)
            if cuda:
                torch.cuda.synchronize()
            t = time.perf_counter() - t
            first, best = (t, best) if i == 0 else (first, min(best, t))
            if i and left() < t + 1:
                break
        return best, first, out

    with torch.no_grad():
        for kind in a.kinds.split(","):
            for S in ([64] if a.tiny else [int(v) for v in a.rows.split(",")]):
                if left() < (5 if kind == "eager" else 20):
                    emit(what="diffusers_step", kind=kind, rows=S, skipped="time")
                    continue
                torch._dynamo.reset()  # one size after the other, each compiled for itself as in a model of one size
                calls = blocks if kind == "eager" else [torch.compile(b, dynamic=False) for b in blocks]
                torch.manual_seed(2)
                x = torch.randn(1, S, h, device=dev, dtype=dt)
                rows = torch.zeros(S, dtype=torch.long, device=dev)
                rows[S // 20:] = 2
                pe = tuple(torch.rand(S, d * 3 // 4, device=dev) for _ in range(2))
                temb = torch.randn(2, t_dim, device=dev)
                try:
                    s, first, out = seconds(calls, x, temb, rows, pe)
                    emit(what="diffusers_step", kind=kind, rows=S, blocks=a.blocks, layers=layers, first_s=first,
                         s_50_layers=s * 50 / layers, **(dict(sum=float(out.double().sum())) if a.tiny else {}))
                except Exception as e:  # a machine without a compiler: the eager figure stays
                    emit(what="diffusers_step", kind=kind, rows=S, error=f"{type(e).__name__}: {e}"[:300])
                out = x = None


main()
