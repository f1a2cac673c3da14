#!/usr/bin/env bash
# Deletes the TPU and what --autostart put into the bucket. Checkpoints in the bucket stay; what is on the machine's disk goes.
#
#   --yes           without asking
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_yes=0
parse 'yes' "$@"

locate
[[ $STATE != UNKNOWN ]] || fail 'gcloud does not say whether there is a TPU: see its message above.' 1
if [[ $STATE == NONE ]]; then
  say "there is no TPU called $NAME"
else
  if (( ! FLAG_yes && ! DRY_RUN )); then
    printf '%s' "Delete $NAME ($TYPE in $ZONE, $STATE) with everything on its disks? [y/N] "
    read -r answer || answer=''
    [[ $answer == y || $answer == yes ]] || fail 'nothing was deleted.' 1
  fi
  delete_resource || fail "$NAME could not be deleted: see gcloud's message." 1
fi
for bucket in $(buckets); do  # it holds keys
  run gcloud storage rm --recursive "$bucket/jobs/$NAME" 2> /dev/null || true
done
