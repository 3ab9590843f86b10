"""From a memory budget in GiB to vLLM's --gpu-memory-utilization, and what fits outside of it."""

from __future__ import annotations

from runner.config import Config
from runner.errors import PreflightError
from runner.nvml import Gpu, GpuMemory

GIB = 2**30
SAFETY_BYTES = 256 * 2**20  # left free beyond what is known to be needed


def utilization_for(config: Config, gpu: Gpu | None) -> float | None:
    """The share of the GPU's memory that the engine may use, to 4 decimals; None without a GPU.

    vLLM takes the share of what CUDA reports as total: NVML's total less what the driver reserves.
    Raises PreflightError when the budget does not fit the card.
    """
    if gpu is None:
        return None
    budget_gib = config.engine.memory_budget_gib
    if budget_gib is None:
        return config.engine.gpu_memory_utilization
    usable_gib = gpu.memory().usable / GIB
    share = round(budget_gib / usable_gib, 4)
    if share > 1:
        raise PreflightError(
            f"engine.memory_budget_gib = {budget_gib:g}: {gpu.identity().name} has {usable_gib:.1f} GiB",
            "use a card with more memory, or lower the budget (which makes it another campaign)",
        )
    return share


def check_override(
    *,
    blocks: int,
    natural_blocks: int,
    block_bytes: float,
    unestimated_graph_bytes: float,
    memory: GpuMemory,
    utilization: float,
) -> None:
    """Raise PreflightError if `blocks` KV blocks, more than profiling found room for, would not fit the card.

    `--num-gpu-blocks-override` bypasses vLLM's own check. What is above the natural count, and graph memory
    beyond vLLM's estimate, must fit between the budget and the card's end.
    """
    if blocks <= natural_blocks:
        return
    outside = memory.usable * (1 - utilization)
    needed = (blocks - natural_blocks) * block_bytes + max(0.0, unestimated_graph_bytes) + SAFETY_BYTES
    if needed > outside:
        raise PreflightError(
            f"--num-gpu-blocks-override={blocks} is above the {natural_blocks} blocks that fit: "
            f"{needed / GIB:.2f} GiB are needed outside the memory budget, {outside / GIB:.2f} GiB are there",
            "match the other way round (the smaller count in both arms), or lower the memory budget",
        )
