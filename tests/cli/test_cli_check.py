#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/check: which tests each form runs on which build, and what it says at the end. Scripts stand in for cmake, the
compilers and ctest, so nothing is installed or built."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("MILLRACE_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

CMAKE = """#!/bin/sh
case $1 in
--version) echo "cmake version 99.0" ;;
--preset)
    mkdir -p "build/$2/bin"
    printf 'CMAKE_C_COMPILER:FILEPATH=clang\\nCMAKE_HOME_DIRECTORY:INTERNAL=%s\\n' "$PWD" >"build/$2/CMakeCache.txt"
    printf '#!/bin/sh\\necho "instruction sets: %s"\\n' "$ISAS" >"build/$2/bin/millrace"
    chmod +x "build/$2/bin/millrace"
    printf '  "file": "%s/%s"\n' "$PWD" engine/good.c "$PWD" engine/bad.c "$PWD" tests/bad.c \
        >"build/$2/compile_commands.json"
    ;;
esac
"""
# Notes how it was called; test_stage fails with no more than AVX2 where that is wanted.
CTEST = """#!/bin/sh
printf '%s|%s|%s|%s|%s|%s\\n' "${PWD##*/}" "$MILLRACE_CPU_ISA" "$MILLRACE_TEST_SHARE" "$MILLRACE_TEST_LONG" \\
    "$MILLRACE_SOAK_S" "$*" >>"$CALLS"
case "$* " in
*" -L ^mpirun$ "*) [ ! "$NO_MPIRUN" ] || { echo "No tests were found!!!" && exit 0; } ;;
esac
if [ "$MILLRACE_CPU_ISA" = "$FAILS_WITH" ]; then
    echo "1/7 Test #3: test_stage ...***Failed  0.10 sec"
    echo "86% tests passed, 1 tests failed out of 7"
    exit 8
fi
echo "100% tests passed, 0 tests failed out of 7"
"""
# Reports a mistake in each file whose name matches $UNTIDY.
CLANG_TIDY = """#!/bin/sh
status=0
for file; do
    case $file in
    */$UNTIDY) echo "$file:1:1: error: a mistake [a-check]" && status=1 ;;
    esac
done
echo "1 warning generated." >&2
exit $status
"""


