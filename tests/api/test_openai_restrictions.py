# SPDX-License-Identifier: Apache-2.0
"""What requests say about the form and the length of answers, in vLLM's words: structured outputs, stop ids, least lengths, bad
words, long prompts cut short; alone, together, streamed and with several choices, the same for any number of stages."""
import concurrent.futures
import json
import re
import unittest

import test_packages

test_packages.enter("openai")

from openai_case import STORY, Case  # noqa: E402

REGEX, CHOICES = "(Ada|Finn) is [1-9][0-9]?\\.", ["the mill", "the \"river\"", "nobody"]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "old": {"type": "boolean"}}, "required": ["name", "old"]}
N = 8


class Restrictions(Case):
    options = ["--stages", "2", "--ctx", "512", "-t", "1"]
    answers = {}  # of both classes, by what was asked

    def text(self, fields, **more):
        answer = self.complete(temperature=1, max_tokens=80, extra_body=fields, **more)
        return [(c.text, c.finish_reason) for c in answer.choices]

    def check_same(self, fields):
        """Alone, among others, streamed; choices. Returns the texts of N seeds."""
        alone = [self.text(fields, seed=i) for i in range(N)]
        with concurrent.futures.ThreadPoolExecutor(N) as clients:
            self.assertEqual(list(clients.map(lambda i: self.text(fields, seed=i), range(N))), alone)
        chunks = self.complete(temperature=1, max_tokens=80, extra_body=fields, seed=0, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in chunks), alone[0][0][0])
        several = self.text(fields, seed=0, n=3)
        self.assertEqual(several[0], alone[0][0])
        key = json.dumps(fields, sort_keys=True)
        self.assertEqual(Restrictions.answers.setdefault(key, alone), alone)  # whatever the stages
        return [a[0] for a in alone] + several

    def test_regex(self):
        for fields in ({"guided_regex": REGEX}, {"structured_outputs": {"regex": REGEX}}):
            for text, finish in self.check_same(fields):
                self.assertTrue(re.fullmatch(REGEX, text), text)
                self.assertEqual(finish, "stop")

    def test_choice(self):
        for fields in ({"guided_choice": CHOICES}, {"structured_outputs": {"choice": CHOICES}}):
            found = {text for text, _ in self.check_same(fields)}
            self.assertTrue(found <= set(CHOICES), found)
            self.assertGreater(len(found), 1)

    def test_json(self):
        for fields in ({"guided_json": PERSON}, {"structured_outputs": {"json": PERSON}}, {"guided_json": json.dumps(PERSON)}):
            for text, finish in self.check_same(fields):
                self.assertEqual((set(json.loads(text)), finish), ({"name", "old"}, "stop"))

    def test_grammar(self):
        for text, _ in self.check_same({"structured_outputs": {"grammar": 'root ::= "x" [yz]{2,5}'}}):
            self.assertTrue(re.fullmatch("x[yz]{2,5}", text), text)

    def test_chat(self):
        choice = self.chat(temperature=1, extra_body={"guided_choice": CHOICES}).choices[0]
        self.assertIn(choice.message.content, CHOICES)

    def ids_of(self, text):
        return self.post("/tokenize", {"content": text})[1]["tokens"]

    def test_stop_token_ids(self):
        whole = self.complete(temperature=0, max_tokens=40).choices[0].text
        dot = self.ids_of("The mill turns.")[-1]
        cut = self.complete(temperature=0, max_tokens=40, extra_body={"stop_token_ids": [dot]})
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertTrue(whole.startswith(cut.choices[0].text + "."), (whole, cut.choices[0].text))
        n = cut.usage.completion_tokens
        late = self.complete(temperature=0, max_tokens=40, extra_body={"stop_token_ids": [dot], "min_tokens": n + 5})
        self.assertGreater(late.usage.completion_tokens, n + 5)
        self.check_same({"stop_token_ids": [dot], "min_tokens": 7})

    def test_min_tokens(self):
        end = {"logit_bias": [["</s>", 100]]} if self.ids_of("</s>") else {}
        short = self.complete(temperature=1, max_tokens=80, extra_body=end)
        self.assertLess(short.usage.completion_tokens, 5)
        long = self.complete(temperature=1, max_tokens=80, extra_body={**end, "min_tokens": 33})
        self.assertEqual(long.usage.completion_tokens, 34)  # the end is the first that may come then
        # A grammar whose text is over is not held back.
        choice = self.complete(temperature=1, max_tokens=80, extra_body={"min_tokens": 70, "guided_choice": CHOICES}).choices[0]
        self.assertEqual((choice.text in CHOICES, choice.finish_reason), (True, "stop"))

    def tokens(self, **fields):
        return [self.complete(temperature=1, max_tokens=60, seed=i, logprobs=0, **fields).choices[0].logprobs.tokens for i in range(N)]

    def test_bad_words(self):
        words = ["the", "a", "was", "."]
        forms = {form for word in words for form in (word, " " + word)}
        self.assertTrue(all(forms & set(tokens) for tokens in self.tokens()))
        for tokens in self.tokens(extra_body={"bad_words": words}):
            self.assertFalse(forms & set(tokens), tokens)
        self.check_same({"bad_words": words})

    def test_truncated(self):
        long = "The miller went down to the river. " * 60
        self.assertEqual(self.post("/v1/completions", {"prompt": long})[0], 400)
        for k in (-1, 20):
            status, answer = self.post("/v1/completions", {"prompt": long, "max_tokens": 16, "truncate_prompt_tokens": k})
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["usage"]["prompt_tokens"], 20 if k > 0 else 512 - 16)
        messages = [{"role": "user", "content": long}]
        status, answer = self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "truncate_prompt_tokens": 30})
        self.assertEqual((status, answer["usage"]["prompt_tokens"]), (200, 30))
        status, answer = self.post("/v1/embeddings", {"input": long, "truncate_prompt_tokens": 40})
        self.assertEqual((status, answer["usage"]["prompt_tokens"]), (200, 40))

    def test_continued(self):
        messages = [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": STORY}]
        fields = {"messages": messages, "max_tokens": 8, "temperature": 0}
        _, on = self.post("/v1/chat/completions", {**fields, "continue_final_message": True, "add_generation_prompt": False})
        _, usual = self.post("/v1/chat/completions", fields)
        self.assertEqual(on["choices"], usual["choices"])

    def test_refused(self):
        for fields in ({"lora": [{"id": 0}]}, {"prompt_logprobs": 1}, {"use_beam_search": True}, {"thinking_budget": 10}):
            status, answer = self.post("/v1/completions", {"prompt": STORY, **fields})
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
            self.assertEqual(answer["error"]["param"], next(iter(fields)))


class OneStage(Restrictions):
    options = ["--stages", "1", "--ctx", "512", "-t", "1"]


if __name__ == "__main__":
    unittest.main()
