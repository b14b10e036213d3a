#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/lint over a small tree: a clean one has no finding, and one violation of each rule is found in its line."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
COPIED = (".clang-format", "deploy/lib/say.sh", "deploy/lib/commit.cmake", "proto/CMakeLists.txt", "proto/millrace.proto",
          "engine/base/arena.c", "engine/base/arena.h", "engine/base/mem_available.c", "engine/base/mem.h",
          "backends/cpu/cpu_kernels.def", "proto/README.md")
LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
WIDE = "word " * 25


class Lint(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="millrace-lint-"))
        self.addCleanup(shutil.rmtree, self.root)
        for path in COPIED:
            self.write(path, (SOURCE / path).read_text(encoding="utf-8"))
        self.write("engine/base/names.h", '/* engine/base/names.h - names. */\n' + LICENCE +
                   "#ifndef MR_ENGINE_BASE_NAMES_H\n#define MR_ENGINE_BASE_NAMES_H\n#endif\n")

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def change(self, path, old, new):
        text = (self.root / path).read_text(encoding="utf-8")
        self.assertIn(old, text)
        self.write(path, text.replace(old, new, 1))

    def lint(self, env=None):
        done = subprocess.run([sys.executable, SOURCE / "deploy" / "lint", "--root", self.root], capture_output=True,
                              text=True, env=env)
        self.assertEqual(done.stderr, "")
        *lines, count = done.stdout.splitlines()
        findings = [line for line in lines if not line.startswith("skipped: ")]
        self.assertRegex(count, rf"^lint: \d+ files, {len(findings)} findings$")
        self.assertEqual(done.returncode, 1 if findings else 0)
        return findings, [line for line in lines if line.startswith("skipped: ")]

    def expect(self, *findings):
        self.assertEqual(self.lint()[0], sorted(findings))

    def test_clean_tree(self):
        self.expect()

    def test_layout(self):
        if self.lint()[1]:
            self.skipTest("a tool is not installed")
        for name in ("a.c", "a.cu", "a.cpp"):
            self.write("engine/" + name, "/* A file. */\n" + LICENCE + "int  x;\n")
        self.expect(*(f"engine/{name}:3: clang-format would lay it out in another way"
                      for name in ("a.c", "a.cu", "a.cpp")))

    def test_shell(self):
        if self.lint()[1]:
            self.skipTest("a tool is not installed")
        self.write("deploy/a.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nls $1\n")
        findings, _ = self.lint()
        self.assertEqual(len(findings), 1, findings)
        self.assertRegex(findings[0], r"^deploy/a\.sh:3: .*\[SC2086\]$")

    def test_links(self):
        self.write("A.md", "# A page, with a heading\n\n[file](proto/README.md) [folder](proto) [site](https://a.b/c#d)\n"
                   "[here](#a-page-with-a-heading)\n![picture](deploy/a.png)\n")
        self.expect()
        self.write("proto/B.md", "[no file](c.md)\n[good](../A.md#a-page-with-a-heading)\n[no heading](../A.md#b)\n")
        self.expect("proto/B.md:1: the link leads to proto/c.md, which does not exist",
                    "proto/B.md:3: the link leads to #b, a heading that A.md does not have")

    def test_missing_tools_are_said(self):
        findings, skipped = self.lint({"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")})
        self.assertEqual(findings, [])
        self.assertEqual([line.split(",")[0] for line in skipped], ["skipped: layout", "skipped: shell"])

    def test_columns(self):
        for path, before in (("engine/a.c", "/* A file.\n"), ("proto/a.proto", LICENCE), ("engine/CMakeLists.txt", "\n"),
                             ("engine/a.def", LICENCE), ("a.md", "\n")):
            text = f"/* {WIDE}*/\n" if path.endswith((".def", ".proto")) else WIDE + "\n"
            self.write(path, before + text + ("*/\n" + LICENCE if path.endswith(".c") else ""))
        self.expect(*(f"{path}:2: {n} columns, more than 120" for path, n in
                      (("engine/a.c", 125), ("proto/a.proto", 130), ("engine/CMakeLists.txt", 125),
                       ("engine/a.def", 130), ("a.md", 125))))

    def test_columns_of_markdown_that_do_not_count(self):
        self.write("a.md", f"| {WIDE}|\n\n```\n{WIDE}\n```\n\n[a](https://host/{'x' * 120}) and more\n")
        self.expect()

    def test_paths(self):
        self.change("engine/base/names.h", "#ifndef MR_ENGINE_BASE", "#ifndef MR_BASE")
        self.change("engine/base/names.h", "#define MR_ENGINE_BASE", "#define MR_BASE")
        self.change("engine/base/mem_available.c", "engine/base/mem_available.c", "base/mem_available.c")
        self.write("engine/no_guard.h", "/* engine/no_guard.h - nothing. */\n" + LICENCE)
        self.write("engine/no_path.h", "/* Nothing. */\n" + LICENCE +
                   "#ifndef MR_ENGINE_NO_PATH_H\n#define MR_ENGINE_NO_PATH_H\n#endif\n")
        self.expect("engine/base/mem_available.c:1: the head names base/mem_available.c instead of "
                    "engine/base/mem_available.c",
                    "engine/base/names.h:3: the header guard is MR_BASE_NAMES_H instead of MR_ENGINE_BASE_NAMES_H",
                    "engine/no_guard.h:1: there is no header guard MR_ENGINE_NO_GUARD_H",
                    'engine/no_path.h:1: the first line does not begin with "/* engine/no_path.h - "')

    def test_licence(self):
        for path in ("a.py", "a.cmake", "a.sh"):
            self.write(path, "# Nothing.\n# shellcheck shell=bash\n" if path == "a.sh" else "# Nothing.\n")
        self.write("engine/a.c", "/* A file. */\nint x;\n" + LICENCE)
        self.expect(*(f'{path}:1: no "SPDX-License-Identifier: Apache-2.0" above the first line of code'
                      for path in ("a.py", "a.cmake", "a.sh", "engine/a.c")))

    def test_heads(self):
        self.write("engine/base/names.c", LICENCE + "int x;\n")  # names.h has the head
        for name in ("a.c", "a.cu", "a.cpp"):
            self.write("engine/" + name, LICENCE + "int x; /* too late */\n")
        self.expect(*(f"engine/{name}:1: no comment at the start says what the file does"
                      for name in ("a.c", "a.cu", "a.cpp")))

    def test_lengths(self):
        lines = "    x();\n"
        self.write("engine/a.c", "/* A file. */\n" + LICENCE + "#include <x.h>\n\nvoid f(int a,\n       int b) {\n" +
                   lines * 58 + "}\n\nvoid g(void) {\n" + lines * 58 + "}\n")
        self.write("a.py", "# SPDX-License-Identifier: Apache-2.0\ndef f():\n" + "    x()\n" * 600)
        findings = [line for line in self.lint()[0] if "clang-format" not in line]
        self.assertEqual(findings, ["a.py:1: 602 lines, more than 600", "a.py:2: f has 601 lines, more than 60",
                                    "engine/a.c:5: f has 61 lines, more than 60"])

    def test_names(self):
        self.write("engine/a.c", "/* A file, with mr_arena_create(), mr_arena_..., arena.h, *_vec.h and mr_nothing. */\n" +
                   LICENCE + "/* See missing_part.c and\n * missing_part(). */\nint x;\n")
        self.expect("engine/a.c:1: there is no mr_nothing", "engine/a.c:3: there is no missing_part.c",
                    "engine/a.c:4: there is no missing_part")

    def test_exceptions(self):
        self.write("engine/a.c", LICENCE + "/* gone.c */\n")
        self.write("deploy/lib/lint_exceptions.txt", "# Exceptions\nname gone.c  a file that will come\nname arena.h\n")
        self.expect("deploy/lib/lint_exceptions.txt:3: the exception has no reason",
                    'deploy/lib/lint_exceptions.txt:3: nothing needs the exception "name arena.h" any more')


if __name__ == "__main__":
    unittest.main()
