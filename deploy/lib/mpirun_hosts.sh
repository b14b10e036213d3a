# shellcheck shell=bash disable=SC2034,SC2154 # variables of deploy/millrace-mpirun
# deploy/lib/mpirun_hosts.sh - reads host files and lists of hosts before mpirun does: a word that mpirun would not take
# is refused by file, line, word and remedy. What editors leave in a file (CRLF, a BOM, no end of the last line) is
# taken: mpirun gets a clean copy.
# SPDX-License-Identifier: Apache-2.0

HOST_FILE_BYTES=1048576 # at most: more is another file
LOOK_UP_S=10            # for one name: where the name service does not answer, mpirun may try
LOOK_UP_ALL_S=30        # for all names
RELATIVE_HOST='^\+(n[0-9]+|[eE](:[0-9]+)?)$' # the n-th host of those that a batch system gave, or an empty one
declare -A known_hosts=() # names that were looked up and found

# Words of options and files as messages show them.
shown() {
    local LC_ALL=C
    printf '%s' "${1//[[:cntrl:]]/?}"
}

# refuse_word WHERE WORD WHAT HINT
refuse_word() {
    die "$1: '$(shown "$2")' $3" "$4"
}

# Whether other programs than ssh reach the hosts, so that the names of hosts need not be known here.
are_names_of_others() {
    local name words=" ${given[*]} " of_ssh='(plm|(plm|orte)_(rsh|ssh)_(agent|args))' here=${HOME:-/}
    [[ ! ${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-} ]] || return 0
    for name in "${!OMPI_MCA_@}" "${!PRTE_MCA_@}"; do
        [[ ! ${!name} || ! $name =~ _MCA_$of_ssh$ ]] || return 0
    done
    # The files of settings may say so, too.
    [[ ! $words =~ \ $of_ssh\  && ! $words =~ \ --?(am|tune)\  ]] || return 0
    grep -qsE "^ *$of_ssh *=" "$here"/.{openmpi,prte}/mca-params.conf \
        /etc/openmpi/openmpi-mca-params.conf "$(dirname "$(command -v mpirun)")"/../etc/{openmpi,prte}-mca-params.conf
}

# Whether an answer was that there is no such name. No answer is another matter.
is_unknown_here() {
    local status=0
    command -v getent >/dev/null && ((SECONDS <= look_up_end)) || return 1
    timeout --foreground "$LOOK_UP_S" getent ahosts "$1" >/dev/null 2>&1 || status=$?
    ((status == 2)) || return 1
    status=0
    timeout --foreground "$LOOK_UP_S" getent hosts "$1" >/dev/null 2>&1 || status=$?
    ((status == 2))
}

