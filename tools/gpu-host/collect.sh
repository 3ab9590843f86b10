#!/usr/bin/env bash
# On the GPU host: pack what the sitting has measured so far into pieces of at most 16 MB, at most 8 of them.
#
#   collect.sh OUT_DIR [WAIT_S]       waits up to WAIT_S seconds for the campaigns to end first
#
# With CACHE=1 in the environment the compile cache too, as one file cache.tar.xz (about 8 MB), for CACHE_TAR of sitting.sh.
# Put together again with `cat results.tar.xz.* | tar -xJ`; finished runs only, half-written folders stay behind.
set -euo pipefail
out=${1:?usage: collect.sh OUT_DIR [WAIT_S]}; wait_s=${2:-0}
cd "${SITTING_DIR:-/tmp/sitting}"
running() { local pid; for pid in campaign*.pid; do kill -0 "$(cat "$pid")" 2>/dev/null && return 0; done; return 1; }
end=$((SECONDS + wait_s))
while running && [ "$SECONDS" -lt "$end" ]; do sleep 1; done
mkdir -p "$out"; rm -f "$out"/results.tar.xz.*
tar --exclude='*.partial' --exclude='*.tmp' --sort=name --owner=0 --group=0 --warning=no-file-changed -cf - campaign*.log results* |
  xz -T0 -3 -c | split -b 16000000 -d -a 1 - "$out/results.tar.xz." || [ "${PIPESTATUS[0]}" -eq 1 ]
[ "${CACHE:-0}" = 0 ] || tar --warning=no-file-changed -cf - cache | xz -T0 -3 -c > "$out/cache.tar.xz" || [ "${PIPESTATUS[0]}" -eq 1 ]
pieces=("$out"/results.tar.xz.*)
if [ "${#pieces[@]}" -gt 8 ]; then
  echo "collect.sh: ${#pieces[@]} pieces in $out, more than 8; fetch them in two goes" >&2
fi
ls -l "${pieces[@]}"
running && echo "collect.sh: a campaign is still running" || echo "collect.sh: every campaign has ended"
tail -n 12 campaign*.log
