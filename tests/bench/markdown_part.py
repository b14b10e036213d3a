# SPDX-License-Identifier: Apache-2.0
"""A part of a Markdown file that a program writes: its first and last line are comments that tell it from others."""
import os


def replace(path, text):
    """Puts text into the place of the part with the same first and last line, or at the end of the file."""
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
