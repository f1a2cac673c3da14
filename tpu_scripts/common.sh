# shellcheck shell=bash
# shellcheck disable=SC2034  # what is set here is read by the commands
# What every command here shares: flags, tpu.env, and how a line is shown or run. Sourced, not run.
#
# Flags that every command takes:
#   --env FILE   settings (default tpu_scripts/tpu.env)
#   --dry-run    prints the exact lines and runs nothing
#   --help       this text

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$HERE")
POLL_SECONDS=${BERTZOO_POLL_SECONDS:-30}
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
exec 3>&1  # lines shown by --dry-run go here, also from within $(...)

fail() {
  printf 'error: %s\n' "$1" >&2
  exit "${2:-2}"
}

say() { printf '%s\n' "$*"; }

# Not 08, which bash takes for octal.
is_number() { [[ $1 =~ ^(0|[1-9][0-9]*)$ ]]; }

# parse FLAGS "$@": sets FLAG_x for each `--x` in FLAGS (`x` is a switch, `x=` takes a value; `--` is a line that follows it in LINE).
parse() {
  local known=" $1 " name value
  shift
  DRY_RUN=0 ENV_FILE=$HERE/tpu.env LINE=()
  while (( $# )); do
    name=${1%%=*}
    name=${name#--}
    case $1 in
      --) [[ $known == *' -- '* ]] || fail "${0##*/} takes no line after --; see --help."; shift; LINE=("$@"); line_begins; break ;;
      --help | -h) help; exit 0 ;;
      --dry-run) DRY_RUN=1; shift; continue ;;
      --*) ;;
      *) fail "${0##*/} does not know what to do with '$1'; see --help." ;;
    esac
    if [[ $name == env || $known == *" $name= "* ]]; then
      if [[ $1 == *=* ]]; then
        value=${1#*=}
      else
        (( $# > 1 )) || fail "--$name wants a value; see --help."
        value=$2
        shift
      fi
      [[ -n $value ]] || fail "--$name wants a value; see --help."
      if [[ $name == env ]]; then ENV_FILE=$value; else printf -v "FLAG_${name//-/_}" '%s' "$value"; fi
    elif [[ $known == *" $name "* && $1 != *=* ]]; then
      printf -v "FLAG_${name//-/_}" 1
    else
      fail "${0##*/} has no flag '$1'; see --help."
    fi
    shift
  done
  settings
}

line_begins() {
  [[ ${LINE[0]:-} != -* ]] || fail "the line after -- begins with '${LINE[0]}', which is no program: flags of ${0##*/} go before the --."
}

# The comment at the head of the command, and the flags that all share.
help() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  sed -n '/^# Flags that every/,/^[^#]/s/^# \{0,1\}//p' "$HERE/common.sh"
}

KEYS=(WANDB_API_KEY HF_TOKEN)
SETTINGS=(PROJECT NAME BUCKET CANDIDATES SPOT RUNTIME CREATE_FLAGS CREATE_MINUTES LOGIN EXTRAS LIBTPU_INIT_ARGS CACHE RETRIES)

# What bash would take otherwise than it is meant, or leave unsaid. A line that begins with export is the user's own.
check_text() {
  local line name quote='' before number given='^[[:blank:]]*([A-Za-z_][A-Za-z0-9_]*)[[:blank:]]*[+]?=' blank='^[^=]*([[:blank:]]=|=[[:blank:]]+[^#[:blank:]])'
  while IFS= read -r line || [[ -n $line ]]; do
    before=$quote
    quote=$(open_quote "$quote" "$line")
    [[ -z $before && $line =~ $given ]] || continue  # the second line of a value may look like a setting, and be a key's
    name=${BASH_REMATCH[1]}
    [[ " ${SETTINGS[*]} ${KEYS[*]} " == *" $name "* ]] || fail "$name in $ENV_FILE is no setting: there are ${SETTINGS[*]}."
    [[ ! $line =~ $blank ]] || fail "$name in $ENV_FILE has a blank beside its =: write $name=VALUE without it."
  done < "$ENV_FILE"
  # Read on trial: what bash says becomes part of one sentence.
  # shellcheck disable=SC1090
  if ! (source "$ENV_FILE") > /dev/null 2> "$TMP/read" || [[ -s $TMP/read ]]; then
    line=$(head -n 1 "$TMP/read")
    number=${line#"$ENV_FILE: line "}
    number=${number%%:*}
    # The rest of a key that lacks its quotes is no command, and nobody's to read.
    if is_number "$number" && [[ ! $(sed -n "${number}p" "$ENV_FILE") =~ $given ]]; then line="line $number"; fi
    fail "$ENV_FILE is not what bash can read${line:+ (${line#"$ENV_FILE: "})}: compare it with $HERE/tpu.env.example."
  fi
}

# open_quote QUOTE LINE: the quote that is open at the end of a line at whose beginning QUOTE (or nothing) is.
open_quote() {
  local quote=$1 rest=$2
  while :; do
    if [[ -n $quote ]]; then
      [[ $rest == *"$quote"* ]] || break
      rest=${rest#*"$quote"} quote=''
    else
      [[ $rest =~ ^([^\'\"#]*)([\'\"#])(.*)$ ]] || break
      [[ ${BASH_REMATCH[2]} != '#' || ( -n ${BASH_REMATCH[1]} && ${BASH_REMATCH[1]} != *[[:blank:]] ) ]] || break  # a comment
      rest=${BASH_REMATCH[3]} quote=${BASH_REMATCH[2]/'#'/}
    fi
  done
  printf '%s' "$quote"
}

# PLACE, a candidate.
check_candidate() {
  local place=${1%%,*} rest=${1#*,}, kind number wrong="CANDIDATES has '$1' in $ENV_FILE:"
  [[ $1 == *,* ]] || rest=''
  while [[ -n $rest ]]; do
    [[ ${rest%%,*} =~ ^(spot|on-demand|gs://.+)$ ]] \
      || fail "$wrong behind TYPE@ZONE and a comma, without a blank, stand spot or on-demand, and gs:// with a bucket's name."
    [[ ! ${rest%%,*} =~ ^gs://[^/]*[A-Z] ]] || fail "$wrong write the name of your bucket behind gs://."
    rest=${rest#*,}
  done
  [[ $place =~ ^([a-z0-9]+)-([0-9]+)@([a-z0-9-]+)$ ]] || fail "$wrong write TYPE@ZONE, such as v4-8@us-central2-b."
  kind=${BASH_REMATCH[1]} number=${BASH_REMATCH[2]}
  [[ $place =~ -[a-z]$ ]] || fail "$wrong a zone ends in a letter, as us-central2-b does."
  case $kind in
    v2 | v3 | v4 | v5p)
      [[ $number =~ ^[1-9][0-9]{0,5}$ && $((number % 8)) == 0 ]] \
        || fail "$wrong the number after $kind counts cores, 8 a VM: write a multiple of 8, such as $kind-8."
      ;;
    v5litepod | v5e | v6e)
      [[ $number =~ ^(1|4|8|16|32|64|128|256)$ ]] || fail "$wrong the number after $kind counts chips: write 1, 4, 8, 16, 32, 64, 128 or 256."
      ;;
    *) fail "$wrong there are v2, v3, v4, v5litepod (or v5e), v5p and v6e, such as v4-8." ;;
  esac
}

# choose PLACE: sets TYPE, ZONE, SPOT and BUCKET to those of a candidate; the settings' where it has none of its own.
choose() {
  local rest=$1,
  TYPE=${1%%@*} ZONE=${1#*@} SPOT=$SPOT_OF_ALL BUCKET=$BUCKET_OF_ALL
  ZONE=${ZONE%%,*}
  while [[ -n $rest ]]; do
    case ${rest%%,*} in
      spot) SPOT=yes ;;
      on-demand) SPOT=no ;;
      gs://*) BUCKET=${rest%%,*} ;;
    esac
    rest=${rest#*,}
  done
  BUCKET=${BUCKET%/}
}

# The buckets of all candidates, a line each.
buckets() {
  local place
  for place in "${CANDIDATES[@]}"; do
    choose "$place"
    [[ -z $BUCKET ]] || say "$BUCKET"
  done | sort -u
}

# How many VMs a TYPE has.
hosts() {
  local number=${1##*-}
  case $1 in
    v5litepod-* | v6e-*) echo $((number <= 8 ? 1 : number / 4)) ;;
    *) echo $((number / 8)) ;;
  esac
}

# Each of EXTRAS must be in setup.py. Without tpu, jax finds no chip.
check_extras() {
  local extra known
  known=$(sed -n "/extras_require/,/}/s/^ *'\([a-z0-9]*\)': .*/\1/p" "$ROOT/setup.py" 2> /dev/null | tr '\n' ' ')
  for extra in ${EXTRAS//,/ }; do
    [[ -z $known || " $known" == *" $extra "* ]] || fail "EXTRAS=$EXTRAS in $ENV_FILE: of '$extra' setup.py knows nothing; there are ${known% }."
  done
  [[ ",$EXTRAS," == *,tpu,* ]] || fail "EXTRAS=$EXTRAS in $ENV_FILE lacks tpu, without which jax finds no chip: write tpu${EXTRAS:+,$EXTRAS}."
}

settings() {
  PROJECT='' NAME='' BUCKET='' CANDIDATES=() SPOT=yes RUNTIME='' CREATE_FLAGS=() CREATE_MINUTES=30 LOGIN='' EXTRAS=tpu
  # Not from the caller's shell: what a run gets stands in the file.
  LIBTPU_INIT_ARGS='' CACHE=no RETRIES=10
  [[ ! -d $ENV_FILE ]] || fail "$ENV_FILE is a folder: give --env FILE."
  [[ -f $ENV_FILE ]] || fail "$ENV_FILE does not exist: copy $HERE/tpu.env.example there and fill it in, or give --env FILE."
  check_text
  # shellcheck disable=SC1090
  source "$ENV_FILE" > /dev/null
  local name place
  for name in PROJECT NAME; do
    [[ -n ${!name} ]] || fail "$name is empty in $ENV_FILE: fill it in."
  done
  [[ $NAME =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] || fail "NAME=$NAME in $ENV_FILE cannot name a TPU: take small letters, digits and -."
  (( ${#CANDIDATES[@]} )) || fail "CANDIDATES is empty in $ENV_FILE: name at least one TYPE@ZONE, such as v4-8@us-central2-b."
  for place in "${CANDIDATES[@]}"; do
    check_candidate "$place"
  done
  CANDIDATES=("${CANDIDATES[@]/#v5e-/v5litepod-}")  # as Google calls it
  [[ $BUCKET != gs:// ]] || fail "BUCKET in $ENV_FILE is not filled in: write gs://NAME, or leave it empty."
  [[ -z $BUCKET || $BUCKET =~ ^gs://[^/]+ ]] || fail "BUCKET=$BUCKET in $ENV_FILE is not a bucket: write gs://NAME, or leave it empty."
  for name in SPOT CACHE; do
    [[ ${!name} == yes || ${!name} == no ]] || fail "$name=${!name} in $ENV_FILE: write yes or no."
  done
  for name in RETRIES CREATE_MINUTES; do
    is_number "${!name}" || fail "$name=${!name} in $ENV_FILE is not a number."
  done
  SPOT_OF_ALL=$SPOT BUCKET_OF_ALL=$BUCKET
  local zones=' ' empty
  for place in "${CANDIDATES[@]}"; do
    choose "$place"
    [[ $zones != *" $ZONE="* || $zones == *" $ZONE=$BUCKET "* ]] || fail "CANDIDATES has two buckets for $ZONE in $ENV_FILE: write one."
    zones+="$ZONE=$BUCKET "
    [[ -z $BUCKET ]] || continue
    empty="BUCKET is empty in $ENV_FILE, and"
    [[ $CACHE == no ]] || fail "CACHE=yes in $ENV_FILE wants a BUCKET to keep programs in."
    [[ $SPOT == no ]] || fail "$empty a spot VM loses its disk: write gs://NAME, or SPOT=no."
    (( $(hosts "$TYPE") <= 1 )) || fail "$empty the VMs of $place write one workdir: write gs://NAME."
  done
  check_extras
  LOGIN=${LOGIN:-${USER:-$(id -un)}}
  (( DRY_RUN )) || command -v gcloud > /dev/null || fail 'gcloud is not installed: see https://cloud.google.com/sdk/docs/install.'
}

# "$@" as one line that a shell reads back as the same words.
quote() {
  local word line='' one="'" four="'\\''"
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%+,-]*) line+=" '${word//$one/$four}'" ;;
      *) line+=" $word" ;;
    esac
  done
  printf '%s\n' "${line# }"
}

run() {
  if (( DRY_RUN )); then quote "$@" >&3; else "$@"; fi
}

# ask ANSWER "$@": prints what gcloud answers, NONE if there is no such thing, UNKNOWN if it cannot say; ANSWER in a dry run.
ask() {
  local answer=$1
  shift
  if (( DRY_RUN )); then
    quote "$@" >&3
  elif answer=$("$@" 2> "$TMP/asked"); then
    answer=${answer:-NONE}
  elif grep -qiE 'not[ _]found' "$TMP/asked"; then
    answer=NONE
  else
    cat "$TMP/asked" >&2
    answer=UNKNOWN
  fi
  printf '%s\n' "$answer"
}

resource_state() {
  ask "${1:-ACTIVE}" gcloud compute tpus queued-resources describe "$NAME" --project="$PROJECT" --zone="$ZONE" '--format=value(state.state)'
}

node_state() {
  ask READY gcloud compute tpus tpu-vm describe "$NAME" --project="$PROJECT" --zone="$ZONE" '--format=value(state)'
}

# Whether it was asked for with --autostart, so that it is to stay in the queue; yes too while gcloud cannot say.
autostarted() {
  local metadata
  metadata=$(ask '' gcloud compute tpus queued-resources describe "$NAME" --project="$PROJECT" --zone="$ZONE" \
    '--format=value(tpu.nodeSpec[0].node.metadata)')
  [[ $metadata == UNKNOWN || $metadata == *bertzoo_tpu/job* ]]
}

# --force deletes the node with it.
delete_resource() {
  run gcloud compute tpus queued-resources delete "$NAME" --project="$PROJECT" --zone="$ZONE" --force --quiet
}

# Chooses the first candidate where the queued resource is, and sets STATE; STATE=NONE if it is nowhere.
# Nothing is remembered on this machine, so that any other can go on.
locate() {
  local place
  for place in "${CANDIDATES[@]}"; do
    choose "$place"
    STATE=$(resource_state)
    [[ $STATE == NONE ]] || return 0
  done
}

# As locate; ends unless the TPU is there.
located() {
  locate
  case $STATE in
    ACTIVE) ;;
    NONE) fail "there is no TPU called $NAME: make it with tpu_scripts/create.sh." 1 ;;
    UNKNOWN) fail 'gcloud does not say whether there is a TPU: see its message above.' 1 ;;
    *) fail "$NAME is $STATE in $ZONE, not ACTIVE: tpu_scripts/create.sh waits for it or asks anew." 1 ;;
  esac
}

# on WORKER COMMAND: runs it there by ssh; WORKER is a number or all.
on() {
  run gcloud compute tpus tpu-vm ssh "$LOGIN@$NAME" --project="$PROJECT" --zone="$ZONE" --worker="$1" --quiet --command="$2"
}

# to_all FILE... FOLDER: copies files to every worker.
to_all() {
  local files=("${@:1:$#-1}")
  run gcloud compute tpus tpu-vm scp "${files[@]}" "$LOGIN@$NAME:${*: -1}" --project="$PROJECT" --zone="$ZONE" --worker=all --quiet
}

# A line a worker: `worker N: running|stopped|interrupted|ended CODE|gone|idle · the last line of its log`. A machine that
# was never set up is idle.
states() {
  on all 'if [ -e bertzoo_tpu/worker.sh ]; then bash bertzoo_tpu/worker.sh state; else echo "worker ?: idle · not set up"; fi'
}

# pack: the code as it is here, changes of tracked files included, as one archive, $TMP/bertzoo.tgz.
pack() {
  local changed untracked
  local snapshot=(git -C "$ROOT" -c user.name=tpu_scripts -c user.email=none@localhost stash create)
  local packing=(git -C "$ROOT" archive --format=tar.gz -o "$TMP/bertzoo.tgz")
  git -C "$ROOT" rev-parse --verify --quiet HEAD > /dev/null 2>&1 \
    || fail "$ROOT is not a git checkout: clone the repository, then run this from there."
  untracked=$(git -C "$ROOT" ls-files --others --exclude-standard | wc -l)
  (( untracked == 0 )) || say "note: $((untracked)) files that git does not know stay here: git add those that the run needs." >&2
  # A commit of the changes that no branch sees; it leaves files and index alone. It wants a name, which git may not know.
  if (( ! DRY_RUN )); then
    changed=$("${snapshot[@]}")
    "${packing[@]}" "${changed:-HEAD}"
  elif [[ -n $(git --no-optional-locks -C "$ROOT" status --porcelain --untracked-files=no) ]]; then
    say "$(quote "${packing[@]}") \"\$($(quote "${snapshot[@]}"))\"" >&3
  else
    quote "${packing[@]}" HEAD >&3
  fi
}

check_archive() {
  [[ -z $FLAG_archive || ( -f $FLAG_archive && -r $FLAG_archive ) ]] \
    || fail "--archive $FLAG_archive cannot be read: leave it out to send the code as it is."
}

# value_of FLAG: the last one in the line, if it has one.
value_of() {
  local word before='' found=''
  for word in "${LINE[@]}"; do
    [[ $before == "--$1" ]] && found=$word
    [[ $word == "--$1="* ]] && found=${word#"--$1="}
    before=$word
  done
  printf '%s\n' "$found"
}

workdir() { value_of workdir; }

# The line runs in the code that is sent, which is what git knows of this clone.
check_config() {
  local file remedy
  file=$(value_of config)
  file=${file%%:*}
  [[ -n $file ]] || return 0
  [[ $file != /* ]] || fail "--config $file is a file of this machine, and the line runs on the TPU: write its path within $ROOT, such as configs/bert.py:base."
  if [[ ! -f $ROOT/$file ]]; then
    fail "--config $file: $ROOT has no such file, so the TPU will have none: mend the path, or write the file there and git add it."
  fi
  git -C "$ROOT" rev-parse --git-dir > /dev/null 2>&1 || return 0  # such code cannot be sent, which pack says
  if ! git -C "$ROOT" ls-files --error-unmatch -- "$file" > /dev/null 2>&1; then
    remedy='git add'
    ! git -C "$ROOT" check-ignore --quiet -- "$file" || remedy='git add --force'
    fail "--config $file is unknown to git, so it is not sent to the TPU: $remedy $file"
  fi
}

# All workers of a slice write one workdir, and all candidates the same.
check_workdir() {
  local place found
  found=$(workdir)
  if [[ $found == gs://BUCKET* ]]; then
    (( $(buckets | wc -l) <= 1 )) || fail "--workdir $found is another folder for each bucket of CANDIDATES: write the name of one bucket, so that any of them resumes the run."
  fi
  for place in "${CANDIDATES[@]}"; do
    choose "$place"
    [[ -n $BUCKET || ${LINE[*]} != *gs://BUCKET* ]] || fail "the line has gs://BUCKET in it, and $place has no bucket in $ENV_FILE: write its name there, or in the line."
    [[ -z $found || $found == gs://* ]] || (( $(hosts "$TYPE") == 1 )) \
      || fail "--workdir $found is on the disk of one VM, and $TYPE has $(hosts "$TYPE"): write gs://BUCKET/FOLDER."
  done
}

check_line() {
  (( ${#LINE[@]} )) || fail "${0##*/} wants the line to run after --, such as -- python -m bertzoo_jax.pretrain --config …"
  check_workdir
  check_config
}

# Where logs are copied to: the workdir of the line if it is in a bucket, else the bucket, else nowhere.
logs_address() {
  local workdir
  workdir=$(workdir)
  workdir=${workdir/#gs:\/\/BUCKET/$BUCKET}
  if [[ $workdir == gs://* ]]; then
    printf '%s\n' "${workdir%/}/logs"
  elif [[ -n $BUCKET ]]; then
    printf '%s\n' "$BUCKET/logs/$NAME"
  fi
}

# write_job RERUNS: $TMP/line and $TMP/env, what worker.sh starts at the chosen candidate, whose bucket gs://BUCKET is in the
# line. Keys travel in the file, never in a command line.
write_job() {
  local name
  quote "${LINE[@]//gs:\/\/BUCKET/$BUCKET}" > "$TMP/line"
  (
    umask 077
    {
      variable LOGS "$(logs_address)"
      variable RERUNS "$1"
      # A stalled download is given up after a minute and tried again.
      variable TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS 60
      variable TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES 1024
      variable TPU_STDERR_LOG_LEVEL 2
      variable TPU_MIN_LOG_LEVEL 2
      [[ -z $LIBTPU_INIT_ARGS ]] || variable LIBTPU_INIT_ARGS "$LIBTPU_INIT_ARGS"
      [[ $CACHE == no ]] || variable JAX_COMPILATION_CACHE_DIR "$BUCKET/jax-cache"
      for name in "${KEYS[@]}"; do
        # A dry run never has them in a file, which it shows.
        if (( DRY_RUN )); then
          [[ -z ${!name:-} ]] || printf 'export %s=***\n' "$name"
        else
          [[ -z ${!name:-} ]] || variable "$name" "${!name}"
        fi
      done
    } > "$TMP/env"
  )
  (( ! DRY_RUN )) || {
    say "# line: $(cat "$TMP/line")"
    sed -E 's/^export //; s/^/# environment: /' "$TMP/env"
  } >&3
}

variable() { printf 'export %s=%s\n' "$1" "$(quote "$2")"; }
