"""The waiting span of a step trace in Python, to compare the view `waiting_spans` and the scheduling model with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.formats.steps import StepRow


@dataclass(frozen=True)
class WaitingSpan:
    """The steps from the first with a waiting request to the last token.

    `padded_share_full`: padding rows over padded rows of the FULL steps, 0-1; None without FULL steps.
    """

    steps: int
    mean_running: float
    preempted: int
    padded_share_full: float | None


def waiting_span(rows: Sequence[StepRow]) -> WaitingSpan | None:
    """The waiting span of a trace; None if no request ever waited or no token count was reported."""
    first = next((i for i, row in enumerate(rows) if row.waiting), None)
    if first is None:
        return None
    span = [row for row in rows[first:] if row.unpadded_tokens is not None]
    running = [row.running for row in span if row.running is not None]
    if not running:
        return None
    full = [row for row in span if row.runtime_mode == "FULL" and row.padded_tokens]
    padded = sum(row.padded_tokens or 0 for row in full)
    unpadded = sum(row.unpadded_tokens or 0 for row in full)
    return WaitingSpan(
        steps=len(span),
        mean_running=sum(running) / len(running),
        preempted=sum(row.preempted or 0 for row in span),
        padded_share_full=(padded - unpadded) / padded if padded else None,
    )
