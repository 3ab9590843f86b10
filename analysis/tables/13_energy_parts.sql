-- title: Energy of a run, part by part
-- note: Means over runs, from the engine's exec to its exit: start (to the first 200 of /health), ready (probe, waiting for the client, warm-up), window (the load), tail. The parts add up to the total. Error bound: what was used between the two samples around either edge of the window and in one update of the counter; the largest of the runs. Integrated: the window again, from the power samples alone; more than 5% apart, the energy counts as not measured. The sensors' own error is not in it.
-- empty: No energy on record.
SELECT setup, model, profile, arm, any_value(source) AS source, count(total_j) AS runs, f0(mean95(start_j)) AS start_j, f0(mean95(ready_j)) AS ready_j, f0(mean95(window_j)) AS window_j,
       f0(mean95(tail_j)) AS tail_j, f0(mean95(total_j)) AS total_j, d0(max(window_error_j)) AS window_error_bound_j, f0(mean95(window_integrated_j)) AS window_integrated_j,
       count(*) - count(total_j) AS runs_without, coalesce(string_agg(DISTINCT absent, '; ' ORDER BY absent), '') AS why
FROM energy JOIN runs USING (folder) WHERE counted AND kind = 'run' GROUP BY setup, model, profile, arm ORDER BY ALL;
