# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_start.sh - says which hosts do not answer while mpirun starts a job, and gives up at a limit.
# mpirun starts a daemon on each host, and ranks once all daemons have called back. Until then it says nothing. So this
# looks at mpirun's connections: with Open MPI 4 and 5 there is one from each daemon.
# SPDX-License-Identifier: Apache-2.0

# Sets start_limit_s: millrace's own limit, which begins only when mpirun has started it.
find_start_limit() {
    local i
    start_limit_s=${MILLRACE_START_TIMEOUT:-60}
    for ((i = 1; i < ${#command[@]}; i++)); do
        case ${command[i]} in
        --start-timeout) start_limit_s=${command[i + 1]:-} ;;
        --start-timeout=*) start_limit_s=${command[i]#*=} ;;
        esac
    done
    [[ $start_limit_s =~ ^[1-9][0-9]{0,4}$ ]] || start_limit_s=60 # millrace refuses it
}

# Prints the addresses from which mpirun has connections: its daemons call it back.
peers() {
    local remote state inode sockets
    sockets=$(readlink "/proc/$mpirun/fd/"*) || true
    while read -r _ _ remote state _ _ _ _ _ inode _; do
        [[ $state == 01 && $sockets == *"[$inode]"* ]] || continue
        remote=${remote%:*}
        if ((${#remote} == 8)) || [[ $remote == 0000000000000000FFFF0000* ]]; then
            remote=${remote: -8}
            printf '%d.%d.%d.%d\n' "0x${remote:6:2}" "0x${remote:4:2}" "0x${remote:2:2}" "0x${remote:0:2}"
        else
            remote=$(sed -E 's/(..)(..)(..)(..)/\4\3\2\1/g' <<<"${remote,,}") # words of 4 bytes, little-endian
            printf '%s\n' "$remote"
        fi
    done 2>/dev/null < <(cat "/proc/$mpirun/net/tcp" "/proc/$mpirun/net/tcp6") |
        grep -v -e '^127\.' -e '^0*1$' | sort -u
}

# An IPv6 address as 32 hexadecimal digits; other words as they are.
spell_out() {
    local groups sides=() side i
    if [[ $1 != *:* ]]; then
        printf '%s' "$1"
        return 0
    fi
    for side in "${1%%::*}" "${1#*::}"; do
        IFS=: read -r -a groups <<<"${side%%%*}"
        side=''
        for i in "${groups[@]}"; do
            printf -v i '%04x' "0x0${i:-0}"
            side+=$i
        done
        sides+=("$side")
    done
    [[ $1 == *::* ]] || sides[1]=''
    printf -v side '%*s' $((32 - ${#sides[0]} - ${#sides[1]})) ''
    printf '%s' "${sides[0]}${side// /0}${sides[1]}"
}

# Small images have no program for it.
this_host() {
    hostname 2>/dev/null || printf '%s\n' "${HOSTNAME:-localhost}"
}

# Sets waiting to the hosts from which mpirun has no connection; to none where as many have come from other addresses
# than those of their names.
find_waiting() {
    local host address found_peers here n_others=0 where
    mapfile -t found_peers < <(peers)
    here=" $(this_host) $(hostname -I 2>/dev/null || true) 127.0.0.1 127.0.1.1 ::1 "
    waiting=()
    for host in "${hosts[@]}"; do
        where=other
        for address in "$host" $(getent ahosts "$host" | cut -d ' ' -f 1 | sort -u); do
            [[ $here != *" $address "* ]] || where=here
            [[ $where != other || " ${found_peers[*]} " != *" $(spell_out "$address") "* ]] || where=connected
        done
        [[ $where == here ]] || n_others=$((n_others + 1))
        [[ $where != other ]] || waiting+=("$host")
    done
    ((n_others > ${#found_peers[@]})) || waiting=()
}

# Until rank 0 runs: says once who is missing, and gives up at the limit.
watch_start() {
    ((now >= look_ms && asked_ms == 0)) || return 0
    find_waiting
    if ((${#waiting[@]} && now >= limit_ms)); then
        failed=yes
        say "error: the job has not started within $start_limit_s s: mpirun has no connection from ${waiting[*]}" \
            "is it up, can ssh reach it, and can it connect to this host? --mca oob_tcp_if_include names a network"
        ask_mpirun
    elif ((${#waiting[@]})) && [[ $said == no ]]; then
        said=yes
        say "mpirun has no connection from ${waiting[*]} yet, and waits for it"
    fi
    look_ms=$((now < limit_ms && limit_ms < now + 5000 ? limit_ms : now + 5000))
}
