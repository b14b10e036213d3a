#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file with random weights, for benchmarks and tests (Python standard library only).

    make_random_model.py OUT [--arch llama] [--type Q8_0] [--layers 22] [--width 2048] [--ff 5632] [--heads 32]
                             [--kv-heads 4] [--vocab 32000] [--context 8192] [--experts 8 --experts-used 2]
                             [--parts 5] [--sparse] [--predictors 1024 --active 0.1]

The default is a 1.1B model of llama. All matrices have the same type, but where a row is no whole number of its blocks:
there it is Q8_0. Their elements spread by about 0.02 around 0, so that nothing overflows. With --experts, each layer has
that many experts of width --ff. Values repeat after some megabytes, which does not change the speed. The vocabulary has a
token for each byte, and numbered words. With --sparse the matrices are zeros that take no disk space, which is enough for
plans. With --parts, OUT is a prefix: OUT-00001-of-00005.gguf and so on, with equal numbers of bytes.

--predictors makes a file of PowerInfer (llama): each layer has a predictor with so many hidden numbers, in F16, which
expects the share --active of the neurons to be active, more or less, whatever the token is.

--arch deepseek2 is the shape of DeepSeek V3, in small: latent attention (heads of 128 + 64 columns for keys and 128 for
values; 512 latent columns, 768 for queries), one dense layer of width 4 * --ff, then experts in 8 groups, of which 4 are
used, with a shared expert and a bias of choice; YaRN. --arch qwen3moe has heads of 128 columns, whatever the width.
"""

import argparse
import math
import random
import statistics
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


SPREAD = 0.02  # standard deviation of elements


def predictor_mean(a):
    """Mean of the elements of fc2. A hidden number is the ReLU of a normal one: half of the numbers are zero. So a score
    has a mean of mean * hidden * 0.399 and a standard deviation of SPREAD * sqrt(hidden * 0.5), in units of the hidden
    numbers' spread. A score of 0 is what makes a neuron active."""
    return statistics.NormalDist().inv_cdf(a.active) * SPREAD * math.sqrt(0.5 / a.predictors) / 0.3989


def random_blocks(type_name, rng, mean=0.0):
    """Makes some megabytes of valid blocks."""
    _, elems, size, scales = TYPES[type_name]
    if elems == 1:
        values = [rng.gauss(mean, SPREAD) for _ in range(1 << 18)]
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


def fit(a, columns):
    """The type of a matrix with so many columns."""
    return a.type if columns % TYPES[a.type][1] == 0 else "Q8_0"


def glu(a, name, ff, n=1):
    """The three matrices of a feed-forward network, or of n experts."""
    for part, columns, rows in (("gate", a.width, ff), ("up", a.width, ff), ("down", ff, a.width)):
        yield name % part, fit(a, columns), columns, rows, n


def llama_layer(a, blk, _):
    kv = a.width // a.heads * a.kv_heads
    yield blk + "attn_norm.weight", "F32", a.width, 1, 0
    for name, rows in (("q", a.width), ("k", kv), ("v", kv), ("output", a.width)):
        yield f"{blk}attn_{name}.weight", fit(a, a.width), a.width, rows, 1
    yield blk + "ffn_norm.weight", "F32", a.width, 1, 0
    if a.experts:
        yield blk + "ffn_gate_inp.weight", fit(a, a.width), a.width, a.experts, 1
    if a.predictors:
        for name in ("gate", "up", "down_t"):
            yield f"{blk}ffn_{name}.weight", fit(a, a.width), a.width, a.ff, 1
        yield blk + "fc1.weight", "F16", a.width, a.predictors, 1
        yield blk + "fc2.weight", "F16", a.predictors, a.ff, 1
        return
    yield from glu(a, blk + ("ffn_%s_exps.weight" if a.experts else "ffn_%s.weight"), a.ff, a.experts or 1)


HEAD = 128  # columns of a head of qwen3moe


def qwen3moe_layer(a, blk, _):
    yield blk + "attn_norm.weight", "F32", a.width, 1, 0
    for name, heads in (("q", a.heads), ("k", a.kv_heads), ("v", a.kv_heads)):
        yield f"{blk}attn_{name}.weight", fit(a, a.width), a.width, heads * HEAD, 1
    yield blk + "attn_q_norm.weight", "F32", HEAD, 1, 0
    yield blk + "attn_k_norm.weight", "F32", HEAD, 1, 0
    yield blk + "attn_output.weight", fit(a, a.heads * HEAD), a.heads * HEAD, a.width, 1
    yield blk + "ffn_norm.weight", "F32", a.width, 1, 0
    yield blk + "ffn_gate_inp.weight", "F32", a.width, a.experts, 1
    yield from glu(a, blk + "ffn_%s_exps.weight", a.ff, a.experts)


