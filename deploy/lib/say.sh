# shellcheck shell=bash
# deploy/lib/say.sh - headings, errors and elapsed time for the scripts of deploy/.
# SPDX-License-Identifier: Apache-2.0

# step N OF TEXT: a heading.
step() { printf '\n== %s/%s %s\n' "$1" "$2" "$3"; }

say() { printf '%s\n' "$*"; }

# fail TEXT [HINT …]: one line for what is wrong, one for each hint, on standard error.
fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    local hint
    for hint in "$@"; do
        printf 'hint: %s\n' "$hint" >&2
    done
}

die() {
    fail "$@"
    exit 1
}

# elapsed SINCE: seconds since a value of $SECONDS, for people.
elapsed() {
    local s=$((SECONDS - $1))
    if ((s < 60)); then
        printf '%d s' "$s"
    else
        printf '%d min %d s' $((s / 60)) $((s % 60))
    fi
}

# A folder for probes and logs that goes when the script ends.
SCRATCH=$(mktemp -d) || die "cannot make a temporary folder in ${TMPDIR:-/tmp}" \
    "set TMPDIR to a folder that can be written"
trap 'rm -rf "$SCRATCH"' EXIT
