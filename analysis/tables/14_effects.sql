-- title: All effects against eager and between graphs arms
-- part: All effects, and how far to trust them
-- note: Ratio arm_a / arm_b, paired by block. Higher and lower: the 95% interval excludes 1, with three blocks or more. p: none for one block. With random weights energy is only a bound, so its ratios say little of trained ones. Nothing is corrected for the number of comparisons.
-- empty: No block has two arms.
SELECT setup, model, profile, CASE WHEN metric IN ('steps', 'mean_running') THEN metric || '_while_requests_wait' ELSE metric END AS metric, arm_a, arm_b, f3(ratio) AS ratio, verdict, coalesce(CASE WHEN n > 1 THEN d3(p)::VARCHAR END, 'none') AS p, list_transform(points, lambda x: d3(x)) AS points
FROM effects
WHERE metric IN ('output_tok_s', 'tpot_ms', 'ttft_ms', 'start_s', 'first_token_s', 'steps', 'mean_running', 'tok_per_j', 'mean_power_w', 'kv_tokens')
  AND (profile <> '(all)') = (metric NOT IN ('start_s', 'first_token_s', 'kv_tokens'))
  AND arm_a <> 'eager' AND (arm_b = 'eager' OR (arm_b, arm_a) IN (('graphs', 'graphs_kv_matched'), ('graphs', 'graphs_trimmed'), ('graphs', 'graphs_unpadded'), ('graphs_kv_matched', 'graphs_unpadded')))
ORDER BY setup, model, profile, effects.metric, arm_a, arm_b;
