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

WRITTEN_FOR = "0.23.0"
EXIT_NO_GO = 3
EXIT_UNFIT = 4

held = False


def fail(message: str, code: int = EXIT_UNFIT) -> NoReturn:
    print(f"campaign: error: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


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


def main(arguments: list[str]) -> None:
    import vllm

    if vllm.__version__.partition("+")[0] != WRITTEN_FOR:  # 0.23.0+cpu is a build of 0.23.0
        fail(f"found vLLM {vllm.__version__}, this entry is written for {WRITTEN_FOR}")
    import vllm.benchmarks.serve as serve
    from vllm.entrypoints.cli.main import main as vllm_main

    install(serve)
    sys.argv = ["vllm", "bench", *arguments]
    vllm_main()
    if not held:
        fail("the client ran without waiting for the go")


if __name__ == "__main__":
    main(sys.argv[1:])
