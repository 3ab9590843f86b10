-- title: Cost of a million output tokens
-- part: Cost
-- note: GPU-hours of the load alone; and with the run's own warm start, as if each run were a replica's whole life. Money at the price a GPU-hour given with campaign report --price.
-- empty: No run counts yet.
SELECT setup, model, profile, arm, f3(mean95(1e6 / bench_output_tok_s / 3600)) AS gpu_hours_a_million_tokens, f3(mean95(1e6 * (f.start_s + f.duration_s) / bench_output_tokens / 3600)) AS with_a_start_a_run,
       CASE WHEN getvariable('price_per_gpu_hour') IS NULL THEN 'no price given' ELSE estimate_text(mean95(getvariable('price_per_gpu_hour')::DOUBLE * 1e6 / bench_output_tok_s / 3600)) END AS money_a_million_tokens
FROM runs JOIN run_figures f USING (folder) GROUP BY ALL ORDER BY ALL;
