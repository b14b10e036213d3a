#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of the hot loops of the compiled kernels, and compares them with sass_bounds.txt.

    sass.py FOLDER [--nvdisasm PROGRAM] [--bounds FILE] [--loops] [--kernel PATTERN]

FOLDER has the .cubin files of a build: build/release/backends/cuda/kernels. A hot loop is the smallest loop around the
multiplications of a kernel: IMMA, the integer products of tensor cores, or FFMA where there are none and the kernel has a
bound. Of several such loops, the one with the most multiplications counts. An instruction takes an issue slot of a quarter of a multiprocessor,
so instructions for each multiplication say how fast a loop can be at most. NOP does not count. --loops shows each loop
with its instructions by name.

Products of few rows (cuda_product_TYPE_8 to _64, and _8_shared) wait for memory, so they have to ask for weights long
before they need them. sass.py counts the reads of 16 bytes in a hot loop whose result no instruction has used yet, at
the place of the loop where these are fewest, and expects the weights of at least 8 tiles.

Exit status 1: a kernel needs more than its bound, has a hot loop of IMMA and no bound, is missing, or has too few reads
in flight."""
import argparse
import collections
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys

BOUNDS = pathlib.Path(__file__).with_name("sass_bounds.txt")
PANELS = pathlib.Path(__file__).parents[2] / "backends/cuda/kernels/cuda_panels.def"
TILES_IN_FLIGHT = 8
UNITS = ("IMMA", "FFMA")  # the first that a kernel has is what its loops are for

# names: how often each instruction occurs. in_flight: the fewest reads of 16 bytes under way.
Loop = collections.namedtuple("Loop", "unit n_units names in_flight")


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


def registers(operands):
    return [int(r) for r in re.findall(r"\bR(\d+)", operands)]


def reads_in_flight(code):
    """The fewest reads of 16 bytes in a loop whose result was not used yet. The first pass fills the loop."""
    waiting, fewest = set(), None
    for i, instruction in enumerate(code + code):
        operands = re.sub(r"^(@\S+ +)?\S+ *", "", instruction)
        is_read = re.match(r"(@\S+ +)?LDG\.E\.128", instruction)
        used = registers(operands.partition(",")[2] if is_read else operands)
        waiting = {r for r in waiting if not any(r <= u < r + 4 for u in used)}
        if is_read:
            waiting.add(registers(operands)[0])
        if i >= len(code):
            fewest = len(waiting) if fewest is None else min(fewest, len(waiting))
    return fewest


def hot_loops(code, labels):
    """The smallest loops with multiplications, the one with the most of them first."""
    names = [name_of(i) for i in code]
    ranges = loops(code, labels)
    for unit in UNITS:
        around = [r for r in ranges if unit in names[r[0]:r[1] + 1]]
        smallest = [r for r in around if not any(r != o and r[0] <= o[0] and o[1] <= r[1] for o in around)]
        if smallest:
            found = []
            for a, b in smallest:
                counts = collections.Counter(n for n in names[a:b + 1] if n != "NOP")
                found.append(Loop(unit, counts[unit], counts, reads_in_flight(code[a:b + 1])))
            return sorted(found, key=lambda l: (-l.n_units, sum(l.names.values())))
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


def read_panels(path=PANELS):
    """{type: reads of 16 bytes of a lane for the weights of TILES_IN_FLIGHT tiles}."""
    rows = re.findall(r"^PANEL\((\w+), \w+, (\d+), (\d+),", pathlib.Path(path).read_text(), re.M)
    return {name: TILES_IN_FLIGHT * int(n_bytes) / int(unit) / 512 for name, unit, n_bytes in rows}


def idle_reads(kernels, panels):
    """Lines about products of few rows that read too late."""
    faults = []
    for (kernel, architecture), hot in sorted(kernels.items()):
        product = re.fullmatch(r"cuda_product_(\w+?)_(8|16|32|64|8_shared)", kernel)
        if product and hot and product[1] in panels and hot[0].in_flight < panels[product[1]]:
            faults.append(f"{kernel} {architecture}: {hot[0].in_flight} reads of weights are in flight, "
                          f"{TILES_IN_FLIGHT} tiles have {panels[product[1]]:g}")
    return faults


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
    faults += idle_reads(kernels, read_panels())
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
