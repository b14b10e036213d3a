# SPDX-License-Identifier: Apache-2.0
"""lm-eval's class for local-completions, in its own environment: reads pairs of texts from standard input, and prints what the
class gives for them. Argument: the address of the server, whose /tokenize is the tokenizer: none has to be downloaded."""
import json
import sys

import requests
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI


class Tokenizer:
    def encode(self, text):
        answer = requests.post(sys.argv[1] + "/tokenize", json={"content": text, "add_special": True}, timeout=60)
        answer.raise_for_status()
        return answer.json()["tokens"]


def main():
    lm = LocalCompletionsAPI(base_url=sys.argv[1] + "/v1/completions", model="gemma", tokenizer_backend="of the server",
                             batch_size=4)
    lm.tokenizer = Tokenizer()
    pairs = [Instance("loglikelihood", {}, tuple(pair), i) for i, pair in enumerate(json.load(sys.stdin))]
    print(json.dumps(lm.loglikelihood(pairs, disable_tqdm=True)))


main()
