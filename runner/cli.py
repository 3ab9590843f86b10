"""The `campaign` command. Thin: each command parses its options and calls one function."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from analysis.errors import LoadError
from runner.config import Config, load_config
from runner.errors import CampaignError
from runner.plan import Plan, build_plan, parse_shard
from runner.plan_view import render_plan
from runner.signals import end_at_once, interruptible

if TYPE_CHECKING:
    from runner.launcher import EngineHost
    from runner.workers import GpuOptions

PATH = click.Path(path_type=Path)
EXIT_CODES = """\b
Exit status:
  0    every block of the plan is complete
  1    unexpected error
  2    the configuration, the machine or the results folder cannot be used as it is
  3    some blocks could not be completed after retries
  4    the time budget is used up; start again to go on
  130  stopped by Ctrl-C (143: by SIGTERM); start again to go on
"""


class Commands(click.Group):
    """Prints an error of this project as `error:` and `next:` lines and exits with status 2."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (CampaignError, LoadError) as error:
            click.echo(f"error: {error.message}", err=True)
            if error.hint:
                click.echo(f"next: {error.hint}", err=True)
            sys.exit(2)
        except (KeyboardInterrupt, RuntimeError) as error:
            if isinstance(error, RuntimeError) and str(error) != "Query interrupted":  # DuckDB, of a KeyboardInterrupt
                raise
            end_at_once()
            click.echo("stopped at once, before it was done; run it again", err=True)
            sys.exit(130)


def plan_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say what to run; the command gets the configuration and the plan they lead to."""

    @click.option("--config", "config_path", type=PATH, default="campaign.toml", help="What to measure.")
    @click.option("--suite", default="published", metavar="NAME[,NAME…]", help="Suites to run, in common blocks.")
    @click.option("--blocks", metavar="GLOB", help="Only blocks (model.profile.rN) that match, e.g. '32b.sustained.*'.")
    @click.option("--shard", metavar="K/N", help="Only every N-th block, from the K-th (1-based).")
    @wraps(function)
    def command(config_path: Path, suite: str, blocks: str | None, shard: str | None, **others: Any) -> Any:
        config = load_config(config_path)
        suites = [name.strip() for name in suite.split(",") if name.strip()]
        return function(config, build_plan(config, suites, blocks, parse_shard(shard) if shard else None), **others)

    return command


# not a folder that comes with the checkout: what is measured here never mixes with its data
results_option = click.option("--results", type=PATH, default="results/here", help="Results folder.")


def machine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say what the machine has; the command gets the configuration as it is here, the engine's host
    and the choice of GPUs."""

    @click.option("--engine-python", default="python3", metavar="PATH", help="Python of the engine's environment.")
    @click.option("--engine-path", multiple=True, metavar="DIR", help="Put before its PYTHONPATH; may be repeated.")
    @click.option("--models", type=PATH, default="models", help="Folder of the model folders.")
    @click.option("--cache", type=PATH, default=".cache", help="Folder of the engine's compile caches.")
    @click.option("--gpu", metavar="INDEX|UUID", help="This GPU alone.  [default: see --workers]")
    @click.option("--workers", type=click.IntRange(1), metavar="N", help="GPUs to use side by side.  [default: all]")
    @click.option("--no-gpu", is_flag=True, help="Run an engine that uses no GPU (CPU build).")
    @click.option("--cpus", metavar="LIST", help="CPUs for engine and client, e.g. 0-15.  [default: all]")
    @click.option("--launcher", type=click.Choice(["process", "container"]), help="Instead of engine.launcher.")
    @click.option("--image", metavar="REFERENCE", help="Of the engine's containers, instead of engine.image.")
    @wraps(function)
    def command(config: Config, plan: Plan, **others: Any) -> Any:
        from runner.launcher import EngineHost
        from runner.units import parse_cpus
        from runner.workers import GpuOptions

        take = others.pop
        given = {name: value for name in ("launcher", "image") if (value := take(name))}
        config = config.model_copy(update={"engine": config.engine.model_copy(update=given)})
        cpus = parse_cpus(text) if (text := take("cpus")) else None
        folders = take("models").resolve(), take("cache").resolve()
        host = EngineHost(take("engine_python"), take("engine_path"), *folders, config.engine.kind, cpus)
        return function(config, plan, host, GpuOptions(take("gpu"), take("workers"), take("no_gpu")), **others)

    return command


# an option's default may come from the environment (compose.yaml): EAGER_COST_RUN_CACHE for the --cache of `run`
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "auto_envvar_prefix": "EAGER_COST"}


@click.group(cls=Commands, context_settings=SETTINGS)
@click.version_option(package_name="eager-cost", prog_name="campaign")
def main() -> None:
    """Measure what enforce_eager costs and buys in vLLM, and report it."""


@main.command()
@plan_options
def plan(config: Config, plan: Plan) -> None:
    """Print the runs in order with an estimate of time and disk. Changes nothing."""
    click.echo(render_plan(plan, config))


