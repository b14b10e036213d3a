#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What deploy/millrace-mpirun says: of words that it does not know, and as JSON with --log-json. Scripts stand in for
mpirun and millrace. Argument: the class of tests to run."""
import datetime
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from fake_mpirun import LIMIT_S, Case  # noqa: E402 (after the path)
from hosts import program_path, run_tests  # noqa: E402

RULE = "-" * 74


class Words(Case):
    def test_no_command(self):
        """The word is named, with the nearest command of millrace."""
        self.write("model", "model.gguf")
        nearest = "hint: did you mean generate?"
        for args, begin, hint in (
                (["generat", "--demo"], "'generat' is no command of millrace", nearest),
                (["-n", "2", "Generate"], "'Generate' is no command of millrace", nearest),
                (["--tag-output", "b2", "serve"], "'b2' is no command", nearest),
                (["--host", "node1,", "node2", "generate"], "'node2' is no command", nearest),
                (["--mca", "a", "b", "c", "generate"], "'c' is no command", nearest),
                (["-n", "2", "model.gguf"], "'model.gguf' is no command", "generate model.gguf"),
                (["-n", "2"], "no command of millrace is given", "--help"),
                (["--unheard-of", "generat"], "no command of millrace is given", "--help")):
            self.expect_refused(args, begin, hint, command=())
        self.expect_refused(["-n", "2", "generat"], "'generat' is no command of millrace", nearest, command=(),
                            env={"MILLRACE_BIN": program_path()})

    def test_broken_program(self):
        self.script("broken", "#!/bin/sh\necho 'libx.so: cannot open' >&2; exit 127")
        self.expect_refused((), "'generate' is no command", "broken says: libx.so: cannot open",
                            env={"MILLRACE_BIN": os.path.join(self.folder, "broken")})

    def test_values(self):
        for args, begin in (
                (["--restarts", "serve", "--demo"], "--restarts is 'serve', which is no number"),
                (["--restarts=-1", "serve"], "--restarts is '-1', which is no number"),
                (["--restarts", "10000", "serve"], "--restarts is '10000', which is no number"),
                (["-n", "generate", "--demo"], "-n is 'generate', which is no number"),
                (["-np=two", "generate"], "-np is 'two', which is no number"),
                (["-N", "x", "generate"], "-N is 'x', which is no number"),
                (["--recovery=yes", "serve"], "--recovery takes no value: 'yes'"),
                (["--restarts"], "--restarts has no value"), (["--hostfile"], "--hostfile has no value"),
                (["--mca", "a"], "--mca has no value")):
            self.expect_refused(args, begin, command=())
        # Values of options are no commands, even if they look so.
        for args in ["--restarts", "3"], ["-wdir", "serve"], ["--mca", "generate", "serve"], ["--unheard-of", "x"]:
            self.assertEqual(self.expect_taken(*args), [])

    def test_version(self):
        for args in ["--version"], ["-V"], ["-n", "2", "--version"]:
            self.assertEqual(self.expect_taken(*args, command=()), ["millrace 1.2.3", "mpirun: 4.1.4"])
        self.assertIn("usage: millrace-mpirun", self.expect_taken("-h", command=())[0])


class Json(Case):
    """Every line of standard error is an object."""

    def run_json(self, *args, **kwargs):
        """The exit status, and the objects."""
        status, _, errors = self.run_wrapper(*args, **kwargs)
        lines = [json.loads(line) for line in errors.splitlines()]
        for line in lines:
            self.assertEqual(list(line), ["time", "level", "rank", "component", "text"])
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(line["level"], ("error", "warn", "info"))
        return status, lines

    def texts(self, *args, **kwargs):
        return [(line["level"], line["component"], line["text"]) for line in self.run_json(*args, **kwargs)[1]]

    def test_as_the_log_of_millrace(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}  # it warns of those of tests
        done = subprocess.run([program_path(), "generate", "/nowhere.gguf", "-p", "x", "--log-json"], env=env,
                              timeout=LIMIT_S, check=False, capture_output=True)
        theirs = json.loads(done.stderr.decode())
        status, (ours,) = self.run_json("--host", "nowhere", command=("generate", "--log-json"))
        self.assertEqual((status, list(ours)), (2, list(theirs)))
        self.assertEqual(re.sub(r"\d", "0", ours["time"]), re.sub(r"\d", "0", theirs["time"]))
        self.assertEqual((ours["level"], ours["rank"]), (theirs["level"], theirs["rank"]))
        self.assertIn("; hint: ", ours["text"])

    def test_when(self):
        for args, env in ((["generate", "--log-json"], {}), (["generate", "--log-json=on"], {}),
                          (["generate"], {"MILLRACE_LOG_JSON": "1"}), (["generate"], {"MILLRACE_LOG_JSON": "yes"}),
                          (["-x", "MILLRACE_LOG_JSON=true", "generate"], {}), (["generat", "--log-json"], {}),
                          (["--log-json", "generate"], {})):
            self.assertEqual(len(self.texts("--host", "nowhere", command=args, env=env)), 1, args)
        for args, env in ((["generate", "--log-json=off"], {"MILLRACE_LOG_JSON": "1"}),
                          (["generate"], {"MILLRACE_LOG_JSON": "0"}), (["generate", "--log-json", "--log-json=0"], {})):
            self.expect_refused(("--host", "nowhere"), "--host: 'nowhere' is no host", command=args, env=env)

    def test_time_is_utc(self):
        env = {"TZ": "Asia/Tokyo", "LOCPATH": self.folder, "LC_ALL": "comma"}
        self.write("LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n"
                   "LC_CTYPE\ncopy \"POSIX\"\nEND LC_CTYPE\nLC_COLLATE\ncopy \"POSIX\"\nEND LC_COLLATE\n"
                   "LC_TIME\ncopy \"POSIX\"\nEND LC_TIME\nLC_MESSAGES\ncopy \"POSIX\"\nEND LC_MESSAGES\n"
                   "LC_MONETARY\ncopy \"POSIX\"\nEND LC_MONETARY\n", "comma.txt")
        if shutil.which("localedef"):  # seconds with a comma
            subprocess.run(["localedef", "-c", "-i", "./comma.txt", os.path.join(self.folder, "comma")],
                           cwd=self.folder, check=False, capture_output=True, timeout=LIMIT_S)
        if not os.path.isdir(os.path.join(self.folder, "comma")):
            del env["LC_ALL"]
        _, (line,) = self.run_json("--host", "nowhere", command=("generate", "--log-json"), env=env)
        then = datetime.datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        self.assertLess(abs((now - then).total_seconds()), 3600)

    def test_any_bytes(self):
        for word, shown in ((b'"a\\b"', '"a\\b"'), (b"a\x1b[1mb", "a?[1mb"), (b"\xc3\xb6\xe2\x98\x83\xf0\x9f\x98\x80", "ö☃😀"),
                            (b"a\xff\xc3b\xe2\x82c\xed\xa0\x80\xc0\x80", "a??b??c?????"), (b"a\xc2\x85b", "a b")):
            self.write(word + b"\n")
            _, (line,) = self.run_json("--hostfile", "hosts", command=("generate", "--log-json"))
            self.assertTrue(line["text"].startswith("hosts:1: '%s' " % shown), (word, line))

    def test_lines_of_others(self):
        """What mpirun and ranks write without the log."""
        own = '{"time":"2026-01-01T00:00:00.000Z","level":"info","rank":0,"component":"millrace","text":"x"}'
        text = "\n".join(["", own, "ssh: no \"route\"\t\r", RULE, "Bad thing: it is bad.", "", "  More.", RULE,
                          "millrace: error: unknown option --x", "millrace: warning: hot", "one {", RULE, "no end"])
        with open(os.path.join(self.folder, "said"), "w", encoding="utf-8") as f:
            f.write(text)
        got = self.texts(command=("generate", "--log-json"), env={"FAKE_END": "cat said >&2"})
        self.assertEqual(got, [("info", "millrace", "x"), ("warn", "mpirun", 'ssh: no "route"  '),
                               ("error", "mpirun", "Bad thing: it is bad.    More."),
                               ("error", "millrace", "unknown option --x"), ("warn", "millrace", "hot"),
                               ("warn", "mpirun", "one {"), ("warn", "mpirun", RULE + " no end")])
        _, _, errors = self.run_wrapper(env={"FAKE_END": "cat said >&2"})
        self.assertEqual(errors, text + "\n")

    def test_errors_are_known(self):
        """The filter reads the log of millrace in both forms: of ranks that tell of a loss the first counts, and mpirun
        need not repeat that there was an error."""
        said = ["rank 1 on b is gone: it is", "rank 2 on c is gone: it is"]
        plain = ["millrace: error: " + text for text in said]
        log = ['{"time":"t","level":"error","rank":0,"component":"millrace","text":"%s"}' % text for text in said]
        banner = [RULE, "mpirun detected that a process exited with non-zero exit code 1", RULE]
        for lines, args in ((plain, ()), (log, ("--log-json",))):
            with open(os.path.join(self.folder, "said"), "w", encoding="utf-8") as f:
                f.write("\n".join(lines + banner) + "\n")
            status, _, errors = self.run_wrapper(command=("generate", *args), env={"FAKE_END": "cat said >&2; exit 1"})
            self.assertEqual((status, errors), (1, lines[0] + "\n"))

    def test_crash(self):
        """bash says nothing of its own."""
        for recovery in (), ("--recovery",):
            got = self.texts(*recovery, command=("generate", "--log-json"), env={"FAKE_END": "kill -SEGV $$"})
            self.assertEqual([line[:2] for line in got], [("error", "millrace-mpirun")])


if __name__ == "__main__":
    sys.exit(run_tests())