class Check(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="millrace-check-")
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(os.path.join(SOURCE, "deploy", "lib"), self.path("deploy/lib"))
        shutil.copy(os.path.join(SOURCE, "deploy", "check"), self.path("deploy/check"))
        shutil.copy(os.path.join(SOURCE, "CMakeLists.txt"), self.path("CMakeLists.txt"))
        self.write("deploy/packages.txt", "")
        os.mkdir(self.path("bin"))
        for folder in ("engine", "backends", "proto", "worker", "coordinator", "tests"):
            os.mkdir(self.path(folder))
        for name in ("engine/good.c", "engine/bad.c", "engine/not_compiled.c", "tests/bad.c"):
            self.write(name, "")
        for name, text in (("cmake", CMAKE), ("ctest", CTEST), ("clang", "#!/bin/sh\necho clang 99\n"),
                           ("clang-tidy", CLANG_TIDY),
                           ("../deploy/lint", "#!/bin/sh\necho lint: 9 files, 0 findings\n")):
            self.write("bin/" + name, text)
            os.chmod(self.path("bin/" + name), 0o755)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def check(self, *args, isas="scalar, avx2, avx512", fails_with="none", untidy="none", no_mpirun="", status=0):
        """Runs deploy/check. Returns for each run of ctest (build, instruction set, share, long, soak, arguments), and
        the lines of the summary. The runs of tests over mpirun go to self.mpirun: they run beside the others."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") and k != "CI"}
        env.update(PATH=self.path("bin") + ":" + env["PATH"], CALLS=self.path("calls"), ISAS=isas,
                   FAILS_WITH=fails_with, UNTIDY=untidy, NO_MPIRUN=no_mpirun, MILLRACE_TEST_PYTHON=sys.executable)
        done = subprocess.run([self.path("deploy/check"), *args], capture_output=True, env=env, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, status, (done.stdout, done.stderr))
        with open(self.path("calls"), encoding="utf-8") as f:
            calls = [tuple(line.rstrip("\n").split("|", 5)) for line in f]
        self.mpirun = [c for c in calls if " -L ^mpirun$" in c[5]]
        return ([c for c in calls if c not in self.mpirun],
                done.stdout.decode().partition("== summary")[2].splitlines())

    def test_default(self):
        calls, lines = self.check()
        self.assertEqual([c[:5] for c in calls], [("release", "", "4", "", "")])
        self.assertTrue(calls[0][5].endswith(" --timeout 600 -LE minutes|mpirun --no-tests=error -j 2"), calls)
        self.assertEqual([c[:5] for c in self.mpirun], [("release", "", "4", "", "")])
        self.assertTrue(self.mpirun[0][5].endswith(" --timeout 600 -j 1 -L ^mpirun$ -LE minutes"), self.mpirun)
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 15")

    def test_all(self):
        calls, lines = self.check("--all")
        self.assertEqual([c[:5] for c in calls], [("release", "", "1", "", ""), ("clang", "", "4", "", ""),
                                                  ("asan", "", "12", "", ""), ("tsan", "", "12", "", "")])
        self.assertEqual([c[:3] for c in self.mpirun], [("release", "", "1"), ("clang", "", "4"), ("asan", "", "12"),
                                                        ("tsan", "", "12")])
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 58")

    def test_the_release_has_tests_over_mpirun(self):
        _, lines = self.check("--all", no_mpirun="1", status=1)
        self.assertEqual([line for line in lines if line.startswith("FAILED")],
                         ["FAILED   release, mpirun: ctest itself"])
        self.assertEqual(lines[-1], "96% tests passed, 1 tests failed out of 31")

    def test_clang_tidy_finds_mistakes(self):
        _, lines = self.check("--all", untidy="bad.c", status=1)
        self.assertRegex("\n".join(lines), r"(?m)^tidy     2 files, 1 findings, in \d+ s$")
        self.assertIn("FAILED   clang: clang-tidy", lines)
        self.assertEqual(lines[-1], "98% tests passed, 1 tests failed out of 58")

    def test_long(self):
        calls, lines = self.check("--long")
        self.assertEqual([c[:5] for c in calls], [
            ("release", "", "1", "1", "600"), ("release", "scalar", "12", "0", "60"),
            ("release", "avx2", "12", "0", "60"), ("clang", "", "1", "1", "600"), ("asan", "", "1", "1", "600"),
            ("tsan", "", "1", "1", "600")])
        for call in calls:
            end = "-LE slow|minutes|mpi" if call[1] else "-LE mpirun"
            self.assertTrue(call[5].endswith(" --timeout 14400 " + end + " --no-tests=error -j 2"), call)
        self.assertEqual([line.split(";")[0].split(", built")[0] for line in lines if "; tests: " in line], [
            "release  clang 99", "release, scalar the same build", "release, avx2 the same build", "clang    clang 99",
            "asan     clang 99", "tsan     clang 99", *("%s, mpirun the same build" % c[0] for c in self.mpirun)])
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 72")

    def test_an_instruction_set_fails(self):
        calls, lines = self.check("--long", fails_with="avx2", status=1)
        self.assertEqual(len(calls), 6)
        self.assertIn("FAILED   release, avx2: test_stage", lines)
        self.assertEqual(lines[-1], "98% tests passed, 1 tests failed out of 72")

    def test_one_instruction_set(self):
        calls, _ = self.check("--long", isas="scalar")
        self.assertEqual([c[1] for c in calls], [""] * 4)

    def test_forms_exclude_each_other(self):
        self.write("calls", "")
        self.assertEqual(self.check("--all", "--long", status=2), ([], []))


if __name__ == "__main__":
    unittest.main()
