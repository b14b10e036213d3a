# SPDX-License-Identifier: Apache-2.0
"""The page in a headless Chromium: that it draws all stages, its plots move, a message is answered piece by piece, and
nothing is asked of other hosts."""
import os
import shutil
import subprocess
import tempfile
import threading
import unittest
import urllib.request

import test_packages

test_packages.enter("playwright")
import fake_server  # noqa: E402
import prometheus  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
if not CHROMIUM:
    test_packages.skip("there is no Chromium")
BIN = os.environ.get("MILLRACE_BIN", "build/release/bin/millrace")
PATIENCE_MS = 20000
expect.set_options(timeout=PATIENCE_MS)


def setUpModule():
    playwright = sync_playwright().start()
    unittest.addModuleCleanup(playwright.stop)
    flags = ["--disable-dev-shm-usage"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
    Browser.chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
    unittest.addModuleCleanup(Browser.chromium.close)


class Browser(unittest.TestCase):
    chromium = None  # one for all tests

    def open(self, address, width=1280):
        context = self.chromium.new_context(viewport={"width": width, "height": 800})
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        self.troubles, self.addresses = [], []
        page.on("pageerror", lambda e: self.troubles.append(str(e)))
        page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda r: self.addresses.append(r.url))
        page.goto(address)
        return page

    def expect_no_trouble(self, address):
        self.assertEqual(self.troubles, [])
        self.assertEqual([a for a in self.addresses if not a.startswith((address, "data:"))], [])

    def expect_moving_plots(self, page, n):
        """The first n plots get other lines than they have."""
        before = page.locator(".plot").evaluate_all("all => all.map(p => p.querySelector('path:not(.fill)').getAttribute('d'))")
        page.wait_for_function(
            "before => [...document.querySelectorAll('.plot')].filter((p, i) => before[i] !== "
            "[...p.querySelectorAll('path:not(.fill)')].map(q => q.getAttribute('d'))[0]).length >= " + str(n), arg=before)

    def expect_streamed(self, page, message, tries=1, role="user"):
        """Sends a message, sees the answer grow and end, and returns it; or again, if it came at once. With the role
        story it is the one text that grows."""
        said, box = ".message.user .text", ".message.assistant"
        if role == "story":
            said, box = ".message.story .typed", ".message.story"
        page.evaluate("""() => {
            window.lengths = new Set();
            new MutationObserver((all) => all.forEach((m) => window.lengths.add(m.target.length)))
                .observe(document.getElementById("messages"), { characterData: true, subtree: true });
        }""")
        page.fill("#ask-text", message)
        page.press("#ask-text", "Enter")
        expect(page.locator(said).last).to_have_text(message)
        expect(page.locator(".message.live")).to_have_count(0)
        expect(page.locator(f"{box} .facts").last).to_contain_text("tokens")
        n_lengths = page.evaluate("window.lengths.size")
        if n_lengths <= 3 and tries > 1:
            page.click("#chat-new")  # a text that grows would fill the context
            return self.expect_streamed(page, message, tries - 1, role)
        self.assertGreater(n_lengths, 3, "the answer came at once")
        return page.locator(f"{box} .text").last.text_content()


