# SPDX-License-Identifier: Apache-2.0
"""The chat templates that tests render: those of the vectors, and those of llama.cpp's package where test_llama_server has
unpacked it in the build folder."""
import glob
import os


def paths(program):
    """The paths, one for each file name; program: a path of this build's bin folder."""
    build = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(program))))
    folders = (os.path.join(build, "llama-cpp-python-*", "vendor", "llama.cpp", "models", "templates"),
               os.path.join(os.environ.get("MILLRACE_TEST_VECTORS", ""), "templates"))
    found = {os.path.basename(p): p for f in folders for p in glob.glob(os.path.join(f, "*.jinja"))}
    return [found[name] for name in sorted(found)]
