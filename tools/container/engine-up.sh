#!/usr/bin/env bash
# Start a private Docker engine for the container tests: `eval "$(tools/container/engine-up.sh [PREFIX])"`.
#
# Debian or Ubuntu as root, with a package mirror in apt's lists. Engine, compose and buildx are unpacked below PREFIX
# (default /tmp/eager-cost-docker, 2 GB) from packages of SUITE (Debian's next release, for a compose that knows
# `gpus`), not installed; only runc, iptables, debootstrap and tini are. Also makes an image local/debian:python, Debian
# with python3 and this host's certificates, as a stand-in for the base images that a registry would give.
# May be called again. Prints the two variables that a docker client needs; engine-down.sh ends it.
set -euo pipefail
prefix=${1:-/tmp/eager-cost-docker}; suite=${SUITE:-forky}; base=bookworm
export DEBIAN_FRONTEND=noninteractive DOCKER_HOST=unix://$prefix/docker.sock DOCKER_CONFIG=$prefix/cli
mkdir -p "$prefix"/{apt/state/lists/partial,apt/cache/archives/partial,apt/parts,apt/preferences,packages,engine,cli/cli-plugins}

install_missing() {
  local missing=() name
  for name in runc iptables debootstrap tini; do dpkg -s "$name" > /dev/null 2>&1 || missing+=("$name"); done
  [ "${#missing[@]}" -eq 0 ] || { apt-get update -qq; apt-get install -y -qq --no-install-recommends "${missing[@]}"; }
}

# the first mirror that apt uses here, taken for the other release as well
mirror() { apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | sort -u | head -n 1; }

unpack_engine() {
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $suite main" > "$prefix/apt/sources.list"
  cat > "$prefix/apt/apt.conf" << CONF
Dir::Etc::sourcelist "$prefix/apt/sources.list";
Dir::Etc::sourceparts "$prefix/apt/parts";
Dir::Etc::preferencesparts "$prefix/apt/preferences";
Dir::State "$prefix/apt/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$prefix/apt/cache";
APT::Sandbox::User "root";
CONF
  (
    export APT_CONFIG=$prefix/apt/apt.conf
    apt-get update -qq
    cd "$prefix/packages" && apt-get download -qq docker.io docker-cli containerd docker-compose docker-buildx
  )
  for package in "$prefix"/packages/*.deb; do dpkg-deb -x "$package" "$prefix/engine"; done
  cp "$prefix"/engine/usr/libexec/docker/cli-plugins/docker-{compose,buildx} "$prefix/cli/cli-plugins/"
  ln -sf "$(command -v tini-static || command -v tini)" "$prefix/engine/usr/bin/docker-init"
}

start_engine() {
  rm -f "$prefix/docker.pid"
  PATH=$prefix/engine/usr/bin:$prefix/engine/usr/sbin:$PATH setsid nohup dockerd --data-root "$prefix/root" \
    --exec-root "$prefix/exec" --pidfile "$prefix/docker.pid" -H "unix://$prefix/docker.sock" \
    --cgroup-parent /eager-cost > "$prefix/dockerd.log" 2>&1 < /dev/null &
  for _ in $(seq 150); do "$docker" version > /dev/null 2>&1 && return; sleep 0.2; done
  tail -n 20 "$prefix/dockerd.log" >&2; return 1
}

make_base() {
  local tree=$prefix/tree
  rm -rf "$tree"
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip "$base" "$tree" "$(mirror)" > "$prefix/debootstrap.log"
  cp /usr/local/share/ca-certificates/*.crt "$tree/usr/local/share/ca-certificates/" 2> /dev/null || true
  chroot "$tree" update-ca-certificates > /dev/null 2>&1
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' > "$tree/etc/pip.conf"
  rm -rf "$tree"/var/cache/apt/archives/*.deb
  tar -C "$tree" -c --numeric-owner . | "$docker" import -c 'CMD ["bash"]' - local/debian:python > /dev/null
  rm -rf "$tree"
}

docker=$prefix/engine/usr/bin/docker
{
  install_missing
  [ -x "$prefix/engine/usr/sbin/dockerd" ] || unpack_engine
  "$docker" version > /dev/null 2>&1 || start_engine
  "$docker" image inspect local/debian:python > /dev/null 2>&1 || make_base
} >&2
echo "export DOCKER_HOST=$DOCKER_HOST DOCKER_CONFIG=$DOCKER_CONFIG PATH=$prefix/engine/usr/bin:\$PATH"
