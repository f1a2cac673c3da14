#!/usr/bin/env bash
# Brings the code as it is here, uncommitted changes of tracked files included, to every worker: ~/bertzoo_tpu/code.
#
#   --archive FILE  an archive made before, in place of the code as it is now
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_archive=
parse 'archive=' "$@"
check_archive
if [[ -n $FLAG_archive ]]; then
  run cp "$FLAG_archive" "$TMP/bertzoo.tgz" || fail "--archive $FLAG_archive cannot be read: leave it out to send the code as it is."
else
  pack
fi
located
to_all "$TMP/bertzoo.tgz" '' || fail 'the code could not be copied to all workers: see the message above.' 1
on all "mkdir -p bertzoo_tpu && tar -xzOf bertzoo.tgz tpu_scripts/worker.sh > bertzoo_tpu/worker.sh \
&& bash bertzoo_tpu/worker.sh unpack bertzoo.tgz" || fail 'the code could not be unpacked on all workers: see the message above.' 1
