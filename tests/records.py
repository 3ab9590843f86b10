"""Small RunRecords for tests."""

from __future__ import annotations

from typing import Any

from analysis.formats.run_record import EngineIdentity, GpuIdentity, RunRecord, Timeline

GPU = GpuIdentity(index=0, uuid="GPU-1", name="Test GPU", memory_total_mib=81559)


def record(
    run_id: str = "7b.graphs.sustained.r1",
    *,
    pass_number: int = 1,
    attempt: int = 1,
    status: str = "valid",
    block_arms: tuple[str, ...] = ("graphs", "eager"),
    seconds: float = 100.0,
    **changes: Any,
) -> RunRecord:
    """A run's record; a run_id that ends in `.prime` makes a prime."""
    parts = run_id.split(".")
    prime = parts[-1] == "prime"
    values: dict[str, Any] = {
        "kind": "prime" if prime else "run",
        "run_id": run_id,
        "folder": f"{run_id}.p{pass_number}a{attempt}",
        "campaign": "test",
        "model": parts[0],
        "arm": parts[1],
        "profile": None if prime else parts[2],
        "repetition": None if prime else int(parts[3][1:]),
        "block_id": None if prime else f"{parts[0]}.{parts[2]}.{parts[3]}",
        "block_arms": () if prime else block_arms,
        "pass_number": pass_number,
        "attempt": attempt,
        "sitting_id": "s1",
        "machine_id": "boot-1",
        "cache_id": "cache-1",
        "gpu": GPU,
        "engine": EngineIdentity(kind="vllm", version="0.23.0", simulated=False),
        "weights": "dummy",
        "wall_start": "2026-01-01T00:00:00+00:00",
        "status": status,
        "timeline": Timeline(run_begin_ns=0, run_end_ns=int(seconds * 1e9)),
    }
    return RunRecord(**(values | changes))
