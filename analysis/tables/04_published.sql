-- title: The study's figures beside ours
-- note: Same figure, same cell; where card or weights differ (see the deviations) times and power are not expected to agree, scheduling and memory are. Change and gain in percent are from ratios paired by block.
-- empty: No run counts yet.
WITH setups AS (SELECT DISTINCT setup FROM runs WHERE counted AND kind = 'run'),
measured AS (
    SELECT setup, metric, model, CASE profile WHEN '(all)' THEN 'all' ELSE profile END AS profile, arm, estimate FROM estimates
    UNION ALL SELECT setup, metric, model, profile, 'all', estimate FROM estimates WHERE arm = 'graphs' AND metric IN ('overload', 'preemptions')
    UNION ALL SELECT setup, metric, model, 'all', 'difference', difference FROM effects WHERE arm_a = 'graphs' AND arm_b = 'eager' AND profile = '(all)'
    UNION ALL SELECT setup, CASE metric WHEN 'output_tok_s' THEN 'throughput' ELSE metric END, model, profile, 'change_pct',
                     struct_pack(mean := 100 * (ratio.mean - 1), lo := 100 * (ratio.lo - 1), hi := 100 * (ratio.hi - 1), n := n) FROM effects WHERE arm_a = 'graphs' AND arm_b = 'eager'
    UNION ALL SELECT setup, metric, model, profile, 'gain_pct',
                     struct_pack(mean := 100 * (1 - ratio.mean), lo := 100 * (1 - ratio.hi), hi := 100 * (1 - ratio.lo), n := n) FROM effects WHERE arm_a = 'graphs' AND arm_b = 'eager'
    UNION ALL SELECT setup, 'break_even', model, profile, 'all', struct_pack(mean := requests, lo := fewest, hi := most, n := n) FROM break_evens WHERE arm = 'graphs'
    UNION ALL SELECT setup, 'saving_ms', model, profile, 'all', scaled(saving, 1000) FROM break_evens WHERE arm = 'graphs'
    UNION ALL SELECT setup, 'graph_gib', model, 'all', arm, mean95(coalesce(graph_pool_actual_gib, capture_gib)) FROM runs WHERE counted AND kind = 'run' GROUP BY ALL
    UNION ALL SELECT setup, 'output_tokens', model, profile, arm, mean95(bench_output_tokens) FROM runs WHERE counted AND kind = 'run' GROUP BY ALL
    UNION ALL SELECT setup, 'compile_s', model, 'all', 'first_start', mean95(compile_s) FROM starts WHERE arm = 'graphs' AND NOT warm GROUP BY ALL
)
SELECT setup, p.metric AS figure, p.model, p.profile, p.arm, p.text AS published, coalesce(estimate_text(m.estimate), 'not measured') AS here, CASE WHEN p.arm LIKE '%_pct' THEN '%' ELSE p.unit END AS unit, p.place
FROM setups CROSS JOIN published p LEFT JOIN measured m USING (setup, metric, model, profile, arm)
WHERE p.value IS NOT NULL AND p.metric NOT IN ('start_n', 'excluded_starts', 'accounted_pct', 'energy_window_s', 'generation_span_s', 'useful_pct', 'kv_bytes_per_token', 'load', 'setup')
  AND p.arm NOT LIKE '%_least' AND p.arm NOT LIKE '%_greatest'
ORDER BY setup, p.metric, p.model, p.profile, p.arm;
