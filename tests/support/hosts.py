#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, each with its own network, name and mounts, and mpirun over them.

    with Hosts(3) as hosts:
        done = run_ranks(3, ["generate", "--demo", "-p", "Once"], hosts=hosts)

A host is a process that sleeps in namespaces of its own (network, UTS, mount); mpirun's agent enters them in place of
ssh, and passes as few variables on as ssh does. The bridge between the hosts stands in a network namespace too, so that
nothing of the machine changes: no address, no firewall rule, no name can clash. The hosts end, with all that runs on
them, when the pipes to them close, so also when this process is killed. Needs root; `unshare -Ur` gives enough of it
where the system lets users.

As a program, over two hosts of which the second has another file in place of the model:

    tests/support/hosts.py --hosts 2 --replace b:/tmp/m.gguf=/tmp/other.gguf mpirun -n 2 millrace generate /tmp/m.gguf
"""
import argparse
import contextlib
import glob
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

SKIPPED = 77  # what ctest takes for "skipped"
NETWORK = "10.213.0"
LETTERS = "abcdefghijklmnop"
NAMESPACES = ["--net", "--uts", "--mount"]
MARK = "MR_TEST_JOB"  # in the environment of every process of a job

# Runs in the namespaces of a new host until its input closes, and then ends all processes on it. $1: the host's name.
HOLDER = """
hostname "$1" && ip link set lo up && echo ready || exit 1
cat >/dev/null
network=$(readlink /proc/$$/ns/net)
for p in /proc/[0-9]*; do
    if [ "$p" != /proc/$$ ] && [ "$(readlink $p/ns/net)" = "$network" ]; then kill -9 ${p#/proc/}; fi
done 2>/dev/null
"""


class Unavailable(Exception):
    """This machine cannot make hosts; the text says why."""


def call(*args, **kwargs):
    """Runs a command that has to succeed."""
    done = subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20,
                          check=False, **kwargs)
    if done.returncode != 0:
        raise Unavailable("%s: %s" % (shlex.join(args), done.stdout.decode().strip() or done.returncode))


class Holder:
    """A process that keeps namespaces alive."""

    def __init__(self, name):
        self.name = name
        command = ["unshare", *NAMESPACES, "--propagation", "private", "sh", "-c", HOLDER, "sh", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            why = self.process.stderr.read().decode().strip()
            self.close()
            raise Unavailable("namespaces cannot be made here: " + why)

    @property
    def pid(self):
        return self.process.pid

    def enter(self, *args):
        """The command line that runs args in the namespaces, in the folder of this process."""
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, "--", "env", "--chdir", os.getcwd(), *args]

    def call(self, *args):
        call(*self.enter(*args))

    def close(self):
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Hosts:
    """n hosts a, b, c ... with the names mr<pid>a and so on, and the addresses NETWORK.1 and so on.
    hide:    {"b": [path]}: files or folders that are missing there (a folder is empty).
    replace: {"b": {path: other}}: another file in place of one.
    slots:   of each host, in the host file."""

    n_made = 0

    def __init__(self, n, hide=None, replace=None, slots=1):
        self.n, self.slots = n, slots
        self.hide, self.replace = hide or {}, replace or {}
        prefix = "mr%d" % os.getpid() + ("n%d" % Hosts.n_made if Hosts.n_made else "")
        Hosts.n_made += 1
        self.letters = LETTERS[:n]
        self.names = {letter: prefix + letter for letter in self.letters}
        self.holders, self.switch, self.folder, self.old_handler = {}, None, None, None

    @staticmethod
    def available():
        """None, or why hosts cannot be made here."""
        for name in ("ip", "unshare", "nsenter", "mount", "mpirun"):
            if not shutil.which(name):
                return "there is no command %s" % name
        if os.geteuid() != 0:
            return "namespaces need root"
        try:
            with Hosts(1):
                return None
        except Unavailable as e:
            return str(e)

    def __enter__(self):
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self.old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for holder in self.holders.values():
            holder.close()
        if self.switch:
            self.switch.close()
        if self.folder:
            shutil.rmtree(self.folder)
        for name in self.names.values():  # what killed daemons of mpirun leave
            for path in glob.glob("/tmp/ompi.%s.*" % name) + glob.glob("/dev/shm/*.%s.*" % name):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        if self.old_handler is not None:
            signal.signal(signal.SIGTERM, self.old_handler)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def address(self, letter):
        return "%s.%d" % (NETWORK, 1 + self.letters.index(letter))

    def make(self):
        self.folder = tempfile.mkdtemp(prefix="mr-hosts-")
        os.chmod(self.folder, 0o755)
        self.switch = Holder("switch")
        self.switch.call("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.call("ip", "link", "set", "bridge", "up")
        names = "".join("%s %s\n" % (self.address(i), self.names[i]) for i in self.letters)
        self.write("etc-hosts", "127.0.0.1 localhost\n" + names)
        for letter in self.letters:
            self.make_host(letter)
        self.write("hostfile", "".join("%s slots=%d\n" % (self.names[i], self.slots) for i in self.letters))
        self.write_agent()

    def make_host(self, letter):
        holder = self.holders[letter] = Holder(self.names[letter])
        port = "port-" + letter
        self.switch.call("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        self.switch.call("ip", "link", "set", port, "master", "bridge", "up")
        holder.call("ip", "address", "add", self.address(letter) + "/24", "dev", "eth0")
        holder.call("ip", "link", "set", "eth0", "up")
        holder.call("mount", "--bind", self.path("etc-hosts"), "/etc/hosts")
        for path in self.hide.get(letter, []):
            self.hide_path(holder, os.path.realpath(path))
        for path, other in self.replace.get(letter, {}).items():
            holder.call("mount", "--bind", os.path.realpath(other), os.path.realpath(path))

    def hide_path(self, holder, path):
        """An empty folder over a folder; for a file, a folder with all the others over its folder."""
        if os.path.isdir(path):
            holder.call("mount", "-t", "tmpfs", "none", path)
            return
        folder = os.path.dirname(path)
        whole = tempfile.mkdtemp(dir=self.folder)
        script = ["set -e", "mount --bind %s %s" % (shlex.quote(folder), whole),
                  "mount -t tmpfs none %s" % shlex.quote(folder)]
        for entry in os.scandir(folder):
            if entry.path != path:
                make = "mkdir" if entry.is_dir() else "touch"
                here, there = shlex.quote(entry.path), shlex.quote(os.path.join(whole, entry.name))
                script.append("%s %s; mount --bind %s %s" % (make, here, there, here))
        holder.call("sh", "-c", "\n".join(script))

    def write_agent(self):
        """What mpirun runs in place of ssh: AGENT HOST COMMAND ..."""
        lines = ["#!/bin/sh", 'host=$1', "shift", "case $host in"]
        for letter in self.letters:
            lines.append("%s|%s) pid=%d ;;" % (self.names[letter], self.address(letter), self.holders[letter].pid))
        lines += ['*) echo "agent: there is no host $host" >&2; exit 255 ;;', "esac",
                  "exec nsenter --target $pid %s -- env -i PATH=\"$PATH\" HOME=\"$HOME\" %s=\"$%s\" sh -c \"$*\"" %
                  (" ".join(NAMESPACES), MARK, MARK), ""]
        self.write("agent", "\n".join(lines), 0o755)

    def mpirun_args(self):
        net = NETWORK + ".0/24"
        pairs = [("plm_rsh_agent", self.path("agent")), ("plm_rsh_no_tree_spawn", "1"), ("oob_tcp_if_include", net),
                 ("btl", "tcp,self,vader"), ("btl_tcp_if_include", net)]
        return ["--hostfile", self.path("hostfile")] + [word for k, v in pairs for word in ("--mca", k, v)]

    def enter(self, *args, letter="a"):
        """The command line that runs args on a host. mpirun runs on a."""
        return self.holders[letter].enter(*args)

    def cut(self, letter):
        """Pulls the network cable of a host; nobody is told."""
        self.switch.call("ip", "link", "set", "port-" + letter, "nomaster")

    def deafen(self, letter, to):
        """What one host sends to another one is lost; the other direction works."""
        self.holders[letter].call("ip", "route", "add", "blackhole", self.address(to) + "/32")

    def join(self, letter):
        self.switch.call("ip", "link", "set", "port-" + letter, "master", "bridge")


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def program_path():
    return os.path.abspath(os.environ.get("MILLRACE_BIN", "build/release/bin/millrace"))


class Job:
    """mpirun in the background. launcher stands in for mpirun and its usual options, program for millrace."""

    def __init__(self, n, args, hosts=None, btl=None, mpirun_args=(), env=None, stdin=None, launcher=None,
                 program=None):
        self.mark = uuid.uuid4().hex
        command = launcher or ["mpirun", "--quiet", "--oversubscribe", "--bind-to", "none"]
        command = [*command, *(["-n", str(n)] if n else [])]
        command += hosts.mpirun_args() if hosts else []
        command += ["--mca", "btl", btl] if btl else []
        for name in ("MILLRACE_CPU_ISA", "ASAN_OPTIONS"):
            command += ["-x", name] if name in os.environ else []
        command += [*mpirun_args, *([program_path()] if program is None else program), *args]
        if hosts:
            command = hosts.enter(*command)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_") or k == "MILLRACE_CPU_ISA"}
        environment["MILLRACE_MEASURE"] = "off"  # plans do not hang on how busy the machine is
        environment.update({MARK: self.mark, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        environment.update(env or {})
        self.command, self.begin = command, time.monotonic()
        self.process = subprocess.Popen(command, env=environment, stdin=stdin or subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def processes(self):
        """{pid: environment} of all living processes of the job."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            environment = dict(w.decode(errors="replace").split("=", 1) for w in words if b"=" in w)
            if environment.get(MARK) == self.mark:
                found[int(pid)] = environment
        return found

    def describe(self):
        """What the living processes are, and what they wait for; of ranks where each thread is, if gdb can tell."""
        lines = []
        for pid, environment in sorted(self.processes().items()):
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as command, open("/proc/%d/wchan" % pid) as wait:
                    lines.append("alive: rank %s, pid %d, in %s: %s" % (
                        environment.get("OMPI_COMM_WORLD_RANK", "none"), pid, wait.read(),
                        command.read().replace(b"\0", b" ").decode(errors="replace")[:200]))
            except OSError:
                continue
            if shutil.which("gdb") and "OMPI_COMM_WORLD_RANK" in environment:
                lines.append(subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace"],
                                            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout)
        return "\n".join(lines) + "\n"

    def rank_pid(self, rank, timeout=30):
        """The process of a rank, once it runs."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for pid, environment in self.processes().items():
                if environment.get("OMPI_COMM_WORLD_RANK") == str(rank):
                    return pid
            time.sleep(0.02)
        raise TimeoutError("rank %d does not run" % rank)

    def mpirun_pid(self):
        """The process of mpirun below a wrapper. Beside it the wrapper has programs that end at any moment."""
        with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid), encoding="ascii") as f:
            children = [int(word) for word in f.read().split()]
        for pid in children:
            with contextlib.suppress(OSError), open("/proc/%d/comm" % pid, encoding="ascii") as f:
                if f.read().strip() in ("mpirun", "prterun"):
                    return pid
        raise LookupError("there is no mpirun below the wrapper")

    def left(self, patience=5):
        """What still lives of the job after a while, as pids, and then ends it."""
        end = time.monotonic() + patience
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        pids = sorted(self.processes())
        for pid in pids:
            kill(pid)
        return pids

    def wait(self, timeout=120, input_bytes=None):
        """The end of the job, as an object with status (None: it took too long), stdout, stderr, seconds and left."""
        try:
            out, errors = self.process.communicate(input_bytes, timeout)
            status = self.process.returncode
        except subprocess.TimeoutExpired:
            alive = self.describe()
            self.left(0)
            self.process.kill()
            out, errors = self.process.communicate()
            errors += alive.encode()
            status = None
        seconds = time.monotonic() - self.begin
        return Done(self.command, status, out, errors, seconds, self.left())


class Done:
    def __init__(self, command, status, stdout, stderr, seconds, left):
        self.command, self.status, self.stdout, self.stderr = command, status, stdout, stderr
        self.seconds, self.left = seconds, left

    def __str__(self):
        return "%s\nstatus %s after %.1f s, left %s\n%s" % (shlex.join(self.command), self.status, self.seconds,
                                                            self.left, self.stderr.decode(errors="replace"))


def run_ranks(n, args, timeout=120, input_bytes=None, **kwargs):
    """Runs millrace with args as n ranks to the end; see Job and Job.wait."""
    stdin = subprocess.PIPE if input_bytes is not None else None
    return Job(n, args, stdin=stdin, **kwargs).wait(timeout, input_bytes)


def run_tests():
    """unittest.main for ctest: the exit status, SKIPPED if all tests were skipped."""
    program = unittest.main(exit=False)
    skips = {why for _, why in program.result.skipped}
    if program.result.wasSuccessful() and skips and len(program.result.skipped) >= max(program.result.testsRun, 1):
        print("skipped: " + "; ".join(skips))
        return SKIPPED
    return not program.result.wasSuccessful()


def main():
    parser = argparse.ArgumentParser(description="Runs mpirun over several hosts that are made for it.")
    parser.add_argument("--hosts", type=int, default=3, metavar="N")
    parser.add_argument("--slots", type=int, default=1, metavar="N", help="of each host")
    parser.add_argument("--hide", action="append", default=[], metavar="b:PATH", help="is missing on host b")
    parser.add_argument("--replace", action="append", default=[], metavar="b:PATH=OTHER", help="is another file there")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="mpirun, or a wrapper of it, and its arguments")
    options = parser.parse_args()
    why = Hosts.available()
    if why:
        print("skipped: " + why, file=sys.stderr)
        return SKIPPED
    hide, replace = {}, {}
    for letter, path in (text.split(":", 1) for text in options.hide):
        hide.setdefault(letter, []).append(path)
    for letter, pair in (text.split(":", 1) for text in options.replace):
        replace.setdefault(letter, {}).update([pair.split("=", 1)])
    with Hosts(options.hosts, hide, replace, options.slots) as hosts:
        words = [word for word in options.command if word != "--"] if options.command[:1] == ["--"] else options.command
        return subprocess.call(hosts.enter(words[0], *hosts.mpirun_args(), *words[1:]))


if __name__ == "__main__":
    sys.exit(main())
