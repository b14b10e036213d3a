# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_arguments.sh - takes the command line apart: the options of this script, those of mpirun with their
# values, and the command of millrace.
# SPDX-License-Identifier: Apache-2.0

# Options of mpirun, of Open MPI 4 and 5, with one value and with two. Their values are no commands.
ONE_VALUE=' c n np N npernode npersocket ppr H host add-host hostfile add-hostfile machinefile default-hostfile rf
rankfile map-by rank-by bind-to cpu-set cpu-list cpus-per-proc cpus-per-rank x wd wdir path prefix app-pmix-prefix
preload-files am tune app stdin output output-filename xml-file xterm display timeout spawn-timeout report-events
report-pid report-uri debugger cf cartofile launch-agent personality hnp ompi-server max-vm-size max-restarts
runtime-options pset set-env unset-env append-env prepend-env gpu-support forward-signals keepalive pmix-prefix
singleton tmpdir '
TWO_VALUES=' mca gmca omca gomca prtemca gprtemca pmixmca gpmixmca '
NO_VALUE=' q quiet v verbose continuous debug display-allocation display-map get-stack-traces leave-session-attached
output-proctable report-state-on-timeout tv merge-stderr-to-stdout report-child-jobs-separately tag-output
timestamp-output xml index-argv-by-rank nolocal nooversubscribe oversubscribe use-hwthread-cpus report-bindings d
debug-devel debug-daemons debug-daemons-file display-devel-allocation display-devel-map display-diffable-map
display-topo do-not-launch do-not-resolve bind-to-core bind-to-socket bycore bynode byslot pernode allow-run-as-root
enable-instant-on-support fwd-mpirun-port noprefix s preload-binary set-cwd-to-session-dir show-progress use-regexp novm
enable-recovery disable-recovery stop-on-exec stop-in-init stop-in-app no-app-prefix no-ready-msg hetero-nodes set-sid '

is_command() {
    [[ $1 =~ ^[a-z]+$ ]] || return 1
    find_program
    "$program" "$1" --help >/dev/null 2>&1
}

# A word where a command is due, and that is none. millrace knows the nearest command.
refuse_command() {
    local said hint
    find_program
    said=$("$program" "$1" --help 2>&1 </dev/null) || true
    hint=${said#*; hint: }
    if [[ -e $1 ]]; then
        hint="a command stands before the model: generate $(shown "$1")"
    elif [[ $said != *'unknown command'* && $1 =~ ^[a-z]+$ && $said ]]; then
        hint="$program says: ${said%%$'\n'*}"
    elif [[ $hint == "$said" || $hint == *$'\n'* ]]; then
        hint="millrace-mpirun --help says how"
    fi
    die "'$(shown "$1")' is no command of millrace" "$hint"
}

# check_number OPTION VALUE
check_number() {
    local form='^(0|[1-9][0-9]{0,3})$' range='from 0 to 9999'
    [[ $1 == --restarts ]] || form='^[0-9]{1,6}$' range='of ranks'
    [[ $2 =~ $form ]] || die "$1 is '$(shown "$2")', which is no number" "$1 takes a number $range"
}

# The last word was an option that needs a value.
refuse_end() {
    die "$1 has no value" "millrace-mpirun --help says how"
}

# has_values NAME LIST: whether the list names the option.
has_values() {
    [[ " ${2//$'\n'/ } " == *" $1 "* ]]
}

# note_option AT NAME [VALUE ...]: what an option of mpirun decides. AT is the place of its last value in given.
note_option() {
    local value
    case $2 in
    n | np | c) chosen_count=yes ;;
    N | npernode | pernode | npersocket | ppr) chosen_count=yes chosen_map=yes ;;
    map-by | rank-by | byslot | bynode) chosen_map=yes ;;
    rf | rankfile | cpus-per-proc | cpus-per-rank) chosen_map=yes chosen_binding=yes ;;
    bind-to* | cpu-set | cpu-list) chosen_binding=yes ;;
    oversubscribe | nooversubscribe) chosen_load=yes ;;
    esac
    case "$2 ${3:-}" in
    'rf '* | 'rankfile '*) rank_files_at+=("$1") ;;
    'hostfile '* | 'machinefile '* | 'default-hostfile '* | *'mca '*_default_hostfile) host_files_at+=("$1") ;;
    'H '* | 'host '*) host_lists_at+=("$1") ;;
    *'mca hwloc_base_binding_policy') chosen_binding=yes ;;
    esac
    # A value of --map-by may say more: ppr:2:node:pe=4:nooversubscribe.
    for value in "${@:3}"; do
        case ${value,,} in *ppr:*) chosen_count=yes ;; esac
        case ${value,,} in *:pe=*) chosen_binding=yes ;; esac
        case ${value,,} in *:*oversubscribe*) chosen_load=yes ;; esac
    done
}

