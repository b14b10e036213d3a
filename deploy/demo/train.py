#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the tokenizer and the model of the demo: a llama of 5 million parameters, on a CPU, in about 25 minutes."""
import argparse
import math
import os
import time

import numpy as np
import sentencepiece as spm
import torch

from model import Config, Llama

BOS, EOS = 1, 2


def train_tokenizer(docs, prefix):
    """SentencePiece BPE as llama has it: no normalisation, bytes for what the vocabulary lacks, a space put before."""
    lines = [line for d in docs[:20000] for line in d.split("\n")]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, model_type="bpe", vocab_size=Config.vocab_size,
        byte_fallback=True, add_dummy_prefix=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, required_chars="0123456789", character_coverage=1.0,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, num_threads=2, minloglevel=1)


def encode(sp, docs):
    ids = []
    for d in sp.encode(docs):
        ids += [BOS, *d, EOS]
    return np.array(ids, dtype=np.uint16)


def batch(data, rng, rows, length):
    """Windows of the packed stream; input and the same shifted by one."""
    at = rng.integers(0, len(data) - length - 1, rows)
    x = torch.from_numpy(np.stack([data[i:i + length + 1] for i in at]).astype(np.int64))
    return x[:, :-1], x[:, 1:]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("corpus")
    ap.add_argument("out", help="folder for tokenizer.model and model.pt")
    ap.add_argument("--minutes", type=float, default=24, help="the cosine schedule ends after this time")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--rows", type=int, default=8)
    ap.add_argument("--length", type=int, default=256)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--bf16", action="store_true", help="autocast; slower than float32 where it was tried")
    a = ap.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    os.makedirs(a.out, exist_ok=True)

    with open(a.corpus, encoding="ascii") as f:
        docs = f.read().split("\0")[:-1]
    prefix = os.path.join(a.out, "tokenizer")
    if not os.path.exists(prefix + ".model"):
        train_tokenizer(docs, prefix)
    sp = spm.SentencePieceProcessor(model_file=prefix + ".model")
    held, data = encode(sp, docs[:500]), encode(sp, docs[500:])
    print(f"{len(docs)} stories, {len(data)} tokens", flush=True)

    model = Llama(Config())
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                            betas=(0.9, 0.95))
    rng = np.random.default_rng(1)

    def loss_of(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.bf16):
            logits = model(x)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    @torch.no_grad()
    def held_out():
        g = np.random.default_rng(2)
        return sum(loss_of(*batch(held, g, a.rows, a.length)).item() for _ in range(10)) / 10

    start, step, mean = time.monotonic(), 0, None
    while True:
        done = (time.monotonic() - start) / (60 * a.minutes)
        if done >= 1:
            break
        # Warm up over 100 steps, then a cosine down to 2 %. The schedule follows the clock, not a count of steps.
        lr = a.lr * min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in opt.param_groups:
            group["lr"] = lr
        loss = loss_of(*batch(data, rng, a.rows, a.length))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        step += 1
        if step % 50 == 0:
            s = time.monotonic() - start
            rate = step * a.rows * a.length / s
            print(f"step {step} loss {mean:.4f} lr {lr:.2e} {s:.0f} s {rate:.0f} tok/s", flush=True)
        if step % 500 == 0:
            torch.save(model.state_dict(), os.path.join(a.out, "model.pt"))
            print(f"step {step} held-out {held_out():.4f}", flush=True)
    torch.save(model.state_dict(), os.path.join(a.out, "model.pt"))
    print(f"end: step {step}, loss {mean:.4f}, held-out {held_out():.4f}", flush=True)


if __name__ == "__main__":
    main()