K_NOPE, ROPE, V_HEAD, LATENT, Q_LATENT = 128, 64, 128, 512, 768  # columns of latent attention
DENSE_LAYERS, GROUPS, GROUPS_USED = 1, 8, 4


def deepseek2_layer(a, blk, layer):
    yield blk + "attn_norm.weight", "F32", a.width, 1, 0
    yield blk + "attn_q_a.weight", fit(a, a.width), a.width, Q_LATENT, 1
    yield blk + "attn_q_a_norm.weight", "F32", Q_LATENT, 1, 0
    yield blk + "attn_q_b.weight", fit(a, Q_LATENT), Q_LATENT, a.heads * (K_NOPE + ROPE), 1
    yield blk + "attn_kv_a_mqa.weight", fit(a, a.width), a.width, LATENT + ROPE, 1
    yield blk + "attn_kv_a_norm.weight", "F32", LATENT, 1, 0
    yield blk + "attn_k_b.weight", fit(a, K_NOPE), K_NOPE, LATENT, a.heads
    yield blk + "attn_v_b.weight", fit(a, LATENT), LATENT, V_HEAD, a.heads
    yield blk + "attn_output.weight", fit(a, a.heads * V_HEAD), a.heads * V_HEAD, a.width, 1
    yield blk + "ffn_norm.weight", "F32", a.width, 1, 0
    if layer < DENSE_LAYERS:
        yield from glu(a, blk + "ffn_%s.weight", 4 * a.ff)
        return
    yield blk + "ffn_gate_inp.weight", "F32", a.width, a.experts, 1
    yield blk + "exp_probs_b.bias", "F32", a.experts, 1, 0
    yield from glu(a, blk + "ffn_%s_exps.weight", a.ff, a.experts)
    yield from glu(a, blk + "ffn_%s_shexp.weight", a.ff)


def tensors(a):
    """(name, type, columns, rows, matrices; 0: a vector)"""
    layer = {"llama": llama_layer, "deepseek2": deepseek2_layer, "qwen3moe": qwen3moe_layer}[a.arch]
    yield "token_embd.weight", fit(a, a.width), a.width, a.vocab, 1
    for i in range(a.layers):
        yield from layer(a, f"blk.{i}.", i)
    yield "output_norm.weight", "F32", a.width, 1, 0
    yield "output.weight", fit(a, a.width), a.width, a.vocab, 1


def deepseek2_keys(a):
    numbers = {
        "attention.q_lora_rank": Q_LATENT, "attention.kv_lora_rank": LATENT, "attention.key_length": LATENT + ROPE,
        "attention.value_length": LATENT, "attention.key_length_mla": K_NOPE + ROPE,
        "attention.value_length_mla": V_HEAD, "leading_dense_block_count": DENSE_LAYERS,
        "expert_feed_forward_length": a.ff, "expert_shared_count": 1, "expert_group_count": GROUPS,
        "expert_group_used_count": GROUPS_USED, "expert_gating_func": 2, "rope.scaling.original_context_length": 4096,
    }
    reals = {"expert_weights_scale": 2.5, "rope.freq_base": 10000.0, "rope.scaling.factor": 40.0,
             "rope.scaling.yarn_log_multiplier": 0.1}
    return ([key("deepseek2." + name, "u32", value) for name, value in numbers.items()] +
            [key("deepseek2." + name, "f32", value) for name, value in reals.items()] +
            [key("deepseek2.rope.scaling.type", "string", "yarn"),
             text("deepseek2.expert_weights_norm") + struct.pack("<I?", 7, True)])


def qwen3moe_keys(a):
    return [key("qwen3moe." + name, "u32", value) for name, value in (
        ("attention.key_length", HEAD), ("attention.value_length", HEAD), ("expert_feed_forward_length", a.ff))]


