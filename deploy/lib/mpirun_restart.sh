# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_restart.sh - starts a job again when rank 0 or mpirun was killed: no other rank can answer for
# rank 0, and all end by themselves. Also when rank 0 says that another rank was lost before a plan ran. Where rank 0
# has left another exit status, it has said what is wrong, and the job is over.
# SPDX-License-Identifier: Apache-2.0

RESTARTS=5         # at most so many by default ...
RESTARTS_IN_S=600  # ... in this time
LONGEST_WAIT_S=30  # the waits are 1, 2, 4 ... s
LOST_EARLY=75      # status of rank 0: a rank was lost before a plan ran

# Sets restarts, which is empty where no option has set it.
choose_restarts() {
    # A service manager starts the whole service again, by its own limits (Restart= of systemd).
    [[ $restarts || $recovery == no || ${NOTIFY_SOCKET:-} ]] || restarts=$RESTARTS
    restarts=${restarts:-0}
    case ${command[0]} in
    serve | batch) return 0 ;;
    esac
    restarts=0 # another command would begin its output anew
}

# Whether another rank was lost before a plan ran.
was_lost_early() {
    grep -qx "$LOST_EARLY" "$MILLRACE_STATUS_FILE" 2>/dev/null
}

# Whether rank 0 or mpirun was killed, or a rank was lost early, while nobody wanted the job to end. A second signal
# kills a rank 0 that is ending.
was_killed() {
    [[ $started == yes && ! $caught && $failed == no && ! -e $MILLRACE_STATUS_FILE.ending ]] &&
        { [[ ! -e $MILLRACE_STATUS_FILE ]] || was_lost_early; }
}

# Sets killed to what was killed. With recovery, mpirun returns no status of a killed rank; its own is that of a signal.
find_killed() {
    killed='rank 0 was killed'
    [[ $recovery == no ]] || ((mpirun_status <= 128 || asked_ms != 0)) || killed='mpirun was killed'
    ! was_lost_early || killed='a rank was lost before all were ready'
}

# Sets recent to the times of the restarts that still count.
forget_old_restarts() {
    local at kept=()
    for at in "${recent[@]}"; do
        ((now - at >= RESTARTS_IN_S * 1000)) || kept+=("$at")
    done
    recent=("${kept[@]}")
}

# Waits before a restart. A signal ends the wait and the job. A server ignores SIGHUP, which has nothing to renew.
wait_to_restart() {
    local wait_s=$((1 << ${#recent[@]})) end
    ((wait_s <= LONGEST_WAIT_S)) || wait_s=$LONGEST_WAIT_S
    [[ ${command[0]} != serve ]] || trap '' HUP
    say "$killed: the job starts again in $wait_s s, restart $((${#recent[@]} + 1)) of $restarts in \
$((RESTARTS_IN_S / 60)) min"
    end=$((now + wait_s * 1000))
    while take_signals && [[ ! $caught ]] && ((now < end)); do
        pause
        read_clock
    done
}

# Runs the job, again and again where rank 0 is killed, and ends this script.
run_jobs() {
    local recent=()
    prepare_job
    while true; do
        run_job
        ((status != LOST_EARLY)) || status=1
        was_killed || exit "$status"
        find_killed
        read_clock
        forget_old_restarts
        if ((${#recent[@]} >= restarts)); then
            ((restarts == 0)) ||
                say "error: $killed, and the job was started again $restarts times in the last \
$((RESTARTS_IN_S / 60)) min" "if the system lacked memory, dmesg says so"
            exit "$status"
        fi
        wait_to_restart
        [[ ! $caught ]] || exit "$caught"
        recent+=("$now")
    done
}