# Whether nobody on this host knows this name: not the name service, and not the configuration of ssh, which may have
# another name or a way for it. mpirun knows this host by its name without a domain.
is_unknown() {
    local name=${1#*@} of_ssh here
    here=$(this_host)
    [[ $name != localhost && ${name%%.*} != "${here%%.*}" ]] || return 1
    is_unknown_here "$name" || return 1
    of_ssh=$(ssh -G "$1" 2>/dev/null </dev/null) || return 0
    ! grep -qiE '^proxy(jump|command) ' <<<"$of_ssh" || return 1
    of_ssh=$(sed -n 's/^hostname //p' <<<"$of_ssh")
    [[ ! $of_ssh || ${of_ssh,,} == "${name,,}" ]] || is_unknown_here "$of_ssh"
}

# check_form WHERE WORD: whether mpirun takes the word as the name of a host.
check_form() {
    local LC_ALL=C name=${2#*@} slots=${2#*:} named='name it in /etc/hosts or ~/.ssh/config, and write that name'
    local list="write the names of the hosts, one a line"
    [[ $1 != -* ]] || list="write the names of the hosts, with commas between them"
    if [[ $name =~ ^\[?[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9]+)?\]?$ ]]; then
        [[ $1 != -* && $name != *[][%]* && $mpirun_version != 4* ]] || # Open MPI 5 takes it in a host file
            refuse_word "$1" "$2" "is an IPv6 address, which mpirun does not take here" "$named"
        return 0
    fi
    case $2 in
    *[][]*) refuse_word "$1" "$2" "is a range of hosts, which mpirun does not know" \
        "$list: scontrol show hostnames '$(shown "$2")' prints them" ;;
    *,*) refuse_word "$1" "$2" "has a comma" "$list: node1 slots=4" ;;
    *:*)
        [[ $slots =~ ^[0-9]+$ ]] || slots=4
        refuse_word "$1" "$2" "has a colon, which Open MPI does not read in a host file" \
            "write $(shown "${2%%:*}") slots=$slots"
        ;;
    *[\"\']*) refuse_word "$1" "$2" "has quotes" "write the name alone" ;;
    @* | *@ | *@*@*) refuse_word "$1" "$2" "is no USER@HOST" "$list" ;;
    esac
    case $name in
    *[!A-Za-z0-9._-]*) refuse_word "$1" "$2" "has characters that no name of a host has" "$list" ;;
    -*) refuse_word "$1" "$2" "begins with a hyphen, as no name of a host does" "$list" ;;
    *[!0-9]*) ;;
    *)
        refuse_word "$1" "$2" "is a number, and no name of a host" \
            "$list; the number of ranks stands behind the name: node1 slots=4"
        ;;
    esac
    if [[ $name =~ ^[0-9.]+$ && ! $name =~ ^[0-9]{1,3}(\.[0-9]{1,3}){3}$ ]]; then
        refuse_word "$1" "$2" "is no whole IPv4 address" "it has four numbers, as 10.0.0.1"
    fi
}

