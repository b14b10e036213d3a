# SPDX-License-Identifier: Apache-2.0
"""Files and batches of `millrace serve`, driven by OpenAI's client: upload, batch, results; a cancelled one."""
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

    def test_batch(self):
        batch_id = self.create(lines(20) + b"{oops\n")
        batch = self.wait(batch_id, "completed")
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (21, 20, 1))
        results = [json.loads(line) for line in self.client.files.content(batch.output_file_id).text.splitlines()]
        self.assertEqual({r["custom_id"] for r in results}, {f"r{i}" for i in range(20)} | {None})
        for r in results:
            if r["custom_id"]:
                self.assertEqual(r["response"]["body"]["usage"]["completion_tokens"], 6)
        self.assertIn(batch_id, [b.id for b in self.client.batches.list()])
        self.assertIn(batch.output_file_id, [f.id for f in self.client.files.list()])
        self.assertTrue(self.client.files.delete(batch.output_file_id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(batch.output_file_id)

    def test_cancel(self):
        batch_id = self.create(lines(3000, 100))
        self.wait(batch_id, "in_progress")
        self.client.batches.cancel(batch_id)
        self.assertLess(self.wait(batch_id, "cancelled").request_counts.completed, 3000)

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
