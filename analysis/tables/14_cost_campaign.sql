-- title: Cost of this campaign
-- note: GPU time of every attempt on record, counted or not, from the first to the last moment of the run. Windows: the part in which the load ran.
-- empty: No run on record.
SELECT kind, CASE WHEN kind = 'prime' THEN 'first starts' WHEN counted THEN 'counted' ELSE 'set aside' END AS what, count(*) AS attempts, d2(sum(seconds(run_begin_ns, run_end_ns)) / 3600) AS gpu_hours,
       d2(coalesce(sum(seconds(window_begin_ns, window_end_ns)), 0) / 3600) AS of_which_windows_hours,
       coalesce(d2(getvariable('price_per_gpu_hour')::DOUBLE * sum(seconds(run_begin_ns, run_end_ns)) / 3600)::VARCHAR, 'no price given') AS money
FROM runs GROUP BY ALL ORDER BY kind DESC, what;
