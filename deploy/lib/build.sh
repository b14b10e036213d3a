# shellcheck shell=bash
# deploy/lib/build.sh - configures and builds a preset of CMakePresets.json. Needs say.sh and ROOT; works in ROOT.
# SPDX-License-Identifier: Apache-2.0

# check_build_folder PRESET: a folder that another user made, or that was made for a tree elsewhere, would only give
# obscure messages later.
check_build_folder() {
    local dir=$ROOT/build/$1 part home
    for part in "$ROOT/build" "$dir"; do
        if [[ -e $part && ! -w $part ]]; then
            die "$part belongs to $(stat -c %U "$part") and cannot be written" "remove it, or work as that user"
        fi
    done
    if [[ ! -e $ROOT/build && ! -w $ROOT ]]; then
        die "$ROOT cannot be written, and the build goes to build/ inside it" "clone to a folder of your own"
    fi
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$dir/CMakeCache.txt" 2>/dev/null || true)
    if [[ $home && $home != "$ROOT" ]]; then
        say "build/$1 was made for $home: starting it anew"
        rm -rf "$dir"
    fi
}

# forget_other_compiler PRESET COMPILER: starts a build folder anew that was made with another one.
forget_other_compiler() {
    local made
    made=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$ROOT/build/$1/CMakeCache.txt" 2>/dev/null || true)
    if [[ $made && $made != "$(command -v "$2")" ]]; then
        say "build/$1 was made with $made, not $2: starting it anew"
        rm -rf "${ROOT:?}/build/$1"
    fi
}

# configure PRESET [ARGUMENT …]
configure() {
    local preset=$1
    shift
    check_build_folder "$preset"
    (cd "$ROOT" && cmake --preset "$preset" "$@") || {
        fail "cmake could not configure the preset $preset" "its message stands above; rm -rf build/$preset starts anew"
        return 1
    }
}

# build PRESET [TARGET …]
build() {
    local preset=$1
    shift
    (cd "$ROOT" && cmake --build --preset "$preset" ${1:+--target "$@"}) || {
        fail "the build of preset $preset failed" "the first message of the compiler above says where"
        return 1
    }
}

# The compiler that a configured preset uses, in words.
compiler_of() {
    local path
    path=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$ROOT/build/$1/CMakeCache.txt")
    "$path" --version | head -n 1
}
