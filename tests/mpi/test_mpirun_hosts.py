#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/millrace-mpirun reads host files and lists of hosts before mpirun does, and looks at what mpirun needs of this
host. A script stands in for mpirun and prints what it gets; other scripts answer for the name service and for ssh.
Argument: the class of tests to run. Exit status 77: all were skipped."""
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from fake_mpirun import DEPLOY, GETENT, LIMIT_S, WRAPPER, Case  # noqa: E402 (after the path)
from hosts import Hosts, program_path, run_ranks, run_tests  # noqa: E402


class Files(Case):
    def test_right_files_stay(self):
        """mpirun gets the file itself."""
        for content in ("node1\nnode2 slots=4\n", "node1 slots = 2 max_slots=4 # two\n\n\t node2\n", "node1\nnode1\n",
                        "// one\n/* node7\nnode8 */\nnode1 // end\nnode2 /* 9\n node9 */\n", "10.0.0.1\n", "node1",
                        "root@node1 username=root\n", "+n0 slots=1\n+e\n", "# m\u00fcll \u2603\nnode1\n"):
            self.write(content)
            got = self.expect_taken("--hostfile", "hosts")
            end = "[hosts]"
            if not content.endswith("\n"):
                end = "[.hosts-1]"
                content += "\n"
            self.assertEqual("\n".join(got), "--hostfile\n" + content + end)

    def test_what_editors_write(self):
        """mpirun gets a clean copy."""
        for content in (b"node1\r\nnode2 slots=2\r\n", b"\xef\xbb\xbfnode1\nnode2 slots=2\n",
                        b"\xef\xbb\xbfnode1\r\nnode2 slots=2", b"node1\rnode2 slots=2\r",
                        b"node1\nnode2\xc2\xa0slots=2\n", b"node1\nnode2 slots=2"):
            self.write(content)
            self.assertEqual(self.expect_taken("--hostfile", "hosts"),
                             ["--hostfile", "node1", "node2 slots=2", "[.hosts-1]"])
        self.write("node1\n# end")  # mpirun reads no comment without an end of its line
        self.assertEqual(self.expect_taken("--hostfile", "hosts"), ["--hostfile", "node1", "# end", "[.hosts-1]"])

    def test_each_option(self):
        self.write("node1\r\n", "ho sts")
        for option in "--hostfile", "-hostfile", "--machinefile", "-machinefile", "--default-hostfile":
            for args in (option, "ho sts"), (option + "=ho sts",):
                self.assertEqual(self.expect_taken(*args), [option, "node1", "[.hosts-1]"])
        self.write("nowhere\n", "ho sts")
        for args in (("-machinefile=ho sts",), ("--mca", "orte_default_hostfile", "ho sts")):
            self.expect_refused(args, "ho sts:1: 'nowhere' ")
        self.expect_refused((), "ho sts:1: 'nowhere' ", env={"OMPI_MCA_orte_default_hostfile": "ho sts"})
        # A value that looks like an option of hosts is none.
        self.assertEqual(self.expect_taken("-x", "hostfile", "-n", "2", "--mca", "x", "host"), [])
        self.write("rank 0=node1 slot=0\r\n")
        self.assertEqual(self.expect_taken("-rf", "hosts"), ["-rf", "rank 0=node1 slot=0", "[.hosts-1]"])

    def test_what_mpirun_passes_over(self):
        self.write("rank 0=node1 slot=0\n")
        self.expect_taken("--hostfile", "hosts", "-rf", "hosts")
        for line in "10.0.0.1 node1 node1.cluster", "node1 port=2222", "node1 max_slots=2 slots=4", "%s.nowhere" % socket.gethostname():
            self.write(line + "\n")
            self.expect_taken("--hostfile", "hosts")
        self.write("# no host\n")
        self.expect_taken("--default-hostfile", "hosts")
        self.expect_taken(env={"OMPI_MCA_orte_default_hostfile": "hosts"})

    def test_what_is_read_once(self):
        """Such as a pipe. mpirun gets a copy."""
        reader, writer = os.pipe()
        os.write(writer, b"node1\r\n")
        os.close(writer)
        got = self.expect_taken("--hostfile", "/dev/fd/%d" % reader, pass_fds=(reader,))
        os.close(reader)
        self.assertEqual(got, ["--hostfile", "node1", "[.hosts-1]"])

    def test_no_room_for_a_copy(self):
        """As where TMPDIR is nearly full: here no file may have more than 1024 bytes."""
        limit = ["prlimit", "--fsize=1024"]
        if not shutil.which(limit[0]):
            self.skipTest("there is no prlimit")
        self.write("node1\r\n" + "# of the cluster\r\n" * 100)
        bash = "exec 2>&1; trap '' XFSZ; exec %s \"$@\"" % " ".join(limit)
        done = subprocess.run(["bash", "-c", bash, "x", WRAPPER, "--hostfile", "hosts", "generate"], cwd=self.folder,
                              stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False,
                              env={**os.environ, "PATH": self.folder + ":" + os.environ["PATH"], "TMPDIR": self.folder,
                                   "MILLRACE_BIN": os.path.join(self.folder, "millrace")})
        text = done.stdout.decode()
        self.assertEqual(done.returncode, 2, text)
        for words in "millrace-mpirun: error: hosts: ", "no room", "hint: sed -i", "TMPDIR":
            self.assertIn(words, text)

    def test_no_host_file(self):
        self.expect_refused(("--hostfile", "nofile"), "nofile: ", "No such file")
        self.expect_refused(("--hostfile", "/"), "/: ", "folder")
        for content in "", "# none\n", "\r\n\r\n", b"\xef\xbb\xbf", "/* node1\n":
            self.expect_file_refused(content, "hosts: this host file names no host")
        self.expect_file_refused("node1\n".encode("utf-16"), "hosts: this host file is UTF-16", "iconv")
        self.expect_file_refused("node1\n".encode("utf-32-be"), "hosts: ", "zero bytes")
        self.expect_file_refused(b"#" * 1048577, "hosts: this is no host file", "1048576 bytes")


class Names(Case):
    def test_forms_of_others(self):
        """By file, line, word and remedy."""
        for line, word, remedy in (
                ("node1:4", "node1:4", "node1 slots=4"), ("node1:x", "node1:x", "node1 slots=4"),
                ("node1 slots 4", "slots", "slots=4"), ("node1 4", "4", "slots=4"), ("4", "4", "one a line"),
                ("node1, node2", "node1,", "one a line"), ("node1,node2", "node1,node2", "one a line"),
                ("node[1-4]", "node[1-4]", "scontrol show hostnames"), ("node1 node2", "node2", "one host a line"),
                ("node1 SLOTS=4", "SLOTS", "slots=4"), ("node1 cpus=4", "cpus", "slots=4"),
                ("node1 user=me", "user", "username=me"),
                ("node1 slots=four", "slots=four", "slots=4"), ("node1 slots=", "slots=", "slots=4"),
                ("node1 slots=-1", "slots=-1", "slots=4"), ("node1 slots=2.5", "slots=2.5", "slots=4"),
                ("node1 slots=4 max_slots=2", "2", "larger"), ("[::1]", "[::1]", "/etc/hosts"),
                ("fe80::1%eth0", "fe80::1%eth0", "/etc/hosts"), ("2001:db8::7", "2001:db8::7", "/etc/hosts"),
                ('"node1"', '"node1"', "alone"), ("-oX", "-oX", "one a line"), ("me@", "me@", "one a line"),
                ("a@b@c", "a@b@c", "one a line"), ("n\u00f6de", "n\u00f6de", "one a line"),
                ("10.0.0", "10.0.0", "10.0.0.1"), ("no\x1bde", "no?de", "one a line")):
            self.expect_file_refused("# first\n\nnode1\n%s\n" % line, "hosts:4: '%s' " % word, remedy)

    def test_open_mpi_5(self):
        env = {"FAKE_VERSION": "5.0.11", "FAKE_KNOWN": "my_node 2001:db8::7"}
        self.write("my_node\n2001:db8::7 port=22\n")
        self.assertEqual(self.expect_taken("--hostfile", "hosts", env=env)[-1], "[hosts]")
        self.expect_file_refused("[2001:db8::7]\n", "hosts:1: '[2001:db8::7]' ", env=env)

    def test_unknown_names(self):
        for name in "nosuch", "me@nosuch", "10.0.0.256":
            self.expect_file_refused("node1\r\n%s slots=2\r\n" % name, "hosts:2: '%s' is no host" % name, "getent")
        # ssh knows a name or a way for these, other agents know names of their own, and slurm the names of its hosts.
        self.write("alias\nbehind\n")
        self.expect_taken("--hostfile", "hosts")
        self.write("nosuch\n")
        self.expect_taken("--hostfile", "hosts", "--mca", "plm_rsh_agent", "agent")
        self.expect_taken("--hostfile", "hosts", "--mca", "plm_rsh_args", "-F my_config")
        for name in "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm", "SLURM_JOB_ID", "PBS_JOBID":
            self.expect_taken("--hostfile", "hosts", env={name: "1"})

    def test_lists(self):
        for option, words in (("--host", "node1,node2:2"), ("-host", "node1,,node2,"), ("-H", "node1:*,localhost"),
                              ("-H", "alias"), ("-H", "+n1,+e:2")):
            self.assertEqual(self.expect_taken(option, words), [option + " " + words])
        for word, *words in (("nosuch", "getent"), ("node1:x", "node1:4"), ("node[1-3,5]", "scontrol"),
                             ("[::1]", "/etc/hosts"), ("me@node1", "ssh"), ("node1 slots=2", "node1:4"), ("4", "number")):
            self.expect_refused(("--host", "node1," + word), "--host: '%s' " % word, *words)
        self.expect_refused(("--host=nosuch",), "--host: 'nosuch' ")
        self.expect_refused(("-H", ","), "-H names no host")

    def test_names_like_options(self):
        """A host may have the name of an option of mpirun, or of a command."""
        for name in "n", "c", "host":
            self.assertEqual(self.expect_taken("--host", name), ["--host " + name])
        self.assertEqual(self.expect_taken("--host", "generate", env={"FAKE_KNOWN": "generate"}), ["--host generate"])

    def test_a_signal_while_names_are_looked_up(self):
        """Ctrl-C: the name service may not answer for a while."""
        asked = os.path.join(self.folder, "asked")
        os.mkfifo(asked)
        for number in signal.SIGINT, signal.SIGTERM:
            self.script("getent", "#!/bin/sh\necho >asked\nexec sleep 1000\n")
            wrapper = subprocess.Popen([WRAPPER, "--host", "node9", "generate"], cwd=self.folder,
                                       env=self.environment(None), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            with open(asked, "rb") as f:
                f.read()
            os.killpg(wrapper.pid, number)
            said = wrapper.communicate(timeout=LIMIT_S)[0]
            self.assertIn(wrapper.returncode, (-number, 128 + number))
            self.assertIn(said, (b"", b"Terminated\n"))  # bash's word for a child that SIGTERM has ended
            self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("millrace-mpirun-")], [])
        self.script("getent", GETENT)
        os.unlink(asked)

    def test_ipv6_connections(self):
        """mpirun's daemons may call over IPv6: the hosts from which there is a connection are found."""
        script = """set -euo pipefail; . %s/lib/mpirun_start.sh; mpirun=1
            getent() {
                case $2 in a) echo 2001:db8::1:7 ;; b) echo fe80::1%%eth0 ;; c) echo 10.1.2.3 ;; d) echo ::2 ;; esac
            }
            hostname() { echo here; }
            readlink() { echo 'socket:[11] socket:[12] socket:[13] socket:[14]'; }
            row() { echo "0: 0:1 $1:1F90 $3 0:0 0:0 0 0 0 $2 1"; }
            cat() {
                row 0302010A 11 01; row 00000000000000000000000001000000 12 01
                row B80D0120000000000000000007000100 13 01; row 000080FE000000000000000001000000 99 01
                row 00000000000000000000000002000000 14 06; row 00000000000000000000000002000000 98 01
            }
            hosts=(a b c d); find_waiting; echo "${waiting[*]}"; peers""" % DEPLOY
        done = subprocess.run(["bash", "-c", script], timeout=LIMIT_S, check=False, capture_output=True)
        self.assertEqual((done.stdout.decode().splitlines(), done.stderr),
                         (["b d", "10.1.2.3", "20010db8000000000000000000010007"], b""))


