-- title: How steady a decode step was
-- note: Milliseconds a step, of the steps that only decode at the number of decoding requests that is commonest in the run; quantiles within a run, then the mean over runs. Least p10: of the run in which it was least. Longest spell: of all decode steps one after the other that took more than 1.1 times the 10th percentile of their like in the cell and arm, in the run that had the longest. A step with graphs is launched whole and waits for the GPU; an eager step is launched kernel by kernel and waits for the host's CPU, too. Where p90 is far above p10 in arms without graphs alone, the host was likely late: that can only slow them, and the least p10 is nearest to what a quiet host gives (a run can be slow throughout). Stolen: CPU time in per cent that a virtual machine's host gave to others, of the CPUs given to the run, where the system tells it.
-- empty: Not measured: no counted run has a step trace.
WITH commonest AS (
    SELECT folder, mode(decoding) AS decoding FROM decode_steps GROUP BY folder
), slow AS (
    SELECT folder, ms, ms > 1.1 * q[2] AS is_slow, count(*) FILTER (ms <= 1.1 * q[2]) OVER (PARTITION BY folder ORDER BY step) AS spell
    FROM decode_steps JOIN usual_steps USING (setup, model, profile, arm, decoding)
), longest AS (
    SELECT folder, coalesce(max(spell_s), 0) AS spell_s FROM (SELECT folder, sum(ms) FILTER (is_slow) / 1e3 AS spell_s FROM slow GROUP BY folder, spell) GROUP BY folder
), runs_ms AS (
    SELECT setup, model, profile, arm, folder, decoding, spell_s, cpu_stolen_pct, count(*) AS steps, quantile_cont(ms, 0.1) AS p10, quantile_cont(ms, 0.5) AS p50, quantile_cont(ms, 0.9) AS p90
    FROM decode_steps JOIN commonest USING (folder, decoding) LEFT JOIN longest USING (folder) JOIN (SELECT folder, cpu_stolen_pct FROM runs) USING (folder) GROUP BY ALL
)
SELECT setup, model, profile, arm, span_text(min(decoding), max(decoding)) AS decoding, span_text(min(steps), max(steps)) AS decode_steps,
       d2(min(p10)) AS least_p10_ms, f2(mean95(p10)) AS p10_ms, f2(mean95(p50)) AS p50_ms, f2(mean95(p90)) AS p90_ms, d2(max(p90 / p10)) AS greatest_p90_over_p10,
       d1(max(spell_s)) AS longest_spell_s, f2(mean95(cpu_stolen_pct)) AS stolen_pct
FROM runs_ms GROUP BY setup, model, profile, arm ORDER BY ALL;
