"""Paired comparisons of two arms: ratio on the log scale, 95% t interval, exact sign-flip permutation test.

Pure. What SQL cannot say well is computed here once at load; the tables read the result from `effects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import exp, log, sqrt
from statistics import fmean, stdev

import numpy as np
from scipy.stats import t as student_t

MAX_EXACT_BLOCKS = 20  # 2**20 sign patterns; beyond it no p is given
_QUANTILE = 0.975


@dataclass(frozen=True)
class Value:
    """One figure of one counted run."""

    setup: str
    metric: str
    model: str
    profile: str
    arm: str
    block_id: str
    value: float


@dataclass(frozen=True)
class Effect:
    """`arm_a` over `arm_b` over the `n` blocks that have both.

    `ratio`, `lo`, `hi` (95%), `verdict`, `p` and `points` (one ratio a block, in block order) are None where
    a figure is not positive; `lo`, `hi` and the difference's interval are None for n = 1.
    `verdict`: `higher`, `lower` or `not resolved` (the interval holds 1, or there is none).
    """

    setup: str
    metric: str
    model: str
    profile: str
    arm_a: str
    arm_b: str
    n: int
    ratio: float | None
    lo: float | None
    hi: float | None
    verdict: str | None
    p: float | None
    points: tuple[float, ...] | None
    difference: float
    difference_lo: float | None
    difference_hi: float | None


@cache
def t975(df: int) -> float:
    """97.5% quantile of Student's t with `df` degrees of freedom."""
    return float(student_t.ppf(_QUANTILE, df))


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and its 95% t interval; no interval for one value."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, None, None
    half = t975(len(values) - 1) * stdev(values) / sqrt(len(values))
    return mean, mean - half, mean + half


def permutation_p(differences: Sequence[float]) -> float | None:
    """Two-sided exact p of a zero mean under sign flips of paired differences; None above MAX_EXACT_BLOCKS.

    With n pairs it cannot fall below 2 / 2**n: 0.0625 for five.
    """
    if not differences or len(differences) > MAX_EXACT_BLOCKS:
        return None
    sums = np.zeros(1)
    for d in differences:
        sums = np.concatenate((sums + d, sums - d))
    observed = abs(sums[0])
    return float(np.mean(np.abs(sums) >= observed * (1 - 1e-12)))


def verdict(lo: float | None, hi: float | None) -> str:
    if lo is not None and lo > 1:
        return "higher"
    return "lower" if hi is not None and hi < 1 else "not resolved"


def compute_effects(values: Sequence[Value]) -> list[Effect]:
    """Every ordered pair of arms in every setup, metric, model and profile, in that order."""
    cells: dict[tuple[str, str, str, str], dict[str, dict[str, float]]] = {}
    for v in values:
        cells.setdefault((v.setup, v.metric, v.model, v.profile), {}).setdefault(v.arm, {})[v.block_id] = (
            v.value
        )
    effects = []
    for cell, arms in sorted(cells.items()):
        for a, b in permutations(sorted(arms), 2):
            blocks = sorted(arms[a].keys() & arms[b].keys())
            if blocks:
                effects.append(_effect(cell, a, b, [(arms[a][k], arms[b][k]) for k in blocks]))
    return effects


def _effect(cell: tuple[str, str, str, str], a: str, b: str, pairs: list[tuple[float, float]]) -> Effect:
    difference = interval([x - y for x, y in pairs])
    if any(x <= 0 or y <= 0 for x, y in pairs):
        return Effect(*cell, a, b, len(pairs), None, None, None, None, None, None, *difference)
    logs = [log(x / y) for x, y in pairs]
    mean, low, high = interval(logs)
    lo, hi = (None if low is None else exp(low)), (None if high is None else exp(high))
    points = tuple(x / y for x, y in pairs)
    p = permutation_p(logs)
    return Effect(*cell, a, b, len(pairs), exp(mean), lo, hi, verdict(lo, hi), p, points, *difference)