class ThisHost(Case):
    """Before the start, what mpirun needs of the host on which it runs."""

    def test_limits(self):
        def limited(what, limit):
            return lambda: resource.setrlimit(what, (limit, limit))
        self.expect_refused((), "a stack may have 64 KiB", "512", "ulimit -s 8192",
                            preexec_fn=limited(resource.RLIMIT_STACK, 64 << 10))
        self.expect_refused((), "a process may open 32 files", "64", "ulimit -n 1024",
                            preexec_fn=limited(resource.RLIMIT_NOFILE, 32))
        self.expect_taken(preexec_fn=limited(resource.RLIMIT_STACK, 512 << 10))
        self.expect_taken(preexec_fn=limited(resource.RLIMIT_NOFILE, 64))

    def test_temporary_files(self):
        self.write("x")
        for path, why in (("/nowhere", "No such file"), ("no\nwhere", "No such file"),
                          (os.path.join(self.folder, "hosts"), "Not a directory")):
            self.expect_refused((), "TMPDIR is '%s'" % path.replace("\n", "?"), why, env={"TMPDIR": path})
        real = shutil.which("mktemp")
        self.script("mktemp", """#!/bin/sh
            case " $FAKE_FULL " in *" ${2%%/millrace*} "*) echo "mktemp: '$2': Read-only file system" >&2; exit 1 ;; esac
            exec %s "$@"
            """ % real)
        for value in ({}, {"TMPDIR": ""}):
            env = {"FAKE_SHOWN": "TMPDIR", "TMPDIR": None, **value}
            self.assertIn(self.expect_taken(env={**env, "FAKE_FULL": "/"}), ([], ["TMPDIR="]))
            self.assertEqual(self.expect_taken(env={**env, "FAKE_FULL": "/tmp"}), ["TMPDIR=/dev/shm"])
            self.expect_refused((), "mpirun can make no file in /tmp, nor in /dev/shm: Read-only", "TMPDIR",
                                env={**env, "FAKE_FULL": "/tmp /dev/shm"})
        os.unlink(os.path.join(self.folder, "mktemp"))

    def test_home(self):
        """mpirun fails, even to say its version, where neither HOME nor the user's name says a home."""
        env = {"FAKE_SHOWN": "HOME", "HOME": None}
        self.assertEqual(self.expect_taken(env=env), [])
        self.assertEqual(self.expect_taken(env={**env, "FAKE_NAMELESS": "1"}), ["HOME="])
        self.assertEqual(self.expect_taken(env={**env, "FAKE_NAMELESS": "1", "HOME": "/x"}), ["HOME=/x"])

    def test_unknown_locale(self):
        """As of an ssh client. bash says so once, before it reads the script."""
        self.write("node1\r\n")
        status, out, errors = self.run_wrapper("--hostfile", "hosts", env={"LC_ALL": "xx_XX.UTF-8", "FAKE_SHOWN": "LC_ALL"})
        self.assertEqual((status, out.splitlines()[0]), (0, "LC_ALL=C"), errors)
        self.assertEqual([line for line in errors.splitlines() if not line.startswith("bash: ")], [])

    def test_odd_names(self):
        """Of this host and others: mpirun 4.1 takes underscores and long names in other forms of its lists alone."""
        shown = "OMPI_MCA_regx PMIX_MCA_preg OMPI_MCA_orte_launch_agent"
        naive, native = "OMPI_MCA_regx=naive", "PMIX_MCA_preg=^native"
        agent = "OMPI_MCA_orte_launch_agent=env PMIX_MCA_preg=^native orted"
        for name, args, expected in (
                ("node1", (), []), ("n" * 49 + "." + "d" * 40, ("--host", "node1"), []), ("my_node", (), [naive]),
                ("n" * 50, (), [naive, native]), ("n" * 50, ("--host", "node1"), [naive, native, agent]),
                ("node1", ("--host", "my_node,node1"), [naive]), ("node1", ("--host", "n" * 50), [naive, native, agent]),
                ("n" * 50, ("--host", "node1", "--launch-agent", "x"), [naive, native])):
            self.script("hostname", "#!/bin/sh\necho " + name)
            env = {"FAKE_SHOWN": shown, "FAKE_KNOWN": "my_node " + "n" * 50}
            got = [line for line in self.expect_taken(*args, env=env) if "host " not in line]
            self.assertEqual(got, expected, (name, args))
        self.assertEqual(self.expect_taken(env={**env, "FAKE_VERSION": "5.0.3"}), [])
        os.unlink(os.path.join(self.folder, "hostname"))

    def test_small_images(self):
        """They have no program hostname. bash knows the name of this host."""
        self.script("hostname", "#!/bin/sh\nexit 127")
        self.expect_taken("--host", socket.gethostname() + ".nowhere")
        os.unlink(os.path.join(self.folder, "hostname"))

    def test_version(self):
        """Libraries of the network may warn of something before it."""
        for before in "", "[warn] no device", "libibverbs: Warning: x\nlibfabric:1: y (Open) z":
            got = self.expect_taken("--version", command=(), env={"FAKE_BEFORE": before})
            self.assertEqual(got, ["millrace 1.2.3", "mpirun: 4.1.4"])

    def test_crash(self):
        """mpirun ends by a signal before a rank runs."""
        for name, number in ("ABRT", 6), ("SEGV", 11), ("KILL", 9):
            for args, status in ((), 128 + number), (("--recovery",), 1):
                done = self.run_wrapper(*args, env={"FAKE_END": "kill -%s $$" % name})
                self.assertEqual(done[0], status, done)
                self.assertIn("error: mpirun itself was ended by signal %d, %s, before a rank has started\nhint: "
                              % (number, name), done[2])
                self.assertNotIn("a rank was killed", done[2])
        # It has made a folder, which would stay.
        left = "mkdir -p $TMPDIR/ompi.%s.%d/pid.$$/0; kill -SEGV $$" % (socket.gethostname().split(".")[0], os.getuid())
        done = self.run_wrapper("--host", "node1", env={"FAKE_END": left})
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("ompi.")], [])
        self.assertIn("SEGV, and no rank is known to have started", done[2])
        # A rank that a signal has ended is another matter: mpirun says so.
        rule = "-" * 70
        banner = "echo '%s\nrank 0 exited on signal 11\n%s' >&2; exit 139" % (rule, rule)
        self.assertNotIn("mpirun itself", self.run_wrapper(env={"FAKE_END": banner})[2])
        running = 'echo "1 x" >"$MILLRACE_STATUS_FILE.pid"; kill -SEGV $$'
        self.assertIn("crashed while it ended", self.run_wrapper(env={"FAKE_END": running})[2])


class LongNames(unittest.TestCase):
    """Two hosts whose names have 60 letters, and the real mpirun."""

    def test_ranks(self):
        why = Hosts.available()
        if why:
            self.skipTest(why)
        hosts = Hosts(2)
        letters = "".join("abcdefghij"[int(digit)] for digit in str(os.getpid()))
        hosts.names = {letter: "q" * (59 - len(letters)) + letters + letter for letter in hosts.names}
        with hosts:
            done = run_ranks(None, ["generate", "--demo", "-p", "Once", "-n", "3", "--log-level", "warn"],
                             timeout=LIMIT_S, hosts=hosts, launcher=[WRAPPER], program=[],
                             env={"MILLRACE_BIN": program_path()})
        self.assertEqual((done.status, done.stderr, done.left), (0, b"", []), str(done))


if __name__ == "__main__":
    sys.exit(run_tests())
