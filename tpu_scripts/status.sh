#!/usr/bin/env bash
# The state of the queued resource, of the machine, and of the run on every worker with the last line of its log.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse '' "$@"

locate
case $STATE in
  NONE) say "$NAME: there is none; tpu_scripts/create.sh asks for it"; exit 0 ;;
  UNKNOWN) fail 'gcloud does not say: see its message above.' 1 ;;
esac
node=$(node_state)
(( DRY_RUN )) || say "$NAME: queued resource $STATE, machine $node, in $ZONE"
[[ $STATE == ACTIVE && $node == READY ]] || exit 0
states > "$TMP/states" || say 'not every worker answers'
sort -k 2 -n "$TMP/states"
