# shellcheck shell=bash
# deploy/lib/venv.sh - the virtual environment build/venv with the Python packages of tests/requirements.txt, and with
# the models of tests/requirements-models.txt. Needs say.sh and ROOT.
# SPDX-License-Identifier: Apache-2.0

# make_venv: makes it, or brings it up to date; quick where nothing has changed. Without a network the tests that need
# it are skipped, which is said. MILLRACE_TEST_PYTHON in the environment names another Python, and nothing is made.
make_venv() {
    local venv=$ROOT/build/venv wanted=$ROOT/tests/requirements.txt models=$ROOT/tests/requirements-models.txt
    local log=$SCRATCH/venv.log t=$SECONDS
    if [[ ${MILLRACE_TEST_PYTHON:-} ]]; then
        test_python=$MILLRACE_TEST_PYTHON
        return 0
    fi
    test_python=$venv/bin/python3
    if cat "$wanted" "$models" | cmp -s - "$venv/requirements.txt" && "$test_python" -c '' 2>/dev/null; then
        return 0
    fi
    say "build/venv: installing the Python packages of tests/requirements.txt"
    rm -rf "$venv"
    if python3 -m venv "$venv" >"$log" 2>&1 &&
        "$test_python" -m pip install -q --disable-pip-version-check -r "$wanted" >>"$log" 2>&1; then
        "$test_python" -m pip install -q --disable-pip-version-check -r "$models" >>"$log" 2>&1 ||
            say "build/venv: the models cannot be had, so their tests are skipped: $(tail -n 1 "$log")"
        cat "$wanted" "$models" >"$venv/requirements.txt"
        say "build/venv: done in $(elapsed "$t")"
    else
        say "build/venv: that failed, so the tests that need them are skipped: $(tail -n 1 "$log")"
        rm -rf "$venv"
    fi
}
