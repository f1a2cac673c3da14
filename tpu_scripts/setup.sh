#!/usr/bin/env bash
# Syncs the code, installs Python and the tested versions on every worker, and ends with a table of them.
#
#   --archive FILE  as for sync.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_archive=
parse 'archive=' "$@"
check_archive

same=(--env "$ENV_FILE")
(( ! DRY_RUN )) || same+=(--dry-run)
bash "$HERE/sync.sh" "${same[@]}" ${FLAG_archive:+--archive "$FLAG_archive"}
located
on all "bash bertzoo_tpu/worker.sh install $(quote "$EXTRAS")" || fail 'not every worker could be set up: see the message above.' 1
(( ! DRY_RUN )) || printf '# '
printf '%-8s %-10s %-10s %-6s %-10s %s\n' worker python jax chips 'free disk' bucket
on all "bash bertzoo_tpu/worker.sh check $(quote "$BUCKET")" > "$TMP/table" || fail 'not every worker answers: see the message above.' 1
sort -n "$TMP/table"
! grep -qE ' missing | NO$' "$TMP/table" || fail 'a worker lacks Python, jax or the bucket: mend that before you run.' 1
