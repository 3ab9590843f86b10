"""Gates on the GPU: was it free, cool and at its clocks, and is the energy that was read to be believed.

A reason whose code begins with `energy_` leaves the run's other figures valid; its energy then counts as not measured.
"""

from analysis.gate import Evidence, Seen

IDLE_LIMIT_MIB = 2048  # more than this before a start is somebody else's
MEMORY_SLACK_MIB = 512  # above the reading before the start: freed
SLOWED_PCT = 1.0
HEAT_MARGIN_C = 3
GAP_S = 1.0  # ten sampling intervals
STILL_S = 3.0
DISAGREE = 0.05
OVER_LIMIT = 0.02  # the board's own regulation
LEAST_WINDOW_S = 5.0  # shorter: the counter's updates (100 ms) are too coarse


def foreign_processes(e: Evidence) -> Seen:
    """No other process used the GPU before the start or in the window."""
    r = e.record
    for pids, when in ((r.gpu_processes_before, "before the start"), (r.gpu_processes_in_window, "in the window")):
        if pids:
            yield f"processes {', '.join(map(str, pids))} {when}"


def gpu_memory_in_use(e: Evidence) -> Seen:
    """The GPU's memory was free before the start and again after the end."""
    first, after = e.gpu.first_memory_mib, e.gpu.last_memory_mib
    before = e.record.idle_gpu_memory_mib if e.record.idle_gpu_memory_mib is not None else first
    if max(before or 0, first or 0) > IDLE_LIMIT_MIB:
        yield f"{max(before or 0, first or 0)} MiB before the start"
    if before is not None and after is not None and after > before + MEMORY_SLACK_MIB:
        yield f"{after} MiB at the last sample, {before} MiB before the start"


def gpu_slowed(e: Evidence) -> Seen:
    """Heat and hardware lowered the clocks in at most SLOWED_PCT percent of the window's samples."""
    if (slowed_pct := e.gpu.slowed_pct or 0) > SLOWED_PCT:
        yield f"{slowed_pct:.1f}% of the samples"


def gpu_slowed_briefly(e: Evidence) -> Seen:
    """Heat and hardware did not lower the clocks in the window."""
    if 0 < (slowed_pct := e.gpu.slowed_pct or 0) <= SLOWED_PCT:
        yield f"{slowed_pct:.1f}% of the samples"


def gpu_hot(e: Evidence) -> Seen:
    """The GPU stayed HEAT_MARGIN_C degrees or more below the temperature at which it slows down."""
    limit, hottest = e.card.get("temperature_slowdown_c"), e.gpu.hottest_c
    if limit is not None and hottest is not None and hottest > limit - HEAT_MARGIN_C:
        yield f"{hottest} °C in the window, it slows down at {limit} °C"


def telemetry_missing(e: Evidence) -> Seen:
    """A run on a GPU has telemetry."""
    if e.record.gpu and e.record.instruments and e.telemetry is None:
        yield e.record.telemetry_absent_reason or "no samples"


def telemetry_gap(e: Evidence) -> Seen:
    """The GPU was sampled without a gap of more than GAP_S seconds."""
    if (gap_s := e.gpu.largest_gap_s or 0) > GAP_S:
        yield f"{gap_s:.1f} s without a sample"


def energy_unsupported(e: Evidence) -> Seen:
    """The GPU reports energy or power."""
    if e.telemetry and e.telemetry.source is None:
        yield "neither an energy counter nor power samples"


def energy_not_bracketed(e: Evidence) -> Seen:
    """The samples reach over both edges of the window."""
    if e.gpu.source and e.window_s is not None and e.gpu.window_j is None:
        yield "no sample before the window's begin, or none after its end"


def energy_window_short(e: Evidence) -> Seen:
    """The window is LEAST_WINDOW_S seconds or longer."""
    if e.telemetry and e.window_s is not None and e.window_s < LEAST_WINDOW_S:
        yield f"{e.window_s:.2f} s"


def energy_counter_static(e: Evidence) -> Seen:
    """The energy counter moves at least every STILL_S seconds."""
    if (still_s := e.gpu.counter_still_s or 0) >= STILL_S:
        yield f"equal readings over {still_s:.1f} s"


def energy_counter_reset(e: Evidence) -> Seen:
    """The energy counter never goes back."""
    if (least_j := e.gpu.least_counted_j or 0) < 0:
        yield f"it went back by {-least_j:.1f} J"


def energy_disagrees(e: Evidence) -> Seen:
    """Counter and integrated power agree within the share DISAGREE over the window."""
    counted_j, integrated_j = e.gpu.window_j, e.gpu.window_integrated_j
    if counted_j and integrated_j is not None and abs(integrated_j - counted_j) > DISAGREE * abs(counted_j):
        yield f"counter {counted_j:.0f} J, integrated power {integrated_j:.0f} J"


def energy_above_limit(e: Evidence) -> Seen:
    """The window's energy is within the board's power limit and the share OVER_LIMIT of it."""
    limit_mw, window_j = e.card.get("power_limit_mw"), e.gpu.window_j
    if window_j is not None and e.window_s is not None and limit_mw is not None:
        most_j = (1 + OVER_LIMIT) * limit_mw / 1e3 * e.window_s
        if window_j - (e.gpu.window_error_j or 0) > most_j:
            yield f"{window_j:.0f} J in {e.window_s:.1f} s; the limit allows {most_j:.0f} J"
