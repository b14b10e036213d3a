# SPDX-License-Identifier: Apache-2.0
"""Control groups with a memory limit, of version 1 or 2, for processes of tests. They need the right to make them."""
import os
import subprocess


def read(*path):
    with open(os.path.join(*path), encoding="ascii") as f:
        return f.read()


def write(text, *path):
    with open(os.path.join(*path), "w", encoding="ascii") as f:
        f.write(text)


def parents():
    """Folders in which a group with a memory limit could be made, and the name of the limit's file."""
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            for base in (path, "/"):
                yield "/sys/fs/cgroup/memory" + base.rstrip("/"), "memory.limit_in_bytes"
        elif controllers == "":
            yield "/sys/fs/cgroup" + os.path.dirname(path).rstrip("/"), "memory.max"
            yield "/sys/fs/cgroup", "memory.max"


class Group:
    """A control group with a memory limit, or path None where none can be made."""

    n_made = 0

    def __init__(self, limit_bytes):
        self.path = None
        Group.n_made += 1
        for parent, limit in parents():
            path = os.path.join(parent, f"millrace-test-{os.getpid()}-{Group.n_made}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            try:
                write(str(limit_bytes), path, limit)
                subprocess.run(["true"], preexec_fn=lambda: write("0", path, "cgroup.procs"), check=True)
                self.path, self.limit = path, limit
                return
            except (OSError, subprocess.SubprocessError):
                os.rmdir(path)

    def set_limit(self, limit_bytes):
        write(str(limit_bytes), self.path, self.limit)

    def reached(self):
        """How often the limit was."""
        if os.path.exists(os.path.join(self.path, "memory.failcnt")):
            return int(read(self.path, "memory.failcnt"))
        return int(dict(line.split() for line in read(self.path, "memory.events").splitlines())["max"])

    def peak(self):
        """The most bytes that its processes had at once, pages of files among them."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if os.path.exists(os.path.join(self.path, name)):
                return int(read(self.path, name))
        return 0

    def close(self):
        if self.path:
            os.rmdir(self.path)
