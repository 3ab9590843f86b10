-- title: Where the longer engine init goes
-- note: Each arm less eager, paired by block. Accounted: (capture + compile) / engine-init difference.
-- empty: Needs blocks with eager and another arm.
SELECT setup, model, arm, f2(init) AS engine_init_difference_s, f1(capture) AS capture_s, d1(100 * capture.mean / nullif(init.mean, 0)) AS capture_pct,
       f2(compile) AS compile_s, d1(100 * compile.mean / nullif(init.mean, 0)) AS compile_pct,
       d1(100 * (capture.mean + compile.mean) / nullif(init.mean, 0)) AS accounted_pct
FROM (
    SELECT setup, model, arm, any_value(difference) FILTER (metric = 'engine_init_s') AS init,
           any_value(difference) FILTER (metric = 'capture_s') AS capture, any_value(difference) FILTER (metric = 'compile_s') AS compile
    FROM against_eager WHERE profile = '(all)' AND arm <> 'eager' GROUP BY ALL
) WHERE init IS NOT NULL ORDER BY setup, model, arm;
