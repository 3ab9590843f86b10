#!/usr/bin/env bash
# End the engine that engine-up.sh started. Its images stay below PREFIX for the next time.
#
#   engine-down.sh [PREFIX]
set -euo pipefail
prefix=${1:-/tmp/eager-cost-docker}
pid=$(cat "$prefix/docker.pid" 2> /dev/null) || exit 0
kill "$pid" 2> /dev/null || exit 0
for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || exit 0; sleep 0.2; done
echo "engine-down.sh: dockerd (process $pid) does not end" >&2; exit 1
