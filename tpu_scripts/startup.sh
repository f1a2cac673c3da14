# shellcheck shell=bash
# What a TPU VM does at every boot after `create.sh --autostart`: fetches the job from the bucket and runs its line. create.sh
# puts JOB (its address), LOGIN (whose home it runs in) and EXTRAS before this text.
set -euo pipefail
: "${JOB:?}" "${LOGIN:?}" "${EXTRAS:?}"
export HOME=${HOME:-/root} PATH=$PATH:/snap/bin

# The same user as of later commands by ssh, so that they find the run; ssh keys are added to it when they come.
id -u "$LOGIN" > /dev/null 2>&1 || useradd --create-home --shell /bin/bash "$LOGIN"

sudo -u "$LOGIN" -H env JOB="$JOB" EXTRAS="$EXTRAS" bash -s <<'AS_USER'
set -euo pipefail
export PATH=$PATH:/snap/bin
cd
(umask 077; mkdir -p bertzoo_tpu/job)
again() {  # at boot the network may not be there yet
  local i
  for i in 1 2 3 4 5 6 7 8 9 10; do
    if "$@"; then return; fi
    sleep "${BERTZOO_BACKOFF_SECONDS:-30}"
  done
  echo "error: gave up after $i times: $*" >&2
  exit 1
}
again gcloud storage cp "$JOB/bertzoo.tgz" "$JOB/line" "$JOB/env" bertzoo_tpu/job/
chmod 600 bertzoo_tpu/job/env
tar -xzOf bertzoo_tpu/job/bertzoo.tgz tpu_scripts/worker.sh > bertzoo_tpu/worker.sh
bash bertzoo_tpu/worker.sh unpack bertzoo_tpu/job/bertzoo.tgz
again bash bertzoo_tpu/worker.sh install "$EXTRAS"
bash bertzoo_tpu/worker.sh start
AS_USER
