#!/usr/bin/env bash
# The end of the run's log.
#
#   --worker N|all  whose (default 0: the only one that tells the progress)
#   --lines N       how much (default 50)
#   --follow        goes on until Ctrl-C
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
FLAG_worker=0 FLAG_lines=50 FLAG_follow=0
parse 'worker= lines= follow' "$@"
[[ $FLAG_worker =~ ^([0-9]+|all)$ ]] || fail "--worker $FLAG_worker is neither a number nor all."
is_number "$FLAG_lines" || fail "--lines $FLAG_lines is not a number."

located
follow=''
(( ! FLAG_follow )) || follow=' follow'
on "$FLAG_worker" "bash bertzoo_tpu/worker.sh tail $FLAG_lines$follow" || fail 'no log was to be had: see the message above.' 1
