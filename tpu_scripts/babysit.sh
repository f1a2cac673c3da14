#!/usr/bin/env bash
# Keeps a line running until it is done: whatever is lost on the way is made anew, and the same line run again.
#
#   tpu_scripts/babysit.sh -- python -m bertzoo_jax.pretrain --config … --corpus gs://… --workdir gs://…
#
#   --retries N     restarts in a row after which it gives up (default RETRIES of the settings); a run that lasted an hour
#                   begins the count anew
#
# The code is the one that is here when this begins. Ends with exit code 0 when the line ended with 0 on every worker or was
# stopped with stop.sh; with 2 or 3 when the line did (a mistake in it, or numbers that are not finite), since another try
# would do the same; with 1 when it gave up. Any other code is tried again, 75 above all.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_retries=
parse 'retries= --' "$@"
RETRIES=${FLAG_retries:-$RETRIES}
is_number "$RETRIES" || fail "--retries $RETRIES is not a number."
check_line
found=$(workdir)
[[ -z $found || $found == gs://* ]] || fail "--workdir $found goes with its VM, which babysit.sh replaces: write gs://BUCKET/FOLDER."
BACKOFF_SECONDS=${BERTZOO_BACKOFF_SECONDS:-30}
STEADY_SECONDS=3600
STARTUP_SECONDS=${BERTZOO_STARTUP_SECONDS:-1800}  # for a machine of --autostart to install and begin by itself
HELD='^worker [0-9?]+: ended .*/dev/vfio/[0-9]+.*busy'
PATIENCE=3  # looks in a row at a machine that does not answer, or at workers of which some have ended, before it is taken as lost

tell() { printf '%s  %s\n' "$(date '+%F %T')" "$*"; }

same=(--env "$ENV_FILE")
(( ! DRY_RUN )) || same+=(--dry-run)
archive=$TMP/bertzoo.tgz
(( ! DRY_RUN )) || touch "$archive"
pack

# Sets VERDICT (alive, waiting, queued, finished, halted, mistake, restart or rebuild), WHY, and CODE of a mistake.
look() {
  locate
  case $STATE in
    ACTIVE) ;;
    UNKNOWN) VERDICT=waiting WHY='gcloud gives no answer'; return ;;
    NONE) VERDICT=rebuild WHY='there is no TPU'; return ;;
    CREATING | ACCEPTED | WAITING_FOR_RESOURCES | PROVISIONING)
      VERDICT=rebuild WHY="the TPU is $STATE"
      ! autostarted || VERDICT=queued
      return
      ;;
    *) VERDICT=rebuild WHY="the TPU is $STATE"; return ;;
  esac
  local node
  node=$(node_state)
  case $node in
    READY) ;;
    UNKNOWN) VERDICT=waiting WHY='gcloud gives no answer'; return ;;
    NONE) VERDICT=rebuild WHY='the machine has vanished'; return ;;
    PREEMPTED | TERMINATED | STOPPED | STOPPING | DELETING) VERDICT=rebuild WHY="the machine is $node"; return ;;
    *) VERDICT=waiting WHY="the machine is $node"; return ;;
  esac
  if ! states > "$TMP/states" 2> "$TMP/ssh"; then
    VERDICT=rebuild WHY='a worker does not answer'
    return
  fi
  local all running idle
  all=$(grep -c '^worker ' "$TMP/states" || true)
  running=$(count running)
  idle=$(count idle)
  WHY=$(grep -v ': running' "$TMP/states" | sort -k 2 -n | head -n 1 || true)
  if (( $(count 'ended [23]') )); then
    WHY=$(grep -E '^worker [0-9?]+: ended [23] ' "$TMP/states" | head -n 1)
    CODE=${WHY#*: ended }
    CODE=${CODE%% *}
    VERDICT=mistake
  elif grep -qE "$HELD" "$TMP/states"; then
    # What a preempted run before it had open: only another VM has its chips free.
    WHY=$(grep -E "$HELD" "$TMP/states" | head -n 1)
    VERDICT=rebuild
  elif (( all && running == all )); then
    VERDICT=alive
  elif (( $(count stopped) )); then
    if (( running )); then VERDICT=waiting; else VERDICT=halted; fi
  elif (( all && $(count 'ended 0') == all )); then
    VERDICT=finished
  elif (( idle && idle + running == all )) && starting; then
    VERDICT=waiting WHY='the machine installs, to begin by itself' first=0  # what it will run is this line
  elif (( running && running + $(count 'ended 0') == all )); then
    VERDICT=waiting  # the first one has more to write
  else
    VERDICT=restart
  fi
}

