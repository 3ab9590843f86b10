-- title: How steady a decode step was
-- note: Milliseconds a step, of five decode steps in a row on average (steps that only decode), at the number of decoding requests that is commonest among them in the run; quantiles within a run, then the mean over runs. Least p10: of the run in which it was least. Longest spell: of all such fives one after the other that took more than 1.1 times the 10th percentile of their like in the cell and arm (20 or more), in the run that had the longest; their own time, without that of steps in between. A step with graphs is launched whole and waits for the GPU; an eager step is launched kernel by kernel and waits for the host's CPU, too. Where p90 is far above p10 in arms without graphs alone, the host was likely late: that can only slow them, and the least p10 is nearest to what a quiet host gives (a run can be slow throughout). Slow throughout: runs that spent over 80% of the time of their fives in such of more than 1.2 times the 10th percentile of their like. Busy and stolen: CPU time in per cent of the CPUs given to the run, mean from the load's begin to the client's end; stolen is what a virtual machine's host gave to others, where the system tells it. One thread that launches kernels all the time is one CPU: of sixteen, 6%.
-- empty: Not measured: no counted run has a step trace.
WITH commonest AS (
    SELECT folder, mode(decoding) AS decoding FROM decode_fives GROUP BY folder
), slow AS (
    SELECT folder, ms, ms > 1.1 * q[2] AS is_slow, count(*) FILTER (ms <= 1.1 * q[2]) OVER (PARTITION BY folder ORDER BY first_step) AS spell
    FROM decode_fives JOIN usual_steps USING (setup, model, profile, arm, decoding)
), longest AS (
    SELECT folder, coalesce(max(spell_s), 0) AS spell_s FROM (SELECT folder, 5 * sum(ms) FILTER (is_slow) / 1e3 AS spell_s FROM slow GROUP BY folder, spell) GROUP BY folder
), runs_ms AS (
    SELECT setup, model, profile, arm, folder, decoding, spell_s, cpu_busy_pct, cpu_stolen_pct, 5 * count(*) AS steps, quantile_cont(ms, 0.1) AS p10, quantile_cont(ms, 0.5) AS p50, quantile_cont(ms, 0.9) AS p90
    FROM decode_fives JOIN commonest USING (folder, decoding) LEFT JOIN longest USING (folder) JOIN (SELECT folder, cpu_busy_pct, cpu_stolen_pct FROM runs) USING (folder) GROUP BY ALL
)
SELECT setup, model, profile, arm, span_text(min(decoding), max(decoding)) AS decoding, span_text(min(steps), max(steps)) AS decode_steps,
       d2(min(p10)) AS least_p10_ms, f2(mean95(p10)) AS p10_ms, f2(mean95(p50)) AS p50_ms, f2(mean95(p90)) AS p90_ms, d2(max(p90 / p10)) AS greatest_p90_over_p10,
       d1(max(spell_s)) AS longest_spell_s, any_value(slow || ' of ' || runs) AS slow_throughout, f1(mean95(cpu_busy_pct)) AS busy_pct, f2(mean95(cpu_stolen_pct)) AS stolen_pct
FROM runs_ms LEFT JOIN slow_throughout USING (setup, model, profile, arm) GROUP BY setup, model, profile, arm ORDER BY ALL;
