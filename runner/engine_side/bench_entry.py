"""`vllm bench serve`, held back until told to go. Runs in the engine's environment (standard library, vLLM).

Usage: `python bench_entry.py serve <flags of vllm bench serve>`. The client's imports, tokenizer and prompts
take tens of seconds, so it is started early. With its prompts ready it would ask the server every 5 s and
send it the first prompt; that one function is replaced by: print `campaign: ready <CLOCK_MONOTONIC ns>`, wait
for one byte on stdin, go on. It ends before the warm-ups and the timed run begin; nothing timed is touched.

Exit codes of its own: 3 stdin closed before the go; 4 not the vLLM this was written for, or the client was
not held. Everything else is vLLM's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, NoReturn

VERSION_VARIABLE = "CAMPAIGN_VLLM_VERSION"  # the version that campaign.toml asks for
WRITTEN_FOR = "0.23.0"
EXIT_NO_GO = 3
EXIT_UNFIT = 4

held = False


def fail(message: str, code: int = EXIT_UNFIT) -> NoReturn:
    print(f"campaign: error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def base_version(version: str) -> str:
    """Without the local part: `0.23.0+cpu` is a build of 0.23.0."""
    return version.partition("+")[0]


def wait_for_go() -> None:
    """Announce readiness and block until a byte arrives. The event loop is idle: nothing is timed yet."""
    global held
    held = True
    print(f"campaign: ready {time.monotonic_ns()}", flush=True)
    if not os.read(sys.stdin.fileno(), 1):
        fail("stdin was closed before the go; nothing was measured", EXIT_NO_GO)


def install(serve: Any) -> None:
    """Replace `wait_for_endpoint` in vllm.benchmarks.serve, or fail if it is not used there as expected."""
    if not asyncio.iscoroutinefunction(getattr(serve, "wait_for_endpoint", None)):
        fail("vllm.benchmarks.serve has no coroutine wait_for_endpoint; cannot hold the client back")
    if "wait_for_endpoint" not in serve.benchmark.__code__.co_names:
        fail("vllm.benchmarks.serve.benchmark does not call wait_for_endpoint; cannot hold the client back")

    async def hold(*_args: Any, **_kwargs: Any) -> Any:
        wait_for_go()
        return serve.RequestFuncOutput(success=True)

    serve.wait_for_endpoint = hold


def check_arguments(arguments: list[str]) -> None:
    """The wait is part of vLLM's readiness check, which is off by default."""
    flag = "--ready-check-timeout-sec"
    for position, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == flag:
            value = value or (arguments[position + 1] if position + 1 < len(arguments) else "")
            if value.isdigit() and int(value) > 0:
                return
    fail(f"needs {flag} above 0, or the client would not wait for the go")


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] != "serve":
        fail("usage: bench_entry.py serve <flags of vllm bench serve>")
    check_arguments(arguments)
    import vllm

    wanted = os.environ.get(VERSION_VARIABLE) or WRITTEN_FOR
    if base_version(wanted) != WRITTEN_FOR:
        fail(f"this entry is written for vLLM {WRITTEN_FOR}, the campaign asks for {wanted}")
    if base_version(vllm.__version__) != base_version(wanted):
        fail(f"found vLLM {vllm.__version__}, the campaign asks for {wanted}")
    import vllm.benchmarks.serve as serve
    from vllm.entrypoints.cli.main import main as vllm_main

    install(serve)
    sys.argv = ["vllm", "bench", *arguments]
    vllm_main()
    if not held:
        fail("the client ran without waiting for the go")


if __name__ == "__main__":
    main(sys.argv[1:])
