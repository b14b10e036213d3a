# SPDX-License-Identifier: Apache-2.0
"""Packages of tests/requirements.lock for a test: enter("openai") runs the test anew with the Python that has them, once,
and ends it as skipped (77) where there is none. To be called before anything of them is imported. Clients have
environments of their own, one for each lock file of tests/clients: client("lm_eval") is the Python of that group."""
import hashlib
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


def client(group):
    """The Python of a group of tests/clients; ends the test as skipped where the group is not installed."""
    source = os.environ.get("MILLRACE_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
    with open(os.path.join(source, "tests", "clients", group + ".lock"), "rb") as lock:
        name = f"{group}-{hashlib.sha256(lock.read()).hexdigest()[:16]}"
    folder = os.path.join(source, "build", "clients", name)
    if not os.path.exists(os.path.join(folder, "installed")):
        skip(f"the client {group} is not installed: there is no build/clients/{name}; deploy/check installs it")
    return os.path.join(folder, "bin", "python3")


def enter_client(group):
    """Runs the test anew, once, with the Python of the group."""
    if os.environ.get("MILLRACE_TEST_ENTERED") != "yes":
        os.environ["MILLRACE_TEST_ENTERED"] = "yes"
        sys.stdout.flush()
        python = client(group)
        os.execv(python, [python, *sys.argv])
