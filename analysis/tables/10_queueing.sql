-- title: Queueing: what the time to first token consists of
-- note: Means a request, ms, from the engine's own histograms (after less before the load; the two warm-up requests are in them). Queue: until first scheduled. Prefill: from then to the first token. Client: the rest of the client's mean TTFT, network and tokenising. A request preempted before its first token counts as prefill.
-- empty: No run counts yet.
WITH c AS (
    SELECT folder, any_value(value) FILTER (name = 'vllm:request_queue_time_seconds_sum') AS queue_s, any_value(value) FILTER (name = 'vllm:request_prefill_time_seconds_sum') AS prefill_s,
           any_value(value) FILTER (name = 'vllm:time_to_first_token_seconds_sum') AS ttft_s, any_value(value) FILTER (name = 'vllm:request_queue_time_seconds_count') AS requests
    FROM counters GROUP BY folder
)
SELECT setup, model, profile, arm, f1(mean95(f.ttft_ms)) AS ttft_ms, f1(mean95(1000 * queue_s / nullif(requests, 0))) AS queue_ms, f1(mean95(1000 * prefill_s / nullif(requests, 0))) AS prefill_ms,
       f1(mean95(f.ttft_ms - 1000 * (queue_s + prefill_s) / nullif(requests, 0))) AS client_ms, f1(mean95(100 * queue_s / nullif(ttft_s, 0))) AS queue_share_pct
FROM runs JOIN run_figures f USING (folder) LEFT JOIN c USING (folder) GROUP BY ALL ORDER BY ALL;
