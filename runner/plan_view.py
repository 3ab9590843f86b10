"""Plain text of a plan: its blocks and runs in order, with an estimate of time and disk."""

from collections.abc import Sequence

from runner.config import Config
from runner.plan import DEFAULT_WINDOW_S, Plan, run_estimate_s
from runner.units import duration

LOG_BYTES = 40_000  # compressed server and bench logs, metrics, run.json
BYTES_A_TOKEN = 2.5  # inter-token times, steps
BYTES_A_SECOND = 400  # NVML every 100 ms


def plan_disk_bytes(plan: Plan, config: Config) -> float:
    """Expected bytes of the folders of every run and prime of the plan."""
    tokens = sum(config.profiles[run.profile].prompts * config.profiles[run.profile].output_tokens for run in plan.runs)
    folders = len(plan.runs) + len(plan.primes)
    return folders * LOG_BYTES + tokens * BYTES_A_TOKEN + plan.estimate_s * BYTES_A_SECOND


def render_plan(plan: Plan, config: Config) -> str:
    """A table of primes and runs in the order planned, the totals, and which estimates are assumed."""
    lines = [f"campaign {config.campaign.name}: {_engine(config)}"]
    if plan.primes:
        lines += ["", "First start of each arm on a machine, when a block first needs it:"]
        primes = [(p.prime_id, ", ".join(p.covers), duration(p.estimate_s)) for p in plan.primes]
        lines += _table(("prime", "for", "about"), primes)
    lines += ["", "Runs in order:"]
    rows = []
    for run in plan.runs:
        about = duration(run_estimate_s(config, run.model, run.profile))
        rows.append((run.block_id if run.order_in_block == 0 else "", run.run_id, str(run.seed), about))
    lines += _table(("block", "run", "seed", "about"), rows)
    megabytes = max(1, round(plan_disk_bytes(plan, config) / 1e6))
    lines += [
        "",
        f"suite {', '.join(plan.suites)}: {len(plan.runs)} runs in {len(plan.blocks)} blocks, {len(plan.primes)} "
        f"primes: about {duration(plan.estimate_s)}, {megabytes} MB of results",
    ]
    guessed = dict.fromkeys(
        f"{block.model}.{block.profile}"
        for block in plan.blocks
        if block.profile not in config.models[block.model].estimate.window_s
    )
    if guessed:
        lines.append(f"{DEFAULT_WINDOW_S:g} s of load assumed, window_s says nothing: {', '.join(guessed)}")
    return "\n".join(lines)


def _engine(config: Config) -> str:
    engine = config.engine
    simulated = ", SIMULATED" if engine.kind == "stand-in" else ""
    budget_gib, share = engine.memory_budget_gib, engine.gpu_memory_utilization
    memory = f"memory budget {budget_gib:g} GiB" if budget_gib is not None else f"gpu_memory_utilization {share:g}"
    return f"{engine.kind} {engine.version} ({engine.launcher}{simulated}), {memory}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
