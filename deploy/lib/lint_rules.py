# SPDX-License-Identifier: Apache-2.0
"""deploy/lib/lint_rules.py - the rules that deploy/lint checks by itself. Each takes a File and yields findings: the
line, what is wrong, and for a rule that allows exceptions the rule and subject as lint_exceptions.txt names them."""
import ast
import functools
import posixpath
import re

COLUMNS = 120
FUNCTION_LINES = 60
FILE_LINES = 600
C_KINDS = ("c", "h", "def", "cu", "cpp")
LICENCE = "SPDX-License-Identifier: Apache-2.0"

# A comment, or a literal in which no comment can start.
C_TOKEN = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


class File:
    """A text of the project. Its path is relative to the root; its kind is mostly the suffix of its name."""

    def __init__(self, path, text):
        self.path = path
        self.name = path.rsplit("/", 1)[-1]
        self.text = text
        self.lines = text.split("\n")
        self.kind = self.name.rsplit(".", 1)[-1] if "." in self.name else ""
        if self.name == "CMakeLists.txt":
            self.kind = "cmake"
        elif not self.kind and text.startswith("#!"):
            self.kind = "py" if "python" in self.lines[0] else "sh"
        self.is_c = self.kind in C_KINDS

    @functools.cached_property
    def comments(self):
        """(first line, text) of each comment of a C file."""
        return [(self.text.count("\n", 0, m.start()) + 1, m["comment"])
                for m in C_TOKEN.finditer(self.text) if m["comment"]]

    @functools.cached_property
    def code(self):
        """The text; of a C or C++ file without its comments, in as many lines."""
        if not self.is_c:
            return self.text
        return C_TOKEN.sub(lambda m: "\n" * m["comment"].count("\n") if m["comment"] else m[0], self.text)

    @functools.cached_property
    def first_code(self):
        """The number of the first line of code."""
        for n, line in enumerate(self.code.split("\n"), 1):
            if line.strip() and (self.is_c or not line.startswith(("#", "//"))):
                return n
        return len(self.lines) + 1

    def functions(self):
        """(name, first line, number of lines) of each function. C as clang-format lays it out, and shell."""
        if self.kind == "py":
            for node in ast.walk(ast.parse(self.text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield node.name, node.lineno, node.end_lineno - node.lineno + 1
            return
        start, name = 0, None
        for n, line in enumerate(self.code.split("\n"), 1):
            if re.match(r"[A-Za-z_]", line):
                start = n
                called = re.search(r"(\w+) ?\(", line)
                name = called[1] if called else None
            if line == "}" and name:
                yield name, start, n - start + 1
                name = None


class Tree:
    """What single files are checked against: the files of the project, and every word of its code."""

    def __init__(self, files):
        self.files = {f.path: f for f in files}
        self.paths = {"/" + f.path for f in files}
        self.words = set()
        for f in files:
            self.words.update(re.findall(r"[A-Za-z_]\w*", f.code))
        self.included = set(re.findall(r"#include [<\"](?:\S*/)?([\w.-]+)[>\"]", "\n".join(f.code for f in files)))

    def has_word(self, name):
        """Of a family of names, mr_arena_..., the start is enough."""
        return name in self.words or name.endswith("_") and any(w.startswith(name) for w in self.words)

    def has_file(self, name):
        return name in self.included or any(p.endswith("/" + name) for p in self.paths)


def markdown_prose(lines):
    """Lines of markdown as they count: nothing of tables and blocks of code, links without their targets."""
    in_code = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        in_code ^= fence
        left_out = fence or in_code or line.lstrip().startswith(("|", "!["))
        yield "" if left_out else re.sub(r"\]\([^)]*\)|https?://\S+", "", line)


def columns(f, _):
    """No line has more than 120 columns; tables, blocks of code and targets of links in markdown may."""
    if f.kind not in (*C_KINDS, "sh", "cmake", "proto", "md"):
        return
    for n, line in enumerate(markdown_prose(f.lines) if f.kind == "md" else f.lines, 1):
        if len(line) > COLUMNS:
            yield n, f"{len(line)} columns, more than {COLUMNS}"


def paths(f, _):
    """A header's guard and first line name its path, and no head names another path."""
    if f.kind == "h":
        guard = "MR_" + re.sub(r"\W", "_", f.path).upper()
        found = re.search(r"^#ifndef (\w+)\n#define \1\n", f.text, re.M)
        if not found:
            yield 1, f"there is no header guard {guard}"
        elif found[1] != guard:
            yield f.text.count("\n", 0, found.start()) + 1, f"the header guard is {found[1]} instead of {guard}"
        if not f.text.startswith(f"/* {f.path} - "):
            yield 1, f'the first line does not begin with "/* {f.path} - "'
        return
    for n, line in enumerate(f.lines[:3], 1):
        named = re.match(r'(?:/\*|//|#|""") ?((?:[\w.-]+/)*[\w-]+\.\w+) - ', line)
        if named and named[1] not in (f.path, f.name):
            yield n, f"the head names {named[1]} instead of {f.path}"


def licence(f, _):
    """Every source names its licence above its first line of code."""
    if f.name == "CMakeLists.txt" or f.kind not in (*C_KINDS, "proto", "py", "sh", "cmake", "js"):
        return
    if not any(LICENCE in line for line in f.lines[:f.first_code - 1]):
        yield 1, f'no "{LICENCE}" above the first line of code'


def heads(f, tree):
    """Every .c, .cu and .cpp file, or the header of its name, starts with a comment that says what it does."""
    has_header = f"/{f.path.rsplit('.', 1)[0]}.h" in tree.paths
    if f.kind in ("c", "cu", "cpp") and not has_header and all(LICENCE in text for n, text in f.comments if n < f.first_code):
        yield 1, "no comment at the start says what the file does", f"head {f.path}"


def lengths(f, _):
    """No function has more than 60 lines, and no file more than 600."""
    if f.kind not in (*C_KINDS, "sh", "py"):
        return
    n = f.text.count("\n")
    if n > FILE_LINES:
        yield 1, f"{n} lines, more than {FILE_LINES}", f"file {f.path}"
    for name, line, n in f.functions():
        if n > FUNCTION_LINES:
            yield line, f"{name} has {n} lines, more than {FUNCTION_LINES}", f"function {f.path}:{name}"


def names(f, tree):
    """Functions, names with mr_ and C files that comments of C files mention exist."""
    if not f.is_c:
        return
    for first, comment in f.comments:
        for m in re.finditer(r"(?<![\w/.*-])([a-z0-9_/-]+\.[ch])\b(?![.\w])|\b(mr_\w+|[A-Za-z_]\w*(?=\(\)))", comment):
            if not (tree.has_file(m[1]) if m[1] else tree.has_word(m[2])):
                line = first + comment.count("\n", 0, m.start())
                yield line, f"there is no {m[1] or m[2]}", f"name {m[1] or m[2]}"


def anchors(text):
    """What links can name in a page: its headings, as sites that show markdown make anchors of them."""
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def links(f, tree):
    """Links between pages lead to a file, and to a heading in it. Pictures are no texts: only their name is seen."""
    for n, line in enumerate(f.lines if f.kind == "md" else [], 1):
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#?([^)\s]*)\)", line):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(f.path), target)) if target else f.path
            page = tree.files.get(path)
            if not page and not path.endswith(".png") and not any(p.startswith("/" + path + "/") for p in tree.paths):
                yield n, f"the link leads to {path}, which does not exist"
            elif anchor and page and anchor not in anchors(page.text):
                yield n, f"the link leads to #{anchor}, a heading that {path} does not have"


RULES = (columns, paths, licence, heads, lengths, names, links)
