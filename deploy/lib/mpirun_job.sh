# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_job.sh - runs mpirun as a child: passes signals on to rank 0, and sees to it that the job ends.
# rank 0 writes its process id to $MILLRACE_STATUS_FILE.pid at its start, and its exit status to $MILLRACE_STATUS_FILE.
# After a signal it makes $MILLRACE_STATUS_FILE.ending.
# SPDX-License-Identifier: Apache-2.0

# For how long mpirun may go on: after an error, where it does not end the job itself and where it does; after rank 0
# ended in order; after it was asked to end the job.
RECOVERY_PATIENCE_MS=3000
ERROR_PATIENCE_MS=5000
END_PATIENCE_MS=10000
KILL_AFTER_MS=5000
DEATH_PATIENCE_MS=1000 # after rank 0 was killed: ranks that know end in 0.4 s, but one that only starts does not know
HANG_MS=2000 # where no rank lives any more, on one host

# Waits a moment, without a process for it, or until a note of the filter comes. A signal in the meantime takes the time
# limit away (bash 5.2), so traps write an empty line here. On a busy machine the time may be over in the middle of a
# line; the rest comes by the next call.
pause() {
    local words=''
    if IFS= read -r -t 0.1 -u "$wake" words; then
        words=$half_note$words half_note=''
        [[ ! $words ]] || noted+="$words|"
    else
        half_note+=$words
    fi
}

# Sets now, in ms.
read_clock() {
    now=${EPOCHREALTIME/[.,]/}
    now=$((now / 1000))
}

# Starts mpirun as a child, which gets SIGHUP should this script die. SIGINT and SIGTERM are blocked in mpirun, which
# would kill the ranks two seconds later; they are for rank 0, and this script passes them on.
start_job() {
    start_filter
    start_output
    note_signals INT TERM HUP
    setpriv --pdeathsig HUP env --default-signal=INT,QUIT,PIPE --block-signal=INT,TERM \
        mpirun "${options[@]}" "$program" "${command[@]}" <&0 >&"$output" 2>&"$errors" {output}>&- {output_end}<&- \
        {errors}>&- {wake}>&- {spoken}>&- &
    mpirun=$!
    exec {output}>&-
}

# Whether a process belongs to this job.
is_ours() {
    grep -qzxF "MILLRACE_STATUS_FILE=$MILLRACE_STATUS_FILE" "/proc/$1/environ" 2>/dev/null
}

# Sets started once rank 0 runs, and rank_0 to its process where that is on this host.
find_rank_0() {
    local pid
    [[ $started == no && -e $MILLRACE_STATUS_FILE.pid ]] || return 0
    started=yes
    read -r pid _ <"$MILLRACE_STATUS_FILE.pid" || return 0
    is_ours "$pid" || return 0
    rank_0=$pid
    job_id=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | sed -n -E 's/^PMIX_NAMESPACE=([0-9]+)$/\1/p') || true
    [[ ${command[0]} != serve ]] ||
        say "rank 0 is process $pid: SIGTERM to it or to this script ends the server in order"
}

# What traps do: a trap runs between any two commands, also while rank 0 is looked for. take_signals does the rest.
note_signal() {
    signals+=("$1")
    echo >&"$wake"
}

# note_signals NAME ...: from now on these signals are noted.
note_signals() {
    local name
    for name in "$@"; do
        # shellcheck disable=SC2064 # the name is that of now
        trap "note_signal $name" "$name"
    done
}

# Handles the signals that were noted.
take_signals() {
    while ((n_taken < ${#signals[@]})); do
        n_taken=$((n_taken + 1))
        case ${signals[n_taken - 1]} in
        INT) on_signal INT 130 ;;
        TERM) on_signal TERM 143 ;;
        HUP) on_hangup ;;
        esac
    done
}

# on_signal NAME STATUS: the first signal is for rank 0, which ends the job in order; a second one ends mpirun.
on_signal() {
    caught=$2
    n_signals=$((n_signals + 1))
    if ((n_signals == 1)) && [[ $rank_0 ]] && is_ours "$rank_0"; then
        kill "-$1" "$rank_0" 2>/dev/null || true
    else
        ask_mpirun
    fi
}