@main.command(epilog=EXIT_CODES)
@plan_options
@results_option
@machine_options
@click.option(
    "--primes-only", is_flag=True, help="Only the first starts that the plan needs: fills the compile caches."
)
@click.option("--report", "report_to", type=PATH, help="Then load the results and render the report there.")
@click.option("--time-budget", metavar="DURATION", help="Start no block or prime that cannot finish in it, e.g. 27m.")
@click.option("--worker", hidden=True, metavar="K/N", help="This is one of N workers; the parent holds the folder.")
@click.option("--lock", hidden=True, type=int, help="The parent's descriptor of the folder's lock.")
def run(
    config: Config,
    plan: Plan,
    host: EngineHost,
    gpu_options: GpuOptions,
    results: Path,
    primes_only: bool,
    report_to: Path | None,
    time_budget: str | None,
    worker: str | None,
    lock: int | None,
) -> None:
    """Run the campaign; started again, it goes on where it stopped."""
    from analysis.load import check_target
    from runner import workers as side_by_side
    from runner.campaign import Campaign
    from runner.display import make_display
    from runner.doctor import Place, check_space
    from runner.store import Store
    from runner.units import parse_duration_s

    begun = time.monotonic()
    interruptible()
    budget_s = parse_duration_s(time_budget) if time_budget else None
    if lock is None:  # what takes no time to see comes first
        Store.look(results.resolve(), config)
    if report_to:
        check_target(results, report_to / "results.duckdb")
    gpus = gpu_options.open(config)
    host = host.with_containers(config)
    host.check(config, plan.models)
    host.compile_bytecode(config)
    parts = side_by_side.split_cpus(host.cpus, len(gpus) or gpu_options.workers or 1)  # a worker each
    if worker:
        plan = side_by_side.enter(plan, *parse_shard(worker), host.cpus)
    elif config.engine.kind == "stand-in":
        click.echo(
            "SIMULATED: the engine is the bundled stand-in, a scheduling model; its figures say nothing about any GPU.",
            err=True,
        )
    with Store.open(results, config) if lock is None else Store(results.resolve(), config, lock) as store:
        check_space(Place(config, plan, host, results.resolve(), gpu_options))
        several = len(parts) > 1 and not primes_only
        device, display, first = gpus[0] if gpus else None, make_display(sys.stderr), primes_only or several
        summary = Campaign(
            config, plan, store, host, device, display, time_budget_s=budget_s, primes_only=first, worker=bool(worker)
        ).run()
        if several and summary.runs_left and summary.exit_code in (0, 3):
            left_s = budget_s and budget_s - (time.monotonic() - begun)
            lines = side_by_side.command_lines(gpus, parts, store.lock, left_s)
            click.echo(side_by_side.who_does_what(plan, list(lines)), err=True)
            summary = side_by_side.run_workers(plan, store, lines)
    counts = f"{summary.runs_done} runs valid, {summary.runs_failed} attempts failed, {summary.runs_left} runs left"
    click.echo(re.sub(r"\b1 (run|attempt)s", r"1 \1", counts) + f": {summary.message}")
    if report_to and not worker and summary.exit_code in (0, 3, 4):  # not when stopped: whoever did it is waiting
        render_report(results, report_to / "results.duckdb", report_to)
    elif summary.runs_done and not worker:
        click.echo(f"next: `campaign report {results}` loads it and reports on it")
    sys.exit(summary.exit_code)


@main.command(epilog="Exit status: 2 when a check failed.")
@plan_options
@results_option
@machine_options
def doctor(config: Config, plan: Plan, host: EngineHost, gpus: GpuOptions, results: Path) -> None:
    """Look at all that `run` with the same options needs; say what mends what is missing. Measures nothing."""
    from runner.doctor import Place, examine

    failed = False
    for finding in examine(Place(config, plan, host, results.resolve(), gpus)):
        click.echo(str(finding))
        failed |= finding.state == "FAILED"
    sys.exit(2 if failed else 0)


@main.command()
@plan_options
@machine_options
def fetch(config: Config, plan: Plan, host: EngineHost, _: GpuOptions) -> None:
    """Download the models of the plan that have weights = "hub", at their revisions; again, it goes on or does nothing.

    HF_TOKEN and HF_ENDPOINT are used where set.
    """
    for model in (config.models[name] for name in plan.models):
        if model.weights == "hub":
            host.fetch(model)
        else:
            click.echo(f'{model.name}: weights = "dummy", nothing to fetch')


