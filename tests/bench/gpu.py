#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries the program on a machine with a GPU that one has for some minutes: first whether the bits are those of the CPU,
then how fast it is, beside llama.cpp where that is there. Python's standard library is enough.

    gpu.py --pack FOLDER [--build build/release] [--llama-cpp FOLDER]      at home: all that it needs, below 48 MiB
    FOLDER/gpu.py --results FILE [--part 1,2,3,4] [--minutes 9]            there

    part 1  bits: digest, awkward numbers, products and attention of all types, whole models, compute-sanitizer
    part 2  speed: memory, one node of a graph, then decode and prefill of a model of 8B
    part 3  speed of products and of attention by type, shape and rows
    part 4  where the time goes: the parts of a step, and a profile by ncu where there is one

A part is a list of steps. FILE (JSON) is written after each step. A step that has a result there is not done again, so the
same command goes on where the last one was stopped by --minutes. Models are made in --models. With --small, models and
shapes are tiny. --emulated: --small, with the programs of --build that have emulated GPUs. --program, --bench and --backend
choose others than the packed programs and "cuda". The exit status is 1 if bits differ or a step failed."""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PACK_BYTES = 48 << 20
SYSTEM_LIBRARIES = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so")
TYPES = ("Q8_0", "Q4_0", "IQ4_NL", "MXFP4", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
MODELS = {  # arguments of make_random_model.py
    "1b": "--layers 22 --width 2048 --ff 5632 --heads 32 --kv-heads 4",
    "8b": "--layers 32 --width 4096 --ff 14336 --heads 32 --kv-heads 8 --vocab 128256 --context 16384",
    "tiny": "--layers 3 --width 256 --ff 512 --heads 4 --kv-heads 2 --vocab 320 --context 256",
}


class Failed(Exception):
    pass


class Machine:
    """Runs commands, within the time that is left."""

    def __init__(self, args):
        self.args = args
        self.end = time.monotonic() + args.minutes * 60
        self.env = dict(os.environ)
        if (HERE / "lib").is_dir():
            self.env["LD_LIBRARY_PATH"] = f"{HERE / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"

    def left_s(self):
        return self.end - time.monotonic()

    def run(self, *command, statuses=(0,), **env):
        command = [str(c) for c in command]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                                  timeout=max(1, self.left_s()), env={**self.env, **env}, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise Failed(str(e)) from e
        if done.returncode not in statuses:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Failed(f"{' '.join(command)}: status {done.returncode}: {' | '.join(said[-5:])}")
        return done

    def bench(self, *case):
        """The lines of bench_device. Its status is 1 where bits differ, or where it failed and printed nothing."""
        done = self.run(self.args.bench, self.args.backend, *case, statuses=(0, 1))
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if not lines:
            raise Failed(done.stderr.strip())
        return lines

    def millrace(self, command, model, *arguments, device=True, **env):
        """Fails, too, if the device gets no layers."""
        on = ("--backend", self.args.backend, "--gpu-layers", "999") if device else ("--backend", "cpu")
        done = self.run(self.args.program, command, model, *on, *arguments, **env)
        if device and not re.search(r"stage 0: layers .* on '", done.stdout + done.stderr):
            raise Failed("no layers on the device: " + " | ".join(done.stderr.splitlines()[-5:]))
        return done

    def model(self, shape, kind):
        path = self.args.models / f"{shape}-{kind}.gguf"
        if not path.exists():
            self.args.models.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            self.run(sys.executable, HERE / "make_random_model.py", new, "--type", kind, *MODELS[shape].split())
            new.rename(path)
        return path


# --- Part 1: bits -------------------------------------------------------------------------------------------------------

def about(m):
    found = {"millrace": m.run(m.args.program, "--version").stdout.splitlines()}
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem"
        found["gpu"] = m.run("nvidia-smi", query, "--format=csv,noheader").stdout.splitlines()
    return found


def products_suite(m):
    rows = "1,3,17" if m.args.small else "1,2,7,8,9,16,17,33,64,65,130,300"
    shapes = [(256, 40)] if m.args.small else [(256, 40), (1024, 1000), (4096, 272)]
    return [line for kind in TYPES for k, n in shapes for line in m.bench("product", kind, k, n, 1, rows)]


def attention_suite(m):
    shapes = [(4, 2, 64), (8, 1, 128)] if m.args.small else [(32, 8, 128), (32, 32, 64), (8, 1, 256), (24, 8, 96)]
    runs = [(70, 2, 1), (33, 1, 20)] if m.args.small else [(1, 1, 1), (65, 3, 2), (513, 2, 1), (1100, 5, 1), (700, 1, 300)]
    return [line for kv in ("F16", "F32", "Q8_0") for heads in shapes for run in runs
            for line in m.bench("attention", kv, *heads, *run)]


def same_logits(m, model, n, *arguments):
    """Logits of n tokens on the device and on the CPU, and with the layers shared between both. Chunks of 7 rows run by a
    plan, so that nothing is measured for them."""
    folder = m.args.models
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ids").write_text(" ".join(str((i * 37 + 11) % 250 + 3) for i in range(n)))
    plan = folder / "plan.json"
    runs = {"cpu": (), "device": (), "one layer": ("--gpu-layers", "1"), "chunks of 7": ("--chunk", "7", "--plan", plan)}
    m.millrace("plan", model, "--save", plan, *arguments)
    outputs = {}
    for name, more in runs.items():
        out = folder / ("logits " + name)
        m.millrace("logits", model, "--ids-file", folder / "ids", "-o", out, *arguments, *more, device=name != "cpu")
        outputs[name] = out.read_bytes()
        out.unlink()
    return {"bytes": len(outputs["cpu"]), "same": all(o == outputs["cpu"] for o in outputs.values()),
            "different": [name for name, o in outputs.items() if o != outputs["cpu"]]}


def sanitizer(m):
    tool = shutil.which("compute-sanitizer")
    if not tool:
        return {"skipped": "there is no compute-sanitizer"}
    done = m.run(tool, "--error-exitcode", 9, m.args.bench, m.args.backend, "digest", statuses=(0, 1, 9))
    return {"same": done.returncode == 0, "said": done.stdout.splitlines()[-3:]}


def part_1(m):
    shape, kinds = ("tiny", ("Q8_0",)) if m.args.small else ("1b", ("Q8_0", "Q4_K"))
    yield "about", about
    yield "digest", lambda m: m.bench("digest")
    yield "corners", lambda m: m.bench("corners")
    yield "products", products_suite
    yield "attention", attention_suite
    for kv in ("f16", "q8_0"):
        yield f"demo logits, {kv}", lambda m, kv=kv: same_logits(m, "--demo", 6 if m.args.small else 100,
                                                                    "--kv-type", kv)
    for kind in kinds:
        yield f"logits {shape} {kind}", lambda m, kind=kind: same_logits(m, m.model(shape, kind), 6 if m.args.small else 60)
    yield "sanitizer", sanitizer


# --- Part 2: whole models -----------------------------------------------------------------------------------------------

def bench_model(m, shape, kind, prompts, n, batches):
    """Tokens a second of Millrace."""
    done = m.millrace("bench", m.model(shape, kind), "-p", prompts, "-n", n, "-b", batches, "-r", 3, "--json")
    return [{k: t[k] for k in ("test", "sequences", "tokens_per_second")} | {"prompt": t.get("prompt_tokens")}
            for t in json.loads(done.stdout[done.stdout.index("["):])]


def bench_llama(m, shape, kind, prompts, n, batches):
    """Tokens a second of llama.cpp, by its own benchmarks. Their output is kept as it is."""
    folder = HERE / "llama.cpp"
    if not folder.is_dir():
        return {"skipped": "there is no llama.cpp"}
    model, env = m.model(shape, kind), {"LD_LIBRARY_PATH": f"{folder}:{m.env.get('LD_LIBRARY_PATH', '')}"}
    single = m.run(folder / "llama-bench", "-m", model, "-ngl", 99, "-fa", 1, "-p", prompts, "-n", n, "-r", 3, "-o", "json",
                   **env)
    many = m.run(folder / "llama-batched-bench", "-m", model, "-ngl", 99, "-fa", "on", "-npp", 1, "-ntg", n, "-npl", batches,
                 "-c", 16384, "--output-format", "jsonl", **env)
    return {"bench": json.loads(single.stdout), "batched": many.stdout.splitlines()}


def part_2(m):
    small = m.args.small
    shape, kinds = ("tiny", ("Q8_0",)) if small else ("8b", ("Q8_0", "Q4_K", "Q6_K"))
    yield "memory", lambda m: m.bench("chain", 4, 256, 4) if small else m.bench("chain", 4, 16384, 8192)
    yield "node", lambda m: m.bench("chain", 20 if small else 1000, 64, 1)
    for kind in kinds:
        yield f"decode {shape} {kind}", lambda m, kind=kind: bench_model(m, shape, kind, 0, 4 if small else 64,
                                                                          "1,2" if small else "1,16,64")
        yield f"prefill {shape} {kind}", lambda m, kind=kind: bench_model(m, shape, kind, "32" if small else "512,2048,8192",
                                                                           0, 1)
        yield f"llama.cpp {shape} {kind}", lambda m, kind=kind: bench_llama(m, shape, kind, "512,2048,8192", 64, "1,16,64")


# --- Parts 3 and 4 ------------------------------------------------------------------------------------------------------

def part_3(m):
    shapes = ([(256, 64, 2)] if m.args.small else
              [(4096, 4096, 16), (4096, 14336, 8), (14336, 4096, 8), (4096, 1024, 32), (4096, 128256, 2)])
    rows = "1,4" if m.args.small else "1,2,4,8,16,32,48,64,128,256,512"
    for k, n, matrices in shapes:
        for kind in TYPES[:2] if m.args.small else TYPES:
            yield f"product {kind} {k} x {n}", lambda m, case=(kind, k, n, matrices, rows): m.bench("product", *case)
    heads = (4, 2, 64) if m.args.small else (32, 8, 128)
    runs = [(64, 1, 1)] if m.args.small else [(d, s, 1) for d in (512, 4096, 32768) for s in (1, 16, 64) if d * s < 1 << 20]
    runs += [(64, 1, 32)] if m.args.small else [(d, 1, 512) for d in (512, 2048, 8192)]
    for kv in ("F16", "Q8_0"):
        for run in runs:
            yield "attention {} of {} positions, {} sequences, {} rows".format(kv, *run), (
                lambda m, case=(kv, *heads, *run): m.bench("attention", *case))


def profile(m):
    tool = shutil.which("ncu")
    if not tool:
        return {"skipped": "there is no ncu"}
    done = m.run(tool, "--set", "base", "--csv", m.args.bench, m.args.backend, "product", "Q8_0", 4096, 14336, 1, "1,64,512",
                 statuses=(0, 1))
    return {"csv": done.stdout.splitlines()}


def part_4(m):
    shape = "tiny" if m.args.small else "8b"

    def step(m):
        done = m.millrace("bench", m.model(shape, "Q8_0"), "-p", 0, "-n", 4 if m.args.small else 32, "-r", 1,
                          MILLRACE_GRAPH_DEBUG="timing")
        return {"said": (done.stdout + done.stderr).splitlines()[-400:]}
    yield "parts of a step", step
    yield "profile", profile


PARTS = {1: part_1, 2: part_2, 3: part_3, 4: part_4}


# --- Results ------------------------------------------------------------------------------------------------------------

def bits_differ(result):
    """Whether a result, or a part of it, says that bits differ."""
    if isinstance(result, list):
        return any(map(bits_differ, result))
    return isinstance(result, dict) and result.get("same") is False


def run_part(m, part, results, save):
    """Returns False if the time is up."""
    for name, step in PARTS[part](m):
        key = f"{part} {name}"
        if "result" in results.get(key, {}):
            continue
        if m.left_s() <= 0:
            print(f"the time is up before: {key}")
            return False
        begin = time.monotonic()
        try:
            results[key] = {"result": step(m)}
        except Failed as e:
            results[key] = {"error": str(e)}
        results[key]["seconds"] = round(time.monotonic() - begin, 2)
        save()
        word = ("failed: " + results[key]["error"] if "error" in results[key] else
                "DIFFERENT BITS" if bits_differ(results[key]["result"]) else "done")
        print(f"{results[key]['seconds']:8.1f} s  {key}: {word}", flush=True)
    return True


def run_parts(args):
    m = Machine(args)
    results = json.loads(args.results.read_text()) if args.results.exists() else {}

    def save():
        new = args.results.with_suffix(".new")
        new.write_text(json.dumps(results, indent=1))
        new.rename(args.results)
    for part in args.part:
        if not run_part(m, part, results, save):
            break
    save()
    failed = [k for k, r in results.items() if "error" in r]
    different = [k for k, r in results.items() if bits_differ(r.get("result"))]
    print(f"{len(results)} steps, {len(failed)} failed, {len(different)} with other bits than the CPU")
    return 1 if failed or different else 0


# --- Packing ------------------------------------------------------------------------------------------------------------

def libraries(program):
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if len(words) > 2 and words[1] == "=>" and not words[0].startswith(SYSTEM_LIBRARIES):
            yield words[2]


def pack(args):
    target, build = args.pack, args.build
    shutil.rmtree(target, ignore_errors=True)
    (target / "bin").mkdir(parents=True)
    (target / "lib").mkdir()
    for name in ("millrace", "bench_device"):
        subprocess.run(["strip", "-o", target / "bin" / name, build / "bin" / name], check=True)
        for library in libraries(build / "bin" / name):
            shutil.copy(library, target / "lib")
    shutil.copy(build / "bin" / "millrace-demo.gguf", target / "bin")
    for script in ("gpu.py", "make_random_model.py"):
        shutil.copy(HERE / script, target)
    if args.llama_cpp:
        shutil.copytree(args.llama_cpp, target / "llama.cpp")
    size = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
    print(f"{target}: {size / 2**20:.1f} MiB")
    if size >= PACK_BYTES:
        sys.exit(f"error: {target} has more than {PACK_BYTES >> 20} MiB")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=HERE / "../../build/release")
    parser.add_argument("--llama-cpp", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--part", type=lambda s: [int(p) for p in s.split(",")], default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--models", type=pathlib.Path, default=pathlib.Path("/tmp/gpu-models"))
    parser.add_argument("--program", default=HERE / "bin/millrace")
    parser.add_argument("--bench", default=HERE / "bin/bench_device")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--emulated", action="store_true")
    args = parser.parse_args()
    if args.emulated:
        args.small = True
        args.program, args.bench = (args.build / "bin" / name for name in ("millrace_emulated", "bench_device_emulated"))
    if args.pack:
        return pack(args)
    if not args.results:
        parser.error("--results or --pack is needed")
    return run_parts(args)


if __name__ == "__main__":
    sys.exit(main())
