"""`campaign status`: the blocks of a plan against a results folder."""

from __future__ import annotations

from pathlib import Path

from runner.config import Config, changed_keys, config_fingerprint
from runner.display import outcome
from runner.plan import Plan
from runner.progress import block_state, duration_s
from runner.store import read_header, read_records
from runner.units import duration

RUN_OPTIONS = {"engine.launcher", "engine.image"}  # `campaign run` may have been given others


def render_status(root: Path, plan: Plan, config: Config) -> str:
    """A line a block, a line an attempt that did not count, and a warning where `run` would refuse to go on with
    `config`; raises StoreError when `root` is no results folder."""
    header = read_header(root)
    records, unreadable = read_records(root)
    lines = [f"campaign {header['campaign']} in {root}"]
    done, gpus = 0, {record.gpu.uuid for record in records if record.gpu}
    for block in plan.blocks:
        state = block_state(block, records, None)
        done += state.status == "done"
        missing = f"; missing: {', '.join(state.missing_arms)}" if state.status == "partial" else ""
        at = {
            (r.gpu.index, r.gpu.uuid)
            for r in records
            if r.gpu and (r.block_id, r.pass_number) == (block.block_id, state.pass_number)
        }
        where = "".join(f"; on GPU {index} ({uuid})" for index, uuid in sorted(at)) if len(gpus) > 1 else ""
        counts = f"{len(state.valid_arms)}/{len(block.arms)} runs"
        lines.append(f"{state.status:8} {block.block_id} ({counts}{missing}{where})")
    for record in records:
        if record.status != "valid":
            lines.append(f"  {record.folder}: {outcome(record)}")
    lines += [f"  {folder}: cannot be read ({problem}); counts as not run" for folder, problem in unreadable]
    partial = sorted(root.glob("*/*.partial"))
    lines += [f"  {path.name}: half-written (in progress, or cut off)" for path in partial]
    if changed := sorted({*changed_keys(header["configuration"], config_fingerprint(config))} - RUN_OPTIONS):
        lines.append(f"warning: begun with another configuration, `run` will not go on: {', '.join(changed)} changed")
    spent = sum(seconds for r in records if (seconds := duration_s(r)) is not None)
    lines.append(f"{done} of {len(plan.blocks)} blocks done; {len(records)} runs and primes took {duration(spent)}")
    return "\n".join(lines)
