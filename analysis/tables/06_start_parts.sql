-- title: What a warm start consists of
-- note: Seconds. Engine init, torch.compile, capture (whole seconds) and load are the engine's own log lines; rest of init is engine init less compile and capture (profiling, KV allocation, warm-up); outside is exec to /health less load and engine init (imports, processes, API server). None: the arm has no such phase.
-- chart: start_parts
WITH phases AS (SELECT setup, model, arm, bool_or(compiles) AS compiles, bool_or(captures) AS captures FROM starts WHERE kind = 'run' AND warm GROUP BY ALL)
SELECT setup, model, arm,
       f2(any_value(estimate) FILTER (metric = 'start_s')) AS to_health_s, f2(any_value(estimate) FILTER (metric = 'load_s')) AS load_s,
       f2(any_value(estimate) FILTER (metric = 'engine_init_s')) AS engine_init_s, f2(CASE WHEN compiles THEN any_value(estimate) FILTER (metric = 'compile_s') ELSE none_of(max(estimate.n)) END) AS of_which_compile_s,
       f1(CASE WHEN captures THEN any_value(estimate) FILTER (metric = 'capture_s') ELSE none_of(max(estimate.n)) END) AS of_which_capture_s, f2(any_value(estimate) FILTER (metric = 'init_rest_s')) AS of_which_rest_s,
       f2(any_value(estimate) FILTER (metric = 'outside_s')) AS outside_s
FROM estimates JOIN phases USING (setup, model, arm) WHERE profile = '(all)' AND metric IN ('start_s', 'load_s', 'engine_init_s', 'compile_s', 'capture_s', 'init_rest_s', 'outside_s')
GROUP BY setup, model, arm, compiles, captures ORDER BY ALL;
