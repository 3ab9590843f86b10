-- title: What a warm start consists of
-- note: Seconds. Engine init, torch.compile, capture (whole seconds) and load are the engine's own log lines; rest of init is engine init less compile and capture (profiling, KV allocation, warm-up); outside is exec to /health less load and engine init (imports, processes, API server). 0 stands where the arm has no such phase.
-- chart: start_parts
SELECT setup, model, arm,
       f2(any_value(estimate) FILTER (metric = 'start_s')) AS to_health_s, f2(any_value(estimate) FILTER (metric = 'load_s')) AS load_s,
       f2(any_value(estimate) FILTER (metric = 'engine_init_s')) AS engine_init_s, f2(any_value(estimate) FILTER (metric = 'compile_s')) AS of_which_compile_s,
       f1(any_value(estimate) FILTER (metric = 'capture_s')) AS of_which_capture_s, f2(any_value(estimate) FILTER (metric = 'init_rest_s')) AS of_which_rest_s,
       f2(any_value(estimate) FILTER (metric = 'outside_s')) AS outside_s
FROM estimates WHERE profile = '(all)' AND metric IN ('start_s', 'load_s', 'engine_init_s', 'compile_s', 'capture_s', 'init_rest_s', 'outside_s')
GROUP BY ALL ORDER BY ALL;