# add_host WHERE WORD: checks a host, and adds it to hosts.
add_host() {
    check_form "$1" "$2"
    if [[ ! ${known_hosts[$2]:-} && $looks_up == yes ]]; then
        ! is_unknown "$2" || refuse_word "$1" "$2" "is no host that is known here" \
            "is it spelled right, and does DNS answer? getent hosts $(shown "${2#*@}") asks for it; a name stands in \
DNS, /etc/hosts or ~/.ssh/config"
    fi
    [[ ${listed[$2]:-} ]] || hosts+=("${2#*@}")
    known_hosts[$2]=yes listed[$2]=yes
}

# check_setting WHERE KEY VALUE: what stands behind the name of a host. Sets slots or most, of this line.
check_setting() {
    local remedy='a line is: node1 slots=4' small=${2,,}
    case $2 in
    username | user-name | user_name | cpu-set | cpu_set)
        [[ $3 && $3 != '=' ]] || refuse_word "$1" "$2=" "has no value" "$remedy"
        return 0
        ;;
    cpu | count | slots | port | *[_-]max | max[_-]* | boards | sockets* | cores*) ;;
    *)
        case $small in
        slots) remedy="write it in small letters: slots=${3:-4}" ;;
        user) remedy="write username=${3:-NAME}" ;;
        *cpus* | n | np | ppn | procs | cpu | slot) remedy="write slots=${3:-4}" ;;
        esac
        refuse_word "$1" "$2" "is nothing that mpirun knows of a host" "$remedy"
        ;;
    esac
    [[ $3 =~ ^[0-9]{1,6}$ ]] || refuse_word "$1" "$2=$3" "is no whole number from 0 to 999999" "$remedy"
    case $2 in
    cpu | count | slots) slots=$((10#$3)) most='' ;; # in this order mpirun raises the most
    *[_-]max | max[_-]*) most=$((10#$3)) ;;
    esac
}

# check_line WHERE WORD ...: a line without its comment, with '=' as a word of its own.
check_line() {
    local where=$1 slots=0 most=
    shift
    [[ $1 != rank || ! ${2:-} =~ ^[0-9]+$ ]] || return 0 # of a rank file that is the host file, too
    # As in /etc/hosts: mpirun takes the address, and passes over the names.
    [[ $# == 1 || ! $1 =~ ^[0-9]+(\.[0-9]+){3}$ || $* == *=* ]] || set -- "$1"
    case $1 in
    ^*@*) check_form "$where" "${1#^}" ;; # is left out
    *) [[ $1 =~ $RELATIVE_HOST ]] || add_host "$where" "$1" ;;
    esac
    shift
    while (($#)); do
        if [[ $1 =~ ^[0-9]+$ ]]; then
            refuse_word "$where" "$1" "stands alone behind a host" "write slots=$1"
        elif [[ ${2:-} != = ]]; then
            case $1 in
            slots | max_slots | max-slots | cpu | count)
                refuse_word "$where" "$1" "has no '=' behind it" "write $1=$(shown "${2:-4}")"
                ;;
            esac
            refuse_word "$where" "$1" "stands behind a host" "write one host a line, as: node1 slots=4"
        fi
        check_setting "$where" "$1" "${3:-}"
        shift "$(($# > 2 ? 3 : 2))"
    done
    [[ ! $most ]] || ((most >= slots)) ||
        refuse_word "$where" "$most" "is the most slots of a host that has $slots" "write the larger number as the most"
}

# Sets text to that of a line outside of comments. is_comment says whether a comment goes on from line to line.
strip_comments() {
    local rest=$1
    text=''
    if [[ $is_comment == yes ]]; then
        [[ $rest == *'*/'* ]] || return 0
        rest=${rest#*'*/'} is_comment=no
    fi
    while [[ $rest =~ ^([^#/]|/[^*/])*/\* ]]; do
        text+="${rest%%'/*'*} " rest=${rest#*'/*'}
        if [[ $rest != *'*/'* ]]; then
            is_comment=yes
            return 0
        fi
        rest=${rest#*'*/'}
    done
    rest=${rest%%#*}
    text+=${rest%%//*}
}

# check_lines NAME TEXT CHECK: checks the text of a host file, and adds its hosts. CHECK is "maybe" where it may have
# none.
check_lines() {
    local line text words number=0 n_before=$n_named is_comment=no
    while IFS= read -r line; do
        number=$((number + 1))
        strip_comments "$line"
        IFS=$' \t\f\v' read -r -a words <<<"${text//=/ = }"
        ((${#words[@]})) || continue
        n_named=$((n_named + 1))
        check_line "$1:$number" "${words[@]}"
    done < <(printf '%s' "$2") # a long here-document would need room in TMPDIR
    [[ $3 == maybe ]] || ((n_named > n_before)) ||
        die "$(shown "$1"): this host file names no host" "write one host a line, as: node1 slots=4"
}

# Sets original and clean to the text of a host file, which is $2 in messages.
read_text() {
    local LC_ALL=C head why
    [[ ! -d $1 ]] || die "$(shown "$2"): this host file is a folder" "name the file"
    why=$({ : <"$1"; } 2>&1) || die "$(shown "$2"): this host file cannot be read: ${why##*: }" "is the name right?"
    (($(head -c $((HOST_FILE_BYTES + 1)) -- "$1" | wc -c) <= HOST_FILE_BYTES)) ||
        die "$(shown "$2"): this is no host file: it has more than $HOST_FILE_BYTES bytes" "name the host file"
    head=$(od -An -v -N2 -tx1 -- "$1")
    case $head in
    ' ff fe' | ' fe ff') die "$(shown "$2"): this host file is UTF-16" \
        "iconv -f UTF-16 -t UTF-8 $(shown "$2") >hosts.txt makes the right one" ;;
    esac
    tr -dc '\0' <"$1" | cmp -s - /dev/null || die "$(shown "$2"): this is no host file: it has zero bytes" \
        "is it text? iconv makes UTF-8 of UTF-16 and UTF-32"
    original=$(cat -- "$1" && printf x)
    original=${original%x}
    clean=${original//$'\xef\xbb\xbf'/}  # BOM
    clean=${clean//$'\xc2\xa0'/ }        # no-break spaces, of web pages
    clean=${clean//$'\r\n'/$'\n'}
    clean=${clean//$'\r'/$'\n'}
    [[ ! $clean || $clean == *$'\n' ]] || clean+=$'\n' # mpirun reads no comment in a line without an end
}

# read_host_file AT CHECK: the host file that word AT of given names. mpirun gets a clean copy where it needs one. What
# is no plain file, as of <(...), can be read once only: mpirun and later starts get a copy.
read_host_file() {
    local path=${given[$1]} original clean copy=$folder/.hosts-$1
    if [[ -e $path && ! -f $path && ! -d $path ]]; then
        cat -- "$path" >"$copy-all" || die "$(shown "$path"): this host file cannot be copied to $folder" \
            "is there room? TMPDIR names another folder"
        given[$1]=$copy-all
        read_text "$copy-all" "$path"
    else
        read_text "$path" "$path"
    fi
    [[ $2 == no ]] || check_lines "$path" "$clean" "$2"
    # The words of given stand at the end of options.
    options[${#options[@]} - ${#given[@]} + $1]=${given[$1]}
    [[ $clean != "$original" ]] || return 0
    printf '%s' "$clean" 2>/dev/null >"$copy" ||
        die "$(shown "$path"): mpirun does not take the ends of lines, or the BOM, of this host file, and there is no \
room in $folder for a clean copy" "sed -i -e 's/\\r\$//' -e '1s/^\\xef\\xbb\\xbf//' $(shown "$path") cleans it; \
TMPDIR names another folder"
    options[${#options[@]} - ${#given[@]} + $1]=$copy
}

# read_host_list OPTION LIST: as of --host a,b:2. Empty words between commas are nothing.
read_host_list() {
    local words word count n_words=0
    [[ ! $2 =~ [^,]*\[[0-9,-]+\] ]] || check_form "$1" "${BASH_REMATCH[0]}"
    IFS=, read -r -a words <<<"$2"
    for word in "${words[@]}"; do
        [[ $word ]] || continue
        n_words=$((n_words + 1))
        [[ ! $word =~ $RELATIVE_HOST ]] || continue
        case $word in
        *[\ $'\t']*) refuse_word "$1" "$word" "has a blank" "write node1:4,node2:4" ;;
        *:*:* | *[][]*) ;;
        *@*) refuse_word "$1" "$word" "names a user, which mpirun takes in host files alone" \
            "User in ~/.ssh/config sets it" ;;
        *:*)
            count=${word#*:} word=${word%%:*}
            [[ $count =~ ^([0-9]{1,6}|\*|auto)$ ]] ||
                refuse_word "$1" "$word:$count" "has no number of ranks behind the colon" "write $(shown "$word"):4"
            ;;
        esac
        add_host "$1" "$word"
    done
    ((n_words)) || die "$1 names no host" "write $1 node1,node2"
    n_named=$((n_named + n_words))
}

# Checks all hosts that options name, and sets hosts to their names, or to what a batch system says. Before each start,
# because the file may have changed; names are looked up before the first one alone.
read_hosts() {
    local at n_named=0 in_files look_up_end=$((SECONDS + LOOK_UP_ALL_S))
    local -A listed=()
    ! are_names_of_others || looks_up=no
    hosts=()
    for at in "${rank_files_at[@]}"; do
        read_host_file "$at" no
    done
    for at in "${host_files_at[@]}"; do
        case "${given[at - 1]} ${given[at]}" in
        *default?hostfile\ none) ;;
        *default?hostfile\ *) read_host_file "$at" maybe ;; # that of Open MPI has comments alone
        *) read_host_file "$at" yes ;;
        esac
    done
    in_files=("${hosts[@]}") hosts=()
    for at in "${host_lists_at[@]}"; do
        listed=()
        read_host_list "${given[at - 1]}" "${given[at]}"
    done
    ((${#hosts[@]})) || hosts=("${in_files[@]}")
    looks_up=no
    ((n_named == 0)) || return 0
    if [[ ${SLURM_JOB_NODELIST:-} ]]; then
        mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null)
    elif [[ ${PBS_NODEFILE:-} ]]; then
        mapfile -t hosts < <(sed -E 's/#.*//; s/^\s+//; s/(\s|:).*//; /^$/d' "$PBS_NODEFILE" 2>/dev/null | sort -u)
    fi
}
