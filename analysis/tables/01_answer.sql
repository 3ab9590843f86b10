-- title: In short: graphs against eager
-- note: Ratios graphs / eager of output tokens per second and output tokens per joule, paired by block. At equal KV: graphs given eager's KV blocks. Overload: concurrency over the requests of full length that eager's KV pool holds. Start: what graphs add to a warm start, exec to /health, whatever the profile. With random weights energy is only a bound, so its ratios say little of trained ones.
-- chart: effects
-- empty: Needs blocks with graphs and eager.
WITH e AS (SELECT * FROM effects WHERE arm_b = 'eager' AND arm_a IN ('graphs', 'graphs_kv_matched'))
SELECT setup, model, profile, d3(any_value(o.estimate.mean)) AS overload,
       f3(any_value(ratio) FILTER (metric = 'output_tok_s' AND arm_a = 'graphs')) AS throughput_ratio,
       any_value(verdict) FILTER (metric = 'output_tok_s' AND arm_a = 'graphs') AS throughput_is,
       f3(any_value(ratio) FILTER (metric = 'output_tok_s' AND arm_a = 'graphs_kv_matched')) AS throughput_ratio_at_equal_kv,
       f3(any_value(ratio) FILTER (metric = 'tok_per_j' AND arm_a = 'graphs')) AS tokens_per_joule_ratio,
       f2(any_value(s.difference)) AS start_difference_s
FROM e
LEFT JOIN (SELECT setup, model, profile, estimate FROM estimates WHERE metric = 'overload' AND arm = 'eager') o USING (setup, model, profile)
LEFT JOIN (SELECT setup, model, difference FROM e WHERE metric = 'start_s' AND profile = '(all)' AND arm_a = 'graphs') s USING (setup, model)
WHERE profile <> '(all)' GROUP BY setup, model, profile ORDER BY setup, model, profile;
