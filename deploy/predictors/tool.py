# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: numbers as options, windows of tokens of a text, and how they end."""
import argparse
import subprocess
import sys

import numpy as np

from model_file import Refused


def say(text):
    print(text, file=sys.stderr, flush=True)


def number(kind, low, high):
    """The type of an option: a number from low to high."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is no number from {low} to {high}")
        return value
    return parse


def parser(about):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--millrace", default="millrace", help="the program, which tokenizes TEXT (default %(default)s)")
    p.add_argument("--window", type=number(int, 8, 1 << 16), default=512, metavar="N",
                   help="tokens that the model sees at once (default %(default)s)")
    return p


def _ids(a):
    command = [a.millrace, "tokenize", a.model, "--bos", "--no-special", "-f", a.text, "--log-level", "error"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as e:
        raise Refused(f"{a.millrace}: {e.strerror}; hint: --millrace names the program, which tokenizes the "
                      "text") from e
    if done.returncode:
        raise Refused(f"{a.millrace} tokenize: {done.stderr.decode(errors='replace').strip()}")
    return np.array(done.stdout.split(), dtype=np.int64)


def windows(a, model, least, tokens=None):
    """Windows of ids as `millrace perplexity` cuts them: [windows, tokens]. If the model wants a token of begin, it
    replaces the first token of each. least: how few windows are refused. tokens: at most so many."""
    ids = _ids(a)
    n = min(len(ids), tokens or len(ids)) // a.window
    if n < least:
        raise Refused(f"{a.text}: {len(ids)} tokens make {n} windows of {a.window} tokens, fewer than {least}; hint: "
                      "take a longer text, a smaller --window" + (" or a greater --tokens" if tokens else ""))
    n_vocab = int(model.tensor("token_embd.weight", None, model.shape.width).shape[1])
    if ids.max() >= n_vocab:
        raise Refused(f"{a.model}: token {ids.max()} of the text is none of the {n_vocab} tokens of token_embd.weight")
    out = ids[:n * a.window].reshape(n, a.window).copy()
    if ids[0] == model.key("tokenizer.ggml.bos_token_id", -1):
        out[:, 0] = ids[0]
    return out


def run(main, a):
    """The exit status."""
    try:
        main(a)
    except Refused as e:
        say(f"{sys.argv[0].rpartition('/')[2]}: error: {e}")
        return 1
    return 0
