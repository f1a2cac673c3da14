#!/usr/bin/env bash
# What happens on a worker of the TPU. The other commands call it there; nobody needs to call it by hand.
#
#   worker.sh unpack ARCHIVE    code into ~/bertzoo_tpu/code
#   worker.sh install EXTRAS    a Python of its own, with the tested versions, into ~/bertzoo_tpu/venv
#   worker.sh check [BUCKET]    a row: python, jax, chips, free disk, whether the bucket can be written
#   worker.sh start             runs ~/bertzoo_tpu/job/line in the environment of job/env, detached
#   worker.sh state             a line: running, stopped, interrupted, ended CODE, gone or idle · the last line of the log
#   worker.sh tail N [follow]   the end of the log
#   worker.sh stop | kill       SIGTERM, so that the run saves; kill waits a while and then uses force
set -euo pipefail

BASE=$HOME/bertzoo_tpu
RUN=$BASE/run
LOG=$RUN/log
COPY_SECONDS=${BERTZOO_COPY_SECONDS:-60}
BACKOFF_SECONDS=${BERTZOO_BACKOFF_SECONDS:-30}
KILL_SECONDS=${BERTZOO_KILL_SECONDS:-120}
export PATH=$PATH:/snap/bin  # gcloud, in a shell that is no login