def render_report(
    results: Path | None, database: Path, out: Path, price: float | None = None, against: Path | None = None
) -> None:
    """The report in `out`, of a database that is first loaded from `results` if given; prints its files, the page last.
    `against`: another results folder or database."""
    from analysis.load import load as load_results
    from analysis.load import summarise
    from report.render import render

    interruptible()
    if against is not None and not against.exists():
        hint = "give --against a results folder or a database that is there, e.g. results/enforce_eager"
        raise LoadError(f"{against}: no such file or folder", hint)
    if results is not None:
        click.echo(str(load_results(results, database)))
    if against is not None and against.is_dir():
        summary = load_results(against, out / "against.duckdb")
        click.echo(f"against {summary}")
        against = summary.database
    page, *others = render(database, out, price, against)
    if results is None and (summary := summarise(database)).lost:
        click.echo(str(summary))
    click.echo("\n".join(map(str, (*others, page))))


@main.command(epilog="Exit status: 2 when the folder is of another campaign or kind of engine.")
@plan_options
@results_option
def status(config: Config, plan: Plan, results: Path) -> None:
    """Show which blocks are done, begun and left. Changes nothing."""
    from runner.status import render_status

    said, of_another = render_status(results, plan, config)
    click.echo(said)
    sys.exit(2 if of_another else 0)


@main.command(
    epilog="""\b
Exit status:
  0    every run and prime is valid (warnings allowed)
  2    a folder or a file cannot be read, or was changed after the run
  3    some are invalid or failed
"""
)
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print [{run, status, reasons}] as JSON.")
def validate(path: Path, as_json: bool) -> None:
    """Judge a run's folder, or a whole results folder, anew from its files."""
    from analysis import validate as judged

    interruptible()
    verdicts = judged.validate(path)
    click.echo(judged.as_json(verdicts) if as_json else "\n".join(judged.as_text(verdicts)))
    sys.exit(judged.exit_code(verdicts))


database_option = click.option("--database", type=PATH, default="results.duckdb")


@main.command()
@click.argument("results", type=PATH)
@database_option
def load(results: Path, database: Path) -> None:
    """Load a results folder into a DuckDB database (replaces its content)."""
    from analysis.load import load as load_results

    interruptible()
    click.echo(str(load_results(results, database)))


@main.command()
@click.argument("results", type=PATH, required=False)
@database_option
@click.option("--out", type=PATH, default="out/report", help="Folder for report.html, report.md and csv/.")
@click.option(
    "--price", type=click.FloatRange(0, min_open=True), metavar="MONEY", help="Of a GPU-hour, for the tables of cost."
)
@click.option("--against", type=PATH, help="Results folder or database whose figures to put beside those that differ.")
def report(results: Path | None, database: Path, out: Path, price: float | None, against: Path | None) -> None:
    """Render the report from a database; of a results folder if one is given, loaded into OUT/results.duckdb.

    A report on another campaign that is in OUT is replaced only where --out is given. Needs no network and no GPU.
    """
    from analysis.load import sittings
    from report.render import check_folder

    given = click.get_current_context().get_parameter_source
    if results and given("database") is not ParameterSource.DEFAULT:
        raise click.UsageError("a results folder is loaded into OUT/results.duckdb: give it or --database, not both")
    if given("out") is ParameterSource.DEFAULT:
        check_folder(out, sittings(results, database), results or database)
    render_report(results, out / "results.duckdb" if results else database, out, price, against)


@main.command(epilog="Exit status: 3 when a claim differs from what the data set declares in its expected-claims.toml.")
@database_option
def check(database: Path) -> None:
    """Judge every claim of the published study on a database."""
    from analysis.claims import check as check_claims

    verdicts, as_declared = check_claims(database)
    click.echo(verdicts)
    sys.exit(0 if as_declared else 3)


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each fact of a server that `campaign advise` can be told."""
    from analysis.advise import ASSUMED, Server

    for name, field in reversed(Server.model_fields.items()):
        assumed = f"  [assumed: {ASSUMED[name].value:g}]" if name in ASSUMED else ""
        function = click.option(f"--{name.replace('_', '-')}", help=f"{field.description}{assumed}")(function)
    return function


@main.command()
@click.argument("results", type=PATH, required=False)
@click.option("--database", type=PATH, help="What was measured, loaded; or name a RESULTS folder.")
@click.option("--cell", default="*", metavar="GLOB", help="Only cells (model.profile) of it that match.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def advise(results: Path | None, database: Path | None, cell: str, as_json: bool, **server: str | None) -> None:
    """What to set on a server: KV tokens, engine steps and throughput by arm, from measured runs and what is given.

    Without RESULTS and --database from the options alone. Each figure says if it was measured, given, assumed or
    computed.
    """
    from tempfile import TemporaryDirectory

    from analysis import advise as advice
    from analysis.load import load as load_results

    interruptible()
    if results and database:
        raise click.UsageError("name a results folder or --database, not both")
    advice.given(server)  # a wrong option is told before results are loaded
    with TemporaryDirectory() as folder:
        if results is not None:
            database = load_results(results, Path(folder) / "results.duckdb").database
        found = advice.answer(database, server, cell)
    click.echo(advice.as_json(found) if as_json else advice.as_text(found))
