#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the ReLU model of the tests on stories of deploy/demo: relu(gate) * up, few neurons active, on one CPU core.

    pip install -r ../../../deploy/demo/requirements.txt
    python ../../../deploy/demo/make_corpus.py --count 20000 build/corpus.txt
    python make_relu_model.py build/corpus.txt build/relu-dense.gguf --millrace MILLRACE

The vocabulary is that of the demo model. A penalty on the gates, whose weight follows the share of active neurons,
makes that share small. deploy/predictors/make_predictors.py then makes relu.gguf of the file: see README.md."""
import argparse
import math
import os
import subprocess
import sys
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "..", "..", "..", "deploy", "demo")
sys.path.insert(0, DEMO)
from model import Block, Config, Llama  # noqa: E402

CONFIG = Config(layers=4, width=64, heads=4, kv_heads=2, head_dim=16, ffn=512)
ROWS, LENGTH, BOS = 8, 256, 1


class ReluBlock(Block):
    """Llama's layer with a ReLU of gate. Keeps the share of active neurons, and the mean of their gates."""

    def unit(self, gate, up):
        gate = F.relu(gate)
        self.mean, self.active = gate.mean(), (gate > 0).float().mean().item()
        return gate * up


def encode(text, millrace):
    """Ids of the stories, each of which begins on a new line."""
    done = subprocess.run([millrace, "tokenize", "--demo", "-f", "-"], input=text.replace("\0", "\n").encode(),
                          stdout=subprocess.PIPE, check=True)
    return np.array(done.stdout.split(), dtype=np.int64)


def batch(data, rng):
    """Windows that begin with the token of begin, as those of `millrace perplexity` do."""
    at = rng.integers(0, len(data) - LENGTH - 1, ROWS)
    x = torch.from_numpy(np.stack([data[i:i + LENGTH + 1] for i in at]))
    x[:, 0] = BOS
    return x[:, :-1], x[:, 1:]


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(model, data, a):
    """The schedule follows the clock. The weight of the penalty grows where more than a.active of the neurons are
    active, and falls where fewer are."""
    opt = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    rng, start, step, weight = np.random.default_rng(1), time.monotonic(), 0, 0.01
    while (done := (time.monotonic() - start) / (60 * a.minutes)) < 1:
        for group in opt.param_groups:
            group["lr"] = a.lr * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        loss = loss_of(model, *batch(data, rng))
        active = sum(b.active for b in model.blk) / len(model.blk)
        weight *= 1.01 if active > a.active else 1 / 1.01
        opt.zero_grad(set_to_none=True)
        (loss + weight * sum(b.mean for b in model.blk)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} active {100 * active:.1f} % weight {weight:.3g} "
                  f"{time.monotonic() - start:.0f} s", flush=True)


def write(model, path):
    """A llama file in F16, with the tokenizer of the demo model."""
    c, w = CONFIG, gguf.GGUFWriter(path, "llama")
    w.add_name("Millrace ReLU")
    w.add_description("A very small story teller with relu(gate) * up, for tests")
    w.add_license("Apache-2.0")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_vocab_size(c.vocab_size)
    w.add_context_length(c.context)
    w.add_block_count(c.layers)
    w.add_embedding_length(c.width)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_base)
    for name, field in gguf.GGUFReader(os.path.join(DEMO, "millrace-demo.gguf")).fields.items():
        if name.startswith("tokenizer."):
            sub = field.types[1] if len(field.types) > 1 else None
            w.add_key_value(name, field.contents(), field.types[0], sub)
    for name, t in model.state_dict().items():
        data = t.float().numpy()
        w.add_tensor(name, data.astype(np.float16) if data.ndim == 2 else data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{path}: {os.path.getsize(path)} bytes")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("corpus", help="the file that make_corpus.py wrote")
    ap.add_argument("out", help="the dense GGUF file to write")
    ap.add_argument("--millrace", default="millrace", help="the program, which tokenizes the corpus")
    ap.add_argument("--minutes", type=float, default=8, help="time of training")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--active", type=float, default=0.06, help="wanted share of active neurons")
    a = ap.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with open(a.corpus, encoding="ascii") as f:
        ids = encode(f.read(), a.millrace)
    held, data = ids[:LENGTH * ROWS * 10], ids[LENGTH * ROWS * 10:]
    print(f"{len(data)} tokens", flush=True)
    model = Llama(CONFIG, ReluBlock)
    train(model, data, a)
    with torch.no_grad():
        rng = np.random.default_rng(2)
        found = sum(loss_of(model, *batch(held, rng)).item() for _ in range(10)) / 10
    print(f"held-out loss {found:.4f}, perplexity {math.exp(found):.3f}")
    write(model, a.out)


if __name__ == "__main__":
    main()
