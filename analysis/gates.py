"""Validity: what must hold before a run's figures are believed; every gate, and how a run is judged."""

from analysis import gates_engine, gates_gpu, gates_load, gates_record
from analysis.formats.run_record import Reason
from analysis.gate import Evidence, Gate, gates_in

__all__ = ["GATES", "Evidence", "Gate", "judge"]

GATES = tuple(gate for module in (gates_load, gates_engine, gates_gpu, gates_record) for gate in gates_in(vars(module)))


def judge(evidence: Evidence) -> tuple[Reason, ...]:
    """The gates that fire, in the order of GATES, each with what it saw and the next step."""
    seen = ((gate, next(gate.check(evidence), None)) for gate in GATES)
    return tuple(gate.reason(text) for gate, text in seen if text is not None)
