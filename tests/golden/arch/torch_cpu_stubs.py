#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_cpu_stubs.py TORCH OUT: lets PyPI's torch, which is linked to CUDA, run on a machine without its libraries.

Writes to OUT a library for each library of CUDA that torch needs, with the symbols that torch wants and nothing behind
them. TORCH is the folder site-packages/torch. Needs gcc and readelf. Run python with LD_LIBRARY_PATH=OUT, on the CPU.
"""
import collections
import pathlib
import re
import subprocess
import sys

# Of torch 2.15.0. Symbols without a version may be of any of LOOSE.
LIBRARIES = """libcublas.so.13 libcublasLt.so.13 libcuda.so.1 libcudart.so.13 libcudnn.so.9 libcufft.so.12
libcufile.so.0 libcupti.so.13 libcusolver.so.12 libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2 libnvrtc.so.13
libnvshmem_host.so.3""".split()
LOOSE = ("libcuda.so.1", "libcusparseLt.so.0", "libcufile.so.0", "libnccl.so.2")
CUDA_NAME = re.compile(r"cu[A-Z]|cu[a-z]+[A-Z]|cuda|nccl|nvrtc|nvshmem|cudnn|cufft|cusparse|cusolver|cublas|nvtx")


def wanted_symbols(torch):
    """The names that torch's libraries leave open: those of each version, and those without a version."""
    versioned, loose, provided = collections.defaultdict(set), set(), set()
    for path in [*(torch / "lib").glob("*.so*"), *torch.glob("_C*.so")]:
        listing = subprocess.run(["readelf", "--dyn-syms", "-W", path], capture_output=True, text=True).stdout
        for fields in (line.split() for line in listing.splitlines()):
            if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] != "UND":
                provided.add(name)
            elif version:
                versioned[version.lstrip("@")].add(name)
            elif CUDA_NAME.match(name):
                loose.add(name)
    return versioned, loose - provided


def is_version_of(version, library):
    return version.startswith(library.split(".so")[0] + ".so") or (version == "NVSHMEM" and "nvshmem" in library)


def build(library, versions, names, out):
    source, script = out / "stub.c", out / "stub.map"
    source.write_text("".join(f"long {n}(void) {{ return 1; }}\n" for n in sorted(names) if n.isidentifier()))
    script.write_text("".join(f"{v} {{ global: *; }};\n" for v in versions))
    extra = [f"-Wl,--version-script={script}"] if versions else []
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", *extra, f"-Wl,-soname,{library}", source, "-o", out / library],
                   check=True)
    source.unlink()
    script.unlink()


def main():
    torch, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    versioned, loose = wanted_symbols(torch)
    for library in LIBRARIES:
        versions = sorted(v for v in versioned if is_version_of(v, library))
        names = set().union(*(versioned[v] for v in versions)) | (loose if library in LOOSE else set())
        build(library, versions, names, out)


if __name__ == "__main__":
    main()
