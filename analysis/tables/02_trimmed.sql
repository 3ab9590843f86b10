-- title: Captured sizes trimmed to the concurrency
-- note: Graphs captured only up to the concurrency (--max-cudagraph-capture-size), against both arms of the study: throughput ratio paired by block, difference of the warm start, KV blocks (mean), graph memory and capture time of the trimmed arm and of the other.
-- empty: Needs blocks with graphs_trimmed: suite mechanism.
WITH facts AS (
    SELECT setup, model, profile, arm, mean95(num_gpu_blocks) AS blocks, mean95(coalesce(graph_pool_actual_gib, capture_gib)) AS gib, mean95(capture_s) AS capture
    FROM runs WHERE counted AND kind = 'run' GROUP BY ALL
)
SELECT e.setup, e.model, e.profile, e.arm_b AS against, f3(e.ratio) AS throughput_ratio, e.verdict AS trimmed_is, f2(s.difference) AS start_difference_s,
       f0(t.blocks) AS kv_blocks_trimmed, f0(o.blocks) AS kv_blocks_other, f2(t.gib) AS graphs_trimmed_gib,
       CASE WHEN e.arm_b = 'eager' THEN 'no graphs' ELSE estimate_text(o.gib) END AS graphs_other_gib, f1(t.capture) AS capture_trimmed_s,
       CASE WHEN e.arm_b = 'eager' THEN 'no graphs' ELSE estimate_text(o.capture) END AS capture_other_s
FROM effects e
LEFT JOIN effects s ON (s.setup, s.model, s.profile, s.arm_a, s.arm_b, s.metric) = (e.setup, e.model, e.profile, e.arm_a, e.arm_b, 'start_s')
LEFT JOIN facts t ON (t.setup, t.model, t.profile, t.arm) = (e.setup, e.model, e.profile, e.arm_a)
LEFT JOIN facts o ON (o.setup, o.model, o.profile, o.arm) = (e.setup, e.model, e.profile, e.arm_b)
WHERE e.metric = 'output_tok_s' AND e.arm_a = 'graphs_trimmed' AND e.arm_b IN ('graphs', 'eager') ORDER BY e.setup, e.model, e.profile, against DESC;