count() { grep -cE "^worker [0-9?]+: $1 " "$TMP/states" || true; }

# A machine of --autostart begins by itself, if it begins at all: setting it up meanwhile would be in its way.
starting() {
  arrived=${arrived:-$SECONDS}
  (( SECONDS - arrived < STARTUP_SECONDS )) && autostarted
}

# One worker may be seen ending before the others, or be away for a moment: such a thing must be seen PATIENCE times.
passing() {
  [[ $VERDICT == rebuild && $WHY == 'a worker does not answer' ]] || { [[ $VERDICT == restart ]] && (( $(count running) )); }
}

# Everything from what there is to a run. Its parts end with 2 for a mistake in the settings, which ends this too.
begin() {
  local code=0
  if [[ $VERDICT == rebuild ]]; then
    if [[ $STATE != NONE && $STATE != WAITING_FOR_RESOURCES && $STATE != ACCEPTED && $STATE != PROVISIONING && $STATE != CREATING ]]; then
      delete_resource || tell 'it could not be deleted'
    fi
    bash "$HERE/create.sh" "${same[@]}" || code=$?
  else
    on all 'bash bertzoo_tpu/worker.sh kill' > /dev/null 2>&1 || true  # the hosts of a slice begin together
  fi
  (( code )) || bash "$HERE/setup.sh" "${same[@]}" --archive "$archive" || code=$?
  (( code )) || bash "$HERE/run.sh" "${same[@]}" -- "${LINE[@]}" || code=$?
  (( code != 2 )) || exit 2
  return "$code"
}

if (( DRY_RUN )); then
  say '# looks, again and again'
  look
  say '# when it is gone'
  VERDICT=rebuild STATE=SUSPENDED
  begin
  exit 0
fi

restarts=0 patience=0 since=$SECONDS first=1 told='' arrived=''
while :; do
  look
  if (( first )); then
    case $VERDICT in
      finished | halted | mistake) VERDICT=restart ;;  # the end of an earlier line
      alive) first=0 ;;
    esac
  fi
  if passing && (( ++patience < PATIENCE )); then VERDICT=waiting; fi
  case $VERDICT in
    alive) patience=0 ;;
    waiting) tell "$WHY: waiting" ;;
    queued)
      first=0  # what it will run is this line
      [[ $WHY == "$told" ]] || tell "$WHY, asked for with --autostart: waiting, however long"
      told=$WHY
      ;;
    finished) tell 'done: exit code 0 on every worker. The TPU is still there, and costs on: tpu_scripts/delete.sh'; exit 0 ;;
    halted) tell "$WHY: stopped by tpu_scripts/stop.sh"; exit 0 ;;
    mistake)
      on all 'bash bertzoo_tpu/worker.sh kill' > /dev/null 2>&1 || true
      tell "$WHY"
      fail "the line ended with exit code $CODE, as it would again: mend what the worker says. The TPU is still there." "$CODE"
      ;;
    *)
      patience=0
      (( SECONDS - since < STEADY_SECONDS )) || restarts=0
      if (( first )); then
        tell "$WHY: starting"
      else
        (( restarts < RETRIES )) || fail "gave up after $restarts of $RETRIES restarts in a row: $WHY." 1
        delay=$((BACKOFF_SECONDS << (restarts < 6 ? restarts : 6)))
        restarts=$((restarts + 1))
        tell "$WHY: again in $delay s (restart $restarts of $RETRIES)"
        sleep "$delay"
        look  # what there is may have changed meanwhile
        case $VERDICT in alive | waiting | queued | finished | halted | mistake) continue ;; esac
      fi
      first=0
      if begin; then tell 'running'; else tell 'could not be started'; fi
      since=$SECONDS
      ;;
  esac
  sleep "$POLL_SECONDS"
done
