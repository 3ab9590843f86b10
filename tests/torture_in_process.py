"""A whole campaign in one process: played engines, and a file system that fails or ends the program at any operation.

The engine's raw files are those of a stand-in run made at the start; all after them is the real code: collect, gates,
run.json, store, loop, resume.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from analysis.formats.failure import FAILURES
from runner import campaign as loop
from runner import finish, launcher
from runner import run as life
from runner.campaign import EXIT_OK, Campaign, StopFlag
from runner.config import Config, load_config
from runner.context import Measured, RunContext
from runner.display import Display
from runner.errors import EngineFailed, PreflightError, StoreError
from runner.launcher import EngineHost
from runner.plan import build_plan
from runner.store import Store
from runner.watch import Stopped
from tests.torture import LOADED, MAX_SITTINGS, Survived, Witness, write_config

KILLS, FULL_DISKS = 12, 6  # a campaign
OPERATIONS = 45  # about as many file operations as a run makes


class Killed(BaseException):
    """SIGKILL of the runner: nothing that it would still do is done."""


# -- the engine that is played

Raw = tuple[dict[str, bytes], Measured]


@cache
def raw_runs() -> dict[tuple[str, str], Raw]:
    """By (kind, arm): the raw files of a first start or a run of the stand-in engine, and what the runner measured."""
    found: dict[tuple[str, str], Raw] = {}
    collect = life.collect

    def keep(ctx: RunContext, measured: Measured) -> Any:
        files = {path.name: path.read_bytes() for path in ctx.directory.iterdir()}
        found[ctx.identity.kind, ctx.identity.arm] = files, dataclasses.replace(measured)
        return collect(ctx, measured)

    speed = {"CAMPAIGN_STANDIN_SPEED": "200"}
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch.object(life, "collect", keep),
        mock.patch.dict(os.environ, speed),
    ):
        config = load_config(write_config(Path(place), 4))
        assert sit(config, Path(place)) == EXIT_OK
    return found


Damage = Callable[[dict[str, Any], random.Random], None]


def _bench(change: Callable[[dict[str, Any], int], None]) -> Damage:
    def damage(files: dict[str, Any], rng: random.Random) -> None:
        document = json.loads(files["bench.raw.json"])
        change(document, rng.randrange(len(document["ttfts"])))
        files["bench.raw.json"] = json.dumps(document).encode()

    return damage


def _failed(document: dict[str, Any], at: int) -> None:
    document["completed"] -= 1
    document["failed"] += 1
    document["errors"][at], document["output_lens"][at] = "Service Unavailable", 0


def _short(document: dict[str, Any], at: int) -> None:
    document["output_lens"][at] -= 1
    document["total_output_tokens"] -= 1


def _nothing(document: dict[str, Any], _at: int) -> None:
    document["output_lens"] = [0] * len(document["output_lens"])
    document["total_output_tokens"] = 0


def _zero_ttft(document: dict[str, Any], at: int) -> None:
    document["ttfts"][at] = 0.0


def _lost_request(document: dict[str, Any], _at: int) -> None:
    document["completed"] -= 1


def _cut(name: str) -> Damage:
    def damage(files: dict[str, Any], rng: random.Random) -> None:
        files[name] = files[name][: rng.randrange(int(len(files[name]) * 0.8))]

    return damage


def _gone(name: str) -> Damage:
    return lambda files, _: files.pop(name) and None


def _replaced(name: str, old: bytes, new: bytes) -> Damage:
    def damage(files: dict[str, Any], _: random.Random) -> None:
        files[name], count = re.subn(old, new, files[name], flags=re.MULTILINE)
        assert count, (name, old)

    return damage


DAMAGES: dict[str, Damage] = {
    "result cut off": _cut("bench.raw.json"),
    "no result": _gone("bench.raw.json"),
    "a request failed": _bench(_failed),
    "a short answer": _bench(_short),
    "no tokens at all": _bench(_nothing),
    "a first token at once": _bench(_zero_ttft),
    "a request lost": _bench(_lost_request),
    "step trace cut off": _cut("steps.csv"),
    "no step trace": _gone("steps.csv"),
    "engine log cut off": _cut("server.log"),
    "log line renamed": _replaced("server.log", b"KV cache size", b"KV cache room"),
    "metrics cut off": _cut("metrics_after"),
    "a metric renamed": _replaced("metrics_after", b"vllm:num_preemptions_total", b"vllm:preempted_total"),
    "prefix cache hit": _replaced("metrics_after", rb"^(vllm:prefix_cache_hits_total\{.*\}) .*", rb"\1 32.0"),
}
ELSEWHERE = ("another machine", "compile cache emptied")  # before a sitting


class Player:
    """Stands in for `runner.run._engine`: raw files of a good run, or what the next fault makes of them."""

    def __init__(self, seed: int, witness: Witness, runs: int) -> None:
        self.rng, self.witness, self.runs = random.Random(seed), witness, runs
        faults = [f"failure {name}" for name in FAILURES] + [f"output: {name}" for name in DAMAGES]
        faults += ["killed"] * KILLS + ["disk full"] * FULL_DISKS + ["stopped", "interrupted"]
        self.left = self.rng.sample(faults, len(faults))
        self.played: Counter[str] = Counter()
        self.attempts = 0
        self.disk = Disk(self.rng, witness.root)
        self.stop = StopFlag()

    def new_sitting(self) -> None:
        self.stop, self.disk.fault = StopFlag(), None

    def next_fault(self, ctx: RunContext) -> str | None:
        """One of those left, so that they last about as long as the runs do."""
        valid = sum(r.kind == "run" and r.status == "valid" for r in self.witness.seen.values())
        if not self.left or self.rng.random() > len(self.left) / (len(self.left) + 0.7 * (self.runs - valid)):
            return None
        if self.left[-1].startswith("output: ") and ctx.identity.kind == "prime":
            return None  # of a load only
        fault = self.left.pop()
        self.played[fault] += 1
        return fault

    def engine(self, ctx: RunContext, measured: Measured) -> None:
        self.attempts += 1
        self.witness.never_valid.pop(ctx.identity.folder, None)  # an attempt that left no record is made again
        fault = self.next_fault(ctx) or ""
        what = fault.removeprefix("failure ").removeprefix("output: ")
        kept, before = raw_runs()[ctx.identity.kind, ctx.identity.arm]
        files: dict[str, Any] = kept | {f"metrics_{when}": text for when, text in before.metrics.items()}
        if fault.startswith("output: "):
            DAMAGES[what](files, self.rng)
        if fault.startswith("failure "):
            files = {name: data for name, data in files.items() if self.rng.random() < 0.7}
        if fault.startswith(("failure ", "output: ")):
            self.witness.never_valid[ctx.identity.folder] = fault
        if fault in ("killed", "disk full"):
            self.disk.arm(fault)
        for name, data in files.items():
            if not name.startswith("metrics_"):
                (ctx.directory / name).write_bytes(data)
        # all begin at the moment of the first that was recorded, so that no arm begins after its next
        first_ns = min(raw.moments["run_begin_ns"] for _, raw in raw_runs().values())
        measured.moments = before.moments | {"run_begin_ns": first_ns}
        begun, now = (datetime.fromisoformat(m.wall_start) for m in (before, measured))
        begun -= timedelta(microseconds=(before.moments["run_begin_ns"] - first_ns) / 1e3)
        quarter = timedelta(minutes=15)  # the log's clock must agree with it but for these
        measured.wall_start = (begun + -((begun - now) // quarter) * quarter).isoformat(timespec="milliseconds")
        client = list(before.bench_argv)
        if client:
            client[client.index("--seed") + 1] = str(ctx.identity.seed)
        measured.serve_argv, measured.bench_argv = before.serve_argv, tuple(client)
        measured.engine_environment = before.engine_environment
        measured.engine_version = before.engine_version
        measured.metrics = {n.removeprefix("metrics_"): d for n, d in files.items() if n.startswith("metrics_")}
        if fault == "interrupted":
            raise KeyboardInterrupt
        if fault == "stopped":
            self.stop.signum = signal.SIGTERM
            self.stop.event.set()
            raise Stopped
        if fault.startswith("failure "):
            raise EngineFailed("played", what)


# -- the disk that fails


class Disk:
    """Counts the operations on files below `root`; from a chosen one on the disk is full, or the program is dead."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root, self.fault, self.left = rng, str(root), None, 0
        self.fault: str | None

    def arm(self, fault: str) -> None:
        self.fault, self.left = fault, self.rng.randrange(OPERATIONS)

    def _fails(self, writes: bool) -> bool:
        """Whether this operation is not done. Raises once the program is dead."""
        if self.fault is None:
            return False
        self.left -= 1
        return self.left < 0 and (self.fault == "killed" or writes)

    def _error(self, path: Any) -> BaseException:
        return Killed() if self.fault == "killed" else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    @contextmanager
    def watched(self) -> Iterator[None]:
        def guarded(real: Callable[..., Any], writes: bool) -> Callable[..., Any]:
            def operation(path: Any, *args: Any, **options: Any) -> Any:
                if not isinstance(path, int) and not str(path).startswith(self.root):
                    return real(path, *args, **options)
                if self._fails(writes):
                    if args and isinstance(args[0], str | bytes) and self.left == -1:
                        real(path, args[0][: self.rng.randrange(len(args[0]) + 1)], **options)  # cut off
                    raise self._error(path)
                return real(path, *args, **options)

            return operation

        with ExitStack() as stack:
            for owner, names, writes in (
                (Path, ("write_text", "write_bytes", "mkdir"), True),
                (Path, ("rename", "replace", "unlink"), False),
                (os, ("fsync",), True),
            ):
                for name in names:
                    real = getattr(owner, name)
                    stack.enter_context(mock.patch.object(owner, name, guarded(real, writes)))
            yield


