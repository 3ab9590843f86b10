-- title: Cold start, warm compile cache
-- part: Start and memory
-- note: Seconds from exec to the first 200 of /health (polled every 20 ms) and to the first token of a probe request. Runs of all profiles pooled: the load comes after. Difference: paired by block. Runs that found a cold compile cache are left out and counted in the last column.
-- chart: cold_start
SELECT e.setup, e.model, e.arm,
       f2(any_value(e.estimate) FILTER (e.metric = 'start_s')) AS to_health_s,
       f2(any_value(a.difference) FILTER (e.metric = 'start_s')) AS to_health_minus_eager_s,
       f2(any_value(e.estimate) FILTER (e.metric = 'first_token_s')) AS to_first_token_s,
       f2(any_value(a.difference) FILTER (e.metric = 'first_token_s')) AS to_first_token_minus_eager_s,
       (SELECT count(*) FROM starts s WHERE s.kind = 'run' AND NOT s.warm AND (s.setup, s.model, s.arm) = (e.setup, e.model, e.arm)) AS cold_runs_left_out
FROM estimates e LEFT JOIN against_eager a USING (setup, metric, model, profile, arm)
WHERE e.profile = '(all)' AND e.metric IN ('start_s', 'first_token_s')
GROUP BY ALL ORDER BY ALL;