class WithFakeServer(Browser):
    def serve(self, **kwargs):
        server = fake_server.FakeServer(**kwargs)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(lambda: (server.shutdown(), server.server_close(), thread.join()))
        return server

    def test_pipeline_and_plots(self):
        server = self.serve()
        page = self.open(server.address)
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#model-name")).to_have_text("river-7b-Q4_K")
        expect(page.locator(".stage")).to_have_count(3)
        expect(page.locator(".stage .layers")).to_have_text(["0–10 layers", "11–20 layers", "21–31 layers"])
        expect(page.locator(".stage h3")).to_have_text([f"Stage {i} · node{i + 1}, rank {i}" for i in range(3)])
        expect(page.locator(".stage.busy")).to_have_count(3)
        expect(page.locator("#pipeline-note")).to_contain_text("steps/s, 5 under way")
        expect(page.locator("#track circle")).to_have_count(5)
        moved = page.locator("#track circle").first.get_attribute("cx")
        expect(page.locator("#track circle").first).not_to_have_attribute("cx", moved)
        self.expect_moving_plots(page, 4)
        self.expect_no_trouble(server.address)
        self.check_parts(page)
        server.shutdown()
        server.server_close()
        expect(page.locator("#state")).to_have_text("not reachable")

    def test_ranks(self):
        server = self.serve()
        page = self.open(server.address)
        ranks = page.locator("#ranks-list span")
        expect(ranks).to_have_text(["rank 0: stage", "rank 1: stage", "rank 2: stage", "rank 3: lost"])
        expect(page.locator("#ranks-note")).to_have_text("a rank without layers was lost")
        expect(page.locator("#ranks-list button:visible")).to_have_count(3)
        page.locator("#ranks-list button").nth(1).click()
        expect(ranks.nth(1)).to_have_text("rank 1: drained")
        expect(page.locator("#ranks-note")).to_have_text("plan 1; the last change: planning 10 ms, loading 200 ms")
        page.locator("#ranks-list button:visible", has_text="Take again").click()
        expect(ranks.nth(1)).to_have_text("rank 1: spare")
        server.plan["recovery"]["missing_bytes"] = 3 << 20
        expect(page.locator("#ranks-note")).to_have_text("requests wait: 3.0 MiB of memory are missing")
        page.locator("#ranks-list button").first.click()
        expect(page.locator("#ranks-note")).to_have_text("rank 0 is the last one")
        self.troubles = [t for t in self.troubles if "400" not in t]  # the browser notes the refusal
        self.expect_no_trouble(server.address)
        server.plan.pop("ranks")

    def test_chat(self):
        server = self.serve()
        page = self.open(server.address)
        self.assertEqual(self.expect_streamed(page, "Tell me <i>a story</i>."), fake_server.STORY)
        self.assertEqual(page.locator("#messages b, #messages i").count(), 0)
        page.click("summary")
        page.fill("#ask-system", "Be brief.")
        page.fill("#ask-temperature", "0.5")
        page.fill("#ask-tokens", "50")
        self.expect_streamed(page, "Go on.")
        first, second = server.requests
        self.assertEqual(first["messages"], [{"role": "user", "content": "Tell me <i>a story</i>."}])
        self.assertEqual([m["role"] for m in second["messages"]], ["system", "user", "assistant", "user"])
        self.assertEqual((second["temperature"], second["max_tokens"], second["stream"]), (0.5, 50, True))
        self.expect_no_trouble(server.address)

    def check_parts(self, page):
        quantiles = """async () => {
            const { quantile } = await import("./page-plots.js");
            const of = (counts, q) => quantile([1, 2, 4], [5, 5, 5, 5], counts.map(n => n + 5), q);
            return [of([0, 0, 0, 0], 0.5), of([0, 4, 0, 0], 0.5), of([2, 2, 0, 0], 0.5), of([0, 0, 0, 1], 0.5), of([1, 0, 1, 0], 0.99)];
        }"""
        self.assertEqual(page.evaluate(quantiles), [None, 1.5, 1, 4, 3.96])
        # A server that took the place of another one while nobody looked counts from 0.
        rates = """async () => {
            const { Plots } = await import("./page-plots.js");
            const plots = new Plots(document.createElement("div")), state = await (await fetch("page/state")).json();
            plots.update({ ...state, start: 1, time_s: 10, totals: { ...state.totals, generated: 1000 } });
            plots.update({ ...state, start: 2, time_s: 50, totals: { ...state.totals, generated: 5 } });
            return plots.samples.map((s) => s.rates.generated);
        }"""
        self.assertEqual(page.evaluate(rates), [0])
        # A stream of events, cut after every n bytes, inside of characters too.
        events = """async (n) => {
            const { events } = await import("./page-chat.js");
            const bytes = new TextEncoder().encode(": ping\\n\\ndata: {\\"é\\"}\\r\\n\\r\\nevent: x\\ndata:two\\n\\ndata: [DONE]");
            const all = [];
            for await (const data of events(new ReadableStream({ start(to) {
                for (let i = 0; i < bytes.length; i += n)
                    to.enqueue(bytes.slice(i, i + n));
                to.close();
            }})))
                all.push(data);
            return all;
        }"""
        for n in (1, 2, 3, 7, 1000):
            self.assertEqual(page.evaluate(events, n), ['{"é"}', "two", "[DONE]"])

    def test_stop_and_errors(self):
        server = self.serve(pause_s=0.15)
        page = self.open(server.address)
        page.fill("#ask-text", "A long one.")
        page.click("#ask-send")
        expect(page.locator("#ask-send")).to_have_text("Stop")
        expect(page.locator(".message.assistant .text")).to_contain_text("Once")
        page.click("#ask-send")
        expect(page.locator(".message.assistant .facts")).to_contain_text("stopped")
        expect(page.locator("#ask-send")).to_have_text("Send")
        page.fill("#ask-text", "Now fail.")
        page.press("#ask-text", "Enter")
        expect(page.locator(".message .error")).to_have_text("the model cannot do that")
        page.fill("#ask-text", "Do think.")
        page.press("#ask-text", "Enter")
        expect(page.locator(".message details .text")).to_have_text("A mill, then.")
        page.press("#ask-text", "Escape")
        expect(page.locator(".message.live")).to_have_count(0)
        self.assertEqual([m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"],
                         ["A long one.", "Do think."])
        page.click("#chat-new")
        expect(page.locator(".message")).to_have_count(0)
        self.assertEqual(server.n_told, 0)

    def test_key(self):
        server = self.serve(key="secret", template=None)
        page = self.open(server.address)
        expect(page.locator("#key")).to_be_visible()
        page.fill("#key-text", "wrong")
        page.press("#key-text", "Enter")
        expect(page.locator("#key-note")).to_contain_text("does not accept")
        page.fill("#key-text", "schlüssel €")  # characters that a header cannot have as they are
        page.press("#key-text", "Enter")
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#state")).to_have_text("needs a key")
        page.fill("#key-text", "secret")
        page.press("#key-text", "Enter")
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#key")).to_be_hidden()
        # It has no chat template: it only continues texts.
        expect(page.locator("#ask-text")).to_have_attribute("placeholder", "The beginning of a text")
        self.assertTrue(page.locator("#ask-mode [value=chat]").is_disabled())
        text = "Once upon a time" + fake_server.STORY
        self.assertEqual(self.expect_streamed(page, "Once upon a time", role="story"), text)
        expect(page.locator("#ask-text")).to_have_attribute("placeholder", "More of the text, or nothing")
        more = text + "\n\nThen" + fake_server.STORY
        self.assertEqual(self.expect_streamed(page, "Then", role="story"), more)
        page.press("#ask-text", "Enter")  # nothing typed: it goes on
        expect(page.locator(".message.story .text")).to_have_text(more + fake_server.STORY)
        expect(page.locator(".message.live")).to_have_count(0)
        self.assertEqual([r["prompt"] for r in server.requests], ["Once upon a time", text + "\n\nThen", more])
        self.assertEqual(page.locator(".message").count(), 1)
        self.assertEqual(page.locator(".message .facts").count(), 1)
        page.click("#chat-new")
        expect(page.locator(".message")).to_have_count(0)
        page.fill("#ask-text", "Now fail.")
        page.press("#ask-text", "Enter")
        expect(page.locator(".message.story .error")).to_have_text("the model cannot do that")

    def test_phone_and_dark(self):
        server = self.serve(n_stages=40)
        page = self.open(server.address, width=360)
        expect(page.locator(".stage")).to_have_count(40)
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
        colours = set()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            colours.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        self.assertEqual(len(colours), 2)
        self.expect_no_trouble(server.address)


class WithMillrace(Browser):
    """The demo model in three stages."""

    @classmethod
    def setUpClass(cls):
        if not os.path.exists(os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")):
            raise unittest.SkipTest("the demo model is not there")
        cache = tempfile.TemporaryDirectory(prefix="millrace-page-")
        cls.addClassCleanup(cache.cleanup)
        cls.server = subprocess.Popen([BIN, "serve", "--demo", "--stages", "3", "--port", "0", "--measure", "auto",
                                       "--cache-dir", cache.name], stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.end)
        cls.address = None
        for line in cls.server.stderr:
            if "ready at " in line:
                cls.address = line.split("ready at ")[1].strip() + "/"
                break
        cls.reader = threading.Thread(target=cls.server.stderr.read, daemon=True)
        cls.reader.start()

    @classmethod
    def end(cls):
        cls.server.terminate()
        status = cls.server.wait(60)
        cls.reader.join()
        cls.server.stderr.close()
        assert status == 0, f"millrace serve ended with {status}"

    def test_all(self):
        page = self.open(self.address)
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#model-name")).to_have_text("millrace-demo")
        expect(page.locator(".stage .layers")).to_have_text(["0–2 layers", "3–5 layers", "6–7 layers"])
        expect(page.locator("#pipeline-note")).to_have_text("at rest")
        page.click("summary")
        page.fill("#ask-tokens", "200")
        page.evaluate("""() => {
            window.most = { busy: 0, rate: 0 }; // ever seen: the answer may be over before this test looks
            setInterval(() => {
                most.busy = Math.max(most.busy, document.querySelectorAll(".stage.busy").length);
                const rate = document.querySelector(".plot .now b")?.textContent.replace(",", "");
                most.rate = Math.max(most.rate, parseFloat(rate) || 0);
            }, 20);
        }""")
        # All 200 tokens take a fifth of a second: a browser on a busy machine may see them at once.
        self.assertGreater(len(self.expect_streamed(page, "Once upon a time", tries=5, role="story")), 100)
        page.wait_for_function("() => most.busy === 3 && most.rate > 10")
        self.expect_moving_plots(page, 1)
        self.expect_no_trouble(self.address)
        with urllib.request.urlopen(self.address + "metrics") as answer:
            metrics = prometheus.read(answer.read().decode())
        self.assertGreaterEqual(metrics["millrace_generated_tokens_total"].value(), 100)
        for stage in "012":
            self.assertGreater(metrics["millrace_stage_seconds_total"].value(stage=stage, phase="compute"), 0)
            for of in ("measured", "predicted"):
                self.assertGreater(metrics["millrace_stage_step_seconds"].value(stage=stage, of=of), 0)
        count = {name: value for name, _, value in metrics["millrace_time_between_tokens_seconds"].samples}
        self.assertGreaterEqual(count["millrace_time_between_tokens_seconds_count"], 99)


if __name__ == "__main__":
    unittest.main()
