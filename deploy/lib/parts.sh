# shellcheck shell=bash
# deploy/lib/parts.sh - the parts of deploy/check: what each builds and runs, and the stamps of those that have passed.
# Needs say.sh, packages.sh and ROOT; deploy/check sets form, tree, versions, vectors, test_python and CHECKS, the
# folder of stamps.
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2034,SC2154 # deploy/check and this file read what the other one sets

PARTS=(lint release mpirun clang asan tsan)

# The pieces of --long: all tests, in pieces that end within two hours each. Full lists and products of cases are for
# the release, because they compare bits. Sanitizers and clang run every test with one of four cases: what they find is
# in the code, and not in the numbers.
long_pieces() {
    local tests build
    for tests in kernel cuda bits other mpirun; do
        printf 'long-release-%s\n' "$tests"
    done
    for build in clang asan tsan; do
        printf "long-$build-%s\n" cuda other
        [[ $build == tsan ]] || printf 'long-%s-mpirun\n' "$build"
    done
    printf 'long-isa-%s\n' scalar avx2 avxvnni
    printf '%s\n' long-gpus long-gcc-11 long-clang-14
}

# use_part PART FORM: what the part is. In the form "default" the release leaves out tests. Sets
#   preset        of CMakePresets.json; prefers_clang: build it with clang where that is there
#   options       of cmake
#   targets       to build
#   selection     of ctest
#   share         MILLRACE_TEST_SHARE, and variables: more of the environment of the tests
#   timeout_s     of a test
use_part() {
    local only='' left_out=long gpu=ON
    preset=$1 prefers_clang='' options=() targets=(test_programs) selection=() share=12 variables=() timeout_s=600
    case $1 in
    lint) return 0 ;;
    release | mpirun)
        preset=release share=2 targets=(all bench)
        if [[ $2 == default ]]; then
            share=4 left_out='long;minutes'
        fi
        options=(-DMILLRACE_CUDA_NEWEST=ON)
        if [[ $1 == mpirun ]]; then selection=(-L '^mpirun$'); else selection=(-LE '^mpirun$'); fi
        ;;
    # clang-tidy needs the files that the rooms mr_proto and mr_page and the program make.
    clang) share=4 gpu=OFF only='kernel;golden;conformance' targets=(test_programs mr_page millrace_commit) ;;
    asan) prefers_clang=yes left_out='long;no_asan' ;;
    tsan) gpu=OFF left_out='long;no_tsan;kernel;cuda;fuzz;golden' ;;
    long-*) use_long_piece "$1" ;;
    esac
    options+=("-DMILLRACE_TEST_ONLY=$only" "-DMILLRACE_TEST_LEFT_OUT=$left_out" "-DMILLRACE_TEST_GPU=$gpu")
}

# use_long_piece PIECE: sets what use_part sets, and its left_out, only and gpu.
use_long_piece() {
    preset=${1#long-} share=4 left_out='' timeout_s=7200
    case $1 in
    long-isa-*)
        preset=release share=12 variables=(MILLRACE_SOAK_S=60 "MILLRACE_CPU_ISA=${1#long-isa-}")
        selection=(-LE 'minutes|long|mpi')
        ;;
    long-gpus) gpu=OFF selection=(-L cuda) ;;
    # The compilers of Debian that are older, or younger, than the usual one: warnings are errors.
    long-gcc-11 | long-clang-14) share=12 left_out='long;minutes;mpirun' targets=(all bench) ;;
    *)
        preset=${preset%-*}
        variables=("MILLRACE_SOAK_S=${MILLRACE_SOAK_S:-600}")
        [[ $preset != release ]] || variables+=(MILLRACE_TEST_LONG=1)
        case ${1##*-} in
        kernel) selection=(-L kernel) ;;
        cuda) selection=(-L cuda -LE '^mpirun$') ;;
        bits) selection=(-R 'same_bits' -LE 'cuda|^mpirun$') ;;
        mpirun) selection=(-L '^mpirun$') ;;
        other)
            selection=(-LE 'cuda|^mpirun$')
            [[ $preset != release ]] || selection=(-E 'same_bits' -LE 'kernel|cuda|^mpirun$')
            ;;
        esac
        ;;
    esac
}

# hash_tree: a hash of all files that git knows or may come to know, with their modes; outside git of all but build/.
hash_tree() {
    (
        cd "$ROOT" || exit
        if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
            git ls-files -co --exclude-standard -z
        else
            find . -path ./build -prune -o -type f -print0
        fi | sort -zu | while IFS= read -r -d '' file; do
            [[ ! -e $file ]] || printf '%s\0' "$file"
        done >"$SCRATCH/tree.files"
        { xargs -0 stat -c '%a' <"$SCRATCH/tree.files" && xargs -0 sha256sum <"$SCRATCH/tree.files"; } |
            sha256sum | cut -c1-40
    )
}

# draw_of TREE: which share of the cases of long lists runs: it differs from tree to tree, and is known from a stamp.
draw_of() { printf '%d' "0x${1:0:4}"; }

first_line() { "$@" 2>/dev/null | head -n 1 || true; }

# versions: of what every part depends on beside the tree.
versions() {
    printf 'compilers %s; %s\n' "$(first_line "$(find_compiler)" --version)" "$(first_line clang --version)"
    printf 'MPI %s\n' "$(first_line mpirun --version)"
    printf 'Python packages %s\n' "$("$test_python" -m pip freeze 2>/dev/null | sha256sum | cut -c1-16)"
    printf 'clients %s\n' "$(cd "$ROOT/build/clients" 2>/dev/null && echo *)"
    printf 'vectors %s\n' "$(find "$vectors/" -type f -printf '%P %s\n' 2>/dev/null | sort | sha256sum | cut -c1-16)"
}

# key_of PART: all that a pass of the part depends on, one thing a line.
key_of() {
    local preset prefers_clang options targets selection share variables timeout_s
    use_part "$1" "$form"
    printf 'tree %s\n' "$tree"
    printf 'selection %s %s share %s %s %s\n' "$preset" "${targets[*]}" "$share" "${selection[*]} ${options[*]}" \
        "${variables[*]}"
    printf '%s\n' "$versions"
}

# read_stamp PART: whether the part has passed on this tree. Sets stamped_tests to the number of its tests, and
# stamped_line to its line in the summary.
read_stamp() {
    local stamp=$CHECKS/$1.stamp
    [[ -e $stamp && $(sed '/^$/,$d' "$stamp") == "$(key_of "$1")" ]] || return 1
    {
        read -r stamped_tests
        read -r stamped_line
    } < <(sed '1,/^$/d' "$stamp")
}

# write_stamp PART N_TESTS LINE
write_stamp() {
    printf '%s\n\n%s\n%s\n' "$(key_of "$1")" "$2" "$3" >"$CHECKS/$1.stamp"
}
