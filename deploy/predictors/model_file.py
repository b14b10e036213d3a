# SPDX-License-Identifier: Apache-2.0
"""Reads llama and bamboo models, and writes sparse ones. A sparse file has the magic "PWRI", a row of ffn_down_t for
each neuron, and the predictors fc1 and fc2. Formats: ggml/docs/gguf.md, SJTU-IPADS/PowerInfer."""
import os
from dataclasses import dataclass

import gguf
import numpy as np

DENSE, SPARSE = b"GGUF", b"PWRI"
THRESHOLD = "powerinfer.sparse_threshold"
TYPE = gguf.GGMLQuantizationType
ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
FFN = ("ffn_gate", "ffn_up")
OUTSIDE = ("token_embd.weight", "output_norm.weight", "output.weight")


class Refused(Exception):
    """The text says which file or value is wrong, and what may help."""


@dataclass(frozen=True)
class Shape:
    arch: str
    layers: int
    width: int
    neurons: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    eps: float
    rope_base: float


def _read(path):
    try:
        with open(path, "rb") as f:
            magic = f.read(4)
    except OSError as e:
        raise Refused(f"{path}: {e.strerror}") from e
    if magic not in (DENSE, SPARSE):
        raise Refused(f"{path}: the first bytes are {magic!r} instead of {DENSE!r} or {SPARSE!r}; hint: is it a GGUF "
                      "file?")
    gguf.gguf_reader.GGUF_MAGIC = int.from_bytes(magic, "little")  # the reader knows one magic at a time
    try:
        return gguf.GGUFReader(path), magic == SPARSE
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as e:
        raise Refused(f"{path}: not a valid GGUF file: {e}") from e


