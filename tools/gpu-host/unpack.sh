#!/usr/bin/env bash
# On the GPU host: unpack what pack.sh made and set up the runner's own environment.
#
#   unpack.sh PARTS_DIR BASE_DIR [PYTHON]
#
# BASE_DIR/engine   packages the engine adds to PYTHON's own (give it to `campaign run --engine-path`)
# BASE_DIR/runner   the runner's packages; BASE_DIR/venv sees these and the source alone, nothing of PYTHON's
# BASE_DIR/project  the source; BASE_DIR/models the model shapes; BASE_DIR/venv/bin/campaign the command
set -euo pipefail
usage='usage: unpack.sh PARTS_DIR BASE_DIR [PYTHON]'
parts=$(cd "${1:?$usage}" && pwd); base=${2:?$usage}; python=${3:-python3}
mkdir -p "$base"; base=$(cd "$base" && pwd)
(cd "$parts" && sha256sum -c --quiet SHA256SUMS) || { echo "unpack.sh: parts in $parts are missing or damaged; carry them over again" >&2; exit 1; }
rm -rf "$base/engine" "$base/runner" "$base/project" "$base/models" "$base/venv"
cat "$parts"/wheels.* | xz -dc -T0 | tar -x -C "$base"
xz -dc "$parts/project.tar.xz" | tar -x -C "$base"
"$python" - "$base" <<'CHECK'
import re, sys
from importlib.metadata import distributions
from pathlib import Path
for side in ("engine", "runner"):
    found = {re.sub(r"[-_.]+", "-", d.name).lower() + "==" + d.version for d in distributions(path=[f"{sys.argv[1]}/{side}"])}
    lacking = set((Path(sys.argv[1]) / f"project/{side}.packages").read_text().split()) - found
    if lacking:
        sys.exit(f"unpack.sh: wheels and project do not fit, {side} lacks {', '.join(sorted(lacking))}; pack the wheels anew")
CHECK
# byte-compiled now, so that no measured start pays for it
"$python" -m compileall -q -j 0 "$base/engine" "$base/runner" > /dev/null 2>&1 || true
"$python" -m venv --without-pip "$base/venv"
site=$("$base/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
printf '%s\n' "$base/runner" "$base/project" > "$site/campaign.pth"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$base/project/pyproject.toml")
mkdir -p "$site/eager_cost-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: eager-cost\nVersion: %s\n' "$version" > "$site/eager_cost-$version.dist-info/METADATA"
cat > "$base/venv/bin/campaign" <<SCRIPT
#!$base/venv/bin/python
from runner.__main__ import main

if __name__ == "__main__":  # not in the processes of a load
    main()
SCRIPT
chmod +x "$base/venv/bin/campaign"
