# SPDX-License-Identifier: Apache-2.0
"""A seeded request gives the same tokens alone, among 64 others, streamed or not, over one stage or three."""
import concurrent.futures
import unittest

import test_packages

test_packages.enter("openai")

from openai_case import STORY, Case  # noqa: E402

N_OTHERS = 64


class Asker(Case):
    def ids(self, i, stream):
        """Prompt, tokens and their log-probabilities, which are as exact as the ids."""
        fields = {"prompt": f"{STORY}, number {i % 7},", "temperature": 1, "seed": i, "logprobs": 1, "max_tokens": 24,
                  "stream": stream}
        if not stream:
            logprobs = self.complete(**fields).choices[0].logprobs
            return logprobs.tokens, logprobs.token_logprobs
        tokens, values = [], []
        for chunk in self.complete(**fields):
            if chunk.choices[0].logprobs:
                tokens += chunk.choices[0].logprobs.tokens
                values += chunk.choices[0].logprobs.token_logprobs
        return tokens, values

    def alone(self):
        return [self.ids(i, False) for i in range(8)]


class Stages(Asker):
    options = ["--stages", "3"]


class Same(Asker):
    def test_same(self):
        alone = self.alone()
        with concurrent.futures.ThreadPoolExecutor(N_OTHERS + 1) as clients:
            among = list(clients.map(lambda i: self.ids(i, i % 2 == 0), range(N_OTHERS + 1)))
        self.assertEqual(among[:8], alone)
        self.assertEqual([self.ids(i, True) for i in range(8)], alone)

    def test_stages(self):
        Stages.setUpClass()
        self.addCleanup(Stages.doClassCleanups)
        self.assertEqual(Stages("alone").alone(), self.alone())


if __name__ == "__main__":
    unittest.main()
