#!/usr/bin/env bash
# Starts a line on every worker, detached: close the laptop if you like.
#
#   tpu_scripts/run.sh -- python -m bertzoo_jax.pretrain --config configs/bert.py:base --corpus gs://… --workdir gs://…
#
# The line runs in ~/bertzoo_tpu/code. Its output is in ~/bertzoo_tpu/run/log of each worker and, copied every minute, in
# WORKDIR/logs if the workdir is in a bucket, else in BUCKET/logs/NAME. WANDB_API_KEY and HF_TOKEN go along if they are set here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
parse '--' "$@"

check_line
located
write_job 0
if (( ! DRY_RUN )); then
  states > "$TMP/states" || fail 'not every worker answers: see tpu_scripts/status.sh.' 1
  ! grep -E '^worker [0-9?]+: running' "$TMP/states" || fail "a run is alive on $NAME: stop it first with tpu_scripts/stop.sh." 1
  ! grep -q 'not set up$' "$TMP/states" || fail "$NAME is not set up: run tpu_scripts/setup.sh first." 1
else
  states
fi
to_all "$TMP/line" "$TMP/env" bertzoo_tpu/job/ || fail 'the line could not be copied to all workers: see the message above.' 1
if ! on all 'bash bertzoo_tpu/worker.sh start'; then
  # All or none: the hosts of a slice wait for each other.
  on all 'bash bertzoo_tpu/worker.sh kill' || true
  fail 'the line was not started on all workers, and is stopped on all: see the message above.' 1
fi
