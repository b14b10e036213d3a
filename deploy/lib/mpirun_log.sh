# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_log.sh - what this script says, as text or, with --log-json of the command, as lines like those of
# millrace's log (engine/base/log_line.c). Lines of mpirun become such lines, too.
# SPDX-License-Identifier: Apache-2.0

log_json=no

# find_log_json ARGUMENT ...: sets log_json, from the words of the command line, of which the last one counts, and the
# variable.
find_log_json() {
    local value=${MILLRACE_LOG_JSON:-0} word
    for word in "$@"; do
        case $word in
        --log-json) value=1 ;;
        --log-json=* | MILLRACE_LOG_JSON=*) value=${word#*=} ;;
        esac
    done
    case $value in 1 | true | yes | on) log_json=yes ;; esac
}

# Sets clean to the text as a line of valid UTF-8: other bytes become '?', and control characters spaces.
clean_text() {
    local LC_ALL=C valid
    local t=$'[\x80-\xbf]'
    clean=${1//[[:cntrl:]]/ }
    [[ $clean == *[!\ -~]* ]] || return 0
    valid="^(([ -~]|"$'[\xc2-\xdf]'"$t|"$'\xe0[\xa0-\xbf]'"$t|"$'[\xe1-\xec\xee\xef]'"$t$t|"$'\xed[\x80-\x9f]'"$t|"
    valid+=$'\xf0[\x90-\xbf]'"$t$t|"$'[\xf1-\xf3]'"$t$t$t|"$'\xf4[\x80-\x8f]'"$t$t)*)(.?)"
    local rest=$clean
    clean=''
    while [[ $rest ]]; do
        [[ $rest =~ $valid ]]
        clean+=${BASH_REMATCH[1]}
        [[ ! ${BASH_REMATCH[3]} ]] || clean+='?'
        rest=${rest:${#BASH_REMATCH[0]}}
    done
    clean=${clean//$'\xc2'$t/ }
}

# print_json LEVEL COMPONENT TEXT
print_json() {
    local LC_ALL=C now_us=${EPOCHREALTIME/[.,]/} time clean
    TZ=UTC0 printf -v time '%(%Y-%m-%dT%H:%M:%S)T' "${now_us%??????}"
    clean_text "$3"
    clean=${clean//\\/\\\\}
    clean=${clean//\"/\\\"}
    printf '{"time":"%s.%sZ","level":"%s","rank":null,"component":"%s","text":"%s"}\n' "$time" "${now_us: -6:3}" "$1" \
        "$2" "$clean"
}

# print_line TEXT LEVEL: a line of millrace or mpirun, or several of a banner.
print_line() {
    local LC_ALL=C text=$1
    case $log_json,$1 in
    no,*) printf '%s\n' "$1" ;;
    yes,'{"time":'*'}') printf '%s\n' "$1" ;;
    yes,'millrace: error: '*) print_json error millrace "${1#millrace: error: }" ;;
    yes,'millrace: warning: '*) print_json warn millrace "${1#millrace: warning: }" ;;
    *)
        text=${text//$'\n'/ }
        [[ ! $text =~ ^-{60,}' '*(.*[^ ])' '+-{60,}$ ]] || text=${BASH_REMATCH[1]}
        [[ ! ${text// } ]] || print_json "$2" mpirun "$text"
        ;;
    esac
}

# Sets plain to a line of millrace's log as it is without --log-json.
find_plain() {
    local of_json='^\{"time":"[^"]*","level":"(error|warn)","rank":[^,]*,"component":"millrace","text":"(.*)"\}$'
    plain=$1
    [[ $1 =~ $of_json ]] || return 0
    plain="millrace: error: ${BASH_REMATCH[2]}"
    [[ ${BASH_REMATCH[1]} == error ]] || plain="millrace: warning: ${BASH_REMATCH[2]}"
}

# say TEXT [HINT ...]. Nothing ends where standard error cannot be written.
say() {
    local text=$1 hint level=info
    shift
    if [[ $log_json == yes ]]; then
        [[ $text != error:* ]] || level=error text=${text#error: }
        for hint in "$@"; do
            text+="; hint: $hint"
        done
        print_json "$level" millrace-mpirun "$text" >&"$spoken" || true
    else
        printf 'millrace-mpirun: %s\n' "$text" >&"$spoken" || true
        (($# == 0)) || printf 'hint: %s\n' "$@" >&"$spoken" || true
    fi
}

die() {
    say "error: $1" "${@:2}"
    exit 2
}
