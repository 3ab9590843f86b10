"""Plain text of a plan: its blocks and runs in order, with an estimate of time and disk."""

from __future__ import annotations

from runner.config import Config, ProfileSection
from runner.plan import Plan, run_estimate_s

LOG_BYTES = 40_000  # compressed server and bench logs, metrics, run.json
BYTES_A_TOKEN = 2.5  # inter-token times, steps
BYTES_A_SECOND = 400  # NVML every 100 ms


def run_disk_bytes(profile: ProfileSection, seconds: float) -> float:
    """Expected bytes of one run's folder."""
    return LOG_BYTES + profile.prompts * profile.output_tokens * BYTES_A_TOKEN + seconds * BYTES_A_SECOND


def plan_disk_bytes(plan: Plan, config: Config) -> float:
    """Expected bytes of every run and prime of the plan."""
    runs = sum(
        run_disk_bytes(config.profiles[run.profile], run_estimate_s(config, run.model, run.profile)) for run in plan.runs
    )
    return runs + sum(LOG_BYTES + prime.estimate_s * BYTES_A_SECOND for prime in plan.primes)


def render_plan(plan: Plan, config: Config) -> str:
    """A table of primes and runs in the order planned, the totals, and which estimates are assumed."""
    lines = [f"campaign {config.campaign.name}: {_engine(config)}"]
    if plan.primes:
        lines += ["", "First start of each arm on a machine, when a block first needs it:"]
        rows = [(p.prime_id, ", ".join(p.covers), duration(p.estimate_s)) for p in plan.primes]
        lines += _table(("prime", "for", "about"), rows)
    lines += ["", "Runs in order:"]
    rows = []
    for block in plan.blocks:
        for run in block.runs():
            about = duration(run_estimate_s(config, run.model, run.profile))
            rows.append((block.block_id if run.order_in_block == 0 else "", run.run_id, str(run.seed), about))
    lines += _table(("block", "run", "seed", "about"), rows)
    megabytes = max(1, round(plan_disk_bytes(plan, config) / 1e6))
    lines += [
        "",
        f"{len(plan.runs)} runs in {len(plan.blocks)} blocks, {len(plan.primes)} primes: about {duration(plan.estimate_s)}, "
        f"{megabytes} MB of results",
    ]
    assumed = sorted(
        {f"{b.model} {b.profile}" for b in plan.blocks if b.profile not in config.models[b.model].estimate.window_s}
    )
    if assumed:
        lines.append(f"no window_s in [model.estimate], a default assumed: {', '.join(assumed)}")
    return "\n".join(lines) + "\n"


def duration(seconds: float) -> str:
    """'45 s', '3 min 20 s' or '2 h 05 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _engine(config: Config) -> str:
    engine = config.engine
    simulated = ", SIMULATED" if engine.kind == "stand-in" else ""
    memory = (
        f"memory budget {engine.memory_budget_gib:g} GiB"
        if engine.memory_budget_gib is not None
        else f"gpu_memory_utilization {engine.gpu_memory_utilization:g}"
    )
    return f"{engine.kind} {engine.version} ({engine.launcher}{simulated}), {memory}"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)]
