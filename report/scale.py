"""The scale of an axis: from 0, cut (not from 0), `log`, or `root`, a square root, which spreads small values and has a
0."""

from collections.abc import Callable, Sequence
from math import ceil, floor, log10, sqrt

Place = Callable[[float], float]
_Values = Sequence[float]
_BENDS: dict[str, tuple[Place, Place]] = {"log": (log10, lambda b: 10**b), "root": (sqrt, lambda b: b * b)}


def scale(values: _Values, begin: float, end: float, axis: str, ends: _Values = ()) -> tuple[Place, list[float]]:
    """Where a value lies between `begin` and `end`, and the marks. `values` set the scale; `ends` of intervals widen it
    by half at most, and what lies beyond is placed at its edge."""
    bend, back = _BENDS.get(axis, (float, float))
    bent = [bend(v) for v in values] + ([] if axis in ("cut", "log") else [0.0])
    spread = max(bent) - min(bent)
    low, high = min(bent) - (spread / 2 if axis in ("cut", "log") else 0), max(bent) + spread / 2
    bent += [bend(v) for v in ends if (v > 0 or axis != "log") and low <= bend(v) <= high]
    margin = spread * 0.06 or abs(bent[0]) * 0.05 or 1.0
    low = min(bent) - (margin if axis in ("cut", "log") or min(bent) < 0 else 0)
    high = max(bent) + margin

    def place(value: float) -> float:
        at = low if axis == "log" and value <= 0 else min(max(bend(value), low), high)
        return begin + (at - low) / (high - low) * (end - begin)

    least, most = back(low), back(high)
    if axis not in _BENDS or 0 < most < 4 * least:
        return place, ticks(least, most)
    tens = range(floor(log10(least or most / 1000)), ceil(log10(most)))
    marks: list[float] = []
    for mark in (1, 0, *(f * 10.0**ten for ten in tens for f in (1, 2, 5))):  # 1 first: no change, a full pool
        if least <= mark <= most and all(abs(place(mark) - place(other)) > 36 for other in marks):
            marks.append(mark)
    return place, sorted(marks)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that lie in low..high."""
    step = 10 ** floor(log10((high - low) / count))
    step = next(step * f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= count)
    return [round(i * step, 10) for i in range(ceil(low / step), floor(high / step) + 1)]
