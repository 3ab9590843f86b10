-- title: TPOT and TTFT
-- part: Latency and queueing
-- note: Milliseconds. Mean and quantiles over the requests of a run, then the mean over runs. TPOT: (latency - TTFT) / (output tokens - 1). Under overload TPOT compares arms that decode different batch sizes: it is no measure of faster decode there.
SELECT setup, model, profile, arm, upper(left(metric, 4)) AS figure,
       f2(any_value(estimate) FILTER (metric IN ('tpot_ms', 'ttft_ms'))) AS mean_ms, f2(any_value(estimate) FILTER (metric LIKE '%_p50_ms')) AS p50_ms,
       f2(any_value(estimate) FILTER (metric LIKE '%_p90_ms')) AS p90_ms, f2(any_value(estimate) FILTER (metric LIKE '%_p99_ms')) AS p99_ms
FROM estimates WHERE metric LIKE 'tpot%' OR metric LIKE 'ttft%'
GROUP BY ALL ORDER BY setup, model, profile, figure, arm;
