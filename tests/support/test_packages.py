# SPDX-License-Identifier: Apache-2.0
"""Packages of tests/requirements.txt for a test: enter("openai") runs the test anew with the Python that has them, once,
and ends it as skipped (77) where there is none. To be called before anything of them is imported."""
import importlib.util
import os
import sys

SKIPPED = 77


def skip(why):
    print("skipped:", why)
    sys.exit(SKIPPED)


def enter(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    python = os.environ.get("MILLRACE_TEST_PYTHON", "")
    if not missing:
        return
    if os.environ.get("MILLRACE_TEST_ENTERED") == "yes" or not os.access(python, os.X_OK):
        skip(f"there is no Python package {', '.join(missing)}; deploy/check installs it")
    os.environ["MILLRACE_TEST_ENTERED"] = "yes"
    sys.stdout.flush()
    os.execv(python, [python, "-B", *sys.argv])
