#!/usr/bin/env python3
"""Writes tests/data/formats/iq/gguf-iq.{gguf,expected.json}: random blocks of the IQ and TQ types and
what the gguf package decodes them to.

    pip install gguf==0.19.0
    tools/ggml/make_samples.py tests/data/formats/iq
"""
import json
import os
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

TYPES = ["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ1_M", "TQ1_0", "TQ2_0"]
HALF_AT = {"TQ1_0": 52, "TQ2_0": 64}  # others begin with it, but for IQ1_M
ROWS, COLS = 6, 512


def fnv1a64(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & (1 << 64) - 1
    return h


def blocks(rng, name):
    """Random bytes with a finite, ordinary half as the scale of each block."""
    n = ROWS * COLS // 256
    raw = rng.integers(0, 256, (n, GGML_QUANT_SIZES[T[name]][1]), dtype=np.uint8)
    for row in raw:
        half = struct.pack("<e", float(rng.uniform(-0.02, 0.02)))
        if name == "IQ1_M":
            for k in range(4):
                nibble = int.from_bytes(half, "little") >> (4 * k) & 15
                row[49 + 2 * k] = row[49 + 2 * k] & 15 | nibble << 4
        else:
            at = HALF_AT.get(name, 0)
            row[at:at + 2] = np.frombuffer(half, np.uint8)
    return raw


def main(folder):
    rng = np.random.default_rng(16)
    w = GGUFWriter(os.path.join(folder, "gguf-iq.gguf"), "minimax_h3")
    tensors = {}
    for name in TYPES:
        raw = blocks(rng, name)
        want = quants.dequantize(raw, T[name]).astype("<f4").reshape(ROWS, COLS)
        tensor = f"types.{name}.weight"
        w.add_tensor(tensor, raw.reshape(ROWS, -1), raw_dtype=T[name])
        flat = want.ravel()
        tensors[tensor] = {"shape": [ROWS, COLS], "sum": float(flat.astype("f8").sum()),
                           "sumabs": float(np.abs(flat.astype("f8")).sum()),
                           "first": [float(v) for v in flat[:4]], "last": [float(v) for v in flat[-4:]],
                           "fnv1a64": f"{fnv1a64(want.tobytes()):016x}"}
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with open(os.path.join(folder, "gguf-iq.expected.json"), "w") as f:
        json.dump({"form": "gguf-iq", "tensors": tensors}, f, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
