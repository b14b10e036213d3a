# SPDX-License-Identifier: Apache-2.0
"""Writes small llama models as GGUF files: random weights, a vocabulary of bytes and a few words, or broken on purpose.

Words have much larger logits than bytes, so what such a model writes is text like " mill river stone".
"""
import array
import random
import struct

F32, I8 = 0, 24  # tensor types
U32, F32_VALUE, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5  # types of metadata values

WORDS = ["mill", "river", "stone", "wheel", "owl", "water", "night", "bridge", "boat", "bread", "fox", "lamp", "rain",
         "garden", "song", "door", "wind", "field", "bell", "tree"]
FIRST_BYTE, FIRST_WORD = 3, 3 + 256
VOCAB = FIRST_WORD + len(WORDS)
UNK, BOS, EOS = 0, 1, 2


def _string(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind, v):
    if kind == STRING:
        return _string(v)
    return struct.pack({U32: "<I", I32: "<i", F32_VALUE: "<f", BOOL: "<?"}[kind], v)


class Gguf:
    """Metadata and tensors, and their bytes as a file."""

    def __init__(self):
        self.keys, self.tensors = [], []

    def key(self, name, kind, value):
        self.keys.append(_string(name) + struct.pack("<I", kind) + _value(kind, value))

    def keys_of(self, name, kind, values):
        body = b"".join(_value(kind, v) for v in values)
        self.keys.append(_string(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body)

    def tensor(self, name, shape, kind, data):
        self.tensors.append((name, shape, kind, data))

    def bytes(self, magic="GGUF"):
        table, data = b"", b""
        for name, shape, kind, body in self.tensors:
            data += bytes(-len(data) % 32)
            table += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
            table += struct.pack("<IQ", kind, len(data))
            data += body
        head = magic.encode() + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys) + table
        return head + bytes(-len(head) % 32) + data


def _tokens():
    return (["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581" + w for w in WORDS])


def _add_tokenizer(g, eos, n_extra_tokens):
    tokens = _tokens() + [f"extra{i}" for i in range(n_extra_tokens)]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - FIRST_WORD)
    g.key("tokenizer.ggml.model", STRING, "llama")
    g.keys_of("tokenizer.ggml.tokens", STRING, tokens)
    g.keys_of("tokenizer.ggml.scores", F32_VALUE, [0.0] * len(tokens))
    g.keys_of("tokenizer.ggml.token_type", I32, types)
    g.key("tokenizer.ggml.unknown_token_id", U32, UNK)
    g.key("tokenizer.ggml.bos_token_id", U32, BOS)
    g.key("tokenizer.ggml.eos_token_id", U32, eos)


def _sparse_parts(width, ff, predictor):
    """The tensors of a sparse layer that a dense one does not have."""
    return ("ffn_down_t", width, ff), ("fc1", width, predictor), ("fc2", predictor, ff)


def make(path, arch="llama", layers=3, context=512, tokenizer=True, eos=EOS, matrix_type=F32, n_extra_tokens=0,
         n_nextn=0, rerank=None, pooling=None, add_eos=False, predictor=0, more=()):
    """Writes a model to path. The same arguments give the same bytes. The last n_nextn layers predict further tokens.
    rerank: the template of a reranker, whose head has the rows of the first words. predictor: its width. more: vectors."""
    width, ff, heads, kv_heads = 32, 64, 2, 1
    rng, g = random.Random(7), Gguf()
    g.key("general.architecture", STRING, arch)
    g.key("general.name", STRING, "tiny")
    for name, v in (("block_count", layers), ("context_length", context), ("embedding_length", width),
                    ("feed_forward_length", ff), ("attention.head_count", heads),
                    ("attention.head_count_kv", kv_heads)):
        g.key(f"{arch}.{name}", U32, v)
    g.key(f"{arch}.attention.layer_norm_rms_epsilon", F32_VALUE, 1e-5)
    if predictor:
        g.key("powerinfer.sparse_threshold", F32_VALUE, 0.1)
    if n_nextn:
        g.key(f"{arch}.nextn_predict_layers", U32, n_nextn)
    if tokenizer:
        _add_tokenizer(g, eos, n_extra_tokens)
    if add_eos:
        g.key("tokenizer.ggml.add_eos_token", BOOL, True)
    if pooling is not None:
        g.key(f"{arch}.pooling_type", U32, pooling)
    if rerank is not None:
        g.key("tokenizer.chat_template.rerank", STRING, rerank)
        g.keys_of(f"{arch}.classifier.output_labels", STRING, WORDS[:2])

    def matrix(name, columns, rows, scale):
        if matrix_type == I8:
            g.tensor(name, (columns, rows), I8, bytes(columns * rows))
            return
        data = array.array("f", (rng.uniform(-scale, scale) for _ in range(columns * rows)))
        if name == "output.weight":
            data[: FIRST_WORD * columns] = array.array("f", bytes(4 * FIRST_WORD * columns))
        g.tensor(name, (columns, rows), F32, data.tobytes())
        if name == "output.weight" and rerank is not None:
            first = FIRST_WORD * columns
            g.tensor("cls.output.weight", (columns, 2), F32, data[first: first + 2 * columns].tobytes())

    def norm(name):
        g.tensor(name, (width,), F32, array.array("f", [1.0] * width).tobytes())

    matrix("token_embd.weight", width, VOCAB, 1.0)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", width, width, 0.4)
        matrix(f"blk.{i}.attn_k.weight", width, width // heads * kv_heads, 0.4)
        matrix(f"blk.{i}.attn_v.weight", width, width // heads * kv_heads, 0.4)
        matrix(f"blk.{i}.attn_output.weight", width, width, 0.4)
        matrix(f"blk.{i}.ffn_gate.weight", width, ff, 0.4)
        matrix(f"blk.{i}.ffn_up.weight", width, ff, 0.4)
        for name, columns, rows in (_sparse_parts(width, ff, predictor) if predictor else (("ffn_down", ff, width),)):
            matrix(f"blk.{i}.{name}.weight", columns, rows, 0.4)
    for name in ("output_norm.weight", *more):
        norm(name)
    matrix("output.weight", width, VOCAB, 1.5)
    with open(path, "wb") as f:
        f.write(g.bytes("PWRI" if predictor else "GGUF"))
    return path
