#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` and cpack make of a build folder: programs that run from where they are put, and documents
whose links lead somewhere."""
import glob
import os
import re
import shutil
import subprocess
import tarfile
import unittest

import cli

BUILD = os.environ["MILLRACE_TEST_BUILD"]
CMAKE = os.environ["MILLRACE_TEST_CMAKE"]
FILES = ["bin/millrace", "share/doc/millrace/LICENSE", "share/doc/millrace/README.md",
         "share/doc/millrace/CHANGELOG.md", "share/doc/millrace/coordinator/COMMANDS.md",
         "share/doc/millrace/coordinator/OPTIONS.md",
         "share/doc/millrace/deploy/CLUSTER.md",
         "share/doc/millrace/engine/NUMERICS.md", "share/millrace/alerts.yml", "share/millrace/grafana.json",
         "share/millrace/millrace-demo.gguf", "share/millrace/millrace.service"]


class Install(cli.Case):
    def call(self, *command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=cli.LIMIT_S,
                              check=False, cwd=self.folder, env=cli.environment())
        self.assertEqual(done.returncode, 0, (command, done.stdout.decode()))
        return done.stdout.decode()

    def check_tree(self, root):
        """The files are there, and the program runs."""
        for name in FILES:
            self.assertTrue(os.path.isfile(os.path.join(root, name)), f"{root} lacks {name}")
        program = os.path.join(root, "bin", "millrace")
        self.assertRegex(self.call(program, "--version"), r"^millrace \d+\.\d+\.\d+")
        text = self.call(program, "generate", "--demo", "-p", "Once upon a time", "-n", "8", "--log-level", "warn")
        self.assertGreater(len(text), 8)
        wrapper = os.path.join(root, "bin", "millrace-mpirun")  # absent in a build without MPI
        if os.path.exists(wrapper):
            self.assertIn("usage: millrace-mpirun", self.call(wrapper, "--help"))

    def pack(self, kind, pattern):
        """The one file that cpack makes of this kind."""
        self.call(os.path.join(os.path.dirname(CMAKE), "cpack"), "-G", kind, "--config",
                  os.path.join(BUILD, "CPackConfig.cmake"), "-B", self.path(kind))
        found = glob.glob(self.path(f"{kind}/{pattern}"))
        self.assertEqual(len(found), 1, found)
        return found[0]

    def test_prefix(self):
        prefix = self.path("prefix")
        self.call(CMAKE, "--install", BUILD, "--prefix", prefix)
        self.check_tree(prefix)

    def test_links(self):
        """The links of README, manual and cluster guide, from where they lie once installed."""
        prefix = self.path("linked")
        self.call(CMAKE, "--install", BUILD, "--prefix", prefix)
        for name in ("README.md", "coordinator/COMMANDS.md", "deploy/CLUSTER.md"):
            path = os.path.join(prefix, "share/doc/millrace", name)
            with open(path, encoding="utf-8") as f:
                links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", f.read())
            self.assertGreater(len(links), 0)
            for link in links:
                self.assertTrue(os.path.exists(os.path.join(os.path.dirname(path), link)), f"{name}: {link}")

    def test_tar(self):
        with tarfile.open(self.pack("TGZ", "millrace-*.tar.gz")) as archive:
            archive.extractall(self.path("unpacked"))
        self.check_tree(glob.glob(self.path("unpacked/millrace-*"))[0])

    @unittest.skipUnless(all(map(shutil.which, ("dpkg-deb", "dpkg-shlibdeps", "file"))), "no tools for Debian packages")
    def test_debian_package(self):
        package = self.pack("DEB", "millrace_*.deb")
        self.assertRegex(self.call("dpkg-deb", "--field", package, "Depends"), r"libc6 .*libmicrohttpd")
        self.call("dpkg-deb", "--extract", package, self.path("extracted"))
        self.check_tree(self.path("extracted/usr"))


if __name__ == "__main__":
    unittest.main()
