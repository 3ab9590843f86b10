"""The imagined card and the two model shapes: memory, step times and start-up times.

Figures follow the recorded runs (32B on an H200) and their log lines; the 7B scales them. Simulated figures
are for exercise, not for conclusions.
"""

from dataclasses import dataclass

from analysis.scheduling import Step

CARD_GIB = 79.18  # 72.8 GiB at the default --gpu-memory-utilization 0.92
WORKSPACE_GIB = 2.43  # activations and library memory, besides weights, graphs and KV cache
GIB = 1 << 30
MAX_POSITION_EMBEDDINGS = 32768


@dataclass(frozen=True, slots=True)
class Shape:
    weights_gib: float
    kv_bytes_per_token: int
    layers: int
    decode_ms: float  # a decode step without launch limits, extrapolated to no tokens
    decode_ms_per_token: float
    prefill_ms_per_token: float
    graph_estimate_gib: float  # per captured graph
    graph_actual_gib: float
    capture_s: float  # per captured graph
    compile_cold_s: float
    compile_warm_s: float

    def step_ms(self, step: Step, compiled: bool) -> float:
        """Duration of an engine step: the larger of the card's time and the host's time to launch kernels."""
        tokens = step.padded_tokens or 0
        if not tokens:
            return 0.05
        decode = self.decode_ms + self.decode_ms_per_token * min(tokens, 512)
        launch = {"FULL": 0.0, "PIECEWISE": 0.2}.get(step.runtime_mode or "", 0.5 if compiled else 0.4)
        return max(decode, self.prefill_ms_per_token * tokens, launch * self.layers)


SEVEN_B = Shape(14.25, 57_344, 28, 4.6, 0.02, 0.0225, 0.0049, 0.0057, 0.055, 18.0, 4.2)
THIRTY_TWO_B = Shape(61.04, 262_144, 64, 18.0, 0.08, 0.0983, 0.00882, 0.0100, 0.088, 33.9, 9.7)


def shape_of(model: str) -> Shape:
    """By the model's name: a 32B if it says so, else a 7B."""
    return THIRTY_TWO_B if "32b" in model.lower() else SEVEN_B
