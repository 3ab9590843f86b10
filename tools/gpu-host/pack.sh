#!/usr/bin/env bash
# Pack the engine, the runner, the model shapes and this source tree for a GPU host that has no network.
#
#   pack.sh OUT_DIR [UV] [--project-only]
#
# OUT_DIR/wheels.00, wheels.01, ...  engine and runner packages, at most PART_MIB (59) MiB each; about 5 minutes
# OUT_DIR/project.tar.xz             source tree as git lists it, model shapes, tokenizer; a second, so that a changed
#                                    source needs `--project-only` alone
# OUT_DIR/SHA256SUMS                 checked by unpack.sh
#
# The host must have CPython 3.12, torch 2.11.0+cu130, triton 3.6.0, numpy and a C compiler. Wheels are those of
# requirements/engine.txt and run.txt, hash-checked and unmodified, less files that a dense bf16 model on Hopper never
# loads: FlashAttention 2, the mixture-of-experts kernels, country-name translations, Mistral's vocabularies, static
# libraries, tests.
set -euo pipefail
out=${1:?usage: pack.sh OUT_DIR [UV] [--project-only]}; uv=${2:-uv}; mode=${3:-}
part_mib=${PART_MIB:-59}
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
mkdir -p "$out"; out=$(cd "$out" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

pack_project() {
  mkdir -p "$work/p/project" "$work/p/models"
  git -C "$root" ls-files -z --cached --others --exclude-standard -- . ':!results' |
    (cd "$root" && xargs -0 sh -c 'for f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done' sh) |
    tar -C "$root" --null -T - -cf - | tar -C "$work/p/project" -xf -
  local commit; commit=$(git -C "$root" rev-parse HEAD)
  [ -z "$(git -C "$root" status --porcelain -- . ':!results')" ] || commit="$commit-dirty"
  echo "$commit" > "$work/p/project/GIT_COMMIT"
  python3 "$root/tools/make_models.py" "$work/p/models" > /dev/null
  # what the wheels must hold, for unpack.sh
  for side in engine runner; do "${side}_list" | sed -n 's/^\([a-z0-9._-]*==[^ ;\\]*\).*/\1/p' > "$work/p/project/$side.packages"; done
  tar -C "$work/p" --sort=name --owner=0 --group=0 -cf - . | xz -T0 -6 -c > "$out/project.tar.xz"
}

# requirements/engine.txt cut down to the names in packages.txt, hashes kept
engine_list() {
  awk 'FNR==NR { if ($1 !~ /^#/ && NF) want[$1]=1; next }
       /^[a-z0-9]/ { split($1, name, "=="); keep = name[1] in want; seen[name[1]]=1 }
       keep && !/^ *#/ { print }
       END { for (n in want) if (!(n in seen)) { print "packages.txt: " n " is not in engine.txt" > "/dev/stderr"; exit 1 } }' \
    "$here/packages.txt" "$root/requirements/engine.txt"
}

# requirements/run.txt without the report's statistics, which run elsewhere, and the Docker client: servers are processes here
runner_list() {
  awk '/^[a-z0-9]/ { keep = !/sys_platform/ && !/^(numpy|scipy|docker|requests|urllib3|certifi|charset-normalizer|idna)==/ } keep' \
    "$root/requirements/run.txt"
}

pack_wheels() {
  local side list
  for side in engine runner; do
    list=$work/$side.txt
    "${side}_list" > "$list"
    nice "$uv" pip install -q --no-deps --require-hashes --only-binary=:all: --link-mode copy --target "$work/w/$side" \
      --python-version 3.12 --python-platform x86_64-manylinux_2_39 -r "$list"
    find "$work/w/$side" -type d \( -name __pycache__ -o -name tests \) -prune -exec rm -rf {} +
    rm -rf "$work/w/$side/bin"
  done
  rm -f "$work"/w/engine/vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so "$work"/w/engine/vllm/_moe_C.abi3.so
  rm -rf "$work"/w/engine/pycountry/locales "$work"/w/engine/mistral_common/data
  find "$work/w" -name '*.a' -delete
  rm -f "$out"/wheels.*
  tar -C "$work/w" --sort=name --owner=0 --group=0 -cf - . | nice xz -T0 -9 -c | split -b "${part_mib}M" -d -a 2 - "$out/wheels."
}

[ "$mode" = --project-only ] || pack_wheels
pack_project
(cd "$out" && sha256sum wheels.* project.tar.xz > SHA256SUMS && ls -l)
