#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/check: what each part builds and runs, its stamp, second tries, and what it says at the end. Scripts stand in for
cmake, the compilers and ctest, so nothing is installed or built."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("MILLRACE_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

# Notes the options and the targets.
CMAKE = """#!/bin/sh
case $1 in
--version) echo "cmake version 99.0" ;;
--preset)
    echo "cmake $*" >>"$CALLS"
    mkdir -p "build/$2/bin"
    printf 'CMAKE_C_COMPILER:FILEPATH=%s\\nCMAKE_HOME_DIRECTORY:INTERNAL=%s\\n' "$(command -v clang)" "$PWD" \
        >"build/$2/CMakeCache.txt"
    printf '#!/bin/sh\\necho "instruction sets: scalar, avx2, avx512"\\n' >"build/$2/bin/millrace"
    chmod +x "build/$2/bin/millrace"
    printf '  "file": "%s/%s"\n' "$PWD" engine/good.c "$PWD" engine/bad.c "$PWD" tests/bad.c \
        >"build/$2/compile_commands.json"
    ;;
--build) echo "build $*" >>"$CALLS" && [ "$3" != "$UNBUILT" ] ;;
esac
"""
# Three tests of each build, of which one starts mpirun and one measures time. $FAILS has words like test_stage=***Failed
# for the first try, $FAILS_AGAIN for the second one; $OUTPUT is what a failed test prints.
CTEST = f"""#!{sys.executable}
import os, re, sys
TESTS = {{"test_stage": "unit", "test_late": "timed", "test_mpi": "mpirun"}}
args = sys.argv[1:]
option = lambda name: args[args.index(name) + 1] if name in args else None
names = [n for n, label in TESTS.items()
         if re.search(option("-L") or "", label) and not (option("-LE") and re.search(option("-LE"), label))
         and re.search(option("-R") or "", n)]
names = names or (list(TESTS) if "ANY" in os.environ else [])
names = [n for n in names if n not in os.environ.get("LACKS", "").split()]
if "-N" in args:
    print("".join("  Test #%d: %s\\n" % (i, n) for i, n in enumerate(names)))
    sys.exit()
with open(os.environ["CALLS"], "a", encoding="utf-8") as f:
    print("ctest", os.path.basename(os.getcwd()), *(os.environ.get("MILLRACE_" + k, "") for k in
          ("TEST_SHARE", "TEST_LONG", "SOAK_S", "CPU_ISA")), *args, sep="|", file=f)
if not names:
    sys.exit("No tests were found!!!")
fails = dict(w.split("=") for w in os.environ["FAILS_AGAIN" if "-R" in args and "-j" in args and option("-R")[0] == "^"
                                           else "FAILS"].split())
for i, n in enumerate(names, 1):
    print("%d/%d Test #%d: %s ......%s  0.10 sec" % (i, len(names), i, n, fails.get(n, "   Passed")))
    if n in fails:
        print(os.environ["OUTPUT"])
sys.exit(8 if any(n in fails for n in names) else int(os.environ["CTEST_STATUS"]))
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
DEFAULTS = {"FAILS": "", "FAILS_AGAIN": "", "OUTPUT": "too slow", "CTEST_STATUS": "0", "UNTIDY": "none", "UNBUILT": "",
            "LACKS": ""}


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
        for name in ("engine/good.c", "engine/bad.c", "engine/not_compiled.c", "tests/bad.c", ".gitignore"):
            self.write(name, "build/\nbin/\ncalls\n" if name == ".gitignore" else "")
        for name, text in (("cmake", CMAKE), ("ctest", CTEST), ("clang", "#!/bin/sh\necho clang 99\n"),
                           ("clang-tidy", CLANG_TIDY), ("gcc-11", "#!/bin/sh\n"), ("clang-14", "#!/bin/sh\n"),
                           ("python", "#!/bin/sh\necho a==1\n"), ("../deploy/lint", "#!/bin/sh\necho lint: 9 files, 0 findings\n")):
            self.write("bin/" + name, text)
            os.chmod(self.path("bin/" + name), 0o755)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def check(self, *args, status=0, **changes):
        """Runs deploy/check. Returns the lines of the summary. self.configured and self.built have the options and the
        targets of each build, self.runs those of ctest: build, share, long, soak, instruction set, arguments. The runs of
        tests over mpirun stand in self.mpirun, because they may run beside others."""
        self.write("calls", "")
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") and k not in ("CI", "CC", "CXX")}
        env.update(PATH=self.path("bin") + ":" + env["PATH"], CALLS=self.path("calls"),
                   MILLRACE_TEST_PYTHON=self.path("bin/python"), **{**DEFAULTS, **changes})
        done = subprocess.run([self.path("deploy/check"), *args], capture_output=True, env=env, timeout=120,
                              check=False)
        self.said = done.stdout.decode() + done.stderr.decode()
        self.assertEqual(done.returncode, status, self.said)
        with open(self.path("calls"), encoding="utf-8") as f:
            calls = f.read().splitlines()
        self.configured = {c.split()[2]: c for c in calls if c.startswith("cmake ")}
        self.built = {c.split()[3]: c.split()[5:] for c in calls if c.startswith("build ")}
        runs = [tuple(c.split("|")[1:6]) + (" ".join(c.split("|")[6:]),) for c in calls if c.startswith("ctest|")]
        self.mpirun = [r for r in runs if "-L ^mpirun$" in r[5]]
        self.runs = [r for r in runs if r not in self.mpirun]
        return done.stdout.decode().partition("== summary")[2].splitlines()

    def counts(self, lines, word):
        return [line for line in lines if line.startswith(word)]

    def test_default(self):
        lines = self.check()
        self.assertEqual([r[:5] for r in self.runs], [("release", "4", "", "", "")])
        self.assertRegex(self.runs[0][5], r"--timeout 600 -j \d+ --no-tests=error$")
        self.assertIn("-DMILLRACE_TEST_LEFT_OUT=long;minutes", self.configured["release"])
        self.assertEqual(self.built, {"release": ["all", "bench"]})
        self.assertRegex("\n".join(lines), r"(?m)^release  clang 99, built in .* 2 passed, 0 failed, 0 skipped")
        self.assertRegex("\n".join(lines), r"(?m)^mpirun   clang 99, built in .* 1 passed, 0 failed, 0 skipped")
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 4")
        self.check()  # no stamp counts
        self.assertEqual(len(self.runs), 1)

    def test_all(self):
        lines = self.check("--all")
        self.assertEqual([r[:5] for r in self.mpirun], [("release", "2", "", "", "")])
        self.assertEqual([r[:5] for r in self.runs], [("clang", "4", "", "", ""), ("asan", "12", "", "", ""),
                                                      ("tsan", "12", "", "", ""), ("release", "2", "", "", "")])
        for build, words in (("release", "LEFT_OUT=long -DMILLRACE_TEST_GPU=ON"),
                             ("clang", "ONLY=kernel;golden;conformance -DMILLRACE_TEST_LEFT_OUT=long "
                                       "-DMILLRACE_TEST_GPU=OFF"),
                             ("asan", "LEFT_OUT=long;no_asan -DMILLRACE_TEST_GPU=ON"),
                             ("tsan", "LEFT_OUT=long;no_tsan;kernel;cuda;fuzz;golden -DMILLRACE_TEST_GPU=OFF")):
            self.assertTrue(self.configured[build].endswith(words), self.configured[build])
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 14")

    def test_stamps(self):
        self.check("--only", "tsan")
        self.check("--only", "tsan")
        self.assertEqual(len(self.runs), 1)  # runs a part in any case
        lines = self.check("--all", FAILS="test_stage=***Failed", status=1)
        self.assertEqual([r[0] for r in self.runs], ["clang", "asan", "release"])
        self.assertRegex("\n".join(lines), r"(?m)^tsan .*; before this run$")
        lines = self.check("--all")
        self.assertEqual(([r[0] for r in self.runs], self.mpirun), (["release", "clang", "asan"], []))
        self.assertIn("-LE ^mpirun$", self.runs[0][5])  # those over mpirun have passed
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 14")
        self.check("--all")
        self.assertEqual(self.runs, [])
        self.write("tests/untracked.c", "")
        self.check("--all")
        self.assertEqual((len(self.runs), len(self.mpirun)), (4, 1))
        with open(self.path("build/checks/asan.stamp"), encoding="utf-8") as f:
            stamp = f.read()
        self.assertRegex(stamp, r"^tree [0-9a-f]{40}\nselection asan .* share 12 .*\ncompilers .*clang 99\nMPI .*\n"
                                r"Python packages [0-9a-f]{16}\nclients .*\nvectors [0-9a-f]{16}\n\n3\nasan ")
        os.chmod(self.path("tests/untracked.c"), 0o755)
        self.write("bin/clang", "#!/bin/sh\necho clang 100\n")
        self.check("--only", "asan")
        self.check("--all")
        self.assertEqual([r[0] for r in self.runs], ["clang", "tsan", "release"])

    def test_only_needs_a_part(self):
        for args in (["--only"], ["--only", "valgrind"], ["--all", "--long"], ["--only", "lint", "--all"], ["--fast"]):
            self.assertEqual(self.check(*args, status=2), [])
        self.check("--only", "mpirun")
        self.assertEqual((len(self.runs), len(self.mpirun)), (0, 1))

    def test_second_try(self):
        lines = self.check("--only", "release", FAILS="test_late=***Timeout")
        self.assertIn(" -j 1 -R ^(test_late)$", self.runs[1][5])
        self.assertEqual(self.counts(lines, "LATE"), ["LATE     release: test_late: passed at the second try"])
        self.assertEqual(lines[-1], "100% tests passed, 0 tests failed out of 2")

    def test_second_try_fails(self):
        lines = self.check("--only", "release", FAILS="test_late=***Failed", FAILS_AGAIN="test_late=***Failed", status=1)
        self.assertEqual(len(self.runs), 2)
        self.assertEqual(self.counts(lines, "FAILED"), ["FAILED   release: test_late"])

    def test_what_gets_no_second_try(self):
        for status, output in (("***Exception: SegFault", ""), ("***Failed", "==1==ERROR: AddressSanitizer: x"),
                               ("***Failed", "AssertionError: Lists differ"), ("***Failed", "WARNING: ThreadSanitizer"),
                               ("***Failed", "a.c:1:2: runtime error: overflow"), ("***Not_Run", ""),
                               ("Subprocess_aborted***Exception:", "")):
            self.check("--only", "release", FAILS="test_late=" + status.replace(" ", "_"), OUTPUT=output, status=1)
            self.assertEqual(len(self.runs), 1, (status, output))
        self.check("--only", "release", FAILS="test_stage=***Failed", status=1)  # without the label
        self.assertEqual(len(self.runs), 1)

    def test_more_than_two_second_tries(self):
        names = ["test_a", "test_b", "test_c"]
        self.write("bin/ctest", CTEST.replace('{"test_stage"', "{%s, \"test_stage\"" %
                                              ", ".join('"%s": "timed"' % n for n in names)))
        lines = self.check("--only", "release", FAILS=" ".join(n + "=***Failed" for n in names), status=1)
        self.assertEqual(self.counts(lines, "FAILED"), ["FAILED   release: 3 tests passed at the second try only"])
        self.assertEqual(len(self.counts(lines, "LATE")), 3)

    def test_nothing_runs(self):
        lines = self.check("--only", "mpirun", LACKS="test_mpi", status=1)
        self.assertRegex(self.counts(lines, "FAILED")[0], "FAILED   mpirun: ctest ended with status 1")
        lines = self.check("--only", "tsan", CTEST_STATUS="3", status=1)
        self.assertEqual(self.counts(lines, "FAILED"), ["FAILED   tsan: ctest ended with status 3"])

    def test_a_build_fails(self):
        lines = self.check("--all", UNBUILT="release", status=1)
        self.assertEqual([r[0] for r in self.runs], ["clang", "asan", "tsan"])
        self.assertEqual(self.counts(lines, "FAILED"), ["FAILED   mpirun: the build", "FAILED   release: the build"])

    def test_clang_tidy_finds_mistakes(self):
        lines = self.check("--only", "clang", UNTIDY="bad.c", status=1)
        self.assertRegex("\n".join(lines), r"(?m)^clang .*; clang-tidy: 2 files, 1 findings, in \d+ s$")
        self.assertEqual(self.counts(lines, "FAILED"), ["FAILED   clang: clang-tidy"])

    def test_long(self):
        self.check("--pieces")
        pieces = re.findall(r"^long-\S+$", self.said, re.M)
        lines = self.check("--long", ANY="1")
        self.assertEqual(len([line for line in lines if line.startswith("long-")]), len(pieces))
        self.assertEqual([r for r in self.runs if r[4]],
                         [("release", "12", "", "60", isa, r[5]) for isa, r in
                          zip(("scalar", "avx2"), [r for r in self.runs if r[4]])])
        self.assertRegex("\n".join(lines), "(?m)^long-isa-avxvnni left out: not an instruction set below")
        for run in self.runs:
            if not run[4] and run[0] in ("release", "clang", "asan", "tsan"):
                self.assertEqual(run[1:4], ("4", "1" if run[0] == "release" else "", "600"), run)
        self.check("--long", ANY="1")
        self.assertEqual(self.runs, [])


if __name__ == "__main__":
    unittest.main()
