# SPDX-License-Identifier: Apache-2.0
"""`millrace chat`: what is said and answered, with lines from a file and at a terminal."""
import os
import pty
import select
import signal
import termios
import time
import unittest

import cli

SAMPLED = ("--seed", "5", "--temp", "0.7")
SLOW = ("--synthetic-stage", "40,0")  # a token in 40 ms: 512 of them take 20 s


@cli.needs_demo
class Lines(cli.Case):
    def chat(self, text, *options):
        return self.good("chat", "--demo", *SAMPLED, *options, stdin=text.encode()).decode()

    def generated(self, prompt, n):
        return self.good("generate", "--demo", *SAMPLED, "-n", str(n), "-p", prompt).decode().removesuffix("\n")

    def conversation(self):
        """A template with nothing but the texts, which makes the demo model one that answers."""
        text = "{% for m in messages %}{% if not loop.first %}{{ '\\n\\n' }}{% endif %}{{ m.content }}{% endfor %}"
        return ("--chat-template-file", self.file("plain.jinja", text))

    def test_answers_are_those_to_the_whole_conversation(self):
        options = ("-n", "20", *self.conversation())
        first = self.generated("Once upon a time", 20)
        second = self.generated(f"Once upon a time\n\n{first}\n\nThe mill\nstood", 20)
        for said in ("The mill\\\nstood", "\"\"\"\nThe mill\nstood\n\"\"\""):
            self.assertEqual(self.chat(f"Once upon a time\n{said}\n", *options), f"{first}\n{second}\n")

    def test_without_a_template_all_is_one_text(self):
        first = self.generated("Once upon a time", 20)
        second = self.generated(f"Once upon a time{first}\n\nThe mill\nstood", 20)
        done = self.run_bin("chat", "--demo", *SAMPLED, "-n", "20", stdin=b"Once upon a time\n\nThe mill\\\nstood\n")
        self.assertEqual((done.returncode, done.stdout.decode()),
                         (0, f"Once upon a time{first}\n\nThe mill\nstood{second}\n"))
        self.assertIn(b"has no chat template", done.stderr)

    def test_commands(self):
        options, first = ("-n", "12", *self.conversation()), self.generated("Once upon a time", 12)
        said = "Once upon a time\n\n/new\nOnce upon a time\n/exit\nmore\n"
        self.assertEqual(self.chat(said, *options), f"{first}\n{first}\n")
        self.assertEqual(self.chat(""), "")

    def test_what_is_no_command_is_refused(self):
        done = self.run_bin("chat", "--demo", "-n", "4", stdin=b"/nwe\n/load a file\n/\n/etc/hosts is a file\n")
        self.assertEqual(done.returncode, 0)
        for word in (b"/nwe is not a command", b"/load a file is not a command", b"/new starts a new", b"/exit quits"):
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stderr.count(b"is not a command"), 2)
        self.assertTrue(done.stdout.startswith(b"/"))
        self.assertIn(b"\n\n/etc/hosts is a file", done.stdout)
        self.assertNotIn(b"nwe", done.stdout)
        self.assertIn(b"/new starts a new", self.run_bin("chat", "--demo", stdin=b"/help\n").stderr)

    def test_template_and_system_text(self):
        template = self.file("t.jinja", "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not this') }}"
                                        "{% endif %}{{ m.content }}{% endfor %}")
        want = self.generated("Once upon a time", 12)
        done = self.run_bin("chat", "--demo", *SAMPLED, "-n", "12", "--chat-template-file", template, "--system", "Once ",
                            stdin=b"no\nupon a time\n")
        self.assertEqual((done.returncode, done.stdout.decode()), (0, want + "\n"))
        self.assertIn(b"the template says: not this", done.stderr)
        broken = self.file("broken.jinja", "a\n{% if %}")
        done = self.run_bin("chat", "--demo", "--chat-template-file", broken)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"template line 2", done.stderr)

    def test_a_conversation_that_outgrows_the_context(self):
        text = "\n".join(f"{i} " + "The river and the mill, and more of it " * 12 for i in range(5))
        for options in (self.conversation(), ()):
            done = self.run_bin("chat", "--demo", *SAMPLED, "-n", "4", *options, stdin=text.encode())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"its beginning is forgotten", done.stderr)
            self.assertNotIn(b"error", done.stderr)
        done = self.run_bin("chat", "--demo", stdin=b"word " * 2000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"the context has only 512", done.stderr)
        # A text that is too long is not said, and what was said before it is not forgotten.
        long, short = "Once upon a time\n" + "word " * 2000 + "\nThe mill\n", "Once upon a time\nThe mill\n"
        for options in (self.conversation(), ()):
            self.assertEqual(self.chat(long, "-n", "12", *options), self.chat(short, "-n", "12", *options))


