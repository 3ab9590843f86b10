"""The memory budget as a share of the card, and block counts above what profiling found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner.errors import PreflightError
from runner.memory import GIB, check_override, utilization_for
from runner.nvml import GpuMemory

MIB = 2**20
H100 = GpuMemory(total=81559 * MIB, used=0, reserved=551 * MIB)
H200 = GpuMemory(total=143771 * MIB, used=0, reserved=615 * MIB)


def config(budget_gib: float | None = None, share: float | None = None) -> Any:
    return SimpleNamespace(engine=SimpleNamespace(memory_budget_gib=budget_gib, gpu_memory_utilization=share))


def gpu(memory: GpuMemory) -> Any:
    return SimpleNamespace(memory=lambda: memory, identity=lambda: SimpleNamespace(name="NVIDIA H100"))


@pytest.mark.parametrize(("memory", "share"), [(H100, 0.9202), (H200, 0.5207)])
def test_one_budget_on_two_cards(memory: GpuMemory, share: float) -> None:
    assert utilization_for(config(72.8), gpu(memory)) == share


def test_without_the_reserved_share_the_total_counts() -> None:
    assert utilization_for(config(40.0), gpu(GpuMemory(80 * GIB, 0, None))) == 0.5


def test_a_given_share_is_passed_on() -> None:
    assert utilization_for(config(share=0.92), gpu(H100)) == 0.92


def test_without_a_gpu_there_is_no_share() -> None:
    assert utilization_for(config(72.8), None) is None


def test_a_budget_larger_than_the_card_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"memory_budget_gib = 80: NVIDIA H100 has 79\.1 GiB"):
        utilization_for(config(80.0), gpu(H100))


def override(blocks: int, *, graphs_gib: float = 0.0, utilization: float = 0.92) -> None:
    check_override(
        blocks=blocks, natural_blocks=2000, block_bytes=4 * MIB, unestimated_graph_bytes=graphs_gib * GIB,
        memory=GpuMemory(80 * GIB, 0, None), utilization=utilization,
    )  # fmt: skip


def test_a_count_up_to_the_natural_one_always_fits() -> None:
    override(2000, graphs_gib=99, utilization=1.0)


def test_blocks_above_it_must_fit_outside_the_budget() -> None:
    override(2240, graphs_gib=0.15)
    with pytest.raises(PreflightError, match="above the 2000 blocks that fit"):
        override(2240, utilization=0.99)
    with pytest.raises(PreflightError, match="are needed outside the memory budget"):
        override(2240, graphs_gib=6.0)


def test_an_overestimate_of_the_graphs_gives_no_room() -> None:
    with pytest.raises(PreflightError):
        override(3600, graphs_gib=-5.0)
