#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tells a story with PyTorch from the exported file: a check that does not need the engine."""
import argparse
import os

import torch

from model import load_gguf

BOS, EOS = 1, 2


def detokenise(pieces):
    raw = b"".join(bytes([int(p[3:5], 16)]) if p.startswith("<0x") else p.encode() for p in pieces)
    return raw.decode("utf-8", "replace").replace("\u2581", " ").removeprefix(" ")


def encode(pieces, scores, text):
    """SentencePiece BPE as a plain loop: merge the best-scored neighbours until nothing merges. ASCII only."""
    index = {p: i for i, p in enumerate(pieces)}
    parts = list("\u2581" + text.replace(" ", "\u2581"))
    while True:
        best = max(((scores[index[x + y]], -i) for i, (x, y) in enumerate(zip(parts, parts[1:])) if x + y in index),
                   default=None)
        if best is None:
            return [BOS] + [index[p] if p in index else index[f"<0x{ord(p):02X}>"] for p in parts]
        i = -best[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


@torch.no_grad()
def generate(model, ids, temperature, generator):
    ids = list(ids)
    while len(ids) < model.c.context:
        logits = model(torch.tensor([ids]))[0, -1]
        if temperature > 0:
            ids.append(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator).item())
        else:
            ids.append(logits.argmax().item())
        if ids[-1] == EOS:
            break
    return ids


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", default=os.path.join(here, "millrace-demo.gguf"))
    ap.add_argument("--prompt", default="Once upon a time")
    ap.add_argument("--temperature", type=float, default=0.7)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--count", type=int, default=1)
    a = ap.parse_args()
    model, reader = load_gguf(a.model)
    pieces = reader.get_field("tokenizer.ggml.tokens").contents()
    scores = reader.get_field("tokenizer.ggml.scores").contents()
    prompt = encode(pieces, scores, a.prompt)
    generator = torch.Generator().manual_seed(a.seed)
    for _ in range(a.count):
        ids = generate(model, prompt, a.temperature, generator)
        end = "</s>" if ids[-1] == EOS else "(no end)"
        print(detokenise(pieces[i] for i in ids[1:] if i != EOS), end, len(ids), "tokens\n")


if __name__ == "__main__":
    main()
