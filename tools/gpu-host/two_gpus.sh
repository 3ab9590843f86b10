#!/usr/bin/env bash
# On a host with two GPUs: a whole sitting in the background, returned from at once.
#
#   two_gpus.sh PARTS_DIR RESUME_TAR|- SECONDS REPETITION [campaign run options ...]
#
# GPU 1: the short 7B eager run alone on the host, then the 7B blocks of this repetition, two short runs beside GPU 0, the
# instruments' pairs, the 7B sustained block again as a plain loop and as vLLM's sweep, and the short run alone again.
# GPU 0: once that first short run is over, the 32B sustained block with every arm, then 32B sporadic.
# Nothing is started that cannot end within SECONDS. Everything else is as in sitting.sh, which does the work (variables
# too); follow it with collect.sh, and merge results-0 and results-1 with tools/merge_results.py.
set -euo pipefail
usage='usage: two_gpus.sh PARTS_DIR RESUME_TAR|- SECONDS REPETITION [campaign run options ...]'
parts=${1:?$usage}; resume=${2:?$usage}; seconds=${3:?$usage}; repetition=${4:?$usage}
here=$(cd "$(dirname "$0")" && pwd); base=${SITTING_DIR:-/tmp/sitting}
if [ -z "${TWO_GPUS_END:-}" ]; then  # the call itself: start this file again in a session of its own
  mkdir -p "$base"
  TWO_GPUS_END=$(($(date +%s) + seconds)) setsid nohup "$0" "$@" > "$base/campaign-all.log" 2>&1 < /dev/null &
  echo $! > "$base/campaign-all.pid"
  echo "two_gpus.sh: pid $!, for $seconds s, logs $base/campaign-*-all.log"
  exit
fi
shift 4; options=("$@"); half=$((($(nproc) + 1) / 2))
cpus=("0-$((half - 1))" "$(($(nproc) - half))-$(($(nproc) - 1))")

left() { echo $((TWO_GPUS_END - $(date +%s))); }

# WORKER SUITE BLOCKS: waits for its end; what fails or does not fit stops nothing that comes after it
step() {
  [ "$(left)" -gt 30 ] || return 0
  WORKER=$1 "$here/sitting.sh" "$parts" "$resume" --gpu "$1" --cpus "${cpus[$1]}" --suite "$2" --blocks "$3" \
    --time-budget "$(left)s" "${options[@]}" || return 0
  resume=-
  while kill -0 "$(cat "$base/campaign-$1.pid")" 2> /dev/null; do sleep 0.5; done
  cat "$base/campaign-$1.log" >> "$base/campaign-$1-all.log"
}

# WAY ARMS SECONDS: the repetition's 7B sustained block on GPU 1, if that time is left; options as sitting.sh gives them
loop() {
  [ "$(left)" -gt "$3" ] || return 0
  (cd "$base/project" && timeout "$(left)" "$base/venv/bin/python" tools/gpu-host/plain_loop.py --way "$1" --arms "$2" \
    --suite published,mechanism --blocks "7b.sustained.r$repetition" --results "$base/results-1" --engine-python "$(command -v "${ENGINE_PYTHON:-python3}")" \
    --engine-path "$base/engine" --models "$base/models" --cache "$base/cache" --gpu 1 --cpus "${cpus[1]}" "${options[@]}") \
    >> "$base/campaign-1-all.log" 2>&1 || true
}

worker_1() {
  step 1 neighbour '7b.sustained_short.r1'
  step 1 published,mechanism "7b.*.r$repetition"
  step 1 neighbour '7b.sustained_short.r[23]'
  step 1 overhead '32b.*'
  loop plain graphs,eager,graphs_trimmed 270
  loop sweep graphs,eager 190
  while kill -0 "$1" 2> /dev/null && [ "$(left)" -gt 75 ]; do sleep 0.5; done
  step 1 neighbour '7b.sustained_short.r4'
}

worker_0() {
  local waited=0
  until compgen -G "$base/results-1/runs/7b.eager.sustained_short.r1.p*a?" > /dev/null || [ $((waited++)) -ge 400 ]; do sleep 0.5; done
  step 0 published,mechanism "32b.sustained.r$repetition"
  step 0 published "32b.sporadic.r1"
}

worker_0 & worker_1 $!
wait
