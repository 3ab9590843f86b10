#!/usr/bin/env bash
# On the GPU host: unpack (once), then start a whole sitting in the background and return at once.
#
#   sitting.sh PARTS_DIR RESUME_TAR|- [campaign run options ...]
#   e.g. sitting.sh /tmp/parts - --suite published --blocks '7b.*' --time-budget 25m
#
# RESUME_TAR: an archive of one results folder from earlier sittings (give `-` for none); blocks done there are skipped.
# CACHE_TAR, a variable: an archive of the folder cache of earlier sittings; arms compiled there need no first start.
# Everything lives in SITTING_DIR (/tmp/sitting): engine, runner, models, cache, results, campaign.log. ENGINE_PYTHON
# (python3) is the Python that has torch. Follow the sitting with `tail -f SITTING_DIR/campaign.log`, end it early with
# `kill $(cat SITTING_DIR/campaign.pid)`: it stops the engine and leaves the results resumable.
#
# Several GPUs: one call each, with WORKER set to a letter or number of its own and `--gpu`, `--cpus` and `--blocks`
# (no block twice) among the options. A worker has its own results-WORKER and campaign-WORKER.log; run folders of
# different blocks never collide, so the results merge by copying.
set -euo pipefail
usage='usage: sitting.sh PARTS_DIR RESUME_TAR|- [campaign run options ...]'
parts=${1:?$usage}; resume=${2:?$usage}; shift 2
base=${SITTING_DIR:-/tmp/sitting}; python=$(command -v "${ENGINE_PYTHON:-python3}")
here=$(cd "$(dirname "$0")" && pwd)
suffix=${WORKER:+-$WORKER}; results=$base/results$suffix; log=$base/campaign$suffix.log; pid=$base/campaign$suffix.pid
if [ -f "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; then
  echo "sitting.sh: a sitting is under way (pid $(cat "$pid"), $log); wait for it or end it first" >&2; exit 2
fi
mkdir -p "$base"
sums=$(sha256sum "$parts/SHA256SUMS" | cut -d' ' -f1)
if [ "$(cat "$base/unpacked" 2>/dev/null)" != "$sums" ]; then
  "$here/unpack.sh" "$parts" "$base" "$python"
  echo "$sums" > "$base/unpacked"
fi
if [ "$resume" != - ]; then
  mkdir -p "$results"
  tar -C "$results" --strip-components=1 -xf "$resume"
fi
if [ -n "${CACHE_TAR:-}" ] && [ ! -d "$base/cache" ]; then tar -C "$base" -xf "$CACHE_TAR"; fi
cd "$base/project"
setsid nohup "$base/venv/bin/campaign" run --results "$results" --engine-python "$python" --engine-path "$base/engine" \
  --models "$base/models" --cache "$base/cache" "$@" > "$log" 2>&1 < /dev/null &
echo $! > "$pid"
sleep 2
echo "sitting.sh: pid $(cat "$pid"), log $log, results $results"
tail -n 5 "$log"
