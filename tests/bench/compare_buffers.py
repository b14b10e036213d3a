#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the compute buffer that `millrace plan` predicts for a model of 7B widths, for contexts of 512 to 16384 and
batches of 512 rows. If the folder of llama.cpp is given, its compute buffer with flash attention stands beside it.

    compare_buffers.py MILLRACE [--llama-cpp FOLDER] [--results RESULTS.md]

FOLDER holds llama-batched-bench. The model file is sparse and contains zeros only. llama.cpp loads a model of only two
layers, because neither buffer depends on the number of layers. Exits with 1 if the buffer of Millrace grows with the
context or is larger than that of llama.cpp. --results replaces the table in a Markdown file.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import markdown_part

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384)
ROWS = 512
BEGIN, END = "<!-- compare_buffers.py: begin -->", "<!-- compare_buffers.py: end -->"


def make_model(path, layers):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_random_model.py")
    subprocess.run([sys.executable, "-B", script, path, "--layers", str(layers), "--width", "4096", "--ff", "11008",
                    "--heads", "32", "--kv-heads", "32", "--context", str(max(CONTEXTS)), "--sparse"], check=True)
    return path


def ours(program, model, context):
    out = subprocess.run([program, "plan", model, "--ctx", str(context), "--chunk", str(ROWS), "--json"], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
    return json.loads(out)["plan"][0]["buffer_bytes"] / 2**20


def theirs(folder, model, context):
    out = subprocess.run([os.path.join(folder, "llama-batched-bench"), "-m", model, "-c", str(context), "-b", str(ROWS),
                          "-ub", str(ROWS), "-npp", "1", "-ntg", "1", "-npl", "1", "-fa", "on", "-v"], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace").stdout
    return float(re.search(r"compute buffer size = +([\d.]+) MiB", out)[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("millrace")
    p.add_argument("--llama-cpp", metavar="FOLDER")
    p.add_argument("--results", metavar="FILE")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(os.path.join(folder, "7b.gguf"), 32)
        mine = [ours(a.millrace, model, c) for c in CONTEXTS]
        model = make_model(os.path.join(folder, "2-layers.gguf"), 2)
        other = [theirs(a.llama_cpp, model, c) for c in CONTEXTS] if a.llama_cpp else None
    lines = [BEGIN, "| context | " + " | ".join(map(str, CONTEXTS)) + " |", "|---|" + "--:|" * len(CONTEXTS),
             "| Millrace, MiB | " + " | ".join(f"{x:.1f}" for x in mine) + " |"]
    if other:
        lines.append("| llama.cpp -fa on, MiB | " + " | ".join(f"{x:.1f}" for x in other) + " |")
    text = "\n".join([*lines, END]) + "\n"
    print(text, end="")
    if a.results:
        markdown_part.replace(a.results, text)
    if max(mine) > min(mine) or (other and any(x > y for x, y in zip(mine, other, strict=True))):
        sys.exit("the compute buffer grows with the context, or is larger than llama.cpp's")


if __name__ == "__main__":
    main()
