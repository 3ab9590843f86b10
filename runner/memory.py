"""From a memory budget in GiB to vLLM's --gpu-memory-utilization, and what fits outside of it."""

from analysis.formats.run_record import RunRecord
from runner.config import Config
from runner.errors import PreflightError
from runner.nvml import Gpu
from runner.standin.hardware import CARD_GIB

GIB = 2**30
SAFETY_GIB = 0.25  # left free beyond what is known to be needed


def utilization_for(config: Config, gpu: Gpu | None) -> float | None:
    """The share of the card's memory that the engine may use, to 4 decimals; None for an engine without a GPU.

    vLLM takes the share of what CUDA reports as total: NVML's total less what the driver reserves.
    Raises PreflightError when the budget does not fit the card.
    """
    engine = config.engine
    if gpu is None and engine.kind == "vllm":
        return None
    if engine.memory_budget_gib is None:
        return engine.gpu_memory_utilization
    name, usable_gib = (gpu.identity().name, gpu.memory().usable / GIB) if gpu else ("the stand-in's card", CARD_GIB)
    share = round(engine.memory_budget_gib / usable_gib, 4)
    if share > 1:
        hint = "use a card with more memory, or lower the budget (which makes it another campaign)"
        problem = f"engine.memory_budget_gib = {engine.memory_budget_gib:g}: {name} has {usable_gib:.1f} GiB"
        raise PreflightError(problem, hint)
    return share


def check_override(config: Config, gpu: Gpu | None, blocks: int, prime: RunRecord) -> None:
    """Raise PreflightError if `blocks` KV blocks, more than the arm's own prime found room for, would not fit the card.

    `--num-gpu-blocks-override` bypasses vLLM's own check. What is above the natural count, and graph memory
    beyond vLLM's estimate, must fit between the budget and the card's end. Without a GPU there is no check.
    """
    natural, facts, share = prime.num_gpu_blocks_natural, prime.server_log, utilization_for(config, gpu)
    if gpu is None or share is None or natural is None or blocks <= natural:
        return
    outside_gib = gpu.memory().usable / GIB * (1 - share)
    unestimated_gib = (facts.get("graph_pool_actual_gib") or 0.0) - (facts.get("estimated_graph_gib") or 0.0)
    block_gib = facts["available_kv_gib"] / natural
    needed_gib = (blocks - natural) * block_gib + max(0.0, unestimated_gib) + SAFETY_GIB
    if needed_gib > outside_gib:
        raise PreflightError(
            f"{prime.model}.{prime.arm}: {blocks} KV blocks are more than the {natural} that fit: "
            f"{needed_gib:.2f} GiB are needed outside the memory budget, {outside_gib:.2f} GiB are there",
            "match the other way round (the smaller count in both arms), or lower the memory budget",
        )
