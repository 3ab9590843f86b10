#!/bin/sh
# Run a command as the user who owns the results, never as root by accident.
#
# Started as another user than root (`docker run --user`, Kubernetes, Apptainer): the command is run as it is.
# Started as root: it becomes the owner of results/, or of out/ where that is root's (on the host: whoever made the
# checkout), takes along the group of the Docker socket where one is mounted, and gives up every privilege. Where both
# belong to root, the host is used as root (or its engine is rootless): it stays root, without capabilities.
set -eu
[ "$#" -gt 0 ] || set -- campaign --help
case $1 in
  -* | plan | run | doctor | fetch | status | validate | load | report | check | advise) set -- campaign "$@" ;;
esac
export HOME=/campaign/cache/home USER=campaign LOGNAME=campaign
if [ "$(id -u)" -ne 0 ]; then
  mkdir -p "$HOME" 2>/dev/null || export HOME=/tmp
  exec "$@"
fi
owner=0:0
for folder in /campaign/results /campaign/out; do
  [ "$owner" != 0:0 ] || owner=$(stat -c %u:%g "$folder")
done
# what Docker makes for root: folders of the host that were missing, and volumes
chown "$owner" /campaign/results /campaign/out 2> /dev/null || true # (mounted read-only)
for folder in /campaign/models /campaign/cache; do
  [ "$(stat -c %u:%g "$folder")" = "$owner" ] || chown -R "$owner" "$folder"
done
groups=--clear-groups
socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
socket=${socket#unix://}
[ ! -S "$socket" ] || groups="--groups=$(stat -c %g "$socket")"
mkdir -p "$HOME" && chown "$owner" "$HOME"
exec setpriv --reuid="${owner%:*}" --regid="${owner#*:}" "$groups" --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
