# SPDX-License-Identifier: Apache-2.0
"""Reads the text format of Prometheus (0.0.4), strictly, as `promtool check metrics` does: read(text) gives {name: Family},
and whatever is wrong is a ValueError that names the line."""
import dataclasses
import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL},?)*)\}})? ([^ ]+)")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?Inf|NaN")
ENDINGS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


@dataclasses.dataclass
class Family:
    name: str
    help: str
    kind: str = ""
    samples: list = dataclasses.field(default_factory=list)  # (name, labels as a dict, value)

    def value(self, **labels):
        """Of the one sample with these labels, others may stand beside them."""
        found = [v for _, l, v in self.samples if all(l.get(k) == x for k, x in labels.items())]
        if len(found) != 1:
            raise KeyError((self.name, labels, len(found)))
        return found[0]


def unescape(text):
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)


def read_sample(line):
    m = SAMPLE.fullmatch(line)
    if not m or (m[2] or "").endswith(","):
        raise ValueError("not a sample")
    labels = {}
    for key, value in re.findall(LABEL, m[2] or ""):
        if key in labels:
            raise ValueError(f"label {key} twice")
        labels[key] = unescape(value)
    if not NUMBER.fullmatch(m[5]):
        raise ValueError(f"'{m[5]}' is not a number")
    return m[1], labels, float(m[5].replace("Inf", "inf"))


def check_histogram(family):
    groups = {}
    for name, labels, value in family.samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        groups.setdefault(key, {}).setdefault(name[len(family.name):], []).append((labels.get("le"), value))
    for key, parts in groups.items():
        bounds = [float(le.replace("Inf", "inf")) for le, _ in parts.get("_bucket", [])]
        counts = [n for _, n in parts.get("_bucket", [])]
        if not bounds or bounds != sorted(set(bounds)) or bounds[-1] != math.inf:
            raise ValueError(f"{family.name}{key}: buckets {bounds} do not rise to +Inf")
        if counts != sorted(counts) or any(n != int(n) for n in counts):
            raise ValueError(f"{family.name}{key}: counts {counts} are not cumulative")
        if [n for _, n in parts.get("_count", [])] != [counts[-1]] or len(parts.get("_sum", [])) != 1:
            raise ValueError(f"{family.name}{key}: _count and _sum")


def check_family(family):
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in family.samples]
    if not keys or len(keys) != len(set(keys)):
        raise ValueError(f"{family.name}: no sample, or one twice")
    if not family.help or (family.kind == "counter") != family.name.endswith("_total"):
        raise ValueError(f"{family.name}: a counter without _total, another with it, or no help")
    if re.search(r"_(count|sum|bucket)$|_(milliseconds|ms|mb|kb)(_|$)", family.name):
        raise ValueError(f"{family.name}: the name")
    if family.kind == "counter" and any(not v >= 0 for _, _, v in family.samples):
        raise ValueError(f"{family.name}: a counter below 0")
    if family.kind == "histogram":
        check_histogram(family)


def read_line(line, families, last):
    """The family that the line belongs to; those before it are complete."""
    comment = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
    if comment and comment[1] == "HELP":
        if comment[2] in families:
            raise ValueError("a second HELP, or samples that are apart")
        families[comment[2]] = Family(comment[2], comment[3])
        return families[comment[2]]
    if comment:
        if not last or last.name != comment[2] or last.kind or comment[3] not in ENDINGS:
            raise ValueError("TYPE does not follow HELP, or is not known")
        last.kind = comment[3]
        return last
    name, labels, value = read_sample(line)
    if not last or not last.kind or name not in [last.name + e for e in ENDINGS[last.kind]]:
        raise ValueError("a sample outside of its family")
    if ("le" in labels) != name.endswith("_bucket"):
        raise ValueError("le")
    last.samples.append((name, labels, value))
    return last


def read(text):
    if text and not text.endswith("\n"):
        raise ValueError("the last line does not end")
    families, last = {}, None
    for i, line in enumerate(text.split("\n")[:-1], 1):
        try:
            last = read_line(line, families, last)
        except ValueError as e:
            raise ValueError(f"line {i}, {line!r}: {e}") from None
    for family in families.values():
        check_family(family)
    return families
