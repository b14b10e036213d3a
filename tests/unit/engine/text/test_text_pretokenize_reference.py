#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where pre-tokenizers cut, compared with the tokenizers package on the patterns of the models' own tokenizers. The texts
are random, of all scripts. `--long` (or MILLRACE_TEST_LONG=1) takes 10,000 texts instead of 500, `--seed N` other ones."""
import os
import random
import struct
import subprocess
import sys
import unicodedata

from test_packages import enter

enter("tokenizers")
from tokenizers import Regex, pre_tokenizers  # noqa: E402

PROGRAM = os.environ["MILLRACE_PRETOKENIZE"]
LONG = "--long" in sys.argv or "MILLRACE_TEST_LONG" in os.environ
SEED = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 1

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
           r"|\s+(?!\S)|\s+")
SEED_CODER = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + TAIL


def cased(tail, but=""):
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + but + "]"
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + but + "]"
    prefix = r"[^\r\n\p{L}\p{N}]?"
    return f"{prefix}{upper}*{lower}+{tail}|{prefix}{upper}+{lower}*{tail}"


GPT4O = cased(CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL
TEKKEN = cased("") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL
KIMI_K2 = (r"[\p{Han}]+|" + cased(CONTRACTIONS + "?", r"&&[^\p{Han}]") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" +
           TAIL)
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"| ?[\p{P}\p{S}]+[\r\n]*" + TAIL)

DEEPSEEK_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-"
    "\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80"
    "-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")


def split(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


DIGITS = pre_tokenizers.Digits(individual_digits=True)
PUNCTUATION = pre_tokenizers.Punctuation("contiguous")
# Names of pre-tokenizers, and the steps of the original. ByteLevel's own regular expression is GPT2. The last two steps of
# falcon see bytes written as characters, so only ASCII digits are digits.
REFERENCES = [
    (["gpt-2", "gpt2", "default", "phi-2", "mpt", "olmo"], split(GPT2)),
    (["llama-bpe", "llama3", "llama-v3", "glm4", "glm5", "chatglm-bpe", "dbrx", "smaug-bpe"], split(CL100K % "{1,3}")),
    (["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "grok-2", "solar-open", "hunyuan"], split(CL100K % "")),
    (["bailingmoe", "bailingmoe2", "llada-moe"], split(BAILING)),
    (["qwen35"], split(QWEN35)),
    (["seed-coder"], split(SEED_CODER)),
    (["gpt-4o", "llama4", "minimax-m2", "kanana2"], split(GPT4O)),
    (["tekken"], split(TEKKEN)),
    (["kimi-k2"], split(KIMI_K2)),
    (["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
     split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3)),
    (["deepseek-coder"],
     split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+") + [DIGITS]),
    (["deepseek-llm"],
     split(r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
           r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+") + [DIGITS]),
    (["starcoder", "refact", "command-r", "smollm", "codeshell"], [DIGITS] + split(GPT2)),
    (["falcon"], [PUNCTUATION] + split(GPT2, "[0-9]+", "[0-9][0-9][0-9]")),
]

# Parts of texts: characters of one kind, from which runs are drawn, and whole fragments.
CLASSES = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "".join(map(chr, range(0x21, 0x7f))),
    " ", "\r\n", "\t\v\f\x1c\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000", "\u180e\u200b\u2060\ufeff",
    "'\u2019", "stmdrlveSTMDRLVE\u017f\u212a", "\x00\x01\x07\x1b\x7f\x80\x9f\xad",
    "\u00df\u00e9\u0130\u0131\u01c4\u01c5\u01c6\u1e9e\ufb03\ufb06\U00010400\U00010428", "\u02b0\u02bc\u0640\u3005\u309d\u0e46",
    "\u0391\u03b1\u03c2\u0410\u0433\u0451\u0531\u0561\u10d0\u1c90\u13a0\uab70", "\u05d0\u05e9\u0628\u0641\u0905\u0915\u0e01\u1000\u1780",
    "\u0300\u0301\u0308\u0483\u05b0\u064b\u093f\u094d\u0e31\u20dd\u20e3\U0001d165", "\u4e00\u4e2d\u6587\u9fa5\u9fa6\u3400\uf900\U00020000",
    "\u3007\u3021\u3038\u2e80\u2f00\u3001\u3002\u300c\uff01\uff21\uff11", "\u3042\u3093\u30a2\u30fc\u30fb\u30a0\u309b\u3099\uff71",
    "\uac00\ud55c\ud7a3\u1100\u3131", "\u00b2\u00bd\u0660\u0966\u2167\u2460\uff15\U0001d7d9", "\u20ac\u00a9\u2200\u2500\u266a\u00a7\u2026\u2014",
    "\U0001f600\U0001f680\U0001f468\u200d\ufe0f\U0001f3fd\U0001f1e9\U0001f1ea\U0001f999", "\ue000\U000f0000\U0010ffff",
]
FRAGMENTS = ["I'm ", "don't", "WE'LL", "he'D", "'\u017f", "camelCase", "HTTPServer", " the", "x = 1;\n", "\r\n\r\n", "  \n  ", "://", "//\n",
             "1234567", "3.14", "\u4e2dA", "a\u4e2d", "\t\t}", "-->", "e\u0301", "\u0915\u094d\u0937"]


def stable_characters():
    """Assigned characters whose category has been the same since Unicode 3.2: libraries differ in the others."""
    old = unicodedata.ucd_3_2_0
    return [c for c in map(chr, range(0x110000))
            if unicodedata.category(c) not in ("Cn", "Cs") and old.category(c) == unicodedata.category(c)]


def make_texts(n):
    draw = random.Random(SEED)
    stable = stable_characters()
    texts = ["", " ", "\n", "a"]
    while len(texts) < n:
        parts = []
        for _ in range(draw.randint(1, 16)):
            way = draw.random()
            if way < 0.15:
                parts.append(draw.choice(FRAGMENTS))
            elif way < 0.25:
                parts.append(draw.choice(stable))
            else:
                parts.append("".join(draw.choices(draw.choice(CLASSES), k=draw.choice((1, 1, 1, 2, 3, 5)))))
        texts.append("".join(parts))
    return texts


def our_ends(name, texts):
    """For each text the ends of its words, in bytes."""
    encoded = [t.encode() for t in texts]
    fed = b"".join(struct.pack("=I", len(t)) + t for t in encoded)
    out = subprocess.run([PROGRAM, name], input=fed, stdout=subprocess.PIPE, check=True).stdout
    ends, at = [], 0
    for _ in texts:
        n, = struct.unpack_from("=I", out, at)
        ends.append(list(struct.unpack_from(f"={n}I", out, at + 4)))
        at += 4 + 4 * n
    assert at == len(out), "the program wrote more than was asked"
    return ends


def their_ends(steps, text):
    words = pre_tokenizers.Sequence(steps).pre_tokenize_str(text)
    return [len(text[:end].encode()) for _, (_, end) in words]


def words(text, ends):
    data = text.encode()
    return [data[a:b].decode(errors="replace") for a, b in zip([0] + ends, ends)]


def main():
    texts = make_texts(10000 if LONG else 500)
    n_failed = 0
    for names, steps in REFERENCES:
        wanted = [their_ends(steps, t) for t in texts]
        print(f"{', '.join(names)}: {len(texts)} texts, {sum(map(len, wanted))} words")
        for name in names:
            wrong = [(t, w, g) for t, w, g in zip(texts, wanted, our_ends(name, texts)) if w != g]
            n_failed += bool(wrong)
            for text, want, got in wrong[:3]:
                print(f"{name} differs on {len(wrong)}: {ascii(text)}\n  wanted {ascii(words(text, want))}\n  got    {ascii(words(text, got))}")
    print(f"seed {SEED}: {n_failed} names differ")
    sys.exit(n_failed > 0)


main()
