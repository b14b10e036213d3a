# shellcheck shell=bash
# deploy/lib/packages.sh - finds out what is missing by probing, not by asking the package manager, so that a compiler
# or library from elsewhere counts; then installs it with apt, or says what to install. Needs say.sh and ROOT.
# SPDX-License-Identifier: Apache-2.0

# The C compiler as CMake will choose it; CC may hold arguments, as CMake allows.
find_compiler() {
    local c
    for c in "${CC:-cc}" gcc clang; do
        if command -v "${c%% *}" >/dev/null 2>&1; then
            printf '%s\n' "$c"
            return 0
        fi
        [[ -z ${CC:-} ]] || return 1
    done
    return 1
}

# compiles FLAG …: a small program links with these flags and runs. What went wrong is left in $SCRATCH/probe.log.
compiles() {
    local cc
    cc=$(find_compiler) || {
        echo "no C compiler: ${CC:-cc, gcc, clang}" >"$SCRATCH/probe.log"
        return 1
    }
    printf '#include <stdio.h>\nint main(void) { return puts("ok") < 0; }\n' >"$SCRATCH/probe.c"
    # shellcheck disable=SC2086 # CC may hold arguments
    $cc -std=c17 "$@" "$SCRATCH/probe.c" -o "$SCRATCH/probe" >"$SCRATCH/probe.log" 2>&1 &&
        "$SCRATCH/probe" >>"$SCRATCH/probe.log" 2>&1
}

# probe WHAT: true if it is there. WHAT is a probe of packages.txt.
probe() {
    local names name
    case $1 in
    compiler) compiles ;;
    san:*) compiles "-fsanitize=${1#san:}" ;;
    inc:*) compiles -include "${1#inc:}" ;;
    pc:*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${1#pc:}" ;;
    cmd:*)
        IFS=, read -r -a names <<<"${1#cmd:}"
        for name in "${names[@]}"; do
            if command -v "$name" >/dev/null 2>&1; then return 0; fi
        done
        return 1
        ;;
    py:*) python3 -c "import ${1#py:}" 2>/dev/null ;;
    *) die "deploy/packages.txt: unknown probe '$1'" ;;
    esac
}

# describe PROBE: in words.
describe() {
    case $1 in
    compiler) echo "a C17 compiler" ;;
    san:*) echo "the compiler's -fsanitize=${1#san:}" ;;
    inc:*) echo "header ${1#inc:}" ;;
    pc:*) echo "library ${1#pc:} with its headers" ;;
    cmd:*) echo "command ${1#cmd:}" ;;
    py:*) echo "Python's module ${1#py:}" ;;
    esac
}

