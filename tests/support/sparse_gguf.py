# SPDX-License-Identifier: Apache-2.0
"""Writes models in parts whose headers and tensor tables are real and whose weights are holes: files of any size that
take no room on the disk. What plans and sizes of giant models are tested with."""
import struct

F32, Q8_0, Q4_K, Q6_K = 0, 8, 12, 14
BLOCK = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}  # numbers and bytes of a block
U16, U32, I32, FLOAT, BOOL, STRING = 2, 4, 5, 6, 7, 8
FORM = {U16: "<H", U32: "<I", I32: "<i", FLOAT: "<f", BOOL: "<?"}
ALIGNMENT = 32


def _text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def _key(name, kind, value):
    return _text(name) + struct.pack("<I", kind) + (_text(value) if kind == STRING else struct.pack(FORM[kind], value))


def n_bytes(shape, kind):
    numbers, size = BLOCK[kind]
    n = 1
    for extent in shape:
        n *= extent
    assert shape[0] % numbers == 0, (shape, kind)
    return n // numbers * size


def write(prefix, keys, tensors, count):
    """keys: (name, kind, value). tensors: (name, shape, kind), of which each part holds an equal run. Returns the path
    of the first part."""
    for i in range(count):
        mine = tensors[len(tensors) * i // count:len(tensors) * (i + 1) // count]
        own = (list(keys) if i == 0 else []) + [("split.no", U16, i), ("split.count", U16, count),
                                                ("split.tensors.count", I32, len(tensors))]
        table, at = b"", 0
        for name, shape, kind in mine:
            table += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
            at += -(-n_bytes(shape, kind) // ALIGNMENT) * ALIGNMENT
        head = b"GGUF" + struct.pack("<IQQ", 3, len(mine), len(own)) + b"".join(_key(*k) for k in own) + table
        with open(f"{prefix}-{i + 1:05}-of-{count:05}.gguf", "wb") as f:
            f.write(head)
            f.truncate(-(-len(head) // ALIGNMENT) * ALIGNMENT + at)
    return f"{prefix}-00001-of-{count:05}.gguf"
