# SPDX-License-Identifier: Apache-2.0
"""deploy/millrace-mpirun with scripts in place of mpirun, millrace, the name service and ssh. Variables tell the scripts
what to do:

FAKE_SHOWN    names of variables that mpirun prints
FAKE_END      what mpirun does at its end, as text of a shell
FAKE_VERSION  of mpirun
FAKE_BEFORE   what mpirun says before its version
FAKE_KNOWN    further names of hosts that are known
FAKE_NAMELESS if not empty, the user has no name
"""
import os
import shutil
import subprocess
import tempfile
import unittest

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")
WRAPPER = os.path.join(DEPLOY, "millrace-mpirun")
LIMIT_S = 60

# Prints lists of hosts, and a host file with its option and its name.
MPIRUN = """#!/bin/sh
[ -n "${HOME+set}" ] || [ -z "${FAKE_NAMELESS:-}" ] || { echo "Unable to get the user home directory" >&2; exit 1; }
[ "$1" != --version ] || { echo "${FAKE_BEFORE:-}"; echo "mpirun (Open MPI) ${FAKE_VERSION:-4.1.4}"; echo bugs; exit 0; }
while [ $# -gt 0 ]; do
    case $1 in
    -x | -n) shift ;;
    --mca) shift 2 ;;
    -*hostfile | -*machinefile | -rf) option=$1 file=$2; shift ;;
    -H | -*host) echo "$1 $2"; shift ;;
    esac
    shift
done
echo "${FAKE_SHOWN:-}" | tr ' ' '\\n' | while read -r name; do [ -z "$name" ] || env | grep "^$name=" || true; done
eval "${FAKE_END:-}"
[ -z "$option" ] || { echo "$option"; cat "$file"; echo "[$(basename "$file")]"; }
"""
GETENT = """#!/bin/sh
[ "$1" != passwd ] || { [ -z "${FAKE_NAMELESS:-}" ]; exit; }
case " $FAKE_KNOWN node1 node2 localhost 10.0.0.1 n c host " in *" $2 "*) echo "10.0.0.1 $2" ;; *) exit 2 ;; esac
"""
SSH = """#!/bin/sh
[ "$1" = -G ] || exit 255
case $2 in
alias) echo "hostname node2" ;;
behind) echo "hostname behind"; echo "proxyjump gate" ;;
*) echo "hostname ${2#*@}" ;;
esac
"""
PROGRAM = """#!/bin/sh
case "$1 $2" in
"generate --help" | "serve --help") exit 0 ;;
"--version ") echo "millrace 1.2.3"; exit 0 ;;
esac
echo "millrace: error: unknown command \\"$1\\"; hint: did you mean generate?" >&2
exit 2
"""


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="millrace-mpi-")
        for name, text in (("mpirun", MPIRUN), ("getent", GETENT), ("ssh", SSH), ("millrace", PROGRAM)):
            cls.script(name, text)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def script(cls, name, text):
        path = os.path.join(cls.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, 0o755)

    def write(self, content, name="hosts"):
        with open(os.path.join(self.folder, name), "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())

    def environment(self, env):
        """Of the wrapper. env: further variables; None: the variable is not set."""
        all_of_them = {k: v for k, v in os.environ.items()
                       if not k.startswith(("MILLRACE_", "OMPI_", "PRTE_", "SLURM_", "PBS_"))}
        all_of_them.update({"PATH": self.folder + ":" + os.environ["PATH"], "TMPDIR": self.folder, "LC_ALL": "C.UTF-8",
                            "MILLRACE_BIN": os.path.join(self.folder, "millrace"), **(env or {})})
        return {k: v for k, v in all_of_them.items() if v is not None}

    def run_wrapper(self, *args, env=None, command=("generate",), **kwargs):
        """Of the wrapper, which runs in the folder of the scripts: exit status, standard output and standard error."""
        done = subprocess.run([WRAPPER, *args, *command], cwd=self.folder, env=self.environment(env), timeout=LIMIT_S,
                              check=False, stdin=subprocess.DEVNULL, capture_output=True, **kwargs)
        left = [name for name in os.listdir(self.folder) if name.startswith("millrace-mpirun-")]
        self.assertEqual(left, [], done)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def expect_taken(self, *args, **kwargs):
        """The lines that mpirun prints."""
        status, out, errors = self.run_wrapper(*args, **kwargs)
        self.assertEqual((status, errors), (0, ""), (args, out))
        return out.splitlines()

    def expect_refused(self, args, begin, *words, **kwargs):
        """One error, which begins so, and a hint; mpirun does not run."""
        status, out, errors = self.run_wrapper(*args, **kwargs)
        lines = errors.splitlines()
        self.assertEqual((status, out, len(lines)), (2, "", 2), (args, errors))
        self.assertTrue(lines[0].startswith("millrace-mpirun: error: " + begin), errors)
        self.assertTrue(lines[1].startswith("hint: "), errors)
        for word in words:
            self.assertIn(word, errors)

    def expect_file_refused(self, content, begin, *words, **kwargs):
        self.write(content)
        self.expect_refused(("--hostfile", "hosts"), begin, *words, **kwargs)
