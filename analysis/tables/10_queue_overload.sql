-- title: Sign of the effect by queue overload
-- note: Overload: concurrency / requests of the full max-model-len that fit into the KV pool (the engine's own figure). Effect: output tokens per second, graphs over eager, paired by block. Rows in order of overload. Chart, hollow: the study's cells at the overload that it published, and its 7B sustained once more at the one recomputed for the stated context (see the audit: the published one needs the default context).
-- chart: overload
-- empty: Needs blocks with graphs and eager.
SELECT f.setup, f.model, f.profile, any_value(r.concurrency) AS concurrency, any_value(r.max_model_len) AS max_model_len,
       d2(avg(r.max_concurrency) FILTER (r.arm = 'graphs')) AS max_concurrency_graphs, d2(avg(r.max_concurrency) FILTER (r.arm = 'eager')) AS max_concurrency_eager,
       d3(avg(r.concurrency / r.max_concurrency) FILTER (r.arm = 'graphs')) AS overload_graphs, d3(avg(r.concurrency / r.max_concurrency) FILTER (r.arm = 'eager')) AS overload_eager,
       f3(any_value(f.ratio)) AS throughput_graphs_over_eager, any_value(f.verdict) AS graphs_are
FROM effects f JOIN runs r ON (r.setup, r.model, r.profile) = (f.setup, f.model, f.profile) AND r.counted
WHERE f.metric = 'output_tok_s' AND f.arm_a = 'graphs' AND f.arm_b = 'eager'
GROUP BY f.setup, f.model, f.profile ORDER BY f.setup, overload_graphs, f.model, f.profile;
