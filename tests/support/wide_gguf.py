# SPDX-License-Identifier: Apache-2.0
"""Writes a model with several times the tokens of another one, for tests of what depends on the size of a vocabulary.
Token i of copy k has the embedding of token i and another text, so that logits have ties. The output is the embedding
table. Formats: ggml/docs/gguf.md."""
import struct

from gguf_split import ALIGNMENT, ARRAY, STRING, key, read, skip_value, text

U32 = 4
VOCAB_SIZE, TOKENS, EMBEDDING = b"llama.vocab_size", b"tokenizer.ggml.tokens", b"token_embd.weight"


def _copied(data, at, end, copies):
    """The array value at [at, end) with all items several times. Copies of a text get a suffix."""
    kind, n = struct.unpack_from("<IQ", data, at)
    head, at = struct.pack("<IQ", kind, n * copies), at + 12
    if kind != STRING:
        return head + data[at:end] * copies
    texts = []
    for _ in range(n):
        item, at = text(data, at)
        texts.append(item)
    items = [t + (b"~%d" % k if k else b"") for k in range(copies) for t in texts]
    return head + b"".join(struct.pack("<Q", len(t)) + t for t in items)


def _widened(keys, n_keys, copies):
    out, at = b"", 0
    for _ in range(n_keys):
        start = at
        name, at = text(keys, at)
        kind = struct.unpack_from("<I", keys, at)[0]
        end = skip_value(keys, at + 4, kind)
        if name == VOCAB_SIZE:
            out += key(name, U32, "I", struct.unpack_from("<I", keys, at + 4)[0] * copies)
        elif kind == ARRAY and name.startswith(b"tokenizer."):
            out += keys[start:at + 4] + _copied(keys, at + 4, end, copies)
        else:
            out += keys[start:end]
        at = end
    return out


def write(path, source, copies):
    """Writes the model of source, whose data of each tensor fills whole units of alignment, with copies of its tokens."""
    with open(source, "rb") as f:
        keys, n_keys, tensors = read(f.read())
    table, data = b"", b""
    for name, rest, values in tensors:
        if name == EMBEDDING:
            n_dims, columns, rows = struct.unpack_from("<IQQ", rest)
            rest = struct.pack("<IQQ", n_dims, columns, rows * copies) + rest[20:]
            values = values * copies
        table += struct.pack("<Q", len(name)) + name + rest + struct.pack("<Q", len(data))
        data += values + bytes(-len(values) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys) + _widened(keys, n_keys, copies) + table
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT) + data)
    return path
