# SPDX-License-Identifier: Apache-2.0
"""Files and batches of `millrace serve`, driven by OpenAI's client: upload, batch, answers and failures; a refused one and
a cancelled one."""
import io
import json
import shutil
import tempfile
import time
import unittest

import test_packages

test_packages.enter("openai")

import openai  # noqa: E402
import openai_case  # noqa: E402


def lines(n, max_tokens=6):
    return "".join(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                               "body": {"prompt": openai_case.STORY, "max_tokens": max_tokens, "ignore_eos": True}})
                   + "\n" for i in range(n)).encode()


class Batches(openai_case.Case):
    @classmethod
    def setUpClass(cls):
        cls.store = tempfile.mkdtemp(prefix="millrace-batches-")
        cls.addClassCleanup(shutil.rmtree, cls.store)
        cls.options = ["--batch-dir", cls.store, "--sequences", "8"]
        super().setUpClass()

    def create(self, content):
        file = self.client.files.create(file=("requests.jsonl", io.BytesIO(content)), purpose="batch")
        self.assertEqual(file.bytes, len(content))
        self.assertEqual(self.client.files.content(file.id).read(), content)
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                           metadata={"night": "1"})
        self.assertEqual(batch.object, "batch")
        return batch.id

    def wait(self, batch_id, *states):
        end = time.monotonic() + openai_case.LIMIT_S
        while time.monotonic() < end:
            batch = self.client.batches.retrieve(batch_id)
            if batch.status in states:
                return batch
            time.sleep(0.02)
        raise AssertionError(f"{batch_id} is {batch.status}")

    def results(self, file_id):
        return [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]

    def test_batch(self):
        batch_id = self.create(lines(20) + b"{oops\n")
        batch = self.wait(batch_id, "completed")
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (21, 20, 1))
        results = self.results(batch.output_file_id)
        self.assertEqual({r["custom_id"] for r in results}, {f"r{i}" for i in range(20)})
        for r in results:
            self.assertEqual(r["response"]["body"]["usage"]["completion_tokens"], 6)
        failed, = self.results(batch.error_file_id)
        self.assertEqual((failed["response"], failed["error"]["code"]), (None, "invalid_json_line"))
        self.assertIn(batch_id, [b.id for b in self.client.batches.list()])
        listed = [f.id for f in self.client.files.list()]
        self.assertIn(batch.output_file_id, listed)
        self.assertIn(batch.error_file_id, listed)
        self.assertTrue(self.client.files.delete(batch.output_file_id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(batch.output_file_id)

    def test_failures(self):
        """Lines that the API refuses: they are no answers."""
        batch = self.wait(self.create(lines(2, max_tokens="many") + lines(3, max_tokens=2)[:-1]), "completed")
        # The second half repeats two of the names.
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (5, 1, 4))
        answer, = self.results(batch.output_file_id)
        self.assertEqual((answer["custom_id"], answer["response"]["status_code"]), ("r2", 200))
        failures = self.results(batch.error_file_id)
        self.assertEqual([r["response"]["status_code"] for r in failures if r["response"]], [400, 400])
        self.assertEqual([r["error"]["code"] for r in failures if r["error"]], ["duplicate_custom_id"] * 2)
        batch = self.wait(self.create(lines(2, max_tokens="many")), "completed")
        self.assertIsNone(batch.output_file_id)
        self.assertEqual(len(self.results(batch.error_file_id)), 2)
        batch = self.wait(self.create(lines(1)), "completed")
        self.assertIsNone(batch.error_file_id)

    def test_refused(self):
        for content, code, line in ((b"", "empty_file", None),
                                    (lines(2).replace(b"/v1/completions", b"/v1/embeddings"), "mismatched_url", 1)):
            batch = self.wait(self.create(content), "failed")
            error, = batch.errors.data
            self.assertEqual((error.code, error.line), (code, line))
            self.assertEqual((batch.output_file_id, batch.error_file_id), (None, None))

    def test_cancel(self):
        batch_id = self.create(lines(3000, 100))
        self.wait(batch_id, "in_progress")
        batch = self.client.batches.cancel(batch_id)
        self.assertEqual((batch.output_file_id, batch.error_file_id), (None, None))
        batch = self.wait(batch_id, "cancelled")
        self.assertLess(batch.request_counts.completed, 3000)
        answers = self.results(batch.output_file_id) if batch.output_file_id else []
        failures = self.results(batch.error_file_id)
        self.assertEqual({r["response"]["status_code"] for r in answers} | {200}, {200})
        self.assertEqual({r["error"]["code"] for r in failures}, {"batch_cancelled"})
        self.assertEqual((len(answers), len(failures)), (batch.request_counts.completed, batch.request_counts.failed))
        self.assertEqual(len(answers) + len(failures), 3000)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.batches.create(input_file_id="file-none", endpoint="/v1/completions", completion_window="24h")
        self.assertEqual(caught.exception.param, "input_file_id")
        with self.assertRaises(openai.BadRequestError):
            self.client.files.create(file=("a", b"x"), purpose="fine-tune")
        with self.assertRaises(openai.NotFoundError):
            self.client.batches.retrieve("batch_none")


if __name__ == "__main__":
    unittest.main()
