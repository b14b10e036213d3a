# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_output.sh - what the job writes to standard error passes through a filter, which tells this script
# what it has seen: notes are lines in the pipe from which pause reads. No file is needed. A reader of standard error
# that goes away, or a full disk, changes nothing: the filter reads on, and lines that cannot be written are lost.
# Standard output is copied, because mpirun says nothing of writes that fail. Then the job has failed; a server goes on.
# SPDX-License-Identifier: Apache-2.0

LONGEST_BANNER=60 # lines: what is longer is no banner of mpirun

# The next file that is opened would take the place of a standard stream that is closed. Standard output stays one that
# cannot be written.
open_streams() {
    [[ -e /dev/fd/0 ]] || exec 0</dev/null
    [[ -e /dev/fd/1 ]] || exec 1</dev/null
    [[ -e /dev/fd/2 ]] || exec 2>/dev/null
}

# Whether the filter has seen, in this job:
#   ends    millrace or mpirun has said why the job ends
#   leaves  a rank has left rank 0
#   error   an error of millrace has passed
#   banner  a banner of mpirun has passed
#   signal:N  mpirun has said that signal N has ended the first rank that failed
#   output:WHY  standard output cannot be written
has_note() {
    [[ $noted == *"|$1|"* ]]
}

# In the filter, whose standard output is the script's standard error. Each note is written once for a job: the pipe
# takes them all, even if nobody reads.
note() {
    ! has_note "$1" || return 0
    noted+="$1|"
    echo "$1" >&"$wake" || true
}

# pass TEXT LEVEL
pass() {
    [[ $is_quiet == yes ]] || print_line "$1" "$2" || true
}

# Handles the lines of a banner.
filter_banner() {
    local of_mpirun='exited on signal|has been aborted|to be terminated' of_status='non-zero (exit code|status)'
    local of_signal=' exited on signal ([0-9]+)'
    [[ $recovery == yes || ! $1 =~ $of_mpirun ]] || note ends # with recovery, a lost rank need not be the end
    [[ ! $1 =~ $of_signal ]] || note "signal:${BASH_REMATCH[1]}"
    [[ ! $1 =~ $of_status || $last != millrace* ]] || return 0
    note banner
    pass "$1" error
}

# filter_line PLAIN LINE: handles a line that stands in no banner. PLAIN is the line as it is without --log-json.
filter_line() {
    local of_rank='^millrace: error: rank [0-9]+ on ' of_rank_0='rank 0 on ' rank='millrace: error: rank [0-9]+ on .*: '
    case $1 in
    *'PMIX ERROR: '* | *'plm:rsh: Warning: setpgid'* | *'plm:ssh: Warning: setpgid'*) return 0 ;;
    'mpirun: abort is already in progress'* | '[warn] Epoll '*) return 0 ;;
    millrace:*) ;;
    *) pass "$2" warn && return 0 ;;
    esac
    if [[ $recovery == no && $1 =~ $of_rank ]]; then
        [[ ! $last =~ $of_rank ]] || return 0
        note ends
    fi
    [[ ! $1 =~ ^"millrace: warning: $of_rank_0".*' was interrupted' ]] || last=$1
    if [[ $1 =~ ^'millrace: warning: rank '[0-9]+" ends: $of_rank_0" || $1 =~ ^$rank"$of_rank_0".*' has not called ' ||
        $1 =~ ^$rank'no lifeline to rank 0 at ' ]]; then
        note leaves
    fi
    if [[ $1 == 'millrace: error: '* ]]; then
        last=$1
        note error
    fi
    pass "$2" info
}

# Passes standard error on without mpirun's banners about exit statuses, where millrace has said what is wrong, and
# without what mpirun says to itself: of lost peers, with recovery, and of a race when it starts ssh. Only the first
# error that names a rank passes: the others are its consequences. With recovery all pass, and none ends the job: a
# rank that was cut off tells when it is back that rank 0 is gone, and rank 0 goes on. The signals that end a job are
# not for this: it goes on until end_filter.
filter() {
    local line plain banner='' n_lines=0
    local last='' is_rule='^-{60,}$' is_over=no is_quiet=no # last: the last error of millrace
    local LC_ALL=C # any bytes may come
    trap '' INT TERM HUP PIPE
    while [[ $is_over == no ]]; do
        IFS= read -r line || is_over=yes
        [[ $line != *$'\4' ]] || is_over=yes line=${line%$'\4'}
        if [[ $is_over == yes && ! $line ]]; then
            break
        elif [[ $line == *$'\5' ]]; then
            is_quiet=yes
        elif [[ $banner ]]; then
            banner+=$'\n'$line n_lines=$((n_lines + 1))
            if [[ $line =~ $is_rule ]]; then
                filter_banner "$banner"
                banner=''
            elif ((n_lines >= LONGEST_BANNER)); then
                pass "$banner" warn
                banner=''
            fi
        elif [[ $line =~ $is_rule ]]; then
            banner=$line n_lines=1
        else
            find_plain "$line"
            filter_line "$plain" "$line"
        fi
    done
    [[ ! $banner ]] || pass "$banner" warn
}

# Nothing more passes: what comes has its cause in what is known.
quiet_filter() {
    printf '\5\n' >&"$errors" || true
}

start_filter() {
    noted='|'
    exec {errors}> >(filter >&2 2>/dev/null)
    filter_pid=$!
}

# Lets the filter end when all that mpirun wrote has passed, even if programs that mpirun started keep its input open,
# and takes its last notes.
end_filter() {
    local n_signals_before=${#signals[@]} # a signal ends this: nobody may read what the filter writes
    printf '\4\n' >&"$errors" || true
    exec {errors}>&-
    while kill -0 "$filter_pid" 2>/dev/null && ((${#signals[@]} == n_signals_before)); do
        wait "$filter_pid" || true
    done
    while read -r -t 0 -u "$wake"; do
        pause
    done
}

# Copies standard output, and reads on where it cannot be written.
copy_output() {
    local why to
    trap '' INT TERM HUP PIPE
    exec {to}>&1 {errors}>&- {spoken}>&-
    why=$(LC_ALL=C cat 2>&1 >&"$to") || true
    [[ ! $why || ${command[0]} == serve ]] || note "output:${why##*: }"
    exec cat >/dev/null {to}>&-
}

# Sets output, which mpirun writes, and output_end, its other end.
start_output() {
    exec {output}> >(copy_output 2>/dev/null)
    output_pid=$!
    exec {output_end}</dev/fd/"$output"
}

# Waits until all that mpirun wrote is copied, however long its reader takes. A program that has outlived mpirun may
# keep the pipe open: nothing is waited for once the pipe is empty for some seconds, or after a signal.
end_output() {
    local n_empty=0
    while kill -0 "$output_pid" 2>/dev/null && ((n_empty < 30 && n_taken == ${#signals[@]})); do
        n_empty=$((n_empty + 1))
        ! read -r -t 0 -u "$output_end" || n_empty=0
        pause
    done
    exec {output_end}<&-
}

# Whether standard output could not be written. Sets output_error.
find_output_error() {
    [[ $noted =~ '|output:'([^|]*) ]] || return 1
    output_error=${BASH_REMATCH[1]}
}

# Says so, but of a reader that is gone: the program of one process ends without a word then, too.
say_output_error() {
    quiet_filter
    [[ $output_error == 'Broken pipe' ]] || say "error: standard output cannot be written: $output_error"
}
