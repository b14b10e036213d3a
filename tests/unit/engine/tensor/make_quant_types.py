#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes quant_types.bin: random blocks of every quantised type, with their values by the Python package gguf.

For each type: its number, the number of blocks and of values (int32), the blocks, the values (float32), little-endian.
Scales are finite half-precision numbers. The exponent of MXFP4 is at least 2 (rule A2 makes the two smallest zero).
Needs gguf and numpy.
"""
import pathlib
import struct

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

N_BLOCKS = 4
# Offsets of half-precision numbers in a block.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ3_XXS: [0], T.IQ1_S: [0],
    T.IQ4_NL: [0], T.IQ3_S: [0], T.IQ2_S: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64],
}


def random_blocks(rng, kind):
    n_bytes = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (N_BLOCKS, n_bytes), dtype=np.uint8)
    if kind == T.IQ1_M:  # the scale is the top four bits of four 16-bit words; the highest four contain the exponent
        blocks[:, 55] = blocks[:, 55] & 0x0F | np.where(blocks[:, 55] & 0x80, 0x20, 0xA0).astype(np.uint8)
    if kind == T.MXFP4:
        blocks[:, 0] = np.clip(blocks[:, 0], 2, 250)  # above, values are infinite
        blocks[0, 0] = 2
    for at in HALVES.get(kind, []):
        halves = (rng.standard_normal(N_BLOCKS) * 10.0 ** rng.integers(-6, 3, N_BLOCKS)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(N_BLOCKS, 2)
    return blocks


def main():
    rng = np.random.default_rng(4)
    with open(pathlib.Path(__file__).parent / "quant_types.bin", "wb") as out:
        for kind in [*HALVES, T.IQ1_M, T.MXFP4, T.BF16, T.F16]:
            blocks = random_blocks(rng, kind)
            if kind in (T.BF16, T.F16):
                blocks = rng.standard_normal(64).astype(np.float32)
                blocks = gguf.quants.quantize(blocks, kind).view(np.uint8).reshape(64, 2)
            values = gguf.quants.dequantize(blocks, kind).astype("<f4")
            assert np.isfinite(values).all()
            out.write(struct.pack("<3i", kind, len(blocks), values.size))
            out.write(blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
