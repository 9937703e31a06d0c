#!/usr/bin/env python3
"""What PyTorch reaches for the products of a block on this GPU: milliseconds of F.linear in bf16 and of
_scaled_mm in e4m3 (one scale a row), and a device copy. To be run beside h3av-gpu-bench, on the same machine."""
import json, sys

import torch_env

torch_env.ensure()
import torch


def ms(f, reps=10):
    for _ in range(3):
        f()
    out = []
    for _ in range(reps):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); b.synchronize()
        out.append(a.elapsed_time(b))
    return sorted(out)[len(out) // 2]

def emit(**kw):
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in kw.items()}), flush=True)

emit(what="torch", version=torch.__version__, device=torch.cuda.get_device_name())
shapes = dict(qkv=(5376, 21504), out=(7168, 5376), fc1=(5376, 28672), fc2=(14336, 5376))
for M in [int(x) for x in sys.argv[1:]] or [3342, 14972, 39614]:
    total = dict(bf16=0.0, fp8=0.0)
    for name, (K, N) in shapes.items():
        x = torch.randn(M, K, device="cuda").bfloat16()
        w = (torch.randn(N, K, device="cuda") * 0.02).bfloat16()
        t = ms(lambda: torch.nn.functional.linear(x, w))
        x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
        sa, sb = torch.ones(M, 1, device="cuda"), torch.ones(1, N, device="cuda")
        t8 = ms(lambda: torch._scaled_mm(x8, w8.t(), scale_a=sa, scale_b=sb, out_dtype=torch.bfloat16, use_fast_accum=True))
        total["bf16"] += t; total["fp8"] += t8
        emit(what="torch_product", name=name, rows=M, bf16_ms=t, bf16_tflops=2e-9 * M * K * N / t, fp8_ms=t8, fp8_tflops=2e-9 * M * K * N / t8)
    emit(what="torch_products", rows=M, **{k + "_ms": v for k, v in total.items()})
a, b = (torch.empty(1 << 32, dtype=torch.uint8, device="cuda") for _ in range(2))
t = ms(lambda: b.copy_(a))
emit(what="torch_copy", gbs=2 * (1 << 32) / t * 1e-6)
