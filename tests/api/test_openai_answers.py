# SPDX-License-Identifier: Apache-2.0
"""Completions and embeddings, and what goes with them."""
import base64
import math
import os
import struct
import subprocess
import unittest

import test_packages

test_packages.enter("openai")

from openai_case import BIN, DEMO, STORY, Case  # noqa: E402

END, N_VOCAB = 2, 1024  # of the demo model: the end token, and the number of tokens


class Completions(Case):
    def test_plain(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(len(answer.choices), 1)
        self.assertGreater(len(answer.choices[0].text), 20)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 20)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 20)
        self.assertEqual(answer.model_extra["timings"]["predicted_n"], 20)

    def test_ends(self):
        answer = self.complete(max_tokens=None, temperature=0.3)
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))

    def test_streams(self):
        whole = self.complete()
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1]].count("length"), 1)
        # A reader that is late gets several tokens in one chunk.
        self.assertGreater(len(list(self.complete(stream=True, max_tokens=200))), 10)

    def test_prompts_as_ids(self):
        status, ids = self.post("/tokenize", {"content": STORY, "add_special": True})
        self.assertEqual(status, 200)
        self.assertEqual(self.complete(prompt=ids["tokens"]).choices[0].text, self.complete().choices[0].text)
        both = self.complete(prompt=[ids["tokens"], ids["tokens"]])
        self.assertEqual(both.choices[0].text, both.choices[1].text)
        status, text = self.post("/detokenize", {"tokens": ids["tokens"][1:]})
        self.assertEqual((status, text["content"].strip()), (200, STORY))

    def test_choices(self):
        answer = self.complete(prompt=[STORY, "The mill"], n=3, temperature=1)
        self.assertEqual([c.index for c in answer.choices], list(range(6)))
        self.assertEqual(len({c.text for c in answer.choices}), 6)
        self.assertEqual(answer.choices[0].text, self.complete(temperature=1).choices[0].text)
        texts = [""] * 6
        for chunk in self.complete(prompt=[STORY, "The mill"], n=3, temperature=1, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, [c.text for c in answer.choices])

    def test_stop(self):
        whole = self.complete(max_tokens=60).choices[0].text
        stop = whole[25:28]
        answer = self.complete(max_tokens=60, stop=["@@@", stop])
        self.assertEqual(answer.choices[0].text, whole[:whole.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_logprobs(self):
        answer = self.complete(logprobs=3, temperature=0, max_tokens=8)
        logprobs, text = answer.choices[0].logprobs, answer.choices[0].text
        self.assertEqual(len(logprobs.tokens), 8)
        self.assertEqual("".join(logprobs.tokens), text)
        for token, logprob, top, offset in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs,
                                               logprobs.text_offset):
            self.assertEqual(max(top.values()), logprob)  # greedy
            self.assertEqual(len(top), 3)
            self.assertLessEqual(math.fsum(math.exp(p) for p in top.values()), 1 + 1e-5)
            self.assertTrue(text[offset:].startswith(token))

    def test_logprobs_of_no_token(self):
        self.assertEqual(self.complete(logprobs=1, max_tokens=0).choices[0].logprobs.tokens, [])
        chat = self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": STORY}], logprobs=True,
                                                   max_tokens=0)
        self.assertEqual(chat.choices[0].logprobs.content, [])
        self.assertIsNone(self.complete(max_tokens=0).choices[0].logprobs)

    def test_echo(self):
        answer = self.complete(echo=True, logprobs=0, max_tokens=1, temperature=0)
        choice = answer.choices[0]
        self.assertTrue(choice.text.startswith(STORY))
        self.assertEqual(len(choice.logprobs.tokens), answer.usage.prompt_tokens + 1)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(p <= 0 for p in choice.logprobs.token_logprobs[1:]))
        # The same tokens, once generated and once read.
        again = self.complete(prompt=choice.text, echo=True, logprobs=0, max_tokens=1, temperature=0)
        self.assertEqual(again.choices[0].logprobs.token_logprobs[:len(choice.logprobs.tokens)],
                         choice.logprobs.token_logprobs)

    def entries(self, answers):
        """({choice: tokens with log-probabilities}, texts of choices) of an answer, or of the events of one."""
        entries, texts = {}, {}
        for answer in answers:
            for choice in answer.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                if choice.logprobs:
                    lists = [choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs,
                             choice.logprobs.text_offset]
                    self.assertEqual(len({len(values) for values in lists}), 1)
                    entries.setdefault(choice.index, []).extend(zip(lists[0], lists[3]))
        return entries, texts

    def test_an_entry_for_each_token(self):
        """Also for tokens that are not in the text, because they end it: clients count entries."""
        first = self.complete(logprobs=0, temperature=0, max_tokens=1).choices[0].logprobs.tokens[0]
        first_id = self.post("/tokenize", {"content": STORY + first})[1]["tokens"][-1]
        written = self.complete(temperature=0, max_tokens=8).choices[0].text
        ends = {"end token": {"logit_bias": {str(END): 100}},
                "stop id": {"extra_body": {"stop_token_ids": [first_id]}},
                "stop text": {"stop": [first]},
                "stop text of several tokens": {"stop": [written[2:9]], "max_tokens": 8},
                "begun stop text": {"stop": [written[:5] + "@"], "max_tokens": 3},
                "length": {}}
        forms = [{}, {"n": 2}, {"stream": True, "stream_options": {"include_usage": True}}, {"prompt": [STORY, "The mill"]}]
        for name, end in ends.items():
            for form in forms:
                for echo in True, False:
                    with self.subTest(name, form=form, echo=echo):
                        answer = self.complete(**{"logprobs": 1, "temperature": 0, "max_tokens": 1, "echo": echo, **end, **form})
                        answers = list(answer) if "stream" in form else [answer]
                        entries, texts = self.entries(answers)
                        usage, n = answers[-1].usage, form.get("n", 1)
                        self.assertEqual(sum(map(len, entries.values())),
                                         usage.completion_tokens + echo * n * usage.prompt_tokens)
                        offsets = [offset for _, offset in entries[0]]
                        self.assertEqual(offsets, sorted(offsets))
                        self.assertLessEqual(offsets[-1], len(texts[0]))
                        if name in ("end token", "stop id", "stop text"):
                            self.assertEqual((texts[0], offsets[-1]), (STORY * echo, len(STORY) * echo))
                            self.assertEqual(entries[0][-1][0], "</s>" if name == "end token" else first)

    def test_chats_list_no_end_token(self):
        for stream in False, True:
            answer = self.chat(logprobs=True, logit_bias={str(END): 100}, stream=stream)
            lists = [c.choices[0].logprobs for c in (answer if stream else [answer]) if c.choices]
            self.assertEqual([entry for one in lists if one for entry in one.content], [])

    def true_sums(self, pairs):
        """Log-likelihoods of continuations, from the logits that `millrace logits` writes."""
        sums, ids, logits = [], os.path.join(self.folder, "ids"), os.path.join(self.folder, "logits")
        for context, continuation in pairs:
            with open(ids, "w", encoding="ascii") as file:
                file.write(" ".join(map(str, context + continuation)))
            rows = str(len(continuation) + 1)
            subprocess.run([BIN, "logits", DEMO, "--ids-file", ids, "-o", logits, "--last", rows], stderr=subprocess.DEVNULL,
                           check=True)
            with open(logits, "rb") as file:
                rows = struct.iter_unpack(f"<{N_VOCAB}f", file.read())
            sums.append(sum(row[token] - math.log(math.fsum(map(math.exp, row))) for row, token in zip(rows, continuation)))
        return sums

    def test_log_likelihoods(self):
        """As lm-eval asks for them: it drops the last entry of each answer, that of the one generated token."""
        texts = [(STORY, " there was a mill."), (STORY, ","), ("The mill stood", " by the river, and nobody knew"), ("A", "b"),
                 ("The children", "\n\n\u00e4\u20ac\U0001f999 x")]
        ids = [[self.post("/tokenize", {"content": t})[1]["tokens"] for t in pair] for pair in texts]
        pairs = [([1] + context, continuation) for context, continuation in ids]
        true = self.true_sums(pairs)
        for end in {}, {"logit_bias": {str(END): 100}}:
            answer = self.complete(prompt=[a + b for a, b in pairs], echo=True, logprobs=1, max_tokens=1, temperature=0, **end)
            for choice, (context, _), sum_of_logits in zip(answer.choices, pairs, true):
                self.assertEqual(choice.finish_reason, "stop" if end else "length")
                self.assertAlmostEqual(math.fsum(choice.logprobs.token_logprobs[len(context):-1]), sum_of_logits, delta=1e-5)

    def test_samplers(self):
        greedy = self.complete(temperature=0).choices[0].text
        self.assertEqual(self.complete(temperature=0, seed=8).choices[0].text, greedy)
        self.assertEqual(self.complete(temperature=5, extra_body={"top_k": 1}).choices[0].text, greedy)
        self.assertEqual(self.complete(temperature=1, top_p=0).choices[0].text, greedy)
        self.assertEqual(self.complete(temperature=1, extra_body={"min_p": 1}).choices[0].text, greedy)
        self.assertNotEqual(self.complete(temperature=0, presence_penalty=2, frequency_penalty=2,
                                          max_tokens=60).choices[0].text,
                            self.complete(temperature=0, max_tokens=60).choices[0].text)
        for extra in ({"mirostat": 1}, {"mirostat": 2}, {"typical_p": 0.5}, {"top_n_sigma": 1}, {"dry_multiplier": 0.8},
                      {"xtc_probability": 0.5}, {"repeat_penalty": 1.3}):
            with self.subTest(extra):
                one, two = (self.complete(temperature=1, extra_body=extra).choices[0].text for _ in range(2))
                self.assertEqual(one, two)

    def test_logit_bias(self):
        status, ids = self.post("/tokenize", {"content": " the"})
        self.assertEqual(status, 200)
        answer = self.complete(logit_bias={str(ids["tokens"][-1]): 100}, max_tokens=3, temperature=0, logprobs=0)
        self.assertEqual(len(set(answer.choices[0].logprobs.tokens)), 1)

    def test_grammar(self):
        answer = self.complete(extra_body={"grammar": 'root ::= "yes" | "no"'}, temperature=1)
        self.assertIn(answer.choices[0].text, ("yes", "no"))
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        answer = self.complete(extra_body={"grammar": 'root ::= "yes"', "ignore_eos": True}, max_tokens=30)
        self.assertEqual((answer.choices[0].text, answer.choices[0].finish_reason), ("yes", "stop"))


