"""The memory budget as a share of the card, and block counts above what profiling found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner.errors import PreflightError
from runner.memory import GIB, check_override, utilization_for
from runner.nvml import GpuMemory
from tests.records import record

MIB = 2**20
H100 = GpuMemory(total=81559 * MIB, used=0, reserved=551 * MIB)
H200 = GpuMemory(total=143771 * MIB, used=0, reserved=615 * MIB)


def config(budget_gib: float | None = None, share: float | None = None, kind: str = "vllm") -> Any:
    engine = SimpleNamespace(memory_budget_gib=budget_gib, gpu_memory_utilization=share, kind=kind)
    return SimpleNamespace(engine=engine)


def gpu(memory: GpuMemory) -> Any:
    return SimpleNamespace(memory=lambda: memory, identity=lambda: SimpleNamespace(name="NVIDIA H100"))


@pytest.mark.parametrize(("memory", "share"), [(H100, 0.9202), (H200, 0.5207)])
def test_one_budget_on_two_cards(memory: GpuMemory, share: float) -> None:
    assert utilization_for(config(72.8), gpu(memory)) == share


def test_a_given_share_is_passed_on() -> None:
    assert utilization_for(config(share=0.92), gpu(H100)) == 0.92


def test_without_a_gpu_there_is_no_share_but_the_stand_ins() -> None:
    assert utilization_for(config(72.8), None) is None
    assert utilization_for(config(72.8, kind="stand-in"), None) == 0.9194


def test_a_budget_larger_than_the_card_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"memory_budget_gib = 80: NVIDIA H100 has 79\.1 GiB"):
        utilization_for(config(80.0), gpu(H100))


def override(blocks: int, *, graphs_gib: float = 0.0, share: float = 0.92) -> None:
    facts = {"available_kv_gib": 7.8125, "estimated_graph_gib": 1.0, "graph_pool_actual_gib": 1.0 + graphs_gib}
    prime = record("7b.graphs.prime", num_gpu_blocks_natural=2000, server_log=facts)
    check_override(config(share=share), gpu(GpuMemory(80 * GIB, 0, 0)), blocks, prime)


def test_a_count_up_to_the_natural_one_always_fits() -> None:
    override(2000, graphs_gib=99, share=1.0)


def test_blocks_above_it_must_fit_outside_the_budget() -> None:
    override(2240, graphs_gib=0.15)
    with pytest.raises(PreflightError, match="more than the 2000 that fit"):
        override(2240, share=0.99)
    with pytest.raises(PreflightError, match="are needed outside the memory budget"):
        override(2240, graphs_gib=6.0)


def test_an_overestimate_of_the_graphs_gives_no_room() -> None:
    with pytest.raises(PreflightError):
        override(3600, graphs_gib=-5.0)


def test_an_eager_arm_has_no_graphs_to_count() -> None:
    prime = record("7b.eager.prime", num_gpu_blocks_natural=2000, server_log={"available_kv_gib": 7.8125})
    check_override(config(share=0.92), gpu(GpuMemory(80 * GIB, 0, 0)), 2240, prime)
