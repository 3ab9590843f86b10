"""`campaign status`: the blocks of a plan against a results folder."""

from pathlib import Path

from runner.config import Config, changed_keys, config_fingerprint
from runner.display import outcome
from runner.plan import Plan
from runner.progress import block_state, duration_s
from runner.store import MEND, changed_folders, read_header, read_records
from runner.units import duration

RUN_OPTIONS = {"engine.launcher", "engine.image"}  # `campaign run` may have been given others


def render_status(root: Path, plan: Plan, config: Config) -> tuple[str, bool]:
    """A warning where `run` would refuse to go on with `config`, a line a block, a line an attempt that did not count;
    and whether the folder is of another campaign or kind of engine. Raises StoreError when it is no results folder."""
    header = read_header(root)
    records, unreadable = read_records(root)
    changed_files = changed_folders(root, records)
    records = [record for record in records if record.folder not in {folder.name for folder in changed_files}]
    lines = [f"campaign {header['campaign']} in {root}"]
    if changed := sorted({*changed_keys(header["configuration"], config_fingerprint(config))} - RUN_OPTIONS):
        why = f"begun with another configuration (--config {root / 'campaign.toml'}), `run` will not go on"
        lines.insert(0, f"warning: {why}: {', '.join(changed)} changed")
    done = 0
    for block in plan.blocks:
        state = block_state(block, records, None)
        done += state.status == "done"
        missing = f"; missing: {', '.join(state.missing_arms)}" if state.status == "partial" else ""
        lines.append(f"{state.status:8} {block.block_id} ({len(state.valid_arms)}/{len(block.arms)} runs{missing})")
    for record in records:
        if record.status != "valid":
            lines.append(f"  {record.folder}: {outcome(record)}")
    lines += [f"  {folder}: cannot be read ({problem}); counts as not run" for folder, problem in unreadable]
    lines += [f"  {folder}: {problem}; `run` will not go on: {MEND}" for folder, problem in changed_files.items()]
    partial = sorted(root.glob("*/*.partial"))
    lines += [f"  {path.name}: half-written (in progress, or cut off)" for path in partial]
    spent = sum(seconds for r in records if (seconds := duration_s(r)) is not None)
    told = f"{done} of {len(plan.blocks)} blocks of suite {', '.join(plan.suites)} done"
    lines.append(f"{told}; {len(records)} runs and primes took {duration(spent)}")
    return "\n".join(lines), not {"campaign.name", "engine.kind"}.isdisjoint(changed)
