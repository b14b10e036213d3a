#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a llama-architecture GGUF file with random weights, for benchmarks (Python standard library only).

    make_random_model.py OUT [--type Q8_0] [--layers 22] [--width 2048] [--ff 5632] [--heads 32] [--kv-heads 4]
                             [--vocab 32000] [--context 4096]

The default is a 1.1B model. Values repeat after some megabytes: benchmarks do not care.
"""

import argparse
import random
import struct

# name: (type number, block elements, block bytes, offsets of the float16 scales in a block, scale)
TYPES = {
    "F16": (1, 1, 2, None, 0),
    "Q8_0": (8, 32, 34, (0,), 0.0003),
    "Q4_K": (12, 256, 144, (0, 2), 0.0001),
    "Q6_K": (14, 256, 210, (208,), 0.00002),
}
ALIGNMENT = 32


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def key(name, kind, value):
    if kind == "string":
        return text(name) + struct.pack("<I", 8) + text(value)
    number, form = {"u32": (4, "<I"), "f32": (6, "<f")}[kind]
    return text(name) + struct.pack("<I", number) + struct.pack(form, value)


def random_blocks(type_name, rng):
    """Some megabytes of valid blocks."""
    _, _, size, scales, scale = TYPES[type_name]
    if scales is None:
        return b"".join(struct.pack("<e", rng.gauss(0, 0.02)) for _ in range(1 << 18))
    data = bytearray(rng.randbytes(size * 16384))
    for start in range(0, len(data), size):
        for offset in scales:
            data[start + offset : start + offset + 2] = struct.pack("<e", scale * rng.uniform(0.5, 1.5))
    return bytes(data)


def write_tensor(f, type_name, n_elems, pool, rng):
    _, elems, size, _, _ = TYPES[type_name]
    left = n_elems // elems * size
    while left > 0:
        start = rng.randrange(len(pool) // size) * size
        part = pool[start : start + left]
        f.write(part)
        left -= len(part)


def tensors(a):
    """(name, columns, rows, is a vector)"""
    kv = a.width // a.heads * a.kv_heads
    yield "token_embd.weight", a.width, a.vocab, False
    for i in range(a.layers):
        yield f"blk.{i}.attn_norm.weight", a.width, 1, True
        yield f"blk.{i}.attn_q.weight", a.width, a.width, False
        yield f"blk.{i}.attn_k.weight", a.width, kv, False
        yield f"blk.{i}.attn_v.weight", a.width, kv, False
        yield f"blk.{i}.attn_output.weight", a.width, a.width, False
        yield f"blk.{i}.ffn_norm.weight", a.width, 1, True
        yield f"blk.{i}.ffn_gate.weight", a.width, a.ff, False
        yield f"blk.{i}.ffn_up.weight", a.width, a.ff, False
        yield f"blk.{i}.ffn_down.weight", a.ff, a.width, False
    yield "output_norm.weight", a.width, 1, True
    yield "output.weight", a.width, a.vocab, False


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--type", choices=sorted(TYPES), default="Q8_0")
    for name, value in (("layers", 22), ("width", 2048), ("ff", 5632), ("heads", 32), ("kv-heads", 4),
                        ("vocab", 32000), ("context", 4096)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    rng = random.Random(1)
    keys = [
        key("general.architecture", "string", "llama"),
        key("general.name", "string", f"random {a.type}"),
        key("general.alignment", "u32", ALIGNMENT),
        key("llama.block_count", "u32", a.layers),
        key("llama.context_length", "u32", a.context),
        key("llama.embedding_length", "u32", a.width),
        key("llama.feed_forward_length", "u32", a.ff),
        key("llama.attention.head_count", "u32", a.heads),
        key("llama.attention.head_count_kv", "u32", a.kv_heads),
        key("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
        key("llama.rope.dimension_count", "u32", a.width // a.heads),
        key("llama.vocab_size", "u32", a.vocab),
        key("tokenizer.ggml.model", "string", "no_vocab"),
    ]
    infos, offset = [], 0
    for name, columns, rows, vector in tensors(a):
        number, elems, size = (0, 1, 4) if vector else TYPES[a.type][:3]
        shape = struct.pack("<IQ", 1, columns) if vector else struct.pack("<IQQ", 2, columns, rows)
        infos.append(text(name) + shape + struct.pack("<IQ", number, offset))
        offset += -(-(columns * rows // elems * size) // ALIGNMENT) * ALIGNMENT
    with open(a.out, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos))
        pool = random_blocks(a.type, rng)
        for _, columns, rows, vector in tensors(a):
            f.write(bytes(-f.tell() % ALIGNMENT))
            if vector:
                f.write(struct.pack("<f", 1.0) * columns)
            else:
                write_tensor(f, a.type, columns * rows, pool, rng)
        f.write(bytes(-f.tell() % ALIGNMENT))


if __name__ == "__main__":
    main()