def remembered(convert: Callable[..., None]) -> Callable[..., None]:
    """A conversion into a Parquet file that is made once for equal input, and written as any other file."""
    made: dict[Any, bytes] = {}

    def conversion(source: Any, target: Path, *args: Any, **options: Any) -> None:
        key = source.read_bytes() if isinstance(source, Path) else source, args, tuple(options.items())
        if key not in made:
            with tempfile.TemporaryDirectory() as place:
                convert(source, Path(place, target.name), *args, **options)
                made[key] = Path(place, target.name).read_bytes()
        target.write_bytes(made[key])

    return conversion


# -- a campaign


def sit(config: Config, place: Path, **options: Any) -> int:
    """One `campaign run`; its exit status, 2 for a typed error."""
    host = EngineHost("python3", (), place / "models", place / "cache", "stand-in")
    plan = build_plan(config, ["published"])
    try:
        with Store.open(place / "results", config) as store:
            return Campaign(config, plan, store, host, None, Display(io.StringIO()), **options).run().exit_code
    except (StoreError, PreflightError):
        return 2


def torture(seed: int, runs: int) -> Survived:
    raw_runs()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        config = load_config(write_config(place, runs))
        witness = Witness(place / "results")
        player = Player(seed, witness, runs)
        sittings, code = 0, None
        with (
            mock.patch.object(life, "_engine", player.engine),
            mock.patch.object(finish, "csv_to_parquet", remembered(finish.csv_to_parquet)),
            mock.patch.object(finish, "write_requests", remembered(finish.write_requests)),
            mock.patch.object(loop, "machine_id", return_value="boot-0") as machine_id,
            mock.patch.object(launcher, "kill_marked", return_value=[]),  # nothing was started
            mock.patch.object(loop, "collect_provenance", return_value={"must_agree": {}}),
        ):
            while code != EXIT_OK or player.left:
                sittings += 1
                assert sittings < MAX_SITTINGS, f"seed {seed}: no end, exit status {code}, left {player.left}"
                player.new_sitting()
                if sittings > 1 and player.rng.random() < 0.1:
                    where = player.rng.choice(ELSEWHERE)
                    player.played[where] += 1
                    if where == "another machine":
                        machine_id.return_value = f"boot-{sittings}"
                    else:
                        shutil.rmtree(place / "cache", ignore_errors=True)
                code = _sitting(config, place, player)
                witness.look()
                if code == EXIT_OK:
                    player.left.clear()  # nothing left to play them on
        witness.verdict(config, place / "results.duckdb" if seed % LOADED == 0 else None)
    return Survived(seed, player.played, sittings, player.attempts, witness.looks)


def _sitting(config: Config, place: Path, player: Player) -> int:
    def execute(ctx: RunContext) -> Any:
        player.witness.look()
        return life.execute_run(ctx)

    with player.disk.watched():
        try:
            return sit(config, place, execute=execute, stop=player.stop)
        except Killed:
            return 128 + signal.SIGKILL
        except KeyboardInterrupt:
            return 130
