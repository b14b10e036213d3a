# SPDX-License-Identifier: Apache-2.0
"""Writes a generated part of a Markdown file. The first and last line of the part are comments that identify it."""
import os


def replace(path, text):
    """Replaces the part with the same first and last line as text. Without such a part, appends text to the file."""
    old = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            old = f.read()
    first, last = text.splitlines()[0], text.splitlines()[-1]
    if first in old and last in old:
        new = old[:old.index(first)] + text.rstrip("\n") + old[old.index(last) + len(last):]
    else:
        new = old + ("\n" if old else "") + text
    with open(path, "w", encoding="utf-8") as f:
        f.write(new)
