#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny models with random weights and their logits, for tests of each architecture: NAME.gguf and NAME.ref.f32.

The model is a class of transformers with the configuration in archs.py. llama.cpp's converter makes the GGUF file; only
the vocabulary is made here. NAME.ref.f32 holds the logits of all ids of ids.txt, row-major [ids, vocabulary], as
transformers computes them in float64, rounded to float32. llama.cpp computes the same from the GGUF file, and both have
to agree. README.md says what is needed.
"""
import argparse
import contextlib
import functools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from archs import ARCHS, BASE, VOCAB_SIZE

HERE = pathlib.Path(__file__).resolve().parent
N_IDS = 40
# A small change of all weights may move no position by more than so many times what it moves the median position. A
# model whose choice of experts stands on a knife's edge fails this, and the next seed is tried.
JUMP, SEEDS = 8.0, 100


class Float64(TorchFunctionMode):
    """Turns each request for float32 into one for float64: models ask for float32 in norms, softmax and rope."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextlib.contextmanager
def in_float64():
    torch.set_default_dtype(torch.float64)
    try:
        with Float64(), torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


# --- The model -------------------------------------------------------------------------------------------------------
def random_values(name, shape, seed, norm_centre):
    """Nothing is zero or one, so that a test sees each tensor."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    x = rng.standard_normal(shape)
    if "norm" in name and len(shape) == 1:
        x = norm_centre + 0.3 * x if name.endswith("weight") else 0.3 * x
    elif "sinks" in name or "embed_tokens" in name:
        pass
    elif "bias" in name or name.endswith("A_log"):
        x = 0.2 * x
    else:
        x /= np.sqrt(shape[-1])
    return torch.from_numpy(x.astype(np.float32))


def is_mxfp4(arch, name):
    return arch.is_mxfp4 and name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def mxfp4_blocks(name, shape, seed):
    """Blocks and scales of the columns of [experts, columns, rows], as gpt-oss's files have them."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    n_experts, n_columns, n_rows = shape
    low, high = (-6, -2) if "gate_up" in name else (-8, -4)
    return (rng.integers(0, 256, (n_experts, n_rows, n_columns // 32, 16)).astype(np.uint8),
            (127 + rng.integers(low, high, (n_experts, n_rows, n_columns // 32))).astype(np.uint8))


def mxfp4_values(name, shape, seed):
    """OCP Microscaling Formats 1.0: 4-bit floats, 32 of which share a power of two. The lower half of a byte is first."""
    blocks, scales = mxfp4_blocks(name, shape, seed)
    half = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = np.concatenate([half, -half])[np.stack([blocks & 15, blocks >> 4], axis=-1)]
    values = values.reshape(*blocks.shape[:3], 32) * np.exp2(scales.astype(float) - 127)[..., None]
    return torch.from_numpy(values.reshape(shape[0], shape[2], shape[1])).transpose(1, 2)


def fill(model, seed, arch):
    adds_one = arch.cls.startswith(("Gemma", "Qwen3Next", "Qwen3_5"))  # to the weights of norms
    tensors = dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if "correction_bias" in n}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if is_mxfp4(arch, name):
            tensor.data.copy_(mxfp4_values(name, shape, seed))
        else:
            factor = math.prod(f for part, f in arch.scale.items() if part in name)
            norm_centre = 0.0 if adds_one and "linear_attn" not in name else 1.0
            tensor.data.copy_(random_values(name, shape, seed, norm_centre) * factor)


def make_model(name):
    cls = getattr(transformers, ARCHS[name].cls)
    config = BASE | ARCHS[name].config
    given = {k: v for k, v in config.items() if v is not None or k in ("pad_token_id", "q_lora_rank")}
    with in_float64():
        model = cls._from_config(cls.config_class(**given), attn_implementation="eager",
                                 experts_implementation="eager").double().eval()
    if ARCHS[name].no_rope:
        model.model.rotary_emb.inv_freq.zero_()
    return model


def compute(model, ids, is_pooled):
    with in_float64():
        if is_pooled:
            return model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1:].numpy()
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def relative(a, b):
    """Error of each row: the root of the mean square, relative to b's."""
    return np.sqrt(np.square(a - b).mean(axis=-1) / np.square(b).mean(axis=-1))


def is_smooth(model, ids, logits, arch):
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    moved = np.zeros(len(logits))
    for trial in range(3):
        rng = np.random.default_rng(trial)
        for n, p in model.named_parameters():
            p.data.copy_(kept[n] * torch.from_numpy(1 + arch.noise * rng.standard_normal(tuple(p.shape))))
        moved = np.maximum(moved, relative(compute(model, ids, arch.is_pooled), logits))
    for n, p in model.named_parameters():
        p.data.copy_(kept[n])
    return moved.max() < JUMP * np.median(moved)


# --- The GGUF file ---------------------------------------------------------------------------------------------------
def byte_alphabet():
    """The character that GPT-2's byte-level BPE writes for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}


def write_bpe(writer, pre, gguf):
    alphabet = byte_alphabet()
    specials = ["<|unk|>", "<|bos|>", "<|eos|>"]
    merges = ["t h", "th e", "i n", "e r", "a n", "o n", "Ġ t", "Ġ a", "Ġt he", "in g", "r e", "an d", "e s", "Ġ w"]
    tokens = specials + [alphabet[b] for b in range(256)] + [m.replace(" ", "") for m in merges]
    kinds = [gguf.TokenType.CONTROL] * len(specials) + [gguf.TokenType.NORMAL] * (len(tokens) - len(specials))
    n_unused = VOCAB_SIZE - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in range(n_unused)])
    writer.add_token_types(kinds + [gguf.TokenType.UNUSED] * n_unused)
    writer.add_token_merges(merges)


def write_spm(writer, gguf):
    pieces = ["▁t", "he", "in", "▁the", "er", "▁a", *"▁etaoinshrdlucmwfgypbvk"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    assert len(tokens) == VOCAB_SIZE
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(pieces))])
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * len(pieces))


@functools.cache
def load_converter(source):
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    import conversion
    import gguf
    conversion.load_all_models()
    return conversion, gguf


def all_subclasses(cls):
    return {cls}.union(*(all_subclasses(c) for c in cls.__subclasses__()))


def find_converter(conversion, gguf, arch):
    if not arch.as_arch:
        return conversion.get_model_class(arch.cls)

    class Converter(conversion.get_model_class("DeepseekV3ForCausalLM")):
        model_arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch.as_arch)
        merge_expert = False  # the class has the experts of a layer in one tensor

        def modify_tensors(self, data_torch, name, bid):
            if name.endswith("experts.gate_up_proj"):
                for part, data in zip(("gate_proj", "up_proj"), data_torch.chunk(2, dim=1)):
                    yield from super().modify_tensors(data, name.replace("gate_up_proj", part + ".weight"), bid)
            else:
                name += ".weight" if name.endswith("experts.down_proj") else ""
                yield from super().modify_tensors(data_torch, name, bid)
    return Converter


def convert(arch, directory, out, source):
    pre = arch.pre
    conversion, gguf = load_converter(source)

    def set_vocab(self):
        if pre == "spm":
            write_spm(self.gguf_writer, gguf)
        else:
            write_bpe(self.gguf_writer, pre, gguf)
        self.gguf_writer.add_bos_token_id(1)
        self.gguf_writer.add_eos_token_id(2)
        self.gguf_writer.add_unk_token_id(0)

    for cls in all_subclasses(conversion.TextModel):
        cls.set_vocab = set_vocab
    converter = find_converter(conversion, gguf, arch)
    converter.no_mtp = converter.supports_mtp_export and not arch.has_mtp
    with torch.inference_mode():
        model = converter(directory, gguf.LlamaFileType.ALL_F32, out, eager=True, model_name="tiny")
        if arch.no_rope:
            model.gguf_writer.add_rope_scaling_finetuned(False)
        for key, value in arch.keys.items():
            add = model.gguf_writer.add_float32 if isinstance(value, float) else model.gguf_writer.add_uint32
            add(f"{model.gguf_writer.arch}.{key}", value)
        model.write()


def mxfp4_tensors(tensors, arch, seed):
    """The same with blocks and scales in place of the values."""
    out = {n: t for n, t in tensors.items() if not is_mxfp4(arch, n)}
    for n in tensors.keys() - out.keys():
        blocks, scales = mxfp4_blocks(n, tuple(tensors[n].shape), seed)
        out |= {n + "_blocks": torch.from_numpy(blocks), n + "_scales": torch.from_numpy(scales)}
    return out


def mtp_tensors(tensors, n_layers, width):
    """A layer behind the last that predicts a second token. A reader has to leave it out."""
    last, mtp = f"model.layers.{n_layers - 1}.", f"model.layers.{n_layers}."
    shapes = {n.replace(last, mtp): tuple(t.shape) for n, t in tensors.items() if n.startswith(last)}
    shapes |= {mtp + n + ".weight": s for n, s in (
        ("eh_proj", (width, 2 * width)), ("enorm", (width,)), ("hnorm", (width,)), ("shared_head.norm", (width,)),
        ("shared_head.head", (VOCAB_SIZE, width)), ("embed_tokens", (VOCAB_SIZE, width)))}
    return {n: random_values(n, s, 0, 1.0) for n, s in shapes.items()}


def save(model, arch, directory, seed):
    model.float().save_pretrained(directory)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    extra = {k: v for k, v in arch.extra.items() if k != "quantization_config" or arch.is_mxfp4}
    path.write_text(json.dumps(config | extra))
    tensors = load_file(directory / "model.safetensors")
    if arch.is_mxfp4:
        tensors = mxfp4_tensors(tensors, arch, seed)
    if arch.has_mtp:
        tensors |= mtp_tensors(tensors, config["num_hidden_layers"], config["hidden_size"])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    if arch.is_pooled:
        (directory / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "pool"}]')
        (directory / "pool").mkdir(exist_ok=True)
        (directory / "pool" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    # Some converters count the tokens of this file.
    vocab = {str(i): i for i in range(VOCAB_SIZE)}
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))


# --- The second witness ----------------------------------------------------------------------------------------------
def build_driver(directory, source, libraries):
    program = directory / "llama_logits"
    subprocess.run(["gcc", "-std=c17", "-O1", "-Wall", "-Wextra", str(HERE / "llama_logits.c"), "-o", str(program),
                    f"-I{source}/include", f"-I{source}/ggml/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}",
                    "-lllama", "-lggml", "-lggml-base"], check=True)
    return program


def run_llama_cpp(program, model, ids, directory, betas=()):
    np.array(ids, "<i4").tofile(directory / "ids.bin")
    run = subprocess.run([program, model, directory / "ids.bin", directory / "logits.bin", *map(str, betas)],
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr[-4000:])
    return np.fromfile(directory / "logits.bin", "<f4").astype(np.float64).reshape(-1)


def same_values(a, b, source):
    """Whether two files hold the same tensors, whatever their types."""
    _, gguf = load_converter(source)
    a, b = ({t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(-1) for t in gguf.GGUFReader(path).tensors}
            for path in (a, b))
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def smooth_model(name, ids):
    arch, model = ARCHS[name], make_model(name)
    for seed in range(SEEDS):
        fill(model, seed, arch)
        logits = compute(model, ids, arch.is_pooled)
        if is_smooth(model, ids, logits, arch):
            return model, logits, seed
    sys.exit(f"{name}: no seed below {SEEDS} gives a smooth model")


def make(name, ids, a, directory, program):
    arch = ARCHS[name]
    model, logits, seed = smooth_model(name, ids)
    gguf_path, ref_path = a.out / f"{name}.gguf", a.out / f"{name}.ref.f32"
    logits.astype("<f4").tofile(ref_path)
    hf, f32_path = directory / name, directory / f"{name}.gguf"
    save(model, arch._replace(is_mxfp4=False), hf, seed)
    convert(arch, hf, f32_path, a.source)
    shutil.copyfile(f32_path, gguf_path)
    if arch.is_mxfp4:
        save(model, arch, hf, seed)
        convert(arch, hf, gguf_path, a.source)
        assert same_values(gguf_path, f32_path, a.source), f"{name}: MXFP4 changes values"
    other = run_llama_cpp(program, f32_path, ids, directory, arch.betas).reshape(logits.shape)
    if arch.n_witnessed:
        other, logits = other[:arch.n_witnessed], logits[:arch.n_witnessed]
    largest = np.abs(other - logits).max() / np.abs(logits).max()
    if arch.is_mxfp4:
        int8 = run_llama_cpp(program, gguf_path, ids, directory).reshape(logits.shape)
        print(f"{name}: squared error of llama.cpp with 8-bit activations: {np.max(relative(int8, logits) ** 2):.1e}")
    print(f"{name}: seed {seed}, {gguf_path.stat().st_size} + {ref_path.stat().st_size} bytes, transformers against "
          f"llama.cpp: largest difference {largest:.1e} of the largest logit, squared error "
          f"{np.max(relative(other, logits) ** 2):.1e}; logits' deviation {logits.std():.2f}", flush=True)
    assert np.isfinite(largest) and largest < arch.agreement, f"{name}: transformers and llama.cpp differ"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--source", type=pathlib.Path, required=True, help="llama.cpp's source")
    ap.add_argument("--libraries", type=pathlib.Path, required=True, help="folder with its libllama.so")
    ap.add_argument("--out", type=pathlib.Path, default=HERE)
    ap.add_argument("names", nargs="+", choices=[*ARCHS, "all"])
    a = ap.parse_args()
    ids = [int(x) for x in (HERE / "ids.txt").read_text().split()]
    assert len(ids) == N_IDS
    torch.set_num_threads(1)
    # Without a GPU's libraries these two queries would call into nothing (torch_cpu_stubs.py).
    torch.cuda.is_available = torch.cuda.is_current_stream_capturing = lambda: False
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as tmp:
        directory = pathlib.Path(tmp)
        program = build_driver(directory, a.source.resolve(), a.libraries.resolve())
        for name in ARCHS if "all" in a.names else a.names:
            make(name, ids, a, directory, program)


if __name__ == "__main__":
    main()
