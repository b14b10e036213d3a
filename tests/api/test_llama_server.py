# SPDX-License-Identifier: Apache-2.0
"""The tests of llama.cpp's server, against millrace serve with the demo model. They are taken from the source package of
llama-cpp-python, which pip downloads once into the build folder. Those that cannot pass stand in
llama_server_expected_failures.txt, each with its reason; any other failure is one of this test, and so is a pass of a test on
the list. llama_server_plugin.py starts our server in place of theirs."""
import glob
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

import test_packages

test_packages.enter("openai", "pytest", "requests")

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.abspath(os.environ.get("MILLRACE_BIN", "build/release/bin/millrace"))
BUILD = os.path.dirname(os.path.dirname(os.path.dirname(BIN)))
FOLDER = os.path.join(BUILD, f"{PACKAGE}-{VERSION}")
WANTED = ("/vendor/llama.cpp/tools/server/tests/", "/vendor/llama.cpp/models/templates/")
MODULES = ("basic", "chat_completion", "completion", "embedding", "security", "template", "tokenize")
DOWNLOAD_S = 300


def unpack(archive, folder):
    """The tests, and the templates that they name, without the folder that the archive has around all."""
    with tarfile.open(archive) as files:
        for member in files:
            path = member.name.partition("/")[2]
            if member.isfile() and any(w in "/" + path for w in WANTED) and ".." not in path:
                member.name = path
                files.extract(member, folder)


def download():
    if os.path.isdir(FOLDER):
        return
    with tempfile.TemporaryDirectory(prefix="download-", dir=BUILD) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary",
               PACKAGE, "--dest", folder, f"{PACKAGE}=={VERSION}"]
        try:
            done = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DOWNLOAD_S, check=False)
            said = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            said = f"it took more than {DOWNLOAD_S} s"
        archives = glob.glob(os.path.join(folder, "*.tar.gz"))
        if not archives:
            test_packages.skip(f"{PACKAGE} {VERSION} cannot be downloaded: {said}")
        unpack(archives[0], os.path.join(folder, "unpacked"))
        os.rename(os.path.join(folder, "unpacked"), FOLDER)


def main():
    if not os.path.exists(os.path.join(os.path.dirname(BIN), "millrace-demo.gguf")):
        test_packages.skip("the demo model is not there")
    download()
    tests = os.path.join(FOLDER, WANTED[0].strip("/"))
    shutil.rmtree(os.path.join(tests, "tmp"), ignore_errors=True)
    env = {**os.environ, "MILLRACE_BIN": BIN, "PYTHONPATH": os.pathsep.join([tests, HERE, os.environ["PYTHONPATH"]])}
    env["MILLRACE_EXPECTED_FAILURES"] = os.path.join(HERE, "llama_server_expected_failures.txt")
    args = sys.argv[1:] or [f"unit/test_{name}.py" for name in MODULES]
    run = [sys.executable, "-B", "-m", "pytest", "--noconftest", "-p", "llama_server_plugin", "-p", "no:cacheprovider", "-q",
           "--tb=short", *args]
    sys.exit(subprocess.run(run, cwd=tests, env=env, check=False).returncode)


if __name__ == "__main__":
    main()
