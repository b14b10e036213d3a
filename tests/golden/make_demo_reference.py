#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the reference of the demo model, from nothing but its GGUF file and, for the ids, the original tokenizer.

demo.ids.txt         48 ids: <s> and the start of a story that was not in the training data
demo.ref.f32         logits of all 48 positions, row-major [48, 1024], computed in float64 from the dequantised weights,
                     with no rounding of KV or activations, then rounded to float32
demo.tokenizer.txt   JSON lines {"text", "ids"}: what SentencePiece makes of the text, without <s>; special tokens are
                     plain text
"""
import argparse
import json
import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "..", "..", "deploy", "demo")
sys.path.insert(0, DEMO)
from model import load_gguf  # noqa: E402

N_TOKENS = 48
STORY = (
    "Once upon a time, in the village of Otterby, there lived a patient donkey named Hazel. One misty morning, the "
    "mill wheel stopped. There was no creak and no splash. Hazel hurried to the water. Under the wheel was a "
    "thick branch."
)
TEXTS = [
    "", " ", "  ", "     ", "a", "once", "Once upon a time", " Once upon a time", "Once upon a time ",
    "Once  upon   a    time", "Millrace", '"Thank you," said Hazel.', "the otter's mill; why? because!",
    "The wheel turned.\nThe flour fell.", "\n", "\n\n\n", "one\n\ntwo\n", "a\tb", "line\r\nline",
    "2026", "1 234 567.89", "3.14159 and 10%",
    "na\u00efve caf\u00e9, Gr\u00fc\u00dfe", "\u65e5\u672c\u8a9e", "\u041c\u0435\u043b\u044c\u043d\u0438\u0446\u0430",
    "\U0001f980 river \U0001f30a", "e\u0301 and \u00e9",
    "<s> and </s> are text, so are <unk> and <0x41>", "int main(void) { return 0; }", "aaaaaaaaaaaaaaaaaaaaaaaa",
]
assert len(TEXTS) == 30


def write_text_files(tokenizer):
    import sentencepiece as spm
    sp = spm.SentencePieceProcessor(model_file=tokenizer)
    ids = [sp.bos_id(), *sp.encode(STORY)][:N_TOKENS]
    with open(os.path.join(HERE, "demo.ids.txt"), "w", encoding="utf-8") as f:
        for i in range(0, N_TOKENS, 16):
            f.write(" ".join(map(str, ids[i:i + 16])) + "\n")
    with open(os.path.join(HERE, "demo.tokenizer.txt"), "w", encoding="utf-8") as f:
        for text in TEXTS:
            f.write(json.dumps({"text": text, "ids": sp.encode(text)}, ensure_ascii=False) + "\n")


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default=os.path.join(DEMO, "millrace-demo.gguf"))
    ap.add_argument("--tokenizer", help="tokenizer.model of train.py; without it the two text files stay as they are")
    a = ap.parse_args()
    if a.tokenizer:
        write_text_files(a.tokenizer)
    with open(os.path.join(HERE, "demo.ids.txt")) as f:
        ids = torch.tensor([[int(x) for x in f.read().split()]])
    assert ids.shape == (1, N_TOKENS)
    model, _ = load_gguf(a.model, torch.float64)
    exact = model(ids)[0]
    single = load_gguf(a.model, torch.float32)[0](ids)[0].double()
    print(f"error of the same in float32: {((single - exact).square().sum() / exact.square().sum()).item():.1e}")
    exact.float().numpy().astype("<f4").tofile(os.path.join(HERE, "demo.ref.f32"))


if __name__ == "__main__":
    main()