# find_missing GROUP …: sets the arrays MISSING (probes) and DEBIAN, FEDORA, SUSE, ARCH (packages that have them).
find_missing() {
    local group what debian fedora suse arch p
    MISSING=() DEBIAN=() FEDORA=() SUSE=() ARCH=()
    while read -r group what debian fedora suse arch; do
        [[ $group && $group != \#* && " $* " == *" $group "* ]] || continue
        probe "$what" && continue
        MISSING+=("$what")
        IFS=, read -r -a p <<<"$debian" && DEBIAN+=("${p[@]}")
        IFS=, read -r -a p <<<"$fedora" && FEDORA+=("${p[@]}")
        IFS=, read -r -a p <<<"$suse" && SUSE+=("${p[@]}")
        IFS=, read -r -a p <<<"$arch" && ARCH+=("${p[@]}")
    done <"$ROOT/deploy/packages.txt"
}

print_missing() {
    local what
    for what in "${MISSING[@]}"; do
        say "  missing: $(describe "$what")"
    done
}

unique() { printf '%s\n' "$@" | awk '!seen[$0]++' | paste -sd' ' -; }

# Packages of DEBIAN that apt has not installed, one a line. A probe can fail although its package is there.
not_installed() {
    local p
    for p in $(unique "${DEBIAN[@]}"); do
        [[ $(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || printf '%s\n' "$p"
    done
}

# Sets SUDO to the words that make a command run as root. Asks for a password only where somebody can type it.
find_sudo() {
    local command="apt-get install $*"
    SUDO=()
    [[ $(id -u) != 0 ]] || return 0
    if ! command -v sudo >/dev/null 2>&1; then
        die "packages are missing, and installing them needs root; there is no sudo" "as root: $command"
    elif sudo -n true 2>/dev/null; then
        SUDO=(sudo -n)
    elif [[ -t 0 ]]; then
        say "sudo may ask for your password to run: $command"
        SUDO=(sudo)
    else
        die "packages are missing, and sudo would ask for a password that nobody can type here" \
            "as root: $command" "or run this command in a terminal"
    fi
}

apt_get() {
    "${SUDO[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# True if the lists that apt has here know a version of every package given.
apt_knows() {
    local p
    for p in "$@"; do
        [[ $(LC_ALL=C apt-cache policy "$p" 2>/dev/null) == *"Candidate: "[!\(]* ]] || return 1
    done
}

apt_install() {
    local updated=no
    find_sudo "$@"
    if ! apt_knows "$@"; then
        say "apt does not know all of them yet: updating its lists"
        apt_get update || say "apt-get update had errors; trying with what it has"
        updated=yes
    fi
    apt_knows "$@" ||
        die "apt has no package for some of: $*" \
            "is there a network, and does /etc/apt name a Debian or Ubuntu archive?" \
            "Ubuntu keeps some of them in its component universe"
    apt_get install -y --no-install-recommends "$@" && return 0
    if [[ $updated == no ]]; then
        say "the install failed, perhaps because the lists are old: updating them and trying once more"
        if apt_get update && apt_get install -y --no-install-recommends "$@"; then return 0; fi
    fi
    die "apt-get could not install: $*" "its own message stands above; without a network it cannot work"
}

say_what_to_install() {
    fail "no apt-get here, so these packages are yours to install, then run this again:" \
        "Fedora: dnf install $(unique "${FEDORA[@]}")" \
        "openSUSE: zypper install $(unique "${SUSE[@]}")" \
        "Arch: pacman -S --needed $(unique "${ARCH[@]}")" \
        "Debian, Ubuntu: apt-get install $(unique "${DEBIAN[@]}")" \
        "others: whatever holds what is listed as missing; modules must be known to pkg-config" \
        "Open MPI may lie outside PATH until it is chosen: module load mpi/openmpi-x86_64, or as your system says"
    exit 1
}

# A probe failed although its package is installed, or still fails after installing.
die_probe() {
    local what=$1
    case $what in
    compiler | san:*)
        probe "$what" || true # leaves its message
        die "$(describe "$what") does not work here: $(grep -m1 . "$SCRATCH/probe.log" || echo 'no message')" \
            "compiler tried: $(find_compiler || echo none); set CC to choose another"
        ;;
    pc:*) die "pkg-config does not find ${what#pc:} although its package is installed" \
        "is PKG_CONFIG_PATH or PKG_CONFIG_LIBDIR set, or another pkg-config earlier in PATH?" ;;
    *) die "$(describe "$what") is not in PATH although its package is installed" "PATH is $PATH" ;;
    esac
}

# need GROUP …: everything of these groups of packages.txt is there when this returns.
need() {
    local packages
    find_missing "$@"
    if ((${#MISSING[@]} == 0)); then
        say "everything is there"
    else
        print_missing
        command -v apt-get >/dev/null 2>&1 || say_what_to_install
        mapfile -t packages < <(not_installed)
        if ((${#packages[@]})); then
            say "installing with apt: ${packages[*]}"
            apt_install "${packages[@]}"
        fi
        find_missing "$@"
        ((${#MISSING[@]} == 0)) || die_probe "${MISSING[0]}"
    fi
    check_cmake_version
}

# wish GROUP …: installs what is missing of these groups, where there is apt and it can; else says what is left out.
wish() {
    local packages
    find_missing "$@"
    ((${#MISSING[@]})) || return 0
    print_missing
    command -v apt-get >/dev/null 2>&1 || return 0
    mapfile -t packages < <(not_installed)
    say "installing with apt: ${packages[*]}"
    if ! (apt_install "${packages[@]}") >"$SCRATCH/wish.log" 2>&1; then
        say "that failed, so the tests that need it are skipped: $(tail -n 1 "$SCRATCH/wish.log")"
    fi
}

# CMakeLists.txt says which version it takes.
check_cmake_version() {
    local least have
    least=$(sed -n 's/^cmake_minimum_required(VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
    have=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
    [[ $(printf '%s\n' "$least" "$have" | sort -V | head -n 1) == "$least" ]] ||
        die "cmake $least or newer is needed, $(command -v cmake) is $have" \
            "Debian 12 and Ubuntu 22.04 have it; on an older system put a newer cmake first in PATH"
}