metadata() { curl -sf -H 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"; }

number() { metadata agent-worker-number || echo '?'; }

# Where the processes of a slice meet. A TPU VM's environment does not say that it is one of several: only the metadata do, as a
# list of hosts, or of name:id:address, by worker.
meeting() {
  local hosts first
  hosts=$(metadata worker-network-endpoints || true)
  [[ $hosts == *,* ]] || return 0
  first=${hosts%%,*}
  JAX_COORDINATOR_ADDRESS=${first##*:}:8482
  JAX_NUM_PROCESSES=$(tr ',' '\n' <<< "$hosts" | wc -l)
  JAX_PROCESS_ID=$(number)
  export JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID
}

refuse() {
  printf 'error: worker %s: %s\n' "$(number)" "$1" >&2
  exit 1
}

# Whoever supervises or runs holds this file's lock: a number of a process could be another's after a reboot.
# Those who ask share it, so that none takes another for a run.
running() { [[ -e $RUN/lock ]] && ! flock --shared --nonblock "$RUN/lock" true; }

unpack() {
  ! running || refuse 'a run is alive here, whose code must not change: stop it first with tpu_scripts/stop.sh.'
  (umask 077; mkdir -p "$BASE/job" "$RUN")
  rm -rf "$BASE/code.part"
  mkdir "$BASE/code.part"
  tar -xzf "$1" -C "$BASE/code.part"
  rm -rf "$BASE/code"
  mv "$BASE/code.part" "$BASE/code"
}

install() {
  local uv wanted
  wanted=$( (cat "$BASE/code/setup.py" "$BASE/code/constraints.txt"; printf '%s\n' "$1") | sha256sum)
  if [[ -e $BASE/venv/.ready && $(cat "$BASE/venv/.ready") == "$wanted" ]]; then return; fi
  uv=$(command -v uv || true)
  if [[ -z $uv ]]; then
    [[ -x $BASE/uv/bin/uv ]] || python3 -m pip install --quiet --target "$BASE/uv" uv
    uv=$BASE/uv/bin/uv
  fi
  # The images' own Python is older than this package wants.
  [[ -x $BASE/venv/bin/python ]] || "$uv" venv --quiet --seed --python 3.12 "$BASE/venv"
  "$BASE/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$BASE/code/constraints.txt" -e "$BASE/code[$1]"
  printf '%s\n' "$wanted" > "$BASE/venv/.ready"
}

check() {
  local python jax chips disk bucket=none probe
  # From what is installed, without opening a chip.
  read -r python jax < <(
    "$BASE/venv/bin/python" -c 'import importlib.metadata, platform; print(platform.python_version(), importlib.metadata.version("jax"))'
  ) || true
  # Counted without opening them: a run may hold them, and a slice answers only when all its hosts ask.
  chips=$(find /dev -maxdepth 2 \( -path '/dev/accel[0-9]*' -o -path '/dev/vfio/[0-9]*' \) 2> /dev/null | wc -l)
  disk=$(df -BG --output=avail "$HOME" | tail -n 1)
  if [[ -n ${1:-} ]]; then
    probe=$1/.probe-$NAME_OF_HOST
    bucket=NO
    if echo probe | gcloud storage cp - "$probe" > /dev/null 2>&1 && gcloud storage rm "$probe" > /dev/null 2>&1; then bucket=yes; fi
  fi
  printf '%-8s %-10s %-10s %-6s %-10s %s\n' "$(number)" "${python:-missing}" "${jax:-missing}" "$((chips))" "${disk// /}" "$bucket"
}
NAME_OF_HOST=$(hostname)

start() {
  [[ -e $BASE/job/line ]] || refuse 'there is no line to run: start it with tpu_scripts/run.sh.'
  ! running || refuse 'a run is alive: stop it first with tpu_scripts/stop.sh.'
  rm -f "$RUN/code" "$RUN/asked" "$RUN/noticed" "$RUN/pid"
  date -u '+%Y%m%d-%H%M%S' > "$RUN/since"
  : > "$LOG"
  setsid nohup bash "$BASE/worker.sh" supervise < /dev/null > "$RUN/supervisor" 2>&1 &
  local supervisor=$!
  # Until it holds the lock: a second start must be refused.
  while ! running && [[ ! -e $RUN/code ]] && kill -0 "$supervisor" 2> /dev/null; do sleep 0.05; done
  running || [[ -e $RUN/code ]] || refuse "the run did not start: $(tail -n 1 "$RUN/supervisor")"
  printf 'worker %s: started\n' "$(number)"
}

# Runs the line, copies its log to the bucket, notes the exit code, and reruns it up to RERUNS times.
supervise() {
  exec 9> "$RUN/lock"
  flock --timeout 10 9 || { echo 'another run began first'; exit 1; }  # someone may be asking at this moment
  echo "$$" > "$RUN/group"  # of processes: setsid made this its leader
  # shellcheck disable=SC1091
  source "$BASE/job/env"
  meeting
  local pid code got reruns=0 copier
  trap 'touch "$RUN/noticed"' TERM  # the machine goes down
  while :; do
    (
      cd "$BASE/code"
      export PATH=$BASE/venv/bin:$PATH PYTHONUNBUFFERED=1
      eval "exec $(cat "$BASE/job/line")"
    ) >> "$LOG" 2>&1 &
    pid=$!
    echo "$pid" > "$RUN/pid"
    (exec 9>&-; trap - TERM; while sleep "$COPY_SECONDS"; do copy; done) &
    copier=$!
    # The notice of a shutdown ends a wait early, with a code that is not the child's.
    code=127
    while :; do
      got=0
      wait "$pid" 2> /dev/null || got=$?
      (( got == 127 )) || code=$got
      kill -0 "$pid" 2> /dev/null || break
    done
    got=0
    wait "$pid" 2> /dev/null || got=$?
    (( got == 127 )) || code=$got
    kill "$copier" 2> /dev/null || true
    copy
    [[ ! -e $RUN/asked && ! -e $RUN/noticed ]] || break
    case $code in 0 | 2 | 3) break ;; esac
    [[ -z $(held) ]] || break
    (( reruns < ${RERUNS:-0} )) || break
    reruns=$((reruns + 1))
    printf '%s: exit code %s; again in %s s (%s of %s)\n' "$(date '+%F %T')" "$code" "$BACKOFF_SECONDS" "$reruns" "${RERUNS:-0}" >> "$LOG"
    sleep "$BACKOFF_SECONDS"
    [[ ! -e $RUN/asked && ! -e $RUN/noticed ]] || break
  done
  echo "$code" > "$RUN/code.part"
  mv "$RUN/code.part" "$RUN/code"
}

# What libtpu says where another process has the chips open: on this VM they stay so.
held() { tail -c 8000 "$LOG" | grep -E '/dev/vfio/[0-9]+.*busy' | tail -n 1 || true; }

copy() {
  [[ -z ${LOGS:-} ]] || gcloud storage cp "$LOG" "$LOGS/$(cat "$RUN/since").worker-$(number).log" > /dev/null 2>&1 || true
}

state() {
  local word code last why
  if running; then
    word=running
  elif [[ -e $RUN/code ]]; then
    code=$(cat "$RUN/code")
    word="ended $code"
    # Exit code 0 is also that of a run which was told to stop and saved: by stop.sh, or by the notice of a preemption.
    if [[ -e $RUN/asked ]]; then
      word=stopped
    elif [[ -e $RUN/noticed ]] || { (( code == 0 )) && tail -n 20 "$LOG" | grep -q '^stopped .*run the same command'; }; then
      word=interrupted
    fi
  elif [[ -e $RUN/since ]]; then
    word=gone
  else
    word=idle
  fi
  # What a progress bar overwrites is one line; of a failed run the sentence that says why.
  last=$(tail -c 8000 "$LOG" 2> /dev/null | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 || true)
  if [[ $word == ended* && $word != 'ended 0' ]]; then
    why=$(held)
    last=${why:-$(tail -c 8000 "$LOG" | grep '^error: ' | tail -n 1 || printf '%s' "$last")}
  fi
  printf 'worker %s: %s · %s\n' "$(number)" "$word" "$last"
}

# ask_to_end MARK: state reads from it on whose wish the run ended.
ask_to_end() {
  touch "$RUN/$1"
  kill -TERM "$(cat "$RUN/pid")" 2> /dev/null || true
}

stop() {
  running || return 0
  ask_to_end asked
  printf 'worker %s: asked to save and stop\n' "$(number)"
}

end_by_force() {
  running || return 0
  ask_to_end noticed
  local end=$((SECONDS + KILL_SECONDS))
  while running && (( SECONDS < end )); do sleep 0.2; done
  ! running || kill -KILL -- "-$(cat "$RUN/group")" 2> /dev/null || true
  printf 'worker %s: ended\n' "$(number)"
}

tail_log() {
  [[ -e $LOG ]] || refuse 'no run has been started here.'
  if [[ ${2:-} == follow ]]; then exec tail -n "$1" -F "$LOG"; else tail -n "$1" "$LOG"; fi
}

main() {
  case ${1:-} in
    unpack) unpack "$2" ;;
    install) install "$2" ;;
    check) check "${2:-}" ;;
    start) start ;;
    supervise) supervise ;;
    state) state ;;
    stop) stop ;;
    kill) end_by_force ;;
    tail) tail_log "${@:2}" ;;
    *) echo "error: worker.sh knows no '${1:-}'; see its head." >&2; exit 2 ;;
  esac
}

main "$@"; exit  # read whole before it begins: a sync may replace this file