# take_option WORD ...: adds the first word to given, and its values; --NAME=VALUE as two words, because Open MPI 4 does
# not know this form. Sets n_taken, and is_open: whether more values may follow, as of an option that is in no list.
take_option() {
    local name=${1#-} words=("$1") n=0
    n_taken=1
    name=${name#-}
    [[ $1 != -* ]] || is_open=no
    if [[ $1 == -*=* ]] && has_values "${name%%=*}" "$ONE_VALUE"; then
        words=("${1%%=*}" "${1#*=}")
        name=${name%%=*}
    elif [[ $1 == -* ]]; then
        ! has_values "$name" "$ONE_VALUE" || n=1
        ! has_values "$name" "$TWO_VALUES" || n=2
        ((n < $#)) || refuse_end "$1"
        words=("${@:1:n + 1}")
        n_taken=${#words[@]}
        ((n)) || has_values "${name%%=*}" "$NO_VALUE" || is_open=yes
    fi
    given+=("${words[@]}")
    [[ $1 == -* ]] || return 0
    case $name in n | np | c | N | npernode | npersocket) check_number "${words[0]}" "${words[1]}" ;; esac
    note_option $((${#given[@]} - 1)) "$name" "${words[@]:1}"
}

# The host file that a variable names is as one that an option names, so that it is checked as well.
take_variables() {
    local name at
    for at in "${host_files_at[@]}"; do
        [[ ${given[at - 1]} != *default?hostfile ]] || return 0
    done
    for name in OMPI_MCA_orte_default_hostfile PRTE_MCA_prte_default_hostfile; do
        [[ ! ${!name:-} ]] || take_option --default-hostfile "${!name}"
    done
}

say_version() {
    find_program
    check_mpirun
    "$program" --version
    printf 'mpirun: %s\n' "$mpirun_version"
}

# split ARGUMENT ...: sets given, the options of mpirun, and command, the rest; chosen_... says what the options decide,
# and ..._at where in given files and lists of hosts stand.
split() {
    local n_taken is_open=no
    given=() recovery='' restarts='' chosen_count=no chosen_map=no chosen_binding=no chosen_load=no
    rank_files_at=() host_files_at=() host_lists_at=()
    while (($#)); do
        case $1 in
        --) shift && break ;;
        -h | --help) usage && exit 0 ;;
        -V | --version) say_version && exit 0 ;;
        --recovery) recovery=yes && shift && continue ;;
        --no-recovery) recovery=no && shift && continue ;;
        --restarts)
            (($# > 1)) || refuse_end "$1"
            restarts=$2 && check_number --restarts "$restarts" && shift 2 && continue
            ;;
        --restarts=*) restarts=${1#*=} && check_number --restarts "$restarts" && shift && continue ;;
        --recovery=* | --no-recovery=*) die "${1%%=*} takes no value: '$(shown "${1#*=}")'" "write ${1%%=*}" ;;
        --log-json | --log-json=*) die "$1 is an option of the command" "write it behind the command" ;;
        -*) ;;
        millrace) shift && break ;;
        */millrace) program=$1 && shift && break ;;
        *)
            if is_command "$1"; then break; fi
            [[ $is_open == yes ]] || refuse_command "$1"
            ;;
        esac
        take_option "$@"
        shift "$n_taken"
    done
    take_variables
    command=("$@")
    ((${#command[@]})) || die "no command of millrace is given" "millrace-mpirun --help says how"
    case ${command[0]} in
    serve | batch) recovery=${recovery:-yes} ;;
    esac
    recovery=${recovery:-no}
    choose_restarts
}