# A server reads its keys anew. One that does not catch the signal yet will read them, and has nothing to renew.
on_hangup() {
    if [[ ${command[0]} != serve || ($started == yes && ! $rank_0) ]]; then
        on_signal TERM 143
    elif [[ $rank_0 ]] && is_ours "$rank_0" && has_signal "$rank_0" SigCgt 1; then
        kill -HUP "$rank_0" 2>/dev/null || true
    fi
}

# has_signal PID SET NUMBER: whether a signal is in a set of /proc/PID/status. The file is read to its end in one go:
# where the process ends meanwhile, bash keeps what it has not used, and gives it to the next command that reads a file.
has_signal() {
    local text=''
    IFS= read -r -d '' text 2>/dev/null <"/proc/$1/status" || true
    [[ $text =~ $'\n'"$2:"[[:space:]]*([0-9a-f]+) ]] && ((0x${BASH_REMATCH[1]} & 1 << ($3 - 1)))
}

# A signal that somebody sent to mpirun waits there, blocked: it is passed on as if this script had got it. One for the
# whole process group may have come to both in this moment, and counts once.
relay_signals() {
    local waits=''
    ((n_signals == 0)) || return 0
    if has_signal "$mpirun" ShdPnd 15; then
        waits='TERM 143'
    elif has_signal "$mpirun" ShdPnd 2; then
        waits='INT 130'
    fi
    take_signals
    [[ ! $waits || $n_signals != 0 ]] || on_signal "${waits% *}" "${waits#* }"
}

# The job ends in order, and has failed.
watch_output() {
    if [[ $output_error ]] || ! find_output_error; then
        return 0
    fi
    failed=yes
    say_output_error
    if [[ $rank_0 ]] && is_ours "$rank_0"; then
        kill -TERM "$rank_0" 2>/dev/null || true
    else
        ask_mpirun
    fi
}

# Lets mpirun end all ranks on all hosts. Once: after a second signal it would leave them alone.
ask_mpirun() {
    [[ $mpirun && $asked_ms == 0 ]] || return 0
    read_clock
    asked_ms=$now
    kill -HUP "$mpirun" 2>/dev/null || true
}

# Sets children to the processes that mpirun has started on this host: ranks, and ssh. Each leads a process group.
find_children() {
    read -r -d '' -a children < <(cat "/proc/$mpirun/task/"*/children 2>/dev/null) || true
}

