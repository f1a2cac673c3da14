#!/usr/bin/env bash
# Asks the run on every worker to save and end, and waits until it has. The TPU stays, and costs on: see delete.sh.
#
#   --minutes N     how long to wait (default 15); what is still alive then is named, not killed
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_minutes=15
parse 'minutes=' "$@"
is_number "$FLAG_minutes" || fail "--minutes $FLAG_minutes is not a number."

located
on all 'bash bertzoo_tpu/worker.sh stop' || fail 'not every worker could be asked: see the message above.' 1
end=$((SECONDS + 60 * FLAG_minutes))
while :; do
  states > "$TMP/states" || fail 'not every worker answers: see tpu_scripts/status.sh.' 1
  grep -q '^worker [0-9?]*: running' "$TMP/states" || break
  if (( SECONDS >= end )); then
    sort -k 2 -n "$TMP/states"
    fail "still running after $FLAG_minutes minutes: run the same command again, or delete the TPU." 1
  fi
  sleep "$POLL_SECONDS"
done
sort -k 2 -n "$TMP/states"
