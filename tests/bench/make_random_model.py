#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a llama-architecture GGUF file with random weights, for benchmarks (Python standard library only).

    make_random_model.py OUT [--type Q8_0] [--layers 22] [--width 2048] [--ff 5632] [--heads 32] [--kv-heads 4]
                             [--vocab 32000] [--context 8192] [--experts 8 --experts-used 2] [--sparse]

The default is a 1.1B model. All matrices have the same type. Their elements spread by about 0.02 around 0, so that
nothing overflows. With --experts, each layer has that many experts of width --ff. Values repeat after some megabytes,
which does not change the speed. The vocabulary has a token for each byte, and numbered words. With --sparse the
matrices are zeros that take no disk space, which is enough for plans.
"""

import argparse
import random
import struct

# name: (type number, block elements, block bytes, ((offset of a float16 scale in a block, scale), ...))
TYPES = {
    "F32": (0, 1, 4, ()),
    "F16": (1, 1, 2, ()),
    "BF16": (30, 1, 2, ()),
    "Q4_0": (2, 32, 18, ((0, 0.0045),)),
    "Q4_1": (3, 32, 20, ((0, 0.0045), (2, -0.034))),
    "Q5_0": (6, 32, 22, ((0, 0.0022),)),
    "Q5_1": (7, 32, 24, ((0, 0.0022), (2, -0.034))),
    "Q8_0": (8, 32, 34, ((0, 0.0003),)),
    "Q2_K": (10, 256, 84, ((80, 0.0025), (82, 0.0037))),
    "Q3_K": (11, 256, 110, ((108, 0.0006),)),
    "Q4_K": (12, 256, 144, ((0, 0.0001), (2, 0.00075))),
    "Q5_K": (13, 256, 176, ((0, 0.00005), (2, 0.00075))),
    "Q6_K": (14, 256, 210, ((208, 0.00002),)),
    "IQ4_NL": (20, 32, 18, ((0, 0.0003),)),
    "IQ4_XS": (23, 256, 136, ((0, 0.00002),)),
    "MXFP4": (39, 32, 17, ()),
}
MXFP4_EXPONENT = 119  # 2 ** (119 - 127) times elements up to 6
FIRST_WORD = 3 + 256  # after three control tokens and the bytes
ALIGNMENT = 32


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def key(name, kind, value):
    if kind == "string":
        return text(name) + struct.pack("<I", 8) + text(value)
    number, form = {"u32": (4, "<I"), "f32": (6, "<f")}[kind]
    return text(name) + struct.pack("<I", number) + struct.pack(form, value)


def array(name, number, values):
    """number: the type of the elements. values: a list with the bytes of each element."""
    return text(name) + struct.pack("<IIQ", 9, number, len(values)) + b"".join(values)


def vocabulary(n):
    """Keys of a SentencePiece vocabulary: 2 unknown, 3 control, 6 byte, 1 plain."""
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    words = (words + [f"\u2581w{i}" for i in range(FIRST_WORD, n)])[:n]
    kinds = (kinds + [1] * n)[:n]
    return [
        key("tokenizer.ggml.model", "string", "llama"),
        array("tokenizer.ggml.tokens", 8, [text(w) for w in words]),
        array("tokenizer.ggml.scores", 6, [struct.pack("<f", -i) for i in range(n)]),
        array("tokenizer.ggml.token_type", 5, [struct.pack("<i", k) for k in kinds]),
        key("tokenizer.ggml.bos_token_id", "u32", 1),
        key("tokenizer.ggml.eos_token_id", "u32", 2),
        key("tokenizer.ggml.unknown_token_id", "u32", 0),
    ]


def random_blocks(type_name, rng):
    """Makes some megabytes of valid blocks."""
    _, elems, size, scales = TYPES[type_name]
    if elems == 1:
        values = [rng.gauss(0, 0.02) for _ in range(1 << 18)]
        if type_name == "F32":
            return struct.pack(f"<{len(values)}f", *values)
        if type_name == "BF16":  # the upper half of a float32
            return b"".join(struct.pack("<f", v)[2:] for v in values)
        return struct.pack(f"<{len(values)}e", *values)
    data = bytearray(rng.randbytes(size * 16384))
    for start in range(0, len(data), size):
        for offset, scale in scales:
            data[start + offset : start + offset + 2] = struct.pack("<e", scale * rng.uniform(0.5, 1.5))
        if type_name == "MXFP4":
            data[start] = MXFP4_EXPONENT + rng.randrange(2)
    return bytes(data)


def write_tensor(f, type_name, n_elems, pool, rng):
    _, elems, size, _ = TYPES[type_name]
    left = n_elems // elems * size
    while left > 0:
        start = rng.randrange(len(pool) // size) * size
        part = pool[start : start + left]
        f.write(part)
        left -= len(part)


def tensors(a):
    """(name, columns, rows, matrices; 0: a vector)"""
    kv = a.width // a.heads * a.kv_heads
    yield "token_embd.weight", a.width, a.vocab, 1
    for i in range(a.layers):
        yield f"blk.{i}.attn_norm.weight", a.width, 1, 0
        yield f"blk.{i}.attn_q.weight", a.width, a.width, 1
        yield f"blk.{i}.attn_k.weight", a.width, kv, 1
        yield f"blk.{i}.attn_v.weight", a.width, kv, 1
        yield f"blk.{i}.attn_output.weight", a.width, a.width, 1
        yield f"blk.{i}.ffn_norm.weight", a.width, 1, 0
        if a.experts:
            yield f"blk.{i}.ffn_gate_inp.weight", a.width, a.experts, 1
        suffix, n = ("_exps", a.experts) if a.experts else ("", 1)
        yield f"blk.{i}.ffn_gate{suffix}.weight", a.width, a.ff, n
        yield f"blk.{i}.ffn_up{suffix}.weight", a.width, a.ff, n
        yield f"blk.{i}.ffn_down{suffix}.weight", a.ff, a.width, n
    yield "output_norm.weight", a.width, 1, 0
    yield "output.weight", a.width, a.vocab, 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--type", choices=sorted(TYPES), default="Q8_0")
    for name, value in (("layers", 22), ("width", 2048), ("ff", 5632), ("heads", 32), ("kv-heads", 4),
                        ("vocab", 32000), ("context", 8192), ("experts", 0), ("experts-used", 2)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--sparse", action="store_true")
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
    ] + vocabulary(a.vocab)
    if a.experts:
        keys += [key("llama.expert_count", "u32", a.experts), key("llama.expert_used_count", "u32", a.experts_used)]
    infos, offset = [], 0
    for name, columns, rows, n in tensors(a):
        number, elems, size = TYPES[a.type][:3] if n else (0, 1, 4)
        dims = [columns, rows, n][: 1 if n == 0 else 2 if n == 1 else 3]
        infos.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
        offset += -(-(columns * rows * max(n, 1) // elems * size) // ALIGNMENT) * ALIGNMENT
    with open(a.out, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos))
        pool = None if a.sparse else random_blocks(a.type, rng)
        for _, columns, rows, n in tensors(a):
            f.write(bytes(-f.tell() % ALIGNMENT))
            if n == 0:
                f.write(struct.pack("<f", 1.0) * columns)
            elif a.sparse:
                f.seek(columns * rows * n // TYPES[a.type][1] * TYPES[a.type][2], 1)
            else:
                write_tensor(f, a.type, columns * rows * n, pool, rng)
        f.write(bytes(-f.tell() % ALIGNMENT))
        f.truncate(f.tell())


if __name__ == "__main__":
    main()
