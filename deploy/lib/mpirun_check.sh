# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_check.sh - checks before the start what mpirun needs of this host, where it would crash, hang, or
# fail with pages about itself; and gives it what it needs where that can be done here.
# SPDX-License-Identifier: Apache-2.0

LEAST_STACK_KIB=512 # as of millrace; mpirun 4.1 crashes with 128
LEAST_FILES=64      # mpirun 4.1 hangs with 32
LONG_NAME=50        # from here on, libraries of Open MPI 4 write past the end of a buffer, at the latest from 57 on

# A container may give a process a user that has no name. Without HOME mpirun 4.1 then crashes, and 5.0 does not even
# say its version. An empty one is enough for both, and is none for millrace.
find_home() {
    [[ ${HOME+set} ]] || getent passwd "$EUID" >/dev/null 2>&1 || export HOME=
}

# Sets mpirun_version, as 4.1.4.
check_mpirun() {
    local version line=$'(^|\n)([^\n]*(Open MPI|OpenRTE)[^\n]*)' # others say something before it
    command -v mpirun >/dev/null 2>&1 || die "there is no mpirun in PATH" \
        "Debian, Ubuntu: apt-get install openmpi-bin; elsewhere perhaps: module load mpi/openmpi-x86_64"
    find_home
    version=$(mpirun --version 2>&1) || true
    [[ $version =~ $line ]] || die "this mpirun is not Open MPI's: ${version%%$'\n'*}" \
        "its own options are needed: mpirun -n 3 $program COMMAND ..."
    mpirun_version=${BASH_REMATCH[2]#*) }
}

check_limits() {
    local limit
    limit=$(ulimit -s)
    [[ $limit == unlimited ]] || ((limit >= LEAST_STACK_KIB)) ||
        die "a stack may have $limit KiB here, and mpirun needs $LEAST_STACK_KIB" "ulimit -s 8192"
    limit=$(ulimit -n)
    [[ $limit == unlimited ]] || ((limit >= LEAST_FILES)) ||
        die "a process may open $limit files here, and mpirun needs $LEAST_FILES and more" "ulimit -n 1024"
}

# Sets why to the reason why no file can be made in a folder.
can_write() {
    local made
    if made=$(LC_ALL=C mktemp -d "$1/millrace-mpirun-XXXXXX" 2>&1); then
        rmdir "$made"
        return 0
    fi
    why=${made##*: }
    # make_folder knows what to do where there is no room.
    [[ $why == 'No space left on device' || $why == 'Disk quota exceeded' ]]
}

# mpirun keeps files in TMPDIR. Where nobody has set it and /tmp is no use, as on a read-only file system, a folder in
# memory takes its place.
check_temporary() {
    local why
    ! can_write "${TMPDIR:-/tmp}" || return 0
    [[ ! ${TMPDIR:-} ]] ||
        die "TMPDIR is '$(shown "$TMPDIR")', and mpirun can make no file there: $why" \
            "make the folder, or set TMPDIR to another one"
    ! can_write /dev/shm || ! export TMPDIR=/dev/shm || return 0
    die "mpirun can make no file in /tmp, nor in /dev/shm: $why" "set TMPDIR to a folder of yours"
}

# Open MPI 4 tells its daemons the names of hosts, without their domains, as one expression. The usual form knows no
# underscore, and its writers, one in Open MPI and one in PMIx, overrun a buffer with a long name (ompi#13358). Both
# have other forms. ssh passes no variable on to the daemons.
fit_names() {
    local name is_long=no is_odd=no
    [[ $mpirun_version == 4* ]] || return 0
    for name in "$(this_host)" "${hosts[@]}"; do
        name=${name%%.*}
        ((${#name} < LONG_NAME)) || is_long=yes is_odd=yes
        [[ $name != *_* ]] || is_odd=yes
    done
    [[ $is_odd == no ]] || export OMPI_MCA_regx=${OMPI_MCA_regx:-naive}
    [[ $is_long == yes ]] || return 0
    export PMIX_MCA_preg=${PMIX_MCA_preg:-^native}
    ((${#hosts[@]} == 0)) || [[ ${SLURM_JOB_ID:-} || " ${given[*]} " =~ [\ -]launch[-_]agent\  ]] ||
        export OMPI_MCA_orte_launch_agent=${OMPI_MCA_orte_launch_agent:-env PMIX_MCA_preg=$PMIX_MCA_preg orted}
}

# Whether the status of mpirun is a signal that has ended mpirun itself. Of a rank that a signal ended mpirun would have
# said so, and of an error of a rank the rank.
has_crashed() {
    local signal=$((mpirun_status - 128))
    ((signal > 0 && signal < 32 && ! asked_ms)) && ! has_note error && ! has_note "signal:$signal"
}

# Where no rank had started.
say_early_crash() {
    local when='before a rank has started' hint='mpirun -n 1 hostname shows whether mpirun works on this host'
    ((${#hosts[@]} == 0)) || when='and no rank is known to have started' # rank 0 may be on another host
    ((mpirun_status != 128 + 9)) || hint='if the system lacked memory, dmesg says so'
    say "error: mpirun itself was ended by signal $((mpirun_status - 128)), $(kill -l "$mpirun_status"), $when" "$hint"
}
