#!/bin/sh
# Within an image build: make the virtual environment see the runner's packages and source, and nothing of the base's.
set -eu
at=/opt/campaign
site=$("$at/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
printf '%s\n' "$at/packages" "$at/source" > "$site/campaign.pth"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$at/source/pyproject.toml")
mkdir -p "$site/eager_cost-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: eager-cost\nVersion: %s\n' "$version" > "$site/eager_cost-$version.dist-info/METADATA"
printf '#!%s/venv/bin/python\nfrom runner.__main__ import main\n\nif __name__ == "__main__":\n    main()\n' "$at" > /usr/local/bin/campaign
chmod 755 /usr/local/bin/campaign "$at/source/container/entrypoint.sh"
"$at/venv/bin/python" -m compileall -q "$at/source/analysis" "$at/source/report" "$at/source/runner"
mkdir -p /campaign/models /campaign/results /campaign/out /campaign/cache
cp "$at/source/campaign.toml" /campaign/
cp -r "$at/source/examples" /campaign/
# any user may come (see entrypoint.sh); what is written must be on a volume or belong to it
chmod 1777 /campaign /campaign/models /campaign/results /campaign/out /campaign/cache
