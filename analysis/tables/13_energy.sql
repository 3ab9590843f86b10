-- title: Energy and clocks over the window
-- part: Energy
-- note: NVML's energy counter, read linearly between the samples around each edge of the client's window: the energy of the load itself, not of a fixed span. Ratio: output tokens per joule, against eager. SM clock: mean of the samples (every 100 ms). Power-capped, slowed: share of samples in which NVML names the power limit, or heat or hardware, as a reason for a lower clock. Needs telemetry. With random weights energy is only a bound, so its ratios say little of trained ones.
-- chart: power
SELECT r.setup, r.model, r.profile, r.arm, f0(any_value(estimate) FILTER (metric = 'window_j')) AS window_j, f3(any_value(estimate) FILTER (metric = 'tok_per_j')) AS output_tokens_per_j,
       f3(any_value(a.ratio) FILTER (metric = 'tok_per_j')) AS ratio_to_eager, coalesce(any_value(a.verdict) FILTER (metric = 'tok_per_j'), '') AS verdict,
       f1(any_value(estimate) FILTER (metric = 'mean_power_w')) AS mean_power_w, f0(any_value(estimate) FILTER (metric = 'sm_clock_mhz')) AS sm_clock_mhz,
       f1(any_value(estimate) FILTER (metric = 'power_capped_pct')) AS power_capped_pct, f1(any_value(estimate) FILTER (metric = 'slowed_pct')) AS slowed_pct
FROM (SELECT DISTINCT setup, model, profile, arm FROM runs WHERE counted AND kind = 'run') r
LEFT JOIN estimates e USING (setup, model, profile, arm)
LEFT JOIN against_eager a USING (setup, model, profile, arm, metric)
GROUP BY r.setup, r.model, r.profile, r.arm ORDER BY ALL;
