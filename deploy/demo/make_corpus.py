#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of the demo model: short stories from a seeded grammar, separated by a NUL byte.

Every sentence was invented for this project. The grammar is text in which {a|b|c} is a choice (it nests), and <slot>
a word of the story's cast and setting; a capital slot name capitalises the word. A plot (plots.py) is one such text
plus the words that must agree with each other over the whole story.
"""
import argparse
import random
import re

from plots import PLOTS
from words import (ADJECTIVES, ANIMALS, ASIDES, BOYS, COLOUR, CROSSERS, DAY, DENS, GIRLS, HOMES, OPENINGS, RIVERS,
                   THANK, VILLAGES, WORKERS)


def gendered(v, prefix, name, girl):
    """Sets the name and the pronouns of one character."""
    words = ("she", "her", "her", "herself") if girl else ("he", "him", "his", "himself")
    v[prefix] = name
    for key, word in zip(("he", "him", "his", "himself"), words):
        v[key if prefix == "h" else prefix + key] = word


def cast(rng, dry):
    """Hero, friend and a third one, of different names and kinds, and the setting. dry: nobody who can cross water."""
    v = {}
    names, kinds = set(), set()
    for prefix in ("h", "f", "g"):
        girl = rng.random() < 0.5
        name = rng.choice([n for n in (GIRLS if girl else BOYS) if n not in names])
        pool = rng.choice([ANIMALS, ANIMALS, WORKERS, WORKERS if prefix != "h" else ["girl" if girl else "boy"]])
        kind = rng.choice([k for k in pool if k not in kinds] or ANIMALS)
        while kind in kinds or (dry and kind in CROSSERS):
            kind = rng.choice(ANIMALS)
        names.add(name)
        kinds.add(kind)
        gendered(v, prefix, name, girl)
        v[prefix + "k"] = kind
    v["adj"] = rng.choice(ADJECTIVES)
    v["fadj"] = rng.choice(["old", "old", "friendly", "kind", "clever", "cheerful"])
    v["village"], v["river"] = rng.choice(VILLAGES), rng.choice(RIVERS)
    v["home"] = rng.choice(HOMES + DENS if v["hk"] in ANIMALS else HOMES)
    return v


def expand(rng, text):
    """Resolves the innermost {a|b|c} until none is left."""
    choice = re.compile(r"\{([^{}]*)\}")
    while "{" in text:
        text = choice.sub(lambda m: rng.choice(m.group(1).split("|")), text)
    return text


def fill(rng, text, v):
    def slot(m):
        key = m.group(1)
        if key in v:
            return v[key]
        value = v[key[0].lower() + key[1:]]
        return value[0].upper() + value[1:]
    while "<" in text or "{" in text:
        text = expand(rng, re.sub(r"<(\w+)>", slot, text))
    return text


SAYS = r"(?:\w+ ){0,3}(?:said|asked|cried|called|shouted|whispered|thought|wondered|sighed)\b"


def tidy(text):
    """Spaces, capitals at the start of sentences and of what is said, and a or an."""
    def up(m):
        return m.group(1) + m.group(2).upper()
    text = "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    text = re.sub(r" ([.,!?])", r"\1", text)
    text = re.sub(r"((?:^|\n|[.!?] )\"?)([a-z])", up, text)
    text = re.sub(r"(\.\" )([a-z])", up, text)
    text = re.sub(r"([!?]\" )(?!" + SAYS + r")([a-z])", up, text)
    text = re.sub(r"((?:said|him|her): \")([a-z])", up, text)
    text = re.sub(r"([.!?]\" \")([a-z])", up, text)
    # He said, "Come." But: "Come," he said, "and sit."
    text = re.sub(r"(,\" [^\".!?\n]*, \")|(, \")([a-z])", lambda m: m.group(1) or m.group(2) + m.group(3).upper(), text)
    return re.sub(r"\b([Aa]) (?=[aei]|o(?!ne)|u(?!s)|honest)", r"\1n ", text)


def story(rng):
    plot = rng.choice(PLOTS)
    v = cast(rng, plot.dry)
    for group in plot.choices:
        v.update(rng.choice(group))
    v.update(open=rng.choice(OPENINGS), colour=rng.choice(COLOUR) if rng.random() < 0.5 else "", day=DAY, thank=THANK)
    parts = rng.choice(plot.texts).strip().split("\n\n")
    if rng.random() < 0.4:
        parts[rng.randrange(len(parts) - 1)] += " " + rng.choice(ASIDES)
    return tidy(fill(rng, "\n\n".join(parts), v))


def stories(seed, count):
    rng = random.Random(seed)
    while count > 0:
        text = story(rng)
        if 75 <= len(text.split()) <= 220:
            assert text.isascii() and not set("<>{}|") & set(text), text
            yield text
            count -= 1


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--count", type=int, default=60000)
    ap.add_argument("out")
    a = ap.parse_args()
    with open(a.out, "w", encoding="ascii", newline="\n") as f:
        for text in stories(a.seed, a.count):
            f.write(text + "\0")


if __name__ == "__main__":
    main()
