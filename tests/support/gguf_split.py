# SPDX-License-Identifier: Apache-2.0
"""Splits a GGUF file into parts, as gguf-split of llama.cpp does: the first part has all keys, each part has its own
tensor table, and split.no, split.count and split.tensors.count say what belongs together. Formats: ggml/docs/gguf.md."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
U16, I32 = 2, 5
ALIGNMENT = 32


def text(data, at):
    n = struct.unpack_from("<Q", data, at)[0]
    return data[at + 8:at + 8 + n], at + 8 + n


def skip_value(data, at, kind):
    if kind == STRING:
        return text(data, at)[1]
    if kind != ARRAY:
        return at + SIZES[kind]
    kind, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind != STRING:
        return at + n * SIZES[kind]
    for _ in range(n):
        at = text(data, at)[1]
    return at


def read(data):
    """The bytes of all keys, how many there are, and the tensors as (name, bytes of the rest of the entry, data)."""
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(n_keys):
        at = text(data, at)[1]
        at = skip_value(data, at + 4, struct.unpack_from("<I", data, at)[0])
    keys, entries = data[24:at], []
    for _ in range(n_tensors):
        name, at = text(data, at)
        n_dims = struct.unpack_from("<I", data, at)[0]
        end = at + 4 + 8 * n_dims + 4
        entries.append((name, data[at:end], struct.unpack_from("<Q", data, end)[0]))
        at = end + 8
    start = -(-at // ALIGNMENT) * ALIGNMENT
    ends = sorted([offset for _, _, offset in entries] + [len(data) - start])
    return keys, n_keys, [(name, rest, data[start + offset:start + ends[ends.index(offset) + 1]])
                          for name, rest, offset in entries]


def key(name, kind, form, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I" + form, kind, value)


def part(keys, n_keys, tensors, idx, count, total):
    """The bytes of one part."""
    keys += key(b"split.no", U16, "H", idx) + key(b"split.count", U16, "H", count)
    keys += key(b"split.tensors.count", I32, "i", total)
    table, data = b"", b""
    for name, rest, values in tensors:
        table += struct.pack("<Q", len(name)) + name + rest + struct.pack("<Q", len(data))
        data += values + bytes(-len(values) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys + 3) + keys + table
    return head + bytes(-len(head) % ALIGNMENT) + data


def split(path, prefix, count):
    """Writes PREFIX-00001-of-000NN.gguf and so on; returns the paths. Part k holds every tensor whose number is k in
    count equal runs."""
    with open(path, "rb") as f:
        keys, n_keys, tensors = read(f.read())
    paths = []
    for i in range(count):
        mine = tensors[len(tensors) * i // count:len(tensors) * (i + 1) // count]
        paths.append("%s-%05d-of-%05d.gguf" % (prefix, i + 1, count))
        with open(paths[-1], "wb") as f:
            f.write(part(keys if i == 0 else b"", n_keys if i == 0 else 0, mine, i, count, len(tensors)))
    return paths
