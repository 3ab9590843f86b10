-- One row a run or prime with GPU samples: its energy, and what the samples say of the GPU. Over `attempts` and `telemetry`.

-- Energy since some moment, two ways: NVML's counter; the power samples joined by straight lines.
CREATE VIEW energy_curves AS
SELECT folder, 'counter' AS source, t_ns, energy_mj / 1e3 AS joules FROM telemetry WHERE energy_mj IS NOT NULL
UNION ALL
SELECT folder, 'integrated', t_ns, coalesce(sum(half_pj) OVER (PARTITION BY folder ORDER BY t_ns), 0) / 2e12
FROM (SELECT folder, t_ns, (power_mw + lag(power_mw) OVER w)::HUGEINT * (t_ns - lag(t_ns) OVER w) AS half_pj -- whole: sums to the same in any order
      FROM telemetry WHERE power_mw IS NOT NULL WINDOW w AS (PARTITION BY folder ORDER BY t_ns));

-- Either curve at the run's moments: linear between the two samples around it. NULL where there is no sample on both sides.
-- bracket_j: what was used between these two samples.
CREATE VIEW energy_at AS
SELECT m.folder, m.source, moment, CASE WHEN at_ns > t0 THEN j1 - j0 ELSE 0 END AS bracket_j, j0 + bracket_j * (at_ns - t0) / coalesce(nullif(t1 - t0, 0), 1) AS joules
FROM (UNPIVOT (SELECT folder, exec_ns, healthy_ns, window_begin_ns, window_end_ns, exited_ns, unnest(['counter', 'integrated']) AS source FROM attempts)
      ON exec_ns, healthy_ns, window_begin_ns, window_end_ns, exited_ns INTO NAME moment VALUE at_ns) m
ASOF JOIN (SELECT folder, source, t_ns AS t0, joules AS j0, lead(t_ns) OVER w AS t1, lead(joules) OVER w AS j1
           FROM energy_curves WINDOW w AS (PARTITION BY folder, source ORDER BY t_ns)) c
ON (m.folder, m.source) = (c.folder, c.source) AND at_ns >= t0
WHERE at_ns = t0 OR t1 IS NOT NULL;

-- A run's joules in four parts that add up to the total, from the engine's exec to its exit: start (to the first 200 of /health), ready
-- (to the load), window, tail. window_error_j bounds the reading's error, not the sensor's: all that was used between the two samples
-- around either edge, and in one update of the counter (100 ms).
CREATE VIEW energy_parts AS
SELECT folder, source, healthy_ns_j - exec_ns_j AS start_j, window_begin_ns_j - healthy_ns_j AS ready_j,
       window_end_ns_j - window_begin_ns_j AS window_j, exited_ns_j - window_end_ns_j AS tail_j, exited_ns_j - exec_ns_j AS total_j,
       window_begin_ns_bracket + window_end_ns_bracket + 0.1 * window_j / ((window_end_ns - window_begin_ns) / 1e9) AS window_error_j
FROM (PIVOT energy_at ON moment IN ('exec_ns', 'healthy_ns', 'window_begin_ns', 'window_end_ns', 'exited_ns')
      USING any_value(joules) AS j, any_value(bracket_j) AS bracket GROUP BY folder, source)
JOIN (SELECT folder, window_begin_ns, window_end_ns FROM attempts) USING (folder);

-- `source`: the counter where the device has one, else the power samples; one never stands in for the other.
-- Clock reasons of NVML: bit 4 the power limit; 8, 32, 64, 128 heat or hardware.
CREATE VIEW telemetry_facts AS
WITH seen AS (
    SELECT folder, t_ns, power_mw, energy_mj, memory_used_mib, temperature_c, sm_clock_mhz, throttle_reasons,
           exec_ns, exited_ns, t_ns BETWEEN window_begin_ns AND window_end_ns AS in_window, (t_ns - lag(t_ns) OVER w) / 1e9 AS gap_s,
           (energy_mj - lag(energy_mj IGNORE NULLS) OVER w) / 1e3 AS counted_j
    FROM telemetry JOIN attempts USING (folder) WINDOW w AS (PARTITION BY folder ORDER BY t_ns)
), still AS (
    SELECT folder, max(s) AS counter_still_s
    FROM (SELECT folder, (max(t_ns) - min(t_ns)) / 1e9 AS s FROM telemetry WHERE energy_mj IS NOT NULL GROUP BY folder, energy_mj) GROUP BY folder
), facts AS (
    SELECT folder, CASE WHEN count(energy_mj) > 0 THEN 'counter' WHEN count(power_mw) > 0 THEN 'integrated' END AS source,
           max(gap_s) AS largest_gap_s, (any_value(exec_ns) - min(t_ns)) / 1e9 AS exec_after_s, min(counted_j) AS least_counted_j,
           arg_min(memory_used_mib, t_ns) FILTER (t_ns <= exec_ns) AS first_memory_mib,
           arg_max(memory_used_mib, t_ns) FILTER (t_ns >= exited_ns) AS last_memory_mib,
           max(temperature_c) FILTER (in_window) AS hottest_c, avg(sm_clock_mhz) FILTER (in_window) AS sm_clock_mhz,
           100 * avg((throttle_reasons & 4 > 0)::INTEGER) FILTER (in_window) AS power_capped_pct,
           100 * avg((throttle_reasons & 232 > 0)::INTEGER) FILTER (in_window) AS slowed_pct
    FROM seen GROUP BY folder
), parts AS MATERIALIZED (FROM energy_parts)
SELECT f.*, counter_still_s, p.* EXCLUDE (folder, source), i.window_j AS window_integrated_j
FROM facts f LEFT JOIN still USING (folder)
LEFT JOIN parts p USING (folder, source)
LEFT JOIN parts i ON i.folder = f.folder AND i.source = 'integrated';
