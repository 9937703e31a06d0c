#!/usr/bin/env python3
"""Writes src/tensor/ggml_grids.h.

    pip install gguf==0.19.0
    tools/ggml/make_grids.py > src/tensor/ggml_grids.h

ggml's IQ types store indices into grids: lists of vectors that were found by search, so no formula
gives them. The numbers come from the gguf package, its own decoders' tables. A vector's elements take
one of few values; what is written is the index among them, 2 bits each for 8 elements or 3 bits each
for 4, lowest first, one 16-bit number a vector. What the values are is checked here against the
arithmetic that decode.c replaces them by.
"""
import sys

import numpy as np
from gguf import quants

#       name      class             bits  value of an index, as decode.c computes it
GRIDS = [("iq2_xxs", quants.IQ2_XXS, 2, lambda k: 8 + 17 * k + (k >> 1)),
         ("iq2_xs", quants.IQ2_XS, 2, lambda k: 8 + 17 * k + (k >> 1)),
         ("iq2_s", quants.IQ2_S, 2, lambda k: 8 + 17 * k + (k >> 1)),
         ("iq3_xxs", quants.IQ3_XXS, 3, lambda k: 4 + 8 * k + 2 * (k == 7)),
         ("iq3_s", quants.IQ3_S, 3, lambda k: 2 * k + 1),
         ("iq1", quants.IQ1_S, 2, lambda k: k - 1)]
PER_LINE = 12


def packed(cls, bits, value):
    """One number a vector; stops when a value is not the one that decode.c would compute."""
    cls.init_grid()
    rows = cls.grid.reshape(cls.grid_shape).astype(int)
    index = {value(k): k for k in range(len(cls.grid_map))}
    assert sorted(index) == sorted(cls.grid_map), cls.grid_map
    return [sum(index[v] << (bits * j) for j, v in enumerate(row)) for row in rows]


def main():
    # The sign byte of seven stored bits: the eighth makes the number of signs even.
    signs = np.frombuffer(quants.IQ2_XXS.ksigns, dtype=np.uint8)
    assert all(signs[i] == i | (bin(i).count("1") & 1) << 7 for i in range(128))
    out = ["/** Grids of ggml's IQ types, an index among few values for each element; written by",
           " * tools/ggml/make_grids.py. Included where H3_GRID says what a table is (decode.c, and the",
           " * decoder of a device). */"]
    for name, cls, bits, value in GRIDS:
        words = packed(cls, bits, value)
        out.append(f"/* {len(words)} vectors of {cls.grid_shape[1]}, {bits} bits an element */")
        out.append(f"H3_GRID(grid_{name}, {len(words)}) = {{")
        for at in range(0, len(words), PER_LINE):
            out.append("    " + ", ".join(f"0x{w:04x}" for w in words[at:at + PER_LINE]) + ",")
        out.append("};")
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
