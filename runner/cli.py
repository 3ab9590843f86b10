"""The `campaign` command. Thin: each command parses its options and calls one function."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.errors import LoadError
from runner.errors import CampaignError, PreflightError

if TYPE_CHECKING:
    from runner.config import Config
    from runner.plan import Plan

EXIT_CODES = """\b
Exit status:
  0    every block of the plan is complete
  1    unexpected error
  2    the configuration, the machine or the results folder cannot be used as it is
  3    some blocks could not be completed after retries
  4    the time budget is used up; start again to go on
  130  stopped by Ctrl-C (143: by SIGTERM); start again to go on
"""


def typed_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Print a CampaignError or LoadError as `error:` and `next:` lines and exit with its code."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (CampaignError, LoadError) as error:
            click.echo(f"error: {error.message}", err=True)
            if error.hint:
                click.echo(f"next: {error.hint}", err=True)
            sys.exit(error.exit_code)

    return wrapper


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        default=Path("campaign.toml"),
        show_default=True,
        help="What to measure.",
    )(function)


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--shard", metavar="K/N", help="Only every N-th block, from the K-th (1-based)."),
        click.option(
            "--blocks",
            "blocks_glob",
            metavar="GLOB",
            help="Only blocks (model.profile.rN) that match, e.g. '32b.sustained.*'.",
        ),
        click.option(
            "--suite",
            "suites",
            default="published",
            show_default=True,
            metavar="NAME[,NAME…]",
            help="Suites to run, in common blocks.",
        ),
    ):
        function = option(function)
    return function


def results_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--results",
        "results",
        type=click.Path(path_type=Path),
        help="Results folder.  [default: results/<campaign name>]",
    )(function)


def _plan(config: Config, suites: str, blocks_glob: str | None, shard: str | None) -> Plan:
    from runner.plan import build_plan, parse_shard

    names = [name.strip() for name in suites.split(",") if name.strip()]
    return build_plan(config, names, blocks_glob, parse_shard(shard) if shard else None)


def _results_folder(config: Config, results: Path | None) -> Path:
    return results or Path("results") / config.campaign.name


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="eager-cost", prog_name="campaign")
def main() -> None:
    """Measure what enforce_eager costs and buys in vLLM, and report it."""


@main.command()
@config_option
@selection_options
@typed_errors
def plan(config_path: Path, suites: str, blocks_glob: str | None, shard: str | None) -> None:
    """Print the runs in order with an estimate of time and disk. Changes nothing."""
    from runner.config import load_config
    from runner.plan_view import render_plan

    config = load_config(config_path)
    click.echo(render_plan(_plan(config, suites, blocks_glob, shard), config))


@main.command(epilog=EXIT_CODES)
@config_option
@selection_options
@results_option
@click.option(
    "--engine-python", default="python3", show_default=True, metavar="PATH", help="Python of the engine's environment."
)
@click.option(
    "--engine-path", multiple=True, metavar="DIR", help="Put before the engine's PYTHONPATH; may be repeated."
)
@click.option(
    "--models",
    type=click.Path(path_type=Path),
    default=Path("models"),
    show_default=True,
    help="Folder of the model folders.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=Path(".cache"),
    show_default=True,
    help="Folder of the engine's compile caches.",
)
@click.option("--gpu", "gpu_selector", metavar="INDEX|UUID", help="GPU to use.  [default: the first]")
@click.option("--no-gpu", is_flag=True, help="Run an engine that uses no GPU (CPU build).")
@click.option("--cpus", metavar="LIST", help="CPUs for engine and client, e.g. 0-15.  [default: all]")
@click.option(
    "--primes-only", is_flag=True, help="Only the first starts that the plan needs: fills the compile caches."
)
@click.option("--time-budget", metavar="DURATION", help="Start no block or prime that cannot finish in it, e.g. 27m.")
@typed_errors
def run(
    config_path: Path,
    suites: str,
    blocks_glob: str | None,
    shard: str | None,
    results: Path | None,
    engine_python: str,
    engine_path: tuple[str, ...],
    models: Path,
    cache: Path,
    gpu_selector: str | None,
    no_gpu: bool,
    cpus: str | None,
    primes_only: bool,
    time_budget: str | None,
) -> None:
    """Run the campaign; started again, it goes on where it stopped."""
    from runner.campaign import Campaign, run_campaign
    from runner.config import load_config
    from runner.display import make_display
    from runner.launcher import EngineHost
    from runner.nvml import open_gpu
    from runner.provenance import collect_provenance
    from runner.store import Store
    from runner.units import parse_cpus, parse_duration_s

    config = load_config(config_path)
    the_plan = _plan(config, suites, blocks_glob, shard)
    budget_s = parse_duration_s(time_budget) if time_budget else None
    host = EngineHost(
        python=engine_python,
        path=engine_path,
        models=models.resolve(),
        cache=cache.resolve(),
        kind=config.engine.kind,
        cpus=parse_cpus(cpus) if cpus else None,
    )
    host.check(config, {block.model for block in the_plan.blocks})
    gpu = None if no_gpu or config.engine.kind == "stand-in" else open_gpu(gpu_selector)
    root = _results_folder(config, results)
    if config.engine.kind == "stand-in":
        click.echo(
            "SIMULATED: the engine is the bundled stand-in, a scheduling model; its figures say nothing about any GPU.",
            err=True,
        )
    with Store.open(root, config) as store:
        _check_disk(root, the_plan)
        campaign = Campaign(
            config,
            the_plan,
            store,
            host,
            gpu,
            make_display(sys.stderr),
            lambda: collect_provenance(config, host, gpu),
            time_budget_s=budget_s,
            primes_only=primes_only,
        )
        summary = run_campaign(campaign)
    click.echo(
        f"{summary.runs_done} runs valid, {summary.runs_failed} attempts failed, {summary.runs_left} runs left: {summary.message}"
    )
    sys.exit(summary.exit_code)


def _check_disk(root: Path, the_plan: Plan) -> None:
    from runner.plan_view import DISK_MIB_PER_RUN

    needed = (sum(len(b.arms) for b in the_plan.blocks) + len(the_plan.primes)) * DISK_MIB_PER_RUN + 64
    free = shutil.disk_usage(root).free / 2**20
    if free < needed:
        raise PreflightError(
            f"{root}: {free:.0f} MiB free, the plan needs about {needed:.0f} MiB",
            "free space, or choose another --results",
        )


@main.command()
@config_option
@selection_options
@results_option
@typed_errors
def status(config_path: Path, suites: str, blocks_glob: str | None, shard: str | None, results: Path | None) -> None:
    """Show which blocks are done, begun and left. Changes nothing."""
    from runner.config import load_config
    from runner.status import render_status

    config = load_config(config_path)
    click.echo(render_status(_results_folder(config, results), _plan(config, suites, blocks_glob, shard)))


@main.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--database", type=click.Path(path_type=Path), default=Path("results.duckdb"), show_default=True)
@typed_errors
def load(results: Path, database: Path) -> None:
    """Load a results folder into a DuckDB database (replaces its content)."""
    from analysis.load import load as load_results

    click.echo(str(load_results(results, database)))


@main.command()
@click.option("--database", type=click.Path(path_type=Path), default=Path("results.duckdb"), show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for report.html, report.md and csv/.",
)
@typed_errors
def report(database: Path, out: Path) -> None:
    """Render the report from a database. Needs no network and no GPU."""
    from report.render import render

    for path in render(database, out):
        click.echo(str(path))