@cli.needs_demo
class Terminal(cli.Case):
    def setUp(self):
        environment = {**cli.environment(), "TERM": "xterm", "LANG": "C.UTF-8", "XDG_CACHE_HOME": self.folder}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(cli.BIN, [cli.BIN, "chat", "--demo", *SAMPLED, *SLOW], environment)
        self.addCleanup(self.end)
        self.seen = b""

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def expect(self, text):
        """Reads until the text has come; what came before it is forgotten."""
        until = time.monotonic() + cli.LIMIT_S
        while text not in self.seen:
            self.assertTrue(select.select([self.fd], [], [], until - time.monotonic())[0], (text, self.seen))
            try:
                self.seen += os.read(self.fd, 4096)
            except OSError:
                self.fail((text, self.seen))
        self.seen = self.seen.split(text, 1)[1]

    def expect_prompt(self):
        """The prompt comes before the terminal gives up its own echo, which looks as if a text was read already."""
        self.expect(b"> ")
        until = time.monotonic() + cli.LIMIT_S
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def wait(self):
        while True:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:  # the other end is closed
                break
        status, self.pid = os.waitpid(self.pid, 0)[1], 0
        return os.waitstatus_to_exitcode(status)

    def test_ctrl_c_stops_an_answer_and_a_line_and_ctrl_d_ends(self):
        self.expect_prompt()
        os.write(self.fd, b"Once upon a t\xc3\xbcme\r")
        self.expect("tüme".encode())
        while not self.seen.strip():  # the answer has begun
            self.seen += os.read(self.fd, 4096)
        begin = time.monotonic()
        os.write(self.fd, b"\x03")
        self.expect_prompt()
        self.assertLess(time.monotonic() - begin, 8)
        os.write(self.fd, b"forgotten")
        self.expect(b"forgotten")
        os.write(self.fd, b"\x03")
        self.expect_prompt()
        os.write(self.fd, b"\x1b[A")  # the line before
        self.expect("Once upon a tüme".encode())
        os.write(self.fd, b"\x15\x04")
        self.assertEqual(self.wait(), 0)
        with open(self.path("millrace/chat-history"), encoding="utf-8") as file:
            self.assertIn("Once", file.read())

    def test_an_empty_line_lets_the_model_go_on(self):
        self.expect(b"an empty line lets the model continue")
        self.expect_prompt()
        os.write(self.fd, b"\r")  # there is nothing yet to go on with
        self.expect_prompt()
        os.write(self.fd, b"The mill\r")
        for _ in range(2):
            self.expect(b"\n")
            while not self.seen.strip():
                self.seen += os.read(self.fd, 4096)
            os.write(self.fd, b"\x03")
            self.expect_prompt()
            os.write(self.fd, b"\r")
        self.expect(b"\n")

    def test_sigterm_ends(self):
        self.expect_prompt()
        os.kill(self.pid, signal.SIGTERM)
        self.assertEqual(self.wait(), 143)


if __name__ == "__main__":
    unittest.main()
