#!/usr/bin/env bash
# On a host with two GPUs: a whole sitting in the background, returned from at once.
#
#   two_gpus.sh PARTS_DIR RESUME_TAR|- SECONDS 'STEPS OF GPU 0' 'STEPS OF GPU 1' [campaign run options ...]
#   e.g. two_gpus.sh /tmp/parts - 1600 'published,mechanism:32b.sustained.r2 published:32b.sporadic.r1' \
#          'published,mechanism:7b.*.r2 plain:7b.sustained.r2:270 sweep:7b.sustained.r2:190 alone:neighbour:7b.*.r4'
#
# Steps, one after the other on each GPU:
#   SUITES:BLOCKS         these blocks of these suites, as far as they fit into the time that is left
#   alone:SUITES:BLOCKS   the same, once the other GPU has ended its steps
#   plain:BLOCKS:S        these blocks of the suites published, mechanism and loops as a plain loop (plain_loop.py), if S seconds are left
#   sweep:BLOCKS:S        the same as vLLM's own sweep, arms graphs and eager
#
# First of all one GPU does, alone and for both, the first starts that the first of its steps needs: two at once would
# disturb each other and bear one name. Nothing is started that cannot end within SECONDS. Everything else is as in
# sitting.sh, which does the work (variables too); follow it with collect.sh, and merge results-0 and results-1 with
# tools/merge_results.py.
set -euo pipefail
usage="usage: two_gpus.sh PARTS_DIR RESUME_TAR|- SECONDS 'STEPS OF GPU 0' 'STEPS OF GPU 1' [campaign run options ...]"
parts=${1:?$usage}; resume=${2:?$usage}; seconds=${3:?$usage}; steps=("${4:?$usage}" "${5:?$usage}")
here=$(cd "$(dirname "$0")" && pwd); base=${SITTING_DIR:-/tmp/sitting}
set -f  # blocks are patterns of the campaign's, not of files here
for step in ${steps[*]}; do
  [[ $step =~ ^(alone:[^:]+:[^:]+|(plain|sweep):[^:]+:[0-9]+|[^:]+:[^:]+)$ && ! $step =~ ^(alone|plain|sweep):[^:]+$ ]] || {
    echo "two_gpus.sh: step '$step' is none of SUITES:BLOCKS, alone:SUITES:BLOCKS, plain:BLOCKS:SECONDS, sweep:BLOCKS:SECONDS" >&2; exit 2; }
done
if [ -z "${TWO_GPUS_END:-}" ]; then  # the call itself: start this file again in a session of its own
  mkdir -p "$base"
  TWO_GPUS_END=$(($(date +%s) + seconds)) setsid nohup "$0" "$@" > "$base/campaign-all.log" 2>&1 < /dev/null &
  echo $! > "$base/campaign-all.pid"
  echo "two_gpus.sh: pid $!, for $seconds s, logs $base/campaign-*-all.log"
  exit
fi
shift 5; options=("$@"); half=$((($(nproc) + 1) / 2))
cpus=("0-$((half - 1))" "$(($(nproc) - half))-$(($(nproc) - 1))")

left() { echo $((TWO_GPUS_END - $(date +%s))); }

# GPU SUITES BLOCKS [OPTION]: waits for its end; what fails or does not fit stops nothing that comes after it
campaign() {
  [ "$(left)" -gt 30 ] || return 0
  WORKER=$1 "$here/sitting.sh" "$parts" "$resume" --gpu "$1" --cpus "${cpus[$1]}" --suite "$2" --blocks "$3" \
    --time-budget "$(left)s" "${@:4}" "${options[@]}" || return 0
  resume=-
  while kill -0 "$(cat "$base/campaign-$1.pid")" 2> /dev/null; do sleep 0.5; done
  cat "$base/campaign-$1.log" >> "$base/campaign-$1-all.log"
}

# GPU WAY BLOCKS SECONDS
loop() {
  [ "$(left)" -gt "$4" ] || return 0
  local arms=graphs,eager; [ "$2" = sweep ] || arms+=,graphs_trimmed
  (cd "$base/project" && timeout "$(left)" "$base/venv/bin/python" tools/gpu-host/plain_loop.py --way "$2" --arms "$arms" \
    --suite published,mechanism,loops --blocks "$3" --results "$base/results-$1" --engine-python "$(command -v "${ENGINE_PYTHON:-python3}")" \
    --engine-path "$base/engine" --models "$base/models" --cache "$base/cache" --gpu "$1" --cpus "${cpus[$1]}" "${options[@]}") \
    >> "$base/campaign-$1-all.log" 2>&1 || true
}

# GPU: its steps in order
worker() {
  local gpu=$1 step kind rest
  for step in ${steps[$gpu]}; do
    kind=${step%%:*} rest=${step#*:}
    case $kind in
      plain | sweep) loop "$gpu" "$kind" "${rest%:*}" "${rest##*:}" ;;
      alone)
        until [ -e "$base/ended-$((1 - gpu))" ] || [ "$(left)" -le 75 ]; do sleep 0.5; done
        [ ! -e "$base/ended-$((1 - gpu))" ] || campaign "$gpu" "${rest%%:*}" "${rest#*:}" ;;
      *) campaign "$gpu" "$kind" "$rest" ;;
    esac
  done
  touch "$base/ended-$gpu"
}

rm -f "$base"/ended-0 "$base"/ended-1
for gpu in 1 0; do
  for step in ${steps[$gpu]}; do
    case $step in plain:* | sweep:*) continue ;; esac
    step=${step#alone:}
    campaign "$gpu" "${step%%:*}" "${step#*:}" --primes-only
    [ -e "$base/results-$((1 - gpu))" ] || [ ! -e "$base/results-$gpu" ] || cp -r "$base/results-$gpu" "$base/results-$((1 - gpu))"
    break 2
  done
done
worker 1 &
worker 0 &
wait