class ModelFile:
    def __init__(self, path):
        self.path = path
        self.reader, self.is_sparse = _read(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.shape = self._shape()
        self._check_names()
        self._check_shapes()

    def refused(self, text):
        return Refused(f"{self.path}: {text}")

    def key(self, name, default=None):
        field = self.reader.get_field(name)
        if field is not None:
            return field.contents()
        if default is None:
            raise self.refused(f"key '{name}' is missing")
        return default

    def _number(self, name, default=None):
        value = self.key(name, default)
        if isinstance(value, (list, str)) or not 0 < value < 1 << 31:
            raise self.refused(f"key '{name}': {str(value)[:40]} instead of one number above 0")
        return value

    def _shape(self):
        arch = self.key("general.architecture")
        if arch not in ("llama", "bamboo"):
            raise self.refused(f"architecture '{arch}'; this script takes dense llama and bamboo models")
        for name, allowed in ((arch + ".expert_count", 0), ("split.count", 1), (arch + ".rope.scaling.type", "none")):
            value = self.key(name, allowed)
            if value != allowed:
                raise self.refused(f"key '{name}': {value}; this script takes models without experts, in one file, and "
                                   "without scaled positions")
        heads, width = self._number(arch + ".attention.head_count"), self._number(arch + ".embedding_length")
        head_dim = self._number(arch + ".attention.key_length", max(width // heads, 1))
        s = Shape(arch, self._number(arch + ".block_count"), width, self._number(arch + ".feed_forward_length"), heads,
                  self._number(arch + ".attention.head_count_kv", heads), head_dim,
                  self._number(arch + ".rope.dimension_count", head_dim),
                  self._number(arch + ".attention.layer_norm_rms_epsilon"),
                  self._number(arch + ".rope.freq_base", 10000.0))
        if s.heads % s.kv_heads or s.rotated % 2 or s.rotated > s.head_dim:
            raise self.refused(f"{s.heads} heads, {s.kv_heads} KV heads, {s.rotated} of {s.head_dim} columns rotated: "
                               "these numbers do not fit each other")
        return s

    def down_name(self):
        return "ffn_down_t" if self.is_sparse else "ffn_down"

    def _check_names(self):
        """A tensor that the forward pass leaves out would change the model."""
        parts = (*ATTENTION, *FFN, self.down_name(), *(("fc1", "fc2") if self.is_sparse else ()))
        known = {f"blk.{i}.{part}.weight" for i in range(self.shape.layers) for part in parts} | set(OUTSIDE)
        for name in self.tensors:
            if name not in known:
                raise self.refused(f"tensor '{name}' is unknown; this script takes llama and bamboo models without "
                                   "biases")

    def tensor(self, name, *shape):
        """shape: rows and columns; None: any."""
        t = self.tensors.get(name)
        if t is None:
            raise self.refused(f"tensor '{name}' is missing")
        found = [int(n) for n in reversed(t.shape)]
        if len(found) != len(shape) or any(want not in (None, n) for want, n in zip(shape, found)):
            raise self.refused(f"tensor '{name}' is {found[::-1]}, wanted {[n or 'any' for n in shape[::-1]]}")
        return t

    def values(self, name, *shape):
        t = self.tensor(name, *shape)
        try:
            return np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)
        except NotImplementedError as e:
            raise self.refused(f"tensor '{name}': type {t.tensor_type.name} cannot be read; hint: convert the model to "
                               "F16") from e

    def _layer_shapes(self):
        s = self.shape
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        return {"attn_norm": (s.width,), "ffn_norm": (s.width,), "attn_q": (q, s.width), "attn_k": (kv, s.width),
                "attn_v": (kv, s.width), "attn_output": (s.width, q), "ffn_gate": (s.neurons, s.width),
                "ffn_up": (s.neurons, s.width)}

    def _check_shapes(self):
        """Before anything is computed, which may take hours."""
        s, table = self.shape, self.tensor("token_embd.weight", None, self.shape.width)
        self.tensor("output_norm.weight", s.width)
        if "output.weight" in self.tensors:
            self.tensor("output.weight", int(table.shape[1]), s.width)
        for idx in range(s.layers):
            for name, shape in self._layer_shapes().items():
                self.tensor(f"blk.{idx}.{name}.weight", *shape)
            if self.is_sparse:
                self.tensor(f"blk.{idx}.ffn_down_t.weight", s.neurons, s.width)
                self.predictor(idx)
            else:
                self.tensor(f"blk.{idx}.ffn_down.weight", s.width, s.neurons)

    def layer(self, idx):
        """The weights of a layer by name, in float32. Matrices of neurons have a row for each neuron."""
        w = {name: self.values(f"blk.{idx}.{name}.weight", *shape) for name, shape in self._layer_shapes().items()}
        w["ffn_down_t"] = self.down_rows(idx)
        return w

    def down_rows(self, idx):
        """ffn_down with a row for each neuron: [neurons, width]."""
        s = self.shape
        if self.is_sparse:
            return self.values(f"blk.{idx}.ffn_down_t.weight", s.neurons, s.width)
        return np.ascontiguousarray(self.values(f"blk.{idx}.ffn_down.weight", s.width, s.neurons).T)

    def threshold(self):
        """Of a sparse file."""
        value = self.key(THRESHOLD, 0.0)
        if not self.is_sparse or not isinstance(value, float) or value != value:
            raise self.refused(f"the magic is not 'PWRI', or key '{THRESHOLD}' is no number: {value}; hint: "
                               "make_predictors.py makes sparse files")
        return value

    def predictor(self, idx):
        """(fc1 [rank, width], fc2 [neurons, rank]) of a sparse file, as tensors."""
        fc1 = self.tensor(f"blk.{idx}.fc1.weight", None, self.shape.width)
        return fc1, self.tensor(f"blk.{idx}.fc2.weight", self.shape.neurons, int(fc1.shape[1]))


@dataclass
class Out:
    """A tensor of the new file. data() is called once, when the tensor is written."""
    name: str
    kind: TYPE
    data: object
    bytes: tuple  # shape of the data in elements, or in bytes for types of blocks
    dtype: object


def _same(t, order=None):
    """The tensor with its rows in another order. A row of any type fills whole blocks."""
    def data():
        return np.ascontiguousarray(t.data if order is None else t.data[order])
    return Out(t.name, t.tensor_type, data, t.data.shape, t.data.dtype)


def _given(name, values):
    values = np.ascontiguousarray(values)
    return Out(name, TYPE.F16, lambda: values, values.shape, values.dtype)


def _transposed(model, idx, order):
    """ffn_down_t in the type of ffn_down if that has no blocks, or else in Q8_0."""
    s, t = model.shape, model.tensor(f"blk.{idx}.ffn_down.weight", model.shape.width, model.shape.neurons)
    kind = t.tensor_type if t.tensor_type in (TYPE.F32, TYPE.F16, TYPE.BF16) else TYPE.Q8_0
    if kind == TYPE.Q8_0 and s.width % 32:
        kind = TYPE.F16

    def data():
        rows = np.ascontiguousarray(model.down_rows(idx)[order])
        return gguf.quants.quantize(rows, kind)
    shape = (s.neurons, s.width) if kind in (TYPE.F32, TYPE.F16) else \
        gguf.quants.quant_shape_to_byte_shape((s.neurons, s.width), kind)
    return Out(f"blk.{idx}.ffn_down_t.weight", kind, data, shape,
               {TYPE.F32: np.dtype(np.float32), TYPE.F16: np.dtype(np.float16)}.get(kind, np.dtype(np.uint8)))


def _tensors(model, orders, predictors):
    """Every tensor of the new file. orders: for each layer the old numbers of the neurons. predictors: for each layer
    (fc1, fc2) with the old numbers, or None to keep those of the model."""
    for t in model.reader.tensors:
        if not t.name.startswith("blk."):
            yield _same(t)
    for idx, order in enumerate(orders):
        blk = f"blk.{idx}."
        for part in ATTENTION:
            yield _same(model.tensors[f"{blk}{part}.weight"])
        for part in FFN:
            yield _same(model.tensors[f"{blk}{part}.weight"], order)
        if model.is_sparse:
            yield _same(model.tensors[blk + "ffn_down_t.weight"], order)
        else:
            yield _transposed(model, idx, order)
        if predictors:
            fc1, fc2 = predictors[idx]
            yield _given(blk + "fc1.weight", fc1.astype(np.float16))
            yield _given(blk + "fc2.weight", fc2[order].astype(np.float16))
        else:
            fc1, fc2 = model.predictor(idx)
            yield _same(fc1)
            yield _same(fc2, order)


def _add_keys(writer, model, threshold):
    for name, field in model.reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.alignment", THRESHOLD):
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
    writer.add_key_value(THRESHOLD, float(threshold), gguf.GGUFValueType.FLOAT32)


def _write_parts(part, model, tensors, threshold):
    writer = gguf.GGUFWriter(part, model.shape.arch)
    _add_keys(writer, model, threshold)
    for t in tensors:
        n_bytes = int(np.prod(t.bytes)) * t.dtype.itemsize
        writer.add_tensor_info(t.name, t.bytes, t.dtype, n_bytes, raw_dtype=t.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for t in tensors:
        writer.write_tensor_data(t.data())
    writer.close()
    with open(part, "r+b") as f:
        f.write(SPARSE)


def check_out(path, model):
    """To be asked before hours of work."""
    if os.path.exists(path) and os.path.samefile(path, model.path):
        raise Refused(f"{path}: is the model itself; hint: --out names another file")
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise Refused(f"{path}: cannot be written; hint: the folder has to exist")


def write_sparse(path, model, orders, threshold, predictors=None):
    """Nobody sees half a file: it gets its name when it is complete."""
    check_out(path, model)
    part = f"{path}.part{os.getpid()}"
    try:
        _write_parts(part, model, list(_tensors(model, orders, predictors)), threshold)
        os.replace(part, path)
    except OSError as e:
        raise Refused(f"{path}: {e.strerror or e}") from e
    finally:
        if os.path.exists(part):
            os.remove(part)
