#!/usr/bin/env bash
# Install the engine's CPU build for `make test-engine`; does nothing when the list is installed already.
#
#   install_cpu_engine.sh VENV_DIR [UV]      CPython 3.11 on x86-64 Linux; 3 GB of downloads, 6 GB of disk
#
# requirements/engine-cpu.txt is complete, so dependencies are not resolved again. The build's command looks itself up
# under the name "vllm"; a metadata folder of that name answers it. Byte-compiling here halves every later start.
set -euo pipefail
venv=${1:?usage: install_cpu_engine.sh VENV_DIR [UV]}; uv=${2:-uv}
root=$(cd "$(dirname "$0")/.." && pwd)
list=$root/requirements/engine-cpu.txt
sum=$(sha256sum < "$list" | cut -d' ' -f1)
[ "$(cat "$venv/installed" 2>/dev/null)" != "$sum" ] || exit 0
python=$(command -v "${ENGINE_CPU_PYTHON:-python3.11}") || {
  echo "install_cpu_engine.sh: python3.11 is needed for the CPU engine; install it or name one in ENGINE_CPU_PYTHON" >&2; exit 2
}
rm -rf "$venv"
"$python" -m venv --without-pip "$venv"
"$uv" pip install -q --python "$venv/bin/python" --no-deps --require-hashes --only-binary=:all: -r "$list"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-0.23.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.23.0+cpu\n' > "$site/vllm-0.23.0+cpu.dist-info/METADATA"
"$venv/bin/python" -m compileall -q -j 0 "$site" > /dev/null 2>&1 || true # a few packages ship templates that are no Python
echo "$sum" > "$venv/installed"
