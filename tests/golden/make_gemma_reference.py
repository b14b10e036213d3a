#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes gemma3-270m.json: what llama.cpp computes from Gemma 3 270M in Q4_K_M.

texts: the perplexity of the first bytes of a text. prompts: the most likely continuation, 16 ids, and the distance
between the highest and the second highest logit at each step; and the same of the model with its matrices in float32
(wide_ids, wide_gaps), where llama.cpp does not round activations to 8 bits. The sources of llama.cpp are those of
llama-cpp-python 0.3.36, built as shared libraries.
"""
import argparse
import hashlib
import json
import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..")
N_BYTES = 9000
TEXTS = ["tests/data/perplexity.txt", "/usr/share/common-licenses/GPL-3"]
PROMPTS = ["The capital of France is", "Water boils at", "1, 2, 3, 4, 5,", "Once upon a time, there was", "Der Himmel ist",
           "The opposite of hot is", "int main(int argc, char", "Monday, Tuesday, Wednesday,", "To be, or not to be,",
           "A B C D E F G"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", help="gemma-3-270m-q4_k_m.gguf")
    ap.add_argument("--llama", required=True, help="folder of llama.cpp's sources")
    ap.add_argument("--libraries", required=True, help="folder with its libllama.so")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program, part, wide = (os.path.join(folder, name) for name in ("llama_text", "text", "wide.gguf"))
        subprocess.run(["cc", "-O2", os.path.join(HERE, "llama_text.c"), f"-I{args.llama}/include",
                        f"-I{args.llama}/ggml/include", f"-L{args.libraries}", f"-Wl,-rpath,{args.libraries}", "-lllama",
                        "-lm", "-o", program], check=True)

        def ask(*words, model=args.model):
            done = subprocess.run([program, model, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  check=True)
            return done.stdout.split()

        texts, prompts = [], []
        for name in TEXTS:
            with open(os.path.join(SOURCE, name), "rb") as f, open(part, "wb") as out:
                data = f.read(N_BYTES)
                out.write(data)
            value, windows = ask("perplexity", part)
            texts.append({"file": name, "bytes": N_BYTES, "sha256": hashlib.sha256(data).hexdigest(),
                          "windows": int(windows), "perplexity": float(value)})
        ask("widen", wide)
        for prompt in PROMPTS:
            row = {"prompt": prompt}
            for prefix, model in (("", args.model), ("wide_", wide)):
                found = ask("greedy", prompt, model=model)
                row[prefix + "ids"] = [int(x) for x in found[::2]]
                row[prefix + "gaps"] = [float(x) for x in found[1::2]]
            prompts.append(row)
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(x) for x in rows) + "\n]"
             for key, rows in (("texts", texts), ("prompts", prompts))]
    with open(os.path.join(HERE, "gemma3-270m.json"), "w", encoding="ascii") as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
