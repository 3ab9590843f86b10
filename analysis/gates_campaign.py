"""Gates that need several runs: does each run belong to its arm and its block, and are arms the same throughout."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

from analysis.formats.run_record import Reason, RunRecord
from analysis.gate import gates_in

MEASUREMENTS = ("requests.parquet", "steps.parquet", "telemetry.parquet", "bench.log.gz")
Finding = tuple[RunRecord, str]  # a run and what was seen


@dataclass(frozen=True)
class Campaign:
    """Runs and primes that passed the gates of one run; the configuration they were run with; by sitting, what runs
    must share to be pooled."""

    records: tuple[RunRecord, ...]
    configuration: Mapping[str, Any]
    must_agree: Mapping[str, str]

    def passes(self) -> Iterator[dict[str, RunRecord]]:
        """Of each pass of each block, by arm, the last attempt."""
        found: dict[tuple[str | None, int], dict[str, RunRecord]] = defaultdict(dict)
        for record in sorted(self.records, key=lambda r: r.attempt):
            if record.kind == "run":
                found[record.block_id, record.pass_number][record.arm] = record
        yield from found.values()

    @property
    def pinned(self) -> bool:
        return bool(self.configuration.get("engine", {}).get("pin_kv_blocks"))

    def other_pools(self) -> Iterator[Finding]:
        """Runs with another number of KV blocks than the arm's earliest run of the setup."""
        first: dict[tuple[Any, ...], RunRecord] = {}
        for run in sorted(self.records, key=lambda r: (r.wall_start, r.folder)):
            if run.kind == "run" and run.num_gpu_blocks is not None:
                earliest = first.setdefault((run.model, run.arm, self.setup(run)), run)
                if earliest.num_gpu_blocks != run.num_gpu_blocks:
                    yield run, f"{run.num_gpu_blocks} blocks, {earliest.folder} has {earliest.num_gpu_blocks}"

    def setup(self, record: RunRecord) -> tuple[Any, ...]:
        """Runs that differ in it are never pooled."""
        gpu = record.gpu and (record.gpu.name, record.gpu.memory_total_mib)
        return gpu, record.weights, record.engine.simulated, self.must_agree.get(record.sitting_id)


def block_on_several_gpus(c: Campaign) -> Iterator[Finding]:
    """All arms of a block ran on one GPU of one machine."""
    for runs in c.passes():
        places = {(r.machine_id, r.gpu.uuid if r.gpu else None) for r in runs.values()}
        if len(places) > 1:
            yield from ((run, f"pass {run.pass_number} ran on {len(places)} machines or GPUs") for run in runs.values())


def order_disagrees(c: Campaign) -> Iterator[Finding]:
    """In a sitting, a pass's runs began in the order of their places in the block. A later attempt may come after any
    other run, as may, in a later sitting, a first one whose folder could not be read any more."""
    for runs in c.passes():
        placed = sorted((r.order_in_block, r.arm, r) for r in runs.values() if r.order_in_block is not None)
        for (_, _, a), (_, _, b) in combinations(placed, 2):
            late = a.timeline.run_begin_ns > b.timeline.run_begin_ns
            if late and a.attempt == 1 and a.sitting_id == b.sitting_id:
                yield from ((run, f"{a.arm} began after {b.arm}, before which it stands") for run in (a, b))


