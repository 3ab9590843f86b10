#!/bin/sh
# Print the commit that a .git folder (HEAD, refs/heads, packed-refs) has checked out; nothing where it cannot be told.
#
#   git-commit.sh GIT_DIR
#
# Whether the tree was changed since cannot be told from these files, so the commit is marked `-unchecked`.
set -eu
git=$1
[ -f "$git/HEAD" ] || exit 0
head=$(cat "$git/HEAD")
case $head in
  "ref: "*)
    ref=${head#ref: }
    if [ -f "$git/$ref" ]; then head=$(cat "$git/$ref")
    elif [ -f "$git/packed-refs" ]; then head=$(awk -v ref="$ref" '$2 == ref { print $1 }' "$git/packed-refs")
    else head=; fi ;;
esac
[ -z "$head" ] || echo "$head-unchecked"
