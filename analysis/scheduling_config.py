"""What decides an engine's steps: pool, limits, captured sizes and the padding that follows from them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
RuntimeMode = Literal["NONE", "PIECEWISE", "FULL"]


class SchedulingError(ValueError):
    """A configuration or request that the engine would refuse; the text names the value and what is
    allowed."""


def default_capture_sizes(max_num_seqs: int = 1024, max_capture: int = 512) -> tuple[int, ...]:
    """Batch sizes captured by default: 1, 2, 4, then every 8 below 256, then every 16 (51 sizes up to
    512)."""
    largest = min(max_num_seqs * 2, max_capture)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What decides the steps. Defaults are `vllm serve` 0.23.0 on a card of 70 GiB or more."""

    num_gpu_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int = 4096
    capture_sizes: tuple[int, ...] = ()  # empty: no graphs
    graph_mode: GraphMode = "FULL_AND_PIECEWISE"
    asynchronous: bool = True  # False on the CPU build

    def __post_init__(self) -> None:
        for name in (
            "num_gpu_blocks",
            "block_size",
            "max_num_batched_tokens",
            "max_num_seqs",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise SchedulingError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if list(self.capture_sizes) != sorted(set(self.capture_sizes)):
            raise SchedulingError(f"capture_sizes {self.capture_sizes} must be ascending and distinct")

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold tokens: one is the reserved null block."""
        return self.num_gpu_blocks - 1

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def padded(self, tokens: int, uniform_decode: bool) -> tuple[int, RuntimeMode]:
        """Tokens after padding to a captured size, and the runtime mode (`v1/cudagraph_dispatcher.py`)."""
        sizes, mode = self.capture_sizes, self.graph_mode
        if not sizes or mode == "NONE" or tokens > sizes[-1]:
            return tokens, "NONE"
        size = sizes[bisect_left(sizes, tokens)]
        if mode == "FULL" or (uniform_decode and size <= self.max_num_seqs and mode != "PIECEWISE"):
            return size, "FULL"
        return (tokens, "NONE") if mode == "FULL_DECODE_ONLY" else (size, "PIECEWISE")