def model_keys(a):
    own = {"llama": lambda _: [], "deepseek2": deepseek2_keys, "qwen3moe": qwen3moe_keys}[a.arch]
    rotated = {"llama": a.width // a.heads, "deepseek2": ROPE, "qwen3moe": HEAD}[a.arch]
    latent = a.arch == "deepseek2"
    keys = [
        key("general.architecture", "string", a.arch),
        key("general.name", "string", f"random {a.type}"),
        key("general.alignment", "u32", ALIGNMENT),
    ]
    keys += [key(f"{a.arch}.{name}", "u32", value) for name, value in (
        ("block_count", a.layers), ("context_length", a.context), ("embedding_length", a.width),
        ("feed_forward_length", 4 * a.ff if latent else a.ff), ("attention.head_count", a.heads),
        ("attention.head_count_kv", 1 if latent else a.kv_heads),
        ("rope.dimension_count", rotated), ("vocab_size", a.vocab))]
    keys.append(key(f"{a.arch}.attention.layer_norm_rms_epsilon", "f32", 1e-5))
    if a.experts:
        keys += [key(f"{a.arch}.expert_count", "u32", a.experts),
                 key(f"{a.arch}.expert_used_count", "u32", a.experts_used)]
    return keys + own(a) + vocabulary(a.vocab)


def tensor_bytes(type_name, columns, rows, n):
    return columns * rows * max(n, 1) // TYPES[type_name][1] * TYPES[type_name][2]


def header(keys, rows, a):
    infos, offset = [], 0
    for name, kind, columns, n_rows, n in rows:
        dims = [columns, n_rows, n][: 1 if n == 0 else 2 if n == 1 else 3]
        infos.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[kind][0], offset))
        offset += -(-tensor_bytes(kind, columns, n_rows, n) // ALIGNMENT) * ALIGNMENT
    return ((b"PWRI" if a.predictors else b"GGUF") + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys) +
            b"".join(infos))


def write_file(path, keys, rows, a, pools, rng):
    with open(path, "wb") as f:
        f.write(header(keys, rows, a))
        for name, kind, columns, n_rows, n in rows:
            f.write(bytes(-f.tell() % ALIGNMENT))
            if n == 0 and name.endswith(".weight"):
                f.write(struct.pack("<f", 1.0) * columns)
            elif a.sparse:
                f.seek(tensor_bytes(kind, columns, n_rows, n), 1)
            else:
                mean = predictor_mean(a) if name.endswith("fc2.weight") else 0.0
                if (kind, mean) not in pools:
                    pools[kind, mean] = random_blocks(kind, rng, mean)
                write_tensor(f, kind, columns * n_rows * max(n, 1), pools[kind, mean], rng)
        f.write(bytes(-f.tell() % ALIGNMENT))
        f.truncate(f.tell())


def rewrite_predictors(path, a):
    """Gives the predictors of a file that this program has written with the same options another share a.active."""
    rng, rows = random.Random(2), list(tensors(a))
    pool = random_blocks("F16", rng, predictor_mean(a))
    at = len(header(model_keys(a), rows, a))
    with open(path, "r+b") as f:
        for name, kind, columns, n_rows, n in rows:
            at += -at % ALIGNMENT
            if name.endswith("fc2.weight"):
                f.seek(at)
                write_tensor(f, kind, columns * n_rows, pool, rng)
            at += tensor_bytes(kind, columns, n_rows, n)


def cut(rows, n):
    """The tensors of each of n parts."""
    total, done, parts = sum(tensor_bytes(*row[1:]) for row in rows), 0, [[] for _ in range(n)]
    for row in rows:
        parts[min(done * n // total, n - 1)].append(row)
        done += tensor_bytes(*row[1:])
    return parts


def split_keys(idx, n, n_tensors):
    return [text("split.no") + struct.pack("<IH", 2, idx), text("split.count") + struct.pack("<IH", 2, n),
            text("split.tensors.count") + struct.pack("<Ii", 5, n_tensors)]


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--arch", choices=("llama", "deepseek2", "qwen3moe"), default="llama")
    p.add_argument("--type", choices=sorted(TYPES), default="Q8_0")
    for name, value in (("layers", 22), ("width", 2048), ("ff", 5632), ("heads", 32), ("kv-heads", 4),
                        ("vocab", 32000), ("context", 8192), ("experts", 0), ("experts-used", 2), ("parts", 0),
                        ("predictors", 0)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--sparse", action="store_true")
    p.add_argument("--active", type=float, default=0.1)
    return p


def main():
    p = parser()
    a = p.parse_args()
    if a.predictors and (a.arch != "llama" or a.experts or not 0 < a.active < 1):
        p.error("--predictors needs --arch llama without experts, and a share --active between 0 and 1")
    rng, pools, rows = random.Random(1), {}, list(tensors(a))
    if not a.parts:
        write_file(a.out, model_keys(a), rows, a, pools, rng)
        return
    for i, part in enumerate(cut(rows, a.parts)):
        keys = (model_keys(a) if i == 0 else []) + split_keys(i, a.parts, len(rows))
        write_file(f"{a.out}-{i + 1:05d}-of-{a.parts:05d}.gguf", keys, part, a, pools, rng)


if __name__ == "__main__":
    main()
