#!/usr/bin/env bash
# Asks for the TPU, candidate by candidate, until one is ACTIVE. One that is not within CREATE_MINUTES is deleted again.
#
#   tpu_scripts/create.sh
#   tpu_scripts/create.sh --autostart -- python -m bertzoo_jax.pretrain --config … --workdir gs://…
#
#   --autostart     puts code, environment and line into BUCKET/jobs/NAME; the machine fetches and runs them whenever it
#                   boots, with nothing of yours switched on. Waits for nothing: the first request that gcloud takes stays
#                   in the queue
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_autostart=0
parse 'autostart --' "$@"

runtime() {  # of TYPE
  case $TYPE in
    v5litepod-*) echo "${RUNTIME:-v2-alpha-tpuv5-lite}" ;;
    v5p-*) echo "${RUNTIME:-v2-alpha-tpuv5}" ;;
    v6e-*) echo "${RUNTIME:-v2-alpha-tpuv6e}" ;;
    *) echo "${RUNTIME:-tpu-ubuntu2204-base}" ;;
  esac
}

prepare_job() {
  for place in "${CANDIDATES[@]}"; do
    choose "$place"
    [[ -n $BUCKET ]] || fail "--autostart fetches code from the bucket, and BUCKET is empty in $ENV_FILE: fill it in."
  done
  check_line
  pack
}

# Into the bucket of the candidate, unless the one before had the same.
put_job() {
  [[ $BUCKET/jobs/$NAME != "$JOB" ]] || return 0
  JOB=$BUCKET/jobs/$NAME
  write_job "$RETRIES"
  {
    echo '#!/usr/bin/env bash'
    printf 'JOB=%s LOGIN=%s EXTRAS=%s\n' "$(quote "$JOB")" "$(quote "$LOGIN")" "$(quote "$EXTRAS")"
    cat "$HERE/startup.sh"
  } > "$TMP/startup.sh"
  run gcloud storage cp "$TMP/bertzoo.tgz" "$TMP/line" "$TMP/env" "$JOB/" || fail "$JOB cannot be written: see gcloud's message." 1
}

ask_for_it() {
  local flags=()
  [[ $SPOT == no ]] || flags+=(--spot)
  (( ! FLAG_autostart )) || flags+=(--metadata-from-file="startup-script=$TMP/startup.sh")
  flags+=(${CREATE_FLAGS[@]+"${CREATE_FLAGS[@]}"})
  run gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" --project="$PROJECT" --zone="$ZONE" \
    --accelerator-type="$TYPE" --runtime-version="$(runtime)" ${flags[@]+"${flags[@]}"} --quiet
}

# Waits for ACTIVE. Returns 1 when it FAILED or took too long.
await_it() {
  local end=$((SECONDS + 60 * CREATE_MINUTES)) before=''
  while :; do
    STATE=$(resource_state)
    [[ $STATE == "$before" ]] || (( DRY_RUN )) || say "$NAME: $TYPE in $ZONE is $STATE"
    before=$STATE
    case $STATE in
      ACTIVE) return 0 ;;
      FAILED | SUSPENDED | SUSPENDING | NONE) return 1 ;;
    esac
    (( SECONDS < end )) || return 1
    sleep "$POLL_SECONDS"
  done
}

# One request after the other, until gcloud has taken one, which stays in the queue.
queue_one() {
  JOB=''
  for place in "${CANDIDATES[@]}"; do
    choose "$place"
    put_job
    taken=1
    ask_for_it || { taken=0; say "$NAME: gcloud refuses $TYPE in $ZONE"; }
    STATE=$(resource_state)  # it may be taken though gcloud's answer was lost, and may have FAILED though it was taken
    if (( DRY_RUN )); then
      say '# ends here, unless gcloud refuses it'
      continue
    fi
    case $STATE in
      NONE) (( ! taken )) || fail "gcloud took $NAME in $ZONE and does not list it yet: look with tpu_scripts/status.sh before you ask again." 1 ;;
      UNKNOWN) fail "gcloud does not say whether $NAME is asked for in $ZONE: look with tpu_scripts/status.sh before you ask again." 1 ;;
      FAILED | SUSPENDING | SUSPENDED)
        say "$NAME: $TYPE in $ZONE is $STATE"
        delete_resource || fail "$NAME, which is $STATE in $ZONE, could not be deleted: delete it with tpu_scripts/delete.sh." 1
        ;;
      *)
        say "$NAME is asked for in $ZONE: $TYPE, $STATE"
        say 'The run begins by itself when that is ACTIVE; tpu_scripts/status.sh shows it.'
        exit 0
        ;;
    esac
  done
}

if (( FLAG_autostart )); then
  prepare_job
elif (( ${#LINE[@]} )); then
  fail 'a line after -- is for --autostart; without it, run it later with tpu_scripts/run.sh.'
fi

for place in "${CANDIDATES[@]}"; do
  choose "$place"
  STATE=$(resource_state NONE)
  case $STATE in
    UNKNOWN) fail "gcloud does not say whether $NAME is in $ZONE: see its message above." 1 ;;
    FAILED | SUSPENDED) delete_resource || fail "$NAME, which is $STATE in $ZONE, could not be deleted." 1 ;;
    NONE) ;;
    *)
      (( ! FLAG_autostart )) || fail "$NAME is $STATE in $ZONE: delete it first, since a machine's startup is chosen when it is asked for." 1
      say "$NAME was asked for before, in $ZONE"
      if await_it; then exit 0; fi
      [[ $STATE != UNKNOWN ]] || fail "gcloud does not say any more how $NAME in $ZONE is: see its message above, and run the same command again." 1
      if [[ $STATE != NONE && $STATE != FAILED && $STATE != SUSPEND* ]] && autostarted; then
        fail "$NAME is still $STATE in $ZONE, asked for with --autostart: it stays in the queue; tpu_scripts/delete.sh takes it out." 1
      fi
      delete_resource || true
      ;;
  esac
done

if (( FLAG_autostart )); then
  queue_one
  (( ! DRY_RUN )) || exit 0
  fail "gcloud takes no candidate of $ENV_FILE: mend what its messages above say, or add candidates." 1
fi

for place in "${CANDIDATES[@]}"; do
  choose "$place"
  if ask_for_it && await_it; then
    (( DRY_RUN )) || exit 0
    say "# if that is not ACTIVE within $CREATE_MINUTES minutes"
  else
    say "$NAME: no $TYPE to be had in $ZONE"
  fi
  STATE=$(resource_state)  # a refused request may leave something too
  [[ $STATE == NONE ]] || delete_resource || true
done
(( DRY_RUN )) || fail "no candidate of $ENV_FILE could be had: run the same command again, or add candidates." 1
