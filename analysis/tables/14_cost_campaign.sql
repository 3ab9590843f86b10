-- title: Cost of this campaign
-- note: GPU time of every attempt on record, counted or not, from the first to the last moment of the run. Windows: the part in which the load ran; none where none began.
-- empty: No run on record.
SELECT kind, CASE WHEN kind = 'prime' THEN 'first starts' WHEN counted THEN 'counted' ELSE 'set aside' END AS what, count(*) AS attempts, d3(sum(seconds(run_begin_ns, run_end_ns)) / 3600) AS gpu_hours,
       CASE WHEN count(window_begin_ns) = 0 THEN 'none' ELSE d3(sum(seconds(window_begin_ns, window_end_ns)) / 3600)::VARCHAR END AS of_which_windows_hours,
       coalesce(d2(getvariable('price_per_gpu_hour')::DOUBLE * sum(seconds(run_begin_ns, run_end_ns)) / 3600)::VARCHAR, 'no price given') AS money
FROM runs GROUP BY ALL ORDER BY kind DESC, what;