class Embeddings(Case):
    def embed(self, *texts, **fields):
        return [d.embedding for d in self.client.embeddings.create(model="demo", input=list(texts), **fields).data]

    def test_shapes(self):
        one = self.client.embeddings.create(model="demo", input=STORY)
        self.assertEqual(len(one.data), 1)
        self.assertAlmostEqual(math.fsum(x * x for x in one.data[0].embedding), 1, places=5)
        self.assertGreater(one.usage.prompt_tokens, 2)
        many = self.embed(*[f"The mill number {i}" for i in range(100)])
        self.assertEqual(len(many), 100)
        self.assertNotEqual(many[0], many[99])
        self.assertEqual(self.embed("The mill number 99")[0], many[99])

    def test_encodings(self):
        floats = struct.pack("<256f", *self.embed(STORY, encoding_format="float")[0])
        self.assertEqual(base64.b64decode(self.embed(STORY, encoding_format="base64")[0]), floats)
        self.assertEqual(struct.pack("<256f", *self.embed(STORY)[0]), floats)  # the client asks for base64

    def test_dimensions(self):
        whole, short = self.embed(STORY)[0], self.embed(STORY, dimensions=64)[0]
        length = math.sqrt(math.fsum(x * x for x in whole[:64]))
        self.assertEqual(len(short), 64)
        for x, y in zip(whole, short):
            self.assertAlmostEqual(x / length, y, places=5)

    def test_pooling(self):
        found = [self.embed(STORY, extra_body={"pooling": p})[0] for p in ("mean", "cls", "last")]
        self.assertEqual(len({tuple(e) for e in found}), 3)


if __name__ == "__main__":
    unittest.main()
