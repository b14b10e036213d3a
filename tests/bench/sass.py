#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the hot loops of the compiled kernels, and compares them with sass_bounds.txt.

    sass.py FOLDER [--nvdisasm PROGRAM] [--bounds FILE] [--loops] [--kernel PATTERN]

FOLDER has the .cubin files of a build: build/release/backends/cuda/kernels. A hot loop is the smallest loop around the
multiplications of a kernel: IMMA, the integer products of tensor cores, or FFMA where there are none and the kernel has a
bound. Of several such loops, the one with the most multiplications counts. An instruction takes an issue slot of a quarter of a multiprocessor,
so instructions for each multiplication say how fast a loop can be at most. NOP does not count. --loops shows each loop
with its instructions by name.

Exit status 1: a kernel needs more than its bound, has a hot loop of IMMA and no bound, or is missing."""
import argparse
import collections
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys

BOUNDS = pathlib.Path(__file__).with_name("sass_bounds.txt")
UNITS = ("IMMA", "FFMA")  # the first that a kernel has is what its loops are for

Loop = collections.namedtuple("Loop", "unit n_units names")  # names: how often each instruction occurs


def find_nvdisasm():
    """The program in PATH, or of the package nvidia-cuda-nvdisasm; None where there is none."""
    found = shutil.which("nvdisasm")
    folders = [pathlib.Path(p) for p in sys.path]
    return found or next((str(p) for f in folders for p in f.glob("nvidia/*/bin/nvdisasm")), None)


def instructions(text):
    """For each kernel of a disassembly: its instructions, and the places that its labels name."""
    kernels, code, labels = {}, None, None
    for line in text.splitlines():
        section = re.match(r"//-+ \.text\.(\w+) ", line)
        label = re.match(r"(\.L_x_\w+):", line)
        instruction = re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line)
        if section:
            code, labels = kernels.setdefault(section[1], ([], {}))
        elif label and labels is not None:
            labels[label[1]] = len(code)
        elif instruction and code is not None:
            code.append(instruction[1])
    return kernels


def name_of(instruction):
    words = [w for w in instruction.split() if not w.startswith(("@", "{"))]
    return words[0].split(".")[0] if words else "NOP"


def loops(code, labels):
    """(first, last) of each loop: a branch back, with the last one where several lead to the same place."""
    found = {}
    for at, instruction in enumerate(code):
        target = re.search(r"`\((\.L_x_\w+)\)", instruction)
        if name_of(instruction) == "BRA" and target and labels.get(target[1], at + 1) < at:
            found[labels[target[1]]] = at
    return sorted(found.items())


def hot_loops(code, labels):
    """The smallest loops with multiplications, the one with the most of them first."""
    names = [name_of(i) for i in code]
    ranges = loops(code, labels)
    for unit in UNITS:
        around = [r for r in ranges if unit in names[r[0]:r[1] + 1]]
        smallest = [r for r in around if not any(r != o and r[0] <= o[0] and o[1] <= r[1] for o in around)]
        if smallest:
            counts = [collections.Counter(n for n in names[a:b + 1] if n != "NOP") for a, b in smallest]
            counts.sort(key=lambda c: (-c[unit], sum(c.values())))
            return [Loop(unit, c[unit], c) for c in counts]
    return []


def per_unit(loop):
    return sum(loop.names.values()) / loop.n_units


def read_kernels(folder, nvdisasm):
    """{(kernel, architecture): hot loops} of all files."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.cubin")):
        architecture = path.suffixes[-2][1:]
        done = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"error: {nvdisasm} cannot read {path}: {done.stderr.strip()}")
        for kernel, (code, labels) in instructions(done.stdout).items():
            found[kernel, architecture] = hot_loops(code, labels)
    return found


def read_bounds(path):
    """[(pattern of kernels, unit, bound)], in the order of the file: the first that fits a kernel counts."""
    lines = (line.split("#")[0].split() for line in pathlib.Path(path).read_text().splitlines())
    return [(pattern, unit, float(bound)) for pattern, unit, bound in filter(None, lines)]


def compare(kernels, bounds):
    """Rows of the table, and lines that say what is wrong."""
    rows, faults, used = [], [], set()
    for (kernel, architecture), hot in sorted(kernels.items()):
        line = next((b for b in bounds if fnmatch.fnmatchcase(kernel, b[0])), None)
        used.add(line)
        if not line and (not hot or hot[0].unit != "IMMA"):
            continue
        if not hot or line and line[1] != hot[0].unit:
            faults.append(f"{kernel} {architecture}: no hot loop of {line[1]}")
            continue
        needed = per_unit(hot[0])
        rows.append((kernel, architecture, hot[0], needed, line))
        if not line:
            faults.append(f"{kernel} {architecture}: a loop of {hot[0].unit} without a bound")
        elif needed > line[2]:
            faults.append(f"{kernel} {architecture}: {needed:.1f} instructions for each {line[1]}, the bound is {line[2]:g}")
    faults += [f"no kernel is named {b[0]}" for b in bounds if b not in used]
    return rows, faults


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--nvdisasm", default=find_nvdisasm())
    parser.add_argument("--bounds", default=BOUNDS)
    parser.add_argument("--kernel", default="*")
    parser.add_argument("--loops", action="store_true")
    args = parser.parse_args(arguments)
    if not args.nvdisasm:
        sys.exit("error: there is no nvdisasm\nhint: it is in the CUDA toolkit, and in the package nvidia-cuda-nvdisasm")
    kernels = read_kernels(args.folder, args.nvdisasm)
    rows, faults = compare(kernels, read_bounds(args.bounds))
    print(f"{'kernel':40} {'for':8} {'loop of':>10} {'each takes':>10} {'bound':>7}")
    for kernel, architecture, loop, needed, line in rows:
        if fnmatch.fnmatchcase(kernel, args.kernel):
            bound = line[2] if line else "-"
            print(f"{kernel:40} {architecture:8} {loop.n_units:5d} {loop.unit:4} {needed:10.2f} {bound:>7}")
            for other in kernels[kernel, architecture] if args.loops else []:
                print("   ", " ".join(f"{name}:{n}" for name, n in other.names.most_common()))
    for fault in faults:
        print("error:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
