-- title: Where the longer engine init goes
-- note: Each arm less eager, paired by block. Accounted: (capture + compile) / engine-init difference. The shares are quotients of means, without interval. None: the arm has no such phase.
-- empty: Needs blocks with eager and another arm.
WITH phases AS (SELECT setup, model, arm, bool_or(compiles) AS compiles, bool_or(captures) AS captures FROM starts WHERE kind = 'run' AND warm GROUP BY ALL),
parts AS (
    SELECT setup, model, arm, any_value(difference) FILTER (metric = 'engine_init_s') AS init,
           any_value(difference) FILTER (metric = 'capture_s') AS capture, any_value(difference) FILTER (metric = 'compile_s') AS compile
    FROM against_eager WHERE profile = '(all)' AND arm <> 'eager' GROUP BY ALL
)
SELECT setup, model, arm, f2(init) AS engine_init_difference_s, f1(CASE WHEN captures THEN capture ELSE none_of(capture.n) END) AS capture_s,
       f1(plain(CASE WHEN captures THEN 100 * capture.mean / nullif(init.mean, 0) END, capture.n)) AS capture_pct,
       f2(CASE WHEN compiles THEN compile ELSE none_of(compile.n) END) AS compile_s, f1(plain(CASE WHEN compiles THEN 100 * compile.mean / nullif(init.mean, 0) END, compile.n)) AS compile_pct,
       f1(plain(100 * (capture.mean + compile.mean) / nullif(init.mean, 0), CASE WHEN capture.n + compile.n > 0 THEN least(capture.n, compile.n) END)) AS accounted_pct
FROM parts JOIN phases USING (setup, model, arm) WHERE init IS NOT NULL ORDER BY setup, model, arm;
