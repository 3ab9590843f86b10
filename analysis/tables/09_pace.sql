-- title: How steady a decode step was
-- note: Milliseconds a step, of the steps that only decode (no prompt tokens) at the number of running requests that is commonest in the run; quantiles within a run, then the mean over runs. Least p10: of the run in which it was least. A step with graphs is launched whole and waits for the GPU; an eager step is launched kernel by kernel and waits for the host's CPU, too. Where p90 is far above p10 in eager arms alone, the host was disturbed: that can only slow eager down, and the least p10 is nearest to what a quiet host gives (a run can be slow throughout). Stolen: CPU time in per cent that a virtual machine's host gave to others, of the CPUs given to the run, where the system tells it.
-- empty: Not measured: no counted run has a step trace.
WITH commonest AS (
    SELECT folder, mode(running) AS running FROM decode_steps GROUP BY folder
), runs_ms AS (
    SELECT setup, model, profile, arm, folder, running, cpu_stolen_pct, count(*) AS steps, quantile_cont(ms, 0.1) AS p10, quantile_cont(ms, 0.5) AS p50, quantile_cont(ms, 0.9) AS p90
    FROM decode_steps JOIN commonest USING (folder, running) JOIN (SELECT folder, cpu_stolen_pct FROM runs) USING (folder) GROUP BY ALL
)
SELECT setup, model, profile, arm, span_text(min(running), max(running)) AS running, span_text(min(steps), max(steps)) AS decode_steps,
       d2(min(p10)) AS least_p10_ms, f2(mean95(p10)) AS p10_ms, f2(mean95(p50)) AS p50_ms, f2(mean95(p90)) AS p90_ms, d2(max(p90 / p10)) AS greatest_p90_over_p10,
       f2(mean95(cpu_stolen_pct)) AS stolen_pct
FROM runs_ms GROUP BY setup, model, profile, arm ORDER BY ALL;