# Whether rank 0 was killed before this script knew its process: other ranks run here, and they know of no rank on
# another host. mpirun starts rank 0 first. Without recovery, mpirun ends the other ranks itself.
is_rank_0_missing() {
    local pid files=() known all here
    [[ ! $rank_0 && ! -e $MILLRACE_STATUS_FILE && $recovery == yes ]] || return 1
    find_children
    for pid in "${children[@]}"; do
        files+=("/proc/$pid/environ")
    done
    known=" $(grep -hzxE 'OMPI_COMM_WORLD_(RANK|SIZE|LOCAL_SIZE)=[0-9]+' "${files[@]:-/dev/null}" 2>/dev/null |
        tr '\0' ' ')" || true
    all=${known#* OMPI_COMM_WORLD_SIZE=}
    here=${known#* OMPI_COMM_WORLD_LOCAL_SIZE=}
    [[ $all != "$known" && ${all%% *} == "${here%% *}" && $known != *' OMPI_COMM_WORLD_RANK=0 '* ]]
}

# Whether rank 0 was killed.
has_rank_0_died() {
    is_rank_0_missing || { [[ $rank_0 && ! -e $MILLRACE_STATUS_FILE ]] && ! kill -0 "$rank_0" 2>/dev/null; }
}

# Whether the others have left rank 0 because it is stopped. On another host, where that cannot be seen, it may also be
# that they were cut off.
is_rank_0_left() {
    has_note leaves && { [[ ! $rank_0 ]] || grep -q '^State:[[:space:]]*T' "/proc/$rank_0/status"; } 2>/dev/null
}

# Whether rank 0 has ended or was left, or a rank or mpirun has said why the job ends.
is_ending() {
    [[ -e $MILLRACE_STATUS_FILE ]] || has_note ends || is_rank_0_left || is_rank_0_missing ||
        { [[ $rank_0 ]] && ! kill -0 "$rank_0" 2>/dev/null; }
}

# mpirun waits for ever for a rank that is stopped, as by SIGSTOP, and 4.1 at times when a rank dies while MPI starts. A
# stopped rank is killed, so that it does not wake up to tell of losses of its own; where that is not enough, mpirun has
# to end all ranks.
end_job() {
    local pid state alive=no patience_ms=$ERROR_PATIENCE_MS
    [[ $recovery == no ]] || patience_ms=$RECOVERY_PATIENCE_MS
    ! grep -qx 0 "$MILLRACE_STATUS_FILE" 2>/dev/null || patience_ms=$END_PATIENCE_MS
    ! has_rank_0_died || patience_ms=$DEATH_PATIENCE_MS
    ((end_ms)) || end_ms=$now
    find_children
    ((patience_ms != DEATH_PATIENCE_MS || now - end_ms < patience_ms)) || kill_ranks
    for pid in "${children[@]}"; do
        state=$(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) || true
        [[ $state != T* ]] || kill -KILL "$pid" 2>/dev/null || true
        [[ ! $state || $state == Z* ]] || alive=yes
    done
    if ((asked_ms == 0 && ${#hosts[@]} <= 1 && now - end_ms >= HANG_MS)) && [[ $alive == no ]]; then
        asked_ms=$now # it would not listen
        kill_job
        return 0
    fi
    ((asked_ms == 0 && now - end_ms >= patience_ms)) || return 0
    [[ $patience_ms != "$END_PATIENCE_MS" ]] || say "rank 0 has ended, and other ranks have not: mpirun ends them"
    ask_mpirun
}

# Kills the ranks on this host.
kill_ranks() {
    local pid
    for pid in "${children[@]}"; do
        ! grep -qzE '^(OMPI_COMM_WORLD|PMIX)_RANK=' "/proc/$pid/environ" || kill -KILL "$pid" || true
    done
} 2>/dev/null

# Where mpirun itself does not end. Its daemons on other hosts end with their ranks when they lose it. It is waited for
# here, where bash cannot tell the user that it was killed.
kill_job() {
    find_children
    kill -KILL "$mpirun" || true
    wait "$mpirun" || status=$?
} 2>/dev/null

# What mpirun leaves where a signal has ended it, as when 4.1 crashes at its end. Its folder has one name with Open MPI
# 4 and another with 5; the shared memory of 5 stays, because its name is not known here.
remove_files() {
    local temporary=${TMPDIR:-/tmp} memory=${OMPI_MCA_btl_vader_backing_directory:-/dev/shm} host
    host=$(this_host)
    host=${host%%.*}.$EUID
    rm -rf "$temporary/ompi.$host/pid.$mpirun" "$temporary/ompi.$mpirun"
    rmdir "$temporary/ompi.$host" || true
    [[ ! $job_id ]] || rm -f "$memory/vader_segment.$host.$(printf %x "$job_id")."*
} 2>/dev/null

# An ssh to a lost host outlives mpirun, and keeps its standard output open.
kill_children() {
    local pid
    for pid in "${children[@]}"; do
        kill -KILL -- "-$pid" 2>/dev/null || true
    done
}

watch_job() {
    while kill -0 "$mpirun" 2>/dev/null; do
        pause
        read_clock
        find_rank_0
        take_signals
        relay_signals
        [[ $started == yes ]] || watch_start
        watch_output
        if is_ending; then end_job; else end_ms=0; fi
        ((asked_ms == 0 || now - asked_ms < KILL_AFTER_MS)) || kill_job
    done
}

# Whether millrace or mpirun has said why the job ended. With recovery, once rank 0 has started, the reason need not be
# what mpirun says.
is_error_known() {
    has_note error || { has_note banner && [[ $recovery == no || ! -e $MILLRACE_STATUS_FILE.pid ]]; }
}

# Sets status. That of mpirun, which is that of the first rank that failed, does not count after a signal, where mpirun
# was told to overlook failures or to end the job, nor where it is 0 but rank 0 did not say so: Open MPI 5 does that for
# a lost host. Then the status of rank 0 counts. But where mpirun has said that a signal ended a rank, and was ended
# because it hung afterwards, the status is that of this rank.
find_status() {
    local answer=''
    mpirun_status=$status
    [[ ! -f $MILLRACE_STATUS_FILE ]] || read -r answer <"$MILLRACE_STATUS_FILE" || true
    [[ $answer =~ ^[0-9]{1,3}$ ]] || answer=$caught
    if [[ $output_error ]]; then
        :
    elif [[ $started == no && ! $caught ]] && has_crashed; then
        say_early_crash
    elif ((mpirun_status == 128 + 11)) && has_crashed; then
        say "error: mpirun itself has crashed while it ended the job" "a rank was killed, or a host was lost"
    elif [[ $failed == yes || ($recovery == no && $started == no) ]] || is_error_known; then
        :
    elif ((asked_ms && ${answer:-0})) && [[ ! $caught ]]; then
        say "error: rank 0 has failed with status $answer, and mpirun did not pass on why"
    elif [[ ! $answer ]]; then
        say "error: rank 0 left no exit status; that of mpirun is $status" "a rank was killed, or a host was lost"
    fi
    if [[ $recovery == yes || $caught || $asked_ms != 0 || ($status == 0 && $started == yes) ]]; then
        [[ $recovery == no ]] || status=1
        status=${answer:-$((status ? status : 1))}
    fi
    # Of a job that it was slow to end, mpirun has returned no status.
    [[ $recovery == yes || $caught || ! $noted =~ '|signal:'([0-9]+) ]] || status=$((128 + BASH_REMATCH[1]))
    [[ ! $output_error || $caught ]] || status=1
}

# Reserves room for the two files of rank 0, so that it can write them when the file system has become full. Those of
# an earlier job are the room for the next one.
reserve_files() {
    local file
    for file in "$folder"/status{.pid,}; do
        [[ ! -e $file ]] || mv -f "$file" "$file.part" || return 1
        [[ -s $file.part ]] || printf '%512s' '' >"$file.part" || return 1
    done
    rm -f "$folder/status.ending"
} 2>/dev/null

# Sets folder. Where TMPDIR has no room for a file, it is in memory: rank 0 finds it there if it runs on this host.
make_folder() {
    local parent
    for parent in "${TMPDIR:-/tmp}" /dev/shm; do
        folder=$(mktemp -d "$parent/millrace-mpirun-XXXXXX" 2>/dev/null) || continue
        trap 'rm -rf "$folder"' EXIT
        ! reserve_files || return 0
        rm -rf "$folder"
    done
    die "no file can be written in ${TMPDIR:-/tmp}, nor in /dev/shm" "is there room? TMPDIR names another folder"
}

# Once, before the first job. A signal that comes between two jobs counts for the second one.
prepare_job() {
    make_folder
    export MILLRACE_STATUS_FILE=$folder/status
    caught='' mpirun='' signals=() n_taken=0 half_note=''
    options=(-x MILLRACE_STATUS_FILE "${options[@]}")
    [[ $recovery == no ]] || options=(--enable-recovery "${options[@]}")
    exec {wake}<> <(:)
    looks_up=yes
}

# Sets status.
run_job() {
    status=0
    reserve_files || true # rank 0 warns where it cannot write
    read_hosts
    fit_names
    rank_0='' job_id='' output_error='' started=no n_signals=0 asked_ms=0 end_ms=0 said=no failed=no children=()
    read_clock
    limit_ms=$((now + start_limit_s * 1000))
    look_ms=$((now + (start_limit_s < 10 ? start_limit_s : 10) * 1000))
    start_job
    { # where bash itself would tell of a signal that has ended mpirun
        watch_job
        ((status)) || wait "$mpirun" || status=$?
    } 2>/dev/null
    kill_children
    ((status <= 128)) || remove_files
    mpirun='' # another process may have its number now
    end_output
    take_signals
    ! find_output_error || [[ $failed == yes ]] || say_output_error
    end_filter
    find_status
}