def not_as_configured(c: Campaign) -> Iterator[Finding]:
    """A run's campaign, command line and load are those of campaign.json, of its arm and of its profile."""
    name = c.configuration.get("campaign", {}).get("name")
    arms, profiles = c.configuration.get("arms", {}), c.configuration.get("profiles", {})
    models = c.configuration.get("models", {})
    common = _fixed(c.configuration.get("engine", {}).get("flags", ()))
    telling = set(chain.from_iterable(_fixed(arm["flags"]) for arm in arms.values()))
    for run in c.records:
        if name is not None and run.campaign != name:
            yield run, f"it says campaign {run.campaign}, campaign.json {name}"
        if run.arm in arms:
            wanted = telling & {*common, *_fixed(arms[run.arm]["flags"])}
            if run.kind == "prime":  # starts without a number of KV blocks, to read the natural one
                wanted = {flag for flag in wanted if not flag.startswith("--num-gpu-blocks-override")}
            if wrong := wanted ^ (telling & set(run.serve_argv)):
                yield run, f"arm {run.arm}: {', '.join(sorted(wrong))} should be given or should not"
        directory = models.get(run.model, {}).get("directory")
        if directory and not any(f"/{word}".endswith(f"/{directory}") for word in run.serve_argv):
            yield run, f"model {run.model}: {directory} is not in the server's command"
        profile = profiles.get(run.profile, {}) if run.profile else {}
        for key in ("num_prompts", "concurrency", "input_tokens", "output_tokens", "range_ratio"):
            asked = profile.get("prompts" if key == "num_prompts" else key)
            if asked is not None and getattr(run, key) != asked:
                yield run, f"profile {run.profile}: {key} is {getattr(run, key)}, configured {asked}"


def kv_not_matched(c: Campaign) -> Iterator[Finding]:
    """An arm whose KV blocks are those of another arm has as many as that arm."""
    for runs in c.passes():
        for run in runs.values():
            flags = " ".join(c.configuration.get("arms", {}).get(run.arm, {}).get("flags", ()))
            found = re.search(r"\{(\w+)\.num_gpu_blocks\}", flags)
            base = runs.get(found[1]) if found else None
            if base and base.num_gpu_blocks != run.num_gpu_blocks:
                yield run, f"{run.num_gpu_blocks} blocks, {base.arm} in the same pass {base.num_gpu_blocks}"


def measured_twice(c: Campaign) -> Iterator[Finding]:
    """Each run was measured: no file of measurements is that of another run, no two ran on one GPU at one time."""
    seen: dict[str, RunRecord] = {}
    ended: dict[tuple[str, str], RunRecord] = {}
    for run in sorted(c.records, key=lambda r: (r.timeline.run_begin_ns, r.folder)):
        files = () if run.engine.simulated else MEASUREMENTS
        twins = [seen[run.files_sha256[name]] for name in files if run.files_sha256.get(name) in seen]
        seen |= {run.files_sha256[name]: run for name in files if name in run.files_sha256}
        place = (run.machine_id, run.gpu.uuid) if run.gpu else None
        before, t = ended.get(place) if place else None, run.timeline
        if before and t.exec_ns is not None and t.exec_ns < (before.timeline.exited_ns or 0):
            twins.append(before)
        if place and t.exited_ns is not None:
            ended[place] = run
        for twin in twins[:1]:
            yield from ((a, f"the same as {b.folder}, or at the same time") for a, b in ((run, twin), (twin, run)))


def pinned_kv_blocks_differ(c: Campaign) -> Iterator[Finding]:
    """With pinned KV blocks an arm has the same number of them in all its runs."""
    yield from c.other_pools() if c.pinned else ()


def kv_blocks_differ(c: Campaign) -> Iterator[Finding]:
    """An arm has the same number of KV blocks in all its runs."""
    yield from () if c.pinned else c.other_pools()


def _fixed(flags: Sequence[str]) -> set[str]:
    """Flags of which nothing is measured first."""
    return {flag for flag in flags if flag.startswith("-") and "{" not in flag}


GATES = gates_in(vars())


def judge_together(campaign: Campaign) -> dict[str, tuple[Reason, ...]]:
    """By folder, the gates that fire on it, in the order of GATES; a run's first finding a gate. Those that turn out
    invalid are taken out and the others judged again: an earlier attempt may then stand for its arm."""
    found: dict[str, dict[str, Reason]] = defaultdict(dict)
    wrong: set[str] = set()
    for gate in GATES:
        for run, text in gate.check(campaign):
            found[run.folder].setdefault(gate.code, gate.reason(text))
            wrong |= {run.folder} if gate.severity == "invalid" else set()
    judged = {folder: tuple(reasons.values()) for folder, reasons in found.items()}
    if not wrong:
        return judged
    rest = replace(campaign, records=tuple(r for r in campaign.records if r.folder not in wrong))
    return judge_together(rest) | {folder: judged[folder] for folder in wrong}
