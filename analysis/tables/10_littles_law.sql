-- title: Little's law
-- note: Requests at a time, averaged over the window. In flight by requests: sum of latencies over the window, which a closed loop holds just below its concurrency. In decode by requests: sum of (latency - TTFT) over the window, the same as tokens/s × TPOT × (output - 1)/output. By steps: the trace's running, waiting and KV pool in use, weighted by the time until the next step; running includes requests in prefill, so it is the larger; what is in flight but not in the engine is with the client and the API server. Chart: the figures by steps over time, of one run an arm: in the first counted block of each cell with more than one request at a time.
-- chart: running
-- empty: No run counts yet.
WITH q AS (
    SELECT folder, sum(latency_s) / any_value(seconds(window_begin_ns, window_end_ns)) AS in_flight, sum(latency_s - ttft_s) / any_value(seconds(window_begin_ns, window_end_ns)) AS in_decode
    FROM requests JOIN runs USING (folder) WHERE counted AND error = '' GROUP BY folder
), s AS (
    SELECT folder, sum(running * wait) / sum(wait) AS running, sum((running + waiting) * wait) / sum(wait) AS in_engine, sum(waiting * wait) / sum(wait) AS waiting, 100 * sum(kv_usage * wait) / sum(wait) AS kv
    FROM (SELECT folder, running, waiting, kv_usage, lead(t_ns) OVER (PARTITION BY folder ORDER BY step) - t_ns AS wait FROM window_steps) GROUP BY folder
)
SELECT setup, model, profile, arm, any_value(concurrency) AS concurrency, f1(mean95(in_flight)) AS in_flight_by_requests, f1(mean95(in_engine)) AS in_flight_by_steps,
       f1(mean95(in_decode)) AS in_decode_by_requests, f1(mean95(bench_output_tok_s * tpot_ms / 1000 * (1 - num_prompts / bench_output_tokens))) AS tokens_per_s_times_tpot, f1(mean95(running)) AS running_by_steps, f1(mean95(waiting)) AS waiting_by_steps, f1(mean95(kv)) AS kv_pool_in_use_by_steps_pct
FROM runs JOIN run_figures USING (folder) LEFT JOIN q USING (folder) LEFT JOIN s USING (folder) GROUP BY setup, model, profile, arm ORDER BY ALL;
